//! Leaves of a large root (ADR 0034). A leaf lists the pages of a range of numbers, or some of the segments or packs.
//!
//! Encoded, version 1 (numbers are varints, see `wire`):
//!
//! ```text
//!   "HFL" version(1)  kind(1): 1 pages, 2 segments, 3 packs
//!   of pages:     volume  first page that it covers  how many it covers
//!                 count of packs, then each, sorted:  id (steps)
//!                 pages, as in a root that is written whole (see `root`), from the first page that it covers on
//!   of segments:  count, then each, sorted:  id (steps)  stored bytes  raw sectors  live sectors
//!   of packs:     count, then each, sorted:  id (steps)  stored bytes, 0 where they are not known  live bytes  live pages
//!   both kinds of objects end with:  count of objects under an older data key than the leaf, then each:  place in the leaf (step from the one before)  key
//! ```

use super::objects::{PackUse, SegmentUse};
use super::places::{PageRef, put_pages, read_next_object, read_pages};
use super::sums::{Known, share};
use super::under::Under;
use super::{MapError, NO_OBJECT, OBJECT_WIRE_BYTES_MIN, PAGE_NUMBER_MAX, page_numbers, put_object};
use crate::wire::{self, Reader, WireError};
use holdfast_seal::{ObjectOpener, Part};
use holdfast_types::{Lba, ObjectId, SECTOR_BYTES, Sectors, VolumeId};
use std::collections::BTreeSet;
use std::sync::Arc;

const MAGIC: &[u8] = b"HFL\x01";

/// How a root is divided into leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafShape {
    /// Pages that one leaf covers. Changing one page rewrites its leaf; each leaf takes a line of the top.
    pub pages: u32,
    /// Most segments, or packs, in one leaf.
    pub objects: usize,
    /// Limit on the packs that hold the leaves of one root (one checkpoint may exceed it by the packs that it fills).
    /// One entry retires them all ([`holdfast_control::set::RETIRE_OBJECTS_MAX`]), and each takes a line of the top.
    pub packs: usize,
    /// A root of up to about this many bytes is written whole, without leaves.
    pub whole_bytes: u64,
}

const _: () = assert!(LeafShape::DEFAULT.packs * 2 < holdfast_control::set::RETIRE_OBJECTS_MAX);

impl LeafShape {
    /// 4 GiB of a volume; about equally many bytes for each kind of leaf; whole until a root is longer than a top of
    /// some 10 TiB.
    pub const DEFAULT: Self = Self { pages: 128, objects: 64, packs: 1024, whole_bytes: 64 << 10 };
}

/// What a leaf lists.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LeafOf {
    /// Where pages are.
    Pages {
        /// Volume.
        volume: VolumeId,
        /// First page that it covers.
        first: u32,
        /// How many it covers.
        width: u32,
    },
    /// Segments.
    Segments,
    /// Packs that pages are in.
    Packs,
}

impl LeafOf {
    /// The kind as it is bound into the seal.
    pub(super) fn part(self, number: u32) -> Part {
        let (kind, volume, page) = match self {
            LeafOf::Pages { volume, first, .. } => (1, volume, first),
            LeafOf::Segments => (2, VolumeId(0), 0),
            LeafOf::Packs => (3, VolumeId(0), 0),
        };
        Part::Leaf { number, kind, volume, page }
    }

    /// Its kind's number in formats.
    pub(super) fn kind(self) -> u8 {
        match self {
            LeafOf::Pages { .. } => 1,
            LeafOf::Segments => 2,
            LeafOf::Packs => 3,
        }
    }
}

/// A leaf that a top names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafRef {
    /// Where it is.
    pub at: PageRef,
    /// What it lists.
    pub of: LeafOf,
    /// Its data key: the one of its root (UNDER-U3).
    pub key_id: u32,
}

/// A leaf, opened. Cheap to clone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Leaf {
    /// Where pages are.
    Pages(Arc<PageLeaf>),
    /// Segments.
    Segments(ObjectLeaf<SegmentUse>),
    /// Packs.
    Packs(ObjectLeaf<PackUse>),
}

/// Entries of some objects, sorted, with the data keys of those under an older key than the leaf's.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectLeaf<V> {
    pub(super) entries: Arc<Vec<(ObjectId, V)>>,
    pub(super) older: Arc<Vec<(ObjectId, u32)>>,
}

/// A page in a leaf: its place in a pack of the leaf's list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Line {
    page: u32,
    pack: u32,
    number: u32,
    offset: u32,
    sealed_len: u32,
    raw_len: u32,
}

const _: () = assert!(size_of::<Line>() == 24);

