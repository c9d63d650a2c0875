//! A scenario, its tier, and its needs.

use super::lab::Lab;
use anyhow::Result;

/// The tier of a scenario, and the reason for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Tier {
    /// Minutes, for use while working: `cargo xtask test --quick`.
    Quick(&'static str),
    /// Before each merge: `cargo xtask test`.
    Gate(&'static str),
    /// Before an issue is closed: `cargo xtask test --all`. The reason says what covers it in the gate.
    Long(&'static str),
}

/// Which tiers to run: this one and those before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, clap::ValueEnum)]
pub(super) enum Upto {
    Quick,
    Gate,
    All,
}

impl Tier {
    pub(super) fn is_in(self, upto: Upto) -> bool {
        self.first() <= upto
    }

    /// The smallest tier that includes it.
    pub(super) fn first(self) -> Upto {
        match self {
            Self::Quick(_) => Upto::Quick,
            Self::Gate(_) => Upto::Gate,
            Self::Long(_) => Upto::All,
        }
    }

    pub(super) fn why(self) -> &'static str {
        let (Self::Quick(why) | Self::Gate(why) | Self::Long(why)) = self;
        why
    }
}

/// A named scenario.
pub(super) struct Scenario {
    pub(super) name: &'static str,
    /// What it proves, in one line.
    pub(super) shows: &'static str,
    pub(super) tier: Tier,
    pub(super) needs: &'static [&'static str],
    pub(super) run: fn(&Lab) -> Result<()>,
}

/// A need of a scenario that is no program: network namespaces with bridge, links and packet rules.
pub(super) const NAMESPACES: &str = "network namespaces";

/// A need of a scenario: a `holdfast` program of an older version.
pub(super) const OLDER: &str = "an older build";
