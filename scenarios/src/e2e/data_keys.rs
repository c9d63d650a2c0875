//! A set's data key is changed under load: it is not used while a gateway does not have it, and used afterwards, also
//! while the serving gateway is killed. The old key stays as long as an earlier snapshot exists, and is then deleted.
//! At the end every object's header names the new key, and the set restarts and is recovered from the store.

use super::Lab;
use super::blocks::Load;
use super::recover::{Hand, Known, must};
use crate::cluster::{Cluster, SET};
use crate::process::{POLL, wait_until};
use crate::say::note;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

const WRITERS: u64 = 2;
const BLOCKS_EACH: u64 = 1024;
const LIMIT: Duration = Duration::from_secs(120);
/// Limit of a takeover on a busy machine.
const TAKEOVER: Duration = super::TAKEOVER_LIMIT;
/// Offset of the data key's number in an object.
const KEY_ID_AT: usize = 16;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let settings =
        ["upload.interval_ms=500", "upload.whole_root=0B", "space.grace_ms=1000", "space.sweep_interval_ms=1500"];
    let folder = std::path::absolute(lab.dir.join("store"))?;
    let store = format!("file://{}", folder.display());
    let mut cluster = lab.cluster_as("64MiB", Some(store.clone()), &settings, Vec::new())?;
    let known = Known::on(&cluster, store.clone(), Vec::new())?;
    let mut load = Load::new(WRITERS, BLOCKS_EACH);
    let snapshot = format!("{SET}@before");
    load.run(&cluster.exports(), |_| {
        cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "1m"])?;
        cluster.holdfast(&["snapshot", "create", &snapshot, "--timeout", "90s"])?;
        late_gateway(&mut cluster, &folder)?;
        until(&cluster, "the new key is in use", |set| set["seals"] == 2)?;
        let serving = cluster.serving(TAKEOVER)?;
        cluster.kill(serving)?;
        cluster.restart(serving)?;
        cluster.caught_up(LIMIT)?;
        note(format!("{} killed while objects under the old key were written again", cluster.name(serving)));
        Ok(())
    })?;
    note(format!("{} pairs answered meanwhile", load.progress().answered()));
    let held = |set: &Value| {
        let needs = &set["needs"];
        let all = needs["uses"].as_array().is_some_and(|uses| uses.iter().all(|usage| usage["key"] == 2));
        all && needs["held"].to_string().contains("snapshot before")
    };
    let listed = until(&cluster, "only the snapshot needs the old key", held)?;
    anyhow::ensure!(listed["keys"][0] == 1, "the snapshot's key is gone: {listed}");
    note("everything current is under the new key; the snapshot from before keeps the old one");

    cluster.holdfast(&["snapshot", "delete", &snapshot, "--yes"])?;
    let alone = |set: &Value| set["keys"].as_array().is_some_and(|keys| keys.len() == 1);
    let listed = until(&cluster, "the old key is gone", alone)?;
    anyhow::ensure!(listed["keys"] == serde_json::json!([2]), "the wrong key is gone: {listed}");
    // Objects retired under the old key are deleted after their grace period.
    let clean = wait_until(LIMIT, || under(&folder).is_ok_and(|keys| keys.keys().eq([&2])));
    anyhow::ensure!(clean, "objects by the key in their headers: {:?}, expected 2 alone", under(&folder)?);
    note(format!(
        "the snapshot deleted: data key 1 is gone; objects by the key in their headers: {:?}",
        under(&folder)?
    ));

    for index in 0..3 {
        cluster.kill(index)?;
    }
    for index in 0..3 {
        cluster.restart(index)?;
    }
    let (_, mut client) = cluster.connect(TAKEOVER)?;
    load.check(&mut client).context("after the death of all gateways")?;
    client.disconnect();
    cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "1m"])?;
    let verified = cluster.holdfast(&["verify", "--store", &store, "--key-file", &known.key()])?;
    anyhow::ensure!(verified["clean"] == true, "verify: {verified}");
    recovered(lab, cluster, &known, &mut load)
}

/// While a gateway is down the change begins, but nothing is sealed under the new key. When the gateway is back, the
/// change continues by itself.
fn late_gateway(cluster: &mut Cluster, folder: &Path) -> Result<()> {
    let serving = cluster.serving(TAKEOVER)?;
    let away = cluster.others(serving)[0];
    cluster.kill(away)?;
    let asked = cluster.holdfast(&["key", "rotate-data", SET, "--yes", "--timeout", "20s"]);
    let said = asked.err().context("the new key is in use though a gateway is down")?.to_string();
    let name = cluster.name(away);
    anyhow::ensure!(said.contains(&format!("gateway {name}")), "expected a message that names {name}: {said}");
    let set = listed(cluster)?;
    anyhow::ensure!(set["keys"] == serde_json::json!([1, 2]) && set["seals"] == 1, "with {name} down: {set}");
    // Before it is back: after that the new key may be used at any moment.
    anyhow::ensure!(under(folder)?.keys().eq([&1]), "something is under the new key while a gateway lacks it");
    cluster.restart(away)?;
    cluster.caught_up(LIMIT)?;
    note(format!("{name} was down: data key 2 was there and not in use"));
    Ok(())
}

fn listed(cluster: &Cluster) -> Result<Value> {
    let keys = cluster.holdfast(&["key", "list"])?;
    let sets = keys["sets"].as_array().context("no sets")?;
    sets.iter().find(|set| set["name"] == SET).cloned().context("the set is not listed")
}

fn until(cluster: &Cluster, what: &str, holds: impl Fn(&Value) -> bool) -> Result<Value> {
    let begun = Instant::now();
    loop {
        let set = listed(cluster);
        match set {
            Ok(set) if holds(&set) => return Ok(set),
            other if begun.elapsed() > LIMIT => anyhow::bail!("not in {LIMIT:?}: {what}: {other:?}"),
            _ => std::thread::sleep(POLL),
        }
    }
}

/// Number of the set's objects by data key in their headers.
fn under(folder: &Path) -> Result<BTreeMap<u32, u64>> {
    let (mut found, mut folders) = (BTreeMap::new(), vec![folder.join("sets")]);
    while let Some(at) = folders.pop() {
        for entry in std::fs::read_dir(&at)? {
            let path = entry?.path();
            if path.is_dir() {
                folders.push(path);
                continue;
            }
            // Ignores objects that were deleted meanwhile.
            let Ok(bytes) = std::fs::read(&path) else { continue };
            if bytes.starts_with(b"HOLDFAST")
                && let Some(id) = bytes.get(KEY_ID_AT..KEY_ID_AT + 4)
            {
                let id = u32::from_le_bytes(id.try_into().unwrap_or_default());
                *found.entry(id).or_default() += 1;
            }
        }
    }
    Ok(found)
}

/// All disks are lost: the head has everything that recovery needs.
fn recovered(lab: &Lab, cluster: Cluster, known: &Known, load: &mut Load) -> Result<()> {
    cluster.kill_all()?;
    let new = Hand::anew(lab, known, "new")?;
    must(new.recover(known, &known.store, &known.key())?, "recover")?;
    let mut client = new.connect()?;
    load.check(&mut client).context("recovered")?;
    client.disconnect();
    note("recovered from the store");
    new.kill()
}
