use super::*;
use crate::bug::Edit;

const FILE: &str = "crates/a/src/lib.rs";
const OTHER: &str = "crates/a/src/other.rs";

const TEXT: &str = "//! A } brace.\n\
    const LIMIT: u32 = 7;\n\
    /// Says { so.\n\
    fn two(a: u32) -> u32 {\n    let s = \"}\"; // }\n    if a < LIMIT { a + 1 } else { s.len() as u32 }\n}\n\
    const fn fixed() -> u32 { 11 }\n\
    impl A for B {\n    async fn method(&self) -> u32 { self.first().await + 21 }\n}\n\
    trait T { fn given(&self) -> u32 { 31 } }\n\
    fn outer() -> u32 { fn inner() -> u32 { 41 } inner() + 51 }\n\
    fn empty() {}\n";

const OTHER_TEXT: &str = "pub(crate) fn other() -> u32 { 61 }\n";

fn read(file: &str) -> Result<String> {
    match file {
        FILE => Ok(TEXT.into()),
        OTHER => Ok(OTHER_TEXT.into()),
        _ => anyhow::bail!("no file {file}"),
    }
}

fn bug(edits: &'static [Edit]) -> Mutation {
    Mutation { name: "a-bug", bug: "", rule: "", edits, tests: &[], smoke: false }
}

fn planned(bugs: &[Mutation]) -> Plan {
    let bugs: Vec<Numbered<'_>> = bugs.iter().zip(1..).map(|(bug, number)| Numbered { number, bug }).collect();
    let plan = plan(&bugs, &BTreeMap::new(), read).unwrap();
    for (file, rewritten) in &plan.files {
        functions(&rewritten.text).unwrap_or_else(|e| panic!("{file}: {e}: {}", rewritten.text));
    }
    plan
}

/// What the bodies and the choice between them are, without the white space of the tool's own.
fn squeezed(plan: &Plan, file: &str) -> String {
    plan.files[file].text.split_whitespace().collect::<Vec<_>>().join(" ")
}

macro_rules! edit {
    ($old:literal => $new:literal) => {
        edit!(FILE, $old => $new)
    };
    ($file:expr, $old:literal => $new:literal) => {
        Edit { file: $file, old: $old, new: $new }
    };
}

#[test]
fn two_bugs_of_one_function_have_a_body_each_beside_the_original() {
    let plan = planned(&[bug(&[edit!("a < LIMIT" => "a <= LIMIT")]), bug(&[edit!("a + 1" => "a + 2")])]);
    assert_eq!(plan.fits, BTreeSet::from([1, 2]));
    let expected = "fn two(a: u32) -> u32 { if crate::holdfast_known_bug::is(1) { \
        let s = \"}\"; // } if a <= LIMIT { a + 1 } else { s.len() as u32 } } else if crate::holdfast_known_bug::is(2) { \
        let s = \"}\"; // } if a < LIMIT { a + 2 } else { s.len() as u32 } } else { \
        let s = \"}\"; // } if a < LIMIT { a + 1 } else { s.len() as u32 } }} const fn fixed";
    assert!(squeezed(&plan, FILE).contains(expected), "found {}", squeezed(&plan, FILE));
}

#[test]
fn methods_async_ones_and_those_of_traits_can_choose() {
    let plan = planned(&[bug(&[edit!("+ 21" => "+ 22")]), bug(&[edit!("{ 31 }" => "{ 32 }")])]);
    assert_eq!(plan.fits.len(), 2);
    let text = squeezed(&plan, FILE);
    assert!(text.contains("is(1) { self.first().await + 22 } else { self.first().await + 21 }}"), "found {text}");
    assert!(
        text.contains("fn given(&self) -> u32 { if crate::holdfast_known_bug::is(2) { 32 } else { 31 }}"),
        "{text}"
    );
}

#[test]
fn of_nested_functions_the_outer_one_chooses_only_if_it_must() {
    let alone = planned(&[bug(&[edit!("41" => "42")])]);
    let text = squeezed(&alone, FILE);
    assert!(text.contains("fn outer() -> u32 { fn inner() -> u32 { if crate::"), "found {text}");
    let both = planned(&[bug(&[edit!("41" => "42")]), bug(&[edit!("51" => "52")])]);
    let text = squeezed(&both, FILE);
    let expected = "fn outer() -> u32 { if crate::holdfast_known_bug::is(1) { fn inner() -> u32 { 42 } inner() + 51 } \
        else if crate::holdfast_known_bug::is(2) { fn inner() -> u32 { 41 } inner() + 52 } \
        else { fn inner() -> u32 { 41 } inner() + 51 }}";
    assert!(text.contains(expected), "found {text}");
    let one = planned(&[bug(&[edit!("41" => "42"), edit!("51" => "52")])]);
    let text = squeezed(&one, FILE);
    assert!(text.contains("is(1) { fn inner() -> u32 { 42 } inner() + 52 } else {"), "found {text}");
}

