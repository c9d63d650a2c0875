//! What a crate needs in the copy so that its functions can ask which bug is chosen.

use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Environment variable with the number of the chosen bug; 0 or missing: none.
pub(super) const VARIABLE: &str = "HOLDFAST_KNOWN_BUG";

/// The module that is appended to each library and program with bugs.
pub(super) const MODULE: &str = "holdfast_known_bug";

/// Text of the module. It reads the variable once.
fn module() -> String {
    format!(
        "
/// Chooses one of the known bugs that were put into this copy of the tree.
#[allow(dead_code)]
mod {MODULE} {{
    static CHOSEN: std::sync::OnceLock<u32> = std::sync::OnceLock::new();

    /// Whether the bug of this number is the chosen one.
    #[inline]
    pub(crate) fn is(number: u32) -> bool {{
        *CHOSEN.get_or_init(|| {{
            std::env::var(\"{VARIABLE}\").ok().and_then(|text| text.parse().ok()).unwrap_or(0)
        }}) == number
    }}
}}
"
    )
}

/// Tests of ours start `holdfast` with an empty environment; the chosen bug must stay in it.
const EMPTIED: &str = ".env_clear()";

fn kept() -> String {
    format!("{EMPTIED}.envs(std::env::var_os(\"{VARIABLE}\").map(|bug| (\"{VARIABLE}\", bug)))")
}

/// All files of the copy that differ from the tree, with their texts.
///
/// # Errors
/// When a file of the tree cannot be read.
pub(super) fn texts<'a>(
    root: &Path,
    all: impl Iterator<Item = &'a Path>,
    rewritten: &BTreeMap<&str, &str>,
) -> Result<BTreeMap<PathBuf, String>> {
    let changed: Vec<&Path> = rewritten.keys().map(Path::new).collect();
    let tops = tops(root, &changed)?;
    let mut out = BTreeMap::new();
    for file in all.filter(|file| file.extension().is_some_and(|ext| ext == "rs")) {
        let new = file.to_str().and_then(|name| rewritten.get(name)).map(|new| (*new).to_owned());
        let mut differs = new.is_some() || tops.contains(file);
        let mut text = match new {
            Some(new) => new,
            None => std::fs::read_to_string(root.join(file)).with_context(|| file.display().to_string())?,
        };
        // No line becomes two: the lines of the bugs stay where they are.
        if file.starts_with("crates") && text.contains(EMPTIED) {
            text = text.replace(EMPTIED, &kept());
            differs = true;
        }
        if tops.contains(file) {
            text.push_str(&module());
        }
        if differs {
            out.insert(file.to_owned(), text);
        }
    }
    Ok(out)
}

/// The top files of the libraries and programs that may have these files as modules.
fn tops(root: &Path, changed: &[&Path]) -> Result<BTreeSet<PathBuf>> {
    let mut out = BTreeSet::new();
    for file in changed {
        let src = file.ancestors().find(|dir| dir.ends_with("src")).context("not in a src folder")?;
        if file.parent().is_some_and(|dir| dir.ends_with("src/bin")) {
            out.insert((*file).to_owned());
            continue;
        }
        let found = ["lib.rs", "main.rs"].into_iter().map(|name| src.join(name));
        out.extend(found.filter(|top| root.join(top).is_file()));
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binary::root;
    use crate::schemata::function::functions;

    #[test]
    fn a_library_and_a_program_of_one_crate_both_get_the_module() {
        let of = |file: &str| -> Vec<String> {
            let tops = tops(root(), &[Path::new(file)]).unwrap();
            tops.iter().map(|top| top.display().to_string()).collect()
        };
        assert_eq!(of("crates/store/src/s3/chain.rs"), ["crates/store/src/lib.rs"]);
        assert_eq!(of("crates/sim/src/runner.rs"), ["crates/sim/src/main.rs"]);
        assert_eq!(of("dist/src/lib.rs"), ["dist/src/lib.rs", "dist/src/main.rs"]);
        assert_eq!(of("crates/store/src/bin/bare_put.rs"), ["crates/store/src/bin/bare_put.rs"]);
    }

    #[test]
    fn the_module_is_rust_and_the_variable_outlives_an_empty_environment() {
        assert_eq!(functions(&module()).unwrap().len(), 1);
        let file = Path::new("crates/holdfast/tests/program/extras.rs");
        let texts = texts(root(), std::iter::once(file), &BTreeMap::new()).unwrap();
        let text = &texts[file];
        functions(text).unwrap();
        assert!(text.contains(".env_clear().envs(std::env::var_os(\"HOLDFAST_KNOWN_BUG\")"), "found {text}");
    }
}
