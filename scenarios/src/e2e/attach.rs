//! `holdfast attach`: its users see no error and lose nothing while the gateways behind it are killed, paused and
//! switched; once another owner holds the set, they get only errors.
//!
//! ```text
//!   writers with a ledger ─ TCP ─▶ bridge ─┐
//!   fio --verify ──────────────────────────┴─ Unix socket ─▶ holdfast attach ─▶ g1, g2, g3
//! ```

use super::blocks::{BLOCK, Load};
use super::{Lab, TAKEOVER_LIMIT};
use crate::binary::public_dir;
use crate::bridge::Bridge;
use crate::cluster::{Cluster, SET, VOLUME};
use crate::cmd::{cmd, tail_of};
use crate::nbd::{Client, NbdError, Uri, pattern, tag_of};
use crate::process::{Proc, SetOnDrop, Signal, wait_until};
use crate::say::note;
use anyhow::{Context, Result};
use serde_json::Value;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::time::Duration;

const WRITERS: u64 = 8;
const BLOCKS_EACH: u64 = 1024;
/// fio uses the blocks after those of the writers.
const FIO: [&str; 3] = ["--offset=64m", "--size=24m", "--rate=12m"];
const PATIENCE: Duration = Duration::from_secs(20);
/// Limit of a run. It takes some five seconds, and several times that on a busy machine or during an outage.
const FIO_LIMIT: Duration = Duration::from_secs(60);
/// Exit code of an attach that was fenced.
const FENCED: i32 = 7;
const EIO: u32 = 5;
const ENOSPC: u32 = 28;
/// How long requests may wait after a gateway is lost. A takeover takes about a second, and a few on a busy machine.
const OUTAGE_MS_MAX: u64 = 15_000;
/// A block that no other writer uses.
const AT: u64 = 96 << 20;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut cluster = lab.cluster("256MiB")?;
    let (dir, _guard) = public_dir("attach")?;
    let mut load = Load::new(WRITERS, BLOCKS_EACH);
    let first = Attached::start(lab, &cluster, &dir.join("a"), "host-a")?;
    let bridge = Bridge::to(&first.socket(), &export())?;
    survive(lab, &mut cluster, &first, &bridge, &mut load)?;

    let second = usurp(lab, &cluster, first, &bridge, &dir)?;
    // The next owner sees all writes that were acknowledged to the first one.
    let bridge = Bridge::to(&second.socket(), &export())?;
    let mut client = Client::connect(&bridge.uri, PATIENCE)?;
    load.check(&mut client).context("through the second attach")?;
    client.disconnect();
    note(format!("{} pairs acknowledged, all there for the next owner", load.progress().answered()));

    forced_away(&cluster, second, &bridge)?;
    one_lost(lab, &cluster, &dir.join("c"))?;
    one_cut(lab, &cluster, &dir.join("d"))?;
    cluster.stop()?;
    Ok(())
}

