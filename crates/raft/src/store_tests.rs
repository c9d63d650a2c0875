//! openraft's own suite for log stores and state machines, on the real journal.

use crate::config::TypeConfig;
use crate::log_store::LogStore;
use crate::machine::{Adapter, StateMachine};
use bytes::Bytes;
use holdfast_log::{LogConfig, NodeLog};
use holdfast_types::{GroupId, LogId};
use openraft::StorageError;
use openraft::testing::log::{StoreBuilder, Suite};
use std::sync::{Arc, Mutex, PoisonError};

/// Remembers only how far it got; its snapshot is that.
#[derive(Default)]
struct Recorder {
    last: Mutex<Option<LogId>>,
}

impl Recorder {
    fn set(&self, id: LogId) {
        *self.last.lock().unwrap_or_else(PoisonError::into_inner) = Some(id);
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
        let last = *self.last.lock().unwrap_or_else(PoisonError::into_inner);
        // Also before the first entry: the suite purges logs that were never applied.
        Some((last.unwrap_or_default(), Bytes::from_static(b"state")))
    }

    fn check(&self, _: LogId, _: &[u8]) -> Result<(), String> {
        Ok(())
    }

    fn install(&self, last: LogId, _data: &[u8]) -> Result<(), String> {
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
        let store = LogStore::new(log.group(group));
        Ok(((dir, log), store, adapter))
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn openraft_suite_passes_on_the_journal() {
    if let Err(e) = Suite::test_all(Builder).await {
        panic!("{e}");
    }
}
