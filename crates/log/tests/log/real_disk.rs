//! The public API on real files.

use bytes::Bytes;
use holdfast_journal::Disk;
use holdfast_log::{Entry, GroupLog, Identity, JournalIo, LogConfig, NodeLog, OpenError, ReadError, RealDisk};
use holdfast_types::{GroupId, LogId, LogIndex, Term};
use std::io;
use std::time::Duration;
use tempfile::TempDir;
use tokio::sync::oneshot;

fn config(dir: &TempDir) -> LogConfig {
    let file_bytes = 16 << 20;
    LogConfig {
        file_bytes,
        bound_bytes: 160 << 20,
        reserve_bytes: 32 << 20,
        tail_bytes: 1 << 20,
        ..LogConfig::new(dir.path())
    }
}

fn payload(group: u64, index: u64, len: usize) -> Bytes {
    (0..len).map(|at| (group as usize * 31 + index as usize * 7 + at) as u8).collect::<Vec<u8>>().into()
}

async fn append(log: &GroupLog, entries: Vec<Entry>) -> io::Result<()> {
    let (sender, receiver) = oneshot::channel();
    log.append(entries, move |result| sender.send(result).expect("the test waits"));
    receiver.await.expect("called back")
}

fn entry(group: u64, term: u64, index: u64, len: usize) -> Entry {
    Entry { id: LogId::new(term, index), payload: payload(group, index, len) }
}

#[tokio::test]
async fn a_log_comes_back_as_it_was() {
    let dir = TempDir::new().expect("a folder");
    let (node, report) = NodeLog::open(config(&dir)).expect("opens");
    assert_eq!(report.files, 0);
    let (one, two) = (node.group(GroupId(1)), node.group(GroupId(2)));
    append(&one, (1..=5).map(|i| entry(1, 1, i, 3000)).collect()).await.expect("durable");
    append(&two, vec![entry(2, 3, 0, 1 << 20)]).await.expect("durable");
    one.save_vote(Bytes::from_static(b"vote")).await.expect("durable");
    one.truncate_after(Some(LogId::new(1, 3))).await.expect("durable");
    one.save_committed(LogId::new(1, 2));
    append(&one, vec![entry(1, 2, 4, 10)]).await.expect("durable");
    one.purge(LogId::new(1, 1)).await.expect("durable");
    let states = (one.state(), two.state());
    assert_eq!(states.0.last, Some(LogId::new(2, 4)));
    let live = one.live_bytes();
    node.close();

    let (node, report) = NodeLog::open(config(&dir)).expect("opens again");
    assert_eq!(report.damaged.len(), 0);
    let (one, two) = (node.group(GroupId(1)), node.group(GroupId(2)));
    assert_eq!((one.state(), two.state()), states);
    assert_eq!(one.live_bytes(), live);
    assert_eq!(one.entries_in_tail(2..3), None, "nothing is in memory after a start");
    let entries = one.entries(2..9, usize::MAX).await.expect("reads");
    let ids: Vec<LogId> = entries.iter().map(|entry| entry.id).collect();
    assert_eq!(ids, [LogId::new(1, 2), LogId::new(1, 3), LogId::new(2, 4)]);
    assert_eq!(entries[0].payload, payload(1, 2, 3000));
    assert_eq!(one.term_at(LogIndex(4)), Some(Term(2)));
    assert_eq!(one.term_at(LogIndex(1)), Some(Term(1)), "the last one purged");
    assert_eq!(one.term_at(LogIndex(5)), None);
    let part = two.read(LogIndex(0), 500_000, 70_000).await.expect("reads");
    assert_eq!(part, payload(2, 0, 1 << 20).slice(500_000..570_000));
    assert!(matches!(one.read(LogIndex(1), 0, 1).await, Err(ReadError::Purged { index: 1, purged: 1 })));
    assert!(matches!(one.read(LogIndex(7), 0, 1).await, Err(ReadError::Missing { index: 7, next: 5 })));
    assert!(matches!(one.read(LogIndex(4), 8, 3).await, Err(ReadError::OutOfBounds { .. })));
    node.close();
}

