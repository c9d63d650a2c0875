//! The snapshots of a set and its schedule, as the set's head in the store lists them: a recovery brings them back. The reasons are in ADR 0035.
//!
//! ```text
//!   SnapshotCreate ─▶ CheckpointBegin at X ─▶ the head names the root of X, and lists the snapshot ─▶ CheckpointEnd: it is there
//!   SnapshotDelete ─▶ its root is dropped ─▶ the head lists it no more ─▶ its objects are retired
//! ```
//! S15 Everything that a listed snapshot names is in the store. A snapshot is listed before anybody hears that it is there, and nothing of a dropped root
//!     is retired before it is known that no head lists it, nor ever will again.
//! S16 A list says up to which entry the state was applied that it shows, and of two lists of one life the one of the later entry counts. So whoever was cut off
//!     takes no snapshot out of the head that a newer leader has, and brings none back that it let go of.

use super::command::RootRef;
use super::schedule::Schedule;
use super::space::{PendingSnapshot, Snapshot};
use super::state::{SetState, Volume};
use holdfast_types::limits::VOLUMES_PER_SET_MAX;
use holdfast_types::{LogId, LogIndex, Name, RequestId, Term, VolumeId};
use imbl::OrdMap;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Bytes of a list at most, in the head and in an entry of group 0. Far above what is met: a snapshot takes some 200, and volumes are listed once for all snapshots
/// that follow each other with the same ones. Of more the newest are listed.
pub const LIST_BYTES_MAX: usize = 256 << 10;
/// A listed snapshot at most, without its name and volumes.
const SNAPSHOT_BYTES: usize = 160;
/// A volume of one at most, without its name.
const VOLUME_BYTES: usize = 24;

/// Snapshots without volumes, or with those of the one before, all fit; so does a snapshot with as many volumes as there may be.
const _: () = assert!(super::space::SNAPSHOTS_MAX * (SNAPSHOT_BYTES + 64) < LIST_BYTES_MAX);
const _: () = assert!(VOLUMES_PER_SET_MAX * (VOLUME_BYTES + 64) < LIST_BYTES_MAX / 4);

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(from = "Wire", into = "Wire")]
pub struct SnapshotList {
    /// By name.
    pub snapshots: OrdMap<Name, Snapshot>,
    /// The set's schedule.
    pub schedule: Schedule,
    /// The entry up to which the state was applied that this shows (S16); 0 in what an earlier life left.
    pub as_of: LogIndex,
}

/// As it is written.
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
    /// `None`: those of the one before.
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
    /// What `state`, applied up to `as_of`, has. `ahead` is the root of a checkpoint that the head is about to name, or names already, and that has not ended: what
    /// waits for just that one is listed with it (S15).
    pub fn of(state: &SetState, as_of: LogIndex, ahead: Option<(LogId, RootRef)>) -> Self {
        Self::whole(state, as_of, ahead).bounded()
    }

    /// The same, of whatever length.
    fn whole(state: &SetState, as_of: LogIndex, ahead: Option<(LogId, RootRef)>) -> Self {
        let mut snapshots = state.snapshots.clone();
        let under_way = state.begin.map(|begin| begin.at);
        if let Some((begin, root)) = ahead.filter(|(begin, _)| under_way == Some(*begin)) {
            let waits = state.pending.iter();
            snapshots.extend(waits.filter_map(|(name, waits)| Some((name.clone(), waits.finished(begin, root)?))));
        }
        Self { snapshots, schedule: state.schedule.clone(), as_of }
    }

    /// Whether there is nothing to bring back.
    pub fn is_empty(&self) -> bool {
        self.snapshots.is_empty() && self.schedule == Schedule::default()
    }

    /// Whether nothing was ever listed: then nothing of it is written anywhere.
    pub fn is_blank(&self) -> bool {
        self.is_empty() && self.as_of == LogIndex(0)
    }

    /// Whether both list the same, as of whatever entries.
    pub fn lists_as(&self, other: &Self) -> bool {
        self.snapshots == other.snapshots && self.schedule == other.schedule
    }

    /// As the next life of the set begins with it: places in the log of the life before mean nothing there.
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

    /// In the order of the moments that they show. Of what an earlier life left, in the order in which they were asked for.
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

/// What a gateway has noted of the set's snapshots, for the heads that it writes and for what it retires.
#[derive(Clone, Debug, Default)]
pub struct Listing {
    /// `None` at first.
    noted: Option<Noted>,
    /// The root of the last checkpoint that a head was to name here, and where that began.
    ahead: Option<(LogId, RootRef)>,
}

