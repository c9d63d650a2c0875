//! The sequencer, one for each served epoch. It gathers waiting operations into entries, numbers them without a gap
//! (R2), and answers each operation once its entry is committed and applied here (R1).
//!
//! ```text
//!   push ─▶ queue ─▶ [entry s] ─▶ group ─▶ applied ─▶ answers, in order
//!                    at most IN_FLIGHT_MAX entries between queue and answer
//! ```
//! One task submits; none answers: the group calls `Shared::came_back` where it has just applied an entry, and that
//! wakes the tasks that wait for its operations, and nobody else (ADR 0071).
//! The disks are waited for between `group` and `applied`: docs/where-to-look.md, "Where a write waits for a disk".
//!
//! No timer: while at most one entry is in flight, a write leaves at once. Otherwise new operations share the next
//! entry, which leaves once it is worth one, or once at most one is in flight again (`may_leave`).
//! SEQ-S1  Entries carry s = 1, 2, 3 … and are submitted in that order, only in the term of the grant.
//! SEQ-S2  After the first entry that does not come back as written, nothing more is submitted and nothing more is
//!     answered as written: every later operation fails the same way.
//! SEQ-S3  An operation may fall outside of its volume if that is shrunk or deleted meanwhile. Only this operation
//!     fails: its entry came back as written, and the other operations are answered as usual.
//! SEQ-S4  A caller of `settled` is answered once every earlier operation has its outcome: applied here, or unknown and
//!     the epoch is no longer served.
//! SEQ-S5  Entries are answered in the order of their numbers, in whichever order they come back: a refusal is known at
//!     once, while an earlier entry waits for the disks, and the other way round.

use crate::random::new_entry_key;
use bytes::Bytes;
use holdfast_raft::{Group, Outcome, Reply};
use holdfast_types::sync::LockExt;
use holdfast_types::{Epoch, Lba, Sectors, Term, VolumeId, WriteSeq};
use holdfast_volume::entry::{EntryBuilder, OpKind};
use metrics::histogram;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, oneshot, watch};
use tokio_util::sync::CancellationToken;

/// Maximum number of entries between queue and answer. Small, because the fdatasync of the journal and of the peers
/// limits the rate, and operations that wait meanwhile share an entry. More than one, so that the next entry is sent
/// while one is being synced.
const IN_FLIGHT_MAX: usize = 4;

/// So many entries leave whatever is in them. With only one, a write that comes right behind it waits for its whole way
/// to the peers and back, and then takes as long itself: over a network, a few writers get half the rate.
const AT_ONCE: usize = 2;

/// With this many operations, or [`WORTH_BYTES`], an entry leaves although [`AT_ONCE`] others are in flight. Whatever
/// is in it, an entry costs each gateway replication, a journal write with its sync, and an apply: about as much as ten
/// small operations. With fewer it waits, and those that come meanwhile share the cost.
const WORTH_OPS: usize = 16;
/// With this much data the data itself is the greater part of an entry's cost: waiting would save little, and disks and
/// network would have nothing to do meanwhile. Two writes of 128 KiB, as clients send them for sequential data: since
/// data is sealed once, one of them costs about as much as the entry around it (ADR 0070, an estimate).
const WORTH_BYTES: usize = 256 << 10;

/// Whether `ops` waiting operations with `bytes` of data leave in an entry now, with `in_flight` entries between queue
/// and answer.
fn may_leave(in_flight: usize, ops: usize, bytes: usize) -> bool {
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
}

type Answer = oneshot::Sender<Result<(), WriteFailure>>;

/// How an entry came back: the positions in it of the operations that fell outside of their volumes (SEQ-S3).
type Came = Result<Vec<u32>, WriteFailure>;

/// An entry that was taken from the queue and is not answered.
struct Flight {
    /// Of its operations, in their order.
    answers: Vec<Answer>,
    /// Set once it has come back; then it waits only for those before it.
    came: Option<Came>,
}

#[derive(Default)]
struct Queue {
    ops: VecDeque<(Op, Answer)>,
    bytes: usize,
    /// Oldest first; at most [`IN_FLIGHT_MAX`].
    flights: VecDeque<Flight>,
    /// Number of the last entry that was taken: the last one of `flights`, if there is any.
    last: WriteSeq,
    /// Of the entries that were answered.
    outcomes: Outcomes,
    /// Number of operations ever accepted.
    taken: u64,
    /// SEQ-S2: set once, never cleared.
    failed: Option<WriteFailure>,
}

