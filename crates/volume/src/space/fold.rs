//! Computes a checkpoint's new pages, and moves live data out of segments that are being emptied.

use crate::index::{Memtable, Source};
use crate::map::{MapExtent, Page, page_numbers};
use crate::segment::{EXTENT_SECTORS_MAX, SegmentError, TableEntry, open_range};
use holdfast_seal::ObjectOpener;
use holdfast_types::{Lba, ObjectId, Sectors, VolumeId};
use std::collections::BTreeSet;

/// Adjacent pieces of one segment, to be sealed again as one extent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Their volume.
    pub volume: VolumeId,
    /// The pieces in order, without gaps, as the map has them. Never empty.
    pub from: Vec<MapExtent>,
}

impl Run {
    /// First sector.
    pub fn lba(&self) -> Lba {
        self.from.first().map_or(Lba(0), |piece| piece.lba)
    }

    /// Length.
    pub fn sectors(&self) -> Sectors {
        Sectors(self.from.iter().map(|piece| piece.sectors.0).sum())
    }
}

/// Content that is in the store twice: its present place, and its new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Move {
    /// The copied pieces.
    pub from: Vec<MapExtent>,
    /// The copy, which holds all of `from`.
    pub to: MapExtent,
}

/// The pages that a segment was written for, from its table. Pages take extents only for their own range, so no other
/// page can name the segment.
pub fn pages_of(table: &[TableEntry]) -> BTreeSet<(VolumeId, u32)> {
    let pages = table
        .iter()
        .flat_map(|entry| page_numbers(entry.lba, entry.place.sectors()).map(move |number| (entry.volume, number)));
    pages.collect()
}

/// The pieces of `victim` that `page` names and the checkpoint's memtable does not replace.
pub fn pieces_to_move(page: &Page, victim: ObjectId, memtable: &Memtable) -> Vec<MapExtent> {
    let mut pieces = Vec::new();
    for extent in page.extents().filter(|extent| extent.object == victim) {
        for piece in memtable.pieces(page.volume(), extent.lba, extent.sectors) {
            if piece.source == Source::Map {
                let skip = Sectors(extent.skip.0 + (piece.lba.0 - extent.lba.0));
                pieces.push(MapExtent { lba: piece.lba, sectors: piece.sectors, skip, ..extent });
            }
        }
    }
    pieces
}

/// Joins adjacent pieces into extents (which never cross a multiple of [`EXTENT_SECTORS_MAX`]: PLAN-P3). `pieces` are
/// those of one volume, in order.
pub fn runs(volume: VolumeId, pieces: Vec<MapExtent>) -> Vec<Run> {
    let mut runs: Vec<Run> = Vec::new();
    for piece in pieces {
        let unit = |lba: Lba| lba.0 / EXTENT_SECTORS_MAX;
        match runs.last_mut() {
            Some(run)
                if run.from.last().is_some_and(|last| last.end() == piece.lba)
                    && unit(run.lba()) == unit(Lba(piece.end().0 - 1)) =>
            {
                run.from.push(piece);
            }
            _ => runs.push(Run { volume, from: vec![piece] }),
        }
    }
    runs
}

/// The content of a run, from the whole segment. Only the blocks that it touches are opened: most of what is collected
/// is garbage.
///
/// # Errors
/// [`SegmentError`] where the segment does not match the map (R9).
pub fn open_run(opener: &ObjectOpener, segment: &[u8], run: &Run) -> Result<Vec<u8>, SegmentError> {
    let mut raw = Vec::new();
    for piece in &run.from {
        let range = piece.place.range();
        // A place beyond the object gives too few bytes, and these do not open.
        let start = (range.start as usize).min(segment.len());
        let sealed = &segment[start..(range.end as usize).clamp(start, segment.len())];
        let entry = TableEntry { volume: run.volume, lba: piece.sealed_lba(), place: piece.place };
        raw.extend(open_range(opener, &entry, sealed, piece.raw_range())?);
    }
    Ok(raw)
}

/// The page after a checkpoint: `old`, minus the ranges that `memtable` zeroed, plus the checkpoint's `extents`, plus
/// `moves` where the page still names the copied extent (SPACE-G2). `below`: the end of the visible part of the base
/// within the page ([`Root::below`] of the new root). Zeroed ranges hide the base up to there (BASE-O1).
///
/// [`Root::below`]: crate::map::Root::below
pub fn fold_page(old: Page, memtable: &Memtable, extents: &[MapExtent], moves: &[Move], below: Option<Lba>) -> Page {
    let mut page = old;
    if below.is_none() {
        page.hide_nothing();
    }
    let (volume, start, len) = (page.volume(), page.lba(), Sectors(page.end().0 - page.lba().0));
    for piece in memtable.pieces(volume, start, len) {
        match (piece.source, below) {
            (Source::Zero, Some(_)) => page.hide(piece.lba, piece.sectors),
            (Source::Zero, None) => page.unmap(piece.lba, piece.sectors),
            _ => {}
        }
    }
    for extent in extents {
        page.overlay(extent);
    }
    for Move { from, to } in moves {
        for piece in from {
            page.redirect(piece, to);
        }
    }
    page
}
