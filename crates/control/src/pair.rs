//! A gateway pair whose authority is an etcd: who of the two may answer, and whose a set's head is (ADR 0031). Decided from moments and ids that come in.
//!
//! ```text
//!   sent ───────────── serve_for(ttl) ─────────────▶│ nothing is answered any more        (the holder's clock)
//!        sent + ttl by the slowest clock allowed ────────────▶│ the etcd gives the seat to another one
//! ```
//! PAIR-P1  An answer leaves only before `sent` + [`serve_for`], where `sent` is from before the sending of the last keep-alive that the etcd answered.
//! PAIR-P2  A tenure that ended, or was found overdue once, never goes on: the next one has a higher revision.
//! PAIR-P3  A tenure takes over a set's head only from an earlier tenure of the same pair in the same etcd, or from the one cluster that a person named.
//! PAIR-P4  What was answered as durable is in the head that the next tenure takes over: the store's conditional PUT orders the two.
//! PAIR-P5  A lease of a set, and the token of its owner, are of one tenure. A device that was attached under an earlier one is at its end.
//! PAIR-P6  The pair's feature level only grows, to what both builds know, after both gateways have reported it. Nothing of a higher level is
//!     written into the stores. A gateway whose build knows less does not get the seat.

mod roster;

use holdfast_types::MonoTime;
pub use roster::{NotEnrolled, ROSTER_MAX, Roster};
use std::time::Duration;

/// The least and the most that a seat's time to live may be. An etcd of several members makes leases of less than 2 s longer by itself.
pub const TTL_MIN: Duration = Duration::from_secs(3);
/// See [`TTL_MIN`].
pub const TTL_MAX: Duration = Duration::from_secs(600);

/// Of this many parts of the time to live, [`SERVE_PARTS`] are served.
const TTL_PARTS: u32 = 4;
const SERVE_PARTS: u32 = 3;
/// Between two keep-alives, a part of the time to live: two may fail before the limit.
const RENEW_PARTS: u32 = 5;
/// PAIR-P1 holds if the clocks of the holder and of the etcd drift apart by at most this percentage.
const DRIFT_PERCENT: u32 = 10;

const _: () = {
    // The holder's slowest clock against the etcd's fastest: SERVE / (1 - drift) <= TTL / (1 + drift).
    assert!(SERVE_PARTS * (100 + DRIFT_PERCENT) <= TTL_PARTS * (100 - DRIFT_PERCENT));
    assert!(3 * TTL_PARTS <= RENEW_PARTS * SERVE_PARTS);
};

/// How long a holder answers from the moment before its last keep-alive was sent (PAIR-P1).
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
    #[error("the etcd has confirmed the pair's seat no more for so long that the other gateway may have it")]
    Overdue,
    /// The etcd says that the seat is another's, or nobody's.
    #[error("the etcd says that the pair's seat is not this gateway's any more: {0}")]
    Lost(String),
    /// This gateway gave it up.
    #[error("this gateway gives up the pair's seat: {0}")]
    Resigned(String),
}

/// The time for which this gateway has the seat. One for each time that it was won (PAIR-P2).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tenure {
    until: MonoTime,
    ended: Option<Ended>,
}

impl Tenure {
    /// Won by a lease that was asked for at `sent`.
    pub fn begin(sent: MonoTime, ttl: Duration) -> Self {
        Self { until: sent.saturating_add(serve_for(ttl)), ended: None }
    }

    /// A keep-alive that was sent at `sent` or later was answered with a time to live of `ttl`.
    pub fn renewed(&mut self, now: MonoTime, sent: MonoTime, ttl: Duration) {
        // PAIR-P2: whatever was answered meanwhile, somebody may have been told that this gateway answers no more.
        if self.may_answer(now).is_ok() {
            self.until = self.until.max(sent.saturating_add(serve_for(ttl)));
        }
    }

    /// Ends the tenure. The first reason is kept.
    pub fn end(&mut self, why: Ended) {
        self.ended.get_or_insert(why);
    }

    /// Whether an answer may leave at `now` (PAIR-P1).
    ///
    /// # Errors
    /// Why not. The result stays the same from then on (PAIR-P2).
    pub fn may_answer(&mut self, now: MonoTime) -> Result<(), Ended> {
        if now >= self.until {
            self.end(Ended::Overdue);
        }
        self.ended.clone().map_or(Ok(()), Err)
    }

    /// The end of the tenure if no further keep-alive is answered.
    pub fn until(&self) -> MonoTime {
        self.until
    }
}

/// Permanent name of a tenure: the pair's place in one etcd, and the revision at which the etcd created the holder's key. It is also the
/// id of the cluster of the holder's sets, so it is in each of their heads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TenureId {
    /// Which pair of which etcd.
    pub pair: u64,
    /// Create revision of the key; grows from each holder of the pair to the next.
    pub revision: u64,
}

impl TenureId {
    /// Of the pair whose seat is `key` in the etcd with the cluster id `etcd`.
    pub fn new(etcd: u64, key: &str, revision: u64) -> Self {
        // FNV-1a: two pairs that meet in one store by mistake shall not look like one. Nobody gains anything by making two alike.
        let bytes = etcd.to_be_bytes().into_iter().chain(key.bytes());
        let pair = bytes.fold(0xcbf2_9ce4_8422_2325, |hash: u64, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        Self { pair, revision }
    }

    /// The id of the cluster that its sets live in.
    pub fn cluster(self) -> u128 {
        u128::from(self.pair) << 64 | u128::from(self.revision)
    }

    /// What this tenure may do with a head of the cluster `found`. `adopt`: a cluster that an administrator has given up for this pair (PAIR-P3).
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
    /// This tenure's: taken over already, or made by it (R12).
    Ours,
    /// An earlier tenure's of this pair: to be taken over.
    Earlier {
        /// Its revision.
        revision: u64,
    },
    /// A later one's: this tenure is over, whatever the clock says.
    Later {
        /// Its revision.
        revision: u64,
    },
    /// Of the cluster that a person gave up for this pair: to be taken over.
    GivenUp,
    /// Another cluster's, or another pair's: not to be touched.
    Foreign,
}

/// What an answer says of the store (PAIR-P4).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// FLUSH and FUA are answered once the head in the store covers what was answered before. The loss of the gateway ends the device.
    Flush,
    /// Every change is; and a read that shows a change.
    Write,
}

impl Durability {
    /// Whether a change that was asked for with or without FUA waits for the store.
    pub fn change_waits(self, fua: bool) -> bool {
        fua || self == Durability::Write
    }

    /// Whether a read of data that is not in the store yet waits for it: what a client has read must not be lost by a takeover (R3).
    /// In flush mode, it may be lost between two flushes, like answered writes.
    pub fn read_waits(self) -> bool {
        self == Durability::Write
    }
}

#[cfg(test)]
mod tests;
