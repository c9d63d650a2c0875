use super::queue::{AT_ONCE, IN_FLIGHT_MAX, Outcomes, SMALL_BYTES, WORTH_BYTES, WORTH_OPS, may_leave};
use super::*;
use futures_util::future::{BoxFuture, ready};
use holdfast_raft::{Consensus, GroupError, GroupStatus, Leadership, Proposed, ReadLogError};
use holdfast_types::{GroupId, Lba, LogId, LogIndex, MemberId, MonoTime, SECTOR_BYTES, Sectors, VolumeId};
use holdfast_volume::entry::{EntryPayload, OpKind, decode};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;
use tokio::sync::mpsc;

/// For a test that would otherwise wait for ever.
const PATIENCE: Duration = Duration::from_secs(20);
/// Of the grant.
const TERM: Term = Term(4);
const EPOCH: Epoch = Epoch(9);

#[test]
fn s2_nothing_behind_a_failed_entry_is_answered_as_written() {
    for why in [WriteFailure::Gone, WriteFailure::Fenced] {
        let mut outcomes = Outcomes::default();
        assert_eq!(outcomes.next(Ok(vec![])), Ok(vec![]));
        assert_eq!(outcomes.next(Ok(vec![3])), Ok(vec![3]), "SEQ-S3: the entry itself did not fail");
        assert_eq!(outcomes.next(Err(why)), Err(why));
        assert_eq!(outcomes.next(Ok(vec![])), Err(why), "R12: it follows an entry of unknown outcome");
        assert_eq!(outcomes.next(Err(WriteFailure::Gone)), Err(why), "the first failure gives the reason");
        assert_eq!(outcomes.next(Ok(vec![])), Err(why));
    }
}

#[test]
fn an_entry_leaves_behind_one_at_most_or_when_it_is_worth_one() {
    for in_flight in [0, 1] {
        assert!(may_leave(in_flight, 1, 0), "a single write waits for nothing, and the next one not for it");
        assert!(may_leave(in_flight, 100, 1 << 20));
        assert!(!may_leave(in_flight, 0, 0), "an entry has at least one operation");
    }
    for in_flight in AT_ONCE..IN_FLIGHT_MAX {
        assert!(!may_leave(in_flight, 0, 0));
        assert!(!may_leave(in_flight, WORTH_OPS - 1, WORTH_BYTES - 1));
        assert!(may_leave(in_flight, WORTH_OPS, 0), "trims have no data");
        assert!(may_leave(in_flight, 1, WORTH_BYTES), "large writes do not wait for one another");
    }
    for in_flight in [IN_FLIGHT_MAX, IN_FLIGHT_MAX + 1] {
        assert!(!may_leave(in_flight, 1000, 1 << 30));
    }
}

/// A group whose entries come back when the test says so.
struct Slow {
    submitted: mpsc::UnboundedSender<(usize, Reply)>,
    payloads: Arc<Mutex<Vec<Bytes>>>,
    stopped: AtomicBool,
    /// The next entry is not taken before this says so.
    door: Mutex<Option<oneshot::Receiver<()>>>,
}

impl Slow {
    fn take(&self, payload: Bytes, reply: Reply) {
        let Ok(EntryPayload::Writes(entry)) = decode(&payload) else { panic!("no entry of writes") };
        assert_eq!(entry.epoch, EPOCH, "R2");
        let mut payloads = self.payloads.locked();
        payloads.push(payload);
        assert_eq!(entry.seq, WriteSeq(payloads.len() as u64), "SEQ-S1");
        self.submitted.send((entry.len(), reply)).expect("the test listens");
    }
}

impl Consensus for Slow {
    fn id(&self) -> GroupId {
        GroupId(3)
    }

    fn me(&self) -> MemberId {
        MemberId(1)
    }

    fn leadership(&self) -> watch::Receiver<Leadership> {
        watch::channel(Leadership::default()).1
    }

    /// A later one: what is submitted is of the grant's term, not of the one that is there now.
    fn leading_term(&self) -> Option<Term> {
        Some(Term(TERM.0 + 1))
    }

    fn quorum_acked(&self) -> Option<(Term, MonoTime)> {
        None
    }

    fn applied(&self) -> LogId {
        LogId::default()
    }

    fn snapshot_last(&self) -> Option<LogId> {
        None
    }

