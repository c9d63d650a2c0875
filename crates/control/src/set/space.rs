//! Snapshots, and the objects in the store that are no longer needed (ADR 0012).
//!
//! ```text
//!   SnapshotCreate ─▶ pending ─CheckpointBegin at X─▶ sealed at X ─its CheckpointEnd─▶ snapshot: root at X, kept
//!   root that nothing keeps ─▶ dropped ─Retire─▶ its objects that no kept root names: retired ─deleted in the store─▶ Deleted
//! ```
//! SET-S6  A snapshot is the root of one checkpoint and the volumes as of that checkpoint's begin (R4).
//! SET-S7  The root of the current checkpoint, the roots of snapshots, and pinned roots (SET-S13) are retained. A root
//!     that no longer is stays in `dropped` until its objects are retired. So no change of leaders can forget garbage.
//! SET-S8  These are never retired: a retained or dropped root itself; a segment of the checkpoint under way; as an
//!     orphan, an object of the entry's own term or a later one, which may still become part of a root. Objects of
//!     given-up checkpoints of the entry's own term are retired by naming the begin of a later checkpoint that has
//!     ended, and not while that one, or one before it, is under way. A retired object stays retired.
//! SET-S9  This module never reads `checkpoint`: on a replay from the snapshot of X it has the next root before that
//!     checkpoint's end was applied. [`SetState::current_root`] gives the same on every way to a state.
//! SET-S11  A request acts once (R12). A deletion names the request that made the snapshot, which no later snapshot of
//!     the same name shares: a late copy of it deletes no other one. Requests that make a snapshot or a rollback are
//!     remembered.
//! SET-S12 Rollback: see `set/rollback.rs`.

use super::checkpoint::check_term;
use super::command::{RetireOf, SetAnswer};
use super::listed::{LIST_BYTES_MAX, SNAPSHOT_BYTES};
use super::pins::PINS_MAX;
use super::refusal::SetRefusal;
use super::schedule::{KEPT_MAX, Schedule, Taken};
use super::state::{PendingSnapshot, RootRef, SetState, Snapshot, StoredKind, StoredObject};
use holdfast_types::{LogId, Name, ObjectId, RequestId, Term};
use std::collections::BTreeSet;

/// Most snapshots of one set, finished or not. Garbage collection reads the root of each.
pub const SNAPSHOTS_MAX: usize = 128;
/// Most dropped roots that are remembered. Further ones are found by the sweep for orphans.
pub const DROPPED_MAX: usize = 512;
/// Most objects that wait for deletion: limits the size of the state. Collection waits while this is full.
pub const RETIRED_MAX: usize = 1 << 16;
/// Most objects of one `Retire` or `Deleted`: far below the limit of an entry.
pub const RETIRE_OBJECTS_MAX: usize = 4096;

/// Remembered requests on snapshots, volumes and rollbacks. A late copy arrives at most seconds after its request, and
/// each request waits for a checkpoint: no sane client sends so many within that time.
pub const SPACE_REQUESTS_REMEMBERED: usize = 64;

const _: () = assert!((KEPT_MAX as usize) < SNAPSHOTS_MAX);
/// A list of all snapshots fits, if they share their volumes.
const _: () = assert!(SNAPSHOTS_MAX * (SNAPSHOT_BYTES + 64) < LIST_BYTES_MAX);

/// The present snapshots that the schedule took.
pub fn taken(state: &SetState) -> Vec<Taken> {
    let finished = state.snapshots.iter().filter(|(_, found)| found.scheduled).map(|(name, found)| Taken {
        name: name.clone(),
        made_by: found.request,
        at_unix_ms: found.at_unix_ms,
        finished: true,
    });
    let waiting = state.pending.iter().filter(|(_, found)| found.scheduled).map(|(name, found)| Taken {
        name: name.clone(),
        made_by: found.request,
        at_unix_ms: found.at_unix_ms,
        finished: false,
    });
    finished.chain(waiting).collect()
}

impl SetState {
    /// The root of the current checkpoint. Replay and direct apply give the same (SET-S9).
    pub fn current_root(&self) -> Option<RootRef> {
        match &self.begin {
            Some(begin) => begin.base,
            None => self.checkpoint.map(|checkpoint| checkpoint.root),
        }
    }

    /// The roots whose objects must not be deleted, each once: the current one, and those of snapshots and pins.
    pub fn kept_roots(&self) -> Vec<RootRef> {
        let mut kept: Vec<RootRef> = self.current_root().into_iter().collect();
        for root in self.kept_by_name() {
            if !kept.contains(&root) {
                kept.push(root);
            }
        }
        kept
    }

