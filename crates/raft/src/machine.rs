//! The adapter between openraft and a [`StateMachine`]: answers, the membership as of each entry, snapshots.

use crate::config::{Answer, TypeConfig};
use crate::snapshot_file::{self, StoredSnapshot};
use crate::wire::{RaftLogId, RaftStoredMembership, id_from_raft, id_to_raft};
use bytes::Bytes;
use futures_util::{Stream, StreamExt};
use holdfast_log::Sealing;
use holdfast_types::sync::LockExt;
use holdfast_types::{GroupId, LogId};
use openraft::storage::{EntryResponder, RaftSnapshotBuilder, RaftStateMachine};
use openraft::{EntryPayload, OptionalSend};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// First pause between two attempts to make a snapshot durable.
const SAVE_AGAIN_MIN: Duration = Duration::from_millis(100);
/// Longest pause.
const SAVE_AGAIN_MAX: Duration = Duration::from_secs(2);

/// Interprets entries. The same entries give the same state and the same answers at every member.
pub trait StateMachine: Send + Sync + 'static {
    /// Applies one committed entry and answers it. MUST NOT do I/O, wait, or read a clock; called in log order.
    fn apply(&self, id: LogId, payload: Bytes) -> Bytes;

    /// An entry without payload was applied (a leader's first of its term, a membership).
    fn observe(&self, id: LogId);

    /// The newest state that may become a snapshot: the last entry that it covers, and its bytes. MUST never go
    /// backwards.
    fn snapshot(&self) -> Option<(LogId, Bytes)>;

    /// Whether [`StateMachine::install`] would accept these bytes; changes nothing.
    ///
    /// # Errors
    /// [`Unfit`].
    fn check(&self, last: LogId, data: &[u8]) -> Result<(), Unfit>;

    /// Replaces the state by a snapshot. MUST NOT do I/O: apply and install never touch the store.
    ///
    /// # Errors
    /// [`Unfit`]; the state is then unchanged.
    fn install(&self, last: LogId, data: &[u8]) -> Result<(), Unfit>;
}

/// Why a state machine refuses a snapshot. The kind decides what happens to the group.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Unfit {
    /// Intact, but written by a build with another format. Nothing is damaged: the group is not started, nothing is
    /// dropped, and the build that wrote it can continue.
    #[error(
        "{0}; it is not damaged: another build wrote it, and this build cannot read it. Start that build again, or a newer one"
    )]
    OtherBuild(String),
    /// Not the bytes that were written (R9).
    #[error("{0}")]
    Damaged(String),
}

impl Unfit {
    /// As an I/O error: `Unsupported` for another build's snapshot, `InvalidData` for damage.
    fn into_io(self, what: impl std::fmt::Display) -> io::Error {
        let kind = match &self {
            Unfit::OtherBuild(_) => io::ErrorKind::Unsupported,
            Unfit::Damaged(_) => io::ErrorKind::InvalidData,
        };
        io::Error::new(kind, format!("{what}: {self}"))
    }
}

/// State that the adapter shares with the group's handle.
pub(crate) struct Shared {
    pub(crate) group: GroupId,
    dir: PathBuf,
    sealing: Option<Sealing>,
    current: Mutex<Option<StoredSnapshot>>,
    saving: tokio::sync::Mutex<()>,
    /// The reason why the newest snapshot is not durable yet.
    unsaved: Mutex<Option<String>>,
    /// The group is being stopped: nothing is retried.
    closing: AtomicBool,
    /// The group was ended permanently: nothing is written any more.
    over: AtomicBool,
    memberships: Mutex<Vec<RaftStoredMembership>>,
    applied_term: AtomicU64,
    applied_index: AtomicU64,
}

impl Shared {
    /// Term and index of the last entry applied here.
    pub(crate) fn applied(&self) -> LogId {
        // Index first: a reader that sees a term then sees an index that is at least as new as that term.
        let term = self.applied_term.load(Ordering::Acquire);
        LogId::new(term, self.applied_index.load(Ordering::Acquire))
    }

    fn set_applied(&self, id: LogId) {
        self.applied_index.store(id.index.0, Ordering::Release);
        self.applied_term.store(id.term.0, Ordering::Release);
    }

    /// The reason why a snapshot is not on disk yet, while it is retried.
    pub(crate) fn unsaved(&self) -> Option<String> {
        self.unsaved.locked().clone()
    }

    pub(crate) fn close(&self) {
        self.closing.store(true, Ordering::Release);
    }

