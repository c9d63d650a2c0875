//! The objects that a root names, segments or packs, with what it knows of each: sorted by id, in leaves.
//!
//! A leaf knows where it was written, as long as nothing in it has changed since: those are not written again, and roots that were made from one another
//! share them in memory.

use super::PageRef;
use holdfast_types::ObjectId;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Objects of one leaf in memory at most, before it is split. Written leaves are smaller ([`super::LeafShape::objects`]).
const SPLIT: usize = 256;

/// One leaf: never empty, sorted, each object once.
#[derive(Clone, Debug)]
pub(super) struct Slot<V> {
    /// Where it was written; `None` where it has changed since, or never was.
    pub at: Option<PageRef>,
    pub entries: Arc<Vec<(ObjectId, V)>>,
}

/// See the module. The key of a leaf is not above its first object; what lies before the first leaf's key belongs to that leaf.
#[derive(Clone, Debug)]
pub(super) struct Table<V> {
    leaves: BTreeMap<ObjectId, Slot<V>>,
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
        let (_, slot) = self.leaves.range(..=object).next_back()?;
        let at = slot.entries.binary_search_by_key(&object, |(id, _)| *id).ok()?;
        slot.entries.get(at).map(|(_, value)| *value)
    }

    /// Notes the object, or what is known of it from now on.
    pub(super) fn set(&mut self, object: ObjectId, value: V) {
        let Some(mut key) = self.key_for(object) else {
            self.leaves.insert(object, Slot { at: None, entries: Arc::new(vec![(object, value)]) });
            return;
        };
        if object < key
            && let Some(first) = self.leaves.remove(&key)
        {
            self.leaves.insert(object, first);
            key = object;
        }
        let Some(slot) = self.leaves.get_mut(&key) else { return };
        match slot.entries.binary_search_by_key(&object, |(id, _)| *id) {
            Ok(at) if slot.entries[at].1 == value => return,
            Ok(at) => Arc::make_mut(&mut slot.entries)[at].1 = value,
            Err(at) => Arc::make_mut(&mut slot.entries).insert(at, (object, value)),
        }
        slot.at = None;
        if slot.entries.len() >= SPLIT {
            let lower = Arc::make_mut(&mut slot.entries);
            let upper = lower.split_off(SPLIT / 2);
            // Most of what is left of it never grows again.
            lower.shrink_to_fit();
            if let Some((first, _)) = upper.first().copied() {
                self.leaves.insert(first, Slot { at: None, entries: Arc::new(upper) });
            }
        }
    }

    pub(super) fn remove(&mut self, object: ObjectId) {
        let Some((key, slot)) = self.leaves.range_mut(..=object).next_back() else { return };
        let Ok(at) = slot.entries.binary_search_by_key(&object, |(id, _)| *id) else { return };
        let key = *key;
        Arc::make_mut(&mut slot.entries).remove(at);
        slot.at = None;
        if slot.entries.is_empty() {
            self.leaves.remove(&key);
        }
    }

    /// All, sorted.
    pub(super) fn iter(&self) -> impl Iterator<Item = (ObjectId, V)> + '_ {
        self.leaves.values().flat_map(|slot| slot.entries.iter().copied())
    }

    pub(super) fn len(&self) -> usize {
        self.leaves.values().map(|slot| slot.entries.len()).sum()
    }

    pub(super) fn leaves(&self) -> impl Iterator<Item = (&ObjectId, &Slot<V>)> {
        self.leaves.iter()
    }

    pub(super) fn leaves_mut(&mut self) -> impl Iterator<Item = &mut Slot<V>> {
        self.leaves.values_mut()
    }

    /// Adds a leaf behind all that there are. It must not be empty, and its objects must be sorted and above theirs.
    pub(super) fn push(&mut self, slot: Slot<V>) {
        if let Some((first, _)) = slot.entries.first() {
            self.leaves.insert(*first, slot);
        }
    }

    /// Makes leaves of at most `most` objects, and one of two neighbours that have become small, where either is to be written anyway. What is as it was
    /// written stays as it is.
    pub(super) fn settle(&mut self, most: usize) {
        let most = most.max(1);
        let mut out = Self::default();
        let mut last: Option<Slot<V>> = None;
        for slot in std::mem::take(&mut self.leaves).into_values() {
            last = match last.take() {
                Some(mut before)
                    if (before.at.is_none() || slot.at.is_none())
                        && before.entries.len() + slot.entries.len() <= most / 2 =>
                {
                    Arc::make_mut(&mut before.entries).extend(slot.entries.iter().copied());
                    Some(Slot { at: None, ..before })
                }
                before => {
                    before.into_iter().for_each(|before| out.push_parts(before, most));
                    Some(slot)
                }
            };
        }
        last.into_iter().for_each(|last| out.push_parts(last, most));
        *self = out;
    }

    fn push_parts(&mut self, slot: Slot<V>, most: usize) {
        let count = slot.entries.len();
        if slot.at.is_some() || count <= most {
            return self.push(slot);
        }
        // Parts of one length, with room in each for what comes.
        let parts = count.div_ceil(most);
        for part in slot.entries.chunks(count.div_ceil(parts)) {
            self.push(Slot { at: None, entries: Arc::new(part.to_vec()) });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::tests::object;
    use proptest::collection::vec;
    use proptest::prelude::*;

    proptest! {
        /// Against a plain sorted map: what is there, what a leaf may hold, and that only what changed is written.
        #[test]
        fn a_table_is_a_sorted_map_in_leaves(
            rounds in vec((vec((0_u128..600, 0_u8..4), 0..300), 1_usize..9), 1..6),
        ) {
            let (mut table, mut flat) = (Table::<u8>::default(), BTreeMap::new());
            for (round, (changes, most)) in rounds.into_iter().enumerate() {
                let written: Vec<(ObjectId, Vec<(ObjectId, u8)>)> =
                    table.leaves().map(|(key, slot)| (*key, slot.entries.to_vec())).collect();
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
                for (key, slot) in table.leaves() {
                    let first = slot.entries.first().map(|(object, _)| *object);
                    prop_assert!(first.is_some_and(|first| *key <= first), "never empty");
                    prop_assert!(slot.entries.windows(2).all(|w| w[0].0 < w[1].0));
                    prop_assert!(slot.at.is_some() || slot.entries.len() <= most, "{} of {most}", slot.entries.len());
                }
                // A leaf that stays written has what it had, and no leaf in which nothing changed is written for that alone, but for the join with a neighbour.
                for (key, slot) in table.leaves().filter(|(_, slot)| slot.at.is_some()) {
                    let had = written.iter().find(|(_, entries)| entries.first().map(|e| e.0) == slot.entries.first().map(|e| e.0));
                    prop_assert_eq!(had.map(|(_, entries)| entries), Some(&*slot.entries), "{}", key);
                }
                if touched.is_empty() && round > 0 {
                    prop_assert!(table.leaves().all(|(_, slot)| slot.at.is_some()));
                }
                let at = PageRef { object: object(7), number: 0, offset: 0, sealed_len: 17, raw_len: 1 };
                table.leaves_mut().for_each(|slot| slot.at = Some(at));
            }
        }
    }
}
