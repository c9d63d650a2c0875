//! Components of a run: namespaces, gateways, a set of three volumes, guests, the ledger.

use super::guest::{Disk, First, Guest, Parts};
use super::guest_logs::GUESTS;
use crate::gateways::{GATEWAYS, Gateways, Plan};
use crate::ledger::{Ledger, Writers};
use crate::net::{self, HUB, Net};
use crate::pgwire::{Client, Reach};
use crate::process::wait_until;
use crate::s3::S3;
use crate::say::{note, step};
use crate::{cmd, pg};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// The set, and its volumes: the stripe.
pub const SET: &str = "pg";
pub const VOLUMES: usize = 3;

/// Limit of every wait. Guests are slow, and so is a busy machine.
pub const LIMIT: Duration = Duration::from_secs(300);

/// An emulated host is late with everything, renewals too.
pub const TTL: &str = "10s";

/// Of the gateways: a run shall fit any machine.
const GATEWAY: &str =
    "[journal]\nbound = \"1GiB\"\nreserve = \"128MiB\"\n[cache]\nmemory = \"128MiB\"\ndisk = \"0B\"\n";

/// All components except the guests.
pub struct Lab {
    pub gateways: Gateways,
    pub net: Net,
    pub dir: PathBuf,
    parts: Parts,
    pub ledger: Option<Ledger>,
    store: String,
    _s3: Option<S3>,
}

impl Lab {
    /// Starts it. Fails when something does not come up.
    pub fn start(bin: &Path, dir: &Path, parts: Parts) -> Result<Self> {
        step("Three gateways");
        let net = Net::make(GATEWAYS + 2, &dir.join("net.log"))?;
        let cluster = dir.join("cluster");
        std::fs::create_dir_all(&cluster)?;
        let s3 = if cmd::on_path("versitygw") { Some(S3::start_on(&cluster, HUB)?) } else { None };
        let (store, env) = match &s3 {
            Some(s3) => (s3.url(), s3.env()),
            None => (format!("file://{}/store", cluster.display()), Vec::new()),
        };
        note(if s3.is_some() { "store: versitygw" } else { "store: a folder (versitygw is not installed)" });
        // The plan's own set is unused, since it has one volume.
        let own = Default::default();
        let (size, settings) = (64 << 20, GATEWAY);
        let plan = Plan { set: "unused", size, store: &store, env, settings, own, http: false, secured: None };
        let gateways = Gateways::start(&net, bin, &cluster, plan)?;
        Ok(Self { gateways, net, dir: dir.into(), parts, ledger: None, store, _s3: s3 })
    }

    /// Creates [`SET`] in the cluster's store. Fails when the gateways refuse.
    pub fn make_set(&self) -> Result<()> {
        self.create(SET, &self.store, VOLUMES, &[])
    }

    /// Creates another set there: the same volumes, and these further ones (`NAME=SIZE`). Fails when the gateways
    /// refuse.
    pub fn make_set_with(&self, set: &str, further: &[&str]) -> Result<()> {
        self.create(set, &self.store, VOLUMES, further)
    }

    /// Creates a set in a separate S3 server. Fails when the server does not come up, or the gateways refuse.
    pub fn make_set_apart(&self, set: &str, volumes: usize) -> Result<S3> {
        let s3 = S3::start_on(&self.dir.join(set), HUB)?;
        self.create(set, &s3.url(), volumes, &[])?;
        Ok(s3)
    }

    fn create(&self, set: &str, store: &str, volumes: usize, further: &[&str]) -> Result<()> {
        let mut create = vec!["set", "create", set, "--store", store];
        let volumes: Vec<String> = (1..=volumes).map(|n| format!("vol{n}=2GiB")).collect();
        for volume in volumes.iter().map(String::as_str).chain(further.iter().copied()) {
            create.extend(["--volume", volume]);
        }
        self.gateways.holdfast(&create, Duration::from_secs(60)).map(drop)
    }

    /// Boots a guest; returns the time. Fails when it does not come up.
    pub fn boot(&self, index: usize) -> Result<(Guest, f64)> {
        self.boot_how(index, First::Script, &[])
    }

    /// The same, with this first process.
    pub fn boot_as(&self, index: usize, first: First) -> Result<(Guest, f64)> {
        self.boot_how(index, first, &[])
    }

    /// The same, with additional disks.
    pub fn boot_with(&self, index: usize, disks: &[Disk]) -> Result<(Guest, f64)> {
        self.boot_how(index, First::Script, disks)
    }

    fn boot_how(&self, index: usize, first: First, disks: &[Disk]) -> Result<(Guest, f64)> {
        let name = GUESTS[index];
        let begun = Instant::now();
        let guest = Guest::boot(name, GATEWAYS + index, &self.net, (&self.parts, first, disks), &self.dir.join(name))?;
        Ok((guest, begun.elapsed().as_secs_f64()))
    }

    /// Admin addresses of the gateways.
    pub fn apis() -> Vec<String> {
        (0..GATEWAYS).map(|gateway| format!("{}:7400", net::address(gateway))).collect()
    }

