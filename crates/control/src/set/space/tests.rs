//! What a snapshot retains, and what may never be retired.

use crate::set::create_volume;
use crate::set::{
    DROPPED_MAX, RETIRE_OBJECTS_MAX, RETIRED_MAX, RetireOf, RootRef, SNAPSHOTS_MAX, SetAnswer, SetCommand, SetRefusal,
    SetState, StoredKind, StoredObject, Taken, taken,
};
use holdfast_types::{Epoch, LogId, MemberId, Name, ObjectId, RequestId, Term};

/// A set with consecutively numbered entries.
struct Run {
    state: SetState,
    term: u64,
    index: u64,
}

fn object(term: u64, random: u128) -> ObjectId {
    ObjectId { term: Term(term), member: MemberId(1), boot: 1, random }
}

fn root(random: u128) -> RootRef {
    RootRef { object: object(1, random), bytes: 9 }
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn segment(term: u64, random: u128) -> StoredObject {
    StoredObject { kind: StoredKind::Segment, object: object(term, random) }
}

impl Run {
    fn new() -> Self {
        Self { state: SetState::new(Epoch(0)), term: 1, index: 0 }
    }

    fn apply(&mut self, command: &SetCommand) -> SetAnswer {
        self.index += 1;
        let answer = self.state.apply(LogId::new(self.term, self.index), command);
        self.state.self_check();
        answer
    }

    fn create(&mut self, text: &str, request: u128) -> SetAnswer {
        let request = RequestId(request);
        self.apply(&SetCommand::SnapshotCreate { name: name(text), request, at_unix_ms: 7, scheduled: false })
    }

    fn delete(&mut self, text: &str) -> SetAnswer {
        let (there, waits) = (self.state.snapshots.get(&name(text)), self.state.pending.get(&name(text)));
        let made_by = there.map(|found| found.request).or(waits.map(|found| found.request)).unwrap_or(RequestId(0));
        self.apply(&SetCommand::SnapshotDelete { name: name(text), made_by })
    }

    fn begin(&mut self) -> LogId {
        self.apply(&SetCommand::CheckpointBegin { term: Term(self.term) });
        LogId::new(self.term, self.index)
    }

    fn end(&mut self, begin: LogId, to: RootRef) -> SetAnswer {
        self.apply(&SetCommand::CheckpointEnd { term: Term(self.term), begin, root: to })
    }

    fn checkpoint(&mut self, to: u128) {
        let begin = self.begin();
        assert_eq!(self.end(begin, root(to)), SetAnswer::CheckpointEnded);
    }

    fn retire(&mut self, of: RetireOf, objects: Vec<StoredObject>) -> SetAnswer {
        self.apply(&SetCommand::Retire { term: Term(self.term), of, objects })
    }

    fn dropped(&self) -> Vec<u128> {
        self.state.dropped.keys().map(|object| object.random).collect()
    }
}

#[test]
fn a_snapshot_is_the_root_and_the_volumes_of_the_next_begin() {
    let mut run = Run::new();
    run.apply(&create_volume("v1", 8));
    assert_eq!(run.create("s", 5), SetAnswer::SnapshotAsked);
    assert_eq!(run.create("s", 5), SetAnswer::SnapshotAsked, "R12: the same request again");
    let taken = SetAnswer::Refused(SetRefusal::SnapshotNameTaken { name: name("s") });
    assert_eq!(run.create("s", 6), taken);
    let given_up = run.begin();
    run.apply(&create_volume("v2", 8));
    let begin = run.begin();
    run.apply(&create_volume("v3", 8));
    assert_eq!(run.create("late", 8), SetAnswer::SnapshotAsked);
    assert!(matches!(run.end(given_up, root(1)), SetAnswer::Refused(_)));
    assert!(run.state.snapshots.is_empty());
    run.end(begin, root(2));
    let snapshot = run.state.snapshots.get(&name("s")).cloned().unwrap();
    assert_eq!((snapshot.root, snapshot.upto, snapshot.at_unix_ms), (root(2), begin, 7));
    assert_eq!(snapshot.volumes.len(), 2, "SET-S6: as of the begin that counted");
    // A snapshot requested after the begin waits for the next one.
    assert_eq!(run.state.pending.len(), 1);
    assert_eq!(run.create("s", 6), taken);
    run.checkpoint(3);
    assert!(run.state.snapshots.contains_key(&name("late")));
}

#[test]
fn a_root_is_dropped_when_nothing_keeps_it_any_more() {
    let mut run = Run::new();
    run.checkpoint(1);
    run.create("s", 1);
    run.create("twin", 2);
    run.checkpoint(2);
    assert_eq!(run.dropped(), [1]);
    run.checkpoint(3);
    assert_eq!(run.dropped(), [1], "2 is kept by two snapshots");
    assert_eq!(run.state.kept_roots(), [root(3), root(2)]);
    run.delete("s");
    assert_eq!(run.dropped(), [1]);
    assert_eq!(run.delete("twin"), SetAnswer::SnapshotDeleted { existed: true });
    assert_eq!(run.dropped(), [1, 2]);
    assert_eq!(run.delete("twin"), SetAnswer::SnapshotDeleted { existed: false });
    // The snapshot of the current root is deleted: the checkpoint still retains the root, also while the next is under
    // way.
    run.create("now", 3);
    run.checkpoint(4);
    let begin = run.begin();
    run.delete("now");
    assert_eq!(run.dropped(), [1, 2, 3]);
    run.end(begin, root(5));
    assert_eq!(run.dropped(), [1, 2, 3, 4]);
}

#[test]
fn what_is_kept_or_may_be_on_its_way_is_never_retired() {
    let mut run = Run::new();
    run.create("s", 1);
    run.checkpoint(1);
    run.checkpoint(2);
    run.checkpoint(3);
    run.term = 4;
    run.begin();
    let note = SetCommand::SegmentCommitted { term: Term(4), object: object(4, 50), stored_bytes: 1, raw_bytes: 1 };
    run.apply(&note);
    let of = RetireOf::Root { root: object(1, 2), last: true };
    let kind = StoredKind::Root;
    // The snapshot's root, the current one, one with objects still to be retired, a segment of the checkpoint under
    // way.
    for bad in [object(1, 1), object(1, 3), object(1, 2), object(4, 50)] {
        let refused = SetAnswer::Refused(SetRefusal::StillInUse { object: bad });
        assert_eq!(run.retire(of, vec![segment(1, 70), StoredObject { kind, object: bad }]), refused);
        assert!(run.state.retired.is_empty(), "expected all or nothing to be retired");
    }
    // An orphan of this term or a later one may still become part of a root.
    for term in [4, 5] {
        let refused = SetAnswer::Refused(SetRefusal::StillInUse { object: object(term, 9) });
        assert_eq!(run.retire(RetireOf::Orphans, vec![segment(term, 9)]), refused);
    }
    let stale = SetCommand::Retire { term: Term(3), of: RetireOf::Orphans, objects: vec![segment(1, 9)] };
    assert!(matches!(run.apply(&stale), SetAnswer::Refused(SetRefusal::WrongTerm { .. })));
    assert_eq!(run.retire(RetireOf::Orphans, vec![segment(3, 9)]), SetAnswer::Retired);
    // The root itself goes with the last of its objects.
    let of = |last| RetireOf::Root { root: object(1, 2), last };
    assert_eq!(run.retire(of(false), vec![segment(1, 70)]), SetAnswer::Retired);
    assert_eq!(run.dropped(), [2]);
    assert_eq!(run.retire(of(true), vec![]), SetAnswer::Retired);
    assert_eq!((run.dropped(), run.state.retired.get(&object(1, 2))), (vec![], Some(&StoredKind::Root)));
    // A second copy in the log after the deletion only causes a second deletion.
    let gone = SetCommand::Deleted { term: Term(4), objects: vec![object(1, 2), object(1, 70), object(3, 9)] };
    assert_eq!(run.apply(&gone), SetAnswer::DeletionNoted);
    assert!(run.state.retired.is_empty());
    assert_eq!(run.retire(of(true), vec![segment(1, 70)]), SetAnswer::Retired);
    assert_eq!(run.state.retired.len(), 1);
}

/// SET-S8: of this term only objects of checkpoints before one that has ended.
#[test]
fn what_a_checkpoint_gave_up_is_retired_once_a_later_one_has_ended() {
    let mut run = Run::new();
    run.term = 4;
    let made = |random| vec![segment(4, random)];
    let given_up = |ended| RetireOf::GivenUp { ended };
    let not_over = |found, under_way| SetAnswer::Refused(SetRefusal::NotOver { found, under_way });
    // The first does not end; its end may still be in flight.
    let first = run.begin();
    let late = SetCommand::CheckpointEnd { term: Term(4), begin: first, root: root(1) };
    assert_eq!(run.retire(given_up(first), made(50)), not_over(first, Some(first)), "it is under way");
    let second = run.begin();
    assert_eq!(run.retire(given_up(second), made(50)), not_over(second, Some(second)), "it has not ended");
    assert_eq!(run.end(second, root(2)), SetAnswer::CheckpointEnded);
    assert!(matches!(run.apply(&late), SetAnswer::Refused(SetRefusal::NotLatestBegin { .. })), "SET-S5");
    // From here on no root can name the first one's objects. A third may be under way.
    let third = run.begin();
    let note = SetCommand::SegmentCommitted { term: Term(4), object: object(4, 60), stored_bytes: 1, raw_bytes: 1 };
    run.apply(&note);
    let ahead = LogId::new(4, run.index + 9);
    for (found, why) in [(third, "it is under way"), (LogId::new(3, 1), "another term"), (ahead, "not there yet")] {
        assert_eq!(run.retire(given_up(found), made(50)), not_over(found, Some(third)), "{why}");
    }
    // Objects in use according to the state, and objects of other terms, are refused as well.
    for bad in [object(1, 2), object(4, 60), object(3, 50), object(5, 50)] {
        let objects = vec![segment(4, 50), StoredObject { kind: StoredKind::Segment, object: bad }];
        let refused = SetAnswer::Refused(SetRefusal::StillInUse { object: bad });
        assert_eq!(run.retire(given_up(second), objects), refused);
        assert!(run.state.retired.is_empty(), "expected all or nothing to be retired");
    }
    assert_eq!(run.retire(given_up(second), made(50)), SetAnswer::Retired);
    assert_eq!(run.state.retired.get(&object(4, 50)), Some(&StoredKind::Segment));
    // Another leader does not know them; its sweep of earlier terms finds them.
    run.term = 5;
    assert_eq!(run.retire(given_up(second), made(51)), not_over(second, Some(third)));
    assert_eq!(run.retire(RetireOf::Orphans, vec![segment(4, 51)]), SetAnswer::Retired);
}

#[test]
fn there_are_so_many_snapshots_and_retired_objects_and_no_more() {
    let mut run = Run::new();
    for number in 0..SNAPSHOTS_MAX {
        assert_eq!(run.create(&format!("s{number}"), number as u128), SetAnswer::SnapshotAsked);
        if number == 3 {
            run.checkpoint(1);
        }
    }
    let full = SetAnswer::Refused(SetRefusal::TooManySnapshots { max: SNAPSHOTS_MAX as u32 });
    assert_eq!(run.create("more", 1 << 40), full);
    run.delete("s0");
    assert_eq!(run.create("more", 1 << 40), SetAnswer::SnapshotAsked);
    run.term = 2;
    let many = |from: usize, count: usize| (from..from + count).map(|n| segment(1, 1000 + n as u128)).collect();
    let refused = |found: usize, max: usize| {
        SetAnswer::Refused(SetRefusal::TooManyRetired { found: found as u32, max: max as u32 })
    };
    let more = RETIRE_OBJECTS_MAX + 1;
    assert_eq!(run.retire(RetireOf::Orphans, many(0, more)), refused(more, RETIRE_OBJECTS_MAX));
    for from in (0..RETIRED_MAX - RETIRE_OBJECTS_MAX).step_by(RETIRE_OBJECTS_MAX) {
        assert_eq!(run.retire(RetireOf::Orphans, many(from, RETIRE_OBJECTS_MAX)), SetAnswer::Retired);
    }
    let last = RETIRE_OBJECTS_MAX - 1;
    let from = RETIRED_MAX - RETIRE_OBJECTS_MAX;
    assert_eq!(run.retire(RetireOf::Orphans, many(from, RETIRE_OBJECTS_MAX)), refused(RETIRE_OBJECTS_MAX, last));
    assert_eq!(run.retire(RetireOf::Orphans, many(from, last)), SetAnswer::Retired);
    assert_eq!(run.retire(RetireOf::Orphans, vec![segment(1, 5)]), refused(1, 0));
}

/// A root beyond the bound is found by the sweep for orphans; the first ones are not forgotten for it.
#[test]
fn there_are_so_many_dropped_roots_and_no_more() {
    let mut run = Run::new();
    let last = DROPPED_MAX as u128 + 3;
    (1..=last).for_each(|number| run.checkpoint(number));
    assert_eq!(run.dropped(), (1..=DROPPED_MAX as u128).collect::<Vec<_>>());
    assert_eq!(run.retire(RetireOf::Root { root: object(1, 1), last: true }, vec![]), SetAnswer::Retired);
    run.checkpoint(last + 1);
    assert_eq!((run.dropped().len(), run.dropped().last().copied()), (DROPPED_MAX, Some(last)), "there was room");
}

/// SCHED-C3: a schedule deletes what it took. What a user took is not shown to it.
#[test]
fn a_schedule_sees_what_it_took_and_nothing_else() {
    let mut run = Run::new();
    let mut ask = |text: &str, request: u128, scheduled| {
        let (request, at_unix_ms) = (RequestId(request), 100 * request as u64);
        let asked = SetCommand::SnapshotCreate { name: name(text), request, at_unix_ms, scheduled };
        assert_eq!(run.apply(&asked), SetAnswer::SnapshotAsked);
        if request == RequestId(2) {
            run.checkpoint(1);
        }
    };
    for (text, request, scheduled) in [("auto-1", 1, true), ("mine", 2, false), ("auto-2", 3, true), ("own", 4, false)]
    {
        ask(text, request, scheduled);
    }
    let one = |text: &str, request: u128, finished| Taken {
        name: name(text),
        made_by: RequestId(request),
        at_unix_ms: 100 * request as u64,
        finished,
    };
    assert_eq!(taken(&run.state), [one("auto-1", 1, true), one("auto-2", 3, false)], "SCHED-C2: one waits");
}
