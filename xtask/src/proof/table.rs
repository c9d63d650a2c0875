//! The table of runs, summed up by what ran.

use super::{Run, Verdict};
use anyhow::{Context, Result};
use std::collections::BTreeMap;
use std::fmt::Write;

/// The marker lines of a page between which a table is written.
pub(crate) struct Place {
    pub begin: &'static str,
    pub end: &'static str,
}

/// The place of this table.
pub(super) const PLACE: Place =
    Place { begin: "<!-- runs: written by cargo xtask proof -->\n", end: "<!-- runs end -->\n" };

#[derive(Default)]
struct Sum<'a> {
    runs: u64,
    /// Runs by the profile of the program, as far as it was recorded.
    builds: BTreeMap<&'a str, u64>,
    seconds: u64,
    faults: u64,
    did: BTreeMap<&'a str, u64>,
    unknown: u64,
    broken: u64,
    last: (&'a str, &'a str),
}

/// The table, as Markdown.
pub(super) fn text(all: &[Run]) -> String {
    let mut sums: BTreeMap<&str, Sum<'_>> = BTreeMap::new();
    for run in all {
        let sum = sums.entry(&run.what).or_default();
        sum.runs += 1;
        if !run.profile.is_empty() {
            *sum.builds.entry(&run.profile).or_default() += 1;
        }
        sum.seconds += run.seconds;
        sum.faults += run.faults;
        sum.unknown += u64::from(run.verdict == Verdict::Unknown);
        sum.broken += u64::from(run.verdict == Verdict::Broken);
        for (what, count) in &run.did {
            *sum.did.entry(what).or_default() += count;
        }
        if sum.last.0 <= run.day.as_str() {
            sum.last = (&run.day, &run.commit);
        }
    }
    let mut out = String::from(
        "| what | runs | builds | time | faults | what succeeded | not held | unknown | last |\n| --- | --- | --- | --- | --- | --- | --- | --- | --- |\n",
    );
    for (what, sum) in sums {
        let (day, commit) = sum.last;
        let last = if commit.is_empty() { day.to_owned() } else { format!("{day}, {commit}") };
        // Writing to a string cannot fail.
        let _ = writeln!(
            out,
            "| {what} | {} | {} | {} | {} | {} | {} | {} | {last} |",
            sum.runs,
            counted(&sum.builds),
            lasted(sum.seconds),
            grouped(sum.faults),
            counted(&sum.did),
            sum.broken,
            sum.unknown
        );
    }
    for run in all.iter().filter(|run| run.verdict == Verdict::Broken) {
        let under = if run.under.is_empty() { String::new() } else { format!(" under {}", run.under) };
        let seed = run.seed.map_or_else(String::new, |seed| format!(", seed {seed}"));
        let build = if run.profile.is_empty() { String::new() } else { format!(", {}", run.profile) };
        let _ = write!(out, "\nDid not hold: {}{under}{seed}, {}{build}: {}.\n", run.what, run.day, run.note);
    }
    out
}

impl Place {
    /// The page with `table` in this place. Fails when the page has no such place.
    pub(crate) fn fill(&self, page: &str, table: &str) -> Result<String> {
        let Self { begin, end } = self;
        let (before, rest) = page.split_once(begin).with_context(|| format!("no line {:?}", begin.trim()))?;
        let (_, after) = rest.split_once(end).with_context(|| format!("no line {:?}", end.trim()))?;
        Ok(format!("{before}{begin}\n{table}\n{end}{after}"))
    }
}

/// Counts with their names: `3 dev, 1 release`.
fn counted(counts: &BTreeMap<&str, u64>) -> String {
    counts.iter().map(|(what, count)| format!("{} {what}", grouped(*count))).collect::<Vec<_>>().join(", ")
}

fn lasted(seconds: u64) -> String {
    match seconds {
        0 => "not noted".into(),
        1..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

/// With thousands separators.
pub(crate) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut out = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_shows_which_builds_ran() {
        let run = |profile: &str, verdict| {
            let run = Run::now("chaos", 90, verdict).built(profile);
            Run { day: "2026-11-30".into(), ..run }
        };
        let broken = Run { note: "why".into(), ..run("release", Verdict::Broken) };
        let table = text(&[run("", Verdict::Held), run("dev", Verdict::Held), run("release", Verdict::Held), broken]);
        assert!(table.contains("| chaos | 4 | 1 dev, 2 release | 6 min | 0 |  | 1 | 0 | 2026-11-30"), "{table}");
        assert!(table.contains("\nDid not hold: chaos, 2026-11-30, release: why.\n"), "{table}");
        assert!(text(&[run("", Verdict::Held)]).contains("| chaos | 1 |  | 90 s |"), "older rows do not say it");
    }

    #[test]
    fn numbers_and_times_are_as_a_person_reads_them() {
        assert_eq!([0, 999, 1000, 544_530, 1_234_567].map(grouped), ["0", "999", "1,000", "544,530", "1,234,567"]);
        assert_eq!([0, 59, 120, 7199, 7200].map(lasted), ["not noted", "59 s", "2 min", "119 min", "2 h 0 min"]);
    }
}
