//! `cargo xtask reached`: how often the recorded runs have reached each probe (`reached!` in the sources, ADR 0039).
//!
//! ```text
//!   sim, histories, tests, scenarios, chaos ─▶ target/reached/KIND.jsonl ─┐
//!   reached!("…") in crates/*/src ────────────────────────────────────────┴▶ table, docs/proof/reached.md, verdict
//! ```

mod allowed;

use crate::proof::{Place, grouped};
use crate::say::{line, note};
use crate::tidy::{Probe, all_probes};
use allowed::ALLOWED;
use anyhow::{Context, Result, ensure};
use holdfast_chore::binary::root;
use holdfast_chore::proof::{Run, Verdict};
use holdfast_chore::reached;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::path::Path;

/// The kind of runs that shows nothing about whole courses of events: a unit test calls the guard itself.
const TESTS: &str = "tests";

/// The page, and the place of the table on it.
const PAGE: &str = "docs/proof/reached.md";
const PLACE: Place =
    Place { begin: "<!-- reached: written by cargo xtask reached --page -->\n", end: "<!-- reached end -->\n" };

/// Options on the command line.
#[derive(Clone, Debug, Default, clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask reached           prints the table; exits with 1 if no run reached a required probe
  cargo xtask reached --page    writes it to docs/proof/reached.md as well")]
pub struct Args {
    /// Write the table to docs/proof/reached.md
    #[arg(long)]
    page: bool,
}

/// What the runs of one kind did with one probe.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Count {
    count: u64,
    /// How to repeat the first run that reached it, if the run said so.
    by: String,
}

/// A line of a file below `target/reached/`.
#[derive(serde::Deserialize)]
struct Line {
    probe: String,
    count: u64,
    #[serde(default)]
    by: String,
}

/// Kind of runs → probe → count.
type Counts = BTreeMap<String, BTreeMap<String, Count>>;

/// All probes of the tree and all counts.
struct Table {
    probes: Vec<Probe>,
    counts: Counts,
}

/// Runs the chore. Fails when files cannot be read or written, or a probe was never reached.
pub fn chore(args: &Args) -> Result<()> {
    let table = Table::read()?;
    line(table.text());
    if args.page {
        let path = root().join(PAGE);
        let page = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let page = PLACE.fill(&page, &table.page()).with_context(|| path.display().to_string())?;
        std::fs::write(&path, page).with_context(|| path.display().to_string())?;
        note(format!("written: {PAGE}"));
    }
    line(table.number());
    table.judge(ALLOWED)
}

/// Prints how many probes were reached, and no more. Fails when files cannot be read.
pub fn number() -> Result<()> {
    line(Table::read()?.number());
    Ok(())
}

impl Table {
    fn read() -> Result<Self> {
        Ok(Self { probes: all_probes()?, counts: counts(&reached::folder())? })
    }

    fn count(&self, kind: &str, probe: &Probe) -> u64 {
        self.counts.get(kind).and_then(|probes| probes.get(&probe.name)).map_or(0, |count| count.count)
    }

    /// Whether a run of whole courses of events has reached it: unit tests do not count.
    fn is_reached(&self, probe: &Probe) -> bool {
        self.counts.keys().filter(|kind| *kind != TESTS).any(|kind| self.count(kind, probe) > 0)
    }

    /// How to repeat a run that has reached it.
    fn by(&self, probe: &Probe) -> &str {
        let found = self.counts.values().filter_map(|probes| probes.get(&probe.name)).map(|count| count.by.as_str());
        found.filter(|by| !by.is_empty()).min_by_key(|by| (by.len(), *by)).unwrap_or_default()
    }

    fn number(&self) -> String {
        let reached = self.probes.iter().filter(|probe| self.is_reached(probe)).count();
        format!("{reached} of {} probes were reached (cargo xtask reached lists them)", self.probes.len())
    }