/// Kills, pauses and moves gateways under load.
fn survive(lab: &Lab, cluster: &mut Cluster, attached: &Attached, bridge: &Bridge, load: &mut Load) -> Result<()> {
    let rounds = if lab.long { 100 } else { 4 };
    let stop = AtomicBool::new(false);
    let verified = AtomicU64::new(0);
    let outages = std::thread::scope(|scope| -> Result<Vec<u64>> {
        let _stops = SetOnDrop(&stop);
        let fio = scope.spawn(|| verify_until(&stop, lab, &attached.socket(), &verified));
        let made = load.run(std::slice::from_ref(&bridge.uri), |progress| {
            let mut outages = Vec::new();
            let busy = || {
                let (pairs, runs) = (progress.answered(), verified.load(Ordering::Relaxed));
                let goes_on = || progress.answered() > pairs + 100 && verified.load(Ordering::Relaxed) > runs;
                anyhow::ensure!(wait_until(TAKEOVER_LIMIT, goes_on), "the load does not continue");
                Ok(())
            };
            busy()?;
            for round in 1..=rounds {
                let before = attached.look()?;
                let serving = gateway_of(cluster, &before)?;
                // One is paused, one is switched over, the others are killed.
                match round {
                    2 => cluster.pause(serving)?,
                    3 => switch_over(cluster, serving)?,
                    _ => drop(cluster.kill(serving)?),
                }
                let elsewhere = || attached.look().is_ok_and(|now| serves_anew(&now, &before));
                let moved = wait_until(TAKEOVER_LIMIT, elsewhere);
                if round == 2 {
                    cluster.proceed(serving);
                }
                anyhow::ensure!(moved, "round {round}: not reconnected: {}", attached.look()?);
                busy()?;
                let now = attached.look()?;
                let outage = now["last_outage_ms"].as_u64().context("no last_outage_ms")?;
                let how = match round {
                    2 => "paused",
                    3 => "switched over",
                    _ => "killed",
                };
                note(format!(
                    "round {round}: {} {how}, {} after {outage} ms; {} pairs",
                    before["gateway"],
                    now["gateway"],
                    progress.answered()
                ));
                outages.push(outage);
                if !matches!(round, 2 | 3) {
                    cluster.restart(serving)?;
                }
                cluster.caught_up(TAKEOVER_LIMIT)?;
            }
            Ok(outages)
        });
        stop.store(true, Ordering::Relaxed);
        fio.join().map_err(|_| anyhow::anyhow!("fio's thread panicked"))?.context("fio")?;
        made
    })?;
    load.unbroken(&bridge.uri, PATIENCE)?;
    let progress = load.progress();
    let worst = outages.iter().max().copied().unwrap_or(0);
    anyhow::ensure!(worst <= OUTAGE_MS_MAX, "requests waited {worst} ms, at most {OUTAGE_MS_MAX} are allowed");
    note(format!(
        "{} pairs and {} fio runs, no error, no connection lost; outages up to {worst} ms, the slowest pair {:.0} ms",
        progress.answered(),
        verified.load(Ordering::Relaxed),
        progress.slowest().as_secs_f64() * 1e3
    ));
    Ok(())
}

pub(super) fn export() -> String {
    format!("{SET}/{VOLUME}")
}

pub(super) fn serves_anew(now: &Value, before: &Value) -> bool {
    now["phase"] == "serving" && now["reconnects"].as_u64() > before["reconnects"].as_u64()
}

pub(super) fn gateway_of(cluster: &Cluster, status: &Value) -> Result<usize> {
    let index = (0..cluster.gateways.len()).find(|index| status["gateway"] == cluster.name(*index).as_str());
    index.with_context(|| format!("no gateway is called {}", status["gateway"]))
}

fn switch_over(cluster: &Cluster, from: usize) -> Result<()> {
    let to = cluster.name(cluster.others(from)[0]);
    cluster.holdfast(&["switchover", SET, "--to", &to]).map(drop)
}

/// fio over the Unix socket, one short run after the other.
fn verify_until(stop: &AtomicBool, lab: &Lab, socket: &Path, done: &AtomicU64) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let base =
            ["--name=attached", "--thread", "--ioengine=nbd", "--iodepth=16", "--bsrange=4k-64k", "--rw=randwrite"];
        let verify = ["--verify=crc32c", "--verify_fatal=1", "--do_verify=1", "--randrepeat=0"];
        let uri = format!("--uri=nbd+unix:///{SET}/{VOLUME}?socket={}", socket.display());
        let command = cmd("fio").dir(&lab.dir).args(base).args(verify).args(FIO).arg(uri);
        // fio itself has no timeout.
        let log = lab.dir.join("fio.log");
        let _ = std::fs::remove_file(&log);
        let status = Proc::spawn("fio", command.into_command(), &log)?.wait(FIO_LIMIT)?;
        anyhow::ensure!(status.success(), "fio: {status}: {}", tail_of(&log, 12));
        done.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// host-b takes the set by force: host-a's users get errors only, for good. Then host-b releases it, and attaches.
