//! Garbage of one set, at its leader: looks through dropped roots, retires what nothing keeps, sweeps for orphans, and deletes what was
//! retired after the readers' grace (ADR 0012). The decisions are `volume::space`'s and the replicated state's.
//!
//! ```text
//!   dropped root ─▶ its objects − those of kept roots ─▶ Retire entry ─▶ grace ─▶ quorum confirms ─▶ delete ─▶ Deleted entry
//!   listing ─▶ objects of earlier terms, and those that checkpoints of this one gave up (G4), that no kept root names ─┘
//! ```
//! Nothing waits for this task, and an error of it only costs space: it is tried again at the next turn.

use crate::host::SetHost;
use crate::leader_task::{self, Failed, LeaderTask, Pauses};
use crate::mapping::{MapError, Mapping};
use crate::references::{KINDS, LIST_PAGES_MAX, Piece, Shelf, key_kind};
use crate::server::{SetError, SetServer};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use holdfast_control::set::{
    RETIRE_OBJECTS_MAX, RETIRED_MAX, RetireOf, RootRef, SetAnswer, SetCommand, SetRefusal, SetState, StoredObject,
};
use holdfast_raft::boot_now;
use holdfast_store::{Disposition, StoreError, keys as store_keys};
use holdfast_types::{ObjectId, SetId, Term};
use holdfast_volume::map::{Objects, Root};
use holdfast_volume::space::{Confirmed, Garbage, Looked, NoDeletion, Orphans, Reaper};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

mod keys;

/// Between two looks at the state.
const TURN: Duration = Duration::from_millis(500);
/// The same after turns in which the store or the group did not do as asked: doubled each time, up to this.
const TURN_MAX: Duration = Duration::from_secs(30);
/// Dropped roots that one turn looks through at most.
const ROOTS_PER_TURN: usize = 8;
/// Objects that one turn deletes at most.
const DELETIONS_PER_TURN: usize = 512;
/// Deletions under way at once at most.
const DELETIONS_AT_ONCE: usize = 8;
/// All leaves of a root are read within one turn, or further in the next.
const LEAVES_LIMIT: Duration = Duration::from_secs(30);
/// One deletion takes no longer; what became of it is found out by doing it again.
const DELETION_LIMIT: Duration = Duration::from_secs(30);
/// Orphans that one sweep retires at most; the next one goes on.
const ORPHANS_PER_SWEEP: usize = 2 * RETIRE_OBJECTS_MAX;
/// Retired objects from which on nothing more is retired: they are in the replicated state, some 100 bytes each, until every store has deleted them, and a
/// store that is away deletes nothing. Until then a dropped root stands for all that it names: one entry for each checkpoint.
/// So many that a whole entry more is still taken: what apply refuses would be proposed in vain.
pub const RETIRED_FULL: usize = RETIRED_MAX - RETIRE_OBJECTS_MAX;

/// Settings of a set's space.
#[derive(Clone, Copy, Debug)]
pub struct SpaceSettings {
    /// How long a read under way may still need an object that no new read finds.
    pub grace: Duration,
    /// Deletions a second at most.
    pub deletes_per_second: u32,
    /// Between two sweeps for orphans.
    pub sweep_interval: Duration,
}

