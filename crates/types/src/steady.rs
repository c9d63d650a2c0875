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
    /// Before its first reading.
    pub const fn new() -> Self {
        Self { machine: MonoTime(0), last: MonoTime(0), went_back: None }
    }

    /// Takes a reading of the machine's clock. They MUST be handed over in the order in which they were taken.
    pub fn read(&mut self, machine: MonoTime) -> Reading {
        let passed = match machine.0.checked_sub(self.machine.0) {
            Some(passed) => passed,
            None => {
                self.went_back = Some(self.last);
                // What is read from now on is later than what was read before.
                1
            }
        };
        self.machine = machine;
        self.last = MonoTime(self.last.0.saturating_add(passed));
        Reading { now: self.last, went_back: self.went_back }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(clock: &mut SteadyClock, machine: u64) -> Reading {
        clock.read(MonoTime(machine))
    }

    #[test]
    fn a_clock_that_runs_forward_is_read_as_it_is() {
        let mut clock = SteadyClock::new();
        for at in [70, 70, 71, 900] {
            assert_eq!(read(&mut clock, at), MonoTime(at).into());
        }
    }

    /// R3: no promise ends early, none is counted for longer than it was given for, and time goes on at once.
    #[test]
    fn a_step_back_takes_no_time_and_voids_what_was_counted_from_before() {
        let mut clock = SteadyClock::new();
        let before = read(&mut clock, 500);
        let back = read(&mut clock, 200);
        assert_eq!(back, Reading { now: MonoTime(501), went_back: Some(MonoTime(500)) });
        assert!(before.counts(before.now) && !back.counts(before.now) && back.counts(back.now));
        let later = read(&mut clock, 230);
        assert_eq!(later.now, MonoTime(531), "it does not wait until the machine's clock has caught up");
        assert!(later.counts(back.now) && !later.counts(before.now));
        let again = read(&mut clock, 229);
        assert_eq!(again, Reading { now: MonoTime(532), went_back: Some(MonoTime(531)) });
        assert!(!again.counts(later.now), "each step voids what was counted before it");
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
