//! `mutations`: puts known bugs into the code one at a time, and shows which test finds each. A bug that no test finds
//! shows a missing test.
//!
//! A mutation replaces a text in the sources. A run works on a copy below `target/`, never on the tree. Each test must
//! pass on the unchanged copy and fail with the bug; a test that does not end in time counts as neither. Results are
//! kept below `target/`. `--page` adds them to the committed results of earlier runs (mutations/seen.json), and writes
//! docs/proof/mutations.md from both.
//!
//! `mutants` is the other chore of this program: changes that a tool makes, not a list of our own ([`mutants`]).

mod bug;
mod list;
mod mutants;
mod page;
mod scratch;
mod seen;

use anyhow::{Result, bail};
use bug::{Mutation, Test};
use clap::Parser;
use holdfast_chore::binary::{Build, cargo, root};
use holdfast_chore::cmd::{Cmd, cmd};
use holdfast_chore::process::Proc;
use holdfast_chore::proof::NOT_NOTED;
use holdfast_chore::say::{Count, counted, line, note, step};
use holdfast_chore::{binary, cmd, process, say, undo};
use list::MUTATIONS;
use scratch::Scratch;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Duration of the simulation's test: its number of courses (crates/sim/tests/seeds.rs), the seconds for which each
/// starts new seeds here (HOLDFAST_SIM_SECONDS), and the limit after which a seed counts as hanging
/// (crates/sim/src/runner.rs).
const SIM_COURSES: u64 = 7;
const SIM_COURSE_SECONDS: u64 = 120;
const SIM_SEED_SECONDS: u64 = 600;

/// Limit for one test. A test that has not ended by then has neither passed nor found the bug: there is no verdict.
const TEST_LIMIT: Duration = Duration::from_secs(1500);
const _: () = assert!(TEST_LIMIT.as_secs() > SIM_COURSES * SIM_COURSE_SECONDS + SIM_SEED_SECONDS);

/// Packages selected together with a test's package; none of them is built for the test. For the test's package alone,
/// cargo would choose other features of the dependencies and build them all again. These packages depend on everything.
const WHOLE: [&str; 3] = ["holdfast", "holdfast-sim", "holdfast-bench"];

/// Limit for a build: a scenario needs a build of nearly everything.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

/// Options on the command line.
#[derive(Clone, Debug, clap::Args)]
struct Args {
    /// List the bugs and their tests and exit
    #[arg(long)]
    list: bool,
    /// Run only these
    #[arg(long, value_delimiter = ',', value_name = "NAME,..")]
    only: Vec<String>,
    /// Run only a few, each with the one deterministic test that must find it, as `cargo xtask test` does
    #[arg(long)]
    smoke: bool,
    /// Skip tests that need whole clusters
    #[arg(long)]
    no_scenarios: bool,
    /// Write docs/proof/mutations.md from the results of all runs, and exit
    #[arg(long)]
    page: bool,
}

/// Known bugs and mutants
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Chore {
    /// Put known bugs into a copy of the tree, one at a time, and report which test finds each
    Mutations(Args),
    /// Let cargo-mutants change safety code, one operator or function at a time, and report which changes no test
    /// notices
    Mutants(mutants::Args),
    /// Undo the changes of an interrupted run; the program starts this itself
    #[command(name = undo::REAPER_ARG, hide = true)]
    Reaper,
}

fn main() -> ExitCode {
    holdfast_chore::status(match Chore::parse() {
        Chore::Mutations(args) => chore(&args),
        Chore::Mutants(args) => mutants::chore(&args),
        Chore::Reaper => {
            undo::reap();
            Ok(())
        }
    })
}

