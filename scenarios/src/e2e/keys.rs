//! The cluster key is changed under load: refused while a gateway does not have the new key, interrupted by a kill of
//! the serving gateway, then completed. Afterwards the new key alone starts the gateways, reads the store and recovers
//! the set after the loss of all disks; the old key decrypts nothing.

mod sources;

use super::blocks::Load;
use super::recover::{Hand, Known, REFUSED, holdfast, must};
use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, SET};
use crate::cmd::cmd;
use crate::say::note;
use anyhow::{Context, Result};
use serde_json::Value;
pub(super) use sources::run as run_sources;
use std::path::Path;
use std::time::Duration;

const WRITERS: u64 = 2;
const BLOCKS_EACH: u64 = 1024;
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn run(lab: &Lab) -> Result<()> {
    let folder = std::path::absolute(lab.dir.join("store"))?;
    let store = format!("file://{}", folder.display());
    let mut cluster = lab.cluster_with("64MiB", Some(store.clone()), Vec::new())?;
    let known = Known::on(&cluster, store.clone(), Vec::new())?;
    let (old_key, new_key) = (known.key(), lab.dir.join("new.key").display().to_string());
    std::fs::write(&new_key, "5e".repeat(32))?;
    std::fs::set_permissions(&new_key, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
    cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "1m"])?;
    let ask = |args: &[&str]| holdfast(lab, &known.env, &known.doors, args);
    let verify = |key: &str| ask(&["verify", "--store", &store, "--key-file", key]);
    let refused = |key: &str| -> Result<()> {
        let (code, said) = verify(key)?;
        let named = said.to_string().contains("another passphrase or key file");
        anyhow::ensure!(code != 0 && named, "verify with {key}: exit code {code}, {said}");
        Ok(())
    };
    // The other way round first, which shows that the change has an effect.
    must(verify(&old_key)?, "verify with the old key")?;
    refused(&new_key)?;
    let mut load = Load::new(WRITERS, BLOCKS_EACH);
    load.run(&cluster.exports(), |_| {
        both_keys(&mut cluster, &known, 0, &new_key, &old_key)?;
        let (code, said) = ask(&["key", "rotate-cluster"])?;
        let named = ["gateway g1", "gateway g2", "gateway g3"].iter().any(|g| said.to_string().contains(g));
        // A leader with only the old key reports nothing to do, except for the gateway that has both keys.
        anyhow::ensure!(code == REFUSED && named, "only g1 has the new key: exit code {code}, {said}");
        let listed = ask(&["key", "list"])?.1;
        let by = |v: &Value| v["sets"][0]["wrapped_by"].as_str().map(str::to_owned).context("no set listed");
        let before = by(&listed)?;
        note(format!("refused while two gateways lack the new key; {SET} is wrapped by {before}"));
        for index in [1, 2] {
            both_keys(&mut cluster, &known, index, &new_key, &old_key)?;
        }
        cut_short(lab, &mut cluster, &known)?;
        let done = must(ask(&["key", "rotate-cluster", "--timeout", "1m"])?, "key rotate-cluster")?;
        let after = by(&done)?;
        anyhow::ensure!(after != before && done["current"] == after.as_str(), "still wrapped by {before}: {done}");
        let again = must(ask(&["key", "rotate-cluster", "--timeout", "1m"])?, "key rotate-cluster once more")?;
        anyhow::ensure!(by(&again)? == after, "once more: {again}");
        let nodes = done["gateways"].as_array().context("no gateways")?;
        anyhow::ensure!(nodes.iter().all(|g| g["keys"]["node"] == after.as_str()), "node keys: {done}");
        note(format!("wrapped by {after}, node keys and heads too"));
        for index in 0..3 {
            settings(&known, index, &new_key, None)?;
            again_up(&mut cluster, index)?;
        }
        Ok(())
    })?;
    note(format!("{} pairs answered meanwhile", load.progress().answered()));
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    load.check(&mut client).context("with the new key alone")?;
    client.disconnect();
    cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "1m"])?;
    must(verify(&new_key)?, "verify with the new key")?;
    refused(&old_key)?;
    note("verify opens the store with the new key, and not with the old one");
    recovered(lab, cluster, &known, [&old_key, &new_key], &mut load)
}

