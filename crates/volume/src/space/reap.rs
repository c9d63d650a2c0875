//! When a retired object may be deleted, and by whom (SPACE-G3). Deleting is the only thing that loses data for good.

use holdfast_control::set::{RETIRE_OBJECTS_MAX, RETIRED_MAX, SetState, StoredKind, StoredObject};
use holdfast_types::{MonoTime, ObjectId, Term};
use std::collections::BTreeMap;
use std::time::Duration;

/// What a leader knows of its right to delete: a quorum acknowledged this heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmed {
    /// The term that it led in then.
    pub term: Term,
    /// When the heartbeat was sent.
    pub sent: MonoTime,
}

/// Why an object is not deleted now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDeletion {
    /// Another term than the confirmed one, or no leadership at all.
    #[error("confirmed as leader of {confirmed}, now {}", match .now {
        Some(term) => format!("leading {term}"),
        None => "not leading".to_string(),
    })]
    Term {
        /// What a quorum confirmed.
        confirmed: Term,
        /// What it is now.
        now: Option<Term>,
    },
    /// The confirmation is older than what others promised to wait for.
    #[error("confirmed as leader {age:?} ago, expected at most {most:?}")]
    Old {
        /// Its age.
        age: Duration,
        /// How long it counts.
        most: Duration,
    },
    /// No committed entry retired it, or it was deleted already.
    #[error("object {object} is not retired")]
    NotRetired {
        /// The object.
        object: ObjectId,
    },
}

impl Confirmed {
    /// The last question before a deletion is sent: asked for each object, after whatever was waited for.
    ///
    /// `leading`: the term that the gateway leads in now, an entry of which it has applied. `valid`: how long no other gateway can
    /// have been elected after a quorum answered.
    ///
    /// # Errors
    /// Why not.
    pub fn may_delete(
        &self,
        now: MonoTime,
        valid: Duration,
        leading: Option<Term>,
        state: &SetState,
        object: ObjectId,
    ) -> Result<(), NoDeletion> {
        if leading != Some(self.term) {
            return Err(NoDeletion::Term { confirmed: self.term, now: leading });
        }
        let age = now.saturating_since(self.sent);
        if age >= valid {
            return Err(NoDeletion::Old { age, most: valid });
        }
        // Neither a root that is kept nor one that is dropped can be among them (SET-S8).
        if !state.retired.contains_key(&object) {
            return Err(NoDeletion::NotRetired { object });
        }
        Ok(())
    }
}

/// Waits out the readers' grace of each retired object. It is counted from when this leader first saw the object retired, by its own
/// clock, so a new leader waits all of it again.
#[derive(Debug, Default)]
pub struct Reaper {
    term: Option<Term>,
    seen: BTreeMap<ObjectId, Seen>,
    /// Dropped roots, numbered in the order in which they were first seen.
    dropped: BTreeMap<ObjectId, u64>,
    /// How many dropped roots were seen so far.
    count: u64,
}

/// A retired object, when it was first seen.
#[derive(Clone, Copy, Debug)]
struct Seen {
    at: MonoTime,
    /// Dropped roots that had been seen by then: a pack waits for those of them that are still to be looked through.
    behind: u64,
}

impl Reaper {
    /// One that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// Retired objects whose grace is over, at most `max`, in the order in which they are to be deleted: roots, then packs, then
    /// segments, so that what is left after a crash is never a root without its objects.
    ///
    /// No pack as long as a root waits to be looked through that was dropped before the pack was seen, unless the list is so full that such roots wait for that:
    /// two of them may have leaves in one pack (ADR 0034), and what only the second one names would be found by nobody but the sweep. A root that is dropped
    /// later was kept when the pack was retired, or was made of kept ones: it does not name the pack.
    pub fn due(
        &mut self,
        term: Term,
        now: MonoTime,
        grace: Duration,
        state: &SetState,
        max: usize,
    ) -> Vec<StoredObject> {
        if self.term != Some(term) {
            *self = Self { term: Some(term), ..Self::default() };
        }
        self.seen.retain(|object, _| state.retired.contains_key(object));
        self.dropped.retain(|root, _| state.dropped.contains_key(root));
        for root in state.dropped.keys() {
            self.dropped.entry(*root).or_insert_with(|| {
                self.count += 1;
                self.count
            });
        }
        let oldest = self.dropped.values().min().copied();
        let oldest = oldest.filter(|_| state.retired.len() < RETIRED_MAX - RETIRE_OBJECTS_MAX);
        let mut due = Vec::new();
        for (object, kind) in &state.retired {
            let seen = *self.seen.entry(*object).or_insert(Seen { at: now, behind: self.count });
            if *kind == StoredKind::Pages && oldest.is_some_and(|root| root <= seen.behind) {
                continue;
            }
            if now.saturating_since(seen.at) >= grace {
                due.push(StoredObject { kind: *kind, object: *object });
            }
        }
        due.sort_unstable();
        due.truncate(max);
        due
    }
}
