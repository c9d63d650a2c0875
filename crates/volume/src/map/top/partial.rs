//! A root without some of its leaves of pages: its memory is bounded, whatever the size of the volume (ADR 0034).
//!
//! LEAF-L4  Only an unchanged leaf of pages may be away: its place and page count are known, and its pages are
//!     counted in the objects. A lookup in it returns the leaf to fetch, and a change in it panics: treating "away"
//!     as "empty" would return zeroes instead of data.
//! LEAF-L5  A checkpoint replaces pages in order. A leaf that it has passed changes no more; if memory is above the
//!     bound, it is sealed at once and dropped. Beyond the bound, memory holds one leaf and the pack in progress.
//! LEAF-L6  Leaves may be dropped only after all leaves of the root were read once, so that the counts of packs are
//!     known to match the pages (MAP-M3).

use super::write::{LeafPack, Writer, packs_to_leave};
use super::{PageAt, PagesAt, Top, page_leaf, wrong};
use crate::map::leaf::{Leaf, LeafOf, LeafRef, LeafShape};
use crate::map::root::{PAGE_ENTRY_BYTES, PackCounts, PlacedLeaf};
use crate::map::{
    Base, Live, LiveError, MapError, MapPiece, Objects, PAGE_NUMBER_MAX, Page, PageRef, Root, page_numbers,
};
use holdfast_seal::ObjectSealer;
use holdfast_types::{Lba, LogId, ObjectId, Sectors, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;
use std::sync::Arc;

/// Key of a leaf of pages: its volume, and the number of its range.
type Key = (VolumeId, u32);

/// A root of which leaves of pages may be away. Dereferences to the objects that it names. Operations on all pages
/// need a [`Root`].
#[derive(Clone, Debug)]
pub struct PartialRoot {
    /// The root without the leaves that are away.
    pub(super) here: Root,
    /// No leaf is in both (LEAF-L4).
    away: BTreeMap<Key, PagesAt>,
    /// Memory of the leaves of pages that are here.
    bytes: u64,
}

impl Deref for PartialRoot {
    type Target = Objects;

    fn deref(&self) -> &Objects {
        &self.here.objects
    }
}

/// A root that is being checked: each leaf of pages is read once before any may be away (LEAF-L6).
#[derive(Clone, Debug)]
pub struct Comparing {
    top: Arc<Top>,
    root: PartialRoot,
    left: BTreeSet<Key>,
    counts: PackCounts,
}

/// State while one checkpoint's leaves are written.
pub struct LeafWriting<F> {
    writer: Writer<F>,
    shape: LeafShape,
    /// The leaf of the last replaced page.
    at: Option<Key>,
    /// Packs whose leaves are to be moved.
    leaving: BTreeSet<ObjectId>,
    /// Packs that were handed to the caller, with their lengths.
    made: Vec<(ObjectId, u64)>,
}

impl<F: FnMut() -> ObjectSealer> LeafWriting<F> {
    /// Packs that are full. They must be in the store before the root is.
    pub fn take_packs(&mut self) -> Vec<LeafPack> {
        let packs = std::mem::take(&mut self.writer.done);
        self.made.extend(packs.iter().map(|pack| (pack.object, pack.body.len() as u64)));
        packs
    }
}

impl Top {
    /// Begins the check of a root in leaves. `leaf` returns the leaves of segments and packs, which
    /// [`Top::object_leaves`] names.
    ///
    /// # Errors
    /// [`MapError::Leaf`] where a leaf is missing, or does not match this top.
    pub fn compare(self: Arc<Self>, leaf: impl FnMut(&LeafRef) -> Option<Leaf>) -> Result<Comparing, MapError> {
        let mut here = Root { width: self.width, ..Root::new(self.upto) };
        self.take_objects(&mut here, leaf)?;
        let (away, left) = (self.pages.clone(), self.pages.keys().copied().collect());
        Ok(Comparing { top: self, root: PartialRoot { here, away, bytes: 0 }, left, counts: PackCounts::default() })
    }

    /// The leaves of segments and packs.
    pub fn object_leaves(&self) -> impl Iterator<Item = LeafRef> + '_ {
        self.leaves().filter(|leaf| !matches!(leaf.of, LeafOf::Pages { .. }))
    }
}

