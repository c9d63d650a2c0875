//! A root in leaves: its top, and how it is written and read (ADR 0034).
//!
//! ```text
//!   root object: top ─▶ leaf of pages, by volume and range of numbers ─▶ page
//!                    ─▶ leaf of segments, by range of ids     ─▶ leaf of packs, by range of ids
//! ```
//! LEAF-L1  A leaf is written once; roots that share it name the same copy. A checkpoint writes the changed leaves and
//!     the top.
//! LEAF-L2  A leaf of objects holds the ids from its first one up to the first one of the next leaf; a leaf of pages
//!     those of its range. Each page or object is in exactly one leaf.
//! LEAF-L3  A top names the packs of its leaves and no other (MAP-M3), and a bounded number of them. Leaves move out of
//!     a pack that is less than a quarter in use; a checkpoint moves at most as many bytes of leaves as it writes.
//!
//! Encoded, version 5 (numbers are varints, see `wire`):
//!
//! ```text
//!   "HFR" version(1)  term and index of the log entry that it covers everything up to   pages that one leaf covers
//!   count of packs of leaves, then each, sorted:  id (steps)  stored bytes
//!   count of leaves of pages, then each, sorted:  volume (step)  2 × ranges left out before it, + 1 where it is of the volume before  count of its pages  place
//!   count of leaves of segments, then each, sorted:  id of the first (steps)  sums  place
//!   count of leaves of packs, the same
//!   whether there is a base, then it (see `base`)
//!   count of older data keys that anything is under, then each (step)
//!
//!   a place:  place in the list of packs (step from the one before)  number  offset  bytes before sealing
//!   sums:     objects  stored bytes  live bytes  lowest share in use, in parts of 65,536
//! ```

use super::base::Base;
use super::leaf::{Leaf, LeafOf, LeafRef, ObjectLeaf, PageLeaf};
use super::places::read_next_object;
use super::root::{PlacedLeaf, lookup};
use super::sums::{Known, Sums};
use super::table::{Table, TableLeaf};
use super::under::Under;
use super::{
    MapError, MapPiece, NO_OBJECT, OBJECT_WIRE_BYTES_MIN, PAGE_BYTES_MAX, PAGE_NUMBER_MAX, Page, PageRef, Root,
};
use crate::wire::{Reader, WireError};
use holdfast_seal::{PAGE_NUMBER_MAX as PACK_NUMBER_MAX, TAG_BYTES};
use holdfast_types::limits::VOLUMES_PER_SET_MAX;
use holdfast_types::{Lba, LogId, LogIndex, ObjectId, Sectors, Term, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

mod partial;
mod remains;
mod write;

pub use partial::{Comparing, LeafWriting, PartialRoot};
pub use remains::Remains;
pub use write::LeafPack;

pub(super) const MAGIC: &[u8] = b"HFR\x05";
/// A place: step, number, offset, length; at least one byte each.
const PLACE_WIRE_BYTES_MIN: usize = 4;
/// Volume, range, count, place.
const PAGES_WIRE_BYTES_MIN: usize = 3 + PLACE_WIRE_BYTES_MIN;
/// Id, four sums, place.
const OBJECTS_WIRE_BYTES_MIN: usize = OBJECT_WIRE_BYTES_MIN + 4 + PLACE_WIRE_BYTES_MIN;

/// A top's entry of a leaf of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PagesAt {
    at: PageRef,
    pages: u64,
}

/// A top's entry of a leaf of segments or packs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ObjectsAt {
    first: ObjectId,
    sums: Sums,
    at: PageRef,
}

/// A root in leaves, without the leaves: finding a page or an object takes one more leaf.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Top {
    /// The root contains every entry up to this one, and none after (R4).
    pub upto: LogId,
    width: u32,
    /// The data key of the root and its leaves (UNDER-U3).
    key_id: u32,
    leaf_packs: BTreeMap<ObjectId, u64>,
    pages: BTreeMap<(VolumeId, u32), PagesAt>,
    segments: Vec<ObjectsAt>,
    packs: Vec<ObjectsAt>,
    base: Option<Arc<Base>>,
    older_keys: BTreeSet<u32>,
}

