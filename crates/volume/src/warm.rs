//! Chooses the parts of a leader's checkpoint that a follower reads into its cache, so that reads after a takeover find
//! them there (ADR 0033). Decisions only.
//!
//! WARM-W1  Only objects that the new root names and the one before did not: without writes nothing is read.
//! WARM-W2  Each step is bounded in bytes; the rest is left out, not postponed.
//! WARM-W3  A checkpoint also moves data that nobody has used for long. Moved data goes into the cache only if it was
//!     there before the move, as at the leader.

use crate::index::{Memtable, Source};
use crate::map::Root;
use crate::segment::TableEntry;
use holdfast_control::set::{RootRef, StoredKind, StoredObject};
use holdfast_types::{LogId, ObjectId};
use std::sync::Arc;

#[cfg(test)]
mod tests;

/// An object to read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// Which.
    pub object: StoredObject,
    /// Its length in bytes.
    pub bytes: u64,
}

/// What to read for a new root.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Plan {
    /// In this order: pages of the map first, since every read needs one.
    pub objects: Vec<Wanted>,
    /// Bytes that exceeded the limit.
    pub left_out_bytes: u64,
}

impl Plan {
    /// The objects that `new` names and `old` does not (WARM-W1), at most `most` bytes (WARM-W2).
    pub fn between(old: &Root, new: &Root, most: u64) -> Self {
        let known = old.packs();
        // Leaves before the pages that they name.
        let leaves = new.leaf_packs().iter().map(|(object, bytes)| (*object, *bytes));
        let pages =
            new.pack_uses().into_iter().map(|(object, usage)| (object, usage.stored_bytes.max(usage.live_bytes)));
        let packs = leaves
            .chain(pages)
            .filter(|(object, _)| !known.contains_key(object))
            .map(|(object, bytes)| Wanted { object: StoredObject { kind: StoredKind::Pages, object }, bytes });
        let mut before = old.segments().map(|(object, _)| object).peekable();
        let mut is_new = |object: ObjectId| {
            while before.next_if(|known| *known < object).is_some() {}
            before.peek() != Some(&object)
        };
        let segments = new.segments().filter(|(object, _)| is_new(*object)).map(|(object, usage)| Wanted {
            object: StoredObject { kind: StoredKind::Segment, object },
            bytes: usage.stored_bytes,
        });
        let (mut plan, mut spent) = (Plan::default(), 0_u64);
        for wanted in packs.chain(segments) {
            let with = spent.saturating_add(wanted.bytes);
            if with > most {
                plan.left_out_bytes = plan.left_out_bytes.saturating_add(wanted.bytes);
                continue;
            }
            spent = with;
            plan.objects.push(wanted);
        }
        plan
    }
}

/// A checkpoint whose begin was seen here.
#[derive(Clone, Debug)]
pub struct Begun {
    /// Its begin.
    pub at: LogId,
    /// The root that the checkpoint is built on.
    pub over: Option<RootRef>,
    /// The writes since that root.
    pub memtable: Arc<Memtable>,
}

/// The root to compare a new root with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// With this root.
    Root(RootRef),
    /// The set had no root: all of the new one is new.
    Nothing,
    /// Unknown, so nothing is read; the next root is compared with this one.
    Unknown,
}

/// Chooses the root to compare a root of `upto` with. `last`: the last root that was processed.
pub fn since(last: Option<RootRef>, begun: Option<&Begun>, upto: LogId) -> Since {
    match last {
        Some(last) => Since::Root(last),
        // A state snapshot from the leader also brings a root, possibly of an old and large set.
        None if begun.is_some_and(|begun| begun.over.is_none() && begun.at == upto) => Since::Nothing,
        None => Since::Unknown,
    }
}

/// The extents of a new segment that go into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All: they were written since the last checkpoint.
    All,
    /// Moved data (WARM-W3): only extents that were in the cache before.
    AtHand,
}

/// Chooses the extents of a segment with this table, which is new in the root of `upto` since `last`.
pub fn keep(begun: Option<&Begun>, last: Option<RootRef>, upto: LogId, table: &[TableEntry]) -> Keep {
    // The writes of another checkpoint are unknown: rather keep too much than nothing.
    let Some(begun) = begun.filter(|begun| begun.at == upto && begun.over == last) else { return Keep::All };
    let Some(first) = table.first() else { return Keep::All };
    // A segment has either new writes or moved data, and new writes are not moved.
    let mut pieces = begun.memtable.pieces(first.volume, first.lba, first.place.sectors());
    if pieces.any(|piece| matches!(piece.source, Source::Journal(_))) { Keep::All } else { Keep::AtHand }
}
