//! Bytes that change after they were synced are reported or harmless, never served (R9); and torn tails, cut
//! everywhere.

use crate::common::{self, Generator, Model, PARAMS, Rng, open};
use bytes::Bytes;
use holdfast_journal::{Journal, Op, ReadError, RecoverError, Sealing, read_entry, read_part};
use holdfast_testkit::{SimDisk, Survives};
use holdfast_types::{GroupId, LogId};
use proptest::prelude::*;
use std::collections::{BTreeMap, VecDeque};

const G: GroupId = GroupId(1);

fn random(seed: u64, len: usize) -> Bytes {
    let mut rng = Rng(seed);
    (0..len).map(|_| rng.next() as u8).collect::<Vec<u8>>().into()
}

fn payload(index: u64, len: usize) -> Bytes {
    random(index, len)
}

fn entry(index: u64, len: usize) -> Op {
    Op::Entry { group: G, id: LogId::new(1, index), payload: payload(index, len) }
}

fn write_all(journal: &mut Journal<SimDisk>, ops: Vec<Op>) {
    journal.write(&mut VecDeque::from(ops)).expect("written");
}

/// A file's name, and the offset of `needle` in it.
fn find(disk: &SimDisk, needle: &[u8]) -> (String, usize) {
    disk.names()
        .into_iter()
        .find_map(|name| {
            let bytes = disk.contents(&name)?;
            let at = bytes.windows(needle.len()).position(|window| window == needle)?;
            Some((name, at))
        })
        .expect("there")
}

fn flip(disk: &SimDisk, name: &str, at: usize) {
    disk.damage(name, |bytes| bytes[at] ^= 0x10);
}

/// A batch of several groups' records, torn at every 8th byte, and one byte around each record's boundary.
#[test]
fn a_torn_batch_is_cut_wherever_it_tears() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk, 1).expect("opens");
    let mut model = Model::default();
    let before = vec![entry(1, 100), entry(2, 5000), Op::Vote { group: G, payload: Bytes::from_static(b"first") }];
    before.iter().for_each(|op| model.apply(op));
    write_all(&mut journal, before);
    let torn = vec![
        Op::Truncate { group: G, from: 2 },
        entry(2, 700),
        Op::Vote { group: G, payload: Bytes::from_static(b"second") },
        Op::Entry { group: GroupId(2), id: LogId::new(4, 0), payload: random(9, 9000) },
        Op::Committed { group: G, id: LogId::new(1, 1) },
        Op::Purge { group: GroupId(2), upto: LogId::new(4, 0) },
    ];
    let mut after = model.clone();
    torn.iter().for_each(|op| after.apply(op));
    disk.die_after(1);
    assert!(journal.write(&mut VecDeque::from(torn)).is_err(), "the sync does not happen any more");
    let unsynced = disk.unsynced_bytes();
    assert!(unsynced > 9000);
    // The last eight bytes of a batch header are zero: 56 bytes are enough.
    let (mut old, mut new) = (0, 0);
    for kept in (0..=unsynced).filter(|kept| kept % 8 == 0 || kept % 8 == 1 || *kept == unsynced) {
        let (journal, report) = open(&disk.crashed(Survives::Prefix(kept)), 2).expect("opens");
        assert!(report.corrupt.is_empty() && report.damaged.is_empty(), "{kept}: {report:?}");
        let found = Model::of(&journal).expect("reads");
        assert!(found == model || found == after, "{kept} of {unsynced} bytes kept: found a part of the batch");
        old += usize::from(found == model);
        new += usize::from(found == after);
        assert_eq!(report.cuts.len(), usize::from(found == model && kept >= 56), "{kept}: {report:?}");
    }
    assert!(old > 100 && new > 0, "{old} {new}");
}

