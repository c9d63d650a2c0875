//! Every gateway is restarted, one after the other, under a PostgreSQL that notices only a pause: by the steps of
//! docs/operating/members.md, and also with a newer program in place of the older one.
//!
//! ```text
//!   for g1, g2, g3:  drain ─▶ SIGTERM ─▶ (another program) ─▶ start ─▶ ready and caught up ─▶ undrain
//!   for the one that serves:  SIGTERM, which hands over ─▶ start ─▶ ready and caught up
//! ```

use super::Lab;
use super::loaded::{LoadReport, Loaded};
use crate::cluster::{Cluster, Options, SET, VOLUME};
use crate::cmd::{cmd, tail_of};
use crate::process::{Signal, wait_until};
use crate::say::note;
use crate::{hosts, setup};
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Limit until a gateway is drained, or ready again.
const LIMIT: Duration = Duration::from_secs(120);

/// The same for `holdfast`.
const WAIT: [&str; 2] = ["--timeout", "2m"];

const SIZE: &str = "1GiB";

/// The new program writes every root in leaves. An older one may not know the setting.
const IN_LEAVES: [&str; 2] = ["--set", "upload.whole_root=0B"];

/// With one program.
pub(super) fn run(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    let mut cluster = lab.cluster(SIZE)?;
    let mut loaded = Loaded::start(lab, &cluster, &lab.bin)?;
    loaded.goes_on()?;
    let (rounds, gateways) = (if lab.long { 10 } else { 1 }, cluster.gateways.len());
    for index in (0..rounds).flat_map(|_| 0..gateways) {
        restart(&mut cluster, &mut loaded, index, None)?;
    }
    stop_serving(&mut cluster, &mut loaded)?;
    said(&loaded.finish()?, "restarted");
    cluster.stop().map(drop)
}

/// From an older program to this one.
pub(super) fn upgrade(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    let older = lab.older.as_deref().context("no older program")?;
    let version = |bin: &Path| cmd(bin).arg("--version").out().map(|said| said.trim().to_owned());
    note(format!("from {} ({}) to {}", version(older)?, older.display(), version(&lab.bin)?));
    let (dir, bin) = (lab.dir.join("cluster"), older.to_path_buf());
    let (store, settings, env) = (None, Vec::new(), Vec::new());
    let mut cluster = Cluster::start(Options { bin, dir, gateways: 3, store, size: SIZE.into(), settings, env })?;
    // The host has the older build too: it is upgraded last, by a switchover to another host.
    let mut loaded = Loaded::start(lab, &cluster, older)?;
    loaded.goes_on()?;
    cluster.options.bin = lab.bin.clone();
    let (levels, reader) = (Levels::look(&cluster)?, Reader::of(&cluster, older)?);
    note(format!("before: {levels}"));
    reader.reads(&cluster)?;

    restart(&mut cluster, &mut loaded, 0, Some(&lab.bin))?;
    let mixed = Levels::look(&cluster)?;
    note(format!("g1 is new: {mixed}"));
    anyhow::ensure!(mixed.cluster == levels.cluster, "raised while two gateways are old: {mixed}");
    // Each of them leads once; older ones read what the new one writes.
    for name in ["g1", "g2", "g1"] {
        lead(&cluster, &mut loaded, name)?;
        reader.reads(&cluster).with_context(|| format!("{name} leads, g1 is new"))?;
    }
    restart(&mut cluster, &mut loaded, 0, Some(older)).context("back to the older program")?;
    note(format!("g1 is old again: {}", Levels::look(&cluster)?));
    for index in 0..3 {
        restart(&mut cluster, &mut loaded, index, Some(&lab.bin))?;
        if index < 2 {
            lead(&cluster, &mut loaded, &cluster.name(index))?;
            reader.reads(&cluster).with_context(|| format!("g{} leads, g3 is old", index + 1))?;
        }
    }
    let mut now = Levels::look(&cluster)?;
    // Automatic, once every gateway has reported its build's level.
    let raised = wait_until(LIMIT, || {
        now = Levels::look(&cluster).unwrap_or_else(|_| now.clone());
        now.gateways.iter().all(|level| *level == now.cluster)
    });
    note(format!("all are new: {now}"));
    anyhow::ensure!(raised, "the feature level is not raised after {LIMIT:?}");
    for name in ["g1", "g2", "g3"] {
        lead(&cluster, &mut loaded, name)?;
    }
    if now.cluster > levels.cluster {
        refused_back(&mut cluster, &mut loaded, older)?;
    } else {
        note("both have the same feature level: the older program is not refused");
    }
    said(&loaded.finish()?, "upgraded");
    attached_by_the_new(lab, cluster)
}

