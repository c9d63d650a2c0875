//! `mutations`: known bugs, put in on purpose one by one, and which test finds each. A bug that nothing finds is a hole to close.
//!
//! A mutation is text of the tree that is replaced by other text; a run works on a copy below `target/`, never on the tree. Each of its
//! tests must be green on the copy as it is and red with the bug in it. What was seen is kept below `target/`; `--page` adds it to
//! what is committed of earlier runs (mutations/seen.json), and writes docs/proof/mutations.md from both.

mod list;
mod page;
mod scratch;
mod seen;

use crate::binary::{cargo, root};
use crate::cmd::cmd;
use crate::process::Proc;
use crate::say::{Count, line, note, step};
use crate::verify::counted;
use anyhow::{Context, Result, bail};
use list::{MUTATIONS, Mutation, Test};
use scratch::Scratch;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long one test may run before it counts as one that did not end.
const TEST_LIMIT: Duration = Duration::from_secs(600);
/// How long a build may take: a scenario's is that of nearly everything.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Show them and their tests; run nothing
    #[arg(long)]
    list: bool,
    /// Only these
    #[arg(long, value_delimiter = ',', value_name = "NAME,..")]
    only: Vec<String>,
    /// Only a few, each with the one fixed case that must find it
    #[arg(long)]
    smoke: bool,
    /// Leave out the tests that need whole clusters
    #[arg(long)]
    no_scenarios: bool,
    /// Write docs/proof/mutations.md from what runs have seen, here and before; run nothing
    #[arg(long)]
    page: bool,
}

/// The chore.
///
/// # Errors
/// When a bug was not found, or a mutation does not fit the tree.
pub fn chore(args: &Args) -> Result<()> {
    if args.page {
        return page::write(&seen::gather()?);
    }
    let chosen = choose(args)?;
    if args.list {
        for mutation in chosen {
            line(format!("{} ({}): {}", mutation.name, mutation.rule, mutation.bug));
            mutation.tests.iter().for_each(|test| line(format!("    {}: {}", test.layer().name(), test.command())));
        }
        return Ok(());
    }
    let mut count = Count::default();
    let asked = match (args.smoke, args.no_scenarios) {
        (true, _) => Asked::First,
        (false, true) => Asked::Quick,
        (false, false) => Asked::All,
    };
    run(&chosen, asked, &mut count)?;
    count.close()
}

/// The few that `cargo xtask test` puts in: tests that cannot fail are worth nothing.
///
/// # Errors
/// When the copy of the tree cannot be made; a bug that nothing found is in the count.
pub fn smoke(count: &mut Count) -> Result<()> {
    let few: Vec<_> = MUTATIONS.iter().copied().flatten().filter(|mutation| mutation.smoke).collect();
    run(&few, Asked::First, count)
}

/// Which of a bug's tests are asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    All,
    /// Those that need no whole cluster.
    Quick,
    /// The first one, which is to find it.
    First,
}

impl Asked {
    fn of(self, mutation: &'static Mutation) -> Vec<&'static Test> {
        let fits = |test: &&Test| self != Asked::Quick || !matches!(test, Test::Scenario(_));
        let most = if self == Asked::First { 1 } else { usize::MAX };
        mutation.tests.iter().filter(fits).take(most).collect()
    }
}

fn choose(args: &Args) -> Result<Vec<&'static Mutation>> {
    let all = || MUTATIONS.iter().copied().flatten();
    for name in &args.only {
        anyhow::ensure!(all().any(|m| m.name == name), "no mutation {name:?} (cargo xtask mutations --list)");
    }
    let wanted = |m: &&Mutation| {
        (args.only.is_empty() || args.only.iter().any(|name| name == m.name)) && (!args.smoke || m.smoke)
    };
    Ok(all().filter(wanted).collect())
}

fn run(chosen: &[&'static Mutation], asked: Asked, count: &mut Count) -> Result<()> {
    let scratch = Scratch::open()?;
    step(format!("Mutations: {} of known bugs", chosen.len()));
    let mut green: BTreeMap<String, bool> = BTreeMap::new();
    for mutation in chosen {
        for test in asked.of(mutation) {
            if let std::collections::btree_map::Entry::Vacant(place) = green.entry(test.command()) {
                scratch.restore()?;
                let ran = run_test(&scratch, test)?;
                if !matches!(ran, Ran::Green { .. }) {
                    count.check(&test.command(), Err(anyhow::anyhow!("not green without any bug: {}", ran.said())));
                }
                place.insert(matches!(ran, Ran::Green { .. }));
            }
        }
    }
    for mutation in chosen {
        let tests = asked.of(mutation);
        if tests.is_empty() {
            count.skip(mutation.name, "its tests need whole clusters");
            continue;
        }
        let usable = tests.iter().filter(|test| green.get(&test.command()) == Some(&true)).copied();
        let outcome = one(&scratch, mutation, usable);
        scratch.restore()?;
        count.check(mutation.name, outcome);
    }
    Ok(())
}

/// Puts one bug in and runs its tests until one is red.
fn one<'a>(scratch: &Scratch, mutation: &Mutation, tests: impl Iterator<Item = &'a Test>) -> Result<()> {
    step(format!("{}: {}", mutation.name, mutation.bug));
    scratch.restore()?;
    scratch.apply(mutation)?;
    let mut passed_by = Vec::new();
    for test in tests {
        let begun = Instant::now();
        match run_test(scratch, test)? {
            Ran::NoBuild(why) => bail!("with the bug in it the tree does not build: {why}"),
            Ran::Green { .. } => {
                note(format!("not seen by {} ({:.0} s)", test.command(), begun.elapsed().as_secs_f64()));
                passed_by.push(test.command());
            }
            Ran::Red { seconds, how } => {
                note(format!("caught after {seconds:.1} s by {} ({}): {how}", test.command(), test.layer().name()));
                return seen::remember(mutation, Some(test), seconds, passed_by);
            }
        }
    }
    seen::remember(mutation, None, 0.0, passed_by)?;
    bail!("nothing catches it")
}

