//! Group 0, in which some members vote and all others learn (MEMBER-M6).

use super::*;
use crate::cluster::{Boot, CLUSTER_VOTERS_LEVEL};
use crate::placing::{Candidate, cluster_size, cluster_voters};

/// A new set would need the vote of a member that may never come up.
#[test]
fn a_new_set_waits_for_each_member_that_joins() {
    let mut state = cluster(&[G, LEAVING, WITNESS, DRAINED]);
    let came_up = Boot { boot: 1, nonce: 1, level: 1 };
    state.boots.insert(MemberId(2), came_up);
    let joins =
        |state: &ClusterState, voters: &[u64]| joining(state, &ids(voters.iter().copied())).map(|member| member.id);
    assert_eq!(joins(&state, &[1, 2, 3, 4]), None);
    assert_eq!(joins(&state, &[1, 3, 4]), None, "who leaves is no member of a new set");
    assert_eq!(joins(&state, &[1, 2, 4]), Some(MemberId(3)), "a witness votes too");
    assert_eq!(joins(&state, &[1, 2, 3]), Some(MemberId(4)), "so does a drained gateway");
    state.boots.insert(MemberId(4), came_up);
    assert_eq!(joins(&state, &[1, 2, 3]), None, "MEMBER-M6: it has come up, and learns group 0");
    assert_eq!(joins(&state, &[1, 3]), Some(MemberId(4)), "it is to get a vote, and may never be reached");
}

#[test]
fn group_0_keeps_who_leaves_until_every_set_is_without_it() {
    let state = cluster(&[G, LEAVING, DRAINED]);
    assert_eq!(wanted(&state, GroupId(1), &BTreeSet::new()), ids([1, 3]));
    assert_eq!(wanted(&state, GroupId::CLUSTER, &BTreeSet::new()), ids([1, 2, 3]));
    assert_eq!(wanted(&state, GroupId::CLUSTER, &ids([2])), ids([1, 3]));
}

/// The step of group 0 led by `me`, in which all members are and these are to vote.
fn step_of_group_0(me: u64, peers: &[Peer], state: &ClusterState, voting: &[u64]) -> Step {
    let group = GroupView { me: MemberId(me), peers: peers.to_vec(), next: None };
    let all = wanted(state, GroupId::CLUSTER, &BTreeSet::new());
    step_of_cluster(&group, state, &all, &ids(voting.iter().copied()))
}

#[test]
fn all_members_are_in_group_0_and_only_some_of_them_vote() {
    let state = cluster(&[G, G, G, G]);
    let three = [voter(1), voter(2), voter(3)];
    let step = |peers: &[Peer], voting: &[u64]| step_of_group_0(1, peers, &state, voting);
    assert_eq!(step(&three, &[1, 2, 3]), Step::Learn(ids([4])), "MEMBER-M6: it follows");
    let all = [three.as_slice(), &[learner(4, 9999)]].concat();
    assert_eq!(step(&all, &[1, 2, 3]), Step::Done, "nobody waits for it");
    let close = [three.as_slice(), &[learner(4, 7)]].concat();
    assert_eq!(step(&close, &[1, 2, 4]), Step::Vote(ids([1, 2, 4])));
    assert_eq!(step(&close, &[2, 3, 4]), Step::HandOver(MemberId(2)), "MEMBER-M3: the leader is to vote no more");
    let four = [voter(1), voter(2), voter(3), voter(4)];
    assert_eq!(step(&four, &[1, 2, 3]), Step::Vote(ids([1, 2, 3])), "a vote for the number");
    assert_eq!(step_of(GroupId::CLUSTER, &view_of(&close), &state, &ids([1, 2, 3, 4])), Step::Vote(ids([1, 2, 3, 4])));
}

fn view_of(peers: &[Peer]) -> GroupView {
    GroupView { me: MemberId(1), peers: peers.to_vec(), next: None }
}

#[test]
fn nobody_loses_its_vote_for_the_number_while_one_that_is_to_stay_is_away() {
    let state = cluster(&[G; 6]);
    let six: Vec<Peer> = (1..=6).map(voter).collect();
    let mut one_away = six.clone();
    one_away[1] = dead(2);
    let five = [voter(1), voter(2), voter(3), dead(4), voter(5), learner(6, 0)];
    let step = |peers: &[Peer], state: &ClusterState, voting: &[u64]| step_of_group_0(1, peers, state, voting);
    assert_eq!(step(&six, &state, &[1, 2, 3, 4, 5]), Step::Vote(ids([1, 2, 3, 4, 5])));
    let waits = step(&five, &state, &[1, 3, 4]);
    assert_eq!(waits, Step::Wait(Waiting::Away { away: ids([4]) }), "MEMBER-M1: 2 and 5 may be needed");
    assert_eq!(step(&one_away, &state, &[1, 3, 4, 5, 6]), Step::Vote(ids([1, 3, 4, 5, 6])), "the lost one goes");
    let mut leaves = state;
    leaves.members.get_mut(&MemberId(5)).unwrap().standing = Standing::Leaving;
    let ordered = step(&five, &leaves, &[1, 2, 3, 4]);
    assert_eq!(ordered, Step::Vote(ids([1, 2, 3, 4])), "that a member leaves is an order");
}

