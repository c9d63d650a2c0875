//! The steps of the scenario, one after the other.

use super::lab::{BLOCKS, Ledger, PATIENCE, Pair, SERVES, TTL, answers_nothing, words};
use super::snapshots;
use crate::cluster::{SET, VOLUME};
use crate::cmd::cmd;
use crate::e2e::blocks::BLOCK;
use crate::e2e::{Lab, TAKEOVER_LIMIT};
use crate::nbd::{Client, pattern, tag_of};
use crate::process::{Proc, Signal, is_stopped, wait_until};
use crate::say::note;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::time::{Duration, Instant};

/// Time of a flush, alone and with many that share one checkpoint.
pub(super) fn costs(pair: &Pair, ledger: &mut Ledger) -> Result<()> {
    let (holder, _) = pair.holder(TAKEOVER_LIMIT)?;
    let (mut client, token) = pair.open(holder, "costs")?;
    let mut times = Vec::new();
    for _ in 0..20 {
        ledger.write(&mut client).map_err(words)?;
        let begun = Instant::now();
        ledger.flush(&mut client).map_err(words)?;
        times.push(begun.elapsed());
    }
    times.sort();
    let begun = Instant::now();
    client.flush().map_err(words)?;
    let idle = begun.elapsed();
    let many = many_at_once(pair, holder, &token)?;
    note(format!(
        "a flush: {:?} (median of 20), {:?} (worst); with nothing to flush {idle:?}; {WRITERS} writers at once: {many:?} for each of their flushes, waits shared",
        times[10], times[19]
    ));
    release(pair, holder, client, &token)
}

/// Writers of [`many_at_once`], each with a connection of its own.
const WRITERS: u8 = 8;
const FLUSHES: u32 = 20;

/// Several writers that write and flush repeatedly: their flushes share checkpoints. Returns the total time divided by
/// flushes.
fn many_at_once(pair: &Pair, holder: usize, token: &str) -> Result<Duration> {
    let begun = Instant::now();
    std::thread::scope(|scope| {
        let writers: Vec<_> = (1..=WRITERS)
            .map(|slot| {
                let uri = pair.uri(holder, token, slot, 1);
                scope.spawn(move || -> Result<()> {
                    let mut client = Client::connect(&uri?, PATIENCE).map_err(words)?;
                    // Behind the blocks of the ledger.
                    let at = (BLOCKS + 64 + u64::from(slot)) * BLOCK as u64;
                    for n in 1..=FLUSHES {
                        client.write(at, &pattern(n.into(), at, BLOCK)).map_err(words)?;
                        client.flush().map_err(words)?;
                    }
                    client.disconnect();
                    Ok(())
                })
            })
            .collect();
        writers.into_iter().try_for_each(|writer| writer.join().map_err(|_| anyhow::anyhow!("a writer"))?)
    })?;
    Ok(begun.elapsed() / (u32::from(WRITERS) * FLUSHES))
}

fn release(pair: &Pair, holder: usize, client: Client, token: &str) -> Result<()> {
    client.disconnect();
    pair.must(holder, &["lease", "release", SET, "--token", token])?;
    Ok(())
}

/// `kill -9`: the other gateway takes over, with everything flushed. Clients of an old lease are told that it has
/// ended.
pub(super) fn killed(pair: &mut Pair, ledger: &mut Ledger, lab: &Lab) -> Result<()> {
    let (holder, revision) = pair.holder(TAKEOVER_LIMIT)?;
    let (mut client, token) = pair.open(holder, "writer")?;
    for n in 0..40 {
        ledger.write(&mut client).map_err(words)?;
        if n % 8 == 7 {
            ledger.flush(&mut client).map_err(words)?;
        }
    }
    // Answered, and not flushed: may be gone.
    for _ in 0..5 {
        ledger.write(&mut client).map_err(words)?;
    }
    let moment = pair.gateways[holder].kill()?;
    drop(client);
    let (next, _) = pair.holder_other_than(Some(revision), TAKEOVER_LIMIT)?;
    let took = moment.elapsed();
    anyhow::ensure!(next != holder, "the killed gateway has the seat");
    device_is_over(pair, next, "writer", &token)?;
    let (mut client, token) = pair.open(next, "reader")?;
    let gone = ledger.check(&mut client)?;
    note(format!(
        "killed: the other one serves after {took:?}; {gone} of 5 answered and unflushed writes are gone, no flushed one"
    ));
    pair.start_gateway(holder)?;
    release(pair, next, client, &token)?;
    attach_ends(pair, next, lab)
}

