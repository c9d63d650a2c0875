//! The feature level of a gateway pair (PAIR-P6). The two gateways are in no cluster together, so no Raft group can
//! hold it. It is one key in the etcd. Each gateway reads it, and replaces it only if the other one has not replaced it
//! since.

use crate::cluster::FIRST_LEVEL;
use std::collections::BTreeMap;

/// Most gateways in a roster: two, and former ones of the pair.
pub const ROSTER_MAX: usize = 16;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roster {
    /// The pair's feature level. Never lowered.
    pub level: u32,
    /// Feature level of each gateway's build, by name, as last reported; also for gateways that are away.
    pub gateways: BTreeMap<String, u32>,
}

/// A gateway must not have the pair's seat.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotEnrolled {
    /// The stores may contain a level that the build cannot read.
    #[error(
        "gateway {gateway} runs a build that knows feature level {found}, and the pair is at {expected}: start it with a newer build"
    )]
    TooOld {
        /// Its name.
        gateway: String,
        /// Level that the build knows.
        found: u32,
        /// The pair's.
        expected: u32,
    },
    /// More names than gateways.
    #[error(
        "the roster would name {found} gateways, expected {ROSTER_MAX} at most: it still names gateways that left the pair"
    )]
    TooMany {
        /// Including this one.
        found: usize,
    },
}

impl Default for Roster {
    /// For a pair without any report yet.
    fn default() -> Self {
        Self { level: FIRST_LEVEL, gateways: BTreeMap::new() }
    }
}

impl Roster {
    /// The roster with this gateway, whose build knows `knows`, and the resulting level: the lowest of all gateways,
    /// once there are two. One gateway alone does not know what the other can read.
    ///
    /// # Errors
    /// [`NotEnrolled`]; the roster is then unchanged.
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
