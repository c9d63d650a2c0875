//! Deletions under random commands against a model that keeps each voter's actions; order of the steps; the fence
//! (DELETE-D2).

use super::{Anyway, DeletionStage, FINISHED_MAX, Found, GroupVoters, in_the_way};
use crate::cluster::{ClusterAnswer, ClusterCommand, ClusterRefusal, ClusterState};
use holdfast_types::{Epoch, GroupId, LogId, MemberId, Name, RequestId, SetId};
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

fn member(id: u64) -> ClusterCommand {
    let member = crate::cluster::member(id, &format!("g{id}"), u128::from(id));
    ClusterCommand::AddMember { member, replaces: None, request: RequestId(u128::from(id)) }
}

fn create(name: &str, request: u128) -> ClusterCommand {
    ClusterCommand::CreateSet {
        name: Name::new(name).unwrap(),
        policy: crate::policy::Policy::default(),
        store: "file:///s".to_owned(),
        wrapped_key: vec![7; 8],
        key_id: 1,
        members: Vec::new(),
        created_by: MemberId(1),
        base_epoch: Epoch(0),
        request: RequestId(request),
    }
}

fn delete(set: u64, name: &str, request: u128) -> ClusterCommand {
    let name = Name::new(name).unwrap();
    ClusterCommand::DeleteSet { set: GroupId(set), name, request: RequestId(request) }
}

fn ended(set: u64, member: u64, voters: Option<GroupVoters>) -> ClusterCommand {
    ClusterCommand::SetEnded { set: GroupId(set), member: MemberId(member), voters }
}

fn forget(set: u64) -> ClusterCommand {
    ClusterCommand::ForgetSet { set: GroupId(set), store_left: false }
}

fn emptied(set: u64, ended: &[u64]) -> ClusterCommand {
    ClusterCommand::SetEmptied { set: GroupId(set), ended: ids(ended) }
}

fn ids(of: &[u64]) -> BTreeSet<MemberId> {
    of.iter().copied().map(MemberId).collect()
}

fn voters(index: u64, sets: &[&[u64]]) -> Option<GroupVoters> {
    Some(GroupVoters { at: LogId::new(1, index), sets: sets.iter().map(|set| ids(set)).collect() })
}

/// Three members and a set.
fn cluster() -> ClusterState {
    let mut state = ClusterState::new();
    for id in 1..=3 {
        apply(&mut state, &member(id));
    }
    assert_eq!(apply(&mut state, &create("s1", 11)), ClusterAnswer::SetCreated { set: GroupId(1) });
    state
}

fn apply(state: &mut ClusterState, command: &ClusterCommand) -> ClusterAnswer {
    let answer = state.apply(LogId::new(1, 1), command);
    state.self_check();
    answer
}

