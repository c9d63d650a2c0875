//! Snapshots, and what of the store nobody needs any more. The reasons are in ADR 0012.
//!
//! ```text
//!   SnapshotCreate ─▶ pending ─CheckpointBegin at X─▶ sealed at X ─its CheckpointEnd─▶ snapshot: root at X, kept
//!   root that nothing keeps ─▶ dropped ─Retire─▶ its objects that no kept root names: retired ─deleted in the store─▶ Deleted
//! ```
//! S6  A snapshot is the root of one checkpoint and the volumes as of that checkpoint's begin (R4).
//! S7  The root of the current checkpoint, the roots of snapshots and pinned roots (S13) are kept; a root that was kept and is so no more is
//!     in `dropped` until its objects are retired. So no change of leaders can forget garbage.
//! S8  Nothing is retired that is a kept or dropped root itself, or a segment of the checkpoint under way; as an orphan
//!     nothing of the entry's own term or a later one, for that may be on its way into a root. What checkpoints of the entry's own term
//!     gave up is retired by naming the begin of a later one that has ended: while that one, or one before it, is under way
//!     nothing is. What is retired stays so.
//! S9  Nothing here reads `checkpoint`: on a replay from the snapshot of X it names the next root before that one's end
//!     was applied. [`SetState::current_root`] says the same on every way to a state.
//! S11 A request acts once (R12). A deletion names the request that made the snapshot, which no later one of the same name shares:
//!     a copy of it hits nothing else, however late. What makes something, a snapshot or a rollback, is remembered.
//! S12 Rollback: see `set/rollback.rs`.

use super::command::{RootRef, SetAnswer, SetRefusal};
use super::pins::PINS_MAX;
use super::schedule::Schedule;
use super::state::{SetState, Volume, check_term};
use holdfast_types::{LogId, Name, ObjectId, RequestId, Term, VolumeId};
use imbl::OrdMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Snapshots of one set at most, finished or not: each is a root that a collector reads.
pub const SNAPSHOTS_MAX: usize = 128;
/// Dropped roots that are remembered at most. One more is left to the sweep for orphans.
pub const DROPPED_MAX: usize = 512;
/// Objects that wait to be deleted at most: bounds the state. Collection waits while it is full.
pub const RETIRED_MAX: usize = 1 << 16;
/// Objects of one `Retire` or `Deleted` at most: far below what an entry may hold.
pub const RETIRE_OBJECTS_MAX: usize = 4096;

/// Requests on snapshots that are remembered. A copy outlives its request by the caller's patience, seconds, and each request waits for a
/// checkpoint: this many within that time are a client gone mad.
pub const SPACE_REQUESTS_REMEMBERED: usize = 64;

/// A snapshot, told apart from every other one that has or had its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct SnapshotId {
    /// Its name.
    pub name: Name,
    /// The request that made it.
    pub made_by: RequestId,
}

/// What a stored object is, in the order in which they are deleted: what names others goes first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum StoredKind {
    /// Root of a map.
    Root,
    /// Pack of map pages.
    Pages,
    /// Segment.
    Segment,
}

/// An object of the set in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct StoredObject {
    /// What it is.
    pub kind: StoredKind,
    /// Its id.
    pub object: ObjectId,
}

/// Why objects are retired.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum RetireOf {
    /// This dropped root named them, and no kept root does.
    Root {
        /// The dropped root.
        root: ObjectId,
        /// They are the last of it: the root itself is retired too.
        last: bool,
    },
    /// No root ever named them: uploads of earlier terms that came to nothing.
    Orphans,
    /// No kept root names them: uploads of this term, for checkpoints that began before this one.
    GivenUp {
        /// Where a checkpoint of this term began that has ended since: no end of an earlier one counts any more (S5).
        ended: LogId,
    },
}

/// A set as it was at one entry of its log.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Snapshot {
    /// It shows every entry up to this one, and none after (R4).
    pub upto: LogId,
    /// The map.
    pub root: RootRef,
    /// The volumes as they were.
    pub volumes: OrdMap<VolumeId, Volume>,
    /// The request that asked for it.
    pub request: RequestId,
    /// Wall clock of the gateway that was asked in Unix milliseconds: shown to people, and what a schedule goes by.
    pub at_unix_ms: u64,
    /// Taken by the set's schedule, which lets it go as well.
    pub scheduled: bool,
}

/// A snapshot that was asked for and waits for a checkpoint that began after that.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct PendingSnapshot {
    /// As in [`Snapshot`].
    pub request: RequestId,
    /// As in [`Snapshot`].
    pub at_unix_ms: u64,
    /// The begin that pinned it last, and the volumes then.
    pub sealed: Option<(LogId, OrdMap<VolumeId, Volume>)>,
    /// As in [`Snapshot`].
    pub scheduled: bool,
}

