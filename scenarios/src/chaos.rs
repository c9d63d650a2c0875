//! `cargo xtask chaos`: three real gateways in network namespaces, clients that read and write registers on a volume,
//! and faults from a seed. Porcupine checks the history for linearizability. docs/proof/chaos.md explains the output.
//!
//! ```text
//!   chaos (the machine's namespace)  builds holdfast and the judge, checks whether namespaces can be made
//!     └─ unshare --net ─ chaos again  bridge, gateways, object store, clients, nemesis ─▶ history.jsonl ─▶ judge
//!                                                                                     └▶ summary.json
//! ```

mod access;
mod client;
mod history;
mod nemesis;
pub mod seed;
mod siege;
mod verdict;

use crate::binary::{Build, fresh_dir, profile_of, root};
use crate::cmd::missing;
use crate::cmd::{Cmd, cmd};
use crate::process::{SetOnDrop, wait_until};
use crate::proof::{self, Run};
use crate::s3::S3;
use crate::say::{Count, held, line, note, step};
use crate::setup::find_go;
use crate::{gateways, net, room};
use access::SET;
use anyhow::{Context, Result};
use history::History;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use verdict::{Check, Figures};

/// Small limits and frequent checkpoints, so that a short run also exercises the store, purging and snapshots.
const SMALL: &str = r#"[journal]
bound = "1GiB"
reserve = "128MiB"
file = "16MiB"
tail = "16MiB"
[cache]
memory = "32MiB"
disk = "0B"
[upload]
interval_ms = 3000
bytes = "16MiB"
whole_root = "0B"
"#;

/// Options on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Seed of the schedule of faults; default: a new one, which is printed
    #[arg(long)]
    seed: Option<u64>,
    /// Seconds of faults
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// Print the schedule of the seed and exit
    #[arg(long)]
    plan: bool,
    /// Then make two short runs, each with a deliberate error that the judge must find, as `cargo xtask test` does
    #[arg(long, conflicts_with_all = ["plan", "lie"])]
    with_lies: bool,
    /// Make a deliberate error in the test itself, which the judge must find
    #[arg(long, value_enum)]
    lie: Option<client::Lie>,
    #[command(flatten)]
    build: Build,
    /// Set by the chore itself when it runs in its own namespace: the judge program
    #[arg(long, hide = true)]
    judge: Option<PathBuf>,
    /// Set by the chore itself: the folder for all files
    #[arg(long, hide = true)]
    dir: Option<PathBuf>,
}

/// The result of the inner run.
#[derive(Debug, Serialize, Deserialize)]
struct Summary {
    seed: u64,
    lie: Option<String>,
    figures: Figures,
    /// Longest time until a write succeeded, in milliseconds: during a fault, and after its healing.
    slowest_during_ms: u64,
    slowest_after_ms: u64,
    checks: Vec<Check>,
}

/// Runs the chore. Fails when a check failed, or the test could not run.
pub fn chore(args: &Args) -> Result<()> {
    if let Some(judge) = &args.judge {
        return inside(args, judge);
    }
    if args.plan {
        return plan(args);
    }
    let mut count = Count::default();
    if args.with_lies {
        with_lies(args, &mut count)?;
    } else {
        run(args, Cmd::show, &mut count)?;
    }
    count.close()
}

/// Seconds of faults in a run with a lie.
const LIE_SECONDS: u64 = 15;

/// The requested run, which must pass; then two short ones with a lie each, which must be found. These two run at the
/// same time, each in a namespace of its own: they judge no time.
fn with_lies(args: &Args, count: &mut Count) -> Result<()> {
    run(&Args { with_lies: false, ..args.clone() }, Cmd::show, count)?;
    let both = std::thread::scope(|scope| {
        let running = [client::Lie::StaleRead, client::Lie::LostWrite].map(|lie| {
            let args = Args { seconds: LIE_SECONDS, lie: Some(lie), with_lies: false, ..args.clone() };
            scope.spawn(move || {
                held(|| {
                    let mut count = Count::default();
                    run(&args, said_at_the_end, &mut count).map(|()| count)
                })
            })
        });
        running.map(|thread| thread.join())
    });
    for joined in both {
        let (ran, said) = joined.map_err(|_| anyhow::anyhow!("the thread of a run with a lie panicked"))?;
        said.iter().for_each(line);
        count.add(ran?);
    }
    Ok(())
}

