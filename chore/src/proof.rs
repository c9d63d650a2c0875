//! The record of a run: what ran, for how long, and its result. Every chore that proves something appends one line to
//! `target/proof/runs.jsonl`; `cargo xtask proof` counts these and adds them to the repository.

use crate::binary::root;
use crate::cmd::cmd;
use crate::say::note;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

/// With this variable a run is not recorded: a run with a known bug in the product proves a test, not the product.
pub const NOT_NOTED: &str = "HOLDFAST_NOT_NOTED";

/// The start of a note that a chore wrote by itself: [`ended_at`].
pub const ENDED_AT: &str = "ended at ";

/// A note has at most this many characters of the error, because it is one line on a page.
pub const NOTE_CHARS_MAX: usize = 300;

/// The result of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// All checks passed.
    Held,
    /// It did too little to mean anything, or could not be judged.
    Unknown,
    /// A check failed.
    Broken,
}

/// The record of one run: a line of JSON.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Run {
    /// What ran, as in the table: `chaos`, `Jepsen: register`.
    pub what: String,
    /// Conditions, where there is a choice.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub under: String,
    /// The day, as `2026-11-23` (UTC).
    pub day: String,
    /// Commit of the tree, followed by `+` if it had uncommitted changes. Empty if it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub commit: String,
    /// Cargo profile of the program that was tested: `dev`, `release`. Empty if it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub profile: String,
    /// How long it lasted, in seconds.
    pub seconds: u64,
    /// The first seed, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Number of injected faults.
    pub faults: u64,
    /// Number of successful operations by kind: `commits`, `read`.
    pub did: BTreeMap<String, u64>,
    /// The result.
    pub verdict: Verdict,
    /// Of a failed run: the reason, or how it was resolved.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Run {
    /// A run of today, of this tree.
    pub fn now(what: impl Into<String>, seconds: u64, verdict: Verdict) -> Self {
        let said = |command: crate::cmd::Cmd| command.out().map(|text| text.trim().to_owned()).unwrap_or_default();
        let commit = said(cmd("git").args(["rev-parse", "--short=7", "HEAD"]).dir(root()));
        let changed = said(cmd("git").args(["status", "--porcelain", "--untracked-files=no"]).dir(root()));
        let mark = if commit.is_empty() || changed.is_empty() { "" } else { "+" };
        Self {
            what: what.into(),
            under: String::new(),
            day: said(cmd("date").args(["-u", "+%F"])),
            commit: format!("{commit}{mark}"),
            profile: String::new(),
            seconds,
            seed: None,
            faults: 0,
            did: BTreeMap::new(),
            verdict,
            note: String::new(),
        }
    }

    /// With the profile of the program that was tested.
    pub fn built(mut self, profile: impl Into<String>) -> Self {
        self.profile = profile.into();
        self
    }

    /// Adds successful operations.
    pub fn did(mut self, what: &str, count: u64) -> Self {
        if count > 0 {
            *self.did.entry(what.to_owned()).or_default() += count;
        }
        self
    }

    /// Records it below `target/`. If that fails, it prints a message; the run does not fail.
    pub fn note(&self) {
        if std::env::var_os(NOT_NOTED).is_some() {
            return;
        }
        let path = own();
        let write = || -> Result<()> {
            std::fs::create_dir_all(path.parent().context("a folder")?)?;
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path)?;
            Ok(file.write_all(format!("{}\n", serde_json::to_string(self)?).as_bytes())?)
        };
        if let Err(error) = write() {
            note(format!("{}: the run was not recorded: {error:#}", path.display()));
        }
    }
}

/// The verdict for an outcome.
pub fn held<T, E>(outcome: &Result<T, E>) -> Verdict {
    if outcome.is_ok() { Verdict::Held } else { Verdict::Broken }
}

/// The note that a chore writes about a failed run: the first line of the error. It gets into the repository, so paths
/// in the tree begin at its root.
pub fn ended_at(error: &str) -> String {
    let error = error.replace(&format!("{}/", root().display()), "");
    let first = error.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let first: String = first.chars().take(NOTE_CHARS_MAX).collect();
    // The page adds the full stop.
    format!("{ENDED_AT}{}", first.trim_end_matches(['.', ':', ' ']))
}

/// Parses the row that the Jepsen test prints at the end of a run: workload, nemesis, lie, seconds, seed, succeeded,
/// unknown, faults, two times, verdict.
/// `None` for any other line, and for a run with a lie, which proves a checker and not the product.
pub fn jepsen(row: &str) -> Option<Run> {
    let cells: Vec<&str> = row.trim().trim_matches('|').split('|').map(str::trim).collect();
    let [workload, nemesis, "", seconds, seed, succeeded, _, faults, _, _, verdict] = cells.as_slice() else {
        return None;
    };
    let verdict = match verdict.trim_start_matches('*') {
        text if text.starts_with("valid") => Verdict::Held,
        text if text.starts_with("invalid") => Verdict::Broken,
        _ => Verdict::Unknown,
    };
    let mut run = Run::now(format!("Jepsen: {workload}"), seconds.parse().ok()?, verdict);
    run.under = (*nemesis).to_owned();
    run.seed = seed.parse().ok();
    run.faults = faults.parse().unwrap_or_default();
    for part in succeeded.split(", ") {
        if let Some((count, what)) = part.split_once(' ') {
            run = run.did(what, count.parse().unwrap_or_default());
        }
    }
    Some(run)
}

