//! Checks how the processes of a run ended, and what their logs say. A panic, an abort or an unexpected exit fails the
//! run, even if all its own checks passed.
//!
//! ```text
//!  Proc, signal(), Cmd ──▶ unexpected exits ──┐
//!  logs below the run's folder ───────────────┴▶ look_through(folder) ──▶ one line for each problem
//! ```
//! An exit is expected if we sent the process a signal, or waited for its end. A run that provokes an abort declares
//! it: [`expect_abort`], [`expect_line`].

use std::collections::BTreeSet;
use std::io::BufRead;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::sync::{Mutex, PoisonError};

/// SIGABRT.
const ABORT: i32 = 6;

/// Signals with which users and service managers end a process: SIGHUP, SIGINT, SIGKILL, SIGTERM.
const USUAL: [i32; 4] = [1, 2, 9, 15];

/// A log line with one of these reports a panic or an abort.
const MARKS: [&str; 3] = ["panicked at ", "SIGABRT", "(signal: 6"];

/// At most this many lines of one file: the first ones show the cause.
const LINES_MAX: usize = 5;

/// What this process knows of its run.
#[derive(Debug, Default)]
struct Known {
    /// Processes whose exit is expected.
    asked: BTreeSet<u32>,
    /// Those of them that may end by an abort, because the test provokes one.
    aborts: BTreeSet<u32>,
    /// Unexpected exits, each with the log of its process if there is one.
    wrong: Vec<(Option<PathBuf>, String)>,
    /// Texts of log lines that are no problem, each with the folder for which that holds.
    expected: Vec<(PathBuf, String)>,
    /// Folders of this run that were not checked yet.
    folders: BTreeSet<PathBuf>,
}

static KNOWN: Mutex<Known> = Mutex::new(Known {
    asked: BTreeSet::new(),
    aborts: BTreeSet::new(),
    wrong: Vec::new(),
    expected: Vec::new(),
    folders: BTreeSet::new(),
});

fn known<T>(look: impl FnOnce(&mut Known) -> T) -> T {
    look(&mut KNOWN.lock().unwrap_or_else(PoisonError::into_inner))
}

/// Declares that this process is expected to end.
pub fn expect(pid: u32) {
    known(|known| known.asked.insert(pid));
}

/// Declares that this process is expected to end with an error or an abort, because the test makes it find a broken
/// rule (R9, R11).
pub fn expect_abort(pid: u32) {
    known(|known| {
        known.asked.insert(pid);
        known.aborts.insert(pid);
    });
}

/// Declares that log lines below `folder` with this text are expected: the test provokes the panic or abort.
pub fn expect_line(folder: &Path, text: &str) {
    known(|known| known.expected.push((folder.into(), text.into())));
}

/// Adds a folder in which this run keeps its logs.
pub(crate) fn will_look(folder: &Path) {
    known(|known| known.folders.insert(folder.into()));
}

/// Notes the end of a process of ours. `judged`: whoever started it has seen the status, or waits for it, and judges
/// it.
pub(crate) fn note(name: &str, pid: u32, status: ExitStatus, log: Option<&Path>, judged: bool) {
    let aborted = status.signal() == Some(ABORT);
    let usual = status.success() || status.signal().is_some_and(|signal| USUAL.contains(&signal));
    known(|known| {
        let fine = if aborted { &known.aborts } else { &known.asked }.contains(&pid);
        if !(fine || !aborted && (judged || usual)) {
            let text = format!("{name} (process {pid}) exited unexpectedly: {status}");
            known.wrong.push((log.map(Path::to_path_buf), text));
        }
    });
}

/// Checks the output of a command that has ended.
pub(crate) fn note_output(shown: &str, status: ExitStatus, output: &str) {
    if status.signal() == Some(ABORT) {
        known(|known| known.wrong.push((None, format!("{shown}: {status}"))));
    }
    if let Some(line) = output.lines().find(|line| line.contains(MARKS[0])) {
        known(|known| known.wrong.push((None, format!("{shown}: {line}"))));
    }
}

/// All problems with exits and logs of the run that has this folder, one line each. Problems without a folder go to the
/// first caller.
pub fn look_through(folder: &Path) -> Vec<String> {
    let (mut found, ended, expected) = known(|known| {
        known.folders.retain(|other| !other.starts_with(folder));
        let elsewhere: Vec<PathBuf> = known.folders.iter().cloned().collect();
        // Logs in the folder of another run at the same time belong to that run.
        let other = |log: &Path| !log.starts_with(folder) && elsewhere.iter().any(|other| log.starts_with(other));
        let of_others = |end: &(Option<PathBuf>, String)| end.0.as_deref().is_some_and(other);
        let (theirs, ours): (Vec<_>, Vec<_>) = known.wrong.drain(..).partition(of_others);
        known.wrong = theirs;
        let expected = known.expected.iter().filter(|(place, _)| place.starts_with(folder));
        let expected: Vec<String> = expected.map(|(_, text)| text.clone()).collect();
        let ended = Ended { asked: known.asked.clone(), aborts: known.aborts.clone() };
        (ours.into_iter().map(|(_, text)| text).collect::<Vec<_>>(), ended, expected)
    });
    let mut logs = Vec::new();
    logs_below(folder, &mut logs);
    logs.sort();
    for log in logs {
        found.extend(wrong_lines(&log, &ended, &expected));
    }
    found
}

