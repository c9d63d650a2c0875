//! The root of the map: which page is where, and how much of each segment is still in use.
//!
//! Encoded, version 2, or 3 where the set has a base (numbers are varints, see `wire`):
//!
//! ```text
//!   "HFR" version(1)  term and index of the log entry that it covers everything up to
//!   count of segments, then each, sorted:  id (steps)  stored bytes  raw sectors  live sectors
//!   count of page packs, then each, sorted:  id (steps)  stored bytes, 0 where they are not known
//!   count of volumes, then each, sorted:  id (step from the one before)  count of pages, then each, sorted:
//!     2 × pages left out before it, + 1 if it stands right behind the page before, in the same pack
//!     [place in the list of packs (step), number, offset]   unless it does
//!     bytes before sealing
//!   version 3: the base (see `base`)
//!   version 4, while a data key is changed: whether there is a base, then it; which data keys objects are under (see `under`)
//! ```

use super::base::Base;
use super::under::Under;
use super::{
    Live, MapError, MapPiece, NO_OBJECT, OBJECT_WIRE_BYTES_MIN, PAGE_BYTES_MAX, PAGE_NUMBER_MAX, Page, page_number,
    page_numbers, push_below, put_object, read_object,
};
use crate::wire::{self, Reader, WireError};
use holdfast_control::set::{StoredKind, StoredObject};
use holdfast_seal::{PAGE_NUMBER_MAX as PACK_NUMBER_MAX, TAG_BYTES};
use holdfast_types::limits::VOLUMES_PER_SET_MAX;
use holdfast_types::{Lba, LogId, LogIndex, ObjectId, SECTOR_BYTES, Sectors, Term, VolumeId};
use imbl::OrdMap;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

const MAGIC: &[u8] = b"HFR\x02";
/// Of a root with a base: those of sets that are no clones have none.
const MAGIC_BASE: &[u8] = b"HFR\x03";
/// Of a root that names what is under an older data key than itself; from feature level 5 on.
const MAGIC_KEYS: &[u8] = b"HFR\x04";
/// A page's gap and length, where it stands right behind the one before.
const PAGE_WIRE_BYTES_MIN: usize = 2;
/// A volume's id and count of pages.
const VOLUME_WIRE_BYTES_MIN: usize = 2;
/// A pack's id and its bytes.
const PACK_WIRE_BYTES_MIN: usize = OBJECT_WIRE_BYTES_MIN + 1;
/// A segment's id and three numbers.
const SEGMENT_WIRE_BYTES_MIN: usize = OBJECT_WIRE_BYTES_MIN + 3;

/// Where a page is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct PageRef {
    /// The page pack.
    pub object: ObjectId,
    /// The page's number in the pack: its nonce.
    pub number: u32,
    /// Where its sealed bytes begin in the pack, in bytes.
    pub offset: u32,
    /// How many sealed bytes there are.
    pub sealed_len: u32,
    /// Length when opened, in bytes.
    pub raw_len: u32,
}

impl PageRef {
    /// The bytes of the pack to read.
    pub fn range(&self) -> std::ops::Range<u64> {
        u64::from(self.offset)..u64::from(self.offset) + u64::from(self.sealed_len)
    }
}

/// What a root knows of a segment: enough to judge what collecting it would free.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SegmentUse {
    /// Length of the object in bytes.
    pub stored_bytes: u64,
    /// Sectors that were sealed into it.
    pub raw_sectors: Sectors,
    /// Sectors that pages of this root refer to (M4).
    pub live_sectors: Sectors,
}

/// What a root knows of a page pack.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackUse {
    /// Length of the object in bytes; 0 where it is not known.
    pub stored_bytes: u64,
    /// Sealed bytes of the pages that the root names in it.
    pub live_bytes: u64,
    /// How many these are.
    pub live_pages: u64,
}