/// Runs a command and prints its output when it has ended.
fn said_at_the_end(command: Cmd) -> Result<()> {
    command.out().map(|said| said.lines().for_each(line))
}

fn plan(args: &Args) -> Result<()> {
    let seed = args.seed.context("--plan needs --seed")?;
    let mut at_ms = 0;
    for step in nemesis::Schedule::new(seed, missing(&["versitygw"]).is_none()) {
        at_ms += step.calm_ms + step.hold_ms;
        if at_ms > args.seconds * 1000 {
            break;
        }
        line(step.to_string());
    }
    Ok(())
}

/// One run. `shows` runs the program of the inner run, and prints what that says.
fn run(args: &Args, shows: fn(Cmd) -> Result<()>, count: &mut Count) -> Result<()> {
    let seed = args.seed.map_or_else(seed::of_run, Ok)?;
    let lie = args.lie.map(|l| format!("{l:?}"));
    let name = lie.as_ref().map_or_else(|| "chaos".to_owned(), |l| format!("chaos --lie {l}"));
    if let Some(why) = missing(net::NEEDS).or_else(no_go).or_else(net::why_not) {
        count.skip(&name, &why);
        return Ok(());
    }
    let bin = args.build.binary("dev")?;
    let dir = fresh_dir(&format!("chaos/{seed}{}", lie.as_deref().unwrap_or_default()))?;
    step(format!(
        "{name}: seed {seed}, {} s (cargo xtask chaos --seed {seed} --seconds {})",
        args.seconds, args.seconds
    ));
    let judge = match build_judge(&dir) {
        Ok(judge) => judge,
        // Go is installed, so a judge that does not build is a failure and no reason to skip.
        Err(e) => {
            count.check(&name, Err(e));
            return Ok(());
        }
    };
    let mut inner = cmd("unshare").args(["--net", "--"]).arg(std::env::current_exe()?).arg("chaos");
    inner = inner.args(["--seed", &seed.to_string(), "--seconds", &args.seconds.to_string()]);
    inner = inner.arg("--bin").arg(&bin).arg("--judge").arg(&judge).arg("--dir").arg(&dir);
    if let Some(lie) = args.lie {
        use clap::ValueEnum;
        let value = lie.to_possible_value().context("a lie without a name")?;
        inner = inner.args(["--lie", value.get_name()]);
    }
    let failed_before = count.failed;
    let ended = shows(inner);
    let summary = std::fs::read(dir.join("summary.json"))
        .context("no summary")
        .and_then(|text| serde_json::from_slice::<Summary>(&text).context("summary.json"));
    match (ended, summary) {
        (Ok(()), Ok(summary)) => report(&name, &summary, profile_of(&bin), count),
        (Err(e), _) | (_, Err(e)) => count.check(&name, Err(e).with_context(|| format!("see {}", dir.display()))),
    }
    let wrong = crate::ends::fine(&crate::ends::look_through(&dir));
    count.check(&format!("{name}: no process panicked, aborted or exited unexpectedly (seed {seed})"), wrong);
    // Keep all files of a failed run as evidence.
    if count.failed == failed_before
        && let Err(e) = room::thin_out(&dir)
    {
        note(format!("cannot free disk space: {e:#}"));
    }
    Ok(())
}

