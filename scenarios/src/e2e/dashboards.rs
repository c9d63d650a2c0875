//! Alert rules and dashboards with a real Prometheus, which scrapes three gateways and the agent of a PostgreSQL host.
//!
//! 1. `promtool` accepts the rules, their tests, and the names of all metrics.
//! 2. Each query of each dashboard finds data, and no alert fires while all is well.
//! 3. A gateway is killed: the alert for it appears, and no expression of the rules fails.

use super::agent::{AGENT, SETTINGS, TAKEOVER};
use super::{Lab, TAKEOVER_LIMIT};
use crate::binary::root;
use crate::cluster::{Cluster, SET, VOLUME, free_ports};
use crate::cmd::cmd;
use crate::hosts::{First, HTTP, Host, Plan, Way, fill};
use crate::process::{Proc, Signal, wait_until};
use crate::say::note;
use crate::setup;
use crate::web::page;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(super) const NEEDS: &[&str] =
    &["prometheus", "promtool", "nbdfuse", "unshare", "/usr/lib/postgresql/15/bin/postgres"];

/// Address of the host.
const DB1: &str = "127.0.0.2";

/// Limit until all queries find data: a checkpoint and a few scrapes must have happened.
const FOUND_WITHIN: Duration = Duration::from_secs(90);

/// A running Prometheus.
struct Prometheus {
    url: String,
    process: Proc,
}

impl Prometheus {
    /// Starts it with the rules of `deploy/prometheus`.
    fn start(dir: &Path, gateways: &[String], agent: &str) -> Result<Self> {
        let address = format!("127.0.0.1:{}", free_ports(1)?);
        let rules = deploy("prometheus/holdfast.rules.yml");
        // JSON is YAML.
        let job = |name: &str, targets: &[String]| -> Value {
            serde_json::json!({ "job_name": name, "static_configs": [{ "targets": targets }] })
        };
        let settings = serde_json::json!({
            "global": { "scrape_interval": "1s", "evaluation_interval": "1s" },
            "rule_files": [rules],
            "scrape_configs": [job("holdfast", gateways), job("holdfast-agent", &[agent.to_owned()])],
        });
        let file = dir.join("prometheus.yml");
        std::fs::write(&file, settings.to_string())?;
        let command = cmd("prometheus").arg(format!("--config.file={}", file.display()));
        let command = command.arg(format!("--storage.tsdb.path={}", dir.join("prometheus").display()));
        let command = command.arg(format!("--web.listen-address={address}"));
        let mut process = Proc::spawn("prometheus", command.into_command(), &dir.join("prometheus.log"))?;
        process.ready_when("ready", Duration::from_secs(30), || {
            page(&address, "/-/ready").is_ok_and(|said| said.starts_with("HTTP/1.1 200"))
        })?;
        Ok(Self { url: format!("http://{address}"), process })
    }

    /// What a query finds now, a line for each series.
    fn ask(&self, query: &str) -> Result<String> {
        let said = cmd("promtool").args(["query", "instant", &self.url, query]).out()?;
        Ok(said.trim().to_owned())
    }
}

fn deploy(file: &str) -> PathBuf {
    root().join("deploy").join(file)
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    rules()?;
    let mut cluster = lab.cluster_as("1GiB", None, &["upload.interval_ms=1000"], Vec::new())?;
    let mut host = host(lab, &cluster)?;
    let doors: Vec<String> = (0..cluster.gateways.len()).map(|i| cluster.metrics_address(i)).collect::<Result<_>>()?;
    let agent = format!("{DB1}:{HTTP}");
    for door in doors.iter().chain([&agent]) {
        names(&lab.dir, door)?;
    }
    let mut prometheus = Prometheus::start(&lab.dir, &doors, &agent)?;
    let asked = queries()?;
    find(&prometheus, &asked, &host)?;
    note(format!("{} queries of the dashboards find data", asked.len()));
    let firing = prometheus.ask("ALERTS{alertstate=\"firing\"}")?;
    anyhow::ensure!(firing.is_empty(), "all is well, but alerts fire: {firing}");
    cluster.kill(2)?;
    let mut told = String::new();
    let seen = wait_until(TAKEOVER_LIMIT, || {
        told = prometheus.ask("ALERTS").unwrap_or_else(|error| format!("{error:#}"));
        told.contains("alertname=\"HoldfastGatewayDown\"")
    });
    anyhow::ensure!(seen, "no alert for the killed gateway: {told}");
    let rules = page(prometheus.url.trim_start_matches("http://"), "/api/v1/rules")?;
    anyhow::ensure!(rules.contains("\"health\":\"ok\""), "no rule was evaluated: {rules}");
    anyhow::ensure!(!rules.contains("\"health\":\"err\""), "an expression of a rule fails: {rules}");
    note("no alert while all is well; one for a killed gateway");
    prometheus.process.stop(Signal::TERM, Duration::from_secs(20))?;
    host.kill()?;
    cluster.stop()?;
    Ok(())
}

