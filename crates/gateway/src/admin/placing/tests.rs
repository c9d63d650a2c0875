use super::*;
use holdfast_control::cluster::{MemberRole, Standing};
use holdfast_control::members::CLOSE_ENTRIES;
use holdfast_control::placing::{Candidate, Placed};

#[test]
fn a_policy_of_a_request_is_read_as_it_is_shown() {
    let message = v1::Policy {
        survive: "zone".into(),
        voters: 5,
        home: "eu".into(),
        forbidden_regions: vec!["us".into(), "ap".into()],
    };
    let policy = policy_from(Some(&message)).unwrap();
    assert_eq!(policy.to_string(), "survive zone, 5 voters, home eu, not in ap, not in us");
    assert_eq!(policy_from(Some(&policy_message(&policy))).unwrap(), policy);
    assert_eq!(policy_from(None).unwrap(), Policy::default());
    assert_eq!(policy_from(Some(&v1::Policy::default())).unwrap(), Policy::default());
    for (wrong, says) in [
        (v1::Policy { survive: "rack".into(), ..message.clone() }, "policy.survive: found \"rack\""),
        (v1::Policy { voters: 4, ..message.clone() }, "voters: found 4"),
        (v1::Policy { voters: 300, ..message.clone() }, "policy.voters: found 300"),
        (v1::Policy { home: "a b".into(), ..message.clone() }, "policy.home"),
        (v1::Policy { home: "us".into(), ..message.clone() }, "is the home and is forbidden"),
    ] {
        let refusal = policy_from(Some(&wrong)).unwrap_err();
        assert_eq!(refusal.code, RefusalCode::Invalid);
        assert!(refusal.message.contains(says), "{says:?} in {refusal}");
    }
}

#[test]
fn a_violation_that_nobody_mends_says_so() {
    assert_eq!(next_text(Some("g1 -> g2".into()), false, false), "g1 -> g2");
    assert_eq!(next_text(None, true, false), "");
    assert_eq!(next_text(None, false, true), "");
    assert!(next_text(None, false, false).contains("`placing.enabled` is false"));
}

/// Sets at home in the first of three regions that survive the loss of one: two voters are always away, so each
/// step of each set is looked at. Prints how long it takes (`--nocapture`).
#[test]
fn a_round_of_a_thousand_sets_is_worked_out() {
    let member = |number: u64| Candidate {
        name: format!("g{number}").parse().unwrap(),
        locality: ["eu", "us", "ap"][(number / 4) as usize % 3].parse().unwrap(),
        role: MemberRole::Gateway,
        standing: Standing::Active,
        silent: None,
        busy: false,
        slow: false,
    };
    let policy = Policy { survive: Some(Survive::Region), home: Some("eu".parse().unwrap()), ..Policy::default() };
    let placed = |number: u64| {
        let voters: BTreeSet<MemberId> = [0, 4, 8].map(|region| MemberId(region + number % 4)).into();
        let (policy, leader, now) = (policy.clone(), voters.first().copied(), voters.clone());
        let (late, absent, moving) = (BTreeSet::new(), BTreeSet::new(), false);
        Placed { policy, leader, voters, now, late, absent, bytes: 0, moving, overdue: false, stalled: false }
    };
    let rules = Rules { replace_after: None, at_once: 2, repairs: 2, balance: true };
    for sets in [100, 1000] {
        let members = (0..12).map(|number| (MemberId(number), member(number))).collect();
        let groups = (1..=sets).map(|number| (GroupId(number), placed(number))).collect();
        let view = View { members, groups };
        let looked = PlanInput { rules, towards: view.clone(), view };
        let begun = std::time::Instant::now();
        let done = looked.work_out();
        eprintln!("{sets} sets on 12 gateways: {:?}", begun.elapsed());
        assert!(done.moves.is_empty(), "{:?}", done.moves);
        assert!(done.violated.values().all(Vec::is_empty) && done.violated.len() == sets as usize);
    }
}

#[test]
fn what_was_planned_with_other_members_or_sets_is_not_proposed() {
    let then = ClusterState::new();
    let mut now = then.clone();
    now.level += 1;
    assert!(is_as_planned(&then, &now), "nothing that a plan depends on");
    let [peer_addr, api_addr, nbd_addr] = [1, 2, 3].map(|port| format!("a:{port}"));
    let (id, name, locality) = (MemberId(1), "g1".parse().unwrap(), "eu".parse().unwrap());
    let (role, standing) = (MemberRole::Gateway, Standing::Active);
    let mut member = Member { id, name, locality, disk: 1, peer_addr, api_addr, nbd_addr, role, standing };
    now.members.insert(id, member.clone());
    assert!(!is_as_planned(&then, &now));
    let then = now.clone();
    member.standing = Standing::Drained;
    now.members.insert(id, member);
    assert!(!is_as_planned(&then, &now), "a member was drained meanwhile");
}

