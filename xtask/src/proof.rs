//! `proof`: what was run, counted. Chores that prove something note each run below `target/`; `proof --keep` takes those notes into the tree, and the table on
//! docs/proof/README.md and the matrix on docs/proof/jepsen.md are written from what is in the tree, by nothing else.
//!
//! ```text
//!   chaos, sim, power, demo, jepsen, zfs, e2e ─▶ target/proof/runs.jsonl ─▶ docs/proof/runs.jsonl ─▶ the table on docs/proof/README.md, the matrix on docs/proof/jepsen.md
//! ```

mod matrix;
mod table;

use crate::binary::root;
use crate::cmd::cmd;
use crate::say::{line, note};
use anyhow::{Context, Result, bail};
use std::collections::{BTreeMap, VecDeque};
use std::io::Write;
use std::path::{Path, PathBuf};

/// A page, where on it, and what is written there.
type Table = (&'static str, table::Place, fn(&[Run]) -> String);

/// What is written from what the tree has.
const TABLES: [Table; 2] =
    [("docs/proof/README.md", table::PLACE, table::text), ("docs/proof/jepsen.md", matrix::PLACE, matrix::text)];

/// How a note begins that a chore wrote by itself: [`ended_at`].
const ENDED_AT: &str = "ended at ";

/// Of what went wrong a note has so many characters: it is a line on a page.
const NOTE_CHARS_MAX: usize = 300;

/// What a chore noted before it noted anything definite: that output is gone.
const NOTHING_SAID: &str = "the end of its output says what";

/// What a person can turn.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask proof             what was run here since the last build folder, and what the tree has
  cargo xtask proof --keep      takes the runs of this copy into docs/proof/runs.jsonl, and writes the table on docs/proof/README.md and the matrix on
                                docs/proof/jepsen.md anew
  cargo xtask proof --page      writes those two anew")]
pub struct Args {
    /// Take the runs of this copy into the tree, and write the tables
    #[arg(long)]
    keep: bool,
    /// Write the tables from what the tree has
    #[arg(long)]
    page: bool,
}

/// What came of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, serde::Serialize, serde::Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Everything held.
    Held,
    /// It did too little to mean anything, or nobody could judge it.
    Unknown,
    /// Something did not hold.
    Broken,
}

/// One run, as it is kept: a line of JSON.
#[derive(Clone, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Run {
    /// What ran, as the table has it: `chaos`, `Jepsen: register`.
    pub what: String,
    /// Under what, where there is a choice.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub under: String,
    /// The day, as `2026-11-23` (UTC).
    pub day: String,
    /// Of the tree; `+` behind it: with changes that were not committed. Empty where it is not known.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub commit: String,
    /// It lasted for so many seconds.
    pub seconds: u64,
    /// The first seed, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seed: Option<u64>,
    /// Faults that were made.
    pub faults: u64,
    /// What succeeded, by what it is: `commits`, `read`.
    pub did: BTreeMap<String, u64>,
    pub verdict: Verdict,
    /// Of one that did not hold: what became of it.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl Run {
    /// One of today, of this tree.
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
            seconds,
            seed: None,
            faults: 0,
            did: BTreeMap::new(),
            verdict,
            note: String::new(),
        }
    }

    /// With what succeeded.
    pub fn did(mut self, what: &str, count: u64) -> Self {
        if count > 0 {
            *self.did.entry(what.to_owned()).or_default() += count;
        }
        self
    }

    /// Notes it below `target/`. A run is no worse for a note that cannot be written: that is said, and no more.
    pub fn note(&self) {
        let path = own();
        let write = || -> Result<()> {
            std::fs::create_dir_all(path.parent().context("a folder")?)?;
            let mut file = std::fs::OpenOptions::new().create(true).append(true).open(&path)?;
            Ok(file.write_all(format!("{}\n", serde_json::to_string(self)?).as_bytes())?)
        };
        if let Err(error) = write() {
            note(format!("{}: the run was not noted: {error:#}", path.display()));
        }
    }
}

