//! End-to-end scenarios: real processes, real clients, real kills. Each prints `ok`, `FAILED` or `skipped` with its name.

mod agent;
mod agent_orders;
mod agent_three;
mod attach;
mod attach_postgresql;
mod blocks;
mod clones;
mod cold;
mod damaged;
mod data_keys;
mod diff;
mod etcd;
mod failover;
mod faults;
mod fills;
mod flush;
mod hedges;
mod idle;
mod images;
mod keys;
mod lagging;
mod list;
mod loaded;
mod members;
mod memory;
mod moves;
mod outage;
mod owners;
mod pair;
mod paused;
mod power;
mod recover;
mod recover_postgresql;
mod rollback;
mod rolling;
mod rotten;
mod scrub;
mod set_delete;
mod space;
mod standby;
mod stores;
mod stores_change;
mod storm;
mod tls;
mod tools;
mod two_sites;
mod unreadable;
mod verified;
mod volumes;
mod waits;
mod wan;
mod wiped;
mod witness;

use crate::binary::{Build, root};
use crate::cluster::{Cluster, Options};
use crate::proof::{Run, Verdict};
use crate::room;
use crate::say::{Count, held, line, note, step};
use crate::setup::{self, For};
use crate::stats::Processors;
use crate::times::Times;
use crate::verify::{missing, scenario_dir};
use anyhow::{Context, Result};
use list::SCENARIOS;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// What a person can turn.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Scenarios to run; all of them if none is named
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// The long form: two minutes without S3, more rounds
    #[arg(long)]
    long: bool,
    /// A program of an older build, for `rolling-upgrade`
    #[arg(long, env = "HOLDFAST_OLDER_BIN", value_name = "PATH")]
    older_bin: Option<PathBuf>,
    #[command(flatten)]
    pub build: Build,
}

/// What a scenario is given.
struct Lab {
    bin: PathBuf,
    dir: PathBuf,
    long: bool,
    /// A program of an older build, where one was given.
    older: Option<PathBuf>,
}

/// A named scenario.
struct Scenario {
    name: &'static str,
    /// What it shows, in one line.
    shows: &'static str,
    needs: &'static [&'static str],
    run: fn(&Lab) -> Result<()>,
}

/// The chore: set up, run, count.
///
/// # Errors
/// When a scenario failed or is not known.
pub fn chore(args: &Args) -> Result<()> {
    setup::setup(For::Tests)?;
    let mut times = Times::begin();
    let begun = Instant::now();
    let count = run(args, &mut times)?;
    times.say();
    noted(args, count, begun.elapsed()).note();
    count.close()
}

/// This run, for the page on what was run.
fn noted(args: &Args, count: Count, took: Duration) -> Run {
    let verdict = match count {
        Count { failed: 1.., .. } => Verdict::Broken,
        Count { passed: 0, .. } => Verdict::Unknown,
        Count { .. } => Verdict::Held,
    };
    let long = if args.long { "--long" } else { "" };
    let under = std::iter::once(long).filter(|long| !long.is_empty()).chain(args.names.iter().map(String::as_str));
    let mut run = Run::now("scenarios", took.as_secs(), verdict).did("scenarios", count.passed);
    run.under = under.collect::<Vec<_>>().join(" ");
    run
}

/// Runs the scenarios asked for, and notes how long each took.
///
/// # Errors
/// When `holdfast` does not build, or a name is not known.
pub fn run(args: &Args, times: &mut Times) -> Result<Count> {
    for name in &args.names {
        let all: Vec<&str> = SCENARIOS.iter().map(|s| s.name).collect();
        anyhow::ensure!(all.contains(&name.as_str()), "no scenario {name:?}; there are: {}", all.join(", "));
    }
    let bin = args.build.binary("dev")?;
    let older = args.older_bin.as_ref().map(|bin| bin.canonicalize().with_context(|| bin.display().to_string()));
    let older = older.transpose()?;
    step("End-to-end scenarios");
    let mut count = Count::default();
    let chosen = SCENARIOS.iter().filter(|s| args.names.is_empty() || args.names.iter().any(|n| n == s.name));
    let chosen: Vec<&Scenario> = chosen.collect();
    let mut done = Vec::new();
    for &scenario in &chosen {
        if done.contains(&scenario.name) {
            continue;
        }
        if let Some(why) = lacking(scenario.needs, args) {
            count.skip(scenario.name, &why);
            continue;
        }
        let beside = beside(scenario.name, &chosen).filter(|other| lacking(other.needs, args).is_none());
        let play = |scenario: &Scenario| one(scenario, &bin, older.as_deref(), args.long);
        let (ran, other) = std::thread::scope(|scope| {
            let other = beside.map(|other| scope.spawn(move || held(|| play(other))));
            (play(scenario), other.map(|other| other.join()))
        });
        judge(scenario, ran?, args, &mut count, times);
        if let (Some(scenario), Some(other)) = (beside, other) {
            let (ran, said) =
                other.map_err(|_| anyhow::anyhow!("the thread of scenario {} panicked", scenario.name))?;
            said.iter().for_each(line);
            judge(scenario, ran?, args, &mut count, times);
            done.push(scenario.name);
        }
    }
    Ok(count)
}

/// Scenarios of which the second runs beside the first. Each has a folder, ports and servers of its own, and neither has anything else of the machine: no device, mount or
/// network namespace. And each mostly waits: the first for stores that are silent, and for a former life to have noticed its end; the second for half a minute in which nothing is
/// to happen, and it looks again where an election came into that. Neither judges how long an answer takes.
const BESIDE: [(&str, &str); 1] = [("stores-lost", "idle")];

