//! Runs one seed in this process, or many seeds in a process each, so that no run affects the next.

use crate::broken::Broken;
use crate::modes::Modes;
use crate::scenes::Scene;
use crate::stats::Sum;
use crate::world::World;
use crate::{host, libc};
use anyhow::{Context, Result};
use holdfast_raft::Clocks;
use holdfast_types::MonoTime;
use std::io::{Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

/// Real time after which a process hangs, which counts as a failure.
const SEED_LIMIT: Duration = Duration::from_secs(600);

/// One seed.
#[derive(Clone, Debug, clap::Args)]
pub struct OneArgs {
    /// The seed
    #[arg(long)]
    seed: u64,
    /// Faults for so many simulated seconds
    #[arg(long, default_value_t = 20)]
    length: u64,
    /// Print the log as it grows
    #[arg(long, short)]
    verbose: bool,
    /// Instead of faults by chance, this one course of things
    #[arg(long)]
    #[arg(conflicts_with_all = ["attach", "agents"])]
    scene: Option<Scene>,
    /// With this bug put in: it should fail, sooner or later
    #[arg(long)]
    broken: Option<Broken>,
    #[command(flatten)]
    modes: Modes,
}

/// Many seeds.
#[derive(Clone, Debug, clap::Args)]
pub struct ManyArgs {
    /// The first seed
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// How many; without a bound in time, 20
    #[arg(long)]
    seeds: Option<u64>,
    /// Begin no further seed after so many seconds
    #[arg(long)]
    seconds: Option<u64>,
    /// Begin no further seed after so many hours
    #[arg(long)]
    hours: Option<f64>,
    /// Processes at once
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Faults for so many simulated seconds in each
    #[arg(long, default_value_t = 20)]
    length: u64,
    /// Go on after a failing seed
    #[arg(long)]
    keep_going: bool,
    /// Say nothing of a seed that is fine, but of all of them together
    #[arg(long, short)]
    quiet: bool,
    /// With this bug put in: one should fail, sooner or later
    #[arg(long)]
    broken: Option<Broken>,
    #[command(flatten)]
    modes: Modes,
}

fn clocks() -> Clocks {
    Clocks { boot: MonoTime(libc::boot()), monotonic: MonoTime(libc::monotonic()) }
}

fn agents_clock() -> MonoTime {
    MonoTime(libc::boot())
}

/// [`Broken::LeaseOnMonotonic`].
fn monotonic_clocks() -> Clocks {
    Clocks { boot: MonoTime(libc::monotonic()), monotonic: MonoTime(libc::monotonic()) }
}

/// [`Broken::LeaseOnWall`].
fn wall_clocks() -> Clocks {
    Clocks { boot: MonoTime(libc::wall()), monotonic: MonoTime(libc::wall()) }
}

/// Runs one seed; its last line is the result.
pub fn one(args: OneArgs) -> ExitCode {
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let log = tracing_subscriber::fmt().with_env_filter(filter).without_time().with_ansi(false);
        log.with_writer(std::io::stderr).init();
    }
    // A failed assertion in a task must not count as a finished task.
    std::panic::set_hook(Box::new(|panic| {
        eprintln!("{panic}");
        host::fatal(&format!("panic: {panic}"));
    }));
    let began = Instant::now();
    libc::begin(args.seed);
    holdfast_raft::replace_clocks(match args.broken {
        Some(Broken::LeaseOnMonotonic) => monotonic_clocks,
        Some(Broken::LeaseOnWall) => wall_clocks,
        _ => clocks,
    });
    holdfast_agent::replace_clock(agents_clock);
    holdfast_log::run_blocking_inline();
    // A thread of its own: its random state (keys of hash tables, generators) is then made from the seed.
    let thread = std::thread::Builder::new().name("simulation".to_string()).stack_size(64 << 20);
    let (seed, length) = (args.seed, args.length);
    let (scene, broken, more) = (args.scene, args.broken, args.modes.words());
    let outcome = thread.spawn(move || simulate(&args)).map(std::thread::JoinHandle::join);
    libc::end();
    let failed = match outcome {
        Ok(Ok(Ok(line))) => {
            println!("seed {seed}: ok: {line}");
            eprintln!("took {:.1} s", began.elapsed().as_secs_f64());
            return ExitCode::SUCCESS;
        }
        Ok(Ok(Err(error))) => format!("{error:#}"),
        Ok(Err(_)) => format!("the simulation itself panicked: {:?}", host::take_fatal()),
        Err(error) => format!("no thread: {error}"),
    };
    println!("seed {seed}: FAILED: {failed}");
    match scene {
        Some(scene) => {
            println!("again: target/debug/holdfast-sim one --seed {seed} --scene {} --verbose", scene.word())
        }
        None if !more.is_empty() => {
            println!("again: target/debug/holdfast-sim one --seed {seed} --length {length}{more} --verbose")
        }
        None if broken.is_none() => println!("again: cargo xtask sim --seed {seed} --length {length} --verbose"),
        None => {}
    }
    ExitCode::FAILURE
}

