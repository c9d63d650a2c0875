//! Fills what one of several stores lacks, while this gateway leads the set (ADR 0018). What is copied is what kept roots name, and nothing else:
//! what was retired, or never came to be named, stays where it is until it is deleted. A copy is opened, all of it, before it is written elsewhere.
//!
//! ```text
//!   a PUT that one store did not take ──────────────────────▶ noted ─▶ a kept root names it ──────┐
//!   begin of a leadership, every hour ─▶ each store's listing, piece by piece, held against one   ├─▶ copied, a few a turn
//!                                        kept root after the other: gone, or of another length ───┤
//!   the scrub read a copy that does not open ─────────────────────────────────────────────────────┘
//! ```
//! Nothing waits for this task. What cannot be copied is passed over and shown, and tried again; a store that does not answer holds up its own copies
//! only: the heads, the names and each store's copies have turns of their own. What may be copied a second, where that is limited, the stores share.

use crate::leader_task::{self, Failed, LeaderTask, Pauses};
use crate::mapping::{MapError, Mapping};
use crate::references::{KINDS, Piece, Shelf, check_object, key_kind, length_of, named};
use crate::server::SetServer;
use bytes::Bytes;
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

/// Between two turns.
const TURN: Duration = Duration::from_secs(2);
/// The same after turns that did not get on: doubled each time, up to this.
const TURN_MAX: Duration = Duration::from_secs(30);
/// Between two comparisons of everything: a listing of each store, some 1000 keys a request.
const COMPARE_EVERY: Duration = Duration::from_secs(3600);
/// Between two looks at whether the heads are alike, of a set that makes no checkpoints: each costs a request to each store.
const HEADS_EVERY: Duration = Duration::from_secs(1200);
/// The same after a checkpoint.
const HEADS_EVERY_BUSY: Duration = Duration::from_secs(10);
/// Objects that one turn copies to one store at most.
const COPIES_PER_TURN: usize = 64;
/// Objects of one piece of a listing, some 2 MiB of memory for each store. Each piece reads all kept roots.
const PIECE_OBJECTS: usize = 32 * 1024;
/// A turn that has passed over objects for so long ends, for one store.
const PASSING_OVER_MAX: Duration = Duration::from_secs(20);

/// A root that is not read within this time is passed over: perhaps only a store that is silent has it, and reads are patient.
const ROOT_LIMIT: Duration = Duration::from_secs(30);

/// A turn did not get on.
#[derive(Debug, thiserror::Error)]
enum TurnError {
    #[error(transparent)]
    Map(#[from] MapError),
    #[error("store: {0}")]
    Store(#[from] StoreError),
    #[error("root {0} was not read within {limit} s", limit = ROOT_LIMIT.as_secs())]
    RootLate(ObjectId),
}

/// What is looked after, each with turns and pauses of its own: what waits for one store holds up nothing else.
#[derive(Clone, Copy, Debug)]
enum Part {
    /// That all stores' heads are alike.
    Heads,
    /// Which noted objects the current root names.
    Names,
    /// What one store lacks.
    Fill(usize),
}

/// What a part remembers between its turns, while this gateway leads.
#[derive(Debug, Default)]
struct Past {
    /// When the heads were looked at and nothing was left to do, and the current root then.
    turned: Option<(Instant, Option<RootRef>)>,
    /// The roots that the notes were held against last, and when.
    judged: Option<(BTreeSet<ObjectId>, Instant)>,
}

/// See the module.
pub struct Repairer {
    server: Arc<SetServer>,
    mapping: Arc<Mapping>,
    stop: CancellationToken,
    /// The term that is led, and since when everything is compared.
    led: std::sync::Mutex<Option<(Term, Instant)>>,
    /// Locked for moments only: a root is read without it.
    shelf: Mutex<Shelf>,
    /// Of what is copied, over all stores; its moments are those since `begun`.
    budget: std::sync::Mutex<MoveBudget>,
    begun: Instant,
}

/// One part's turns.
struct PartOfRepair<'a> {
    repairer: &'a Repairer,
    several: &'a Quorum,
    part: Part,
    past: Past,
}

impl LeaderTask for PartOfRepair<'_> {
    async fn turn(&mut self, term: Term) -> Result<(), Failed> {
        let Self { repairer, several, part, past } = self;
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
            tracing::debug!(set = %repairer.server.name, ?part, error = %e, "what a store lacks is looked after again later");
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
    /// For `server`'s set.
    pub fn new(server: Arc<SetServer>, mapping: Arc<Mapping>, stop: CancellationToken) -> Self {
        let shelf = Mutex::new(Shelf::new(mapping.clone()));
        let budget = std::sync::Mutex::new(MoveBudget::new(MoveLimits::default()));
        Self { server, mapping, stop, led: std::sync::Mutex::default(), shelf, budget, begun: Instant::now() }
    }

    /// Copies so many bytes a second at most; 0: no limit.
    #[must_use]
    pub fn within(self, bytes_per_second: u64) -> Self {
        let budget = MoveBudget::new(MoveLimits { bytes_per_second, requests_per_second: 0 });
        Self { budget: std::sync::Mutex::new(budget), ..self }
    }

    fn budget(&self) -> MutexGuard<'_, MoveBudget> {
        self.budget.locked()
    }

