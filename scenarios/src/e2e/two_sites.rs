//! PostgreSQL at two sites, each with its own cluster, store and set; by the README of deploy/examples/two-site.
//!
//! 1. West is primary, east follows it by streaming replication; HAProxy routes writes to the one and reads to the
//!    other.
//! 2. East becomes synchronous. All of west (host, gateways) is killed under four writers. East is promoted by hand: no
//!    acknowledged commit is lost.
//! 3. West comes back as a primary: it is not started, since east is one (`hooks.before_start`).
//! 4. West is copied again and follows east: writes there can be read here.

use super::Lab;
use super::agent::{under_load, whole};
use crate::binary::root;
use crate::cluster::{Cluster, Options, SET, VOLUME, free_ports};
use crate::hosts::{First, Host, Plan, Proxy, Way, fill, prepare};
use crate::ledger::Ledger;
use crate::process::{Signal, signal, wait_until};
use crate::say::note;
use crate::setup;
use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::time::{Duration, Instant};

const LIMIT: Duration = Duration::from_secs(60);

const WRITERS: usize = 4;

/// PostgreSQL's settings besides those of the agent's command line.
const SETTINGS: &str = "shared_buffers = 64MB\nmax_connections = 30\n";

const EXAMPLE: &str = "deploy/examples/two-site";

const FOLLOWS: &str = "follows = true\n";

/// One site: a cluster and a host.
struct Site {
    cluster: Cluster,
    host: Host,
}

