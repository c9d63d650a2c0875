//! The head over several stores: does the I/O for the rules in `register`. Each step at a store is a conditional PUT on
//! the version read there.
//!
//! Which list of stores counts is not asked here: see `moves`.
//!
//! A step at one store continues in a task of its own, so that the third store gets its request even when no one waits
//! for it any more.

use super::register::{
    Ballot, Lives, Look, Seat, Seen, Slot, Step, Stored, VALUE_BYTES_MAX, Wish, begun_anew, decode, encode,
    encode_mark, judge_look, lives_of, mark_for, may_begin, may_lay_out, may_mend, mended, next_step, outlived,
    promised_value,
};
use super::state::{Register, Replica, worst};
use crate::error::{Cause, Disposition, Op, StoreError};
use crate::{Object, ObjectStore, Version};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Rounds of one call: each after the first because another writer came in between, or too few stores answered.
const ROUNDS_MAX: u32 = 8;
/// Once enough have answered, the others are waited for so long.
const STRAGGLERS: Duration = Duration::from_millis(500);
/// The same if all are wanted. A store that has not answered by then is silent; what it prevents from being mended is
/// mended later.
const ALL_LIMIT: Duration = Duration::from_secs(3);
/// One round at most. What became of it is found out by the next.
const ROUND_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two rounds, times the number of the round; half of it random, so that two writers do not block each
/// other.
const PAUSE: Duration = Duration::from_millis(60);
/// A promise that met somebody else's step is tried on top of it so often.
const PROMISES_MAX: u32 = 4;

type Is = Option<Version>;

/// What one store answered.
pub(super) struct Answer {
    pub seen: Seen<Bytes>,
    /// Of the object, for a conditional PUT on it.
    version: Option<Version>,
    pub error: Option<StoreError>,
}

/// What the tasks of a round are told.
#[derive(Clone)]
enum Verdict {
    Open,
    Accept(Option<Bytes>, Lives),
    Stop,
}

/// What they tell.
enum Told {
    Promised(usize, Slot<Bytes>),
    Accepted,
    /// It takes no part in this round; a higher promise was seen, or what went wrong.
    Out(Ballot, Option<StoreError>),
}

/// What a round is for, and whom it needs.
enum Aim {
    /// w stores.
    Most(Wish<Is, Bytes>),
    /// Every store that has a slot: what is there is decided at all of them, and they note that this one begins another
    /// life (QUORUM-Q2).
    Mend { at: usize, life: u32 },
}

/// What a round came to.
enum Outcome {
    Done(Option<Bytes>),
    /// What the store that was lost begins its new life with.
    MayBegin(Slot<Bytes>),
    Refused {
        found: Option<Bytes>,
    },
    /// Somebody else is at work, or too few answered.
    Again {
        sent: bool,
        seen: Ballot,
        error: Option<StoreError>,
    },
}

fn is(expected: &Is, current: Option<&Bytes>) -> bool {
    *expected == current.map(|body| Version::of(body))
}

impl Register {
    /// One store alone: its head is an object like any other, without a frame, as it always was.
    fn alone(&self) -> Option<&Arc<dyn ObjectStore>> {
        match self.replicas.as_slice() {
            [one] => Some(&one.store),
            _ => None,
        }
    }

    pub(super) fn seat(&self, index: usize) -> Seat {
        let small = |count: usize| u8::try_from(count).unwrap_or(u8::MAX);
        Seat { index: small(index), n: small(self.replicas.len()), w: small(self.w) }
    }

    async fn ask(&self, seat: usize, key: &str) -> Answer {
        let replica = &self.replicas[seat];
        let began = Instant::now();
        let answer = replica.store.get_object(key).await;
        match &answer {
            Err(error) if error.kind().is_some() => replica.speed.failed(),
            _ => replica.speed.answered(Some(began.elapsed())),
        }
        let silent = |error, version| Answer { seen: Seen::Silent, version, error: Some(error) };
        match answer {
            Ok(object) => match decode(self.seat(seat), &object.body) {
                Ok(Stored::Slot(slot)) => Answer { seen: Seen::Slot(slot), version: Some(object.version), error: None },
                Ok(Stored::Mark(life)) => {
                    Answer { seen: Seen::Marked(life), version: Some(object.version), error: None }
                }
                Err(bad) => silent(self.bad_slot(seat, key, &bad), Some(object.version)),
            },
            Err(error) if error.disposition() == Disposition::NotFound => {
                // The repair looks sooner.
                replica.head_lost(false);
                Answer { seen: Seen::Empty, version: None, error: None }
            }
            Err(error) => silent(error, None),
        }
    }

