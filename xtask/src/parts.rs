//! The parts of `cargo xtask test`: one table that says which part runs in which tier, in which order, and why.

use clap::ValueEnum;

/// The package of the scenarios and the name of its program.
pub const SCENARIOS: &str = "holdfast-scenarios";

/// The package of the known bugs and the name of its program.
pub const MUTATIONS: &str = "holdfast-mutations";

/// The package that makes and tests packages, and the name of its program.
pub const DIST: &str = "holdfast-dist";

/// How much to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
pub enum Tier {
    /// Five minutes, for use while working.
    Quick,
    /// Before each merge: 40 minutes on two processors, from a clean checkout.
    Gate,
    /// Every test, for hours. Run it before an issue is closed.
    All,
}

/// What a part does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// Tidy, format, clippy. Where tests follow, these are built instead, and clippy runs beside them.
    Verify,
    /// Rustdoc, private items included; the book of the pages.
    Docs,
    /// `cargo deny check`.
    Deny,
    /// Unit tests of libraries and programs, without those in `tests/`.
    UnitTests,
    /// All cargo tests.
    Tests,
    /// Simulation seeds for some minutes in each mode.
    Simulation,
    /// Each fuzz target for a minute.
    Fuzz,
    /// Judges which probes were reached by the parts before it.
    Reached,
    /// A program that reports how many checks passed and failed: its package and arguments.
    Counted(&'static str, &'static [&'static str]),
    /// A program of which only the exit status counts: its package and arguments.
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

/// All parts, in the order in which they run. A name occurs once in each tier.
pub const PARTS: &[Part] = &[
    part(
        "verify",
        EACH,
        Work::Verify,
        "tidy, format, clippy (with tests: beside them); installs missing programs, except with --quick",
    ),
    part(
        "docs",
        ALL,
        Work::Docs,
        "rustdoc of private items: slow, and finds broken links only; the book, where mdBook is installed",
    ),
    part(
        "deny",
        ALL,
        Work::Deny,
        "licences, bans, duplicates, advisories: the result depends on Cargo.lock and on the advisory database",
    ),
    part("unit", QUICK, Work::UnitTests, "unit tests of libraries and programs"),
    part(
        "tests",
        FROM_GATE,
        Work::Tests,
        "all cargo tests; simulation seeds for 80 seconds in the gate, for 10 minutes in the long run",
    ),
    part("scenarios", QUICK, Work::Counted(SCENARIOS, &["e2e", "--tier", "quick"]), "see cargo xtask e2e --list"),
    part("scenarios", GATE, Work::Counted(SCENARIOS, &["e2e", "--tier", "gate"]), "see cargo xtask e2e --list"),
    part("scenarios", ALL, Work::Counted(SCENARIOS, &["e2e"]), "all scenarios"),
    part(
        "chaos",
        GATE,
        Work::Counted(SCENARIOS, &["chaos", "--with-lies", "--seconds", "90"]),
        "makes each fault about once",
    ),
    part(
        "chaos",
        ALL,
        Work::Counted(SCENARIOS, &["chaos", "--with-lies", "--seconds", "300"]),
        "makes each fault about three times",
    ),
    part("simulation", ALL, Work::Simulation, "fresh seeds for ten minutes in each mode"),
    part("fuzz", ALL, Work::Fuzz, "a minute for each decoder of what strangers send and stores return"),
    part("scenarios-long", ALL, Work::Counted(SCENARIOS, &["e2e", "--long"]), "longer outages, more rounds"),
    part("demo", ALL, Work::Plain(SCENARIOS, &["demo"]), "the first command that a new user runs"),
    part("demo-secure", ALL, Work::Plain(SCENARIOS, &["demo", "--secure"]), "the same with everything on"),
    part("failover", ALL, Work::Plain(SCENARIOS, &["demo", "failover"]), "measures each phase of a failover"),
    part("power", ALL, Work::Plain(SCENARIOS, &["power", "--rounds", "50"]), "power cuts under PostgreSQL"),
    part("jepsen", ALL, Work::Plain(SCENARIOS, &["jepsen"]), "all workloads; needs Java"),
    part("jepsen-lies", ALL, Work::Plain(SCENARIOS, &["jepsen", "--lies"]), "shows that its checkers find errors"),
    part("zfs", ALL, Work::Plain(SCENARIOS, &["zfs"]), "virtual machines with the kernel's nbd and ZFS; needs QEMU"),
    part(
        "packages",
        ALL,
        Work::Counted(DIST, &["packages"]),
        "packs twice and compares; installs, uses, upgrades and purges in a Debian of its own",
    ),
    part(
        "bench",
        ALL,
        Work::Plain("holdfast-bench", &["bench", "--quick"]),
        "shows that the benchmark runs; its figures mean nothing",
    ),
    part("reached", FROM_GATE, Work::Reached, "how many probes were reached: an error in the long run if one was not"),
    part(
        "mutants",
        GATE,
        Work::Counted(MUTATIONS, &["mutants", "--change", "--most", "12", "--minutes", "2"]),
        "a dozen mutants of the change, for two minutes; where cargo-mutants is installed and has been built for before",
    ),
    part(
        "mutants",
        ALL,
        Work::Counted(MUTATIONS, &["mutants", "--change", "--minutes", "30"]),
        "mutants of the change, for half an hour; where cargo-mutants is installed",
    ),
    // Last, because cargo must build our own crates again after it.
    part(
        "bugs",
        GATE,
        Work::Counted(MUTATIONS, &["mutations", "--smoke"]),
        "a few known bugs: shows that tests can fail",
    ),
    part("bugs", ALL, Work::Counted(MUTATIONS, &["mutations"]), "every known bug, until a test fails"),
];

/// The parts of a tier, in their order.
pub fn of(tier: Tier) -> impl Iterator<Item = &'static Part> {
    PARTS.iter().filter(move |part| part.tiers.contains(&tier))
}

/// The parts of a tier that the user chose: by name, or one part and all after it. Fails when a name does not occur in
/// this tier.
pub fn chosen(tier: Tier, names: &[String], from: Option<&str>) -> anyhow::Result<Vec<&'static Part>> {
    let all: Vec<&Part> = of(tier).collect();
    let known: Vec<&str> = all.iter().map(|part| part.name).collect();
    for name in names.iter().map(String::as_str).chain(from) {
        anyhow::ensure!(known.contains(&name), "no part {name:?} in this tier; its parts are: {}", known.join(", "));
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

    /// A later part must not run a program with a known bug in it.
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
        assert_eq!(
            names(&[], None).expect("all"),
            ["verify", "tests", "scenarios", "chaos", "reached", "mutants", "bugs"]
        );
        assert_eq!(names(&[], Some("reached")).expect("some"), ["reached", "mutants", "bugs"]);
        assert_eq!(names(&["verify", "bugs"], None).expect("two"), ["verify", "bugs"]);
        let error = names(&["zfs"], None).expect_err("in the long run only").to_string();
        assert!(error.starts_with("no part \"zfs\" in this tier"), "{error}");
    }
}
