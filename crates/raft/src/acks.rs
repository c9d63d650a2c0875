//! What followers have answered to a leader: the base of its read lease (R3), and of what it knows of their logs.

use crate::reversion::Acked as Acknowledged;
use crate::status::Acked;
use holdfast_types::sync::LockExt;
use holdfast_types::{MemberId, MonoTime};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

/// What followers have acknowledged to this leader.
#[derive(Default)]
pub(crate) struct Acks {
    /// The newest acknowledged heartbeat to each peer, and its term: when it was *sent*, and what the peer's answer
    /// promises (`Promises::reads_until`), which is the base of a read lease.
    ///
    /// openraft exports a time too, but it counts an append's answer for requests that were queued after it: after a
    /// loss in one direction, a lease would last longer than the promises that it depends on (R3). Heartbeats are
    /// answered one by one.
    sent: Mutex<BTreeMap<u64, (u64, Acked)>>,
    /// The newest entry that each follower has acknowledged.
    pub(crate) acked: Acknowledged,
}

impl Acks {
    pub(crate) fn note(&self, member: MemberId, term: u64, sent: MonoTime, until: MonoTime) {
        let mut acks = self.sent.locked();
        let new = Acked::new(sent, until);
        let known = acks.entry(member.0).or_insert((term, new));
        if (known.0, known.1.sent) < (term, sent) {
            *known = (term, new);
        }
    }

    /// The newest answers of a majority of `voters` in `term`: the earliest sending, and the earliest end. `me` always
    /// counts, with `own`.
    pub(crate) fn quorum(&self, term: u64, me: MemberId, voters: &BTreeSet<u64>, own: Acked) -> Option<Acked> {
        let acks = self.sent.locked();
        let of = |v: &u64| match acks.get(v) {
            _ if *v == me.0 => Some(own),
            Some((t, acked)) if *t == term => Some(*acked),
            _ => None,
        };
        let mut newest: Vec<Acked> = voters.iter().filter_map(of).collect();
        newest.sort_unstable_by_key(|acked| std::cmp::Reverse((acked.sent, acked.until)));
        newest.get(..=voters.len() / 2)?.iter().copied().reduce(Acked::earlier_of)
    }
}

/// What a membership has answered, from its parts; a joint one has two. If one part has no quorum, the whole has none:
/// that part may have another leader.
pub(crate) fn in_all_parts(mut parts: impl Iterator<Item = Option<Acked>>) -> Option<Acked> {
    let first = parts.next()??;
    parts.try_fold(first, |all, part| Some(all.earlier_of(part?)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    /// An answer to what was sent at `sent`, which promises 100.
    fn acked(sent: u64) -> Acked {
        Acked::new(MonoTime(sent), MonoTime(sent + 100))
    }

    fn note(acks: &Acks, member: u64, term: u64, sent: u64) {
        let Acked { sent, until, .. } = acked(sent);
        acks.note(MemberId(member), term, sent, until);
    }

    #[test]
    fn the_quorum_time_is_that_of_the_slowest_of_the_fastest_majority() {
        let acks = Acks::default();
        let (me, voters) = (MemberId(1), BTreeSet::from([1, 2, 3]));
        let own = acked(1000);
        assert_eq!(acks.quorum(5, me, &voters, own), None, "nobody has answered");
        note(&acks, 2, 5, 700);
        assert_eq!(acks.quorum(5, me, &voters, own), Some(acked(700)));
        note(&acks, 3, 5, 900);
        assert_eq!(acks.quorum(5, me, &voters, own), Some(acked(900)));
        note(&acks, 3, 5, 800);
        assert_eq!(acks.quorum(5, me, &voters, own), Some(acked(900)), "never backwards");
        assert_eq!(acks.quorum(6, me, &voters, own), None, "another term's answers prove nothing");
        let five = BTreeSet::from([1, 2, 3, 4, 5]);
        assert_eq!(acks.quorum(5, me, &five, own), Some(acked(700)));
        assert_eq!(acks.quorum(5, me, &BTreeSet::from([2, 3]), own), Some(acked(700)), "not a voter itself");
        assert_eq!(acks.quorum(5, me, &BTreeSet::from([1]), own), Some(own), "a sole voter always has it");
    }

    /// PLEDGE-P3: voters may have other times than the leader, and than one another.
    #[test]
    fn the_shortest_promise_of_the_newest_majority_counts() {
        let acks = Acks::default();
        let (me, five) = (MemberId(1), BTreeSet::from([1, 2, 3, 4, 5]));
        acks.note(MemberId(2), 5, MonoTime(900), MonoTime(920));
        acks.note(MemberId(3), 5, MonoTime(800), MonoTime(1800));
        acks.note(MemberId(4), 5, MonoTime(700), MonoTime(1700));
        let (sent, until, shortest) = (MonoTime(800), MonoTime(920), Duration::from_nanos(20));
        let expected = Acked { sent, until, shortest };
        assert_eq!(acks.quorum(5, me, &five, acked(1000)), Some(expected));
        acks.note(MemberId(3), 5, MonoTime(950), MonoTime(960));
        let three = BTreeSet::from([1, 3, 4]);
        let expected = Acked::new(MonoTime(950), MonoTime(960));
        assert_eq!(
            acks.quorum(5, me, &three, acked(1000)),
            Some(expected),
            "the newest answer, though it promises less"
        );
    }

    #[test]
    fn r3_a_joint_membership_needs_a_quorum_of_each_part() {
        let (acks, me, own) = (Acks::default(), MemberId(1), acked(1000));
        let parts = [BTreeSet::from([1, 2, 3]), BTreeSet::from([1, 4, 5])];
        let joint = |acks: &Acks| in_all_parts(parts.iter().map(|part| acks.quorum(5, me, part, own)));
        assert_eq!(joint(&acks), None);
        note(&acks, 2, 5, 900);
        assert_eq!(joint(&acks), None, "the newer part may have elected another leader");
        note(&acks, 4, 5, 600);
        assert_eq!(joint(&acks), Some(acked(600)), "the earlier of both");
        note(&acks, 5, 5, 950);
        assert_eq!(joint(&acks), Some(acked(900)));
        assert_eq!(in_all_parts(std::iter::empty()), None);
    }
}
