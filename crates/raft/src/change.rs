//! Changes of a group's members.
//!
//! openraft proposes the two entries of a change of voters one after the other, in the future that requests it. If a
//! time limit or a lost connection ended that future between the two, the group would stay in its joint membership.
//!
//! CHANGE-B1  A process makes one change of a group at a time, in a task of its own. Only the end of the process or of
//!     the leadership leaves it unfinished; then the next leader ends it (`control::members`, MEMBER-M5).
//! CHANGE-B2  Every change names the membership that it was decided on, and is refused if there is a newer one. So two
//!     deciders (the loop that follows group 0, and a member that asks to be removed) never undo each other's change.
//! CHANGE-B3  Who loses its vote in group 0 goes on as a learner of it, also where another leader ends the change: all
//!     members follow group 0, whoever votes (CLUSTERVOTERS-V1). In a set's group it is out.

use crate::group::RaftGroup;
use crate::status::{LACKS_COUNTED_MAX, MemberStatus};
use crate::wire::{RaftMembership, id_from_raft, id_to_raft, voters_in};
use holdfast_types::{GroupId, LogId, LogIndex, MemberId};
use openraft::ChangeMembers;
use openraft::impls::BasicNode;
use openraft::raft::Precondition;
use std::collections::BTreeSet;
use std::time::Duration;

/// A member that is at most so many entries behind, and at most [`NEAR_BYTES`], can still carry the group without this
/// one.
const NEAR_ENTRIES: u64 = LACKS_COUNTED_MAX;

/// Bytes of these: each entry may have 1 MiB. A leader sends at most half of that ahead of the acknowledgements.
const NEAR_BYTES: u64 = 32 << 20;

/// A change did not happen, or has not finished.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ChangeError {
    /// The reason.
    Refused(String),
    /// It continues.
    Late,
}

/// Only the leader could answer; or this member leads, but cannot answer now.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum NotLeading {
    #[error("not the leader")]
    NotLeader { leader: Option<MemberId> },
    #[error("{reason}")]
    NotNow { reason: String },
}

/// What becomes of a voter that loses its vote.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fate {
    /// It goes on as a learner.
    Learns,
    /// It is in the group no more.
    Goes,
}

impl Fate {
    /// CHANGE-B3.
    pub(crate) fn in_group(group: GroupId) -> Self {
        if group == GroupId::CLUSTER { Self::Learns } else { Self::Goes }
    }
}

/// The members of a group, as its leader knew them at the time of the question or later.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CommittedMembers {
    /// Voters of both sets, and learners.
    pub members: BTreeSet<MemberId>,
    /// What the leader had applied by then: no later entry was committed when it was asked.
    pub applied: LogIndex,
}

fn not_now(reason: impl Into<String>) -> NotLeading {
    NotLeading::NotNow { reason: reason.into() }
}

