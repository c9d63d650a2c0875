//! The log without its thread: whatever happens between two turns, the test decides.

use bytes::Bytes;
use holdfast_journal::{PAYLOAD_BYTES_MAX, record_bytes};
use holdfast_log::{Entry, GroupLog, Identity, LogConfig, NodeLog, ReadError, ReadPlace, RecoveryReport, Turns};
use holdfast_testkit::{SimDisk, Survives};
use holdfast_types::{GroupId, LogId, LogIndex};
use std::io;
use std::sync::mpsc;
use std::task::{Context, Poll, Waker};

fn open(disk: &SimDisk, tail_bytes: u64) -> (NodeLog, RecoveryReport, Turns) {
    let (file_bytes, bound_bytes, reserve_bytes) = (128 << 10, 1 << 20, 128 << 10);
    let config = LogConfig { file_bytes, bound_bytes, reserve_bytes, tail_bytes, ..LogConfig::new("simulated") };
    NodeLog::open_in_turns(disk.clone(), config, Identity::default(), None).expect("opens")
}

/// Ends the log, so that the next one finds that everything was synced.
fn close(node: NodeLog, mut turns: Turns) {
    node.close();
    turns.turn(false);
}

fn payload(index: u64, len: usize) -> Bytes {
    (0..len).map(|at| (index as usize * 50 + at) as u8).collect::<Vec<u8>>().into()
}

