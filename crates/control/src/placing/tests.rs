//! Stories of clusters that change, and random clusters that are planned to their end.

use super::board::Board;
use super::*;
use proptest::collection::{btree_set, vec};
use proptest::prelude::*;

mod fewer;
mod group_0;
mod newcomers;
mod repairs;
mod unfinished;

const MINUTE: Duration = Duration::from_secs(60);
const RULES: Rules = Rules { replace_after: Some(Duration::from_secs(15 * 60)), at_once: 2, repairs: 2, balance: true };
const SET: GroupId = GroupId(1);

fn name(text: &str) -> Name {
    Name::new(text).unwrap()
}

fn ids(of: impl IntoIterator<Item = u64>) -> BTreeSet<MemberId> {
    of.into_iter().map(MemberId).collect()
}

fn candidate(number: usize, locality: &str) -> Candidate {
    Candidate {
        name: name(&format!("g{number}")),
        locality: locality.parse().unwrap(),
        role: MemberRole::Gateway,
        standing: Standing::Active,
        silent: None,
        busy: false,
        slow: false,
    }
}

/// Gateways g1, g2, ... at these places.
fn cluster(at: &[&str]) -> View {
    let members = at.iter().enumerate().map(|(at, place)| (MemberId(at as u64 + 1), candidate(at + 1, place)));
    View { members: members.collect(), groups: BTreeMap::new() }
}

fn placed(policy: Policy, voters: impl IntoIterator<Item = u64>) -> Placed {
    let voters = ids(voters);
    let leader = voters.first().copied();
    let (now, late, absent) = (voters.clone(), BTreeSet::new(), BTreeSet::new());
    Placed { policy, now, voters, late, absent, leader, bytes: 0, moving: false, overdue: false, stalled: false }
}

fn survive(level: Survive) -> Policy {
    Policy { survive: Some(level), ..Policy::default() }
}

/// A cluster with one set.
fn with_set(at: &[&str], policy: Policy, voters: impl IntoIterator<Item = u64>) -> View {
    let mut view = cluster(at);
    view.groups.insert(SET, placed(policy, voters));
    view
}

impl View {
    fn member(&mut self, id: u64) -> &mut Candidate {
        self.members.get_mut(&MemberId(id)).unwrap()
    }

    fn set(&mut self) -> &mut Placed {
        self.groups.get_mut(&SET).unwrap()
    }

    fn told(&self) -> Vec<String> {
        violations(self, &self.groups[&SET], &RULES).iter().map(ToString::to_string).collect()
    }
}

/// After each loss of one domain: voters that a majority lacks at worst, and how many losses leave no gateway that
/// could serve. The planner's own arithmetic, written differently.
fn losses(view: &View, level: Survive, voters: &BTreeSet<MemberId>, rules: &Rules) -> (usize, usize) {
    let needed = voters.len() / 2 + 1;
    let there = voters.iter().filter(|id| !view.members[id].lost(rules.replace_after));
    let there: Vec<(Domain, bool)> = there
        .map(|id| {
            let serves = view.members[id].role == MemberRole::Gateway && view.members[id].standing != Standing::Leaving;
            (Domain::of(level, *id, &view.members[id]), serves)
        })
        .collect();
    let lost: BTreeSet<Domain> = voters.iter().map(|id| Domain::of(level, *id, &view.members[id])).collect();
    let left = |lost: &Domain| -> Vec<bool> {
        there.iter().filter(|(domain, _)| domain != lost).map(|(_, serves)| *serves).collect()
    };
    let left: Vec<Vec<bool>> = lost.iter().map(left).collect();
    let short = left.iter().map(|left| needed.saturating_sub(left.len())).max().unwrap_or(0);
    (short, left.iter().filter(|left| !left.contains(&true)).count())
}