    /// One line for each probe, those that were reached least first.
    fn rows(&self) -> Vec<(&Probe, Vec<u64>)> {
        let row = |probe| (probe, self.counts.keys().map(|kind| self.count(kind, probe)).collect::<Vec<_>>());
        let mut rows: Vec<_> = self.probes.iter().map(row).collect();
        let sum = |counts: &[u64]| {
            counts.iter().zip(self.counts.keys()).filter(|(_, k)| *k != TESTS).map(|(n, _)| n).sum::<u64>()
        };
        rows.sort_by(|(a, ca), (b, cb)| (sum(ca), &a.name).cmp(&(sum(cb), &b.name)));
        rows
    }

    /// The table for a terminal.
    fn text(&self) -> String {
        let width = self.probes.iter().map(|probe| probe.name.len()).max().unwrap_or_default();
        let mut out = format!("{:width$}", "probe");
        // Writing to a string cannot fail.
        for kind in self.counts.keys() {
            let _ = write!(out, "  {kind:>9}");
        }
        out.push_str("  file\n");
        for (probe, counts) in self.rows() {
            let _ = write!(out, "{:width$}", probe.name);
            for (kind, count) in self.counts.keys().zip(counts) {
                let _ = write!(out, "  {:>1$}", grouped(count), kind.len().max(9));
            }
            let _ = writeln!(out, "  {}", probe.file);
        }
        out
    }

    /// The table as Markdown, with the reasons of probes that need not be reached.
    fn page(&self) -> String {
        let run = Run::now("reached", 0, Verdict::Held);
        let mut out = format!(
            "{}, {}: {}.\n\n",
            run.day,
            run.commit,
            self.number().replace(" (cargo xtask reached lists them)", "")
        );
        let kinds: Vec<&str> = self.counts.keys().map(String::as_str).collect();
        let _ = writeln!(out, "| probe | file | {} | for example |", kinds.join(" | "));
        let _ = writeln!(out, "| --- | --- |{} --- |", " --- |".repeat(kinds.len()));
        for (probe, counts) in self.rows() {
            let counts: Vec<String> = counts.into_iter().map(grouped).collect();
            let file = probe.file.trim_start_matches("crates/").replace("/src/", ": ");
            let _ = writeln!(out, "| {} | {file} | {} | {} |", probe.name, counts.join(" | "), self.by(probe));
        }
        if !ALLOWED.is_empty() {
            out.push_str("\nNo run has to reach these:\n\n");
            for (probe, why) in ALLOWED {
                let _ = writeln!(out, "- {probe}. {why}");
            }
        }
        out
    }

    /// Whether each probe was reached or need not be. Fails when one was not, when nothing was recorded, or when the
    /// list of exceptions names a probe that is not there.
    fn judge(&self, allowed: &[(&str, &str)]) -> Result<()> {
        let known: BTreeSet<&str> = self.probes.iter().map(|probe| probe.name.as_str()).collect();
        let gone: Vec<&str> = allowed.iter().map(|(name, _)| *name).filter(|name| !known.contains(name)).collect();
        ensure!(
            gone.is_empty(),
            "xtask/src/reached/allowed.rs names probes that are not in the sources; remove or rename these lines:\n    {}",
            gone.join("\n    ")
        );
        ensure!(
            self.counts.keys().any(|kind| kind != TESTS),
            "found no counts in {}; run cargo xtask sim or cargo xtask test first",
            reached::folder().display()
        );
        let is_allowed = |probe: &&Probe| allowed.iter().any(|(name, _)| *name == probe.name);
        for probe in self.probes.iter().filter(is_allowed).filter(|probe| self.is_reached(probe)) {
            note(format!("{}: reached, and no longer needed in xtask/src/reached/allowed.rs", probe.name));
        }
        let never: Vec<String> = self
            .probes
            .iter()
            .filter(|probe| !self.is_reached(probe) && !is_allowed(probe))
            .map(|probe| format!("{} ({})", probe.name, probe.file))
            .collect();
        ensure!(
            never.is_empty(),
            "{} probes were never reached by a run, so nothing shows that these guards work in a whole cluster. Give each a scene, a fault or a \
            setting of seeds that reaches it, or a reason in xtask/src/reached/allowed.rs:\n    {}",
            never.len(),
            never.join("\n    ")
        );
        Ok(())
    }
}

