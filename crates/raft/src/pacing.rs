//! The times of one group while it runs (ADR 0058). Pure: moments and numbers come in as arguments.
//!
//! openraft's times are fixed when a group starts: they are the longest that the group may have. Shorter ones are kept
//! here, above openraft: heartbeats in between, an election before openraft's own, a vote that openraft's lease would
//! still refuse. What was promised under longer times is kept (`holdfast_types::pledge`).

use crate::config::RaftTiming;
use holdfast_types::pledge::{Pledge, Promise};
use holdfast_types::{MemberId, MonoTime};
use std::time::Duration;

/// A group's times, and what this member has promised in it.
#[derive(Clone, Debug)]
pub(crate) struct Pacing {
    /// openraft's.
    longest: RaftTiming,
    now: RaftTiming,
    pledge: Pledge,
    /// Heartbeats of the shorter times that were in force, and until when they go on: voters that do not know the
    /// longer ones yet would stand for election.
    kept: Option<(Duration, MonoTime)>,
    /// Elections that this member has begun or tried to begin, and when it did last.
    tries: u64,
    tried: Option<MonoTime>,
    /// The highest term that a voter has named in refusing.
    seen_term: u64,
}

/// What one answer to a leader promises under these times.
fn promise(times: &RaftTiming) -> Promise {
    Promise { silence: times.election_max, read: times.read_lease }
}

impl Pacing {
    /// For a group that openraft runs with `longest`: these are its times until [`Pacing::change`].
    pub(crate) fn new(longest: RaftTiming) -> Self {
        let pledge = Pledge::new(promise(&longest));
        Self { longest, now: longest, pledge, kept: None, tries: 0, tried: None, seen_term: 0 }
    }

    /// From now on the group has the times `to`; never longer ones than it was started with (PLEDGE-P4). Returns
    /// whether that changed anything.
    pub(crate) fn change(&mut self, to: RaftTiming, now: MonoTime) -> bool {
        let to = if to.election_max < self.longest.election_max { to } else { self.longest };
        if to == self.now {
            return false;
        }
        let before = self.interval(now);
        if before < to.heartbeat {
            holdfast_reached::reached!("pacing: heartbeats go on as before for a while");
            self.kept = Some((before, now.saturating_add(self.longest.election_max)));
        }
        holdfast_reached::reached!("pacing: shorter times", to.election_max < self.now.election_max);
        holdfast_reached::reached!("pacing: longer times", to.election_max > self.now.election_max);
        self.now = to;
        self.pledge.change(promise(&to));
        true
    }

    /// The times in force.
    pub(crate) fn times(&self) -> RaftTiming {
        self.now
    }

    /// What openraft was started with.
    pub(crate) fn longest(&self) -> RaftTiming {
        self.longest
    }

    /// Whether the times are shorter than openraft's, so that this module has something to do.
    pub(crate) fn is_short(&self) -> bool {
        self.now.election_max < self.longest.election_max
    }

    fn interval(&self, now: MonoTime) -> Duration {
        let kept = self.kept.filter(|(_, until)| now < *until).map(|(every, _)| every);
        kept.map_or(self.now.heartbeat, |every| every.min(self.now.heartbeat))
    }

    /// Between two heartbeats of this leader; `None` if openraft's own are enough.
    pub(crate) fn heartbeat(&self, now: MonoTime) -> Option<Duration> {
        let every = self.interval(now);
        (every < self.longest.heartbeat).then_some(every)
    }

    /// See [`Pledge::give`]: call it before the message of a leader is taken (PLEDGE-P2).
    pub(crate) fn give(&mut self, now: MonoTime) -> Duration {
        self.pledge.give(now)
    }

    /// How long this member still votes for nobody else, nor for itself.
    pub(crate) fn left(&self, now: MonoTime) -> Option<Duration> {
        self.pledge.left(now)
    }

    /// The first look at a request for this member's vote (PACER-E1). `leads`: a quorum has answered it as leader.
    /// `None`: it votes for nobody else. Otherwise whether openraft is to disregard its own lease, which is longer than
    /// what was promised.
    pub(crate) fn first_look(&self, leads: bool, now: MonoTime) -> Option<bool> {
        let bound = leads || self.left(now).is_some();
        (!bound).then_some(self.is_short())
    }

