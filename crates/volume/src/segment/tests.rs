use super::blocks::BLOCK_BYTES;
use super::*;
use crate::object::tests::{
    KEY_ID, OBJECT, SET, assert_golden, assert_kept, assert_kept_readable, framed, from_hex, key, noise, object,
    opener, sealer, text,
};
use holdfast_seal::SealError;
use holdfast_types::{GroupId, Sectors};
use proptest::prelude::*;

const V: VolumeId = VolumeId(4);

fn build(codec: Codec, extents: &[(VolumeId, Lba, Vec<u8>)]) -> (Bytes, Vec<TableEntry>) {
    build_as(OBJECT, codec, extents)
}

fn build_as(object: ObjectId, codec: Codec, extents: &[(VolumeId, Lba, Vec<u8>)]) -> (Bytes, Vec<TableEntry>) {
    let mut builder = SegmentBuilder::new(sealer(object), codec);
    let mut table = Vec::new();
    for (volume, lba, raw) in extents {
        let place = builder.push(*volume, *lba, raw);
        table.push(TableEntry { volume: *volume, lba: *lba, place });
        assert_eq!(u64::from(place.offset) + u64::from(place.sealed_len), builder.bytes() as u64);
    }
    assert_eq!(builder.extents(), extents.len());
    assert_eq!(builder.raw_bytes(), extents.iter().map(|(_, _, raw)| raw.len() as u64).sum::<u64>());
    (builder.finish(), table)
}

fn cut<'a>(segment: &'a [u8], place: &ExtentPlace) -> &'a [u8] {
    &segment[place.range().start as usize..place.range().end as usize]
}

fn open(segment: &[u8], entry: &TableEntry) -> Result<Vec<u8>, SegmentError> {
    open_extent(&opener(OBJECT), &entry.place, entry.volume, entry.lba, cut(segment, &entry.place))
}

/// Checks a whole segment: the table, and every extent.
fn verify(segment: &[u8]) -> Result<Vec<Vec<u8>>, SegmentError> {
    read_table(&opener(OBJECT), segment)?.iter().map(|entry| open(segment, entry)).collect()
}

/// A compressible extent, an incompressible one on the next volume, and one sector.
fn sample() -> Vec<(VolumeId, Lba, Vec<u8>)> {
    vec![(V, Lba(8), text(1, 1024)), (VolumeId(5), Lba(0), noise(2, 512)), (VolumeId(5), Lba(1), text(3, 512))]
}

#[test]
fn segment_bytes_are_pinned() {
    let extents = sample();
    let contents: Vec<Vec<u8>> = extents.iter().map(|(_, _, raw)| raw.clone()).collect();
    let (segment, table) = build(Codec::None, &extents);
    assert_golden("segment-none", &segment, include_str!("../../golden/segment-none.hex"));
    assert_kept("segment-none", &segment, &Ok(contents.clone()), verify);
    assert_eq!(encode_table(&table), from_hex("48465402 03 08 10 02 00 8008 02 13 01 00 8004 00 00 01 00 8004"));
    // The codecs' output may change with their versions. Old output must open for ever.
    let lz4 = from_hex(include_str!("../../golden/segment-lz4.hex"));
    let zstd = from_hex(include_str!("../../golden/segment-zstd.hex"));
    for (codec, kept) in [(Codec::Lz4, lz4), (Codec::Zstd, zstd)] {
        let now = build(codec, &extents).0;
        assert_eq!(
            verify(&kept),
            Ok(contents.clone()),
            "{codec}, which now is\n{}",
            crate::object::tests::hex_lines(&now)
        );
        let codecs: Vec<Codec> =
            read_table(&opener(OBJECT), &kept).unwrap().iter().map(|entry| entry.place.codec).collect();
        assert_eq!(codecs, [codec, Codec::None, codec]);
        assert_kept_readable(&format!("segment-{codec}"), &kept, &Ok(contents.clone()), verify);
    }
}