/// What a run came to, of its outcome.
pub fn held<T, E>(outcome: &Result<T, E>) -> Verdict {
    if outcome.is_ok() { Verdict::Held } else { Verdict::Broken }
}

/// What a chore itself notes of a run that did not hold: the first line of what went wrong.
pub fn ended_at(error: &str) -> String {
    let first = error.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    let first: String = first.chars().take(NOTE_CHARS_MAX).collect();
    // The page ends the sentence.
    format!("{ENDED_AT}{}", first.trim_end_matches(['.', ':', ' ']))
}

/// Whether a note says what became of a run.
fn says_why(note: &str) -> bool {
    !matches!(note.trim(), "" | NOTHING_SAID)
}

/// Of two notes of one run the one that is worth more stays: one that says why, a person's rather than a chore's own, the longer one.
fn worth(note: &str) -> (bool, bool, usize) {
    (says_why(note), !note.starts_with(ENDED_AT), note.len())
}

/// What tells a run from others. Its note does not: it may be written, or written anew, long after the run, below `target/` or in the tree.
fn but_for_its_note(run: &Run) -> String {
    text(&Run { note: String::new(), ..run.clone() })
}

/// `tree` with what is new of `own`. Runs that are alike but for their notes are one, which comes again with every `--keep`; two that are alike within one file are two.
///
/// # Errors
/// When a run did not hold and no note says why.
fn merged(tree: &[Run], own: &[Run]) -> Result<Vec<Run>> {
    let mut all = tree.to_vec();
    let mut known: BTreeMap<String, VecDeque<usize>> = BTreeMap::new();
    for (at, run) in tree.iter().enumerate() {
        known.entry(but_for_its_note(run)).or_default().push_back(at);
    }
    for run in own {
        match known.get_mut(&but_for_its_note(run)).and_then(VecDeque::pop_front) {
            Some(at) if worth(&run.note) > worth(&all[at].note) => all[at].note.clone_from(&run.note),
            Some(_) => {}
            None => all.push(run.clone()),
        }
    }
    if let Some(run) = all.iter().find(|run| run.verdict == Verdict::Broken && !says_why(&run.note)) {
        bail!(
            "nothing was taken: a run did not hold, and its note does not say why. Write what became of it into \"note\" \
             of its line in target/proof/runs.jsonl (where nobody knows: \"cause not recorded\"), and keep again: {}",
            text(run)
        );
    }
    Ok(all)
}

/// The row that the Jepsen test says at the end of a run: workload, nemesis, lie, seconds, seed, succeeded, unknown, faults, two times, verdict. `None`: no such row, or a
/// run with a lie in it, which proves a checker and not the product.
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

