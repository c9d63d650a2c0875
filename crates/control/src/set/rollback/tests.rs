//! Conditions and effects of a rollback, and late copies of its request.

use crate::set::{
    Limit, RetireOf, RootRef, SPACE_REQUESTS_REMEMBERED, SetAnswer, SetCommand, SetRefusal, SetState, SnapshotId,
    StoredKind, StoredObject,
};
use crate::set::{acquire_set, create_volume};
use holdfast_types::{Epoch, LogId, LogIndex, MemberId, Name, ObjectId, RequestId, Term, VolumeId, WriteSeq};

/// A set with consecutively numbered entries, in term 1.
struct Run {
    state: SetState,
    index: u64,
}

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn root(random: u128) -> RootRef {
    RootRef { object: ObjectId { term: Term(1), member: MemberId(1), boot: 1, random }, bytes: 9 }
}

fn id(text: &str, made_by: u128) -> SnapshotId {
    SnapshotId { name: name(text), made_by: RequestId(made_by) }
}

impl Run {
    fn new() -> Self {
        let mut run = Self { state: SetState::new(Epoch(0)), index: 0 };
        run.apply(&create_volume("v1", 8));
        run
    }

    fn next(&mut self) -> LogId {
        self.index += 1;
        LogId::new(1, self.index)
    }

    fn apply(&mut self, command: &SetCommand) -> SetAnswer {
        let id = self.next();
        let answer = self.state.apply(id, command);
        self.state.self_check();
        answer
    }

    fn acquire(&mut self) -> Epoch {
        let token = u128::from(self.index) + 1;
        let command = acquire_set("db", token, 1 << 60 | token, true);
        assert!(matches!(self.apply(&command), SetAnswer::Granted(_)));
        self.state.epoch
    }

    fn write(&mut self, epoch: Epoch) {
        let (id, seq) = (self.next(), WriteSeq(self.state.last_seq.0 + 1));
        self.state.admit_write(id, epoch, seq);
        self.state.self_check();
    }

    fn release(&mut self) {
        let epoch = self.state.epoch;
        assert_eq!(self.apply(&SetCommand::Release { epoch, token: None }), SetAnswer::Released);
    }

    fn create(&mut self, text: &str, made_by: u128) -> SetAnswer {
        self.apply(&SetCommand::SnapshotCreate {
            name: name(text),
            request: RequestId(made_by),
            at_unix_ms: 7,
            scheduled: false,
        })
    }

    fn delete(&mut self, text: &str, made_by: u128) -> SetAnswer {
        self.apply(&SetCommand::SnapshotDelete { name: name(text), made_by: RequestId(made_by) })
    }

    fn begin(&mut self) -> LogId {
        self.apply(&SetCommand::CheckpointBegin { term: Term(1) });
        LogId::new(1, self.index)
    }

    fn end(&mut self, begin: LogId, to: u128) -> SetAnswer {
        self.apply(&SetCommand::CheckpointEnd { term: Term(1), begin, root: root(to) })
    }

    /// A snapshot of the set's present state, with root `to`.
    fn snapshot(&mut self, text: &str, made_by: u128, to: u128) -> SnapshotId {
        assert_eq!(self.create(text, made_by), SetAnswer::SnapshotAsked);
        let begin = self.begin();
        assert_eq!(self.end(begin, to), SetAnswer::CheckpointEnded);
        id(text, made_by)
    }

    fn rollback(&mut self, to: &SnapshotId, safety: &SnapshotId, request: u128) -> SetAnswer {
        let (to, safety) = (to.clone(), safety.clone());
        self.apply(&SetCommand::Rollback { to, safety, request: RequestId(request) })
    }

    /// `a` with root 1, then a write, then `safe` with root 2; the set is free.
    fn prepared() -> (Self, SnapshotId, SnapshotId) {
        let mut run = Self::new();
        let epoch = run.acquire();
        run.write(epoch);
        let a = run.snapshot("a", 100, 1);
        run.write(epoch);
        run.release();
        let safe = run.snapshot("safe", 101, 2);
        (run, a, safe)
    }
}

const DONE: SetAnswer = SetAnswer::RolledBack { now: true };

