use super::*;
use holdfast_control::cluster::Member;
use holdfast_control::following::TURN;
use holdfast_control::placing::{Rules, violations};
use holdfast_control::policy::Survive;
use holdfast_raft::{Leadership, MemberStatus};
use holdfast_types::GroupId;

const SET: SetId = GroupId(1);
const RULES: Rules = Rules { replace_after: None, at_once: 2, repairs: 2, balance: true };

fn view(silent: Option<Duration>) -> View {
    let candidate = |id: u64, region: &str, silent| Candidate {
        name: format!("g{id}").parse().unwrap(),
        locality: region.parse().unwrap(),
        role: MemberRole::Gateway,
        standing: Standing::Active,
        silent,
        busy: false,
        slow: false,
    };
    let members = [candidate(1, "eu", None), candidate(2, "us", None), candidate(3, "ap", silent)];
    let policy = Policy { survive: Some(Survive::Region), ..Policy::default() };
    let voters: BTreeSet<MemberId> = (1..=3).map(MemberId).collect();
    let (leader, now) = (voters.first().copied(), voters.clone());
    let (late, absent, moving) = (BTreeSet::new(), BTreeSet::new(), false);
    let placed = Placed { policy, leader, voters, now, late, absent, bytes: 0, moving, overdue: false, stalled: false };
    let members = (1..).map(MemberId).zip(members).collect();
    View { members, groups: BTreeMap::from([(SET, placed)]) }
}

#[test]
fn voters_follow_an_owner_only_if_the_policy_names_no_home() {
    const LONG: Duration = Duration::from_secs(900);
    let name = |text: &str| text.parse::<Name>().unwrap();
    let seen = |region: &str| {
        let owner = Some(region).filter(|region| !region.is_empty()).map(name);
        let (leader, voters, near) = (Some(MemberId(1)), (1..=3).map(MemberId).collect(), BTreeSet::new());
        BTreeMap::from([(SET, GroupReport { leader, voters, near, learners: BTreeMap::new(), bytes: 0, owner })])
    };
    let home = |planned: &Planned, view: &View, after: Duration| {
        planned.towards_owners(view, after).groups[&SET].policy.home.as_ref().map(Name::to_string)
    };
    let mut planned = Planned::default();
    let here = view(None);
    planned.saw(seen("us"), Runs::default(), BTreeSet::new(), Instant::now());
    assert_eq!(home(&planned, &here, LONG), None, "it has just come");
    assert_eq!(home(&planned, &here, Duration::ZERO).as_deref(), Some("us"));
    planned.saw(seen("sa"), Runs::default(), BTreeSet::new(), Instant::now());
    assert_eq!(home(&planned, &here, Duration::ZERO), None, "no gateway is there");
    planned.saw(seen(""), Runs::default(), BTreeSet::new(), Instant::now());
    assert_eq!(home(&planned, &here, Duration::ZERO), None, "nobody knows where it stands");
    planned.saw(seen("us"), Runs::default(), BTreeSet::new(), Instant::now());
    let mut ruled = here.clone();
    ruled.groups.get_mut(&SET).unwrap().policy.home = Some(name("eu"));
    assert_eq!(home(&planned, &ruled, Duration::ZERO).as_deref(), Some("eu"), "the policy rules");
    let mut forbidden = here;
    forbidden.groups.get_mut(&SET).unwrap().policy.forbidden.insert(name("us"));
    assert_eq!(home(&planned, &forbidden, Duration::ZERO), None, "by law");
}

/// What is violated of each set.
fn violated(view: &View) -> BTreeMap<SetId, Vec<Violation>> {
    view.groups.iter().map(|(set, placed)| (*set, violations(view, placed, &RULES))).collect()
}

