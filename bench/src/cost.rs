//! `cargo xtask bench cost`: what sets cost that nobody uses, by the number of gateways and of sets.
//!
//! ```text
//!  N gateways ─▶ versitygw on loopback          nobody connects
//!     processor time, resident memory: /proc     store requests: its access log
//!     heartbeats: /metrics                       TCP segments: /proc/net/snmp of this machine
//! ```
//! Each number of gateways has its own cluster, in which sets are added from one measurement to the next. A set has
//! three voters. Figures of one set are differences to the first measurement of the same cluster, so what gateways
//! cost by themselves is not in them. Nothing is asserted: a bad figure is no error.

mod watch;

use crate::binary::{Build, fresh_dir, root};
use crate::cluster::{Cluster, Options, SET};
use crate::cmd::{cmd, on_path};
use crate::process::wait_until;
use crate::room;
use crate::s3::S3;
use crate::say::{line, note, step};
use crate::setup::{self, For};
use crate::stats;
use anyhow::{Context, Result};
use serde_json::json;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use watch::{Figures, lacks, measure};

const PROFILE: &str = "release";

/// Gateways that `holdfast dev` starts. Further ones are added.
const FIRST: usize = 3;
/// Sets that are made at the same time.
const AT_ONCE: usize = 4;
/// Limit until all gateways and sets are there, besides the time for each set.
const LIMIT: Duration = Duration::from_secs(300);
const LIMIT_A_SET: Duration = Duration::from_secs(3);
/// Between two looks at the cluster: each asks all gateways.
const LOOK: Duration = Duration::from_millis(500);

/// Small caches and journals: there are many gateways on this machine.
const SETTINGS: [&str; 4] = ["journal.bound=1GiB", "journal.reserve=128MiB", "cache.memory=32MiB", "cache.disk=0B"];

/// What an idle set may cost in the whole cluster.
const CPU_PERCENT_GOAL: f64 = 0.1;

/// Options on the command line.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask bench cost --quick                            one small cluster: shows that it runs
  cargo xtask bench cost                                    3, 6 and 12 gateways with 1, 10 and 100 sets; half an hour
  cargo xtask bench cost --gateways 12 --sets 1,100,1000    a thousand sets

Results: a table here, everything in target/bench/cost.json. How to read it: bench/README.md.")]
pub struct Args {
    /// Numbers of gateways, with commas between them
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [3_u16, 6, 12],
          value_parser = clap::value_parser!(u16).range(3..=24))]
    gateways: Vec<u16>,
    /// Numbers of sets, with commas between them
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_values_t = [1_u16, 10, 100],
          value_parser = clap::value_parser!(u16).range(1..=1000))]
    sets: Vec<u16>,
    /// Seconds before each measurement, in which times of groups and the last uploads settle: a little more than
    /// `rtt_calm_ms`
    #[arg(long, value_name = "N", default_value_t = 75)]
    settle: u64,
    /// Seconds of each measurement
    #[arg(long, value_name = "N", default_value_t = 60, value_parser = clap::value_parser!(u64).range(1..))]
    seconds: u64,
    /// A setting of every gateway as in its file; several times for several
    #[arg(long, value_name = "KEY=VALUE")]
    gateway_set: Vec<String>,
    /// Three gateways, a few sets, a few seconds: shows that it runs, no figure means anything
    #[arg(long)]
    quick: bool,
    /// Do not install missing programs
    #[arg(long)]
    no_setup: bool,
    #[command(flatten)]
    build: Build,
}

/// What is measured.
struct Plan {
    bin: PathBuf,
    settings: Vec<String>,
    gateways: Vec<usize>,
    sets: Vec<usize>,
    settle: Duration,
    window: Duration,
}

/// Ascending, each once.
fn numbers(given: &[u16]) -> Vec<usize> {
    let mut numbers: Vec<usize> = given.iter().map(|number| usize::from(*number)).collect();
    numbers.sort_unstable();
    numbers.dedup();
    numbers
}

fn plan(args: &Args) -> Result<Plan> {
    let settings = SETTINGS.into_iter().map(String::from).chain(args.gateway_set.iter().cloned()).collect();
    let (gateways, sets) =
        if args.quick { (vec![FIRST], vec![1, 4]) } else { (numbers(&args.gateways), numbers(&args.sets)) };
    let (settle, seconds) = if args.quick { (5, 5) } else { (args.settle, args.seconds) };
    let (settle, window) = (Duration::from_secs(settle), Duration::from_secs(seconds));
    Ok(Plan { bin: args.build.binary(PROFILE)?, settings, gateways, sets, settle, window })
}

