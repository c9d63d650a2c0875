//! Limits of a volume and of its set: shared by all their connections, and kept where a request would begin.
//!
//! A request that has to wait holds nothing of the gateway but its connection's turn: one per connection waits, before
//! its bytes are charged (CONN-C9). When it comes first in its connection, it takes its place in the limit of its
//! volume, so the connections of a volume are served in order. Once that limit lets it pass, it takes its place in the
//! limit of the set. It gives its places back if its connection ends before it begins.

use super::bucket::Bucket;
use holdfast_types::limits::REQUEST_BYTES_MAX;
use holdfast_types::sync::LockExt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::time::{Instant, Sleep, sleep_until};

/// A waiting connection looks this often for the end of its client's stream (CONN-C7), and for other limits.
const LOOK: Duration = Duration::from_millis(250);
/// No request waits longer for a limit.
const WAIT_MAX: Duration = Duration::from_secs(600);

/// What clients may ask for. 0: not limited.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rates {
    /// Requests per second.
    pub requests: u64,
    /// Bytes per second.
    pub bytes: u64,
    /// As much as the rates give in this time can be saved up.
    pub burst: Duration,
}

/// One limit. Nothing is limited at first.
#[derive(Debug)]
pub struct Throttle {
    origin: Instant,
    limits: AtomicBool,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    rates: Rates,
    requests: Bucket,
    bytes: Bucket,
    /// How often the rates were changed.
    changes: u64,
}

/// A request's place in a limit.
#[derive(Clone, Copy, Debug)]
struct Taken {
    begins: Instant,
    /// Of the limit when it was taken.
    changes: u64,
}

impl Default for Throttle {
    fn default() -> Self {
        Self { origin: Instant::now(), limits: AtomicBool::new(false), inner: Mutex::default() }
    }
}

impl Throttle {
    /// Limits requests that begin from now on, and within a quarter of a second those that wait. To repeat the same
    /// rates changes nothing.
    pub fn set(&self, rates: Rates) {
        let mut inner = self.inner.locked();
        if inner.rates == rates {
            return;
        }
        let bucket = |rate| Bucket::new(rate, rates.burst);
        *inner =
            Inner { rates, requests: bucket(rates.requests), bytes: bucket(rates.bytes), changes: inner.changes + 1 };
        self.limits.store(rates.requests > 0 || rates.bytes > 0, Ordering::Release);
    }

    /// The present rates.
    pub fn rates(&self) -> Rates {
        self.inner.locked().rates
    }

    fn limits(&self) -> bool {
        self.limits.load(Ordering::Acquire)
    }

    /// Takes a place for a request of so many bytes, unless `earlier` is one under the present rates.
    fn take(&self, now: Instant, bytes: u64, earlier: Option<Taken>) -> Taken {
        let mut inner = self.inner.locked();
        let changes = inner.changes;
        if let Some(taken) = earlier.filter(|taken| taken.changes == changes) {
            return taken;
        }
        let at = now.saturating_duration_since(self.origin);
        let begins = inner.requests.take(at, 1).max(inner.bytes.take(at, bytes));
        Taken { begins: now + begins.saturating_sub(at).min(WAIT_MAX), changes }
    }

    /// The request of that place does not begin.
    fn give_back(&self, bytes: u64, taken: Taken) {
        let mut inner = self.inner.locked();
        if inner.changes == taken.changes {
            inner.requests.give_back(1);
            inner.bytes.give_back(bytes);
        }
    }
}

/// How often requests had to wait for a limit, and for how long.
#[derive(Debug, Default)]
pub struct Waited {
    requests: AtomicU64,
    micros: AtomicU64,
}

impl Waited {
    /// Requests that have waited and begun since the process started.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    /// The sum of their waits.
    pub fn time(&self) -> Duration {
        Duration::from_micros(self.micros.load(Ordering::Relaxed))
    }

