use super::*;
use crate::object::tests::{
    KEY_ID, OBJECT, SET, assert_golden, assert_kept, framed, from_hex, key, object, opener, sealer,
};
use crate::object::{OBJECT_HEADER_BYTES, ObjectHeader, ObjectKind};
use crate::segment::Codec;
use bytes::Bytes;
use holdfast_seal::{ObjectOpener, Part};
use holdfast_types::{GroupId, LogId};
use proptest::prelude::*;
use std::collections::BTreeMap;

const V: VolumeId = VolumeId(4);

fn place(number: u32, sectors: u64) -> ExtentPlace {
    let raw_len = (sectors * SECTOR_BYTES) as u32;
    ExtentPlace { number, offset: 104 + number * 300, sealed_len: 300.min(raw_len), raw_len, codec: Codec::Lz4 }
}

fn extent(lba: u64, sectors: u64, random: u128, number: u32) -> MapExtent {
    MapExtent::whole(object(random), Lba(lba), place(number, sectors))
}

/// A page with every encoding of an extent.
fn sample() -> Page {
    let mut page = Page::new(V, 2);
    let start = page.lba().0;
    // Three in a row of one segment, one of another, one cut in two by a later write, one uncompressed at the end.
    for at in 0..3 {
        page.overlay(&extent(start + 8 * at, 8, 1, at as u32));
    }
    page.overlay(&extent(start + 100, 16, 2, 7));
    page.overlay(&extent(start + 200, 100, 1, 9));
    page.overlay(&extent(start + 230, 2, 3, 0));
    let raw = ExtentPlace { codec: Codec::None, sealed_len: 512 + 16, ..place(1, 1) };
    page.overlay(&MapExtent::whole(object(3), Lba(page.end().0 - 1), raw));
    page
}

#[test]
fn page_bytes_are_pinned() {
    let page = sample();
    let kept = include_str!("../../golden/page.hex");
    assert_golden("page", &page.encode(), kept);
    assert_eq!(Page::decode(&from_hex(kept)), Ok(page.clone()));
    assert_kept("page", &from_hex(kept), &Ok(page), Page::decode);
}

#[test]
fn places_and_pages() {
    assert_eq!(page_number(Lba(PAGE_SECTORS - 1)), 0);
    assert_eq!(page_number(Lba(VOLUME_SECTORS_MAX - 1)), PAGE_NUMBER_MAX);
    assert_eq!(page_numbers(Lba(PAGE_SECTORS - 1), Sectors(2)), 0..=1);
    assert_eq!(page_numbers(Lba(PAGE_SECTORS), Sectors(PAGE_SECTORS)), 1..=1);
    assert!(page_numbers(Lba(7), Sectors(0)).is_empty());
    let cut: Vec<_> = split_by_page(Lba(PAGE_SECTORS - 1), Sectors(PAGE_SECTORS + 2)).collect();
    let expected = [(0, PAGE_SECTORS - 1, 1), (1, PAGE_SECTORS, PAGE_SECTORS), (2, 2 * PAGE_SECTORS, 1)]
        .map(|(n, l, s)| (n, Lba(l), Sectors(s)));
    assert_eq!(cut, expected);
    assert_eq!(split_by_page(Lba(9), Sectors(0)).count(), 0);
}

#[test]
fn a_cut_extent_still_knows_what_it_was_sealed_as() {
    let page = sample();
    let start = page.lba().0;
    let pieces = page.lookup(Lba(start + 231), Sectors(3));
    let [MapPiece::Stored(first), MapPiece::Stored(second)] = pieces.as_slice() else { panic!("{pieces:?}") };
    assert_eq!((first.object, first.skip, first.sectors), (object(3), Sectors(1), Sectors(1)));
    assert_eq!((second.object, second.lba, second.sectors), (object(1), Lba(start + 232), Sectors(2)));
    assert_eq!((second.sealed_lba(), second.skip), (Lba(start + 200), Sectors(32)));
    assert_eq!(second.raw_range(), 32 * 512..34 * 512);
    assert_eq!(second.place, place(9, 100));
}

