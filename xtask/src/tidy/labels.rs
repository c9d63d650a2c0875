//! Labels of rules are unique: `PAIR-P1` is one rule, defined in the first lines of one module, and whoever cites it
//! means that one.
//!
//! Which prefix belongs to which module is a table in docs/adr/0038-labels.md. R1 to R12, the product's own rules, have
//! no prefix.

use super::source::Source;
use std::collections::{BTreeMap, BTreeSet};

/// The document with the table.
const TABLE: &str = "docs/adr/0038-labels.md";

/// Words that look like labels and are none: the object store; a kind of address; a place in a picture.
const OTHERS: [&str; 3] = ["S3", "V6", "X0"];

/// Files whose text may cite labels.
const CITING: [&str; 7] = [".rs", ".md", ".toml", ".proto", ".clj", ".story", ".txt"];

/// Each label is defined once, by a module that has its prefix, and each one that is cited is defined.
pub(super) fn unique(sources: &[Source]) -> Vec<String> {
    let table = sources.iter().find(|s| s.path == TABLE).map_or("", |s| s.text.as_str());
    let prefixes = prefixes(table);
    let mut problems = Vec::new();
    let mut defined: BTreeMap<&str, String> = BTreeMap::new();
    let mut used: BTreeSet<&str> = BTreeSet::new();
    for source in sources.iter().filter(|s| is_cited_in(s)) {
        for (number, line) in source.text.lines().enumerate() {
            let at = format!("{}:{}", source.path, number + 1);
            for label in definitions(source, line) {
                let Some((prefix, _)) = label.split_once('-') else {
                    problems.push(format!("{at}: {label} has no prefix; expected one of its module, as in {TABLE}"));
                    continue;
                };
                if prefixes.get(prefix).is_none_or(|files| !files.contains(&source.path.as_str())) {
                    problems.push(format!("{at}: {label}: {TABLE} does not give {prefix} to this file"));
                }
                used.insert(prefix);
                if let Some(first) = defined.insert(label, at.clone()) {
                    problems.push(format!("{at}: {label} is defined at {first} already"));
                }
            }
        }
    }
    for source in sources.iter().filter(|s| is_cited_in(s)) {
        for (number, line) in source.text.lines().enumerate() {
            let at = format!("{}:{}", source.path, number + 1);
            for label in cited(line) {
                if !defined.contains_key(label) {
                    problems.push(format!("{at}: {label} is defined nowhere"));
                }
            }
            let bare = bare(source, line).filter(|label| !definitions(source, line).contains(label));
            problems
                .extend(bare.map(|label| format!("{at}: {label}: of which module? Expected a prefix, as in {TABLE}")));
        }
    }
    let empty = prefixes.keys().filter(|prefix| !used.contains(*prefix));
    problems.extend(empty.map(|prefix| format!("{TABLE}: no module defines a label with {prefix}")));
    problems
}

fn is_cited_in(source: &Source) -> bool {
    let read = CITING.iter().any(|end| source.path.ends_with(end));
    read && !source.path.starts_with("xtask/src/tidy/labels") && source.path != TABLE && source.path != "CHANGELOG.md"
}

/// Rows of the table: ``| `PAIR` | `crates/control/src/pair.rs` | ... |``.
fn prefixes(table: &str) -> BTreeMap<&str, Vec<&str>> {
    let mut found = BTreeMap::new();
    for row in table.lines().filter(|l| l.starts_with("| `")) {
        let mut cells = row.split('|').skip(1);
        let (names, files) = (cells.next(), cells.next());
        for name in quoted(names) {
            found.entry(name).or_insert_with(Vec::new).extend(quoted(files));
        }
    }
    found
}

/// What stands in backticks in a cell of a table.
fn quoted(cell: Option<&str>) -> Vec<&str> {
    cell.unwrap_or_default().split('`').skip(1).step_by(2).collect()
}

