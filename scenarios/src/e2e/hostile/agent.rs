//! An agent as a target of the flood: it stands by for the set, and answers health checks.

use super::flood::{Flood, Target};
use super::half_open::{Door, Process};
use super::ways;
use crate::certificates::Certificates;
use crate::cluster::{Cluster, SET};
use crate::cmd::cmd;
use crate::hosts::{HTTP, Host, Plan};
use crate::process::{Proc, Signal, resident_bytes, wait_until};
use crate::say::note;
use anyhow::{Context, Result};
use std::path::Path;
use std::time::Duration;

const NAME: &str = "db2";
const ADDRESS: &str = "127.0.0.2";
const PATIENCE: Duration = Duration::from_secs(60);
const CHECK_LIMIT: Duration = Duration::from_secs(2);

/// Most bytes that it may use more than before the flood: 128 connections, and its own work.
const GROWTH_MAX: u64 = 64 << 20;

/// Half-open connections: fewer than it has places.
const HALF_OPEN: usize = 100;

/// The agent of a host that does not hold the set.
pub(super) struct Agent {
    host: Host,
    process: Proc,
}

impl Agent {
    /// Starts it beside a cluster with certificates. `dir` is for its files.
    pub(super) fn start(cluster: &Cluster, dir: &Path) -> Result<Self> {
        let bin = &cluster.options.bin;
        let certificates = Certificates::make(bin, &cluster.options.dir.join("tls"), &["--host", NAME])?;
        let dir = dir.join(NAME);
        let plan = Plan::plain((NAME, ADDRESS), SET, cluster.apis(), dir.clone(), bin);
        let host = Host::new(Plan { certificates: Some(certificates), ..plan })?;
        let command = cmd(bin).args(["agent", "run", "--config"]).arg(dir.join("agent.toml")).into_command();
        let mut process = Proc::spawn("holdfast agent", command, &host.log())?;
        process.ready_when("answering", PATIENCE, || answers(&host))?;
        Ok(Self { host, process })
    }

    fn address(&self) -> String {
        format!("{ADDRESS}:{HTTP}")
    }

    /// For what a half-open connection costs.
    pub(super) fn as_process(&self) -> Process {
        let doors = vec![Door { address: self.address(), nbd: false, count: HALF_OPEN }];
        Process { name: "agent, HTTP".into(), pid: self.process.pid(), doors }
    }

    /// Begins a flood of `each` clients.
    pub(super) fn flooded(&self, each: usize) -> Result<Flooded<'_>> {
        let flood = Flood::start(vec![Target { address: self.address(), ways: ways::http() }], each)?;
        let before = self.resident()?;
        Ok(Flooded { agent: self, flood, before, most: before, asked: 0, answered: 0 })
    }

    fn resident(&self) -> Result<u64> {
        resident_bytes(self.process.pid()).context("no memory figure of the agent")
    }

    /// Ends it.
    pub(super) fn stop(mut self) -> Result<()> {
        self.process.must_run()?;
        self.process.stop(Signal::TERM, Duration::from_secs(30))
    }
}

/// Whether a health check has an answer, whichever.
fn answers(host: &Host) -> bool {
    host.http("OPTIONS", "/primary", CHECK_LIMIT).is_ok()
}

/// An agent in a flood.
pub(super) struct Flooded<'a> {
    agent: &'a Agent,
    flood: Flood,
    before: u64,
    most: u64,
    asked: u32,
    answered: u32,
}

impl Flooded<'_> {
    pub(super) fn flood(&self) -> &Flood {
        &self.flood
    }

    /// One health check, and a look at the memory.
    pub(super) fn look(&mut self) -> Result<()> {
        self.asked += 1;
        self.answered += u32::from(answers(&self.agent.host));
        self.most = self.most.max(self.agent.resident()?);
        Ok(())
    }

    /// The end of the flood: health checks are answered again, and memory has stayed bounded.
    pub(super) fn end(self) -> Result<()> {
        let Self { agent, flood, before, most, asked, answered } = self;
        drop(flood);
        let (was, most) = (before >> 20, most >> 20);
        note(format!("agent: {was} MiB resident before the flood, at most {most} MiB in it"));
        note(format!("agent: {answered} of {asked} health checks were answered in the flood"));
        anyhow::ensure!(answered > 0, "the agent answered none of {asked} health checks in the flood");
        let limit = was + (GROWTH_MAX >> 20);
        anyhow::ensure!(most <= limit, "the agent: {most} MiB resident in the flood, expected at most {limit}");
        anyhow::ensure!(wait_until(PATIENCE, || answers(&agent.host)), "the agent answers nothing after the flood");
        Ok(())
    }
}
