//! Leaves: what a large root consists of beside its top (ADR 0034). One lists the pages of a range of numbers, or some of the segments, or of the packs.
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
//!   of both:      count of those under an older data key than the leaf, then each:  place in the leaf (step from the one before)  key
//! ```

use super::root::{put_pages, read_next_object, read_pages};
use super::under::Under;
use super::{
    MapError, NO_OBJECT, OBJECT_WIRE_BYTES_MIN, PAGE_NUMBER_MAX, PackUse, PageRef, SegmentUse, page_numbers, put_object,
};
use crate::wire::{self, Reader, WireError};
use holdfast_seal::{ObjectOpener, Part};
use holdfast_types::{Lba, ObjectId, SECTOR_BYTES, Sectors, VolumeId};
use std::collections::BTreeSet;
use std::sync::Arc;

const MAGIC: &[u8] = b"HFL\x01";

/// How a root is divided into leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeafShape {
    /// Pages that one leaf covers. A change of one page writes its leaf anew, and each leaf takes a line of the top.
    pub pages: u32,
    /// Segments, or packs, of one leaf at most.
    pub objects: usize,
    /// Packs that the leaves of one root are in at most, give or take those that one checkpoint fills: they are retired by one entry
    /// ([`holdfast_control::set::RETIRE_OBJECTS_MAX`]), and each takes a line of the top.
    pub packs: usize,
    /// A root that takes no more bytes than about these is written whole, without leaves.
    pub whole_bytes: u64,
}

const _: () = assert!(LeafShape::DEFAULT.packs * 2 < holdfast_control::set::RETIRE_OBJECTS_MAX);

impl LeafShape {
    /// 4 GiB of a volume; about as many bytes for each kind of leaf; and whole as long as a root is not longer than a top of some 10 TiB.
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
    /// What of it is bound into its seal.
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
    /// What it must be.
    pub of: LeafOf,
    /// The data key that it is under: its root's own (UNDER-U3).
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

/// What is known of some objects, sorted, with the data keys of those that are under an older one than the leaf.
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
    /// Every pack that a page is in, and possibly some that none is any more. Each once.
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
        // Places in the list are made by `intern` alone, and the list shrinks in `forget_packs` alone.
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

    /// Those from page `first` to page `last`, that one too, in order.
    pub(super) fn range(&self, first: u32, last: u32) -> impl Iterator<Item = (u32, PageRef)> + '_ {
        let from = self.lines.partition_point(|line| line.page < first);
        let to = self.lines.partition_point(|line| line.page <= last);
        self.lines[from..to.max(from)].iter().map(|line| self.place(line))
    }

    /// Those that are in any of these packs, in order. Each pack of the list is asked for once, and no page where there is none.
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

    /// The pack's place in the list. Pages of one checkpoint arrive one after the other, so the last one is nearly always it.
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

    /// Takes no more memory than what it says needs: after pages were replaced, most of the list may be packs that none of them is in any more.
    pub(super) fn settle(&mut self) {
        self.forget_packs();
        self.packs.shrink_to_fit();
        self.lines.shrink_to_fit();
    }

    /// What one of so many pages takes at most, once it is settled.
    pub(super) fn memory_bytes_most(pages: u64) -> u64 {
        size_of::<Self>() as u64 + pages.saturating_mul((size_of::<ObjectId>() + size_of::<Line>()) as u64)
    }

    pub(super) fn memory_bytes(&self) -> usize {
        size_of::<Self>() + self.packs.capacity() * size_of::<ObjectId>() + self.lines.capacity() * size_of::<Line>()
    }
}

/// What a root knows of an object, as leaves have it.
pub(super) trait Known: Copy + PartialEq {
    /// What it takes at least, in bytes.
    const WIRE_BYTES_MIN: usize;
    fn put(&self, out: &mut Vec<u8>);
    fn read(reader: &mut Reader<'_>) -> Result<Self, WireError>;
    /// Stored bytes; of them those in use; how much was stored, and how much of it is in use, in a unit of its own.
    fn sums(&self) -> (u64, u64, u64, u64);
    /// Whether nothing of it is in use: a root that is sealed names no such object.
    fn is_dead(&self) -> bool;

    /// The share that is in use, in parts of [`IN_USE_OF`]; `None` where nothing is out of use.
    fn in_use(&self) -> Option<u64> {
        let (_, _, whole, part) = self.sums();
        (part < whole).then(|| share(IN_USE_OF, part, whole))
    }
}

/// In what parts objects are told apart by what is in use of them: whole numbers, so that every run chooses alike.
pub(super) const IN_USE_OF: u64 = 1 << 32;
const _: () = assert!(IN_USE_OF.is_multiple_of(LOWEST_OF));

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

/// `bytes` × `part` / `whole`.
fn share(bytes: u64, part: u64, whole: u64) -> u64 {
    (u128::from(bytes) * u128::from(part) / u128::from(whole.max(1))) as u64
}

/// In what parts [`Sums::lowest`] counts.
pub const LOWEST_OF: u64 = 1 << 16;

/// What a top says of the objects that one of its leaves lists: enough to tell what is stored and in use, and in which leaves there is something to collect,
/// without reading any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sums {
    /// How many there are.
    pub objects: u64,
    /// Their bytes in the store, as far as they are known.
    pub stored_bytes: u64,
    /// Those of them that are in use, each object's taken in proportion.
    pub live_bytes: u64,
    /// The share that is in use of the object with the least, in parts of [`LOWEST_OF`]; all of them where nothing is out of use.
    pub lowest: u64,
}

impl Sums {
    pub(super) fn of<V: Known>(entries: &[(ObjectId, V)]) -> Self {
        let mut sums = Self { objects: entries.len() as u64, stored_bytes: 0, live_bytes: 0, lowest: LOWEST_OF };
        for (_, known) in entries {
            let (stored, live, whole, part) = known.sums();
            sums.stored_bytes = sums.stored_bytes.saturating_add(stored);
            sums.live_bytes = sums.live_bytes.saturating_add(live);
            if part < whole {
                sums.lowest = sums.lowest.min(share(LOWEST_OF, part, whole));
            }
        }
        sums
    }

    pub(super) fn put(&self, out: &mut Vec<u8>) {
        wire::put(out, self.objects);
        wire::put(out, self.stored_bytes);
        wire::put(out, self.live_bytes);
        wire::put(out, self.lowest);
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Result<Self, WireError> {
        Ok(Self {
            objects: reader.number("objects of a leaf", 1, u64::from(u32::MAX))?,
            stored_bytes: reader.number("stored bytes of a leaf", 0, u64::MAX)?,
            live_bytes: reader.number("live bytes of a leaf", 0, u64::MAX)?,
            lowest: reader.number("lowest share in use of a leaf", 0, LOWEST_OF)?,
        })
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
    /// Reads what a leaf that must be this one was encoded as.
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

    /// About how much memory it takes in bytes: the weight for a cache.
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
/// [`MapError`] unless the bytes are what was sealed as just this leaf at just this place, under its root's data key.
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
