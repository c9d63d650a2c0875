//! Compression of an extent's blocks, each by itself.

use super::blocks::{BLOCK_BYTES, BLOCKS_MAX};
use super::codec::Codec;
use std::ops::Range;

/// zstd's level: about three times the CPU time of lz4, and a quarter smaller. Higher levels cost more than they save
/// here.
pub const ZSTD_LEVEL: i32 = 3;

/// After so many extents in a row of which nothing compressed, one block of each is tried, not two.
const DULL_EXTENTS: u32 = 8;

/// Compresses extents one after the other. Keeps its tables and output buffer between them.
pub(super) struct Compressor {
    codec: Codec,
    /// Extents in a row of which nothing compressed.
    dull: u32,
    room: Vec<u8>,
    lz4: lz4_flex::block::CompressTable,
    zstd: Option<zstd::bulk::Compressor<'static>>,
}

/// An extent's blocks, compressed where that pays. A block as long as before is not compressed.
pub(super) struct Compressed<'a> {
    /// [`Codec::None`] if no block is compressed.
    pub(super) codec: Codec,
    pub(super) blocks: Vec<&'a [u8]>,
}

impl Compressor {
    pub(super) fn new(codec: Codec) -> Self {
        // zstd may fail to allocate memory. Then extents stay uncompressed: that wastes space but is no fault (R8).
        let zstd = if codec == Codec::Zstd { zstd::bulk::Compressor::new(ZSTD_LEVEL).ok() } else { None };
        let room = match codec {
            Codec::None => Vec::new(),
            Codec::Lz4 => vec![0; BLOCKS_MAX * lz4_flex::block::get_maximum_output_size(BLOCK_BYTES)],
            Codec::Zstd => vec![0; BLOCKS_MAX * BLOCK_BYTES],
        };
        // Positions in a block fit into the 16 bits of a small table: half as much to clear for each block.
        Self { codec, dull: 0, room, lz4: lz4_flex::block::CompressTable::small(), zstd }
    }

    /// How it compresses what can be compressed.
    pub(super) fn codec(&self) -> Codec {
        self.codec
    }

