//! R4: a snapshot taken at a checkpoint and a replay of the following entries, against direct apply.

use super::model_tests::{Back, back, owner};
use super::{
    RetireOf, RootRef, SetAnswer, SetCommand, SetRefusal, SetState, Snapshot, SnapshotId, StoredKind, StoredObject,
    VolumeChange, acquire_set,
};
use holdfast_types::{Epoch, LogId, MemberId, Name, ObjectId, RequestId, Sectors, Term, WriteSeq};
use proptest::collection::vec;
use proptest::prelude::*;

/// Work on checkpoints, among other entries.
#[derive(Clone, Copy, Debug)]
enum Step {
    NewLeader,
    Begin { own_term: bool },
    Segment { object: u8 },
    End { begin: Back, own_term: bool },
    Volume { name: u8 },
    Snapshot { name: u8 },
    Unsnapshot { name: u8 },
    Retire { back: Back, last: bool },
    GiveUp { begin: Back },
    Deleted,
    Acquire { owner: u8, force: bool },
    Release,
    Rollback { to: u8 },
    Write,
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        1 => Just(Step::NewLeader),
        3 => prop::bool::weighted(0.9).prop_map(|own_term| Step::Begin { own_term }),
        4 => (0u8..6).prop_map(|object| Step::Segment { object }),
        4 => (back(), prop::bool::weighted(0.9)).prop_map(|(begin, own_term)| Step::End { begin, own_term }),
        1 => (0u8..20).prop_map(|name| Step::Volume { name }),
        2 => (0u8..3).prop_map(|name| Step::Snapshot { name }),
        2 => (0u8..3).prop_map(|name| Step::Unsnapshot { name }),
        2 => (back(), any::<bool>()).prop_map(|(back, last)| Step::Retire { back, last }),
        2 => back().prop_map(|begin| Step::GiveUp { begin }),
        1 => Just(Step::Deleted),
        1 => (0u8..2, any::<bool>()).prop_map(|(owner, force)| Step::Acquire { owner, force }),
        1 => Just(Step::Release),
        2 => (0u8..3).prop_map(|to| Step::Rollback { to }),
        4 => Just(Step::Write),
    ]
}

fn object(number: u8) -> ObjectId {
    ObjectId { term: Term(1), member: MemberId(1), boot: 1, random: u128::from(number) }
}

#[derive(Clone, Debug)]
enum Entry {
    Command(SetCommand),
    Write(Epoch, WriteSeq),
}

