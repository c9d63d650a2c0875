//! Segments: compressed, sealed extents of volume data, packed into immutable objects.
//!
//! The frame is the one of [`crate::object`]. Its content is the sealed extents one after the other, its main part the
//! table:
//!
//! ```text
//!   "HFT" version(2)  count  then per extent, in the order in which they stand in the object:
//!   volume (step from the one before)   first sector (step from the end of the one before)
//!   raw sectors   codec (1 byte)   bytes before sealing
//! ```
//! Number and offset of an extent follow from its place in the table, so extents can neither overlap nor leave gaps. An
//! extent that a map names is range-read and opened alone, without header or table: all that the map says of it is
//! bound into it. It consists of blocks of 16 KiB, each of which opens alone ([`blocks`], ADR 0042). The table is for
//! reads without a map: recovery, offline checks, garbage collection.

use crate::object::{OBJECT_HEADER_BYTES, ObjectHeader, ObjectKind};
use crate::wire::{self, Reader, WireError};
use bytes::Bytes;
use holdfast_seal::{EXTENT_NUMBER_MAX, ExtentPart, ObjectOpener, ObjectSealer, Part, TAG_BYTES};
use holdfast_types::limits::{EXTENT_BYTES_MAX, SEGMENT_BYTES_TARGET, VOLUME_SECTORS_MAX};
use holdfast_types::{Lba, ObjectId, SECTOR_BYTES, VolumeId};
use std::fmt;

pub mod blocks;
mod codec;
mod compress;
mod error;
mod open;
mod place;
mod stretch;

use blocks::{Blocks, Lengths};
pub use codec::{Codec, CodecError};
use compress::Compressor;
pub use compress::ZSTD_LEVEL;
pub use error::SegmentError;
pub use open::{open_extent, open_range};
pub use place::{ExtentPlace, TableEntry};
pub use stretch::{Apart, STRETCH_BYTES, Stretch, open_apart, open_blocks, stretches};

/// Sectors in one extent at most.
pub const EXTENT_SECTORS_MAX: u64 = EXTENT_BYTES_MAX as u64 / SECTOR_BYTES;
/// Places in a segment are 32 bits. This limit is far above the length at which a segment is closed.
pub const SEGMENT_BYTES_MAX: usize = 1 << 30;

const TABLE_MAGIC: &[u8] = b"HFT\x02";
/// Volume, sector, sectors, codec and length: at least one byte each.
const TABLE_ENTRY_BYTES_MIN: usize = 5;

const _: () = assert!(SEGMENT_BYTES_TARGET + 2 * EXTENT_BYTES_MAX < SEGMENT_BYTES_MAX);
const _: () = assert!(SEGMENT_BYTES_MAX / (SECTOR_BYTES as usize) < EXTENT_NUMBER_MAX as usize);
const _: () = assert!(EXTENT_BYTES_MAX.is_multiple_of(SECTOR_BYTES as usize));

/// Packs extents into one segment.
pub struct SegmentBuilder {
    sealer: ObjectSealer,
    compressor: Compressor,
    content: Vec<u8>,
    table: Vec<TableEntry>,
    stretches: Vec<Stretch>,
    raw_bytes: u64,
}

impl fmt::Debug for SegmentBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SegmentBuilder({}, {} extents, {} bytes)", self.object(), self.table.len(), self.content.len())
    }
}

impl SegmentBuilder {
    /// An empty segment for the object that the sealer was made for.
    pub fn new(sealer: ObjectSealer, codec: Codec) -> Self {
        Self::over(sealer, codec, Vec::new())
    }

    /// Like [`SegmentBuilder::new`], but reuses the memory of a finished segment: fresh memory of this size would be
    /// mapped and cleared page by page.
    pub fn over(sealer: ObjectSealer, codec: Codec, mut content: Vec<u8>) -> Self {
        content.clear();
        content.reserve(SEGMENT_BYTES_TARGET + 2 * EXTENT_BYTES_MAX);
        content.resize(OBJECT_HEADER_BYTES, 0);
        let (compressor, table, stretches) = (Compressor::new(codec), Vec::new(), Vec::new());
        Self { sealer, compressor, content, table, stretches, raw_bytes: 0 }
    }

    /// Id of the object under construction.
    pub fn object(&self) -> ObjectId {
        self.sealer.object()
    }