    /// Asks all stores. Ends when the answers show a decided value (not with `all`), when all have answered, or a while
    /// after enough have.
    pub(super) async fn ask_all(&self, key: &str, all: bool) -> Vec<Answer> {
        let none = || Answer { seen: Seen::Silent, version: None, error: None };
        let mut answers: Vec<Answer> = self.replicas.iter().map(|_| none()).collect();
        let mut asked: FuturesUnordered<_> =
            (0..self.replicas.len()).map(|seat| async move { (seat, self.ask(seat, key).await) }).collect();
        let (began, mut until): (Instant, Option<Instant>) = (Instant::now(), None);
        let mut heard = vec![false; answers.len()];
        let ends = |answers, heard: &[bool]| {
            for (_, replica) in self.replicas.iter().enumerate().filter(|(seat, _)| !heard[*seat]) {
                replica.speed.not_within(began.elapsed());
                if all {
                    self.took_too_long(replica, key, ALL_LIMIT);
                }
            }
            answers
        };
        loop {
            let wait = async {
                match until {
                    Some(until) => tokio::time::sleep_until(until).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                answer = asked.next() => match answer {
                    Some((index, answer)) => (answers[index], heard[index]) = (answer, true),
                    None => return answers,
                },
                () = wait => return ends(answers, &heard),
            }
            let seen = seen_of(&answers);
            if !all && matches!(judge_look(&seen, self.w), Look::Decided(_)) {
                return ends(answers, &heard);
            }
            let spoken = seen.iter().filter(|seen| !matches!(seen, Seen::Silent)).count();
            if spoken >= self.w {
                until = until.or(Some(Instant::now() + if all { ALL_LIMIT } else { STRAGGLERS }));
            }
        }
    }

    /// What the register holds. A value that is not decided yet is decided first: what is shown here, nobody can take
    /// back.
    pub(super) async fn look(&self, key: &str) -> Result<Object, StoreError> {
        if let Some(store) = self.alone() {
            return store.get_object(key).await;
        }
        let object = |body: Bytes| Object { version: Version::of(&body), body };
        let (mut seen_higher, mut last) = (Ballot::default(), None);
        for round in 1..=ROUNDS_MAX {
            let answers = self.ask_all(key, false).await;
            match judge_look(&seen_of(&answers), self.w) {
                Look::Decided(value) => return Ok(object(value)),
                Look::Nothing => return Err(StoreError::NotFound { at: self.at(Op::Get, key) }),
                Look::TooFew => return Err(self.no_quorum(Op::Get, key, &answers, false)),
                Look::Undecided => {}
            }
            match self.round(key, &answers, &Aim::Most(Wish::Settle), false, seen_higher).await? {
                Outcome::Done(Some(value)) => return Ok(object(value)),
                Outcome::Done(None) | Outcome::Refused { .. } | Outcome::MayBegin(_) => {
                    return Err(StoreError::NotFound { at: self.at(Op::Get, key) });
                }
                Outcome::Again { seen, error, .. } => {
                    seen_higher = seen_higher.max(seen);
                    last = error.or(last);
                }
            }
            pause(round).await;
        }
        Err(self.again_and_again(Op::Get, key, ROUNDS_MAX, false, last))
    }

    /// Replaces what the register holds, if that is `expected`.
    pub(super) async fn swap_register(
        &self,
        key: &str,
        expected: Option<&Version>,
        body: Bytes,
    ) -> Result<Version, StoreError> {
        self.swap_laid_out(key, expected, body, false).await
    }

    /// Writes the first value, when every store is known to have had a slot before ([`Self::lay_out_all`]): then w of
    /// them are enough. A store without one has lost it, so QUORUM-Q2 applies.
    pub(super) async fn begin_register(&self, key: &str, body: Bytes) -> Result<Version, StoreError> {
        self.swap_laid_out(key, None, body, true).await
    }

    /// QUORUM-Q3: every store has a slot, or a value is there already.
    pub(super) async fn lay_out_all(&self, key: &str) -> Result<(), StoreError> {
        if self.alone().is_some() {
            return Ok(());
        }
        let mut answers = self.ask_all(key, true).await;
        if matches!(judge_look(&seen_of(&answers), self.w), Look::Nothing) {
            answers = self.lay_out(key, answers).await;
        }
        if may_begin(&seen_of(&answers), self.w) { Ok(()) } else { Err(self.no_quorum(Op::Swap, key, &answers, false)) }
    }

    async fn swap_laid_out(
        &self,
        key: &str,
        expected: Option<&Version>,
        body: Bytes,
        laid_out: bool,
    ) -> Result<Version, StoreError> {
        if let Some(store) = self.alone() {
            return store.swap(key, expected, body).await;
        }
        if body.len() > VALUE_BYTES_MAX {
            return Err(StoreError::TooLarge { at: self.at(Op::Swap, key), found_bytes: body.len() as u64 });
        }
        let version = Version::of(&body);
        let aim = Aim::Most(Wish::Swap { expected: expected.cloned(), value: body.clone() });
        let changed = |found: Option<&Bytes>| StoreError::Changed {
            at: self.at(Op::Swap, key),
            found: found.map(|body| Version::of(body)),
            expected: expected.cloned(),
        };
        let (mut sent_before, mut seen_higher, mut last) = (false, Ballot::default(), None);
        for round in 1..=ROUNDS_MAX {
            let mut answers = self.ask_all(key, false).await;
            match judge_look(&seen_of(&answers), self.w) {
                Look::Decided(value) if value == body => return Ok(version),
                // Nothing of this call was sent: it has not happened, and will not.
                Look::Decided(value) if !sent_before && !is(&expected.cloned(), Some(&value)) => {
                    return Err(changed(Some(&value)));
                }
                Look::Nothing if !sent_before && expected.is_some() => return Err(changed(None)),
                Look::Nothing => answers = self.lay_out(key, answers).await,
                Look::Decided(_) | Look::Undecided | Look::TooFew => {}
            }
            let slots = answers.iter().filter(|answer| has_slot(answer)).count();
            let may_begin = may_begin(&seen_of(&answers), self.w) || laid_out && slots >= self.w;
            if !may_begin {
                return Err(self.no_quorum(Op::Swap, key, &answers, sent_before));
            }
            match self.round(key, &answers, &aim, sent_before, seen_higher).await? {
                Outcome::Done(_) | Outcome::MayBegin(_) => return Ok(version),
                Outcome::Refused { found } if !sent_before => return Err(changed(found.as_ref())),
                // R12: ours may have been there and been replaced since.
                Outcome::Refused { .. } => {
                    let cause = Cause::text("another version is there; ours may have been before it");
                    return Err(StoreError::Unknown { at: self.at(Op::Swap, key), attempts: round, cause });
                }
                Outcome::Again { sent, seen, error } => {
                    sent_before |= sent;
                    seen_higher = seen_higher.max(seen);
                    last = error.or(last);
                }
            }
            pause(round).await;
        }
        Err(self.again_and_again(Op::Swap, key, ROUNDS_MAX, sent_before, last))
    }

    /// QUORUM-Q3: slots without a value, where every store has answered and none has one.
    async fn lay_out(&self, key: &str, answers: Vec<Answer>) -> Vec<Answer> {
        let all = if answers.iter().any(|answer| answer.seen == Seen::Silent) {
            self.ask_all(key, true).await
        } else {
            answers
        };
        let seen = seen_of(&all);
        if !may_lay_out(&seen, self.w) {
            // Some have a slot, and none a value: the others have lost theirs, and perhaps a promise with it.
            if matches!(judge_look(&seen, self.w), Look::Nothing) && all.iter().any(|answer| !has_slot(answer)) {
                if let Err(error) = self.mend_lost(key, &all).await {
                    tracing::debug!(key, %error, "a head that was lost before it had a value is mended later");
                }
                return self.ask_all(key, true).await;
            }
            return all;
        }
        let puts = self.replicas.iter().zip(&all).enumerate().filter(|(_, (_, answer))| !has_slot(answer));
        let puts = puts.map(|(seat, (replica, answer))| {
            let object = encode(self.seat(seat), &Slot::default(), rand::random());
            async move { replica.store.swap(key, answer.version.as_ref(), object).await }
        });
        // What came of it is read.
        join_all(puts).await;
        self.ask_all(key, true).await
    }

    /// One round with a ballot of its own, at the stores that have a slot.
    async fn round(
        &self,
        key: &str,
        answers: &[Answer],
        aim: &Aim,
        sent_before: bool,
        seen_higher: Ballot,
    ) -> Result<Outcome, StoreError> {
        let slots = answers.iter().filter_map(|answer| match &answer.seen {
            Seen::Slot(slot) => Some(slot.highest()),
            _ => None,
        });
        let Some(ballot) = Ballot::above(slots.chain([seen_higher]), rand::random()) else {
            let cause = Cause::text("a store shows the last ballot that there is");
            let hint = "that is no head that a gateway wrote: look at what replaced it";
            return Err(StoreError::Denied { at: self.at(Op::Swap, key), cause, hint });
        };
        let (tell, mut told) = mpsc::channel(2 * self.replicas.len());
        let (verdict, heard) = watch::channel(Verdict::Open);
        let needed = match aim {
            Aim::Most(_) => self.w,
            Aim::Mend { .. } => answers.iter().filter(|answer| has_slot(answer)).count(),
        };
        let mut taking_part = 0;
        for (seat, (replica, answer)) in self.replicas.iter().zip(answers).enumerate() {
            let (Seen::Slot(slot), Some(version)) = (&answer.seen, &answer.version) else { continue };
            // Steps that hang are not waited for, and not piled up.
            let Ok(permit) = replica.heads.clone().try_acquire_owned() else { continue };
            taking_part += 1;
            let place = Place { replica: replica.clone(), key: key.to_owned(), seat: self.seat(seat), ballot };
            let (slot, version, tell, heard) = (slot.clone(), version.clone(), tell.clone(), heard.clone());
            tokio::spawn(async move {
                place.take_part(slot, version, &tell, heard).await;
                drop(permit);
            });
        }
        drop(tell);
        let mut promises: Vec<Option<Slot<Bytes>>> = vec![None; self.replicas.len()];
        let (mut value, mut accepted, mut out, mut highest) = (None, 0, 0, ballot);
        let (mut sent, mut errors, mut knows) = (false, Vec::new(), Lives::default());
        let ends = Instant::now() + ROUND_LIMIT;
        while let Ok(Some(word)) = tokio::time::timeout_at(ends, told.recv()).await {
            match word {
                Told::Promised(index, slot) => promises[index] = Some(slot),
                Told::Accepted => accepted += 1,
                Told::Out(higher, error) => {
                    out += 1;
                    highest = highest.max(higher);
                    errors.extend(error);
                }
            }
            if accepted >= needed {
                return Ok(match aim {
                    Aim::Most(_) => Outcome::Done(value),
                    Aim::Mend { .. } => Outcome::MayBegin(mended(ballot, value, knows)),
                });
            }
            if taking_part - out < needed {
                break;
            }
            if sent {
                continue;
            }
            let Some(found) = promised_value(&promises, needed) else {
                // All have spoken, and some of it is of an earlier life: a new round asks anew.
                let promised = promises.iter().flatten().count();
                if promised + out >= taking_part {
                    errors.extend((promised >= needed).then(|| self.of_an_earlier_life(key)));
                    break;
                }
                continue;
            };
            let step = match aim {
                Aim::Most(wish) => next_step(wish, found.value.clone(), is, sent_before).map(Some),
                Aim::Mend { at, life } => match begun_anew(&found.lives, *at, *life) {
                    Some(lives) => {
                        knows = lives;
                        Step::Accept(found.value.clone())
                    }
                    None => break,
                },
            };
            match step {
                Step::Accept(body) => {
                    sent = true;
                    value = body.clone();
                    verdict.send_replace(Verdict::Accept(body, knows));
                }
                Step::Nothing => return Ok(stop(&verdict, Outcome::Done(None))),
                Step::Refused { .. } => return Ok(stop(&verdict, Outcome::Refused { found: found.value })),
            }
        }
        // Who has promised and waits is let go; an accept that is under way may still be done (R12).
        if !sent {
            verdict.send_replace(Verdict::Stop);
        }
        Ok(Outcome::Again { sent, seen: highest, error: worst(errors) })
    }

    /// Brings every store's head to what is decided, for the repair: which have it. Needs all stores to answer for a
    /// store that has lost its own.
    pub(super) async fn mend_head(&self, key: &str) -> (Vec<bool>, Result<(), StoreError>) {
        if self.alone().is_some() {
            return (vec![true], Ok(()));
        }
        let answers = self.ask_all(key, true).await;
        let seen = seen_of(&answers);
        let accepted = |seen: &Seen<Bytes>| match seen {
            Seen::Slot(Slot { accepted: Some((ballot, _)), .. }) => Some(*ballot),
            _ => None,
        };
        let highest = seen.iter().filter_map(accepted).max();
        let lives = lives_of(&seen);
        self.replicas.iter().zip(lives).for_each(|(replica, life)| replica.lives(self.number, life));
        let whole = |at: usize| accepted(&seen[at]) == highest && highest.is_some() && !outlived(&seen, at);
        let has_it: Vec<bool> = (0..seen.len()).map(whole).collect();
        let lost = |(at, answer): (usize, &Answer)| {
            is_spoilt(answer) || matches!(answer.seen, Seen::Empty | Seen::Marked(_)) || outlived(&seen, at)
        };
        if answers.iter().enumerate().any(lost) {
            return (has_it, self.mend_lost(key, &answers).await);
        }
        let behind = seen.iter().any(|seen| matches!(seen, Seen::Slot(_)) && accepted(seen) != highest);
        if !behind || matches!(judge_look(&seen, self.w), Look::Nothing | Look::TooFew) {
            return (has_it, Ok(()));
        }
        let settled = self.round(key, &answers, &Aim::Most(Wish::Settle), false, Ballot::default()).await;
        (has_it, settled.map(|_| ()))
    }

    /// QUORUM-Q2: lets one store that has lost its slot begin anew, if all the others allow it.
    async fn mend_lost(&self, key: &str, answers: &[Answer]) -> Result<(), StoreError> {
        // 1: a mark wherever a slot is gone, spoilt and still so (it may have been spoilt on its way), of an earlier
        // life, or marked for one that has been.
        let mut seen = seen_of(answers);
        let lost: Vec<bool> =
            answers.iter().enumerate().map(|(at, answer)| is_spoilt(answer) || outlived(&seen, at)).collect();
        seen.iter_mut().zip(lost).filter(|(_, lost)| *lost).for_each(|(seen, _)| *seen = Seen::Empty);
        for (lost, (replica, answer)) in self.replicas.iter().zip(answers).enumerate() {
            let Some(life) = mark_for(&seen, lost, self.w) else { continue };
            if is_spoilt(answer) && !is_spoilt(&self.ask(lost, key).await) {
                return Ok(());
            }
            // What lost its head has lost more than that.
            replica.head_lost(true);
            replica.lives(self.number, life);
            let mark = encode_mark(self.seat(lost), life, rand::random());
            replica.store.swap(key, answer.version.as_ref(), mark).await?;
        }
        // 2: what is asked from here on is after that.
        let answers = self.ask_all(key, true).await;
        let seen = seen_of(&answers);
        let Some((at, life)) = may_mend(&seen, self.w) else { return Ok(()) };
        let aim = Aim::Mend { at, life };
        let Outcome::MayBegin(slot) = self.round(key, &answers, &aim, false, Ballot::default()).await? else {
            return Ok(());
        };
        // 3
        let object = encode(self.seat(at), &slot, rand::random());
        let store = &self.replicas[at].store;
        store.swap(key, answers[at].version.as_ref(), object).await?;
        tracing::warn!(
            key,
            store = store.place(),
            "the head was missing or damaged in this store and was written again"
        );
        Ok(())
    }
}

pub(super) fn has_slot(answer: &Answer) -> bool {
    matches!(answer.seen, Seen::Slot(_))
}

/// Whether a store has an object in the slot's place that was a slot of its own once, and does not read any more (R9).
fn is_spoilt(answer: &Answer) -> bool {
    let ours = answer.error.as_ref().is_none_or(|e| e.disposition() != Disposition::Denied);
    answer.seen == Seen::Silent && answer.version.is_some() && ours
}

fn stop(verdict: &watch::Sender<Verdict>, outcome: Outcome) -> Outcome {
    verdict.send_replace(Verdict::Stop);
    outcome
}

fn seen_of(answers: &[Answer]) -> Vec<Seen<Bytes>> {
    answers.iter().map(|answer| answer.seen.clone()).collect()
}

async fn pause(round: u32) {
    let most = PAUSE * round;
    tokio::time::sleep(most / 2 + (most / 2).mul_f64(rand::random::<f64>())).await;
}

/// One store in one round.
struct Place {
    replica: Arc<Replica>,
    key: String,
    seat: Seat,
    ballot: Ballot,
}

impl Place {
    async fn take_part(
        &self,
        slot: Slot<Bytes>,
        version: Version,
        tell: &mpsc::Sender<Told>,
        mut heard: watch::Receiver<Verdict>,
    ) {
        let (before, promised, version) = match self.promise(slot, version).await {
            Ok(promised) => promised,
            Err(out) => return drop(tell.send(out).await),
        };
        let _ = tell.send(Told::Promised(usize::from(self.seat.index), before)).await;
        let verdict = heard.wait_for(|verdict| !matches!(verdict, Verdict::Open)).await.map(|v| v.clone());
        let Ok(Verdict::Accept(value, lives)) = verdict else { return };
        let told = match promised.accept(self.ballot, value, &lives) {
            // Conditional on exactly the object that the promise left: any change in between, even by a store that
            // forgot, makes this no vote (QUORUM-Q2).
            Ok(slot) => match self.write(&slot, &version).await {
                Ok(_) => Told::Accepted,
                Err(error) => Told::Out(Ballot::default(), Some(error)),
            },
            Err(higher) => Told::Out(higher, None),
        };
        let _ = tell.send(told).await;
    }

