//! The loop of a background task that only a set's leader runs: collection, repair, store migration, schedule, pins of
//! clones, the mirror in an etcd.
//!
//! ```text
//!   pause ──▶ this gateway leads, has applied an entry of its term, and is not fenced?
//!     ▲          │ no: idle()          │ yes: turn(term)
//!     │          ▼                     ├─ done ────▶ the usual pause
//!     └──────────┴─────────────────────┴─ failed ──▶ the pause after a failure, doubled each time up to its bound
//! ```
//! Owns: when a task runs. Does not own: its work; a task logs its own failures.

use super::server::SetServer;
use holdfast_types::Term;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Pauses of a task between two turns.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Pauses {
    /// After a successful turn, and while this gateway does not lead.
    pub usual: Duration,
    /// After the first failure.
    pub failed: Duration,
    /// After many failures.
    pub failed_max: Duration,
}

impl Pauses {
    /// The same pause after each failure.
    pub(crate) const fn fixed(usual: Duration, failed: Duration) -> Self {
        Self { usual, failed, failed_max: failed }
    }

    /// Twice the usual pause after the first failure, doubled up to `failed_max`.
    pub(crate) const fn doubling(usual: Duration, failed_max: Duration) -> Self {
        Self { usual, failed: usual.saturating_mul(2), failed_max }
    }
}

/// The turn failed, and the next one comes later. The task has logged the reason.
pub(crate) struct Failed;

/// Repeated work of the leader. Both futures may be dropped at any await when the set stops at this gateway.
pub(crate) trait LeaderTask: Send {
    /// One turn as the leader of `term`.
    fn turn(&mut self, term: Term) -> impl Future<Output = Result<(), Failed>> + Send;

    /// This gateway does not lead: facts learned as the leader may be outdated at the next leadership.
    fn idle(&mut self) -> impl Future<Output = ()> + Send {
        async {}
    }
}

/// Runs the turns of `task` until `stop`.
pub(crate) async fn run(server: Arc<SetServer>, mut task: impl LeaderTask, pauses: Pauses, stop: CancellationToken) {
    tokio::select! {
        () = stop.cancelled() => {}
        () = turns(&server, &mut task, pauses) => {}
    }
}

/// Like `run`, without an end; the caller drops it.
pub(crate) async fn turns(server: &SetServer, task: &mut impl LeaderTask, pauses: Pauses) {
    let Pauses { usual, failed, failed_max } = pauses;
    let (mut pause, mut after_failure) = (usual, failed);
    loop {
        tokio::time::sleep(pause).await;
        let turn = match server.leads() {
            Some(term) => task.turn(term).await,
            None => {
                task.idle().await;
                Ok(())
            }
        };
        (pause, after_failure) = match turn {
            Ok(()) => (usual, failed),
            Err(Failed) => (after_failure, (after_failure * 2).min(failed_max)),
        };
    }
}
