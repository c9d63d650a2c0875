//! A known bug: what it changes in which file, and the tests that must find it.

use anyhow::{Context, Result, ensure};

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
pub(super) const SIMULATION: Test =
    file(Layer::Simulation, "holdfast-sim", &["--test", "seeds"], &["no_seed_breaks_a_rule"]);

/// A unit test of a library.
pub(super) const fn lib(layer: Layer, package: &'static str, filter: &'static [&'static str]) -> Test {
    Test::Cargo { layer, package, target: &["--lib"], filter }
}

/// A scene of the simulation, by a part of its test's name.
pub(super) const fn scene(filter: &'static [&'static str]) -> Test {
    file(Layer::Simulation, "holdfast-sim", &["--test", "scenes"], filter)
}

/// A test in a file of `tests/`.
pub(super) const fn file(
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

/// Selection of a bug's tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    All,
    /// Tests that need no whole cluster.
    Quick,
    /// The first test, which must find it.
    First,
}

impl Asked {
    pub(super) fn of(self, mutation: &'static Mutation) -> Vec<&'static Test> {
        let fits = |test: &&Test| self != Asked::Quick || !matches!(test, Test::Scenario(_));
        let most = if self == Asked::First { 1 } else { usize::MAX };
        mutation.tests.iter().filter(fits).take(most).collect()
    }
}

impl Edit {
    /// The text with the bug in it. Fails when the text to replace does not occur exactly once.
    pub(super) fn apply(&self, text: &str) -> Result<String> {
        place_of(self.old, text)?;
        Ok(text.replacen(self.old, self.new, 1))
    }
}

/// The byte at which a text begins that occurs exactly once. Fails when it does not.
pub(super) fn place_of(old: &str, text: &str) -> Result<usize> {
    let found = text.matches(old).count();
    ensure!(found == 1, "found {found} times, expected once: {old:?}");
    text.find(old).context("not in the text")
}

impl Mutation {
    /// Fingerprint of everything on which a result depends: when it changes, earlier results are invalid.
    pub(super) fn fingerprint(&self) -> String {
        let commands: Vec<String> = self.tests.iter().map(Test::command).collect();
        let edits = self.edits.iter().flat_map(|edit| [edit.file, edit.old, edit.new]);
        fingerprint(edits.chain(commands.iter().map(String::as_str)))
    }
}

/// FNV-1a of texts in their order: not secret, needs no dependency, and is the same on every machine.
pub(super) fn fingerprint<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    for byte in texts.into_iter().flat_map(|text| text.bytes().chain([0])) {
        hash = (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
    format!("{hash:016x}")
}
