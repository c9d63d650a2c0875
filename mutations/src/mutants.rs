//! `mutants`: lets `cargo-mutants` change the safety code, one place at a time, and records which changes no test
//! notices.
//!
//! Owns: which mutants are tried, by which tests, the results and the page. Does not own: how mutants are made
//! (`cargo-mutants`), known bugs (`mutations`), how one build has many changes (`schemata`). All work in a copy of the
//! tree, in place, so that builds stay warm from run to run.
//!
//! ```text
//!  list of all mutants ─▶ crate, shard, no result yet ─▶ many in one build (together) ─▶ target/mutants/results.json
//!                                                          └─ the others: cargo-mutants, a build each ─┘
//!                                                --page ─▶ mutations/mutants/*.json, docs/proof/mutants.md
//! ```

mod change;
mod edit;
mod page;
mod results;
mod scope;
mod seed;
mod together;
mod tool;

use crate::binary::root;
use crate::cmd::cmd;
use crate::say::{Count, line, note, step};
use crate::scratch::Copied;
use anyhow::{Context, Result};
use results::{Mutant, MutantResult, Reasons, Results, Texts};
use scope::{SCOPES, Scope};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant, SystemTime};
use together::Job;
use tool::{Outcome, Tool};

/// Options on the command line.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "\
Differs from `cargo xtask mutations`: there, known bugs from a list of our own are put in, and any test may find them, whole clusters included. \
Here, a tool makes the changes, thousands of them, and only the quick tests of the same crate decide.

Most mutants of a crate are in one build, or a few, and one is chosen when the tests start. Those that do not fit have a build each, \
after the others.

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
    /// A build for each mutant, by cargo-mutants, also where many fit into one
    #[arg(long)]
    build_each: bool,
    /// List the chosen mutants and their number by crate, and exit
    #[arg(long)]
    list: bool,
    /// Write docs/proof/mutants.md from the results of all runs, and exit
    #[arg(long, conflicts_with_all = ["crates", "shard", "in_diff", "change", "most", "minutes", "again", "build_each", "list"])]
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
    let (all, texts) = all(&tool, copied.tree())?;
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
    let mut run = Run {
        tool: &tool,
        copied: &copied,
        texts: &texts,
        all: &all,
        notes: Notes::new(&reasons)?,
        in_turn: args.change,
        build_each: args.build_each,
        left,
    };
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

/// All mutants of the tree, and the sources that they are of.
fn all(tool: &Tool<'_>, tree: &Path) -> Result<(Vec<Mutant>, Texts)> {
    let listed = tool.list(None)?;
    let texts = Texts::read(&listed, tree)?;
    Ok((results::keyed(listed, &texts)?, texts))
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
    copied: &'a Copied,
    texts: &'a Texts,
    all: &'a [Mutant],
    notes: Notes<'a>,
    /// A crate gets all the time that is left, not an equal share: in a share of two minutes nothing would be built.
    in_turn: bool,
    build_each: bool,
    /// Chosen mutants that were not tried.
    left: usize,
}

/// Mutants of one crate.
type OfScope<'a> = (&'static Scope, Vec<&'a Mutant>);

impl<'a> Run<'a> {
    /// First all that fit into builds with others, crate by crate, then those that need a build each.
    fn crates(&mut self, chosen: &[&'a Mutant], limit: Option<Duration>) -> Result<()> {
        let end = limit.map(|limit| Instant::now() + limit);
        let of = |scope: &Scope| chosen.iter().copied().filter(|mutant| mutant.crate_name == scope.name).collect();
        let todo: Vec<OfScope<'a>> = SCOPES.iter().map(|scope| (scope, of(scope))).collect();
        let todo: Vec<OfScope<'a>> = todo.into_iter().filter(|(_, mutants)| !mutants.is_empty()).collect();
        step(format!("Mutants: {} in {} crates", chosen.len(), todo.len()));
        let (many, mut each): (Vec<OfScope<'a>>, Vec<OfScope<'a>>) =
            todo.into_iter().partition(|(_, mutants)| !self.build_each && mutants.len() >= together::FROM);
        let mut rests = Vec::new();
        self.in_time(many, end, |run, scope, mutants, until| {
            rests.push((scope, run.together(scope, mutants, until)?));
            Ok(())
        })?;
        // In the order of the crates again.
        each.extend(rests.into_iter().filter(|(_, mutants)| !mutants.is_empty()));
        each.sort_by_key(|(scope, _)| SCOPES.iter().position(|other| other.name == scope.name));
        self.copied.restore()?;
        self.texts.all_same(self.copied.tree())?;
        self.in_time(each, end, Self::one_by_one)
    }

    /// Does something with each crate until `end`. Counts the mutants of those that it does not come to.
    fn in_time(
        &mut self,
        todo: Vec<OfScope<'a>>,
        end: Option<Instant>,
        mut what: impl FnMut(&mut Self, &'static Scope, &[&'a Mutant], Option<Instant>) -> Result<()>,
    ) -> Result<()> {
        let crates = todo.len();
        for (at, (scope, mutants)) in todo.into_iter().enumerate() {
            let now = Instant::now();
            if end.is_some_and(|end| now >= end) {
                self.left += mutants.len();
                continue;
            }
            // Each crate gets an equal share of the time that is left.
            let crates_left = if self.in_turn { 1 } else { u32::try_from(crates - at).unwrap_or(u32::MAX) };
            let until = end.map(|end| now + end.saturating_duration_since(now) / crates_left);
            what(self, scope, &mutants, until)?;
        }
        Ok(())
    }