/// Carries one plan out, and checks PLACING-P1 and PLACING-P3.
fn carry_out(view: &mut View, moves: &[Move], rules: &Rules) {
    assert!(moves.len() <= rules.at_once.max(rules.repairs).max(1), "PLACING-P3: {moves:?}");
    for step in moves {
        let board = Board::new(view, &view.groups[&step.group], rules.replace_after);
        let [before, after] = [&step.from, &step.to].map(|voters| losses(view, board.level, voters, rules));
        assert!(after.0 <= before.0 && after.1 <= before.1, "PLACING-P1: {step:?} in {view:?}");
        if step.why == Why::Fewer {
            let survives = before.0 > 0 && after.0 == 0 && step.to.len() >= 3 && step.to.is_subset(&step.from);
            assert!(survives, "PLACING-P4: {step:?} in {view:?}");
        }
        for newcomer in step.to.difference(&step.from).map(|id| &view.members[id]) {
            let forbidden = view.groups[&step.group].policy.forbidden.contains(&newcomer.locality.region);
            let there = newcomer.silent.is_none() && newcomer.standing != Standing::Leaving;
            let well = there && !newcomer.busy && !forbidden;
            assert!(well, "a voter that could not follow, or may not: {step:?} in {view:?}");
        }
        let group = view.groups.get_mut(&step.group).unwrap();
        assert_eq!(group.voters, step.from);
        (group.voters, group.now) = (step.to.clone(), step.to.clone());
        group.late.clear();
        group.leader = group.leader.filter(|leader| step.to.contains(leader)).or(step.to.first().copied());
    }
}

/// Plans until there is nothing to do.
fn settle(view: &mut View, rules: &Rules) -> Vec<String> {
    let mut story = Vec::new();
    for _ in 0..1000 {
        let moves = plan(view, rules);
        assert_eq!(moves, plan(view, rules), "the same view, the same plan");
        if moves.is_empty() {
            return story;
        }
        story.extend(moves.iter().map(|step| {
            let text = |sign: char, of: &BTreeSet<MemberId>, but: &BTreeSet<MemberId>| -> String {
                of.difference(but).map(|id| format!(" {sign}{}", id.0)).collect()
            };
            let (out, into) = (text('-', &step.from, &step.to), text('+', &step.to, &step.from));
            format!("{}:{out}{into} {:?}", step.group.0, step.why)
        }));
        carry_out(view, &moves, rules);
    }
    panic!("PLACING-P2: it does not end: {view:?}");
}

#[test]
fn a_lost_region_is_told_at_once_and_replaced_after_a_time() {
    let mut view = with_set(&["eu", "us", "ap", "sa"], survive(Survive::Region), [1, 2, 3]);
    assert_eq!(view.told(), [""; 0]);
    view.member(3).silent = Some(5 * MINUTE);
    assert_eq!(settle(&mut view, &RULES), [""; 0], "not yet");
    assert_eq!(
        view.told(),
        ["the loss of region eu leaves 1 of its voters, and 2 are needed", "g3 in region=ap does not answer"]
    );
    view.member(3).silent = Some(15 * MINUTE);
    assert_eq!(settle(&mut view, &Rules { replace_after: None, ..RULES }), [""; 0], "switched off");
    assert_eq!(settle(&mut view, &RULES), ["1: -3 +4 Unusable"]);
    assert_eq!(view.told(), [""; 0]);
    view.member(3).silent = None;
    assert_eq!(settle(&mut view, &RULES), [""; 0], "it does not move back");
}

/// Its gateway answered, so the policy counted as met, while one loss was too many.
#[test]
fn a_voter_that_does_not_run_the_set_is_told() {
    let mut view = with_set(&["eu", "us", "ap", "sa"], survive(Survive::Region), [1, 2, 3]);
    view.set().absent = ids([3, 4]);
    let told = [
        "the loss of region eu leaves 1 of its voters, and 2 are needed",
        "g3 in region=ap answers, but does not run the set: see its log and its /healthz",
    ];
    assert_eq!(view.told(), told);
    assert_eq!(settle(&mut view, &RULES), [""; 0], "it may be repaired");
    view.member(3).silent = Some(MINUTE);
    assert_eq!(view.told()[1..], ["g3 in region=ap does not answer"], "told once");
}

