//! PostgreSQL on two hosts with agents, over a gateway pair with `durability = "flush"`: a device ends with its gateway
//! (PAIR-P5), so the loss of the serving gateway is a takeover for PostgreSQL too.
//!
//! 1. The serving gateway is killed under four writers. PostgreSQL ends, and its host releases everything; either host
//!    becomes primary over the other gateway, under a later epoch (R6). No acknowledged commit is lost, since each had
//!    waited for the store (PAIR-P4); none is invented.
//! 2. PostgreSQL takes commits there. The killed gateway comes back and waits; the other host is standby.
//! 3. In the long form, the serving gateway is told to stop: the same again, without waiting for a lease to expire.

use super::lab::{Gateway, Pair};
use crate::cluster::SET;
use crate::e2e::agent::{AGENT, SETTINGS, TAKEOVER, WRITERS, after_commits, hosts, whole};
use crate::e2e::{Lab, TAKEOVER_LIMIT};
use crate::hosts::{Host, Way};
use crate::ledger::Ledger;
use crate::process::{Signal, wait_until};
use crate::say::note;
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

/// Volume size: PostgreSQL and its WAL.
const SIZE: &str = "1GiB";

/// Fewest commits before a gateway is lost. Each waits for the store.
const BEFORE: u64 = 100;

/// Commits over the other gateway.
const AFTER: u64 = 20;

/// History events with which a host loses its device.
const LET_GO: &[&str] = &["fenced", "cut-off"];

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut pair = Pair::start(lab, &lab.dir.join("pair"), "flush", SIZE)?;
    let apis: Vec<String> = pair.gateways.iter().map(|gateway| gateway.api.clone()).collect();
    let mut hosts = hosts(lab, &apis, Way::Ext4, AGENT, |pg| pg.initdb_unsynced(SETTINGS))?;
    let mut ledger = Ledger::create(&hosts[0].pg, &lab.dir.join("ledger"), WRITERS)?;
    let killed = |gateway: &mut Gateway| gateway.kill().map(drop);
    let mut primary = gateway_lost(&mut pair, (&hosts, 0), &mut ledger, "killed", killed)?;
    if lab.long {
        let stopped = |gateway: &mut Gateway| gateway.process()?.stop(Signal::TERM, Duration::from_secs(20));
        primary = gateway_lost(&mut pair, (&hosts, primary), &mut ledger, "told to stop", stopped)?;
    }
    hosts[primary].pg.amcheck()?;
    hosts.iter_mut().try_for_each(|host| host.kill().map(drop))
}

/// The epoch of a host's attach; 0 without one.
fn epoch(host: &Host) -> u64 {
    host.attach_status()["epoch"].as_u64().unwrap_or(0)
}

/// Number of history lines with which a host lost its device.
fn losses(host: &Host) -> usize {
    let let_go = |line: &serde_json::Value| LET_GO.iter().any(|event| line["event"] == *event);
    host.history().iter().filter(|line| let_go(line)).count()
}

/// The serving gateway is lost under writers at the host `from`; returns the host that is primary afterwards.
fn gateway_lost(
    pair: &mut Pair,
    (hosts, from): (&[Host; 2], usize),
    ledger: &mut Ledger,
    how: &str,
    lose: impl FnOnce(&mut Gateway) -> Result<()>,
) -> Result<usize> {
    let (holder, revision) = pair.holder(TAKEOVER_LIMIT)?;
    let (before, let_go) = (epoch(&hosts[from]), losses(&hosts[from]));
    anyhow::ensure!(before > 0, "{} has no lease: {}", hosts[from].name, hosts[from].said());
    let mut moment = Instant::now();
    // The writers end once their sessions are lost: their commits wait for a device that ends.
    after_commits(BEFORE, ledger, &hosts[from].pg, || {
        moment = Instant::now();
        lose(&mut pair.gateways[holder])
    })?;
    let name = pair.gateways[holder].name;
    note(format!("gateway {name} {how}: PostgreSQL ended at {} after {:?}", hosts[from].name, moment.elapsed()));

    let mut there = None;
    // An agent's last report may be from before: only a later grant counts.
    wait_until(TAKEOVER, || {
        there = hosts.iter().position(|host| host.is_primary() && epoch(host) > before);
        there.is_some()
    });
    let said = || hosts.iter().map(Host::said).collect::<Vec<_>>().join("; ");
    let there = there.with_context(|| format!("PostgreSQL is not primary after {TAKEOVER:?}: {}", said()))?;
    let (host, took) = (&hosts[there], moment.elapsed().as_millis());
    note(format!("primary at {} after {took} ms, under e{}; it was e{before}", host.name, epoch(host)));
    whole(ledger, host)?;

    let (next, _) = pair.holder_other_than(Some(revision), TAKEOVER_LIMIT)?;
    anyhow::ensure!(next != holder, "the gateway that was {how} has the seat");
    let lease = pair.must(next, &["lease", "show", SET])?;
    anyhow::ensure!(lease["lease"]["owner"] == host.name, "the lease: found {lease}, expected {}'s", host.name);
    let told = wait_until(TAKEOVER, || losses(&hosts[from]) > let_go);
    anyhow::ensure!(told, "{}: found no {LET_GO:?} in its history: {:?}", hosts[from].name, hosts[from].history());

    after_commits(AFTER, ledger, &host.pg, || Ok(()))?;
    whole(ledger, host)?;
    pair.start_gateway(holder)?;
    hosts[1 - there].stands_by(TAKEOVER)?;
    Ok(there)
}
