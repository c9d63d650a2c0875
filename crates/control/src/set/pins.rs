//! Pins: roots of this set that clones show (ADR 0028).
//!
//! ```text
//!   Pin (here) ─▶ the store's head names it ─▶ CloneSet (group 0) ─▶ … ─▶ group 0 has no such set, and never will ─▶ Unpin (here)
//! ```
//! SET-S13  A pinned root is a kept root (SET-S7), even after its snapshot is deleted. Only `Unpin` removes the pin. It
//!     names the request that made the pin and the clone's number that was checked, so a late copy removes no other
//!     pin.
//! SET-S14  Whether a clone can still be created is decided by order, never by time: `CloneSet` names the number that
//!     the clone will have, and is refused after that number was passed ([`super::Pin::standing`]).

use super::command::SetAnswer;
use super::listed::SnapshotList;
use super::refusal::SetRefusal;
use super::state::{Pin, RootRef, SetState, SnapshotId};
use holdfast_types::{LogId, Name, RequestId, SetId};
use imbl::OrdMap;
use serde::{Deserialize, Serialize};

/// Most pins of one set. Garbage collection reads the root of each, and each takes about 100 bytes of the set's head.
pub const PINS_MAX: usize = 64;
/// Largest depth of clones of clones: a read may go through so many roots.
pub const CLONE_DEPTH_MAX: u32 = 8;

/// Whether a pin is still needed, according to the known state of group 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinStanding {
    /// Its clone exists, or may still be created.
    Needed,
    /// Its clone exists, and the pin is of an earlier generation: it becomes a pin of this generation.
    Confirm,
    /// No clone uses it, and none ever will.
    Over,
}

/// The origin of a clone.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CloneOf {
    /// The set.
    pub origin: SetId,
    /// The snapshot, by its name at that time.
    pub snapshot: Name,
    /// Its root, which the origin pins.
    pub root: RootRef,
    /// The request that pinned it and created the clone.
    pub request: RequestId,
}

/// What a recovery needs besides a set's content: its pins, its origin, and its snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Links {
    /// Its pins, by the request that made each.
    pub pins: OrdMap<RequestId, Pin>,
    /// The entry that changed them last in this life of the set: the later one of two is newer.
    pub pins_at: LogId,
    /// Its origin, if it is a clone.
    pub clone_of: Option<CloneOf>,
    /// Its snapshots and its schedule.
    pub snapshots: SnapshotList,
}

impl Links {
    /// The links for the next generation.
    #[must_use]
    pub fn inherited(&self) -> Self {
        let pins =
            self.pins.iter().map(|(request, pin)| (*request, Pin { at: LogId::default(), ..pin.clone() })).collect();
        let (clone_of, snapshots) = (self.clone_of.clone(), self.snapshots.inherited());
        Self { pins, pins_at: LogId::default(), clone_of, snapshots }
    }

    /// The links for the next head, where the present head has `stored` and a state of the same generation has `known`:
    /// the newer of the two, as a whole. A leader that was cut off can neither remove a newer leader's pin from the
    /// head nor restore one that the newer leader removed, whose objects may be gone. (For snapshots: `Listing`.)
    #[must_use]
    pub fn for_head(stored: &Links, known: &Links) -> Self {
        holdfast_reached::reached!(
            "pins: the head has newer pins than this gateway",
            stored.pins_at.index > known.pins_at.index
        );
        let newer = if stored.pins_at.index > known.pins_at.index { stored } else { known };
        Self { clone_of: known.clone_of.clone(), ..newer.clone() }
    }
}

impl SetState {
    /// The pins: clones that need a root of this set. While there are any, the set must not be deleted.
    pub fn pins(&self) -> impl Iterator<Item = (RequestId, &Pin)> + '_ {
        self.pins.iter().map(|(request, pin)| (*request, pin))
    }

    /// A state that begins with the pins and snapshots of an earlier life.
    #[must_use]
    pub fn with_links(self, links: &Links) -> Self {
        let state = Self { pins: links.inherited().pins, pins_at: LogId::default(), ..self };
        state.with_snapshots(&links.snapshots)
    }

    pub(super) fn pin(
        &mut self,
        id: LogId,
        clone: SetId,
        snapshot: &SnapshotId,
        request: RequestId,
    ) -> Result<SetAnswer, SetRefusal> {
        if let Some(pin) = self.pins.get_mut(&request) {
            // Also if the snapshot is gone by now: the pin counts. A caller asks for a higher number if the lower one
            // was passed.
            if pin.is_inherited() || clone > pin.clone {
                (pin.at, self.pins_at) = (id, id);
            }
            pin.clone = pin.clone.max(clone);
            return Ok(SetAnswer::Pinned { root: pin.root });
        }
        let found = self.finished(snapshot)?;
        if self.pins.len() >= PINS_MAX {
            return Err(SetRefusal::TooManyPins { max: PINS_MAX as u32 });
        }
        let pin = Pin { clone, root: found.root, upto: found.upto, snapshot: snapshot.name.clone(), at: id };
        let root = pin.root;
        self.pins.insert(request, pin);
        self.pins_at = id;
        Ok(SetAnswer::Pinned { root })
    }

    /// A repeated request finds no pin, and succeeds.
    pub(super) fn unpin(&mut self, id: LogId, clone: SetId, request: RequestId) -> SetAnswer {
        if self.pins.get(&request).is_some_and(|pin| pin.clone == clone)
            && let Some(gone) = self.pins.remove(&request)
        {
            self.pins_at = id;
            self.drop_unless_kept(gone.root);
        }
        SetAnswer::Unpinned
    }
}

#[cfg(test)]
mod tests;
