//! openraft's own suite for log stores and state machines, on the real journal.

use crate::config::TypeConfig;
use crate::log_store::{LogStore, VotedTerm};
use crate::machine::{Adapter, StateMachine, Unfit};
use bytes::Bytes;
use futures_util::FutureExt;
use holdfast_log::{Entry, Identity, LogConfig, NodeLog, RealDisk, Turns};
use holdfast_types::sync::LockExt;
use holdfast_types::{GroupId, LogId, Term};
use openraft::StorageError;
use openraft::storage::RaftLogStorage;
use openraft::testing::log::{StoreBuilder, Suite};
use std::sync::{Arc, Mutex};

/// Remembers only its position; its snapshot is that position.
#[derive(Default)]
struct Recorder {
    last: Mutex<Option<LogId>>,
}

impl Recorder {
    fn set(&self, id: LogId) {
        *self.last.locked() = Some(id);
    }
}

impl StateMachine for Recorder {
    fn apply(&self, id: LogId, payload: Bytes) -> Bytes {
        self.set(id);
        payload
    }

    fn observe(&self, id: LogId) {
        self.set(id);
    }

    fn snapshot(&self) -> Option<(LogId, Bytes)> {
        let last = *self.last.locked();
        // Also before the first entry: the suite purges logs that were never applied.
        Some((last.unwrap_or_default(), Bytes::from_static(b"state")))
    }

    fn check(&self, _: LogId, _: &[u8]) -> Result<(), Unfit> {
        Ok(())
    }

    fn install(&self, last: LogId, _data: &[u8]) -> Result<(), Unfit> {
        self.set(last);
        Ok(())
    }
}

struct Builder;

impl StoreBuilder<TypeConfig, LogStore, Adapter, (tempfile::TempDir, NodeLog)> for Builder {
    async fn build(&self) -> Result<((tempfile::TempDir, NodeLog), LogStore, Adapter), StorageError<TypeConfig>> {
        let io = |e: std::io::Error| StorageError::read(crate::wire::source(&e));
        let dir = tempfile::tempdir().map_err(io)?;
        let config = LogConfig {
            file_bytes: 16 << 20,
            reserve_bytes: 64 << 20,
            bound_bytes: 256 << 20,
            ..LogConfig::new(dir.path().join("journal"))
        };
        let (log, _) = NodeLog::open(config).map_err(|e| io(std::io::Error::other(e.to_string())))?;
        let group = GroupId(7);
        let (adapter, _) =
            Adapter::open(group, dir.path().to_path_buf(), None, Arc::new(Recorder::default())).map_err(io)?;
        let store = LogStore::new(log.group(group), Arc::default());
        Ok(((dir, log), store, adapter))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openraft_suite_passes_on_the_journal() {
    if let Err(e) = Suite::test_all(Builder).await {
        panic!("{e}");
    }
}

/// A journal whose disk stands still between two turns.
pub(crate) fn in_turns(dir: &std::path::Path) -> (NodeLog, Turns) {
    let (file_bytes, bound_bytes, reserve_bytes) = (16 << 20, 256 << 20, 64 << 20);
    let config = LogConfig { file_bytes, bound_bytes, reserve_bytes, ..LogConfig::new(dir) };
    let disk = RealDisk::open(dir, file_bytes, 4).expect("opens");
    let (log, _, turns) = NodeLog::open_in_turns(disk, config, Identity::default(), None).expect("opens");
    (log, turns)
}

/// R3: from the moment on in which its vote may be on the way to another leader, this member leads no earlier term.
#[tokio::test]
async fn r3_a_vote_counts_before_it_is_on_the_disk() {
    let dir = tempfile::tempdir().expect("a folder");
    let (log, mut turns) = in_turns(dir.path());
    let votes = Arc::new(VotedTerm::default());
    let mut store = LogStore::new(log.group(GroupId(7)), votes.clone());
    let leads = || [3, 4, 5, 6].map(|term| votes.allows(Term(term)));
    assert_eq!(leads(), [true; 4], "it has voted for nobody yet");
    let (later, earlier) = (crate::wire::make_vote(5, 2, false), crate::wire::make_vote(4, 1, true));
    for vote in [&later, &earlier] {
        let mut saving = Box::pin(store.save_vote(vote));
        assert!((&mut saving).now_or_never().is_none(), "the disk stands still");
        assert_eq!(leads(), [false, false, true, true], "after the vote {vote:?}");
        turns.turn(false);
        saving.await.expect("durable");
    }
}

/// openraft awaits a purge in the loop that sends heartbeats: a leader whose disk does not respond must not lose its
/// leadership because of it.
#[tokio::test]
async fn a_purge_does_not_wait_for_the_disk() {
    let dir = tempfile::tempdir().expect("a folder");
    let (log, mut turns) = in_turns(dir.path());
    let group = log.group(GroupId(7));
    let mut store = LogStore::new(group.clone(), Arc::default());
    let entries = (0..5).map(|index| Entry { id: LogId::new(1, index), payload: Bytes::from_static(b"e") }).collect();
    group.append(entries, |result| result.expect("durable"));
    turns.turn(false);
    // Nothing is written from here on: the disk does not respond.
    let purged = store.purge(crate::wire::id_to_raft(LogId::new(1, 3))).now_or_never();
    purged.expect("it waits for the disk").expect("queued");
    let state = store.get_log_state().await.expect("known");
    assert_eq!(state.last_purged_log_id, Some(crate::wire::id_to_raft(LogId::new(1, 3))));
    assert!(turns.waits(), "it is written later");
    turns.turn(false);
    assert_eq!(group.state().purged, Some(LogId::new(1, 3)));
}
