//! Bytes on disk: file header, batch header, record. All numbers little-endian.
//!
//! ```text
//! file header, 4 KiB     0 magic "HFJRNL01" | 8 version u32 | 12 crc u32 | 16 file uuid u128 | 32 disk uuid u128
//!                       48 file number u64 | 56 boot u64 | 64 file bytes u64
//!                       72 fingerprint of the node key that payloads are sealed under u64, 0 = not sealed | zeroes
//! batch header, 64 B     0 magic "HFB1" | 4 crc u32 | 8 own offset u64 | 16 length u64 (whole blocks) | 24 records u32
//!                       28 flags u32 (1 = idle marker) | 32 synced u64 | 40 synced in the file before u64 | 48 used u64 | 56 zero
//! record, 8-byte grid    0 crc u32 | 4 kind u8 | 5 flags u8 (1 = carried forward) | 6 chunks u16 | 8 group u64 | 16 term u64
//!                       24 index u64 | 32 payload bytes u32 | 36 of these, bytes at the end that came sealed u32
//!                       40 own offset u64 | 48 per chunk of 16 KiB a crc u32 and a tag of 16 bytes (zeroes where not
//!                       sealed) | payload | zeroes up to the grid
//! ```
//!
//! Each CRC32C is seeded by the file's uuid: old contents of a recycled file never pass as new ones, and a client that
//! chooses its payload cannot forge a record. Own offsets detect misdirected writes. A chunk's CRC is also seeded by
//! the record's offset and the chunk's number, so chunks of two records cannot be exchanged. Because of chunks, a small
//! read of a large entry need not read and check all of it.
//!
//! A sealed file's payloads are encrypted chunk by chunk under the file's key. Nonce: the record's offset and the
//! chunk's number. Bound data: bytes 4 to 48 of the record's head. The CRCs cover the bytes on disk, so damage differs
//! from a wrong key, and is detected without a key. Heads are not encrypted: groups, indexes and lengths are readable.
//! What came sealed is not encrypted again (ADR 0057): in each chunk only the bytes before it are encrypted, perhaps
//! none. The chunk's tag still covers the head, so nobody can change where that part begins. Anybody can read where it
//! begins, and what its form shows: the lengths of an entry's writes.
//! JOURNAL-J1 rests on the `synced` offsets: everything below was synced before this batch was written.

use crate::{AlignedBuf, BLOCK_BYTES};
use holdfast_seal::{FileKey, KeyFingerprint, TAG_BYTES};
use holdfast_types::{GroupId, LogId};

pub(crate) const FILE_MAGIC: &[u8; 8] = b"HFJRNL01";
/// Version 1 had no tags, and was never sealed. Version 2 sealed all of each payload.
pub(crate) const FORMAT_VERSION: u32 = 3;
/// The header takes one block.
pub(crate) const FILE_HEADER_BYTES: u64 = BLOCK_BYTES as u64;
const BATCH_MAGIC: &[u8; 4] = b"HFB1";
pub(crate) const BATCH_HEADER_BYTES: usize = 64;
const BATCH_IDLE: u32 = 1;
/// Without the table of chunk checksums.
pub(crate) const RECORD_HEADER_BYTES: usize = 48;
const RECORD_GRID: usize = 8;
const RECORD_CARRIED: u8 = 1;
/// Payload bytes under one checksum.
pub(crate) const CHUNK_BYTES: usize = 16 << 10;
/// A chunk's entry in the table before the payload: checksum and tag.
const CHUNK_ENTRY_BYTES: usize = 4 + TAG_BYTES;
/// Largest payload of one record in bytes: far above the limit of an entry, and small enough that a batch fits into a
/// file.
pub const PAYLOAD_BYTES_MAX: usize = 4 << 20;
const _: () = assert!(PAYLOAD_BYTES_MAX / CHUNK_BYTES <= u16::MAX as usize);
const _: () = assert!(holdfast_types::limits::ENTRY_BYTES_MAX <= PAYLOAD_BYTES_MAX);
const _: () = assert!(BATCH_HEADER_BYTES.is_multiple_of(RECORD_GRID) && BLOCK_BYTES.is_multiple_of(RECORD_GRID));

fn chunks(len: usize) -> usize {
    len.div_ceil(CHUNK_BYTES)
}

/// Header and checksum table in front of a payload of `len` bytes.
pub(crate) fn record_head_bytes(len: usize) -> usize {
    RECORD_HEADER_BYTES + CHUNK_ENTRY_BYTES * chunks(len)
}

/// Bytes on disk of a record with a payload of `len` bytes.
pub fn record_bytes(len: usize) -> usize {
    (record_head_bytes(len) + len).next_multiple_of(RECORD_GRID)
}

