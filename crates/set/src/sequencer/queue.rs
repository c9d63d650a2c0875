//! What waits for an entry, and the entries in flight: when the next one leaves, and in which order they are answered
//! (SEQ-S1, SEQ-S2, SEQ-S5 of the sequencer).

use super::moments::Moments;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use holdfast_raft::ProposeError;
use holdfast_types::{Lba, Sectors, VolumeId, WriteSeq};
use holdfast_volume::entry::OpKind;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::oneshot;

/// Maximum number of entries between queue and answer. Small, because the fdatasync of the journal and of the peers
/// limits the rate, and operations that wait meanwhile share an entry. More than one, so that the next entry is sent
/// while one is being synced.
pub(super) const IN_FLIGHT_MAX: usize = 4;

/// So many entries leave whatever is in them. With only one, a write that comes right behind it waits for its whole way
/// to the peers and back, and then takes as long itself: over a network, a few writers get half the rate.
pub(super) const AT_ONCE: usize = 2;

/// With this many operations, or [`WORTH_BYTES`], an entry leaves although [`AT_ONCE`] others are in flight. Whatever
/// is in it, an entry costs each gateway replication, a journal write with its sync, and an apply: about as much as ten
/// small operations. With fewer it waits, and those that come meanwhile share the cost.
pub(super) const WORTH_OPS: usize = 16;
/// With this much data the data itself is the greater part of an entry's cost: waiting would save little, and disks and
/// network would have nothing to do meanwhile. Two writes of 128 KiB, as clients send them for sequential data: since
/// data is sealed once, one of them costs about as much as the entry around it (ADR 0070, an estimate).
pub(super) const WORTH_BYTES: usize = 256 << 10;

/// With less data than this, and fewer operations than [`WORTH_OPS`], an entry is small: it takes a connection's task
/// little time to build and seal it. And while a connection pushes more of them, they wait for one another.
pub(super) const SMALL_BYTES: usize = 64 << 10;

/// Whether `ops` waiting operations with `bytes` of data leave in an entry now, with `in_flight` entries between queue
/// and answer.
pub(super) fn may_leave(in_flight: usize, ops: usize, bytes: usize) -> bool {
    match in_flight {
        0..AT_ONCE => ops > 0,
        AT_ONCE..IN_FLIGHT_MAX => ops >= WORTH_OPS || bytes >= WORTH_BYTES,
        _ => false,
    }
}

/// Reason why an operation was not written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteFailure {
    /// Another owner holds the set (R8: the only case in which the client gets an error).
    Fenced,
    /// Anything else: lost leadership, unknown outcome, shutdown. The connection is closed unanswered.
    Gone,
    /// It lies outside of its volume's current size (SEQ-S3). A bad request, of this client only.
    Outside,
}

/// One operation of a client.
pub struct Op {
    /// The kind of operation.
    pub kind: OpKind,
    /// Its volume.
    pub volume: VolumeId,
    /// Its first sector.
    pub lba: Lba,
    /// Its length.
    pub sectors: Sectors,
    /// The data of a write; otherwise empty.
    pub data: Bytes,
    /// What is to be noted of it; `None` without traces.
    pub moments: Option<Arc<Moments>>,
}

pub(super) type Answer = oneshot::Sender<Result<(), WriteFailure>>;

/// How an entry came back: the positions in it of the operations that fell outside of their volumes (SEQ-S3).
pub(super) type Came = Result<Vec<u32>, WriteFailure>;

/// The group takes an entry, or refuses it.
pub(super) type Submitting = BoxFuture<'static, Result<(), ProposeError>>;

/// An entry that was taken from the queue and is not answered.
pub(super) struct Flight {
    /// Of its operations, in their order.
    pub(super) answers: Vec<Answer>,
    /// Set once it has come back; then it waits only for those before it.
    pub(super) came: Option<Came>,
    /// Of those of its operations that are noted.
    pub(super) noted: Vec<Arc<Moments>>,
}

#[derive(Default)]
pub(super) struct Queue {
    pub(super) ops: VecDeque<(Op, Answer)>,
    pub(super) bytes: usize,
    /// Oldest first; at most [`IN_FLIGHT_MAX`].
    pub(super) flights: VecDeque<Flight>,
    /// Number of the last entry that was taken: the last one of `flights`, if there is any.
    pub(super) last: WriteSeq,
    /// The last entry is on its way to the group: until the group has it, no other one is taken (SEQ-S1).
    pub(super) submitting: bool,
    /// That entry, if a connection's task could not submit it at once: the task of the queue goes on.
    pub(super) handed: Option<(WriteSeq, Submitting)>,
    /// Connections that are pushing operations, and submit or wake at the end.
    pub(super) holds: usize,
    /// Of the entries that were answered.
    pub(super) outcomes: Outcomes,
    /// Number of operations ever accepted.
    pub(super) taken: u64,
    /// SEQ-S2: set once, never cleared.
    pub(super) failed: Option<WriteFailure>,
}

impl Queue {
    pub(super) fn may_leave(&self) -> bool {
        !self.submitting && may_leave(self.flights.len(), self.ops.len(), self.bytes)
    }

    pub(super) fn is_small(&self) -> bool {
        self.ops.len() < WORTH_OPS && self.bytes < SMALL_BYTES
    }

    /// Whether an entry may leave, and nobody who pushes will see to it.
    pub(super) fn needs_task(&self) -> bool {
        self.may_leave() && (self.holds == 0 || !self.is_small())
    }

    /// Entry `seq`, if it is not answered.
    pub(super) fn flight(&mut self, seq: WriteSeq) -> Option<&mut Flight> {
        let behind = usize::try_from(self.last.0.checked_sub(seq.0)?).ok()?;
        let place = self.flights.len().checked_sub(behind + 1)?;
        self.flights.get_mut(place)
    }

    /// Takes the oldest entry, if it has come back (SEQ-S5).
    pub(super) fn next_back(&mut self) -> Option<(Vec<Answer>, Came)> {
        let came = self.flights.front_mut()?.came.take()?;
        self.flights.pop_front().map(|flight| (flight.answers, came))
    }
}

/// SEQ-S2 across entries: entries in flight behind a failed one may or may not have been written (R12).
#[derive(Default)]
pub(super) struct Outcomes {
    pub(super) failed: Option<WriteFailure>,
}

impl Outcomes {
    /// The answer for the operations of the next entry, which came back as `came`.
    pub(super) fn next(&mut self, came: Result<Vec<u32>, WriteFailure>) -> Result<Vec<u32>, WriteFailure> {
        holdfast_reached::reached!(
            "sequencer: an entry behind a failed one came back as written",
            self.failed.is_some() && came.is_ok()
        );
        let outcome = self.failed.map_or(came, Err);
        self.failed = outcome.as_ref().err().copied();
        outcome
    }
}
