//! A stop hands over what this gateway leads. Otherwise each set waits for an election, and before that for the end of
//! what its voters have promised to a leader that is gone. It is the planned move of a drain, to the voter that a drain
//! would choose (MEMBER-M3).

use super::Node;
use super::members::view;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use holdfast_control::members::{successor, wanted};
use holdfast_raft::Group;
use holdfast_set::server::SetServer;
use holdfast_types::sync::RwLockExt;
use holdfast_types::{GroupId, MemberId};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, timeout, timeout_at};

/// How long a stop may take longer for this, however much is led.
pub const HAND_OVER_LIMIT: Duration = Duration::from_secs(5);

/// Most groups that are handed over at the same time.
const AT_ONCE: usize = 32;

/// How long a set's clients may take to get the answers that they wait for, also with long election timeouts: most of
/// [`HAND_OVER_LIMIT`] is for the move.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// A move is tried again after so many election timeouts without another leader, as in `members`.
const TRY_ELECTIONS: u32 = 2;

/// What became of a group that this gateway led.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handed {
    /// This member leads it now.
    To(MemberId),
    /// Nobody took it over, for this reason: its voters elect a leader once this gateway is gone.
    Not(String),
}

fn has_others(group: &Group, me: MemberId) -> bool {
    group.status().members.iter().any(|member| member.voter && member.member != me)
}

fn not<T>(why: &str) -> Result<T, String> {
    Err(why.to_string())
}

impl Node {
    /// Hands each group that this gateway leads to another voter, within `limit`, and says in the log what became of
    /// each. Nothing that is handed over is served here any more, nor is what a voter was asked to take (R6).
    pub fn hand_over_all(self: &Arc<Self>, limit: Duration) -> BoxFuture<'static, Vec<(GroupId, Handed)>> {
        let node = self.clone();
        Box::pin(async move {
            // A pair has no votes: its seat decides who serves.
            let Some(adopted) = node.adopted().filter(|_| node.pair().is_none()) else { return Vec::new() };
            let until = Instant::now() + limit;
            let mut led: Vec<Group> = adopted.raft.groups();
            // Where nobody else votes there is nobody to hand over to, and nothing to say.
            led.retain(|group| group.leading_term().is_some() && has_others(group, adopted.member));
            // Group 0 first: it waits for no set.
            led.sort_by_key(|group| group.id());
            let all: Vec<_> = led.into_iter().map(|group| tell(node.clone(), adopted.member, group, until)).collect();
            stream::iter(all).buffer_unordered(AT_ONCE).collect().await
        })
    }
}

/// Hands one group over, and says so.
async fn tell(node: Arc<Node>, me: MemberId, group: Group, until: Instant) -> (GroupId, Handed) {
    let (id, begun) = (group.id(), Instant::now());
    let name = match node.cluster.read(|state| state.sets.get(&id).map(|entry| entry.name.to_string())) {
        _ if id == GroupId::CLUSTER => "the cluster".to_string(),
        Some(name) => name,
        None => id.to_string(),
    };
    let handed = timeout_at(until, hand_over(&node, me, &group)).await;
    match handed.unwrap_or_else(|_| not("there was no time left")) {
        Ok(to) => {
            let gateway = node.cluster.member(to).map_or_else(|| to.to_string(), |member| member.name.to_string());
            let ms = begun.elapsed().as_millis();
            tracing::info!(set = %name, "this gateway stops: leadership handed to {gateway} in {ms} ms");
            (id, Handed::To(to))
        }
        Err(why) => {
            tracing::warn!(set = %name, %why, "this gateway stops: leadership not handed over, so there will be an election");
            (id, Handed::Not(why))
        }
    }
}

/// The planned move: what has begun is answered, nothing is served in this term any more, leadership goes on.
///
/// # Errors
/// Why no other member leads.
async fn hand_over(node: &Node, me: MemberId, group: &Group) -> Result<MemberId, String> {
    let Some(term) = group.ready_term() else { return not("this gateway was elected just now") };
    if group.is_changing() {
        return not("its voters are being changed");
    }
    let mut heir = choose(node, me, group)?;
    if let Some(server) = server(node, group.id()) {
        server.drain(node.timing.election_max().min(DRAIN_MAX)).await;
        // A later leadership of this gateway must not be ended by a move of this one.
        if group.leading_term() != Some(term) {
            return not("this gateway leads it no more");
        }
        server.stop_serving_for_transfer();
    }
    let mut leadership = group.leadership();
    loop {
        group.transfer_leader(heir).await.map_err(|error| error.to_string())?;
        let taken = async {
            let now = leadership.wait_for(|now| now.stopped || now.leader.is_some_and(|id| id != me)).await;
            now.ok().and_then(|now| now.leader)
        };
        match timeout(node.timing.election_max() * TRY_ELECTIONS, taken).await {
            Ok(Some(leader)) if leader != me => return Ok(leader),
            Ok(_) => return not("its group has stopped here"),
            Err(_) if group.leading_term() != Some(term) => return not("this gateway leads it no more"),
            // It did not take it: it may have just started, or be gone.
            Err(_) => heir = choose(node, me, group)?,
        }
    }
}

/// The voter that is to take the group over, by what is known now.
///
/// # Errors
/// There is none.
fn choose(node: &Node, me: MemberId, group: &Group) -> Result<MemberId, String> {
    let view = view(me, &group.status(), node.timing.election_max());
    let found = node.cluster.read(|state| successor(&view, state, &wanted(state, group.id(), &BTreeSet::new())));
    found.map_or_else(|| not("no other voter that may lead answers and has nearly all entries"), Ok)
}

fn server(node: &Node, id: GroupId) -> Option<Arc<SetServer>> {
    node.sets.reading().values().find(|set| set.id == id).cloned()
}