    /// Tries mutants of a crate that fit into builds with others. Returns those that need a build each.
    fn together(
        &mut self,
        scope: &'static Scope,
        mutants: &[&'a Mutant],
        until: Option<Instant>,
    ) -> Result<Vec<&'a Mutant>> {
        step(format!("{}: {} mutants, {}: all that fit in one build", scope.name, mutants.len(), tests_of(scope)));
        let job = Job { copied: self.copied, texts: self.texts, scope, until };
        let before = self.notes.tried;
        let done = together::run(&job, mutants, &mut |mutant, outcome, seconds| {
            self.notes.add(mutant, outcome, seconds);
            let tried = self.notes.tried - before;
            if tried.is_multiple_of(EACH) {
                note(format!("{tried} of {} tried", mutants.len()));
                self.notes.save()?;
            }
            Ok(())
        });
        self.notes.save()?;
        let rest = done.unwrap_or_else(|error| {
            self.notes.count.check(scope.name, Err(error));
            Vec::new()
        });
        let tried = self.notes.tried - before;
        let left = mutants.len().saturating_sub(tried + rest.len());
        self.left += left;
        note(format!("{}: {tried} tried, {} need a build each, {left} left", scope.name, rest.len()));
        Ok(rest)
    }

    /// Lets `cargo-mutants` try mutants of a crate, with a build each.
    fn one_by_one(&mut self, scope: &'static Scope, chosen: &[&'a Mutant], until: Option<Instant>) -> Result<()> {
        step(format!("{}: {} mutants, {}: a build each", scope.name, chosen.len(), tests_of(scope)));
        let names: BTreeSet<&str> = chosen.iter().map(|mutant| mutant.name.as_str()).collect();
        let others = self.all.iter().map(|mutant| mutant.name.as_str()).filter(|name| !names.contains(name));
        let skip: Vec<&str> = others.collect();
        let ran = match self.tool.run(scope, &skip, until) {
            Ok(ran) => ran,
            Err(error) => {
                self.left += chosen.len();
                self.notes.count.check(scope.name, Err(error));
                return Ok(());
            }
        };
        let before = self.notes.tried;
        for (name, outcome, seconds) in &ran.tried {
            let Some(mutant) = chosen.iter().find(|mutant| mutant.name == *name) else { continue };
            self.notes.add(mutant, *outcome, *seconds);
        }
        self.notes.save()?;
        let tried = self.notes.tried - before;
        let left = chosen.len().saturating_sub(tried);
        self.left += left;
        let why = if ran.stopped { " (stopped at its time limit)" } else { "" };
        note(format!("{}: {tried} tried, {left} left{why}", scope.name));
        Ok(())
    }

    fn close(mut self) -> Result<()> {
        if self.left > 0 {
            let what = format!("{} mutants", self.left);
            self.notes.count.skip(&what, "not tried; the same command goes on with them");
        }
        self.notes.count.close()
    }
}

/// The command that runs the tests of a crate that decide.
fn tests_of(scope: &Scope) -> String {
    format!("cargo test -p {} {}", scope.package(), scope.tests.join(" "))
}

/// Results are written, and progress is told, after so many mutants: an interrupted run loses only a few.
const EACH: usize = 25;

/// Counts results and writes them down.
struct Notes<'a> {
    reasons: &'a Reasons,
    commit: String,
    count: Count,
    /// Number of mutants with a result.
    tried: usize,
    /// Results that are not written yet.
    new: Results,
}

impl<'a> Notes<'a> {
    fn new(reasons: &'a Reasons) -> Result<Self> {
        let commit = cmd("git").args(["rev-parse", "--short=12", "HEAD"]).dir(root()).out()?.trim().to_owned();
        Ok(Self { reasons, commit, count: Count::default(), tried: 0, new: Results::new() })
    }

    fn add(&mut self, mutant: &Mutant, outcome: Outcome, seconds: f64) {
        let (key, text) = (mutant.key.clone(), mutant.text.clone());
        match outcome {
            Outcome::Caught | Outcome::TimedOut => self.count.passed += 1,
            Outcome::Unviable => {}
            Outcome::Survived => match results::reason(self.reasons, &key, &text) {
                Some(reason) => note(format!("survives, explained: {key}: {}", reason.why)),
                None => self.count.check(&key, Err(anyhow::anyhow!("survives (text {text}): no test notices it"))),
            },
        }
        let at = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs());
        let (seconds, commit) = (tenths(seconds), self.commit.clone());
        self.new.insert(key, MutantResult { text, outcome, seconds, commit, at });
        self.tried += 1;
    }

    fn save(&mut self) -> Result<()> {
        if self.new.is_empty() { Ok(()) } else { results::remember(std::mem::take(&mut self.new)) }
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
            build_each: false,
            list: false,
            page: false,
        }
    }

    #[test]
    fn shards_are_all_of_it_and_do_not_move_when_results_come_in() {
        let mutant = |n: usize| {
            let one = Mutant::named(&format!("n{n}"), if n < 10 { "seal" } else { "journal" });
            Mutant { key: format!("k{n}"), ..one }
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
