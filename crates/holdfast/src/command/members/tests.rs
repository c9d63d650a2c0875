//! Progress of membership changes, from states of gateways.

use super::*;

fn status() -> v1::ClusterStatusReply {
    let group = |id: u64, leader: u64, me: u64, learners: &[u64]| v1::GroupStatus {
        group: id,
        role: match (leader == me, learners.contains(&me)) {
            (true, _) => v1::Role::Leader,
            (_, true) => v1::Role::Learner,
            (_, false) => v1::Role::Follower,
        }
        .into(),
        leader,
        voters: (1..=3).filter(|id| !learners.contains(id)).collect(),
        learners: learners.to_vec(),
        ..Default::default()
    };
    let member = |me: u64| v1::MemberStatus {
        member: Some(v1::Member { id: me, name: format!("g{me}"), standing: "active".into(), ..Default::default() }),
        reachable: true,
        node: Some(v1::Node {
            groups: vec![group(0, 1, me, &[]), group(7, 2, me, &[3])],
            standing: if me == 2 { "active" } else { "drained" }.into(),
            ..Default::default()
        }),
        lags: [(0, 5), (7, 900 * u64::from(me == 3))].map(|(group, entries)| v1::GroupLag { group, entries }).to_vec(),
        ..Default::default()
    };
    let summary = |group, leader| v1::GroupSummary { group, leader, ..Default::default() };
    v1::ClusterStatusReply {
        members: (1..=3).map(member).collect(),
        groups: vec![summary(0, 1), summary(7, 2)],
        ..Default::default()
    }
}

fn so_far(member: u64, goal: Goal) -> (usize, usize, u64) {
    let now = progress(&status(), MemberId(member), goal);
    (now.groups_done, now.groups, now.entries_behind)
}

#[test]
fn progress_counts_groups_and_entries() {
    assert_eq!(so_far(3, Goal::In), (1, 2, 905), "it still learns one group");
    assert_eq!(so_far(2, Goal::In), (2, 2, 5));
    assert_eq!(so_far(1, Goal::Idle), (1, 2, 5), "it leads one");
    assert_eq!(so_far(2, Goal::Idle), (0, 2, 5), "it does not know yet");
    assert_eq!(so_far(3, Goal::Idle), (2, 2, 905));
    assert_eq!(so_far(3, Goal::Out), (0, 2, 905));
    assert_eq!(so_far(9, Goal::Out), (2, 2, 0));
    let elsewhere = v1::SetSummary { id: 7, voters: vec![1, 2, 4], ..Default::default() };
    let placed = v1::ClusterStatusReply { sets: vec![elsewhere], ..status() };
    let now = progress(&placed, MemberId(3), Goal::In);
    assert!(now.done() && now.groups == 1, "the other group is a set's that is not for it");
    let text = progress(&status(), MemberId(3), Goal::In).text(Goal::In);
    assert_eq!(text, "[##########..........] in 1 of 2 groups, 905 log entries behind");
    let nobody = v1::ClusterStatusReply::default();
    assert!(!progress(&nobody, MemberId(3), Goal::Out).done(), "a status of nothing shows nothing");
}

/// `gateway add` waited ten minutes for a set of two voters whose policy forbids the newcomer's region.
#[test]
fn gateway_add_waits_only_for_votes_that_the_plan_wants() {
    let mut seen = status();
    seen.groups[1].set = "demo".into();
    seen.sets = vec![v1::SetSummary { id: 7, voters: vec![1, 2], ..Default::default() }];
    let now = progress(&seen, MemberId(3), Goal::In);
    assert!(now.done() && now.groups == 1 && now.unplanned, "the planner has not looked yet: {now:?}");
    assert!(now.text(Goal::In).ends_with(" behind, waits for the planner of sets' voters"), "{now:?}");
    let mut planned = |takers: &[u64], newcomers: &[u64]| {
        let sets = vec![v1::PlannedSet { set: 7, newcomers: newcomers.to_vec() }];
        let plan = v1::Plan { takers: takers.to_vec(), sets, ..Default::default() };
        seen.members[0].node.get_or_insert_default().plan = Some(plan);
        progress(&seen, MemberId(3), Goal::In)
    };
    assert!(planned(&[1, 2], &[]).unplanned, "nor heard the newcomer");
    let now = planned(&[1, 2, 3], &[3]);
    assert!(!now.done() && !now.unplanned && now.groups == 2, "{now:?}");
    assert!(now.text(Goal::In).ends_with(" behind, waits for demo"), "{now:?}");
    let now = planned(&[1, 2, 3], &[]);
    assert!(now.done() && !now.unplanned && now.groups == 1, "{now:?}");
}

