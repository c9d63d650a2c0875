//! A clone and its origin are two sets: changes of one never show in the other.
//!
//! ```text
//!  write 1, snapshot ─▶ clone: reads 1, before it has written anything ─▶ 2 in the clone, 3 in the origin, trims in the clone ─▶ the snapshot goes
//!    ─▶ the origin is written over, its old objects are deleted ─▶ a clone of the clone ─▶ kill -9 of all gateways ─▶ each shows its own
//!    ─▶ all disks are lost, all three come back from the store ─▶ the origin is written over and swept once more ─▶ each shows its own
//! ```

use super::Lab;
use super::recover::{Hand, Known, must};
use crate::cluster::{Cluster, SET};
use crate::nbd::{Client, NbdError, Uri, pattern, tag_of};
use crate::process::{POLL, wait_until};
use crate::say::note;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 64 << 10;
/// Two ranges that are written, in two pages of the map (32 MiB each), and the bytes of each.
const PLACES: [u64; 2] = [0, 40 * MIB];
const RANGE: u64 = 4 * MIB;
const EACH: u64 = RANGE / BLOCK;
/// Blocks that the clone trims in the first range; in the second it trims everything.
const TRIMMED: std::ops::Range<u64> = 16..24;
const PATIENCE: Duration = Duration::from_secs(30);
const LIMIT: Duration = Duration::from_secs(90);

const ORIGIN: &str = "demo/vol1";
const CLONE: &str = "try/vol1";
const CLONE_OF_CLONE: &str = "again/vol1";

/// The expected write in a block, by place and number.
type Expected = fn(usize, u64) -> u64;

const FIRST: Expected = |_, _| 1;
/// Content of the clone: its own writes, zeroes where it trimmed, otherwise the origin's content at the snapshot.
const CLONED: Expected = |place, block| match (place, block) {
    (0, block) if TRIMMED.contains(&block) => 0,
    (0, block) if block % 2 == 1 => 2,
    (0, _) => 1,
    // Trimmed as a whole, then written again.
    (_, block) if block < 4 => 5,
    _ => 0,
};
const OVER: Expected = |_, _| 4;
/// Content of the clone of the clone, which writes one block itself.
const TWICE: Expected = |place, block| if (place, block) == (0, 0) { 6 } else { CLONED(place, block) };
const LATER: Expected = |_, _| 7;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let settings =
        ["upload.interval_ms=500", "upload.whole_root=0B", "space.grace_ms=1000", "space.sweep_interval_ms=1500"];
    let folder = std::path::absolute(lab.dir.join("store"))?;
    let store = format!("file://{}", folder.display());
    let mut cluster = lab.cluster_as("64MiB", Some(store.clone()), &settings, Vec::new())?;
    let known = Known::on(&cluster, store.clone(), Vec::new())?;
    let exports = cluster.exports();
    let (origin, clone) = (Side::new(&exports, ORIGIN), Side::new(&exports, CLONE));
    origin.write(|_, _| Some(1))?;
    cluster.holdfast(&["snapshot", "create", &format!("{SET}@first"), "--timeout", "90s"])?;
    cloned(&cluster, &exports)?;

    clone.write(|place, block| (place == 0 && block % 2 == 1).then_some(2))?;
    origin.write(|_, block| (block % 4 == 0).then_some(3))?;
    clone.trim(TRIMMED.start * BLOCK, (TRIMMED.end - TRIMMED.start) * BLOCK)?;
    clone.trim(32 * MIB, 32 * MIB)?;
    clone.write(|place, block| (place == 1 && block < 4).then_some(5))?;
    let both = |of: Expected| -> Result<()> {
        origin.check(of)?;
        clone.check(CLONED)
    };
    let written: Expected = |_, block| if block % 4 == 0 { 3 } else { 1 };
    both(written)?;
    checkpoints(&cluster, &[SET, "try"])?;
    both(written).context("from the store")?;
    gives_nothing_back(&cluster)?;

    // Objects that only the snapshot used are now garbage of the origin, except those that the clone uses.
    cluster.holdfast(&["snapshot", "delete", &format!("{SET}@first"), "--yes"])?;
    let before = objects(&folder, 1)?;
    origin.write(|_, _| Some(4))?;
    origin.write(|_, _| Some(4))?;
    checkpoints(&cluster, &[SET])?;
    deletes(&folder, &before)?;
    both(OVER).context("after the origin has deleted objects")?;

    cluster.holdfast(&["snapshot", "create", "try@second", "--timeout", "90s"])?;
    cluster.holdfast(&["set", "clone", "try@second", "again", "--timeout", "60s"])?;
    Side::new(&exports, CLONE_OF_CLONE).write(|place, block| ((place, block) == (0, 0)).then_some(6))?;
    shown(&cluster)?;
    for index in 0..exports.len() {
        cluster.kill(index)?;
    }
    for index in 0..exports.len() {
        cluster.restart(index)?;
    }
    all_three(&exports, OVER).context("after the death of all gateways")?;
    note("all gateways killed and started again: the origin, its clone and the clone's clone show each its own");

    checkpoints(&cluster, &[SET, "try", "again"])?;
    let verify = ["verify", "--store", &store, "--key-file", &known.key()].map(str::to_owned);
    let verify: Vec<&str> = verify.iter().map(String::as_str).collect();
    let clean = cluster.holdfast(&verify)?;
    anyhow::ensure!(clean["clean"] == true, "verify: {clean}");
    recovered(lab, cluster, &known, &folder, &verify)
}

