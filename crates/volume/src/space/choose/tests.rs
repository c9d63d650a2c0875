//! Choosing by leaf summaries against a full sort of all objects.

use super::*;
use crate::map::{Live, PackUse, PageRef, Root};
use crate::object::tests::object;
use holdfast_types::{LogId, VolumeId};
use proptest::collection::vec;
use proptest::prelude::*;

fn all_segments(root: &Root, spared: &Spared) -> Vec<(ObjectId, SegmentUse)> {
    root.segments().filter(|(object, usage)| !spared.has(*object, usage)).collect()
}

fn sums(segments: &[(ObjectId, SegmentUse)]) -> Amplification {
    segments.iter().fold(Amplification::default(), |sum, (_, usage)| Amplification {
        stored_bytes: sum.stored_bytes + usage.stored_bytes,
        live_bytes: sum.live_bytes + share(usage.stored_bytes, usage.live_sectors, usage.raw_sectors),
    })
}

fn plain_segments_to_collect(root: &Root, target_percent: u32, budget_bytes: u64, spared: &Spared) -> Vec<ObjectId> {
    let candidates = all_segments(root, spared);
    let mut sums = sums(&candidates);
    let mut by_share: Vec<_> = candidates
        .into_iter()
        .filter(|(_, usage)| usage.live_sectors < usage.raw_sectors)
        .map(|(object, usage)| (share(1 << 32, usage.live_sectors, usage.raw_sectors), object, usage))
        .collect();
    by_share.sort_unstable_by_key(|(share, object, _)| (*share, *object));
    let (mut chosen, mut copied) = (Vec::new(), 0);
    for (_, object, usage) in by_share {
        copied += usage.live_sectors.0 * SECTOR_BYTES;
        if !sums.above(target_percent) || copied > budget_bytes && !chosen.is_empty() {
            break;
        }
        let live = share(usage.stored_bytes, usage.live_sectors, usage.raw_sectors);
        sums.stored_bytes -= usage.stored_bytes - live.min(usage.stored_bytes);
        chosen.push(object);
    }
    chosen
}

fn plain_packs_to_collect(root: &Root, target_percent: u32) -> BTreeSet<ObjectId> {
    let known = root.pack_uses().into_iter().filter(|(_, usage)| usage.stored_bytes > 0);
    let mut uses: Vec<(ObjectId, PackUse)> = known.collect();
    let mut sums = uses.iter().fold(Amplification::default(), |sum, (_, usage)| Amplification {
        stored_bytes: sum.stored_bytes + usage.stored_bytes,
        live_bytes: sum.live_bytes + usage.live_bytes,
    });
    uses.sort_unstable_by_key(|(object, usage)| {
        (share(1 << 32, Sectors(usage.live_bytes), Sectors(usage.stored_bytes)), *object)
    });
    let mut chosen = BTreeSet::new();
    let (mut before, mut pages, mut live) = (0, 0, 0);
    for (object, usage) in uses {
        if !sums.above(target_percent) {
            break;
        }
        sums.stored_bytes -= usage.stored_bytes - usage.live_bytes.min(usage.stored_bytes);
        (before, pages, live) = (before + usage.stored_bytes, pages + usage.live_pages, live + usage.live_bytes);
        chosen.insert(object);
    }
    if pack_bytes_max(pages, live) < before { chosen } else { BTreeSet::new() }
}

/// A segment: its length, its sealed sectors, and those in use.
fn any_segment() -> impl Strategy<Value = (u64, u64, u64)> {
    let raw = prop_oneof![1_u64..20, Just(1_u64 << 20), (1_u64 << 20)..(1_u64 << 20) + 3];
    (1_u64..5000, raw, 0_u64..40, any::<bool>()).prop_map(|(stored, raw, some, near)| {
        // Some whole, some nearly, some with nothing in use.
        let live = if near { raw.saturating_sub(some / 8) } else { some.min(raw) };
        (stored, raw, live)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// The choice, the sums and the dropped objects, before and after some changes.
    #[test]
    fn choosing_by_leaf_chooses_the_same(
        segments in vec((0_u128..2000, any_segment()), 0..600),
        packs in vec((0_u128..40, 0_u32..3, 1_u32..9), 0..300),
        lengths in vec((0_u128..40, 1_u64..90), 0..40),
        spared in vec((any::<prop::sample::Index>(), any::<bool>()), 0..4),
        choices in vec((100_u32..400, prop_oneof![Just(0_u64), Just(u64::MAX), 0_u64..1 << 30]), 1..5),
    ) {
        let (volume, mut root, mut live) = (VolumeId(1), Root::new(LogId::new(1, 1)), Live::new());
        for (random, (stored, raw, used)) in segments {
            root.add_segment(object(random), stored, Sectors(raw));
            // Of a duplicate the last entry counts.
            live.insert(object(random), Sectors(used));
        }
        let page = |pack: u128, number| PageRef {
            object: object((1 << 64) + pack),
            number,
            offset: 104,
            sealed_len: 20 + number,
            raw_len: 4 + number,
        };
        root.replace_page(volume, 0, Some(page(0, 1)), &Live::new(), &live).unwrap();
        for (at, (pack, gap, number)) in (1_u32..).zip(packs) {
            root.replace_page(volume, at * 60 + gap, Some(page(pack, number)), &Live::new(), &Live::new()).unwrap();
        }
        for (pack, stored) in lengths {
            root.add_pack(object((1 << 64) + pack), stored * 10);
        }
        for round in 0..2 {
            let all: Vec<(ObjectId, SegmentUse)> = root.segments().collect();
            let mut left_out = Spared::default();
            for (at, counted) in &spared {
                let Some((object, usage)) = all.get(at.index(all.len().max(1))) else { continue };
                // The present count, or an old one, which means nothing any more.
                let live = if *counted { usage.live_sectors } else { Sectors(usage.live_sectors.0 + 1) };
                left_out.at.insert(*object, live);
            }
            prop_assert_eq!(Amplification::of(&root), sums(&all));
            for (percent, budget) in &choices {
                let found = segments_to_collect(&root, *percent, *budget, &left_out);
                prop_assert_eq!(found, plain_segments_to_collect(&root, *percent, *budget, &left_out), "round {}", round);
                let packs = packs_to_collect(&root, *percent);
                prop_assert_eq!(&packs, &plain_packs_to_collect(&root, *percent), "round {}", round);
                let pages: Vec<_> = root.pages().filter(|(_, _, place)| packs.contains(&place.object)).collect();
                prop_assert_eq!(root.pages_in_packs(&packs).collect::<Vec<_>>(), pages);
            }
            // All of one pack, and parts of a few others, existing or not.
            let few: BTreeSet<ObjectId> = [0_u128, 3, 17, 99].into_iter().map(|pack| object((1 << 64) + pack)).collect();
            let pages: Vec<_> = root.pages().filter(|(_, _, place)| few.contains(&place.object)).collect();
            prop_assert_eq!(root.pages_in_packs(&few).collect::<Vec<_>>(), pages);
            let dead: Vec<ObjectId> =
                all.iter().filter(|(_, usage)| usage.live_sectors.0 == 0).map(|(object, _)| *object).collect();
            prop_assert_eq!(root.drop_dead_segments(), dead);
            // Half of the page's content goes; the root no longer knows the dead ones.
            live.retain(|_, used| used.0 > 0);
            let after: Live = live.iter().filter(|(object, _)| object.random % 2 == 0).map(|(id, used)| (*id, *used)).collect();
            root.replace_page(volume, 0, Some(page(39, 2)), &live, &after).unwrap();
            live = after;
        }
    }
}