fn usurp(lab: &Lab, cluster: &Cluster, mut first: Attached, bridge: &Bridge, dir: &Path) -> Result<Attached> {
    let mut user = Client::connect(&bridge.uri, PATIENCE)?;
    user.write(AT, &pattern(1, AT, BLOCK))?;
    let said = cluster.holdfast(&["lease", "acquire", SET, "--owner", "host-b", "--ttl", "1m", "--force"])?;
    let token = said["token"].as_str().context("no token")?.to_owned();
    let addr = said["lease"]["gateway_nbd"].as_str().context("no gateway_nbd")?.to_owned();
    let uri = Uri { addr, export: format!("{SET}/{VOLUME}?token={token}&conn=0&gen=1") };
    let mut other = Client::connect(&uri, PATIENCE).context("the new owner's session")?;
    other.write(AT, &pattern(2, AT, BLOCK))?;
    // A late copy of that connection's beginning must not end it (SLOT-S2).
    let again = Client::connect(&uri, PATIENCE);
    anyhow::ensure!(matches!(again, Err(NbdError::Refused(_))), "the same incarnation a second time: {again:?}");
    other.write(AT, &pattern(2, AT, BLOCK)).context("beside a refused connection of its slot")?;
    refused(&mut user, "after the grant to host-b")?;
    // An idle user of the old owner gets errors too, because the lease is not renewed.
    anyhow::ensure!(first.code("--status")? == FENCED, "--status of a fenced set ends with another code than {FENCED}");
    let by = first.look()?["fenced_by"].to_string();
    let named = wait_until(PATIENCE, || first.look().is_ok_and(|now| now["fenced_by"].to_string().contains("host-b")));
    anyhow::ensure!(named, "the new owner of the set is not shown: {by}");
    let seen = tag_of(&other.read(AT, u32::try_from(BLOCK)?)?, AT)?;
    anyhow::ensure!(seen == 2, "R2: found write {seen}, expected host-b's");
    other.disconnect();
    cluster.holdfast(&["lease", "release", SET, "--token", &token])?;

    // The set is free again, but host-a's caches are stale: it must not attach again by itself (ATTACH-M5).
    let second = Attached::start(lab, cluster, &dir.join("b"), "host-b")?;
    refused(&mut user, "after host-b let go")?;
    refused(&mut Client::connect(&bridge.uri, PATIENCE)?, "through a new connection")?;
    first.proc.signal(Signal::TERM);
    let code = first.proc.wait(PATIENCE)?.code();
    anyhow::ensure!(code == Some(FENCED), "a fenced attach ended with {code:?}, expected {FENCED}");
    note(format!("fenced by force: errors for good, exit code {FENCED}, host-b's write stays"));
    Ok(second)
}

/// A forced failover to another owner while the set is attached; then a third owner attaches and detaches cleanly.
fn forced_away(cluster: &Cluster, mut second: Attached, bridge: &Bridge) -> Result<()> {
    let mut user = Client::connect(&bridge.uri, PATIENCE)?;
    user.write(AT, &pattern(3, AT, BLOCK))?;
    let serving = gateway_of(cluster, &second.look()?)?;
    let to = cluster.name(cluster.others(serving)[0]);
    let said = cluster.holdfast(&["failover", SET, "--candidate", &to, "--owner", "host-c", "--yes"])?;
    refused(&mut user, "after the failover to host-c")?;
    second.proc.signal(Signal::TERM);
    let code = second.proc.wait(PATIENCE)?.code();
    anyhow::ensure!(code == Some(FENCED), "a fenced attach ended with {code:?}, expected {FENCED}");
    note("failover to another owner: errors only");

    let token = said["granted"]["token"].as_str().context("no token")?;
    cluster.holdfast(&["lease", "release", SET, "--token", token])?;
    let mut third = second.again(cluster, "host-d")?;
    let mut user = Client::connect(&bridge.uri, PATIENCE)?;
    let seen = tag_of(&user.read(AT, u32::try_from(BLOCK)?)?, AT)?;
    anyhow::ensure!(seen == 3, "found write {seen}, expected 3");
    user.disconnect();
    anyhow::ensure!(third.code("--detach")? == 0, "--detach failed");
    anyhow::ensure!(third.proc.wait(PATIENCE)?.success(), "a detached attach ended badly");
    let lease = cluster.holdfast(&["lease", "show", SET])?;
    anyhow::ensure!(lease["lease"].is_null(), "after a clean detach the set is still held: {lease}");
    note("a clean detach leaves the set free");
    Ok(())
}

