//! Cuts a sealed memtable into extents for the next upload.
//!
//! PLAN-P1  Every sector that the memtable has in the journal is in exactly one planned extent; every zeroed sector is
//!     in exactly one unmapping; no other sector is in either (R4: a root at X holds exactly the content at X).
//! PLAN-P2  Extents are sorted by volume and place, and do not overlap.
//! PLAN-P3  An extent never crosses a multiple of [`EXTENT_SECTORS_MAX`], and so never a map page. Adjacent pieces are
//!     merged up to that limit. The limits are fixed, so blocks that are overwritten in another grouping replace whole
//!     extents of earlier segments and do not leave small parts of them in use.

use crate::index::{JournalRef, Memtable, Piece, Source};
use crate::segment::EXTENT_SECTORS_MAX;
use holdfast_types::{Lba, SECTOR_BYTES, Sectors, VolumeId};

/// An extent to be read from the journal and sealed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedExtent {
    /// Its volume.
    pub volume: VolumeId,
    /// Its first sector.
    pub lba: Lba,
    /// Where its content is, in order, without gaps. Never empty.
    pub parts: Vec<(Sectors, JournalRef)>,
}

impl PlannedExtent {
    /// Its length, 1 to [`EXTENT_SECTORS_MAX`].
    pub fn sectors(&self) -> Sectors {
        Sectors(self.parts.iter().map(|(sectors, _)| sectors.0).sum())
    }
}

/// A range that reads as zeroes from this checkpoint on. May be as large as a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Unmap {
    /// Its volume.
    pub volume: VolumeId,
    /// Its first sector.
    pub lba: Lba,
    /// Its length.
    pub sectors: Sectors,
}

/// The extents to seal, in order (PLAN-P2). Memory use does not depend on the memtable's size.
pub fn plan(memtable: &Memtable) -> impl Iterator<Item = PlannedExtent> + '_ {
    Planner { pieces: memtable.iter(), rest: None }
}

/// The ranges to unmap, in order. Apply them before the extents or after: the two never overlap (PLAN-P1).
pub fn unmaps(memtable: &Memtable) -> impl Iterator<Item = Unmap> + '_ {
    memtable.iter().filter(|(_, piece)| matches!(piece.source, Source::Zero)).map(|(volume, piece)| Unmap {
        volume,
        lba: piece.lba,
        sectors: piece.sectors,
    })
}

/// The planned extents in groups of about `bytes`. The last extent of a group may exceed that; no group is empty. The
/// caller holds one group in memory at a time.
pub fn batches(memtable: &Memtable, bytes: u64) -> impl Iterator<Item = Vec<PlannedExtent>> + '_ {
    let mut planned = plan(memtable);
    std::iter::from_fn(move || {
        let mut batch: Vec<PlannedExtent> = Vec::new();
        let mut gathered = 0;
        while gathered < bytes.max(1)
            && let Some(extent) = planned.next()
        {
            gathered += extent.sectors().0 * SECTOR_BYTES;
            batch.push(extent);
        }
        (!batch.is_empty()).then_some(batch)
    })
}

struct Planner<I> {
    pieces: I,
    /// The rest of a piece that was cut, or a piece that did not fit the last extent.
    rest: Option<(VolumeId, Piece)>,
}

impl<I: Iterator<Item = (VolumeId, Piece)>> Iterator for Planner<I> {
    type Item = PlannedExtent;

    fn next(&mut self) -> Option<PlannedExtent> {
        let mut extent: Option<(PlannedExtent, u64)> = None;
        while let Some((volume, piece)) = self.rest.take().or_else(|| self.pieces.next()) {
            let Source::Journal(at) = piece.source else {
                if extent.is_some() {
                    break;
                }
                continue;
            };
            let (planned, end) = extent
                .get_or_insert_with(|| (PlannedExtent { volume, lba: piece.lba, parts: Vec::new() }, piece.lba.0));
            if volume != planned.volume || piece.lba.0 != *end {
                self.rest = Some((volume, piece));
                break;
            }
            let cut = (planned.lba.0 / EXTENT_SECTORS_MAX + 1).saturating_mul(EXTENT_SECTORS_MAX);
            let taken = piece.sectors.0.min(cut - *end);
            planned.parts.push((Sectors(taken), at));
            *end += taken;
            if taken < piece.sectors.0 {
                // An op has at most 2048 sectors (R5), so this fits 32 bits.
                let source = Source::Journal(JournalRef { skip: at.skip + taken as u32, ..at });
                let sectors = Sectors(piece.sectors.0 - taken);
                self.rest = Some((volume, Piece { lba: Lba(*end), sectors, source }));
            }
            if *end == cut {
                break;
            }
        }
        extent.map(|(planned, _)| planned)
    }
}

#[cfg(test)]
mod tests;