/// Bytes of a batch with `records` bytes of records.
pub(crate) fn batch_bytes(records: usize) -> usize {
    (BATCH_HEADER_BYTES + records).next_multiple_of(BLOCK_BYTES)
}

fn u16_at(bytes: &[u8], at: usize) -> u16 {
    bytes.get(at..at + 2).and_then(|b| b.try_into().ok()).map_or(0, u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn u128_at(bytes: &[u8], at: usize) -> u128 {
    bytes.get(at..at + 16).and_then(|b| b.try_into().ok()).map_or(0, u128::from_le_bytes)
}

/// Header of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileHeader {
    /// Random, drawn when the file is begun, also in recycled space: seeds every checksum.
    pub file_uuid: u128,
    /// The node's disk identity; 0 where the opener did not say.
    pub disk_uuid: u128,
    /// Number of the file, from 1, without gaps.
    pub number: u64,
    /// Boot counter of the process that wrote the file.
    pub boot: u64,
    /// Size of the file in bytes.
    pub bytes: u64,
    /// The node key that its payloads are sealed under; `None` if they are not.
    pub key: Option<KeyFingerprint>,
}

/// A file header could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// Not a journal file, or its first bytes are damaged.
    #[error("magic: found {found:02x?}, expected {:02x?}", FILE_MAGIC)]
    Magic {
        /// First eight bytes.
        found: [u8; 8],
    },
    /// Written by another version.
    #[error("format version: found {found}, expected {}", FORMAT_VERSION)]
    Version {
        /// Version found.
        found: u32,
    },
    /// The checksum does not match.
    #[error("header crc: found {found:#010x}, expected {expected:#010x}")]
    Crc {
        /// Stored checksum.
        found: u32,
        /// Checksum of the bytes found.
        expected: u32,
    },
}

impl FileHeader {
    pub(crate) fn encode(&self) -> AlignedBuf {
        let mut buf = AlignedBuf::zeroed(BLOCK_BYTES);
        buf[0..8].copy_from_slice(FILE_MAGIC);
        buf[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        buf[16..32].copy_from_slice(&self.file_uuid.to_le_bytes());
        buf[32..48].copy_from_slice(&self.disk_uuid.to_le_bytes());
        buf[48..56].copy_from_slice(&self.number.to_le_bytes());
        buf[56..64].copy_from_slice(&self.boot.to_le_bytes());
        buf[64..72].copy_from_slice(&self.bytes.to_le_bytes());
        buf[72..80].copy_from_slice(&self.key.map_or(0, |key| key.0).to_le_bytes());
        let crc = Self::crc(&buf);
        buf[12..16].copy_from_slice(&crc.to_le_bytes());
        buf
    }

    fn crc(block: &[u8]) -> u32 {
        crc32c::crc32c_append(crc32c::crc32c(&block[..12]), &block[16..])
    }

    /// Reads the first block of a file.
    ///
    /// # Errors
    /// When the block is no output of `FileHeader::encode`. Shorter input counts as damaged.
    pub fn decode(block: &[u8]) -> Result<FileHeader, HeaderError> {
        if block.len() < BLOCK_BYTES || block[..8] != FILE_MAGIC[..] {
            let mut found = [0; 8];
            found.iter_mut().zip(block).for_each(|(to, from)| *to = *from);
            return Err(HeaderError::Magic { found });
        }
        let (found, expected) = (u32_at(block, 12), Self::crc(&block[..BLOCK_BYTES]));
        let version = u32_at(block, 8);
        if version != FORMAT_VERSION {
            return Err(HeaderError::Version { found: version });
        }
        if found != expected {
            return Err(HeaderError::Crc { found, expected });
        }
        Ok(FileHeader {
            file_uuid: u128_at(block, 16),
            disk_uuid: u128_at(block, 32),
            number: u64_at(block, 48),
            boot: u64_at(block, 56),
            bytes: u64_at(block, 64),
            key: Some(u64_at(block, 72)).filter(|print| *print != 0).map(KeyFingerprint),
        })
    }

    pub(crate) fn seed(&self) -> Seed {
        Seed(crc32c::crc32c(&self.file_uuid.to_le_bytes()))
    }
}

/// Initial checksum state of every CRC of one file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Seed(u32);

impl Seed {
    fn header(self, bytes: &[u8]) -> u32 {
        crc32c::crc32c_append(self.0, bytes)
    }

