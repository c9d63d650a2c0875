//! The server side of the protocol between gateways. Checks sender, receiver and group of each call.

use crate::appender::{Appender, fatal, of_before};
use crate::beats::BEATS_MAX;
use crate::change::NotLeading;
use crate::clock::boot_now;
use crate::group::RaftGroup;
use crate::hooks::Registered;
use crate::lives::{Lineage, Lives, not_who_it_says};
use crate::node::RaftNode;
use crate::promise::stamp_answer;
use crate::proto;
use crate::proto::peer_server::{Peer, PeerServer};
use crate::proto::register_reply::Result as RegisterOutcome;
use crate::snapshot_pieces;
use crate::wire::{
    META_CLUSTER, META_FROM, META_GROUP, META_TO, RaftSnapshotMeta, RaftStoredMembership, append_from_wire,
    append_reply_to_wire, id_from_wire, id_to_wire, membership_from_bytes, vote_from_wire,
};
use futures_util::StreamExt;
use futures_util::stream::{BoxStream, FuturesUnordered};
use holdfast_types::limits::PEER_MESSAGE_BYTES_MAX;
use holdfast_types::{GroupId, LogId, LogIndex, MemberId, Term};
use openraft::raft::{StreamAppendError, TransferLeaderRequest, VoteRequest};
use std::collections::BTreeSet;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tonic::codegen::http::HeaderMap;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

/// Time limit for the removal of a member; after it the member is told to ask again.
const EXPEL_LIMIT: Duration = Duration::from_secs(5);

/// Time limit of a leader for hearing from its quorum, before it says that a member is out.
const LEAVE_LIMIT: Duration = Duration::from_secs(2);

/// The tonic service: add it to the gateway's peer listener.
pub type PeerService = PeerServer<Handler>;

/// Answers peers for one node.
pub struct Handler {
    node: RaftNode,
    /// For the state snapshots that arrive.
    room: snapshot_pieces::Room,
}

impl RaftNode {
    /// The service that answers peers.
    pub fn service(&self) -> PeerService {
        PeerServer::new(Handler::new(self.clone()))
            .max_decoding_message_size(PEER_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(PEER_MESSAGE_BYTES_MAX)
    }

    /// Whether a call with these headers is of this cluster. A door asks before it takes anything of the body.
    ///
    /// # Errors
    /// What was found and what was expected; for the caller.
    pub fn check_cluster(&self, headers: &HeaderMap) -> Result<(), Status> {
        let cluster = headers.get(META_CLUSTER).and_then(|v| v.to_str().ok()).unwrap_or("");
        let ours = self.channels().cluster();
        if cluster == ours {
            return Ok(());
        }
        holdfast_reached::reached!("peer: a call of another cluster");
        // Not ours: whoever asks must not learn it here.
        Err(Status::permission_denied(format!("cluster: found {cluster:?}, expected that of this gateway")))
    }
}

impl Handler {
    pub(crate) fn new(node: RaftNode) -> Self {
        Self { node, room: snapshot_pieces::Room::default() }
    }

    pub(crate) fn node(&self) -> &RaftNode {
        &self.node
    }

    /// The sender, after cluster, receiver and protocol version were checked.
    fn sender(&self, meta: &MetadataMap) -> Result<MemberId, Status> {
        self.node.check_cluster(meta.as_ref())?;
        let to = MemberId(number(meta, META_TO)?);
        if to != self.node.member() {
            holdfast_reached::reached!("peer: a call for another member");
            return Err(Status::permission_denied(format!("receiver: found {to}, expected {}", self.node.member())));
        }
        let from = MemberId(number(meta, META_FROM)?);
        // This comes first: without a common version nothing else in the call can be understood.
        let lives = &self.node.channels().lives;
        lives.check_protocol(meta).map_err(|why| {
            if lives.may_say_refusal(boot_now()) {
                tracing::warn!(%from, %why, "calls are refused");
            }
            Status::failed_precondition(why)
        })?;
        Ok(from)
    }

    /// The sender, after it was checked that it is the member that it claims to be (CLUSTER-C3).
    fn believed(&self, meta: &MetadataMap) -> Result<MemberId, Status> {
        let from = self.sender(meta)?;
        self.node.channels().lives.check(from, meta).map_err(Status::permission_denied)?;
        Ok(from)
    }

