//! Choice of the host that takes over: db1 with priority 100 and `nofailover`, db2 with priority 100, db3 with priority
//! 20. Each takes over automatically at most once an hour.
//!
//! 1. db1 is alone, and the lease is free: it takes it only on command.
//! 2. Host db1 is killed under writers: db2 takes over, db3 leaves the lease to it.
//! 3. db1 is back, and not ready. A switchover names db3: with two peers it has to name one.
//! 4. PostgreSQL of db3 is killed, and not restarted in place: db3 releases the lease. db1 (`nofailover`) and db2 (once
//!    within the hour) do not take it, and neither does db3 until its flapping delay is over; then it takes it again.
//! 5. db2 is set to manual mode, and host db3 is killed: db2 sees the lease expire and takes it only on command.
//!
//! After each step every acknowledged commit is there (R1).

use super::Lab;
use super::agent::{SETTINGS, TAKEOVER, WRITERS, under_load, whole};
use crate::cluster::{Cluster, SET, VOLUME};
use crate::hosts::{First, Host, Plan, Way, fill};
use crate::ledger::Ledger;
use crate::process::{Signal, signal, wait_until};
use crate::say::note;
use crate::setup;
use anyhow::{Context, Result};
use serde_json::Value;
use std::time::{Duration, Instant};

/// The hosts, and the lines above the sections in the settings of each.
const HOSTS: [(&str, &str, &str); 3] =
    [("db1", "127.0.0.2", "nofailover = true\n"), ("db2", "127.0.0.3", ""), ("db3", "127.0.0.4", "priority = 20\n")];

/// db3 leaves a free lease to others for 4 s, and for longer after it gave the lease away because of its own fault.
const AGENT: &str = "[watchdog]\ntimeout_ms = 3000\n\
                     [takeover]\npriority_step_ms = 50\nflap_delay_s = 8\nper_hour_max = 1\nswitchover_hold_s = 1\n";
const FLAP_DELAY_MS: u64 = 8000;

/// If PostgreSQL exits, this counts as a fault of the host at once.
const DATABASE: &str = "restarts_max = 0\n";

/// Settings of db2 at the end.
const MANUAL: &str = "mode = \"manual\"\n";

/// Timeout for one answer of an agent, long enough for a busy machine.
const ANSWER: Duration = Duration::from_secs(5);

/// History lines with which a host becomes primary.
const TAKEN: &[&str] = &["start", "failover", "switchover", "restart", "promoted", "adopted"];

pub(super) fn run(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    let cluster = lab.cluster("1GiB")?;
    let [mut db1, mut db2, mut db3] = hosts(lab, &cluster)?;
    by_word(&mut db1)?;
    for host in [&mut db2, &mut db3] {
        host.boot()?;
        host.stands_by(TAKEOVER)?;
    }
    let mut ledger = Ledger::create(&db1.pg, &lab.dir.join("ledger"), WRITERS)?;
    by_priority(&mut ledger, &mut db1, &db2, &db3)?;
    to_the_third(&mut ledger, &mut db1, &db2, &db3)?;
    given_away(&mut ledger, [&db1, &db2, &db3])?;
    db2.kill()?;
    let mut db2 = host(lab, &cluster, 1, MANUAL)?;
    by_hand(&mut ledger, &db1, &mut db2, &mut db3)?;
    db2.pg.amcheck()?;
    for host in [&mut db1, &mut db2] {
        host.kill()?;
    }
    cluster.stop().map(drop)
}

/// Makes a host with these lines above the sections of its settings; does not start it.
fn host(lab: &Lab, cluster: &Cluster, at: usize, agent: &str) -> Result<Host> {
    let (name, address, _) = HOSTS[at];
    let others = HOSTS.into_iter().filter(|(other, _, _)| *other != name);
    Host::new(Plan {
        peers: others.map(|(other, address, _)| (other, address.into())).collect(),
        agent,
        database: DATABASE,
        settings: AGENT,
        ..Plan::plain((name, address), SET, cluster.apis(), lab.dir.join(name), &lab.bin)
    })
}

