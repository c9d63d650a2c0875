//! What a journal says of itself: sizes, what it still has to do, and the figures of a start.

use crate::common::{PARAMS, Rng, open};
use bytes::Bytes;
use holdfast_journal::{Journal, Op, Params, ReadError, RecoverError, read_entry};
use holdfast_testkit::{SimDisk, Survives};
use holdfast_types::{GroupId, LogId};
use std::collections::VecDeque;

const G: GroupId = GroupId(1);
const OTHER: GroupId = GroupId(2);
const BLOCK: u64 = 4096;
/// Payload of an entry that takes a block of its own, with little left: a file of them is too full to be carried
/// forward.
const FULL: usize = 3900;

fn entry(group: GroupId, index: u64, len: usize) -> Op {
    let mut rng = Rng(index);
    let payload: Vec<u8> = (0..len).map(|_| rng.next() as u8).collect();
    Op::Entry { group, id: LogId::new(1, index), payload: payload.into() }
}

fn write(journal: &mut Journal<SimDisk>, op: Op) {
    journal.write(&mut VecDeque::from([op])).expect("written");
}

fn open_with(file_bytes: u64) -> Result<Journal<SimDisk>, RecoverError> {
    let params = Params { file_bytes, ..PARAMS };
    let mut rng = Rng(3);
    Journal::open(SimDisk::new(), params, Box::new(move || u128::from(rng.next()))).map(|(journal, _)| journal)
}

#[test]
fn an_operation_knows_its_group_and_payload() {
    let id = LogId::new(1, 2);
    let vote = Op::Vote { group: G, payload: Bytes::from_static(b"vote") };
    let ops = [
        (entry(G, 1, 100), 100),
        (vote, 4),
        (Op::Truncate { group: G, from: 7 }, 0),
        (Op::Purge { group: G, upto: id }, 0),
        (Op::Committed { group: G, id }, 0),
        (Op::DropGroup { group: G }, 0),
    ];
    for (op, len) in ops {
        assert_eq!((op.group(), op.payload_len()), (G, len), "{op:?}");
    }
}

#[test]
fn file_sizes_are_whole_blocks_from_eight_on() {
    assert!(open_with(8 * BLOCK).is_ok());
    for bad in [0, 7 * BLOCK, 8 * BLOCK + 1, 9 * BLOCK - 512, (1 << 31) + BLOCK] {
        let refused = open_with(bad);
        assert!(matches!(refused, Err(RecoverError::FileBytes { found, .. }) if found == bad), "{bad}: {refused:?}");
    }
}

#[test]
fn a_batch_has_a_quarter_of_a_file_and_four_mebibytes_at_most() {
    let most = |file_bytes| open_with(file_bytes).expect("opens").batch_bytes_max();
    assert_eq!([64 << 10, 16 << 20, 20 << 20].map(most), [16 << 10, 4 << 20, 4 << 20]);
}

#[test]
fn used_bytes_are_whole_files_and_what_is_written_of_the_last() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk, 1).expect("opens");
    assert_eq!(journal.used_bytes(), BLOCK, "the header");
    let mut last = journal.used_bytes();
    for index in 0..40 {
        write(&mut journal, entry(G, index, FULL));
        // The next file is created ahead, so that each one is filled to its end.
        journal.tidy().expect("tidy");
        // A full file is followed by the header of the next.
        let blocks = if last.is_multiple_of(PARAMS.file_bytes) { 2 } else { 1 };
        assert_eq!(journal.used_bytes(), last + blocks * BLOCK, "entry {index}");
        last = journal.used_bytes();
    }
    assert_eq!(last, 2 * PARAMS.file_bytes + 11 * BLOCK, "40 entries of a block, 15 to a file");
}

#[test]
fn an_idle_marker_is_wanted_once_after_a_batch() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk, 1).expect("opens");
    assert!(!journal.wants_idle(), "nothing was written");
    write(&mut journal, entry(G, 0, 10));
    assert!(journal.wants_idle());
    let before = journal.used_bytes();
    journal.mark_idle().expect("marked");
    assert!(!journal.wants_idle());
    assert_eq!(journal.used_bytes(), before + BLOCK);
    journal.mark_idle().expect("marked already");
    assert_eq!(journal.used_bytes(), before + BLOCK, "no second marker");
    write(&mut journal, entry(G, 1, 10));
    disk.fail_sync_after(0);
    journal.write(&mut VecDeque::from([entry(G, 2, 10)])).expect_err("the sync fails");
    assert!(!journal.wants_idle() && !journal.wants_tidy(), "nothing is wanted of a journal that failed");
}

/// JOURNAL-J1: the batch after it says that everything below it is synced, so the marker must be.
#[test]
fn the_batch_behind_an_idle_marker_makes_it_durable_too() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk, 1).expect("opens");
    write(&mut journal, entry(G, 0, 10));
    assert_eq!(disk.unsynced_bytes(), 0);
    journal.mark_idle().expect("marked");
    assert_eq!(disk.unsynced_bytes() as u64, BLOCK, "it has no sync of its own");
    for index in 1..4 {
        write(&mut journal, entry(G, index, 10));
        assert_eq!(disk.unsynced_bytes(), 0, "entry {index}");
    }
    drop(journal);
    let (_, report) = open(&disk.crashed(Survives::Nothing), 2).expect("opens");
    assert!(report.cuts.is_empty() && report.corrupt.is_empty(), "{report:?}");
}

