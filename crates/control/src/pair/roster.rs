//! The feature level of a gateway pair (PAIR-P6). The two gateways are in no cluster together, so no Raft group can hold it. It is one key in the
//! etcd. Each gateway reads it, and replaces it only if nobody else has replaced it since.

use crate::cluster::FIRST_LEVEL;
use std::collections::BTreeMap;

/// Gateways that a roster may name: two, and some that were of the pair before.
pub const ROSTER_MAX: usize = 16;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roster {
    /// The pair's feature level. Never lowered.
    pub level: u32,
    /// By name, the feature level that the gateway's build knows, as it said last. Who is away counts with that.
    pub gateways: BTreeMap<String, u32>,
}

/// A gateway must not have the pair's seat.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotEnrolled {
    /// What is in the stores may be of a level that it does not read.
    #[error(
        "gateway {gateway} runs a build that knows feature level {found}, and the pair is at {expected}: start it with a newer build"
    )]
    TooOld {
        /// Its name.
        gateway: String,
        /// What its build knows.
        found: u32,
        /// The pair's.
        expected: u32,
    },
    /// More names than gateways.
    #[error(
        "the roster would name {found} gateways, expected {ROSTER_MAX} at most: it still names some that are of the pair no more"
    )]
    TooMany {
        /// With this one.
        found: usize,
    },
}

impl Default for Roster {
    /// Of a pair of which nobody has said anything.
    fn default() -> Self {
        Self { level: FIRST_LEVEL, gateways: BTreeMap::new() }
    }
}

impl Roster {
    /// The roster with a gateway whose build knows `knows`, and the level that follows: the lowest of all gateways, as soon as there are two.
    /// One gateway alone does not know what the other can read.
    ///
    /// # Errors
    /// [`NotEnrolled`]; the roster stays as it is then.
    pub fn with(&self, gateway: &str, knows: u32) -> Result<Self, NotEnrolled> {
        if knows < self.level {
            return Err(NotEnrolled::TooOld { gateway: gateway.to_owned(), found: knows, expected: self.level });
        }
        let mut gateways = self.gateways.clone();
        gateways.insert(gateway.to_owned(), knows);
        if gateways.len() > ROSTER_MAX {
            return Err(NotEnrolled::TooMany { found: gateways.len() });
        }
        let known = gateways.values().copied().min().filter(|_| gateways.len() > 1).unwrap_or(FIRST_LEVEL);
        Ok(Self { level: self.level.max(known), gateways })
    }
}

#[cfg(test)]
mod tests;
