//! Seeds of the simulation, as many as fit; and that a seed is all that decides.

use std::io::Write;
use std::process::{Command, Output};

/// What is run: seconds of faults in each seed, seeds, and the seconds for which further ones are begun. Many short ones, and some in which one thing
/// leads to another: docs/proof/simulation.md compares them. The seeds are those that were looked at; what further ones find is for
/// `cargo xtask sim`. Whatever the machine, the first seed of each is run.
const COURSES: [(&str, &str, &str); 2] = [("4", "1800", "410"), ("20", "100", "110")];

/// The same of sets in three stores, of `--length 4`.
const OF_SEVERAL: (&str, &str) = ("100", "60");

/// The same of sets that are attached, with disks that are full now and then.
const OF_ATTACHED: (&str, &str) = ("100", "60");

/// The same of sets for which hosts with agents fight.
const OF_AGENTS: (&str, &str) = ("60", "50");

/// Bugs of a host with an agent, a seed that shows each within so many seconds of faults, and the rule that it breaks.
const AGENTS_BUGS: [(&str, &str, &str, &str); 6] = [
    ("never-stops", "1", "4", "A3: "),
    ("takes-unasked", "1", "4", "T1: "),
    ("no-watchdog", "20", "4", "W2: "),
    ("skips-commits", "1", "4", "L1 "),
    ("told-unflushed", "2", "4", "L1 "),
    ("slow-hosts", "36", "20", "A3: "),
];

/// Bugs between an attached set and its gateways, and what the first of a dozen seeds that shows one says.
const ATTACHED_BUGS: [(&str, &[&str]); 3] = [
    ("replays-answered", &["R3: ", "R1, R4: "]),
    ("answered-when-sent", &["R3: ", "R1, R4: "]),
    ("goes-on-fenced", &["R1, R2: ", "R1, R4: "]),
];

/// Bugs that only a set of several stores can have, a seed that shows each within 4 s of faults, and the rule that it breaks.
const BUGS: [(&str, &str, &str); 2] = [("slot-forgotten", "4", "D1: "), ("no-repair", "1", "D3: ")];

fn sim(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_holdfast-sim")).args(args).output().expect("starts")
}

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// First of all: what two runs of a seed do not share, no seed repeats.
#[test]
fn one_seed_twice_is_the_same_to_the_byte() {
    // One store, mostly; and three; and attached.
    for (seed, more, shows) in [
        ("3", "", "= draws "),
        ("7", "", "= draws "),
        ("7", "--several", "1 sets of several stores"),
        ("7", "--attach --full", "alpha has read everything"),
        ("7", "--agents", " has recovered up to commit "),
    ] {
        let words = ["one", "--verbose", "--length", "6", "--seed", seed].into_iter().chain(more.split_whitespace());
        let words: Vec<&str> = words.collect();
        let runs = [(); 2].map(|()| sim(&words));
        let [first, second] = runs.map(|run| text(&run));
        let lines = first.lines().zip(second.lines());
        let differ = lines.enumerate().find(|(_, (a, b))| a != b);
        assert_eq!(differ, None, "seed {seed}: the first line that differs");
        assert_eq!(first, second, "seed {seed}");
        assert!(first.contains("= draws "), "seed {seed}: a log without fingerprints proves nothing:\n{first}");
        assert!(first.contains(shows), "seed {seed} {more}: expected {shows:?}\n{first}");
    }
    let [one, other] = ["3", "7"].map(|seed| text(&sim(&["one", "--verbose", "--length", "1", "--seed", seed])));
    assert_ne!(one, other);
}

#[test]
fn no_seed_breaks_a_rule() {
    // How long in all, in seconds, if that is said: then as many seeds as fit, half of the time each.
    let seconds = std::env::var("HOLDFAST_SIM_SECONDS").ok().map(|text| text.parse::<u64>().expect("seconds"));
    let mut fine = true;
    for (length, seeds, most) in COURSES {
        let mut words = vec!["many", "--quiet", "--jobs", "2", "--length", length];
        let half = seconds.map(|seconds| (seconds / 2).to_string());
        match &half {
            Some(half) => words.extend(["--seconds", half]),
            None => words.extend(["--seeds", seeds, "--seconds", most]),
        }
        let run = sim(&words);
        // Past the test harness, which would keep it: the seeds, and how much of each fault they met.
        let mut out = std::io::stderr().lock();
        out.write_all(&run.stdout).and_then(|()| out.flush()).expect("written");
        fine &= run.status.success();
    }
    for (modes, (seeds, most)) in [("--several", OF_SEVERAL), ("--attach --full", OF_ATTACHED), ("--agents", OF_AGENTS)]
    {
        let words = ["many", "--quiet", "--jobs", "2", "--length", "4", "--seeds", seeds, "--seconds", most];
        let words: Vec<&str> = words.into_iter().chain(modes.split_whitespace()).collect();
        let run = sim(&words);
        let mut out = std::io::stderr().lock();
        out.write_all(&run.stdout).and_then(|()| out.flush()).expect("written");
        fine &= run.status.success();
    }
    assert!(fine, "a seed failed; the lines above say how to repeat it");
}

