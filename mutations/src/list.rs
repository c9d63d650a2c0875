//! The list of known bugs: what each one changes, which rule it breaks, and which tests must find it, fastest first.

mod agent;
mod cluster;
mod control;
mod data;
mod deletion;
mod gateway;
mod histories;
mod pair;
mod raft;
mod space;
mod stores;
mod volumes;

use anyhow::{Result, ensure};

/// All bugs, by crate.
pub(super) const MUTATIONS: &[&[Mutation]] = &[
    control::MUTATIONS,
    data::MUTATIONS,
    raft::MUTATIONS,
    gateway::MUTATIONS,
    agent::MUTATIONS,
    space::MUTATIONS,
    stores::MUTATIONS,
    volumes::MUTATIONS,
    deletion::MUTATIONS,
    pair::MUTATIONS,
    histories::MUTATIONS,
    cluster::MUTATIONS,
];

/// Rules without a bug, because the code does not exist yet. Shown on the page.
pub(super) const NOT_YET: &str = "
Taken out: what the journal holds of the time before a rollback is still found after it. Nothing can see it: a rollback is refused unless all of that is in
a checkpoint (SET-S12), so there is nothing left to forget.

Holes that the list has shown, closed by a test each: a vote right after a start was asked of nobody over the door between gateways
(`voter-under-embargo`), a snapshot of the leader was never started from again (`snapshot-not-synced-first`), no older one was put over a newer
(`snapshot-goes-back`), the recovered set of the test had no deleted volume (`volume-id-again-after-a-recovery`).
Two more had no scenario that could see them (`paused-gateway` reads after the pause, and none waits for an unknown outcome with a later write behind it):
`lease-checked-before-the-read` and `goes-on-after-an-unknown` are decisions of their own now, with a unit test each.
";

/// A known bug.
pub(super) struct Mutation {
    pub(super) name: &'static str,
    /// Its effect, in one sentence.
    pub(super) bug: &'static str,
    /// The rule that it breaks.
    pub(super) rule: &'static str,
    pub(super) edits: &'static [Edit],
    /// Run in this order until one fails.
    pub(super) tests: &'static [Test],
    /// Part of `--smoke`.
    pub(super) smoke: bool,
}

/// A text replacement.
pub(super) struct Edit {
    pub(super) file: &'static str,
    /// Occurs exactly once in the file.
    pub(super) old: &'static str,
    pub(super) new: &'static str,
}

/// The kind of a test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub(super) enum Layer {
    Model,
    Property,
    Crash,
    Story,
    Unit,
    Cluster,
    Simulation,
    Scenario,
}

impl Layer {
    pub(super) fn name(self) -> &'static str {
        match self {
            Layer::Model => "model",
            Layer::Property => "property",
            Layer::Crash => "crash",
            Layer::Story => "story",
            Layer::Unit => "unit",
            Layer::Cluster => "cluster",
            Layer::Simulation => "simulation",
            Layer::Scenario => "scenario",
        }
    }
}

/// A test to run.
pub(super) enum Test {
    /// `cargo test -p PACKAGE TARGET -- FILTER`.
    Cargo { layer: Layer, package: &'static str, target: &'static [&'static str], filter: &'static [&'static str] },
    /// `cargo xtask e2e NAME`.
    Scenario(&'static str),
}

/// Simulation seeds: the same as in CI, as many as begin within `SIM_COURSE_SECONDS` in each mode.
const SIMULATION: Test = file(Layer::Simulation, "holdfast-sim", &["--test", "seeds"], &["no_seed_breaks_a_rule"]);

/// A unit test of a library.
const fn lib(layer: Layer, package: &'static str, filter: &'static [&'static str]) -> Test {
    Test::Cargo { layer, package, target: &["--lib"], filter }
}

/// A test in a file of `tests/`.
const fn file(
    layer: Layer,
    package: &'static str,
    target: &'static [&'static str],
    filter: &'static [&'static str],
) -> Test {
    Test::Cargo { layer, package, target, filter }
}

impl Test {
    pub(super) fn layer(&self) -> Layer {
        match self {
            Test::Cargo { layer, .. } => *layer,
            Test::Scenario(_) => Layer::Scenario,
        }
    }

    /// The command line that runs it.
    pub(super) fn command(&self) -> String {
        match self {
            Test::Cargo { package, target, filter, .. } => {
                let mut words = vec!["cargo", "test", "-p", *package];
                words.extend(*target);
                if !filter.is_empty() {
                    words.push("--");
                    words.extend(*filter);
                }
                words.join(" ")
            }
            Test::Scenario(name) => format!("cargo xtask e2e {name}"),
        }
    }
}

impl Edit {
    /// The text with the bug in it.
    ///
    /// # Errors
    /// When the text to replace does not occur exactly once.
    pub(super) fn apply(&self, text: &str) -> Result<String> {
        let found = text.matches(self.old).count();
        ensure!(found == 1, "found {found} times, expected once: {:?}", self.old);
        Ok(text.replacen(self.old, self.new, 1))
    }
}

impl Mutation {
    /// Fingerprint of everything on which a result depends: when it changes, earlier results are invalid.
    pub(super) fn fingerprint(&self) -> String {
        // FNV-1a: not secret, needs no dependency, and is the same on every machine.
        let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
        let mut eat = |text: &str| {
            for byte in text.bytes().chain([0]) {
                hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
            }
        };
        for edit in self.edits {
            [edit.file, edit.old, edit.new].into_iter().for_each(&mut eat);
        }
        self.tests.iter().for_each(|test| eat(&test.command()));
        format!("{hash:016x}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::binary::root;
    use std::collections::BTreeSet;

    /// Keeps the list up to date: every text to replace is in the tree exactly once, and edits of one bug do not undo
    /// each other.
    #[test]
    fn every_bug_can_be_put_in() {
        let mut wrong = Vec::new();
        for mutation in MUTATIONS.iter().copied().flatten() {
            for edit in mutation.edits {
                let outcome = std::fs::read_to_string(root().join(edit.file)).map_err(anyhow::Error::from);
                match outcome.and_then(|text| edit.apply(&text)) {
                    Ok(changed) => assert!(changed.contains(edit.new), "{}", mutation.name),
                    Err(e) => wrong.push(format!("{}: {}: {e:#}", mutation.name, edit.file)),
                }
                assert_ne!(edit.old, edit.new, "{}", mutation.name);
            }
        }
        assert!(wrong.is_empty(), "the sources have changed; change the list:\n{}", wrong.join("\n"));
    }

    #[test]
    fn the_list_is_long_enough_and_names_are_unique() {
        let all: Vec<&Mutation> = MUTATIONS.iter().copied().flatten().collect();
        assert!(all.len() >= 25, "only {}", all.len());
        let names: BTreeSet<&str> = all.iter().map(|mutation| mutation.name).collect();
        assert_eq!(names.len(), all.len(), "a name twice");
        for mutation in &all {
            assert!(!mutation.edits.is_empty() && !mutation.tests.is_empty(), "{}", mutation.name);
            // A test that finds a bug only by chance would make the smoke run fail without a reason.
            let fixed = |test: &Test| matches!(test.layer(), Layer::Model | Layer::Story | Layer::Unit);
            let certain = mutation.tests.first().is_some_and(fixed);
            assert!(!mutation.smoke || certain, "{}: the smoke run asks fixed cases", mutation.name);
        }
        assert!(all.iter().filter(|mutation| mutation.smoke).count() >= 3);
    }
}