    /// Compresses and seals `raw`, the volume's content from `lba` on. Returns its place.
    ///
    /// # Panics
    /// R9: when `raw` is empty, not whole sectors, longer than [`EXTENT_BYTES_MAX`], or beyond the largest volume, or
    /// when the segment would exceed [`SEGMENT_BYTES_MAX`]: such an extent could not be read back.
    pub fn push(&mut self, volume: VolumeId, lba: Lba, raw: &[u8]) -> ExtentPlace {
        let sectors = raw.len() as u64 / SECTOR_BYTES;
        assert!(!raw.is_empty(), "R9: an empty extent at {lba} of {volume}");
        assert!(raw.len().is_multiple_of(SECTOR_BYTES as usize), "R9: {} bytes at {lba} of {volume}", raw.len());
        assert!(raw.len() <= EXTENT_BYTES_MAX, "R9: {} bytes at {lba} of {volume}", raw.len());
        assert!(lba.0.saturating_add(sectors) <= VOLUME_SECTORS_MAX, "R9: {lba} of {volume} with {sectors} sectors");
        let most = self.content.len() + raw.len() + Blocks::new(raw.len(), self.compressor.codec()).overhead();
        assert!(most <= SEGMENT_BYTES_MAX, "R9: segment of {:?}", self);
        let compressed = self.compressor.compress(raw);
        let blocks = Blocks::new(raw.len(), compressed.codec);
        let lengths = Lengths::of(blocks, compressed.blocks.iter().copied());
        let plain_len: usize = compressed.blocks.iter().map(|plain| plain.len()).sum();
        let place = ExtentPlace {
            number: self.table.len() as u32,
            offset: self.content.len() as u32,
            sealed_len: (plain_len + blocks.overhead()) as u32,
            raw_len: raw.len() as u32,
            codec: compressed.codec,
        };
        let entry = TableEntry { volume, lba, place };
        let (number, aad) = (place.number, open::aad(&entry));
        if blocks.lengths_bytes() > 0 {
            let plain = lengths.encode();
            self.sealer.seal_extent_into(number, ExtentPart::Lengths, aad, &plain, &mut self.content);
        }
        for (block, plain) in compressed.blocks.iter().enumerate() {
            let part = ExtentPart::Block(block as u16);
            self.sealer.seal_extent_into(number, part, aad, plain, &mut self.content);
        }
        self.stretches.extend(stretch::cut_up(&place, &lengths));
        self.table.push(entry);
        self.raw_bytes += raw.len() as u64;
        place
    }

    /// Bytes so far, without the table.
    pub fn bytes(&self) -> usize {
        self.content.len()
    }

    /// Bytes before compression so far.
    pub fn raw_bytes(&self) -> u64 {
        self.raw_bytes
    }

    /// Extents so far.
    pub fn extents(&self) -> usize {
        self.table.len()
    }

    /// What a cache's disk would keep of them, in order.
    pub fn stretches(&self) -> &[Stretch] {
        &self.stretches
    }

    /// Like `stretches`, of one extent.
    pub fn stretches_of(&self, number: u32) -> &[Stretch] {
        let first = self.stretches.partition_point(|stretch| stretch.number < number);
        let end = self.stretches.partition_point(|stretch| stretch.number <= number);
        &self.stretches[first..end]
    }

    /// Whether the segment has reached [`SEGMENT_BYTES_TARGET`] and should be closed.
    pub fn is_full(&self) -> bool {
        self.content.len() >= SEGMENT_BYTES_TARGET
    }

    /// The whole object. Its length counts as stored bytes.
    pub fn finish(self) -> Bytes {
        let Self { mut sealer, mut content, table, .. } = self;
        seal_frame(ObjectKind::Segment, &mut sealer, Part::Header, &encode_table(&table), &mut content);
        Bytes::from(content)
    }
}

/// Seals the main part behind the content, and writes the header into the space reserved for it.
pub(crate) fn seal_frame(kind: ObjectKind, sealer: &mut ObjectSealer, part: Part, plain: &[u8], object: &mut Vec<u8>) {
    let main_offset = object.len() as u64;
    sealer.seal_part_into(part, plain, object);
    let header = ObjectHeader {
        kind,
        key_id: sealer.key_id(),
        set: sealer.set(),
        object: sealer.object(),
        bytes: object.len() as u64,
        main_offset,
    };
    object[..OBJECT_HEADER_BYTES].copy_from_slice(&header.encode());
}

