//! The promises of a state snapshot: it is durable before anybody relies on it, and an older one never replaces a newer
//! one.

use super::*;
use crate::wire::{RaftMembership, RaftSnapshotMeta};
use holdfast_types::sync::LockExt;
use openraft::impls::BasicNode;
use std::collections::{BTreeMap, BTreeSet};

const GROUP: GroupId = GroupId(7);

/// Remembers the state that was last installed.
#[derive(Default)]
struct Installed(Mutex<Option<(LogId, Vec<u8>)>>);

impl StateMachine for Installed {
    fn apply(&self, _: LogId, payload: Bytes) -> Bytes {
        payload
    }

    fn observe(&self, _: LogId) {}

    fn snapshot(&self) -> Option<(LogId, Bytes)> {
        None
    }

    fn check(&self, _: LogId, data: &[u8]) -> Result<(), Unfit> {
        match data {
            b"of another version" => Err(Unfit::OtherBuild("found another version".to_string())),
            b"rotten" => Err(Unfit::Damaged("found rot".to_string())),
            _ => Ok(()),
        }
    }

    fn install(&self, last: LogId, data: &[u8]) -> Result<(), Unfit> {
        self.check(last, data)?;
        *self.0.locked() = Some((last, data.to_vec()));
        Ok(())
    }
}

fn open(dir: &std::path::Path) -> (Adapter, Arc<Shared>, Arc<Installed>) {
    let told = Arc::new(Installed::default());
    let (adapter, shared) = Adapter::open(GROUP, dir.to_path_buf(), None, told.clone()).expect("opens");
    (adapter, shared, told)
}

fn snapshot(index: u64, data: &'static [u8]) -> StoredSnapshot {
    StoredSnapshot::new(LogId::new(2, index), RaftStoredMembership::default(), Bytes::from_static(data))
}

fn meta(index: u64) -> RaftSnapshotMeta {
    snapshot(index, b"").meta
}

#[tokio::test]
async fn r1_a_snapshot_of_the_leader_is_durable_before_it_is_adopted() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mut adapter, ..) = open(dir.path());
    adapter.install_snapshot(&meta(10), Bytes::from_static(b"ten")).await.expect("durable");
    drop(adapter);
    // openraft may have purged the log by now: the next start has nothing but this.
    let (_, shared, told) = open(dir.path());
    assert_eq!(shared.applied(), LogId::new(2, 10));
    assert_eq!(*told.0.locked(), Some((LogId::new(2, 10), b"ten".to_vec())));

    // A snapshot that cannot be made durable is not installed either.
    let (mut adapter, shared, told) = open(&dir.path().join("no such folder"));
    adapter.install_snapshot(&meta(10), Bytes::from_static(b"ten")).await.expect_err("there is no place for it");
    assert_eq!((shared.applied(), told.0.locked().clone()), (LogId::default(), None));
    assert_eq!(shared.snapshot_last(), None);
}

#[tokio::test]
async fn r4_an_older_snapshot_does_not_replace_a_newer_one() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_, shared, _) = open(dir.path());
    for (made, current) in [(5, 5), (9, 9), (7, 9), (9, 9), (12, 12), (1, 12)] {
        let found = save(&shared, snapshot(made, b"x")).await.expect("durable");
        assert_eq!(found.last(), Some(LogId::new(2, current)), "after one of {made}");
        assert_eq!(shared.snapshot_last(), found.last());
    }
    let (_, shared, _) = open(dir.path());
    assert_eq!(shared.applied(), LogId::new(2, 12), "nor on the disk");
}

/// END-E1: what was on its way when the group ended must not bring a file of it back.
#[tokio::test]
async fn nothing_is_written_after_the_end_of_a_group() {
    let dir = tempfile::tempdir().expect("a folder");
    let (_, shared, _) = open(dir.path());
    save(&shared, snapshot(5, b"x")).await.expect("durable");
    shared.end().await;
    snapshot_file::remove(dir.path(), GROUP).expect("removed");
    save(&shared, snapshot(9, b"x")).await.map(drop).expect_err("the group is ended");
    let mut builder = Builder { snapshot: snapshot(12, b"x"), shared: shared.clone() };
    let built = tokio::time::timeout(Duration::from_secs(20), builder.build_snapshot()).await.expect("it ends");
    built.map(drop).expect_err("the group is ended");
    assert!(snapshot_file::load(dir.path(), GROUP, None).expect("reads").is_none());
}

