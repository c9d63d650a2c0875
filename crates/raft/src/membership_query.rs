//! Asks the leader of a group for its members. The state that this member has applied may be arbitrarily old.

use crate::change::{CommittedMembers, NotLeading};
use crate::group::RaftGroup;
use crate::node::RaftNode;
use crate::peer_call::To;
use crate::proto::{self, roll_reply::Result as Outcome};
use futures_util::future::BoxFuture;
use holdfast_types::{GroupId, LogIndex, MemberId};
use std::collections::BTreeMap;
use std::time::Duration;

/// Time limit for the answer of the leader of a group.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// The part of it that the leader may need to hear from its quorum.
const READ_LIMIT: Duration = Duration::from_millis(1500);

/// The leader could not be asked, or could not answer. Ask again later.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("group {group}: its members are not known: {why}")]
pub struct MembershipUnknown {
    /// The group.
    pub group: GroupId,
    /// For people.
    pub why: String,
}

impl RaftNode {
    /// The members of group `id`, from its leader. The leader MUST have applied entry `cluster` of group 0: from then
    /// on it adds no member that was leaving at that entry.
    ///
    /// # Errors
    /// [`MembershipUnknown`].
    pub fn committed_members(
        &self,
        id: GroupId,
        cluster: LogIndex,
    ) -> BoxFuture<'_, Result<CommittedMembers, MembershipUnknown>> {
        Box::pin(async move {
            let unknown = |why: String| MembershipUnknown { group: id, why };
            let group = self.local(id).ok_or_else(|| unknown("it does not run here".to_string()))?;
            if group.leading_term().is_some() {
                return self.members_as_leader(&group, cluster).await.map_err(|e| unknown(e.to_string()));
            }
            let leader = group.leader().filter(|leader| *leader != self.member());
            let leader = leader.ok_or_else(|| unknown("no leader is known here".to_string()))?;
            let addr = group.status().members.into_iter().find(|m| m.member == leader).map(|m| m.addr);
            self.ask_roll(id, leader, &addr.unwrap_or_default(), cluster).await.map_err(unknown)
        })
    }

    /// The same for a group that may not run here: asks this member's own group first, then each of `peers` (member and
    /// address, `HOST:PORT`).
    ///
    /// # Errors
    /// [`MembershipUnknown`].
    pub fn committed_members_of<'a>(
        &'a self,
        id: GroupId,
        cluster: LogIndex,
        peers: &'a BTreeMap<MemberId, String>,
    ) -> BoxFuture<'a, Result<CommittedMembers, MembershipUnknown>> {
        Box::pin(async move {
            let mut answers = match self.committed_members(id, cluster).await {
                Ok(found) => return Ok(found),
                Err(unknown) => vec![unknown.why],
            };
            for (peer, addr) in peers.iter().filter(|(peer, _)| **peer != self.member()) {
                match self.ask_roll(id, *peer, addr, cluster).await {
                    Ok(found) => return Ok(found),
                    Err(why) => answers.push(why),
                }
            }
            Err(MembershipUnknown { group: id, why: answers.join("; ") })
        })
    }

    /// The members of group `id` from `peer`, if that leads it.
    async fn ask_roll(
        &self,
        id: GroupId,
        peer: MemberId,
        addr: &str,
        cluster: LogIndex,
    ) -> Result<CommittedMembers, String> {
        let to = To { group: id, peer, addr, limit: ASK_LIMIT };
        let message = proto::RollRequest { cluster: cluster.0 };
        let reply = self.call(to, message, |mut peer, request| async move { peer.roll(request).await }).await;
        match reply.map_err(|why| format!("{peer}: {why}"))?.result {
            Some(Outcome::Roll(roll)) => Ok(CommittedMembers {
                members: roll.members.into_iter().map(MemberId).collect(),
                applied: LogIndex(roll.applied),
            }),
            Some(Outcome::Leader(0)) => Err(format!("{peer} does not lead, and knows of no leader")),
            Some(Outcome::Leader(other)) => Err(format!("{peer} does not lead, {} does", MemberId(other))),
            Some(Outcome::Busy(why)) => Err(format!("{peer}: {why}")),
            None => Err(format!("{peer}: an answer without a result")),
        }
    }

    /// The leader's answer.
    pub(crate) async fn members_as_leader(
        &self,
        group: &RaftGroup,
        cluster: LogIndex,
    ) -> Result<CommittedMembers, NotLeading> {
        let here = self.local(GroupId::CLUSTER).map_or(LogIndex(0), |group| group.applied().index);
        if here < cluster {
            let reason = format!("group 0 is applied up to {here} here, and {cluster} is asked for");
            return Err(NotLeading::NotNow { reason });
        }
        group.committed_members(READ_LIMIT).await
    }
}