#[test]
fn a_flipped_payload_is_reported_for_its_group_and_not_served() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk, 1).expect("opens");
    write_all(&mut journal, vec![entry(1, 5000), entry(2, 4000)]);
    write_all(&mut journal, vec![Op::Vote { group: GroupId(2), payload: Bytes::from_static(b"other") }]);
    let payload = payload(2, 4000);
    let (name, at) = find(&disk, &payload);
    flip(&disk, &name, at + 5);

    // While it runs: found by a read.
    let catalog = journal.catalog();
    let index = catalog.index(G);
    assert!(read_entry(&catalog, G, &index, 1).is_ok());
    let Err(ReadError::Corrupt(corrupt)) = read_entry(&catalog, G, &index, 2) else { panic!("served") };
    assert_eq!(corrupt.file, name);
    assert!((corrupt.offset as usize) < at && at - (corrupt.offset as usize) < 128, "{corrupt}");

    // At the next start: the group is damaged, others are not, and its valid records can be read.
    let (journal, report) = open(&disk, 2).expect("opens");
    assert_eq!(report.damaged.keys().collect::<Vec<_>>(), [&G]);
    assert_eq!(report.corrupt, std::slice::from_ref(&corrupt));
    let catalog = journal.catalog();
    let index = catalog.index(G);
    assert_eq!(index.lock().expect("whole").damaged(), Some(corrupt));
    assert_eq!(
        index.lock().expect("whole").last(),
        Some(LogId::new(1, 2)),
        "expected the index of the acknowledged entry to remain"
    );
    assert!(read_entry(&catalog, G, &index, 1).is_ok());
    assert!(matches!(read_entry(&catalog, G, &index, 2), Err(ReadError::Corrupt(_))));
    assert_eq!(catalog.index(GroupId(2)).lock().expect("whole").damaged(), None);
}

#[test]
fn damage_ends_with_the_bad_entry_or_with_the_group() {
    for heal in
        [Op::Purge { group: G, upto: LogId::new(1, 2) }, Op::Truncate { group: G, from: 2 }, Op::DropGroup { group: G }]
    {
        let disk = SimDisk::new();
        let (mut journal, _) = open(&disk, 1).expect("opens");
        write_all(&mut journal, vec![entry(1, 100), entry(2, 777)]);
        journal.finish().expect("ends");
        let payload = payload(2, 777);
        let (name, at) = find(&disk, &payload);
        flip(&disk, &name, at);
        let (mut journal, report) = open(&disk, 2).expect("opens");
        assert!(report.damaged.contains_key(&G));
        write_all(&mut journal, vec![heal.clone()]);
        let (_, report) = open(&disk, 3).expect("opens");
        assert!(report.damaged.is_empty(), "{heal:?}: {report:?}");
        assert_eq!(report.corrupt.len(), 1, "still reported");
    }
}

#[test]
fn a_flipped_vote_is_damage_until_a_new_one() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk, 1).expect("opens");
    write_all(&mut journal, vec![Op::Vote { group: G, payload: Bytes::from_static(b"the older vote") }]);
    write_all(&mut journal, vec![Op::Vote { group: G, payload: Bytes::from_static(b"the newer vote") }]);
    journal.finish().expect("ends");
    let (name, at) = find(&disk, b"the newer vote");
    flip(&disk, &name, at);
    let (mut journal, report) = open(&disk, 2).expect("opens");
    assert!(report.damaged.contains_key(&G), "the older vote must not be taken for the last one");
    write_all(&mut journal, vec![Op::Vote { group: G, payload: Bytes::from_static(b"the newest vote") }]);
    let (_, report) = open(&disk, 3).expect("opens");
    assert!(report.damaged.is_empty());
}

/// Idle markers are not synced by themselves, so a bad one in the middle of a file proves nothing.
#[test]
fn a_bad_idle_marker_is_no_damage() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk, 1).expect("opens");
    write_all(&mut journal, vec![entry(1, 100)]);
    journal.mark_idle().expect("marked");
    write_all(&mut journal, vec![entry(2, 100)]);
    write_all(&mut journal, vec![entry(3, 100)]);
    journal.finish().expect("ends");
    let model = Model::of(&journal).expect("reads");
    // One block for the header, one for the first batch.
    flip(&disk, &disk.names()[0], 2 * 4096 + 20);
    let (journal, report) = open(&disk, 2).expect("opens");
    assert!(report.damaged.is_empty() && report.corrupt.is_empty(), "{report:?}");
    assert_eq!(report.cuts.len(), 1);
    assert!(Model::of(&journal).expect("reads") == model);
}

