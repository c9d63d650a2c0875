//! A synced record in the journal of the serving gateway is damaged while it runs, before it is uploaded. A client
//! reads it and gets neither an error nor wrong data: the connection closes, another gateway serves the read, and the
//! gateway with the damaged record exits and is repaired at its next start (R9).

use super::damaged::{await_whole, folder_named};
use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, SET};
use crate::nbd::Client;
use crate::say::note;
use anyhow::{Context, Result, bail};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

const BLOCK: usize = 64 << 10;
/// Far more than the smallest memory tail: the first blocks are read from the disk.
const BLOCKS: u64 = 512;
/// Not the block that the harness reads to find the serving gateway.
const HURT: u64 = 5;
const READ_LIMIT: Duration = Duration::from_secs(60);
const HEAL_LIMIT: Duration = Duration::from_secs(120);

pub(super) fn run(lab: &Lab) -> Result<()> {
    // No automatic upload; and the text can be found.
    let settings = ["upload.interval_ms=3600000", "journal.tail=8MiB", "journal.seal=false"];
    let mut cluster = Cluster::start(lab.options("64MiB", &settings))?;
    let (serving, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    for block in 0..BLOCKS {
        client.write(block * BLOCK as u64, &contents(block))?;
    }
    client.flush()?;
    client.disconnect();

    let member = cluster.member(serving)?;
    rot(&cluster.options.dir.join(cluster.name(serving)))?;
    let begun = Instant::now();
    let (next, mut client) = read_somewhere(&mut cluster)?;
    anyhow::ensure!(next != serving, "{} has a bad record, and answered", cluster.name(serving));
    note(format!("{} answers it after {:.1} s", cluster.name(next), begun.elapsed().as_secs_f64()));
    check(&mut client)?;
    client.disconnect();

    cluster.ends_by_itself(serving, READ_LIMIT)?;
    cluster.restart(serving)?;
    await_whole(&cluster, serving, HEAL_LIMIT)?;
    cluster.caught_up(HEAL_LIMIT)?;
    anyhow::ensure!(cluster.member(serving)? == member, "{} is another member now", cluster.name(serving));
    let log = cluster.options.dir.with_extension(format!("{}.log", cluster.name(serving)));
    let said = std::fs::read_to_string(&log).unwrap_or_default();
    anyhow::ensure!(said.contains("healed from its peers"), "{} has no line about its repair", log.display());
    note(format!("{} ended, started again, healed", cluster.name(serving)));

    // The checkpoint reads all of it, with a quorum that needs the repaired gateway.
    cluster.holdfast(&["set", "checkpoint", SET]).context("set checkpoint")?;
    cluster.kill(next)?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    check(&mut client)?;
    client.disconnect();
    cluster.stop()?;
    Ok(())
}

fn contents(block: u64) -> Vec<u8> {
    text(block).into_bytes().into_iter().cycle().take(BLOCK).collect()
}

fn text(block: u64) -> String {
    format!("block {block:04} of what rots; ")
}

fn check(client: &mut Client) -> Result<()> {
    for block in 0..BLOCKS {
        let read = client.read(block * BLOCK as u64, BLOCK as u32)?;
        anyhow::ensure!(read == contents(block), "block {block} differs from the written data");
    }
    Ok(())
}

/// Reads the damaged block until some gateway answers. A closed connection is no answer; wrong bytes and errors fail.
fn read_somewhere(cluster: &mut Cluster) -> Result<(usize, Client)> {
    let begun = Instant::now();
    let mut last = String::from("never asked");
    while begun.elapsed() < READ_LIMIT {
        let (index, mut client) = cluster.connect(READ_LIMIT)?;
        match client.read(HURT * BLOCK as u64, BLOCK as u32) {
            Ok(read) => {
                anyhow::ensure!(read == contents(HURT), "{} answers with wrong bytes", cluster.name(index));
                return Ok((index, client));
            }
            Err(e) => last = format!("{}: {e}", cluster.name(index)),
        }
    }
    bail!("no gateway answers the read within {READ_LIMIT:?}: {last}")
}

/// Flips a bit in the middle of the damaged block, in the journal file that has it.
fn rot(disk: &Path) -> Result<()> {
    let text = text(HURT);
    for entry in std::fs::read_dir(folder_named(disk, "journal")?)? {
        let path = entry?.path();
        let bytes = std::fs::read(&path)?;
        let Some(at) = bytes.windows(text.len()).position(|w| w[0] == b'b' && w == text.as_bytes()) else { continue };
        let place = (at + BLOCK / 2) as u64;
        let file = std::fs::OpenOptions::new().write(true).open(&path)?;
        file.write_all_at(&[bytes[at + BLOCK / 2] ^ 0x10], place)?;
        file.sync_all()?;
        note(format!("byte {place} of {} flipped", path.display()));
        return Ok(());
    }
    bail!("{text:?} is in no file of {}", disk.display())
}