/// Runs the benchmark. Fails when a cluster cannot be started or looked at. A bad figure is no error.
pub fn bench(args: &Args) -> Result<()> {
    if !args.no_setup {
        setup::setup(For::Tests)?;
    }
    anyhow::ensure!(on_path("versitygw"), "versitygw is not there: `cargo xtask setup` builds it where there is Go");
    let plan = plan(args)?;
    let dir = fresh_dir("bench-cost")?;
    step("Settings");
    let settings = settings(args, &plan);
    for (name, value) in &settings {
        note(format!("{name}: {value}"));
    }
    let mut all: Vec<Figures> = Vec::new();
    for gateways in &plan.gateways {
        step(format!("{gateways} gateways ({})", stats::machine()));
        let dir = dir.join(gateways.to_string());
        std::fs::create_dir_all(&dir)?;
        let mut lab = Lab::start(&plan, &dir, *gateways)?;
        for sets in &plan.sets {
            all.push(lab.with(&plan, *sets)?);
            // After each one, so that an interrupted run keeps its results.
            write(args, &settings, &all)?;
        }
        lab.end()?;
        room::thin_out(&dir)?;
    }
    line(table(&all));
    judged(&all).into_iter().for_each(line);
    if args.quick {
        line("--quick: this shows that it runs; no figure means anything");
    }
    line("Everything that was counted: target/bench/cost.json");
    Ok(())
}

fn settings(args: &Args, plan: &Plan) -> Vec<(&'static str, String)> {
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let commit = cmd("git").dir(root()).args(["rev-parse", "--short", "HEAD"]).out().unwrap_or_default();
    let (settle, window) = (plan.settle.as_secs(), plan.window.as_secs());
    vec![
        ("holdfast", args.build.describe(PROFILE)),
        ("tree", commit.trim().to_owned()),
        ("machine", format!("{cpus} CPUs, Linux {}", kernel.trim())),
        ("gateways", format!("as `holdfast dev` sets them, but {}; all in one region", plan.settings.join(", "))),
        ("sets", "three voters each, one volume of 64 MiB, never written, no connection".into()),
        ("store", "versitygw over a folder, plain HTTP on loopback, on the same disk".into()),
        ("measured", format!("{window} s after {settle} s of rest")),
    ]
}

fn write(args: &Args, settings: &[(&str, String)], all: &[Figures]) -> Result<()> {
    let settings: serde_json::Map<_, _> = settings.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
    let dir = root().join("target").join("bench");
    std::fs::create_dir_all(&dir)?;
    let all = json!({ "settings": settings, "quick": args.quick, "measured": all });
    Ok(std::fs::write(dir.join("cost.json"), serde_json::to_vec_pretty(&all)?)?)
}

/// One cluster and its S3 server.
struct Lab {
    cluster: Cluster,
    s3: S3,
    log: PathBuf,
    /// Sets that are there.
    sets: usize,
}

impl Lab {
    fn start(plan: &Plan, dir: &Path, gateways: usize) -> Result<Self> {
        let log = dir.join("access.log");
        let s3 = S3::start_noting(dir, &log)?;
        let (bin, store, size) = (plan.bin.clone(), Some(s3.url()), "64MiB".to_owned());
        let (settings, env) = (plan.settings.clone(), s3.env());
        let options = Options { bin, dir: dir.join("cluster"), gateways: FIRST, store, size, settings, env };
        let mut cluster = Cluster::start(options)?;
        for _ in FIRST..gateways {
            let index = cluster.start_another(&[])?;
            let api = cluster.gateways[index].api.clone();
            cluster.holdfast(&["gateway", "add", &api, "--no-wait", "--timeout", "60s"])?;
        }
        let lab = Self { cluster, s3, log, sets: 1 };
        lab.whole(gateways)?;
        Ok(lab)
    }

    /// Waits until every gateway and every set is there and nothing moves.
    fn whole(&self, gateways: usize) -> Result<()> {
        let limit = LIMIT + LIMIT_A_SET * u32::try_from(self.sets)?;
        let begun = Instant::now();
        loop {
            let status = self.cluster.holdfast(&["cluster", "status", "--timeout", "60s"]);
            let Some(lacks) = status.map_or_else(|e| Some(format!("{e:#}")), |s| lacks(&s, gateways, self.sets)) else {
                return Ok(());
            };
            anyhow::ensure!(begun.elapsed() < limit, "after {limit:?}: {lacks}");
            std::thread::sleep(LOOK);
        }
    }

    /// Makes as many sets as there are to be, lets all come to rest, and measures.
    fn with(&mut self, plan: &Plan, sets: usize) -> Result<Figures> {
        let (more, begun) = (sets.saturating_sub(self.sets), Instant::now());
        self.make(sets)?;
        let created_s_each = (more > 0).then(|| begun.elapsed().as_secs_f64() / more as f64);
        self.sets = sets;
        let gateways = self.cluster.gateways.len();
        self.whole(gateways)?;
        note(format!("{sets} sets are there; resting for {} s", plan.settle.as_secs()));
        wait_until(plan.settle, || false);
        let figures = measure(&self.cluster, &self.log, plan.window)?;
        let figures = Figures { sets, created_s_each, ..figures };
        note(format!(
            "{:.1} % of a core, {:.0} MiB, {:.0} segments/s, {:.1} store requests/min, {} elections ({})",
            figures.cpu_percent,
            figures.resident_bytes as f64 / f64::from(1 << 20),
            figures.segments_per_s,
            figures.store_requests_per_minute,
            figures.elections,
            stats::machine()
        ));
        Ok(figures)
    }