#[test]
#[should_panic(expected = "R9: lookup of 2 sectors at lba65535 in page 0 of v4")]
fn a_lookup_beyond_the_page_is_a_mistake() {
    let _ = Page::new(V, 0).lookup(Lba(PAGE_SECTORS - 1), Sectors(2));
}

#[test]
fn an_extent_over_a_page_boundary_is_cut() {
    let over = extent(PAGE_SECTORS - 10, 30, 1, 0);
    let (mut left, mut right) = (Page::new(V, 0), Page::new(V, 1));
    left.overlay(&over);
    right.overlay(&over);
    let all = |page: &Page| page.extents().map(|e| (e.lba.0, e.sectors.0, e.skip.0)).collect::<Vec<_>>();
    assert_eq!(all(&left), [(PAGE_SECTORS - 10, 10, 0)]);
    assert_eq!(all(&right), [(PAGE_SECTORS, 20, 10)]);
    assert_eq!(Page::decode(&right.encode()), Ok(right.clone()));
    right.unmap(Lba(0), Sectors(u64::MAX));
    assert!(right.is_empty());
}

/// A long-lived page: the list of objects does not grow with everything that was ever in it.
#[test]
fn a_page_forgets_objects_that_it_does_not_name() {
    let mut page = Page::new(V, 0);
    for round in 0..10_000u128 {
        page.overlay(&extent(8 * (round as u64 % 4), 8, round, 0));
    }
    assert_eq!(page.len(), 4);
    assert!(page.memory_bytes() < 8 << 10, "{} bytes", page.memory_bytes());
    let named: Vec<u128> = page.live().keys().map(|object| object.random).collect();
    assert_eq!(named, [9996, 9997, 9998, 9999]);
}

/// Sizes of a page and a root in typical forms: 8 KiB blocks throughout.
#[test]
fn encoded_sizes() {
    let block = |lba: u64, random: u128, number: u32, sealed: u32| MapExtent {
        place: ExtentPlace { offset: 104 + number * 5000, sealed_len: sealed, ..place(number, 16) },
        ..extent(lba, 16, random, number)
    };
    let encoded = |make: &dyn Fn(u64) -> MapExtent| {
        let mut page = Page::new(V, 0);
        (0..PAGE_SECTORS / 16).for_each(|at| page.overlay(&make(at)));
        assert_eq!(page.len(), 4096);
        let bytes = page.encode();
        assert_eq!(Page::decode(&bytes), Ok(page));
        bytes.len()
    };
    // Written in one checkpoint, in order.
    let in_order = encoded(&|at| block(at * 16, 1, at as u32, 5000));
    // Written at random over many checkpoints: 32 segments, with any extent numbers.
    let mixed =
        encoded(&|at| block(at * 16, u128::from(at * 7919 % 32), (at * 104_729 % 3000) as u32, 4000 + at as u32));
    // Fully scattered: no two blocks from one segment, unrelated ids.
    let scattered =
        encoded(&|at| block(at * 16, u128::MAX / 4099 * u128::from(at + 1), (at * 104_729 % 3000) as u32, 4000));
    println!("page of 4096 extents: in order {in_order}, mixed {mixed}, scattered {scattered} bytes");
    assert!(in_order < 25 << 10, "{in_order}");
    assert!(mixed < 60 << 10, "{mixed}");
    assert!(scattered < 160 << 10, "{scattered}");

    // 1 TiB: 32768 pages of 40 KiB, in packs; 65536 segments.
    let mut root = Root::new(LogId::new(9, 12345));
    let mut live = Vec::new();
    for segment in 0..65_536u128 {
        let id = object(u128::MAX / 65_537 * (segment + 1));
        root.add_segment(id, 16 << 20, Sectors(1 << 15));
        live.push(id);
    }
    for number in 0..32_768u32 {
        let (pack, at) = (u128::from(number / 400), number % 400);
        let page = PageRef {
            object: object(u128::MAX / 99 * (pack + 1)),
            number: at,
            offset: 104 + at * 40_000,
            sealed_len: 40_000,
            raw_len: 39_984,
        };
        let after = live[2 * number as usize..][..2].iter().map(|id| (*id, Sectors(1 << 15))).collect();
        root.replace_page(V, number, Some(page), &Live::new(), &after).unwrap();
    }
    let bytes = root.encode();
    println!("root of 1 TiB: {} bytes", bytes.len());
    assert!(bytes.len() < 3 << 20, "{}", bytes.len());
    assert_eq!(root.stats().live_bytes, 1 << 40);
    assert_eq!(Root::decode(&bytes), Ok(root));
}

