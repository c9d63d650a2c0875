use super::*;
use crate::object::tests::{OBJECT, noise, opener, sealer, text};
use crate::segment::blocks::{BLOCK_BYTES, Blocks};
use crate::segment::{Codec, SegmentBuilder};
use holdfast_types::limits::EXTENT_BYTES_MAX;
use holdfast_types::{Lba, SECTOR_BYTES, VolumeId};
use proptest::prelude::*;

/// A segment with one extent behind another one.
fn sealed(codec: Codec, raw: &[u8]) -> (Bytes, TableEntry, Vec<Stretch>) {
    let mut builder = SegmentBuilder::new(sealer(OBJECT), codec);
    builder.push(VolumeId(1), Lba(0), &noise(9, 40_960));
    let place = builder.push(VolumeId(4), Lba(8), raw);
    let stretches = builder.stretches_of(1).to_vec();
    assert_eq!(builder.stretches().len(), builder.stretches_of(0).len() + stretches.len());
    assert!(builder.stretches_of(2).is_empty());
    (builder.finish(), TableEntry { volume: VolumeId(4), lba: Lba(8), place }, stretches)
}

/// What a stretch has of the opened extent.
fn open_all(entry: &TableEntry, stretch: &Stretch, bytes: &[u8]) -> Result<Vec<u8>, SegmentError> {
    let first = stretch.block as usize;
    let wanted: Vec<usize> = entry.place.stretch_of(first).collect();
    open_blocks(&opener(OBJECT), entry, first, bytes, &wanted).map(|blocks| blocks.concat())
}

#[test]
fn an_extent_is_kept_in_stretches_of_about_equal_length() {
    let place = |raw_len, plain_len, codec| {
        let sealed_len = (plain_len + Blocks::new(raw_len, codec).overhead()) as u32;
        ExtentPlace { number: 0, offset: 104, sealed_len, raw_len: raw_len as u32, codec }
    };
    let firsts = |place: ExtentPlace| {
        let mut firsts = vec![0];
        while let Some(last) = firsts.last().copied()
            && place.stretch_of(last).end < place.blocks().count()
        {
            firsts.push(place.stretch_of(last).end);
        }
        firsts
    };
    let whole = EXTENT_BYTES_MAX;
    assert_eq!(firsts(place(whole, whole, Codec::None)), [0, 1, 2, 3, 4, 5, 6, 7], "not compressed");
    assert_eq!(firsts(place(whole, whole / 2, Codec::Lz4)), [0, 2, 4, 6], "to a half: 16 KiB each");
    assert_eq!(firsts(place(whole, whole / 4, Codec::Lz4)), [0, 4], "to a quarter: 16 KiB each");
    assert_eq!(firsts(place(whole, 8, Codec::Zstd)), [0], "to nothing");
    assert_eq!(firsts(place(2 * BLOCK_BYTES, 2 * BLOCK_BYTES, Codec::None)), [0, 1]);
    assert_eq!(firsts(place(2 * BLOCK_BYTES, BLOCK_BYTES, Codec::Lz4)), [0]);
    assert_eq!(firsts(place(512, 512, Codec::None)), [0]);
}

/// A cache's disk is trusted as little as a store.
#[test]
fn a_stretch_opens_only_as_itself() {
    let (segment, entry, stretches) = sealed(Codec::None, &noise(1, EXTENT_BYTES_MAX));
    let [first, second, ..] = &stretches[..] else { panic!("{stretches:?}") };
    let (bytes, other) = (first.cut(&segment, 0), second.cut(&segment, 0));
    assert_eq!(bytes.len(), other.len());
    assert!(open_all(&entry, first, &bytes).is_ok() && open_all(&entry, second, &other).is_ok());
    let said = |stretch: &Stretch, bytes: &[u8]| open_all(&entry, stretch, bytes).unwrap_err().to_string();
    assert!(said(first, &other).contains("expected block 0 of extent 1 (v4 lba8"), "{}", said(first, &other));
    assert!(said(second, &bytes).contains("expected block 1 of extent 1 (v4 lba8"), "{}", said(second, &bytes));
    for len in [0, 1, bytes.len() - 1] {
        let text = format!("extent 1 of {OBJECT}: found {len} sealed bytes, expected {}", bytes.len());
        assert_eq!(said(first, &bytes[..len]), text);
    }
    let asked = |first, wanted: &[usize]| open_blocks(&opener(OBJECT), &entry, first, &bytes, wanted);
    let text = format!("extent 1 of {OBJECT}: asked for blocks 1 to 2, expected 0 to 1");
    assert_eq!(asked(0, &[0, 1]).unwrap_err().to_string(), text);
    let text = format!("extent 1 of {OBJECT}: asked for blocks 8 to 9, expected 0 to 8");
    assert_eq!(asked(8, &[8]).unwrap_err().to_string(), text);
}

fn any_codec() -> impl Strategy<Value = Codec> {
    prop_oneof![Just(Codec::None), Just(Codec::Lz4), Just(Codec::Zstd)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// From the builder, from the sealed extent, and opened block by block: the same stretches. Each opens alone, and
    /// together they are the extent. Of compressible and incompressible blocks in any order.
    #[test]
    fn stretches_are_the_extent(
        codec in any_codec(), sectors in 1..=EXTENT_BYTES_MAX / SECTOR_BYTES as usize,
        noisy in any::<[bool; 8]>(), seed: u64, bit: usize,
    ) {
        let mut raw = Vec::new();
        for noisy in noisy {
            raw.extend(if noisy { noise(seed, BLOCK_BYTES) } else { text(seed, BLOCK_BYTES) });
        }
        raw.truncate(sectors * SECTOR_BYTES as usize);
        let (segment, entry, made) = sealed(codec, &raw);
        let range = entry.place.range();
        let extent = segment.slice(range.start as usize..range.end as usize);
        prop_assert_eq!(&stretches(&opener(OBJECT), &entry, &extent).unwrap(), &made);
        let apart = open_apart(&opener(OBJECT), &entry, &extent).unwrap();
        prop_assert_eq!(&apart.stretches, &made);
        prop_assert!(apart.blocks.concat() == raw);
        let mut opened = Vec::new();
        for stretch in &made {
            let bytes = stretch.cut(&segment, 0);
            prop_assert_eq!(bytes.len() as u64, stretch.bytes());
            prop_assert_eq!(&stretch.cut(&extent, range.start), &bytes);
            // Not only the cut of one that is in order: each bit counts.
            let mut spoilt = bytes.to_vec();
            spoilt[bit / 8 % bytes.len()] ^= 1 << (bit % 8);
            prop_assert!(open_all(&entry, stretch, &spoilt).is_err());
            opened.extend(open_all(&entry, stretch, &bytes).unwrap());
        }
        prop_assert!(opened == raw);
        // Where the extent is in one entry, that is the extent itself, and nothing is copied.
        if let [whole] = &made[..] {
            prop_assert_eq!((whole.lengths.is_empty(), &whole.blocks), (true, &range));
        }
    }
}