    /// Some at a time. The first set came with the cluster.
    fn make(&self, upto: usize) -> Result<()> {
        let (bin, apis, store) = (&self.cluster.options.bin, self.cluster.apis().join(","), self.s3.url());
        let (next, env) = (AtomicUsize::new(self.sets), self.s3.env());
        let work = || -> Result<()> {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                if number >= upto {
                    return Ok(());
                }
                let name = format!("{SET}{number}");
                let create = ["set", "create", &name, "--store", &store, "--volume", "vol1=64MiB", "--timeout", "120s"];
                let command = cmd(bin).args(create).args(["--output", "json", "--api", &apis]);
                let command = env.iter().fold(command, |command, (key, value)| command.env(key, value));
                command.run().with_context(|| name.clone())?;
            }
        };
        std::thread::scope(|scope| {
            let threads: Vec<_> = (0..AT_ONCE).map(|_| scope.spawn(work)).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, Result<()>>| {
                thread.join().map_err(|_| anyhow::anyhow!("a thread that makes sets panicked"))?
            };
            threads.into_iter().try_for_each(join)
        })
    }

    fn end(mut self) -> Result<()> {
        // In good order each would first hand over all that it leads.
        self.cluster.kill_all()?;
        self.s3.stop()
    }
}

/// What one set more costs, by the difference to the first measurement of the same cluster.
fn of_a_set(all: &[Figures], one: &Figures, figure: fn(&Figures) -> f64) -> Option<f64> {
    let first = all.iter().find(|other| other.gateways == one.gateways)?;
    let more = one.sets.checked_sub(first.sets).filter(|more| *more > 0)?;
    Some((figure(one) - figure(first)) / more as f64)
}

fn mib(figures: &Figures) -> f64 {
    figures.resident_bytes as f64 / f64::from(1 << 20)
}

fn table(all: &[Figures]) -> String {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    let costs = ["MiB", "A SET", "CPU %", "A SET", "SEGMENTS/S", "A SET", "HEARTBEAT CALLS/S"];
    let store = ["STORE REQUESTS/MIN", "A SET", "S TO CREATE", "ELECTIONS"];
    table.set_header([&["GATEWAYS", "SETS"][..], &costs, &store].concat());
    let shown = |value: Option<f64>, digits: usize| value.map_or_else(|| "-".to_owned(), |v| format!("{v:.digits$}"));
    for one in all {
        let each = |figure: fn(&Figures) -> f64, digits: usize| shown(of_a_set(all, one, figure), digits);
        table.add_row([
            one.gateways.to_string(),
            one.sets.to_string(),
            shown(Some(mib(one)), 0),
            each(mib, 2),
            shown(Some(one.cpu_percent), 1),
            each(|figures| figures.cpu_percent, 3),
            shown(Some(one.segments_per_s), 0),
            each(|figures| figures.segments_per_s, 1),
            shown(Some(one.heartbeat_calls_per_s), 0),
            shown(Some(one.store_requests_per_minute), 1),
            each(|figures| figures.store_requests_per_minute, 2),
            shown(one.created_s_each, 2),
            one.elections.to_string(),
        ]);
    }
    table.to_string()
}

/// Each figure that has a goal, with its value.
fn judged(all: &[Figures]) -> Vec<String> {
    let judge = |one: &Figures| {
        let found = of_a_set(all, one, |figures| figures.cpu_percent)?;
        let reached = if found < CPU_PERCENT_GOAL { "reached    " } else { "not reached" };
        let of = format!("{} gateways, {} sets: CPU of an idle set", one.gateways, one.sets);
        Some(format!("{reached} {of} < {CPU_PERCENT_GOAL} % of a core: {found:.3}"))
    };
    all.iter().filter_map(judge).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn figures(gateways: usize, sets: usize, cpu_percent: f64) -> Figures {
        Figures { gateways, sets, cpu_percent, ..Figures::default() }
    }

    #[test]
    fn a_set_costs_what_the_cluster_costs_more() {
        let all = [figures(3, 1, 4.0), figures(3, 101, 14.0), figures(6, 1, 6.0), figures(6, 101, 11.0)];
        let found: Vec<Option<f64>> = all.iter().map(|one| of_a_set(&all, one, |f| f.cpu_percent)).collect();
        assert_eq!(found, [None, Some(0.1), None, Some(0.05)]);
        let judged = judged(&all);
        assert!(judged[0].starts_with("not reached 3 gateways, 101 sets"), "{judged:?}");
        assert!(judged[1].starts_with("reached     6 gateways") && judged[1].ends_with("0.050"), "{judged:?}");
        assert!(table(&all).contains("0.050"));
    }

    #[test]
    fn numbers_are_measured_in_order_and_once() {
        assert_eq!(numbers(&[100, 1, 10, 1]), [1, 10, 100]);
    }
}
