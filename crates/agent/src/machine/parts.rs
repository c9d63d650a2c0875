//! Parts of the machine's state.

use super::{DatabaseView, LeaseView};
use holdfast_types::MonoTime;
use std::collections::VecDeque;
use std::time::Duration;

/// What the gateways said about the lease.
#[derive(Debug, Default)]
pub(super) struct ClusterSeen {
    pub lease: Option<(MonoTime, LeaseView)>,
    /// The last owner other than us, and when it was last seen alive.
    pub other: Option<String>,
    pub other_alive: Option<MonoTime>,
    pub free_since: Option<MonoTime>,
}

/// What limits automatic takeovers (AGENT-A8).
#[derive(Debug)]
pub(super) struct TakeoverLimits {
    pub not_before: MonoTime,
    pub not_before_why: String,
    pub backoff: Duration,
    /// When a takeover of our own started PostgreSQL, within the last hour.
    pub within_hour: VecDeque<MonoTime>,
    /// The takeover under way is added to them once it starts PostgreSQL.
    pub counts: bool,
}

impl TakeoverLimits {
    pub(super) fn new(now: MonoTime, within_hour: Vec<MonoTime>) -> Self {
        Self {
            not_before: now,
            not_before_why: String::new(),
            backoff: Duration::ZERO,
            within_hour: within_hour.into(),
            counts: false,
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

/// What may exist on this host. Each is set before the action that makes it, and cleared once its opposite has succeeded.
#[derive(Debug, Default)]
pub(super) struct Present {
    pub attached: bool,
    pub mounted: bool,
    pub running: bool,
}
