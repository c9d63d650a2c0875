//! Root of the map: the place of each page, and how much of each segment is in use.
//!
//! In memory a root consists of leaves, which it shares with roots that have the same ones: pages by ranges of numbers,
//! segments and packs by id. It is written as one object (`whole`) or, if large, as a top that names leaves
//! (`super::top`).

use super::base::Base;
use super::leaf::{LeafShape, PageLeaf};
use super::objects::{Objects, PackUse, SegmentUse};
use super::places::PageRef;
use super::table::Table;
use super::{Live, MapPiece, Page, page_number, page_numbers, push_below};
use holdfast_types::{Lba, LogId, ObjectId, SECTOR_BYTES, Sectors, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

mod whole;

/// Sums over a root.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RootStats {
    /// Volumes with anything in the store.
    pub volumes: u64,
    /// Pages.
    pub pages: u64,
    /// Sealed bytes of all pages.
    pub page_bytes: u64,
    /// Page packs with at least one page in use.
    pub packs: u64,
    /// Segments that hold at least one live sector.
    pub segments: u64,
    /// Bytes of these segments in the store.
    pub stored_bytes: u64,
    /// Raw bytes sealed in these segments.
    pub raw_bytes: u64,
    /// Raw bytes of them that volumes still use.
    pub live_bytes: u64,
}

/// Approximate bytes of a page's entry in a root that is written whole.
pub(super) const PAGE_ENTRY_BYTES: u64 = 12;

/// The pages of a range of numbers.
#[derive(Clone, Debug)]
pub(super) struct PlacedLeaf {
    /// Where the leaf was written; `None` if it changed since or was never written. Boxed: there may be as many leaves
    /// as pages.
    pub at: Option<Box<PageRef>>,
    /// Never empty.
    pub leaf: Arc<PageLeaf>,
}

/// A checkpoint's map: the objects that it names (it dereferences to them), and the places of pages. Cloning is cheap:
/// unchanged parts are shared.
#[derive(Clone, Debug)]
pub struct Root {
    /// The root contains every entry up to this one, and none after (R4).
    pub upto: LogId,
    /// Pages that one leaf covers.
    pub(super) width: u32,
    /// By volume, and number of the range.
    pub(super) leaves: BTreeMap<(VolumeId, u32), PlacedLeaf>,
    /// The named objects. Changed only in this module and its siblings.
    pub(super) objects: Objects,
    /// The base, which shows where this root and its pages have nothing.
    pub(super) base: Option<Arc<Base>>,
}

impl Deref for Root {
    type Target = Objects;

    fn deref(&self) -> &Objects {
        &self.objects
    }
}

impl Default for Root {
    fn default() -> Self {
        Self {
            upto: LogId::default(),
            width: LeafShape::DEFAULT.pages,
            leaves: BTreeMap::new(),
            objects: Objects::default(),
            base: None,
        }
    }
}

/// Equal if the content is equal, however it is divided and wherever its leaves were written.
impl PartialEq for Root {
    fn eq(&self, other: &Self) -> bool {
        self.upto == other.upto
            && self.pages().eq(other.pages())
            && self.segments().eq(other.segments())
            && self.pack_uses() == other.pack_uses()
            && self.base == other.base
            && self.older_without_leaves() == other.older_without_leaves()
            && self.key_id() == other.key_id()
    }
}

impl Eq for Root {}

impl Root {
    /// A root that maps nothing.
    pub fn new(upto: LogId) -> Self {
        Self { upto, ..Self::default() }
    }

    /// A root that shows its base and nothing else.
    pub fn over(upto: LogId, base: Base) -> Self {
        Self { upto, base: Some(Arc::new(base)), ..Self::default() }
    }

    /// The named objects, without the places of pages: for a caller that keeps only these.
    pub fn objects(&self) -> &Objects {
        &self.objects
    }

    /// The base, which shows where this root and its pages have nothing; `None` if the set is no clone.
    pub fn base(&self) -> Option<&Base> {
        self.base.as_deref()
    }

    /// Where the visible part of the base ends within the page; `None` if none is visible: unmapped sectors read as
    /// zeroes.
    pub fn below(&self, volume: VolumeId, number: u32) -> Option<Lba> {
        self.base()?.shows(volume, number)
    }

