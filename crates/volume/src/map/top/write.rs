//! Writes the leaves of a root: those that changed, and those that move out of sparsely used packs.

use super::MAGIC;
use crate::map::leaf::{Leaf, LeafOf, LeafShape, ObjectLeaf, encode_objects, encode_pages};
use crate::map::objects::Objects;
use crate::map::pack::LeafPackBuilder;
use crate::map::root::PlacedLeaf;
use crate::map::sums::Known;
use crate::map::table::{Table, TableLeaf};
use crate::map::under::Under;
use crate::map::{NO_OBJECT, PAGE_NUMBER_MAX, PageRef, Root, put_object};
use crate::wire;
use bytes::Bytes;
use holdfast_seal::ObjectSealer;
use holdfast_types::{ObjectId, VolumeId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

/// A pack of leaves is emptied when less than one in this many bytes is in use. Leaves are written often, so the rest
/// of a pack soon becomes unused; and they are small beside pages, so waiting for that costs little.
const LIVE_PART_MIN: u64 = 4;

/// A pack of leaves is closed at this many bytes, or later where the leaves would need more than half of the allowed
/// packs. A checkpoint moves at most a quarter of a pack out of it.
const PACK_BYTES_TARGET: u64 = 256 << 10;

/// Upper bound of a pack's length: it is one object, and in memory while it is built.
const PACK_BYTES_MOST: u64 = 8 << 20;
const _: () = assert!(PACK_BYTES_MOST <= holdfast_types::limits::SEGMENT_BYTES_TARGET as u64);

/// A pack of leaves, sealed.
#[derive(Clone, Debug)]
pub struct LeafPack {
    /// The object.
    pub object: ObjectId,
    /// The whole object.
    pub body: Bytes,
    /// Place of each leaf in it, by number.
    pub parts: Vec<(u32, Range<u64>)>,
}

/// Fills packs.
pub(super) struct Writer<F> {
    sealer: F,
    /// The data key that the root was made for; 0 if none was set yet.
    key_id: u32,
    /// Length at which a pack is closed.
    target: u64,
    open: Option<LeafPackBuilder>,
    pub(super) done: Vec<LeafPack>,
    /// Sealed bytes of all leaves so far.
    pub(super) bytes: u64,
}

impl<F: FnMut() -> ObjectSealer> Writer<F> {
    /// `written`: sealed bytes of the existing leaves.
    pub(super) fn new(key_id: u32, written: u64, shape: &LeafShape, sealer: F) -> Self {
        // Pack length grows with the number of leaves. Otherwise each checkpoint of a very large root would move packs
        // only because there are too many.
        let target = (2 * written / shape.packs.max(1) as u64).clamp(PACK_BYTES_TARGET, PACK_BYTES_MOST);
        Self { sealer, key_id, target, open: None, done: Vec::new(), bytes: 0 }
    }

    pub(super) fn push(&mut self, of: LeafOf, plain: &[u8]) -> PageRef {
        let (key_id, fresh) = (self.key_id, &mut self.sealer);
        let open = self.open.get_or_insert_with(|| {
            let sealer = fresh();
            let found = sealer.key_id();
            assert!(key_id == 0 || key_id == found, "R10: leaves for data key {key_id} are sealed under {found}");
            LeafPackBuilder::new(sealer)
        });
        let at = open.push(of, plain);
        self.bytes += u64::from(at.sealed_len);
        if open.bytes() as u64 >= self.target {
            self.close();
        }
        at
    }

    pub(super) fn close(&mut self) {
        let Some(open) = self.open.take() else { return };
        let (object, parts) = (open.object(), open.places().collect());
        self.done.push(LeafPack { object, body: open.finish(), parts });
    }
}

impl PlacedLeaf {
    /// Frees unneeded memory before the leaf is written. A leaf that another root shares did not change, and is not
    /// copied for that.
    pub(super) fn settle(&mut self) {
        if let Some(leaf) = Arc::get_mut(&mut self.leaf) {
            leaf.settle();
        }
    }

    /// Seals it, if it has changed since it was written (LEAF-L1).
    pub(super) fn write(
        &mut self,
        volume: VolumeId,
        first: u32,
        width: u32,
        writer: &mut Writer<impl FnMut() -> ObjectSealer>,
    ) {
        if self.at.is_none() {
            self.settle();
            let plain = encode_pages(volume, first, width, &self.leaf);
            self.at = Some(Box::new(writer.push(LeafOf::Pages { volume, first, width }, &plain)));
        }
    }
}

impl Root {
    /// Whether its leaves are in packs of their own, except for those that changed since.
    pub fn is_in_leaves(&self) -> bool {
        !self.leaf_packs.is_empty()
    }

    /// Its leaves as they were written, by object and number. A caller that opens another root with the same leaves
    /// need not read them.
    pub fn written(&self) -> BTreeMap<(ObjectId, u32), Leaf> {
        let key = |at: &PageRef| (at.object, at.number);
        let mut out = BTreeMap::new();
        for placed in self.leaves.values() {
            out.extend(placed.at.as_deref().map(|at| (key(at), Leaf::Pages(placed.leaf.clone()))));
        }
        for (_, leaf) in self.segments.leaves() {
            out.extend(leaf.at.map(|at| (key(&at), Leaf::Segments(self.object_leaf(leaf)))));
        }
        for (_, leaf) in self.packs.leaves() {
            out.extend(leaf.at.map(|at| (key(&at), Leaf::Packs(self.object_leaf(leaf)))));
        }
        out
    }

    fn object_leaf<V: Copy>(&self, leaf: &TableLeaf<V>) -> ObjectLeaf<V> {
        let key = |(object, _): &(ObjectId, V)| Some((*object, self.under.older_of(*object)?));
        let older = if self.under.lists_any() { leaf.entries().iter().filter_map(key).collect() } else { Vec::new() };
        ObjectLeaf { entries: leaf.entries().clone(), older: Arc::new(older) }
    }

    /// The root will be written as one object: no part of it refers to a pack of leaves any more.
    pub fn make_whole(&mut self) {
        self.objects.leaf_packs.clear();
        for placed in self.leaves.values_mut() {
            placed.at = None;
            placed.settle();
        }
        self.objects.segments.leaves_mut().for_each(|leaf| leaf.at = None);
        self.objects.packs.leaves_mut().for_each(|leaf| leaf.at = None);
        self.objects.forget_keys_of_others();
    }

    /// Seals every leaf that changed (LEAF-L1) or is under an older data key (UNDER-U3), and moves leaves out of packs
    /// that are less than a quarter in use or too many (LEAF-L3); of the latter at most as many bytes as of the former.
    /// `sealer` makes the sealer of each new pack. The returned packs must be in the store before the root is. A root
    /// without leaves becomes whole.
    ///
    /// # Panics
    /// R10: when a sealer has another data key than the root was made for. TABLE-T1: when the summary of a leaf is
    /// wrong.
    pub fn write_leaves(&mut self, shape: &LeafShape, sealer: impl FnMut() -> ObjectSealer) -> Vec<LeafPack> {
        self.drop_dead_segments();
        self.divide(shape.pages.clamp(1, PAGE_NUMBER_MAX + 1));
        self.objects.segments.settle(shape.objects);
        self.objects.packs.settle(shape.objects);
        let older = self.packs_under_older();
        self.leave_packs(&older);
        let written: u64 = self.places().map(|at| u64::from(at.sealed_len)).sum();
        let mut writer = Writer::new(self.key_id(), written, shape, sealer);
        self.write_changed(&mut writer);
        let emptied = packs_to_leave(self.places(), &self.leaf_packs, writer.bytes, shape.packs);
        self.leave_packs(&emptied);
        self.write_changed(&mut writer);
        writer.close();
        let used: BTreeSet<ObjectId> = self.places().map(|at| at.object).collect();
        self.objects.leaf_packs.retain(|object, _| used.contains(object));
        self.objects.leaf_packs.extend(writer.done.iter().map(|pack| (pack.object, pack.body.len() as u64)));
        self.objects.forget_keys_of_others();
        writer.done
    }

    /// Packs of leaves that are emptied because they are under an older data key (UNDER-U3).
    pub(super) fn packs_under_older(&self) -> BTreeSet<ObjectId> {
        self.leaf_packs.keys().copied().filter(|object| self.under.older_of(*object).is_some()).collect()
    }

    pub(super) fn write_changed(&mut self, writer: &mut Writer<impl FnMut() -> ObjectSealer>) {
        let width = self.width;
        for ((volume, range), placed) in &mut self.leaves {
            placed.write(*volume, range * width, width, writer);
        }
        let Objects { segments, packs, under, .. } = &mut self.objects;
        write_objects(segments, LeafOf::Segments, under, writer);
        write_objects(packs, LeafOf::Packs, under, writer);
    }

    /// Where its leaves are, as far as they are written.
    pub(super) fn places(&self) -> impl Iterator<Item = PageRef> + '_ {
        let pages = self.leaves.values().filter_map(|placed| placed.at.as_deref().copied());
        let segments = self.segments.leaves().filter_map(|(_, leaf)| leaf.at);
        pages.chain(segments).chain(self.packs.leaves().filter_map(|(_, leaf)| leaf.at))
    }

    /// Divides the pages anew where the shape has changed; then all of them are written.
    pub(super) fn divide(&mut self, width: u32) {
        if self.width == width {
            return;
        }
        self.width = width;
        for ((volume, _), placed) in std::mem::take(&mut self.leaves) {
            for (number, page) in placed.leaf.iter() {
                let fresh = || PlacedLeaf { at: None, leaf: Arc::default() };
                let placed = self.leaves.entry((volume, number / width)).or_insert_with(fresh);
                Arc::make_mut(&mut placed.leaf).set(number, &page);
            }
        }
    }

    /// Lets the leaves in these packs be written anew.
    pub(super) fn leave_packs(&mut self, packs: &BTreeSet<ObjectId>) {
        if packs.is_empty() {
            return;
        }
        let stays = |at: &PageRef| !packs.contains(&at.object);
        for placed in self.leaves.values_mut() {
            placed.at = placed.at.take().filter(|at| stays(at));
        }
        self.objects.segments.leaves_mut().for_each(|leaf| leaf.at = leaf.at.filter(stays));
        self.objects.packs.leaves_mut().for_each(|leaf| leaf.at = leaf.at.filter(stays));
    }

    /// The top's bytes, before sealing.
    ///
    /// # Panics
    /// MAP-M3: when a changed leaf was not written: the root would not name what it needs.
    pub(in super::super) fn encode_top(&self) -> Vec<u8> {
        let leaves = self.leaves.iter().map(|(key, placed)| (*key, placed.leaf.len() as u64, placed.at.as_deref()));
        self.encode_top_of(self.leaves.len(), leaves)
    }

    /// [`Root::encode_top`] for these `count` leaves of pages, in order: range, number of pages, and place of each.
    ///
    /// # Panics
    /// As [`Root::encode_top`].
    pub(super) fn encode_top_of<'a>(
        &self,
        count: usize,
        leaves: impl Iterator<Item = ((VolumeId, u32), u64, Option<&'a PageRef>)>,
    ) -> Vec<u8> {
        let packs: Vec<ObjectId> = self.leaf_packs.keys().copied().collect();
        let mut out = Vec::with_capacity(64 + count * 14 + packs.len() * 24);
        out.extend_from_slice(MAGIC);
        wire::put(&mut out, self.upto.term.0);
        wire::put(&mut out, self.upto.index.0);
        wire::put(&mut out, self.width.into());
        wire::put(&mut out, packs.len() as u64);
        let mut before = NO_OBJECT;
        for (object, stored_bytes) in &self.leaf_packs {
            put_object(&mut out, before, *object);
            wire::put(&mut out, *stored_bytes);
            before = *object;
        }
        let mut places = PlacesOut { packs: &packs, before: 0 };
        wire::put(&mut out, count as u64);
        let mut last: Option<(VolumeId, u32)> = None;
        for ((volume, range), pages, at) in leaves {
            let same = last.filter(|(of, _)| *of == volume);
            wire::put_step(&mut out, last.map_or(0, |(of, _)| of.0.into()), volume.0.into());
            let gap = range - same.map_or(0, |(_, range)| range + 1);
            wire::put(&mut out, u64::from(gap) << 1 | u64::from(same.is_some()));
            wire::put(&mut out, pages);
            places.put(&mut out, at);
            last = Some((volume, range));
        }
        put_object_leaves(&mut out, &self.segments, &mut places);
        put_object_leaves(&mut out, &self.packs, &mut places);
        wire::put(&mut out, self.base.is_some().into());
        if let Some(base) = &self.base {
            base.put(&mut out);
        }
        let older = self.under.keys();
        wire::put(&mut out, older.len() as u64);
        let mut before = 0;
        for key in older {
            wire::put_step(&mut out, before, key.into());
            before = key.into();
        }
        out
    }
}

