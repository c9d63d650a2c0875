//! Batches that are begun and ended apart, as by io_uring: whatever happens between, the test decides.

use holdfast_log::{Entry, GroupLog, Identity, LogConfig, NodeLog, Step, Turns};
use holdfast_testkit::{SimDisk, Survives};
use holdfast_types::{GroupId, LogId};
use proptest::prelude::*;
use std::io;
use std::sync::mpsc::{self, Receiver, TryRecvError};

const FILE_BYTES: u64 = 128 << 10;

fn open(disk: &SimDisk) -> (NodeLog, Turns) {
    let (bound_bytes, reserve_bytes) = (1 << 20, 128 << 10);
    let config =
        LogConfig { file_bytes: FILE_BYTES, bound_bytes, reserve_bytes, tail_bytes: 0, ..LogConfig::new("simulated") };
    let (node, report, turns) = NodeLog::open_in_turns(disk.clone(), config, Identity::default(), None).expect("opens");
    assert_eq!(report.damaged.len(), 0, "{report:?}");
    (node, turns)
}

/// A log on a disk that takes writes to begin, with nothing left to tidy.
fn begin() -> (SimDisk, NodeLog, GroupLog, Turns) {
    let disk = SimDisk::new();
    disk.take_begun();
    let (node, mut turns) = open(&disk);
    assert!(matches!(turns.step(), Step::Rest(_)));
    let log = node.group(GroupId(1));
    (disk, node, log, turns)
}

fn entry(index: u64, len: usize) -> Entry {
    let payload = (0..len).map(|at| (index as usize * 50 + at) as u8).collect::<Vec<u8>>();
    Entry { id: LogId::new(1, index), payload: payload.into() }
}

fn append(log: &GroupLog, index: u64, len: usize) -> Receiver<io::Result<()>> {
    let (sender, receiver) = mpsc::channel();
    log.append(vec![entry(index, len)], move |result| sender.send(result).expect("the test waits"));
    receiver
}

/// Indexes that a log has which is opened after a crash: all that it has must be readable.
fn left(disk: &SimDisk, survives: Survives<'_>) -> Vec<u64> {
    let (node, _turns) = open(&disk.crashed(survives));
    let log = node.group(GroupId(1));
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
    let first = log.state().first.map_or(0, |first| first.0);
    let found = runtime.block_on(log.entries(first..1000, usize::MAX)).expect("reads");
    for found in &found {
        assert_eq!(*found, entry(found.id.index.0, found.payload.len()));
    }
    found.iter().map(|entry| entry.id.index.0).collect()
}

fn durable(done: &Receiver<io::Result<()>>) {
    done.try_recv().expect("called back").expect("durable");
}

fn waits(done: &Receiver<io::Result<()>>) {
    assert_eq!(done.try_recv().map(|result| result.is_ok()), Err(TryRecvError::Empty));
}

/// R1, LOG-L1: between begin and end nobody is told anything, and a crash may tear the batch; after the end none can.
#[test]
fn a_crash_between_begin_and_end_loses_nothing_that_was_acknowledged() {
    let (disk, _node, log, mut turns) = begin();
    let first = append(&log, 0, 700);
    assert_eq!(turns.step(), Step::UnderWay);
    disk.end_write();
    assert!(matches!(turns.step(), Step::Rest(Some(_))));
    durable(&first);
    let second = append(&log, 1, 3000);
    assert_eq!(turns.step(), Step::UnderWay);
    assert!(disk.is_writing());
    for _ in 0..3 {
        assert_eq!(turns.step(), Step::UnderWay, "it asks for nothing twice");
    }
    waits(&second);
    assert!(disk.unsynced_bytes() > 3000);
    for kept in (0..3000).step_by(250) {
        assert_eq!(left(&disk, Survives::Prefix(kept)), [0], "a torn batch is cut: {kept} bytes survive");
    }
    assert_eq!(left(&disk, Survives::Everything), [0, 1]);
    disk.end_write();
    waits(&second);
    turns.step();
    durable(&second);
    assert_eq!(left(&disk, Survives::Nothing), [0, 1]);
}

