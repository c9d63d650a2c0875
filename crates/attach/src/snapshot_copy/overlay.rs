//! Which sectors of a snapshot copy were changed, and which of them are in its scratch file. Pure: no I/O, no clock.
//!
//! OVERLAY-V1  A sector that was never written or zeroed here is read from the snapshot.
//! OVERLAY-V2  A sector counts as written only after its bytes are in the scratch file, so that no reader looks for
//!     bytes that are not there yet.
//! OVERLAY-V3  Blocks of the scratch file with data, including those that are being written, never exceed the limit.
//!
//! The state is kept per sector (512 B), so that a write never has to read the snapshot first. It takes 512 B of memory
//! for each MiB with a write or a partial zeroing, a few dozen for a MiB that was zeroed as a whole, and none for
//! others.

use holdfast_types::SECTOR_BYTES;
use std::collections::BTreeMap;
use std::ops::Range;

/// Sectors of one word of a bitmap.
const WORD_SECTORS: u64 = 64;
/// Sectors of a chunk: 1 MiB.
const CHUNK_SECTORS: u64 = 2048;
/// Words of a chunk's bitmap.
const WORDS: usize = (CHUNK_SECTORS / WORD_SECTORS) as usize;
/// Block of the host's file system in bytes. The limit counts whole blocks.
pub(crate) const BLOCK_BYTES: u64 = 4096;
/// Sectors of a block: one byte of a word.
const BLOCK_SECTORS: u64 = BLOCK_BYTES / SECTOR_BYTES;

/// The place from which a range is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// In the snapshot.
    Snapshot,
    /// In the scratch file, at the same offset.
    Scratch,
    /// Nowhere: it reads as zeroes.
    Zeroes,
}

/// A range with one place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Run {
    /// First byte.
    pub(crate) offset: u64,
    /// Length in bytes.
    pub(crate) len: u64,
    /// The place.
    pub(crate) from: Place,
}

/// Room in the scratch file for a write in progress. Must be returned by [`Overlay::wrote`] or [`Overlay::gave_up`].
#[derive(Debug, PartialEq, Eq)]
#[must_use]
pub(crate) struct Room {
    blocks: u64,
}

/// There is no room for a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the scratch file is full: found {held} bytes in it, expected at most {max} with this write")]
pub(crate) struct Full {
    /// Bytes that it holds or will hold.
    pub(crate) held: u64,
    /// The limit.
    pub(crate) max: u64,
}

#[derive(Clone, Debug, Default)]
struct Bits {
    own: [u64; WORDS],
    data: [u64; WORDS],
}

#[derive(Clone, Debug)]
enum Chunk {
    /// All of it was zeroed, and nothing was written since.
    Zeroed,
    /// Sector by sector.
    Mixed(Box<Bits>),
}

/// See the module.
#[derive(Debug)]
pub(crate) struct Overlay {
    chunks: BTreeMap<u64, Chunk>,
    /// Blocks of the scratch file with data.
    held: u64,
    /// Blocks that writes in progress may need.
    promised: u64,
    max: u64,
}

/// The bits of `sectors` within one word, as (word, mask).
fn masks(sectors: Range<u64>) -> impl Iterator<Item = (usize, u64)> {
    let (first, last) = (sectors.start / WORD_SECTORS, sectors.end.div_ceil(WORD_SECTORS));
    (first..last).map(move |word| {
        let low = sectors.start.saturating_sub(word * WORD_SECTORS);
        let high = (sectors.end - word * WORD_SECTORS).min(WORD_SECTORS);
        let ones = if high == WORD_SECTORS { u64::MAX } else { (1 << high) - 1 };
        (word as usize, ones & (u64::MAX << low))
    })
}

/// Number of a word's blocks with data.
fn blocks(word: u64) -> u64 {
    word.to_ne_bytes().iter().filter(|byte| **byte != 0).count() as u64
}

/// The sectors of a range of bytes, cut at chunks: number of the chunk, sectors within it.
fn pieces(offset: u64, len: u64) -> impl Iterator<Item = (u64, Range<u64>)> {
    let (first, end) = (offset / SECTOR_BYTES, (offset + len) / SECTOR_BYTES);
    (first / CHUNK_SECTORS..end.div_ceil(CHUNK_SECTORS)).filter(move |_| end > first).map(move |chunk| {
        let base = chunk * CHUNK_SECTORS;
        (chunk, first.max(base) - base..end.min(base + CHUNK_SECTORS) - base)
    })
}

impl Overlay {
    /// An overlay without changes. `max`: bytes that the scratch file may hold.
    pub(crate) fn new(max: u64) -> Self {
        Self { chunks: BTreeMap::new(), held: 0, promised: 0, max: max / BLOCK_BYTES }
    }

    /// Bytes that the scratch file holds, in whole blocks.
    pub(crate) fn held_bytes(&self) -> u64 {
        self.held * BLOCK_BYTES
    }

