//! openraft's type configuration and settings.

use crate::clock::PromiseRuntime;
use crate::snapshot_pieces::snapshot_time;
use crate::stored::Ticket;
use bytes::Bytes;
use openraft::impls::leader_id_std;
use openraft::raft::responder::Responder;
use openraft::{Config, OptionalSend, SnapshotPolicy};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Input of a state machine: opaque bytes. Never empty, never beginning with the membership mark (see `wire`). That of
/// the last entry of a peer's append carries a ticket as well, which is no part of the value (STORED-T1).
pub struct Payload(pub(crate) Bytes, Option<Ticket>);

impl Payload {
    /// Without a ticket.
    pub(crate) fn new(bytes: Bytes) -> Self {
        Self(bytes, None)
    }

    /// The place of its ticket.
    pub(crate) fn ticket(&mut self) -> &mut Option<Ticket> {
        &mut self.1
    }
}

/// The copy has no ticket (STORED-T1).
impl Clone for Payload {
    fn clone(&self) -> Self {
        Self::new(self.0.clone())
    }
}

impl PartialEq for Payload {
    fn eq(&self, other: &Self) -> bool {
        self.0 == other.0
    }
}

impl Eq for Payload {}

impl fmt::Debug for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Payload({} bytes)", self.0.len())
    }
}

impl fmt::Display for Payload {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, f)
    }
}

/// Answer of a state machine: opaque bytes.
#[derive(Clone, Debug, PartialEq, Eq, Default)]
pub struct Answer(pub(crate) Bytes);

/// Tells the proposer of an entry its outcome, in the task of openraft that knows it: usually the one that has just
/// applied the entry. A channel would have to wake one more task for it. openraft drops it untold when the group ends.
pub struct ToProposer<T>(Box<dyn FnOnce(T) + Send>);

impl<T> ToProposer<T> {
    pub(crate) fn new(told: impl FnOnce(T) + Send + 'static) -> Self {
        Self(Box::new(told))
    }
}

impl<T: OptionalSend + 'static> Responder<TypeConfig, T> for ToProposer<T> {
    fn on_complete(self, result: T) {
        (self.0)(result);
    }
}

/// The types that our groups use. `leader_id_std`: at most one leader per term, so a term names its leader and entries
/// need no node id.
///
/// Written out, because `declare_raft_types!` takes no type for `Responder`.
#[derive(Debug, Clone, Copy, Default, Eq, PartialEq, Ord, PartialOrd)]
pub struct TypeConfig {}

impl openraft::RaftTypeConfig for TypeConfig {
    type D = Payload;
    type R = Answer;
    type NodeId = u64;
    type Node = openraft::impls::BasicNode;
    type Term = u64;
    type LeaderId = leader_id_std::LeaderId<u64, u64>;
    type Vote = openraft::impls::Vote<Self::LeaderId>;
    type Payload = openraft::EntryPayload<Self::D, Self::NodeId, Self::Node>;
    type Entry = openraft::Entry<<Self::LeaderId as openraft::vote::RaftLeaderId>::Committed, Self::Payload>;
    type AsyncRuntime = PromiseRuntime;
    type Responder<T>
        = ToProposer<T>
    where
        T: OptionalSend + 'static;
    type Batch<T>
        = openraft::impls::InlineBatch<T>
    where
        T: OptionalSend + 'static;
    type ErrorSource = openraft::impls::BoxedErrorSource;
}

/// Raft's times. `control::serve::Timing` derives them from one round-trip time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RaftTiming {
    /// Between two heartbeats of a leader.
    pub heartbeat: Duration,
    /// Shortest election timeout.
    pub election_min: Duration,
    /// Longest election timeout; also the leader lease that followers grant.
    pub election_max: Duration,
    /// How long after sending a heartbeat that a quorum acknowledged a leader may read (R3): `election_max` minus the
    /// allowed clock drift.
    pub read_lease: Duration,
    /// After a process start: no vote, no pre-vote, no candidacy for this long, because earlier promises are forgotten.
    pub embargo: Duration,
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX)
}

/// Maximum number of entries in one append to a peer; the log reader limits the bytes.
const APPEND_ENTRIES_MAX: u64 = 256;

/// openraft's settings for one group.
///
/// # Errors
/// The times contradict each other; the text is openraft's.
pub(crate) fn openraft_config(
    name: String,
    timing: RaftTiming,
    snapshot_every: Option<u64>,
) -> Result<Arc<Config>, String> {
    let config = Config {
        cluster_name: name,
        heartbeat_interval: millis(timing.heartbeat),
        election_timeout_min: millis(timing.election_min),
        election_timeout_max: millis(timing.election_max),
        // For the smallest. The time of a larger one is known where it is sent (PIECES-S3).
        install_snapshot_timeout: millis(snapshot_time(timing.election_max, 0)),
        max_payload_entries: APPEND_ENTRIES_MAX,
        max_append_entries: Some(1024),
        // Data groups: a checkpoint decides what a snapshot covers, not a number of entries.
        snapshot_policy: snapshot_every.map_or(SnapshotPolicy::Never, SnapshotPolicy::LogsSinceLast),
        max_in_snapshot_log_to_keep: 0,
        // Lag alone never causes a snapshot: only a purge of needed entries does.
        replication_lag_threshold: u64::MAX,
        // The embargo (node.rs) turns it on.
        enable_elect: false,
        enable_pre_vote: Some(true),
        // A leader that restarts has forgotten what it served: it must be elected again, in a new term.
        enable_leader_restore: Some(false),
        // A drain moves leadership first.
        removed_leader_step_down: openraft::StepDownPolicy::Never,
        quorum_loss_probe_interval: Some(millis(timing.election_max).saturating_mul(3)),
        backoff: "20ms 50ms 100ms ...500ms".to_string(),
        ..Config::default()
    };
    config.validate().map(Arc::new).map_err(|e| e.to_string())
}