/// Makes the hosts for PostgreSQL on a set without an owner; does not start them.
fn hosts(lab: &Lab, cluster: &Cluster) -> Result<[Host; 3]> {
    let as_told = |at: usize| host(lab, cluster, at, HOSTS[at].2);
    let hosts = [as_told(0)?, as_told(1)?, as_told(2)?];
    fill(&First {
        bin: &lab.bin,
        set: SET,
        volume: VOLUME,
        gateways: cluster.apis(),
        dir: lab.dir.join("first"),
        mount: hosts[0].mount(),
        way: Way::Ext4,
        size: None,
        pg: &hosts[0].pg,
        settings: SETTINGS,
        network: None,
        env: &[],
    })?;
    Ok(hosts)
}

/// Status of an agent.
fn view(host: &Host) -> Result<Value> {
    let (_, body) = host.http("GET", "/status", ANSWER)?;
    Ok(serde_json::from_str(&body)?)
}

/// Waits until a host is standby with this text in this field of its status.
fn stands_by_with(host: &Host, field: &str, words: &str) -> Result<()> {
    let mut found = Value::Null;
    let so = wait_until(TAKEOVER, || {
        found = view(host).unwrap_or_default();
        found["state"] == "standby" && found[field].as_str().is_some_and(|said| said.contains(words))
    });
    anyhow::ensure!(so, "{}: found {found}, expected a standby with {words:?} as its {field}", host.name);
    Ok(())
}

/// Waits until a host is standby and does not take over for this reason.
fn is_kept_by(host: &Host, words: &str) -> Result<()> {
    stands_by_with(host, "obstacle", words)?;
    let ready = host.asks("/readiness");
    anyhow::ensure!(ready != 200, "{}: ready, though: {words}", host.name);
    Ok(())
}

/// How a host became primary, for each time.
fn taken(host: &Host) -> Vec<String> {
    let history = host.history();
    let events = history.iter().filter_map(|line| line["event"].as_str());
    events.filter(|event| TAKEN.contains(event)).map(str::to_string).collect()
}

fn by_word(db1: &mut Host) -> Result<()> {
    db1.boot()?;
    is_kept_by(db1, "nofailover is set")?;
    anyhow::ensure!(taken(db1).is_empty(), "nofailover: found {:?}, expected nothing", db1.history());
    let words = ["agent", "failover", "--candidate", "db1", "--reason", "the first one", "--yes"];
    let moved = db1.holdfast(&words)?;
    anyhow::ensure!(moved["primary"] == "db1", "a takeover by a person's word: {moved}");
    note(format!("nofailover: db1 took nothing by itself, and took over by word after {} ms", moved["took_ms"]));
    Ok(())
}

fn by_priority(ledger: &mut Ledger, db1: &mut Host, db2: &Host, db3: &Host) -> Result<()> {
    let mut killed = Instant::now();
    under_load(ledger, &db1.pg.clone(), || {
        (killed, _) = db1.kill()?;
        Ok(())
    })?;
    let took = db2.becomes_primary(killed, TAKEOVER)?;
    anyhow::ensure!(db3.history().is_empty(), "db3 of priority 20 did something: {:?}", db3.history());
    anyhow::ensure!(taken(db2) == ["failover"], "db2: found {:?}, expected a failover", db2.history());
    note(format!(
        "host db1 killed: db2 of priority 100 is primary after {} ms, db3 of 20 did nothing",
        took.as_millis()
    ));
    whole(ledger, db2)
}

fn to_the_third(ledger: &mut Ledger, db1: &mut Host, db2: &Host, db3: &Host) -> Result<()> {
    db1.boot()?;
    is_kept_by(db1, "nofailover is set")?;
    let refused = db2.refused(&["agent", "switchover", "--yes"])?;
    anyhow::ensure!(
        refused.contains("name one with --to"),
        "the refusal of a switchover without a target names no remedy: {refused}"
    );
    under_load(ledger, &db2.pg.clone(), || {
        let moved = db2.holdfast(&["agent", "switchover", "--to", "db3", "--yes"])?;
        anyhow::ensure!(moved["primary"] == "db3", "a switchover to db3: {moved}");
        note(format!("switchover: db3 is primary after {} ms", moved["took_ms"]));
        Ok(())
    })?;
    is_kept_by(db2, "1 takeovers within an hour, at most 1")?;
    whole(ledger, db3)
}

