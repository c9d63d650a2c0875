//! Runs one seed in this process, or many seeds in a process each, so that no run affects the next.

use crate::broken::Broken;
use crate::guide::Guide;
use crate::modes::Modes;
use crate::processes::{Ended, Processes};
use crate::scenes::Scene;
use crate::shape::Shape;
use crate::stats::Sum;
use crate::world::World;
use crate::{host, libc};
use anyhow::{Context, Result};
use holdfast_raft::Clocks;
use holdfast_types::MonoTime;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
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
    /// Print only a summary and failing seeds
    #[arg(long, short)]
    quiet: bool,
    /// With this bug put in: one should fail, sooner or later
    #[arg(long)]
    broken: Option<Broken>,
    /// Prefer seeds whose settings reached more rare states before
    #[arg(long)]
    guided: bool,
    #[command(flatten)]
    modes: Modes,
}

impl OneArgs {
    /// The shape of the seed. A scene and the search for a known bug have their own mix of faults.
    fn shape(&self) -> Shape {
        if self.scene.is_some() || self.broken.is_some() || self.modes.usual {
            return Shape::USUAL;
        }
        Shape::of(self.seed)
    }
}

fn clocks() -> Clocks {
    Clocks { boot: crate::time::reading(), monotonic: MonoTime(libc::monotonic()) }
}

fn agents_clock() -> MonoTime {
    MonoTime(libc::boot())
}

/// [`Broken::LeaseOnMonotonic`].
fn monotonic_clocks() -> Clocks {
    Clocks { boot: MonoTime(libc::monotonic()).into(), monotonic: MonoTime(libc::monotonic()) }
}

/// [`Broken::LeaseOnWall`].
fn wall_clocks() -> Clocks {
    Clocks { boot: MonoTime(libc::wall()).into(), monotonic: MonoTime(libc::wall()) }
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
    let (scene, broken, more, shape) = (args.scene, args.broken, args.modes.words(), args.shape());
    let outcome = thread.spawn(move || simulate(&args)).map(std::thread::JoinHandle::join);
    libc::end();
    if broken.is_none() {
        note_reached(seed, length, scene, &more);
    }
    let failed = match verdict(outcome, &host::take_fatal()) {
        Ok(line) => {
            println!("seed {seed}: ok: {line}");
            eprintln!("took {:.1} s", began.elapsed().as_secs_f64());
            return ExitCode::SUCCESS;
        }
        Err(failed) => failed,
    };
    println!("seed {seed}: FAILED: {failed}");
    println!("shape: {shape}");
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
    if scene.is_none() && broken.is_none() {
        println!("keep it in crates/sim/corpus.txt: {seed} |{more} --length {length} | what is wrong | open");
    }
    ExitCode::FAILURE
}

/// The last line of a run, or the reason of its failure. `fatal`: events that were noted after the last check, in the
/// last steps.
fn verdict(
    outcome: std::io::Result<std::thread::Result<Result<String>>>,
    fatal: &[String],
) -> std::result::Result<String, String> {
    match outcome {
        Ok(Ok(Ok(line))) if fatal.is_empty() => Ok(line),
        Ok(Ok(Ok(_))) => Err(format!("R11: in the last steps: {}", fatal.join("; "))),
        Ok(Ok(Err(error))) => Err(format!("{error:#}")),
        Ok(Err(_)) => Err(format!("the simulation itself panicked: {fatal:?}")),
        Err(error) => Err(format!("no thread: {error}")),
    }
}

