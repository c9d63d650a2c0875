//! Tracks which answered data the store has, for a gateway pair (PAIR-P4 of `holdfast_control::pair`, ADR 0031).
//!
//! ```text
//!   flush ─▶ everything applied so far is at or below index i ─▶ a head that covers i was swapped in here ─▶ answered
//!     several flushes share one checkpoint: a flush that it covers does not request another
//! ```

use super::HeadKeeper;
use crate::authority::Authority;
use crate::host::SetHost;
use holdfast_types::LogIndex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Requests again if no checkpoint began: it may have failed at its beginning.
const ASK_AGAIN: Duration = Duration::from_secs(2);

impl HeadKeeper {
    /// In a pair: the tenure under which this gateway serves.
    pub fn pair(&self) -> Option<&Arc<Authority>> {
        self.parts.pair.as_ref()
    }

    /// PAIR-P1: whether the tenure allows an answer now. Always allowed without a pair.
    pub(super) fn seat_allows(&self) -> Result<(), String> {
        self.parts.pair.as_ref().map_or(Ok(()), |pair| pair.may_answer().map_err(|ended| ended.to_string()))
    }

    /// Waits until a checkpoint is requested. One call may stand for several requests.
    pub async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Waits until the head in the store covers everything applied here so far. Takes as long as the store takes (R8);
    /// a waiting client is released when its connection closes.
    pub async fn in_store(&self, host: &SetHost) {
        let Some(upto) = unsaved(host) else { return };
        let since = Instant::now();
        let mut covered = self.covered.subscribe();
        loop {
            let there = *covered.borrow_and_update();
            if there.is_some_and(|c| c.generation == self.parts.life.generation && c.upto.index >= upto) {
                break;
            }
            let under_way = host.with(|m| m.state().begin.is_some_and(|begin| begin.at.index >= upto));
            if !under_way {
                self.want_checkpoint();
            }
            let _ = tokio::time::timeout(ASK_AGAIN, covered.changed()).await;
        }
        metrics::histogram!("holdfast_pair_flush_seconds", "set" => self.parts.name.to_string())
            .record(since.elapsed().as_secs_f64());
    }
}

/// The entry up to which the head must cover everything, if anything applied here is missing in the last finished
/// checkpoint. A checkpoint finishes after the head names it.
fn unsaved(host: &SetHost) -> Option<LogIndex> {
    host.with(|m| {
        let (sealed_at, sealed) = m.sealed().map_or((None, 0), |(at, sealed)| (Some(at.index), sealed.extents()));
        // After a rollback the root exists, but the head does not name it before the next checkpoint.
        let since_begin = m.extents() > sealed || m.state().rolled_back.is_some();
        // Later entries that change no data need no wait.
        if since_begin { m.applied().map(|applied| applied.index) } else { sealed_at }
    })
}

#[cfg(test)]
mod tests {
    use super::super::tests::{FIRST, keeper_of};
    use crate::authority::Authority;
    use holdfast_control::pair::{Durability, Ended, TenureId};
    use holdfast_raft::boot_now;
    use holdfast_store::{Memory, ObjectStore};
    use std::sync::Arc;
    use std::time::Duration;

    fn authority() -> Arc<Authority> {
        let id = TenureId::new(7, "/holdfast/pairs/db/seat", 40);
        let ttl = Duration::from_secs(600);
        Arc::new(Authority::begin(id, Durability::Flush, Vec::new(), boot_now(), ttl))
    }

    /// The head was just read and belongs to this life: only the seat is left to check.
    #[tokio::test]
    async fn no_answer_leaves_once_the_tenure_is_over() {
        let store: Arc<dyn ObjectStore> = Arc::new(Memory::default());
        let dir = tempfile::tempdir().unwrap();
        let pair = authority();
        let keeper = keeper_of(store, FIRST, dir.path(), Some(pair.clone()));
        keeper.look().await;
        keeper.before_answer().await.unwrap();
        pair.end(Ended::Lost("its key is gone".into()));
        let why = keeper.before_answer().await.unwrap_err();
        assert!(why.contains("its key is gone"), "PAIR-P1: {why}");
        assert_eq!(keeper.fenced(), None, "the store is not affected");
    }
}