/// Only the next file shows that the last batch of a full one was synced.
#[test]
fn the_last_batch_of_a_file_is_vouched_for_by_the_next_file() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk, 1).expect("opens");
    let blocks = PARAMS.file_bytes / 4096 - 1;
    for number in 1..=blocks {
        write_all(&mut journal, vec![Op::Vote { group: G, payload: random(number, 3000) }]);
    }
    write_all(&mut journal, vec![entry(1, 3000)]);
    let (name, at) = find(&disk, &random(blocks, 3000));
    assert_eq!(
        (name.as_str(), at as u64 / 4096),
        (disk.names()[0].as_str(), blocks),
        "the last block of the first file"
    );
    let before = open(&disk.crashed(Survives::Nothing), 3).expect("opens").1;
    assert!(before.damaged.is_empty());
    flip(&disk, &name, at);
    let (_, report) = open(&disk, 2).expect("opens");
    assert!(report.damaged.contains_key(&G), "{report:?}");
}

/// JOURNAL-J8: the start that finds damage rewrites uncertain records, but none of a damaged group: its older vote,
/// written again, would pass for the last one at the next start.
#[test]
fn a_start_does_not_whitewash_a_damaged_group() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk, 1).expect("opens");
    write_all(&mut journal, vec![Op::Vote { group: G, payload: Bytes::from_static(b"the older vote") }]);
    write_all(&mut journal, vec![Op::Vote { group: G, payload: Bytes::from_static(b"the newer vote") }]);
    write_all(&mut journal, vec![entry(1, 100), Op::Committed { group: GroupId(2), id: LogId::new(1, 1) }]);
    let (name, at) = find(&disk, b"the newer vote");
    flip(&disk, &name, at);
    for boot in 2..5 {
        let (_, report) = open(&disk, boot).expect("opens");
        assert!(report.damaged.contains_key(&G), "boot {boot}: {report:?}");
    }
}

/// A lost record header: the groups of the rest of the batch are unknown.
#[test]
fn a_flipped_record_header_damages_every_group_that_may_have_lost() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk, 1).expect("opens");
    write_all(&mut journal, vec![entry(1, 100), Op::Vote { group: GroupId(2), payload: Bytes::from_static(b"two") }]);
    write_all(&mut journal, vec![Op::Vote { group: GroupId(3), payload: Bytes::from_static(b"three") }]);
    let payload = payload(1, 100);
    let (name, at) = find(&disk, &payload);
    flip(&disk, &name, at - 40);
    let (_, report) = open(&disk, 2).expect("opens");
    assert!(report.damaged.contains_key(&GroupId(3)), "{report:?}");
    assert_eq!(report.corrupt.len(), 1);
}

#[test]
fn a_bad_file_header_or_a_missing_file_is_damage() {
    for remove in [false, true] {
        let disk = SimDisk::new();
        let (mut journal, _) = open(&disk, 1).expect("opens");
        for index in 1..60 {
            write_all(&mut journal, vec![entry(index, 3000)]);
            journal.tidy().expect("tidy");
        }
        let names = disk.names();
        assert!(names.len() >= 4, "{names:?}");
        if remove {
            holdfast_journal::Disk::remove(&disk, &names[1]).expect("removes");
        } else {
            flip(&disk, &names[1], 50);
        }
        let (_, report) = open(&disk, 2).expect("opens");
        assert!(report.damaged.contains_key(&G), "{report:?}");
        assert!(report.corrupt[0].file == names[1] || report.corrupt[0].found.contains(&names[0]), "{report:?}");
    }
}

#[test]
fn an_unreadable_block_is_damage_and_its_neighbours_are_read() {
    let disk = SimDisk::new();
    let (mut journal, _) = open(&disk, 1).expect("opens");
    for index in 1..5 {
        write_all(&mut journal, vec![entry(index, 3000)]);
    }
    let payload = payload(2, 3000);
    let (name, at) = find(&disk, &payload);
    disk.make_unreadable(&name, (at / 4096 * 4096) as u64);
    let (journal, report) = open(&disk, 2).expect("opens");
    assert!(report.damaged.contains_key(&G), "{report:?}");
    assert!(report.corrupt[0].found.contains("cannot read"), "{report:?}");
    let catalog = journal.catalog();
    assert!(read_entry(&catalog, G, &catalog.index(G), 4).is_ok());
}

