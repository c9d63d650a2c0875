//! Who is in a group, asked of whoever leads it: this side asks, the leader's side is `Group::roll`. What a member has applied of a group itself may
//! be as old as it likes.

use crate::change::{NotLeading, Roll};
use crate::node::RaftNode;
use crate::proto::{self, peer_client::PeerClient, roll_reply::Result as Outcome};
use holdfast_types::{GroupId, LogIndex, MemberId};
use std::time::Duration;

/// How long the leader of a group may take to answer.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// What the leader may take of it to hear from its quorum.
pub(crate) const READ_LIMIT: Duration = Duration::from_millis(1500);

/// The leader could not be asked, or could not say. Asked again later.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("group {group}: who is in it is not known: {why}")]
pub struct RollError {
    /// The group.
    pub group: GroupId,
    /// For people.
    pub why: String,
}

impl RaftNode {
    /// Who is in group `id`, by the word of its leader, who MUST have applied entry `cluster` of group 0: it lets nobody in any more who was
    /// leaving there.
    ///
    /// # Errors
    /// [`RollError`]; nothing is known then.
    pub async fn roll(&self, id: GroupId, cluster: LogIndex) -> Result<Roll, RollError> {
        let unknown = |why: String| RollError { group: id, why };
        let group = self.group(id).ok_or_else(|| unknown("it does not run here".to_string()))?;
        if group.leading_term().is_some() {
            return self.rolled(&group, cluster).await.map_err(|e| unknown(e.to_string()));
        }
        let leader = group.leadership().borrow().leader.filter(|leader| *leader != self.member());
        let leader = leader.ok_or_else(|| unknown("no leader is known here".to_string()))?;
        let addr = group.status().members.into_iter().find(|m| m.member == leader).map(|m| m.addr);
        let channel = self.channels().get(leader, &addr.unwrap_or_default(), false);
        let channel = channel.map_err(|e| unknown(e.to_string()))?;
        let request = self.addressed(proto::RollRequest { cluster: cluster.0 }, id, leader);
        let mut client = PeerClient::new(channel);
        let reply = tokio::time::timeout(ASK_LIMIT, client.roll(request)).await;
        let reply = reply.map_err(|_| unknown(format!("{leader}: no answer within {ASK_LIMIT:?}")))?;
        let reply = reply.map_err(|status| unknown(format!("{leader}: {}", status.message())))?;
        // An older or a cloned life of the leader must not be believed (C3).
        self.channels().lives.check(leader, reply.metadata()).map_err(unknown)?;
        match reply.into_inner().result {
            Some(Outcome::Roll(roll)) => {
                Ok(Roll { members: roll.members.into_iter().map(MemberId).collect(), applied: LogIndex(roll.applied) })
            }
            Some(Outcome::Leader(0)) => Err(unknown(format!("{leader} does not lead, and knows of no leader"))),
            Some(Outcome::Leader(other)) => Err(unknown(format!("{leader} does not lead, {} does", MemberId(other)))),
            Some(Outcome::Busy(why)) => Err(unknown(format!("{leader}: {why}"))),
            None => Err(unknown(format!("{leader}: an answer without a result"))),
        }
    }

    /// The leader's side.
    pub(crate) async fn rolled(&self, group: &crate::Group, cluster: LogIndex) -> Result<Roll, NotLeading> {
        let here = self.group(GroupId::CLUSTER).map_or(LogIndex(0), |group| group.applied().index);
        if here < cluster {
            let reason = format!("group 0 is applied up to {here} here, and {cluster} is asked for");
            return Err(NotLeading::NotNow { reason });
        }
        group.roll(READ_LIMIT).await
    }
}