impl Comparing {
    /// The leaves that were not checked yet, in order.
    pub fn left(&self) -> impl Iterator<Item = LeafRef> + '_ {
        self.left.iter().filter_map(|key| Some(self.top.pages_ref(key.0, key.1, self.top.pages.get(key)?)))
    }

    /// Checks a leaf. The caller need not keep it. A leaf that was checked before is not counted again.
    ///
    /// # Errors
    /// [`MapError::Leaf`] where it does not match the top.
    pub fn take(&mut self, leaf: &LeafRef, found: Leaf) -> Result<(), MapError> {
        let Some((key, at)) = self.root.away_at(leaf) else {
            return Err(wrong(&leaf.at, "leaves of pages named there", 0, 1));
        };
        let pages = page_leaf(&at.at, at.pages, Some(found))?;
        if self.left.remove(&key) {
            self.counts.add(&pages);
        }
        Ok(())
    }

    /// The root, with all of its leaves of pages away.
    ///
    /// # Errors
    /// [`MapError::Leaf`] where a leaf was not checked, or the counts of packs do not match the pages (MAP-M3).
    pub fn finish(self) -> Result<PartialRoot, MapError> {
        if let Some(leaf) = self.left().next() {
            return Err(wrong(&leaf.at, "leaves of pages", 0, 1));
        }
        self.top.compared(self.counts.compare(&self.root.packs))?;
        Ok(self.root)
    }
}

impl From<Root> for PartialRoot {
    /// A root of which nothing is away.
    fn from(here: Root) -> Self {
        let mut all = Self { here, away: BTreeMap::new(), bytes: 0 };
        all.count_bytes();
        all
    }
}

impl PartialRoot {
    /// The root contains every entry up to this one, and none after (R4).
    pub fn upto(&self) -> LogId {
        self.here.upto
    }

    /// The root, if nothing is away.
    pub fn whole(&self) -> Option<&Root> {
        self.away.is_empty().then_some(&self.here)
    }

    /// The root, if nothing is away.
    ///
    /// # Errors
    /// Returns itself if a leaf is away.
    pub fn into_whole(self) -> Result<Root, Box<Self>> {
        if self.away.is_empty() { Ok(self.here) } else { Err(Box::new(self)) }
    }

    /// The base, which shows where the root has nothing; `None` if the set is no clone.
    pub fn base(&self) -> Option<&Base> {
        self.here.base()
    }

    /// As [`Root::below`].
    pub fn below(&self, volume: VolumeId, number: u32) -> Option<Lba> {
        self.here.below(volume, number)
    }

    /// As [`Root::hide`].
    pub fn hide(&mut self, volume: VolumeId, lba: Lba, sectors: Sectors) -> Vec<u32> {
        self.here.hide(volume, lba, sectors)
    }

    /// As [`Root::lookup`].
    ///
    /// # Panics
    /// As [`Root::lookup`].
    pub fn lookup(&self, page: Option<&Page>, volume: VolumeId, lba: Lba, sectors: Sectors) -> Vec<MapPiece> {
        self.here.lookup(page, volume, lba, sectors)
    }

    /// The place of a page, or the leaf that has it (LEAF-L4).
    pub fn page(&self, volume: VolumeId, number: u32) -> PageAt {
        let key = self.key(volume, number);
        match self.away.get(&key) {
            Some(found) => PageAt::Leaf(self.leaf_ref(key, found.at)),
            None => self.here.page(volume, number).map_or(PageAt::Nowhere, PageAt::Page),
        }
    }