/// The counts of all kinds of runs; none if the folder is not there.
fn counts(folder: &Path) -> Result<Counts> {
    let mut counts = Counts::new();
    let found = match std::fs::read_dir(folder) {
        Ok(found) => found,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(counts),
        Err(e) => return Err(e).with_context(|| folder.display().to_string()),
    };
    for entry in found {
        let path = entry?.path();
        if path.extension().is_none_or(|extension| extension != "jsonl") {
            continue;
        }
        let kind = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        add(counts.entry(kind).or_default(), &text).with_context(|| path.display().to_string())?;
    }
    Ok(counts)
}

/// Adds the lines of a file.
fn add(counts: &mut BTreeMap<String, Count>, text: &str) -> Result<()> {
    for (number, text) in text.lines().enumerate() {
        let line: Line = serde_json::from_str(text).with_context(|| {
            format!(
                "line {}: found {text:?}, expected a probe and its count; remove the file, and run again",
                number + 1
            )
        })?;
        let sum = counts.entry(line.probe).or_default();
        sum.count += line.count;
        if sum.by.is_empty() {
            sum.by = line.by;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(lines: &[(&str, &str)]) -> Table {
        let probes = ["gate: closed", "lease: it ended"];
        let probes = probes.map(|name| Probe { name: name.into(), file: "crates/set/src/gate.rs".into() }).to_vec();
        let mut counts = Counts::new();
        for (kind, text) in lines {
            add(counts.entry((*kind).to_owned()).or_default(), text).expect("lines of JSON");
        }
        Table { probes, counts }
    }

    const GATE: &str = "{\"probe\":\"gate: closed\",\"count\":2,\"by\":\"--seed 7\"}\n";
    const LEASE: &str = "{\"probe\":\"lease: it ended\",\"count\":1}\n";

    #[test]
    fn counts_are_added_up_and_an_example_is_kept() {
        let table = table(&[("seeds", &[GATE, GATE, LEASE].concat()), ("chaos", LEASE)]);
        assert_eq!(table.rows().iter().map(|(_, counts)| counts.clone()).collect::<Vec<_>>(), [[1, 1], [0, 4]]);
        assert_eq!(table.by(&table.probes[0]), "--seed 7");
        assert!(table.number().starts_with("2 of 2 probes"), "{}", table.number());
        table.judge(&[]).expect("both are reached");
    }

    #[test]
    fn a_probe_that_only_a_unit_test_reaches_is_red_unless_it_is_allowed() {
        let table = table(&[("seeds", GATE), ("tests", LEASE)]);
        let error = table.judge(&[]).expect_err("one is not reached").to_string();
        assert!(
            error.contains("lease: it ended (crates/set/src/gate.rs)") && !error.contains("gate: closed"),
            "{error}"
        );
        table.judge(&[("lease: it ended", "a reason")]).expect("it need not be reached");
    }

    #[test]
    fn no_counts_and_a_stale_exception_are_red() {
        let nothing = table(&[("tests", &[GATE, LEASE].concat())]).judge(&[]).expect_err("no run").to_string();
        assert!(nothing.starts_with("found no counts"), "{nothing}");
        let all = table(&[("seeds", &[GATE, LEASE].concat())]);
        let stale = all.judge(&[("gate: gone", "a reason")]).expect_err("not in the sources").to_string();
        assert!(stale.contains("gate: gone"), "{stale}");
    }

    /// Otherwise the long run would be red for hours of work before anybody sees it.
    #[test]
    fn the_list_of_exceptions_names_probes_of_the_tree() {
        let known = all_probes().expect("the sources");
        assert!(known.len() > 50, "found {} probes", known.len());
        for (name, why) in ALLOWED {
            assert!(known.iter().any(|probe| probe.name == *name), "{name}: no such probe");
            assert!(why.len() > 20 && why.ends_with('.'), "{name}: expected a reason, a sentence with a full stop");
        }
    }
}
