//! `mutants`: lets `cargo-mutants` change the safety code, one place at a time, and records which changes no test
//! notices.
//!
//! Owns: which mutants are tried, by which tests, the results and the page. Does not own: how mutants are made
//! (`cargo-mutants`), known bugs (`mutations`). The tool works in a copy of the tree, in place, so that builds stay
//! warm from run to run.
//!
//! ```text
//!  list of all mutants ─▶ crate, shard, no result yet ─▶ cargo-mutants, one crate after the other ─▶ target/mutants/results.json
//!                                                                       --page ─▶ mutations/mutants/*.json, docs/proof/mutants.md
//! ```

mod change;
mod page;
mod results;
mod scope;
mod seed;
mod tool;

use crate::binary::root;
use crate::cmd::cmd;
use crate::say::{Count, line, note, step};
use crate::scratch::Copied;
use anyhow::{Context, Result};
use results::{Mutant, MutantResult, Reasons, Results};
use scope::{SCOPES, Scope};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime};
use tool::{Outcome, Ran, Tool};

/// Options on the command line.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Differs from `cargo xtask mutations`: there, known bugs from a list of our own are put in, and any test may find them, whole clusters included. \
Here, a tool makes the changes, thousands of them, and only the quick tests of the same crate decide.

Without options it tries each mutant that has no result yet, and each survivor without a reason. Results are kept below target/mutants; \
--page adds them to mutations/mutants. A reason for a survivor goes into mutations/mutants/reasons.json.

Examples:
  cargo xtask mutants --crate seal --minutes 20     twenty minutes of one crate
  cargo xtask mutants --shard 3/8                   the third of eight nights
  cargo xtask mutants --in-diff main --minutes 5    what a branch changes, for at most five minutes
  cargo xtask mutants --change --most 12 --minutes 2    what cargo xtask test runs")]
pub(super) struct Args {
    /// Only these crates
    #[arg(long = "crate", value_delimiter = ',', value_name = "NAME,..")]
    crates: Vec<String>,
    /// Only one of N equal parts: 1/N to N/N
    #[arg(long, value_name = "K/N")]
    shard: Option<Shard>,
    /// Only mutants in lines that differ from where this branch left REF
    #[arg(long, value_name = "REF")]
    in_diff: Option<String>,
    /// Only mutants in lines of the change: since this branch left origin/main or main, on main since the commit before
    /// the last. Skipped, with the reason, where cargo-mutants is not installed or nothing of the change is safety code
    #[arg(long, conflicts_with = "in_diff")]
    change: bool,
    /// Try at most this many, spread over the crates
    #[arg(long, value_name = "N")]
    most: Option<usize>,
    /// Stop after this time and say how many are left
    #[arg(long, value_name = "N")]
    minutes: Option<u64>,
    /// Also those that have a result
    #[arg(long)]
    again: bool,
    /// List the chosen mutants and their number by crate, and exit
    #[arg(long)]
    list: bool,
    /// Write docs/proof/mutants.md from the results of all runs, and exit
    #[arg(long, conflicts_with_all = ["crates", "shard", "in_diff", "change", "most", "minutes", "again", "list"])]
    page: bool,
}

/// One of several equal parts of all mutants.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Shard {
    /// From 0.
    index: usize,
    of: usize,
}

impl FromStr for Shard {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("found {text:?}, expected K/N with K from 1 to N, as 3/8");
        let (k, n) = text.split_once('/').ok_or_else(wrong)?;
        let (k, n): (usize, usize) = (k.parse().map_err(|_| wrong())?, n.parse().map_err(|_| wrong())?);
        if (1..=n).contains(&k) { Ok(Self { index: k - 1, of: n }) } else { Err(wrong()) }
    }
}