/// R10: bytes on disk are not readable; a part of a large entry and a vote are read back; another key or none is
/// refused before anything is served. With sealing switched off, sealed records are still read.
#[test]
fn a_sealed_journal_opens_with_its_key_only() {
    let disk = SimDisk::new();
    let (mut journal, _) = common::open_with(&disk, 1, Some(common::sealing(1, true))).expect("opens");
    let text = Bytes::from("not for the eyes of who takes this disk. ".repeat(1000));
    let vote = Op::Vote { group: G, payload: Bytes::from_static(b"a vote of some length") };
    write_all(&mut journal, vec![vote, Op::Entry { group: G, id: LogId::new(1, 0), payload: text.clone() }]);
    drop(journal);
    let readable = |disk: &SimDisk| {
        disk.names().iter().any(|name| {
            let bytes = disk.contents(name).unwrap_or_default();
            bytes.windows(20).any(|window| window == &text[..20] || window == &b"a vote of some length"[..20])
        })
    };
    assert!(!readable(&disk), "on disk in clear");
    for other in [None, Some(common::sealing(2, true))] {
        let refused = common::open_with(&disk, 2, other);
        assert!(matches!(refused, Err(RecoverError::WrongKey { .. })), "{refused:?}");
    }
    let (journal, report) = common::open_with(&disk, 3, Some(common::sealing(1, false))).expect("opens, switched off");
    assert!(report.corrupt.is_empty() && report.damaged.is_empty(), "{report:?}");
    let catalog = journal.catalog();
    let index = catalog.index(G);
    let part = read_part(&catalog, G, &index, 0, 30_000, 5_000).expect("whole");
    assert_eq!(part, text.slice(30_000..35_000));
    assert_eq!(read_entry(&catalog, G, &index, 0).expect("whole").1, text);
    assert!(readable(&disk), "switched off: what was carried over is in clear, so this test can see");
}

/// JOURNAL-J10: no tag is asked for in a file that names no key. So where files are sealed, it is refused, unless it
/// may be of the time before.
#[test]
fn j10_a_file_in_clear_is_refused_where_files_are_sealed() {
    let strict = || Sealing { reads_clear: false, ..common::sealing(1, true) };
    let disk = SimDisk::new();
    let (mut journal, _) = common::open_with(&disk, 1, Some(strict())).expect("opens");
    write_all(&mut journal, vec![Op::Entry { group: G, id: LogId::new(1, 0), payload: payload(0, 100) }]);
    drop(journal);
    let (journal, _) = common::open_with(&disk, 2, Some(strict())).expect("all of it is sealed");
    assert_eq!(journal.catalog().clear_files(), 0);
    drop(journal);
    let (mut journal, _) = common::open_with(&disk, 3, Some(common::sealing(1, false))).expect("switched off");
    write_all(&mut journal, vec![Op::Entry { group: G, id: LogId::new(1, 1), payload: payload(1, 100) }]);
    assert!(journal.catalog().clear_files() > 0);
    drop(journal);

    let before = disk.names();
    match common::open_with(&disk, 4, Some(strict())) {
        Err(error @ RecoverError::InClear { .. }) => {
            let text = error.to_string();
            assert!(text.contains("in clear, expected it sealed") && text.contains("journal.read_clear"), "{text}");
        }
        other => panic!("R9: a file in clear is believed: {other:?}"),
    }
    assert_eq!(disk.names(), before, "nothing is changed by it");
    let (journal, report) = common::open_with(&disk, 5, Some(common::sealing(1, true))).expect("allowed");
    assert!(report.corrupt.is_empty() && journal.catalog().clear_files() > 0, "{report:?}");
    let catalog = journal.catalog();
    for index in 0..2 {
        assert_eq!(read_entry(&catalog, G, &catalog.index(G), index).expect("whole").1, payload(index, 100));
    }
}

/// Forges another tag of the first chunk in the record of this kind, group and index, with a matching checksum: as
/// faulty memory or a forger would leave it.
fn forge(disk: &SimDisk, kind: u8, group: GroupId, id: LogId) {
    let mut head = vec![kind, 0, 1, 0];
    [group.0, id.term.0, id.index.0].iter().for_each(|number| head.extend(number.to_le_bytes()));
    let (name, at) = find(disk, &head);
    disk.damage(&name, |bytes| {
        let table = at + 44..at + 64;
        let mut change = vec![0; table.end - at];
        change[table.end - at - 1] = 1;
        bytes[table.end - 1] ^= 1;
        // Independent of the seed: the checksums of two texts of one length differ by that of the texts' difference.
        let crc = crc32c::crc32c(&change) ^ crc32c::crc32c(&vec![0; change.len()]);
        bytes[at - 4..at].iter_mut().zip(crc.to_le_bytes()).for_each(|(byte, flip)| *byte ^= flip);
    });
}

