//! docs/proof/mutations.md: the list as a table, with the latest result of each bug.

use super::bug::{Layer, Mutation, Test};
use super::list::MUTATIONS;
use super::seen::{MutationResult, Results};
use crate::binary::root;
use crate::say::note;
use anyhow::{Context, Result};
use std::fmt::Write;

const PATH: &str = "docs/proof/mutations.md";

const HEAD: &str = "# Known bugs, put in on purpose

Each row is a bug that systems like this have had or could have. A run puts it into a copy of the sources. Tests that pass without it must then
fail. All bugs inside of functions are in one build, and the variable `HOLDFAST_KNOWN_BUG` chooses one when a program starts ([ADR 0079](../adr/0079-known-bugs-in-one-build.md));
the others have a build each. A row that no test catches shows a missing test. `cargo xtask mutations --page` writes this page. The list of bugs is in
`mutations/src/list/`, the results of all runs are in `mutations/src/seen.json`: a run adds its results and removes none.

    cargo xtask mutations                   all of them; hours: the one build, the tests, a build for each of some forty bugs
    cargo xtask mutations --most-minutes 60  starts no further bug after 60 minutes of tests; those without a result are first
    cargo xtask mutations --only NAME,..    some; fewer than eight have a build each
    cargo xtask mutations --smoke           a few, in a minute or two
    cargo xtask mutations --list            lists the bugs and, in order, the tests that are run for each

**Layer** is the kind of test that caught it: *model* walks through all histories within bounds ([model](model.md)), *property* draws random histories and compares
with a simple model, *crash* cuts the power of a simulated disk, *story* and *unit* are fixed cases, *cluster* runs several Raft members in one
process, *simulation* runs whole clusters from seeds ([simulation](simulation.md)), *scenario* runs real processes (`cargo xtask e2e`). **Seconds** is the time until that test failed, without building, on a busy machine.
`not run` means that the test is named, but no run has yet seen it fail for this bug. The rules are in the [glossary](../GLOSSARY.md); AGENT-A1 to AGENT-A10 are the
agent's (`crates/agent/src/machine.rs`). Here the simulation runs as many seeds as begin within 120 s in each mode; a test that has not ended after 25 minutes gives no verdict, nor one that takes much longer with the bug than without (five times as long, at least a minute).

`--smoke` runs a few bugs in crates that build in seconds, each with a test that finds it in every run (random tests may miss a bug). It is part of `cargo xtask test`.
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

fn told(seen: &MutationResult) -> (String, String, String) {
    match (&seen.caught_by, seen.layer) {
        (Some(by), Some(layer)) => (layer.name().into(), format!("{:.1}", seen.seconds), format!("`{by}`")),
        _ => ("**none**".into(), String::new(), format!("not by: `{}`", seen.passed_by.join("`, `"))),
    }
}

fn not_run(mutation: &Mutation) -> (String, String, String) {
    let first = mutation.tests.first().map(Test::command).unwrap_or_default();
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
