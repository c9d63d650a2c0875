//! Which store is asked first, and what counts as an answer. When the next one is asked as well is decided in `hedging`.
//!
//! The head is asked for at every store every few seconds while a set is used (ADR 0013), which measures those that answer before the look ends. Of the
//! others it is known that they are no faster than that; only the repair's looks wait for all. A store that hangs answers no look, and no read before
//! another one has: that its patience was over is counted as a failure (E2 in `hedging`).

use super::hedging::{Asking, Hedging, ReadKind};
use super::{Quorum, Replica, worst};
use crate::error::{Op, StoreError};
use crate::{BoxFuture, ObjectStore};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use holdfast_types::ObjectId;
use holdfast_types::sync::LockExt;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// A store that failed is asked last for so long, unless it has answered since.
const SUSPECT_FOR: Duration = Duration::from_secs(30);
/// Objects whose doubts are remembered.
const DOUBTS_MAX: usize = 1000;

/// How fast a store answers, and whether it did lately.
#[derive(Debug, Default)]
pub(super) struct Speed {
    state: Mutex<Times>,
}

#[derive(Debug, Default)]
struct Times {
    /// Smoothed time of a look, in microseconds; 0 before the first.
    look_us: u64,
    failed: Option<Instant>,
}

impl Speed {
    pub fn answered(&self, look: Option<Duration>) {
        let mut state = self.state.locked();
        state.failed = None;
        if let Some(look) = look {
            let us = u64::try_from(look.as_micros()).unwrap_or(u64::MAX).clamp(1, 60_000_000);
            state.look_us = if state.look_us == 0 { us } else { (state.look_us * 7 + us) / 8 };
        }
    }

    pub fn failed(&self) {
        self.state.locked().failed = Some(Instant::now());
    }

    /// A look ended without its answer.
    pub fn not_within(&self, look: Duration) {
        let us = u64::try_from(look.as_micros()).unwrap_or(u64::MAX).min(60_000_000);
        let mut state = self.state.locked();
        state.look_us = state.look_us.max(us);
    }

    /// Whether it failed lately and has not answered since.
    pub fn suspect(&self) -> bool {
        self.rank(Instant::now()).0
    }

    /// Lower is asked first: those that failed last; then by times that differ by twice or more.
    fn rank(&self, now: Instant) -> (bool, u32) {
        let state = self.state.locked();
        let suspect = state.failed.is_some_and(|at| now.saturating_duration_since(at) < SUSPECT_FOR);
        // Below a millisecond all are near.
        (suspect, (state.look_us / 1000).checked_ilog2().map_or(0, |log| log + 1))
    }
}

/// What reads of these stores have in common.
#[derive(Debug, Default)]
pub(super) struct Hedges {
    decided: Mutex<Hedging>,
    /// Objects whose bytes did not open, and how often: the next read begins with another store.
    doubts: Mutex<BTreeMap<String, usize>>,
}

/// The object's own part of a key.
fn object_of(key: &str) -> &str {
    key.rsplit_once('/').map_or(key, |(_, object)| object)
}

impl Quorum {
    /// All stores, those to be asked first for this object first.
    pub(super) fn order(&self, key: &str) -> Vec<&Replica> {
        let now = Instant::now();
        let mut order: Vec<&Replica> = self.replicas.iter().map(AsRef::as_ref).collect();
        order.sort_by_key(|replica| (replica.speed.rank(now), replica.index));
        let doubts = self.hedges.doubts.locked();
        let doubt = if doubts.is_empty() { None } else { doubts.get(object_of(key)).copied() };
        order.rotate_left(doubt.unwrap_or(0) % self.replicas.len());
        order
    }

    /// What was read of this object did not open (R9): who reads it next begins with another store.
    pub fn doubt(&self, object: ObjectId) {
        let mut doubts = self.hedges.doubts.locked();
        if doubts.len() >= DOUBTS_MAX {
            doubts.clear();
        }
        *doubts.entry(object.to_string()).or_default() += 1;
    }

    /// One answer from whichever store has it. Contents are authenticated above: a store that lies is one that fails (R9), and asked anew the caller may
    /// get another's.
    pub(super) async fn read<'a, T, F>(&'a self, op: Op, key: &'a str, ask: F) -> Result<T, StoreError>
    where
        F: Fn(&'a dyn ObjectStore) -> BoxFuture<'a, Result<T, StoreError>>,
    {
        let (began, kind, order) = (Instant::now(), ReadKind::of(op), self.order(key));
        let mut asking = Asking::begin(order.len(), kind, &mut self.hedges.decided.locked());
        let (mut asked, mut errors) = (FuturesUnordered::new(), Vec::new());
        // What is not waited for any more is dropped with this.
        let one = |at: usize| {
            let replica: &'a Replica = order[at];
            let answer = ask(&*replica.store);
            async move { (at, answer.await) }
        };
        asked.push(one(0));
        loop {
            let until = asking.until();
            tokio::select! {
                Some((at, answer)) = asked.next() => match answer {
                    Ok(value) => {
                        order[at].speed.answered(None);
                        self.hedges.decided.locked().took(kind, asking.took(at, began.elapsed()));
                        return Ok(value);
                    }
                    Err(error) => {
                        // Not here is an answer.
                        if error.kind().is_some() {
                            order[at].speed.failed();
                        }
                        errors.push(error);
                        asked.extend(asking.failed(at, began.elapsed()).map(&one));
                        if asked.is_empty() {
                            let error = worst(errors).unwrap_or(StoreError::NotFound { at: self.at(op, key) });
                            return Err(error);
                        }
                        metrics::counter!("holdfast_store_failovers_total").increment(1);
                    }
                },
                () = tokio::time::sleep_until(began + until.unwrap_or_default()), if until.is_some() => {
                    let waited = asking.waited(began.elapsed(), &mut self.hedges.decided.locked());
                    // Its error comes when nobody waits for it any more.
                    waited.dead.iter().for_each(|at| order[*at].speed.failed());
                    if waited.refused {
                        metrics::counter!("holdfast_store_hedges_left_out_total").increment(1);
                    }
                    if let Some(next) = waited.ask {
                        metrics::counter!("holdfast_store_hedges_total").increment(1);
                        asked.push(one(next));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
#[path = "reads_tests.rs"]
mod tests;
