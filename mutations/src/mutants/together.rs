//! Many mutants of one crate in one build, as all known bugs are
//! ([ADR 0082](../../../docs/adr/0082-mutants-in-one-build.md)).
//!
//! Owns: how many go into one build, the build of a crate and of the tests that decide, and the verdict about each
//! mutant. Does not own: how a build chooses (`schemata`), mutants that need a build each (`tool`).
//!
//! ```text
//!  mutants of a crate ─▶ builds within bounds ─▶ tests pass without a mutant ─▶ each mutant: tests until one fails
//!                             └── what does not fit, or does not compile beside the others ─▶ a build each
//! ```

use super::results::{Mutant, Texts};
use super::scope::Scope;
use super::seed::seed;
use super::tool::{self, Outcome};
use crate::binary::root;
use crate::ran::{Ran, TEST_LIMIT, spawn};
use crate::say::note;
use crate::schemata::{Bounds, Built, End, Numbered, Order, Program, build, groups, test_program};
use crate::scratch::Copied;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// From so many mutants of a crate on. For fewer, a build each is sooner done.
pub(super) const FROM: usize = 4;

/// Bounds of one build. `gateway` has the most sources, 1.1 MB, and is three times as long with so many bytes. For a
/// function with many bodies the compiler takes more than its share of time.
const BOUNDS: Bounds = Bounds { bugs: 500, bodies: 32, bytes: 2 << 20 };

/// A build with errors that belong to no mutant is tried again in two halves, down to this many mutants.
const SMALLEST: usize = 16;

/// The limit of the tests of one mutant, as `cargo-mutants` has it (`.cargo/mutants.toml`): this many times their time
/// without a mutant, and at least so long.
const LIMIT_TIMES: f64 = 4.0;
const LEAST_LIMIT: Duration = Duration::from_secs(30);

/// Stack of a test's thread, in place of 2 MiB: a function may keep room for the variables of each of its bodies. Not
/// more, because all threads together have limited memory.
const STACK_BYTES: usize = 16 << 20;

/// What a run works on.
pub(super) struct Job<'a> {
    pub(super) copied: &'a Copied,
    pub(super) texts: &'a Texts,
    pub(super) scope: &'static Scope,
    /// Nothing is begun afterwards.
    pub(super) until: Option<Instant>,
}

/// Told of each mutant: its outcome, and the seconds that its tests took.
pub(super) type Tell<'f, 'm> = &'f mut dyn FnMut(&'m Mutant, Outcome, f64) -> Result<()>;

/// The mutants of one build.
type Group<'m> = Vec<Numbered<'m>>;

