//! How an extent is cut into blocks, and where the sealed blocks are (ADR 0042). Arithmetic only.
//!
//! ```text
//!   extent, opened:   | block 0: 16 KiB | block 1: 16 KiB | ... | last block: 0.5 to 16 KiB |
//!   extent, sealed:   | lengths | tag | block 0 | tag | block 1 | tag | ... | last block | tag |
//! ```
//! - **BLOCK-B1** Blocks begin at multiples of [`BLOCK_BYTES`] in the extent. Each is compressed and sealed by itself,
//!   and its seal is bound to its place in the extent.
//! - **BLOCK-B2** A block that is as long before sealing as when opened is not compressed.
//! - **BLOCK-B3** The lengths are those of all blocks but the last, before sealing, each as two bytes, little-endian.
//!   They are sealed like a block. The last block takes the rest of the sealed extent.
//! - **BLOCK-B4** An extent of one block, or of blocks that are not compressed, has no lengths: its place says them.

use super::codec::Codec;
use holdfast_seal::TAG_BYTES;
use holdfast_types::limits::EXTENT_BYTES_MAX;
use std::ops::Range;

/// Raw bytes of a block; the last one of an extent may be shorter. Twice the size of a PostgreSQL page.
pub const BLOCK_BYTES: usize = 16 << 10;
/// Blocks of one extent at most.
pub const BLOCKS_MAX: usize = EXTENT_BYTES_MAX / BLOCK_BYTES;

/// Bytes of each length.
const LENGTH_BYTES: usize = 2;

const _: () = assert!(EXTENT_BYTES_MAX.is_multiple_of(BLOCK_BYTES));
const _: () = assert!(BLOCK_BYTES <= u16::MAX as usize);

/// The blocks of one extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Blocks {
    raw_len: usize,
    codec: Codec,
}

impl Blocks {
    /// Of an extent of `raw_len` bytes, at most [`EXTENT_BYTES_MAX`].
    pub fn new(raw_len: usize, codec: Codec) -> Self {
        Self { raw_len, codec }
    }

    /// How many there are.
    pub fn count(self) -> usize {
        self.raw_len.div_ceil(BLOCK_BYTES)
    }

    /// Where a block is in the opened extent, in bytes.
    pub fn raw(self, block: usize) -> Range<usize> {
        let start = (block * BLOCK_BYTES).min(self.raw_len);
        start..(start + BLOCK_BYTES).min(self.raw_len)
    }

    /// The blocks that a part of the opened extent touches.
    pub fn touched(self, raw: &Range<usize>) -> Range<usize> {
        let end = raw.end.div_ceil(BLOCK_BYTES).min(self.count());
        (raw.start / BLOCK_BYTES).min(end)..end
    }

    /// Bytes of the sealed lengths; 0 if it has none (BLOCK-B4).
    pub fn lengths_bytes(self) -> usize {
        match self.count() {
            0 | 1 => 0,
            _ if self.codec == Codec::None => 0,
            count => (count - 1) * LENGTH_BYTES + TAG_BYTES,
        }
    }

    /// Bytes that sealing adds: the tags, and the sealed lengths.
    pub fn overhead(self) -> usize {
        self.count() * TAG_BYTES + self.lengths_bytes()
    }
}

/// The lengths of an extent's blocks before sealing, and so the places of the sealed ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lengths {
    blocks: Blocks,
    plain: [u16; BLOCKS_MAX],
}

impl Lengths {
    /// Of blocks that were just compressed.
    pub(super) fn of<'a>(blocks: Blocks, plain: impl IntoIterator<Item = &'a [u8]>) -> Self {
        let mut lengths = Self { blocks, plain: [0; BLOCKS_MAX] };
        lengths.plain.iter_mut().zip(plain).for_each(|(length, plain)| *length = plain.len() as u16);
        lengths
    }

    /// Of an extent that has no sealed lengths (BLOCK-B4). `sealed_len` fits its blocks.
    pub(super) fn known(blocks: Blocks, sealed_len: usize) -> Self {
        let mut lengths = Self { blocks, plain: [0; BLOCKS_MAX] };
        for (block, length) in lengths.plain.iter_mut().enumerate().take(blocks.count()) {
            *length = blocks.raw(block).len() as u16;
        }
        if blocks.count() == 1 {
            lengths.plain[0] = sealed_len.saturating_sub(TAG_BYTES).min(BLOCK_BYTES) as u16;
        }
        lengths
    }

    /// From their bytes, opened, of an extent with this sealed length. No sum of them is trusted: each block has its
    /// bounds.
    ///
    /// # Errors
    /// What was found and expected.
    pub(super) fn decode(blocks: Blocks, bytes: &[u8], sealed_len: usize) -> Result<Self, String> {
        let mut lengths = Self { blocks, plain: [0; BLOCKS_MAX] };
        let stored = bytes.chunks_exact(LENGTH_BYTES).map(|pair| u16::from_le_bytes([pair[0], pair[1]]));
        lengths.plain.iter_mut().zip(stored).for_each(|(length, stored)| *length = stored);
        let last = blocks.count().saturating_sub(1);
        let before: usize = lengths.plain[..last].iter().map(|length| usize::from(*length)).sum();
        let rest = sealed_len.checked_sub(blocks.overhead() + before);
        for block in 0..=last {
            let most = blocks.raw(block).len();
            let found = if block == last { rest } else { Some(usize::from(lengths.plain[block])) };
            match found {
                Some(found) if (1..=most).contains(&found) => lengths.plain[block] = found as u16,
                Some(found) => return Err(format!("block {block} of {found} bytes, expected 1 to {most}")),
                None => return Err(format!("{before} bytes before the last block, in {sealed_len} sealed bytes")),
            }
        }
        Ok(lengths)
    }

    /// As they are sealed, without the last.
    pub(super) fn encode(&self) -> Vec<u8> {
        let stored = &self.plain[..self.blocks.count().saturating_sub(1)];
        stored.iter().flat_map(|length| length.to_le_bytes()).collect()
    }

    /// Where a sealed block is in its sealed extent, in bytes.
    pub(super) fn sealed(&self, block: usize) -> Range<usize> {
        let before: usize = self.plain[..block].iter().map(|length| usize::from(*length) + TAG_BYTES).sum();
        let start = self.blocks.lengths_bytes() + before;
        start..start + usize::from(self.plain[block]) + TAG_BYTES
    }
}

#[cfg(test)]
mod tests;
