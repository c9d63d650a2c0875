//! The header, and keys and content shared by the other formats' tests.

use super::*;
use holdfast_seal::{DataKey, ObjectSealer, Part};
use holdfast_testkit::golden::{self, Written};
use holdfast_types::GroupId;
use proptest::prelude::*;

pub(crate) const SET: SetId = GroupId(5);
pub(crate) const KEY_ID: u32 = 7;
pub(crate) const OBJECT: ObjectId = object(0xabcd);

pub(crate) const fn object(random: u128) -> ObjectId {
    ObjectId { term: Term(7), member: MemberId(2), boot: 3, random }
}

pub(crate) fn key() -> DataKey {
    DataKey::from_bytes(std::array::from_fn(|at| at as u8))
}

pub(crate) fn sealer(object: ObjectId) -> ObjectSealer {
    ObjectSealer::new(&key(), KEY_ID, SET, object)
}

pub(crate) fn opener(object: ObjectId) -> ObjectOpener {
    ObjectOpener::new(&key(), KEY_ID, SET, object)
}

/// Incompressible bytes (from a xorshift generator).
pub(crate) fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 32) as u8
    };
    (0..len).map(|_| next()).collect()
}

/// Compressible bytes.
pub(crate) fn text(seed: u64, len: usize) -> Vec<u8> {
    let line = format!("line {seed} of a table that says the same again and again; ");
    line.bytes().cycle().take(len).collect()
}

/// Golden bytes are kept as hex, 32 bytes a line.
pub(crate) fn hex_lines(bytes: &[u8]) -> String {
    let line = |chunk: &[u8]| chunk.iter().map(|b| format!("{b:02x}")).collect::<String>() + "\n";
    bytes.chunks(32).map(line).collect()
}

pub(crate) fn from_hex(text: &str) -> Vec<u8> {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(16)).collect();
    digits.chunks_exact(2).map(|pair| (pair[0] * 16 + pair[1]) as u8).collect()
}

/// Compares with a golden file; a difference prints everything needed to judge it.
pub(crate) fn assert_golden(name: &str, found: &[u8], kept: &str) {
    let found = hex_lines(found);
    assert!(found == kept, "golden {name}: found\n{found}\nexpected\n{kept}");
}

/// What releases have written as this sample reads as `expected` (docs/formats.md).
pub(crate) fn assert_kept<T: PartialEq + std::fmt::Debug>(
    name: &str,
    written: &[u8],
    expected: &T,
    read: impl Fn(&[u8]) -> T,
) {
    golden::kept(env!("CARGO_MANIFEST_DIR"), name, Written::Pinned(written), expected, read);
}

/// The same for bytes that mean the same in another form, as with another version of a compression.
pub(crate) fn assert_kept_readable<T: PartialEq + std::fmt::Debug>(
    name: &str,
    written: &[u8],
    expected: &T,
    read: impl Fn(&[u8]) -> T,
) {
    golden::kept(env!("CARGO_MANIFEST_DIR"), name, Written::Free(written), expected, read);
}

fn header() -> ObjectHeader {
    ObjectHeader { kind: ObjectKind::Pages, key_id: KEY_ID, set: SET, object: OBJECT, bytes: 1000, main_offset: 900 }
}

#[test]
fn header_bytes_are_pinned() {
    let bytes = header().encode();
    assert_golden("header", &bytes, include_str!("../../golden/header.hex"));
    assert_eq!(ObjectHeader::decode(&bytes), Ok(header()));
    assert_kept("header", &bytes, &Ok(header()), ObjectHeader::decode);
    assert_eq!(header().main_range(), 900..1000);
}