/// Sums over a root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RootStats {
    /// Volumes of which anything is in the store.
    pub volumes: u64,
    /// Pages.
    pub pages: u64,
    /// Sealed bytes of all pages.
    pub page_bytes: u64,
    /// Page packs that hold at least one of the pages.
    pub packs: u64,
    /// Segments that hold at least one live sector.
    pub segments: u64,
    /// Bytes of these segments in the store.
    pub stored_bytes: u64,
    /// Raw bytes that were sealed into them.
    pub raw_bytes: u64,
    /// Raw bytes of them that volumes still show.
    pub live_bytes: u64,
}

/// A checkpoint's map. Cloning is cheap: what did not change is shared.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Root {
    /// The root shows every entry up to this one, and none after (R4).
    pub upto: LogId,
    volumes: BTreeMap<VolumeId, OrdMap<u32, PageRef>>,
    segments: OrdMap<ObjectId, SegmentUse>,
    /// Lengths of page packs.
    pack_bytes: OrdMap<ObjectId, u64>,
    /// What shows where this root and its pages say nothing.
    base: Option<Arc<Base>>,
    /// Which data keys it is made of.
    pub(super) under: Under,
}

impl Root {
    /// A root that maps nothing.
    pub fn new(upto: LogId) -> Self {
        Self { upto, ..Self::default() }
    }

    /// A root that shows what its base does.
    pub fn over(upto: LogId, base: Base) -> Self {
        Self { upto, base: Some(Arc::new(base)), ..Self::default() }
    }

    /// What shows where this root and its pages say nothing; `None` in a set that is no clone.
    pub fn base(&self) -> Option<&Base> {
        self.base.as_deref()
    }

    /// Where what shows of the base within a page ends; `None` where nothing of it does: what the page does not map reads as zeroes.
    pub fn below(&self, volume: VolumeId, number: u32) -> Option<Lba> {
        self.base()?.shows(volume, number)
    }

    /// An unmapping: of pages that it covers the base shows nothing any more (O1). Answers those at its ends that have to say the rest themselves.
    pub fn hide(&mut self, volume: VolumeId, lba: Lba, sectors: Sectors) -> Vec<u32> {
        self.base.as_mut().map_or_else(Vec::new, |base| Arc::make_mut(base).hide(volume, lba, sectors))
    }

    /// What a range within one page is made of; `page` is what this root has there, opened.
    ///
    /// # Panics
    /// R9: when the range is not within the page, or it is another page.
    pub fn lookup(&self, page: Option<&Page>, volume: VolumeId, lba: Lba, sectors: Sectors) -> Vec<MapPiece> {
        let number = page_number(lba);
        let end = self.below(volume, number);
        match (page, end) {
            (Some(page), _) if (page.volume(), page.number()) != (volume, number) => {
                panic!("R9: page {} of {} is not page {number} of {volume}", page.number(), page.volume())
            }
            (Some(page), Some(end)) => page.lookup_over(lba, sectors, end),
            (Some(page), None) => page.lookup(lba, sectors),
            (None, end) => {
                let mut pieces = Vec::new();
                push_below(&mut pieces, lba, Lba(lba.0 + sectors.0), end.unwrap_or(Lba(0)));
                pieces
            }
        }
    }

    /// Where a page is; `None` where all of it reads as zeroes.
    pub fn page(&self, volume: VolumeId, number: u32) -> Option<&PageRef> {
        self.volumes.get(&volume)?.get(&number)
    }

