//! [`Consensus`] with openraft.

use crate::change::{ChangeError, Fate};
use crate::config::{Payload, RaftTiming, ToProposer, TypeConfig};
use crate::consensus::{Consensus, GroupError, Outcome, ProposeError, Proposed, Reply};
use crate::group::RaftGroup;
use crate::status::{Acked, GroupStatus, Leadership};
use crate::wire::{CommittedLeader, MEMBERSHIP_MARK};
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use holdfast_log::{ReadError, ReadPlace};
use holdfast_types::{GroupId, LogId, LogIndex, MemberId, MonoTime, Term};
use openraft::ChangeMembers;
use openraft::errors::{ClientWriteError, InitializeError, RaftError};
use openraft::impls::BasicNode;
use openraft::raft::ClientWriteResult;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;
use tokio::sync::watch;

type Done<'a, T = ()> = BoxFuture<'a, Result<T, GroupError>>;

impl RaftGroup {
    async fn write(&self, term: Option<Term>, payload: Bytes, reply: Reply) -> Result<(), ProposeError> {
        match payload.first() {
            None | Some(&MEMBERSHIP_MARK) => return Err(ProposeError::BadPayload { found: payload.first().copied() }),
            Some(_) => {}
        }
        let responder = ToProposer::new(move |result| reply.send(outcome(result)));
        let mut request = self.raft().write(Payload::new(payload)).responder(responder);
        if let Some(term) = term {
            request = request.with_leader(CommittedLeader::new(term.0));
        }
        request.await.map_err(|e| ProposeError::Stopped { reason: e.to_string() })
    }

    fn change<'a>(&'a self, change: ChangeMembers<u64, BasicNode>, seen: Option<LogId>, limit: Duration) -> Done<'a> {
        Box::pin(async move {
            match self.carry_through(change, Fate::in_group(self.id()), seen, limit).await {
                Ok(_) => Ok(()),
                Err(ChangeError::Refused(why)) => Err(self.refused(why)),
                Err(ChangeError::Late) => Err(GroupError::Late { group: self.id(), what: "change of members", limit }),
            }
        })
    }

    /// Waits for `done`, and converts openraft's refusal into ours.
    fn refusing<'a, T, E: std::fmt::Display>(
        &'a self,
        done: impl Future<Output = Result<T, E>> + Send + 'a,
    ) -> Done<'a, T> {
        Box::pin(done.map(|done| done.map_err(|e| self.refused(e))))
    }
}

fn outcome(result: ClientWriteResult<TypeConfig>) -> Outcome {
    holdfast_reached::reached!(
        "propose: an entry of a term that this member leads no more",
        matches!(result, Err(ClientWriteError::ForwardToLeader(_)))
    );
    match result {
        Ok(done) => Ok(Proposed { id: LogId::new(done.log_id.leader_id.term, done.log_id.index), answer: done.data.0 }),
        Err(ClientWriteError::ForwardToLeader(f)) => Err(ProposeError::NotLeader { leader: f.leader_id.map(MemberId) }),
        Err(e) => Err(ProposeError::Unknown { reason: e.to_string() }),
    }
}

fn nodes(members: &BTreeMap<MemberId, String>) -> BTreeMap<u64, BasicNode> {
    members.iter().map(|(id, addr)| (id.0, BasicNode { addr: addr.clone() })).collect()
}

fn ids(members: &BTreeSet<MemberId>) -> BTreeSet<u64> {
    members.iter().map(|member| member.0).collect()
}

impl Consensus for RaftGroup {
    fn id(&self) -> GroupId {
        self.parts.id
    }

    fn me(&self) -> MemberId {
        self.parts.me
    }

    fn leadership(&self) -> watch::Receiver<Leadership> {
        self.leadership.clone()
    }

    fn leading_term(&self) -> Option<Term> {
        self.leading_term()
    }

    fn quorum_acked(&self) -> Option<(Term, MonoTime)> {
        self.quorum_promised().map(|(term, acked)| (term, acked.sent))
    }