    /// The second look, once the vote is cast: for how long nobody may learn of it.
    pub(crate) fn second_look(&self, now: MonoTime) -> Option<Duration> {
        self.left(now)
    }

    /// When this member stands for election, before openraft would let it: an election timeout after its promise has
    /// ended, after it has taken part in an election (`voted`: whoever won that is heard soon), and after a try that
    /// led to nothing. `None`: it is openraft's to say, because the times are openraft's, or because no leader was
    /// heard here yet.
    pub(crate) fn stands_at(&self, me: MemberId, voted: MonoTime) -> Option<MonoTime> {
        let promised = self.pledge.until().filter(|_| self.is_short())?;
        let since = self.tried.map_or(promised, |tried| promised.max(tried)).max(voted);
        Some(since.saturating_add(self.timeout(me)))
    }

    /// An election timeout, another one for each member and each try.
    fn timeout(&self, me: MemberId) -> Duration {
        let spread = self.now.election_max.saturating_sub(self.now.election_min);
        let part = mixed(me.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ self.tries) % 1024;
        // Less than 1024.
        self.now.election_min + spread * (part as u32) / 1024
    }

    /// It stands for election now.
    pub(crate) fn tried(&mut self, now: MonoTime) {
        self.tries = self.tries.wrapping_add(1);
        self.tried = Some(now);
    }

    /// A voter has named this term in refusing.
    pub(crate) fn saw_term(&mut self, term: u64) {
        self.seen_term = self.seen_term.max(term);
    }

    /// The term that it asks about before it stands, if its own vote is of `own`.
    pub(crate) fn term_to_ask_about(&self, own: u64) -> u64 {
        self.seen_term.max(own).saturating_add(1)
    }
}

/// How long a leader waits for its next heartbeat: until the next multiple of `every` on this gateway's clock. So the
/// groups with the same times send theirs at the same moments, and one call carries them (ADR 0059). A timer that is a
/// little early does not make two of one: the wait is never shorter than an eighth of `every`, and at most an eighth
/// longer than it. An election timeout has three heartbeats, and two may be lost.
pub(crate) fn until_the_next(every: Duration, now: MonoTime) -> Duration {
    let step = u64::try_from(every.as_nanos()).unwrap_or(u64::MAX).max(1);
    let left = Duration::from_nanos(step - now.0 % step);
    if left < every / 8 { left + every } else { left }
}

