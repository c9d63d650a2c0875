//! The times of each set follow the round trips between its voters (ADR 0058). Looks at the sets that this gateway
//! leads, and proposes other times; `control::tuning` decides.

use super::{Adopted, Node};
use crate::config::GatewayConfig;
use holdfast_control::tuning::{Bounds, Tuner, View};
use holdfast_raft::boot_now;
use holdfast_set::server::SetServer;
use holdfast_types::sync::RwLockExt;
use holdfast_types::{MemberId, SetId, Term};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Pause between two looks at all sets.
const TURN: Duration = Duration::from_secs(1);

/// What this gateway remembers of one leadership.
struct Led {
    term: Term,
    tuner: Tuner,
    /// The proposal under way.
    job: Option<JoinHandle<()>>,
}

impl Led {
    fn is_at_work(&self) -> bool {
        self.job.as_ref().is_some_and(|job| !job.is_finished())
    }
}

fn bounds(config: &GatewayConfig) -> Bounds {
    Bounds { floor_ms: config.rtt_floor_ms, ceiling_ms: config.rtt_ms, calm: Duration::from_millis(config.rtt_calm_ms) }
}

/// Chooses the times of the sets that this gateway leads.
pub(super) async fn run(node: Arc<Node>, adopted: Adopted) {
    // A pair has no votes.
    if node.pair().is_some() {
        return;
    }
    let bounds = bounds(&node.config);
    let mut all: BTreeMap<SetId, Led> = BTreeMap::new();
    let mut tick = tokio::time::interval(TURN);
    tick.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = node.stop.cancelled() => return,
            _ = tick.tick() => {}
        }
        let trips = adopted.raft.round_trips();
        let sets: Vec<Arc<SetServer>> = node.sets.reading().values().cloned().collect();
        let mut still = BTreeMap::new();
        for set in sets {
            let Some(term) = set.leads() else { continue };
            let before = all.remove(&set.id).filter(|led| led.term == term);
            let mut led = before.unwrap_or_else(|| Led { term, tuner: Tuner::default(), job: None });
            if !led.is_at_work() {
                let view = look(adopted.member, &set, &trips);
                let chosen = led.tuner.look(boot_now(), &view, &bounds);
                led.job = chosen.map(|rtt_ms| tokio::spawn(propose(set.clone(), term, view, rtt_ms)));
            }
            still.insert(set.id, led);
        }
        // What is left was led here and is not any more.
        all = still;
    }
}

fn look(me: MemberId, set: &SetServer, trips: &BTreeMap<MemberId, Duration>) -> View {
    let status = set.group.status();
    let others = status.members.iter().filter(|seen| seen.voter && seen.member != me);
    View {
        present_ms: set.rtt_ms(),
        trips: others.map(|seen| trips.get(&seen.member).copied()).collect(),
        changing: set.group.is_changing() || status.next.is_some(),
    }
}

async fn propose(set: Arc<SetServer>, term: Term, view: View, rtt_ms: u32) {
    match set.retime(term, rtt_ms).await {
        Ok(()) => tracing::info!(
            set = %set.name, rtt_ms, before = ?view.present_ms, trips = ?view.trips,
            "the set's times follow the round trips between its voters"
        ),
        Err(error) => tracing::debug!(set = %set.name, rtt_ms, %error, "the set's times were not changed yet"),
    }
}
