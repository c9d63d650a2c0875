//! Registers this process's start with group 0 (CLUSTER-C3): this side asks, the leader of group 0 commits.

use crate::hooks::Registered;
use crate::lives::Lineage;
use crate::node::RaftNode;
use crate::peer_call::To;
use crate::proto::{self, register_reply::Result as Outcome};
use futures_util::future::BoxFuture;
use holdfast_types::{GroupId, MemberId};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long one gateway may take to answer.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// Time limit for an answer at this member's own address. If nobody answers there, the other gateways are asked after
/// this time.
const OWN_LIMIT: Duration = Duration::from_secs(1);

impl RaftNode {
    /// Registers this process, whose build knows feature level `level`, with the leader of group 0: this member, or one
    /// of `peers`.
    ///
    /// If `peers` has this member's own address, that is asked first. Another process that answers there uses a copy of
    /// this disk. It may have acknowledged entries that this copy lacks; a registration would make the others refuse it
    /// and count this one. So this one is refused, before anything is lost.
    pub fn register<'a>(&'a self, peers: &'a BTreeMap<MemberId, String>, level: u32) -> BoxFuture<'a, Registered> {
        Box::pin(async move {
            if let Some(addr) = peers.get(&self.member())
                && let refused @ Registered::Refused(_) = self.ask_register(self.member(), addr, level, OWN_LIMIT).await
            {
                return refused;
            }
            let leads = self.local(GroupId::CLUSTER).is_some_and(|group| group.leading_term().is_some());
            if leads {
                return self.registered(self.member(), self.lineage(), level).await;
            }
            let mut answers = Vec::new();
            for (peer, addr) in peers.iter().filter(|(peer, _)| **peer != self.member()) {
                match self.ask_register(*peer, addr, level, ASK_LIMIT).await {
                    Registered::NotNow(why) => answers.push(format!("{peer}: {why}")),
                    known => return known,
                }
            }
            Registered::NotNow(answers.join("; "))
        })
    }

    async fn ask_register(&self, peer: MemberId, addr: &str, level: u32, limit: Duration) -> Registered {
        let to = To { group: GroupId::CLUSTER, peer, addr, limit };
        let message = proto::RegisterRequest { level };
        let reply = self.call_unchecked(to, message, |mut peer, request| async move { peer.register(request).await });
        let reply = match reply.await {
            Ok(reply) => reply,
            Err(why) => return Registered::NotNow(why),
        };
        // At our own address, another life is exactly what we look for (CLUSTER-C3).
        if peer != self.member() && self.channels().lives.check(peer, reply.metadata()).is_err() {
            return Registered::NotNow("an older or a copied life answers there".to_string());
        }
        match reply.into_inner().result {
            Some(Outcome::Boot(_)) => Registered::Done,
            Some(Outcome::Refused(why)) => Registered::Refused(why),
            Some(Outcome::Leader(leader)) => Registered::NotNow(format!("does not lead ({leader} does)")),
            Some(Outcome::Busy(why)) => Registered::NotNow(why),
            None => Registered::NotNow("an answer without a result".to_string()),
        }
    }

    /// The leader's side.
    pub(crate) async fn registered(&self, member: MemberId, lineage: Lineage, level: u32) -> Registered {
        match self.registrar() {
            Some(registrar) => registrar(member, lineage, level).await,
            None => Registered::NotNow("nothing is registered here".to_string()),
        }
    }
}
