//! Sets that are on some of the members.

use super::*;

/// Set 1 on members 1 to 3.
pub(super) fn create_demo(state: &mut ClusterState) {
    let create = ClusterCommand::CreateSet {
        name: Name::new("demo").unwrap(),
        policy: crate::policy::Policy::default(),
        store: "file:///s".to_owned(),
        wrapped_key: vec![1],
        key_id: 1,
        members: vec![MemberId(1), MemberId(2), MemberId(3)],
        created_by: MemberId(1),
        base_epoch: holdfast_types::Epoch(0),
        request: RequestId(77),
    };
    assert_eq!(state.apply(LogId::new(1, 9), &create), ClusterAnswer::SetCreated { set: GroupId(1) });
}

/// VOTERS-V1: a set has the voters of its record; group 0 has all members.
#[test]
fn a_set_that_names_voters_has_no_others() {
    let mut state = cluster(&[G, G, LEAVING, G]);
    create_demo(&mut state);
    assert_eq!(wanted(&state, GroupId(1), &BTreeSet::new()), ids([1, 2]));
    assert_eq!(wanted(&state, GroupId::CLUSTER, &BTreeSet::new()), ids([1, 2, 3, 4]));
    assert_eq!(wanted(&state, GroupId(2), &BTreeSet::new()), ids([1, 2, 4]), "a set that is not known here yet");
    // All three move: the leader stays until the new ones have learnt, hands over, and the next one takes it out.
    let place = ClusterCommand::PlaceVoters { set: GroupId(1), from: ids([1, 2, 3]), to: ids([4]) };
    assert_eq!(state.apply(LogId::new(1, 10), &place), ClusterAnswer::VotersPlaced);
    assert_eq!(step(1, &[voter(1), voter(2), voter(3)], &state), Step::Learn(ids([4])));
    let learns = step(1, &[voter(1), voter(2), voter(3), learner(4, 9999)], &state);
    assert_eq!(learns, Step::Wait(Waiting::Learning { learning: ids([4]) }));
    assert_eq!(step(1, &[voter(1), voter(2), voter(3), learner(4, 0)], &state), Step::Vote(ids([1, 4])));
    assert_eq!(step(1, &[voter(1), voter(4)], &state), Step::HandOver(MemberId(4)));
    assert_eq!(step(4, &[voter(1), voter(4)], &state), Step::Vote(ids([4])));
    assert_eq!(step(4, &[voter(4)], &state), Step::Done);
}

#[test]
fn a_gateway_that_a_set_does_not_need_is_not_kept_by_it() {
    let four = cluster(&[G, G, G, G]);
    let groups = |of_set: &[u64]| {
        let mut groups = health(&[1, 2, 3, 4], &[1, 2, 3, 4]);
        groups[1].voters = ids([2, 3]);
        groups[1].answering = ids(of_set.iter().copied());
        groups
    };
    assert_eq!(leave(&four, &groups(&[2]), 1, false), Ok(()), "the set has no quorum, and 1 is none of its voters");
    assert!(leave(&four, &groups(&[2]), 3, true).unwrap_err().contains("set demo: 1 of 2 voters answer"));
    assert_eq!(leave(&four, &groups(&[2, 3]), 1, false), Ok(()));
}

/// One set whose gateways were down kept every other gateway of the cluster from being drained or removed.
#[test]
fn a_set_without_a_leader_keeps_only_those_that_may_vote_in_it() {
    let mut state = cluster(&[G, G, G, G, G]);
    create_demo(&mut state);
    let mut groups = health(&[1, 2, 3, 4, 5], &[1, 2, 3, 4, 5]);
    groups[1] = GroupHealth { perhaps: ids([1, 2, 3]), ..health(&[], &[])[1].clone() };
    let drain = |groups: &[GroupHealth], id: u64, force| {
        may_drain(&state, groups, &state.members[&MemberId(id)], force).map_err(|e| e.to_string())
    };
    assert_eq!((drain(&groups, 4, false), leave(&state, &groups, 4, false)), (Ok(()), Ok(())));
    for why in [drain(&groups, 2, false), leave(&state, &groups, 2, true)] {
        let why = why.unwrap_err();
        assert!(why.starts_with("set demo has no leader now, and g2 may be one of its voters"), "{why}");
        assert!(why.contains("first start enough of its gateways (g1, g2, g3;"), "{why}");
    }
    assert_eq!(drain(&groups, 2, true), Ok(()), "it serves on until another one can");
    groups[0] = health(&[], &[])[0].clone();
    assert!(leave(&state, &groups, 4, true).unwrap_err().contains("the cluster has no leader now"));
}