#[test]
fn the_set_becomes_what_the_snapshot_shows() {
    let (mut run, a, _) = Run::prepared();
    run.apply(&create_volume("v2", 8));
    let limit = Limit { iops: 100, bytes_per_s: 0, burst_ms: 1000 };
    for (volume, request) in [(1, 150), (2, 151)] {
        let volume = Some(VolumeId(volume));
        let answer = run.apply(&SetCommand::SetLimit { volume, limit, request: RequestId(request) });
        assert_eq!(answer, SetAnswer::LimitSet);
    }
    let safe = run.snapshot("safe2", 103, 3);
    let epoch = run.state.epoch;
    assert_eq!(run.rollback(&a, &safe, 200), DONE);
    assert_eq!(run.state.current_root(), Some(root(1)));
    assert_eq!(run.state.volumes.len(), 1, "R4: the volumes of the snapshot, all of them and no other");
    assert_eq!(run.state.limits.volumes.keys().collect::<Vec<_>>(), [&VolumeId(1)], "SET-S18");
    assert_eq!(run.state.next_volume, 3, "ids are never reused");
    assert_eq!(run.state.rolled_back, Some(LogId::new(1, run.index)));
    assert!(run.state.lease.is_none() && run.acquire() > epoch, "R6");
    // And back, through the safety snapshot.
    run.release();
    let again = run.snapshot("again", 104, 4);
    assert_eq!(run.state.rolled_back, None);
    assert_eq!(run.rollback(&safe, &again, 201), DONE);
    assert_eq!((run.state.current_root(), run.state.volumes.len()), (Some(root(3)), 2));
}

#[test]
fn a_held_set_is_not_rolled_back() {
    let (mut run, a, safe) = Run::prepared();
    run.acquire();
    assert!(matches!(run.rollback(&a, &safe, 200), SetAnswer::Refused(SetRefusal::Held { .. })));
    assert_eq!(run.state.current_root(), Some(root(2)));
}

#[test]
fn the_way_back_must_lead_to_what_is_there() {
    let (mut run, a, safe) = Run::prepared();
    let epoch = run.acquire();
    run.write(epoch);
    run.release();
    let upto = run.state.snapshots[&safe.name].upto.index;
    let changed = LogIndex(run.index - 1);
    let refused = SetRefusal::ChangedSinceSnapshot { name: safe.name.clone(), upto, changed };
    assert_eq!(run.rollback(&a, &safe, 200), SetAnswer::Refused(refused), "R4: a write would be lost for good");
    // A rollback changes the content too: the older safety snapshot does not show it.
    let (mut run, a, safe) = Run::prepared();
    assert_eq!(run.rollback(&a, &safe, 200), DONE);
    let changed = SetAnswer::Refused(SetRefusal::ChangedSinceSnapshot {
        name: safe.name.clone(),
        upto: run.state.snapshots[&safe.name].upto.index,
        changed: LogIndex(run.index),
    });
    assert_eq!(run.rollback(&safe, &safe, 201), changed);
    // A volume that only the present set has.
    let (mut run, a, safe) = Run::prepared();
    run.apply(&create_volume("v2", 8));
    assert!(matches!(run.rollback(&a, &safe, 200), SetAnswer::Refused(SetRefusal::ChangedSinceSnapshot { .. })));
    // A pending snapshot, one of another request, and a deleted one.
    let (mut run, a, safe) = Run::prepared();
    assert_eq!(run.create("late", 300), SetAnswer::SnapshotAsked);
    for bad in [id("late", 300), id("a", 999), id("none", 1)] {
        let refused = SetRefusal::NoSuchSnapshot { name: bad.name.clone(), made_by: bad.made_by };
        assert_eq!(run.rollback(&bad, &safe, 200), SetAnswer::Refused(refused.clone()));
        assert_eq!(run.rollback(&a, &bad, 200), SetAnswer::Refused(refused));
    }
}

#[test]
fn a_checkpoint_under_way_does_not_bring_the_old_content_back() {
    let (mut run, a, safe) = Run::prepared();
    let begin = run.begin();
    let note = SetCommand::SegmentCommitted { term: Term(1), object: root(50).object, stored_bytes: 1, raw_bytes: 1 };
    assert_eq!(run.apply(&note), SetAnswer::SegmentNoted);
    assert_eq!(run.rollback(&a, &safe, 200), DONE);
    let refused = SetRefusal::NotLatestBegin { found: begin, latest: None };
    assert_eq!(run.end(begin, 9), SetAnswer::Refused(refused));
    assert_eq!(run.state.current_root(), Some(root(1)));
    assert_eq!(run.apply(&note), SetAnswer::Refused(SetRefusal::NoBegin));
}

