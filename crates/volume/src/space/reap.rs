//! Decides when a retired object may be deleted, and by which leader (SPACE-G3). Only deletion loses data for good.

use holdfast_control::set::{RETIRE_OBJECTS_MAX, RETIRED_MAX, SetState, StoredKind, StoredObject};
use holdfast_types::{MonoTime, ObjectId, Reading, Term};
use std::collections::BTreeMap;
use std::time::Duration;

/// A leader's confirmation: a quorum acknowledged this heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirmed {
    /// The term in which it led then.
    pub term: Term,
    /// When the heartbeat was sent.
    pub sent: MonoTime,
}

/// Why an object is not deleted now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoDeletion {
    /// The gateway leads another term than the confirmed one, or none.
    #[error("confirmed as leader of {confirmed}, now {}", match .now {
        Some(term) => format!("leading {term}"),
        None => "not leading".to_string(),
    })]
    Term {
        /// The confirmed term.
        confirmed: Term,
        /// The present term.
        now: Option<Term>,
    },
    /// The confirmation is older than the time during which no other leader can be elected.
    #[error("confirmed as leader {age:?} ago, expected at most {most:?}")]
    Old {
        /// Its age.
        age: Duration,
        /// How long a confirmation is valid.
        most: Duration,
    },
    /// The machine's clock went back since the confirmation: its age is not known.
    #[error("the boot clock went back since the confirmation as leader")]
    ClockBack,
    /// No committed entry retired it, or it was deleted before.
    #[error("object {object} is not retired")]
    NotRetired {
        /// The object.
        object: ObjectId,
    },
}

impl Confirmed {
    /// The last check before a deletion is sent: made for each object, after all waiting.
    ///
    /// `leading`: the term that the gateway leads now, with an applied entry of that term. `valid`: how long after a
    /// quorum's answer no other gateway can be elected.
    ///
    /// # Errors
    /// The reason against the deletion.
    pub fn may_delete(
        &self,
        now: impl Into<Reading>,
        valid: Duration,
        leading: Option<Term>,
        state: &SetState,
        object: ObjectId,
    ) -> Result<(), NoDeletion> {
        let reading = now.into();
        if leading != Some(self.term) {
            return Err(NoDeletion::Term { confirmed: self.term, now: leading });
        }
        if !reading.counts(self.sent) {
            holdfast_reached::reached!("space: the clock went back since the confirmation");
            return Err(NoDeletion::ClockBack);
        }
        let age = reading.now.saturating_since(self.sent);
        if age >= valid {
            return Err(NoDeletion::Old { age, most: valid });
        }
        // No retained or dropped root can be among them (SET-S8).
        if !state.retired.contains_key(&object) {
            return Err(NoDeletion::NotRetired { object });
        }
        Ok(())
    }
}

/// Waits for the readers' grace period of each retired object. The period begins when this leader first sees the object
/// retired, by its own clock, so a new leader waits again.
#[derive(Debug, Default)]
pub struct Reaper {
    term: Option<Term>,
    seen: BTreeMap<ObjectId, FirstSeen>,
    /// Dropped roots, numbered in the order in which they were seen.
    dropped: BTreeMap<ObjectId, u64>,
    /// Number of dropped roots seen so far.
    count: u64,
}

/// A retired object, when it was first seen.
#[derive(Clone, Copy, Debug)]
struct FirstSeen {
    at: MonoTime,
    /// Number of dropped roots seen by then: a pack waits until those of them that remain are processed.
    behind: u64,
}

impl Reaper {
    /// Without any object seen.
    pub fn new() -> Self {
        Self::default()
    }

    /// Retired objects whose grace period is over, at most `max`, in the order of deletion: roots, then packs, then
    /// segments. So a crash never leaves a root without its objects.
    ///
    /// A pack waits while a dropped root remains to be processed that was seen before the pack (unless the list of
    /// retired objects is so full that such roots wait for deletions). Two dropped roots may share a pack of leaves
    /// (ADR 0034), and without it only the sweep would find the objects that only the second one names. A root that is
    /// dropped later was retained when the pack was retired, or was built on retained ones: it does not name the pack.
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
            let seen = *self.seen.entry(*object).or_insert(FirstSeen { at: now, behind: self.count });
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