/// An extent of two compressed blocks and one that is not, kept as the segments above.
#[test]
fn blocks_of_an_extent_are_pinned() {
    let raw = [text(1, 2 * BLOCK_BYTES), noise(2, 512)].concat();
    let kept = from_hex(include_str!("../../golden/segment-blocks.hex"));
    let (now, table) = build(Codec::Lz4, &[(V, Lba(8), raw.clone())]);
    assert_eq!(verify(&kept), Ok(vec![raw.clone()]), "which now is\n{}", crate::object::tests::hex_lines(&now));
    assert_kept_readable("segment-blocks", &kept, &Ok(vec![raw]), verify);
    let entry = read_table(&opener(OBJECT), &kept).unwrap()[0];
    // Two lengths with their tag, then blocks of 128, 128 and 512 bytes with theirs.
    let place =
        ExtentPlace { number: 0, offset: 104, sealed_len: 20 + 144 + 144 + 528, raw_len: 33_280, codec: Codec::Lz4 };
    assert_eq!((entry.volume, entry.lba, entry.place), (V, Lba(8), place));
    assert_eq!((table[0].place.codec, table[0].place.sectors()), (Codec::Lz4, Sectors(65)));
}

#[test]
fn codecs_have_pinned_numbers_and_names() {
    for (codec, number, name) in [(Codec::None, 0, "none"), (Codec::Lz4, 1, "lz4"), (Codec::Zstd, 2, "zstd")] {
        assert_eq!((codec.number(), Codec::from_number(number)), (number, Some(codec)));
        assert_eq!((codec.to_string().as_str(), name.parse()), (name, Ok(codec)));
    }
    assert_eq!(Codec::from_number(3), None);
    let error = "gzip".parse::<Codec>().unwrap_err().to_string();
    assert_eq!(error, "codec: found \"gzip\", expected none, lz4 or zstd");
}

/// R10: the pattern is in every extent, at the start, in between and at the end, compressible or not.
#[test]
fn plaintext_is_nowhere_in_a_segment() {
    let pattern = b"the-plaintext-that-must-not-leave";
    let mark = |mut raw: Vec<u8>| {
        let len = raw.len();
        for at in [0, len / 2, len - pattern.len()] {
            raw[at..at + pattern.len()].copy_from_slice(pattern);
        }
        raw
    };
    let extents: Vec<(VolumeId, Lba, Vec<u8>)> = (0..8u64)
        .map(|at| {
            let raw = if at % 2 == 0 { text(at, 128 << 10) } else { noise(at, 128 << 10) };
            (V, Lba(at * 256), mark(raw))
        })
        .collect();
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
        let (segment, table) = build(codec, &extents);
        // A quarter of the pattern would be enough to see.
        for part in pattern.chunks_exact(8) {
            assert!(!segment.windows(part.len()).any(|window| window == part), "R10: {codec}");
        }
        // The pattern really is inside, and there are extents of both kinds.
        assert!(table.iter().all(|entry| open(&segment, entry).unwrap().starts_with(pattern)));
        let raw_ones = table.iter().filter(|entry| entry.place.codec == Codec::None).count();
        assert_eq!(raw_ones, if codec == Codec::None { 8 } else { 4 });
    }
}

#[test]
fn swapped_extents_do_not_open() {
    // Same volume, lengths and codec: only number and place differ.
    let (segment, table) = build(Codec::None, &[(V, Lba(0), noise(1, 4096)), (V, Lba(8), noise(2, 4096))]);
    let mut swapped = segment.to_vec();
    swapped[table[0].place.range().start as usize..][..4112].copy_from_slice(cut(&segment, &table[1].place));
    swapped[table[1].place.range().start as usize..][..4112].copy_from_slice(cut(&segment, &table[0].place));
    for entry in &table {
        let error = open(&swapped, entry).unwrap_err();
        let (found, expected) =
            ("found 4112 bytes under tag", format!("expected block 0 of extent {} (v4", entry.place.number));
        let said = error.to_string();
        assert!(matches!(error, SegmentError::Seal(SealError::NotAuthentic { .. })), "{said}");
        assert!(said.contains(found) && said.contains(&expected), "{said}");
    }
}

/// Three blocks of equal length, sealed: not compressed, so there are no lengths before them.
fn three_blocks(seed: u64) -> (Vec<u8>, TableEntry, Vec<u8>) {
    let raw = noise(seed, 3 * BLOCK_BYTES);
    let (segment, table) = build(Codec::None, &[(V, Lba(8), raw.clone())]);
    (raw, table[0], cut(&segment, &table[0].place).to_vec())
}

/// Where block `at` of [`three_blocks`] is.
fn of_three(at: usize) -> std::ops::Range<usize> {
    at * (BLOCK_BYTES + TAG_BYTES)..(at + 1) * (BLOCK_BYTES + TAG_BYTES)
}

