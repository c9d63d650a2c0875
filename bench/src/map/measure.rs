//! Measurements on such a cluster, and their table.

use super::figures::Map;
use super::made::{LIMIT, MIB, Made};
use super::plan::Plan;
use crate::cluster::{Cluster, SET};
use crate::nbd::{Client, NbdError};
use crate::process::{peak_resident_bytes, resident_bytes};
use crate::say::note;
use crate::seed::Seeded;
use crate::stats::{machine, median};
use anyhow::{Context, Result};
use serde::Serialize;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BLOCK: u64 = 8192;
/// Random writes before a small checkpoint.
const FEW_WRITES: u64 = 64;
/// … and before a large one: the 256 MiB of `upload.bytes`.
const MANY_WRITES: u64 = (256 << 20) / BLOCK;
/// Number of snapshots.
const SNAPSHOTS: u32 = 3;
const IN_FLIGHT: usize = 32;
/// How often writes are tried again.
const TRIES_MAX: u32 = 4;

/// Resident bytes of the three gateways.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Memory {
    serving: u64,
    others: Vec<u64>,
}

/// One checkpoint.
#[derive(Clone, Debug, Serialize)]
struct Checkpoint {
    writes: u64,
    seconds: f64,
    /// The slowest of sequential reads of one hot block meanwhile.
    slowest_read_ms: Option<f64>,
    root_bytes: u64,
    pack_bytes: u64,
    segment_bytes: u64,
}

/// Results of one volume.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Measured {
    volume: String,
    map: Map,
    recover_s: f64,
    /// From the start of the first of three gateways until a block is read; none runs before.
    open_ms: Vec<f64>,
    /// From the kill of the serving gateway until another answers a read.
    takeover_ms: Vec<f64>,
    /// Single reads, each of an uncached page and extent.
    read_ms_p50: f64,
    read_ms_p99: f64,
    memory_after_open: Memory,
    memory_after_reads: Memory,
    memory_after_checkpoints: Memory,
    /// The highest of all processes that ran at the end.
    memory_peak: u64,
    small: Vec<Checkpoint>,
    large: Vec<Checkpoint>,
    /// Snapshots of the set, from call to answer, each after a few random writes.
    snapshot_s: Vec<f64>,
    machine: String,
}

fn ms(time: Duration) -> f64 {
    time.as_secs_f64() * 1e3
}

pub(super) fn measure(plan: &Plan, made: Made) -> Result<Measured> {
    let Made { volume, map, places, recover, objects, mut cluster } = made;
    let mut takeover_ms = Vec::new();
    for _ in 0..plan.takeovers {
        takeover_ms.push(ms(take_over(&mut cluster)?));
    }
    note(format!("takeover: {takeover_ms:.0?} ms"));
    let mut open_ms = Vec::new();
    for _ in 0..plan.takeovers.min(3) {
        open_ms.push(ms(open(&mut cluster)?));
    }
    note(format!("open: {open_ms:.0?} ms"));

    let memory_after_open = memory(&mut cluster)?;
    let reads = read_all(&mut cluster, &places, plan)?;
    let memory_after_reads = memory(&mut cluster)?;
    note(format!("{} blocks read, each as it should be; {}", places.len(), memory_after_reads.words()));

    let mut chance = Seeded::new(plan.seed, 2);
    let mut checkpoints = |count: u32, writes: u64| -> Result<Vec<Checkpoint>> {
        let mut all = Vec::new();
        for _ in 0..count {
            let done = checkpoint(&mut cluster, &objects, &mut chance, writes, map.volume_bytes)?;
            note(format!("checkpoint: {done:?}"));
            all.push(done);
        }
        Ok(all)
    };
    let small = checkpoints(plan.checkpoints, FEW_WRITES)?;
    let large = checkpoints(plan.large, MANY_WRITES)?;
    let memory_after_checkpoints = memory(&mut cluster)?;
    note(format!("after the checkpoints {}", memory_after_checkpoints.words()));
    let memory_peak = cluster.gateways.iter().filter_map(|g| peak_resident_bytes(g.pid)).max().unwrap_or(0);
    // Last, since retained snapshots would affect the figures above.
    let mut snapshot_s = Vec::new();
    for number in 0..plan.checkpoints.min(SNAPSHOTS) {
        write(&mut cluster, &mut chance, FEW_WRITES, map.volume_bytes)?.disconnect();
        snapshot_s.push(snapshot(&cluster, number)?.as_secs_f64());
    }
    note(format!("snapshots: {snapshot_s:.1?} s"));
    cluster.stop()?;
    Ok(Measured {
        volume: volume.size,
        map,
        recover_s: recover.as_secs_f64(),
        open_ms,
        takeover_ms,
        read_ms_p50: share(&reads, 50),
        read_ms_p99: share(&reads, 99),
        memory_after_open,
        memory_after_reads,
        memory_after_checkpoints,
        memory_peak,
        small,
        large,
        snapshot_s,
        machine: machine(),
    })
}