enum Ran {
    Green { passed: u64 },
    Red { seconds: f64, how: String },
    NoBuild(String),
}

impl Ran {
    fn said(&self) -> String {
        match self {
            Ran::Green { passed } => format!("{passed} passed"),
            Ran::Red { how, .. } => how.clone(),
            Ran::NoBuild(why) => why.clone(),
        }
    }
}

fn run_test(scratch: &Scratch, test: &Test) -> Result<Ran> {
    match test {
        Test::Cargo { package, target, filter, .. } => {
            let mut args = vec!["test", "--locked", "--quiet", "-p", *package];
            args.extend(*target);
            let build = scratch.spawn("build", scratch.cargo(&args).arg("--no-run"), BUILD_LIMIT)?;
            if !build.success {
                return Ok(Ran::NoBuild(build.end));
            }
            let test = scratch.cargo(&args).arg("--").args(*filter);
            let ran = scratch.spawn("test", test, TEST_LIMIT)?;
            let mut sum = Count::default();
            ran.text.lines().for_each(|line| sum.add(counted(line)));
            Ok(match (ran.success, sum.passed) {
                (true, 0) => Ran::Red { seconds: ran.seconds, how: "no test of that name ran".into() },
                (true, passed) => Ran::Green { passed },
                (false, _) => Ran::Red { seconds: ran.seconds, how: ran.end },
            })
        }
        Test::Scenario(name) => {
            let build = scratch.cargo(&["build", "--locked", "--quiet", "-p", "holdfast"]);
            let build = scratch.spawn("build", scratch.apart(build), BUILD_LIMIT)?;
            if !build.success {
                return Ok(Ran::NoBuild(build.end));
            }
            let own = std::env::current_exe().context("which program am I?")?;
            let ran = cmd(own).arg("e2e").arg("--bin").arg(scratch.program()).arg(name).dir(root());
            let ran = scratch.spawn("scenario", ran, TEST_LIMIT)?;
            Ok(if ran.success { Ran::Green { passed: 1 } } else { Ran::Red { seconds: ran.seconds, how: ran.end } })
        }
    }
}

/// A program that ran to its end, or was ended.
struct Ended {
    success: bool,
    seconds: f64,
    text: String,
    /// The last lines that say something.
    end: String,
}

impl Scratch {
    fn cargo(&self, args: &[&str]) -> crate::cmd::Cmd {
        // A failure file that one run leaves would make the next find the bug at once.
        cmd(cargo())
            .args(args)
            .dir(self.tree())
            .env("CARGO_TARGET_DIR", root().join("target"))
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
    }

    /// With a folder of its own for what is built: the program `holdfast` of the tree must not be replaced by one with a bug in it.
    fn apart(&self, command: crate::cmd::Cmd) -> crate::cmd::Cmd {
        command.env("CARGO_TARGET_DIR", root().join("target/mutations-build"))
    }

    fn program(&self) -> PathBuf {
        root().join("target/mutations-build/debug/holdfast")
    }

    fn spawn(&self, name: &str, command: crate::cmd::Cmd, limit: Duration) -> Result<Ended> {
        let log = self.log(name)?;
        let begun = Instant::now();
        let mut proc = Proc::spawn(name, command.into_command(), &log)?;
        let status = proc.wait(limit);
        let seconds = begun.elapsed().as_secs_f64();
        drop(proc);
        let text = std::fs::read_to_string(&log).unwrap_or_default();
        let telling = |line: &&str| {
            line.contains("panicked at")
                || line.starts_with("error")
                || line.starts_with("test result: F")
                || line.starts_with("FAILED")
        };
        let mut end: Vec<&str> = text.lines().filter(telling).collect();
        end.truncate(2);
        let end = match &status {
            Ok(status) if end.is_empty() => format!("{status}"),
            Ok(_) => end.join("; "),
            Err(_) => format!("did not end within {limit:?}"),
        };
        Ok(Ended { success: status.is_ok_and(|status| status.success()), seconds, text, end })
    }
}
