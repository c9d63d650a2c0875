//! The end of a chore: its closing lines, or a report for the program that runs it: counts, times and failures in a
//! JSON file.
//!
//! ```text
//!  xtask test ── HOLDFAST_CHORE_REPORT=FILE ──▶ holdfast-scenarios e2e …   (it prints to our stdout)
//!             ◀── FILE: count, times, failures ──┘
//! ```

use crate::binary::root;
use crate::cmd::show;
use crate::say::{BEGUN, Count, Failed, REPORT, begun_unix_ms, failing, failings, line};
use crate::times::Times;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How many failures are repeated at the end, and how many characters of each.
const AGAIN: (usize, usize) = (20, 600);

/// The result of a chore.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Number of checks by result.
    pub count: Count,
    /// Name and seconds of each test program or scenario.
    pub singles: Vec<(String, f64)>,
    /// Failures, as they were printed.
    pub failings: Vec<String>,
}

impl Report {
    /// Writes it for the program that started this one. Returns false if no such program waits for it. Fails when the
    /// file cannot be written.
    pub fn hand_over(&self) -> Result<bool> {
        let Some(file) = std::env::var_os(REPORT) else { return Ok(false) };
        let file = PathBuf::from(file);
        std::fs::write(&file, serde_json::to_vec(self)?).with_context(|| file.display().to_string())?;
        Ok(true)
    }
}

impl Count {
    /// Repeats the failures, prints the closing line, and turns a failure into an error. Fails with [`Failed`] when
    /// anything failed.
    pub fn close(self) -> Result<()> {
        self.close_after(None)
    }

    /// Like [`Count::close`], with the time table before it. A program that another one runs writes a report instead.
    /// Fails with [`Failed`] when anything failed.
    pub fn close_after(self, times: Option<&Times>) -> Result<()> {
        let failings = failings();
        let singles = times.map(Times::singles).unwrap_or_default();
        let report = Report { count: self, singles, failings };
        if !report.hand_over()? {
            times.iter().for_each(|times| times.say());
            if self.failed > 0 {
                again(&report.failings).iter().for_each(line);
            }
            line(self.to_string());
        }
        if self.failed == 0 { Ok(()) } else { Err(Failed.into()) }
    }
}

/// The lines that repeat the failures.
fn again(failings: &[String]) -> Vec<String> {
    let (most, longest) = AGAIN;
    let mut lines: Vec<String> = failings
        .iter()
        .take(most)
        .map(|text| match text.char_indices().nth(longest) {
            Some((end, _)) => format!("        {} ...", &text[..end]),
            None => format!("        {text}"),
        })
        .collect();
    if failings.len() > most {
        lines.push(format!("        ... and {} more lines of failures above", failings.len() - most));
    }
    if !lines.is_empty() {
        lines.insert(0, "What failed:".into());
    }
    lines
}

/// Runs a program of chores that prints to our stdout, and adds its times and failures to ours. Fails when it cannot
/// start, or ends without writing a result.
pub fn run(mut command: Command, times: &mut Times) -> Result<Count> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = root().join("target");
    std::fs::create_dir_all(&folder)?;
    let file = folder.join(format!("report-{}-{number}.json", std::process::id()));
    let shown = show(&command);
    command.env(REPORT, &file).env(BEGUN, begun_unix_ms().to_string());
    let status = command.status().with_context(|| format!("cannot start: {shown}"))?;
    let text = std::fs::read(&file);
    let _ = std::fs::remove_file(&file);
    let text = text.with_context(|| format!("{shown}: {status}, and no result"))?;
    let report: Report = serde_json::from_slice(&text).with_context(|| format!("{shown}: its result"))?;
    anyhow::ensure!(status.success() || report.count.failed > 0, "{shown}: {status}, and its result has no failure");
    report.failings.into_iter().for_each(failing);
    for (name, seconds) in report.singles {
        times.single(&name, Duration::try_from_secs_f64(seconds).unwrap_or_default());
    }
    Ok(report.count)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        command
    }

    #[test]
    fn a_result_is_read_back_and_none_is_an_error() {
        let report = Report {
            count: Count { passed: 2, failed: 0, skipped: 1 },
            singles: vec![("idle".into(), 7.5)],
            failings: Vec::new(),
        };
        let text = serde_json::to_string(&report).expect("a report");
        let mut times = Times::begin();
        let count = run(shell(&format!("echo '{text}' > \"${REPORT}\"")), &mut times).expect("a result");
        assert_eq!(count, report.count);
        let error = run(shell("exit 3"), &mut times).expect_err("no result").to_string();
        assert!(error.contains("exit status: 3") && error.contains("no result"), "{error}");
        let wrong = run(shell(&format!("echo '{text}' > \"${REPORT}\"; exit 1")), &mut times);
        assert!(wrong.expect_err("it failed").to_string().contains("has no failure"));
    }

    #[test]
    fn what_failed_is_said_again_within_bounds() {
        assert!(again(&[]).is_empty());
        assert_eq!(again(&["FAILED stores: why".into()]), ["What failed:", "        FAILED stores: why"]);
        let (most, longest) = AGAIN;
        let lines = again(&vec!["ü".repeat(longest + 1); most + 2]);
        assert_eq!(lines.len(), most + 2, "the heading, the repeated failures, the number of the others");
        assert_eq!(lines[1], format!("        {} ...", "ü".repeat(longest)));
        assert_eq!(lines[most + 1], "        ... and 2 more lines of failures above");
    }
}