/// Everything once more from the disks, and a host of the new build.
fn attached_by_the_new(lab: &Lab, cluster: Cluster) -> Result<()> {
    let cluster = cluster.stop()?.start()?;
    let dir = lab.dir.join("attach-new");
    let (mut attach, device) = hosts::attach(&lab.bin, (SET, VOLUME), &cluster.apis(), &dir, "db2")?;
    // Another mount namespace made meanwhile may have kept our mount: the journal is replayed first, as an agent does.
    cmd("e2fsck").arg("-p").arg(&device).run()?;
    cmd("e2fsck").args(["-f", "-n"]).arg(&device).run()?;
    attach.stop(Signal::TERM, LIMIT)?;
    note("restarted from their disks, attached by the new program: the file system is intact");
    cluster.stop().map(drop)
}

/// Drained, stopped, started (with `program`), ready, undrained. It leads nothing from the drain to the undrain.
fn restart(cluster: &mut Cluster, loaded: &mut Loaded, index: usize, program: Option<&Path>) -> Result<()> {
    let (name, begun) = (cluster.name(index), Instant::now());
    let step = |what: &str| format!("{name}: {what}");
    let drained = cluster.holdfast(&["gateway", "drain", &name, WAIT[0], WAIT[1]])?;
    anyhow::ensure!(drained["idle"] == true, "drained: {drained}");
    loaded.goes_on().with_context(|| step("drained"))?;
    cluster.end(index)?;
    loaded.goes_on().with_context(|| step("stopped"))?;
    if let Some(program) = program {
        replace(cluster, index, program);
    }
    cluster.restart(index)?;
    ready(cluster, &name)?;
    cluster.caught_up(LIMIT)?;
    let leaders = cluster.leaders()?;
    anyhow::ensure!(!leaders.contains(&name), "drained, {name} leads again: {leaders:?}");
    cluster.holdfast(&["gateway", "undrain", &name])?;
    loaded.goes_on().with_context(|| step("undrained"))?;
    note(format!(
        "{name} drained, restarted, undrained after {:.1} s; {} commits",
        begun.elapsed().as_secs_f64(),
        loaded.commits()
    ));
    Ok(())
}

/// The gateway that serves is stopped as it is, without a drain: it hands over first.
fn stop_serving(cluster: &mut Cluster, loaded: &mut Loaded) -> Result<()> {
    let now = loaded.look()?;
    let name = now["gateway"].as_str().with_context(|| format!("served by no gateway: {now}"))?.to_owned();
    let mut all = 0..cluster.gateways.len();
    let index = all.find(|index| cluster.name(*index) == name).context("a gateway of another cluster")?;
    cluster.end(index)?;
    loaded.goes_on().with_context(|| format!("{name} was stopped while it served"))?;
    let log = std::fs::read_to_string(cluster.log(index))?;
    let told = log.lines().rev().find(|line| line.contains("leadership handed to") && line.contains(SET));
    note(told.with_context(|| format!("{name} did not hand over: {}", tail_of(&cluster.log(index), 8)))?);
    cluster.restart(index)?;
    ready(cluster, &name)?;
    cluster.caught_up(LIMIT)?;
    loaded.goes_on()
}

/// The next program of a stopped gateway: the new one with its setting, or the older one without.
fn replace(cluster: &mut Cluster, index: usize, program: &Path) {
    let new = program == cluster.options.bin;
    cluster.replace_program(index, program);
    cluster.set_arguments(index, &IN_LEAVES, new);
}

fn listed(cluster: &Cluster) -> Result<Vec<Value>> {
    let said = cluster.holdfast(&["gateway", "list"])?;
    Ok(said["gateways"].as_array().context("a list without gateways")?.clone())
}

