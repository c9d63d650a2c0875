//! Checks of the text of source files.

use super::Source;
use super::arrows::PURE;

/// Maximum number of lines in a source file.
const LINES_MAX: usize = 600;

/// Folders with settings of tests or examples, and the part of them whose guests are separate machines.
const UNARMED: [&str; 7] = ["xtask/", "scenarios/", "mutations/", "crates/sim/", "deploy/", "jepsen/", "bench/"];
const ARMED: &str = "scenarios/src/zfs/watchdog.rs";

/// Folders whose agents run on the test machine, except those that run in guests, which are separate machines.
const UNREBOOTED: [&str; 6] = ["xtask/", "scenarios/", "mutations/", "crates/sim/", "jepsen/", "bench/"];
const REBOOTED: &str = "scenarios/src/zfs/";

fn is_rust(source: &Source) -> bool {
    source.path.ends_with(".rs")
}

pub(super) fn is_test(path: &str) -> bool {
    path.contains("/tests/")
        || path.contains("/examples/")
        || path.ends_with("tests.rs")
        || path.contains("testkit/")
        || is_program_of_tests(path)
}

/// Whether it belongs to a program that builds, tests or measures the product.
fn is_program_of_tests(path: &str) -> bool {
    ["xtask/", "chore/", "scenarios/", "dist/", "bench/", "mutations/", "fuzz/"]
        .iter()
        .any(|folder| path.starts_with(folder))
}

/// A line of Rust without what follows `//`. (A `//` in a string cuts too much; no check here needs better.)
fn code(line: &str) -> &str {
    line.split("//").next().unwrap_or_default()
}

pub(super) fn lengths(sources: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for source in sources.iter().filter(|s| is_rust(s) || s.path.ends_with(".proto") || s.path.ends_with(".sh")) {
        let lines = source.text.lines().count();
        if lines > LINES_MAX {
            problems.push(format!("{}: {lines} lines, at most {LINES_MAX}", source.path));
        }
    }
    problems
}

pub(super) fn leftovers(sources: &[Source]) -> Vec<String> {
    // Built from halves, so that this check does not find this list.
    let words: Vec<String> =
        [("to", "do!("), ("unimpl", "emented!("), ("db", "g!("), ("FIX", "ME"), ("XX", "X:"), ("<<<<", "<<< ")]
            .iter()
            .map(|(a, b)| format!("{a}{b}"))
            .collect();
    let homes = ["/ho", "/ro"].map(|half| format!("{half}{}", if half == "/ho" { "me/" } else { "ot/" }));
    let mut problems = Vec::new();
    for source in sources.iter().filter(|s| !s.path.ends_with(".lock")) {
        for (number, line) in source.text.lines().enumerate() {
            let at = || format!("{}:{}", source.path, number + 1);
            if let Some(word) = words.iter().find(|w| line.contains(w.as_str())) {
                problems.push(format!("{}: {word}", at()));
            }
            if let Some(home) = homes.iter().find(|h| begins_with_it(line, h)) {
                problems.push(format!("{}: {home} (a path of one machine)", at()));
            }
            if is_rust(source) && line.trim_start().starts_with("#[ignore]") {
                problems.push(format!("{}: an ignored test says why: #[ignore = \"...\"]", at()));
            }
        }
        if is_rust(source) {
            problems.extend(unwraps(source));
        }
    }
    problems
}

/// Whether a path in `line` begins with `home`. A match inside a longer path or key does not count.
fn begins_with_it(line: &str, home: &str) -> bool {
    line.match_indices(home)
        .any(|(at, _)| !line[..at].ends_with(|c: char| c.is_alphanumeric() || "}>._*/-".contains(c)))
}

/// Finds `.unwrap()` outside of tests: an error needs a type, and an invariant names its rule in `expect`.
fn unwraps(source: &Source) -> Vec<String> {
    if is_test(&source.path) {
        return Vec::new();
    }
    let body = source.text.split("#[cfg(test)]\nmod ").next().unwrap_or_default();
    let at = |n: usize| format!("{}:{}: .unwrap() outside of tests", source.path, n + 1);
    body.lines().enumerate().filter(|(_, line)| code(line).contains(".unwrap()")).map(|(n, _)| at(n)).collect()
}

pub(super) fn borders(sources: &[Source]) -> Vec<String> {
    let borders = [("openraft::", "crates/raft/"), ("aws_sdk_", "crates/store/"), ("aws_smithy", "crates/store/")];
    let mut problems = Vec::new();
    for source in sources.iter().filter(|s| is_rust(s) && !is_program_of_tests(&s.path)) {
        for (number, line) in source.text.lines().enumerate() {
            for (word, home) in borders {
                if code(line).contains(word) && !source.path.starts_with(home) {
                    problems.push(format!("{}:{}: {word} belongs in {home}", source.path, number + 1));
                }
            }
        }
    }
    problems
}

