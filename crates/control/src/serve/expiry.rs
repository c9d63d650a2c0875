//! Decides when a lease may be judged expired.

use crate::set::{Judged, Lease};
use holdfast_types::{Epoch, LogIndex, MonoTime};
use std::time::Duration;

/// Judges a lease on the leader's clock: expired once its time to live has passed since the last renewal was applied
/// *here*, and since this gateway was elected (a renewal that it did not see as leader cannot count against the owner).
/// The judgement is only a proposal: apply compares it with the state (SET-S4 of [`crate::set`]).
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct ExpiryJudge {
    /// Start of this gateway's leadership, moved forward by the time that it did not see. `None`: it does not lead, and
    /// judges nothing.
    watching_since: Option<MonoTime>,
    seen: Option<LastRenewal>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct LastRenewal {
    epoch: Epoch,
    renewed: LogIndex,
    ttl: Duration,
    at: MonoTime,
}

impl ExpiryJudge {
    /// For a gateway that does not lead yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// This gateway was elected.
    pub fn elected(&mut self, now: MonoTime) {
        self.watching_since = Some(now);
    }

    /// It leads no longer.
    pub fn leadership_lost(&mut self) {
        self.watching_since = None;
    }

    /// The clock is suspected: up to `lost` of the time until `now` was not seen. No renewal could arrive then, so that
    /// time does not count against the owner. (No more than that: on a busy machine small gaps are frequent, and a dead
    /// owner's lease must expire there too.)
    pub fn clock_suspected(&mut self, now: MonoTime, lost: Duration) {
        let counting_from = self.counting_from();
        if let Some(since) = self.watching_since.as_mut() {
            holdfast_reached::reached!("expiry: time that was not seen does not count against the owner");
            *since = counting_from.unwrap_or(*since).saturating_add(lost).min(now);
        }
    }

    /// Notes the lease after an entry was applied here. Call it after every entry, or at least after every one that may
    /// renew; also while following.
    pub fn observe(&mut self, now: MonoTime, lease: Option<&Lease>) {
        let Some(lease) = lease else {
            self.seen = None;
            return;
        };
        let (epoch, renewed) = (lease.epoch, lease.renewed);
        if self.seen.is_none_or(|seen| (seen.epoch, seen.renewed) != (epoch, renewed)) {
            let ttl = Duration::from_millis(u64::from(lease.ttl_ms));
            self.seen = Some(LastRenewal { epoch, renewed, ttl, at: now });
        }
    }

    /// The judgement for an `Acquire`. `None`: the set is free, the lease is alive, or this gateway does not lead.
    pub fn judge(&self, now: MonoTime) -> Option<Judged> {
        let seen = self.seen?;
        (now >= self.expires_at()?).then_some(Judged { epoch: seen.epoch, renewed: seen.renewed })
    }

    /// When the present lease expires if not renewed. `None` where there is nothing to judge, as above.
    pub fn expires_at(&self) -> Option<MonoTime> {
        Some(self.counting_from()?.saturating_add(self.seen?.ttl))
    }

    fn counting_from(&self) -> Option<MonoTime> {
        Some(self.seen?.at.max(self.watching_since?))
    }
}
