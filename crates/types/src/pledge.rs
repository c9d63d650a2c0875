//! What a voter of a group has promised to leaders, and what a leader counts of it (R3). The times of a group may
//! change while promises are in force (ADR 0058):
//!
//! PLEDGE-P1  A voter keeps the longest of all its promises. Shorter times are those of its answers from then on; they
//!     end no promise that was given before.
//! PLEDGE-P2  The promise is made before the voter's group takes the message, and the answer says what was promised
//!     then. It never says the times of the moment at which it leaves.
//! PLEDGE-P3  A leader reads because of an answer for as long as the answer says, counted from when it sent what was
//!     answered. Its own times do not count.
//! PLEDGE-P4  No times are longer than those that a start waits out (the vote embargo).
//!
//! So a leader and its voters need not have the same times at any moment: each answer stands for itself.

use crate::MonoTime;
use std::time::Duration;

/// What one answer to a leader promises.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Promise {
    /// The voter votes for nobody else for so long after it took the message, by its own clock.
    pub silence: Duration,
    /// The leader may read for so long after it sent the message, by its own clock. Shorter than `silence` by the drift
    /// margin.
    pub read: Duration,
}

/// The promises of one voter in one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Pledge {
    promise: Promise,
    until: Option<MonoTime>,
}

impl Pledge {
    /// Of a voter that has promised nothing yet.
    pub const fn new(promise: Promise) -> Self {
        Self { promise, until: None }
    }

    /// From now on answers give this promise.
    pub fn change(&mut self, promise: Promise) {
        self.promise = promise;
    }

    /// A message of a leader is about to be taken. Returns for how long the leader may read because of it.
    pub fn give(&mut self, now: MonoTime) -> Duration {
        let until = now.saturating_add(self.promise.silence);
        self.until = self.until.max(Some(until));
        self.promise.read
    }

    /// The end of what it has promised; `None` if it has promised nothing.
    pub fn until(&self) -> Option<MonoTime> {
        self.until
    }

    /// How long it still votes for nobody else; `None` if it is free.
    pub fn left(&self, now: MonoTime) -> Option<Duration> {
        let left = self.until?.saturating_since(now);
        (!left.is_zero()).then_some(left)
    }
}

/// Until when a voter takes part in no election, since it has forgotten what it promised (R3). Promises are in memory
/// only: a start of the process forgets all of them, a stop of one group those of this group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VoteEmbargo {
    until: MonoTime,
}

impl VoteEmbargo {
    /// Of one group. `started`: the start of the process, read before its first message to a peer could leave.
    /// `stopped`: when this process stopped the group that it has started again. `longest`: longer than any promise
    /// of before (PLEDGE-P4).
    pub fn new(started: MonoTime, stopped: Option<MonoTime>, longest: Duration) -> Self {
        let forgot = stopped.map_or(started, |stopped| stopped.max(started));
        Self { until: forgot.saturating_add(longest) }
    }

    /// How long it still neither votes nor stands; `None` if it may take part.
    pub fn left(&self, now: MonoTime) -> Option<Duration> {
        let left = self.until.saturating_since(now);
        (!left.is_zero()).then_some(left)
    }
}

/// Until when a leader may read because of an answer to what it sent at `sent` (PLEDGE-P3). `longest`: what its own
/// settings allow; a voter with other settings gives it no more.
pub fn reads_until(sent: MonoTime, longest: Duration, theirs: Duration) -> MonoTime {
    sent.saturating_add(theirs.min(longest))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;
    const LONG: Promise = Promise { silence: Duration::from_millis(2100), read: Duration::from_millis(1680) };
    const SHORT: Promise = Promise { silence: Duration::from_millis(600), read: Duration::from_millis(480) };

    fn at(ms: u64) -> MonoTime {
        MonoTime(ms * MS)
    }

    /// PLEDGE-P1.
    #[test]
    fn shorter_times_end_no_earlier_promise() {
        let mut pledge = Pledge::new(LONG);
        assert_eq!((pledge.until(), pledge.left(at(0))), (None, None), "it has promised nothing");
        assert_eq!(pledge.give(at(1000)), LONG.read);
        pledge.change(SHORT);
        assert_eq!(pledge.until(), Some(at(3100)));
        assert_eq!(pledge.give(at(1100)), SHORT.read, "the answer says no more than was promised");
        assert_eq!(pledge.until(), Some(at(3100)), "the longer one is in force");
        assert_eq!(pledge.left(at(3099)), Some(Duration::from_millis(1)));
        assert_eq!(pledge.left(at(3100)), None);
        assert_eq!(pledge.give(at(3000)), SHORT.read);
        assert_eq!(pledge.until(), Some(at(3600)), "from here on the shorter ones are");
    }

    /// A longer time counts with the next answer, not for those before.
    #[test]
    fn longer_times_count_from_the_next_answer_on() {
        let mut pledge = Pledge::new(SHORT);
        pledge.give(at(1000));
        pledge.change(LONG);
        assert_eq!(pledge.until(), Some(at(1600)));
        assert_eq!(pledge.give(at(1200)), LONG.read);
        assert_eq!(pledge.until(), Some(at(3300)));
    }

    /// R3: what was promised until the start, or until the stop of the group, is forgotten.
    #[test]
    fn a_vote_embargo_lasts_for_its_time_after_the_start_or_the_stop() {
        let of = |stopped| VoteEmbargo::new(at(1000), stopped, LONG.silence);
        assert_eq!(of(None).left(at(1000)), Some(LONG.silence));
        assert_eq!(of(None).left(at(3099)), Some(Duration::from_millis(1)));
        assert_eq!(of(None).left(at(3100)), None);
        assert_eq!(of(Some(at(5000))).left(at(5000)), Some(LONG.silence), "the start was long ago");
        assert_eq!(of(Some(at(5000))).left(at(7100)), None);
        assert_eq!(of(Some(at(900))), of(None), "the process has started since");
    }

    /// PLEDGE-P3.
    #[test]
    fn a_leader_counts_what_the_answer_says() {
        let until = |theirs| reads_until(at(5000), LONG.read, theirs);
        assert_eq!(until(SHORT.read), at(5480));
        assert_eq!(until(LONG.read), at(6680));
        assert_eq!(until(Duration::ZERO), at(5000), "one that promises nothing");
        assert_eq!(until(Duration::from_secs(9)), at(6680), "no longer than its own settings allow");
    }
}
