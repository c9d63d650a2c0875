//! The client side of the protocol between gateways. Everything has a deadline; nothing here retries, openraft does.

use crate::acks::Acks;
use crate::append_sender::{Begun, Wire};
use crate::beat_carrier::Carrier;
use crate::beats::{Counted, MOMENT};
use crate::channels::Channels;
use crate::clock::{boot_now, promise_now};
use crate::config::{RaftTiming, TypeConfig};
use crate::machine::Shared;
use crate::pacing::Pacing;
use crate::proto::{self, peer_client::PeerClient};
use crate::rpc_error::{Rpc, broken, from_status, late};
use crate::snapshot_pieces::{checksum, pieces, snapshot_time};
use crate::wire::{
    RaftVote, WireError, append_answer_from_wire, append_to_wire, id_from_raft, id_from_wire, id_to_wire,
    membership_to_bytes, vote_from_wire,
};
use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::BoxStream;
use holdfast_log::NodeLog;
use holdfast_types::limits::PEER_MESSAGE_BYTES_MAX;
use holdfast_types::sync::LockExt;
use holdfast_types::{GroupId, LogId, MemberId};
use openraft::errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable};
use openraft::impls::BasicNode;
use openraft::network::{RPCOption, RaftNetworkFactory, RaftNetworkV2, stream_append_sequential};
use openraft::raft::{
    AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendError, StreamAppendResult,
    TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
};
use std::future::Future;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tonic::metadata::MetadataMap;
use tonic::transport::Channel;
use tonic::{Request, Status};

/// Makes the clients of one group.
#[derive(Clone)]
pub(crate) struct Network {
    pub(crate) acks: Arc<Acks>,
    pub(crate) log: NodeLog,
    pub(crate) shared: Arc<Shared>,
    pub(crate) group: GroupId,
    /// What openraft was started with.
    pub(crate) timing: RaftTiming,
    /// The group's present times, and what this member has promised in it.
    pub(crate) pacing: Arc<Mutex<Pacing>>,
    pub(crate) channels: Arc<Channels>,
}

impl RaftNetworkFactory<TypeConfig> for Network {
    type Network = Client;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Client {
        Client { bulk: true, ..self.client(MemberId(target), node.addr.clone()) }
    }

    async fn new_heartbeat_client(&mut self, target: u64, node: &BasicNode) -> Client {
        let counted = Some(self.channels.beats.join(MemberId(target)));
        Client { counted, ..self.client(MemberId(target), node.addr.clone()) }
    }
}

/// The client of one group for one peer.
pub(crate) struct Client {
    net: Network,
    target: MemberId,
    addr: String,
    /// False for heartbeats: these are unary calls, on the channel without bulk.
    bulk: bool,
    /// Of heartbeats: how many groups send them to this peer.
    counted: Option<Counted>,
    /// The connection of the last append stream, if it ended in good order.
    wire: Option<Wire>,
}

impl Network {
    /// For calls of this crate to `target`, at this address if no newer one is known.
    pub(crate) fn client(&self, target: MemberId, addr: String) -> Client {
        Client { net: self.clone(), target, addr, bulk: false, counted: None, wire: None }
    }

    /// Notes what the follower has acknowledged. Refuses a follower that lags too far, or that denies what it had
    /// acknowledged.
    fn judge(
        &self,
        target: MemberId,
        addr: &str,
        term: u64,
        result: StreamAppendResult<TypeConfig>,
    ) -> Result<StreamAppendResult<TypeConfig>, Rpc> {
        match result {
            Ok(matched) if self.must_let_go(term, matched.as_ref().map(id_from_raft)) => {
                holdfast_reached::reached!("network: a follower that lags too far is given up");
                tracing::warn!(group = %self.group, %target, "follower lags too far for this journal: its stream ends, it gets a snapshot");
                let why = "lags too far for the leader's journal";
                Err(RPCError::Unreachable(Unreachable::from_string(why)))
            }
            Ok(matched) => {
                if let Some(id) = &matched {
                    self.acks.acked.note(target, term, id_from_raft(id));
                }
                Ok(Ok(matched))
            }
            Err(StreamAppendError::Conflict(conflict)) => {
                match self.acks.acked.denied(target, term, id_from_raft(&conflict)) {
                    None => Ok(Err(StreamAppendError::Conflict(conflict))),
                    Some(acked) => Err(self.accuse(target, addr.to_string(), acked)),
                }
            }
            refused => Ok(refused),
        }
    }