/// A clone is made at once; the same request finds it again; a different request for the same name is refused.
fn cloned(cluster: &Cluster, exports: &[Uri]) -> Result<()> {
    let begun = Instant::now();
    let first = format!("{SET}@first");
    let made = cluster.holdfast(&["set", "clone", &first, "try", "--timeout", "60s"])?;
    let took = begun.elapsed();
    anyhow::ensure!(made["created"] == true && made["set"]["clone_of"] == first.as_str(), "the clone: {made}");
    Side::new(exports, CLONE).check(FIRST).context("before anything was written to it")?;
    let again = cluster.holdfast(&["set", "clone", &first, "try", "--timeout", "60s"])?;
    anyhow::ensure!(again["created"] == false && again["set"]["id"] == made["set"]["id"], "once more: {again}");
    for (what, args) in [
        ("the name of another set", ["set", "clone", first.as_str(), SET]),
        ("no such snapshot", ["set", "clone", "demo@monday", "other"]),
    ] {
        anyhow::ensure!(cluster.holdfast(&args).is_err(), "{what} was not refused");
    }
    note(format!("cloned in {:.1} s; the same again finds it", took.as_secs_f64()));
    Ok(())
}

/// SET-S13: objects of a snapshot that a clone needs do not count as freed by the snapshot's deletion.
fn gives_nothing_back(cluster: &Cluster) -> Result<()> {
    let mut space = Value::Null;
    // The answer is incomplete while maps cannot be read soon enough.
    let told = wait_until(LIMIT, || {
        space = cluster.holdfast(&["set", "show", SET]).map_or(Value::Null, |said| said["space"].clone());
        space["incomplete"] == false && space["snapshots"][0]["name"] == "first"
    });
    anyhow::ensure!(told, "the status has no space of {SET}: {space}");
    let (kept, current) = (&space["kept_stored_bytes"], &space["current_stored_bytes"]);
    anyhow::ensure!(
        kept.as_u64() > current.as_u64(),
        "the snapshot has no bytes besides those of the volumes: {space}"
    );
    anyhow::ensure!(space["snapshots"][0]["unique_bytes"] == 0, "what a clone shows counts as the snapshot's: {space}");
    Ok(())
}

fn shown(cluster: &Cluster) -> Result<()> {
    let origin = cluster.holdfast(&["set", "show", SET])?;
    anyhow::ensure!(origin["clones"][0]["name"] == "try", "the origin as shown: {origin}");
    let clone = cluster.holdfast(&["set", "show", "try"])?;
    let of = &clone["set"]["clone_of"];
    anyhow::ensure!(of == "demo@first" && clone["clones"][0]["name"] == "again", "the clone as shown: {clone}");
    Ok(())
}

/// All disks are lost: the origin is recovered with its pins, and neither its checkpoints nor its sweeps delete objects
/// that the clones use.
fn recovered(lab: &Lab, cluster: Cluster, known: &Known, folder: &Path, verify: &[&str]) -> Result<()> {
    cluster.kill_all()?;
    let new = Hand::anew(lab, known, "new")?;
    must(new.recover(known, &known.store, &known.key())?, "recover")?;
    all_three(&known.exports, OVER).context("recovered")?;
    let before = objects(folder, 1)?;
    let origin = Side::new(&known.exports, ORIGIN);
    for _ in 0..3 {
        origin.write(|_, _| Some(7))?;
        must(new.holdfast(&["set", "checkpoint", SET, "--timeout", "1m"])?, "checkpoint")?;
    }
    deletes(folder, &before)?;
    let confirmed = || -> Result<bool> {
        let shown = must(new.holdfast(&["set", "show", SET])?, "set show")?;
        Ok(shown["clones"][0]["name"] == "try" && shown["clones"][0]["inherited"] == false)
    };
    anyhow::ensure!(wait_until(LIMIT, || confirmed().unwrap_or(false)), "the origin does not see its clone again");
    all_three(&known.exports, LATER).context("recovered, after the origin has deleted objects")?;
    let clean = must(new.holdfast(verify)?, "verify of the new life")?;
    anyhow::ensure!(clean["clean"] == true, "verify: {clean}");
    note("recovered from the store alone: each shows its own, also after the origin was swept");
    new.kill()
}

