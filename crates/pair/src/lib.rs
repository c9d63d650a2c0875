//! A gateway of a pair whose authority is an etcd (ADR 0031): it waits for the seat, takes the sets over,
//! and serves them while it has the seat.
//!
//! ```text
//!   campaign ─won─▶ a fresh node ─▶ take over: raise each head, restore each set ─▶ open the listeners and serve
//!      ▲                            (every answer is checked against the tenure: PAIR-P1)                │
//!      └───── listeners closed ◀─ the seat is overdue or lost, or the gateway is told to stop ──────┘
//! ```
//! Owns: the loop, and its access to etcd, store and disk. Does not own: when an answer may be sent and what may be
//! written (`holdfast_control::pair`), the calls to the etcd (`holdfast_etcd::Seat`, `RosterKey`), and the node
//! (`holdfast_gateway`). The node knows nothing of pairs except the tenure under which it may answer
//! (`holdfast_set::authority`).

mod error;
mod keep;
mod pair;
mod roster;
mod said;
mod seated;
mod takeover;

use error::END_LIMIT;
pub use error::PairError;
use futures_util::future::BoxFuture;
use holdfast_control::pair::{Ended, TenureId};
use holdfast_etcd::Tenancy;
use holdfast_gateway::config::GatewayConfig;
use holdfast_gateway::config::live::Live;
use holdfast_gateway::node::{NodeError, Seams, cluster_keys};
use holdfast_gateway::{RunError, Stop, run_life};
use holdfast_set::authority::Authority;
use holdfast_types::MonoTime;
use keep::{campaign, keep};
use pair::Pair;
pub use seated::{Seated, SeatedPair, seated};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Below the data directory: one folder for each tenure of this gateway.
const TENURES: &str = "tenures";

/// Timeout for giving the seat up. If the etcd does not answer, the seat expires.
const GIVE_UP_LIMIT: Duration = Duration::from_secs(2);

/// What follows a tenure.
enum After {
    /// Told to stop.
    Stopped,
    /// Try for the seat again, after this pause.
    Again(Duration),
}

/// Maximum pause between two failed tenures. It starts with the seat's time to live and doubles each time.
const PAUSE_MAX: Duration = Duration::from_secs(600);

/// Extracts an error of this crate from the result of a node.
fn of_pair(error: RunError) -> Result<PairError, RunError> {
    match error {
        RunError::Begin(error) => error.downcast().map(|error| *error).map_err(RunError::Begin),
        other => Err(other),
    }
}

/// Runs a gateway of a pair until `stop` is cancelled; `live` has its settings as they change. Boxed for the same
/// reason as [`holdfast_gateway::run_until`].
pub fn run_until(
    config: GatewayConfig,
    live: Live,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), RunError>> {
    Box::pin(tenures(config, live, stop))
}

async fn tenures(config: GatewayConfig, live: Live, stop: CancellationToken) -> Result<(), RunError> {
    let mut pair = Pair::new(config)?;
    pair.live = Some(live);
    // Before it stands by, and once: whoever keeps the key may be away when a takeover is due.
    let opened = tokio::select! {
        () = stop.cancelled() => return Ok(()),
        opened = cluster_keys(&pair.config) => opened,
    };
    pair.keys = Some(Arc::new(opened.map_err(NodeError::from)?));
    loop {
        let Some((tenancy, sent)) = campaign(&mut pair, &stop).await? else { return Ok(()) };
        pair.left = Some(tenancy);
        match pair.tenure(tenancy, sent, &stop).await? {
            After::Stopped => return Ok(()),
            After::Again(pause) => tokio::select! {
                () = stop.cancelled() => return Ok(()),
                () = tokio::time::sleep(pause) => {}
            },
        }
    }
}

