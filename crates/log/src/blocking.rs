//! Work that may block: on a thread of its own, except in a simulation, where one thread and one seed decide everything.

use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinHandle;

static INLINE: AtomicBool = AtomicBool::new(false);

/// From now on, for the life of the process, [`spawn_blocking`] runs its work as an ordinary task: for a simulation of whole gateways on
/// one thread (ADR 0017). A gateway that serves must never call this: a disk's pauses would stop everything else.
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
