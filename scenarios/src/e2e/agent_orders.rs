//! Commands to agents, and their reactions to a PostgreSQL that ends: two hosts as in `agent-takeover`.
//!
//! 1. Every path of the health checks, by HEAD, GET and OPTIONS, on the primary and on the standby.
//! 2. PostgreSQL is killed under writers: it is restarted in place. The lease's epoch stays, and the other host does
//!    nothing.
//! 3. Each of its processes is stopped (SIGSTOP): it does not answer. It is killed and restarted in place after
//!    `database.health_timeout_s` of silence.
//! 4. Paused, and killed: it stays down for longer than a restart and a lease take. Resumed, it is started; the epoch
//!    stays.
//! 5. While a process has a file of the pool open, a switchover is refused: the refusal names the process and the file.
//!    PostgreSQL runs on and commits, and the other host does nothing. Once the process has ended, it could begin.
//! 6. A scheduled switchover begins on time, not earlier; another one is cancelled.
//! 7. A forced failover away from a healthy primary: a dry run reports what would be lost and does nothing. Without the
//!    confirmation it is refused; with it the old primary is fenced. Acknowledged commits are there (R1).
//!
//! `holdfast watch` runs all the time: it shows each change of the owner with its higher epoch, continues when the
//! gateway that it asks first is killed, shows that and its return, and exits with 0 on request.

mod watch;

use super::Lab;
use super::agent::{AGENT, Pair, TAKEOVER, WRITERS, pair, under_load, whole};
use crate::cluster::{Cluster, SET};
use crate::hosts::{HTTP, Host, OPENER, Way};
use crate::ledger::{Ledger, unix_ms};
use crate::process::{Signal, is_alive, signal, wait_until};
use crate::say::note;
use anyhow::{Context, Result};
use serde_json::Value;
use std::time::{Duration, Instant};
use watch::{Watch, held_by};

/// Timeout for one answer of an agent, long enough for a busy machine.
const ANSWER: Duration = Duration::from_secs(5);

/// Minimum time for which PostgreSQL must stay dead in a maintenance pause: longer than a lease, and twice the time of
/// a restart.
const LEFT_ALONE: Duration = Duration::from_secs(6);

/// Pause between two checks.
const LOOK: Duration = Duration::from_millis(50);

/// How far in the future a switchover is scheduled.
const AHEAD: &str = "10s";

pub(super) fn run(lab: &Lab) -> Result<()> {
    let Pair { mut cluster, mut db1, mut db2 } = pair(lab, Way::Ext4, AGENT)?;
    let asked = not_serving(&cluster)?;
    let mut watch = Watch::start(&cluster, asked, &lab.dir.join("watch.log"))?;
    watch.shows("db1 as the owner", |seen| held_by(seen, "db1"))?;
    health_checks(&db1, &db2)?;
    let mut ledger = Ledger::create(&db1.pg, &lab.dir.join("ledger"), WRITERS)?;
    let restart = killed(&cluster, &mut ledger, &db1, &db2)?;
    hung(&cluster, &ledger, &db1, &db2)?;
    paused(&cluster, &mut ledger, (&db1, &db2), LEFT_ALONE.max(restart * 2))?;
    watched_gateway(&mut cluster, asked, &mut watch)?;
    held_open(&cluster, &mut ledger, &db1, &db2)?;
    scheduled(&mut ledger, &db1, &db2)?;
    watch.shows("db2 as the owner", |seen| held_by(seen, "db2"))?;
    forced(&cluster, &mut ledger, &db1, &db2)?;
    watch.shows("db1 as the owner", |seen| held_by(seen, "db1"))?;
    watch.end(&["db1", "db2", "db1"])?;
    health_checks(&db1, &db2)?;
    db1.pg.amcheck()?;
    db1.kill()?;
    db2.kill()?;
    cluster.stop().map(drop)
}

/// A gateway that the set's users do not need.
fn not_serving(cluster: &Cluster) -> Result<usize> {
    let said = cluster.holdfast(&["lease", "show", SET])?;
    let serving = said["lease"]["gateway_name"].as_str().with_context(|| format!("no gateway: {said}"))?;
    (0..cluster.gateways.len()).find(|at| cluster.name(*at) != serving).context("found one gateway, expected several")
}