#[test]
fn a_violation_has_the_time_at_which_it_began() {
    let mut planned = Planned::default();
    planned.enter(Some(Term(4)));
    assert!(planned.note(violated(&view(None)), 10).is_empty());
    let dead = view(Some(Duration::from_secs(9)));
    assert_eq!(planned.note(violated(&dead), 20).len(), 2, "silent, and one loss is too many");
    assert!(planned.note(violated(&dead), 30).is_empty(), "told once");
    assert!(planned.violated(SET).all(|(_, since)| since == 20));
    let over = planned.note(violated(&view(None)), 40);
    assert!(over.len() == 2 && over.iter().all(|told| !told.begun), "{over:?}");
    planned.note(violated(&dead), 50);
    assert!(planned.violated(SET).all(|(_, since)| since == 50));
    assert!(planned.is_of(Term(4)));
    planned.enter(Some(Term(5)));
    assert_eq!(planned.violated(SET).count(), 0, "another term begins anew");
    assert!(!planned.is_of(Term(4)), "an older round is not noted");
    planned.note(violated(&dead), 60);
    planned.enter(Some(Term(4)));
    assert!(planned.is_of(Term(5)) && planned.violated(SET).count() == 2, "a call that began in an earlier term");
    planned.enter(None);
    assert!(!planned.is_of(Term(5)), "it does not lead");
}

fn ids(of: [u64; 3]) -> BTreeSet<MemberId> {
    of.map(MemberId).into()
}

/// A leader reports the set on g1, g2 and g3.
fn saw(planned: &mut Planned, bytes: u64, at: Instant) {
    let (leader, voters, near, learners) = (Some(MemberId(1)), ids([1, 2, 3]), BTreeSet::new(), BTreeMap::new());
    let seen = GroupReport { leader, voters, near, learners, bytes, owner: None };
    planned.saw(BTreeMap::from([(SET, seen)]), Runs::default(), BTreeSet::new(), at);
}

#[test]
fn a_move_is_not_over_because_nobody_tells_how_far_it_is() {
    let (mut planned, at) = (Planned::default(), Instant::now());
    planned.enter(Some(Term(4)));
    saw(&mut planned, 0, at);
    let none = BTreeSet::new();
    let placed = |planned: &mut Planned, to, at| planned.placed(SET, Policy::default(), ids(to), &none, at);
    let begun = placed(&mut planned, [1, 2, 4], at);
    assert_eq!((begun.moving, begun.leader, begun.now), (true, Some(MemberId(1)), ids([1, 2, 3])));
    planned.saw(BTreeMap::new(), Runs::default(), BTreeSet::new(), at);
    let untold = placed(&mut planned, [1, 2, 4], at + LATE / 2);
    assert_eq!((untold.moving, untold.leader, untold.late.len()), (true, None, 0));
    assert_eq!(placed(&mut planned, [1, 2, 4], at + LATE).late, BTreeSet::from([MemberId(4)]));
    assert!(placed(&mut planned, [1, 2, 5], at + LATE).late.is_empty(), "another one has its time");
    assert_eq!(placed(&mut planned, [1, 2, 5], at + LATE * 2).late, BTreeSet::from([MemberId(5)]));
    assert!(!placed(&mut planned, [1, 2, 3], at + LATE * 2).moving);
    assert!(placed(&mut planned, [1, 2, 5], at + LATE * 2).late.is_empty(), "a new move");
}

/// Two sets whose newcomers got nothing kept all others from moving for an hour.
#[test]
fn a_move_that_gets_no_nearer_is_stalled() {
    let (mut planned, at) = (Planned::default(), Instant::now());
    planned.enter(Some(Term(4)));
    let mut stalled = |applied: u64, at: Instant| {
        let (leader, voters, near) = (Some(MemberId(1)), ids([1, 2, 3]), BTreeSet::new());
        let learners = BTreeMap::from([(MemberId(4), applied)]);
        let seen = GroupReport { leader, voters, near, learners, bytes: 0, owner: None };
        planned.saw(BTreeMap::from([(SET, seen)]), Runs::default(), BTreeSet::new(), at);
        planned.placed(SET, Policy::default(), ids([1, 2, 4]), &BTreeSet::new(), at).stalled
    };
    assert!(!stalled(0, at));
    assert!(!stalled(0, at + STALL / 2));
    assert!(stalled(0, at + STALL));
    assert!(!stalled(7, at + STALL), "it gets something again");
    assert!(!stalled(8, at + STALL * 3 / 2), "it is slow");
    assert!(!stalled(8, at + STALL * 2));
    assert!(stalled(8, at + STALL * 5 / 2));
}

