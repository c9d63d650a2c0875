//! Chores: `cargo xtask demo | test | verify | fix | bench | dev | setup | e2e | mutations | tidy`.
//!
//! Owns: everything that runs `holdfast` from outside, as its users do. Does not own: any code of the product; it depends on
//! no sibling crate, so that it compiles in seconds on a fresh machine and tests nothing with the tested code.

mod attach;
mod bench;
mod binary;
mod bridge;
mod chaos;
mod cluster;
mod cmd;
mod demo;
mod e2e;
mod faults;
mod gateways;
mod hosts;
mod jepsen;
mod ledger;
mod mutations;
mod nbd;
mod net;
mod one_host;
mod pg;
mod pgwire;
mod power;
mod process;
mod proof;
mod relay;
mod room;
mod s3;
mod say;
mod setup;
mod shape;
mod sim;
mod stage;
mod stats;
mod suite;
mod tidy;
mod times;
mod undo;
mod verify;
mod web;
mod zfs;

use anyhow::Result;
use clap::Parser;
use std::process::ExitCode;

/// Chores of the Holdfast repository
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
enum Chore {
    /// PostgreSQL on a volume of three gateways; kill -9 of the serving one; nothing acknowledged lost
    Demo(demo::Args),
    /// Everything that can be tested here: verify, all cargo tests, end-to-end scenarios
    Test(verify::TestArgs),
    /// End-to-end scenarios against real processes, all or by name
    E2e(e2e::Args),
    /// Three gateways in network namespaces under faults from a seed; the clients' history is judged by Porcupine
    Chaos(chaos::Args),
    /// A whole cluster in one process, simulated: one seed decides everything, time included
    Sim(sim::Args),
    /// Power cuts below PostgreSQL and three gateways: their disks lose what was not synced; nothing acknowledged lost
    Power(power::Args),
    /// The Jepsen test: workloads under faults in network namespaces, from Clojure; --lies shows that the checkers find what they should
    Jepsen(jepsen::Args),
    /// Known bugs, put into a copy of the tree one by one: which test finds each?
    Mutations(mutations::Args),
    /// What was run, counted: the table on docs/proof/README.md, from what the chores above noted
    Proof(proof::Args),
    /// Virtual machines with the kernel's nbd, ZFS and PostgreSQL: gateway, attach and host killed, a host paused; nothing acknowledged lost
    Zfs(zfs::Args),
    /// Format, clippy, tidy, docs; writes nothing
    Verify,
    /// The part of verify that needs no build: crate arrows, file length, leftovers, links
    Tidy,
    /// Formats and applies clippy's suggestions
    Fix,
    /// Throughput side by side: local disk, nbdkit, one gateway, three gateways
    Bench(bench::Args),
    /// A cluster in the foreground, until Ctrl-C (`cargo xtask dev -- ARGS OF holdfast dev`)
    Dev(verify::DevArgs),
    /// Installs the packages and programs that the other chores need
    Setup,
    /// Takes back what an interrupted chore left; started by the chores themselves
    #[command(name = undo::REAPER_ARG, hide = true)]
    Reaper,
}

fn main() -> ExitCode {
    match run(Chore::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // The closing count stays the last line where there is one.
            if !e.is::<say::Failed>() {
                eprintln!("error: {e:#}");
            }
            ExitCode::FAILURE
        }
    }
}

fn run(chore: Chore) -> Result<()> {
    match chore {
        Chore::Demo(args) => demo::demo(&args),
        Chore::Test(args) => verify::test(&args),
        Chore::E2e(args) => e2e::chore(&args),
        Chore::Chaos(args) => chaos::chore(&args),
        Chore::Sim(args) => sim::chore(&args),
        Chore::Power(args) => power::chore(&args),
        Chore::Jepsen(args) => jepsen::chore(&args),
        Chore::Mutations(args) => mutations::chore(&args),
        Chore::Proof(args) => proof::chore(&args),
        Chore::Zfs(args) => zfs::chore(&args),
        Chore::Verify => verify::verify()?.close(),
        Chore::Tidy => {
            let mut count = say::Count::default();
            tidy::check(&mut count)?;
            count.close()
        }
        Chore::Fix => verify::fix(),
        Chore::Bench(args) => bench::bench(&args),
        Chore::Dev(args) => verify::dev(&args),
        Chore::Setup => setup::setup(setup::For::Tests),
        Chore::Reaper => {
            undo::reap();
            Ok(())
        }
    }
}
