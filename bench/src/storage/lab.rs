//! Setup of every row: three gateways over a real S3 server with an access log, and access to their counters.

use super::door::{Counts, Door, Mark};
use super::figures::{self, Fio, MIB, metric, ratio, shown};
use super::plan::Plan;
use crate::cluster::{Cluster, Options, SET};
use crate::cmd::{Cmd, cmd};
use crate::process::wait_until;
use crate::relay::Relay;
use crate::s3::S3;
use crate::say::note;
use crate::web::page;
use anyhow::{Context, Result};
use serde::Serialize;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Interval of progress lines.
const TELL_EVERY: Duration = Duration::from_secs(20);
/// Limit until everything written is in the store.
const CHECKPOINT_LIMIT: &str = "300s";
/// Limit of the wait for a serving gateway.
const PATIENCE: Duration = Duration::from_secs(60);

/// Everything runs on one machine, and the load uses its CPUs: gateways that expect answers within milliseconds would
/// sometimes hold elections.
pub const CALM: [&str; 2] = ["rtt_ms=100", "rtt_floor_ms=100"];

/// One row's cluster and server.
pub struct Lab {
    pub cluster: Cluster,
    pub s3: S3,
    pub dir: PathBuf,
    /// The link to the server for all clients.
    link: Option<Relay>,
    door: Door,
}

/// The gateways' counters since their start, and the report of the last checkpoint.
#[derive(Clone, Copy, Debug, Default)]
struct Meters {
    written: u64,
    moved: u64,
    checkpoints: u64,
    stored_to_live: Option<f64>,
}

/// Work between two moments at which everything was in the store.
#[derive(Clone, Debug, Serialize)]
pub struct Window {
    pub seconds: f64,
    /// Bytes written by clients, by the gateways' count.
    pub written_bytes: u64,
    /// Bytes of the bodies of all PUTs, by the server's log.
    pub put_bytes: u64,
    pub puts: u64,
    pub put_bytes_per_byte: Option<f64>,
    pub puts_per_gib: Option<f64>,
    /// Bytes copied by garbage collection, before compression.
    pub moved_bytes: u64,
    pub checkpoints: u64,
    /// Bytes of all segments per byte in use, at begin and end.
    pub stored_to_live: [Option<f64>; 2],
    pub requests: Counts,
}

impl Lab {
    /// A fresh cluster below `dir`, with `size_mib` in its volume. Fails when something does not start.
    pub fn start(plan: &Plan, name: &str, size_mib: u64, settings: Vec<String>) -> Result<Self> {
        Self::start_behind(plan, name, size_mib, settings, None)
    }

    /// The same, with the server behind a link of this many bytes a second in each direction. Fails when something does
    /// not start.
    pub fn start_behind(
        plan: &Plan,
        name: &str,
        size_mib: u64,
        mut settings: Vec<String>,
        link: Option<u64>,
    ) -> Result<Self> {
        settings.extend(CALM.map(String::from));
        settings.extend(plan.settings.iter().cloned());
        let dir = plan.dir.join(name);
        std::fs::create_dir_all(&dir)?;
        let log = dir.join("access.log");
        let s3 = S3::start_noting(&dir, &log)?;
        let link = link.map(|rate| Relay::over_link(s3.address(), rate)).transpose()?;
        let url = link.as_ref().map_or_else(|| s3.url(), |link| s3.url_by(&link.addr));
        let (bin, store, size) = (plan.bin.clone(), Some(url), format!("{size_mib}MiB"));
        let options = Options { bin, dir: dir.join("cluster"), gateways: 3, store, size, settings, env: s3.env() };
        let cluster = Cluster::start(options)?;
        Ok(Self { cluster, s3, dir, link, door: Door::new(&log) })
    }

    /// HOST:PORT of the server.
    pub fn server(&self) -> String {
        self.link.as_ref().map_or_else(|| self.s3.address(), |link| link.addr.clone())
    }

    /// Stops it and frees its space, except for the logs. Fails when something does not end.
    pub fn stop(self) -> Result<()> {
        self.cluster.stop()?;
        let mut s3 = self.s3;
        s3.stop()?;
        crate::room::thin_out(&self.dir)?;
        Ok(())
    }

    /// Stops and starts the gateways, which clears their memory.
    pub fn begin_again(self) -> Result<Self> {
        let cluster = self.cluster.stop()?.start()?;
        Ok(Self { cluster, ..self })
    }

    pub fn mark(&self) -> Result<Mark> {
        self.door.mark()
    }

    pub fn since(&self, mark: Mark) -> Result<Counts> {
        self.door.since(mark)
    }

    /// Waits until everything written is in the store. Fails when it takes longer than five minutes.
    pub fn checkpoint(&self) -> Result<()> {
        self.cluster.holdfast(&["set", "checkpoint", SET, "--timeout", CHECKPOINT_LIMIT]).map(drop)
    }

    /// The checkpoints in the gateways' logs.
    pub fn checkpoints(&self) -> Vec<figures::Checkpoint> {
        let log = |index: usize| {
            let path = self.cluster.options.dir.join(format!("{}.log", self.cluster.name(index)));
            std::fs::read_to_string(path).unwrap_or_default()
        };
        (0..self.cluster.gateways.len()).flat_map(|index| figures::checkpoints(&log(index))).collect()
    }

