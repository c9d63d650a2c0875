//! Two clocks: CLOCK_BOOTTIME for decisions, the time of day for people.

use holdfast_types::MonoTime;
use std::sync::OnceLock;
use std::time::{SystemTime, UNIX_EPOCH};

/// A simulation's replacement for the machine's clock.
static REPLACED: OnceLock<fn() -> MonoTime> = OnceLock::new();

/// From now on, for the life of the process, CLOCK_BOOTTIME comes from `clock`: for a simulation (ADR 0017). A second
/// call changes nothing.
pub fn replace(clock: fn() -> MonoTime) {
    if REPLACED.set(clock).is_err() {
        tracing::error!("the clock was replaced before");
    }
}

/// Present time by CLOCK_BOOTTIME: it continues while the machine is suspended, as leases do.
pub fn now() -> MonoTime {
    if let Some(clock) = REPLACED.get() {
        return clock();
    }
    MonoTime(holdfast_host::boot_ns())
}

/// Wall-clock time in Unix milliseconds. No decision depends on it.
pub fn unix_ms() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |time| u64::try_from(time.as_millis()).unwrap_or(u64::MAX))
}
