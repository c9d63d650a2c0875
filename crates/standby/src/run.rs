//! `standby run`: refreshes at intervals, updates the view, and serves health checks.

use crate::config::StandbyConfig;
use crate::http::{self, Door, Look};
use crate::swap::Place;
use crate::{RUN_LOCK, Standby, Which};
use holdfast_agent::listen::Bounded;
use holdfast_agent::{Gateways, clock};
use holdfast_host::lock::lock;
use holdfast_tls::{Dialer, HttpTls, Role, Tls};
use std::convert::Infallible;
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinHandle;

/// Pause between two checks.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// The next step after a check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Next {
    Wait,
    Refresh,
}

/// Pure. If the copy is not up, a new one is made at once, but not sooner than `retry` after a failure. `served`: time
/// since the last refresh ended; `failed`: since one failed. The data's age does not count: it is measured by the
/// gateways' clock, and one that runs behind ours would cause refreshes without a pause.
fn next(up: bool, served: Option<Duration>, failed: Option<Duration>, every: Duration, retry: Duration) -> Next {
    if failed.is_some_and(|failed| failed < retry) {
        return Next::Wait;
    }
    match served {
        Some(served) if up && served < every => Next::Wait,
        _ => Next::Refresh,
    }
}

/// Pure. Time since an event: by the monotonic clock if this process saw the event, otherwise by wall-clock time,
/// unless that lies in the future.
fn ago(seen: Option<Duration>, unix_ms: Option<u64>, now_unix_ms: u64) -> Option<Duration> {
    seen.or_else(|| Some(Duration::from_millis(now_unix_ms.checked_sub(unix_ms?)?)))
}

/// The refreshes of one `standby run`.
#[derive(Debug)]
struct Turns {
    every: Duration,
    retry: Duration,
    /// End of this process's own last refresh, even if that could not be stored.
    refreshed: Option<Instant>,
    /// Like `refreshed`, of one that failed since.
    failed: Option<Instant>,
}

impl Turns {
    fn new(config: &StandbyConfig) -> Self {
        Self {
            every: Duration::from_secs(config.refresh_every_s),
            retry: Duration::from_secs(config.retry_s),
            refreshed: None,
            failed: None,
        }
    }

    /// # Errors
    /// The state of the standby cannot be read.
    fn next(&self, standby: &Standby) -> Result<Next, String> {
        let state = standby.state()?;
        let up = state.current.as_ref().is_some_and(|current| standby.slot(current.slot).is_up());
        let now = clock::unix_ms();
        let since = |at: Option<Instant>| at.map(|at| at.elapsed());
        let served = ago(since(self.refreshed), state.current.as_ref().map(|current| current.since_unix_ms), now);
        let failed = ago(since(self.failed), state.failure.as_ref().map(|failure| failure.unix_ms), now);
        Ok(next(up, served, failed, self.every, self.retry))
    }

