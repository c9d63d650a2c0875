//! Effect and removal of pins, and pins in a head.

use super::{CLONE_DEPTH_MAX, CloneOf, Links, PINS_MAX, Pin, PinStanding};
use crate::cluster::{ClusterAnswer, ClusterCommand, ClusterRefusal, ClusterState, Member, Standing, member};
use crate::set::{Restored, RetireOf, RootRef, SetAnswer, SetCommand, SetRefusal, SetState, SnapshotId};
use crate::set::{StoredKind, StoredObject};
use holdfast_types::{Epoch, GroupId, LogId, MemberId, Name, ObjectId, RequestId, SetId, Term};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn root(random: u128) -> RootRef {
    RootRef { object: ObjectId { term: Term(1), member: MemberId(1), boot: 1, random }, bytes: 9 }
}

/// A set with consecutively numbered entries; its checkpoints have the roots 1, 2, …
struct Run {
    state: SetState,
    index: u64,
    roots: u128,
}

impl Run {
    fn new(state: SetState) -> Self {
        Self { state, index: 0, roots: 0 }
    }

    fn apply(&mut self, command: &SetCommand) -> SetAnswer {
        self.index += 1;
        let answer = self.state.apply(LogId::new(1, self.index), command);
        self.state.self_check();
        answer
    }

    fn checkpoint(&mut self) {
        self.apply(&SetCommand::CheckpointBegin { term: Term(1) });
        let begin = LogId::new(1, self.index);
        self.roots += 1;
        let answer = self.apply(&SetCommand::CheckpointEnd { term: Term(1), begin, root: root(self.roots) });
        assert_eq!(answer, SetAnswer::CheckpointEnded);
    }

    fn snapshot(&mut self, text: &str, request: u128) {
        let request = RequestId(request);
        self.apply(&SetCommand::SnapshotCreate { name: name(text), request, at_unix_ms: 7, scheduled: false });
        self.checkpoint();
    }

    fn pin(&mut self, clone: u64, snapshot: &str, made_by: u128, request: u128) -> SetAnswer {
        let snapshot = SnapshotId { name: name(snapshot), made_by: RequestId(made_by) };
        self.apply(&SetCommand::Pin { clone: GroupId(clone), snapshot, request: RequestId(request) })
    }

    fn unpin(&mut self, clone: u64, request: u128) -> SetAnswer {
        self.apply(&SetCommand::Unpin { clone: GroupId(clone), request: RequestId(request) })
    }

    fn delete(&mut self, text: &str, made_by: u128) {
        self.apply(&SetCommand::SnapshotDelete { name: name(text), made_by: RequestId(made_by) });
    }

    fn keeps(&self, random: u128) -> bool {
        let kept = self.state.kept_roots().contains(&root(random));
        assert!(!kept || !self.state.dropped.contains_key(&root(random).object));
        kept
    }
}

/// SET-S13: the snapshot is deleted, checkpoints follow, and the root stays until its pin is removed.
#[test]
fn a_pinned_root_outlives_its_snapshot() {
    let mut run = Run::new(SetState::new(Epoch(0)));
    run.snapshot("monday", 5);
    assert_eq!(run.pin(9, "monday", 5, 77), SetAnswer::Pinned { root: root(1) });
    run.delete("monday", 5);
    run.checkpoint();
    run.checkpoint();
    assert!(run.keeps(1) && !run.keeps(2) && run.keeps(3));
    let objects = vec![StoredObject { kind: StoredKind::Root, object: root(1).object }];
    let retire = SetCommand::Retire { term: Term(1), of: RetireOf::Orphans, objects };
    assert!(matches!(run.apply(&retire), SetAnswer::Refused(SetRefusal::StillInUse { .. })), "SET-S8");
    assert_eq!(
        run.pin(9, "monday", 5, 77),
        SetAnswer::Pinned { root: root(1) },
        "R12: also after the snapshot has gone"
    );
    assert_eq!(run.unpin(8, 77), SetAnswer::Unpinned);
    assert_eq!(run.unpin(9, 78), SetAnswer::Unpinned);
    assert!(run.keeps(1), "another number, another request: nothing is let go");
    run.unpin(9, 77);
    assert!(
        !run.keeps(1) && run.state.dropped.contains_key(&root(1).object),
        "SET-S7: expected the root among the dropped ones"
    );
    assert!(matches!(run.pin(9, "monday", 5, 78), SetAnswer::Refused(SetRefusal::NoSuchSnapshot { .. })));
}