    /// Unmaps a range: the base is hidden in the pages that it covers (BASE-O1). Returns the pages at its ends; these
    /// have to hide the rest themselves.
    pub fn hide(&mut self, volume: VolumeId, lba: Lba, sectors: Sectors) -> Vec<u32> {
        self.base.as_mut().map_or_else(Vec::new, |base| Arc::make_mut(base).hide(volume, lba, sectors))
    }

    /// The pieces of a range within one page; `page` is the root's page there, opened.
    ///
    /// # Panics
    /// R9: when the range is not within the page, or `page` is another page.
    pub fn lookup(&self, page: Option<&Page>, volume: VolumeId, lba: Lba, sectors: Sectors) -> Vec<MapPiece> {
        lookup(self.base(), page, volume, lba, sectors)
    }

    /// Place of a page; `None` where all of it reads as zeroes.
    pub fn page(&self, volume: VolumeId, number: u32) -> Option<PageRef> {
        self.leaves.get(&(volume, number / self.width))?.leaf.page(number)
    }

    /// The existing pages of a range, in order: those that a large unmapping has to visit.
    pub fn pages_in(&self, volume: VolumeId, lba: Lba, sectors: Sectors) -> impl Iterator<Item = (u32, PageRef)> + '_ {
        let numbers = page_numbers(lba, sectors);
        let (first, last) = (*numbers.start(), *numbers.end());
        let ranges = (volume, first / self.width)..=(volume, last / self.width);
        let ranges = (!numbers.is_empty()).then_some(ranges);
        let leaves = ranges.into_iter().flat_map(move |ranges| self.leaves.range(ranges));
        leaves.flat_map(move |(_, placed)| placed.leaf.range(first, last))
    }

    /// All pages, sorted by volume and number.
    pub fn pages(&self) -> impl Iterator<Item = (VolumeId, u32, PageRef)> + '_ {
        self.leaves
            .iter()
            .flat_map(|((volume, _), placed)| placed.leaf.iter().map(move |(number, page)| (*volume, number, page)))
    }

    /// The pages in any of these packs, as [`Root::pages`]. Cost: the pack list of each leaf, and the pages of leaves
    /// with one of these packs.
    pub fn pages_in_packs(&self, packs: &BTreeSet<ObjectId>) -> impl Iterator<Item = (VolumeId, u32, PageRef)> {
        let leaves = (!packs.is_empty()).then(|| self.leaves.iter());
        leaves.into_iter().flatten().flat_map(move |((volume, _), placed)| {
            placed.leaf.in_packs(packs).map(move |(number, page)| (*volume, number, page))
        })
    }

    /// Number of pages. Linear in the number of leaves.
    pub fn page_count(&self) -> u64 {
        self.leaves.values().map(|placed| placed.leaf.len() as u64).sum()
    }

    /// The pages from this one on, as [`Root::pages`].
    pub fn pages_from(&self, volume: VolumeId, number: u32) -> impl Iterator<Item = (VolumeId, u32, PageRef)> + '_ {
        let leaves = self.leaves.range((volume, number / self.width)..);
        let pages =
            leaves.flat_map(|((of, _), placed)| placed.leaf.iter().map(move |(number, page)| (*of, number, page)));
        pages.skip_while(move |(of, found, _)| *of == volume && *found < number)
    }

    /// Notes the length of a page pack, once it is known.
    pub fn add_pack(&mut self, object: ObjectId, stored_bytes: u64) {
        let usage = self.packs.get(object).unwrap_or_default();
        self.objects.packs.set(object, PackUse { stored_bytes, ..usage });
    }

    /// Notes a segment of this checkpoint, so that pages may refer to it.
    pub fn add_segment(&mut self, object: ObjectId, stored_bytes: u64, raw_sectors: Sectors) {
        self.objects.segments.set(object, SegmentUse { stored_bytes, raw_sectors, live_sectors: Sectors(0) });
    }

    /// Replaces a page. `page`: place of the new one, `None` if it maps nothing any more. `before` and `after`:
    /// [`super::Page::live`] of the old page (empty if there was none) and of the new one.
    ///
    /// # Errors
    /// [`LiveError`] when the live sectors of a segment would be negative or more than it holds, or when the segment is
    /// unknown (MAP-M4): the page was not this root's. Nothing is changed then.
    pub fn replace_page(
        &mut self,
        volume: VolumeId,
        number: u32,
        page: Option<PageRef>,
        before: &Live,
        after: &Live,
    ) -> Result<(), LiveError> {
        let mut changed = Vec::new();
        for object in before.keys().chain(after.keys().filter(|object| !before.contains_key(object))) {
            let at = |live: &Live| live.get(object).map_or(0, |sectors| sectors.0);
            let (gone, new) = (at(before), at(after));
            let usage = self.segments.get(*object);
            let live = usage.map(|usage| usage.live_sectors.0);
            let known = live.and_then(|live| live.checked_sub(gone)).map(|live| live + new);
            match (usage, known) {
                // Most segments of a page stay the same, and change no leaf.
                (Some(usage), Some(live)) if live <= usage.raw_sectors.0 => {
                    changed.push((*object, SegmentUse { live_sectors: Sectors(live), ..usage }));
                }
                _ => return Err(LiveError { volume, number, object: *object, found: usage, gone, new }),
            }
        }
        for (object, usage) in changed {
            self.objects.segments.set(object, usage);
        }
        self.set_page(volume, number, page);
        Ok(())
    }

    /// MAP-M3: compares the count of each pack with the pages in it. The counts are stored, so checkpoints inherit
    /// them: a count that is too low would get a needed pack deleted. Linear in the number of pages.
    ///
    /// # Errors
    /// For the first wrong pack: what was counted, the number from the pages (found), and the noted number (expected).
    pub(super) fn compare_packs(&self) -> Result<(), (&'static str, u64, u64)> {
        let mut counts = PackCounts::default();
        self.leaves.values().for_each(|placed| counts.add(&placed.leaf));
        counts.compare(&self.packs)
    }

    /// Sets the place of a page and updates the counts of its packs.
    ///
    /// # Panics
    /// MAP-M3: when the count of a pack is lower than the page in it: the pack would be deleted too early.
    pub(super) fn set_page(&mut self, volume: VolumeId, number: u32, page: Option<PageRef>) {
        let old = self.page(volume, number);
        if old == page {
            return;
        }
        if let Some(old) = old {
            let usage = self.packs.get(old.object).unwrap_or_default();
            let left = (usage.live_bytes.checked_sub(old.sealed_len.into()), usage.live_pages.checked_sub(1));
            let (Some(live_bytes), Some(live_pages)) = left else {
                panic!("MAP-M3: {usage:?} is counted in pack {}, expected the page at {old:?} among it", old.object)
            };
            self.objects.packs.set(old.object, PackUse { live_bytes, live_pages, ..usage });
        }
        let key = (volume, number / self.width);
        let Some(page) = page else {
            if let Some(placed) = self.leaves.get_mut(&key) {
                Arc::make_mut(&mut placed.leaf).remove(number);
                placed.at = None;
                if placed.leaf.len() == 0 {
                    self.leaves.remove(&key);
                }
            }
            return;
        };
        let usage = self.packs.get(page.object).unwrap_or_default();
        let live_bytes = usage.live_bytes + u64::from(page.sealed_len);
        self.objects.packs.set(page.object, PackUse { live_bytes, live_pages: usage.live_pages + 1, ..usage });
        let placed = self.leaves.entry(key).or_insert_with(|| PlacedLeaf { at: None, leaf: Arc::default() });
        Arc::make_mut(&mut placed.leaf).set(number, &page);
        placed.at = None;
    }

    /// Removes segments without live sectors and returns them: the root no longer names them (MAP-M3). Also forgets
    /// packs without pages. The last step before a root or its leaves are sealed.
    pub fn drop_dead_segments(&mut self) -> Vec<ObjectId> {
        self.objects.packs.drop_dead();
        let dead = self.objects.segments.drop_dead();
        self.objects.forget_keys_of_others();
        dead
    }

    /// The sums. Linear in the number of leaves, segments and packs.
    pub fn stats(&self) -> RootStats {
        let volumes: BTreeSet<VolumeId> = self.leaves.keys().map(|(volume, _)| *volume).collect();
        let mut stats = RootStats {
            volumes: volumes.len() as u64,
            pages: self.page_count(),
            segments: self.segments.len() as u64,
            ..RootStats::default()
        };
        let add = |sum: &mut u64, bytes: u64| *sum = sum.saturating_add(bytes);
        for (_, usage) in self.page_packs() {
            stats.packs += 1;
            add(&mut stats.page_bytes, usage.live_bytes);
        }
        for (_, usage) in self.segments() {
            add(&mut stats.stored_bytes, usage.stored_bytes);
            add(&mut stats.raw_bytes, usage.raw_sectors.0 * SECTOR_BYTES);
            add(&mut stats.live_bytes, usage.live_sectors.0 * SECTOR_BYTES);
        }
        stats
    }

    /// Approximate bytes if written whole. Linear in the number of leaves.
    pub fn whole_bytes(&self) -> u64 {
        self.page_count() * PAGE_ENTRY_BYTES + self.segments.len() as u64 * 30 + self.packs.len() as u64 * 24
    }

    /// Approximate memory in bytes, shared parts included. Linear in the number of leaves.
    pub fn memory_bytes(&self) -> u64 {
        // Tree nodes are about two thirds full.
        let frame = size_of::<((VolumeId, u32), PlacedLeaf)>() * 3 / 2 + size_of::<PageRef>();
        let pages = self.leaves.values().map(|placed| (frame + placed.leaf.memory_bytes()) as u64);
        pages.sum::<u64>() + self.objects.memory_bytes()
    }
}

