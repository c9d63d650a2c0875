//! Entries read together, and parts of entries, are what single reads of whole entries are.

use crate::common::{Rng, open, open_with, sealing};
use bytes::Bytes;
use holdfast_journal::{Journal, Op, Params, ReadError, Sealing, read_entries, read_entry, read_part, record_bytes};
use holdfast_testkit::SimDisk;
use holdfast_types::{GroupId, LogId};
use std::collections::{BTreeMap, VecDeque};

const G: GroupId = GroupId(1);
const OTHER: GroupId = GroupId(2);
/// Payload bytes under one checksum, from the description of the format.
const CHUNK: usize = 16 << 10;

type Entries = BTreeMap<u64, (LogId, Bytes)>;

fn bytes(rng: &mut Rng, len: usize) -> Bytes {
    (0..len).map(|_| rng.next() as u8).collect::<Vec<u8>>().into()
}

fn write(journal: &mut Journal<SimDisk>, ops: Vec<Op>) {
    journal.write(&mut VecDeque::from(ops)).expect("written");
}

/// Entries of many sizes over several files, with those of another group between them. The first ones are purged.
fn history(seed: u64, disk: &SimDisk) -> (Journal<SimDisk>, Entries) {
    let mut rng = Rng(seed);
    let (mut journal, _) = open(disk, seed).expect("opens");
    let (mut entries, mut others) = (Entries::new(), 0);
    for index in 1..=100 {
        let len = [0, 1, 100, 900, 5000, 15_000][rng.below(6) as usize];
        let (id, payload) = (LogId::new(1 + index / 30, index), bytes(&mut rng, len));
        entries.insert(index, (id, payload.clone()));
        let mut ops = vec![Op::Entry { group: G, id, payload }];
        if rng.chance(40) {
            ops.push(Op::Entry { group: OTHER, id: LogId::new(1, others), payload: bytes(&mut rng, 700) });
            others += 1;
        }
        write(&mut journal, ops);
        // An entry of an old file has its place behind later ones then.
        journal.tidy().expect("tidy");
    }
    let upto = 1 + rng.below(20);
    write(&mut journal, vec![Op::Purge { group: G, upto: entries[&upto].0 }]);
    entries.retain(|index, _| *index > upto);
    (journal, entries)
}

/// The entries from `start` on: up to `end` or the first missing one, the first whatever its size, others while they
/// fit into `max`.
fn expected(entries: &Entries, start: u64, end: u64, max: usize) -> Vec<(LogId, Bytes)> {
    let (mut found, mut sum) = (Vec::new(), 0);
    for index in start..end {
        let Some((id, payload)) = entries.get(&index) else { break };
        if !found.is_empty() && sum + payload.len() > max {
            break;
        }
        sum += payload.len();
        found.push((*id, payload.clone()));
    }
    found
}

#[test]
fn several_at_once_are_what_each_is_up_to_the_bound() {
    for seed in 0..6 {
        let disk = SimDisk::new();
        let (journal, entries) = history(seed, &disk);
        assert!(disk.names().len() > 5, "too few files to begin a new run");
        let (catalog, mut rng) = (journal.catalog(), Rng(seed ^ 0xabc));
        let index = catalog.index(G);
        for _ in 0..300 {
            let start = rng.below(104);
            let end = start + rng.below(40);
            let exact: usize = entries.range(start..).take(rng.below(9) as usize).map(|(_, (_, p))| p.len()).sum();
            let max = [0, exact, exact.saturating_sub(1), exact + 1, usize::MAX / 2][rng.below(5) as usize];
            let found = read_entries(&catalog, G, &index, start..end, max).expect("whole");
            let expected = expected(&entries, start, end, max);
            let numbers = |all: &[(LogId, Bytes)]| all.iter().map(|(id, p)| (id.index.0, p.len())).collect::<Vec<_>>();
            let context = format!("seed {seed}, {start}..{end}, {max} bytes");
            assert!(found == expected, "{context}: {:?}, expected {:?}", numbers(&found), numbers(&expected));
        }
    }
}

