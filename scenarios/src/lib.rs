//! Everything that runs the product from outside, as its users do: end-to-end scenarios, demo, chaos, Jepsen, power cuts, ZFS; and their
//! harness of clusters, hosts, networks and clients.
//!
//! Owns: scenarios and the harness. `bench` uses the harness too. Does not own: any code of the product. It depends on no crate of
//! the product, so that nothing is tested with the tested code.

pub mod attach;
mod bridge;
mod chaos;
pub mod cluster;
mod demo;
mod e2e;
mod faults;
mod gateways;
mod hosts;
mod jepsen;
mod ledger;
pub mod nbd;
mod net;
mod one_host;
pub mod pg;
mod pgwire;
mod power;
pub mod relay;
pub mod s3;
mod shape;
mod stage;
pub mod web;
mod zfs;

pub use chaos::seed;

use anyhow::Result;
use clap::Parser;
use holdfast_chore::{binary, cmd, ends, process, proof, room, say, setup, stats, times, undo};
use std::process::ExitCode;

/// Chores of the Holdfast repository that run the product
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
enum Chore {
    /// PostgreSQL on a volume of three gateways; kill -9 of the serving one; nothing acknowledged lost
    Demo(demo::Args),
    /// End-to-end scenarios against real processes, all or by name
    E2e(e2e::Args),
    /// Three gateways in network namespaces under faults from a seed; the clients' history is judged by Porcupine
    Chaos(chaos::Args),
    /// Power cuts below PostgreSQL and three gateways: their disks lose what was not synced; nothing acknowledged lost
    Power(power::Args),
    /// The Jepsen test: workloads under faults in network namespaces, from Clojure; --lies shows that the checkers find what they should
    Jepsen(jepsen::Args),
    /// Virtual machines with the kernel's nbd, ZFS and PostgreSQL: gateway, attach and host killed, a host paused; nothing acknowledged lost
    Zfs(zfs::Args),
    /// Takes back what an interrupted chore left; started by the chores themselves
    #[command(name = undo::REAPER_ARG, hide = true)]
    Reaper,
}

/// The whole program.
pub fn main() -> ExitCode {
    holdfast_chore::status(run(Chore::parse()))
}

/// Runs a chore, and then looks for what went wrong in processes and logs that no part of it has looked at.
fn run(chore: Chore) -> Result<()> {
    let result = play(chore);
    let wrong = ends::look_through_the_rest();
    if result.is_err() {
        wrong.iter().for_each(say::note);
    }
    result.and_then(|()| ends::fine(&wrong))
}

fn play(chore: Chore) -> Result<()> {
    match chore {
        Chore::Demo(args) => demo::demo(&args),
        Chore::E2e(args) => e2e::chore(&args),
        Chore::Chaos(args) => chaos::chore(&args),
        Chore::Power(args) => power::chore(&args),
        Chore::Jepsen(args) => jepsen::chore(&args),
        Chore::Zfs(args) => zfs::chore(&args),
        Chore::Reaper => {
            undo::reap();
            Ok(())
        }
    }
}