fn sample_root() -> Root {
    let mut root = Root::new(LogId::new(3, 1000));
    root.add_segment(object(2), 5000, Sectors(64));
    root.add_segment(object(1), 7000, Sectors(300));
    let live = |random, sectors| Live::from([(object(random), Sectors(sectors))]);
    let page = |random, number, offset, raw_len| {
        Some(PageRef { object: object(random), number, offset, sealed_len: raw_len + 16, raw_len })
    };
    root.replace_page(V, 2, page(50, 0, 104, 70), &Live::new(), &live(1, 200)).unwrap();
    root.replace_page(V, 3, page(50, 1, 190, 20), &Live::new(), &live(1, 100)).unwrap();
    root.replace_page(V, 9, page(40, 3, 700, 99), &Live::new(), &live(2, 60)).unwrap();
    root.replace_page(VolumeId(7), 0, page(50, 2, 226, 21), &Live::new(), &Live::new()).unwrap();
    root
}

#[test]
fn root_and_pack_bytes_are_pinned() {
    let mut root = sample_root();
    root.seal_under(KEY_ID);
    let kept = include_str!("../../golden/root.hex");
    assert_golden("root", &seal_root(&root, sealer(OBJECT)), kept);
    assert_eq!(open_root(&opener(OBJECT), &from_hex(kept)), Ok(root.clone()));
    assert_kept("root", &from_hex(kept), &Ok(root), |bytes| open_root(&opener(OBJECT), bytes));

    let (pack, _) = packed(&[sample(), Page::new(VolumeId(9), 0)]);
    let kept = include_str!("../../golden/pack.hex");
    assert_golden("pack", &pack, kept);
    let pages = |bytes: &[u8]| read_pack(&opener(OBJECT), bytes).map(|table| table.len());
    assert_eq!(pages(&from_hex(kept)), Ok(2));
    assert_kept("pack", &from_hex(kept), &Ok(2), pages);
}

#[test]
fn a_root_counts_what_lives() {
    let mut root = sample_root();
    let expected = RootStats {
        volumes: 2,
        pages: 4,
        page_bytes: 86 + 36 + 115 + 37,
        packs: 2,
        segments: 2,
        stored_bytes: 12_000,
        raw_bytes: 364 * 512,
        live_bytes: 360 * 512,
    };
    assert_eq!(root.stats(), expected);
    let live = |sectors| Live::from([(object(1), Sectors(sectors))]);
    // MAP-M4: never below zero, never above what was sealed, never of an unknown segment; then nothing is changed.
    let before = root.clone();
    let error = root.replace_page(V, 2, None, &live(301), &Live::new()).unwrap_err();
    assert!(error.to_string().contains("expected one that can lose 301 live sectors and gain 0"), "{error}");
    assert!(root.replace_page(V, 5, None, &Live::new(), &live(1)).is_err());
    let unknown = Live::from([(object(77), Sectors(1))]);
    assert!(root.replace_page(V, 5, None, &Live::new(), &unknown).is_err());
    assert_eq!(root, before);
    // Both pages of segment 1 go; the segment only on request.
    root.replace_page(V, 2, None, &live(200), &Live::new()).unwrap();
    root.replace_page(V, 3, None, &live(100), &Live::new()).unwrap();
    assert_eq!(root.page(V, 2), None);
    assert_eq!(root.drop_dead_segments(), [object(1)]);
    assert_eq!(
        root.segments().map(|(id, usage)| (id, usage.live_sectors)).collect::<Vec<_>>(),
        [(object(2), Sectors(60))]
    );
    // The volume has only the page at 9 left; a wide range finds just that.
    let found: Vec<u32> = root.pages_in(V, Lba(0), Sectors(VOLUME_SECTORS_MAX)).map(|(number, _)| number).collect();
    assert_eq!(found, [9]);
    assert_eq!(root.pages_in(V, Lba(9 * PAGE_SECTORS), Sectors(0)).count(), 0);
    assert_eq!(root.pages_in(V, Lba(8 * PAGE_SECTORS), Sectors(PAGE_SECTORS)).count(), 0);
    root.replace_page(V, 9, None, &Live::from([(object(2), Sectors(60))]), &Live::new()).unwrap();
    assert_eq!(root.stats().volumes, 1);
}

