//! `cargo xtask bench storage`: the load of a set on its store, and its effect on writers.
//!
//! ```text
//!  fio, pgbench, our NBD client ─▶ three gateways ─▶ versitygw on loopback ─▶ a folder
//!        bytes written: /metrics of the gateways        PUTs, bytes, GETs: its access log
//! ```
//! Each row has its own cluster and S3 server. Rows about the cost per byte begin and end with a complete checkpoint,
//! so that the server's counts belong to the bytes written in between. A slow result is no failure: goals are reported,
//! not asserted.

mod door;
mod figures;
mod lab;
mod plan;
mod requests;
mod upload;
mod writes;

use crate::binary::{Build, fresh_dir, public_dir, root};
use crate::cmd::cmd;
use crate::say::{line, note, step};
use crate::setup::{self, For};
use crate::stats;
use anyhow::Result;
use figures::shown;
use plan::{FULL, Figure, Goal, Plan, QUICK, Row};
use serde_json::json;
use std::path::PathBuf;

const PROFILE: &str = "release";

/// Options on the command line.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "Rows:
  sequential   128 KiB writes in order, over and over: bytes to S3 per byte written, PUTs per GiB
  random       8 KiB writes anywhere, uniformly: the same
  pgbench      PostgreSQL on ext4 on the volume, TPC-B, 10 minutes: the same
  latency      p99 of a calm 8 KiB write, on a cluster that collects and on one that hardly does
  upload       MiB/s of a checkpoint beside a bare aws-sdk-s3 loop, turn by turn (goal: 0.9 of it)
  upload-link  the same, with the server behind a link of 100 MiB/s: where the processors are not the bound
  idle         requests an hour of a set that nobody uses (goal: below 60)
  cold-read    GETs of a read of 128 KiB that no cache has (goal: 1)

Examples:
  cargo xtask bench storage --quick                     some minutes: shows that every row runs, its figures mean nothing
  cargo xtask bench storage                             everything, about an hour
  cargo xtask bench storage --rows upload,cold-read     two rows
  cargo xtask bench storage --rows pgbench --seconds 1800
  cargo xtask bench storage --rows random --size 4096   over 4 GiB: fewer writes meet each other in one checkpoint
  cargo xtask bench storage --rows random --size 384 --gateway-set upload.bytes=32MiB
                                                        the proportions of 3 GiB, in a few minutes

In bytes and requests this machine's speed does not matter; for latency and upload let it be quiet, and see load and pressure beside each row.
Results: a table here, everything in target/bench/storage.json. How to read it: bench/README.md.")]
pub struct Args {
    /// Rows to run, with commas between them; all of them if left out
    #[arg(long, value_name = "ROWS", value_delimiter = ',', value_parser = clap::builder::PossibleValuesParser::new(KEYS))]
    rows: Vec<String>,
    /// Seconds that are measured in each timed row [default: pgbench 600, idle 600, sequential and random 180, latency
    /// 120]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    seconds: Option<u64>,
    /// MiB of the volume that sequential, random and latency write over and over [default: 1024]
    #[arg(long, value_name = "MIB", value_parser = clap::value_parser!(u64).range(64..))]
    size: Option<u64>,
    /// MiB a second that sequential and random write at most: the journal must not fill up, or collection falls behind
    #[arg(long, value_name = "MIB", default_value_t = 32, value_parser = clap::value_parser!(u64).range(1..))]
    rate: u64,
    /// A setting of every gateway as in its file, such as `upload.bytes="32MiB"`; several times for several
    #[arg(long, value_name = "KEY=VALUE")]
    gateway_set: Vec<String>,
    /// Use little data and few seconds: shows that the benchmark runs; its figures mean nothing
    #[arg(long)]
    quick: bool,
    /// The plain PUT loop to compare with, if it is built already (program bare_put of holdfast-store)
    #[arg(long, value_name = "PATH")]
    bare: Option<PathBuf>,
    /// Do not install missing programs
    #[arg(long)]
    no_setup: bool,
    #[command(flatten)]
    build: Build,
}

type Run = fn(&Plan) -> Result<Row>;

const ROWS: [(&str, Run); 8] = [
    ("sequential", writes::sequential),
    ("random", writes::random),
    ("pgbench", writes::pgbench),
    ("latency", writes::latency),
    ("upload", upload::upload),
    ("upload-link", upload::over_link),
    ("idle", requests::idle),
    ("cold-read", requests::cold_read),
];

const KEYS: [&str; 8] = ["sequential", "random", "pgbench", "latency", "upload", "upload-link", "idle", "cold-read"];

/// The named rows in the order of the table; all of them if none is named.
fn chosen(names: &[String]) -> Vec<(&'static str, Run)> {
    ROWS.into_iter().filter(|(key, _)| names.is_empty() || names.iter().any(|name| name == key)).collect()
}

fn settings(plan: &Plan, args: &Args) -> Vec<(&'static str, String)> {
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let commit = cmd("git").dir(root()).args(["rev-parse", "--short", "HEAD"]).out().unwrap_or_default();
    let s = &plan.scale;
    vec![
        ("holdfast", args.build.describe(PROFILE)),
        ("tree", commit.trim().to_owned()),
        ("machine", format!("{cpus} CPUs, Linux {}", kernel.trim())),
        ("gateways", "three, as `holdfast dev` sets them, but rtt_ms=100, rtt_floor_ms=100: upload.bytes=256MiB, upload.interval_ms=15000, space.target_percent=130".into()),
        ("set besides", args.gateway_set.join(", ")),
        ("store", "versitygw over a folder, plain HTTP on loopback, on the same disk".into()),
        ("writes", format!("{} MiB, {} MiB a second at most, {} s", plan.size_mib, plan.rate_mib, plan.seconds.unwrap_or(s.write_s))),
        ("data", "incompressible (fio); what PostgreSQL writes (pgbench)".into()),
        ("pgbench", format!("scale {}, {}, {} s, {}", s.pg_scale, writes::CLIENTS.join(" "), plan.seconds.unwrap_or(s.pg_s), writes::POSTGRES.trim())),
        ("upload", format!("{} rounds of {} MiB, objects of 16 MiB, 4 in flight; link of upload-link: {} MiB/s", s.upload_rounds, s.upload_mib, upload::LINK >> 20)),
    ]
}

