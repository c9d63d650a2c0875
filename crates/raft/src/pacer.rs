//! A group whose times are shorter than openraft's (ADR 0058): heartbeats between openraft's own, elections before
//! openraft's own, and votes that openraft's lease would still refuse. `pacing` has the decisions. openraft's own
//! heartbeats and elections go on as well, so a fault here makes a group slow, not leaderless.
//!
//! openraft counts a longer lease than was promised, so it is asked to disregard it: by the mark of a transfer of
//! leadership. It takes messages one by one, and this module looks at promises outside of that order. So it looks
//! twice:
//!
//! PACER-E1  A voter that is bound by a promise votes for nobody. It looks again once its vote is cast, before the
//!     answer leaves: if it has promised something meanwhile, nobody learns of the vote, as if the answer were lost.
//!     That vote has ended openraft's own lease, also for requests that have passed the first look before it. So
//!     neither look is left to openraft when the group's times are openraft's (again).
//! PACER-E2  A candidate asks nobody for a vote while it is bound by a promise. It looks after it has voted for itself:
//!     that vote counts only with those that it asks for.
//! PACER-E3  A member stands only after a majority (in a joint membership of each part) has said that it would vote for
//!     it. So a member that was cut off deposes nobody when it comes back.

use crate::appender::fatal;
use crate::clock::promise_now;
use crate::config::TypeConfig;
use crate::group::RaftGroup;
use crate::pacing::until_the_next;
use crate::wire::{RaftVote, id_from_raft, id_to_raft, make_vote, vote_from_bytes};
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use holdfast_types::{LogId, MemberId};
use openraft::async_runtime::watch::WatchReceiver;
use openraft::raft::{VoteRequest, VoteResponse};
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tonic::Status;

/// Runs until the group has stopped.
pub(crate) fn start(group: &Arc<RaftGroup>) {
    let (mut leadership, mut retimed) = (group.leadership.clone(), group.retimed.subscribe());
    let group = Arc::downgrade(group);
    tokio::spawn(async move {
        loop {
            let Some(running) = group.upgrade() else { return };
            if leadership.borrow_and_update().stopped {
                return;
            }
            retimed.borrow_and_update();
            let pause = running.turn().await;
            drop(running);
            // Whoever leads now, and under which times, decides what is next.
            let gone = tokio::select! {
                changed = leadership.changed() => changed.is_err(),
                changed = retimed.changed() => changed.is_err(),
                () = after(pause) => false,
            };
            if gone {
                return;
            }
        }
    });
}

async fn after(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}

/// Who votes: one set, or two in a joint membership; and the others' addresses.
struct Voters {
    sets: Vec<BTreeSet<u64>>,
    addresses: BTreeMap<u64, String>,
}

impl Voters {
    fn has(&self, member: MemberId) -> bool {
        self.sets.iter().any(|set| set.contains(&member.0))
    }

    /// PACER-E3.
    fn are_won_by(&self, granted: &BTreeSet<u64>) -> bool {
        let won = |set: &BTreeSet<u64>| set.intersection(granted).count() > set.len() / 2;
        !self.sets.is_empty() && self.sets.iter().all(won)
    }
}

/// Whether a member with this vote and this log would vote for the candidate, as openraft decides it.
fn would_vote(own: Option<&RaftVote>, last: Option<LogId>, rpc: &VoteRequest<TypeConfig>) -> bool {
    rpc.last_log_id.as_ref().map(id_from_raft) >= last && own.is_none_or(|own| rpc.vote >= *own)
}

impl RaftGroup {
    /// Does what is due. Returns when to look again; `None`: when the leader or the times change.
    async fn turn(&self) -> Option<Duration> {
        if self.leading_term().is_some() {
            let every = self.pacing().heartbeat(promise_now())?;
            if let Err(error) = self.raft().trigger().heartbeat().await {
                tracing::debug!(group = %self.id(), %error, "no heartbeat");
            }
            return Some(until_the_next(every, promise_now()));
        }
        let election_min = self.pacing().times().election_min;
        let at = self.pacing().stands_at(self.parts.me, self.parts.votes.at());
        let Some(at) = at else {
            // Nothing tells of the first message of a leader that was known before this member started.
            return self.pacing().is_short().then_some(election_min);
        };
        let left = at.saturating_since(promise_now());
        if !left.is_zero() {
            return Some(left);
        }
        let voters = self.voters();
        if self.candidacy.stands() && voters.has(self.parts.me) {
            self.pacing().tried(promise_now());
            self.stand(&voters, election_min).await;
        }
        Some(election_min)
    }

