//! What a change of a set's stores shows.

use holdfast_raft::Placing;
use holdfast_types::sync::LockExt;
use std::sync::Mutex;

/// Status of a change of stores, as reported by the set's leader; `None` if there is no change, or if this gateway does
/// not lead.
#[derive(Debug, Default)]
pub struct PlacingBoard {
    said: Mutex<Option<Placing>>,
}

impl PlacingBoard {
    /// The current status.
    pub fn said(&self) -> Option<Placing> {
        self.said.locked().clone()
    }

    pub(crate) fn say(&self, said: Option<Placing>) {
        *self.said.locked() = said;
    }

    pub(crate) fn waits(&self, why: impl Into<String>) {
        self.say(Some(Placing { step: None, waits: why.into() }));
    }
}
