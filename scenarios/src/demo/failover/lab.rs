//! Components of a run: gateways, hosts and HAProxy, pgbench, the ledger.

use super::pgbench::{self, Said};
use crate::ledger::Ledger;
use crate::pg;
use crate::pgwire::Reach;
use crate::process::{Proc, Signal, wait_until};
use crate::say::{note, step};
use crate::stage::{self, LIMIT, Stage};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A block that the file system does not use.
pub const PROBE_AT: u64 = stage::VOLUME_BYTES - (512 << 10);

const LEDGER_WRITERS: usize = 4;

/// Pause between two queries for pgbench's connections: each takes a PostgreSQL process.
const AGAIN: Duration = Duration::from_millis(45);

/// All components. Fields are dropped in this order.
pub struct Lab {
    pgbench: Proc,
    pgbench_log: PathBuf,
    pub stage: Stage,
    pub ledger: Ledger,
    pub load: Duration,
}

impl Lab {
    /// Starts all of it. Fails when something does not come up.
    pub fn start(bin: &Path, dir: &Path, scale: u32, load: u64, secure: bool) -> Result<Self> {
        let stage = Stage::start(bin, dir, secure)?;
        step("pgbench, the ledger");
        let pg = &stage.hosts[0].pg;
        pg.pgbench_init(scale)?;
        let ledger = Ledger::create(pg, &dir.join("ledger"), LEDGER_WRITERS)?;
        let pgbench_log = dir.join("pgbench.log");
        let pgbench = pg.pgbench_again(&pgbench::ARGS, stage.proxy.at(), &pgbench_log)?;
        let load = Duration::from_secs(load);
        Ok(Self { pgbench, pgbench_log, stage, ledger, load })
    }

    /// Number of connections that pgbench lost so far, and of its restarts.
    pub fn broken(&self) -> u64 {
        self.pgbench_said().broken
    }

    /// The same once pgbench is complete: then all earlier breaks are counted. Fails when it is not complete within
    /// [`LIMIT`].
    pub fn broken_before(&self) -> Result<u64> {
        let mut last = self.whole();
        wait_until(LIMIT, || {
            if last.is_err() {
                std::thread::sleep(AGAIN);
                last = self.whole();
            }
            last.is_ok()
        });
        last.with_context(|| format!("pgbench does not get on within {LIMIT:?}"))
    }

    fn pgbench_said(&self) -> Said {
        Said::read(&std::fs::read_to_string(&self.pgbench_log).unwrap_or_default())
    }

    fn whole(&self) -> Result<u64> {
        let before = self.pgbench_said();
        let (run, left) = (before.run, before.left());
        let count = format!("select count(*) from pg_stat_activity where application_name = '{}'", pg::run_name(run));
        let rows = pg::client(&Reach::Tcp(self.stage.proxy.at()))?.query(&count)?;
        let found: usize = rows.into_iter().flatten().flatten().next().context("no count")?.parse()?;
        anyhow::ensure!(
            left > 0 && found == left,
            "run {run}: found {found} connections of it at the primary, expected one for each of its {left} clients"
        );
        // No connection broke during the query.
        let after = self.pgbench_said();
        anyhow::ensure!(after == before, "its log: found {after:?}, expected {before:?} still");
        Ok(after.broken)
    }

    /// Checks the whole run, and ends it. Fails when a check fails.
    pub fn finish(mut self) -> Result<()> {
        step("Checking the database as a whole");
        let primary = self.stage.primary()?;
        let pg = self.stage.hosts[primary].pg.clone();
        pg.pgbench_balances()?;
        note("pgbench's books balance");
        self.pgbench.stop(Signal::KILL, Duration::from_secs(10))?;
        pg.amcheck()?;
        note("pg_amcheck: every table agrees with its indexes");
        for host in [1 - primary, primary] {
            self.stage.hosts[host].kill()?;
        }
        self.stage.gateways.must_run()?;
        self.stage.gateways.stop()
    }
}