impl Queue {
    fn may_leave(&self) -> bool {
        may_leave(self.flights.len(), self.ops.len(), self.bytes)
    }

    /// Entry `seq`, if it is not answered.
    fn flight(&mut self, seq: WriteSeq) -> Option<&mut Flight> {
        let behind = usize::try_from(self.last.0.checked_sub(seq.0)?).ok()?;
        let place = self.flights.len().checked_sub(behind + 1)?;
        self.flights.get_mut(place)
    }

    /// Takes the oldest entry, if it has come back (SEQ-S5).
    fn next_back(&mut self) -> Option<(Vec<Answer>, Came)> {
        let came = self.flights.front_mut()?.came.take()?;
        self.flights.pop_front().map(|flight| (flight.answers, came))
    }
}

/// How fast writers may go (design: the journal's bound acts here and only here).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Pace {
    /// Immediately.
    Go,
    /// After this pause: the journal is filling, and writers slow down along a curve (R8).
    After(Duration),
    /// Ask again after this pause: the journal is full up to its reserve.
    Full(Duration),
}

/// Decides the pace from the journal's fill.
pub trait Admission: Send + Sync + 'static {
    /// The pace of the next entry.
    fn pace(&self) -> Pace;
}

/// Interprets an entry's answer: the set's state knows its current holder.
pub trait Verdict: Send + Sync + 'static {
    /// `Ok` if `answer` says written: the ascending positions in the entry of operations that fell outside of their
    /// volumes (SEQ-S3).
    ///
    /// # Errors
    /// The reason why the entry was not written.
    fn judge(&self, answer: &Bytes) -> Result<Vec<u32>, WriteFailure>;
}

/// Handle of one epoch's sequencer, which ends when the handle is dropped.
pub struct Sequencer {
    shared: Arc<Shared>,
}

struct Shared {
    queue: Mutex<Queue>,
    /// Notified when an entry may leave that could not before, and when nothing leaves any more.
    wake: Notify,
    /// Number of operations with a known outcome, counted in their order of arrival (SEQ-S4).
    settled: watch::Sender<u64>,
    closed: CancellationToken,
    stopped: CancellationToken,
    verdict: Arc<dyn Verdict>,
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.locked()
    }

    /// Whether an entry may leave; `None` if none ever will (SEQ-S2).
    fn may_leave(&self) -> Option<bool> {
        let queue = self.queue();
        queue.failed.is_none().then(|| queue.may_leave())
    }

    /// Entry `seq` came back. Called by the group, in any order and in any of its tasks, so it only decides and wakes.
    fn came_back(&self, seq: WriteSeq, outcome: Outcome) {
        let came = match outcome {
            Ok(done) => self.verdict.judge(&done.answer),
            Err(e) => {
                holdfast_reached::reached!("sequencer: an entry comes back without an answer");
                if self.queue().failed.is_none() {
                    tracing::info!(%seq, error = %e, "a write has an unknown outcome; its connections are closed");
                }
                Err(WriteFailure::Gone)
            }
        };
        let mut queue = self.queue();
        if let Some(flight) = queue.flight(seq) {
            flight.came = Some(came);
        }
        holdfast_reached::reached!(
            "sequencer: an entry comes back before an earlier one",
            queue.flights.front().is_some_and(|first| first.came.is_none())
        );
        // Under the lock, so that another entry that comes back now is answered behind these (SEQ-S5).
        while let Some((answers, came)) = queue.next_back() {
            self.answer(&mut queue, answers, came);
        }
        let leaves = queue.may_leave();
        drop(queue);
        if leaves {
            self.wake.notify_one();
        }
    }

    /// Answers the operations of the next entry.
    fn answer(&self, queue: &mut Queue, answers: Vec<Answer>, came: Came) {
        let first = queue.outcomes.failed.is_none();
        let outcome = queue.outcomes.next(came);
        if let Err(why) = outcome
            && first
        {
            self.fail(queue, why);
        }
        let operations = answers.len() as u64;
        for (place, answer) in (0u32..).zip(answers) {
            holdfast_reached::reached!(
                "sequencer: an operation fell outside of its volume",
                outcome.as_ref().is_ok_and(|outside| outside.contains(&place))
            );
            let each = match &outcome {
                Ok(outside) if outside.contains(&place) => Err(WriteFailure::Outside),
                Ok(_) => Ok(()),
                Err(why) => Err(*why),
            };
            // Fails if the connection is gone; then the answer has no receiver.
            let _ = answer.send(each);
        }
        self.settled.send_modify(|settled| *settled += operations);
    }

    /// The group did not take entry `seq`: its operations need not wait for the entries before it, and nothing more is
    /// submitted (SEQ-S2).
    fn refused(&self, seq: WriteSeq) {
        let mut queue = self.queue();
        let answers = queue.flight(seq).map(|flight| std::mem::take(&mut flight.answers)).unwrap_or_default();
        for answer in answers {
            let _ = answer.send(Err(WriteFailure::Gone));
        }
        self.fail(&mut queue, WriteFailure::Gone);
    }

    /// SEQ-S2: nothing is written from here on.
    fn fail(&self, queue: &mut Queue, why: WriteFailure) {
        queue.failed.get_or_insert(why);
        queue.bytes = 0;
        for (_, answer) in queue.ops.drain(..) {
            let _ = answer.send(Err(why));
        }
        self.wake.notify_one();
        self.stopped.cancel();
        // R8: clients that lost the set to another owner get errors; all other connections are closed unanswered.
        if why == WriteFailure::Gone {
            self.closed.cancel();
        }
    }
}

