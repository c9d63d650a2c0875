//! Builds cargo's tests with cargo and runs the test programs one by one, as `cargo test` does.
//!
//! ```text
//!  cargo test --no-run ─▶ programs ─┬▶ one after the other ──────────────────────────────┐
//!                                   ├▶ beside them, at the lowest priority: CPU-bound ────┴▶ last: tests that run
//!                                   │  tests on simulated time                           │   for a fixed time
//!                                   └▶ the same: clippy ─────────────────────────────────┘
//! ```
//! Most test programs wait for real clocks, sockets and disks, so the processors are idle most of the time. Two of them
//! at once would disturb each other. A program on simulated time at the lowest priority disturbs nobody.
//!
//! Owns: the list of programs, their order, and which of their output is shown. Does not own: the tests.

use crate::binary::{EVERYTHING, cargo, everything_is_built, fresh_dir, root, unsaid};
use crate::cmd::on_path;
use crate::say::{Count, counted, failing, held, line, step};
use crate::times::Times;
use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeSet;
use std::io::BufRead;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// When a program runs; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Usual,
    Beside,
    Last,
}

/// Package and source of the programs that do not run in the usual order. Histories and scenes: a fixed number, each on
/// simulated time, so their speed does not change what they find (the limit for a hang is a hundred times the usual
/// time). Seeds: they run for a fixed time and use both processors.
const TURNS: [(&str, &str, Turn); 3] = [
    ("holdfast-sim", "tests/histories.rs", Turn::Beside),
    ("holdfast-sim", "tests/scenes.rs", Turn::Beside),
    ("holdfast-sim", "tests/seeds.rs", Turn::Last),
];

/// A test program that cargo has built. Sorted in the order in which they run.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Program {
    package: String,
    /// Its main source file, relative to the package's folder.
    source: String,
    /// The argument with which cargo runs this program alone.
    target: String,
    /// The package's folder; its tests run there.
    folder: PathBuf,
    file: PathBuf,
}

/// Environment variables of every test program.
struct TestEnv<'a> {
    /// The file in which it records skipped tests.
    noted: &'a Path,
    variables: &'a [(&'a str, String)],
}

/// The start of the last line of Rust's test harness.
const RESULT: &str = "test result:";

/// The result of a program.
struct Ended {
    count: Count,
    /// It printed its result line. A program that exits with status 0 without it has not run all its tests.
    told: bool,
    status: ExitStatus,
    took: Duration,
}

/// A check that runs beside the test programs: its name, and what it does.
pub type BesideTests = (&'static str, fn() -> Result<()>);

/// What is built before tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// [`EVERYTHING`].
    Everything,
    /// Unit tests of libraries and programs.
    UnitTests,
}

impl What {
    /// Cargo's arguments.
    fn args(self) -> Vec<&'static str> {
        match self {
            Self::Everything => [&["build"], &EVERYTHING[..]].concat(),
            Self::UnitTests => vec!["test", "--no-run", "--workspace", "--lib", "--bins"],
        }
    }
}

/// Builds tests, and runs them with these variables. Fails when they do not build, or a program does not start. Failed
/// tests are in the count.
pub fn run(what: What, told: &[(&str, String)], check: Option<BesideTests>, times: &mut Times) -> Result<Count> {
    step("cargo test: build");
    let programs = times.part("build of tests", |_| built(what))?.programs;
    step(format!("cargo test: {} programs", programs.len()));
    let noted = fresh_dir("tests")?.join("skipped");
    let told = TestEnv { noted: &noted, variables: told };
    let mut count = times.part("tests", |times| all(&programs, &told, check, times))?;
    pass_over(&mut count, &std::fs::read_to_string(&noted).unwrap_or_default());
    Ok(count)
}

/// Builds [`EVERYTHING`], so that [`run`] finds it built. Returns the compiler's warnings. Fails when it does not
/// build.
pub fn build() -> Result<BTreeSet<String>> {
    step("cargo test: build");
    Ok(built(What::Everything)?.warnings)
}

/// What cargo has built.
struct Built {
    programs: Vec<Program>,
    /// Each once: a library and its tests are compiled from the same files.
    warnings: BTreeSet<String>,
}

