//! Volumes are created, grown, shrunk, renamed and deleted, while others are written; and the space of deleted data is
//! freed.
//!
//! ```text
//!  16 TiB are trimmed that nothing was ever written to: nothing but entries of the log
//!  load on vol2 all the time ─▶ vol1 grows, is refused to shrink, shrinks by force: errors beyond its end, grows again: zeroes there
//!    ─▶ renamed once no client is connected ─▶ vol3 is deleted while it is written: errors, for it alone; then a new, empty one of its name
//!    ─▶ its snapshot shows it still ─▶ kill -9 of the serving gateway, vol4 is deleted meanwhile ─▶ all others are whole
//!    ─▶ the snapshot goes: the store shrinks ─▶ rollback brings a deleted volume back, and takes a newer one away
//! ```

use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, SET};
use crate::nbd::{Client, NbdError, Uri, pattern, tag_of};
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(30);
const SETTLE_LIMIT: Duration = Duration::from_secs(120);
/// A thin volume, and its longest trim: whole sectors within NBD's 32 bits.
const THIN: u64 = 16 << 40;
const TRIM: u64 = (1 << 32) - 512;
/// Upper bound for entry and operation of one trim in the journal.
const TRIM_BYTES: u64 = 512;
/// Errors that a client gets beyond the end of a volume: EINVAL to a read, ENOSPC to a write.
const EINVAL: u32 = 22;
const ENOSPC: u32 = 28;

/// Writes a volume repeatedly, until told to stop.
struct Load {
    stop: Arc<AtomicBool>,
    lost: Arc<AtomicU64>,
    thread: std::thread::JoinHandle<Result<Wrote>>,
}

/// State of a block: the last answered write, and one with unknown outcome.
struct Wrote {
    blocks: Vec<(u64, u64)>,
    writes: u64,
    /// The error that ended it.
    refused: Option<u32>,
}

impl Load {
    fn start(cluster: &Cluster, volume: &str, bytes: u64) -> Self {
        let uris: Vec<Uri> = cluster.exports().iter().map(|uri| uri.with_export(&format!("{SET}/{volume}"))).collect();
        let (stop, lost) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
        let (told, count) = (stop.clone(), lost.clone());
        let thread = std::thread::spawn(move || write_until(&uris, bytes, &told, &count));
        Self { stop, lost, thread }
    }

    fn end(self) -> Result<Wrote> {
        self.stop.store(true, Ordering::Release);
        self.thread.join().map_err(|_| anyhow::anyhow!("the writer panicked"))?
    }
}