/// The store's head names the state before the rollback until a checkpoint after it has ended: a recovery needs all of
/// that.
#[test]
fn nothing_is_retired_before_the_next_checkpoint() {
    let (mut run, a, safe) = Run::prepared();
    assert_eq!(run.rollback(&a, &safe, 200), DONE);
    let at = LogId::new(1, run.index);
    assert_eq!(run.delete("safe", 101), SetAnswer::SnapshotDeleted { existed: true });
    assert!(run.state.dropped.contains_key(&root(2).object), "SET-S7");
    let objects = vec![StoredObject { kind: StoredKind::Segment, object: root(70).object }];
    let of = RetireOf::Root { root: root(2).object, last: true };
    let retire = SetCommand::Retire { term: Term(1), of, objects };
    assert_eq!(run.apply(&retire), SetAnswer::Refused(SetRefusal::NotCheckpointed { at }));
    let begin = run.begin();
    assert_eq!(run.apply(&retire), SetAnswer::Refused(SetRefusal::NotCheckpointed { at }));
    assert_eq!(run.end(begin, 5), SetAnswer::CheckpointEnded);
    assert_eq!(run.apply(&retire), SetAnswer::Retired);
    // Only the snapshot itself retains the root of the rollback again.
    assert_eq!(run.delete("a", 100), SetAnswer::SnapshotDeleted { existed: true });
    assert!(run.state.dropped.contains_key(&root(1).object));
}

#[test]
fn s11_a_late_copy_of_a_deletion_hits_no_newer_snapshot() {
    let mut run = Run::new();
    run.snapshot("s", 1, 1);
    assert_eq!(run.delete("s", 1), SetAnswer::SnapshotDeleted { existed: true });
    run.snapshot("s", 2, 2);
    assert_eq!(run.delete("s", 1), SetAnswer::SnapshotDeleted { existed: false });
    assert!(run.state.snapshots.contains_key(&name("s")), "SET-S11");
    // A pending one too.
    run.create("t", 3);
    assert_eq!(run.delete("t", 1), SetAnswer::SnapshotDeleted { existed: false });
    assert_eq!(run.delete("t", 3), SetAnswer::SnapshotDeleted { existed: true });
    assert!(run.state.pending.is_empty());
}

#[test]
fn a_refused_rollback_leaves_no_safety_snapshot_and_one_that_may_have_been_done_does() {
    let (mut run, a, safe) = Run::prepared();
    let epoch = run.acquire();
    let refusal = |answer| match answer {
        SetAnswer::Refused(refusal) => refusal,
        other => panic!("{other:?}"),
    };
    let held = refusal(run.rollback(&a, &safe, 200));
    run.write(epoch);
    run.release();
    let changed = refusal(run.rollback(&a, &safe, 200));
    for refusal in [&held, &changed] {
        assert!(run.state.takes_up_space(&safe, refusal), "{refusal:?}");
    }
    // The answer of another state than this request met.
    let gone = refusal(run.rollback(&id("none", 1), &safe, 200));
    assert!(!run.state.takes_up_space(&safe, &gone), "{gone:?}");
}

#[test]
fn s11_a_late_copy_of_a_creation_or_a_rollback_does_nothing() {
    let (mut run, a, safe) = Run::prepared();
    assert_eq!(run.delete("a", 100), SetAnswer::SnapshotDeleted { existed: true });
    assert_eq!(run.create("a", 100), SetAnswer::Refused(SetRefusal::RequestDone));
    assert_eq!(run.create("other", 100), SetAnswer::Refused(SetRefusal::RequestDone));
    assert!(run.state.pending.is_empty());

    let b = run.snapshot("b", 102, 3);
    assert_eq!(run.rollback(&safe, &b, 200), DONE);
    let c = run.snapshot("c", 103, 4);
    assert_eq!(run.rollback(&b, &c, 201), DONE);
    let d = run.snapshot("d", 104, 5);
    let before = run.state.clone();
    assert_eq!(run.rollback(&safe, &d, 200), SetAnswer::RolledBack { now: false });
    assert_eq!(run.state, before);
    // The number of remembered requests is exactly the promised one.
    for number in 0..SPACE_REQUESTS_REMEMBERED as u128 {
        assert_eq!(run.create("many", 1000 + number), SetAnswer::SnapshotAsked);
        assert_eq!(run.delete("many", 1000 + number), SetAnswer::SnapshotDeleted { existed: true });
    }
    assert_eq!(run.state.space_requests.len(), SPACE_REQUESTS_REMEMBERED);
    assert_eq!(run.create("many", 1000), SetAnswer::Refused(SetRefusal::RequestDone));
    assert_eq!(
        run.rollback(&a, &d, 200),
        SetAnswer::Refused(SetRefusal::NoSuchSnapshot { name: a.name.clone(), made_by: a.made_by })
    );
}