/// SEAL-S2: not even a block of the same extent, of the same length, and the next one.
#[test]
fn a_block_does_not_open_at_another_place() {
    let (raw, entry, sealed) = three_blocks(1);
    let mut swapped = sealed.clone();
    swapped[of_three(0)].copy_from_slice(&sealed[of_three(1)]);
    swapped[of_three(1)].copy_from_slice(&sealed[of_three(0)]);
    let open = |sealed: &[u8], range| open_range(&opener(OBJECT), &entry, sealed, range);
    for block in 0..2 {
        let range = block * BLOCK_BYTES..block * BLOCK_BYTES + 512;
        assert_eq!(open(&sealed, range.clone()).unwrap(), raw[range.clone()]);
        let error = open(&swapped, range).unwrap_err().to_string();
        assert!(error.contains(&format!("expected block {block} of extent 0 (v4 lba8")), "{error}");
    }
    // The third is where it was.
    assert_eq!(open(&swapped, 2 * BLOCK_BYTES..3 * BLOCK_BYTES).unwrap(), raw[2 * BLOCK_BYTES..]);
}

/// … nor the same block of another extent, nor of an extent at the same place that was overwritten.
#[test]
fn a_block_does_not_open_in_another_extent() {
    let raw = noise(1, 3 * BLOCK_BYTES);
    let (segment, table) = build(Codec::None, &[(V, Lba(8), raw.clone()), (V, Lba(8), noise(2, 3 * BLOCK_BYTES))]);
    let mut mixed = cut(&segment, &table[0].place).to_vec();
    mixed[of_three(1)].copy_from_slice(&cut(&segment, &table[1].place)[of_three(1)]);
    let open = |range| open_range(&opener(OBJECT), &table[0], &mixed, range);
    let error = open(BLOCK_BYTES..BLOCK_BYTES + 512).unwrap_err().to_string();
    assert!(error.contains("expected block 1 of extent 0 (v4 lba8"), "{error}");
    assert_eq!(open(0..BLOCK_BYTES).unwrap(), raw[..BLOCK_BYTES]);
}

#[test]
fn a_part_beyond_an_extent_or_of_one_cut_short_is_refused() {
    let (raw, entry, sealed) = three_blocks(1);
    let open = |sealed: &[u8], range| open_range(&opener(OBJECT), &entry, sealed, range);
    for len in [0, 1, BLOCK_BYTES, sealed.len() - 1] {
        let text = format!("extent 0 of {OBJECT}: found {len} sealed bytes, expected {}", sealed.len());
        assert_eq!(open(&sealed[..len], 0..512).unwrap_err().to_string(), text);
    }
    let text = format!("extent 0 of {OBJECT}: asked for bytes 512 to 49664, expected 0 to 49152");
    assert_eq!(open(&sealed, 512..raw.len() + 512).unwrap_err().to_string(), text);
}

/// The lengths are sealed, and fit only the extent that they were made for.
#[test]
fn lengths_that_were_changed_or_moved_are_refused() {
    let raw = text(1, 3 * BLOCK_BYTES);
    let (segment, table) = build(Codec::Lz4, &[(V, Lba(8), raw.clone()), (V, Lba(8), raw.clone())]);
    let (entry, sealed) = (table[0], cut(&segment, &table[0].place));
    let head = entry.place.blocks().lengths_bytes();
    assert_eq!(head, 2 * 2 + TAG_BYTES);
    let refused = |entry: &TableEntry, sealed: &[u8], expected: &str| {
        let error = open_range(&opener(OBJECT), entry, sealed, 0..512).unwrap_err().to_string();
        assert!(error.contains(expected), "found {error}, expected {expected}");
    };
    for bit in 0..head * 8 {
        let mut changed = sealed.to_vec();
        changed[bit / 8] ^= 1 << (bit % 8);
        refused(&entry, &changed, "expected lengths of extent 0 (v4 lba8");
    }
    // Those of another extent, although the two are equal to the bit.
    let moved = [&cut(&segment, &table[1].place)[..head], &sealed[head..]].concat();
    refused(&entry, &moved, "expected lengths of extent 0 (v4 lba8");
    // A map that names more sealed bytes: the last block gets the difference. The first one is where it was.
    let longer = |more: u32| {
        let place = ExtentPlace { sealed_len: entry.place.sealed_len + more, ..entry.place };
        (TableEntry { place, ..entry }, [sealed, &vec![0; more as usize]].concat())
    };
    let (too_long, bytes) = longer(40_000);
    refused(&too_long, &bytes, "bytes, expected 1 to 16384");
    let (longer, bytes) = longer(1);
    let open = |range: std::ops::Range<usize>| open_range(&opener(OBJECT), &longer, &bytes, range);
    assert_eq!(open(0..BLOCK_BYTES).unwrap(), raw[..BLOCK_BYTES]);
    let error = open(0..raw.len()).unwrap_err().to_string();
    assert!(error.contains("expected block 2 of extent 0 (v4 lba8"), "{error}");
}