    pub(crate) fn chunk(self, record_offset: u64, number: usize, bytes: &[u8]) -> u32 {
        let mut place = [0; 12];
        place[..8].copy_from_slice(&record_offset.to_le_bytes());
        place[8..].copy_from_slice(&(number as u32).to_le_bytes());
        crc32c::crc32c_append(crc32c::crc32c_append(self.0, &place), bytes)
    }
}

/// Header of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct BatchHeader {
    pub offset: u64,
    /// Whole blocks.
    pub bytes: u64,
    pub records: u32,
    pub idle: bool,
    /// Everything below this offset of the file was synced before the batch was written.
    pub synced: u64,
    /// Like `synced`, of the file before; 0 where there is none.
    pub synced_before: u64,
    /// Header and records, without the padding.
    pub used: u64,
}

impl BatchHeader {
    pub(crate) fn encode_into(&self, seed: Seed, head: &mut [u8]) {
        head[..BATCH_HEADER_BYTES].fill(0);
        head[0..4].copy_from_slice(BATCH_MAGIC);
        head[8..16].copy_from_slice(&self.offset.to_le_bytes());
        head[16..24].copy_from_slice(&self.bytes.to_le_bytes());
        head[24..28].copy_from_slice(&self.records.to_le_bytes());
        head[28..32].copy_from_slice(&(if self.idle { BATCH_IDLE } else { 0 }).to_le_bytes());
        head[32..40].copy_from_slice(&self.synced.to_le_bytes());
        head[40..48].copy_from_slice(&self.synced_before.to_le_bytes());
        head[48..56].copy_from_slice(&self.used.to_le_bytes());
        let crc = seed.header(&head[8..BATCH_HEADER_BYTES]);
        head[4..8].copy_from_slice(&crc.to_le_bytes());
    }

    /// `None` if no batch begins at `offset`. A decoded header is consistent: the batch fits into `file_bytes`.
    pub(crate) fn decode(seed: Seed, head: &[u8], offset: u64, file_bytes: u64) -> Option<BatchHeader> {
        let head = head.get(..BATCH_HEADER_BYTES)?;
        if head[..4] != BATCH_MAGIC[..] || u32_at(head, 4) != seed.header(&head[8..]) || u64_at(head, 8) != offset {
            return None;
        }
        let header = BatchHeader {
            offset,
            bytes: u64_at(head, 16),
            records: u32_at(head, 24),
            idle: u32_at(head, 28) & BATCH_IDLE != 0,
            synced: u64_at(head, 32),
            synced_before: u64_at(head, 40),
            used: u64_at(head, 48),
        };
        let fits = header.bytes > 0
            && header.bytes.is_multiple_of(BLOCK_BYTES as u64)
            && offset.checked_add(header.bytes).is_some_and(|end| end <= file_bytes)
            && (BATCH_HEADER_BYTES as u64..=header.bytes).contains(&header.used)
            && header.synced <= offset;
        fits.then_some(header)
    }
}

/// Kind of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Kind {
    Entry = 1,
    Vote = 2,
    Truncate = 3,
    Purge = 4,
    Committed = 5,
    DropGroup = 6,
}

impl Kind {
    fn from_byte(byte: u8) -> Option<Kind> {
        [Kind::Entry, Kind::Vote, Kind::Truncate, Kind::Purge, Kind::Committed, Kind::DropGroup]
            .into_iter()
            .find(|kind| *kind as u8 == byte)
    }
}

/// Header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordHeader {
    pub kind: Kind,
    pub carried: bool,
    pub group: GroupId,
    pub id: LogId,
    pub len: u32,
    /// Bytes at the end of the payload that came sealed.
    pub given: u32,
    /// Offset of the record in its file.
    pub offset: u64,
}

impl RecordHeader {
    /// Appends the whole record to `buf`, whose first byte is at `base` in the file; `self.offset` MUST match. With a
    /// key the payload is sealed: the caller MUST NOT write two records at one offset of a file.
    pub(crate) fn append(&self, seed: Seed, key: Option<&FileKey>, payload: &[u8], buf: &mut AlignedBuf) {
        let at = buf.len();
        let head_bytes = record_head_bytes(payload.len());
        buf.resize(at + head_bytes);
        buf.extend_from_slice(payload);
        let (head, stored) = buf[at..].split_at_mut(head_bytes);
        head[4] = self.kind as u8;
        head[5] = if self.carried { RECORD_CARRIED } else { 0 };
        head[6..8].copy_from_slice(&(chunks(payload.len()) as u16).to_le_bytes());
        head[8..16].copy_from_slice(&self.group.0.to_le_bytes());
        head[16..24].copy_from_slice(&self.id.term.0.to_le_bytes());
        head[24..32].copy_from_slice(&self.id.index.0.to_le_bytes());
        head[32..36].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        head[36..40].copy_from_slice(&self.given.to_le_bytes());
        head[40..48].copy_from_slice(&self.offset.to_le_bytes());
        let (fixed, table) = head.split_at_mut(RECORD_HEADER_BYTES);
        let entries = table.chunks_exact_mut(CHUNK_ENTRY_BYTES);
        for (number, (chunk, entry)) in stored.chunks_mut(CHUNK_BYTES).zip(entries).enumerate() {
            if let Some(key) = key {
                let own = self.own_bytes(number, chunk.len());
                let tag = key.seal(self.offset, number as u32, &fixed[4..], &mut chunk[..own]);
                entry[4..].copy_from_slice(&tag);
            }
            entry[..4].copy_from_slice(&seed.chunk(self.offset, number, chunk).to_le_bytes());
        }
        let crc = seed.header(&head[4..head_bytes]);
        head[..4].copy_from_slice(&crc.to_le_bytes());
        buf.pad_to(RECORD_GRID);
    }