impl Sequencer {
    /// Starts the sequencer of `epoch`, granted in `term`. `closed` is cancelled when it fails.
    pub fn start(
        group: Group,
        term: Term,
        epoch: Epoch,
        admission: Arc<dyn Admission>,
        verdict: Arc<dyn Verdict>,
        closed: CancellationToken,
    ) -> Self {
        let shared = Arc::new(Shared {
            queue: Mutex::default(),
            wake: Notify::new(),
            settled: watch::Sender::new(0),
            closed,
            stopped: CancellationToken::new(),
            verdict,
        });
        tokio::spawn(submit_loop(shared.clone(), group, term, epoch, admission));
        Self { shared }
    }

    /// Appends an operation to the set's order immediately. One write (R5) is one call. Synchronous, so that a caller
    /// that is cancelled afterwards cannot leave it half done.
    pub fn push(&self, op: Op) -> oneshot::Receiver<Result<(), WriteFailure>> {
        let (tx, rx) = oneshot::channel();
        let mut queue = self.shared.queue();
        if let Some(why) = queue.failed {
            holdfast_reached::reached!("sequencer: an operation after the end of its epoch");
            drop(queue);
            let _ = tx.send(Err(why));
            return rx;
        }
        let left = queue.may_leave();
        queue.bytes += op.data.len();
        queue.taken += 1;
        queue.ops.push_back((op, tx));
        let leaves = queue.may_leave();
        drop(queue);
        // Once per entry: it looks again by itself when it has taken one.
        if leaves && !left {
            self.shared.wake.notify_one();
        }
        rx
    }

    /// Waits until every operation pushed before this call has its outcome and reads can see it (SEQ-S4). Does not end
    /// while the journal is full: the caller limits the time.
    ///
    /// # Errors
    /// The reason why nothing more is written under this epoch. Operations in flight may have been written or not
    /// (R12); the next epoch will see.
    pub fn settled(&self) -> impl Future<Output = Result<(), WriteFailure>> + use<> {
        let shared = self.shared.clone();
        let taken = shared.queue().taken;
        async move {
            let mut settled = shared.settled.subscribe();
            let all = tokio::select! {
                all = settled.wait_for(|settled| *settled >= taken) => all.is_ok(),
                () = shared.stopped.cancelled() => false,
            };
            // Failed operations were counted too.
            match shared.queue().failed {
                None if all => Ok(()),
                why => Err(why.unwrap_or(WriteFailure::Gone)),
            }
        }
    }

    /// Bytes that wait for an entry.
    pub fn waiting_bytes(&self) -> usize {
        self.shared.queue().bytes
    }

