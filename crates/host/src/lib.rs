//! What processes ask the kernel of their host: table of mounts, lock files, files that are rewritten all the time,
//! unread bytes of sockets, metrics of the own process, clock of leases, time of day. And the file of an audit log.
//!
//! Owns: reading `/proc/self`, `flock` on lock files, files that can be rewritten without new space, the look at what a
//! socket's client left, CLOCK_BOOTTIME, the wall clock. Does not own: mounting, other processes, devices. Depends on:
//! nothing of ours.

pub mod audit;
pub mod lock;
pub mod mounts;
pub mod process;
pub mod rewritten;
pub mod sockets;

use rustix::time::{ClockId, clock_gettime};
use std::time::{SystemTime, UNIX_EPOCH};

/// Nanoseconds of CLOCK_BOOTTIME. It goes on while the machine is suspended, as leases do.
pub fn boot_ns() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}

/// The wall clock: milliseconds since 1970 in UTC, 0 before that. For display, and for snapshot schedules. Safety never
/// depends on it.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}