/// Pages in each pack: their number, and their sealed bytes.
#[derive(Clone, Debug, Default)]
pub(super) struct PackCounts {
    named: BTreeMap<ObjectId, (u64, u64)>,
}

impl PackCounts {
    /// Counts the pages of a leaf: each leaf of a root once.
    pub(super) fn add(&mut self, leaf: &PageLeaf) {
        for (_, page) in leaf.iter() {
            let (pages, bytes) = self.named.entry(page.object).or_default();
            (*pages, *bytes) = (*pages + 1, *bytes + u64::from(page.sealed_len));
        }
    }

    /// For the first wrong pack: what was counted, the number from the pages (found), and the noted number (expected).
    pub(super) fn compare(mut self, packs: &Table<PackUse>) -> Result<(), (&'static str, u64, u64)> {
        for (object, usage) in packs.iter() {
            let (pages, bytes) = self.named.remove(&object).unwrap_or_default();
            if pages != usage.live_pages {
                return Err(("pages in a pack", pages, usage.live_pages));
            }
            if bytes != usage.live_bytes {
                return Err(("bytes of pages in a pack", bytes, usage.live_bytes));
            }
        }
        match self.named.values().next() {
            Some((pages, _)) => Err(("pages in a pack that is not listed", *pages, 0)),
            None => Ok(()),
        }
    }
}

