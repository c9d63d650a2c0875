//! A mutant as an edit of its file, for a build that has many: the tool's list has the place in lines and columns, and
//! the text that it would write there.
//!
//! Each kind of mutant is one replacement: an operator by another one, a body (from its first statement to the end of
//! its last one) by a value, a guard by `true` or `false`. A match arm, a field or a `-` goes for an empty text.

use super::tool::{Place, Span};
use std::ops::Range;

/// The bytes of a span of the tool; `None` if the text has no such lines and columns.
pub(super) fn part(text: &str, span: Span) -> Option<Range<usize>> {
    let (start, end) = (byte(text, span.start)?, byte(text, span.end)?);
    (start <= end).then_some(start..end)
}

/// The first byte of a character, or of the end of its line.
fn byte(text: &str, place: Place) -> Option<usize> {
    let (line, column) = (place.line.checked_sub(1)?, place.column.checked_sub(1)?);
    let begin = match line {
        0 => 0,
        _ => text.match_indices('\n').nth(line - 1)?.0 + 1,
    };
    let line = text[begin..].split('\n').next()?;
    let end = std::iter::once(line.len());
    Some(begin + line.char_indices().map(|(at, _)| at).chain(end).nth(column)?)
}

/// The text that the tool would write, apart from its comment. The space keeps words apart: of `return!a`, `return a`
/// stays.
pub(super) fn new(replacement: &str) -> String {
    format!("{replacement} ")
}

#[cfg(test)]
mod tests {
    use super::super::results::{Mutant, Texts, keyed};
    use super::super::tool::Listed;
    use super::*;
    use crate::binary::root;
    use crate::schemata::{Numbered, plan};
    use std::collections::BTreeMap;

    const FILE: &str = "crates/seal/src/a.rs";

    /// Two bytes for each `ä`, three for `→`, four for `𝄞`.
    const TEXT: &str = "\
//! Wörter.
const LIMIT: i64 = 7 * 2;
fn words(ä: i64) -> bool {
    // Über → 𝄞.
    let s = \"𝄞ä\"; s.len() as i64 + ä < LIMIT
}
fn body() -> String {
    // Stays.
    let s = \"ä\".repeat(3);
    s
}
fn arms(a: u8) -> u8 {
    match a {
        1 if a > 0 => 11,
        /* ä */ 2 => 22,
        _ => 33,
    }
}
fn not(a: bool) -> bool {
    return!a;
}
";

