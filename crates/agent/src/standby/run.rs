//! `standby run`: one task that looks, refreshes when it is time, and answers load balancers.

use super::http::{self, Look};
use super::{RUN_LOCK, Standby, Which};
use crate::clock;
use crate::config::StandbyConfig;
use crate::watchdog;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// Between two looks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// What is to be done after a look.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Wait,
    Refresh,
}

/// Pure. A copy that is not up is of no use: a new one is made at once, but not sooner than `retry` after a failure.
fn next(now_ms: u64, up: bool, age_ms: Option<u64>, failed_ms: Option<u64>, every: Duration, retry: Duration) -> Next {
    let ms = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    if failed_ms.is_some_and(|at| now_ms.saturating_sub(at) < ms(retry)) {
        return Next::Wait;
    }
    match age_ms {
        Some(age) if up && age < ms(every) => Next::Wait,
        _ => Next::Refresh,
    }
}

/// Runs until `stop`, then takes everything down.
///
/// # Errors
/// Another one runs, or what it needs cannot be had.
pub async fn run(config: StandbyConfig, stop: impl Future<Output = ()>) -> Result<(), String> {
    let standby = Arc::new(Standby::new(&config)?);
    let _lock = watchdog::lock(&config.run_dir, RUN_LOCK)?;
    let listen = config.http.listen;
    let listener = tokio::net::TcpListener::bind(listen).await.map_err(|error| format!("{listen}: {error}"))?;
    let (looks, seen) = watch::channel(Arc::new(Look { view: standby.view().await?, at: clock::now() }));
    let serving = tokio::spawn(http::serve(listener, seen));
    // Apart: looks go on while a refresh is under way.
    let watched = standby.clone();
    let looking = tokio::spawn(async move {
        loop {
            match watched.view().await {
                Ok(view) => drop(looks.send(Arc::new(Look { view, at: clock::now() }))),
                Err(why) => tracing::error!(why, "the state of the standby"),
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        }
    });
    tokio::pin!(stop);
    let (every, retry) = (Duration::from_secs(config.refresh_every_s), Duration::from_secs(config.retry_s));
    let ended = loop {
        let state = standby.state()?;
        let up = state.current.as_ref().is_some_and(|current| standby.slot(current.slot).is_up());
        let now = clock::unix_ms();
        let age = state.current.as_ref().map(|current| now.saturating_sub(current.snapshot_unix_ms));
        let failed = state.failure.as_ref().map(|failure| failure.unix_ms);
        let turn = async {
            if next(now, up, age, failed, every, retry) == Next::Refresh {
                // Said where it failed; the state has it.
                let _ = standby.refresh(&Which::New).await;
            }
            tokio::time::sleep(LOOK_INTERVAL).await;
        };
        tokio::select! {
            () = &mut stop => break Ok(()),
            () = turn => {}
        }
        if serving.is_finished() {
            break Err(format!("{listen}: no longer answers"));
        }
    };
    looking.abort();
    serving.abort();
    // A refresh that was cut short is in one of the two slots.
    let down = standby.stop().await;
    ended.and(down)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_refreshes_when_it_is_time_or_nothing_serves_and_does_not_insist() {
        let (every, retry) = (Duration::from_secs(900), Duration::from_secs(30));
        let now = 10_000_000;
        let next = |up, age_ms, failed_ms| next(now, up, age_ms, failed_ms, every, retry);
        assert_eq!(next(false, None, None), Next::Refresh, "the first one");
        assert_eq!(next(true, Some(899_999), None), Next::Wait);
        assert_eq!(next(true, Some(900_000), None), Next::Refresh);
        assert_eq!(next(false, Some(1), None), Next::Refresh, "PostgreSQL or its copy has ended");
        assert_eq!(next(false, Some(1), Some(now - 29_999)), Next::Wait);
        assert_eq!(next(true, Some(900_000), Some(now - 1)), Next::Wait);
        assert_eq!(next(true, Some(900_000), Some(now - 30_000)), Next::Refresh);
        assert_eq!(next(true, Some(5), Some(now - 30_000)), Next::Wait, "a refresh by hand that failed");
    }
}