#[test]
fn a_gateway_without_room_gets_no_further_voter() {
    let of = |id: u64, journal: Option<v1::JournalUsage>| v1::MemberStatus {
        member: Some(v1::Member { id, ..Default::default() }),
        node: journal.map(|journal| v1::Node { journal: Some(journal), ..Default::default() }),
        ..Default::default()
    };
    let journal =
        |used_bytes| v1::JournalUsage { used_bytes, bound_bytes: 120, reserve_bytes: 20, ..Default::default() };
    let members = vec![
        of(1, Some(journal(80))),
        of(2, Some(journal(81))),
        of(3, Some(v1::JournalUsage { waits: "No space left on device".into(), ..journal(1) })),
        of(4, Some(v1::JournalUsage { failed: "Input/output error".into(), ..journal(1) })),
        of(5, None),
        v1::MemberStatus { late: true, ..of(6, None) },
    ];
    let status = v1::ClusterStatusReply { members: members.clone(), ..Default::default() };
    assert_eq!(runs_of(&status).late, BTreeSet::from([MemberId(6)]), "nothing is known of its room");
    let busy = busy_of(&v1::ClusterStatusReply { members, ..Default::default() });
    assert_eq!(busy, BTreeSet::from([2, 3, 4, 5].map(MemberId)));
}

#[test]
fn the_newer_leader_of_a_group_is_believed() {
    let of = |id: u64, term: u64, role: v1::Role, voters: &[u64]| {
        let (voters, learners, applied_index) = (voters.to_vec(), vec![3, 9], 100 + id);
        let role = role.into();
        let group = v1::GroupStatus { group: 4, role, term, voters, learners, applied_index, ..Default::default() };
        v1::MemberStatus {
            member: Some(v1::Member { id, ..Default::default() }),
            node: Some(v1::Node { groups: vec![group], ..Default::default() }),
            ..Default::default()
        }
    };
    let members = vec![
        of(1, 3, v1::Role::Leader, &[1, 2, 3]),
        of(2, 5, v1::Role::Leader, &[2, 3, 4]),
        of(3, 5, v1::Role::Follower, &[1, 2]),
        of(4, 5, v1::Role::Healing, &[]),
    ];
    let status = v1::ClusterStatusReply { members, ..Default::default() };
    let (leader, voters, near) = (Some(MemberId(2)), [2, 3, 4].map(MemberId).into(), BTreeSet::new());
    // m9 does not answer.
    let learners = BTreeMap::from([(MemberId(3), 103)]);
    let seen_there = GroupReport { leader, voters, near, learners, bytes: 0, owner: None };
    assert_eq!(seen_of(&status), BTreeMap::from([(GroupId(4), seen_there)]));
    // m4 answers, and does not run the group.
    let groups = [1, 2, 3].map(|id| (GroupId(4), MemberId(id))).into();
    assert_eq!(runs_of(&status), Runs { answers: [1, 2, 3, 4].map(MemberId).into(), groups, ..Runs::default() });
}

#[test]
fn a_newcomer_that_has_nearly_everything_is_seen() {
    let of = |id: u64, role: v1::Role, leader: u64, last_index: u64| {
        let (voters, learners) = (vec![1, 2, 3], vec![4, 5, 6, 7]);
        let (group, role) = (4, role.into());
        let own = v1::GroupStatus { group, role, leader, last_index, voters, learners, ..Default::default() };
        v1::MemberStatus {
            member: Some(v1::Member { id, ..Default::default() }),
            node: Some(v1::Node { groups: vec![own], ..Default::default() }),
            ..Default::default()
        }
    };
    let last = CLOSE_ENTRIES + 100;
    let members = vec![
        of(1, v1::Role::Leader, 1, last),
        of(2, v1::Role::Follower, 1, last),
        of(4, v1::Role::Learner, 1, 100),
        of(5, v1::Role::Learner, 1, 99),
        of(6, v1::Role::Learner, 3, last),
    ];
    let seen = seen_of(&v1::ClusterStatusReply { members, ..Default::default() });
    assert_eq!(seen[&GroupId(4)].near, BTreeSet::from([MemberId(4)]), "m5 lags, m6 follows another, m7 is away");
}

/// What a gateway says before it knows that it leaves may change: a set may be placed on it.
#[test]
fn only_a_leaving_gateway_is_away_for_good() {
    let of = |id: u64, away: Option<v1::SetsAway>| v1::MemberStatus {
        member: Some(v1::Member { id, ..Default::default() }),
        node: Some(v1::Node { member: id % 10, cluster_id: "ab".into(), away, ..Default::default() }),
        ..Default::default()
    };
    let away = |leaving| Some(v1::SetsAway { leaving, sets: vec![4, 7] });
    // m2 answers where m12 stood.
    let members = vec![of(1, away(false)), of(2, away(true)), of(3, None), of(12, away(true))];
    let status = v1::ClusterStatusReply { cluster_id: "ab".into(), members, ..Default::default() };
    let found = away_of(&status);
    assert!(away_of(&v1::ClusterStatusReply { cluster_id: "cd".into(), ..status }).is_empty(), "of another cluster");
    assert_eq!(found, BTreeMap::from([(MemberId(2), BTreeSet::from([GroupId(4), GroupId(7)]))]));
    let mut planned = crate::node::Planned::default();
    planned.note_away(found.clone());
    planned.note_away(BTreeMap::new());
    assert_eq!(*planned.away(), found, "also when it is stopped: it said so for good");
}