#[test]
fn without_a_substitute_a_dead_voter_stays_and_is_told() {
    let mut view = with_set(&["eu", "us", "ap"], survive(Survive::Region), [1, 2, 3]);
    view.member(2).silent = Some(60 * MINUTE);
    assert_eq!(settle(&mut view, &RULES), [""; 0]);
    assert_eq!(view.told().len(), 2, "{:?}", view.told());
    // The other one in that region would be no substitute for a region.
    let mut view = with_set(&["eu", "us", "ap", "eu"], survive(Survive::Region), [1, 2, 3]);
    view.member(2).silent = Some(60 * MINUTE);
    assert_eq!(settle(&mut view, &RULES), ["1: -2 +4 Unusable"], "but it is one for a machine");
    assert_eq!(view.told(), ["the loss of region eu leaves 1 of its voters, and 2 are needed"]);
    view.member(2).silent = None;
    let back = settle(&mut view, &RULES);
    assert_eq!(back, ["1: -4 +2 Survival"]);
    assert_eq!(view.told(), [""; 0]);
}

#[test]
fn a_cluster_grows_gateway_by_gateway() {
    let mut view = with_set(&["eu"], Policy::default(), [1]);
    assert_eq!((settle(&mut view, &RULES), view.told()), (vec![], vec![]), "nothing is promised");
    view.members = cluster(&["eu", "eu"]).members;
    assert_eq!(settle(&mut view, &RULES), ["1: +2 Survival"]);
    view.members = cluster(&["eu", "eu", "eu"]).members;
    assert_eq!(
        view.told(),
        ["the loss of gateway g1 leaves 1 of its voters, and 2 are needed", "it has 2 voters, expected 3"]
    );
    assert_eq!(settle(&mut view, &RULES), ["1: +3 Survival"]);
    view.members = cluster(&["eu", "eu", "eu", "eu"]).members;
    assert_eq!(settle(&mut view, &RULES), [""; 0], "three are enough");
    view.set().voters = ids([1]);
    assert_eq!(settle(&mut view, &RULES), ["1: +2 +3 Survival"], "never through two if three are possible");
    view.set().voters = ids([1, 2, 3, 4]);
    view.set().leader = Some(MemberId(4));
    assert_eq!(settle(&mut view, &RULES), ["1: -3 Number"], "an older cluster's set shrinks, and its leader stays");
}

#[test]
fn a_new_gateway_gets_its_share_and_no_leader_moves() {
    let mut view = cluster(&["eu", "eu", "eu", "eu"]);
    for set in 1..=12 {
        let of = Placed { leader: Some(MemberId(set % 3 + 1)), ..placed(Policy::default(), [1, 2, 3]) };
        view.groups.insert(GroupId(set), of);
    }
    let leaders: Vec<_> = view.groups.values().map(|placed| placed.leader).collect();
    let story = settle(&mut view, &RULES);
    let at = |id: u64| view.groups.values().filter(|placed| placed.voters.contains(&MemberId(id))).count();
    assert!((9..=12).contains(&at(4)), "{} of 12, {story:?}", at(4));
    assert!(story.iter().all(|step| step.ends_with("Balance")), "{story:?}");
    assert_eq!(leaders, view.groups.values().map(|placed| placed.leader).collect::<Vec<_>>());
}

#[test]
fn a_drained_and_a_leaving_gateway_lose_their_votes() {
    let mut view = with_set(&["eu", "eu", "eu", "eu"], Policy::default(), [1, 2, 3]);
    view.member(1).standing = Standing::Drained;
    assert_eq!(settle(&mut view, &RULES), ["1: -1 +4 Drained"]);
    let mut view = with_set(&["eu", "eu", "eu"], Policy::default(), [1, 2, 3]);
    view.member(1).standing = Standing::Drained;
    assert_eq!(settle(&mut view, &RULES), [""; 0], "its vote is needed");
    view.member(3).standing = Standing::Leaving;
    assert_eq!(settle(&mut view, &RULES), ["1: -3 Unusable"], "an order, even without a substitute");
}