/// In the tail that no later batch notes as synced. Every start must find it, whatever was written since: the rewrite
/// of the other groups' tails must not make the damaged group look valid at the next start.
#[test]
fn a_record_that_is_whole_and_not_sealed_here_damages_its_group_only() {
    let other = GroupId(2);
    for kind in [1, 2] {
        let disk = SimDisk::new();
        let sealed = |seed| common::open_with(&disk, seed, Some(common::sealing(1, true)));
        let (mut journal, _) = sealed(1).expect("opens");
        write_all(&mut journal, vec![entry(0, 100)]);
        let theirs = Op::Entry { group: other, id: LogId::new(1, 0), payload: payload(7, 100) };
        let vote = |group| Op::Vote { group, payload: Bytes::from_static(b"a vote") };
        write_all(&mut journal, vec![vote(G), entry(1, 100), vote(other), theirs]);
        drop(journal);
        forge(&disk, kind, G, if kind == 1 { LogId::new(1, 1) } else { LogId::default() });
        for seed in 2..5 {
            let (mut journal, report) = sealed(seed).unwrap_or_else(|e| panic!("kind {kind}: no group starts: {e}"));
            assert_eq!(report.damaged.keys().collect::<Vec<_>>(), [&G], "kind {kind}, start {seed}: {report:?}");
            assert!(report.cuts.is_empty(), "kind {kind}: it is not torn: {report:?}");
            let catalog = journal.catalog();
            let found = read_entry(&catalog, other, &catalog.index(other), 0).expect("whole");
            assert_eq!(found.1, payload(7, 100), "kind {kind}, start {seed}");
            // Later: new files are begun, and old ones would be dropped.
            for n in 1..20 {
                let at = (seed - 2) * 20 + n;
                let more = Op::Entry { group: other, id: LogId::new(1, at - (seed - 2)), payload: payload(at, 9000) };
                write_all(&mut journal, vec![more]);
            }
            journal.tidy().expect("tidy");
            if seed == 3 {
                journal.finish().expect("finished");
            }
        }
        // After its leader has removed this member, its records are dropped, and the next start is clean.
        let (mut journal, _) = sealed(5).expect("opens");
        write_all(&mut journal, vec![Op::DropGroup { group: G }]);
        drop(journal);
        let (_, report) = sealed(6).expect("opens");
        assert!(report.damaged.is_empty(), "kind {kind}: {report:?}");
    }
}

/// A disk that fails once is no damage, which would last until peers heal it: the start fails, and the next one finds
/// everything.
#[test]
fn a_disk_that_does_not_answer_damages_no_group() {
    let disk = SimDisk::new();
    let sealed = |seed| common::open_with(&disk, seed, Some(common::sealing(1, true)));
    let (mut journal, _) = sealed(1).expect("opens");
    write_all(&mut journal, vec![entry(0, 100), entry(1, 100)]);
    drop(journal);
    let mut failed = 0;
    for reads in 0..12 {
        let disk = disk.crashed(Survives::Everything);
        disk.fail_read_after(reads);
        match common::open_with(&disk, 2, Some(common::sealing(1, true))) {
            Err(RecoverError::Io { what, .. }) => {
                assert!(what.contains("read of"), "{what}");
                failed += 1;
            }
            Err(other) => assert!(matches!(other, RecoverError::Read(ReadError::Io(_))), "{reads}: {other}"),
            Ok((_, report)) => assert!(report.damaged.is_empty(), "{reads}: {report:?}"),
        }
        let well = disk.crashed(Survives::Everything);
        let (_, report) = common::open_with(&well, 3, Some(common::sealing(1, true))).expect("the disk is well again");
        assert!(report.damaged.is_empty(), "{reads}: {report:?}");
    }
    assert_eq!(failed, 2, "each of the two entries was asked for");
}

