//! Two clocks: CLOCK_BOOTTIME for decisions, the time of day for people.
//!
//! If the machine's CLOCK_BOOTTIME goes back, [`now`] goes on from its last reading, so no timer stands still. Agent,
//! attach and the watchdog's helper tell one another moments in files. Each has gone on from another reading, or has
//! begun later, so files have moments of the machine's clock: [`shown`] writes one, [`told`] reads one.

use holdfast_types::sync::LockExt;
use holdfast_types::{MonoTime, SteadyClock};
use std::collections::VecDeque;
use std::sync::{Mutex, OnceLock};

pub use holdfast_host::unix_ms;

/// Moments of other processes that are remembered: of attach's renewals, and of the agent's signs.
const TOLD_MAX: usize = 16;

/// A simulation's replacement for the machine's clock.
static REPLACED: OnceLock<fn() -> MonoTime> = OnceLock::new();

static CLOCK: Mutex<Clock> = Mutex::new(Clock::new());

/// This process's clock. Pure: gets readings of the machine's clock.
struct Clock {
    steady: SteadyClock,
    /// What other processes said, by the machine's clock and by this one, the latest last. A moment of before the
    /// machine's clock went back stays what it was: by the machine's clock of now it would look later.
    told: VecDeque<(u64, MonoTime)>,
}

impl Clock {
    const fn new() -> Self {
        Self { steady: SteadyClock::new(), told: VecDeque::new() }
    }

    fn now(&mut self, machine: u64) -> MonoTime {
        self.steady.read(MonoTime(machine)).now
    }

    /// How far this clock is ahead of the machine's.
    fn ahead(&mut self, machine: u64) -> u64 {
        self.now(machine).0.saturating_sub(machine)
    }

    fn shown(&mut self, machine: u64, at: MonoTime) -> u64 {
        at.0.saturating_sub(self.ahead(machine))
    }

    fn told(&mut self, machine: u64, at: u64) -> MonoTime {
        let ahead = self.ahead(machine);
        let known = self.told.iter().position(|(known, _)| *known == at).and_then(|place| self.told.remove(place));
        let (_, told) = known.unwrap_or((at, MonoTime(at.saturating_add(ahead))));
        if self.told.len() == TOLD_MAX {
            self.told.pop_front();
        }
        self.told.push_back((at, told));
        told
    }
}

/// From now on, for the life of the process, CLOCK_BOOTTIME comes from `clock`: for a simulation (ADR 0017). A second
/// call changes nothing.
pub fn replace(clock: fn() -> MonoTime) {
    if REPLACED.set(clock).is_err() {
        tracing::error!("the clock was replaced before");
    }
}

/// Present time by CLOCK_BOOTTIME: it continues while the machine is suspended, as leases do. Never runs backwards.
pub fn now() -> MonoTime {
    if let Some(clock) = REPLACED.get() {
        return clock();
    }
    // The clock is read under the lock: a reading that is handed over late would look as if the clock had gone back.
    let mut clock = CLOCK.locked();
    clock.now(holdfast_host::boot_ns())
}

/// A moment of this process, in nanoseconds of the machine's clock, for other processes of this machine.
pub(crate) fn shown(at: MonoTime) -> u64 {
    if REPLACED.get().is_some() {
        return at.0;
    }
    let mut clock = CLOCK.locked();
    clock.shown(holdfast_host::boot_ns(), at)
}

/// A moment that another process of this machine has told, in nanoseconds of the machine's clock.
pub(crate) fn told(at: u64) -> MonoTime {
    if REPLACED.get().is_some() {
        return MonoTime(at);
    }
    let mut clock = CLOCK.locked();
    clock.told(holdfast_host::boot_ns(), at)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// AGENT-A3, WATCHDOG-W1: a lease that was renewed before the clock went back gets no longer by it, and one that is
    /// renewed afterwards is not taken for an old one.
    #[test]
    fn a_moment_of_before_the_clock_went_back_gets_no_later() {
        let mut clock = Clock::new();
        assert_eq!(clock.told(1_000, 900), MonoTime(900));
        // Back by 600.
        assert_eq!(clock.now(400), MonoTime(1_001));
        assert_eq!(clock.told(1_100, 900), MonoTime(900), "long ago, not 200 ago");
        assert_eq!(clock.now(1_100), MonoTime(1_701));
        assert_eq!(clock.told(1_100, 1_000), MonoTime(1_601), "renewed since, 100 ago");
        assert_eq!(clock.shown(1_100, MonoTime(1_601)), 1_000, "as others read their clock");
        assert_eq!(clock.shown(1_100, MonoTime(1_801)), 1_200, "to come");
    }

    #[test]
    fn moments_that_are_read_again_and_again_are_remembered() {
        let mut clock = Clock::new();
        for sign in 0..1_000 {
            clock.told(2_000 + sign, sign);
            clock.told(2_000 + sign, 1_999);
            assert!(clock.told.len() <= TOLD_MAX);
        }
        assert_eq!(clock.now(100).0, 3_000);
        assert_eq!(clock.told(2_500, 1_999), MonoTime(1_999));
    }
}
