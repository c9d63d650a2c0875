//! The task that checks the clocks of this gateway.

use super::Node;
use holdfast_control::serve::{ClockSuspicion, ClockWatch, RTT_MIN, Timing};
use holdfast_raft::{boot_reading, monotonic_now};
use holdfast_types::sync::RwLockExt;
use std::sync::Arc;

/// Checks the clocks. A suspicious clock voids every read lease until a quorum has answered again.
pub(super) async fn run(node: Arc<Node>) {
    // R3: a set may have shorter times than this gateway's settings say, and so a smaller drift margin.
    let shortest = Timing::from_rtt(RTT_MIN);
    let mut watch = ClockWatch::with_timing(&shortest);
    let mut went_back = boot_reading().went_back;
    let mut tick = tokio::time::interval(shortest.clock_tick());
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = node.stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        let reading = boot_reading();
        if reading.went_back != went_back {
            went_back = reading.went_back;
            // The sets' gates have seen it themselves, with the next reading after it.
            tracing::warn!(
                "CLOCK_BOOTTIME went back on this machine, as after a move or a restore of a virtual machine: read leases \
                 are void until a quorum answers again"
            );
            metrics::counter!("holdfast_clock_suspicions_total").increment(1);
        }
        if let Some(suspicion) = watch.sample(reading.now, monotonic_now()) {
            // An operator who asks why leadership moved must find this line.
            match suspicion {
                ClockSuspicion::Gap { found, .. } if found >= shortest.election_min() => tracing::warn!(
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
