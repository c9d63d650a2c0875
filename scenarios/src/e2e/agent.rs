//! PostgreSQL that moves between two hosts automatically.
//!
//! A host is a pid and mount namespace: a kill ends every process and mount at once, like the loss of a machine. Each
//! runs `holdfast agent` on the same set (ext4 on the attached device, PostgreSQL by pg_ctl), with its own loopback
//! address.
//!
//! 1. Host db1 is killed while four writers commit: db2 takes over, no acknowledged commit is lost (R1), none is
//!    invented.
//! 2. db1 comes back as standby. A planned switchover moves PostgreSQL back to it under the same writers.
//! 3. db1's agent is stopped (SIGSTOP): the watchdog ends PostgreSQL there before another host gets the lease; db2
//!    takes over; resumed, db1 becomes standby.
//! 4. A client that only knows HAProxy's address reaches the primary after each of these. A client of PgBouncer that
//!    sends a query while there is no primary waits, and gets its answer over the same connection. One that writes all
//!    the time continues, without losing a commit.

mod doors;

use super::Lab;
use crate::cluster::{Cluster, SET, VOLUME};
use crate::hosts::{First, Host, Plan, Way, prepare};
use crate::ledger::{Ledger, Verdict};
use crate::pg::Postgres;
use crate::process::{Signal, wait_until};
use crate::say::note;
use crate::setup;
use anyhow::{Context, Result};
use doors::Doors;
use std::time::{Duration, Instant};

pub(super) const NEEDS: &[&str] =
    &["nbdfuse", "unshare", "/usr/lib/postgresql/15/bin/postgres", "/usr/sbin/haproxy", "/usr/sbin/pgbouncer"];

/// On XFS.
pub(super) const NEEDS_XFS: &[&str] = &[
    "nbdfuse",
    "unshare",
    "/usr/lib/postgresql/15/bin/postgres",
    "/usr/sbin/haproxy",
    "/usr/sbin/pgbouncer",
    "/usr/sbin/mkfs.xfs",
];

/// Limit until a host is primary. On a quiet machine it takes at most a third of that.
pub(super) const TAKEOVER: Duration = Duration::from_secs(40);

/// Minimum number of commits in every round.
const COMMITS: u64 = 300;

/// Number of writers.
pub(super) const WRITERS: usize = 4;

/// PostgreSQL settings in addition to those of the agent's command line.
pub(super) const SETTINGS: &str = "shared_buffers = 64MB\nmax_connections = 30\n";

/// Common settings of the agents.
pub(super) const AGENT: &str = "[watchdog]\ntimeout_ms = 3000\n";

/// The same with a shorter hold: the old primary becomes a standby sooner, and the scenario waits for that.
const AGENT_SOON: &str = "[watchdog]\ntimeout_ms = 3000\n[takeover]\nswitchover_hold_s = 5\n";

