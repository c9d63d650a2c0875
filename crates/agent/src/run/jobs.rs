//! The jobs of the agent's task: a later one ends the earlier one first (TASK-N2).
//!
//! A job that is told to end stops at its next wait, not before: one that hangs on a disk of the host, or is about to
//! start a program, goes on meanwhile on a thread of its own. What a later job finds before that moment is not yet the
//! end: PostgreSQL that does not run may be started a moment later, and nobody would stop it.

use crate::host::{Ended, NotDone};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::{AbortHandle, JoinHandle};

/// A job that waits for something ends within much less.
const EARLIER_LIMIT: Duration = Duration::from_millis(10);

/// How long a job waits for an earlier one that hangs.
const LATE_LIMIT: Duration = if cfg!(test) { Duration::from_secs(1) } else { Duration::from_secs(5) };

/// What a job is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum For {
    /// To release something: it does not wait for an earlier job that hangs, since the lease may end (AGENT-A3).
    Release,
    /// Anything else.
    Use,
}

/// At most one is at work.
#[derive(Default)]
pub(super) struct Jobs {
    /// Number of those that have not ended.
    alive: Arc<watch::Sender<usize>>,
    last: Option<AbortHandle>,
    /// Processes that a job has ended, and that the machine does not know of yet.
    pub(super) ended: Ended,
}

/// Counts a job until it has ended, in whatever way.
struct Alive(Arc<watch::Sender<usize>>);

impl Alive {
    fn of(alive: &Arc<watch::Sender<usize>>) -> Self {
        alive.send_modify(|count| *count += 1);
        Self(alive.clone())
    }

    /// Whether all others ended within this time.
    async fn alone(&self, limit: Duration) -> bool {
        let mut alive = self.0.subscribe();
        tokio::time::timeout(limit, alive.wait_for(|count| *count <= 1)).await.is_ok()
    }
}

impl Drop for Alive {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count = count.saturating_sub(1));
    }
}

impl Jobs {
    /// Ends the earlier job and begins this one. If the earlier one hangs, what was done beside it is done once more
    /// after its end: only that counts.
    pub(super) fn begin<W, F>(&mut self, what: For, work: W) -> JoinHandle<Result<(), NotDone>>
    where
        W: Fn() -> F + Send + Sync + 'static,
        F: Future<Output = Result<(), NotDone>> + Send + 'static,
    {
        if let Some(earlier) = self.last.take() {
            earlier.abort();
        }
        let alive = Alive::of(&self.alive);
        let working = tokio::spawn(async move {
            if alive.alone(EARLIER_LIMIT).await {
                return work().await;
            }
            tracing::warn!("an earlier step still runs: it hangs on a disk of this host, or starts a program");
            if what == For::Release
                && let Err(NotDone::Failed(why) | NotDone::Refused(why)) = work().await
            {
                tracing::warn!(why, "release failed while an earlier step still hangs");
            }
            if alive.alone(LATE_LIMIT).await {
                return work().await;
            }
            Err(NotDone::Failed(
                "an earlier step hangs, and may still do what it was at: look at the disks of this host".into(),
            ))
        });
        self.last = Some(working.abort_handle());
        working
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc::{Sender, channel};

    type Ready = std::future::Ready<Result<(), NotDone>>;

    fn done() -> Ready {
        std::future::ready(Ok(()))
    }

    /// PostgreSQL as a job sees it.
    #[derive(Clone, Default)]
    struct World {
        /// A start has begun.
        begun: Arc<AtomicBool>,
        runs: Arc<AtomicBool>,
        stops: Arc<AtomicUsize>,
    }

    impl World {
        /// A job that hangs without a wait, until it is let go; then it starts PostgreSQL.
        fn start(&self) -> (Sender<()>, impl Fn() -> Ready + Send + Sync + use<>) {
            let ((lets, held), world) = (channel(), self.clone());
            let held = Mutex::new(held);
            let start = move || {
                world.begun.store(true, SeqCst);
                let _ = held.lock().unwrap().recv();
                world.runs.store(true, SeqCst);
                done()
            };
            (lets, start)
        }

        fn stop(&self) -> impl Fn() -> Ready + Send + Sync + use<> {
            let world = self.clone();
            move || {
                world.runs.store(false, SeqCst);
                world.stops.fetch_add(1, SeqCst);
                done()
            }
        }
    }

    async fn until(is: impl Fn() -> bool) {
        while !is() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    }

    /// TASK-N2: PostgreSQL that is about to be started while it is stopped does not run once the stop is done.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_stop_is_done_only_once_an_earlier_start_has_ended() {
        let (world, mut jobs) = (World::default(), Jobs::default());
        let (lets, start) = world.start();
        let start = jobs.begin(For::Use, start);
        until(|| world.begun.load(SeqCst)).await;
        let stop = jobs.begin(For::Release, world.stop());
        // AGENT-A3: what runs is stopped at once all the same.
        until(|| world.stops.load(SeqCst) > 0).await;
        let done_at_once = tokio::time::timeout(Duration::from_millis(100), until(|| stop.is_finished())).await.is_ok();
        lets.send(()).unwrap();
        let _ = start.await;
        assert_eq!(stop.await.unwrap(), Ok(()));
        assert!(!done_at_once && !world.runs.load(SeqCst), "it was started after the stop");
    }

    /// Nothing is said to be stopped while an earlier job may still start it.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_stop_beside_a_job_that_hangs_is_not_done() {
        let (world, mut jobs) = (World::default(), Jobs::default());
        let (lets, start) = world.start();
        let start = jobs.begin(For::Use, start);
        until(|| world.begun.load(SeqCst)).await;
        let stopped = jobs.begin(For::Release, world.stop()).await.unwrap();
        lets.send(()).unwrap();
        let _ = start.await;
        assert!(matches!(&stopped, Err(NotDone::Failed(why)) if why.contains("an earlier step hangs")), "{stopped:?}");
        // Something else is not begun at all.
        let (lets, start) = world.start();
        world.begun.store(false, SeqCst);
        let start = jobs.begin(For::Use, start);
        until(|| world.begun.load(SeqCst)).await;
        let used = jobs.begin(For::Use, world.stop()).await.unwrap();
        lets.send(()).unwrap();
        let _ = start.await;
        assert!(used.is_err());
        assert_eq!(world.stops.load(SeqCst), 1);
    }

    /// A job that is at work.
    struct AtWork(Arc<AtomicBool>);

    impl Drop for AtWork {
        fn drop(&mut self) {
            self.0.store(false, SeqCst);
        }
    }

    /// What a job has in its hands is dropped before the next one is done.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_job_that_waits_is_dropped_before_the_next_one_is_done() {
        let (waits, mut jobs) = (Arc::new(AtomicBool::new(false)), Jobs::default());
        let at = waits.clone();
        let earlier = jobs.begin(For::Use, move || {
            at.store(true, SeqCst);
            let at_work = AtWork(at.clone());
            async move {
                std::future::pending::<()>().await;
                drop(at_work);
                Ok(())
            }
        });
        until(|| waits.load(SeqCst)).await;
        let seen = waits.clone();
        let next = jobs.begin(For::Release, move || {
            let still = seen.load(SeqCst).then(|| NotDone::Failed("the earlier one is still there".into()));
            std::future::ready(still.map_or(Ok(()), Err))
        });
        assert_eq!(next.await.unwrap(), Ok(()));
        assert!(earlier.await.unwrap_err().is_cancelled());
    }
}
