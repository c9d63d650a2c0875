//! A synced part of a stopped follower's journal is damaged under load: first one byte of an entry, then the header of
//! a whole file. The follower reports it, leaves the groups that may have lost entries, gets them again from its peers,
//! and ends as a voter on which a quorum depends (R9). The others keep serving.

use super::blocks::Load;
use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::Cluster;
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result, bail};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);
const HEAL_LIMIT: Duration = Duration::from_secs(120);

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut cluster = lab.cluster("512MiB")?;
    let serving = cluster.serving(TAKEOVER_LIMIT)?;
    let others = cluster.others(serving);
    let (hurt, other) = (others[0], others[1]);
    let mut load = Load::new(4, 8192);
    load.run(&cluster.exports(), |progress| {
        for (what, damage) in [("a byte of an entry", flip_entry as Damage), ("a file's header", flip_header)] {
            let from = progress.answered();
            let busy = wait_until(PATIENCE, || progress.answered() > from + 2000);
            anyhow::ensure!(busy, "too little load before the damage");
            damage_and_heal(&mut cluster, hurt, what, damage).with_context(|| what)?;
            let before = progress.answered();
            anyhow::ensure!(wait_until(PATIENCE, || progress.answered() > before), "the load stands still");
        }
        Ok(())
    })?;
    let (pairs, again) = (load.progress().answered(), load.progress().reconnected());
    anyhow::ensure!(again == 0, "{again} connections to {} were closed meanwhile", cluster.name(serving));
    note(format!(
        "{pairs} pairs acknowledged meanwhile, no connection closed, slowest {:?}",
        load.progress().slowest()
    ));

    carries(&mut cluster, &mut load, [serving, other, hurt], "healed")?;
    cluster.stop()?;
    Ok(())
}

/// The majority needs the gateway that is back: `other` is killed, and then `serving`. Everything is there.
pub(super) fn carries(
    cluster: &mut Cluster,
    load: &mut Load,
    [serving, other, back]: [usize; 3],
    what: &str,
) -> Result<()> {
    let meanwhile = || format!("with the {what} member in the quorum");
    cluster.kill(other)?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT).with_context(meanwhile)?;
    load.write(&mut client, 50).with_context(meanwhile)?;
    load.check(&mut client)?;
    client.disconnect();
    note(format!("{} killed: the {what} {} carries the quorum", cluster.name(other), cluster.name(back)));
    cluster.restart(other)?;
    cluster.caught_up(HEAL_LIMIT)?;
    cluster.kill(serving)?;
    let (next, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    load.check(&mut client)?;
    client.disconnect();
    note(format!("{} killed: {} serves all of it", cluster.name(serving), cluster.name(next)));
    Ok(())
}

/// Damages something in the journal's folder; returns the file.
type Damage = fn(&Path) -> Result<PathBuf>;

fn damage_and_heal(cluster: &mut Cluster, hurt: usize, what: &str, damage: Damage) -> Result<()> {
    let member = cluster.member(hurt)?;
    cluster.kill(hurt)?;
    let name = cluster.name(hurt);
    // `holdfast dev` puts the data of g2 into DIR/g2.
    let journal = folder_named(&cluster.options.dir.join(&name), "journal")?;
    let file = damage(&journal)?;
    let file = file.file_name().and_then(|n| n.to_str()).context("a journal file without a name")?.to_owned();
    let begun = Instant::now();
    cluster.restart(hurt)?;
    let log = cluster.options.dir.with_extension(format!("{name}.log"));
    let named = || {
        let said = std::fs::read_to_string(&log).unwrap_or_default();
        said.lines().rev().any(|line| line.contains("R9") && line.contains(&file))
    };
    anyhow::ensure!(wait_until(PATIENCE, named), "{name} does not name {file} in {}", log.display());
    await_whole(cluster, hurt, HEAL_LIMIT)?;
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    let groups = said.lines().filter(|line| line.contains("healed from its peers")).count();
    anyhow::ensure!(groups > 0, "{name} came back without a repair: the damage was not found");
    cluster.caught_up(HEAL_LIMIT)?;
    anyhow::ensure!(cluster.member(hurt)? == member, "{name} is another member now");
    note(format!("{what} of {file}: {name} (m{member}) voter again after {:.1} s", begun.elapsed().as_secs_f64()));
    Ok(())
}

/// Waits until a gateway is a healthy voter of every set's group, and in group 0. Fails when `limit` passes first; the
/// error says what is missing.
pub(super) fn await_whole(cluster: &Cluster, index: usize, limit: Duration) -> Result<()> {
    let mut left = String::new();
    let whole = wait_until(limit, || {
        left = not_whole(cluster, index).map_or_else(|e| format!("{e:#}"), Option::unwrap_or_default);
        left.is_empty()
    });
    anyhow::ensure!(whole, "{} is no voter of every group after {limit:?}: {left}", cluster.name(index));
    Ok(())
}