    /// The pages that there are of a range, in order: what a large unmapping has to visit.
    pub fn pages_in(&self, volume: VolumeId, lba: Lba, sectors: Sectors) -> impl Iterator<Item = (u32, PageRef)> + '_ {
        let numbers = page_numbers(lba, sectors);
        let pages = self.volumes.get(&volume).filter(|_| !numbers.is_empty());
        pages.into_iter().flat_map(move |pages| pages.range(numbers.clone())).map(|(number, page)| (*number, *page))
    }

    /// All pages, sorted by volume and number.
    pub fn pages(&self) -> impl Iterator<Item = (VolumeId, u32, PageRef)> + '_ {
        self.volumes.iter().flat_map(|(volume, pages)| pages.iter().map(|(number, page)| (*volume, *number, *page)))
    }

    /// The pages from this one on, as [`Root::pages`] has them.
    pub fn pages_from(&self, volume: VolumeId, number: u32) -> impl Iterator<Item = (VolumeId, u32, PageRef)> + '_ {
        self.volumes.range(volume..).flat_map(move |(of, pages)| {
            let first = if *of == volume { number } else { 0 };
            pages.range(first..).map(move |(number, page)| (*of, *number, *page))
        })
    }

    /// All segments that the root names, sorted.
    pub fn segments(&self) -> impl Iterator<Item = (ObjectId, SegmentUse)> + '_ {
        self.segments.iter().map(|(object, usage)| (*object, *usage))
    }

    /// All page packs that the root names, sorted.
    pub fn packs(&self) -> BTreeSet<ObjectId> {
        self.pages().map(|(_, _, page)| page.object).collect()
    }

    /// How much of each page pack the root still names, sorted.
    pub fn pack_uses(&self) -> BTreeMap<ObjectId, PackUse> {
        let mut uses: BTreeMap<ObjectId, PackUse> = BTreeMap::new();
        for (_, _, page) in self.pages() {
            let usage = uses.entry(page.object).or_default();
            usage.live_bytes += u64::from(page.sealed_len);
            usage.live_pages += 1;
        }
        for (object, usage) in &mut uses {
            usage.stored_bytes = self.pack_bytes.get(object).copied().unwrap_or(0);
        }
        uses
    }

    /// Every object that the root names, without the one that it is itself in (M3): packs, then segments.
    pub fn names(&self) -> impl Iterator<Item = StoredObject> + '_ {
        let packs = self.packs().into_iter().map(|object| StoredObject { kind: StoredKind::Pages, object });
        packs.chain(self.segments.keys().map(|object| StoredObject { kind: StoredKind::Segment, object: *object }))
    }

    /// Notes the length of a page pack, once it is known.
    pub fn add_pack(&mut self, object: ObjectId, stored_bytes: u64) {
        self.pack_bytes.insert(object, stored_bytes);
    }

    /// Notes a segment of this checkpoint, so that pages may refer to it.
    pub fn add_segment(&mut self, object: ObjectId, stored_bytes: u64, raw_sectors: Sectors) {
        self.segments.insert(object, SegmentUse { stored_bytes, raw_sectors, live_sectors: Sectors(0) });
    }

    /// Replaces a page: `page` is where the new one is, `None` when it maps nothing any more; `before` and `after` are
    /// what [`super::Page::live`] said of the old one (empty if there was none) and of the new one.
    ///
    /// # Errors
    /// [`LiveError`] when a segment would have fewer than no live sectors, or more than it holds, or is not known (M4): the
    /// page was not that root's. Nothing is changed then.
    pub fn replace_page(
        &mut self,
        volume: VolumeId,
        number: u32,
        page: Option<PageRef>,
        before: &Live,
        after: &Live,
    ) -> Result<(), LiveError> {
        let mut segments = self.segments.clone();
        for object in before.keys().chain(after.keys().filter(|object| !before.contains_key(object))) {
            let at = |live: &Live| live.get(object).map_or(0, |sectors| sectors.0);
            let (gone, new) = (at(before), at(after));
            let usage = segments.get(object).copied();
            let live = usage.map(|usage| usage.live_sectors.0);
            let known = live.and_then(|live| live.checked_sub(gone)).map(|live| live + new);
            match (usage, known) {
                (Some(usage), Some(live)) if live <= usage.raw_sectors.0 => {
                    // Most of what a page refers to stays. What is not set stays shared with the root before: a page of random writes refers to hundreds of segments.
                    if gone != new {
                        segments.insert(*object, SegmentUse { live_sectors: Sectors(live), ..usage });
                    }
                }
                _ => return Err(LiveError { volume, number, object: *object, found: usage, gone, new }),
            }
        }
        self.segments = segments;
        let pages = self.volumes.entry(volume).or_default();
        match page {
            Some(page) => pages.insert(number, page),
            None => pages.remove(&number),
        };
        if pages.is_empty() {
            self.volumes.remove(&volume);
        }
        Ok(())
    }

    /// Takes out the segments without a live sector, and says which: the root names them no more (M3). Forgets the lengths of
    /// packs without a page as well. The last step before a root is sealed.
    pub fn drop_dead_segments(&mut self) -> Vec<ObjectId> {
        let packs = self.packs();
        self.pack_bytes = self.pack_bytes.iter().filter(|(o, _)| packs.contains(*o)).map(|(o, b)| (*o, *b)).collect();
        let dead = self.segments().filter(|(_, usage)| usage.live_sectors.0 == 0).map(|(object, _)| object);
        let dead: Vec<ObjectId> = dead.collect();
        for object in &dead {
            self.segments.remove(object);
        }
        self.forget_keys_of_others();
        dead
    }

    /// The sums, in O(pages + segments).
    pub fn stats(&self) -> RootStats {
        let mut stats = RootStats {
            volumes: self.volumes.len() as u64,
            packs: self.packs().len() as u64,
            segments: self.segments.len() as u64,
            ..RootStats::default()
        };
        for (_, _, page) in self.pages() {
            stats.pages += 1;
            stats.page_bytes += u64::from(page.sealed_len);
        }
        for (_, usage) in self.segments() {
            stats.stored_bytes += usage.stored_bytes;
            stats.raw_bytes += usage.raw_sectors.0 * SECTOR_BYTES;
            stats.live_bytes += usage.live_sectors.0 * SECTOR_BYTES;
        }
        stats
    }

    /// The root's bytes, before sealing.
    pub fn encode(&self) -> Vec<u8> {
        let packs: Vec<ObjectId> = self.packs().into_iter().collect();
        let mut out = Vec::with_capacity(64 + self.segments.len() * 30 + packs.len() * 20);
        let magic = match (self.under.lists_any(), self.base.is_some()) {
            (true, _) => MAGIC_KEYS,
            (false, true) => MAGIC_BASE,
            (false, false) => MAGIC,
        };
        out.extend_from_slice(magic);
        wire::put(&mut out, self.upto.term.0);
        wire::put(&mut out, self.upto.index.0);
        wire::put(&mut out, self.segments.len() as u64);
        let mut before = NO_OBJECT;
        for (object, usage) in self.segments() {
            put_object(&mut out, before, object);
            wire::put(&mut out, usage.stored_bytes);
            wire::put(&mut out, usage.raw_sectors.0);
            wire::put(&mut out, usage.live_sectors.0);
            before = object;
        }
        wire::put(&mut out, packs.len() as u64);
        before = NO_OBJECT;
        for object in &packs {
            put_object(&mut out, before, *object);
            wire::put(&mut out, self.pack_bytes.get(object).copied().unwrap_or(0));
            before = *object;
        }
        wire::put(&mut out, self.volumes.len() as u64);
        let mut volume_before = 0;
        for (volume, pages) in &self.volumes {
            wire::put_step(&mut out, volume_before, volume.0.into());
            volume_before = volume.0.into();
            put_pages(&mut out, &packs, pages);
        }
        if self.under.lists_any() {
            wire::put(&mut out, self.base.is_some().into());
        }
        if let Some(base) = &self.base {
            base.put(&mut out);
        }
        if self.under.lists_any() {
            self.under.put(&mut out);
        }
        out
    }

    /// Reads what [`Root::encode`] wrote.
    ///
    /// # Errors
    /// [`MapError`] for anything out of order or of bounds (M2).
    pub fn decode(bytes: &[u8]) -> Result<Self, MapError> {
        Self::decode_wire(bytes).map_err(|error| MapError::Wire { what: "root", error })
    }

    fn decode_wire(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader::new(bytes);
        let field = "magic and version of the root";
        let keys = reader.magic(field, MAGIC_KEYS).is_ok();
        let over = !keys && reader.magic(field, MAGIC_BASE).is_ok();
        if !keys && !over {
            reader.magic(field, MAGIC)?;
        }
        let term = Term(reader.number("term", 0, u64::MAX)?);
        let index = LogIndex(reader.number("index", 0, u64::MAX)?);
        let mut root = Self::new(LogId { term, index });
        let count = reader.count("count of segments", SEGMENT_WIRE_BYTES_MIN, u64::MAX)?;
        let mut before = NO_OBJECT;
        for place in 0..count {
            let object = read_next_object(&mut reader, before, place)?;
            let stored_bytes = reader.number("stored bytes", 0, i64::MAX as u64)?;
            let raw = reader.number("raw sectors", 0, i64::MAX as u64 / SECTOR_BYTES)?;
            let live = reader.number("live sectors", 0, raw)?;
            let usage = SegmentUse { stored_bytes, raw_sectors: Sectors(raw), live_sectors: Sectors(live) };
            root.segments.insert(object, usage);
            before = object;
        }
        let count = reader.count("count of page packs", PACK_WIRE_BYTES_MIN, u64::MAX)?;
        let mut packs = Vec::with_capacity(count);
        before = NO_OBJECT;
        for place in 0..count {
            before = read_next_object(&mut reader, before, place)?;
            packs.push(before);
            let stored_bytes = reader.number("stored bytes of a page pack", 0, i64::MAX as u64)?;
            if stored_bytes > 0 {
                root.pack_bytes.insert(before, stored_bytes);
            }
        }
        let count = reader.count("count of volumes", VOLUME_WIRE_BYTES_MIN, VOLUMES_PER_SET_MAX as u64)?;
        let mut volume = 0;
        for place in 0..count {
            let least = if place == 0 { 0 } else { volume + 1 };
            volume = reader.step("volume", volume, least, u32::MAX.into())?;
            let pages = read_pages(&mut reader, &packs)?;
            root.volumes.insert(VolumeId(volume as u32), pages);
        }
        if over || keys && reader.number("whether there is a base", 0, 1)? == 1 {
            root.base = Some(Arc::new(Base::read(&mut reader)?));
        }
        if keys {
            root.under = Under::read(&mut reader)?;
        }
        reader.end()?;
        root.forget_keys_of_others();
        // A pack that no page is in says nothing, and is not written again.
        let named = root.packs();
        root.pack_bytes = root.pack_bytes.iter().filter(|(o, _)| named.contains(*o)).map(|(o, b)| (*o, *b)).collect();
        Ok(root)
    }
}

