//! One group on this node, run by openraft. `change` changes its members; `raft_consensus` is its public interface.

use crate::acks::{Acks, in_all_parts};
use crate::candidacy::Candidacy;
use crate::config::{Answer, RaftTiming, TypeConfig};
use crate::consensus::GroupError;
use crate::leadership::{Asks, watch_leadership};
use crate::log_store::VotedTerm;
use crate::machine::{Adapter, Shared};
use crate::network::Network;
use crate::newest_stream::NewestStreams;
use crate::pacing::Pacing;
use crate::status::{Acked, GroupStatus, LACKS_COUNTED_MAX, Leadership, MemberStatus};
use crate::wire::{id_from_raft, vote_from_bytes};
use bytes::Bytes;
use holdfast_log::GroupLog;
use holdfast_types::sync::LockExt;
use holdfast_types::{GroupId, LogId, LogIndex, MemberId, Term};
use std::collections::BTreeSet;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;
use tokio::sync::watch;

type Raft = openraft::Raft<TypeConfig, Adapter>;

/// The parts of a group.
pub(crate) struct GroupParts {
    pub id: GroupId,
    pub me: MemberId,
    pub raft: Raft,
    pub shared: Arc<Shared>,
    pub log: GroupLog,
    pub acks: Arc<Acks>,
    /// Its present times, and what this member has promised in it.
    pub pacing: Arc<Mutex<Pacing>>,
    /// For calls to its other members.
    pub network: Network,
    /// How long a member may be silent before it counts as absent.
    pub patience: Duration,
    /// The term of the vote on disk when this process started the group: see [`RaftGroup::leading_term`].
    pub started_in: Term,
    /// Terms that this member has voted in: see [`RaftGroup::leading_term`].
    pub votes: Arc<VotedTerm>,
}

/// A group that openraft runs.
pub(crate) struct RaftGroup {
    pub(crate) parts: GroupParts,
    pub(crate) leadership: watch::Receiver<Leadership>,
    pub(crate) candidacy: Candidacy,
    /// Held by the change of members that is under way (CHANGE-B1).
    pub(crate) changing: Arc<tokio::sync::Mutex<()>>,
    /// Of the peers that append here.
    pub(crate) newest_streams: NewestStreams,
    /// Changes when the group's times do.
    pub(crate) retimed: watch::Sender<()>,
}

impl RaftGroup {
    pub(crate) fn new(parts: GroupParts) -> Self {
        let asks = Asks { me: parts.me, started_in: parts.started_in };
        let leadership = watch_leadership(asks, parts.raft.server_metrics(), parts.raft.metrics());
        let candidacy = Candidacy::new(crate::clock::boot_now());
        let (changing, newest_streams) = (Arc::default(), NewestStreams::default());
        Self { parts, leadership, candidacy, changing, newest_streams, retimed: watch::Sender::new(()) }
    }

    pub(crate) fn id(&self) -> GroupId {
        self.parts.id
    }

    pub(crate) fn raft(&self) -> &Raft {
        &self.parts.raft
    }

    /// See [`crate::Consensus::leading_term`].
    ///
    /// Never the term that this process started in (R6): before openraft has processed the vote on disk, which is a
    /// leader's that must not be restored, it reports for a moment that this member leads. Nothing once the group has
    /// stopped here (a failed disk, a bad record): openraft then keeps its last report, and a caller that believed it
    /// would not ask the present leader. And nothing once this member votes in a later term (R3): its answer may make
    /// another leader before openraft reports that this one no longer leads.
    pub(crate) fn leading_term(&self) -> Option<Term> {
        use openraft::async_runtime::watch::WatchReceiver;
        if self.raft().metrics().borrow_watched().running_state.is_err() {
            return None;
        }
        let term = self.raft().as_leader().ok().map(|l| Term(l.term()))?;
        holdfast_reached::reached!("leader: a vote of before the start seems to lead", term <= self.parts.started_in);
        holdfast_reached::reached!(
            "leader: it has voted in a later term and seems to lead",
            term > self.parts.started_in && !self.parts.votes.allows(term)
        );
        (term > self.parts.started_in && self.parts.votes.allows(term)).then_some(term)
    }