/// Labels that a line defines: `//! PAIR-P1  text`, `//! - PAIR-P1 text`, `//! - **PAIR-P1** text`; in an ADR
/// `**SEAT-F1**`. R1 to R12 are none of these.
fn definitions<'a>(source: &Source, line: &'a str) -> Vec<&'a str> {
    if source.path.starts_with("docs/adr/") {
        // Only where the prefix is a document's own: other bold ones are citations.
        let bold = line.split("**").skip(1).step_by(2).filter(|w| is_prefixed(w));
        return bold.filter(|w| IN_DOCUMENTS.iter().any(|p| w.starts_with(p))).collect();
    }
    let Some(text) = line.trim_start().strip_prefix("//!").filter(|_| source.path.ends_with(".rs")) else {
        return Vec::new();
    };
    let text = text.trim_start();
    let (item, text) = text.strip_prefix("- ").map_or((false, text), |rest| (true, rest));
    let (bold, text) = text.strip_prefix("**").map_or((false, text), |rest| (true, rest));
    let end = text.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).unwrap_or(text.len());
    let (label, rest) = text.split_at(end);
    let set_off = item && rest.starts_with(' ') || bold && rest.starts_with("**") || rest.starts_with("  ");
    let is_label = is_prefixed(label) || is_bare(label) && !is_rule(label) && !OTHERS.contains(&label);
    if set_off && is_label { vec![label] } else { Vec::new() }
}

/// Prefixes of labels that a document defines.
const IN_DOCUMENTS: [&str; 2] = ["SEAT-", "MIRROR-"];

/// `P1`, `S12`.
fn is_bare(word: &str) -> bool {
    let digits = word.strip_prefix(|c: char| c.is_ascii_uppercase()).unwrap_or_default();
    (1..=2).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit())
}

/// `PAIR-P1`.
fn is_prefixed(word: &str) -> bool {
    let Some((prefix, label)) = word.split_once('-') else { return false };
    prefix.len() > 1 && prefix.bytes().all(|b| b.is_ascii_uppercase()) && is_bare(label)
}

/// R1 to R12.
fn is_rule(label: &str) -> bool {
    label.strip_prefix('R').and_then(|n| n.parse().ok()).is_some_and(|n: u8| (1..=12).contains(&n))
}

/// Words of letters, digits, `-` and `_`, each with where it begins.
fn words(line: &str) -> impl Iterator<Item = (usize, &str)> {
    let other = |c: char| !(c.is_alphanumeric() || c == '-' || c == '_');
    line.split(other).filter(|w| !w.is_empty()).map(|w| (w.as_ptr() as usize - line.as_ptr() as usize, w))
}

/// Labels with a prefix in a line.
fn cited(line: &str) -> impl Iterator<Item = &str> {
    words(line).map(|(_, word)| word).filter(|word| is_prefixed(word))
}