/// The table of a whole segment.
///
/// # Errors
/// [`SegmentError`] where the object is not this segment.
pub fn read_table(opener: &ObjectOpener, segment: &[u8]) -> Result<Vec<TableEntry>, SegmentError> {
    let (header, main) = ObjectHeader::of_whole(ObjectKind::Segment, opener, segment)?;
    open_table(opener, &header, main)
}

/// The table from its sealed bytes, which are at [`ObjectHeader::main_range`].
///
/// # Errors
/// As [`read_table`].
pub fn open_table(
    opener: &ObjectOpener,
    header: &ObjectHeader,
    sealed: &[u8],
) -> Result<Vec<TableEntry>, SegmentError> {
    header.check(ObjectKind::Segment, opener)?;
    let object = header.object;
    let plain = opener.open_part_by(header.key_id, Part::Header, sealed)?;
    let table = decode_table(&plain).map_err(|error| SegmentError::Table { object, error })?;
    let end = table.last().map_or(OBJECT_HEADER_BYTES as u64, |last| last.place.range().end);
    if end != header.main_offset {
        return Err(SegmentError::Extents { object, found: end, expected: header.main_offset });
    }
    Ok(table)
}

fn encode_table(table: &[TableEntry]) -> Vec<u8> {
    let mut out = Vec::with_capacity(TABLE_MAGIC.len() + 4 + table.len() * 10);
    out.extend_from_slice(TABLE_MAGIC);
    wire::put(&mut out, table.len() as u64);
    let (mut volume, mut end) = (0, 0);
    for entry in table {
        let sectors = entry.place.sectors().0;
        wire::put_step(&mut out, volume, entry.volume.0.into());
        wire::put_step(&mut out, end, entry.lba.0);
        wire::put(&mut out, sectors);
        out.push(entry.place.codec.number());
        wire::put(&mut out, u64::from(entry.place.sealed_len) - entry.place.blocks().overhead() as u64);
        (volume, end) = (entry.volume.0.into(), entry.lba.0 + sectors);
    }
    out
}

fn decode_table(plain: &[u8]) -> Result<Vec<TableEntry>, WireError> {
    let mut reader = Reader::new(plain);
    reader.magic("magic and version of the table", TABLE_MAGIC)?;
    let most = (SEGMENT_BYTES_MAX / TAG_BYTES) as u64;
    let count = reader.count("count of extents", TABLE_ENTRY_BYTES_MIN, most)?;
    let mut table = Vec::with_capacity(count);
    let (mut volume, mut end, mut offset) = (0, 0, OBJECT_HEADER_BYTES as u64);
    for number in 0..count {
        volume = reader.step("volume", volume, 0, u32::MAX.into())?;
        let lba = reader.step("first sector", end, 0, VOLUME_SECTORS_MAX - 1)?;
        let sectors = reader.number("sectors", 1, EXTENT_SECTORS_MAX.min(VOLUME_SECTORS_MAX - lba))?;
        let codec = read_codec(&mut reader)?;
        let raw_len = sectors * SECTOR_BYTES;
        let blocks = Blocks::new(raw_len as usize, codec);
        let least = if codec == Codec::None { raw_len } else { blocks.count() as u64 };
        let sealed_len = reader.number("bytes before sealing", least, raw_len)? + blocks.overhead() as u64;
        end = lba + sectors;
        let at = reader.at();
        let place = ExtentPlace {
            number: number as u32,
            offset: offset as u32,
            sealed_len: sealed_len as u32,
            raw_len: raw_len as u32,
            codec,
        };
        table.push(TableEntry { volume: VolumeId(volume as u32), lba: Lba(lba), place });
        offset += sealed_len;
        if offset > SEGMENT_BYTES_MAX as u64 {
            let most = SEGMENT_BYTES_MAX as u64;
            return Err(WireError::Range { field: "end of the extent", at, found: offset, least: 0, most });
        }
    }
    reader.end()?;
    Ok(table)
}

/// A codec's number, one byte.
pub(crate) fn read_codec(reader: &mut Reader<'_>) -> Result<Codec, WireError> {
    let at = reader.at();
    let number = reader.u8("codec")?;
    Codec::from_number(number).ok_or(WireError::Range {
        field: "codec",
        at,
        found: number.into(),
        least: 0,
        most: Codec::Zstd.number().into(),
    })
}

#[cfg(test)]
mod tests;
