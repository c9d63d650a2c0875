//! Fills what one of several stores lacks, while this gateway leads the set (ADR 0018). What is copied is what kept roots name, and nothing else:
//! what was retired, or never came to be named, stays where it is until it is deleted.
//!
//! ```text
//!   a PUT that one store did not take ─▶ noted in memory ─▶ copied at the next turn at which it answers
//!   begin of a leadership, and now and then ─▶ listing of each store − keys of kept roots ─▶ noted likewise
//! ```
//! Nothing waits for this task; an error of it is tried again.

use crate::set::mapping::{MapError, Mapping};
use crate::set::server::SetServer;
use holdfast_control::set::RootRef;
use holdfast_store::{Quorum, RepairError, keys};
use holdfast_types::{ObjectId, Term};
use holdfast_volume::map::Root;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Between two turns.
const TURN: Duration = Duration::from_secs(2);
/// The same after turns that did not get on: doubled each time, up to this.
const TURN_MAX: Duration = Duration::from_secs(30);
/// Between two comparisons of everything: a listing of each store, some 1000 keys a request.
const COMPARE_EVERY: Duration = Duration::from_secs(3600);
/// Between two looks at whether the heads are alike.
const HEADS_EVERY: Duration = Duration::from_secs(300);
/// Objects that one turn copies to one store at most.
const COPIES_PER_TURN: usize = 64;

/// A turn did not get on.
#[derive(Debug, thiserror::Error)]
enum TurnError {
    #[error(transparent)]
    Map(#[from] MapError),
    #[error(transparent)]
    Repair(#[from] RepairError),
}

/// See the module.
pub struct Repairer {
    server: Arc<SetServer>,
    mapping: Arc<Mapping>,
    stop: CancellationToken,
    /// The term that is led, and since when everything is compared.
    led: Option<(Term, Instant)>,
    turned: Option<Instant>,
    /// What each kept root names, by its object.
    roots: BTreeMap<ObjectId, Arc<Root>>,
}

impl Repairer {
    /// For `server`'s set.
    pub fn new(server: Arc<SetServer>, mapping: Arc<Mapping>, stop: CancellationToken) -> Self {
        Self { server, mapping, stop, led: None, turned: None, roots: BTreeMap::new() }
    }

    /// Runs until told to stop.
    pub async fn run(mut self) {
        let (stop, mapping) = (self.stop.clone(), self.mapping.clone());
        let Some(several) = mapping.store.several() else { return };
        let mut pause = TURN;
        loop {
            tokio::select! {
                () = stop.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
            let Some(term) = self.server.leading_ready().filter(|_| self.server.head.fenced().is_none()) else {
                self.led = None;
                self.roots.clear();
                continue;
            };
            if self.led.is_none_or(|(led, since)| led != term || since.elapsed() >= COMPARE_EVERY) {
                several.compare_anew();
                self.led = Some((term, Instant::now()));
            }
            let turn = tokio::select! {
                () = stop.cancelled() => return,
                turn = self.turn(several) => turn,
            };
            pause = if turn.is_err() { (pause * 2).min(TURN_MAX) } else { TURN };
            if let Err(e) = turn {
                tracing::debug!(set = %self.server.name, error = %e, "what a store lacks is looked after again later");
            }
        }
    }

    async fn turn(&mut self, several: &Quorum) -> Result<(), TurnError> {
        // Before the first checkpoint there is nothing to copy, and perhaps no head.
        let kept: Vec<RootRef> = self.server.host.with(|m| m.state().kept_roots());
        if kept.is_empty() {
            return Ok(());
        }
        let quiet = self.turned.is_some_and(|at| at.elapsed() < HEADS_EVERY);
        if quiet && !several.lags() {
            return Ok(());
        }
        let names = self.names(&kept).await?;
        let copied = several.repair(self.mapping.key.set, &names, COPIES_PER_TURN).await?;
        self.turned = Some(Instant::now());
        if copied > 0 {
            let name = self.server.name.to_string();
            tracing::info!(set = %name, objects = copied, "copied to a store that lacked them");
            metrics::counter!("holdfast_store_repaired_total", "set" => name).increment(copied);
        }
        Ok(())
    }

    /// Keys and lengths of everything that the kept roots name, the roots included.
    async fn names(&mut self, kept: &[RootRef]) -> Result<BTreeMap<String, u64>, TurnError> {
        self.roots.retain(|object, _| kept.iter().any(|root| root.object == *object));
        let set = self.mapping.key.set;
        let mut names = BTreeMap::new();
        for at in kept {
            let root = match self.roots.get(&at.object) {
                Some(root) => root.clone(),
                None => {
                    let root = self.mapping.root_once(*at).await?;
                    self.roots.insert(at.object, root.clone());
                    root
                }
            };
            names.insert(keys::root(set, at.object), at.bytes);
            names.extend(root.segments().map(|(object, usage)| (keys::segment(set, object), usage.stored_bytes)));
            names.extend(
                root.pack_uses().into_iter().map(|(object, usage)| (keys::map_pack(set, object), usage.stored_bytes)),
            );
        }
        Ok(names)
    }
}
