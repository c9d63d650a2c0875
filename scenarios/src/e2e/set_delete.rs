//! A set is deleted beside another one under writes, while one gateway is down; and a second time, while the gateway
//! that leads it is killed.
//!
//! ```text
//!  load on demo ─▶ set "second": written, a snapshot ─▶ refused while connected, refused for its snapshot
//!    ─▶ one gateway is killed ─▶ deleted: its export unknown, its store empty but for the tombstone, its name free and used anew, empty
//!    ─▶ a late object of the dead gateway arrives ─▶ that gateway is back: it ends the set too, and the late object is gone
//!    ─▶ "second" again: its own gateway dies during the deletion ─▶ the same
//!    ─▶ on no disk and not in the store: the written data, the wrapped keys, the groups' files ─▶ demo is complete
//! ```

use super::blocks::Load;
use super::recover::{Known, holdfast, must};
use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, SET};
use crate::cmd::cmd;
use crate::nbd::{Client, NbdError};
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Written all over the deleted set.
const TEXT: &[u8] = b"holdfast forgets this for ever: ";
const BLOCK: usize = 64 << 10;
const BLOCKS: u64 = 96;
const PATIENCE: Duration = Duration::from_secs(20);
const LIMIT: Duration = Duration::from_secs(90);
const SECOND: &str = "second";
/// Its volume.
const VOLUME: &str = "second/v";
/// Length of the searched end of a wrapped key: random in each wrapping.
const NEEDLE_BYTES: usize = 32;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let folder = std::path::absolute(lab.dir.join("store"))?;
    let store = format!("file://{}", folder.display());
    // Every byte of the cache's files is searched at the end, and they have full size: all written data fits into this.
    let mut cluster = lab.cluster_as("64MiB", Some(store.clone()), &["cache.disk=128MiB"], Vec::new())?;
    let known = Known::on(&cluster, store.clone(), Vec::new())?;
    let mut load = Load::new(2, 512);
    let mut needles = Vec::new();
    let exports = cluster.exports();
    load.run(&exports, |_| {
        make(&mut cluster, &store)?;
        let first = number(&cluster)?;
        needles.push(key_in_head(&folder, first)?);
        refusals(lab, &mut cluster, &known)?;
        with_one_away(lab, &mut cluster, &known, &folder, first)?;
        let second = number(&cluster)?;
        anyhow::ensure!(second != first, "CLUSTER-C1: the number {first} was used again");
        needles.push(key_in_head(&folder, second)?);
        while_its_gateway_dies(lab, &mut cluster, &known, &folder, second)?;
        for id in [first, second] {
            gone_from_disks(&cluster, &known, id)?;
            only_a_tombstone(&folder, id)?;
        }
        Ok(())
    })?;
    note(format!("{} pairs of demo answered meanwhile", load.progress().answered()));
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    load.check(&mut client).context("the other set")?;
    client.disconnect();
    cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "1m"])?;
    let verified = holdfast(lab, &[], &known.doors, &["verify", "--store", &store, "--key-file", &known.key()])?;
    let verified = must(verified, "verify")?;
    anyhow::ensure!(verified["sets"].as_array().is_some_and(|sets| sets.len() == 1), "verify: {verified}");
    note("demo is whole, in the gateways and in the store");
    let dirs: Vec<PathBuf> = known.names.iter().map(|name| known.dir.join(name)).collect();
    cluster.kill_all()?;
    let found = search(dirs.iter().chain([&folder]), &needles)?;
    anyhow::ensure!(found.is_empty(), "written data or a wrapped key can still be read: {found:?}");
    note("neither written data nor a wrapped key is on any disk or in the store");
    Ok(())
}

/// A set with a volume, data in the store, and a snapshot.
fn make(cluster: &mut Cluster, store: &str) -> Result<()> {
    cluster.holdfast(&["set", "create", SECOND, "--store", store, "--volume", "v=16MiB", "--timeout", "60s"])?;
    let mut client = cluster.open(VOLUME, TAKEOVER_LIMIT)?;
    let read = client.read(0, BLOCK as u32)?;
    anyhow::ensure!(read.iter().all(|byte| *byte == 0), "a new set shows something");
    for block in 0..BLOCKS {
        client.write(block * BLOCK as u64, &contents())?;
    }
    client.flush()?;
    client.disconnect();
    cluster.holdfast(&["snapshot", "create", "second@keep", "--timeout", "60s"])?;
    Ok(())
}

fn contents() -> Vec<u8> {
    TEXT.iter().copied().cycle().take(BLOCK).collect()
}

fn number(cluster: &Cluster) -> Result<u64> {
    let listed = cluster.holdfast(&["set", "list"])?;
    let sets = listed["sets"].as_array().context("no sets listed")?;
    let found = sets.iter().find(|set| set["name"] == SECOND).context("it is not listed")?;
    found["id"].as_u64().context("a set without a number")
}

