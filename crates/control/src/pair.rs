//! Gateway pair with an etcd as authority: which gateway may answer, and which tenure owns a set's head (ADR 0031).
//! Moments and ids are arguments.
//!
//! ```text
//!   sent ───────────── serve_for(ttl) ─────────────▶│ nothing is answered any more        (the holder's clock)
//!        sent + ttl by the slowest clock allowed ────────────▶│ the etcd gives the seat to another one
//! ```
//! PAIR-P1  An answer leaves only before `sent` + [`serve_for`]; `sent` is before the sending of the last keep-alive
//!     that the etcd answered.
//! PAIR-P2  A tenure that ended or was once found overdue never resumes: the next one has a higher revision.
//! PAIR-P3  A tenure takes over a set's head only from an earlier tenure of the same pair in the same etcd, or from the
//!     one cluster that an administrator named.
//! PAIR-P4  Everything answered as durable is in the head that the next tenure takes over: the store's conditional PUT
//!     orders the two.
//! PAIR-P5  A set's lease and its owner's token belong to one tenure. A device that was attached under an earlier
//!     tenure ends.
//! PAIR-P6  The pair's feature level only grows, to what both builds know, after both gateways have reported it.
//!     Nothing of a higher level is written into the stores. A gateway whose build knows less does not get the seat.

mod roster;

use holdfast_types::{MonoTime, Reading};
pub use roster::{NotEnrolled, ROSTER_MAX, Roster};
use std::time::Duration;

/// Shortest and longest time to live of a seat. An etcd of several members lengthens leases below 2 s.
pub const TTL_MIN: Duration = Duration::from_secs(3);
/// See [`TTL_MIN`].
pub const TTL_MAX: Duration = Duration::from_secs(600);

/// [`SERVE_PARTS`] of this many parts of the time to live may be served.
const TTL_PARTS: u32 = 4;
const SERVE_PARTS: u32 = 3;
/// Keep-alives per time to live: two may fail before the limit.
const RENEW_PARTS: u32 = 5;
/// PAIR-P1 holds if the clocks of the holder and of the etcd drift apart by at most this percentage.
const DRIFT_PERCENT: u32 = 10;

const _: () = {
    // The holder's slowest clock against the etcd's fastest: SERVE / (1 - drift) <= TTL / (1 + drift).
    assert!(SERVE_PARTS * (100 + DRIFT_PERCENT) <= TTL_PARTS * (100 - DRIFT_PERCENT));
    assert!(3 * TTL_PARTS <= RENEW_PARTS * SERVE_PARTS);
};

/// How long a holder may answer after the moment before its last keep-alive was sent (PAIR-P1).
pub fn serve_for(ttl: Duration) -> Duration {
    ttl / TTL_PARTS * SERVE_PARTS
}

/// How often a holder sends a keep-alive.
pub fn renew_every(ttl: Duration) -> Duration {
    ttl / RENEW_PARTS
}

/// Why a tenure is over.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Ended {
    /// No keep-alive was answered in time.
    #[error("the etcd has not confirmed the pair's seat in time: the other gateway may hold it")]
    Overdue,
    /// This machine's clock went back.
    #[error("this machine's boot clock went back, so the other gateway of the pair may have the pair's seat by now")]
    ClockBack,
    /// The etcd reports another holder, or none.
    #[error("the etcd says that the pair's seat is not this gateway's any more: {0}")]
    Lost(String),
    /// This gateway gave it up.
    #[error("this gateway gives up the pair's seat: {0}")]
    Resigned(String),
}

/// The period in which this gateway holds the seat, from one win to its end (PAIR-P2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenure {
    /// The moment that `until` is counted from.
    sent: MonoTime,
    until: MonoTime,
    ended: Option<Ended>,
}

impl Tenure {
    /// Begins with a lease that was requested at `sent`.
    pub fn begin(sent: MonoTime, ttl: Duration) -> Self {
        Self { sent, until: sent.saturating_add(serve_for(ttl)), ended: None }
    }

