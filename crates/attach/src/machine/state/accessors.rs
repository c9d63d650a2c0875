//! Read-only accessors of the machine.

use super::{Machine, View};
use crate::machine::{Grant, Moment, Phase};
use std::time::Duration;

/// A request that is unanswered for longer may be so for as long as the store lacks what it asks for.
const STUCK: Duration = Duration::from_secs(5);

impl Machine {
    /// Where it stands.
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// The lease as granted last.
    pub fn grant(&self) -> Option<&Grant> {
        self.grant.as_ref()
    }

    /// For those who watch.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Requests that are unanswered.
    pub fn unanswered(&self) -> usize {
        self.table.len()
    }

    /// The generation of the connections.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Whether an answer to this renewal still counts.
    pub fn awaits_renewal(&self, number: u64) -> bool {
        self.outstanding.is_some_and(|asked| asked.number == number)
    }

    /// Whether requests of `volume` are being answered, so that whoever waits for those on their way does not wait for long. One that is lost has none.
    pub fn flows(&self, now: Moment, volume: usize) -> bool {
        let stuck = self.table.oldest_of(volume).is_some_and(|came| now.since(came) >= STUCK);
        self.phase == Phase::Serving && !self.lost_volumes.contains_key(&volume) && !stuck
    }

    /// Whether what a gateway said over `generation` still counts: nothing was lost since, and nobody ends.
    pub fn stands(&self, generation: u64) -> bool {
        generation == self.generation && self.holds()
    }
}
