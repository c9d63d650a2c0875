//! Reads entries: place from the index, file pinned, header and checksums checked (R9, JOURNAL-J7).

use crate::catalog::{Catalog, JournalFile};
use crate::format::{CHUNK_BYTES, Kind, RecordHeader, record_bytes, record_head_bytes};
use crate::index::{IndexEntry, Place, SharedIndex};
use crate::pool::{POOL, ReadBuf};
use crate::{BLOCK_BYTES, CorruptRecord, ReadError};
use bytes::Bytes;
use holdfast_types::sync::LockExt;
use holdfast_types::{GroupId, LogId, LogIndex};
use std::ops::Range;
use std::sync::Arc;

/// Records and gaps up to this size are read in one go: cheaper than a second read.
const ONE_READ_BYTES_MAX: usize = 64 << 10;

/// Neighbours read together, in bytes.
const RUN_BYTES_MAX: usize = 4 << 20;

/// The whole entry at `index`.
///
/// # Errors
/// [`ReadError::Missing`] if the index has none, [`ReadError::Corrupt`] for bytes that differ from what was written.
pub fn read_entry(
    catalog: &Catalog,
    group: GroupId,
    index: &SharedIndex,
    at: u64,
) -> Result<(LogId, Bytes), ReadError> {
    let (file, entry) = locate(catalog, index, at)?;
    let id = LogId { term: entry.term, index: LogIndex(at) };
    let payload = read_record(&file, entry.place, Kind::Entry, group, id, entry.len)?;
    Ok((id, payload))
}

/// `len` bytes at `offset` of the entry at `index`. Reads and checks only the chunks with these bytes.
///
/// # Errors
/// As [`read_entry`], and [`ReadError::OutOfBounds`].
pub fn read_part(
    catalog: &Catalog,
    group: GroupId,
    index: &SharedIndex,
    at: u64,
    offset: u32,
    len: usize,
) -> Result<Bytes, ReadError> {
    let (file, entry) = locate(catalog, index, at)?;
    let id = LogId { term: entry.term, index: LogIndex(at) };
    let start = offset as usize;
    if start.checked_add(len).is_none_or(|end| end > entry.len as usize) {
        return Err(ReadError::OutOfBounds { index: at, offset, wanted: len, len: entry.len as usize });
    }
    read_range(&file, entry.place, Kind::Entry, group, id, entry.len, start..start + len)
}

/// Place and pinned file. The file can be gone if the record was carried forward meanwhile: then look it up again.
fn locate(catalog: &Catalog, index: &SharedIndex, at: u64) -> Result<(Arc<JournalFile>, IndexEntry), ReadError> {
    let mut last = None;
    loop {
        let (entry, next) = {
            let index = index.locked();
            (index.entry(at), index.next())
        };
        let Some(entry) = entry else { return Err(ReadError::Missing { index: at, next }) };
        if let Some(file) = catalog.file(entry.place.file) {
            return Ok((file, entry));
        }
        if last == Some(entry.place) {
            return Err(ReadError::Corrupt(CorruptRecord {
                file: crate::catalog::file_name(entry.place.file),
                offset: u64::from(entry.place.offset),
                expected: "the file".to_string(),
                found: "none".to_string(),
            }));
        }
        last = Some(entry.place);
    }
}

/// The whole payload of a record.
pub(crate) fn read_record(
    file: &JournalFile,
    place: Place,
    kind: Kind,
    group: GroupId,
    id: LogId,
    len: u32,
) -> Result<Bytes, ReadError> {
    read_range(file, place, kind, group, id, len, 0..len as usize)
}

/// Bytes of a file, from a block-aligned read around them.
struct Span {
    buf: ReadBuf,
    skip: usize,
    len: usize,
}

impl Span {
    fn read(file: &JournalFile, start: u64, len: usize) -> Result<Span, ReadError> {
        let block = BLOCK_BYTES as u64;
        let from = start / block * block;
        let to = (start + len as u64).next_multiple_of(block);
        let mut buf = POOL.take((to - from) as usize);
        file.file.read_at(&mut buf, from)?;
        Ok(Span { buf, skip: (start - from) as usize, len })
    }