impl Pair {
    /// One tenure, from winning the seat to the end of everything that was served with it. When this returns, nothing
    /// of the tenure runs any more.
    async fn tenure(&mut self, tenancy: Tenancy, sent: MonoTime, stop: &CancellationToken) -> Result<After, RunError> {
        let id = TenureId::new(tenancy.etcd, self.seat.key(), tenancy.revision);
        let durability = self.config.pair.durability.into();
        let authority = Arc::new(Authority::begin(id, durability, self.config.pair.stores.clone(), sent, tenancy.ttl));
        tracing::info!(revision = tenancy.revision, cluster = %holdfast_api::hex128(id.cluster()), "the pair's seat is won");
        metrics::counter!("holdfast_pair_tenures_total").increment(1);
        metrics::gauge!("holdfast_pair_holder").set(1.0);
        let ends = stop.child_token();
        let data_dir = self.tenure_dir(id);
        if let Some(set) = used_before(&data_dir) {
            // PAIR-P2: a node that continued there would use the journal, leases and tokens of another tenure.
            authority.end(Ended::Resigned("its revision was used before".into()));
            let _ = tokio::time::timeout(GIVE_UP_LIMIT, self.seat.give_up(&tenancy)).await;
            let repeated = PairError::Repeated { set, revision: tenancy.revision };
            return self.after(Some(Ok(repeated)), stop.is_cancelled());
        }
        self.forget_earlier();
        let settings = self.live.as_ref().map_or_else(|| self.config.clone(), |live| (*live.now()).clone());
        let config = GatewayConfig { data_dir, ..settings };
        let begin = takeover::begin(self.config.clone(), authority.clone());
        let (keys, live) = (self.keys.clone(), self.live.clone());
        let seams = Seams { pair: Some(authority.clone()), keys, live, ..Seams::default() };
        let run = run_life(config, Stop::at_once(ends.clone()), seams, Some(begin));
        // In a task of its own, so that no wait in the node delays a keep-alive.
        let mut node = tokio::spawn(run);
        let ended = tokio::select! {
            ended = &mut node => Some(ended),
            () = keep(&mut self.seat, tenancy, &authority, &ends) => None,
            // With its own connections; only `ends` stops it.
            () = self.roster.follow(&ends) => None,
        };
        let told = stop.is_cancelled();
        // Before the seat is given up: from here on nothing is answered, however long the rest takes.
        authority.end(Ended::Resigned(if told { "it was told to stop".into() } else { "its node has ended".into() }));
        ends.cancel();
        metrics::gauge!("holdfast_pair_holder").set(0.0);
        let ended = match ended {
            Some(ended) => ended,
            None => tokio::time::timeout(END_LIMIT, &mut node).await.map_err(|_| PairError::Hangs)?,
        };
        let given_up = tokio::time::timeout(GIVE_UP_LIMIT, self.seat.give_up(&tenancy)).await;
        if matches!(given_up, Ok(Ok(()))) {
            self.left = None;
        }
        let ended = ended.unwrap_or_else(|e| Err(NodeError::Refused(format!("the node's task: {e}")).into()));
        let failed = match ended {
            Ok(()) => None,
            Err(error) => Some(of_pair(error)),
        };
        let served = !matches!(failed, Some(Ok(_)));
        if !served && let Err(error) = std::fs::remove_dir_all(self.tenure_dir(id)) {
            tracing::warn!(%error, "the files of a tenure that never served could not be removed");
        }
        self.after(failed, told)
    }

    /// Deletes the files of earlier tenures: nothing reads them (PAIR-P2), and a disk may have room for only one
    /// tenure. Data that was answered but not flushed is lost with them.
    fn forget_earlier(&self) {
        let tenures = self.config.data_dir.join(TENURES);
        let entries = match std::fs::read_dir(&tenures) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return,
            Err(error) => {
                let dir = tenures.display();
                return tracing::warn!(%dir, %error, "the files of earlier tenures could not be listed: they stay on the disk");
            }
        };
        for entry in entries.flatten() {
            if let Err(error) = std::fs::remove_dir_all(entry.path()) {
                tracing::warn!(dir = %entry.path().display(), %error, "the files of an earlier tenure could not be removed");
            }
        }
    }

    /// `failed`: the error that ended the tenure, one of the pair or another one.
    fn after(&mut self, failed: Option<Result<PairError, RunError>>, told: bool) -> Result<After, RunError> {
        let counts = matches!(&failed, Some(Ok(error)) if !matches!(error, PairError::Over(_)));
        self.failures = if counts { self.failures.saturating_add(1) } else { 0 };
        let pause = self.ttl.saturating_mul(1 << self.failures.saturating_sub(1).min(16)).min(PAUSE_MAX);
        match failed {
            _ if told => Ok(After::Stopped),
            None => Ok(After::Again(Duration::ZERO)),
            Some(Ok(error @ PairError::Over(_))) => {
                tracing::warn!(%error, "the tenure failed: trying for the pair's seat again");
                Ok(After::Again(Duration::ZERO))
            }
            // The other gateway may do better. If it is gone, this one tries again.
            Some(Ok(error)) => {
                tracing::error!(%error, ?pause, "the pair's seat is given up");
                Ok(After::Again(pause))
            }
            Some(Err(error)) => Err(error),
        }
    }

    fn tenure_dir(&self, id: TenureId) -> PathBuf {
        self.config.data_dir.join(TENURES).join(holdfast_api::hex128(id.cluster()))
    }
}

/// Evidence that this revision had a tenure before: its files. A folder that cannot be looked at may have some.
fn used_before(tenure: &Path) -> Option<String> {
    match tenure.try_exists() {
        Ok(true) => Some(format!("and {} is there", tenure.display())),
        Ok(false) => None,
        Err(error) => Some(format!("or {} cannot be looked at: {error}", tenure.display())),
    }
}

#[cfg(test)]
mod tests;
