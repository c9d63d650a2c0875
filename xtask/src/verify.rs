//! The chores that look at the tree: `verify`, `fix`, `test`; and `dev`.

use crate::binary::{Build, cargo, fresh_dir, root};
use crate::cmd::{Cmd, on_path};
use crate::say::{Count, held, line, note, step};
use crate::setup::{self, For};
use crate::times::Times;
use crate::{chaos, e2e, mutations, room, suite, tidy};
use anyhow::{Context, Result};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// What a person can turn in `test`.
#[derive(Clone, Debug, clap::Args)]
pub struct TestArgs {
    /// Install nothing
    #[arg(long)]
    no_setup: bool,
    #[command(flatten)]
    e2e: e2e::Args,
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
    match times.part("end-to-end scenarios", |times| e2e::run(&args.e2e, times)) {
        Ok(found) => count.add(found),
        Err(e) => count.check("end-to-end scenarios", Err(e)),
    }
    step("chaos, the short form");
    if let Err(e) = times.part("chaos", |_| chaos::short(&args.e2e.build, &mut count)) {
        count.check("chaos", Err(e));
    }
    // Last: it makes cargo forget what it has built of our own crates.
    if let Err(e) = times.part("known bugs", |_| mutations::smoke(&mut count)) {
        count.check("known bugs", Err(e));
    }
    times.say();
    count.close()
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

/// What a line `test result: …` of cargo says; nothing for any other line.
pub fn counted(text: &str) -> Count {
    let mut count = Count::default();
    let Some(rest) = text.strip_prefix("test result: ") else { return count };
    for part in rest.split(['.', ';']) {
        let mut words = part.split_whitespace();
        let (Some(Ok(n)), Some(what)) = (words.next().map(str::parse::<u64>), words.next()) else { continue };
        match what {
            "passed" => count.passed += n,
            "failed" => count.failed += n,
            "ignored" => count.skipped += n,
            _ => {}
        }
    }
    count
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

/// Fails early where a scenario's program is missing; used to say `skipped` with a reason.
pub fn missing(programs: &[&'static str]) -> Option<String> {
    let gone: Vec<&str> = programs.iter().copied().filter(|p| !on_path(p) && !Path::new(p).exists()).collect();
    (!gone.is_empty()).then(|| format!("not installed: {} (cargo xtask setup)", gone.join(", ")))
}

/// A folder for one scenario below `target/e2e`.
///
/// # Errors
/// When it cannot be emptied.
pub fn scenario_dir(name: &str) -> Result<std::path::PathBuf> {
    fresh_dir(&format!("e2e/{name}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_result_lines_are_added_up() {
        let text = "test result: FAILED. 12 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(counted(text), Count { passed: 12, failed: 2, skipped: 1 });
        assert_eq!(counted("test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 4 filtered out").passed, 3);
        assert_eq!(counted("running 3 tests"), Count::default());
    }
}