    /// Runs until told to stop.
    pub async fn run(self) {
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
            // Other stores are compared from the beginning: what these lack nobody has noted.
            tokio::select! {
                () = self.stop.cancelled() => return,
                changed = changes.changed() => if changed.is_err() { return },
                () = look_after => {}
            }
        }
    }

    async fn look_after(&self, several: &Quorum, part: Part) {
        let mut work = PartOfRepair { repairer: self, several, part, past: Past::default() };
        leader_task::turns(&self.server, &mut work, Pauses::doubling(TURN, TURN_MAX)).await;
    }

    /// With each leadership, and every hour, all is compared anew.
    fn compare_anew(&self, several: &Quorum, term: Term) {
        let mut led = self.led.locked();
        if led.is_none_or(|(led, since)| led != term || since.elapsed() >= COMPARE_EVERY) {
            several.compare_anew();
            *led = Some((term, Instant::now()));
        }
    }

    /// A look at the head ends with the first answers that agree: a store that lost its own is found here.
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

    /// Which of the noted objects the kept roots name: what a checkpoint wrote, its root names, or nothing ever will. What a root named that is dropped, another one may name.
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
        // What a root names does not change, so one that was asked before is asked about later notes only; one that was not, about all
        // of them: it may have been the current one between two turns, and what it named is named by none after it, while a snapshot keeps it.
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

    /// Notes which of these root `at` names.
    async fn name(&self, several: &Quorum, at: RootRef, unnamed: Vec<String>) -> Result<(), TurnError> {
        let root = self.root(at).await?;
        // A checkpoint makes few objects beside those that there are.
        for key in unnamed {
            let Some((_, kind, object)) = keys::parse(&key) else { continue };
            let kind = KINDS.iter().find(|(_, of)| *of == kind).map(|(kind, _)| *kind);
            if let Some(bytes) = kind.and_then(|kind| length_of(kind, object, at, &root)) {
                several.named(&key, bytes, at.object);
            }
        }
        Ok(())
    }

    /// What a kept root names.
    async fn root(&self, at: RootRef) -> Result<Arc<Objects>, TurnError> {
        if let Some(root) = self.shelf.lock().await.known(at) {
            return Ok(root);
        }
        // Of one that is in memory in part all of that is.
        if let Some(root) = self.mapping.objects_here(at) {
            return Ok(root);
        }
        let read = tokio::time::timeout(ROOT_LIMIT, self.mapping.root_once(at)).await;
        let root = read.map_err(|_| TurnError::RootLate(at.object))??;
        Ok(self.shelf.lock().await.remember(at, &root))
    }

    /// Compares one store if that is due, and copies to it what it lacks.
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
            // The next turns go on, as it is paid for.
            if !self.budget().allows(self.begun.elapsed()) {
                break;
            }
            // What nothing names any more may be deleted by now: it must not come back (G1).
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
                    tracing::warn!(set = %self.server.name, %error, "an object is not copied; the next ones are");
                    // No failure of this store: the next turn comes as soon as ever, with those that were not tried yet.
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

    /// Holds what one store lists against what kept roots name.
    async fn compare(&self, several: &Quorum, at: usize) -> Result<(), TurnError> {
        let Some(store) = several.copy_at(at) else { return Ok(()) };
        several.compare_begins(at);
        // After that: who asks for a comparison anew has what is kept by then in mind (V2).
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
                        // Dropped meanwhile; lost everywhere, which reads of it say; or where nobody answers.
                        Err(error) => {
                            tracing::warn!(set = %self.server.name, root = %root_at.object, %error, "what a root names is not compared");
                            all_read = false;
                            continue;
                        }
                    };
                    for (object, bytes, damaged) in piece.lacking(after.as_deref(), &named(kind, *root_at, &root)) {
                        let key = keys::object(self.set(), key_kind(kind), object);
                        if !several.lacks(at, &key, bytes, root_at.object, damaged) {
                            // More than can be noted: the rest is found when these are copied.
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