/// A removal that costs a spare says to drain first: not where no other gateway may have the vote.
#[test]
fn a_drain_is_advised_only_where_a_vote_can_go() {
    let mut state = cluster(&[G, G, G, G]);
    create_demo(&mut state);
    let mut groups = health(&[1, 2, 3, 4], &[1, 2, 3, 4]);
    groups[1].voters.remove(&MemberId(4));
    let why = |state: &ClusterState| leave(state, &groups, 1, false).unwrap_err();
    assert!(why(&state).contains("Drain it first (holdfast gateway drain g1)"), "{}", why(&state));
    let eu = state.members[&MemberId(4)].locality.region.clone();
    state.sets.get_mut(&GroupId(1)).unwrap().policy.forbidden.insert(eu);
    assert!(why(&state).contains("Replace it instead"), "{}", why(&state));
}

/// MEMBER-M2: a set of three does not become one of two for as long as the planner takes.
#[test]
fn a_leaving_voter_stays_until_its_place_is_given_to_another() {
    let mut state = cluster(&[G, G, LEAVING, G]);
    create_demo(&mut state);
    let step = |state: &ClusterState, peers: &[Peer]| {
        let group = GroupView { me: MemberId(1), peers: peers.to_vec(), next: None };
        let mut wanted = wanted(state, GroupId(1), &BTreeSet::new());
        wanted.extend(kept(state, GroupId(1), MemberId(1), &ids([3])));
        next_step(&group, state, &wanted)
    };
    let three = [voter(1), voter(2), voter(3)];
    assert_eq!(step(&state, &three), Step::Done, "the planner has a turn first");
    assert_eq!(step(&state, &[voter(1), voter(2), dead(3)]), Step::Done, "two of three, as two of two");
    let place = ClusterCommand::PlaceVoters { set: GroupId(1), from: ids([1, 2, 3]), to: ids([1, 2, 4]) };
    let mut placed = state.clone();
    assert_eq!(placed.apply(LogId::new(1, 10), &place), ClusterAnswer::VotersPlaced);
    assert_eq!(kept(&placed, GroupId(1), MemberId(1), &ids([3])), ids([]));
    assert_eq!([&state, &placed].map(|state| named_by(state, MemberId(3))), [1, 0], "the removal gets on");
    assert_eq!(step(&placed, &three), Step::Learn(ids([4])));
    let four = [voter(1), voter(2), voter(3), learner(4, 0)];
    assert_eq!(step(&placed, &four), Step::Vote(ids([1, 2, 4])));
    // Nobody could take the place: it goes at once, as without a planner.
    assert_eq!(kept(&state, GroupId(1), MemberId(1), &ids([])), ids([]), "its time is over");
    let mut drained = state.clone();
    drained.members.get_mut(&MemberId(4)).unwrap().standing = Standing::Drained;
    assert_eq!(step(&drained, &three), Step::Done, "the planner prefers it to nobody");
    let mut nobody = state.clone();
    nobody.members.get_mut(&MemberId(4)).unwrap().standing = Standing::Leaving;
    assert_eq!(step(&nobody, &three), Step::Vote(ids([1, 2])));
    let mut forbidden = state.clone();
    let eu = state.members[&MemberId(4)].locality.region.clone();
    forbidden.sets.get_mut(&GroupId(1)).unwrap().policy.forbidden.insert(eu);
    assert_eq!(step(&forbidden, &three), Step::Vote(ids([1, 2])));
    assert_eq!(kept(&state, GroupId::CLUSTER, MemberId(1), &ids([3])), ids([]), "group 0 keeps it by itself");
}