/// A change with a matching checksum, as a forger would make it.
fn forged(change: impl FnOnce(&mut [u8; OBJECT_HEADER_BYTES])) -> [u8; OBJECT_HEADER_BYTES] {
    let mut bytes = header().encode();
    change(&mut bytes);
    let crc = crc32c::crc32c(&bytes[..CRC_AT]);
    bytes[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
    bytes
}

#[test]
fn each_wrong_header_has_its_name() {
    let text = |bytes: &[u8]| ObjectHeader::decode(bytes).unwrap_err().to_string();
    assert_eq!(text(&header().encode()[..103]), "object header: found 103 bytes, expected 104");
    assert!(text(&forged(|b| b[0] = b'X')).starts_with("object header: found magic [58, 4f, 4c"));
    assert_eq!(text(&forged(|b| b[8] = 1)), "object header: found version 1, expected 2");
    assert_eq!(text(&forged(|b| b[12] = 9)), "object header: found 9 as kind, expected 1 to 4");
    assert_eq!(text(&forged(|b| b[20] = 1)), "object header: found 1 as reserved bytes, expected 0");
    assert_eq!(text(&forged(|b| b[97] = 1)), "object header: found 256 as reserved bytes, expected 0");
    let behind = "object header: found 103 as offset of the main part, expected a place behind the header";
    assert_eq!(text(&forged(|b| b[80..88].copy_from_slice(&103u64.to_le_bytes()))), behind);
    for (at, value) in [(72, 999), (88, 101), (88, 15), (80, u64::MAX), (88, u64::MAX)] {
        let error = ObjectHeader::decode(&forged(|b| b[at..at + 8].copy_from_slice(&u64::to_le_bytes(value))));
        assert!(matches!(error, Err(ObjectError::Field { .. })), "{at} {value}: {error:?}");
    }
    let mut damaged = header().encode();
    damaged[40] ^= 1;
    assert!(matches!(ObjectHeader::decode(&damaged), Err(ObjectError::Checksum { .. })));
}

#[test]
fn a_header_of_something_else_is_named() {
    let check = |kind, opener| header().check(kind, &opener).unwrap_err();
    assert_eq!(header().check(ObjectKind::Pages, &opener(OBJECT)), Ok(()));
    let id = OBJECT.to_string();
    assert_eq!(
        check(ObjectKind::Segment, opener(OBJECT)).to_string(),
        format!("object {id}: found a page pack, expected a segment")
    );
    let other = object(1);
    assert_eq!(
        check(ObjectKind::Pages, opener(other)),
        ObjectError::Object { found: OBJECT.into(), expected: other.into() }
    );
    let set = ObjectOpener::new(&key(), KEY_ID, GroupId(6), OBJECT);
    assert_eq!(check(ObjectKind::Pages, set).to_string(), format!("object {id}: found one of set g5, expected set g6"));
    let key_id = ObjectOpener::new(&key(), 8, SET, OBJECT);
    assert_eq!(
        check(ObjectKind::Pages, key_id).to_string(),
        format!("object {id}: found it sealed under data key 7, expected 8")
    );
}

/// A frame around bytes of the test's choice, sealed like a real one.
pub(crate) fn framed(kind: ObjectKind, part: Part, content: &[u8], plain: &[u8]) -> Vec<u8> {
    let mut object = vec![0; OBJECT_HEADER_BYTES];
    object.extend_from_slice(content);
    crate::segment::seal_frame(kind, &mut sealer(OBJECT), part, plain, &mut object);
    object
}

#[test]
fn a_whole_object_has_its_length() {
    let object = framed(ObjectKind::Root, Part::Root, b"", b"plain");
    let whole =
        |bytes: &[u8]| ObjectHeader::of_whole(ObjectKind::Root, &opener(OBJECT), bytes).map(|(_, main)| main.len());
    assert_eq!(whole(&object), Ok(5 + TAG_BYTES));
    let longer = [&object[..], b"x"].concat();
    for bytes in [&object[..object.len() - 1], &longer] {
        let (found, expected) = (bytes.len() as u64, object.len() as u64);
        assert_eq!(whole(bytes), Err(ObjectError::Length { object: OBJECT, found, expected }));
    }
}

proptest! {
    #[test]
    fn headers_come_back(
        kind in prop_oneof![Just(ObjectKind::Segment), Just(ObjectKind::Pages), Just(ObjectKind::Root), Just(ObjectKind::Head)],
        key_id: u32, set: u64, term: u64, member: u64, boot: u64, random: u128,
        main_offset in OBJECT_HEADER_BYTES as u64..1 << 62, main in TAG_BYTES as u64..1 << 62, bit in 0..OBJECT_HEADER_BYTES * 8,
    ) {
        let object = ObjectId { term: Term(term), member: MemberId(member), boot, random };
        let header = ObjectHeader { kind, key_id, set: GroupId(set), object, bytes: main_offset + main, main_offset };
        let mut bytes = header.encode();
        prop_assert_eq!(ObjectHeader::decode(&bytes), Ok(header));
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(ObjectHeader::decode(&bytes).is_err());
    }

    #[test]
    fn a_forged_header_never_panics(fields in proptest::collection::vec(any::<u64>(), 3), at in 12usize..96) {
        let bytes = forged(|b| {
            for (field, value) in fields.iter().enumerate() {
                b[72 + 8 * field..80 + 8 * field].copy_from_slice(&value.to_le_bytes());
            }
            b[at] ^= 0x55;
        });
        let _ = ObjectHeader::decode(&bytes);
        let _ = ObjectHeader::of_whole(ObjectKind::Pages, &opener(OBJECT), &bytes);
    }
}

#[test]
fn noise_and_text_are_what_they_say() {
    assert!(lz4_flex::block::compress(&noise(1, 4096)).len() > 4096);
    assert!(lz4_flex::block::compress(&text(1, 4096)).len() < 400);
    assert_eq!(from_hex(&hex_lines(&noise(2, 77))), noise(2, 77));
}
