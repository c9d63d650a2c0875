//! When an operation's entry left the queue and came back. Noted only while traces are on.

use holdfast_types::{LogId, WriteSeq};
use std::sync::OnceLock;
use std::time::Instant;

/// Moments of one operation, for whoever pushed it. Each is set once.
#[derive(Debug, Default)]
pub struct Moments {
    left: OnceLock<Left>,
    came: OnceLock<(Instant, LogId)>,
}

/// Its entry has left the queue.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Left {
    pub at: Instant,
    /// The entry's number in its epoch.
    pub seq: WriteSeq,
    /// Operations in the entry.
    pub ops: usize,
    /// Their data in bytes.
    pub bytes: usize,
}

impl Moments {
    pub(super) fn leaves(&self, seq: WriteSeq, ops: usize, bytes: usize) {
        let _ = self.left.set(Left { at: Instant::now(), seq, ops, bytes });
    }

    pub(super) fn comes(&self, id: LogId) {
        let _ = self.came.set((Instant::now(), id));
    }

    /// `None`: it waits.
    pub(crate) fn left(&self) -> Option<Left> {
        self.left.get().copied()
    }

    /// When the entry was applied here, and its place in the log. `None`: it is in flight, or its outcome is unknown.
    pub(crate) fn came(&self) -> Option<(Instant, LogId)> {
        self.came.get().copied()
    }
}
