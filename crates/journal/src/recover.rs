//! Opens a journal: scan, cut, begin a new file, rewrite the uncertain tail into it, sync. Only then is the journal
//! usable.
//!
//! Crash order. 1. Files without any batch are removed, so that failed boots leave nothing. 2. The new file is begun
//! (JOURNAL-J3). 3. One batch rewrites the uncertain records with their truncations, and is synced: a crash before that
//! leaves the old tail as it was, a crash after it no longer needs it. 4. Nothing is answered before.

use crate::catalog::{Catalog, JournalFile, file_name, file_number};
use crate::format::{FILE_HEADER_BYTES, FileHeader, HeaderError, Kind};
use crate::item::Item;
use crate::read::read_record;
use crate::replay::Replay;
use crate::scan::{ScannedFile, scan_file};
use crate::write::{Current, Journal, Params, Sealing, UuidSource, begin_file, notes};
use crate::{AlignedBuf, BLOCK_BYTES, CorruptRecord, Disk, DiskFile, ReadError, RecoverError, WriteError};
use bytes::Bytes;
use holdfast_seal::NodeKey;
use holdfast_types::sync::LockExt;
use holdfast_types::{GroupId, LogId, LogIndex, Term};
use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::sync::Arc;

pub use crate::replay::Cut;

/// Result of opening. Reading never repairs silently.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RecoveryReport {
    /// Files read.
    pub files: usize,
    /// Bytes read.
    pub bytes: u64,
    /// Records replayed.
    pub records: u64,
    /// Records rewritten into the new file, because they may not have been synced.
    pub rewritten: u64,
    /// Torn tails that were cut. They were never reported durable.
    pub cuts: Vec<Cut>,
    /// R9: synced bytes that are damaged.
    pub corrupt: Vec<CorruptRecord>,
    /// R9: groups that have lost, or may have lost, synced records. They need rebuilding from peers.
    pub damaged: BTreeMap<GroupId, CorruptRecord>,
    /// R9: the last loss of records of unknown groups (a file or a batch). It may include a group that the journal no
    /// longer knows.
    pub lost: Option<CorruptRecord>,
}

fn io_error(what: impl Into<String>) -> impl FnOnce(io::Error) -> RecoverError {
    let what = what.into();
    move |source| RecoverError::Io { what, source }
}

/// A journal file before its scan.
enum Found {
    Good(Arc<JournalFile>),
    Bad(CorruptRecord),
}

impl<D: Disk> Journal<D> {
    /// Opens the journal on `disk`, which may be empty. On return it is usable, and everything in it is durable.
    ///
    /// # Errors
    /// See [`RecoverError`]. Damaged records are no error: see [`RecoveryReport::damaged`].
    pub fn open(disk: D, params: Params, uuids: UuidSource) -> Result<(Journal<D>, RecoveryReport), RecoverError> {
        Self::open_sealed(disk, params, None, uuids)
    }

    /// Like `open`, with a node key that payloads are sealed under.
    ///
    /// # Errors
    /// See [`RecoverError`]; also if a file is sealed under another key.
    pub fn open_sealed(
        disk: D,
        params: Params,
        sealing: Option<Sealing>,
        mut uuids: UuidSource,
    ) -> Result<(Journal<D>, RecoveryReport), RecoverError> {
        check_file_bytes(&params)?;
        let numbers = file_numbers(&disk)?;
        let mut report = RecoveryReport { files: numbers.len(), ..RecoveryReport::default() };
        let mut replay = Replay::new(Arc::new(Catalog::default()));
        let mut lost_files = BTreeSet::new();
        let last = scan_all(&disk, &params, sealing.as_ref(), &numbers, &mut replay, &mut report, &mut lost_files)?;

        remove_unreached(&disk, &numbers, &last, &replay)?;
        report.damaged = replay.finish();
        report.lost = replay.lost();
        report.records = replay.records;
        report.cuts = std::mem::take(&mut replay.cuts);
        report.corrupt = std::mem::take(&mut replay.corrupt);

        let file = begin_file(&disk, &params, sealing.as_ref(), uuids(), last.number + 1)?;
        replay.catalog.add_file(file.clone());
        let current = Current { file, end: FILE_HEADER_BYTES, synced: FILE_HEADER_BYTES, synced_before: last.synced };
        let items = uncertain(&replay)?;
        report.rewritten = items.len() as u64;
        let mut journal = Journal {
            disk,
            params,
            sealing,
            uuids,
            catalog: replay.catalog,
            ledger: replay.ledger,
            current,
            next: None,
            buf: AlignedBuf::default(),
            flight: None,
            refused: false,
            failed: false,
            marked: true,
            untidy: false,
            damaged: report.damaged.keys().copied().collect(),
            lost_files,
            blocked: None,
        };
        if !items.is_empty() {
            journal.write_whole(&items)?;
        }
        match journal.tidy() {
            // The disk is full: there is a file to write to, and the owner tries again in its next turn.
            Ok(()) | Err(WriteError::NoRoom(_)) => Ok((journal, report)),
            Err(error) => Err(error.into()),
        }
    }
}

