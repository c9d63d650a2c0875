//! Copies missing objects between several stores, while this gateway leads the set (ADR 0018). Only objects that kept
//! roots name are copied: retired ones, and those that were never named, stay where they are until they are deleted. A
//! copy is opened completely before it is written elsewhere.
//!
//! ```text
//!   a PUT that one store did not accept ────────────────────▶ noted ─▶ a kept root names it ──────┐
//!   begin of a leadership, every hour ─▶ each store's listing, piece by piece, compared with one  ├─▶ copied, a few a turn
//!                                        kept root after another: missing, or of another length ──┤
//!   the scrub read a copy that does not open ─────────────────────────────────────────────────────┘
//! ```
//! Nothing waits for this task. An object that cannot be copied is skipped, reported, and retried. A store that does
//! not answer delays only its own copies: the heads, the names and each store's copies have separate turns. All stores
//! share the limit of bytes copied per second.

use crate::leader_task::{self, Failed, LeaderTask, Pauses};
use crate::live::Now;
use crate::mapping::{MapError, Mapping};
use crate::references::{KINDS, Piece, Shelf, check_object, key_kind, length_of, named};
use crate::server::SetServer;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::future::join_all;
use holdfast_control::set::RootRef;
use holdfast_store::{Quorum, RepairError, StoreError, keys};
use holdfast_types::sync::LockExt;
use holdfast_types::{ObjectId, SetId, Term};
use holdfast_volume::map::Objects;
use holdfast_volume::space::{MoveBudget, MoveLimits};
use std::collections::BTreeSet;
use std::sync::{Arc, MutexGuard};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Time between two turns.
const TURN: Duration = Duration::from_secs(2);
/// Maximum time after turns that failed; doubled each time.
const TURN_MAX: Duration = Duration::from_secs(30);
/// Time between two full comparisons: a listing of each store, some 1000 keys per request.
const COMPARE_EVERY: Duration = Duration::from_secs(3600);
/// Time between two comparisons of the heads, for a set without checkpoints: each costs one request per store.
const HEADS_EVERY: Duration = Duration::from_secs(1200);
/// Like `HEADS_EVERY`, after a checkpoint.
const HEADS_EVERY_BUSY: Duration = Duration::from_secs(10);
/// Maximum number of objects that one turn copies to one store.
const COPIES_PER_TURN: usize = 64;
/// Objects in one piece of a listing; some 2 MiB of memory for each store. Each piece reads all kept roots.
const PIECE_OBJECTS: usize = 32 * 1024;
/// A store's turn ends after this much time spent on objects that could not be copied.
const PASSING_OVER_MAX: Duration = Duration::from_secs(20);

/// A root that is not read within this time is skipped: perhaps only a silent store has it, and reads retry without
/// end.
const ROOT_LIMIT: Duration = Duration::from_secs(30);

/// Why a turn failed.
#[derive(Debug, thiserror::Error)]
enum TurnError {
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("store: {0}")]
    Store(#[from] StoreError),
    #[error("root {0} was not read within {limit} s", limit = ROOT_LIMIT.as_secs())]
    RootLate(ObjectId),
}

/// Parts of the repair, each with its own turns and pauses: waiting for one store delays nothing else.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// All stores' heads are the same.
    Heads,
    /// Finds the noted objects that the current root names.
    Names,
    /// Copies what one store lacks.
    Fill(usize),
}

/// Memory of a part between its turns, while this gateway leads.
#[derive(Debug, Default)]
struct Past {
    /// Time of the last comparison of the heads that found nothing to do, and the current root then.
    turned: Option<(Instant, Option<RootRef>)>,
    /// The roots with which the notes were last compared, and the time.
    judged: Option<(BTreeSet<ObjectId>, Instant)>,
}