/// Tries all mutants that fit into builds with others, and tells of each. Returns those that need a build each; what is
/// neither told nor returned was not tried.
///
/// # Errors
/// When the tests fail without a mutant, the crate does not compile, or something cannot be read or written.
pub(super) fn run<'m>(job: &Job<'_>, mutants: &[&'m Mutant], tell: Tell<'_, 'm>) -> Result<Vec<&'m Mutant>> {
    let by_number: BTreeMap<u32, &'m Mutant> = mutants.iter().map(|mutant| (mutant.number, *mutant)).collect();
    let all: Group<'m> = mutants.iter().map(|&mutant| Numbered { number: mutant.number, bug: mutant }).collect();
    let read = |file: &str| job.texts.same(file, root());
    let (mut todo, few) = worth_it(groups(&all, BOUNDS, read)?);
    note(format!("{} mutants in {} builds, {} are too few for another", mutants.len(), todo.len(), few.len()));
    // The first one is at the end.
    todo.reverse();
    seed(&tool::build())?;
    let (mut rest, mut compiles): (Vec<u32>, bool) = (few.iter().map(|one| one.number).collect(), false);
    while let Some(group) = todo.pop() {
        if job.is_over() {
            break;
        }
        match build(job.copied, &job.order(), &group, read)? {
            End::NotInTime => break,
            End::NoneToBlame(why) => {
                if !compiles && !job.compiles()? {
                    break;
                }
                compiles = true;
                todo.extend(halves(group, &why).unwrap_or_else(|group| {
                    rest.extend(group.iter().map(|one| one.number));
                    Vec::new()
                }));
            }
            End::Built(built) => {
                let refused = &built.plan.refused;
                note(format!(
                    "built in {:.0} s: {} mutants, {} need a build each",
                    built.took.as_secs_f64(),
                    built.plan.fits.len(),
                    refused.len()
                ));
                refused.iter().for_each(|(number, why)| note(format!("{}: {why}", by_number[number].name)));
                rest.extend(refused.keys());
                job.judge(&built, |number| by_number[&number], &mut *tell)?;
            }
        }
    }
    Ok(rest.into_iter().map(|number| by_number[&number]).collect())
}

/// The builds, and the mutants of those that have too few: what a function with very many leaves over.
fn worth_it(groups: Vec<Group<'_>>) -> (Vec<Group<'_>>, Group<'_>) {
    let (builds, small): (Vec<_>, Vec<_>) = groups.into_iter().partition(|group| group.len() >= FROM);
    (builds, small.into_iter().flatten().collect())
}

/// Two halves of a build that does not compile, the first one at the end; the group itself if it is too small for that.
fn halves<'m>(mut group: Group<'m>, why: &str) -> Result<Vec<Group<'m>>, Group<'m>> {
    if group.len() <= SMALLEST {
        note(format!("{} mutants need a build each: {why}", group.len()));
        return Err(group);
    }
    note(format!("in two halves, of {} mutants: {why}", group.len()));
    let second = group.split_off(group.len() / 2);
    Ok(vec![second, group])
}

impl Job<'_> {
    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// The crate and the programs of the tests that decide: what `cargo-mutants` builds, in the same folder, so that
    /// both have the same dependencies.
    fn order(&self) -> Order {
        let first = ["test".to_owned(), "--no-run".to_owned(), format!("--package={}", self.scope.package())];
        Order {
            args: first.into_iter().chain(tool::selected(self.scope)).collect(),
            folder: tool::build(),
            log: root().join("target/mutants/build.log"),
            incremental: true,
            until: self.until,
        }
    }

    /// Whether the crate compiles without a mutant; `false`: there was no time to see.
    ///
    /// # Errors
    /// When it does not.
    fn compiles(&self) -> Result<bool> {
        note("the same without a mutant");
        match build(self.copied, &self.order(), &[], |file| self.texts.same(file, root()))? {
            End::Built(_) => Ok(true),
            End::NotInTime => Ok(false),
            End::NoneToBlame(why) => bail!("it does not compile without a mutant: {why}"),
        }
    }

    /// Tries all mutants of a build. What it does not tell of when the time is over was not tried.
    fn judge<'m>(&self, built: &Built, mutant: impl Fn(u32) -> &'m Mutant, tell: Tell<'_, 'm>) -> Result<()> {
        let package = self.scope.package();
        let programs = self.scope.targets().map(|target| built.test(&package, &target));
        let alone = |program: &&Program| run_test(program, 0, self.at_most(TEST_LIMIT));
        let programs = match in_order(programs.collect::<Result<_>>()?, alone) {
            Err(error) if self.is_over() => {
                note(format!("not begun, the time is over: {error}"));
                return Ok(());
            }
            programs => programs?,
        };
        let green: f64 = programs.iter().map(|(_, seconds)| seconds).sum();
        let limit = limit_of(green);
        note(format!("its tests take {green:.1} s without a mutant, the limit is {:.0} s", limit.as_secs_f64()));
        for number in &built.plan.fits {
            let with_it = |program: &&Program, left| run_test(program, *number, left);
            let limit = self.at_most(limit);
            let (outcome, seconds) = verdict(programs.iter().map(|(program, _)| *program), limit, with_it)?;
            // Ended early, or not begun.
            if self.is_over() {
                break;
            }
            tell(mutant(*number), outcome, seconds)?;
        }
        Ok(())
    }

    /// The limit, or the time that is left if that is less.
    fn at_most(&self, limit: Duration) -> Duration {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        left.map_or(limit, |left| left.min(limit))
    }
}