fn all_three(exports: &[Uri], origin: Expected) -> Result<()> {
    Side::new(exports, ORIGIN).check(origin)?;
    Side::new(exports, CLONE).check(CLONED)?;
    Side::new(exports, CLONE_OF_CLONE).check(TWICE)
}

/// A volume at the gateway that serves it. A gateway may close a connection at any time (R8): then everything is
/// repeated at another one, with the same result.
struct Side {
    exports: Vec<Uri>,
    volume: &'static str,
}

impl Side {
    fn new(exports: &[Uri], volume: &'static str) -> Self {
        Self { exports: exports.to_vec(), volume }
    }

    /// Result of `act` on a client that stayed connected all the time.
    fn with<T>(&self, mut act: impl FnMut(&mut Client) -> std::result::Result<T, NbdError>) -> Result<T> {
        let begun = Instant::now();
        let mut last = String::new();
        while begun.elapsed() < LIMIT {
            for uri in &self.exports {
                let done =
                    Client::connect(&uri.with_export(self.volume), PATIENCE).and_then(|mut client| act(&mut client));
                match done {
                    Ok(done) => return Ok(done),
                    Err(NbdError::Errno(errno)) => bail!("R8: {} answers with error {errno}", self.volume),
                    Err(e) => last = e.to_string(),
                }
            }
            std::thread::sleep(POLL);
        }
        bail!("no gateway serves {} within {LIMIT:?}: {last}", self.volume)
    }

    fn write(&self, which: impl Fn(usize, u64) -> Option<u64>) -> Result<()> {
        self.with(|client| {
            for (place, block, offset) in blocks() {
                if let Some(tag) = which(place, block) {
                    client.write(offset, &pattern(tag, offset, BLOCK as usize))?;
                }
            }
            client.flush()
        })
    }

    fn trim(&self, offset: u64, len: u64) -> Result<()> {
        self.with(|client| client.trim(offset, len as u32))
    }

    /// Checks that every block has the write in `expected`, or zeroes if there is none.
    fn check(&self, expected: Expected) -> Result<()> {
        let read = self.with(|client| {
            let read = blocks().map(|(_, _, offset)| client.read(offset, BLOCK as u32));
            let read = read.collect::<std::result::Result<Vec<_>, _>>()?;
            let behind = PLACES.map(|start| client.read(start + RANGE, BLOCK as u32));
            Ok((read, behind.into_iter().collect::<std::result::Result<Vec<_>, _>>()?))
        });
        let (read, behind) = read.context(self.volume)?;
        for ((place, block, offset), bytes) in blocks().zip(read) {
            let (found, expected) = (tag_of(&bytes, offset)?, expected(place, block));
            let volume = self.volume;
            anyhow::ensure!(
                found == expected,
                "{volume}, place {place}, block {block}: found write {found}, expected {expected}"
            );
        }
        let zeroes = behind.iter().flatten().all(|byte| *byte == 0);
        anyhow::ensure!(zeroes, "{}: blocks that were never written are not zeroes", self.volume);
        Ok(())
    }
}

/// Place, number, offset.
fn blocks() -> impl Iterator<Item = (usize, u64, u64)> {
    let places = PLACES.into_iter().enumerate();
    places.flat_map(|(place, start)| (0..EACH).map(move |block| (place, block, start + block * BLOCK)))
}

fn checkpoints(cluster: &Cluster, sets: &[&str]) -> Result<()> {
    for set in sets {
        cluster.holdfast(&["set", "checkpoint", set, "--timeout", "60s"])?;
    }
    Ok(())
}

/// The objects of one set in a store that is a folder.
fn objects(store: &Path, set: u64) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for kind in ["root", "map", "seg"] {
        let Ok(entries) = std::fs::read_dir(store.join(format!("sets/{set}/{kind}"))) else { continue };
        for entry in entries {
            names.insert(format!("{kind}/{}", entry?.file_name().to_string_lossy()));
        }
    }
    anyhow::ensure!(!names.is_empty(), "no objects of set {set} in {}", store.display());
    Ok(names)
}

/// Waits until the origin has deleted some objects and deletes no more.
fn deletes(store: &Path, before: &BTreeSet<String>) -> Result<()> {
    let gone = || objects(store, 1).is_ok_and(|now| !before.is_subset(&now));
    anyhow::ensure!(wait_until(LIMIT, gone), "the origin deletes nothing");
    let mut last = objects(store, 1)?;
    let mut since = Instant::now();
    let rests = wait_until(LIMIT, || {
        let now = objects(store, 1).unwrap_or_default();
        if now != last {
            (last, since) = (now, Instant::now());
        }
        since.elapsed() > Duration::from_secs(5)
    });
    anyhow::ensure!(rests, "the origin never rests");
    Ok(())
}