fn host(
    lab: &Lab,
    gateways: &[String],
    host: (&'static str, &str),
    peer: (&'static str, &str),
    way: Way,
    settings: &str,
) -> Result<Host> {
    let peers = vec![(peer.0, peer.1.into())];
    Host::new(Plan {
        peers,
        way,
        settings,
        ..Plan::plain(host, SET, gateways.to_vec(), lab.dir.join(host.0), &lab.bin)
    })
}

/// On ext4, with pg_ctl.
pub(super) fn run(lab: &Lab) -> Result<()> {
    run_on(lab, Way::Ext4)
}

/// On XFS, with start and stop commands of the host.
pub(super) fn run_xfs(lab: &Lab) -> Result<()> {
    run_on(lab, Way::XfsCommand)
}

/// Two hosts over three gateways: the first is primary, the second is standby.
pub(super) struct Pair {
    pub cluster: Cluster,
    pub db1: Host,
    pub db2: Host,
}

pub(super) fn pair(lab: &Lab, way: Way, settings: &str) -> Result<Pair> {
    let cluster = lab.cluster("1GiB")?;
    let [db1, db2] = hosts(lab, &cluster.apis(), way, settings, |pg| pg.initdb(SETTINGS))?;
    Ok(Pair { cluster, db1, db2 })
}

/// Starts only the hosts, for gateways with these admin addresses. `initdb`: create PostgreSQL's data folder.
pub(super) fn hosts(
    lab: &Lab,
    gateways: &[String],
    way: Way,
    settings: &str,
    initdb: impl FnOnce(&Postgres) -> Result<()>,
) -> Result<[Host; 2]> {
    setup::must_be_able_to_mount()?;
    let (one, two) = (("db1", "127.0.0.2"), ("db2", "127.0.0.3"));
    let mut db1 = host(lab, gateways, one, two, way, settings)?;
    let mut db2 = host(lab, gateways, two, one, way, settings)?;
    let first = First {
        bin: &lab.bin,
        set: SET,
        volume: VOLUME,
        gateways: gateways.to_vec(),
        dir: lab.dir.join("first"),
        mount: db1.mount(),
        way,
        size: None,
        pg: &db1.pg,
        settings: SETTINGS,
        network: None,
        env: &[],
    };
    prepare(&first, || initdb(first.pg).and_then(|()| first.pg.wants_password_of(doors::USER.name)))?;
    let begun = Instant::now();
    db1.boot()?;
    note(format!("db1 is primary {} ms after its agent started", db1.becomes_primary(begun, TAKEOVER)?.as_millis()));
    db2.boot()?;
    db2.stands_by(TAKEOVER)?;
    Ok([db1, db2])
}

fn run_on(lab: &Lab, way: Way) -> Result<()> {
    let Pair { cluster, mut db1, mut db2 } = pair(lab, way, AGENT_SOON)?;
    let mut doors = Doors::open(lab, &db1, &db2)?;
    doors.lead_to(&db1)?;
    let mut ledger = Ledger::create(&db1.pg, &lab.dir.join("ledger"), WRITERS)?;

    let mut killed = Instant::now();
    under_load(&mut ledger, &db1.pg.clone(), || {
        (killed, _) = db1.kill()?;
        Ok(())
    })?;
    doors.ask_meanwhile()?;
    note(format!("host db1 killed: db2 is primary after {} ms", db2.becomes_primary(killed, TAKEOVER)?.as_millis()));
    whole(&ledger, &db2)?;
    doors.lead_to(&db2)?;
    told(&db2, "failover")?;

    db1.boot()?;
    db1.stands_by(TAKEOVER)?;
    let mut took = 0;
    under_load(&mut ledger, &db2.pg.clone(), || {
        let moved = db2.holdfast(&["agent", "switchover", "--to", "db1", "--yes"])?;
        took = moved["took_ms"].as_u64().context("took_ms")?;
        Ok(())
    })?;
    note(format!("switchover: db1 is primary after {took} ms"));
    db1.becomes_primary(Instant::now(), TAKEOVER)?;
    whole(&ledger, &db1)?;
    doors.lead_to(&db1)?;
    told(&db1, "switchover")?;
    db2.stands_by(TAKEOVER)?;

    let agent = db1.agent_pid()?;
    let mut stopped = Instant::now();
    under_load(&mut ledger, &db1.pg.clone(), || {
        stopped = Instant::now();
        crate::process::signal(agent, Signal::STOP);
        // The watchdog must end it; nothing else can.
        let gone = wait_until(TAKEOVER, || db1.pg.client().is_err());
        anyhow::ensure!(gone, "PostgreSQL of an agent that hangs is still there after {TAKEOVER:?}");
        Ok(())
    })?;
    doors.ask_meanwhile()?;
    note(format!("agent of db1 stopped: PostgreSQL ended after {} ms", stopped.elapsed().as_millis()));
    note(format!("db2 is primary after {} ms", db2.becomes_primary(stopped, TAKEOVER)?.as_millis()));
    crate::process::signal(agent, Signal::CONT);
    db1.stands_by(TAKEOVER)?;
    whole(&ledger, &db2)?;
    doors.lead_to(&db2)?;
    doors.close(&db2)?;
    db2.pg.amcheck()?;
    db1.kill()?;
    db2.kill()?;
    cluster.stop()?;
    Ok(())
}

/// Runs writers on `host`, does `what` meanwhile, and waits until the writers have noticed.
pub(super) fn under_load(ledger: &mut Ledger, pg: &Postgres, what: impl FnOnce() -> Result<()>) -> Result<()> {
    after_commits(COMMITS, ledger, pg, what)
}

/// The same after this many commits, for slow commits.
pub(super) fn after_commits(
    commits: u64,
    ledger: &mut Ledger,
    pg: &Postgres,
    what: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let writers = ledger.start(pg)?;
    let busy = wait_until(Duration::from_secs(60), || writers.acknowledged() >= commits || !writers.all_writing());
    anyhow::ensure!(busy && writers.all_writing(), "only {} commits before it began", writers.acknowledged());
    let done = what();
    let count = writers.acknowledged();
    ledger.join(writers)?;
    done?;
    note(format!("{count} commits acknowledged in this round"));
    Ok(())
}

pub(super) fn whole(ledger: &Ledger, host: &Host) -> Result<()> {
    let verdict = ledger.check(&host.pg)?;
    let Verdict { acknowledged, lost, in_doubt_found, invented } = verdict;
    anyhow::ensure!(
        lost == 0 && invented == 0,
        "R1: {lost} of {acknowledged} acknowledged commits lost, {invented} invented"
    );
    note(format!("{acknowledged} acknowledged commits, all there; {in_doubt_found} in doubt, found"));
    Ok(())
}

/// Checks that the last takeover in a host's history is of this kind and has all its phases.
fn told(host: &Host, event: &str) -> Result<()> {
    let lines = host.holdfast(&["history", "--last", "1"])?;
    let line = &lines[0];
    let phases = &line["phases"];
    anyhow::ensure!(
        line["event"] == event && phases["first_write_ms"].is_u64(),
        "history: found {line}, expected {event}"
    );
    note(format!("history: {event}, phases {phases}"));
    Ok(())
}