/// Old packs of leaves to empty: those that are less than a quarter in use, up to `bytes` bytes of leaves, and the
/// least used ones above `most` packs. `places`: the places of all leaves; `leaf_packs`: the existing packs.
pub(super) fn packs_to_leave(
    places: impl Iterator<Item = PageRef>,
    leaf_packs: &BTreeMap<ObjectId, u64>,
    bytes: u64,
    most: usize,
) -> BTreeSet<ObjectId> {
    let mut used: BTreeMap<ObjectId, u64> = BTreeMap::new();
    for at in places {
        *used.entry(at.object).or_default() += u64::from(at.sealed_len);
    }
    let old = used.into_iter().filter_map(|(object, used)| Some((used, object, *leaf_packs.get(&object)?)));
    let mut old: Vec<(u64, ObjectId, u64)> = old.collect();
    old.sort_unstable();
    // One more is being filled now.
    let too_many = (old.len() + 1).saturating_sub(most.max(1));
    let (mut out, mut moved) = (BTreeSet::new(), 0);
    for (place, (used, object, stored)) in old.into_iter().enumerate() {
        let empty = used * LIVE_PART_MIN < stored && moved + used <= bytes;
        if place < too_many || empty {
            moved += used;
            out.insert(object);
        }
    }
    out
}

