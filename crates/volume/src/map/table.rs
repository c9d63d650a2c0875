//! Table of the objects that a root names (segments or packs) with their use, sorted by id and divided into leaves.
//!
//! A leaf keeps its place in the store until it changes: unchanged leaves are not written again, and roots derived from
//! one another share them in memory. A leaf also caches a summary of its objects. A checkpoint reads the summaries, and
//! goes through those leaves only that it changed or collects from.
//!
//! TABLE-T1  The summary of a leaf equals the sums over its objects; any change of an object drops it.

use super::places::PageRef;
use super::sums::{IN_USE_OF, Known, LOWEST_OF, Sums};
use holdfast_types::ObjectId;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::{Arc, OnceLock};

/// Objects in one leaf in memory before it is split. Written leaves are smaller ([`super::LeafShape::objects`]).
const SPLIT: usize = 256;

/// Sums over the objects of a leaf.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Summary {
    /// As a top has them.
    pub sums: Sums,
    /// Whether an object is entirely unused.
    pub dead: bool,
    /// Stored bytes and those in use, of the objects with a known length.
    pub sized: (u64, u64),
}

impl Summary {
    fn of<V: Known>(entries: &[(ObjectId, V)]) -> Self {
        let mut out = Self { sums: Sums::of(entries), dead: false, sized: (0, 0) };
        for (_, known) in entries {
            let (stored, live, ..) = known.sums();
            if known.is_dead() {
                out.dead = true;
            } else if stored > 0 {
                out.sized = (out.sized.0.saturating_add(stored), out.sized.1.saturating_add(live));
            }
        }
        out
    }
}

/// One leaf: never empty, sorted, each object once.
#[derive(Clone, Debug)]
pub(super) struct TableLeaf<V> {
    /// Where it was written; `None` if it was never written or has changed since.
    pub at: Option<PageRef>,
    entries: Arc<Vec<(ObjectId, V)>>,
    /// Empty until the first request after a change (TABLE-T1).
    summary: OnceLock<Summary>,
}

impl<V> TableLeaf<V> {
    pub(super) fn new(at: Option<PageRef>, entries: Arc<Vec<(ObjectId, V)>>) -> Self {
        Self { at, entries, summary: OnceLock::new() }
    }

    pub(super) fn entries(&self) -> &Arc<Vec<(ObjectId, V)>> {
        &self.entries
    }

    /// The entries, for a change: the written place and the summary become invalid.
    fn changing(&mut self) -> &mut Vec<(ObjectId, V)>
    where
        V: Clone,
    {
        self.at = None;
        self.summary = OnceLock::new();
        Arc::make_mut(&mut self.entries)
    }
}

impl<V: Known> TableLeaf<V> {
    /// Computed by the first caller; roots derived from this one share it with the leaf.
    pub(super) fn summary(&self) -> &Summary {
        self.summary.get_or_init(|| Summary::of(&self.entries))
    }

    /// Checks the summary before the leaf is written, in release builds too. The writer continues with the root in
    /// memory, so a top that contradicts its leaf would be noticed only by a later reader of the store.
    ///
    /// # Panics
    /// TABLE-T1: when the summary differs from the sums over the objects.
    pub(super) fn check_summary(&self) {
        let (said, found) = (self.summary(), Summary::of(&self.entries));
        assert!(*said == found, "TABLE-T1: summary of a leaf is {said:?}, expected {found:?} as its objects have it");
    }
}

/// See the module. A leaf's key is at most its first object; objects before the first leaf's key belong to the first
/// leaf.
#[derive(Clone, Debug)]
pub(super) struct Table<V> {
    leaves: BTreeMap<ObjectId, TableLeaf<V>>,
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self { leaves: BTreeMap::new() }
    }
}

impl<V: Copy + PartialEq> Table<V> {
    /// The key of the leaf that the object belongs to.
    fn key_for(&self, object: ObjectId) -> Option<ObjectId> {
        let before = self.leaves.range(..=object).next_back();
        before.or_else(|| self.leaves.first_key_value()).map(|(key, _)| *key)
    }

    pub(super) fn get(&self, object: ObjectId) -> Option<V> {
        let (_, leaf) = self.leaves.range(..=object).next_back()?;
        let at = leaf.entries.binary_search_by_key(&object, |(id, _)| *id).ok()?;
        leaf.entries.get(at).map(|(_, value)| *value)
    }