    /// The leader as this member knows it.
    pub(crate) fn leader(&self) -> Option<MemberId> {
        self.leadership.borrow().leader
    }

    /// See [`crate::Consensus::quorum_promised`].
    pub(crate) fn quorum_promised(&self) -> Option<(Term, Acked)> {
        use openraft::async_runtime::watch::WatchReceiver;
        let term = self.leading_term()?;
        let now = crate::clock::boot_now();
        let own = Acked::new(now, now.saturating_add(self.pacing().longest().read_lease));
        let metrics = self.raft().metrics();
        let metrics = metrics.borrow_watched();
        let configs = metrics.membership_config.membership().get_joint_config();
        let answers = configs.iter().map(|voters| self.parts.acks.quorum(term.0, self.parts.me, voters, own));
        holdfast_reached::reached!("read lease: a joint membership", configs.len() > 1);
        holdfast_reached::reached!(
            "read lease: one part of a joint membership has no quorum",
            answers.clone().any(|at| at.is_none()) && answers.clone().any(|at| at.is_some())
        );
        in_all_parts(answers).map(|acked| (term, acked))
    }

    pub(crate) fn pacing(&self) -> MutexGuard<'_, Pacing> {
        self.parts.pacing.locked()
    }

    /// See [`crate::Consensus::set_times`].
    pub(crate) fn set_times(&self, times: RaftTiming) {
        let changed = self.pacing().change(times, crate::clock::promise_now());
        if changed {
            tracing::info!(group = %self.id(), election_min = ?times.election_min, "the group's timing changed");
            self.retimed.send_replace(());
        }
    }

    /// A message of a leader of `term` is about to be taken: this member will vote for nobody else for a while. Returns
    /// for how long the leader may read because of the answer (PLEDGE-P2). Nothing is promised to a leader that this
    /// member has voted against: its message will be refused.
    pub(crate) fn promise(&self, term: Term) -> Duration {
        if !self.parts.votes.allows(term) {
            return Duration::ZERO;
        }
        self.pacing().give(crate::clock::promise_now())
    }

    /// Whether a quorum has answered this member as leader, so that it may still read.
    pub(crate) fn is_answered(&self) -> bool {
        let now = crate::clock::boot_now();
        self.quorum_promised().is_some_and(|(_, acked)| acked.until > now)
    }

    /// The last entry of the log here, also if only a snapshot has it.
    pub(crate) fn last(&self) -> Option<LogId> {
        let log = self.parts.log.state();
        log.last.max(log.purged).max(self.parts.shared.snapshot_last())
    }

    /// The last entry applied here.
    pub(crate) fn applied(&self) -> LogId {
        self.parts.shared.applied()
    }

    /// See [`crate::Consensus::unheard`].
    pub(crate) fn unheard(&self) -> Duration {
        if self.leading_term().is_some() {
            self.candidacy.heard();
        }
        self.candidacy.unheard()
    }

    /// The vote embargo after the start is over.
    pub(crate) fn embargo_over(&self) {
        self.candidacy.end_embargo();
        self.raft().runtime_config().elect(self.candidacy.stands());
    }

    /// Looks whether this log has `since`, the entry at which this member was taken out of the group. Until then it
    /// stands for no election (QUARANTINE-Q4, VOTERS-V4): its newest membership is one of long ago, which may name
    /// voters that were left behind in it, or this member alone.
    pub(crate) fn learn_up_to(&self, since: LogId) {
        self.candidacy.set_learning(self.last() < Some(since));
        self.raft().runtime_config().elect(self.candidacy.stands());
    }

    /// See [`crate::Consensus::stand_aside`].
    pub(crate) fn stand_aside(&self, aside: bool) {
        if self.candidacy.set_aside(aside) {
            tracing::debug!(group = %self.id(), aside, "stands aside in elections");
        }
        self.raft().runtime_config().elect(self.candidacy.stands());
    }

    /// The difference between this member's log and `acked`, which a leader says that this member acknowledged; `None`
    /// if the log has `acked`.
    pub(crate) fn lacks(&self, acked: LogId) -> Option<String> {
        let log = &self.parts.log;
        let state = log.state();
        if state.purged.is_some_and(|purged| purged.index >= acked.index) {
            return None;
        }
        match (state.last.filter(|last| last.index >= acked.index), log.term_at(acked.index)) {
            (None, _) => Some(state.last.map_or("no entry at all".to_string(), |last| format!("{last} as the last"))),
            (Some(_), Some(term)) if term != acked.term => Some(format!("an entry of {term} there")),
            _ => None,
        }
    }

    /// The group as this member sees it.
    pub(crate) fn status(&self) -> GroupStatus {
        use openraft::async_runtime::watch::WatchReceiver;
        let metrics = self.raft().metrics().borrow_watched().clone();
        let membership = metrics.membership_config.membership();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        // openraft's clock.
        let now = crate::clock::promise_now();
        let replication = metrics.replication.as_ref();
        let matched = |id: &u64| {
            let at = replication.and_then(|of| of.get(id).cloned().flatten());
            at.map(|log_id| LogIndex(log_id.index))
        };
        let lacks = |at: LogIndex| self.parts.log.bytes_after(at, LACKS_COUNTED_MAX);
        let members = membership
            .nodes()
            .map(|(id, node)| MemberStatus {
                member: MemberId(*id),
                voter: voters.contains(id),
                matched: matched(id),
                lacks_bytes: matched(id).and_then(lacks).unwrap_or(u64::MAX),
                silent: metrics
                    .heartbeat
                    .as_ref()
                    .and_then(|h| h.get(id).copied().flatten())
                    .map(|acked| now.saturating_since(acked.into_inner().0)),
                addr: node.addr.clone(),
            })
            .collect();
        let log = self.parts.log.state();
        GroupStatus {
            group: self.parts.id,
            leadership: *self.leadership.borrow(),
            voted: log.vote.as_deref().and_then(vote_from_bytes).map_or(Term(0), |vote| Term(vote.leader_id.term)),
            last: metrics.last_log_index.map(LogIndex),
            applied: metrics.last_applied.map(|id| LogId::new(id.leader_id.term, id.index)),
            snapshot: self.parts.shared.snapshot_last(),
            purged: log.purged,
            live_bytes: self.parts.log.live_bytes(),
            members,
            settled: metrics.membership_config.log_id().as_ref().map(|id| id.index)
                <= metrics.last_applied.as_ref().map(|id| id.index),
            membership: metrics.membership_config.log_id().as_ref().map(id_from_raft),
            next: match membership.get_joint_config().as_slice() {
                [] | [_] => None,
                [.., next] => Some(next.iter().copied().map(MemberId).collect()),
            },
        }
    }

    /// Whether `member` has answered recently; this member always has.
    pub(crate) fn answers(&self, member: &MemberStatus) -> bool {
        member.member == self.parts.me || member.silent.is_some_and(|silent| silent <= self.parts.patience)
    }

    pub(crate) async fn stop(&self) {
        self.parts.shared.close();
        if let Err(e) = self.raft().shutdown().await {
            tracing::warn!(group = %self.id(), error = %e, "group did not stop cleanly");
        }
    }

    /// [`RaftGroup::stop`], permanently: the group writes nothing more to disk.
    pub(crate) async fn end(&self) {
        self.stop().await;
        self.parts.shared.end().await;
    }

    pub(crate) fn refused(&self, e: impl std::fmt::Display) -> GroupError {
        GroupError::Refused { group: self.id(), reason: e.to_string() }
    }
}

impl From<Answer> for Bytes {
    fn from(answer: Answer) -> Bytes {
        answer.0
    }
}
