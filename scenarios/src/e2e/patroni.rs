//! Programs that were made for Patroni, unchanged, in front of two PostgreSQL hosts.
//!
//! 1. `check_patroni` (PyPI) finds a cluster with a leader and a standby, and on each host what it is.
//! 2. HAProxy asks as files for Patroni have it: `OPTIONS /`, without a path in the settings.
//! 3. A pause and a scheduled switchover are seen, on any host.
//! 4. The primary's host is killed: the same checks lead to the other host. The lost one is missed. It comes back.
//! 5. Identifier of the database system, timeline and settings are the same after it, and no WAL is lost.

use super::Lab;
use super::agent::{AGENT, Pair, TAKEOVER, pair};
use crate::cluster::free_ports;
use crate::cmd::cmd;
use crate::hosts::{HTTP, Host, Proxy, Way, waiting};
use crate::process::wait_until;
use crate::say::note;
use crate::setup::CHECK_PATRONI;
use anyhow::{Context, Result};
use serde_json::Value;
use std::net::SocketAddr;
use std::time::Duration;

pub(super) const NEEDS: &[&str] =
    &[CHECK_PATRONI, "nbdfuse", "unshare", "/usr/lib/postgresql/15/bin/postgres", "/usr/sbin/haproxy"];

/// Until what changed is seen everywhere. An answer about the cluster may be a second old.
const SEEN: Duration = Duration::from_secs(30);

/// Time limit of one answer of an agent.
const ANSWER: Duration = Duration::from_secs(5);

/// The version of Patroni whose REST API the agents have.
const API: &str = "4.1.0";

/// Exit codes of checks.
const OK: i32 = 0;
const CRITICAL: i32 = 2;

/// Until a client is at the primary: the interval of the checks of files for Patroni is longer than ours.
const PROXY: Duration = Duration::from_secs(30);

pub(super) fn run(lab: &Lab) -> Result<()> {
    let Pair { cluster, mut db1, mut db2 } = pair(lab, Way::Ext4, AGENT)?;
    let mut proxy = haproxy(lab, &db1, &db2)?;
    let state = lab.dir.join("check_patroni.json").display().to_string();
    let config = ["cluster_config_has_changed", "--state-file", &state];
    // The first one has nothing to compare with, and keeps what it finds.
    check(&[&db1], &[&config[..], &["--save"]].concat())?;

    well(&db1, &db2)?;
    proxy.reaches(&db1, PROXY)?;
    let before = told(&db1)?;
    orders(&db1, &db2)?;

    let (killed, _) = db1.kill()?;
    note(format!("host db1 killed: db2 is primary after {} ms", db2.becomes_primary(killed, TAKEOVER)?.as_millis()));
    proxy.reaches(&db2, PROXY)?;
    missed(&db1, &db2)?;
    let after = told(&db2)?;
    same(&before, &after)?;
    // Both addresses are given, and the first one does not answer.
    expect(&[&db1, &db2], &config, OK, "has not changed")?;

    db1.boot()?;
    db1.stands_by(TAKEOVER)?;
    well(&db2, &db1)?;
    expect(&[&db1], &config, OK, "has not changed")?;
    db1.kill()?;
    db2.kill()?;
    cluster.stop()?;
    Ok(())
}

/// What `check_patroni` says: its exit code and its output.
fn check(hosts: &[&Host], args: &[&str]) -> Result<(i32, String)> {
    // A proxy of this machine leads to none of its own addresses.
    let mut command = cmd(CHECK_PATRONI).env("NO_PROXY", "*").args(["--timeout", "20"]);
    for host in hosts {
        command = command.arg("--endpoints").arg(format!("http://{}:{HTTP}", host.address));
    }
    let output = command.args(args).into_command().output().context(CHECK_PATRONI)?;
    let said = String::from_utf8_lossy(&output.stdout).trim().to_owned();
    let code = output.status.code().with_context(|| format!("check_patroni {}: {}", args.join(" "), output.status))?;
    Ok((code, said))
}

/// The check ends with this code and says these words, soon.
fn expect(hosts: &[&Host], args: &[&str], code: i32, words: &str) -> Result<()> {
    let mut last = (-1, String::new());
    let as_expected = wait_until(SEEN, || {
        last = check(hosts, args).unwrap_or_else(|error| (-1, format!("{error:#}")));
        last.0 == code && last.1.contains(words)
    });
    let (asked, names) = (args.join(" "), hosts.iter().map(|host| host.name).collect::<Vec<_>>().join(", "));
    let (found, said) = last;
    anyhow::ensure!(
        as_expected,
        "check_patroni {asked} at {names}: found exit code {found}, {said}; expected {code} and \"{words}\""
    );
    note(format!("check_patroni {asked} at {names}: {said}"));
    Ok(())
}

/// A primary and a standby, and all is well.
fn well(primary: &Host, standby: &Host) -> Result<()> {
    for host in [primary, standby] {
        let count = ["cluster_node_count", "--critical", "2:", "--healthy-critical", "1:"];
        expect(&[host], &count, OK, "role_leader=1 role_replica=1 state_running=1")?;
        expect(&[host], &["cluster_has_leader"], OK, "The cluster has a running leader")?;
        // Nobody reads from a standby that has no PostgreSQL.
        expect(&[host], &["cluster_has_replica", "--critical", "1:"], CRITICAL, "unhealthy_replica=1")?;
        expect(&[host], &["cluster_is_in_maintenance"], OK, "is_in_maintenance=0")?;
        expect(&[host], &["cluster_has_scheduled_action"], OK, "has_scheduled_actions=0")?;
        expect(&[host], &["node_is_alive"], OK, "This node is alive")?;
        expect(&[host], &["node_is_pending_restart"], OK, "is_pending_restart=0")?;
        expect(&[host], &["node_patroni_version", "--patroni-version", API], OK, API)?;
        expect(&[host], &["node_is_replica"], CRITICAL, "is_replica=0")?;
    }
    expect(&[primary], &["node_is_primary"], OK, "This node is the primary with the leader lock")?;
    expect(&[primary], &["node_is_leader"], OK, "This node is a leader node")?;
    expect(&[standby], &["node_is_primary"], CRITICAL, "is_primary=0")?;
    expect(&[standby], &["node_is_leader"], CRITICAL, "is_leader=0")?;
    expect(&[primary], &["node_tl_has_changed", "--timeline", "1"], OK, "The timeline is still 1")
}

