//! The laboratory: twelve gateways in four regions of three zones, with the round trips of such a network between them.
//!
//! ```text
//!   eu-west  a b c ── 20 ms ── eu-north a b c      1 ms between zones, 0.2 ms within one
//!      │  ╲ 150       ╱ 90         │ 140           each gateway behind a relay, which delays by
//!      80    ╲    ╱                │               who has connected
//!   us-east  a b c ── 120 ms ── ap-south a b c
//! ```
//! Owns: starting it, looking at it, making sets. Does not own: what happens in it.

pub(super) mod places;
pub(super) mod seen;
pub(super) mod wires;

use super::blocks::BLOCK;
use super::lab::Lab;
use super::wan::peer_address;
use crate::binary::root;
use crate::cluster::{Cluster, Options, VOLUME};
use crate::cmd::cmd;
use crate::nbd::{Client, Uri, pattern};
use crate::process::wait_until;
use crate::say::{note, step};
use anyhow::{Context, Result};
use places::{GATEWAYS, LONGEST_MS, Place};
use seen::Seen;
use serde_json::Value;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use wires::Wires;

/// Limit of a wait for something that takes seconds, on a machine with two processors.
pub(super) const LIMIT: Duration = Duration::from_secs(180);
/// Limit of one command.
const COMMAND: &str = "120s";
/// Between two looks at the cluster: each asks all gateways.
const LOOK: Duration = Duration::from_millis(400);
/// Sets that are made at the same time.
const AT_ONCE: usize = 4;
/// Bytes that are written to a new set, so that a new voter of it gets something, and where. The first half of the
/// volume is for others.
const FIRST_BYTES: u64 = 1 << 20;
const FIRST_AT: u64 = 8 << 20;

/// Settings of every gateway: for this many on one machine, and the times of the network between them.
fn settings(more: &[&str]) -> Vec<String> {
    let own = [
        "journal.bound=1GiB",
        "journal.reserve=128MiB",
        "journal.file=16MiB",
        "journal.tail=16MiB",
        "cache.memory=32MiB",
        "cache.disk=0B",
        "rtt_calm_ms=5000",
        "placing.follow_owner_ms=10000",
    ];
    let all = own.iter().chain(more).map(|setting| (*setting).to_owned());
    all.chain([format!("rtt_ms={LONGEST_MS}")]).collect()
}

/// The running laboratory.
pub(super) struct Twelve {
    pub(super) cluster: Cluster,
    pub(super) wires: Wires,
}

impl Twelve {
    /// Starts twelve gateways as one cluster, and `further` ones that belong to no cluster yet. `more`: settings. Fails
    /// when they do not come up.
    pub(super) fn start(lab: &Lab, further: usize, more: &[&str]) -> Result<Self> {
        step("Twelve gateways in four regions");
        let (begun, settings) = (Instant::now(), settings(more));
        let mut cluster = Cluster::start(Options { gateways: 1, settings, ..lab.options("16MiB", &[]) })?;
        let wires = Wires::new(GATEWAYS + further, &cluster.options.dir);
        for index in 1..GATEWAYS + further {
            cluster.start_behind(|far| stands(index, &wires.lead_to(index, far.to_owned())?))?;
        }
        // The first one already listens. It is not in front of its relay before the others are there, since they are
        // started with its command line.
        let first = stands(0, &wires.lead_to(0, peer_address(&cluster, 0)?)?)?;
        cluster.end(0)?;
        cluster.restart_with(0, &first.iter().map(String::as_str).collect::<Vec<_>>())?;
        let api = cluster.gateways[0].api.clone();
        cluster.holdfast(&["gateway", "update", "g1", "--address", &api, "--timeout", COMMAND])?;
        let twelve = Self { cluster, wires };
        for index in 1..GATEWAYS {
            twelve.add(index)?;
        }
        twelve.wait("twelve gateways", LIMIT, |seen| {
            let (votes, answers) = (seen.cluster.voters.len(), seen.answering.len());
            let follow = votes + seen.cluster.learners.len();
            // Of the cluster's own group five vote, the others learn it (ADR 0075).
            let there = votes == 5 && follow == GATEWAYS && answers == GATEWAYS;
            (!there).then(|| format!("{votes} vote, {follow} follow, {answers} answer")).or_else(|| seen.unsettled())
        })?;
        note(format!("up after {:.0} s", begun.elapsed().as_secs_f64()));
        Ok(twelve)
    }

    /// Adds a started gateway to the cluster. It may not vote yet when this returns. Fails when it is refused.
    pub(super) fn add(&self, index: usize) -> Result<()> {
        let api = &self.cluster.gateways[index].api;
        self.cluster.holdfast(&["gateway", "add", api, "--no-wait", "--timeout", COMMAND]).map(drop)
    }

