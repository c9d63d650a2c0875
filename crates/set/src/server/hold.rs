//! Blocks grants for a while, for an operation that needs a free set.

use super::SetServer;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// While this guard lives, this gateway grants the set to no owner, and clients are told to try again. A new leader
/// does not know of the guard; the operation then meets a held set and is refused.
pub struct HeldOff {
    server: Arc<SetServer>,
}

impl Drop for HeldOff {
    fn drop(&mut self) {
        self.server.held_off.fetch_sub(1, Ordering::AcqRel);
    }
}

impl SetServer {
    /// Grants nothing until the guard is dropped. Waits for a grant that is in progress.
    pub async fn hold_off(self: &Arc<Self>) -> HeldOff {
        self.held_off.fetch_add(1, Ordering::AcqRel);
        let held = HeldOff { server: self.clone() };
        drop(self.granting.lock().await);
        // Reports a lease that just ended to the gate: nothing is answered under it any more.
        self.follow();
        held
    }
}
