//! How far a change of a set's stores is (ADR 0018): its leader knows, and the leader of group 0, which proposes the steps, asks. What a step needs is not
//! known here: whoever looks after the set gives a [`Placer`].

use crate::node::RaftNode;
use crate::proto::{self, peer_client::PeerClient};
use holdfast_types::{GroupId, MemberId};
use std::time::Duration;

/// How long a peer may take to say.
const ASK_LIMIT: Duration = Duration::from_secs(2);

/// What the leader of a set says of a change of its stores.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Placing {
    /// The step that it is ready for: from what, to what.
    pub step: Option<(String, String)>,
    /// What it waits for, for people.
    pub waits: String,
}

/// What this member says, where it leads the set; `None` where it does not.
pub type Placer = Box<dyn Fn(GroupId) -> Option<Placing> + Send + Sync>;

impl RaftNode {
    /// What `peer` says of a change of the stores of set `id`; `None` where it does not lead it.
    ///
    /// # Errors
    /// It could not be asked, for people.
    pub async fn ask_placing(&self, id: GroupId, peer: MemberId, addr: &str) -> Result<Option<Placing>, String> {
        if peer == self.member() {
            return Ok(self.placer().and_then(|placer| placer(id)));
        }
        let channel = self.channels().get(peer, addr, false).map_err(|e| e.to_string())?;
        let request = self.addressed(proto::PlacingRequest {}, id, peer);
        let mut client = PeerClient::new(channel);
        let reply = tokio::time::timeout(ASK_LIMIT, client.placing(request)).await;
        let reply = reply.map_err(|_| format!("no answer within {ASK_LIMIT:?}"))?;
        let reply = reply.map_err(|status| status.message().to_string())?;
        // C3: as with every answer.
        self.channels().lives.check(peer, reply.metadata())?;
        let proto::PlacingReply { leads, expected, placement, waits } = reply.into_inner();
        let step = (!placement.is_empty()).then_some((expected, placement));
        Ok(leads.then_some(Placing { step, waits }))
    }

    /// The asked side.
    pub(crate) fn placing_reply(&self, id: GroupId) -> proto::PlacingReply {
        let Some(Placing { step, waits }) = self.placer().and_then(|placer| placer(id)) else {
            return proto::PlacingReply::default();
        };
        let (expected, placement) = step.unwrap_or_default();
        proto::PlacingReply { leads: true, expected, placement, waits }
    }
}
