//! The program `cargo-mutants`: its version, its list of mutants, and a run of it over one crate.

use super::scope::Scope;
use super::seed::seed;
use crate::binary::{WRAPPER, cargo, root, unsaid};
use crate::cmd::{Cmd, cmd, tail_of};
use crate::process::{Proc, Signal};
use crate::say::{line, step};
use anyhow::{Context, Result, bail};
use serde::Deserialize;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

/// Pinned: another version makes other mutants and names them differently.
pub(super) const VERSION: &str = "27.1.0";

/// Most memory that a program of a run may map, in KiB. A mutant may allocate in an endless loop.
const MEMORY_KIB: u64 = 16 << 20;

/// How long it has to stop after its signal, before it is killed.
const STOP_LIMIT: Duration = Duration::from_secs(20);

/// Packages selected together with the one under test, as for known bugs: then cargo chooses the same features of the
/// dependencies for every crate, and builds them once.
const WHOLE: [&str; 3] = ["holdfast", "holdfast-sim", "holdfast-bench"];

/// The tool and the copy of the tree on which it works.
pub(super) struct Tool<'a> {
    program: PathBuf,
    tree: &'a Path,
}

/// A mutant in the tool's list.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Listed {
    /// With line and column: names it exactly in this state of the tree.
    pub(super) name: String,
    pub(super) package: String,
    pub(super) file: String,
    /// `None` for a constant.
    pub(super) function: Option<Function>,
    pub(super) span: Span,
    /// The text in place of the span; empty where something is deleted.
    pub(super) replacement: String,
}

/// The function around a mutant.
#[derive(Clone, Debug, Deserialize)]
pub(super) struct Function {
    pub(super) span: Span,
}

/// A part of a file.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Span {
    pub(super) start: Place,
    /// The first place behind it.
    pub(super) end: Place,
}

/// A line and a column. Both begin at 1, columns count characters.
#[derive(Clone, Copy, Debug, Deserialize)]
pub(super) struct Place {
    pub(super) line: usize,
    pub(super) column: usize,
}

/// What became of a mutant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Outcome {
    /// A test failed.
    Caught,
    /// No test failed.
    Survived,
    /// The tests did not end in time.
    TimedOut,
    /// It does not compile.
    Unviable,
}

/// The result of a run over one crate.
pub(super) struct Ran {
    /// Name of each mutant that was tried, its outcome, and the seconds that it took.
    pub(super) tried: Vec<(String, Outcome, f64)>,
    /// Stopped at its time limit.
    pub(super) stopped: bool,
}

/// The build folder of mutants: nothing that is built here can be taken for a build of the tree.
pub(super) fn build() -> PathBuf {
    root().join("target/mutants/build")
}

/// Whether an earlier run has built something there.
pub(super) fn has_built() -> bool {
    build().join("debug").exists()
}

/// Whether the pinned version is on the PATH or below `target/`.
pub(super) fn is_installed() -> bool {
    found().is_some()
}

/// Where an own copy of the program is installed.
fn own() -> PathBuf {
    root().join("target/mutants/tool")
}

/// The program in the pinned version.
fn found() -> Option<PathBuf> {
    let places = [PathBuf::from("cargo-mutants"), own().join("bin/cargo-mutants")];
    places.into_iter().find(|program| {
        let version = cmd(program).args(["mutants", "--version"]).out();
        version.is_ok_and(|said| said.trim() == format!("cargo-mutants {VERSION}"))
    })
}

/// Arguments of cargo, beside the package's own name, for the tests that decide about a crate.
pub(super) fn selected(scope: &Scope) -> Vec<String> {
    let whole = WHOLE.iter().map(|package| format!("--package={package}"));
    let tests = scope.tests.iter().map(|&test| test.to_owned());
    ["--locked".to_owned()].into_iter().chain(whole).chain(tests).collect()
}

/// The environment of the tests that decide.
pub(super) fn tests_env(command: Cmd) -> Cmd {
    command
        // A failure file of one mutant would make the next run fail at once.
        .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
        .env("HOLDFAST_SEED", "1")
}