/// Appends wait for a turn: it drops four files and says that there is more.
#[test]
fn a_turn_of_upkeep_drops_four_files() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk, 1).expect("opens");
    for index in 0..150 {
        write(&mut journal, entry(G, index, FULL));
    }
    let files = || disk.names().len();
    journal.tidy().expect("all is live");
    let before = files();
    assert!(before > 10 && !journal.wants_tidy(), "{before} files");
    write(&mut journal, Op::Purge { group: G, upto: LogId::new(1, 149) });
    journal.tidy().expect("tidy");
    assert_eq!(files(), before - 4);
    assert!(journal.wants_tidy());
    let mut turns = 1;
    while journal.wants_tidy() {
        journal.tidy().expect("tidy");
        turns += 1;
    }
    assert_eq!(files(), 2, "the one being written, and the next");
    assert_eq!(turns, (before - 2).div_ceil(4));
}

/// R9: a live record that cannot be read stays where it is, and its file with it, until the group lets go of it.
#[test]
fn a_file_with_a_bad_live_record_is_kept_and_named() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk, 1).expect("opens");
    let Op::Entry { payload, .. } = entry(G, 0, 900) else { return };
    write(&mut journal, entry(G, 0, 900));
    let first = disk.names()[0].clone();
    let contents = disk.contents(&first).expect("there");
    let at = contents.windows(900).position(|window| window == &payload[..]).expect("in clear");
    disk.damage(&first, |bytes| bytes[at] ^= 1);
    assert!(journal.blocked().is_none());
    let vote = |n: u64| Op::Vote { group: OTHER, payload: vec![n as u8; 3000].into() };
    for n in 0..100 {
        write(&mut journal, vote(n));
        journal.tidy().expect("tidy");
    }
    assert!(matches!(journal.blocked(), Some(ReadError::Corrupt(bad)) if bad.file == first), "{:?}", journal.blocked());
    assert!(disk.names().contains(&first));
    write(&mut journal, Op::Truncate { group: G, from: 0 });
    journal.tidy().expect("tidy");
    assert!(journal.blocked().is_none(), "{:?}", journal.blocked());
    assert!(!disk.names().contains(&first));
}

#[test]
fn a_start_counts_what_it_reads_and_writes_again() {
    let disk = SimDisk::new();
    let (mut journal, report) = open(&disk, 1).expect("opens");
    assert_eq!((report.files, report.bytes, report.records, report.rewritten), (0, 0, 0, 0));
    let ops = [entry(G, 0, 10), entry(G, 1, 10), Op::Vote { group: OTHER, payload: Bytes::from_static(b"vote") }];
    journal.write(&mut VecDeque::from(ops)).expect("written");
    drop(journal);
    // The file with the batch, and the next, created ahead. No later batch says that this one was synced: both entries
    // after a truncation, and the vote, are written again.
    let (mut journal, report) = open(&disk, 3).expect("opens");
    let found = (report.files, report.bytes, report.records, report.rewritten);
    assert_eq!(found, (2, 2 * PARAMS.file_bytes, 3, 4));
    journal.finish().expect("ends");
    let files = disk.names().len();
    let (_, report) = open(&disk, 5).expect("opens");
    // The first file is gone: nothing in it was live. The marker says that the rest was synced.
    assert_eq!((report.files, report.records, report.rewritten), (files, 4, 0));
    assert!(report.lost.is_none() && report.cuts.is_empty(), "{report:?}");
}

/// Appends wait for a part that is carried forward: as few syncs as there can be.
#[test]
fn the_live_records_of_a_file_are_carried_in_one_batch() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk, 1).expect("opens");
    let first = disk.names()[0].clone();
    journal.write(&mut (0..8).map(|index| entry(OTHER, index, 10)).collect()).expect("written");
    // Of these only the last is live. They fill two files, and a part of the third.
    for n in 0..40u8 {
        write(&mut journal, Op::Vote { group: G, payload: vec![n; 3000].into() });
    }
    assert_eq!(disk.names().len(), 3);
    let syncs = disk.syncs();
    journal.tidy().expect("tidy");
    assert!(!journal.wants_tidy() && !disk.names().contains(&first), "{:?}", disk.names());
    assert_eq!(disk.syncs() - syncs, 2, "the batch, and the header of the next file");
    let catalog = journal.catalog();
    for index in 0..8 {
        let Op::Entry { payload, .. } = entry(OTHER, index, 10) else { return };
        assert_eq!(read_entry(&catalog, OTHER, &catalog.index(OTHER), index).expect("whole").1, payload);
    }
}

/// JOURNAL-J5: a purge is carried forward like any live record, and its file goes.
#[test]
fn a_purge_that_is_carried_forward_lets_its_file_go() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk, 1).expect("opens");
    let first = disk.names()[0].clone();
    write(&mut journal, entry(OTHER, 0, 10));
    write(&mut journal, Op::Purge { group: OTHER, upto: LogId::new(1, 0) });
    // Of the first file, only the purge is live.
    for n in 0..40u8 {
        write(&mut journal, Op::Vote { group: G, payload: vec![n; 3000].into() });
    }
    assert_eq!(disk.names().len(), 3);
    journal.tidy().expect("tidy");
    assert!(!journal.wants_tidy() && !disk.names().contains(&first), "{:?}", disk.names());
    drop(journal);
    let (journal, _) = open(&disk.crashed(Survives::Nothing), 3).expect("opens");
    let purged = journal.catalog().index(OTHER).lock().expect("whole").purged();
    assert_eq!(purged, Some(LogId::new(1, 0)));
}

/// JOURNAL-J5: an index that replay would refuse is not written in the first place.
#[test]
#[should_panic(expected = "leaves a hole after 1")]
fn an_entry_that_leaves_a_hole_stops_the_gateway() {
    let (mut journal, _) = open(&SimDisk::new(), 1).expect("opens");
    write(&mut journal, entry(G, 0, 10));
    write(&mut journal, entry(G, 2, 10));
}
