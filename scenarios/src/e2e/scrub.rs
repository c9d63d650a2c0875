//! The background scrub of a set's objects finds nothing; then a byte of an object is flipped, and the scrub reports it
//! within a limited time, in the command and in `set show`; after it is flipped back, the next scrub is clean. It also
//! reads objects of snapshots, and objects that only a clone uses after that snapshot was deleted.

use super::recover::{flip, holdfast};
use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, SET, VOLUME};
use crate::nbd::pattern;
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::PathBuf;
use std::time::{Duration, Instant};

const BLOCK: usize = 64 << 10;
const BLOCKS: u64 = 128;
/// 8 MiB and as much in a snapshot, at 16 MiB a second; three reads of damaged objects, two seconds apart.
const LIMIT: Duration = Duration::from_secs(30);
const DAMAGED: i32 = 8;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let folder = std::path::absolute(lab.dir.join("store"))?;
    let store = Some(format!("file://{}", folder.display()));
    let settings = ["upload.interval_ms=3600000", "upload.bytes=1GiB", "scrub.bytes_per_second=16MiB"];
    let mut cluster = lab.cluster_as("64MiB", store, &settings, Vec::new())?;
    write(&mut cluster, 1)?;
    cluster.holdfast(&["snapshot", "create", &format!("{SET}@before"), "--timeout", "1m"])?;
    write(&mut cluster, 2)?;
    cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "1m"])?;
    let doors = cluster.apis();
    let ask = |args: &[&str]| holdfast(lab, &[], &doors, args);

    let clean = complete(&ask)?;
    anyhow::ensure!(clean.0 == 0 && clean.1["damaged_total"] == 0, "damage where there is none: {}", clean.1);
    note(format!("a complete scrub took {:?}", clean.2));
    // Of the snapshot, and of the present set: by age, which a flip would change.
    let segments = segments(&folder)?;
    let (first, last) = (segments.first().context("no segment")?, segments.last().context("no segment")?);
    anyhow::ensure!(first != last, "the second checkpoint has no segment of its own: {segments:?}");
    let found = |(file, len): &(PathBuf, u64), snapshot: &str, clone: u64| -> Result<()> {
        let at = len / 2;
        flip(file, at)?;
        let (code, said, took) = complete(&ask)?;
        flip(file, at)?;
        let object = file.file_name().and_then(|n| n.to_str()).context("a segment without a name")?;
        let places = said["damaged"].as_array().context("no list of damage")?;
        let named = places.iter().any(|p| {
            let key = p["key"].as_str().is_some_and(|k| k.ends_with(object));
            key && p["volume"] == VOLUME && p["snapshot"] == snapshot && p["clone"] == clone
        });
        anyhow::ensure!(code == DAMAGED && named, "R9: byte {at} of {object} was flipped: exit code {code}, {said}");
        note(format!("byte {at} of {object} flipped, named after {took:?}: {}", places[0]));
        Ok(())
    };
    for (segment, snapshot) in [(first, "before"), (last, "")] {
        found(segment, snapshot, 0)?;
        let shown = cluster.holdfast(&["set", "show", SET])?;
        anyhow::ensure!(
            shown["scrub"]["damaged_total"].as_u64() > Some(0),
            "set show does not report the damage: {shown}"
        );
        let (code, said, _) = complete(&ask)?;
        anyhow::ensure!(code == 0, "clean again: exit code {code}, {said}");
    }
    let before = format!("{SET}@before");
    let made = cluster.holdfast(&["set", "clone", &before, "copy", "--timeout", "1m"])?;
    let clone = made["set"]["id"].as_u64().with_context(|| format!("a clone without a number: {made}"))?;
    cluster.holdfast(&["snapshot", "delete", &before, "--yes"])?;
    found(first, "before", clone).context("its snapshot is gone, and a clone shows it")?;
    let (code, said, _) = complete(&ask)?;
    anyhow::ensure!(code == 0, "clean again: exit code {code}, {said}");
    cluster.stop()?;
    Ok(())
}

fn write(cluster: &mut Cluster, tag: u64) -> Result<()> {
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    for block in 0..BLOCKS {
        let offset = block * BLOCK as u64;
        client.write(offset, &pattern(tag, offset, BLOCK))?;
    }
    client.flush()?;
    client.disconnect();
    Ok(())
}

/// A command, with its exit code and output.
type Ask<'a> = &'a dyn Fn(&[&str]) -> Result<(i32, Value)>;

/// Starts a scrub and waits for its end: exit code and answer of the last query, and the duration.
fn complete(ask: Ask<'_>) -> Result<(i32, Value, Duration)> {
    let begun = Instant::now();
    let before = ask(&["set", "scrub", SET])?.1["complete_unix_ms"].as_u64().unwrap_or(0);
    ask(&["set", "scrub", SET, "--start"])?;
    let mut last = (0, Value::Null);
    let ended = wait_until(LIMIT, || {
        last = ask(&["set", "scrub", SET]).unwrap_or((-1, Value::Null));
        last.1["complete_unix_ms"].as_u64().is_some_and(|at| at > before) && last.1["running"] == false
    });
    anyhow::ensure!(ended, "no complete scrub within {LIMIT:?}: {}", last.1);
    Ok((last.0, last.1, begun.elapsed()))
}

/// The set's segments with their lengths, the oldest first.
fn segments(folder: &std::path::Path) -> Result<Vec<(PathBuf, u64)>> {
    let mut files: Vec<(std::time::SystemTime, PathBuf, u64)> = Vec::new();
    for entry in std::fs::read_dir(folder.join("sets/1/seg"))? {
        let entry = entry?;
        let meta = entry.metadata()?;
        files.push((meta.modified()?, entry.path(), meta.len()));
    }
    files.sort();
    Ok(files.into_iter().map(|(_, path, len)| (path, len)).collect())
}
