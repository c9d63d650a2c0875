//! One build with all bugs that compile beside each other.
//!
//! A bug that does not compile must not spoil the rest: each error of the compiler belongs to the bug whose body has
//! its line. These bugs are thrown out, and cargo builds again what it could not.

use super::chooser;
use super::messages::{Program, Said};
use super::rewrite::{Numbered, Plan, plan};
use crate::binary::{WRAPPER, cargo, root};
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

/// What is built, where, and until when.
pub(crate) struct Order {
    /// Arguments of cargo.
    pub(crate) args: Vec<String>,
    /// The build folder. Nothing else is built here: what has bugs in it must not be taken for a build of the tree.
    pub(crate) folder: PathBuf,
    /// Output of the last build.
    pub(crate) log: PathBuf,
    /// Incremental builds: where the same crate is built again and again.
    pub(crate) incremental: bool,
    /// A build is ended then.
    pub(crate) until: Option<Instant>,
}

/// What was built.
pub(crate) struct Built {
    programs: Vec<Program>,
    pub(crate) plan: Plan,
    pub(crate) took: Duration,
}

/// How a build has ended.
pub(crate) enum End {
    Built(Built),
    /// Its time was over.
    NotInTime,
    /// It does not compile, and the errors are in the lines of no bug.
    NoneToBlame(String),
}

impl Built {
    /// The test program of this package and target, as cargo's options name it.
    ///
    /// # Errors
    /// When there is none.
    pub(crate) fn test(&self, package: &str, target: &[&str]) -> Result<&Program> {
        let mut found = self.programs.iter().filter(|program| program.is_test(package, target));
        let one = found.next().with_context(|| format!("no test program {package} {}", target.join(" ")))?;
        ensure!(found.next().is_none(), "two test programs {package} {}", target.join(" "));
        Ok(one)
    }

    /// The program of this name itself.
    ///
    /// # Errors
    /// When there is none.
    pub(super) fn program(&self, name: &str) -> Result<&Path> {
        let found = self.programs.iter().find(|program| program.is_program(name));
        Ok(&found.with_context(|| format!("cargo built no program called {name}"))?.path)
    }
}

impl Order {
    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }

    /// Time for one build.
    fn limit(&self) -> Duration {
        let left = self.until.map(|until| until.saturating_duration_since(Instant::now()));
        left.map_or(BUILD_LIMIT, |left| left.min(BUILD_LIMIT))
    }

    /// Cargo in the copy. Without debug information: nobody looks at one of these programs with a debugger.
    fn command(&self, tree: &Path) -> Cmd {
        Cmd::of(cargo())
            .args(&self.args)
            .args(["--message-format", "json"])
            .dir(tree)
            .env("CARGO_TARGET_DIR", &self.folder)
            // A bug may break a lint, and is built all the same.
            .env(WRAPPER, "")
            .env("CARGO_INCREMENTAL", if self.incremental { "1" } else { "0" })
            .env("CARGO_PROFILE_DEV_DEBUG", "0")
    }

    /// Builds once. Returns whether it succeeded; `None`: the time was over.
    fn run(&self, copy: &Copied) -> Result<Option<(bool, Said)>> {
        std::fs::write(&self.log, "").with_context(|| self.log.display().to_string())?;
        let (mut proc, mut out) = Proc::spawn_piped("build", self.command(copy.tree()).into_command(), &self.log)?;
        std::thread::scope(|scope| {
            let reader = scope.spawn(move || {
                let mut text = String::new();
                out.read_to_string(&mut text).map(|_| text)
            });
            let status = proc.wait(self.limit());
            // Ends what still writes to the pipe.
            drop(proc);
            let text = reader.join().map_err(|_| anyhow::anyhow!("the reader of cargo's messages has ended"))??;
            match status {
                Ok(status) => Ok(Some((status.success(), Said::of(&text, copy.tree())))),
                Err(_) if self.is_over() => Ok(None),
                Err(error) => Err(error),
            }
        })
    }
}

/// Builds the copy with all bugs that fit. `read` returns the text of a file of the tree.
///
/// # Errors
/// When cargo fails for another reason than an error in the sources.
pub(crate) fn build(
    copy: &Copied,
    order: &Order,
    bugs: &[Numbered<'_>],
    read: impl Fn(&str) -> Result<String>,
) -> Result<End> {
    let begun = Instant::now();
    let mut without = BTreeMap::new();
    for round in 1..=ROUNDS {
        let plan = plan(bugs, &without, &read)?;
        if round == 1 {
            let (fits, refused) = (plan.fits.len(), plan.refused.len());
            note(format!("{fits} fit into it, {refused} do not; log: {}", order.log.display()));
        }
        copy.restore_but(&chooser::texts(root(), copy.files(), &plan.texts())?)?;
        let Some((success, said)) = order.run(copy)? else { return Ok(End::NotInTime) };
        if success {
            return Ok(End::Built(Built { programs: said.programs, plan, took: begun.elapsed() }));
        }
        let thrown = blamed(&said, &plan);
        note(format!("build {round}: {:.0} s; {} do not compile", begun.elapsed().as_secs_f64(), thrown.len()));
        if thrown.is_empty() {
            let errors: Vec<&str> = said.errors.iter().map(|error| error.text.as_str()).take(3).collect();
            let why = format!("no bug is to blame: {}\n{}", errors.join("\n"), tail_of(&order.log, 6));
            // Without a place it is no error in the sources: the linker's, or a full disk.
            if said.errors.iter().all(|error| error.places.is_empty()) {
                bail!("cargo fails: {why}");
            }
            return Ok(End::NoneToBlame(why));
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