/// Writes the places of leaves.
struct PlacesOut<'a> {
    packs: &'a [ObjectId],
    before: u64,
}

impl PlacesOut<'_> {
    fn put(&mut self, out: &mut Vec<u8>, at: Option<&PageRef>) {
        let pack = at.and_then(|at| self.packs.binary_search(&at.object).ok());
        let (Some(at), Some(pack)) = (at, pack) else {
            panic!("MAP-M3: a leaf at {at:?}, expected it in one of the {} packs of leaves", self.packs.len())
        };
        wire::put_step(out, self.before, pack as u64);
        self.before = pack as u64;
        wire::put(out, at.number.into());
        wire::put(out, at.offset.into());
        wire::put(out, at.raw_len.into());
    }
}

fn put_object_leaves<V: Known>(out: &mut Vec<u8>, table: &Table<V>, places: &mut PlacesOut<'_>) {
    wire::put(out, table.leaves().count() as u64);
    let mut before = NO_OBJECT;
    for (_, leaf) in table.leaves() {
        // A leaf is never empty.
        let first = leaf.entries().first().map_or(NO_OBJECT, |(object, _)| *object);
        put_object(out, before, first);
        leaf.summary().sums.put(out);
        places.put(out, leaf.at.as_ref());
        before = first;
    }
}

fn write_objects<V: Known>(
    table: &mut Table<V>,
    of: LeafOf,
    under: &Under,
    writer: &mut Writer<impl FnMut() -> ObjectSealer>,
) {
    for leaf in table.leaves_mut().filter(|leaf| leaf.at.is_none()) {
        leaf.check_summary();
        leaf.at = Some(writer.push(of, &encode_objects(of, leaf.entries(), under)));
    }
}
