//! docs/proof/mutants.md: how many mutants of each crate no test notices, and which.

use super::results::{self, MutantResult, OfCrate, Reasons};
use super::scope::SCOPES;
use super::tool::Outcome;
use crate::binary::root;
use crate::say::note;
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fmt::Write;

const PATH: &str = "docs/proof/mutants.md";

const HEAD: &str = "# Mutants of the safety code

`cargo-mutants` changes one place at a time: an operator, a match arm, or the body of a function, which then returns a fixed value. Each change is a
mutant. The tests of its crate must then fail. A mutant with which they pass survives: no test holds this place.
Most mutants of a crate are in one build, or a few, and one is chosen when the tests start; `cargo-mutants` itself tries the others, with a build each.
[Known bugs](mutations.md) are a list of our own, for bugs that take more than one such change. ADRs: [mutants](../adr/0040-mutants.md),
[many in one build](../adr/0082-mutants-in-one-build.md).

    cargo xtask mutants                       all without a result yet, and survivors without a reason; nights
    cargo xtask mutants --shard 1/8           one part of eight
    cargo xtask mutants --crate seal,journal  only these crates
    cargo xtask mutants --in-diff main        those in lines changed since a branch or commit
    cargo xtask mutants --change              those of the change; the gate tries a dozen of them for two minutes, the long run all for thirty
    cargo xtask mutants --build-each          a build for each mutant, to compare
    cargo xtask mutants --page                writes this page

`.cargo/mutants.toml` names the files and says why; `mutations/src/mutants/scope.rs` names the tests that decide. Results are in
`mutations/mutants/`. A result counts while the text of the function stays the same.

**Viable** mutants compile. **Timed out** means that the tests did not end, which a user of the tests notices too. **Explained** survivors have a reason below:
*equivalent* (it behaves as the original does) or *cost only* (it costs time, memory or requests, no data). **Die** is the share of viable mutants, without equivalent
ones, that are caught or time out. **Seconds** are those of the tests, and of the build where a mutant had one of its own.
";

