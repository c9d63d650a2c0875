//! The golden bytes were computed with another implementation of HKDF and ChaCha20-Poly1305.

use super::*;
use holdfast_types::{GroupId, Lba, MemberId, Term, VolumeId};
use proptest::prelude::*;

const SET: SetId = GroupId(5);
const KEY_ID: u32 = 7;
const OBJECT: ObjectId = ObjectId { term: Term(7), member: MemberId(2), boot: 3, random: 0xabcd };
const AAD: ExtentAad = ExtentAad { volume: VolumeId(4), lba: Lba(8), raw_len: 512, codec: 1 };
const PLAIN: &[u8] = b"sixteen bytes...";
const FIRST: ExtentPart = ExtentPart::Block(0);
const PAGE: Part = Part::Page { number: 2, volume: VolumeId(4), page: 9 };

fn key() -> DataKey {
    DataKey::from_bytes(std::array::from_fn(|at| at as u8))
}

fn sealer() -> ObjectSealer {
    ObjectSealer::new(&key(), KEY_ID, SET, OBJECT)
}

fn opener() -> ObjectOpener {
    ObjectOpener::new(&key(), KEY_ID, SET, OBJECT)
}

#[test]
fn sealed_bytes_are_pinned() {
    let mut sealer = sealer();
    let block = "f5a31482d9e8fb33d059e9fcc9456679b86670d19dca230ea8d2fe25122caac7";
    assert_eq!(hex(&sealer.seal_extent(3, FIRST, AAD, PLAIN)), block);
    let block = "838a363fc008b7ecbedfb114fe4fc678559528e56e6793423a819be6085590f0";
    assert_eq!(hex(&sealer.seal_extent(3, ExtentPart::Block(7), AAD, PLAIN)), block);
    let lengths = "6ea2d8c7f13feb2c63f1bfb53e57bbb5ec9ca6746881c84a4a7128f70b30064a";
    assert_eq!(hex(&sealer.seal_extent(3, ExtentPart::Lengths, AAD, PLAIN)), lengths);
    let header = "ec8e08eb1184d0b6fae3f5ada36ee0e134dad0b0787d03daa023c7ced610ca95";
    assert_eq!(hex(&sealer.seal_part(Part::Header, PLAIN)), header);
    let root = "86d537bbdfaf1e6947e8af8a443a2360e178707265707d35ae5d30fe9aca985f";
    assert_eq!(hex(&sealer.seal_part(Part::Root, PLAIN)), root);
    let page = "0fd42bcc0f98315e659279bcf7b44da8a10f8136dcb9ca71e4763b507a8ee7d7";
    assert_eq!(hex(&sealer.seal_part(PAGE, PLAIN)), page);
}

/// SEAL-S2: each value that an extent is bound to, changed by itself.
#[test]
fn an_extent_opens_only_as_what_it_was_sealed_as() {
    let sealed = sealer().seal_extent(3, FIRST, AAD, PLAIN);
    assert_eq!(opener().open_extent(3, FIRST, AAD, &sealed).unwrap(), PLAIN);
    let refused = |opener: ObjectOpener, number, aad, what: &str| {
        let error = opener.open_extent(number, FIRST, aad, &sealed).unwrap_err();
        assert!(matches!(error, SealError::NotAuthentic { found_bytes: 32, .. }), "{what}: {error:?}");
    };
    refused(opener(), 4, AAD, "number");
    refused(opener(), u32::MAX, AAD, "number outside the space");
    refused(opener(), 3, ExtentAad { volume: VolumeId(5), ..AAD }, "volume");
    refused(opener(), 3, ExtentAad { lba: Lba(9), ..AAD }, "lba");
    refused(opener(), 3, ExtentAad { raw_len: 1024, ..AAD }, "raw length");
    refused(opener(), 3, ExtentAad { codec: 2, ..AAD }, "codec");
    refused(ObjectOpener::new(&key(), 8, SET, OBJECT), 3, AAD, "key id");
    refused(ObjectOpener::new(&key(), KEY_ID, GroupId(6), OBJECT), 3, AAD, "set");
    refused(ObjectOpener::new(&DataKey::from_bytes([1; 32]), KEY_ID, SET, OBJECT), 3, AAD, "data key");
    for object in [
        ObjectId { term: Term(8), ..OBJECT },
        ObjectId { member: MemberId(3), ..OBJECT },
        ObjectId { boot: 4, ..OBJECT },
        ObjectId { random: 0xabce, ..OBJECT },
    ] {
        refused(ObjectOpener::new(&key(), KEY_ID, SET, object), 3, AAD, "object");
    }
}

