//! How many sets move at the same time (PLACING-P3).

use super::*;

/// A gateway is removed for good: its sets do not wait for two at a time, and none for one that hangs.
#[test]
fn repairs_are_several_at_once_and_wait_for_no_stalled_move() {
    let mut view = cluster(&["eu", "us", "ap", "sa"]);
    for set in 1..=9 {
        view.groups.insert(GroupId(set), placed(survive(Survive::Region), [1, 2, 3]));
    }
    view.member(3).standing = Standing::Leaving;
    let rules = Rules { repairs: 4, ..RULES };
    let planned = |view: &View| plan(view, &rules).iter().map(|step| step.group.0).collect::<Vec<u64>>();
    assert_eq!(planned(&view), [1, 2, 3, 4]);
    for set in 1..=4 {
        let group = view.groups.get_mut(&GroupId(set)).unwrap();
        (group.voters, group.moving) = (ids([1, 2, 4]), true);
    }
    assert_eq!(planned(&view), [0; 0], "PLACING-P3: four are under way");
    view.groups.get_mut(&GroupId(2)).unwrap().stalled = true;
    assert_eq!(planned(&view), [5]);
    let mut view = cluster(&["eu"; 4]);
    for set in 1..=9 {
        view.groups.insert(GroupId(set), placed(Policy::default(), [1, 2, 3]));
    }
    view.member(3).standing = Standing::Drained;
    assert_eq!(planned(&view), [1, 2], "nothing is lost: it has time");
}
