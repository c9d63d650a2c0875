//! Which store is asked first, when the next one is asked as well, and what counts as an answer.
//!
//! The head is asked for at every store every few seconds while a set is used (ADR 0013), which measures those that answer before the look ends. Of the
//! others it is known that they are no faster than that; only the repair's looks wait for all. A store that hangs answers no look, and no read before
//! another one has: that [`PATIENCE`] was over is counted as a failure.

use super::{Quorum, Replica, lock, worst};
use crate::error::{Op, StoreError};
use crate::{BoxFuture, ObjectStore};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use holdfast_types::ObjectId;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Reads whose times are remembered.
const TIMES: usize = 1000;
/// The p95 is taken anew after so many.
const TIMES_STEP: usize = 32;
/// A second store is asked no sooner.
const HEDGE_MIN: Duration = Duration::from_millis(20);
/// Before anything was measured.
const HEDGE_FIRST: Duration = Duration::from_millis(250);
/// The next store is asked after so long, whatever the budget of hedges says: the first may just have died.
const PATIENCE: Duration = Duration::from_secs(1);
/// One hedge for so many reads.
const READS_PER_HEDGE: u64 = 20;
/// Hedges that may be saved up.
const HEDGES_SAVED: u64 = 10 * READS_PER_HEDGE;
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
        let mut state = lock(&self.state);
        state.failed = None;
        if let Some(look) = look {
            let us = u64::try_from(look.as_micros()).unwrap_or(u64::MAX).clamp(1, 60_000_000);
            state.look_us = if state.look_us == 0 { us } else { (state.look_us * 7 + us) / 8 };
        }
    }

    pub fn failed(&self) {
        lock(&self.state).failed = Some(Instant::now());
    }

    /// A look ended without its answer.
    pub fn not_within(&self, look: Duration) {
        let us = u64::try_from(look.as_micros()).unwrap_or(u64::MAX).min(60_000_000);
        let mut state = lock(&self.state);
        state.look_us = state.look_us.max(us);
    }

    /// Whether it failed lately and has not answered since.
    pub fn suspect(&self) -> bool {
        self.rank(Instant::now()).0
    }

    /// Lower is asked first: those that failed last; then by times that differ by twice or more.
    fn rank(&self, now: Instant) -> (bool, u32) {
        let state = lock(&self.state);
        let suspect = state.failed.is_some_and(|at| now.saturating_duration_since(at) < SUSPECT_FOR);
        // Below a millisecond all are near.
        (suspect, (state.look_us / 1000).checked_ilog2().map_or(0, |log| log + 1))
    }
}

/// When a second store is asked while the first has not answered.
#[derive(Debug, Default)]
pub(super) struct Hedges {
    /// In twentieths of a hedge.
    budget: AtomicU64,
    times: Mutex<Ring>,
    /// Objects whose bytes did not open, and how often: the next read begins with another store.
    doubts: Mutex<BTreeMap<String, usize>>,
}

#[derive(Debug, Default)]
struct Ring {
    us: Vec<u32>,
    next: usize,
    p95: Option<Duration>,
}

impl Hedges {
    fn took(&self, time: Duration) {
        let us = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        let mut ring = lock(&self.times);
        let at = ring.next;
        if ring.us.len() < TIMES {
            ring.us.push(us);
        } else {
            ring.us[at] = us;
        }
        ring.next = (at + 1) % TIMES;
        if at % TIMES_STEP == TIMES_STEP - 1 {
            let mut sorted = ring.us.clone();
            let rank = sorted.len() * 95 / 100;
            let last = sorted.len() - 1;
            let (_, p95, _) = sorted.select_nth_unstable(rank.min(last));
            ring.p95 = Some(Duration::from_micros((*p95).into()));
        }
    }

    /// How long a read waits for its first store.
    fn after(&self) -> Duration {
        lock(&self.times).p95.unwrap_or(HEDGE_FIRST).clamp(HEDGE_MIN, PATIENCE)
    }

    fn earn(&self) {
        let _ = self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |b| (b < HEDGES_SAVED).then_some(b + 1));
    }

    fn spend(&self) -> bool {
        let less = |b: u64| b.checked_sub(READS_PER_HEDGE);
        self.budget.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok()
    }
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
        let doubts = lock(&self.hedges.doubts);
        let doubt = if doubts.is_empty() { None } else { doubts.get(object_of(key)).copied() };
        order.rotate_left(doubt.unwrap_or(0) % self.replicas.len());
        order
    }

    /// What was read of this object did not open (R9): who reads it next begins with another store.
    pub fn doubt(&self, object: ObjectId) {
        let mut doubts = lock(&self.hedges.doubts);
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
        let began = Instant::now();
        self.hedges.earn();
        let mut waiting = self.order(key).into_iter();
        let mut asked = FuturesUnordered::new();
        let mut errors = Vec::new();
        let one = |replica: &'a Replica| {
            let answer = ask(&*replica.store);
            async move { (replica, answer.await) }
        };
        // Who was asked when, and has not answered yet.
        let mut silent: Vec<(&'a Replica, Instant)> = Vec::with_capacity(self.replicas.len());
        let mut next = |silent: &mut Vec<_>| {
            let replica = waiting.next()?;
            silent.push((replica, Instant::now()));
            Some(one(replica))
        };
        asked.extend(next(&mut silent));
        let (mut hedge_at, mut hedged) = (began + self.hedges.after(), false);
        loop {
            let may_hedge = silent.len() + errors.len() < self.replicas.len();
            tokio::select! {
                Some((replica, answer)) = asked.next() => match answer {
                    Ok(value) => {
                        replica.speed.answered(None);
                        self.hedges.took(began.elapsed());
                        return Ok(value);
                    }
                    Err(error) => {
                        // Not here is an answer.
                        if error.kind().is_some() {
                            replica.speed.failed();
                        }
                        errors.push(error);
                        silent.retain(|(other, _)| other.index != replica.index);
                        asked.extend(next(&mut silent));
                        if asked.is_empty() {
                            let error = worst(errors).unwrap_or(StoreError::NotFound { at: self.at(op, key) });
                            return Err(error);
                        }
                        metrics::counter!("holdfast_store_failovers_total").increment(1);
                    }
                },
                () = tokio::time::sleep_until(hedge_at), if may_hedge => {
                    // Out of budget: once more when the first must be taken for dead.
                    if hedge_at >= began + PATIENCE || (!hedged && self.hedges.spend()) {
                        hedged = true;
                        metrics::counter!("holdfast_store_hedges_total").increment(1);
                        // Its error comes when nobody waits for it any more.
                        silent.iter().filter(|(_, at)| at.elapsed() >= PATIENCE).for_each(|(other, _)| other.speed.failed());
                        asked.extend(next(&mut silent));
                    }
                    hedge_at = if hedge_at < began + PATIENCE { began + PATIENCE } else { hedge_at + PATIENCE };
                }
            }
        }
    }
}