/// Writes the page from the committed results. Fails when results cannot be read, or the page cannot be written.
pub(super) fn write() -> Result<()> {
    let path = root().join(PATH);
    let text = text(&results::committed()?, &results::reasons()?);
    std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    note(format!("written: {PATH}"));
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct Sum {
    listed: usize,
    unviable: usize,
    caught: usize,
    timed_out: usize,
    survived: usize,
    equivalent: usize,
    cost_only: usize,
    seconds: f64,
}

impl Sum {
    fn of(of_crate: &OfCrate, reasons: &Reasons) -> Self {
        let mut sum = Self { listed: of_crate.listed, ..Self::default() };
        for (key, seen) in &of_crate.seen {
            sum.seconds += seen.seconds;
            match seen.outcome {
                Outcome::Unviable => sum.unviable += 1,
                Outcome::Caught => sum.caught += 1,
                Outcome::TimedOut => sum.timed_out += 1,
                Outcome::Survived => sum.survived += 1,
            }
            let survived = seen.outcome == Outcome::Survived;
            match results::reason(reasons, key, &seen.text).filter(|_| survived).map(|reason| reason.kind) {
                Some(results::Kind::Equivalent) => sum.equivalent += 1,
                Some(results::Kind::CostOnly) => sum.cost_only += 1,
                None => {}
            }
        }
        sum
    }

    fn add(&mut self, other: Self) {
        self.listed += other.listed;
        self.unviable += other.unviable;
        self.caught += other.caught;
        self.timed_out += other.timed_out;
        self.survived += other.survived;
        self.equivalent += other.equivalent;
        self.cost_only += other.cost_only;
        self.seconds += other.seconds;
    }

    fn row(&self, name: &str) -> String {
        let dead = self.caught + self.timed_out;
        let viable = dead + self.survived;
        let tried = viable + self.unviable;
        // In tenths of a percent, rounded down: 100 % must mean all.
        let share = (dead * 1000).checked_div(viable - self.equivalent);
        let die = share.map_or_else(String::new, |share| format!("{}.{} %", share / 10, share % 10));
        let each = if tried == 0 { String::new() } else { format!("{:.1}", self.seconds / tried as f64) };
        format!(
            "| {name} | {} | {} | {viable} | {} | {} | {} | {} | {die} | {each} |\n",
            self.listed,
            self.listed.saturating_sub(tried),
            self.caught,
            self.timed_out,
            self.survived,
            self.equivalent + self.cost_only,
        )
    }
}

fn text(all: &BTreeMap<&'static str, OfCrate>, reasons: &Reasons) -> String {
    let mut out = String::from(HEAD);
    out.push_str(
        "\n| crate | mutants | not run | viable | caught | timed out | survived | explained | die | seconds each |\n",
    );
    out.push_str("| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |\n");
    let mut whole = Sum::default();
    let of = |name: &str| all.get(name).cloned().unwrap_or_default();
    for scope in &SCOPES {
        let sum = Sum::of(&of(scope.name), reasons);
        whole.add(sum);
        out.push_str(&sum.row(&format!("`{}`", scope.name)));
    }
    out.push_str(&whole.row("all"));
    out.push_str("\n## Survivors\n");
    for scope in &SCOPES {
        let of_crate = of(scope.name);
        let survivors: Vec<_> = of_crate.seen.iter().filter(|(_, seen)| seen.outcome == Outcome::Survived).collect();
        if survivors.is_empty() {
            continue;
        }
        // Writing to a string cannot fail.
        let _ = writeln!(out, "\n### {}\n\n| file | mutant | reason |\n| --- | --- | --- |", scope.name);
        for (key, seen) in survivors {
            out.push_str(&survivor(scope.name, key, seen, reasons));
        }
    }
    out
}

fn survivor(crate_name: &str, key: &str, seen: &MutantResult, reasons: &Reasons) -> String {
    let (file, change) = key.split_once(": ").unwrap_or((key, ""));
    let file = file.strip_prefix(&format!("crates/{crate_name}/src/")).unwrap_or(file);
    let reason = match results::reason(reasons, key, &seen.text) {
        Some(reason) if reason.kind == results::Kind::Equivalent => format!("equivalent: {}", reason.why),
        Some(reason) => format!("cost only: {}", reason.why),
        None => "**no test yet**".into(),
    };
    format!("| `{file}` | `{}` | {} |\n", change.replace('|', "\\|"), reason.replace('|', "\\|"))
}

#[cfg(test)]
mod tests {
    use super::super::results::{Kind, Reason};
    use super::*;

    #[test]
    fn the_page_is_that_of_the_committed_results() {
        let page = std::fs::read_to_string(root().join(PATH)).unwrap();
        let expected = text(&results::committed().unwrap(), &results::reasons().unwrap());
        assert!(page == expected, "run cargo xtask mutants --page");
    }

    #[test]
    fn a_row_counts_each_outcome_and_only_valid_reasons() {
        let seen = |outcome| MutantResult { text: "t".into(), outcome, seconds: 2.0, commit: "abc".into(), at: 1 };
        let reason = |text: &str, kind| Reason { text: text.into(), kind, why: "a | b".into() };
        let outcomes = [
            ("a", Outcome::Caught),
            ("b", Outcome::TimedOut),
            ("c", Outcome::Unviable),
            ("d", Outcome::Survived),
            ("crates/seal/src/x.rs: replace || with && in e", Outcome::Survived),
            ("f", Outcome::Survived),
        ];
        let results = outcomes.into_iter().map(|(key, outcome)| (key.to_owned(), seen(outcome))).collect();
        let all = BTreeMap::from([("seal", OfCrate { listed: 8, seen: results })]);
        let reasons = Reasons::from([
            // Caught: a reason is not counted.
            ("a".into(), reason("t", Kind::Equivalent)),
            ("d".into(), reason("t", Kind::Equivalent)),
            ("crates/seal/src/x.rs: replace || with && in e".into(), reason("t", Kind::CostOnly)),
            ("f".into(), reason("older", Kind::Equivalent)),
        ]);
        let page = text(&all, &reasons);
        // Two of the four that are not equivalent die.
        assert!(page.contains("| `seal` | 8 | 2 | 5 | 1 | 1 | 3 | 2 | 50.0 % | 2.0 |\n"), "{page}");
        assert!(page.contains("| `x.rs` | `replace \\|\\| with && in e` | cost only: a \\| b |\n"), "{page}");
        assert!(page.contains("| `f` | `` | **no test yet** |\n"), "{page}");
    }
}
