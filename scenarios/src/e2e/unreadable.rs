//! The gateways' disks and the store contain no readable user data (R10): journals, state snapshots, cache, objects.
//! All gateways are killed, their files are searched, and they start again and serve the data. In a cluster that does
//! not seal its journals the same search finds the data, which proves the search.

use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, Options, SET};
use crate::say::note;
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};

/// Written all over the volume, at the start of every sector.
const TEXT: &[u8] = b"holdfast keeps this to itself: ";
const BLOCK: usize = 64 << 10;
const BLOCKS: u64 = 64;
/// Longer files are searched in overlapping pieces.
const PIECE_BYTES: usize = 8 << 20;

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
    cluster.stop()?;

    let plain = lab.dir.join("plain");
    let mut cluster = start(lab, &plain, false)?;
    write(&mut cluster)?;
    cluster.kill_all()?;
    let found = search(&plain)?;
    anyhow::ensure!(
        !found.hits.is_empty(),
        "the search finds nothing in an unsealed journal either, so it proves nothing"
    );
    note(format!("with journal.seal=false the search finds it, in {} files", found.hits.len()));
    Ok(())
}

fn start(lab: &Lab, dir: &Path, seal: bool) -> Result<Cluster> {
    // Every byte of the cache's files is searched, and they have full size: all written data fits in many times.
    let cache = "cache.disk=128MiB".to_string();
    let settings = vec!["upload.interval_ms=3600000".to_string(), cache, format!("journal.seal={seal}")];
    let (bin, dir, size) = (lab.bin.clone(), dir.to_path_buf(), "64MiB".to_string());
    Cluster::start(Options { bin, dir, gateways: 3, store: None, size, settings, env: Vec::new() })
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
