//! Decides whether this member stands for election.

use crate::clock::boot_now;
use holdfast_types::MonoTime;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

/// This member stands for election once the embargo after its start is over, unless it was told to stand aside.
#[derive(Debug)]
pub(crate) struct Candidacy {
    embargo_over: AtomicBool,
    aside: AtomicBool,
    /// The time when a leader was last heard, or this member was last seen to lead.
    heard: AtomicU64,
}

impl Candidacy {
    pub(crate) fn new(now: MonoTime) -> Self {
        Self { embargo_over: AtomicBool::new(false), aside: AtomicBool::new(false), heard: AtomicU64::new(now.0) }
    }

    /// A leader was heard now.
    pub(crate) fn heard(&self) {
        self.heard.fetch_max(boot_now().0, Ordering::AcqRel);
    }

    /// Time since a leader was last heard.
    pub(crate) fn unheard(&self) -> Duration {
        boot_now().saturating_since(MonoTime(self.heard.load(Ordering::Acquire)))
    }

    pub(crate) fn end_embargo(&self) {
        self.embargo_over.store(true, Ordering::Release);
    }

    /// True if that changed something.
    pub(crate) fn set_aside(&self, aside: bool) -> bool {
        self.aside.swap(aside, Ordering::AcqRel) != aside
    }

    pub(crate) fn stands(&self) -> bool {
        self.embargo_over.load(Ordering::Acquire) && !self.aside.load(Ordering::Acquire)
    }
}