    /// Does `next`, then pauses.
    async fn take(&mut self, standby: &Standby, next: Next) {
        if next == Next::Refresh {
            // Logged at the failure; the state has it.
            match standby.refresh(&Which::New).await {
                Ok(_) => (self.refreshed, self.failed) = (Some(Instant::now()), None),
                Err(_) => self.failed = Some(Instant::now()),
            }
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Listens for health checks. A standby whose PostgreSQL already serves refreshes it also while it cannot listen, and
/// tries again. So does one whose port is taken: any user of the host can take it while no standby has it.
async fn listener(listen: SocketAddr, serving: bool) -> Result<Bounded, String> {
    match TcpListener::bind(listen).await {
        Ok(listener) => Ok(Bounded::new(listener)),
        Err(error) if serving || error.kind() == io::ErrorKind::AddrInUse => Ok(Bounded::later(listen)),
        Err(error) => Err(format!("http.listen {listen}: {error}")),
    }
}

/// TLS of the HTTP door, if it has any (STANDBY-U11). The files are those towards the gateways.
fn http_tls(config: &StandbyConfig) -> Result<Option<Tls>, String> {
    if config.http_tls() == HttpTls::Off {
        if config.tls.flags().next().is_some() {
            tracing::warn!(
                listen = %config.http.listen,
                "http.tls is off: everybody who reaches this address can read the names of set, snapshots and gateway"
            );
        }
        return Ok(None);
    }
    config.tls.load(Role::Admin).map_err(|error| format!("[tls]: {error}"))
}

/// Certificates that are revoked are not taken at the door either (REVOKE-V3).
fn follow_revoked(config: &StandbyConfig, tls: Option<&Tls>) -> Result<Option<JoinHandle<Infallible>>, String> {
    let dialer = Dialer::from(tls);
    Ok(Gateways::new(&config.set, &config.gateways, &dialer)?.follow_revoked(&dialer, &config.dir))
}

/// Checks the standby at intervals, for ever.
async fn look(standby: Arc<Standby>, looks: watch::Sender<Arc<Look>>) {
    loop {
        match standby.view().await {
            Ok(view) => drop(looks.send(Arc::new(Look { view, at: clock::now() }))),
            Err(why) => tracing::error!(why, "the state of the standby cannot be read"),
        }
        tokio::time::sleep(LOOK_INTERVAL).await;
    }
}

/// Runs until `stop`, then takes everything down.
///
/// # Errors
/// Another one runs, or a required resource is not available.
pub async fn run(config: StandbyConfig, stop: impl Future<Output = ()>) -> Result<(), String> {
    let standby = Arc::new(Standby::new(&config)?);
    let _lock = lock(&config.run_dir, RUN_LOCK)?;
    let listen = config.http.listen;
    let view = standby.view().await?;
    let tls = http_tls(&config)?;
    // A new certificate needs no new standby.
    let following = tls.clone().map(|tls| tokio::spawn(async move { tls.follow().await }));
    // Before the door opens (REVOKE-V4).
    let revoked = follow_revoked(&config, tls.as_ref())?;
    let listener = listener(listen, view.serving).await?.secured(tls.as_ref().map(Tls::acceptor));
    let (looks, seen) = watch::channel(Arc::new(Look { view, at: clock::now() }));
    let serving = tokio::spawn(http::serve(listener, Door { looks: seen, tls: config.http_tls(), own: tls }));
    // In a task of its own: checks continue while a refresh is under way.
    let looking = tokio::spawn(look(standby.clone(), looks));
    tokio::pin!(stop);
    let mut turns = Turns::new(&config);
    let ended = loop {
        let next = match turns.next(&standby) {
            Ok(next) => next,
            // Parts that run are taken down all the same.
            Err(why) => break Err(why),
        };
        tokio::select! {
            () = &mut stop => break Ok(()),
            () = turns.take(&standby, next) => {}
        }
        if serving.is_finished() {
            break Err(format!("{listen}: no longer answers"));
        }
    };
    looking.abort();
    serving.abort();
    for following in [following, revoked].into_iter().flatten() {
        following.abort();
    }
    // An interrupted refresh may have left parts in either of the two slots.
    let down = standby.stop().await;
    ended.and(down)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_refreshes_when_it_is_time_or_nothing_serves_and_does_not_insist() {
        let (every, retry) = (Duration::from_secs(900), Duration::from_secs(30));
        let next = |up, served_s: Option<u64>, failed_s: Option<u64>| {
            next(up, served_s.map(Duration::from_secs), failed_s.map(Duration::from_secs), every, retry)
        };
        assert_eq!(next(false, None, None), Next::Refresh, "the first one");
        assert_eq!(next(true, Some(899), None), Next::Wait);
        assert_eq!(next(true, Some(900), None), Next::Refresh);
        assert_eq!(next(false, Some(1), None), Next::Refresh, "PostgreSQL or its copy has ended");
        assert_eq!(next(false, Some(1), Some(29)), Next::Wait);
        assert_eq!(next(true, Some(900), Some(0)), Next::Wait);
        assert_eq!(next(true, Some(900), Some(30)), Next::Refresh);
        assert_eq!(next(true, Some(5), Some(30)), Next::Wait, "a refresh by hand that failed");
    }

    /// A PostgreSQL that serves is not left to age because nothing can listen, nor any standby because its port is
    /// taken.
    #[tokio::test]
    async fn a_port_that_is_taken_ends_no_standby() {
        let taken = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = taken.local_addr().unwrap();
        // Without an interface nobody can listen there.
        let nowhere = "[fe80::1]:8008".parse().unwrap();
        let refused = listener(nowhere, false).await.unwrap_err();
        assert!(refused.starts_with("http.listen [fe80::1]:8008: "), "{refused}");
        assert!(listener(nowhere, true).await.is_ok());
        let mut late = listener(address, false).await.unwrap();
        drop(taken);
        let asks = async {
            loop {
                match tokio::net::TcpStream::connect(address).await {
                    Ok(socket) => return socket,
                    Err(_) => tokio::time::sleep(Duration::from_millis(10)).await,
                }
            }
        };
        let both = async { tokio::join!(axum::serve::Listener::accept(&mut late), asks) };
        tokio::time::timeout(Duration::from_secs(30), both).await.expect("it listens once it can");
    }

    #[test]
    fn a_clock_that_was_set_decides_nothing() {
        let seen = Duration::from_secs(7);
        assert_eq!(ago(Some(seen), Some(1), 1_000_000), Some(seen));
        assert_eq!(ago(None, Some(4_000), 9_000), Some(Duration::from_secs(5)));
        assert_eq!(ago(None, Some(9_001), 9_000), None, "to come: none");
        assert_eq!(ago(None, None, 9_000), None);
    }
}