impl<'a> Tool<'a> {
    /// Finds the pinned version on the PATH or below `target/`, else installs it there. Fails when it cannot be
    /// installed.
    pub(super) fn find_or_install(tree: &'a Path) -> Result<Self> {
        if let Some(program) = found() {
            return Ok(Self { program, tree });
        }
        let own = own();
        step(format!("cargo install cargo-mutants {VERSION} (some minutes)"));
        let install = ["install", "cargo-mutants", "--version", VERSION, "--locked", "--quiet", "--root"];
        let install = Cmd::of(cargo()).args(install).arg(&own).dir(root());
        install.show().context("cargo-mutants cannot be installed; install it by hand, on the PATH")?;
        Ok(Self { program: own.join("bin/cargo-mutants"), tree })
    }

    /// `cargo-mutants` in the copy of the tree, with limited memory.
    fn command(&self) -> Cmd {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -v {MEMORY_KIB} && exec \"$@\""), "sh"]).arg(&self.program).arg("mutants");
        unsaid(&mut command);
        let command = Cmd::of(command)
            .args(["--colors", "never"])
            .dir(self.tree)
            .env("CARGO_TARGET_DIR", build())
            // A bug may break a lint, and is built all the same.
            .env(WRAPPER, "")
            // One crate is built thousands of times, with one place changed. Dependencies have no debug info anyway.
            .env("CARGO_INCREMENTAL", "1")
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
            .env("CARGO_TERM_COLOR", "never");
        tests_env(command)
    }

    /// All mutants, or those of lines that a diff changes. Fails when the tool fails, or its list cannot be read.
    pub(super) fn list(&self, diff: Option<&Path>) -> Result<Vec<Listed>> {
        let mut command = self.command().args(["--workspace", "--list", "--json", "--level", "error"]);
        if let Some(diff) = diff {
            command = command.arg("--in-diff").arg(diff);
        }
        let text = command.out()?;
        // It prints nothing where a diff changes no line that has a mutant.
        if text.trim().is_empty() {
            return Ok(Vec::new());
        }
        serde_json::from_str(&text).context("cargo-mutants' list of mutants")
    }

    /// Tries the mutants of one crate, without those in `skip`, until all were tried or `until` has passed. Fails when
    /// the tool fails, or the tests fail without a mutant.
    pub(super) fn run(&self, scope: &Scope, skip: &[&str], until: Option<Instant>) -> Result<Ran> {
        let out = root().join("target/mutants/out").join(scope.name);
        match std::fs::remove_dir_all(&out) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e).context(out.display().to_string()),
            _ => {}
        }
        let results = out.join("mutants.out");
        std::fs::create_dir_all(&results).with_context(|| results.display().to_string())?;
        // With `--iterate` it passes over mutants that an earlier run caught. Here that is everything not chosen.
        std::fs::write(results.join("caught.txt"), skip.join("\n"))?;
        let command =
            self.command().args(["--in-place", "--iterate", "--package", &scope.package(), "--output"]).arg(&out);
        let command = command.args(selected(scope).into_iter().map(|arg| format!("--cargo-arg={arg}")));
        seed(&build())?;
        let log = out.join("log");
        let stopped = follow(Proc::spawn("cargo-mutants", command.into_command(), &log)?, &log, until)?;
        let text = match std::fs::read_to_string(results.join("outcomes.json")) {
            // Stopped while it built or tested the tree without a mutant.
            Err(e) if stopped && e.kind() == std::io::ErrorKind::NotFound => {
                return Ok(Ran { tried: Vec::new(), stopped });
            }
            text => text,
        };
        let text = text.with_context(|| format!("cargo-mutants ended without a result: {}", tail_of(&log, 8)))?;
        let tried = read_outcomes(&text).with_context(|| format!("{}: {}", scope.name, results.display()))?;
        Ok(Ran { tried, stopped })
    }
}

