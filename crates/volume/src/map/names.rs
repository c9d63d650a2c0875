//! Objects that one root names and others do not: they are garbage. Shared leaves are skipped as a whole.

use super::objects::{Objects, PackUse, SegmentUse};
use super::table::Table;
use holdfast_control::set::{StoredKind, StoredObject};

/// Page packs and segments of one root, minus those of others. Without the packs of its own leaves.
#[derive(Clone, Debug)]
pub(crate) struct Names {
    packs: Table<PackUse>,
    segments: Table<SegmentUse>,
}

impl Names {
    /// All of a root's.
    pub(crate) fn of(root: &Objects) -> Self {
        Self { packs: root.packs.clone(), segments: root.segments.clone() }
    }

    /// Removes the objects that another root names (MAP-M3). Cost: the number of leaves, and the objects of leaves that
    /// the other does not share.
    pub(crate) fn take_out(&mut self, other: &Objects) {
        let has_pages = |pack| other.packs.get(pack).is_some_and(|usage| usage.live_pages > 0);
        self.packs.take_out(&other.packs, |pack| has_pages(pack) || other.leaf_packs.contains_key(&pack));
        self.segments.take_out(&other.segments, |segment| other.segments.get(segment).is_some());
    }

    /// The remaining objects, in order.
    pub(crate) fn objects(&self) -> impl Iterator<Item = StoredObject> {
        // Like a root, without packs that hold no page.
        let packs = self.packs.iter().filter(|(_, usage)| usage.live_pages > 0);
        let packs = packs.map(|(object, _)| StoredObject { kind: StoredKind::Pages, object });
        packs.chain(self.segments.iter().map(|(object, _)| StoredObject { kind: StoredKind::Segment, object }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::map::{Live, PageRef, Root};
    use crate::object::tests::object;
    use holdfast_types::{LogId, ObjectId, Sectors, VolumeId};
    use proptest::collection::vec;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    const V: VolumeId = VolumeId(1);

    /// Objects of one kind by number, so that each kind has several leaves.
    fn any_number() -> impl Strategy<Value = u128> {
        prop_oneof![0_u128..8, 0_u128..900]
    }

    /// Removes page `number`, or places it in this pack and lets it refer to this segment.
    fn set(root: &mut Root, lives: &mut BTreeMap<u32, Live>, number: u32, to: Option<(u128, u128)>) {
        let before = lives.remove(&number).unwrap_or_default();
        let (mut place, mut after) = (None, Live::new());
        if let Some((pack, segment)) = to {
            let segment = object(segment);
            if root.segment(segment).is_none() {
                root.add_segment(segment, 900, Sectors(1 << 20));
            }
            after.insert(segment, Sectors(1));
            place =
                Some(PageRef { object: object((1 << 64) + pack), number, offset: 104, sealed_len: 50, raw_len: 34 });
            lives.insert(number, after.clone());
        }
        root.replace_page(V, number, place, &before, &after).unwrap();
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(100))]

        /// Compares with sets of names, for roots derived from one another and roots decoded from bytes.
        #[test]
        fn what_is_left_is_what_no_other_root_names(
            steps in vec((vec((0_u32..400, any_number(), any_number(), 0_u8..6), 0..60), any::<bool>()), 2..6),
            dropped in any::<prop::sample::Index>(),
            sealed in any::<bool>(),
        ) {
            let (mut root, mut lives, mut roots) = (Root::new(LogId::new(1, 1)), BTreeMap::new(), Vec::new());
            // Enough that most leaves are shared.
            for number in 0..600_u32 {
                set(&mut root, &mut lives, 1000 + number, Some((number.into(), (number * 7 % 900).into())));
            }
            for (changes, reread) in steps {
                for (number, pack, segment, kind) in changes {
                    set(&mut root, &mut lives, number * 4, (kind > 0).then_some((pack, segment)));
                }
                if sealed {
                    root.drop_dead_segments();
                }
                // Shares nothing with the roots before.
                if reread && sealed {
                    root = Root::decode(&root.encode()).unwrap();
                }
                roots.push(root.clone());
            }
            let dropped = dropped.index(roots.len());
            let mut names = Names::of(&roots[dropped]);
            let mut left: BTreeSet<StoredObject> = roots[dropped].names().collect();
            prop_assert_eq!(names.objects().collect::<Vec<_>>(), left.iter().copied().collect::<Vec<_>>());
            for (at, kept) in roots.iter().enumerate().filter(|(at, _)| *at != dropped) {
                names.take_out(kept);
                kept.names().for_each(|named| {
                    left.remove(&named);
                });
                prop_assert_eq!(names.objects().collect::<Vec<_>>(), left.iter().copied().collect::<Vec<_>>(), "{}", at);
            }
        }
    }

    /// Shared leaves are skipped: no object of one is ever looked up.
    #[test]
    fn leaves_that_two_roots_share_go_as_they_are() {
        let mut before = Root::new(LogId::new(1, 1));
        (0..2000).for_each(|n| before.add_segment(object(n), 512, Sectors(1)));
        let mut after = before.clone();
        after.add_segment(object(777), 512, Sectors(2));
        after.add_segment(object(5000), 512, Sectors(2));
        let asked = std::cell::RefCell::new(BTreeSet::new());
        let mut left = before.segments.clone();
        left.take_out(&after.segments, |object| {
            asked.borrow_mut().insert(object);
            after.segments.get(object).is_some()
        });
        assert_eq!(left.len(), 0, "expected no object that only this root names");
        let asked: BTreeSet<ObjectId> = asked.into_inner();
        assert!(
            asked.contains(&object(777)) && asked.len() <= 512,
            "found {} objects looked up, expected those of two leaves",
            asked.len()
        );
    }
}
