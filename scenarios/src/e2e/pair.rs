//! A gateway pair with a real etcd in place of a third voter (ADR 0031): the seat's holder serves the store's content;
//! everything flushed is in the store.
//!
//! ```text
//!   a ──proxy──┐                     each gateway reaches the etcd through a proxy of its own, which can be cut without a word
//!              ├─▶ etcd
//!   b ──proxy──┘            a, b ─▶ one S3 server
//! ```
//! The holder is killed, stopped for longer than its lease, and cut off from the etcd; the etcd is killed; S3 is
//! stopped. Each time everything flushed is there, and the old holder answers nothing once the other one serves.
//! Snapshots and their schedule are there too, and none of them is deleted.

mod agents;
mod lab;
mod proxy;
mod rounds;
mod snapshots;

use super::Lab;
use crate::say::note;
use anyhow::Result;
use lab::{Ledger, Pair};

/// Required programs.
pub(super) const NEEDS: &[&str] = &["etcd", "etcdctl", "versitygw"];

/// Required programs with PostgreSQL.
pub(super) const NEEDS_AGENTS: &[&str] =
    &["etcd", "etcdctl", "versitygw", "nbdfuse", "unshare", "/usr/lib/postgresql/15/bin/postgres"];

/// Size of the volume where nothing but blocks is written.
const SMALL: &str = "64MiB";

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut pair = Pair::start(lab, &lab.dir.join("flush"), "flush", SMALL)?;
    let mut ledger = Ledger::default();
    for round in 0..if lab.long { 5 } else { 1 } {
        note(format!("round {}", round + 1));
        rounds::costs(&pair, &mut ledger)?;
        rounds::killed(&mut pair, &mut ledger, lab)?;
        rounds::paused(&mut pair, &mut ledger)?;
        rounds::cut_off(&mut pair, &mut ledger)?;
        rounds::etcd_killed(&mut pair, &mut ledger)?;
        rounds::store_stopped(&mut pair, &mut ledger)?;
    }
    let snapshots = snapshots::outlive(&mut pair)?;
    rounds::stopped(&mut pair, &mut ledger)?;
    let idle = rounds::anothers(&mut pair, &mut ledger, &snapshots)?;
    snapshots::too_old(&mut pair, idle)?;
    drop(pair);
    let mut pair = Pair::start(lab, &lab.dir.join("write"), "write", SMALL)?;
    rounds::every_write(&mut pair)
}

/// Scenario `agent-pair`.
pub(super) fn run_agents(lab: &Lab) -> Result<()> {
    agents::run(lab)
}
