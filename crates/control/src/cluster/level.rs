//! Feature levels (CLUSTER-C4, ADR 0020): which entries the cluster may propose, and which other formats it may write.
//!
//! Every build knows all levels up to [`FEATURE_LEVEL`]. The cluster's level rises to the lowest one that all members'
//! builds know, and never falls.
//!
//! ```text
//!   level   from which on
//!   1       everything of the first release; open until then (ADR 0020)
//!   2       group 0 on three or five voters, all others learn it (ADR 0075); no entry
//! ```
//! A new entry, or a new meaning of one, gets a new level here and in `ClusterCommand::level`.

/// The level of a new cluster.
pub const FIRST_LEVEL: u32 = 1;
/// From this level on group 0 has three or five voters. An older build that led it would make every member one again.
pub const CLUSTER_VOTERS_LEVEL: u32 = 2;
/// The newest level that this build knows.
pub const FEATURE_LEVEL: u32 = 2;