#[test]
fn a_root_stays_as_long_as_one_of_its_pins() {
    let mut run = Run::new(SetState::new(Epoch(0)));
    run.snapshot("monday", 5);
    run.pin(9, "monday", 5, 77);
    run.pin(9, "monday", 5, 78);
    assert_eq!(run.state.keepers_of(root(1)), 4, "the checkpoint, its snapshot, and two pins");
    run.checkpoint();
    run.delete("monday", 5);
    assert_eq!(run.state.keepers_of(root(1)), 2);
    run.unpin(9, 77);
    assert!(run.keeps(1), "two that were to get one number");
    assert_eq!(run.pin(11, "monday", 5, 78), SetAnswer::Pinned { root: root(1) }, "the lower number was passed");
    run.unpin(9, 78);
    assert!(run.keeps(1), "judged by the number that was passed");
    run.unpin(11, 78);
    assert!(!run.keeps(1));
}

#[test]
fn so_many_pins_and_no_more() {
    let mut run = Run::new(SetState::new(Epoch(0)));
    run.snapshot("monday", 5);
    for n in 0..PINS_MAX as u64 {
        assert!(matches!(run.pin(n + 2, "monday", 5, u128::from(n)), SetAnswer::Pinned { .. }));
    }
    assert_eq!(run.pin(900, "monday", 5, 900), SetAnswer::Refused(SetRefusal::TooManyPins { max: 64 }));
}

/// Of two heads the one with the later entry about pins counts, so a repeated request must not look like a later one;
/// and a pin of an earlier life becomes one of this life.
#[test]
fn a_pin_that_is_asked_for_again_is_later_only_where_it_changes_something() {
    let of = |run: &Run| {
        let pin = &run.state.pins[&RequestId(77)];
        (pin.clone, pin.at, run.state.pins_at)
    };
    let mut run = Run::new(SetState::new(Epoch(0)));
    run.snapshot("monday", 5);
    run.pin(9, "monday", 5, 77);
    let made = LogId::new(1, run.index);
    assert_eq!(of(&run), (GroupId(9), made, made));
    let before = run.state.clone();
    for number in [9, 8] {
        assert_eq!(run.pin(number, "monday", 5, 77), SetAnswer::Pinned { root: root(1) });
        assert_eq!(run.state, before, "R12: for number {number}");
    }
    run.pin(11, "monday", 5, 77);
    let raised = LogId::new(1, run.index);
    assert_eq!(of(&run), (GroupId(11), raised, raised), "the lower number was passed");

    let links = Links { pins: run.state.pins.clone(), pins_at: run.state.pins_at, ..Links::default() };
    let mut next = Run::new(SetState::restored(Epoch(1 << 48), &Restored::default()).with_links(&links));
    assert_eq!(of(&next), (GroupId(11), LogId::default(), LogId::default()));
    next.pin(11, "monday", 5, 77);
    let confirmed = LogId::new(1, next.index);
    assert_eq!(of(&next), (GroupId(11), confirmed, confirmed));
}

fn pin(clone: u64, at: LogId) -> Pin {
    Pin { clone: GroupId(clone), root: root(1), upto: LogId::new(1, 2), snapshot: name("monday"), at }
}

/// A gateway that was cut off has not applied a newer leader's pins and unpins. Its checkpoint must neither remove the
/// new pin from the head, nor restore the removed one, whose objects may be deleted.
#[test]
fn a_head_goes_back_to_no_older_pins() {
    let links = |pins: &[(u128, LogId)], at| Links {
        pins: pins.iter().map(|(request, at)| (RequestId(*request), pin(*request as u64, *at))).collect(),
        pins_at: LogId::new(1, at),
        ..Links::default()
    };
    let (old, new) = ((4, LogId::new(1, 20)), (5, LogId::new(2, 40)));
    let (one, both, none) = (links(&[old], 20), links(&[old, new], 40), links(&[], 50));
    assert_eq!(Links::for_head(&both, &one), both, "pinned, and not applied here yet");
    assert_eq!(Links::for_head(&one, &both), both, "pinned here");
    assert_eq!(Links::for_head(&both, &none), none, "let go here");
    assert_eq!(Links::for_head(&none, &one), none, "let go, and not applied here yet");
    let inherited = one.inherited();
    assert_eq!(inherited, Links { pins_at: LogId::default(), ..links(&[(4, LogId::default())], 0) });
    assert_eq!(Links::for_head(&inherited, &inherited), inherited);
}

