//! One run of one test, and what it shows.

use crate::binary::{Build, root};
use crate::bug::Test;
use crate::cmd::{Cmd, cmd};
use crate::process::Proc;
use anyhow::{Context, Result};
use holdfast_chore::proof::NOT_NOTED;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

/// Duration of the simulation's test: its number of courses (crates/sim/tests/seeds.rs), the seconds for which each
/// starts new seeds here (HOLDFAST_SIM_SECONDS), and the limit after which a seed counts as hanging
/// (crates/sim/src/runner.rs).
const SIM_COURSES: u64 = 7;
const SIM_COURSE_SECONDS: u64 = 120;
const SIM_SEED_SECONDS: u64 = 600;

/// Limit for one test. A test that has not ended by then has neither passed nor found the bug: there is no verdict.
pub(super) const TEST_LIMIT: Duration = Duration::from_secs(1500);
const _: () = assert!(TEST_LIMIT.as_secs() > SIM_COURSES * SIM_COURSE_SECONDS + SIM_SEED_SECONDS);

/// What a test has shown.
pub(super) enum Ran {
    Green {
        passed: u64,
        seconds: f64,
    },
    Red {
        seconds: f64,
        how: String,
    },
    /// It was killed at its limit, or has failed without the bug as well.
    NoVerdict(String),
    NoBuild(String),
}

impl Ran {
    /// The result of a test with this many passed cases.
    pub(super) fn of(ended: Ended, passed: u64) -> Self {
        let Ended { in_time, success, seconds, end, .. } = ended;
        match (success, passed) {
            _ if !in_time => Ran::NoVerdict(end),
            (true, 0) => Ran::Red { seconds, how: "no test of that name ran".into() },
            (true, passed) => Ran::Green { passed, seconds },
            (false, _) => Ran::Red { seconds, how: end },
        }
    }

    /// The result of a program of tests, by the lines `test result: …` of its output.
    pub(super) fn of_tests(ended: Ended) -> Self {
        let passed = ended.text.lines().map(|line| crate::say::counted(line).passed).sum();
        Self::of(ended, passed)
    }

    pub(super) fn said(&self) -> String {
        match self {
            Ran::Green { passed, .. } => format!("{passed} passed"),
            Ran::Red { how, .. } => how.clone(),
            Ran::NoVerdict(why) | Ran::NoBuild(why) => why.clone(),
        }
    }
}

/// A program that has ended or was killed.
pub(super) struct Ended {
    /// By itself.
    pub(super) in_time: bool,
    pub(super) success: bool,
    pub(super) seconds: f64,
    pub(super) text: String,
    /// The last useful lines of its output.
    pub(super) end: String,
}

/// Runs a program, with its output in a log of this name below `target/`.
///
/// # Errors
/// When it cannot start.
pub(super) fn spawn(name: &str, command: Cmd, limit: Duration) -> Result<Ended> {
    let log = root().join(format!("target/mutations-{name}.log"));
    std::fs::write(&log, "").with_context(|| log.display().to_string())?;
    let begun = Instant::now();
    let mut proc = Proc::spawn(name, command.into_command(), &log)?;
    let status = proc.wait(limit);
    let seconds = begun.elapsed().as_secs_f64();
    drop(proc);
    // A test may write bytes that are no text.
    let text = String::from_utf8_lossy(&std::fs::read(&log).unwrap_or_default()).into_owned();
    let telling = |line: &&str| {
        line.contains("panicked at")
            || line.starts_with("error")
            || line.starts_with("test result: F")
            || line.starts_with("FAILED")
    };
    let mut end: Vec<&str> = text.lines().filter(telling).collect();
    end.truncate(2);
    let end = match &status {
        Ok(status) if end.is_empty() => format!("{status}"),
        Ok(_) => end.join("; "),
        Err(_) => format!("did not end within {limit:?}"),
    };
    let in_time = status.is_ok();
    Ok(Ended { in_time, success: status.is_ok_and(|status| status.success()), seconds, text, end })
}

/// The environment of all tests.
pub(super) fn seeded(command: Cmd) -> Cmd {
    command
        // A failure file of one run would make the next run find the bug at once.
        .env("PROPTEST_DISABLE_FAILURE_PERSISTENCE", "true")
        // Always the same seeds, so that each run finds the same bugs.
        .env("HOLDFAST_SEED", "1")
        .env("HOLDFAST_TIER", "all")
        .env("HOLDFAST_SIM_SECONDS", SIM_COURSE_SECONDS.to_string())
}

/// A scenario of real processes with this `holdfast`.
///
/// # Errors
/// When the scenarios do not build.
pub(super) fn scenario(holdfast: &Path, name: &str) -> Result<Cmd> {
    let command = cmd(scenarios()?).arg("e2e").arg("--bin").arg(holdfast).arg(name).dir(root());
    Ok(command.env("HOLDFAST_SEED", "1").env(NOT_NOTED, "1"))
}

/// The scenario program, built once from the tree and not from the copy.
fn scenarios() -> Result<&'static Path> {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    if let Some(program) = PROGRAM.get() {
        return Ok(program);
    }
    let program = Build { bin: None, profile: None }.program("holdfast-scenarios", "holdfast-scenarios", "dev")?;
    Ok(PROGRAM.get_or_init(|| program))
}

/// Limit for a test with a bug that takes this long without one. A bug that makes it wait for ever must not cost 25
/// minutes. Some tests say after two minutes that something has not happened.
pub(super) fn limit_of(green_seconds: f64) -> Duration {
    let most = TEST_LIMIT.as_secs_f64();
    Duration::from_secs_f64((green_seconds * 5.0 + 30.0).clamp(180.0, most))
}

/// How dear a test is, to run the cheap ones first.
pub(super) fn cost(test: &Test) -> u8 {
    use crate::bug::Layer;
    match test.layer() {
        Layer::Unit | Layer::Story => 0,
        Layer::Property | Layer::Crash | Layer::Model => 1,
        Layer::Cluster => 2,
        Layer::Simulation => 3,
        Layer::Scenario => 4,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_did_not_end_is_no_verdict() {
        let ended = |in_time, success| Ended { in_time, success, seconds: 1.0, text: String::new(), end: "end".into() };
        assert!(matches!(Ran::of(ended(true, true), 3), Ran::Green { passed: 3, .. }));
        assert!(matches!(Ran::of(ended(true, true), 0), Ran::Red { .. }), "nothing ran");
        assert!(matches!(Ran::of(ended(true, false), 3), Ran::Red { .. }));
        assert!(matches!(Ran::of(ended(false, false), 3), Ran::NoVerdict(_)));
    }

    #[test]
    fn a_quick_test_has_a_short_limit_and_no_test_more_than_the_common_one() {
        assert_eq!(limit_of(0.1), Duration::from_secs(180));
        assert_eq!(limit_of(40.0), Duration::from_secs(230));
        assert_eq!(limit_of(840.0), TEST_LIMIT);
    }

    /// The constants of the limit agree with the simulation.
    #[test]
    fn the_simulation_ends_within_the_limit() {
        let read = |path: &str| std::fs::read_to_string(root().join(path)).unwrap();
        let courses = read("crates/sim/tests/seeds.rs").matches(" modes: \"").count();
        assert_eq!(u64::try_from(courses).unwrap(), SIM_COURSES);
        let seed = format!("const SEED_LIMIT: Duration = Duration::from_secs({SIM_SEED_SECONDS});");
        assert!(read("crates/sim/src/runner.rs").contains(&seed), "expected {seed}");
    }
}
