//! Opens stores on a thread that may block. Opening reads the credentials file and the machine's trusted certificates,
//! and a file system that hangs would block everything else on a runtime thread.

use crate::ObjectStore;
use crate::error::{At, Cause, Op, StoreError};
use crate::health::Kind;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::{Instant, timeout_at};

/// Time limit for opening one store. A local file needs a thousandth of it.
const OPEN_LIMIT: Duration = Duration::from_secs(5);

/// Maximum number of stores that are being opened at the same time in the whole process. Each one keeps a thread until
/// its file system answers, even if nobody waits for it any more.
const OPENING_MAX: usize = 2;
static OPENING: Semaphore = Semaphore::const_new(OPENING_MAX);

/// Result of opening a store.
type Opened = Result<Arc<dyn ObjectStore>, StoreError>;

/// Runs `open` ([`crate::open()`], [`crate::open_observed`]) with this URL on a thread that may block. Stops waiting if
/// it hangs.
///
/// # Errors
/// As `open`; and Unavailable if it does not finish in time.
pub async fn open_aside(
    url: &str,
    open: impl FnOnce(&str) -> Result<Arc<dyn ObjectStore>, StoreError> + Send + 'static,
) -> Result<Arc<dyn ObjectStore>, StoreError> {
    within(OPEN_LIMIT, &OPENING, url, open).await
}

async fn within(
    limit: Duration,
    turns: &'static Semaphore,
    url: &str,
    open: impl FnOnce(&str) -> Opened + Send + 'static,
) -> Opened {
    let until = Instant::now() + limit;
    let late = |what: &str| {
        let limit = limit.as_millis();
        let words = format!("{what} within {limit} ms: is the file system of the credentials file there?");
        let (at, cause) = (At::new(&Arc::from(url), Op::Open, ""), Cause::of_kind(Kind::NoAnswer, words));
        StoreError::Unavailable { at, attempts: 1, cause }
    };
    let Ok(Ok(turn)) = timeout_at(until, turns.acquire()).await else {
        return Err(late("earlier attempts to open stores have not ended"));
    };
    let owned = url.to_owned();
    let opening = tokio::task::spawn_blocking(move || {
        let _turn = turn;
        open(&owned)
    });
    match timeout_at(until, opening).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(ended)) if ended.is_panic() => std::panic::resume_unwind(ended.into_panic()),
        // The second case: the runtime ends.
        Ok(Err(_)) | Err(_) => Err(late("not opened")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Memory;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::mpsc;

    /// Longer than anything here takes; a test that waits longer hangs.
    const PATIENCE: Duration = Duration::from_secs(60);

    /// Opens when it is told to, like a slow file system.
    fn when_told() -> (mpsc::Sender<()>, impl FnOnce(&str) -> Opened + Send + 'static) {
        let (tell, told) = mpsc::channel();
        let open = move |_: &str| -> Opened {
            told.recv_timeout(PATIENCE).expect("nothing else runs while a store is opened");
            Ok(Arc::new(Memory::new()))
        };
        (tell, open)
    }

    /// Both run on one thread.
    #[tokio::test]
    async fn others_run_while_a_store_is_opened() {
        static TURNS: Semaphore = Semaphore::const_new(1);
        let (tell, open) = when_told();
        let other = async { tell.send(()).expect("waited for") };
        let (opened, ()) = tokio::join!(within(PATIENCE, &TURNS, "memory", open), other);
        assert_eq!(opened.expect("opened").place(), "memory");
    }

    #[tokio::test]
    async fn what_hangs_is_given_up_and_keeps_no_more_threads_than_there_are_turns() {
        static TURNS: Semaphore = Semaphore::const_new(1);
        let soon = Duration::from_millis(50);
        let (tell, open) = when_told();
        let error = within(soon, &TURNS, "s3://bucket/", open).await.expect_err("it hangs");
        assert!(error.may_pass() && error.to_string().contains("s3://bucket/: not done"), "{error}");
        let begun = Arc::new(AtomicBool::new(false));
        let noted = begun.clone();
        let open = move |_: &str| -> Opened {
            noted.store(true, Ordering::Relaxed);
            Ok(Arc::new(Memory::new()))
        };
        let error = within(soon, &TURNS, "s3://other/", open).await.expect_err("no turn is free");
        assert!(error.may_pass() && !begun.load(Ordering::Relaxed), "{error}");
        tell.send(()).expect("it still hangs");
        let turn = tokio::time::timeout(PATIENCE, TURNS.acquire()).await;
        drop(turn.expect("what hung has ended").expect("open"));
        let (tell, open) = when_told();
        tell.send(()).expect("told before");
        within(PATIENCE, &TURNS, "memory", open).await.expect("opened");
    }
}
