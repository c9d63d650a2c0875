//! Checks whether this machine's clock can be trusted. A suspend, a hypervisor's pause, or a long wait for a CPU can
//! hide time from a process. Then its read lease is void until a quorum has answered again.
//!
//! A pause that neither clock shows cannot be detected. It is outside of R3; R2 still holds.

use super::Timing;
use holdfast_types::MonoTime;
use std::time::Duration;

/// Why the clock is not trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ClockSuspicion {
    /// CLOCK_BOOTTIME and CLOCK_MONOTONIC moved apart: the machine was suspended, or a clock was set.
    #[error("the clocks moved apart by {by:?}, expected at most {max:?}: the machine was suspended, or a clock jumped")]
    Apart {
        /// By how much since they were last trusted.
        by: Duration,
        /// How much is no suspicion.
        max: Duration,
    },
    /// A clock went backwards.
    #[error("a clock went backwards by {by:?}")]
    Backwards {
        /// By how much.
        by: Duration,
    },
    /// The clock was not sampled for too long: the process did not run.
    #[error("the process did not run for {found:?}, expected at most {max:?}")]
    Gap {
        /// Between two looks.
        found: Duration,
        /// How much is no suspicion.
        max: Duration,
    },
}

impl ClockSuspicion {
    /// How much time the process may not have seen.
    pub fn lost(&self) -> Duration {
        match self {
            ClockSuspicion::Apart { by, .. } | ClockSuspicion::Backwards { by } => *by,
            ClockSuspicion::Gap { found, .. } => *found,
        }
    }
}

/// Compares successive samples of the two clocks.
///
/// The caller samples every [`Timing::clock_tick`], and again before it answers a read that had to wait.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ClockWatch {
    apart_max: Duration,
    gap_max: Duration,
    last: Option<Look>,
    /// Boot time minus monotonic time, in nanoseconds, when last trusted. Kept over many samples, so that small steps
    /// add up.
    trusted_offset: i128,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Look {
    boot: MonoTime,
    monotonic: MonoTime,
}

impl ClockWatch {
    /// With margins of its own: for clocks `apart`, and for a `gap` between two samples.
    pub fn new(apart_max: Duration, gap_max: Duration) -> Self {
        Self { apart_max, gap_max, last: None, trusted_offset: 0 }
    }

    /// With the margins of `timing`: its drift margin covers every smaller deviation.
    pub fn with_timing(timing: &Timing) -> Self {
        Self::new(timing.drift_margin(), timing.gap_max())
    }

    /// From now on the margins are those of `timing`. The next sample is judged by them, so a margin that gets smaller
    /// counts for the time since the last sample already. `pause`: what was meant to be between these two samples. It
    /// may have begun under longer times, and is no gap.
    pub fn set_timing(&mut self, timing: &Timing, pause: Duration) {
        (self.apart_max, self.gap_max) = (timing.drift_margin(), timing.drift_margin().saturating_add(pause));
    }

    /// Takes a sample: CLOCK_BOOTTIME and CLOCK_MONOTONIC, read one right after the other. The first sample only starts
    /// the comparison; after a suspicion it starts again.
    pub fn sample(&mut self, boot: MonoTime, monotonic: MonoTime) -> Option<ClockSuspicion> {
        let offset = i128::from(boot.0) - i128::from(monotonic.0);
        let Some(last) = self.last.replace(Look { boot, monotonic }) else {
            self.trusted_offset = offset;
            return None;
        };
        let found = self.judge(last, Look { boot, monotonic }, offset);
        if found.is_some() {
            self.trusted_offset = offset;
        }
        found
    }

    fn judge(&self, last: Look, look: Look, offset: i128) -> Option<ClockSuspicion> {
        let back = last.boot.saturating_since(look.boot).max(last.monotonic.saturating_since(look.monotonic));
        if !back.is_zero() {
            holdfast_reached::reached!("clock: it went backwards");
            return Some(ClockSuspicion::Backwards { by: back });
        }
        let apart = u64::try_from((offset - self.trusted_offset).unsigned_abs()).unwrap_or(u64::MAX);
        let by = Duration::from_nanos(apart);
        if by > self.apart_max {
            holdfast_reached::reached!("clock: the two clocks run apart");
            return Some(ClockSuspicion::Apart { by, max: self.apart_max });
        }
        let found = look.boot.saturating_since(last.boot);
        holdfast_reached::reached!("clock: the process did not run for long", found > self.gap_max);
        (found > self.gap_max).then_some(ClockSuspicion::Gap { found, max: self.gap_max })
    }
}