/// Runs the chore. Fails when a mutant survives without a reason, the tests fail without a mutant, or the tool fails.
pub(super) fn chore(args: &Args) -> Result<()> {
    for name in &args.crates {
        let known: Vec<&str> = SCOPES.iter().map(|scope| scope.name).collect();
        anyhow::ensure!(known.contains(&name.as_str()), "found crate {name:?}, expected one of {}", known.join(", "));
    }
    let since = match (&args.in_diff, args.change) {
        (Some(reference), _) => Some(reference.clone()),
        (None, false) => None,
        (None, true) => match change_to_try(args.minutes) {
            Ok(base) => Some(base),
            Err(why) => return skipped(&why),
        },
    };
    let copied = Copied::open(root().join("target/mutants/tree"))?;
    let tool = Tool::find_or_install(copied.tree())?;
    let in_diff = since.map(|since| changed(&tool, &since)).transpose()?;
    if args.change && in_diff.as_ref().is_some_and(BTreeSet::is_empty) {
        return skipped("it has no mutant: no line of it is safety code (.cargo/mutants.toml)");
    }
    let all = all(&tool, copied.tree())?;
    if args.page {
        results::gather(&all)?;
        return page::write();
    }
    let known = results::known(&all)?;
    let reasons = results::reasons()?;
    let wanted = choose(&all, args, in_diff.as_ref(), &known, &reasons);
    let chosen = args.most.map_or_else(|| wanted.clone(), |most| change::spread(&wanted, most));
    if args.list {
        list(&chosen);
        return Ok(());
    }
    let left = wanted.len() - chosen.len();
    let mut run =
        Run { tool: &tool, all: &all, reasons: &reasons, in_turn: args.change, count: Count::default(), left };
    let done = run.crates(&chosen, args.minutes.map(|minutes| Duration::from_secs(minutes * 60)));
    // A mutant may still be in the copy, if the tool was killed.
    copied.restore()?;
    done?;
    run.close()
}

/// Building the first crate for mutants takes minutes; later builds are incremental.
const FIRST_BUILD_MINUTES: u64 = 10;

/// The commit that the change began after. Fails with the reason why its mutants cannot be tried here in so many
/// minutes.
fn change_to_try(minutes: Option<u64>) -> Result<String, String> {
    if !tool::is_installed() {
        return Err(format!("cargo-mutants {} is not installed (cargo install cargo-mutants)", tool::VERSION));
    }
    if let Some(minutes) = minutes.filter(|minutes| *minutes < FIRST_BUILD_MINUTES)
        && !tool::has_built()
    {
        return Err(format!(
            "nothing is built for mutants yet, which takes longer than {minutes} minutes; cargo xtask mutants --change does it"
        ));
    }
    change::base().ok_or_else(|| "git knows no commit before it here (a shallow clone?)".to_owned())
}

/// The end of a run that has nothing to try.
fn skipped(why: &str) -> Result<()> {
    let mut count = Count::default();
    count.skip("mutants of the change", why);
    count.close()
}

fn all(tool: &Tool<'_>, tree: &Path) -> Result<Vec<Mutant>> {
    let read = |file: &str| std::fs::read_to_string(tree.join(file)).with_context(|| file.to_owned());
    results::keyed(tool.list(None)?, read)
}

/// Names of the mutants in lines that differ from where this branch left `reference`, uncommitted changes included.
fn changed(tool: &Tool<'_>, reference: &str) -> Result<BTreeSet<String>> {
    // Of sources only: other files, as golden ones, need not be text.
    let diff = ["diff", "--no-color", "--no-ext-diff", "--merge-base", reference, "--", "*.rs"];
    let diff = cmd("git").args(diff).dir(root()).out()?;
    if diff.trim().is_empty() {
        return Ok(BTreeSet::new());
    }
    let path: PathBuf = root().join("target/mutants/change.diff");
    std::fs::write(&path, &diff).with_context(|| path.display().to_string())?;
    Ok(tool.list(Some(&path))?.into_iter().map(|one| one.name).collect())
}