#[test]
fn a_voter_that_does_not_run_a_set_is_told_after_a_while() {
    let (mut planned, at) = (Planned::default(), Instant::now());
    planned.enter(Some(Term(4)));
    let of = |of: &[u64]| of.iter().copied().map(MemberId).collect::<BTreeSet<_>>();
    let mut told = |answers: &[u64], runs: &[u64], at: Instant| {
        let groups = of(runs).into_iter().map(|id| (SET, id)).collect();
        planned.saw(BTreeMap::new(), Runs { answers: of(answers), groups, ..Runs::default() }, BTreeSet::new(), at);
        planned.placed(SET, Policy::default(), ids([1, 2, 3]), &BTreeSet::new(), at).absent
    };
    assert_eq!(told(&[1, 2, 3], &[1, 2], at), of(&[]), "it may be starting");
    assert_eq!(told(&[1, 2, 3], &[1], at + ABSENT), of(&[3]), "also if nobody leads the set");
    assert_eq!(told(&[1, 2, 3], &[1], at + ABSENT * 2), of(&[2, 3]));
    assert_eq!(told(&[1, 3], &[1, 3], at + ABSENT * 2), of(&[]), "2 is silent, and 3 runs it");
    assert_eq!(told(&[1, 2, 3], &[1], at + ABSENT * 3), of(&[]), "another time");
}

/// MEMBER-M2: it has everything, and waits for the other one. As a late one it would get no vote of any set.
#[test]
fn a_newcomer_that_waits_for_another_one_is_not_late() {
    let (mut planned, at) = (Planned::default(), Instant::now());
    planned.enter(Some(Term(4)));
    let of = |of: &[u64]| of.iter().copied().map(MemberId).collect::<BTreeSet<_>>();
    let mut late = |near: &[u64], at: Instant| {
        let (leader, voters, near, learners) = (Some(MemberId(1)), ids([1, 2, 3]), of(near), BTreeMap::new());
        let seen = GroupReport { leader, voters, near, learners, bytes: 0, owner: None };
        planned.saw(BTreeMap::from([(SET, seen)]), Runs::default(), BTreeSet::new(), at);
        planned.placed(SET, Policy::default(), of(&[1, 2, 3, 4, 5]), &BTreeSet::new(), at).late
    };
    assert_eq!(late(&[4], at), of(&[]));
    assert_eq!(late(&[], at + LATE), of(&[5]), "4 lags at this moment: much is written");
    assert_eq!(late(&[4, 5], at + LATE), of(&[4, 5]), "nobody waits for another one");
}

#[test]
fn who_was_late_is_avoided_for_a_while() {
    let (mut planned, at) = (Planned::default(), Instant::now());
    planned.avoid(&BTreeSet::from([MemberId(4)]), at);
    planned.avoid(&BTreeSet::from([MemberId(5)]), at + AVOIDED / 2);
    assert_eq!(planned.slow.keys().copied().collect::<Vec<_>>(), [4, 5].map(MemberId));
    planned.avoid(&BTreeSet::new(), at + AVOIDED);
    assert_eq!(planned.slow.keys().copied().collect::<Vec<_>>(), [MemberId(5)]);
}

/// A group that lost its quorum on the way may have no newcomer any more, and its move does not end.
#[test]
fn a_move_without_a_newcomer_is_overdue_as_well() {
    let (mut planned, at) = (Planned::default(), Instant::now());
    planned.enter(Some(Term(4)));
    saw(&mut planned, 0, at);
    let pair = BTreeSet::from([1, 2].map(MemberId));
    let mut placed = |at| planned.placed(SET, Policy::default(), pair.clone(), &BTreeSet::new(), at);
    assert!(placed(at).moving && !placed(at + LATE / 2).overdue);
    let long = placed(at + LATE);
    assert!(long.overdue && long.late.is_empty());
    assert!(!planned.placed(SET, Policy::default(), ids([1, 2, 3]), &BTreeSet::new(), at + LATE).overdue);
}

