//! The sequencer, one for each served epoch. It gathers waiting operations into entries, numbers them without a gap
//! (R2), and answers each operation once its entry is committed and applied here (R1).
//!
//! ```text
//!   push ─▶ queue ─▶ [entry s] ─▶ group ─▶ applied ─▶ answers, in order
//!                    at most IN_FLIGHT_MAX entries between queue and answer
//! ```
//! No task answers: the group calls `Shared::came_back` where it has just applied an entry, and that wakes the tasks
//! that wait for its operations, and nobody else. A task of the queue submits, except for a few small operations of a
//! connection while nothing is in flight: the connection's own task submits these once it has pushed all that it had
//! (`Sequencer::release`). Whoever takes an entry keeps all others from taking one until the group has it (ADR 0071).
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
use futures_util::FutureExt;
use holdfast_raft::{Group, Outcome, ProposeError, Reply};
use holdfast_types::sync::LockExt;
use holdfast_types::{Epoch, Term, WriteSeq};
use holdfast_volume::entry::EntryBuilder;
use metrics::{Histogram, histogram};
pub use moments::Moments;
use queue::{Answer, Came, Flight, Queue, Submitting};
pub use queue::{Op, WriteFailure};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::{Notify, oneshot, watch};
use tokio::task::coop::unconstrained;
use tokio_util::sync::CancellationToken;

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
    submitter: Arc<Submitter>,
}

/// What the task of the queue does next.
enum Next {
    /// Nothing ever leaves again (SEQ-S2).
    End,
    /// Nothing may leave.
    Wait,
    /// An entry may leave.
    Leave,
    /// A connection's task has begun to submit this entry.
    Submit(WriteSeq, Submitting),
}

struct Shared {
    queue: Mutex<Queue>,
    /// Notified when an entry may leave that could not before, and when nothing leaves any more.
    wake: Notify,
    /// Notified when an entry was handed to the task of the queue, which may be pausing.
    handed: Notify,
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

    fn next(&self) -> Next {
        let mut queue = self.queue();
        match queue.handed.take() {
            Some((seq, submitting)) => Next::Submit(seq, submitting),
            // While a connection's task submits, it may still hand its entry over.
            None if queue.failed.is_some() && !queue.submitting => Next::End,
            None if queue.may_leave() => Next::Leave,
            None => Next::Wait,
        }
    }

    /// Hands an entry that the group has not taken at once to the task of the queue, which does not end before. If a
    /// call to an openraft that is stopping were dropped, the next call would panic (see `raft/src/appender.rs`).
    fn hand_over(&self, seq: WriteSeq, submitting: Submitting) {
        holdfast_reached::reached!("sequencer: the group does not take an entry at once");
        self.queue().handed = Some((seq, submitting));
        self.wake.notify_one();
        self.handed.notify_one();
    }

    /// The group has the last entry. Returns whether the task of the queue has something to do: the next entry may
    /// leave, or nothing ever leaves again.
    fn handed_on(&self) -> bool {
        let mut queue = self.queue();
        queue.submitting = false;
        queue.failed.is_some() || queue.may_leave()
    }

