//! A set in three S3 servers, each behind a proxy. Reads go to the nearest one, and to another when it becomes slow.
//! When it does not answer, reads continue at another one (READ-E2). No read of a client fails, and each returns the
//! written data.

use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, Options, SET};
use crate::faults::{Fault, Proxy, only};
use crate::nbd::{Client, pattern};
use crate::s3::S3;
use crate::say::note;
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

const STORES: usize = 3;
/// Size of one read: an extent, and so one request.
const READ: u64 = 128 << 10;
const EXTENTS: u64 = 1024;
/// Reads before the first check.
const WARM_UP: u64 = 32;
/// Reads in one check of which store answers.
const BATCH: u64 = 16;
/// Requests at a store without reads: checks of the head.
const BESIDE: u64 = 6;
/// Reads while the near store answers nothing.
const SILENT: u64 = 40;
/// Limit of a read while a store is silent: the timeout of a whole object (3 s, `store/src/quorum/reads.rs`) and a
/// margin.
const READ_LIMIT: Duration = Duration::from_secs(5);
const LIMIT: Duration = Duration::from_secs(120);

/// Reads the whole range, each extent once, so that no cache has it.
struct Reader {
    client: Client,
    number: u64,
}

impl Reader {
    /// Reads the next `count` extents; returns the longest time of one.
    fn read(&mut self, count: u64) -> Result<Duration> {
        let mut longest = Duration::ZERO;
        for _ in 0..count {
            anyhow::ensure!(
                self.number < EXTENTS,
                "all {EXTENTS} extents are read, and the expected change has not come"
            );
            // In scattered order, each once: the factor and their number have no common divisor.
            let offset = self.number * 389 % EXTENTS * READ;
            let begun = Instant::now();
            let found = self.client.read(offset, READ as u32)?;
            longest = longest.max(begun.elapsed());
            anyhow::ensure!(found == pattern(1, offset, READ as usize), "wrong data at {offset}");
            self.number += 1;
        }
        Ok(longest)
    }
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    let (mut servers, mut doors) = (Vec::new(), Vec::new());
    for at in 1..=STORES {
        let server = S3::start(&lab.dir.join(format!("store{at}")))?;
        doors.push(Proxy::start(&server.address(), 0)?);
        servers.push(server);
    }
    let urls: Vec<String> = servers.iter().zip(&doors).map(|(server, door)| server.url_by(door.address())).collect();
    // No disk cache survives a restart, no read-ahead, and no automatic checkpoint.
    let settings = [
        "upload.interval_ms=3600000",
        "upload.bytes=1GiB",
        "cache.disk=0B",
        "cache.read_ahead=0B",
        "cache.memory=256MiB",
    ];
    let options = Options {
        gateways: 1,
        store: Some(format!("w=2 {}", urls.join(" "))),
        env: servers[0].env(),
        ..lab.options(&format!("{}MiB", (EXTENTS * READ) >> 20), &settings)
    };
    let mut cluster = Cluster::start(options)?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    for number in 0..EXTENTS {
        client.write(number * READ, &pattern(1, number * READ, READ as usize))?;
    }
    client.flush()?;
    cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "1m"])?;
    client.disconnect();
    let mut cluster = cluster.stop()?.start()?;
    let (_, client) = cluster.connect(TAKEOVER_LIMIT)?;
    let mut reader = Reader { client, number: 0 };
    reader.read(WARM_UP)?;

    nearest(&mut reader, &doors)?;
    silent(&mut reader, &doors)?;
    reader.client.disconnect();
    cluster.stop()?;
    Ok(())
}

/// Reads some extents, and returns the store that most of them went to.
fn near(reader: &mut Reader, doors: &[Proxy]) -> Result<usize> {
    let before: Vec<u64> = doors.iter().map(Proxy::asked).collect();
    reader.read(BATCH)?;
    let asked = doors.iter().zip(before).map(|(door, before)| door.asked() - before);
    asked.enumerate().max_by_key(|(_, asked)| *asked).map(|(at, _)| at).context("no store")
}

/// The near store becomes slow: reads go to another one.
fn nearest(reader: &mut Reader, doors: &[Proxy]) -> Result<()> {
    let slow = &doors[near(reader, doors)?];
    slow.set(only(Fault::Slow));
    let begun = Instant::now();
    loop {
        let before = slow.asked();
        reader.read(BATCH)?;
        let asked = slow.asked() - before;
        if asked <= BESIDE {
            let after = begun.elapsed().as_secs_f64();
            note(format!(
                "{after:.1} s after the near store had become slow: {asked} requests of {BATCH} reads go there"
            ));
            slow.set(Vec::new());
            return Ok(());
        }
        anyhow::ensure!(
            begun.elapsed() < LIMIT,
            "after {LIMIT:?} {asked} requests of {BATCH} reads still go to a store that is slow"
        );
        // Slowly: the checks of the head bring what this waits for.
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// The near store stops answering: reads continue at another one.
fn silent(reader: &mut Reader, doors: &[Proxy]) -> Result<()> {
    let silent = &doors[near(reader, doors)?];
    silent.set(only(Fault::Hang));
    let longest = reader.read(SILENT).context("with a store that answers nothing")?;
    let before = silent.asked();
    reader.read(BATCH)?;
    let asked = silent.asked() - before;
    silent.set(Vec::new());
    note(format!(
        "a store that answers nothing: the longest of {SILENT} reads took {:.0} ms; of the next {BATCH} {asked} went there",
        longest.as_secs_f64() * 1e3
    ));
    anyhow::ensure!(longest <= READ_LIMIT, "a read took {longest:?}, expected {READ_LIMIT:?} at most");
    anyhow::ensure!(asked <= BESIDE, "{asked} requests for {BATCH} reads went to a store that answers nothing");
    Ok(())
}