    /// Adds the object, or replaces its entry.
    pub(super) fn set(&mut self, object: ObjectId, value: V) {
        let Some(mut key) = self.key_for(object) else {
            self.leaves.insert(object, TableLeaf::new(None, Arc::new(vec![(object, value)])));
            return;
        };
        if object < key
            && let Some(first) = self.leaves.remove(&key)
        {
            self.leaves.insert(object, first);
            key = object;
        }
        let Some(leaf) = self.leaves.get_mut(&key) else { return };
        match leaf.entries.binary_search_by_key(&object, |(id, _)| *id) {
            Ok(at) if leaf.entries[at].1 == value => return,
            Ok(at) => leaf.changing()[at].1 = value,
            Err(at) => leaf.changing().insert(at, (object, value)),
        }
        if leaf.entries.len() >= SPLIT {
            let lower = leaf.changing();
            let upper = lower.split_off(SPLIT / 2);
            // This part is unlikely to grow again.
            lower.shrink_to_fit();
            if let Some((first, _)) = upper.first().copied() {
                self.leaves.insert(first, TableLeaf::new(None, Arc::new(upper)));
            }
        }
    }

    pub(super) fn remove(&mut self, object: ObjectId) {
        let Some((key, leaf)) = self.leaves.range_mut(..=object).next_back() else { return };
        let Ok(at) = leaf.entries.binary_search_by_key(&object, |(id, _)| *id) else { return };
        let key = *key;
        leaf.changing().remove(at);
        if leaf.entries.is_empty() {
            self.leaves.remove(&key);
        }
    }

    /// All, sorted.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ObjectId, V)> + '_ {
        self.leaves.values().flat_map(|leaf| leaf.entries.iter().copied())
    }

    pub(super) fn len(&self) -> usize {
        self.leaves.values().map(|leaf| leaf.entries.len()).sum()
    }

    /// Approximate memory in bytes, shared leaves included. Linear in the number of leaves.
    pub(super) fn memory_bytes(&self) -> u64 {
        // Tree nodes are about two thirds full.
        let frame = size_of::<(ObjectId, TableLeaf<V>)>() * 3 / 2;
        let bytes = |leaf: &TableLeaf<V>| (frame + leaf.entries.capacity() * size_of::<(ObjectId, V)>()) as u64;
        self.leaves.values().map(bytes).sum()
    }

    pub(super) fn leaves(&self) -> impl Iterator<Item = (&ObjectId, &TableLeaf<V>)> {
        self.leaves.iter()
    }

    pub(super) fn leaves_mut(&mut self) -> impl Iterator<Item = &mut TableLeaf<V>> {
        self.leaves.values_mut()
    }

    /// Adds a leaf at the end. It must not be empty; its objects must be sorted and above all that are there.
    pub(super) fn push(&mut self, leaf: TableLeaf<V>) {
        if let Some((first, _)) = leaf.entries.first() {
            self.leaves.insert(*first, leaf);
        }
    }

    /// Splits leaves above `most` objects and joins small neighbours, but only where one of them has to be written
    /// anyway. Other leaves stay as they were written.
    pub(super) fn settle(&mut self, most: usize) {
        let most = most.max(1);
        let mut out = Self::default();
        let mut last: Option<TableLeaf<V>> = None;
        for leaf in std::mem::take(&mut self.leaves).into_values() {
            last = match last.take() {
                Some(mut before)
                    if (before.at.is_none() || leaf.at.is_none())
                        && before.entries.len() + leaf.entries.len() <= most / 2 =>
                {
                    before.changing().extend(leaf.entries.iter().copied());
                    Some(before)
                }
                before => {
                    before.into_iter().for_each(|before| out.push_parts(before, most));
                    Some(leaf)
                }
            };
        }
        last.into_iter().for_each(|last| out.push_parts(last, most));
        *self = out;
    }

    fn push_parts(&mut self, leaf: TableLeaf<V>, most: usize) {
        let count = leaf.entries.len();
        if leaf.at.is_some() || count <= most {
            return self.push(leaf);
        }
        // Parts of equal length, so that each can grow.
        let parts = count.div_ceil(most);
        for part in leaf.entries.chunks(count.div_ceil(parts)) {
            self.push(TableLeaf::new(None, Arc::new(part.to_vec())));
        }
    }

    /// Whether the table shares this leaf in memory. Only the leaf of its first object can be the same.
    fn shares(&self, leaf: &TableLeaf<V>) -> bool {
        let Some((first, _)) = leaf.entries.first() else { return false };
        let ours = self.leaves.range(..=*first).next_back();
        ours.is_some_and(|(_, ours)| Arc::ptr_eq(&ours.entries, &leaf.entries))
    }

    /// Removes objects of the table `other` for which `named` is true. Leaves shared with `other` are removed as a
    /// whole.
    pub(super) fn take_out(&mut self, other: &Self, named: impl Fn(ObjectId) -> bool) {
        self.leaves.retain(|_, leaf| {
            if other.shares(leaf) {
                return false;
            }
            if leaf.entries.iter().any(|(object, _)| named(*object)) {
                leaf.changing().retain(|(object, _)| !named(*object));
            }
            !leaf.entries.is_empty()
        });
    }
}