    fn live_bytes(&self) -> u64 {
        0
    }

    fn seals(&self) -> bool {
        true
    }

    fn submit(&self, term: Option<Term>, payload: Bytes, reply: Reply) -> BoxFuture<'_, Result<(), ProposeError>> {
        assert_eq!(term, Some(TERM), "SEQ-S1: only in the term of the grant");
        if self.stopped.load(Ordering::Relaxed) {
            return Box::pin(ready(Err(ProposeError::Stopped { reason: "for the test".into() })));
        }
        let Some(door) = self.door.locked().take() else {
            self.take(payload, reply);
            return Box::pin(ready(Ok(())));
        };
        Box::pin(async move {
            door.await.expect("the test opens it");
            self.take(payload, reply);
            Ok(())
        })
    }

    fn read_log(&self, _: LogIndex, _: u32, _: usize) -> BoxFuture<'_, Result<Bytes, ReadLogError>> {
        unreachable!("a sequencer reads nothing")
    }

    fn trigger_snapshot(&self) -> BoxFuture<'_, Result<(), GroupError>> {
        unreachable!("a sequencer takes no snapshot")
    }

    fn status(&self) -> GroupStatus {
        unreachable!("a sequencer does not ask for it")
    }
}

struct Always;

impl Admission for Always {
    fn pace(&self) -> Pace {
        Pace::Go
    }
}

impl Verdict for Always {
    fn judge(&self, _: &Bytes) -> Result<Vec<u32>, WriteFailure> {
        Ok(Vec::new())
    }
}

fn write(bytes: usize) -> Op {
    let sectors = Sectors(bytes as u64 / SECTOR_BYTES);
    Op {
        kind: OpKind::Write,
        volume: VolumeId(1),
        lba: Lba(0),
        sectors,
        data: Bytes::from(vec![1; bytes]),
        moments: None,
    }
}

/// A sequencer, and what it has submitted: the operations of each entry, and who answers it.
struct Stage {
    sequencer: Sequencer,
    group: Arc<Slow>,
    closed: CancellationToken,
    submitted: mpsc::UnboundedReceiver<(usize, Reply)>,
    payloads: Arc<Mutex<Vec<Bytes>>>,
}

impl Stage {
    fn new() -> Self {
        Self::under(Arc::new(Always))
    }

    fn under(admission: Arc<dyn Admission>) -> Self {
        let (tx, submitted) = mpsc::unbounded_channel();
        let payloads = Arc::new(Mutex::default());
        let (stopped, door) = (AtomicBool::new(false), Mutex::default());
        let group = Arc::new(Slow { submitted: tx, payloads: payloads.clone(), stopped, door });
        let closed = CancellationToken::new();
        let sequencer = Sequencer::start(group.clone(), TERM, EPOCH, admission, Arc::new(Always), closed.clone());
        Self { sequencer, group, closed, submitted, payloads }
    }

    /// The next entry, which leaves without any further event.
    async fn entry(&mut self) -> (usize, Reply) {
        let entry = tokio::time::timeout(PATIENCE, self.submitted.recv()).await;
        entry.expect("nothing leaves").expect("the sequencer has ended")
    }

    /// The operations of the entry that has left without a turn of any task.
    fn left(&mut self) -> Option<(usize, Reply)> {
        self.submitted.try_recv().ok()
    }

    /// Whether nothing leaves: all tasks of the test's one thread have nothing to do.
    async fn rests(&mut self) -> bool {
        for _ in 0..20 {
            tokio::task::yield_now().await;
        }
        self.submitted.try_recv().is_err()
    }
}

fn written(answer: Reply) {
    answer.send(Ok(Proposed { id: LogId::new(1, 1), answer: Bytes::new() }));
}

/// It may have happened (R12).
fn unknown(answer: Reply) {
    answer.send(Err(ProposeError::Unknown { reason: "for the test".into() }));
}

