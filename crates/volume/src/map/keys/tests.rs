use super::super::*;
use super::*;
use crate::object::tests::{OBJECT, SET, assert_golden, assert_kept, from_hex, key, object};
use holdfast_control::set::RootRef;
use holdfast_seal::{DataKey, ObjectOpener, ObjectSealer};
use holdfast_types::{GroupId, LogId, VolumeId};
use proptest::prelude::*;

const V: VolumeId = VolumeId(4);

fn place(pack: u128, number: u32) -> PageRef {
    PageRef { object: object(pack), number, offset: 104 + 50 * number, sealed_len: 50, raw_len: 34 }
}

/// A checkpoint under `key_id` over `base`: page `number` is now in `pack` and refers to all of `segment`.
fn checkpoint(base: &Root, key_id: u32, number: u32, pack: u128, segment: u128, before: &Live) -> (Root, Live) {
    let mut root = base.clone();
    root.seal_under(key_id);
    root.add_segment(object(segment), 900, Sectors(8));
    let after: Live = [(object(segment), Sectors(8))].into();
    root.replace_page(V, number, Some(place(pack, number)), before, &after).unwrap();
    root.add_pack(object(pack), 400);
    root.drop_dead_segments();
    (root, after)
}

fn sealer(key_id: u32) -> ObjectSealer {
    ObjectSealer::new(&key(), key_id, SET, OBJECT)
}

fn opener(key_ids: &[u32]) -> ObjectOpener {
    let first = ObjectOpener::new(&key(), key_ids[0], SET, OBJECT);
    key_ids[1..].iter().fold(first, |opener, id| opener.or(&key(), *id))
}

#[test]
fn what_was_there_is_under_the_old_key_and_what_comes_is_under_the_new() {
    let (first, live) = checkpoint(&Root::new(LogId::new(1, 1)), 1, 0, 90, 1, &Live::new());
    assert_eq!(first.keys_needed(), [1].into());
    let (second, _) = checkpoint(&first, 2, 1, 91, 2, &Live::new());
    assert_eq!((second.key_id(), second.keys_needed()), (2, [1, 2].into()));
    assert_eq!([1, 2, 90, 91].map(|at| second.key_of(object(at))), [1, 2, 1, 2]);
    assert_eq!(second.key_uses()[&1], KeyUse { objects: 2, stored_bytes: 900 + 400, live_bytes: 8 * 512 });
    // The page that referred to the old ones is written again: then nothing is under the old key.
    let (third, _) = checkpoint(&second, 2, 0, 92, 3, &live);
    assert_eq!(third.keys_needed(), [2].into());
    // Three at once.
    let (fourth, _) = checkpoint(&second, 5, 2, 93, 4, &Live::new());
    assert_eq!(fourth.keys_needed(), [1, 2, 5].into());
}

/// Limits on memory for roots use this, and after a key change each root lists all its objects.
#[test]
fn what_is_listed_is_counted_as_memory() {
    let mut root = Root::new(LogId::new(1, 1));
    root.seal_under(1);
    (0..1000).for_each(|random| root.add_segment(object(random), 900, Sectors(8)));
    let before = (root.memory_bytes(), root.objects().memory_bytes());
    root.seal_under(2);
    assert!(root.is_under_older(object(999)), "what is tested is not there");
    let least = 1000 * (size_of::<ObjectId>() + size_of::<u32>()) as u64;
    assert!(root.memory_bytes() >= before.0 + least, "{} bytes, {before:?} before", root.memory_bytes());
    assert!(root.objects().memory_bytes() >= before.1 + least, "{} bytes", root.objects().memory_bytes());
}

#[test]
fn only_a_root_that_lists_something_is_of_the_new_version() {
    let (first, _) = checkpoint(&Root::new(LogId::new(1, 1)), 1, 0, 90, 1, &Live::new());
    assert_eq!(first.encode()[3], 2, "a build of before reads it");
    let (second, _) = checkpoint(&first, 2, 1, 91, 2, &Live::new());
    let kept = include_str!("../../../golden/root_keys.hex");
    assert_golden("root_keys", &seal_root(&second, sealer(2)), kept);
    assert_eq!(open_root(&opener(&[3, 2, 1]), &from_hex(kept)).unwrap(), second);
    assert_kept("root_keys", &from_hex(kept), &Ok(second), |bytes| open_root(&opener(&[3, 2, 1]), bytes));
    let base = Base::new(
        GroupId(3),
        RootRef { object: object(7), bytes: 9 },
        LogId::new(1, 1),
        [(V, Sectors(99))].into_iter(),
    );
    let (over, _) = checkpoint(&Root::over(LogId::new(1, 1), base), 1, 0, 90, 1, &Live::new());
    let (over, _) = checkpoint(&over, 2, 1, 91, 2, &Live::new());
    assert_eq!(open_root(&opener(&[2, 1]), &seal_root(&over, sealer(2))).unwrap(), over);
}

