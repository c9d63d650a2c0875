//! Reads of what no gateway can read now (R9): neither answered nor a reason to close the connection that others use (R8). They are asked again, with pauses that grow.
//!
//! Owns: which, and when. Does not own: the clock, how a read is asked.

use std::collections::BTreeMap;
use std::time::Duration;

/// The longest pause between two tries of one read.
pub(super) const PAUSE_MAX: Duration = Duration::from_secs(30);
/// Reads of one connection that are asked again at the same time: looking for a missing object takes seconds, and others want to be served meanwhile.
pub(super) const AGAIN_MAX: usize = 4;
/// Reads of one connection that wait so beside its running requests. What is beyond takes the place of a running one, so that what is held is bounded.
pub(super) const PARKED_MAX: usize = 1024;

/// Waiting reads, by when they are asked again. `M` is a moment, `R` what is known of a read.
pub(super) struct Parked<M, R> {
    first_pause: Duration,
    count: u64,
    reads: BTreeMap<(M, u64), (R, u32)>,
}

impl<M: Copy + Ord + std::ops::Add<Duration, Output = M>, R> Parked<M, R> {
    pub(super) fn new(first_pause: Duration) -> Self {
        Self { first_pause, count: 0, reads: BTreeMap::new() }
    }

    pub(super) fn len(&self) -> usize {
        self.reads.len()
    }

    /// Keeps a read that could not be answered at try number `tries`, counted from 0.
    pub(super) fn keep(&mut self, now: M, read: R, tries: u32) {
        let pause = self.first_pause.saturating_mul(1_u32.checked_shl(tries).unwrap_or(u32::MAX)).min(PAUSE_MAX);
        self.count += 1;
        self.reads.insert((now + pause, self.count), (read, tries));
    }

    /// When the next one is asked again.
    pub(super) fn next(&self) -> Option<M> {
        self.reads.first_key_value().map(|((at, _), _)| *at)
    }

    /// One whose pause is over, and the number of its next try.
    pub(super) fn due(&mut self, now: M) -> Option<(R, u32)> {
        let first = self.reads.first_entry().filter(|first| first.key().0 <= now)?;
        let (read, tries) = first.remove();
        Some((read, tries.saturating_add(1)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_and_are_bounded() {
        let second = Duration::from_secs(1);
        let mut parked = Parked::new(second);
        let (mut now, mut tries, mut pauses) = (Duration::ZERO, 0, Vec::new());
        for _ in 0..40 {
            parked.keep(now, "read", tries);
            let at = parked.next().unwrap();
            pauses.push((at - now).as_secs());
            assert!(parked.due(at - Duration::from_millis(1)).is_none(), "too early");
            now = at;
            tries = parked.due(now).unwrap().1;
        }
        assert_eq!(pauses[..7], [1, 2, 4, 8, 16, 30, 30]);
        assert_eq!((pauses[39], parked.len()), (30, 0));
    }
}