fn write_until(uris: &[Uri], bytes: u64, stop: &AtomicBool, lost: &AtomicU64) -> Result<Wrote> {
    let mut wrote = Wrote { blocks: vec![(0, 0); (bytes / BLOCK) as usize], writes: 0, refused: None };
    let mut client: Option<Client> = None;
    for (at, tag) in (1..).enumerate() {
        if stop.load(Ordering::Acquire) {
            break;
        }
        let block = at % wrote.blocks.len();
        wrote.blocks[block].1 = tag;
        let offset = block as u64 * BLOCK;
        loop {
            if client.is_none() {
                let found = uris.iter().find_map(|uri| Client::connect(uri, Duration::from_secs(5)).ok());
                client = found;
            }
            let Some(open) = client.as_mut() else {
                if stop.load(Ordering::Acquire) {
                    return Ok(wrote);
                }
                continue;
            };
            match open.write(offset, &pattern(tag, offset, BLOCK as usize)) {
                Ok(()) => {
                    wrote.blocks[block] = (tag, tag);
                    wrote.writes += 1;
                    break;
                }
                Err(NbdError::Errno(errno)) => {
                    wrote.refused = Some(errno);
                    return Ok(wrote);
                }
                Err(_) => {
                    lost.fetch_add(1, Ordering::AcqRel);
                    client = None;
                }
            }
        }
    }
    Ok(wrote)
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    let settings = ["upload.interval_ms=500", "space.grace_ms=1000", "space.sweep_interval_ms=2000"];
    let mut cluster = Cluster::start(lab.options("64MiB", &settings))?;
    let store = cluster.options.dir.join("store");
    let ready = wait_until(SETTLE_LIMIT, || volume(&cluster, &["grow", "demo/vol1", "--size", "64MiB"]).is_ok());
    anyhow::ensure!(ready, "vol1 cannot be grown");
    for (name, size) in [("vol2", "16MiB"), ("vol3", "48MiB"), ("vol4", "48MiB")] {
        let made = volume(&cluster, &["create", &of(name), "--size", size])?;
        anyhow::ensure!(made["created"] == true, "{made}");
        let again = volume(&cluster, &["create", &of(name), "--size", size])?;
        anyhow::ensure!(again["created"] == false, "{again}");
    }
    thin(&mut cluster)?;
    let load = Load::start(&cluster, "vol2", 16 * MIB);
    resize(&mut cluster)?;
    rename(&mut cluster)?;
    delete(&mut cluster)?;
    anyhow::ensure!(load.lost.load(Ordering::Acquire) == 0, "the writer of another volume lost its connection");
    note("grown, shrunk, renamed, deleted: the writer of another volume noticed nothing");

    // The serving gateway is killed, and a volume is deleted while the next one takes over.
    let serving = cluster.serving(TAKEOVER_LIMIT)?;
    let mut fourth = open(&mut cluster, "vol4")?;
    fill(&mut fourth, 4, 48)?;
    drop(fourth);
    cluster.kill(serving)?;
    volume(&cluster, &["delete", &of("vol4"), "--yes", "--force", "--timeout", "60s"])?;
    cluster.restart(serving)?;
    cluster.caught_up(SETTLE_LIMIT)?;
    let listed = names(&cluster)?;
    anyhow::ensure!(listed == ["vol1", "vol2", "vol3"], "the volumes after the kill: {listed:?}");
    let wrote = load.end()?;
    anyhow::ensure!(wrote.refused.is_none(), "the writer of another volume got the error {:?}", wrote.refused);
    let mut second = open(&mut cluster, "vol2")?;
    for (block, (answered, maybe)) in wrote.blocks.iter().enumerate() {
        let offset = block as u64 * BLOCK;
        let found = tag_of(&second.read(offset, BLOCK as u32)?, offset)?;
        anyhow::ensure!(
            found == *answered || found == *maybe,
            "R1: block {block} has write {found}, expected {answered}"
        );
    }
    drop(second);
    check(&mut open(&mut cluster, "vol1")?, 1, 0, 32).context("the renamed volume")?;
    note(format!(
        "{} killed, a volume deleted meanwhile: {} writes of another one are there",
        cluster.name(serving),
        wrote.writes
    ));
    back(&mut cluster, &store)?;
    cluster.stop()?;
    Ok(())
}

/// Before any write. Its entries are counted; the time is only printed.
fn thin(cluster: &mut Cluster) -> Result<()> {
    volume(cluster, &["create", &of("thin"), "--size", "16TiB"])?;
    let before = checkpoint(cluster)?;
    let mut client = open(cluster, "thin")?;
    let (begun, mut trims) = (Instant::now(), 0);
    for at in (0..THIN).step_by(TRIM as usize) {
        client.trim(at, TRIM.min(THIN - at) as u32)?;
        trims += 1;
    }
    let trimmed = begun.elapsed();
    client.disconnect();
    let journal = space(cluster)?["journal_bytes"].as_u64().context("the report has no bytes in the journal")?;
    anyhow::ensure!(journal <= trims * TRIM_BYTES, "{trims} trims: {journal} bytes in the journal");
    let begun = Instant::now();
    let entries = checkpoint(cluster)? - before;
    let saved = begun.elapsed();
    // Plus renewals of the lease and entries of checkpoints: a few each second.
    anyhow::ensure!((trims..=2 * trims).contains(&entries), "{trims} trims: {entries} entries in the log");
    let space = space(cluster)?;
    for nothing in ["written_bytes", "current_stored_bytes", "garbage_bytes"] {
        anyhow::ensure!(space[nothing] == 0, "{nothing} after trims of a volume that nothing was written to: {space}");
    }
    let all = space["volumes"].as_array().context("space without volumes")?;
    let found = all.iter().find(|one| one["volume"]["name"] == "thin").context("no space of the thin volume")?;
    anyhow::ensure!(found["mapped_bytes"] == 0, "found pages of the map for trimmed ranges, expected none: {found}");
    volume(cluster, &["delete", &of("thin"), "--yes", "--force"])?;
    note(format!(
        "16 TiB trimmed in {trims} requests, {:.1} s, and a checkpoint in {:.1} s: {entries} entries, no page of the map",
        trimmed.as_secs_f64(),
        saved.as_secs_f64()
    ));
    Ok(())
}