/// Kills the gateway that `watch` uses first, and starts it again.
fn watched_gateway(cluster: &mut Cluster, asked: usize, watch: &mut Watch) -> Result<()> {
    let name = cluster.name(asked);
    let state = |seen: &Value| seen["gateways"][name.as_str()].as_str().unwrap_or_default().to_owned();
    cluster.kill(asked)?;
    watch.shows(&format!("{name} unreachable"), |seen| state(seen) == "unreachable")?;
    cluster.restart(asked)?;
    watch.shows(&format!("{name} ready"), |seen| state(seen) == "ready")?;
    note(format!("holdfast watch went on through the death of {name}, which it asked first"));
    Ok(())
}

/// The health checks of docs/operating/agent.md: the HTTP status on a primary, and on a standby.
const PATHS: &[(&str, u16, u16)] = &[
    ("/", 200, 503),
    ("/primary", 200, 503),
    ("/leader", 200, 503),
    ("/read-write", 200, 503),
    ("/master", 200, 503),
    ("/replica", 503, 503),
    ("/replica?lag=16MB", 400, 400),
    ("/read-only", 200, 503),
    ("/sync", 503, 503),
    ("/read-only-sync", 200, 503),
    ("/standby-leader", 503, 503),
    ("/health", 200, 503),
    ("/readiness", 200, 200),
    ("/liveness", 200, 200),
    ("/status", 200, 200),
    ("/patroni", 200, 200),
    ("/cluster", 200, 200),
    ("/config", 200, 200),
    ("/history", 200, 200),
    ("/metrics", 200, 200),
    ("/no-such-path", 404, 404),
];

fn health_checks(primary: &Host, other: &Host) -> Result<()> {
    let mut count = 0;
    for &(path, at_primary, at_other) in PATHS {
        for (host, expected) in [(primary, at_primary), (other, at_other)] {
            for method in ["HEAD", "GET", "OPTIONS"] {
                let (code, body) = host.http(method, path, ANSWER)?;
                let asked = format!("{method} {path} at {}", host.name);
                anyhow::ensure!(code == expected, "{asked}: found {code}, expected {expected}");
                anyhow::ensure!(method != "HEAD" || body.is_empty(), "{asked}: found a body, {body:?}");
                anyhow::ensure!(method != "GET" || !body.is_empty(), "{asked}: found no body");
                count += 1;
            }
        }
    }
    // Requests that a load balancer never sends, and that only a command may send.
    for (method, path) in [("POST", "/primary"), ("DELETE", "/health"), ("GET", "/pause"), ("GET", "/failover")] {
        let (code, _) = primary.http(method, path, ANSWER)?;
        anyhow::ensure!(code == 405, "{method} {path}: found {code}, expected 405");
    }
    let (_, body) = primary.http("GET", "/primary", ANSWER)?;
    let shown: Value = serde_json::from_str(&body)?;
    anyhow::ensure!(shown["role"] == "primary" && shown["state"] == "running", "GET /primary: found {shown}");
    note(format!("{count} health checks answered as documented; {} is primary", primary.name));
    Ok(())
}

/// History lines with which a host gets or loses the lease.
const CHANGES: &[&str] = &["start", "failover", "switchover", "fenced", "cut-off", "demoted"];

/// The lease according to the gateways, and how often its owner has got or lost it.
#[derive(Debug)]
struct Held {
    epoch: u64,
    owner: String,
    changes: usize,
}

fn lease(cluster: &Cluster, host: &Host) -> Result<Held> {
    let said = cluster.holdfast(&["lease", "show", SET])?;
    let lease = &said["lease"];
    let owner = lease["owner"].as_str().with_context(|| format!("no owner: {said}"))?.to_owned();
    let changes = CHANGES.iter().map(|event| told(host, event).len()).sum();
    Ok(Held { epoch: lease["epoch"].as_u64().context("no epoch")?, owner, changes })
}

/// Checks that the owner is the same. Its epoch may be higher: on a busy machine another gateway may have become
/// leader, and attach continues there (R6).
fn same_lease(cluster: &Cluster, host: &Host, before: &Held) -> Result<()> {
    let now = lease(cluster, host)?;
    let same = now.owner == before.owner && now.changes == before.changes && now.epoch >= before.epoch;
    anyhow::ensure!(same, "the lease: found {now:?}, expected {before:?} still");
    if now.epoch > before.epoch {
        note(format!("the lease continues under e{} after e{}: another gateway leads", now.epoch, before.epoch));
    }
    Ok(())
}