fn packed(pages: &[Page]) -> (Bytes, Vec<PageRef>) {
    let mut builder = PackBuilder::new(sealer(OBJECT));
    let places = pages.iter().map(|page| builder.push(page)).collect();
    assert_eq!(builder.pages(), pages.len());
    (builder.finish(), places)
}

fn cut<'a>(pack: &'a [u8], place: &PageRef) -> &'a [u8] {
    &pack[place.range().start as usize..place.range().end as usize]
}

#[test]
fn a_page_opens_only_as_itself() {
    let mut twin = Page::new(V, 3);
    sample().extents().for_each(|e| twin.overlay(&MapExtent { lba: Lba(e.lba.0 + PAGE_SECTORS), ..e }));
    let (pack, places) = packed(&[sample(), twin.clone()]);
    assert_eq!(open_page(&opener(OBJECT), &places[0], V, 2, cut(&pack, &places[0])), Ok(sample()));
    assert_eq!(open_page(&opener(OBJECT), &places[1], V, 3, cut(&pack, &places[1])), Ok(twin));
    let refused = |opener: &ObjectOpener, place: &PageRef, volume, number, sealed: &[u8]| {
        let error = open_page(opener, place, volume, number, sealed).unwrap_err();
        assert!(matches!(error, MapError::Seal(holdfast_seal::SealError::NotAuthentic { .. })), "{error}");
    };
    let me = opener(OBJECT);
    assert_eq!(places[0].sealed_len, places[1].sealed_len);
    refused(&me, &places[0], V, 2, cut(&pack, &places[1]));
    refused(&me, &places[1], V, 3, cut(&pack, &places[0]));
    refused(&me, &places[0], V, 3, cut(&pack, &places[0]));
    refused(&me, &places[0], VolumeId(5), 2, cut(&pack, &places[0]));
    refused(&opener(object(1)), &places[0], V, 2, cut(&pack, &places[0]));
    refused(&ObjectOpener::new(&key(), KEY_ID, GroupId(6), OBJECT), &places[0], V, 2, cut(&pack, &places[0]));
    refused(&ObjectOpener::new(&key(), KEY_ID + 1, SET, OBJECT), &places[0], V, 2, cut(&pack, &places[0]));
    let short = open_page(&me, &places[0], V, 2, &cut(&pack, &places[0])[1..]).unwrap_err();
    assert!(short.to_string().ends_with(&format!("sealed bytes, expected {}", places[0].sealed_len)), "{short}");
    let other = PageRef { raw_len: places[0].raw_len + 1, ..places[0] };
    assert!(matches!(
        open_page(&me, &other, V, 2, cut(&pack, &places[0])),
        Err(MapError::Length { what: "bytes", .. })
    ));
    // Sealed for one page, but containing another: a bug of ours, which must not be served.
    let plain = sample().encode();
    let sealed = sealer(OBJECT).seal_part(Part::Page { number: 0, volume: V, page: 8 }, &plain);
    let place = PageRef { sealed_len: sealed.len() as u32, raw_len: plain.len() as u32, ..places[0] };
    let error = open_page(&me, &place, V, 8, &sealed).unwrap_err().to_string();
    assert_eq!(error, "page: found page 2 of v4, expected page 8 of v4");
}

