//! The searches with the model: stories in which the rules hold, and broken rules, which must be noticed.

use super::*;
use stateright::{Checker, HasDiscoveries};

fn raise_and_commit() -> Vec<Wish<u8, u8>> {
    vec![Wish::Swap { expected: FIRST, value: 1 }, Wish::Swap { expected: FIRST, value: 2 }]
}

/// A mender, and the two writers.
fn with_a_mender() -> Vec<Wish<u8, u8>> {
    let mut wishes = vec![Wish::Settle];
    wishes.extend(raise_and_commit());
    wishes
}

/// Maximum number of states that one search generates, in the order of the number of steps. Each takes some 1 KiB.
const STATES_MAX: usize = 600_000;

fn holds(name: &str, model: Story) {
    let checker = model.checker().target_state_count(STATES_MAX).spawn_bfs().join();
    let (states, steps) = (checker.unique_state_count(), checker.max_depth());
    let all = if checker.state_count() < STATES_MAX { "all" } else { "cut off" };
    eprintln!("{name}: {states} states, up to {steps} steps, {all}");
    checker.assert_properties();
}

fn fails(name: &str, model: Story) {
    let search = model.checker().finish_when(HasDiscoveries::AnyFailures).target_state_count(STATES_MAX);
    let checker = search.spawn_bfs().join();
    let found: Vec<&str> = checker.discoveries().into_keys().filter(|name| !name.starts_with("a writer")).collect();
    eprintln!("{name}: {} states, {} steps: {found:?}", checker.unique_state_count(), checker.max_depth());
    assert!(!found.is_empty(), "the model did not notice");
}

#[test]
fn two_lives_never_both_commit_whatever_is_lost() {
    let model = Story { wishes: raise_and_commit(), rounds: 1, lossy: true, ..Story::default() };
    holds("one round each", model.clone());
    holds("two rounds each", Story { rounds: 2, ..model });
}

#[test]
fn a_look_in_between_sees_nothing_old() {
    holds("a look", Story { wishes: raise_and_commit(), rounds: 1, looks: true, lossy: true, ..Story::default() });
}

#[test]
fn a_third_that_settles_what_was_cut_short_changes_nothing_of_that() {
    let mut wishes = raise_and_commit();
    wishes.push(Wish::Settle);
    holds("a third", Story { wishes, rounds: 1, lossy: true, ..Story::default() });
}

/// QUORUM-Q2.
fn mending() -> Story {
    Story { wishes: with_a_mender(), menders: 1, rounds: 1, wipes: 1, ..Story::default() }
}

#[test]
fn a_store_that_lost_its_entry_begins_anew_and_nothing_decided_is_lost() {
    holds("a store is mended", mending());
    holds("with looks", Story { looks: true, ..mending() });
}

/// The steps of a first writer that got a promise with the highest ballot at the store that is lost later: only that
/// store knew of it.
fn forgotten_promise() -> Vec<Act> {
    vec![Act::Promise(2, 0, Reply::Heard), Act::Wipe(0), Act::Mark(0), Act::Ask(0)]
}

#[test]
fn a_promise_that_was_forgotten_counts_no_more() {
    holds("a forgotten promise", Story { before: forgotten_promise(), ..mending() });
    holds("with a second round", Story { before: forgotten_promise(), rounds: 2, ..mending() });
}

/// Two menders. The one that began first comes last, when the store was mended, has taken part, and is lost again. With
/// restarts, the second one puts a mark of its own: the restart of the first has begun, as the others know.
fn late_mender(broken: Option<Broken>) -> Story {
    let mut wishes = vec![Wish::Settle];
    wishes.extend(with_a_mender());
    let promise = |who, at| Act::Promise(who, at, Reply::Heard);
    let accept = |who, at| Act::Accept(who, at, Reply::Heard);
    let mut before = vec![Act::Wipe(0), Act::Mark(0)];
    for who in [0, 1] {
        before.push(Act::Ask(who));
        before.extend([promise(who, 1), promise(who, 2), accept(who, 1), accept(who, 2)]);
        before.extend((who == 0 && broken.is_none()).then_some(Act::Mark(0)));
    }
    before.push(Act::Mend(1));
    Story { wishes, menders: 2, rounds: 2, wipes: 2, before, broken, ..Story::default() }
}

#[test]
fn a_mender_that_comes_late_undoes_nothing() {
    holds("a late mender", late_mender(None));
}

/// A mark that was sent when the store was lost for the first time arrives when it is lost again; in between it was
/// mended, and promised the highest ballot.
fn late_mark() -> Story {
    let mut wishes = vec![Wish::Settle];
    wishes.extend(with_a_mender());
    let promise = |who, at| Act::Promise(who, at, Reply::Heard);
    let accept = |who, at| Act::Accept(who, at, Reply::Heard);
    let mut before = vec![Act::Wipe(0), Act::MakeMark(0), Act::Mark(0), Act::Ask(0)];
    before.extend([promise(0, 1), promise(0, 2), accept(0, 1), accept(0, 2), Act::Mend(0)]);
    before.extend([Act::Again(2), Act::Again(3), promise(3, 0), Act::Wipe(0), Act::PutMark]);
    Story { wishes, menders: 2, rounds: 2, wipes: 2, before, all_asked: true, ..Story::default() }
}

#[test]
fn a_mark_that_comes_late_begins_no_restart_twice() {
    holds("a late mark", late_mark());
    let two = Story { wishes: late_mark().wishes, menders: 2, wipes: 2, ..mending() };
    holds("a mark that may come late", Story { late_marks: true, ..two });
}

#[test]
fn a_restart_that_is_begun_twice_lets_both_commit() {
    let mut story = late_mark();
    let (promise, accept) = (|at| Act::Promise(1, at, Reply::Heard), |at| Act::Accept(1, at, Reply::Heard));
    story.before.extend([Act::Ask(1), promise(1), promise(2), accept(1), accept(2), Act::Mend(1)]);
    fails("a restart twice", Story { broken: Some(Broken::RestartTwice), ..story });
}

#[test]
fn an_entry_written_from_a_look_cancels_a_vote() {
    let model = Story { menders: 0, wishes: raise_and_commit(), broken: Some(Broken::MendedFromALook), ..mending() };
    fails("as it was", model);
}

#[test]
fn a_round_at_some_of_the_others_is_not_enough() {
    fails("mended by some", Story { broken: Some(Broken::MendedBySome), ..mending() });
}

#[test]
fn without_restarts_a_forgotten_promise_lets_both_commit() {
    let before = forgotten_promise();
    fails("no restarts", Story { broken: Some(Broken::NoRestarts), before, ..mending() });
}

#[test]
fn a_mender_that_writes_over_any_mark_undoes_a_vote() {
    fails("any mark", late_mender(Some(Broken::AnyMark)));
}

#[test]
fn without_a_promise_both_lives_commit() {
    let model = Story { wishes: raise_and_commit(), rounds: 2, lossy: true, ..Story::default() };
    fails("no promise", Story { broken: Some(Broken::NoPromise), ..model });
}

#[test]
fn a_forgotten_entry_that_counts_loses_what_was_decided() {
    let broken = Some(Broken::ForgottenCounts);
    let model = Story { wishes: vec![Wish::Settle], rounds: 1, wipes: 1, broken, ..Story::default() };
    fails("forgotten counts", model);
}

#[test]
fn quorums_that_need_not_meet_let_both_commit() {
    let model = Story { wishes: raise_and_commit(), rounds: 1, lossy: true, ..Story::default() };
    fails("quorums", Story { broken: Some(Broken::Quorum), ..model });
}
