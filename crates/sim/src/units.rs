//! Units of the simulation.

/// A millisecond.
pub const MS: u64 = 1_000_000;
/// One step.
pub const TICK: u64 = MS;
/// The cluster.
pub const CLUSTER: u128 = 0x51;
