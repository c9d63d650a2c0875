//! The list of a set's snapshots, and its schedule, in the set's head in the store. A recovery restores them from there
//! (ADR 0035).
//!
//! ```text
//!   SnapshotCreate ─▶ CheckpointBegin at X ─▶ the head names the root of X, and lists the snapshot ─▶ CheckpointEnd: it is there
//!   SnapshotDelete ─▶ its root is dropped ─▶ the head lists it no more ─▶ its objects are retired
//! ```
//! SET-S15  Everything that a listed snapshot names is in the store. A snapshot is listed before its creation is
//!     answered. An object of a dropped root is retired only after it is known that no head lists that root, and that
//!     no later head will.
//! SET-S16  A list has the index of the entry up to which its state was applied. Of two lists of one generation, the
//!     one with the higher index counts. So a leader that was cut off can neither remove a snapshot of a newer leader
//!     from the head, nor restore one that the newer leader deleted.

use super::schedule::Schedule;
use super::state::{PendingSnapshot, RootRef, SetState, Snapshot, Volume};
use holdfast_types::limits::VOLUMES_PER_SET_MAX;
use holdfast_types::{LogId, LogIndex, Name, RequestId, Term, VolumeId};
use imbl::OrdMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Largest list in bytes, in the head and in an entry of group 0. A snapshot takes about 200 bytes; consecutive
/// snapshots with equal volumes share one list of volumes. If there are more snapshots, only the newest are listed.
pub const LIST_BYTES_MAX: usize = 256 << 10;
/// Largest entry of a snapshot in bytes, without its name and volumes.
pub(super) const SNAPSHOT_BYTES: usize = 160;
/// Largest entry of a volume in bytes, without its name.
const VOLUME_BYTES: usize = 24;

/// One snapshot with the largest number of volumes fits; and all snapshots if they share their volumes (`space`).
const _: () = assert!(VOLUMES_PER_SET_MAX * (VOLUME_BYTES + 64) < LIST_BYTES_MAX / 4);

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Wire", into = "Wire")]
pub struct SnapshotList {
    /// By name.
    pub snapshots: OrdMap<Name, Snapshot>,
    /// The set's schedule.
    pub schedule: Schedule,
    /// Index of the last entry applied to the listed state (SET-S16); 0 after a recovery.
    pub as_of: LogIndex,
}

/// The encoded form.
#[derive(Serialize, Deserialize)]
struct Wire {
    snapshots: Vec<Listed>,
    schedule: Schedule,
    as_of: LogIndex,
}

#[derive(Serialize, Deserialize)]
struct Listed {
    name: Name,
    upto: LogId,
    root: RootRef,
    request: RequestId,
    at_unix_ms: u64,
    scheduled: bool,
    /// `None`: the same as in the snapshot before it.
    volumes: Option<Vec<(VolumeId, Volume)>>,
}

impl From<SnapshotList> for Wire {
    fn from(list: SnapshotList) -> Self {
        let mut snapshots = Vec::new();
        let mut before: Option<&OrdMap<VolumeId, Volume>> = None;
        for (name, snapshot) in list.oldest_first() {
            let same = before == Some(&snapshot.volumes);
            let volumes = (!same).then(|| snapshot.volumes.iter().map(|(id, volume)| (*id, volume.clone())).collect());
            before = Some(&snapshot.volumes);
            snapshots.push(Listed {
                name: name.clone(),
                upto: snapshot.upto,
                root: snapshot.root,
                request: snapshot.request,
                at_unix_ms: snapshot.at_unix_ms,
                scheduled: snapshot.scheduled,
                volumes,
            });
        }
        Self { snapshots, schedule: list.schedule.clone(), as_of: list.as_of }
    }
}

impl From<Wire> for SnapshotList {
    fn from(wire: Wire) -> Self {
        let mut snapshots: OrdMap<Name, Snapshot> = OrdMap::new();
        let mut before: OrdMap<VolumeId, Volume> = OrdMap::new();
        for Listed { name, upto, root, request, at_unix_ms, scheduled, volumes } in wire.snapshots {
            if let Some(volumes) = volumes {
                before = volumes.into_iter().collect();
            }
            let volumes = before.clone();
            snapshots.insert(name, Snapshot { upto, root, volumes, request, at_unix_ms, scheduled });
        }
        Self { snapshots, schedule: wire.schedule, as_of: wire.as_of }
    }
}