fn built(what: What) -> Result<Built> {
    let mut child = cargo()
        // No doc tests: `tidy` checks that there are none, and rustdoc would take time in each crate to find none.
        .args(what.args())
        .args(["--locked", "--message-format=json"])
        .current_dir(root())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut built = Built { programs: Vec::new(), warnings: BTreeSet::new() };
    for text in std::io::BufReader::new(child.stdout.take().context("no stdout")?).lines() {
        let Ok(message) = serde_json::from_str::<Value>(&text?) else { continue };
        built.programs.extend(program_of(&message)?);
        if let Some((level, rendered)) = diagnostic_of(&message)
            && (built.warnings.insert(rendered.to_owned()) || level == "error")
        {
            rendered.lines().for_each(line);
        }
    }
    anyhow::ensure!(child.wait()?.success(), "the tests do not build");
    if what == What::Everything {
        everything_is_built();
    }
    anyhow::ensure!(!built.programs.is_empty(), "cargo built no test programs, expected those of the whole workspace");
    built.programs.sort();
    Ok(built)
}

/// Level and text of a diagnostic of the compiler; `None` for any other message, and for the compiler's count of them.
fn diagnostic_of(message: &Value) -> Option<(&str, &str)> {
    let said = (message["reason"] == "compiler-message").then(|| &message["message"])?;
    let count = said["code"].is_null() && said["spans"].as_array().is_some_and(Vec::is_empty);
    let level = said["level"].as_str()?;
    (level == "error" || !count).then_some((level, said["rendered"].as_str()?))
}

/// The test program that a message of cargo reports; `None` for any other message. Fails when the message reports a
/// test program without its path: we must not leave out a test silently.
fn program_of(message: &Value) -> Result<Option<Program>> {
    if message["reason"] != "compiler-artifact" || message["profile"]["test"] != true {
        return Ok(None);
    }
    let text = |value: &Value| -> Result<String> {
        let found = value.as_str().map(str::to_owned);
        found.with_context(|| {
            format!("found {value}, expected a string, in cargo's message about a test program: {message}")
        })
    };
    let file = PathBuf::from(text(&message["executable"])?);
    let manifest = PathBuf::from(text(&message["manifest_path"])?);
    let folder = manifest.parent().context("the manifest's path has no folder")?.to_path_buf();
    let source = PathBuf::from(text(&message["target"]["src_path"])?);
    let source = source.strip_prefix(&folder).unwrap_or(&source).display().to_string();
    let (name, kind) = (text(&message["target"]["name"])?, text(&message["target"]["kind"][0])?);
    let target = match kind.as_str() {
        "bin" | "test" | "example" => format!("--{kind} {name}"),
        _ => "--lib".to_owned(),
    };
    let id = text(&message["package_id"])?;
    let package = package_of(&id).with_context(|| format!("found no name in the package id {id:?}"))?.to_owned();
    Ok(Some(Program { package, source, target, folder, file }))
}

/// The name in a package id: `path+file:///crates/agent#holdfast-agent@0.1.0`, or `path+file:///xtask#0.1.0` where the
/// folder has the package's name.
fn package_of(id: &str) -> Option<&str> {
    let (place, named) = id.rsplit_once('#')?;
    match named.split_once('@') {
        Some((name, _)) => Some(name),
        None => place.rsplit('/').next(),
    }
}

fn of(programs: &[Program], turn: Turn) -> impl Iterator<Item = &Program> {
    programs.iter().filter(move |program| program.turn() == turn)
}

fn all(programs: &[Program], told: &TestEnv<'_>, check: Option<BesideTests>, times: &mut Times) -> Result<Count> {
    let mut count = Count::default();
    let (beside, checked) = std::thread::scope(|scope| -> Result<_> {
        let beside = scope.spawn(|| of(programs, Turn::Beside).map(|one| one.kept(told)).collect::<Vec<_>>());
        let checked = check.map(|(name, work)| (name, scope.spawn(move || timed(work))));
        for program in of(programs, Turn::Usual) {
            program.judge(program.shown(told)?, &mut count, times);
        }
        let panicked = |_| anyhow::anyhow!("a thread beside the tests panicked");
        let checked = checked.map(|(name, thread)| anyhow::Ok((name, thread.join().map_err(panicked)?))).transpose()?;
        Ok((beside.join().map_err(panicked)?, checked))
    })?;
    for (program, kept) in of(programs, Turn::Beside).zip(beside) {
        let (ended, said) = kept?;
        // Print all of its output at once, as if it had run here.
        program.say_name();
        said.iter().for_each(line);
        program.judge(ended, &mut count, times);
    }
    if let Some((name, (took, (result, said)))) = checked {
        said.iter().for_each(line);
        count.check(name, result);
        times.single(name, took);
    }
    for program in of(programs, Turn::Last) {
        program.judge(program.shown(told)?, &mut count, times);
    }
    Ok(count)
}