    /// The group of a call, and the checked sender.
    pub(crate) fn group(&self, meta: &MetadataMap) -> Result<(Arc<RaftGroup>, MemberId), Status> {
        let from = self.believed(meta)?;
        self.node.channels().promises.heard(from, meta);
        let group = group_for(&self.node, from, GroupId(number(meta, META_GROUP)?))?;
        Ok((group, from))
    }

    /// An answer to a registration that this gateway can give without group 0: these refusals are final.
    fn refuses_start(&self, from: MemberId, lineage: &Lineage, level: u32) -> Option<RegisterOutcome> {
        let (lives, life) = (&self.node.channels().lives, lineage.life);
        // Any gateway that knows of the removal may say so: a member that was cut off for long may know no leader, or
        // no gateway that is still a member (found by simulation, seed 133).
        if lives.removed(from) {
            holdfast_reached::reached!("start: a removed member wants to start");
            return Some(RegisterOutcome::Refused(format!("{from} was removed from this cluster permanently")));
        }
        // A start asks its own address as well: it must find itself there, or nobody.
        if from == self.node.member() {
            let own = self.node.lineage().life;
            holdfast_reached::reached!("start: a copy of this disk runs as well", !lives.is_own(&life));
            if lives.is_own(&life) {
                return Some(RegisterOutcome::Busy("this process itself".to_string()));
            }
            tracing::error!(
                boot = life.boot,
                own = own.boot,
                "CLUSTER-C3: a second process runs on a copy of this gateway's disk; it is refused"
            );
            return Some(RegisterOutcome::Refused(format!(
                "another process of {from} answers at this member's address (boot counter: found {}, this one has {}): a disk was copied, and both copies \
                 were started. If the other one should not run, end it and start this one again; otherwise remove this copy",
                own.boot, life.boot
            )));
        }
        // A registered counter never goes back. Group 0 may have no leader, or none that this member hears.
        lives.judge(from, lineage, level).err().map(|why| RegisterOutcome::Refused(not_who_it_says(from, &why)))
    }

    async fn register_as_leader(
        &self,
        from: MemberId,
        lineage: Lineage,
        level: u32,
    ) -> Result<RegisterOutcome, Status> {
        let group = self.node.local(GroupId::CLUSTER);
        let group = group.ok_or_else(|| Status::not_found("group 0 is not here (yet)"))?;
        if group.leading_term().is_none() {
            return Ok(RegisterOutcome::Leader(group.leader().map_or(0, |l| l.0)));
        }
        let boot = lineage.life.boot;
        Ok(match self.node.registered(from, lineage, level).await {
            Registered::Done => RegisterOutcome::Boot(boot),
            Registered::NotNow(why) => RegisterOutcome::Busy(why),
            Registered::Refused(why) => RegisterOutcome::Refused(why),
        })
    }