fn cluster() -> ClusterState {
    let mut state = ClusterState::new();
    let member = member(0, "g1", 5);
    let add = ClusterCommand::AddMember { member, replaces: None, request: RequestId(1) };
    assert!(matches!(state.apply(LogId::new(1, 1), &add), ClusterAnswer::MemberAdded { .. }));
    state
}

fn create(state: &mut ClusterState, text: &str, request: u128) -> ClusterAnswer {
    let command = ClusterCommand::CreateSet {
        name: name(text),
        policy: crate::policy::Policy::default(),
        store: "file:///s".to_owned(),
        wrapped_key: vec![1, 2],
        key_id: 3,
        members: vec![],
        created_by: MemberId(1),
        base_epoch: Epoch(0),
        request: RequestId(request),
    };
    let answer = state.apply(LogId::new(1, 2), &command);
    state.self_check();
    answer
}

fn clone_of(origin: u64, request: u128) -> CloneOf {
    CloneOf { origin: GroupId(origin), snapshot: name("monday"), root: root(1), request: RequestId(request) }
}

fn clone_set(state: &mut ClusterState, set: u64, text: &str, origin: u64, request: u128) -> ClusterAnswer {
    let command = ClusterCommand::CloneSet {
        set: GroupId(set),
        name: name(text),
        clone_of: clone_of(origin, request),
        wrapped_key: vec![1, 2],
        key_id: 3,
        created_by: MemberId(1),
        restored: Restored { root: Some(root(50)), next_volume: 2, ..Restored::default() },
    };
    let answer = state.apply(LogId::new(1, 3), &command);
    state.self_check();
    answer
}

const MADE: fn(u64) -> ClusterAnswer = |set| ClusterAnswer::SetCreated { set: GroupId(set) };

#[test]
fn a_clone_is_made_under_its_number_or_not_at_all() {
    let mut state = cluster();
    create(&mut state, "origin", 100);
    let missing = ClusterAnswer::Refused(ClusterRefusal::OriginMissing { origin: GroupId(7) });
    assert_eq!(clone_set(&mut state, 2, "copy", 7, 101), missing);
    create(&mut state, "other", 102);
    let passed = ClusterRefusal::SetIdPassed { found: GroupId(2), next: GroupId(3) };
    assert_eq!(clone_set(&mut state, 2, "copy", 1, 103), ClusterAnswer::Refused(passed), "SET-S14");
    assert_eq!(clone_set(&mut state, 3, "copy", 1, 103), MADE(3));
    assert_eq!(clone_set(&mut state, 3, "copy", 1, 103), MADE(3), "R12");
    assert_eq!(clone_set(&mut state, 4, "another", 1, 103), MADE(3), "R12: by its request");
    assert_eq!(state.sets[&GroupId(3)].store_url, "file:///s", "its origin's");
    let taken = ClusterRefusal::SetNameTaken { name: name("copy"), by: GroupId(3) };
    assert_eq!(clone_set(&mut state, 4, "copy", 1, 104), ClusterAnswer::Refused(taken));
    assert!(!state.links.contains_key(&GroupId(4)), "a refusal leaves no trace");
}

#[test]
fn clones_of_clones_have_an_end() {
    let mut state = cluster();
    create(&mut state, "s1", 100);
    for depth in 1..=u64::from(CLONE_DEPTH_MAX) {
        assert_eq!(
            clone_set(&mut state, depth + 1, &format!("s{}", depth + 1), depth, 100 + u128::from(depth)),
            MADE(depth + 1)
        );
        assert_eq!(u64::from(state.clone_depth(GroupId(depth + 1))), depth);
    }
    let deep = ClusterRefusal::TooDeep { origin: GroupId(9), max: CLONE_DEPTH_MAX };
    assert_eq!(clone_set(&mut state, 10, "s10", 9, 200), ClusterAnswer::Refused(deep));
    assert_eq!(clone_set(&mut state, 10, "s10", 8, 200), MADE(10));
}

fn restore(state: &mut ClusterState, set: u64, links: Links) -> ClusterAnswer {
    restore_from(state, "file:///s", set, links)
}

