//! A byte of a segment is flipped while a host is attached to two volumes: reads of that data wait, all other reads are
//! answered, the other volume is written as usual, and no connection is lost (R8, R9). The read of a killed client is
//! dropped. When the byte is flipped back, the reads are answered. At the end a client of a gateway takes no answers,
//! and another one leaves instead: both are given up (CONN-C3, CONN-C7).

use super::attach::{Attached, export};
use super::recover::flip;
use super::{Lab, TAKEOVER_LIMIT};
use crate::binary::public_dir;
use crate::bridge::Bridge;
use crate::cluster::{Cluster, SET};
use crate::nbd::{Client, NbdError, pattern};
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result, bail};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const BLOCK: usize = 64 << 10;
const BLOCKS: u64 = 128;
const TAG: u64 = 7;
const PATIENCE: Duration = Duration::from_secs(30);
/// Time without an answer: an object is fetched three times before it counts as damaged.
const SILENCE: Duration = Duration::from_secs(8);
/// The longest pause between two tries of a read, and some.
const AGAIN: Duration = Duration::from_secs(60);
const WRITES: u64 = 500;
/// Reads of a client that takes no answers: more than the sockets of both sides hold.
const UNTAKEN: u64 = 400;
/// Time in which such a client fills its sockets.
const FILLS: Duration = Duration::from_secs(2);
/// Time after which it is given up: a gateway looks every 30 s, and compares two looks.
const STALLS: Duration = Duration::from_secs(65);

pub(super) fn run(lab: &Lab) -> Result<()> {
    let folder = std::path::absolute(lab.dir.join("store"))?;
    let store = Some(format!("file://{}", folder.display()));
    let settings = ["upload.interval_ms=3600000", "upload.bytes=1GiB", "cache.disk=0B"];
    let mut cluster = lab.cluster_as("64MiB", store, &settings, Vec::new())?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    for block in 0..BLOCKS {
        let offset = block * BLOCK as u64;
        client.write(offset, &pattern(TAG, offset, BLOCK))?;
    }
    client.flush()?;
    client.disconnect();
    let other = format!("{SET}/vol2");
    cluster.holdfast(&["volume", "create", &other, "--size", "64MiB"])?;
    cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "1m"])?;
    let segment = segment(&folder)?;
    let at = std::fs::metadata(&segment)?.len() / 2;
    // Data in memory is correct, so memory is cleared.
    let mut cluster = cluster.kill_all()?.start()?;
    flip(&segment, at)?;

    let (run_dir, _guard) = public_dir("waits")?;
    let attached = Attached::start_knowing_all(lab, &cluster, &run_dir, "host-a")?;
    let (hurt, well) = (Bridge::to(&attached.socket(), &export())?, Bridge::to(&run_dir.join("vol2.sock"), &other)?);
    let mut reader = Client::connect(&hurt.uri, SILENCE)?;
    let mut waiting = BTreeMap::new();
    for block in 0..BLOCKS {
        waiting.insert(reader.send_read(block * BLOCK as u64, BLOCK as u32)?, block);
    }
    let answered = answers(&mut reader, &mut waiting)?;
    anyhow::ensure!(!waiting.is_empty() && answered > 0, "{answered} of {BLOCKS} blocks are answered, expected some");
    note(format!("{answered} blocks are answered, {} wait", waiting.len()));

    let mut writer = Client::connect(&well.uri, PATIENCE)?;
    let begun = Instant::now();
    for write in 0..WRITES {
        let offset = write % BLOCKS * BLOCK as u64;
        writer
            .write(offset, &pattern(write, offset, 4096))
            .with_context(|| format!("write {write} of the other volume"))?;
    }
    note(format!("{WRITES} writes of the other volume in {:?} meanwhile", begun.elapsed()));
    let shown = attached.look()?;
    anyhow::ensure!(shown["reconnects"] == 0, "reconnected for a read that no gateway can answer: {shown}");

    // Reads of a killed client are dropped.
    let before = waiting.len() as u64;
    let block = *waiting.values().next().context("none waits")?;
    let mut killed = Client::connect(&hurt.uri, PATIENCE)?;
    killed.send_read(block * BLOCK as u64, BLOCK as u32)?;
    let unanswered = |count: u64| wait_until(PATIENCE, || attached.look().is_ok_and(|now| now["unanswered"] == count));
    anyhow::ensure!(unanswered(before + 1), "the second read is not there: {}", attached.look()?);
    drop(killed);
    anyhow::ensure!(unanswered(before), "a killed reader's read is kept: {}", attached.look()?);

    flip(&segment, at)?;
    let begun = Instant::now();
    reader.set_patience(AGAIN)?;
    while !waiting.is_empty() {
        anyhow::ensure!(begun.elapsed() < 2 * AGAIN, "blocks {:?} are not answered after {AGAIN:?}", waiting.values());
        answers(&mut reader, &mut waiting)?;
    }
    note(format!("flipped back: all are answered after {:?}", begun.elapsed()));
    // Attach's status may be slightly old.
    anyhow::ensure!(unanswered(0), "answered, and kept: {}", attached.look()?);
    let shown = attached.look()?;
    anyhow::ensure!(shown["reconnects"] == 0, "reconnected for a read that no gateway can answer: {shown}");
    drop(attached);
    stalls(&mut cluster)?;
    cluster.stop()?;
    Ok(())
}

