//! PostgreSQL on ext4 on `holdfast attach`, under pgbench and ledger writers: the load for scenarios that restart
//! gateways. No user of the device may see an error, and no session may be lost.

use super::{Lab, TAKEOVER_LIMIT};
use crate::binary::public_dir;
use crate::cluster::{Cluster, SET, VOLUME};
use crate::cmd::{cmd, tail_of};
use crate::hosts;
use crate::ledger::{Ledger, Writers};
use crate::pg::Postgres;
use crate::process::{Proc, Signal, wait_until};
use crate::undo::{Guard, Undo};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};

const SETTINGS: &str = "shared_buffers = 64MB\nmax_connections = 30\n";
const WRITERS: usize = 4;
const PGBENCH: [&str; 4] = ["-c", "4", "-j", "1"];

/// Commits to wait for after each step.
const COMMITS: u64 = 100;

/// Name of the attached host.
const OWNER: &str = "db1";

/// The running setup with load. Fields are dropped in this order.
pub(super) struct Loaded {
    pgbench: Proc,
    writers: Writers,
    ledger: Ledger,
    pg: Postgres,
    mounted: Guard,
    attach: Proc,
    device: PathBuf,
    /// Run directory of attach.
    dir: PathBuf,
    log: PathBuf,
    /// The longest wait of requests for another gateway, milliseconds.
    worst: u64,
    reconnects: u64,
    _open: Guard,
}

/// Results.
pub(super) struct LoadReport {
    /// Commits of the ledger, all of which were found.
    pub commits: u64,
    /// The longest wait of requests for another gateway, milliseconds.
    pub worst: u64,
    /// How often attach went to another gateway.
    pub reconnects: u64,
}

impl Loaded {
    /// Attaches with `bin`, creates file system and database, and starts the load.
    pub fn start(lab: &Lab, cluster: &Cluster, bin: &Path) -> Result<Self> {
        let (open, guard) = public_dir("loaded")?;
        let (dir, mount) = (open.join("attach"), open.join("mnt"));
        let (attach, device) = hosts::attach(bin, (SET, VOLUME), &cluster.apis(), &dir, OWNER)?;
        cmd("mkfs.ext4").arg("-q").arg(&device).run()?;
        std::fs::create_dir_all(&mount)?;
        let mounted = Guard::new(Undo::Umount(mount.clone()))?;
        cmd("mount").arg(&device).arg(&mount).run()?;
        let mut pg = Postgres::new(&mount.join("data"), &open.join("sockets"), &lab.dir.join("postgres.log"))?;
        pg.initdb(SETTINGS)?;
        pg.start()?;
        pg.pgbench_init(1)?;
        let ledger = Ledger::create(&pg, &lab.dir.join("ledger"), WRITERS)?;
        let log = lab.dir.join("pgbench.log");
        let pgbench = pg.pgbench_forever(&PGBENCH, &log)?;
        let writers = ledger.start(&pg)?;
        let (worst, reconnects) = (0, 0);
        Ok(Self { pgbench, writers, ledger, pg, mounted, attach, device, dir, log, worst, reconnects, _open: guard })
    }

    /// Status of its attach.
    pub fn look(&self) -> Result<Value> {
        hosts::status(&self.dir).context("attach shows no status")
    }

    /// Commits acknowledged so far.
    pub fn commits(&self) -> u64 {
        self.writers.acknowledged()
    }

    /// Waits for further commits of the writers. Fails when a writer has lost its session, pgbench has ended, or there
    /// is no progress.
    pub fn goes_on(&mut self) -> Result<()> {
        let so_far = self.commits();
        let on = wait_until(TAKEOVER_LIMIT, || self.commits() >= so_far + COMMITS || !self.writers.all_writing());
        anyhow::ensure!(on && self.writers.all_writing(), "a writer of PostgreSQL had an error, or makes no progress");
        self.pgbench.must_run()?;
        self.attach.must_run()?;
        let now = self.look()?;
        let reconnects = now["reconnects"].as_u64().unwrap_or(0);
        if reconnects > self.reconnects {
            self.reconnects = reconnects;
            self.worst = self.worst.max(now["last_outage_ms"].as_u64().context("no last_outage_ms")?);
        }
        Ok(())
    }

    /// Stops the load and everything else. Checks that no client had an error, every commit is there, and tables and
    /// file system are intact. Fails when a check fails.
    pub fn finish(mut self) -> Result<LoadReport> {
        self.goes_on()?;
        // On a failure they are dropped from last to first, like the fields of `self`.
        let Self { log, device, mut attach, mounted, mut pg, mut ledger, writers, mut pgbench, .. } = self;
        let said = std::fs::read_to_string(&log)?;
        let errors = ["aborted", "error", "ERROR", "FATAL"].iter().any(|word| said.contains(word));
        anyhow::ensure!(!errors, "a client of pgbench had an error: {}", tail_of(&log, 4));
        pgbench.stop(Signal::INT, TAKEOVER_LIMIT)?;
        ledger.join(writers)?;
        let verdict = ledger.check(&pg)?;
        anyhow::ensure!(
            verdict.lost == 0 && verdict.invented == 0 && verdict.in_doubt_found == 0 && ledger.in_doubt() == 0,
            "R1: of {} acknowledged commits {} are lost; {} invented, {} in doubt where no session was lost",
            verdict.acknowledged,
            verdict.lost,
            verdict.invented,
            ledger.in_doubt()
        );
        pg.pgbench_balances()?;
        pg.amcheck()?;
        pg.stop(Signal::INT)?;
        drop(mounted);
        cmd("e2fsck").args(["-f", "-n"]).arg(&device).run()?;
        attach.stop(Signal::TERM, TAKEOVER_LIMIT)?;
        Ok(LoadReport { commits: verdict.acknowledged, worst: self.worst, reconnects: self.reconnects })
    }
}
