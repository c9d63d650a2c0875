//! New texts of the sources: each function with bugs asks at its begin which bug is chosen, and has one body for each.
//!
//! ```text
//!  fn f() { ORIGINAL }   ─▶   fn f() { if crate::holdfast_known_bug::is(17) { BODY WITH 17 } else { ORIGINAL } }
//! ```

use super::function::{Function, functions, is_body};
use crate::bug::{Mutation, place_of};
use anyhow::{Context, Result, anyhow, ensure};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::ops::{Range, RangeInclusive};

/// A change of the sources that fits into a build beside others: a known bug, or a mutant.
pub(crate) trait Bug {
    fn name(&self) -> &str;
    /// All of them belong to it.
    fn pieces(&self) -> Vec<Piece<'_>>;
}

/// A text in place of a part of a file.
pub(crate) struct Piece<'a> {
    pub(crate) file: &'a str,
    pub(crate) old: Old<'a>,
    pub(crate) new: &'a str,
}

/// The part of a file that goes.
pub(crate) enum Old<'a> {
    /// This text, which occurs exactly once.
    Text(&'a str),
    /// These bytes.
    Bytes(Range<usize>),
}

impl Bug for Mutation {
    fn name(&self) -> &str {
        self.name
    }

    fn pieces(&self) -> Vec<Piece<'_>> {
        self.edits.iter().map(|edit| Piece { file: edit.file, old: Old::Text(edit.old), new: edit.new }).collect()
    }
}

/// A bug by its number, which chooses it at run time. 0 is no bug.
#[derive(Clone, Copy)]
pub(crate) struct Numbered<'a> {
    pub(crate) number: u32,
    pub(crate) bug: &'a dyn Bug,
}

/// All bugs that fit into one build.
pub(crate) struct Plan {
    pub(super) files: BTreeMap<String, Rewritten>,
    /// Numbers of the bugs inside.
    pub(crate) fits: BTreeSet<u32>,
    /// The others, and why each needs a build of its own.
    pub(crate) refused: BTreeMap<u32, String>,
}

impl Plan {
    /// The new texts of the files.
    pub(crate) fn texts(&self) -> BTreeMap<&str, &str> {
        self.files.iter().map(|(file, new)| (file.as_str(), new.text.as_str())).collect()
    }
}

/// The new text of one file.
#[derive(Debug, Default)]
pub(super) struct Rewritten {
    pub(super) text: String,
    /// Lines of each bug's body. No two overlap.
    bodies: Vec<(RangeInclusive<usize>, u32)>,
    /// Lines of each rewritten function, and the bugs in it.
    functions: Vec<(RangeInclusive<usize>, Vec<u32>)>,
}

impl Rewritten {
    /// The bug whose body has this line; lines begin at 1.
    pub(super) fn body_at(&self, line: usize) -> Option<u32> {
        self.bodies.iter().find(|(lines, _)| lines.contains(&line)).map(|(_, number)| *number)
    }

    /// All bugs of the function around this line.
    pub(super) fn function_at(&self, line: usize) -> &[u32] {
        self.functions.iter().find(|(lines, _)| lines.contains(&line)).map_or(&[], |(_, numbers)| numbers)
    }
}

/// A file as it is in the tree.
pub(super) struct Source {
    pub(super) text: String,
    pub(super) functions: Vec<Function>,
}

/// A text in place of a part of a file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Change {
    pub(super) part: Range<usize>,
    new: String,
}

/// Changes of one bug in one function.
struct Placed {
    number: u32,
    /// Index in the functions of the file.
    function: usize,
    changes: Vec<Change>,
}

/// All files that bugs change, except those that have no room for a choice. `read` returns the text of a file of the
/// tree.
///
/// # Errors
/// When a file cannot be read or is no Rust.
pub(super) fn sources<'a>(
    bugs: &[Numbered<'a>],
    read: impl Fn(&str) -> Result<String>,
) -> Result<BTreeMap<&'a str, Source>> {
    let mut sources: BTreeMap<&str, Source> = BTreeMap::new();
    for Piece { file, .. } in bugs.iter().flat_map(|one| one.bug.pieces()) {
        if has_room(file).is_ok() && !sources.contains_key(file) {
            let text = read(file)?;
            let functions = functions(&text).with_context(|| file.to_owned())?;
            sources.insert(file, Source { text, functions });
        }
    }
    Ok(sources)
}

