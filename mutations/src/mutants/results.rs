//! Results of mutants: those of this machine below `target/`, those of all runs in the repository, and the reasons for
//! survivors.
//!
//! A mutant's name without line and column is its key, so that a result outlives changes elsewhere in the file. The
//! text of the function is in the result: when it changes, results and reasons of its mutants are invalid.

use super::edit;
use super::scope::{self, SCOPES, Scope};
use super::tool::{Listed, Outcome};
use crate::binary::root;
use crate::bug::fingerprint;
use crate::schemata::{Bug, Old, Piece};
use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::ops::Range;
use std::path::{Path, PathBuf};

/// A mutant of the tree as it is now.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Mutant {
    /// File, mutation and function: `crates/seal/src/key.rs: replace < with <= in open`. A number follows from the
    /// second equal one on.
    pub(super) key: String,
    /// The tool's name for it.
    pub(super) name: String,
    /// Its crate.
    pub(super) crate_name: &'static str,
    /// Fingerprint of its function.
    pub(super) text: String,
    /// Its place in the list of all, from 1 on: chooses it where one build has many.
    pub(super) number: u32,
    /// Relative to the tree.
    pub(super) file: String,
    /// The bytes of the file that go.
    pub(super) part: Range<usize>,
    /// The text in their place.
    pub(super) new: String,
}

impl Bug for Mutant {
    fn name(&self) -> &str {
        &self.name
    }

    fn pieces(&self) -> Vec<Piece<'_>> {
        vec![Piece { file: &self.file, old: Old::Bytes(self.part.clone()), new: &self.new }]
    }
}

/// The latest result of one mutant.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct MutantResult {
    pub(super) text: String,
    pub(super) outcome: Outcome,
    /// Tests, and the build if it had one of its own.
    pub(super) seconds: f64,
    pub(super) commit: String,
    /// Unix time in seconds.
    pub(super) at: u64,
}

/// The sources as they were when the list of mutants was made.
pub(super) struct Texts(BTreeMap<String, String>);

impl FromIterator<(String, String)> for Texts {
    fn from_iter<T: IntoIterator<Item = (String, String)>>(texts: T) -> Self {
        Self(texts.into_iter().collect())
    }
}

impl Texts {
    /// All files that the list names, below `tree`. Fails when one cannot be read.
    pub(super) fn read(listed: &[Listed], tree: &Path) -> Result<Self> {
        let mut texts = BTreeMap::new();
        for Listed { file, .. } in listed {
            if !texts.contains_key(file) {
                let text = std::fs::read_to_string(tree.join(file)).with_context(|| file.clone())?;
                texts.insert(file.clone(), text);
            }
        }
        Ok(Self(texts))
    }

    /// The text of a file. Fails when the list does not name it.
    pub(super) fn of(&self, file: &str) -> Result<&str> {
        self.0.get(file).map(String::as_str).with_context(|| format!("{file}: not in the list of mutants"))
    }

    /// The text of a file. Fails when it is another one below `tree` by now: the places of the mutants are wrong then.
    pub(super) fn same(&self, file: &str, tree: &Path) -> Result<String> {
        let text = self.of(file)?;
        let now = std::fs::read_to_string(tree.join(file)).with_context(|| file.to_owned())?;
        anyhow::ensure!(now == text, "{file} has changed since the list of mutants was made; start the chore again");
        Ok(now)
    }

    /// Fails when any of the files is another one below `tree` by now.
    pub(super) fn all_same(&self, tree: &Path) -> Result<()> {
        self.0.keys().try_for_each(|file| self.same(file, tree).map(drop))
    }
}

pub(super) type Results = BTreeMap<String, MutantResult>;

/// The committed results of one crate.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(super) struct OfCrate {
    /// Number of its mutants.
    pub(super) listed: usize,
    pub(super) seen: Results,
}

/// Why a survivor may survive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// It behaves as the original does.
    Equivalent,
    /// It costs time, memory or requests, and no data.
    CostOnly,
}

/// The reason for one survivor.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Reason {
    pub(super) text: String,
    pub(super) kind: Kind,
    pub(super) why: String,
}

pub(super) type Reasons = BTreeMap<String, Reason>;

fn kept(scope: &Scope) -> PathBuf {
    root().join("mutations/mutants").join(format!("{}.json", scope.name))
}

fn own() -> PathBuf {
    root().join("target/mutants/results.json")
}

fn read<T: Default + for<'de> Deserialize<'de>>(path: &Path) -> Result<T> {
    match std::fs::read_to_string(path) {
        Ok(text) => serde_json::from_str(&text).with_context(|| path.display().to_string()),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(T::default()),
        Err(e) => Err(e).with_context(|| path.display().to_string()),
    }
}

/// The reasons in the repository. Fails when they cannot be read.
pub(super) fn reasons() -> Result<Reasons> {
    read(&root().join("mutations/mutants/reasons.json"))
}