/// Deletes one of two attached volumes: only its device fails, at the next renewal, and permanently.
fn one_lost(lab: &Lab, cluster: &Cluster, dir: &Path) -> Result<()> {
    let other = format!("{SET}/vol2");
    cluster.holdfast(&["volume", "create", &other, "--size", "128MiB"])?;
    let mut attached = Attached::start(lab, cluster, dir, "host-e")?;
    let bridge = Bridge::to(&attached.socket(), &export())?;
    let doomed = Bridge::to(&dir.join("vol2.sock"), &other)?;
    let (mut user, mut loser) = (Client::connect(&bridge.uri, PATIENCE)?, Client::connect(&doomed.uri, PATIENCE)?);
    loser.write(AT, &pattern(4, AT, BLOCK))?;
    trims(cluster, &attached, &mut user)?;
    grows(cluster, &attached, &other, &mut loser)?;
    cluster.holdfast(&["volume", "delete", &other, "--yes", "--force"])?;
    user.write(AT, &pattern(5, AT, BLOCK))?;
    let known = wait_until(PATIENCE, || attached.look().is_ok_and(|now| now["volumes"][1]["lost"].is_string()));
    anyhow::ensure!(known, "the loss is not known: {}", attached.look()?);
    refused(&mut loser, "once that is known")?;
    let before = attached.look()?;
    switch_over(cluster, gateway_of(cluster, &before)?)?;
    let moved = wait_until(TAKEOVER_LIMIT, || attached.look().is_ok_and(|now| serves_anew(&now, &before)));
    anyhow::ensure!(moved, "not reconnected without the lost volume: {}", attached.look()?);
    refused(&mut loser, "after its volume was deleted")?;
    refused(&mut Client::connect(&doomed.uri, PATIENCE)?, "through a new connection")?;
    let seen = tag_of(&user.read(AT, u32::try_from(BLOCK)?)?, AT)?;
    anyhow::ensure!(seen == 5, "the other volume: found write {seen}, expected 5");
    user.write(AT, &pattern(6, AT, BLOCK))?;
    let now = attached.look()?;
    let lost: Vec<bool> = now["volumes"].as_array().into_iter().flatten().map(|v| v["lost"].is_string()).collect();
    anyhow::ensure!(lost == [false, true] && now["ready"] == false, "the status does not say so: {now}");
    user.disconnect();
    anyhow::ensure!(attached.code("--detach")? == 0, "--detach failed");
    anyhow::ensure!(attached.proc.wait(PATIENCE)?.success(), "a detached attach ended badly");
    note("a volume that was deleted under its device fails alone");
    Ok(())
}

/// Trims wait for a paused gateway and are sent to the next one: one that overlaps a write behind it, one alone.
fn trims(cluster: &Cluster, attached: &Attached, user: &mut Client) -> Result<()> {
    let (block, alone) = (u32::try_from(BLOCK)?, AT + 8 * BLOCK as u64);
    user.write(alone, &pattern(10, alone, BLOCK))?;
    let before = attached.look()?;
    let serving = gateway_of(cluster, &before)?;
    cluster.pause(serving)?;
    user.send_write(AT, &pattern(11, AT, BLOCK))?;
    user.send_trim(AT, block)?;
    user.send_trim(alone, block)?;
    let moved = wait_until(TAKEOVER_LIMIT, || attached.look().is_ok_and(|now| serves_anew(&now, &before)));
    cluster.proceed(serving);
    anyhow::ensure!(moved, "not reconnected with trims under way: {}", attached.look()?);
    for _ in 0..3 {
        let reply = user.receive()?;
        anyhow::ensure!(reply.result.is_ok(), "a request over a failover: {reply:?}");
    }
    for at in [AT, alone] {
        let zeroes = user.read(at, block)?.iter().all(|byte| *byte == 0);
        anyhow::ensure!(zeroes, "R1: byte {at} on shows data after a trim that was answered");
    }
    cluster.caught_up(TAKEOVER_LIMIT)?;
    note("trims are sent again to the next gateway, in the order of what they overlap");
    Ok(())
}

