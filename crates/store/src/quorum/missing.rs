//! What one store is known to lack.

use holdfast_types::ObjectId;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::Instant;

/// Keys that are noted for one store. More are found by comparing again.
pub(super) const NOTED_MAX: usize = 50_000;

/// What one store is known to lack.
#[derive(Debug, Default)]
pub(super) struct Missing {
    pub(super) keys: BTreeMap<String, Note>,
    pub(super) overflowed: bool,
    /// Notes were dropped or a root was not read since the last comparison: the store may lack more than is noted. It
    /// is compared again after this time.
    pub(super) doubtful: Option<Duration>,
    pub(super) head_behind: bool,
    pub(super) compared: Option<Instant>,
    /// Grows whenever it is to be compared anew: a comparison that began before that counts for nothing.
    pub(super) asked_anew: u64,
    pub(super) began: u64,
    /// It lost its slot, and with it perhaps what a checkpoint under way has put there: no root names that yet.
    pub(super) lost: bool,
    /// The current root then: it is compared once more after the next one.
    pub(super) lost_at: Option<Option<ObjectId>>,
    /// Of its slot, as last seen, and of which list of stores that is.
    pub(super) life: Option<(u32, u32)>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Note {
    pub(super) bytes: u64,
    /// Since when no root names it, as far as is known.
    pub(super) since: Instant,
    /// A root that names it; `None`: not known of any yet.
    pub(super) by: Option<ObjectId>,
    /// There is an object, and it does not open.
    pub(super) damaged: bool,
    /// When it could not be copied.
    pub(super) failed: Option<Instant>,
}

impl Note {
    /// The time to be named anew begins when its root is not kept any more, not when the object was found to be
    /// missing: filling a store may take days, and the root changes every few seconds.
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
    /// Those that a kept root is known to name. The others were written by a checkpoint that is under way or did not
    /// end.
    pub named: u64,
    /// Those among them that could not be copied when it was tried: no store that answers has a copy that opens.
    pub stuck: u64,
    /// Its head is not the decided one.
    pub head: bool,
    /// Whether it was compared with the kept roots since this gateway leads the set. Before that it may lack more than
    /// is shown.
    pub compared: bool,
}

/// An object that a store is to get.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Its key.
    pub key: String,
    /// Its length; 0 where it is not known.
    pub bytes: u64,
    /// The root that names it.
    pub by: ObjectId,
    /// What is there does not open, or has another length.
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