/// Runs each program without a mutant. Returns them with their seconds, the quickest first.
///
/// # Errors
/// When one does not pass: it would fail with each mutant as well, and all would count as caught.
fn in_order<P>(programs: Vec<P>, run: impl Fn(&P) -> Result<Ran>) -> Result<Vec<(P, f64)>> {
    ensure!(!programs.is_empty(), "no test decides");
    let mut timed = Vec::new();
    for program in programs {
        match run(&program)? {
            Ran::Green { seconds, .. } => timed.push((program, seconds)),
            other => bail!("the tests fail without a mutant: {} (--build-each lets cargo-mutants try)", other.said()),
        }
    }
    timed.sort_by(|(_, a), (_, b)| a.total_cmp(b));
    Ok(timed)
}

/// The limit of all tests of a mutant, by their seconds without one.
fn limit_of(green_seconds: f64) -> Duration {
    Duration::from_secs_f64(green_seconds * LIMIT_TIMES).clamp(LEAST_LIMIT, TEST_LIMIT)
}

/// Runs programs one after the other until one does not pass, all together within the limit. Returns what it shows and
/// the seconds of them all.
fn verdict<P>(
    programs: impl Iterator<Item = P>,
    limit: Duration,
    run: impl Fn(&P, Duration) -> Result<Ran>,
) -> Result<(Outcome, f64)> {
    let mut spent = 0.0;
    for program in programs {
        let left = limit.saturating_sub(Duration::from_secs_f64(spent));
        match run(&program, left)? {
            Ran::Green { seconds, .. } => spent += seconds,
            Ran::Red { seconds, .. } => return Ok((Outcome::Caught, spent + seconds)),
            Ran::NoVerdict(_) => return Ok((Outcome::TimedOut, limit.as_secs_f64())),
            Ran::NoBuild(why) => bail!("{why}"),
        }
    }
    Ok((Outcome::Survived, spent))
}