/// Where the pages of a range are.
#[derive(Clone, Debug, Default)]
pub struct PageLeaf {
    /// Every pack that holds a page, possibly also unused ones. Each once.
    packs: Vec<ObjectId>,
    /// Sorted by page.
    lines: Vec<Line>,
}

/// Leaves are the same when they say the same.
impl PartialEq for PageLeaf {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for PageLeaf {}

impl PageLeaf {
    fn place(&self, line: &Line) -> (u32, PageRef) {
        let Line { page, pack, number, offset, sealed_len, raw_len } = *line;
        // Indexes are made by `intern` only; the list shrinks in `forget_packs` only.
        (page, PageRef { object: self.packs[pack as usize], number, offset, sealed_len, raw_len })
    }

    /// Where a page is.
    pub fn page(&self, page: u32) -> Option<PageRef> {
        let at = self.lines.binary_search_by_key(&page, |line| line.page).ok()?;
        self.lines.get(at).map(|line| self.place(line).1)
    }

    /// All pages that it has, in order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, PageRef)> + '_ {
        self.lines.iter().map(|line| self.place(line))
    }

    /// The pages from `first` to `last` (inclusive), in order.
    pub(super) fn range(&self, first: u32, last: u32) -> impl Iterator<Item = (u32, PageRef)> + '_ {
        let from = self.lines.partition_point(|line| line.page < first);
        let to = self.lines.partition_point(|line| line.page <= last);
        self.lines[from..to.max(from)].iter().map(|line| self.place(line))
    }

    /// The pages in any of these packs, in order. Tests each pack of the list once, and skips the pages if none is
    /// there.
    pub(super) fn in_packs(&self, packs: &BTreeSet<ObjectId>) -> impl Iterator<Item = (u32, PageRef)> {
        let wanted: Vec<bool> = self.packs.iter().map(|pack| packs.contains(pack)).collect();
        let lines = if wanted.contains(&true) { self.lines.as_slice() } else { &[] };
        lines.iter().filter(move |line| wanted[line.pack as usize]).map(|line| self.place(line))
    }

    /// How many pages it has.
    pub(super) fn len(&self) -> usize {
        self.lines.len()
    }

    /// Notes where a page is from now on.
    pub(super) fn set(&mut self, page: u32, at: &PageRef) {
        let pack = self.intern(at.object);
        let PageRef { number, offset, sealed_len, raw_len, .. } = *at;
        let line = Line { page, pack, number, offset, sealed_len, raw_len };
        match self.lines.binary_search_by_key(&page, |line| line.page) {
            Ok(place) => self.lines[place] = line,
            Err(place) => {
                if self.lines.is_empty() {
                    // Where every page is far from the others (MAP-M2).
                    self.lines.reserve_exact(1);
                }
                self.lines.insert(place, line);
            }
        }
    }

    pub(super) fn remove(&mut self, page: u32) {
        if let Ok(place) = self.lines.binary_search_by_key(&page, |line| line.page) {
            self.lines.remove(place);
        }
    }

    /// The pack's index in the list. Pages of one checkpoint arrive together, so it is nearly always the last one.
    fn intern(&mut self, pack: ObjectId) -> u32 {
        if self.packs.len() > 2 * self.lines.len() + 8 {
            self.forget_packs();
        }
        let found = self.packs.iter().rposition(|known| *known == pack);
        found.unwrap_or_else(|| {
            if self.packs.is_empty() {
                self.packs.reserve_exact(1);
            }
            self.packs.push(pack);
            self.packs.len() - 1
        }) as u32
    }

    /// Forgets packs that no page is in.
    fn forget_packs(&mut self) {
        let old = std::mem::take(&mut self.packs);
        let mut moved = vec![None; old.len()];
        for line in &mut self.lines {
            let place = line.pack as usize;
            line.pack = *moved[place].get_or_insert_with(|| {
                self.packs.push(old[place]);
                (self.packs.len() - 1) as u32
            });
        }
    }

    /// Frees unneeded memory: after replacements most packs of the list may be unused.
    pub(super) fn settle(&mut self) {
        self.forget_packs();
        self.packs.shrink_to_fit();
        self.lines.shrink_to_fit();
    }

    /// Upper bound of the memory for `pages` pages, once settled.
    pub(super) fn memory_bytes_most(pages: u64) -> u64 {
        size_of::<Self>() as u64 + pages.saturating_mul((size_of::<ObjectId>() + size_of::<Line>()) as u64)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.packs.capacity() * size_of::<ObjectId>() + self.lines.capacity() * size_of::<Line>()
    }
}

impl Known for SegmentUse {
    const WIRE_BYTES_MIN: usize = 3;

