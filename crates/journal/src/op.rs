//! Operations that the journal records for a group.

use bytes::Bytes;
use holdfast_types::{GroupId, LogId};

/// One change of one group's durable state. Applied in order, both when written and when replayed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Op {
    /// Append an entry at its index.
    Entry {
        /// Whose.
        group: GroupId,
        /// Term and index.
        id: LogId,
        /// Opaque here.
        payload: Bytes,
    },
    /// Replace the vote.
    Vote {
        /// Whose.
        group: GroupId,
        /// Opaque here.
        payload: Bytes,
    },
    /// Drop entries from index `from` on.
    Truncate {
        /// Whose.
        group: GroupId,
        /// First index dropped.
        from: u64,
    },
    /// Drop entries up to `upto` inclusive, which may lie beyond the last (a snapshot was installed).
    Purge {
        /// Whose.
        group: GroupId,
        /// Last log id dropped.
        upto: LogId,
    },
    /// Remember the last known committed log id.
    Committed {
        /// Whose.
        group: GroupId,
        /// Last committed.
        id: LogId,
    },
    /// Forget the whole group.
    DropGroup {
        /// Whose.
        group: GroupId,
    },
}

impl Op {
    /// The group of the operation.
    pub fn group(&self) -> GroupId {
        match self {
            Op::Entry { group, .. }
            | Op::Vote { group, .. }
            | Op::Truncate { group, .. }
            | Op::Purge { group, .. }
            | Op::Committed { group, .. }
            | Op::DropGroup { group } => *group,
        }
    }

    /// Bytes of payload.
    pub fn payload_len(&self) -> usize {
        match self {
            Op::Entry { payload, .. } | Op::Vote { payload, .. } => payload.len(),
            _ => 0,
        }
    }
}