    fn bytes(&self) -> &[u8] {
        &self.buf[self.skip..self.skip + self.len]
    }

    fn bytes_mut(&mut self) -> &mut [u8] {
        &mut self.buf[self.skip..self.skip + self.len]
    }

    /// Some of its bytes: in the buffer that they were read into, or in memory of their own if they are less than three
    /// quarters of it. A reader is charged by their length, and must not keep much more.
    fn cut(self, range: Range<usize>) -> Bytes {
        let range = self.skip + range.start..self.skip + range.end;
        if range.len() < self.buf.capacity() / 4 * 3 {
            return Bytes::copy_from_slice(&self.buf[range]);
        }
        Bytes::from_owner(self.buf).slice(range)
    }
}

fn corrupt(file: &JournalFile, place: Place, found: String, expected: String) -> ReadError {
    holdfast_reached::reached!("journal: a record does not read back");
    let (file, offset) = (file.name.clone(), u64::from(place.offset));
    ReadError::Corrupt(CorruptRecord { file, offset, expected, found })
}

/// The record's header, if valid and of the requested record (JOURNAL-J7).
fn check_head(
    file: &JournalFile,
    place: Place,
    head: &[u8],
    kind: Kind,
    group: GroupId,
    id: LogId,
    len: usize,
) -> Result<RecordHeader, ReadError> {
    let header = RecordHeader::decode(file.seed, head, u64::from(place.offset))
        .map_err(|(found, expected)| corrupt(file, place, found, expected))?;
    if (header.kind, header.group, header.id, header.len as usize) == (kind, group, id, len) {
        return Ok(header);
    }
    let found = format!("{:?} of {} {} with {} bytes", header.kind, header.group, header.id, header.len);
    Err(corrupt(file, place, found, format!("{kind:?} of {group} {id} with {len} bytes")))
}

/// Entries from the start of `range` on, in order, until `range` ends, an entry is missing in the index, or `max_bytes`
/// of payload are exceeded. The first is returned whatever its size. Neighbours on disk are read together.
///
/// # Errors
/// As [`read_entry`]; a missing entry is no error.
pub fn read_entries(
    catalog: &Catalog,
    group: GroupId,
    index: &SharedIndex,
    range: Range<u64>,
    max_bytes: usize,
) -> Result<Vec<(LogId, Bytes)>, ReadError> {
    let (mut entries, mut bytes, mut at) = (Vec::new(), 0, range.start);
    while at < range.end {
        let (file, entry) = match locate(catalog, index, at) {
            Err(ReadError::Missing { .. }) => break,
            located => located?,
        };
        if !entries.is_empty() && bytes + entry.len as usize > max_bytes {
            break;
        }
        let run = Run::of(index, file.number, &entry, at..range.end, (!entries.is_empty()).then_some(bytes), max_bytes);
        // Carried forward or gone since: the index knows.
        let Some((last, _)) = run.entries.last() else { continue };
        at = last + 1;
        bytes += run.entries.iter().map(|(_, entry)| entry.len as usize).sum::<usize>();
        run.read(&file, group, &mut entries)?;
    }
    Ok(entries)
}

/// Neighbours in one file, which are read together.
struct Run {
    entries: Vec<(u64, IndexEntry)>,
    /// Where the last record ends.
    end: u64,
}

impl Run {
    /// The run from `range.start` on, as far as the index says the same as a moment ago: `entry`, in file `number`.
    /// `bytes`: payload that is taken already; `None` where nothing is, and the first entry is taken whatever its size.
    fn of(
        index: &SharedIndex,
        number: u64,
        entry: &IndexEntry,
        range: Range<u64>,
        bytes: Option<usize>,
        max_bytes: usize,
    ) -> Run {
        let mut run = Run { entries: Vec::new(), end: u64::from(entry.place.offset) };
        let mut taken = bytes.unwrap_or(0);
        let index = index.locked();
        for next in range {
            let Some(entry) = index.entry(next).filter(|entry| entry.place.file == number) else { break };
            let offset = u64::from(entry.place.offset);
            let first = bytes.is_none() && run.entries.is_empty();
            let near = offset >= run.end && offset - run.end <= ONE_READ_BYTES_MAX as u64;
            let after = offset + record_bytes(entry.len as usize) as u64;
            let short = after.saturating_sub(run.start().unwrap_or(offset)) <= RUN_BYTES_MAX as u64;
            if (!first && taken + entry.len as usize > max_bytes) || !near || (!run.entries.is_empty() && !short) {
                break;
            }
            taken += entry.len as usize;
            run.end = after;
            run.entries.push((next, entry));
        }
        run
    }