    /// Whether an answer comes from `target` as this gateway knows it (CLUSTER-C3).
    fn believe(&self, target: MemberId, meta: &MetadataMap) -> Result<(), Rpc> {
        self.channels.lives.check(target, meta).map_err(|why| {
            holdfast_reached::reached!("network: an answer of another life is ignored");
            tracing::warn!(group = %self.group, %why, "answer ignored: it came from a different member");
            RPCError::Unreachable(Unreachable::from_string(why))
        })
    }

    /// Whether to give up a follower that has `matched`: see [`lets_go`].
    fn must_let_go(&self, term: u64, matched: Option<LogId>) -> bool {
        let usage = self.log.usage();
        let room = usage.bound_bytes.saturating_sub(usage.reserve_bytes);
        let filling = usage.used_bytes > room / 5 * 4;
        if !filling {
            return false;
        }
        let settled = self.shared.applied().term.0 == term;
        let purged = self.log.group(self.group).state().purged;
        lets_go(filling, settled, matched, self.shared.snapshot_last(), purged)
    }

    /// `target` denies what it had acknowledged (REVERSION-V1). Tells it so; none of its answers counts until it is
    /// healed.
    fn accuse(&self, target: MemberId, addr: String, acked: LogId) -> Rpc {
        let why =
            format!("{target} says that it does not have {acked}, which it had acknowledged: its log went backwards");
        tracing::error!(group = %self.group, %why, "R11: telling the member that it must exit");
        holdfast_reached::reached!("reversion: a follower denies what it had acknowledged");
        let client = self.client(target, addr);
        tokio::spawn(async move {
            let acknowledged = Some(proto::LogId { term: acked.term.0, index: acked.index.0 });
            let Ok(mut peer) = client.peer(false) else { return };
            let limit = client.net.timing.election_max.saturating_mul(2);
            let call = peer.denied(client.request(proto::DeniedRequest { acknowledged }));
            match client.within("denied", limit, call).await {
                Ok(reply) if !reply.gone => {
                    tracing::warn!(%target, %acked, "the member reports the entry again that it had denied")
                }
                // It ends before it answers.
                Ok(_) | Err(_) => {}
            }
        });
        RPCError::Unreachable(Unreachable::from_string(why))
    }
}

/// Whether to give up a follower: it lags so far that the entries it needs could be freed, and the journal is filling.
/// Waiting for it would slow every writer down to its pace.
///
/// `settled`: this leader has applied an entry of its own term, so a quorum has followed it there. Before that it does
/// not know what followers have: `matched` is only the position of its first question. If it gave up each follower at
/// the first answer, it would learn nothing more, commit nothing, free nothing, and lead for ever (found by simulation,
/// seed 59).
///
/// `purged`: the part that is already gone from this leader's log. If that is all that the snapshot covers, nothing
/// waits for this follower, and giving it up frees nothing. If it is less, openraft waits with the purge until this
/// stream ends, and then sends the snapshot. openraft must know of that purge: a purge that was lost in a crash is
/// repeated before a group takes part (`RaftNode::start_group`).
fn lets_go(
    filling: bool,
    settled: bool,
    matched: Option<LogId>,
    snapshot: Option<LogId>,
    purged: Option<LogId>,
) -> bool {
    filling && settled && matched < snapshot && purged < snapshot
}

fn from_wire(e: &WireError) -> Rpc {
    broken(e)
}

impl Client {
    fn peer(&self, bulk: bool) -> Result<PeerClient<Channel>, Rpc> {
        let channel = self.net.channels.get(self.target, &self.addr, bulk)?;
        Ok(PeerClient::new(channel)
            .max_decoding_message_size(PEER_MESSAGE_BYTES_MAX)
            .max_encoding_message_size(PEER_MESSAGE_BYTES_MAX))
    }