/// SEAL-S4: two entries under one key have the same nonces, and would tell what their data differs by.
#[tokio::test]
async fn each_entry_is_sealed_under_a_key_of_its_own() {
    let mut stage = Stage::new();
    for _ in 0..2 {
        let _waits = stage.sequencer.push(write(4096));
        written(stage.entry().await.1);
    }
    let payloads = stage.payloads.locked().clone();
    let ends: Vec<&[u8]> = payloads.iter().map(|payload| &payload[payload.len() - 4096..]).collect();
    assert_ne!(ends[0], ends[1], "equal data is sealed alike");
    for payload in &payloads {
        assert_ne!(payload[payload.len() - 4096..], [1; 4096], "not sealed");
        let Ok(EntryPayload::Writes(entry)) = decode(payload) else { panic!("no entry of writes") };
        assert_eq!((entry.set, entry.ops().expect("opens")[0].data.as_ref()), (GroupId(3), &[1; 4096][..]));
    }
}

/// What traces show of an operation, and nothing is noted of the others.
#[tokio::test]
async fn moments_are_noted_when_an_entry_leaves_and_when_it_comes_back() {
    let mut stage = Stage::new();
    let noted: Arc<Moments> = Arc::default();
    stage.sequencer.hold();
    let first = stage.sequencer.push(write(4096));
    let second = stage.sequencer.push(Op { moments: Some(noted.clone()), ..write(512) });
    assert!(noted.left().is_none(), "it waits");
    let begun = Instant::now();
    stage.sequencer.release();
    let (operations, answer) = stage.entry().await;
    let left = noted.left().expect("it has left");
    assert_eq!((operations, left.ops, left.bytes, left.seq), (2, 2, 4608, WriteSeq(1)));
    assert!(left.at >= begun && noted.came().is_none());
    written(answer);
    assert_eq!((first.await, second.await), (Ok(Ok(())), Ok(Ok(()))));
    let (came, id) = noted.came().expect("it has come back");
    assert_eq!((came >= left.at, id), (true, LogId::new(1, 1)));
    // Its outcome is unknown: it has not come.
    let lost: Arc<Moments> = Arc::default();
    let operation = stage.sequencer.push(Op { moments: Some(lost.clone()), ..write(512) });
    unknown(stage.entry().await.1);
    assert_eq!(operation.await, Ok(Err(WriteFailure::Gone)));
    assert!(lost.left().is_some() && lost.came().is_none());
}

#[tokio::test]
async fn operations_share_the_entry_that_leaves_when_one_of_two_is_back() {
    let mut stage = Stage::new();
    let first = stage.sequencer.push(write(4096));
    let (operations, answer) = stage.entry().await;
    assert_eq!(operations, 1);
    let second = stage.sequencer.push(write(4096));
    let (operations, of_second) = stage.entry().await;
    assert_eq!(operations, 1, "it does not wait for the first one");
    let waiting: Vec<_> = (0..5).map(|_| stage.sequencer.push(write(4096))).collect();
    assert!(stage.rests().await);
    written(answer);
    let (operations, answer) = stage.entry().await;
    assert_eq!(operations, 5);
    assert_eq!(first.await, Ok(Ok(())));
    written(of_second);
    assert_eq!(second.await, Ok(Ok(())));
    written(answer);
    for operation in waiting {
        assert_eq!(operation.await, Ok(Ok(())));
    }
    assert!(stage.rests().await);
    let _alone = stage.sequencer.push(write(4096));
    assert_eq!(stage.entry().await.0, 1, "nothing is in flight");
}

#[tokio::test]
async fn entries_that_are_worth_it_leave_up_to_the_most_that_may_be_in_flight() {
    let mut stage = Stage::new();
    let (mut pushed, mut in_flight) = (Vec::new(), VecDeque::new());
    for _ in 0..AT_ONCE {
        pushed.push(stage.sequencer.push(write(512)));
        in_flight.push_back(stage.entry().await);
    }
    pushed.extend((1..WORTH_OPS).map(|_| stage.sequencer.push(write(512))));
    assert!(stage.rests().await);
    pushed.push(stage.sequencer.push(write(512)));
    in_flight.push_back(stage.entry().await);
    while in_flight.len() < IN_FLIGHT_MAX {
        pushed.push(stage.sequencer.push(write(WORTH_BYTES)));
        in_flight.push_back(stage.entry().await);
    }
    pushed.extend((0..3).map(|_| stage.sequencer.push(write(WORTH_BYTES))));
    assert!(stage.rests().await, "no more than {IN_FLIGHT_MAX} are in flight");
    let operations: Vec<usize> = in_flight.iter().map(|(operations, _)| *operations).collect();
    assert_eq!(operations, [1, 1, WORTH_OPS, 1]);
    let (_, answer) = in_flight.pop_front().expect("the oldest");
    written(answer);
    in_flight.push_back(stage.entry().await);
    assert_eq!(in_flight.back().expect("it left").0, 3, "what came meanwhile shares it");
    for (_, answer) in in_flight {
        written(answer);
    }
    for operation in pushed {
        assert_eq!(operation.await, Ok(Ok(())));
    }
    assert_eq!(stage.sequencer.waiting_bytes(), 0);
}

