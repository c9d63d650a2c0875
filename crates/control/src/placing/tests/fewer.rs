//! PLACING-P4: lost voters without a substitute.

use super::*;

fn five(survive: Option<Survive>) -> Policy {
    Policy { voters: 5, survive, ..Policy::default() }
}

/// Three of five are all needed: the next loss would stop the set, for as long as nobody adds or removes a gateway.
#[test]
fn five_voters_with_two_lost_become_three_until_both_are_back() {
    for level in [Some(Survive::Host), None] {
        let mut view = with_set(&["eu"; 5], five(level), 1..=5);
        view.member(4).silent = Some(60 * MINUTE);
        assert_eq!(settle(&mut view, &RULES), [""; 0], "four of five survive another loss");
        view.member(5).silent = Some(5 * MINUTE);
        assert_eq!(settle(&mut view, &RULES), [""; 0], "it may come back");
        view.member(5).silent = Some(15 * MINUTE);
        assert_eq!(settle(&mut view, &Rules { replace_after: None, ..RULES }), [""; 0], "switched off");
        assert_eq!(settle(&mut view, &RULES), ["1: -4 -5 Fewer"]);
        assert_eq!(view.told(), ["it has 3 voters, expected 5"], "shown until both are back");
        view.member(3).silent = Some(60 * MINUTE);
        assert_eq!(settle(&mut view, &RULES), [""; 0], "two survive no more than two of three");
        view.member(3).silent = None;
        view.member(4).silent = None;
        assert_eq!(settle(&mut view, &RULES), [""; 0], "four survive no more losses than three");
        view.member(5).silent = None;
        assert_eq!(settle(&mut view, &RULES), ["1: +4 +5 Number"]);
        assert_eq!(view.told(), [""; 0]);
    }
}

#[test]
fn a_substitute_is_better_than_fewer_voters() {
    let mut view = with_set(&["eu"; 6], five(Some(Survive::Host)), 1..=5);
    for id in [4, 5] {
        view.member(id).silent = Some(60 * MINUTE);
    }
    assert_eq!(settle(&mut view, &RULES), ["1: -5 +6 Unusable"]);
    assert_eq!(view.told(), ["g4 in region=eu does not answer"], "four of five survive another loss");
}

/// Entries that only two voters of one region have acknowledged are lost with that region. A set of five that needs all
/// three remaining voters loses nothing then: it stops.
#[test]
fn where_three_would_not_survive_a_loss_five_stay_and_are_told() {
    let mut view = with_set(&["eu", "eu", "us", "us", "ap"], five(Some(Survive::Region)), 1..=5);
    for id in [3, 4] {
        view.member(id).silent = Some(60 * MINUTE);
    }
    assert_eq!(settle(&mut view, &RULES), [""; 0]);
    assert_eq!(view.told()[0], "the loss of region eu leaves 1 of its voters, and 3 are needed");
    view.members.insert(MemberId(6), candidate(6, "sa"));
    assert_eq!(settle(&mut view, &RULES), ["1: -4 +6 Unusable", "1: -2 -3 Fewer"], "a third region is there again");
    assert_eq!(view.told(), ["it has 3 voters, expected 5"]);
}

/// The leader stays. Of two voters in one region one goes with the lost one.
#[test]
fn a_lost_region_may_take_a_voter_of_another_with_it() {
    let mut view = with_set(&["eu", "eu", "us", "ap", "sa"], five(Some(Survive::Region)), 1..=5);
    view.member(5).silent = Some(60 * MINUTE);
    assert_eq!(settle(&mut view, &RULES), ["1: -2 -5 Fewer"]);
    view.member(5).silent = None;
    assert_eq!(settle(&mut view, &RULES), ["1: +2 +5 Number"]);
}

/// Its group has three voters and survives a loss; the others were named and never came.
#[test]
fn newcomers_that_are_late_are_no_reason_for_fewer_voters() {
    let mut view = with_set(&["eu"; 5], five(Some(Survive::Host)), 1..=5);
    (view.set().now, view.set().late, view.set().moving) = (ids(1..=3), ids([4, 5]), true);
    assert!(plan(&view, &RULES).is_empty());
    (view.set().now, view.set().late) = (ids(1..=5), ids([]));
    for id in [4, 5] {
        view.member(id).silent = Some(60 * MINUTE);
    }
    let to: Vec<BTreeSet<MemberId>> = plan(&view, &RULES).into_iter().map(|step| step.to).collect();
    assert_eq!(to, [ids(1..=3)], "voters that it has are one");
}

