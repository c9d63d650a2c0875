//! `cargo xtask bench`: the same work on several kinds of storage, side by side, in interleaved rounds.
//!
//! | target | what the file system or database sits on |
//! | --- | --- |
//! | a | ext4 on a loop device over a file on the local disk |
//! | b | ext4 over `nbdkit file` through the attach path (nbdfuse, loop device) |
//! | e | the same as b, but each write is on the disk when it is answered (nbdkit's fua filter): what c and d promise too |
//! | c | ext4 over one gateway through the same attach path |
//! | d | ext4 over three gateways through the same attach path |
//! | s | the same as d, with a real S3 server (versitygw) in place of a folder |
//! | z | ext4 over the peer, ZeroFS, through the same attach path, with such a server of its own |
//!
//! Only ratios within one run mean anything: each round measures all of them one after the other, ratios are taken inside a
//! round, and the median over the rounds is printed. One target at a time is up; the others' servers are stopped, so
//! that no backlog of one is paid for by the next. Beside each round: load and pressure.

mod map;
mod peer;
mod report;
mod rows;
mod storage;
mod target;

use anyhow::Result;
use binary::{Build, fresh_dir, public_dir};
use clap::Parser;
use holdfast_chore::{binary, cmd, process, room, say, setup, stats, undo};
use holdfast_scenarios::{attach, cluster, nbd, pg, relay, s3, seed, web};
use report::Results;
use rows::Scale;
use say::{line, note, step};
use setup::For;
use std::process::ExitCode;
use target::{KINDS, Kind, Target};

/// Other things to measure.
#[derive(Clone, Debug, clap::Subcommand)]
enum What {
    /// What the store is asked for: bytes and PUTs per byte written, upload speed, requests when idle and for a cold read
    ///
    /// Three gateways with the settings of `holdfast dev` and one real S3 server (versitygw) run on this machine, a fresh cluster for each row. Bytes written are
    /// counted by the gateways, everything about S3 by the server's own access log. Nothing is asserted: goals are printed as `reached` or `not reached`.
    Storage(storage::Args),
    /// What grows with a volume: memory, opening, takeover and checkpoints of volumes up to 10 TiB, full of random 8 KiB extents that a program makes
    ///
    /// The map is made in a folder that is the store, by the product's own code, and three gateways are recovered from it. Nothing is asserted but what the blocks read as.
    Map(map::Args),
}

/// What a person can turn.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// Rounds; the figures are medians over them
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// One short round on little data: shows that it runs, not how fast it is
    #[arg(long)]
    quick: bool,
    /// Targets to measure: any of a b e c d s z. With z the peer, ZeroFS, is fetched from crates.io and built first, once
    #[arg(long, value_name = "LETTERS", default_value = "abecd")]
    targets: String,
    /// Only the rows whose key contains this
    #[arg(long, value_name = "TEXT", default_value = "")]
    rows: String,
    /// Install nothing
    #[arg(long)]
    no_setup: bool,
    #[command(flatten)]
    build: Build,
}

/// What this program does: `bench`, and the process that takes back what it left.
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Chore {
    /// Throughput side by side: local disk, nbdkit, one gateway, three gateways
    Bench(Box<Args>),
    /// Takes back what an interrupted run left; started by the program itself
    #[command(name = undo::REAPER_ARG, hide = true)]
    Reaper,
}

fn main() -> ExitCode {
    holdfast_chore::status(match Chore::parse() {
        Chore::Bench(args) => bench(&args),
        Chore::Reaper => {
            undo::reap();
            Ok(())
        }
    })
}

const PROFILE: &str = "release";

/// The whole benchmark.
///
/// # Errors
/// When a target cannot be set up or measured. A target that is slow is no error.
pub fn bench(args: &Args) -> Result<()> {
    match &args.what {
        Some(What::Storage(args)) => return storage::bench(args),
        Some(What::Map(args)) => return map::bench(args),
        None => {}
    }
    setup::must_be_able_to_mount()?;
    if !args.no_setup {
        setup::setup(For::Tests)?;
    }
    let kinds: Vec<_> = KINDS.into_iter().filter(|k| args.targets.contains(k.letter())).collect();
    anyhow::ensure!(!kinds.is_empty(), "no target in {:?}; there are a, b, e, c, d, s and z", args.targets);
    let scale = if args.quick { Scale::QUICK } else { Scale::FULL };
    let rows = rows::rows(&args.rows);
    anyhow::ensure!(!rows.is_empty(), "no row has {:?} in its key", args.rows);
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 5 });
    let bin = args.build.binary(PROFILE)?;
    if kinds.contains(&Kind::Peer) {
        // Before anything is measured: a build would take the processors.
        peer::program()?;
    }
    let dir = fresh_dir("bench")?;
    let (public, _guard) = public_dir("bench")?;

    step("Settings");
    let mut settings = scale.settings(rounds, &args.build.describe(PROFILE));
    if kinds.contains(&Kind::ThreeGatewaysS3) {
        settings.push(("store of s".into(), "versitygw on the same disk".into()));
    }
    if kinds.contains(&Kind::Peer) {
        settings.push(("peer".into(), peer::settings(scale.cache_mib())));
    }
    for (name, value) in &settings {
        note(format!("{name}: {value}"));
    }
    step("Preparing: file systems, data and databases");
    let mut targets = Vec::new();
    for kind in &kinds {
        note(format!("{}: {}", kind.letter(), kind.title()));
        targets.push(Target::prepare(*kind, &bin, &dir, &public, &scale)?);
    }
    let mut results = Results::new(settings, &rows, &kinds);
    for round in 0..rounds {
        step(format!("Round {} of {rounds} ({})", round + 1, stats::machine()));
        results.begin_round();
        // Each round begins with another target, so that none always comes first.
        for turn in 0..targets.len() {
            let index = (turn + round as usize) % targets.len();
            let kind = kinds[index];
            let measured = targets[index].measure(&rows, &scale)?;
            let machine = stats::machine();
            note(format!("{}: {} ({machine})", kind.letter(), report::short(&rows, &measured)));
            results.add(kind, measured, machine);
        }
        results.write(&dir)?;
    }
    // Volumes, journals and what is in the stores: 60 GiB with all targets, three rounds, and who measures once more needs the room.
    drop(targets);
    room::thin_out(&dir)?;
    line(results.table());
    for text in results.judge() {
        line(text);
    }
    line("Load and pressure beside each figure: target/bench/results.json");
    Ok(())
}