/// SEAL-S2: a part of an extent opens neither as another part of it, nor as the same part of another extent.
#[test]
fn a_part_of_an_extent_opens_only_as_that_part() {
    let parts = [FIRST, ExtentPart::Block(1), ExtentPart::Block(u16::MAX), ExtentPart::Lengths];
    let mut sealer = sealer();
    let sealed: Vec<_> = [3, 4]
        .into_iter()
        .flat_map(|number| parts.map(|part| (number, part)))
        .map(|(number, part)| (number, part, sealer.seal_extent(number, part, AAD, PLAIN)))
        .collect();
    for (number, part, bytes) in &sealed {
        for (as_number, as_part, _) in &sealed {
            let opens = opener().open_extent(*as_number, *as_part, AAD, bytes).is_ok();
            assert_eq!(opens, (number, part) == (as_number, as_part), "{part} of {number} as {as_part} of {as_number}");
        }
    }
}

/// What was in the buffer stays, and nothing of a part that does not open is added.
#[test]
fn a_refused_part_leaves_nothing_behind() {
    let sealed = sealer().seal_extent(3, FIRST, AAD, PLAIN);
    let mut out = b"before".to_vec();
    assert!(opener().open_extent_into(3, ExtentPart::Block(1), AAD, &sealed, &mut out).is_err());
    assert!(opener().open_extent_into(3, FIRST, AAD, &sealed[..9], &mut out).is_err());
    assert_eq!(out, b"before");
    opener().open_extent_into(3, FIRST, AAD, &sealed, &mut out).unwrap();
    assert_eq!(out, [b"before", PLAIN].concat());
}

#[test]
fn a_part_is_not_another_part() {
    let parts = [Part::Header, Part::Root, PAGE, Part::Page { number: 3, volume: VolumeId(4), page: 9 }];
    let leaf = Part::Leaf { number: 4, kind: 1, volume: VolumeId(4), page: 9 };
    let other_pages = [
        Part::Page { number: 2, volume: VolumeId(5), page: 9 },
        Part::Page { number: 2, volume: VolumeId(4), page: 8 },
        Part::Page { number: 4, volume: VolumeId(4), page: 9 },
        Part::Leaf { number: 2, kind: 1, volume: VolumeId(4), page: 9 },
        Part::Leaf { number: 4, kind: 2, volume: VolumeId(4), page: 9 },
        Part::Leaf { number: 4, kind: 1, volume: VolumeId(5), page: 9 },
        Part::Leaf { number: 4, kind: 1, volume: VolumeId(4), page: 8 },
    ];
    let parts: Vec<Part> = parts.into_iter().chain([leaf]).collect();
    let mut sealer = sealer();
    for part in parts.iter().copied() {
        let sealed = sealer.seal_part(part, PLAIN);
        for asked in parts.iter().copied().chain(other_pages) {
            assert_eq!(opener().open_part(asked, &sealed).is_ok(), asked == part, "{part} opened as {asked}");
        }
        assert!(opener().open_extent(0, FIRST, ExtentAad { raw_len: 16, ..AAD }, &sealed).is_err());
    }
}

#[test]
fn the_error_names_found_and_expected() {
    let sealed = sealer().seal_extent(3, FIRST, AAD, PLAIN);
    let error = opener().open_extent(3, FIRST, ExtentAad { lba: Lba(9), ..AAD }, &sealed).unwrap_err();
    assert_eq!(
        error.to_string(),
        "not authentic: found 32 bytes under tag b86670d19dca230ea8d2fe25122caac7, expected block 0 of extent 3 (v4 \
         lba9, 512 raw bytes, codec 1) of 32 sealed bytes, in object \
         0000000000000007-0000000000000002-0000000000000003-0000000000000000000000000000abcd of set g5, data key 7"
    );
    let error = opener().open_part(PAGE, &sealed[..15]).unwrap_err();
    assert_eq!(error, SealError::TooShort { found: 15, expected: TAG_BYTES });
}

