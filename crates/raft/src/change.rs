//! A change of members is carried through by whoever began it, whatever becomes of the one who asked for it; and what is committed of the members.
//!
//! openraft proposes the two entries of a change of voters one after the other from the future that asks for it. A caller that gives up between
//! them, as a limit or a connection that is gone makes it, would leave the group between two sets of voters.
//!
//! B1  One change of a group at a time in this process, and in a task of its own: only the end of the process or of the leadership leaves it
//!     undone, and then the next leader ends it (`control::members`, M5).
//! B2  Every change names the membership that it was decided on, and is refused where that is not the newest any more: two who decide
//!     (the loop that follows group 0, a member that asks to be taken out) never undo each other's.

use crate::group::Group;
use crate::wire::{RaftMembership, id_from_raft, id_to_raft};
use holdfast_types::{LogId, LogIndex, MemberId};
use openraft::ChangeMembers;
use openraft::impls::BasicNode;
use openraft::raft::Precondition;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

/// Entries that a member may be behind and still carry the group without this one.
const NEAR_ENTRIES: u64 = 1024;

/// Held by the change that is under way (B1).
#[derive(Debug, Default)]
pub(crate) struct Changing(Arc<tokio::sync::Mutex<()>>);

/// A change did not happen, or is not done yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChangeError {
    /// Why.
    Refused(String),
    /// It goes on.
    Late,
}

/// A member could not be taken out, or the members not be named.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotLeading {
    #[error("not the leader")]
    NotLeader { leader: Option<MemberId> },
    #[error("{reason}")]
    NotNow { reason: String },
}

/// Who is in a group, by its leader's word: as old as the question at most.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roll {
    /// Voters, learners, and whoever votes in either of two sets.
    pub members: BTreeSet<MemberId>,
    /// What the leader had applied by then: no entry after it was committed when it was asked.
    pub applied: LogIndex,
}

fn not_now(reason: impl Into<String>) -> NotLeading {
    NotLeading::NotNow { reason: reason.into() }
}

impl Group {
    /// Whether a change of members that this process began is under way. It is not to be judged by what it has done so far.
    pub fn is_changing(&self) -> bool {
        self.changing_members().0.try_lock().is_err()
    }

    /// B1, B2: the last entry of the change, and the members that it says.
    pub(crate) async fn carry_through(
        &self,
        change: ChangeMembers<u64, BasicNode>,
        seen: Option<LogId>,
        limit: Duration,
    ) -> Result<(LogId, RaftMembership), ChangeError> {
        let refused = |why: String| ChangeError::Refused(why);
        let Ok(one) = self.changing_members().0.clone().try_lock_owned() else {
            return Err(refused("another change of members is under way".to_string()));
        };
        let group = self.clone();
        let task = tokio::spawn(async move {
            let _one = one;
            let only_if = Precondition::LastMembershipLogId { last_membership_log_id: seen.map(id_to_raft) };
            let done = group.raft().change_membership_if(change, false, [only_if]).await;
            let done = done.map_err(|e| refused(e.to_string()))?;
            let members = done.membership.ok_or_else(|| refused("an entry that names no members".to_string()))?;
            // Who is out may come back with nothing.
            group.acks().1.keep_only(|member| members.get_node(&member.0).is_some());
            Ok((id_from_raft(&done.log_id), members))
        });
        match tokio::time::timeout(limit, task).await {
            Err(_) => Err(ChangeError::Late),
            Ok(Err(e)) => Err(ChangeError::Refused(format!("the change ended without an answer: {e}"))),
            Ok(Ok(done)) => done,
        }
    }

    fn leads(&self) -> Result<(), NotLeading> {
        match self.leading_term() {
            Some(_) => Ok(()),
            None => Err(NotLeading::NotLeader { leader: self.leadership().borrow().leader }),
        }
    }

    /// The newest membership, once it is known to be committed and this member to lead: as old as the call at most.
    async fn committed_membership(&self, limit: Duration) -> Result<(LogId, RaftMembership), NotLeading> {
        use openraft::async_runtime::watch::WatchReceiver;
        self.leads()?;
        let read = self.raft().ensure_linearizable(openraft::ReadPolicy::ReadIndex);
        let read = tokio::time::timeout(limit, read).await;
        read.map_err(|_| not_now(format!("not known within {limit:?}")))?.map_err(|e| not_now(e.to_string()))?;
        // This member still led after the call: what its metrics say now is no older than that.
        let newest = self.raft().metrics().borrow_watched().membership_config.clone();
        let at = newest.log_id().as_ref().map(id_from_raft).filter(|at| at.index <= self.applied().index);
        let at = at.ok_or_else(|| not_now("a change of members is under way"))?;
        Ok((at, newest.membership().clone()))
    }

    /// Everybody who is in the group, by a membership that is committed. Only at the leader.
    pub(crate) async fn roll(&self, limit: Duration) -> Result<Roll, NotLeading> {
        let (_, members) = self.committed_membership(limit).await?;
        let members = members.nodes().map(|(id, _)| MemberId(*id)).collect();
        Ok(Roll { members, applied: self.applied().index })
    }

