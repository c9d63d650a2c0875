//! Import circles between the modules of a crate: files that need one another can only be read, and moved, together.
//!
//! Looked for twice: between files, and between folders. A folder is a module below the crate's root with all that is
//! in it (`server.rs` and `server/`): a circle of folders can lead through two files of each. Arrows are read from the
//! text (`imports`), without tests. Circles that may stay are listed in `circles/allowed.txt`.

mod imports;
mod modules;

use super::source::Source;
use modules::Arrows;
use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Circles that may stay: blocks with a blank line between them. A block is `reason: ...` (an ADR, or why), then the
/// files of the circle, or its folders.
const ALLOWED: &str = include_str!("circles/allowed.txt");

/// What stands in place of a reason in the lines that [`problems`] prints. A list that has it is refused.
const NO_REASON: &str = "(say why it may stay, or name the ADR)";

/// A circle that may stay.
#[derive(Debug)]
struct Allowed<'a> {
    reason: &'a str,
    files: BTreeSet<&'a str>,
}

/// No crate has a circle that is not listed, and each listed one exists.
pub(super) fn none_new(sources: &[Source]) -> Vec<String> {
    let files = modules::arrows(sources);
    let folders = modules::by_folder(&files);
    problems(&[("files", files), ("folders", folders)], ALLOWED)
}

/// `levels`: arrows between what.
fn problems(levels: &[(&str, Arrows)], list: &str) -> Vec<String> {
    let allowed = allowed(list);
    let mut found = Vec::new();
    let mut problems = Vec::new();
    for (what, arrows) in levels {
        for circle in circles(arrows) {
            if !allowed.iter().any(|a| a.files.iter().eq(circle.iter())) {
                let files: Vec<&str> = circle.iter().map(String::as_str).collect();
                problems.push(format!(
                    "import circle of {} {what}: {}; a shortest way round: {}",
                    circle.len(),
                    files.join(", "),
                    shortest(arrows, &circle).join(" -> ")
                ));
            }
            found.push(circle);
        }
    }
    for circle in &allowed {
        if !found.iter().any(|f| f.iter().eq(circle.files.iter())) {
            let first = circle.files.first().unwrap_or(&"an empty block");
            problems.push(format!("circles/allowed.txt: there is no such circle any more: the block with {first}"));
        }
        if circle.reason.is_empty() || circle.reason == NO_REASON {
            let first = circle.files.first().unwrap_or(&"no file");
            problems.push(format!("circles/allowed.txt: the block with {first} has no reason"));
        }
    }
    if !problems.is_empty() {
        let lines = listed(&found, &allowed);
        problems.push(format!(
            "if all circles of the tree may stay, xtask/src/tidy/circles/allowed.txt has to be:\n\n{lines}"
        ));
    }
    problems
}

fn allowed(list: &str) -> Vec<Allowed<'_>> {
    let block = |text| {
        let lines = str::lines(text).map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
        let (reasons, files): (Vec<&str>, Vec<&str>) = lines.partition(|l| l.starts_with("reason:"));
        let reason = reasons.first().map_or("", |l| l.trim_start_matches("reason:").trim());
        Allowed { reason, files: files.into_iter().collect() }
    };
    list.split("\n\n").map(block).filter(|a| !a.files.is_empty() || !a.reason.is_empty()).collect()
}

/// The list as it has to be for these circles. A circle that shares a file with a listed one keeps that one's reason.
fn listed(found: &[BTreeSet<String>], allowed: &[Allowed]) -> String {
    let block = |circle: &BTreeSet<String>| {
        let old = allowed.iter().find(|a| a.files.iter().any(|f| circle.contains(*f)));
        let reason = old.map_or(NO_REASON, |a| a.reason);
        let files: String = circle.iter().map(|f| format!("{f}\n")).collect();
        format!("reason: {reason}\n{files}")
    };
    found.iter().map(block).collect::<Vec<_>>().join("\n")
}

/// Groups of files, each of which reaches each other one by arrows; sorted. These are the strongly connected components
/// of more than one file.
fn circles(arrows: &Arrows) -> Vec<BTreeSet<String>> {
    let mut reached: BTreeMap<&str, BTreeSet<&str>> = BTreeMap::new();
    for from in arrows.keys() {
        let mut seen = BTreeSet::new();
        let mut open = vec![from.as_str()];
        while let Some(at) = open.pop() {
            open.extend(arrows.get(at).into_iter().flatten().map(String::as_str).filter(|to| seen.insert(*to)));
        }
        reached.insert(from, seen);
    }
    let reaches = |from: &str, to: &str| reached.get(from).is_some_and(|r| r.contains(to));
    let mut circles: BTreeSet<BTreeSet<String>> = BTreeSet::new();
    for (from, to) in &reached {
        let mut circle: BTreeSet<String> =
            to.iter().filter(|to| reaches(to, from)).map(|to| (*to).to_owned()).collect();
        circle.insert((*from).to_owned());
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

/// A shortest way round in a circle, its first file once more at the end.
fn shortest(arrows: &Arrows, circle: &BTreeSet<String>) -> Vec<String> {
    circle.iter().filter_map(|start| round(arrows, circle, start)).min_by_key(Vec::len).unwrap_or_default()
}

/// A shortest way from `start` back to it, within `circle`.
fn round(arrows: &Arrows, circle: &BTreeSet<String>, start: &String) -> Option<Vec<String>> {
    let mut before: BTreeMap<&String, &String> = BTreeMap::new();
    let mut open = VecDeque::from([start]);
    while let Some(at) = open.pop_front() {
        for to in arrows.get(at).into_iter().flatten().filter(|to| circle.contains(*to)) {
            if to == start {
                let mut way = vec![start.clone()];
                let mut last = at;
                while last != start {
                    way.push(last.clone());
                    last = before.get(last)?;
                }
                way.push(start.clone());
                way.reverse();
                return Some(way);
            }
            if !before.contains_key(to) {
                before.insert(to, at);
                open.push_back(to);
            }
        }
    }
    None
}

#[cfg(test)]
mod tests;
