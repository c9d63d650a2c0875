//! A noisy neighbour: one gateway serves two sets, and the clients of one flood it. The other set's client writes small
//! blocks one after the other; its latency is printed alone, beside the flood, and beside the flood under a limit of
//! the set and of the volume. The limits are set while the flood runs, which keeps its connections and gets what the
//! limit allows.

use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, Options, SET, VOLUME};
use crate::nbd::{Client, Uri, pattern};
use crate::say::note;
use anyhow::{Context, Result};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// The set that floods.
const NOISY: &str = "noisy";
/// Connections of the flood, and writes in flight in each.
const FLOOD_CLIENTS: u64 = 4;
const FLOOD_DEPTH: u64 = 16;
const FLOOD_BYTES: usize = 256 << 10;
/// The flood overwrites so many blocks for each of its clients.
const FLOOD_BLOCKS: u64 = 128;
/// The neighbour's writes.
const BLOCK: usize = 4096;
const BLOCKS: u64 = 1024;
/// The neighbour pauses between its writes, like a database at rest: it never saturates anything itself.
const PAUSE: Duration = Duration::from_millis(2);
/// Length of each measurement.
const MEASURED: Duration = Duration::from_secs(8);
/// After a change, before it is measured: a limit counts within a quarter of a second, and what was begun before ends.
const SETTLE: Duration = Duration::from_secs(3);
/// What the set may write under its limit.
const LIMIT_MIB: u64 = 4;
/// Clients that leave while their requests wait.
const LEAVERS: u64 = 4;
/// The same in writes of the flood.
const LIMIT_IOPS: u64 = (LIMIT_MIB << 20) / FLOOD_BYTES as u64;

/// What the flood has got so far.
#[derive(Default)]
struct Flood {
    bytes: AtomicU64,
    stop: AtomicBool,
}

impl Flood {
    /// Writes until it is stopped. Fails when a write fails, or the connection is closed.
    fn client(&self, number: u64, export: &Uri) -> Result<()> {
        let mut client = Client::connect(export, TAKEOVER_LIMIT)?;
        let (mut sent, mut open) = (0, 0);
        while open > 0 || !self.stop.load(Ordering::Relaxed) {
            if open < FLOOD_DEPTH && !self.stop.load(Ordering::Relaxed) {
                let block = number * FLOOD_BLOCKS + sent % FLOOD_BLOCKS;
                let offset = block * FLOOD_BYTES as u64;
                client.send_write(offset, &pattern(sent + 1, offset, FLOOD_BYTES))?;
                (sent, open) = (sent + 1, open + 1);
                continue;
            }
            let reply = client.receive()?;
            anyhow::ensure!(reply.result.is_ok(), "a write of the flood is answered with an error: {reply:?}");
            open -= 1;
            self.bytes.fetch_add(FLOOD_BYTES as u64, Ordering::Relaxed);
        }
        client.disconnect();
        Ok(())
    }

    /// Runs `measured` beside the flood.
    fn beside<T>(&self, export: &Uri, measured: impl FnOnce() -> Result<T>) -> Result<T> {
        std::thread::scope(|scope| {
            let clients: Vec<_> =
                (0..FLOOD_CLIENTS).map(|number| scope.spawn(move || self.client(number, export))).collect();
            let result = measured();
            self.stop.store(true, Ordering::Relaxed);
            for client in clients {
                client.join().map_err(|_| anyhow::anyhow!("a client of the flood panicked"))??;
            }
            result
        })
    }
}

/// Latencies of the neighbour, and what the flood wrote meanwhile.
struct WriteLatencies {
    writes: usize,
    p50: Duration,
    p99: Duration,
    worst: Duration,
    /// Bytes a second.
    flood: u64,
}

impl WriteLatencies {
    fn say(&self, what: &str) {
        let ms = |time: Duration| time.as_secs_f64() * 1000.0;
        note(format!(
            "{what}: {} writes of the neighbour, p50 {:.1} ms, p99 {:.1} ms, worst {:.1} ms; the flood {:.1} MiB/s",
            self.writes,
            ms(self.p50),
            ms(self.p99),
            ms(self.worst),
            self.flood as f64 / f64::from(1 << 20)
        ));
    }
}

/// The value below which this part of the sorted latencies lies.
fn percentile(sorted: &[Duration], percent: usize) -> Duration {
    let at = (sorted.len() * percent).div_ceil(100).saturating_sub(1);
    sorted.get(at).copied().unwrap_or_default()
}

/// One measurement.
fn measure(neighbour: &mut Client, flood: &Flood) -> Result<WriteLatencies> {
    std::thread::sleep(SETTLE);
    let (begun, before, mut latencies) = (Instant::now(), flood.bytes.load(Ordering::Relaxed), Vec::new());
    while begun.elapsed() < MEASURED {
        let offset = latencies.len() as u64 % BLOCKS * BLOCK as u64;
        let (block, since) = (pattern(latencies.len() as u64 + 1, offset, BLOCK), Instant::now());
        neighbour.write(offset, &block)?;
        latencies.push(since.elapsed());
        std::thread::sleep(PAUSE);
    }
    let wrote = flood.bytes.load(Ordering::Relaxed) - before;
    let flood = (wrote as f64 / begun.elapsed().as_secs_f64()) as u64;
    latencies.sort_unstable();
    let worst = latencies.last().copied().context("nothing was written")?;
    let (p50, p99) = (percentile(&latencies, 50), percentile(&latencies, 99));
    Ok(WriteLatencies { writes: latencies.len(), p50, p99, worst, flood })
}

