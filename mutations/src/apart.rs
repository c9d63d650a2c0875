//! Bugs with a build of their own, one after the other: those outside of a function, and a few that are asked for.

use crate::binary::{WRAPPER, cargo, root};
use crate::bug::{Asked, Mutation, Test};
use crate::cmd::Cmd;
use crate::judge::{Greens, Until, judge};
use crate::ran::{Ran, TEST_LIMIT, scenario, seeded, spawn};
use crate::say::{Count, step};
use crate::schemata::build_folder;
use crate::scratch::Scratch;
use anyhow::Result;
use std::time::Duration;

/// Packages selected together with a test's package; none of them is built for the test. For the test's package alone,
/// cargo would choose other features of the dependencies and build them all again. These packages depend on everything.
pub(super) const WHOLE: [&str; 3] = ["holdfast", "holdfast-sim", "holdfast-bench"];

/// Limit for a build: a scenario needs a build of nearly everything.
const BUILD_LIMIT: Duration = Duration::from_secs(3600);

/// Puts one bug in after the other, builds, and runs its tests.
///
/// # Errors
/// When the copy cannot be made or a program cannot start.
pub(super) fn run(
    chosen: &[&'static Mutation],
    asked: Asked,
    greens: &mut Greens,
    until: &Until,
    count: &mut Count,
) -> Result<()> {
    let scratch = Scratch::open()?;
    for test in chosen.iter().flat_map(|mutation| asked.of(mutation)) {
        if until.is_over() {
            break;
        }
        greens.seconds(test, Some(&mut *count), || {
            scratch.restore()?;
            run_test(&scratch, test)
        })?;
    }
    for (at, mutation) in chosen.iter().enumerate() {
        if until.is_over() {
            until.left(chosen.len() - at, count);
            break;
        }
        let tests = asked.of(mutation);
        if tests.is_empty() {
            count.skip(mutation.name, "its tests need whole clusters");
            continue;
        }
        step(format!("{} of {}: {}: {}", at + 1, chosen.len(), mutation.name, mutation.bug));
        let usable: Vec<&Test> = tests.iter().filter(|test| greens.known(test).is_some()).copied().collect();
        scratch.restore()?;
        let applied = scratch.apply(mutation);
        let all = usable.len() == tests.len();
        let outcome = applied.and_then(|()| judge(mutation, &usable, all, |test| run_test(&scratch, test)));
        scratch.restore()?;
        count.check(mutation.name, outcome);
    }
    Ok(())
}

fn run_test(scratch: &Scratch, test: &Test) -> Result<Ran> {
    match test {
        Test::Cargo { package, target, filter, .. } => {
            let mut args = vec!["test", "--locked", "--quiet"];
            for selected in WHOLE.into_iter().filter(|other| other != package).chain([*package]) {
                args.extend(["-p", selected]);
            }
            args.extend(*target);
            let build = spawn("build", cargo_in(scratch, &args).arg("--no-run"), BUILD_LIMIT)?;
            if !build.success {
                return Ok(Ran::NoBuild(build.end));
            }
            let test = cargo_in(scratch, &args).arg("--").args(*filter);
            Ok(Ran::of_tests(spawn("test", test, TEST_LIMIT)?))
        }
        Test::Scenario(name) => {
            // With its own build folder: a program with a bug must not replace the tree's `holdfast`.
            let build = cargo_in(scratch, &["build", "--locked", "--quiet", "-p", "holdfast"]);
            let build = spawn("build", build.env("CARGO_TARGET_DIR", build_folder()), BUILD_LIMIT)?;
            if !build.success {
                return Ok(Ran::NoBuild(build.end));
            }
            let holdfast = build_folder().join("debug/holdfast");
            Ok(Ran::of(spawn("scenario", scenario(&holdfast, name)?, TEST_LIMIT)?, 1))
        }
    }
}

fn cargo_in(scratch: &Scratch, args: &[&str]) -> Cmd {
    let command = Cmd::of(cargo())
        .args(args)
        .dir(scratch.tree())
        .env("CARGO_TARGET_DIR", root().join("target"))
        // A bug may break a lint, and is built all the same.
        .env(WRAPPER, "")
        // The same few crates are built again and again with a changed line or two: incremental builds pay here, also
        // on a clean checkout.
        .env("CARGO_INCREMENTAL", "1");
    seeded(command)
}