    async fn write(&self, slot: &Slot<Bytes>, version: &Version) -> Result<Version, StoreError> {
        let object = encode(self.seat, slot, rand::random());
        self.replica.store.swap(&self.key, Some(version), object).await
    }

    /// The slot as it was, as it is promised, and its version.
    async fn promise(
        &self,
        mut slot: Slot<Bytes>,
        mut version: Version,
    ) -> Result<(Slot<Bytes>, Slot<Bytes>, Version), Told> {
        let mut last = None;
        for _ in 0..PROMISES_MAX {
            let promised = slot.promise(self.ballot).map_err(|higher| Told::Out(higher, None))?;
            match self.write(&promised, &version).await {
                Ok(version) => return Ok((slot, promised, version)),
                Err(error) if error.disposition() == Disposition::Conflict => last = Some(error),
                Err(error) => return Err(Told::Out(Ballot::default(), Some(error))),
            }
            let silent = |error| Told::Out(Ballot::default(), error);
            let object = self.replica.store.get_object(&self.key).await.map_err(|error| silent(Some(error)))?;
            let Ok(Stored::Slot(found)) = decode(self.seat, &object.body) else { return Err(silent(last)) };
            (slot, version) = (found, object.version);
        }
        Err(Told::Out(slot.highest(), last))
    }
}
