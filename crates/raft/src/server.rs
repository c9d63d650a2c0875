//! The server side of the protocol between gateways. Checks sender, receiver and group of each call.

use crate::change::NotLeading;
use crate::group::RaftGroup;
use crate::hooks::Registered;
use crate::lives::{Lineage, Lives, not_who_it_says};
use crate::node::RaftNode;
use crate::proto;
use crate::proto::peer_server::{Peer, PeerServer};
use crate::proto::register_reply::Result as RegisterOutcome;
use crate::wire::{
    META_CLUSTER, META_FROM, META_GROUP, META_TO, RaftSnapshotMeta, RaftStoredMembership, append_from_wire,
    append_reply_to_wire, id_from_wire, id_to_wire, membership_from_bytes, vote_from_wire,
};
use futures_util::stream::BoxStream;
use futures_util::{Stream, StreamExt, TryStreamExt};
use holdfast_log::NodeLog;
use holdfast_types::limits::{APPEND_BYTES_MAX, PEER_MESSAGE_BYTES_MAX, PEER_SNAPSHOT_BYTES_MAX};
use holdfast_types::{GroupId, LogId, LogIndex, MemberId};
use openraft::raft::{StreamAppendError, TransferLeaderRequest, VoteRequest};
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;
use tonic::metadata::MetadataMap;
use tonic::{Request, Response, Status, Streaming};

/// Appends of a stream are accepted while at most this much waits for the disk, over all groups. This limits the memory
/// of a follower that catches up, in addition to one message of each stream. openraft itself accepts 64 messages of up
/// to [`APPEND_BYTES_MAX`] for each group.
const QUEUE_BYTES_MAX: u64 = 4 * APPEND_BYTES_MAX as u64;

/// Time limit for the removal of a member; after it the member is told to ask again.
const EXPEL_LIMIT: Duration = Duration::from_secs(5);

/// The tonic service: add it to the gateway's peer listener.
pub type PeerService = PeerServer<Handler>;

/// Answers peers for one node.
pub struct Handler {
    node: RaftNode,
}

impl RaftNode {
    /// The service that answers peers.
    pub fn service(&self) -> PeerService {
        PeerServer::new(Handler { node: self.clone() })
            // One limit for all calls: a snapshot is the largest of them.
            .max_decoding_message_size(PEER_SNAPSHOT_BYTES_MAX)
            .max_encoding_message_size(PEER_MESSAGE_BYTES_MAX)
    }
}

