//! Round trips to peers, measured on heartbeats of all groups that this member leads: unary calls without entries, for
//! which a follower writes nothing. Pure but for the lock.

use holdfast_types::MemberId;
use holdfast_types::sync::LockExt;
use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::time::Duration;

/// So many round trips are kept of each peer.
const KEPT: usize = 31;
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
    /// The median: neither a pause of a process nor one lucky answer changes it.
    fn median(&self) -> Option<Duration> {
        if self.last.len() < ENOUGH {
            return None;
        }
        let mut sorted: Vec<Duration> = self.last.iter().copied().collect();
        sorted.sort_unstable();
        sorted.get(sorted.len() / 2).copied()
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
        all.iter().filter_map(|(peer, trips)| Some((*peer, trips.median()?))).collect()
    }

    /// How long to wait for an answer of `peer` to a heartbeat: `longest`, or no longer than until the next one if the
    /// peer is known to be near. openraft sends the next one only after this one's end, so that one lost answer must
    /// not cost several heartbeats. A peer whose way has become longer is waited for longer after a few.
    pub(crate) fn limit(&self, peer: MemberId, every: Duration, longest: Duration) -> Duration {
        let all = self.0.locked();
        let near = all.get(&peer).is_some_and(|trips| {
            trips.late < LATE_MAX && trips.median().is_some_and(|trip| trip.saturating_mul(2) <= every)
        });
        if near { every.min(longest) } else { longest }
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
    fn the_median_of_the_last_ones_counts() {
        let trips = RoundTrips::default();
        trips.answered(PEER, ms(90));
        assert_eq!(trips.all(), BTreeMap::new(), "the handshake of a connection is in it");
        (0..6).for_each(|_| trips.answered(PEER, ms(10)));
        trips.answered(PEER, ms(900));
        trips.late(PEER);
        assert_eq!(trips.all(), BTreeMap::from([(PEER, ms(10))]));
        (0..20).for_each(|_| trips.answered(PEER, ms(40)));
        assert_eq!(trips.all(), BTreeMap::from([(PEER, ms(40))]), "it follows a way that has become longer");
    }

    #[test]
    fn a_near_peer_is_waited_for_until_the_next_heartbeat() {
        let (trips, every, longest) = (RoundTrips::default(), ms(100), ms(500));
        assert_eq!(trips.limit(PEER, every, longest), longest, "nothing is known of it");
        (0..5).for_each(|_| trips.answered(PEER, ms(50)));
        assert_eq!(trips.limit(PEER, every, longest), every);
        (0..3).for_each(|_| trips.late(PEER));
        assert_eq!(trips.limit(PEER, every, longest), longest, "it may be farther away than it was");
        trips.answered(PEER, ms(300));
        assert_eq!(trips.limit(PEER, every, longest), every, "one answer does not change what is known");
        (0..31).for_each(|_| trips.answered(PEER, ms(51)));
        assert_eq!(trips.limit(PEER, every, longest), longest);
        assert_eq!(trips.limit(PEER, ms(900), longest), longest);
    }
}
