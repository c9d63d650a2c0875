//! Which test finds a bug: the same for a bug in a build of its own and for one that is chosen at run time.

use crate::bug::{Mutation, Test};
use crate::ran::Ran;
use crate::say::{Count, note};
use crate::seen;
use anyhow::{Result, bail, ensure};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// Tests that were run without a bug, by their commands, with their seconds; `None`: the test is not green.
#[derive(Default)]
pub(super) struct Greens(BTreeMap<String, Option<f64>>);

impl Greens {
    /// Seconds of a test without a bug; `None`: it fails without any. Runs it the first time; its failure is
    /// counted, or without a count only told.
    ///
    /// # Errors
    /// When it cannot run.
    pub(super) fn seconds(
        &mut self,
        test: &Test,
        count: Option<&mut Count>,
        run: impl FnOnce() -> Result<Ran>,
    ) -> Result<Option<f64>> {
        let command = test.command();
        if let Some(known) = self.0.get(&command) {
            return Ok(*known);
        }
        let ran = run()?;
        let seconds = match &ran {
            Ran::Green { seconds, .. } => Some(*seconds),
            _ => {
                let why = format!("fails without any bug: {}", ran.said());
                match count {
                    Some(count) => count.check(&command, Err(anyhow::anyhow!(why))),
                    None => note(format!("{command}: {why}")),
                }
                None
            }
        };
        self.0.insert(command, seconds);
        Ok(seconds)
    }

    /// The seconds of a test that was run before.
    pub(super) fn known(&self, test: &Test) -> Option<f64> {
        self.0.get(&test.command()).copied().flatten()
    }
}

/// Runs a bug's tests until one fails, and records the result. `tests` are those that are green without it; `all` says
/// that no other was left out.
///
/// # Errors
/// When no test finds it, or there is no verdict.
pub(super) fn judge<'a>(
    mutation: &Mutation,
    tests: &[&'a Test],
    all: bool,
    mut run: impl FnMut(&'a Test) -> Result<Ran>,
) -> Result<()> {
    let (mut passed_by, mut unsure) = (Vec::new(), Vec::new());
    for test in tests {
        let begun = Instant::now();
        match run(test)? {
            Ran::NoBuild(why) => bail!("the tree with the bug does not build: {why}"),
            Ran::Green { .. } => {
                note(format!("not found by {} ({:.0} s)", test.command(), begun.elapsed().as_secs_f64()));
                passed_by.push(test.command());
            }
            Ran::NoVerdict(how) => {
                note(format!("no verdict of {}: it {how}", test.command()));
                unsure.push(test.command());
            }
            Ran::Red { seconds, how } => {
                note(format!("caught after {seconds:.1} s by {} ({}): {how}", test.command(), test.layer().name()));
                return seen::remember(mutation, Some(test), seconds, passed_by);
            }
        }
    }
    // Not recorded: the bug is neither found nor missed.
    ensure!(unsure.is_empty(), "no verdict of these, and no other test finds it: {}", unsure.join("; "));
    ensure!(all, "no verdict: a test of it fails without any bug");
    seen::remember(mutation, None, 0.0, passed_by)?;
    bail!("no test finds it")
}

/// A failure with a bug, unless the test fails without the bug as well when it is run again at once: a test with a
/// limit of its own can fail on a busy machine.
///
/// # Errors
/// When it cannot run.
pub(super) fn confirmed(with_bug: Ran, without: impl FnOnce() -> Result<Ran>) -> Result<Ran> {
    if !matches!(with_bug, Ran::Red { .. }) {
        return Ok(with_bug);
    }
    Ok(match without()? {
        Ran::Green { .. } => with_bug,
        other => Ran::NoVerdict(format!("failed, and then without the bug as well: {}", other.said())),
    })
}

/// Until when bugs are started.
pub(super) struct Until {
    limit: Option<Duration>,
    begun: Instant,
}

impl Until {
    /// From now on; `None`: without a limit.
    pub(super) fn minutes(most: Option<u64>) -> Self {
        Self { limit: most.map(|minutes| Duration::from_secs(minutes * 60)), begun: Instant::now() }
    }

    pub(super) fn is_over(&self) -> bool {
        self.limit.is_some_and(|limit| self.begun.elapsed() >= limit)
    }

    /// Counts and tells the bugs that were not started.
    pub(super) fn left(&self, bugs: usize, count: &mut Count) {
        if bugs > 0 {
            note(format!("{bugs} bugs were not started: the time is over; run it again for them"));
            count.skipped += u64::try_from(bugs).unwrap_or(u64::MAX);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bug::{Layer, lib};

    #[test]
    fn a_test_is_run_once_without_a_bug_and_its_failure_counted_once() {
        let (good, bad) = (lib(Layer::Unit, "a", &["good"]), lib(Layer::Unit, "a", &["bad"]));
        let (mut greens, mut count, mut runs) = (Greens::default(), Count::default(), 0);
        for _ in 0..2 {
            let run = || {
                runs += 1;
                Ok(Ran::Green { passed: 1, seconds: 2.0 })
            };
            assert_eq!(greens.seconds(&good, Some(&mut count), run).unwrap(), Some(2.0));
            let run = || Ok(Ran::Red { seconds: 1.0, how: "red".into() });
            assert_eq!(greens.seconds(&bad, Some(&mut count), run).unwrap(), None);
        }
        assert_eq!((runs, count.failed), (1, 1));
        assert_eq!((greens.known(&good), greens.known(&bad)), (Some(2.0), None));
    }

    #[test]
    fn without_a_verdict_nothing_is_recorded() {
        let bug = Mutation { name: "no-such-bug", bug: "", rule: "", edits: &[], tests: &[], smoke: false };
        let test = lib(Layer::Unit, "a", &[]);
        let hangs = judge(&bug, &[&test], true, |_| Ok(Ran::NoVerdict("hangs".into()))).unwrap_err().to_string();
        assert!(hangs.starts_with("no verdict of these"), "found {hangs:?}");
        let unusable = judge(&bug, &[], false, |_| unreachable!()).unwrap_err().to_string();
        assert_eq!(unusable, "no verdict: a test of it fails without any bug");
    }

    #[test]
    fn a_failure_counts_only_if_the_test_passes_without_the_bug_right_after_it() {
        let red = || Ran::Red { seconds: 1.0, how: "red".into() };
        let green = || Ok(Ran::Green { passed: 1, seconds: 1.0 });
        assert!(matches!(confirmed(red(), green).unwrap(), Ran::Red { .. }));
        assert!(matches!(confirmed(red(), || Ok(red())).unwrap(), Ran::NoVerdict(_)));
        assert!(matches!(confirmed(green().unwrap(), || unreachable!()).unwrap(), Ran::Green { .. }));
    }

    #[test]
    fn time_is_over_only_where_there_is_a_limit() {
        assert!(!Until::minutes(None).is_over());
        assert!(!Until::minutes(Some(1)).is_over());
        assert!(Until::minutes(Some(0)).is_over());
    }
}
