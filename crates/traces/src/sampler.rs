//! Which writes are recorded although they were not slow: the first few that end in each second.

use std::sync::atomic::{AtomicU64, Ordering};

/// Lets a number of writes through in each second.
#[derive(Debug)]
pub(crate) struct Sampler {
    per_second: u32,
    /// The second of the last one that was let through, and how many were in it: 32 bits each.
    last: AtomicU64,
}

impl Sampler {
    pub(crate) fn new(per_second: u32) -> Self {
        // No second has this number, so the first one of all is a new one.
        Self { per_second, last: AtomicU64::new(u64::from(u32::MAX) << 32) }
    }

    /// Whether one that ended in this second is let through. Once the second has enough, this only reads.
    pub(crate) fn admits(&self, second: u32) -> bool {
        let next = |last: u64| {
            let taken = if last >> 32 == u64::from(second) { last & u64::from(u32::MAX) } else { 0 };
            (taken < u64::from(self.per_second)).then_some((u64::from(second) << 32) | (taken + 1))
        };
        self.last.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next).is_ok()
    }
}