/// Runs the benchmark. Fails when a row cannot run. A bad figure is no error.
pub fn bench(args: &Args) -> Result<()> {
    let rows = chosen(&args.rows);
    let has = |key: &str| rows.iter().any(|(row, _)| *row == key);
    if has("pgbench") {
        setup::must_be_able_to_mount()?;
    }
    if !args.no_setup {
        setup::setup(For::Tests)?;
    }
    anyhow::ensure!(
        crate::cmd::on_path("versitygw"),
        "versitygw is not there: `cargo xtask setup` builds it where there is Go"
    );
    let bin = args.build.binary(PROFILE)?;
    let bare = match &args.bare {
        Some(bare) => Some(bare.canonicalize()?),
        None if has("upload") || has("upload-link") => {
            Some(args.build.program("holdfast-store", "bare_put", PROFILE)?)
        }
        None => None,
    };
    let (public, _guard) = public_dir("bench-storage")?;
    let scale = if args.quick { QUICK } else { FULL };
    let size_mib = args.size.unwrap_or(scale.size_mib);
    let (dir, seconds, rate_mib, quick) = (fresh_dir("bench-storage")?, args.seconds, args.rate, args.quick);
    let gateway_set = args.gateway_set.clone();
    let plan = Plan { bin, bare, dir, public, scale, seconds, size_mib, rate_mib, settings: gateway_set, quick };

    step("Settings");
    let settings = settings(&plan, args);
    for (name, value) in &settings {
        note(format!("{name}: {value}"));
    }
    let mut figures: Vec<Figure> = Vec::new();
    let mut all = serde_json::Map::new();
    for (key, run) in rows {
        step(format!("{key} ({})", stats::machine()));
        let row = run(&plan)?;
        let machine = stats::machine();
        note(format!("afterwards: {machine}"));
        all.insert(
            row.key.into(),
            json!({ "figures": row.figures, "details": row.details, "machine_afterwards": machine }),
        );
        figures.extend(row.figures);
        // After each row, so that an interrupted run keeps its results.
        write(&settings, &all, args.quick)?;
    }
    line(table(&figures));
    figures.iter().filter_map(Figure::judged).for_each(line);
    if args.quick {
        line("--quick: this shows that the benchmark runs; its figures mean nothing");
    }
    line("Everything that was counted: target/bench/storage.json");
    Ok(())
}

fn write(settings: &[(&str, String)], rows: &serde_json::Map<String, serde_json::Value>, quick: bool) -> Result<()> {
    let settings: serde_json::Map<_, _> = settings.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
    let dir = root().join("target").join("bench");
    std::fs::create_dir_all(&dir)?;
    let all = json!({ "settings": settings, "quick": quick, "rows": rows });
    Ok(std::fs::write(dir.join("storage.json"), serde_json::to_vec_pretty(&all)?)?)
}

fn table(figures: &[Figure]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    table.set_header(["", "", "measured", "goal"]);
    for figure in figures {
        let goal = figure.goal.map_or_else(String::new, Goal::words);
        table.add_row([figure.of.to_owned(), figure.what.to_owned(), shown(figure.value, figure.digits), goal]);
    }
    table.to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn goals_are_judged_with_their_value() {
        let figure = |value, goal| Figure::new("x", "y", value, 2).with(goal).judged().unwrap_or_default();
        assert_eq!(figure(Some(0.9), Goal::AtLeast(0.9)), "reached     x: y >= 0.9: 0.90");
        assert_eq!(figure(Some(0.89), Goal::AtLeast(0.9)), "not reached x: y >= 0.9: 0.89");
        assert_eq!(figure(Some(60.0), Goal::Below(60.0)), "not reached x: y < 60: 60.00");
        assert_eq!(figure(Some(1.0), Goal::AtMost(1.0)), "reached     x: y <= 1: 1.00");
        assert_eq!(figure(None, Goal::AtMost(1.0)), "not measured x: y <= 1: -");
        assert_eq!(Figure::new("x", "y", Some(1.0), 0).judged(), None);
    }

    #[test]
    fn rows_are_chosen_by_name() {
        assert_eq!(chosen(&[]).len(), ROWS.len());
        let two: Vec<&str> = chosen(&["idle".into(), "random".into()]).iter().map(|(key, _)| *key).collect();
        assert_eq!(two, ["random", "idle"]);
        assert!(ROWS.iter().map(|(key, _)| *key).eq(KEYS));
    }

    #[test]
    fn a_table_has_a_line_for_each_figure() {
        let figures = [
            Figure::new("upload", "share", Some(0.5), 2).with(Goal::AtLeast(0.9)),
            Figure::new("idle set", "requests an hour", None, 0),
        ];
        let table = table(&figures);
        assert!(table.contains("0.50") && table.contains(">= 0.9") && table.contains("requests an hour"), "{table}");
    }
}
