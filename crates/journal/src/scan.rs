//! Reads one file from front to back: its batches, their records, and bad bytes.
//!
//! It does not interpret bad bytes; that needs the file after it (see `replay`).

use crate::catalog::JournalFile;
use crate::format::{
    BATCH_HEADER_BYTES, BatchHeader, CHUNK_BYTES, FILE_HEADER_BYTES, Kind, RecordHeader, record_head_bytes,
};
use crate::{AlignedBuf, BLOCK_BYTES};
use bytes::Bytes;
use std::io;

/// Read at a time, in bytes; a larger batch is read whole.
const WINDOW_BYTES: usize = 4 << 20;

/// Bytes that differ from what was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Bad {
    pub offset: u64,
    pub found: String,
    pub expected: String,
    /// The checksums match, but the content was not sealed here: no torn write leaves that.
    pub whole: bool,
}

/// A record whose header is good.
#[derive(Clone, Debug)]
pub(crate) struct Scanned {
    pub header: RecordHeader,
    /// Of a vote only.
    pub payload: Bytes,
    /// The payload differs from what was written.
    pub bad: Option<Bad>,
}

/// A batch whose header is good.
#[derive(Clone, Debug)]
pub(crate) struct ScannedBatch {
    pub header: BatchHeader,
    pub records: Vec<Scanned>,
    /// Set if a record header is bad: the rest of the batch is lost, of whatever groups.
    pub lost: Option<Bad>,
}

impl ScannedBatch {
    /// The first fault in it that a torn write can leave.
    pub fn first_torn(&self) -> Option<&Bad> {
        let bad = self.records.iter().filter_map(|record| record.bad.as_ref());
        bad.chain(self.lost.as_ref()).find(|bad| !bad.whole)
    }
}

/// Parts of a file, in order.
#[derive(Clone, Debug)]
pub(crate) enum Piece {
    Batch(ScannedBatch),
    /// No batch begins in here; `to` is the begin of the next one, or the end of the file.
    Gap {
        from: u64,
        to: u64,
        last: bool,
    },
}

/// One file, scanned.
#[derive(Debug)]
pub(crate) struct ScannedFile {
    pub pieces: Vec<Piece>,
    /// Its synced offset, according to its own batches.
    pub synced: u64,
    /// Synced offset of the file before, according to its batches.
    pub synced_before: Option<u64>,
    /// Blocks that the disk could not read; they count as zeroes.
    pub unreadable: Vec<u64>,
}

impl ScannedFile {
    /// Whether it contains any batch, idle markers included.
    pub fn has_batches(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Batch(_)))
    }
}

/// A read-ahead view of a file.
struct Window<'a> {
    file: &'a JournalFile,
    buf: AlignedBuf,
    start: u64,
    unreadable: Vec<u64>,
}

impl Window<'_> {
    /// Bytes of the file; `offset` is on a block boundary and the range is inside the file.
    fn get(&mut self, offset: u64, len: usize) -> Result<&[u8], io::Error> {
        let held = self.start..self.start + self.buf.len() as u64;
        if !(held.contains(&offset) && offset + len as u64 <= held.end) {
            let ahead = (self.file.bytes - offset).min(WINDOW_BYTES as u64) as usize;
            self.fill(offset, len.next_multiple_of(BLOCK_BYTES).max(ahead))?;
        }
        let at = (offset - self.start) as usize;
        Ok(&self.buf[at..at + len])
    }

    fn fill(&mut self, offset: u64, len: usize) -> Result<(), io::Error> {
        self.start = offset;
        self.buf.clear();
        self.buf.resize(len);
        if self.file.file.read_at(&mut self.buf, offset).is_ok() {
            return Ok(());
        }
        // An unreadable block must not hide its neighbours.
        let mut error = None;
        let blocks = len / BLOCK_BYTES;
        let mut failed = 0;
        for (number, block) in self.buf.chunks_mut(BLOCK_BYTES).enumerate() {
            let at = offset + (number * BLOCK_BYTES) as u64;
            if let Err(why) = self.file.file.read_at(block, at) {
                block.fill(0);
                holdfast_reached::reached!("recovery: a block cannot be read");
                self.unreadable.push(at);
                failed += 1;
                error = Some(why);
            }
        }
        match error {
            // All blocks failed: no bad block, but a disk that does not answer.
            Some(error) if failed == blocks && blocks > 1 => Err(error),
            _ => Ok(()),
        }
    }
}

