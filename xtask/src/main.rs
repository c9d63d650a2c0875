//! Chores: `cargo xtask verify | test | fix | dev | setup | tidy | proof | sim`, and those of other programs, which it builds and runs.
//!
//! Owns: looking at the tree, running cargo's tests, the order of a whole run. Does not own: scenarios, benchmarks, known bugs. They are
//! programs of their own (`scenarios/`, `bench/`, `mutations/`), so that this one compiles in seconds on a fresh machine.

mod parts;
mod proof;
mod sim;
mod suite;
mod tidy;
mod verify;
mod whole;

use anyhow::{Context, Result};
use clap::Parser;
use holdfast_chore::{binary, cmd, room, say, setup, times};
use std::ffi::OsString;
use std::os::unix::process::CommandExt;
use std::process::ExitCode;

/// Chores of the Holdfast repository
#[derive(Parser)]
#[command(name = "cargo xtask", bin_name = "cargo xtask", arg_required_else_help = true)]
enum Chore {
    /// PostgreSQL on a volume of three gateways; kill -9 of the serving one; nothing acknowledged lost
    Demo(Other),
    /// The gate: verify, all cargo tests, scenarios, chaos, a few known bugs; --quick for five minutes, --all for everything that exists
    Test(whole::Args),
    /// End-to-end scenarios against real processes, all or by name
    E2e(Other),
    /// Three gateways in network namespaces under faults from a seed; the clients' history is judged by Porcupine
    Chaos(Other),
    /// A whole cluster in one process, simulated: one seed decides everything, time included
    Sim(sim::Args),
    /// Power cuts below PostgreSQL and three gateways: their disks lose what was not synced; nothing acknowledged lost
    Power(Other),
    /// The Jepsen test: workloads under faults in network namespaces, from Clojure; --lies shows that the checkers find what they should
    Jepsen(Other),
    /// Known bugs, put into a copy of the tree one by one: which test finds each?
    Mutations(Other),
    /// What was run, counted: the table on docs/proof/README.md, from what the chores above noted
    Proof(proof::Args),
    /// Virtual machines with the kernel's nbd, ZFS and PostgreSQL: gateway, attach and host killed, a host paused; nothing acknowledged lost
    Zfs(Other),
    /// Format, clippy, tidy, docs; writes nothing
    Verify,
    /// The part of verify that needs no build: crate arrows, file length, leftovers, links
    Tidy,
    /// Formats and applies clippy's suggestions
    Fix,
    /// Throughput side by side: local disk, nbdkit, one gateway, three gateways
    Bench(Other),
    /// A cluster in the foreground, until Ctrl-C (`cargo xtask dev -- ARGS OF holdfast dev`)
    Dev(verify::DevArgs),
    /// Installs the packages and programs that the other chores need
    Setup,
}

/// The arguments of a chore of another program.
#[derive(Clone, Debug, clap::Args)]
#[command(disable_help_flag = true)]
struct Other {
    /// Handed on as they are; `--help` shows them
    #[arg(value_name = "ARGS", trailing_var_arg = true, allow_hyphen_values = true)]
    _args: Vec<OsString>,
}

/// Chores of other programs, and the package of each.
const OTHERS: [(&str, &str); 8] = [
    ("demo", SCENARIOS),
    ("e2e", SCENARIOS),
    ("chaos", SCENARIOS),
    ("power", SCENARIOS),
    ("jepsen", SCENARIOS),
    ("zfs", SCENARIOS),
    ("bench", "holdfast-bench"),
    ("mutations", MUTATIONS),
];

/// The package of scenarios, and its program.
const SCENARIOS: &str = "holdfast-scenarios";

/// The package of known bugs, and its program.
const MUTATIONS: &str = "holdfast-mutations";

fn main() -> ExitCode {
    let args: Vec<OsString> = std::env::args_os().skip(1).collect();
    holdfast_chore::status(match other(&args) {
        Some((package, args)) => hand_on(package, &args),
        None => run(Chore::parse()),
    })
}

/// The package that has the chore asked for, and the arguments for its program: those given, untouched. `help CHORE` is `CHORE --help`.
fn other(args: &[OsString]) -> Option<(&'static str, Vec<OsString>)> {
    let package = |name: &OsString| OTHERS.iter().find(|(chore, _)| *chore == name).map(|(_, package)| *package);
    match args {
        [help, name] if help == "help" => Some((package(name)?, vec![name.clone(), "--help".into()])),
        [name, ..] => Some((package(name)?, args.to_vec())),
        [] => None,
    }
}

/// Runs the other program in place of this process: signals reach it, and its exit status is ours.
fn hand_on(package: &str, args: &[OsString]) -> Result<()> {
    Err(binary::run_program(package).args(args).exec()).with_context(|| format!("cannot start cargo for {package}"))
}

fn run(chore: Chore) -> Result<()> {
    match chore {
        Chore::Test(args) => whole::test(&args),
        Chore::Sim(args) => sim::chore(&args),
        Chore::Proof(args) => proof::chore(&args),
        Chore::Verify => verify::verify()?.close(),
        Chore::Tidy => {
            let mut count = say::Count::default();
            tidy::check(&mut count)?;
            count.close()
        }
        Chore::Fix => verify::fix(),
        Chore::Dev(args) => verify::dev(&args),
        Chore::Setup => setup::setup(setup::For::Tests),
        Chore::Demo(_)
        | Chore::E2e(_)
        | Chore::Chaos(_)
        | Chore::Power(_)
        | Chore::Jepsen(_)
        | Chore::Mutations(_)
        | Chore::Zfs(_)
        | Chore::Bench(_) => anyhow::bail!("a chore of another program comes first on the command line"),
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
    fn every_chore_of_another_program_is_in_the_help() {
        let command = Chore::command();
        for (chore, package) in OTHERS {
            assert!(command.find_subcommand(chore).is_some(), "{chore} of {package}");
        }
    }
}