/// Lines of a host's history of this kind.
fn told(host: &Host, event: &str) -> Vec<Value> {
    host.history().into_iter().filter(|line| line["event"] == event).collect()
}

/// Waits for one more line of this kind.
fn tells(host: &Host, event: &str, before: usize) -> Result<Value> {
    let mut lines = Vec::new();
    wait_until(TAKEOVER, || {
        lines = told(host, event);
        lines.len() > before
    });
    let line = lines.into_iter().nth(before);
    line.with_context(|| format!("{}: no {event} in the history after {TAKEOVER:?}: {}", host.name, host.said()))
}

/// Status of an agent.
fn view(host: &Host) -> Result<Value> {
    let (_, body) = host.http("GET", "/status", ANSWER)?;
    Ok(serde_json::from_str(&body)?)
}

/// Running processes of PostgreSQL on a host.
fn alive(host: &Host) -> usize {
    host.postgres().into_iter().filter(|pid| is_alive(*pid)).count()
}

/// Kills the postmaster with SIGKILL; its children exit by themselves, or the agent kills them.
fn kill_postgres(host: &Host) -> Result<Instant> {
    let postmaster = host.postmaster()?;
    let moment = Instant::now();
    signal(postmaster, Signal::KILL);
    Ok(moment)
}

/// How long the restart took.
fn killed(cluster: &Cluster, ledger: &mut Ledger, db1: &Host, db2: &Host) -> Result<Duration> {
    let (before, restarts, others) = (lease(cluster, db1)?, told(db1, "restart").len(), db2.history().len());
    let old = db1.postmaster()?;
    let mut took = Duration::ZERO;
    under_load(ledger, &db1.pg.clone(), || {
        let moment = kill_postgres(db1)?;
        let line = tells(db1, "restart", restarts)?;
        took = db1.becomes_primary(moment, TAKEOVER)?;
        note(format!("PostgreSQL killed: primary again after {} ms: {}", took.as_millis(), line["reason"]));
        Ok(())
    })?;
    anyhow::ensure!(db1.postmaster()? != old, "the postmaster that was killed is there");
    same_lease(cluster, db1, &before)?;
    anyhow::ensure!(db2.history().len() == others, "db2 did something: {:?}", db2.history());
    whole(ledger, db1)?;
    Ok(took)
}

/// PostgreSQL hangs while its device works. Without writers, which would hang too.
fn hung(cluster: &Cluster, ledger: &Ledger, db1: &Host, db2: &Host) -> Result<()> {
    let (before, restarts, others) = (lease(cluster, db1)?, told(db1, "restart").len(), db2.history().len());
    let (old, moment) = (db1.postmaster()?, Instant::now());
    for pid in db1.postgres() {
        signal(pid, Signal::STOP);
    }
    let noticed = wait_until(TAKEOVER, || view(db1).is_ok_and(|shown| shown["state"] != "primary"));
    anyhow::ensure!(noticed, "PostgreSQL stands still, db1 is primary after {TAKEOVER:?}: {}", db1.said());
    let line = tells(db1, "restart", restarts)?;
    let reason = line["reason"].as_str().unwrap_or_default();
    anyhow::ensure!(
        reason.contains("gave no answer"),
        "history: found {line}, expected a PostgreSQL that gave no answer"
    );
    let took = db1.becomes_primary(moment, TAKEOVER)?;
    anyhow::ensure!(db1.postmaster()? != old, "the postmaster that stood still is there");
    same_lease(cluster, db1, &before)?;
    anyhow::ensure!(db2.history().len() == others, "db2 did something: {:?}", db2.history());
    note(format!("PostgreSQL stood still: primary again after {} ms: {reason}", took.as_millis()));
    whole(ledger, db1)
}