/// Plans one build with all bugs that fit, except `without`. `read` returns the text of a file of the tree.
///
/// # Errors
/// When a file cannot be read or is no Rust, or a text to replace does not occur exactly once.
pub(crate) fn plan(
    bugs: &[Numbered<'_>],
    without: &BTreeMap<u32, String>,
    read: impl Fn(&str) -> Result<String>,
) -> Result<Plan> {
    let sources = sources(bugs, read)?;
    let mut refused = without.clone();
    for Numbered { number, bug } in bugs {
        if let Some(why) = bug.pieces().iter().find_map(|piece| has_room(piece.file).err()) {
            refused.entry(*number).or_insert(why);
        }
    }
    // A bug that is refused in one file leaves all others, so the places of the remaining ones are looked for again.
    loop {
        let before = refused.len();
        let mut placed: BTreeMap<&str, Vec<Placed>> = BTreeMap::new();
        for Numbered { number, bug } in bugs.iter().filter(|bug| !without.contains_key(&bug.number)) {
            if refused.contains_key(number) {
                continue;
            }
            match places(*number, *bug, &sources)? {
                Ok(found) => found.into_iter().for_each(|(file, place)| placed.entry(file).or_default().push(place)),
                Err(why) => drop(refused.insert(*number, why)),
            }
        }
        let mut files = BTreeMap::new();
        for (file, mut placed) in placed {
            let source = &sources[file];
            lift(&mut placed, &source.functions);
            files.insert(file.to_owned(), rewritten(source, &placed, &mut refused));
        }
        if refused.len() == before {
            let fits = bugs.iter().map(|bug| bug.number).filter(|number| !refused.contains_key(number)).collect();
            return Ok(Plan { files, fits, refused });
        }
    }
}

/// Whether a function of this file can ask for the chosen bug: it must belong to a library or program of ours.
fn has_room(file: &str) -> Result<(), String> {
    if !file.ends_with(".rs") {
        return Err(format!("{file} is no Rust"));
    }
    if !file.contains("/src/") {
        return Err(format!("{file} is not in the src of a crate"));
    }
    Ok(())
}

/// The function of each change of a bug; the inner error says why it has none.
fn places<'a>(
    number: u32,
    bug: &dyn Bug,
    sources: &BTreeMap<&'a str, Source>,
) -> Result<Result<Vec<(&'a str, Placed)>, String>> {
    let mut all: Vec<(&'a str, Placed)> = Vec::new();
    for piece in bug.pieces() {
        let (&file, source) = sources.get_key_value(piece.file).with_context(|| piece.file.to_owned())?;
        let change = change(&source.text, &piece).with_context(|| format!("{}: {file}", bug.name()))?;
        let function = match innermost(&source.functions, &change.part) {
            Ok(function) => function,
            Err(why) => return Ok(Err(format!("{file}: {why}"))),
        };
        let same = |(other, place): &&mut (&str, Placed)| *other == file && place.function == function;
        match all.iter_mut().find(same) {
            Some((_, place)) => place.changes.push(change),
            None => all.push((file, Placed { number, function, changes: vec![change] })),
        }
    }
    Ok(Ok(all))
}

/// The piece as a change of the text. One that is found by its text goes without what the old and the new text have in
/// common at begin and end: often a line around the change is there only to make the old text unique.
pub(super) fn change(text: &str, piece: &Piece<'_>) -> Result<Change> {
    let (old, new) = match &piece.old {
        Old::Text(old) => (*old, piece.new),
        Old::Bytes(part) => {
            text.get(part.clone()).with_context(|| format!("bytes {part:?} of {}", text.len()))?;
            return Ok(Change { part: part.clone(), new: piece.new.to_owned() });
        }
    };
    let at = place_of(old, text)?;
    let same = |(a, b): &(char, char)| a == b;
    let begin: usize = old.chars().zip(new.chars()).take_while(same).map(|(c, _)| c.len_utf8()).sum();
    let (old, new) = (&old[begin..], &new[begin..]);
    let end: usize = old.chars().rev().zip(new.chars().rev()).take_while(same).map(|(c, _)| c.len_utf8()).sum();
    let part = at + begin..at + begin + old.len() - end;
    Ok(Change { part, new: new[..new.len() - end].to_owned() })
}

/// The smallest function around a part of the text that can choose at run time.
fn innermost(functions: &[Function], part: &Range<usize>) -> Result<usize, String> {
    let mut around: Vec<usize> = (0..functions.len()).filter(|&i| functions[i].holds(part)).collect();
    around.sort_by_key(|&i| functions[i].body.len());
    let refusal = around.first().and_then(|&i| functions[i].refused);
    around
        .into_iter()
        .find(|&i| functions[i].refused.is_none())
        .ok_or_else(|| refusal.unwrap_or("an edit outside of a function's body").to_owned())
}

/// Where a function with bugs is inside of another one with bugs, the outer one takes them all: it is written once, and
/// has a copy of the inner one in each of its bodies.
fn lift(placed: &mut Vec<Placed>, functions: &[Function]) {
    let used: BTreeSet<usize> = placed.iter().map(|place| place.function).collect();
    for place in placed.iter_mut() {
        let around = used.iter().filter(|&&i| functions[i].is_around(&functions[place.function]));
        if let Some(&outer) = around.max_by_key(|&&i| functions[i].body.len()) {
            place.function = outer;
        }
    }
    // One bug in both: one body with both changes.
    let mut joined: Vec<Placed> = Vec::new();
    for place in placed.drain(..) {
        match joined.iter_mut().find(|other| (other.number, other.function) == (place.number, place.function)) {
            Some(other) => other.changes.extend(place.changes),
            None => joined.push(place),
        }
    }
    *placed = joined;
}

/// The file with all its bugs. A bug whose body is no Rust is left out and refused.
fn rewritten(source: &Source, placed: &[Placed], refused: &mut BTreeMap<u32, String>) -> Rewritten {
    let mut by_function: BTreeMap<usize, Vec<(u32, String)>> = BTreeMap::new();
    for place in placed {
        match with(&source.text, &source.functions[place.function].body, &place.changes) {
            Ok(body) if is_body(&body) => by_function.entry(place.function).or_default().push((place.number, body)),
            Ok(_) => drop(refused.insert(place.number, "the function's body is no Rust with the bug".into())),
            Err(why) => drop(refused.insert(place.number, why.to_string())),
        }
    }
    let mut order: Vec<usize> = by_function.keys().copied().collect();
    order.sort_by_key(|&i| source.functions[i].body.start);
    let (mut out, mut copied) = (Rewritten::default(), 0);
    for function in order {
        let body = &source.functions[function].body;
        out.text.push_str(&source.text[copied..body.start]);
        out.add(&by_function[&function], &source.text[body.clone()]);
        copied = body.end;
    }
    out.text.push_str(&source.text[copied..]);
    out
}

/// A function's body with these changes.
fn with(text: &str, body: &Range<usize>, changes: &[Change]) -> Result<String> {
    let mut sorted: Vec<&Change> = changes.iter().collect();
    sorted.sort_by_key(|change| change.part.start);
    let (mut out, mut copied) = (String::new(), body.start);
    for Change { part, new } in sorted {
        ensure!(copied <= part.start, "two of its edits overlap");
        out.push_str(&text[copied..part.start]);
        out.push_str(new);
        copied = part.end;
    }
    let rest = text.get(copied..body.end).ok_or_else(|| anyhow!("an edit reaches beyond its function"))?;
    out.push_str(rest);
    Ok(out)
}

impl Rewritten {
    /// Appends the body of a function with a choice of these bugs. Each bug has its lines for itself.
    fn add(&mut self, bugs: &[(u32, String)], original: &str) {
        let begin = self.line();
        for (number, body) in bugs {
            // Writing to a string cannot fail.
            let _ = writeln!(self.text, " if crate::{}::is({number}) {{", super::chooser::MODULE);
            let first = self.line();
            self.text.push_str(body);
            self.bodies.push((first..=self.line(), *number));
            self.text.push_str("\n} else");
        }
        self.text.push_str(" {\n");
        self.text.push_str(original);
        self.text.push_str("\n}");
        self.functions.push((begin..=self.line(), bugs.iter().map(|(number, _)| *number).collect()));
    }

    /// The line that is being written.
    fn line(&self) -> usize {
        self.text.matches('\n').count() + 1
    }
}

#[cfg(test)]
#[path = "rewrite_tests.rs"]
mod tests;
