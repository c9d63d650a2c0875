//! The whole log with its threads on a simulated disk: the promises of callbacks (LOG-L1 to LOG-L4), and faults.

use bytes::Bytes;
use holdfast_log::{Entry, GroupLog, GroupLogState, Identity, LogConfig, NodeLog, ReadError};
use holdfast_testkit::{SimDisk, Survives};
use holdfast_types::{GroupId, LogId, LogIndex};
use proptest::prelude::*;
use rustix::io::Errno;
use std::io;
use std::sync::{Arc, Mutex, mpsc};

fn config() -> LogConfig {
    let (file_bytes, bound_bytes, reserve_bytes) = (128 << 10, 1 << 20, 128 << 10);
    LogConfig { file_bytes, bound_bytes, reserve_bytes, tail_bytes: 16 << 10, ..LogConfig::new("simulated") }
}

fn open(disk: &SimDisk) -> NodeLog {
    let (node, report) = NodeLog::open_on(disk.clone(), config(), Identity::default()).expect("opens");
    assert_eq!(report.damaged.len(), 0, "{report:?}");
    node
}

fn payload(group: u64, index: u64, len: usize) -> Bytes {
    (0..len).map(|at| (group as usize * 31 + index as usize * 7 + at) as u8).collect::<Vec<u8>>().into()
}

fn entry(group: u64, index: u64, len: usize) -> Entry {
    Entry { id: LogId::new(1, index), payload: payload(group, index, len) }
}

fn append(log: &GroupLog, entries: Vec<Entry>) -> mpsc::Receiver<io::Result<()>> {
    let (sender, receiver) = mpsc::channel();
    log.append(entries, move |result| sender.send(result).expect("the test waits"));
    receiver
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime")
}

#[test]
fn entries_are_read_before_they_are_durable_and_after_they_left_memory() {
    let disk = SimDisk::new();
    let node = open(&disk);
    let log = node.group(GroupId(1));
    let mut waiting = Vec::new();
    for index in 0..100 {
        waiting.push(append(&log, vec![entry(1, index, 1500)]));
        let now = runtime().block_on(log.entries(index..index + 1, 0)).expect("reads");
        assert_eq!(now, [entry(1, index, 1500)]);
    }
    for receiver in waiting {
        receiver.recv().expect("called back").expect("durable");
    }
    assert!(log.entries_in_tail(99..100).is_some());
    assert_eq!(log.entries_in_tail(0..1), None, "the first has left memory");
    let all = runtime().block_on(log.entries(0..200, usize::MAX)).expect("reads");
    assert_eq!(all, (0..100).map(|index| entry(1, index, 1500)).collect::<Vec<_>>());
    let some = runtime().block_on(log.entries(3..200, 4000)).expect("reads");
    assert_eq!(some.len(), 2, "bounded by bytes");
    assert!(node.usage().tail_bytes <= 16 << 10);
    assert!(runtime().block_on(log.entries(100..101, 9)).expect("reads").is_empty());
    node.close();
}

#[test]
fn appends_that_do_not_continue_the_log_are_refused_and_change_nothing() {
    let node = open(&SimDisk::new());
    let log = node.group(GroupId(1));
    append(&log, vec![entry(1, 5, 10)]).recv().expect("called back").expect("a log begins anywhere");
    for wrong in [vec![entry(1, 7, 1)], vec![entry(1, 5, 1)], vec![entry(1, 6, 1), entry(1, 8, 1)]] {
        let refused = append(&log, wrong).recv().expect("called back");
        assert_eq!(refused.expect_err("refused").kind(), io::ErrorKind::InvalidInput);
    }
    assert_eq!(log.state().last, Some(LogId::new(1, 5)));
    assert!(append(&log, Vec::new()).recv().expect("called back").is_ok());
    node.close();
    let refused = append(&log, vec![entry(1, 6, 1)]).recv().expect("called back");
    assert_eq!(refused.expect_err("closed").kind(), io::ErrorKind::NotConnected);
}

