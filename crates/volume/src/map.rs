//! Map: where in the store each sector of each volume is, as of one checkpoint.
//!
//! ```text
//!   root object --(volume, page number)--> page, inside a page pack --(sector)--> extent, inside a segment
//!   a page that does not exist: zeroes         a sector that no extent maps: zeroes      (in a clone: read from its base, see `base`)
//! ```
//! A page covers a fixed range of [`PAGE_SECTORS`] sectors. Sealed pages and roots are immutable. A checkpoint writes
//! the pages that changed and a new root; the new root refers to the old pages for the rest. A large root is a top that
//! names leaves, and the leaves name the pages (see `top`).
//!
//! MAP-M1  Extents of one page do not overlap, lie within the page, and none is empty.
//! MAP-M2  A page or root that decodes is valid: each length was checked against its bound before memory was allocated.
//! MAP-M3  A root names exactly the objects that it needs. An object that no retained root names is garbage (R7).
//! MAP-M4  A root's live sectors of a segment are the sum over all of its pages.

mod base;
mod diff;
mod keys;
mod leaf;
mod names;
mod objects;
mod pack;
mod page;
mod places;
mod ranges;
mod root;
mod root_object;
mod sums;
mod table;
mod top;
mod under;

pub use base::{BASE_DEPTH_MAX, Base};
pub use diff::{Changed, Differing, changes, differing_pages};
pub use keys::KeyUse;
pub use leaf::{Leaf, LeafOf, LeafRef, LeafShape, ObjectLeaf, PageLeaf, open_leaf};
pub(crate) use names::Names;
pub use objects::{Objects, PackUse, SegmentUse};
pub use pack::{PackBuilder, PackEntry, PackTable, open_pack, open_page, pack_bytes_max, read_any_pack, read_pack};
pub use page::{Live, Page};
pub use places::PageRef;
pub use root::{LiveError, Root, RootStats};
pub use root_object::{open_root, open_top, seal_partial, seal_root};
pub use sums::{LOWEST_OF, Sums};
pub use top::{Comparing, LeafPack, LeafWriting, Opened, PageAt, PartialRoot, Remains, Top};

use crate::object::ObjectError;
use crate::segment::{ExtentPlace, SegmentError};
use crate::wire::{self, Reader, WireError};
use holdfast_seal::SealError;
use holdfast_types::limits::VOLUME_SECTORS_MAX;
use holdfast_types::{Lba, MemberId, ObjectId, SECTOR_BYTES, Sectors, Term, VolumeId};
use std::ops::RangeInclusive;

/// Sectors that one page covers: 32 MiB. With larger pages a changed block costs more to rewrite; with smaller pages
/// the root is longer.
pub const PAGE_SECTORS: u64 = (32 << 20) / SECTOR_BYTES;
/// Largest page number of any volume.
pub const PAGE_NUMBER_MAX: u32 = (VOLUME_SECTORS_MAX / PAGE_SECTORS - 1) as u32;
/// Upper bound of an encoded page. It holds even if every sector is an extent of its own in an object of its own.
pub const PAGE_BYTES_MAX: usize = 8 << 20;

const _: () = assert!(PAGE_SECTORS.is_multiple_of(crate::segment::EXTENT_SECTORS_MAX));
const _: () = assert!(VOLUME_SECTORS_MAX.is_multiple_of(PAGE_SECTORS));

/// The page that a sector is in.
pub fn page_number(lba: Lba) -> u32 {
    // Places above the largest volume do not exist. They saturate, so that they never alias an existing page.
    u32::try_from(lba.0 / PAGE_SECTORS).unwrap_or(u32::MAX)
}

/// The pages that a range touches. Empty for an empty range.
pub fn page_numbers(lba: Lba, sectors: Sectors) -> RangeInclusive<u32> {
    match sectors.0.checked_sub(1) {
        Some(more) => page_number(lba)..=page_number(Lba(lba.0.saturating_add(more))),
        None => RangeInclusive::new(1, 0),
    }
}

/// A range cut at page boundaries: (page number, first sector, sectors).
pub fn split_by_page(lba: Lba, sectors: Sectors) -> impl Iterator<Item = (u32, Lba, Sectors)> {
    let end = lba.0.saturating_add(sectors.0);
    page_numbers(lba, sectors).map(move |number| {
        let start = lba.0.max(u64::from(number) * PAGE_SECTORS);
        let until = end.min((u64::from(number) + 1) * PAGE_SECTORS);
        (number, Lba(start), Sectors(until - start))
    })
}

/// A range of a volume that is in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MapExtent {
    /// First sector.
    pub lba: Lba,
    /// Length.
    pub sectors: Sectors,
    /// The segment.
    pub object: ObjectId,
    /// The sealed extent in the segment.
    pub place: ExtentPlace,
    /// Sectors of the sealed extent before `lba`.
    pub skip: Sectors,
}

impl MapExtent {
    /// A whole sealed extent, as [`crate::segment::SegmentBuilder::push`] placed it.
    pub fn whole(object: ObjectId, lba: Lba, place: ExtentPlace) -> Self {
        Self { lba, sectors: place.sectors(), object, place, skip: Sectors(0) }
    }

    /// First sector that the extent was sealed for, as [`crate::segment::open_extent`] expects it.
    pub fn sealed_lba(&self) -> Lba {
        Lba(self.lba.0.saturating_sub(self.skip.0))
    }

    /// Where in the opened extent the range is, in bytes.
    pub fn raw_range(&self) -> std::ops::Range<usize> {
        let start = (self.skip.0 * SECTOR_BYTES) as usize;
        start..start + (self.sectors.0 * SECTOR_BYTES) as usize
    }

