//! Heartbeats of several groups to one peer that wait to travel together (ADR 0059). Pure but for the lock; moments
//! come in as arguments. `beat_carrier` sends them.

use crate::proto;
use holdfast_types::sync::LockExt;
use holdfast_types::{MemberId, MonoTime};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::sync::oneshot;
use tonic::Status;

/// From so many groups on: with fewer, waiting for others only delays.
const TOGETHER_MIN: usize = 4;
/// How long the first one waits for others. Short beside the shortest interval between heartbeats, 100 ms.
pub(crate) const MOMENT: Duration = Duration::from_millis(10);
/// Most in one call: far below the door's limit of bytes.
pub(crate) const BEATS_MAX: usize = 256;
/// A peer whose build does not know the call gets them one by one for so long.
const SINGLY: Duration = Duration::from_secs(60);
/// What waits for longer has lost its carrier: the next one gets another.
const LOST: Duration = Duration::from_secs(1);

/// The answer to a heartbeat, and for how long it lets the leader read (PLEDGE-P2).
pub(crate) type Outcome = Result<(proto::AppendReply, Duration), Status>;

/// A heartbeat on its way, and who waits for its answer.
pub(crate) struct Waiting {
    pub(crate) beat: proto::Beat,
    pub(crate) tell: oneshot::Sender<Outcome>,
}

#[derive(Default)]
struct Peer {
    groups: usize,
    waiting: Vec<Waiting>,
    /// When the first of them began to wait.
    since: MonoTime,
    singly_until: MonoTime,
}

/// The heartbeats to all peers.
#[derive(Default)]
pub(crate) struct Beats {
    peers: Mutex<BTreeMap<MemberId, Peer>>,
    calls: AtomicU64,
    carried: AtomicU64,
}

/// One group that sends heartbeats to a peer, as long as this lives.
pub(crate) struct Counted {
    beats: Arc<Beats>,
    peer: MemberId,
}

impl Drop for Counted {
    fn drop(&mut self) {
        if let Some(peer) = self.beats.peers.locked().get_mut(&self.peer) {
            peer.groups = peer.groups.saturating_sub(1);
        }
    }
}

impl Beats {
    /// One more group sends heartbeats to `peer`.
    pub(crate) fn join(self: &Arc<Self>, peer: MemberId) -> Counted {
        self.peers.locked().entry(peer).or_default().groups += 1;
        Counted { beats: self.clone(), peer }
    }

    /// Whether heartbeats to `peer` travel together now.
    pub(crate) fn gathers(&self, peer: MemberId, now: MonoTime) -> bool {
        let peers = self.peers.locked();
        peers.get(&peer).is_some_and(|peer| peer.groups >= TOGETHER_MIN && now >= peer.singly_until)
    }

    /// `beat` waits for others to `peer`. Returns its answer, and whether the caller has to send a carrier for it.
    pub(crate) fn put(&self, peer: MemberId, beat: proto::Beat, now: MonoTime) -> (oneshot::Receiver<Outcome>, bool) {
        let (tell, answer) = oneshot::channel();
        let mut peers = self.peers.locked();
        let peer = peers.entry(peer).or_default();
        let carries = peer.waiting.is_empty() || now.saturating_since(peer.since) > LOST;
        if carries {
            peer.since = now;
        }
        // Whoever does not wait any more needs no answer.
        peer.waiting.retain(|waiting| !waiting.tell.is_closed());
        peer.waiting.push(Waiting { beat, tell });
        (answer, carries)
    }

    /// All that wait for `peer`.
    pub(crate) fn take(&self, peer: MemberId) -> Vec<Waiting> {
        self.peers.locked().get_mut(&peer).map(|peer| std::mem::take(&mut peer.waiting)).unwrap_or_default()
    }

    /// The build of `peer` does not know the call.
    pub(crate) fn go_singly(&self, peer: MemberId, now: MonoTime) {
        self.peers.locked().entry(peer).or_default().singly_until = now.saturating_add(SINGLY);
    }

    /// A call with so many heartbeats leaves.
    pub(crate) fn count(&self, beats: usize) {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.carried.fetch_add(beats as u64, Ordering::Relaxed);
    }

    /// Calls so far, and the heartbeats in them.
    pub(crate) fn counts(&self) -> (u64, u64) {
        (self.calls.load(Ordering::Relaxed), self.carried.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PEER: MemberId = MemberId(2);

    fn at(ms: u64) -> MonoTime {
        MonoTime(ms * 1_000_000)
    }

    fn beat(group: u64) -> proto::Beat {
        proto::Beat { group, append: None }
    }

    #[test]
    fn they_travel_together_from_some_groups_on() {
        let beats = Arc::new(Beats::default());
        let mut all: Vec<Counted> = (0..3).map(|_| beats.join(PEER)).collect();
        assert!(!beats.gathers(PEER, at(0)), "three groups");
        all.push(beats.join(PEER));
        assert!(beats.gathers(PEER, at(0)) && !beats.gathers(MemberId(3), at(0)));
        beats.go_singly(PEER, at(1000));
        assert!(!beats.gathers(PEER, at(60_999)), "its build is older");
        assert!(beats.gathers(PEER, at(61_000)), "it may have been upgraded");
        all.pop();
        assert!(!beats.gathers(PEER, at(61_000)), "one group has another leader");
    }

    #[test]
    fn the_first_one_gets_a_carrier_and_the_others_go_with_it() {
        let beats = Beats::default();
        let (_one, first) = beats.put(PEER, beat(1), at(0));
        let (_two, second) = beats.put(PEER, beat(2), at(5));
        assert_eq!((first, second), (true, false));
        let groups: Vec<u64> = beats.take(PEER).iter().map(|waiting| waiting.beat.group).collect();
        assert_eq!(groups, [1, 2]);
        assert!(beats.take(PEER).is_empty());
        let (three, third) = beats.put(PEER, beat(3), at(12));
        assert!(third, "the one before has left");
        let (_four, fourth) = beats.put(PEER, beat(4), at(900));
        drop(three);
        let (_five, fifth) = beats.put(PEER, beat(5), at(1100));
        assert_eq!((fourth, fifth), (false, true), "a carrier that never came");
        let groups: Vec<u64> = beats.take(PEER).iter().map(|waiting| waiting.beat.group).collect();
        assert_eq!(groups, [4, 5], "nobody waits for the answer to 3");
    }
}
