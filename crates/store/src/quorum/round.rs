//! One round of the register: promises from the stores, then one value that they accept. The rules are in `register`.
//!
//! A step at one store runs in a task of its own, so that the third store gets its request even if nobody waits for it
//! any more.

use super::answer::{Answer, has_entry};
use super::register::{
    Ballot, Promised, RegisterEntry, Restarts, Seat, Seen, Step, Stored, Wish, begun_anew, decode, encode, mended,
    next_step, promised_value,
};
use super::state::{Register, Replica, worst};
use crate::Version;
use crate::error::{Cause, Disposition, Op, StoreError};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};
use tokio::time::Instant;

/// Time limit of one round. The next round finds out its result.
const ROUND_LIMIT: Duration = Duration::from_secs(60);
/// How often a promise that met another writer's step is repeated on top of it.
const PROMISES_MAX: u32 = 4;

/// The expected value of a swap: the version of the present value.
pub(super) type Is = Option<Version>;

/// Messages to the tasks of a round.
#[derive(Clone)]
enum Verdict {
    Open,
    Accept(Option<Bytes>, Restarts),
    Stop,
}

/// Messages from the tasks.
enum RoundMessage {
    Promised(usize, RegisterEntry<Bytes>),
    Accepted,
    /// The store takes no part in this round, because of a higher promise, or because of this error.
    Out(Ballot, Option<StoreError>),
}

/// The purpose of a round, and the stores that it needs.
pub(super) enum Aim {
    /// w stores.
    Most(Wish<Is, Bytes>),
    /// Every store that has an entry: the present value is decided at all of them, and they note that this store
    /// restarts (QUORUM-Q2).
    Mend { at: usize, restart: u32 },
}

/// Result of a round.
pub(super) enum Outcome {
    Done(Option<Bytes>),
    /// The entry with which the lost store restarts.
    MayBegin(RegisterEntry<Bytes>),
    Refused {
        found: Option<Bytes>,
    },
    /// Another writer is active, or too few answered.
    Again {
        sent: bool,
        seen: Ballot,
        error: Option<StoreError>,
    },
}

pub(super) fn is(expected: &Is, current: Option<&Bytes>) -> bool {
    *expected == current.map(|body| Version::of(body))
}

impl Aim {
    /// The step after the promises: the value to send, and the restarts to note with it. `None`: nothing can be mended
    /// any more.
    fn step(&self, found: &Promised<Bytes>, sent_before: bool) -> Option<(Step<Option<Bytes>>, Restarts)> {
        match self {
            Aim::Most(wish) => {
                Some((next_step(wish, found.value.clone(), is, sent_before).map(Some), Restarts::default()))
            }
            Aim::Mend { at, restart } => {
                let restarts = begun_anew(&found.restarts, *at, *restart)?;
                Some((Step::Accept(found.value.clone()), restarts))
            }
        }
    }

    fn done(&self, ballot: Ballot, value: Option<Bytes>, restarts: Restarts) -> Outcome {
        match self {
            Aim::Most(_) => Outcome::Done(value),
            Aim::Mend { .. } => Outcome::MayBegin(mended(ballot, value, restarts)),
        }
    }
}

/// The answers of the stores in a round so far.
struct Heard {
    promises: Vec<Option<RegisterEntry<Bytes>>>,
    accepted: usize,
    out: usize,
    /// The highest ballot that one of them showed.
    highest: Ballot,
    errors: Vec<StoreError>,
}

impl Heard {
    fn nothing(stores: usize, ballot: Ballot) -> Self {
        Self { promises: vec![None; stores], accepted: 0, out: 0, highest: ballot, errors: Vec::new() }
    }

    fn note(&mut self, word: RoundMessage) {
        match word {
            RoundMessage::Promised(index, entry) => self.promises[index] = Some(entry),
            RoundMessage::Accepted => self.accepted += 1,
            RoundMessage::Out(higher, error) => {
                self.out += 1;
                self.highest = self.highest.max(higher);
                self.errors.extend(error);
            }
        }
    }
}

impl Register {
    /// One round with a ballot of its own, at the stores that have an entry.
    pub(super) async fn round(
        &self,
        key: &str,
        answers: &[Answer],
        aim: &Aim,
        sent_before: bool,
        seen_higher: Ballot,
    ) -> Result<Outcome, StoreError> {
        let ballot = self.ballot_above(key, answers, seen_higher)?;
        let (tell, mut told) = mpsc::channel(2 * self.replicas.len());
        let (verdict, hears) = watch::channel(Verdict::Open);
        let needed = match aim {
            Aim::Most(_) => self.w,
            Aim::Mend { .. } => answers.iter().filter(|answer| has_entry(answer)).count(),
        };
        let taking_part = self.begin_round(key, answers, ballot, &tell, &hears);
        drop(tell);
        let mut heard = Heard::nothing(self.replicas.len(), ballot);
        let mut sent: Option<(Option<Bytes>, Restarts)> = None;
        let ends = Instant::now() + ROUND_LIMIT;
        while let Ok(Some(word)) = tokio::time::timeout_at(ends, told.recv()).await {
            heard.note(word);
            if heard.accepted >= needed {
                let (value, restarts) = sent.unwrap_or_default();
                return Ok(aim.done(ballot, value, restarts));
            }
            if taking_part - heard.out < needed {
                break;
            }
            if sent.is_some() {
                continue;
            }
            let Some(found) = promised_value(&heard.promises, needed) else {
                // All have answered, and some of the answers are from before a restart: a new round is needed.
                let promised = heard.promises.iter().flatten().count();
                if promised + heard.out >= taking_part {
                    heard.errors.extend((promised >= needed).then(|| self.of_an_old_head(key)));
                    break;
                }
                continue;
            };
            match aim.step(&found, sent_before) {
                None => break,
                Some((Step::Accept(body), restarts)) => {
                    sent = Some((body.clone(), restarts));
                    verdict.send_replace(Verdict::Accept(body, restarts));
                }
                Some((Step::Nothing, _)) => return Ok(stop(&verdict, Outcome::Done(None))),
                Some((Step::Refused { .. }, _)) => {
                    return Ok(stop(&verdict, Outcome::Refused { found: found.value }));
                }
            }
        }
        // Stores that have promised and wait are released. An accept that is under way may still be done (R12).
        if sent.is_none() {
            verdict.send_replace(Verdict::Stop);
        }
        Ok(Outcome::Again { sent: sent.is_some(), seen: heard.highest, error: worst(heard.errors) })
    }