impl RaftGroup {
    /// Makes `change` (CHANGE-B1, CHANGE-B2). Returns the last entry of the change, and the members in it.
    pub(crate) async fn carry_through(
        &self,
        change: ChangeMembers<u64, BasicNode>,
        fate: Fate,
        seen: Option<LogId>,
        limit: Duration,
    ) -> Result<(LogId, RaftMembership), ChangeError> {
        use openraft::async_runtime::watch::WatchReceiver;
        let refused = |why: String| ChangeError::Refused(why);
        let Ok(one) = self.changing.clone().try_lock_owned() else {
            holdfast_reached::reached!("change: another one is under way");
            return Err(refused("another change of members is under way".to_string()));
        };
        let (raft, acks) = (self.raft().clone(), self.parts.acks.clone());
        // A member that left may come back with an empty log (VOTERS-V3): it denies nothing that it had acknowledged.
        let present = raft.metrics().borrow_watched().membership_config.membership().clone();
        acks.acked.keep_only(|member| present.get_node(&member.0).is_some());
        let task = tokio::spawn(async move {
            let _one = one;
            let only_if = Precondition::LastMembershipLogId { last_membership_log_id: seen.map(id_to_raft) };
            let done = raft.change_membership_if(change, fate == Fate::Learns, [only_if]).await;
            let done = done.map_err(|e| refused(e.to_string()))?;
            let members = done.membership.ok_or_else(|| refused("an entry that names no members".to_string()))?;
            // A member that left may come back with an empty log.
            acks.acked.keep_only(|member| members.get_node(&member.0).is_some());
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
            None => Err(NotLeading::NotLeader { leader: self.leader() }),
        }
    }

    /// The newest membership. It is committed, this member leads, and the answer is no older than the call.
    async fn committed_membership(&self, limit: Duration) -> Result<(LogId, RaftMembership), NotLeading> {
        use openraft::async_runtime::watch::WatchReceiver;
        self.leads()?;
        let read = self.raft().ensure_linearizable(openraft::ReadPolicy::ReadIndex);
        let read = tokio::time::timeout(limit, read).await;
        read.map_err(|_| not_now(format!("not known within {limit:?}")))?.map_err(|e| not_now(e.to_string()))?;
        // This member still led after the call, so its present metrics are no older than the call.
        let newest = self.raft().metrics().borrow_watched().membership_config.clone();
        let at = newest.log_id().as_ref().map(id_from_raft).filter(|at| at.index <= self.applied().index);
        let at = at.ok_or_else(|| not_now("a change of members is under way"))?;
        Ok((at, newest.membership().clone()))
    }

    /// All members of the group, from a committed membership. Only at the leader.
    pub(crate) async fn committed_members(&self, limit: Duration) -> Result<CommittedMembers, NotLeading> {
        let (_, members) = self.committed_membership(limit).await?;
        let members = members.nodes().map(|(id, _)| MemberId(*id)).collect();
        Ok(CommittedMembers { members, applied: self.applied().index })
    }

    /// The newest membership's entry and its voters, if it is committed and without `member`; no older than the call
    /// (VOTERS-V3). Only at the leader.
    pub(crate) async fn without(
        &self,
        member: MemberId,
        limit: Duration,
    ) -> Result<(LogId, Vec<BTreeSet<MemberId>>), NotLeading> {
        let (at, members) = self.committed_membership(limit).await?;
        if members.get_node(&member.0).is_some() {
            return Err(not_now(format!("{member} is a member of the group")));
        }
        // It may come back with an empty log.
        self.parts.acks.acked.keep_only(|other| other != member);
        Ok((at, voters_in(&members)))
    }

    fn answering(&self) -> BTreeSet<u64> {
        self.status().members.into_iter().filter(|member| self.answers(member)).map(|m| m.member.0).collect()
    }

    /// See [`crate::Consensus::may_do_without_me`].
    pub(crate) fn may_do_without_me(&self) -> bool {
        use openraft::async_runtime::watch::WatchReceiver;
        if self.leading_term().is_none() {
            return false;
        }
        let members = self.raft().metrics().borrow_watched().membership_config.membership().clone();
        let status = self.status();
        let last = status.last.map_or(0, |last| last.0);
        // A member that lags may lack entries that only this member and another one have.
        let near = |m: &&MemberStatus| is_near(last.saturating_sub(m.matched.map_or(0, |at| at.0)), m.lacks_bytes);
        let near: BTreeSet<u64> = status.members.iter().filter(near).map(|m| m.member.0).collect();
        let answering = self.answering().intersection(&near).copied().collect();
        may_lose(members.get_joint_config(), &answering, self.parts.me.0)
    }

    /// Removes `member` at its own request, because it has lost part of its log (R9). Once a membership without it is
    /// committed, what it has forgotten no longer matters (quarantine, QUARANTINE-Q3). Only at the leader; needs a
    /// quorum without `member`. Returns the entry of that membership.
    ///
    /// Also ends a joint membership that an earlier leader left, without `member`. In group 0 it is ended first, and
    /// `member` asks again.
    pub(crate) async fn expel(&self, member: MemberId, limit: Duration) -> Result<LogId, NotLeading> {
        use openraft::async_runtime::watch::WatchReceiver;
        self.leads()?;
        let found = self.raft().metrics().borrow_watched().membership_config.clone();
        let (seen, members) = (found.log_id().as_ref().map(id_from_raft), found.membership());
        let id = BTreeSet::from([member.0]);
        let change = match members.get_node(&member.0) {
            Some(_) if members.voter_ids().any(|voter| voter == member.0) => {
                if !may_lose(members.get_joint_config(), &self.answering(), member.0) {
                    holdfast_reached::reached!("readmission: no quorum without the member");
                    return Err(not_now("no quorum of the other gateways answers: they have to be back first"));
                }
                ChangeMembers::RemoveVoters(id)
            }
            Some(_) => ChangeMembers::RemoveNodes(id),
            None => {
                holdfast_reached::reached!("readmission: the member was removed before");
                // Removed already.
                let (at, members) = self.committed_membership(limit).await?;
                self.parts.acks.acked.keep_only(|other| other != member);
                return match members.get_node(&member.0) {
                    None => Ok(at),
                    Some(_) => Err(not_now("a change of members is under way")),
                };
            }
        };
        // CHANGE-B3: one change would also take out those from whom the earlier leader took no more than the vote.
        if Fate::in_group(self.parts.id) == Fate::Learns && members.get_joint_config().len() > 1 {
            holdfast_reached::reached!("readmission: a change of group 0's voters is ended first");
            let end = ChangeMembers::AddVoterIds(BTreeSet::new());
            return Err(match self.carry_through(end, Fate::Learns, seen, limit).await {
                Err(ChangeError::Refused(why)) => not_now(why),
                Ok(_) | Err(ChangeError::Late) => not_now("a change that an earlier leader began is ended first"),
            });
        }
        // The answer is the entry that was committed. Later entries (a newcomer is let in at once) do not matter.
        match self.carry_through(change, Fate::Goes, seen, limit).await {
            Ok((at, members)) if members.get_node(&member.0).is_none() => Ok(at),
            Ok(_) => Err(not_now("the membership that was committed still has it")),
            Err(ChangeError::Refused(why)) => Err(not_now(why)),
            Err(ChangeError::Late) => Err(not_now(format!("not done within {limit:?}"))),
        }
    }
}

/// Whether a member that lacks so many entries, and bytes of these, has nearly everything.
fn is_near(entries: u64, bytes: u64) -> bool {
    entries == 0 || entries <= NEAR_ENTRIES && bytes <= NEAR_BYTES
}

/// Whether those that answer can commit the removal of voter `gone`. `sets` is one set of voters, or the two of a joint
/// membership. The change begins from the newer set, so both that set and what is left of it need a majority without
/// `gone`.
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
    fn a_member_that_lacks_a_few_large_entries_cannot_carry_the_group() {
        assert!(is_near(0, u64::MAX) && is_near(1024, NEAR_BYTES));
        assert!(!is_near(1000, 1000 << 20) && !is_near(1, u64::MAX) && !is_near(1025, 1 << 20));
    }

    #[test]
    fn who_loses_its_vote_goes_on_in_group_0_only() {
        assert_eq!(Fate::in_group(GroupId::CLUSTER), Fate::Learns, "CHANGE-B3");
        assert_eq!(Fate::in_group(GroupId(1)), Fate::Goes);
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
        // The change begins from the newer of the two sets.
        assert!(may(&[&[1, 2, 3], &[1, 2]], &[1, 2], 3), "it was being taken out");
        assert!(may(&[&[1, 2], &[1, 2, 3]], &[1, 2], 3), "it was being let in");
        assert!(may(&[&[1, 2, 3], &[2, 3, 4]], &[2, 4], 3), "1 is lost, and was being replaced by 4");
        assert!(!may(&[&[1, 2, 3], &[2, 3, 4]], &[1, 2], 3));
    }
}
