//! Limits on how fast the clients of a set, and of each of its volumes, may go. The serving gateway keeps them at its
//! NBD port, so that one busy volume or set leaves the others their share of a gateway.
//!
//! SET-S18  A limit is data and nothing else: no write and no lease depends on it, so a gateway that has not applied it
//!     yet, or lost it, is correct and only faster. The limit of a volume is known by the volume's id and ends with the
//!     volume.

use holdfast_types::{ByteSize, VolumeId};
use imbl::OrdMap;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::time::Duration;

/// Fewest requests per second that a limit may be. Below it one request of a device waits so long that file systems
/// take the device for dead.
pub const IOPS_MIN: u32 = 10;
/// Most requests per second that a limit may be; more than any gateway serves.
pub const IOPS_MAX: u32 = 10_000_000;
/// Fewest bytes per second that a limit may be: a request of 32 MiB then waits for half a minute at most.
pub const BYTES_PER_S_MIN: u64 = 1 << 20;
/// Most bytes per second that a limit may be.
pub const BYTES_PER_S_MAX: u64 = 1 << 40;
/// Burst of a limit unless another is asked for, in milliseconds.
pub const BURST_MS_DEFAULT: u32 = 1000;
/// Shortest burst in milliseconds: timers of a gateway are late by some milliseconds, and the burst makes up for it.
pub const BURST_MS_MIN: u32 = 100;
/// Longest burst in milliseconds: ten minutes.
pub const BURST_MS_MAX: u32 = 600_000;

/// A limit on the requests of clients. 0: not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limit {
    /// Requests per second that read, write, zero, trim, or ask for the allocation.
    pub iops: u32,
    /// Bytes per second that are read and written.
    pub bytes_per_s: u64,
    /// What clients save up while they ask for less: as much as the rates give in this time, in milliseconds. 0 where
    /// nothing is limited.
    pub burst_ms: u32,
}

impl Limit {
    /// Nothing is limited.
    pub const NONE: Self = Self { iops: 0, bytes_per_s: 0, burst_ms: 0 };

    /// Whether nothing is limited.
    pub fn is_none(&self) -> bool {
        self.iops == 0 && self.bytes_per_s == 0
    }

    /// Checks what the proposer should have checked.
    pub fn check(&self) -> Result<(), LimitError> {
        let Self { iops, bytes_per_s, burst_ms } = *self;
        if iops != 0 && !(IOPS_MIN..=IOPS_MAX).contains(&iops) {
            return Err(LimitError::Iops { found: iops });
        }
        if bytes_per_s != 0 && !(BYTES_PER_S_MIN..=BYTES_PER_S_MAX).contains(&bytes_per_s) {
            return Err(LimitError::Bytes { found: bytes_per_s });
        }
        let burst = if self.is_none() { 0..=0 } else { BURST_MS_MIN..=BURST_MS_MAX };
        if !burst.contains(&burst_ms) {
            return Err(LimitError::Burst { found_ms: burst_ms });
        }
        Ok(())
    }
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return f.write_str("none");
        }
        if self.iops != 0 {
            write!(f, "{} IOPS, ", self.iops)?;
        }
        if self.bytes_per_s != 0 {
            write!(f, "{}/s, ", ByteSize(self.bytes_per_s))?;
        }
        write!(f, "burst {:?}", Duration::from_millis(u64::from(self.burst_ms)))
    }
}

/// A limit out of bounds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
pub enum LimitError {
    /// Too few or too many requests.
    #[error("limit: found {found} IOPS, expected {IOPS_MIN} to {IOPS_MAX}, or 0 for no limit")]
    Iops {
        /// As asked for.
        found: u32,
    },
    /// Too few or too many bytes.
    #[error(
        "limit: found {} per second, expected {} to {}, or 0 for no limit",
        ByteSize(*.found), ByteSize(BYTES_PER_S_MIN), ByteSize(BYTES_PER_S_MAX)
    )]
    Bytes {
        /// As asked for.
        found: u64,
    },
    /// Too short or too long a burst, or one without a limit.
    #[error(
        "limit: found a burst of {found_ms} ms, expected {BURST_MS_MIN} to {BURST_MS_MAX} ms, and 0 without limits"
    )]
    Burst {
        /// As asked for.
        found_ms: u32,
    },
}

/// The limits of a set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Limits {
    /// Of all its volumes together.
    pub set: Limit,
    /// Of volumes that have one, by id.
    pub volumes: OrdMap<VolumeId, Limit>,
}

impl Limits {
    /// The limit of a volume alone.
    pub fn of(&self, volume: VolumeId) -> Limit {
        self.volumes.get(&volume).copied().unwrap_or_default()
    }

    /// Whether nothing in the set is limited.
    pub fn is_empty(&self) -> bool {
        *self == Self::default()
    }

    /// Forgets the limits of volumes that do not stay (SET-S18).
    pub(super) fn keep(&mut self, stays: impl Fn(VolumeId) -> bool) {
        let kept = self.volumes.iter().filter(|(id, _)| stays(**id));
        self.volumes = kept.map(|(id, limit)| (*id, *limit)).collect();
    }

    /// Sets the limit of a volume, or of the whole set.
    pub(super) fn put(&mut self, volume: Option<VolumeId>, limit: Limit) {
        match volume {
            None => self.set = limit,
            Some(volume) if limit.is_none() => {
                self.volumes.remove(&volume);
            }
            Some(volume) => {
                self.volumes.insert(volume, limit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_of_a_limit() {
        let limit = |iops, bytes_per_s, burst_ms| Limit { iops, bytes_per_s, burst_ms };
        for good in
            [Limit::NONE, limit(10, 0, 100), limit(0, 1 << 20, 1000), limit(IOPS_MAX, BYTES_PER_S_MAX, BURST_MS_MAX)]
        {
            assert_eq!(good.check(), Ok(()), "{good}");
        }
        assert_eq!(limit(9, 0, 1000).check(), Err(LimitError::Iops { found: 9 }));
        assert_eq!(limit(IOPS_MAX + 1, 0, 1000).check(), Err(LimitError::Iops { found: IOPS_MAX + 1 }));
        assert_eq!(limit(0, 1, 1000).check(), Err(LimitError::Bytes { found: 1 }));
        assert_eq!(limit(0, u64::MAX, 1000).check(), Err(LimitError::Bytes { found: u64::MAX }));
        for (iops, burst_ms) in [(10, 0), (10, 99), (10, BURST_MS_MAX + 1), (0, 1000)] {
            assert_eq!(limit(iops, 0, burst_ms).check(), Err(LimitError::Burst { found_ms: burst_ms }), "{iops}");
        }
    }

    #[test]
    fn limits_for_people() {
        let limit = Limit { iops: 300, bytes_per_s: 10 << 20, burst_ms: 1000 };
        assert_eq!(limit.to_string(), "300 IOPS, 10MiB/s, burst 1s");
        assert_eq!(Limit { iops: 0, burst_ms: 1500, ..limit }.to_string(), "10MiB/s, burst 1.5s");
        assert_eq!(Limit { bytes_per_s: 0, ..limit }.to_string(), "300 IOPS, burst 1s");
        assert_eq!(Limit::NONE.to_string(), "none");
        let found = LimitError::Bytes { found: 512 }.to_string();
        assert_eq!(found, "limit: found 512B per second, expected 1MiB to 1TiB, or 0 for no limit");
    }
}