/// What of these runs beside the one of that name.
fn beside<'a>(name: &str, chosen: &[&'a Scenario]) -> Option<&'a Scenario> {
    let (_, other) = BESIDE.iter().find(|(first, _)| *first == name)?;
    chosen.iter().copied().find(|scenario| scenario.name == *other)
}

/// What a scenario came to.
struct Ran {
    result: Result<()>,
    took: Duration,
    dir: PathBuf,
}

fn one(scenario: &Scenario, bin: &Path, older: Option<&Path>, long: bool) -> Result<Ran> {
    step(format!("{}: {}", scenario.name, scenario.shows));
    let (begun, before) = (Instant::now(), Processors::now());
    let (bin, dir) = (bin.to_path_buf(), scenario_dir(scenario.name)?);
    let lab = Lab { bin, dir, long, older: older.map(Path::to_path_buf) };
    let result = (scenario.run)(&lab).with_context(|| format!("logs in {}", lab.dir.display()));
    let took = begun.elapsed();
    // Of one that leaves them idle it can be asked whether another could run beside it.
    let busy = Processors::now().percent_since(before);
    note(format!("{:.0} s, the processors worked {busy} % of it", took.as_secs_f64()));
    Ok(Ran { result, took, dir: lab.dir })
}

fn judge(scenario: &Scenario, ran: Ran, args: &Args, count: &mut Count, times: &mut Times) {
    times.single(scenario.name, ran.took);
    // What failed on its own is there to be looked into; in a run of everything it would take the room of those that follow.
    let looked_into = ran.result.is_err() && !args.names.is_empty();
    count.check(scenario.name, ran.result);
    if !looked_into && let Err(e) = room::thin_out(&ran.dir) {
        note(format!("not tidied up: {e:#}"));
    }
    room::say_free(root());
}

/// Among what a scenario needs: not a program, but network namespaces with bridge, links and packet rules.
const NAMESPACES: &str = "network namespaces";

/// The same: a program of an older build.
const OLDER: &str = "an older build";

fn lacking(needs: &[&'static str], args: &Args) -> Option<String> {
    let programs: Vec<&str> = needs.iter().copied().filter(|need| ![NAMESPACES, OLDER].contains(need)).collect();
    let spaces = || needs.contains(&NAMESPACES).then(crate::net::why_not).flatten();
    let older = || {
        let none = needs.contains(&OLDER) && args.older_bin.is_none();
        none.then(|| "no program of an older build was given (--older-bin PATH)".to_owned())
    };
    missing(&programs).or_else(spaces).or_else(older)
}

/// How long a takeover may last before a scenario calls it failed.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(60);

impl Lab {
    /// Three gateways on a fresh folder with the embedded store.
    fn cluster(&self, size: &str) -> Result<Cluster> {
        self.cluster_with(size, None, Vec::new())
    }

    /// On a store, with no checkpoint but those that are asked for.
    fn cluster_quiet(&self, size: &str, store: String, env: Vec<(String, String)>) -> Result<Cluster> {
        self.cluster_as(size, Some(store), &["upload.interval_ms=3600000", "upload.bytes=1GiB"], env)
    }

    fn cluster_with(&self, size: &str, store: Option<String>, env: Vec<(String, String)>) -> Result<Cluster> {
        self.cluster_as(size, store, &[], env)
    }

    /// With settings of every gateway.
    fn cluster_as(
        &self,
        size: &str,
        store: Option<String>,
        settings: &[&str],
        env: Vec<(String, String)>,
    ) -> Result<Cluster> {
        let (bin, dir) = (self.bin.clone(), self.dir.join("cluster"));
        let settings = settings.iter().copied().map(String::from).collect();
        Cluster::start(Options { bin, dir, gateways: 3, store, size: size.into(), settings, env })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(name: &str) -> &'static Scenario {
        SCENARIOS.iter().find(|scenario| scenario.name == name).expect(name)
    }

    #[test]
    fn what_runs_beside_another_is_chosen_comes_later_and_has_none_beside_it() {
        let all: Vec<&Scenario> = SCENARIOS.iter().collect();
        let at = |name: &str| all.iter().position(|scenario| scenario.name == name).expect(name);
        for (first, second) in BESIDE {
            assert_eq!(beside(first, &all).map(|other| other.name), Some(second));
            assert!(beside(first, &[named(first)]).is_none(), "{second} was not chosen");
            assert!(at(first) < at(second), "{second} would run twice");
            assert!(beside(second, &all).is_none(), "{second} is run by itself");
        }
    }

    #[test]
    fn a_run_is_noted_by_what_it_came_to() {
        let args = |names: &[&str], long| Args {
            names: names.iter().copied().map(String::from).collect(),
            long,
            older_bin: None,
            build: Build { bin: None, profile: None },
        };
        let took = Duration::from_secs(7);
        let run = noted(&args(&["idle", "keys"], true), Count { passed: 2, failed: 0, skipped: 0 }, took);
        assert_eq!((run.under.as_str(), run.seconds, run.verdict), ("--long idle keys", 7, Verdict::Held));
        assert_eq!(run.did, std::collections::BTreeMap::from([("scenarios".into(), 2)]));
        for (passed, failed, verdict) in [(1, 1, Verdict::Broken), (0, 0, Verdict::Unknown)] {
            let run = noted(&args(&[], false), Count { passed, failed, skipped: 1 }, took);
            assert_eq!((run.under.as_str(), run.verdict), ("", verdict));
        }
    }

    #[test]
    fn scenarios_that_run_at_the_same_time_share_nothing_of_the_machine() {
        for scenario in BESIDE.iter().flat_map(|(first, second)| [named(first), named(second)]) {
            // What mounts, makes devices or namespaces names the programs that do.
            assert_eq!(scenario.needs, ["versitygw"], "{}", scenario.name);
        }
    }
}
