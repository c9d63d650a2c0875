//! Histories of one set against a flat model: writes, trims, snapshots, rollbacks, resizes, collections and deletions,
//! while gateways end or are cut off and the store has faults. `docs/proof/histories.md` lists what is real and what is
//! not.
//!
//! ```text
//!   world: a step from the seed ─▶ device, admin commands ─▶ gateway: sequencer, reader, uploader, collector, sweeps, deletion, head ─▶ store
//!                                                              │ submit                                        in memory, with faults
//!                                          journal: one order ◀┘──▶ SetHost::apply ─▶ model: the volumes as flat lists
//! ```
//! HISTORY-H1  Every read equals the model: of the volumes now, of each snapshot as of its begin, and, at the end, of
//!     the state that a recovery would find. A recovery brings back every existing snapshot with the same content.
//! HISTORY-H2  At each step everything named by the state or the head is in the store; at rest nothing else is. For a
//!     clone this includes what its origin retains for it; a clone's content begins as the snapshot's and is its own
//!     afterwards.
//! HISTORY-H3  A seed decides everything, so a failing one can be repeated. State of the thread or process (tokio's
//!     choices) depends on the part of `PART` seeds that it is in: to repeat a seed, the earlier ones of its part run
//!     first.
//! HISTORY-H4  Images of all volumes as of one snapshot, kept by name, become those of any other one by the ranges of
//!     their difference (`diffs`).

mod clones;
mod diffs;
mod gateway;
mod journal;
mod keys;
mod model;
mod rest;
mod roots;
mod shape;
mod store;
mod stores;
mod sums;
mod units;
mod world;

use crate::libc;
use crate::processes::{Ended, Processes, this_program};
use crate::sync::lock;
use anyhow::{Context, Result, bail};
use holdfast_log::NodeLog;
use holdfast_raft::Clocks;
use holdfast_types::MonoTime;
use shape::Shape;
use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::Waker;
use std::time::{Duration, Instant};
use sums::Sums;
use units::{STEP, STEPS};
use world::World;

/// Seeds that one process runs, one after the other (HISTORY-H3).
const PART: u64 = 100;
/// Nanoseconds that the clock advances while everything waits.
const TICK: u64 = 5_000_000;
/// Hours of its own clock after which a history hangs.
const HOURS: u64 = 2;
/// Real time after which a part hangs.
const PART_LIMIT: Duration = Duration::from_secs(300);

/// The running seed, for panic messages.
static SEED: AtomicU64 = AtomicU64::new(0);
static SEVERAL: AtomicBool = AtomicBool::new(false);
static USUAL: AtomicBool = AtomicBool::new(false);

/// Many histories.
#[derive(Clone, Debug, clap::Args)]
pub struct HistoriesArgs {
    /// The first seed, rounded down to a hundred
    #[arg(long, default_value_t = 0)]
    first: u64,
    /// How many
    #[arg(long, default_value_t = 10_000)]
    count: u64,
    /// Only this one, step by step
    #[arg(long)]
    seed: Option<u64>,
    /// Of that one only so many steps, and then come to rest
    #[arg(long, requires = "seed")]
    steps: Option<u64>,
    /// Processes at once
    #[arg(long, default_value_t = 1)]
    jobs: usize,
    /// In three stores, of which two must have an object
    #[arg(long)]
    several: bool,
    /// With the usual steps, sizes and faults, and not with those that the seed draws
    #[arg(long)]
    usual: bool,
}

/// A part of them, in this process.
#[derive(Clone, Debug, clap::Args)]
pub struct PartArgs {
    #[arg(long)]
    first: u64,
    #[arg(long)]
    count: u64,
    /// In three stores
    #[arg(long)]
    several: bool,
    /// With the usual steps, sizes and faults
    #[arg(long)]
    usual: bool,
    /// The last one is told step by step
    #[arg(long)]
    loud: bool,
    /// Steps of the last one
    #[arg(long)]
    steps: Option<u64>,
}

fn clocks() -> Clocks {
    let now = MonoTime(libc::monotonic());
    Clocks { boot: now.into(), monotonic: now }
}

/// Runs `history` on a clock that advances only while everything waits.
fn on_own_clock<T: Send + 'static>(history: impl Future<Output = T> + Send + 'static) -> Result<T> {
    let root: Arc<Mutex<Option<Waker>>> = Arc::default();
    let hook = root.clone();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .on_thread_park(move || {
            let now = libc::now() + TICK;
            assert!(now < HOURS * 3600 * 1_000_000_000, "the history hangs");
            libc::set_now(now);
            if let Some(root) = lock(&hook).take() {
                root.wake();
            }
        })
        .build()?;
    let mut history = runtime.spawn(history);
    let done = runtime.block_on(poll_fn(|cx| {
        let polled = Pin::new(&mut history).poll(cx);
        *lock(&root) = Some(cx.waker().clone());
        polled
    }));
    // Tasks that wait for ever end with it.
    drop(runtime);
    Ok(done?)
}

fn shape(seed: u64) -> Shape {
    if USUAL.load(Relaxed) { Shape::USUAL } else { Shape::of(seed) }
}

async fn history(seed: u64, log: NodeLog, several: bool, steps: Option<u64>, loud: bool) -> Result<Sums, String> {
    let mut world = World::new(seed, log, several, shape(seed), loud).await;
    world.say(|| format!("shape: {}", shape(seed)));
    if clones::in_history(seed) {
        return clones::history(seed, world, steps, loud).await;
    }
    let drawn = world.rng.range(STEPS.0, STEPS.1);
    let steps = steps.map_or(drawn, |steps| steps.min(drawn));
    for step in 0..steps {
        STEP.store(step, Relaxed);
        world.step().await.map_err(|e| format!("step {step} of {steps}: {e}"))?;
    }
    STEP.store(steps, Relaxed);
    world.come_to_rest().await.map_err(|e| format!("after {steps} steps: {e}"))?;
    Ok(Sums::of(world.stats, world.counts(), world.common.store.played()))
}