fn restore_from(state: &mut ClusterState, store: &str, set: u64, links: Links) -> ClusterAnswer {
    let command = ClusterCommand::RestoreSet {
        set: GroupId(set),
        name: name(&format!("s{set}")),
        store: store.to_owned(),
        wrapped_key: vec![1, 2],
        key_id: 3,
        created_by: MemberId(1),
        generation: 2,
        restored: Restored { root: Some(root(50)), next_volume: 2, ..Restored::default() },
        links,
    };
    let answer = state.apply(LogId::new(1, 3), &command);
    state.self_check();
    answer
}

/// Set 3 keeps this root for clone 5.
fn pinned(request: u128, random: u128) -> Links {
    let pin = Pin { root: root(random), ..pin(5, LogId::new(1, 9)) };
    Links { pins: [(RequestId(request), pin)].into_iter().collect(), ..Links::default() }
}

/// A recovery restores an origin before its clones, with their pins, or refuses the clone.
#[test]
fn a_recovered_clone_needs_its_origin_and_its_pin() {
    let clone = Links { clone_of: Some(clone_of(3, 77)), ..Links::default() };
    let missing = ClusterAnswer::Refused(ClusterRefusal::OriginMissing { origin: GroupId(3) });
    assert_eq!(restore(&mut cluster(), 5, clone.clone()), missing);
    let unpinned = ClusterAnswer::Refused(ClusterRefusal::NotPinned { origin: GroupId(3), root: root(1).object });
    for links in [Links::default(), pinned(78, 1), pinned(77, 2)] {
        let mut state = cluster();
        assert_eq!(restore(&mut state, 3, links), MADE(3));
        assert_eq!(restore(&mut state, 5, clone.clone()), unpinned);
    }
    let mut state = cluster();
    assert_eq!(restore(&mut state, 3, pinned(77, 1)), MADE(3));
    assert_eq!(restore_from(&mut state, "file:///other", 5, clone.clone()), missing, "its objects are not there");
    assert_eq!(restore(&mut state, 5, clone.clone()), MADE(5));
    assert_eq!(restore(&mut state, 5, clone), MADE(5), "R12");
    let begins = SetState::restored(Epoch(0), &Restored::default()).with_links(&state.links[&GroupId(3)]);
    assert!(begins.pins().all(|(request, pin)| request == RequestId(77) && pin.is_inherited()));
    assert!(begins.kept_roots().contains(&root(1)));
}

/// Objects of an unrecovered clone are deleted with its origin: a request to delete the origin, or to move it to other
/// stores, reports the clone.
#[test]
fn an_origin_knows_of_a_clone_that_did_not_come_back() {
    let mut state = cluster();
    assert_eq!(restore(&mut state, 3, pinned(77, 1)), MADE(3));
    let origin = SetState::restored(Epoch(0), &Restored::default()).with_links(&state.links[&GroupId(3)]);
    let lost = |state: &ClusterState| (origin.lost_clone(state, GroupId(3)), state.lost_clone_of(GroupId(3)));
    assert_eq!(lost(&state), (Some(GroupId(5)), Some(GroupId(5))));
    // Also once its number is passed: another recovery may restore it.
    create(&mut state, "another", 100);
    assert_eq!(lost(&state), (Some(GroupId(5)), Some(GroupId(5))));
    let clone = Links { clone_of: Some(clone_of(3, 77)), ..Links::default() };
    assert_eq!(restore(&mut state, 5, clone), MADE(5));
    assert_eq!(lost(&state), (None, None));
    let by_itself = SetState::restored(Epoch(0), &Restored::default());
    assert_eq!((by_itself.lost_clone(&state, GroupId(4)), state.lost_clone_of(GroupId(4))), (None, None));
}

