use super::*;

/// A crate `crates/a` of these files, by their paths below `src/`.
fn krate(files: &[(&str, &str)]) -> Vec<Source> {
    files.iter().map(|(path, text)| Source { path: format!("crates/a/src/{path}"), text: (*text).into() }).collect()
}

/// Arrows of such a crate, as `from>to` without the common parts of the paths.
fn arrows(files: &[(&str, &str)]) -> Vec<String> {
    let short = |path: &str| path.trim_start_matches("crates/a/src/").trim_end_matches(".rs").to_owned();
    let arrows = modules::arrows(&krate(files));
    let pairs = arrows.iter().flat_map(|(from, to)| to.iter().map(move |to| (from, to)));
    pairs.map(|(from, to)| format!("{}>{}", short(from), short(to))).collect()
}

/// What is said of such a crate with this list.
fn said(files: &[(&str, &str)], list: &str) -> Vec<String> {
    problems(&[("files", modules::arrows(&krate(files)))], list)
}

const CIRCLE: [(&str, &str); 4] = [
    ("lib.rs", "mod b; mod c; mod d;"),
    ("b.rs", "use crate::c::C; pub struct B;"),
    ("c.rs", "pub struct C; fn f() { crate::d::run() }"),
    ("d.rs", "use super::b::B; pub fn run() {}"),
];

const LISTED: &str = "# a comment\n\nreason: ADR 0001\ncrates/a/src/b.rs\ncrates/a/src/c.rs\ncrates/a/src/d.rs\n";

#[test]
fn a_new_circle_is_found_and_shown() {
    let said = said(&CIRCLE, "");
    assert_eq!(said.len(), 2, "{said:?}");
    let (b, c, d) = ("crates/a/src/b.rs", "crates/a/src/c.rs", "crates/a/src/d.rs");
    assert_eq!(
        said[0],
        format!("import circle of 3 files: {b}, {c}, {d}; a shortest way round: {b} -> {c} -> {d} -> {b}")
    );
    assert!(said[1].ends_with(&format!("reason: {NO_REASON}\n{b}\n{c}\n{d}\n")), "{}", said[1]);
}

#[test]
fn a_listed_circle_may_stay_as_it_is() {
    assert_eq!(said(&CIRCLE, LISTED), Vec::<String>::new());
    // One file more, or less, is another circle; the list that is printed keeps the reason.
    let less = LISTED.replace("crates/a/src/d.rs\n", "");
    let problems = said(&CIRCLE, &less);
    assert!(
        problems[0].starts_with("import circle of 3 files") && problems[1].contains("no such circle"),
        "{problems:?}"
    );
    assert!(problems[2].contains("reason: ADR 0001\ncrates/a/src/b.rs"), "{problems:?}");
}

#[test]
fn a_listed_circle_that_is_gone_is_an_error() {
    let mut cut = CIRCLE;
    cut[3].1 = "pub fn run() {}";
    let problems = said(&cut, LISTED);
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert!(problems[0].contains("no such circle any more: the block with crates/a/src/b.rs"), "{problems:?}");
}

#[test]
fn a_listed_circle_has_a_reason() {
    for reason in ["", NO_REASON] {
        let problems = said(&CIRCLE, &LISTED.replace("ADR 0001", reason));
        assert!(problems[0].contains("has no reason"), "{problems:?}");
    }
}

#[test]
fn the_shortest_way_of_a_large_circle() {
    let files = [
        ("lib.rs", ""),
        ("b.rs", "use crate::c::C;"),
        ("c.rs", "use crate::d::D;"),
        ("d.rs", "use crate::b::B; use crate::c::C;"),
    ];
    let said = said(&files, "");
    assert!(said[0].ends_with("way round: crates/a/src/c.rs -> crates/a/src/d.rs -> crates/a/src/c.rs"), "{said:?}");
}

#[test]
fn a_circle_of_folders_is_found_though_its_files_have_none() {
    let files = [
        ("lib.rs", "mod b; mod c;"),
        ("b.rs", "mod x; mod y;"),
        ("b/x.rs", "use crate::c::z::Z;"),
        ("b/y.rs", "pub struct Y;"),
        ("c.rs", "pub mod z; use crate::b::y::Y;"),
        ("c/z.rs", "pub struct Z;"),
    ];
    assert_eq!(said(&files, ""), Vec::<String>::new());
    let folders = |list: &str| problems(&[("folders", modules::by_folder(&modules::arrows(&krate(&files))))], list);
    let (b, c) = ("crates/a/src/b", "crates/a/src/c");
    let found = folders("");
    assert_eq!(found[0], format!("import circle of 2 folders: {b}, {c}; a shortest way round: {b} -> {c} -> {b}"));
    assert_eq!(folders(&format!("reason: ADR 0001\n{b}\n{c}\n")), Vec::<String>::new());
}