fn tell_failed(seed: u64, why: &str) {
    println!("seed {seed}: FAILED: {why}");
    println!("shape: {}", shape(seed));
    let modes = [(&SEVERAL, " --several"), (&USUAL, " --usual")];
    let modes: String = modes.into_iter().filter(|(on, _)| on.load(Relaxed)).map(|(_, word)| word).collect();
    println!("again, step by step: cargo run -p holdfast-sim -- histories{modes} --seed {seed}");
    println!("keep it in crates/sim/corpus.txt: {seed} | histories{modes} | what is wrong | open");
    println!("shorter, and then at rest: … --steps {}", STEP.load(Relaxed));
}

/// Runs the histories of one part; its last line is their counts.
pub fn part(args: &PartArgs) -> ExitCode {
    if std::env::var_os("RUST_LOG").is_some() {
        let filter = tracing_subscriber::EnvFilter::from_default_env();
        let log = tracing_subscriber::fmt().with_env_filter(filter).without_time().with_ansi(false);
        log.with_writer(std::io::stdout).init();
    }
    // A failed assertion in a task must not count as a finished task.
    std::panic::set_hook(Box::new(|panic| {
        tell_failed(SEED.load(Relaxed), &format!("step {}: {panic}", STEP.load(Relaxed)));
        std::process::exit(1);
    }));
    let outcome = run_part(args);
    let by = format!("histories --first {}{}", args.first, if args.several { " --several" } else { "" });
    if let Err(error) = holdfast_reached::write("histories", &by) {
        eprintln!("the counts of probes were not written: {error}");
    }
    match outcome {
        Ok(sums) => {
            println!("ok {}", sums.line());
            ExitCode::SUCCESS
        }
        Err(error) => {
            tell_failed(SEED.load(Relaxed), &format!("{error:#}"));
            ExitCode::FAILURE
        }
    }
}

fn run_part(args: &PartArgs) -> Result<Sums> {
    let log = gateway::empty_log()?;
    holdfast_raft::replace_clocks(clocks);
    holdfast_log::run_blocking_inline();
    SEVERAL.store(args.several, Relaxed);
    USUAL.store(args.usual, Relaxed);
    let mut sums = Sums::default();
    for seed in args.first..args.first + args.count {
        SEED.store(seed, Relaxed);
        let (last, log) = (seed + 1 == args.first + args.count, log.clone());
        let (loud, steps, several) = (args.loud && last, args.steps.filter(|_| last), args.several);
        libc::set_now(0);
        libc::begin(seed);
        // A thread of its own: its random state is then made from the seed.
        let thread = std::thread::Builder::new().name("history".to_string()).stack_size(16 << 20);
        let outcome = thread
            .spawn(move || on_own_clock(history(seed, log, several, steps, loud)))
            .map(std::thread::JoinHandle::join);
        libc::end();
        match outcome.context("no thread")? {
            Ok(Ok(Ok(done))) => sums.add(done),
            Ok(Ok(Err(why))) => bail!("{why}"),
            Ok(Err(error)) => return Err(error),
            Err(_) => bail!("the history itself panicked"),
        }
    }
    Ok(sums)
}

fn arguments(args: &HistoriesArgs, first: u64, count: u64) -> Vec<String> {
    let words = ["histories-part", "--first", &first.to_string(), "--count", &count.to_string()];
    let mut words = words.map(str::to_string).to_vec();
    words.extend(args.several.then(|| "--several".to_string()));
    words.extend(args.usual.then(|| "--usual".to_string()));
    words
}

/// Runs many; its last lines name the failed ones.
pub fn many(args: &HistoriesArgs) -> ExitCode {
    let outcome = match args.seed {
        Some(seed) => one(args, seed),
        None => run_many(args),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            println!("FAILED: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn one(args: &HistoriesArgs, seed: u64) -> Result<bool> {
    let first = seed - seed % PART;
    let mut words = arguments(args, first, seed + 1 - first);
    words.push("--loud".to_string());
    words.extend(args.steps.map(|steps| format!("--steps={steps}")));
    Ok(this_program(&words)?.status()?.success())
}

fn run_many(args: &HistoriesArgs) -> Result<bool> {
    // Whole parts: see HISTORY-H3.
    let first = args.first - args.first % PART;
    let (began, end) = (Instant::now(), first.saturating_add(args.count));
    let (mut next, mut sums, mut good) = (first, Sums::default(), true);
    let mut processes = Processes::new(args.jobs, PART_LIMIT);
    loop {
        while good && next < end && processes.has_room() {
            let until = (next - next % PART + PART).min(end);
            processes.start(next, &arguments(args, next, until - next))?;
            next = until;
        }
        if processes.is_empty() {
            break;
        }
        for Ended { what: first, status, hung, text, .. } in processes.ended()? {
            let line = text.lines().last().and_then(|line| line.strip_prefix("ok ")).filter(|_| status.success());
            match line.map(Sums::read) {
                Some(done) => sums.add(done),
                None => {
                    good = false;
                    println!("{text}part from seed {first} on: {status}{}", if hung { ", it hung" } else { "" });
                }
            }
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    println!("{sums}; seeds {} to {}, {:.0} s", first, next.saturating_sub(1), began.elapsed().as_secs_f64());
    Ok(good)
}