fn verify_pack(pack: &[u8]) -> Result<(), MapError> {
    for entry in read_pack(&opener(OBJECT), pack)? {
        open_page(&opener(OBJECT), &entry.place, entry.volume, entry.page, cut(pack, &entry.place))?;
    }
    Ok(())
}

/// Every bit and every length of packs and roots counts.
#[test]
fn any_flipped_bit_and_any_truncation_is_found() {
    let (pack, _) = packed(&[sample(), Page::new(VolumeId(9), 0)]);
    let root = seal_root(&sample_root(), sealer(OBJECT));
    assert_eq!(verify_pack(&pack), Ok(()));
    let check = |object: &[u8], verify: &dyn Fn(&[u8]) -> bool| {
        let mut damaged = object.to_vec();
        for bit in 0..object.len() * 8 {
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(!verify(&damaged), "bit {bit} of {}", object.len() * 8);
            damaged[bit / 8] ^= 1 << (bit % 8);
        }
        (0..object.len()).for_each(|len| assert!(!verify(&object[..len]), "{len} of {}", object.len()));
        assert!(!verify(&[object, b"x"].concat()));
    };
    check(&pack, &|pack| verify_pack(pack).is_ok());
    check(&root, &|root| open_root(&opener(OBJECT), root).is_ok());
    // A root is no pack, a pack no root, nor one of another set.
    assert!(matches!(open_root(&opener(OBJECT), &pack), Err(MapError::Object(ObjectError::Kind { .. }))));
    assert!(matches!(read_pack(&opener(OBJECT), &root), Err(MapError::Object(ObjectError::Kind { .. }))));
    let other = ObjectOpener::new(&key(), KEY_ID, GroupId(6), OBJECT);
    assert!(matches!(open_root(&other, &root), Err(MapError::Object(ObjectError::Set { .. }))));
    assert!(matches!(open_root(&opener(object(1)), &root), Err(MapError::Object(ObjectError::Object { .. }))));
}

/// R10: neither ids nor places of stored data are readable in the store.
#[test]
fn nothing_of_a_map_is_readable() {
    let secret = 0x1122_3344_5566_7788_99aa_bbcc_ddee_ff00u128;
    let mut page = sample();
    page.overlay(&MapExtent { object: object(secret), ..extent(page.lba().0 + 4000, 8, 0, 0) });
    let mut root = Root::new(LogId::new(1, 1));
    root.add_segment(object(secret), 1, Sectors(8));
    let (pack, _) = packed(&[page]);
    for sealed in [&pack[..], &seal_root(&root, sealer(OBJECT))] {
        for needle in [&secret.to_le_bytes()[..8], b"HFP\x01", b"HFR\x01", b"HFQ\x01"] {
            assert!(!sealed.windows(needle.len()).any(|window| window == needle), "R10");
        }
    }
}

#[test]
fn content_that_no_table_names_is_refused() {
    let read = |content: usize| {
        read_pack(&opener(OBJECT), &framed(ObjectKind::Pages, Part::Header, &vec![0; content], b"HFQ\x01\x00"))
    };
    assert_eq!(read(0), Ok(Vec::new()));
    assert_eq!(read(1), Err(MapError::Pages { object: OBJECT, found: 104, expected: 105 }));
    let root = Root::new(LogId::new(1, 1));
    let framed = framed(ObjectKind::Root, Part::Root, &[0], &root.encode());
    assert!(matches!(open_root(&opener(OBJECT), &framed), Err(MapError::Pages { .. })));
    assert_eq!(ObjectHeader::decode(&framed).map(|header| header.main_offset), Ok(OBJECT_HEADER_BYTES as u64 + 1));
}

// ---- Page against one record per sector ----

/// Content of a sector: segment, number of the extent in it, sector of the extent.
type Sector = Option<(u128, u32, u64)>;