/// PAIR-P5: neither its connection nor its lease goes on.
fn device_is_over(pair: &Pair, at: usize, owner: &str, token: &str) -> Result<()> {
    let connected = Client::connect(&pair.uri(at, token, 0, 2)?, PATIENCE);
    let Err(refused) = connected else { bail!("PAIR-P5: a token of an earlier tenure opens a connection") };
    let (code, said) = pair.holdfast(at, &["lease", "continue", SET, "--owner", owner, "--token", token])?;
    let told = said.to_string().contains("device cannot continue");
    anyhow::ensure!(code != 0 && told, "PAIR-P5: a lease of an earlier tenure: exit code {code}, {said}");
    note(format!("a device of before: {refused}"));
    Ok(())
}

/// PAIR-P5 for `holdfast attach`: it replays nothing over lost writes, and reports that.
fn attach_ends(pair: &mut Pair, holder: usize, lab: &Lab) -> Result<()> {
    let (_, revision) = pair.holder(TAKEOVER_LIMIT)?;
    let apis = pair.gateways.iter().map(|g| g.api.clone()).collect::<Vec<_>>().join(",");
    let dir = lab.dir.join("attach");
    let command = cmd(&pair.bin).args(["attach", SET, "--owner", "host", "--device", "none", "--api", &apis, "--dir"]);
    let mut attach = Proc::spawn("holdfast attach", command.arg(&dir).into_command(), &lab.dir.join("attach.log"))?;
    let status = || -> Value {
        let text = std::fs::read_to_string(dir.join("status.json")).unwrap_or_default();
        serde_json::from_str(&text).unwrap_or_default()
    };
    attach.ready_when("serving", Duration::from_secs(30), || status()["phase"] == "serving")?;
    pair.gateways[holder].kill()?;
    let (next, _) = pair.holder_other_than(Some(revision), TAKEOVER_LIMIT)?;
    let ended = wait_until(Duration::from_secs(30), || status()["phase"] == "fenced");
    anyhow::ensure!(ended, "PAIR-P5: an attach of an earlier tenure continues: {}", status());
    note(format!("an attach of before: {}", status()["fenced_by"]));
    attach.stop(Signal::TERM, Duration::from_secs(20))?;
    pair.start_gateway(holder)?;
    let set = pair.must(next, &["lease", "show", SET])?;
    anyhow::ensure!(set["lease"].is_null(), "PAIR-P5: it took the set again: {set}");
    Ok(())
}

/// SIGSTOP for longer than the lease. Requests in its sockets are not answered when it resumes.
pub(super) fn paused(pair: &mut Pair, ledger: &mut Ledger) -> Result<()> {
    let (holder, revision) = pair.holder(TAKEOVER_LIMIT)?;
    let (mut old, _) = pair.open(holder, "writer")?;
    ledger.write(&mut old).map_err(words)?;
    ledger.flush(&mut old).map_err(words)?;
    let at = (BLOCKS + 3) * BLOCK as u64;
    old.write(at, &pattern(1, at, BLOCK)).map_err(words)?;
    old.flush().map_err(words)?;
    let pid = pair.gateways[holder].process()?.pid();
    let begun = Instant::now();
    pair.gateways[holder].process()?.signal(Signal::STOP);
    let outcome = while_paused(pair, ledger, &mut old, (holder, revision), pid, at);
    pair.gateways[holder].process()?.signal(Signal::CONT);
    let (next, token, mut new) = outcome?;
    let how = answers_nothing(&mut old, "the gateway that stood still")?;
    let took = begun.elapsed();
    let seen = tag_of(&new.read(at, BLOCK as u32).map_err(words)?, at)?;
    anyhow::ensure!(seen == 3, "PAIR-P1: after the gateway went on: found write {seen}, expected 3");
    note(format!("stood still: after {took:?} it went on, its connection {how}"));
    release(pair, next, new, &token)
}

fn while_paused(
    pair: &Pair,
    ledger: &mut Ledger,
    old: &mut Client,
    (holder, revision): (usize, u64),
    pid: u32,
    at: u64,
) -> Result<(usize, String, Client)> {
    anyhow::ensure!(wait_until(Duration::from_secs(10), || is_stopped(pid)), "process {pid} does not stop");
    old.send_write(at, &pattern(2, at, BLOCK)).map_err(words)?;
    let (next, _) = pair.holder_other_than(Some(revision), TAKEOVER_LIMIT)?;
    anyhow::ensure!(next != holder, "the gateway that stands still has the seat");
    let (mut new, token) = pair.open(next, "other")?;
    ledger.check(&mut new)?;
    let seen = tag_of(&new.read(at, BLOCK as u32).map_err(words)?, at)?;
    anyhow::ensure!(seen == 1, "PAIR-P4: found write {seen}, expected 1");
    new.write(at, &pattern(3, at, BLOCK)).map_err(words)?;
    new.flush().map_err(words)?;
    // Sent after write 3 was answered: any answer but 3 would be stale (R3).
    old.send_read(at, BLOCK as u32).map_err(words)?;
    old.send_flush().map_err(words)?;
    Ok((next, token, new))
}

