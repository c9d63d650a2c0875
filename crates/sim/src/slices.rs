//! A process of the simulation: its own tokio runtime, run in slices. Everything ready runs, at one moment of the
//! machine's clock; nothing moves between two slices.

use crate::sync::lock;
use std::future::{Future, poll_fn};
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::task::{Poll, Waker};
use tokio::runtime::{Builder, Runtime};

/// Interval at which an idle process checks its timers, in nanoseconds.
const LOOK_EVERY: u64 = 4_000_000;

#[derive(Default)]
struct Parked {
    passes: AtomicU32,
    root: Mutex<Option<Waker>>,
}

/// See the module. Dropping it kills the process at an await point.
pub struct Slices {
    runtime: Runtime,
    parked: Arc<Parked>,
    /// When it next checks its timers, if idle.
    look_at: u64,
}

impl Slices {
    /// A process without work, at `now`.
    pub fn new(now: u64) -> std::io::Result<Self> {
        let parked = Arc::new(Parked::default());
        let hook = parked.clone();
        let runtime = Builder::new_current_thread()
            .enable_time()
            // After each task the root future may check, and stop: see `stop_after`.
            .event_interval(1)
            .on_thread_park(move || {
                hook.passes.fetch_add(1, Relaxed);
                if let Some(root) = lock(&hook.root).take() {
                    root.wake();
                }
            })
            .build()?;
        Ok(Self { runtime, parked, look_at: now })
    }

    /// Runs `work` in the process.
    pub fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }

    /// Runs everything ready at `now`. False: there was nothing to run. Outside events are seen at once (`worked`:
    /// there was one), timers every [`LOOK_EVERY`], as with a lazy kernel.
    pub fn run(&mut self, now: u64, worked: bool) -> bool {
        if !worked && now < self.look_at && self.runtime.metrics().global_queue_depth() == 0 {
            return false;
        }
        self.look_at = now + LOOK_EVERY;
        let parked = &self.parked;
        parked.passes.store(0, Relaxed);
        // Idle twice: once before the due timers, once after what they woke.
        self.runtime.block_on(poll_fn(|cx| {
            if parked.passes.load(Relaxed) >= 2 {
                return Poll::Ready(());
            }
            *lock(&parked.root) = Some(cx.waker().clone());
            Poll::Pending
        }));
        true
    }

    /// Runs only this many polls of tasks: the process is killed next.
    pub fn stop_after(&self, polls: u64) {
        let mut left = polls;
        self.runtime.block_on(poll_fn(|cx| {
            if left == 0 {
                return Poll::Ready(());
            }
            left -= 1;
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
    }
}