    /// A metric's largest value over the gateways: the leader's, if only it has one. Fails when a gateway does not
    /// answer.
    pub fn gauge(&self, name: &str) -> Result<Option<f64>> {
        let pages = self.pages()?;
        Ok(pages.iter().filter_map(|page| metric(page, name, "")).reduce(f64::max))
    }

    fn pages(&self) -> Result<Vec<String>> {
        let all = 0..self.cluster.gateways.len();
        all.map(|index| page(&self.cluster.metrics_address(index)?, "/metrics")).collect()
    }

    fn meters(&self) -> Result<Meters> {
        let pages = self.pages()?;
        let sum =
            |name: &str, label: &str| pages.iter().filter_map(|page| metric(page, name, label)).sum::<f64>() as u64;
        let most = |name: &str| pages.iter().filter_map(|page| metric(page, name, "")).reduce(f64::max);
        let stored = most("holdfast_space_stored_bytes").zip(most("holdfast_space_live_bytes"));
        Ok(Meters {
            written: sum("holdfast_nbd_request_bytes_total", "op=\"write\""),
            moved: sum("holdfast_space_moved_bytes_total", ""),
            checkpoints: sum("holdfast_checkpoints_total", ""),
            stored_to_live: stored.and_then(|(stored, live)| ratio(stored, live)),
        })
    }

    /// Bytes written by clients so far. Fails when a gateway does not answer.
    pub fn written(&self) -> Result<u64> {
        Ok(self.meters()?.written)
    }

    /// Does `work` between two moments at which everything is in the store, prints progress meanwhile, and counts.
    /// Fails as `work` does, or when something cannot be counted.
    pub fn window<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<(Window, T)> {
        self.checkpoint()?;
        let (mark, before, begun) = (self.mark()?, self.meters()?, Instant::now());
        let done = self.telling(mark, before, work)?;
        let seconds = begun.elapsed().as_secs_f64();
        self.checkpoint()?;
        let (requests, after) = (self.since(mark)?, self.meters()?);
        let written = after.written.saturating_sub(before.written);
        let puts = requests.puts();
        let window = Window {
            seconds,
            written_bytes: written,
            put_bytes: puts.put_bytes,
            puts: puts.requests,
            put_bytes_per_byte: ratio(puts.put_bytes as f64, written as f64),
            puts_per_gib: requests.puts_per_gib(written),
            moved_bytes: after.moved.saturating_sub(before.moved),
            checkpoints: after.checkpoints.saturating_sub(before.checkpoints),
            stored_to_live: [before.stored_to_live, after.stored_to_live],
            requests,
        };
        window.tell();
        Ok((window, done))
    }

    fn telling<T: Send>(&self, mark: Mark, before: Meters, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let ended = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let working = scope.spawn(|| {
                let done = work();
                ended.store(true, Ordering::Release);
                done
            });
            while !wait_until(TELL_EVERY, || ended.load(Ordering::Acquire) || working.is_finished()) {
                // A failed query now is repeated at the end.
                if let (Ok(now), Ok(counts)) = (self.meters(), self.since(mark)) {
                    note(format!(
                        "{} MiB written, {} MiB in {} PUTs, {} MiB of it moved, stored / in use {}",
                        (now.written.saturating_sub(before.written)) / MIB,
                        counts.puts().put_bytes / MIB,
                        counts.puts().requests,
                        (now.moved.saturating_sub(before.moved)) / MIB,
                        shown(now.stored_to_live, 2)
                    ));
                }
            }
            working.join().unwrap_or_else(|_| Err(anyhow::anyhow!("the load panicked")))
        })
    }

    /// fio on the volume, through its own NBD client and one connection. Fails when fio does, or when its report cannot
    /// be read.
    pub fn fio(&mut self, args: &[&str]) -> Result<impl FnOnce() -> Result<Fio> + Send + use<>> {
        let serving = self.cluster.serving(PATIENCE)?;
        let uri = self.cluster.gateways[serving].nbd.to_string();
        let command = fio(&uri).args(args);
        let (dir, shown) = (self.dir.clone(), args.join(" "));
        Ok(move || {
            let said = command.out()?;
            std::fs::write(dir.join("fio.json"), &said)?;
            figures::fio(&said).with_context(|| format!("fio {shown}: its report cannot be read"))
        })
    }
}

fn fio(uri: &str) -> Cmd {
    let command = cmd("fio").args(["--name=row", "--thread", "--output-format=json", "--randrepeat=0"]);
    // Random data in each buffer: nothing to compress. Any block at any time: uniform, not a permutation.
    command.args(["--refill_buffers=1", "--norandommap", "--ioengine=nbd"]).arg(format!("--uri={uri}"))
}

impl Window {
    fn tell(&self) {
        note(format!(
            "{} MiB written in {:.0} s and {} checkpoints; {} MiB in {} PUTs, {} MiB of it moved; stored / in use {} before, {} after",
            self.written_bytes / MIB,
            self.seconds,
            self.checkpoints,
            self.put_bytes / MIB,
            self.puts,
            self.moved_bytes / MIB,
            shown(self.stored_to_live[0], 2),
            shown(self.stored_to_live[1], 2)
        ));
        note(format!("requests: {}", self.requests.short()));
    }
}