/// Reads from the old holder until it is gone; returns the time of the last answer.
fn read_until_gone(client: &mut Client) -> Result<Instant> {
    let mut last = Instant::now();
    let begun = Instant::now();
    while begun.elapsed() < TAKEOVER_LIMIT {
        match client.read(0, BLOCK as u32) {
            Ok(_) => last = Instant::now(),
            Err(_) => return Ok(last),
        }
    }
    bail!("PAIR-P1: the old holder answers for {TAKEOVER_LIMIT:?} without the etcd")
}

/// The holder is silently cut off from the etcd, and nothing else is: it answers until its limit, and the other gateway
/// takes over after that.
pub(super) fn cut_off(pair: &mut Pair, ledger: &mut Ledger) -> Result<()> {
    let (holder, revision) = pair.holder(TAKEOVER_LIMIT)?;
    let (mut old, _) = pair.open(holder, "writer")?;
    ledger.write(&mut old).map_err(words)?;
    ledger.flush(&mut old).map_err(words)?;
    ledger.write(&mut old).map_err(words)?;
    pair.gateways[holder].proxy.cut(true);
    let cut = Instant::now();
    let reader = std::thread::spawn(move || read_until_gone(&mut old));
    let won = pair.holder_other_than(Some(revision), TAKEOVER_LIMIT);
    let seen = Instant::now();
    let last = reader.join().map_err(|_| anyhow::anyhow!("the reader"))??;
    let (next, _) = won?;
    anyhow::ensure!(next != holder, "the gateway that is cut off has the seat");
    anyhow::ensure!(last < seen, "PAIR-P1: the old holder answered when the other one served");
    let served = in_time(last.duration_since(cut))?;
    let (mut client, token) = pair.open(next, "reader")?;
    ledger.check(&mut client)?;
    // Once it reaches the etcd again it waits, and does not take the seat from the other one.
    pair.gateways[holder].proxy.cut(false);
    note(format!(
        "cut off: it answered for {served:?} more; the other one serves {:?} after the cut",
        seen.duration_since(cut)
    ));
    release(pair, next, client, &token)
}

/// Checks for how long a gateway without a seat answered.
fn in_time(served: Duration) -> Result<Duration> {
    let most = SERVES + Duration::from_millis(100);
    anyhow::ensure!(served <= most, "PAIR-P1: it answered for {served:?}, expected {SERVES:?} at most");
    Ok(served)
}

/// The etcd is killed: the holder stops at its limit, no gateway serves, and one does soon after the etcd is back.
pub(super) fn etcd_killed(pair: &mut Pair, ledger: &mut Ledger) -> Result<()> {
    let (holder, revision) = pair.holder(TAKEOVER_LIMIT)?;
    let (mut old, _) = pair.open(holder, "writer")?;
    ledger.write(&mut old).map_err(words)?;
    ledger.flush(&mut old).map_err(words)?;
    pair.etcd.kill()?;
    let dead = Instant::now();
    let last = read_until_gone(&mut old)?;
    let served = in_time(last.duration_since(dead))?;
    pair.etcd.restart()?;
    let back = Instant::now();
    let (next, _) = pair.holder_other_than(Some(revision), TAKEOVER_LIMIT)?;
    let took = back.elapsed();
    let (mut client, token) = pair.open(next, "reader")?;
    ledger.check(&mut client)?;
    note(format!(
        "etcd dead: answered for {served:?} more; {} serves {took:?} after it is back",
        pair.gateways[next].name
    ));
    release(pair, next, client, &token)
}