/// A client that takes no answers, and one that leaves while its requests wait for that: a gateway keeps neither.
fn stalls(cluster: &mut Cluster) -> Result<()> {
    let (_, mut leaves) = cluster.connect(TAKEOVER_LIMIT)?;
    let (_, mut takes_none) = cluster.connect(TAKEOVER_LIMIT)?;
    for client in [&mut leaves, &mut takes_none] {
        for number in 0..UNTAKEN {
            client.send_read(number % BLOCKS * BLOCK as u64, BLOCK as u32)?;
        }
    }
    wait_until(FILLS, || false);
    drop(leaves);
    wait_until(STALLS, || false);
    let mut taken = 0;
    while taken < UNTAKEN {
        match takes_none.receive() {
            Ok(reply) => {
                anyhow::ensure!(reply.result.is_ok(), "R8: a read of a client that takes no answers: {reply:?}");
                taken += 1;
            }
            Err(NbdError::Errno(errno)) => bail!("R8: errno {errno}, expected the end of the connection"),
            Err(_) => break,
        }
    }
    anyhow::ensure!(taken < UNTAKEN, "a client that took no answer for {STALLS:?} got all of them after all");
    note(format!("a client that took no answers is given up; {taken} of {UNTAKEN} were on their way to it"));
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    anyhow::ensure!(client.read(0, BLOCK as u32)? == pattern(TAG, 0, BLOCK), "R1: block 0 after all this");
    client.disconnect();
    Ok(())
}

/// Takes answers until all are there or no more come; returns their number. Each must be the written data.
fn answers(reader: &mut Client, waiting: &mut BTreeMap<u64, u64>) -> Result<u64> {
    let mut count = 0;
    while !waiting.is_empty() {
        let reply = match reader.receive() {
            Ok(reply) => reply,
            Err(NbdError::Gone(e))
                if matches!(e.kind(), std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut) =>
            {
                break;
            }
            Err(e) => return Err(e).context("the connection of the read that waits"),
        };
        let block = waiting.remove(&reply.cookie).context("an answer to nothing")?;
        let offset = block * BLOCK as u64;
        match reply.result {
            Ok(data) => {
                anyhow::ensure!(data == pattern(TAG, offset, BLOCK), "R9: block {block} differs from the written data")
            }
            Err(errno) => bail!("R8: block {block} is answered with errno {errno}"),
        }
        count += 1;
    }
    Ok(count)
}

/// The largest of the set's segments.
fn segment(folder: &Path) -> Result<PathBuf> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder.join("sets/1/seg"))? {
        let entry = entry?;
        files.push((entry.metadata()?.len(), entry.path()));
    }
    files.sort();
    Ok(files.pop().context("no segment")?.1)
}
