//! Prose ends at column 120: comments of Rust and protocol files, and the text of documents.
//!
//! Not prose: diagrams, code (between fences, or indented by four in a document), tables, headings, and lines of a
//! single word (a long link). rustfmt looks after code.

use super::Source;

/// Maximum width of a line of prose, in characters.
const WIDTH_MAX: usize = 120;

/// Pages that a program writes. In others it writes what is between two marks: `<!-- NAME: written by … -->` and
/// `<!-- NAME end -->`.
const WRITTEN: [&str; 3] = ["docs/proof/jepsen-runs.md", "docs/proof/mutants.md", "docs/proof/mutations.md"];

/// The lines of prose that are too wide.
pub(super) fn narrow(sources: &[Source]) -> Vec<String> {
    sources.iter().filter(|s| !WRITTEN.contains(&s.path.as_str())).flat_map(wide).collect()
}

fn wide(source: &Source) -> Vec<String> {
    let prose: fn(&str) -> Option<&str> = match source.path.rsplit_once('.') {
        Some((_, "rs" | "proto")) => comment,
        Some((_, "md")) => document,
        _ => return Vec::new(),
    };
    let mut fenced = false;
    let mut problems = Vec::new();
    for (number, line) in source.text.lines().enumerate() {
        let Some(text) = prose(line) else {
            fenced = false;
            continue;
        };
        let of_a_program = text.starts_with("<!-- ") && text.contains(": written by ");
        if of_a_program || text.trim_start().starts_with("```") || text.ends_with(" end -->") {
            fenced = of_a_program || (!fenced && !text.ends_with(" end -->"));
        } else if !fenced && is_prose(text) && line.chars().count() > WIDTH_MAX {
            problems.push(format!(
                "{}:{}: {} characters, at most {WIDTH_MAX}",
                source.path,
                number + 1,
                line.chars().count()
            ));
        }
    }
    problems
}

/// The text of a line that is a comment and nothing else.
fn comment(line: &str) -> Option<&str> {
    let text = line.trim_start().strip_prefix("//")?;
    Some(text.trim_start_matches(['/', '!']))
}

/// The text of a document's line. Deeper parts of a list begin with four spaces, too, but code does so more often.
fn document(line: &str) -> Option<&str> {
    Some(if line.starts_with("    ") { "" } else { line })
}

fn is_prose(text: &str) -> bool {
    let text = text.trim();
    let of_a_drawing = |c: char| "─│┌┐└┘├┤┬┴┼▶◀▼▲╶╴".contains(c);
    text.contains(' ') && !text.starts_with(['|', '#', '[']) && !text.contains(of_a_drawing)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(path: &str, text: &str) -> usize {
        narrow(&[Source { path: path.into(), text: text.into() }]).len()
    }

    #[test]
    fn wide_prose_is_found() {
        let long = "a word ".repeat(18);
        assert_eq!(of("docs/a.md", &long), 1);
        assert_eq!(of("crates/a/src/lib.rs", &format!("    /// {long}\n")), 1);
        assert_eq!(of("crates/a/src/lib.rs", &format!("    call(\"{long}\");\n")), 0, "rustfmt's matter");
        assert_eq!(of("docs/proof/mutants.md", &long), 0, "a program writes it");
        assert_eq!(of("docs/a.md", &format!("<!-- a: written by b -->\n{long}\n<!-- a end -->\n{long}\n")), 1);
        assert_eq!(of("docs/a.md", &"ü".repeat(121).replacen('ü', "a ", 1)), 1, "characters, not bytes");
        assert_eq!(of("docs/a.md", &"ü ".repeat(60)), 0);
    }

    #[test]
    fn what_is_no_prose_may_be_wide() {
        let long = "a word ".repeat(18);
        for text in [format!("| {long} |"), format!("# {long}"), format!("```\n{long}\n```"), "x".repeat(200)] {
            assert_eq!(of("docs/a.md", &text), 0, "{text}");
        }
        assert_eq!(of("crates/a/src/lib.rs", &format!("//! ```text\n//! {long}\n//! ```\n")), 0);
        assert_eq!(of("crates/a/src/lib.rs", &format!("//!   g1 ─▶ g2 {long}\n")), 0);
        assert_eq!(of("crates/a/src/lib.rs", &format!("//! ```text\nfn a() {{}}\n// {long}\n")), 1, "a comment ends");
    }
}