/// Scans `file`, whose header was read before.
///
/// # Errors
/// When the disk does not answer. Single unreadable blocks count as bad bytes.
pub(crate) fn scan_file(file: &JournalFile) -> Result<ScannedFile, io::Error> {
    let mut window = Window { file, buf: AlignedBuf::default(), start: 0, unreadable: Vec::new() };
    let mut scanned =
        ScannedFile { pieces: Vec::new(), synced: FILE_HEADER_BYTES, synced_before: None, unreadable: Vec::new() };
    let mut at = FILE_HEADER_BYTES;
    let mut gap = None;
    while at < file.bytes {
        let head = window.get(at, BLOCK_BYTES.min((file.bytes - at) as usize))?;
        let Some(header) = BatchHeader::decode(file.seed, head, at, file.bytes) else {
            gap.get_or_insert(at);
            at += BLOCK_BYTES as u64;
            continue;
        };
        if let Some(from) = gap.take() {
            scanned.pieces.push(Piece::Gap { from, to: at, last: false });
        }
        let batch = scan_batch(file, header, window.get(at, header.bytes as usize)?);
        scanned.synced = scanned.synced.max(header.synced);
        scanned.synced_before = scanned.synced_before.max(Some(header.synced_before));
        at += header.bytes;
        scanned.pieces.push(Piece::Batch(batch));
    }
    let from = gap.unwrap_or(at);
    scanned.pieces.push(Piece::Gap { from, to: file.bytes, last: true });
    scanned.unreadable = window.unreadable;
    Ok(scanned)
}

fn scan_batch(file: &JournalFile, header: BatchHeader, bytes: &[u8]) -> ScannedBatch {
    let mut batch = ScannedBatch { header, records: Vec::new(), lost: None };
    let used = &bytes[..header.used as usize];
    let mut at = BATCH_HEADER_BYTES;
    for _ in 0..header.records {
        let offset = header.offset + at as u64;
        let record = match RecordHeader::decode(file.seed, &used[at.min(used.len())..], offset) {
            Ok(record) => record,
            Err((found, expected)) => {
                batch.lost = Some(Bad { offset, found, expected, whole: false });
                break;
            }
        };
        let len = record.len as usize;
        let head_bytes = record_head_bytes(len);
        let Some(payload) = used.get(at + head_bytes..at + head_bytes + len) else {
            let found = format!("a record up to byte {}", offset + (head_bytes + len) as u64);
            let expected = format!("one up to byte {}", header.offset + header.used);
            batch.lost = Some(Bad { offset, found, expected, whole: false });
            break;
        };
        let head = &used[at..at + head_bytes];
        let bad = payload.chunks(CHUNK_BYTES).enumerate().find_map(|(number, chunk)| {
            let (found, expected) = record.check_chunk(file.seed, head, number, chunk).err()?;
            Some(Bad { offset, found, expected, whole: false })
        });
        let (payload, bad) = match (record.kind, bad) {
            (Kind::Vote, None) => {
                let mut vote = payload.to_vec();
                match record.open_chunks(file.key.as_ref(), head, 0, &mut vote) {
                    Ok(()) => (Bytes::from(vote), None),
                    Err((found, expected)) => (Bytes::new(), Some(Bad { offset, found, expected, whole: true })),
                }
            }
            (_, bad) => (Bytes::new(), bad),
        };
        batch.records.push(Scanned { header: record, payload, bad });
        at += crate::format::record_bytes(len);
    }
    batch
}
