//! `cargo xtask`: runs `verify | test | fix | dev | setup | tidy | book | proof | sim | fuzz | reached` itself, and
//! builds and starts the programs that run the other chores.
//!
//! Owns: checks of the source tree, cargo's tests, the order of a whole run. Does not own: scenarios, benchmarks, known
//! bugs, packages. They are separate programs (`scenarios/`, `bench/`, `mutations/`, `dist/`), so that this one
//! compiles in seconds on a fresh machine.

mod fuzz;
mod parts;
mod proof;
mod reached;
mod sim;
mod suite;
mod tidy;
mod verify;
mod whole;

use anyhow::{Context, Result};
use clap::Parser;
use holdfast_chore::{binary, cmd, room, say, setup, times};
use parts::{DIST, MUTATIONS, SCENARIOS};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitCode};

/// Chores of the Holdfast repository
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
enum Chore {
    /// Run PostgreSQL on a volume of three gateways and kill -9 the serving one: no acknowledged write is lost
    Demo(Other),
    /// Run the gate: verify, all cargo tests, scenarios, chaos, a few known bugs; --quick takes five minutes, --all
    /// runs everything
    Test(whole::Args),
    /// Run end-to-end scenarios against real processes, all or by name
    E2e(Other),
    /// Run three gateways in network namespaces under faults from a seed; Porcupine checks the clients' history
    Chaos(Other),
    /// Simulate a whole cluster in one process: one seed decides everything, time included
    Sim(sim::Args),
    /// Give decoders generated input: each target for a time; findings are saved
    Fuzz(fuzz::Args),
    /// Cut the power under PostgreSQL and three gateways: disks lose what was not synced, no acknowledged write is lost
    Power(Other),
    /// Run the Jepsen test (Clojure): workloads under faults in network namespaces; --lies shows that its checkers find
    /// errors
    Jepsen(Other),
    /// Put known bugs into a copy of the tree, one at a time, and report which test finds each
    Mutations(Other),
    /// Let cargo-mutants change safety code, one operator or function at a time, and report which changes no test
    /// notices
    Mutants(Other),
    /// Count the recorded runs of the chores above, and write the table on docs/proof/README.md
    Proof(proof::Args),
    /// Run virtual machines with the kernel's nbd, ZFS and PostgreSQL, kill gateway, attach and host, pause a host: no
    /// acknowledged write is lost
    Zfs(Other),
    /// Count how often the recorded runs have reached each probe; exit code 1 if one was never reached
    Reached(reached::Args),
    /// Check format, clippy, tidy and docs; changes no file
    Verify,
    /// Run the part of verify that needs no build: crate arrows, lengths of files and functions, leftovers, links
    Tidy,
    /// Build the pages of docs/ as a book in target/book; needs mdBook
    Book,
    /// Format the code and apply clippy's suggestions
    Fix,
    /// Compare throughput: local disk, nbdkit, one gateway, three gateways
    Bench(Other),
    /// Make the packages: .deb, .rpm, tarball, OCI image, SBOM, checksums
    Dist(Other),
    /// Test the packages: pack twice and compare; install, use, upgrade and purge them in a Debian of their own
    Packages(Other),
    /// Run a cluster in the foreground until Ctrl-C (`cargo xtask dev -- ARGS OF holdfast dev`)
    Dev(verify::DevArgs),
    /// Install the packages and programs that the other chores need
    Setup,
}

/// The arguments of a chore that another program runs.
#[derive(Clone, Debug, clap::Args)]
#[command(disable_help_flag = true)]
struct Other {
    /// Passed on unchanged; `--help` shows them
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    _args: Vec<OsString>,
}

/// Chores that other programs run, and the package of each program.
const OTHERS: [(&str, &str); 11] = [
    ("demo", SCENARIOS),
    ("e2e", SCENARIOS),
    ("chaos", SCENARIOS),
    ("power", SCENARIOS),
    ("jepsen", SCENARIOS),
    ("zfs", SCENARIOS),
    ("bench", "holdfast-bench"),
    ("dist", DIST),
    ("packages", DIST),
    ("mutations", MUTATIONS),
    ("mutants", MUTATIONS),
];

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    holdfast_chore::status(match other(&args) {
        Some((_, args)) if is_first_demo(&args) => demo(&args),
        Some((package, args)) => hand_on(package, &args),
        None => run(Chore::parse()),
    })
}

