//! What the store has of what was answered, for a gateway pair (P4 of `holdfast_control::pair`, ADR 0031).
//!
//! ```text
//!   flush ─▶ everything applied so far is at or below index i ─▶ a head that covers i was swapped in here ─▶ answered
//!              many wait for one checkpoint: whoever comes while it is under way, and is covered by it, asks for no other
//! ```

use super::HeadKeeper;
use crate::authority::Authority;
use crate::host::SetHost;
use holdfast_types::LogIndex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Asked for again where none began: the begin may have come to nothing.
const ASK_AGAIN: Duration = Duration::from_secs(2);

impl HeadKeeper {
    /// The tenure under which this gateway serves, in a pair.
    pub fn pair(&self) -> Option<&Arc<Authority>> {
        self.parts.pair.as_ref()
    }

    /// P1: whether the tenure allows an answer now. Without a pair it is not asked.
    pub(super) fn seat_allows(&self) -> Result<(), String> {
        self.parts.pair.as_ref().map_or(Ok(()), |pair| pair.may_answer().map_err(|ended| ended.to_string()))
    }

    /// Waits until somebody asks for a checkpoint; one call for each asking, or for several.
    pub async fn asked(&self) {
        self.asked.notified().await;
    }

    /// Waits until the head in the store covers everything that is applied here now. As long as the store takes (R8): whoever waits is let go with its
    /// connection.
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

/// The entry up to which the head must cover everything, if anything applied here is not in the last checkpoint that has ended. A checkpoint ends after the head
/// names it.
fn unsaved(host: &SetHost) -> Option<LogIndex> {
    host.with(|m| {
        let (sealed_at, sealed) = m.sealed().map_or((None, 0), |(at, sealed)| (Some(at.index), sealed.extents()));
        // After a rollback the root is there, and the head does not name it before the next checkpoint.
        let since_begin = m.extents() > sealed || m.state().rolled_back.is_some();
        // Entries since that change no data are nothing to wait for.
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

    /// The head was looked at just now and is ours: all that is left to ask is the seat.
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
        assert!(why.contains("its key is gone"), "P1: {why}");
        assert_eq!(keeper.fenced(), None, "the store does not know of it");
    }
}
