//! Two clocks: CLOCK_BOOTTIME for decisions, the time of day for people.
//!
//! If the machine's CLOCK_BOOTTIME goes back, [`now`] goes on from its last reading, so no timer stands still. Agent,
//! attach and the watchdog's helper tell one another moments in files. Each has gone on from another reading, or has
//! begun later, so files have moments of the machine's clock: `shown` writes them, `told` and `told_limit` read
//! them.

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
    /// What other processes said, by the machine's clock and by this one, the latest last. A moment that was told
    /// before the machine's clock went back keeps its value: computed anew, it would look later. `None`: it was in the
    /// future when it was first told.
    told: VecDeque<(u64, Option<MonoTime>)>,
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

    /// A moment in the past. `None` if it lies in the future: it was written before the machine's clock went back, or
    /// in an earlier boot, and nobody knows how long ago it was. It stays `None` when the machine's clock gets there.
    fn told(&mut self, machine: u64, at: u64) -> Option<MonoTime> {
        self.remember(machine, at, at <= machine.saturating_add(SteadyClock::JITTER_NS))
    }

    /// A moment that may be still to come.
    fn told_limit(&mut self, machine: u64, at: u64) -> MonoTime {
        self.remember(machine, at, true).unwrap_or(MonoTime(0))
    }

    fn remember(&mut self, machine: u64, at: u64, counts: bool) -> Option<MonoTime> {
        let ahead = self.ahead(machine);
        let known = self.told.iter().position(|(known, _)| *known == at).and_then(|place| self.told.remove(place));
        let new = counts.then_some(MonoTime(at.saturating_add(ahead)));
        let (_, told) = known.unwrap_or((at, new));
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
        tracing::error!("the clock can be replaced only once");
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

/// A past moment that another process of this machine has told, in nanoseconds of the machine's clock. `None`: nobody
/// knows how long ago it was, because the machine's clock went back since it was written.
pub(crate) fn told(at: u64) -> Option<MonoTime> {
    if REPLACED.get().is_some() {
        return Some(MonoTime(at)).filter(|at| *at <= now());
    }
    let mut clock = CLOCK.locked();
    clock.told(holdfast_host::boot_ns(), at)
}

/// Like `told`, for a moment that may be still to come.
pub(crate) fn told_limit(at: u64) -> MonoTime {
    if REPLACED.get().is_some() {
        return MonoTime(at);
    }
    let mut clock = CLOCK.locked();
    clock.told_limit(holdfast_host::boot_ns(), at)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    /// A clock, asked in milliseconds. What it says is rounded down to them: a step back takes a nanosecond.
    struct InMs(Clock);

    impl InMs {
        fn now(&mut self, machine: u64) -> u64 {
            self.0.now(machine * MS).0 / MS
        }

        fn told(&mut self, machine: u64, at: u64) -> Option<u64> {
            self.0.told(machine * MS, at * MS).map(|at| at.0 / MS)
        }

        fn told_limit(&mut self, machine: u64, at: u64) -> u64 {
            self.0.told_limit(machine * MS, at * MS).0 / MS
        }
    }

    /// AGENT-A3, WATCHDOG-W1: a lease that was renewed before the clock went back gets no longer by it, and one that is
    /// renewed afterwards is not taken for an old one.
    #[test]
    fn a_moment_of_before_the_clock_went_back_gets_no_later() {
        let mut clock = InMs(Clock::new());
        assert_eq!(clock.told(1_000, 900), Some(900));
        assert_eq!(clock.told_limit(1_000, 1_300), 1_300);
        // Back by 600.
        assert_eq!(clock.now(400), 1_000);
        assert_eq!(clock.told(1_100, 900), Some(900), "long ago, not 200 ago");
        assert_eq!(clock.told_limit(1_100, 1_300), 1_300, "over, not 200 to come");
        assert_eq!(clock.now(1_100), 1_700);
        assert_eq!(clock.told(1_100, 1_000), Some(1_600), "renewed since, 100 ago");
        let mut shown = |at: u64| clock.0.shown(1_100 * MS, MonoTime(at * MS + 1)) / MS;
        assert_eq!(shown(1_600), 1_000, "as others read their clock");
        assert_eq!(shown(1_800), 1_200, "to come");
    }

    /// AGENT-A3, WATCHDOG-W1: attach wrote it and hangs, the clock went back, and only now it is read. It may not look
    /// young when the machine's clock is there again.
    #[test]
    fn a_moment_of_before_the_clock_went_back_that_is_read_afterwards_never_counts() {
        let mut clock = InMs(Clock::new());
        assert_eq!(clock.now(1_000), 1_000);
        assert_eq!(clock.told(400, 900), None);
        assert_eq!(clock.told(899, 900), None);
        assert_eq!(clock.told(1_000, 900), None, "not 100 ago");
        assert_eq!(clock.told(1_000, 950), Some(1_550), "written since");
        let mut next = InMs(Clock::new());
        assert_eq!(next.told(400, 900), None, "the same in a process that begins");
        assert_eq!(next.told(1_000, 900), None);
        assert_eq!(next.told(2_000, 2_001), Some(2_001), "by another processor of the machine");
    }

    #[test]
    fn moments_that_are_read_again_and_again_are_remembered() {
        let mut clock = InMs(Clock::new());
        for sign in 0..1_000 {
            clock.told(2_000 + sign, sign);
            clock.told(2_000 + sign, 1_999);
            assert!(clock.0.told.len() <= TOLD_MAX);
        }
        assert_eq!(clock.now(100), 2_999);
        assert_eq!(clock.told(2_500, 1_999), Some(1_999));
    }
}