/// SEQ-S2, R8: nobody's write is answered, neither as written nor with an error.
#[tokio::test]
async fn s2_a_group_that_has_stopped_ends_the_sequencer_and_closes_the_connections() {
    let mut stage = Stage::new();
    let first = stage.sequencer.push(write(512));
    let (_, answer) = stage.entry().await;
    stage.group.stopped.store(true, Ordering::Relaxed);
    let refused = stage.sequencer.push(write(512));
    assert_eq!(refused.await, Ok(Err(WriteFailure::Gone)));
    assert!(stage.closed.is_cancelled(), "R8: closed unanswered");
    let later = stage.sequencer.push(write(512));
    assert_eq!(later.await, Ok(Err(WriteFailure::Gone)));
    written(answer);
    assert_eq!(first.await, Ok(Ok(())), "it was submitted before");
    assert!(stage.rests().await);
}

/// No task has a turn between the reply and the answers: at depth 1 a writer waits for each of them.
#[tokio::test]
async fn whoever_applies_an_entry_answers_its_operations() {
    let mut stage = Stage::new();
    let mut first = stage.sequencer.push(write(512));
    let settled = stage.sequencer.settled();
    let (_, answer) = stage.entry().await;
    assert!((&mut first).now_or_never().is_none(), "R1: it is not applied");
    written(answer);
    assert_eq!(first.now_or_never(), Some(Ok(Ok(()))));
    assert_eq!(settled.now_or_never(), Some(Ok(())), "SEQ-S4");
}

/// SEQ-S5, R12. openraft refuses an entry as soon as this member leads no more; those before it are still on their way.
#[tokio::test]
async fn s5_a_refusal_waits_for_the_entries_before_it_and_no_answer_overtakes_it() {
    let mut stage = Stage::new();
    let (mut pushed, mut replies) = (Vec::new(), Vec::new());
    for operations in [1, 1, WORTH_OPS, WORTH_OPS] {
        pushed.push((0..operations).map(|_| stage.sequencer.push(write(512))).collect::<Vec<_>>());
        let (found, reply) = stage.entry().await;
        assert_eq!(found, operations);
        replies.push(reply);
    }
    let Ok([first, second, third, fourth]) = <[Reply; 4]>::try_from(replies) else { panic!("four entries") };
    let answers = |of: &mut Vec<oneshot::Receiver<Result<(), WriteFailure>>>| {
        let mut found: Vec<_> = of.iter_mut().map(|answer| answer.now_or_never()).collect();
        found.dedup();
        found
    };
    written(fourth);
    unknown(second);
    for of in &mut pushed {
        assert_eq!(answers(of), [None], "R1, R12: none of them is known before the first one");
    }
    assert!(!stage.closed.is_cancelled());
    written(first);
    assert_eq!(answers(&mut pushed[0]), [Some(Ok(Ok(())))], "it was written before the one that is unknown");
    assert_eq!(answers(&mut pushed[1]), [Some(Ok(Err(WriteFailure::Gone)))]);
    assert_eq!(answers(&mut pushed[3]), [None], "the third one is on its way");
    assert!(stage.closed.is_cancelled(), "R8: closed unanswered");
    written(third);
    for of in &mut pushed[2..] {
        assert_eq!(answers(of), [Some(Ok(Err(WriteFailure::Gone)))], "SEQ-S2: it may hang on the one before it");
    }
    assert_eq!(stage.sequencer.push(write(512)).now_or_never(), Some(Ok(Err(WriteFailure::Gone))));
    assert!(stage.rests().await, "SEQ-S2: nothing more is submitted");
}