/// A page's live sectors do not fit what the root knows of a segment (M4).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "page {number} of {volume}: found segment {object} as {found:?}, expected one that can lose {gone} live sectors and gain {new}"
)]
pub struct LiveError {
    /// Volume of the page.
    pub volume: VolumeId,
    /// Number of the page.
    pub number: u32,
    /// The segment.
    pub object: ObjectId,
    /// What the root knows of it.
    pub found: Option<SegmentUse>,
    /// Live sectors that the old page had in it.
    pub gone: u64,
    /// Live sectors that the new page has in it.
    pub new: u64,
}

fn put_pages(out: &mut Vec<u8>, packs: &[ObjectId], pages: &OrdMap<u32, PageRef>) {
    wire::put(out, pages.len() as u64);
    let mut next_number = 0;
    let mut last: Option<PageRef> = None;
    let mut pack_before = 0;
    for (number, page) in pages {
        let follows = last.is_some_and(|last| {
            last.object == page.object
                && last.number.checked_add(1) == Some(page.number)
                && last.offset.checked_add(last.sealed_len) == Some(page.offset)
        });
        wire::put(out, u64::from(number - next_number) << 1 | u64::from(follows));
        if !follows {
            // `packs` is sorted and was made of these very pages.
            let pack = packs.binary_search(&page.object).unwrap_or(0) as u64;
            wire::put_step(out, pack_before, pack);
            wire::put(out, page.number.into());
            wire::put(out, page.offset.into());
            pack_before = pack;
        }
        wire::put(out, page.raw_len.into());
        next_number = number + 1;
        last = Some(*page);
    }
}