/// MEMBER-M2: 4 was to replace 3, and is removed while it learns. 3 went at once, and the set had two voters.
#[test]
fn a_newcomer_that_leaves_takes_no_voter_with_it() {
    let mut state = cluster(&[G, G, G, G]);
    create_demo(&mut state);
    let place = |state: &mut ClusterState, from: &BTreeSet<MemberId>, to: &BTreeSet<MemberId>| {
        let place = ClusterCommand::PlaceVoters { set: GroupId(1), from: from.clone(), to: to.clone() };
        assert_eq!(state.apply(LogId::new(1, 10), &place), ClusterAnswer::VotersPlaced);
    };
    place(&mut state, &ids([1, 2, 3]), &ids([1, 2, 4]));
    state.members.get_mut(&MemberId(4)).unwrap().standing = Standing::Leaving;
    let step = |state: &ClusterState, waiting: &BTreeSet<MemberId>, peers: &[Peer]| {
        let group = GroupView { me: MemberId(1), peers: peers.to_vec(), next: None };
        let mut wanted = wanted(state, GroupId(1), &BTreeSet::new());
        wanted.extend(kept(state, GroupId(1), MemberId(1), waiting));
        step_of(GroupId(1), &group, state, &wanted)
    };
    let (four, three) = (ids([4]), [voter(1), voter(2), voter(3)]);
    for behind in [0, 9999] {
        let learns = [three.as_slice(), &[learner(4, behind)]].concat();
        assert_eq!(step(&state, &four, &learns), Step::Wait(Waiting::Planner { leaving: ids([4]) }));
        let mut given = state.clone();
        place(&mut given, &ids([1, 2, 4]), &ids([1, 2, 3]));
        assert_eq!(step(&given, &four, &learns), Step::Forget(ids([4])), "3 has its place again");
        assert_eq!([&state, &given].map(|state| named_by(state, MemberId(4))), [1, 0], "the removal gets on");
    }
    assert_eq!(step(&state, &ids([]), &three), Step::Vote(ids([1, 2])), "the time is over: an order");
    let mut nobody = state.clone();
    let eu = state.members[&MemberId(3)].locality.region.clone();
    nobody.sets.get_mut(&GroupId(1)).unwrap().policy.forbidden.insert(eu);
    assert_eq!(step(&nobody, &four, &three), Step::Vote(ids([1, 2])), "nobody could get the place");
}

/// 4 and 5 counted as lost, since the leader of group 0 did not hear them, and then 3 went: of five voters one more
/// could be lost, of three none.
#[test]
fn who_is_needed_does_not_go_while_one_that_is_to_stay_is_away() {
    let mut state = cluster(&[G; 5]);
    create_demo(&mut state);
    let step = |state: &ClusterState, third: Peer, others: [Peer; 2]| {
        let peers = [voter(1), voter(2), third].into_iter().chain(others).collect();
        let group = GroupView { me: MemberId(1), peers, next: None };
        step_of(GroupId(1), &group, state, &ids([1, 2, 3]))
    };
    let away = |id: u64| Peer { answers: false, ..voter(id) };
    let (there, three) = ([voter(4), voter(5)], Step::Vote(ids([1, 2, 3])));
    assert_eq!(step(&state, away(3), there), Step::Wait(Waiting::Away { away: ids([3]) }), "MEMBER-M1");
    assert_eq!(step(&state, voter(3), there), three);
    assert_eq!(step(&state, voter(3), [away(4), away(5)]), three, "PLACING-P4");
    assert_eq!(step(&state, away(3), [voter(4), away(5)]), three, "none could be lost before either");
    state.members.get_mut(&MemberId(4)).unwrap().standing = Standing::Leaving;
    assert_eq!(step(&state, away(3), there), three, "an order");
}

/// MEMBER-M3: a leader that leaves gives a set to a witness only if no voter that serves is to come.
#[test]
fn a_leader_that_leaves_hands_over_as_before() {
    let mut state = cluster(&[LEAVING, G, WITNESS, G]);
    create_demo(&mut state);
    let step = |peers: &[Peer]| {
        let group = GroupView { me: MemberId(1), peers: peers.to_vec(), next: None };
        let mut wanted = wanted(&state, GroupId(1), &BTreeSet::new());
        wanted.extend(kept(&state, GroupId(1), MemberId(1), &ids([1])));
        next_step(&group, &state, &wanted)
    };
    assert_eq!(step(&[voter(1), voter(2), voter(3)]), Step::HandOver(MemberId(2)));
    assert_eq!(step(&[voter(1), dead(2), voter(3)]), Step::Wait(Waiting::NoHeir), "it serves on until 2 is back");
    assert_eq!(kept(&state, GroupId(1), MemberId(2), &ids([1])), ids([1]), "the next leader keeps its vote");
}