    /// Entry `seq` came back. Called by the group, in any order and in any of its tasks, so it only decides and wakes.
    fn came_back(&self, seq: WriteSeq, outcome: Outcome) {
        let id = outcome.as_ref().ok().map(|done| done.id);
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
            if let Some(id) = id {
                flight.noted.iter().for_each(|moments| moments.comes(id));
            }
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
        queue.submitting = false;
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
            handed: Notify::new(),
            settled: watch::Sender::new(0),
            closed,
            stopped: CancellationToken::new(),
            verdict,
        });
        let (ops, bytes) = (histogram!("holdfast_entry_ops"), histogram!("holdfast_entry_bytes"));
        let submitter = Arc::new(Submitter { group, term, epoch, admission, ops, bytes });
        tokio::spawn(submit_loop(shared.clone(), submitter.clone()));
        Self { shared, submitter }
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
        let left = queue.needs_task();
        queue.bytes += op.data.len();
        queue.taken += 1;
        queue.ops.push_back((op, tx));
        let leaves = queue.needs_task();
        drop(queue);
        // Once per entry: it looks again by itself when it has taken one.
        if leaves && !left {
            self.shared.wake.notify_one();
        }
        rx
    }

    /// The caller is about to push operations that came together, and calls [`Sequencer::release`] without waiting for
    /// anything in between. Until then small ones do not leave by themselves.
    pub fn hold(&self) {
        self.shared.queue().holds += 1;
    }

    /// Ends a [`Sequencer::hold`]. If nothing is in flight, small operations are submitted before this returns.
    /// Synchronous, like `push`: nobody is cancelled between taking an entry and passing it on.
    pub fn release(&self) {
        let alone = {
            let mut queue = self.shared.queue();
            queue.holds -= 1;
            if !queue.may_leave() {
                return;
            }
            queue.flights.is_empty() && queue.is_small()
        };
        if !(alone && self.submitter.submits_now(&self.shared)) {
            self.shared.wake.notify_one();
        }
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

/// Takes entries from the queue and passes them to the group. [`Shared`] does not have the group: the group keeps
/// replies, and replies keep that.
struct Submitter {
    group: Group,
    term: Term,
    epoch: Epoch,
    admission: Arc<dyn Admission>,
    ops: Histogram,
    bytes: Histogram,
}

impl Submitter {
    /// Takes one entry from the front of the queue, if one may leave. It is sealed once, here: group, journals and
    /// peers get these bytes, however often they are sent (R12, SEAL-S4).
    fn take(&self, shared: &Shared) -> Option<Taken> {
        let mut queue = shared.queue();
        if !queue.may_leave() {
            return None;
        }
        let seq = WriteSeq(queue.last.0 + 1);
        let mut builder = EntryBuilder::new(self.epoch, seq).of(self.group.id());
        let (mut answers, mut noted, waiting) = (Vec::new(), Vec::<Arc<Moments>>::new(), queue.bytes);
        while let Some((op, _)) = queue.ops.front() {
            // Cloning `Bytes` only adds a reference; the data is copied once, into the entry.
            if !builder.try_push(op.kind, op.volume, op.lba, op.sectors, op.data.clone()) {
                break;
            }
            let Some((op, answer)) = queue.ops.pop_front() else { break };
            queue.bytes -= op.data.len();
            noted.extend(op.moments);
            answers.push(answer);
        }
        // R5: the front passes operations up to 1 MiB whole and splits larger ones, so the first one always fits.
        assert!(!answers.is_empty(), "R5: an operation of more than an entry's size reached the sequencer");
        let (ops, bytes) = (answers.len(), waiting - queue.bytes);
        noted.iter().for_each(|moments| moments.leaves(seq, ops, bytes));
        queue.last = seq;
        queue.submitting = true;
        queue.flights.push_back(Flight { answers, came: None, noted });
        // Copies and seals the data and calculates its checksums: without the lock, so that new operations come in
        // meanwhile.
        drop(queue);
        let payload = if self.group.seals() { builder.finish_sealed(new_entry_key()) } else { builder.finish() };
        Some(Taken { seq, payload, ops })
    }

    /// Passes an entry to the group.
    fn submit(&self, shared: &Arc<Shared>, taken: Taken) -> Submitting {
        let Taken { seq, payload, ops } = taken;
        self.ops.record(ops as f64);
        self.bytes.record(payload.len() as f64);
        let (group, term, replied) = (self.group.clone(), self.term, shared.clone());
        let reply = Reply::new(move |outcome| replied.came_back(seq, outcome));
        Box::pin(async move { group.submit(Some(term), payload, reply).await })
    }

    /// The group has taken entry `seq`, or refused it. Returns whether the caller has to wake the task of the queue.
    fn submitted(&self, shared: &Shared, seq: WriteSeq, result: Result<(), ProposeError>) -> bool {
        let Err(e) = result else { return shared.handed_on() };
        holdfast_reached::reached!("sequencer: the group takes no more entries of this term");
        tracing::info!(epoch = %self.epoch, %seq, error = %e, "sequencer stops: the group accepts no further entries");
        shared.refused(seq);
        false
    }

    /// Submits what waits in the caller's task. Returns `false` if the task of the queue has to look.
    fn submits_now(&self, shared: &Arc<Shared>) -> bool {
        if self.admission.pace() != Pace::Go {
            return false;
        }
        let Some(taken) = self.take(shared) else { return false };
        let seq = taken.seq;
        let mut submitting = self.submit(shared, taken);
        // Whatever turns this task has used up: an entry that is handed over takes one more.
        match unconstrained(submitting.as_mut()).now_or_never() {
            Some(result) => !self.submitted(shared, seq, result),
            None => {
                shared.hand_over(seq, submitting);
                true
            }
        }
    }

    /// Waits as the pace says. Returns whether an entry may leave now, as far as that goes.
    async fn paced(&self, shared: &Shared) -> bool {
        let pace = self.admission.pace();
        let (Pace::After(pause) | Pace::Full(pause)) = pace else { return true };
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = shared.stopped.cancelled() => {}
            () = shared.handed.notified() => return false,
        }
        let full = matches!(pace, Pace::Full(_));
        holdfast_reached::reached!("sequencer: writers wait for the journal or for a quorum", full);
        !full
    }
}

/// The task of the queue. It looks only when it is woken, or after an entry of its own: what a connection pushes in one
/// burst is not to leave in two entries.
async fn submit_loop(shared: Arc<Shared>, submitter: Arc<Submitter>) {
    // Nothing was pushed before the start.
    shared.wake.notified().await;
    loop {
        let (seq, submitting) = match shared.next() {
            Next::End => return,
            Next::Wait => {
                shared.wake.notified().await;
                continue;
            }
            Next::Leave => {
                if !submitter.paced(&shared).await {
                    continue;
                }
                // `None` if the sequencer was stopped, or a connection's task took it.
                let Some(taken) = submitter.take(&shared) else { continue };
                (taken.seq, submitter.submit(&shared, taken))
            }
            Next::Submit(seq, submitting) => (seq, submitting),
        };
        let result = submitting.await;
        submitter.submitted(&shared, seq, result);
    }
}

mod moments;
mod queue;
#[cfg(test)]
mod tests;