/// A list that was made of a state.
#[derive(Clone, Debug)]
struct Noted {
    list: SnapshotList,
    made_of: Parts,
    /// It has been this list in each state that was noted since the one of this entry, and since this leadership began: what was let go of on the way to it was let go
    /// of at or before this entry.
    since: LogIndex,
    /// The last term in which this gateway led.
    led_in: Term,
    /// Snapshots that do not fit.
    left_out: usize,
}

/// What a list is made of, beside the entry that it is as of: of the same parts the same list is made.
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

    /// Whether these are the parts of `state`. Persistent maps that nothing has changed are the same ones in memory, so nobody looks into them; others may be alike and
    /// count as changed.
    fn are_of(&self, state: &SetState, ahead: Option<(LogId, RootRef)>) -> bool {
        self.snapshots.ptr_eq(&state.snapshots)
            && self.pending.ptr_eq(&state.pending)
            && self.under_way == state.begin.map(|begin| begin.at)
            && self.ahead == ahead
            && self.schedule == state.schedule
    }
}

impl Listing {
    /// Notes the state of the leader of term `led`, applied up to `applied`: it led in that term when it had read this state, and had applied that term's first entry
    /// before. What a follower has is not noted: it may lack what the leader has listed ahead. A state is read before it is noted, by several who do not wait for each
    /// other: one that comes late takes no later one's place. Answers how many snapshots do not fit a head, where that is another number than before.
    pub fn note(&mut self, state: &SetState, applied: LogIndex, led: Option<Term>) -> Option<usize> {
        let led_in = led?;
        let list = SnapshotList::whole(state, applied, self.ahead);
        let all = list.snapshots.len();
        let list = list.bounded();
        let left_out = all - list.snapshots.len();
        let (mut since, mut told) = (applied, 0);
        if let Some(Noted { list: before, since: then, led_in: term, left_out, .. }) = &self.noted {
            if (before.as_of, *term) > (applied, led_in) {
                return None;
            }
            // A leader before may have let go of something that was never noted here.
            if led_in == *term && before.lists_as(&list) {
                since = *then;
            }
            told = *left_out;
        }
        let made_of = Parts::of(state, self.ahead);
        self.noted = Some(Noted { list, made_of, since, led_in, left_out });
        (left_out > 0 && left_out != told).then_some(left_out)
    }

    /// A head is about to name `root` for the checkpoint that began at `begin`.
    pub fn note_root(&mut self, begin: LogId, root: RootRef) {
        self.ahead = Some((begin, root));
    }

    /// What a head is to list that lists `stored` now (S16). `commits`: it is written for a checkpoint, also where it lists what it did. Then it says so as of that
    /// checkpoint's begin or later, and whoever led before cannot have a list of the same entry.
    pub fn for_head(&self, stored: &SnapshotList, commits: bool) -> SnapshotList {
        match &self.noted {
            // The same once more would be another head for nothing, unless somebody waits for it to be known as of a later entry.
            Some(Noted { list, since, .. }) if !commits && list.lists_as(stored) && stored.as_of >= *since => {
                stored.clone()
            }
            Some(Noted { list, .. }) if list.as_of >= stored.as_of => list.clone(),
            _ => stored.clone(),
        }
    }

    /// S15: whether the head, which was seen to list `stored`, lists no snapshot that the leader of `term` had let go of by `state`, and never will again: a list of an
    /// earlier entry does not take its place.
    pub fn settled(&self, state: &SetState, term: Term, stored: &SnapshotList) -> bool {
        let Some(Noted { list, made_of, since, led_in, .. }) = &self.noted else { return false };
        // Asked again and again by who looks for garbage, and the list is another one a few times a day.
        let is_of = || list.lists_as(&SnapshotList::of(state, list.as_of, self.ahead));
        let known = *led_in == term && (made_of.are_of(state, self.ahead) || is_of());
        known && stored.lists_as(list) && stored.as_of >= *since
    }
}

impl SetState {
    /// A state that begins with what an earlier life left.
    #[must_use]
    pub(super) fn with_snapshots(mut self, left: &SnapshotList) -> Self {
        let SnapshotList { snapshots, schedule, .. } = left.inherited();
        let used =
            snapshots.values().flat_map(|snapshot| snapshot.volumes.keys()).map(|id| id.0.saturating_add(1)).max();
        // V1: a rollback brings back the volumes that a snapshot shows, with their ids.
        self.next_volume = self.next_volume.max(used.unwrap_or(1));
        (self.snapshots, self.schedule) = (snapshots, schedule);
        self
    }
}

#[cfg(test)]
mod tests;