/// No eight bytes of it come twice.
fn numbered(len: usize) -> Bytes {
    let byte = |at: usize| ((at / 8) as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[at % 8];
    (0..len).map(byte).collect()
}

fn entry(index: u64, len: usize) -> Entry {
    Entry { id: LogId::new(1, index), payload: payload(index, len) }
}

fn append(log: &GroupLog, entries: Vec<Entry>) -> mpsc::Receiver<io::Result<()>> {
    let (sender, receiver) = mpsc::channel();
    log.append(entries, move |result| drop(sender.send(result)));
    receiver
}

fn append_upto(log: &GroupLog, entries: Vec<Entry>) -> mpsc::Receiver<io::Result<()>> {
    let (sender, receiver) = mpsc::channel();
    log.append_upto(entries, move |result| drop(sender.send(result)));
    receiver
}

/// The answer to `asked`, after one turn if it needs one.
fn answer<T>(turns: &mut Turns, asked: impl Future<Output = T>) -> T {
    let mut context = Context::from_waker(Waker::noop());
    let mut asked = std::pin::pin!(asked);
    if let Poll::Ready(answer) = asked.as_mut().poll(&mut context) {
        return answer;
    }
    turns.turn(false);
    match asked.as_mut().poll(&mut context) {
        Poll::Ready(answer) => answer,
        Poll::Pending => panic!("no answer after a turn"),
    }
}

/// LOG-L4: who admits client data must see what waits as well.
#[test]
fn what_waits_for_the_disk_counts_as_used() {
    let (node, _, mut turns) = open(&SimDisk::new(), 0);
    let header = node.usage().used_bytes;
    assert_eq!(header, 4096);
    let done = append(&node.group(GroupId(1)), (0..10).map(|index| entry(index, 1000)).collect());
    let waiting = 10 * record_bytes(1000) as u64;
    assert_eq!(node.usage().used_bytes, header + waiting);
    turns.turn(false);
    done.try_recv().expect("called back").expect("durable");
    let batch = (64 + waiting).next_multiple_of(4096);
    assert_eq!(node.usage().used_bytes, header + batch, "one batch of whole blocks");
}

#[test]
fn a_payload_that_fits_into_no_record_is_refused_and_changes_nothing() {
    let (node, _, mut turns) = open(&SimDisk::new(), 0);
    let log = node.group(GroupId(1));
    let refused = append(&log, vec![entry(0, PAYLOAD_BYTES_MAX + 1)]);
    turns.turn(false);
    let why = refused.try_recv().expect("called back").expect_err("too large");
    assert_eq!((why.kind(), log.state().last), (io::ErrorKind::InvalidInput, None));
    let why = answer(&mut turns, log.save_vote(payload(0, PAYLOAD_BYTES_MAX + 1))).expect_err("too large");
    assert_eq!((why.kind(), log.state().vote), (io::ErrorKind::InvalidInput, None));
    assert!(node.usage().failed.is_none());
    // One that is as large as can be is taken. (It is not written: files are larger where that may be.)
    let _waits = append(&log, vec![entry(0, PAYLOAD_BYTES_MAX)]);
    assert_eq!(log.state().last, Some(LogId::new(1, 0)));
}

#[test]
fn nothing_is_truncated_below_what_is_purged() {
    let (node, _, mut turns) = open(&SimDisk::new(), 0);
    let log = node.group(GroupId(1));
    let _done = append(&log, (0..10).map(|index| entry(index, 100)).collect());
    let five = LogId::new(1, 5);
    answer(&mut turns, log.purge(five)).expect("durable");
    let before = log.state();
    for last in [None, Some(LogId::new(1, 0)), Some(LogId::new(1, 4))] {
        let refused = answer(&mut turns, log.truncate_after(last));
        assert_eq!(refused.expect_err("below the purge").kind(), io::ErrorKind::InvalidInput, "{last:?}");
        assert_eq!(log.state(), before, "{last:?}");
    }
    answer(&mut turns, log.truncate_after(Some(five))).expect("all that is left");
    assert_eq!((log.state().first, log.state().last), (None, Some(five)));
    answer(&mut turns, log.purge(LogId::new(1, 3))).expect("an older purge");
    assert_eq!(log.state().purged, Some(five), "it takes nothing back");
}

/// A note is written lazily, and what it named may be gone by then.
#[test]
fn what_is_known_committed_is_never_beyond_the_log() {
    let disk = SimDisk::new();
    let (node, _, mut turns) = open(&disk, 0);
    let log = node.group(GroupId(1));
    let _done = append(&log, (0..5).map(|index| entry(index, 100)).collect());
    turns.turn(false);
    let [two, four] = [2, 4].map(|index| LogId::new(1, index));
    log.save_committed(four);
    answer(&mut turns, log.truncate_after(Some(two))).expect("durable");
    close(node, turns);
    let (node, _, turns) = open(&disk, 0);
    let log = node.group(GroupId(1));
    assert_eq!((log.state().committed, log.state().last), (None, Some(two)));
    log.save_committed(two);
    close(node, turns);
    let (node, ..) = open(&disk, 0);
    assert_eq!(node.group(GroupId(1)).state().committed, Some(two), "its last entry");
}

#[test]
fn a_read_may_end_with_the_payload_and_not_behind_it() {
    for tail_bytes in [1 << 20, 0] {
        let (node, _, mut turns) = open(&SimDisk::new(), tail_bytes);
        let log = node.group(GroupId(1));
        let _done = append(&log, vec![entry(0, 10)]);
        turns.turn(false);
        assert_eq!(log.entries_in_tail(0..1).is_some(), tail_bytes > 0, "in memory, or on disk only");
        for (offset, len) in [(0, 10), (3, 7), (9, 1), (10, 0)] {
            let read = answer(&mut turns, log.read(LogIndex(0), offset, len)).expect("whole");
            assert_eq!(read, payload(0, 10).slice(offset as usize..), "{len} bytes at {offset}");
        }
        for (offset, len) in [(0, 11), (3, 8), (10, 1), (11, 0), (1, usize::MAX)] {
            let refused = answer(&mut turns, log.read(LogIndex(0), offset, len));
            assert!(matches!(refused, Err(ReadError::OutOfBounds { index: 0, .. })), "{len} at {offset}: {refused:?}");
        }
    }
}

#[test]
fn many_places_are_read_in_their_order_wherever_they_are() {
    let (node, _, mut turns) = open(&SimDisk::new(), 30);
    let log = node.group(GroupId(1));
    let _done: Vec<_> = (0..4).map(|index| append(&log, vec![entry(index, 20)])).collect();
    turns.turn(false);
    let in_tail = [0, 1, 2, 3].map(|index| log.entries_in_tail(index..index + 1).is_some());
    assert_eq!(in_tail, [false, false, false, true], "there is room for one");
    let place = |index, offset, len| ReadPlace { index: LogIndex(index), offset, len };
    for places in [
        vec![place(3, 5, 3), place(0, 0, 20), place(2, 19, 1), place(3, 0, 4), place(1, 4, 4)],
        vec![place(3, 1, 2), place(3, 0, 20)],
        Vec::new(),
    ] {
        let part = |p: &ReadPlace| payload(p.index.0, 20).slice(p.offset as usize..p.offset as usize + p.len);
        let expected: Vec<Bytes> = places.iter().map(part).collect();
        assert_eq!(answer(&mut turns, log.read_many(places)).expect("whole"), expected);
    }
    for bad in [place(4, 0, 1), place(0, 20, 1), place(3, 20, 1)] {
        let refused = answer(&mut turns, log.read_many(vec![place(3, 0, 1), place(1, 0, 1), bad]));
        assert!(refused.is_err(), "{bad:?}: {refused:?}");
    }
}

/// R9: what lies between two places is read with them, and its damage is not theirs. That of a place is told.
#[test]
fn places_close_to_each_other_are_one_read_and_answer_for_themselves() {
    let disk = SimDisk::new();
    let (node, _, mut turns) = open(&disk, 0);
    let log = node.group(GroupId(1));
    let len = 90_000;
    let _done = append(&log, vec![Entry { id: LogId::new(1, 0), payload: numbered(len) }]);
    turns.turn(false);
    let place = |offset: usize, len| ReadPlace { index: LogIndex(0), offset: offset as u32, len };
    let part = |p: &ReadPlace| numbered(len).slice(p.offset as usize..p.offset as usize + p.len);
    let near = [place(0, 72), place(20_000, 4_000), place(24_000, 500), place(24_100, 10), place(80_000, 10_000)];
    let expected: Vec<Bytes> = near.iter().map(part).collect();
    disk.fail_read_after(1);
    assert_eq!(answer(&mut turns, log.read_many(near.to_vec())).expect("one read"), expected);
    disk.restart();
    // Too far apart, and back again: each by itself.
    let apart = [place(0, 72), place(70_000, 500), place(100, 5)];
    assert_eq!(answer(&mut turns, log.read_many(apart.to_vec())).expect("whole"), apart.each_ref().map(part));
    disk.damage(&disk.names().remove(0), |bytes| {
        let wanted = numbered(len).slice(50_000..50_008);
        let at = bytes.windows(8).position(|window| window == &wanted[..]).expect("there");
        bytes[at] ^= 1;
    });
    assert_eq!(answer(&mut turns, log.read_many(near.to_vec())).expect("none of them is damaged"), expected);
    let refused = answer(&mut turns, log.read_many(vec![near[0], place(50_000, 4), near[4]]));
    assert!(matches!(refused, Err(ReadError::Corrupt(_))), "{refused:?}");
}

/// R9: nobody knows whose the lost records were. Of a group that the journal does not know, all may have been among
/// them.
#[test]
fn a_group_that_may_be_among_the_lost_is_damaged_until_it_is_dropped() {
    let disk = SimDisk::new();
    let (node, _, mut turns) = open(&disk, 0);
    let _done = append(&node.group(GroupId(1)), vec![entry(0, 10)]);
    turns.turn(false);
    close(node, turns);
    disk.damage(&disk.names()[0], |bytes| bytes[50] ^= 1);

    let (node, report, mut turns) = open(&disk, 0);
    assert!(report.lost.is_some(), "{report:?}");
    let unknown = node.group(GroupId(9));
    assert_eq!(unknown.state().damaged, report.lost);
    assert!(unknown.state().unknown);
    answer(&mut turns, unknown.drop_group()).expect("durable");
    assert_eq!((unknown.state().damaged, unknown.state().unknown), (None, false));
    close(node, turns);

    let (node, report, _turns) = open(&disk, 0);
    assert!(report.lost.is_some(), "the file is there still: {report:?}");
    let damaged = [9, 10].map(|id| node.group(GroupId(id)).state().damaged);
    assert_eq!(damaged, [None, report.lost], "9 was dropped after the loss");
}

/// A full disk is waited for, but not by a gateway that is told to end: what had no room was never acknowledged.
#[test]
fn closed_while_the_disk_is_full_nothing_more_is_acknowledged() {
    let disk = SimDisk::new();
    let (node, _, mut turns) = open(&disk, 0);
    let log = node.group(GroupId(1));
    disk.set_files_max(Some(disk.names().len()));
    let waiting: Vec<_> = (0..300).map(|index| append(&log, vec![entry(index, 1000)])).collect();
    turns.turn(false);
    assert!(node.usage().stalled.is_some() && turns.waits(), "{:?}", node.usage());
    node.clone().close();
    turns.turn(false);
    let results = waiting.iter().map(|receiver| receiver.try_recv().expect("called back").is_ok());
    let results: Vec<bool> = results.collect();
    let done = results.iter().take_while(|ok| **ok).count();
    assert!(done > 0 && done < 300 && !results[done..].contains(&true), "{done} had room: {results:?}");
    assert!(node.usage().failed.is_some_and(|why| why.contains("closed while no file could be begun")));
    let (again, ..) = open(&disk.crashed(Survives::Nothing), 0);
    // Of the job that was under way a part may be there.
    let last = again.group(GroupId(1)).state().last;
    assert!(last.is_some_and(|last| last.index.0 + 1 >= done as u64), "{done} were acknowledged, the last is {last:?}");
}

/// LOG-L1: openraft needs only the newest completion, and each call costs it a pass of its core.
#[test]
fn the_last_append_of_a_batch_speaks_for_those_before_it() {
    let disk = SimDisk::new();
    let (node, _, mut turns) = open(&disk, 0);
    let (log, other) = (node.group(GroupId(1)), node.group(GroupId(2)));
    let first = append_upto(&log, vec![entry(0, 100)]);
    let of_another_group = append_upto(&other, vec![entry(0, 100)]);
    let of_itself_only = append(&log, vec![entry(1, 100)]);
    let last = append_upto(&log, vec![entry(2, 100)]);
    let behind = append(&log, vec![entry(3, 100)]);
    turns.turn(false);
    assert_eq!(first.try_recv().expect_err("the last one speaks for it"), mpsc::TryRecvError::Disconnected);
    for told in [of_another_group, of_itself_only, last, behind] {
        told.try_recv().expect("called back").expect("durable");
    }
    let alone = append_upto(&log, vec![entry(4, 100)]);
    turns.turn(false);
    alone.try_recv().expect("called back").expect("durable");
    // LOG-L2: an error is told to each.
    disk.fail_write_after(0);
    let failing = [5, 6].map(|index| append_upto(&log, vec![entry(index, 100)]));
    turns.turn(false);
    for told in failing {
        told.try_recv().expect("called back").expect_err("not durable");
    }
}

/// LOG-L1: a note says that an entry is committed, by its term and index. If it came to the disk before the entry, a
/// crash in between would leave another leader's entry under this index, and it would be applied.
#[test]
fn what_is_noted_as_committed_is_on_the_disk_before_its_note() {
    let mut noted = 0;
    for fails_after in 0..8 {
        let disk = SimDisk::new();
        let (node, _, mut turns) = open(&disk, 0);
        let (log, other) = (node.group(GroupId(1)), node.group(GroupId(2)));
        let _older = append(&log, (0..6).map(|index| entry(index, 100)).collect());
        turns.turn(false);
        // The next leader's entry replaces the last one. It waits behind as many bytes as one batch takes.
        let _fills = append(&other, vec![entry(0, 32_660)]);
        let mut truncated = std::pin::pin!(log.truncate_after(Some(LogId::new(1, 4))));
        assert!(truncated.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        let newer = LogId::new(2, 5);
        let _newer = append(&log, vec![Entry { id: newer, payload: payload(5, 100) }]);
        log.save_committed(newer);
        disk.fail_write_after(fails_after);
        turns.turn(false);
        let (again, ..) = open(&disk.crashed(Survives::Nothing), 0);
        let log = again.group(GroupId(1));
        if let Some(committed) = log.state().committed {
            noted += 1;
            assert_eq!(log.term_at(committed.index), Some(committed.term), "write {fails_after} fails");
        }
    }
    assert!((1..8).contains(&noted), "{noted} of 8: nothing is tested");
}
