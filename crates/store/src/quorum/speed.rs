//! How fast each store answers, and which failed recently: the order of reads depends on it.

use holdfast_types::sync::LockExt;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::time::Duration;
use tokio::time::Instant;

/// For this long a store that failed is asked last, unless it has answered since.
const SUSPECT_FOR: Duration = Duration::from_secs(30);

/// How fast a store answers, and whether it failed recently.
#[derive(Debug, Default)]
pub(super) struct Speed {
    state: Mutex<Times>,
}

#[derive(Debug, Default)]
struct Times {
    /// Smoothed duration of a look, in microseconds; 0 before the first.
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

    /// A look ended without this store's answer.
    pub fn not_within(&self, look: Duration) {
        let us = u64::try_from(look.as_micros()).unwrap_or(u64::MAX).min(60_000_000);
        let mut state = self.state.locked();
        state.look_us = state.look_us.max(us);
    }

    /// Whether it failed recently and has not answered since.
    pub fn suspect(&self) -> bool {
        self.rank(Instant::now()).0
    }

    /// Lower is asked first. Stores that failed come last; times count only if they differ by a factor of two or more.
    pub fn rank(&self, now: Instant) -> (bool, u32) {
        let state = self.state.locked();
        let suspect = state.failed.is_some_and(|at| now.saturating_duration_since(at) < SUSPECT_FOR);
        // Below a millisecond, all count as equal.
        (suspect, (state.look_us / 1000).checked_ilog2().map_or(0, |log| log + 1))
    }
}

/// Objects that did not open, and how often: the next read of such an object begins with another store.
pub(super) type Doubts = Mutex<BTreeMap<String, usize>>;