    fn answering(&self) -> BTreeSet<u64> {
        let there =
            |m: &crate::MemberStatus| m.member == self.me() || m.silent.is_some_and(|silent| silent <= self.patience());
        self.status().members.into_iter().filter(there).map(|m| m.member.0).collect()
    }

    /// Whether the others that answer could take this member out of the group, and go on without it. Only the leader knows.
    pub fn may_do_without_me(&self) -> bool {
        use openraft::async_runtime::watch::WatchReceiver;
        if self.script().is_some() || self.leading_term().is_none() {
            return false;
        }
        let members = self.raft().metrics().borrow_watched().membership_config.membership().clone();
        let status = self.status();
        let last = status.last.map_or(0, |last| last.0);
        // One that lags may lack what only this member and another have.
        let near = |m: &&crate::MemberStatus| last.saturating_sub(m.matched.map_or(0, |at| at.0)) <= NEAR_ENTRIES;
        let near: BTreeSet<u64> = status.members.iter().filter(near).map(|m| m.member.0).collect();
        let answering = self.answering().intersection(&near).copied().collect();
        may_lose(members.get_joint_config(), &answering, self.me().0)
    }

    /// Takes `member` out of the group at its own request, because it has lost part of its log (R9): once a membership without
    /// it is committed, what it has forgotten cannot matter any more (quarantine, Q3). Only at the leader; needs a quorum without
    /// it. Answers the entry of that membership.
    ///
    /// A change of voters that an earlier leader did not end is ended by the way, without `member`.
    pub(crate) async fn expel(&self, member: MemberId, limit: Duration) -> Result<LogId, NotLeading> {
        use openraft::async_runtime::watch::WatchReceiver;
        self.leads()?;
        let found = self.raft().metrics().borrow_watched().membership_config.clone();
        let (seen, members) = (found.log_id().as_ref().map(id_from_raft), found.membership());
        let id = BTreeSet::from([member.0]);
        let change = match members.get_node(&member.0) {
            Some(_) if members.voter_ids().any(|voter| voter == member.0) => {
                if !may_lose(members.get_joint_config(), &self.answering(), member.0) {
                    return Err(not_now("no quorum of the other gateways answers: they have to be back first"));
                }
                ChangeMembers::RemoveVoters(id)
            }
            Some(_) => ChangeMembers::RemoveNodes(id),
            None => {
                // Out already.
                let (at, members) = self.committed_membership(limit).await?;
                self.acks().1.keep_only(|other| other != member);
                return match members.get_node(&member.0) {
                    None => Ok(at),
                    Some(_) => Err(not_now("a change of members is under way")),
                };
            }
        };
        // Its answer is the entry that was committed. What came after it (a newcomer is let in at once) does not matter.
        match self.carry_through(change, seen, limit).await {
            Ok((at, members)) if members.get_node(&member.0).is_none() => Ok(at),
            Ok(_) => Err(not_now("the membership that was committed still has it")),
            Err(ChangeError::Refused(why)) => Err(not_now(why)),
            Err(ChangeError::Late) => Err(not_now(format!("not done within {limit:?}"))),
        }
    }
}

/// Whether taking `gone` out of the voters can be committed by those that answer: `sets` is one set of voters, or two between which the group
/// is. The change begins from the newer one, so both that one and what is left of it must have their majority without `gone`.
fn may_lose(sets: &[BTreeSet<u64>], answering: &BTreeSet<u64>, gone: u64) -> bool {
    let Some(newer) = sets.last() else { return false };
    let there = |set: &BTreeSet<u64>| set.iter().filter(|id| **id != gone && answering.contains(id)).count();
    let left: BTreeSet<u64> = newer.iter().copied().filter(|id| *id != gone).collect();
    there(newer) > newer.len() / 2 && there(&left) > left.len() / 2
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(of: &[u64]) -> BTreeSet<u64> {
        of.iter().copied().collect()
    }

    #[test]
    fn a_member_may_be_lost_where_the_others_can_commit_it() {
        let may = |sets: &[&[u64]], there: &[u64], gone: u64| {
            let sets: Vec<BTreeSet<u64>> = sets.iter().map(|s| set(s)).collect();
            may_lose(&sets, &set(there), gone)
        };
        assert!(may(&[&[1, 2, 3]], &[1, 2], 3));
        assert!(!may(&[&[1, 2, 3]], &[1], 3));
        assert!(!may(&[&[1, 2]], &[1], 2), "two: the other alone is no majority of both");
        assert!(!may(&[&[1]], &[1], 1));
        assert!(!may(&[&[1, 2]], &[1, 2], 1), "its own word does not count");
        assert!(may(&[&[1, 2, 3]], &[2, 3], 1));
        assert!(!may(&[&[1, 2, 3, 4]], &[1, 2, 4], 4), "two of four others answer, three are needed");
        // Between two sets the newer one is what the change begins from.
        assert!(may(&[&[1, 2, 3], &[1, 2]], &[1, 2], 3), "it was being taken out");
        assert!(may(&[&[1, 2], &[1, 2, 3]], &[1, 2], 3), "it was being let in");
        assert!(may(&[&[1, 2, 3], &[2, 3, 4]], &[2, 4], 3), "1 is lost, and was being replaced by 4");
        assert!(!may(&[&[1, 2, 3], &[2, 3, 4]], &[1, 2], 3));
    }
}