fn check_file_bytes(params: &Params) -> Result<(), RecoverError> {
    let (found, block) = (params.file_bytes, BLOCK_BYTES as u64);
    if found < 8 * block || found > 1 << 31 || !found.is_multiple_of(block) {
        let expected = format!("whole blocks of {block}, 8 blocks to 2 GiB");
        return Err(RecoverError::FileBytes { found, expected });
    }
    Ok(())
}

/// The numbers of the files on the disk, in order. Removes files that were never finished.
fn file_numbers<D: Disk>(disk: &D) -> Result<Vec<u64>, RecoverError> {
    let mut numbers = Vec::new();
    for name in disk.list().map_err(io_error("list"))? {
        match file_number(&name) {
            Some(number) => numbers.push(number),
            None if name.starts_with("begin-") => disk.remove(&name).map_err(io_error(format!("remove {name}")))?,
            None => {}
        }
    }
    numbers.sort_unstable();
    Ok(numbers)
}

/// Step 1. Highest first, one by one: the numbers never have a gap.
fn remove_unreached<D: Disk>(disk: &D, numbers: &[u64], last: &Last, replay: &Replay) -> Result<(), RecoverError> {
    for number in numbers.iter().rev().take_while(|number| **number > last.number) {
        holdfast_reached::reached!("recovery: a file behind the last batch is removed");
        replay.catalog.remove_file(*number);
        let name = file_name(*number);
        disk.remove(&name).and_then(|()| disk.sync_dir()).map_err(io_error(format!("remove {name}")))?;
    }
    Ok(())
}

/// The last file with a batch, and its known synced offset.
struct Last {
    number: u64,
    synced: u64,
}

fn scan_all<D: Disk>(
    disk: &D,
    params: &Params,
    sealing: Option<&Sealing>,
    numbers: &[u64],
    replay: &mut Replay,
    report: &mut RecoveryReport,
    lost_files: &mut BTreeSet<u64>,
) -> Result<Last, RecoverError> {
    let mut last = Last { number: numbers.first().map_or(0, |first| first - 1), synced: 0 };
    // Scanned or lost files: the meaning of a file depends on its successor. More than one waits only if files have no
    // batch or are lost.
    let mut waiting: Vec<Result<(Arc<JournalFile>, ScannedFile), CorruptRecord>> = Vec::new();
    let mut before = None;
    for number in numbers {
        let name = file_name(*number);
        if let Some(before) = before.filter(|before: &u64| before + 1 != *number) {
            holdfast_reached::reached!("recovery: a file is missing");
            let expected = format!("{} before it", file_name(*number - 1));
            let found = format!("{} before it", file_name(before));
            waiting.push(Err(CorruptRecord { file: name.clone(), offset: 0, expected, found }));
        }
        before = Some(*number);
        let file = match open_file(disk, params, sealing, *number)? {
            Found::Good(file) => file,
            Found::Bad(corrupt) => {
                holdfast_reached::reached!("recovery: the header of a file is lost");
                waiting.push(Err(corrupt));
                lost_files.insert(*number);
                last = Last { number: *number, synced: 0 };
                continue;
            }
        };
        let scanned = scan_file(&file).map_err(io_error(format!("read of {name}")))?;
        report.bytes += file.bytes;
        replay.catalog.add_file(file.clone());
        if scanned.has_batches() {
            replay_waiting(replay, &mut waiting, *number, scanned.synced_before.unwrap_or(0))?;
            last = Last { number: *number, synced: scanned.synced };
        }
        waiting.push(Ok((file, scanned)));
    }
    // Files behind the last one with a batch carry no information.
    waiting.retain(|waiting| !matches!(waiting, Ok((file, _)) if file.number > last.number));
    replay_waiting(replay, &mut waiting, 0, 0)?;
    Ok(last)
}

/// Replays the files that waited for `number`, whose header gives the synced offset of its predecessor as
/// `synced_before`.
fn replay_waiting(
    replay: &mut Replay,
    waiting: &mut Vec<Result<(Arc<JournalFile>, ScannedFile), CorruptRecord>>,
    number: u64,
    synced_before: u64,
) -> Result<(), RecoverError> {
    for waited in waiting.drain(..) {
        match waited {
            Ok((file, scanned)) => {
                let said = if file.number + 1 == number { synced_before } else { 0 };
                replay.file(&file, &scanned, scanned.synced.max(said))?;
            }
            Err(corrupt) => replay.lose_file(corrupt),
        }
    }
    Ok(())
}