fn refused(state: &mut ClusterState, command: &ClusterCommand) -> String {
    match apply(state, command) {
        ClusterAnswer::Refused(refusal) => refusal.to_string(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn no_step_is_taken_before_the_one_before_it() {
    let mut state = cluster();
    let (deleting, noted) = (ClusterAnswer::SetDeleting { set: GroupId(1) }, ClusterAnswer::DeletionNoted);
    assert_eq!(refused(&mut state, &ended(1, 1, None)), "set g1 is not being deleted");
    assert_eq!(
        refused(&mut state, &delete(1, "other", 5)),
        "set g1: found the name other, expected s1: the number belongs to another set"
    );
    assert_eq!(refused(&mut state, &delete(2, "s1", 5)), "the cluster has no set g2");
    assert_eq!(apply(&mut state, &delete(1, "s1", 5)), deleting);
    assert_eq!(apply(&mut state, &delete(1, "s1", 5)), deleting, "R12");
    assert!(state.sets.is_empty(), "DELETE-D1");
    let taken =
        "a set named s1 is being deleted (g1): its name is free once `holdfast set list` does not show it any more";
    assert_eq!(refused(&mut state, &create("s1", 12)), taken);
    assert_eq!(refused(&mut state, &forget(1)), "set g1 may still be served: m1 m2 m3 have not ended its group");
    assert_eq!(refused(&mut state, &emptied(1, &[1, 2, 3])), "the key of set g1 is not forgotten yet");
    assert_eq!(apply(&mut state, &ended(1, 1, voters(4, &[&[1, 2, 3]]))), noted);
    assert!(matches!(apply(&mut state, &forget(1)), ClusterAnswer::Refused(ClusterRefusal::SetNotFenced { .. })));
    assert_eq!(apply(&mut state, &ended(1, 2, None)), noted);
    assert!(!state.deletions.under_way[&GroupId(1)].entry.wrapped_key.is_empty());
    assert_eq!(apply(&mut state, &forget(1)), noted);
    assert!(state.deletions.under_way[&GroupId(1)].entry.wrapped_key.is_empty(), "expected the key destroyed");
    assert!(state.deletion_named(&Name::new("s1").unwrap()).is_some(), "DELETE-D3");
    assert_eq!(apply(&mut state, &emptied(1, &[1, 2])), noted);
    assert!(state.deletions.under_way.contains_key(&GroupId(1)), "DELETE-D4: m3 was away");
    assert_eq!(apply(&mut state, &create("s1", 12)), ClusterAnswer::SetCreated { set: GroupId(2) }, "the name is free");
    assert_eq!(apply(&mut state, &ended(1, 3, None)), noted);
    assert_eq!(apply(&mut state, &emptied(1, &[1, 2])), noted);
    assert!(state.deletions.under_way.contains_key(&GroupId(1)), "DELETE-D4: the store was not checked since");
    assert_eq!(apply(&mut state, &emptied(1, &[1, 2, 3])), noted);
    assert!(state.deletions.under_way.is_empty());
    // R12: late copies of everything.
    for late in [delete(1, "s1", 5), delete(1, "s1", 99)] {
        assert_eq!(apply(&mut state, &late), deleting);
    }
    for late in [ended(1, 3, None), forget(1), emptied(1, &[])] {
        assert_eq!(apply(&mut state, &late), noted);
    }
    assert_eq!(
        refused(&mut state, &create("s1", 11)),
        "this request made set g1, which was deleted since: draw a new one"
    );
    assert!(state.sets.contains_key(&GroupId(2)), "the new one of that name is another");
}

/// DELETE-D2: a member that has lost its log may have agreed to the last change of voters. So all are waited for, until
/// voters are told that are no older.
#[test]
fn voters_that_a_member_has_lost_are_waited_for_until_another_tells_them() {
    let (two, lost) = (voters(7, &[&[2, 3]]), |index| voters(index, &[&[]]));
    for (told, fenced) in [
        ([lost(7), voters(4, &[&[1, 2]])], false),
        ([voters(4, &[&[1, 2]]), lost(7)], false),
        ([lost(7), voters(8, &[&[1, 2]])], true),
        // One entry names the same voters to both, whoever tells of it first.
        ([lost(7), two.clone()], true),
        ([two.clone(), lost(7)], true),
        ([lost(u64::MAX), voters(8, &[&[1, 2]])], false),
    ] {
        let mut state = cluster();
        apply(&mut state, &delete(1, "s1", 5));
        for (member, told) in (1..).zip(&told) {
            apply(&mut state, &ended(1, member, told.clone()));
        }
        assert_eq!(matches!(apply(&mut state, &forget(1)), ClusterAnswer::DeletionNoted), fenced, "{told:?}");
        apply(&mut state, &ended(1, 3, None));
        assert_eq!(apply(&mut state, &forget(1)), ClusterAnswer::DeletionNoted, "all have ended it: {told:?}");
    }
}

#[test]
fn a_member_that_is_removed_is_not_waited_for() {
    let mut state = cluster();
    apply(&mut state, &delete(1, "s1", 5));
    for id in [1, 2] {
        apply(&mut state, &ended(1, id, voters(4, &[&[1, 2, 3]])));
    }
    apply(&mut state, &forget(1));
    apply(&mut state, &emptied(1, &[1, 2]));
    assert!(state.deletions.under_way.contains_key(&GroupId(1)));
    apply(&mut state, &ClusterCommand::RemoveMember { id: MemberId(3) });
    apply(&mut state, &emptied(1, &[1, 2]));
    assert!(state.deletions.under_way.is_empty());
}

/// A set that another cluster has taken over keeps what it has in its store, whatever a late copy says.
#[test]
fn what_was_left_to_another_cluster_stays_left_to_it() {
    for left in [true, false] {
        let mut state = cluster();
        apply(&mut state, &delete(1, "s1", 5));
        for id in [1, 2] {
            apply(&mut state, &ended(1, id, voters(4, &[&[1, 2, 3]])));
        }
        for store_left in [left, !left] {
            let forget = ClusterCommand::ForgetSet { set: GroupId(1), store_left };
            assert_eq!(apply(&mut state, &forget), ClusterAnswer::DeletionNoted);
            assert_eq!(state.deletions.under_way[&GroupId(1)].store_left, left, "the first one counts");
        }
    }
}

#[test]
fn the_fence_is_a_majority_of_the_newest_voters_told() {
    let fenced = |told: &[(u64, Option<GroupVoters>)]| {
        let mut state = cluster();
        apply(&mut state, &delete(1, "s1", 5));
        for (id, voters) in told {
            apply(&mut state, &ended(1, *id, voters.clone()));
        }
        apply(&mut state, &forget(1)) == ClusterAnswer::DeletionNoted
    };
    assert!(!fenced(&[]), "no member has ended the group");
    assert!(!fenced(&[(1, None), (2, None)]), "no member knew the voters");
    assert!(fenced(&[(1, None), (2, None), (3, None)]), "all have ended it");
    assert!(fenced(&[(1, voters(1, &[&[1, 2, 3]])), (2, None)]));
    assert!(!fenced(&[(1, voters(1, &[&[1, 2, 3]]))]));
    assert!(fenced(&[(1, voters(1, &[&[1]]))]), "the only voter");
    assert!(!fenced(&[(1, voters(1, &[&[1]])), (2, voters(3, &[&[1, 2, 3, 4, 5]]))]), "three of five are left");
    assert!(fenced(&[(1, voters(3, &[&[1, 2, 3, 4]])), (2, None)]), "two of four are no majority");
    assert!(fenced(&[(1, voters(9, &[&[1, 2]])), (2, voters(3, &[&[3, 4, 5]]))]), "the later entry counts");
    assert!(
        !fenced(&[(1, voters(9, &[&[1, 2, 3], &[3, 4, 5]])), (2, None)]),
        "3, 4 and 5 could end the change, and go on"
    );
    assert!(!fenced(&[(1, voters(9, &[&[]]))]), "an empty list of voters proves nothing");
    assert!(!fenced(&[(1, voters(9, &[]))]), "nor does none");
}

#[test]
fn late_creations_are_known_for_the_last_deleted_sets() {
    let mut state = cluster();
    for set in 2..=(FINISHED_MAX as u64 + 3) {
        let request = 100 + u128::from(set);
        assert_eq!(apply(&mut state, &create("again", request)), ClusterAnswer::SetCreated { set: GroupId(set) });
        apply(&mut state, &delete(set, "again", 5));
        for id in 1..=3 {
            apply(&mut state, &ended(set, id, None));
        }
        apply(&mut state, &forget(set));
        apply(&mut state, &emptied(set, &[1, 2, 3]));
        assert!(matches!(
            apply(&mut state, &create("again", request)),
            ClusterAnswer::Refused(ClusterRefusal::SetDeleted { .. })
        ));
    }
    assert_eq!(state.deletions.finished.len(), FINISHED_MAX);
    assert_eq!(state.deletions.finished.front(), Some(&GroupId(4)));
}

#[test]
fn what_stands_in_the_way_says_what_would_make_it_possible() {
    let found = Found { owner: Some("db1".to_owned()), connections: 2, snapshots: 3, lost_clone: None };
    let why = |found: &Found, force, with_snapshots| {
        in_the_way(found, Anyway { force, with_snapshots }).map_err(|why| why.to_string()).err().unwrap_or_default()
    };
    assert!(why(&found, false, true).starts_with("it is held by db1") && why(&found, false, true).contains("--force"));
    let idle = Found { owner: None, ..found.clone() };
    assert!(
        why(&idle, false, true).starts_with("2 clients are connected") && why(&idle, false, true).contains("--force")
    );
    assert!(why(&found, true, false).contains("3 snapshots") && why(&found, true, false).contains("--with-snapshots"));
    assert_eq!(why(&found, true, true), "");
    // A caller that overrides everything is not asked what there is (the gateway's admin API); a caller with one
    // override is.
    let pinned = Found { lost_clone: Some(GroupId(5)), ..Found::default() };
    assert!(why(&pinned, true, false).contains("set number 5") && why(&pinned, false, true).contains("recover"));
    assert_eq!(why(&Found::default(), false, false), "");
}

fn commands() -> impl Strategy<Value = ClusterCommand> {
    let id = || 1u64..6;
    let told = || (1u64..6, vec(btree_set((1u64..6).prop_map(MemberId), 0..4), 1..3));
    prop_oneof![
        3 => id().prop_map(member),
        1 => id().prop_map(|id| ClusterCommand::RemoveMember { id: MemberId(id) }),
        4 => (0u8..3, 20u128..40).prop_map(|(name, request)| create(&format!("s{name}"), request)),
        4 => (id(), 0u8..3, 50u128..60).prop_map(|(set, name, request)| delete(set, &format!("s{name}"), request)),
        8 => (id(), id(), proptest::option::of(told())).prop_map(|(set, member, told)| {
            ended(set, member, told.map(|(index, sets)| GroupVoters { at: LogId::new(1, index), sets }))
        }),
        4 => id().prop_map(forget),
        4 => (id(), btree_set(1u64..6, 0..6))
            .prop_map(|(set, told)| emptied(set, &told.into_iter().collect::<Vec<_>>())),
        1 => id().prop_map(|set| ClusterCommand::SwapKeys {
            set: GroupId(set), expected: vec![7; 8], wrapped_key: vec![8; 8], key_id: 1,
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// Any commands in any order: DELETE-D1, DELETE-D3 and the keys hold (`self_check`); stages only advance; no record
    /// goes before every member has reported that its group is ended (DELETE-D4); a name is given out again only after
    /// the first set's key is forgotten; no number comes back (CLUSTER-C1).
    #[test]
    fn d1_to_d4_over_all_answers(commands in vec(commands(), 1..150)) {
        let mut state = ClusterState::new();
        let mut replica = state.clone();
        let mut numbers: BTreeSet<SetId> = BTreeSet::new();
        let mut stages: BTreeMap<SetId, DeletionStage> = BTreeMap::new();
        let mut said: BTreeMap<SetId, BTreeSet<MemberId>> = BTreeMap::new();
        for command in commands {
            let before = state.clone();
            let answer = apply(&mut state, &command);
            prop_assert_eq!(&replica.apply(LogId::new(1, 1), &command), &answer);
            if let ClusterAnswer::Refused(refusal) = &answer {
                prop_assert_eq!(&state, &before, "a refusal leaves no trace");
                prop_assert!(!refusal.to_string().is_empty());
            }
            for (set, _) in state.sets.iter().filter(|(set, _)| !before.sets.contains_key(*set)) {
                prop_assert!(numbers.insert(*set), "CLUSTER-C1: {} again", set);
            }
            if let (ClusterCommand::SetEnded { set, member, .. }, ClusterAnswer::DeletionNoted) = (&command, &answer) {
                said.entry(*set).or_default().insert(*member);
            }
            for (set, deletion) in &before.deletions.under_way {
                match state.deletions.under_way.get(set) {
                    Some(now) => prop_assert!(now.stage >= deletion.stage),
                    None => {
                        let said = said.get(set).cloned().unwrap_or_default();
                        prop_assert!(state.members.keys().all(|id| said.contains(id)), "DELETE-D4: {} is gone, said: {:?}", set, said);
                        prop_assert!(stages.get(set).is_some_and(|stage| *stage >= DeletionStage::Forgotten), "DELETE-D2: {}", set);
                    }
                }
            }
            stages.extend(state.deletions.under_way.iter().map(|(set, deletion)| (*set, deletion.stage)));
        }
    }

    /// DELETE-D2: the voters of a group change as in Raft: one set after the other through a joint configuration, each
    /// change accepted by a majority of the configuration before. Members end the group one after the other and report
    /// the newest voters in their log. Once the set is fenced, the remaining members cannot accept anything, whatever
    /// change they know of.
    #[test]
    fn who_is_left_behind_a_fence_agrees_to_nothing(
        changes in vec((btree_set(1u64..7, 1..5), vec(any::<bool>(), 6), vec(any::<bool>(), 6)), 0..6),
        order in Just((1u64..7).collect::<Vec<_>>()).prop_shuffle(),
        when in vec(0usize..8, 6),
    ) {
        type Sets = Vec<BTreeSet<MemberId>>;
        let majority = |sets: &Sets, of: &BTreeSet<MemberId>| sets.iter().all(|set| set.intersection(of).count() * 2 > set.len());
        let everybody = ids(&[1, 2, 3, 4, 5, 6]);
        let mut log: BTreeMap<MemberId, (u64, Sets)> = BTreeMap::new();
        let mut now: (u64, Sets) = (1, vec![ids(&[1, 2, 3])]);
        everybody.iter().for_each(|id| { log.insert(*id, now.clone()); });
        let mut state = ClusterState::new();
        (1..7).for_each(|id| { apply(&mut state, &member(id)); });
        apply(&mut state, &create("s1", 99));
        apply(&mut state, &delete(1, "s1", 98));
        let mut left = everybody.clone();
        let mut told = order.iter().zip(&when).peekable();
        for step in 0..=changes.len() * 2 {
            // Members that end the group before this step.
            while let Some((id, _)) = told.next_if(|(_, at)| **at <= step) {
                let (index, sets) = log[&MemberId(*id)].clone();
                left.remove(&MemberId(*id));
                apply(&mut state, &ended(1, *id, Some(GroupVoters { at: LogId::new(1, index), sets })));
            }
            let fenced = state.deletions.under_way[&GroupId(1)].fenced(everybody.iter().copied());
            if fenced {
                prop_assert!(!majority(&now.1, &left), "DELETE-D2: {:?} are left, and the voters are {:?}", left, now.1);
            }
            let Some((to, hear, hear_too)) = changes.get(step / 2) else { continue };
            let to: BTreeSet<MemberId> = to.iter().copied().map(MemberId).collect();
            let (next, hear) = match step % 2 {
                0 if now.1.len() == 1 => (vec![now.1[0].clone(), to], hear),
                _ if now.1.len() == 2 => (vec![now.1[1].clone()], hear_too),
                _ => continue,
            };
            // Accepted by a majority of the configuration that it names: of both sets, or of the newer one if it ends a
            // change. Then it is in force.
            let hears: BTreeSet<MemberId> =
                left.iter().copied().zip(hear).filter(|(_, hears)| **hears).map(|(id, _)| id).collect();
            if majority(&next, &hears) {
                now = (now.0 + 1, next);
                hears.iter().for_each(|id| { log.insert(*id, now.clone()); });
            }
        }
    }
}
