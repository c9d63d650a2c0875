//! What the scrub of a set shows, and how a round is requested.

use super::book::{Book, Finds};
use holdfast_types::sync::LockExt;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::sync::Notify;

/// Status of a set's scrub, and requests to start one.
#[derive(Default)]
pub struct ScrubBoard {
    pub(crate) shown: Mutex<Shown>,
    pub(crate) wanted: AtomicBool,
    pub(crate) wake: Notify,
}

/// The status.
#[derive(Clone, Debug, Default)]
pub struct Shown {
    /// As kept on disk; empty before this gateway has led the set.
    pub book: Book,
    /// Number of pages of the target being read.
    pub pages: u64,
    /// Why it waits.
    pub waits: &'static str,
    /// The configured limit.
    pub bytes_per_second: u64,
    /// With several stores, the one whose copies are read.
    pub store: Option<String>,
}

impl ScrubBoard {
    /// The current status.
    pub fn shown(&self) -> Shown {
        self.shown.locked().clone()
    }

    /// Requests a round.
    pub fn start(&self) {
        self.wanted.store(true, Ordering::Release);
        self.wake.notify_one();
    }

    /// Damage that users must know about.
    pub fn known(&self) -> Finds {
        self.shown.locked().book.known()
    }
}