/// Writes which probes this seed has reached. A run with a bug put in is not asked: its states prove nothing.
fn note_reached(seed: u64, length: u64, scene: Option<Scene>, more: &str) {
    let (kind, by) = match scene {
        Some(scene) => ("scenes".to_owned(), format!("--seed {seed} --scene {}", scene.word())),
        None => (format!("seeds{}", more.replace(" --", "-")), format!("--seed {seed} --length {length}{more}")),
    };
    if let Err(error) = holdfast_reached::write(&kind, &by) {
        eprintln!("seed {seed}: the counts of probes were not written: {error}");
    }
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
    let mut world = World::new(args.seed, &dir, args.verbose, args.broken, args.modes, args.shape())?;
    world.note(format!("shape: {}", world.shape));
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

/// Results of many seeds.
#[derive(Default)]
struct Found {
    done: u64,
    failed: Vec<u64>,
    sum: Sum,
}

impl Found {
    fn note(&mut self, run: &Ended<u64>, quiet: bool) {
        self.done += 1;
        if run.hung || !run.status.success() {
            // Remains of a run that did not end by itself, if any.
            drop(std::fs::remove_dir_all(directory(run.number)));
        }
        let text = &run.text;
        if run.status.success() {
            self.sum.add(text.rsplit(": ").next().unwrap_or_default());
            if !quiet {
                print!("{text}");
            }
        } else {
            println!("{text}seed {}: {}{}", run.what, run.status, if run.hung { ", it hung" } else { "" });
            self.failed.push(run.what);
        }
    }
}

/// The arguments of one seed's process.
fn arguments(args: &ManyArgs, seed: u64) -> Vec<String> {
    let mut words = vec!["one".to_string(), format!("--seed={seed}"), format!("--length={}", args.length)];
    words.extend(args.broken.map(|broken| format!("--broken={}", broken.word())));
    words.extend(args.modes.words().split_whitespace().map(str::to_string));
    words
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
    let (mut next, mut found) = (args.seed, Found::default());
    let mut guide = if args.guided { Guide::read() } else { Guide::default() };
    let mut processes = Processes::new(args.jobs, SEED_LIMIT);
    loop {
        let late =
            bound.is_some_and(|bound| began.elapsed() >= bound) || (!found.failed.is_empty() && !args.keep_going);
        while !late
            && processes.has_room()
            && let Some(seed) = guide.next(&mut next, last)
        {
            processes.start(seed, &arguments(args, seed))?;
        }
        if processes.is_empty() {
            break;
        }
        processes.ended()?.iter().for_each(|run| found.note(run, args.quiet));
        std::thread::sleep(Duration::from_millis(20));
    }
    guide.said().iter().for_each(|said| println!("{said}"));
    println!("in all: {}", found.sum.line());
    // Of seeds that did not fail: each was healed, continued, and read everything back.
    println!("survived: {}", found.sum.survived());
    println!(
        "{} seeds ({} to {}) of {} s of faults, {} failed, {:.0} s, {:.0} s of processors",
        found.done,
        args.seed,
        next.saturating_sub(1),
        args.length,
        found.failed.len(),
        began.elapsed().as_secs_f64(),
        processors()
    );
    Ok(found.failed)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fatal_of_the_last_steps_fails_the_run() {
        let fine = || Ok(Ok(Ok("all read back".to_string())));
        assert_eq!(verdict(fine(), &[]), Ok("all read back".to_string()));
        let found = verdict(fine(), &["gateway 2: panic".to_string()]);
        assert_eq!(found, Err("R11: in the last steps: gateway 2: panic".to_string()));
    }

    #[test]
    fn a_shape_is_not_drawn_for_a_scene_a_known_bug_or_by_wish() {
        use clap::Parser as _;
        #[derive(clap::Parser)]
        struct Words {
            #[command(flatten)]
            one: OneArgs,
        }
        let differs = (1..100).find(|seed| Shape::of(*seed) != Shape::USUAL).expect("a third is usual");
        let seed = format!("--seed={differs}");
        let shape = |more: &[&str]| Words::parse_from([&["one", &seed], more].concat()).one.shape();
        assert_eq!(shape(&[]), Shape::of(differs));
        for more in [&["--usual"][..], &["--scene=two-leave"], &["--broken=syncs-ignored"]] {
            assert_eq!(shape(more), Shape::USUAL, "{more:?}");
        }
    }
}