impl SetState {
    /// The root of the current checkpoint; the same whether the state was reached by replay or straight on (S9).
    pub fn current_root(&self) -> Option<RootRef> {
        match &self.begin {
            Some(begin) => begin.base,
            None => self.checkpoint.map(|checkpoint| checkpoint.root),
        }
    }

    /// The roots whose objects must stay: the current one first, then those of snapshots and those that clones show, each once.
    pub fn kept_roots(&self) -> Vec<RootRef> {
        let mut kept: Vec<RootRef> = self.current_root().into_iter().collect();
        for root in self.kept_by_name() {
            if !kept.contains(&root) {
                kept.push(root);
            }
        }
        kept
    }

    /// How many keep this root, each for itself: the current checkpoint, snapshots, and pins of clones.
    pub fn keepers_of(&self, root: RootRef) -> usize {
        usize::from(self.current_root() == Some(root)) + self.kept_by_name().filter(|kept| *kept == root).count()
    }

    /// What is kept besides the current root: for snapshots and for clones.
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

    /// The whole schedule anew. A late copy of an earlier request changes nothing (S11).
    pub(super) fn set_schedule(&mut self, schedule: &Schedule, request: RequestId) -> Result<SetAnswer, SetRefusal> {
        if self.space_requests.contains(&request) {
            return Ok(SetAnswer::ScheduleSet);
        }
        schedule.check().map_err(|error| SetRefusal::BadSchedule { error })?;
        self.schedule = schedule.clone();
        self.remember(request);
        Ok(SetAnswer::ScheduleSet)
    }

    /// S11.
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

    /// S7: a root that was kept a moment ago.
    pub(super) fn drop_unless_kept(&mut self, root: RootRef) {
        if !self.kept_roots().contains(&root) {
            self.drop_root(root);
        }
    }

    /// At the begin at `at`: every snapshot that was asked for before will show this moment.
    pub(super) fn pin_pending(&mut self, at: LogId) {
        let volumes = self.volumes.clone();
        let names: Vec<Name> = self.pending.keys().cloned().collect();
        for name in names {
            if let Some(pending) = self.pending.get_mut(&name) {
                pending.sealed = Some((at, volumes.clone()));
            }
        }
    }

    /// At the end of the checkpoint that began at `begin` over `base`: what it pinned becomes snapshots, and the root that it
    /// replaced is dropped unless a snapshot or a clone keeps it.
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
        // Beyond the bound it is not forgotten for ever: the sweep for orphans finds what no kept root names.
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
        // S8. The proposer has looked into the roots; here is what can be known without them.
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

    /// S8: neither the checkpoint that began at `ended` nor one before it is under way at entry `id`, so that none of them can end after it. Whether the first
    /// has ended, the proposer knows: `checkpoint` says so too early on a replay (S9).
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

    /// S7 and S8, for tests and debug builds.
    pub(super) fn self_check_space(&self) {
        let kept = self.kept_roots();
        for root in &kept {
            assert!(!self.dropped.contains_key(&root.object), "S7: {} is kept and dropped", root.object);
            assert!(!self.retired.contains_key(&root.object), "S8: {} is kept and retired", root.object);
        }
        for object in self.dropped.keys() {
            assert!(!self.retired.contains_key(object), "S8: {object} is dropped and retired");
        }
        assert!(self.snapshots.len() + self.pending.len() <= SNAPSHOTS_MAX, "more snapshots than the limit");
        assert!(self.pins.len() <= PINS_MAX, "S13: more pins than the limit");
        assert!(self.dropped.len() <= DROPPED_MAX, "more dropped roots than the limit");
        assert!(self.space_requests.len() <= SPACE_REQUESTS_REMEMBERED, "S11: more requests than the limit");
        assert!(self.retired.len() <= RETIRED_MAX, "more retired objects than the limit");
        assert!(self.pending.keys().all(|name| !self.snapshots.contains_key(name)), "S6: a name twice");
    }
}

impl Snapshot {
    /// Whether an earlier life of the set made it: then its place is one in a log that is no more.
    pub fn is_inherited(&self) -> bool {
        self.upto == LogId::default()
    }
}

impl PendingSnapshot {
    /// The snapshot that it is once the checkpoint that began at `begin` has ended with `root`; `None` where it waits for another one.
    pub(super) fn finished(&self, begin: LogId, root: RootRef) -> Option<Snapshot> {
        let (upto, volumes) = self.sealed.clone().filter(|(at, _)| *at == begin)?;
        let PendingSnapshot { request, at_unix_ms, scheduled, .. } = *self;
        Some(Snapshot { upto, root, volumes, request, at_unix_ms, scheduled })
    }
}

#[cfg(test)]
mod tests;