#[derive(Clone, Debug)]
enum Change {
    Overlay { at: u64, sealed: u64, skip: u64, sectors: u64, random: u128 },
    Unmap { at: u64, sectors: u64 },
    Reload,
}

/// Few places, so that changes overlap: the beginning of the page, its end and beyond on both sides, and one place
/// within.
fn any_at() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..700, PAGE_SECTORS - 300..PAGE_SECTORS + 700, 2 * PAGE_SECTORS - 300..2 * PAGE_SECTORS + 10]
}

fn any_change() -> impl Strategy<Value = Change> {
    let overlay =
        (any_at(), 1u64..=256, any::<(u64, u64)>(), 0u128..5).prop_map(|(at, sealed, (skip, sectors), random)| {
            let skip = (skip % sealed).min(at);
            Change::Overlay { at, sealed, skip, sectors: 1 + sectors % (sealed - skip), random }
        });
    prop_oneof![
        6 => overlay,
        2 => (any_at(), 0u64..2000).prop_map(|(at, sectors)| Change::Unmap { at, sectors }),
        1 => Just(Change::Reload),
    ]
}

/// A root that decodes may name segments of any length: the sums must not end the process.
#[test]
fn sums_of_a_root_do_not_overflow() {
    let mut root = Root::new(LogId::new(1, 2));
    let most = i64::MAX as u64;
    (1..=3).for_each(|random| root.add_segment(object(random), most, Sectors(most / SECTOR_BYTES)));
    let decoded = Root::decode(&root.encode());
    assert_eq!(decoded.as_ref(), Ok(&root));
    let stats = decoded.map(|root| root.stats()).unwrap_or_default();
    assert_eq!((stats.segments, stats.stored_bytes, stats.raw_bytes), (3, u64::MAX, u64::MAX));
}

proptest! {
    #[test]
    fn a_page_is_an_array_of_sectors(
        changes in proptest::collection::vec(any_change(), 0..60),
        asked in proptest::collection::vec((0..PAGE_SECTORS, 0..3000u64), 8),
    ) {
        let mut page = Page::new(V, 1);
        let (start, end) = (page.lba().0, page.end().0);
        let mut sectors: Vec<Sector> = vec![None; PAGE_SECTORS as usize];
        for (number, change) in changes.into_iter().enumerate() {
            match change {
                Change::Overlay { at, sealed, skip, sectors: count, random } => {
                    let number = number as u32;
                    let whole = extent(at - skip, sealed, random, number);
                    page.overlay(&MapExtent { lba: Lba(at), sectors: Sectors(count), skip: Sectors(skip), ..whole });
                    for lba in (at..at + count).filter(|lba| (start..end).contains(lba)) {
                        sectors[(lba - start) as usize] = Some((random, number, lba - at + skip));
                    }
                }
                Change::Unmap { at, sectors: count } => {
                    page.unmap(Lba(at), Sectors(count));
                    (at..at + count).filter(|lba| (start..end).contains(lba)).for_each(|lba| sectors[(lba - start) as usize] = None);
                }
                Change::Reload => page = Page::decode(&page.encode()).unwrap(),
            }
            page.self_check();
        }
        let same = Page::decode(&page.encode());
        prop_assert_eq!(same.as_ref(), Ok(&page));
        // Ends of the page, places with overlapping changes, and the whole page.
        let ranges = asked.into_iter().chain([(0, 1000), (PAGE_SECTORS - 1000, 1000), (0, PAGE_SECTORS), (5, 0)]);
        for (from, count) in ranges {
            let count = count.min(PAGE_SECTORS - from);
            let mut at = start + from;
            for piece in page.lookup(Lba(at), Sectors(count)) {
                prop_assert_eq!(piece.lba(), Lba(at));
                prop_assert!(piece.sectors().0 > 0);
                for sector in 0..piece.sectors().0 {
                    let found = match piece {
                        MapPiece::Below { .. } => panic!("nothing is below"),
                        MapPiece::Zero { .. } => None,
                        MapPiece::Stored(e) => {
                            prop_assert_eq!(e.sealed_lba().0 + e.skip.0, e.lba.0);
                            Some((e.object.random, e.place.number, e.skip.0 + sector))
                        }
                    };
                    prop_assert_eq!(found, sectors[(at - start) as usize], "sector {}", at);
                    at += 1;
                }
            }
            prop_assert_eq!(at, start + from + count);
        }
        let mut live: BTreeMap<u128, u64> = BTreeMap::new();
        sectors.iter().flatten().for_each(|(random, _, _)| *live.entry(*random).or_default() += 1);
        let found: BTreeMap<u128, u64> = page.live().iter().map(|(object, sectors)| (object.random, sectors.0)).collect();
        prop_assert_eq!(found, live, "MAP-M4");
    }
}

