//! Group 0 under random commands; its wire format and its limits.

use super::{
    ADDRESS_BYTES_MAX, Bearer, ClusterAnswer, ClusterCommand, ClusterRefusal, ClusterState, MEMBERS_MAX, Member,
    RevokedBy, SETS_MAX, SetEntry, Standing, member,
};
use crate::policy::Policy;
use crate::set::{FIRST_GENERATION, GENERATION_MAX, Links, Restored, RootRef, Volume, epoch_base};
use holdfast_testkit::golden::{Written, kept};
use holdfast_types::{Epoch, GroupId, LogId, MemberId, Name, ObjectId, RequestId, Sectors, Term, VolumeId};
use proptest::collection::vec;
use proptest::prelude::*;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};

fn add(id: u64, name: &str, disk: u128, request: u128) -> ClusterCommand {
    ClusterCommand::AddMember { member: member(id, name, disk), replaces: None, request: RequestId(request) }
}

fn create(name: &str, members: Vec<MemberId>, request: u128) -> ClusterCommand {
    ClusterCommand::CreateSet {
        name: Name::new(name).unwrap(),
        policy: Policy::default(),
        store: "file:///s".to_owned(),
        wrapped_key: vec![1, 2],
        key_id: 3,
        members,
        created_by: MemberId(1),
        base_epoch: Epoch(4),
        request: RequestId(request),
    }
}

fn restore(set: u64, name: &str, generation: u64) -> ClusterCommand {
    let object = ObjectId { term: Term(1), member: MemberId(2), boot: 3, random: 4 };
    let volume = Volume { name: Name::new("v").unwrap(), size: Sectors(8) };
    ClusterCommand::RestoreSet {
        set: GroupId(set),
        name: Name::new(name).unwrap(),
        store: "file:///s".to_owned(),
        wrapped_key: vec![1, 2],
        key_id: 3,
        created_by: MemberId(1),
        generation,
        restored: Restored {
            volumes: vec![(VolumeId(1), volume)],
            next_volume: 2,
            root: Some(RootRef { object, bytes: 5 }),
        },
        links: Links::default(),
    }
}

fn revoke(serial: &str) -> ClusterCommand {
    let by = Bearer { name: "ann".to_owned(), serial: "0f".to_owned() };
    let what = RevokedBy::Serial(serial.to_owned());
    ClusterCommand::Revoke { what, by, at_unix_ms: 7, reason: "lost".to_owned() }
}

