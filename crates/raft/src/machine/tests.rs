//! What a state snapshot promises: durable before anybody relies on it, and never an older one over a newer one.

use super::*;
use crate::wire::RaftSnapshotMeta;

const GROUP: GroupId = GroupId(7);

/// Remembers what it was last told to be.
#[derive(Default)]
struct Told(Mutex<Option<(LogId, Vec<u8>)>>);

impl StateMachine for Told {
    fn apply(&self, _: LogId, payload: Bytes) -> Bytes {
        payload
    }

    fn observe(&self, _: LogId) {}

    fn snapshot(&self) -> Option<(LogId, Bytes)> {
        None
    }

    fn install(&self, last: LogId, data: &[u8]) -> Result<(), String> {
        *lock(&self.0) = Some((last, data.to_vec()));
        Ok(())
    }
}

fn open(dir: &std::path::Path) -> (Adapter, Arc<Shared>, Arc<Told>) {
    let told = Arc::new(Told::default());
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
    // openraft may have purged the log by now: this is all that the next start has.
    let (_, shared, told) = open(dir.path());
    assert_eq!(shared.applied(), LogId::new(2, 10));
    assert_eq!(*lock(&told.0), Some((LogId::new(2, 10), b"ten".to_vec())));

    // What cannot be made durable is not adopted either.
    let (mut adapter, shared, told) = open(&dir.path().join("no such folder"));
    adapter.install_snapshot(&meta(10), Bytes::from_static(b"ten")).await.expect_err("there is no place for it");
    assert_eq!((shared.applied(), lock(&told.0).clone()), (LogId::default(), None));
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