/// The pieces of a range within one page, over the visible base; `page` is the root's page there, opened.
pub(super) fn lookup(
    base: Option<&Base>,
    page: Option<&Page>,
    volume: VolumeId,
    lba: Lba,
    sectors: Sectors,
) -> Vec<MapPiece> {
    let number = page_number(lba);
    let end = base.and_then(|base| base.shows(volume, number));
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

/// A page's live sectors contradict the root's entry of a segment (MAP-M4).
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
    /// The root's entry of the segment.
    pub found: Option<SegmentUse>,
    /// Live sectors of the old page in it.
    pub gone: u64,
    /// Live sectors of the new page in it.
    pub new: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_types::{MemberId, Term};

    #[test]
    fn a_page_that_refers_to_what_it_did_leaves_the_segments_as_they_were_written() {
        let object = |random| ObjectId { term: Term(1), member: MemberId(1), boot: 1, random };
        let place = |pack, offset| PageRef { object: object(pack), number: 0, offset, sealed_len: 60, raw_len: 44 };
        let (volume, live) = (VolumeId(1), Live::from([(object(1), Sectors(8)), (object(2), Sectors(3))]));
        let mut root = Root::default();
        for segment in [1, 2] {
            root.add_segment(object(segment), 8192, Sectors(16));
        }
        root.replace_page(volume, 0, Some(place(10, 104)), &Live::new(), &live).expect("a first page");
        root.objects.segments.leaves_mut().for_each(|leaf| leaf.at = Some(place(12, 104)));
        root.replace_page(volume, 0, Some(place(11, 104)), &live, &live).expect("the same elsewhere");
        assert!(root.segments.leaves().all(|(_, leaf)| leaf.at.is_some()), "expected no segment changed");
        // MAP-M4 is held all the same.
        let more = Live::from([(object(1), Sectors(9))]);
        assert!(
            root.replace_page(volume, 0, None, &more, &more).is_err(),
            "expected an error: more live sectors than the segment has"
        );
        root.replace_page(volume, 0, None, &live, &Live::new()).expect("gone");
        assert!(root.segments().all(|(_, usage)| usage.live_sectors == Sectors(0)));
    }
}