/// A header that the disk twice reports unreadable is a lost file, if the disk can read the blocks behind it. If it can
/// read nothing of the file, the disk has to be repaired, not the groups.
#[test]
fn a_header_that_cannot_be_read_is_damage_only_where_the_disk_answers() {
    let end = PARAMS.file_bytes - 4096;
    for (unreadable, damaged) in [(vec![0], true), (vec![0, 4096], true), (vec![0, 4096, end], false)] {
        let disk = SimDisk::new();
        let (mut journal, _) = open(&disk, 1).expect("opens");
        write_all(&mut journal, vec![entry(1, 100)]);
        journal.finish().expect("ends");
        let name = disk.names().remove(0);
        unreadable.iter().for_each(|at| disk.make_unreadable(&name, *at));
        match open(&disk, 2) {
            Ok((_, report)) => {
                assert!(damaged, "{unreadable:?}: {report:?}");
                let lost = report.lost.map(|lost| lost.file);
                assert_eq!(lost, Some(name), "{unreadable:?}");
            }
            Err(RecoverError::Io { what, .. }) => assert!(!damaged && what.contains(&name), "{unreadable:?}: {what}"),
            Err(other) => panic!("{unreadable:?}: {other}"),
        }
    }
}

#[test]
fn other_disks_and_other_versions_are_refused() {
    let disk = SimDisk::new();
    drop(open(&disk, 1).expect("opens").0);
    let other = holdfast_journal::Params { disk_uuid: 8, ..PARAMS };
    let refused = Journal::open(disk.clone(), other, Box::new(|| 5));
    assert!(matches!(refused, Err(RecoverError::WrongDisk { found: 7, expected: 8, .. })), "{refused:?}");
    let name = disk.names().remove(0);
    disk.damage(&name, |bytes| bytes[8] = 99);
    let refused = open(&disk, 2);
    assert!(matches!(refused, Err(RecoverError::Version { found: 99, .. })), "{refused:?}");
}

