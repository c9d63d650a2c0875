//! A handle to one Raft group on this node: propose, read the log, see who leads, move leadership, change members.

use crate::change::Changing;
use crate::config::{Answer, Payload, TypeConfig};
use crate::machine::{Adapter, Shared};
use crate::members::Candidacy;
use crate::network::Acks;
use crate::script::{Outcome, Script};
use crate::wire::{CommittedLeader, MEMBERSHIP_MARK, id_from_raft};
use bytes::Bytes;
use holdfast_log::GroupLog;
use holdfast_types::{GroupId, LogId, LogIndex, MemberId, MonoTime, Term};
use openraft::errors::{ClientWriteError, RaftError};
use openraft::impls::{BasicNode, ProgressResponder};
use openraft::raft::ClientWriteResult;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

type Raft = openraft::Raft<TypeConfig, Adapter>;

/// A part of the log that could not be read.
pub use holdfast_log::{ReadError as ReadLogError, ReadPlace};

/// Who leads a group, as this member knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// Current term.
    pub term: Term,
    /// The leader of that term, where known.
    pub leader: Option<MemberId>,
    /// Whether that leader is this member.
    pub mine: bool,
    /// Whether this member's group has stopped for good (storage error, shutdown).
    pub stopped: bool,
}

/// An entry that was committed and applied here.
#[derive(Clone, Debug)]
pub struct Proposed {
    /// Its place.
    pub id: LogId,
    /// What the state machine answered.
    pub answer: Bytes,
}

/// A proposal did not come back as applied.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProposeError {
    /// Never appended anywhere: this member does not lead (in the term asked for).
    #[error("not the leader; the leader is {}", .leader.map_or("unknown".to_string(), |m| m.to_string()))]
    NotLeader {
        /// Whom to ask instead, where known.
        leader: Option<MemberId>,
    },
    /// It may have happened or may still happen (R12).
    #[error("outcome unknown: {reason}")]
    Unknown {
        /// Why.
        reason: String,
    },
    /// The group has stopped on this member.
    #[error("group stopped: {reason}")]
    Stopped {
        /// Why.
        reason: String,
    },
    /// The payload is not one that a state machine may be given.
    #[error("payload: found first byte {found:?}, expected at least one byte, the first not {MEMBERSHIP_MARK:#04x}")]
    BadPayload {
        /// The first byte.
        found: Option<u8>,
    },
}

/// A change of members or leader did not happen.
#[derive(Debug, thiserror::Error)]
pub enum GroupError {
    /// The group refused or stopped; openraft's words.
    #[error("group {group}: {reason}")]
    Refused {
        /// The group.
        group: GroupId,
        /// Why.
        reason: String,
    },
    /// It took longer than asked for; it may still happen.
    #[error("group {group}: {what} not done within {limit:?}; it may still happen")]
    Late {
        /// The group.
        group: GroupId,
        /// What was asked for.
        what: &'static str,
        /// The limit.
        limit: Duration,
    },
}

/// One member as the leader sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemberStatus {
    /// The member.
    pub member: MemberId,
    /// Whether it votes.
    pub voter: bool,
    /// Newest entry that it is known to hold; only the leader knows.
    pub matched: Option<LogIndex>,
    /// Since the last answer; only the leader knows.
    pub silent: Option<Duration>,
    /// Its address as the membership names it.
    pub addr: String,
}

/// A group as this member sees it.
#[derive(Clone, Debug)]
pub struct GroupStatus {
    /// The group.
    pub group: GroupId,
    /// Who leads.
    pub leadership: Leadership,
    /// Newest entry here.
    pub last: Option<LogIndex>,
    /// Newest entry applied here.
    pub applied: Option<LogId>,
    /// What the newest snapshot covers.
    pub snapshot: Option<LogId>,
    /// What was dropped from the log.
    pub purged: Option<LogId>,
    /// Bytes of the log that are live.
    pub live_bytes: u64,
    /// Every member.
    pub members: Vec<MemberStatus>,
    /// The members are those of an entry that is applied here, not of one that may still be taken back.
    pub settled: bool,
    /// That entry.
    pub membership: Option<LogId>,
    /// Between two sets of voters: the newer one. Both have to agree to everything until the change is ended.
    pub next: Option<BTreeSet<MemberId>>,
}

