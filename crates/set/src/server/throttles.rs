//! What the connections to a set share of its limits at this gateway.

use holdfast_control::set::{Limit, Limits};
use holdfast_front::{Rates, Throttle, Throttles};
use holdfast_types::VolumeId;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// What the connections share.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) of_set: Throttles,
    /// By id: a volume that is created again under its name has a limit of its own.
    pub(super) volumes: BTreeMap<VolumeId, Arc<Throttle>>,
    /// The limits that they have.
    pub(super) known: Limits,
}

/// A limit, as connections count it.
pub(super) fn rates(limit: Limit) -> Rates {
    let Limit { iops, bytes_per_s, burst_ms } = limit;
    Rates { requests: u64::from(iops), bytes: bytes_per_s, burst: Duration::from_millis(u64::from(burst_ms)) }
}
