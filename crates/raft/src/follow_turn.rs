//! Asks the leader of group 0 whether leadership of a set may go to a nearer voter now (FOLLOW-F4): of all sets few
//! move at a time, and each has a leader of its own.

use crate::node::RaftNode;
use crate::peer_call::To;
use crate::proto;
use holdfast_types::GroupId;
use std::time::Duration;

/// How long it may take to answer.
const ASK_LIMIT: Duration = Duration::from_secs(2);

impl RaftNode {
    /// Whether leadership of `set` may move now, by the word of the leader of group 0.
    ///
    /// # Errors
    /// Why it could not be asked, for people.
    pub async fn ask_follow_turn(&self, set: GroupId) -> Result<bool, String> {
        if let Some(granted) = self.turn_giver().and_then(|gives| gives(set)) {
            return Ok(granted);
        }
        let group = self.local(GroupId::CLUSTER).ok_or("group 0 does not run here")?;
        let leader = group.leader().filter(|leader| *leader != self.member());
        let leader = leader.ok_or("no leader of group 0 is known here")?;
        let addr = group.status().members.into_iter().find(|m| m.member == leader).map(|m| m.addr).unwrap_or_default();
        let to = To { group: GroupId::CLUSTER, peer: leader, addr: &addr, limit: ASK_LIMIT };
        let call = |mut peer: proto::peer_client::PeerClient<tonic::transport::Channel>, request| async move {
            peer.follow_turn(request).await
        };
        let reply = self.call(to, proto::FollowTurnRequest { set: set.0 }, call).await?;
        if reply.leads { Ok(reply.granted) } else { Err(format!("{leader} does not lead group 0")) }
    }

    /// The answer to [`RaftNode::ask_follow_turn`].
    pub(crate) fn follow_turn_reply(&self, set: GroupId) -> proto::FollowTurnReply {
        let granted = self.turn_giver().and_then(|gives| gives(set));
        proto::FollowTurnReply { leads: granted.is_some(), granted: granted.unwrap_or_default() }
    }
}