/// The package that runs the requested chore, and the arguments for its program, unchanged. `help CHORE` means `CHORE
/// --help`.
fn other(args: &[OsString]) -> Option<(&'static str, Vec<OsString>)> {
    let package = |name: &OsString| OTHERS.iter().find(|(chore, _)| *chore == name).map(|(_, package)| *package);
    match args {
        [help, name] if help == "help" => Some((package(name)?, vec![name.clone(), "--help".into()])),
        [name, ..] => Some((package(name)?, args.to_vec())),
        [] => None,
    }
}

/// Replaces this process by the other program, so that it gets our signals and its exit status is ours.
fn hand_on(package: &str, args: &[OsString]) -> Result<()> {
    Err(binary::run_program(package).args(args).exec()).with_context(|| format!("cannot start cargo for {package}"))
}

/// Whether this is the demo on a `holdfast` that it builds itself: the first command of a new user, who waits for it.
fn is_first_demo(args: &[OsString]) -> bool {
    let [demo, options @ ..] = args else { return false };
    let other = |word: &OsString| {
        let word = word.to_string_lossy();
        ["failover", "help", "-h", "--help"].contains(&&*word)
            || ["--bin", "--profile"].iter().any(|option| word.starts_with(option))
    };
    demo == "demo" && !options.iter().any(other) && std::env::var_os("HOLDFAST_BIN").is_none()
}

/// Builds the demo's program together with `holdfast`, then replaces this process by it.
fn demo(args: &[OsString]) -> Result<()> {
    // Before minutes of compiling.
    setup::must_be_able_to_mount()?;
    let program = binary::demo_program()?;
    let mut command = Command::new(&program);
    binary::unsaid(&mut command);
    // Its steps go on from the time of ours.
    command.env(say::BEGUN, say::begun_unix_ms().to_string());
    Err(command.args(args).exec()).with_context(|| program.display().to_string())
}

fn run(chore: Chore) -> Result<()> {
    match chore {
        Chore::Test(args) => whole::test(&args),
        Chore::Sim(args) => sim::chore(&args),
        Chore::Fuzz(args) => fuzz::chore(&args),
        Chore::Proof(args) => proof::chore(&args),
        Chore::Reached(args) => reached::chore(&args),
        Chore::Verify => verify::verify()?.close(),
        Chore::Tidy => {
            let mut count = say::Count::default();
            tidy::check(&mut count)?;
            count.close()
        }
        Chore::Book => {
            let mut count = say::Count::default();
            verify::book(&mut count);
            count.close()
        }
        Chore::Fix => verify::fix(),
        Chore::Dev(args) => verify::dev(&args),
        Chore::Setup => setup::setup(setup::For::LongTests),
        Chore::Demo(_)
        | Chore::E2e(_)
        | Chore::Chaos(_)
        | Chore::Power(_)
        | Chore::Jepsen(_)
        | Chore::Mutations(_)
        | Chore::Mutants(_)
        | Chore::Zfs(_)
        | Chore::Dist(_)
        | Chore::Packages(_)
        | Chore::Bench(_) => anyhow::bail!("put a chore that another program runs first on the command line"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    #[test]
    fn chores_of_other_programs_get_their_arguments_untouched() {
        let of = |words: &[&str]| other(&words.iter().map(OsString::from).collect::<Vec<_>>());
        let words = ["e2e", "--long", "--", "idle", "--help"];
        let (package, args) = of(&words).expect("another program's");
        assert_eq!(package, SCENARIOS);
        assert!(args.iter().eq(words.iter()), "{args:?}");
        let (_, args) = of(&["help", "bench"]).expect("another program's");
        assert!(args.iter().eq(["bench", "--help"].iter()), "{args:?}");
        assert_eq!(of(&["verify"]), None);
        assert_eq!(of(&[]), None);
    }

    #[test]
    fn only_the_demo_that_builds_for_itself_is_built_at_once() {
        let is = |words: &[&str]| is_first_demo(&words.iter().map(OsString::from).collect::<Vec<_>>());
        // Whoever runs the tests may have named a program.
        let none_is_named = std::env::var_os("HOLDFAST_BIN").is_none();
        assert_eq!(is(&["demo"]), none_is_named);
        assert_eq!(is(&["demo", "--rounds", "3", "--secure"]), none_is_named);
        for words in [
            &["demo", "failover"][..],
            &["demo", "--help"],
            &["demo", "--bin=holdfast"],
            &["demo", "--profile", "dev"],
            &["e2e"],
            &[],
        ] {
            assert!(!is(words), "{words:?}");
        }
    }

    #[test]
    fn every_chore_of_another_program_is_in_the_help() {
        let command = Chore::command();
        for (chore, package) in OTHERS {
            assert!(command.find_subcommand(chore).is_some(), "{chore} of {package}");
        }
    }
}
