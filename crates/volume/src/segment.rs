//! Segments: compressed, sealed extents of volume data, packed into immutable objects.
//!
//! The frame is the one of [`crate::object`]. Its content is the sealed extents one after the other, its main part the
//! table:
//!
//! ```text
//!   "HFT" version(1)  count  then per extent, in the order in which they stand in the object:
//!   volume (step from the one before)   first sector (step from the end of the one before)
//!   raw sectors   codec (1 byte)   bytes before sealing
//! ```
//! Number and offset of an extent follow from its place in the table, so extents can neither overlap nor leave gaps. An
//! extent that a map names is range-read and opened alone, without header or table: all that the map says of it is
//! bound into it. The table is for reads without a map: recovery, offline checks, garbage collection.

use crate::object::{OBJECT_HEADER_BYTES, ObjectError, ObjectHeader, ObjectKind};
use crate::wire::{self, Reader, WireError};
use bytes::Bytes;
use holdfast_seal::{EXTENT_NUMBER_MAX, ExtentAad, ObjectOpener, ObjectSealer, Part, SealError, TAG_BYTES};
use holdfast_types::limits::{EXTENT_BYTES_MAX, SEGMENT_BYTES_TARGET, VOLUME_SECTORS_MAX};
use holdfast_types::{Lba, ObjectId, SECTOR_BYTES, Sectors, VolumeId};
use std::fmt;
use std::ops::Range;
use std::str::FromStr;

/// zstd's level: about three times the CPU time of lz4, and a quarter smaller. Higher levels cost more than they save
/// here.
pub const ZSTD_LEVEL: i32 = 3;
/// Sectors in one extent at most.
pub const EXTENT_SECTORS_MAX: u64 = EXTENT_BYTES_MAX as u64 / SECTOR_BYTES;
/// Places in a segment are 32 bits. This limit is far above the length at which a segment is closed.
pub const SEGMENT_BYTES_MAX: usize = 1 << 30;

const TABLE_MAGIC: &[u8] = b"HFT\x01";
/// Volume, sector, sectors, codec and length: at least one byte each.
const TABLE_ENTRY_BYTES_MIN: usize = 5;

const _: () = assert!(SEGMENT_BYTES_TARGET + 2 * EXTENT_BYTES_MAX < SEGMENT_BYTES_MAX);
const _: () = assert!(SEGMENT_BYTES_MAX / (SECTOR_BYTES as usize) < EXTENT_NUMBER_MAX as usize);
const _: () = assert!(EXTENT_BYTES_MAX.is_multiple_of(SECTOR_BYTES as usize));

/// How an extent is compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Codec {
    /// Not compressed; also used by the other two codecs for an incompressible extent.
    None,
    /// lz4 block format: quick both ways.
    #[default]
    Lz4,
    /// zstd at [`ZSTD_LEVEL`].
    Zstd,
}

impl Codec {
    /// The codec's number in formats; it is bound into the extent.
    pub fn number(self) -> u8 {
        match self {
            Codec::None => 0,
            Codec::Lz4 => 1,
            Codec::Zstd => 2,
        }
    }

    /// The codec of a number.
    pub fn from_number(number: u8) -> Option<Self> {
        match number {
            0 => Some(Codec::None),
            1 => Some(Codec::Lz4),
            2 => Some(Codec::Zstd),
            _ => None,
        }
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Codec::None => "none",
            Codec::Lz4 => "lz4",
            Codec::Zstd => "zstd",
        })
    }
}

/// A codec's name is not known.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("codec: found {found:?}, expected none, lz4 or zstd")]
pub struct CodecError {
    found: String,
}

impl FromStr for Codec {
    type Err = CodecError;

    fn from_str(text: &str) -> Result<Self, CodecError> {
        match text {
            "none" => Ok(Codec::None),
            "lz4" => Ok(Codec::Lz4),
            "zstd" => Ok(Codec::Zstd),
            _ => Err(CodecError { found: text.chars().take(40).collect() }),
        }
    }
}