#[test]
fn a_learner_of_group_0_has_the_vote_of_who_is_removed() {
    let mut state = cluster(&[G, G, G, G]);
    let groups = |spares: &[u64]| {
        let mut groups = health(&[1, 2, 3], &[1, 2, 3]);
        groups[0].spares = ids(spares.iter().copied());
        groups.truncate(1);
        groups
    };
    assert!(leave(&state, &groups(&[4]), 1, false).is_err(), "below the level nobody gets its vote");
    state.level = CLUSTER_VOTERS_LEVEL;
    assert!(leave(&state, &groups(&[]), 1, false).unwrap_err().contains("the cluster"), "g4 does not follow");
    assert_eq!(leave(&state, &groups(&[4]), 1, false), Ok(()));
    let mut two = groups(&[4]);
    two[0].answering = ids([1, 3]);
    assert_eq!(leave(&state, &two, 1, false), Ok(()), "3 and 4 are two of three");
    two[0].spares = BTreeSet::new();
    assert!(leave(&state, &two, 1, true).is_err());
    assert_eq!(leave(&state, &groups(&[]), 4, false), Ok(()), "it has no vote there");
}

/// Steps until nothing is left to do. Returns the group.
fn walk(state: &ClusterState, mut group: GroupView, silent: &BTreeSet<MemberId>) -> GroupView {
    let candidate = |member: &Member| Candidate {
        name: member.name.clone(),
        locality: member.locality.clone(),
        role: member.role,
        standing: member.standing,
        silent: silent.contains(&member.id).then_some(Duration::from_secs(600)),
        busy: false,
        slow: false,
    };
    let members: BTreeMap<MemberId, Candidate> = state.members.values().map(|m| (m.id, candidate(m))).collect();
    let all = wanted(state, GroupId::CLUSTER, &BTreeSet::new());
    for _ in 0..64 {
        let voters = group.voters();
        let to = cluster_voters(&members, &voters, group.me, &BTreeSet::new(), Some(Duration::from_secs(900)));
        match step_of_cluster(&group, state, &all, &to.next) {
            Step::Vote(to) => {
                for set in [&voters, &to] {
                    assert!(answering(&group, set).len() > set.len() / 2, "MEMBER-M1: {to:?} in {group:?}");
                }
                assert!(to.contains(&group.me), "it leads: {to:?} in {group:?}");
                group.peers.iter_mut().for_each(|peer| peer.voter = to.contains(&peer.id));
            }
            Step::HandOver(heir) => group.me = heir,
            Step::Done | Step::Wait(_) => return group,
            other => panic!("MEMBER-M6: nobody comes or goes: {other:?} in {group:?}"),
        }
    }
    panic!("it does not end: {group:?}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// From any voters, with some members silent for long.
    #[test]
    fn group_0_comes_to_its_voters_and_keeps_all_members(
        found in vec((0..3_usize, 0..4_u8, any::<bool>(), 0..5_u8), 1..12),
    ) {
        let roles: Vec<(MemberRole, Standing)> = found.iter().map(|(role, ..)| [G, DRAINED, WITNESS][*role]).collect();
        let mut state = cluster(&roles);
        let (mut peers, mut silent) = (Vec::new(), BTreeSet::new());
        for (member, (_, region, votes, answers)) in state.members.values_mut().zip(&found) {
            member.locality = format!("region=r{region}").parse().unwrap();
            let (leads, id) = (member.id == MemberId(1), member.id.0);
            let answers = leads || *answers > 0;
            peers.push(Peer { voter: leads || *votes, answers, ..voter(id) });
            if !answers {
                silent.insert(member.id);
            }
        }
        let end = walk(&state, GroupView { me: MemberId(1), peers, next: None }, &silent);
        prop_assert_eq!(end.peers.len(), state.members.len());
        if silent.is_empty() && roles.iter().all(|role| *role == G) {
            prop_assert_eq!(end.voters().len(), cluster_size(state.members.len()), "{:?}", end);
        }
    }
}
