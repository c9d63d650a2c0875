//! Commands on the pages: what a reader may copy is a command line of the program that it names.
//!
//! Each program of chores has a test that calls [`refused`] with its own command line.

use crate::binary::root;
use clap::Parser;
use clap::error::ErrorKind;
use std::io;
use std::path::{Path, PathBuf};

/// Where pages are, from the top of the tree: files, and folders with all below them.
const PAGES: [&str; 6] = ["README.md", "CONTRIBUTING.md", "docs", "deploy", "bench/README.md", "jepsen/README.md"];

/// The programs of the chores, as a reader starts them.
const PROGRAM: &str = "cargo xtask ";

/// Blanks of a line of code that is not within fences.
const INDENT: &str = "    ";

/// All pages, sorted.
fn pages() -> io::Result<Vec<PathBuf>> {
    let mut pages = Vec::new();
    let mut places: Vec<PathBuf> = PAGES.iter().map(|place| root().join(place)).collect();
    while let Some(place) = places.pop() {
        if place.is_dir() {
            for entry in std::fs::read_dir(place)? {
                places.push(entry?.path());
            }
        } else if place.extension().is_some_and(|extension| extension == "md") {
            pages.push(place);
        }
    }
    pages.sort();
    Ok(pages)
}

/// The arguments of a chore in a line of code, up to a comment, or to what is said two blanks behind it.
fn words(line: &str) -> Option<Vec<String>> {
    let line = line.trim_start();
    let command = line.strip_prefix("$ ").unwrap_or(line).strip_prefix(PROGRAM)?;
    let ends = [" #", "  ", " | ", " > ", " &"].iter().filter_map(|end| command.find(end)).min();
    let (mut words, mut quote, mut inside) = (Vec::<String>::new(), None, false);
    for c in command[..ends.unwrap_or(command.len())].chars() {
        match quote {
            Some(open) if c == open => quote = None,
            None if c == '\'' || c == '"' => quote = Some(c),
            None if c == ' ' => inside = false,
            _ => {
                if !inside {
                    words.push(String::new());
                }
                inside = true;
                if let Some(word) = words.last_mut() {
                    word.push(c);
                }
            }
        }
    }
    Some(words).filter(|words| !words.is_empty())
}

/// The chores in the code of one page, with the numbers of their lines.
fn commands(text: &str) -> Vec<(usize, Vec<String>)> {
    let (mut found, mut fenced) = (Vec::new(), false);
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        } else if fenced || line.starts_with(INDENT) {
            found.extend(words(line).map(|words| (number + 1, words)));
        }
    }
    found
}

/// Tries all chores on the pages whose name is one of `own`, as command lines of `T`. Returns how many were tried, and
/// what is wrong with those that are refused. Fails when a page cannot be read.
pub fn refused<T: Parser>(own: impl Fn(&str) -> bool) -> io::Result<(usize, Vec<String>)> {
    let (mut tried, mut wrong) = (0, Vec::new());
    for page in pages()? {
        let text = std::fs::read_to_string(&page)?;
        let name = page.strip_prefix(root()).unwrap_or(Path::new(""));
        for (line, words) in commands(&text) {
            if !words.first().is_some_and(|chore| own(chore)) {
                continue;
            }
            tried += 1;
            let line_of = format!("{}:{line}: cargo xtask {}", name.display(), words.join(" "));
            match T::try_parse_from(std::iter::once("cargo xtask".to_string()).chain(words)) {
                Err(error) if error.kind() != ErrorKind::DisplayHelp => wrong.push(format!("{line_of}: {error}")),
                Ok(_) | Err(_) => {}
            }
        }
    }
    Ok((tried, wrong))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_ends_where_the_reader_is_told_about_it() {
        let of = |line: &str| words(line).map(|words| words.join("|"));
        assert_eq!(of("cargo xtask sim --seed 7   # one again").as_deref(), Some("sim|--seed|7"));
        assert_eq!(of("    $ cargo xtask sim --seeds 100     the set has three").as_deref(), Some("sim|--seeds|100"));
        let quoted = of("cargo xtask jepsen --nemesis \"mix mix-2\" --seconds 300");
        assert_eq!(quoted.as_deref(), Some("jepsen|--nemesis|mix mix-2|--seconds|300"));
        assert_eq!(of("cargo test"), None);
    }

    #[test]
    fn only_code_is_looked_at() {
        let text = "cargo xtask no\n\n```\ncargo xtask a\n```\n\n    cargo xtask b\n\nor `cargo xtask c`\n";
        let found: Vec<(usize, String)> =
            commands(text).into_iter().map(|(line, words)| (line, words.concat())).collect();
        assert_eq!(found, [(4, "a".to_string()), (7, "b".to_string())]);
    }

    #[test]
    fn the_pages_are_found() {
        let found = pages().expect("pages");
        for page in ["README.md", "docs/start.md", "docs/operating/settings.md", "docs/proof/jepsen.md"] {
            assert!(found.contains(&root().join(page)), "{page}: {found:?}");
        }
    }
}
