//! Each lease grant is written to a real etcd (ADR 0027) and read with `etcdctl`: a grant, a takeover after the serving
//! gateway was killed, and a release. While the etcd is killed or does not answer, grants continue; afterwards it has
//! the last one. Foreign values under the key are kept.

use super::Lab;
use crate::cluster::{Cluster, SET, free_ports};
use crate::cmd::cmd;
use crate::process::{Proc, Signal, wait_until};
use crate::say::note;
use crate::web::page;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Required programs.
pub(super) const NEEDS: &[&str] = &["etcd", "etcdctl"];

/// Limit until the etcd has a grant: the gateway checks every 200 ms, and every 5 s after failures.
const SHOWN_LIMIT: Duration = Duration::from_secs(20);
const KEY: &str = "/e2e/sets/demo/grant";

/// One etcd with its data in a folder and a fixed port.
pub(super) struct Etcd {
    dir: PathBuf,
    port: u16,
    server: Proc,
}

impl Etcd {
    fn launch(dir: &Path, port: u16) -> Result<Proc> {
        let (client, peer) = (format!("http://127.0.0.1:{port}"), format!("http://127.0.0.1:{}", port + 1));
        let command = cmd("etcd").arg("--data-dir").arg(dir).args(["--name", "e2e"]);
        let command = command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        let command = command.args(["--listen-peer-urls", &peer, "--initial-advertise-peer-urls", &peer]);
        let command = command.args(["--initial-cluster", &format!("e2e={peer}")]);
        let mut server = Proc::spawn("etcd", command.into_command(), &dir.with_extension("log"))?;
        server.ready_when("answering", Duration::from_secs(30), || ctl(port, &["endpoint", "health"]).is_ok())?;
        Ok(server)
    }

