//! Votes that `gateway add` waits for.

use super::*;

/// `gateway add` waited ten minutes for a set that may have no voter in the new gateway's region.
#[test]
fn gateway_add_waits_only_for_votes_that_the_plan_wants() {
    let more = |view: &View| newcomers(view, &RULES).get(&SET).cloned().unwrap_or_default();
    let mut view = with_set(&["eu", "eu", "us"], Policy::default(), [1, 2]);
    assert_eq!(more(&view), ids([3]), "a third voter");
    assert_eq!(newcomers(&view, &Rules { at_once: 0, ..RULES }), BTreeMap::new(), "nothing moves by itself");
    view.set().policy.forbidden = BTreeSet::from([name("us")]);
    assert_eq!(more(&view), ids([]), "by law");
    view.set().policy = Policy::default();
    view.member(3).busy = true;
    assert_eq!(more(&view), ids([]), "its journal has no room");
    assert!(view.members[&MemberId(1)].takes_votes() && !view.members[&MemberId(3)].takes_votes());
    view.member(3).busy = false;
    view.set().leader = None;
    assert_eq!(more(&view), ids([]), "the set has no leader, perhaps for long");
    let mut view = with_set(&["eu"; 4], Policy::default(), [1, 2, 3]);
    assert_eq!(more(&view), ids([]), "three are enough");
    view.set().policy = Policy { voters: 5, ..Policy::default() };
    assert_eq!(more(&view), ids([]), "a fourth is of no use");
    view.members.insert(MemberId(5), candidate(5, "eu"));
    assert_eq!(more(&view), ids([4, 5]));
}