/// S3 is stopped: a flush waits, reads and writes continue, the seat stays; the flush is answered once S3 is back (R8).
pub(super) fn store_stopped(pair: &mut Pair, ledger: &mut Ledger) -> Result<()> {
    let (holder, revision) = pair.holder(TAKEOVER_LIMIT)?;
    let (mut client, token) = pair.open(holder, "writer")?;
    pair.s3.stop()?;
    let begun = Instant::now();
    ledger.write(&mut client).map_err(words)?;
    client.read(0, BLOCK as u32).map_err(words)?;
    client.set_patience(2 * TTL)?;
    let flush = client.send_flush().map_err(words)?;
    let early = client.receive();
    anyhow::ensure!(early.is_err(), "PAIR-P4: a flush was answered while the store is away: {early:?}");
    pair.s3.resume()?;
    client.set_patience(Duration::from_secs(60))?;
    let reply = client.receive().map_err(words)?;
    anyhow::ensure!(reply.cookie == flush && reply.result.is_ok(), "the flush: {reply:?}");
    ledger.flushed.extend(std::mem::take(&mut ledger.written));
    let (still, now) = pair.holder(TAKEOVER_LIMIT)?;
    anyhow::ensure!((still, now) == (holder, revision), "the seat moved for the store's sake");
    note(format!("S3 away: the flush was answered after {:?}, and not before S3 was back", begun.elapsed()));
    release(pair, holder, client, &token)
}

/// Told to stop, the holder gives up the seat: the other gateway need not wait for the lease to expire.
pub(super) fn stopped(pair: &mut Pair, ledger: &mut Ledger) -> Result<()> {
    let (holder, revision) = pair.holder(TAKEOVER_LIMIT)?;
    let begun = Instant::now();
    pair.gateways[holder].process()?.stop(Signal::TERM, Duration::from_secs(20))?;
    let (next, _) = pair.holder_other_than(Some(revision), TAKEOVER_LIMIT)?;
    let took = begun.elapsed();
    anyhow::ensure!(next != holder, "the stopped gateway has the seat");
    let (mut client, token) = pair.open(next, "reader")?;
    ledger.check(&mut client)?;
    note(format!("told to stop: the other one serves after {took:?}"));
    release(pair, next, client, &token)
}

/// PAIR-P3: a gateway of another pair does not take the sets until an administrator gives them up for it. Then it takes
/// them over, with their snapshots. Returns the gateway to stop after that.
pub(super) fn anothers(pair: &mut Pair, ledger: &mut Ledger, left: &[String]) -> Result<usize> {
    let (holder, _) = pair.holder(TAKEOVER_LIMIT)?;
    let cluster = pair.status()?["holder"]["cluster_id"].as_str().context("no cluster id")?.to_string();
    pair.gateways[holder].process()?.stop(Signal::TERM, Duration::from_secs(20))?;
    let other = 1 - holder;
    pair.start_with(other, &["pair.name=other"])?;
    let mut sets = Value::Null;
    let listed = wait_until(TAKEOVER_LIMIT, || {
        let said = pair.holdfast(other, &["set", "list", "--timeout", "2s"]);
        said.is_ok_and(|(code, said)| {
            sets = said;
            code == 0
        })
    });
    anyhow::ensure!(
        listed && !sets.to_string().contains(SET),
        "PAIR-P3: a gateway of another pair has taken the set: {sets}"
    );
    pair.gateways[other].process()?.stop(Signal::TERM, Duration::from_secs(20))?;
    pair.start_with(other, &["pair.name=other", &format!("pair.adopt={cluster:?}")])?;
    let mut opened = None;
    let taken = wait_until(TAKEOVER_LIMIT, || {
        opened = pair.open(other, "adopter").ok();
        opened.is_some()
    });
    anyhow::ensure!(taken, "PAIR-P3: a set that was given up for another pair is not served by it");
    let (mut client, token) = opened.context("not opened")?;
    ledger.check(&mut client)?;
    snapshots::are_there(pair, other, left)?;
    note(format!("another pair: did not take the sets, and took them over after cluster {cluster} was given up"));
    release(pair, other, client, &token)?;
    Ok(holder)
}

/// With durability "write" every answered write survives, flushed or not.
pub(super) fn every_write(pair: &mut Pair) -> Result<()> {
    let (holder, revision) = pair.holder(TAKEOVER_LIMIT)?;
    let (mut client, _) = pair.open(holder, "writer")?;
    let (mut ledger, mut times) = (Ledger::default(), Vec::new());
    for _ in 0..20 {
        let begun = Instant::now();
        ledger.write(&mut client).map_err(words)?;
        times.push(begun.elapsed());
    }
    times.sort();
    // Never more than the answered writes.
    ledger.flushed.extend(std::mem::take(&mut ledger.written));
    pair.gateways[holder].kill()?;
    let (next, _) = pair.holder_other_than(Some(revision), TAKEOVER_LIMIT)?;
    let (mut client, _) = pair.open(next, "reader")?;
    ledger.check(&mut client).context("durability \"write\"")?;
    note(format!(
        "durability \"write\": a write of {SET}/{VOLUME} took {:?} (median of 20); all are there after a kill",
        times[10]
    ));
    Ok(())
}
