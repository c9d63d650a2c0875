//! Looks after the pins of a set, at its leader: compares them with what group 0 says of the clones (S14, ADR 0028).
//!
//! A pin is let go where no set has it, and none ever will. Nothing is decided by time, and nothing need be known of a creation under way: group 0
//! gives each number once, in order.
//!
//! And what a clone begins with: a root of its own that says nothing itself.

use crate::cluster::Cluster;
use crate::leader_task::{self, Failed, LeaderTask, Pauses};
use crate::server::{SetError, SetServer};
use holdfast_control::set::{Pin, PinStanding, SetCommand, Snapshot, SnapshotId};
use holdfast_types::{LogId, RequestId, SetId, Term};
use holdfast_volume::map::{Base, Root};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Between two comparisons.
const TURN: Duration = Duration::from_secs(2);
/// After a command that was refused or whose outcome is unknown.
const PAUSE: Duration = Duration::from_secs(10);

/// Runs until told to stop.
pub async fn run(server: Arc<SetServer>, cluster: Arc<Cluster>, stop: CancellationToken) {
    let pins = Pins { server: server.clone(), cluster };
    leader_task::run(server, pins, Pauses::fixed(TURN, PAUSE), stop).await;
}

struct Pins {
    server: Arc<SetServer>,
    cluster: Arc<Cluster>,
}

impl LeaderTask for Pins {
    async fn turn(&mut self, _: Term) -> Result<(), Failed> {
        turn(&self.server, &self.cluster).await.map_err(|e| {
            tracing::warn!(set = %self.server.name, error = %e, "pins of clones were not compared with the clones; tried again");
            Failed
        })
    }
}

/// The root that a clone of `found`, which its set `origin` has pinned, begins with.
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
                // The pin is there: the snapshot is not asked for any more.
                let snapshot = SnapshotId { name: pin.snapshot, made_by: RequestId(0) };
                server.command("a clone that is there again", &SetCommand::Pin { clone, snapshot, request }).await?;
                tracing::info!(set = %server.name, %clone, "the clone of an earlier life is there again");
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