    /// How many of the first bytes of a chunk the journal seals itself.
    fn own_bytes(&self, number: usize, chunk: usize) -> usize {
        let own = self.len.saturating_sub(self.given) as usize;
        own.saturating_sub(number * CHUNK_BYTES).min(chunk)
    }

    /// Reads header and checksum table from the first bytes of a record at `offset`. Errors are (found, expected).
    pub(crate) fn decode(seed: Seed, bytes: &[u8], offset: u64) -> Result<RecordHeader, (String, String)> {
        let table = usize::from(u16_at(bytes, 6));
        let head_bytes = RECORD_HEADER_BYTES + CHUNK_ENTRY_BYTES * table;
        let Some(head) = bytes.get(..head_bytes) else {
            return Err((format!("a record header of {head_bytes} bytes"), format!("room for {}", bytes.len())));
        };
        let (found, expected) = (u32_at(head, 0), seed.header(&head[4..]));
        if found != expected {
            return Err((format!("header crc {found:#010x}"), format!("{expected:#010x}")));
        }
        let (len, given) = (u32_at(head, 32), u32_at(head, 36));
        let place = u64_at(head, 40);
        if place != offset {
            return Err((format!("a record of byte {place}"), format!("one of byte {offset}")));
        }
        // Entries and purges are counted on from. The largest number has none behind it, and no log gets that long.
        let index = u64_at(head, 24);
        if index == u64::MAX {
            return Err((format!("log index {index}"), "one with another behind it".to_string()));
        }
        let Some(kind) = Kind::from_byte(head[4]) else {
            return Err((format!("record kind {}", head[4]), "1 to 6".to_string()));
        };
        if chunks(len as usize) != table {
            return Err((format!("{table} checksums"), format!("{} for {len} bytes", chunks(len as usize))));
        }
        if given > len {
            return Err((format!("{given} bytes that came sealed"), format!("at most the payload's {len}")));
        }
        Ok(RecordHeader {
            kind,
            carried: head[5] & RECORD_CARRIED != 0,
            group: GroupId(u64_at(head, 8)),
            id: LogId::new(u64_at(head, 16), index),
            len,
            given,
            offset,
        })
    }

    /// Checks one chunk of payload, as on disk, against the table in `head`.
    pub(crate) fn check_chunk(
        &self,
        seed: Seed,
        head: &[u8],
        number: usize,
        chunk: &[u8],
    ) -> Result<(), (String, String)> {
        let (found, expected) =
            (seed.chunk(self.offset, number, chunk), u32_at(head, RECORD_HEADER_BYTES + CHUNK_ENTRY_BYTES * number));
        if found == expected {
            return Ok(());
        }
        Err((format!("crc {found:#010x} of payload chunk {number}"), format!("{expected:#010x}")))
    }

    /// Opens chunks of payload in place, beginning with chunk number `first`. Does nothing without a key.
    pub(crate) fn open_chunks(
        &self,
        key: Option<&FileKey>,
        head: &[u8],
        first: usize,
        payload: &mut [u8],
    ) -> Result<(), (String, String)> {
        let Some(key) = key else { return Ok(()) };
        for (number, chunk) in (first..).zip(payload.chunks_mut(CHUNK_BYTES)) {
            let at = RECORD_HEADER_BYTES + CHUNK_ENTRY_BYTES * number + 4;
            let tag = head.get(at..at + TAG_BYTES).and_then(|tag| tag.try_into().ok());
            let own = self.own_bytes(number, chunk.len());
            let opened = tag.is_some_and(|tag| {
                key.open(self.offset, number as u32, &head[4..RECORD_HEADER_BYTES], &mut chunk[..own], tag).is_ok()
            });
            if !opened {
                let found = format!("payload chunk {number} of {} bytes, whole but not authentic", chunk.len());
                return Err((found, "one that was sealed here".to_string()));
            }
        }
        Ok(())
    }
}

#[cfg(test)]
#[path = "format_tests.rs"]
mod tests;
