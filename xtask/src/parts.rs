//! The parts of a whole run of tests: one table of what runs in which tier, in which order, and why.

use crate::{MUTATIONS, SCENARIOS};
use clap::ValueEnum;

/// How much to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Tier {
    /// What is useful within five minutes while somebody works.
    Quick,
    /// Before each landing: 40 minutes on two processors, from a clean checkout.
    Gate,
    /// Everything that exists: hours. Before an issue is said to be done.
    All,
}

/// What a part does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Tidy, format, clippy.
    Verify,
    /// Rustdoc, private items included.
    Docs,
    /// `cargo deny check`.
    Deny,
    /// Tests of libraries and programs, without those in `tests/`.
    UnitTests,
    /// All tests of cargo.
    Tests,
    /// Seeds of the simulation for some minutes, in each of its modes.
    Simulation,
    /// A program of chores that hands over a count: its package and its arguments.
    Counted(&'static str, &'static [&'static str]),
    /// One whose exit status is all that it says.
    Plain(&'static str, &'static [&'static str]),
}

/// A part of a run.
#[derive(Clone, Copy, Debug)]
pub struct Part {
    pub name: &'static str,
    pub tiers: &'static [Tier],
    pub why: &'static str,
    pub work: Work,
}

const fn part(name: &'static str, tiers: &'static [Tier], work: Work, why: &'static str) -> Part {
    Part { name, tiers, why, work }
}

const QUICK: &[Tier] = &[Tier::Quick];
const GATE: &[Tier] = &[Tier::Gate];
const ALL: &[Tier] = &[Tier::All];
const FROM_GATE: &[Tier] = &[Tier::Gate, Tier::All];
const EACH: &[Tier] = &[Tier::Quick, Tier::Gate, Tier::All];

/// All of them, in the order in which they run. A name is there once in each tier.
pub const PARTS: &[Part] = &[
    part(
        "verify",
        EACH,
        Work::Verify,
        "tidy, format, clippy; what is missing is installed meanwhile, but not by --quick",
    ),
    part("docs", ALL, Work::Docs, "rustdoc of private items: slow, and breaks links only"),
    part("deny", ALL, Work::Deny, "licences, bans, duplicates, advisories: change with Cargo.lock or with the world"),
    part("unit", QUICK, Work::UnitTests, "tests of libraries and programs"),
    part("tests", FROM_GATE, Work::Tests, "all cargo tests; seeds for 4 minutes in the gate, for 10 in the long run"),
    part("scenarios", QUICK, Work::Counted(SCENARIOS, &["e2e", "--tier", "quick"]), "cargo xtask e2e --list"),
    part("scenarios", GATE, Work::Counted(SCENARIOS, &["e2e", "--tier", "gate"]), "cargo xtask e2e --list"),
    part("scenarios", ALL, Work::Counted(SCENARIOS, &["e2e"]), "every one"),
    part(
        "chaos",
        GATE,
        Work::Counted(SCENARIOS, &["chaos", "--with-lies", "--seconds", "90"]),
        "each fault about once",
    ),
    part(
        "chaos",
        ALL,
        Work::Counted(SCENARIOS, &["chaos", "--with-lies", "--seconds", "300"]),
        "each fault three times",
    ),
    part("simulation", ALL, Work::Simulation, "fresh seeds for ten minutes in each mode"),
    part("scenarios-long", ALL, Work::Counted(SCENARIOS, &["e2e", "--long"]), "longer outages, more rounds"),
    part("demo", ALL, Work::Plain(SCENARIOS, &["demo"]), "what a newcomer runs first"),
    part("failover", ALL, Work::Plain(SCENARIOS, &["demo", "failover"]), "each phase of a failover, timed"),
    part("power", ALL, Work::Plain(SCENARIOS, &["power", "--rounds", "50"]), "power cuts below PostgreSQL"),
    part("jepsen", ALL, Work::Plain(SCENARIOS, &["jepsen"]), "all workloads; needs Java"),
    part("jepsen-lies", ALL, Work::Plain(SCENARIOS, &["jepsen", "--lies"]), "its checkers find what they should"),
    part("zfs", ALL, Work::Plain(SCENARIOS, &["zfs"]), "virtual machines with the kernel's nbd and ZFS; needs QEMU"),
    part("bench", ALL, Work::Plain("holdfast-bench", &["bench", "--quick"]), "shows that it runs, not how fast"),
    // Last: it makes cargo forget what it has built of our own crates.
    part(
        "bugs",
        GATE,
        Work::Counted(MUTATIONS, &["mutations", "--smoke"]),
        "a few known bugs: tests that cannot fail are worth nothing",
    ),
    part("bugs", ALL, Work::Counted(MUTATIONS, &["mutations"]), "every known bug, until a test is red"),
];

/// The parts of a tier, in their order.
pub fn of(tier: Tier) -> impl Iterator<Item = &'static Part> {
    PARTS.iter().filter(move |part| part.tiers.contains(&tier))
}

/// Those of a tier that a person chose: by name, or all from one on.
///
/// # Errors
/// When a name is none of this tier.
pub fn chosen(tier: Tier, names: &[String], from: Option<&str>) -> anyhow::Result<Vec<&'static Part>> {
    let all: Vec<&Part> = of(tier).collect();
    let known: Vec<&str> = all.iter().map(|part| part.name).collect();
    for name in names.iter().map(String::as_str).chain(from) {
        anyhow::ensure!(known.contains(&name), "no part {name:?} in this tier; there are: {}", known.join(", "));
    }
    let begin = from.and_then(|from| known.iter().position(|name| *name == from)).unwrap_or(0);
    let wanted = |part: &&Part| names.is_empty() || names.iter().any(|name| name == part.name);
    Ok(all.into_iter().skip(begin).filter(wanted).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_there_once_in_each_tier() {
        for tier in Tier::value_variants() {
            let names: Vec<&str> = of(*tier).map(|part| part.name).collect();
            let once: std::collections::BTreeSet<&str> = names.iter().copied().collect();
            assert_eq!(once.len(), names.len(), "{tier:?}: {names:?}");
        }
    }

    /// A bug in the copy of the tree must not be in what a later part runs.
    #[test]
    fn known_bugs_come_last() {
        for tier in [Tier::Gate, Tier::All] {
            assert_eq!(of(tier).last().map(|part| part.name), Some("bugs"));
        }
    }

    #[test]
    fn parts_are_chosen_by_name_or_from_one_on() {
        let names = |names: &[&str], from| {
            let names: Vec<String> = names.iter().map(ToString::to_string).collect();
            chosen(Tier::Gate, &names, from).map(|parts| parts.iter().map(|part| part.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[], None).expect("all"), ["verify", "tests", "scenarios", "chaos", "bugs"]);
        assert_eq!(names(&[], Some("chaos")).expect("some"), ["chaos", "bugs"]);
        assert_eq!(names(&["verify", "bugs"], None).expect("two"), ["verify", "bugs"]);
        let error = names(&["zfs"], None).expect_err("in the long run only").to_string();
        assert!(error.starts_with("no part \"zfs\" in this tier"), "{error}");
    }
}