#[tokio::test]
async fn one_process_at_a_time_and_one_disk() {
    let dir = TempDir::new().expect("a folder");
    let (node, _) = NodeLog::open_as(config(&dir), Identity { disk_uuid: 7, boot: 1 }).expect("opens");
    assert!(matches!(NodeLog::open(config(&dir)), Err(OpenError::Locked { .. })));
    append(&node.group(GroupId(1)), vec![entry(1, 1, 1, 1)]).await.expect("durable");
    node.close();
    let other = NodeLog::open_as(config(&dir), Identity { disk_uuid: 8, boot: 1 });
    assert!(matches!(other, Err(OpenError::Recover(_))), "{other:?}");
}

#[tokio::test]
async fn dropped_files_are_used_again_and_leave_nothing_behind() {
    let dir = TempDir::new().expect("a folder");
    for boot in 0..2 {
        let (node, report) = NodeLog::open(config(&dir)).expect("opens");
        assert!(report.corrupt.is_empty(), "{report:?}");
        let log = node.group(GroupId(1));
        let next = log.state().last.map_or(0, |last| last.index.0 + 1);
        assert_eq!(next, boot * 120);
        // Writes 120 MiB into files of 16 MiB, of which few are live at any time.
        for index in next..next + 120 {
            append(&log, vec![entry(1, 1, index, 1 << 20)]).await.expect("durable");
            log.purge(LogId::new(1, index)).await.expect("durable");
        }
        assert!(node.usage().used_bytes < 64 << 20, "{:?}", node.usage());
        node.close();
    }
    let names: Vec<String> = std::fs::read_dir(dir.path())
        .expect("lists")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("text"))
        .collect();
    assert!(names.len() < 10, "{names:?}");
    assert!(
        names.iter().all(|name| name == "lock" || name.starts_with("journal-") || name.starts_with("ready-")),
        "{names:?}"
    );
}

#[tokio::test]
async fn a_file_system_without_direct_writes_will_do() {
    let Ok(dir) = TempDir::new_in("/dev/shm") else {
        holdfast_testkit::skipped("no /dev/shm");
        return;
    };
    let (node, _) = NodeLog::open(config(&dir)).expect("opens");
    append(&node.group(GroupId(1)), vec![entry(1, 1, 1, 5000)]).await.expect("durable");
    node.close();
    let (node, _) = NodeLog::open(config(&dir)).expect("opens");
    let read = node.group(GroupId(1)).read(LogIndex(1), 17, 100).await.expect("reads");
    assert_eq!(read, payload(1, 1, 5000).slice(17..117));
    node.close();
}

#[test]
fn settings_out_of_range_are_refused() {
    let dir = TempDir::new().expect("a folder");
    let plenty = LogConfig { reserve_bytes: 8 << 30, bound_bytes: 32 << 30, ..config(&dir) };
    for (what, wrong) in [
        ("file_bytes", LogConfig { file_bytes: 1 << 20, ..config(&dir) }),
        ("file_bytes", LogConfig { file_bytes: 15 << 20, ..config(&dir) }),
        ("file_bytes", LogConfig { file_bytes: (16 << 20) + 1, ..config(&dir) }),
        ("file_bytes", LogConfig { file_bytes: (1 << 30) + (1 << 20), ..plenty }),
        ("reserve_bytes", LogConfig { reserve_bytes: 1 << 20, ..config(&dir) }),
        ("reserve_bytes", LogConfig { reserve_bytes: (32 << 20) - 1, ..config(&dir) }),
        ("bound_bytes", LogConfig { bound_bytes: 33 << 20, ..config(&dir) }),
        ("bound_bytes", LogConfig { bound_bytes: (64 << 20) - 1, ..config(&dir) }),
    ] {
        let refused = NodeLog::open(wrong.clone());
        assert!(matches!(refused, Err(OpenError::Setting { what: found, .. }) if found == what), "{wrong:?}");
    }
    let least = LogConfig { bound_bytes: 64 << 20, ..config(&dir) };
    NodeLog::open(least).expect("the reserve and two files").0.close();
}