/// Whether `gateway list` shows it as ready.
fn ready(cluster: &Cluster, name: &str) -> Result<()> {
    let mut found = Value::Null;
    let ready = wait_until(LIMIT, || {
        let all = listed(cluster).unwrap_or_default();
        found = all.into_iter().find(|gateway| gateway["name"] == name).unwrap_or_default();
        found["reachable"] == true && found["trouble"] == ""
    });
    anyhow::ensure!(ready, "{name} is not ready after {LIMIT:?}: {found}");
    Ok(())
}

/// The set is served by this gateway.
fn lead(cluster: &Cluster, loaded: &mut Loaded, name: &str) -> Result<()> {
    let leads = |name: &str| {
        listed(cluster).is_ok_and(|all| {
            let leads =
                |gateway: &Value| gateway["leads"].as_array().is_some_and(|sets| sets.iter().any(|set| *set == SET));
            all.iter().any(|gateway| gateway["name"] == name && leads(gateway))
        })
    };
    if !leads(name) {
        cluster.holdfast(&["switchover", SET, "--to", name])?;
    }
    anyhow::ensure!(wait_until(LIMIT, || leads(name)), "{name} does not lead {SET} after {LIMIT:?}");
    loaded.goes_on().with_context(|| format!("{name} leads"))
}

/// After the level was raised, an older build is refused with its name; users notice nothing, and its disk is
/// unchanged.
fn refused_back(cluster: &mut Cluster, loaded: &mut Loaded, older: &Path) -> Result<()> {
    let newer = cluster.options.bin.clone();
    cluster.holdfast(&["gateway", "drain", "g3", WAIT[0], WAIT[1]])?;
    cluster.end(2)?;
    replace(cluster, 2, older);
    let why = cluster.start_in_vain(2, LIMIT)?;
    anyhow::ensure!(why.contains("feature level"), "the older program ended: {why}");
    note(format!("the older program: {}", why.rsplit(" | ").next().unwrap_or_default()));
    loaded.goes_on()?;
    replace(cluster, 2, &newer);
    cluster.restart(2)?;
    ready(cluster, "g3")?;
    cluster.caught_up(LIMIT)?;
    cluster.holdfast(&["gateway", "undrain", "g3"])?;
    loaded.goes_on()
}

fn said(seen: &LoadReport, what: &str) {
    note(format!(
        "all gateways {what}, no error, no session lost; attach went to another gateway {} times, requests waited {} ms at most; {} commits, all there",
        seen.reconnects, seen.worst, seen.commits
    ));
}

/// Reads the store with the older program: while one gateway runs it, it must be able to read the newer one's objects.
struct Reader {
    older: PathBuf,
    store: String,
    key: String,
}

impl Reader {
    fn of(cluster: &Cluster, older: &Path) -> Result<Self> {
        let dir = std::path::absolute(&cluster.options.dir)?;
        let store = format!("file://{}", dir.join("store").display());
        let key = dir.join("cluster.key").display().to_string();
        Ok(Self { older: older.to_path_buf(), store, key })
    }

    /// The leader makes a checkpoint, and the older program reads it.
    fn reads(&self, cluster: &Cluster) -> Result<()> {
        cluster.holdfast(&["set", "checkpoint", SET, WAIT[0], WAIT[1]])?;
        let verify = ["verify", SET, "--store", &self.store, "--key-file", &self.key, "--sample", "1%"];
        cmd(&self.older).args(verify).run().context("the older program's verify")
    }
}

/// Feature levels: the cluster's, and that of each gateway's build.
#[derive(Clone, Debug)]
struct Levels {
    cluster: u64,
    gateways: Vec<u64>,
    versions: BTreeSet<String>,
}

impl Levels {
    fn look(cluster: &Cluster) -> Result<Self> {
        let said = cluster.holdfast(&["gateway", "list"])?;
        let all = said["gateways"].as_array().context("a list without gateways")?;
        Ok(Self {
            cluster: said["feature_level"].as_u64().context("no feature_level")?,
            gateways: all.iter().filter_map(|gateway| gateway["feature_level"].as_u64()).collect(),
            versions: all.iter().filter_map(|gateway| gateway["version"].as_str().map(str::to_owned)).collect(),
        })
    }
}

impl std::fmt::Display for Levels {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { cluster, gateways, versions } = self;
        write!(f, "feature level {cluster}, of the gateways' builds {gateways:?}, versions {versions:?}")
    }
}