/// Where a sealed extent is in its object, and what is needed to open it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ExtentPlace {
    /// Its number in the object: its nonce.
    pub number: u32,
    /// Where its sealed bytes begin in the object, in bytes.
    pub offset: u32,
    /// How many sealed bytes there are.
    pub sealed_len: u32,
    /// Length when opened and decompressed, in bytes: whole sectors.
    pub raw_len: u32,
    /// How it is compressed.
    pub codec: Codec,
}

impl ExtentPlace {
    /// The bytes of the object to read.
    pub fn range(&self) -> Range<u64> {
        u64::from(self.offset)..u64::from(self.offset) + u64::from(self.sealed_len)
    }

    /// Length when opened, in sectors.
    pub fn sectors(&self) -> Sectors {
        Sectors(u64::from(self.raw_len) / SECTOR_BYTES)
    }

    /// Checks a place before memory is allocated for it.
    pub(crate) fn check(&self) -> Result<(), SegmentError> {
        let raw = self.raw_len as usize;
        if raw == 0 || raw > EXTENT_BYTES_MAX || !raw.is_multiple_of(SECTOR_BYTES as usize) {
            return Err(SegmentError::RawLength { number: self.number, found: raw, most: EXTENT_BYTES_MAX });
        }
        let sealed = self.sealed_len as usize;
        // An extent is compressed only where that makes it shorter, so it is never longer than raw length and tag.
        let fits = if self.codec == Codec::None { sealed == raw + TAG_BYTES } else { sealed <= raw + TAG_BYTES };
        if sealed <= TAG_BYTES || !fits {
            return Err(SegmentError::SealedLengthImpossible { number: self.number, found: sealed, raw });
        }
        if self.offset.checked_add(self.sealed_len).is_none() {
            return Err(SegmentError::Offset { number: self.number, found: self.offset, length: self.sealed_len });
        }
        Ok(())
    }
}

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
    #[error("place of extent {number}: found {found} sealed bytes, expected at most {raw} raw bytes and a tag")]
    SealedLengthImpossible {
        /// Which extent.
        number: u32,
        /// Sealed length found.
        found: usize,
        /// Raw length.
        raw: usize,
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
    /// Authentic, but not the codec's output: a bug in this code or in the codec.
    #[error("extent {number} of {object}: found {found}, expected {raw_len} bytes out of {codec}")]
    Decompress {
        /// Which segment.
        object: ObjectId,
        /// Which extent.
        number: u32,
        /// Bytes that came out, or the codec's complaint.
        found: String,
        /// Bytes expected.
        raw_len: u32,
        /// Codec.
        codec: Codec,
    },
}

/// One line of a segment's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableEntry {
    /// Volume of the extent.
    pub volume: VolumeId,
    /// Its first sector.
    pub lba: Lba,
    /// Where it is.
    pub place: ExtentPlace,
}

/// Packs extents into one segment.
pub struct SegmentBuilder {
    sealer: ObjectSealer,
    compressor: Compressor,
    content: Vec<u8>,
    table: Vec<TableEntry>,
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
        Self { sealer, compressor: Compressor::new(codec), content, table: Vec::new(), raw_bytes: 0 }
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
        assert!(self.content.len() + raw.len() + TAG_BYTES <= SEGMENT_BYTES_MAX, "R9: segment of {:?}", self);
        let (codec, plain) = self.compressor.compress(raw);
        let place = ExtentPlace {
            number: self.table.len() as u32,
            offset: self.content.len() as u32,
            sealed_len: (plain.len() + TAG_BYTES) as u32,
            raw_len: raw.len() as u32,
            codec,
        };
        self.sealer.seal_extent_into(place.number, aad(&place, volume, lba), plain, &mut self.content);
        self.table.push(TableEntry { volume, lba, place });
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