/// Group commit: what comes while a batch is under way is the next one.
#[test]
fn what_comes_meanwhile_is_one_batch() {
    let (disk, _node, log, mut turns) = begin();
    let mut done = vec![append(&log, 0, 100)];
    assert_eq!(turns.step(), Step::UnderWay);
    let writes = disk.writes();
    done.extend((1..10).map(|index| append(&log, index, 100)));
    assert_eq!(turns.step(), Step::UnderWay);
    assert_eq!(disk.writes(), writes, "one batch at a time");
    disk.end_write();
    assert_eq!(turns.step(), Step::UnderWay);
    assert_eq!(disk.writes(), writes + 1);
    durable(&done.remove(0));
    done.iter().for_each(waits);
    disk.end_write();
    turns.step();
    done.iter().for_each(durable);
    assert_eq!(left(&disk, Survives::Nothing), (0..10).collect::<Vec<_>>());
}

/// R9, LOG-L2: as if the thread had written it.
#[test]
fn a_failed_end_ends_the_journal() {
    let faults: [fn(&SimDisk, u64); 2] = [SimDisk::fail_sync_after, SimDisk::fail_write_after];
    for fault in faults {
        let (disk, node, log, mut turns) = begin();
        fault(&disk, 0);
        let (first, second) = (append(&log, 0, 100), append(&log, 1, 100));
        assert_eq!(turns.step(), Step::UnderWay);
        let third = append(&log, 2, 100);
        disk.end_write();
        assert_eq!(turns.step(), Step::Rest(None));
        let fourth = append(&log, 3, 100);
        assert_eq!(turns.step(), Step::Rest(None));
        for done in [first, second, third, fourth] {
            done.try_recv().expect("called back").expect_err("not durable");
        }
        assert!(node.usage().failed.is_some());
        assert!(!disk.is_writing(), "nothing is written any more");
    }
}

/// A file that is full, the next one, and files that hold nothing: all that may wait for the disk is the thread's.
#[test]
fn the_thread_does_what_may_wait_for_the_disk() {
    let (disk, node, log, mut turns) = begin();
    let (mut helps, mut ended) = (0, 0);
    let mut through = |turns: &mut Turns, done: &Receiver<io::Result<()>>| {
        for _ in 0..100 {
            match turns.step() {
                Step::UnderWay => {
                    disk.end_write();
                    ended += 1;
                }
                Step::Help => {
                    turns.help();
                    helps += 1;
                }
                Step::Rest(_) => return durable(done),
                Step::Close => panic!("it is open"),
            }
        }
        panic!("it does not come to rest");
    };
    for index in 0..200 {
        through(&mut turns, &append(&log, index, 5000));
        if index % 10 == 9 {
            log.purge_later(LogId::new(1, index - 5)).expect("open");
        }
    }
    assert!((8..60).contains(&helps), "{helps} times, for some thirteen files");
    assert!(ended > 150, "{ended} batches were begun");
    let files = disk.names().iter().filter(|name| name.starts_with("journal-")).count();
    assert!(files <= 5, "{files} files: purged ones are dropped");
    assert_eq!(left(&disk, Survives::Nothing), (185..200).collect::<Vec<_>>());
    assert_eq!(node.usage().stalled, None);
}

/// LOG-L1: a batch that is durable is called back before the thread tidies for as long as the disk takes.
#[test]
fn tidying_waits_for_the_callbacks() {
    let (disk, _node, log, mut turns) = begin();
    for index in 0..50 {
        let done = append(&log, index, 5000);
        while !matches!(turns.step(), Step::Rest(_)) {
            disk.end_write();
            turns.help();
        }
        durable(&done);
    }
    let files = || disk.names().iter().filter(|name| name.starts_with("journal-")).count();
    let before = files();
    log.purge_later(LogId::new(1, 40)).expect("open");
    let done = append(&log, 50, 100);
    assert_eq!(turns.step(), Step::UnderWay, "purge and entry are one batch");
    disk.end_write();
    assert_eq!(turns.step(), Step::Help, "files hold nothing any more");
    durable(&done);
    assert_eq!(files(), before);
    turns.help();
    assert!(files() < before, "{} files of {before} are left", files());
    assert_eq!(left(&disk, Survives::Nothing), (41..=50).collect::<Vec<_>>());
}