/// R12: a group that ends drops what it has, in any order and in any of its tasks.
#[tokio::test]
async fn s2_a_dropped_reply_ends_the_epoch_and_nobody_waits_for_ever() {
    let mut stage = Stage::new();
    let mut pushed = Vec::new();
    let mut replies = Vec::new();
    for _ in 0..AT_ONCE {
        pushed.push(stage.sequencer.push(write(512)));
        replies.push(stage.entry().await.1);
    }
    pushed.push(stage.sequencer.push(write(512)));
    while let Some(reply) = replies.pop() {
        drop(reply);
    }
    for answer in pushed {
        assert_eq!(answer.now_or_never(), Some(Ok(Err(WriteFailure::Gone))));
    }
    assert!(stage.closed.is_cancelled());
}

/// SEQ-S1: two tasks may look at the queue at the same time, and one of them still builds the entry that it took.
#[test]
fn s1_nothing_leaves_while_an_entry_is_on_its_way_to_the_group() {
    let mut queue = Queue::default();
    queue.ops.push_back((write(512), oneshot::channel().0));
    assert!(queue.may_leave());
    queue.submitting = true;
    assert!(!queue.may_leave());
}

/// At depth 1 no task has a turn between a write and its entry.
#[tokio::test]
async fn what_came_together_leaves_at_the_release_in_one_entry() {
    let mut stage = Stage::new();
    stage.sequencer.hold();
    let pushed: Vec<_> = (0..3).map(|_| stage.sequencer.push(write(512))).collect();
    assert!(stage.rests().await, "more may come");
    stage.sequencer.release();
    let (operations, answer) = stage.left().expect("submitted in this task");
    assert_eq!(operations, 3);
    written(answer);
    for answer in pushed {
        assert_eq!(answer.now_or_never(), Some(Ok(Ok(()))));
    }
    stage.sequencer.hold();
    stage.sequencer.release();
    assert!(stage.rests().await, "nothing was pushed");
}

/// R8: what its connection does not submit itself is submitted by the task of the queue, in the same order.
#[tokio::test]
async fn what_a_release_does_not_submit_leaves_all_the_same() {
    let mut stage = Stage::new();
    let hold_and_push = |stage: &Stage, operations: usize, bytes: usize| {
        stage.sequencer.hold();
        (0..operations).map(|_| stage.sequencer.push(write(bytes))).collect::<Vec<_>>()
    };
    let mut pushed = hold_and_push(&stage, 1, 512);
    pushed.extend(hold_and_push(&stage, 1, 512));
    stage.sequencer.release();
    let (operations, first) = stage.left().expect("another connection still pushes, and that is no reason to wait");
    assert_eq!(operations, 2);
    stage.sequencer.release();
    pushed.extend(hold_and_push(&stage, 1, 512));
    stage.sequencer.release();
    assert!(stage.left().is_none(), "something is in flight");
    let (operations, second) = stage.entry().await;
    assert_eq!(operations, 1);
    written(first);
    written(second);
    for (operations, bytes) in [(WORTH_OPS, 512), (1, SMALL_BYTES)] {
        pushed.extend(hold_and_push(&stage, operations, bytes));
        let (found, answer) = stage.entry().await;
        assert_eq!(found, operations, "large, and nobody waits for the end of a burst");
        written(answer);
        stage.sequencer.release();
    }
    for operation in pushed {
        assert_eq!(operation.await, Ok(Ok(())));
    }
    assert!(stage.rests().await);
}

/// The journal is full while this is set.
#[derive(Default)]
struct Filled(AtomicBool);

impl Admission for Filled {
    fn pace(&self) -> Pace {
        match self.0.load(Ordering::Relaxed) {
            true => Pace::Full(Duration::from_millis(1)),
            false => Pace::Go,
        }
    }
}

/// R8, and the bound of the journal: a connection's own task passes nothing by.
#[tokio::test]
async fn a_full_journal_holds_back_what_a_release_would_submit() {
    let filled = Arc::new(Filled(AtomicBool::new(true)));
    let mut stage = Stage::under(filled.clone());
    stage.sequencer.hold();
    let pushed = stage.sequencer.push(write(512));
    stage.sequencer.release();
    assert!(stage.left().is_none() && stage.rests().await);
    filled.0.store(false, Ordering::Relaxed);
    let (operations, answer) = stage.entry().await;
    assert_eq!(operations, 1);
    written(answer);
    assert_eq!(pushed.await, Ok(Ok(())));
}

