//! Runs the product from outside, as its users do: end-to-end scenarios, demo, chaos, Jepsen, power cuts, ZFS. Also
//! their harness: clusters, hosts, networks and clients.
//!
//! Owns: scenarios and the harness, which `bench` uses too. Does not own: code of the product. It depends on no crate
//! of the product, so that no tested code takes part in testing.

pub mod attach;
mod bridge;
pub mod certificates;
mod chaos;
pub mod cluster;
mod demo;
mod e2e;
mod faults;
mod gateway_names;
mod gateways;
mod hosts;
mod jepsen;
mod ledger;
pub mod nbd;
mod net;
mod one_host;
pub mod pg;
mod pgwire;
mod plaintext;
mod power;
pub mod relay;
pub mod s3;
mod shape;
mod stage;
mod vault;
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
    /// Run PostgreSQL on a volume of three gateways and kill -9 the serving one: no acknowledged write is lost
    Demo(demo::Args),
    /// Run end-to-end scenarios against real processes, all or by name
    E2e(e2e::Args),
    /// Run three gateways in network namespaces under faults from a seed; Porcupine checks the clients' history
    Chaos(chaos::Args),
    /// Cut the power under PostgreSQL and three gateways: disks lose what was not synced, no acknowledged write is lost
    Power(power::Args),
    /// Run the Jepsen test (Clojure): workloads under faults in network namespaces; --lies shows that its checkers find
    /// errors
    Jepsen(jepsen::Args),
    /// Run virtual machines with the kernel's nbd, ZFS and PostgreSQL, kill gateway, attach and host, pause a host: no
    /// acknowledged write is lost
    Zfs(zfs::Args),
    /// Record everything that crosses the network of a cluster; the scenario `no-plaintext` starts this itself
    #[command(hide = true)]
    Plaintext(plaintext::Args),
    /// Undo the changes of an interrupted chore; the chores start this themselves
    #[command(name = undo::REAPER_ARG, hide = true)]
    Reaper,
}

/// Runs the program.
pub fn main() -> ExitCode {
    holdfast_chore::status(run(Chore::parse()))
}

/// Runs a chore, and then checks the exits and logs of processes that no part of it has checked.
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
        Chore::Plaintext(args) => plaintext::inside(&args),
        Chore::Reaper => {
            undo::reap();
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever copies a command from a page must not be told that there is no such option.
    #[test]
    fn chores_on_the_pages_are_command_lines_of_this_program() {
        let (tried, wrong) = holdfast_chore::pages::refused::<Chore>(|chore| {
            ["demo", "e2e", "chaos", "power", "jepsen", "zfs"].contains(&chore)
        })
        .expect("pages");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(tried >= 25, "found {tried} commands, expected more");
    }
}
