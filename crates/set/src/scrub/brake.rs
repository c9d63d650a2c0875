//! Limits the speed of the scrub, and makes it wait for other work.

use crate::live::Now;
use crate::mapping::{Mapping, in_trouble};
use crate::pace::JournalPace;
use crate::sequencer::{Admission, Pace};
use crate::server::SetServer;
use crate::verify::Throttle;
use futures_util::future::BoxFuture;
use holdfast_host::unix_ms;
use holdfast_types::sync::LockExt;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;
use tokio::time::Instant;

/// Time over which the entries of the log are counted.
const BUSY_SPAN: Duration = Duration::from_secs(1);
/// Entries per second from which a set counts as busy.
const BUSY_ENTRIES: u64 = 100;
/// Maximum wait of the scrub in a busy set for each piece of up to 4 MiB: a database that never rests is scrubbed too.
const BUSY_WAIT_MAX: Duration = Duration::from_secs(20);
/// Time between two checks whether the reason to wait has ended.
const WAIT_LOOK: Duration = Duration::from_millis(250);
/// Longest wait for bytes that were read without a look at the limit.
const PAY_STEP: Duration = Duration::from_secs(1);

/// Limits the bytes per second of the scrub, and pauses it for other work.
pub(super) struct Brake {
    server: Arc<SetServer>,
    mapping: Arc<Mapping>,
    /// With several stores, the one whose copies are read.
    pub(super) copy: AtomicUsize,
    pace: Arc<JournalPace>,
    /// Bytes per second.
    rate: AtomicU64,
    /// Where the rate comes from while it can change.
    now: OnceLock<Now<u64>>,
    /// Time of the last check of the log, its index then, and whether it was moving fast.
    seen: Mutex<(Instant, u64, bool)>,
}

impl Brake {
    /// Limits to `rate` bytes per second.
    pub(super) fn new(server: Arc<SetServer>, mapping: Arc<Mapping>, pace: Arc<JournalPace>, rate: u64) -> Self {
        let seen = Mutex::new((Instant::now(), 0, false));
        let (copy, rate, now) = (AtomicUsize::new(0), AtomicU64::new(rate), OnceLock::new());
        Self { server, mapping, copy, pace, rate, now, seen }
    }

    /// Limits to `rate` bytes per second from now on; 0 pauses.
    pub(super) fn limit(&self, rate: u64) {
        self.rate.store(rate, Ordering::Relaxed);
    }

    /// Limits to what `now` tells, also while a piece waits.
    pub(super) fn follow(&self, now: Now<u64>) {
        let _ = self.now.set(now);
    }

    /// Waits as long as `bytes` take, or the scrub is paused. In steps: a limit that was too low by mistake may mean
    /// weeks, and is not waited for once it is mended.
    async fn pay(&self, bytes: u64) {
        let begun = Instant::now();
        loop {
            if let Some(now) = self.now.get() {
                let rate = now();
                self.limit(rate);
                self.server.scrub.shown.locked().bytes_per_second = rate;
            }
            let left = match self.rate.load(Ordering::Relaxed) {
                0 => PAY_STEP,
                rate => Duration::from_secs_f64(bytes as f64 / rate as f64).saturating_sub(begun.elapsed()),
            };
            if left.is_zero() || self.server.leading_ready().is_none() {
                return;
            }
            tokio::time::sleep(left.min(PAY_STEP)).await;
        }
    }

    fn busy(&self) -> bool {
        let index = self.server.group.applied().index.0;
        let mut seen = self.seen.locked();
        let elapsed = seen.0.elapsed();
        if elapsed >= BUSY_SPAN {
            let entries = index.saturating_sub(seen.1);
            let busy = seen.1 != 0 && entries as f64 / elapsed.as_secs_f64() > BUSY_ENTRIES as f64;
            *seen = (Instant::now(), index, busy);
        }
        seen.2
    }

    /// Reason to wait now, and whether to wait without a limit.
    fn reason(&self) -> Option<(&'static str, bool)> {
        let now = unix_ms();
        match self.mapping.store.several() {
            None if in_trouble(&self.server.health.standing(now), now) => {
                return Some(("the store is in trouble", true));
            }
            // With a limit: the next turn reads another store's copies.
            Some(several) => {
                let standings = several.standings(now);
                let read = standings.get(self.copy.load(Ordering::Relaxed));
                if read.is_some_and(|one| in_trouble(&one.standing, now)) {
                    return Some(("the store is in trouble", false));
                }
            }
            None => {}
        }
        if self.pace.pace() != Pace::Go {
            return Some(("the journal fills", true));
        }
        self.busy().then_some(("the set is busy", false))
    }
}

impl Throttle for Brake {
    fn spent(&self, bytes: u64) -> BoxFuture<'_, ()> {
        Box::pin(async move {
            self.pay(bytes).await;
            let begun = Instant::now();
            while let Some((why, always)) = self.reason() {
                if self.server.leading_ready().is_none() || (!always && begun.elapsed() >= BUSY_WAIT_MAX) {
                    break;
                }
                self.server.scrub.shown.locked().waits = why;
                tokio::time::sleep(WAIT_LOOK).await;
            }
            self.server.scrub.shown.locked().waits = "";
        })
    }
}
