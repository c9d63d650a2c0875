//! A set's replicated state on this node: [`SetMachine`] behind one lock, as a state machine of its Raft group.
//!
//! Everything under the lock is in memory only: apply never does I/O; a read takes the lock only for its lookup.

use bytes::Bytes;
use holdfast_control::cluster::SetEntry;
use holdfast_control::set::{Lease, Links, RootRef, SetAnswer, SetState};
use holdfast_raft::{StateMachine, Unfit};
use holdfast_types::sync::LockExt;
use holdfast_types::{Epoch, Lba, LogId, MemberId, Sectors, SetId, VolumeId};
use holdfast_volume::entry;
use holdfast_volume::index::{Memtable, Piece};
use holdfast_volume::machine::{Event, SetMachine, SnapshotError};
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

/// Encodes an answer for the group. "Written" is one byte, without allocation: it answers every write.
pub fn encode_answer(answer: &SetAnswer) -> Bytes {
    if matches!(answer, SetAnswer::Written) {
        return Bytes::from_static(WRITTEN);
    }
    // Serialising to memory cannot fail; an empty answer would not decode and count as unknown.
    postcard::to_stdvec(&(1u8, answer)).map(Bytes::from).unwrap_or_default()
}

const WRITTEN: &[u8] = &[0];

/// Decodes an answer of [`encode_answer`]; `None` for anything else.
pub fn decode_answer(bytes: &[u8]) -> Option<SetAnswer> {
    match bytes.first() {
        Some(0) if bytes == WRITTEN => Some(SetAnswer::Written),
        Some(1) => postcard::from_bytes::<(u8, SetAnswer)>(bytes).ok().map(|(_, answer)| answer),
        _ => None,
    }
}

/// The last grant that was applied here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrantSeen {
    /// The entry.
    pub id: LogId,
    /// Its epoch.
    pub epoch: Epoch,
    /// The gateway that may serve it.
    pub gateway: MemberId,
}

struct Inner {
    machine: SetMachine,
    grant: Option<GrantSeen>,
}

/// The state machine of one set's group. Shared between the group and the set's tasks.
pub struct SetHost {
    set: SetId,
    inner: Mutex<Inner>,
    /// Notified at every applied entry that is not a write, and at every install.
    changed: Notify,
    /// Notified at every applied begin or end of a checkpoint.
    checkpoint: Notify,
    /// Why the last checkpoint begun here failed.
    unfinished: Mutex<Option<String>>,
}

impl SetHost {
    /// A set before its first entry: empty, as found in its store, or a clone. Every replica begins with the same
    /// state.
    pub fn new(set: SetId, entry: &SetEntry, links: &Links) -> Self {
        let state = match &entry.restored {
            None => SetState::new(entry.base_epoch),
            Some(restored) => SetState::restored(entry.base_epoch, restored),
        };
        let machine = SetMachine::new(state.with_links(links));
        let (changed, checkpoint, unfinished) = (Notify::new(), Notify::new(), Mutex::default());
        Self { set, inner: Mutex::new(Inner { machine, grant: None }), changed, checkpoint, unfinished }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.locked()
    }

    /// Reads the machine under the lock; `look` must be short and must not wait.
    pub fn with<T>(&self, look: impl FnOnce(&SetMachine) -> T) -> T {
        look(&self.inner().machine)
    }

    /// The lease, and the last grant applied here, as of one moment.
    pub fn lease_and_grant(&self) -> (Option<Lease>, Option<GrantSeen>) {
        let inner = self.inner();
        (inner.machine.state().lease.clone(), inner.grant)
    }

    /// Where each sector of the range is now, and which root the parts marked `Map` refer to.
    pub fn lookup(&self, volume: VolumeId, lba: Lba, sectors: Sectors) -> (Vec<Piece>, Option<RootRef>) {
        let inner = self.inner();
        let root = inner.machine.state().checkpoint.as_ref().map(|c| c.root);
        (inner.machine.lookup(volume, lba, sectors), root)
    }

    /// The root of the current checkpoint, as lookups have it.
    pub fn root(&self) -> Option<RootRef> {
        self.inner().machine.state().checkpoint.as_ref().map(|c| c.root)
    }

    /// The memtable that waits for its checkpoint.
    pub fn sealed(&self) -> Option<(LogId, Arc<Memtable>)> {
        self.inner().machine.sealed()
    }

    /// Records that a checkpoint failed here, or that one succeeded.
    pub fn note_unfinished(&self, why: Option<String>) {
        *self.unfinished.locked() = why;
    }

    /// Why the last checkpoint begun here failed; it is started again.
    pub fn unfinished(&self) -> Option<String> {
        self.unfinished.locked().clone()
    }

    /// Notified at the next change of the small state.
    pub fn changed(&self) -> &Notify {
        &self.changed
    }

    /// Notified when a checkpoint begins or ends.
    pub fn checkpoint(&self) -> &Notify {
        &self.checkpoint
    }
}

fn unfit(error: &SnapshotError) -> Unfit {
    match error.of_another_build() {
        true => Unfit::OtherBuild(error.to_string()),
        false => Unfit::Damaged(error.to_string()),
    }
}

impl StateMachine for SetHost {
    fn apply(&self, id: LogId, payload: Bytes) -> Bytes {
        // Checksums first: only the index is touched under the lock.
        let entry = match entry::decode_of(self.set, &payload) {
            Ok(entry) => entry,
            Err(e) => {
                // R11: this replica cannot read a committed entry, or it is another set's (ENTRY-E4). If it continued,
                // it would differ from the others.
                tracing::error!(%id, error = %e, "R11: a committed entry does not decode; this gateway stops");
                std::process::abort();
            }
        };
        let applied = {
            let mut inner = self.inner();
            let applied = inner.machine.apply_decoded(id, &entry);
            if let Some(Event::GrantApplied { epoch, gateway }) = &applied.event {
                inner.grant = Some(GrantSeen { id, epoch: *epoch, gateway: *gateway });
            }
            applied
        };
        // A retired index may be large: it is freed here, outside of the lock.
        drop(applied.retired);
        match applied.event {
            None => {}
            Some(Event::CheckpointBegun { .. } | Event::Checkpointed { .. }) => self.checkpoint.notify_waiters(),
            Some(Event::RolledBack) => {
                self.checkpoint.notify_waiters();
                self.changed.notify_waiters();
            }
            Some(_) => self.changed.notify_waiters(),
        }
        encode_answer(&applied.answer)
    }

    fn observe(&self, _id: LogId) {
        self.changed.notify_waiters();
    }

    fn snapshot(&self) -> Option<(LogId, Bytes)> {
        self.with(|m| m.snapshot()).map(|(id, bytes)| (id, Bytes::from(bytes)))
    }

    fn check(&self, last: LogId, data: &[u8]) -> Result<(), Unfit> {
        SetMachine::from_snapshot(last, data).map(drop).map_err(|e| unfit(&e))
    }

    fn install(&self, last: LogId, data: &[u8]) -> Result<(), Unfit> {
        let machine = SetMachine::from_snapshot(last, data).map_err(|e| unfit(&e))?;
        *self.inner() = Inner { machine, grant: None };
        self.changed.notify_waiters();
        self.checkpoint.notify_waiters();
        Ok(())
    }
}

#[cfg(test)]
mod tests;