/// Why a turn came to no end.
#[derive(Debug, thiserror::Error)]
enum SpaceError {
    #[error(transparent)]
    Set(#[from] SetError),
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("store: {0}")]
    Store(#[from] StoreError),
    #[error("not the leader of {0} any more")]
    NotLeading(Term),
    #[error("so much is retired that more has to wait until some of it is deleted")]
    Full,
}

/// Not in the store, or there and damaged: no later try will read more.
fn is_lost(e: &MapError) -> bool {
    match e {
        // Too short is damaged as well: of a pack of leaves only parts are asked for.
        MapError::Store(e) => matches!(e.disposition(), Disposition::NotFound | Disposition::Corrupt),
        MapError::Bad { .. } => true,
        MapError::Stopping => false,
    }
}

/// Who names a root that is in use, for people.
fn named_by(state: &SetState, at: RootRef) -> String {
    let current = state.current_root().is_some_and(|root| root.object == at.object);
    let snapshots = state.snapshots.iter().filter(|(_, found)| found.root.object == at.object);
    let names = snapshots.map(|(name, _)| format!("snapshot {name}"));
    let pins = state.pins().filter(|(_, pin)| pin.root.object == at.object);
    let names = names.chain(pins.map(|(_, pin)| format!("its clone, set {}", pin.clone)));
    let all: Vec<String> = current.then(|| "the last checkpoint".to_string()).into_iter().chain(names).collect();
    all.join(", ")
}

/// Keeps one set's store tidy while this gateway leads the set.
pub struct SpaceKeeper {
    server: Arc<SetServer>,
    host: Arc<SetHost>,
    mapping: Arc<Mapping>,
    settings: SpaceSettings,
    stop: CancellationToken,
    reaper: Reaper,
    looked: Looked,
    roots: Shelf,
    /// The term of the last sweep, or of the leadership's begin, and when it was.
    swept: Option<(Term, Instant)>,
    shown: Option<RootRef>,
    /// The root of which all leaves were asked for.
    had: Option<RootRef>,
    keys: keys::KeysOfRoots,
    /// A deletion of this turn did not work.
    undeleted: AtomicBool,
}

impl LeaderTask for SpaceKeeper {
    async fn turn(&mut self, term: Term) -> Result<(), Failed> {
        let done = self.collect(term).await;
        if let Err(e) = &done {
            tracing::debug!(set = %self.server.name, error = %e, "garbage collection failed; it is tried again later");
        }
        let undeleted = std::mem::take(self.undeleted.get_mut());
        if done.is_err() || undeleted { Err(Failed) } else { Ok(()) }
    }

    async fn idle(&mut self) {
        self.roots.clear();
        // What was read may have gone from memory by the next time that this gateway leads.
        (self.swept, self.had) = (None, None);
        self.mapping.key.tell(None);
    }
}

impl SpaceKeeper {
    /// For `server`'s set.
    pub fn new(
        server: Arc<SetServer>,
        mapping: Arc<Mapping>,
        settings: SpaceSettings,
        stop: CancellationToken,
    ) -> Self {
        let host = server.host.clone();
        let (reaper, looked, roots) = (Reaper::new(), Looked::default(), Shelf::new(mapping.clone()));
        let undeleted = AtomicBool::new(false);
        let (swept, shown, had, keys) = (None, None, None, keys::KeysOfRoots::default());
        Self { server, host, mapping, settings, stop, reaper, looked, roots, swept, shown, had, keys, undeleted }
    }

    /// Runs until told to stop.
    pub async fn run(self) {
        let (server, stop) = (self.server.clone(), self.stop.clone());
        leader_task::run(server, self, Pauses::doubling(TURN, TURN_MAX), stop).await;
    }

    async fn collect(&mut self, term: Term) -> Result<(), SpaceError> {
        let shown = self.show().await;
        let keys = self.look_at_keys(term).await;
        // S12: the checkpoint after it is under way, and apply would refuse. What is retired already no head names.
        if self.host.with(|m| m.state().rolled_back.is_some()) {
            let deleted = self.delete_retired(term).await;
            return shown.and(keys).and(deleted);
        }
        // One that cannot go on keeps none of the others from it: what is full is emptied by the last.
        let looked = waits_if_full(self.look_through_dropped(term).await);
        let swept = waits_if_full(self.sweep(term).await);
        let deleted = self.delete_retired(term).await;
        self.have_leaves(LEAVES_LIMIT).await;
        shown.and(keys).and(looked).and(swept).and(deleted)
    }

    /// R8: while the store is away, a leaf that no read has asked for could not be had. Whoever leads goes through all of them before its next checkpoint anyway.
    /// Within `limit`: what was read by then stays in the cache of pages.
    async fn have_leaves(&mut self, limit: Duration) {
        let current = self.host.with(|m| m.state().current_root());
        let Some(current) = current.filter(|current| self.had != Some(*current)) else { return };
        if !self.mapping.has_base(current) {
            match tokio::time::timeout(limit, self.mapping.base(current)).await {
                Ok(Ok(_)) => {}
                // The next checkpoint says so as well.
                Ok(Err(error)) => {
                    tracing::warn!(set = %self.server.name, %error, "not all leaves of the map's root can be read");
                }
                Err(_) => return,
            }
        }
        self.had = Some(current);
    }

    fn state(&self) -> SetState {
        // Persistent maps: a clone is cheap.
        self.host.with(|m| m.state().clone())
    }

    /// The state of a leader of `term` that has applied an entry of it: no checkpoint of an earlier term can end any more.
    fn state_of(&self, term: Term) -> Result<SetState, SpaceError> {
        if self.server.leading_ready() != Some(term) {
            return Err(SpaceError::NotLeading(term));
        }
        Ok(self.state())
    }