/// Runs a check. Returns how long it took, its result and its output, which would be mixed with that of tests.
fn timed(work: fn() -> Result<()>) -> (Duration, (Result<()>, Vec<String>)) {
    let begun = Instant::now();
    let held = held(work);
    (begun.elapsed(), held)
}

impl Program {
    fn turn(&self) -> Turn {
        let own = TURNS.iter().find(|(package, source, _)| *package == self.package && *source == self.source);
        own.map_or(Turn::Usual, |(.., turn)| *turn)
    }

    fn name(&self) -> String {
        format!("{} {}", self.package, self.source)
    }

    fn say_name(&self) {
        line(format!("     Running {}", self.name()));
    }

    fn command(&self, told: &TestEnv<'_>) -> Command {
        let mut command = Command::new(&self.file);
        if self.turn() == Turn::Beside && on_path("nice") {
            command = Command::new("nice");
            command.args(["-n", "19"]).arg(&self.file);
        }
        unsaid(&mut command);
        // The variables of `cargo test` that our tests use.
        command.env("CARGO_MANIFEST_DIR", &self.folder).env("CARGO_PKG_NAME", &self.package);
        command.envs(told.variables.iter().map(|(name, value)| (name, value)));
        command.env("HOLDFAST_TEST_SKIPPED", told.noted).current_dir(&self.folder).stdin(Stdio::null());
        command
    }

    /// Runs it and shows its output as it comes.
    fn shown(&self, told: &TestEnv<'_>) -> Result<Ended> {
        self.say_name();
        let begun = Instant::now();
        let mut command = self.command(told);
        let mut child = command.stdout(Stdio::piped()).spawn().with_context(|| self.file.display().to_string())?;
        let (mut count, mut told, mut reasons) = (Count::default(), false, Reasons::default());
        for text in std::io::BufReader::new(child.stdout.take().context("no stdout")?).lines() {
            let text = text?;
            count.add(counted(&text));
            told |= text.starts_with(RESULT);
            reasons.read(&text);
            if telling(&text) {
                line(text);
            }
        }
        reasons.keep(&self.name());
        Ok(Ended { count, told, status: child.wait()?, took: begun.elapsed() })
    }

    /// Runs it and returns its output.
    fn kept(&self, told: &TestEnv<'_>) -> Result<(Ended, Vec<String>)> {
        let begun = Instant::now();
        let output = self.command(told).output().with_context(|| self.file.display().to_string())?;
        let (count, status) = (Count::default(), output.status);
        let mut ended = Ended { count, told: false, status, took: begun.elapsed() };
        let (mut said, mut reasons) = (Vec::new(), Reasons::default());
        // The harness reports on stdout. stderr has only output that the harness did not capture.
        for text in String::from_utf8_lossy(&output.stdout).lines() {
            ended.count.add(counted(text));
            ended.told |= text.starts_with(RESULT);
            reasons.read(text);
            said.extend(telling(text).then(|| text.to_owned()));
        }
        reasons.keep(&self.name());
        said.extend(String::from_utf8_lossy(&output.stderr).lines().map(str::to_owned));
        Ok((ended, said))
    }

    fn judge(&self, ended: Ended, count: &mut Count, times: &mut Times) {
        times.single(&self.name(), ended.took);
        if ended.count.failed > 0 {
            line(format!("error: test failed, to rerun: cargo test -p {} {}", self.package, self.target));
        } else if !ended.status.success() {
            let why = anyhow::anyhow!("{}, but no test was reported as failed", ended.status);
            count.check(&self.name(), Err(why));
        } else if !ended.told {
            let why =
                anyhow::anyhow!("{} without the line \"{RESULT} ...\": a test exited the whole program", ended.status);
            count.check(&self.name(), Err(why));
        }
        count.add(ended.count);
    }
}

/// At most this many lines of one program are repeated at the end.
const REASONS_MAX: usize = 8;

/// The names of failed tests and their panic messages. These lines are repeated at the end of the whole run.
#[derive(Debug, Default)]
struct Reasons {
    lines: Vec<String>,
    /// The line before reported a panic, so this one has the panic message.
    panicked: bool,
}

