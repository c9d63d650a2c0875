//! Counts where parts of reads were found: since the process started, and over the last minutes.

use std::collections::VecDeque;
use std::time::Duration;

/// Minimum time between two samples.
const STEP: Duration = Duration::from_secs(30);

/// Number of samples kept: the oldest is about five minutes old.
const SAMPLES: usize = 10;

/// Parts of reads, by where they were found. Each tier counts its own: blocks, stretches and extents (ADR 0042).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Operations in the journal: not uploaded yet.
    pub journal: u64,
    /// Blocks in the cache's memory, including read-ahead.
    pub memory: u64,
    /// Stretches on the cache's disk.
    pub disk: u64,
    /// Extents fetched from the store, including read-ahead.
    pub store: u64,
    /// Stretches or extents that were already being loaded for another reader; waited for that.
    pub shared: u64,
}

impl Answers {
    /// The difference to `earlier`.
    #[must_use]
    pub fn after(self, earlier: Self) -> Self {
        Self {
            journal: self.journal.saturating_sub(earlier.journal),
            memory: self.memory.saturating_sub(earlier.memory),
            disk: self.disk.saturating_sub(earlier.disk),
            store: self.store.saturating_sub(earlier.store),
            shared: self.shared.saturating_sub(earlier.shared),
        }
    }
}

/// Samples of the last minutes. The first one is zero, at the start of the process.
#[derive(Debug)]
pub struct Window {
    samples: VecDeque<(Duration, Answers)>,
}

impl Default for Window {
    fn default() -> Self {
        Self { samples: VecDeque::from([(Duration::ZERO, Answers::default())]) }
    }
}

impl Window {
    /// Adds a sample if it is time for one. `at`: time since the process started.
    pub fn note(&mut self, at: Duration, now: Answers) {
        if self.samples.back().is_some_and(|(last, _)| at.saturating_sub(*last) < STEP) {
            return;
        }
        if self.samples.len() >= SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((at, now));
    }

    /// The answers since the oldest sample, and how long ago that was.
    pub fn recent(&self, at: Duration, now: Answers) -> (Duration, Answers) {
        let (since, before) = self.samples.front().copied().unwrap_or_default();
        (at.saturating_sub(since), now.after(before))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_minutes_forget_what_is_older() {
        let seconds = Duration::from_secs;
        let answers = |memory| Answers { memory, store: 2 * memory, ..Answers::default() };
        let mut window = Window::default();
        assert_eq!(window.recent(seconds(3), answers(5)), (seconds(3), answers(5)), "since the start, at first");
        for at in 1..=1000 {
            window.note(seconds(at), answers(at));
        }
        assert_eq!(window.samples.len(), SAMPLES);
        let (over, recent) = window.recent(seconds(1000), answers(1000));
        assert!((seconds(270)..=seconds(300)).contains(&over), "{over:?}");
        assert_eq!(recent, answers(over.as_secs()), "one answer per second");
        // After a long idle time, a gateway has no recent reads.
        for at in 1001..=2000 {
            window.note(seconds(at), answers(1000));
        }
        assert_eq!(window.recent(seconds(2000), answers(1000)).1, Answers::default());
    }
}
