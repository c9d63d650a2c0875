//! How one program of chores gets the result of another that it runs: counts, times and failures in a JSON file.
//!
//! ```text
//!  xtask test ── HOLDFAST_CHORE_REPORT=FILE ──▶ holdfast-scenarios e2e …   (it prints to our stdout)
//!             ◀── FILE: count, times, failures ──┘
//! ```

use crate::binary::root;
use crate::cmd::show;
use crate::say::{Count, failing};
use crate::times::Times;
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Environment variable with the file's path. A program that has it writes its result there and does not print the
/// closing lines.
pub const FILE: &str = "HOLDFAST_CHORE_REPORT";

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
    /// Writes it for the program that started this one. Returns false if no such program waits for it.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub fn hand_over(&self) -> Result<bool> {
        let Some(file) = std::env::var_os(FILE) else { return Ok(false) };
        let file = PathBuf::from(file);
        std::fs::write(&file, serde_json::to_vec(self)?).with_context(|| file.display().to_string())?;
        Ok(true)
    }
}

/// Runs a program of chores that prints to our stdout, and adds its times and failures to ours.
///
/// # Errors
/// When it cannot start, or ends without writing a result.
pub fn run(mut command: Command, times: &mut Times) -> Result<Count> {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    let folder = root().join("target");
    std::fs::create_dir_all(&folder)?;
    let file = folder.join(format!("report-{}-{number}.json", std::process::id()));
    let shown = show(&command);
    command.env(FILE, &file).env(crate::say::BEGUN, crate::say::begun_unix_ms().to_string());
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
        let count = run(shell(&format!("echo '{text}' > \"${FILE}\"")), &mut times).expect("a result");
        assert_eq!(count, report.count);
        let error = run(shell("exit 3"), &mut times).expect_err("no result").to_string();
        assert!(error.contains("exit status: 3") && error.contains("no result"), "{error}");
        let wrong = run(shell(&format!("echo '{text}' > \"${FILE}\"; exit 1")), &mut times);
        assert!(wrong.expect_err("it failed").to_string().contains("has no failure"));
    }
}
