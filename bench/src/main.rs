//! `cargo xtask bench`: compares the same work on several kinds of storage, in interleaved rounds.
//!
//! | target | storage below the file system or database |
//! | --- | --- |
//! | a | ext4 on a loop device over a file on the local disk |
//! | b | ext4 over `nbdkit file` through the attach path (nbdfuse, loop device) |
//! | e | the same as b, but each write is on the disk when it is answered (nbdkit's fua filter), as c and d promise too |
//! | c | ext4 over one gateway through the same attach path |
//! | d | ext4 over three gateways through the same attach path |
//! | s | the same as d, with a real S3 server (versitygw) instead of a folder |
//! | f | ext4 over the floor: three processes that do the least there is to do for a durable write on three disks |
//! | z | ext4 over the peer, ZeroFS, through the same attach path, with its own S3 server |
//! | t | the same as c, with NBD over TLS |
//! | u | the same as d, with TLS on each link |
//!
//! Only ratios within one run mean anything. Each round measures all targets one after the other; ratios are computed
//! within a round, and their median over the rounds is printed. Only one target runs at a time; the servers of the
//! others are stopped, so that the backlog of one does not slow the next. Load and pressure are printed with each
//! round.

mod cost;
mod floor;
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
use holdfast_scenarios::{attach, certificates, cluster, nbd, pg, relay, s3, seed, web};
use report::Results;
use rows::{Row, Scale};
use say::{line, note, step};
use setup::For;
use std::path::Path;
use std::process::ExitCode;
use target::{KINDS, Kind, Target};

/// Other benchmarks.
#[derive(Clone, Debug, clap::Subcommand)]
enum What {
    /// Measure the load on the store: bytes and PUTs per byte written, upload speed, requests when idle and for a cold
    /// read
    ///
    /// Three gateways with the settings of `holdfast dev` and one real S3 server (versitygw) run on this machine, a
    /// fresh cluster for each row. Bytes written are counted by the gateways, everything about S3 by the server's own
    /// access log. Nothing is asserted: goals are printed as `reached` or `not reached`.
    Storage(storage::Args),
    /// Measure what grows with a volume: memory, opening, takeover and checkpoints of volumes up to 10 TiB, full of
    /// generated random 8 KiB extents
    ///
    /// The map is made in a folder that is the store, by the product's own code, and three gateways are recovered from
    /// it. Nothing is asserted but what the blocks read as.
    Map(map::Args),
    /// Measure what sets cost that nobody uses: memory, processor time, messages and store requests, by the number of
    /// gateways and of sets
    ///
    /// Gateways with the settings of `holdfast dev` and one real S3 server (versitygw) run on this machine, a fresh
    /// cluster for each number of gateways. Nothing is asserted: the goal is printed as `reached` or `not reached`.
    Cost(cost::Args),
}

/// Options on the command line.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    what: Option<What>,
    /// Number of rounds; figures are medians over the rounds
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: Option<u32>,
    /// Run one short round on little data: shows that the benchmark runs; its figures mean nothing
    #[arg(long)]
    quick: bool,
    /// Targets to measure: any of a b e c d s z f t u. With z, the peer ZeroFS is downloaded from crates.io and built
    /// first, once
    #[arg(long, value_name = "LETTERS", default_value = "abecd")]
    targets: String,
    /// Run only rows whose key contains this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    rows: String,
    /// Do not install missing programs
    #[arg(long)]
    no_setup: bool,
    #[command(flatten)]
    build: Build,
}

/// Benchmarks of Holdfast
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Chore {
    /// Compare throughput: local disk, nbdkit, one gateway, three gateways
    Bench(Box<Args>),
    /// Undo the changes of an interrupted run; the program starts this itself
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

/// Runs the benchmark. Fails when a target cannot be set up or measured. A slow target is no error.
pub fn bench(args: &Args) -> Result<()> {
    match &args.what {
        Some(What::Storage(args)) => return storage::bench(args),
        Some(What::Map(args)) => return map::bench(args),
        Some(What::Cost(args)) => return cost::bench(args),
        None => {}
    }
    setup::must_be_able_to_mount()?;
    if !args.no_setup {
        setup::setup(For::Tests)?;
    }
    let kinds: Vec<_> = KINDS.into_iter().filter(|k| args.targets.contains(k.letter())).collect();
    anyhow::ensure!(
        !kinds.is_empty(),
        "no target in {:?}; the targets are a, b, e, c, d, s, z, f, t and u",
        args.targets
    );
    let scale = if args.quick { Scale::QUICK } else { Scale::FULL };
    let rows = rows::rows(&args.rows);
    anyhow::ensure!(!rows.is_empty(), "no row has {:?} in its key", args.rows);
    let rounds = args.rounds.unwrap_or(if args.quick { 1 } else { 5 });
    let bin = args.build.binary(PROFILE)?;
    if kinds.contains(&Kind::Peer) {
        // Before any measurement, because a build uses the CPUs.
        peer::program()?;
    }
    let dir = fresh_dir("bench")?;
    let (public, _guard) = public_dir("bench")?;

    let settings = settings(args, &kinds, &scale, rounds);
    step("Preparing: file systems, data and databases");
    let mut targets = Vec::new();
    for kind in &kinds {
        note(format!("{}: {}", kind.letter(), kind.title()));
        targets.push(Target::prepare(*kind, &bin, &dir, &public, &scale)?);
    }
    let mut results = Results::new(settings, &rows, &kinds);
    measure(&mut targets, &mut results, (&kinds, &rows, &scale, rounds), &dir)?;
    // Frees the space of volumes, journals and stores (60 GiB with all targets and three rounds): the next benchmark
    // needs it.
    drop(targets);
    room::thin_out(&dir)?;
    line(results.table());
    if let Some(table) = results.cost_table() {
        line(table);
    }
    for text in results.judge() {
        line(text);
    }
    line("Load and pressure beside each figure: target/bench/results.json");
    Ok(())
}

/// The settings of a run, which are printed.
fn settings(args: &Args, kinds: &[Kind], scale: &Scale, rounds: u32) -> Vec<(String, String)> {
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
    settings
}

/// Measures all targets in each round.
fn measure(
    targets: &mut [Target],
    results: &mut Results,
    (kinds, rows, scale, rounds): (&[Kind], &[Row], &Scale, u32),
    dir: &Path,
) -> Result<()> {
    for round in 0..rounds {
        step(format!("Round {} of {rounds} ({})", round + 1, stats::machine()));
        results.begin_round();
        // Each round begins with another target, so that no target is always the first.
        for turn in 0..targets.len() {
            let index = (turn + round as usize) % targets.len();
            let kind = kinds[index];
            let measured = targets[index].measure(rows, scale)?;
            let machine = stats::machine();
            note(format!("{}: {} ({machine})", kind.letter(), report::short(rows, &measured)));
            results.add(kind, measured, machine);
        }
        results.write(dir)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Whoever copies a command from a page must not be told that there is no such option.
    #[test]
    fn chores_on_the_pages_are_command_lines_of_this_program() {
        let (tried, wrong) =
            holdfast_chore::pages::refused::<Chore>(|chore| ["bench"].contains(&chore)).expect("pages");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(tried >= 10, "found {tried} commands, expected more");
    }
}
