//! Histories of one set on a log in place of Raft's (docs/proof/histories.md): ten thousand, each from its seed.

use std::io::Write;
use std::process::{Command, Output};

/// `HOLDFAST_HISTORIES` says otherwise; `HOLDFAST_HISTORIES_JOBS`: processes at once.
const HISTORIES: &str = "10000";

/// Two processors have nothing else to do once those in several stores are done, which takes a quarter of the time.
const JOBS: &str = "2";

fn histories(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_holdfast-sim")).arg("histories").args(args).output().expect("starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Which seeds they were, and what they did: shown of a run that held, too. The harness keeps what the macros print.
fn tell(text: &str) {
    let last = text.lines().last().unwrap_or_default();
    let _ = writeln!(std::io::stderr(), "histories: {last}");
}

/// First of all: what two runs of a seed do not share, no seed repeats.
#[test]
fn one_history_twice_is_the_same_to_the_byte() {
    for seed in ["11", "42"] {
        let [first, second] = [(); 2].map(|()| text(&histories(&["--seed", seed])));
        let differ = first.lines().zip(second.lines()).enumerate().find(|(_, (a, b))| a != b);
        assert_eq!(differ, None, "seed {seed}: the first line that differs");
        assert_eq!(first, second, "seed {seed}");
        assert!(first.lines().count() > 30 && first.contains("\nok "), "seed {seed}:\n{first}");
    }
}

#[test]
fn volumes_read_as_written_and_the_store_holds_what_is_named() {
    let [count, jobs] = [("HOLDFAST_HISTORIES", HISTORIES), ("HOLDFAST_HISTORIES_JOBS", JOBS)]
        .map(|(name, otherwise)| std::env::var(name).unwrap_or_else(|_| otherwise.to_string()));
    let run = histories(&["--count", &count, "--jobs", &jobs]);
    let text = text(&run);
    // Kept by the test harness, shown with a failure: which seeds, and how each is repeated.
    println!("{text}");
    tell(&text);
    assert!(run.status.success(), "a history failed; the lines above say how to repeat it");
    let counts = text.lines().last().and_then(|line| line.split(';').next()).unwrap_or_default();
    // An entry of an ended epoch is never committed here: whoever is cut off commits nothing.
    let never = counts.split(", ").filter(|count| count.starts_with("0 ") && !count.ends_with("entries refused"));
    let never: Vec<&str> = never.collect();
    // The seeds are the same in every run: what is never done is not done by chance.
    assert!(count != HISTORIES || never.is_empty(), "a test in which these never happen: {never:?}");
}

/// The same in three stores of which two must have an object; one at a time is down, or refuses everything.
#[test]
fn in_several_stores_too() {
    let jobs = std::env::var("HOLDFAST_HISTORIES_JOBS").unwrap_or_else(|_| "1".to_string());
    let count = std::env::var("HOLDFAST_HISTORIES_SEVERAL").unwrap_or_else(|_| "2000".to_string());
    let run = histories(&["--several", "--count", &count, "--jobs", &jobs]);
    println!("{}", text(&run));
    tell(&text(&run));
    assert!(run.status.success(), "a history failed; the lines above say how to repeat it, with --several");
}
