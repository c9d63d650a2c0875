//! Which moves are refused, and with which text.

use super::*;

fn view(name: &str, state: StateName, database: &str) -> View {
    let role = if state == StateName::Primary && database == "ready" { Role::Primary } else { Role::Standby };
    let mut view = View::for_test(name, state, role, database);
    view.lease.owner = "db1".into();
    view
}

/// The primary db1, otherwise than usual.
fn primary_with(turn: impl FnOnce(&mut View)) -> View {
    let mut view = primary();
    turn(&mut view);
    view
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

/// Files on a disk of this host do not move: PostgreSQL would be stopped here and started nowhere.
#[test]
fn a_postgresql_that_is_not_all_on_the_set_is_not_moved() {
    let mut own = view("db1", StateName::Primary, "ready");
    own.pool.off_set = "/srv/pg/data/pg_wal: found /ssd/wal on /: move it".into();
    let why = switchover(&own, None, &[("db2".to_string(), Ok(standby()))], None).may_go(false, "").unwrap_err();
    assert!(why.contains("no host would start it again: /srv/pg/data/pg_wal: found /ssd/wal"), "{why}");
}

/// A single shell in the pool prevents its export: that is found before anything is stopped.
#[test]
fn a_pool_that_others_use_is_not_moved() {
    let mut own = view("db1", StateName::Primary, "ready");
    let peers = vec![("db2".to_string(), Ok(standby()))];
    assert_eq!(switchover(&own, None, &peers, None).may_go(false, ""), Ok(()));
    own.pool.openers = (0..20).map(|pid| format!("bash (pid {pid}) works in /tank/pg")).collect();
    let why = switchover(&own, None, &peers, None).may_go(false, "").unwrap_err();
    assert!(
        why.starts_with(
            "found 20 users of the pool of db1 other than PostgreSQL, expected none: bash (pid 0) works in"
        ),
        "{why}"
    );
    assert!(why.contains("(pid 7)") && !why.contains("(pid 8)") && why.contains("end them"), "{why}");
    // They may have gone when it is due; it is checked again then.
    let later = When { at_unix_ms: 90_000_000, now_unix_ms: 89_000_000 };
    let plan = switchover(&own, None, &peers, Some(later));
    assert_eq!(plan.may_go(false, ""), Ok(()));
    assert!(plan.checks.iter().any(|check| check.finding == Finding::Note && check.found.contains("found 20 users")));
}

/// pgBackRest's asynchronous archiver is there whenever PostgreSQL writes, and ends after it.
#[test]
fn a_pool_that_only_archivers_use_is_moved() {
    let mut own = view("db1", StateName::Primary, "ready");
    own.pool.leaving = vec!["pgbackrest (pid 7) has /tank/pg/data/pg_wal/x open".into()];
    let plan = switchover(&own, None, &[("db2".to_string(), Ok(standby()))], None);
    assert_eq!(plan.may_go(false, ""), Ok(()));
    assert!(finds(&plan, Finding::Note, "that end by themselves: pgbackrest (pid 7)"), "{:?}", plan.checks);
}

/// TIMED-T3: what another host shows may be over with its next question, and what the settings say is not.
#[test]
fn obstacles_that_may_go_away_are_told_from_those_that_last() {
    let silent = || vec![("db2".to_string(), Err("connection refused".to_string()))];
    let in_state = |state| db2(|view| view.state = state);
    let used = primary_with(|view| view.pool.openers = vec!["bash (pid 7) works in /tank/pg".into()]);
    let off_set = primary_with(|view| view.pool.off_set = "/srv/pg/data/pg_wal: found /ssd/wal on /".into());
    let mut moved = view("db1", StateName::Standby, "gone");
    moved.lease.owner = "db2".into();
    let careful = |view: &mut View| (view.pool.host_id, view.pool.multihost) = ("00000007".into(), true);
    let twin = primary_with(|view| view.pool.host_id = "00000007".into());
    let cases = [
        (true, primary(), None, db2(|view| view.lease.cluster_answers = false)),
        (true, primary(), None, db2(|view| view.pool.unable = "was not looked at yet: wait a moment".into())),
        (true, primary(), None, silent()),
        (true, primary(), None, in_state(StateName::Fencing)),
        (true, primary(), None, in_state(StateName::Primary)),
        (true, used.clone(), None, db2(|_| ())),
        (true, used, None, silent()),
        (true, view("db1", StateName::Starting, "busy"), None, db2(|_| ())),
        (false, off_set.clone(), None, db2(|_| ())),
        (false, off_set, None, silent()),
        (false, primary(), None, vec![]),
        (false, primary(), Some("db9"), db2(|_| ())),
        (false, primary(), None, db2(|view| view.set = "other".into())),
        (false, twin, None, db2(careful)),
        (false, moved, None, db2(|_| ())),
        // Nothing stands against it.
        (false, primary(), None, db2(|_| ())),
    ];
    for (at, (passes, own, candidate, peers)) in cases.into_iter().enumerate() {
        let plan = switchover(&own, candidate, &peers, None);
        assert_eq!(plan.may_pass(), passes, "case {at}: {:?}", plan.checks);
    }
}

/// An agent that was just restarted has not looked yet: its switchover is due all the same.
#[test]
fn a_host_knows_whether_its_switchover_may_begin_later() {
    let own = |state, owner: &str| {
        let mut own = view("db1", state, "ready");
        own.lease.owner = owner.into();
        own
    };
    assert_eq!(obstacle_here(&own(StateName::Primary, "db1")), None);
    assert_eq!(obstacle_here(&own(StateName::Following, "")), None);
    for (state, owner, transient) in [
        (StateName::Standby, "", true),
        (StateName::Starting, "db1", true),
        (StateName::CutOff, "db1", true),
        (StateName::Standby, "db2", false),
        (StateName::Fencing, "db2", false),
    ] {
        let obstacle = obstacle_here(&own(state, owner)).unwrap();
        assert_eq!(obstacle.transient, transient, "{state} {owner:?}: {obstacle:?}");
    }
    let paused = View { paused: true, ..own(StateName::Primary, "db1") };
    assert!(!obstacle_here(&paused).unwrap().transient);
}

#[test]
fn a_failover_from_a_lost_primary_needs_no_confirmation() {
    let plan = failover(&standby(), &lost());
    assert_eq!(plan.may_go(false, ""), Ok(()));
    assert!(plan.steps[0].contains("from db1 by force"), "{:?}", plan.steps);
    assert!(plan.checks.iter().any(|check| check.finding == Finding::Note && check.found.contains("no route")));
    // Also from one that hangs: no commit can be lost there.
    assert_eq!(failover(&standby(), &db1(StateName::Primary, "silent")).may_go(false, ""), Ok(()));
    assert_eq!(failover(&standby(), &db1(StateName::CutOff, "gone")).may_go(false, ""), Ok(()));
}

#[test]
fn a_failover_from_a_healthy_primary_needs_a_permission_and_a_reason() {
    let plan = failover(&standby(), &db1(StateName::Primary, "ready"));
    let refused = plan.may_go(false, "because").unwrap_err();
    for words in ["db1 is primary and healthy", "agent switchover --to db2", "--allow-data-loss --reason"] {
        assert!(refused.contains(words), "{refused}");
    }
    let refused = plan.may_go(true, "  ").unwrap_err();
    assert!(refused.contains("--reason"), "{refused}");
    assert_eq!(plan.may_go(true, "its disk smokes"), Ok(()));
}

#[test]
fn a_holder_that_no_agent_knows_may_have_unwritten_data() {
    let mut own = standby();
    own.lease.owner = "laptop".into();
    let plan = failover(&own, &db1(StateName::Standby, "gone"));
    let refused = plan.may_go(false, "").unwrap_err();
    assert!(refused.contains("laptop") && refused.contains("holdfast attach demo --detach"), "{refused}");
    assert_eq!(plan.may_go(true, "it is stolen"), Ok(()));
    own.lease.owner = String::new();
    let plan = failover(&own, &db1(StateName::Standby, "gone"));
    assert_eq!(plan.may_go(false, ""), Ok(()));
    assert!(plan.steps[0].contains("free"));
}

#[test]
fn an_impossible_failover_is_refused_with_a_remedy() {
    let mut cut = standby();
    cut.lease.cluster_answers = false;
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

const STATES: [StateName; 11] = [
    StateName::Standby,
    StateName::Acquiring,
    StateName::Attaching,
    StateName::Importing,
    StateName::Starting,
    StateName::Primary,
    StateName::Following,
    StateName::CutOff,
    StateName::Demoting,
    StateName::Fencing,
    StateName::Ended,
];

fn refusing(plan: &Plan) -> impl Iterator<Item = &Check> {
    plan.checks.iter().filter(|check| matches!(check.finding, Finding::LosesData | Finding::Impossible))
}

#[test]
fn every_check_that_refuses_has_a_way_out() {
    let states = STATES;
    for (own, other) in states.iter().flat_map(|own| states.map(|other| (*own, other))) {
        for (database, owner, reaches) in [("ready", "db1", true), ("gone", "", false), ("silent", "x", true)] {
            let mut own = view("db2", own, "gone");
            (own.lease.owner, own.lease.cluster_answers) = (owner.into(), reaches);
            let plan = failover(&own, &db1(other, database));
            for check in refusing(&plan) {
                assert!(!check.next.is_empty(), "{check:?}");
            }
        }
    }
}

fn primary() -> View {
    let mut own = view("db1", StateName::Primary, "ready");
    own.settings.peers = [("db2", "10.0.0.2:8008"), ("db3", "10.0.0.3:8008")].map(|(a, b)| (a.into(), b.into())).into();
    own
}

fn db2(turn: impl FnOnce(&mut View)) -> Vec<Peer> {
    let mut view = standby();
    turn(&mut view);
    vec![("db2".into(), Ok(view))]
}

fn finds(plan: &Plan, finding: Finding, words: &str) -> bool {
    plan.checks.iter().any(|check| check.finding == finding && check.found.contains(words))
}

#[test]
fn the_plan_of_a_switchover_has_its_checks_and_steps() {
    let plan = switchover(&primary(), None, &db2(|_| ()), None);
    assert_eq!(plan.may_go(false, ""), Ok(()));
    assert_eq!((plan.kind, plan.from.as_str(), plan.to.as_str()), (Move::Switchover, "db1", "db2"));
    for good in ["db1 is primary", "db2 stands by", "db2 reaches gateways"] {
        assert!(finds(&plan, Finding::Good, good), "{good}: {:?}", plan.checks);
    }
    assert!(plan.checks.iter().all(|check| check.finding == Finding::Good), "{:?}", plan.checks);
    let at = |words: &str| plan.steps.iter().position(|step| step.contains(words)).expect(words);
    let order = [at("told to take the lease"), at("checkpoint"), at("give the lease back"), at("first commit")];
    assert!(order.is_sorted(), "{:?}", plan.steps);
    // To JSON and back.
    let text = serde_json::to_string(&plan).unwrap();
    assert_eq!(serde_json::from_str::<Plan>(&text).unwrap(), plan);
}

#[test]
fn an_impossible_switchover_is_refused_with_a_remedy() {
    let mut many = db2(|_| ());
    many.push(("db3".into(), Ok(view("db3", StateName::Standby, "gone"))));
    let mut idle = view("db1", StateName::Standby, "gone");
    idle.settings.peers = primary().settings.peers;
    let at = |name: &str, state, database: &str| vec![(name.to_string(), Ok(view(name, state, database)))];
    let running = at("db2", StateName::Primary, "ready");
    let starting = view("db1", StateName::Starting, "busy");
    let past = When { at_unix_ms: 1000, now_unix_ms: 9000 };
    let far = When { at_unix_ms: 40 * 24 * 3_600_000, now_unix_ms: 0 };
    let own = primary;
    let good = || db2(|_| ());
    let cases = [
        // The target is not clear.
        (switchover(&own(), None, &many, None), "expected a candidate", "--to: db2, db3"),
        (switchover(&own(), None, &[], None), "knows of no other host", "[peers] in the settings of db1"),
        (switchover(&own(), Some("db9"), &many, None), "none of the peers of db1 (db2, db3)", "[peers]"),
        (switchover(&own(), Some("db1"), &good(), None), "where PostgreSQL runs already", "another host"),
        // The target could not take over.
        (switchover(&own(), None, &[("db2".into(), Err("no route".into()))], None), "(no route)", "agent run` on db2"),
        (switchover(&own(), None, &db2(|v| v.set = "other".into()), None), "found db2 of set other", "[peers]"),
        (switchover(&own(), None, &db2(|v| v.name = "db7".into()), None), "found db7", "[peers]"),
        (switchover(&own(), None, &at("db2", StateName::Fencing, "gone"), None), "state fencing", "agent status"),
        (switchover(&own(), None, &running, None), "state primary", "agent status"),
        (switchover(&own(), None, &db2(|v| v.lease.cluster_answers = false), None), "no gateway", "cluster status"),
        // PostgreSQL does not run here.
        (
            switchover(&idle, None, &running, None),
            "expected primary; db1 holds",
            "agent of db2 (--agent 10.0.0.2:8008)",
        ),
        (switchover(&idle, None, &good(), None), "expected primary", "failover --candidate"),
        (switchover(&starting, None, &good(), None), "state starting", "wait until it is primary"),
        // The time.
        (switchover(&own(), None, &good(), Some(past)), "8 s ago", "leave it out"),
        (switchover(&own(), None, &good(), Some(far)), "40 days ahead", "30 days ahead"),
    ];
    for (plan, found, next) in cases {
        // SWITCH-P1: also where data loss is allowed.
        let refused = plan.may_go(true, "all the same").unwrap_err();
        assert!(refused.contains(found) && refused.contains(next), "{found}, {next}: {refused}");
        assert!(!plan.steps.is_empty());
    }
}

#[test]
fn every_check_that_refuses_a_switchover_has_a_way_out() {
    let mut refused = 0;
    for (state, other) in STATES.iter().flat_map(|state| STATES.map(|other| (*state, other))) {
        for (owner, reaches, candidate) in
            [("db1", true, None), ("", false, Some("db2")), ("x", true, Some("db3")), ("db2", true, Some("db1"))]
        {
            let mut own = view("db1", state, "ready");
            (own.lease.owner, own.lease.cluster_answers) = (owner.into(), reaches);
            for peers in [vec![], lost(), db2(|view| (view.state, view.lease.cluster_answers) = (other, reaches))] {
                let plan = switchover(&own, candidate, &peers, None);
                for check in refusing(&plan) {
                    assert!(!check.next.is_empty(), "{check:?}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 500, "{refused}");
}

/// An obstacle to an automatic takeover is none to a switchover. It is a note of the plan.
#[test]
fn what_is_worth_knowing_before_a_switchover_is_a_note() {
    let mut own = primary();
    own.database = "silent".into();
    own.lease.cluster_answers = false;
    own.paused = true;
    own.added.scheduled = Some(crate::schedule::Scheduled { at_unix_ms: 5, to: None });
    let mut peers = db2(|view| view.obstacle = "paused: resume".into());
    peers.push(("db3".into(), Err("no route".into())));
    let plan = switchover(&own, Some("db2"), &peers, None);
    assert_eq!(plan.may_go(false, ""), Ok(()));
    for note in [
        "PostgreSQL of db1 is silent",
        "no gateway to which it could give",
        "on command it does",
        "agent of db3",
        "is scheduled",
    ] {
        assert!(finds(&plan, Finding::Note, note), "{note}: {:?}", plan.checks);
    }
    let soon = switchover(&own, Some("db2"), &peers, Some(When { at_unix_ms: 61_000, now_unix_ms: 1000 }));
    assert_eq!(soon.may_go(false, ""), Ok(()));
    assert!(finds(&soon, Finding::Good, "60 s ahead") && finds(&soon, Finding::Note, "takes its place"));
    assert!(finds(&soon, Finding::Note, "dropped") && soon.steps[0].contains("waits for 60 s"), "{soon:?}");
    let follows = switchover(&view("db1", StateName::Following, "standby"), None, &db2(|_| ()), None);
    assert_eq!(follows.may_go(false, ""), Ok(()));
    assert!(follows.steps.last().is_some_and(|step| step.contains("/replica")), "{:?}", follows.steps);
}

#[test]
fn hosts_that_zfs_cannot_tell_apart_are_named() {
    let own = |id: &str| primary_with(|view| view.pool.host_id = id.into());
    let with = |own: &View, id: &str| switchover(own, None, &db2(|view| view.pool.host_id = id.into()), None);
    assert!(finds(&with(&own("00000007"), "00000007"), Finding::Note, "db1 and db2 have the same host id"));
    assert!(finds(&with(&own("00000007"), "00000000"), Finding::Note, "db2: the host id of ZFS is not set"));
    for (a, b) in [("00000007", "00000008"), ("", "")] {
        assert!(!with(&own(a), b).checks.iter().any(|check| check.found.contains("host id")));
    }
    let mut taker = standby();
    taker.pool.host_id = "00000007".into();
    let same = [("db1".to_string(), Ok(own("00000007")))];
    let plan = failover(&taker, &same);
    assert!(finds(&plan, Finding::Note, "same host id"), "{:?}", plan.checks);
    // If the target would import nothing under this id: before the primary has released anything.
    let mut careful = taker;
    careful.pool.multihost = true;
    let refused = failover(&careful, &same).may_go(true, "it smokes").unwrap_err();
    assert!(refused.contains("same host id") && refused.contains("zgenhostid"), "{refused}");
    let to = |id: &str| {
        let peers = db2(|view| (view.pool.host_id, view.pool.multihost) = (id.into(), true));
        switchover(&own("00000007"), None, &peers, None).may_go(false, "")
    };
    assert!(to("00000007").unwrap_err().contains("same host id"));
    assert_eq!(to("00000008"), Ok(()));
    // A line of [peers] that leads back to this host is not another host.
    let myself = [("db1".to_string(), Ok(View { name: "db2".into(), ..own("00000007") }))];
    assert!(finds(&failover(&careful, &myself), Finding::Note, "expected db1"));
    assert_eq!(failover(&careful, &myself).may_go(false, ""), Ok(()));
}

#[test]
fn a_taker_that_could_not_import_the_pool_is_refused_before_anything_is_let_go() {
    let why = "the host id of this host is not set: `zgenhostid`";
    let unable = |view: &mut View| view.pool.unable = why.into();
    let plan = switchover(&primary(), None, &db2(unable), None);
    let refused = plan.may_go(false, "").unwrap_err();
    assert!(refused.contains("db2 cannot take over") && refused.contains("zgenhostid"), "{refused}");
    let mut own = standby();
    unable(&mut own);
    let refused = failover(&own, &lost()).may_go(true, "all burns").unwrap_err();
    assert!(refused.contains("db2 cannot take over"), "{refused}");
}

/// The steps of a service are its own, and a host that would run something else on the set is no target.
#[test]
fn a_service_moves_only_to_a_host_that_is_set_up_for_it() {
    let service = |mut view: View| {
        view.service = "nfs".into();
        view
    };
    let own = service(view("db1", StateName::Primary, "ready"));
    let plan = switchover(&own, None, &[("db2".to_string(), Ok(service(standby())))], None);
    assert_eq!(plan.may_go(false, ""), Ok(()));
    let steps = plan.steps.join("; ");
    assert!(
        steps.contains("db1: service nfs is stopped") && steps.contains("wait until its check succeeds"),
        "{steps}"
    );
    assert!(!steps.contains("PostgreSQL") && !steps.contains("checkpoint") && !steps.contains("commit"), "{steps}");
    let why = switchover(&own, None, &[("db2".to_string(), Ok(standby()))], None).may_go(false, "").unwrap_err();
    assert!(
        why.contains("db2 is set up for PostgreSQL, and db1 for service nfs") && why.contains("same section"),
        "{why}"
    );
    // A failover from a host that works ends it as a crash does.
    let peers = vec![("db1".to_string(), Ok(own))];
    let plan = failover(&service(standby()), &peers);
    assert!(plan.may_go(false, "").unwrap_err().contains("what it has not flushed is lost"));
    assert!(
        plan.steps.iter().any(|step| step == "start service nfs, which recovers as after a crash"),
        "{:?}",
        plan.steps
    );
}