/// R9: the entries before the bad one can be read, the bad one cannot, alone or among others.
#[test]
fn a_bad_entry_among_several_is_not_served() {
    let disk = SimDisk::new();
    // An odd seed is not sealed: the payload can be found on the disk.
    let (mut journal, _) = open(&disk, 1).expect("opens");
    let payloads: Vec<Bytes> = (0..4).map(|n| bytes(&mut Rng(n), 3000)).collect();
    for (at, payload) in payloads.iter().enumerate() {
        write(&mut journal, vec![Op::Entry { group: G, id: LogId::new(1, at as u64), payload: payload.clone() }]);
    }
    let name = disk.names()[0].clone();
    let contents = disk.contents(&name).expect("there");
    let at = contents.windows(3000).position(|window| window == &payloads[2][..]).expect("in clear");
    for flipped in [at, at + 2999, at - 20] {
        disk.damage(&name, |bytes| bytes[flipped] ^= 1);
        let catalog = journal.catalog();
        let index = catalog.index(G);
        let two = read_entries(&catalog, G, &index, 0..2, usize::MAX / 2).expect("whole");
        assert_eq!(two.iter().map(|(_, payload)| payload.clone()).collect::<Vec<_>>(), payloads[..2]);
        for range in [0..4, 2..3, 2..4] {
            let read = read_entries(&catalog, G, &index, range.clone(), usize::MAX / 2);
            assert!(matches!(read, Err(ReadError::Corrupt(_))), "{range:?}, byte {flipped}: {read:?}");
        }
        disk.damage(&name, |bytes| bytes[flipped] ^= 1);
        assert_eq!(read_entries(&catalog, G, &index, 0..4, usize::MAX / 2).expect("whole again").len(), 4);
    }
}

/// A journal with room for large entries.
fn large(disk: &SimDisk) -> Journal<SimDisk> {
    let params = Params { file_bytes: 2 << 20, room_bytes: 8 << 20, disk_uuid: 7, boot: 1 };
    let mut rng = Rng(5);
    let uuids = Box::new(move || u128::from(rng.next()));
    Journal::open(disk.clone(), params, uuids).expect("opens").0
}

#[test]
fn a_part_is_the_same_bytes_of_the_whole() {
    for len in [0, 1, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK + 77, 20 * CHUNK, 20 * CHUNK + 5] {
        let disk = SimDisk::new();
        let mut journal = large(&disk);
        let payload = bytes(&mut Rng(len as u64), len);
        write(&mut journal, vec![Op::Entry { group: G, id: LogId::new(3, 0), payload: payload.clone() }]);
        let catalog = journal.catalog();
        let index = catalog.index(G);
        assert_eq!(read_entry(&catalog, G, &index, 0).expect("whole"), (LogId::new(3, 0), payload.clone()));
        let edges: Vec<usize> = (0..=len / CHUNK).flat_map(|n| [n * CHUNK, n * CHUNK + 1, n * CHUNK + 511]).collect();
        for start in edges.iter().copied().filter(|start| *start <= len) {
            for take in [0, 1, 512, CHUNK - 1, CHUNK, CHUNK + 1, len].into_iter().filter(|take| start + take <= len) {
                let part = read_part(&catalog, G, &index, 0, start as u32, take).expect("whole");
                assert!(part == payload[start..start + take], "{take} bytes at {start} of {len}");
            }
        }
        for (start, take) in [(0, len + 1), (len as u32, 1), (len as u32 + 1, 0), (1, usize::MAX), (u32::MAX, 1)] {
            let read = read_part(&catalog, G, &index, 0, start, take);
            let refused = matches!(read, Err(ReadError::OutOfBounds { index: 0, offset, wanted, len: found })
                if (offset, wanted, found) == (start, take, len));
            assert!(refused, "{take} bytes at {start} of {len}: {read:?}");
        }
        let missing = read_part(&catalog, G, &index, 1, 0, 0);
        assert!(matches!(missing, Err(ReadError::Missing { index: 1, next: 1 })), "{missing:?}");
    }
}

/// Only the chunks with the requested bytes are read and checked, and each of them is.
#[test]
fn a_bad_chunk_fails_the_parts_that_it_is_in_and_no_others() {
    let disk = SimDisk::new();
    let mut journal = large(&disk);
    let payload = bytes(&mut Rng(9), 8 * CHUNK);
    write(&mut journal, vec![Op::Entry { group: G, id: LogId::new(1, 0), payload: payload.clone() }]);
    let name = disk.names()[0].clone();
    let contents = disk.contents(&name).expect("there");
    let at = contents.windows(64).position(|window| window == &payload[..64]).expect("in clear");
    let catalog = journal.catalog();
    let index = catalog.index(G);
    for bad in 0..8 {
        disk.damage(&name, |bytes| bytes[at + bad * CHUNK + 1000] ^= 1);
        for chunk in 0..8 {
            let part = read_part(&catalog, G, &index, 0, (chunk * CHUNK) as u32, CHUNK);
            assert_eq!(part.is_ok(), chunk != bad, "chunk {chunk}, bad is {bad}: {part:?}");
        }
        assert!(matches!(read_entry(&catalog, G, &index, 0), Err(ReadError::Corrupt(_))), "bad is {bad}");
        disk.damage(&name, |bytes| bytes[at + bad * CHUNK + 1000] ^= 1);
    }
}