/// Shrinks one of two attached volumes: only its device fails, although the volume is there.
fn one_cut(lab: &Lab, cluster: &Cluster, dir: &Path) -> Result<()> {
    let other = format!("{SET}/vol3");
    cluster.holdfast(&["volume", "create", &other, "--size", "128MiB"])?;
    let mut attached = Attached::start(lab, cluster, dir, "host-f")?;
    let bridge = Bridge::to(&attached.socket(), &export())?;
    let doomed = Bridge::to(&dir.join("vol3.sock"), &other)?;
    let (mut user, mut loser) = (Client::connect(&bridge.uri, PATIENCE)?, Client::connect(&doomed.uri, PATIENCE)?);
    loser.write(AT, &pattern(12, AT, BLOCK))?;
    cluster.holdfast(&["volume", "shrink", &other, "--size", "64MiB", "--discard-data", "--force"])?;
    let known = wait_until(PATIENCE, || attached.look().is_ok_and(|now| now["volumes"][1]["lost"].is_string()));
    anyhow::ensure!(known, "the shrink is not known: {}", attached.look()?);
    refused(&mut loser, "once the shrink is known")?;
    user.write(AT, &pattern(13, AT, BLOCK))?;
    let seen = tag_of(&user.read(AT, u32::try_from(BLOCK)?)?, AT)?;
    anyhow::ensure!(seen == 13, "the other volume: found write {seen}, expected 13");
    user.disconnect();
    anyhow::ensure!(attached.code("--detach")? == 0, "--detach failed");
    anyhow::ensure!(attached.proc.wait(PATIENCE)?.success(), "a detached attach ended badly");
    note("a volume that was shrunk under its device fails alone");
    Ok(())
}

/// The second volume grows while in use: connected users can use it up to its new end.
fn grows(cluster: &Cluster, attached: &Attached, volume: &str, user: &mut Client) -> Result<()> {
    let (beyond, size) = (140_u64 << 20, 160_u64 << 20);
    let early = user.write(beyond, &pattern(7, beyond, BLOCK));
    let full = matches!(early, Err(NbdError::Errno(ENOSPC)));
    anyhow::ensure!(full, "a write beyond the end: {early:?}, expected errno {ENOSPC}");
    cluster.holdfast(&["volume", "grow", volume, "--size", &size.to_string()])?;
    let known = wait_until(PATIENCE, || attached.look().is_ok_and(|now| now["volumes"][1]["size_bytes"] == size));
    anyhow::ensure!(known, "the new size is not known: {}", attached.look()?);
    user.write(beyond, &pattern(7, beyond, BLOCK))?;
    let seen = tag_of(&user.read(beyond, u32::try_from(BLOCK)?)?, beyond)?;
    anyhow::ensure!(seen == 7, "beyond the old end: found write {seen}, expected 7");
    note("connected clients can use a grown volume up to its new end");
    Ok(())
}

/// Reads and writes must be answered with an I/O error.
fn refused(user: &mut Client, when: &str) -> Result<()> {
    for _ in 0..3 {
        let write = user.write(AT, &pattern(9, AT, BLOCK));
        let read = user.read(AT, u32::try_from(BLOCK)?).map(drop);
        for (what, outcome) in [("a write", write), ("a read", read)] {
            let eio = matches!(outcome, Err(NbdError::Errno(EIO)));
            anyhow::ensure!(eio, "{what} {when}: {outcome:?}, expected errno {EIO}");
        }
    }
    Ok(())
}

/// A running `holdfast attach`.
#[derive(Debug)]
pub(super) struct Attached {
    proc: Proc,
    bin: PathBuf,
    dir: PathBuf,
    log: PathBuf,
    set: String,
}