/// The reason for a survivor; none if the function has changed since it was given.
pub(super) fn reason<'a>(reasons: &'a Reasons, key: &str, text: &str) -> Option<&'a Reason> {
    reasons.get(key).filter(|reason| reason.text == text)
}

/// Gives each mutant its key, the fingerprint of its function, and the bytes that it replaces. Fails when the tool
/// lists a crate, a file or a place that does not exist.
pub(super) fn keyed(listed: Vec<Listed>, texts: &Texts) -> Result<Vec<Mutant>> {
    let mut times = HashMap::new();
    let mut mutants = Vec::new();
    for (one, number) in listed.into_iter().zip(1..) {
        let scope = scope::of_package(&one.package);
        let scope = scope.with_context(|| format!("{}: its tests are not known (mutants/scope.rs)", one.package))?;
        let text = texts.of(&one.file)?;
        let span = one.function.as_ref().map_or(one.span, |function| function.span);
        let lines = text.lines().skip(span.start.line.saturating_sub(1));
        let print = fingerprint(lines.take((span.end.line + 1).saturating_sub(span.start.line)).map(str::trim));
        let place = format!("{}:{}:{}: ", one.file, one.span.start.line, one.span.start.column);
        let change = one.name.strip_prefix(&place).with_context(|| format!("{}: expected {place}..", one.name))?;
        let plain = format!("{}: {change}", one.file);
        let time: &mut usize = times.entry(plain.clone()).or_default();
        *time += 1;
        let key = if *time == 1 { plain } else { format!("{plain} #{time}") };
        let part = edit::part(text, one.span).with_context(|| format!("{}: no such place", one.name))?;
        let new = edit::new(&one.replacement);
        mutants.push(Mutant {
            key,
            name: one.name,
            crate_name: scope.name,
            text: print,
            number,
            file: one.file,
            part,
            new,
        });
    }
    Ok(mutants)
}

/// Records results of this machine. Fails when they cannot be read or written.
pub(super) fn remember(new: Results) -> Result<()> {
    let mut all: Results = read(&own())?;
    all.extend(new);
    std::fs::write(own(), lines(&all)?).with_context(|| own().display().to_string())
}

/// The newest valid result of each mutant. Fails when results cannot be read.
pub(super) fn known(mutants: &[Mutant]) -> Result<Results> {
    let mut kept_here = Results::new();
    for scope in &SCOPES {
        kept_here.extend(read::<OfCrate>(&kept(scope))?.seen);
    }
    Ok(newest(mutants, &kept_here, &read(&own())?))
}

fn newest(mutants: &[Mutant], kept: &Results, own: &Results) -> Results {
    let mut all = Results::new();
    for mutant in mutants {
        let both = [kept.get(&mutant.key), own.get(&mutant.key)];
        let valid = both.into_iter().flatten().filter(|seen| seen.text == mutant.text);
        if let Some(seen) = valid.max_by_key(|seen| seen.at) {
            all.insert(mutant.key.clone(), seen.clone());
        }
    }
    all
}

/// The results in the repository, by crate. Fails when they cannot be read.
pub(super) fn committed() -> Result<BTreeMap<&'static str, OfCrate>> {
    SCOPES.iter().map(|scope| Ok((scope.name, read(&kept(scope))?))).collect()
}