fn share(sorted: &[f64], percent: usize) -> f64 {
    sorted.get((sorted.len() * percent / 100).min(sorted.len().saturating_sub(1))).copied().unwrap_or(0.0)
}

/// All gateways are killed and started again; returns the time until the volume's first block is read. Head, root, a
/// page and an extent come from the store.
fn open(cluster: &mut Cluster) -> Result<Duration> {
    let all: Vec<usize> = (0..cluster.gateways.len()).collect();
    for at in &all {
        cluster.kill(*at)?;
    }
    let begun = Instant::now();
    for at in &all {
        cluster.restart(*at)?;
    }
    let (_, took) = cluster.first_to_serve(&all, begun, LIMIT)?;
    cluster.caught_up(LIMIT)?;
    Ok(took)
}

fn take_over(cluster: &mut Cluster) -> Result<Duration> {
    let serving = cluster.serving(LIMIT)?;
    let begun = cluster.kill(serving)?;
    let (_, took) = cluster.first_to_serve(&cluster.others(serving), begun, LIMIT)?;
    cluster.restart(serving)?;
    cluster.caught_up(LIMIT)?;
    Ok(took)
}

fn memory(cluster: &mut Cluster) -> Result<Memory> {
    let serving = cluster.serving(LIMIT)?;
    let of = |at: usize| resident_bytes(cluster.gateways[at].pid).context("a gateway is gone");
    let others = cluster.others(serving).into_iter().map(of).collect::<Result<_>>()?;
    Ok(Memory { serving: of(serving)?, others })
}

impl Memory {
    fn words(&self) -> String {
        let others: Vec<String> = self.others.iter().map(|bytes| format!("{:.0}", *bytes as f64 / MIB)).collect();
        format!(
            "{:.0} MiB resident at the serving gateway, {} at the others",
            self.serving as f64 / MIB,
            others.join(" and ")
        )
    }
}

/// Content of a block at `offset`: each word has its place.
fn content(offset: u64) -> Vec<u8> {
    let words = (offset..offset + BLOCK).step_by(8);
    words.flat_map(|at| at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()).collect()
}

/// Reads each readable block once, in random order, one at a time; returns the sorted times.
fn read_all(cluster: &mut Cluster, places: &[u64], plan: &Plan) -> Result<Vec<f64>> {
    let mut places = places.to_vec();
    Seeded::new(plan.seed, 1).shuffle(&mut places);
    let (_, mut client) = cluster.connect(LIMIT)?;
    let mut took = Vec::new();
    for offset in places {
        let begun = Instant::now();
        let found = client.read(offset, BLOCK as u32)?;
        took.push(ms(begun.elapsed()));
        anyhow::ensure!(found == content(offset), "R9: the block at {offset} differs from the written data");
    }
    client.disconnect();
    took.sort_by(f64::total_cmp);
    Ok(took)
}