fn paused(cluster: &Cluster, ledger: &mut Ledger, (db1, db2): (&Host, &Host), left: Duration) -> Result<()> {
    let (before, restarts, others) = (lease(cluster, db1)?, told(db1, "restart").len(), db2.history().len());
    // One command for both.
    let said = db1.holdfast(&["agent", "pause", "--agent", &format!("{}:{HTTP}", db2.address)])?;
    let done = said.as_array().map(|said| said.iter().filter(|one| one["done"] == true).count());
    anyhow::ensure!(done == Some(2), "a pause of two agents: found {said}");
    for host in [db1, db2] {
        let shown = wait_until(ANSWER, || view(host).is_ok_and(|shown| shown["paused"] == true));
        anyhow::ensure!(shown, "{} is not paused", host.name);
    }
    under_load(ledger, &db1.pg.clone(), || {
        kill_postgres(db1)?;
        let gone = wait_until(TAKEOVER, || alive(db1) == 0 && db1.asks("/primary") == 503);
        anyhow::ensure!(gone, "paused: PostgreSQL still runs, or /primary still answers 200, after {TAKEOVER:?}");
        Ok(())
    })?;
    let dead = Instant::now();
    while dead.elapsed() < left {
        anyhow::ensure!(alive(db1) == 0, "paused: PostgreSQL was started after {:?}", dead.elapsed());
        anyhow::ensure!(alive(db2) == 0, "paused: db2 started PostgreSQL after {:?}", dead.elapsed());
        std::thread::sleep(LOOK);
    }
    let shown = view(db1)?;
    let as_told = shown["paused"] == true && shown["role"] == "standby" && shown["database"] == "gone";
    anyhow::ensure!(as_told, "paused, PostgreSQL killed: found {shown}");
    same_lease(cluster, db1, &before)?;
    anyhow::ensure!(told(db1, "restart").len() == restarts, "paused, and restarted: {:?}", db1.history());
    note(format!("paused: PostgreSQL was left alone for {left:?}, the lease is kept"));

    let moment = Instant::now();
    for host in [db2, db1] {
        host.holdfast(&["agent", "resume"])?;
    }
    note(format!("resumed: primary after {} ms", db1.becomes_primary(moment, TAKEOVER)?.as_millis()));
    same_lease(cluster, db1, &before)?;
    let more: Vec<_> = db2.history().into_iter().skip(others).map(|line| line["event"].to_string()).collect();
    anyhow::ensure!(more == ["\"paused\"", "\"resumed\""], "db2: found {more:?}, expected the pause and its end");
    whole(ledger, db1)
}

/// Message and findings of a dry run of a switchover from `host` to db2.
fn dry_run(host: &Host) -> Result<(String, String)> {
    let shown = host.holdfast(&["agent", "switchover", "--to", "db2", "--dry-run"])?;
    Ok((shown["message"].as_str().unwrap_or_default().to_owned(), shown["plan"]["checks"].to_string()))
}

/// A process has a file of the pool open: nothing could be unmounted, so nothing is begun.
fn held_open(cluster: &Cluster, ledger: &mut Ledger, db1: &Host, db2: &Host) -> Result<()> {
    let (before, others, old) = (lease(cluster, db1)?, db2.history().len(), db1.postmaster()?);
    let file = db1.mount().join("data/PG_VERSION");
    let opener = db1.keep_open(&file)?;
    let names = |said: &str| said.contains(&format!("{OPENER} (pid ")) && said.contains(&file.display().to_string());
    let mut refused = String::new();
    under_load(ledger, &db1.pg.clone(), || {
        let (message, findings) = dry_run(db1)?;
        let told = message.starts_with("would be refused") && names(&findings);
        anyhow::ensure!(told, "a dry run, {} open: found {message}: {findings}", file.display());
        refused = db1.refused(&["agent", "switchover", "--to", "db2", "--yes"])?;
        anyhow::ensure!(names(&refused), "expected {OPENER} and {}, found: {refused}", file.display());
        anyhow::ensure!(db1.is_primary(), "db1 is not primary after a refused switchover: {}", db1.said());
        Ok(())
    })?;
    anyhow::ensure!(db1.postmaster()? == old, "a switchover was refused, and PostgreSQL was restarted");
    same_lease(cluster, db1, &before)?;
    anyhow::ensure!(db2.history().len() == others, "db2 did something: {:?}", db2.history());
    opener.end()?;
    let mut last = Ok((String::new(), String::new()));
    let may = wait_until(ANSWER, || {
        last = dry_run(db1);
        last.as_ref().is_ok_and(|(message, _)| message.starts_with("would move"))
    });
    anyhow::ensure!(may, "nobody has the pool open any more; a dry run: {last:?}");
    note(format!("a file of the pool was open: {}", refused.lines().next().unwrap_or_default()));
    whole(ledger, db1)
}