#[test]
fn a_root_is_opened_with_the_key_that_its_header_names() {
    let (first, _) = checkpoint(&Root::new(LogId::new(1, 1)), 1, 0, 90, 1, &Live::new());
    let sealed = seal_root(&first, sealer(1));
    assert_eq!(open_root(&opener(&[2, 1]), &sealed).unwrap().key_id(), 1);
    let error = open_root(&opener(&[2]), &sealed).unwrap_err().to_string();
    assert!(error.contains("sealed under data key 1, expected 2"), "{error}");
    let other = ObjectOpener::new(&DataKey::from_bytes([9; 32]), 2, SET, OBJECT).or(&DataKey::from_bytes([9; 32]), 1);
    assert!(open_root(&other, &sealed).is_err());
}

#[test]
fn a_root_cannot_need_a_newer_key_than_its_own() {
    let (first, _) = checkpoint(&Root::new(LogId::new(1, 1)), 1, 0, 90, 1, &Live::new());
    let (mut second, _) = checkpoint(&first, 3, 1, 91, 2, &Live::new());
    second.objects.under.older.insert(object(1), 3);
    assert!(open_root(&opener(&[3, 1]), &seal_root(&second, sealer(3))).is_err());
}

#[test]
#[should_panic(expected = "UNDER-U2: found a root under data key 1, expected at least 2")]
fn a_root_is_never_under_an_older_key_than_its_base() {
    let (mut root, _) = checkpoint(&Root::new(LogId::new(1, 1)), 2, 0, 90, 1, &Live::new());
    root.seal_under(1);
}

#[test]
#[should_panic(expected = "R10: a root for data key 2 is sealed under 1")]
fn a_root_is_sealed_under_the_key_that_it_was_made_for() {
    let (root, _) = checkpoint(&Root::new(LogId::new(1, 1)), 2, 0, 90, 1, &Live::new());
    seal_root(&root, sealer(1));
}

proptest! {
    /// Checkpoints under growing keys, each rewriting some pages: the root gives every object's key as recorded at its
    /// writing; also after a restart, which decodes the root.
    #[test]
    fn a_root_knows_what_each_of_its_objects_is_under(
        steps in proptest::collection::vec((0u32..4, 0u32..2, any::<bool>()), 1..30),
    ) {
        let (mut root, mut key_id) = (Root::new(LogId::new(1, 1)), 1);
        let mut pages: BTreeMap<u32, (u128, Live)> = BTreeMap::new();
        let mut truth: BTreeMap<ObjectId, u32> = BTreeMap::new();
        for (at, (page, step, restart)) in steps.into_iter().enumerate() {
            key_id += step;
            let (pack, segment) = (1000 + at as u128, 1 + at as u128);
            let before = pages.get(&page).map(|(_, live)| live.clone()).unwrap_or_default();
            let (next, live) = checkpoint(&root, key_id, page, pack, segment, &before);
            truth.insert(object(pack), key_id);
            truth.insert(object(segment), key_id);
            pages.insert(page, (pack, live));
            root = if restart {
                let ring: Vec<u32> = (1..=key_id).rev().collect();
                open_root(&opener(&ring), &seal_root(&next, sealer(key_id))).unwrap()
            } else {
                next
            };
            let mut needed = BTreeSet::from([key_id]);
            for named in root.names() {
                prop_assert_eq!(root.key_of(named.object), truth[&named.object]);
                needed.insert(truth[&named.object]);
            }
            prop_assert_eq!(root.keys_needed(), needed);
            let counted: u64 = root.key_uses().values().map(|usage| usage.objects).sum();
            prop_assert_eq!(counted, root.names().count() as u64);
        }
    }
}