/// The rules and their tests, by Prometheus' own tool.
fn rules() -> Result<()> {
    let dir = deploy("prometheus");
    cmd("promtool").dir(&dir).args(["check", "rules", "holdfast.rules.yml"]).run()?;
    cmd("promtool").dir(&dir).args(["test", "rules", "holdfast.rules.test.yml"]).run()?;
    cmd("promtool").dir(&dir).args(["check", "config", "--syntax-only", "prometheus.yml"]).run()
}

/// Names, help and types of all metrics at a door, by Prometheus' own tool.
fn names(dir: &Path, door: &str) -> Result<()> {
    let told = page(door, "/metrics")?;
    let (_, body) = told.split_once("\r\n\r\n").context("an answer without a body")?;
    anyhow::ensure!(body.contains("holdfast_build_info{"), "{door}: {told}");
    let file = dir.join("metrics.txt");
    std::fs::write(&file, body)?;
    let check = cmd("sh").args(["-c", "promtool check metrics < \"$0\""]).arg(&file);
    check.run().with_context(|| format!("names of metrics at {door}"))
}

/// A host with PostgreSQL on the set.
fn host(lab: &Lab, cluster: &Cluster) -> Result<Host> {
    let plan = Plan::plain(("db1", DB1), SET, cluster.apis(), lab.dir.join("db1"), &lab.bin);
    let mut host = Host::new(Plan { settings: AGENT, ..plan })?;
    fill(&First {
        bin: &lab.bin,
        set: SET,
        volume: VOLUME,
        gateways: cluster.apis(),
        dir: lab.dir.join("first"),
        mount: host.mount(),
        way: Way::Ext4,
        size: None,
        pg: &host.pg,
        settings: SETTINGS,
        network: None,
        env: &[],
    })?;
    host.boot()?;
    host.becomes_primary(Instant::now(), TAKEOVER)?;
    Ok(host)
}

/// All queries of the dashboards, as Grafana sends them.
fn queries() -> Result<Vec<String>> {
    let mut queries = Vec::new();
    for file in ["grafana/holdfast-gateways.json", "grafana/holdfast-hosts.json"] {
        let text = std::fs::read_to_string(deploy(file)).with_context(|| file.to_owned())?;
        let board: Value = serde_json::from_str(&text).with_context(|| file.to_owned())?;
        let panels = board["panels"].as_array().context("a dashboard without panels")?;
        for target in panels.iter().filter_map(|panel| panel["targets"].as_array()).flatten() {
            let query = target["expr"].as_str().context("a query without an expression")?;
            // The targets have no label `cluster`: "All" is for those, too.
            let query = query.replace("$__rate_interval", "10s").replace("$cluster", ".*");
            queries.push(query.replace("$set", ".*"));
        }
    }
    anyhow::ensure!(queries.len() > 30, "the dashboards have {} queries only", queries.len());
    Ok(queries)
}

/// Waits until each query finds data, while PostgreSQL writes.
fn find(prometheus: &Prometheus, queries: &[String], host: &Host) -> Result<()> {
    let (mut left, begun) = (queries.to_vec(), Instant::now());
    host.pg.client()?.query("CREATE TABLE seen (n bigint)")?;
    while !left.is_empty() {
        anyhow::ensure!(begun.elapsed() < FOUND_WITHIN, "no data after {FOUND_WITHIN:?}: {}", left.join("\n"));
        host.pg.client()?.query("INSERT INTO seen SELECT generate_series(1, 10000)")?;
        let mut still = Vec::new();
        for query in left {
            if prometheus.ask(&query)?.is_empty() {
                still.push(query);
            }
        }
        left = still;
    }
    Ok(())
}