fn report(name: &str, summary: &Summary, profile: String, count: &mut Count) {
    let f = &summary.figures;
    note(format!(
        "{} reads, {} writes, {} unknown, {} refused; {} contended; {} registers; {} grants; {} faults of {} kinds",
        f.reads_ok, f.writes_ok, f.unknown, f.refused, f.contended, f.registers, f.grants, f.faults, f.kinds_of_faults
    ));
    note(format!(
        "longest time until a write succeeded: {} ms during a fault, {} ms after one",
        summary.slowest_during_ms, summary.slowest_after_ms
    ));
    if summary.lie.is_none() {
        let good = summary.checks.iter().all(|check| check.failed.is_none());
        let mut run = Run::now("chaos", f.seconds, if good { proof::Verdict::Held } else { proof::Verdict::Broken });
        (run.seed, run.faults, run.profile) = (Some(summary.seed), f.faults, profile);
        run.did("read", f.reads_ok).did("write", f.writes_ok).did("grant", f.grants).note();
    }
    for check in &summary.checks {
        let result = check.failed.as_ref().map_or(Ok(()), |why| Err(anyhow::anyhow!("{why}")));
        count.check(&format!("{name}: {} (seed {})", check.name, summary.seed), result);
    }
}

fn no_go() -> Option<String> {
    find_go().is_none().then(|| "no Go to build the judge (cargo xtask setup)".to_owned())
}

/// Builds the judge and runs its tests: hand-made good and bad histories that it must judge correctly.
fn build_judge(dir: &Path) -> Result<PathBuf> {
    let judge = dir.join("porcupine");
    let program = find_go().context("no Go to build the judge")?;
    let go = || cmd(&program).dir(root().join("scenarios/porcupine")).env("GOFLAGS", "-mod=mod -buildvcs=false");
    go().args(["build", "-o"]).arg(&judge).arg(".").run().context("the judge does not build")?;
    go().args(["test", "./..."]).run().context("the judge does not pass its own tests")?;
    Ok(judge)
}

/// The part that runs in its own namespace.
fn inside(args: &Args, judge: &Path) -> Result<()> {
    let (seed, dir) = (args.seed.context("no seed")?, args.dir.clone().context("no folder")?);
    let bin = args.build.bin.clone().context("no program")?;
    let net = net::Net::make(gateways::GATEWAYS, &dir.join("net.log"))?;
    let mut store = match missing(&["versitygw"]) {
        None => Some(S3::start_on(&dir, net::HUB)?),
        Some(why) => {
            note(format!("the store is a folder, so it is never stopped: {why}"));
            None
        }
    };
    let (url, env) = match &store {
        Some(s3) => (s3.url(), s3.env()),
        None => (format!("file://{}/store", dir.display()), Vec::new()),
    };
    let windows = 16 + args.seconds.div_ceil(client::WINDOW_S) * 4;
    let size = windows * client::WINDOW_BYTES;
    let own = Default::default();
    let plan = gateways::Plan { set: SET, size, store: &url, env, settings: SMALL, own, http: false, secured: None };
    let mut cluster = gateways::Gateways::start(&net, &bin, &dir, plan)?;
    let history = History::default();
    let access = access::Access::new(cluster.door());
    let with_store = store.is_some();
    let siege = siege::Siege {
        net: &net,
        gateways: &mut cluster,
        store: store.take(),
        access: &access,
        history: &history,
        owners: 0,
    };
    let (steps, mut checks) = besiege(args, seed, siege)?;
    cluster.stop()?;

    let lasted = Duration::from_nanos(history.now());
    let holds = access.holds();
    let (ops, broken) = history.close();
    let file = dir.join("history.jsonl");
    history::save(&ops, &format!("seed {seed}, {} s, store: {with_store}", args.seconds), &file)?;
    let limit = Duration::from_secs(60 + args.seconds / 2);
    let judged = verdict::linearizable(judge, &file, &dir.join("pictures"), limit);
    if let Ok(said) = &judged {
        note(said);
    }
    let figures = Figures::of(&ops, &holds, &steps, lasted);
    let slowest = |of: &dyn Fn(&siege::Outcome) -> Option<Duration>| {
        let most = steps.iter().filter_map(of).max().unwrap_or_default();
        u64::try_from(most.as_millis()).unwrap_or(u64::MAX)
    };
    if args.lie.is_some() {
        // Such a run can show nothing else.
        let found = match judged {
            Err(e) if format!("{e}").contains("not linearizable") => Ok(()),
            Err(e) => Err(e),
            Ok(said) => Err(anyhow::anyhow!("the judge found nothing: {said}")),
        };
        checks = vec![Check::of("the lie is found", found)];
    } else {
        checks.push(Check::of("linearizable, everything read back (R1, R3)", judged.map(drop)));
        checks.push(Check::of("one writer (R2)", verdict::one_writer(&ops, &holds)));
        let whole = broken.first().map_or(Ok(()), |b| Err(anyhow::anyhow!("{} times, first: {b}", broken.len())));
        checks.push(Check::of("nothing torn or misplaced (R5)", whole));
        checks.push(Check::of("enough happened", figures.enough()));
    }
    let summary = Summary {
        seed,
        lie: args.lie.map(|l| format!("{l:?}")),
        figures,
        slowest_during_ms: slowest(&|s| s.during),
        slowest_after_ms: slowest(&|s| Some(s.after)),
        checks,
    };
    std::fs::write(dir.join("summary.json"), serde_json::to_vec_pretty(&summary)?)?;
    Ok(())
}