/// A proposal on its way.
pub struct Pending {
    rx: Answering,
}

enum Answering {
    Raft(tokio::sync::oneshot::Receiver<ClientWriteResult<TypeConfig>>),
    Script(tokio::sync::oneshot::Receiver<Outcome>),
}

impl Pending {
    /// Waits until the entry was applied here, or it is known that it will not be.
    ///
    /// # Errors
    /// [`ProposeError`]; `Unknown` where it may have happened.
    pub async fn wait(self) -> Result<Proposed, ProposeError> {
        let rx = match self.rx {
            Answering::Raft(rx) => rx,
            Answering::Script(rx) => {
                let unknown = || ProposeError::Unknown { reason: "the group dropped the proposal".to_string() };
                return rx.await.unwrap_or_else(|_| Err(unknown()));
            }
        };
        match rx.await {
            Ok(Ok(done)) => {
                Ok(Proposed { id: LogId::new(done.log_id.leader_id.term, done.log_id.index), answer: done.data.0 })
            }
            Ok(Err(ClientWriteError::ForwardToLeader(f))) => {
                Err(ProposeError::NotLeader { leader: f.leader_id.map(MemberId) })
            }
            Ok(Err(e)) => Err(ProposeError::Unknown { reason: e.to_string() }),
            Err(_) => Err(ProposeError::Unknown { reason: "the group dropped the proposal".to_string() }),
        }
    }
}

/// Handle to a group. Cheap to clone.
#[derive(Clone)]
pub struct Group {
    inner: Kind,
}

#[derive(Clone)]
enum Kind {
    Raft(Arc<Inner>),
    /// Never in a gateway that serves (see [`Script`]).
    Script(Arc<dyn Script>),
}

impl std::ops::Deref for Kind {
    type Target = Inner;

    /// The parts of a group of openraft's. What a scripted group is asked looks before.
    fn deref(&self) -> &Inner {
        match self {
            Kind::Raft(inner) => inner,
            Kind::Script(_) => panic!("a scripted group was asked for something that its script does not answer"),
        }
    }
}

struct Inner {
    id: GroupId,
    me: MemberId,
    raft: Raft,
    shared: Arc<Shared>,
    log: GroupLog,
    acks: Arc<Acks>,
    leadership: watch::Receiver<Leadership>,
    /// How long a member may be silent before it counts as not there.
    patience: Duration,
    candidacy: Candidacy,
    changing: Changing,
    /// See [`Group::leading_term`].
    started_in: Term,
}

impl Group {
    #[expect(clippy::too_many_arguments, reason = "the parts that one place puts together")]
    pub(crate) fn new(
        id: GroupId,
        me: MemberId,
        raft: Raft,
        shared: Arc<Shared>,
        log: GroupLog,
        acks: Arc<Acks>,
        patience: Duration,
        started_in: Term,
    ) -> Self {
        let leadership = watch_leadership(me, &raft, started_in);
        let (candidacy, changing) = (Candidacy::new(crate::clock::boot_now()), Changing::default());
        let inner = Inner { id, me, raft, shared, log, acks, leadership, patience, candidacy, changing, started_in };
        Self { inner: Kind::Raft(Arc::new(inner)) }
    }

    /// A group that `script` answers for, in place of Raft: for a simulation. Members, leadership and snapshots cannot be changed through it;
    /// asked to, it panics.
    pub fn scripted(script: Arc<dyn Script>) -> Self {
        Self { inner: Kind::Script(script) }
    }

    pub(crate) fn script(&self) -> Option<&dyn Script> {
        match &self.inner {
            Kind::Raft(_) => None,
            Kind::Script(script) => Some(&**script),
        }
    }