/// Shows its output until it ends. Interrupts it when `until` has passed, and returns whether it did.
fn follow(mut proc: Proc, log: &Path, until: Option<Instant>) -> Result<bool> {
    let mut shown = 0;
    loop {
        let ended = proc.wait(Duration::from_secs(1)).is_ok();
        let text = std::fs::read_to_string(log).unwrap_or_default();
        let whole = text.rfind('\n').map_or(0, |end| end + 1);
        text.get(shown..whole).unwrap_or_default().lines().for_each(line);
        shown = whole;
        if ended {
            return Ok(false);
        }
        if until.is_some_and(|until| Instant::now() >= until) {
            proc.stop(Signal::INT, STOP_LIMIT)?;
            return Ok(true);
        }
    }
}

#[derive(Deserialize)]
struct Outcomes {
    outcomes: Vec<One>,
}

#[derive(Deserialize)]
struct One {
    scenario: Scenario,
    summary: String,
    phase_results: Vec<Phase>,
}

#[derive(Deserialize)]
enum Scenario {
    Baseline,
    Mutant { name: String },
}

#[derive(Deserialize)]
struct Phase {
    duration: f64,
}

/// Fails when the tests failed without a mutant, or the text cannot be read.
fn read_outcomes(text: &str) -> Result<Vec<(String, Outcome, f64)>> {
    let all: Outcomes = serde_json::from_str(text)?;
    let mut tried = Vec::new();
    for one in all.outcomes {
        let seconds = one.phase_results.iter().map(|phase| phase.duration).sum();
        let name = match one.scenario {
            Scenario::Baseline if one.summary == "Success" => continue,
            Scenario::Baseline => bail!("the tests fail without a mutant ({}), see its log/baseline.log", one.summary),
            Scenario::Mutant { name } => name,
        };
        let outcome = match one.summary.as_str() {
            "CaughtMutant" => Outcome::Caught,
            "MissedMutant" => Outcome::Survived,
            "Timeout" => Outcome::TimedOut,
            "Unviable" => Outcome::Unviable,
            other => bail!("found outcome {other:?} of {name}, expected one of cargo-mutants {VERSION}"),
        };
        tried.push((name, outcome, seconds));
    }
    Ok(tried)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn outcomes(baseline: &str, summary: &str) -> String {
        let mutant =
            r#"{"Mutant":{"name":"crates/a/src/b.rs:3:4: replace f with ()","package":"a","genre":"FnValue"}}"#;
        let phases = r#"[{"phase":"Build","duration":1.5},{"phase":"Test","duration":0.5}]"#;
        let one = |scenario: &str, summary: &str| {
            format!(r#"{{"scenario":{scenario},"summary":"{summary}","log_path":"x","phase_results":{phases}}}"#)
        };
        format!(r#"{{"outcomes":[{},{}],"caught":1}}"#, one(r#""Baseline""#, baseline), one(mutant, summary))
    }

    #[test]
    fn outcomes_are_read_with_the_time_of_all_phases() {
        let name = "crates/a/src/b.rs:3:4: replace f with ()";
        for (summary, outcome) in [
            ("CaughtMutant", Outcome::Caught),
            ("MissedMutant", Outcome::Survived),
            ("Timeout", Outcome::TimedOut),
            ("Unviable", Outcome::Unviable),
        ] {
            let read = read_outcomes(&outcomes("Success", summary)).unwrap();
            assert_eq!(read, [(name.to_owned(), outcome, 2.0)]);
        }
    }

    /// Then the tests would fail with every mutant, and all of them would count as caught.
    #[test]
    fn nothing_counts_where_the_tests_fail_by_themselves() {
        let error = read_outcomes(&outcomes("Failure", "CaughtMutant")).unwrap_err().to_string();
        assert!(error.starts_with("the tests fail without a mutant"), "{error}");
        assert!(read_outcomes(&outcomes("Success", "Failure")).is_err(), "unknown outcome");
    }
}