impl Attached {
    pub(super) fn start(lab: &Lab, cluster: &Cluster, dir: &Path, owner: &str) -> Result<Self> {
        // With the address of one gateway: attach finds the others.
        Self::spawn(&lab.bin, &lab.dir.join("attach.log"), &cluster.gateways[0].api, dir, (SET, owner), &[])
    }

    /// With the addresses of all gateways, so that any of them may fail at once.
    pub(super) fn start_knowing_all(lab: &Lab, cluster: &Cluster, dir: &Path, owner: &str) -> Result<Self> {
        Self::start_with(lab, cluster, dir, (SET, owner), &[])
    }

    /// The same, on a host that stands there.
    pub(super) fn start_at(lab: &Lab, cluster: &Cluster, dir: &Path, owner: &str, place: &str) -> Result<Self> {
        Self::start_with(lab, cluster, dir, (SET, owner), &["--locality", place])
    }

    /// The same for another set, with a log of its own.
    pub(super) fn start_set(lab: &Lab, cluster: &Cluster, dir: &Path, of: (&str, &str), place: &str) -> Result<Self> {
        let log = lab.dir.join(format!("attach-{}.log", of.0));
        Self::spawn(&lab.bin, &log, &cluster.apis().join(","), dir, of, &["--locality", place])
    }

    fn start_with(lab: &Lab, cluster: &Cluster, dir: &Path, of: (&str, &str), more: &[&str]) -> Result<Self> {
        Self::spawn(&lab.bin, &lab.dir.join("attach.log"), &cluster.apis().join(","), dir, of, more)
    }

    /// Starts attach again in the same run directory.
    fn again(&self, cluster: &Cluster, owner: &str) -> Result<Self> {
        Self::spawn(&self.bin, &self.log, &cluster.gateways[0].api, &self.dir, (self.set.as_str(), owner), &[])
    }

    /// `set` and `owner`: what is attached, and the name of the host.
    fn spawn(bin: &Path, log: &Path, api: &str, dir: &Path, (set, owner): (&str, &str), more: &[&str]) -> Result<Self> {
        let command = cmd(bin).args(["attach", set, "--owner", owner, "--device", "none", "--output", "json"]);
        let command = command.args(["--log", "warn,holdfast_attach=debug", "--api", api, "--dir"]).arg(dir).args(more);
        let (mut proc, out) = Proc::spawn_piped("holdfast attach", command.into_command(), log)?;
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let mut line = String::new();
            let _ = std::io::BufReader::new(out).read_line(&mut line);
            let _ = tell.send(line);
        });
        let line = told.recv_timeout(Duration::from_secs(40)).context("holdfast attach announced nothing for 40 s")?;
        proc.must_run()?;
        let ready: Value = serde_json::from_str(&line).with_context(|| format!("holdfast attach said: {line}"))?;
        anyhow::ensure!(ready["ready"] == true, "not ready: {ready}");
        Ok(Self { proc, bin: bin.into(), dir: dir.into(), log: log.into(), set: set.into() })
    }

    /// Detaches in good order.
    pub(super) fn detach(mut self) -> Result<()> {
        anyhow::ensure!(self.code("--detach")? == 0, "--detach failed");
        anyhow::ensure!(self.proc.wait(PATIENCE)?.success(), "a detached attach ended badly");
        Ok(())
    }

    pub(super) fn socket(&self) -> PathBuf {
        self.dir.join(format!("{VOLUME}.sock"))
    }

    pub(super) fn look(&self) -> Result<Value> {
        Ok(serde_json::from_slice(&std::fs::read(self.dir.join("status.json"))?)?)
    }

    /// Exit code of `holdfast attach SET WHAT`.
    fn code(&self, what: &str) -> Result<i32> {
        let mut command = cmd(&self.bin).args(["attach", &self.set, what, "--dir"]).arg(&self.dir).into_command();
        command.output()?.status.code().context("ended by a signal")
    }
}
