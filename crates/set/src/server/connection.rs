//! A client's share of an epoch while it is connected, and the end of a plain lease with its last connection.

use super::{Serving, SetServer};
use crate::sequencer::WriteFailure;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// A client's connection to the epoch under which it was opened.
pub struct Connection {
    /// The set.
    pub server: Arc<SetServer>,
    /// The epoch.
    pub serving: Arc<Serving>,
}

impl Drop for Connection {
    fn drop(&mut self) {
        let last = self.serving.connections.fetch_sub(1, Ordering::AcqRel) == 1;
        if last {
            self.serving.emptied.notify_waiters();
        }
        // A client that was disconnected because the set moves will reconnect, and finds its plain lease at the new
        // gateway.
        if !last || !self.serving.plain || self.serving.draining.is_cancelled() {
            return;
        }
        let (server, serving) = (self.server.clone(), self.serving.clone());
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        runtime.spawn(async move {
            let _one = server.grants.one.lock().await;
            // A connection that arrived meanwhile keeps the lease.
            let held = server.lease().is_some_and(|l| l.epoch == serving.epoch) && server.leading_ready().is_some();
            if held
                && serving.begin_ending()
                && let Err(e) = server.release(serving.epoch, None).await
            {
                tracing::debug!(set = %server.name, epoch = %serving.epoch, error = %e, "plain lease not released yet");
                // No connection can join any more: serving ends here, and the lease is released as an orphan.
                serving.end(WriteFailure::Gone);
            }
        });
    }
}
