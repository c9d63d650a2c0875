//! Stretches: the entries in which a cache's disk keeps a sealed extent (ADR 0042).
//!
//! A cache reads whole entries. A stretch has some of the extent's blocks in a row, as they are sealed, behind the
//! sealed lengths: about [`STRETCH_BYTES`], so that a small read takes little more than its block. Which blocks a
//! stretch has follows from the extent's place alone.

use super::blocks::Lengths;
use super::error::SegmentError;
use super::open::Opening;
use super::place::{ExtentPlace, TableEntry};
use bytes::Bytes;
use holdfast_seal::ObjectOpener;
use std::ops::Range;

/// Sealed bytes of a stretch, about. An extent that is shorter than one and a half of them is one stretch.
pub const STRETCH_BYTES: usize = 16 << 10;

/// Some of an extent's blocks in a row, and the lengths that tell where each is. Or a page of a map, as a whole.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stretch {
    /// Number of the extent, or of the page, in its object.
    pub number: u32,
    /// Its first block.
    pub block: u32,
    /// Where the sealed lengths are in the object, in bytes; empty where there are none, or where they are directly
    /// before the blocks and part of that range.
    pub lengths: Range<u64>,
    /// Where the sealed blocks are in the object, in bytes.
    pub blocks: Range<u64>,
}

impl Stretch {
    /// Its length.
    pub fn bytes(&self) -> u64 {
        (self.lengths.end - self.lengths.start) + (self.blocks.end - self.blocks.start)
    }

    /// Its bytes, in two pieces: the lengths, if they are apart, and the blocks. `body`: the bytes of the object from
    /// byte `from` on. Shares their memory.
    pub fn pieces(&self, body: &Bytes, from: u64) -> [Bytes; 2] {
        let within = |range: &Range<u64>| body.slice((range.start - from) as usize..(range.end - from) as usize);
        let lengths = if self.lengths.is_empty() { Bytes::new() } else { within(&self.lengths) };
        [lengths, within(&self.blocks)]
    }

    /// Its bytes as one. Shares the memory of `body` where they are in one piece.
    pub fn cut(&self, body: &Bytes, from: u64) -> Bytes {
        let [lengths, blocks] = self.pieces(body, from);
        if lengths.is_empty() { blocks } else { [&lengths[..], &blocks[..]].concat().into() }
    }
}

/// A page, which is one entry.
impl From<(u32, Range<u64>)> for Stretch {
    fn from((number, blocks): (u32, Range<u64>)) -> Self {
        Self { number, block: 0, lengths: 0..0, blocks }
    }
}

impl ExtentPlace {
    /// The blocks of the stretch that has this block.
    pub fn stretch_of(&self, block: usize) -> Range<usize> {
        let count = self.blocks().count();
        let stretches = (self.sealed_len as usize + STRETCH_BYTES / 2) / STRETCH_BYTES;
        let each = count.div_ceil(stretches.max(1)).max(1);
        let first = block - block % each;
        first..(first + each).min(count)
    }
}

/// The stretches of an extent with these lengths, in order.
pub(super) fn cut_up(place: &ExtentPlace, lengths: &Lengths) -> Vec<Stretch> {
    let (number, offset) = (place.number, u64::from(place.offset));
    let head = offset..offset + place.blocks().lengths_bytes() as u64;
    let mut stretches = Vec::new();
    let mut block = 0;
    while block < place.blocks().count() {
        let here = place.stretch_of(block);
        let start = if block == 0 { 0 } else { lengths.sealed(block).start as u64 };
        let end = lengths.sealed(here.end - 1).end as u64;
        let lengths = if block == 0 || head.is_empty() { offset..offset } else { head.clone() };
        stretches.push(Stretch { number, block: block as u32, lengths, blocks: offset + start..offset + end });
        block = here.end;
    }
    stretches
}

/// The stretches of a sealed extent. Only its lengths are opened and authenticated.
///
/// # Errors
/// As [`super::open_extent`].
pub fn stretches(opener: &ObjectOpener, entry: &TableEntry, sealed: &[u8]) -> Result<Vec<Stretch>, SegmentError> {
    let lengths = Opening::new(opener, entry)?.lengths_of_whole(sealed)?;
    Ok(cut_up(&entry.place, &lengths))
}

/// A whole extent, opened block by block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Apart {
    /// Its sealed stretches.
    pub stretches: Vec<Stretch>,
    /// Its opened blocks, in order.
    pub blocks: Vec<Vec<u8>>,
}

/// Opens all blocks of a sealed extent, and says which stretches it consists of.
///
/// # Errors
/// As [`super::open_extent`].
pub fn open_apart(opener: &ObjectOpener, entry: &TableEntry, sealed: &[u8]) -> Result<Apart, SegmentError> {
    let mut opening = Opening::new(opener, entry)?;
    let lengths = opening.lengths_of_whole(sealed)?;
    let of_place = entry.place.blocks();
    let mut blocks = Vec::with_capacity(of_place.count());
    for block in 0..of_place.count() {
        let mut raw = Vec::with_capacity(of_place.raw(block).len());
        opening.block_into(block, &sealed[lengths.sealed(block)], &mut raw)?;
        blocks.push(raw);
    }
    Ok(Apart { stretches: cut_up(&entry.place, &lengths), blocks })
}

/// Opens some blocks, by their places in the extent, of the stretch that begins with block `first`, in the order of
/// `wanted`. No other block is opened.
///
/// # Errors
/// As [`super::open_extent`] for the bytes of a stretch, and [`SegmentError::Part`] for a block that it does not have.
pub fn open_blocks(
    opener: &ObjectOpener,
    entry: &TableEntry,
    first: usize,
    stretch: &[u8],
    wanted: &[usize],
) -> Result<Vec<Vec<u8>>, SegmentError> {
    let mut opening = Opening::new(opener, entry)?;
    let blocks = entry.place.blocks();
    if first >= blocks.count() {
        return Err(opening.no_part("blocks", &(first..first + 1), &(0..blocks.count())));
    }
    let (lengths, here) = (opening.lengths(stretch)?, entry.place.stretch_of(first));
    let (begin, end) = (lengths.sealed(here.start).start, lengths.sealed(here.end - 1).end);
    let head = blocks.lengths_bytes();
    opening.check_length(stretch.len(), head + (end - begin))?;
    let mut opened = Vec::with_capacity(wanted.len());
    for block in wanted.iter().copied() {
        if !here.contains(&block) {
            return Err(opening.no_part("blocks", &(block..block + 1), &here));
        }
        let at = lengths.sealed(block);
        let mut raw = Vec::with_capacity(blocks.raw(block).len());
        opening.block_into(block, &stretch[head + at.start - begin..head + at.end - begin], &mut raw)?;
        opened.push(raw);
    }
    Ok(opened)
}

#[cfg(test)]
mod tests;