impl SnapshotList {
    /// The list for `state`, applied up to `as_of`. `ahead` is the root of a checkpoint that the head names, or is
    /// about to name, and that has not ended yet. Pending snapshots of that checkpoint are listed with this root
    /// (SET-S15).
    pub fn of(state: &SetState, as_of: LogIndex, ahead: Option<(LogId, RootRef)>) -> Self {
        Self::whole(state, as_of, ahead).bounded()
    }

    /// Like `of`, without the limit on its length.
    fn whole(state: &SetState, as_of: LogIndex, ahead: Option<(LogId, RootRef)>) -> Self {
        let mut snapshots = state.snapshots.clone();
        let under_way = state.begin.map(|begin| begin.at);
        if let Some((begin, root)) = ahead.filter(|(begin, _)| under_way == Some(*begin)) {
            let waits = state.pending.iter();
            snapshots.extend(waits.filter_map(|(name, waits)| Some((name.clone(), waits.finished(begin, root)?))));
        }
        Self { snapshots, schedule: state.schedule.clone(), as_of }
    }

    /// Whether a recovery has nothing to restore.
    pub fn is_empty(&self) -> bool {
        self.snapshots.is_empty() && self.schedule == Schedule::default()
    }

    /// Whether nothing was ever listed.
    pub fn is_blank(&self) -> bool {
        self.is_empty() && self.as_of == LogIndex(0)
    }

    /// Whether both list the same, regardless of `as_of`.
    pub fn lists_as(&self, other: &Self) -> bool {
        self.snapshots == other.snapshots && self.schedule == other.schedule
    }

    /// The list for the next generation, without places in the log of this one.
    #[must_use]
    pub fn inherited(&self) -> Self {
        let here = |(name, snapshot): (&Name, &Snapshot)| {
            (name.clone(), Snapshot { upto: LogId::default(), ..snapshot.clone() })
        };
        let snapshots = self.snapshots.iter().map(here).collect();
        Self { snapshots, schedule: self.schedule.clone(), as_of: LogIndex(0) }
    }

    /// Without these.
    #[must_use]
    pub fn without(&self, names: &BTreeSet<Name>) -> Self {
        let stays = self.snapshots.iter().filter(|(name, _)| !names.contains(*name));
        let snapshots = stays.map(|(name, snapshot)| (name.clone(), snapshot.clone())).collect();
        Self { snapshots, ..self.clone() }
    }

    /// Ordered by place in the log; snapshots of an earlier generation by the time of their request.
    fn oldest_first(&self) -> Vec<(&Name, &Snapshot)> {
        let mut all: Vec<(&Name, &Snapshot)> = self.snapshots.iter().collect();
        all.sort_by_key(|(name, snapshot)| (snapshot.upto, snapshot.at_unix_ms, *name));
        all
    }

    /// The newest, as many as [`LIST_BYTES_MAX`] takes.
    fn bounded(self) -> Self {
        let (mut bytes, mut out) = (0, BTreeSet::new());
        let mut after: Option<&OrdMap<VolumeId, Volume>> = None;
        for (name, snapshot) in self.oldest_first().into_iter().rev() {
            bytes += SNAPSHOT_BYTES + name.as_str().len();
            if after != Some(&snapshot.volumes) {
                bytes += snapshot.volumes.values().map(|v| VOLUME_BYTES + v.name.as_str().len()).sum::<usize>();
            }
            after = Some(&snapshot.volumes);
            if bytes > LIST_BYTES_MAX {
                out.insert(name.clone());
            }
        }
        if out.is_empty() { self } else { self.without(&out) }
    }
}

/// The list of snapshots as this gateway last saw it. Used for the heads that it writes, and before it retires objects.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// `None` at first.
    noted: Option<Noted>,
    /// Begin and root of the last checkpoint for which this gateway wrote a head.
    ahead: Option<(LogId, RootRef)>,
}

/// A list, and the state that it was made from.
#[derive(Clone, Debug)]
struct Noted {
    list: SnapshotList,
    made_of: Parts,
    /// The list has been the same in every noted state of this leadership since this entry: whatever was deleted before
    /// it became this list was deleted at or before this entry.
    since: LogIndex,
    /// The last term in which this gateway led.
    led_in: Term,
    /// Number of snapshots that do not fit.
    left_out: usize,
}

/// The input of a list, without `as_of`. Equal parts make equal lists.
#[derive(Clone, Debug)]
struct Parts {
    snapshots: OrdMap<Name, Snapshot>,
    pending: OrdMap<Name, PendingSnapshot>,
    under_way: Option<LogId>,
    ahead: Option<(LogId, RootRef)>,
    schedule: Schedule,
}