fn scheduled(ledger: &mut Ledger, db1: &Host, db2: &Host) -> Result<()> {
    // A scheduled switchover that is cancelled.
    db1.holdfast(&["agent", "switchover", "--to", "db2", "--scheduled", "60m", "--yes"])?;
    anyhow::ensure!(!view(db1)?["scheduled"].is_null(), "a switchover in an hour is not shown");
    db2.holdfast(&["agent", "switchover", "--cancel"])?;
    anyhow::ensure!(view(db1)?["scheduled"].is_null(), "a switchover that was cancelled is shown");

    let (mut due, mut lines) = (0, 0);
    under_load(ledger, &db1.pg.clone(), || {
        let kept = db2.holdfast(&["agent", "switchover", "--to", "db2", "--scheduled", AHEAD, "--yes"])?;
        lines = told(db1, "scheduled").len();
        due = kept["scheduled_at_unix_ms"].as_u64().with_context(|| format!("no moment: {kept}"))?;
        anyhow::ensure!(due > unix_ms(), "{AHEAD} ahead is over already");
        let shown = view(db1)?;
        anyhow::ensure!(shown["scheduled"]["at_unix_ms"] == due, "found {}, expected {due}", shown["scheduled"]);
        db2.becomes_primary(Instant::now(), TAKEOVER)?;
        Ok(())
    })?;
    let begun = tells(db1, "scheduled", lines)?;
    // On a busy machine another host may not have heard a gateway just then; it is tried again.
    let in_time = begun["reason"].as_str().is_some_and(|reason| reason.starts_with("begun in time"));
    anyhow::ensure!(in_time, "history: found {begun}");
    let at = begun["at_unix_ms"].as_u64().context("no moment")?;
    anyhow::ensure!(at >= due, "begun {} ms before it was due", due - at);
    let line = told(db2, "switchover").pop().context("db2: no switchover in the history")?;
    let arrived = line["at_unix_ms"].as_u64().context("no moment")?;
    note(format!(
        "scheduled {AHEAD} ahead: begun {} ms after it was due, db2 is primary at {} ms",
        at - due,
        arrived - due
    ));
    // It waits for some seconds before it takes over; a command works before that.
    let let_go = wait_until(TAKEOVER, || view(db1).is_ok_and(|shown| shown["state"] == "standby"));
    anyhow::ensure!(let_go, "db1 is not a standby after {TAKEOVER:?}: {}", db1.said());
    whole(ledger, db2)
}

fn forced(cluster: &Cluster, ledger: &mut Ledger, db1: &Host, db2: &Host) -> Result<()> {
    let before = lease(cluster, db2)?;
    anyhow::ensure!(before.owner == "db2", "the lease: found {before:?}, expected db2's");
    let shown = db2.holdfast(&["agent", "failover", "--candidate", "db1", "--dry-run"])?;
    let findings = shown["plan"]["checks"].to_string();
    let message = shown["message"].as_str().unwrap_or_default();
    let told_so = message.starts_with("would be refused") && findings.contains("loses-data");
    anyhow::ensure!(told_so, "a dry run away from a primary that is well: {shown}");
    let refused = db2.refused(&["agent", "failover", "--candidate", "db1", "--yes"])?;
    anyhow::ensure!(refused.contains("switchover --to db1"), "the refusal names no way out: {refused}");
    same_lease(cluster, db2, &before)?;
    anyhow::ensure!(db2.is_primary() && !db1.is_primary(), "a dry run and a refusal have changed something");
    note("failover --dry-run and a refusal: nothing has changed");

    let fenced = told(db2, "fenced").len();
    under_load(ledger, &db2.pg.clone(), || {
        let words = ["--allow-data-loss", "--reason", "drill", "--yes"];
        let args: Vec<&str> = ["agent", "failover", "--candidate", "db1"].into_iter().chain(words).collect();
        let moved = db2.holdfast(&args)?;
        anyhow::ensure!(moved["primary"] == "db1", "a forced failover: {moved}");
        note(format!("forced: db1 is primary after {} ms", moved["took_ms"]));
        Ok(())
    })?;
    let now = lease(cluster, db1)?;
    let moved = now.owner == "db1" && now.epoch > before.epoch;
    anyhow::ensure!(moved, "the lease: found {now:?}, expected db1's above e{}", before.epoch);
    let line = tells(db2, "fenced", fenced)?;
    note(format!("db2 was fenced: {}", line["reason"]));
    let line = told(db1, "failover").pop().context("db1: no failover in the history")?;
    let reason = &line["reason"];
    anyhow::ensure!(reason == "drill (data loss allowed)", "history: found {reason}");
    db2.stands_by(TAKEOVER)?;
    whole(ledger, db1)
}
