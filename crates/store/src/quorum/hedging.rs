//! When a read asks a further store beside the one that it waits for. Decisions only: `reads` waits and asks.
//!
//! ```text
//!   the first is asked ── p95: the second, if the budget has it ── patience: the next ── twice the patience: the next ── …
//! ```
//! E1  Once in a read, after the p95 of reads of its kind, the next store is asked as well: of all reads one in [`READS_PER_HEDGE`], and what was saved up.
//! E2  After the patience the next one is asked whatever the budget says: the first may just have died, and is said to be silent. The patience is at least
//!     [`PATIENCE_MIN`], and twice that p95 where this is more, up to [`PATIENCE_MAX`]: where all stores are slow, or the line to them is full, each read would
//!     else be asked twice. It is less again as soon as the last [`TIMES_STEP`] reads were faster: who reads little would else wait long for a dead store for
//!     hours after a slow one.
//! E3  An error, or "not here", asks the next one at once.
//! E4  No store is asked twice in one read: n requests at most.
//!
//! Times are counted from the read's begin. What is measured is how long the store that answered took since it was asked itself: what a dead one before it
//! cost is no property of the living.

use crate::error::Op;
use std::time::Duration;

/// Reads whose times are remembered, of each kind.
const TIMES: usize = 1000;
/// The p95 is taken anew after so many.
const TIMES_STEP: usize = 32;
/// A second store is asked no sooner.
const HEDGE_MIN: Duration = Duration::from_millis(20);
/// Before anything was measured.
const HEDGE_FIRST: Duration = Duration::from_millis(250);
/// A store that has not answered for so long may be dead, if that is long for the others, too.
const PATIENCE_MIN: Duration = Duration::from_secs(1);
/// However slow all stores are: one that hangs must not hold up reads for longer.
const PATIENCE_MAX: Duration = Duration::from_secs(10);
/// One hedge for so many reads.
const READS_PER_HEDGE: u64 = 20;
/// Hedges that may be saved up.
const HEDGES_SAVED: u64 = 10;

const _: () = assert!(HEDGE_MIN.as_millis() < PATIENCE_MIN.as_millis());
const _: () = assert!(HEDGE_FIRST.as_millis() < PATIENCE_MIN.as_millis());

/// A whole object takes longer than a part of one: each is measured by its like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReadKind {
    /// All of an object, 16 MiB perhaps.
    Whole,
    /// A part of one, or its length.
    Part,
}

impl ReadKind {
    pub fn of(op: Op) -> Self {
        if op == Op::Get { Self::Whole } else { Self::Part }
    }
}

/// What all reads of some stores have in common.
#[derive(Debug, Default)]
pub(super) struct Hedging {
    /// In parts of a hedge, [`READS_PER_HEDGE`] of which are one.
    budget: u64,
    whole: Times,
    part: Times,
}

#[derive(Debug, Default)]
struct Times {
    us: Vec<u32>,
    next: usize,
    p95: Option<Duration>,
    /// That of the last [`TIMES_STEP`] alone.
    lately: Option<Duration>,
}

fn p95(us: &[u32]) -> Option<Duration> {
    let mut sorted = us.to_vec();
    let rank = (sorted.len() * 95 / 100).min(sorted.len().checked_sub(1)?);
    let (_, p95, _) = sorted.select_nth_unstable(rank);
    Some(Duration::from_micros((*p95).into()))
}

impl Times {
    fn note(&mut self, time: Duration) {
        let us = u32::try_from(time.as_micros()).unwrap_or(u32::MAX);
        let at = self.next;
        if self.us.len() < TIMES {
            self.us.push(us);
        } else {
            self.us[at] = us;
        }
        self.next = (at + 1) % TIMES;
        if at % TIMES_STEP == TIMES_STEP - 1 {
            self.p95 = p95(&self.us);
            self.lately = p95(&self.us[at + 1 - TIMES_STEP..=at]);
        }
    }
}

impl Hedging {
    /// A store answered a read with what was asked for, so long after it was asked itself.
    pub fn took(&mut self, kind: ReadKind, time: Duration) {
        match kind {
            ReadKind::Whole => self.whole.note(time),
            ReadKind::Part => self.part.note(time),
        }
    }

