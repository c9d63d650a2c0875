//! Waiting for a condition that has no event.

use std::time::{Duration, Instant};

/// Polling interval for conditions that have no event to wait for.
pub const POLL: Duration = Duration::from_millis(5);

/// Polls until `done` returns true or `limit` passes. Returns whether it was done.
pub fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let begun = Instant::now();
    loop {
        if done() {
            return true;
        }
        if begun.elapsed() > limit {
            return false;
        }
        std::thread::sleep(POLL);
    }
}