#[test]
fn live_bytes_are_those_of_the_entries_that_are_left() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk, 1).expect("opens");
    let sizes = [0, 100, 5000, 7];
    for (at, len) in sizes.into_iter().enumerate() {
        let payload = bytes(&mut Rng(1), len);
        write(&mut journal, vec![Op::Entry { group: G, id: LogId::new(1, at as u64), payload }]);
    }
    let live = || journal.catalog().index(G).lock().expect("whole").live_bytes();
    let of = |sizes: &[usize]| sizes.iter().map(|len| record_bytes(*len) as u64).sum::<u64>();
    assert_eq!(live(), of(&sizes));
    write(&mut journal, vec![Op::Purge { group: G, upto: LogId::new(1, 1) }]);
    assert_eq!(journal.catalog().index(G).lock().expect("whole").live_bytes(), of(&sizes[2..]));
}

/// Record and batch fill the last block of the file: nothing is left behind it.
#[test]
fn a_record_up_to_the_last_byte_of_its_file_is_read() {
    let disk = SimDisk::new();
    // An odd seed is not sealed: the payload can be found on the disk.
    let (mut journal, _) = open(&disk, 1).expect("opens");
    // A block without the batch's header, the record's, and its entry for one chunk.
    let len = 4096 - 64 - 48 - 20;
    assert_eq!(record_bytes(len), 4096 - 64);
    let payloads: Vec<Bytes> = (0..15).map(|n| bytes(&mut Rng(n), len)).collect();
    for (at, payload) in (0..).zip(&payloads) {
        write(&mut journal, vec![Op::Entry { group: G, id: LogId::new(1, at), payload: payload.clone() }]);
    }
    let contents = disk.contents(&disk.names()[0]).expect("there");
    assert!(contents.ends_with(&payloads[14]), "the file is not full to its end");
    let catalog = journal.catalog();
    let index = catalog.index(G);
    assert_eq!(read_entry(&catalog, G, &index, 14).expect("whole").1, payloads[14]);
    assert_eq!(read_part(&catalog, G, &index, 14, 0, len).expect("whole"), payloads[14]);
    let all = read_entries(&catalog, G, &index, 0..15, usize::MAX / 2).expect("whole");
    assert!(all.iter().map(|(_, payload)| payload).eq(&payloads));
}

/// JOURNAL-J9: what came sealed is in each journal as it came, whatever the journal's key. What is in front of it is
/// not, and comes back.
#[test]
fn what_came_sealed_is_the_same_in_all_journals() {
    let payload = bytes(&mut Rng(5), 40_000);
    for key in [1, 2] {
        let disk = SimDisk::new();
        let sealing = Sealing { clear_bytes: |_| 100, ..sealing(key, true) };
        let (mut journal, _) = open_with(&disk, 1, Some(sealing)).expect("opens");
        write(&mut journal, vec![Op::Entry { group: G, id: LogId::new(1, 0), payload: payload.clone() }]);
        let holds = |part: &[u8]| {
            disk.names().iter().any(|name| {
                let contents = disk.contents(name).unwrap_or_default();
                contents.windows(part.len()).any(|window| window == part)
            })
        };
        assert!(holds(&payload[100..]), "the rest is not as it came");
        assert!(!holds(&payload[..20]), "the front is in clear");
        let catalog = journal.catalog();
        let index = catalog.index(G);
        assert_eq!(read_entry(&catalog, G, &index, 0).expect("whole").1, payload);
        assert_eq!(read_part(&catalog, G, &index, 0, 50, 20_000).expect("whole"), payload.slice(50..20_050));
        assert_eq!(read_part(&catalog, G, &index, 0, 33_000, 5_000).expect("whole"), payload.slice(33_000..38_000));
    }
}