/// ADR 0075: most gateways of a large cluster follow group 0 and never vote there.
#[test]
fn gateway_add_ends_where_the_newcomer_is_to_learn_group_0() {
    let mut seen = status();
    seen.groups.truncate(1);
    for member in &mut seen.members {
        let group = &mut member.node.get_or_insert_default().groups[0];
        (group.voters, group.learners) = (vec![1, 2], vec![3]);
    }
    let learner = &mut seen.members[2].node.get_or_insert_default().groups[0];
    learner.role = v1::Role::Learner.into();
    assert!(!progress(&seen, MemberId(3), Goal::In).done(), "it may get a vote");
    let mut told = |learners: &[u64]| {
        let plan = v1::Plan { cluster_learners: learners.to_vec(), ..Default::default() };
        seen.members[0].node.get_or_insert_default().plan = Some(plan);
        progress(&seen, MemberId(3), Goal::In)
    };
    assert!(!told(&[]).done(), "it is to get one");
    assert!(told(&[3]).done());
}

#[test]
fn a_line_of_progress_names_few_sets() {
    let waits_for: Vec<String> = (1..=5).map(|n| format!("s{n}")).collect();
    let now = Progress { member: 4, groups: 6, groups_done: 1, entries_behind: 0, waits_for, unplanned: false };
    let text = now.text(Goal::Out);
    assert!(text.ends_with(" removed from 1 of 6 groups, waits for s1, s2, s3 and 2 more"), "{text}");
}

/// The only place that tells a person why an undrained gateway stays idle.
#[test]
fn an_undrained_gateway_is_told_how_sets_come_to_it() {
    let mut seen = status();
    let member = |id: u64, role: &str| {
        let (name, role) = (format!("g{id}"), role.to_string());
        v1::Member { id, name, role, ..Default::default() }
    };
    seen.groups[1].set = "demo".into();
    seen.groups[1].leader_name = "g2".into();
    let text = may_lead_again(&seen, &member(3, "gateway"));
    assert!(text.contains("At other gateways: demo (at g2). "), "{text}");
    assert!(text.contains("by themselves only to be near their owner or their home"), "{text}");
    assert!(text.ends_with("To move one: `holdfast switchover demo --to g3`."), "{text}");
    let placed = v1::SetSummary { id: 7, name: "demo".into(), voters: vec![1, 2, 4], ..Default::default() };
    let moved = v1::ClusterStatusReply { sets: vec![placed], ..seen.clone() };
    assert_eq!(may_lead_again(&moved, &member(3, "gateway")), "g3 may lead again.", "its vote is elsewhere");
    // One gateway leads all sets, and one leads none.
    for all in [member(2, "gateway"), member(3, "witness")] {
        assert_eq!(may_lead_again(&seen, &all), format!("g{} may lead again.", all.id));
    }
    let more = (0..20).map(|n| v1::GroupSummary { group: 8 + n, set: format!("s{n}"), ..Default::default() });
    seen.groups.extend(more);
    let text = may_lead_again(&seen, &member(3, "gateway"));
    assert!(text.contains("s6 (no leader) and 13 more. "), "{text}");
}

#[test]
fn a_newcomer_is_not_said_to_vote_where_it_does_not() {
    assert!(joined("m4 (g4)", true, None).starts_with("m4 (g4) has joined and votes in each group that needs it."));
    assert_eq!(joined("m4 (g4)", true, Some("m2")), "m4 (g4) has the votes of m2, which is removed.");
    assert!(joined("m4 (g4)", false, Some("m2")).contains("is registered"));
}

#[test]
fn a_gateway_is_found_by_name_and_by_member() {
    let mut seen = status();
    assert_eq!(find(&seen, "g2").map(|m| m.id), Ok(2));
    assert_eq!(find(&seen, "m3").map(|m| m.id), Ok(3));
    assert!(find(&seen, "g9").unwrap_err().message.contains("expected one of g1 (m1), g2 (m2), g3 (m3)"));
    // A replacement has the same name as the gateway that it replaces.
    for (at, standing) in [(0, "leaving"), (1, "active")] {
        let member = seen.members[at].member.get_or_insert_default();
        (member.name, member.standing) = ("g".into(), standing.into());
    }
    assert_eq!(find(&seen, "g").map(|m| m.id), Ok(2));
}
/// Seen: `gateway replace g1 --by` with g1's own address waited ten minutes for g1 to leave.
#[test]
fn a_gateway_does_not_replace_itself() {
    let old = v1::Member { id: 1, name: "g1".into(), disk: "aa".into(), ..Default::default() };
    let node = |disk: &str| v1::Node { disk: disk.into(), ..Default::default() };
    let refused = expect_other(&old, &node("aa"), "h:1").unwrap_err();
    assert_eq!(refused.message, "h:1 is m1 (g1) itself, expected a new gateway");
    expect_other(&old, &node("bb"), "h:1").unwrap();
}
