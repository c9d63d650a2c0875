//! The chores `verify`, `fix` and `dev`.

use crate::binary::{Build, cargo, root, unsaid};
use crate::cmd::{Cmd, cmd, on_path};
use crate::say::{Count, note, step};
use crate::tidy;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Options of `dev`.
#[derive(Clone, Debug, clap::Args)]
pub struct DevArgs {
    /// Arguments of `holdfast dev`, after `--`; default: three gateways in target/dev
    #[arg(last = true)]
    args: Vec<String>,
    #[command(flatten)]
    build: Build,
}

fn cargo_cmd() -> Cmd {
    Cmd::of(cargo()).dir(root())
}

/// Checks tidy, format, clippy and docs. Writes build products only. Fails only when the checks cannot run; a failed
/// check is in the count.
pub fn verify() -> Result<Count> {
    let mut count = look()?;
    step("verify: clippy");
    count.check("clippy", clippy());
    docs(&mut count);
    Ok(count)
}

/// Tidy and format. Fails only when the checks cannot run; a failed check is in the count.
pub fn look() -> Result<Count> {
    let mut count = Count::default();
    step("verify: tidy");
    tidy::check(&mut count)?;
    step("verify: format");
    count.check("format (cargo xtask fix repairs it)", cargo_cmd().args(["fmt", "--all", "--check"]).run());
    Ok(count)
}

const CLIPPY: [&str; 8] = ["clippy", "--workspace", "--all-targets", "--locked", "--quiet", "--", "-D", "warnings"];

/// Clippy. Fails when it found something, or cannot run.
pub fn clippy() -> Result<()> {
    cargo_cmd().args(CLIPPY).show()
}

/// Whether each build here lints our own crates: `.ci/run` names clippy's compiler as the wrapper of cargo. It lints
/// and builds in one pass; clippy alone compiles every dependency once more.
pub fn lints_in_build() -> bool {
    std::env::var_os(holdfast_chore::binary::WRAPPER).is_some_and(|name| Path::new(&name).ends_with("clippy-driver"))
}

/// Fails when such a build has warned.
pub fn no_lints(warnings: &BTreeSet<String>) -> Result<()> {
    let first = |text: &String| text.lines().take(2).collect::<Vec<_>>().join(" ");
    let firsts: Vec<String> = warnings.iter().map(first).collect();
    anyhow::ensure!(firsts.is_empty(), "found {} warnings, expected none: {}", firsts.len(), firsts.join("; "));
    Ok(())
}

/// Time limit of clippy beside tests, as `timeout` reads it: many times what it takes. Its output is held back until
/// its end, so nobody would see that it hangs.
const BESIDE_LIMIT: &str = "30m";

/// Clippy at the lowest priority: it compiles every dependency once more, while tests wait for clocks, sockets and
/// disks. Its output is in the error.
pub fn clippy_beside() -> Result<()> {
    if !on_path("nice") || !on_path("timeout") {
        return cargo_cmd().args(CLIPPY).run();
    }
    Cmd::of(beside(BESIDE_LIMIT, cargo().get_program())).args(CLIPPY).dir(root()).run()
}

/// A program at the lowest priority, with a time limit. In the foreground, so that Ctrl-C ends it too.
fn beside(limit: &str, program: &OsStr) -> Command {
    let mut command = Command::new("timeout");
    unsaid(&mut command);
    command.args(["--foreground", "--kill-after=30", limit, "nice", "-n", "19"]).arg(program);
    command
}

/// Runs rustdoc over all items, private ones included: finds broken links.
pub fn docs(count: &mut Count) {
    step("verify: docs");
    let doc = cargo_cmd().args(["doc", "--workspace", "--no-deps", "--document-private-items", "--locked", "--quiet"]);
    count.check("docs", doc.env("RUSTDOCFLAGS", "-D warnings").show());
}

/// Builds the book of docs/ in target/book where mdBook is installed.
pub fn book(count: &mut Count) {
    step("book");
    if !on_path("mdbook") {
        count.skip("book", "mdbook is not installed (cargo install mdbook)");
        return;
    }
    count.check("book", cmd("mdbook").dir(root()).args(["build", "docs"]).run());
}

/// Runs `cargo deny check` where it is installed: licences, bans and sources always, advisories where the database can
/// be reached.
pub fn deny(count: &mut Count) {
    step("cargo deny");
    if !on_path("cargo-deny") {
        count.skip("deny", "cargo-deny is not installed (cargo install cargo-deny)");
        return;
    }
    count.check(
        "deny: licences, bans, sources",
        cargo_cmd().args(["deny", "check", "licenses", "bans", "sources"]).run(),
    );
    match cargo_cmd().args(["deny", "check", "advisories"]).run() {
        Err(e) if format!("{e:#}").contains("failed to fetch advisory database") => {
            count.skip("deny: advisories", "the advisory database cannot be reached");
        }
        result => count.check("deny: advisories", result),
    }
}

/// Applies clippy's automatic fixes, then formats.
pub fn fix() -> Result<()> {
    step("fix: clippy's suggestions");
    let clippy = ["clippy", "--fix", "--allow-dirty", "--allow-staged", "--workspace", "--all-targets", "--quiet"];
    cargo_cmd().args(clippy).show()?;
    step("fix: format");
    cargo_cmd().args(["fmt", "--all"]).show()
}

/// Replaces this process by `holdfast dev`, so that Ctrl-C reaches it directly. Fails when it does not build or start.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_runs_beside_the_tests_ends() {
        let status = beside("0.1s", OsStr::new("sleep")).arg("600").status().expect("timeout starts");
        assert_eq!(status.code(), Some(124), "timeout's own code");
        assert_eq!(beside("600s", OsStr::new("false")).status().expect("timeout starts").code(), Some(1));
    }
}