    /// The pages of a range from leaves that are here, as [`Root::pages_in`]; for the rest see
    /// [`PartialRoot::away_in`].
    pub fn pages_here_in(&self, volume: VolumeId, lba: Lba, sectors: Sectors) -> impl Iterator<Item = (u32, PageRef)> {
        self.here.pages_in(volume, lba, sectors)
    }

    /// The leaves that are away and may have pages of a range, in order.
    pub fn away_in(&self, volume: VolumeId, lba: Lba, sectors: Sectors) -> Vec<LeafRef> {
        let numbers = page_numbers(lba, sectors);
        if numbers.is_empty() {
            return Vec::new();
        }
        let keys = self.key(volume, *numbers.start())..=self.key(volume, *numbers.end());
        self.away.range(keys).map(|(key, found)| self.leaf_ref(*key, found.at)).collect()
    }

    /// The pages in any of these packs from leaves that are here; for the rest see [`PartialRoot::away`].
    pub fn pages_here_in_packs(&self, packs: &BTreeSet<ObjectId>) -> impl Iterator<Item = (VolumeId, u32, PageRef)> {
        self.here.pages_in_packs(packs)
    }

    /// As [`Root::written`], for the leaves that are here.
    pub fn written(&self) -> BTreeMap<(ObjectId, u32), Leaf> {
        self.here.written()
    }