#[test]
fn a_bug_in_two_functions_and_two_files_has_one_number() {
    let plan = planned(&[bug(&[edit!("31" => "32"), edit!("a + 1" => "a"), edit!(OTHER, "61" => "62")])]);
    assert_eq!(squeezed(&plan, FILE).matches("::is(1)").count(), 2);
    assert!(squeezed(&plan, OTHER).contains("is(1) { 62 } else { 61 }}"));
}

#[test]
fn what_does_not_fit_is_refused_as_a_whole_with_the_reason() {
    let plan = planned(&[
        bug(&[edit!("{ 11 }" => "{ 12 }")]),
        bug(&[edit!("LIMIT: u32 = 7" => "LIMIT: u32 = 8")]),
        bug(&[edit!(OTHER, "61" => "62"), edit!("LIMIT: u32 = 7" => "LIMIT: u32 = 8")]),
        bug(&[edit!("deploy/unit.service", "a" => "b")]),
        bug(&[edit!("crates/a/build.rs", "a" => "b")]),
        bug(&[edit!("a + 1 }" => "a + 1")]),
        bug(&[edit!("fn empty() {}" => "fn empty() -> u32 { 1 }")]),
    ]);
    assert!(plan.fits.is_empty());
    let why: Vec<&str> = plan.refused.values().map(String::as_str).collect();
    assert!(why[0].ends_with("a const fn cannot ask which bug is chosen"), "found {why:?}");
    assert!(why[1].ends_with("an edit outside of a function's body"), "found {why:?}");
    assert_eq!(why[1], why[2]);
    assert_eq!(why[3], "deploy/unit.service is no Rust");
    assert_eq!(why[4], "crates/a/build.rs is not in the src of a crate");
    assert_eq!(why[5], "the function's body is no Rust with the bug");
    assert_eq!(why[6], why[1]);
    assert!(plan.files.values().all(|file| !file.text.contains("holdfast_known_bug")), "it is nowhere");
}

#[test]
fn only_what_differs_must_be_in_a_body() {
    let plan = planned(&[bug(&[edit!("fn given(&self) -> u32 { 31 }" => "fn given(&self) -> u32 { 32 }")])]);
    assert!(squeezed(&plan, FILE).contains("is(1) { 32 } else { 31 }}"));
    let into_nothing = planned(&[bug(&[edit!("fn empty() {}" => "fn empty() { panic!() }")])]);
    assert!(
        squeezed(&into_nothing, FILE).contains("fn empty() { if crate::holdfast_known_bug::is(1) { panic!() } else")
    );
}

#[test]
fn a_line_is_known_by_its_bug() {
    let plan = planned(&[bug(&[edit!("a < LIMIT" => "a <= LIMIT")]), bug(&[edit!("a + 1" => "a + 2")])]);
    let file = &plan.files[FILE];
    let line = |part: &str| file.text.lines().position(|line| line.contains(part)).unwrap() + 1;
    assert_eq!(file.body_at(line("a <= LIMIT")), Some(1));
    assert_eq!(file.body_at(line("a + 2")), Some(2));
    let original = line("if a < LIMIT { a + 1 }");
    assert!(original > line("a + 2"));
    assert_eq!(file.body_at(original), None);
    assert_eq!(file.function_at(original), [1, 2]);
    assert_eq!(file.body_at(line("const LIMIT")), None);
    assert!(file.function_at(line("const LIMIT")).is_empty());
    assert!(file.function_at(line("fn outer")).is_empty());
}

#[test]
fn a_bug_that_was_thrown_out_stays_out() {
    let bugs = [bug(&[edit!("a < LIMIT" => "a <= LIMIT")]), bug(&[edit!("a + 1" => "a + 2")])];
    let numbered = [Numbered { number: 1, bug: &bugs[0] }, Numbered { number: 2, bug: &bugs[1] }];
    let without = BTreeMap::from([(1, "does not compile".to_owned())]);
    let plan = plan(&numbered, &without, read).unwrap();
    assert_eq!(plan.fits, BTreeSet::from([2]));
    assert_eq!(plan.refused, without);
    assert!(!plan.files[FILE].text.contains("is(1)"));
}
