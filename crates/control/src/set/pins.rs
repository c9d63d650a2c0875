//! Pins: roots of this set that clones show (ADR 0028).
//!
//! ```text
//!   Pin (here) ─▶ the store's head names it ─▶ CloneSet (group 0) ─▶ … ─▶ group 0 has no such set, and never will ─▶ Unpin (here)
//! ```
//! S13 A pinned root is a kept root (S7), whatever becomes of the snapshot that it was. It is let go only by `Unpin`, which names the request that
//!     pinned it and the number that was judged: a late copy lets go of no other pin.
//! S14 Whether a clone can still come to be is decided by order, never by time: `CloneSet` names the number that the clone will have, and is refused
//!     once that number is passed ([`Pin::standing`]).

use super::command::{RootRef, SetAnswer, SetRefusal};
use super::listed::SnapshotList;
use super::space::SnapshotId;
use super::state::SetState;
use crate::cluster::ClusterState;
use holdfast_types::{LogId, Name, RequestId, SetId};
use imbl::OrdMap;
use serde::{Deserialize, Serialize};

/// Pins of one set at most: each is a root that a collector reads, and some 100 bytes of the set's head.
pub const PINS_MAX: usize = 64;
/// Clones of clones at most: so many roots a read may have to go through.
pub const CLONE_DEPTH_MAX: u32 = 8;

/// A root that a clone shows. Filed under the request that makes the clone: of two that are to get one number, group 0 makes one, and the other's pin is over.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Pin {
    /// The number that the clone has, or is to have.
    pub clone: SetId,
    /// The root.
    pub root: RootRef,
    /// It shows every entry up to this one.
    pub upto: LogId,
    /// The snapshot that it was of. It may be gone, or another one of that name be there.
    pub snapshot: Name,
    /// The entry that made it in this life of the set; default where an earlier life made it and the clone was not seen in this one.
    pub at: LogId,
}

/// What becomes of a pin, judged by what group 0 is known to hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PinStanding {
    /// Its clone is there, or may still come to be.
    Needed,
    /// Its clone is there, and the pin is from an earlier life: from now on it counts as one of this life.
    Confirm,
    /// No clone has it, and none ever will.
    Over,
}

impl Pin {
    /// Whether an earlier life made it, of whose clones this cluster may know nothing yet.
    pub fn is_inherited(&self) -> bool {
        self.at == LogId::default()
    }

    /// S14. `cluster` may lag: set numbers are given in order, each once, so what it says of a number that is passed stays true.
    pub fn standing(&self, cluster: &ClusterState, origin: SetId, request: RequestId) -> PinStanding {
        let made = cluster.links.get(&self.clone).and_then(|links| links.clone_of.as_ref());
        // One that is being deleted has a head until its store was emptied: a recovery in between brings it back.
        let ours = (cluster.sets.contains_key(&self.clone) || cluster.is_going(self.clone))
            && made.is_some_and(|of| of.origin == origin && of.request == request);
        match (ours, self.is_inherited()) {
            (true, true) => PinStanding::Confirm,
            // A clone that a recovery has not brought back yet: its objects stay.
            (true, false) | (false, true) => PinStanding::Needed,
            (false, false) if cluster.next_set > self.clone.0 => PinStanding::Over,
            (false, false) => PinStanding::Needed,
        }
    }
}

/// What a clone is a clone of.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct CloneOf {
    /// The set.
    pub origin: SetId,
    /// The snapshot, by the name that it had.
    pub snapshot: Name,
    /// Its root, which the origin pins.
    pub root: RootRef,
    /// The request that pinned it and made the clone.
    pub request: RequestId,
}

/// What a recovery needs beside a set's content: how it hangs together with others, and its snapshots.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Links {
    /// Its pins, by the request that made each.
    pub pins: OrdMap<RequestId, Pin>,
    /// The entry that changed them last in this life of the set: of two that differ the later are the newer.
    pub pins_at: LogId,
    /// What it is a clone of.
    pub clone_of: Option<CloneOf>,
    /// Its snapshots and its schedule.
    pub snapshots: SnapshotList,
}

impl Links {
    /// As the next life of the set begins with them.
    #[must_use]
    pub fn inherited(&self) -> Self {
        let pins =
            self.pins.iter().map(|(request, pin)| (*request, Pin { at: LogId::default(), ..pin.clone() })).collect();
        let (clone_of, snapshots) = (self.clone_of.clone(), self.snapshots.inherited());
        Self { pins, pins_at: LogId::default(), clone_of, snapshots }
    }

    /// What the store's head is to say of clones where it says `stored` now, and a state of the same life says `known`: the newer of the two, as a whole. Who was
    /// cut off takes no pin out of the head that a newer leader made, and brings none back that it let go of: that one's objects may be gone. (Of snapshots: `Listing`.)
    #[must_use]
    pub fn for_head(stored: &Links, known: &Links) -> Self {
        let newer = if stored.pins_at.index > known.pins_at.index { stored } else { known };
        Self { clone_of: known.clone_of.clone(), ..newer.clone() }
    }
}

impl SetState {
    /// The clones that show a root of this set, and which: while there are any the set must not be deleted.
    pub fn pins(&self) -> impl Iterator<Item = (RequestId, &Pin)> + '_ {
        self.pins.iter().map(|(request, pin)| (*request, pin))
    }

    /// A clone for which a root is kept, and which the cluster does not know: a recovery has not brought it back, and its objects go with this set's.
    pub fn lost_clone(&self, cluster: &ClusterState, origin: SetId) -> Option<SetId> {
        let lost = |request: RequestId, pin: &Pin| {
            !cluster.sets.contains_key(&pin.clone)
                && !cluster.is_going(pin.clone)
                && pin.standing(cluster, origin, request) == PinStanding::Needed
        };
        self.pins().find(|(request, pin)| lost(*request, pin)).map(|(_, pin)| pin.clone)
    }

    /// A state that begins with the pins and the snapshots of an earlier life.
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
            // Also where the snapshot is gone by now: the pin is what counts. A higher number is asked for where the lower one was passed.
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

    /// The same again finds nothing, and that is what was asked for.
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