impl Reasons {
    fn read(&mut self, text: &str) {
        let panics = text.contains("panicked at ");
        if panics || self.panicked || (text.starts_with("test ") && text.ends_with(" FAILED")) {
            self.lines.push(text.to_owned());
        }
        self.panicked = panics;
    }

    /// Nothing for a program whose tests passed, even if something panicked in it. At most [`REASONS_MAX`] lines
    /// otherwise, to leave room for other programs.
    fn kept(self) -> impl Iterator<Item = String> {
        let failed = self.lines.iter().any(|text| text.starts_with("test "));
        self.lines.into_iter().take(if failed { REASONS_MAX } else { 0 })
    }

    fn keep(self, program: &str) {
        self.kept().for_each(|text| failing(format!("{program}: {text}")));
    }
}

/// Whether a line is shown. Lines of passed tests are not: hundreds of them would hide the failures.
fn telling(text: &str) -> bool {
    !(text.ends_with(" ... ok") || text.trim().is_empty())
}

/// Tests that miss a program or server record that in a file, one line each. Cargo counts them as passed; we count them
/// as skipped.
fn pass_over(count: &mut Count, noted: &str) {
    for text in noted.lines() {
        let (name, why) = text.split_once(": ").unwrap_or((text, ""));
        count.passed = count.passed.saturating_sub(1);
        count.skip(name, why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::ExitStatusExt;

    #[test]
    fn a_test_that_had_nothing_to_ask_is_skipped_and_not_passed() {
        let mut count = Count { passed: 12, failed: 1, skipped: 0 };
        let noted = "s3: versitygw is not on PATH\nrefusals_say_what_to_do: versitygw is not on PATH\n";
        // Captured, so that nobody takes these lines in the log for real ones.
        let ((), said) = held(|| pass_over(&mut count, noted));
        assert_eq!(said.len(), 2, "{said:?}");
        assert_eq!(count, Count { passed: 10, failed: 1, skipped: 2 });
    }

    #[test]
    fn of_a_report_the_failed_tests_and_their_panics_are_kept() {
        let mut reasons = Reasons::default();
        for text in [
            "test map::one ... ok",
            "test map::two ... FAILED",
            "---- map::two stdout ----",
            "thread 'map::two' (7) panicked at src/map.rs:9:5:",
            "found 3, expected 4",
            "stack backtrace:",
            "test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.01s",
        ] {
            reasons.read(text);
        }
        let expected =
            ["test map::two ... FAILED", "thread 'map::two' (7) panicked at src/map.rs:9:5:", "found 3, expected 4"];
        assert!(reasons.kept().eq(expected));

        let mut passed = Reasons::default();
        passed.read("thread 'a worker' (7) panicked at src/map.rs:9:5:");
        assert_eq!(passed.kept().count(), 0, "no test failed");
        let mut many = Reasons::default();
        (0..2 * REASONS_MAX).for_each(|n| many.read(&format!("test map::n{n} ... FAILED")));
        assert_eq!(many.kept().count(), REASONS_MAX);
    }

    #[test]
    fn warnings_and_errors_are_told_and_their_count_is_not() {
        let said = |level: &str, code: Value, spans: Value, text: &str| {
            let message = serde_json::json!({ "level": level, "code": code, "spans": spans, "rendered": text });
            serde_json::json!({ "reason": "compiler-message", "message": message })
        };
        let lint = || serde_json::json!({ "code": "clippy::todo" });
        let at = || serde_json::json!([{ "line_start": 3 }]);
        let none = || serde_json::json!([]);
        for (message, expected) in [
            (said("warning", lint(), at(), "a lint"), Some(("warning", "a lint"))),
            (said("warning", lint(), none(), "of the whole crate"), Some(("warning", "of the whole crate"))),
            (said("error", Value::Null, at(), "a syntax error"), Some(("error", "a syntax error"))),
            (said("error", Value::Null, none(), "aborting"), Some(("error", "aborting"))),
            (said("warning", Value::Null, none(), "2 warnings emitted"), None),
            (serde_json::json!({ "reason": "build-finished", "success": true }), None),
        ] {
            assert_eq!(diagnostic_of(&message), expected, "{message}");
        }
    }

    fn artifact(id: &str, folder: &str, kind: &str, source: &str, test: bool) -> Value {
        serde_json::json!({
            "reason": "compiler-artifact",
            "package_id": id,
            "manifest_path": format!("{folder}/Cargo.toml"),
            "target": { "kind": [kind], "name": "dev", "src_path": format!("{folder}/{source}") },
            "profile": { "test": test },
            "executable": "/target/debug/deps/dev-0",
        })
    }

    fn program(package: &str, source: &str, target: &str, folder: &str) -> Program {
        let [package, source, target] = [package, source, target].map(String::from);
        Program { package, source, target, folder: folder.into(), file: "/target/debug/deps/dev-0".into() }
    }

    #[test]
    fn programs_are_read_from_what_cargo_says() {
        let agent = "path+file:///tree/crates/agent#holdfast-agent@0.1.0";
        for (message, expected) in [
            (
                artifact(agent, "/tree/crates/agent", "lib", "src/lib.rs", true),
                Some(program("holdfast-agent", "src/lib.rs", "--lib", "/tree/crates/agent")),
            ),
            (
                artifact(
                    "path+file:///tree/crates/holdfast#0.1.0",
                    "/tree/crates/holdfast",
                    "test",
                    "tests/dev.rs",
                    true,
                ),
                Some(program("holdfast", "tests/dev.rs", "--test dev", "/tree/crates/holdfast")),
            ),
            (
                artifact("path+file:///tree/xtask#0.1.0", "/tree/xtask", "bin", "src/main.rs", true),
                Some(program("xtask", "src/main.rs", "--bin dev", "/tree/xtask")),
            ),
            // The same file as a program and not as a test.
            (artifact("path+file:///tree/xtask#0.1.0", "/tree/xtask", "bin", "src/main.rs", false), None),
            (serde_json::json!({ "reason": "build-finished", "success": true }), None),
        ] {
            assert_eq!(program_of(&message).expect("told in full"), expected, "{message}");
        }
        let mut lost = artifact(agent, "/tree/crates/agent", "lib", "src/lib.rs", true);
        lost["executable"] = Value::Null;
        let error = program_of(&lost).expect_err("a test without a program").to_string();
        assert!(error.starts_with("found null, expected a string"), "{error}");
    }

    /// Else it would run in its usual turn, and nobody would notice but by the clock.
    #[test]
    fn what_has_a_turn_of_its_own_is_there() {
        for (package, source, turn) in TURNS {
            let folder = root().join("crates").join(package.trim_start_matches("holdfast-"));
            assert!(folder.join(source).is_file(), "{package} {source} is not there");
            let found = program(package, source, "--test dev", "/").turn();
            assert_eq!(found, turn, "{package} {source}");
        }
        assert_eq!(program("holdfast-store", "tests/seeds.rs", "--test seeds", "/").turn(), Turn::Usual);
    }

    /// Its thread has an end of its own: what it found must not end with it.
    #[test]
    fn a_failed_check_beside_the_tests_is_counted() {
        let beside = |check: fn() -> Result<()>| {
            let told = TestEnv { noted: Path::new("/dev/null"), variables: &[] };
            held(|| all(&[], &told, Some(("clippy", check)), &mut Times::begin())).0
        };
        assert_eq!(beside(|| Ok(())).expect("counted"), Count { passed: 1, failed: 0, skipped: 0 });
        let failed = beside(|| anyhow::bail!("a lint")).expect("counted");
        assert_eq!(failed, Count { passed: 0, failed: 1, skipped: 0 });
        assert!(beside(|| panic!("this panic belongs to a test")).is_err());
    }

    #[test]
    fn a_program_that_dies_without_a_word_has_failed() {
        let mut times = Times::begin();
        let ended = |raw, failed, told| Ended {
            count: Count { passed: 3, failed, skipped: 0 },
            told,
            status: ExitStatus::from_raw(raw),
            took: Duration::from_secs(1),
        };
        for (raw, failed, told, expected) in
            [(0, 0, true, 0), (101 << 8, 2, true, 2), (9, 0, false, 1), (0, 0, false, 1)]
        {
            let mut count = Count::default();
            let program = program("holdfast", "tests/dev.rs", "--test dev", "/");
            let ((), said) = held(|| program.judge(ended(raw, failed, told), &mut count, &mut times));
            assert_eq!(said.len(), usize::from(expected > 0), "wait status {raw}: {said:?}");
            assert_eq!(count, Count { passed: 3, failed: expected, skipped: 0 }, "wait status {raw}");
        }
    }
}
