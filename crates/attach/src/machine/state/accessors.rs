//! Read-only accessors of the machine.

use super::{Machine, View};
use crate::machine::{Grant, Moment, Phase};
use std::time::Duration;

/// A request that is unanswered for longer may wait for data that the store lacks, without a limit.
const STUCK: Duration = Duration::from_secs(5);

impl Machine {
    /// The phase.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The last grant.
    pub fn grant(&self) -> Option<&Grant> {
        self.lease.grant.as_ref()
    }

    /// Status for people and scripts.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Number of unanswered requests.
    pub fn unanswered(&self) -> usize {
        self.table.len()
    }

    /// The incarnation of the connections.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// Whether an answer to this renewal still counts.
    pub fn awaits_renewal(&self, number: u64) -> bool {
        self.renewals.outstanding.is_some_and(|asked| asked.number == number)
    }

    /// Whether requests of `volume` are being answered, so that waiting for those on their way takes not long. False
    /// for a lost volume.
    pub fn flows(&self, now: Moment, volume: usize) -> bool {
        let stuck = self.table.oldest_of(volume).is_some_and(|came| now.since(came) >= STUCK);
        self.phase == Phase::Serving && !self.lost_volumes.contains_key(&volume) && !stuck
    }

    /// Whether an answer that a gateway gave in `incarnation` still counts: nothing was lost since, and the set does
    /// not end.
    pub fn stands(&self, incarnation: u64) -> bool {
        incarnation == self.incarnation && self.holds()
    }
}