    /// An answer with this process's life.
    fn answer<T>(&self, message: T) -> Response<T> {
        let mut response = Response::new(message);
        self.node.channels().stamp(response.metadata_mut());
        response
    }
}

/// The group of a call of `from`, which was checked.
fn group_for(node: &RaftNode, from: MemberId, id: GroupId) -> Result<Arc<RaftGroup>, Status> {
    let group = node.local(id).ok_or_else(|| Status::not_found(format!("group {id} is not here (yet)")))?;
    // A removed member may not know it yet, or came back with its old disk.
    if node.channels().lives.removed(from) && !group.status().members.iter().any(|m| m.member == from) {
        holdfast_reached::reached!("peer: a call of a removed member");
        return Err(Status::permission_denied(format!("{from} was removed from this cluster permanently")));
    }
    Ok(group)
}

/// Takes an append of `from`. Returns the answer, and for how long it lets the leader read.
async fn take_append(
    node: &RaftNode,
    group: Arc<RaftGroup>,
    from: MemberId,
    message: proto::AppendRequest,
) -> Result<(proto::AppendReply, Duration), Status> {
    let message = append_from_wire(message).map_err(bad)?;
    let term = Term(message.vote.leader_id.term);
    let appender = Appender { node: node.clone(), group: group.clone(), from };
    let taken = appender.take(message).inspect_err(|_| {
        holdfast_reached::reached!("readmission: an append of a leader before the removal");
    })?;
    // PLEDGE-P2: the group may have other times when it answers.
    let promised = group.promise(term);
    let reply = taken.await?;
    if !matches!(reply, Err(StreamAppendError::HigherVote(_))) {
        group.candidacy.heard();
    }
    Ok((append_reply_to_wire(reply), promised))
}

/// Takes one of several heartbeats of `from`.
async fn take_beat(node: RaftNode, from: MemberId, place: u32, beat: proto::Beat) -> proto::BeatReply {
    use proto::beat_reply::Result as Said;
    let taken = async {
        let group = group_for(&node, from, GroupId(beat.group))?;
        let message = beat.append.filter(|append| append.entries.is_empty());
        let message = message.ok_or_else(|| bad("a heartbeat that is none"))?;
        take_append(&node, group, from, message).await
    };
    match taken.await {
        Ok((reply, promised)) => {
            let read_lease_ms = u64::try_from(promised.as_millis()).unwrap_or(u64::MAX);
            proto::BeatReply { place, read_lease_ms, result: Some(Said::Reply(reply)) }
        }
        Err(why) => {
            let refused = proto::BeatRefusal { code: why.code() as i32, message: why.message().to_string() };
            proto::BeatReply { place, read_lease_ms: 0, result: Some(Said::Refused(refused)) }
        }
    }
}

fn number<T: FromStr>(meta: &MetadataMap, key: &str) -> Result<T, Status> {
    let text = meta.get(key).and_then(|v| v.to_str().ok()).unwrap_or("");
    text.parse().map_err(|_| Status::invalid_argument(format!("metadata {key}: found {text:?}, expected a number")))
}

/// What was sent is not understood.
pub(crate) fn bad(e: impl std::fmt::Display) -> Status {
    Status::invalid_argument(e.to_string())
}

#[tonic::async_trait]
impl Peer for Handler {
    type BeatsStream = BoxStream<'static, Result<proto::BeatReply, Status>>;

    async fn append(&self, request: Request<proto::AppendRequest>) -> Result<Response<proto::AppendReply>, Status> {
        let (group, from) = self.group(request.metadata())?;
        let (reply, promised) = take_append(&self.node, group, from, request.into_inner()).await?;
        let mut answer = self.answer(reply);
        stamp_answer(promised, answer.metadata_mut());
        Ok(answer)
    }

    async fn vote(&self, request: Request<proto::VoteRequest>) -> Result<Response<proto::VoteReply>, Status> {
        let (group, from) = self.group(request.metadata())?;
        // After a start we have forgotten our promises: no answer until every lease that we may have granted has
        // expired. The candidate counts this as neither yes nor no.
        if let Some(left) = self.node.embargo_of(group.id()) {
            holdfast_reached::reached!("embargo: a vote is asked for too soon after a start");
            return Err(Status::unavailable(format!("vote embargo after a start: {left:?} left; asked by {from}")));
        }
        let message = request.into_inner();
        let last = message.last.as_ref().map(|last| (last.term, last.index));
        if let Some(since) = self.node.floor(group.id()).filter(|since| last < Some((since.term.0, since.index.0))) {
            holdfast_reached::reached!("readmission: a candidate without the entry of the removal");
            return Err(Status::unavailable(format!(
                "{} is learned again here, which needs a leader that has {since}; found one that ends at {last:?} (QUARANTINE-Q4); asked by {from}",
                group.id()
            )));
        }
        let pre = message.pre;
        let rpc = VoteRequest {
            vote: vote_from_wire(message.vote, "vote request").map_err(bad)?,
            last_log_id: message.last.as_ref().map(id_from_wire).transpose().map_err(bad)?,
            leadership_transfer: message.leadership_transfer,
        };
        let reply = if pre { group.pre_vote(rpc).await } else { group.vote(rpc).await }?;
        Ok(self.answer(proto::VoteReply {
            vote: Some((&reply.vote).into()),
            granted: reply.vote_granted,
            last: reply.last_log_id.as_ref().map(id_to_wire),
        }))
    }

