//! What is refused, when, and with which words.

use super::*;
use crate::config::Mode;

fn view(name: &str, state: StateName, database: &str) -> View {
    View {
        name: name.into(),
        set: "demo".into(),
        state,
        since_unix_ms: 0,
        role: if state == StateName::Primary && database == "ready" { Role::Primary } else { Role::Standby },
        why: String::new(),
        paused: false,
        mode: Mode::Automatic,
        nofailover: false,
        priority: 100,
        epoch: 0,
        lease_owner: "db1".into(),
        cluster_answers: true,
        database: database.into(),
        attach: None,
        renewed_ms_ago: None,
        obstacle: String::new(),
        peers: std::collections::BTreeMap::new(),
        version: String::new(),
        scheduled: None,
        at: holdfast_types::MonoTime(0),
    }
}

fn standby() -> View {
    view("db2", StateName::Standby, "gone")
}

fn db1(state: StateName, database: &str) -> Vec<Peer> {
    vec![("db1".into(), Ok(view("db1", state, database)))]
}

fn lost() -> Vec<Peer> {
    vec![("db1".into(), Err("no route".into()))]
}

#[test]
fn a_lost_primary_is_taken_over_from_without_more_words() {
    let plan = failover(&standby(), &lost());
    assert_eq!(plan.may_go(false, ""), Ok(()));
    assert!(plan.steps[0].contains("from db1 by force"), "{:?}", plan.steps);
    assert!(plan.checks.iter().any(|check| check.finding == Finding::Note && check.found.contains("no route")));
    // One that hangs, too: there is nothing well to lose.
    assert_eq!(failover(&standby(), &db1(StateName::Primary, "silent")).may_go(false, ""), Ok(()));
    assert_eq!(failover(&standby(), &db1(StateName::CutOff, "gone")).may_go(false, ""), Ok(()));
}

#[test]
fn a_primary_that_is_well_is_left_alone_unless_the_loss_is_asked_for_with_a_reason() {
    let plan = failover(&standby(), &db1(StateName::Primary, "ready"));
    let refused = plan.may_go(false, "because").unwrap_err();
    for words in ["db1 is primary and well", "agent switchover --to db2", "--allow-data-loss --reason"] {
        assert!(refused.contains(words), "{refused}");
    }
    let refused = plan.may_go(true, "  ").unwrap_err();
    assert!(refused.contains("--reason"), "{refused}");
    assert_eq!(plan.may_go(true, "its disk smokes"), Ok(()));
}

#[test]
fn a_holder_that_no_agent_knows_may_have_unwritten_data() {
    let mut own = standby();
    own.lease_owner = "laptop".into();
    let plan = failover(&own, &db1(StateName::Standby, "gone"));
    let refused = plan.may_go(false, "").unwrap_err();
    assert!(refused.contains("laptop") && refused.contains("holdfast attach demo --detach"), "{refused}");
    assert_eq!(plan.may_go(true, "it is stolen"), Ok(()));
    own.lease_owner = String::new();
    let plan = failover(&own, &db1(StateName::Standby, "gone"));
    assert_eq!(plan.may_go(false, ""), Ok(()));
    assert!(plan.steps[0].contains("free"));
}

#[test]
fn what_cannot_be_done_is_refused_whatever_is_said_and_says_what_would_help() {
    let mut cut = standby();
    cut.cluster_answers = false;
    let cases = [
        (failover(&view("db2", StateName::Primary, "ready"), &lost()), "--candidate"),
        (failover(&view("db2", StateName::Fencing, "gone"), &lost()), "agent status"),
        (failover(&cut, &lost()), "cluster status"),
    ];
    for (plan, next) in cases {
        let refused = plan.may_go(true, "all the same").unwrap_err();
        assert!(refused.contains(next), "{refused}");
    }
}

#[test]
fn every_check_that_refuses_has_a_way_out() {
    let states = [StateName::Standby, StateName::Primary, StateName::Starting, StateName::Fencing, StateName::CutOff];
    for (own, other) in states.iter().flat_map(|own| states.map(|other| (*own, other))) {
        for (database, owner, reaches) in [("ready", "db1", true), ("gone", "", false), ("silent", "x", true)] {
            let mut own = view("db2", own, "gone");
            (own.lease_owner, own.cluster_answers) = (owner.into(), reaches);
            let plan = failover(&own, &db1(other, database));
            for check in plan.checks.iter().filter(|c| matches!(c.finding, Finding::LosesData | Finding::Impossible)) {
                assert!(!check.next.is_empty(), "{check:?}");
            }
        }
    }
}
