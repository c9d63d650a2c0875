//! A stop hands over what this gateway leads. Otherwise each set waits for an election, and before that for the end of
//! what its voters have promised to a leader that is gone. It is the planned move of a drain, to the voter that a drain
//! would choose (MEMBER-M3).

use super::Node;
use super::members::view;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, stream};
use holdfast_control::members::{GroupView, successor, wanted};
use holdfast_raft::Group;
use holdfast_set::server::SetServer;
use holdfast_types::sync::RwLockExt;
use holdfast_types::{GroupId, MemberId, Term};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Instant, sleep, timeout, timeout_at};

/// How long a stop may take longer for this, however much is led.
pub const HAND_OVER_LIMIT: Duration = Duration::from_secs(5);

/// Most groups that are handed over at the same time.
const AT_ONCE: usize = 32;

/// How long a set's clients may take to get the answers that they wait for, also with long election timeouts: most of
/// [`HAND_OVER_LIMIT`] is for the move.
const DRAIN_MAX: Duration = Duration::from_secs(1);

/// So often a group is offered, each time for an election timeout. Whoever has just started takes nothing for a little
/// longer than one; who is gone never does, and once the offer is out the others elect a leader within two.
const OFFERS: u32 = 3;

/// Between two looks whether a new leader knows what was committed before it.
const LOOK: Duration = Duration::from_millis(10);

/// What became of a group that this gateway led.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Handed {
    /// This member leads it now.
    To(MemberId),
    /// Nobody took it over, for this reason: its voters elect a leader once this gateway is gone.
    Not(String),
}

const LEADS_NO_MORE: &str = "this gateway leads it no more";

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
            let (me, raft) = (adopted.member, adopted.raft);
            let led = || {
                // Where nobody else votes there is nobody to hand over to, and nothing to say.
                let groups = raft.groups().into_iter().filter(|group| has_others(group, me));
                let led = groups.filter_map(|group| Some(((group.id(), group.leading_term()?), group)));
                led.collect::<BTreeMap<_, _>>()
            };
            each_once(led, |group| tell(node.clone(), me, group, until), until).await
        })
    }
}

/// Carries out `hand` for each leadership that is `led`, group 0 first: it waits for no set. Again for those that come
/// meanwhile: another gateway that stops at the same time may have given them. Each leadership has one turn, and none
/// begins after `until`.
async fn each_once<G, W: Future>(
    led: impl Fn() -> BTreeMap<(GroupId, Term), G>,
    hand: impl Fn(G) -> W,
    until: Instant,
) -> Vec<W::Output> {
    let (mut begun, mut done) = (BTreeSet::new(), Vec::new());
    loop {
        let mut now = led();
        now.retain(|leadership, _| begun.insert(*leadership));
        if now.is_empty() || Instant::now() >= until {
            return done;
        }
        let all: Vec<W> = now.into_values().map(&hand).collect();
        done.extend(stream::iter(all).buffer_unordered(AT_ONCE).collect::<Vec<_>>().await);
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
    let patience = node.timing.election_max();
    let found = timeout(patience, ready(group)).await;
    let Some(term) = found.map_err(|_| "this gateway was elected just now")? else { return not(LEADS_NO_MORE) };
    if group.is_changing() {
        return not("its voters are being changed");
    }
    let mut view = view(me, &group.status(), patience);
    let mut heir = choose(node, group.id(), &view)?;
    if let Some(server) = server(node, group.id()) {
        server.drain(patience.min(DRAIN_MAX)).await;
        // A later leadership of this gateway must not be ended by a move of this one.
        if group.leading_term() != Some(term) {
            return not(LEADS_NO_MORE);
        }
        server.stop_serving_for_transfer();
    }
    let mut leadership = group.leadership();
    for _ in 0..OFFERS {
        // Without effect where it leads no more.
        group.transfer_leader(heir).await.map_err(|error| error.to_string())?;
        let taken = async {
            let now = leadership.wait_for(|now| now.stopped || now.leader.is_some_and(|id| id != me)).await;
            now.ok().and_then(|now| now.leader)
        };
        match timeout(patience, taken).await {
            Ok(Some(leader)) if leader != me => return Ok(leader),
            Ok(_) => return not("its group has stopped here"),
            Err(_) => {}
        }
        match group.leading_term() {
            // An election is under way, and this gateway's vote may be needed.
            None => {}
            Some(now) if now != term => return not("this gateway was elected again"),
            // It did not take it: the next one, or the same again if there is none. What was known before the move
            // counts: since then this gateway has sent no heartbeats, so nobody has answered it.
            Some(_) => {
                view.peers.retain(|peer| peer.id != heir);
                heir = choose(node, group.id(), &view).unwrap_or(heir);
            }
        }
    }
    not("nobody took it")
}

/// The term in which this gateway leads, once it knows all that was committed before; `None` if it leads no more.
async fn ready(group: &Group) -> Option<Term> {
    loop {
        let leads = group.leading_term()?;
        if group.ready_term() == Some(leads) {
            return Some(leads);
        }
        sleep(LOOK).await;
    }
}

/// The voter that is to take the group over, of those in `view`.
///
/// # Errors
/// There is none.
fn choose(node: &Node, group: GroupId, view: &GroupView) -> Result<MemberId, String> {
    let found = node.cluster.read(|state| successor(view, state, &wanted(state, group, &BTreeSet::new())));
    found.map_or_else(|| not("no other voter that may lead answers and has nearly all entries"), Ok)
}

fn server(node: &Node, id: GroupId) -> Option<Arc<SetServer>> {
    node.sets.reading().values().find(|set| set.id == id).cloned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    /// Two gateways stop at once: one gives the other a set while that one hands over its own. It would end with it.
    #[tokio::test]
    async fn a_leadership_that_comes_meanwhile_is_handed_over_too() {
        let leads: [&[(u64, u64)]; 3] = [&[(0, 4), (3, 7)], &[(1, 9), (3, 7)], &[(0, 6), (3, 7)]];
        let round = Cell::new(0_usize);
        let led = || {
            let now = leads[round.replace(round.get() + 1).min(2)];
            now.iter()
                .map(|(group, term)| ((GroupId(*group), Term(*term)), (*group, *term)))
                .collect::<BTreeMap<_, _>>()
        };
        let hand = |leadership: (u64, u64)| std::future::ready(leadership);
        let mut done = each_once(led, hand, Instant::now() + HAND_OVER_LIMIT).await;
        done.sort_unstable();
        // Group 3 could not be handed over, and is not tried again. Group 0 came back.
        assert_eq!(done, [(0, 4), (0, 6), (1, 9), (3, 7)]);
        round.set(0);
        assert!(each_once(led, hand, Instant::now()).await.is_empty(), "no time is left");
    }
}
