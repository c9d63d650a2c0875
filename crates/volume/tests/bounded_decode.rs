//! MAP-M2: a decoder's memory is proportional to its input, never to the lengths that the input claims.
//!
//! Counts each thread's heap, so the tests may run in parallel.
#![allow(missing_docs)]

use holdfast_seal::{DataKey, ObjectOpener, ObjectSealer, Part};
use holdfast_testkit::heap::{Counting, peak};
use holdfast_types::limits::EXTENT_BYTES_MAX;
use holdfast_types::{GroupId, Lba, MemberId, ObjectId, SetId, Term, VolumeId};
use holdfast_volume::map::{Leaf, LeafOf, Page, Root, Top, open_top, read_any_pack, read_pack};
use holdfast_volume::object::{OBJECT_HEADER_BYTES, ObjectHeader, ObjectKind};
use holdfast_volume::segment::{Codec, ExtentPlace, open_extent, read_table};
use proptest::prelude::*;

#[global_allocator]
static HEAP: Counting = Counting;

/// Peak memory of `run`, in bytes.
fn peak_bytes(run: impl FnOnce()) -> usize {
    peak(run).1
}

const SET: SetId = GroupId(5);
const OBJECT: ObjectId = ObjectId { term: Term(7), member: MemberId(2), boot: 3, random: 9 };

fn opener() -> ObjectOpener {
    ObjectOpener::new(&DataKey::from_bytes([1; 32]), 1, SET, OBJECT)
}

/// A whole object around a sealed part of the test's choice, as an attacker with the key, or a bug, could make it.
fn framed(kind: ObjectKind, part: Part, plain: &[u8]) -> Vec<u8> {
    let sealed = ObjectSealer::new(&DataKey::from_bytes([1; 32]), 1, SET, OBJECT).seal_part(part, plain);
    let main_offset = OBJECT_HEADER_BYTES as u64;
    let bytes = main_offset + sealed.len() as u64;
    let header = ObjectHeader { kind, key_id: 1, set: SET, object: OBJECT, bytes, main_offset };
    [&header.encode()[..], &sealed].concat()
}

/// The most memory per input byte takes an extent of a page: for 2 bytes, 28 in the list and about 40 in the tree. An
/// error adds its text.
fn bound(input: usize) -> usize {
    64 * input + (8 << 10)
}

fn check_all(bytes: &[u8]) {
    let pages = framed(ObjectKind::Pages, Part::Header, bytes);
    let segment = framed(ObjectKind::Segment, Part::Header, bytes);
    let root = framed(ObjectKind::Root, Part::Root, bytes);
    let opener = opener();
    let runs: [(&str, &dyn Fn()); 10] = [
        ("page", &|| drop(Page::decode(bytes))),
        ("root", &|| drop(Root::decode(bytes))),
        ("pack", &|| drop(read_pack(&opener, &pages))),
        ("segment", &|| drop(read_table(&opener, &segment))),
        ("root object", &|| drop(open_top(&opener, &root))),
        ("pack of leaves", &|| drop(read_any_pack(&opener, &pages))),
        ("top", &|| drop(Top::decode(bytes, 3))),
        ("leaf of pages", &|| drop(Leaf::decode(LeafOf::Pages { volume: VolumeId(1), first: 0, width: 256 }, bytes))),
        ("leaf of segments", &|| drop(Leaf::decode(LeafOf::Segments, bytes))),
        ("leaf of packs", &|| drop(Leaf::decode(LeafOf::Packs, bytes))),
    ];
    for (what, run) in runs {
        let peak = peak_bytes(run);
        assert!(peak <= bound(bytes.len()), "MAP-M2: {what} took {peak} bytes for {}: {bytes:02x?}", bytes.len());
    }
}

const MAGICS: usize = 10;

fn magic(which: usize) -> &'static [u8] {
    [
        &b"HFP\x01"[..],
        b"HFR\x01",
        b"HFQ\x01",
        b"HFT\x02",
        b"HFR\x02",
        b"HFR\x05",
        b"HFQ\x02",
        b"HFL\x01\x01\x01\x00\x80\x02",
        b"HFL\x01\x02",
        b"HFL\x01\x03",
    ][which]
}

#[test]
fn counts_that_claim_too_much_cost_nothing() {
    // The largest number of each length, for every count near the beginning.
    for which in 0..MAGICS {
        for len in 1..=10usize {
            let mut number = vec![0xff; len - 1];
            number.push(if len == 10 { 1 } else { 0x7f });
            for before in 0..5 {
                check_all(&[magic(which), &vec![0; before], &number].concat());
                check_all(&[magic(which), &vec![1; before], &number, &[0; 40]].concat());
            }
        }
    }
}

#[test]
fn the_counter_counts() {
    assert!(peak_bytes(|| drop(vec![0u8; 1 << 20])) >= 1 << 20);
    assert!(peak_bytes(|| ()) == 0);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(1000))]

    #[test]
    fn any_bytes_cost_no_more_than_their_length(which in 0..MAGICS, bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        check_all(&[magic(which), &bytes].concat());
    }

    #[test]
    fn small_numbers_cost_no_more_than_their_length(which in 0..MAGICS, bytes in proptest::collection::vec(0u8..40, 0..400)) {
        check_all(&[magic(which), &bytes].concat());
    }

    /// An extent's place may claim anything as well.
    #[test]
    fn any_place_costs_no_more_than_an_extent(
        number: u32, offset: u32, sealed_len in prop_oneof![any::<u32>(), Just(100)], raw_len in prop_oneof![any::<u32>(), 0u32..1000],
        sectors in 0u32..300, whole: bool, codec in prop_oneof![Just(Codec::None), Just(Codec::Lz4), Just(Codec::Zstd)],
        sealed in proptest::collection::vec(any::<u8>(), 100),
    ) {
        let raw_len = if whole { sectors * 512 } else { raw_len };
        let place = ExtentPlace { number, offset, sealed_len, raw_len, codec };
        let opener = opener();
        let peak = peak_bytes(|| drop(open_extent(&opener, &place, VolumeId(1), Lba(8), &sealed)));
        prop_assert!(peak <= EXTENT_BYTES_MAX + bound(sealed.len()), "MAP-M2: {} bytes for {:?}", peak, place);
    }
}