/// Directory for a process's files that are not simulated (identity, state snapshots): in memory if possible. Its path
/// has the same length for every process: an entry contains it, and an entry's length affects the run.
fn directory(process: u32) -> PathBuf {
    let memory = Path::new("/dev/shm");
    let parent = if memory.is_dir() { memory.to_path_buf() } else { std::env::temp_dir() };
    parent.join(format!("holdfast-sim-{process:010}"))
}

fn simulate(args: &OneArgs) -> Result<String> {
    let dir = directory(std::process::id());
    // Left by a killed process with this number, so no living one uses it.
    drop(std::fs::remove_dir_all(&dir));
    std::fs::create_dir(&dir).with_context(|| format!("no directory {}", dir.display()))?;
    let mut world = World::new(args.seed, &dir, args.verbose, args.broken, args.modes)?;
    let outcome = match args.scene {
        Some(scene) => world.play(scene),
        None => world.run(args.length * 1000),
    };
    std::fs::remove_dir_all(&dir)?;
    if let Err(error) = &outcome {
        world.note(format!("FAILED: {error:#}"));
        if !args.verbose {
            // The last lines; all with --verbose.
            let from = world.log.len().saturating_sub(40);
            world.log[from..].iter().for_each(|line| println!("{line}"));
        }
    }
    outcome.map(|()| world.summary())
}

struct Running {
    seed: u64,
    child: Child,
    output: std::fs::File,
    began: Instant,
}

/// CPU time of all ended processes in seconds, independent of other load.
fn processors() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Behind the name, which may contain anything: fields 16 and 17, in hundredths of a second.
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap_or_default().split(' ').collect();
    let ticks: u64 = fields.iter().skip(13).take(2).filter_map(|field| field.parse::<u64>().ok()).sum();
    ticks as f64 / 100.0
}

/// Runs many seeds; its last lines name the failed ones.
pub fn many(args: &ManyArgs) -> ExitCode {
    match run_many(args) {
        Ok(failed) if failed.is_empty() => ExitCode::SUCCESS,
        Ok(failed) => {
            for seed in failed {
                let (length, more) = (args.length, args.modes.words());
                let again = if !more.is_empty() { "target/debug/holdfast-sim one" } else { "cargo xtask sim" };
                println!("seed {seed} failed; again: {again} --seed {seed} --length {length}{more} --verbose");
            }
            ExitCode::FAILURE
        }
        Err(error) => {
            println!("FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_many(args: &ManyArgs) -> Result<Vec<u64>> {
    let began = Instant::now();
    let bound = args.hours.map(|hours| Duration::from_secs_f64(hours * 3600.0));
    let bound = args.seconds.map(Duration::from_secs).or(bound);
    let last = match (args.seeds, bound) {
        (Some(seeds), _) => args.seed.saturating_add(seeds),
        (None, Some(_)) => u64::MAX,
        (None, None) => args.seed.saturating_add(20),
    };
    let exe = std::env::current_exe().context("no path to this program")?;
    let (mut next, mut running, mut failed, mut done) = (args.seed, Vec::new(), Vec::new(), 0u64);
    let mut sum = Sum::default();
    loop {
        let late = bound.is_some_and(|bound| began.elapsed() >= bound) || (!failed.is_empty() && !args.keep_going);
        while next < last && !late && running.len() < args.jobs.max(1) {
            let mut command = Command::new(&exe);
            command.args(["one", "--seed", &next.to_string(), "--length", &args.length.to_string()]);
            command.args(args.broken.map(|broken| format!("--broken={}", broken.word())));
            command.args(args.modes.words().split_whitespace());
            // A file, not a pipe: nobody reads before the end.
            let output = tempfile::tempfile()?;
            let child = command.stdin(Stdio::null()).stdout(output.try_clone()?).stderr(Stdio::null()).spawn()?;
            running.push(Running { seed: next, child, output, began: Instant::now() });
            next += 1;
        }
        if running.is_empty() {
            break;
        }
        let mut at = 0;
        while at < running.len() {
            let hangs = running[at].began.elapsed() > SEED_LIMIT;
            if hangs {
                running[at].child.kill()?;
            }
            let Some(status) = running[at].child.try_wait()? else {
                at += 1;
                continue;
            };
            let mut run = running.remove(at);
            let mut text = String::new();
            run.output.rewind()?;
            run.output.read_to_string(&mut text)?;
            done += 1;
            if hangs || !status.success() {
                // Remains of a run that did not end by itself, if any.
                drop(std::fs::remove_dir_all(directory(run.child.id())));
            }
            if status.success() {
                sum.add(text.rsplit(": ").next().unwrap_or_default());
                if !args.quiet {
                    print!("{text}");
                }
            } else {
                println!("{text}seed {}: {status}{}", run.seed, if hangs { ", it hung" } else { "" });
                failed.push(run.seed);
            }
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    println!("in all: {}", sum.line());
    // Of seeds that did not fail: each was healed, continued, and read everything back.
    println!("survived: {}", sum.survived());
    println!(
        "{done} seeds ({} to {}) of {} s of faults, {} failed, {:.0} s, {:.0} s of processors",
        args.seed,
        next.saturating_sub(1),
        args.length,
        failed.len(),
        began.elapsed().as_secs_f64(),
        processors()
    );
    Ok(failed)
}
