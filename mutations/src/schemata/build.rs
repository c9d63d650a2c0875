//! The one build: every crate and test program of the copy, with all bugs that compile beside each other.
//!
//! A bug that does not compile must not spoil the rest: each error of the compiler belongs to the bug whose body has
//! its line. These bugs are thrown out, and cargo builds again what it could not.

use super::chooser;
use super::messages::{Program, Said};
use super::rewrite::{Numbered, Plan, plan};
use crate::binary::{cargo, root};
use crate::cmd::{Cmd, tail_of};
use crate::process::Proc;
use crate::say::note;
use crate::scratch::Copied;
use anyhow::{Context, Result, bail, ensure};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Limit for one build.
const BUILD_LIMIT: Duration = Duration::from_secs(4 * 3600);

/// Most builds until all that is left compiles. A crate is built after those below it, and its types are checked before
/// its borrows: two for each of about twelve levels of crates, and some more.
const ROUNDS: usize = 30;

/// The build folder of known bugs: nothing that is built here can be taken for a build of the tree.
pub(crate) fn folder() -> PathBuf {
    root().join("target/mutations-build")
}

/// What was built.
pub(super) struct Built {
    pub(super) programs: Vec<Program>,
    /// The program `holdfast`.
    pub(super) holdfast: PathBuf,
    pub(super) plan: Plan,
    pub(super) took: Duration,
}

impl Built {
    /// The test program of this package and target, as cargo's options name it.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn test(&self, package: &str, target: &[&str]) -> Result<&Program> {
        let mut found = self.programs.iter().filter(|program| program.is_test(package, target));
        let one = found.next().with_context(|| format!("no test program {package} {}", target.join(" ")))?;
        ensure!(found.next().is_none(), "two test programs {package} {}", target.join(" "));
        Ok(one)
    }
}