/// Runs a test program with the mutant of this number; 0: without one.
fn run_test(program: &Program, number: u32, limit: Duration) -> Result<Ran> {
    let command = tool::tests_env(test_program(program, number)).env("RUST_MIN_STACK", STACK_BYTES.to_string());
    Ok(Ran::of_tests(spawn("mutant", command, limit).context("a test program")?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    fn green(seconds: f64) -> Result<Ran> {
        Ok(Ran::Green { passed: 1, seconds })
    }

    fn red(seconds: f64) -> Result<Ran> {
        Ok(Ran::Red { seconds, how: "panicked".into() })
    }

    #[test]
    fn the_first_failure_decides_and_the_limit_is_for_all_programs_together() {
        let limit = Duration::from_secs(30);
        let ran = RefCell::new(Vec::new());
        let of = |outcomes: &[fn() -> Result<Ran>]| {
            ran.borrow_mut().clear();
            let run = |program: &&fn() -> Result<Ran>, left: Duration| {
                ran.borrow_mut().push(left.as_secs());
                program()
            };
            let verdict = verdict(outcomes.iter(), limit, run).unwrap();
            (verdict, ran.borrow().clone())
        };
        let pass: fn() -> Result<Ran> = || green(10.0);
        let fail: fn() -> Result<Ran> = || red(2.0);
        let hang: fn() -> Result<Ran> = || Ok(Ran::NoVerdict("did not end".into()));
        assert_eq!(of(&[pass, pass]), ((Outcome::Survived, 20.0), vec![30, 20]));
        assert_eq!(of(&[pass, fail, pass]), ((Outcome::Caught, 12.0), vec![30, 20]));
        assert_eq!(of(&[pass, hang, fail]), ((Outcome::TimedOut, 30.0), vec![30, 20]));
        // Late by a little, so nothing is left.
        assert_eq!(of(&[pass, pass, pass, || green(0.1), hang]).1, [30, 20, 10, 0, 0]);
    }

    #[test]
    fn the_quickest_tests_are_first_and_all_must_pass_without_a_mutant() {
        let seconds = |name: &&str| match *name {
            "--lib" => green(3.0),
            "--test=quick" => green(0.5),
            _ => red(1.0),
        };
        let order = in_order(vec!["--lib", "--test=quick"], seconds).unwrap();
        assert_eq!(order, [("--test=quick", 0.5), ("--lib", 3.0)]);
        let error = in_order(vec!["--lib", "--test=red"], seconds).unwrap_err().to_string();
        assert!(error.starts_with("the tests fail without a mutant: panicked"), "{error}");
        assert!(in_order(Vec::<&str>::new(), seconds).is_err());
    }

    /// Both ways must give the same verdict.
    #[test]
    fn the_limit_is_that_of_the_tool() {
        let settings = std::fs::read_to_string(root().join(".cargo/mutants.toml")).unwrap();
        assert!(settings.contains(&format!("\ntimeout_multiplier = {LIMIT_TIMES:.1}\n")));
        assert!(settings.contains(&format!("\nminimum_test_timeout = {:.1}\n", LEAST_LIMIT.as_secs_f64())));
        assert_eq!(limit_of(0.5), Duration::from_secs(30));
        assert_eq!(limit_of(20.0), Duration::from_secs(80));
        assert_eq!(limit_of(9_999.0), TEST_LIMIT);
    }

    #[test]
    fn what_is_left_over_gets_no_common_build() {
        let mutants: Vec<Mutant> = (1..=9).map(|number| Mutant { number, ..Mutant::named("a", "seal") }).collect();
        let of = |part: &[usize]| -> Vec<Group<'_>> {
            let mut all = mutants.iter().map(|one| Numbered { number: one.number, bug: one });
            part.iter().map(|&count| all.by_ref().take(count).collect()).collect()
        };
        let numbers = |group: &Group<'_>| group.iter().map(|one| one.number).collect::<Vec<_>>();
        let (builds, few) = worth_it(of(&[FROM, 2, 1]));
        assert_eq!((builds.iter().map(numbers).collect(), numbers(&few)), (vec![vec![1, 2, 3, 4]], vec![5, 6, 7]));
        assert!(worth_it(Vec::new()).0.is_empty());
    }

    #[test]
    fn a_build_without_a_culprit_is_halved_until_it_is_small() {
        let mutants: Vec<Mutant> = (1..=2 * u32::try_from(SMALLEST).unwrap() + 1)
            .map(|number| Mutant { number, ..Mutant::named("a", "seal") })
            .collect();
        let group: Group<'_> = mutants.iter().map(|one| Numbered { number: one.number, bug: one }).collect();
        let two = halves(group, "why").unwrap_or_else(|_| panic!("not halved"));
        let first = |group: &Group<'_>| (group.first().map(|one| one.number), group.len());
        assert_eq!(two.iter().map(first).collect::<Vec<_>>(), [(Some(17), 17), (Some(1), 16)], "popped from the end");
        let small = halves(two.into_iter().nth(1).unwrap(), "why");
        assert!(small.is_err_and(|group| group.len() == SMALLEST));
    }

    #[test]
    fn the_programs_of_a_crate_are_named_as_cargo_names_them() {
        let of = |name: &str| -> Vec<Vec<&str>> {
            super::super::scope::SCOPES.iter().find(|scope| scope.name == name).unwrap().targets().collect()
        };
        assert_eq!(of("seal"), [vec!["--lib"], vec!["--test", "seal"]]);
    }
}