/// Runs the chore. Fails when a bug was not found, or a mutation does not match the sources.
fn chore(args: &Args) -> Result<()> {
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

/// Selection of a bug's tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Asked {
    All,
    /// Tests that need no whole cluster.
    Quick,
    /// The first test, which must find it.
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
                    count.check(&test.command(), Err(anyhow::anyhow!("fails without any bug: {}", ran.said())));
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

/// Puts one bug in and runs its tests until one fails.
fn one<'a>(scratch: &Scratch, mutation: &Mutation, tests: impl Iterator<Item = &'a Test>) -> Result<()> {
    step(format!("{}: {}", mutation.name, mutation.bug));
    scratch.restore()?;
    scratch.apply(mutation)?;
    let (mut passed_by, mut unended) = (Vec::new(), Vec::new());
    for test in tests {
        let begun = Instant::now();
        match run_test(scratch, test)? {
            Ran::NoBuild(why) => bail!("the tree with the bug does not build: {why}"),
            Ran::Green { .. } => {
                note(format!("not found by {} ({:.0} s)", test.command(), begun.elapsed().as_secs_f64()));
                passed_by.push(test.command());
            }
            Ran::Unended(how) => {
                note(format!("no verdict of {}: it {how}", test.command()));
                unended.push(test.command());
            }
            Ran::Red { seconds, how } => {
                note(format!("caught after {seconds:.1} s by {} ({}): {how}", test.command(), test.layer().name()));
                return seen::remember(mutation, Some(test), seconds, passed_by);
            }
        }
    }
    // Not recorded: the bug is neither found nor missed.
    if !unended.is_empty() {
        bail!(
            "no verdict: these did not end within {TEST_LIMIT:?}, and no other test finds it: {}",
            unended.join("; ")
        );
    }
    seen::remember(mutation, None, 0.0, passed_by)?;
    bail!("no test finds it")
}

enum Ran {
    Green {
        passed: u64,
    },
    Red {
        seconds: f64,
        how: String,
    },
    /// It was killed at its limit.
    Unended(String),
    NoBuild(String),
}

impl Ran {
    /// The result of a test with this many passed cases.
    fn of(ended: Ended, passed: u64) -> Self {
        let Ended { in_time, success, seconds, end, .. } = ended;
        match (success, passed) {
            _ if !in_time => Ran::Unended(end),
            (true, 0) => Ran::Red { seconds, how: "no test of that name ran".into() },
            (true, passed) => Ran::Green { passed },
            (false, _) => Ran::Red { seconds, how: end },
        }
    }

    fn said(&self) -> String {
        match self {
            Ran::Green { passed } => format!("{passed} passed"),
            Ran::Red { how, .. } => how.clone(),
            Ran::Unended(why) | Ran::NoBuild(why) => why.clone(),
        }
    }
}

fn run_test(scratch: &Scratch, test: &Test) -> Result<Ran> {
    match test {
        Test::Cargo { package, target, filter, .. } => {
            let mut args = vec!["test", "--locked", "--quiet"];
            for selected in WHOLE.into_iter().filter(|other| other != package).chain([*package]) {
                args.extend(["-p", selected]);
            }
            args.extend(*target);
            let build = scratch.spawn("build", scratch.cargo(&args).arg("--no-run"), BUILD_LIMIT)?;
            if !build.success {
                return Ok(Ran::NoBuild(build.end));
            }
            let test = scratch.cargo(&args).arg("--").args(*filter);
            let ran = scratch.spawn("test", test, TEST_LIMIT)?;
            let mut sum = Count::default();
            ran.text.lines().for_each(|line| sum.add(counted(line)));
            Ok(Ran::of(ran, sum.passed))
        }
        Test::Scenario(name) => {
            let build = scratch.cargo(&["build", "--locked", "--quiet", "-p", "holdfast"]);
            let build = scratch.spawn("build", scratch.apart(build), BUILD_LIMIT)?;
            if !build.success {
                return Ok(Ran::NoBuild(build.end));
            }
            let ran = cmd(scenarios()?)
                .arg("e2e")
                .arg("--bin")
                .arg(scratch.program())
                .arg(name)
                .dir(root())
                .env("HOLDFAST_SEED", "1")
                .env(NOT_NOTED, "1");
            let ran = scratch.spawn("scenario", ran, TEST_LIMIT)?;
            Ok(Ran::of(ran, 1))
        }
    }
}

