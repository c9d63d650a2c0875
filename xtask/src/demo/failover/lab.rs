//! What a run stands on: gateways, hosts and HAProxy, pgbench, the ledger.

use super::Args;
use crate::ledger::Ledger;
use crate::process::{Proc, Signal};
use crate::say::{note, step};
use crate::stage::{self, Stage};
use anyhow::Result;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A block behind the file system.
pub const PROBE_AT: u64 = stage::VOLUME_BYTES - (512 << 10);

const LEDGER_WRITERS: usize = 4;
const PGBENCH: [&str; 4] = ["-c", "4", "-j", "1"];

/// Everything that runs. Fields are dropped in this order.
pub struct Lab {
    pgbench: Proc,
    pgbench_log: PathBuf,
    pub stage: Stage,
    pub ledger: Ledger,
    pub load: Duration,
}

impl Lab {
    /// Starts all of it.
    ///
    /// # Errors
    /// When something does not come up.
    pub fn start(bin: &Path, dir: &Path, args: &Args) -> Result<Self> {
        let stage = Stage::start(bin, dir)?;
        step("pgbench, the ledger");
        let pg = &stage.hosts[0].pg;
        pg.pgbench_init(args.scale)?;
        let ledger = Ledger::create(pg, &dir.join("ledger"), LEDGER_WRITERS)?;
        let pgbench_log = dir.join("pgbench.log");
        let pgbench = pg.pgbench_again(&PGBENCH, stage.proxy.at(), &pgbench_log)?;
        let load = Duration::from_secs(args.load);
        Ok(Self { pgbench, pgbench_log, stage, ledger, load })
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
