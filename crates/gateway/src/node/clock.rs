//! The task that checks the clocks of this gateway.

use super::Node;
use holdfast_control::serve::{ClockSuspicion, ClockWatch, Timing};
use holdfast_raft::{boot_reading, monotonic_now};
use holdfast_types::sync::RwLockExt;
use std::sync::Arc;
use std::time::Duration;

/// The shortest times of all sets here.
fn shortest(node: &Node) -> Timing {
    let of_sets = node.sets.reading().values().map(|set| set.shortest_timing()).min_by_key(Timing::election_max);
    of_sets.unwrap_or(node.timing)
}

/// Checks the clocks. A suspicious clock voids every read lease until a quorum has answered again.
pub(super) async fn run(node: Arc<Node>) {
    let mut watch = ClockWatch::with_timing(&node.timing);
    let mut went_back = boot_reading().went_back;
    let mut pause = Duration::ZERO;
    while node.passes(pause).await {
        // R3: the margins of the set with the shortest times, as they are now.
        let shortest = shortest(&node);
        watch.set_timing(&shortest, pause);
        pause = shortest.clock_tick();
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
