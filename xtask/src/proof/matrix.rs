//! The matrix of Jepsen's workloads and single faults: runs that were long enough to mean something.

use super::table::{Place, grouped};
use super::{Run, Verdict};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

/// The place on docs/proof/jepsen.md.
pub(super) const PLACE: Place =
    Place { begin: "<!-- matrix: written by cargo xtask proof -->\n", end: "<!-- matrix end -->\n" };

/// Minimum length: a shorter run proves nothing.
const SECONDS_MIN: u64 = 300;

/// On volumes, then on PostgreSQL: in the order of the page.
const WORKLOADS: [&str; 5] = ["register", "order", "lease", "flush-kill", "append"];

/// The prefix of a Jepsen run's name, before the workload.
const JEPSEN: &str = "Jepsen: ";

#[derive(Default)]
struct Cell {
    held: u64,
    unknown: u64,
    broken: u64,
    /// Faults in the runs that passed.
    faults: u64,
}

/// The matrix, as Markdown: faults down, workloads across.
pub(super) fn text(all: &[Run]) -> String {
    let mut cells: BTreeMap<(&str, &str), Cell> = BTreeMap::new();
    for run in all.iter().filter(|run| run.seconds >= SECONDS_MIN) {
        let Some((workload, fault)) = run.what.strip_prefix(JEPSEN).zip(alone(&run.under)) else { continue };
        let cell = cells.entry((fault, workload)).or_default();
        match run.verdict {
            Verdict::Held => {
                cell.held += 1;
                cell.faults += run.faults;
            }
            Verdict::Unknown => cell.unknown += 1,
            Verdict::Broken => cell.broken += 1,
        }
    }
    let mut out = format!("| fault | {} |\n|{}\n", WORKLOADS.join(" | "), " --- |".repeat(1 + WORKLOADS.len()));
    let faults: BTreeSet<&str> = cells.keys().map(|(fault, _)| *fault).collect();
    for fault in faults {
        let row = WORKLOADS.map(|workload| cells.get(&(fault, workload)).map_or_else(String::new, Cell::text));
        // Writing to a string cannot fail.
        let _ = writeln!(out, "| {fault} | {} |", row.join(" | "));
    }
    out
}

/// The fault, if the run had only one. A remark in brackets is not part of the name.
fn alone(under: &str) -> Option<&str> {
    let name = under.split_once(" (").map_or(under, |(name, _)| name);
    (!name.is_empty() && !name.contains([',', ' '])).then_some(name)
}

impl Cell {
    fn text(&self) -> String {
        let faults = if self.faults == 1 { "fault" } else { "faults" };
        let held = match self.held {
            0 => String::new(),
            1 => format!("valid, {} {faults}", grouped(self.faults)),
            many => format!("{many} valid, {} {faults}", grouped(self.faults)),
        };
        let others = [(self.broken, "did not hold"), (self.unknown, "no verdict")];
        let others = others.into_iter().filter(|(count, _)| *count > 0).map(|(count, what)| format!("{count} {what}"));
        std::iter::once(held).filter(|held| !held.is_empty()).chain(others).collect::<Vec<_>>().join("; ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(workload: &str, under: &str, seconds: u64, verdict: Verdict) -> Run {
        Run { under: under.into(), faults: 600, ..Run::now(format!("{JEPSEN}{workload}"), seconds, verdict) }
    }

    #[test]
    fn only_what_was_alone_and_long_enough_is_in_it() {
        let all = [
            run("register", "kill", 300, Verdict::Held),
            run("register", "kill (an older build)", 600, Verdict::Held),
            run("register", "kill", 300, Verdict::Unknown),
            run("order", "kill", 299, Verdict::Held),
            run("lease", "kill,loss", 300, Verdict::Held),
            run("lease", "kill", 300, Verdict::Broken),
            Run { what: "chaos".into(), ..run("", "kill", 300, Verdict::Held) },
            Run { faults: 1, ..run("append", "corrupt", 300, Verdict::Held) },
        ];
        let expected = "| fault | register | order | lease | flush-kill | append |\n\
                        | --- | --- | --- | --- | --- | --- |\n\
                        | corrupt |  |  |  |  | valid, 1 fault |\n\
                        | kill | 2 valid, 1,200 faults; 1 no verdict |  | 1 did not hold |  |  |\n";
        assert_eq!(text(&all), expected);
    }
}
