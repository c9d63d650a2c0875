//! Parts of a sealed object, and the data that each is bound to (SEAL-S2).

use holdfast_types::{Lba, VolumeId};
use std::fmt;

/// Bytes that sealing adds to a part.
pub const TAG_BYTES: usize = 16;

/// Data that each part of an extent is bound to, besides its object, its numbers and its own sealed length.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ExtentAad {
    /// Volume of the extent.
    pub volume: VolumeId,
    /// First sector of the extent.
    pub lba: Lba,
    /// Length before compression, in bytes.
    pub raw_len: u32,
    /// Compression, as its number in the segment format.
    pub codec: u8,
}

/// A part of a sealed extent. Each is sealed under a nonce of its own, so each opens alone, and at its own place only.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentPart {
    /// The lengths of the extent's blocks.
    Lengths,
    /// A block, by its place in the extent: 0, 1, …
    Block(u16),
}

impl fmt::Display for ExtentPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExtentPart::Lengths => f.write_str("lengths"),
            ExtentPart::Block(block) => write!(f, "block {block}"),
        }
    }
}

/// A part of an object that is not an extent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Part {
    /// The object's own table.
    Header,
    /// A map root.
    Root,
    /// A map page, bound to the range that it maps.
    Page {
        /// Number in its object.
        number: u32,
        /// Volume that it maps.
        volume: VolumeId,
        /// Number of the page in the volume.
        page: u32,
    },
    /// A leaf of a map root, bound to what it lists. Shares its numbers with pages: a pack contains either pages or
    /// leaves.
    Leaf {
        /// Number in its object.
        number: u32,
        /// What it lists, as its number in the map's format.
        kind: u8,
        /// Volume of its pages; 0 if it lists something else.
        volume: VolumeId,
        /// First page that it covers; 0 if it lists something else.
        page: u32,
    },
}

impl fmt::Display for Part {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Part::Header => f.write_str("header"),
            Part::Root => f.write_str("root"),
            Part::Page { number, volume, page } => write!(f, "page {number} (page {page} of {volume})"),
            Part::Leaf { number, kind, volume, page } => {
                write!(f, "leaf {number} (of kind {kind}, from page {page} of {volume} on)")
            }
        }
    }
}
