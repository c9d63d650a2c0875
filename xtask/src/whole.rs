//! `cargo xtask test`: runs the parts of a tier (`parts.rs`), then prints a time table and one closing line.

use crate::binary::{Build, after_everything, root};
use crate::parts::{self, Part, Tier, Work};
use crate::say::{Count, held, line, note, step};
use crate::setup::{self, For};
use crate::times::Times;
use crate::{fuzz, reached, room, sim, suite, verify};
use anyhow::Result;
use holdfast_chore::cmd::Cmd;
use holdfast_chore::proof::{Run, Verdict, ended_at};
use holdfast_chore::report;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::Command;
use std::time::Instant;

/// Options on the command line.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask test                        the gate: 40 minutes on two processors
  cargo xtask test --quick                five minutes, while you work
  cargo xtask test --all --list           lists the parts of the long run
  cargo xtask test --all --part jepsen    runs one of them
  cargo xtask test --all --from chaos     runs that part and all after it
  cargo xtask proof --keep                adds the recorded runs to the repository")]
pub struct Args {
    /// Run the short tier: five minutes
    #[arg(long, conflicts_with = "all")]
    quick: bool,
    /// Run everything, for hours. Each part is recorded in target/proof/runs.jsonl
    #[arg(long)]
    all: bool,
    /// Run only this part; may be given several times
    #[arg(long, value_name = "NAME")]
    part: Vec<String>,
    /// Run this part and all after it
    #[arg(long, value_name = "NAME", conflicts_with = "part")]
    from: Option<String>,
    /// List the parts of the tier and exit
    #[arg(long)]
    list: bool,
    /// The first seed of everything that uses seeds; default: a new one in each run
    #[arg(long, env = "HOLDFAST_SEED", value_name = "N")]
    seed: Option<u64>,
    /// Install nothing
    #[arg(long)]
    no_setup: bool,
    /// A `holdfast` program of an older version, for the scenario `rolling-upgrade`; default: that of the last release
    /// tag (v*) before this commit, which the long run builds
    #[arg(long, env = "HOLDFAST_OLDER_BIN", value_name = "PATH")]
    older_bin: Option<PathBuf>,
    #[command(flatten)]
    build: Build,
}

impl Args {
    fn tier(&self) -> Tier {
        match (self.quick, self.all) {
            (true, _) => Tier::Quick,
            (false, true) => Tier::All,
            (false, false) => Tier::Gate,
        }
    }

    /// Arguments that tell a scenario program which `holdfast` to test.
    fn of_the_product(&self) -> Vec<OsString> {
        let bin = self.build.bin.iter().flat_map(|bin| ["--bin".into(), bin.into()]);
        let profile = self.build.profile.iter().flat_map(|profile| ["--profile".into(), profile.into()]);
        bin.chain(profile).collect()
    }
}

/// State of the whole run.
struct Whole<'a> {
    args: &'a Args,
    tier: Tier,
    seed: u64,
    /// Tests follow: they are built while programs are installed, and clippy runs beside them, where the build does not
    /// lint.
    with_tests: bool,
    count: Count,
    times: Times,
}

/// Runs the parts of a tier, one after the other. Fails when anything failed, or a part's name is unknown.
pub fn test(args: &Args) -> Result<()> {
    let tier = args.tier();
    let chosen = parts::chosen(tier, &args.part, args.from.as_deref())?;
    if args.list {
        chosen.iter().for_each(|part| line(format!("{:<15} {}", part.name, part.why)));
        return Ok(());
    }
    let seed = match args.seed {
        Some(seed) => seed,
        // In seconds, so that two runs that are an hour apart share no seed.
        None => std::time::UNIX_EPOCH.elapsed()?.as_secs(),
    };
    note(format!("first seed {seed}: --seed {seed} repeats the same random choices"));
    let free = room::free(root())?;
    if tier != Tier::Quick && free < room::WANTED {
        note(format!(
            "{} GiB of disk are free; builds and the largest scenario need {} GiB, so this run may fill the disk and fail",
            free >> 30,
            room::WANTED >> 30
        ));
    }
    // A part of a run adds to the counts of the parts before it.
    if tier != Tier::Quick && args.part.is_empty() && args.from.is_none() {
        holdfast_chore::reached::begin_anew()?;
    }
    let has = |work| chosen.iter().any(|part: &&Part| part.work == work);
    let with_tests = has(Work::Verify) && has(Work::Tests);
    let mut whole = Whole { args, tier, seed, with_tests, count: Count::default(), times: Times::begin() };
    for part in chosen {
        whole.part(part)?;
    }
    whole.count.close_after(Some(&whole.times))
}