#[test]
fn paths_lead_to_files() {
    let of = |text: &str| arrows(&[("lib.rs", "mod b; mod c;"), ("b.rs", text), ("b/x.rs", ""), ("c.rs", "")]);
    assert_eq!(of("use crate::c::C;"), ["b>c"]);
    assert_eq!(of("use super::c::{self, C as D};"), ["b>c"]);
    assert_eq!(of("use crate::{b::B, c};"), ["b>c"]);
    assert_eq!(of("fn f() -> crate::c::C { loop {} }"), ["b>c"]);
    assert_eq!(of("mod x; fn f() { x::g() }"), ["b>b/x"]);
    assert_eq!(of("mod x; use x::Y;"), ["b>b/x"]);
    assert_eq!(of("mod inner { use super::super::c::C; }"), ["b>c"]);
    assert_eq!(of("mod inner { use super::B; }"), Vec::<String>::new());
    assert_eq!(of("macro_rules! m { () => { $crate::c::C } }"), ["b>c"]);
    assert_eq!(of("use std::c::C; use c::C; fn f() { other::c::g() }"), Vec::<String>::new());
    assert_eq!(of("use crate::{c::{C, D}, b};"), ["b>c"]);
}

#[test]
fn words_in_comments_and_strings_are_no_paths() {
    let of = |text: &str| arrows(&[("lib.rs", "mod b; mod c;"), ("b.rs", text), ("c.rs", "")]);
    assert!(of("// crate::c::C\n/* crate::c /* */ crate::c */ //! [`crate::c`]\n").is_empty());
    assert!(
        of(r##"const A: &str = "crate::c::\"C"; const B: &str = r#"" crate::c"#; const C: &[u8] = br"\";"##).is_empty()
    );
    // What follows a quote, a lifetime or a raw name is read again.
    assert_eq!(of(r#"const A: char = '"'; use crate::c::C;"#), ["b>c"]);
    assert_eq!(of(r"const A: char = '\''; fn f<'a>(r#in: &'a str) { crate::c::g() }"), ["b>c"]);
}

#[test]
fn tests_are_left_out() {
    let of = |text: &str| {
        arrows(&[("lib.rs", "mod b; mod c;"), ("b.rs", text), ("b/tests.rs", "use crate::c::C;"), ("c.rs", "")])
    };
    assert!(of("#[cfg(test)]\nmod tests;").is_empty());
    assert!(of("#[cfg(test)]\n#[path = \"x.rs\"]\nmod tests { use crate::c::C; }").is_empty());
    assert!(of("#[cfg(test)] use crate::c::{C, D};").is_empty());
    assert!(of("#[cfg(test)] fn f<A, B>(a: [A; 2]) { crate::c::g() }").is_empty());
    assert!(of("struct B { #[cfg(test)] x: crate::c::C }").is_empty());
    assert_eq!(of("struct B { #[cfg(test)] x: u8, y: crate::c::C }"), ["b>c"]);
    assert_eq!(of("#[cfg(test)] fn f() {} fn g() { crate::c::g() }"), ["b>c"]);
    let helper =
        [("lib.rs", "mod b; #[cfg(test)] pub(crate) mod help;"), ("b.rs", ""), ("help.rs", "use crate::b::B;")];
    assert!(arrows(&helper).is_empty());
}

#[test]
fn a_parent_that_names_again_needs_nothing() {
    let of = |parent: &str, child: &str| {
        arrows(&[("lib.rs", "mod b;"), ("b.rs", parent), ("b/x.rs", child), ("b/y.rs", "pub struct Y;")])
    };
    assert!(of("mod x; pub use x::X;", "pub struct X;").is_empty());
    assert!(of("mod x; pub(crate) use self::x::{X, Z as W};", "pub struct X;").is_empty());
    assert_eq!(of("mod x; use x::X;", "pub struct X;"), ["b>b/x"]);
    // Whoever takes a name from the parent needs the file that has it.
    assert_eq!(of("mod x; mod y; pub use y::Y;", "use super::Y;"), ["b/x>b/y"]);
    assert_eq!(of("mod x; mod y; pub use y::*;", "use super::Y;"), ["b/x>b/y"]);
    assert_eq!(of("mod x; mod y; pub use y::*; pub struct B;", "use super::B;"), ["b/x>b"]);
    assert_eq!(of("mod x; mod y; pub use y::Y;", "use super::*;"), ["b/x>b"]);
    assert_eq!(of("mod x; mod y; use other::{Z, y as W};", "use super::{W, Z};"), Vec::<String>::new());
}

#[test]
fn programs_and_crates_are_apart() {
    assert!(
        arrows(&[
            ("lib.rs", ""),
            ("main.rs", "mod b; use b::B;"),
            ("b.rs", "use crate::C;"),
            ("bin/x.rs", "use crate::b;")
        ])
        .iter()
        .all(|arrow| arrow == "b>lib")
    );
    assert_eq!(arrows(&[("main.rs", "mod b; use b::B;"), ("b.rs", "use crate::C; ")]), ["b>main", "main>b"]);
}

#[test]
fn a_lifetime_defines_nothing() {
    let files = [
        ("lib.rs", "mod b; mod c; mod d;"),
        ("b.rs", "use crate::c::C; fn f(c: &'static C) {}"),
        ("c.rs", "pub struct C;"),
        ("d.rs", "use crate::b::C;"),
    ];
    assert_eq!(arrows(&files), ["b>c", "d>c"]);
}