/// The index that a checkpoint made now covers.
fn checkpoint(cluster: &Cluster) -> Result<u64> {
    let said = cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "60s"])?;
    said["checkpoint_index"].as_u64().with_context(|| format!("a checkpoint without its index: {said}"))
}

/// The leader's complete report on space.
fn space(cluster: &Cluster) -> Result<Value> {
    let mut said = Value::Null;
    let known = wait_until(PATIENCE, || {
        let shown = cluster.holdfast(&["set", "show", SET]);
        said = shown.map_or(Value::Null, |shown| shown["space"].clone());
        said["incomplete"] == false
    });
    anyhow::ensure!(known, "the set's space is not known: {said}");
    Ok(said)
}

fn resize(cluster: &mut Cluster) -> Result<()> {
    let mut first = open(cluster, "vol1")?;
    fill(&mut first, 1, 64)?;
    expect(first.write(64 * MIB, &pattern(1, 64 * MIB, BLOCK as usize)), ENOSPC, "a write beyond the end")?;
    volume(cluster, &["grow", "demo/vol1", "--size", "96MiB"])?;
    let mut grown = open(cluster, "vol1")?;
    zeroes(&mut grown, 64, 96)?;
    grown.write(95 * MIB, &pattern(1, 95 * MIB, BLOCK as usize))?;
    drop(grown);
    for args in
        [&["--size", "32MiB"][..], &["--size", "32MiB", "--discard-data"], &["--size", "128MiB", "--discard-data"]]
    {
        let shrink = [&["shrink", "demo/vol1"][..], args].concat();
        anyhow::ensure!(volume(cluster, &shrink).is_err(), "{shrink:?} succeeded, expected a refusal");
    }
    anyhow::ensure!(volume(cluster, &["grow", "demo/vol1", "--size", "32MiB"]).is_err(), "a volume shrank by growing");
    check(&mut first, 1, 0, 64).context("after the refused requests")?;
    volume(cluster, &["shrink", "demo/vol1", "--size", "32MiB", "--discard-data", "--force"])?;
    expect(first.write(40 * MIB, &pattern(7, 40 * MIB, BLOCK as usize)), ENOSPC, "a write beyond the new end")?;
    expect(first.read(40 * MIB, BLOCK as u32), EINVAL, "a read beyond the new end")?;
    check(&mut first, 1, 0, 32).context("what the shrink left")?;
    volume(cluster, &["grow", "demo/vol1", "--size", "96MiB"])?;
    let mut again = open(cluster, "vol1")?;
    zeroes(&mut again, 32, 96).context("grown again after a shrink")?;
    // Also after a checkpoint includes it.
    cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "60s"])?;
    zeroes(&mut again, 32, 96).context("grown again after a shrink and a checkpoint")?;
    check(&mut again, 1, 0, 32)
}