    pub(crate) fn raft(&self) -> &Raft {
        &self.inner.raft
    }

    /// The group's id.
    pub fn id(&self) -> GroupId {
        if let Some(script) = self.script() {
            return script.id();
        }
        self.inner.id
    }

    /// This member.
    pub fn me(&self) -> MemberId {
        if let Some(script) = self.script() {
            return script.me();
        }
        self.inner.me
    }

    /// Who leads; changes wake the receiver.
    pub fn leadership(&self) -> watch::Receiver<Leadership> {
        if let Some(script) = self.script() {
            return script.leadership();
        }
        self.inner.leadership.clone()
    }

    /// The term in which this member leads, by openraft's newest word; not a permission to serve (see `control::serve`).
    ///
    /// Never the term that this process started in (R6): until openraft has taken the vote on disk for what it is, that of a leader that
    /// is not restored, it says for a moment that this member leads. Nor once the group has stopped here (a failed disk, a broken record): openraft leaves its
    /// last word standing then, in which it may have led, and whoever believed it would be kept from asking the leader that there is now.
    pub fn leading_term(&self) -> Option<Term> {
        use openraft::async_runtime::watch::WatchReceiver;
        if let Some(script) = self.script() {
            return script.leading_term();
        }
        if self.inner.raft.metrics().borrow_watched().running_state.is_err() {
            return None;
        }
        self.inner.raft.as_leader().ok().map(|l| Term(l.term())).filter(|term| *term > self.inner.started_in)
    }

    /// Term in which this member leads, and the *send* time of the newest heartbeats that a quorum acknowledged in it; in a
    /// joint membership a quorum of each part.
    pub fn quorum_acked(&self) -> Option<(Term, MonoTime)> {
        use openraft::async_runtime::watch::WatchReceiver;
        if let Some(script) = self.script() {
            return script.quorum_acked();
        }
        let term = self.leading_term()?;
        let now = crate::clock::boot_now();
        let metrics = self.inner.raft.metrics();
        let metrics = metrics.borrow_watched();
        let configs = metrics.membership_config.membership().get_joint_config();
        let times = configs.iter().map(|voters| self.inner.acks.quorum(term.0, self.inner.me, voters, now));
        // `None` is less than any moment: one part without a quorum leaves the whole without.
        times.min().flatten().map(|at| (term, at))
    }

    /// The last entry applied here.
    pub fn applied(&self) -> LogId {
        if let Some(script) = self.script() {
            return script.applied();
        }
        self.inner.shared.applied()
    }

    /// What the newest snapshot here covers.
    pub fn snapshot_last(&self) -> Option<LogId> {
        if let Some(script) = self.script() {
            return script.snapshot_last();
        }
        self.inner.shared.snapshot_last()
    }

    /// Why the newest snapshot here is not on the disk yet, though it is tried: nothing is purged meanwhile.
    pub fn unsaved_snapshot(&self) -> Option<String> {
        if self.script().is_some() {
            return None;
        }
        self.inner.shared.unsaved()
    }

    /// Bytes of the log that are live here.
    pub fn live_bytes(&self) -> u64 {
        if let Some(script) = self.script() {
            return script.live_bytes();
        }
        self.inner.log.live_bytes()
    }

    /// Hands an entry to the group; with `term`, only if this member leads in just that term. The entry's outcome is in
    /// [`Pending`]; dropping that does not take the entry back.
    ///
    /// # Errors
    /// `Stopped`, or `BadPayload` before anything happened.
    pub async fn submit(&self, term: Option<Term>, payload: Bytes) -> Result<Pending, ProposeError> {
        match payload.first() {
            None | Some(&MEMBERSHIP_MARK) => return Err(ProposeError::BadPayload { found: payload.first().copied() }),
            Some(_) => {}
        }
        if let Some(script) = self.script() {
            return Ok(Pending { rx: Answering::Script(script.submit(term, payload)) });
        }
        let (responder, rx) = ProgressResponder::complete_only();
        let mut request = self.inner.raft.write(Payload(payload)).responder(responder);
        if let Some(term) = term {
            request = request.with_leader(CommittedLeader::new(term.0));
        }
        request.await.map_err(|e| ProposeError::Stopped { reason: e.to_string() })?;
        Ok(Pending { rx: Answering::Raft(rx) })
    }