// ---- Decoders with foreign input ----

fn decode_all(bytes: &[u8]) {
    if let Ok(page) = Page::decode(bytes) {
        page.self_check();
        assert_eq!(Page::decode(&page.encode()), Ok(page));
    }
    if let Ok(root) = Root::decode(bytes) {
        assert_eq!(Root::decode(&root.encode()), Ok(root));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn anything_is_decoded_or_refused(magic in 0usize..5, bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
        let magic = [&b""[..], b"HFP\x01", b"HFR\x02", b"HFP\x02", b"HFR\x03"][magic];
        decode_all(&[magic, &bytes].concat());
    }

    /// Small numbers get further into a decoder than random ones.
    #[test]
    fn small_numbers_are_decoded_or_refused(magic in 0usize..4, bytes in proptest::collection::vec(0u8..9, 0..120)) {
        let magic = [&b"HFP\x01"[..], b"HFR\x02", b"HFP\x02", b"HFR\x03"][magic];
        decode_all(&[magic, &bytes].concat());
    }

    #[test]
    fn changed_bytes_are_decoded_or_refused(changes in proptest::collection::vec(any::<(usize, u8)>(), 1..4), cut: Option<usize>) {
        for mut bytes in [sample().encode(), sample_root().encode()] {
            for (at, byte) in &changes {
                let at = at % bytes.len();
                bytes[at] = *byte;
            }
            if let Some(cut) = cut {
                bytes.truncate(cut % bytes.len());
            }
            decode_all(&bytes);
        }
    }
}

// ---- Root against a plain list ----

proptest! {
    #[test]
    fn roots_come_back(
        upto in any::<(u64, u64)>(),
        pages in proptest::collection::btree_map((0u32..3, 0u32..40), (0u128..4, 0u32..9, 0u32..90_000, 1u32..5000, 0u64..20), 0..60),
        follow: bool,
    ) {
        let mut root = Root::new(LogId::new(upto.0, upto.1));
        root.add_segment(object(1), 77, Sectors(2000));
        let mut offset = 104;
        let mut live = 0;
        for ((volume, number), (pack, in_pack, at, raw_len, sectors)) in &pages {
            let page = PageRef {
                object: object(*pack),
                number: *in_pack,
                offset: if follow { offset } else { *at },
                sealed_len: raw_len + 16,
                raw_len: *raw_len,
            };
            offset += raw_len + 16;
            live += sectors;
            let after = Live::from([(object(1), Sectors(*sectors))]);
            root.replace_page(VolumeId(*volume), *number, Some(page), &Live::new(), &after).unwrap();
            prop_assert_eq!(root.page(VolumeId(*volume), *number), Some(page));
        }
        prop_assert_eq!(root.pages().count(), pages.len());
        prop_assert_eq!(root.segments().map(|(_, usage)| usage.live_sectors.0).sum::<u64>(), live, "MAP-M4");
        prop_assert_eq!(&Root::decode(&root.encode()), &Ok(root.clone()));
        root.seal_under(KEY_ID);
        prop_assert_eq!(&open_root(&opener(OBJECT), &seal_root(&root, sealer(OBJECT))), &Ok(root));
    }
}