/// See the module.
pub struct Repairer {
    server: Arc<SetServer>,
    mapping: Arc<Mapping>,
    stop: CancellationToken,
    /// The term in which this gateway leads, and the time since which everything is being compared.
    led: std::sync::Mutex<Option<(Term, Instant)>>,
    /// Locked only briefly: never while a root is read.
    shelf: Mutex<Shelf>,
    /// Budget of copied bytes over all stores, in time since `begun`.
    budget: std::sync::Mutex<MoveBudget>,
    /// Where its limit comes from while that can change.
    now: Option<Now<u64>>,
    begun: Instant,
}

/// The turns of one part.
struct PartOfRepair<'a> {
    repairer: &'a Repairer,
    several: &'a Quorum,
    part: Part,
    past: Past,
}

impl LeaderTask for PartOfRepair<'_> {
    async fn turn(&mut self, term: Term) -> Result<(), Failed> {
        let Self { repairer, several, part, past } = self;
        repairer.refresh();
        repairer.compare_anew(several, term);
        let (kept, current) = repairer.server.host.with(|m| (m.state().kept_roots(), m.state().current_root()));
        // Before the first checkpoint there is nothing to copy, and perhaps no head.
        if kept.is_empty() {
            self.forget().await;
            return Ok(());
        }
        let turn = match part {
            Part::Heads => repairer.mend_heads(several, current, past).await,
            Part::Names => repairer.judge(several, &kept, current, past).await,
            Part::Fill(at) => repairer.fill(several, *at, &kept).await,
        };
        turn.map_err(|e| {
            tracing::debug!(set = %repairer.server.name, ?part, error = %e, "repair of a store failed; will retry later");
            Failed
        })
    }

    async fn idle(&mut self) {
        *self.repairer.led.locked() = None;
        self.forget().await;
    }
}

impl PartOfRepair<'_> {
    async fn forget(&mut self) {
        self.past = Past::default();
        self.repairer.shelf.lock().await.retain(&[]);
    }
}

impl Repairer {
    /// Creates the repairer for `server`'s set.
    pub fn new(server: Arc<SetServer>, mapping: Arc<Mapping>, stop: CancellationToken) -> Self {
        let shelf = Mutex::new(Shelf::new(mapping.clone()));
        let budget = std::sync::Mutex::new(MoveBudget::new(MoveLimits::default()));
        Self {
            server,
            mapping,
            stop,
            led: std::sync::Mutex::default(),
            shelf,
            budget,
            now: None,
            begun: Instant::now(),
        }
    }

    /// Limits the bytes copied per second; 0 means no limit.
    #[must_use]
    pub fn within(self, bytes_per_second: u64) -> Self {
        let budget = MoveBudget::new(MoveLimits { bytes_per_second, requests_per_second: 0 });
        Self { budget: std::sync::Mutex::new(budget), ..self }
    }

    /// Limits the bytes copied per second to what `now` tells, from the next turn on; 0 means no limit.
    #[must_use]
    pub fn following(self, now: Now<u64>) -> Self {
        Self { now: Some(now), ..self }
    }

    fn refresh(&self) {
        if let Some(now) = &self.now {
            self.budget().limit(MoveLimits { bytes_per_second: now(), requests_per_second: 0 });
        }
    }

