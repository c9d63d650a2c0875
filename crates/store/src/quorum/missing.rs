//! Objects that one store is known to lack.

use holdfast_types::ObjectId;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Maximum number of keys that are noted for one store. A further comparison finds more.
pub(super) const NOTED_MAX: usize = 50_000;

/// Objects that one store is known to lack.
#[derive(Debug, Default)]
pub(super) struct Missing {
    pub(super) keys: BTreeMap<String, Note>,
    pub(super) overflowed: bool,
    /// Notes were dropped or a root was not read since the last comparison: the store may lack more than is noted. It
    /// is compared again after this time.
    pub(super) doubtful: Option<Duration>,
    pub(super) head_behind: bool,
    pub(super) compared: Option<Instant>,
    /// Grows with each request for a new comparison: a comparison that began before the request does not count.
    pub(super) asked_anew: u64,
    pub(super) began: u64,
    /// The store lost its entry, and perhaps also objects of the checkpoint under way: no root names these yet.
    pub(super) lost: bool,
    /// The current root at that time: the store is compared once more after the next root.
    pub(super) lost_at: Option<Option<ObjectId>>,
    /// Restart of its entry, as last seen, and the number of that list of stores.
    pub(super) restart: Option<(u32, u32)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Note {
    pub(super) bytes: u64,
    /// Since when no root names it, as far as known.
    pub(super) since: Instant,
    /// A root that names it; `None`: none is known yet.
    pub(super) by: Option<ObjectId>,
    /// The object is there, but cannot be opened.
    pub(super) damaged: bool,
    /// When the copy failed.
    pub(super) failed: Option<Instant>,
}

impl Note {
    /// The waiting time for another root begins when the root that names it is no longer kept, not when the object was
    /// found missing: filling a store may take days, and the root changes every few seconds.
    pub(super) fn release(&mut self, kept: impl Fn(ObjectId) -> bool) {
        if self.by.is_some_and(|by| !kept(by)) {
            (self.by, self.since) = (None, Instant::now());
        }
    }
}

/// What one store lacks, for people.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Backlog {
    /// Objects.
    pub objects: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Number of objects that a kept root is known to name. The others were written by a checkpoint that is under way
    /// or did not end.
    pub named: u64,
    /// Number of those that could not be copied: no store that answers has a copy that opens.
    pub stuck: u64,
    /// Its head is not the decided one.
    pub head: bool,
    /// Whether it was compared with the kept roots since this gateway became leader of the set. Before that it may lack
    /// more than is shown.
    pub compared: bool,
}

/// An object that a store must get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its key.
    pub key: String,
    /// Its length; 0 if unknown.
    pub bytes: u64,
    /// The root that names it.
    pub by: ObjectId,
    /// The existing object does not open, or has another length.
    pub damaged: bool,
}

impl Missing {
    pub(super) fn compare_anew(&mut self) {
        (self.compared, self.asked_anew) = (None, self.asked_anew + 1);
    }

    pub(super) fn waits(&self) -> bool {
        self.lost || self.lost_at.is_some()
    }

    pub(super) fn must_compare(&self) -> bool {
        let room = self.keys.len() < NOTED_MAX / 2;
        let Some(compared) = self.compared else { return true };
        room && (self.overflowed || self.doubtful.is_some_and(|after| compared.elapsed() >= after))
    }
}