/// Settings of tests and examples must not use the machine's watchdog: test hosts are namespaces with the machine's own
/// `/dev`.
pub(super) fn unarmed(sources: &[Source]) -> Vec<String> {
    let theirs = |s: &&Source| {
        let place = UNARMED.iter().any(|place| s.path.starts_with(place));
        place && s.path != ARMED && !s.path.starts_with("xtask/src/tidy/")
    };
    let armed = sources.iter().filter(theirs).filter(|s| arms(&s.text));
    armed.map(|s| format!("{}: watchdog.mode: expected \"off\" or none, tests reset no machine", s.path)).collect()
}

/// Whether settings in the text, as TOML or in a Rust string, arm the machine's watchdog.
fn arms(text: &str) -> bool {
    let plain = text.replace('\\', "");
    let mode = |mode: &str| format!("mode = \"{mode}\"");
    // "automatic" is also a value of the agent's own mode, which is in no section.
    let mut sections = plain.split("[watchdog]").skip(1).map(|rest| rest.split('[').next().unwrap_or_default());
    plain.contains(&mode("required")) || sections.any(|section| section.contains(&mode("automatic")))
}

/// Settings of tests must not let an agent reboot, because it would reboot the test machine. On a ZFS pool that is the
/// default.
pub(super) fn unrebooted(sources: &[Source]) -> Vec<String> {
    let theirs = |s: &&Source| {
        let place = UNREBOOTED.iter().any(|place| s.path.starts_with(place));
        place && !s.path.starts_with(REBOOTED) && !s.path.starts_with("xtask/src/tidy/")
    };
    let mut problems = Vec::new();
    for source in sources.iter().filter(theirs) {
        let plain = source.text.replace('\\', "");
        for words in ["fence_action = \"reboot\"", "kind = \"zfs\""] {
            if plain.contains(words) {
                problems.push(format!("{}: {words}: expected neither, tests reboot no machine", source.path));
            }
        }
    }
    problems
}

/// Finds code in comments that rustdoc would treat as a test. `cargo xtask test` does not run doc tests: write a test
/// beside the code.
pub(super) fn doc_tests(sources: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    for source in sources.iter().filter(|s| is_rust(s)) {
        let mut inside = false;
        for (number, line) in source.text.lines().enumerate() {
            let line = line.trim_start();
            let Some(text) = line.strip_prefix("///").or_else(|| line.strip_prefix("//!")) else {
                inside = false;
                continue;
            };
            let Some(language) = text.trim_start().strip_prefix("```") else { continue };
            if !inside && language != "text" {
                problems.push(format!("{}:{}: code in a comment begins with ```text", source.path, number + 1));
            }
            inside = !inside;
        }
    }
    problems
}

