//! `mutations`: puts known bugs into the code, and shows which test finds each. A bug that no test finds shows a
//! missing test.
//!
//! A mutation replaces a text in the sources. A run works on a copy below `target/`, never on the tree. All bugs inside
//! of functions are in one build, and each program chooses one when it starts ([`schemata`]); the others have a build
//! each ([`apart`]). Each test must pass without a bug and fail with it; a test that does not end in time counts as
//! neither. Results are kept below `target/`. `--page` adds them to the committed results of earlier runs
//! (mutations/src/seen.json), and writes docs/proof/mutations.md from both.
//!
//! `mutants` is the other chore of this program: changes that a tool makes, not a list of our own ([`mutants`]).

mod apart;
mod bug;
mod judge;
mod list;
mod mutants;
mod page;
mod ran;
mod schemata;
mod scratch;
mod seen;

use anyhow::Result;
use bug::{Asked, Mutation};
use clap::Parser;
use holdfast_chore::say::{Count, line, step};
use holdfast_chore::{binary, cmd, process, say, undo};
use judge::{Greens, Until};
use list::MUTATIONS;
use std::process::ExitCode;

/// So many bugs are put into one build. For fewer, a build each is sooner done than everything with all of them.
const ONE_BUILD_FROM: usize = 8;

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
    /// Start no further bug after this many minutes; the one build is not counted. Bugs without a result are first
    #[arg(long, value_name = "N")]
    most_minutes: Option<u64>,
    /// Write docs/proof/mutations.md from the results of all runs, and exit
    #[arg(long)]
    page: bool,
}

/// Known bugs and mutants
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask")]
enum Chore {
    /// Put known bugs into a copy of the tree, and report which test finds each
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
    run(&chosen, asked, args.most_minutes, &mut count)?;
    count.close()
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

fn run(chosen: &[&'static Mutation], asked: Asked, most_minutes: Option<u64>, count: &mut Count) -> Result<()> {
    step(format!("Mutations: {} of known bugs", chosen.len()));
    let (rest, until) = if asked != Asked::First && chosen.len() >= ONE_BUILD_FROM {
        schemata::run(chosen, asked, most_minutes, count)?
    } else {
        (chosen.to_vec(), Until::minutes(most_minutes))
    };
    if rest.is_empty() {
        return Ok(());
    }
    step(format!("A build each: {} bugs", rest.len()));
    apart::run(&rest, asked, &mut Greens::default(), &until, count)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apart::WHOLE;
    use crate::binary::root;
    use crate::bug::Test;

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

    /// Whoever copies a command from a page must not be told that there is no such option.
    #[test]
    fn chores_on_the_pages_are_command_lines_of_this_program() {
        let (tried, wrong) =
            holdfast_chore::pages::refused::<Chore>(|chore| ["mutations", "mutants"].contains(&chore)).expect("pages");
        assert!(wrong.is_empty(), "{}", wrong.join("\n"));
        assert!(tried >= 5, "found {tried} commands, expected more");
    }
}