    /// How long a read waits before its hedge, and before it takes a store for dead.
    fn waits(&self, kind: ReadKind) -> (Duration, Duration) {
        let times = match kind {
            ReadKind::Whole => &self.whole,
            ReadKind::Part => &self.part,
        };
        let p95 = times.p95.unwrap_or(HEDGE_FIRST).max(HEDGE_MIN);
        let slow = times.lately.map_or(p95, |lately| lately.min(p95));
        (p95, slow.saturating_mul(2).clamp(PATIENCE_MIN, PATIENCE_MAX))
    }

    fn earn(&mut self) {
        self.budget = (self.budget + 1).min(HEDGES_SAVED * READS_PER_HEDGE);
    }

    fn spend(&mut self) -> bool {
        let left = self.budget.checked_sub(READS_PER_HEDGE);
        self.budget = left.unwrap_or(self.budget);
        left.is_some()
    }
}

/// One read. Stores are named by their place in the order in which they are asked.
#[derive(Debug)]
pub(super) struct Asking {
    stores: usize,
    asked: usize,
    /// Who was asked when, and has not answered yet.
    silent: Vec<(usize, Duration)>,
    /// When its hedge is decided; `None` afterwards.
    hedge_at: Option<Duration>,
    patience: Duration,
    patient_until: Duration,
}

/// What to do after a while without an answer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Waited {
    /// Whom to ask.
    pub ask: Option<usize>,
    /// Who has been silent for as long as the patience lasts.
    pub dead: Vec<usize>,
    /// There would have been a hedge, but for the budget.
    pub refused: bool,
}

impl Asking {
    /// A read of so many stores. The first one is asked now, by the caller.
    pub fn begin(stores: usize, kind: ReadKind, hedging: &mut Hedging) -> Self {
        hedging.earn();
        let (hedge_at, patience) = hedging.waits(kind);
        let silent = vec![(0, Duration::ZERO)];
        Self { stores, asked: 1, silent, hedge_at: Some(hedge_at), patience, patient_until: patience }
    }

    /// E4.
    fn next(&mut self, now: Duration) -> Option<usize> {
        let next = Some(self.asked).filter(|next| *next < self.stores)?;
        self.asked += 1;
        self.silent.push((next, now));
        Some(next)
    }

    /// Until when an answer is waited for before [`Asking::waited`]; `None` where nobody is left to be asked.
    pub fn until(&self) -> Option<Duration> {
        let until = self.hedge_at.map_or(self.patient_until, |at| at.min(self.patient_until));
        (self.asked < self.stores).then_some(until)
    }

    /// No answer came.
    pub fn waited(&mut self, now: Duration, hedging: &mut Hedging) -> Waited {
        if now >= self.patient_until {
            // E2. It is no hedge any more.
            self.hedge_at = None;
            self.patient_until = now + self.patience;
            let dead = self.silent.iter().filter(|(_, at)| now.saturating_sub(*at) >= self.patience);
            let dead = dead.map(|(store, _)| *store).collect();
            return Waited { ask: self.next(now), dead, refused: false };
        }
        if self.hedge_at.is_none_or(|at| now < at) {
            return Waited::default();
        }
        // E1.
        self.hedge_at = None;
        match hedging.spend() {
            true => Waited { ask: self.next(now), ..Waited::default() },
            false => Waited { refused: true, ..Waited::default() },
        }
    }

    /// E3: one answered that it has it not, or cannot say. Whom to ask now.
    pub fn failed(&mut self, store: usize, now: Duration) -> Option<usize> {
        self.silent.retain(|(silent, _)| *silent != store);
        self.next(now)
    }

    /// One has answered now: how long it took, by itself.
    pub fn took(&self, store: usize, now: Duration) -> Duration {
        let asked = self.silent.iter().find(|(silent, _)| *silent == store).map_or(Duration::ZERO, |(_, at)| *at);
        now.saturating_sub(asked)
    }
}

#[cfg(test)]
#[path = "hedging_tests.rs"]
mod tests;