    fn note(&self, wait: Duration) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.micros.fetch_add(u64::try_from(wait.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }
}

/// The limits that a connection is held to.
#[derive(Clone, Debug, Default)]
pub struct Throttles {
    /// Of its volume.
    pub volume: Arc<Throttle>,
    /// Of all volumes of its set together.
    pub set: Arc<Throttle>,
    /// Counts the waits for both.
    pub waited: Arc<Waited>,
}

impl Throttles {
    fn both(&self) -> [&Throttle; 2] {
        [&self.volume, &self.set]
    }
}

/// The limits of one connection, and the request that waits for them.
pub(super) struct Throttled {
    throttles: Throttles,
    waits: Option<Wait>,
    alarm: Pin<Box<Sleep>>,
}

struct Wait {
    since: Instant,
    bytes: u64,
    /// Its places in the limits of the volume and of the set. `None`: it waits for the other one first.
    taken: [Option<Taken>; 2],
}

impl Throttled {
    pub(super) fn new(throttles: Throttles) -> Self {
        Self { throttles, waits: None, alarm: Box::pin(sleep_until(Instant::now())) }
    }

    /// Whether the next request may begin, which reads or writes so many bytes; `None`: it needs nothing that is
    /// limited. Pending: `cx` is woken when it may, and before that each [`LOOK`]. Ask again with the same number until
    /// it is ready.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>, bytes: Option<u64>) -> Poll<()> {
        let Some(bytes) = bytes else { return Poll::Ready(()) };
        if self.waits.is_none() && !self.throttles.both().iter().any(|throttle| throttle.limits()) {
            return Poll::Ready(());
        }
        let now = Instant::now();
        let Some(begins) = self.waits_until(now, bytes) else { return Poll::Ready(()) };
        let deadline = self.alarm.deadline();
        if deadline <= now || deadline > begins {
            self.alarm.as_mut().reset(begins.min(now + LOOK));
        }
        if self.alarm.as_mut().poll(cx).is_ready() {
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }

