//! The state that was shown last (WEB-H4).

use axum::body::Bytes;
use std::future::Future;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{Mutex, OwnedMutexGuard};

/// How long a state is shown before another one is gathered.
const FRESH: Duration = Duration::from_secs(2);

/// The state, and since when it is there.
#[derive(Debug, Default)]
pub(super) struct Latest(Arc<Mutex<Option<(Instant, Bytes)>>>);

impl Latest {
    /// The state, gathered unless it is fresh. Whoever asks while it is being gathered waits for it.
    ///
    /// Gathering goes on when the one who asked hangs up. Otherwise a browser that hangs up again and again would have
    /// the other gateways asked each time.
    pub(super) async fn get<F>(&self, gather: impl FnOnce() -> F) -> Bytes
    where
        F: Future<Output = Bytes> + Send + 'static,
    {
        let latest = self.0.clone().lock_owned().await;
        if let Some((at, state)) = latest.as_ref()
            && at.elapsed() < FRESH
        {
            return state.clone();
        }
        match tokio::spawn(gathered(latest, gather())).await {
            Ok(state) => state,
            Err(ended) => match ended.try_into_panic() {
                Ok(panic) => std::panic::resume_unwind(panic),
                // The process ends.
                Err(_) => std::future::pending().await,
            },
        }
    }
}

/// Gathers, and keeps the state. Nobody else gathers before.
async fn gathered(mut latest: OwnedMutexGuard<Option<(Instant, Bytes)>>, gather: impl Future<Output = Bytes>) -> Bytes {
    let state = gather.await;
    *latest = Some((Instant::now(), state.clone()));
    state
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU8, Ordering};
    use tokio::sync::Notify;

    #[tokio::test]
    async fn h4_who_hangs_up_has_nobody_asked_again() {
        let (latest, count, answered) = (Latest::default(), Arc::new(AtomicU8::new(0)), Arc::new(Notify::new()));
        let look = async || {
            let (count, answered) = (count.clone(), answered.clone());
            let gathering = async move {
                answered.notified().await;
                Bytes::from(vec![count.fetch_add(1, Ordering::Relaxed)])
            };
            latest.get(|| gathering).await
        };
        for _ in 0..3 {
            assert!(tokio::time::timeout(Duration::ZERO, look()).await.is_err(), "it hangs up at once");
        }
        assert!(latest.0.try_lock().is_err(), "gathering goes on");
        answered.notify_one();
        assert_eq!(look().await[..], [0], "the first one");
        // And again within its time.
        assert_eq!((look().await[..].to_vec(), count.load(Ordering::Relaxed)), (vec![0], 1));
    }
}