/// MEMBER-M2: the voter that leaves waits for the planner. If the planner waited for it, neither would move.
#[test]
fn a_set_with_a_voter_that_leaves_is_not_on_its_way() {
    let (mut planned, at) = (Planned::default(), Instant::now());
    planned.enter(Some(Term(4)));
    saw(&mut planned, 0, at);
    let (stay, leaves) = (BTreeSet::from([MemberId(1), MemberId(2)]), BTreeSet::from([MemberId(3)]));
    assert!(!planned.placed(SET, Policy::default(), stay, &leaves, at).moving);
    let given = planned.placed(SET, Policy::default(), ids([1, 2, 4]), &BTreeSet::new(), at);
    assert!(given.moving, "its place is given to another");
}

/// MEMBER-M2: the group does not take out the voter that 4 was to replace, and waits for the planner.
#[test]
fn the_place_of_a_newcomer_that_leaves_is_to_be_given_to_another() {
    let (mut planned, at) = (Planned::default(), Instant::now());
    planned.enter(Some(Term(4)));
    saw(&mut planned, 0, at);
    let (stay, leaves) = (BTreeSet::from([MemberId(1), MemberId(2)]), BTreeSet::from([MemberId(4)]));
    let left = planned.placed(SET, Policy::default(), stay.clone(), &leaves, at);
    assert_eq!((left.moving, left.voters), (true, ids([1, 2, 4])));
    let (leader, voters, near, learners) = (Some(MemberId(1)), stay.clone(), stay.clone(), BTreeMap::new());
    let seen = GroupReport { leader, voters, near, learners, bytes: 0, owner: None };
    planned.saw(BTreeMap::from([(SET, seen)]), Runs::default(), BTreeSet::new(), at);
    let done = planned.placed(SET, Policy::default(), stay.clone(), &leaves, at);
    assert_eq!((done.moving, done.voters), (false, stay), "nothing goes for it any more");
}

/// The journal's part of a set grows until a checkpoint and is small then: no reason to move others to and fro.
#[test]
fn a_set_weighs_what_it_had_at_most_for_a_while() {
    let (mut planned, at) = (Planned::default(), Instant::now());
    planned.enter(Some(Term(4)));
    let weight = |planned: &mut Planned, bytes, at| {
        saw(planned, bytes, at);
        planned.placed(SET, Policy::default(), ids([1, 2, 3]), &BTreeSet::new(), at).bytes
    };
    assert_eq!(weight(&mut planned, 900, at), 900);
    assert_eq!(weight(&mut planned, 10, at + WINDOW / 2), 900);
    assert_eq!(weight(&mut planned, 10, at + WINDOW), 900);
    assert_eq!(weight(&mut planned, 20, at + WINDOW * 2), 20);
    assert!(!planned.knows_weights(Instant::now()));
    assert!(planned.knows_weights(Instant::now() + WINDOW));
}

/// FOLLOW-F4: the turns of the leader before are not known, and still count.
#[test]
fn a_new_leader_of_group_0_gives_no_turn_at_first() {
    let (mut planned, at) = (Planned::default(), Instant::now());
    assert!(!planned.gives_turn(SET, at + TURN * 9), "it does not lead");
    planned.enter(Some(Term(4)));
    assert!(!planned.gives_turn(SET, at));
    assert!(planned.gives_turn(SET, at + TURN * 2));
    planned.enter(Some(Term(5)));
    assert!(!planned.gives_turn(SET, at + TURN / 2), "another term begins anew");
}

#[test]
fn the_metric_of_a_set_that_is_gone_is_0() {
    let mut planned = Planned::default();
    planned.enter(Some(Term(4)));
    planned.note(violated(&view(Some(Duration::from_secs(9)))), 10);
    let demo: Name = "demo".parse().unwrap();
    assert_eq!(planned.gauges([(SET, demo.clone())].into_iter()), [(demo.clone(), 2)]);
    planned.enter(Some(Term(5)));
    assert_eq!(planned.gauges(std::iter::empty()), [(demo, 0)]);
    assert!(planned.gauges(std::iter::empty()).is_empty(), "told once");
}

