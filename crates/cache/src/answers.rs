//! Where parts of reads were found: since the process started, and over the last minutes.

use std::collections::VecDeque;
use std::time::Duration;

/// Between two samples at least.
const STEP: Duration = Duration::from_secs(30);

/// Samples kept: the oldest is some five minutes old.
const SAMPLES: usize = 10;

/// Parts of reads, by where they were found.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// In the journal: not uploaded yet.
    pub journal: u64,
    /// In the cache's memory, what was read ahead too.
    pub memory: u64,
    /// On the cache's disk.
    pub disk: u64,
    /// Fetched from the store, what is read ahead too.
    pub store: u64,
    /// Asked for by somebody else already, and waited for with them.
    pub shared: u64,
}

impl Answers {
    /// What came after `earlier`.
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

/// Samples of the last minutes. Its first one, of nothing, is that of the process's start.
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
    /// Keeps a sample, if it is time for one. `at`: since the process started.
    pub fn note(&mut self, at: Duration, now: Answers) {
        if self.samples.back().is_some_and(|(last, _)| at.saturating_sub(*last) < STEP) {
            return;
        }
        if self.samples.len() >= SAMPLES {
            self.samples.pop_front();
        }
        self.samples.push_back((at, now));
    }

    /// What came since the oldest sample, and how long ago that was.
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
        assert_eq!(recent, answers(over.as_secs()), "one each second");
        // A gateway that was idle for long has no recent reads, whatever it had before.
        for at in 1001..=2000 {
            window.note(seconds(at), answers(1000));
        }
        assert_eq!(window.recent(seconds(2000), answers(1000)).1, Answers::default());
    }
}
