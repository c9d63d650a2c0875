//! Mirrors a set's lease holder to an etcd, at the set's leader (ADR 0027). `holdfast_etcd` decides which record is
//! newer; this task polls and writes.
//!
//! Nothing waits for it: it reads the replicated state afterwards, like any other reader.

use crate::cluster::Cluster;
use crate::leader_task::{self, Failed, LeaderTask, Pauses};
use crate::server::SetServer;
use futures_util::future::BoxFuture;
use holdfast_etcd::{Grant, Held, Mirror, Shown};
use holdfast_types::Term;
use holdfast_volume::head::SetLife;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio_util::sync::CancellationToken;

/// Time between two checks of the lease: a comparison, no call.
const TURN: Duration = Duration::from_millis(200);
/// Pause after a failure, doubled up to [`PAUSE_MAX`]: an etcd that recovers is updated soon.
const PAUSE_MIN: Duration = Duration::from_millis(500);
const PAUSE_MAX: Duration = Duration::from_secs(5);

/// The mirror of one set's grants in the etcd.
pub struct EtcdMirror {
    server: Arc<SetServer>,
    cluster: Arc<Cluster>,
    life: SetLife,
    mirror: Mirror,
    /// The grant that the etcd is known to have. Dropped with the leadership: another gateway may have written since.
    last: Option<Grant>,
    /// Time of the first failure in a row.
    failing: Option<Instant>,
}

impl LeaderTask for EtcdMirror {
    async fn turn(&mut self, _: Term) -> Result<(), Failed> {
        if self.tell().await { Ok(()) } else { Err(Failed) }
    }

    async fn idle(&mut self) {
        self.last = None;
        self.failing = None;
    }
}

impl EtcdMirror {
    /// Creates the mirror of `server`'s set in its life `life`.
    pub fn new(server: Arc<SetServer>, cluster: Arc<Cluster>, life: SetLife, mirror: Mirror) -> Self {
        Self { server, cluster, life, mirror, last: None, failing: None }
    }

    /// Runs until stopped.
    pub fn run(self, stop: CancellationToken) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let pauses = Pauses { usual: TURN, failed: PAUSE_MIN, failed_max: PAUSE_MAX };
            leader_task::run(self.server.clone(), self, pauses, stop).await;
        })
    }

    /// Writes the current grant; returns whether the etcd is up to date.
    async fn tell(&mut self) -> bool {
        let grant = self.grant();
        if self.last.as_ref().is_some_and(|last| last.says_the_same(&grant)) {
            return true;
        }
        let set = self.server.name.to_string();
        match self.mirror.show(&grant).await {
            Ok(Shown::Newer) => {
                self.last = None;
                // Another gateway leads by now and has written more; this one will learn of it soon.
                tracing::debug!(set, "the etcd has a newer grant");
                metrics::counter!("holdfast_etcd_newer_total", "set" => set).increment(1);
                false
            }
            Ok(shown) => {
                if let Some(since) = self.failing.take() {
                    tracing::info!(set, silent = ?since.elapsed(), "the etcd accepts grants again");
                }
                if shown == Shown::Written {
                    metrics::counter!("holdfast_etcd_grants_mirrored_total", "set" => set).increment(1);
                }
                self.last = Some(grant);
                true
            }
            Err(error) => {
                // The write may have succeeded (R12), so the etcd's content is unknown.
                self.last = None;
                metrics::counter!("holdfast_etcd_failures_total", "set" => set.clone()).increment(1);
                if self.failing.is_none() {
                    self.failing = Some(Instant::now());
                    tracing::warn!(set, %error, "could not write a grant to the etcd; retrying; nothing waits for it");
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
