use super::*;
use crate::map::{Live, PageRef, Root};
use crate::object::tests::object;
use holdfast_types::{LogId, Sectors, VolumeId};

const V: VolumeId = VolumeId(1);

/// Segments 1 to 3 with 8, 16 and 32 sectors in use and pages in packs 90 and 91, under key 1; then segment 4 under key
/// 2.
fn half_way() -> Root {
    let mut root = Root::new(LogId::new(1, 1));
    root.seal_under(1);
    let mut live = Live::new();
    for (random, used) in [(1u128, 8), (2, 16), (3, 32)] {
        root.add_segment(object(random), 40 * 512, Sectors(40));
        live.insert(object(random), Sectors(used));
    }
    let page = |pack, number| Some(PageRef { object: object(pack), number, offset: 104, sealed_len: 50, raw_len: 34 });
    root.replace_page(V, 0, page(90, 0), &Live::new(), &live).unwrap();
    root.replace_page(V, 1, page(90, 1), &Live::new(), &Live::new()).unwrap();
    root.replace_page(V, 2, page(91, 0), &Live::new(), &Live::new()).unwrap();
    root.seal_under(2);
    root.add_segment(object(4), 40 * 512, Sectors(40));
    root.replace_page(V, 3, page(92, 0), &Live::new(), &[(object(4), Sectors(40))].into()).unwrap();
    root
}

fn ids(found: impl IntoIterator<Item = ObjectId>) -> Vec<u128> {
    found.into_iter().map(|object| object.random).collect()
}

#[test]
fn old_segments_go_by_what_is_in_use_and_one_at_least() {
    let (root, spared) = (half_way(), Spared::default());
    let chosen = |budget, chosen: &[ObjectId]| ids(segments_to_reseal(&root, 2, budget, chosen, &spared));
    assert_eq!(chosen(u64::MAX, &[]), [1, 2, 3]);
    assert_eq!(chosen(24 * 512, &[]), [1, 2]);
    assert_eq!(chosen(0, &[]), [1]);
    // A move is chosen already: the budget is per checkpoint, not per choice.
    assert!(chosen(0, &[object(9)]).is_empty());
    assert_eq!(chosen(24 * 512, &[object(1)]), [2]);
    assert!(
        ids(segments_to_reseal(&root, 1, u64::MAX, &[], &spared)).is_empty(),
        "nothing is under an older key than 1"
    );
}

#[test]
fn what_emptying_did_not_help_is_left() {
    let (root, mut spared) = (half_way(), Spared::default());
    spared.note(&root, object(1));
    assert_eq!(ids(segments_to_reseal(&root, 2, u64::MAX, &[], &spared)), [2, 3]);
}

#[test]
fn old_packs_go_whole() {
    let root = half_way();
    assert_eq!(ids(packs_to_reseal(&root, 2, 100)), [90, 91]);
    assert_eq!(ids(packs_to_reseal(&root, 2, 2)), [90]);
    assert_eq!(ids(packs_to_reseal(&root, 2, 1)), [90], "one at least, or it would never end");
    assert!(packs_to_reseal(&root, 1, 100).is_empty());
}
