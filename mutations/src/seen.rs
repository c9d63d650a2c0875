//! Results of runs: those of this machine below `target/`, and those of all runs in the repository, so that a page
//! written here keeps results from elsewhere.

use super::bug::{Layer, Mutation, Test};
use super::list::MUTATIONS;
use crate::binary::root;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// The latest result of one mutation.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub(super) struct MutationResult {
    /// Fingerprint of the edits and tests: a result with another one is invalid.
    pub(super) fingerprint: String,
    /// The test that failed; `None`: none did.
    pub(super) caught_by: Option<String>,
    pub(super) layer: Option<Layer>,
    /// Duration of this test in seconds.
    pub(super) seconds: f64,
    /// Tests that passed before it.
    pub(super) passed_by: Vec<String>,
    /// Unix time in seconds.
    pub(super) at: u64,
}

pub(super) type Results = BTreeMap<String, MutationResult>;

/// Committed. One line for each mutation, so that branches with different runs merge without conflict.
fn kept() -> PathBuf {
    root().join("mutations/src/seen.json")
}

/// Results of this machine.
fn own() -> PathBuf {
    root().join("target/mutations-results.json")
}

fn read(path: &Path) -> Result<Results> {
    match std::fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text).with_context(|| path.display().to_string()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(Results::new()),
        Err(e) => Err(e).with_context(|| path.display().to_string()),
    }
}

/// Records the result of one mutation; `None`: no test failed. Fails when the results cannot be read or written.
pub(super) fn remember(mutation: &Mutation, caught: Option<&Test>, seconds: f64, passed_by: Vec<String>) -> Result<()> {
    let mut all = read(&own())?;
    let seen = MutationResult {
        fingerprint: mutation.fingerprint(),
        caught_by: caught.map(Test::command),
        layer: caught.map(Test::layer),
        seconds: (seconds * 10.0).round() / 10.0,
        passed_by,
        at: std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |d| d.as_secs()),
    };
    all.insert(mutation.name.to_owned(), seen);
    std::fs::write(own(), serde_json::to_string_pretty(&all)?).with_context(|| own().display().to_string())
}

/// Adds the results below `target/` to the committed ones, and returns all. Fails when the results cannot be read or
/// written.
pub(super) fn gather() -> Result<Results> {
    let all = known()?;
    std::fs::write(kept(), lines(&all)?).with_context(|| kept().display().to_string())?;
    Ok(all)
}

/// The results below `target/` and the committed ones.
///
/// # Errors
/// When they cannot be read.
pub(super) fn known() -> Result<Results> {
    Ok(newest(read(&kept())?, read(&own())?, MUTATIONS.iter().copied().flatten()))
}

/// The latest valid result of each mutation of the list.
fn newest<'a>(kept: Results, own: Results, list: impl Iterator<Item = &'a Mutation>) -> Results {
    let mut all = Results::new();
    for mutation in list {
        let both = [kept.get(mutation.name), own.get(mutation.name)];
        let print = mutation.fingerprint();
        let fitting = both.into_iter().flatten().filter(|seen| seen.fingerprint == print);
        if let Some(seen) = fitting.max_by_key(|seen| seen.at) {
            all.insert(mutation.name.to_owned(), seen.clone());
        }
    }
    all
}

fn lines(all: &Results) -> Result<String> {
    let mut rows = Vec::new();
    for (name, seen) in all {
        rows.push(format!("{}: {}", serde_json::to_string(name)?, serde_json::to_string(seen)?));
    }
    Ok(format!("{{\n{}\n}}\n", rows.join(",\n")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(mutation: &Mutation, at: u64, seconds: f64) -> Results {
        let seen = MutationResult {
            fingerprint: mutation.fingerprint(),
            caught_by: mutation.tests.first().map(Test::command),
            layer: Some(Layer::Unit),
            seconds,
            passed_by: Vec::new(),
            at,
        };
        Results::from([(mutation.name.to_owned(), seen)])
    }

    /// Other or missing results below `target/` remove no committed result; results of an older form of a bug are
    /// invalid.
    #[test]
    fn what_was_seen_elsewhere_is_kept_and_the_newer_counts() {
        let mutation = MUTATIONS.iter().copied().flatten().next().unwrap();
        let merged = |kept: Results, own: Results| newest(kept, own, std::iter::once(mutation)).remove(mutation.name);
        let seconds = |seen: Option<MutationResult>| seen.map(|seen| seen.seconds);
        assert_eq!(seconds(merged(of(mutation, 5, 1.0), Results::new())), Some(1.0));
        assert_eq!(seconds(merged(of(mutation, 5, 1.0), of(mutation, 6, 2.0))), Some(2.0));
        assert_eq!(seconds(merged(of(mutation, 7, 1.0), of(mutation, 6, 2.0))), Some(1.0));
        let mut other = of(mutation, 9, 3.0);
        other.values_mut().for_each(|seen| seen.fingerprint.push('0'));
        assert_eq!(seconds(merged(of(mutation, 5, 1.0), other.clone())), Some(1.0));
        assert_eq!(merged(other, Results::new()), None);
    }

    #[test]
    fn what_is_committed_reads_back_as_it_was() {
        let mutation = MUTATIONS.iter().copied().flatten().next().unwrap();
        let all = of(mutation, 5, 1.5);
        let text = lines(&all).unwrap();
        assert_eq!(serde_json::from_str::<Results>(&text).unwrap(), all);
        assert_eq!(text.lines().count(), 3);
        let committed = read(&kept()).unwrap();
        assert_eq!(std::fs::read_to_string(kept()).unwrap(), lines(&committed).unwrap());
    }
}