/// The end of the wrapped key, which the head in the store has in plaintext: the search must be able to find one.
fn key_in_head(folder: &Path, id: u64) -> Result<Vec<u8>> {
    let path = folder.join(format!("sets/{id}/head"));
    let bytes = std::fs::read(&path).with_context(|| format!("{}", path.display()))?;
    let at = bytes.windows(4).position(|window| window == b"HFK\x01").context("no keyring in the head")?;
    let length = usize::from(*bytes.get(at + 4).context("a short head")?);
    anyhow::ensure!((NEEDLE_BYTES..128).contains(&length), "a wrapped key of {length} bytes");
    let end = at + 5 + length;
    let needle = bytes.get(end - NEEDLE_BYTES..end).context("a short head")?.to_vec();
    anyhow::ensure!(
        !search([&folder.to_path_buf()], std::slice::from_ref(&needle))?.is_empty(),
        "this search is blind"
    );
    Ok(needle)
}

fn refusals(lab: &Lab, cluster: &mut Cluster, known: &Known) -> Result<()> {
    let refused = |args: &[&str], says: &str| -> Result<()> {
        let (code, said) = holdfast(lab, &[], &known.doors, &[&["set", "delete", SECOND, "--yes"], args].concat())?;
        anyhow::ensure!(code != 0 && said.to_string().contains(says), "{args:?}: exit code {code}, {said}");
        Ok(())
    };
    let client = cluster.open(VOLUME, TAKEOVER_LIMIT)?;
    refused(&["--with-snapshots"], "--force")?;
    drop(client);
    let free = || cluster.holdfast(&["lease", "show", SECOND]).is_ok_and(|said| said["lease"].is_null());
    anyhow::ensure!(wait_until(PATIENCE, free), "the plain lease does not end");
    refused(&[], "--with-snapshots")?;
    note("refused while a client is connected, and while it has a snapshot");
    Ok(())
}

fn deletion(said: &Value, id: u64) -> Option<Value> {
    said["deletions"].as_array()?.iter().find(|found| found["id"].as_u64() == Some(id)).cloned()
}

fn with_one_away(lab: &Lab, cluster: &mut Cluster, known: &Known, folder: &Path, id: u64) -> Result<()> {
    let serving = cluster.serving(TAKEOVER_LIMIT)?;
    let away = (serving + 1) % 3;
    cluster.kill(away)?;
    let waits = |said: &Value| {
        said["waits_for"].as_array().is_some_and(|all| all.iter().any(|g| *g == known.names[away].as_str()))
    };
    let args = ["set", "delete", SECOND, "--yes", "--with-snapshots", "--timeout", "90s"];
    let said = must(holdfast(lab, &[], &known.doors, &args)?, "set delete")?;
    anyhow::ensure!(
        said["name_free"] == true && waits(&said["deletion"]),
        "deleted with {} away: {said}",
        known.names[away]
    );
    only_a_tombstone(folder, id)?;
    for (at, uri) in cluster.exports().iter().enumerate().filter(|(at, _)| *at != away) {
        match Client::connect(&uri.with_export("second/v"), PATIENCE) {
            Err(NbdError::Refused(_)) => {}
            Err(error) => bail!("{}: {error}, expected an unknown export", known.names[at]),
            Ok(_) => bail!("{} still serves the deleted set", known.names[at]),
        }
    }
    note(format!("deleted with {} away: its store is empty, its name is free", known.names[away]));
    // The name is reused at once; and a PUT of the dead gateway arrives late.
    let store = format!("file://{}", folder.display());
    make(cluster, &store)?;
    let late = format!("{}-{}", ["0000000000000001"; 3].join("-"), "5e".repeat(16));
    let late = folder.join(format!("sets/{id}/seg/{late}"));
    std::fs::create_dir_all(late.parent().context("no folder")?)?;
    std::fs::write(&late, b"late")?;
    let listed = cluster.holdfast(&["set", "list"])?;
    let named = deletion(&listed, id).is_some_and(|found| found["stage"] == "emptied" && waits(&found));
    anyhow::ensure!(named, "the list does not name the gateways that have not ended it: {listed}");
    cluster.restart(away)?;
    // A gateway that has just started may not know of the deletion, and lists none: the late object must be gone too.
    // If the record went before it, nothing would ever delete it.
    let over = || !late.exists() && cluster.holdfast(&["set", "list"]).is_ok_and(|said| deletion(&said, id).is_none());
    let over = wait_until(LIMIT, over);
    anyhow::ensure!(!late.exists(), "DELETE-D4: the late object is still there");
    anyhow::ensure!(over, "{} is back, and the deletion is still under way", known.names[away]);
    cluster.caught_up(LIMIT)?;
    let mut client = cluster.open(VOLUME, TAKEOVER_LIMIT)?;
    for block in 0..BLOCKS {
        let read = client.read(block * BLOCK as u64, BLOCK as u32)?;
        anyhow::ensure!(read == contents(), "block {block} of the new set of that name");
    }
    client.disconnect();
    note(format!(
        "{} is back and has ended it as well; what came late is gone; the new set of that name is whole",
        known.names[away]
    ));
    Ok(())
}