    /// [`Group::submit`] and wait, at most `limit`.
    ///
    /// # Errors
    /// [`ProposeError`]; `Unknown` after `limit`.
    pub async fn propose(&self, term: Option<Term>, payload: Bytes, limit: Duration) -> Result<Proposed, ProposeError> {
        let all = async { self.submit(term, payload).await?.wait().await };
        tokio::time::timeout(limit, all)
            .await
            .unwrap_or_else(|_| Err(ProposeError::Unknown { reason: format!("no answer within {limit:?}") }))
    }

    /// Part of one entry's payload, from memory or from the journal, checked (R9).
    ///
    /// # Errors
    /// Purged in the meantime (look the place up again), corrupt, or I/O.
    pub async fn read_log(&self, index: LogIndex, offset: u32, len: usize) -> Result<Bytes, ReadLogError> {
        if let Some(script) = self.script() {
            return script.read(ReadPlace { index, offset, len });
        }
        self.inner.log.read(index, offset, len).await
    }

    /// As [`Group::read_log`] for each of `places`, in their order, cheaper than one by one.
    ///
    /// # Errors
    /// The first one met.
    pub async fn read_log_many(&self, places: Vec<ReadPlace>) -> Result<Vec<Bytes>, ReadLogError> {
        if let Some(script) = self.script() {
            return places.into_iter().map(|place| script.read(place)).collect();
        }
        self.inner.log.read_many(places).await
    }

    /// Builds a snapshot where the state machine has a newer one, and purges what it covers. Returns at once.
    ///
    /// # Errors
    /// When the group has stopped.
    pub async fn trigger_snapshot(&self) -> Result<(), GroupError> {
        if let Some(script) = self.script() {
            script.trigger_snapshot();
            return Ok(());
        }
        self.inner.raft.trigger().snapshot().await.map_err(|e| self.refused(e))
    }

    /// Asks `to` to take over. The caller MUST have stopped serving in this term before (design, "Who serves").
    /// Returns at once.
    ///
    /// # Errors
    /// When the group has stopped.
    pub async fn transfer_leader(&self, to: MemberId) -> Result<(), GroupError> {
        self.inner.raft.trigger().transfer_leader(to.0).await.map_err(|e| self.refused(e))
    }

    /// Stands for election now, with a pre-vote.
    ///
    /// # Errors
    /// When the group has stopped.
    pub async fn stand_for_election(&self) -> Result<(), GroupError> {
        self.inner.raft.trigger().elect(true).await.map_err(|e| self.refused(e))
    }

    /// Gives a group its first members. Safe to call at several of them with the same list; a no-op once done.
    ///
    /// # Errors
    /// When openraft refuses the list.
    pub async fn initialize(&self, members: &BTreeMap<MemberId, String>) -> Result<(), GroupError> {
        let done = self.inner.raft.is_initialized().await.map_err(|e| self.refused(e))?;
        if done {
            return Ok(());
        }
        let nodes: BTreeMap<u64, BasicNode> =
            members.iter().map(|(id, addr)| (id.0, BasicNode { addr: addr.clone() })).collect();
        match self.inner.raft.initialize(nodes).await {
            Ok(()) => Ok(()),
            Err(RaftError::APIError(openraft::errors::InitializeError::NotAllowed(_))) => Ok(()),
            Err(e) => Err(self.refused(e)),
        }
    }

    /// Whether the group has ever had members here.
    ///
    /// # Errors
    /// When the group has stopped.
    pub async fn is_initialized(&self) -> Result<bool, GroupError> {
        self.inner.raft.is_initialized().await.map_err(|e| self.refused(e))
    }

