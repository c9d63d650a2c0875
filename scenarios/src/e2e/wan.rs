//! Gateways 80 ms apart (`rtt_ms = 80`): one write takes one round trip, no unneeded election happens, clients follow
//! after a killed gateway, and a planned move completes. Relays, which each gateway advertises as its own peer address,
//! add the latency.

use super::attach::{Attached, export, gateway_of, serves_anew};
use super::blocks::{BLOCK, Load, Progress};
use super::members::{BLOCKS_EACH, CHANGE_LIMIT, PATIENCE, WRITERS, goes_on};
use super::{Lab, TAKEOVER_LIMIT};
use crate::binary::public_dir;
use crate::bridge::Bridge;
use crate::cluster::{Cluster, SET};
use crate::nbd::{Client, pattern};
use crate::process::wait_until;
use crate::relay::Relay;
use crate::say::note;
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

const ROUND_TRIP: Duration = Duration::from_millis(80);
/// A block outside of the load.
const AT: u64 = 200 << 20;
/// Tries for a period without an election: one may occur on a machine that stalls.
const QUIET_TRIES: usize = 3;
/// Number of writes: each has to take a round trip, and the fastest is printed.
const WRITES: u64 = 20;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let round_trip = format!("rtt_ms={}", ROUND_TRIP.as_millis());
    let mut cluster = Cluster::start(lab.options("256MiB", &[&round_trip]))?;
    let relays = apart(&mut cluster)?;
    let (dir, _guard) = public_dir("wan")?;
    let attached = Attached::start_knowing_all(lab, &cluster, &dir.join("a"), "host-a")?;
    let bridge = Bridge::to(&attached.socket(), &export())?;
    quickest_write(&bridge)?;

    let mut load = Load::new(WRITERS, BLOCKS_EACH);
    load.run(std::slice::from_ref(&bridge.uri), |progress| {
        goes_on(progress)?;
        stays(&attached, progress)?;
        for how in ["killed", "switched over"] {
            moves(&mut cluster, &attached, how).with_context(|| how)?;
            goes_on(progress)?;
        }
        Ok(())
    })?;
    load.unbroken(&bridge.uri, PATIENCE)?;
    let progress = load.progress();
    let pieces: Vec<u64> = relays.iter().map(Relay::pieces).collect();
    anyhow::ensure!(
        pieces.iter().all(|pieces| *pieces > progress.answered() / 4),
        "too little went the long way: {pieces:?}"
    );
    note(format!(
        "{} pairs acknowledged, all there; no error, the slowest pair {:.0} ms",
        progress.answered(),
        progress.slowest().as_secs_f64() * 1e3
    ));
    cluster.stop()?;
    Ok(())
}

/// Restarts each gateway behind a relay, with the relay's address as its own.
fn apart(cluster: &mut Cluster) -> Result<Vec<Relay>> {
    let mut relays = Vec::new();
    for index in 0..cluster.gateways.len() {
        let relay = Relay::to(peer_address(cluster, index)?, ROUND_TRIP / 2)?;
        cluster.end(index)?;
        cluster.restart_with(index, &["--set", &format!("advertise.peer={}", relay.addr)])?;
        let (name, api) = (cluster.name(index), cluster.gateways[index].api.clone());
        cluster.holdfast(&["gateway", "update", &name, "--address", &api])?;
        cluster.caught_up(CHANGE_LIMIT)?;
        let known = peer_address(cluster, index)?;
        anyhow::ensure!(known == relay.addr, "{name} is known at {known}, expected {}", relay.addr);
        relays.push(relay);
    }
    Ok(relays)
}

pub(super) fn peer_address(cluster: &Cluster, index: usize) -> Result<String> {
    let status = cluster.holdfast(&["cluster", "status"])?;
    let members = status["members"].as_array().context("status without members")?;
    // The other gateways use this address.
    let of = members.iter().map(|m| &m["member"]).find(|member| member["name"] == cluster.name(index).as_str());
    let address = of.and_then(|member| member["addresses"]["peer"].as_str());
    Ok(address.with_context(|| format!("{} has no peer address in {status}", cluster.name(index)))?.to_owned())
}

/// R1: an acknowledged write has been at another gateway, which is a round trip away.
fn quickest_write(bridge: &Bridge) -> Result<()> {
    let mut client = Client::connect(&bridge.uri, PATIENCE)?;
    let mut quickest = Duration::MAX;
    for tag in 1..=WRITES {
        let begun = Instant::now();
        client.write(AT, &pattern(tag, AT, BLOCK))?;
        quickest = quickest.min(begun.elapsed());
    }
    client.disconnect();
    anyhow::ensure!(
        quickest >= ROUND_TRIP,
        "a write was acknowledged after {quickest:?}: before another gateway had it"
    );
    note(format!("{WRITES} writes one by one, the quickest {:.0} ms", quickest.as_secs_f64() * 1e3));
    Ok(())
}

/// The set stays at its gateway under the same epoch while the load continues. A machine that stalls for a second
/// causes an election: then try again.
fn stays(attached: &Attached, progress: &Progress) -> Result<()> {
    let mut moved = Vec::new();
    while moved.len() < QUIET_TRIES {
        let before = attached.look()?;
        for _ in 0..4 {
            goes_on(progress)?;
        }
        let now = attached.look()?;
        if ["gateway", "epoch", "reconnects"].iter().all(|field| now[*field] == before[*field]) {
            return Ok(());
        }
        note(format!("all were well, and yet it moved: {before} became {now}"));
        moved.push(now);
    }
    anyhow::bail!("all were well, and it moved {QUIET_TRIES} times: {moved:?}")
}

fn moves(cluster: &mut Cluster, attached: &Attached, how: &str) -> Result<()> {
    let before = attached.look()?;
    let serving = gateway_of(cluster, &before)?;
    if how == "killed" {
        cluster.kill(serving)?;
    } else {
        let to = cluster.name(cluster.others(serving)[0]);
        cluster.holdfast(&["switchover", SET, "--to", &to])?;
    }
    let moved = wait_until(TAKEOVER_LIMIT, || attached.look().is_ok_and(|now| serves_anew(&now, &before)));
    let now = attached.look()?;
    anyhow::ensure!(moved, "not reconnected: {now}");
    note(format!("{} {how}: {} serves after {} ms", cluster.name(serving), now["gateway"], now["last_outage_ms"]));
    if how == "killed" {
        cluster.restart(serving)?;
    }
    cluster.caught_up(CHANGE_LIMIT)
}