    /// The cluster now. Fails when no gateway answers.
    pub(super) fn seen(&self) -> Result<Seen> {
        Seen::read(&self.cluster.holdfast(&["cluster", "status"])?)
    }

    /// Looks at the cluster until it lacks nothing. Returns how long that took. Fails when `limit` passes first; the
    /// error says what it lacks.
    pub(super) fn wait(
        &self,
        what: &str,
        limit: Duration,
        mut lacks: impl FnMut(&Seen) -> Option<String>,
    ) -> Result<Duration> {
        let begun = Instant::now();
        loop {
            let lacking = self.seen().map_or_else(|error| Some(format!("{error:#}")), |seen| lacks(&seen));
            let Some(lacking) = lacking else { return Ok(begun.elapsed()) };
            anyhow::ensure!(begun.elapsed() < limit, "{what}: after {limit:?}: {lacking}");
            std::thread::sleep(LOOK);
        }
    }

    /// Makes sets with these names and policies (options of `set create`), some at a time, and writes the beginning of
    /// each. Fails when one cannot be made, or is not served.
    pub(super) fn make(&self, sets: &[(String, Vec<String>)]) -> Result<()> {
        let cluster = &self.cluster;
        let store = format!("file://{}/store", cluster.options.dir.canonicalize()?.display());
        let maker =
            Maker { bin: cluster.options.bin.clone(), apis: cluster.apis().join(","), doors: cluster.exports(), store };
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            let work = || -> Result<()> {
                while let Some((name, policy)) = sets.get(next.fetch_add(1, Ordering::Relaxed)) {
                    maker.make(name, policy).with_context(|| format!("set {name}"))?;
                }
                Ok(())
            };
            let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                thread.join().map_err(|_| anyhow::anyhow!("a thread that makes sets panicked"))?
            };
            threads.into_iter().try_for_each(join)
        })
    }

    /// Ends it. Says so if a connection had a delay that was not its own. Fails when a gateway does not end.
    pub(super) fn end(self) -> Result<()> {
        if self.wires.strange() > 0 {
            note(format!("{} connections were of no gateway, and had the longest delay", self.wires.strange()));
        }
        self.wires.heal();
        // In good order each would first hand over what it leads, one gateway after the other.
        self.cluster.kill_all().map(drop)
    }
}

/// Keeps the result of a scenario beside the records of runs, as `target/proof/NAME.json`. Fails when it cannot be
/// written.
pub(super) fn keep(name: &str, result: &Value) -> Result<()> {
    let dir = root().join("target").join("proof");
    std::fs::create_dir_all(&dir)?;
    note(format!("target/proof/{name}.json has the same"));
    Ok(std::fs::write(dir.join(format!("{name}.json")), serde_json::to_vec_pretty(result)?)?)
}

/// Arguments of a gateway that is reached at `peer`.
fn stands(index: usize, peer: &str) -> Result<Vec<String>> {
    let (peer, place) = (format!("advertise.peer={peer}"), format!("locality={}", Place::of(index).locality()));
    Ok(["--set".to_owned(), peer, "--set".to_owned(), place].into())
}

/// Makes sets, from several threads.
struct Maker {
    bin: PathBuf,
    apis: String,
    doors: Vec<Uri>,
    store: String,
}

impl Maker {
    fn make(&self, name: &str, policy: &[String]) -> Result<()> {
        let volume = format!("{VOLUME}=16MiB");
        let create = ["set", "create", name, "--store", &self.store, "--volume", &volume, "--timeout", COMMAND];
        cmd(&self.bin).args(create).args(policy).args(["--output", "json", "--api", &self.apis]).run()?;
        let (mut last, export) = (String::from("not asked"), format!("{name}/{VOLUME}"));
        let written = wait_until(LIMIT, || {
            self.doors.iter().any(|door| match self.begin(&door.with_export(&export)) {
                Ok(()) => true,
                Err(error) => {
                    last = format!("{error:#}");
                    false
                }
            })
        });
        anyhow::ensure!(written, "nothing was written for {LIMIT:?}: {last}");
        Ok(())
    }

    /// Writes the first blocks, if the gateway of this address serves the set.
    fn begin(&self, uri: &Uri) -> Result<()> {
        let mut client = Client::connect(uri, Duration::from_secs(20))?;
        let offsets = (FIRST_AT..FIRST_AT + FIRST_BYTES).step_by(BLOCK);
        let bytes: Vec<u8> = offsets.flat_map(|offset| pattern(1, offset, BLOCK)).collect();
        client.write(FIRST_AT, &bytes)?;
        client.flush()?;
        client.disconnect();
        Ok(())
    }
}
