//! Errors of segments and extents.

use super::codec::Codec;
use crate::object::ObjectError;
use crate::wire::WireError;
use holdfast_seal::SealError;
use holdfast_types::ObjectId;

/// A segment or extent that does not match its description (R9). Reading the same bytes again does not help.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SegmentError {
    /// The object as a whole.
    #[error(transparent)]
    Object(#[from] ObjectError),
    /// A seal does not open.
    #[error(transparent)]
    Seal(#[from] SealError),
    /// The table.
    #[error("segment {object}, table: {error}")]
    Table {
        /// Which segment.
        object: ObjectId,
        /// What is wrong.
        error: WireError,
    },
    /// The table does not match the bytes before it.
    #[error("segment {object}: found extents up to byte {found}, expected up to the table at {expected}")]
    Extents {
        /// Which segment.
        object: ObjectId,
        /// Where the last extent ends.
        found: u64,
        /// Where the table begins.
        expected: u64,
    },
    /// As many bytes as were asked for did not arrive.
    #[error("extent {number} of {object}: found {found} sealed bytes, expected {expected}")]
    SealedLength {
        /// Which segment.
        object: ObjectId,
        /// Which extent.
        number: u32,
        /// Bytes found.
        found: usize,
        /// Bytes expected.
        expected: usize,
    },
    /// A place with a raw length that no extent has.
    #[error("place of extent {number}: found {found} raw bytes, expected whole sectors up to {most} bytes")]
    RawLength {
        /// Which extent.
        number: u32,
        /// Raw length found.
        found: usize,
        /// Longest raw length.
        most: usize,
    },
    /// A place with a sealed length that its raw length and codec cannot have.
    #[error("place of extent {number}: found {found} sealed bytes, expected {least} to {most}")]
    SealedLengthImpossible {
        /// Which extent.
        number: u32,
        /// Sealed length found.
        found: usize,
        /// Shortest sealed length.
        least: usize,
        /// Longest sealed length.
        most: usize,
    },
    /// A place that ends beyond 32 bits.
    #[error("place of extent {number}: found offset {found} and {length} bytes, expected an end within 32 bits")]
    Offset {
        /// Which extent.
        number: u32,
        /// Offset found.
        found: u32,
        /// Sealed length.
        length: u32,
    },
    /// Authentic lengths of blocks that do not fit the sealed extent: the map names another length, or a bug in this
    /// code.
    #[error("lengths of extent {number} of {object}: found {found}")]
    Lengths {
        /// Which segment.
        object: ObjectId,
        /// Which extent.
        number: u32,
        /// What was found, and what was expected.
        found: String,
    },
    /// A part was asked for that the extent, or what is here of it, does not have.
    #[error("extent {number} of {object}: asked for {unit} {first} to {end}, expected {least} to {most}")]
    Part {
        /// Which segment.
        object: ObjectId,
        /// Which extent.
        number: u32,
        /// Bytes or blocks.
        unit: &'static str,
        /// The first asked for.
        first: usize,
        /// Behind the last asked for.
        end: usize,
        /// The first that is there.
        least: usize,
        /// Behind the last that is there.
        most: usize,
    },
    /// Authentic, but not the codec's output: a bug in this code or in the codec.
    #[error("block {block} of extent {number} of {object}: found {found}, expected {raw_len} bytes out of {codec}")]
    Decompress {
        /// Which segment.
        object: ObjectId,
        /// Which extent.
        number: u32,
        /// Which block of it.
        block: usize,
        /// Bytes that came out, or the codec's complaint.
        found: String,
        /// Bytes expected.
        raw_len: usize,
        /// Codec.
        codec: Codec,
    },
}