/// The closing lines of `holdfast-sim many`: `in all: 25 s simulated, 7 faults, …` and `12 seeds (1 to 12) of 4 s of faults, 0 failed, 63 s, 80 s of processors`.
pub fn simulation(text: &str) -> Option<Run> {
    let sums = text.lines().rev().find_map(|line| line.strip_prefix("in all: "))?;
    let count = |what: &str| {
        let found = sums.split(", ").find_map(|part| part.strip_suffix(what)?.trim().parse::<u64>().ok());
        found.unwrap_or_default()
    };
    // Those of one store, of hosts and of agents are counted by themselves.
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

/// The chore.
///
/// # Errors
/// When notes cannot be read or written, hold something that is none, or do not say why a run that is to be kept did not hold.
pub fn chore(args: &Args) -> Result<()> {
    let mut all = read(&kept())?;
    let new = read(&own())?;
    if args.keep {
        let before = all.len();
        all = merged(&all, &new)?;
        note(format!("{} runs are new", all.len() - before));
        let lines: String = all.iter().map(|run| text(run) + "\n").collect();
        std::fs::write(kept(), lines).with_context(|| kept().display().to_string())?;
    }
    if args.keep || args.page {
        for (name, place, text) in TABLES {
            let path = root().join(name);
            let page = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
            let page = place.fill(&page, &text(&all)).with_context(|| path.display().to_string())?;
            std::fs::write(&path, page).with_context(|| path.display().to_string())?;
            note(format!("written: {name}"));
        }
        return Ok(());
    }
    line("In the tree:");
    line(table::text(&all));
    line("Of this copy (--keep takes them into the tree):");
    line(table::text(&new));
    Ok(())
}

fn text(run: &Run) -> String {
    serde_json::to_string(run).unwrap_or_default()
}

/// Committed. One line for each run, so that two branches that ran different ones merge.
fn kept() -> PathBuf {
    root().join("docs/proof/runs.jsonl")
}

/// Of this copy.
fn own() -> PathBuf {
    root().join("target/proof/runs.jsonl")
}

fn read(path: &Path) -> Result<Vec<Run>> {
    let text = match std::fs::read_to_string(path) {
        Ok(text) => text,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e).with_context(|| path.display().to_string()),
    };
    let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
    let run = |(at, line): (usize, &str)| {
        serde_json::from_str(line).with_context(|| format!("{}:{}: not a run", path.display(), at + 1))
    };
    lines.map(run).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn the_pages_have_the_tables_of_what_was_kept() {
        let all = read(&kept()).expect("the runs");
        assert!(!all.is_empty());
        let mut known = BTreeSet::new();
        for run in all.iter().filter(|run| run.verdict == Verdict::Broken) {
            assert!(says_why(&run.note), "what became of it? {run:?}");
            assert!(known.insert(but_for_its_note(run)), "it is there twice: {run:?}");
        }
        for (name, place, text) in TABLES {
            let page = std::fs::read_to_string(root().join(name)).expect("the page");
            let expected = place.fill(&page, &text(&all)).expect("its marks");
            assert!(
                page == expected,
                "{name} says something else than docs/proof/runs.jsonl: cargo xtask proof --page"
            );
        }
    }

    fn broken(note: &str) -> Run {
        let (what, under, day) = ("zfs".to_string(), "standby".to_string(), "2026-11-25".to_string());
        let (commit, did, note) = ("af960c7".to_string(), BTreeMap::new(), note.to_string());
        Run { what, under, day, commit, seconds: 254, seed: None, faults: 0, did, verdict: Verdict::Broken, note }
    }

    #[test]
    fn a_run_is_kept_once_with_the_note_that_is_worth_most() {
        let kept = |tree: &[Run], own: &[Run]| merged(tree, own).expect("each says why");
        let (chore, person) = (broken(&ended_at("part standby: no pool\n")), broken("no pool: mended"));
        assert_eq!(chore.note, "ended at part standby: no pool");
        assert_eq!(kept(&[], std::slice::from_ref(&chore)), std::slice::from_ref(&chore));
        for (tree, own) in [(&chore, &person), (&person, &chore), (&broken(NOTHING_SAID), &person)] {
            let all = kept(std::slice::from_ref(tree), std::slice::from_ref(own));
            assert_eq!(all, std::slice::from_ref(&person), "a person's word, wherever it was written");
        }
        let longer = broken("no pool: mended, and seen by the next run");
        assert_eq!(kept(std::slice::from_ref(&person), std::slice::from_ref(&longer)), [longer]);
        // The same in everything, and each was a run.
        let twice = [person.clone(), person.clone()];
        assert_eq!(kept(&[], &twice), twice);
        assert_eq!(kept(&twice[..1], &twice), twice);
        assert_eq!(kept(&twice, &twice), twice);
    }

    #[test]
    fn a_run_that_did_not_hold_is_not_kept_without_a_reason() {
        for note in ["", " ", NOTHING_SAID] {
            let error = merged(&[], &[broken(note)]).expect_err("nothing says why").to_string();
            assert!(error.contains("target/proof/runs.jsonl"), "{error}");
        }
        let held = Run { verdict: Verdict::Held, ..broken("") };
        assert_eq!(merged(&[], std::slice::from_ref(&held)).expect("it held"), [held]);
        assert_eq!(ended_at(&"ü".repeat(NOTE_CHARS_MAX + 1)).chars().count(), ENDED_AT.len() + NOTE_CHARS_MAX);
    }

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