/// Adds the results below `target/` to the committed ones. `mutants`: all of the tree. Fails when results cannot be
/// read or written.
pub(super) fn gather(mutants: &[Mutant]) -> Result<()> {
    let known = known(mutants)?;
    for scope in &SCOPES {
        let of_crate = mutants.iter().filter(|mutant| mutant.crate_name == scope.name);
        let listed = of_crate.clone().count();
        let seen = |mutant: &Mutant| Some((mutant.key.clone(), known.get(&mutant.key)?.clone()));
        let seen: Results = of_crate.filter_map(seen).collect();
        let path = kept(scope);
        let text = format!("{{\n\"listed\": {listed},\n\"seen\": {}}}\n", lines(&seen)?);
        std::fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    Ok(())
}

/// One line for each mutant, so that branches with different runs merge without conflict.
fn lines(all: &Results) -> Result<String> {
    let mut rows = Vec::new();
    for (key, seen) in all {
        rows.push(format!("{}: {}", serde_json::to_string(key)?, serde_json::to_string(seen)?));
    }
    Ok(format!("{{\n{}\n}}\n", rows.join(",\n")))
}

#[cfg(test)]
impl Mutant {
    /// A mutant of a test that looks neither at its place nor at its text.
    pub(super) fn named(name: &str, crate_name: &'static str) -> Self {
        Self {
            key: name.to_owned(),
            name: name.to_owned(),
            crate_name,
            text: "t".to_owned(),
            number: 1,
            file: String::new(),
            part: 0..0,
            new: String::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::tool::{Function, Place, Span};
    use super::*;

    fn span(from: usize, to: usize) -> Span {
        Span { start: Place { line: from, column: 1 }, end: Place { line: to, column: 2 } }
    }

    fn listed(line: usize, change: &str, function: (usize, usize)) -> Listed {
        Listed {
            name: format!("crates/seal/src/a.rs:{line}:1: {change}"),
            package: "holdfast-seal".into(),
            file: "crates/seal/src/a.rs".into(),
            function: Some(Function { span: span(function.0, function.1) }),
            span: span(line, line),
            replacement: "<=".into(),
        }
    }

    fn keyed_in(text: &str, all: Vec<Listed>) -> Vec<Mutant> {
        keyed(all, &Texts::from_iter([("crates/seal/src/a.rs".to_owned(), text.to_owned())])).unwrap()
    }

    const TEXT: &str = "fn f() {\n    a < b && c < d\n}\nfn g() {\n    e\n}\n";

    #[test]
    fn keys_are_unique_and_outlive_changes_elsewhere() {
        let all = || vec![listed(2, "replace < with <= in f", (1, 3)), listed(2, "replace < with <= in f", (1, 3))];
        let before = keyed_in(TEXT, all());
        let keys: Vec<&str> = before.iter().map(|mutant| mutant.key.as_str()).collect();
        let first = "crates/seal/src/a.rs: replace < with <= in f";
        assert_eq!(keys, [first, &format!("{first} #2")]);
        // Moved by two lines, and indented.
        let moved = TEXT.replace("fn f", "\n\n  fn f");
        let all = vec![listed(4, "replace < with <= in f", (3, 5)), listed(4, "replace < with <= in f", (3, 5))];
        let after = keyed_in(&moved, all);
        assert!(before.iter().zip(&after).all(|(a, b)| a.key == b.key && a.text == b.text), "{after:?}");
        // Its last line counts as well.
        let other = keyed_in(&TEXT.replacen("}\n", "} // x\n", 1), vec![listed(2, "replace < with <= in f", (1, 3))]);
        assert_ne!(other[0].text, before[0].text);
    }

    /// Bytes of the list would be those of another text.
    #[test]
    fn a_file_that_has_changed_since_the_list_was_made_is_an_error() {
        let dir = root().join(format!("target/mutants-texts-test-{}", std::process::id()));
        std::fs::create_dir_all(&dir).unwrap();
        let one = Listed { file: "a.rs".into(), ..listed(2, "replace < with <= in f", (1, 3)) };
        std::fs::write(dir.join("a.rs"), TEXT).unwrap();
        let texts = Texts::read(std::slice::from_ref(&one), &dir).unwrap();
        let before = (texts.same("a.rs", &dir).unwrap(), texts.all_same(&dir).is_ok());
        std::fs::write(dir.join("a.rs"), TEXT.replace("e\n", "ee\n")).unwrap();
        let after = [texts.same("a.rs", &dir).map(drop), texts.all_same(&dir)];
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(before, (TEXT.to_owned(), true));
        for error in after.map(|one| one.unwrap_err().to_string()) {
            assert!(error.starts_with("a.rs has changed since the list of mutants was made"), "{error}");
        }
        assert!(texts.of("b.rs").is_err());
    }

    fn seen(text: &str, outcome: Outcome, at: u64) -> MutantResult {
        MutantResult { text: text.into(), outcome, seconds: 1.5, commit: "abc".into(), at }
    }

    #[test]
    fn the_newest_result_of_the_same_function_counts() {
        let mutant = keyed_in(TEXT, vec![listed(2, "replace < with <= in f", (1, 3))]).remove(0);
        let of = |text: &str, outcome, at| Results::from([(mutant.key.clone(), seen(text, outcome, at))]);
        let outcome = |kept: &Results, own: &Results| {
            newest(std::slice::from_ref(&mutant), kept, own).remove(&mutant.key).map(|seen| seen.outcome)
        };
        let (old, new) = (of(&mutant.text, Outcome::Survived, 5), of(&mutant.text, Outcome::Caught, 6));
        assert_eq!(outcome(&old, &new), Some(Outcome::Caught));
        assert_eq!(outcome(&new, &old), Some(Outcome::Caught));
        assert_eq!(outcome(&of("other", Outcome::Caught, 9), &old), Some(Outcome::Survived));
        assert_eq!(outcome(&of("other", Outcome::Caught, 9), &Results::new()), None);
    }

    /// A reason for an older function, or for a mutant that no longer survives, must go.
    #[test]
    fn each_reason_is_that_of_a_survivor() {
        let committed = committed().unwrap();
        for (key, reason) in reasons().unwrap() {
            let seen = committed.values().find_map(|of_crate| of_crate.seen.get(&key));
            let fits = seen.is_some_and(|seen| seen.outcome == Outcome::Survived && seen.text == reason.text);
            assert!(fits, "{key}: found {seen:?}, expected a survivor with the text {}", reason.text);
            assert!(!reason.why.is_empty(), "{key}");
        }
    }
}
