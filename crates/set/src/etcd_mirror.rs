//! Tells an etcd who holds a set, at the set's leader (ADR 0027). Whether what is told is newer than what lies there is `holdfast_etcd`'s to say; this is
//! its clock and its hands.
//!
//! Nobody waits for it: it looks at the replicated state, like any other reader, after the fact.

use crate::cluster::Cluster;
use crate::leader_task::{self, Failed, LeaderTask, Pauses};
use crate::server::SetServer;
use holdfast_etcd::{Grant, Held, Mirror, Shown};
use holdfast_types::Term;
use holdfast_volume::head::SetLife;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Between two looks at the lease: a comparison, no call.
const TURN: Duration = Duration::from_millis(200);
/// After a failure, doubled each time up to [`PAUSE_MAX`]: an etcd that is back is told soon.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// One set's grants on their way to the etcd.
pub struct Told {
    server: Arc<SetServer>,
    cluster: Arc<Cluster>,
    life: SetLife,
    mirror: Mirror,
    /// What the etcd is known to show. Forgotten with the leadership: another gateway may have told it more since.
    last: Option<Grant>,
    /// Since when it does not work.
    failing: Option<Instant>,
}

impl LeaderTask for Told {
    async fn turn(&mut self, _: Term) -> Result<(), Failed> {
        if self.tell().await { Ok(()) } else { Err(Failed) }
    }

    async fn idle(&mut self) {
        self.last = None;
        self.failing = None;
    }
}

impl Told {
    /// Of `server`'s set in its life `life`.
    pub fn new(server: Arc<SetServer>, cluster: Arc<Cluster>, life: SetLife, mirror: Mirror) -> Self {
        Self { server, cluster, life, mirror, last: None, failing: None }
    }

    /// Runs until told to stop.
    pub async fn run(self, stop: CancellationToken) {
        let pauses = Pauses { usual: TURN, failed: PAUSE_MIN, failed_max: PAUSE_MAX };
        leader_task::run(self.server.clone(), self, pauses, stop).await;
    }

    /// Whether there is nothing left to tell.
    async fn tell(&mut self) -> bool {
        let grant = self.grant();
        if self.last.as_ref().is_some_and(|last| last.says_the_same(&grant)) {
            return true;
        }
        let set = self.server.name.to_string();
        match self.mirror.show(&grant).await {
            Ok(Shown::Newer) => {
                self.last = None;
                // Another gateway leads by now and has told more; this one is about to hear of it.
                tracing::debug!(set, "the etcd knows of a newer grant");
                metrics::counter!("holdfast_etcd_newer_total", "set" => set).increment(1);
                false
            }
            Ok(shown) => {
                if let Some(since) = self.failing.take() {
                    tracing::info!(set, silent = ?since.elapsed(), "the etcd is told of grants again");
                }
                if shown == Shown::Written {
                    metrics::counter!("holdfast_etcd_grants_told_total", "set" => set).increment(1);
                }
                self.last = Some(grant);
                true
            }
            Err(error) => {
                // It may have come to pass (R12): what the etcd shows is not known any more.
                self.last = None;
                metrics::counter!("holdfast_etcd_failures_total", "set" => set.clone()).increment(1);
                if self.failing.is_none() {
                    self.failing = Some(Instant::now());
                    tracing::warn!(set, %error, "the etcd could not be told of a grant; trying again, and nothing waits for it");
                }
                false
            }
        }
    }

    fn grant(&self) -> Grant {
        let (lease, applied) = self.server.host.with(|m| (m.state().lease.clone(), m.applied()));
        let held = lease.map(|lease| {
            let gateway = self.cluster.member(lease.gateway);
            Held {
                owner: lease.owner.to_string(),
                epoch: lease.epoch.0,
                gateway: gateway.as_ref().map(|m| m.name.to_string()).unwrap_or_default(),
                nbd: gateway.map(|m| m.nbd_addr).unwrap_or_default(),
                ttl_ms: lease.ttl_ms,
                since_unix_ms: lease.since_unix_ms,
            }
        });
        let index = applied.map_or(0, |id| id.index.0);
        Grant::new(
            self.server.name.to_string(),
            self.server.id.0,
            format!("{:032x}", self.life.cluster),
            held,
            self.life.generation,
            index,
        )
    }
}
