//! `proof`: counts recorded runs. Chores that prove something record each run below `target/`. `proof --keep` copies
//! the records into the repository. The table on docs/proof/README.md and the matrix on docs/proof/jepsen.md are
//! generated from the records in the repository only.
//!
//! ```text
//!   chaos, sim, power, demo, jepsen, zfs, e2e ─▶ target/proof/runs.jsonl ─▶ docs/proof/runs.jsonl ─▶ the table on docs/proof/README.md, the matrix on docs/proof/jepsen.md
//! ```

mod matrix;
mod table;

use crate::binary::root;
use crate::say::{line, note};
use anyhow::{Context, Result, bail};
use holdfast_chore::proof::{ENDED_AT, own};
pub use holdfast_chore::proof::{Run, Verdict};
use std::collections::{BTreeMap, VecDeque};
use std::path::{Path, PathBuf};
pub(crate) use table::{Place, grouped};

/// A page, the place on it, and the function that generates the text for that place.
type Table = (&'static str, table::Place, fn(&[Run]) -> String);

/// The tables that are generated from the records in the repository.
const TABLES: [Table; 2] =
    [("docs/proof/README.md", table::PLACE, table::text), ("docs/proof/jepsen.md", matrix::PLACE, matrix::text)];

/// The note that older chores wrote instead of a reason. The output that it refers to is gone.
const NOTHING_SAID: &str = "the end of its output says what";

/// Options on the command line.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask proof             shows the runs recorded below target/, and those in the repository
  cargo xtask proof --keep      adds those below target/ to docs/proof/runs.jsonl, then writes the pages
  cargo xtask proof --page      writes docs/proof/README.md (table) and docs/proof/jepsen.md (matrix)")]
pub struct Args {
    /// Add the runs recorded below target/ to docs/proof/runs.jsonl, and write the tables
    #[arg(long)]
    keep: bool,
    /// Write the tables from docs/proof/runs.jsonl
    #[arg(long)]
    page: bool,
}

/// Whether a note gives a reason.
fn says_why(note: &str) -> bool {
    !matches!(note.trim(), "" | NOTHING_SAID)
}

/// Order of two notes of one run; the greater one is kept. A note with a reason beats one without, a person's note
/// beats a chore's, and a longer note beats a shorter one.
fn worth(note: &str) -> (bool, bool, usize) {
    (says_why(note), !note.starts_with(ENDED_AT), note.len())
}

/// Identity of a run: everything except its note. A note may be written or changed long after the run, below `target/`
/// or in the repository.
fn but_for_its_note(run: &Run) -> String {
    text(&Run { note: String::new(), ..run.clone() })
}

/// `tree` with the new runs of `own`. A run in `own` that equals one in `tree`, except for the note, is the same run:
/// every `--keep` reads it again. Two equal runs within one file are two runs. Fails when a run failed and its note
/// gives no reason.
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
            "no run was added: a run failed, and its note gives no reason. Write the reason into \"note\" of its line in \
            target/proof/runs.jsonl (if nobody knows it: \"cause not recorded\"), and run --keep again: {}",
            text(run)
        );
    }
    Ok(all)
}

/// Runs the chore. Fails when records cannot be read, parsed or written, or when a failed run that is to be added has
/// no reason.
pub fn chore(args: &Args) -> Result<()> {
    let mut all = read(&kept())?;
    let new = read(&own())?;
    if args.keep {
        let before = all.len();
        all = merged(&all, &new)?;
        note(format!("{} new runs", all.len() - before));
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
    line("In the repository:");
    line(table::text(&all));
    line("Recorded below target/ (--keep adds them to the repository):");
    line(table::text(&new));
    Ok(())
}

fn text(run: &Run) -> String {
    serde_json::to_string(run).unwrap_or_default()
}

/// Committed. One line for each run, so that branches with different runs merge without conflict.
fn kept() -> PathBuf {
    root().join("docs/proof/runs.jsonl")
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
    use holdfast_chore::proof::{NOTE_CHARS_MAX, ended_at};
    use std::collections::BTreeSet;

    #[test]
    fn the_pages_have_the_tables_of_what_was_kept() {
        let all = read(&kept()).expect("the runs");
        assert!(!all.is_empty());
        let mut known = BTreeSet::new();
        for run in all.iter().filter(|run| run.verdict == Verdict::Broken) {
            assert!(says_why(&run.note), "no reason in the note: {run:?}");
            assert!(known.insert(but_for_its_note(run)), "recorded twice: {run:?}");
        }
        for (name, place, text) in TABLES {
            let page = std::fs::read_to_string(root().join(name)).expect("the page");
            let expected = place.fill(&page, &text(&all)).expect("its marks");
            assert!(page == expected, "{name} does not match docs/proof/runs.jsonl: run cargo xtask proof --page");
        }
    }

    fn broken(note: &str) -> Run {
        let (what, under, day) = ("zfs".to_string(), "standby".to_string(), "2026-11-25".to_string());
        let (commit, profile) = ("af960c7".to_string(), String::new());
        let (did, verdict, note) = (BTreeMap::new(), Verdict::Broken, note.to_string());
        Run { what, under, day, commit, profile, seconds: 254, seed: None, faults: 0, did, verdict, note }
    }

    #[test]
    fn a_run_is_kept_once_with_the_note_that_is_worth_most() {
        let kept = |tree: &[Run], own: &[Run]| merged(tree, own).expect("each has a reason");
        let (chore, person) = (broken(&ended_at("part standby: no pool\n")), broken("no pool: mended"));
        assert_eq!(chore.note, "ended at part standby: no pool");
        assert_eq!(kept(&[], std::slice::from_ref(&chore)), std::slice::from_ref(&chore));
        for (tree, own) in [(&chore, &person), (&person, &chore), (&broken(NOTHING_SAID), &person)] {
            let all = kept(std::slice::from_ref(tree), std::slice::from_ref(own));
            assert_eq!(all, std::slice::from_ref(&person), "a person's note wins, in whichever file it is");
        }
        let longer = broken("no pool: mended, and seen by the next run");
        assert_eq!(kept(std::slice::from_ref(&person), std::slice::from_ref(&longer)), [longer]);
        // Equal in everything, and still two runs.
        let twice = [person.clone(), person.clone()];
        assert_eq!(kept(&[], &twice), twice);
        assert_eq!(kept(&twice[..1], &twice), twice);
        assert_eq!(kept(&twice, &twice), twice);
    }

    #[test]
    fn a_run_that_did_not_hold_is_not_kept_without_a_reason() {
        for note in ["", " ", NOTHING_SAID] {
            let error = merged(&[], &[broken(note)]).expect_err("no reason").to_string();
            assert!(error.contains("target/proof/runs.jsonl"), "{error}");
        }
        let held = Run { verdict: Verdict::Held, ..broken("") };
        assert_eq!(merged(&[], std::slice::from_ref(&held)).expect("it held"), [held]);
        assert_eq!(ended_at(&"ü".repeat(NOTE_CHARS_MAX + 1)).chars().count(), ENDED_AT.len() + NOTE_CHARS_MAX);
    }
}
