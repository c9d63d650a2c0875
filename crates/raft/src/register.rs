//! A start is registered with group 0 (C3): this side asks, the leader's side commits. What a registration means is not known here: the
//! owner of group 0's state gives a [`Registrar`].

use crate::lives::Lineage;
use crate::node::RaftNode;
use crate::proto::{self, peer_client::PeerClient, register_reply::Result as Outcome};
use futures_util::future::BoxFuture;
use holdfast_types::{GroupId, MemberId};
use std::collections::BTreeMap;
use std::time::Duration;

/// How long one gateway may take to answer.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// How long whoever answers at this member's own address may take: where nobody does, or it cannot be reached from here, the others are asked so much later.
const OWN_LIMIT: Duration = Duration::from_secs(1);

/// What became of a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Registered {
    /// It is committed: every older life of the member is refused from now on.
    Done,
    /// Nobody could say, or nobody could do it now; asked again. Why, for people.
    NotNow(String),
    /// This life cannot be the member's. Why, for people.
    Refused(String),
}

/// Commits a registration at the leader of group 0.
pub type Registrar = Box<dyn Fn(MemberId, Lineage, u32) -> BoxFuture<'static, Registered> + Send + Sync>;

impl RaftNode {
    /// Registers this process, whose build knows `level`, with whoever leads group 0: this member itself, or one of `peers`.
    ///
    /// This member's own address, where `peers` has it, is asked first. Another process that answers there uses a copy of this disk. It may have acknowledged what this
    /// copy lacks, and a registration would have the others refuse it and count this one: so this one is refused, while nothing has been lost.
    pub async fn register(&self, peers: &BTreeMap<MemberId, String>, level: u32) -> Registered {
        if let Some(addr) = peers.get(&self.member())
            && let refused @ Registered::Refused(_) = self.ask_register(self.member(), addr, level, OWN_LIMIT).await
        {
            return refused;
        }
        let leads = self.group(GroupId::CLUSTER).is_some_and(|group| group.leading_term().is_some());
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
    }

    async fn ask_register(&self, peer: MemberId, addr: &str, level: u32, limit: Duration) -> Registered {
        let channel = match self.channels().get(peer, addr, false) {
            Ok(channel) => channel,
            Err(e) => return Registered::NotNow(e.to_string()),
        };
        let request = self.addressed(proto::RegisterRequest { level }, GroupId::CLUSTER, peer);
        let mut client = PeerClient::new(channel);
        match tokio::time::timeout(limit, client.register(request)).await {
            Err(_) => Registered::NotNow(format!("no answer within {limit:?}")),
            Ok(Err(status)) => Registered::NotNow(status.message().to_string()),
            // Another process of this very member says by its answer that it is another (C3): that is what is asked there.
            Ok(Ok(reply)) if peer != self.member() && self.channels().lives.check(peer, reply.metadata()).is_err() => {
                Registered::NotNow("an older or a cloned life answers there".to_string())
            }
            Ok(Ok(reply)) => match reply.into_inner().result {
                Some(Outcome::Boot(_)) => Registered::Done,
                Some(Outcome::Refused(why)) => Registered::Refused(why),
                Some(Outcome::Leader(leader)) => Registered::NotNow(format!("does not lead ({leader} does)")),
                Some(Outcome::Busy(why)) => Registered::NotNow(why),
                None => Registered::NotNow("an answer without a result".to_string()),
            },
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