/// Builds the copy with all bugs that fit.
///
/// # Errors
/// When something else than a bug does not compile.
pub(super) fn build(copy: &Copied, bugs: &[Numbered<'_>]) -> Result<Built> {
    let begun = Instant::now();
    let read = |file: &str| std::fs::read_to_string(root().join(file)).with_context(|| file.to_owned());
    let mut without = BTreeMap::new();
    for round in 1..=ROUNDS {
        let plan = plan(bugs, &without, read)?;
        if round == 1 {
            note(format!("{} fit into it, {} do not; log: {}", plan.fits.len(), plan.refused.len(), log().display()));
        }
        copy.restore_but(&chooser::texts(root(), copy.files(), &plan.texts())?)?;
        let (success, said) = run(copy)?;
        if success {
            let holdfast = said.programs.iter().find(|program| program.is_program("holdfast"));
            let holdfast = holdfast.context("cargo built no program called holdfast")?.path.clone();
            return Ok(Built { programs: said.programs, holdfast, plan, took: begun.elapsed() });
        }
        let thrown = blamed(&said, &plan);
        note(format!("build {round}: {:.0} s; {} do not compile", begun.elapsed().as_secs_f64(), thrown.len()));
        if thrown.is_empty() {
            let errors: Vec<&str> = said.errors.iter().map(|error| error.text.as_str()).take(3).collect();
            bail!("no bug is to blame: {}\n{}", errors.join("\n"), tail_of(&log(), 6));
        }
        without.extend(thrown);
    }
    bail!("{ROUNDS} builds, and there is still a bug that does not compile")
}

/// The bugs that errors belong to, and the first error of each.
fn blamed(said: &Said, plan: &Plan) -> BTreeMap<u32, String> {
    let mut out: BTreeMap<u32, String> = BTreeMap::new();
    for error in &said.errors {
        let files = |place: &(String, usize)| Some((plan.files.get(&place.0)?, place.1));
        let body = error.places.iter().filter_map(files).find_map(|(file, line)| file.body_at(line));
        // The choice itself may be at fault, or the error is where the original and the bugs meet.
        let function = || {
            let around = error.places.iter().filter_map(files).map(|(file, line)| file.function_at(line).to_vec());
            around.into_iter().find(|numbers| !numbers.is_empty()).unwrap_or_default()
        };
        for number in body.map_or_else(function, |number| vec![number]) {
            out.entry(number).or_insert_with(|| format!("does not compile beside the others: {}", error.text));
        }
    }
    out
}

fn log() -> PathBuf {
    root().join("target/mutations-build.log")
}

/// Cargo's build of everything that tests need. Returns whether it succeeded.
fn run(copy: &Copied) -> Result<(bool, Said)> {
    std::fs::write(log(), "").with_context(|| log().display().to_string())?;
    let command = command(copy.tree()).args(["build", "--locked", "--workspace", "--lib", "--bins", "--tests"]);
    let command = command.args(["--keep-going", "--message-format", "json"]);
    let (mut proc, mut out) = Proc::spawn_piped("build", command.into_command(), &log())?;
    std::thread::scope(|scope| {
        let reader = scope.spawn(move || {
            let mut text = String::new();
            out.read_to_string(&mut text).map(|_| text)
        });
        let status = proc.wait(BUILD_LIMIT);
        // Ends what still writes to the pipe.
        drop(proc);
        let text = reader.join().map_err(|_| anyhow::anyhow!("the reader of cargo's messages has ended"))??;
        Ok((status?.success(), Said::of(&text, copy.tree())))
    })
}

/// Cargo in the copy, with the build folder of known bugs. Without debug information and incremental builds: all is
/// built once.
fn command(tree: &Path) -> Cmd {
    Cmd::of(cargo())
        .dir(tree)
        .env("CARGO_TARGET_DIR", folder())
        .env("CARGO_INCREMENTAL", "0")
        .env("CARGO_PROFILE_DEV_DEBUG", "0")
}

#[cfg(test)]
mod tests {
    use super::super::messages::Failure;
    use super::*;
    use crate::bug::{Edit, Mutation};

    const TEXT: &str = "fn f() -> u8 {\n    1\n}\nfn g() -> u8 {\n    2\n}\n";

    fn with_three(check: impl Fn(&Plan, &dyn Fn(&str) -> usize)) {
        let bug = |edits| Mutation { name: "a", bug: "", rule: "", edits, tests: &[], smoke: false };
        let bugs = [
            bug(&[Edit { file: "a/src/f.rs", old: "1", new: "true" }]),
            bug(&[Edit { file: "a/src/f.rs", old: "1", new: "11" }]),
            bug(&[Edit { file: "a/src/f.rs", old: "2", new: "22" }]),
        ];
        let numbered: Vec<Numbered<'_>> = bugs.iter().zip(1..).map(|(bug, number)| Numbered { number, bug }).collect();
        let plan = plan(&numbered, &BTreeMap::new(), |_| Ok(TEXT.into())).unwrap();
        let text = plan.files["a/src/f.rs"].text.clone();
        let line = |part: &str| text.lines().position(|line| line.trim() == part).unwrap() + 1;
        check(&plan, &line);
    }

    fn said(places: &[(&str, usize)]) -> Said {
        let places = places.iter().map(|(file, line)| ((*file).to_owned(), *line)).collect();
        Said { programs: Vec::new(), errors: vec![Failure { text: "mismatched types".into(), places }] }
    }

    #[test]
    fn an_error_is_the_fault_of_the_bug_in_its_line() {
        with_three(|plan, line| {
            let of = |places: &[(&str, usize)]| blamed(&said(places), plan).into_keys().collect::<Vec<_>>();
            assert_eq!(of(&[("a/src/f.rs", line("true"))]), [1]);
            assert_eq!(of(&[("a/src/f.rs", line("11"))]), [2]);
            assert_eq!(of(&[("/rustc/x/panic.rs", 3), ("a/src/f.rs", line("22"))]), [3], "inside of a macro");
            assert_eq!(of(&[("a/src/f.rs", line("1"))]), [1, 2], "the original: all of its function");
            assert_eq!(of(&[("a/src/f.rs", line("1")), ("a/src/f.rs", line("11"))]), [2], "a note tells more");
            assert!(of(&[("a/src/other.rs", 1)]).is_empty());
            assert!(of(&[]).is_empty());
        });
    }
}
