use super::*;
use holdfast_types::SECTOR_BYTES;
use proptest::prelude::*;

#[test]
fn sealing_adds_a_tag_for_each_block_and_lengths_where_they_are_not_known() {
    let of = |raw_len, codec| {
        let blocks = Blocks::new(raw_len, codec);
        (blocks.count(), blocks.lengths_bytes(), blocks.overhead())
    };
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
        assert_eq!(of(512, codec), (1, 0, 16), "{codec}");
        assert_eq!(of(BLOCK_BYTES, codec), (1, 0, 16), "{codec}");
    }
    assert_eq!(of(BLOCK_BYTES + 512, Codec::None), (2, 0, 32));
    assert_eq!(of(BLOCK_BYTES + 512, Codec::Lz4), (2, 18, 50));
    assert_eq!(of(EXTENT_BYTES_MAX, Codec::None), (8, 0, 128));
    assert_eq!(of(EXTENT_BYTES_MAX, Codec::Zstd), (8, 30, 158));
}

proptest! {
    #[test]
    fn blocks_cover_an_extent_and_touched_ones_a_range(
        sectors in 1..=EXTENT_BYTES_MAX / SECTOR_BYTES as usize, from: usize, len: usize,
    ) {
        let raw_len = sectors * SECTOR_BYTES as usize;
        let blocks = Blocks::new(raw_len, Codec::Lz4);
        let ranges: Vec<Range<usize>> = (0..blocks.count()).map(|block| blocks.raw(block)).collect();
        prop_assert_eq!(ranges.first().map(|range| range.start), Some(0));
        prop_assert_eq!(ranges.last().map(|range| range.end), Some(raw_len));
        prop_assert!(ranges.windows(2).all(|pair| pair[0].end == pair[1].start && pair[0].len() == BLOCK_BYTES));
        let from = from % raw_len;
        let range = from..from + 1 + len % (raw_len - from);
        let touched = blocks.touched(&range);
        for (block, of_block) in ranges.iter().enumerate() {
            let overlaps = of_block.start < range.end && range.start < of_block.end;
            prop_assert_eq!(touched.contains(&block), overlaps, "block {} of {:?}", block, range);
        }
    }

    #[test]
    fn lengths_come_back(
        sectors in 1..=EXTENT_BYTES_MAX / SECTOR_BYTES as usize, plain in proptest::collection::vec(1..=BLOCK_BYTES, 8),
    ) {
        let blocks = Blocks::new(sectors * SECTOR_BYTES as usize, Codec::Lz4);
        let plain: Vec<Vec<u8>> =
            (0..blocks.count()).map(|block| vec![0; plain[block].min(blocks.raw(block).len())]).collect();
        let lengths = Lengths::of(blocks, plain.iter().map(Vec::as_slice));
        let sealed_len = blocks.overhead() + plain.iter().map(Vec::len).sum::<usize>();
        if blocks.lengths_bytes() > 0 {
            prop_assert_eq!(lengths.encode().len() + TAG_BYTES, blocks.lengths_bytes());
            prop_assert_eq!(Lengths::decode(blocks, &lengths.encode(), sealed_len), Ok(lengths));
        } else {
            prop_assert_eq!(Lengths::known(blocks, sealed_len), lengths);
        }
        // The sealed blocks follow one another, from the lengths to the end.
        let places: Vec<Range<usize>> = (0..blocks.count()).map(|block| lengths.sealed(block)).collect();
        prop_assert_eq!(places[0].start, blocks.lengths_bytes());
        prop_assert!(places.windows(2).all(|pair| pair[0].end == pair[1].start));
        prop_assert_eq!(places.last().map(|place| place.end), Some(sealed_len));
    }

    /// Whatever authentic lengths claim, all blocks lie within the sealed extent.
    #[test]
    fn any_lengths_are_decoded_or_refused(
        sectors in 33..=EXTENT_BYTES_MAX / SECTOR_BYTES as usize, bytes in proptest::collection::vec(any::<u8>(), 14),
        sealed_len in 0..2 * EXTENT_BYTES_MAX,
    ) {
        let blocks = Blocks::new(sectors * SECTOR_BYTES as usize, Codec::Lz4);
        if let Ok(lengths) = Lengths::decode(blocks, &bytes[..2 * (blocks.count() - 1)], sealed_len) {
            prop_assert_eq!(lengths.sealed(blocks.count() - 1).end, sealed_len);
            prop_assert_eq!(lengths.encode(), &bytes[..2 * (blocks.count() - 1)]);
        }
    }
}
