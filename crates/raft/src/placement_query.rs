//! Asks how far a change of a set's stores is (ADR 0018): the leader of the set knows; the leader of group 0 asks it
//! and proposes the steps.

use crate::hooks::MigrationStatus;
use crate::node::RaftNode;
use crate::peer_call::To;
use crate::proto;
use holdfast_types::{GroupId, MemberId};
use std::time::Duration;

/// How long a peer may take to answer.
const ASK_LIMIT: Duration = Duration::from_secs(2);

impl RaftNode {
    /// What `peer` reports about a change of the stores of set `id`; `None` if it does not lead the set.
    ///
    /// # Errors
    /// Why it could not be asked, for people.
    pub async fn ask_migration(
        &self,
        id: GroupId,
        peer: MemberId,
        addr: &str,
    ) -> Result<Option<MigrationStatus>, String> {
        if peer == self.member() {
            return Ok(self.migration_reporter().and_then(|report| report(id)));
        }
        let to = To { group: id, peer, addr, limit: ASK_LIMIT };
        let call = |mut peer: proto::peer_client::PeerClient<tonic::transport::Channel>, request| async move {
            peer.placing(request).await
        };
        let proto::PlacingReply { leads, expected, placement, waits } =
            self.call(to, proto::PlacingRequest {}, call).await?;
        let step = (!placement.is_empty()).then_some((expected, placement));
        Ok(leads.then_some(MigrationStatus { step, waits }))
    }

    /// The answer to [`RaftNode::ask_migration`].
    pub(crate) fn migration_reply(&self, id: GroupId) -> proto::PlacingReply {
        let Some(MigrationStatus { step, waits }) = self.migration_reporter().and_then(|report| report(id)) else {
            return proto::PlacingReply::default();
        };
        let (expected, placement) = step.unwrap_or_default();
        proto::PlacingReply { leads: true, expected, placement, waits }
    }
}