#[test]
fn voters_follow_a_changed_policy() {
    let mut view = with_set(&["eu", "eu", "us", "us", "ap", "ap"], Policy::default(), [1, 3, 5]);
    assert_eq!(settle(&mut view, &RULES), [""; 0]);
    view.set().policy = Policy { home: Some(name("eu")), ..survive(Survive::Host) };
    assert_eq!(settle(&mut view, &RULES), ["1: -5 +2 Home"]);
    view.set().policy.forbidden = BTreeSet::from([name("us")]);
    assert_eq!(view.told(), ["g3 votes in region us, which is forbidden"]);
    assert_eq!(settle(&mut view, &RULES), ["1: -3 +5 Unusable"]);
    view.set().policy = Policy { voters: 5, home: Some(name("eu")), ..survive(Survive::Region) };
    assert_eq!(settle(&mut view, &RULES), ["1: +3 +4 Survival"]);
    assert_eq!(view.told(), [""; 0]);
}

#[test]
fn a_policy_that_cannot_be_met_is_told_with_what_is_missing() {
    let refused = |view: &View, policy: &Policy| possible(&view.members, policy).unwrap_err().to_string();
    let view = cluster(&["eu-west", "eu-west", "us-east"]);
    assert_eq!(possible(&view.members, &survive(Survive::Host)), Ok(()));
    assert_eq!(possible(&view.members, &Policy::default()), Ok(()));
    let forbidden = BTreeSet::from([name("us-east")]);
    for (policy, expected) in [
        (
            survive(Survive::Region),
            "needs 3 regions, found 2: eu-west, us-east; add a gateway in another region or choose --survive zone",
        ),
        (
            survive(Survive::Zone),
            "needs 3 zones, found 2: eu-west, us-east; add a gateway in another zone or choose --survive host",
        ),
        (
            Policy { voters: 5, ..survive(Survive::Host) },
            "needs 5 gateways or witnesses, found 3: g1, g2, g3; add a gateway or choose --voters 3",
        ),
        (
            Policy { forbidden, ..survive(Survive::Host) },
            "needs 3 gateways or witnesses outside of us-east, found 2: g1, g2; add a gateway or choose --survive auto",
        ),
        (
            Policy { forbidden: ["eu-west", "us-east"].map(name).into(), ..Policy::default() },
            "needs a gateway outside of eu-west, us-east, since a witness cannot serve, found none; add a gateway there or forbid fewer regions",
        ),
        (
            Policy { home: Some(name("ap")), ..Policy::default() },
            "needs a gateway in its home region ap, found regions: eu-west, us-east; add a gateway there or choose another --home",
        ),
        (Policy { voters: 4, ..Policy::default() }, "voters: found 4, expected 3 or 5"),
    ] {
        assert_eq!(refused(&view, &policy), expected);
    }
    let view = cluster(&["eu", "eu", "eu", "us", "ap"]);
    assert_eq!(
        refused(&view, &Policy { voters: 5, ..survive(Survive::Region) }),
        "needs 5 voters with at most 2 in one region, found room for 4 in ap, eu, us; add a gateway in another region than the largest or choose --survive zone"
    );
    let view = cluster(&["region=eu,zone=a", "region=us,zone=a", "region=ap,zone=a"]);
    assert_eq!(possible(&view.members, &survive(Survive::Zone)), Ok(()), "zones of the same name in three regions");
    let view = cluster(&["region=eu,host=h", "region=eu,host=h", "eu"]);
    assert_eq!(
        refused(&view, &survive(Survive::Host)),
        "needs 3 hosts, found 2: eu/h, g3; add a gateway on another host or choose --survive auto"
    );
    let mut view = cluster(&["eu", "us", "ap"]);
    view.member(2).role = MemberRole::Witness;
    view.member(3).role = MemberRole::Witness;
    assert_eq!(
        refused(&view, &survive(Survive::Region)),
        "needs gateways in 2 regions, since a witness cannot serve, found 1: eu; add a gateway in another region or choose --survive zone"
    );
}