/// Authentic lengths of a bug in this code, or of a map with another sealed length.
#[test]
fn lengths_that_cannot_be_are_refused_with_their_name() {
    let blocks = Blocks::new(3 * BLOCK_BYTES, Codec::Lz4);
    let decode = |first: u16, second: u16, sealed_len| {
        let bytes = [first.to_le_bytes(), second.to_le_bytes()].concat();
        Lengths::decode(blocks, &bytes, sealed_len)
    };
    let lengths = decode(100, 200, blocks.overhead() + 600).unwrap();
    assert_eq!(lengths.encode(), [100, 0, 200, 0]);
    assert_eq!([0, 1, 2].map(|block| lengths.sealed(block)), [20..136, 136..352, 352..668]);
    let refused = |first, second, sealed_len, text: &str| {
        assert_eq!(decode(first, second, sealed_len), Err(text.to_string()));
    };
    let overhead = blocks.overhead();
    refused(0, 200, overhead + 600, "block 0 of 0 bytes, expected 1 to 16384");
    refused(100, 16_385, overhead + 20_000, "block 1 of 16385 bytes, expected 1 to 16384");
    refused(100, 200, overhead + 300, "block 2 of 0 bytes, expected 1 to 16384");
    refused(100, 200, overhead + 17_000, "block 2 of 16700 bytes, expected 1 to 16384");
    refused(100, 200, overhead + 299, "300 bytes before the last block, in 367 sealed bytes");
}

#[test]
fn an_extent_of_another_object_set_or_place_does_not_open() {
    let extents = [(V, Lba(8), noise(1, 4096))];
    let (segment, table) = build(Codec::None, &extents);
    let place = table[0].place;
    let sealed = cut(&segment, &place);
    let refused = |opener: &ObjectOpener, place: ExtentPlace, volume, lba, sealed: &[u8]| {
        let error = open_extent(opener, &place, volume, lba, sealed).unwrap_err();
        assert!(matches!(error, SegmentError::Seal(SealError::NotAuthentic { .. })), "{error}");
    };
    let me = opener(OBJECT);
    refused(&me, place, VolumeId(5), Lba(8), sealed);
    refused(&me, place, V, Lba(9), sealed);
    refused(&me, ExtentPlace { number: 1, ..place }, V, Lba(8), sealed);
    refused(&opener(object(1)), place, V, Lba(8), sealed);
    refused(&ObjectOpener::new(&key(), KEY_ID, GroupId(6), OBJECT), place, V, Lba(8), sealed);
    refused(&ObjectOpener::new(&key(), KEY_ID + 1, SET, OBJECT), place, V, Lba(8), sealed);
    // The same content, sealed for the same place in another object.
    let (other, other_table) = build_as(object(1), Codec::None, &extents);
    assert_eq!(other_table, table);
    refused(&me, place, V, Lba(8), cut(&other, &place));
    // Possible but wrong lengths and codec.
    let lz4 = ExtentPlace { codec: Codec::Lz4, ..place };
    refused(&me, lz4, V, Lba(8), sealed);
    refused(&me, ExtentPlace { raw_len: 8192, ..lz4 }, V, Lba(8), sealed);
    let shorter = ExtentPlace { sealed_len: place.sealed_len - 1, ..lz4 };
    refused(&me, shorter, V, Lba(8), &sealed[..sealed.len() - 1]);
}

#[test]
fn impossible_places_are_refused_before_memory_is_taken() {
    let (segment, table) = build(Codec::None, &[(V, Lba(8), noise(1, 4096))]);
    let place = table[0].place;
    let said = |place: ExtentPlace, sealed: &[u8]| {
        open_extent(&opener(OBJECT), &place, V, Lba(8), sealed).unwrap_err().to_string()
    };
    let sealed = cut(&segment, &place);
    for raw_len in [0, 511, 4097, 128 * 1024 + 512, u32::MAX] {
        let text = format!("place of extent 0: found {raw_len} raw bytes, expected whole sectors up to 131072 bytes");
        assert_eq!(said(ExtentPlace { raw_len, ..place }, sealed), text);
    }
    for sealed_len in [0, 16, 4111, 4113, u32::MAX] {
        let text = format!("place of extent 0: found {sealed_len} sealed bytes, expected 4112 to 4112");
        assert_eq!(said(ExtentPlace { sealed_len, ..place }, sealed), text);
    }
    let text = "place of extent 0: found offset 4294967295 and 4112 bytes, expected an end within 32 bits";
    assert_eq!(said(ExtentPlace { offset: u32::MAX, ..place }, sealed), text);
    let text = format!("extent 0 of {OBJECT}: found 4111 sealed bytes, expected 4112");
    assert_eq!(said(place, &sealed[..4111]), text);
}