/// JOURNAL-J1: the batch behind an idle marker needs an fdatasync of the file, which only the thread may wait for.
#[test]
fn after_a_pause_the_first_batch_is_the_threads() {
    let (disk, _node, log, mut turns) = begin();
    let first = append(&log, 0, 100);
    assert_eq!(turns.step(), Step::UnderWay);
    disk.end_write();
    let Step::Rest(Some(pause)) = turns.step() else { panic!("the last batch is to be marked") };
    assert!(!pause.is_zero());
    durable(&first);
    turns.help();
    assert_eq!(turns.step(), Step::Rest(None), "it is marked");
    let second = append(&log, 1, 100);
    assert_eq!(turns.step(), Step::Help);
    waits(&second);
    turns.help();
    durable(&second);
    let third = append(&log, 2, 100);
    assert_eq!(turns.step(), Step::UnderWay);
    // A call that comes too late, or for nothing, ends what is under way first.
    turns.help();
    durable(&third);
    assert_eq!(left(&disk, Survives::Nothing), [0, 1, 2]);
}

/// What is large is copied and checked beside the worker. The thread goes on with what is large behind it, and no
/// longer.
#[test]
fn a_large_batch_is_the_threads() {
    let (disk, _node, log, mut turns) = begin();
    let done = [append(&log, 0, 70_000), append(&log, 1, 70_000), append(&log, 2, 100)];
    assert_eq!(turns.step(), Step::Help);
    assert!(!disk.is_writing());
    turns.help();
    done[..2].iter().for_each(durable);
    waits(&done[2]);
    assert_eq!(turns.step(), Step::UnderWay);
    disk.end_write();
    turns.step();
    durable(&done[2]);
    assert_eq!(left(&disk, Survives::Nothing), [0, 1, 2]);
}

/// The task is gone, or the journal is to close, while a batch is under way.
#[test]
fn the_thread_ends_what_the_task_has_begun() {
    let (disk, node, log, mut turns) = begin();
    let done: Vec<_> = (0..3).map(|index| append(&log, index, 40_000)).collect();
    assert_eq!(turns.step(), Step::UnderWay);
    node.close();
    assert_eq!(turns.step(), Step::Close);
    done.iter().for_each(waits);
    turns.turn(false);
    done.iter().for_each(durable);
    turns.turn(false);
    assert_eq!(left(&disk, Survives::Nothing), [0, 1, 2]);
    append(&log, 3, 10).try_recv().expect("called back").expect_err("it is closed");
}

/// A disk that takes no writes to begin is written to by the thread.
#[test]
fn a_disk_that_refuses_to_begin_is_written_to_all_the_same() {
    let disk = SimDisk::new();
    let (node, mut turns) = open(&disk);
    let log = node.group(GroupId(1));
    for index in 0..3 {
        let done = append(&log, index, 100);
        assert_eq!(turns.step(), Step::Help);
        waits(&done);
        turns.help();
        durable(&done);
    }
    assert_eq!(left(&disk, Survives::Nothing), [0, 1, 2]);
    assert_eq!(log.entries_in_tail(0..1), None, "payloads leave memory as always");
}

#[derive(Clone, Debug)]
enum Act {
    Append(usize),
    Step,
    /// The disk ends what was begun.
    End,
    /// The thread, called or not.
    Help,
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    let act = prop_oneof![
        3 => (1..6000_usize).prop_map(Act::Append),
        4 => Just(Act::Step),
        2 => Just(Act::End),
        1 => Just(Act::Help),
    ];
    prop::collection::vec(act, 1..120)
}

proptest! {
    /// R1, LOG-L1, in any order of steps, ends and the thread's turns, with any sectors lost.
    #[test]
    fn what_was_called_back_survives_a_crash_at_any_step(acts in acts(), seed in any::<u64>()) {
        let (disk, _node, log, mut turns) = begin();
        let mut done = Vec::new();
        for act in acts {
            match act {
                Act::Append(len) => done.push(append(&log, done.len() as u64, len)),
                Act::Step => {
                    turns.step();
                }
                Act::End => disk.end_write(),
                Act::Help => turns.help(),
            }
        }
        let acknowledged = done.iter().take_while(|done| matches!(done.try_recv(), Ok(Ok(())))).count();
        done[acknowledged..].iter().for_each(waits);
        let mut random = seed | 1;
        let mut survives = || {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            random % 3 > 0
        };
        let found = left(&disk, Survives::Some(&mut survives));
        prop_assert_eq!(&found, &(0..found.len() as u64).collect::<Vec<_>>());
        let few = acknowledged..=done.len();
        prop_assert!(few.contains(&found.len()), "{} are left, of {:?}", found.len(), few);
    }
}