    fn budget(&self) -> MutexGuard<'_, MoveBudget> {
        self.budget.locked()
    }

    /// Runs until stopped.
    pub fn run(self) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let mut changes = self.server.switch.changes();
            loop {
                changes.borrow_and_update();
                let several = self.mapping.store.several();
                let look_after = async {
                    let Some(several) = &several else { return std::future::pending().await };
                    let fills = (0..several.copies()).map(Part::Fill);
                    let parts =
                        [Part::Heads, Part::Names].into_iter().chain(fills).map(|part| self.look_after(several, part));
                    join_all(parts).await;
                };
                // New stores are compared from the beginning: their missing objects are not noted.
                tokio::select! {
                    () = self.stop.cancelled() => return,
                    changed = changes.changed() => if changed.is_err() { return },
                    () = look_after => {}
                }
            }
        })
    }

    async fn look_after(&self, several: &Quorum, part: Part) {
        let mut work = PartOfRepair { repairer: self, several, part, past: Past::default() };
        leader_task::turns(&self.server, &mut work, Pauses::doubling(TURN, TURN_MAX)).await;
    }

    /// Starts a full comparison with each leadership and every hour.
    fn compare_anew(&self, several: &Quorum, term: Term) {
        let mut led = self.led.locked();
        if led.is_none_or(|(led, since)| led != term || since.elapsed() >= COMPARE_EVERY) {
            several.compare_anew();
            *led = Some((term, Instant::now()));
        }
    }

    /// A quorum read of the head ends with the first answers that agree. This also finds a store that lost its head.
    async fn mend_heads(&self, several: &Quorum, current: Option<RootRef>, past: &mut Past) -> Result<(), TurnError> {
        let every = |root| if root == current { HEADS_EVERY } else { HEADS_EVERY_BUSY };
        let quiet = past.turned.is_some_and(|(at, root)| at.elapsed() < every(root));
        if quiet && !several.heads_differ() {
            return Ok(());
        }
        several.mend_heads(self.set()).await?;
        past.turned = Some((Instant::now(), current));
        Ok(())
    }

    fn set(&self) -> SetId {
        self.mapping.key.set
    }

    /// Finds which noted objects the kept roots name. An object written by a checkpoint is named by that checkpoint's
    /// root or never. An object of a dropped root may also be named by another root.
    async fn judge(
        &self,
        several: &Quorum,
        kept: &[RootRef],
        current: Option<RootRef>,
        past: &mut Past,
    ) -> Result<(), TurnError> {
        self.shelf.lock().await.retain(kept);
        let under_way = self.server.host.with(|m| m.state().begin.is_some());
        several.root_is(current.map(|root| root.object), under_way);
        several.let_go(|root| kept.iter().any(|kept| kept.object == root));
        if current.is_none() {
            return Ok(());
        }
        let now = Instant::now();
        let (judged, since) = match &past.judged {
            Some((roots, since)) => (Some(roots), Some(*since)),
            None => (None, None),
        };
        // A root never changes, so a root already compared needs only the later notes. A new one needs all of them: it
        // may have been current only between two turns, and a snapshot may keep objects that only it names.
        for root in kept {
            let known = judged.is_some_and(|roots| roots.contains(&root.object));
            let unnamed = several.unnamed(since.filter(|_| known));
            if !unnamed.is_empty() {
                self.name(several, *root, unnamed).await?;
            }
        }
        past.judged = Some((kept.iter().map(|root| root.object).collect(), now));
        Ok(())
    }

    /// Marks the objects among these that root `at` names.
    async fn name(&self, several: &Quorum, at: RootRef, unnamed: Vec<String>) -> Result<(), TurnError> {
        let root = self.root(at).await?;
        // A checkpoint makes few objects, compared with the existing ones.
        for key in unnamed {
            let Some((_, kind, object)) = keys::parse(&key) else { continue };
            let kind = KINDS.iter().find(|(_, of)| *of == kind).map(|(kind, _)| *kind);
            if let Some(bytes) = kind.and_then(|kind| length_of(kind, object, at, &root)) {
                several.named(&key, bytes, at.object);
            }
        }
        Ok(())
    }

    /// The objects that a kept root names.
    async fn root(&self, at: RootRef) -> Result<Arc<Objects>, TurnError> {
        if let Some(root) = self.shelf.lock().await.known(at) {
            return Ok(root);
        }
        // A root in memory in part has the complete list of objects.
        if let Some(root) = self.mapping.objects_here(at) {
            return Ok(root);
        }
        let read = tokio::time::timeout(ROOT_LIMIT, self.mapping.root_once(at)).await;
        let root = read.map_err(|_| TurnError::RootLate(at.object))??;
        Ok(self.shelf.lock().await.remember(at, &root))
    }

    /// Compares one store if due, and copies the objects that it lacks.
    async fn fill(&self, several: &Quorum, at: usize, kept: &[RootRef]) -> Result<(), TurnError> {
        if several.must_compare(at) {
            self.compare(several, at).await?;
        }
        let is_kept = |root: ObjectId| kept.iter().any(|kept| kept.object == root);
        let (mut copied, mut passing_over) = (0_u64, Duration::ZERO);
        let key = self.mapping.key.clone();
        let check = move |object: &str, bytes: &Bytes| check_object(&key, object, bytes);
        let mut outcome = Ok(());
        for wanted in several.wanted(at, is_kept, COPIES_PER_TURN) {
            // The next turns continue when the budget allows it.
            if !self.budget().allows(self.begun.elapsed()) {
                break;
            }
            // An object that nothing names any more may be deleted by now: it must not come back (SPACE-G1).
            if !self.names_now(wanted.by) {
                continue;
            }
            let began = Instant::now();
            match several.copy(at, &wanted, &check).await {
                Ok(written) => {
                    copied += u64::from(written > 0);
                    self.budget().took(self.begun.elapsed(), written, 1);
                }
                Err(RepairError::Store(error)) => {
                    outcome = Err(error.into());
                    break;
                }
                Err(error @ RepairError::Nowhere { .. }) => {
                    tracing::warn!(set = %self.server.name, %error, "an object could not be copied; continuing with the next ones");
                    // This is no failure of the store: the next turn comes as usual, with objects that were not tried
                    // yet.
                    passing_over += began.elapsed();
                    if passing_over >= PASSING_OVER_MAX {
                        break;
                    }
                }
            }
        }
        if copied > 0 {
            let name = self.server.name.to_string();
            tracing::info!(set = %name, objects = copied, "copied to a store that lacked them");
            metrics::counter!("holdfast_store_repaired_total", "set" => name).increment(copied);
        }
        outcome
    }

    /// Whether this gateway leads the set, and that root is kept.
    fn names_now(&self, root: ObjectId) -> bool {
        let kept = || self.server.host.with(|m| m.state().kept_roots());
        self.server.leading_ready().is_some() && kept().iter().any(|kept| kept.object == root)
    }

    /// Compares one store's listing with the objects that kept roots name.
    async fn compare(&self, several: &Quorum, at: usize) -> Result<(), TurnError> {
        let Some(store) = several.copy_at(at) else { return Ok(()) };
        several.compare_begins(at);
        // Read afterwards: a new comparison must include the roots that were kept when it was requested (MOVE-V2).
        let kept = &self.server.host.with(|m| m.state().kept_roots());
        let mut all_read = true;
        for (kind, _) in KINDS {
            let mut after: Option<String> = None;
            loop {
                let piece = Piece::list(&*store, self.set(), key_kind(kind), after.as_deref(), PIECE_OBJECTS).await?;
                for root_at in kept {
                    let root = match self.root(*root_at).await {
                        Ok(root) => root,
                        Err(error @ TurnError::Map(MapError::Stopping)) => return Err(error),
                        // Dropped meanwhile; lost in all stores, which reads report; or no store answers.
                        Err(error) => {
                            tracing::warn!(set = %self.server.name, root = %root_at.object, %error, "a root could not be read; its objects are not compared");
                            all_read = false;
                            continue;
                        }
                    };
                    for (object, bytes, damaged) in piece.lacking(after.as_deref(), &named(kind, *root_at, &root)) {
                        let key = keys::object(self.set(), key_kind(kind), object);
                        if !several.lacks(at, &key, bytes, root_at.object, damaged) {
                            // More than can be noted: the rest is found after these are copied.
                            several.compared(at, false);
                            return Ok(());
                        }
                    }
                }
                after = piece.more;
                if after.is_none() {
                    break;
                }
            }
        }
        match all_read {
            true => several.compared(at, true),
            false => several.compared_in_part(at),
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
