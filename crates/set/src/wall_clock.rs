//! The wall clock. People are shown it, and snapshot schedules follow it. No safety depends on it.

/// Milliseconds since 1970 in UTC; 0 before that.
pub fn unix_ms() -> u64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.map_or(0, |d| u64::try_from(d.as_millis()).unwrap_or(u64::MAX))
}