impl<V: Known> Table<V> {
    /// How many leaves lack a summary, of how many.
    #[cfg(test)]
    pub(super) fn changed(&self) -> (usize, usize) {
        let changed = self.leaves.values().filter(|leaf| leaf.summary.get().is_none());
        (changed.count(), self.leaves.len())
    }

    /// The summary of each leaf.
    pub(super) fn summaries(&self) -> impl Iterator<Item = &Summary> {
        self.leaves.values().map(TableLeaf::summary)
    }

    /// Removes entirely unused objects; returns them in order.
    pub(super) fn drop_dead(&mut self) -> Vec<ObjectId> {
        let with_dead = self.leaves.values().filter(|leaf| leaf.summary().dead);
        let dead = with_dead.flat_map(|leaf| leaf.entries.iter().filter(|(_, known)| known.is_dead()));
        let dead: Vec<ObjectId> = dead.map(|(object, _)| *object).collect();
        dead.iter().for_each(|object| self.remove(*object));
        dead
    }

    /// Partly unused objects, least used first; of equal ones the lower id first.
    pub(super) fn by_use(&self) -> ByUse<'_, V> {
        let leaves: Vec<&TableLeaf<V>> = self.leaves.values().collect();
        let mut next: BinaryHeap<Next> = BinaryHeap::new();
        for (at, leaf) in leaves.iter().enumerate() {
            let lowest = leaf.summary().sums.lowest;
            if lowest < LOWEST_OF {
                // Rounded down, so at most the share of any of its objects.
                next.push(Reverse((lowest * (IN_USE_OF / LOWEST_OF), None, at, 0)));
            }
        }
        ByUse { leaves, next }
    }
}

/// Share in use; id of the object (leaves sort before objects of the same share); place of the leaf, and place in it.
type Next = Reverse<(u64, Option<ObjectId>, usize, usize)>;

/// See [`Table::by_use`]. A leaf is opened once its lowest share is the lowest left, so a caller that takes a few
/// objects opens few leaves.
pub(super) struct ByUse<'a, V> {
    leaves: Vec<&'a TableLeaf<V>>,
    next: BinaryHeap<Next>,
}

