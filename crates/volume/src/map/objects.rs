//! The objects that a root names, with their use. Garbage collection, sweeps, repair and key changes need only this
//! part, which takes a third to a sixth of a root's memory.

use super::table::Table;
use super::under::Under;
use holdfast_control::set::{StoredKind, StoredObject};
use holdfast_types::{ObjectId, Sectors};
use std::collections::BTreeMap;

/// A root's entry of a segment; enough to tell what collecting it would free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentUse {
    /// Length of the object in bytes.
    pub stored_bytes: u64,
    /// Sectors that were sealed into it.
    pub raw_sectors: Sectors,
    /// Sectors that pages of this root refer to (MAP-M4).
    pub live_sectors: Sectors,
}

/// A root's entry of a page pack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackUse {
    /// Length of the object in bytes; 0 if unknown.
    pub stored_bytes: u64,
    /// Sealed bytes of the root's pages in it.
    pub live_bytes: u64,
    /// How many these are.
    pub live_pages: u64,
}

/// The objects of one root. Cloning is cheap: leaves are shared.
#[derive(Clone, Debug, Default)]
pub struct Objects {
    pub(super) segments: Table<SegmentUse>,
    /// Packs with pages, and packs whose length was noted before their first page.
    pub(super) packs: Table<PackUse>,
    /// The packs of the root's leaves, with their lengths; none if it is written whole.
    pub(super) leaf_packs: BTreeMap<ObjectId, u64>,
    /// Data keys of the objects.
    pub(super) under: Under,
}

impl Objects {
    /// All segments that the root names, sorted.
    pub fn segments(&self) -> impl Iterator<Item = (ObjectId, SegmentUse)> + '_ {
        self.segments.iter()
    }

    /// The root's entry of a segment; `None` if it does not name it.
    pub fn segment(&self, object: ObjectId) -> Option<SegmentUse> {
        self.segments.get(object)
    }

    /// All packs that the root names, of pages and of its own leaves, with their lengths (0: unknown).
    pub fn packs(&self) -> BTreeMap<ObjectId, u64> {
        let of_pages = self.page_packs().map(|(object, usage)| (object, usage.stored_bytes));
        of_pages.chain(self.leaf_packs.iter().map(|(object, bytes)| (*object, *bytes))).collect()
    }

    /// The length of a pack as in [`Objects::packs`]; `None` if the root does not name it.
    pub fn pack_length(&self, object: ObjectId) -> Option<u64> {
        let of_pages = || self.packs.get(object).filter(|usage| usage.live_pages > 0).map(|usage| usage.stored_bytes);
        self.leaf_packs.get(&object).copied().or_else(of_pages)
    }

    /// The packs of the root's own leaves, with their lengths; none if it is written whole.
    pub fn leaf_packs(&self) -> &BTreeMap<ObjectId, u64> {
        &self.leaf_packs
    }

    /// Packs with pages, sorted.
    pub(super) fn page_packs(&self) -> impl Iterator<Item = (ObjectId, PackUse)> + '_ {
        self.packs.iter().filter(|(_, usage)| usage.live_pages > 0)
    }

    /// How much of each page pack the root still names, sorted.
    pub fn pack_uses(&self) -> BTreeMap<ObjectId, PackUse> {
        self.page_packs().collect()
    }

    /// Every object that the root names, except its own (MAP-M3): packs, then segments.
    pub fn names(&self) -> impl Iterator<Item = StoredObject> + '_ {
        let packs = self.packs().into_keys().map(|object| StoredObject { kind: StoredKind::Pages, object });
        packs.chain(self.segments().map(|(object, _)| StoredObject { kind: StoredKind::Segment, object }))
    }

    /// Bytes of all segments in the store, and how many are in use, in proportion for each segment.
    pub fn segment_bytes(&self) -> (u64, u64) {
        let sums = self.segments.summaries().map(|found| (found.sums.stored_bytes, found.sums.live_bytes));
        sums.fold((0, 0), |sum: (u64, u64), one| (sum.0.saturating_add(one.0), sum.1.saturating_add(one.1)))
    }

    /// Like `segment_bytes`, of the page packs whose length is known.
    pub(crate) fn pack_bytes(&self) -> (u64, u64) {
        let sums = self.packs.summaries().map(|found| found.sized);
        sums.fold((0, 0), |sum: (u64, u64), one| (sum.0.saturating_add(one.0), sum.1.saturating_add(one.1)))
    }

    /// The partly unused segments, least used first.
    pub(crate) fn segments_by_use(&self) -> impl Iterator<Item = (ObjectId, SegmentUse)> {
        self.segments.by_use()
    }

    /// The partly unused page packs of known length, least used first.
    pub(crate) fn packs_by_use(&self) -> impl Iterator<Item = (ObjectId, PackUse)> {
        self.packs.by_use().filter(|(_, usage)| usage.live_pages > 0)
    }

    /// Approximate memory in bytes, shared parts included. Linear in the number of leaves.
    pub fn memory_bytes(&self) -> u64 {
        let tables = self.segments.memory_bytes() + self.packs.memory_bytes();
        tables + self.leaf_packs.len() as u64 * 84 + self.under.memory_bytes()
    }
}