    /// After the return no snapshot is written any more, so the files can be removed.
    pub(crate) async fn end(&self) {
        self.close();
        self.over.store(true, Ordering::Release);
        drop(self.saving.lock().await);
    }

    pub(crate) fn snapshot_last(&self) -> Option<LogId> {
        self.current.locked().as_ref().and_then(StoredSnapshot::last)
    }
}

pub(crate) struct Adapter {
    machine: Arc<dyn StateMachine>,
    shared: Arc<Shared>,
    last: Option<RaftLogId>,
}

impl Adapter {
    /// Loads the newest snapshot of the group into `machine`.
    pub(crate) fn open(
        group: GroupId,
        dir: PathBuf,
        sealing: Option<Sealing>,
        machine: Arc<dyn StateMachine>,
    ) -> io::Result<(Self, Arc<Shared>)> {
        let current = snapshot_file::load(&dir, group, sealing.as_ref())?;
        let mut last = None;
        let mut memberships = Vec::new();
        if let Some(snapshot) = &current {
            let id = snapshot.last().unwrap_or_default();
            machine
                .install(id, &snapshot.data)
                .map_err(|e| e.into_io(format_args!("group-{}.snapshot at {id}", group.0)))?;
            last = snapshot.meta.last_log_id;
            memberships.push(snapshot.meta.last_membership.clone());
        }
        let shared = Arc::new(Shared {
            group,
            dir,
            sealing,
            current: Mutex::new(current),
            saving: tokio::sync::Mutex::new(()),
            unsaved: Mutex::new(None),
            closing: AtomicBool::new(false),
            over: AtomicBool::new(false),
            memberships: Mutex::new(memberships),
            applied_term: AtomicU64::new(0),
            applied_index: AtomicU64::new(0),
        });
        if let Some(id) = last.as_ref() {
            shared.set_applied(id_from_raft(id));
        }
        Ok((Self { machine, shared: shared.clone(), last }, shared))
    }
}

impl RaftStateMachine<TypeConfig> for Adapter {
    type SnapshotData = Bytes;
    type SnapshotBuilder = Builder;

    async fn applied_state(&mut self) -> Result<(Option<RaftLogId>, RaftStoredMembership), io::Error> {
        let membership = self.shared.memberships.locked().last().cloned().unwrap_or_default();
        Ok((self.last, membership))
    }

    async fn apply<Strm>(&mut self, mut entries: Strm) -> Result<(), io::Error>
    where
        Strm: Stream<Item = Result<EntryResponder<TypeConfig>, io::Error>> + Unpin + OptionalSend,
    {
        while let Some(item) = entries.next().await {
            let (entry, responder) = item?;
            let raft_id = entry.log_id;
            let id = id_from_raft(&raft_id);
            let answer = match entry.payload {
                EntryPayload::Normal(payload) => self.machine.apply(id, payload.0),
                EntryPayload::Blank => {
                    // Before the machine notifies: a task that is woken then sees the entry as applied.
                    self.shared.set_applied(id);
                    self.machine.observe(id);
                    Bytes::new()
                }
                EntryPayload::Membership(m) => {
                    self.shared.memberships.locked().push(RaftStoredMembership::new(Some(raft_id), m));
                    self.machine.observe(id);
                    Bytes::new()
                }
            };
            self.last = Some(raft_id);
            self.shared.set_applied(id);
            if let Some(responder) = responder {
                responder.send(Answer(answer));
            }
        }
        Ok(())
    }

    /// Returns a builder only if there is something newer.
    async fn try_create_snapshot_builder(&mut self, _force: bool) -> Option<Builder> {
        let (last, data) = self.machine.snapshot()?;
        if self.shared.snapshot_last() >= Some(last) {
            return None;
        }
        let membership = {
            let mut all = self.shared.memberships.locked();
            let limit = Some(id_to_raft(last));
            let as_of = all.iter().rposition(|m| *m.log_id() <= limit);
            let chosen = as_of.map(|i| all[i].clone()).unwrap_or_default();
            if let Some(i) = as_of {
                all.drain(..i);
            }
            chosen
        };
        Some(Builder { snapshot: StoredSnapshot::new(last, membership, data), shared: self.shared.clone() })
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        let snapshot = self.shared.current.locked().clone();
        let snapshot = snapshot
            .unwrap_or_else(|| StoredSnapshot::new(LogId::default(), RaftStoredMembership::default(), Bytes::new()));
        Builder { snapshot, shared: self.shared.clone() }
    }

