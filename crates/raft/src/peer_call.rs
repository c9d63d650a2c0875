//! One call to a peer that the node makes, not openraft.

use crate::node::RaftNode;
use crate::proto::peer_client::PeerClient;
use holdfast_types::{GroupId, MemberId};
use std::time::Duration;
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

/// The target of a call.
#[derive(Clone, Copy)]
pub(crate) struct To<'a> {
    pub group: GroupId,
    pub peer: MemberId,
    /// `HOST:PORT`, unless the node knows a newer address.
    pub addr: &'a str,
    pub limit: Duration,
}

impl RaftNode {
    /// Calls a peer and waits for its answer, at most `to.limit`. The answer of an older or a copied life of the peer
    /// is refused (CLUSTER-C3).
    ///
    /// # Errors
    /// Why there is no answer, for people.
    pub(crate) async fn call<M, R, F>(
        &self,
        to: To<'_>,
        message: M,
        call: impl FnOnce(PeerClient<Channel>, Request<M>) -> F,
    ) -> Result<R, String>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let reply = self.call_unchecked(to, message, call).await?;
        self.channels().lives.check(to.peer, reply.metadata())?;
        Ok(reply.into_inner())
    }

    /// The same; the caller checks which life answered.
    pub(crate) async fn call_unchecked<M, R, F>(
        &self,
        to: To<'_>,
        message: M,
        call: impl FnOnce(PeerClient<Channel>, Request<M>) -> F,
    ) -> Result<Response<R>, String>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let channel = self.channels().get(to.peer, to.addr, false).map_err(|e| e.to_string())?;
        let request = self.channels().request(message, to.group, to.peer);
        let reply = tokio::time::timeout(to.limit, call(PeerClient::new(channel), request)).await;
        let reply = reply.map_err(|_| format!("no answer within {:?}", to.limit))?;
        reply.map_err(|status| status.message().to_string())
    }
}
