//! The chores that look at the tree: `verify`, `fix`, `test`; and `dev`.

use crate::binary::{Build, cargo, root};
use crate::cmd::Cmd;
use crate::say::{Count, held, line, note, step};
use crate::setup::{self, For};
use crate::times::Times;
use crate::{MUTATIONS, SCENARIOS, room, suite, tidy};
use anyhow::{Context, Result};
use holdfast_chore::report;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

/// What a person can turn in `test`.
#[derive(Clone, Debug, clap::Args)]
pub struct TestArgs {
    /// Install nothing
    #[arg(long)]
    no_setup: bool,
    /// The long form of the scenarios: two minutes without S3, more rounds
    #[arg(long)]
    long: bool,
    /// A program of an older build, for the scenario `rolling-upgrade`
    #[arg(long, env = "HOLDFAST_OLDER_BIN", value_name = "PATH")]
    older_bin: Option<PathBuf>,
    #[command(flatten)]
    build: Build,
}

impl TestArgs {
    /// What a program of chores is told of the program under test.
    fn of_the_product(&self) -> Vec<std::ffi::OsString> {
        let bin = self.build.bin.iter().flat_map(|bin| ["--bin".into(), bin.into()]);
        let profile = self.build.profile.iter().flat_map(|profile| ["--profile".into(), profile.into()]);
        bin.chain(profile).collect()
    }
}

/// What a person can turn in `dev`.
#[derive(Clone, Debug, clap::Args)]
pub struct DevArgs {
    /// Arguments of `holdfast dev`, after `--`; without any: three gateways in target/dev
    #[arg(last = true)]
    args: Vec<String>,
    #[command(flatten)]
    build: Build,
}

fn cargo_cmd() -> Cmd {
    Cmd::of(cargo()).dir(root())
}

/// Format, clippy, tidy, docs. Writes nothing but build products.
///
/// # Errors
/// Only when the checks cannot run; a failed check is in the count.
pub fn verify() -> Result<Count> {
    let mut count = Count::default();
    step("verify: tidy");
    tidy::check(&mut count)?;
    step("verify: format");
    count.check("format (cargo xtask fix repairs it)", cargo_cmd().args(["fmt", "--all", "--check"]).run());
    step("verify: clippy");
    let clippy = ["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"];
    count.check("clippy", cargo_cmd().args(clippy).show());
    step("verify: docs");
    let doc = cargo_cmd().args(["doc", "--workspace", "--no-deps", "--document-private-items", "--locked", "--quiet"]);
    count.check("docs", doc.env("RUSTDOCFLAGS", "-D warnings").show());
    Ok(count)
}

/// Formats and applies what clippy can repair by itself.
///
/// # Errors
/// When cargo fails.
pub fn fix() -> Result<()> {
    step("fix: clippy's suggestions");
    let clippy = ["clippy", "--fix", "--allow-dirty", "--allow-staged", "--workspace", "--all-targets", "--quiet"];
    cargo_cmd().args(clippy).show()?;
    step("fix: format");
    cargo_cmd().args(["fmt", "--all"]).show()
}

/// Everything: verify, cargo's tests, end-to-end scenarios, chaos, a few known bugs; where the time went; one closing line.
///
/// # Errors
/// When anything failed.
pub fn test(args: &TestArgs) -> Result<()> {
    let mut times = Times::begin();
    let free = room::free(root())?;
    if free < room::WANTED {
        note(format!(
            "{} GiB of disk are free; builds and the largest scenario want {} GiB, and this run may fail for want of it",
            free >> 30,
            room::WANTED >> 30
        ));
    }
    let mut count = times.part("verify, and setup beside it", |_| ready(args))?;
    match suite::run(&mut times) {
        Ok(found) => count.add(found),
        Err(e) => count.check("cargo test", Err(e)),
    }
    let mut scenarios = vec!["e2e".into()];
    scenarios.extend(args.long.then(|| "--long".into()));
    scenarios.extend(args.older_bin.iter().flat_map(|bin| ["--older-bin".into(), bin.into()]));
    scenarios.extend(args.of_the_product());
    part("end-to-end scenarios", SCENARIOS, &scenarios, &mut count, &mut times);
    let chaos = [vec!["chaos".into(), "--short".into()], args.of_the_product()].concat();
    part("chaos", SCENARIOS, &chaos, &mut count, &mut times);
    // Last: it makes cargo forget what it has built of our own crates.
    part("known bugs", MUTATIONS, &["mutations".into(), "--smoke".into()], &mut count, &mut times);
    count.close_after(Some(&times))
}

/// A part of the run that is another program's.
fn part(name: &str, package: &str, args: &[std::ffi::OsString], count: &mut Count, times: &mut Times) {
    step(name);
    let ran = times.part(name, |times| {
        // In the profile of tests and for the whole tree: nearly all of it is built by now.
        let mut command = Command::new(Build { bin: None, profile: None }.program(package, package, "dev")?);
        command.args(args).current_dir(root());
        report::run(command, times)
    });
    match ran {
        Ok(found) => count.add(found),
        Err(e) => count.check(name, Err(e)),
    }
}

/// Looks at the tree and installs what is missing meanwhile: the one keeps the processors busy, the other waits for downloads for most of its time, and
/// neither needs what the other makes.
fn ready(args: &TestArgs) -> Result<Count> {
    if args.no_setup {
        return verify();
    }
    std::thread::scope(|scope| {
        let setup = scope.spawn(|| held(|| setup::setup(For::Tests)));
        let count = verify();
        let (installed, said) = setup.join().map_err(|_| anyhow::anyhow!("the thread of setup panicked"))?;
        said.iter().for_each(line);
        installed?;
        count
    })
}

/// `holdfast dev` in place of this process: Ctrl-C reaches it directly.
///
/// # Errors
/// When it does not build or start.
pub fn dev(args: &DevArgs) -> Result<()> {
    let bin = args.build.binary("dev")?;
    let mut command = Command::new(bin);
    command.arg("dev");
    if args.args.is_empty() {
        command.arg("--dir").arg(root().join("target/dev"));
    }
    command.args(&args.args);
    note(format!("starting: {}", crate::cmd::show(&command)));
    Err(command.exec()).context("cannot start holdfast")
}
