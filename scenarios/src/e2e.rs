//! End-to-end scenarios with real processes, real clients and real kills. Each prints `ok`, `FAILED` or `skipped` with
//! its name.

mod agent;
mod agent_orders;
mod agent_three;
mod attach;
mod attach_postgresql;
mod blocks;
mod clones;
mod cold;
mod csi;
mod damaged;
mod dashboards;
mod data_keys;
mod dev_secure;
mod diff;
mod etcd;
mod failover;
mod faults;
mod fills;
mod flush;
mod follows;
mod hostile;
mod idle;
mod images;
mod keys;
mod lab;
mod lagging;
mod list;
mod loaded;
mod majors;
mod members;
mod memory;
mod moves;
mod nbd_tls;
mod nearest;
mod neighbour;
mod no_plaintext;
mod older;
mod outage;
mod owners;
mod page;
mod pair;
mod patroni;
mod paused;
mod pgbackrest;
mod place;
mod placing;
mod placing_twelve;
mod power;
mod recover;
mod recover_postgresql;
mod regions;
mod rollback;
mod rolling;
mod rotten;
mod scenario;
mod scrub;
mod service;
mod set_delete;
mod space;
mod standby;
mod stores;
mod stores_change;
mod storm;
mod timing;
mod tls;
mod to_tls;
mod tools;
mod twelve;
mod two_sites;
mod unreadable;
mod verified;
mod volumes;
mod waits;
mod wan;
mod wiped;
mod witness;

use crate::binary::{Build, fresh_dir, root};
use crate::cmd::missing;
use crate::ends;
use crate::proof::{self, Run, Verdict};
use crate::room;
use crate::say::{Count, held, line, note, step};
use crate::setup::{self, For};
use crate::stats::Processors;
use crate::times::Times;
use anyhow::{Context, Result};
use lab::{Lab, TAKEOVER_LIMIT};
use list::{IN_COMPANY, SCENARIOS};
use scenario::{NAMESPACES, OLDER, Scenario, Tier, Upto};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The tests' profile.
const PROFILE: &str = "dev";

/// Options on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Scenarios to run; default: all
    #[arg(value_name = "NAME")]
    names: Vec<String>,
    /// Run the scenarios of this tier and of the tiers before it
    #[arg(long, value_enum, value_name = "TIER", conflicts_with = "names")]
    tier: Option<Upto>,
    /// List the scenarios with their tiers and exit
    #[arg(long)]
    list: bool,
    /// Run the long form: two minutes without S3, more rounds
    #[arg(long)]
    long: bool,
    /// A `holdfast` program of an older version, for `rolling-upgrade`; default: that of the last release tag (v*)
    /// before this commit, which is built
    #[arg(long, env = "HOLDFAST_OLDER_BIN", value_name = "PATH")]
    older_bin: Option<PathBuf>,
    /// Number of sets that `placing-twelve` makes
    #[arg(long, value_name = "N", default_value_t = 24, value_parser = clap::value_parser!(u16).range(3..=1000))]
    sets: u16,
    #[command(flatten)]
    pub build: Build,
}

/// Runs the chore: set up, run scenarios, count. Fails when a scenario failed or its name is unknown.
pub fn chore(args: &Args) -> Result<()> {
    if args.list {
        table();
        return Ok(());
    }
    setup::setup(For::Tests)?;
    let mut times = Times::begin();
    let begun = Instant::now();
    let count = run(args, &mut times)?;
    noted(args, count, begun.elapsed()).note();
    count.close_after(Some(&times))
}

/// The table of scenarios and tiers.
fn table() {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    table.set_header(["NAME", "TIER", "ALONE", "WHY IN THIS TIER"]);
    for scenario in SCENARIOS {
        let tier = match scenario.tier {
            Tier::Quick(_) => "quick",
            Tier::Gate(_) => "gate",
            Tier::Long(_) => "long",
        };
        let alone = if IN_COMPANY.contains(&scenario.name) { "" } else { "yes" };
        table.add_row([scenario.name, tier, alone, scenario.tier.why()]);
    }
    line(table.to_string());
    let of = |upto| SCENARIOS.iter().filter(|scenario| scenario.tier.is_in(upto)).count();
    line(format!(
        "quick: {} scenarios (cargo xtask test --quick), gate: {} including those (cargo xtask test), all: {} (cargo xtask test --all)",
        of(Upto::Quick),
        of(Upto::Gate),
        of(Upto::All)
    ));
}

