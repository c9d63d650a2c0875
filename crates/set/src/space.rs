//! Garbage collection of one set, at its leader (ADR 0012): examines dropped roots, retires objects that nothing
//! references, sweeps for orphans, and deletes retired objects after a grace time for readers. `volume::space` and the
//! replicated state decide.
//!
//! ```text
//!   dropped root ─▶ its objects − those of kept roots ─▶ Retire entry ─▶ grace ─▶ quorum confirms ─▶ delete ─▶ Deleted entry
//!   listing ─▶ objects of earlier terms, and those that checkpoints of this term gave up (SPACE-G4), that no kept root names ─┘
//! ```
//! Nothing waits for this task, and a failure only costs space: the next turn tries again. `check_deletion` is the last
//! check before an object is deleted (SPACE-G3). Objects of a set that is itself deleted are deleted elsewhere:
//! `tombstone`. Nothing else deletes objects of a set.

use crate::host::SetHost;
use crate::leader_task::{self, Failed, LeaderTask, Pauses};
use crate::live::Now;
use crate::mapping::{MapError, Mapping};
use crate::references::{KINDS, LIST_PAGES_MAX, Piece, Shelf, key_kind};
use crate::server::{SetError, SetServer};
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use holdfast_control::set::{
    RETIRE_OBJECTS_MAX, RETIRED_MAX, RetireOf, RootRef, SetAnswer, SetCommand, SetRefusal, SetState, StoredKind,
    StoredObject,
};
use holdfast_raft::{boot_now, boot_reading, promise_now};
use holdfast_store::{StoreError, keys as store_keys};
use holdfast_types::{MonoTime, ObjectId, SetId, Term};
use holdfast_volume::map::{Objects, Root};
use holdfast_volume::space::{Confirmed, Garbage, NoDeletion, Orphans, Reaper, RetireProgress};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

mod keys;

use keys::KeysOfRoots;

/// Time between two turns.
const TURN: Duration = Duration::from_millis(500);
/// Maximum time after turns in which the store or the group failed; doubled each time.
const TURN_MAX: Duration = Duration::from_secs(30);
/// Maximum number of dropped roots that one turn examines.
const ROOTS_PER_TURN: usize = 8;
/// Maximum number of objects that one turn deletes.
const DELETIONS_PER_TURN: usize = 512;
/// Maximum number of concurrent deletions.
const DELETIONS_AT_ONCE: usize = 8;
/// Time limit for reading all leaves of a root in one turn; the next turn continues.
const LEAVES_LIMIT: Duration = Duration::from_secs(30);
/// Time limit of one deletion; afterwards it is repeated, because its outcome is unknown.
const DELETION_LIMIT: Duration = Duration::from_secs(30);
/// Maximum number of orphans that one sweep retires; the next sweep continues.
const ORPHANS_PER_SWEEP: usize = 2 * RETIRE_OBJECTS_MAX;
/// With this many retired objects, nothing more is retired. They stay in the replicated state, some 100 bytes each,
/// until every store has deleted them, and an unavailable store deletes nothing. Meanwhile a dropped root stands for
/// everything that it names: one entry for each checkpoint. The value leaves room for one more whole entry, because
/// apply would refuse a larger one.
pub const RETIRED_FULL: usize = RETIRED_MAX - RETIRE_OBJECTS_MAX;

/// Settings of a set's space.
#[derive(Clone, Copy, Debug)]
pub struct SpaceSettings {
    /// How long a running read may need an object that new reads no longer find.
    pub grace: Duration,
    /// Maximum number of deletions per second.
    pub deletes_per_second: u32,
    /// Time between two sweeps for orphans.
    pub sweep_interval: Duration,
}

/// Why a turn was not finished.
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
    #[error("too many objects are retired: more must wait until some are deleted")]
    Full,
}

/// What names a root that is in use, as text for users.
fn named_by(state: &SetState, at: RootRef) -> String {
    let current = state.current_root().is_some_and(|root| root.object == at.object);
    let snapshots = state.snapshots.iter().filter(|(_, found)| found.root.object == at.object);
    let names = snapshots.map(|(name, _)| format!("snapshot {name}"));
    let pins = state.pins().filter(|(_, pin)| pin.root.object == at.object);
    let names = names.chain(pins.map(|(_, pin)| format!("its clone, set {}", pin.clone)));
    let all: Vec<String> = current.then(|| "the last checkpoint".to_string()).into_iter().chain(names).collect();
    all.join(", ")
}