fn choose<'a>(
    all: &'a [Mutant],
    args: &Args,
    in_diff: Option<&BTreeSet<String>>,
    known: &Results,
    reasons: &Reasons,
) -> Vec<&'a Mutant> {
    let settled = |mutant: &Mutant| match known.get(&mutant.key).map(|seen| seen.outcome) {
        None => false,
        Some(Outcome::Survived) => results::reason(reasons, &mutant.key, &mutant.text).is_some(),
        Some(Outcome::Caught | Outcome::TimedOut | Outcome::Unviable) => true,
    };
    // By the place in the list of all: the parts stay the same while results come in.
    let in_shard = |at: usize| args.shard.is_none_or(|shard| at % shard.of == shard.index);
    let wanted = |mutant: &Mutant| {
        (args.crates.is_empty() || args.crates.iter().any(|name| name == mutant.crate_name))
            && in_diff.is_none_or(|names| names.contains(&mutant.name))
            && (args.again || !settled(mutant))
    };
    let chosen = all.iter().enumerate().filter(|&(at, mutant)| in_shard(at) && wanted(mutant));
    chosen.map(|(_, mutant)| mutant).collect()
}

fn list(chosen: &[&Mutant]) {
    chosen.iter().for_each(|mutant| line(&mutant.name));
    for scope in &SCOPES {
        let number = chosen.iter().filter(|mutant| mutant.crate_name == scope.name).count();
        note(format!("{}: {number}", scope.name));
    }
    note(format!("all: {}", chosen.len()));
}

/// A run over the chosen mutants.
struct Run<'a> {
    tool: &'a Tool<'a>,
    all: &'a [Mutant],
    reasons: &'a Reasons,
    /// A crate gets all the time that is left, not an equal share: in a share of two minutes nothing would be built.
    in_turn: bool,
    count: Count,
    /// Chosen mutants that were not tried.
    left: usize,
}

impl Run<'_> {
    fn crates(&mut self, chosen: &[&Mutant], limit: Option<Duration>) -> Result<()> {
        let end = limit.map(|limit| Instant::now() + limit);
        let mut todo = Vec::new();
        for scope in &SCOPES {
            let of_crate = chosen.iter().copied().filter(|mutant| mutant.crate_name == scope.name);
            let of_crate: Vec<&Mutant> = of_crate.collect();
            if !of_crate.is_empty() {
                todo.push((scope, of_crate));
            }
        }
        step(format!("Mutants: {} in {} crates", chosen.len(), todo.len()));
        for (at, (scope, mutants)) in todo.iter().enumerate() {
            let now = Instant::now();
            if self.in_turn && end.is_some_and(|end| now >= end) {
                self.left += mutants.len();
                continue;
            }
            // Each crate gets an equal share of the time that is left.
            let crates_left = if self.in_turn { 1 } else { u32::try_from(todo.len() - at).unwrap_or(u32::MAX) };
            let until = end.map(|end| now + end.saturating_duration_since(now) / crates_left);
            self.one(scope, mutants, until)?;
        }
        Ok(())
    }

    fn one(&mut self, scope: &Scope, chosen: &[&Mutant], until: Option<Instant>) -> Result<()> {
        step(format!(
            "{}: {} mutants, cargo test -p {} {}",
            scope.name,
            chosen.len(),
            scope.package(),
            scope.tests.join(" ")
        ));
        let names: BTreeSet<&str> = chosen.iter().map(|mutant| mutant.name.as_str()).collect();
        let others = self.all.iter().map(|mutant| mutant.name.as_str()).filter(|name| !names.contains(name));
        let skip: Vec<&str> = others.collect();
        match self.tool.run(scope, &skip, until) {
            Ok(ran) => self.judge(scope, chosen, &ran),
            Err(error) => {
                self.left += chosen.len();
                self.count.check(scope.name, Err(error));
                Ok(())
            }
        }
    }

    fn judge(&mut self, scope: &Scope, chosen: &[&Mutant], ran: &Ran) -> Result<()> {
        let commit = cmd("git").args(["rev-parse", "--short=12", "HEAD"]).dir(root()).out()?.trim().to_owned();
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let mut new = Results::new();
        for (name, outcome, seconds) in &ran.tried {
            let Some(mutant) = chosen.iter().find(|mutant| mutant.name == *name) else { continue };
            let (key, text) = (mutant.key.clone(), mutant.text.clone());
            match outcome {
                Outcome::Caught | Outcome::TimedOut => self.count.passed += 1,
                Outcome::Unviable => {}
                Outcome::Survived => match results::reason(self.reasons, &key, &text) {
                    Some(reason) => note(format!("survives, explained: {key}: {}", reason.why)),
                    None => self.count.check(&key, Err(anyhow::anyhow!("survives (text {text}): no test notices it"))),
                },
            }
            let (outcome, seconds) = (*outcome, tenths(*seconds));
            new.insert(key, MutantResult { text, outcome, seconds, commit: commit.clone(), at });
        }
        let left = chosen.len().saturating_sub(new.len());
        self.left += left;
        let why = if ran.stopped { " (stopped at its time limit)" } else { "" };
        note(format!("{}: {} tried, {left} left{why}", scope.name, new.len()));
        results::remember(new)
    }

    fn close(mut self) -> Result<()> {
        if self.left > 0 {
            self.count.skip(&format!("{} mutants", self.left), "not tried; the same command goes on with them");
        }
        self.count.close()
    }
}