impl<V: Known> Iterator for ByUse<'_, V> {
    type Item = (ObjectId, V);

    fn next(&mut self) -> Option<Self::Item> {
        loop {
            let Reverse((_, object, at, place)) = self.next.pop()?;
            let leaf = *self.leaves.get(at)?;
            if object.is_some() {
                return leaf.entries.get(place).copied();
            }
            for (place, (object, known)) in leaf.entries.iter().enumerate() {
                if let Some(share) = known.in_use() {
                    self.next.push(Reverse((share, Some(*object), at, place)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::PackUse;
    use crate::object::tests::object;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn packs(entries: impl IntoIterator<Item = (u128, PackUse)>) -> Table<PackUse> {
        let mut table = Table::default();
        entries.into_iter().for_each(|(random, usage)| table.set(object(random), usage));
        table
    }

    /// Leaves without unused space, and leaves whose least used object is not taken, are not opened.
    #[test]
    fn who_takes_a_few_goes_through_a_few() {
        let whole = PackUse { stored_bytes: 1 << 20, live_bytes: 1 << 20, live_pages: 9 };
        let mut table = packs((0..2000).map(|n| (n, whole)));
        for (random, live_bytes) in [(3, 700 << 10), (900, 9), (1500, 8), (1501, 500 << 10)] {
            table.set(object(random), PackUse { live_bytes, ..whole });
        }
        let closed = |by_use: &ByUse<'_, PackUse>| by_use.next.iter().filter(|Reverse(next)| next.1.is_none()).count();
        let mut by_use = table.by_use();
        assert_eq!(closed(&by_use), 3, "leaves with something out of use, of {}", table.leaves().count());
        let mut taken = Vec::new();
        while let Some((object, _)) = by_use.next() {
            taken.push((object.random, closed(&by_use)));
        }
        // Two nearly unused objects of one leaf: only opening it tells them apart, so both come before either is taken.
        assert_eq!(taken, [(1500, 1), (900, 1), (1501, 1), (3, 0)]);
    }

    /// TABLE-T1: unchanged leaves answer from their summary, changed ones do not.
    #[test]
    fn only_a_leaf_that_changed_is_gone_through_again() {
        let one = PackUse { stored_bytes: 100, live_bytes: 50, live_pages: 1 };
        let mut table = packs((0..2000).map(|n| (n, one)));
        assert_eq!(table.summaries().map(|found| found.sums.objects).sum::<u64>(), 2000);
        let mut next = table.clone();
        next.set(object(700), PackUse { live_bytes: 51, ..one });
        next.remove(object(1900));
        next.set(object(1000), one);
        assert_eq!(next.changed().0, 2);
        assert_eq!(table.changed().0, 0, "expected the other table unchanged");
        table.settle(64);
        let (changed, all) = table.changed();
        assert_eq!(changed, all, "expected all leaves divided");
    }

    #[test]
    #[should_panic(expected = "TABLE-T1: summary of a leaf is Summary { sums:")]
    fn a_leaf_of_which_something_else_is_said_is_a_mistake() {
        let mut table = packs([(1, PackUse { stored_bytes: 100, live_bytes: 50, live_pages: 1 })]);
        for leaf in table.leaves_mut() {
            leaf.check_summary();
            let other = Summary { dead: true, ..*leaf.summary() };
            leaf.summary = OnceLock::from(other);
        }
        table.leaves().for_each(|(_, leaf)| leaf.check_summary());
    }

    fn any_use() -> impl Strategy<Value = PackUse> {
        // Shares that are equal, or equal after rounding in a top; unknown lengths; unused objects.
        let sizes = prop_oneof![Just(0_u64), Just(1_u64 << 20), Just((1_u64 << 20) + 1), 1_u64..50];
        (sizes, 0_u64..60, 0_u64..3, any::<bool>()).prop_map(|(stored_bytes, live, live_pages, near)| {
            let live_bytes = if near { stored_bytes.saturating_sub(live) } else { live };
            PackUse { stored_bytes, live_bytes, live_pages }
        })
    }

    /// A table and its expected content.
    type Copied = (Table<PackUse>, Vec<(ObjectId, PackUse)>);

    proptest! {
        /// TABLE-T1 against a full pass each time: changes of any sort, cloned roots, leaves of any size.
        #[test]
        fn what_leaves_say_together_is_what_their_objects_say(
            rounds in vec((vec((0_u128..700, prop_oneof![3 => any_use().prop_map(Some), 1 => Just(None)]), 0..200), 1_usize..90), 1..6),
        ) {
            let mut table = Table::<PackUse>::default();
            let mut copies: Vec<Copied> = Vec::new();
            for (changes, most) in rounds {
                for (at, (random, usage)) in changes.into_iter().enumerate() {
                    match usage {
                        Some(usage) => table.set(object(random), usage),
                        None => table.remove(object(random)),
                    }
                    // Also in between, so that there are summaries to drop.
                    if at % 7 == 0 {
                        prop_assert!(table.summaries().all(|found| found.sums.objects > 0));
                    }
                }
                let all: Vec<(ObjectId, PackUse)> = table.iter().collect();
                copies.push((table.clone(), all));
                let dead: Vec<ObjectId> = table.iter().filter(|(_, usage)| usage.live_pages == 0).map(|(id, _)| id).collect();
                prop_assert_eq!(table.drop_dead(), dead);
                prop_assert!(table.iter().all(|(_, usage)| usage.live_pages > 0));
                prop_assert!(table.drop_dead().is_empty());
                table.settle(most);
                let at = PageRef { object: object(7), number: 0, offset: 0, sealed_len: 17, raw_len: 1 };
                table.leaves_mut().for_each(|leaf| leaf.at = Some(at));
            }
            for (table, all) in &copies {
                prop_assert_eq!(&table.iter().collect::<Vec<_>>(), all);
                for (_, leaf) in table.leaves() {
                    prop_assert_eq!(*leaf.summary(), Summary::of(&leaf.entries));
                }
                let sums = table.summaries().fold((0, 0, 0), |sum, one| {
                    (sum.0 + one.sums.stored_bytes, sum.1 + one.sums.live_bytes, sum.2 + one.sums.objects)
                });
                let told = |of: fn(&PackUse) -> u64| all.iter().map(|(_, usage)| of(usage)).sum::<u64>();
                prop_assert_eq!(sums, (told(|usage| usage.stored_bytes), told(|usage| usage.live_bytes), all.len() as u64));
                let sized = table.summaries().fold((0, 0), |sum, one| (sum.0 + one.sized.0, sum.1 + one.sized.1));
                let known = all.iter().filter(|(_, usage)| usage.live_pages > 0 && usage.stored_bytes > 0);
                let known = known.fold((0, 0), |sum, (_, one)| (sum.0 + one.stored_bytes, sum.1 + one.live_bytes));
                prop_assert_eq!(sized, known);
                let mut sorted: Vec<(u128, ObjectId, PackUse)> = all
                    .iter()
                    .filter(|(_, usage)| usage.live_bytes < usage.stored_bytes)
                    .map(|(id, usage)| (u128::from(usage.live_bytes) * (1 << 32) / u128::from(usage.stored_bytes), *id, *usage))
                    .collect();
                sorted.sort_unstable_by_key(|(share, id, _)| (*share, *id));
                let sorted: Vec<(ObjectId, PackUse)> = sorted.into_iter().map(|(_, id, usage)| (id, usage)).collect();
                prop_assert_eq!(table.by_use().collect::<Vec<_>>(), sorted);
            }
        }

        /// Against a plain sorted map: content, leaf sizes, and that only changed leaves are written.
        #[test]
        fn a_table_is_a_sorted_map_in_leaves(
            rounds in vec((vec((0_u128..600, 0_u8..4), 0..300), 1_usize..9), 1..6),
        ) {
            let (mut table, mut flat) = (Table::<u8>::default(), BTreeMap::new());
            for (round, (changes, most)) in rounds.into_iter().enumerate() {
                let written: Vec<(ObjectId, Vec<(ObjectId, u8)>)> =
                    table.leaves().map(|(key, leaf)| (*key, leaf.entries.to_vec())).collect();
                let mut touched = Vec::new();
                for (random, value) in changes {
                    let object = object(random);
                    let old = flat.get(&object).copied();
                    if value == 0 {
                        table.remove(object);
                        flat.remove(&object);
                    } else {
                        table.set(object, value);
                        flat.insert(object, value);
                    }
                    prop_assert_eq!(table.get(object), flat.get(&object).copied());
                    if old != flat.get(&object).copied() {
                        touched.push(object);
                    }
                }
                prop_assert_eq!(table.iter().collect::<Vec<_>>(), flat.clone().into_iter().collect::<Vec<_>>());
                prop_assert_eq!(table.len(), flat.len());
                table.settle(most);
                prop_assert_eq!(table.iter().collect::<Vec<_>>(), flat.clone().into_iter().collect::<Vec<_>>());
                for (key, leaf) in table.leaves() {
                    let first = leaf.entries.first().map(|(object, _)| *object);
                    prop_assert!(first.is_some_and(|first| *key <= first), "never empty");
                    prop_assert!(leaf.entries.windows(2).all(|w| w[0].0 < w[1].0));
                    prop_assert!(leaf.at.is_some() || leaf.entries.len() <= most, "{} of {most}", leaf.entries.len());
                }
                // A leaf that stays written has its old content. An unchanged leaf is rewritten only to join it with a
                // neighbour.
                for (key, leaf) in table.leaves().filter(|(_, leaf)| leaf.at.is_some()) {
                    let had = written.iter().find(|(_, entries)| entries.first().map(|e| e.0) == leaf.entries.first().map(|e| e.0));
                    prop_assert_eq!(had.map(|(_, entries)| entries), Some(&*leaf.entries), "{}", key);
                }
                if touched.is_empty() && round > 0 {
                    prop_assert!(table.leaves().all(|(_, leaf)| leaf.at.is_some()));
                }
                let at = PageRef { object: object(7), number: 0, offset: 0, sealed_len: 17, raw_len: 1 };
                table.leaves_mut().for_each(|leaf| leaf.at = Some(at));
            }
        }
    }
}
