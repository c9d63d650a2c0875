//! Parts of the machine's state.

use super::types::{AttachView, DatabaseView, Event, Job, LeaseView, Phases, Stop};
use holdfast_types::MonoTime;
use std::collections::VecDeque;
use std::time::Duration;

/// When things happened.
#[derive(Debug)]
pub(super) struct Times {
    /// Begin of the state.
    pub since: MonoTime,
    pub last_step: MonoTime,
    /// Time in this state without an answer from the device: it does not count against PostgreSQL.
    pub stalled: Duration,
}

/// What operators ordered.
#[derive(Debug, Default)]
pub(super) struct Orders {
    pub paused: bool,
    /// The pause has prevented a start of PostgreSQL: its next start is not counted as a restart.
    pub held: bool,
    pub ended_by_shutdown: bool,
}

/// What an operator has to know, as text; "" for nothing.
#[derive(Debug, Default)]
pub(super) struct Obstacles {
    /// Why this host could not take over at all.
    pub unable: String,
    /// Files of a PostgreSQL that runs that do not lie on the set.
    pub off_set: String,
    /// Why the last planned move was given up after PostgreSQL was stopped for it.
    pub switchover_refused: String,
}

/// The lease of this host.
#[derive(Debug)]
pub(super) struct OwnLease {
    /// Last report of the attach process, which holds the lease.
    pub attach: Option<AttachView>,
    /// When it was granted, or taken over from an earlier agent.
    pub leased_at: MonoTime,
    /// Epoch of the last grant, kept after its end for the history.
    pub granted: u64,
    /// How long it lasts from each renewal.
    pub ttl: Duration,
    /// Since when it has been renewed in time although its device does not serve (AGENT-A10).
    pub unserved_since: Option<MonoTime>,
}

/// The present primary's promise to give the lease to us.
#[derive(Clone, Debug)]
pub(super) struct Claim {
    pub from: String,
    pub at: MonoTime,
    pub until: MonoTime,
}

/// What the gateways and the other hosts said about the lease.
#[derive(Debug, Default)]
pub(super) struct ClusterSeen {
    pub lease: Option<(MonoTime, LeaseView)>,
    /// The last owner other than us, and when it was last seen alive.
    pub other: Option<String>,
    pub other_alive: Option<MonoTime>,
    pub free_since: Option<MonoTime>,
    pub claim: Option<Claim>,
}

/// What limits automatic takeovers (AGENT-A8), and restarts in place.
#[derive(Debug)]
pub(super) struct TakeoverLimits {
    pub not_before: MonoTime,
    pub not_before_why: String,
    pub backoff: Duration,
    /// When a takeover of our own started PostgreSQL, within the last hour.
    pub within_hour: VecDeque<MonoTime>,
    /// The takeover under way is added to them once it starts PostgreSQL.
    pub counts: bool,
    /// Restarts in place within the window.
    pub restarts: VecDeque<MonoTime>,
}

impl TakeoverLimits {
    pub(super) fn new(now: MonoTime, within_hour: Vec<MonoTime>) -> Self {
        Self {
            not_before: now,
            not_before_why: String::new(),
            backoff: Duration::ZERO,
            within_hour: within_hour.into(),
            counts: false,
            restarts: VecDeque::new(),
        }
    }
}

/// What probes of PostgreSQL showed.
#[derive(Debug)]
pub(super) struct Probes {
    pub database: DatabaseView,
    pub silent_since: Option<MonoTime>,
    /// Busy or ending, since when with its device well, and whether that was logged.
    pub busy_since: Option<(DatabaseView, MonoTime, bool)>,
}

impl Default for Probes {
    fn default() -> Self {
        Self { database: DatabaseView::Gone, silent_since: None, busy_since: None }
    }
}

/// What may exist on this host. Each is set before the action that makes it, and cleared once its opposite has
/// succeeded.
#[derive(Debug, Default)]
pub(super) struct Present {
    /// The first look has shown what an earlier agent left.
    pub looked: bool,
    pub attached: bool,
    pub mounted: bool,
    pub running: bool,
}

/// Progress on the way to primary.
#[derive(Clone, Debug)]
pub(super) struct Way {
    /// The event that the history gets on arrival.
    pub event: Event,
    /// The reason.
    pub reason: String,
    /// The previous owner of the lease.
    pub other: Option<String>,
    /// The previous owner did not export the pool in good order.
    pub force_import: bool,
    /// Duration of each phase so far.
    pub phases: Phases,
    /// End of the last phase.
    pub mark: MonoTime,
}

impl Way {
    /// A takeover that begins at `now`; `sign`: when the lease was last seen in use.
    pub fn new(
        event: Event,
        reason: String,
        other: Option<String>,
        force_import: bool,
        sign: MonoTime,
        now: MonoTime,
    ) -> Self {
        let detect = (sign < now).then(|| millis(now.saturating_since(sign)));
        let phases = Phases { detect_ms: detect, ..Phases::default() };
        Self { event, reason, other, force_import, phases, mark: now }
    }
}

/// Whole milliseconds.
pub(super) fn millis(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// Next step after everything is released.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Then {
    /// Standby, and no campaign for a while.
    Standby {
        /// Length of that time.
        wait: Duration,
        /// Why.
        why: String,
    },
    /// Standby as well, after a planned move: another host is to take over.
    HandedOver {
        /// Which.
        to: String,
        /// For how long it may.
        wait: Duration,
    },
    /// The agent ends.
    End,
}

/// Steps on the way to standby, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Checkpoint,
    Stop,
    /// Users of the pool are ended, if they have been asked to leave often enough.
    EndUsers,
    Export,
    Detach,
    /// Waits until this time, then the next round begins.
    Rest(MonoTime),
}

/// Present step on the way to standby.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Leaving {
    pub step: Step,
    /// The job that this step waits for.
    pub job: Option<Job>,
    pub hard: bool,
    /// How PostgreSQL is stopped, in good order.
    pub how: Stop,
    pub reason: String,
    /// What comes afterwards.
    pub then: Then,
    pub round: u32,
    /// The pauses between rounds are those after so many rounds: a pause of the agent makes none longer.
    pub paced_from: u32,
    /// Rounds in which users of the pool were named before they are ended; of those before a pause none counts.
    pub asked: u32,
    pub failed: String,
    /// Number of processes that were ended for it.
    pub ended: usize,
}

impl Leaving {
    /// Clients may still write: the checkpoint before the stop is under way.
    pub fn before_stop(&self) -> bool {
        self.step == Step::Checkpoint
    }

    /// Only attach is left, and it has been ordered to end.
    pub fn gives_back(&self) -> bool {
        self.step == Step::Detach && self.job.is_some()
    }
}
