//! Carries out a set's snapshot schedule, at its leader. `control::set` decides what is due and what expires; this task
//! watches the clock and sends the commands.
//!
//! Two leaders never take the same snapshot twice: a command counts only in the term in which it was proposed, and a
//! later leader has applied what an earlier one took. After an unknown outcome, the next turn checks the state again.

use crate::leader_task::{self, Failed, LeaderTask, Pauses};
use crate::random::random_u128;
use crate::server::{SetError, SetServer};
use futures_util::future::BoxFuture;
use holdfast_control::set::{SetCommand, Taken, name_at, taken};
use holdfast_host::unix_ms;
use holdfast_types::{RequestId, Term};
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Time between two checks of the clock.
const TURN: Duration = Duration::from_secs(1);
/// Pause after a command that was refused or has an unknown outcome.
const PAUSE: Duration = Duration::from_secs(10);
/// Maximum number of snapshots that one turn deletes: each is an entry.
const EXPIRED_PER_TURN: usize = 8;

/// Runs until stopped.
pub fn run(server: Arc<SetServer>, stop: CancellationToken) -> BoxFuture<'static, ()> {
    Box::pin(async move {
        leader_task::run(server.clone(), Scheduler { server }, Pauses::fixed(TURN, PAUSE), stop).await;
    })
}

struct Scheduler {
    server: Arc<SetServer>,
}

impl LeaderTask for Scheduler {
    async fn turn(&mut self, _: Term) -> Result<(), Failed> {
        turn(&self.server, unix_ms()).await.map_err(|e| {
            let set = self.server.name.to_string();
            tracing::warn!(set, error = %e, "the snapshot schedule could not be carried out; will retry");
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
    // A rollback's target may be the next to expire: nothing is deleted meanwhile.
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
        tracing::info!(set = %server.name, snapshot = %name, "scheduled snapshot requested");
        metrics::counter!("holdfast_scheduled_snapshots_total", "set" => server.name.to_string()).increment(1);
    }
    Ok(())
}