/// A clone votes as any new set does, and begins with the content that its proposer has read.
#[test]
fn a_clone_begins_with_the_members_that_stay_and_with_what_it_shows() {
    let mut state = cluster();
    for (text, disk) in [("g2", 6), ("g3", 7)] {
        let member = Member { id: MemberId(0), name: name(text), disk, ..state.members[&MemberId(1)].clone() };
        let add = ClusterCommand::AddMember { member, replaces: None, request: RequestId(disk) };
        assert!(matches!(state.apply(LogId::new(1, 1), &add), ClusterAnswer::MemberAdded { .. }));
    }
    create(&mut state, "origin", 100);
    let leaves = ClusterCommand::SetStanding { id: MemberId(2), standing: Standing::Leaving };
    assert_eq!(state.apply(LogId::new(1, 2), &leaves), ClusterAnswer::StandingSet);
    assert_eq!(clone_set(&mut state, 2, "copy", 1, 101), MADE(2));
    let made = &state.sets[&GroupId(2)];
    assert_eq!(made.initial_members, [MemberId(1), MemberId(3)], "m2 leaves");
    assert_eq!(made.restored.as_ref().map(|content| (content.root, content.next_volume)), Some((Some(root(50)), 2)));
    assert_eq!(state.sets[&GroupId(1)].initial_members.len(), 3, "it was made before");
}

/// Deletes set 2, a clone, until its store is empty; `look` sees every state on the way.
fn delete_clone(state: &mut ClusterState, text: &str, set: u64, mut look: impl FnMut(&mut ClusterState)) {
    let set = GroupId(set);
    let ended = ClusterCommand::SetEnded { set, member: MemberId(1), voters: None };
    let delete = ClusterCommand::DeleteSet { set, name: name(text), request: RequestId(200) };
    for step in [delete, ended, ClusterCommand::ForgetSet { set, store_left: false }] {
        look(state);
        let answer = state.apply(LogId::new(1, 9), &step);
        assert!(!matches!(answer, ClusterAnswer::Refused(_)), "{step:?}: {answer:?}");
        state.self_check();
    }
    look(state);
}

fn emptied(set: u64, ended: &[u64]) -> ClusterCommand {
    ClusterCommand::SetEmptied {
        set: GroupId(set),
        ended: ended.iter().copied().map(MemberId).collect::<BTreeSet<_>>(),
    }
}

/// SET-S14: a recovery before its store is empty would bring it back, and it would find its objects gone.
#[test]
fn a_clone_that_is_being_deleted_needs_its_origin_until_its_store_is_empty() {
    let (mut state, mut origin) = (cluster(), Run::new(SetState::new(Epoch(0))));
    create(&mut state, "origin", 100);
    origin.snapshot("monday", 5);
    origin.pin(2, "monday", 5, 101);
    let standing =
        |state: &ClusterState| origin.state.pins[&RequestId(101)].standing(state, GroupId(1), RequestId(101));
    let delete_origin = ClusterCommand::DeleteSet { set: GroupId(1), name: name("origin"), request: RequestId(201) };
    assert_eq!(standing(&state), PinStanding::Needed, "its number is still to be given");
    assert_eq!(clone_set(&mut state, 2, "copy", 1, 101), MADE(2));
    delete_clone(&mut state, "copy", 2, |state| {
        assert_eq!(standing(state), PinStanding::Needed);
        assert_eq!(origin.state.lost_clone(state, GroupId(1)), None, "it is known here");
        let refused = ClusterRefusal::HasClone { set: GroupId(1), clone: GroupId(2) };
        assert_eq!(state.apply(LogId::new(1, 9), &delete_origin), ClusterAnswer::Refused(refused));
        assert_eq!(state.is_going(GroupId(2)), !state.sets.contains_key(&GroupId(2)));
    });
    // Not every gateway has ended it, so that the record stays. Nothing can come back.
    assert_eq!(state.apply(LogId::new(1, 9), &emptied(2, &[])), ClusterAnswer::DeletionNoted);
    assert!(state.deletions.under_way.contains_key(&GroupId(2)) && !state.is_going(GroupId(2)));
    assert_eq!(standing(&state), PinStanding::Over);
    let deleting = ClusterAnswer::SetDeleting { set: GroupId(1) };
    assert_eq!(state.apply(LogId::new(1, 9), &delete_origin), deleting);
    state.self_check();
}

/// A recovered origin reports clones that did not come back with it, and none that was deleted here.
#[test]
fn a_clone_that_was_deleted_here_is_not_lost() {
    let mut state = cluster();
    assert_eq!(restore(&mut state, 3, pinned(77, 1)), MADE(3));
    let clone = Links { clone_of: Some(clone_of(3, 77)), ..Links::default() };
    assert_eq!(state.lost_clone_of(GroupId(3)), Some(GroupId(5)));
    assert_eq!(restore(&mut state, 5, clone), MADE(5));
    delete_clone(&mut state, "s5", 5, |state| assert_eq!(state.lost_clone_of(GroupId(3)), None));
    for ended in [&[][..], &[1]] {
        assert_eq!(state.apply(LogId::new(1, 9), &emptied(5, ended)), ClusterAnswer::DeletionNoted);
        assert_eq!(state.lost_clone_of(GroupId(3)), None, "ended at {ended:?}");
    }
    assert_eq!(state.deletions.finished, [GroupId(5)]);
}