/// Collects the garbage of one set's store while this gateway leads the set.
pub struct SpaceKeeper {
    server: Arc<SetServer>,
    host: Arc<SetHost>,
    mapping: Arc<Mapping>,
    settings: SpaceSettings,
    /// Where the settings come from while they can change.
    now: Option<Now<SpaceSettings>>,
    stop: CancellationToken,
    reaper: Reaper,
    looked: RetireProgress,
    roots: Shelf,
    /// The term of the last sweep, or of the beginning of the leadership, and its time.
    swept: Option<(Term, Instant)>,
    shown: Option<RootRef>,
    /// The root whose leaves were all read.
    had: Option<RootRef>,
    keys: KeysOfRoots,
    /// A deletion of this turn failed.
    undeleted: AtomicBool,
}

impl LeaderTask for SpaceKeeper {
    async fn turn(&mut self, term: Term) -> Result<(), Failed> {
        if let Some(now) = &self.now {
            self.settings = now();
        }
        let done = self.one_turn(term).await;
        if let Err(e) = &done {
            tracing::debug!(set = %self.server.name, error = %e, "garbage collection failed; will retry later");
        }
        let undeleted = std::mem::take(self.undeleted.get_mut());
        if done.is_err() || undeleted { Err(Failed) } else { Ok(()) }
    }

    async fn idle(&mut self) {
        self.roots.clear();
        // By the next leadership of this gateway, what was read may no longer be in memory.
        (self.swept, self.had) = (None, None);
        self.mapping.key.tell(None);
    }
}

impl SpaceKeeper {
    /// Creates the keeper of `server`'s set.
    pub fn new(
        server: Arc<SetServer>,
        mapping: Arc<Mapping>,
        settings: SpaceSettings,
        stop: CancellationToken,
    ) -> Self {
        let host = server.host.clone();
        let (reaper, looked, roots) = (Reaper::new(), RetireProgress::default(), Shelf::new(mapping.clone()));
        let undeleted = AtomicBool::new(false);
        let (swept, shown, had, keys) = (None, None, None, KeysOfRoots::default());
        let now = None;
        Self { server, host, mapping, settings, now, stop, reaper, looked, roots, swept, shown, had, keys, undeleted }
    }

    /// Uses the settings that `now` tells, from the next turn on.
    #[must_use]
    pub fn following(self, now: Now<SpaceSettings>) -> Self {
        Self { now: Some(now), ..self }
    }

