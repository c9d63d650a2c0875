//! Opening extents: whole, a part, or single blocks of what a cache has of one.

use super::blocks::{BLOCK_BYTES, Lengths};
use super::compress::Decompressor;
use super::error::SegmentError;
use super::place::{ExtentPlace, TableEntry};
use holdfast_seal::{ExtentAad, ExtentPart, ObjectOpener, TAG_BYTES};
use holdfast_types::{Lba, VolumeId};
use std::ops::Range;

/// What the parts of an extent are bound to, besides their numbers.
pub(super) fn aad(entry: &TableEntry) -> ExtentAad {
    let TableEntry { volume, lba, place } = *entry;
    ExtentAad { volume, lba, raw_len: place.raw_len, codec: place.codec.number() }
}

/// Opens and decompresses one extent that was range-read from its object. `lba` is the first sector that the extent was
/// sealed for, even if only a part of it is still in use.
///
/// # Errors
/// [`SegmentError`] unless the bytes were sealed for exactly this place. Memory is bounded by [`EXTENT_BYTES_MAX`] and
/// the length of `sealed`.
///
/// [`EXTENT_BYTES_MAX`]: holdfast_types::limits::EXTENT_BYTES_MAX
pub fn open_extent(
    opener: &ObjectOpener,
    place: &ExtentPlace,
    volume: VolumeId,
    lba: Lba,
    sealed: &[u8],
) -> Result<Vec<u8>, SegmentError> {
    let entry = TableEntry { volume, lba, place: *place };
    open_range(opener, &entry, sealed, 0..place.raw_len as usize)
}

/// Opens a part of an extent, in bytes of the opened one. Only the blocks that it touches are opened, and only these
/// are authenticated.
///
/// # Errors
/// As [`open_extent`], and [`SegmentError::Part`] for a part beyond the extent.
pub fn open_range(
    opener: &ObjectOpener,
    entry: &TableEntry,
    sealed: &[u8],
    raw: Range<usize>,
) -> Result<Vec<u8>, SegmentError> {
    let mut opening = Opening::new(opener, entry)?;
    let lengths = opening.lengths_of_whole(sealed)?;
    let raw_len = entry.place.raw_len as usize;
    if raw.start > raw.end || raw.end > raw_len {
        return Err(opening.no_part("bytes", &raw, &(0..raw_len)));
    }
    let touched = entry.place.blocks().touched(&raw);
    let before = entry.place.blocks().raw(touched.start).start;
    let mut out = Vec::with_capacity((touched.len() * BLOCK_BYTES).min(raw_len));
    for block in touched {
        opening.block_into(block, &sealed[lengths.sealed(block)], &mut out)?;
    }
    out.truncate(raw.end - before);
    out.drain(..(raw.start - before).min(out.len()));
    Ok(out)
}

/// One extent that is being opened.
pub(super) struct Opening<'a> {
    opener: &'a ObjectOpener,
    entry: &'a TableEntry,
    decompressor: Decompressor,
    /// A block before decompression.
    plain: Vec<u8>,
}

impl<'a> Opening<'a> {
    /// Refuses an impossible place, before memory is taken for it.
    pub(super) fn new(opener: &'a ObjectOpener, entry: &'a TableEntry) -> Result<Self, SegmentError> {
        entry.place.check()?;
        Ok(Self { opener, entry, decompressor: Decompressor::default(), plain: Vec::new() })
    }

    /// Compares a length in sealed bytes with what arrived.
    pub(super) fn check_length(&self, found: usize, expected: usize) -> Result<(), SegmentError> {
        if found == expected {
            return Ok(());
        }
        let (object, number) = (self.opener.object(), self.entry.place.number);
        Err(SegmentError::SealedLength { object, number, found, expected })
    }

    pub(super) fn no_part(&self, unit: &'static str, asked: &Range<usize>, there: &Range<usize>) -> SegmentError {
        let (object, number) = (self.opener.object(), self.entry.place.number);
        SegmentError::Part {
            object,
            number,
            unit,
            first: asked.start,
            end: asked.end,
            least: there.start,
            most: there.end,
        }
    }

    /// The lengths of the blocks of a whole sealed extent.
    pub(super) fn lengths_of_whole(&self, sealed: &[u8]) -> Result<Lengths, SegmentError> {
        self.check_length(sealed.len(), self.entry.place.sealed_len as usize)?;
        self.lengths(sealed)
    }

    /// The lengths of the blocks, of what begins as the sealed extent does.
    pub(super) fn lengths(&self, sealed: &[u8]) -> Result<Lengths, SegmentError> {
        let place = &self.entry.place;
        let (blocks, sealed_len) = (place.blocks(), place.sealed_len as usize);
        let bytes = blocks.lengths_bytes();
        if bytes == 0 {
            return Ok(Lengths::known(blocks, sealed_len));
        }
        let (object, number) = (self.opener.object(), place.number);
        let short = SegmentError::SealedLength { object, number, found: sealed.len(), expected: sealed_len };
        let sealed = sealed.get(..bytes).ok_or(short)?;
        let plain = self.opener.open_extent(number, ExtentPart::Lengths, aad(self.entry), sealed)?;
        Lengths::decode(blocks, &plain, sealed_len).map_err(|found| SegmentError::Lengths { object, number, found })
    }

    /// Opens one block and appends it to `out`, which is of no use after an error.
    pub(super) fn block_into(&mut self, block: usize, sealed: &[u8], out: &mut Vec<u8>) -> Result<(), SegmentError> {
        let place = &self.entry.place;
        let (number, part, aad) = (place.number, ExtentPart::Block(block as u16), aad(self.entry));
        let raw_len = place.blocks().raw(block).len();
        // BLOCK-B2.
        if sealed.len() == raw_len + TAG_BYTES {
            return Ok(self.opener.open_extent_into(number, part, aad, sealed, out)?);
        }
        self.plain.clear();
        self.opener.open_extent_into(number, part, aad, sealed, &mut self.plain)?;
        let start = out.len();
        out.resize(start + raw_len, 0);
        let found = match self.decompressor.decompress(place.codec, &self.plain, &mut out[start..]) {
            Ok(len) if len == raw_len => return Ok(()),
            Ok(len) => format!("{len} bytes"),
            Err(complaint) => complaint,
        };
        let (object, codec) = (self.opener.object(), place.codec);
        Err(SegmentError::Decompress { object, number, block, found, raw_len, codec })
    }
}