/// A root as it was opened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Opened {
    /// The object holds all of it.
    Whole(Root),
    /// It is in leaves, which are to be fetched.
    Leaves(Top),
}

/// Where a page is, as far as an opened root tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageAt {
    /// The root has no such page.
    Nowhere,
    /// There.
    Page(PageRef),
    /// This leaf has the page's place.
    Leaf(LeafRef),
}

impl Opened {
    /// The root contains every entry up to this one, and none after (R4).
    pub fn upto(&self) -> LogId {
        match self {
            Opened::Whole(root) => root.upto,
            Opened::Leaves(top) => top.upto,
        }
    }

    /// The data key that it is sealed under.
    pub fn key_id(&self) -> u32 {
        match self {
            Opened::Whole(root) => root.key_id(),
            Opened::Leaves(top) => top.key_id,
        }
    }

    /// Every data key of the root and of the objects that it names.
    pub fn keys_needed(&self) -> BTreeSet<u32> {
        match self {
            Opened::Whole(root) => root.keys_needed(),
            Opened::Leaves(top) => top.keys_needed(),
        }
    }

    /// The base, which shows where the root and its pages have nothing; `None` if the set is no clone.
    pub fn base(&self) -> Option<&Base> {
        match self {
            Opened::Whole(root) => root.base(),
            Opened::Leaves(top) => top.base(),
        }
    }

    /// Where a page is.
    pub fn page(&self, volume: VolumeId, number: u32) -> PageAt {
        match self {
            Opened::Whole(root) => root.page(volume, number).map_or(PageAt::Nowhere, PageAt::Page),
            Opened::Leaves(top) => top.page(volume, number),
        }
    }

    /// Number of pages. Linear in the number of leaves.
    pub fn page_count(&self) -> u64 {
        match self {
            Opened::Whole(root) => root.page_count(),
            Opened::Leaves(top) => top.pages.values().map(|found| found.pages).sum(),
        }
    }

    /// All leaves of the root; none where it is whole.
    pub fn leaves(&self) -> Vec<LeafRef> {
        match self {
            Opened::Whole(_) => Vec::new(),
            Opened::Leaves(top) => top.leaves().collect(),
        }
    }

    /// The whole root, from the leaves that [`Opened::leaves`] named.
    ///
    /// # Errors
    /// [`MapError::Leaf`] where a leaf is missing, or does not match the top.
    pub fn complete(&self, leaf: impl FnMut(&LeafRef) -> Option<Leaf>) -> Result<Root, MapError> {
        match self {
            Opened::Whole(root) => Ok(root.clone()),
            Opened::Leaves(top) => top.complete(leaf),
        }
    }
}

impl Top {
    /// The data key that it is sealed under.
    pub fn key_id(&self) -> u32 {
        self.key_id
    }

    /// The base, which shows where the root and its pages have nothing; `None` if the set is no clone.
    pub fn base(&self) -> Option<&Base> {
        self.base.as_deref()
    }

    /// Every data key of the root and of the objects that it names.
    pub fn keys_needed(&self) -> BTreeSet<u32> {
        self.older_keys.iter().copied().chain([self.key_id]).collect()
    }

    /// Bytes of all segments in the store, and how many of them are in use.
    pub fn segment_bytes(&self) -> (u64, u64) {
        let sums = self.segments.iter().map(|found| (found.sums.stored_bytes, found.sums.live_bytes));
        sums.fold((0, 0), |sum: (u64, u64), one| (sum.0.saturating_add(one.0), sum.1.saturating_add(one.1)))
    }

    /// As [`Root::lookup`].
    ///
    /// # Panics
    /// As [`Root::lookup`].
    pub fn lookup(&self, page: Option<&Page>, volume: VolumeId, lba: Lba, sectors: Sectors) -> Vec<MapPiece> {
        lookup(self.base(), page, volume, lba, sectors)
    }

    /// Finds the leaf that has a page's place.
    pub fn page(&self, volume: VolumeId, number: u32) -> PageAt {
        let range = number / self.width;
        let found = self.pages.get(&(volume, range));
        found.map_or(PageAt::Nowhere, |found| PageAt::Leaf(self.pages_ref(volume, range, found)))
    }