    fn quorum_promised(&self, _read_lease: Duration) -> Option<(Term, Acked)> {
        self.quorum_promised()
    }

    fn set_times(&self, times: RaftTiming) {
        self.set_times(times);
    }

    fn applied(&self) -> LogId {
        self.applied()
    }

    fn snapshot_last(&self) -> Option<LogId> {
        self.parts.shared.snapshot_last()
    }

    fn unsaved_snapshot(&self) -> Option<String> {
        self.parts.shared.unsaved()
    }

    fn live_bytes(&self) -> u64 {
        self.parts.log.live_bytes()
    }

    fn seals(&self) -> bool {
        self.parts.log.seals()
    }

    fn submit(&self, term: Option<Term>, payload: Bytes, reply: Reply) -> BoxFuture<'_, Result<(), ProposeError>> {
        Box::pin(self.write(term, payload, reply))
    }

    fn read_log(&self, index: LogIndex, offset: u32, len: usize) -> BoxFuture<'_, Result<Bytes, ReadError>> {
        Box::pin(self.parts.log.read(index, offset, len))
    }

    fn read_log_many(&self, places: Vec<ReadPlace>) -> BoxFuture<'_, Result<Vec<Bytes>, ReadError>> {
        Box::pin(self.parts.log.read_many(places))
    }

    fn trigger_snapshot(&self) -> Done<'_> {
        self.refusing(async { self.raft().trigger().snapshot().await })
    }

    fn status(&self) -> GroupStatus {
        self.status()
    }

    fn transfer_leader(&self, to: MemberId) -> Done<'_> {
        self.refusing(async move { self.raft().trigger().transfer_leader(to.0).await })
    }

    fn stand_for_election(&self) -> Done<'_> {
        if self.candidacy.is_learning() {
            return Box::pin(std::future::ready(Ok(())));
        }
        self.refusing(async { self.raft().trigger().elect(true).await })
    }

    fn initialize<'a>(&'a self, members: &'a BTreeMap<MemberId, String>) -> Done<'a> {
        Box::pin(async move {
            if self.is_initialized().await? {
                return Ok(());
            }
            match self.raft().initialize(nodes(members)).await {
                Ok(()) | Err(RaftError::APIError(InitializeError::NotAllowed(_))) => Ok(()),
                Err(e) => Err(self.refused(e)),
            }
        })
    }

    fn is_initialized(&self) -> Done<'_, bool> {
        self.refusing(async { self.raft().is_initialized().await })
    }

    fn stand_aside(&self, aside: bool) {
        self.stand_aside(aside);
    }

    fn unheard(&self) -> Duration {
        self.unheard()
    }

    fn is_changing(&self) -> bool {
        self.changing.try_lock().is_err()
    }

    fn may_do_without_me(&self) -> bool {
        self.may_do_without_me()
    }

    fn add_learners<'a>(
        &'a self,
        members: &'a BTreeMap<MemberId, String>,
        seen: Option<LogId>,
        limit: Duration,
    ) -> Done<'a> {
        self.change(ChangeMembers::AddNodes(nodes(members)), seen, limit)
    }

    fn drop_learners<'a>(&'a self, members: &'a BTreeSet<MemberId>, seen: Option<LogId>, limit: Duration) -> Done<'a> {
        self.change(ChangeMembers::RemoveNodes(ids(members)), seen, limit)
    }

    fn change_voters<'a>(&'a self, voters: &'a BTreeSet<MemberId>, seen: Option<LogId>, limit: Duration) -> Done<'a> {
        self.change(ChangeMembers::ReplaceAllVoters(ids(voters)), seen, limit)
    }

    fn end_change(&self, seen: Option<LogId>, limit: Duration) -> Done<'_> {
        // This adds no voter: with any change of voters whose result is the newer set, openraft goes from a joint
        // membership to that set.
        self.change(ChangeMembers::AddVoterIds(BTreeSet::new()), seen, limit)
    }
}
