//! The head over several stores: does the I/O for the rules in `register`. Each step at a store is a conditional PUT on
//! the version that was read there; `round` carries the steps out.
//!
//! `moves` decides which list of stores counts.

use super::answer::{Answer, has_entry, is_spoilt, seen_of};
use super::register::{
    Ballot, Look, RegisterEntry, Seat, Seen, Stored, VALUE_BYTES_MAX, Wish, decode, encode, encode_mark, judge_look,
    mark_for, may_begin, may_lay_out, may_mend, outlived, restarts_of,
};
use super::round::{Aim, Outcome, is};
use super::state::Register;
use crate::error::{Cause, Disposition, Op, StoreError};
use crate::{Object, ObjectStore, Version};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of rounds of one call. A further round is needed if another writer came in between, or too few stores
/// answered.
const ROUNDS_MAX: u32 = 8;
/// How long the others are waited for once enough have answered.
const STRAGGLERS: Duration = Duration::from_millis(500);
/// Like `STRAGGLERS`, if all answers are wanted. A store that has not answered by then counts as silent; if it prevents
/// a mend, that is done later.
const ALL_LIMIT: Duration = Duration::from_secs(3);
/// Pause between two rounds, multiplied by the number of the round; half of it is random, so that two writers do not
/// block each other.
const PAUSE: Duration = Duration::from_millis(60);