    /// Stops the sequencer: queued operations fail as `why`, new ones are refused. Submitted ones are still answered.
    pub fn stop(&self, why: WriteFailure) {
        self.shared.fail(&mut self.shared.queue(), why);
    }
}

impl Drop for Sequencer {
    fn drop(&mut self) {
        self.stop(WriteFailure::Gone);
    }
}

/// An entry to submit.
struct Taken {
    seq: WriteSeq,
    payload: Bytes,
    /// Number of its operations.
    ops: usize,
}

/// Takes one entry from the front of the queue. It is sealed once, here: group, journals and peers get these bytes,
/// however often they are sent (R12, SEAL-S4).
fn next_entry(shared: &Shared, group: &Group, epoch: Epoch) -> Option<Taken> {
    let mut queue = shared.queue();
    let seq = WriteSeq(queue.last.0 + 1);
    let mut builder = EntryBuilder::new(epoch, seq).of(group.id());
    let mut answers = Vec::new();
    while let Some((op, _)) = queue.ops.front() {
        // Cloning `Bytes` only adds a reference; the data is copied once, into the entry.
        if !builder.try_push(op.kind, op.volume, op.lba, op.sectors, op.data.clone()) {
            break;
        }
        let Some((op, answer)) = queue.ops.pop_front() else { break };
        queue.bytes -= op.data.len();
        answers.push(answer);
    }
    if answers.is_empty() {
        // R5: the front passes operations up to 1 MiB whole and splits larger ones, so the first one always fits.
        assert!(queue.ops.is_empty(), "R5: an operation of more than an entry's size reached the sequencer");
        return None;
    }
    let ops = answers.len();
    queue.last = seq;
    queue.flights.push_back(Flight { answers, came: None });
    // Copies and seals the data and calculates its checksums: without the lock, so that new operations come in
    // meanwhile.
    drop(queue);
    let payload = if group.seals() { builder.finish_sealed(new_entry_key()) } else { builder.finish() };
    Some(Taken { seq, payload, ops })
}

async fn submit_loop(shared: Arc<Shared>, group: Group, term: Term, epoch: Epoch, admission: Arc<dyn Admission>) {
    let (entry_ops, entry_bytes) = (histogram!("holdfast_entry_ops"), histogram!("holdfast_entry_bytes"));
    loop {
        let Taken { seq, payload, ops } = loop {
            match shared.may_leave() {
                None => return,
                Some(false) => {
                    shared.wake.notified().await;
                    continue;
                }
                Some(true) => {}
            }
            let pace = admission.pace();
            if let Pace::After(pause) | Pace::Full(pause) = pace {
                tokio::select! {
                    () = tokio::time::sleep(pause) => {}
                    () = shared.stopped.cancelled() => {}
                }
                if matches!(pace, Pace::Full(_)) {
                    holdfast_reached::reached!("sequencer: writers wait for the journal or for a quorum");
                    continue;
                }
            }
            // `None` only if the sequencer was stopped meanwhile.
            if let Some(entry) = next_entry(&shared, &group, epoch) {
                break entry;
            }
        };
        entry_ops.record(ops as f64);
        entry_bytes.record(payload.len() as f64);
        let replied = shared.clone();
        let reply = Reply::new(move |outcome| replied.came_back(seq, outcome));
        if let Err(e) = group.submit(Some(term), payload, reply).await {
            holdfast_reached::reached!("sequencer: the group takes no more entries of this term");
            tracing::info!(%epoch, %seq, error = %e, "sequencer stops: the group accepts no further entries");
            return shared.refused(seq);
        }
    }
}

/// SEQ-S2 across entries: entries in flight behind a failed one may or may not have been written (R12).
#[derive(Default)]
struct Outcomes {
    failed: Option<WriteFailure>,
}

impl Outcomes {
    /// The answer for the operations of the next entry, which came back as `came`.
    fn next(&mut self, came: Result<Vec<u32>, WriteFailure>) -> Result<Vec<u32>, WriteFailure> {
        holdfast_reached::reached!(
            "sequencer: an entry behind a failed one came back as written",
            self.failed.is_some() && came.is_ok()
        );
        let outcome = self.failed.map_or(came, Err);
        self.failed = outcome.as_ref().err().copied();
        outcome
    }
}

#[cfg(test)]
mod tests;