/// Checks that each pure crate has the same clippy list and denies it, and that none uses something that the list
/// cannot name.
pub(super) fn purity(sources: &[Source]) -> Vec<String> {
    let mut problems = Vec::new();
    let at = |path: String| sources.iter().find(|s| s.path == path).map_or("", |s| s.text.as_str());
    let one = at(format!("crates/{}/clippy.toml", PURE[0]));
    for room in PURE {
        let home = format!("crates/{room}/");
        let text = |file: &str| at(format!("{home}{file}"));
        if !text("clippy.toml").contains("disallowed-methods") {
            problems.push(format!("{home}clippy.toml: no list of disallowed methods"));
        } else if text("clippy.toml") != one {
            problems.push(format!("{home}clippy.toml: another list than that of crates/{}", PURE[0]));
        }
        if !text("src/lib.rs").contains("deny(clippy::disallowed_methods, clippy::disallowed_types)") {
            problems.push(format!("{home}src/lib.rs: does not deny clippy's disallowed methods and types"));
        }
    }
    problems
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Vec<Source> {
        vec![Source { path: path.into(), text: text.into() }]
    }

    #[test]
    fn long_files_and_leftovers_are_found() {
        assert_eq!(lengths(&source("crates/a/src/lib.rs", &"x\n".repeat(601))).len(), 1);
        assert!(lengths(&source("crates/a/src/lib.rs", &"x\n".repeat(600))).is_empty());
        assert!(lengths(&source("Cargo.lock", &"x\n".repeat(6000))).is_empty());
        let marked = format!("let x = db{}x);", "g!(");
        assert_eq!(leftovers(&source("crates/a/src/lib.rs", &marked)).len(), 1);
        assert_eq!(leftovers(&source("docs/a.md", &format!("see /ho{}joe", "me/"))).len(), 1);
        assert!(leftovers(&source("docs/a.md", &format!("sets/<id>/ro{}x", "ot/"))).is_empty());
        assert_eq!(leftovers(&source("crates/a/src/lib.rs", "#[ignore]\n")).len(), 1);
    }

    #[test]
    fn unwraps_count_outside_of_tests_only() {
        let text = "fn a() { b().unwrap(); } // .unwrap()\n#[cfg(test)]\nmod tests { fn t() { c().unwrap() } }\n";
        assert_eq!(
            unwraps(&source("crates/a/src/lib.rs", text)[0]),
            ["crates/a/src/lib.rs:1: .unwrap() outside of tests"]
        );
        assert!(unwraps(&source("crates/a/src/tests.rs", text)[0]).is_empty());
    }

    #[test]
    fn settings_of_tests_arm_no_watchdog() {
        let of = |path: &str, text: &str| unarmed(&source(path, text)).len();
        let example = "deploy/examples/a/agent.toml";
        assert_eq!(of(example, "mode = \"automatic\"\n[watchdog]\ntimeout_ms = 3000\n[pool]\n"), 0);
        assert_eq!(of(example, "[watchdog]\nmode = \"off\"\n"), 0);
        assert_eq!(of(example, "[watchdog]\nmode = \"automatic\"\n"), 1);
        assert_eq!(of("scenarios/src/hosts.rs", r#"const A: &str = "[watchdog]\nmode = \"automatic\"\n[pool]\n";"#), 1);
        assert_eq!(of("scenarios/src/hosts.rs", r#"const A: &str = "mode = \"required\"\n";"#), 1);
        assert_eq!(of(ARMED, r#"const A: &str = "mode = \"required\"\n";"#), 0);
        assert_eq!(of("docs/operating/agent.md", "`watchdog.mode = \"required\"`"), 0);
    }

    #[test]
    fn settings_of_tests_reboot_no_machine() {
        let of = |path: &str, text: &str| unrebooted(&source(path, text)).len();
        let zfs = r#"const A: &str = "[pool]\nkind = \"zfs\"\n";"#;
        assert_eq!(of("scenarios/src/hosts.rs", "kind = \"ext4\"\nfence_action = \"retry\"\n"), 0);
        assert_eq!(of("scenarios/src/hosts.rs", zfs), 1);
        assert_eq!(of("scenarios/src/e2e/agent.rs", r#"const A: &str = "fence_action = \"reboot\"\n";"#), 1);
        assert_eq!(of("scenarios/src/zfs/agents.rs", zfs), 0);
        assert_eq!(of("docs/operating/agent.md", "kind = \"zfs\""), 0);
    }

    #[test]
    fn pure_crates_have_one_list() {
        let deny = "#![deny(clippy::disallowed_methods, clippy::disallowed_types)]\n";
        let of = |odd: &str| {
            let files = PURE.iter().flat_map(|room| {
                let list = if *room == "nbd" { odd } else { "disallowed-methods = []\n" };
                [(format!("crates/{room}/clippy.toml"), list), (format!("crates/{room}/src/lib.rs"), deny)]
            });
            purity(&files.map(|(path, text)| Source { path, text: text.into() }).collect::<Vec<_>>())
        };
        assert!(of("disallowed-methods = []\n").is_empty());
        assert_eq!(
            of("disallowed-methods = [ ]\n"),
            ["crates/nbd/clippy.toml: another list than that of crates/types"]
        );
        assert_eq!(of(""), ["crates/nbd/clippy.toml: no list of disallowed methods"]);
    }

    #[test]
    fn code_in_comments_is_no_test() {
        let of = |text: &str| doc_tests(&source("crates/a/src/lib.rs", text));
        assert!(of("//! ```text\n//! a -> b\n//! ```\n\n/// ```text\n/// c\n/// ```\nfn c() {}\n").is_empty());
        assert_eq!(of("/// ```\n/// assert!(true);\n/// ```\n").len(), 1);
        assert_eq!(of("    /// ```rust\n    /// c();\n    /// ```\n").len(), 1);
    }

    #[test]
    fn borders_hold_for_code_and_not_for_comments() {
        assert_eq!(borders(&source("crates/log/src/lib.rs", "use openraft::Vote;")).len(), 1);
        assert!(borders(&source("crates/log/src/lib.rs", "// as openraft::Vote does")).is_empty());
        assert!(borders(&source("crates/raft/src/lib.rs", "use openraft::Vote;")).is_empty());
    }
}