    /// How many of the current checkpoint, snapshots and pins retain this root.
    pub fn keepers_of(&self, root: RootRef) -> usize {
        usize::from(self.current_root() == Some(root)) + self.kept_by_name().filter(|kept| *kept == root).count()
    }

    /// Roots of snapshots and pins.
    fn kept_by_name(&self) -> impl Iterator<Item = RootRef> + '_ {
        self.snapshots.values().map(|snapshot| snapshot.root).chain(self.pins.values().map(|pin| pin.root))
    }

    pub(super) fn snapshot_create(
        &mut self,
        name: &Name,
        request: RequestId,
        at_unix_ms: u64,
        scheduled: bool,
    ) -> Result<SetAnswer, SetRefusal> {
        let found = self.snapshots.get(name).map(|snapshot| snapshot.request);
        let found = found.or_else(|| self.pending.get(name).map(|pending| pending.request));
        match found {
            Some(found) if found == request => return Ok(SetAnswer::SnapshotAsked),
            Some(_) => return Err(SetRefusal::SnapshotNameTaken { name: name.clone() }),
            None => {}
        }
        if self.space_requests.contains(&request) {
            return Err(SetRefusal::RequestDone);
        }
        if self.snapshots.len() + self.pending.len() >= SNAPSHOTS_MAX {
            return Err(SetRefusal::TooManySnapshots { max: SNAPSHOTS_MAX as u32 });
        }
        self.pending.insert(name.clone(), PendingSnapshot { request, at_unix_ms, sealed: None, scheduled });
        self.remember(request);
        Ok(SetAnswer::SnapshotAsked)
    }

    /// Replaces the whole schedule. A late copy of an earlier request changes nothing (SET-S11).
    pub(super) fn set_schedule(&mut self, schedule: &Schedule, request: RequestId) -> Result<SetAnswer, SetRefusal> {
        if self.space_requests.contains(&request) {
            return Ok(SetAnswer::ScheduleSet);
        }
        schedule.check().map_err(|error| SetRefusal::BadSchedule { error })?;
        self.schedule = schedule.clone();
        self.remember(request);
        Ok(SetAnswer::ScheduleSet)
    }

    /// SET-S11.
    pub(super) fn remember(&mut self, request: RequestId) {
        if self.space_requests.len() >= SPACE_REQUESTS_REMEMBERED {
            self.space_requests.pop_front();
        }
        self.space_requests.push_back(request);
    }

    pub(super) fn snapshot_delete(&mut self, name: &Name, made_by: RequestId) -> SetAnswer {
        let waits = self.pending.get(name).is_some_and(|pending| pending.request == made_by);
        let there = self.snapshots.get(name).is_some_and(|snapshot| snapshot.request == made_by);
        if waits {
            self.pending.remove(name);
        }
        if there && let Some(gone) = self.snapshots.remove(name) {
            self.drop_unless_kept(gone.root);
        }
        SetAnswer::SnapshotDeleted { existed: waits || there }
    }

    /// SET-S7: drops a root that was retained a moment ago, unless it still is.
    pub(super) fn drop_unless_kept(&mut self, root: RootRef) {
        if !self.kept_roots().contains(&root) {
            self.drop_root(root);
        }
    }

    /// At the begin at `at`: all pending snapshots will show this moment.
    pub(super) fn pin_pending(&mut self, at: LogId) {
        let volumes = self.volumes.clone();
        let names: Vec<Name> = self.pending.keys().cloned().collect();
        for name in names {
            if let Some(pending) = self.pending.get_mut(&name) {
                pending.sealed = Some((at, volumes.clone()));
            }
        }
    }

    /// At the end of the checkpoint that began at `begin` over `base`: its pending snapshots become snapshots, and the
    /// replaced root is dropped unless a snapshot or a clone retains it.
    pub(super) fn root_replaced(&mut self, begin: LogId, base: Option<RootRef>, root: RootRef) {
        let pinned = self.pending.iter().filter_map(|(name, p)| Some((name.clone(), p.finished(begin, root)?)));
        let pinned: Vec<(Name, Snapshot)> = pinned.collect();
        for (name, snapshot) in pinned {
            self.pending.remove(&name);
            self.snapshots.insert(name, snapshot);
        }
        if let Some(base) = base
            && base != root
            && !self.kept_by_name().any(|kept| kept == base)
        {
            self.drop_root(base);
        }
    }

    fn drop_root(&mut self, root: RootRef) {
        // A root beyond the bound is not lost: the sweep for orphans finds objects that no retained root names.
        if self.dropped.len() < DROPPED_MAX {
            self.dropped.insert(root.object, root.bytes);
        }
    }

    pub(super) fn retire(
        &mut self,
        id: LogId,
        term: Term,
        of: RetireOf,
        objects: &[StoredObject],
    ) -> Result<SetAnswer, SetRefusal> {
        check_term(id, term)?;
        if let Some(at) = self.rolled_back {
            holdfast_reached::reached!("retire: a rollback is not in the head yet");
            return Err(SetRefusal::NotCheckpointed { at });
        }
        let room = RETIRED_MAX.saturating_sub(self.retired.len());
        // One more for the root itself.
        if objects.len() > RETIRE_OBJECTS_MAX || objects.len() + 1 > room {
            let max = RETIRE_OBJECTS_MAX.min(room.saturating_sub(1)) as u32;
            return Err(SetRefusal::TooManyRetired { found: objects.len() as u32, max });
        }
        if let RetireOf::GivenUp { ended } = of {
            self.check_over(id, ended)?;
        }
        // SET-S8. The proposer has read the roots; this checks what is known without them.
        let kept: BTreeSet<ObjectId> = self.kept_roots().iter().map(|root| root.object).collect();
        for StoredObject { object, .. } in objects {
            let dropped = self.dropped.contains_key(object);
            let noted = self.segments.iter().any(|note| note.object == *object);
            let young = match of {
                RetireOf::Root { .. } => false,
                RetireOf::Orphans => object.term >= id.term,
                RetireOf::GivenUp { .. } => object.term != id.term,
            };
            if kept.contains(object) || dropped || noted || young {
                holdfast_reached::reached!("retire: an object is still in use");
                return Err(SetRefusal::StillInUse { object: *object });
            }
        }
        for StoredObject { kind, object } in objects {
            self.retired.insert(*object, *kind);
        }
        if let RetireOf::Root { root, last: true } = of
            && self.dropped.remove(&root).is_some()
        {
            self.retired.insert(root, StoredKind::Root);
        }
        Ok(SetAnswer::Retired)
    }

    /// SET-S8: neither the checkpoint that began at `ended` nor one before it is under way at entry `id`, so none of
    /// them can end after it. The proposer knows whether the first has ended; `checkpoint` shows that too early on a
    /// replay (SET-S9).
    fn check_over(&self, id: LogId, ended: LogId) -> Result<(), SetRefusal> {
        let under_way = self.begin.map(|begin| begin.at);
        let before = ended.term == id.term && ended.index < id.index;
        if before && under_way.is_none_or(|at| at.index > ended.index) {
            return Ok(());
        }
        Err(SetRefusal::NotOver { found: ended, under_way })
    }

    pub(super) fn deleted(&mut self, id: LogId, term: Term, objects: &[ObjectId]) -> Result<SetAnswer, SetRefusal> {
        check_term(id, term)?;
        for object in objects {
            self.retired.remove(object);
        }
        Ok(SetAnswer::DeletionNoted)
    }

    /// SET-S7 and SET-S8, for tests and debug builds.
    pub(super) fn self_check_space(&self) {
        let kept = self.kept_roots();
        for root in &kept {
            assert!(!self.dropped.contains_key(&root.object), "SET-S7: {} is both retained and dropped", root.object);
            assert!(
                !self.retired.contains_key(&root.object),
                "SET-S8: {} is both retained by a root and retired",
                root.object
            );
        }
        for object in self.dropped.keys() {
            assert!(!self.retired.contains_key(object), "SET-S8: {object} is both dropped and retired");
        }
        assert!(self.snapshots.len() + self.pending.len() <= SNAPSHOTS_MAX, "more snapshots than the limit");
        assert!(self.pins.len() <= PINS_MAX, "SET-S13: more pins than the limit");
        assert!(self.dropped.len() <= DROPPED_MAX, "more dropped roots than the limit");
        assert!(self.space_requests.len() <= SPACE_REQUESTS_REMEMBERED, "SET-S11: more requests than the limit");
        assert!(self.retired.len() <= RETIRED_MAX, "more retired objects than the limit");
        assert!(
            self.pending.keys().all(|name| !self.snapshots.contains_key(name)),
            "SET-S6: a name is both pending and finished"
        );
    }
}

#[cfg(test)]
mod tests;