/// The finalizer of splitmix64: spreads numbers that differ little.
fn mixed(number: u64) -> u64 {
    let z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    fn times(election_ms: u64) -> RaftTiming {
        let ms = Duration::from_millis;
        RaftTiming {
            heartbeat: ms(election_ms / 3),
            election_min: ms(election_ms),
            election_max: ms(2 * election_ms),
            read_lease: ms(2 * election_ms * 4 / 5),
            embargo: ms(2 * election_ms * 11 / 10),
        }
    }

    fn at(ms: u64) -> MonoTime {
        MonoTime(ms * 1_000_000)
    }

    const ME: MemberId = MemberId(2);

    /// PLEDGE-P4: an embargo covers no more than the longest times.
    #[test]
    fn no_times_are_longer_than_those_it_started_with() {
        let mut pacing = Pacing::new(times(1500));
        assert!(!pacing.change(times(9000), at(0)) && !pacing.is_short());
        assert_eq!(pacing.give(at(0)), times(1500).read_lease);
        assert!(pacing.change(times(300), at(0)) && pacing.is_short());
        assert!(!pacing.change(times(300), at(0)), "once it is a change");
        assert!(pacing.change(times(9000), at(0)) && !pacing.is_short());
        assert_eq!(pacing.times(), times(1500));
    }

    /// PLEDGE-P1.
    #[test]
    fn shorter_times_let_nobody_vote_before_the_longer_promise_ends() {
        let mut pacing = Pacing::new(times(1500));
        pacing.give(at(1000));
        pacing.change(times(300), at(1001));
        assert_eq!(pacing.left(at(3999)), Some(Duration::from_millis(1)));
        assert!(pacing.stands_at(ME, at(0)).is_some_and(|stands| stands >= at(4300) && stands < at(4600)));
        assert_eq!(pacing.left(at(4000)), None);
        assert_eq!((pacing.first_look(false, at(3999)), pacing.first_look(false, at(4000))), (None, Some(true)));
        assert_eq!(pacing.first_look(true, at(4000)), None, "a leader that may read");
    }

    #[test]
    fn heartbeats_get_faster_at_once_and_slower_only_when_voters_have_heard() {
        let mut pacing = Pacing::new(times(1500));
        assert_eq!(pacing.heartbeat(at(0)), None, "openraft's own");
        pacing.change(times(300), at(1000));
        assert_eq!(pacing.heartbeat(at(1000)), Some(Duration::from_millis(100)));
        pacing.change(times(600), at(2000));
        assert_eq!(pacing.heartbeat(at(4999)), Some(Duration::from_millis(100)));
        assert_eq!(pacing.heartbeat(at(5000)), Some(Duration::from_millis(200)));
        pacing.change(times(1500), at(6000));
        assert_eq!(pacing.heartbeat(at(8999)), Some(Duration::from_millis(200)));
        assert_eq!(pacing.heartbeat(at(9000)), None);
    }

    /// Each of a hundred groups sent its heartbeats at moments of its own: as many calls, however many groups.
    #[test]
    fn groups_with_the_same_times_send_heartbeats_at_the_same_moments() {
        let every = Duration::from_millis(100);
        let moments: BTreeSet<MonoTime> = (0..100_u64)
            .map(|group| at(5000).saturating_add(Duration::from_micros(group * 997)))
            .map(|led_since| led_since.saturating_add(until_the_next(every, led_since)))
            .collect();
        assert!(moments.len() <= 2, "{moments:?}");
        assert!(moments.iter().all(|moment| moment.0 % 100_000_000 == 0), "{moments:?}");
        for now in (0..400).map(|eighth| MonoTime(eighth * 12_500_000 + 1)) {
            let wait = until_the_next(every, now);
            assert!(wait >= every / 8 && wait <= every + every / 8, "{now:?}: {wait:?}");
        }
        let early = MonoTime(99_990_000);
        assert_eq!(until_the_next(every, early), every + Duration::from_micros(10), "a timer was early");
        assert!(until_the_next(Duration::ZERO, early) <= Duration::from_nanos(1), "no division by zero");
    }

    #[test]
    fn members_and_tries_have_timeouts_of_their_own() {
        let mut pacing = Pacing::new(times(1500));
        assert_eq!(pacing.stands_at(ME, at(0)), None, "openraft's to say");
        pacing.change(times(300), at(0));
        assert_eq!(pacing.stands_at(ME, at(0)), None, "no leader was heard yet");
        pacing.give(at(1000));
        let all: BTreeSet<_> = (1..6).filter_map(|member| pacing.stands_at(MemberId(member), at(0))).collect();
        assert_eq!(all.len(), 5, "{all:?}");
        assert!(all.iter().all(|stands| *stands >= at(1900) && *stands < at(2200)), "{all:?}");
        let first = pacing.timeout(ME);
        pacing.tried(at(2300));
        let second = pacing.stands_at(ME, at(0));
        assert!(second >= Some(at(2600)) && second < Some(at(2900)), "{second:?}");
        assert_ne!(pacing.timeout(ME), first);
        let voted = pacing.stands_at(ME, at(5000));
        assert!(voted >= Some(at(5300)) && voted < Some(at(5600)), "whoever was elected is heard soon: {voted:?}");
    }

    /// A member whose term is behind would otherwise ask for ever about one that is over.
    #[test]
    fn it_asks_about_a_term_that_nobody_has_seen() {
        let mut pacing = Pacing::new(times(1500));
        assert_eq!(pacing.term_to_ask_about(4), 5);
        pacing.saw_term(7);
        pacing.saw_term(6);
        assert_eq!(pacing.term_to_ask_about(4), 8);
        assert_eq!(pacing.term_to_ask_about(9), 10);
    }
}