#[test]
#[should_panic(expected = "R10: sealed twice under one nonce: block 0 of extent 3")]
fn a_block_is_sealed_once() {
    let mut sealer = sealer();
    sealer.seal_extent(3, FIRST, AAD, PLAIN);
    sealer.seal_extent(3, FIRST, ExtentAad { lba: Lba(16), ..AAD }, PLAIN);
}

#[test]
#[should_panic(expected = "R10: sealed twice under one nonce: lengths of extent 3")]
fn lengths_are_sealed_once() {
    let mut sealer = sealer();
    sealer.seal_extent(3, ExtentPart::Lengths, AAD, PLAIN);
    sealer.seal_extent(3, ExtentPart::Lengths, AAD, PLAIN);
}

#[test]
#[should_panic(expected = "R10: sealed twice under one nonce: page 2")]
fn a_page_is_sealed_once_whatever_it_maps() {
    let mut sealer = sealer();
    sealer.seal_part(PAGE, PLAIN);
    sealer.seal_part(Part::Page { number: 2, volume: VolumeId(9), page: 1 }, PLAIN);
}

#[test]
#[should_panic(expected = "R10: no nonce is left")]
fn an_extent_cannot_reach_the_numbers_of_pages() {
    sealer().seal_extent(EXTENT_NUMBER_MAX + 1, FIRST, AAD, PLAIN);
}

#[test]
fn reserved_numbers_are_apart() {
    let extent = |number, part| nonce_numbers(&SealedKind::Extent { number, part, aad: AAD });
    let page = |number| nonce_numbers(&SealedKind::Part(Part::Page { number, volume: VolumeId(0), page: 0 }));
    let parts = [FIRST, ExtentPart::Block(u16::MAX), ExtentPart::Lengths];
    let mut numbers = BTreeSet::new();
    for number in [0, EXTENT_NUMBER_MAX].into_iter().flat_map(|number| parts.map(|part| extent(number, part))) {
        assert!(numbers.insert(number.unwrap()));
    }
    for number in [page(0), page(PAGE_NUMBER_MAX)] {
        assert!(numbers.insert(number.unwrap()));
    }
    for part in [Part::Root, Part::Header] {
        assert!(numbers.insert(nonce_numbers(&SealedKind::Part(part)).unwrap()));
    }
    assert_eq!((extent(EXTENT_NUMBER_MAX + 1, FIRST), page(PAGE_NUMBER_MAX + 1)), (None, None));
}

proptest! {
    #[test]
    fn sealing_comes_back_and_every_bit_counts(
        plain in proptest::collection::vec(any::<u8>(), 0..300),
        number in 0..=EXTENT_NUMBER_MAX, block: u16, volume: u32, lba: u64, raw_len: u32, codec: u8, flip: usize, cut: usize,
    ) {
        let aad = ExtentAad { volume: VolumeId(volume), lba: Lba(lba), raw_len, codec };
        let part = ExtentPart::Block(block);
        let mut sealed = vec![0xee; 3];
        sealer().seal_extent_into(number, part, aad, &plain, &mut sealed);
        prop_assert_eq!(&sealed[..3], &[0xee; 3]);
        let mut sealed = sealed.split_off(3);
        prop_assert_eq!(sealed.len(), plain.len() + TAG_BYTES);
        prop_assert_eq!(&opener().open_extent(number, part, aad, &sealed), &Ok(plain));
        prop_assert!(opener().open_extent(number, part, aad, &sealed[..cut % sealed.len()]).is_err());
        let bit = flip % (sealed.len() * 8);
        sealed[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(opener().open_extent(number, part, aad, &sealed).is_err());
    }

    #[test]
    fn opening_anything_is_an_error(sealed in proptest::collection::vec(any::<u8>(), 0..200), number: u32) {
        prop_assert!(opener().open_extent(number, FIRST, AAD, &sealed).is_err());
        prop_assert!(opener().open_part(Part::Header, &sealed).is_err());
    }
}