fn read_pages(reader: &mut Reader<'_>, packs: &[ObjectId]) -> Result<OrdMap<u32, PageRef>, WireError> {
    let count = reader.count("count of pages", PAGE_WIRE_BYTES_MIN, u64::from(PAGE_NUMBER_MAX) + 1)?;
    let mut pages = OrdMap::new();
    let mut next_number = 0u64;
    let mut last: Option<PageRef> = None;
    let mut pack = 0;
    for place in 0..count {
        let at = reader.at();
        let field = "pages left out";
        let head = reader.number(field, 0, 2 * u64::from(PAGE_NUMBER_MAX) + 1)?;
        let number = next_number + (head >> 1);
        if number > PAGE_NUMBER_MAX.into() || (place == 0 && head & 1 == 1) {
            let most = 2 * u64::from(PAGE_NUMBER_MAX).saturating_sub(next_number);
            return Err(WireError::Range { field, at, found: head, least: 0, most });
        }
        let (pack_number, offset) = match last.filter(|_| head & 1 == 1) {
            Some(last) => (u64::from(last.number) + 1, u64::from(last.offset) + u64::from(last.sealed_len)),
            None => {
                let Some(most) = packs.len().checked_sub(1) else {
                    return Err(WireError::Range { field: "page pack", at, found: 0, least: 1, most: 0 });
                };
                pack = reader.step("page pack", pack, 0, most as u64)?;
                let number = reader.number("number in the pack", 0, PACK_NUMBER_MAX.into())?;
                (number, reader.number("offset in the pack", 0, u32::MAX.into())?)
            }
        };
        let raw_len = reader.number("bytes before sealing", 1, PAGE_BYTES_MAX as u64)?;
        let sealed_len = raw_len + TAG_BYTES as u64;
        if pack_number > PACK_NUMBER_MAX.into() {
            let most = PACK_NUMBER_MAX.into();
            return Err(WireError::Range { field: "number in the pack", at, found: pack_number, least: 0, most });
        }
        if offset + sealed_len > u32::MAX.into() {
            let most = u64::from(u32::MAX) - sealed_len;
            return Err(WireError::Range { field: "offset in the pack", at, found: offset, least: 0, most });
        }
        let page = PageRef {
            object: packs[pack as usize],
            number: pack_number as u32,
            offset: offset as u32,
            sealed_len: sealed_len as u32,
            raw_len: raw_len as u32,
        };
        pages.insert(number as u32, page);
        next_number = number + 1;
        last = Some(page);
    }
    Ok(pages)
}