impl Register {
    /// A single store: its head is an ordinary object, without a frame.
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
                Ok(Stored::Entry(entry)) => {
                    Answer { seen: Seen::Entry(entry), version: Some(object.version), error: None }
                }
                Ok(Stored::Mark(restart)) => {
                    Answer { seen: Seen::Marked(restart), version: Some(object.version), error: None }
                }
                Err(bad) => silent(self.bad_entry(seat, key, &bad), Some(object.version)),
            },
            Err(error) if error.disposition() == Disposition::NotFound => {
                // The repair checks sooner.
                replica.head_lost(false);
                Answer { seen: Seen::Empty, version: None, error: None }
            }
            Err(error) => silent(error, None),
        }
    }

    /// Asks all stores. Ends when the answers show a decided value (unless `all`), when all have answered, or a while
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

    /// The value of the register. A value that is not decided yet is decided first: nobody can undo what is returned
    /// here.
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

    /// Replaces the value of the register, if it is `expected`.
    pub(super) async fn swap_register(
        &self,
        key: &str,
        expected: Option<&Version>,
        body: Bytes,
    ) -> Result<Version, StoreError> {
        self.swap_laid_out(key, expected, body, false).await
    }

    /// Writes the first value, when every store is known to have had an entry before ([`Self::lay_out_all`]): then w of
    /// them are enough. A store without an entry has lost it, so QUORUM-Q2 applies.
    pub(super) async fn begin_register(&self, key: &str, body: Bytes) -> Result<Version, StoreError> {
        self.swap_laid_out(key, None, body, true).await
    }

    /// QUORUM-Q3: makes sure that every store has an entry, unless there is a value already.
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
                // This call has sent nothing: it has not happened, and will not happen.
                Look::Decided(value) if !sent_before && !is(&expected.cloned(), Some(&value)) => {
                    return Err(changed(Some(&value)));
                }
                Look::Nothing if !sent_before && expected.is_some() => return Err(changed(None)),
                Look::Nothing => answers = self.lay_out(key, answers).await,
                Look::Decided(_) | Look::Undecided | Look::TooFew => {}
            }
            let entries = answers.iter().filter(|answer| has_entry(answer)).count();
            let may_begin = may_begin(&seen_of(&answers), self.w) || laid_out && entries >= self.w;
            if !may_begin {
                return Err(self.no_quorum(Op::Swap, key, &answers, sent_before));
            }
            match self.round(key, &answers, &aim, sent_before, seen_higher).await? {
                Outcome::Done(_) | Outcome::MayBegin(_) => return Ok(version),
                Outcome::Refused { found } if !sent_before => return Err(changed(found.as_ref())),
                // R12: our value may have been there and been replaced since.
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

    /// QUORUM-Q3: creates entries without a value, if every store has answered and none has a value.
    async fn lay_out(&self, key: &str, answers: Vec<Answer>) -> Vec<Answer> {
        let all = if answers.iter().any(|answer| answer.seen == Seen::Silent) {
            self.ask_all(key, true).await
        } else {
            answers
        };
        let seen = seen_of(&all);
        if !may_lay_out(&seen, self.w) {
            // Some have an entry, and none has a value: the others have lost theirs, and perhaps a promise with it.
            if matches!(judge_look(&seen, self.w), Look::Nothing) && all.iter().any(|answer| !has_entry(answer)) {
                if let Err(error) = self.mend_lost(key, &all).await {
                    tracing::debug!(key, %error, "a head that was lost before it had a value is mended later");
                }
                return self.ask_all(key, true).await;
            }
            return all;
        }
        let puts = self.replicas.iter().zip(&all).enumerate().filter(|(_, (_, answer))| !has_entry(answer));
        let puts = puts.map(|(seat, (replica, answer))| {
            let object = encode(self.seat(seat), &RegisterEntry::default(), rand::random());
            async move { replica.store.swap(key, answer.version.as_ref(), object).await }
        });
        // The following reads show the outcome.
        join_all(puts).await;
        self.ask_all(key, true).await
    }

    /// Writes the decided head to every store, for the repair; returns which stores have it. For a store that has lost
    /// its own, all stores must answer.
    pub(super) async fn mend_head(&self, key: &str) -> (Vec<bool>, Result<(), StoreError>) {
        if self.alone().is_some() {
            return (vec![true], Ok(()));
        }
        let answers = self.ask_all(key, true).await;
        let seen = seen_of(&answers);
        let accepted = |seen: &Seen<Bytes>| match seen {
            Seen::Entry(RegisterEntry { accepted: Some((ballot, _)), .. }) => Some(*ballot),
            _ => None,
        };
        let highest = seen.iter().filter_map(accepted).max();
        let restarts = restarts_of(&seen);
        self.replicas.iter().zip(restarts).for_each(|(replica, restart)| replica.restarts(self.number, restart));
        let whole = |at: usize| accepted(&seen[at]) == highest && highest.is_some() && !outlived(&seen, at);
        let has_it: Vec<bool> = (0..seen.len()).map(whole).collect();
        let lost = |(at, answer): (usize, &Answer)| {
            is_spoilt(answer) || matches!(answer.seen, Seen::Empty | Seen::Marked(_)) || outlived(&seen, at)
        };
        if answers.iter().enumerate().any(lost) {
            return (has_it, self.mend_lost(key, &answers).await);
        }
        let behind = seen.iter().any(|seen| matches!(seen, Seen::Entry(_)) && accepted(seen) != highest);
        if !behind || matches!(judge_look(&seen, self.w), Look::Nothing | Look::TooFew) {
            return (has_it, Ok(()));
        }
        let settled = self.round(key, &answers, &Aim::Most(Wish::Settle), false, Ballot::default()).await;
        (has_it, settled.map(|_| ()))
    }

    /// QUORUM-Q2: lets one store that has lost its entry start again, if all the others allow it.
    async fn mend_lost(&self, key: &str, answers: &[Answer]) -> Result<(), StoreError> {
        // Step 1: put a mark wherever an entry is gone; wherever it is damaged and still so at a second look (it may
        // have been damaged in transit); wherever it is from before a restart, or marked for a restart that has begun
        // already.
        let mut seen = seen_of(answers);
        let lost: Vec<bool> =
            answers.iter().enumerate().map(|(at, answer)| is_spoilt(answer) || outlived(&seen, at)).collect();
        seen.iter_mut().zip(lost).filter(|(_, lost)| *lost).for_each(|(seen, _)| *seen = Seen::Empty);
        for (lost, (replica, answer)) in self.replicas.iter().zip(answers).enumerate() {
            let Some(restart) = mark_for(&seen, lost, self.w) else { continue };
            if is_spoilt(answer) && !is_spoilt(&self.ask(lost, key).await) {
                return Ok(());
            }
            // A store that lost its head has lost more than that.
            replica.head_lost(true);
            replica.restarts(self.number, restart);
            let mark = encode_mark(self.seat(lost), restart, rand::random());
            replica.store.swap(key, answer.version.as_ref(), mark).await?;
        }
        // Step 2: requests from here on come after the marks.
        let answers = self.ask_all(key, true).await;
        let seen = seen_of(&answers);
        let Some((at, restart)) = may_mend(&seen, self.w) else { return Ok(()) };
        let aim = Aim::Mend { at, restart };
        let Outcome::MayBegin(entry) = self.round(key, &answers, &aim, false, Ballot::default()).await? else {
            return Ok(());
        };
        // Step 3.
        let object = encode(self.seat(at), &entry, rand::random());
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

async fn pause(round: u32) {
    let most = PAUSE * round;
    tokio::time::sleep(most / 2 + (most / 2).mul_f64(rand::random::<f64>())).await;
}