    /// S7: a dropped root stays on the list until everything that only it named is retired.
    async fn look_through_dropped(&mut self, term: Term) -> Result<(), SpaceError> {
        for _ in 0..ROOTS_PER_TURN {
            let state = self.state_of(term)?;
            let Some((object, bytes)) = state.dropped.iter().next().map(|(object, bytes)| (*object, *bytes)) else {
                return Ok(());
            };
            // What the head still names, for a clone that is gone or as a snapshot that is, stays so long (S15).
            if !self.server.head.links_settled(&state, term) {
                return Ok(());
            }
            self.looked.begin(term, state.dropped.keys());
            let kept = state.kept_roots();
            self.roots.retain(&kept);
            if !may_retire(state.retired.len()) {
                return Ok(());
            }
            let mut garbage = match self.mapping.names_of(RootRef { object, bytes }).await {
                Ok(names) => Garbage::of(object, &names),
                // Nothing can be learnt from it, now or later (what was spoilt on the way was read again); what it named is left to the sweep.
                Err(e) if is_lost(&e) => {
                    tracing::error!(set = %self.server.name, root = %object, error = %e, "a dropped root cannot be read any more");
                    Garbage::of(object, &Root::new(state.checkpoint.map(|c| c.upto).unwrap_or_default()))
                }
                Err(e) => return Err(e.into()),
            };
            for root in kept {
                // One that cannot be read ends this here: what it names is not known.
                garbage.keep(&*self.kept_root(&state, root).await?);
            }
            for (of, objects) in garbage.entries(RETIRE_OBJECTS_MAX, self.looked.after(object)) {
                if !may_retire(self.state_of(term)?.retired.len()) {
                    return Ok(());
                }
                let last = objects.last().copied();
                self.retire(term, of, objects).await?;
                self.looked.retired(object, last);
            }
        }
        Ok(())
    }

    /// What a root that is in use names. One that is lost or damaged ends collection until somebody acts, so it is told.
    async fn kept_root(&mut self, state: &SetState, at: RootRef) -> Result<Arc<Objects>, MapError> {
        let read = self.roots.root(at).await;
        if let Err(e) = &read
            && is_lost(e)
        {
            self.mapping.note_object_trouble(e);
            let of = named_by(state, at);
            tracing::warn!(set = %self.server.name, root = %at.object, %of, error = %e, "a root in use cannot be read: no garbage is collected before it can, or nothing names it any more");
        }
        read
    }

    async fn retire(&self, term: Term, of: RetireOf, objects: Vec<StoredObject>) -> Result<(), SpaceError> {
        let set = self.server.name.to_string();
        let count = objects.len() as u64;
        match self.server.command("retired objects", &SetCommand::Retire { term, of, objects }).await {
            Ok(SetAnswer::Retired) => {
                metrics::counter!("holdfast_space_retired_total", "set" => set).increment(count);
                Ok(())
            }
            Ok(other) => Err(SetError::Answer { what: "retired objects", found: format!("{other:?}") }.into()),
            Err(SetError::Refused(SetRefusal::TooManyRetired { .. })) => Err(SpaceError::Full),
            Err(e) => {
                if let SetError::Refused(refusal @ (SetRefusal::StillInUse { .. } | SetRefusal::NotOver { .. })) = &e {
                    // S8 has held; whatever judged it is wrong.
                    tracing::error!(%set, %refusal, "an object in use was to be retired");
                    metrics::counter!("holdfast_space_refused_total", "set" => set).increment(count);
                }
                Err(e.into())
            }
        }
    }

