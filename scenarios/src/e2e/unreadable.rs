//! The gateways' disks and the store contain no readable user data (R10): journals, state snapshots, cache, objects.
//! All gateways are killed, their files are searched, and they start again and serve the data. In a cluster that does
//! not seal its journals the same search finds the data, which proves the search. With `--long`, files in clear are
//! then put in the place of sealed ones: a gateway believes none of them (JOURNAL-J10).

use super::damaged::folder_named;
use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, Options, SET, Stopped};
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Written all over the volume, at the start of every sector.
const TEXT: &[u8] = b"holdfast keeps this to itself: ";
const BLOCK: usize = 64 << 10;
const BLOCKS: u64 = 64;
/// Longer files are searched in overlapping pieces.
const PIECE_BYTES: usize = 8 << 20;

/// The gateway that gets files in clear: g3.
const HURT: usize = 2;
/// The start of a state snapshot in clear.
const CLEAR_MAGIC: &[u8] = b"HFRSNAP1";
/// Limit until a gateway has refused such a file.
const LIMIT: Duration = Duration::from_secs(60);

pub(super) fn run(lab: &Lab) -> Result<()> {
    let sealed = lab.dir.join("sealed");
    let mut cluster = start(lab, &sealed, true)?;
    write(&mut cluster)?;
    // Half of it goes to the store, and a state snapshot to each disk; half stays in the journals.
    cluster.holdfast(&["set", "checkpoint", SET]).context("set checkpoint")?;
    write(&mut cluster)?;
    let stopped = cluster.kill_all()?;
    let found = search(&sealed)?;
    anyhow::ensure!(found.hits.is_empty(), "written data can be read in {:?}", found.hits);
    anyhow::ensure!(found.journals >= 3, "found {} journal files to search, expected those of three", found.journals);
    note(format!("{} files, {} MiB searched: none of the written data found", found.files, found.bytes >> 20));
    let mut cluster = stopped.start()?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    for block in 0..BLOCKS {
        let read = client.read(block * BLOCK as u64, BLOCK as u32)?;
        anyhow::ensure!(read == contents(), "block {block} differs from the written data");
    }
    client.disconnect();
    let sealed = cluster.stop()?;

    let plain = lab.dir.join("plain");
    let mut cluster = start(lab, &plain, false)?;
    write(&mut cluster)?;
    let stopped = cluster.kill_all()?;
    let found = search(&plain)?;
    anyhow::ensure!(
        !found.hits.is_empty(),
        "the search finds nothing in an unsealed journal either, so it proves nothing"
    );
    note(format!("with journal.seal=false the search finds it, in {} files", found.hits.len()));
    if lab.long { refused_in_clear(sealed, stopped) } else { Ok(()) }
}

/// The state snapshots of sets in clear at [`HURT`], below a cluster's folder.
fn snapshots_in_clear(dir: &Path) -> Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let folder = folder_named(&dir.join(format!("g{}", HURT + 1)), "raft")?;
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        let path = entry?.path();
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        // Without group 0 a gateway does not even start.
        let of_set = name.ends_with(".snapshot") && name != "group-0.snapshot";
        if of_set && std::fs::read(&path)?.starts_with(CLEAR_MAGIC) {
            found.push(path);
        }
    }
    Ok(found)
}

/// Whoever can write to the disk of a stopped gateway can put files in clear there. With such a journal it does not
/// start; with such a state snapshot it does not run the set.
fn refused_in_clear(sealed: Stopped, plain: Stopped) -> Result<()> {
    let mut cluster = plain.start()?;
    let dir = cluster.options.dir.clone();
    cluster.holdfast(&["set", "checkpoint", SET]).context("set checkpoint")?;
    let saved = || snapshots_in_clear(&dir).is_ok_and(|found| !found.is_empty());
    anyhow::ensure!(wait_until(LIMIT, saved), "no state snapshot of the set after a checkpoint in {LIMIT:?}");
    let snapshots = snapshots_in_clear(&dir)?;
    cluster.end(HURT)?;
    cluster.set_arguments(HURT, &["--set", "journal.seal=true"], true);
    let why = cluster.start_in_vain(HURT, LIMIT)?;
    anyhow::ensure!(why.contains("journal.read_clear"), "with a journal in clear, the gateway ended: {why}");
    note("a gateway that seals does not start from a journal in clear");
    cluster.stop()?;

    let mut cluster = sealed.start()?;
    cluster.end(HURT)?;
    let folder = folder_named(&cluster.options.dir.join(cluster.name(HURT)), "raft")?;
    for snapshot in &snapshots {
        let name = snapshot.file_name().context("a state snapshot without a name")?;
        std::fs::copy(snapshot, folder.join(name)).with_context(|| snapshot.display().to_string())?;
    }
    cluster.restart(HURT)?;
    let log = cluster.options.dir.with_extension(format!("{}.log", cluster.name(HURT)));
    let refused = || std::fs::read_to_string(&log).is_ok_and(|said| said.contains("found it in clear"));
    anyhow::ensure!(wait_until(LIMIT, refused), "a state snapshot in clear is not named in {}", log.display());
    note("and runs no set from a state snapshot in clear");
    cluster.stop()?;
    Ok(())
}

fn start(lab: &Lab, dir: &Path, seal: bool) -> Result<Cluster> {
    // Every byte of the cache's files is searched, and they have full size: all written data fits in many times.
    let seal = format!("journal.seal={seal}");
    let options = lab.options("64MiB", &["upload.interval_ms=3600000", "cache.disk=128MiB", &seal]);
    Cluster::start(Options { dir: dir.to_path_buf(), ..options })
}

fn contents() -> Vec<u8> {
    TEXT.iter().copied().cycle().take(BLOCK).collect()
}

fn write(cluster: &mut Cluster) -> Result<()> {
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    for block in 0..BLOCKS {
        client.write(block * BLOCK as u64, &contents())?;
    }
    client.flush()?;
    client.disconnect();
    Ok(())
}

#[derive(Default)]
struct Found {
    files: usize,
    journals: usize,
    bytes: u64,
    hits: Vec<PathBuf>,
}

fn search(dir: &Path) -> Result<Found> {
    let mut found = Found::default();
    let mut left = vec![dir.to_path_buf()];
    while let Some(dir) = left.pop() {
        for entry in std::fs::read_dir(&dir).with_context(|| format!("{}", dir.display()))? {
            let entry = entry?;
            let kind = entry.file_type()?;
            if kind.is_dir() {
                left.push(entry.path());
            } else if kind.is_file() {
                found.files += 1;
                found.journals += usize::from(entry.file_name().to_string_lossy().starts_with("journal-"));
                let (bytes, hit) = search_file(&entry.path())?;
                found.bytes += bytes;
                if hit {
                    found.hits.push(entry.path());
                }
            }
        }
    }
    Ok(found)
}

fn search_file(path: &Path) -> Result<(u64, bool)> {
    use std::io::Read;
    let mut file = std::fs::File::open(path).with_context(|| format!("{}", path.display()))?;
    let (mut piece, mut bytes) = (Vec::new(), 0);
    loop {
        let keep = piece.len().saturating_sub(TEXT.len() - 1);
        piece.drain(..keep);
        let more = file.by_ref().take(PIECE_BYTES as u64).read_to_end(&mut piece)?;
        bytes += more as u64;
        if more == 0 {
            return Ok((bytes, false));
        }
        // By first byte, then whole: files are long and mostly zeroes.
        let hit = piece.windows(TEXT.len()).any(|window| window[0] == TEXT[0] && window == TEXT);
        if hit {
            return Ok((bytes, true));
        }
    }
}