    fn request<T>(&self, message: T) -> Request<T> {
        self.net.channels.request(message, self.net.group, self.target)
    }

    async fn within<T>(
        &self,
        what: &str,
        limit: Duration,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<T, Rpc> {
        self.answered(what, limit, call).await.map(tonic::Response::into_inner)
    }

    async fn answered<T>(
        &self,
        what: &str,
        limit: Duration,
        call: impl Future<Output = Result<tonic::Response<T>, Status>>,
    ) -> Result<tonic::Response<T>, Rpc> {
        match tokio::time::timeout(limit, call).await {
            Ok(Ok(reply)) => self.net.believe(self.target, reply.metadata()).map(|()| reply),
            Ok(Err(status)) => Err(from_status(&status)),
            Err(_) => Err(late(what, limit)),
        }
    }

    /// Begins an append stream: over the connection of the last one, if it is still there.
    async fn begin(&mut self, first: &AppendEntriesRequest<TypeConfig>) -> Result<Begun, Rpc> {
        let (channels, target) = (&self.net.channels, self.target);
        let addr = channels.address(target, &self.addr);
        let mut kept = self.wire.take().filter(|wire| wire.addr() == addr);
        if let Some(wire) = &mut kept
            && !wire.is_silent().await
        {
            kept = None;
        }
        let wire = match kept {
            Some(wire) => wire,
            None => Wire::new(channels.dial(target, &addr).await?, addr),
        };
        let (begun, theirs) = Begun::on(wire, self.request(()).metadata(), first).await?;
        self.net.believe(target, &theirs)?;
        Ok(begun)
    }

    /// How long the answer to a heartbeat is waited for.
    fn patience(&self, longest: Duration) -> Duration {
        let every = self.net.pacing.locked().times().heartbeat;
        self.net.channels.trips.limit(self.target, every, longest)
    }

    /// Sends a heartbeat by itself. Returns the answer, and for how long it lets the leader read.
    async fn beat_alone(
        &self,
        message: proto::AppendRequest,
        limit: Duration,
    ) -> Result<(proto::AppendReply, Duration), Rpc> {
        let mut peer = self.peer(self.bulk)?;
        let begun = boot_now();
        let call = self.answered("append", limit, peer.append(self.request(message))).await;
        let took = boot_now().saturating_since(begun);
        match &call {
            Ok(_) => self.net.channels.trips.answered(self.target, took),
            Err(_) if took >= limit => self.net.channels.trips.late(self.target),
            Err(_) => {}
        }
        let reply = call?;
        let promised = self.net.channels.promises.heard(self.target, reply.metadata());
        Ok((reply.into_inner(), promised))
    }

    /// Like `beat_alone`, together with those of other groups (ADR 0059).
    async fn beat_together(
        &self,
        message: proto::AppendRequest,
        limit: Duration,
    ) -> Result<(proto::AppendReply, Duration), Rpc> {
        let (channels, group, target) = (self.net.channels.clone(), self.net.group, self.target);
        let beat = proto::Beat { group: group.0, append: Some(message) };
        let (answer, carries) = channels.beats.put(target, beat, boot_now());
        if carries {
            let (addr, limit) = (self.addr.clone(), self.net.timing.heartbeat);
            tokio::spawn(Carrier { channels, group, target, addr, limit }.run());
        }
        match tokio::time::timeout(limit.saturating_add(MOMENT), answer).await {
            Ok(Ok(Ok(answer))) => Ok(answer),
            Ok(Ok(Err(status))) => Err(from_status(&status)),
            Ok(Err(_)) | Err(_) => Err(late("heartbeat", limit)),
        }
    }

    pub(crate) async fn ask_vote(
        &self,
        rpc: &VoteRequest<TypeConfig>,
        pre: bool,
        limit: Duration,
    ) -> Result<VoteResponse<TypeConfig>, Rpc> {
        let message = proto::VoteRequest {
            vote: Some((&rpc.vote).into()),
            last: rpc.last_log_id.as_ref().map(id_to_wire),
            leadership_transfer: rpc.leadership_transfer,
            pre,
        };
        let mut peer = self.peer(false)?;
        let reply = self.within("vote", limit, peer.vote(self.request(message))).await?;
        let vote = vote_from_wire(reply.vote, "vote reply").map_err(|e| from_wire(&e))?;
        let last = reply.last.as_ref().map(id_from_wire).transpose().map_err(|e| from_wire(&e))?;
        Ok(VoteResponse::new(vote, last, reply.granted))
    }
}

impl RaftNetworkV2<TypeConfig> for Client {
    type SnapshotData = Bytes;