/// The record of this run for `cargo xtask proof`.
fn noted(args: &Args, count: Count, took: Duration) -> Run {
    let verdict = match count {
        Count { failed: 1.., .. } => Verdict::Broken,
        Count { passed: 0, .. } => Verdict::Unknown,
        Count { .. } => Verdict::Held,
    };
    let long = if args.long { "--long" } else { "" };
    let tier = match args.tier {
        Some(Upto::Quick) => "quick",
        Some(Upto::Gate) => "gate",
        Some(Upto::All) | None => "",
    };
    let words = [long, tier].into_iter().filter(|word| !word.is_empty());
    let under = words.chain(args.names.iter().map(String::as_str));
    let mut run = Run::now("scenarios", took.as_secs(), verdict).did("scenarios", count.passed);
    (run.under, run.profile) = (under.collect::<Vec<_>>().join(" "), args.build.tested_profile(PROFILE));
    if run.verdict == Verdict::Broken
        && let Some(first) = crate::say::failings().first()
    {
        run.note = proof::ended_at(first);
    }
    run
}

/// Runs the requested scenarios and measures each. Fails when `holdfast` does not build, or a name is unknown.
pub fn run(args: &Args, times: &mut Times) -> Result<Count> {
    for name in &args.names {
        let all: Vec<&str> = SCENARIOS.iter().map(|s| s.name).collect();
        anyhow::ensure!(all.contains(&name.as_str()), "no scenario {name:?}; there are: {}", all.join(", "));
    }
    let bin = args.build.binary(PROFILE)?;
    let older = args.older_bin.as_ref().map(|bin| bin.canonicalize().with_context(|| bin.display().to_string()));
    let mut older = older.transpose()?;
    step("End-to-end scenarios");
    let mut count = Count::default();
    let upto = args.tier.unwrap_or(Upto::All);
    let named = |s: &Scenario| args.names.is_empty() || args.names.iter().any(|n| n == s.name);
    let chosen = SCENARIOS.iter().filter(|s| s.tier.is_in(upto) && named(s));
    let mut able = Vec::new();
    for scenario in chosen {
        match ready(scenario, &mut older) {
            Ok(None) => able.push(scenario),
            Ok(Some(why)) => count.skip(scenario.name, &why),
            Err(why) => count.check(scenario.name, Err(why)),
        }
    }
    let play = |scenario: &Scenario| one(scenario, &bin, older.as_deref(), args);
    let (company, alone) = parted(able);
    two_at_a_time(&company, play, |scenario, ran| {
        judge(scenario, ran?, args, &mut count, times);
        Ok(())
    })?;
    for scenario in alone {
        judge(scenario, play(scenario)?, args, &mut count, times);
    }
    Ok(count)
}

/// Splits the scenarios into those that run two at a time and those that run alone. A single one of the first kind runs
/// alone, so that its output appears at once.
fn parted(chosen: Vec<&'static Scenario>) -> (Vec<&'static Scenario>, Vec<&'static Scenario>) {
    let (company, alone): (Vec<_>, Vec<_>) =
        chosen.into_iter().partition(|scenario| IN_COMPANY.contains(&scenario.name));
    if company.len() > 1 { (company, alone) } else { (Vec::new(), [company, alone].concat()) }
}

/// Runs two scenarios at a time, in order: the next one starts when one ends. Prints the output of each when it ends.
/// Fails with the first error that `ended` returns. Scenarios that run at that time still run to their end.
fn two_at_a_time<T: Send>(
    scenarios: &[&'static Scenario],
    play: impl Fn(&Scenario) -> T + Sync,
    mut ended: impl FnMut(&'static Scenario, T) -> Result<()>,
) -> Result<()> {
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel();
        for _ in 0..2 {
            let (tell, next, play) = (tell.clone(), &next, &play);
            scope.spawn(move || {
                while let Some(&scenario) = scenarios.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let (ran, said) = held(|| play(scenario));
                    if tell.send((scenario, ran, said)).is_err() {
                        break;
                    }
                }
            });
        }
        drop(tell);
        for (scenario, ran, said) in told {
            said.iter().for_each(line);
            ended(scenario, ran)?;
        }
        Ok(())
    })
}

/// The result of a scenario.
struct Ran {
    result: Result<()>,
    took: Duration,
    dir: PathBuf,
}

fn one(scenario: &Scenario, bin: &Path, older: Option<&Path>, args: &Args) -> Result<Ran> {
    step(format!("{}: {}", scenario.name, scenario.shows));
    let (begun, before) = (Instant::now(), Processors::now());
    let (bin, dir) = (bin.to_path_buf(), fresh_dir(&format!("e2e/{}", scenario.name))?);
    let (long, sets) = (args.long, usize::from(args.sets));
    let lab = Lab { bin, dir, long, older: older.map(Path::to_path_buf), sets };
    let result = (scenario.run)(&lab);
    // Whatever the scenario itself checks: no process may panic, abort or exit unexpectedly.
    let wrong = ends::look_through(&lab.dir);
    if result.is_err() {
        wrong.iter().for_each(note);
    }
    let result = result.and_then(|()| ends::fine(&wrong));
    let result = result.with_context(|| format!("logs in {}", lab.dir.display()));
    let took = begun.elapsed();
    // A scenario that leaves the CPUs idle might run in parallel.
    let busy = Processors::now().percent_since(before);
    note(format!("{:.0} s, processors {busy} % busy", took.as_secs_f64()));
    Ok(Ran { result, took, dir: lab.dir })
}