#[test]
fn first_voters_are_spread_as_far_as_the_members_allow() {
    let first = |at: &[&str], policy: Policy| first_voters(&cluster(at), &policy, &RULES);
    assert_eq!(first(&["eu"], Policy::default()), ids([1]));
    assert_eq!(first(&["eu", "eu"], Policy::default()), ids([1, 2]));
    assert_eq!(first(&["eu", "eu", "us"], Policy::default()), ids([1, 2, 3]));
    assert_eq!(first(&["eu", "eu", "us", "us", "ap"], Policy::default()), ids([1, 3, 5]), "regions");
    let zones = ["region=eu,zone=a", "region=eu,zone=a", "region=eu,zone=b", "region=eu,zone=c"];
    assert_eq!(first(&zones, Policy::default()), ids([1, 3, 4]), "zones");
    let mut full = cluster(&zones);
    full.members.values_mut().for_each(|member| member.busy = true);
    assert_eq!(first_voters(&full, &Policy::default(), &RULES), ids([1, 3, 4]), "also while all journals are full");
    let hosts = ["region=eu,host=a", "region=eu,host=a", "region=eu,host=b", "region=eu,host=c"];
    assert_eq!(first(&hosts, Policy::default()), ids([1, 3, 4]), "machines");
    let home = Policy { home: Some(name("us")), voters: 5, ..survive(Survive::Region) };
    assert_eq!(first(&["eu", "eu", "us", "us", "ap", "ap"], home), ids([1, 2, 3, 4, 5]));
    let mut view = cluster(&["eu", "eu", "eu"]);
    view.member(3).silent = Some(MINUTE);
    assert_eq!(first_voters(&view, &Policy::default(), &RULES), ids([1, 2, 3]), "it may come back");
    view.members.insert(MemberId(4), candidate(4, "eu"));
    assert_eq!(first_voters(&view, &Policy::default(), &RULES), ids([1, 2, 4]));
    view.member(3).silent = None;
    view.member(1).role = MemberRole::Witness;
    assert_eq!(first_voters(&view, &Policy::default(), &RULES), ids([2, 3, 4]), "a witness only where it is needed");
    view.member(3).busy = true;
    assert_eq!(first_voters(&view, &Policy::default(), &RULES), ids([1, 2, 4]), "or where the others have no room");
}

/// The lowest id was taken: two voters in one region, until the silent one came back and a copy moved.
#[test]
fn who_is_silent_completes_the_first_voters_if_the_policy_needs_it() {
    let mut view = cluster(&["eu", "eu", "us", "ap"]);
    view.member(4).silent = Some(MINUTE);
    assert_eq!(possible(&view.members, &survive(Survive::Region)), Ok(()));
    assert_eq!(first_voters(&view, &survive(Survive::Region), &RULES), ids([1, 3, 4]));
    view.member(4).silent = Some(60 * MINUTE);
    assert_eq!(first_voters(&view, &survive(Survive::Region), &RULES), ids([1, 2, 3]), "it is lost");
    view.members.insert(MemberId(5), candidate(5, "eu"));
    view.member(2).silent = Some(MINUTE);
    assert_eq!(first_voters(&view, &survive(Survive::Region), &RULES), ids([1, 3, 5]), "2 is as good, and silent");
}