fn tenths(seconds: f64) -> f64 {
    (seconds * 10.0).round() / 10.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_is_one_of_n() {
        assert_eq!("1/8".parse(), Ok(Shard { index: 0, of: 8 }));
        assert_eq!("8/8".parse(), Ok(Shard { index: 7, of: 8 }));
        for wrong in ["0/8", "9/8", "1", "1/0", "a/8", ""] {
            let error = wrong.parse::<Shard>().unwrap_err();
            assert!(error.contains("expected K/N"), "{error}");
        }
    }

    fn args(shard: Option<&str>, crates: &[&str], again: bool) -> Args {
        Args {
            crates: crates.iter().map(|&name| name.to_owned()).collect(),
            shard: shard.map(|text| text.parse().unwrap()),
            in_diff: None,
            change: false,
            most: None,
            minutes: None,
            again,
            list: false,
            page: false,
        }
    }

    #[test]
    fn shards_are_all_of_it_and_do_not_move_when_results_come_in() {
        let mutant = |n: usize| Mutant {
            key: format!("k{n}"),
            name: format!("n{n}"),
            crate_name: if n < 10 { "seal" } else { "journal" },
            text: "t".into(),
        };
        let all: Vec<Mutant> = (0..20).map(mutant).collect();
        let seen = |outcome| MutantResult { text: "t".into(), outcome, seconds: 1.0, commit: "abc".into(), at: 1 };
        let outcomes = [Outcome::Caught, Outcome::Unviable, Outcome::TimedOut, Outcome::Survived, Outcome::Survived];
        let known: Results = outcomes.into_iter().enumerate().map(|(n, one)| (format!("k{n}"), seen(one))).collect();
        let reason = results::Reason { text: "t".into(), kind: results::Kind::Equivalent, why: "it is".into() };
        let reasons = Reasons::from([("k3".to_owned(), reason)]);
        let names = |args: &Args, diff: Option<&BTreeSet<String>>, known: &Results| -> Vec<String> {
            choose(&all, args, diff, known, &reasons).iter().map(|mutant| mutant.name.clone()).collect()
        };
        let none = Results::new();
        let mut together: Vec<String> = ["1/3", "2/3", "3/3"]
            .iter()
            .flat_map(|shard| {
                let before = names(&args(Some(shard), &[], false), None, &none);
                let after = names(&args(Some(shard), &[], false), None, &known);
                assert!(after.iter().all(|name| before.contains(name)), "{shard}: {before:?} {after:?}");
                before
            })
            .collect();
        together.sort();
        let mut every: Vec<String> = all.iter().map(|mutant| mutant.name.clone()).collect();
        every.sort();
        assert_eq!(together, every);
        // What is settled is not tried again, a survivor without a reason is.
        let seal = names(&args(None, &["seal"], false), None, &known);
        assert_eq!(seal, ["n4", "n5", "n6", "n7", "n8", "n9"]);
        assert_eq!(names(&args(None, &["seal"], true), None, &known).len(), 10);
        let diff = BTreeSet::from(["n5".to_owned(), "n12".to_owned(), "n0".to_owned()]);
        assert_eq!(names(&args(None, &[], false), Some(&diff), &known), ["n5", "n12"]);
    }
}