    fn pages_ref(&self, volume: VolumeId, range: u32, found: &PagesAt) -> LeafRef {
        let of = LeafOf::Pages { volume, first: range * self.width, width: self.width };
        LeafRef { at: found.at, of, key_id: self.key_id }
    }

    /// All leaves of the root.
    pub fn leaves(&self) -> impl Iterator<Item = LeafRef> + '_ {
        let pages = self.pages.iter().map(|((volume, range), found)| self.pages_ref(*volume, *range, found));
        let of = |of| move |found: &ObjectsAt| LeafRef { at: found.at, of, key_id: self.key_id };
        pages.chain(self.segments.iter().map(of(LeafOf::Segments))).chain(self.packs.iter().map(of(LeafOf::Packs)))
    }

    /// Approximate memory in bytes.
    pub fn memory_bytes(&self) -> u64 {
        // Tree nodes are about two thirds full.
        let pages = self.pages.len() * size_of::<((VolumeId, u32), PagesAt)>() * 3 / 2;
        let objects = (self.segments.len() + self.packs.len()) * size_of::<ObjectsAt>();
        (size_of::<Self>() + pages + objects + self.leaf_packs.len() * 84) as u64
    }

    /// Upper bound of the memory for its leaves of pages, in bytes: each page with a pack of its own.
    pub fn leaf_bytes_most(&self) -> u64 {
        let leaf = |found: &PagesAt| PageLeaf::memory_bytes_most(found.pages);
        self.pages.values().map(leaf).fold(0, u64::saturating_add)
    }

    /// The whole root, from the leaves that [`Top::leaves`] named.
    ///
    /// # Errors
    /// [`MapError::Leaf`] where a leaf is missing, or does not match this top.
    pub fn complete(&self, mut leaf: impl FnMut(&LeafRef) -> Option<Leaf>) -> Result<Root, MapError> {
        let mut root = Root { width: self.width, ..Root::new(self.upto) };
        for ((volume, range), found) in &self.pages {
            let leaf = page_leaf(&found.at, found.pages, leaf(&self.pages_ref(*volume, *range, found)))?;
            root.leaves.insert((*volume, *range), PlacedLeaf { at: Some(Box::new(found.at)), leaf });
        }
        self.take_objects(&mut root, leaf)?;
        self.compared(root.compare_packs())?;
        Ok(root)
    }

    /// Reads the leaves of segments and packs into `root`.
    fn take_objects(&self, root: &mut Root, mut leaf: impl FnMut(&LeafRef) -> Option<Leaf>) -> Result<(), MapError> {
        let (mut under, key_id) = (Under::default(), self.key_id);
        for (place, found) in self.segments.iter().enumerate() {
            let Some(Leaf::Segments(leaf)) = leaf(&LeafRef { at: found.at, of: LeafOf::Segments, key_id }) else {
                return Err(wrong(&found.at, "leaves of segments", 0, 1));
            };
            let next = self.segments.get(place + 1).map(|next| next.first);
            take(&mut root.objects.segments, &mut under, found, next, &leaf)
                .map_err(|(w, f, e)| wrong(&found.at, w, f, e))?;
        }
        for (place, found) in self.packs.iter().enumerate() {
            let Some(Leaf::Packs(leaf)) = leaf(&LeafRef { at: found.at, of: LeafOf::Packs, key_id }) else {
                return Err(wrong(&found.at, "leaves of packs", 0, 1));
            };
            let next = self.packs.get(place + 1).map(|next| next.first);
            take(&mut root.objects.packs, &mut under, found, next, &leaf)
                .map_err(|(w, f, e)| wrong(&found.at, w, f, e))?;
        }
        root.base = self.base.clone();
        (root.objects.leaf_packs, root.objects.under) = (self.leaf_packs.clone(), under);
        let found = root.under.keys();
        if let Some(at) = self.segments.first().or(self.packs.first())
            && found != self.older_keys
        {
            return Err(wrong(
                &at.at,
                "older data keys in all leaves",
                found.len() as u64,
                self.older_keys.len() as u64,
            ));
        }
        root.objects.opened_under(key_id).map_err(|error| MapError::Wire { what: "leaf", error })
    }

    /// Turns a mismatch in the counts of packs into an error of this root.
    fn compared(&self, counts: Result<(), (&'static str, u64, u64)>) -> Result<(), MapError> {
        let at = self.packs.first().map(|found| found.at).or(self.pages.values().next().map(|found| found.at));
        match (at, counts) {
            (Some(at), Err((what, found, expected))) => Err(wrong(&at, what, found, expected)),
            _ => Ok(()),
        }
    }
}