fn commands() -> impl Strategy<Value = ClusterCommand> {
    let request = || 1u128..40;
    prop_oneof![
        1 => (0u128..3).prop_map(|cluster_id| ClusterCommand::Init { cluster_id }),
        8 => (prop_oneof![3 => Just(0u64), 1 => 1u64..20], 0u8..9, 1u128..12, request())
            .prop_map(|(id, name, disk, request)| add(id, &format!("g{name}"), disk, request)),
        2 => (0u8..9, 1u128..12, request(), 1u64..12).prop_map(|(name, disk, request, old)| ClusterCommand::AddMember {
            member: member(0, &format!("g{name}"), disk), replaces: Some(MemberId(old)), request: RequestId(request),
        }),
        3 => (0u64..12).prop_map(|id| ClusterCommand::RemoveMember { id: MemberId(id) }),
        2 => (0u64..12, prop_oneof![Just(Standing::Active), Just(Standing::Drained), Just(Standing::Leaving)])
            .prop_map(|(id, standing)| ClusterCommand::SetStanding { id: MemberId(id), standing }),
        1 => (0u64..12).prop_map(|id| ClusterCommand::UpdateMember {
            id: MemberId(id), peer_addr: "b:1".to_owned(), api_addr: "b:2".to_owned(), nbd_addr: "b:3".to_owned(),
            locality: "region=us,zone=a".parse().unwrap(),
        }),
        8 => (1u64..8, 1u128..12, 1u64..6, 0u64..3).prop_map(|(id, disk, boot, nonce)| ClusterCommand::RegisterBoot {
            member: MemberId(id), disk, boot, nonce, level: 1,
        }),
        4 => (0u8..9, vec((1u64..8).prop_map(MemberId), 0..3), request())
            .prop_map(|(name, members, request)| create(&format!("s{name}"), members, request)),
        2 => (0u64..12, 0u8..9, 0u64..4)
            .prop_map(|(set, name, generation)| restore(set, &format!("s{name}"), generation)),
        1 => (1u64..5, 1u8..4, 1u8..4).prop_map(|(set, from, to)| ClusterCommand::SwapKeys {
            set: GroupId(set),
            expected: vec![from],
            wrapped_key: vec![to],
            key_id: 7,
        }),
        1 => (8u8..18).prop_map(|serial| revoke(&format!("{serial:02x}"))),
        1 => (8u8..18).prop_map(|serial| ClusterCommand::Unrevoke { what: RevokedBy::Serial(format!("{serial:02x}")) }),
        4 => (1u64..5, vec(1u64..8, 0..4), vec(1u64..8, 0..4)).prop_map(|(set, from, to)| ClusterCommand::PlaceVoters {
            set: GroupId(set),
            from: from.into_iter().map(MemberId).collect(),
            to: to.into_iter().map(MemberId).collect(),
        }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    /// CLUSTER-C1, CLUSTER-C2, CLUSTER-C3 over all answers ever given.
    #[test]
    fn c1_c2_c3_over_all_answers(commands in vec(commands(), 1..120), reload_every in 1u64..20) {
        let mut state = ClusterState::new();
        let mut replica = state.clone();
        let mut made: BTreeMap<RequestId, ClusterAnswer> = BTreeMap::new();
        let mut member_ids = BTreeSet::new();
        let mut set_ids = BTreeSet::new();
        let mut disk_of: BTreeMap<MemberId, u128> = BTreeMap::new();
        let mut lives: BTreeMap<u128, Vec<(u64, u64)>> = BTreeMap::new();
        for (index, command) in (1u64..).zip(commands) {
            let id = LogId::new(1, index);
            let before = state.clone();
            let answer = state.apply(id, &command);
            prop_assert_eq!(&replica.apply(id, &command), &answer);
            state.self_check();
            if let ClusterAnswer::Refused(refusal) = &answer {
                prop_assert_eq!(&state, &before, "a refusal leaves no trace");
                prop_assert!(!refusal.to_string().is_empty());
            }
            match (&command, &answer) {
                (ClusterCommand::AddMember { member, request, .. }, ClusterAnswer::MemberAdded { id }) => {
                    if let Some(first) = made.get(request) {
                        prop_assert_eq!(first, &answer, "R12: the same request, the same answer");
                    } else {
                        prop_assert!(member_ids.insert(*id), "CLUSTER-C1: {} twice", id);
                        let disk_is_new = !disk_of.values().any(|disk| *disk == member.disk);
                        prop_assert!(disk_is_new, "CLUSTER-C2: disk {} twice", member.disk);
                        disk_of.insert(*id, member.disk);
                        made.insert(*request, answer.clone());
                    }
                }
                // Its request is forgotten with it: a late copy is refused by the disk.
                (ClusterCommand::RemoveMember { id }, ClusterAnswer::MemberRemoved) => {
                    made.retain(|_, answer| *answer != ClusterAnswer::MemberAdded { id: *id });
                }
                (ClusterCommand::CreateSet { request, .. }, ClusterAnswer::SetCreated { set }) => {
                    if let Some(first) = made.get(request) {
                        prop_assert_eq!(first, &answer, "R12: the same request, the same answer");
                    } else {
                        prop_assert!(set.0 != 0 && set_ids.insert(*set), "CLUSTER-C1: {} twice", set);
                        prop_assert!(state.sets[set].initial_members.is_sorted());
                        made.insert(*request, answer.clone());
                    }
                }
                (ClusterCommand::RestoreSet { set, generation, .. }, ClusterAnswer::SetCreated { set: made }) => {
                    prop_assert_eq!(set, made, "its objects are bound to its number");
                    let again = before.sets.get(set).is_some_and(|entry| entry.generation == *generation);
                    prop_assert!(set_ids.insert(*set) || again, "CLUSTER-C1: {} twice", set);
                    prop_assert!(again || state.sets[set].base_epoch == epoch_base(*generation), "R6");
                }
                (ClusterCommand::RegisterBoot { member, disk, boot, nonce, .. }, outcome) => {
                    let present = state.members.get(member).is_some_and(|member| member.disk == *disk);
                    let lives = lives.entry(*disk).or_default();
                    let last = lives.last().copied();
                    let newer = last.is_none_or(|last| *boot > last.0 || (*boot, *nonce) == last);
                    prop_assert_eq!(*outcome == ClusterAnswer::BootRegistered, present && newer, "CLUSTER-C3: after {:?}", last);
                    if *outcome == ClusterAnswer::BootRegistered {
                        lives.push((*boot, *nonce));
                    }
                }
                (ClusterCommand::SetStanding { id, standing: Standing::Leaving }, ClusterAnswer::StandingSet) => {
                    let lost = |entry: &&SetEntry| entry.has_place_for(*id) && state.voters_of(entry).is_empty();
                    prop_assert_eq!(state.sets.values().find(lost), None, "VOTERS-V1");
                }
                (ClusterCommand::PlaceVoters { set, to, .. }, ClusterAnswer::VotersPlaced) => {
                    prop_assert_eq!(&state.sets[set].voters, to, "VOTERS-V1");
                    let again = before.sets[set].voters == *to;
                    prop_assert!(again || state.voters_of(&state.sets[set]) == *to, "VOTERS-V1: {:?} do not all stay", to);
                }
                _ => {}
            }
            if index % reload_every == 0 {
                let image: ClusterState = postcard::from_bytes(&postcard::to_stdvec(&replica).unwrap()).unwrap();
                replica = image.with_places(replica.places());
            }
        }
        prop_assert_eq!(&state, &replica);
        prop_assert_eq!(postcard::to_stdvec(&state).unwrap(), postcard::to_stdvec(&replica).unwrap());
    }
}

fn hex_lines<T: Serialize>(values: &[T]) -> String {
    let hex = |bytes: Vec<u8>| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    values.iter().map(|value| hex(postcard::to_stdvec(value).unwrap()) + "\n").collect()
}

/// Entries and snapshots with these bytes are on disks: a change here needs a new version of their format.
#[test]
fn the_bytes_of_commands_and_state_are_pinned() {
    let commands = [
        ClusterCommand::Init { cluster_id: 300 },
        add(1, "g1", 5, 6),
        ClusterCommand::RegisterBoot { member: MemberId(1), disk: 5, boot: 2, nonce: 300, level: 1 },
        create("s1", vec![MemberId(1)], 7),
        ClusterCommand::SwapKeys { set: GroupId(1), expected: vec![1, 2], wrapped_key: vec![8], key_id: 2 },
        ClusterCommand::UpdateMember {
            id: MemberId(1),
            peer_addr: "b:1".to_owned(),
            api_addr: "b:2".to_owned(),
            nbd_addr: "b:3".to_owned(),
            locality: "region=eu".parse().unwrap(),
        },
        add(0, "g2", 9, 8),
        ClusterCommand::RemoveMember { id: MemberId(2) },
        restore(4, "s4", 2),
        ClusterCommand::SetStanding { id: MemberId(1), standing: Standing::Drained },
        ClusterCommand::RaiseLevel { level: 1 },
        revoke("0a"),
        ClusterCommand::Unrevoke { what: RevokedBy::Serial("0a".to_owned()) },
        ClusterCommand::PlaceVoters {
            set: GroupId(1),
            from: BTreeSet::from([MemberId(1)]),
            to: BTreeSet::from([MemberId(1)]),
        },
    ];
    let expected = "\
00ac02
01010267310265750503613a3103613a3203613a3300000006
04010502ac0201
05027331000300000966696c653a2f2f2f73020102030101010407
0901020102010802
030103623a3103623a3203623a33026575
01000267320265750903613a3103613a3203613a3300000008
0202
06040273340966696c653a2f2f2f7302010203010201010176080201010203040500000000000000
070101
0801
110002306103616e6e02306607046c6f7374
1200023061
130101010101
";
    assert_eq!(hex_lines(&commands), expected);
    let mut state = ClusterState::new();
    for (index, command) in (1u64..).zip(&commands) {
        let answer = state.apply(LogId::new(1, index), command);
        assert!(!matches!(answer, ClusterAnswer::Refused(_)), "{answer:?}");
        let bytes = postcard::to_stdvec(command).unwrap();
        assert_eq!(postcard::from_bytes::<ClusterCommand>(&bytes).unwrap(), *command);
    }
    let expected = "ac020101010267310265750503623a3103623a3203623a3300010201027331000300000966696c653a2f2f2f7301080201010104010004027334000300000966696c653a2f2f2f73020102030101018080808080804002010101017608020101020304050305010102ac02010109020600010701010100000000\n";
    assert_eq!(hex_lines(std::slice::from_ref(&state)), expected);
    let image: ClusterState = postcard::from_bytes(&postcard::to_stdvec(&state).unwrap()).unwrap();
    assert_eq!(hex_lines(&[state.places()]), "01010101\n", "behind the state");
    assert_eq!(image.with_places(state.places()), state);
    // Disks have those of earlier releases: no kind of command changes or goes.
    let written = postcard::to_stdvec(&commands.to_vec()).unwrap();
    kept(env!("CARGO_MANIFEST_DIR"), "cluster-commands", Written::Pinned(&written), &true, |bytes| {
        let mut now = commands.iter();
        let old: Vec<ClusterCommand> = postcard::from_bytes(bytes).unwrap();
        old.iter().all(|old| now.any(|now| now == old))
    });
    let written = postcard::to_stdvec(&state).unwrap();
    kept(env!("CARGO_MANIFEST_DIR"), "cluster-state", Written::Pinned(&written), &Ok(state.clone()), |bytes| {
        postcard::from_bytes::<ClusterState>(bytes).map(|image| image.with_places(state.places()))
    });
}

/// A policy is changed from the one that the proposer saw; a clone has its origin's, and its origin's voters: elsewhere
/// it may be forbidden.
#[test]
fn a_policy_is_changed_once_and_by_who_saw_it() {
    let mut state = ClusterState::new();
    state.apply(LogId::new(1, 1), &add(0, "g1", 1, 1));
    state.apply(LogId::new(1, 1), &add(0, "g2", 2, 3));
    state.apply(LogId::new(1, 2), &create("s1", vec![MemberId(1)], 2));
    let (set, first) = (GroupId(1), Policy::default());
    let five = Policy { voters: 5, ..Policy::default() };
    let home = Policy { home: Some(Name::new("eu").unwrap()), ..Policy::default() };
    let mut change = |expected: &Policy, policy: &Policy| {
        let command = ClusterCommand::SetPolicy { set, expected: expected.clone(), policy: policy.clone() };
        (state.apply(LogId::new(1, 3), &command), state.sets[&set].policy.clone())
    };
    assert_eq!(change(&first, &five), (ClusterAnswer::PolicySet, five.clone()));
    assert_eq!(change(&first, &five), (ClusterAnswer::PolicySet, five.clone()), "R12");
    let (refused, kept) = change(&first, &home);
    assert!(matches!(refused, ClusterAnswer::Refused(ClusterRefusal::PolicyChanged { .. })), "{refused:?}");
    assert_eq!(kept, five);
    let (refused, kept) = change(&five, &Policy { voters: 4, ..Policy::default() });
    assert!(matches!(refused, ClusterAnswer::Refused(ClusterRefusal::BadPolicy { .. })), "{refused:?}");
    assert_eq!(kept, five);
    let object = ObjectId { term: Term(1), member: MemberId(1), boot: 1, random: 7 };
    let snapshot = Name::new("monday").unwrap();
    let root = RootRef { object, bytes: 1 };
    let clone = ClusterCommand::CloneSet {
        set: GroupId(2),
        name: Name::new("s2").unwrap(),
        clone_of: crate::set::CloneOf { origin: set, snapshot, root, request: RequestId(5) },
        wrapped_key: vec![1],
        key_id: 1,
        created_by: MemberId(1),
        restored: Restored::default(),
    };
    assert_eq!(state.apply(LogId::new(1, 4), &clone), ClusterAnswer::SetCreated { set: GroupId(2) });
    let clone = &state.sets[&GroupId(2)];
    assert_eq!(clone.policy, five);
    assert_eq!(clone.voters, BTreeSet::from([MemberId(1)]), "VOTERS-V1: not at g2");
    assert_eq!(clone.initial_members, [MemberId(1)]);
    state.self_check();
}

#[test]
fn so_many_members_and_sets_and_no_more() {
    let mut state = ClusterState::new();
    for number in 1..=MEMBERS_MAX as u64 {
        let answer = state.apply(LogId::new(1, number), &add(0, &format!("g{number}"), number.into(), number.into()));
        assert_eq!(answer, ClusterAnswer::MemberAdded { id: MemberId(number) });
    }
    let answer = state.apply(LogId::new(1, 100), &add(0, "more", 10_000, 10_000));
    assert_eq!(answer, ClusterAnswer::Refused(ClusterRefusal::TooManyMembers { max: 32 }));
    for number in 1..=SETS_MAX as u64 {
        let answer = state.apply(LogId::new(1, 100), &create(&format!("s{number}"), vec![], u128::from(number) << 64));
        assert_eq!(answer, ClusterAnswer::SetCreated { set: GroupId(number) });
    }
    let answer = state.apply(LogId::new(1, 100), &create("more", vec![], 10_001));
    assert_eq!(answer, ClusterAnswer::Refused(ClusterRefusal::TooManySets { max: 1024 }));
    state.self_check();
}

#[test]
fn the_end_of_the_numbers_is_refused() {
    let mut state = ClusterState::new();
    let answer = state.apply(LogId::new(1, 1), &add(u64::MAX, "g", 1, 1));
    assert!(matches!(answer, ClusterAnswer::Refused(ClusterRefusal::MemberIdUsed { .. })), "{answer:?}");
    let answer = state.apply(LogId::new(1, 2), &add(u64::MAX - 1, "g", 1, 1));
    assert_eq!(answer, ClusterAnswer::MemberAdded { id: MemberId(u64::MAX - 1) });
    let answer = state.apply(LogId::new(1, 3), &add(0, "h", 2, 2));
    assert!(matches!(answer, ClusterAnswer::Refused(ClusterRefusal::MemberIdUsed { .. })), "{answer:?}");
}

#[test]
fn addresses_have_a_length() {
    let mut state = ClusterState::new();
    for (bytes, fine) in [(0, false), (ADDRESS_BYTES_MAX + 1, false), (ADDRESS_BYTES_MAX, true)] {
        let member = Member { nbd_addr: "x".repeat(bytes), ..member(0, "g", 1) };
        let answer =
            state.apply(LogId::new(1, 1), &ClusterCommand::AddMember { member, replaces: None, request: RequestId(1) });
        assert_eq!(matches!(answer, ClusterAnswer::MemberAdded { .. }), fine, "{bytes}: {answer:?}");
    }
}

/// CLUSTER-C1, also for a replacement, which takes over the name.
#[test]
fn a_member_that_was_replaced_or_removed_never_comes_back() {
    let mut state = ClusterState::new();
    let apply = |state: &mut ClusterState, command: ClusterCommand| state.apply(LogId::new(1, 1), &command);
    let id = MemberId;
    apply(&mut state, add(0, "g1", 1, 1));
    apply(&mut state, add(0, "g2", 2, 2));
    let in_place = |old: u64, disk: u128| ClusterCommand::AddMember {
        member: member(0, "g2", disk),
        replaces: Some(MemberId(old)),
        request: RequestId(disk),
    };
    assert_eq!(apply(&mut state, in_place(2, 3)), ClusterAnswer::MemberAdded { id: id(3) });
    assert_eq!(apply(&mut state, in_place(2, 3)), ClusterAnswer::MemberAdded { id: id(3) }, "R12");
    assert_eq!(state.member_named(&Name::new("g2").unwrap()).map(|m| m.id), Some(id(3)));
    let standing = |id, standing| ClusterCommand::SetStanding { id, standing };
    let leaving = ClusterAnswer::Refused(ClusterRefusal::MemberLeaving { id: id(2) });
    assert_eq!(apply(&mut state, standing(id(2), Standing::Active)), leaving, "leaving is final");
    assert_eq!(apply(&mut state, ClusterCommand::RemoveMember { id: id(2) }), ClusterAnswer::MemberRemoved);
    let removed = ClusterAnswer::Refused(ClusterRefusal::MemberRemoved { id: id(2) });
    let boot = ClusterCommand::RegisterBoot { member: id(2), disk: 2, boot: 9, nonce: 9, level: 1 };
    assert_eq!(apply(&mut state, boot), removed, "its old disk starts again");
    assert_eq!(apply(&mut state, standing(id(2), Standing::Active)), removed);
    assert_eq!(apply(&mut state, in_place(2, 4)), removed);
    let used = ClusterAnswer::Refused(ClusterRefusal::MemberIdUsed { id: id(2), next: id(4) });
    assert_eq!(apply(&mut state, add(2, "g2x", 5, 5)), used, "CLUSTER-C1");
    let retired = ClusterAnswer::Refused(ClusterRefusal::DiskRetired { disk: 2 });
    assert_eq!(apply(&mut state, add(0, "g2x", 2, 6)), retired, "CLUSTER-C2");
    apply(&mut state, standing(id(3), Standing::Leaving));
    let last = ClusterAnswer::Refused(ClusterRefusal::LastMember { id: id(1) });
    assert_eq!(apply(&mut state, standing(id(1), Standing::Leaving)), last);
    assert_eq!(apply(&mut state, ClusterCommand::RemoveMember { id: id(1) }), last);
    state.self_check();
}

/// CLUSTER-C4: raised only when every member knows the level, never lowered; a member that does not know it takes part
/// no more.
#[test]
fn the_level_is_that_of_the_oldest_build() {
    let mut state = ClusterState::new();
    let apply = |state: &mut ClusterState, command: ClusterCommand| state.apply(LogId::new(1, 1), &command);
    let boot = |id: u64, boot, level| ClusterCommand::RegisterBoot {
        member: MemberId(id),
        disk: u128::from(id),
        boot,
        nonce: 1,
        level,
    };
    apply(&mut state, add(1, "g1", 1, 1));
    apply(&mut state, add(2, "g2", 2, 2));
    let needed = ClusterRefusal::LevelNeeded { needed: 2, found: 1 };
    assert_eq!(
        apply(&mut state, ClusterCommand::OfLevel2),
        ClusterAnswer::Refused(needed),
        "an entry of a later level"
    );
    apply(&mut state, boot(1, 1, 3));
    assert_eq!(state.raisable(), None, "g2 has not said");
    let unknown = |known| ClusterRefusal::LevelNotKnown { asked: 2, member: MemberId(2), known };
    let raise = || ClusterCommand::RaiseLevel { level: 2 };
    assert_eq!(apply(&mut state, raise()), ClusterAnswer::Refused(unknown(None)));
    apply(&mut state, boot(2, 1, 1));
    assert_eq!(state.raisable(), None);
    assert_eq!(apply(&mut state, raise()), ClusterAnswer::Refused(unknown(Some(1))));
    apply(&mut state, boot(2, 2, 2));
    assert_eq!(state.raisable(), Some(2));
    assert_eq!(apply(&mut state, raise()), ClusterAnswer::LevelRaised);
    assert_eq!(apply(&mut state, ClusterCommand::RaiseLevel { level: 1 }), ClusterAnswer::LevelRaised, "R12");
    assert_eq!((state.level, state.raisable()), (2, None), "never back");
    let old = ClusterRefusal::TooOld { member: MemberId(1), found: 1, expected: 2 };
    assert_eq!(apply(&mut state, boot(1, 2, 1)), ClusterAnswer::Refused(old));
    assert_eq!(apply(&mut state, ClusterCommand::OfLevel2), ClusterAnswer::Initialized);
}

/// A late copy of a key change, or one based on older keys, changes nothing: it cannot destroy what opens a set's data.
#[test]
fn keys_are_swapped_only_for_what_was_seen() {
    let mut state = ClusterState::new();
    let id = LogId::new(1, 1);
    state.apply(id, &add(1, "g1", 5, 6));
    state.apply(id, &create("s1", vec![MemberId(1)], 7));
    let swap = |from: &[u8], to: &[u8]| ClusterCommand::SwapKeys {
        set: GroupId(1),
        expected: from.to_vec(),
        wrapped_key: to.to_vec(),
        key_id: 1,
    };
    let first = state.sets[&GroupId(1)].wrapped_key.clone();
    let done = ClusterAnswer::KeyRewrapped;
    let changed = ClusterAnswer::Refused(ClusterRefusal::KeysChanged { set: GroupId(1) });
    assert_eq!(state.apply(id, &swap(&[77], &[5])), changed);
    assert_eq!(state.apply(id, &swap(&first, &[5])), done);
    assert_eq!(state.apply(id, &swap(&first, &[5])), done, "R12");
    assert_eq!(state.apply(id, &swap(&[5], &[6])), done);
    assert_eq!(state.apply(id, &swap(&first, &[5])), changed, "a late copy");
    assert_eq!(state.sets[&GroupId(1)].wrapped_key, [6]);
}

#[test]
fn a_set_is_restored_once_under_its_own_number() {
    let mut state = ClusterState::new();
    state.apply(LogId::new(1, 1), &add(1, "g1", 5, 6));
    let id = LogId::new(1, 2);
    let made = ClusterAnswer::SetCreated { set: GroupId(4) };
    assert_eq!(state.apply(id, &restore(4, "s4", 2)), made);
    assert_eq!(state.apply(id, &restore(4, "s4", 2)), made, "R12: the same recovery once more");
    let refused = |state: &mut ClusterState, command| match state.apply(id, &command) {
        ClusterAnswer::Refused(refusal) => refusal.to_string(),
        other => panic!("{other:?}"),
    };
    let taken = "set g4 cannot be restored: that number was given to set s4; recover into a new cluster";
    assert_eq!(refused(&mut state, restore(4, "s4", 3)), taken);
    let before = "set g3 cannot be restored: that number was given to a set before; recover into a new cluster";
    assert_eq!(refused(&mut state, restore(3, "s3", 2)), before, "CLUSTER-C1");
    assert_eq!(refused(&mut state, restore(9, "s9", 1)), "generation: found 1, expected 2 to 32768");
    let created = state.apply(id, &create("s5", vec![], 7));
    assert_eq!(created, ClusterAnswer::SetCreated { set: GroupId(5) }, "CLUSTER-C1");
    state.self_check();
}

/// R6: beyond the last generation there are no epochs that an earlier one did not have.
#[test]
fn a_generation_without_epochs_of_its_own_is_refused() {
    let mut state = ClusterState::new();
    let id = LogId::new(1, 1);
    state.apply(id, &add(1, "g1", 5, 6));
    // Each number is the next one, so that only the generation is in the way.
    for (set, generation, fine) in [
        (1, GENERATION_MAX + 1, false),
        (1, u64::MAX, false),
        (1, GENERATION_MAX, true),
        (2, FIRST_GENERATION, false),
        (2, 0, false),
        (2, FIRST_GENERATION + 1, true),
    ] {
        let answer = state.apply(id, &restore(set, &format!("s{set}"), generation));
        let refused = ClusterRefusal::BadGeneration { found: generation, max: GENERATION_MAX };
        let made = ClusterAnswer::SetCreated { set: GroupId(set) };
        assert_eq!(answer, if fine { made } else { ClusterAnswer::Refused(refused) }, "generation {generation}");
        state.self_check();
    }
    let [first, last] = [2, 1].map(|set| state.sets[&GroupId(set)].base_epoch);
    assert_eq!((first, last), (epoch_base(FIRST_GENERATION + 1), epoch_base(GENERATION_MAX)));
    assert!(epoch_base(FIRST_GENERATION) < first && first < last);
}

/// A request cannot bring in a member that is on its way out: nobody would wait for it.
#[test]
fn a_new_member_is_active_whatever_its_request_says() {
    for standing in [Standing::Drained, Standing::Leaving] {
        let mut state = ClusterState::new();
        let member = Member { standing, ..member(0, "g1", 1) };
        let add = ClusterCommand::AddMember { member, replaces: None, request: RequestId(1) };
        assert_eq!(state.apply(LogId::new(1, 1), &add), ClusterAnswer::MemberAdded { id: MemberId(1) });
        let made = &state.members[&MemberId(1)];
        assert_eq!((made.id, made.standing), (MemberId(1), Standing::Active), "asked for as {standing:?}");
    }
}

/// R12: a copy gets the answer of the first one, also after a newcomer that has not said what its build knows.
#[test]
fn a_level_that_was_raised_is_raised_for_a_late_copy_too() {
    let mut state = ClusterState::new();
    let apply = |state: &mut ClusterState, command: ClusterCommand| state.apply(LogId::new(1, 1), &command);
    apply(&mut state, add(1, "g1", 1, 1));
    apply(&mut state, ClusterCommand::RegisterBoot { member: MemberId(1), disk: 1, boot: 1, nonce: 1, level: 2 });
    assert_eq!(apply(&mut state, ClusterCommand::RaiseLevel { level: 2 }), ClusterAnswer::LevelRaised);
    apply(&mut state, add(2, "g2", 2, 2));
    for level in [2, 1] {
        assert_eq!(apply(&mut state, ClusterCommand::RaiseLevel { level }), ClusterAnswer::LevelRaised, "{level}");
    }
    let unknown = ClusterRefusal::LevelNotKnown { asked: 3, member: MemberId(1), known: Some(2) };
    assert_eq!(apply(&mut state, ClusterCommand::RaiseLevel { level: 3 }), ClusterAnswer::Refused(unknown));
    assert_eq!(state.level, 2);
}

/// CLUSTER-C1: numbers under which a store has something are given to nobody, and a late copy gives none of them back.
#[test]
fn numbers_that_a_store_has_taken_are_passed() {
    let mut state = ClusterState::new();
    let apply = |state: &mut ClusterState, command: ClusterCommand| {
        let answer = state.apply(LogId::new(1, 1), &command);
        state.self_check();
        answer
    };
    apply(&mut state, add(1, "g1", 1, 1));
    let pass = |upto| ClusterCommand::PassSets { upto: GroupId(upto) };
    assert_eq!(apply(&mut state, pass(7)), ClusterAnswer::SetsPassed);
    let taken = ClusterRefusal::SetIdTaken { set: GroupId(7), found: None };
    assert_eq!(apply(&mut state, restore(7, "s7", 2)), ClusterAnswer::Refused(taken));
    assert_eq!(apply(&mut state, create("a", vec![], 11)), ClusterAnswer::SetCreated { set: GroupId(8) });
    assert_eq!(apply(&mut state, pass(3)), ClusterAnswer::SetsPassed);
    assert_eq!(apply(&mut state, create("b", vec![], 12)), ClusterAnswer::SetCreated { set: GroupId(9) });
    assert_eq!(apply(&mut state, pass(u64::MAX)), ClusterAnswer::SetsPassed);
    let none_left = apply(&mut state, create("c", vec![], 13));
    assert!(matches!(none_left, ClusterAnswer::Refused(ClusterRefusal::TooManySets { .. })), "{none_left:?}");
}