    /// Looks for objects that no root names: of earlier terms, and those of this one that a checkpoint gave up before one that has ended (G4).
    async fn sweep(&mut self, term: Term) -> Result<(), SpaceError> {
        let (since, begun) = match self.swept {
            Some((swept, at)) if swept == term => (at, true),
            _ => (Instant::now(), false),
        };
        if !begun {
            self.swept = Some((term, since));
        }
        // The head may name what an earlier leader put there and did not live to tell the group (ADR 0013): not ours to sweep.
        if since.elapsed() < self.settings.sweep_interval || !self.server.head.committed_in(term) {
            return Ok(());
        }
        // Linearizable: the state below is not older than this leadership's confirmation.
        self.server.confirm_leadership().await?;
        let state = self.state_of(term)?;
        // A recovery would keep what the head still pins for a clone that is gone, or lists as a snapshot that is.
        let settled = self.server.head.links_settled(&state, term);
        if !state.dropped.is_empty() || !may_retire(state.retired.len()) || !settled {
            return Ok(());
        }
        self.swept = Some((term, Instant::now()));
        // By this very state: the kept roots below are those that there were when the later checkpoint had ended.
        let given_up = self.server.given_up().lapsed(term, &state);
        // A note may come late, of a segment that was given up: apply would refuse, until the next begin or end.
        let noted = state.segments.iter().map(|note| note.object);
        let mut orphans = Orphans::new(term, state.retired.keys().copied().chain(noted), given_up);
        for kept in state.kept_roots() {
            let root = self.kept_root(&state, kept).await?;
            orphans.keep(kept.object, &root);
        }
        // What is retired already has its own way; a `Retire` whose answer was lost is among it.
        self.server.given_up().forget(orphans.named_after_all().chain(state.retired.keys().copied()));
        let (mut found, mut stored, mut count) = (Vec::new(), 0, 0_u64);
        for (kind, key_kind) in KINDS {
            let mut after = None;
            for _ in 0..LIST_PAGES_MAX {
                let piece = Piece::list(&*self.mapping.store, self.set(), key_kind, after.as_deref(), 0).await?;
                for (object, bytes) in piece.shown {
                    stored += bytes;
                    count += 1;
                    if found.len() < ORPHANS_PER_SWEEP && orphans.is_orphan(object) {
                        found.push((kind, object));
                    }
                }
                after = piece.more;
                if after.is_none() {
                    break;
                }
            }
        }
        let set = self.server.name.to_string();
        metrics::gauge!("holdfast_space_listed_bytes", "set" => set.clone()).set(stored as f64);
        metrics::gauge!("holdfast_space_listed_objects", "set" => set.clone()).set(count as f64);
        // Terms tell orphans apart within one life of the set only: another life begins at term 1 again. What was listed before the head is found to
        // be still ours was written before anybody could recover the set (ADR 0013).
        if !found.is_empty() && !self.server.head.still_ours().await {
            tracing::warn!(%set, orphans = found.len(), "nothing is swept: the store does not say that the set is still this cluster's");
            return Ok(());
        }
        if !found.is_empty() {
            tracing::info!(%set, orphans = found.len(), "objects that no checkpoint came to name are retired");
        }
        for (of, objects) in orphans.entries(&found, RETIRE_OBJECTS_MAX) {
            if !may_retire(self.state_of(term)?.retired.len()) {
                return Ok(());
            }
            self.retire(term, of, objects.clone()).await?;
            // What was not shown stays on the list: it may be on its way still, or a listing hides it.
            self.server.given_up().forget(objects.iter().map(|stored| stored.object));
        }
        Ok(())
    }

    fn set(&self) -> SetId {
        self.mapping.key.set
    }

    /// A quorum answers a heartbeat of this leadership that was sent after this call. A sole voter is its own quorum.
    async fn confirm(&self, term: Term) -> Result<Confirmed, SpaceError> {
        let asked = boot_now();
        self.server.confirm_leadership().await?;
        if self.server.leading_ready() != Some(term) {
            return Err(SpaceError::NotLeading(term));
        }
        let acked = self.server.group.quorum_acked().filter(|(of, at)| *of == term && *at >= asked);
        Ok(Confirmed { term, sent: acked.map_or(asked, |(_, at)| at) })
    }

