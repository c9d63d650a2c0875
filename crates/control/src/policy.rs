//! What a set asks of its voters: which loss it survives, how many they are, where they are and where not (ADR 0052).
//! Group 0 keeps it with the set; `placing` chooses the voters by it.

use holdfast_types::Name;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// Voters of a set without a wish.
pub const VOTERS_DEFAULT: u8 = 3;
/// Most forbidden regions of one set.
pub const FORBIDDEN_MAX: usize = 16;

/// The largest thing whose loss a set survives: a majority of its voters is left, one that can serve among them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Survive {
    /// One machine.
    Host,
    /// One zone of a region.
    Zone,
    /// One region.
    Region,
}

impl Survive {
    /// All, the widest first.
    pub const ALL: [Self; 3] = [Self::Region, Self::Zone, Self::Host];

    /// The name in commands.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Host => "host",
            Self::Zone => "zone",
            Self::Region => "region",
        }
    }

    /// Reads the name.
    pub fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|level| level.as_str() == text)
    }

    /// The next narrower one.
    pub fn narrower(self) -> Option<Self> {
        match self {
            Self::Host => None,
            Self::Zone => Some(Self::Host),
            Self::Region => Some(Self::Zone),
        }
    }
}

impl fmt::Display for Survive {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Policy {
    /// What it survives. `None`: as much as the present members allow.
    pub survive: Option<Survive>,
    /// Number of voters, 3 or 5. Without `survive`, fewer if there are fewer members.
    pub voters: u8,
    /// The region where as many voters are as `survive` allows.
    pub home: Option<Name>,
    /// Regions where none may be.
    pub forbidden: BTreeSet<Name>,
}

impl Default for Policy {
    fn default() -> Self {
        Self { survive: None, voters: VOTERS_DEFAULT, home: None, forbidden: BTreeSet::new() }
    }
}

impl Policy {
    /// Whether it contradicts itself.
    ///
    /// # Errors
    /// The contradiction, for people.
    pub fn check(&self) -> Result<(), String> {
        if !matches!(self.voters, 3 | 5) {
            return Err(format!("voters: found {}, expected 3 or 5", self.voters));
        }
        if self.forbidden.len() > FORBIDDEN_MAX {
            return Err(format!("forbidden regions: found {}, expected at most {FORBIDDEN_MAX}", self.forbidden.len()));
        }
        match self.home.as_ref().filter(|home| self.forbidden.contains(*home)) {
            Some(home) => Err(format!("region {home} is the home and is forbidden: choose one")),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let survive = self.survive.map_or("auto", Survive::as_str);
        write!(f, "survive {survive}, {} voters", self.voters)?;
        if let Some(home) = &self.home {
            write!(f, ", home {home}")?;
        }
        for region in &self.forbidden {
            write!(f, ", not in {region}")?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> Name {
        Name::new(text).unwrap()
    }

    #[test]
    fn a_policy_that_contradicts_itself_is_told() {
        let policy = Policy { home: Some(name("eu")), forbidden: BTreeSet::from([name("us")]), ..Policy::default() };
        assert_eq!(policy.check(), Ok(()));
        assert_eq!(policy.to_string(), "survive auto, 3 voters, home eu, not in us");
        for voters in [0, 1, 2, 4, 6, 7] {
            let why = Policy { voters, ..policy.clone() }.check().unwrap_err();
            assert!(why.contains("expected 3 or 5"), "{why}");
        }
        let both = Policy { home: Some(name("us")), ..policy.clone() };
        assert!(both.check().unwrap_err().contains("is the home and is forbidden"));
        let many = (0..=FORBIDDEN_MAX).map(|at| name(&format!("r{at}"))).collect();
        assert!(Policy { forbidden: many, ..policy }.check().unwrap_err().contains("at most 16"));
    }

    #[test]
    fn levels_have_one_order() {
        for level in Survive::ALL {
            assert_eq!(Survive::parse(level.as_str()), Some(level));
            assert!(level.narrower().is_none_or(|narrower| narrower < level));
        }
        assert_eq!(Survive::parse("planet"), None);
    }
}