    /// Notes that a keep-alive, sent at `sent` or later, was answered with a time to live of `ttl`.
    pub fn renewed(&mut self, now: impl Into<Reading>, sent: MonoTime, ttl: Duration) {
        // PAIR-P2: a caller may have been told already that this gateway no longer answers.
        if self.may_answer(now).is_ok() {
            let until = sent.saturating_add(serve_for(ttl));
            if until > self.until {
                (self.sent, self.until) = (sent, until);
            }
        }
    }

    /// Ends the tenure. The first reason is kept.
    pub fn end(&mut self, why: Ended) {
        self.ended.get_or_insert(why);
    }

    /// Whether an answer may leave at `now` (PAIR-P1).
    ///
    /// # Errors
    /// The reason against it. The result stays the same from then on (PAIR-P2).
    pub fn may_answer(&mut self, now: impl Into<Reading>) -> Result<(), Ended> {
        let reading = now.into();
        if reading.now >= self.until {
            self.end(Ended::Overdue);
        } else if !reading.counts(self.sent) {
            holdfast_reached::reached!("pair: the boot clock went back under a tenure");
            self.end(Ended::ClockBack);
        }
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// The end of the tenure if no further keep-alive is answered.
    pub fn until(&self) -> MonoTime {
        self.until
    }
}

/// Permanent name of a tenure: the pair's place in one etcd, and the revision at which the etcd created the holder's
/// key. It is also the id of the cluster of the holder's sets, so it is in each of their heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TenureId {
    /// The pair and its etcd.
    pub pair: u64,
    /// Create revision of the key; grows with each holder of the pair.
    pub revision: u64,
}

impl TenureId {
    /// For the pair whose seat is `key` in the etcd with the cluster id `etcd`.
    pub fn new(etcd: u64, key: &str, revision: u64) -> Self {
        // FNV-1a: two pairs that share a store by mistake must differ. Nobody gains from a collision, so it need not be
        // cryptographic.
        let bytes = etcd.to_be_bytes().into_iter().chain(key.bytes());
        let pair = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self { pair, revision }
    }

    /// The cluster id of its sets.
    pub fn cluster(self) -> u128 {
        u128::from(self.pair) << 64 | u128::from(self.revision)
    }

    /// What this tenure may do with a head of the cluster `found`. `adopt`: a cluster that an administrator has given
    /// up for this pair (PAIR-P3).
    pub fn judge(self, found: u128, adopt: Option<u128>) -> Whose {
        let pair = u64::try_from(found >> 64).unwrap_or(u64::MAX);
        let revision = u64::try_from(found & u128::from(u64::MAX)).unwrap_or(u64::MAX);
        if pair == self.pair {
            return match revision.cmp(&self.revision) {
                std::cmp::Ordering::Less => Whose::Earlier { revision },
                std::cmp::Ordering::Equal => Whose::Ours,
                std::cmp::Ordering::Greater => Whose::Later { revision },
            };
        }
        if adopt == Some(found) { Whose::GivenUp } else { Whose::Foreign }
    }
}

/// The owner of a set's head, as seen by one tenure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whose {
    /// This tenure's: taken over already, or created by it (R12).
    Ours,
    /// An earlier tenure's of this pair: to be taken over.
    Earlier {
        /// Its revision.
        revision: u64,
    },
    /// A later tenure's: this one is over, whatever the clock shows.
    Later {
        /// Its revision.
        revision: u64,
    },
    /// Of the cluster that an administrator gave up for this pair: to be taken over.
    GivenUp,
    /// Another cluster's, or another pair's: not to be touched.
    Foreign,
}

/// What an answer guarantees about the store (PAIR-P4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// FLUSH and FUA are answered once the head in the store covers everything answered before. A lost gateway ends the
    /// device.
    Flush,
    /// Every change, and every read that shows one, waits for the store.
    Write,
}

impl Durability {
    /// Whether a change, with or without FUA, waits for the store.
    pub fn change_waits(self, fua: bool) -> bool {
        fua || self == Durability::Write
    }

    /// Whether a read of data that is not in the store yet waits for the store: a takeover must not lose what a client
    /// has read (R3). In flush mode such data may be lost between two flushes, like answered writes.
    pub fn read_waits(self) -> bool {
        self == Durability::Write
    }
}

#[cfg(test)]
mod tests;
