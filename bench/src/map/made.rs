//! A cluster whose one volume has the wanted map: a small set is made, its map replaced in the store, and the cluster
//! recovered from there.

use super::figures::Map;
use super::plan::{Plan, Volume};
use crate::cluster::{Cluster, Options, SET};
use crate::cmd::cmd;
use crate::process::{Proc, Signal};
use crate::say::note;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(super) const LIMIT: Duration = Duration::from_secs(120);

/// A cluster that runs on such a map.
pub(super) struct Made {
    pub volume: Volume,
    pub map: Map,
    /// Where blocks with content begin, in bytes.
    pub places: Vec<u64>,
    /// `cluster recover`, from its call to its end.
    pub recover: Duration,
    /// The folder of the set's objects.
    pub objects: PathBuf,
    pub cluster: Cluster,
}

pub(super) fn make(plan: &Plan, volume: &Volume, dir: &Path) -> Result<Made> {
    std::fs::create_dir_all(dir)?;
    let options = Options {
        bin: plan.bin.clone(),
        dir: dir.join("cluster"),
        gateways: 3,
        store: None,
        size: volume.size.clone(),
        settings: plan.settings.clone(),
        env: Vec::new(),
    };
    let mut cluster = Cluster::start(options)?;
    let (_, mut client) = cluster.connect(LIMIT)?;
    client.write(0, &[1; 8192])?;
    client.disconnect();
    cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "60s"])?;
    let gateways = known(&cluster)?;
    let home = cluster.options.dir.clone();
    let stopped = cluster.stop()?;

    let store = format!("file://{}", home.join("store").canonicalize()?.display());
    let key = home.join("cluster.key");
    let listing = dir.join("places.txt");
    let numbers = [volume.extents, plan.reads, plan.seed].map(|number| number.to_string());
    let [extents, reads, seed] = &numbers;
    let said = cmd(&plan.maker).args([&store]).arg(&key).args(["1", extents, reads, seed]).arg(&listing).out()?;
    let map: Map = serde_json::from_str(said.trim()).with_context(|| format!("large_map said: {said}"))?;
    note(format!(
        "made in {:.0} s: {} extents in {} pages of {:.1} KiB, {} segments, root {:.2} MiB",
        map.seconds,
        map.extents,
        map.pages,
        map.page_bytes as f64 / map.pages.max(1) as f64 / 1024.0,
        map.segments,
        map.root_bytes as f64 / MIB
    ));
    let text = std::fs::read_to_string(&listing)?;
    let places = text.lines().map(str::parse).collect::<Result<Vec<u64>, _>>()?;

    for gateway in &gateways {
        std::fs::remove_dir_all(home.join(&gateway.name))?;
    }
    let recover = recover(plan, &home, &gateways, &store, &key)?;
    note(format!("recovered from the store in {:.1} s", recover.as_secs_f64()));
    let cluster = stopped.start()?;
    let objects = home.join("store/sets/1");
    Ok(Made { volume: volume.clone(), map, places, recover, objects, cluster })
}

pub(super) const MIB: f64 = (1u64 << 20) as f64;

struct Known {
    name: String,
    region: String,
    door: String,
}

fn known(cluster: &Cluster) -> Result<Vec<Known>> {
    let status = cluster.holdfast(&["cluster", "status"])?;
    let members = status["members"].as_array().context("status without members")?;
    let region = |name: &str| {
        let member = members.iter().map(|m| &m["member"]).find(|m| m["name"] == name);
        member.and_then(|m| m["region"].as_str()).map(str::to_owned).context("a member without region")
    };
    let all = cluster.apis().into_iter().enumerate();
    all.map(|(at, door)| Ok(Known { name: cluster.name(at), region: region(&cluster.name(at))?, door })).collect()
}

/// Recovers by hand: with a plan that names the gateways and no set.
fn recover(plan: &Plan, home: &Path, gateways: &[Known], store: &str, key: &Path) -> Result<Duration> {
    let rows = gateways.iter().map(|g| {
        let Known { name, region, door } = g;
        format!("[[gateways]]\nname = {name:?}\nregion = {region:?}\napi = {door:?}\n")
    });
    let new = home.join("recover.toml");
    std::fs::write(&new, rows.collect::<String>())?;
    let mut procs = Vec::new();
    for gateway in gateways {
        let config = home.join(format!("{}.toml", gateway.name));
        let command = cmd(&plan.bin).args(["gateway", "run", "--config"]).arg(config);
        let log = home.with_extension(format!("recover.{}.log", gateway.name));
        procs.push(Proc::spawn("holdfast gateway", command.into_command(), &log)?);
    }
    let doors: Vec<&str> = gateways.iter().map(|gateway| gateway.door.as_str()).collect();
    let begun = Instant::now();
    let said = cmd(&plan.bin)
        .args(["cluster", "recover", "--from-store", store, "--config"])
        .arg(new)
        .arg("--key-file")
        .arg(key)
        .args(["--timeout", "5m", "--i-know-the-old-cluster-is-gone", "--output", "json", "--api", &doors.join(",")])
        .out()?;
    let took = begun.elapsed();
    let said: Value = serde_json::from_str(said.trim()).with_context(|| format!("recover said: {said}"))?;
    anyhow::ensure!(said["sets"][0]["generation"] == 2, "recovered {said}, expected generation 2 of one set");
    procs.iter_mut().try_for_each(|proc| proc.stop(Signal::TERM, Duration::from_secs(20)))?;
    Ok(took)
}