/// Every bit of a segment, and every length, counts.
#[test]
fn any_flipped_bit_and_any_truncation_is_found() {
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
        let (segment, _) = build(codec, &sample());
        assert_eq!(verify(&segment).map(|all| all.len()), Ok(3));
        let mut damaged = segment.to_vec();
        for bit in 0..segment.len() * 8 {
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert!(verify(&damaged).is_err(), "{codec}, bit {bit} of {}", segment.len() * 8);
            damaged[bit / 8] ^= 1 << (bit % 8);
        }
        for len in 0..segment.len() {
            assert!(verify(&segment[..len]).is_err(), "{codec}, {len} of {}", segment.len());
        }
        assert!(verify(&[&segment[..], b"x"].concat()).is_err());
    }
}

#[test]
fn a_table_that_does_not_fit_its_segment_is_refused() {
    let (_, table) = build(Codec::None, &[(V, Lba(8), noise(1, 512))]);
    let plain = encode_table(&table);
    let read = |content: usize, plain: &[u8]| {
        let object = framed(ObjectKind::Segment, Part::Header, &vec![0; content], plain);
        read_table(&opener(OBJECT), &object)
    };
    assert_eq!(read(528, &plain), Ok(table));
    let short = SegmentError::Extents { object: OBJECT, found: 104 + 528, expected: 104 + 527 };
    assert_eq!(read(527, &plain), Err(short));
    assert!(matches!(read(528, b"HFT\x01\x00"), Err(SegmentError::Table { .. })));
    assert!(matches!(read(528, &[&plain[..], &[0]].concat()), Err(SegmentError::Table { .. })));
    // A count that exceeds the bytes.
    let error = read(0, b"HFT\x02\xff\xff\xff\x7f").unwrap_err().to_string();
    let text = format!("segment {OBJECT}, table: count of extents at byte 4: found 268435455, expected 0 to 0");
    assert_eq!(error, text);
}

/// Authentic bytes that no codec made: an error, with bounded memory.
#[test]
fn a_false_codec_under_a_true_seal_is_an_error() {
    let bomb = zstd::bulk::compress(&vec![0; 1 << 20], ZSTD_LEVEL).unwrap();
    let short = lz4_flex::block::compress(&[7; 511]);
    for (codec, plain) in
        [(Codec::Zstd, bomb), (Codec::Lz4, short), (Codec::Zstd, vec![1; 9]), (Codec::Lz4, vec![0xff; 9])]
    {
        let place = ExtentPlace { number: 0, offset: 104, sealed_len: plain.len() as u32 + 16, raw_len: 512, codec };
        let aad = open::aad(&TableEntry { volume: V, lba: Lba(0), place });
        let sealed = sealer(OBJECT).seal_extent(0, ExtentPart::Block(0), aad, &plain);
        let error = open_extent(&opener(OBJECT), &place, V, Lba(0), &sealed).unwrap_err();
        assert!(matches!(error, SegmentError::Decompress { raw_len: 512, .. }), "{error}");
    }
}

#[test]
fn a_segment_closes_near_its_target() {
    let mut builder = SegmentBuilder::new(sealer(OBJECT), Codec::Lz4);
    assert!(!builder.is_full());
    let raw = noise(1, EXTENT_BYTES_MAX);
    let mut lba = 0;
    while !builder.is_full() {
        builder.push(V, Lba(lba), &raw);
        lba += EXTENT_SECTORS_MAX;
    }
    let segment = builder.finish();
    assert!(segment.len() >= SEGMENT_BYTES_TARGET && segment.len() < SEGMENT_BYTES_TARGET + 2 * EXTENT_BYTES_MAX);
    assert_eq!(read_table(&opener(OBJECT), &segment).unwrap().len(), 128);
}

#[test]
fn an_empty_segment_is_a_segment() {
    let (segment, _) = build(Codec::Lz4, &[]);
    assert_eq!(verify(&segment), Ok(Vec::new()));
}