#[test]
fn a_failed_sync_ends_acknowledging_for_good() {
    let disk = SimDisk::new();
    let node = open(&disk);
    let log = node.group(GroupId(1));
    append(&log, vec![entry(1, 0, 100)]).recv().expect("called back").expect("durable");
    // Later syncs succeed again, as the kernel's do: nobody may believe them (JOURNAL-J2, LOG-L2).
    disk.fail_sync_after(0);
    assert!(append(&log, vec![entry(1, 1, 100)]).recv().expect("called back").is_err());
    assert!(append(&log, vec![entry(1, 2, 100)]).recv().expect("called back").is_err());
    assert!(runtime().block_on(log.save_vote(Bytes::from_static(b"v"))).is_err());
    assert!(runtime().block_on(node.group(GroupId(2)).purge(LogId::new(1, 1))).is_err());
    assert!(node.usage().failed.is_some());
    node.close();
    let node = open(&disk.crashed(Survives::Nothing));
    let state = node.group(GroupId(1)).state();
    assert_eq!((state.last, state.vote), (Some(LogId::new(1, 0)), None));
    node.close();
}

#[test]
fn a_failed_write_ends_acknowledging_for_good() {
    let disk = SimDisk::new();
    let node = open(&disk);
    let log = node.group(GroupId(1));
    disk.fail_write_after(0);
    let results: Vec<_> = (0..20).map(|index| append(&log, vec![entry(1, index, 100)])).collect();
    for result in results {
        assert!(result.recv().expect("called back").is_err());
    }
    node.close();
}

#[test]
fn a_full_disk_makes_appends_wait_and_loses_none() {
    let disk = SimDisk::new();
    let node = open(&disk);
    let log = node.group(GroupId(1));
    // The next file is begun ahead; there is no space for another one.
    disk.set_room(Some(0));
    let waiting: Vec<_> = (0..300).map(|index| append(&log, vec![entry(1, index, 1000)])).collect();
    let mut done = 0;
    while node.usage().stalled.is_none() {
        std::thread::yield_now();
    }
    assert!(node.usage().failed.is_none());
    disk.set_room(None);
    for receiver in waiting {
        receiver.recv().expect("called back").expect("durable in the end");
        done += 1;
    }
    assert_eq!(done, 300);
    node.close();
}

/// LOG-L2: of what keeps a file from being begun, only a lack is waited for, and it is named as what it is. A disk that
/// fails must not look like a full one: nobody would take over.
#[test]
fn only_a_lack_that_passes_is_waited_for() {
    let (full, lacks) = (Some("room on its disk"), Some("what the system lacks"));
    for (errno, waits_for) in [
        (Errno::NOSPC, full),
        (Errno::DQUOT, full),
        (Errno::MFILE, lacks),
        (Errno::NFILE, lacks),
        (Errno::NOMEM, lacks),
        (Errno::INTR, lacks),
        (Errno::IO, None),
        (Errno::ROFS, None),
    ] {
        let disk = SimDisk::new();
        let (node, _, mut turns) =
            NodeLog::open_in_turns(disk.clone(), config(), Identity::default(), None).expect("opens");
        let log = node.group(GroupId(1));
        disk.fail_creates(Some(errno.raw_os_error()));
        let waiting: Vec<_> = (0..300).map(|index| append(&log, vec![entry(1, index, 1000)])).collect();
        turns.turn(false);
        let usage = node.usage();
        let error = io::Error::from(errno);
        let expected = waits_for.map(|what| format!("{what}: {error}"));
        assert_eq!(usage.stalled, expected, "{errno}: {usage:?}");
        let failed = usage.failed.unwrap_or_default();
        assert_eq!(failed.contains(&error.to_string()), waits_for.is_none(), "{errno}: failed: {failed}");
        disk.fail_creates(None);
        while turns.waits() {
            turns.turn(false);
        }
        let all = waiting.iter().all(|receiver| matches!(receiver.try_recv(), Ok(Ok(()))));
        assert_eq!(all, waits_for.is_some(), "{errno}: later it works");
    }
}

