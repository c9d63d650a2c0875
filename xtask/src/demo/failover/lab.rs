//! What a run stands on: networks, gateways, two hosts, HAProxy, pgbench, the ledger.

use super::Args;
use crate::binary::public_dir;
use crate::gateways::{self, GATEWAYS, Gateways, VOLUME};
use crate::hosts::{First, Host, Plan, Proxy, Way, fill};
use crate::ledger::Ledger;
use crate::net::{self, HUB, Net};
use crate::process::{Proc, Signal, wait_until};
use crate::say::{note, step};
use crate::undo::Guard;
use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long anything here may take before it counts as never getting there.
pub const LIMIT: Duration = Duration::from_secs(120);

/// The set.
const SET: &str = "pg";

/// Its volume, and what of it the file system takes: behind that is the block of the probe.
const VOLUME_BYTES: u64 = 1 << 30;
const FILE_SYSTEM: &str = "1023M";

/// A block behind the file system.
pub const PROBE_AT: u64 = VOLUME_BYTES - (512 << 10);

const LEDGER_WRITERS: usize = 4;
const PGBENCH: [&str; 4] = ["-c", "4", "-j", "1"];

/// PostgreSQL's settings beside those of the agent's command line.
const SETTINGS: &str = "shared_buffers = 128MB\nmax_connections = 40\n";

/// Many takeovers are the point here: no limit against flapping.
const AGENT: &str = "[takeover]\nper_hour_max = 1000\n";

/// Of the gateways: a run shall fit any machine.
const GATEWAY: &str =
    "[journal]\nbound = \"1GiB\"\nreserve = \"128MiB\"\n[cache]\nmemory = \"128MiB\"\ndisk = \"0B\"\n";

/// Everything that runs. Fields are dropped in this order.
pub struct Lab {
    pgbench: Proc,
    pgbench_log: PathBuf,
    pub proxy: Proxy,
    pub hosts: [Host; 2],
    pub gateways: Gateways,
    pub net: Net,
    pub ledger: Ledger,
    pub load: Duration,
    _public: Guard,
}

/// The network node of a host.
pub fn node(host: usize) -> usize {
    GATEWAYS + host
}

/// Export of the volume.
pub fn export() -> String {
    format!("{SET}/{VOLUME}")
}

impl Lab {
    /// Starts all of it.
    ///
    /// # Errors
    /// When something does not come up.
    pub fn start(bin: &Path, dir: &Path, args: &Args) -> Result<Self> {
        step("Five network namespaces and a bridge: three gateways, two hosts of PostgreSQL");
        let net = Net::make(GATEWAYS + 2, &dir.join("net.log"))?;
        let cluster = dir.join("cluster");
        std::fs::create_dir_all(&cluster)?;
        let store = format!("file://{}/store", cluster.display());
        let plan = gateways::Plan { set: SET, size: VOLUME_BYTES, store: &store, env: Vec::new(), settings: GATEWAY };
        let gateways = Gateways::start(&net, bin, &cluster, plan)?;

        let (open, public) = public_dir("failover")?;
        let token = dir.join("agent.token");
        // Not a secret: nothing outside of these namespaces reaches the agents.
        std::fs::write(&token, "a-token-for-two-agents\n")?;
        let apis: Vec<String> = (0..GATEWAYS).map(|gateway| format!("{}:7400", net::address(gateway))).collect();
        let host = |index: usize| {
            let (name, other) = [("db1", "db2"), ("db2", "db1")][index];
            Host::new(Plan {
                name,
                address: net::address(node(index)),
                peer: (other, net::address(node(1 - index))),
                set: SET,
                gateways: apis.clone(),
                dir: dir.join(name),
                open: open.join(name),
                bin: bin.into(),
                space: Some(net.space(node(index))),
                token: Some(token.clone()),
                way: Way::Ext4,
                settings: AGENT,
            })
        };
        let mut hosts = [host(0)?, host(1)?];

        step("ext4 and PostgreSQL 15 on the volume");
        fill(&First {
            bin,
            set: SET,
            volume: VOLUME,
            gateways: apis.clone(),
            dir: open.join("first"),
            mount: hosts[0].mount(),
            way: Way::Ext4,
            size: Some(FILE_SYSTEM),
            pg: &hosts[0].pg,
            settings: SETTINGS,
            network: Some("10.98.0.0/24"),
        })?;

        step("Agents, HAProxy, pgbench");
        let begun = Instant::now();
        hosts[0].boot()?;
        note(format!("db1 is primary {} ms after its boot", hosts[0].becomes_primary(begun, LIMIT)?.as_millis()));
        hosts[1].boot()?;
        hosts[1].stands_by(LIMIT)?;
        let at: SocketAddr = format!("{HUB}:5000").parse()?;
        let mut proxy = Proxy::start(dir, at, [&hosts[0], &hosts[1]])?;
        note(format!("through HAProxy to db1: {} ms", proxy.reaches(&hosts[0], LIMIT)?.as_millis()));
        hosts[0].pg.pgbench_init(args.scale)?;
        let ledger = Ledger::create(&hosts[0].pg, &dir.join("ledger"), LEDGER_WRITERS)?;
        let pgbench_log = dir.join("pgbench.log");
        let pgbench = hosts[0].pg.pgbench_again(&PGBENCH, at, &pgbench_log)?;
        let load = Duration::from_secs(args.load);
        Ok(Self { pgbench, pgbench_log, proxy, hosts, gateways, net, ledger, load, _public: public })
    }

    /// Where PostgreSQL takes writes now.
    ///
    /// # Errors
    /// When it does so nowhere within [`LIMIT`].
    pub fn primary(&self) -> Result<usize> {
        let mut found = None;
        wait_until(LIMIT, || {
            found = self.hosts.iter().position(Host::is_primary);
            found.is_some()
        });
        let said = || self.hosts.iter().map(Host::said).collect::<Vec<_>>().join("; ");
        found.with_context(|| format!("no host is primary after {LIMIT:?}: {}", said()))
    }

    /// Waits until every gateway is up and has applied nearly all.
    ///
    /// # Errors
    /// When that is not so within [`LIMIT`].
    pub fn caught_up(&self) -> Result<()> {
        let mut behind = Vec::new();
        let close = wait_until(LIMIT, || {
            behind = match self.gateways.holdfast(&["cluster", "status"], Duration::from_secs(10)) {
                Ok(status) => crate::cluster::who_is_behind(&status),
                Err(e) => vec![format!("{e:#}")],
            };
            behind.is_empty()
        });
        anyhow::ensure!(close, "not caught up after {LIMIT:?}: {}", behind.join("; "));
        Ok(())
    }

    /// How often pgbench lost a connection so far, or had to begin anew.
    pub fn broken(&self) -> u64 {
        let log = std::fs::read_to_string(&self.pgbench_log).unwrap_or_default();
        log.lines().filter(|line| line.starts_with("run ") || line.contains("aborted")).count() as u64
    }

    /// Looks at everything as a whole, and ends it.
    ///
    /// # Errors
    /// When something is not as it has to be.
    pub fn finish(mut self) -> Result<()> {
        step("Checking the database as a whole");
        let primary = self.primary()?;
        let pg = self.hosts[primary].pg.clone();
        pg.pgbench_balances()?;
        note("pgbench's books balance");
        self.pgbench.stop(Signal::KILL, Duration::from_secs(10))?;
        pg.amcheck()?;
        note("pg_amcheck: every table agrees with its indexes");
        for host in [1 - primary, primary] {
            self.hosts[host].kill()?;
        }
        self.gateways.must_run()?;
        self.gateways.stop()
    }
}