fn rename(cluster: &mut Cluster) -> Result<()> {
    let mut first = open(cluster, "vol1")?;
    anyhow::ensure!(volume(cluster, &["rename", "demo/vol1", "first"]).is_err(), "renamed under its client");
    check(&mut first, 1, 0, 32)?;
    first.disconnect();
    let renamed = wait_until(PATIENCE, || volume(cluster, &["rename", "demo/vol1", "first"]).is_ok());
    anyhow::ensure!(renamed, "not renamed although no client is connected");
    check(&mut open(cluster, "first")?, 1, 0, 32).context("by its new name")?;
    anyhow::ensure!(open(cluster, "vol1").is_err(), "the old name is still served");
    anyhow::ensure!(volume(cluster, &["rename", &of("first"), "vol2"]).is_err(), "two volumes of one name");
    // Its clients have just left; then back, since other code finds the set by this volume.
    let back = wait_until(PATIENCE, || volume(cluster, &["rename", &of("first"), "vol1"]).is_ok());
    anyhow::ensure!(back, "not renamed back");
    Ok(())
}

fn delete(cluster: &mut Cluster) -> Result<()> {
    let mut third = open(cluster, "vol3")?;
    fill(&mut third, 3, 48)?;
    cluster.holdfast(&["snapshot", "create", "demo@keep", "--timeout", "90s"])?;
    let load = Load::start(cluster, "vol3", 48 * MIB);
    anyhow::ensure!(volume(cluster, &["delete", &of("vol3"), "--yes"]).is_err(), "deleted under its client");
    let before = id(cluster, "vol3")?;
    volume(cluster, &["delete", &of("vol3"), "--yes", "--force"])?;
    let wrote = load.end()?;
    anyhow::ensure!(
        wrote.refused.is_none_or(|errno| errno == ENOSPC),
        "a writer of the deleted volume got {:?}",
        wrote.refused
    );
    expect(third.write(0, &pattern(8, 0, BLOCK as usize)), ENOSPC, "a write to a deleted volume")?;
    expect(third.read(0, BLOCK as u32), EINVAL, "a read of a deleted volume")?;
    // Its name is free, and the new volume has no foreign data.
    volume(cluster, &["create", &of("vol3"), "--size", "48MiB"])?;
    anyhow::ensure!(id(cluster, "vol3")? != before, "VOLUME-V1: a volume id was used again");
    expect(
        third.write(0, &pattern(8, 0, BLOCK as usize)),
        ENOSPC,
        "a write to a deleted volume, of whose name there is another",
    )?;
    zeroes(&mut open(cluster, "vol3")?, 0, 48).context("a new volume of an old name")?;
    let serving = cluster.serving(TAKEOVER_LIMIT)?;
    let uri = cluster.gateways[serving].nbd.with_export(&format!("{SET}/vol3@keep"));
    check(&mut Client::connect(&uri, PATIENCE)?, 3, 0, 48).context("the snapshot of a deleted volume")?;
    note(format!("vol3 deleted under {} writes of it: errors for it alone, its snapshot stays", wrote.writes));
    Ok(())
}

/// Space, and a rollback to before a deletion.
fn back(cluster: &mut Cluster, store: &Path) -> Result<()> {
    cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "60s"])?;
    let shown = cluster.holdfast(&["set", "show", SET])?;
    let snapshot = &shown["space"]["snapshots"][0];
    anyhow::ensure!(snapshot["name"] == "keep" && snapshot["unique_bytes"].as_u64() > Some(32 * MIB), "{snapshot}");
    anyhow::ensure!(shown["space"]["provisioned_bytes"] == (96 + 16 + 48) * MIB, "{}", shown["space"]);
    let rolled = cluster.holdfast(&["snapshot", "rollback", "demo@keep", "--yes", "--force", "--timeout", "90s"])?;
    let safety = rolled["safety"]["name"].as_str().context("a rollback without a safety snapshot")?.to_string();
    let listed = names(cluster)?;
    anyhow::ensure!(listed == ["vol1", "vol2", "vol3", "vol4"], "the volumes of the snapshot: {listed:?}");
    check(&mut open(cluster, "vol3")?, 3, 0, 48).context("a deleted volume, rolled back to")?;
    for name in ["vol3", "vol4"] {
        volume(cluster, &["delete", &of(name), "--yes", "--force"])?;
    }
    for snapshot in ["keep", &safety] {
        cluster.holdfast(&["snapshot", "delete", &format!("{SET}@{snapshot}"), "--yes"])?;
    }
    // 32 MiB of the first and 16 MiB of the second are left.
    let most = (32 + 16) * MIB * 14 / 10;
    let settled = wait_until(SETTLE_LIMIT, || stored(store) <= most);
    anyhow::ensure!(settled, "the store holds {} MiB, expected at most {} MiB", stored(store) / MIB, most / MIB);
    check(&mut open(cluster, "vol1")?, 1, 0, 32).context("the rest of the volume")?;
    note(format!("snapshots and deleted volumes are gone: {} MiB stored", stored(store) / MIB));
    Ok(())
}