/// LOG-L2: a full disk whose file system then takes no writes at all. Whoever frees space would wait for nothing.
#[test]
fn a_journal_that_has_failed_waits_for_nothing() {
    let disk = SimDisk::new();
    let (node, _, mut turns) =
        NodeLog::open_in_turns(disk.clone(), config(), Identity::default(), None).expect("opens");
    let log = node.group(GroupId(1));
    let waiting: Vec<_> = (0..300).map(|index| append(&log, vec![entry(1, index, 1000)])).collect();
    for (errno, stalls) in [(Errno::NOSPC, true), (Errno::ROFS, false)] {
        disk.fail_creates(Some(errno.raw_os_error()));
        turns.turn(false);
        let usage = node.usage();
        assert_eq!((usage.stalled.is_some(), usage.failed.is_some()), (stalls, !stalls), "{errno}: {usage:?}");
    }
    assert!(waiting.iter().any(|receiver| matches!(receiver.try_recv(), Ok(Err(_)))), "it says so to whoever waits");
}

/// A turn never waits: if the disk is full, the next turn tries the rest again, in its order.
#[test]
fn in_turns_a_full_disk_is_waited_for_between_them() {
    let disk = SimDisk::new();
    let (node, _, mut turns) =
        NodeLog::open_in_turns(disk.clone(), config(), Identity::default(), None).expect("opens");
    let log = node.group(GroupId(1));
    disk.set_files_max(Some(disk.names().len()));
    let waiting: Vec<_> = (0..300).map(|index| append(&log, vec![entry(1, index, 1000)])).collect();
    for _ in 0..3 {
        turns.turn(false);
        assert!(node.usage().stalled.is_some() && turns.waits(), "no room");
    }
    let done = waiting.iter().take_while(|receiver| matches!(receiver.try_recv(), Ok(Ok(())))).count();
    assert!(done > 0 && done < 300, "{done} found room");
    assert!(waiting[done..].iter().all(|receiver| receiver.try_recv().is_err()), "the order of the calls");
    let late = append(&log, vec![entry(1, 300, 1000)]);
    disk.set_files_max(None);
    while turns.waits() {
        turns.turn(false);
    }
    assert!(waiting[done..].iter().chain([&late]).all(|receiver| matches!(receiver.try_recv(), Ok(Ok(())))));
    assert!(node.usage().stalled.is_none());
    // Without work it checks whether there is space again.
    disk.set_files_max(Some(0));
    let more: Vec<_> = (301..320).map(|index| append(&log, vec![entry(1, index, 10_000)])).collect();
    turns.turn(false);
    assert!(node.usage().stalled.is_some());
    disk.set_files_max(None);
    while turns.waits() {
        turns.turn(false);
    }
    assert!(more.iter().all(|receiver| matches!(receiver.try_recv(), Ok(Ok(())))));
    turns.turn(true);
    assert!(node.usage().stalled.is_none());
    let (crashed, _) = NodeLog::open_on(disk.crashed(Survives::Nothing), config(), Identity::default()).expect("opens");
    assert_eq!(crashed.group(GroupId(1)).state().last, Some(LogId::new(1, 319)));
    crashed.close();
}