/// What the checks on several stores are there for, each with the first seed that shows it.
#[test]
fn several_stores_with_a_bug_fail() {
    for (bug, seed, rule) in BUGS {
        let run = sim(&["one", "--several", "--length", "4", "--broken", bug, "--seed", seed]);
        let text = text(&run);
        assert!(!run.status.success() && text.contains(rule), "{bug}, seed {seed}: expected {rule}\n{text}");
    }
}

/// What the checks on attached sets are there for.
#[test]
fn attached_sets_with_a_bug_fail() {
    for (bug, rules) in ATTACHED_BUGS {
        let run =
            sim(&["many", "--attach", "--quiet", "--jobs", "2", "--length", "4", "--broken", bug, "--seeds", "12"]);
        let text = text(&run);
        let said = rules.iter().any(|rule| text.contains(&format!("FAILED: {rule}")));
        assert!(!run.status.success() && said, "{bug}: expected one of {rules:?}\n{text}");
    }
}

/// What the checks on hosts with agents are there for.
#[test]
fn agents_with_a_bug_fail() {
    for (bug, seed, length, rule) in AGENTS_BUGS {
        let run = sim(&["one", "--agents", "--length", length, "--broken", bug, "--seed", seed]);
        let (text, expected) = (text(&run), format!("FAILED: {rule}"));
        assert!(!run.status.success() && text.contains(&expected), "{bug}, seed {seed}: expected {rule}\n{text}");
    }
}

/// What chance plays too seldom: the same course, whatever the seed.
fn scene(name: &str) {
    scenes(name, 2);
}

fn scenes(name: &str, seeds: u64) {
    scenes_with(name, seeds, &[]);
}

fn scenes_with(name: &str, seeds: u64, more: &[&str]) {
    for seed in 1..=seeds {
        let seed = seed.to_string();
        let run = sim(&[&["one", "--seed", &seed, "--scene", name], more].concat());
        assert!(run.status.success(), "{}", text(&run));
    }
}

/// Seed 200 met it once.
#[test]
fn a_gateway_that_was_removed_while_its_group_0_was_damaged_is_told() {
    scene("removed-while-damaged");
}

#[test]
fn a_volume_with_a_damaged_map_page_is_deleted_and_checkpoints_go_on() {
    scene("damaged-page");
}

#[test]
fn of_two_members_that_are_to_leave_in_the_same_moment_one_is_refused() {
    scene("two-leave");
}

#[test]
fn a_failover_that_is_asked_for_again_ends_no_lease_that_was_granted_since() {
    scene("failover-again");
}

#[test]
fn sets_that_are_created_in_calls_that_were_given_up_open() {
    scene("sets-given-up");
}

/// D1 to D4 of `control::cluster::deletion`, E1 and E2 of `raft::ended`, T1 and T2 of the removal.
#[test]
fn of_a_set_that_is_deleted_under_faults_nothing_is_left() {
    scenes("deleted-set", 12);
}

/// What a store lacked was named by a snapshot's root alone, which had been the current one between two looks: it was looked for a quarter of an hour later.
#[test]
fn what_only_a_snapshot_names_is_filled_as_well() {
    let run = sim(&["one", "--several", "--length", "20", "--seed", "132"]);
    assert!(run.status.success(), "{}", text(&run));
}

/// T1 for each of them: one is away now and then, and everything is gone from all in the end.
#[test]
fn of_a_set_in_several_stores_that_is_deleted_nothing_is_left_in_any() {
    scenes_with("deleted-set", 6, &["--several"]);
}

/// C3: however often it is started.
#[test]
fn a_machine_that_goes_back_to_an_older_copy_of_its_disk_counts_for_nobody() {
    scenes("restored-disk", 8);
}

/// W1 and W2, and everything that was written, with what was left emptied.
#[test]
fn the_stores_of_a_set_are_changed_while_everything_goes_wrong() {
    scenes("moved-stores", 6);
}
