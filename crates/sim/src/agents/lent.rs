//! Parts of the world that a step of a station, its pool and its database may use.

use super::ledger::Ledger;
use crate::model::Model;
use crate::stats::Stats;

/// Parts of the world for a station's step.
pub struct Lent<'a> {
    pub now: u64,
    pub model: &'a mut Model,
    pub ledger: &'a mut Ledger,
    pub stats: &'a mut Stats,
    /// Clients want commits.
    pub busy: bool,
    /// How many machines may be gateways.
    pub gateways: usize,
    pub log: &'a mut Vec<String>,
}

impl Lent<'_> {
    /// Whether the order of a write in this epoch is defined: not between a later owner's grant and its first reading.
    pub fn decided(&self, epoch: u64) -> bool {
        let latest = self.model.latest_epoch();
        self.model.is_current(epoch) || latest > epoch && self.model.is_current(latest)
    }
}