    /// First sector behind the range.
    pub fn end(&self) -> Lba {
        Lba(self.lba.0 + self.sectors.0)
    }
}

/// Result of a lookup for one part of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapPiece {
    /// Stored, cut to the requested range.
    Stored(MapExtent),
    /// Never written, or unmapped: reads as zeroes.
    Zero {
        /// First sector.
        lba: Lba,
        /// Length.
        sectors: Sectors,
    },
    /// In a clone: the content comes from the root's base.
    Below {
        /// First sector.
        lba: Lba,
        /// Length.
        sectors: Sectors,
    },
}

impl MapPiece {
    /// First sector.
    pub fn lba(&self) -> Lba {
        match self {
            MapPiece::Stored(extent) => extent.lba,
            MapPiece::Zero { lba, .. } | MapPiece::Below { lba, .. } => *lba,
        }
    }

    /// Length.
    pub fn sectors(&self) -> Sectors {
        match self {
            MapPiece::Stored(extent) => extent.sectors,
            MapPiece::Zero { sectors, .. } | MapPiece::Below { sectors, .. } => *sectors,
        }
    }
}

/// Appends zeroes; extends the last piece if that is already zeroes.
fn push_zero(pieces: &mut Vec<MapPiece>, from: Lba, to: Lba) {
    if from >= to {
        return;
    }
    let more = to.0 - from.0;
    match pieces.last_mut() {
        Some(MapPiece::Zero { lba, sectors }) if lba.0 + sectors.0 == from.0 => sectors.0 += more,
        _ => pieces.push(MapPiece::Zero { lba: from, sectors: Sectors(more) }),
    }
}

/// Appends a range that neither an extent nor a hidden range covers: the base up to `end`, zeroes beyond (BASE-O3).
fn push_below(pieces: &mut Vec<MapPiece>, from: Lba, to: Lba, end: Lba) {
    let cut = end.clamp(from, to.max(from));
    if from < cut {
        pieces.push(MapPiece::Below { lba: from, sectors: Sectors(cut.0 - from.0) });
    }
    push_zero(pieces, cut, to);
}

/// A page or root that does not match its description (R9). Reading the same bytes again does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MapError {
    /// The object as a whole.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// A seal does not open.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// It does not decode.
    #[error("{what}: {error}")]
    Wire {
        /// Page, root or table.
        what: &'static str,
        /// What is wrong.
        error: WireError,
    },
    /// An extent's place cannot be.
    #[error("page {number} of {volume}: {error}")]
    Place {
        /// Volume of the page.
        volume: VolumeId,
        /// Number of the page.
        number: u32,
        /// What is wrong.
        error: SegmentError,
    },
    /// Another page than the requested one.
    #[error("page: found page {found_number} of {found_volume}, expected page {number} of {volume}")]
    WrongPage {
        /// Volume found.
        found_volume: VolumeId,
        /// Number found.
        found_number: u32,
        /// Volume asked for.
        volume: VolumeId,
        /// Number asked for.
        number: u32,
    },
    /// The page has another length than expected, sealed or opened.
    #[error("page {number} of {object}: found {found} {what}, expected {expected}")]
    Length {
        /// The page pack.
        object: ObjectId,
        /// Number in it.
        number: u32,
        /// Which length.
        what: &'static str,
        /// Bytes found.
        found: usize,
        /// Bytes expected.
        expected: usize,
    },
    /// A leaf is missing, or does not match the root's top.
    #[error("leaf {number} of {object}: found {found} {what}, expected {expected}")]
    Leaf {
        /// The pack.
        object: ObjectId,
        /// Number in it.
        number: u32,
        /// What is wrong.
        what: &'static str,
        /// Found.
        found: u64,
        /// Expected.
        expected: u64,
    },
    /// The table of a page pack does not match the bytes before it.
    #[error("page pack {object}: found pages up to byte {found}, expected up to the table at {expected}")]
    Pages {
        /// The page pack.
        object: ObjectId,
        /// Where the last page ends.
        found: u64,
        /// Where the table begins.
        expected: u64,
    },
}

/// Writes an object id in a table: steps from the id before (mostly 0 in sorted tables), and the random part.
fn put_object(out: &mut Vec<u8>, before: ObjectId, object: ObjectId) {
    wire::put_step(out, before.term.0, object.term.0);
    wire::put_step(out, before.member.0, object.member.0);
    wire::put_step(out, before.boot, object.boot);
    out.extend_from_slice(&object.random.to_le_bytes());
}

/// Fewest and most bytes that [`put_object`] writes.
const OBJECT_WIRE_BYTES_MIN: usize = 3 + 16;
const OBJECT_WIRE_BYTES_MAX: usize = 30 + 16;

/// The id from which the first step in a table is counted.
const NO_OBJECT: ObjectId = ObjectId { term: Term(0), member: MemberId(0), boot: 0, random: 0 };

fn read_object(reader: &mut Reader<'_>, before: ObjectId) -> Result<ObjectId, WireError> {
    Ok(ObjectId {
        term: Term(reader.step("term of an object id", before.term.0, 0, u64::MAX)?),
        member: MemberId(reader.step("member of an object id", before.member.0, 0, u64::MAX)?),
        boot: reader.step("boot of an object id", before.boot, 0, u64::MAX)?,
        random: u128::from_le_bytes(reader.array("random part of an object id")?),
    })
}

#[cfg(test)]
mod tests;