    /// Compresses each block of `raw`, or leaves it as it is where that saves less than an eighth: decompressing at
    /// every read would cost more. If the codec refuses (in practice: its output does not fit), the block stays
    /// uncompressed.
    ///
    /// The first and the last block speak for the others: if neither compresses, no other is tried. Random or encrypted
    /// data would cost as much time as data that compresses. After much of such data they speak in turn.
    pub(super) fn compress<'a>(&'a mut self, raw: &'a [u8]) -> Compressed<'a> {
        let blocks: Vec<&'a [u8]> = raw.chunks(BLOCK_BYTES).collect();
        let mut lens = vec![None; blocks.len()];
        if self.codec != Codec::None
            && let Some(last) = blocks.len().checked_sub(1)
        {
            let ends = [0, last];
            let asked = &ends[self.speakers(last)];
            for at in asked {
                lens[*at] = self.len_of(*at, blocks[*at]);
            }
            let pays = lens.iter().any(Option::is_some);
            if pays {
                for at in (0..=last).filter(|at| !asked.contains(at)) {
                    lens[at] = self.len_of(at, blocks[at]);
                }
            }
            self.dull = if pays { 0 } else { self.dull.saturating_add(1) };
        }
        let codec = if lens.iter().any(Option::is_some) { self.codec } else { Codec::None };
        let room: &'a [u8] = &self.room;
        let each = room.len() / BLOCKS_MAX;
        let kept = |(at, block): (usize, &'a [u8])| lens[at].map_or(block, |len| &room[at * each..at * each + len]);
        Compressed { codec, blocks: blocks.into_iter().enumerate().map(kept).collect() }
    }

    /// Which of the two ends of an extent speak for it, whose last block is number `last`. A block alone is both, and
    /// is tried once.
    fn speakers(&self, last: usize) -> Range<usize> {
        let turn = self.dull as usize % 2;
        match self.dull {
            _ if last == 0 => 0..1,
            DULL_EXTENTS.. => turn..turn + 1,
            _ => 0..2,
        }
    }

    /// Compresses block `at` into its room. Its length, if that pays.
    fn len_of(&mut self, at: usize, block: &[u8]) -> Option<usize> {
        let each = self.room.len() / BLOCKS_MAX;
        let room = &mut self.room[at * each..(at + 1) * each];
        let len = match self.codec {
            Codec::None => None,
            Codec::Lz4 => lz4_flex::block::compress_into_with_table(block, room, &mut self.lz4).ok(),
            Codec::Zstd => {
                let room = &mut room[..block.len()];
                self.zstd.as_mut().and_then(|zstd| zstd.compress_to_buffer(block, room).ok())
            }
        };
        len.filter(|len| *len > 0 && *len <= block.len() - block.len() / 8)
    }
}

/// Decompresses blocks one after the other. Keeps zstd's tables between them.
#[derive(Default)]
pub(super) struct Decompressor {
    zstd: Option<zstd::bulk::Decompressor<'static>>,
}

impl Decompressor {
    /// Fills the begin of `raw`, which bounds the output. Returns how many bytes came out, or the codec's complaint.
    pub(super) fn decompress(&mut self, codec: Codec, plain: &[u8], raw: &mut [u8]) -> Result<usize, String> {
        match codec {
            Codec::None => Err(format!("{} bytes that are not compressed", plain.len())),
            Codec::Lz4 => lz4_flex::block::decompress_into(plain, raw).map_err(|e| e.to_string()),
            Codec::Zstd => {
                let mut zstd = match self.zstd.take() {
                    Some(zstd) => zstd,
                    None => zstd::bulk::Decompressor::new().map_err(|e| e.to_string())?,
                };
                let len = zstd.decompress_to_buffer(plain, raw).map_err(|e| e.to_string());
                self.zstd = Some(zstd);
                len
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::tests::{noise, text};

    /// Behind much data that does not compress, data that does is noticed at the second extent, at whichever end it is.
    #[test]
    fn ends_speak_in_turn_after_data_that_does_not_compress() {
        let (dull, last) = (noise(1, BLOCKS_MAX * BLOCK_BYTES), BLOCKS_MAX - 1);
        for (codec, at) in [(Codec::Lz4, 0), (Codec::Lz4, last), (Codec::Zstd, 0), (Codec::Zstd, last)] {
            let mut raw = dull.clone();
            raw[at * BLOCK_BYTES..(at + 1) * BLOCK_BYTES].copy_from_slice(&text(2, BLOCK_BYTES));
            for before in [0, DULL_EXTENTS, DULL_EXTENTS + 1] {
                let mut compressor = Compressor::new(codec);
                for _ in 0..before {
                    assert_eq!(compressor.compress(&dull).codec, Codec::None);
                }
                let found: Vec<Codec> = (0..3).map(|_| compressor.compress(&raw).codec).collect();
                let from = usize::from(found[0] != codec);
                assert!(before >= DULL_EXTENTS || from == 0, "both ends are tried");
                assert!(found[from..].iter().all(|found| *found == codec), "after {before}: {found:?}");
            }
        }
    }

    /// However many extents were dull: what compresses is compressed as by a new compressor.
    #[test]
    fn a_lone_block_and_all_blocks_of_an_extent_that_compresses_are_compressed() {
        let (one, all) = (text(3, BLOCK_BYTES / 2), text(4, BLOCKS_MAX * BLOCK_BYTES));
        for before in [0, DULL_EXTENTS, DULL_EXTENTS + 1] {
            for raw in [&one, &all] {
                let mut compressor = Compressor::new(Codec::Lz4);
                for _ in 0..before {
                    compressor.compress(&noise(5, BLOCK_BYTES));
                }
                let compressed = compressor.compress(raw);
                assert_eq!(compressed.codec, Codec::Lz4);
                assert!(compressed.blocks.iter().all(|block| block.len() < BLOCK_BYTES / 4));
            }
        }
    }
}
