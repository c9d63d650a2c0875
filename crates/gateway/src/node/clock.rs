//! The task that checks the clocks of this gateway.

use super::Node;
use holdfast_control::serve::{ClockSuspicion, ClockWatch};
use holdfast_raft::{boot_now, monotonic_now};
use holdfast_types::sync::RwLockExt;
use std::sync::Arc;

/// Checks the clocks. A suspicious clock voids every read lease until a quorum has answered again.
pub(super) async fn run(node: Arc<Node>) {
    let mut watch = ClockWatch::with_timing(&node.timing);
    let mut tick = tokio::time::interval(node.timing.clock_tick());
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = node.stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        if let Some(suspicion) = watch.sample(boot_now(), monotonic_now()) {
            // An operator who asks why leadership moved must find this line.
            match suspicion {
                ClockSuspicion::Gap { found, .. } if found >= node.timing.election_min() => tracing::warn!(
                    stood_still = ?found,
                    "this process did nothing for longer than an election timeout: it was stopped, got no CPU time, or a task did not yield; \
                     another gateway may lead by now"
                ),
                _ => tracing::debug!(%suspicion, "read leases are void until a quorum answers again"),
            }
            metrics::counter!("holdfast_clock_suspicions_total").increment(1);
            let sets: Vec<_> = node.sets.reading().values().cloned().collect();
            for set in sets {
                set.clock_suspected(suspicion.lost());
            }
        }
    }
}
