//! All known bugs in one build, chosen when a program starts (mutant schemata,
//! [ADR 0079](../../docs/adr/0079-known-bugs-in-one-build.md)).
//!
//! Owns: the texts of the copy with all bugs that fit, the one build, and the runs of its test programs. Does not own:
//! the list of bugs, what a failing test means (`judge`), bugs that need a build of their own (`apart`). [`mutants`]
//! makes its builds with it too, of other changes and other programs.
//!
//! [`mutants`]: crate::mutants
//!
//! ```text
//!  list ─▶ function ─▶ rewrite ─▶ chooser ─▶ copy ─▶ build ─▶ programs ─▶ each bug: its tests with HOLDFAST_KNOWN_BUG=N
//!                          ▲                           │
//!                          └── without what does not compile
//! ```

mod build;
mod chooser;
mod function;
mod messages;
mod rewrite;
mod split;

use crate::binary::{root, unsaid};
use crate::bug::{Asked, Mutation, Test};
use crate::cmd::Cmd;
use crate::judge::{Greens, Until, confirmed, judge};
use crate::list::MUTATIONS;
use crate::ran::{Ran, TEST_LIMIT, cost, limit_of, scenario, seeded, spawn};
use crate::say::{Count, note, step};
use crate::scratch::Copied;
use crate::seen;
use anyhow::{Context, Result, bail};
pub(super) use build::{Built, End, Order, build};
pub(super) use messages::Program;
#[cfg(test)]
pub(super) use rewrite::plan;
pub(super) use rewrite::{Bug, Numbered, Old, Piece};
pub(super) use split::{Bounds, groups};
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

/// Most memory that a test program may map, in KiB. A bug may allocate in an endless loop.
const MEMORY_KIB: u64 = 16 << 20;

/// A test that takes at most this long without a bug is run so once more after each failure. The simulation takes
/// longer, and does not depend on the machine's speed.
const CONFIRMED_SECONDS: f64 = 60.0;

/// Runs all bugs that fit into one build. Returns the others, in the order of the list, and the time at which no
/// further bug is started.
///
/// # Errors
/// When the copy cannot be made, or something else than a bug does not compile.
pub(super) fn run(
    chosen: &[&'static Mutation],
    asked: Asked,
    most_minutes: Option<u64>,
    count: &mut Count,
) -> Result<(Vec<&'static Mutation>, Until)> {
    let (chosen, idle): (Vec<_>, Vec<_>) = chosen.iter().copied().partition(|mutation| !asked.of(mutation).is_empty());
    idle.iter().for_each(|mutation| count.skip(mutation.name, "its tests need whole clusters"));
    let bugs = numbered(&chosen);
    let copy = Copied::locked(root().join("target/mutations-all"))?;
    step(format!("One build with all bugs that fit, of {}", bugs.len()));
    let read = |file: &str| std::fs::read_to_string(root().join(file)).with_context(|| file.to_owned());
    let choices: Vec<Numbered<'_>> = bugs.iter().map(Chosen::as_choice).collect();
    let built = match build(&copy, &order(), &choices, read)? {
        End::Built(built) => built,
        End::NoneToBlame(why) => bail!("{why}"),
        End::NotInTime => bail!("the build did not end in time"),
    };
    let (fits, refused) = (&built.plan.fits, &built.plan.refused);
    note(format!(
        "built in {:.0} s: {} bugs, {} need a build each",
        built.took.as_secs_f64(),
        fits.len(),
        refused.len()
    ));
    let (fitting, rest): (Vec<Chosen>, Vec<Chosen>) = bugs.iter().copied().partition(|one| fits.contains(&one.number));
    for one in &rest {
        note(format!("{}: {}", one.bug.name, refused.get(&one.number).map_or("", String::as_str)));
    }
    let until = Until::minutes(most_minutes);
    let undecided = run_all(&built, in_order(&fitting, asked)?, asked, &until, count)?;
    Ok((rest.into_iter().map(|one| one.bug).chain(undecided).collect(), until))
}

/// A known bug and its number.
#[derive(Clone, Copy)]
struct Chosen {
    number: u32,
    bug: &'static Mutation,
}

impl Chosen {
    fn as_choice(&self) -> Numbered<'static> {
        Numbered { number: self.number, bug: self.bug }
    }
}

/// The build folder of known bugs.
pub(super) fn build_folder() -> PathBuf {
    root().join("target/mutations-build")
}

/// Every crate and test program. All is built once, so builds are not incremental.
fn order() -> Order {
    let args = ["build", "--locked", "--workspace", "--lib", "--bins", "--tests", "--keep-going"];
    Order {
        args: args.map(str::to_owned).to_vec(),
        folder: build_folder(),
        log: root().join("target/mutations-build.log"),
        incremental: false,
        until: None,
    }
}

/// Bugs without a result first, then those with cheap tests.
fn in_order(bugs: &[Chosen], asked: Asked) -> Result<Vec<Chosen>> {
    let known = seen::known()?;
    let mut order = bugs.to_vec();
    order.sort_by_key(|one| {
        let costs = || asked.of(one.bug).into_iter().map(cost);
        (known.contains_key(one.bug.name), costs().next(), costs().max())
    });
    Ok(order)
}