    /// Whether this member's log lacks `acked`, which a leader says that it had acknowledged; what it has instead.
    pub(crate) fn lacks(&self, acked: LogId) -> Option<String> {
        let log = &self.inner.log;
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
    pub fn status(&self) -> GroupStatus {
        if let Some(script) = self.script() {
            return script.status();
        }
        use openraft::async_runtime::watch::WatchReceiver;
        let metrics = self.inner.raft.metrics().borrow_watched().clone();
        let membership = metrics.membership_config.membership();
        let voters: BTreeSet<u64> = membership.voter_ids().collect();
        let now = crate::clock::boot_now();
        let members = membership
            .nodes()
            .map(|(id, node)| MemberStatus {
                member: MemberId(*id),
                voter: voters.contains(id),
                matched: metrics
                    .replication
                    .as_ref()
                    .and_then(|r| r.get(id).cloned().flatten())
                    .map(|log_id| LogIndex(log_id.index)),
                silent: metrics
                    .heartbeat
                    .as_ref()
                    .and_then(|h| h.get(id).copied().flatten())
                    .map(|acked| now.saturating_since(acked.into_inner().0)),
                addr: node.addr.clone(),
            })
            .collect();
        let log = self.inner.log.state();
        GroupStatus {
            group: self.inner.id,
            leadership: *self.inner.leadership.borrow(),
            last: metrics.last_log_index.map(LogIndex),
            applied: metrics.last_applied.map(|id| LogId::new(id.leader_id.term, id.index)),
            snapshot: self.inner.shared.snapshot_last(),
            purged: log.purged,
            live_bytes: self.inner.log.live_bytes(),
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

    /// How long a member may be silent before it counts as not there.
    pub(crate) fn patience(&self) -> Duration {
        self.inner.patience
    }

    pub(crate) fn acks(&self) -> &Acks {
        &self.inner.acks
    }

    pub(crate) fn changing_members(&self) -> &Changing {
        &self.inner.changing
    }

    pub(crate) fn candidacy(&self) -> &Candidacy {
        &self.inner.candidacy
    }

    pub(crate) async fn stop(&self) {
        self.inner.shared.close();
        if let Err(e) = self.inner.raft.shutdown().await {
            tracing::warn!(group = %self.inner.id, error = %e, "group did not stop cleanly");
        }
    }

    /// [`Group::stop`], for ever: nothing of it is written to the disk any more.
    pub(crate) async fn end(&self) {
        self.stop().await;
        self.inner.shared.end().await;
    }

    pub(crate) fn refused(&self, e: impl std::fmt::Display) -> GroupError {
        GroupError::Refused { group: self.inner.id, reason: e.to_string() }
    }
}

impl From<Answer> for Bytes {
    fn from(answer: Answer) -> Bytes {
        answer.0
    }
}

/// Follows openraft's metrics and publishes only what changes for those who serve.
fn watch_leadership(me: MemberId, raft: &Raft, started_in: Term) -> watch::Receiver<Leadership> {
    use openraft::async_runtime::watch::WatchReceiver;
    let mut metrics = raft.metrics();
    let read = move |m: &openraft::RaftMetrics<TypeConfig>| {
        let stopped = m.running_state.is_err();
        // As `Group::leading_term`.
        let restored = m.current_leader == Some(me.0) && Term(m.current_term) <= started_in;
        let leader = m.current_leader.map(MemberId).filter(|_| !restored);
        Leadership { term: Term(m.current_term), leader, mine: leader == Some(me) && !stopped, stopped }
    };
    let (tx, rx) = watch::channel(read(&metrics.borrow_watched()));
    tokio::spawn(async move {
        loop {
            if metrics.changed().await.is_err() {
                tx.send_modify(|l| {
                    l.mine = false;
                    l.stopped = true;
                });
                return;
            }
            let now = read(&metrics.borrow_watched());
            tx.send_if_modified(|old| std::mem::replace(old, now) != now);
            if now.stopped || tx.is_closed() {
                return;
            }
        }
    });
    rx
}