/// Files of one kind of object, with their lengths.
fn listed(objects: &Path, kind: &str) -> Result<BTreeMap<String, u64>> {
    let mut all = BTreeMap::new();
    for entry in std::fs::read_dir(objects.join(kind))? {
        let entry = entry?;
        // Deleted since it was listed.
        if let Ok(meta) = entry.metadata() {
            all.insert(entry.file_name().to_string_lossy().into_owned(), meta.len());
        }
    }
    Ok(all)
}

fn checkpoint(
    cluster: &mut Cluster,
    objects: &Path,
    chance: &mut Seeded,
    writes: u64,
    volume_bytes: u64,
) -> Result<Checkpoint> {
    const KINDS: [&str; 3] = ["root", "map", "seg"];
    let before = KINDS.map(|kind| listed(objects, kind));
    let mut client = write(cluster, chance, writes, volume_bytes)?;
    let begun = Instant::now();
    let (mut slowest, ended) = (Some(Duration::ZERO), AtomicBool::new(false));
    let asked = std::thread::scope(|scope| {
        let asked = scope.spawn(|| {
            let said = cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "10m"]);
            ended.store(true, Ordering::Release);
            said
        });
        while let Some(before) = slowest
            && !ended.load(Ordering::Acquire)
        {
            let asked = Instant::now();
            // On a machine too busy for heartbeats the leader changes: then there is no such figure.
            slowest = client.read(0, BLOCK as u32).ok().map(|_| before.max(asked.elapsed()));
        }
        asked.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?
    });
    asked?;
    let (seconds, slowest_read_ms) = (begun.elapsed().as_secs_f64(), slowest.map(ms));
    client.disconnect();
    let mut new = [0; 3];
    for ((kind, before), new) in KINDS.iter().zip(before).zip(&mut new) {
        let before = before?;
        *new = listed(objects, kind)?.iter().filter(|(name, _)| !before.contains_key(*name)).map(|(_, len)| len).sum();
    }
    let [root_bytes, pack_bytes, segment_bytes] = new;
    Ok(Checkpoint { writes, seconds, slowest_read_ms, root_bytes, pack_bytes, segment_bytes })
}

/// A snapshot of the set, from its call to its answer: includes its checkpoint, and the head that lists it.
fn snapshot(cluster: &Cluster, number: u32) -> Result<Duration> {
    let begun = Instant::now();
    cluster.holdfast(&["snapshot", "create", &format!("{SET}@s{number}"), "--timeout", "10m"])?;
    Ok(begun.elapsed())
}

/// Writes random blocks, several in flight; returns the used connection.
fn write(cluster: &mut Cluster, chance: &mut Seeded, writes: u64, volume_bytes: u64) -> Result<Client> {
    let offsets: Vec<u64> = (0..writes).map(|_| chance.below(volume_bytes / BLOCK) * BLOCK).collect();
    let mut tries = 0;
    loop {
        let (_, mut client) = cluster.connect(LIMIT)?;
        match write_all(&mut client, &offsets) {
            Ok(()) => return Ok(client),
            // The leader changed, which happens on a machine too busy for heartbeats: repeat all of them.
            Err(NbdError::Gone(e)) if tries < TRIES_MAX => {
                note(format!("writing again: {e}"));
                tries += 1;
            }
            Err(e) => return Err(e.into()),
        }
    }
}

fn write_all(client: &mut Client, offsets: &[u64]) -> Result<(), NbdError> {
    let answered = |client: &mut Client| client.receive()?.result.map_err(NbdError::Errno);
    for (at, offset) in offsets.iter().enumerate() {
        if at >= IN_FLIGHT {
            answered(client)?;
        }
        client.send_write(*offset, &content(offset ^ 1 << 50))?;
    }
    for _ in 0..offsets.len().min(IN_FLIGHT) {
        answered(client)?;
    }
    client.flush()
}

type Value = fn(&Measured) -> Option<f64>;

fn middle(of: &[Checkpoint], what: fn(&Checkpoint) -> f64) -> Option<f64> {
    median(&of.iter().map(what).collect::<Vec<_>>())
}