/// Without `survive` two voters are enough for a new set. A set of three does not go down to two (PLACING-P1): the
/// voter would stay in the forbidden region for ever.
#[test]
fn a_region_that_a_voter_cannot_leave_is_not_forbidden() {
    let not_in = |region: &str| Policy { forbidden: BTreeSet::from([name(region)]), ..Policy::default() };
    let mut view = with_set(&["eu", "us", "ap"], Policy::default(), [1, 2, 3]);
    assert_eq!(possible(&view.members, &not_in("us")), Ok(()));
    assert_eq!(first_voters(&view, &not_in("us"), &RULES), ids([1, 3]), "a new set");
    assert_eq!(
        may_get(&view, SET, &not_in("us")).unwrap_err().to_string(),
        "needs another gateway outside of us in the place of g2 in region us: without that voter the set would survive less than now, \
         so it would stay; add a gateway outside of us"
    );
    assert_eq!(may_get(&view, SET, &not_in("mars")), Ok(()));
    view.set().policy = not_in("us");
    let home = Policy { home: Some(name("eu")), ..not_in("us") };
    assert_eq!(may_get(&view, SET, &home), Ok(()), "its gateway was moved there: shown, and no reason against a home");
    view.set().policy = Policy::default();
    view.members.insert(MemberId(4), Candidate { silent: Some(MINUTE), ..candidate(4, "eu") });
    assert_eq!(may_get(&view, SET, &not_in("us")), Ok(()), "the fourth gateway may come back");
    view.set().policy = not_in("us");
    view.member(4).silent = None;
    assert_eq!(settle(&mut view, &RULES), ["1: -2 +4 Unusable"]);
}

#[test]
fn a_move_is_not_changed_unless_it_waits_for_a_lost_gateway() {
    let mut view = with_set(&["eu", "us", "ap", "sa", "eu"], survive(Survive::Region), [1, 2, 5]);
    view.set().moving = true;
    assert!(plan(&view, &RULES).is_empty(), "PLACING-P3");
    view.set().moving = false;
    assert!(plan(&view, &Rules { at_once: 0, ..RULES }).is_empty(), "switched off");
    assert_eq!(settle(&mut view, &RULES), ["1: -5 +3 Survival"]);
    view.set().moving = true;
    view.member(3).silent = Some(60 * MINUTE);
    let again = plan(&view, &RULES);
    assert_eq!(again.iter().map(|step| &step.to).collect::<Vec<_>>(), [&ids([1, 2, 4])]);
}

#[test]
fn the_worst_comes_first_and_few_at_once() {
    let mut view = cluster(&["eu", "us", "ap", "sa"]);
    for set in 1..=5 {
        view.groups.insert(GroupId(set), placed(survive(Survive::Region), [1, 2, 3]));
    }
    view.groups.insert(GroupId(6), placed(survive(Survive::Region), [1]));
    view.member(3).silent = Some(60 * MINUTE);
    let moves = plan(&view, &RULES);
    assert_eq!(moves.iter().map(|step| step.group.0).collect::<Vec<_>>(), [6, 1]);
}

#[test]
fn new_sets_go_to_the_gateways_with_few() {
    let mut view = cluster(&["eu"; 6]);
    for set in 1..=8 {
        let voters = first_voters(&view, &Policy::default(), &RULES);
        view.groups.insert(GroupId(set), placed(Policy::default(), voters.iter().map(|id| id.0)));
    }
    for id in 1..=6 {
        let votes = view.groups.values().filter(|group| group.voters.contains(&MemberId(id))).count();
        assert!((3..=5).contains(&votes), "g{id} votes in {votes} of 8");
    }
}

#[test]
fn a_set_without_a_leader_does_not_move_and_what_moves_counts() {
    let mut view = cluster(&["eu", "us", "ap", "sa"]);
    for set in 1..=5 {
        view.groups.insert(GroupId(set), placed(survive(Survive::Region), [1, 2, 3]));
    }
    view.member(3).silent = Some(60 * MINUTE);
    let planned = |view: &View| plan(view, &RULES).iter().map(|step| step.group.0).collect::<Vec<u64>>();
    assert_eq!(planned(&view), [1, 2]);
    view.set().leader = None;
    assert_eq!(planned(&view), [2, 3], "PLACING-P3: nobody could follow");
    let begin = |view: &mut View, set: u64| {
        let group = view.groups.get_mut(&GroupId(set)).unwrap();
        (group.voters, group.moving) = (ids([1, 2, 4]), true);
    };
    begin(&mut view, 2);
    assert_eq!(planned(&view), [3], "PLACING-P3: one is under way");
    begin(&mut view, 3);
    assert_eq!(planned(&view), [0; 0]);
    view.groups.get_mut(&GroupId(3)).unwrap().leader = None;
    assert_eq!(planned(&view), [0; 0], "PLACING-P3: its move is not over because nobody tells");
}

