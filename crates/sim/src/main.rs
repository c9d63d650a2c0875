//! A whole cluster in one process, simulated: three or five gateways of the real code, a network, disks, a store and
//! clients; one seed decides everything, time included (ADR 0017, `docs/proof/simulation.md`). Its functions fail by a
//! broken rule or for want of progress, unless they say otherwise.
//!
//! Owns: the scheduler, the simulated outside, the faults, the checks. Does not own: anything of a gateway. Depends on
//! `gateway` and what is below, and on `testkit`; nothing depends on it.
//!
//! ```text
//!   world ── every millisecond ─▶ net, store ─▶ each host's slice: disk, then its tokio runtime until idle ─▶ clients ─▶ nemesis ─▶ checks
//! ```

mod agents;
mod attached;
mod broken;
mod client;
mod course;
mod deletion;
mod full;
mod guide;
mod histories;
mod host;
mod libc;
mod members;
mod model;
mod modes;
mod nemesis;
mod net;
mod placing;
mod processes;
mod replicas;
mod restored;
mod rng;
mod runner;
mod scenes;
mod shape;
mod slices;
mod snapshots;
mod stats;
mod store;
mod store_migration;
mod stores;
mod summary;
mod sync;
mod time;
mod units;
mod world;

use clap::Parser;
use std::process::ExitCode;

/// Seeded simulation of a whole cluster
#[derive(Parser)]
#[command(name = "holdfast-sim", arg_required_else_help = true)]
enum Command {
    /// One seed, in this process
    One(runner::OneArgs),
    /// Many seeds, a process each
    Many(runner::ManyArgs),
    /// Histories of one set on a log in place of Raft's, thousands of them
    Histories(histories::HistoriesArgs),
    /// A part of them, in this process
    #[command(hide = true)]
    HistoriesPart(histories::PartArgs),
}

fn main() -> ExitCode {
    // Each seed writes its counts of probes at its end, because simulated code does no real I/O.
    holdfast_reached::hold_back();
    match Command::parse() {
        Command::One(args) => runner::one(args),
        Command::Many(args) => runner::many(&args),
        Command::Histories(args) => histories::many(&args),
        Command::HistoriesPart(args) => histories::part(&args),
    }
}