fn slowest(of: &[Checkpoint]) -> Option<f64> {
    median(&of.iter().filter_map(|c| c.slowest_read_ms).collect::<Vec<_>>())
}

const ROWS: [(&str, usize, Value); 26] = [
    ("extents, millions", 1, |m| Some(m.map.extents as f64 / 1e6)),
    ("pages", 0, |m| Some(m.map.pages as f64)),
    ("segments", 0, |m| Some(m.map.segments as f64)),
    ("all pages in the store, MiB", 0, |m| Some(m.map.page_bytes as f64 / MIB)),
    ("a page in the store, KiB", 1, |m| Some(m.map.page_bytes as f64 / m.map.pages.max(1) as f64 / 1024.0)),
    ("root in the store, MiB", 2, |m| Some(m.map.root_bytes as f64 / MIB)),
    ("leaves of the root in the store, MiB", 2, |m| Some(m.map.leaf_bytes as f64 / MIB)),
    ("root in memory, MiB", 1, |m| Some(m.map.root_memory_bytes as f64 / MIB)),
    ("root opened, ms", 1, |m| Some(m.map.root_open_ms)),
    ("recovery from the store, s", 1, |m| Some(m.recover_s)),
    ("open: start to first read, ms", 0, |m| median(&m.open_ms)),
    ("takeover: kill to next read, ms", 0, |m| median(&m.takeover_ms)),
    ("cold read of 8 KiB, p50, ms", 2, |m| Some(m.read_ms_p50)),
    ("cold read of 8 KiB, p99, ms", 2, |m| Some(m.read_ms_p99)),
    ("resident after open, serving, MiB", 0, |m| Some(m.memory_after_open.serving as f64 / MIB)),
    ("resident after the reads, MiB", 0, |m| Some(m.memory_after_reads.serving as f64 / MIB)),
    ("resident after the checkpoints, MiB", 0, |m| Some(m.memory_after_checkpoints.serving as f64 / MIB)),
    ("peak resident, MiB", 0, |m| Some(m.memory_peak as f64 / MIB)),
    ("checkpoint of 64 writes: root, MiB", 2, |m| middle(&m.small, |c| c.root_bytes as f64 / MIB)),
    ("checkpoint of 64 writes: pages, MiB", 2, |m| middle(&m.small, |c| c.pack_bytes as f64 / MIB)),
    ("checkpoint of 64 writes, s", 2, |m| middle(&m.small, |c| c.seconds)),
    ("checkpoint of 64 writes: slowest read, ms", 0, |m| slowest(&m.small)),
    ("checkpoint of 256 MiB: pages, MiB", 1, |m| middle(&m.large, |c| c.pack_bytes as f64 / MIB)),
    ("checkpoint of 256 MiB, s", 1, |m| middle(&m.large, |c| c.seconds)),
    ("checkpoint of 256 MiB: slowest read, ms", 0, |m| slowest(&m.large)),
    ("snapshot after 64 writes, s", 1, |m| median(&m.snapshot_s)),
];

/// A line per figure, a column per volume, and the last one's ratio to the first.
pub(super) fn table(measured: &[Measured]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    let volumes = measured.iter().map(|m| m.volume.clone());
    table.set_header(std::iter::once(String::new()).chain(volumes).chain(["last / first".into()]));
    let shown =
        |value: Option<f64>, digits: usize| value.map_or_else(|| "-".into(), |value| format!("{value:.digits$}"));
    for (name, digits, value) in &ROWS {
        let values: Vec<Option<f64>> = measured.iter().map(value).collect();
        let ratio = values.first().copied().flatten().zip(values.last().copied().flatten());
        let ratio = ratio.filter(|(first, _)| *first > 0.0).map(|(first, last)| last / first);
        let cells = values.iter().map(|value| shown(*value, *digits));
        table.add_row(std::iter::once((*name).to_owned()).chain(cells).chain([shown(ratio, 2)]));
    }
    table.to_string()
}