    async fn append_entries(
        &mut self,
        rpc: AppendEntriesRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<TypeConfig>, Rpc> {
        let (term, prev) = (rpc.vote.leader_id.term, rpc.prev_log_id);
        let (sent, limit) = (boot_now(), self.patience(option.hard_ttl()));
        let counted = self.counted.is_some() && rpc.entries.is_empty();
        let together = counted && self.net.channels.beats.gathers(self.target, sent);
        let message = append_to_wire(rpc);
        let answered = match together {
            true => self.beat_together(message, limit).await,
            false => self.beat_alone(message, limit).await,
        };
        let (reply, promised) = answered?;
        let until = self.net.channels.promises.reads_until(sent, promised);
        let result = append_answer_from_wire(reply, prev).map_err(|e| from_wire(&e))?;
        Ok(match result {
            Ok(id) => {
                self.net.acks.note(self.target, term, sent, until);
                AppendEntriesResponse::PartialSuccess(id)
            }
            Err(StreamAppendError::Conflict(conflict)) => {
                if let Some(acked) = self.net.acks.acked.denied(self.target, term, id_from_raft(&conflict)) {
                    return Err(self.net.accuse(self.target, self.addr.clone(), acked));
                }
                AppendEntriesResponse::Conflict
            }
            Err(StreamAppendError::HigherVote(vote)) => AppendEntriesResponse::HigherVote(vote),
        })
    }

    fn stream_append<'s, S>(
        &'s mut self,
        mut input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<BoxStream<'s, Result<StreamAppendResult<TypeConfig>, Rpc>>, Rpc>>
    where
        S: futures_util::Stream<Item = AppendEntriesRequest<TypeConfig>> + openraft::OptionalSend + Unpin + 'static,
    {
        if !self.bulk {
            return stream_append_sequential(self, input, option);
        }
        Box::pin(async move {
            // The first request is awaited before the call: openraft waits for its backoff inside this stream. A call
            // that failed before anything was requested from the stream would be repeated at once, for ever.
            let Some(first) = input.next().await else { return Ok(futures_util::stream::empty().boxed()) };
            let (term, election_max) = (first.vote.leader_id.term, self.net.timing.election_max);
            // A receiver answers as soon as it has read the metadata.
            let limit = election_max.saturating_mul(2);
            let begun = tokio::time::timeout(limit, self.begin(&first)).await;
            let begun = begun.unwrap_or_else(|_| Err(late("append stream", limit)))?;
            // A slow disk does not mean a dead peer.
            let stall = election_max.saturating_mul(8).max(Duration::from_secs(5));
            let Self { net, target, addr, wire, .. } = self;
            let (net, target, addr): (&Network, MemberId, &str) = (net, *target, addr);
            let judge = move |result| net.judge(target, addr, term, result);
            Ok(begun.session(wire, input, judge, stall).boxed())
        })
    }

    /// Asks for a vote. By now this member has voted for itself; that counts only once others are asked. So it asks
    /// nobody while it is bound by a promise, which it may have given between its decision to stand and its vote
    /// (PACER-E2).
    async fn vote(&mut self, rpc: VoteRequest<TypeConfig>, option: RPCOption) -> Result<VoteResponse<TypeConfig>, Rpc> {
        let bound = self.net.pacing.locked().left(promise_now()).filter(|_| !rpc.leadership_transfer);
        if let Some(left) = bound {
            holdfast_reached::reached!("pacing: a candidate that has promised something meanwhile");
            let why = format!("a leader was heard: no vote is asked for during {left:?}");
            return Err(RPCError::Unreachable(Unreachable::from_string(why)));
        }
        self.ask_vote(&rpc, false, option.hard_ttl()).await
    }

    async fn pre_vote(
        &mut self,
        rpc: VoteRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<VoteResponse<TypeConfig>, Rpc> {
        self.ask_vote(&rpc, true, option.hard_ttl()).await
    }

    async fn full_snapshot(
        &mut self,
        vote: RaftVote,
        snapshot: openraft::type_config::alias::SnapshotOf<TypeConfig, Bytes>,
        cancel: impl Future<Output = ReplicationClosed> + openraft::OptionalSend + 'static,
        _option: RPCOption,
    ) -> Result<SnapshotResponse<TypeConfig>, StreamingError<TypeConfig>> {
        let membership = &snapshot.meta.last_membership;
        let mut head = proto::SnapshotHead {
            vote: Some((&vote).into()),
            last: snapshot.meta.last_log_id.as_ref().map(id_to_wire),
            membership_id: membership.log_id().as_ref().map(id_to_wire),
            membership: membership_to_bytes(membership.membership()),
            length: snapshot.snapshot.len() as u64,
            crc: 0,
        };
        head.crc = checksum(&head, &snapshot.snapshot);
        let mut cancel = std::pin::pin!(cancel);
        let bytes = snapshot.snapshot.len();
        // The cluster's own state waits for none: it says which members and certificates count.
        let waits_for = if self.net.group == GroupId::CLUSTER { 0 } else { bytes };
        let way = self.net.channels.way(self.target);
        let (_turn, under_way) = tokio::select! {
            biased;
            turn = way.turn(waits_for) => turn,
            closed = &mut cancel => return Err(StreamingError::Closed(closed)),
        };
        let limit = snapshot_time(self.net.timing.election_max, under_way.max(bytes));
        let mut peer = self.peer(true)?;
        let request = self.request(pieces(head, snapshot.snapshot));
        let call = self.within("snapshot", limit, peer.snapshot(request));
        let reply = tokio::select! {
            reply = call => reply?,
            closed = &mut cancel => return Err(StreamingError::Closed(closed)),
        };
        let vote = vote_from_wire(reply.vote, "snapshot reply").map_err(|e| from_wire(&e))?;
        Ok(SnapshotResponse::new(vote))
    }

    async fn transfer_leader(
        &mut self,
        req: TransferLeaderRequest<TypeConfig>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<TypeConfig>, Rpc> {
        let message = proto::TransferRequest {
            from: Some(req.from_leader().into()),
            to: *req.to_node_id(),
            last: req.last_log_id().map(id_to_wire),
        };
        let mut peer = self.peer(false)?;
        let reply = self.within("transfer", option.hard_ttl(), peer.transfer(self.request(message))).await?;
        if !reply.accepted {
            return Err(RPCError::Network(NetworkError::from_string(format!("transfer refused: {}", reply.reason))));
        }
        Ok(Ok(()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_laggard_is_let_go_only_by_a_leader_that_a_quorum_has_followed() {
        let (behind, snapshot) = (Some(LogId::new(5, 934)), Some(LogId::new(5, 1187)));
        let purged = Some(LogId::new(5, 700));
        assert!(lets_go(true, true, behind, snapshot, purged));
        assert!(lets_go(true, true, behind, snapshot, None));
        assert!(
            !lets_go(true, false, behind, snapshot, purged),
            "newly elected: 934 is where it asked first, not what the follower has"
        );
        assert!(!lets_go(false, true, behind, snapshot, purged), "there is room: nobody is held up");
        assert!(!lets_go(true, true, Some(LogId::new(5, 1187)), snapshot, purged), "what it needs is kept");
        assert!(!lets_go(true, true, behind, snapshot, snapshot), "all is purged that may be: it holds nothing up");
        assert!(!lets_go(true, true, behind, None, None));
    }
}