    /// G3: deletes what was retired long enough ago.
    async fn delete_retired(&mut self, term: Term) -> Result<(), SpaceError> {
        let state = self.state_of(term)?;
        let due = self.reaper.due(term, boot_now(), self.settings.grace, &state, DELETIONS_PER_TURN);
        if due.is_empty() {
            return Ok(());
        }
        let set = self.server.name.to_string();
        let refused = |count: usize| {
            metrics::counter!("holdfast_space_refused_total", "set" => set.clone()).increment(count as u64)
        };
        let mut gone: Vec<ObjectId> = Vec::new();
        let mut outcome = Ok(());
        let mut confirmed = match self.confirm(term).await {
            Ok(confirmed) => confirmed,
            Err(e) => {
                refused(due.len());
                tracing::info!(%set, objects = due.len(), error = %e, "nothing is deleted: no quorum confirms this leader");
                return Err(e);
            }
        };
        let mut pace = tokio::time::interval(Duration::from_secs(1) / self.settings.deletes_per_second.max(1));
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut under_way = FuturesUnordered::new();
        let mut kind = None;
        'objects: for (at, stored) in due.iter().enumerate() {
            // What names others is gone before they go.
            let room = if kind == Some(stored.kind) { DELETIONS_AT_ONCE - 1 } else { 0 };
            kind = Some(stored.kind);
            while under_way.len() > room {
                gone.extend(under_way.next().await.flatten());
            }
            pace.tick().await;
            // A store that refuses some is not asked for the rest at once.
            if self.undeleted.load(Ordering::Relaxed) {
                break;
            }
            // The last question, after all waiting. An old confirmation is asked for anew, once.
            for again in [true, false] {
                match self.may_delete(&confirmed, stored.object) {
                    Ok(()) => break,
                    Err(NoDeletion::Old { .. }) if again => match self.confirm(term).await {
                        Ok(anew) => confirmed = anew,
                        Err(e) => {
                            refused(due.len() - at);
                            outcome = Err(e);
                            break 'objects;
                        }
                    },
                    Err(why) => {
                        refused(due.len() - at);
                        tracing::info!(%set, object = %stored.object, %why, "not deleted");
                        break 'objects;
                    }
                }
            }
            under_way.push(self.delete(*stored));
        }
        while let Some(done) = under_way.next().await {
            gone.extend(done);
        }
        drop(under_way);
        metrics::counter!("holdfast_space_deleted_total", "set" => set.clone()).increment(gone.len() as u64);
        if !gone.is_empty() {
            tracing::info!(%set, objects = gone.len(), "deleted from the store");
            self.server.command("deleted objects", &SetCommand::Deleted { term, objects: gone }).await?;
        }
        outcome
    }

    fn may_delete(&self, confirmed: &Confirmed, object: ObjectId) -> Result<(), NoDeletion> {
        let (leading, valid) = (self.server.leading_ready(), self.server.read_lease());
        self.host.with(|m| confirmed.may_delete(boot_now(), valid, leading, m.state(), object))
    }

    /// `None` where it is not known to be gone: it stays retired and is deleted again.
    async fn delete(&self, stored: StoredObject) -> Option<ObjectId> {
        let key = store_keys::object(self.set(), key_kind(stored.kind), stored.object);
        match tokio::time::timeout(DELETION_LIMIT, self.mapping.store.delete(&key)).await {
            Ok(Ok(())) => Some(stored.object),
            Ok(Err(e)) => {
                tracing::warn!(key, error = %e, "the store did not delete an object; trying again later");
                self.undeleted.store(true, Ordering::Relaxed);
                None
            }
            Err(_) => {
                tracing::warn!(
                    key,
                    "the store did not answer a deletion within {DELETION_LIMIT:?}; trying again later"
                );
                self.undeleted.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// Gauges of what the current checkpoint's root says, and of what waits.
    async fn show(&mut self) -> Result<(), SpaceError> {
        let (current, retired, dropped, snapshots) = self.host.with(|m| {
            let state = m.state();
            (state.current_root(), state.retired.len(), state.dropped.len(), state.snapshots.len())
        });
        let set = self.server.name.to_string();
        metrics::gauge!("holdfast_space_retired_objects", "set" => set.clone()).set(retired as f64);
        metrics::gauge!("holdfast_space_dropped_roots", "set" => set.clone()).set(dropped as f64);
        metrics::gauge!("holdfast_space_given_up_objects", "set" => set.clone())
            .set(self.server.given_up().count() as f64);
        metrics::gauge!("holdfast_snapshots", "set" => set.clone()).set(snapshots as f64);
        let Some(current) = current.filter(|current| self.shown != Some(*current)) else { return Ok(()) };
        let sums = self.mapping.shown(current).await?.segments();
        metrics::gauge!("holdfast_space_live_bytes", "set" => set.clone()).set(sums.live_bytes as f64);
        metrics::gauge!("holdfast_space_stored_bytes", "set" => set.clone()).set(sums.stored_bytes as f64);
        let garbage = sums.stored_bytes.saturating_sub(sums.live_bytes);
        metrics::gauge!("holdfast_space_garbage_bytes", "set" => set).set(garbage as f64);
        self.shown = Some(current);
        Ok(())
    }
}

/// Whether an entry more is proposed, with so much retired in the state: [`RETIRED_FULL`].
fn may_retire(retired: usize) -> bool {
    retired < RETIRED_FULL
}

/// Nothing went wrong: it goes on once some of it is deleted.
fn waits_if_full(done: Result<(), SpaceError>) -> Result<(), SpaceError> {
    done.or_else(|e| if matches!(e, SpaceError::Full) { Ok(()) } else { Err(e) })
}

#[cfg(test)]
mod tests;