    fn voters(&self) -> Voters {
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        let membership = metrics.membership_config.membership();
        let addresses = membership.nodes().map(|(id, node)| (*id, node.addr.clone())).collect();
        Voters { sets: membership.get_joint_config().clone(), addresses }
    }

    /// The newest vote of this member, on disk or still being written.
    fn newest_vote(&self) -> Option<RaftVote> {
        self.parts.log.state().vote.as_deref().and_then(vote_from_bytes)
    }

    /// Stands for election if the others would vote for this member (PACER-E3). `limit`: for their answers.
    async fn stand(&self, voters: &Voters, limit: Duration) {
        holdfast_reached::reached!("pacing: it asks whether it would be elected before openraft would");
        let voted = self.parts.votes.at();
        let won = tokio::time::timeout(limit, self.would_win(voters, limit)).await.unwrap_or(false);
        // A leader that was heard meanwhile, or an election that another one may have won.
        if !won || self.pacing().left(promise_now()).is_some() || self.parts.votes.at() != voted {
            return;
        }
        holdfast_reached::reached!("pacing: it stands for election before openraft would");
        tracing::info!(group = %self.id(), "no leader was heard for long enough: standing for election");
        if let Err(error) = self.raft().trigger().elect(false).await {
            tracing::debug!(group = %self.id(), %error, "no election");
        }
    }

    async fn would_win(&self, voters: &Voters, limit: Duration) -> bool {
        let me = self.parts.me;
        let own = self.newest_vote().map_or(0, |vote| vote.leader_id.term);
        let rpc = VoteRequest::<TypeConfig> {
            vote: make_vote(self.pacing().term_to_ask_about(own), me.0, false),
            last_log_id: self.last().map(id_to_raft),
            leadership_transfer: false,
        };
        let ids: BTreeSet<u64> = voters.sets.iter().flatten().copied().filter(|id| *id != me.0).collect();
        let rpc = &rpc;
        let mut answers: FuturesUnordered<_> = ids
            .into_iter()
            .map(|id| {
                let addr = voters.addresses.get(&id).cloned().unwrap_or_default();
                let client = self.parts.network.client(MemberId(id), addr);
                async move { (id, client.ask_vote(rpc, true, limit).await) }
            })
            .collect();
        let mut granted = BTreeSet::from([me.0]);
        while !voters.are_won_by(&granted) {
            match answers.next().await {
                Some((id, Ok(reply))) if reply.vote_granted => {
                    granted.insert(id);
                }
                Some((_, Ok(reply))) => self.pacing().saw_term(reply.vote.leader_id.term),
                Some((id, Err(error))) => {
                    tracing::debug!(group = %self.id(), member = id, %error, "not asked whether it would vote");
                }
                None => return false,
            }
        }
        true
    }

    /// The answer of a member that does not vote now.
    fn no_vote(&self) -> VoteResponse<TypeConfig> {
        let vote = self.newest_vote().unwrap_or_else(|| make_vote(0, 0, false));
        VoteResponse::new(vote, self.last().map(id_to_raft), false)
    }

    /// See [`crate::pacing::Pacing::first_look`].
    fn first_look(&self) -> Option<bool> {
        let leads = self.is_answered();
        self.pacing().first_look(leads, promise_now())
    }

    /// Whether it would vote for the candidate, while it changes nothing here.
    pub(crate) async fn pre_vote(&self, rpc: VoteRequest<TypeConfig>) -> Result<VoteResponse<TypeConfig>, Status> {
        match self.first_look() {
            None => return Ok(self.no_vote()),
            Some(false) => return self.raft().pre_vote(rpc).await.map_err(fatal),
            Some(true) => {}
        }
        let would = would_vote(self.newest_vote().as_ref(), self.last(), &rpc);
        Ok(VoteResponse { vote_granted: would, ..self.no_vote() })
    }

