//! Spans that this process has dropped.

use metrics::counter;
use std::sync::atomic::{AtomicU64, Ordering};

static DROPPED: AtomicU64 = AtomicU64::new(0);

/// Number of spans that this process has dropped, for metrics that are written by hand.
pub fn dropped() -> u64 {
    DROPPED.load(Ordering::Relaxed)
}

pub(crate) fn drop_spans(count: u64) {
    DROPPED.fetch_add(count, Ordering::Relaxed);
    counter!("holdfast_traces_dropped_total").increment(count);
}