/// Its state is as of the entry that it is told.
struct At(Mutex<u64>);

impl StateMachine for At {
    fn apply(&self, _: LogId, payload: Bytes) -> Bytes {
        payload
    }

    fn observe(&self, _: LogId) {}

    fn snapshot(&self) -> Option<(LogId, Bytes)> {
        Some((LogId::new(2, *self.0.locked()), Bytes::from_static(b"at")))
    }

    fn check(&self, _: LogId, _: &[u8]) -> Result<(), Unfit> {
        Ok(())
    }

    fn install(&self, _: LogId, _: &[u8]) -> Result<(), Unfit> {
        Ok(())
    }
}

/// A state may be older than the newest membership: whoever begins with it must not know who votes later, nor forget
/// who votes.
#[tokio::test]
async fn a_snapshot_names_the_members_of_its_moment() {
    let dir = tempfile::tempdir().expect("a folder");
    let machine = Arc::new(At(Mutex::new(0)));
    let (mut adapter, shared) = Adapter::open(GROUP, dir.path().to_path_buf(), None, machine.clone()).expect("opens");
    let stored = |index: u64| {
        let voters: BTreeSet<u64> = (1..=index / 10).collect();
        let nodes: BTreeMap<u64, BasicNode> = voters.iter().map(|id| (*id, BasicNode::new("a"))).collect();
        let membership = RaftMembership::new(vec![voters], nodes).expect("valid");
        RaftStoredMembership::new(Some(id_to_raft(LogId::new(2, index))), membership)
    };
    *shared.memberships.locked() = [10, 20, 40].map(stored).to_vec();
    for (at, members) in [(30, 20), (40, 40), (55, 40)] {
        *machine.0.locked() = at;
        let mut builder = adapter.try_create_snapshot_builder(false).await.expect("there is something newer");
        builder.build_snapshot().await.map(drop).expect("durable");
        // As the next start reads it.
        let found = snapshot_file::load(dir.path(), GROUP, None).expect("reads").expect("there");
        assert_eq!(found.last(), Some(LogId::new(2, at)));
        assert_eq!(found.meta.last_membership, stored(members), "at {at}");
        for older in [at, at - 1] {
            *machine.0.locked() = older;
            assert!(adapter.try_create_snapshot_builder(true).await.is_none(), "{older} after {at}");
        }
    }
}

#[tokio::test]
async fn r9_a_snapshot_that_does_not_decode_leaves_the_one_on_the_disk() {
    let dir = tempfile::tempdir().expect("a folder");
    let (mut adapter, shared, told) = open(dir.path());
    adapter.install_snapshot(&meta(10), Bytes::from_static(b"ten")).await.expect("durable");
    let refused = adapter.install_snapshot(&meta(20), Bytes::from_static(b"rotten")).await;
    assert_eq!(refused.expect_err("damaged").kind(), io::ErrorKind::InvalidData);
    let refused = adapter.install_snapshot(&meta(20), Bytes::from_static(b"of another version")).await;
    assert_eq!(refused.expect_err("not this build's").kind(), io::ErrorKind::Unsupported);
    let ten = LogId::new(2, 10);
    assert_eq!((shared.applied(), shared.snapshot_last()), (ten, Some(ten)));
    assert_eq!(*told.0.locked(), Some((ten, b"ten".to_vec())));
    drop(adapter);
    let (_, shared, told) = open(dir.path());
    assert_eq!(shared.applied(), ten, "the next start has what it had");
    assert_eq!(*told.0.locked(), Some((ten, b"ten".to_vec())));
}