    /// Runs until stopped.
    pub fn run(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let (server, stop) = (self.server.clone(), self.stop.clone());
            leader_task::run(server, self, Pauses::doubling(TURN, TURN_MAX), stop).await;
        })
    }

    /// All steps once. (Collection, in the narrower sense, is the uploader's: it empties segments.)
    async fn one_turn(&mut self, term: Term) -> Result<(), SpaceError> {
        let shown = self.show().await;
        let keys = self.look_at_keys(term).await;
        // SET-S12: the checkpoint after the rollback is in progress, and apply would refuse. No head names what is
        //     already retired.
        if self.host.with(|m| m.state().rolled_back.is_some()) {
            holdfast_reached::reached!("collection: it waits for the checkpoint after a rollback");
            let deleted = self.delete_retired(term).await;
            return shown.and(keys).and(deleted);
        }
        // Every step runs even if another one fails: only the last one frees a full list.
        let looked = waits_if_full(self.look_through_dropped(term).await);
        let swept = waits_if_full(self.sweep(term).await);
        let deleted = self.delete_retired(term).await;
        self.have_leaves(LEAVES_LIMIT).await;
        shown.and(keys).and(looked).and(swept).and(deleted)
    }

    /// Reads all leaves of the current root. R8: during a store outage, a leaf that no read has fetched would be
    /// unavailable, and the leader needs all of them before its next checkpoint. Limited by `limit`; leaves read so far
    /// stay in the page cache.
    async fn have_leaves(&mut self, limit: Duration) {
        let current = self.host.with(|m| m.state().current_root());
        let Some(current) = current.filter(|current| self.had != Some(*current)) else { return };
        if !self.mapping.has_base(current) {
            match tokio::time::timeout(limit, self.mapping.base(current)).await {
                Ok(Ok(_)) => {}
                // The next checkpoint reports this too.
                Ok(Err(error)) => {
                    tracing::warn!(set = %self.server.name, %error, "not all leaves of the map's root can be read");
                }
                Err(_) => return,
            }
        }
        self.had = Some(current);
    }

    /// Examines the roots for the keys they need, and reports the result.
    async fn look_at_keys(&mut self, term: Term) -> Result<(), SpaceError> {
        let ring = self.mapping.key.ring();
        if !ring.is_changing() {
            self.keys.clear(&self.server, &self.mapping);
            return Ok(());
        }
        let state = self.state_of(term)?;
        self.keys.look(term, &ring, &state, &self.server, &self.mapping, &mut self.roots).await?;
        Ok(())
    }

    fn state(&self) -> SetState {
        // Persistent maps: cloning is cheap.
        self.host.with(|m| m.state().clone())
    }

    /// The state of a leader of `term` that has applied an entry of that term: no checkpoint of an earlier term can end
    /// any more.
    fn state_of(&self, term: Term) -> Result<SetState, SpaceError> {
        if self.server.leading_ready() != Some(term) {
            holdfast_reached::reached!("collection: the term is over");
            return Err(SpaceError::NotLeading(term));
        }
        Ok(self.state())
    }

    /// SET-S7: a dropped root stays on the list until everything that only it names is retired.
    async fn look_through_dropped(&mut self, term: Term) -> Result<(), SpaceError> {
        for _ in 0..ROOTS_PER_TURN {
            let state = self.state_of(term)?;
            let Some((object, bytes)) = state.dropped.iter().next().map(|(object, bytes)| (*object, *bytes)) else {
                return Ok(());
            };
            // A root stays while the head still names it, for a deleted clone or as a deleted snapshot (SET-S15).
            if !self.server.head.links_settled(&state, term) {
                holdfast_reached::reached!("collection: a dropped root may still be in the head");
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
                // It will never be readable (damage in transit was already retried). The sweep finds what it named.
                Err(e) if e.is_lost() => {
                    holdfast_reached::reached!("collection: a dropped root is missing or damaged");
                    tracing::error!(set = %self.server.name, root = %object, error = %e, "a dropped root is missing or damaged");
                    Garbage::of(object, &Root::new(state.checkpoint.map(|c| c.upto).unwrap_or_default()))
                }
                Err(e) => return Err(e.into()),
            };
            for root in kept {
                // An unreadable kept root stops this: what it names is unknown.
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

    /// What a root in use names. A lost or damaged one stops collection until an operator acts, so it is reported.
    async fn kept_root(&mut self, state: &SetState, at: RootRef) -> Result<Arc<Objects>, MapError> {
        let read = self.roots.root(at).await;
        if let Err(e) = &read
            && e.is_lost()
        {
            self.mapping.note_object_trouble(e);
            let of = named_by(state, at);
            tracing::warn!(set = %self.server.name, root = %at.object, %of, error = %e, "a root in use cannot be read: no garbage is collected until it can be read or nothing names it any more");
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
                    holdfast_reached::reached!("collection: apply refused to retire an object in use");
                    // SET-S8 has protected it; the caller's decision was wrong.
                    tracing::error!(%set, %refusal, "refused to retire an object that is in use");
                    metrics::counter!("holdfast_space_refused_total", "set" => set).increment(count);
                }
                Err(e.into())
            }
        }
    }

    /// Looks for objects that no root names: of earlier terms, and of this term if a checkpoint gave them up before a
    /// later one ended (SPACE-G4).
    async fn sweep(&mut self, term: Term) -> Result<(), SpaceError> {
        if !self.sweep_is_due(term) {
            return Ok(());
        }
        // Linearizable: the state below is not older than this confirmation.
        self.server.confirm_leadership().await?;
        let state = self.state_of(term)?;
        // A recovery would keep what the head still pins for a deleted clone, or lists as a deleted snapshot.
        let settled = self.server.head.links_settled(&state, term);
        if !state.dropped.is_empty() || !may_retire(state.retired.len()) || !settled {
            return Ok(());
        }
        self.swept = Some((term, Instant::now()));
        let orphans = self.orphans(term, &state).await?;
        let found = self.list_orphans(&orphans).await?;
        let set = &self.server.name;
        // Terms identify orphans only within one life of the set: another life starts at term 1 again. Objects listed
        // before the head was confirmed as ours were written before anybody could recover the set (ADR 0013).
        if !found.is_empty() && !self.server.head.still_ours().await {
            tracing::warn!(%set, orphans = found.len(), "nothing is swept: the store does not confirm that the set is still this cluster's");
            return Ok(());
        }
        if !found.is_empty() {
            tracing::info!(%set, orphans = found.len(), "retired objects that no checkpoint names");
        }
        for (of, objects) in orphans.entries(&found, RETIRE_OBJECTS_MAX) {
            if !may_retire(self.state_of(term)?.retired.len()) {
                return Ok(());
            }
            self.retire(term, of, objects.clone()).await?;
            // Objects that were not listed stay recorded: they may still be in transit, or the listing is incomplete.
            self.server.given_up().forget(objects.iter().map(|stored| stored.object));
        }
        Ok(())
    }

    /// Whether it is time for a sweep. The first one is due an interval after the beginning of the leadership.
    fn sweep_is_due(&mut self, term: Term) -> bool {
        let since = match self.swept {
            Some((swept, at)) if swept == term => at,
            _ => {
                let now = Instant::now();
                self.swept = Some((term, now));
                now
            }
        };
        // The head may name a checkpoint of an earlier leader that failed before it reported it to the group (ADR
        // 0013). Those objects must not be swept.
        since.elapsed() >= self.settings.sweep_interval && self.server.head.committed_in(term)
    }

    /// Tells which objects are orphans in this state.
    async fn orphans(&mut self, term: Term, state: &SetState) -> Result<Orphans, SpaceError> {
        // Uses this same state: the kept roots below are those at the end of the later checkpoint.
        let given_up = self.server.given_up().lapsed(term, state);
        // The note of a segment that was given up may arrive late: apply would refuse, until the next begin or end.
        let noted = state.segments.iter().map(|note| note.object);
        let mut orphans = Orphans::new(term, state.retired.keys().copied().chain(noted), given_up);
        for kept in state.kept_roots() {
            let root = self.kept_root(state, kept).await?;
            orphans.keep(kept.object, &root);
        }
        // Retired objects are handled separately; they include a `Retire` whose answer was lost.
        self.server.given_up().forget(orphans.named_after_all().chain(state.retired.keys().copied()));
        Ok(orphans)
    }

    /// Lists the store, and returns the orphans in it, at most [`ORPHANS_PER_SWEEP`].
    async fn list_orphans(&self, orphans: &Orphans) -> Result<Vec<(StoredKind, ObjectId)>, SpaceError> {
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
        metrics::gauge!("holdfast_space_listed_objects", "set" => set).set(count as f64);
        Ok(found)
    }

    fn set(&self) -> SetId {
        self.mapping.key.set
    }

    /// Waits until a quorum answers a heartbeat of this leadership sent after this call. A single voter is its own
    /// quorum.
    async fn confirm(&self, term: Term) -> Result<Confirmed, SpaceError> {
        self.server.confirm_leadership().await?;
        if self.server.leading_ready() != Some(term) {
            return Err(SpaceError::NotLeading(term));
        }
        let until = self.promised_until(term).ok_or(SpaceError::NotLeading(term))?;
        // A confirmation is valid for the longest read lease. If less was promised, it is older by that (R3).
        let valid = u64::try_from(self.server.read_lease().as_nanos()).unwrap_or(u64::MAX);
        Ok(Confirmed { term, sent: MonoTime(until.0.saturating_sub(valid)) })
    }

    /// Until when a quorum of the present voters elects no other leader than that of `term`, which is this gateway.
    fn promised_until(&self, term: Term) -> Option<MonoTime> {
        let promised = self.server.group.quorum_promised(self.server.read_lease());
        promised.filter(|(of, _)| *of == term).map(|(_, acked)| acked.until)
    }

    /// SPACE-G3: deletes objects that were retired long enough ago.
    async fn delete_retired(&mut self, term: Term) -> Result<(), SpaceError> {
        let state = self.state_of(term)?;
        let due = self.reaper.due(term, promise_now(), self.settings.grace, &state, DELETIONS_PER_TURN);
        if due.is_empty() {
            return Ok(());
        }
        let set = self.server.name.to_string();
        let confirmed = match self.confirm(term).await {
            Ok(confirmed) => confirmed,
            Err(e) => {
                self.count_refused(due.len());
                tracing::info!(%set, objects = due.len(), error = %e, "nothing is deleted: no quorum confirms this leader");
                return Err(e);
            }
        };
        let (gone, outcome) = self.delete_in_order(term, confirmed, &due).await;
        metrics::counter!("holdfast_space_deleted_total", "set" => set.clone()).increment(gone.len() as u64);
        if !gone.is_empty() {
            tracing::info!(%set, objects = gone.len(), "deleted from the store");
            self.server.command("deleted objects", &SetCommand::Deleted { term, objects: gone }).await?;
        }
        outcome
    }

    /// Deletes at the permitted pace, until one may not be deleted. Returns the deleted objects.
    async fn delete_in_order(
        &self,
        term: Term,
        mut confirmed: Confirmed,
        due: &[StoredObject],
    ) -> (Vec<ObjectId>, Result<(), SpaceError>) {
        let mut gone: Vec<ObjectId> = Vec::new();
        let mut outcome = Ok(());
        let mut pace = tokio::time::interval(Duration::from_secs(1) / self.settings.deletes_per_second.max(1));
        pace.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut under_way = FuturesUnordered::new();
        let mut kind = None;
        for (at, stored) in due.iter().enumerate() {
            // Objects that name others are deleted before those.
            let room = if kind == Some(stored.kind) { DELETIONS_AT_ONCE - 1 } else { 0 };
            kind = Some(stored.kind);
            while under_way.len() > room {
                gone.extend(under_way.next().await.flatten());
            }
            pace.tick().await;
            // If the store refuses some deletions, the rest is not sent in this turn.
            if self.undeleted.load(Ordering::Relaxed) {
                break;
            }
            let allowed = self.check_deletion(term, &mut confirmed, stored.object).await;
            if !matches!(allowed, Ok(true)) {
                self.count_refused(due.len() - at);
                outcome = allowed.map(|_| ());
                break;
            }
            under_way.push(self.delete(*stored));
        }
        while let Some(done) = under_way.next().await {
            gone.extend(done);
        }
        (gone, outcome)
    }

    /// The last check before a deletion, after all waits. An outdated confirmation is renewed once.
    async fn check_deletion(
        &self,
        term: Term,
        confirmed: &mut Confirmed,
        object: ObjectId,
    ) -> Result<bool, SpaceError> {
        let mut allowed = self.may_delete(confirmed, object);
        if let Err(NoDeletion::Old { .. } | NoDeletion::ClockBack) = allowed {
            *confirmed = self.confirm(term).await?;
            allowed = self.may_delete(confirmed, object);
        }
        if let Err(why) = &allowed {
            tracing::info!(set = %self.server.name, %object, %why, "not deleted");
        }
        Ok(allowed.is_ok())
    }

    fn count_refused(&self, objects: usize) {
        let set = self.server.name.to_string();
        metrics::counter!("holdfast_space_refused_total", "set" => set).increment(objects as u64);
    }

    fn may_delete(&self, confirmed: &Confirmed, object: ObjectId) -> Result<(), NoDeletion> {
        let leading = self.server.leading_ready();
        // The voters may have changed since: those of now must have promised it, too.
        let promised = self.promised_until(confirmed.term).is_some_and(|until| boot_now() < until);
        let valid = if promised { self.server.read_lease() } else { Duration::ZERO };
        self.host.with(|m| confirmed.may_delete(boot_reading(), valid, leading, m.state(), object))
    }

    /// `None` if the deletion is not confirmed: the object stays retired and is deleted again.
    async fn delete(&self, stored: StoredObject) -> Option<ObjectId> {
        let key = store_keys::object(self.set(), key_kind(stored.kind), stored.object);
        match tokio::time::timeout(DELETION_LIMIT, self.mapping.store.delete(&key)).await {
            Ok(Ok(())) => Some(stored.object),
            Ok(Err(e)) => {
                tracing::warn!(key, error = %e, "the store did not delete an object; will retry later");
                self.undeleted.store(true, Ordering::Relaxed);
                None
            }
            Err(_) => {
                tracing::warn!(key, "the store did not answer a deletion within {DELETION_LIMIT:?}; will retry later");
                self.undeleted.store(true, Ordering::Relaxed);
                None
            }
        }
    }

    /// Exports gauges of the current root's contents and of pending work.
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

/// Whether another entry may be proposed with this many retired objects: [`RETIRED_FULL`].
fn may_retire(retired: usize) -> bool {
    retired < RETIRED_FULL
}

/// Not an error: it continues once some objects are deleted.
fn waits_if_full(done: Result<(), SpaceError>) -> Result<(), SpaceError> {
    done.or_else(|e| if matches!(e, SpaceError::Full) { Ok(()) } else { Err(e) })
}

#[cfg(test)]
mod tests;