/// Possible steps of a clone's creation, at group 0 and the proposers.
#[derive(Clone, Copy, Debug)]
enum Step {
    /// A request to the origin for a pin, under what it believes to be the next number.
    Pin {
        request: u8,
        lags: u8,
    },
    /// A proposal for a pinned clone, however late: it may be repeated, and an unanswered one may still arrive.
    Clone {
        request: u8,
    },
    /// Another set takes a number.
    Other,
    /// The origin's leader compares its pins with group 0, possibly stale.
    Compare {
        lags: u8,
    },
    /// The snapshot goes; or another checkpoint comes.
    Delete,
    Checkpoint,
}

fn steps() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0u8..6, 0u8..4).prop_map(|(request, lags)| Step::Pin { request, lags }),
        4 => (0u8..6).prop_map(|request| Step::Clone { request }),
        2 => Just(Step::Other),
        4 => (0u8..4).prop_map(|lags| Step::Compare { lags }),
        1 => Just(Step::Delete),
        1 => Just(Step::Checkpoint),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    /// SET-S14: for late or repeated proposals, and however stale the leader's view of group 0: an existing clone has
    /// its root pinned, and in the end nothing else is pinned.
    #[test]
    fn no_clone_loses_its_root(steps in vec(steps(), 1..60)) {
        let mut origin = Run::new(SetState::new(Epoch(0)));
        origin.snapshot("monday", 5);
        let mut states = vec![cluster()];
        create(&mut states[0], "origin", 1000);
        // The clone number last given to each request.
        let mut numbers: BTreeMap<u8, Vec<SetId>> = BTreeMap::new();
        let behind = |states: &[ClusterState], lags: u8| states[states.len().saturating_sub(1 + usize::from(lags))].clone();
        let request_of = |request: u8| 2000 + u128::from(request);
        let compare = |origin: &mut Run, seen: &ClusterState| {
            let pins: Vec<_> = origin.state.pins().map(|(request, pin)| (request, pin.clone())).collect();
            for (request, pin) in pins {
                if pin.standing(seen, GroupId(1), request) == PinStanding::Over {
                    origin.unpin(pin.clone.0, request.0);
                }
            }
        };
        for (n, step) in steps.into_iter().enumerate() {
            let mut now = states.last().cloned().unwrap();
            match step {
                Step::Pin { request, lags } => {
                    let seen = behind(&states, lags);
                    // Like the admin API: the result of an earlier request is looked up in the state from which the
                    // number is taken.
                    let made = seen.links.values().any(|l| l.clone_of.as_ref().is_some_and(|of| of.request.0 == request_of(request)));
                    if !made && matches!(origin.pin(seen.next_set, "monday", 5, request_of(request)), SetAnswer::Pinned { .. }) {
                        numbers.entry(request).or_default().push(GroupId(seen.next_set));
                    }
                }
                Step::Clone { request } => {
                    let text = format!("c{n}");
                    for number in numbers.get(&request).cloned().unwrap_or_default() {
                        clone_set(&mut now, number.0, &text, 1, request_of(request));
                    }
                }
                Step::Other => drop(create(&mut now, &format!("o{n}"), 5000 + n as u128)),
                Step::Compare { lags } => compare(&mut origin, &behind(&states, lags)),
                Step::Delete => origin.delete("monday", 5),
                Step::Checkpoint => origin.checkpoint(),
            }
            for of in now.links.values().filter_map(|links| links.clone_of.as_ref()) {
                prop_assert!(origin.state.pins.contains_key(&of.request), "{:?}: {:?} has no pin", step, of);
                prop_assert!(origin.keeps(1), "its root is not kept");
            }
            states.push(now);
        }
        let mut last = states.pop().unwrap();
        create(&mut last, "last", 9000);
        compare(&mut origin, &last);
        let made = last.links.values().filter(|links| links.clone_of.is_some()).count();
        prop_assert_eq!(origin.state.pins().count(), made, "found a pin of a clone that was never made");
    }
}