/// Sets the keys in a gateway's settings, for its next start.
fn settings(known: &Known, index: usize, key: &str, previous: Option<&str>) -> Result<()> {
    let path = known.dir.join(format!("{}.toml", known.names[index]));
    put(&path, &source(index, key), previous.map(|previous| source(index, previous)).as_deref())
}

/// Replaces the sections of the keys in a file of settings: each is given as its lines.
fn put(path: &Path, key: &str, previous: Option<&str>) -> Result<()> {
    let text = std::fs::read_to_string(path)?;
    let (mut out, mut inside, mut set) = (String::new(), false, 0);
    for line in text.lines() {
        if line.starts_with('[') {
            inside = matches!(line, "[key]" | "[key_previous]");
        } else if inside {
            continue;
        }
        if line != "[key_previous]" {
            out.push_str(line);
            out.push('\n');
        }
        if line == "[key]" {
            out.push_str(&format!("{key}\n"));
            set += 1;
        }
    }
    anyhow::ensure!(set == 1, "{}: found {set} sections [key]", path.display());
    if let Some(previous) = previous {
        out.push_str(&format!("\n[key_previous]\n{previous}"));
    }
    std::fs::write(path, out)?;
    Ok(())
}

/// Where a gateway has a key from: the second one has it from a command, which opens the file as an envelope.
fn source(index: usize, key: &str) -> String {
    if index == 1 { format!("command = [\"/bin/cat\"]\nenvelope = {key:?}\n") } else { format!("file = {key:?}\n") }
}

fn both_keys(cluster: &mut Cluster, known: &Known, index: usize, key: &str, previous: &str) -> Result<()> {
    settings(known, index, key, Some(previous))?;
    again_up(cluster, index)
}

fn again_up(cluster: &mut Cluster, index: usize) -> Result<()> {
    cluster.kill(index)?;
    cluster.restart(index)?;
    cluster.caught_up(LIMIT)
}

/// The change begins, and the serving gateway is killed during it.
fn cut_short(lab: &Lab, cluster: &mut Cluster, known: &Known) -> Result<()> {
    let led = cluster.holdfast(&["set", "show", SET])?;
    let leader = led["leader"]["name"].as_str().context("the set has no leader")?.to_owned();
    let serving = known.names.iter().position(|name| *name == leader).context("an unknown leader")?;
    let mut command = cmd(&lab.bin)
        .args(["key", "rotate-cluster", "--timeout", "20s", "--api", &known.doors.join(",")])
        .into_command();
    let mut running = command.stdout(std::process::Stdio::null()).stderr(std::process::Stdio::null()).spawn()?;
    cluster.kill(serving)?;
    cluster.restart(serving)?;
    let ended = running.wait()?;
    cluster.caught_up(LIMIT)?;
    note(format!("{leader} killed during the change: the command ended with {ended}"));
    Ok(())
}

/// All disks are lost: the new key recovers the set, the old one does not.
fn recovered(lab: &Lab, cluster: Cluster, known: &Known, keys: [&str; 2], load: &mut Load) -> Result<()> {
    cluster.kill_all()?;
    let new = Hand::anew(lab, known, "new")?;
    let recover = |key: &str| new.recover(known, &known.store, key);
    let (code, said) = recover(keys[0])?;
    anyhow::ensure!(code != 0, "recovered with the old key: {said}");
    must(recover(keys[1])?, "recover with the new key")?;
    let mut client = new.connect()?;
    load.check(&mut client).context("recovered with the new key")?;
    client.disconnect();
    note("recovered from the store with the new key; the old one was refused");
    new.kill()
}