    fn put(&self, out: &mut Vec<u8>) {
        wire::put(out, self.stored_bytes);
        wire::put(out, self.raw_sectors.0);
        wire::put(out, self.live_sectors.0);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let stored_bytes = reader.number("stored bytes", 0, i64::MAX as u64)?;
        let raw = reader.number("raw sectors", 0, i64::MAX as u64 / SECTOR_BYTES)?;
        let live = reader.number("live sectors", 0, raw)?;
        Ok(Self { stored_bytes, raw_sectors: Sectors(raw), live_sectors: Sectors(live) })
    }

    fn sums(&self) -> (u64, u64, u64, u64) {
        let (raw, live) = (self.raw_sectors.0, self.live_sectors.0);
        (self.stored_bytes, share(self.stored_bytes, live, raw), raw, live)
    }

    fn is_dead(&self) -> bool {
        self.live_sectors.0 == 0
    }
}

impl Known for PackUse {
    const WIRE_BYTES_MIN: usize = 3;

    fn put(&self, out: &mut Vec<u8>) {
        wire::put(out, self.stored_bytes);
        wire::put(out, self.live_bytes);
        wire::put(out, self.live_pages);
    }

    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        let stored_bytes = reader.number("stored bytes of a page pack", 0, i64::MAX as u64)?;
        let live_bytes = reader.number("live bytes of a page pack", 0, i64::MAX as u64)?;
        let live_pages = reader.number("live pages of a page pack", 1, u64::from(u32::MAX))?;
        Ok(Self { stored_bytes, live_bytes, live_pages })
    }

    fn sums(&self) -> (u64, u64, u64, u64) {
        (self.stored_bytes, self.live_bytes, self.stored_bytes, self.live_bytes)
    }

    fn is_dead(&self) -> bool {
        self.live_pages == 0
    }
}

/// The bytes of a leaf of pages, before sealing.
pub(super) fn encode_pages(volume: VolumeId, first: u32, width: u32, leaf: &PageLeaf) -> Vec<u8> {
    let mut packs: Vec<ObjectId> = leaf.iter().map(|(_, page)| page.object).collect();
    packs.sort_unstable();
    packs.dedup();
    let mut out = Vec::with_capacity(32 + packs.len() * 24 + leaf.len() * 12);
    out.extend_from_slice(MAGIC);
    out.push(LeafOf::Pages { volume, first, width }.kind());
    wire::put(&mut out, volume.0.into());
    wire::put(&mut out, first.into());
    wire::put(&mut out, width.into());
    wire::put(&mut out, packs.len() as u64);
    let mut before = NO_OBJECT;
    for pack in &packs {
        put_object(&mut out, before, *pack);
        before = *pack;
    }
    put_pages(&mut out, &packs, first, leaf.len(), leaf.iter());
    out
}

/// The bytes of a leaf of segments or packs, before sealing.
pub(super) fn encode_objects<V: Known>(of: LeafOf, entries: &[(ObjectId, V)], under: &Under) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + entries.len() * 32);
    out.extend_from_slice(MAGIC);
    out.push(of.kind());
    wire::put(&mut out, entries.len() as u64);
    let mut before = NO_OBJECT;
    for (object, known) in entries {
        put_object(&mut out, before, *object);
        known.put(&mut out);
        before = *object;
    }
    let older: Vec<(u64, u32)> =
        (0..).zip(entries).filter_map(|(place, (object, _))| Some((place, under.older_of(*object)?))).collect();
    wire::put(&mut out, older.len() as u64);
    let mut before = 0;
    for (place, key) in older {
        wire::put(&mut out, place - before);
        wire::put(&mut out, key.into());
        before = place;
    }
    out
}

impl Leaf {
    /// Decodes a leaf and checks that it is the one in `of`.
    ///
    /// # Errors
    /// [`MapError::Wire`] for anything out of order or of bounds (MAP-M2), or another leaf.
    pub fn decode(of: LeafOf, bytes: &[u8]) -> Result<Self, MapError> {
        Self::decode_wire(of, bytes).map_err(|error| MapError::Wire { what: "leaf", error })
    }