fn wrong(at: &PageRef, what: &'static str, found: u64, expected: u64) -> MapError {
    MapError::Leaf { object: at.object, number: at.number, what, found, expected }
}

/// A leaf of pages, after comparing it with the root's entry of it.
fn page_leaf(at: &PageRef, pages: u64, leaf: Option<Leaf>) -> Result<Arc<PageLeaf>, MapError> {
    let Some(Leaf::Pages(leaf)) = leaf else { return Err(wrong(at, "leaves of pages", 0, 1)) };
    if leaf.len() as u64 != pages {
        return Err(wrong(at, "pages", leaf.len() as u64, pages));
    }
    Ok(leaf)
}

/// Adds a leaf of objects to the root's table, after comparing it with the top's entry of it.
fn take<V: Known>(
    table: &mut Table<V>,
    under: &mut Under,
    at: &ObjectsAt,
    next: Option<ObjectId>,
    leaf: &ObjectLeaf<V>,
) -> Result<(), (&'static str, u64, u64)> {
    let table_leaf = TableLeaf::new(Some(at.at), leaf.entries.clone());
    let sums = table_leaf.summary().sums;
    let pairs = [
        ("objects", sums.objects, at.sums.objects),
        ("stored bytes of its objects", sums.stored_bytes, at.sums.stored_bytes),
        ("live bytes of its objects", sums.live_bytes, at.sums.live_bytes),
        ("as the lowest share of its objects", sums.lowest, at.sums.lowest),
    ];
    if let Some(wrong) = pairs.into_iter().find(|(_, found, expected)| found != expected) {
        return Err(wrong);
    }
    let (first, last) = (leaf.entries.first().map(|(id, _)| *id), leaf.entries.last().map(|(id, _)| *id));
    if first != Some(at.first) || next.is_some_and(|next| last >= Some(next)) {
        return Err(("objects in their place", 0, sums.objects));
    }
    for (object, key) in leaf.older.iter() {
        under.list(*object, *key);
    }
    table.push(table_leaf);
    Ok(())
}

/// Reads the places of leaves: each names a pack of the list.
struct Places {
    packs: Vec<ObjectId>,
    before: u64,
}

impl Places {
    fn read(&mut self, reader: &mut Reader<'_>) -> Result<PageRef, WireError> {
        let at = reader.at();
        let Some(most) = self.packs.len().checked_sub(1) else {
            return Err(WireError::Range { field: "pack of a leaf", at, found: 0, least: 1, most: 0 });
        };
        self.before = reader.step("pack of a leaf", self.before, 0, most as u64)?;
        let number = reader.number("number in the pack", 0, PACK_NUMBER_MAX.into())?;
        let offset = reader.number("offset in the pack", 0, u32::MAX.into())?;
        let raw_len = reader.number("bytes before sealing", 1, PAGE_BYTES_MAX as u64)?;
        let sealed_len = raw_len + TAG_BYTES as u64;
        if offset + sealed_len > u32::MAX.into() {
            let most = u64::from(u32::MAX) - sealed_len;
            return Err(WireError::Range { field: "offset in the pack", at, found: offset, least: 0, most });
        }
        Ok(PageRef {
            object: self.packs[self.before as usize],
            number: number as u32,
            offset: offset as u32,
            sealed_len: sealed_len as u32,
            raw_len: raw_len as u32,
        })
    }
}