/// The gateway that leads the set is killed during a forced deletion.
fn while_its_gateway_dies(lab: &Lab, cluster: &mut Cluster, known: &Known, folder: &Path, id: u64) -> Result<()> {
    let led = cluster.holdfast(&["set", "show", SECOND])?;
    let leader = led["leader"]["name"].as_str().context("the set has no leader")?.to_owned();
    let dies = known.names.iter().position(|name| *name == leader).context("an unknown leader")?;
    let client = cluster.open(VOLUME, TAKEOVER_LIMIT)?;
    let doors = known.doors.join(",");
    let args = ["set", "delete", SECOND, "--yes", "--force", "--with-snapshots", "--timeout", "60s", "--api", &doors];
    let mut running = cmd(&lab.bin)
        .args(args)
        .into_command()
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()?;
    // As soon as any gateway knows of it.
    let heard = || cluster.holdfast(&["set", "list"]).is_ok_and(|said| deletion(&said, id).is_some());
    let heard = wait_until(PATIENCE, heard);
    cluster.kill(dies)?;
    cluster.restart(dies)?;
    let ended = running.wait()?;
    anyhow::ensure!(heard, "no gateway knows of the deletion, which ended with {ended}");
    drop(client);
    let over = || {
        cluster
            .holdfast(&["set", "list"])
            .is_ok_and(|said| deletion(&said, id).is_none() && !said.to_string().contains("\"second\""))
    };
    anyhow::ensure!(wait_until(LIMIT, over), "the deletion does not end");
    only_a_tombstone(folder, id)?;
    note(format!(
        "{leader}, which led it, died while it was deleted: it is gone all the same (the command ended with {ended})"
    ));
    Ok(())
}

/// DELETE-D3: one small object of the whole set is left, without a key.
fn only_a_tombstone(folder: &Path, id: u64) -> Result<()> {
    let files = files_below(&folder.join(format!("sets/{id}")))?;
    let names: Vec<String> = files.iter().map(|path| path.display().to_string()).collect();
    anyhow::ensure!(files.len() == 1 && names[0].ends_with("/head"), "set {id} in the store: {names:?}");
    let bytes = std::fs::read(&files[0])?;
    let keyless = bytes.windows(5).any(|window| window == b"HFK\x01\x00");
    anyhow::ensure!(keyless && bytes.len() < 1024, "the head of set {id} is no tombstone: {} bytes", bytes.len());
    Ok(())
}

/// Of its group a note is left, and of the rest nothing.
fn gone_from_disks(cluster: &Cluster, known: &Known, id: u64) -> Result<()> {
    for name in &known.names {
        let all = files_below(&known.dir.join(name))?;
        let of_it = |path: &&PathBuf| {
            let file = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
            file.starts_with(&format!("group-{id}.")) || file == format!("scrub-{id}") || file == format!("fenced-{id}")
        };
        let left: Vec<String> = all.iter().filter(of_it).map(|path| path.display().to_string()).collect();
        let note = format!("group-{id}.ended");
        anyhow::ensure!(left.len() == 1 && left[0].ends_with(&note), "{name} has of set {id}: {left:?}");
    }
    let status = cluster.holdfast(&["cluster", "status"])?;
    for member in status["members"].as_array().context("no members")? {
        let groups = member["node"]["groups"].as_array().context("no groups")?;
        anyhow::ensure!(
            groups.iter().all(|group| group["group"].as_u64() != Some(id)),
            "group {id} still runs: {member}"
        );
    }
    Ok(())
}

fn files_below(dir: &Path) -> Result<Vec<PathBuf>> {
    let (mut found, mut left) = (Vec::new(), vec![dir.to_path_buf()]);
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(&dir).with_context(|| format!("{}", dir.display()))? {
            let entry = entry?;
            match entry.file_type()? {
                kind if kind.is_dir() => left.push(entry.path()),
                kind if kind.is_file() => found.push(entry.path()),
                _ => {}
            }
        }
    }
    Ok(found)
}

/// Files with the written data, or with one of the needles.
fn search<'a>(dirs: impl IntoIterator<Item = &'a PathBuf>, needles: &[Vec<u8>]) -> Result<Vec<PathBuf>> {
    let mut hits = Vec::new();
    for dir in dirs {
        for path in files_below(dir)? {
            let bytes = std::fs::read(&path).with_context(|| format!("{}", path.display()))?;
            let wanted: Vec<&[u8]> = needles.iter().map(Vec::as_slice).chain([TEXT]).collect();
            let shows = |needle: &[u8]| bytes.windows(needle.len()).any(|w| w[0] == needle[0] && w == needle);
            if wanted.into_iter().any(shows) {
                hits.push(path);
            }
        }
    }
    Ok(hits)
}