/// The next id of a sorted list, of which each is there once.
pub(super) fn read_next_object(reader: &mut Reader<'_>, before: ObjectId, place: usize) -> Result<ObjectId, WireError> {
    let at = reader.at();
    let object = read_object(reader, before)?;
    if place > 0 && object <= before {
        let found = place as u64;
        return Err(WireError::Range {
            field: "place in a sorted list of objects",
            at,
            found,
            least: 0,
            most: found - 1,
        });
    }
    Ok(object)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_types::MemberId;

    #[test]
    fn a_page_that_refers_to_what_it_did_leaves_the_segments_shared() {
        let object = |random| ObjectId { term: Term(1), member: MemberId(1), boot: 1, random };
        let place = |pack, offset| PageRef { object: object(pack), number: 0, offset, sealed_len: 60, raw_len: 44 };
        let (volume, live) = (VolumeId(1), Live::from([(object(1), Sectors(8)), (object(2), Sectors(3))]));
        let mut root = Root::default();
        for segment in [1, 2] {
            root.add_segment(object(segment), 8192, Sectors(16));
        }
        root.replace_page(volume, 0, Some(place(10, 104)), &Live::new(), &live).expect("a first page");
        let before = root.clone();
        root.replace_page(volume, 0, Some(place(11, 104)), &live, &live).expect("the same elsewhere");
        assert!(root.segments.ptr_eq(&before.segments), "nothing changed of any segment");
        // M4 is held all the same.
        let more = Live::from([(object(1), Sectors(9))]);
        assert!(root.replace_page(volume, 0, None, &more, &more).is_err(), "more than there was");
        root.replace_page(volume, 0, None, &live, &Live::new()).expect("gone");
        assert!(root.segments().all(|(_, usage)| usage.live_sectors == Sectors(0)));
    }
}