impl Top {
    /// Whether the bytes are a top, as opposed to a whole root.
    pub(super) fn is_one(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Decodes a top. `key_id`: the data key that it was sealed under.
    ///
    /// # Errors
    /// [`MapError`] for anything out of order or of bounds (MAP-M2).
    pub fn decode(bytes: &[u8], key_id: u32) -> Result<Self, MapError> {
        Self::decode_wire(bytes, key_id).map_err(|error| MapError::Wire { what: "top of a root", error })
    }

    fn decode_wire(bytes: &[u8], key_id: u32) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        reader.magic("magic and version of the root", MAGIC)?;
        let term = Term(reader.number("term", 0, u64::MAX)?);
        let index = LogIndex(reader.number("index", 0, u64::MAX)?);
        let width = reader.number("pages of a leaf", 1, u64::from(PAGE_NUMBER_MAX) + 1)? as u32;
        let count = reader.count("count of packs of leaves", OBJECT_WIRE_BYTES_MIN + 1, u64::MAX)?;
        let mut places = Places { packs: Vec::with_capacity(count), before: 0 };
        let (mut leaf_packs, mut before) = (BTreeMap::new(), NO_OBJECT);
        for place in 0..count {
            before = read_next_object(&mut reader, before, place)?;
            places.packs.push(before);
            leaf_packs.insert(before, reader.number("stored bytes of a pack of leaves", 1, i64::MAX as u64)?);
        }
        let pages = read_page_leaves(&mut reader, &mut places, width)?;
        let segments = read_object_leaves(&mut reader, &mut places)?;
        let packs = read_object_leaves(&mut reader, &mut places)?;
        let base = match reader.number("whether there is a base", 0, 1)? {
            0 => None,
            _ => Some(Arc::new(Base::read(&mut reader)?)),
        };
        let count = reader.count("count of older data keys", 1, u32::MAX.into())?;
        let (mut older_keys, mut key) = (BTreeSet::new(), 0);
        for _ in 0..count {
            let most = u64::from(key_id).saturating_sub(1);
            key = reader.step("older data key", key, key + 1, most)?;
            older_keys.insert(key as u32);
        }
        reader.end()?;
        let upto = LogId { term, index };
        Ok(Self { upto, width, key_id, leaf_packs, pages, segments, packs, base, older_keys })
    }
}

fn read_page_leaves(
    reader: &mut Reader<'_>,
    places: &mut Places,
    width: u32,
) -> Result<BTreeMap<(VolumeId, u32), PagesAt>, WireError> {
    let count = reader.count("count of leaves of pages", PAGES_WIRE_BYTES_MIN, u64::MAX)?;
    let last_range = u64::from(PAGE_NUMBER_MAX / width);
    let mut pages = BTreeMap::new();
    // The volume of the leaf before, the range behind that leaf, and the number of volumes so far.
    let (mut volume, mut next, mut volumes) = (0, 0, 0);
    for place in 0..count {
        let at = reader.at();
        let found = reader.step("volume of a leaf", volume, volume, u32::MAX.into())?;
        let head = reader.number("ranges left out", 0, 2 * last_range + 1)?;
        // The volume is encoded twice, so that a volume cannot appear again later.
        let same = place > 0 && found == volume;
        if same != (head & 1 == 1) {
            return Err(WireError::Range { field: "volume of a leaf", at, found, least: volume + 1, most: volume });
        }
        if !same {
            (next, volumes) = (0, volumes + 1);
        }
        volume = found;
        let range = next + (head >> 1);
        if range > last_range || volumes > VOLUMES_PER_SET_MAX {
            return Err(WireError::Range { field: "range of a leaf", at, found: range, least: next, most: last_range });
        }
        let pages_in = reader.number("pages in a leaf", 1, width.into())?;
        let found = PagesAt { pages: pages_in, at: places.read(reader)? };
        pages.insert((VolumeId(volume as u32), range as u32), found);
        next = range + 1;
    }
    Ok(pages)
}

fn read_object_leaves(reader: &mut Reader<'_>, places: &mut Places) -> Result<Vec<ObjectsAt>, WireError> {
    let count = reader.count("count of leaves of objects", OBJECTS_WIRE_BYTES_MIN, u64::MAX)?;
    let (mut leaves, mut before) = (Vec::with_capacity(count), NO_OBJECT);
    for place in 0..count {
        before = read_next_object(reader, before, place)?;
        let sums = Sums::read(reader)?;
        leaves.push(ObjectsAt { first: before, sums, at: places.read(reader)? });
    }
    Ok(leaves)
}

#[cfg(test)]
mod tests;