/// A gateway follows one set and leads another. The entries of the first fill its disk, and only a purge of the second
/// frees space. The purge waits behind the entries.
#[test]
fn on_a_full_disk_a_purge_is_not_held_up_by_what_has_no_room() {
    let disk = SimDisk::new();
    let (node, _, mut turns) =
        NodeLog::open_in_turns(disk.clone(), config(), Identity::default(), None).expect("opens");
    let (led, followed) = (node.group(GroupId(1)), node.group(GroupId(2)));
    let first = append(&led, (0..300).map(|index| entry(1, index, 1000)).collect());
    while turns.waits() {
        turns.turn(false);
    }
    first.recv().expect("called back").expect("durable");
    disk.set_files_max(Some(disk.names().len()));
    let waiting: Vec<_> = (0..300).map(|index| append(&followed, vec![entry(2, index, 1000)])).collect();
    turns.turn(false);
    assert!(node.usage().stalled.is_some(), "{:?}", node.usage());
    // There are two purges, and entries of the purged group wait too: none of them is lost, and the older purge does
    // not undo the newer one.
    let behind = append(&led, (300..310).map(|index| entry(1, index, 100)).collect());
    led.purge_later(LogId::new(1, 250)).expect("queued");
    led.purge_later(LogId::new(1, 299)).expect("queued");
    // Entries that are not durable yet are not purged ahead.
    followed.purge_later(LogId::new(1, 299)).expect("queued");
    for _ in 0..1000 {
        if !turns.waits() {
            break;
        }
        turns.turn(false);
    }
    assert!(!turns.waits() && node.usage().stalled.is_none(), "{:?}", node.usage());
    assert!(waiting.iter().chain([&behind]).all(|receiver| matches!(receiver.try_recv(), Ok(Ok(())))));
    assert_eq!(led.state().first, Some(LogIndex(300)));
    let (crashed, report) =
        NodeLog::open_on(disk.crashed(Survives::Nothing), config(), Identity::default()).expect("opens");
    assert!(report.damaged.is_empty(), "{report:?}");
    let state = crashed.group(GroupId(1)).state();
    assert_eq!(
        (state.purged, state.first, state.last),
        (Some(LogId::new(1, 299)), Some(LogIndex(300)), Some(LogId::new(1, 309)))
    );
    assert_eq!(crashed.group(GroupId(2)).state().purged, Some(LogId::new(1, 299)));
    crashed.close();
}

#[test]
fn purged_files_are_freed_and_idle_groups_are_carried() {
    let disk = SimDisk::new();
    let node = open(&disk);
    let (idle, busy) = (node.group(GroupId(1)), node.group(GroupId(2)));
    append(&idle, vec![entry(1, 0, 500)]).recv().expect("called back").expect("durable");
    runtime().block_on(idle.save_vote(Bytes::from_static(b"idle"))).expect("durable");
    for index in 0..2000 {
        append(&busy, vec![entry(2, index, 2000)]).recv().expect("called back").expect("durable");
        if index % 50 == 49 {
            runtime().block_on(busy.purge(LogId::new(1, index - 10))).expect("durable");
        }
        assert!(node.usage().used_bytes < 1 << 20, "2000 entries of one batch each: {:?}", node.usage());
    }
    assert!(idle.live_bytes() > 500 && idle.live_bytes() < 700);
    let read = runtime().block_on(idle.read(LogIndex(0), 100, 50));
    assert_eq!(read.expect("reads"), payload(1, 0, 500).slice(100..150));
    node.close();
    let node = open(&disk.crashed(Survives::Nothing));
    let idle = node.group(GroupId(1));
    assert_eq!(idle.state().vote.as_deref(), Some(&b"idle"[..]));
    assert_eq!(runtime().block_on(idle.entries(0..1, 0)).expect("reads"), [entry(1, 0, 500)]);
    node.close();
}