    fn decode_wire(of: LeafOf, bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        reader.magic("magic and version of the leaf", MAGIC)?;
        let (at, expected) = (reader.at(), u64::from(of.kind()));
        let found = u64::from(reader.u8("kind of the leaf")?);
        if found != expected {
            return Err(WireError::Range { field: "kind of the leaf", at, found, least: expected, most: expected });
        }
        let leaf = match of {
            LeafOf::Pages { volume, first, width } => {
                reader.number("volume of the leaf", volume.0.into(), volume.0.into())?;
                reader.number("first page of the leaf", first.into(), first.into())?;
                reader.number("pages that the leaf covers", width.into(), width.into())?;
                let count = reader.count("count of page packs", OBJECT_WIRE_BYTES_MIN, u64::MAX)?;
                let mut packs = Vec::with_capacity(count);
                let mut before = NO_OBJECT;
                for place in 0..count {
                    before = read_next_object(&mut reader, before, place)?;
                    packs.push(before);
                }
                let last = first.saturating_add(width.saturating_sub(1)).min(PAGE_NUMBER_MAX);
                let mut leaf = PageLeaf::default();
                read_pages(&mut reader, &packs, first, last, |page, place| leaf.set(page, &place))?;
                leaf.lines.shrink_to_fit();
                leaf.packs.shrink_to_fit();
                Leaf::Pages(Arc::new(leaf))
            }
            LeafOf::Segments => Leaf::Segments(read_objects(&mut reader)?),
            LeafOf::Packs => Leaf::Packs(read_objects(&mut reader)?),
        };
        reader.end()?;
        Ok(leaf)
    }

    /// Approximate memory in bytes, as the weight in a cache.
    pub fn memory_bytes(&self) -> usize {
        match self {
            Leaf::Pages(leaf) => leaf.memory_bytes(),
            Leaf::Segments(leaf) => leaf.memory_bytes(),
            Leaf::Packs(leaf) => leaf.memory_bytes(),
        }
    }

    /// Where a page is, in a leaf of pages.
    pub fn page(&self, number: u32) -> Option<PageRef> {
        match self {
            Leaf::Pages(leaf) => leaf.page(number),
            Leaf::Segments(_) | Leaf::Packs(_) => None,
        }
    }

    /// The pages of a range that a leaf of pages has, in order.
    pub fn pages_in(&self, lba: Lba, sectors: Sectors) -> Vec<(u32, PageRef)> {
        let numbers = page_numbers(lba, sectors);
        match self {
            Leaf::Pages(leaf) if !numbers.is_empty() => leaf.range(*numbers.start(), *numbers.end()).collect(),
            _ => Vec::new(),
        }
    }

    /// The pages of a leaf of pages that are in any of these packs, in order.
    pub fn pages_in_packs(&self, packs: &BTreeSet<ObjectId>) -> Vec<(u32, PageRef)> {
        match self {
            Leaf::Pages(leaf) => leaf.in_packs(packs).collect(),
            Leaf::Segments(_) | Leaf::Packs(_) => Vec::new(),
        }
    }
}

impl<V> ObjectLeaf<V> {
    fn memory_bytes(&self) -> usize {
        size_of::<Self>()
            + self.entries.capacity() * size_of::<(ObjectId, V)>()
            + self.older.capacity() * size_of::<(ObjectId, u32)>()
    }
}

fn read_objects<V: Known>(reader: &mut Reader<'_>) -> Result<ObjectLeaf<V>, WireError> {
    let count = reader.count("count of objects", OBJECT_WIRE_BYTES_MIN + V::WIRE_BYTES_MIN, u64::MAX)?;
    let mut entries = Vec::with_capacity(count);
    let mut before = NO_OBJECT;
    for place in 0..count {
        before = read_next_object(reader, before, place)?;
        entries.push((before, V::read(reader)?));
    }
    let count = reader.count("objects under older keys", 2, entries.len() as u64)?;
    let (mut older, mut at) = (Vec::with_capacity(count), 0);
    for place in 0..count {
        let most = (entries.len() as u64 - 1).saturating_sub(at);
        at += reader.number("place of an object under an older key", u64::from(place > 0), most)?;
        older.push((entries[at as usize].0, reader.number("data key of an object", 1, u32::MAX.into())? as u32));
    }
    Ok(ObjectLeaf { entries: Arc::new(entries), older: Arc::new(older) })
}

/// Opens one leaf that was range-read from its pack.
///
/// # Errors
/// [`MapError`] unless the bytes were sealed as this leaf at this place, under its root's data key.
pub fn open_leaf(opener: &ObjectOpener, leaf: &LeafRef, sealed: &[u8]) -> Result<Leaf, MapError> {
    let LeafRef { at, of, key_id } = leaf;
    let length =
        |what, found, expected| MapError::Length { object: opener.object(), number: at.number, what, found, expected };
    if sealed.len() != at.sealed_len as usize {
        return Err(length("sealed bytes of a leaf", sealed.len(), at.sealed_len as usize));
    }
    let plain = opener.open_part_by(*key_id, of.part(at.number), sealed)?;
    if plain.len() != at.raw_len as usize {
        return Err(length("bytes of a leaf", plain.len(), at.raw_len as usize));
    }
    Leaf::decode(*of, &plain)
}
