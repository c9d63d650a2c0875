//! Several data keys of one set (ADR 0023), and which cluster key wrapped a key.

use holdfast_seal::{
    Argon2id, ClusterKey, DataKey, ExtentAad, ExtentPart, NodeKey, ObjectOpener, ObjectSealer, PASSPHRASE_BYTES_MIN,
    Part, SealError, node_wrapped_by, wrapped_by,
};
use holdfast_types::{GroupId, Lba, MemberId, ObjectId, SetId, Term, VolumeId};

const SET: SetId = GroupId(5);
const OBJECT: ObjectId = ObjectId { term: Term(7), member: MemberId(2), boot: 3, random: 0xabcd };
const BLOCK: ExtentPart = ExtentPart::Block(0);
const AAD: ExtentAad = ExtentAad { volume: VolumeId(4), lba: Lba(8), raw_len: 512, codec: 1 };

/// Data key `id` has `id` in each byte.
fn key(id: u32) -> DataKey {
    DataKey::from_bytes([id as u8; 32])
}

fn sealer(id: u32) -> ObjectSealer {
    ObjectSealer::new(&key(id), id, SET, OBJECT)
}

fn opener(id: u32) -> ObjectOpener {
    ObjectOpener::new(&key(id), id, SET, OBJECT)
}

#[test]
fn sealer_and_opener_say_what_they_are_for() {
    let (sealer, opener) = (sealer(3), opener(3));
    assert_eq!((sealer.object(), sealer.set(), sealer.key_id()), (OBJECT, SET, 3));
    assert_eq!((opener.object(), opener.set(), opener.key_id()), (OBJECT, SET, 3));
}

/// While a set changes its data key, its objects are sealed under either.
#[test]
fn an_opener_of_several_keys_opens_what_any_of_them_sealed() {
    let both = || opener(1).or(&key(2), 2);
    assert_eq!(both().key_id(), 1, "the first key stays first");
    for id in [1, 2] {
        let sealed = sealer(id).seal_extent(0, BLOCK, AAD, b"data");
        assert_eq!(both().open_extent(0, BLOCK, AAD, &sealed).as_deref(), Ok(&b"data"[..]));
        assert_eq!(
            both().open_part(Part::Root, &sealer(id).seal_part(Part::Root, b"root")).as_deref(),
            Ok(&b"root"[..])
        );
    }
    let error = both().open_part(Part::Root, &sealer(3).seal_part(Part::Root, b"root")).expect_err("of a third key");
    assert!(matches!(&error, SealError::NotAuthentic { expected, .. } if expected.key_id == 1), "{error}");
}

#[test]
fn an_opener_knows_its_keys() {
    let one = opener(1);
    assert!(one.has(1) && !one.has(2));
    let three = one.or(&key(2), 2).or(&key(4), 4);
    assert_eq!([1, 2, 3, 4].map(|id| three.has(id)), [true, true, false, true]);
}

/// The header of an object names its key: only that key may open the part.
#[test]
fn a_part_is_opened_by_the_named_key_only() {
    let both = opener(1).or(&key(2), 2);
    for sealed_by in [1, 2] {
        let sealed = sealer(sealed_by).seal_part(Part::Header, b"head");
        for named in [1, 2, 3] {
            let opened = both.open_part_by(named, Part::Header, &sealed);
            // Key 3 is not there: the first key is asked, and its error is given.
            let expected = named == sealed_by || (named == 3 && sealed_by == 1);
            assert_eq!(opened.is_ok(), expected, "sealed by {sealed_by}, opened by {named}: {opened:?}");
        }
    }
}

#[test]
fn a_wrapped_key_names_its_cluster_key_and_other_bytes_name_none() {
    let cluster = ClusterKey::from_key_file(&[9; 32]).expect("32 bytes");
    let data = cluster.wrap(&key(1), SET, 1, [3; 24]);
    let node = cluster.wrap_node(&NodeKey::from_bytes([4; 32]), 77, [3; 24]);
    assert_eq!(wrapped_by(&data), Some(cluster.fingerprint()));
    assert_eq!(node_wrapped_by(&node), Some(cluster.fingerprint()));
    let other_magic = |wrapped: &[u8]| {
        let mut wrapped = wrapped.to_vec();
        wrapped[0] ^= 1;
        wrapped
    };
    assert_eq!(wrapped_by(&other_magic(&data)), None);
    assert_eq!(node_wrapped_by(&other_magic(&node)), None);
    assert_eq!((wrapped_by(&data[1..]), node_wrapped_by(&node[1..])), (None, None));
}

/// A nibble that is lost would be another key, and no data could be read with the raw one.
#[test]
fn a_key_file_in_hex_is_the_same_key_as_its_bytes() {
    let bytes: [u8; 32] = std::array::from_fn(|at| (at as u8).wrapping_mul(37).wrapping_add(0x5b));
    let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    let raw = ClusterKey::from_key_file(&bytes).expect("32 bytes").fingerprint();
    for text in [hex.clone(), hex.to_uppercase()] {
        assert_eq!(ClusterKey::from_key_file(text.as_bytes()).expect("64 digits").fingerprint(), raw, "{text}");
    }
}

#[test]
fn the_shortest_passphrase_is_accepted() {
    let by = Argon2id { memory_kib: 8, passes: 1, lanes: 1, salt: [1; 16] };
    let found = |passphrase: &str| ClusterKey::from_passphrase_by(passphrase, &by).map(drop);
    let short = SealError::PassphraseShort { found: PASSPHRASE_BYTES_MIN - 1, expected: PASSPHRASE_BYTES_MIN };
    assert_eq!(found(&"p".repeat(PASSPHRASE_BYTES_MIN)), Ok(()));
    assert_eq!(found(&"p".repeat(PASSPHRASE_BYTES_MIN - 1)), Err(short));
}
