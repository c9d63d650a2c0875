//! Group 0's voters, step by step (CLUSTERVOTERS-V2, PLACING-P1, PLACING-P2).

use super::*;

const REPLACE: Option<Duration> = RULES.replace_after;

fn next(view: &View, voters: &BTreeSet<MemberId>) -> ClusterVoters {
    let me = voters.first().copied().unwrap_or(MemberId(1));
    let now = cluster_voters(&view.members, voters, me, &BTreeSet::new(), REPLACE);
    assert_eq!(now, cluster_voters(&view.members, voters, me, &BTreeSet::new(), REPLACE), "the same view");
    now
}

/// Those of these that do not leave: of the others nothing is expected any more.
fn staying(view: &View, voters: &BTreeSet<MemberId>) -> BTreeSet<MemberId> {
    let stays = |id: &MemberId| view.members[id].standing != Standing::Leaving;
    voters.iter().copied().filter(stays).collect()
}

/// Takes all steps, and checks each. Returns how many voters there were after each.
fn walk(view: &View, voters: &mut BTreeSet<MemberId>) -> Vec<usize> {
    let rules = Rules { replace_after: Some(CLUSTER_REPLACE_AFTER), ..RULES };
    let mut sizes = Vec::new();
    for _ in 0..64 {
        let step = next(view, voters);
        if step.next == *voters {
            return sizes;
        }
        let (from, to) = (staying(view, voters), staying(view, &step.next));
        if !from.is_empty() {
            for newcomer in step.next.difference(voters).map(|id| &view.members[id]) {
                let well = newcomer.silent.is_none() && !newcomer.busy && newcomer.standing != Standing::Leaving;
                assert!(well, "CLUSTERVOTERS-V2: {step:?} in {view:?}");
            }
            let policy = cluster_policy(staying(view, &view.members.keys().copied().collect()).len());
            let board = Board::new(view, &placed(policy, from.iter().map(|id| id.0)), rules.replace_after);
            let [before, after] = [&from, &to].map(|voters| losses(view, board.level, voters, &rules));
            assert!(after.0 <= before.0 && after.1 <= before.1, "PLACING-P1: {step:?} from {voters:?} in {view:?}");
        }
        assert!(!to.is_empty() || from.is_empty(), "nobody is left: {step:?} in {view:?}");
        assert!(from.len() <= to.len() + 2, "no more than two at a time: {step:?} from {voters:?}");
        voters.clone_from(&step.next);
        sizes.push(voters.len());
    }
    panic!("PLACING-P2: it does not end: {voters:?} in {view:?}");
}

#[test]
fn twelve_voters_in_four_regions_become_five_that_survive_a_region() {
    let view = cluster(&["a", "a", "a", "b", "b", "b", "c", "c", "c", "d", "d", "d"]);
    let mut voters = ids(1..=12);
    let sizes = walk(&view, &mut voters);
    assert_eq!((sizes.last(), cluster_size(12)), (Some(&5), 5));
    assert!(sizes.is_sorted_by(|before, after| before > after), "{sizes:?}");
    assert_eq!(losses(&view, Survive::Region, &voters, &RULES), (0, 0));
    assert!(voters.contains(&MemberId(1)), "leadership stays where it is");
    assert_eq!(next(&view, &voters).end, voters);
}

#[test]
fn three_up_to_four_members_and_five_from_then_on() {
    let mut view = cluster(&["eu"; 4]);
    let mut voters = ids([1]);
    walk(&view, &mut voters);
    assert_eq!((voters.len(), cluster_size(4)), (3, 3));
    for (at, size) in [(5, 5), (6, 5)] {
        view.members.insert(MemberId(at), candidate(at as usize, "eu"));
        walk(&view, &mut voters);
        assert_eq!((voters.len(), cluster_size(view.members.len())), (size, size));
    }
    assert_eq!([0, 1, 2, 3].map(cluster_size), [0, 1, 2, 3]);
}

#[test]
fn a_silent_voter_is_replaced_after_a_minute_by_one_that_follows() {
    let mut view = cluster(&["eu", "us", "ap", "ap"]);
    let mut voters = ids([1, 2, 3]);
    view.member(3).silent = Some(MINUTE / 2);
    assert_eq!(next(&view, &voters).next, voters, "it may come back");
    view.member(3).silent = Some(MINUTE);
    view.member(4).busy = true;
    assert_eq!(next(&view, &voters).next, voters, "CLUSTERVOTERS-V2");
    view.member(4).busy = false;
    assert_eq!(next(&view, &voters).why, Some(Why::Unusable));
    walk(&view, &mut voters);
    assert_eq!(voters, ids([1, 2, 4]));
    view.member(3).silent = None;
    assert_eq!(next(&view, &voters).next, voters, "it comes back as a learner, and nothing goes back");
    view.member(3).silent = Some(100 * MINUTE);
    view.member(4).silent = Some(100 * MINUTE);
    let never = cluster_voters(&view.members, &voters, MemberId(1), &BTreeSet::new(), None);
    assert_eq!(never.next, voters, "`replace_after_ms = 0`");
}

#[test]
fn a_drained_voter_gives_its_vote_away_only_where_there_is_another() {
    let mut view = cluster(&["eu"; 4]);
    view.member(2).standing = Standing::Drained;
    let mut voters = ids([1, 2, 3]);
    walk(&view, &mut voters);
    assert_eq!(voters, ids([1, 3, 4]));
    view.member(4).standing = Standing::Drained;
    assert_eq!(walk(&view, &mut voters), [0; 0]);
}

/// ADR 0019: its vote may be needed to let it go.
#[test]
fn a_leaving_voter_keeps_its_vote_only_where_fewer_than_three_others_may_vote() {
    let mut view = cluster(&["eu"; 3]);
    view.member(3).standing = Standing::Leaving;
    let voters = ids([1, 2, 3]);
    assert_eq!(next(&view, &voters).next, voters);
    let out = cluster_voters(&view.members, &voters, MemberId(1), &ids([3]), REPLACE);
    assert_eq!(out.next, ids([1, 2]), "no set has it any more");
    view.members.insert(MemberId(4), candidate(4, "eu"));
    assert_eq!(next(&view, &voters).next, ids([1, 2, 4]), "its place is given away at once");
    let mut all = cluster(&["eu"; 6]);
    (1..=3).for_each(|id| all.member(id).standing = Standing::Leaving);
    assert_eq!(next(&all, &voters).next, ids([4, 5, 6]), "all are replaced");
    let mut five = cluster(&["eu"; 5]);
    five.member(5).standing = Standing::Leaving;
    let mut voters = ids(1..=5);
    walk(&five, &mut voters);
    assert_eq!(voters, ids([1, 2, 3]));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    /// `walk` checks each step. Where all are well, the number is reached.
    #[test]
    fn each_walk_of_group_0_ends_and_no_step_survives_less(
        (well, found) in any::<bool>().prop_flat_map(|well| (Just(well), vec(members(well), 1..13))),
        voters in btree_set(0..12_u64, 1..13),
    ) {
        let count = found.len() as u64;
        let named = |(id, m): (u64, Candidate)| (MemberId(id), Candidate { name: name(&format!("g{id}")), ..m });
        let view = View { members: (1_u64..).zip(found).map(named).collect(), groups: BTreeMap::new() };
        let mut voters = ids(voters.into_iter().map(|at| at % count + 1));
        let begun_with = voters.clone();
        walk(&view, &mut voters);
        prop_assert!(!voters.is_empty());
        if well {
            prop_assert_eq!(voters.len(), cluster_size(view.members.len()), "from {:?} in {:?}", begun_with, view);
        }
    }
}
