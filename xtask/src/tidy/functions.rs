//! The length of functions: one that is longer than a screen is read in parts, so it is written in parts.

use super::Source;
use super::text::is_test;

/// Most lines of a function outside of tests, from its `fn` to its closing brace.
const LINES_MAX: usize = 60;

/// A function as it stands in a file that rustfmt has formatted.
#[derive(Debug, PartialEq, Eq)]
struct Function<'a> {
    name: &'a str,
    /// Where it begins, counted from 1.
    line: usize,
    lines: usize,
}

pub(super) fn lengths(sources: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    let product =
        |s: &&Source| s.path.ends_with(".rs") && !is_test(&s.path) && !is_declared_for_tests(&s.path, sources);
    for source in sources.iter().filter(product) {
        for Function { name, line, lines } in functions(&source.text).into_iter().filter(|f| f.lines > LINES_MAX) {
            problems.push(format!("{}:{line}: fn {name}: {lines} lines, at most {LINES_MAX}", source.path));
        }
    }
    problems
}

/// Whether its parent says `#[cfg(test)] mod NAME;`, or a file beside it the same with `#[path = "FILE"]`.
fn is_declared_for_tests(path: &str, sources: &[Source]) -> bool {
    let Some((folder, file)) = path.rsplit_once('/') else { return false };
    let parents =
        [format!("{folder}.rs"), format!("{folder}/mod.rs"), format!("{folder}/lib.rs"), format!("{folder}/main.rs")];
    let by_name = format!("#[cfg(test)]\nmod {};", file.strip_suffix(".rs").unwrap_or(file));
    let by_path = format!("#[cfg(test)]\n#[path = \"{file}\"]\n");
    sources.iter().any(|s| {
        let beside = s.path.rsplit_once('/').is_some_and(|(other, _)| other == folder);
        parents.contains(&s.path) && s.text.contains(&by_name) || beside && s.text.contains(&by_path)
    })
}

/// Functions with a body of several lines, without those of test modules.
fn functions(text: &str) -> Vec<Function<'_>> {
    let lines: Vec<&str> = text.lines().collect();
    let (mut found, mut at) = (Vec::new(), 0);
    while at < lines.len() {
        if let Some(end) = end_of_test_module(&lines, at) {
            at = end;
        } else if let Some((name, end)) = name(lines[at]).zip(end_of_body(&lines, at)) {
            found.push(Function { name, line: at + 1, lines: end - at + 1 });
        }
        at += 1;
    }
    found
}

/// The line that closes what `at` opens: the next one with nothing but a brace at the same depth.
fn closing(lines: &[&str], at: usize) -> Option<usize> {
    let depth = lines[at].len() - lines[at].trim_start().len();
    (at + 1..lines.len()).find(|n| lines[*n].trim() == "}" && lines[*n].len() == depth + 1)
}

/// The last line of the test module whose `#[cfg(test)]` stands at `at`.
fn end_of_test_module(lines: &[&str], at: usize) -> Option<usize> {
    if lines[at].trim() != "#[cfg(test)]" {
        return None;
    }
    let next = (at + 1..lines.len()).find(|n| !lines[*n].trim_start().starts_with("#["))?;
    let module = lines[next].trim_start();
    let begins = (module.starts_with("mod ") || module.starts_with("pub mod ")) && module.ends_with('{');
    if begins { closing(lines, next) } else { None }
}

/// The name of the function that begins in this line.
fn name(line: &str) -> Option<&str> {
    let mut rest = line.trim_start();
    loop {
        if let Some(after) = rest.strip_prefix("fn ") {
            let end = after.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(after.len());
            return Some(&after[..end]).filter(|name| !name.is_empty());
        }
        let (word, after) = rest.split_once(' ')?;
        let before_fn = ["pub", "const", "async", "unsafe", "default", "extern", "\"C\""].contains(&word);
        if !before_fn && !word.starts_with("pub(") {
            return None;
        }
        rest = after;
    }
}

/// The last line of the body of the function that begins at `at`. `None` for one without a body, or in one line.
fn end_of_body(lines: &[&str], at: usize) -> Option<usize> {
    let ends = |n: &usize| lines[*n].ends_with(['{', '}', ';']);
    let opened = (at..lines.len()).find(ends).filter(|n| lines[*n].ends_with('{'))?;
    let closed = closing(lines, at)?;
    (closed > opened).then_some(closed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(text: &str) -> Vec<(&str, usize, usize)> {
        functions(text).into_iter().map(|f| (f.name, f.line, f.lines)).collect()
    }

    fn of(path: &str, text: &str) -> Vec<String> {
        lengths(&[Source { path: path.into(), text: text.into() }])
    }

    fn long(lines: usize) -> String {
        format!("fn long() {{\n{}}}\n", "    x();\n".repeat(lines - 2))
    }

    #[test]
    fn functions_are_found_with_their_lines() {
        let text = "\
trait A {
    fn declared(&self);
    fn over_lines(
        &self,
    ) -> u8;
    fn given(&self) -> u8 {
        if true {
            1
        }
    }
}

pub(crate) async fn of_generics<T>(
    t: T,
) -> T
where
    T: Copy,
{
    t
}

const fn short() -> u8 { 1 }
// fn in_a_comment() {
";
        assert_eq!(found(text), [("given", 6, 5), ("of_generics", 13, 8)]);
    }

    #[test]
    fn functions_of_tests_do_not_count() {
        let inside =
            format!("fn a() {{\n    x();\n}}\n\n#[cfg(test)]\nmod tests {{\n    fn b() {{\n    }}\n}}\n{}", long(3));
        assert_eq!(found(&inside), [("a", 1, 3), ("long", 10, 3)]);
        let declared = format!("#[cfg(test)]\nmod model;\n\n{}", long(3));
        assert_eq!(found(&declared), [("long", 4, 3)], "what follows a declaration is no test");
    }

    #[test]
    fn a_function_that_is_too_long_is_reported() {
        assert_eq!(of("crates/a/src/lib.rs", &long(61)), ["crates/a/src/lib.rs:1: fn long: 61 lines, at most 60"]);
        assert!(of("crates/a/src/lib.rs", &long(60)).is_empty());
        assert!(of("crates/a/src/tests.rs", &long(61)).is_empty());
        assert!(of("scenarios/src/power.rs", &long(61)).is_empty());
    }

    #[test]
    fn a_file_that_is_declared_for_tests_is_one() {
        let said = |parent: &str, declaration: &str| {
            let source = |path: &str, text: &str| Source { path: path.into(), text: text.into() };
            lengths(&[source(parent, declaration), source("crates/a/src/b/model.rs", &long(61))]).len()
        };
        assert_eq!(said("crates/a/src/b.rs", "#[cfg(test)]\nmod model;\n"), 0);
        assert_eq!(said("crates/a/src/b.rs", "mod model;\n"), 1);
        assert_eq!(said("crates/a/src/c.rs", "#[cfg(test)]\nmod model;\n"), 1);
        let by_path = "#[cfg(test)]\n#[path = \"model.rs\"]\nmod tests;\n";
        assert_eq!(said("crates/a/src/b/rules.rs", by_path), 0);
        assert_eq!(said("crates/a/src/rules.rs", by_path), 1);
    }
}
