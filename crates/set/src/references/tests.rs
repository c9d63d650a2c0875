use super::*;
use holdfast_seal::DataKey;
use holdfast_store::Memory;
use holdfast_types::{GroupId, Lba, MemberId, Sectors, Term, VolumeId};
use holdfast_volume::map::{LeafShape, Live, PackBuilder, Page, PageRef, seal_root};
use holdfast_volume::segment::{Codec, SegmentBuilder};

const SET: SetId = GroupId(3);

fn id(random: u128) -> ObjectId {
    ObjectId { term: Term(2), member: MemberId(1), boot: 1, random }
}

/// Pieces of any size give the same result: each object that is missing or has another length, once.
#[tokio::test]
async fn a_comparison_piece_by_piece_finds_what_is_gone_and_what_has_another_length() {
    let store = Memory::new();
    let named: Vec<(ObjectId, u64)> = (0..2_500).map(|n| (id(n * 3), 4)).collect();
    let mut expected = Vec::new();
    for (n, (object, bytes)) in named.iter().enumerate() {
        let body = match n {
            _ if n % 97 == 5 => None,
            _ if n % 89 == 7 => Some("cut"),
            _ => Some("good"),
        };
        match body {
            Some(body) => store.put_new(&keys::segment(SET, *object), Bytes::from(body)).await.unwrap(),
            None => expected.push((*object, *bytes, false)),
        }
        if body == Some("cut") {
            expected.push((*object, *bytes, true));
        }
    }
    // Objects that no root names must not appear in the result.
    for n in 0..500 {
        store.put_new(&keys::segment(SET, id(n * 15 + 1)), Bytes::from_static(b"other")).await.unwrap();
    }
    for most in [1, 700, 1_000, 1_500, 100_000] {
        let (mut found, mut after, mut pieces) = (Vec::new(), None::<String>, 0);
        loop {
            let piece = Piece::list(&store, SET, keys::Kind::Segment, after.as_deref(), most).await.unwrap();
            found.extend(piece.lacking(after.as_deref(), &named));
            pieces += 1;
            after = piece.more;
            if after.is_none() {
                break;
            }
        }
        assert_eq!(found, expected, "{pieces} pieces of {most}");
        assert_eq!(pieces > 1, most < 3_000, "{pieces} pieces of {most}");
    }
}

/// R9: a change of any bit of any kind of object is found.
#[test]
fn a_copy_with_any_bit_flipped_or_cut_short_is_found() {
    let key = SetKey::of(SET, 1, DataKey::from_bytes([6; 32]));
    let mut segment = SegmentBuilder::new(key.sealer(id(1)), Codec::Lz4);
    segment.push(VolumeId(1), Lba(8), &[7; 4096]);
    segment.push(VolumeId(1), Lba(64), &[9; 512]);
    let mut pack = PackBuilder::new(key.sealer(id(2)));
    pack.push(&Page::new(VolumeId(1), 3));
    let root = seal_root(&Root::new(holdfast_types::LogId::new(2, 10)), key.sealer(id(3)));
    let mut in_leaves = Root::new(holdfast_types::LogId::new(2, 10));
    in_leaves.add_segment(id(1), 5, Sectors(9));
    let place = PageRef { object: id(2), number: 0, offset: 104, sealed_len: 50, raw_len: 34 };
    let live = [(id(1), Sectors(9))].into();
    in_leaves.replace_page(VolumeId(1), 3, Some(place), &Live::new(), &live).unwrap();
    let shape = LeafShape { pages: 2, objects: 1, packs: 9, whole_bytes: 0 };
    let leaves = in_leaves.write_leaves(&shape, || key.sealer(id(4))).remove(0).body;
    let objects = [
        (keys::map_pack(SET, id(4)), leaves),
        (keys::root(SET, id(5)), seal_root(&in_leaves, key.sealer(id(5)))),
        (keys::segment(SET, id(1)), segment.finish()),
        (keys::map_pack(SET, id(2)), pack.finish()),
        (keys::root(SET, id(3)), root),
    ];
    for (name, body) in &objects {
        assert_eq!(check_object(&key, name, body), Ok(()));
        for at in 0..body.len() {
            let mut bad = body.to_vec();
            bad[at] ^= 4;
            assert!(check_object(&key, name, &Bytes::from(bad)).is_err(), "{name}: byte {at}");
            assert!(check_object(&key, name, &body.slice(..at)).is_err(), "{name}: cut at {at}");
        }
        let longer = Bytes::from([body.as_ref(), b"x"].concat());
        assert!(check_object(&key, name, &longer).is_err(), "{name}: one byte more");
        // Another object's bytes under this key.
        for (other, body) in objects.iter().filter(|(other, _)| other != name) {
            assert!(check_object(&key, name, body).is_err(), "{other} as {name}");
        }
    }
    assert!(check_object(&key, "sets/4/seg/x", &objects[2].1).is_err());
}

/// Looking up one object gives the same result as going through all of them.
#[test]
fn one_object_is_as_long_as_in_the_list_of_all() {
    let key = SetKey::of(SET, 1, DataKey::from_bytes([6; 32]));
    let mut root = Root::new(holdfast_types::LogId::new(2, 10));
    let place = |pack, number| PageRef { object: id(pack), number, offset: 104, sealed_len: 50, raw_len: 34 };
    for n in 0..300 {
        root.add_segment(id(n), 1000 + n as u64, Sectors(9));
        let live = [(id(n), Sectors(1))].into();
        root.replace_page(VolumeId(1), n as u32, Some(place(500 + n / 4, n as u32)), &Live::new(), &live).unwrap();
        root.add_pack(id(500 + n / 8 * 2), 70 + n as u64);
    }
    // No page in this pack is named any more.
    for number in 40..44_u32 {
        let live = [(id(u128::from(number)), Sectors(1))].into();
        root.replace_page(VolumeId(1), number, None, &live, &Live::new()).unwrap();
    }
    let mut in_leaves = root.clone();
    let shape = LeafShape { pages: 2, objects: 3, packs: 9, whole_bytes: 0 };
    assert!(!in_leaves.write_leaves(&shape, || key.sealer(id(4000))).is_empty());
    for root in [&root, &in_leaves] {
        for (kind, _) in KINDS {
            let all: BTreeMap<ObjectId, u64> =
                named(kind, RootRef { object: id(2000), bytes: 17 }, root).into_iter().collect();
            for object in (0..5000).map(id) {
                let found = length_of(kind, object, RootRef { object: id(2000), bytes: 17 }, root);
                assert_eq!(found, all.get(&object).copied(), "{kind:?} {object}");
            }
        }
    }
}
