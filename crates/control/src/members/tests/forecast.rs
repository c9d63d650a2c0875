//! What `gateway drain --dry-run` tells.

use super::*;
use crate::placing::{Candidate, Placed, Rules, View};
use crate::policy::Policy;

const RULES: Rules = Rules { replace_after: None, at_once: 2, repairs: 2, balance: false };

/// Set 1 on members 1 to 3, led by member 1.
fn seen(state: &ClusterState) -> View {
    let candidate = |member: &Member| Candidate {
        name: member.name.clone(),
        locality: member.locality.clone(),
        role: member.role,
        standing: member.standing,
        silent: None,
        busy: false,
        slow: false,
    };
    let (policy, voters, leader) = (Policy::default(), ids([1, 2, 3]), Some(MemberId(1)));
    let (now, late, absent) = (voters.clone(), BTreeSet::new(), BTreeSet::new());
    let set =
        Placed { policy, voters, now, late, absent, leader, bytes: 0, moving: false, overdue: false, stalled: false };
    View {
        members: state.members.values().map(|member| (member.id, candidate(member))).collect(),
        groups: BTreeMap::from([(GroupId(1), set)]),
    }
}

fn groups(answering: &[u64]) -> Vec<GroupHealth> {
    let mut groups = health(&[1, 2, 3, 4], answering);
    groups[1].voters = ids([1, 2, 3]);
    groups
}

#[test]
fn a_forecast_says_what_moves_where() {
    let mut state = cluster(&[G, G, G, G]);
    placed::create_demo(&mut state);
    let view = seen(&state);
    let of = |id: u64| forecast(&state, &groups(&[1, 2, 3, 4]), MemberId(id), &view, &RULES);
    let cluster = Forecast { group: GroupId::CLUSTER, leader: Some(Ok(ids([2, 3, 4]))), vote: None };
    let demo = Forecast { group: GroupId(1), leader: Some(Ok(ids([2, 3]))), vote: Some(Ok(ids([4]))) };
    assert_eq!(of(1), [cluster, demo.clone()]);
    assert_eq!(of(2), [Forecast { leader: None, ..demo }], "it leads nothing");
    assert!(of(4).is_empty(), "it has no vote in a set");
}

#[test]
fn a_forecast_says_why_something_stays() {
    let mut state = cluster(&[G, G, G, G]);
    placed::create_demo(&mut state);
    let vote = |view: &View, groups: &[GroupHealth], rules: &Rules| {
        let all = forecast(&state, groups, MemberId(1), view, rules);
        all.into_iter().find(|of| of.group == GroupId(1)).and_then(|of| of.vote)
    };
    let (view, all) = (seen(&state), groups(&[1, 2, 3, 4]));
    assert_eq!(vote(&view, &all, &Rules { at_once: 0, ..RULES }), Some(Err(Stays::Off)));
    let mut silent = view.clone();
    silent.members.get_mut(&MemberId(4)).unwrap().silent = Some(Duration::from_secs(60));
    assert_eq!(vote(&silent, &all, &RULES), Some(Err(Stays::NotNow { names: "g4".to_owned() })));
    let mut three = view.clone();
    three.members.remove(&MemberId(4));
    assert_eq!(vote(&three, &all, &RULES), Some(Err(Stays::Nobody)));
    let alone = forecast(&state, &groups(&[1, 4]), MemberId(1), &view, &RULES);
    assert_eq!(alone[1].leader, Some(Err(Stays::NoHeir)), "m4 does not vote in it");
    let mut leaderless = all.clone();
    leaderless[1] = GroupHealth { perhaps: ids([1, 2, 3]), ..health(&[], &[])[1].clone() };
    assert_eq!(vote(&view, &leaderless, &RULES), Some(Err(Stays::NoLeader)));
}