/// Like `look_through`, for all folders that were not checked yet. Called at the end of a program.
pub fn look_through_the_rest() -> Vec<String> {
    let folders: Vec<PathBuf> = known(|known| known.folders.iter().cloned().collect());
    let mut found: Vec<String> = folders.iter().flat_map(|folder| look_through(folder)).collect();
    found.extend(known(|known| known.wrong.drain(..).map(|(_, text)| text).collect::<Vec<_>>()));
    found
}

/// Turns problems into one error. Fails when there are any.
pub fn fine(found: &[String]) -> anyhow::Result<()> {
    anyhow::ensure!(
        found.is_empty(),
        "a process panicked, aborted, or exited unexpectedly:\n        {}",
        found.join("\n        ")
    );
    Ok(())
}

fn logs_below(folder: &Path, logs: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => logs_below(&path, logs),
            Ok(kind) if kind.is_file() && path.extension().is_some_and(|kind| kind == "log") => logs.push(path),
            _ => {}
        }
    }
}

/// Processes whose exit is expected.
struct Ended {
    asked: BTreeSet<u32>,
    aborts: BTreeSet<u32>,
}

fn wrong_lines(log: &Path, ended: &Ended, expected: &[String]) -> Vec<String> {
    // A log that is gone was deleted to free disk space.
    let Ok(file) = std::fs::File::open(log) else { return Vec::new() };
    let mut found = Vec::new();
    let mut reader = std::io::BufReader::new(file);
    let mut bytes = Vec::new();
    while found.len() < LINES_MAX && reader.read_until(b'\n', &mut bytes).is_ok_and(|read| read > 0) {
        let line = String::from_utf8_lossy(&bytes);
        if is_wrong(&line, ended) && !expected.iter().any(|text| line.contains(text.as_str())) {
            found.push(format!("{}: {}", log.display(), line.trim_end()));
        }
        bytes.clear();
    }
    found
}

fn is_wrong(line: &str, ended: &Ended) -> bool {
    let unasked = |(pid, how): (u32, &str)| {
        let aborted = how.starts_with("was ended by signal 6");
        !if aborted { &ended.aborts } else { &ended.asked }.contains(&pid)
    };
    MARKS.iter().any(|mark| line.contains(mark)) || end_told_by_dev(line).is_some_and(unasked)
}

/// The process that ended according to a log line of `holdfast dev`, and how it ended: `gateway g1 (process 7) ended
/// with exit code 1`.
fn end_told_by_dev(line: &str) -> Option<(u32, &str)> {
    let (_, rest) = line.split_once("gateway ")?;
    let (pid, how) = rest.split_once("(process ")?.1.split_once(") ")?;
    let ended = how.starts_with("ended with exit code ") || how.starts_with("was ended by signal ");
    Some((pid.parse().ok()?, how)).filter(|_| ended)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fresh(name: &str) -> PathBuf {
        let dir = std::env::temp_dir().join(format!("holdfast-ends-{name}-{}", std::process::id()));
        let _ = std::fs::remove_dir_all(&dir);
        std::fs::create_dir_all(dir.join("cluster")).expect("a folder");
        dir
    }

    #[test]
    fn a_line_of_a_panic_an_abort_or_an_unasked_end_is_found() {
        let ended = Ended { asked: BTreeSet::from([7, 10]), aborts: BTreeSet::from([10]) };
        for (line, wrong) in [
            ("thread 'tokio-rt-worker' panicked at crates/set/src/a.rs:3:5:", true),
            ("gateway g1 (process 8) ended with exit code 1", true),
            ("gateway g1 (process 7) ended with exit code 1", false),
            ("gateway g2 (process 7) was ended by signal 6", true),
            ("gateway g2 (process 10) was ended by signal 6", false),
            ("gateway g2 (process 9) was ended by signal 9", true),
            ("gateway g2 (process 9) did not stop in time: killed", false),
            ("server process (PID 12) was terminated by signal 9: Killed", false),
        ] {
            assert_eq!(is_wrong(line, &ended), wrong, "{line}");
        }
    }

    #[test]
    fn logs_are_looked_through_and_what_is_expected_is_not_told() {
        let dir = fresh("logs");
        will_look(&dir);
        let panic = "thread 'main' panicked at src/x.rs:1:1:\nboom\n";
        std::fs::write(dir.join("cluster/g1.log"), panic).expect("a log");
        std::fs::write(dir.join("cluster/object"), panic).expect("no log");
        let found = look_through(&dir);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].ends_with("panicked at src/x.rs:1:1:"), "{found:?}");
        expect_line(&dir, "src/x.rs");
        assert!(look_through(&dir).is_empty());
        std::fs::remove_dir_all(&dir).expect("tidied up");
    }

    #[test]
    fn an_end_counts_unless_it_was_asked_for_or_is_judged() {
        let dir = fresh("status");
        will_look(&dir);
        let log = dir.join("x.log");
        let status = |raw| ExitStatus::from_raw(raw);
        note("judged", 1, status(1 << 8), Some(&log), true);
        note("fine", 2, status(0), Some(&log), false);
        note("killed", 3, status(9), Some(&log), false);
        expect(4);
        note("asked", 4, status(1 << 8), Some(&log), false);
        note("by itself", 5, status(1 << 8), Some(&log), false);
        note("aborted", 6, status(ABORT), Some(&log), true);
        expect_abort(7);
        note("meant to abort", 7, status(ABORT), Some(&log), false);
        let found = look_through(&dir);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].starts_with("by itself (process 5)") && found[1].starts_with("aborted"), "{found:?}");
        std::fs::remove_dir_all(&dir).expect("tidied up");
    }
}
