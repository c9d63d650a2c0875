//! Maintains the pins of a set, at its leader: compares them with the clones in group 0 (SET-S14, ADR 0028).
//!
//! A pin is released if no set has it and none ever will. No timeout is involved, and creations in progress need not be
//! known: group 0 assigns each number once, in order.
//!
//! Also makes a clone's first root, which has no entries of its own.

use crate::cluster::Cluster;
use crate::leader_task::{self, Failed, LeaderTask, Pauses};
use crate::server::{SetError, SetServer};
use futures_util::future::BoxFuture;
use holdfast_control::set::{Pin, PinStanding, SetCommand, Snapshot, SnapshotId};
use holdfast_types::{LogId, RequestId, SetId, Term};
use holdfast_volume::map::{Base, Root};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Time between two comparisons.
const TURN: Duration = Duration::from_secs(2);
/// Pause after a command that was refused or has an unknown outcome.
const PAUSE: Duration = Duration::from_secs(10);

/// Runs until stopped.
pub fn run(server: Arc<SetServer>, cluster: Arc<Cluster>, stop: CancellationToken) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        let pins = Pins { server: server.clone(), cluster };
        leader_task::run(server, pins, Pauses::fixed(TURN, PAUSE), stop).await;
    })
}

struct Pins {
    server: Arc<SetServer>,
    cluster: Arc<Cluster>,
}

impl LeaderTask for Pins {
    async fn turn(&mut self, _: Term) -> Result<(), Failed> {
        turn(&self.server, &self.cluster).await.map_err(|e| {
            tracing::warn!(set = %self.server.name, error = %e, "pins could not be compared with the clones; will retry");
            Failed
        })
    }
}

/// The first root of a clone of `found`, which its set `origin` has pinned.
pub fn first_root(origin: SetId, pin: &Pin, found: &Snapshot) -> Root {
    let sizes = found.volumes.iter().map(|(id, volume)| (*id, volume.size));
    Root::over(LogId::default(), Base::new(origin, pin.root, pin.upto, sizes))
}

async fn turn(server: &SetServer, cluster: &Cluster) -> Result<(), SetError> {
    let pins: Vec<(RequestId, Pin)> =
        server.host.with(|m| m.state().pins().map(|(request, pin)| (request, pin.clone())).collect());
    if pins.is_empty() {
        return Ok(());
    }
    let state = cluster.state();
    for (request, pin) in pins {
        let clone = pin.clone;
        match pin.standing(&state, server.id, request) {
            PinStanding::Needed => continue,
            PinStanding::Confirm => {
                // The snapshot is not looked up, because the pin exists.
                let snapshot = SnapshotId { name: pin.snapshot, made_by: RequestId(0) };
                server.command("a clone that is there again", &SetCommand::Pin { clone, snapshot, request }).await?;
                tracing::info!(set = %server.name, %clone, "a clone of an earlier life exists again");
            }
            PinStanding::Over => {
                server.command("the end of a clone's pin", &SetCommand::Unpin { clone, request }).await?;
                tracing::info!(set = %server.name, %clone, root = %pin.root.object, "no clone needs this root any more");
            }
        }
        server.head.wake();
    }
    Ok(())
}
