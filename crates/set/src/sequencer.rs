//! The sequencer, one for each served epoch. It gathers waiting operations into entries, numbers them without a gap
//! (R2), and answers each operation once its entry is committed and applied here (R1).
//!
//! ```text
//!   push ─▶ queue ─▶ [entry s] ─▶ group ─▶ applied ─▶ answers, in order
//!                    at most IN_FLIGHT_MAX entries between queue and answer
//! ```
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

use crate::random::new_entry_key;
use bytes::Bytes;
use holdfast_raft::{Group, Pending};
use holdfast_types::sync::LockExt;
use holdfast_types::{Epoch, Lba, Sectors, Term, VolumeId, WriteSeq};
use holdfast_volume::entry::{EntryBuilder, OpKind};
use metrics::histogram;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, mpsc, oneshot, watch};
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

struct Queue {
    ops: VecDeque<(Op, Answer)>,
    bytes: usize,
    /// Entries that were taken from the queue and have not come back.
    in_flight: usize,
    /// Number of operations ever accepted.
    taken: u64,
    /// SEQ-S2: set once, never cleared.
    failed: Option<WriteFailure>,
}

impl Queue {
    fn may_leave(&self) -> bool {
        may_leave(self.in_flight, self.ops.len(), self.bytes)
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

    /// An entry came back.
    fn came_back(&self) {
        let mut queue = self.queue();
        queue.in_flight -= 1;
        let leaves = queue.may_leave();
        drop(queue);
        if leaves {
            self.wake.notify_one();
        }
    }

    /// SEQ-S2: nothing is written from here on.
    fn fail(&self, why: WriteFailure) {
        let waiting = {
            let mut queue = self.queue();
            queue.failed.get_or_insert(why);
            queue.bytes = 0;
            std::mem::take(&mut queue.ops)
        };
        for (_, answer) in waiting {
            // Fails if the connection is gone; then the answer has no receiver.
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
            queue: Mutex::new(Queue { ops: VecDeque::new(), bytes: 0, in_flight: 0, taken: 0, failed: None }),
            wake: Notify::new(),
            settled: watch::Sender::new(0),
            closed,
            stopped: CancellationToken::new(),
        });
        let (tx, rx) = mpsc::channel(IN_FLIGHT_MAX);
        tokio::spawn(submit_loop(shared.clone(), group, term, epoch, admission, tx));
        tokio::spawn(answer_loop(shared.clone(), rx, verdict));
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
        self.shared.fail(why);
    }
}

impl Drop for Sequencer {
    fn drop(&mut self) {
        self.shared.fail(WriteFailure::Gone);
    }
}

/// Takes one entry from the front of the queue, with the senders of its answers. It is sealed once, here: group,
/// journals and peers get these bytes, however often they are sent (R12, SEAL-S4).
fn next_entry(shared: &Shared, group: &Group, epoch: Epoch, seq: WriteSeq) -> Option<(Bytes, Vec<Answer>)> {
    let mut queue = shared.queue();
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
    queue.in_flight += 1;
    // Copies and seals the data and calculates its checksums: without the lock, so that new operations come in
    // meanwhile.
    drop(queue);
    let entry = if group.seals() { builder.finish_sealed(new_entry_key()) } else { builder.finish() };
    Some((entry, answers))
}

type InFlight = (Pending, Vec<Answer>);

async fn submit_loop(
    shared: Arc<Shared>,
    group: Group,
    term: Term,
    epoch: Epoch,
    admission: Arc<dyn Admission>,
    tx: mpsc::Sender<InFlight>,
) {
    let (entry_ops, entry_bytes) = (histogram!("holdfast_entry_ops"), histogram!("holdfast_entry_bytes"));
    let mut seq = WriteSeq(0);
    loop {
        let (payload, answers) = loop {
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
            if let Some(entry) = next_entry(&shared, &group, epoch, WriteSeq(seq.0 + 1)) {
                break entry;
            }
        };
        seq = WriteSeq(seq.0 + 1);
        entry_ops.record(answers.len() as f64);
        entry_bytes.record(payload.len() as f64);
        match group.submit(Some(term), payload).await {
            // There is a place: the channel holds as many as may be in flight.
            Ok(pending) => {
                if tx.send((pending, answers)).await.is_err() {
                    return;
                }
            }
            Err(e) => {
                holdfast_reached::reached!("sequencer: the group takes no more entries of this term");
                tracing::info!(%epoch, %seq, error = %e, "sequencer stops: the group accepts no further entries");
                for answer in answers {
                    let _ = answer.send(Err(WriteFailure::Gone));
                }
                shared.fail(WriteFailure::Gone);
                return;
            }
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

async fn answer_loop(shared: Arc<Shared>, mut rx: mpsc::Receiver<InFlight>, verdict: Arc<dyn Verdict>) {
    let mut outcomes = Outcomes::default();
    while let Some((pending, answers)) = rx.recv().await {
        let first = outcomes.failed.is_none();
        let came = match pending.wait().await {
            Ok(done) => verdict.judge(&done.answer),
            Err(e) => {
                holdfast_reached::reached!("sequencer: an entry comes back without an answer");
                if first {
                    tracing::info!(error = %e, "a write has an unknown outcome; its connections are closed");
                }
                Err(WriteFailure::Gone)
            }
        };
        let outcome = outcomes.next(came);
        if let Err(why) = outcome
            && first
        {
            shared.fail(why);
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
            let _ = answer.send(each);
        }
        shared.settled.send_modify(|settled| *settled += operations);
        shared.came_back();
    }
}

#[cfg(test)]
mod tests;