/// A pause of one host, and a scheduled switchover, are seen on both.
fn orders(primary: &Host, standby: &Host) -> Result<()> {
    standby.holdfast(&["agent", "pause"])?;
    for host in [primary, standby] {
        expect(&[host], &["cluster_is_in_maintenance"], CRITICAL, "is_in_maintenance=1")?;
    }
    standby.holdfast(&["agent", "resume"])?;
    standby.stands_by(TAKEOVER)?;
    primary.holdfast(&["agent", "switchover", "--to", standby.name, "--scheduled", "60m", "--yes"])?;
    for host in [primary, standby] {
        expect(&[host], &["cluster_is_in_maintenance"], OK, "is_in_maintenance=0")?;
        expect(&[host], &["cluster_has_scheduled_action"], CRITICAL, "scheduled_switchover=1")?;
    }
    primary.holdfast(&["agent", "switchover", "--cancel"])?;
    expect(&[standby], &["cluster_has_scheduled_action"], OK, "scheduled_switchover=0")
}

/// A lost host is a member no more, and its name is told.
fn missed(lost: &Host, left: &Host) -> Result<()> {
    expect(&[lost, left], &["cluster_node_count", "--critical", "2:"], CRITICAL, "members is 1")?;
    expect(&[lost, left], &["cluster_has_leader"], OK, "The cluster has a running leader")?;
    expect(&[lost], &["node_is_primary"], 3, "Connection failed")?;
    let cluster = get(left, "/cluster")?;
    anyhow::ensure!(cluster["unanswered"] == serde_json::json!([lost.name]), "/cluster: found {cluster}");
    Ok(())
}

/// A document of an agent.
fn get(host: &Host, path: &str) -> Result<Value> {
    let (code, body) = host.http("GET", path, ANSWER)?;
    anyhow::ensure!(code == 200, "GET {path} at {}: found {code}, {body}", host.name);
    serde_json::from_str(&body).with_context(|| format!("GET {path} at {}: {body}", host.name))
}

/// The document of a primary, and its metrics for dashboards. What it says of PostgreSQL is what PostgreSQL says.
fn told(primary: &Host) -> Result<Value> {
    let document = get(primary, "/patroni")?;
    let sql = "select system_identifier::text, current_setting('server_version_num') from pg_control_system()";
    let rows = primary.pg.client()?.query(sql)?;
    let row: Vec<String> = rows.into_iter().flatten().flatten().collect();
    let shown = [&document["database_system_identifier"], &document["server_version"]];
    let shown = shown.map(|value| value.as_str().map_or_else(|| value.to_string(), String::from));
    anyhow::ensure!(row == shown, "/patroni of {}: found {document}, expected {row:?}", primary.name);
    anyhow::ensure!(
        document["state"] == "running" && document["role"] == "primary" && document["xlog"]["location"].is_u64(),
        "/patroni of {}: found {document}",
        primary.name
    );
    let (_, metrics) = primary.http("GET", "/metrics", ANSWER)?;
    let labels = format!("{{scope=\"{}\",name=\"{}\"}}", crate::cluster::SET, primary.name);
    for (name, value) in [("primary", "1"), ("replica", "0"), ("postgres_running", "1"), ("cluster_unlocked", "0")] {
        let line = format!("patroni_{name}{labels} {value}\n");
        anyhow::ensure!(metrics.contains(&line), "/metrics of {}: found no {line}", primary.name);
    }
    note(format!("/patroni of {}: {document}", primary.name));
    Ok(document)
}

/// A takeover is no promotion: it is the same database, further on.
fn same(before: &Value, after: &Value) -> Result<()> {
    for field in ["database_system_identifier", "timeline", "server_version"] {
        anyhow::ensure!(before[field] == after[field], "{field}: found {}, expected {}", after[field], before[field]);
    }
    let at = |document: &Value| document["xlog"]["location"].as_u64().unwrap_or(0);
    anyhow::ensure!(at(after) >= at(before), "xlog: found {}, expected {} or more", at(after), at(before));
    anyhow::ensure!(before["postmaster_start_time"] != after["postmaster_start_time"], "found the same start");
    Ok(())
}

/// HAProxy as files for Patroni have it: the check names no path, so that `OPTIONS /` is asked.
fn haproxy(lab: &Lab, db1: &Host, db2: &Host) -> Result<Proxy> {
    let at = SocketAddr::from(([127, 0, 0, 1], free_ports(2)?));
    let changes = [
        ("*:5000", at.to_string()),
        ("*:5002", waiting(at).to_string()),
        ("10.0.0.1", db1.address.clone()),
        ("10.0.0.2", db2.address.clone()),
        ("option httpchk OPTIONS /primary", "option httpchk".to_owned()),
    ];
    Proxy::with(&lab.dir, "deploy/haproxy/haproxy.cfg", at, &changes)
}
