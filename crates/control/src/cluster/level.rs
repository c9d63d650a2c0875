//! Feature levels (C4, ADR 0020): which entries the cluster may propose, and which other formats it may write.
//!
//! Every build knows all levels up to [`FEATURE_LEVEL`]. The cluster's level grows to the lowest that every member's build knows, and never goes back.
//!
//! ```text
//!   level   from which on
//!   1       everything of the first release
//! ```
//! A new entry, or a new meaning of one, gets a new level here and in [`ClusterCommand::level`].

use super::command::ClusterCommand;

/// The level of a new cluster.
pub const FIRST_LEVEL: u32 = 1;
/// The newest level that this build knows.
pub const FEATURE_LEVEL: u32 = 1;

impl ClusterCommand {
    /// The feature level from which on it may be proposed: builds that know only lower levels cannot read it.
    pub fn level(&self) -> u32 {
        match self {
            #[cfg(test)]
            ClusterCommand::OfLevel2 => 2,
            _ => FIRST_LEVEL,
        }
    }
}