fn judge(scenario: &Scenario, ran: Ran, args: &Args, count: &mut Count, times: &mut Times) {
    times.single(scenario.name, ran.took);
    // The files of a failed scenario that was run alone stay for inspection. In a run of everything they would take the
    // disk space of later ones.
    let looked_into = ran.result.is_err() && !args.names.is_empty();
    count.check(scenario.name, ran.result);
    if !looked_into && let Err(e) = room::thin_out(&ran.dir) {
        note(format!("cannot free disk space: {e:#}"));
    }
    room::say_free(root());
}

/// Why a scenario cannot run here; `None` if it can. Builds the program of the last release if it needs an older one
/// and none was given.
fn ready(scenario: &Scenario, older: &mut Option<PathBuf>) -> Result<Option<String>> {
    if let Some(why) = lacking(scenario.needs) {
        return Ok(Some(why));
    }
    if scenario.needs.contains(&OLDER) && older.is_none() {
        *older = older::of_last_release(PROFILE)?;
    }
    Ok((scenario.needs.contains(&OLDER) && older.is_none()).then(|| older::NONE.to_owned()))
}

fn lacking(needs: &[&'static str]) -> Option<String> {
    let programs: Vec<&str> = needs.iter().copied().filter(|need| ![NAMESPACES, OLDER].contains(need)).collect();
    let spaces = || needs.contains(&NAMESPACES).then(crate::net::why_not).flatten();
    missing(&programs).or_else(spaces)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all() -> Vec<&'static Scenario> {
        SCENARIOS.iter().collect()
    }

    #[test]
    fn each_scenario_runs_once_alone_or_in_company() {
        let (company, alone) = parted(all());
        assert_eq!(company.iter().map(|s| s.name).collect::<Vec<_>>(), IN_COMPANY, "in the order of the list");
        assert_eq!(company.len() + alone.len(), SCENARIOS.len());
        // One of them, chosen together with others that run alone.
        let chosen = all().into_iter().filter(|s| !IN_COMPANY[1..].contains(&s.name)).collect();
        let (company, alone) = parted(chosen);
        assert!(company.is_empty(), "{} is the only scenario that runs two at a time", IN_COMPANY[0]);
        assert_eq!(alone[0].name, IN_COMPANY[0]);
        assert_eq!(alone.len(), SCENARIOS.len() + 1 - IN_COMPANY.len());
    }

    #[test]
    fn two_run_at_a_time_and_all_of_them_do() {
        let scenarios = &all()[..6];
        let (running, most, met) = (AtomicUsize::new(0), AtomicUsize::new(0), std::sync::Barrier::new(2));
        let play = |scenario: &Scenario| {
            most.fetch_max(1 + running.fetch_add(1, Ordering::SeqCst), Ordering::SeqCst);
            // A barrier: a scenario can only continue together with another one.
            met.wait();
            running.fetch_sub(1, Ordering::SeqCst);
            scenario.name
        };
        let mut names = Vec::new();
        let ended = |scenario: &Scenario, name| {
            assert_eq!(scenario.name, name);
            names.push(name);
            Ok(())
        };
        two_at_a_time(scenarios, play, ended).expect("none failed");
        names.sort_unstable();
        let mut expected: Vec<&str> = scenarios.iter().map(|s| s.name).collect();
        expected.sort_unstable();
        assert_eq!(names, expected);
        assert_eq!(most.into_inner(), 2);
        // The caller gets the error, and no scenario keeps running.
        let error = two_at_a_time(scenarios, |_| (), |_, ()| anyhow::bail!("no room")).expect_err("told");
        assert_eq!(error.to_string(), "no room");
        two_at_a_time(&[], |_| (), |_, ()| anyhow::bail!("none ran")).expect("nothing to run");
    }

    #[test]
    fn a_run_is_noted_by_what_it_came_to() {
        let args = |names: &[&str], long| Args {
            names: names.iter().copied().map(String::from).collect(),
            tier: None,
            list: false,
            long,
            older_bin: None,
            sets: 24,
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
    fn scenarios_in_company_share_nothing_of_the_machine() {
        for scenario in parted(all()).0 {
            // A scenario that mounts, or makes devices or namespaces, lists a program for that; none of these programs
            // does.
            let clients =
                ["versitygw", "nbdinfo", "nbdcopy", "nbdkit", "nbdsh", "qemu-io", "qemu-img", "qemu-nbd", "sha256sum"];
            for need in scenario.needs {
                assert!(clients.contains(need), "{} needs {need}", scenario.name);
            }
        }
    }
}