/// MEMBER-M2, PLACING-P1: the planner names two newcomers at once, because with one of them the set would survive less.
#[test]
fn newcomers_come_together_where_one_alone_survives_less() {
    let mut state = cluster(&[G, G, G, G, G]);
    create_demo(&mut state);
    for (id, region) in (1_u64..).zip(["eu", "us", "ap", "eu", "us"]) {
        state.members.get_mut(&MemberId(id)).unwrap().locality = region.parse().unwrap();
    }
    let place = ClusterCommand::PlaceVoters { set: GroupId(1), from: ids([1, 2, 3]), to: ids(1..=5) };
    assert_eq!(state.apply(LogId::new(1, 10), &place), ClusterAnswer::VotersPlaced);
    let step = |state: &ClusterState, peers: &[Peer]| {
        let group = GroupView { me: MemberId(1), peers: peers.to_vec(), next: None };
        step_of(GroupId(1), &group, state, &wanted(state, GroupId(1), &BTreeSet::new()))
    };
    let three = [voter(1), voter(2), voter(3)];
    let one = [three.as_slice(), &[learner(4, 0), learner(5, 9999)]].concat();
    let waits = Step::Wait(Waiting::Learning { learning: ids([5]) });
    assert_eq!(step(&state, &one), waits, "two of four voters would stand in one region");
    let both = [three.as_slice(), &[learner(4, 0), learner(5, 0)]].concat();
    assert_eq!(step(&state, &both), Step::Vote(ids(1..=5)));
    let mut hosts = state.clone();
    hosts.sets.get_mut(&GroupId(1)).unwrap().policy.survive = Some(Survive::Host);
    assert_eq!(step(&hosts, &one), Step::Vote(ids(1..=4)), "three of four machines are enough");
    let mut fourth = state.clone();
    fourth.members.get_mut(&MemberId(4)).unwrap().locality = "sa".parse().unwrap();
    assert_eq!(step(&fourth, &one), Step::Vote(ids(1..=4)), "three of four regions are enough");
    let mut all = state.clone();
    all.sets.get_mut(&GroupId(1)).unwrap().voters.clear();
    assert_eq!(step(&all, &one), Step::Vote(ids(1..=4)), "nobody would replace a member that never comes up");
    let alone = [voter(1), learner(2, 0), learner(3, 9999), learner(4, 9999), learner(5, 9999)];
    assert_eq!(step(&state, &alone), Step::Vote(ids([1, 2])), "it survives nothing now, and has a second copy then");
}

/// Whether a majority is left after each loss of one domain.
fn survives(state: &ClusterState, voters: &BTreeSet<MemberId>, level: Survive) -> bool {
    let domain = |id: &MemberId| {
        let at = &state.members[id].locality;
        match level {
            Survive::Region => (Some(at.region.clone()), None, None),
            Survive::Zone => (Some(at.region.clone()), at.zone.clone(), None),
            Survive::Host => (None, None, Some(*id)),
        }
    };
    let left = |lost: &MemberId| voters.iter().filter(|id| domain(id) != domain(lost)).count();
    voters.iter().all(|lost| left(lost) > voters.len() / 2)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    /// MEMBER-M2, PLACING-P1: in whatever order the newcomers catch up, a set survives on its way what it survived
    /// before, until it has all voters that it is to have. And it comes there.
    #[test]
    fn no_step_on_the_way_survives_less(
        places in vec((0..4_u8, 0..2_u8), 7),
        begin in vec(any::<bool>(), 7),
        named in vec(any::<bool>(), 7),
        order in vec(0..7_usize, 7),
    ) {
        let mut state = cluster(&[G; 7]);
        create_demo(&mut state);
        for (member, (region, zone)) in state.members.values_mut().zip(&places) {
            member.locality = format!("region=r{region},zone=z{zone}").parse().unwrap();
        }
        let some = |of: &[bool]| -> BTreeSet<MemberId> {
            (1_u64..).zip(of).filter(|(_, is)| **is).map(|(id, _)| MemberId(id)).collect()
        };
        let (now, to) = (some(&begin), some(&named));
        prop_assume!(!now.is_empty() && !to.is_empty());
        state.sets.get_mut(&GroupId(1)).unwrap().voters.clone_from(&to);
        let peers = now.iter().map(|id| voter(id.0)).collect();
        let group = GroupView { me: now.first().copied().unwrap(), peers, next: None };
        let mut world = World { group, alive: ids(1..=7), dies: Vec::new() };
        let mut order = order.into_iter().cycle();
        for round in 0.. {
            prop_assert!(round < 60, "it does not end: {:?}", world.group);
            let before = world.group.voters();
            let step = step_of(GroupId(1), &world.group, &state, &to);
            if let Step::Vote(after) = &step {
                let less = |level: &Survive| survives(&state, &before, *level) && !survives(&state, after, *level);
                let less = Survive::ALL.iter().any(less);
                prop_assert!(!less || to.is_subset(after), "{:?} -> {:?} in {:?}", before, after, state.members);
            }
            if world.carry_out(&step)? {
                continue;
            }
            // One newcomer more has caught up.
            let mut behind: Vec<&mut Peer> = world.group.peers.iter_mut().filter(|peer| peer.behind > 0).collect();
            if behind.is_empty() {
                break;
            }
            let at = order.next().unwrap_or_default() % behind.len();
            *behind[at] = Peer { behind: 0, answers: true, ..*behind[at] };
        }
        prop_assert_eq!(world.group.voters(), to);
    }
}
