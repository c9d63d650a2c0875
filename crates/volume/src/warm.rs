//! What a follower brings into its cache of what the leader's checkpoints write, so that reads after a takeover find it there (ADR 0033). Decisions only.
//!
//! WARM-W1  Only what a root names and the one before it did not: where nothing is written, nothing is read.
//! WARM-W2  Bounded: of one step at most so many bytes; what is beyond is left out, not put off.
//! WARM-W3  A checkpoint also moves what nobody has touched for long. That goes into the cache only where it was in it under its old name, as at the leader.

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
    /// In this order: pages of the map first, every read goes through one.
    pub objects: Vec<Wanted>,
    /// Bytes of what there is no room for.
    pub left_out_bytes: u64,
}

impl Plan {
    /// What `new` names and `old` did not (WARM-W1), `most` bytes of it at most (WARM-W2).
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
    /// The root that it writes the next one of.
    pub over: Option<RootRef>,
    /// What was written since that root.
    pub memtable: Arc<Memtable>,
}

/// What a new root is compared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Since {
    /// With this root.
    Root(RootRef),
    /// The set had none: all of it is new.
    Nothing,
    /// Nobody knows how much of it is new, so nothing is read; the next one is compared with it.
    Unknown,
}

/// What to compare a root that shows everything up to `upto` with. `last`: the one that was looked at last.
pub fn since(last: Option<RootRef>, begun: Option<&Begun>, upto: LogId) -> Since {
    match last {
        Some(last) => Since::Root(last),
        // A state snapshot from the leader brings a root too, of a set that may be old and large.
        None if begun.is_some_and(|begun| begun.over.is_none() && begun.at == upto) => Since::Nothing,
        None => Since::Unknown,
    }
}

/// Which of a new segment's extents go into the cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keep {
    /// All: what was written since the last checkpoint.
    All,
    /// It was moved (WARM-W3): those that were in the cache before.
    AtHand,
}

/// What to keep of a segment with this table, that is new in the root of `upto` since `last`.
pub fn keep(begun: Option<&Begun>, last: Option<RootRef>, upto: LogId, table: &[TableEntry]) -> Keep {
    // Of another checkpoint nobody knows what was written: too much is better than nothing.
    let Some(begun) = begun.filter(|begun| begun.at == upto && begun.over == last) else { return Keep::All };
    let Some(first) = table.first() else { return Keep::All };
    // A segment is of the one kind or of the other, and what was written anew is not moved.
    let mut pieces = begun.memtable.pieces(first.volume, first.lba, first.place.sectors());
    if pieces.any(|piece| matches!(piece.source, Source::Journal(_))) { Keep::All } else { Keep::AtHand }
}