/// Parses the closing lines of `holdfast-sim many`: `in all: 25 s simulated, 7 faults, …` and `12 seeds (1 to 12) of 4
/// s of faults, 0 failed, 63 s, 80 s of processors`.
pub fn simulation(text: &str) -> Option<Run> {
    let sums = text.lines().rev().find_map(|line| line.strip_prefix("in all: "))?;
    let count = |what: &str| {
        let found = sums.split(", ").find_map(|part| part.strip_suffix(what)?.trim().parse::<u64>().ok());
        found.unwrap_or_default()
    };
    // Faults of one store, of hosts and of agents have their own counts.
    let parts = sums.split(", ").filter_map(|part| part.split_once(' '));
    let faults = parts.filter(|(_, what)| what.starts_with("faults"));
    let faults = faults.filter_map(|(number, _)| number.parse::<u64>().ok());
    let closing = text.lines().rev().find(|line| line.contains(" seeds (") && line.contains(" failed, "))?;
    let number = |before: &str, after: &str| {
        let rest = &closing[closing.find(before)? + before.len()..];
        rest[..rest.find(after)?].trim().parse::<u64>().ok()
    };
    let failed = number("of faults, ", " failed")?;
    let verdict = if failed == 0 { Verdict::Held } else { Verdict::Broken };
    let mut run = Run::now("simulation", number("failed, ", " s")?, verdict);
    run.seed = number("(", " to");
    run.faults = faults.sum();
    let seeds = closing.split(' ').next()?.parse().ok()?;
    let counted = ["s simulated", "writes", "failovers to another gateway", "failovers to another owner"];
    Some(counted.into_iter().fold(run.did("seeds", seeds), |run, what| run.did(what, count(what))))
}

/// The runs recorded below `target/`.
pub fn own() -> PathBuf {
    root().join("target/proof/runs.jsonl")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_of_jepsen_is_a_run() {
        let row = "| register | mix-2 |  | 300 | 1101 | 19557 read, 19161 write | 75 | 15 | 1.2 (2.9 unasked) | 30.4 | valid |";
        let run = jepsen(row).expect("a run");
        assert_eq!((run.what.as_str(), run.under.as_str(), run.seconds), ("Jepsen: register", "mix-2", 300));
        assert_eq!((run.seed, run.faults, run.verdict), (Some(1101), 15, Verdict::Held));
        assert_eq!(run.did, BTreeMap::from([("read".into(), 19557), ("write".into(), 19161)]));
        let row = "| order | kill |  | 60 | 7 | 1 write | 0 | 2 | 1 | 1 | **unknown** (coverage) |";
        assert_eq!(jepsen(row).expect("a run").verdict, Verdict::Unknown);
        let row = "| order | kill |  | 60 | 7 | 1 write | 0 | 2 | 1 | 1 | **invalid** (workload) |";
        assert_eq!(jepsen(row).expect("a run").verdict, Verdict::Broken);
        let lie = "| order | kill | early-ack | 60 | 7 | 1 write | 0 | 2 | 1 | 1 | **invalid** (workload) |";
        assert_eq!(jepsen(lie), None, "it proves the checker");
    }

    #[test]
    fn a_note_names_no_path_of_the_machine() {
        let logs = root().join("target/e2e/s3-faults");
        let note = ended_at(&format!("FAILED s3-faults: logs in {}: never played\nmore", logs.display()));
        assert_eq!(note, "ended at FAILED s3-faults: logs in target/e2e/s3-faults: never played");
    }

    #[test]
    fn a_row_without_a_profile_is_a_run_all_the_same() {
        let row = r#"{"what":"chaos","day":"2026-11-28","seconds":90,"faults":20,"did":{"read":7},"verdict":"held"}"#;
        let older: Run = serde_json::from_str(row).expect("a run");
        assert_eq!((older.profile.as_str(), older.faults), ("", 20));
        assert_eq!(serde_json::to_string(&older).expect("a row"), row, "it is kept as it was");
        let newer = older.built("release");
        let text = serde_json::to_string(&newer).expect("a row");
        assert!(text.contains(r#""profile":"release""#), "{text}");
        assert_eq!(serde_json::from_str::<Run>(&text).expect("a run"), newer);
    }

    #[test]
    fn the_closing_lines_of_the_simulation_are_a_run() {
        let text = "seed 1 ...\nin all: 1250 s simulated, 5 gateways, 22 faults, 4 kills, \
                    6 failovers to another gateway, 5 faults of one store, 88 writes, 9 blocks read\n\
                    survived: 0.35 simulated hours, 27 faults\n\
                    12 seeds (3 to 14) of 4 s of faults, 0 failed, 63 s, 80 s of processors\n";
        let run = simulation(text).expect("a run");
        assert_eq!((run.seed, run.seconds, run.faults, run.verdict), (Some(3), 63, 27, Verdict::Held));
        assert_eq!(
            run.did,
            BTreeMap::from([
                ("seeds".into(), 12),
                ("s simulated".into(), 1250),
                ("failovers to another gateway".into(), 6),
                ("writes".into(), 88)
            ])
        );
        assert_eq!(simulation(&text.replace("0 failed", "1 failed")).expect("a run").verdict, Verdict::Broken);
        assert_eq!(simulation("nothing"), None);
    }
}