/// A caller that purges without waiting gets the journal's present state as its answer. Entries appended after the
/// purge do not become durable before it; a recovery sees the same.
#[test]
fn a_purge_that_is_not_waited_for_keeps_its_place_and_tells_of_a_failed_journal() {
    let disk = SimDisk::new();
    let (node, _, mut turns) =
        NodeLog::open_in_turns(disk.clone(), config(), Identity::default(), None).expect("opens");
    let log = node.group(GroupId(1));
    let first = append(&log, (0..10).map(|index| entry(1, index, 100)).collect());
    turns.turn(false);
    first.recv().expect("called back").expect("durable");
    log.purge_later(LogId::new(1, 6)).expect("queued");
    assert_eq!(log.state().purged, Some(LogId::new(1, 6)), "seen at once");
    assert!(turns.waits(), "nothing was written");
    let behind = append(&log, vec![entry(1, 10, 100)]);
    turns.turn(false);
    behind.recv().expect("called back").expect("durable");
    let (crashed, _) = NodeLog::open_on(disk.crashed(Survives::Nothing), config(), Identity::default()).expect("opens");
    let state = crashed.group(GroupId(1)).state();
    assert_eq!((state.purged, state.last), (Some(LogId::new(1, 6)), Some(LogId::new(1, 10))));
    crashed.close();

    disk.fail_sync_after(0);
    log.purge_later(LogId::new(1, 7)).expect("queued");
    turns.turn(false);
    let failed = log.purge_later(LogId::new(1, 8)).expect_err("the journal failed");
    assert!(failed.to_string().contains("stopped acknowledging"), "{failed}");
}

#[test]
fn who_waits_for_the_queue_goes_on_when_the_disk_has_taken_it_or_never_will() {
    let disk = SimDisk::new();
    let (node, _, mut turns) =
        NodeLog::open_in_turns(disk.clone(), config(), Identity::default(), None).expect("opens");
    let log = node.group(GroupId(1));
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    for fails in [false, true] {
        let first = log.state().last.map_or(0, |last| last.index.0 + 1);
        let done = append(&log, (first..first + 10).map(|index| entry(1, index, 1000)).collect());
        assert!(std::pin::pin!(node.queue_at_most(64 << 10)).poll(&mut context).is_ready(), "few enough");
        let mut waits = std::pin::pin!(node.queue_at_most(1000));
        assert!(waits.as_mut().poll(&mut context).is_pending(), "too many");
        if fails {
            disk.fail_sync_after(0);
        }
        turns.turn(false);
        assert_eq!(done.recv().expect("called back").is_err(), fails);
        assert!(waits.as_mut().poll(&mut context).is_ready(), "it waits still, fails: {fails}");
    }
}

#[test]
fn a_dropped_group_is_empty_and_may_begin_again() {
    let disk = SimDisk::new();
    let node = open(&disk);
    let log = node.group(GroupId(1));
    append(&log, vec![entry(1, 0, 10), entry(1, 1, 10)]).recv().expect("called back").expect("durable");
    runtime().block_on(log.save_vote(Bytes::from_static(b"v"))).expect("durable");
    log.save_committed(LogId::new(1, 1));
    runtime().block_on(log.drop_group()).expect("durable");
    assert_eq!(log.state(), GroupLogState::default());
    append(&log, vec![entry(9, 7, 10)]).recv().expect("called back").expect("durable");
    let state = log.state();
    node.close();
    let node = open(&disk);
    assert_eq!(node.group(GroupId(1)).state(), state);
    node.close();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    /// Several groups append from several threads; the power fails at any moment. Everything that was called back is
    /// there, and callbacks came in the order of each group's calls.
    #[test]
    fn what_was_called_back_survives(dies_after in 1u64..150, sizes in prop::collection::vec(0usize..5000, 1..60), keep in 0u32..=100) {
        let disk = SimDisk::new();
        let node = open(&disk);
        disk.die_after(dies_after);
        let called: Arc<Mutex<Vec<(u64, u64, bool)>>> = Arc::default();
        let threads: Vec<_> = (1..=3u64).map(|group| {
            let (log, called, sizes) = (node.group(GroupId(group)), called.clone(), sizes.clone());
            std::thread::spawn(move || {
                for (index, len) in sizes.iter().enumerate() {
                    let (called, index) = (called.clone(), index as u64);
                    log.append(vec![entry(group, index, *len)], move |result| {
                        called.lock().expect("whole").push((group, index, result.is_ok()));
                    });
                }
            })
        }).collect();
        threads.into_iter().for_each(|thread| thread.join().expect("ends"));
        node.close();
        let called = called.lock().expect("whole").clone();
        let mut chance = u64::from(keep);
        let crashed = disk.crashed(Survives::Some(&mut || {
            chance = chance.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (chance >> 33) % 100 < u64::from(keep)
        }));
        let node = open(&crashed);
        for group in 1..=3u64 {
            let order: Vec<u64> = called.iter().filter(|call| call.0 == group).map(|call| call.1).collect();
            prop_assert_eq!(order, (0..sizes.len() as u64).collect::<Vec<_>>());
            let durable = called.iter().filter(|call| call.0 == group && call.2).count();
            let log = node.group(GroupId(group));
            let there = runtime().block_on(log.entries(0..1000, usize::MAX)).expect("reads");
            prop_assert!(there.len() >= durable, "{} of {} durable entries", there.len(), durable);
            for (index, found) in there.iter().enumerate() {
                prop_assert_eq!(found, &entry(group, index as u64, sizes[index]));
            }
        }
        let first_failure = called.iter().position(|call| !call.2).unwrap_or(called.len());
        prop_assert!(called[first_failure..].iter().all(|call| !call.2), "LOG-L2: success after a failure");
        node.close();
    }
}