/// A group that cannot commit anything could not follow, and the lost ones may come back.
#[test]
fn without_a_majority_nothing_shrinks() {
    let mut view = with_set(&["eu"; 5], five(Some(Survive::Host)), 1..=5);
    for id in [3, 4, 5] {
        view.member(id).silent = Some(60 * MINUTE);
    }
    assert_eq!(settle(&mut view, &RULES), [""; 0]);
    // g2 and g3 are newcomers: of the voters that the group has only g1 is left.
    let mut view = with_set(&["eu"; 7], five(Some(Survive::Host)), 1..=5);
    (view.set().now, view.set().moving) = (ids([1, 4, 5, 6, 7]), true);
    for id in 4..=7 {
        view.member(id).silent = Some(60 * MINUTE);
    }
    assert!(plan(&view, &RULES).is_empty());
}

/// g4 and g5 may be cut off from the leader of group 0 only. Then four of five are there, and would be two of three.
#[test]
fn nothing_shrinks_while_one_that_is_to_stay_is_away() {
    let mut view = with_set(&["eu"; 5], five(Some(Survive::Host)), 1..=5);
    for id in [4, 5] {
        view.member(id).silent = Some(60 * MINUTE);
    }
    view.member(3).silent = Some(MINUTE);
    assert_eq!(settle(&mut view, &RULES), [""; 0], "it may be lost next");
    view.member(3).silent = None;
    view.set().absent = ids([3]);
    assert_eq!(settle(&mut view, &RULES), [""; 0], "it does not run the set");
    view.set().absent = ids([]);
    assert_eq!(settle(&mut view, &RULES), ["1: -4 -5 Fewer"]);
}

/// The only gateway of the third region was removed. Two voters in two regions were better than three, and so two of
/// the four went.
#[test]
fn four_voters_in_two_regions_do_not_become_two() {
    let mut view = with_set(&["eu", "eu", "us", "us"], five(Some(Survive::Region)), 1..=4);
    settle(&mut view, &RULES);
    assert_eq!(view.set().voters.len(), 3, "any gateway may be lost");
    let mut view = with_set(&["eu"; 4], Policy::default(), 1..=4);
    for id in [3, 4] {
        view.member(id).silent = Some(60 * MINUTE);
    }
    assert_eq!(settle(&mut view, &RULES), ["1: -4 Unusable"], "3 may come back");
}

/// The only gateway of the third region leaves: its set had two voters for ever, since a third one would stand in the
/// region of another.
#[test]
fn a_third_voter_is_better_than_two_that_are_spread() {
    let mut view = with_set(&["eu", "us", "ap", "eu"], survive(Survive::Region), [1, 2]);
    view.member(3).standing = Standing::Leaving;
    view.set().now = ids([1, 2, 3]);
    view.member(4).slow = true;
    assert_eq!(settle(&mut view, &RULES), ["1: +4 Survival"], "any gateway may be lost then");
    view.members.insert(MemberId(5), candidate(5, "sa"));
    assert_eq!(settle(&mut view, &RULES), ["1: -4 +5 Survival"]);
}

/// All subsets of three.
fn threes(of: &BTreeSet<MemberId>) -> Vec<BTreeSet<MemberId>> {
    let all: Vec<MemberId> = of.iter().copied().collect();
    let mut found = Vec::new();
    for (at, one) in all.iter().enumerate() {
        for (next, two) in all.iter().enumerate().skip(at + 1) {
            found.extend(all.iter().skip(next + 1).map(|three| BTreeSet::from([*one, *two, *three])));
        }
    }
    found
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// Voters are lost one after the other. In the end no three of a group's voters would survive a loss that the group
    /// does not survive; `carry_out` checks that no step on the way survives less.
    #[test]
    fn no_three_of_its_voters_would_survive_what_the_group_does_not(
        mut view in views(true),
        lost in vec(0..9_usize, 1..4),
    ) {
        settle(&mut view, &RULES);
        for at in lost {
            let Some(id) = view.members.keys().copied().nth(at) else { continue };
            view.member(id.0).silent = Some(60 * MINUTE);
            settle(&mut view, &RULES);
            for placed in view.groups.values() {
                let board = Board::new(&view, placed, RULES.replace_after);
                if !board.has_majority(board.choice(&placed.voters)) {
                    continue;
                }
                let now = losses(&view, board.level, &placed.voters, &RULES);
                for three in threes(&placed.voters) {
                    let then = losses(&view, board.level, &three, &RULES);
                    let worse = now.0 == 0 || then.0 > 0 || then.1 > now.1;
                    prop_assert!(worse, "{:?} instead of {:?} in {:?}", three, placed, view);
                }
            }
        }
    }
}