    /// A ballot above all that the stores have shown.
    fn ballot_above(&self, key: &str, answers: &[Answer], seen_higher: Ballot) -> Result<Ballot, StoreError> {
        let entries = answers.iter().filter_map(|answer| match &answer.seen {
            Seen::Entry(entry) => Some(entry.highest()),
            _ => None,
        });
        Ballot::above(entries.chain([seen_higher]), rand::random()).ok_or_else(|| {
            let cause = Cause::text("a store shows the highest ballot that is possible");
            let hint = "no gateway wrote this head: find out what replaced it";
            StoreError::Denied { at: self.at(Op::Swap, key), cause, hint }
        })
    }

    /// Starts a task for each store that takes part, and returns their number.
    fn begin_round(
        &self,
        key: &str,
        answers: &[Answer],
        ballot: Ballot,
        tell: &mpsc::Sender<RoundMessage>,
        hears: &watch::Receiver<Verdict>,
    ) -> usize {
        let mut taking_part = 0;
        for (seat, (replica, answer)) in self.replicas.iter().zip(answers).enumerate() {
            let (Seen::Entry(entry), Some(version)) = (&answer.seen, &answer.version) else { continue };
            // Do not wait for steps that hang, and do not let them accumulate.
            let Ok(permit) = replica.heads.clone().try_acquire_owned() else { continue };
            taking_part += 1;
            let place = Place { replica: replica.clone(), key: key.to_owned(), seat: self.seat(seat), ballot };
            let (entry, version, tell, hears) = (entry.clone(), version.clone(), tell.clone(), hears.clone());
            tokio::spawn(async move {
                place.take_part(entry, version, &tell, hears).await;
                drop(permit);
            });
        }
        taking_part
    }
}

fn stop(verdict: &watch::Sender<Verdict>, outcome: Outcome) -> Outcome {
    verdict.send_replace(Verdict::Stop);
    outcome
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
        entry: RegisterEntry<Bytes>,
        version: Version,
        tell: &mpsc::Sender<RoundMessage>,
        mut heard: watch::Receiver<Verdict>,
    ) {
        let (before, promised, version) = match self.promise(entry, version).await {
            Ok(promised) => promised,
            Err(out) => return drop(tell.send(out).await),
        };
        let _ = tell.send(RoundMessage::Promised(usize::from(self.seat.index), before)).await;
        let verdict = heard.wait_for(|verdict| !matches!(verdict, Verdict::Open)).await.map(|v| v.clone());
        let Ok(Verdict::Accept(value, restarts)) = verdict else { return };
        let told = match promised.accept(self.ballot, value, &restarts) {
            // Conditional on exactly the object that the promise left: after any change in between, even by a store
            // that lost its entry, this is no vote (QUORUM-Q2).
            Ok(entry) => match self.write(&entry, &version).await {
                Ok(_) => RoundMessage::Accepted,
                Err(error) => RoundMessage::Out(Ballot::default(), Some(error)),
            },
            Err(higher) => RoundMessage::Out(higher, None),
        };
        let _ = tell.send(told).await;
    }

    async fn write(&self, entry: &RegisterEntry<Bytes>, version: &Version) -> Result<Version, StoreError> {
        let object = encode(self.seat, entry, rand::random());
        self.replica.store.swap(&self.key, Some(version), object).await
    }

    /// The entry before the promise, the entry with it, and its version.
    async fn promise(
        &self,
        mut entry: RegisterEntry<Bytes>,
        mut version: Version,
    ) -> Result<(RegisterEntry<Bytes>, RegisterEntry<Bytes>, Version), RoundMessage> {
        let mut last = None;
        for _ in 0..PROMISES_MAX {
            let promised = entry.promise(self.ballot).map_err(|higher| RoundMessage::Out(higher, None))?;
            match self.write(&promised, &version).await {
                Ok(version) => return Ok((entry, promised, version)),
                Err(error) if error.disposition() == Disposition::Conflict => last = Some(error),
                Err(error) => return Err(RoundMessage::Out(Ballot::default(), Some(error))),
            }
            let silent = |error| RoundMessage::Out(Ballot::default(), error);
            let object = self.replica.store.get_object(&self.key).await.map_err(|error| silent(Some(error)))?;
            let Ok(Stored::Entry(found)) = decode(self.seat, &object.body) else { return Err(silent(last)) };
            (entry, version) = (found, object.version);
        }
        Err(RoundMessage::Out(entry.highest(), last))
    }
}