impl Parts {
    fn of(state: &SetState, ahead: Option<(LogId, RootRef)>) -> Self {
        let (snapshots, pending) = (state.snapshots.clone(), state.pending.clone());
        let under_way = state.begin.map(|begin| begin.at);
        Self { snapshots, pending, under_way, ahead, schedule: state.schedule.clone() }
    }

    /// Whether these are the parts of `state`. Compares maps by pointer: unchanged persistent maps are shared. Equal
    /// but separate maps count as changed.
    fn are_of(&self, state: &SetState, ahead: Option<(LogId, RootRef)>) -> bool {
        self.snapshots.ptr_eq(&state.snapshots)
            && self.pending.ptr_eq(&state.pending)
            && self.under_way == state.begin.map(|begin| begin.at)
            && self.ahead == ahead
            && self.schedule == state.schedule
    }
}

impl Listing {
    /// Notes a state of the leader of term `led`, applied up to `applied`. The caller was leader of that term after it
    /// had read the state, and had applied the term's first entry before. A follower's state is not noted: it may lack
    /// what the leader has listed ahead. Several tasks read and note states at the same time; an older state does not
    /// replace a newer one. Returns the number of snapshots that do not fit the head, if that number has changed.
    pub fn note(&mut self, state: &SetState, applied: LogIndex, led: Option<Term>) -> Option<usize> {
        let led_in = led?;
        let list = SnapshotList::whole(state, applied, self.ahead);
        let all = list.snapshots.len();
        let list = list.bounded();
        let left_out = all - list.snapshots.len();
        let (mut since, mut told) = (applied, 0);
        if let Some(Noted { list: before, since: then, led_in: term, left_out, .. }) = &self.noted {
            if (before.as_of, *term) > (applied, led_in) {
                holdfast_reached::reached!("listing: an older state comes after a newer one");
                return None;
            }
            // An earlier leader may have deleted a snapshot that was never noted here.
            if led_in == *term && before.lists_as(&list) {
                since = *then;
            }
            told = *left_out;
        }
        let made_of = Parts::of(state, self.ahead);
        self.noted = Some(Noted { list, made_of, since, led_in, left_out });
        (left_out > 0 && left_out != told).then_some(left_out)
    }

    /// A head is about to name `root`, of the checkpoint that began at `begin`.
    pub fn note_root(&mut self, begin: LogId, root: RootRef) {
        self.ahead = Some((begin, root));
    }

    /// The list for the next head, where the present head has the list `stored` (SET-S16). `commits`: the head is
    /// written for a checkpoint, so its `as_of` is the checkpoint's begin or later even if the list is unchanged. A
    /// former leader cannot have a list of that entry.
    pub fn for_head(&self, stored: &SnapshotList, commits: bool) -> SnapshotList {
        holdfast_reached::reached!(
            "listing: the head has a newer list than this gateway",
            self.noted.as_ref().is_some_and(|noted| noted.list.as_of < stored.as_of)
        );
        match &self.noted {
            // An unchanged list needs no new head, unless a later `as_of` is needed.
            Some(Noted { list, since, .. }) if !commits && list.lists_as(stored) && stored.as_of >= *since => {
                stored.clone()
            }
            Some(Noted { list, .. }) if list.as_of >= stored.as_of => list.clone(),
            _ => stored.clone(),
        }
    }

    /// SET-S15: whether the head with the list `stored` has no snapshot that the leader of `term` had deleted by
    /// `state`, and whether no later head will have one.
    pub fn settled(&self, state: &SetState, term: Term, stored: &SnapshotList) -> bool {
        let Some(Noted { list, made_of, since, led_in, .. }) = &self.noted else { return false };
        // Garbage collection asks this often, and the list changes a few times a day.
        let is_of = || list.lists_as(&SnapshotList::of(state, list.as_of, self.ahead));
        let known = *led_in == term && (made_of.are_of(state, self.ahead) || is_of());
        known && stored.lists_as(list) && stored.as_of >= *since
    }
}

impl SetState {
    /// A state that begins with the snapshots of an earlier generation.
    #[must_use]
    pub(super) fn with_snapshots(mut self, left: &SnapshotList) -> Self {
        let SnapshotList { snapshots, schedule, .. } = left.inherited();
        let used =
            snapshots.values().flat_map(|snapshot| snapshot.volumes.keys()).map(|id| id.0.saturating_add(1)).max();
        // VOLUME-V1: a rollback brings back the volumes that a snapshot shows, with their ids.
        self.next_volume = self.next_volume.max(used.unwrap_or(1));
        (self.snapshots, self.schedule) = (snapshots, schedule);
        self
    }
}

#[cfg(test)]
mod tests;