/// SEQ-S1: a group with a full queue takes an entry later; until then no other entry may reach it. And the task of the
/// connection does not wait for that: it may end.
#[tokio::test]
async fn s1_an_entry_that_the_group_does_not_take_at_once_keeps_its_place() {
    let mut stage = Stage::new();
    let (open, door) = oneshot::channel();
    *stage.group.door.locked() = Some(door);
    stage.sequencer.hold();
    let mut pushed = vec![stage.sequencer.push(write(512))];
    stage.sequencer.release();
    assert!(stage.left().is_none(), "the group has not taken it");
    pushed.push(stage.sequencer.push(write(512)));
    stage.sequencer.hold();
    pushed.push(stage.sequencer.push(write(512)));
    stage.sequencer.release();
    assert!(stage.rests().await, "nothing overtakes it");
    open.send(()).expect("the task of the queue has it");
    for operations in [1, 2] {
        let (found, answer) = stage.entry().await;
        assert_eq!(found, operations);
        written(answer);
    }
    for operation in pushed {
        assert_eq!(operation.await, Ok(Ok(())));
    }
}

/// The epoch ends while a connection's task submits, and the group does not take the entry at once. openraft ends the
/// process if a call to a core that is stopping is dropped, so somebody must stay with it.
#[tokio::test]
async fn an_entry_on_its_way_is_not_dropped_when_its_epoch_ends() {
    let mut stage = Stage::new();
    let (shared, submitter) = (stage.sequencer.shared.clone(), stage.sequencer.submitter.clone());
    let (open, door) = oneshot::channel();
    *stage.group.door.locked() = Some(door);
    stage.sequencer.hold();
    let pushed = stage.sequencer.push(write(512));
    let taken = submitter.take(&shared).expect("it waits");
    let seq = taken.seq;
    let mut submitting = submitter.submit(&shared, taken);
    assert!(submitting.as_mut().now_or_never().is_none(), "the group has not taken it");
    stage.sequencer.stop(WriteFailure::Gone);
    assert!(stage.rests().await);
    shared.hand_over(seq, submitting);
    assert!(stage.rests().await);
    open.send(()).expect("the task of the queue has it");
    let (operations, answer) = stage.entry().await;
    assert_eq!(operations, 1);
    written(answer);
    assert_eq!(pushed.await, Ok(Ok(())), "it was submitted before");
    assert!(stage.rests().await);
    assert_eq!(Arc::strong_count(&submitter), 2, "the task of the queue has not ended");
}

/// Otherwise each epoch that ends at such a moment would leave a task behind, and its group with it.
#[tokio::test]
async fn the_task_of_the_queue_ends_behind_what_a_connection_submits() {
    let mut stage = Stage::new();
    let (shared, submitter) = (stage.sequencer.shared.clone(), stage.sequencer.submitter.clone());
    stage.sequencer.hold();
    let pushed = stage.sequencer.push(write(512));
    let taken = submitter.take(&shared).expect("it waits");
    let seq = taken.seq;
    stage.sequencer.stop(WriteFailure::Gone);
    assert!(stage.rests().await);
    assert_eq!(Arc::strong_count(&submitter), 3, "the entry may still be handed to it");
    let result = submitter.submit(&shared, taken).now_or_never().expect("the group takes it at once");
    assert!(submitter.submitted(&shared, seq, result), "nobody else wakes the task");
    shared.wake.notify_one();
    let (_, answer) = stage.left().expect("submitted in this task");
    written(answer);
    assert_eq!(pushed.now_or_never(), Some(Ok(Ok(()))));
    assert!(stage.rests().await);
    assert_eq!(Arc::strong_count(&submitter), 2, "the task of the queue has not ended");
}

/// SEQ-S2, R8: as for an entry that the task of the queue submits.
#[tokio::test]
async fn s2_a_release_at_a_group_that_has_stopped_ends_the_sequencer() {
    let mut stage = Stage::new();
    stage.group.stopped.store(true, Ordering::Relaxed);
    stage.sequencer.hold();
    let refused = stage.sequencer.push(write(512));
    stage.sequencer.release();
    assert_eq!(refused.now_or_never(), Some(Ok(Err(WriteFailure::Gone))));
    assert!(stage.closed.is_cancelled(), "R8: closed unanswered");
    stage.sequencer.hold();
    let later = stage.sequencer.push(write(512));
    stage.sequencer.release();
    assert_eq!(later.now_or_never(), Some(Ok(Err(WriteFailure::Gone))));
    assert!(stage.rests().await);
}
