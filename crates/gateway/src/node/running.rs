//! What one set has on this gateway while it runs: its tasks, and its files in the data directory beside those of its
//! group.

use holdfast_types::{Name, SetId};
use std::path::PathBuf;
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

/// The tasks of one set.
pub(super) struct Running {
    /// Its name.
    pub(super) name: Name,
    /// Stops it.
    pub(super) stop: CancellationToken,
    /// Its tasks.
    pub(super) tasks: Vec<JoinHandle<()>>,
}

/// Files of a set beside those of its group: [`fence_note`], [`scrub_note`], and a temporary file of the latter that a
/// crash may leave.
pub(super) fn notes(dir: &std::path::Path, id: SetId) -> [PathBuf; 3] {
    let scrub = scrub_note(dir, id);
    [fence_note(dir, id), scrub.with_extension("new"), scrub]
}

/// The note that a life of the set has ended.
pub(super) fn fence_note(dir: &std::path::Path, id: SetId) -> PathBuf {
    dir.join(format!("fenced-{}", id.0))
}

/// The note with the scrub's position.
pub(super) fn scrub_note(dir: &std::path::Path, id: SetId) -> PathBuf {
    dir.join(format!("scrub-{}", id.0))
}
