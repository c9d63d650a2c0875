//! Asks the leader of a group for its members. The state that this member has applied may be arbitrarily old.

use crate::change::{CommittedMembers, NotLeading};
use crate::group::RaftGroup;
use crate::node::RaftNode;
use crate::peer_call::Said;
use crate::proto::peer_client::PeerClient;
use crate::proto::{self, roll_reply::Result as Outcome};
use futures_util::future::BoxFuture;
use holdfast_types::{GroupId, LogIndex, MemberId};
use std::collections::BTreeMap;
use std::time::Duration;
use tonic::Request;
use tonic::transport::Channel;

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
            let peers = BTreeMap::from([(leader, addr.unwrap_or_default())]);
            self.ask_roll(id, &peers, cluster).await.map_err(|said| unknown(said.join("; ")))
        })
    }

    /// Like `committed_members`, for a group that may not run here: asks this member's own group first, then each of
    /// `peers` (member and address, `HOST:PORT`).
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
            let asked = self.ask_roll(id, peers, cluster).await;
            asked.map_err(|said| {
                answers.extend(said);
                MembershipUnknown { group: id, why: answers.join("; ") }
            })
        })
    }

    /// The members of group `id`, from the one of `peers` that leads it. Otherwise what each peer said.
    async fn ask_roll(
        &self,
        id: GroupId,
        peers: &BTreeMap<MemberId, String>,
        cluster: LogIndex,
    ) -> Result<CommittedMembers, Vec<String>> {
        let message = proto::RollRequest { cluster: cluster.0 };
        let call = |mut peer: PeerClient<Channel>, request: Request<proto::RollRequest>| async move {
            peer.roll(request).await
        };
        self.ask_in_turn(id, peers, ASK_LIMIT, message, call, roll_of).await
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

/// The answer of a peer.
fn roll_of(reply: proto::RollReply) -> Said<CommittedMembers> {
    match reply.result {
        Some(Outcome::Roll(roll)) => Said::Leads(CommittedMembers {
            members: roll.members.into_iter().map(MemberId).collect(),
            applied: LogIndex(roll.applied),
        }),
        Some(Outcome::Leader(leader)) => Said::Leader(leader),
        Some(Outcome::Busy(why)) => Said::Busy(why),
        None => Said::Nothing,
    }
}
