//! Rollback: one entry makes a set equal to one of its snapshots. The reasons are in ADR 0016.
//!
//! ```text
//!   lease ended ─▶ safety snapshot (a checkpoint) ─▶ Rollback: root and volumes are the snapshot's ─▶ checkpoint: the store's head says so
//!                     └── nothing was changed between the two, or it is refused ──┘
//! ```
//! SET-S12  A rollback needs a free set, and a finished snapshot of this life with the content of the set at that
//!     entry. It takes the snapshot's root and volumes as a whole (R4). It gives up a checkpoint under way, whose end
//!     would restore what it sealed, and leaves no lease: the next owner gets a new epoch (R6). Its root is a retained
//!     one, so garbage stays garbage (SPACE-G1). Until a checkpoint that began after the rollback has ended, the
//!     store's head may name the state before it: nothing is retired until then.

use super::command::SetAnswer;
use super::lease::held;
use super::refusal::SetRefusal;
use super::state::{Checkpoint, SetState, Snapshot, SnapshotId};
use holdfast_types::{LogId, RequestId};

impl SetState {
    /// The finished snapshot of this name, if this request made it.
    ///
    /// # Errors
    /// [`SetRefusal::NoSuchSnapshot`].
    pub fn finished(&self, id: &SnapshotId) -> Result<&Snapshot, SetRefusal> {
        let SnapshotId { name, made_by } = id;
        let found = self.snapshots.get(name).filter(|snapshot| snapshot.request == *made_by);
        found.ok_or_else(|| SetRefusal::NoSuchSnapshot { name: name.clone(), made_by: *made_by })
    }

    /// Whether the safety snapshot of a rollback that was refused with `refusal` can be deleted: nothing was done, so
    /// nothing needs a way back. A safety snapshot of an earlier life stays: it is the way back from a rollback of that
    /// life, and this was a late copy of its request, which only that life remembers.
    pub fn takes_up_space(&self, safety: &SnapshotId, refusal: &SetRefusal) -> bool {
        let is_left = self.finished(safety).is_ok_and(Snapshot::is_inherited);
        matches!(refusal, SetRefusal::Held { .. } | SetRefusal::ChangedSinceSnapshot { .. }) && !is_left
    }

    pub(super) fn rollback(
        &mut self,
        id: LogId,
        to: &SnapshotId,
        safety: &SnapshotId,
        request: RequestId,
    ) -> Result<SetAnswer, SetRefusal> {
        if self.space_requests.contains(&request) {
            holdfast_reached::reached!("rollback: a late copy of its request");
            return Ok(SetAnswer::RolledBack { now: false });
        }
        if let Some(lease) = &self.lease {
            holdfast_reached::reached!("rollback: the set is held");
            return Err(held(lease));
        }
        let target = self.finished(to)?.clone();
        let safe = self.finished(safety)?;
        let refused = || {
            let (name, upto) = (safety.name.clone(), safe.upto.index);
            Err(SetRefusal::ChangedSinceSnapshot { name, upto, changed: self.last_change })
        };
        // Of an earlier life, whose last checkpoint may be another one. This life begins without a change, so its log
        // does not tell.
        if safe.is_inherited() {
            holdfast_reached::reached!("rollback: the safety snapshot is of an earlier life");
            return refused();
        }
        if self.last_change > safe.upto.index || self.volumes != safe.volumes {
            holdfast_reached::reached!("rollback: the set was changed after the safety snapshot");
            return refused();
        }
        holdfast_reached::reached!("rollback: it gives up a checkpoint under way", self.begin.is_some());
        let before = self.current_root();
        self.volumes = target.volumes;
        // SET-S18.
        self.limits.keep(|id| self.volumes.contains_key(&id));
        self.begin = None;
        self.segments.clear();
        // The content of the volumes at this entry is that of the root.
        self.checkpoint = Some(Checkpoint { upto: id, root: target.root });
        self.last_change = id.index;
        self.rolled_back = Some(id);
        if let Some(before) = before {
            self.drop_unless_kept(before);
        }
        self.remember(request);
        Ok(SetAnswer::RolledBack { now: true })
    }
}

#[cfg(test)]
mod tests;