    pub(super) fn start(dir: PathBuf) -> Result<Self> {
        let port = free_ports(2)?;
        Ok(Self { server: Self::launch(&dir, port)?, dir, port })
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn kill(&mut self) -> Result<()> {
        self.server.stop(Signal::KILL, Duration::from_secs(5))
    }

    pub(super) fn restart(&mut self) -> Result<()> {
        self.server = Self::launch(&self.dir, self.port)?;
        Ok(())
    }

    /// Output of `etcdctl ARGS`.
    pub(super) fn ctl(&self, args: &[&str]) -> Result<String> {
        ctl(self.port, args)
    }

    /// The value of the key.
    fn value(&self) -> Result<String> {
        Ok(ctl(self.port, &["get", KEY, "--print-value-only"])?.trim().to_string())
    }

    fn grant(&self) -> Option<Value> {
        serde_json::from_str(&self.value().ok()?).ok()
    }

    /// Waits until the etcd agrees with `holdfast lease show` and the owner is `owner`.
    fn shows(&self, cluster: &Cluster, owner: Option<&str>) -> Result<Value> {
        let (begun, mut last) = (Instant::now(), (Value::Null, Value::Null));
        let shown = wait_until(SHOWN_LIMIT, || {
            let said = cluster.holdfast(&["lease", "show", SET]).unwrap_or_default();
            let lease = if said["lease"].is_null() { None } else { Some(&said["lease"]) };
            let grant = self.grant().unwrap_or_default();
            let same = match (lease, owner) {
                (Some(lease), Some(owner)) => {
                    let of = |a: &str, b: &str| grant["held"][a] == lease[b] && !lease[b].is_null();
                    lease["owner"] == owner
                        && of("owner", "owner")
                        && of("epoch", "epoch")
                        && of("gateway", "gateway_name")
                        && of("nbd", "gateway_nbd")
                }
                (None, None) => !grant.is_null() && grant["held"].is_null(),
                _ => false,
            };
            last = (said, grant);
            same
        });
        anyhow::ensure!(
            shown,
            "{owner:?} not shown within {SHOWN_LIMIT:?}: the cluster says {}, the etcd {}",
            last.0,
            last.1
        );
        note(format!("{:<9} shown after {:?}: {}", owner.unwrap_or("free"), begun.elapsed(), last.1["held"]));
        Ok(last.1)
    }
}

fn ctl(port: u16, args: &[&str]) -> Result<String> {
    let at = format!("http://127.0.0.1:{port}");
    cmd("etcdctl").env("ETCDCTL_API", "3").args(["--endpoints", &at, "--command-timeout", "2s"]).args(args).out()
}

/// Acquires the lease, by force if `force` is set. Returns the duration and the token.
fn acquire(cluster: &Cluster, owner: &str, force: bool) -> Result<(Duration, String)> {
    let begun = Instant::now();
    let args = ["lease", "acquire", SET, "--owner", owner, "--ttl", "1m", "--force"];
    let said = cluster.holdfast(&args[..if force { 8 } else { 7 }])?;
    Ok((begun.elapsed(), said["token"].as_str().context("no token")?.to_owned()))
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut etcd = Etcd::start(lab.dir.join("etcd"))?;
    let endpoints = format!("etcd.endpoints=[\"http://127.0.0.1:1\", \"http://127.0.0.1:{}\"]", etcd.port);
    let mut cluster = Cluster::start(lab.options("64MiB", &[&endpoints, "etcd.prefix=/e2e/"]))?;
    etcd.shows(&cluster, None)?;
    acquire(&cluster, "host-a", false)?;
    let first = etcd.shows(&cluster, Some("host-a"))?;

    let serving = (0..3).find(|i| first["held"]["gateway"] == cluster.name(*i)).context("no gateway of that name")?;
    cluster.kill(serving)?;
    acquire(&cluster, "host-b", true)?;
    let second = etcd.shows(&cluster, Some("host-b"))?;
    anyhow::ensure!(second["held"]["gateway"] != first["held"]["gateway"], "the killed gateway serves: {second}");
    anyhow::ensure!(second["held"]["epoch"].as_u64() > first["held"]["epoch"].as_u64(), "R2: {first}, then {second}");
    cluster.restart(serving)?;

    etcd.server.stop(Signal::KILL, Duration::from_secs(5))?;
    let (took, _) = acquire(&cluster, "host-c", true)?;
    note(format!("granted in {took:?} while the etcd was dead"));
    etcd.restart()?;
    etcd.shows(&cluster, Some("host-c"))?;

    etcd.server.signal(Signal::STOP);
    let (took, token) = acquire(&cluster, "host-d", true)?;
    note(format!("granted in {took:?} while the etcd did not answer"));
    etcd.server.signal(Signal::CONT);
    etcd.shows(&cluster, Some("host-d"))?;
    cluster.holdfast(&["lease", "release", SET, "--token", &token])?;
    let free = etcd.shows(&cluster, None)?;

    // GRANT-G1 and GRANT-G2, with values written by hand: a newer one, and a foreign one.
    let newer = free["index"].as_u64().context("no index")? + 1_000_000;
    let mut by_hand = free.clone();
    by_hand["index"] = newer.into();
    let plants =
        [(by_hand.to_string(), "holdfast_etcd_newer_total"), ("10.0.0.7".into(), "holdfast_etcd_failures_total")];
    for (planted, counted) in plants {
        let before = sum(&cluster, counted)?;
        ctl(etcd.port, &["put", KEY, &planted])?;
        acquire(&cluster, "host-e", true)?;
        let met = wait_until(SHOWN_LIMIT, || sum(&cluster, counted).is_ok_and(|now| now > before));
        anyhow::ensure!(met, "no gateway reported the foreign value in the etcd: {planted}");
        let found = etcd.value()?;
        anyhow::ensure!(found == planted, "GRANT-G1, GRANT-G2: {planted} was replaced by {found}");
        note(format!("left alone: {planted}"));
    }
    cluster.stop()?;
    etcd.server.stop(Signal::TERM, Duration::from_secs(10))
}

/// A counter, over all gateways.
fn sum(cluster: &Cluster, counter: &str) -> Result<u64> {
    let mut sum = 0;
    for index in 0..3 {
        let page = page(&cluster.metrics_address(index)?, "/metrics")?;
        let values = page.lines().filter(|line| line.starts_with(counter)).filter_map(|line| line.rsplit_once(' '));
        sum += values.filter_map(|(_, value)| value.parse::<u64>().ok()).sum::<u64>();
    }
    Ok(sum)
}