    /// All leaves that are away, in order.
    pub fn away(&self) -> impl Iterator<Item = LeafRef> + '_ {
        self.away.iter().map(|(key, found)| self.leaf_ref(*key, found.at))
    }

    /// Number of pages. Linear in the number of leaves.
    pub fn page_count(&self) -> u64 {
        self.here.page_count() + self.away.values().map(|found| found.pages).sum::<u64>()
    }

    /// How many of them a volume has.
    pub fn pages_of(&self, volume: VolumeId) -> u64 {
        let all = (volume, 0)..=(volume, u32::MAX);
        let here: u64 = self.here.leaves.range(all.clone()).map(|(_, placed)| placed.leaf.len() as u64).sum();
        here + self.away.range(all).map(|(_, found)| found.pages).sum::<u64>()
    }

    /// Approximate bytes if written whole. Linear in the number of leaves.
    pub fn whole_bytes(&self) -> u64 {
        let away: u64 = self.away.values().map(|found| found.pages).sum();
        self.here.whole_bytes() + away * PAGE_ENTRY_BYTES
    }

    /// Approximate memory in bytes, shared parts included. Linear in the number of leaves.
    pub fn memory_bytes(&self) -> u64 {
        // Tree nodes are about two thirds full.
        self.here.memory_bytes() + (self.away.len() * size_of::<(Key, PagesAt)>() * 3 / 2) as u64
    }

    /// Memory of the leaves of pages that are here.
    pub fn leaf_bytes(&self) -> u64 {
        self.bytes
    }

    fn key(&self, volume: VolumeId, number: u32) -> Key {
        (volume, number / self.here.width)
    }

    fn leaf_ref(&self, (volume, range): Key, at: PageRef) -> LeafRef {
        let of = LeafOf::Pages { volume, first: range * self.here.width, width: self.here.width };
        // The key of its root, or the key before, until a checkpoint under a new key has moved the leaf (UNDER-U3).
        LeafRef { at, of, key_id: self.key_of(at.object) }
    }

    /// The leaf that is away, if `leaf` is still its place.
    fn away_at(&self, leaf: &LeafRef) -> Option<(Key, PagesAt)> {
        let LeafOf::Pages { volume, first, width } = leaf.of else { return None };
        let key = self.key(volume, first);
        let at = self.away.get(&key).filter(|found| found.at == leaf.at && width == self.here.width)?;
        Some((key, *at))
    }

    /// Begins a checkpoint on this root: it will contain the entries up to `upto`, and be written under `key_id`.
    ///
    /// # Panics
    /// As [`Root::seal_under`].
    pub fn begin(&mut self, upto: LogId, key_id: u32) {
        self.here.upto = upto;
        self.here.seal_under(key_id);
    }

    /// As [`Root::add_segment`].
    pub fn add_segment(&mut self, object: ObjectId, stored_bytes: u64, raw_sectors: Sectors) {
        self.here.add_segment(object, stored_bytes, raw_sectors);
    }

    /// As [`Root::add_pack`].
    pub fn add_pack(&mut self, object: ObjectId, stored_bytes: u64) {
        self.here.add_pack(object, stored_bytes);
    }

    /// Adds a leaf that was away, once it is fetched. Ignored if the leaf is here already or was written elsewhere
    /// since: the leaf here is newer.
    ///
    /// # Errors
    /// [`MapError::Leaf`] where it does not match the root.
    pub fn bring(&mut self, leaf: &LeafRef, found: Leaf) -> Result<(), MapError> {
        let Some((key, at)) = self.away_at(leaf) else { return Ok(()) };
        let pages = page_leaf(&at.at, at.pages, Some(found))?;
        self.bytes += pages.memory_bytes() as u64;
        self.here.leaves.insert(key, PlacedLeaf { at: Some(Box::new(at.at)), leaf: pages });
        self.away.remove(&key);
        Ok(())
    }

    /// As [`Root::replace_page`].
    ///
    /// # Errors
    /// As [`Root::replace_page`].
    ///
    /// # Panics
    /// LEAF-L4: when its leaf is away: all other pages of the leaf would be lost.
    pub fn replace_page(
        &mut self,
        volume: VolumeId,
        number: u32,
        page: Option<PageRef>,
        before: &Live,
        after: &Live,
    ) -> Result<(), LiveError> {
        let key = self.key(volume, number);
        if let Some(found) = self.away.get(&key) {
            panic!(
                "LEAF-L4: page {number} of {volume} is replaced, its leaf at {:?} is away, expected it here",
                found.at
            );
        }
        let taken = self.bytes - self.bytes_of(key);
        let done = self.here.replace_page(volume, number, page, before, after);
        self.bytes = taken + self.bytes_of(key);
        done
    }

    /// Memory of the leaf, if it is here.
    fn bytes_of(&self, key: Key) -> u64 {
        self.here.leaves.get(&key).map_or(0, |placed| placed.leaf.memory_bytes() as u64)
    }

    /// Drops the leaf from memory and returns it, so that the caller can cache it.
    ///
    /// # Panics
    /// LEAF-L4: when it changed since it was written: the change would be lost.
    fn leave(&mut self, key: Key) -> Option<(LeafRef, Leaf)> {
        self.bytes -= self.bytes_of(key);
        let placed = self.here.leaves.remove(&key)?;
        let Some(at) = placed.at else {
            panic!("LEAF-L4: leaf {key:?} is let go, found it changed, expected it written")
        };
        self.away.insert(key, PagesAt { at: *at, pages: placed.leaf.len() as u64 });
        Some((self.leaf_ref(key, *at), Leaf::Pages(placed.leaf)))
    }

    /// Drops unchanged leaves, last ones first, until the rest takes at most `most` bytes. Returns them, so that the
    /// caller can cache them. Must not be called during a checkpoint on this root.
    pub fn let_go(&mut self, most: u64) -> Vec<(LeafRef, Leaf)> {
        if self.bytes <= most {
            return Vec::new();
        }
        let written = self.here.leaves.iter().rev().filter(|(_, placed)| placed.at.is_some());
        let written: Vec<Key> = written.map(|(key, _)| *key).collect();
        let mut gone = Vec::new();
        for key in written {
            if self.bytes <= most {
                break;
            }
            gone.extend(self.leave(key));
        }
        gone
    }

    /// Whether a checkpoint can write its leaves without those that are away. Another shape than its own divides all
    /// leaves anew, so all must be here.
    pub fn fits(&self, shape: &LeafShape) -> bool {
        self.away.is_empty() || self.here.width == shape.pages.clamp(1, PAGE_NUMBER_MAX + 1)
    }

    /// Begins to write a checkpoint's changes; call it before the first page is changed. `sealer` makes the sealer of
    /// each new pack.
    ///
    /// # Panics
    /// LEAF-L4: when the shape does not fit.
    pub fn begin_writing<F: FnMut() -> ObjectSealer>(&mut self, shape: &LeafShape, sealer: F) -> LeafWriting<F> {
        assert!(self.fits(shape), "LEAF-L4: leaves of {} pages are away, {} are wanted", self.here.width, shape.pages);
        self.here.divide(shape.pages.clamp(1, PAGE_NUMBER_MAX + 1));
        self.count_bytes();
        let written: u64 = self.places().map(|at| u64::from(at.sealed_len)).sum();
        let writer = Writer::new(self.key_id(), written, shape, sealer);
        LeafWriting { writer, shape: *shape, at: None, leaving: BTreeSet::new(), made: Vec::new() }
    }

    fn count_bytes(&mut self) {
        self.bytes = self.here.leaves.values().map(|placed| placed.leaf.memory_bytes() as u64).sum();
    }

    /// The next pages to replace are `number` and above: all earlier leaves are passed. If the leaves here take more
    /// than `most` bytes, the passed leaf is sealed and dropped (LEAF-L5); it is returned, so that the caller can cache
    /// it.
    ///
    /// # Panics
    /// LEAF-L5: when the page is in an earlier leaf than the one before.
    pub fn pass_to<F: FnMut() -> ObjectSealer>(
        &mut self,
        volume: VolumeId,
        number: u32,
        most: u64,
        writing: &mut LeafWriting<F>,
    ) -> Option<(LeafRef, Leaf)> {
        let key = self.key(volume, number);
        assert!(writing.at <= Some(key), "LEAF-L5: found leaf {key:?} after {:?}, expected them in order", writing.at);
        let passed = writing.at.replace(key).filter(|passed| *passed != key);
        passed.filter(|_| self.bytes > most).and_then(|passed| {
            self.write(passed, writing);
            self.leave(passed)
        })
    }

    /// Seals a leaf that is here, if it has changed.
    fn write<F: FnMut() -> ObjectSealer>(&mut self, key: Key, writing: &mut LeafWriting<F>) {
        let (taken, width) = (self.bytes - self.bytes_of(key), self.here.width);
        if let Some(placed) = self.here.leaves.get_mut(&key) {
            placed.write(key.0, key.1 * width, width, &mut writing.writer);
        }
        // Settling freed unneeded memory.
        self.bytes = taken + self.bytes_of(key);
    }

    /// All pages were replaced. From now on [`PartialRoot::to_move`] names the leaves under an older data key
    /// (UNDER-U3).
    pub fn begin_rest<F: FnMut() -> ObjectSealer>(&mut self, writing: &mut LeafWriting<F>) {
        self.here.drop_dead_segments();
        self.here.objects.segments.settle(writing.shape.objects);
        self.here.objects.packs.settle(writing.shape.objects);
        writing.leaving = self.here.packs_under_older();
        self.here.leave_packs(&writing.leaving);
    }

    /// The leaves that are away and have to be moved; pass each to [`PartialRoot::move_leaf`].
    pub fn to_move<F: FnMut() -> ObjectSealer>(&self, writing: &LeafWriting<F>) -> Vec<LeafRef> {
        self.away().filter(|leaf| writing.leaving.contains(&leaf.at.object)).collect()
    }

    /// Seals a leaf that is away once more, unchanged, in a new pack.
    ///
    /// # Errors
    /// [`MapError::Leaf`] where it does not match the root.
    pub fn move_leaf<F: FnMut() -> ObjectSealer>(
        &mut self,
        leaf: &LeafRef,
        found: Leaf,
        writing: &mut LeafWriting<F>,
    ) -> Result<(), MapError> {
        let Some((key, at)) = self.away_at(leaf) else {
            return Err(wrong(&leaf.at, "leaves of pages to move", 0, 1));
        };
        let mut placed = PlacedLeaf { at: None, leaf: page_leaf(&at.at, at.pages, Some(found))? };
        let width = self.here.width;
        placed.write(key.0, key.1 * width, width, &mut writing.writer);
        if let Some(new) = placed.at {
            self.away.insert(key, PagesAt { at: *new, pages: at.pages });
        }
        Ok(())
    }

    /// A leaf that was to be moved cannot be read. It stays in place with the other leaves of its pack that are away,
    /// and the root still names the pack. Only for leaves that [`PartialRoot::to_move`] names after
    /// [`PartialRoot::write_rest`]: leaves under an older data key have to be moved.
    ///
    /// # Panics
    /// UNDER-U3: when its pack is under an older data key: the root would not list that.
    pub fn leave_in_place<F: FnMut() -> ObjectSealer>(&self, leaf: &LeafRef, writing: &mut LeafWriting<F>) {
        assert!(!self.is_under_older(leaf.at.object), "UNDER-U3: found {:?} under an older data key", leaf.at);
        writing.leaving.remove(&leaf.at.object);
    }

    /// Writes the changed leaves that are here, and the leaves of objects. Then [`PartialRoot::to_move`] names the
    /// leaves that move out of sparsely used packs (LEAF-L3).
    ///
    /// # Panics
    /// LEAF-L3: as [`PartialRoot::end_writing`].
    pub fn write_rest<F: FnMut() -> ObjectSealer>(&mut self, writing: &mut LeafWriting<F>) {
        self.check_moved(writing);
        self.here.write_changed(&mut writing.writer);
        let bytes = writing.writer.bytes;
        let emptied = packs_to_leave(self.places(), &self.leaf_packs, bytes, writing.shape.packs);
        self.here.leave_packs(&emptied);
        writing.leaving = emptied;
        self.here.write_changed(&mut writing.writer);
        self.count_bytes();
    }

    /// Returns the last packs. Then the root can be sealed.
    ///
    /// # Panics
    /// LEAF-L3: when a leaf that had to move did not: the root would name its pack for ever, or under a key that it
    /// does not list.
    pub fn end_writing<F: FnMut() -> ObjectSealer>(&mut self, mut writing: LeafWriting<F>) -> Vec<LeafPack> {
        self.check_moved(&writing);
        writing.writer.close();
        let packs = writing.take_packs();
        let used: BTreeSet<ObjectId> = self.places().map(|at| at.object).collect();
        let leaf_packs = &mut self.here.objects.leaf_packs;
        leaf_packs.retain(|object, _| used.contains(object));
        leaf_packs.extend(writing.made);
        self.here.objects.forget_keys_of_others();
        packs
    }

    fn check_moved<F: FnMut() -> ObjectSealer>(&self, writing: &LeafWriting<F>) {
        let left = self.to_move(writing).len();
        assert!(left == 0, "LEAF-L3: found {left} leaves that are to be moved, expected none");
    }

    /// Where its leaves are, as far as they are written.
    fn places(&self) -> impl Iterator<Item = PageRef> + '_ {
        self.here.places().chain(self.away.values().map(|found| found.at))
    }

    /// The encoded root, whole or as a top.
    ///
    /// # Panics
    /// As [`Root::encode_top`].
    pub(in super::super) fn encode(&self) -> Vec<u8> {
        if self.away.is_empty() {
            return if self.here.is_in_leaves() { self.here.encode_top() } else { self.here.encode() };
        }
        let here =
            self.here.leaves.iter().map(|(key, placed)| (*key, (placed.leaf.len() as u64, placed.at.as_deref())));
        let away = self.away.iter().map(|(key, found)| (*key, (found.pages, Some(&found.at))));
        let all: BTreeMap<Key, (u64, Option<&PageRef>)> = here.chain(away).collect();
        self.here.encode_top_of(all.len(), all.into_iter().map(|(key, (pages, at))| (key, pages, at)))
    }
}
