use super::*;
use crate::map::Root;
use crate::object::tests::object;
use crate::space::Orphans;
use holdfast_control::set::{Checkpoint, RetireOf, RootRef, SetAnswer, SetCommand, StoredKind, StoredObject};
use holdfast_types::{Epoch, Sectors};

const TERM: Term = Term(4);

fn own(random: u128) -> ObjectId {
    ObjectId { term: TERM, ..object(random) }
}

/// A leader, and the state of its set.
struct Run {
    state: SetState,
    index: u64,
    given_up: GivenUp,
}

impl Run {
    fn new() -> Self {
        Self { state: SetState::new(Epoch(0)), index: 0, given_up: GivenUp::default() }
    }

    fn apply(&mut self, command: &SetCommand) -> SetAnswer {
        self.index += 1;
        let answer = self.state.apply(LogId::new(TERM.0, self.index), command);
        self.state.self_check();
        answer
    }

    /// Begins a try that writes these objects.
    fn begin(&mut self, made: impl IntoIterator<Item = u128>) -> LogId {
        let answer = self.apply(&SetCommand::CheckpointBegin { term: TERM });
        let SetAnswer::CheckpointBegun { at } = answer else { panic!("{answer:?}") };
        self.given_up.begin(at);
        made.into_iter().for_each(|random| self.given_up.made(own(random)));
        at
    }

    /// Its end is applied, possibly without its proposer's knowledge.
    fn end(&mut self, begin: LogId, root: u128) {
        let end = SetCommand::CheckpointEnd { term: TERM, begin, root: RootRef { object: own(root), bytes: 9 } };
        assert_eq!(self.apply(&end), SetAnswer::CheckpointEnded);
    }

    fn lapsed(&self) -> Vec<u128> {
        self.given_up.lapsed(TERM, &self.state).objects.iter().map(|object| object.random).collect()
    }
}

#[test]
fn g4_what_was_given_up_is_judged_once_a_later_checkpoint_has_ended() {
    let mut run = Run::new();
    run.begin([1, 2]);
    assert!(run.lapsed().is_empty(), "its end may be on its way");
    let second = run.begin([3]);
    assert!(run.lapsed().is_empty(), "no end of the first counts, but the head may name its root");
    run.end(second, 30);
    assert_eq!(run.lapsed(), [1, 2], "and not what the last one made, told or not");
    run.given_up.ended(second);
    assert_eq!(run.given_up.count(), 2);
    run.begin([4]);
    assert_eq!(run.lapsed(), [1, 2], "whatever is under way now");
    run.given_up.forget([own(1)].into_iter());
    assert_eq!(run.lapsed(), [2]);
    // Says nothing about another term, nor to another one.
    assert!(run.given_up.lapsed(Term(5), &run.state).objects.is_empty());
    run.given_up.begin(LogId::new(5, 99));
    assert_eq!((run.given_up.count(), run.lapsed()), (0, vec![]));
}

/// A rollback replaces a checkpoint, and its root is in no head yet.
#[test]
fn g4_a_rollback_is_no_later_checkpoint() {
    let mut run = Run::new();
    run.begin([1]);
    let upto = LogId::new(TERM.0, 50);
    run.state.begin = None;
    run.state.checkpoint = Some(Checkpoint { upto, root: RootRef { object: own(30), bytes: 9 } });
    run.state.rolled_back = Some(upto);
    assert!(run.lapsed().is_empty());
    run.index = 60;
    let next = run.begin([]);
    run.end(next, 31);
    assert_eq!(run.lapsed(), [1]);
}

/// R12: the end of the first was applied without its leader's knowledge: its objects are named by the next root, by a
/// snapshot, or by none.
#[test]
fn g4_what_a_kept_root_names_is_spared() {
    let mut run = Run::new();
    let first = run.begin([1, 2, 3, 30]);
    run.end(first, 30);
    assert!(run.lapsed().is_empty());
    let second = run.begin([4, 31]);
    run.end(second, 31);
    run.given_up.ended(second);
    let third = run.begin([5]);
    let lapsed = run.given_up.lapsed(TERM, &run.state);
    let mut orphans = Orphans::new(TERM, [own(7)].into_iter(), lapsed);
    for (root, names) in [(31, [1, 4]), (30, [2, 1])] {
        let mut kept = Root::new(second);
        names.into_iter().for_each(|segment| kept.add_segment(own(segment), 512, Sectors(1)));
        orphans.keep(own(root), &kept);
    }
    let found: Vec<u128> = (0..99).filter(|random| orphans.is_orphan(own(*random))).collect();
    assert_eq!(found, [3], "of this term nothing else, whether or not anything names it");
    let earlier = ObjectId { term: Term(3), ..object(7) };
    assert!(orphans.is_orphan(earlier));
    assert!(!orphans.is_orphan(ObjectId { term: Term(5), ..object(3) }));
    // Each for its own reason.
    let stored = |object| StoredObject { kind: StoredKind::Segment, object };
    let all = [(StoredKind::Segment, own(3)), (StoredKind::Segment, earlier)];
    let expected =
        [(RetireOf::Orphans, vec![stored(earlier)]), (RetireOf::GivenUp { ended: second }, vec![stored(own(3))])];
    assert_eq!(orphans.entries(&all, 9), expected);
    for (of, objects) in orphans.entries(&all, 9) {
        assert_eq!(run.apply(&SetCommand::Retire { term: TERM, of, objects }), SetAnswer::Retired, "SET-S8");
    }
    // Named objects are handled by garbage collection of roots.
    run.given_up.forget(orphans.named_after_all());
    run.given_up.forget([own(3)].into_iter());
    assert_eq!((run.lapsed(), run.given_up.count()), (vec![], 1));
    run.given_up.ended(third);
    assert_eq!(run.given_up.count(), 0);
}

#[test]
fn g4_what_was_spared_is_none() {
    let mut run = Run::new();
    run.begin([1, 2]);
    let next = run.begin([]);
    run.end(next, 30);
    let orphans = Orphans::new(TERM, [own(2)].into_iter(), run.given_up.lapsed(TERM, &run.state));
    assert!(orphans.is_orphan(own(1)));
    assert!(!orphans.is_orphan(own(2)), "it is retired already, or noted");
}

#[test]
fn so_much_is_remembered_and_no_more() {
    let mut run = Run::new();
    run.begin(0..GIVEN_UP_MAX as u128 + 5);
    assert_eq!(run.given_up.count(), GIVEN_UP_MAX);
    run.begin([1 << 100]);
    assert_eq!(run.given_up.count(), GIVEN_UP_MAX, "it waits for the next term");
    run.given_up.forget([own(7)].into_iter());
    run.given_up.made(own(1 << 100));
    assert_eq!(run.given_up.count(), GIVEN_UP_MAX, "there is room again");
}