/// Labels without one: in Rust in comments and at the begin of a string, elsewhere anywhere but in code and paths.
fn bare<'a>(source: &Source, line: &'a str) -> impl Iterator<Item = &'a str> {
    let rust = source.path.ends_with(".rs");
    let comment = line.find("//").unwrap_or(line.len());
    let free = move |at: usize, word: &str| {
        let (before, after) = (line[..at].chars().next_back(), line[at + word.len()..].chars().next());
        let in_code = rust && at < comment;
        let begins = before == Some('"') && matches!(after, Some(':' | '"' | ',' | ' '));
        let inside = before.is_some_and(|c| "/.%&$#`[{<:".contains(c)) || after.is_some_and(|c| "/%`>".contains(c));
        if in_code { begins } else { !inside }
    };
    words(line)
        .filter(move |(at, word)| is_bare(word) && !is_rule(word) && !OTHERS.contains(word) && free(*at, word))
        .map(|(_, word)| word)
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADR: &str = "| prefix | module |\n| --- | --- |\n| `PAIR` | `crates/control/src/pair.rs` |\n| `MAP` | `crates/volume/src/map.rs`, `crates/volume/src/map/page.rs` |\n";

    /// What is said of a tree in which all is well, with these files in it instead.
    fn said(files: &[(&str, &str)]) -> Vec<String> {
        let well = [
            (TABLE, ADR),
            ("crates/control/src/pair.rs", "//! The pair.\n//!\n//! PAIR-P1  A rule (R1).\n//! PAIR-P2  Another.\n"),
            ("crates/volume/src/map.rs", "//! - **MAP-M1** A rule.\n"),
            ("crates/volume/src/map/page.rs", "//! - MAP-M2 A rule.\n// S3 is asked (PAIR-P1, MAP-M1).\n"),
        ];
        let kept = well.iter().filter(|(path, _)| files.iter().all(|(other, _)| other != path));
        let all = kept.chain(files).map(|(path, text)| Source { path: (*path).into(), text: (*text).into() });
        unique(&all.collect::<Vec<_>>())
    }

    #[test]
    fn unique_labels_are_fine() {
        assert_eq!(said(&[]), Vec::<String>::new());
        let text = "//! R8 at this place: fine. PAIR-P1 to PAIR-P2 over sockets.\n// R12, MAP-M1: [V6]:PORT, 0xE1, E1_X, /M1/ and p.M1\nconst A: &[&str] = &[\"PAIR-P1: x\"];\nimpl<T1> A<T1> {}\n";
        assert_eq!(
            said(&[("crates/a/src/lib.rs", text), ("docs/a.md", "| `M1` | MAP-M2 of a Mac |")]),
            Vec::<String>::new()
        );
    }

    fn one(files: &[(&str, &str)], expected: &str) {
        let problems = said(files);
        assert!(problems.len() == 1 && problems[0].contains(expected), "{problems:?}");
    }

    #[test]
    fn a_label_is_defined_once() {
        let twice = "//! PAIR-P1  A rule.\n//! PAIR-P2  Another.\n//! - **PAIR-P1** The same again.\n";
        one(
            &[("crates/control/src/pair.rs", twice)],
            "pair.rs:3: PAIR-P1 is defined at crates/control/src/pair.rs:1 already",
        );
    }

    #[test]
    fn a_label_has_the_prefix_of_its_module() {
        let elsewhere = "does not give PAIR to this file";
        one(&[("crates/log/src/lib.rs", "//! - PAIR-P3 A rule.\n")], elsewhere);
        one(&[("crates/log/src/lib.rs", "//! - **L1** A rule.\n")], "lib.rs:1: L1 has no prefix");
        one(&[("crates/log/src/lib.rs", "//! L1  A rule.\n")], "L1 has no prefix");
        one(
            &[("crates/volume/src/map.rs", "//! - **MAP-M1** A.\n//! - LOG-L1 B.\n")],
            "does not give LOG to this file",
        );
    }

    #[test]
    fn a_cited_label_is_defined() {
        let at = |path: &'static str, text: &'static str| one(&[(path, text)], "is defined nowhere");
        at("crates/a/src/lib.rs", "// As PAIR-P9 says.\n");
        at("crates/a/src/lib.rs", "fn f() { assert!(x, \"PAIR-P9: {x}\"); }\n");
        at("docs/a.md", "The map (MAP-M3) is whole.\n");
        at("docs/a.md", "A prefix that nobody has (NONE-M3).\n");
        at("crates/a/stories/b.story", "# MAP-M3\n");
    }

    #[test]
    fn a_cited_label_has_a_prefix() {
        let at = |path: &'static str, text: &'static str| one(&[(path, text)], "of which module?");
        at("crates/a/src/lib.rs", "    /// P1: whoever asks.\n");
        at("crates/a/src/lib.rs", "//! P1 against an etcd.\n");
        at("crates/a/src/lib.rs", "fn f() { assert!(x, \"P1: {x}\"); }\n");
        at("docs/a.md", "Whoever asks (P1) is told.\n");
    }

    #[test]
    fn a_prefix_is_in_use() {
        let more = format!("{ADR}| `LOG` | `crates/log/src/lib.rs` |\n");
        one(&[(TABLE, more.as_str())], "no module defines a label with LOG");
    }

    #[test]
    fn documents_define_what_is_theirs() {
        let table = format!("{ADR}| `SEAT` | `docs/adr/0031-x.md` |\n");
        let text = "Two facts. (**SEAT-F1**) One. (**SEAT-F2**) Two, by **PAIR-P1**.\n";
        assert_eq!(
            said(&[(TABLE, table.as_str()), ("docs/adr/0031-x.md", text), ("docs/b.md", "SEAT-F2")]),
            Vec::<String>::new()
        );
    }
}
