//! The checks of places that are going on.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// Time limit of a check that waits for a device.
pub(super) const CHECK_LIMIT: Duration = Duration::from_secs(5);

/// The checks of one host that are going on: each has directories of the pool open, which keeps it from being
/// unmounted.
#[derive(Debug, Default)]
pub struct Checks {
    under_way: AtomicUsize,
    /// The last one has ended.
    none_left: Notify,
}

/// One of [`Checks`], until it is dropped.
pub(super) struct Checking(Arc<Checks>);

impl Checks {
    pub(super) fn begin(self: &Arc<Self>) -> Checking {
        self.under_way.fetch_add(1, Ordering::AcqRel);
        Checking(self.clone())
    }

    /// Waits until no check has directories of the pool open, but not for one that hangs.
    pub async fn ended(&self) {
        let end = async {
            loop {
                // Before the count is read: an end in between is not missed.
                let none_left = self.none_left.notified();
                if self.under_way.load(Ordering::Acquire) == 0 {
                    return;
                }
                none_left.await;
            }
        };
        let _ = tokio::time::timeout(CHECK_LIMIT, end).await;
    }
}

impl Drop for Checking {
    fn drop(&mut self) {
        if self.0.under_way.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.none_left.notify_waiters();
        }
    }
}
