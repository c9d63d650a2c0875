//! Limits on bytes and requests in flight. Each connection counts its own without a lock, and draws from the gateway's
//! pool only beyond its guaranteed share (floor).
//!
//! BUDGET-P1  A request takes its place last, after everything else is charged. So a request with a place runs: it
//!     never waits for another place or for bytes, and its place is returned when an operation ends that waits for
//!     nothing here.
//! BUDGET-P2  Unsent replies that no charge covers (replies to requests without bytes, and headers of others) are
//!     counted by their unsent bytes. At the limit, the connection begins nothing more until its client has read some.
//!     Only the requests that already run add their replies, a few bytes each.

use super::limits::FrontLimits;
use std::collections::VecDeque;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One permit of the pool, in bytes. Permits are counted in 32 bits.
const UNIT_BYTES: u64 = 4096;

/// The pool that all connections share beyond their floors.
#[derive(Clone, Debug)]
pub(super) struct Pool {
    permits: Arc<Semaphore>,
    units: u32,
    places: Arc<Semaphore>,
}

impl Pool {
    pub(super) fn new(limits: &FrontLimits) -> Self {
        let units = u32::try_from(limits.shared_bytes() / UNIT_BYTES).unwrap_or(u32::MAX);
        let places = limits.shared_requests().min(Semaphore::MAX_PERMITS);
        Self { permits: Arc::new(Semaphore::new(units as usize)), units, places: Arc::new(Semaphore::new(places)) }
    }

    /// Bytes in use now.
    pub(super) fn drawn_bytes(&self) -> u64 {
        (u64::from(self.units) - self.permits.available_permits() as u64) * UNIT_BYTES
    }
}

/// The bytes of one request. Returned to the pool when dropped, and to the connection by [`Ledger::settle`].
#[derive(Debug, Default)]
pub(super) struct Charge {
    bytes: u64,
    #[allow(dead_code, reason = "held for its drop, which gives it back")]
    shared: Option<OwnedSemaphorePermit>,
}

/// The place of one running request. Returned to the pool when dropped.
#[derive(Debug)]
pub(super) struct Place {
    #[allow(dead_code, reason = "held for its drop, which gives it back")]
    shared: Option<OwnedSemaphorePermit>,
}

/// An encoded reply, and the charge that covers it.
struct Unsent {
    /// Its start and end among the bytes of all replies.
    from: u64,
    upto: u64,
    charge: Charge,
}

impl Unsent {
    /// Its unsent bytes that the charge covers, if `sent` bytes in total were sent.
    fn covered(&self, sent: u64) -> u64 {
        (self.upto - sent.clamp(self.from, self.upto)).min(self.charge.bytes)
    }
}

type Acquire = Pin<Box<dyn Future<Output = Option<OwnedSemaphorePermit>> + Send>>;

/// What one connection holds.
pub(super) struct Ledger {
    pool: Pool,
    floor: u64,
    bound: u64,
    used: u64,
    waiting: Option<(u64, Acquire)>,
    floor_requests: usize,
    waiting_place: Option<Acquire>,
    /// Replies with a charge, oldest first. Their charges are held until they are sent.
    unsent: VecDeque<Unsent>,
    /// The bytes that these charges cover before any of their replies is sent.
    covered: u64,
    unpaid_max: u64,
}

impl Ledger {
    pub(super) fn new(limits: &FrontLimits, pool: Pool) -> Self {
        Self {
            pool,
            floor: limits.floor_bytes(),
            bound: limits.connection_bytes,
            used: 0,
            waiting: None,
            floor_requests: limits.floor_requests(),
            waiting_place: None,
            unsent: VecDeque::new(),
            covered: 0,
            unpaid_max: limits.unpaid_bytes(),
        }
    }

    /// Charges `bytes`, now or later. Pending: over the connection's bound (then one of its requests must end first),
    /// or over the pool (then `cx` is woken). Call it again with the same number until it is ready.
    pub(super) fn poll_charge(&mut self, cx: &mut Context<'_>, bytes: u64) -> Poll<Charge> {
        // A lone request always passes, even if its charge exceeds the bound.
        if self.used > 0 && self.used.saturating_add(bytes) > self.bound {
            self.waiting = None;
            return Poll::Pending;
        }
        if self.used.saturating_add(bytes) <= self.floor {
            self.waiting = None;
            self.used += bytes;
            return Poll::Ready(Charge { bytes, shared: None });
        }
        if self.waiting.as_ref().is_none_or(|(waited, _)| *waited != bytes) {
            let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(self.pool.units);
            let permits = self.pool.permits.clone();
            if let Ok(permit) = permits.clone().try_acquire_many_owned(units) {
                self.waiting = None;
                self.used += bytes;
                return Poll::Ready(Charge { bytes, shared: Some(permit) });
            }
            let acquire = async move { permits.acquire_many_owned(units).await.ok() };
            self.waiting = Some((bytes, Box::pin(acquire)));
        }
        let Some((_, acquire)) = &mut self.waiting else { return Poll::Pending };
        let shared = ready!(acquire.as_mut().poll(cx));
        self.waiting = None;
        self.used += bytes;
        Poll::Ready(Charge { bytes, shared })
    }