impl Handler {
    /// The sender, after cluster, receiver and protocol version were checked.
    fn sender(&self, meta: &MetadataMap) -> Result<MemberId, Status> {
        let cluster = meta.get(META_CLUSTER).and_then(|v| v.to_str().ok()).unwrap_or("");
        let ours = self.node.channels().cluster();
        if cluster != ours {
            holdfast_reached::reached!("peer: a call of another cluster");
            return Err(Status::permission_denied(format!("cluster: found {cluster:?}, expected {ours:?}")));
        }
        let to = MemberId(number(meta, META_TO)?);
        if to != self.node.member() {
            holdfast_reached::reached!("peer: a call for another member");
            return Err(Status::permission_denied(format!("receiver: found {to}, expected {}", self.node.member())));
        }
        let from = MemberId(number(meta, META_FROM)?);
        // This comes first: without a common version nothing else in the call can be understood.
        self.node.channels().lives.check_protocol(meta).map_err(|why| {
            tracing::warn!(%from, %why, "a call is refused");
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
    fn group(&self, meta: &MetadataMap) -> Result<(Arc<RaftGroup>, MemberId), Status> {
        let from = self.believed(meta)?;
        self.node.channels().promises.heard(from, meta);
        let id = GroupId(number(meta, META_GROUP)?);
        let group = self.node.local(id).ok_or_else(|| Status::not_found(format!("group {id} is not here (yet)")))?;
        // A removed member may not know it yet, or came back with its old disk.
        if self.node.channels().lives.removed(from) && !group.status().members.iter().any(|m| m.member == from) {
            holdfast_reached::reached!("peer: a call of a removed member");
            return Err(Status::permission_denied(format!("{from} was removed from this cluster for ever")));
        }
        Ok((group, from))
    }

    /// An answer to a registration that this gateway can give without group 0: these refusals are final.
    fn refuses_start(&self, from: MemberId, lineage: &Lineage, level: u32) -> Option<RegisterOutcome> {
        let (lives, life) = (&self.node.channels().lives, lineage.life);
        // Any gateway that knows of the removal may say so: a member that was cut off for long may know no leader, or
        // no gateway that is still a member (found by simulation, seed 133).
        if lives.removed(from) {
            holdfast_reached::reached!("start: a removed member wants to start");
            return Some(RegisterOutcome::Refused(format!("{from} was removed from this cluster for ever")));
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

fn number<T: FromStr>(meta: &MetadataMap, key: &str) -> Result<T, Status> {
    let text = meta.get(key).and_then(|v| v.to_str().ok()).unwrap_or("");
    text.parse().map_err(|_| Status::invalid_argument(format!("metadata {key}: found {text:?}, expected a number")))
}

fn bad(e: impl std::fmt::Display) -> Status {
    Status::invalid_argument(e.to_string())
}

fn fatal(e: impl std::fmt::Display) -> Status {
    Status::internal(e.to_string())
}

/// Refuses a leader of a term before `floor` (QUARANTINE-Q4).
#[allow(clippy::result_large_err, reason = "tonic's own")]
fn of_before(floor: Option<LogId>, vote: Option<&proto::Vote>, from: MemberId) -> Result<(), Status> {
    let term = vote.map_or(0, |vote| vote.term);
    match floor.filter(|since| term < since.term.0) {
        None => Ok(()),
        Some(since) => Err(Status::unavailable(format!(
            "found term {term} of {from}, expected at least that of {since}, at which this member was taken out of the group (QUARANTINE-Q4)"
        ))),
    }
}

/// `input`, slowed down to the speed of the journal's disk.
fn paced<S: Stream>(input: S, log: NodeLog) -> impl Stream<Item = S::Item> {
    input.then(move |item| {
        let log = log.clone();
        async move {
            log.queue_at_most(QUEUE_BYTES_MAX).await;
            item
        }
    })
}

#[tonic::async_trait]
impl Peer for Handler {
    async fn append(&self, request: Request<proto::AppendRequest>) -> Result<Response<proto::AppendReply>, Status> {
        let (group, from) = self.group(request.metadata())?;
        let message = request.into_inner();
        holdfast_reached::reached!(
            "readmission: an append of a leader before the removal",
            of_before(self.node.floor(group.id()), message.vote.as_ref(), from).is_err()
        );
        of_before(self.node.floor(group.id()), message.vote.as_ref(), from)?;
        let rpc = append_from_wire(message).map_err(bad)?;
        let input = futures_util::stream::once(async move { rpc });
        let mut replies = Box::pin(group.raft().stream_append(input));
        let reply = replies.next().await.ok_or_else(|| fatal("no answer from the group"))?.map_err(fatal)?;
        if !matches!(reply, Err(StreamAppendError::HigherVote(_))) {
            group.candidacy.heard();
        }
        Ok(self.answer(append_reply_to_wire(reply)))
    }

    type AppendStreamStream = BoxStream<'static, Result<proto::AppendReply, Status>>;

    async fn append_stream(
        &self,
        request: Request<Streaming<proto::AppendRequest>>,
    ) -> Result<Response<Self::AppendStreamStream>, Status> {
        let (group, from) = self.group(request.metadata())?;
        let input = request.into_inner();
        // A message that does not decode ends the stream: the sender starts again from the last answered position.
        let (node, id) = (self.node.clone(), group.id());
        let requests = input
            .map(move |item| match item {
                Ok(message) if of_before(node.floor(id), message.vote.as_ref(), from).is_err() => {
                    holdfast_reached::reached!("readmission: an append stream of a leader before the removal");
                    tracing::warn!(%from, group = %id, "append of a term before this member was removed; stream closed (QUARANTINE-Q4)");
                    Err(())
                }
                Ok(message) => append_from_wire(message).map_err(|e| {
                    tracing::warn!(%from, error = %e, "append from a peer does not decode; stream closed");
                }),
                Err(status) => {
                    tracing::debug!(%from, %status, "append stream ended");
                    Err(())
                }
            })
            .take_while(|item| futures_util::future::ready(item.is_ok()))
            .filter_map(|item| futures_util::future::ready(item.ok()));
        let replies = group.raft().stream_append(paced(requests, self.node.log().clone()));
        Ok(self.answer(replies.map_ok(append_reply_to_wire).map_err(fatal).boxed()))
    }

    async fn vote(&self, request: Request<proto::VoteRequest>) -> Result<Response<proto::VoteReply>, Status> {
        let (group, from) = self.group(request.metadata())?;
        // After a start we have forgotten our promises: no answer until every lease that we may have granted has
        // expired. The candidate counts this as neither yes nor no.
        if let Some(left) = self.node.embargo_left() {
            holdfast_reached::reached!("embargo: a vote is asked for too soon after a start");
            return Err(Status::unavailable(format!("vote embargo after a start: {left:?} left; asked by {from}")));
        }
        let message = request.into_inner();
        let last = message.last.as_ref().map(|last| (last.term, last.index));
        if let Some(since) = self.node.floor(group.id()).filter(|since| last < Some((since.term.0, since.index.0))) {
            holdfast_reached::reached!("readmission: a candidate without the entry of the removal");
            return Err(Status::unavailable(format!(
                "{} is being healed here and needs a leader that has {since}; found one that ends at {last:?} (QUARANTINE-Q4); asked by {from}",
                group.id()
            )));
        }
        let pre = message.pre;
        let rpc = VoteRequest {
            vote: vote_from_wire(message.vote, "vote request").map_err(bad)?,
            last_log_id: message.last.as_ref().map(id_from_wire),
            leadership_transfer: message.leadership_transfer,
        };
        let reply = if pre { group.raft().pre_vote(rpc).await } else { group.raft().vote(rpc).await }.map_err(fatal)?;
        Ok(self.answer(proto::VoteReply {
            vote: Some((&reply.vote).into()),
            granted: reply.vote_granted,
            last: reply.last_log_id.as_ref().map(id_to_wire),
        }))
    }

    async fn snapshot(
        &self,
        request: Request<proto::SnapshotRequest>,
    ) -> Result<Response<proto::SnapshotReply>, Status> {
        let (group, from) = self.group(request.metadata())?;
        let message = request.into_inner();
        holdfast_reached::reached!(
            "readmission: a state snapshot of a leader before the removal",
            of_before(self.node.floor(group.id()), message.vote.as_ref(), from).is_err()
        );
        of_before(self.node.floor(group.id()), message.vote.as_ref(), from)?;
        let found = crc32c::crc32c(&message.data);
        if found != message.crc {
            holdfast_reached::reached!("peer: a state snapshot is damaged on the way");
            return Err(Status::data_loss(format!(
                "snapshot: found checksum {found:08x}, expected {:08x}",
                message.crc
            )));
        }
        let membership = membership_from_bytes(&message.membership).map_err(bad)?;
        let meta = RaftSnapshotMeta {
            last_log_id: message.last.as_ref().map(id_from_wire),
            last_membership: RaftStoredMembership::new(message.membership_id.as_ref().map(id_from_wire), membership),
        };
        tracing::info!(%from, bytes = message.data.len(), "snapshot received");
        let vote = vote_from_wire(message.vote, "snapshot").map_err(bad)?;
        let snapshot = openraft::storage::Snapshot { meta, snapshot: message.data };
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
            tracing::warn!(group = %group.id(), %from, ?acked, "a leader says that this log went backwards; it did not");
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
        let reply = self.node.placing_reply(GroupId(number(meta, META_GROUP)?));
        Ok(self.answer(reply))
    }

    async fn transfer(
        &self,
        request: Request<proto::TransferRequest>,
    ) -> Result<Response<proto::TransferReply>, Status> {
        let (group, _) = self.group(request.metadata())?;
        if let Some(left) = self.node.embargo_left() {
            let reason = format!("vote embargo after a start: {left:?} left");
            return Ok(self.answer(proto::TransferReply { accepted: false, reason }));
        }
        let message = request.into_inner();
        let from = vote_from_wire(message.from, "transfer").map_err(bad)?;
        let rpc = TransferLeaderRequest::new(from, message.to, message.last.as_ref().map(id_from_wire));
        let outcome = group.raft().handle_transfer_leader(rpc).await;
        let reply = match outcome {
            Ok(Ok(())) => proto::TransferReply { accepted: true, reason: String::new() },
            Ok(Err(e)) => proto::TransferReply { accepted: false, reason: e.to_string() },
            Err(e) => return Err(fatal(e)),
        };
        Ok(self.answer(reply))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bytes::Bytes;
    use futures_util::FutureExt;
    use holdfast_log::{Entry, Identity, LogConfig, RealDisk};

    /// QUARANTINE-Q4: of the term of the removal there is one leader, and it has the entry.
    #[test]
    fn a_leader_of_a_term_before_the_removal_is_refused() {
        let (floor, from) = (Some(LogId::new(3, 77)), MemberId(2));
        let refused = |floor, term| {
            let vote = proto::Vote { term, member: from.0, committed: true };
            of_before(floor, Some(&vote), from).is_err()
        };
        assert_eq!([1, 2, 3, 4].map(|term| refused(floor, term)), [true, true, false, false]);
        assert!(!refused(None, 1), "nothing is learnt anew here");
        assert!(of_before(floor, None, from).is_err() && of_before(None, None, from).is_ok());
    }

    /// While the disk does not respond, a follower that catches up accepts only a limited amount of appends.
    #[tokio::test]
    async fn appends_are_taken_in_no_faster_than_the_disk_takes_them() {
        let dir = tempfile::tempdir().expect("a folder");
        let (file_bytes, bound_bytes, reserve_bytes) = (64 << 20, 512 << 20, 128 << 20);
        let config = LogConfig { file_bytes, bound_bytes, reserve_bytes, ..LogConfig::new(dir.path()) };
        let disk = RealDisk::open(dir.path(), file_bytes, 4).expect("opens");
        let (log, _, mut turns) = NodeLog::open_in_turns(disk, config, Identity::default(), None).expect("opens");
        let group = log.group(GroupId(7));
        let mut input = std::pin::pin!(paced(futures_util::stream::iter(0..60_u64), log.clone()));
        let (mut index, mut waiting, message) = (0, 0, 1 << 20);
        while index < 60 {
            match input.next().now_or_never() {
                Some(item) => {
                    let id = LogId::new(1, item.expect("one of 60"));
                    group.append(vec![Entry { id, payload: Bytes::from(vec![7; message]) }], |done| {
                        done.expect("durable");
                    });
                    (index, waiting) = (index + 1, waiting + message as u64);
                }
                None => {
                    turns.turn(false);
                    waiting = 0;
                }
            }
            assert!(waiting <= QUEUE_BYTES_MAX + 2 * message as u64, "{waiting} bytes wait for the disk");
        }
    }
}
