//! Connections to one peer that are being made. All groups ask for one each when a peer comes back or stays away: their
//! number must not be that of the dials.

use holdfast_tls::{Connection, Dialer};
use holdfast_types::sync::LockExt;
use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::Semaphore;
use tokio::time::Instant;

/// Dials to one peer at a time. Over a long way with TLS a thousand groups need many at once to come back soon.
const AT_ONCE: usize = 8;
/// A dial that failed speaks for those that come within this time: openraft of each group tries again by itself.
const FAILED_FOR: Duration = Duration::from_millis(100);

/// Those to one peer.
pub(crate) struct Dials {
    places: Arc<Semaphore>,
    failed: Mutex<Option<Failed>>,
}

struct Failed {
    at: Instant,
    addr: String,
    kind: io::ErrorKind,
    why: String,
}

impl Default for Dials {
    fn default() -> Self {
        Self { places: Arc::new(Semaphore::new(AT_ONCE)), failed: Mutex::default() }
    }
}

impl Dials {
    /// A connection to `addr`; below TLS, and without the lookup of its name, it takes at most `limit`. Waits while
    /// other dials are under way.
    ///
    /// # Errors
    /// It cannot be made; one that ended just before could not.
    pub(crate) async fn dial(self: Arc<Self>, dialer: &Dialer, addr: &str, limit: Duration) -> io::Result<Connection> {
        let place = self.places.clone().acquire_owned().await.map_err(io::Error::other)?;
        if let Some(failed) = &*self.failed.locked()
            && failed.addr == addr
            && failed.at.elapsed() < FAILED_FOR
        {
            return Err(io::Error::new(failed.kind, failed.why.clone()));
        }
        let (dialer, addr) = (dialer.clone(), addr.to_string());
        // In a task: if the caller gives up, the lookup of the name still holds a thread, and so a place.
        let dialling = tokio::spawn(async move {
            let dialled = dialer.stream(&addr, limit).await;
            *self.failed.locked() =
                dialled.as_ref().err().map(|e| Failed { at: Instant::now(), addr, kind: e.kind(), why: e.to_string() });
            drop(place);
            dialled
        });
        dialling.await.map_err(io::Error::other)?
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use futures_util::future::join_all;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use tonic::transport::Endpoint;

    /// What dials, and how often it did. It goes on when there is a permit.
    fn counting(gate: &Arc<Semaphore>, works: bool) -> (Dialer, Arc<AtomicUsize>) {
        let (count, gate) = (Arc::new(AtomicUsize::new(0)), gate.clone());
        let counted = count.clone();
        let dial: holdfast_tls::Dial = Arc::new(move |_: &str| -> holdfast_tls::Dialling {
            counted.fetch_add(1, Ordering::SeqCst);
            let gate = gate.clone();
            Box::pin(async move {
                drop(gate.acquire().await);
                let (near, _) = tokio::io::duplex(1);
                let connection: Connection = Box::new(near);
                if works { Ok(connection) } else { Err(io::Error::from(io::ErrorKind::ConnectionRefused)) }
            })
        });
        (Dialer::over(Arc::new(|endpoint: &Endpoint| endpoint.connect_lazy()), dial), count)
    }

    const LIMIT: Duration = Duration::from_secs(20);

    #[tokio::test]
    async fn a_peer_is_not_dialled_once_for_each_group() {
        let gate = Arc::new(Semaphore::new(0));
        let (dialer, count) = counting(&gate, false);
        let dials = Arc::new(Dials::default());
        let mut groups = Box::pin(join_all((0..1000).map(|_| dials.clone().dial(&dialer, "peer:1", LIMIT))));
        for _ in 0..100 {
            assert!(futures_util::poll!(&mut groups).is_pending());
            tokio::task::yield_now().await;
        }
        assert_eq!(count.load(Ordering::SeqCst), AT_ONCE, "at the same time");
        // Those whose callers are gone still count: a lookup goes on.
        drop(groups);
        let mut more = Box::pin(dials.clone().dial(&dialer, "peer:1", LIMIT));
        for _ in 0..100 {
            assert!(futures_util::poll!(&mut more).is_pending());
            tokio::task::yield_now().await;
        }
        assert_eq!(count.load(Ordering::SeqCst), AT_ONCE, "nobody waits for those");
        gate.add_permits(1);
        assert!(more.await.is_err());
    }

    #[tokio::test]
    async fn a_failure_speaks_for_those_that_wait_and_a_connection_for_none() {
        let gate = Arc::new(Semaphore::new(1));
        let (dialer, count) = counting(&gate, true);
        let dials = Arc::new(Dials::default());
        for group in 1..=10 {
            assert!(dials.clone().dial(&dialer, "peer:1", LIMIT).await.is_ok());
            assert_eq!(count.load(Ordering::SeqCst), group);
        }
        let failed = |at: Instant| {
            let (addr, why) = ("peer:1".to_string(), "refused".to_string());
            Some(Failed { at, addr, kind: io::ErrorKind::ConnectionRefused, why })
        };
        // However slow this test is.
        *dials.failed.locked() = failed(Instant::now() + LIMIT);
        let why = dials.clone().dial(&dialer, "peer:1", LIMIT).await.err().map(|e| e.to_string());
        assert_eq!((why.as_deref(), count.load(Ordering::SeqCst)), (Some("refused"), 10));
        assert!(dials.clone().dial(&dialer, "peer:2", LIMIT).await.is_ok(), "it has moved");
        *dials.failed.locked() = failed(Instant::now() - FAILED_FOR);
        assert!(dials.dial(&dialer, "peer:1", LIMIT).await.is_ok(), "long ago");
    }
}