/// LOG-L1: a commit note that was made before its group was dropped is not written after that. The writer has taken the
/// note from the queue and calls back for a job that writes nothing, and the group is dropped at that moment.
#[test]
fn what_was_noted_as_committed_does_not_outlive_its_group() {
    let (disk, runtime) = (SimDisk::new(), runtime());
    let node = open(&disk);
    let group = node.group(GroupId(3));
    append(&group, vec![entry(3, 0, 9), entry(3, 1, 9)]).recv().expect("called back").expect("durable");
    group.save_committed(LogId::new(1, 1));
    let ((called, wait_called), (go, wait_go)) = (mpsc::channel(), mpsc::channel::<()>());
    group.append(Vec::new(), move |result| {
        let _ = called.send(result);
        let _ = wait_go.recv();
    });
    wait_called.recv().expect("called back").expect("nothing to write");
    runtime.block_on(async {
        let mut dropped = std::pin::pin!(group.drop_group());
        std::future::poll_fn(|context| {
            assert!(dropped.as_mut().poll(context).is_pending(), "the writer is held");
            std::task::Poll::Ready(())
        })
        .await;
        go.send(()).expect("the writer waits");
        dropped.await.expect("durable");
    });
    append(&group, vec![entry(3, 0, 9), entry(3, 1, 9)]).recv().expect("called back").expect("durable");
    assert_eq!(group.state().committed, None);
    node.close();
    let node = open(&disk);
    assert_eq!(node.group(GroupId(3)).state().committed, None, "after a restart");
    node.close();
}

#[test]
fn a_damaged_group_says_so_until_it_is_dropped() {
    let disk = SimDisk::new();
    let node = open(&disk);
    let (bad, good) = (node.group(GroupId(1)), node.group(GroupId(2)));
    append(&bad, vec![entry(1, 0, 900), entry(1, 1, 900)]).recv().expect("called back").expect("durable");
    append(&good, vec![entry(2, 0, 900)]).recv().expect("called back").expect("durable");
    node.close();
    let name = disk.names().remove(0);
    let wanted = payload(1, 1, 900);
    disk.damage(&name, |bytes| {
        let at = bytes.windows(900).position(|window| window == &wanted[..]).expect("there");
        bytes[at + 3] ^= 1;
    });
    let (node, report) = NodeLog::open_on(disk.clone(), config(), Identity::default()).expect("opens");
    assert_eq!(report.damaged.keys().collect::<Vec<_>>(), [&GroupId(1)]);
    let (bad, good) = (node.group(GroupId(1)), node.group(GroupId(2)));
    let damage = bad.state().damaged.expect("damaged");
    assert_eq!(damage.file, name);
    assert_eq!(good.state().damaged, None);
    let corrupt = runtime().block_on(bad.read(LogIndex(1), 0, 10));
    assert!(matches!(corrupt, Err(ReadError::Corrupt(_))), "{corrupt:?}");
    let corrupt = runtime().block_on(bad.entries(0..2, usize::MAX)).expect_err("not served");
    assert_eq!(corrupt.kind(), io::ErrorKind::InvalidData);
    assert_eq!(runtime().block_on(bad.entries(0..1, usize::MAX)).expect("good"), [entry(1, 0, 900)]);
    runtime().block_on(bad.drop_group()).expect("durable");
    assert_eq!(bad.state(), GroupLogState::default());
    node.close();
    let node = open(&disk);
    assert_eq!(node.group(GroupId(2)).state().last, Some(LogId::new(1, 0)));
    node.close();
}

