//! Where a sealed extent is, and what it was sealed as.

use super::blocks::Blocks;
use super::codec::Codec;
use super::error::SegmentError;
use holdfast_types::limits::EXTENT_BYTES_MAX;
use holdfast_types::{Lba, SECTOR_BYTES, Sectors, VolumeId};
use std::ops::Range;

/// Where a sealed extent is in its object, and what is needed to open it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentPlace {
    /// Its number in the object: the first half of its parts' nonces.
    pub number: u32,
    /// Where its sealed bytes begin in the object, in bytes.
    pub offset: u32,
    /// How many sealed bytes there are: blocks, their tags and their lengths.
    pub sealed_len: u32,
    /// Length when opened and decompressed, in bytes: whole sectors.
    pub raw_len: u32,
    /// How it is compressed.
    pub codec: Codec,
}

impl ExtentPlace {
    /// The bytes of the object to read.
    pub fn range(&self) -> Range<u64> {
        u64::from(self.offset)..u64::from(self.offset) + u64::from(self.sealed_len)
    }

    /// Length when opened, in sectors.
    pub fn sectors(&self) -> Sectors {
        Sectors(u64::from(self.raw_len) / SECTOR_BYTES)
    }

    /// Its blocks.
    pub fn blocks(&self) -> Blocks {
        Blocks::new(self.raw_len as usize, self.codec)
    }

    /// Checks a place before memory is allocated for it.
    pub(crate) fn check(&self) -> Result<(), SegmentError> {
        let (raw, number) = (self.raw_len as usize, self.number);
        if raw == 0 || raw > EXTENT_BYTES_MAX || !raw.is_multiple_of(SECTOR_BYTES as usize) {
            return Err(SegmentError::RawLength { number, found: raw, most: EXTENT_BYTES_MAX });
        }
        let (blocks, found) = (self.blocks(), self.sealed_len as usize);
        // A block is compressed only where that makes it shorter, so an extent is never longer than if none was.
        let most = blocks.overhead() + raw;
        let least = if self.codec == Codec::None { most } else { blocks.overhead() + blocks.count() };
        if !(least..=most).contains(&found) {
            return Err(SegmentError::SealedLengthImpossible { number, found, least, most });
        }
        if self.offset.checked_add(self.sealed_len).is_none() {
            return Err(SegmentError::Offset { number, found: self.offset, length: self.sealed_len });
        }
        Ok(())
    }

    /// A place of an extent that is not compressed.
    #[cfg(test)]
    pub(crate) fn uncompressed(number: u32, offset: u32, raw_len: u32) -> Self {
        let sealed_len = raw_len + Blocks::new(raw_len as usize, Codec::None).overhead() as u32;
        Self { number, offset, sealed_len, raw_len, codec: Codec::None }
    }
}

/// An extent as it was sealed: one line of a segment's table, or what a map says of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableEntry {
    /// Volume of the extent.
    pub volume: VolumeId,
    /// Its first sector.
    pub lba: Lba,
    /// Where it is.
    pub place: ExtentPlace,
}
