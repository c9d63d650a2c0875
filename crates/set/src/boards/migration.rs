//! What a change of a set's stores shows.

use holdfast_raft::MigrationStatus;
use holdfast_types::sync::LockExt;
use std::sync::Mutex;

/// Status of a change of stores, as reported by the set's leader; `None` if there is no change, or if this gateway does
/// not lead.
#[derive(Debug, Default)]
pub struct MigrationBoard {
    said: Mutex<Option<MigrationStatus>>,
}

impl MigrationBoard {
    /// The current status.
    pub fn said(&self) -> Option<MigrationStatus> {
        self.said.locked().clone()
    }

    pub(crate) fn say(&self, said: Option<MigrationStatus>) {
        *self.said.locked() = said;
    }

    pub(crate) fn waits(&self, why: impl Into<String>) {
        self.say(Some(MigrationStatus { step: None, waits: why.into() }));
    }
}