    async fn install_snapshot(&mut self, meta: &crate::wire::RaftSnapshotMeta, data: Bytes) -> Result<(), io::Error> {
        let snapshot = StoredSnapshot { meta: meta.clone(), data: data.clone() };
        let last = snapshot
            .last()
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "snapshot without a last log id"))?;
        // Before it replaces the present snapshot: if this build does not understand the new one, the group stops and
        // stays intact.
        self.machine.check(last, &data).map_err(|e| {
            e.into_io(format_args!("the leader's snapshot at {last} (the one on this disk stays as it is)"))
        })?;
        // Durable before it is installed: openraft purges the log up to it as soon as this returns.
        save_patiently(&self.shared, snapshot, lacks_room).await?;
        self.machine.install(last, &data).map_err(|e| e.into_io(format_args!("snapshot at {last}")))?;
        *self.shared.memberships.locked() = vec![meta.last_membership.clone()];
        self.last = meta.last_log_id;
        self.shared.set_applied(last);
        holdfast_reached::reached!("snapshot: one of the leader is installed");
        tracing::info!(group = %self.shared.group, %last, "installed a snapshot");
        Ok(())
    }

    async fn get_current_snapshot(
        &mut self,
    ) -> Result<Option<openraft::type_config::alias::SnapshotOf<TypeConfig, Bytes>>, io::Error> {
        Ok(self.shared.current.locked().clone().map(|s| openraft::storage::Snapshot { meta: s.meta, snapshot: s.data }))
    }
}

/// Makes `snapshot` durable and current, unless there is a newer one: it must never go back, because a follower that
/// got the newer one would loop on the older. Returns the snapshot that is current then.
async fn save(shared: &Arc<Shared>, snapshot: StoredSnapshot) -> io::Result<StoredSnapshot> {
    let _one_at_a_time = shared.saving.lock().await;
    if shared.over.load(Ordering::Acquire) {
        holdfast_reached::reached!("snapshot: to be saved after the end of the group");
        return Err(io::Error::other("the group is ended"));
    }
    if let Some(current) = shared.current.locked().clone()
        && current.last() >= snapshot.last()
    {
        holdfast_reached::reached!("snapshot: a newer one is there already");
        return Ok(current);
    }
    let (to, copy) = (shared.clone(), snapshot.clone());
    holdfast_log::spawn_blocking(move || snapshot_file::save(&to.dir, to.group, &copy, to.sealing.as_ref()))
        .await
        .map_err(io::Error::other)??;
    *shared.current.locked() = Some(snapshot.clone());
    Ok(snapshot)
}

/// The disk is full, or another resource ran out: the same write may work a moment later.
fn lacks_room(e: &io::Error) -> bool {
    use rustix::io::Errno;
    let passes = [Errno::MFILE, Errno::NFILE, Errno::NOMEM].map(|errno| Some(errno.raw_os_error()));
    matches!(e.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::Interrupted)
        || passes.contains(&e.raw_os_error())
}

/// [`save`], repeated while `passes` says that it may work later. openraft ends the group at the first error, and the
/// group would stay ended until the next start. The journal waits for disk space in the same way.
async fn save_patiently(
    shared: &Arc<Shared>,
    snapshot: StoredSnapshot,
    passes: impl Fn(&io::Error) -> bool,
) -> io::Result<StoredSnapshot> {
    let mut pause = SAVE_AGAIN_MIN;
    loop {
        match save(shared, snapshot.clone()).await {
            Err(e) if passes(&e) && !shared.closing.load(Ordering::Acquire) => {
                tracing::warn!(group = %shared.group, error = %e, "a state snapshot could not be written; trying again");
                holdfast_reached::reached!("snapshot: the disk refuses it for now");
                *shared.unsaved.locked() = Some(e.to_string());
            }
            done => {
                *shared.unsaved.locked() = None;
                return done;
            }
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(SAVE_AGAIN_MAX);
    }
}

/// Makes one snapshot of the machine durable. Only the purge waits for it, so it continues to try, whatever the error.
pub(crate) struct Builder {
    snapshot: StoredSnapshot,
    shared: Arc<Shared>,
}

impl RaftSnapshotBuilder<TypeConfig> for Builder {
    type SnapshotData = Bytes;

    async fn build_snapshot(
        &mut self,
    ) -> Result<openraft::type_config::alias::SnapshotOf<TypeConfig, Bytes>, io::Error> {
        let snapshot = save_patiently(&self.shared, self.snapshot.clone(), |_| true).await?;
        Ok(openraft::storage::Snapshot { meta: snapshot.meta, snapshot: snapshot.data })
    }
}

#[cfg(test)]
mod tests;