#[test]
fn a_part_is_read_and_checked_without_the_rest() {
    let disk = SimDisk::new();
    let params = holdfast_journal::Params { file_bytes: 4 << 20, ..PARAMS };
    let mut rng = Rng(3);
    let (mut journal, _) =
        Journal::open(disk.clone(), params, Box::new(move || u128::from(rng.next()))).expect("opens");
    let payload = random(5, 700_000);
    let op = Op::Entry { group: G, id: LogId::new(1, 0), payload: payload.clone() };
    journal.write(&mut VecDeque::from([op])).expect("written");
    let catalog = journal.catalog();
    let index = catalog.index(G);
    let mut rng = Rng(4);
    for _ in 0..500 {
        let offset = rng.below(payload.len() as u64);
        let len = rng.below((payload.len() as u64 - offset).min(40_000) + 1) as usize;
        let part = read_part(&catalog, G, &index, 0, offset as u32, len).expect("reads");
        assert_eq!(part, payload.slice(offset as usize..offset as usize + len));
    }
    assert!(matches!(read_part(&catalog, G, &index, 0, 699_999, 2), Err(ReadError::OutOfBounds { .. })));
    let (name, at) = find(&disk, &payload[400_000..400_064]);
    flip(&disk, &name, at);
    assert!(read_part(&catalog, G, &index, 0, 100, 8192).is_ok(), "another chunk");
    assert!(matches!(read_part(&catalog, G, &index, 0, 399_000, 2000), Err(ReadError::Corrupt(_))));
    assert!(matches!(read_entry(&catalog, G, &index, 0), Err(ReadError::Corrupt(_))));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: ProptestConfig::default().cases.max(300), failure_persistence: None, ..ProptestConfig::default() })]

    /// Any byte of any file changes after everything was synced. Every group that is not reported damaged keeps its
    /// content; and no read of any group returns a payload that was never appended under that log id.
    #[test]
    fn rot_is_reported_or_harmless(seed in any::<u64>(), jobs in 1u64..50, bytes in 1usize..600) {
        let disk = SimDisk::new();
        let mut generator = Generator::new(seed);
        let (mut journal, _) = open(&disk, seed).expect("opens");
        let mut model = Model::default();
        let mut appended: BTreeMap<(GroupId, LogId), Vec<Bytes>> = BTreeMap::new();
        for _ in 0..jobs {
            let job = generator.job(&model);
            for op in &job {
                model.apply(op);
                if let Op::Entry { group, id, payload } = op {
                    appended.entry((*group, *id)).or_default().push(payload.clone());
                }
            }
            journal.write(&mut VecDeque::from(job)).expect("written");
            journal.tidy().expect("tidy");
            if generator.rng.chance(20) {
                journal.mark_idle().expect("marked");
            }
        }
        journal.finish().expect("ends");
        drop(journal);
        let names = disk.names();
        let name = &names[generator.rng.below(names.len() as u64) as usize];
        let size = disk.contents(name).expect("there").len();
        // Mostly where something was written.
        let used = disk.contents(name).expect("there").iter().rposition(|byte| *byte != 0).unwrap_or(0) + 1;
        let reach = if generator.rng.chance(90) { used } else { size };
        let at = generator.rng.below(reach as u64) as usize;
        let mask = 1u8 << generator.rng.below(8);
        disk.damage(name, |file| file[at..size.min(at + bytes)].iter_mut().for_each(|byte| *byte ^= mask));
        let context = format!("seed {seed} jobs {jobs} bytes {bytes}: {name} at {at}");
        let (journal, report) = match open(&disk, seed ^ 1) {
            Ok(opened) => opened,
            Err(RecoverError::Version { .. }) => return Ok(()),
            Err(error) => panic!("{context}: {error}"),
        };
        let catalog = journal.catalog();
        for group in model.0.keys() {
            let shared = catalog.index(*group);
            let damaged = report.damaged.contains_key(group);
            prop_assert_eq!(shared.lock().expect("whole").damaged().is_some(), damaged, "{}", context);
            let range = { let index = shared.lock().expect("whole"); index.first()..index.next() };
            for index in range {
                match read_entry(&catalog, *group, &shared, index) {
                    Ok((id, payload)) => {
                        let known = appended.get(&(*group, id)).is_some_and(|payloads| payloads.contains(&payload));
                        prop_assert!(known, "{}: served {} of {} which was never appended", context, id, group);
                    }
                    Err(error) => prop_assert!(damaged, "{}: {} of an undamaged group", context, error),
                }
            }
        }
        // The next starts find the same, whatever is written meanwhile (JOURNAL-J8), until the groups are dropped.
        let mut journal = journal;
        let idle = GroupId(77);
        for round in 2..5 {
            let vote = |_| Op::Vote { group: idle, payload: random(round, 2000) };
            for _ in 0..20 {
                journal.write(&mut (0..3).map(vote).collect()).expect("written");
                journal.tidy().expect("tidy");
            }
            if round == 4 {
                break;
            }
            let survives = if generator.rng.chance(50) { Survives::Nothing } else { Survives::Everything };
            let (again, second) = open(&disk.crashed(survives), seed ^ round).expect("opens");
            for group in report.damaged.keys() {
                prop_assert!(second.damaged.contains_key(group), "{}: {} passed for whole later: {:?}", context, group, second);
            }
            for group in model.0.keys().filter(|group| !report.damaged.contains_key(group)) {
                let state = Model::of_group(&again, *group).map_err(TestCaseError::fail)?;
                let first = Model::of_group(&journal, *group).map_err(TestCaseError::fail)?;
                prop_assert!(second.damaged.contains_key(group) || state == first, "{}: {} changed", context, group);
            }
        }
        let mut expected = model.clone();
        expected.0.retain(|group, _| !report.damaged.contains_key(group));
        let mut bad: Vec<GroupId> = report.damaged.keys().copied().collect();
        bad.push(idle);
        let mut found = Model::default();
        for group in catalog.groups().into_iter().filter(|group| !bad.contains(group)) {
            if let Some(state) = Model::of_group(&journal, group).map_err(TestCaseError::fail)? {
                found.0.insert(group, state);
            }
        }
        // A group whose records were all in the lost bytes is unknown; then the loss itself is reported.
        if report.corrupt.is_empty() {
            prop_assert!(found == expected, "{}: {:?}", context, report);
        } else {
            for (group, state) in &found.0 {
                prop_assert!(Some(state) == expected.0.get(group), "{}: {} {:?}", context, group, report);
            }
        }
        for group in report.damaged.keys() {
            journal.write(&mut VecDeque::from([Op::DropGroup { group: *group }])).expect("written");
        }
        let (_, last) = open(&disk.crashed(Survives::Nothing), seed ^ 99).expect("opens");
        let left: Vec<&GroupId> = last.damaged.keys().filter(|group| report.damaged.contains_key(group)).collect();
        prop_assert!(left.is_empty(), "{}: still damaged after they were dropped: {:?}", context, left);
    }
}