/// Chooses one bug after the other and runs its tests. Returns the bugs without a verdict of which a test fails in this
/// build without any bug: a test that reads the sources, for example, finds the bodies with bugs. They need a build of
/// their own.
fn run_all(
    built: &Built,
    bugs: Vec<Chosen>,
    asked: Asked,
    until: &Until,
    count: &mut Count,
) -> Result<Vec<&'static Mutation>> {
    let (mut greens, mut undecided) = (Greens::default(), Vec::new());
    for (at, Chosen { number, bug }) in bugs.iter().enumerate() {
        if until.is_over() {
            until.left(bugs.len() - at, count);
            break;
        }
        step(format!("{} of {}: {}: {}", at + 1, bugs.len(), bug.name, bug.bug));
        let mut red_without = false;
        // A test is run without a bug when a bug first needs it: a cheap one before it may find that bug.
        let with_it = |test| {
            let Some(seconds) = greens.seconds(test, None, || run_test(built, test, 0, TEST_LIMIT))? else {
                red_without = true;
                return Ok(Ran::NoVerdict("fails without any bug".into()));
            };
            let ran = run_test(built, test, *number, limit_of(seconds))?;
            if seconds > CONFIRMED_SECONDS {
                return Ok(ran);
            }
            confirmed(ran, || run_test(built, test, 0, TEST_LIMIT))
        };
        match judge(bug, &asked.of(bug), true, with_it) {
            Err(why) if red_without => {
                note(format!("{why}: it gets a build of its own"));
                undecided.push(*bug);
            }
            outcome => count.check(bug.name, outcome),
        }
    }
    Ok(undecided)
}

/// Each bug with its place in the whole list, so that a number means the same in each run.
fn numbered(chosen: &[&'static Mutation]) -> Vec<Chosen> {
    let all = (1..).zip(MUTATIONS.iter().copied().flatten());
    let wanted = all.filter(|(_, bug)| chosen.iter().any(|other| other.name == bug.name));
    wanted.map(|(number, bug)| Chosen { number, bug }).collect()
}

fn run_test(built: &Built, test: &Test, number: u32, limit: Duration) -> Result<Ran> {
    match test {
        Test::Cargo { package, target, filter, .. } => {
            let program = match built.test(package, target) {
                Ok(program) => program,
                Err(why) => return Ok(Ran::NoBuild(why.to_string())),
            };
            let command = seeded(test_program(program, number)).args(*filter);
            Ok(Ran::of_tests(spawn("test", command, limit)?))
        }
        Test::Scenario(name) => {
            let command = scenario(built.program("holdfast")?, name)?.env(chooser::VARIABLE, number.to_string());
            Ok(Ran::of(spawn("scenario", command, limit)?, 1))
        }
    }
}

/// A test program as cargo runs it, with the bug of this number (0: none) and limited memory.
pub(super) fn test_program(program: &Program, number: u32) -> Cmd {
    let mut command = Command::new("sh");
    command.args(["-c", &format!("ulimit -v {MEMORY_KIB} && exec \"$@\""), "sh"]).arg(&program.path);
    unsaid(&mut command);
    Cmd::of(command)
        .arg("--quiet")
        .dir(&program.folder)
        .env("CARGO_MANIFEST_DIR", &program.folder)
        .env(chooser::VARIABLE, number.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeMap;

    #[test]
    fn a_bug_keeps_its_number_whatever_else_is_chosen() {
        let all: Vec<&'static Mutation> = MUTATIONS.iter().copied().flatten().collect();
        assert_eq!(numbered(&all).iter().map(|one| one.number).max(), u32::try_from(all.len()).ok());
        let some = numbered(&[all[7], all[2]]);
        let found: Vec<(u32, &str)> = some.iter().map(|one| (one.number, one.bug.name)).collect();
        assert_eq!(found, [(3, all[2].name), (8, all[7].name)]);
    }

    /// Otherwise the run takes hours, most of it building.
    #[test]
    fn nearly_all_bugs_of_the_list_fit_into_one_build() {
        let all: Vec<&'static Mutation> = MUTATIONS.iter().copied().flatten().collect();
        let read = |file: &str| Ok(std::fs::read_to_string(root().join(file))?);
        let all_of_them: Vec<Numbered<'_>> = numbered(&all).iter().map(Chosen::as_choice).collect();
        let plan = rewrite::plan(&all_of_them, &BTreeMap::new(), read).unwrap();
        for (file, new) in &plan.files {
            function::functions(&new.text).unwrap_or_else(|e| panic!("{file}: {e}"));
        }
        let name = |number: &u32| all[usize::try_from(*number).unwrap() - 1].name;
        let refused: Vec<String> =
            plan.refused.iter().map(|(number, why)| format!("{}: {why}", name(number))).collect();
        assert!(plan.fits.len() * 10 >= all.len() * 9, "only {} fit:\n{}", plan.fits.len(), refused.join("\n"));
    }
}
