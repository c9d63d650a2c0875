//! Runs work that may block on a thread of its own. A simulation runs it in place: there one thread and one seed decide
//! everything.

use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinHandle;

static INLINE: AtomicBool = AtomicBool::new(false);

/// Makes [`spawn_blocking`] run its work as an ordinary task, for the life of the process: for a simulation of whole
/// gateways on one thread (ADR 0017). A gateway that serves must never call this: a slow disk would stop everything
/// else.
pub fn run_blocking_inline() {
    INLINE.store(true, Ordering::Relaxed);
}

/// [`tokio::task::spawn_blocking`], or an ordinary task after [`run_blocking_inline`].
pub fn spawn_blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> JoinHandle<T> {
    match INLINE.load(Ordering::Relaxed) {
        true => tokio::spawn(async move { work() }),
        false => tokio::task::spawn_blocking(work),
    }
}