    /// Charges `bytes` now or not at all, without waiting for the pool.
    pub(super) fn try_charge(&mut self, bytes: u64) -> Option<Charge> {
        let used = self.used.saturating_add(bytes);
        if self.used > 0 && used > self.bound {
            return None;
        }
        let mut shared = None;
        if used > self.floor {
            let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX).min(self.pool.units);
            shared = Some(self.pool.permits.clone().try_acquire_many_owned(units).ok()?);
        }
        self.used = used;
        Some(Charge { bytes, shared })
    }

    /// A place for one more request of a connection that runs `running`, now or later. Pending: over the connection's
    /// floor, and no place is free; `cx` is woken for the next one. Call it again until it is ready, or give up by
    /// [`Ledger::want_no_place`].
    pub(super) fn poll_place(&mut self, cx: &mut Context<'_>, running: usize) -> Poll<Place> {
        if let Some(place) = self.try_place(running) {
            self.waiting_place = None;
            return Poll::Ready(place);
        }
        let places = self.pool.places.clone();
        let waiting =
            self.waiting_place.get_or_insert_with(|| Box::pin(async move { places.acquire_owned().await.ok() }));
        let shared = ready!(waiting.as_mut().poll(cx));
        self.waiting_place = None;
        Poll::Ready(Place { shared })
    }

    /// A place now or not at all, without waiting.
    pub(super) fn try_place(&self, running: usize) -> Option<Place> {
        if running < self.floor_requests {
            return Some(Place { shared: None });
        }
        // If another connection waits, none is free: returned places go to the waiting ones.
        self.pool.places.clone().try_acquire_owned().ok().map(|permit| Place { shared: Some(permit) })
    }

    /// Nothing is to be begun now: a place that became free goes to another connection (BUDGET-P1).
    pub(super) fn want_no_place(&mut self) {
        self.waiting_place = None;
    }

    /// A request is over and holds nothing any more.
    pub(super) fn settle(&mut self, charge: Charge) {
        self.used -= charge.bytes;
    }

    /// A request's reply is encoded as the last one, in the bytes `from..upto` of all replies. The request is over once
    /// these are sent.
    pub(super) fn settle_at(&mut self, from: u64, upto: u64, charge: Charge) {
        if charge.bytes > 0 {
            let reply = Unsent { from, upto, charge };
            self.covered += reply.covered(from);
            self.unsent.push_back(reply);
        }
    }

    /// `total` bytes have been sent so far.
    pub(super) fn sent(&mut self, total: u64) {
        while self.unsent.front().is_some_and(|reply| reply.upto <= total) {
            if let Some(reply) = self.unsent.pop_front() {
                self.covered -= reply.covered(reply.from);
                self.settle(reply.charge);
            }
        }
    }

    /// BUDGET-P2: whether a request may begin, if `queued` bytes in total were encoded and `sent` of them sent.
    pub(super) fn may_answer(&self, sent: u64, queued: u64) -> bool {
        self.unpaid(sent, queued) < self.unpaid_max
    }

    /// Unsent bytes that no charge covers.
    fn unpaid(&self, sent: u64, queued: u64) -> u64 {
        // Replies are sent in order, so only the first one can be partly sent.
        let uncovered = self.unsent.front().map_or(0, |first| first.covered(first.from) - first.covered(sent));
        queued - sent - (self.covered - uncovered)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn limits() -> FrontLimits {
        FrontLimits { connections: 4, connection_bytes: 40 << 20, gateway_bytes: 72 << 20, ..FrontLimits::default() }
    }

    fn charge(ledger: &mut Ledger, bytes: u64) -> Option<Charge> {
        match ledger.poll_charge(&mut Context::from_waker(Waker::noop()), bytes) {
            Poll::Ready(charge) => Some(charge),
            Poll::Pending => None,
        }
    }

    #[test]
    fn a_flood_leaves_every_connection_its_floor() {
        let limits = limits();
        let pool = Pool::new(&limits);
        let (mut first, mut second) = (Ledger::new(&limits, pool.clone()), Ledger::new(&limits, pool.clone()));
        let mut third = Ledger::new(&limits, pool.clone());
        let floor = limits.floor_bytes();
        let held = (charge(&mut first, 36 << 20).unwrap(), charge(&mut second, 30 << 20).unwrap());
        assert!(charge(&mut first, 5 << 20).is_none(), "over its own bound");
        assert!(charge(&mut third, 4 << 20).is_none(), "over the pool");
        let kept = charge(&mut third, floor).unwrap();
        assert!(kept.shared.is_none());
        assert!(charge(&mut third, 4 << 20).is_none());
        assert!(third.try_charge(4 << 20).is_none() && first.try_charge(5 << 20).is_none());
        first.settle(held.0);
        assert!(charge(&mut third, 4 << 20).is_some(), "the pool has room again");
        second.settle(held.1);
        third.settle(kept);
    }

    #[test]
    fn what_is_dropped_goes_back() {
        let limits = limits();
        let pool = Pool::new(&limits);
        let mut ledger = Ledger::new(&limits, pool.clone());
        let first = charge(&mut ledger, 20 << 20).unwrap();
        let second = charge(&mut ledger, 10 << 20).unwrap();
        assert_eq!(pool.drawn_bytes(), 30 << 20);
        ledger.settle_at(0, 100, first);
        ledger.settle_at(100, 200, second);
        ledger.sent(199);
        assert_eq!((pool.drawn_bytes(), ledger.used), (10 << 20, 10 << 20));
        drop(ledger);
        assert_eq!(pool.drawn_bytes(), 0);
    }

    #[test]
    fn p2_what_no_charge_covers_is_counted_by_what_is_left() {
        let limits = limits();
        let mut ledger = Ledger::new(&limits, Pool::new(&limits));
        let most = limits.unpaid_bytes();
        assert!(ledger.may_answer(0, most - 1) && !ledger.may_answer(0, most) && ledger.may_answer(1, most));
        // After 16 unpaid bytes comes a reply of 1040 bytes, of which 1000 are paid for.
        let paid = charge(&mut ledger, 1000).unwrap();
        ledger.settle_at(16, 1056, paid);
        for (sent, unpaid) in [(0, 56), (16, 40), (26, 30), (56, 0), (1055, 0)] {
            assert_eq!(ledger.unpaid(sent, 1056), unpaid, "{sent} sent");
        }
        // The rest of a large reply covers nothing but itself.
        assert_eq!(ledger.unpaid(1055, 1100), 44);
        ledger.sent(1056);
        assert_eq!(ledger.unpaid(1056, 1100), 44);
        // Neither does a charge that is larger than its reply, nor a reply behind it.
        for from in [1100, 1200] {
            let paid = charge(&mut ledger, 4096).unwrap();
            ledger.settle_at(from, from + 50, paid);
        }
        assert_eq!(ledger.unpaid(1056, 1250), 44 + 50);
        assert!(ledger.may_answer(1056, 1250 + most - 95) && !ledger.may_answer(1056, 1250 + most - 94));
    }

    fn place(ledger: &mut Ledger, running: usize) -> Option<Place> {
        match ledger.poll_place(&mut Context::from_waker(Waker::noop()), running) {
            Poll::Ready(place) => Some(place),
            Poll::Pending => None,
        }
    }

    #[test]
    fn requests_without_bytes_are_bounded_as_well_and_every_connection_has_its_floor() {
        let limits = FrontLimits { connections: 2, gateway_requests: 4, ..FrontLimits::default() };
        let pool = Pool::new(&limits);
        let (mut first, mut second) = (Ledger::new(&limits, pool.clone()), Ledger::new(&limits, pool.clone()));
        let mut held: Vec<Place> = (0..3).map(|running| place(&mut first, running).unwrap()).collect();
        assert_eq!(pool.places.available_permits(), 0);
        assert!(place(&mut first, 3).is_none() && first.try_place(3).is_none());
        let floor = place(&mut second, 0).unwrap();
        assert!(place(&mut second, 1).is_none());
        // The first one has waited longer.
        held.pop();
        assert!(place(&mut second, 1).is_none() && second.try_place(1).is_none());
        held.push(place(&mut first, 2).unwrap());
        // It waits again, and then has nothing to begin: the place goes to the other one.
        assert!(place(&mut first, 3).is_none());
        held.pop();
        let kept = place(&mut second, 1).unwrap();
        assert!(place(&mut first, 3).is_none());
        drop((floor, kept));
        first.want_no_place();
        assert!(place(&mut second, 1).is_some(), "BUDGET-P1: no connection keeps a place that it does not use");
        drop((first, second, held));
        assert_eq!(pool.places.available_permits(), 2);
    }

    #[test]
    fn the_largest_request_fits_the_smallest_pool() {
        let limits = FrontLimits { gateway_bytes: 65 << 20, connections: 65536, ..FrontLimits::default() };
        assert_eq!(limits.validate(), Ok(()));
        let mut ledger = Ledger::new(&limits, Pool::new(&limits));
        assert!(charge(&mut ledger, (32 << 20) + 64).is_some());
    }
}
