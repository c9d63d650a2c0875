//! Errors of a pair's gateway.

use holdfast_api::Refusal;
use holdfast_control::pair::{Ended, NotEnrolled};
use holdfast_etcd::EtcdError;
use holdfast_gateway::RunError;
use holdfast_gateway::node::NodeError;
use holdfast_set::recovery::RecoveryError;
use std::io;
use std::time::Duration;

/// How long a node may take to end once its tenure is over. It answers nobody meanwhile. If it hangs, the process ends.
pub(super) const END_LIMIT: Duration = Duration::from_secs(20);

/// A gateway of a pair cannot continue.
#[derive(Debug, thiserror::Error)]
pub enum PairError {
    /// The settings for the etcd are not valid.
    #[error("[etcd]: {0}")]
    Etcd(#[from] EtcdError),
    /// A file of `[etcd]` cannot be read.
    #[error("{what}: {source}")]
    Io {
        /// The file.
        what: String,
        /// The error.
        #[source]
        source: io::Error,
    },
    /// The node.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The sets cannot be read or taken over.
    #[error("taking the pair's sets over: {0}")]
    Recovery(#[from] RecoveryError),
    /// A step at the start of the fresh node was refused.
    #[error("beginning a tenure: {0}")]
    Refused(Refusal),
    /// The tenure ended before its sets were served.
    #[error("the tenure ended before its sets were served: {0}")]
    Over(Ended),
    /// A head belongs to a later tenure than this one.
    #[error(
        "set {set}: its head in the store is of revision {found} of this pair's seat, expected an earlier one than {ours}: \
         the etcd was restored to an old state, or this gateway stood still since it won the seat"
    )]
    Later {
        /// The set.
        set: String,
        /// The revision in the head.
        found: u64,
        /// The revision of this tenure.
        ours: u64,
    },
    /// The etcd issued the same revision twice.
    #[error(
        "the etcd gave revision {revision} of the pair's seat a second time, {set}: the etcd was restored to an old state. The earlier data of this revision \
         stays separate, since this gateway now asks for the next revision"
    )]
    Repeated {
        /// The evidence.
        set: String,
        /// The revision.
        revision: u64,
    },
    /// The takeover takes too long; the other gateway may do better.
    #[error(
        "the sets are not served within {limit:?} after winning the seat: {last}; the seat is given up for the other gateway"
    )]
    Slow {
        /// The time limit.
        limit: Duration,
        /// What it was waiting for.
        last: String,
    },
    /// The store has sets, and none of them opens: the other gateway may have the right key.
    #[error(
        "none of the {sets} sets in pair.stores opens here: {first}; the seat is given up for the other gateway. Is [key] the same at both? \
         Sets of another cluster need a store of their own"
    )]
    Unopened {
        /// How many.
        sets: usize,
        /// Why the first one does not open.
        first: String,
    },
    /// The roster does not allow this gateway to have the seat (PAIR-P6).
    #[error("{why} (key {key:?} of the etcd)")]
    NotEnrolled {
        /// The roster's key.
        key: String,
        /// The reason.
        why: NotEnrolled,
    },
    /// The node of an ended tenure does not end.
    #[error("the node of an ended tenure does not stop within {END_LIMIT:?}: this process exits")]
    Hangs,
}

impl From<PairError> for RunError {
    fn from(error: PairError) -> Self {
        RunError::Begin(Box::new(error))
    }
}