    /// Votes for the candidate, or not (PACER-E1).
    pub(crate) async fn vote(&self, mut rpc: VoteRequest<TypeConfig>) -> Result<VoteResponse<TypeConfig>, Status> {
        let transfer = rpc.leadership_transfer;
        if !transfer {
            let Some(disregards) = self.first_look() else {
                holdfast_reached::reached!("pacing: a vote is asked for while a promise is in force");
                return Ok(self.no_vote());
            };
            // Of the two rules that this overrides, the promise was just looked at, and so was a leader's quorum.
            rpc.leadership_transfer = disregards;
        }
        let reply = self.raft().vote(rpc).await.map_err(fatal)?;
        let bound = self.pacing().second_look(promise_now()).filter(|_| !transfer && reply.vote_granted);
        if let Some(left) = bound {
            holdfast_reached::reached!("pacing: a vote is kept back: a leader was heard meanwhile");
            return Err(Status::unavailable(format!("a leader was heard meanwhile: no vote during {left:?}")));
        }
        Ok(reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::RaftTiming;
    use crate::group_tests::{GROUP, Host, List};
    use crate::lives::Life;
    use futures_util::FutureExt;
    use holdfast_types::{GroupId, Term};

    fn asked(term: u64, last: Option<(u64, u64)>) -> VoteRequest<TypeConfig> {
        let last_log_id = last.map(|(term, index)| id_to_raft(LogId::new(term, index)));
        VoteRequest { vote: make_vote(term, 2, false), last_log_id, leadership_transfer: false }
    }

    #[test]
    fn who_is_behind_would_get_no_vote() {
        let (own, last) = (make_vote(4, 3, true), Some(LogId::new(4, 7)));
        let would = |rpc| would_vote(Some(&own), last, &rpc);
        assert!(would(asked(5, Some((4, 7)))) && would(asked(5, Some((4, 8)))));
        assert!(!would(asked(5, Some((4, 6)))) && !would(asked(5, None)), "its log is shorter");
        assert!(!would(asked(3, Some((4, 7)))), "its term is over");
        assert!(!would(asked(4, Some((4, 7)))), "that term has a leader");
        assert!(would_vote(None, None, &asked(1, None)), "a group that begins");
    }

    /// PACER-E3.
    #[test]
    fn a_joint_membership_is_won_in_both_parts() {
        let sets = vec![BTreeSet::from([1, 2, 3]), BTreeSet::from([1, 4, 5])];
        let voters = Voters { sets, addresses: BTreeMap::new() };
        let won = |granted: &[u64]| voters.are_won_by(&granted.iter().copied().collect());
        assert!(!won(&[1]) && !won(&[1, 2, 3]) && !won(&[1, 4]) && !won(&[2, 4, 5]));
        assert!(won(&[1, 2, 4]) && won(&[2, 3, 4, 5]));
        assert!(voters.has(MemberId(5)) && !voters.has(MemberId(6)));
        let nobody = Voters { sets: Vec::new(), addresses: BTreeMap::new() };
        assert!(!nobody.are_won_by(&BTreeSet::from([1])), "a group without members");
    }

    /// PACER-E1, whatever the times are. On one thread: openraft gets no request before it is waited for.
    #[tokio::test]
    async fn a_vote_is_kept_back_if_a_leader_was_heard_since_the_first_look() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let seconds = Duration::from_secs;
        let longest =
            RaftTiming { election_min: seconds(30), election_max: seconds(60), ..Host::timing(Duration::ZERO) };
        let node = Host::node_with(dir.path(), 1, longest, Life { disk: 1, boot: 1, nonce: 1 })?;
        for (number, election_max) in (0..).zip([seconds(60), seconds(45)]) {
            let id = GroupId(GROUP.0 + number);
            let group = node.start_local(id, Arc::new(List::default()), None).await?;
            group.set_times(RaftTiming { election_max, ..longest });
            let mut vote = Box::pin(group.vote(asked(3, None)));
            assert!(vote.as_mut().now_or_never().is_none(), "openraft has run meanwhile");
            assert_eq!(group.promise(Term(2)), longest.read_lease);
            let answer = vote.await;
            assert!(answer.as_ref().is_err_and(|why| why.message().contains("a leader was heard")), "{answer:?}");
        }
        node.stop().await;
        Ok(())
    }

    /// A member that was started again knows the set's times before it hears the leader. If that is the one of before,
    /// nothing changes when it is heard.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_member_that_has_heard_no_leader_yet_looks_again() -> anyhow::Result<()> {
        let dir = tempfile::tempdir()?;
        let node = Host::node(dir.path(), 1)?;
        let group = node.start_local(GROUP, Arc::new(List::default()), None).await?;
        assert_eq!(group.turn().await, None, "its times are openraft's");
        let longest = Host::timing(Duration::ZERO);
        group.set_times(RaftTiming { election_max: longest.election_max * 3 / 4, ..longest });
        assert_eq!(group.turn().await, Some(longest.election_min), "it would sleep until the leader changes");
        node.stop().await;
        Ok(())
    }
}
