//! The documents as they are kept in `crates/agent/golden/patroni.json`. `UPDATE_GOLDEN=1 cargo test -p holdfast-agent
//! documents` rewrites them; the difference is read like code.

use super::*;
use crate::machine::Role;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

fn server() -> ServerView {
    ServerView {
        postmaster_start_time: "2026-08-28 19:39:26.352526+00:00".into(),
        started_unix_s: 1_787_945_966.5,
        server_version: 160_004,
        timeline: 3,
        location: Some(67_395_656),
        system_identifier: "7268616322854375442".into(),
        ..ServerView::default()
    }
}

fn follower() -> ServerView {
    ServerView {
        in_recovery: true,
        streams: true,
        location: None,
        received_location: Some(67_395_656),
        replayed_location: Some(67_395_000),
        replayed_timestamp: Some("2026-08-28 19:40:00.000000+00:00".into()),
        ..server()
    }
}

fn view(name: &str, state: StateName, role: Role, database: &str) -> View {
    let mut view = View::for_test(name, state, role, database);
    (view.lease.owner, view.lease.epoch, view.version) = ("db1".into(), u64::from(name == "db1") * 7, "0.1.0".into());
    view
}

fn shown<'a>(view: &'a View, config: &'a AgentConfig, server: Option<ServerView>) -> Shown<'a> {
    let (now, unix_ms) = (view.at, 1_800_000_000_000);
    Shown { view, fresh: true, server, config, scheduled: None, now, unix_ms }
}

fn of(view: &View, server: Option<ServerView>) -> Value {
    document(&shown(view, &AgentConfig::default(), server))
}

fn told(name: &str, document: Option<Value>) -> HostReport {
    let (api_url, host) = place(&format!("10.0.0.{}:8008", &name[2..]), false);
    HostReport { name: name.into(), api_url, host, document }
}

/// Each host in each state that a client of Patroni tells apart, and clusters of them.
fn documents() -> BTreeMap<&'static str, Value> {
    let primary = of(&view("db1", StateName::Primary, Role::Primary, "ready"), Some(server()));
    let mut cold = view("db2", StateName::Standby, Role::Standby, "gone");
    // What was known of a server that has ended counts no more.
    let standby = of(&cold, Some(server()));
    (cold.paused, cold.settings.nofailover) = (true, true);
    let paused = of(&cold, None);
    let mut recovering = view("db1", StateName::Starting, Role::Standby, "busy");
    recovering.holds_until = Some(recovering.at.saturating_add(std::time::Duration::from_secs(1)));
    let recovering = of(&recovering, Some(server()));
    let following = of(&view("db1", StateName::Following, Role::Standby, "standby"), Some(follower()));
    let scheduled = {
        let (view, config) = (view("db1", StateName::Primary, Role::Primary, "ready"), AgentConfig::default());
        let scheduled = Some(Scheduled { at_unix_ms: 1_800_003_723_000, to: Some("db2".into()) });
        let pending = Some(ServerView { pending_restart: true, ..server() });
        document(&Shown { scheduled, ..shown(&view, &config, pending) })
    };
    let all = |first: &Value, second: &Value| {
        cluster("demo", "db1", &[told("db2", Some(second.clone())), told("db1", Some(first.clone()))])
    };
    BTreeMap::from([
        ("cluster", all(&primary, &standby)),
        ("cluster recovering", all(&recovering, &standby)),
        ("cluster following", all(&following, &standby)),
        ("cluster paused, with a switchover", all(&scheduled, &paused)),
        ("cluster without its owner", cluster("demo", "db1", &[told("db2", Some(standby.clone())), told("db1", None)])),
        ("cluster without a standby", cluster("demo", "db1", &[told("db2", None), told("db1", Some(primary.clone()))])),
        ("host, primary", primary),
        ("host, standby", standby),
        ("host, recovering", recovering),
        ("host, following", following),
        ("config", config(&AgentConfig::default(), false)),
    ])
}

fn file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/patroni.json")
}

#[test]
fn documents_are_as_they_are_kept() {
    let made = documents();
    if std::env::var_os("UPDATE_GOLDEN").is_some() {
        std::fs::write(file(), serde_json::to_string_pretty(&made).unwrap() + "\n").unwrap();
    }
    let kept = std::fs::read_to_string(file()).unwrap();
    let kept: BTreeMap<String, Value> = serde_json::from_str(&kept).unwrap();
    assert_eq!(kept.len(), made.len());
    for (name, document) in made {
        let made = serde_json::to_string_pretty(&document).unwrap();
        assert_eq!(kept[name], document, "{name}, UPDATE_GOLDEN=1 rewrites; made now:\n{made}");
    }
}

/// Of two that say so, the one under the later epoch: the other one has not noticed yet.
#[test]
fn a_cluster_has_one_leader() {
    let claim = |epoch: u64| Some(json!({ "state": "running", "holdfast": { "leader": true, "epoch": epoch } }));
    for (one, other) in [(8, 9), (9, 8)] {
        let document = cluster("demo", "db1", &[told("db1", claim(one)), told("db2", claim(other))]);
        let roles: Vec<_> = (0_usize..2).map(|at| document["members"][at]["role"].as_str().unwrap()).collect();
        let expected = if one > other { ["leader", "replica"] } else { ["replica", "leader"] };
        assert_eq!(roles, expected, "{one} {other}");
    }
    // An owner that answers and holds nothing is no leader.
    let document = cluster("demo", "db1", &[told("db1", Some(json!({ "holdfast": { "leader": false } })))]);
    assert_eq!(document["members"][0]["role"], "replica");
}

