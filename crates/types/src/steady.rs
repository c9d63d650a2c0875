//! The clock of leases of one process. It never goes back, whatever the machine's clock does (R3).
//!
//! CLOCK_BOOTTIME may go back under a running process: a virtual machine is moved or restored, or its hypervisor has a
//! fault. Then nobody knows how much time has passed since the last reading. Code that compares times is of two kinds:
//!
//! - One that has promised something (to vote for nobody else, to keep an object, to leave an owner its time) must not
//!   end too early. For it no time has passed: the clock goes on from its last reading.
//! - One that was promised something (a read lease, a seat, a look at a set's head) must not end too late. What it has
//!   counted from an earlier reading is void until it is promised again. It asks [`Reading::counts`].
//!
//! ```text
//!   the machine's clock   10  11  12 |  4   5   6        went back from 12
//!   readings              10  11  12 | 12+ 13  14        went_back: 12; a lease from 11 is void, one from 12+ is not
//! ```
//! A step back that is over before the next reading cannot be seen here. The clock is read often, so the process did
//! not run meanwhile, or the step is short: both are found by comparing with CLOCK_MONOTONIC.

use crate::MonoTime;

/// One reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Now: no earlier than any reading before, and later than [`Reading::went_back`].
    pub now: MonoTime,
    /// The last reading before the machine's clock went back the last time. `None`: it never has, in this process.
    pub went_back: Option<MonoTime>,
}

impl Reading {
    /// Whether time that was promised from `since` on may be counted: the clock has not gone back since then.
    pub fn counts(&self, since: MonoTime) -> bool {
        self.went_back.is_none_or(|last| since > last)
    }
}

/// A moment of a clock that has never gone back.
impl From<MonoTime> for Reading {
    fn from(now: MonoTime) -> Self {
        Self { now, went_back: None }
    }
}

/// Turns readings of the machine's clock into readings that never go back. One for each process. See the module.
#[derive(Clone, Debug, Default)]
pub struct SteadyClock {
    machine: MonoTime,
    last: MonoTime,
    went_back: Option<MonoTime>,
}

impl SteadyClock {
    /// A step back of at most so many nanoseconds does not count as one: the machine's processors may differ by a
    /// little, and are read in turn. The clock stands still until the machine's is there again. If each turn were a
    /// step back, the clock would run ahead by that little each time, and promises would end early. A lease lasts
    /// longer by no more than this, which the margin for drift covers many times.
    pub const JITTER_NS: u64 = 1_000_000;

    /// Before its first reading.
    pub const fn new() -> Self {
        Self { machine: MonoTime(0), last: MonoTime(0), went_back: None }
    }

    /// Takes a reading of the machine's clock. They MUST be handed over in the order in which they were taken.
    pub fn read(&mut self, machine: MonoTime) -> Reading {
        let passed = match machine.0.checked_sub(self.machine.0) {
            Some(passed) => passed,
            None if self.machine.0 - machine.0 <= Self::JITTER_NS => 0,
            None => {
                self.went_back = Some(self.last);
                // What is read from now on is later than what was read before.
                1
            }
        };
        if passed > 0 {
            self.machine = machine;
        }
        self.last = MonoTime(self.last.0.saturating_add(passed));
        Reading { now: self.last, went_back: self.went_back }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    fn at(ms: u64) -> MonoTime {
        MonoTime(ms * MS)
    }

    fn read(clock: &mut SteadyClock, machine_ms: u64) -> Reading {
        clock.read(at(machine_ms))
    }

    #[test]
    fn a_clock_that_runs_forward_is_read_as_it_is() {
        let mut clock = SteadyClock::new();
        for ms in [70, 70, 71, 900] {
            assert_eq!(read(&mut clock, ms), at(ms).into());
        }
    }

    /// R3: no promise ends early, none is counted for longer than it was given for, and time goes on at once.
    #[test]
    fn a_step_back_takes_no_time_and_voids_what_was_counted_from_before() {
        let mut clock = SteadyClock::new();
        let before = read(&mut clock, 500);
        let back = read(&mut clock, 200);
        assert_eq!(back, Reading { now: MonoTime(500 * MS + 1), went_back: Some(at(500)) });
        assert!(before.counts(before.now) && !back.counts(before.now) && back.counts(back.now));
        let later = read(&mut clock, 230);
        assert_eq!(later.now, MonoTime(530 * MS + 1), "it does not wait until the machine's clock has caught up");
        assert!(later.counts(back.now) && !later.counts(before.now));
        let again = read(&mut clock, 220);
        assert_eq!(again, Reading { now: MonoTime(530 * MS + 2), went_back: Some(MonoTime(530 * MS + 1)) });
        assert!(!again.counts(later.now), "each step voids what was counted before it");
    }

    /// R3: each turn would make it run ahead, and the promises of this gateway would end early.
    #[test]
    fn processors_that_differ_by_a_little_do_not_make_it_run_ahead() {
        let (mut clock, apart) = (SteadyClock::new(), MS / 2);
        for turn in 0..1_000_u64 {
            let now = 1_000 * MS + turn * MS / 100;
            let reading = clock.read(MonoTime(now + if turn % 2 == 0 { apart } else { 0 }));
            assert!((now..=now + apart).contains(&reading.now.0), "turn {turn}: {reading:?} at {now}");
            assert_eq!(reading.went_back, None, "no lease is void");
        }
    }

    #[test]
    fn readings_never_go_back() {
        let (mut clock, mut last) = (SteadyClock::new(), MonoTime(0));
        let mut machine: u64 = 1 << 40;
        for step in 0..10_000_u64 {
            // Steps of both directions and of all sizes, the same in each run.
            let by = step.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> (28 + step % 30);
            machine = if step % 3 == 0 { machine.saturating_sub(by) } else { machine.saturating_add(by) };
            let reading = read(&mut clock, machine);
            assert!(reading.now >= last && reading.counts(reading.now), "{reading:?} after {last:?}");
            last = reading.now;
        }
    }
}