/// A place without space: the temporary file beside the snapshot is a device that is always full.
fn full(dir: &std::path::Path) -> std::path::PathBuf {
    let beside = dir.join(format!("group-{}.snapshot.new", GROUP.0));
    std::os::unix::fs::symlink("/dev/full", &beside).expect("a link");
    beside
}

async fn until(what: &str, holds: impl Fn() -> bool) {
    for _ in 0..1000 {
        if holds() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    panic!("{what}: not within ten seconds");
}

#[tokio::test]
async fn a_full_disk_delays_a_snapshot_and_does_not_end_the_group() {
    let dir = tempfile::tempdir().expect("a folder");
    let beside = full(dir.path());
    let (mut adapter, shared, _) = open(dir.path());
    let installing = tokio::spawn(async move {
        let done = adapter.install_snapshot(&meta(10), Bytes::from_static(b"ten")).await;
        done.map(|()| adapter)
    });
    until("it says why it waits", || shared.unsaved().is_some()).await;
    assert!(!installing.is_finished(), "an error would end the group");
    assert_eq!(shared.applied(), LogId::default(), "durable before adopted");
    std::fs::remove_file(&beside).expect("room");
    let adapter = installing.await.expect("no panic").expect("there is room now");
    assert_eq!((shared.applied(), shared.unsaved()), (LogId::new(2, 10), None));
    drop(adapter);

    let beside = full(dir.path());
    let mut builder = Builder { snapshot: snapshot(12, b"twelve"), shared: shared.clone() };
    let building = tokio::spawn(async move { builder.build_snapshot().await.map(drop) });
    until("it says why it waits", || shared.unsaved().is_some()).await;
    assert!(!building.is_finished() && shared.snapshot_last() == Some(LogId::new(2, 10)));
    std::fs::remove_file(&beside).expect("room");
    building.await.expect("no panic").expect("there is room now");
    assert_eq!((shared.snapshot_last(), shared.unsaved()), (Some(LogId::new(2, 12)), None));

    // A group that is stopped waits for nothing.
    let _beside = full(dir.path());
    let mut builder = Builder { snapshot: snapshot(14, b"fourteen"), shared: shared.clone() };
    let building = tokio::spawn(async move { builder.build_snapshot().await.map(drop) });
    until("it says why it waits", || shared.unsaved().is_some()).await;
    shared.close();
    let ended = tokio::time::timeout(Duration::from_secs(20), building).await.expect("it ends").expect("no panic");
    ended.expect_err("there is no room");
}

/// openraft ends a group at its first error, and nobody would start it again before the next start of the process.
#[test]
fn a_moment_without_file_descriptors_delays_a_snapshot_and_does_not_end_the_group() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    const STARVED: &str = "HOLDFAST_TEST_STARVED";
    if std::env::var_os(STARVED).is_none() {
        // The limit applies to a whole process, so the test runs in one of its own.
        let name = "machine::tests::a_moment_without_file_descriptors_delays_a_snapshot_and_does_not_end_the_group";
        let mut child = std::process::Command::new(std::env::current_exe().expect("this program"));
        let output = child.args(["--exact", name]).env(STARVED, "1").output().expect("runs");
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success() && said.contains("1 passed"), "{said}");
        return;
    }
    let dir = tempfile::tempdir().expect("a folder");
    let (mut adapter, shared, _) = open(dir.path());
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async move {
        let before = getrlimit(Resource::Nofile);
        setrlimit(Resource::Nofile, Rlimit { current: Some(3), ..before }).expect("lowered");
        let installing = tokio::spawn(async move {
            adapter.install_snapshot(&meta(10), Bytes::from_static(b"ten")).await.map(|()| adapter)
        });
        until("it waits, or gives up", || shared.unsaved().is_some() || installing.is_finished()).await;
        assert!(!installing.is_finished(), "an error would end the group");
        setrlimit(Resource::Nofile, before).expect("raised");
        installing.await.expect("no panic").expect("it can be opened now");
        assert_eq!((shared.applied(), shared.unsaved()), (LogId::new(2, 10), None));
    });
}
