//! What a step of a station, its pool and its database may use of the world.

use super::ledger::Ledger;
use crate::model::Model;
use crate::stats::Stats;

/// What a station's step is lent.
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
    /// Whether it can be said where a write of this epoch belongs: not between a later owner's grant and its first reading.
    pub fn decided(&self, epoch: u64) -> bool {
        let latest = self.model.latest_epoch();
        self.model.is_current(epoch) || latest > epoch && self.model.is_current(latest)
    }
}