/// Why a gateway is not a healthy voter of every group yet.
fn not_whole(cluster: &Cluster, index: usize) -> Result<Option<String>> {
    let status = cluster.holdfast(&["cluster", "status"])?;
    let name = cluster.name(index);
    let members = status["members"].as_array().context("status without members")?;
    let own = members.iter().find(|m| m["member"]["name"] == name.as_str()).context("not a member")?;
    let id = own["member"]["id"].clone();
    if let Some(why) = own["node"]["not_ready"].as_str().filter(|why| !why.is_empty()) {
        return Ok(Some(why.to_owned()));
    }
    let known = status["groups"].as_array().map_or(0, Vec::len);
    for node in members {
        let groups = node["node"]["groups"].as_array().context("a member without groups")?;
        anyhow::ensure!(groups.len() == known, "{} of {known} groups at {}", groups.len(), node["member"]["name"]);
        for group in groups {
            let has = |what: &str| group[what].as_array().is_some_and(|all| all.contains(&id));
            // Of group 0 some vote, and all others learn it (ADR 0075).
            let is_part = has("voters") || (group["group"] == 0 && has("learners"));
            if !is_part {
                return Ok(Some(format!("no voter of group {} for {}", group["group"], node["member"]["name"])));
            }
        }
    }
    Ok(None)
}

pub(super) fn folder_named(below: &Path, name: &str) -> Result<PathBuf> {
    let direct = below.join(name);
    if direct.is_dir() {
        return Ok(direct);
    }
    for entry in std::fs::read_dir(below)? {
        let inner = entry?.path().join(name);
        if inner.is_dir() {
            return Ok(inner);
        }
    }
    bail!("no folder {name} below {}", below.display())
}

const BLOCK: usize = 4096;

/// The newest journal file with batches. Its records are live: not uploaded yet, or just now.
fn newest(journal: &Path) -> Result<(PathBuf, Vec<u8>)> {
    let mut files: Vec<PathBuf> = std::fs::read_dir(journal)?.map(|e| Ok(e?.path())).collect::<Result<_>>()?;
    files.retain(|path| path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.starts_with("journal-")));
    files.sort();
    for path in files.into_iter().rev() {
        let bytes = std::fs::read(&path)?;
        if batches(&bytes).len() > 8 {
            return Ok((path, bytes));
        }
    }
    bail!("no file with batches in {}", journal.display())
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    bytes.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

/// Offsets of batches as in docs/formats.md: magic, own offset at 8, length at 16.
fn batches(bytes: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut at = BLOCK;
    while bytes.get(at..at + 4) == Some(b"HFB1") && u64_at(bytes, at + 8) == at as u64 {
        found.push(at);
        at += usize::try_from(u64_at(bytes, at + 16)).unwrap_or(0).max(BLOCK);
    }
    found
}

/// Flips a byte in the middle of an entry's payload: the first record of a batch with later ones behind it, so it is
/// known synced.
fn flip_entry(journal: &Path) -> Result<PathBuf> {
    let (path, bytes) = newest(journal)?;
    let all = batches(&bytes);
    let entry = |batch: &usize| {
        let record = batch + 64;
        let payload = u64_at(&bytes, record + 32) & 0xFFFF_FFFF;
        // In a set's group, and large enough to carry user data.
        (u64_at(&bytes, record + 8) > 0 && payload >= 4096).then_some((record, payload))
    };
    let chosen = all.iter().rev().skip(4).find_map(entry).context("no entry in the newest journal file")?;
    let at = chosen.0 as u64 + 64 + chosen.1 / 2;
    flip(&path, at)?;
    Ok(path)
}

/// Flips a byte in the header of the newest file with batches: then no record in it can be trusted, of any group.
fn flip_header(journal: &Path) -> Result<PathBuf> {
    let (path, _) = newest(journal)?;
    flip(&path, 20)?;
    Ok(path)
}

fn flip(path: &Path, at: u64) -> Result<()> {
    use std::os::unix::fs::FileExt;
    let file = std::fs::OpenOptions::new().read(true).write(true).open(path)?;
    let mut byte = [0];
    file.read_exact_at(&mut byte, at)?;
    file.write_all_at(&[byte[0] ^ 0x10], at)?;
    file.sync_all()?;
    note(format!("byte {at} of {} flipped", path.display()));
    Ok(())
}
