//! docs/proof/mutations.md: the list as a table, with the latest result of each bug.

use super::list::{Layer, MUTATIONS, Mutation};
use super::seen::{Results, Seen};
use crate::binary::root;
use crate::say::note;
use anyhow::{Context, Result};
use std::fmt::Write;

const PATH: &str = "docs/proof/mutations.md";

const HEAD: &str = "# Known bugs, put in on purpose

Each row is a bug that such systems have had or could have. It is put into a copy of the sources, and tests that are green without it must go
red. A row that nothing catches is a hole to close. This page is written by `cargo xtask mutations --page`; the list is
`mutations/src/list/`, and what runs have seen of it `mutations/src/seen.json`: a run below `target/` adds to that, and takes nothing away.

    cargo xtask mutations                   all of them; hours, most of it building
    cargo xtask mutations --only NAME,..    some
    cargo xtask mutations --smoke           a few, in a minute or two
    cargo xtask mutations --list            what there is, and which tests are asked in which order

**Layer** is what caught it: *model* walks through all histories within bounds ([model](model.md)), *property* draws histories at random and compares
with a dumb model, *crash* cuts the power of a simulated disk, *story* and *unit* are fixed cases, *cluster* runs several Raft members in one
process, *simulation* runs whole clusters of them from seeds ([simulation](simulation.md)), *scenario* runs real processes (`cargo xtask e2e`). **Seconds** are what that test ran until it was red, without building, on a busy machine.
`not run` means just that: the test is named, nobody has yet seen it red for this bug. The rules are in the [glossary](../GLOSSARY.md); A1 to A8 are the
agent's (`crates/agent/src/machine.rs`). The seeds of the simulation are as many here as begin within 120 s for each sort of them; a test that has not ended after 25 minutes gives no verdict.

`--smoke` is few, in crates that build in seconds, each with a case that finds it in every run (what is drawn at random may miss a bug). It is part of `cargo xtask test`.
";

pub(super) fn write(results: &Results) -> Result<()> {
    let path = root().join(PATH);
    std::fs::write(&path, text(results)).with_context(|| path.display().to_string())?;
    note(format!("written: {PATH}"));
    Ok(())
}

fn text(results: &Results) -> String {
    let all: Vec<&Mutation> = MUTATIONS.iter().copied().flatten().collect();
    let seen = |m: &Mutation| results.get(m.name).filter(|seen| seen.fingerprint == m.fingerprint());
    let caught = all.iter().filter(|m| seen(m).is_some_and(|s| s.caught_by.is_some())).count();
    let missed = all.iter().filter(|m| seen(m).is_some_and(|s| s.caught_by.is_none())).count();
    let mut out = String::from(HEAD);
    // Writing to a string cannot fail.
    let _ = writeln!(
        out,
        "\n{} bugs: {caught} caught, {missed} not caught, {} not run.\n",
        all.len(),
        all.len() - caught - missed
    );
    out.push_str(
        "| bug | rule | what it does | layer | seconds | caught by |\n| --- | --- | --- | --- | --- | --- |\n",
    );
    for mutation in all {
        let (layer, seconds, by) = seen(mutation).map_or_else(|| not_run(mutation), told);
        let _ = writeln!(
            out,
            "| `{}` | {} | {} | {layer} | {seconds} | {by} |",
            mutation.name, mutation.rule, mutation.bug
        );
    }
    out.push_str(super::list::NOT_YET);
    out
}

fn told(seen: &Seen) -> (String, String, String) {
    match (&seen.caught_by, seen.layer) {
        (Some(by), Some(layer)) => (layer.name().into(), format!("{:.1}", seen.seconds), format!("`{by}`")),
        _ => ("**none**".into(), String::new(), format!("not by: `{}`", seen.passed_by.join("`, `"))),
    }
}

fn not_run(mutation: &Mutation) -> (String, String, String) {
    let first = mutation.tests.first().map(super::Test::command).unwrap_or_default();
    let layer = mutation.tests.first().map_or("", |test| Layer::name(test.layer()));
    (layer.into(), "not run".into(), format!("`{first}`"))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page has exactly the bugs of the list.
    #[test]
    fn the_page_has_a_row_for_each_bug() {
        let page = std::fs::read_to_string(root().join(PATH)).unwrap();
        let rows: Vec<&str> = page.lines().filter_map(|line| line.strip_prefix("| `")?.split('`').next()).collect();
        let names: Vec<&str> = MUTATIONS.iter().copied().flatten().map(|mutation| mutation.name).collect();
        assert_eq!(rows, names, "run cargo xtask mutations --page");
    }
}