/// A rename gives a new file its name. It would replace an existing file.
#[test]
fn a_file_is_not_begun_over_a_name_that_cannot_be_looked_at() {
    let dir = TempDir::new().expect("a folder");
    let disk = RealDisk::open(dir.path(), 1 << 20, 1).expect("opens");
    let name = "journal-7";
    // A link to itself: a lookup fails, but not because the file is missing.
    std::os::unix::fs::symlink(name, dir.path().join(name)).expect("a link");
    assert!(disk.create(name, 1 << 20).is_err());
    assert!(dir.path().join(name).is_symlink(), "it was replaced");
    std::fs::remove_file(dir.path().join(name)).expect("removed");
    disk.create(name, 1 << 20).expect("the name is free");
    assert!(disk.create(name, 1 << 20).is_err(), "it is in use");
}

/// Where io_uring is forbidden, the thread does it: then these tests only show that.
fn by_ring(dir: &TempDir) -> LogConfig {
    LogConfig { io: JournalIo::Uring, ..config(dir) }
}

/// Several groups at once, over several files.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_log_that_io_uring_writes_comes_back() {
    let dir = TempDir::new().expect("a folder");
    for boot in 0..2 {
        let (node, report) = NodeLog::open(by_ring(&dir)).expect("opens");
        assert_eq!(report.damaged.len(), 0);
        let writers = (1..=4).map(|group| {
            let log = node.group(GroupId(group));
            assert_eq!(log.state().last.map_or(0, |last| last.index.0), boot * 150);
            tokio::spawn(async move {
                for index in boot * 150 + 1..=(boot + 1) * 150 {
                    append(&log, vec![entry(group, 1, index, 20_000)]).await.expect("durable");
                }
                log.purge(LogId::new(1, boot * 150 + 100)).await.expect("durable");
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.expect("no panic");
        }
        tokio::task::spawn_blocking(move || node.close()).await.expect("no panic");
    }
    let (node, report) = NodeLog::open(config(&dir)).expect("opens");
    assert_eq!(report.damaged.len(), 0);
    for group in 1..=4 {
        let entries = node.group(GroupId(group)).entries(251..1000, usize::MAX).await.expect("reads");
        assert_eq!(entries, (251..=300).map(|index| entry(group, 1, index, 20_000)).collect::<Vec<_>>());
    }
    node.close();
}

/// Nothing else runs on that thread while it waits for the close.
#[tokio::test]
async fn a_log_may_be_closed_on_the_thread_that_writes_it() {
    let dir = TempDir::new().expect("a folder");
    let (node, _) = NodeLog::open(by_ring(&dir)).expect("opens");
    let log = node.group(GroupId(1));
    append(&log, vec![entry(1, 1, 0, 100)]).await.expect("durable");
    let (sender, receiver) = oneshot::channel();
    log.append(vec![entry(1, 1, 1, 50_000)], move |result| sender.send(result).expect("the test waits"));
    // The task begins it.
    tokio::task::yield_now().await;
    node.close();
    receiver.await.expect("called back").expect("durable");
    let (node, _) = NodeLog::open(config(&dir)).expect("the folder is free");
    assert_eq!(node.group(GroupId(1)).state().last, Some(LogId::new(1, 1)));
    node.close();
}

/// The thread takes over.
#[test]
fn a_log_outlives_the_runtime_that_wrote_it() {
    let dir = TempDir::new().expect("a folder");
    let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let first = runtime().expect("a runtime");
    let (node, _) = first.block_on(async { NodeLog::open(by_ring(&dir)) }).expect("opens");
    let log = node.group(GroupId(1));
    first.block_on(append(&log, vec![entry(1, 1, 0, 100)])).expect("durable");
    drop(first);
    let second = runtime().expect("a runtime");
    for index in 1..4 {
        second.block_on(append(&log, vec![entry(1, 1, index, 100)])).expect("durable");
    }
    node.close();
    let (node, _) = NodeLog::open(config(&dir)).expect("opens");
    assert_eq!(node.group(GroupId(1)).state().last, Some(LogId::new(1, 3)));
    node.close();
}

/// The runtime has not begun the task.
#[test]
fn a_log_outlives_a_runtime_that_ended_at_once() {
    let dir = TempDir::new().expect("a folder");
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (node, _) = runtime().block_on(async { NodeLog::open(by_ring(&dir)) }).expect("opens");
    let log = node.group(GroupId(1));
    let durable =
        async { tokio::time::timeout(Duration::from_secs(20), append(&log, vec![entry(1, 1, 0, 100)])).await };
    runtime().block_on(durable).expect("the thread writes").expect("durable");
    node.close();
}