/// The first block of a file, or its damage. A lost header loses the whole file, which damages every group of the node
/// until peers heal them. So it is read a second time, and the disk's error counts only if another block of the same
/// file can be read.
///
/// # Errors
/// The disk does not answer, so its content is unknown.
fn read_header(file: &impl DiskFile) -> io::Result<Result<AlignedBuf, io::Error>> {
    let mut block = AlignedBuf::zeroed(BLOCK_BYTES);
    let Err(_) = file.read_at(&mut block, 0) else { return Ok(Ok(block)) };
    holdfast_reached::reached!("recovery: the first read of a header fails");
    let Err(error) = file.read_at(&mut block, 0) else { return Ok(Ok(block)) };
    // Shorter than a header: no disk is to blame.
    if error.kind() == io::ErrorKind::UnexpectedEof {
        return Ok(Err(error));
    }
    let (bytes, block_bytes) = (file.bytes(), BLOCK_BYTES as u64);
    // The next block may be unreadable too; the last one is far away.
    let others = [block_bytes, (bytes / block_bytes).saturating_sub(1) * block_bytes];
    let answers =
        others.into_iter().any(|at| at > 0 && at + block_bytes <= bytes && file.read_at(&mut block, at).is_ok());
    if answers { Ok(Err(error)) } else { Err(error) }
}

fn open_file<D: Disk>(
    disk: &D,
    params: &Params,
    sealing: Option<&Sealing>,
    number: u64,
) -> Result<Found, RecoverError> {
    let name = file_name(number);
    let bad =
        |expected: String, found: String| Found::Bad(CorruptRecord { file: name.clone(), offset: 0, expected, found });
    let file = disk.open(&name).map_err(io_error(format!("open of {name}")))?;
    let block = match read_header(&file) {
        Ok(Ok(block)) => block,
        Ok(Err(error)) => return Ok(bad("a file header".to_string(), error.to_string())),
        Err(source) => return Err(RecoverError::Io { what: format!("read of {name}"), source }),
    };
    let header = match FileHeader::decode(&block) {
        Ok(header) => header,
        Err(HeaderError::Version { found }) => {
            return Err(RecoverError::Version { file: name, found, expected: crate::format::FORMAT_VERSION });
        }
        Err(error) => return Ok(bad("a file header".to_string(), error.to_string())),
    };
    if header.number != number {
        return Ok(bad(format!("file number {number}"), format!("{}", header.number)));
    }
    if header.disk_uuid != params.disk_uuid && header.disk_uuid != 0 && params.disk_uuid != 0 {
        return Err(RecoverError::WrongDisk { file: name, found: header.disk_uuid, expected: params.disk_uuid });
    }
    // JOURNAL-J10
    if let Some(sealing) = sealing.filter(|sealing| header.key.is_none() && sealing.refuses_clear()) {
        holdfast_reached::reached!("recovery: a file in clear where files are sealed");
        return Err(RecoverError::InClear { file: name, expected: sealing.key.fingerprint() });
    }
    let key = match (header.key, sealing.map(|sealing| &sealing.key)) {
        (None, _) => None,
        (Some(found), Some(key)) if found == key.fingerprint() => Some(key.file(header.file_uuid)),
        (Some(found), key) => {
            return Err(RecoverError::WrongKey { file: name, found, expected: key.map(NodeKey::fingerprint) });
        }
    };
    let block = BLOCK_BYTES as u64;
    let bytes = header.bytes.min(file.bytes()) / block * block;
    Ok(Found::Good(Arc::new(JournalFile { number, name, seed: header.seed(), key, bytes, file: Box::new(file) })))
}

/// The records to rewrite, so that the journal means the same with any part of the uncertain tail and without it.
fn uncertain(replay: &Replay) -> Result<Vec<Item>, ReadError> {
    let mut items = Vec::new();
    for (group, touched) in &replay.touched {
        let index = replay.catalog.index(*group);
        let index = index.locked();
        if index.damaged.is_some() {
            holdfast_reached::reached!("recovery: a damaged group is not rewritten");
            // JOURNAL-J8: rewritten, it might look valid. It stays unusable until it is dropped.
            continue;
        }
        let item = |kind, carried, id, payload| Item { kind, carried, group: *group, id, payload };
        if touched.dropped {
            holdfast_reached::reached!("recovery: a drop of a group may not have been synced");
            items.push(item(Kind::DropGroup, false, LogId::default(), Bytes::new()));
        }
        if let Some(low) = touched.low.filter(|_| !touched.dropped) {
            holdfast_reached::reached!("recovery: a change of entries may not have been synced");
            items.push(item(Kind::Truncate, false, LogId { term: Term(0), index: LogIndex(low) }, Bytes::new()));
        }
        let (purge, other): (Vec<_>, Vec<_>) =
            notes(*group, &index).into_iter().map(|(_, note)| note).partition(|note| note.kind == Kind::Purge);
        items.extend(purge);
        for (at, entry) in index.places().filter(|(_, entry)| entry.place >= replay.uncertain_from) {
            let id = LogId { term: entry.term, index: LogIndex(at) };
            let Some(file) = replay.catalog.file(entry.place.file) else { continue };
            let payload = read_record(&file, entry.place, Kind::Entry, *group, id, entry.len)?;
            items.push(item(Kind::Entry, true, id, payload));
        }
        items.extend(other);
    }
    Ok(items)
}