impl Site {
    fn new(lab: &Lab, (name, address): (&'static str, &str), other: &str) -> Result<Self> {
        // One gateway instead of three: other scenarios test three.
        let dir = lab.dir.join(format!("{name}-cluster"));
        let cluster = Cluster::start(Options { dir, gateways: 1, ..lab.options("1GiB", &[]) })?;
        let script = root().join(EXAMPLE).join("not-two-primaries");
        let hook = format!("[hooks]\nbefore_start = \"OTHERS='{other}:8008' {}\"\n", script.display());
        // After it gave the lease away because of a fault it soon tries again: it is refused repeatedly.
        let settings = format!("{hook}[takeover]\nflap_delay_s = 1\nper_hour_max = 1000\n");
        let host = Host::new(Plan {
            database: FOLLOWS,
            settings: &settings,
            ..Plan::plain((name, address), SET, cluster.apis(), lab.dir.join(name), &lab.bin)
        })?;
        Ok(Self { cluster, host })
    }

    fn first<'a>(&'a self, lab: &'a Lab) -> First<'a> {
        First {
            bin: &lab.bin,
            set: SET,
            volume: VOLUME,
            gateways: self.cluster.apis(),
            dir: lab.dir.join(format!("{}-first", self.host.name)),
            mount: self.host.mount(),
            way: Way::Ext4,
            size: None,
            pg: &self.host.pg,
            settings: SETTINGS,
            network: None,
            env: &[],
        }
    }

    /// Its set gets a copy of the database at `primary`, and follows that under its own name.
    fn copy_of(&mut self, lab: &Lab, primary: &Host) -> Result<()> {
        let first = self.first(lab);
        prepare(&first, || first.pg.basebackup(&primary.address, self.host.name))?;
        self.host.boot()?;
        self.follows()
    }

    fn follows(&self) -> Result<()> {
        let host = &self.host;
        let there = wait_until(LIMIT, || host.asks("/replica") == 200);
        anyhow::ensure!(there, "{} does not follow after {LIMIT:?}: {}", host.name, host.said());
        anyhow::ensure!(host.asks("/primary") == 503, "{} follows, but reports that it is primary", host.name);
        anyhow::ensure!(host.asks("/readiness") == 200, "{} follows, but reports that it is not ready", host.name);
        let state = host.holdfast(&["agent", "status"])?;
        anyhow::ensure!(state.to_string().contains("\"following\""), "agent status: found {state}, expected following");
        Ok(())
    }
}

fn sql(host: &Host, statement: &str) -> Result<String> {
    let rows = host.pg.client()?.query(statement).with_context(|| format!("{}: {statement}", host.name))?;
    Ok(rows.iter().flatten().flatten().map(ToString::to_string).collect::<Vec<_>>().join(","))
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    let (west_at, east_at) = ("127.0.0.2", "127.0.0.3");
    let mut west = Site::new(lab, ("db-west", west_at), east_at)?;
    let mut east = Site::new(lab, ("db-east", east_at), west_at)?;
    fill(&west.first(lab))?;
    west.host.boot()?;
    west.host.becomes_primary(Instant::now(), LIMIT)?;
    east.copy_of(lab, &west.host)?;
    note("db-east follows db-west");

    let mut doors = Vec::new();
    let port = free_ports(2)?;
    for offset in 0..2 {
        doors.push(format!("127.0.0.1:{}", port + offset).parse::<SocketAddr>()?);
    }
    let (writes, reads) = (doors[0], doors[1]);
    let changes = [
        ("*:5000", writes.to_string()),
        ("*:5001", reads.to_string()),
        ("10.0.1.1", west_at.to_string()),
        ("10.0.2.1", east_at.to_string()),
    ];
    let mut proxy = Proxy::with(&lab.dir, &format!("{EXAMPLE}/haproxy.cfg"), writes, &changes)?;
    proxy.reaches(&west.host, LIMIT)?;
    proxy.reaches_at(reads, &east.host, LIMIT)?;

    // Each sent by itself: none of these may be in a transaction.
    sql(&west.host, "alter system set synchronous_standby_names = '\"db-east\"'")?;
    sql(&west.host, "select pg_reload_conf()")?;
    let synchronous = "select count(*) from pg_stat_replication where sync_state = 'sync'";
    let is_sync = || sql(&west.host, synchronous).is_ok_and(|count| count == "1");
    anyhow::ensure!(wait_until(LIMIT, is_sync), "db-east does not become synchronous");
    let mut ledger = Ledger::create(&west.host.pg, &lab.dir.join("ledger"), WRITERS)?;

    let mut gone = None;
    let pg = west.host.pg.clone();
    let Site { cluster, host } = west;
    let mut west_host = host;
    let mut west_cluster = Some(cluster);
    under_load(&mut ledger, &pg, || {
        west_host.kill()?;
        gone = west_cluster.take().map(Cluster::kill_all).transpose()?;
        Ok(())
    })?;
    anyhow::ensure!(east.host.asks("/primary") == 503, "db-east is primary without a promotion");

    let promoted = Instant::now();
    sql(&east.host, "select pg_promote()")?;
    east.host.becomes_primary(promoted, LIMIT)?;
    let took = proxy.reaches(&east.host, LIMIT)?;
    let words = "db-west is lost: db-east takes writes through HAProxy";
    note(format!("{words} {} ms after it was promoted", (promoted.elapsed().max(took)).as_millis()));
    whole(&ledger, &east.host)?;
    let events: Vec<_> = east.host.history().iter().map(|line| line["event"].to_string()).collect();
    anyhow::ensure!(events.iter().any(|event| event == "\"promoted\""), "history: found {events:?}, expected promoted");

    let cluster = gone.context("the cluster of db-west")?.start()?;
    let mut west = Site { cluster, host: west_host };
    let before = west.host.history().len();
    west.host.boot()?;
    let refused = || {
        let told = |line: &serde_json::Value| {
            line["event"] == "takeover-failed" && line["reason"].to_string().contains("is primary: this data directory")
        };
        west.host.history().iter().skip(before).any(told)
    };
    let mut two = false;
    let refused = wait_until(LIMIT, || {
        two |= west.host.asks("/primary") == 200;
        two || refused()
    });
    anyhow::ensure!(!two, "db-west came back, and there are two primaries");
    let told: Vec<_> = west.host.history().into_iter().skip(before).collect();
    anyhow::ensure!(refused, "db-west came back: found {told:?}, expected that it is not started");
    anyhow::ensure!(
        west.host.asks("/primary") == 503 && east.host.is_primary(),
        "expected db-east to be primary alone"
    );
    note("db-west came back, and was not started as a second primary");

    // Ended in good order: its lease is free then.
    signal(west.host.agent_pid()?, Signal::TERM);
    let free = || west.cluster.holdfast(&["lease", "show", SET]).is_ok_and(|said| said["lease"].is_null());
    anyhow::ensure!(wait_until(LIMIT, free), "the agent of db-west does not release its lease");
    west.host.kill()?;
    west.copy_of(lab, &east.host)?;
    sql(&east.host, "create table after_the_loss as select 42 as answer")?;
    let seen = || sql(&west.host, "select answer from after_the_loss").is_ok_and(|answer| answer == "42");
    anyhow::ensure!(wait_until(LIMIT, seen), "db-west follows, and does not get what db-east writes");
    proxy.reaches_at(reads, &west.host, LIMIT)?;
    proxy.reaches(&east.host, LIMIT)?;
    whole(&ledger, &west.host)?;
    note("db-west was copied again and follows db-east");
    east.host.pg.amcheck()?;
    drop(proxy);
    west.host.kill()?;
    east.host.kill()?;
    west.cluster.stop()?;
    east.cluster.stop()?;
    Ok(())
}