#[test]
fn a_newcomer_that_is_late_loses_its_place_and_keeps_no_other_set_waiting() {
    let mut view = with_set(&["eu", "us", "ap", "sa", "af"], survive(Survive::Region), [1, 2, 3]);
    view.groups.insert(GroupId(2), placed(survive(Survive::Region), [1, 2, 3]));
    view.member(3).silent = Some(60 * MINUTE);
    (view.set().voters, view.set().moving) = (ids([1, 2, 4]), true);
    let had = ["the loss of region eu leaves 1 of its voters, and 2 are needed", "g3 in region=ap does not answer"];
    assert_eq!(view.told(), had, "what it is to have protects nothing yet");
    view.set().late = ids([4]);
    view.member(4).busy = true;
    assert!(view.told().last().unwrap().starts_with("g4 was to become a voter more than an hour ago"));
    let moves = plan(&view, &RULES);
    let to: Vec<(u64, &BTreeSet<MemberId>)> = moves.iter().map(|step| (step.group.0, &step.to)).collect();
    assert_eq!(to, [(1, &ids([1, 2, 5])), (2, &ids([1, 2, 5]))]);
    view.member(5).busy = true;
    assert!(plan(&view, &RULES).is_empty(), "nobody has room");
}

#[test]
fn balance_brings_in_no_further_region_and_waits_until_loads_are_known() {
    let mut view = cluster(&["eu", "eu", "eu", "us"]);
    for set in 1..=12 {
        view.groups.insert(GroupId(set), placed(Policy::default(), [1, 2, 3]));
    }
    assert_eq!(settle(&mut view, &RULES), [""; 0], "each write would wait for the other region");
    view.member(4).locality = "region=eu".parse().unwrap();
    assert_eq!(settle(&mut view, &Rules { balance: false, ..RULES }), [""; 0]);
    assert!(!settle(&mut view, &RULES).is_empty());
}

#[test]
fn group_0_has_five_voters_in_a_cluster_of_seven() {
    let mut view = cluster(&["eu", "eu", "eu", "us", "us", "ap", "ap"]);
    view.groups.insert(GroupId::CLUSTER, placed(cluster_policy(7), 1..=7));
    settle(&mut view, &RULES);
    let group = &view.groups[&GroupId::CLUSTER];
    assert_eq!((group.voters.len(), violations(&view, group, &RULES)), (5, vec![]));
    assert_eq!(cluster_policy(4).voters, 3);
}

#[test]
fn reasons_name_each_voter() {
    let mut view =
        with_set(&["eu", "us", "ap"], Policy { home: Some(name("us")), ..survive(Survive::Region) }, [1, 2, 3]);
    view.member(3).role = MemberRole::Witness;
    assert_eq!(
        reasons(&view, &view.groups[&SET], &RULES),
        [
            "at most 1 of 3 voters in one region: it survives the loss of any one region",
            "g1: region eu, leads",
            "g2: region us, home",
            "g3: region ap, witness",
        ]
    );
    view.set().now = ids([1, 2]);
    let moving = reasons(&view, &view.groups[&SET], &RULES);
    assert!(moving[0].starts_with("once its group has these voters: at most 1 of 3"), "{moving:?}");
}