/// Readers continue while files are carried forward, dropped and reused (R9: never a wrong byte).
#[test]
fn readers_are_not_disturbed_by_purging_and_carrying() {
    let disk = SimDisk::new();
    let node = open(&disk);
    let (idle, busy) = (node.group(GroupId(1)), node.group(GroupId(2)));
    append(&idle, (0..20).map(|index| entry(1, index, 300)).collect()).recv().expect("called back").expect("durable");
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let (idle, busy, stop) = (idle.clone(), busy.clone(), stop.clone());
            std::thread::spawn(move || {
                let mut rounds = 0;
                while !stop.load(std::sync::atomic::Ordering::Relaxed) {
                    let all = runtime().block_on(idle.entries(0..20, usize::MAX)).expect("reads");
                    assert_eq!(all, (0..20).map(|index| entry(1, index, 300)).collect::<Vec<_>>());
                    let first = busy.state().purged.map_or(0, |purged| purged.index.0 + 1);
                    for found in runtime().block_on(busy.entries(first..first + 5, usize::MAX)).expect("reads") {
                        assert_eq!(found, entry(2, found.id.index.0, 2000));
                    }
                    match runtime().block_on(busy.read(LogIndex(first), 5, 100)) {
                        Ok(part) => assert_eq!(part, payload(2, first, 2000).slice(5..105)),
                        Err(ReadError::Purged { .. } | ReadError::Missing { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                    rounds += 1;
                }
                rounds
            })
        })
        .collect();
    for index in 0..3000 {
        append(&busy, vec![entry(2, index, 2000)]).recv().expect("called back").expect("durable");
        if index % 40 == 39 {
            runtime().block_on(busy.purge(LogId::new(1, index - 20))).expect("durable");
        }
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for reader in readers {
        assert!(reader.join().expect("no reader saw anything wrong") > 0);
    }
    node.close();
}

#[test]
fn a_bad_record_in_the_oldest_file_keeps_it_and_is_said() {
    let disk = SimDisk::new();
    let node = open(&disk);
    let (idle, busy) = (node.group(GroupId(1)), node.group(GroupId(2)));
    append(&idle, vec![entry(1, 0, 700)]).recv().expect("called back").expect("durable");
    let (name, wanted) = (disk.names().remove(0), payload(1, 0, 700));
    disk.damage(&name, |bytes| {
        let at = bytes.windows(700).position(|window| window == &wanted[..]).expect("there");
        bytes[at] ^= 1;
    });
    for index in 0..400 {
        append(&busy, vec![entry(2, index, 2000)]).recv().expect("called back").expect("durable");
        runtime().block_on(busy.purge(LogId::new(1, index))).expect("durable");
    }
    let why = node.usage().blocked.expect("said");
    assert!(why.contains(&name), "{why}");
    assert!(disk.names().contains(&name));
    // Without this entry, nothing needs the file.
    runtime().block_on(idle.drop_group()).expect("durable");
    append(&busy, vec![entry(2, 400, 10)]).recv().expect("called back").expect("durable");
    runtime().block_on(idle.save_vote(Bytes::new())).expect("durable");
    assert_eq!(node.usage().blocked, None);
    assert!(!disk.names().contains(&name));
    node.close();
}
