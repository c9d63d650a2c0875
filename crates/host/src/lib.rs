//! What agent, attach and standby ask the kernel of their host: table of mounts, lock files, clock of leases.
//!
//! Owns: reading `/proc/self/mountinfo`, `flock` on lock files, CLOCK_BOOTTIME. Does not own: mounting, processes, devices. Depends on: nothing of ours.

pub mod lock;
pub mod mounts;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds of CLOCK_BOOTTIME. It goes on while the machine is suspended, as leases do.
pub fn boot_ns() -> u64 {
    let time = clock_gettime(ClockId::Boottime);
    let (seconds, nanos) = (u64::try_from(time.tv_sec).unwrap_or(0), u64::try_from(time.tv_nsec).unwrap_or(0));
    seconds.saturating_mul(1_000_000_000).saturating_add(nanos)
}
