//! No grants here for a while: what needs a free set is under way.

use super::SetServer;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// While it lives, this gateway grants the set to nobody: clients are told to try again. Another gateway that comes to lead knows nothing of
/// it; what was to be done then meets a held set, and is refused.
pub struct HeldOff {
    server: Arc<SetServer>,
}

impl Drop for HeldOff {
    fn drop(&mut self) {
        self.server.held_off.fetch_sub(1, Ordering::AcqRel);
    }
}

impl SetServer {
    /// Grants nothing until the guard is dropped. A grant that is being asked for is waited for.
    pub async fn hold_off(self: &Arc<Self>) -> HeldOff {
        self.held_off.fetch_add(1, Ordering::AcqRel);
        let held = HeldOff { server: self.clone() };
        drop(self.granting.lock().await);
        // The gate knows of a lease that ended a moment ago: nothing is answered under it any more.
        self.look();
        held
    }
}