    /// Where the first record begins.
    fn start(&self) -> Option<u64> {
        self.entries.first().map(|(_, entry)| u64::from(entry.place.offset))
    }

    /// Reads the run in one go, and checks each entry of it.
    fn read(&self, file: &JournalFile, group: GroupId, entries: &mut Vec<(LogId, Bytes)>) -> Result<(), ReadError> {
        let (Some((_, first)), Some(start)) = (self.entries.first(), self.start()) else { return Ok(()) };
        if self.end > file.bytes {
            let (found, expected) = (format!("a file of {} bytes", file.bytes), format!("records up to {}", self.end));
            return Err(corrupt(file, first.place, found, expected));
        }
        let span = Span::read(file, start, (self.end - start) as usize)?;
        for (index, entry) in &self.entries {
            let corrupt = |(found, expected)| corrupt(file, entry.place, found, expected);
            let id = LogId { term: entry.term, index: LogIndex(*index) };
            let len = entry.len as usize;
            let record = &span.bytes()[(u64::from(entry.place.offset) - start) as usize..];
            let (head, rest) = record.split_at(record_head_bytes(len));
            let header = check_head(file, entry.place, head, Kind::Entry, group, id, len)?;
            for (number, chunk) in rest[..len].chunks(CHUNK_BYTES).enumerate() {
                header.check_chunk(file.seed, head, number, chunk).map_err(corrupt)?;
            }
            let mut payload = rest[..len].to_vec();
            header.open_chunks(file.key.as_ref(), head, 0, &mut payload).map_err(corrupt)?;
            entries.push((id, Bytes::from(payload)));
        }
        Ok(())
    }
}

fn read_range(
    file: &JournalFile,
    place: Place,
    kind: Kind,
    group: GroupId,
    id: LogId,
    len: u32,
    range: Range<usize>,
) -> Result<Bytes, ReadError> {
    let corrupt = |found, expected| corrupt(file, place, found, expected);
    let len = len as usize;
    let start = u64::from(place.offset);
    let head_bytes = record_head_bytes(len);
    let total = record_bytes(len);
    if start + total as u64 > file.bytes {
        return Err(corrupt(format!("a file of {} bytes", file.bytes), format!("a record of {total} bytes")));
    }
    // The whole chunks around the requested range.
    let chunks = range.start / CHUNK_BYTES..range.end.div_ceil(CHUNK_BYTES);
    let data = chunks.start * CHUNK_BYTES..(chunks.end * CHUNK_BYTES).min(len);
    let one_read = total <= ONE_READ_BYTES_MAX || data.start <= ONE_READ_BYTES_MAX;
    let mut head_span = Span::read(file, start, if one_read { head_bytes + data.end } else { head_bytes })?;
    let mut far_span =
        if one_read { None } else { Some(Span::read(file, start + (head_bytes + data.start) as u64, data.len())?) };
    let (head, near) = head_span.bytes_mut().split_at_mut(head_bytes);
    let payload = match &mut far_span {
        Some(span) => span.bytes_mut(),
        None => &mut near[data.clone()],
    };
    let header = check_head(file, place, head, kind, group, id, len)?;
    for (number, chunk) in chunks.clone().zip(payload.chunks(CHUNK_BYTES)) {
        header.check_chunk(file.seed, head, number, chunk).map_err(|(found, expected)| corrupt(found, expected))?;
    }
    header
        .open_chunks(file.key.as_ref(), head, chunks.start, payload)
        .map_err(|(found, expected)| corrupt(found, expected))?;
    match far_span {
        Some(span) => Ok(span.cut(range.start - data.start..range.end - data.start)),
        None => Ok(head_span.cut(head_bytes + range.start..head_bytes + range.end)),
    }
}

#[cfg(test)]
#[path = "read_tests.rs"]
mod tests;
