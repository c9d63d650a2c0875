//! How many gateways the clusters in network namespaces have, and their names.

/// Number of gateways.
pub const GATEWAYS: usize = 3;

/// The name of a gateway.
pub fn name(gateway: usize) -> String {
    format!("g{}", gateway + 1)
}
