//! Arrows between the files of each crate: which file a path leads to.

use super::super::source::Source;
use super::imports::{self, File};
use std::collections::{BTreeMap, BTreeSet};

/// From each file to the files of the same crate that it needs.
pub(super) type Arrows = BTreeMap<String, BTreeSet<String>>;

/// How many re-exports one after the other are followed.
const FOLLOWED_MAX: usize = 16;

/// The modules of one crate, by their path from its root.
type Modules = BTreeMap<Vec<String>, Module>;

#[derive(Debug)]
struct Module {
    /// From the top of the tree.
    path: String,
    file: File,
}

/// Arrows of all crates, without tests.
pub(super) fn arrows(sources: &[Source]) -> Arrows {
    let mut crates: BTreeMap<&str, Modules> = BTreeMap::new();
    for source in sources {
        let Some((home, file)) = source.path.split_once("/src/") else { continue };
        let Some(module) = module(file) else { continue };
        // A program beside a library names it like any other crate.
        if file == "main.rs" && sources.iter().any(|s| s.path == format!("{home}/src/lib.rs")) {
            continue;
        }
        let file = imports::read(&source.text, &module);
        crates.entry(home).or_default().insert(module, Module { path: source.path.clone(), file });
    }
    let mut arrows = Arrows::new();
    for modules in crates.values_mut() {
        without_tests(modules);
        for (from, module) in modules.iter() {
            let to = arrows.entry(module.path.clone()).or_default();
            for used in &module.file.used {
                let Some(target) = target(modules, &used.path, FOLLOWED_MAX) else { continue };
                // What is below and named again for others is no need of this file's.
                let below = used.again && target.starts_with(from);
                if target != *from && !below {
                    to.extend(modules.get(&target).map(|m| m.path.clone()));
                }
            }
        }
    }
    arrows
}

/// The same between the modules below each crate's root, as paths without `.rs`. What a file needs, its folder needs.
pub(super) fn by_folder(files: &Arrows) -> Arrows {
    let mut folders = Arrows::new();
    for (from, to) in files {
        let from = folder(from);
        let others: BTreeSet<String> = to.iter().map(|to| folder(to)).filter(|to| *to != from).collect();
        folders.entry(from).or_default().extend(others);
    }
    folders
}

/// `crates/a/src/b` of `crates/a/src/b.rs` and of `crates/a/src/b/x.rs`.
fn folder(file: &str) -> String {
    let Some((home, inside)) = file.split_once("/src/") else { return file.to_owned() };
    let first = inside.split('/').next().unwrap_or(inside);
    format!("{home}/src/{}", first.trim_end_matches(".rs"))
}

/// The module of a file below `src/`: none for what is not Rust, for a test, and for a program beside a library.
fn module(file: &str) -> Option<Vec<String>> {
    let mut parts: Vec<String> = file.strip_suffix(".rs")?.split('/').map(str::to_owned).collect();
    if parts.iter().any(|p| p == "tests" || p.ends_with("_tests") || p == "bin") {
        return None;
    }
    if parts.last().is_some_and(|p| p == "mod") || matches!(file, "lib.rs" | "main.rs") {
        parts.pop();
    }
    Some(parts)
}

/// Takes out what is declared `#[cfg(test)] mod NAME;`, and all below it.
fn without_tests(modules: &mut Modules) {
    let of = |(at, module): (&Vec<String>, &Module)| -> Vec<Vec<String>> {
        module.file.for_tests.iter().map(|name| [at.as_slice(), std::slice::from_ref(name)].concat()).collect()
    };
    let tests: Vec<Vec<String>> = modules.iter().flat_map(of).collect();
    modules.retain(|at, _| !tests.iter().any(|test| at.starts_with(test)));
}

/// The module in whose file that is what `path` names: re-exports are followed. `None` where they lead to another
/// crate.
fn target(modules: &Modules, path: &[String], more: usize) -> Option<Vec<String>> {
    let depth = (0..=path.len()).rev().find(|n| modules.contains_key(&path[..*n]))?;
    let at = &path[..depth];
    let here = Some(at.to_vec());
    let (Some(module), Some(name), true) = (modules.get(at), path.get(depth), more > 0) else { return here };
    if module.file.defined.contains(name) {
        return here;
    }
    let imports = module.file.used.iter().filter(|u| u.import);
    if let Some(import) = imports.clone().find(|u| u.name == *name && u.path != path) {
        return target(modules, &[import.path.as_slice(), &path[depth + 1..]].concat(), more - 1);
    }
    if module.file.foreign.contains(name) {
        return None;
    }
    for all in imports.filter(|u| u.name == "*" && u.path != at) {
        let found = target(modules, &[all.path.as_slice(), std::slice::from_ref(name)].concat(), more - 1)?;
        if modules.get(&found).is_some_and(|m| m.file.defined.contains(name)) {
            return Some(found);
        }
    }
    here
}
