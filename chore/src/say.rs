//! The output of a chore: steps with a time stamp, notes below them, and one closing count.

use std::cell::RefCell;
use std::io::{IsTerminal, Write};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Environment variable with the start of the run in Unix milliseconds, for a program that is a part of the run.
pub const BEGUN: &str = "HOLDFAST_CHORE_BEGUN";

/// Environment variable with the path of a file, for a program that is a part of the run: it writes its result there
/// (`report`) and does not print the closing lines.
pub const REPORT: &str = "HOLDFAST_CHORE_REPORT";

/// Start of the run in Unix milliseconds: the first step of this program, or of the program that started it.
pub fn begun_unix_ms() -> u64 {
    static START: OnceLock<u64> = OnceLock::new();
    *START.get_or_init(|| std::env::var(BEGUN).ok().and_then(|text| text.parse().ok()).unwrap_or_else(unix_ms))
}

fn unix_ms() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_millis()).unwrap_or(u64::MAX)
}

fn since_start() -> Duration {
    Duration::from_millis(unix_ms().saturating_sub(begun_unix_ms()))
}

fn stamp() -> String {
    let s = since_start().as_secs();
    format!("{:02}:{:02}", s / 60, s % 60)
}

thread_local! {
    /// Lines that this thread has captured, while it captures.
    static HELD: RefCell<Option<Vec<String>>> = const { RefCell::new(None) };
}

/// Captures the lines that `run` prints and returns them. For something that runs beside another thing that prints: its
/// lines can then be printed together.
/// Captures this thread only; each step keeps the time at which it began.
pub fn held<T>(run: impl FnOnce() -> T) -> (T, Vec<String>) {
    HELD.set(Some(Vec::new()));
    let result = run();
    (result, HELD.take().unwrap_or_default())
}

/// Captures a line if this thread captures; returns it otherwise.
fn keep(text: String) -> Option<String> {
    HELD.with_borrow_mut(|held| match held {
        Some(lines) => {
            lines.push(text);
            None
        }
        None => Some(text),
    })
}

/// Prints the start of a step. All output goes to stdout and is flushed, so that a log file shows where a run hangs.
pub fn step(text: impl AsRef<str>) {
    let Some(text) = keep(format!("[{}] {}", stamp(), text.as_ref())) else { return };
    let mut out = std::io::stdout().lock();
    // A closed pipe (`| head`) must not stop a run that has mounted file systems.
    let _ = if out.is_terminal() { writeln!(out, "\x1b[1m{text}\x1b[0m") } else { writeln!(out, "{text}") };
    let _ = out.flush();
}

/// Prints a detail of the current step.
pub fn note(text: impl AsRef<str>) {
    line(format!("        {}", text.as_ref()));
}

/// Prints a plain line: results and tables.
pub fn line(text: impl AsRef<str>) {
    let Some(text) = keep(text.as_ref().to_owned()) else { return };
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{text}");
    let _ = out.flush();
}

/// Failures so far, as they were printed.
static FAILINGS: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Adds a failure. It is repeated at the end, so that the last lines of a long log show the reason.
pub fn failing(text: impl Into<String>) {
    FAILINGS.lock().unwrap_or_else(PoisonError::into_inner).push(text.into());
}

/// Failures so far, in order.
pub fn failings() -> Vec<String> {
    FAILINGS.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// A check failed, and its message was printed already.
#[derive(Debug)]
pub struct Failed;

impl std::fmt::Display for Failed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("failed")
    }
}

impl std::error::Error for Failed {}

/// Number of checks by result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Count {
    /// Checks that passed.
    pub passed: u64,
    /// Checks that failed.
    pub failed: u64,
    /// Checks that did not run; the reason of each was printed.
    pub skipped: u64,
}

impl Count {
    /// Counts one check and prints it: `ok NAME` or `FAILED NAME: why`.
    pub fn check(&mut self, name: &str, result: anyhow::Result<()>) {
        match result {
            Ok(()) => {
                self.passed += 1;
                line(format!("ok {name}"));
            }
            Err(why) => {
                self.failed += 1;
                let text = format!("FAILED {name}: {why:#}");
                line(&text);
                failing(text);
            }
        }
    }

    /// Counts one check that cannot run here, and prints why.
    pub fn skip(&mut self, name: &str, why: &str) {
        self.skipped += 1;
        line(format!("skipped {name}: {why}"));
    }

    /// Adds another count.
    pub fn add(&mut self, other: Count) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl std::fmt::Display for Count {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

/// The counts in a line `test result: …` of cargo; zero for any other line.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_thread_says_is_kept_for_it_alone() {
        let (result, said) = held(|| {
            step("begins");
            note("a detail");
            let other = std::thread::spawn(|| keep("another".into())).join().expect("no panic");
            assert_eq!(other, Some("another".into()), "of another thread");
            7
        });
        assert_eq!(result, 7);
        assert_eq!(said.len(), 2, "found {said:?}");
        assert!(said[0].starts_with('[') && said[0].ends_with("] begins"), "found {:?}", said[0]);
        assert_eq!(said[1], "        a detail");
        assert_eq!(keep("later".into()), Some("later".into()), "printed as usual afterwards");
    }

    #[test]
    fn cargo_result_lines_are_added_up() {
        let text = "test result: FAILED. 12 passed; 2 failed; 1 ignored; 0 measured; 0 filtered out; finished in 0.01s";
        assert_eq!(counted(text), Count { passed: 12, failed: 2, skipped: 1 });
        assert_eq!(counted("test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 4 filtered out").passed, 3);
        assert_eq!(counted("running 3 tests"), Count::default());
    }
}
