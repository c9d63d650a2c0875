//! Moves that are not done: what fails on the way, and what that keeps others from.

use super::*;

/// The voters that the set is to have next, if it moves now.
fn next(view: &View) -> Option<BTreeSet<MemberId>> {
    plan(view, &RULES).into_iter().find(|step| step.group == SET).map(|step| step.to)
}

/// g3 gave its vote to g4 to make the load even, since its journal is full. The group has not followed yet.
#[test]
fn in_place_of_a_move_that_failed_the_set_survives_what_its_group_survives() {
    let mut view = with_set(&["eu", "us", "ap", "ap", "eu"], survive(Survive::Region), [1, 2, 4]);
    (view.set().now, view.set().moving) = (ids([1, 2, 3]), true);
    view.member(3).busy = true;
    assert_eq!(next(&view), None, "PLACING-P3");
    view.member(4).silent = Some(60 * MINUTE);
    assert_eq!(next(&view), Some(ids([1, 2, 3])), "it has its part of the set, and needs no room for it");
    view.member(3).silent = Some(MINUTE);
    assert_eq!(next(&view), None, "PLACING-P1: it may come back");
    view.member(3).silent = Some(60 * MINUTE);
    assert_eq!(next(&view), Some(ids([1, 2, 5])), "the region is lost");
}

/// g4 was to replace g3, and is removed from the cluster before it votes.
#[test]
fn the_place_of_a_newcomer_that_leaves_goes_back() {
    let mut view = with_set(&["eu", "us", "ap", "ap", "eu"], survive(Survive::Region), [1, 2, 4]);
    (view.set().now, view.set().moving) = (ids([1, 2, 3]), true);
    view.member(4).standing = Standing::Leaving;
    assert_eq!(next(&view), Some(ids([1, 2, 3])));
    view.set().stalled = true;
    assert_eq!(next(&view), Some(ids([1, 2, 3])), "also if it had hung before");
    view.member(1).silent = Some(60 * MINUTE);
    assert_eq!(next(&view), Some(ids([1, 2, 3])), "VOTERS-V1: g5 in the place of g1 would leave g4 among the voters");
}

/// Group 0 refuses voters of which none may serve (VOTERS-V1): it was asked again in each round.
#[test]
fn the_last_gateway_of_a_set_gives_its_place_to_no_witness() {
    let mut view = with_set(&["eu", "us", "ap", "sa"], survive(Survive::Region), [1, 2, 3]);
    [2, 3, 4].into_iter().for_each(|id| view.member(id).role = MemberRole::Witness);
    view.member(1).silent = Some(60 * MINUTE);
    assert_eq!(next(&view), None);
    view.members.insert(MemberId(5), candidate(5, "eu"));
    assert_eq!(next(&view), Some(ids([2, 3, 5])));
}

/// Two groups lost their quorum on the way: they have no leader, and no newcomer that could be late.
#[test]
fn a_move_that_takes_too_long_keeps_no_other_set_waiting() {
    let mut view = cluster(&["eu", "us", "ap", "sa"]);
    for set in 1..=3 {
        view.groups.insert(GroupId(set), placed(survive(Survive::Region), [1, 2, 3]));
    }
    for set in [2, 3].map(GroupId) {
        let group = view.groups.get_mut(&set).unwrap();
        (group.now, group.moving, group.leader) = (ids(1..=4), true, None);
    }
    view.member(3).silent = Some(60 * MINUTE);
    assert_eq!(next(&view), None, "PLACING-P3: two are under way");
    view.groups.values_mut().for_each(|group| group.overdue = group.moving);
    assert_eq!(next(&view), Some(ids([1, 2, 4])));
}

/// PLACING-P2: g2 takes no part of a set, and was tried again each hour, as soon as g3 had its place back.
#[test]
fn who_was_late_gets_no_vote_only_to_make_something_better() {
    let home = Policy { home: Some(name("eu")), ..survive(Survive::Host) };
    let mut view = with_set(&["eu", "eu", "us", "us"], home, [1, 3, 4]);
    assert_eq!(next(&view), Some(ids([1, 2, 3])));
    view.member(2).slow = true;
    assert_eq!(next(&view), None);
    view.member(3).silent = Some(60 * MINUTE);
    assert_eq!(next(&view), Some(ids([1, 2, 4])), "g3 is lost, and there is no other");
}
