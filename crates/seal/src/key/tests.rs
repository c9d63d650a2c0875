//! The golden bytes were computed with another implementation of Argon2id, HKDF and XChaCha20-Poly1305, from the layout
//! in the module's documentation.

use super::*;
use holdfast_types::{GroupId, RequestId};
use proptest::prelude::*;

const SET: SetId = GroupId(5);
const KEY_ID: u32 = 7;
/// HKDF-SHA256, salt "holdfast snapshot token v1", key 32 bytes of 1, info set 5 and request 9, big-endian; the first
/// 16 bytes.
const SNAPSHOT_TOKEN: &str = "951427d79aab2a0669747094b1325021";
const WRAPPED: &str = "4846575241504b59010000006c000000070000000500000000000000584e9ecc664da961\
    6465666768696a6b6c6d6e6f707172737475767778797a7b\
    d45134a22ff7dfbb6c48a31e8b34fa5b7d7ae9f89b8554433fd5131e6b411de54e1797a0366b1deaf810576795bca3e7";

fn bytes<const N: usize>(from: u8) -> [u8; N] {
    std::array::from_fn(|at| from + at as u8)
}

fn by_passphrase() -> ClusterKey {
    ClusterKey::from_passphrase("correct horse battery staple", bytes(0)).unwrap()
}

fn file_key(byte: u8) -> ClusterKey {
    ClusterKey::from_key_file(&[byte; 32]).unwrap()
}

#[test]
fn wrapped_key_is_pinned() {
    let cluster = by_passphrase();
    assert_eq!(cluster.fingerprint().to_string(), "61a94d66cc9e4e58");
    let wrapped = cluster.wrap(&DataKey::from_bytes(bytes(0)), SET, KEY_ID, bytes(100));
    assert_eq!(hex(&wrapped), WRAPPED);
    assert_eq!(cluster.unwrap(&wrapped, SET, KEY_ID).unwrap().bytes(), &bytes::<32>(0));
}

#[test]
fn a_snapshot_token_is_of_one_key_one_set_and_one_snapshot() {
    let token = |key: u8, set: u64, made_by: u128| {
        DataKey::from_bytes([key; 32]).snapshot_token(GroupId(set), RequestId(made_by))
    };
    // All gateways of a cluster must derive the same token, also with different builds.
    assert_eq!(token(1, 5, 9).to_text(), SNAPSHOT_TOKEN);
    for other in [token(2, 5, 9), token(1, 6, 9), token(1, 5, 10)] {
        assert!(other != token(1, 5, 9));
    }
}

#[test]
fn a_key_file_is_raw_or_hex() {
    let raw = file_key(9).fingerprint();
    assert_eq!(raw.to_string(), "09d792f665677c23");
    for text in ["09".repeat(32), "09".repeat(32) + "\n", "09".repeat(32) + "\r\n"] {
        assert_eq!(ClusterKey::from_key_file(text.as_bytes()).unwrap().fingerprint(), raw, "{text:?}");
    }
    for bad in [&b""[..], &[9; 31], &[9; 33], &[b'g'; 64], "09".repeat(33).as_bytes(), b"09\n"] {
        let error = ClusterKey::from_key_file(bad).unwrap_err();
        assert_eq!(error, SealError::KeyFile { found: bad.len(), expected: 32 });
    }
}

#[test]
fn salt_and_passphrase_matter() {
    let key = by_passphrase().fingerprint();
    assert_ne!(ClusterKey::from_passphrase("correct horse battery staple", bytes(1)).unwrap().fingerprint(), key);
    assert_ne!(ClusterKey::from_passphrase("correct horse battery stapl", bytes(0)).unwrap().fingerprint(), key);
    assert_eq!(
        ClusterKey::from_passphrase("short", bytes(0)).unwrap_err(),
        SealError::PassphraseShort { found: 5, expected: PASSPHRASE_BYTES_MIN }
    );
}

#[test]
fn each_wrong_thing_has_its_name() {
    let cluster = file_key(1);
    let wrapped = cluster.wrap(&DataKey::from_bytes(bytes(0)), SET, KEY_ID, bytes(100));
    let expect = |wrapped: &[u8], set, key_id, text: &str| {
        assert_eq!(cluster.unwrap(wrapped, set, key_id).unwrap_err().to_string(), text);
    };
    expect(&wrapped, GroupId(6), KEY_ID, "wrapped key: found one of set g5, expected set g6");
    expect(&wrapped, SET, 8, "wrapped key: found data key 7, expected 8");
    expect(&wrapped[..107], SET, KEY_ID, "wrapped key: found 107 bytes, expected 108");
    let damaged = |at: usize| {
        let mut damaged = wrapped.clone();
        damaged[at] ^= 1;
        damaged
    };
    expect(&damaged(8), SET, KEY_ID, "wrapped key: found version 0, expected 1");
    expect(&damaged(12), SET, KEY_ID, "wrapped key: found 109 bytes, expected 108");
    let text = cluster.unwrap(&damaged(0), SET, KEY_ID).unwrap_err().to_string();
    assert!(text.starts_with("wrapped key: found magic [49, 46"), "{text}");
    let other = file_key(2);
    assert_eq!(
        other.unwrap(&wrapped, SET, KEY_ID).unwrap_err(),
        SealError::WrongClusterKey { found: cluster.fingerprint(), expected: other.fingerprint() }
    );
    let error = cluster.unwrap(&damaged(70), SET, KEY_ID).unwrap_err();
    assert!(matches!(error, SealError::WrappedNotAuthentic { set: SET, key_id: KEY_ID, .. }), "{error}");
    // Key material is not part of any text.
    let key = DataKey::from_bytes([0xab; 32]);
    assert_eq!(format!("{key:?}"), "DataKey(***)");
    assert!(!format!("{cluster:?}").contains(&hex(&cluster.wrapping[..4])));
}

proptest! {
    #[test]
    fn wrapping_comes_back_and_every_bit_counts(
        key: [u8; 32], cluster: [u8; 32], set: u64, key_id: u32, nonce: [u8; 24], bit in 0..WRAPPED_KEY_BYTES * 8
    ) {
        let cluster = ClusterKey::from_key_file(&cluster).unwrap();
        let mut wrapped = cluster.wrap(&DataKey::from_bytes(key), GroupId(set), key_id, nonce);
        prop_assert_eq!(wrapped.len(), WRAPPED_KEY_BYTES);
        let opened = cluster.unwrap(&wrapped, GroupId(set), key_id).unwrap();
        prop_assert_eq!(opened.bytes(), &key);
        wrapped[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(cluster.unwrap(&wrapped, GroupId(set), key_id).is_err());
    }

    #[test]
    fn unwrapping_anything_is_an_error(wrapped in proptest::collection::vec(any::<u8>(), 0..200)) {
        prop_assert!(file_key(1).unwrap(&wrapped, SET, KEY_ID).is_err());
    }
}
