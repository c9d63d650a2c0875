//! Files of a journal, as a disk returns them at a start.

use crate::target::Bound;
use bytes::Bytes;
use holdfast_journal::{Disk, Journal, Op, Params, read_entry};
use holdfast_testkit::SimDisk;
use holdfast_types::{GroupId, LogId};
use std::collections::VecDeque;

const BLOCK: usize = 4096;
/// The smallest that a journal takes.
const FILE_BYTES: usize = 8 * BLOCK;
/// Two files without the blocks of their headers: what the headers say is half of the input's first bytes.
pub(super) const BYTES_MAX: usize = 2 * FILE_BYTES;

/// The disk in memory keeps all files twice, and a start begins another one. A hole in a log takes 32 bytes for each
/// missing entry; see `tame`.
pub(super) const BOUND: Bound = Bound { base: 8 << 20, each: 64 };

const PARAMS: Params =
    Params { file_bytes: FILE_BYTES as u64, room_bytes: 8 * FILE_BYTES as u64, disk_uuid: 7, boot: 2 };
const GROUP: GroupId = GroupId(4);
const NAMES: [&str; 2] = ["journal-0000000000000001", "journal-0000000000000002"];

/// Of a record: its head without the table, an entry of the table, the payload under one of them.
const RECORD_HEAD: usize = 48;
const TABLE_ENTRY: usize = 20;
const CHUNK: usize = 16 << 10;
/// Indexes of entries below this: a hole in a log, which replay fills with places, is at most as wide.
const INDEX_MAX: u64 = 64;

fn put(bytes: &mut [u8], at: usize, number: &[u8]) {
    if let Some(to) = bytes.get_mut(at..at + number.len()) {
        to.copy_from_slice(number);
    }
}

fn u32_at(bytes: &[u8], at: usize) -> usize {
    let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok());
    four.map_or(0, |four| u32::from_le_bytes(four) as usize)
}

/// Makes `file` what the checksums say: the header of file `number`, and each batch and record that begins where one
/// may. Lengths and contents stay as they are.
fn mend(file: &mut [u8], number: u64) {
    put(file, 0, b"HFJRNL01");
    put(file, 8, &3_u32.to_le_bytes());
    put(file, 48, &number.to_le_bytes());
    // Payloads are not sealed: a seal does not open but with its key.
    put(file, 72, &[0; 8]);
    let Some(header) = file.get(..BLOCK) else { return };
    let crc = crc32c::crc32c_append(crc32c::crc32c(&header[..12]), &header[16..]);
    let seed = crc32c::crc32c(&header[16..32]);
    put(file, 12, &crc.to_le_bytes());
    let mut at = BLOCK;
    while at + BLOCK <= file.len() {
        let Some(batch) = file.get_mut(at..).filter(|batch| batch.starts_with(b"HFB1")) else {
            at += BLOCK;
            continue;
        };
        put(batch, 8, &(at as u64).to_le_bytes());
        let crc = crc32c::crc32c_append(seed, &batch[8..64]);
        put(batch, 4, &crc.to_le_bytes());
        let records = u32_at(batch, 24);
        mend_records(&mut batch[64..], seed, (at + 64) as u64, records);
        at += (u32_at(batch, 16) / BLOCK * BLOCK).max(BLOCK);
    }
}

/// The first record is at byte `offset` of its file.
fn mend_records(mut bytes: &mut [u8], seed: u32, mut offset: u64, records: usize) {
    for _ in 0..records {
        let (len, table) = (u32_at(bytes, 32), u32_at(bytes, 6) & 0xffff);
        let head = RECORD_HEAD + TABLE_ENTRY * table;
        let whole = (head + len).next_multiple_of(8);
        if table != len.div_ceil(CHUNK) || whole > bytes.len() {
            return;
        }
        let (record, rest) = bytes.split_at_mut(whole);
        tame(record);
        put(record, 40, &offset.to_le_bytes());
        for number in 0..table {
            let chunk = head + number * CHUNK..(head + (number + 1) * CHUNK).min(head + len);
            let place = [&offset.to_le_bytes()[..], &(number as u32).to_le_bytes()].concat();
            let crc = crc32c::crc32c_append(crc32c::crc32c_append(seed, &place), &record[chunk]);
            put(record, RECORD_HEAD + TABLE_ENTRY * number, &crc.to_le_bytes());
        }
        let crc = crc32c::crc32c_append(seed, &record[4..head]);
        put(record, 0, &crc.to_le_bytes());
        (bytes, offset) = (rest, offset + whole as u64);
    }
}

