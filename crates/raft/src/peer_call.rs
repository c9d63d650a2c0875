//! Calls to peers that the node makes, not openraft: one to a peer, or one to each in turn until the leader answers.

use crate::node::RaftNode;
use crate::proto::peer_client::PeerClient;
use holdfast_types::{GroupId, MemberId};
use std::collections::BTreeMap;
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

/// The answer of a peer to a question that a group's leader answers.
#[derive(Debug)]
pub(crate) enum Said<T> {
    /// It leads, and this is its answer.
    Leads(T),
    /// It does not lead; the leader, 0 if it knows of none.
    Leader(u64),
    /// Not now, and why, for display.
    Busy(String),
    /// Nothing: a build that has more answers than ours.
    Nothing,
}

impl<T> Said<T> {
    fn of_the_leader(self) -> Result<T, String> {
        match self {
            Said::Leads(answer) => Ok(answer),
            Said::Leader(0) => Err("does not lead, and knows of no leader".to_string()),
            Said::Leader(leader) => Err(format!("does not lead, {} does", MemberId(leader))),
            Said::Busy(why) => Err(why),
            Said::Nothing => Err("an answer without a result".to_string()),
        }
    }
}

impl RaftNode {
    /// Asks `peers` (member and address, `HOST:PORT`) except this member, one after the other, each for at most
    /// `limit`, until the leader of `group` answers. The answer of an older or a copied life is refused, as in
    /// [`RaftNode::call`].
    ///
    /// # Errors
    /// Nobody answered as the leader: what each said, for people.
    pub(crate) async fn ask_in_turn<M: Clone, R, T, F>(
        &self,
        group: GroupId,
        peers: &BTreeMap<MemberId, String>,
        limit: Duration,
        message: M,
        call: impl Fn(PeerClient<Channel>, Request<M>) -> F,
        said: impl Fn(R) -> Said<T>,
    ) -> Result<T, Vec<String>>
    where
        F: Future<Output = Result<Response<R>, Status>>,
    {
        let mut answers = Vec::new();
        for (peer, addr) in peers.iter().filter(|(peer, _)| **peer != self.member()) {
            let to = To { group, peer: *peer, addr, limit };
            let reply = self.call(to, message.clone(), &call).await;
            match reply.and_then(|reply| said(reply).of_the_leader()) {
                Ok(answer) => return Ok(answer),
                Err(why) => answers.push(format!("{peer}: {why}")),
            }
        }
        Err(answers)
    }

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_leaders_answer_is_one() {
        assert_eq!(Said::Leads(7).of_the_leader(), Ok(7));
        let why = |said: Said<u8>| said.of_the_leader().unwrap_err();
        assert_eq!(why(Said::Leader(0)), "does not lead, and knows of no leader");
        assert_eq!(why(Said::Leader(3)), "does not lead, m3 does");
        assert_eq!(why(Said::Busy("a change is under way".into())), "a change is under way");
        assert_eq!(why(Said::Nothing), "an answer without a result");
    }
}