fn of(volume: &str) -> String {
    format!("{SET}/{volume}")
}

fn volume(cluster: &Cluster, args: &[&str]) -> Result<Value> {
    cluster.holdfast(&[&["volume"], args].concat())
}

fn names(cluster: &Cluster) -> Result<Vec<String>> {
    let listed = volume(cluster, &["list", SET])?;
    let all = listed["volumes"].as_array().context("a list without volumes")?;
    let mut names: Vec<String> =
        all.iter().filter_map(|one| one["volume"]["name"].as_str()).map(str::to_string).collect();
    names.sort();
    Ok(names)
}

fn id(cluster: &Cluster, name: &str) -> Result<u64> {
    volume(cluster, &["show", &of(name)])?["volume"]["id"].as_u64().context("a volume without an id")
}

fn open(cluster: &mut Cluster, volume: &str) -> Result<Client> {
    let mut last = String::new();
    let mut found = None;
    let there = wait_until(PATIENCE, || {
        for uri in cluster.exports() {
            match Client::connect(&uri.with_export(&of(volume)), PATIENCE) {
                Ok(client) => {
                    found = Some(client);
                    return true;
                }
                Err(NbdError::Refused(words)) if words.contains("has no volume") => {
                    last = words;
                    return true;
                }
                Err(error) => last = error.to_string(),
            }
        }
        false
    });
    found.with_context(|| format!("{volume}: {last} (waited: {})", !there))
}

fn fill(client: &mut Client, tag: u64, mib: u64) -> Result<()> {
    for at in (0..mib * MIB).step_by(BLOCK as usize) {
        client.write(at, &pattern(tag, at, BLOCK as usize))?;
    }
    client.flush()?;
    Ok(())
}

/// From and to in MiB.
fn check(client: &mut Client, tag: u64, from: u64, to: u64) -> Result<()> {
    for at in (from * MIB..to * MIB).step_by(BLOCK as usize) {
        let found = tag_of(&client.read(at, BLOCK as u32)?, at)?;
        anyhow::ensure!(found == tag, "at {at}: found write {found}, expected {tag}");
    }
    Ok(())
}

fn zeroes(client: &mut Client, from: u64, to: u64) -> Result<()> {
    for at in (from * MIB..to * MIB).step_by(MIB as usize) {
        let bytes = client.read(at, MIB as u32)?;
        anyhow::ensure!(bytes.iter().all(|byte| *byte == 0), "at {at}: found data, expected zeroes");
    }
    Ok(())
}

fn expect<T>(found: Result<T, NbdError>, errno: u32, what: &str) -> Result<()> {
    match found {
        Err(NbdError::Errno(found)) if found == errno => Ok(()),
        Err(error) => bail!("{what}: {error}, expected errno {errno}"),
        Ok(_) => bail!("{what} was done, expected errno {errno}"),
    }
}

/// Bytes of all files below the folder. Files may appear and disappear meanwhile.
fn stored(dir: &Path) -> u64 {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    entries
        .map(|entry| {
            if entry.path().is_dir() { stored(&entry.path()) } else { entry.metadata().map_or(0, |facts| facts.len()) }
        })
        .sum()
}