/// The scenario program, built once from the tree and not from the copy.
fn scenarios() -> Result<&'static Path> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    if let Some(program) = PROGRAM.get() {
        return Ok(program);
    }
    let program = Build { bin: None, profile: None }.program("holdfast-scenarios", "holdfast-scenarios", "dev")?;
    Ok(PROGRAM.get_or_init(|| program))
}

/// A program that has ended or was killed.
struct Ended {
    /// By itself.
    in_time: bool,
    success: bool,
    seconds: f64,
    text: String,
    /// The last useful lines of its output.
    end: String,
}

impl Scratch {
    fn cargo(&self, args: &[&str]) -> Cmd {
        // A failure file of one run would make the next run find the bug at once.
        Cmd::of(cargo())
            .args(args)
            .dir(self.tree())
            .env("CARGO_TARGET_DIR", root().join("target"))
            // The same few crates are built again and again with a changed line or two: incremental builds pay here,
            // also on a clean checkout.
            .env("CARGO_INCREMENTAL", "1")
            .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
            // Always the same seeds, so that each run finds the same bugs.
            .env("HOLDFAST_SEED", "1")
            .env("HOLDFAST_TIER", "all")
            .env("HOLDFAST_SIM_SECONDS", SIM_COURSE_SECONDS.to_string())
    }

    /// With its own build folder: a program with a bug must not replace the tree's `holdfast`.
    fn apart(&self, command: Cmd) -> Cmd {
        command.env("CARGO_TARGET_DIR", root().join("target/mutations-build"))
    }

    fn program(&self) -> PathBuf {
        root().join("target/mutations-build/debug/holdfast")
    }

    fn spawn(&self, name: &str, command: Cmd, limit: Duration) -> Result<Ended> {
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
        let in_time = status.is_ok();
        Ok(Ended { in_time, success: status.is_ok_and(|status| status.success()), seconds, text, end })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_end_is_no_verdict() {
        let ended = |in_time, success| Ended { in_time, success, seconds: 1.0, text: String::new(), end: "end".into() };
        assert!(matches!(Ran::of(ended(true, true), 3), Ran::Green { passed: 3 }));
        assert!(matches!(Ran::of(ended(true, true), 0), Ran::Red { .. }), "nothing ran");
        assert!(matches!(Ran::of(ended(true, false), 3), Ran::Red { .. }));
        assert!(matches!(Ran::of(ended(false, false), 3), Ran::Unended(_)));
    }

    /// Otherwise it would be built and run.
    #[test]
    fn what_is_selected_as_well_has_no_test_of_that_name() {
        let folder = |package: &str| match package.strip_prefix("holdfast-") {
            Some("bench") => root().join("bench"),
            Some(room) => root().join("crates").join(room),
            None => root().join("crates").join(package),
        };
        for test in MUTATIONS.iter().copied().flatten().flat_map(|mutation| mutation.tests) {
            let Test::Cargo { package, target, .. } = test else { continue };
            let file = match *target {
                &["--test", name] => format!("tests/{name}.rs"),
                _ => "src/lib.rs".to_string(),
            };
            for other in WHOLE.into_iter().filter(|other| other != package) {
                let path = folder(other).join(&file);
                assert!(!path.exists(), "{}: {} is there as well", test.command(), path.display());
            }
        }
    }

    /// The constants of the limit agree with the simulation.
    #[test]
    fn the_simulation_ends_within_the_limit() {
        let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
        let courses = read("crates/sim/tests/seeds.rs").matches(" modes: \"").count();
        assert_eq!(u64::try_from(courses).unwrap(), SIM_COURSES);
        let seed = format!("const SEED_LIMIT: Duration = Duration::from_secs({SIM_SEED_SECONDS});");
        assert!(read("crates/sim/src/runner.rs").contains(&seed), "expected {seed}");
    }

    /// Whoever copies a command from a page must not be told that there is no such option.
    #[test]
    fn chores_on_the_pages_are_command_lines_of_this_program() {
        let (tried, wrong) =
            holdfast_chore::pages::refused::<Chore>(|chore| ["mutations", "mutants"].contains(&chore)).expect("pages");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(tried >= 5, "found {tried} commands, expected more");
    }
}