    /// When the next request may begin, or take its place in the next limit; `None`: it begins now.
    fn waits_until(&mut self, now: Instant, bytes: u64) -> Option<Instant> {
        let bytes = bytes.min(u64::from(REQUEST_BYTES_MAX));
        let (since, mut taken) = self.waits.take().map_or((now, [None; 2]), |wait| (wait.since, wait.taken));
        // One after the other: what waits for its volume must not take a share of the set from other volumes meanwhile.
        for (at, throttle) in self.throttles.both().into_iter().enumerate() {
            let place = throttle.take(now, bytes, taken[at]);
            taken[at] = Some(place);
            if place.begins > now {
                holdfast_reached::reached!("throttle: a request waits for a limit");
                self.waits = Some(Wait { since, bytes, taken });
                return Some(place.begins);
            }
        }
        if since < now {
            self.throttles.waited.note(now - since);
        }
        None
    }
}

impl Drop for Throttled {
    fn drop(&mut self) {
        if let Some(Wait { bytes, taken, .. }) = self.waits.take() {
            holdfast_reached::reached!("throttle: a connection ends while its request waits for a limit");
            for (throttle, taken) in self.throttles.both().into_iter().zip(taken) {
                let Some(taken) = taken else { continue };
                throttle.give_back(bytes, taken);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(requests: u64, bytes: u64) -> Rates {
        Rates { requests, bytes, burst: Duration::from_millis(100) }
    }

    /// A connection under these limits, with moments in milliseconds.
    struct One(Throttled, Instant);

    impl One {
        fn new(throttles: &Throttles, origin: Instant) -> Self {
            Self(Throttled::new(throttles.clone()), origin)
        }

        fn may_begin(&mut self, at_ms: u64, bytes: u64) -> bool {
            self.0.waits_until(self.1 + Duration::from_millis(at_ms), bytes).is_none()
        }
    }

    #[tokio::test]
    async fn requests_begin_at_the_rate_in_order_and_both_limits_count() {
        let (throttles, origin) = (Throttles::default(), Instant::now());
        let (mut first, mut second) = (One::new(&throttles, origin), One::new(&throttles, origin));
        assert!((0..1000).all(|_| first.may_begin(0, 1 << 20)), "nothing is limited at first");
        throttles.volume.set(rates(100, 0));
        assert_eq!((0..12).filter(|_| first.may_begin(0, 4096)).count(), 11, "a burst, and one more");
        assert!(!second.may_begin(0, 4096));
        assert!(!second.may_begin(11, 4096), "the other one came first");
        assert!(first.may_begin(11, 4096));
        assert!(second.may_begin(21, 4096));
        throttles.set.set(rates(0, 1 << 20));
        assert!(first.may_begin(10_000, 32 << 20), "a request of any size begins");
        assert!(!second.may_begin(10_000, 1), "and is paid for afterwards");
        assert_eq!(throttles.waited.requests(), 2);
        assert_eq!(throttles.waited.time(), Duration::from_millis(32));
    }

    #[tokio::test]
    async fn a_request_that_waits_gets_other_limits_and_gives_its_place_back_with_its_connection() {
        let (throttles, origin) = (Throttles::default(), Instant::now());
        throttles.set.set(rates(0, 1 << 20));
        throttles.volume.set(rates(1000, 0));
        let (mut first, mut second) = (One::new(&throttles, origin), One::new(&throttles, origin));
        assert!(first.may_begin(0, 32 << 20));
        assert!(!first.may_begin(0, 32 << 20));
        // A client that gives up and comes again does not push its own turn away.
        for _ in 0..100 {
            assert!(!One::new(&throttles, origin).may_begin(0, 32 << 20));
        }
        assert!(!second.may_begin(0, 1 << 20));
        assert!(first.may_begin(32_000, 32 << 20));
        assert!(second.may_begin(64_000, 1 << 20), "nobody else is before it");
        assert!(!second.may_begin(64_000, 1 << 20));
        throttles.set.set(Rates::default());
        assert!(second.may_begin(64_000, 1 << 20), "the limit is gone, and with it the wait");
        throttles.set.set(rates(0, 2 << 20));
        assert!(second.may_begin(70_000, 1 << 20));
        assert!(!first.may_begin(70_000, 1 << 20));
        throttles.set.set(rates(0, 2 << 20));
        assert!(!first.may_begin(70_000, 1 << 20), "the same rates again change nothing");
        assert_eq!(throttles.set.rates(), rates(0, 2 << 20));
    }

    /// Else the requests of a slow volume, one for each of its connections, would be paid for by the others of its set
    /// long before they begin.
    #[tokio::test]
    async fn what_waits_for_its_volume_takes_no_share_of_the_set() {
        let (slow, origin) = (Throttles::default(), Instant::now());
        let mut other = One::new(&Throttles { volume: Arc::default(), ..slow.clone() }, origin);
        slow.volume.set(rates(0, 1 << 20));
        slow.set.set(rates(0, 8 << 20));
        let mut waiting: Vec<One> = (0..8).map(|_| One::new(&slow, origin)).collect();
        assert!(waiting[0].may_begin(0, 32 << 20));
        assert!(waiting.iter_mut().all(|one| !one.may_begin(0, 32 << 20)));
        // Four seconds of the set's limit have been taken, by the one that has begun.
        assert!(other.may_begin(4_000, 1 << 20), "it waits for requests that have not begun");
        assert!(waiting[0].may_begin(32_000, 32 << 20), "its volume lets it pass, and the set as well");
        assert!(!other.may_begin(32_000, 1 << 20), "now it has taken its share of the set");
        assert!(!waiting[1].may_begin(32_000, 32 << 20));
        assert!(waiting[1].may_begin(64_000, 32 << 20), "in its turn");
    }

    #[tokio::test]
    async fn who_waits_is_woken_and_what_needs_nothing_does_not_wait() {
        let throttles = Throttles::default();
        throttles.volume.set(rates(200, 0));
        let mut one = Throttled::new(throttles);
        let begun = Instant::now();
        for _ in 0..60 {
            std::future::poll_fn(|cx| one.poll(cx, Some(0))).await;
        }
        // A burst is 20 requests, and one more begins with it.
        assert!(begun.elapsed() >= Duration::from_millis(190), "{:?}", begun.elapsed());
        std::future::poll_fn(|cx| one.poll(cx, None)).await;
    }
}