/// HEALTH-H1, HEALTH-H4 in the documents.
#[test]
fn a_document_claims_no_more_than_a_code() {
    let primary = view("db1", StateName::Primary, Role::Primary, "ready");
    let (config, end) = (AgentConfig::default(), primary.holds_until.unwrap());
    let late = document(&Shown { now: end, ..shown(&primary, &config, None) });
    assert_eq!((&late["role"], &late["holdfast"]["leader"]), (&json!("replica"), &json!(false)));
    let old = document(&Shown { fresh: false, ..shown(&primary, &config, None) });
    assert_eq!(old["state"], "unknown");
    let brief = brief(&primary, true, primary.at);
    assert_eq!(brief, json!({ "role": "primary", "state": "running" }));
    let mut free = view("db2", StateName::Standby, Role::Standby, "gone");
    free.lease.owner.clear();
    assert_eq!(of(&free, None)["cluster_unlocked"], true);
}

#[test]
fn states_of_postgresql_have_patronis_names() {
    for (state, database, expected) in [
        (StateName::Primary, "ready", "running"),
        (StateName::Demoting, "busy", "stopping"),
        (StateName::Fencing, "busy", "stopping"),
        (StateName::Starting, "busy", "starting"),
        (StateName::Starting, "gone", "starting"),
        (StateName::Importing, "gone", "stopped"),
        (StateName::Primary, "silent", "unknown"),
        (StateName::Primary, "elsewhere", "unknown"),
    ] {
        let view = View::for_test("db1", state, Role::Standby, database);
        assert_eq!(super::state(&view, true), expected, "{state} {database}");
    }
}

#[test]
fn times_are_written_as_patroni_does() {
    for (unix_ms, expected) in [
        (0, "1970-01-01T00:00:00+00:00"),
        (951_782_400_000, "2000-02-29T00:00:00+00:00"),
        (1_078_012_800_000, "2004-02-29T00:00:00+00:00"),
        (1_767_225_599_999, "2025-12-31T23:59:59+00:00"),
        (1_772_323_200_000, "2026-03-01T00:00:00+00:00"),
        (4_107_542_400_000, "2100-03-01T00:00:00+00:00"),
        (u64::MAX, "9999-12-31T23:59:59+00:00"),
    ] {
        assert_eq!(rfc3339(unix_ms), expected);
    }
}

#[test]
fn metrics_have_patronis_names() {
    let (primary, config) = (view("db1", StateName::Primary, Role::Primary, "ready"), AgentConfig::default());
    let text = metrics(&shown(&primary, &config, Some(server())));
    for line in [
        "patroni_primary{scope=\"demo\",name=\"db1\"} 1",
        "patroni_replica{scope=\"demo\",name=\"db1\"} 0",
        "patroni_postgres_running{scope=\"demo\",name=\"db1\"} 1",
        "patroni_xlog_location{scope=\"demo\",name=\"db1\"} 67395656",
        "patroni_postgres_server_version{scope=\"demo\",name=\"db1\"} 160004",
        "patroni_postgres_timeline{scope=\"demo\",name=\"db1\"} 3",
        "patroni_postgres_state{scope=\"demo\",name=\"db1\"} 5",
        "patroni_version{scope=\"demo\",name=\"db1\"} 40100",
    ] {
        assert!(text.contains(&format!("{line}\n")), "{line}: {text}");
    }
    let standby = view("db2", StateName::Standby, Role::Standby, "gone");
    let text = metrics(&shown(&standby, &config, Some(server())));
    assert!(text.contains("patroni_xlog_location{scope=\"demo\",name=\"db2\"} 0\n"), "{text}");
    assert!(text.contains("patroni_postgres_state{scope=\"demo\",name=\"db2\"} 12\n"), "{text}");
}

#[test]
fn an_address_shows_where_a_host_is() {
    let both = |url: &str, host: &str| (url.to_owned(), host.to_owned());
    assert_eq!(place("10.0.0.1:8008", false), both("http://10.0.0.1:8008/patroni", "10.0.0.1"));
    assert_eq!(place("[fd00::1]:8008", true), both("https://[fd00::1]:8008/patroni", "fd00::1"));
}

/// A service has no timeline, no lag and none of PostgreSQL's roles. The codes of its health checks are the same.
#[test]
fn a_service_claims_nothing_of_a_postgresql() {
    let mut config = AgentConfig { service: Some(crate::config::ServiceConfig::default()), ..AgentConfig::default() };
    config.database.port = 1;
    let of = |name: &str, state, role, database: &str| {
        let mut view = view(name, state, role, database);
        view.service = "nfs".into();
        (document(&shown(&view, &config, None)), metrics(&shown(&view, &config, None)))
    };
    let (serves, metrics_of_it) = of("db1", StateName::Primary, Role::Primary, "ready");
    let (stands_by, _) = of("db2", StateName::Standby, Role::Standby, "gone");
    assert_eq!((&serves["role"], &stands_by["role"]), (&json!("service"), &json!("standby")));
    assert_eq!((&serves["state"], &serves["holdfast"]["service"]), (&json!("running"), &json!("nfs")));
    assert!(serves["holdfast"]["port"].is_null() && metrics_of_it.is_empty(), "{serves}");
    let cluster = cluster("files", "db1", &[told("db1", Some(serves)), told("db2", Some(stands_by))]);
    let members = &cluster["members"];
    assert_eq!((&members[0]["role"], &members[1]["role"]), (&json!("service"), &json!("standby")));
    for field in ["timeline", "port", "lag", "replay_lag"] {
        assert!(members[0][field].is_null() && members[1][field].is_null(), "{field}: {cluster}");
    }
    assert!(super::config(&config, false)["postgresql"].is_null());
}