impl Whole<'_> {
    /// Runs a part. Its failures are in the count. Fails when something cannot be installed: the results of later parts
    /// would mean nothing.
    fn part(&mut self, part: &Part) -> Result<()> {
        let (begun, before) = (Instant::now(), self.count);
        step(format!("{}: {}", part.name, part.why));
        let mut times = std::mem::replace(&mut self.times, Times::begin());
        let ran = match part.work {
            // They have two lines in the time table: build and tests.
            Work::Tests | Work::UnitTests => self.work(part.work, &mut times),
            work => times.part(part.name, |times| self.work(work, times)),
        };
        self.times = times;
        match ran {
            Ok(found) => self.count.add(found),
            Err(e) if part.work == Work::Verify => return Err(e),
            Err(e) => self.count.check(part.name, Err(e)),
        }
        if self.tier == Tier::All {
            self.note(part, begun, before);
        }
        Ok(())
    }

    fn work(&self, work: Work, times: &mut Times) -> Result<Count> {
        let mut count = Count::default();
        match work {
            Work::Verify => return self.verify(),
            Work::Docs => {
                verify::docs(&mut count);
                verify::book(&mut count);
            }
            Work::Deny => verify::deny(&mut count),
            Work::UnitTests => return suite::run(suite::What::UnitTests, &self.told_of_tests(), None, times),
            Work::Tests => {
                let check: suite::BesideTests = ("clippy", verify::clippy_beside);
                let check = (self.with_tests && !verify::lints_in_build()).then_some(check);
                return suite::run(suite::What::Everything, &self.told_of_tests(), check, times);
            }
            Work::Reached if self.tier == Tier::All => {
                count.check("probes: each is reached", reached::chore(&reached::Args::default()))
            }
            Work::Reached => reached::number()?,
            Work::Fuzz => return fuzz::each(),
            Work::Simulation => {
                for (name, outcome) in sim::each_mode(self.seed) {
                    count.check(&name, outcome);
                }
            }
            Work::Counted(package, args) => return report::run(self.command(package, args)?, times),
            Work::Plain(package, args) => {
                count.check(&args.join(" "), Cmd::of(self.command(package, args)?).show());
            }
        }
        Ok(count)
    }

    /// Checks the tree and installs missing programs at the same time: checks keep the processors busy, installing
    /// mostly waits for downloads, and neither needs the other's result. The tests are built here too: they cannot run
    /// before everything is installed.
    fn verify(&self) -> Result<Count> {
        let look = || -> Result<Count> {
            let mut count = verify::look()?;
            if self.with_tests {
                let warnings = suite::build()?;
                if verify::lints_in_build() {
                    count.check("clippy, in the build", verify::no_lints(&warnings));
                }
            } else {
                step("verify: clippy");
                count.check("clippy", verify::clippy());
            }
            Ok(count)
        };
        if self.args.no_setup || self.tier == Tier::Quick {
            return look();
        }
        std::thread::scope(|scope| {
            let what = if self.tier == Tier::All { For::LongTests } else { For::Tests };
            let setup = scope.spawn(move || held(|| setup::setup(what)));
            let count = look();
            let (installed, said) = setup.join().map_err(|_| anyhow::anyhow!("the thread of setup panicked"))?;
            said.iter().for_each(line);
            installed?;
            count
        })
    }

    /// Environment variables of every test and scenario.
    fn told(&self) -> [(&'static str, String); 2] {
        let tier = if self.tier == Tier::All { "all" } else { "gate" };
        [("HOLDFAST_SEED", self.seed.to_string()), ("HOLDFAST_TIER", tier.to_owned())]
    }

    /// Like `told`, for cargo's tests, and where they write which probes they reach.
    fn told_of_tests(&self) -> Vec<(&'static str, String)> {
        let (name, file) = holdfast_chore::reached::variable("tests");
        self.told().into_iter().chain([(name, file.display().to_string())]).collect()
    }

    /// The command of another program of chores, built in the tests' profile.
    fn command(&self, package: &str, args: &[&str]) -> Result<Command> {
        let program = Build { bin: None, profile: None }.program(package, package, "dev")?;
        let mut command = Command::new(program);
        command.args(args).envs(self.told()).envs(after_everything()).current_dir(root());
        // Known bugs are not asked: a tree with a bug in it shows nothing about this one.
        let kind = match args.first() {
            Some(&"e2e") => Some("scenarios"),
            Some(&"chaos") => Some("chaos"),
            _ => None,
        };
        command.envs(kind.map(holdfast_chore::reached::variable));
        if args.first() == Some(&"e2e") {
            command.args(self.args.older_bin.iter().flat_map(|bin| ["--older-bin".as_ref(), bin.as_os_str()]));
        }
        // Benchmarks and known bugs build `holdfast` themselves.
        let takes_it = [parts::SCENARIOS, parts::DIST].contains(&package);
        if takes_it && !matches!(args, ["demo", ..] | ["jepsen", ..]) {
            command.args(self.args.of_the_product());
        }
        Ok(command)
    }

    /// Records a part for `cargo xtask proof`.
    fn note(&self, part: &Part, begun: Instant, before: Count) {
        let (passed, failed) = (self.count.passed - before.passed, self.count.failed - before.failed);
        let verdict = match (passed, failed) {
            (_, 1..) => Verdict::Broken,
            (0, _) => Verdict::Unknown,
            _ => Verdict::Held,
        };
        let mut run = Run::now("long run", begun.elapsed().as_secs(), verdict).did("checks", passed);
        (run.under, run.seed) = (part.name.to_owned(), Some(self.seed));
        if verdict == Verdict::Broken
            && let Some(last) = crate::say::failings().last()
        {
            run.note = ended_at(last);
        }
        run.note();
    }
}