fn apply(state: &mut SetState, id: LogId, entry: &Entry) -> Option<SetAnswer> {
    match entry {
        Entry::Command(cmd) => Some(state.apply(id, cmd)),
        Entry::Write(epoch, seq) => {
            state.admit_write(id, *epoch, *seq);
            None
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// The snapshot F(copy, root) at X and a replay of the following entries: from the end's entry on, the same answer
    /// and state at every index as with direct apply.
    #[test]
    fn r4_replay_from_a_checkpoint_is_the_straight_run(steps in vec(steps(), 1..100)) {
        let mut state = SetState::new(Epoch(0));
        let (mut term, mut begins) = (1, Vec::new());
        let mut copy = None;
        let mut log: Vec<(LogId, Entry)> = Vec::new();
        let mut straight: Vec<(SetState, Option<SetAnswer>)> = Vec::new();
        let mut snapshots: Vec<(SetState, LogId, usize)> = Vec::new();
        for (index, step) in (1u64..).zip(steps) {
            let old_term = Term(term - 1);
            let in_term = |own: bool| if own { Term(term) } else { old_term };
            let cmd = match step {
                Step::NewLeader => {
                    term += 1;
                    Entry::Write(Epoch(0), WriteSeq(0))
                }
                Step::Begin { own_term } => Entry::Command(SetCommand::CheckpointBegin { term: in_term(own_term) }),
                Step::Segment { object: number } => Entry::Command(SetCommand::SegmentCommitted {
                    term: Term(term),
                    object: object(number),
                    stored_bytes: 1,
                    raw_bytes: 2,
                }),
                Step::End { begin, own_term } => Entry::Command(SetCommand::CheckpointEnd {
                    term: in_term(own_term),
                    begin: begins.iter().rev().nth(usize::from(begin)).copied().unwrap_or_default(),
                    root: RootRef { object: object(index as u8), bytes: index },
                }),
                Step::Volume { name } => Entry::Command(SetCommand::ChangeVolume {
                    change: VolumeChange::Create { name: Name::new(format!("v{name}")).unwrap(), size: Sectors(8) },
                    request: RequestId(1 << 80 | u128::from(index)),
                }),
                Step::Snapshot { name } => Entry::Command(SetCommand::SnapshotCreate {
                    name: Name::new(format!("s{name}")).unwrap(),
                    request: RequestId(u128::from(index)),
                    at_unix_ms: index,
                    scheduled: index.is_multiple_of(2),
                }),
                Step::Unsnapshot { name } => {
                    let name = Name::new(format!("s{name}")).unwrap();
                    let made_by = state.snapshots.get(&name).map_or(RequestId(1), |found| found.request);
                    Entry::Command(SetCommand::SnapshotDelete { name, made_by })
                }
                Step::Release => Entry::Command(SetCommand::Release { epoch: state.epoch, token: None }),
                // To one of the snapshots, with the newest as the way back.
                Step::Rollback { to } => {
                    let id = |(name, found): (&Name, &Snapshot)| SnapshotId { name: name.clone(), made_by: found.request };
                    let nothing = SnapshotId { name: Name::new("none").unwrap(), made_by: RequestId(0) };
                    let safety = state.snapshots.iter().max_by_key(|(_, found)| found.upto).map(id);
                    let to = state.snapshots.iter().nth(usize::from(to)).map(id);
                    Entry::Command(SetCommand::Rollback {
                        to: to.unwrap_or_else(|| nothing.clone()),
                        safety: safety.unwrap_or(nothing),
                        request: RequestId(1 << 64 | u128::from(index)),
                    })
                }
                // As a leader would: for a root that it sees dropped; some of its objects are in use.
                Step::Retire { back, last } => {
                    let root = state.dropped.keys().rev().nth(usize::from(back)).copied().unwrap_or(object(0));
                    let segment =
                        |random| StoredObject { kind: StoredKind::Segment, object: ObjectId { random, ..object(0) } };
                    let in_use = state.kept_roots().first().map(|kept| kept.object.random).filter(|_| back > 1);
                    let objects = in_use.into_iter().chain([1000 + u128::from(index)]).map(segment).collect();
                    Entry::Command(SetCommand::Retire { term: Term(term), of: RetireOf::Root { root, last }, objects })
                }
                // Accepted or refused by the checkpoint under way, the same on a replay and with direct apply.
                Step::GiveUp { begin } => {
                    let ended = begins.iter().rev().nth(usize::from(begin)).copied().unwrap_or_default();
                    let object = ObjectId { term: Term(term), random: 2000 + u128::from(index), ..object(0) };
                    let objects = vec![StoredObject { kind: StoredKind::Pages, object }];
                    Entry::Command(SetCommand::Retire { term: Term(term), of: RetireOf::GivenUp { ended }, objects })
                }
                Step::Deleted => Entry::Command(SetCommand::Deleted {
                    term: Term(term),
                    objects: state.retired.keys().take(2).copied().collect(),
                }),
                Step::Acquire { owner: number, force } => {
                    let (owner, index) = (owner(number), u128::from(index));
                    Entry::Command(acquire_set(owner.as_str(), index, index, force))
                }
                Step::Write => Entry::Write(state.epoch, WriteSeq(state.last_seq.0 + 1)),
            };
            let id = LogId::new(term, index);
            let answer = apply(&mut state, id, &cmd);
            if let Step::Begin { own_term: false } | Step::End { own_term: false, .. } = step {
                let refusal = SetRefusal::WrongTerm { found: old_term, expected: Term(term) };
                prop_assert_eq!(answer.as_ref(), Some(&SetAnswer::Refused(refusal)));
            }
            match answer {
                Some(SetAnswer::CheckpointBegun { at }) => {
                    begins.push(at);
                    copy = Some(state.clone());
                }
                Some(SetAnswer::CheckpointEnded) => {
                    let done = state.checkpoint.unwrap();
                    let snapshot = SetState::after_checkpoint(copy.as_ref().unwrap(), done.root, done.upto);
                    snapshots.push((snapshot, done.upto, log.len()));
                }
                _ => {}
            }
            state.self_check();
            log.push((id, cmd));
            straight.push((state.clone(), answer));
        }
        for (snapshot, upto, end) in snapshots {
            let mut replayed = snapshot;
            for (place, (id, entry)) in log.iter().enumerate().filter(|(_, (id, _))| id.index > upto.index) {
                let answer = apply(&mut replayed, *id, entry);
                replayed.self_check();
                if place >= end {
                    prop_assert_eq!(&answer, &straight[place].1, "at {}", id);
                    prop_assert_eq!(&replayed, &straight[place].0, "states differ at {} after replay from the snapshot at {}", id, upto);
                }
            }
        }
    }
}