    fn from(&self, chunk: u64, sector: u64) -> Place {
        match self.chunks.get(&chunk) {
            None => Place::Snapshot,
            Some(Chunk::Zeroed) => Place::Zeroes,
            Some(Chunk::Mixed(bits)) => {
                let (word, bit) = ((sector / WORD_SECTORS) as usize, 1 << (sector % WORD_SECTORS));
                match (bits.own[word] & bit != 0, bits.data[word] & bit != 0) {
                    (false, _) => Place::Snapshot,
                    (true, true) => Place::Scratch,
                    (true, false) => Place::Zeroes,
                }
            }
        }
    }

    /// Where to read what, in order and without gaps. `offset` and `len` in whole sectors.
    pub(crate) fn runs(&self, offset: u64, len: u64) -> Vec<Run> {
        let mut runs: Vec<Run> = Vec::new();
        let mut add = |offset: u64, len: u64, from: Place| match runs.last_mut() {
            Some(last) if last.from == from => last.len += len,
            _ => runs.push(Run { offset, len, from }),
        };
        for (chunk, sectors) in pieces(offset, len) {
            let at = |sector: u64| (chunk * CHUNK_SECTORS + sector) * SECTOR_BYTES;
            if let Some(Chunk::Mixed(_)) = self.chunks.get(&chunk) {
                sectors.for_each(|sector| add(at(sector), SECTOR_BYTES, self.from(chunk, sector)));
            } else {
                add(at(sectors.start), (sectors.end - sectors.start) * SECTOR_BYTES, self.from(chunk, sectors.start));
            }
        }
        runs
    }

    /// Asks for room for a write, before its bytes go to the scratch file.
    ///
    /// # Errors
    /// [`Full`]: OVERLAY-V3.
    pub(crate) fn ask(&mut self, offset: u64, len: u64) -> Result<Room, Full> {
        let mut needed = 0;
        for (chunk, sectors) in pieces(offset, len) {
            let touched = (sectors.start / BLOCK_SECTORS..sectors.end.div_ceil(BLOCK_SECTORS)).count() as u64;
            let there = match self.chunks.get(&chunk) {
                Some(Chunk::Mixed(bits)) => {
                    // Whole blocks: a sector beside the write may hold its block already.
                    let whole =
                        sectors.start / BLOCK_SECTORS * BLOCK_SECTORS..sectors.end.next_multiple_of(BLOCK_SECTORS);
                    masks(whole).map(|(word, mask)| blocks(bits.data[word] & mask)).sum()
                }
                _ => 0,
            };
            needed += touched - there;
        }
        let held = self.held + self.promised + needed;
        if held > self.max {
            return Err(Full { held: (self.held + self.promised) * BLOCK_BYTES, max: self.max * BLOCK_BYTES });
        }
        self.promised += needed;
        Ok(Room { blocks: needed })
    }

    /// The bytes of a write are in the scratch file (OVERLAY-V2).
    pub(crate) fn wrote(&mut self, offset: u64, len: u64, room: Room) {
        self.gave_up(room);
        for (chunk, sectors) in pieces(offset, len) {
            let bits = self.mixed(chunk);
            let mut more = 0;
            for (word, mask) in masks(sectors) {
                let before = blocks(bits.data[word]);
                bits.own[word] |= mask;
                bits.data[word] |= mask;
                more += blocks(bits.data[word]) - before;
            }
            self.held += more;
        }
    }

    /// A write came to nothing.
    pub(crate) fn gave_up(&mut self, room: Room) {
        self.promised -= room.blocks;
    }

    /// A range reads as zeroes from now on.
    pub(crate) fn zero(&mut self, offset: u64, len: u64) {
        for (chunk, sectors) in pieces(offset, len) {
            if sectors == (0..CHUNK_SECTORS) {
                if let Some(Chunk::Mixed(bits)) = self.chunks.insert(chunk, Chunk::Zeroed) {
                    self.held -= bits.data.iter().map(|word| blocks(*word)).sum::<u64>();
                }
                continue;
            }
            if let Some(Chunk::Zeroed) = self.chunks.get(&chunk) {
                continue;
            }
            let bits = self.mixed(chunk);
            let mut less = 0;
            for (word, mask) in masks(sectors) {
                let before = blocks(bits.data[word]);
                bits.own[word] |= mask;
                bits.data[word] &= !mask;
                less += before - blocks(bits.data[word]);
            }
            self.held -= less;
        }
    }

    fn mixed(&mut self, chunk: u64) -> &mut Bits {
        let entry = self.chunks.entry(chunk).or_insert_with(|| Chunk::Mixed(Box::default()));
        if let Chunk::Zeroed = entry {
            *entry = Chunk::Mixed(Box::new(Bits { own: [u64::MAX; WORDS], data: [0; WORDS] }));
        }
        match entry {
            Chunk::Mixed(bits) => bits,
            Chunk::Zeroed => unreachable!("replaced above"),
        }
    }
}

#[cfg(test)]
#[path = "overlay_tests.rs"]
mod tests;