    async fn snapshot(
        &self,
        request: Request<Streaming<proto::SnapshotPiece>>,
    ) -> Result<Response<proto::SnapshotReply>, Status> {
        let (group, from) = self.group(request.metadata())?;
        let mut pieces = request.into_inner();
        let head = snapshot_pieces::head(&mut pieces).await?;
        holdfast_reached::reached!(
            "readmission: a state snapshot of a leader before the removal",
            of_before(self.node.floor(group.id()), head.vote.as_ref(), from).is_err()
        );
        of_before(self.node.floor(group.id()), head.vote.as_ref(), from)?;
        group.promise(Term(head.vote.as_ref().map_or(0, |vote| vote.term)));
        let _room = self.room.wait_for(&head).await?;
        let data = snapshot_pieces::data(&mut pieces, &head).await?;
        let membership = membership_from_bytes(&head.membership).map_err(bad)?;
        let membership_id = head.membership_id.as_ref().map(id_from_wire).transpose().map_err(bad)?;
        let meta = RaftSnapshotMeta {
            last_log_id: head.last.as_ref().map(id_from_wire).transpose().map_err(bad)?,
            last_membership: RaftStoredMembership::new(membership_id, membership),
        };
        tracing::info!(%from, bytes = data.len(), "snapshot received");
        let vote = vote_from_wire(head.vote, "snapshot").map_err(bad)?;
        let snapshot = openraft::storage::Snapshot { meta, snapshot: data };
        let reply = group.raft().install_full_snapshot(vote, snapshot).await.map_err(fatal)?;
        Ok(self.answer(proto::SnapshotReply { vote: Some((&reply.vote).into()) }))
    }

    async fn register(
        &self,
        request: Request<proto::RegisterRequest>,
    ) -> Result<Response<proto::RegisterReply>, Status> {
        let from = self.sender(request.metadata())?;
        let lineage = Lives::of(request.metadata()).ok_or_else(|| bad("a call without the life of its sender"))?;
        let level = request.get_ref().level;
        let outcome = match self.refuses_start(from, &lineage, level) {
            Some(refused) => refused,
            None => self.register_as_leader(from, lineage, level).await?,
        };
        Ok(self.answer(proto::RegisterReply { result: Some(outcome) }))
    }

    async fn denied(&self, request: Request<proto::DeniedRequest>) -> Result<Response<proto::DeniedReply>, Status> {
        let (group, from) = self.group(request.metadata())?;
        let acked = request.into_inner().acknowledged.ok_or_else(|| bad("denied: no entry"))?;
        let gone = self.node.denied(&group, LogId::new(acked.term, acked.index));
        if !gone {
            holdfast_reached::reached!("reversion: a leader is wrong that a log went backwards");
            tracing::warn!(group = %group.id(), %from, ?acked, "a leader reports that this log went backwards, but it did not");
        }
        Ok(self.answer(proto::DeniedReply { gone }))
    }

    async fn readmit(&self, request: Request<proto::ReadmitRequest>) -> Result<Response<proto::ReadmitReply>, Status> {
        use proto::readmit_reply::Result as Outcome;
        let (group, from) = self.group(request.metadata())?;
        let reason = request.into_inner().reason;
        tracing::warn!(group = %group.id(), member = %from, %reason, "R9: a member has lost part of its log and asks to be removed");
        let outcome = match group.expel(from, EXPEL_LIMIT).await {
            Ok(since) => {
                tracing::info!(group = %group.id(), member = %from, %since, "removed: the member may come back as a newcomer");
                Outcome::Out(proto::LogId { term: since.term.0, index: since.index.0 })
            }
            Err(NotLeading::NotLeader { leader }) => Outcome::Leader(leader.map_or(0, |l| l.0)),
            Err(e @ NotLeading::NotNow { .. }) => Outcome::Busy(e.to_string()),
        };
        Ok(self.answer(proto::ReadmitReply { result: Some(outcome) }))
    }

