//! Why a group cannot make progress, as far as this member knows: for health checks.

use holdfast_raft::{Consensus, boot_now};
use std::time::Duration;

/// A member that takes appends has had one within this time. A disk that stalls for a moment delays them as well.
const HEARD_WITHIN_MIN: Duration = Duration::from_secs(10);

/// The reason, for people; `None`: there is none. `patience`: within this time a voter that hears no leader has begun
/// an election, and a leader that still leads has had an answer of a quorum.
pub(super) fn group_trouble(group: &dyn Consensus, patience: Duration) -> Option<String> {
    let leadership = *group.leadership().borrow();
    if leadership.stopped {
        return Some(format!("group {} has stopped", group.id()));
    }
    let Some(leader) = leadership.leader else {
        return Some(format!("group {} has no leader", group.id()));
    };
    // Who begins no election goes on naming the leader that it heard last: a learner, and who learns the group again.
    if !leadership.mine && group.unheard() > patience.max(HEARD_WITHIN_MIN) {
        return Some(format!("group {}: its leader {leader} is not heard here any more", group.id()));
    }
    if let Some(why) = group.unsaved_snapshot() {
        return Some(format!("group {}: its state snapshot cannot be written to disk: {why}", group.id()));
    }
    let silent = |at| boot_now().saturating_since(at) > patience;
    let alone = leadership.mine
        && group.applied().term == leadership.term
        && group.quorum_acked().is_none_or(|(_, at)| silent(at));
    alone.then(|| format!("group {}: its leader on this gateway gets no answer from a quorum", group.id()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use futures_util::future::BoxFuture;
    use holdfast_raft::{GroupError, GroupStatus, Leadership, ProposeError, ReadLogError, Reply};
    use holdfast_types::{GroupId, LogId, LogIndex, MemberId, MonoTime, Term};
    use tokio::sync::watch;

    /// A group of which this member knows this leader.
    struct Known {
        leader: Option<MemberId>,
        unheard: Duration,
    }

    const ME: MemberId = MemberId(1);
    const PATIENCE: Duration = Duration::from_secs(2);

    impl Consensus for Known {
        fn id(&self) -> GroupId {
            GroupId::CLUSTER
        }

        fn me(&self) -> MemberId {
            ME
        }

        fn leadership(&self) -> watch::Receiver<Leadership> {
            let mine = self.leader == Some(ME);
            watch::channel(Leadership { term: Term(4), leader: self.leader, mine, stopped: false }).1
        }

        fn leading_term(&self) -> Option<Term> {
            None
        }

        fn quorum_acked(&self) -> Option<(Term, MonoTime)> {
            None
        }

        fn applied(&self) -> LogId {
            LogId::default()
        }

        fn snapshot_last(&self) -> Option<LogId> {
            None
        }

        fn live_bytes(&self) -> u64 {
            0
        }

        fn submit(&self, _: Option<Term>, _: Bytes, _: Reply) -> BoxFuture<'_, Result<(), ProposeError>> {
            unreachable!("nothing is written")
        }

        fn read_log(&self, _: LogIndex, _: u32, _: usize) -> BoxFuture<'_, Result<Bytes, ReadLogError>> {
            unreachable!("nothing is read")
        }

        fn trigger_snapshot(&self) -> BoxFuture<'_, Result<(), GroupError>> {
            unreachable!("no snapshot is taken")
        }

        fn status(&self) -> GroupStatus {
            unreachable!("it is not asked for")
        }

        fn unheard(&self) -> Duration {
            self.unheard
        }
    }

    /// A learner of group 0 that was cut off knew a leader for ever.
    #[test]
    fn a_leader_that_is_not_heard_any_more_is_none() {
        let said = |leader, unheard| group_trouble(&Known { leader, unheard }, PATIENCE);
        let other = Some(MemberId(2));
        assert_eq!(said(other, Duration::ZERO), None);
        assert_eq!(said(other, HEARD_WITHIN_MIN), None);
        let late = HEARD_WITHIN_MIN + Duration::from_millis(1);
        let cut_off = said(other, late).unwrap_or_default();
        assert!(cut_off.contains("leader m2 is not heard here any more"), "{cut_off}");
        let slow = Known { leader: other, unheard: late };
        assert_eq!(group_trouble(&slow, HEARD_WITHIN_MIN * 2), None, "elections take longer there");
        assert!(said(None, Duration::ZERO).is_some_and(|why| why.contains("has no leader")));
        // A leader hears nobody's heartbeats; it is measured by its quorum.
        assert_eq!(said(Some(ME), PATIENCE * 9), None, "it has not applied an entry of its term yet");
    }
}