/// Keeps indexes near one another. Replay takes up to 2^24 places for a hole in a group's log, and there may be a group
/// for each record: a disk that was forged so far can take the memory, and is the node's own. The largest index stays:
/// it must be refused.
fn tame(record: &mut [u8]) {
    let index = record.get(24..32).and_then(|eight| eight.try_into().ok()).map_or(0, u64::from_le_bytes);
    if index != u64::MAX {
        put(record, 24, &(index % INDEX_MAX).to_le_bytes());
    }
}

/// Uuids of new files: numbers behind `last`.
fn uuids(mut last: u128) -> Box<dyn FnMut() -> u128 + Send> {
    Box::new(move || {
        last += 1;
        last
    })
}

/// The input is two files, one behind the other, each without what is behind its half.
pub(super) fn files(data: &[u8]) -> bool {
    let (one, two) = data.split_at(data.len() / 2);
    let disk = SimDisk::new();
    for (number, (name, half)) in (1..).zip(NAMES.into_iter().zip([one, two])) {
        let mut file = vec![0; FILE_BYTES];
        let len = half.len().min(FILE_BYTES);
        file[..len].copy_from_slice(&half[..len]);
        mend(&mut file, number);
        if disk.create(name, FILE_BYTES as u64).is_err() {
            return false;
        }
        disk.damage(name, |contents| contents.copy_from_slice(&file));
    }
    let Ok((journal, report)) = Journal::open(disk.clone(), PARAMS, uuids(100)) else { return false };
    check_reads(&journal, &report.damaged.keys().copied().collect::<Vec<_>>());
    // Accepted records survive a restart, with no new damage.
    let before = positions(&journal);
    drop(journal);
    disk.restart();
    let again = Journal::open(disk, Params { boot: 3, ..PARAMS }, uuids(200));
    let again = again.map(|(journal, _)| positions(&journal));
    if report.damaged.is_empty() && report.corrupt.is_empty() {
        assert_eq!(again.as_ref().ok(), Some(&before), "JOURNAL-J4: another journal at the next start");
    }
    report.records > 0
}

/// Of each group that has anything: its vote, and its last entry.
type Position = (GroupId, Option<Bytes>, Option<LogId>);

fn positions(journal: &Journal<SimDisk>) -> Vec<Position> {
    let catalog = journal.catalog();
    let position = |group: GroupId| {
        let index = catalog.index(group);
        let index = index.lock().expect("JOURNAL-J1: nobody else holds it");
        (group, index.vote(), index.last())
    };
    let all = catalog.groups().into_iter().map(position);
    all.filter(|(_, vote, last)| vote.is_some() || last.is_some()).collect()
}

/// Every entry of a group without damage can be read.
fn check_reads(journal: &Journal<SimDisk>, damaged: &[GroupId]) {
    let catalog = journal.catalog();
    for group in catalog.groups().into_iter().filter(|group| !damaged.contains(group)) {
        let shared = catalog.index(group);
        let range = {
            let index = shared.lock().expect("JOURNAL-J1: nobody else holds it");
            index.first()..index.next()
        };
        for index in range {
            let read = read_entry(&catalog, group, &shared, index);
            assert!(read.is_ok(), "R9: entry {index} of {group}, which is whole: {:?}", read.err());
        }
    }
}

pub(super) fn all_files() -> Vec<Vec<u8>> {
    let disk = SimDisk::new();
    let Ok((mut journal, _)) = Journal::open(disk.clone(), PARAMS, uuids(0)) else { return Vec::new() };
    let entry = |index, bytes: usize| Op::Entry {
        group: GROUP,
        id: LogId::new(3, index),
        payload: Bytes::from(vec![index as u8; bytes]),
    };
    let batches = [
        vec![Op::Vote { group: GROUP, payload: Bytes::from_static(&[3; 17]) }, entry(1, 100), entry(2, 3000)],
        vec![Op::Committed { group: GROUP, id: LogId::new(3, 2) }, entry(3, 10)],
        vec![Op::Truncate { group: GROUP, from: 3 }, Op::Purge { group: GROUP, upto: LogId::new(3, 1) }],
        // These fill the file, and the next one is begun.
        vec![entry(3, 6000), entry(4, 3000)],
        vec![entry(5, 6000)],
        vec![entry(6, 100)],
    ];
    for batch in batches {
        if journal.write(&mut VecDeque::from(batch)).is_err() {
            return Vec::new();
        }
    }
    let files = NAMES.map(|name| disk.contents(name).unwrap_or_else(|| vec![0; FILE_BYTES]));
    vec![files.concat()]
}