    /// The gateway that serves the set. Fails when no gateway reports it.
    pub fn serving(&self) -> Result<usize> {
        let said = self.gateways.holdfast(&["lease", "show", SET], Duration::from_secs(30))?;
        let name = said["lease"]["gateway_name"].as_str().or(said["lease"]["gateway"].as_str()).map(str::to_string);
        let name = name.with_context(|| format!("lease show: {said}"))?;
        let index = name.strip_prefix('g').and_then(|n| n.parse::<usize>().ok()).map(|n| n - 1);
        index.with_context(|| format!("a gateway called {name}"))
    }

    /// Time of the grant of the set to a guest in Unix milliseconds: when the granting gateway proposed it. Fails when
    /// another owner has it, or no gateway reports it.
    pub fn granted(&self, guest: &Guest) -> Result<u64> {
        let said = self.gateways.holdfast(&["lease", "show", SET], Duration::from_secs(30))?;
        let lease = &said["lease"];
        let its = lease["owner"].as_str() == Some(guest.name);
        anyhow::ensure!(its, "lease show: found {said}, expected {} to own the set", guest.name);
        lease["since_unix_ms"].as_u64().with_context(|| format!("lease show: {said}"))
    }

    /// Waits until every gateway has nearly all entries. Fails when [`LIMIT`] passes first.
    pub fn caught_up(&self) -> Result<()> {
        let mut behind = Vec::new();
        let close = wait_until(LIMIT, || {
            let status = self.gateways.holdfast(&["cluster", "status"], Duration::from_secs(10));
            behind = status.map_or_else(|e| vec![format!("{e:#}")], |status| crate::cluster::who_is_behind(&status));
            behind.is_empty()
        });
        anyhow::ensure!(close, "not caught up after {LIMIT:?}: {}", behind.join("; "));
        Ok(())
    }

    /// PostgreSQL of a guest, from here.
    pub fn reach(guest: &Guest) -> Result<Reach> {
        Ok(Reach::Tcp(format!("{}:5432", guest.address).parse()?))
    }

    /// A session with it. Fails when it accepts none within [`LIMIT`].
    pub fn session(guest: &Guest) -> Result<Client> {
        let reach = Self::reach(guest)?;
        let mut session = None;
        wait_until(LIMIT, || {
            session = pg::client(&reach).ok();
            session.is_some()
        });
        session.with_context(|| format!("{}: PostgreSQL takes no client within {LIMIT:?}", guest.name))
    }

    /// Writers that note each acknowledged commit. Fails when there is no ledger yet.
    pub fn writers(&self, guest: &Guest) -> Result<Writers> {
        self.ledger.as_ref().context("no ledger")?.start_lasting(&Self::reach(guest)?)
    }

    /// Joins them; returns the longest time without an acknowledged commit since `since` (Unix ms) in seconds, and the
    /// number of lost sessions. Fails when a writer failed for another reason than a lost server.
    pub fn take_back(&mut self, writers: Writers, since: u64) -> Result<(f64, usize)> {
        let moments: Vec<u64> = writers.moments().iter().map(|(at, _)| *at).filter(|at| *at >= since).collect();
        let ledger = self.ledger.as_mut().context("no ledger")?;
        let before = ledger.in_doubt();
        ledger.join(writers)?;
        let gaps = std::iter::once(since).chain(moments.iter().copied()).zip(moments.iter().copied());
        let gap = gaps.map(|(from, to)| to.saturating_sub(from)).max().unwrap_or(0);
        Ok((gap as f64 / 1000.0, ledger.in_doubt() - before))
    }

    /// Checks that every acknowledged commit is there (R1); returns a description. Fails when one is missing, or a row
    /// is there that was never written.
    pub fn check_ledger(&self, guest: &Guest) -> Result<String> {
        let verdict = self.ledger.as_ref().context("no ledger")?.check_through(&mut Self::session(guest)?)?;
        let (all, lost, invented) = (verdict.acknowledged, verdict.lost, verdict.invented);
        anyhow::ensure!(
            lost == 0 && invented == 0,
            "R1: {lost} of {all} acknowledged commits lost, {invented} invented"
        );
        anyhow::ensure!(all > 0, "the ledger is empty: nothing was tested");
        Ok(format!("{all} acknowledged commits, none lost, none invented"))
    }

    /// Ends the gateways. Fails when one has ended by itself.
    pub fn stop(&mut self) -> Result<()> {
        self.gateways.must_run()?;
        self.gateways.stop()
    }
}

/// Waits until `writers` have `more` further acknowledged commits. Fails when [`LIMIT`] passes first.
pub fn go_on(writers: &Writers, more: u64) -> Result<()> {
    let goal = writers.acknowledged() + more;
    let there = wait_until(LIMIT, || writers.acknowledged() >= goal);
    anyhow::ensure!(there, "writers have {} of {goal} commits after {LIMIT:?}", writers.acknowledged());
    Ok(())
}