fn policies() -> impl Strategy<Value = Policy> {
    let level = proptest::option::of(prop_oneof![Just(Survive::Host), Just(Survive::Zone), Just(Survive::Region)]);
    let region = || prop_oneof![Just(name("r0")), Just(name("r1")), Just(name("r2"))];
    (level, prop_oneof![Just(3_u8), Just(5)], proptest::option::of(region()), proptest::option::weighted(0.2, region()))
        .prop_map(|(survive, voters, home, forbidden)| {
            let forbidden: BTreeSet<Name> = forbidden.into_iter().collect();
            Policy { survive, voters, home: home.filter(|home| !forbidden.contains(home)), forbidden }
        })
}

/// A member: region, zone, whether a witness, standing, silence.
fn members(well: bool) -> impl Strategy<Value = Candidate> {
    let whole = if well { 1_usize } else { 3 };
    (0..4_u8, 0..2_u8, 0..10_u8, 0..whole, 0..whole).prop_map(move |(region, zone, witness, standing, silent)| {
        Candidate {
            role: if witness == 0 && !well { MemberRole::Witness } else { MemberRole::Gateway },
            standing: [Standing::Active, Standing::Drained, Standing::Leaving][standing],
            silent: [None, Some(MINUTE), Some(60 * MINUTE)][silent],
            busy: !well && witness == 1,
            ..candidate(1, &format!("region=r{region},zone=z{zone}"))
        }
    })
}

fn views(well: bool) -> impl Strategy<Value = View> {
    let groups = vec((policies(), btree_set(0..9_u64, 1..6), 0..8_u64), 1..6);
    (vec(members(well), 1..9), groups).prop_map(|(members, groups)| {
        let count = members.len() as u64;
        let members =
            (1_u64..).zip(members).map(|(id, m)| (MemberId(id), Candidate { name: name(&format!("g{id}")), ..m }));
        let groups = (1_u64..).zip(groups).map(|(id, (policy, voters, weight))| {
            let voters: BTreeSet<u64> = voters.into_iter().map(|at| at % count + 1).collect();
            (GroupId(id), Placed { bytes: weight * SET_WEIGHT, ..placed(policy, voters) })
        });
        View { members: members.collect(), groups: groups.collect() }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    /// PLACING-P1 to PLACING-P3: `settle` and `carry_out` check them.
    #[test]
    fn each_plan_ends_and_no_step_survives_less(mut view in views(false)) {
        settle(&mut view, &RULES);
    }

    /// PLACING-P3, with moves under way, and groups that nobody reports.
    #[test]
    fn only_sets_with_a_leader_move_and_few_at_once(
        mut view in views(false),
        flags in vec((any::<bool>(), any::<bool>()), 6),
    ) {
        for (group, (moving, seen)) in view.groups.values_mut().zip(flags) {
            group.moving = moving;
            group.leader = group.leader.filter(|_| seen);
        }
        let under_way = view.groups.values().filter(|group| group.moving).count();
        let rules = Rules { repairs: 4, ..RULES };
        let moves = plan(&view, &rules);
        let begun = || moves.iter().filter(|step| !view.groups[&step.group].moving);
        let all = begun().count();
        prop_assert!(all == 0 || under_way + all <= rules.repairs, "{moves:?} in {view:?}");
        let other = |step: &&Move| !matches!(step.why, Why::Survival | Why::Unusable | Why::Fewer);
        let others = begun().filter(other).count();
        prop_assert!(others == 0 || under_way + others <= rules.at_once, "{moves:?} in {view:?}");
        prop_assert!(moves.iter().all(|step| view.groups[&step.group].leader.is_some()), "{moves:?} in {view:?}");
    }

    /// With gateways that are all well, what is possible is reached.
    #[test]
    fn what_is_possible_is_reached(mut view in views(true)) {
        settle(&mut view, &RULES);
        for placed in view.groups.values().filter(|placed| placed.policy.survive.is_some()) {
            if possible(&view.members, &placed.policy).is_ok() {
                let left = violations(&view, placed, &RULES);
                let met = left.iter().all(|violation| matches!(violation, Violation::Away { .. }));
                prop_assert!(met, "{:?} of {:?} in {:?}", left, placed, view);
            }
        }
    }
}