/// Time of the last line of one of these kinds in a host's history.
fn told_at(host: &Host, events: &[&str]) -> Result<u64> {
    let history = host.history();
    let is_one = |line: &&Value| line["event"].as_str().is_some_and(|event| events.contains(&event));
    let last = history.iter().rev().find(is_one);
    let at = last.and_then(|line| line["at_unix_ms"].as_u64());
    at.with_context(|| format!("{}: found {history:?}, expected one of {events:?}", host.name))
}

fn given_away(ledger: &mut Ledger, [db1, db2, db3]: [&Host; 3]) -> Result<()> {
    let before = taken(db3).len();
    let mut killed = Instant::now();
    under_load(ledger, &db3.pg.clone(), || {
        let postmaster = db3.postmaster()?;
        killed = Instant::now();
        signal(postmaster, Signal::KILL);
        let gave_way = wait_until(TAKEOVER, || told_at(db3, &["demoted"]).is_ok());
        anyhow::ensure!(gave_way, "PostgreSQL killed: the lease is not given away after {TAKEOVER:?}: {}", db3.said());
        Ok(())
    })?;
    for (host, words) in [(db1, "nofailover is set"), (db2, "1 takeovers within an hour, at most 1")] {
        is_kept_by(host, words)?;
    }
    let again = wait_until(TAKEOVER, || taken(db3).len() > before);
    anyhow::ensure!(again, "no host has taken the lease after {TAKEOVER:?}: {}", db3.said());
    let took = db3.becomes_primary(killed, TAKEOVER)?;
    let waited = told_at(db3, TAKEN)?.saturating_sub(told_at(db3, &["demoted"])?);
    anyhow::ensure!(
        waited >= FLAP_DELAY_MS,
        "db3 took the lease again {waited} ms after it gave it away, expected {FLAP_DELAY_MS}"
    );
    let (one, two, three) = (taken(db1), taken(db2), taken(db3));
    let as_told = one == ["failover"] && two == ["failover"] && three == ["switchover", "start"];
    anyhow::ensure!(as_told, "found db1 {one:?}, db2 {two:?}, db3 {three:?}, expected only db3 to take it");
    note(format!(
        "given away by db3, left by db1 and db2: db3 took it again {waited} ms later, {} ms in all",
        took.as_millis()
    ));
    whole(ledger, db3)
}

/// A host shows why it does not take over only after it has seen a free lease.
fn by_hand(ledger: &mut Ledger, db1: &Host, db2: &mut Host, db3: &mut Host) -> Result<()> {
    db2.boot()?;
    is_kept_by(db2, "mode is manual")?;
    let before = (taken(db1), taken(db2));
    under_load(ledger, &db3.pg.clone(), || db3.kill().map(drop))?;
    for (host, words) in [(db1, "nofailover is set"), (&*db2, "mode is manual")] {
        stands_by_with(host, "why", words)?;
    }
    let now = (taken(db1), taken(db2));
    anyhow::ensure!(now == before, "db1 and db2 were to leave the lease: found {now:?}, expected {before:?}");
    let running = db2.postgres();
    anyhow::ensure!(running.is_empty(), "manual mode: PostgreSQL runs on db2 without a command: {running:?}");
    let moved = db2.holdfast(&["agent", "failover", "--candidate", "db2", "--reason", "db3 is lost", "--yes"])?;
    anyhow::ensure!(moved["primary"] == "db2", "a takeover by hand: {moved}");
    note(format!(
        "host db3 killed: db2 in manual mode left the lease, and took over by hand after {} ms",
        moved["took_ms"]
    ));
    whole(ledger, db2)
}