    async fn roll(&self, request: Request<proto::RollRequest>) -> Result<Response<proto::RollReply>, Status> {
        use proto::roll_reply::Result as Outcome;
        let (group, _) = self.group(request.metadata())?;
        let outcome = match self.node.members_as_leader(&group, LogIndex(request.get_ref().cluster)).await {
            Ok(found) => {
                let members = found.members.into_iter().map(|m| m.0).collect();
                Outcome::Roll(proto::Roll { members, applied: found.applied.0 })
            }
            Err(NotLeading::NotLeader { leader }) => Outcome::Leader(leader.map_or(0, |l| l.0)),
            Err(e @ NotLeading::NotNow { .. }) => Outcome::Busy(e.to_string()),
        };
        Ok(self.answer(proto::RollReply { result: Some(outcome) }))
    }

    async fn ended(&self, request: Request<proto::EndedRequest>) -> Result<Response<proto::EndedReply>, Status> {
        let meta = request.metadata();
        self.believed(meta)?;
        let reply = self.node.ended_reply(GroupId(number(meta, META_GROUP)?)).map_err(fatal)?;
        Ok(self.answer(reply))
    }

    async fn placing(&self, request: Request<proto::PlacingRequest>) -> Result<Response<proto::PlacingReply>, Status> {
        let meta = request.metadata();
        self.believed(meta)?;
        let reply = self.node.migration_reply(GroupId(number(meta, META_GROUP)?));
        Ok(self.answer(reply))
    }

    async fn follow_turn(
        &self,
        request: Request<proto::FollowTurnRequest>,
    ) -> Result<Response<proto::FollowTurnReply>, Status> {
        self.believed(request.metadata())?;
        let reply = self.node.follow_turn_reply(GroupId(request.get_ref().set));
        Ok(self.answer(reply))
    }

    async fn leave(&self, request: Request<proto::LeaveRequest>) -> Result<Response<proto::LeaveReply>, Status> {
        use proto::leave_reply::Result as Outcome;
        let (group, from) = self.group(request.metadata())?;
        let set = |set: BTreeSet<MemberId>| proto::EndedVoters { members: set.into_iter().map(|id| id.0).collect() };
        let outcome = match group.without(from, LEAVE_LIMIT).await {
            Ok((since, sets)) => Outcome::Out(proto::Left {
                since: Some(proto::LogId { term: since.term.0, index: since.index.0 }),
                sets: sets.into_iter().map(set).collect(),
            }),
            Err(NotLeading::NotLeader { leader }) => Outcome::Leader(leader.map_or(0, |l| l.0)),
            Err(e @ NotLeading::NotNow { .. }) => Outcome::Busy(e.to_string()),
        };
        Ok(self.answer(proto::LeaveReply { result: Some(outcome) }))
    }

    async fn beats(&self, request: Request<proto::BeatsRequest>) -> Result<Response<Self::BeatsStream>, Status> {
        let meta = request.metadata();
        let from = self.believed(meta)?;
        self.node.channels().promises.heard(from, meta);
        let beats = request.into_inner().beats;
        if beats.len() > BEATS_MAX {
            return Err(bad(format!("heartbeats: found {}, expected at most {BEATS_MAX}", beats.len())));
        }
        let taken = (0_u32..).zip(beats).map(|(place, beat)| take_beat(self.node.clone(), from, place, beat));
        let answers: FuturesUnordered<_> = taken.collect();
        Ok(self.answer(answers.map(Ok).boxed()))
    }

    async fn transfer(
        &self,
        request: Request<proto::TransferRequest>,
    ) -> Result<Response<proto::TransferReply>, Status> {
        let (group, _) = self.group(request.metadata())?;
        if let Some(left) = self.node.embargo_of(group.id()) {
            let reason = format!("vote embargo after a start: {left:?} left");
            return Ok(self.answer(proto::TransferReply { accepted: false, reason }));
        }
        let message = request.into_inner();
        let from = vote_from_wire(message.from, "transfer").map_err(bad)?;
        let last = message.last.as_ref().map(id_from_wire).transpose().map_err(bad)?;
        let rpc = TransferLeaderRequest::new(from, message.to, last);
        let outcome = group.raft().handle_transfer_leader(rpc).await;
        let reply = match outcome {
            Ok(Ok(())) => proto::TransferReply { accepted: true, reason: String::new() },
            Ok(Err(e)) => proto::TransferReply { accepted: false, reason: e.to_string() },
            Err(e) => return Err(fatal(e)),
        };
        Ok(self.answer(reply))
    }
}
