//! Exhaustive models of lease and takeover, on this crate's own code: every history within the bounds is explored
//! (stateright, breadth first), and each must keep the rules. docs/proof/model.md has the scope and the limits.
//!
//! * `grants`: one set's replicated state, its gates, and a network that delivers every request and proposal at any
//!   time, any number of times, or never. No clock.
//! * `clocks`: three gateways with clocks of their own: heartbeats, elections, hand-overs, restarts, suspended clocks,
//!   reads.
//!
//! Both run once as they are, with no breach allowed, and once without each guard, where a breach must be found.
#![expect(clippy::disallowed_methods, reason = "the wide walk is told its time by the environment")]

mod clocks;
mod granted;
mod grants;
mod guards;
mod marks;

use clocks::Clocks;
use grants::Grants;
use guards::Guard;
use marks::Marks;
use stateright::{Checker, HasDiscoveries, Model, Path};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::{Duration, Instant};

/// Result of a walk.
struct Walk {
    states: usize,
    depth: usize,
    /// Broken rules, each with its shortest history.
    broken: Vec<(&'static str, String)>,
    /// Marks reached, with their counts.
    marks: Vec<(&'static str, usize)>,
    finished: bool,
    time: Duration,
}

/// How to walk.
#[derive(Clone, Copy)]
enum Way {
    /// Everything, depth first: the queue holds one path, not a whole level.
    All,
    /// The same, for this long.
    For(Duration),
    /// Until this rule is broken, level by level: the history found is a shortest one.
    Until(&'static str),
}

/// Walks through `model`.
fn walk<M>(model: M, marks: &Marks, way: Way) -> Walk
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + PartialEq + Debug + Hash + Send + Sync + 'static,
    M::Action: Clone + PartialEq + Debug + Send + Sync + 'static,
{
    // One thread where a history is searched, so that the result is reproducible.
    let threads = match way {
        Way::All | Way::For(_) => std::thread::available_parallelism().map_or(1, |n| n.get().min(8)),
        Way::Until(_) => 1,
    };
    let builder = model.checker().threads(threads);
    let begun = Instant::now();
    let mut walk = match way {
        Way::All => seen(&builder.finish_when(HasDiscoveries::AnyFailures).spawn_dfs().join(), marks),
        Way::For(time) => {
            seen(&builder.finish_when(HasDiscoveries::AnyFailures).timeout(time).spawn_dfs().join(), marks)
        }
        Way::Until(rule) => seen(&builder.finish_when(HasDiscoveries::AllOf([rule].into())).spawn_bfs().join(), marks),
    };
    walk.time = begun.elapsed();
    if let Way::For(time) = way {
        walk.finished &= walk.time < time;
    }
    walk
}

fn seen<M>(checker: &impl Checker<M>, marks: &Marks) -> Walk
where
    M: Model + Send + Sync + 'static,
    M::State: Clone + PartialEq + Debug + Hash + Send + Sync + 'static,
    M::Action: Clone + PartialEq + Debug + Send + Sync + 'static,
{
    let tell = |path: Path<M::State, M::Action>| {
        path.into_actions().iter().enumerate().map(|(n, step)| format!("  {:2} {step:?}\n", n + 1)).collect::<String>()
    };
    let mut broken: Vec<_> = checker.discoveries().into_iter().map(|(rule, path)| (rule, tell(path))).collect();
    broken.sort();
    Walk {
        states: checker.unique_state_count(),
        depth: checker.max_depth(),
        broken,
        marks: marks.counts(),
        finished: checker.is_done(),
        time: Duration::ZERO,
    }
}

fn walk_grants(model: Grants, way: Way) -> Walk {
    let marks = model.marks.clone();
    walk(model, &marks, way)
}

fn walk_clocks(model: Clocks, way: Way) -> Walk {
    let marks = model.marks.clone();
    walk(model, &marks, way)
}

fn assert_nothing_broken(name: &str, walk: &Walk) {
    println!("{name}: {} states, {} steps deep, {:.1?}", walk.states, walk.depth, walk.time);
    for (mark, times) in &walk.marks {
        println!("  {mark}: {times}");
    }
    if let Some((rule, history)) = walk.broken.first() {
        panic!("{name}: {rule} is broken by\n{history}");
    }
}

/// No rule may be broken, every mark must be reached, in at least `floor` states: fewer mean that the model has become
/// too small.
fn assert_kept(name: &str, walk: &Walk, floor: usize) {
    assert_nothing_broken(name, walk);
    for (mark, times) in &walk.marks {
        assert!(*times > 0, "{name}: expected a history that reaches the mark: {mark}");
    }
    assert!(walk.finished, "{name}: expected a finished walk, found an unfinished one");
    assert!(walk.states >= floor, "{name}: {} states, expected at least {floor}", walk.states);
}

/// The rule must be broken without the guard.
fn assert_found(guard: Guard, rule: &'static str, walk: &Walk) {
    let Some((_, history)) = walk.broken.iter().find(|(found, _)| *found == rule) else {
        let others: Vec<_> = walk.broken.iter().map(|(found, _)| *found).collect();
        panic!(
            "without {guard:?} {rule} is not broken in {} states (others that are: {others:?}): the model does not see what the \
             guard is for",
            walk.states
        );
    };
    println!("without {guard:?}: {rule} broken, {} states seen in {:.1?}, by\n{history}", walk.states, walk.time);
}

#[test]
fn grants_keep_the_rules() {
    let walk = walk_grants(Grants::new(grants::Bounds::SMALL), Way::All);
    assert_kept("grants", &walk, grants::Bounds::SMALL_STATES);
}

#[test]
fn grants_need_each_guard() {
    for (guard, rule) in guards::OF_GRANTS {
        assert_found(*guard, rule, &walk_grants(Grants::without(grants::Bounds::SMALL, *guard), Way::Until(rule)));
    }
}

/// One course of the model of clocks: as it is, and without each of its guards.
fn course_keeps_the_rules(name: &str) {
    let course = clocks::course(name);
    assert_kept(course.name, &walk_clocks(Clocks::new(course), Way::All), course.states);
}

fn course_needs_each_guard(name: &str) {
    for (guard, _, rule) in guards::OF_CLOCKS.iter().filter(|(_, course, _)| *course == name) {
        assert_found(*guard, rule, &walk_clocks(Clocks::without(clocks::course(name), *guard), Way::Until(rule)));
    }
}

#[test]
fn clocks_keep_the_rules_with_drift() {
    course_keeps_the_rules("drift");
}

#[test]
fn clocks_need_each_guard_with_drift() {
    course_needs_each_guard("drift");
}

#[test]
fn clocks_keep_the_rules_with_changed_times() {
    course_keeps_the_rules("times");
}

#[test]
fn clocks_need_each_guard_with_changed_times() {
    course_needs_each_guard("times");
}

#[test]
fn clocks_keep_the_rules_at_a_handover() {
    course_keeps_the_rules("handover");
}

#[test]
fn clocks_need_each_guard_at_a_handover() {
    course_needs_each_guard("handover");
}

#[test]
fn clocks_keep_the_rules_when_leadership_returns() {
    course_keeps_the_rules("return");
}

#[test]
fn clocks_need_each_guard_when_leadership_returns() {
    course_needs_each_guard("return");
}

#[test]
fn clocks_keep_the_rules_when_one_stands_still() {
    course_keeps_the_rules("clock");
}

#[test]
fn clocks_need_each_guard_when_one_stands_still() {
    course_needs_each_guard("clock");
}

#[test]
fn clocks_keep_the_rules_when_voters_are_added() {
    course_keeps_the_rules("alone");
}

#[test]
fn clocks_need_each_guard_when_voters_are_added() {
    course_needs_each_guard("alone");
}

#[test]
fn clocks_keep_the_rules_when_a_lease_expires() {
    course_keeps_the_rules("expiry");
}

#[test]
fn clocks_need_each_guard_when_a_lease_expires() {
    course_needs_each_guard("expiry");
}

#[test]
fn every_course_and_every_guard_has_its_test() {
    let named = ["drift", "times", "handover", "return", "clock", "alone", "expiry"];
    assert!(clocks::COURSES.iter().all(|course| named.contains(&course.name)));
    assert!(guards::OF_CLOCKS.iter().all(|(_, course, _)| named.contains(course)));
    assert!(guards::OF_GRANTS.len() + guards::OF_CLOCKS.len() >= 19);
}

#[test]
#[ignore = "as wide as time allows: HOLDFAST_MODEL_SECONDS=N for each of its walks, a minute without it; needs gigabytes of memory"]
fn wider_bounds() {
    let seconds = std::env::var("HOLDFAST_MODEL_SECONDS").map_or(60, |text| text.parse().unwrap());
    let report = |name: &str, walk: &Walk| {
        let how = if walk.finished { "to the end" } else { "as far as the time went" };
        assert_nothing_broken(&format!("{name}, wider, {how}"), walk);
    };
    let way = Way::For(Duration::from_secs(seconds));
    report("grants", &walk_grants(Grants::new(grants::Bounds::WIDE), way));
    for course in clocks::COURSES {
        report(course.name, &walk_clocks(Clocks::new(&course.wider()), way));
    }
}