/// Runs clients and faults at the same time, then heals everything and reads all registers back.
fn besiege(args: &Args, seed: u64, mut siege: siege::Siege<'_>) -> Result<(Vec<siege::Outcome>, Vec<Check>)> {
    let (history, access) = (siege.history, siege.access);
    let stop = AtomicBool::new(false);
    let work = client::Work { seed, history, access, stop: &stop, lie: args.lie };
    let (mut steps, mut stuck) = (Vec::new(), Vec::new());
    let ended = std::thread::scope(|scope| {
        let _stops = SetOnDrop(&stop);
        let work = &work;
        let threads: Vec<_> = (0..client::CLIENTS).map(|n| scope.spawn(move || client::run(work, n))).collect();
        scope.spawn(|| {
            while !work.stop.load(Ordering::Relaxed) {
                access.keep(history);
                wait_until(Duration::from_millis(100), || work.stop.load(Ordering::Relaxed));
            }
        });
        let ended = (|| {
            let up = wait_until(siege::PROGRESS_LIMIT, || history.progressed_since(1));
            anyhow::ensure!(up, "no client could write before the first fault");
            for step in nemesis::Schedule::new(seed, siege.store.is_some()) {
                if history.now() / 1_000_000_000 >= args.seconds {
                    break;
                }
                let at = history.now() / 1_000_000;
                match siege.step(&step) {
                    Ok(outcome) => {
                        note(shown(&step, &outcome, at));
                        steps.push(outcome);
                    }
                    Err(e) => {
                        note(format!("{step}: {e:#}"));
                        stuck.push(format!("{step}, at {at} ms: {e:#}"));
                    }
                }
            }
            siege.heal()?;
            siege.gateways.must_run()
        })();
        stop.store(true, Ordering::Relaxed);
        let panicked = threads.into_iter().filter_map(|t| t.join().err()).count();
        anyhow::ensure!(panicked == 0, "{panicked} clients panicked");
        ended
    });
    ended?;
    let available = stuck.first().map_or(Ok(()), |s| Err(anyhow::anyhow!("{} times, first: {s}", stuck.len())));
    let mut checks = vec![Check::of("the majority side makes progress", available)];
    let used = (0..=client::window_at(history.now())).flat_map(client::registers);
    checks.push(Check::of("everything can be read back", client::read_back(&work, used)));
    Ok((steps, checks))
}

fn shown(step: &nemesis::Step, outcome: &siege::Outcome, at_ms: u64) -> String {
    let ms = |d: Duration| format!("{:.0} ms", d.as_secs_f64() * 1e3);
    let during = outcome.during.map_or(String::new(), |d| format!("a write after {}, ", ms(d)));
    let serving = gateways::name(outcome.serving);
    format!("{:6.1} s  {step}, {serving} served; {during}healed: {}", at_ms as f64 / 1e3, ms(outcome.after))
}
