//! Round trips to peers, measured on heartbeats of all groups that this member leads. A follower writes nothing for
//! them, but it answers only once everything that it was sent before is synced. So many answers of a busy follower are
//! late, and the quicker ones show the way. Pure but for the lock.

use holdfast_types::MemberId;
use holdfast_types::sync::LockExt;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

/// So many round trips are kept of each peer.
const KEPT: usize = 31;
/// One in so many of them was quicker than what counts as the round trip.
const QUICKER: usize = 8;
/// Of so many, the slowest says whether an answer can be expected before the next heartbeat.
const RECENT: usize = 8;
/// Fewer say nothing yet: the first ones include the handshake of a connection.
const ENOUGH: usize = 5;
/// After so many heartbeats without an answer in time, the peer may be farther away than it was.
const LATE_MAX: u32 = 3;

#[derive(Debug, Default)]
struct Trips {
    last: VecDeque<Duration>,
    late: u32,
}

impl Trips {
    /// The round trip: neither what a follower has to sync nor one lucky answer changes it.
    fn way(&self) -> Option<Duration> {
        if self.last.len() < ENOUGH {
            return None;
        }
        let mut sorted: Vec<Duration> = self.last.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / QUICKER).copied()
    }

    /// The slowest of the last few answers; `None` while they are too few.
    fn slowest(&self) -> Option<Duration> {
        let enough = self.last.len() >= ENOUGH;
        self.last.iter().rev().take(RECENT).max().copied().filter(|_| enough)
    }
}

/// The round trips to every peer.
#[derive(Debug, Default)]
pub(crate) struct RoundTrips(Mutex<BTreeMap<MemberId, Trips>>);

impl RoundTrips {
    /// `peer` has answered a heartbeat after `took`.
    pub(crate) fn answered(&self, peer: MemberId, took: Duration) {
        let mut all = self.0.locked();
        let trips = all.entry(peer).or_default();
        trips.late = 0;
        if trips.last.len() >= KEPT {
            trips.last.pop_front();
        }
        trips.last.push_back(took);
    }

    /// `peer` has not answered a heartbeat in time. That is no measure: it may be gone.
    pub(crate) fn late(&self, peer: MemberId) {
        let mut all = self.0.locked();
        let trips = all.entry(peer).or_default();
        trips.late = trips.late.saturating_add(1);
    }

    /// The round trips to all peers of which enough were measured.
    pub(crate) fn all(&self) -> BTreeMap<MemberId, Duration> {
        let all = self.0.locked();
        all.iter().filter_map(|(peer, trips)| Some((*peer, trips.way()?))).collect()
    }

    /// How long to wait for an answer of `peer` to a heartbeat: `longest`, or no longer than until the next one if the
    /// peer is known to answer soon. openraft sends the next one only after this one's end, so that one lost answer
    /// must not cost several heartbeats. A peer that answers later than it did is waited for longer after a few.
    pub(crate) fn limit(&self, peer: MemberId, every: Duration, longest: Duration) -> Duration {
        let all = self.0.locked();
        let soon = all.get(&peer).is_some_and(|trips| {
            trips.late < LATE_MAX && trips.slowest().is_some_and(|trip| trip.saturating_mul(2) <= every)
        });
        if soon { every.min(longest) } else { longest }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: MemberId = MemberId(2);

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn the_quicker_answers_show_the_way() {
        let trips = RoundTrips::default();
        trips.answered(PEER, ms(90));
        assert_eq!(trips.all(), BTreeMap::new(), "the handshake of a connection is in it");
        (0..6).for_each(|_| trips.answered(PEER, ms(10)));
        trips.answered(PEER, ms(900));
        trips.late(PEER);
        assert_eq!(trips.all(), BTreeMap::from([(PEER, ms(10))]));
        (0..30).for_each(|n| trips.answered(PEER, ms(if n % 4 == 0 { 10 } else { 80 })));
        assert_eq!(trips.all(), BTreeMap::from([(PEER, ms(10))]), "most answers wait for a disk");
        (0..31).for_each(|_| trips.answered(PEER, ms(40)));
        assert_eq!(trips.all(), BTreeMap::from([(PEER, ms(40))]), "it follows a way that has become longer");
    }

    #[test]
    fn a_peer_that_answers_soon_is_waited_for_until_the_next_heartbeat() {
        let (trips, every, longest) = (RoundTrips::default(), ms(100), ms(500));
        assert_eq!(trips.limit(PEER, every, longest), longest, "nothing is known of it");
        (0..5).for_each(|_| trips.answered(PEER, ms(50)));
        assert_eq!(trips.limit(PEER, every, longest), every);
        (0..3).for_each(|_| trips.late(PEER));
        assert_eq!(trips.limit(PEER, every, longest), longest, "it may be farther away than it was");
        trips.answered(PEER, ms(300));
        assert_eq!(trips.limit(PEER, every, longest), longest, "its disk is slow, or it is farther away");
        (0..8).for_each(|_| trips.answered(PEER, ms(50)));
        assert_eq!(trips.limit(PEER, every, longest), every);
        trips.answered(PEER, ms(51));
        assert_eq!(trips.limit(PEER, every, longest), longest);
        assert_eq!(trips.limit(PEER, ms(900), longest), longest);
    }
}
