//! What a start asks of the disk, and what it makes of blocks that cannot be read.

use crate::common::{self, PARAMS, Rng, open};
use holdfast_journal::{Journal, Op, Params, RecoverError};
use holdfast_testkit::{SimDisk, Survives};
use holdfast_types::{GroupId, LogId};
use std::collections::VecDeque;

const G: GroupId = GroupId(1);
const BLOCK: u64 = 4096;

/// One of them takes a block.
fn entry(index: u64) -> Op {
    Op::Entry { group: G, id: LogId::new(1, index), payload: vec![index as u8; 3000].into() }
}

fn write(journal: &mut Journal<SimDisk>, op: Op) {
    journal.write(&mut VecDeque::from([op])).expect("written");
}

/// The header can be read, and nothing behind it. That is a disk that does not answer, and no damage, which would last
/// until peers heal it.
#[test]
fn a_file_of_which_only_the_header_can_be_read_is_no_damage() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk, 1).expect("opens");
    write(&mut journal, entry(1));
    journal.finish().expect("ends");
    drop(journal);
    let name = disk.names().remove(0);
    let reads_only = |readable: Option<u64>| {
        let disk = disk.crashed(Survives::Everything);
        let blocks = (BLOCK..PARAMS.file_bytes).step_by(BLOCK as usize).filter(|at| Some(*at) != readable);
        blocks.for_each(|at| disk.make_unreadable(&name, at));
        open(&disk, 2)
    };
    match reads_only(None) {
        Err(RecoverError::Io { what, .. }) => assert!(what.contains(&name), "{what}"),
        other => panic!("{other:?}"),
    }
    // Behind the header and the entry are two markers; the second one says what was synced.
    let (_, report) = reads_only(Some(3 * BLOCK)).expect("the disk answers");
    let lost = report.lost.clone().map(|lost| (lost.file, lost.offset));
    assert_eq!(lost, Some((name.clone(), BLOCK)), "{report:?}");
}

/// The blocks before it fill the window that is read at once, so that it is read alone.
#[test]
fn one_bad_block_at_the_end_of_a_file_is_a_bad_block() {
    let disk = SimDisk::new();
    let params = Params { file_bytes: (4 << 20) + 2 * BLOCK, room_bytes: 64 << 20, ..PARAMS };
    let open = |seed: u64| {
        let mut rng = Rng(seed);
        Journal::open(disk.clone(), params, Box::new(move || u128::from(rng.next()))).expect("opens")
    };
    let (mut journal, _) = open(1);
    write(&mut journal, entry(1));
    journal.finish().expect("ends");
    drop(journal);
    disk.make_unreadable(&disk.names()[0], params.file_bytes - BLOCK);
    let (journal, report) = open(2);
    assert!(report.damaged.is_empty() && report.corrupt.is_empty(), "{report:?}");
    let index = journal.catalog().index(G);
    assert_eq!(index.lock().expect("whole").last(), Some(LogId::new(1, 1)));
}

/// A start reads each file once. Payloads are read again, and decrypted, only where no later batch says that they were
/// synced: else a journal of many GiB would be read twice, and one failed read of it would end the start.
#[test]
fn payloads_that_are_known_synced_are_not_asked_for_again() {
    let disk = SimDisk::new();
    let sealed = |disk: &SimDisk, seed| common::open_with(disk, seed, Some(common::sealing(1, true)));
    let (mut journal, _) = sealed(&disk, 1).expect("opens");
    write(&mut journal, entry(0));
    write(&mut journal, entry(1));
    journal.finish().expect("ends");
    drop(journal);
    for reads in 0..12 {
        let disk = disk.crashed(Survives::Everything);
        disk.fail_read_after(reads);
        let (_, report) = sealed(&disk, 2).unwrap_or_else(|error| panic!("read {reads} fails: {error}"));
        assert!(report.damaged.is_empty() && report.corrupt.is_empty(), "read {reads} fails: {report:?}");
    }
}