    /// Where each of them will be, by number.
    pub fn places(&self) -> impl Iterator<Item = (u32, Range<u64>)> + '_ {
        self.table.iter().map(|entry| (entry.place.number, entry.place.range()))
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

fn aad(place: &ExtentPlace, volume: VolumeId, lba: Lba) -> ExtentAad {
    ExtentAad { volume, lba, raw_len: place.raw_len, codec: place.codec.number() }
}

/// Opens and decompresses one extent that was range-read from its object. `lba` is the first sector that the extent was
/// sealed for, even if only a part of it is still in use.
///
/// # Errors
/// [`SegmentError`] unless the bytes were sealed for exactly this place. Memory is bounded by [`EXTENT_BYTES_MAX`] and
/// the length of `sealed`.
pub fn open_extent(
    opener: &ObjectOpener,
    place: &ExtentPlace,
    volume: VolumeId,
    lba: Lba,
    sealed: &[u8],
) -> Result<Vec<u8>, SegmentError> {
    place.check()?;
    let (object, number) = (opener.object(), place.number);
    if sealed.len() != place.sealed_len as usize {
        let expected = place.sealed_len as usize;
        return Err(SegmentError::SealedLength { object, number, found: sealed.len(), expected });
    }
    let plain = opener.open_extent(number, aad(place, volume, lba), sealed)?;
    let raw_len = place.raw_len as usize;
    let wrong =
        |found: String| SegmentError::Decompress { object, number, found, raw_len: place.raw_len, codec: place.codec };
    let raw = match place.codec {
        Codec::None => plain,
        Codec::Lz4 => {
            let mut raw = vec![0; raw_len];
            let len = lz4_flex::block::decompress_into(&plain, &mut raw).map_err(|e| wrong(e.to_string()))?;
            raw.truncate(len);
            raw
        }
        // Allocates at most the given length, whatever length the frame claims.
        Codec::Zstd => zstd::bulk::decompress(&plain, raw_len).map_err(|e| wrong(e.to_string()))?,
    };
    if raw.len() != raw_len {
        return Err(wrong(format!("{} bytes", raw.len())));
    }
    Ok(raw)
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
        wire::put(&mut out, u64::from(entry.place.sealed_len) - TAG_BYTES as u64);
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
        let least = if codec == Codec::None { raw_len } else { 1 };
        let sealed_len = reader.number("bytes before sealing", least, raw_len)? + TAG_BYTES as u64;
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

/// Compresses extents one after the other. Keeps its tables and output buffer between them.
struct Compressor {
    codec: Codec,
    room: Vec<u8>,
    lz4: lz4_flex::block::CompressTable,
    zstd: Option<zstd::bulk::Compressor<'static>>,
}

impl Compressor {
    fn new(codec: Codec) -> Self {
        // zstd may fail to allocate memory. Then extents stay uncompressed: that wastes space but is no fault (R8).
        let zstd = if codec == Codec::Zstd { zstd::bulk::Compressor::new(ZSTD_LEVEL).ok() } else { None };
        let room = match codec {
            Codec::None => Vec::new(),
            Codec::Lz4 => vec![0; lz4_flex::block::get_maximum_output_size(EXTENT_BYTES_MAX)],
            Codec::Zstd => vec![0; EXTENT_BYTES_MAX],
        };
        Self { codec, room, lz4: lz4_flex::block::CompressTable::large(), zstd }
    }

    /// Compresses `raw`, or leaves it as it is where that saves less than an eighth: decompressing at every read would
    /// cost more. If the codec refuses (in practice: its output does not fit), the extent stays uncompressed.
    fn compress<'a>(&'a mut self, raw: &'a [u8]) -> (Codec, &'a [u8]) {
        let len = match self.codec {
            Codec::None => None,
            Codec::Lz4 => lz4_flex::block::compress_into_with_table(raw, &mut self.room, &mut self.lz4).ok(),
            Codec::Zstd => {
                let room = &mut self.room[..raw.len()];
                self.zstd.as_mut().and_then(|zstd| zstd.compress_to_buffer(raw, room).ok())
            }
        };
        match len {
            Some(len) if len > 0 && len <= raw.len() - raw.len() / 8 => (self.codec, &self.room[..len]),
            _ => (Codec::None, raw),
        }
    }
}

#[cfg(test)]
mod tests;