/// A gateway at 400 ms did not answer in 1.5 s. It counted as full, and the sets that it leads as without a leader.
#[test]
fn who_was_asked_for_too_short_a_time_is_as_before() {
    let (mut planned, at) = (Planned::default(), Instant::now());
    let runs = |answers: &[u64], late: &[u64]| {
        let of = |ids: &[u64]| ids.iter().copied().map(MemberId).collect();
        Runs { answers: of(answers), late: of(late), ..Runs::default() }
    };
    let (voters, near, learners) = (ids([1, 2, 3]), BTreeSet::new(), BTreeMap::new());
    let seen = GroupReport { leader: Some(MemberId(1)), voters, near, learners, bytes: 0, owner: None };
    let leader = |planned: &Planned| planned.seen[&SET].leader;
    let full = |ids: &[u64]| ids.iter().copied().map(MemberId).collect::<BTreeSet<_>>();
    planned.saw(BTreeMap::from([(SET, seen)]), runs(&[1, 2, 3], &[]), full(&[3]), at);
    let soon = at + UNSAID / 2;
    planned.saw(BTreeMap::new(), runs(&[2], &[1, 3]), full(&[]), soon);
    assert_eq!((leader(&planned), &planned.busy), (Some(MemberId(1)), &full(&[3])), "m1 has room, m3 had none");
    planned.saw(BTreeMap::new(), runs(&[2, 3], &[]), full(&[1]), soon);
    assert_eq!((leader(&planned), &planned.busy), (None, &full(&[1])), "m1 cannot be reached: it is down");
    planned.saw(BTreeMap::new(), runs(&[], &[1, 2, 9]), full(&[]), at + UNSAID);
    assert_eq!(planned.busy, full(&[1, 9]), "m1 has not answered for long, m9 never");
}

#[test]
fn who_does_not_follow_group_0_gets_no_vote_there_and_a_new_term_has_decided_nothing() {
    let mut state = ClusterState::new();
    for id in [1, 2, 3].map(MemberId) {
        let [peer_addr, api_addr, nbd_addr] = [1, 2, 3].map(|port| format!("a:{port}"));
        let (name, locality) = (format!("g{}", id.0).parse().unwrap(), "region=eu".parse().unwrap());
        let (role, standing, disk) = (MemberRole::Gateway, Standing::Active, u128::from(id.0));
        state.members.insert(id, Member { id, name, locality, disk, peer_addr, api_addr, nbd_addr, role, standing });
    }
    let seen = |id: u64, silent: u64| MemberStatus {
        member: MemberId(id),
        voter: true,
        matched: None,
        lacks_bytes: 0,
        silent: Some(Duration::from_secs(silent)),
        addr: String::new(),
    };
    let status = GroupStatus {
        group: GroupId::CLUSTER,
        leadership: Leadership::default(),
        voted: Term(1),
        last: None,
        applied: None,
        snapshot: None,
        purged: None,
        live_bytes: 0,
        members: vec![seen(1, 0), seen(2, 1), seen(3, 90)],
        settled: true,
        membership: None,
        next: None,
    };
    let mut planned = Planned::default();
    planned.enter(Some(Term(1)));
    let close: BTreeSet<MemberId> = [1, 3].map(MemberId).into();
    let found = planned.cluster_members(&state, MemberId(1), &status, &close, Duration::from_secs(3));
    let told = |id: u64| (found[&MemberId(id)].busy, found[&MemberId(id)].silent);
    assert_eq!([told(1), told(2), told(3)], [(false, None), (true, None), (false, Some(Duration::from_secs(90)))]);
    planned.note_learners(close.clone());
    assert_eq!(planned.learners(), Some(&close));
    planned.enter(Some(Term(2)));
    assert_eq!(planned.learners(), None);
}