#[test]
#[should_panic(expected = "R9: 513 bytes at lba8 of v4")]
fn a_broken_sector_is_not_sealed() {
    SegmentBuilder::new(sealer(OBJECT), Codec::None).push(V, Lba(8), &[0; 513]);
}

fn any_codec() -> impl Strategy<Value = Codec> {
    prop_oneof![Just(Codec::None), Just(Codec::Lz4), Just(Codec::Zstd)]
}

/// Noise in front of text: from incompressible over "not worth it" to very compressible.
fn raw_of((sectors, eighths, seed): (usize, usize, u64)) -> Vec<u8> {
    let len = sectors * SECTOR_BYTES as usize;
    let mut raw = noise(seed, len * eighths / 8);
    raw.extend(text(seed, len - raw.len()));
    raw
}

fn any_raw() -> impl Strategy<Value = (usize, usize, u64)> {
    (1..=EXTENT_SECTORS_MAX as usize, 0..=8usize, any::<u64>())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn segments_come_back(
        codec in any_codec(),
        extents in proptest::collection::vec((0u32..3, 0u64..VOLUME_SECTORS_MAX - EXTENT_SECTORS_MAX, any_raw()), 0..6),
    ) {
        let extents: Vec<(VolumeId, Lba, Vec<u8>)> =
            extents.into_iter().map(|(volume, lba, raw)| (VolumeId(volume), Lba(lba), raw_of(raw))).collect();
        let (segment, table) = build(codec, &extents);
        prop_assert_eq!(&read_table(&opener(OBJECT), &segment), &Ok(table.clone()));
        // The two-read way: header, then main part.
        let header = ObjectHeader::decode(&segment[..OBJECT_HEADER_BYTES]).unwrap();
        let main = &segment[header.main_range().start as usize..header.main_range().end as usize];
        prop_assert_eq!(&open_table(&opener(OBJECT), &header, main), &Ok(table.clone()));
        for (entry, (_, _, raw)) in table.iter().zip(&extents) {
            prop_assert!(entry.place.check().is_ok());
            prop_assert!(entry.place.sealed_len as usize <= raw.len() + entry.place.blocks().overhead());
            prop_assert!(open(&segment, entry).as_ref() == Ok(raw), "{entry:?}");
        }
    }

    /// Any part of any extent, from the blocks that it touches and no others.
    #[test]
    fn any_range_of_any_extent_comes_back(codec in any_codec(), raw in any_raw(), from: usize, len: usize) {
        let raw = raw_of(raw);
        let (segment, table) = build(codec, &[(V, Lba(8), raw.clone())]);
        let from = from % (raw.len() + 1);
        let range = from..from + len % (raw.len() - from + 1);
        let sealed = cut(&segment, &table[0].place);
        let found = open_range(&opener(OBJECT), &table[0], sealed, range.clone());
        prop_assert!(found.as_deref() == Ok(&raw[range.clone()]), "{range:?} of {:?}", table[0]);
        // Whatever the other blocks are.
        let touched = table[0].place.blocks().touched(&range);
        let mut spoilt = sealed.to_vec();
        let lengths = open::Opening::new(&opener(OBJECT), &table[0]).unwrap().lengths_of_whole(sealed).unwrap();
        for block in (0..table[0].place.blocks().count()).filter(|block| !touched.contains(block)) {
            spoilt[lengths.sealed(block)].fill(0);
        }
        let found = open_range(&opener(OBJECT), &table[0], &spoilt, range.clone());
        prop_assert!(found.as_deref() == Ok(&raw[range.clone()]), "{range:?} of {:?}", table[0]);
        for block in touched {
            spoilt[lengths.sealed(block).start] ^= 1;
            prop_assert!(open_range(&opener(OBJECT), &table[0], &spoilt, range.clone()).is_err(), "block {block}");
            spoilt[lengths.sealed(block).start] ^= 1;
        }
    }

    #[test]
    fn any_table_is_decoded_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let plain = [TABLE_MAGIC, &bytes].concat();
        if let Ok(table) = decode_table(&plain) {
            prop_assert!(table.iter().all(|entry| entry.place.check().is_ok()));
            prop_assert_eq!(encode_table(&table), plain);
        }
    }

    #[test]
    fn a_changed_table_is_decoded_or_refused(at: usize, byte: u8) {
        let mut plain = encode_table(&build(Codec::Lz4, &sample()).1);
        let at = at % plain.len();
        plain[at] = byte;
        if let Ok(table) = decode_table(&plain) {
            prop_assert!(table.iter().all(|entry| entry.place.check().is_ok()));
        }
    }
}
