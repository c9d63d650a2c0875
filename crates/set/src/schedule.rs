//! Carries out a set's snapshot schedule, at its leader. What is due and what goes is `control::set`'s to say; this is its clock and its hands.
//!
//! Two leaders do not take one twice: a command counts only in the term that it was proposed in, and what an earlier leader took is in the
//! state that a later one has applied. Where an outcome stays unknown, the next turn looks at the state again.

use crate::leader_task::{self, Failed, LeaderTask, Pauses};
use crate::random::random_u128;
use crate::server::{SetError, SetServer};
use crate::wall_clock::unix_ms;
use holdfast_control::set::{SetCommand, Taken, name_at, taken};
use holdfast_types::{RequestId, Term};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Between two looks at the clock.
const TURN: Duration = Duration::from_secs(1);
/// After a command that was refused or whose outcome is unknown.
const PAUSE: Duration = Duration::from_secs(10);
/// Snapshots that one turn lets go at most: each is an entry.
const EXPIRED_PER_TURN: usize = 8;

/// Runs until told to stop.
pub async fn run(server: Arc<SetServer>, stop: CancellationToken) {
    leader_task::run(server.clone(), Scheduler { server }, Pauses::fixed(TURN, PAUSE), stop).await;
}

struct Scheduler {
    server: Arc<SetServer>,
}

impl LeaderTask for Scheduler {
    async fn turn(&mut self, _: Term) -> Result<(), Failed> {
        turn(&self.server, unix_ms()).await.map_err(|e| {
            let set = self.server.name.to_string();
            tracing::warn!(set, error = %e, "the snapshot schedule could not be followed; tried again");
            metrics::counter!("holdfast_schedule_failures_total", "set" => set).increment(1);
            Failed
        })
    }
}

async fn turn(server: &SetServer, now: u64) -> Result<(), SetError> {
    let (schedule, all) = server.host.with(|m| (m.state().schedule.clone(), taken(m.state())));
    if schedule.rules.is_empty() {
        return Ok(());
    }
    // What is being gone back to may be the next to end: nothing of it is touched meanwhile.
    if server.is_held_off() {
        return Ok(());
    }
    let gone: Vec<Taken> = schedule.expired(&all, now).into_iter().take(EXPIRED_PER_TURN).cloned().collect();
    for Taken { name, made_by, .. } in gone {
        let command = SetCommand::SnapshotDelete { name: name.clone(), made_by };
        server.command("a scheduled snapshot's end", &command).await?;
        tracing::info!(set = %server.name, snapshot = %name, "no rule of the schedule keeps this snapshot any more: deleted");
    }
    if schedule.is_due(&all, now)
        && let Some(name) = name_at(now)
    {
        let request = RequestId(random_u128());
        let command = SetCommand::SnapshotCreate { name: name.clone(), request, at_unix_ms: now, scheduled: true };
        server.command("a scheduled snapshot", &command).await?;
        tracing::info!(set = %server.name, snapshot = %name, "scheduled snapshot asked for");
        metrics::counter!("holdfast_scheduled_snapshots_total", "set" => server.name.to_string()).increment(1);
    }
    Ok(())
}