    /// One entry of `cargo mutants --list --json`, as version 27.1.0 writes it, without what is not read.
    fn entry(change: &str, span: [usize; 4], function: Option<[usize; 2]>, replacement: &str) -> String {
        let place = |line: usize, column: usize| format!(r#"{{"column":{column},"line":{line}}}"#);
        let span_of = |[a, b, c, d]: [usize; 4]| format!(r#"{{"end":{},"start":{}}}"#, place(c, d), place(a, b));
        let function = function.map_or("null".to_owned(), |[from, to]| {
            let span = span_of([from, 1, to, 2]);
            format!(r#"{{"function_name":"f","return_type":"","span":{span}}}"#)
        });
        let [line, column, ..] = span;
        format!(
            r#"{{"diff":"x","file":"{FILE}","function":{function},"genre":"FnValue","name":"{FILE}:{line}:{column}: {change}","package":"holdfast-seal","replacement":"{replacement}","span":{}}}"#,
            span_of(span)
        )
    }

    fn mutants(entries: &[String]) -> Vec<Mutant> {
        let listed: Vec<Listed> = serde_json::from_str(&format!("[{}]", entries.join(","))).unwrap();
        keyed(listed, &Texts::from_iter([(FILE.to_owned(), TEXT.to_owned())])).unwrap()
    }

    /// The file with one mutant.
    fn with(entry: String) -> String {
        let one = mutants(&[entry]).remove(0);
        let mut text = TEXT.to_owned();
        text.replace_range(one.part, &one.new);
        text
    }

    #[test]
    fn columns_count_characters_and_not_bytes() {
        let less = with(entry("replace < with == in words", [5, 38, 5, 39], Some([3, 6]), "=="));
        assert_eq!(less, TEXT.replace("ä < LIMIT", "ä ==  LIMIT"));
        let plus = with(entry("replace + with - in words", [5, 34, 5, 35], Some([3, 6]), "-"));
        assert_eq!(plus, TEXT.replace("i64 + ä", "i64 -  ä"));
    }

    #[test]
    fn a_body_goes_from_its_first_statement_to_the_end_of_its_last_one() {
        let text =
            with(entry("replace body -> String with String::new()", [9, 5, 10, 6], Some([7, 11]), "String::new()"));
        assert_eq!(text, TEXT.replace("let s = \"ä\".repeat(3);\n    s\n", "String::new() \n"));
        let quoted = with(entry("replace body -> String with x", [9, 5, 10, 6], Some([7, 11]), r#"\"xyzzy\".into()"#));
        assert!(quoted.contains("// Stays.\n    \"xyzzy\".into() \n}"), "{quoted}");
    }

    #[test]
    fn an_arm_and_an_operator_that_are_deleted_leave_a_space() {
        let arm = with(entry("delete match arm 2 in arms", [15, 17, 15, 25], Some([12, 18]), ""));
        assert_eq!(arm, TEXT.replace("2 => 22,", " "));
        let not = with(entry("delete ! in not", [20, 11, 20, 12], Some([19, 21]), ""));
        assert_eq!(not, TEXT.replace("return!a", "return a"));
        let guard =
            with(entry("replace match guard a > 0 with false in arms", [14, 14, 14, 19], Some([12, 18]), "false"));
        assert_eq!(guard, TEXT.replace("if a > 0 =>", "if false  =>"));
    }

    #[test]
    fn a_place_that_is_not_in_the_text_has_no_bytes() {
        let of = |a, b, c, d| {
            part("ab\nä\n", Span { start: Place { line: a, column: b }, end: Place { line: c, column: d } })
        };
        assert_eq!(of(1, 1, 1, 3), Some(0..2));
        assert_eq!(of(1, 3, 2, 2), Some(2..5), "to the end of a line");
        assert_eq!(of(3, 1, 3, 1), Some(6..6), "the end of the text");
        for (a, b, c, d) in [(1, 4, 2, 1), (4, 1, 4, 1), (0, 1, 1, 1), (1, 0, 1, 1), (2, 1, 1, 1), (1, 1, 2, 3)] {
            assert_eq!(of(a, b, c, d), None, "{a}:{b} to {c}:{d}");
        }
    }

    /// Places of all names of a file.
    struct Names(Vec<proc_macro2::Span>);

    impl<'a> syn::visit::Visit<'a> for Names {
        fn visit_ident(&mut self, name: &'a syn::Ident) {
            self.0.push(name.span());
        }
    }

    /// The tool has its lines and columns from the same parser.
    #[test]
    fn each_name_of_real_sources_is_at_its_bytes() {
        let (mut found, mut all) = (0, vec![root().join("crates/journal/src"), root().join("crates/seal/src")]);
        while let Some(path) = all.pop() {
            if path.is_dir() {
                all.extend(std::fs::read_dir(&path).unwrap().map(|entry| entry.unwrap().path()));
                continue;
            }
            let text = std::fs::read_to_string(&path).unwrap();
            let mut names = Names(Vec::new());
            syn::visit::Visit::visit_file(&mut names, &syn::parse_file(&text).unwrap());
            for span in names.0 {
                let place = |at: proc_macro2::LineColumn| Place { line: at.line, column: at.column + 1 };
                let listed = Span { start: place(span.start()), end: place(span.end()) };
                assert_eq!(part(&text, listed), Some(span.byte_range()), "{}: {listed:?}", path.display());
                found += 1;
            }
        }
        assert!(found > 5_000, "{found} names");
    }

    /// The way from the tool's list to the text of the one build.
    #[test]
    fn mutants_of_the_list_are_bodies_beside_the_original_and_those_of_constants_are_not() {
        let mutants = mutants(&[
            entry("replace * with +", [2, 22, 2, 23], None, "+"),
            entry("replace < with == in words", [5, 38, 5, 39], Some([3, 6]), "=="),
            entry("replace words -> bool with true", [5, 5, 5, 45], Some([3, 6]), "true"),
            entry("delete match arm 2 in arms", [15, 17, 15, 25], Some([12, 18]), ""),
        ]);
        let numbered: Vec<Numbered<'_>> = mutants.iter().map(|one| Numbered { number: one.number, bug: one }).collect();
        let plan = plan(&numbered, &BTreeMap::new(), |_| Ok(TEXT.to_owned())).unwrap();
        assert_eq!(plan.fits.iter().copied().collect::<Vec<_>>(), [2, 3, 4]);
        assert!(plan.refused[&1].ends_with("an edit outside of a function's body"), "{:?}", plan.refused);
        let text = plan.texts()[FILE].split_whitespace().collect::<Vec<_>>().join(" ");
        let words = "if crate::holdfast_known_bug::is(2) { // Über → 𝄞. let s = \"𝄞ä\"; s.len() as i64 + ä == LIMIT } \
            else if crate::holdfast_known_bug::is(3) { // Über → 𝄞. true } else { // Über → 𝄞. let s = \"𝄞ä\"; \
            s.len() as i64 + ä < LIMIT }}";
        assert!(text.contains(words), "{text}");
        assert!(text.contains("is(4) { match a { 1 if a > 0 => 11, /* ä */ _ => 33, } } else"), "{text}");
    }
}