/// The flood gets what the limit allows, and not more. What begins as a burst was begun before it was measured.
fn held(what: &str, seen: &WriteLatencies) -> Result<()> {
    let limit = LIMIT_MIB << 20;
    // The last writes before and after the measurement may count on either side.
    let slack = FLOOD_CLIENTS * FLOOD_BYTES as u64 * 2 / MEASURED.as_secs();
    anyhow::ensure!(
        seen.flood <= limit + limit / 10 + slack,
        "{what}: the flood wrote {} bytes/s under a limit of {limit}",
        seen.flood
    );
    anyhow::ensure!(
        seen.flood >= limit / 2,
        "{what}: the flood wrote {} bytes/s of the {limit} that it may",
        seen.flood
    );
    Ok(())
}

/// A client that leaves without a word while its writes wait for a limit.
fn leave(export: &Uri) -> Result<()> {
    let mut client = Client::connect(export, TAKEOVER_LIMIT)?;
    for number in 0..FLOOD_DEPTH {
        // Behind the blocks of the flood.
        let offset = FLOOD_CLIENTS * FLOOD_BLOCKS * FLOOD_BYTES as u64 + number * BLOCK as u64;
        client.send_write(offset, &pattern(number + 1, offset, BLOCK))?;
    }
    Ok(())
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    // One gateway: the two are neighbours wherever leadership would be.
    let mut cluster = Cluster::start(Options { gateways: 1, ..lab.options("64MiB", &[]) })?;
    let store = format!("file://{}", std::path::absolute(lab.dir.join("noisy-store"))?.display());
    let volume = format!("{VOLUME}=256MiB");
    cluster.holdfast(&["set", "create", NOISY, "--store", &store, "--volume", &volume, "--timeout", "60s"])?;
    let export = cluster.gateways[0].nbd.with_export(&format!("{NOISY}/{VOLUME}"));
    // Waits until the new set is served.
    cluster.open(&export.export, TAKEOVER_LIMIT)?.disconnect();
    let (_, mut neighbour) = cluster.connect(TAKEOVER_LIMIT)?;

    let flood = Flood::default();
    let alone = measure(&mut neighbour, &flood)?;
    alone.say("alone");
    let (beside, of_set, of_volume, after) =
        flood.beside(&export, || phases(&cluster, &mut neighbour, &flood, &export))?;
    anyhow::ensure!(beside.flood > 2 * (LIMIT_MIB << 20), "the flood is none: {} bytes/s", beside.flood);
    held("a limit of the set", &of_set)?;
    held("a limit of the volume", &of_volume)?;
    anyhow::ensure!(after.flood > 2 * (LIMIT_MIB << 20), "without the limit again, {} bytes/s", after.flood);
    // The reason for all of it. Where the flood did not slow the neighbour down, there is nothing to improve.
    let slowed = beside.p99 > alone.p99 * 2;
    anyhow::ensure!(
        !slowed || of_set.p99 < beside.p99,
        "the neighbour's p99 is {:?} beside the flood, and {:?} beside the flood under a limit",
        beside.p99,
        of_set.p99
    );
    neighbour.disconnect();
    cluster.stop()?;
    Ok(())
}

/// Beside the flood: without limits, with one of the set, with one of the volume, and without again.
fn phases(
    cluster: &Cluster,
    neighbour: &mut Client,
    flood: &Flood,
    export: &Uri,
) -> Result<(WriteLatencies, WriteLatencies, WriteLatencies, WriteLatencies)> {
    let volume = format!("{NOISY}/{VOLUME}");
    let beside = measure(neighbour, flood)?;
    beside.say("beside the flood");
    let bytes = format!("{LIMIT_MIB}MiB");
    cluster.holdfast(&["set", "limit", NOISY, "--bytes", &bytes, "--burst", "200ms"])?;
    let of_set = measure(neighbour, flood)?;
    of_set.say(&format!("the flood's set limited to {bytes}/s"));
    cluster.holdfast(&["set", "limit", NOISY, "--off"])?;
    let iops = LIMIT_IOPS.to_string();
    cluster.holdfast(&["volume", "limit", &volume, "--iops", &iops, "--burst", "200ms"])?;
    let shown = cluster.holdfast(&["volume", "show", &volume])?;
    anyhow::ensure!(shown["limit"]["iops"] == LIMIT_IOPS, "volume show: {shown}");
    let shown = cluster.holdfast(&["set", "show", SET])?;
    anyhow::ensure!(shown["limit"].is_null(), "the neighbour has a limit: {shown}");
    // What clients have waited for that leave meanwhile is not lost to the others: they get what the limit allows.
    for _ in 0..LEAVERS {
        leave(export)?;
    }
    let of_volume = measure(neighbour, flood)?;
    of_volume.say(&format!("the flood's volume limited to {iops} IOPS"));
    cluster.holdfast(&["volume", "limit", &volume, "--off"])?;
    let after = measure(neighbour, flood)?;
    after.say("without limits again");
    Ok((beside, of_set, of_volume, after))
}
