//! What can be wrong with an entry, and the readers of single fields.

use super::layout::{BLOCK_MAGIC, TAG_CONTROL, TAG_WRITES};
use holdfast_types::limits::{ENTRY_BYTES_MAX, ENTRY_OPS_MAX, VOLUME_SECTORS_MAX};
use holdfast_types::{Lba, Sectors, SetId, VolumeId};

/// Bytes are not a valid entry, or not the expected part of one. Always corruption, forgery or an unknown version:
/// entries come from gateways, never directly from a client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[expect(
    missing_docs,
    reason = "the fields are what each message says: place in bytes, what was found, what was expected"
)]
pub enum EntryError {
    /// The payload ends inside something.
    #[error("entry cut short at {at}: found {found} bytes, expected {expected}")]
    Short { at: usize, found: usize, expected: usize },
    /// The payload goes on after its last op.
    #[error("entry of {expected} bytes has {found}")]
    Trailing { found: usize, expected: usize },
    /// The payload is larger than any entry may be.
    #[error("entry of {found} bytes, expected at most {ENTRY_BYTES_MAX}")]
    TooLarge { found: usize },
    /// The first byte names no kind of entry.
    #[error("entry kind: found {found}, expected {TAG_WRITES} or {TAG_CONTROL}")]
    Tag { found: u8 },
    /// Written by a version that this one cannot read.
    #[error("entry version: found {found}, expected {expected}")]
    Version { found: u8, expected: u8 },
    /// Made for the log of another set (ENTRY-E4).
    #[error("entry of set {found}, expected set {expected}")]
    OtherSet { found: SetId, expected: SetId },
    /// More ops than an entry may have.
    #[error("entry with {found} ops, expected at most {ENTRY_OPS_MAX}")]
    Ops { found: usize },
    /// Reserved bytes are not zero.
    #[error("reserved bytes at {at} are not zero")]
    Reserved { at: usize },
    /// No block begins here.
    #[error("block at {at}: found magic {found:#06x}, expected {BLOCK_MAGIC:#06x}")]
    Magic { at: usize, found: u16 },
    /// The op names no kind.
    #[error("op at {at}: found kind {found}, expected 1, 2 or 3")]
    Kind { at: usize, found: u8 },
    /// The op's range is empty, or reaches beyond the largest volume, or is more than one write may carry.
    #[error("op at {at}: {sectors} sectors at {lba}, expected 1 to {limit} that end by {VOLUME_SECTORS_MAX}")]
    Range { at: usize, lba: Lba, sectors: Sectors, limit: u64 },
    /// A checksum does not match (R9).
    #[error("{part} at {at}: found checksum {found:#010x}, expected {expected:#010x}")]
    Checksum { part: &'static str, at: usize, found: u32, expected: u32 },
    /// A command could not be read although its checksum matched.
    #[error("control command could not be read")]
    Command(#[source] postcard::Error),
    /// A valid block, but not of the op that the index refers to, or a piece that is not in it (R9: never served).
    #[error("block at {at}: not the op with {sectors} sectors at {volume} {lba}")]
    Misplaced { at: usize, volume: VolumeId, lba: Lba, sectors: Sectors },
    /// The checksum matches, but the data was not sealed as this op of this entry: it is of another entry, set or
    /// place, or forged (R9: never served).
    #[error("block at {at}: unit {unit} of the op with {sectors} sectors at {volume} {lba} is not authentic")]
    NotAuthentic { at: usize, unit: usize, volume: VolumeId, lba: Lba, sectors: Sectors },
}

pub(super) fn u16_at<const N: usize>(bytes: &[u8; N], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(super) fn u32_at<const N: usize>(bytes: &[u8; N], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

pub(super) fn u64_at<const N: usize>(bytes: &[u8; N], at: usize) -> u64 {
    u64::from(u32_at(bytes, at)) | u64::from(u32_at(bytes, at + 4)) << 32
}

pub(super) fn header_at<const N: usize>(bytes: &[u8], at: usize) -> Result<&[u8; N], EntryError> {
    bytes.get(at..).and_then(|rest| rest.first_chunk::<N>()).ok_or(EntryError::Short {
        at,
        found: bytes.len().saturating_sub(at),
        expected: N,
    })
}

/// The part of `bytes` from `at` on with this length.
pub(super) fn part_at(bytes: &[u8], at: usize, expected: usize) -> Result<&[u8], EntryError> {
    let found = bytes.len().saturating_sub(at);
    bytes.get(at..at + expected).ok_or(EntryError::Short { at, found, expected })
}

pub(super) fn check_crc(part: &'static str, at: usize, found: u32, expected: u32) -> Result<(), EntryError> {
    if found == expected { Ok(()) } else { Err(EntryError::Checksum { part, at, found, expected }) }
}

/// `at` is that of the first byte, for the error's text.
pub(super) fn check_zero(at: usize, bytes: &[u8]) -> Result<(), EntryError> {
    match bytes.iter().position(|byte| *byte != 0) {
        None => Ok(()),
        Some(first) => Err(EntryError::Reserved { at: at + first }),
    }
}
