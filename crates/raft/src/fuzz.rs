//! Doors for the fuzz targets (package `fuzz`, ADR 0051): bytes of peers and of the node's own folder, for private
//! decoders. Nothing of the product calls them.

use crate::append_frames::{self as frames, Body, Frame, Outgoing, Received};
use crate::lives::{Life, Lives};
use crate::note_file::Magic;
use crate::protocol::PROTOCOL;
use crate::snapshot_file::StoredSnapshot;
use crate::wire::{
    MEMBERSHIP_MARK, RaftMembership, RaftStoredMembership, append_from_wire, append_reply_from_wire,
    append_reply_to_wire, append_to_wire, entry_from_parts, id_from_wire, id_to_raft, make_vote, membership_from_bytes,
    membership_to_bytes, vote_from_wire,
};
use crate::{end_marker, proto, quarantine, snapshot_file};
use bytes::{Bytes, BytesMut};
use holdfast_types::{GroupId, LogId};
use openraft::impls::BasicNode;
use openraft::raft::AppendEntriesRequest;
use prost::Message;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::task::{Context, Poll, Waker};
use tonic::Status;
use tonic::metadata::MetadataMap;

/// First bytes of a connection that carries append streams.
pub const PREFACE: &[u8] = frames::PREFACE;

/// What was taken out of a connection's bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Taken {
    /// The frames, encoded again one behind the other, without the preface.
    pub again: Vec<u8>,
    /// Number of frames.
    pub frames: usize,
    /// The rest was refused.
    pub refused: bool,
}

/// Takes frames out of the bytes of a sender of appends (or of their receiver), which come in pieces of `piece` bytes.
///
/// # Panics
/// When a frame that was taken cannot be sent: a bug.
pub fn take_frames(sender: bool, bytes: &[u8], piece: usize) -> Taken {
    let mut pieces = bytes.chunks(piece.max(1));
    let mut received = match sender {
        true => Received::from_sender(BytesMut::from(pieces.next().unwrap_or_default())),
        false => Received::from_receiver(),
    };
    let mut taken = Taken::default();
    loop {
        loop {
            match received.next() {
                Ok(Some(frame)) => {
                    encode(&frame, &mut taken.again);
                    taken.frames += 1;
                }
                Ok(None) => break,
                Err(_) => {
                    taken.refused = true;
                    return taken;
                }
            }
        }
        let Some(piece) = pieces.next() else { return taken };
        received.room().extend_from_slice(piece);
    }
}

/// What the door reads in the metadata of a stream, beside numbers.
fn judge(meta: &MetadataMap) {
    let _ = PROTOCOL.common(meta);
    let _ = Lives::of(meta);
}

fn encode(frame: &Frame, out: &mut Vec<u8>) {
    let stream = frame.stream;
    match &frame.body {
        Body::Open(meta) => {
            judge(meta);
            out.extend_from_slice(&frames::open(stream, meta));
        }
        Body::Append { number, request } => {
            let mut outgoing = Outgoing::default();
            let added = outgoing.append(stream, *number, request);
            assert!(added.is_ok(), "a frame that was taken cannot be sent: {:?}", added.err());
            let written = outgoing.poll_write(out, &mut Context::from_waker(Waker::noop()));
            assert!(matches!(written, Poll::Ready(Ok(()))), "a write to memory: {written:?}");
        }
        Body::Ping => out.extend_from_slice(&frames::ping(stream)),
        Body::Welcome(meta) => {
            judge(meta);
            out.extend_from_slice(&frames::welcome(stream, meta));
        }
        Body::Answer { number, result } => {
            let mut answer = BytesMut::new();
            frames::answer(&mut answer, stream, *number, result);
            out.extend_from_slice(&answer);
        }
        Body::Refused(status) => out.extend_from_slice(&frames::refused(stream, status)),
        Body::Pong => out.extend_from_slice(&frames::pong(stream)),
    }
}

/// Kinds of messages that [`message`] decodes.
pub const MESSAGES: u8 = 26;

/// Decodes a message of a call between gateways, or of its answer, checks it as the receiver does, and encodes it
/// again. `None`: refused.
pub fn message(kind: u8, bytes: &[u8]) -> Option<Vec<u8>> {
    match kind % MESSAGES {
        0 => {
            let request = append_from_wire(proto::AppendRequest::decode(bytes).ok()?).ok()?;
            Some(append_to_wire(request).encode_to_vec())
        }
        1 => {
            let reply = append_reply_from_wire(proto::AppendReply::decode(bytes).ok()?).ok()?;
            Some(append_reply_to_wire(reply).encode_to_vec())
        }
        2 => voted(&proto::VoteRequest::decode(bytes).ok()?, |m| (m.vote, m.last)),
        3 => voted(&proto::VoteReply::decode(bytes).ok()?, |m| (m.vote, m.last)),
        4 => voted(&proto::TransferRequest::decode(bytes).ok()?, |m| (m.from, m.last)),
        5 => {
            let request = proto::SnapshotHead::decode(bytes).ok()?;
            request.membership_id.as_ref().map(id_from_wire).transpose().ok()?;
            membership_from_bytes(&request.membership).ok()?;
            voted(&request, |m| (m.vote, m.last))
        }
        6 => voted(&proto::SnapshotReply::decode(bytes).ok()?, |m| (m.vote, None)),
        7 => again::<proto::TransferReply>(bytes),
        8 => again::<proto::RegisterRequest>(bytes),
        9 => again::<proto::RegisterReply>(bytes),
        10 => again::<proto::DeniedRequest>(bytes),
        11 => again::<proto::DeniedReply>(bytes),
        12 => again::<proto::ReadmitRequest>(bytes),
        13 => again::<proto::ReadmitReply>(bytes),
        14 => again::<proto::RollRequest>(bytes),
        15 => again::<proto::RollReply>(bytes),
        16 => again::<proto::EndedRequest>(bytes),
        17 => again::<proto::EndedReply>(bytes),
        18 => again::<proto::PlacingRequest>(bytes),
        19 => again::<proto::PlacingReply>(bytes),
        20 => again::<proto::LeaveRequest>(bytes),
        21 => again::<proto::LeaveReply>(bytes),
        22 => again::<proto::FollowTurnRequest>(bytes),
        23 => again::<proto::FollowTurnReply>(bytes),
        24 => {
            let request = proto::BeatsRequest::decode(bytes).ok()?;
            let taken = |beat: &proto::Beat| append_from_wire(beat.append.clone()?).ok().map(drop);
            request.beats.iter().try_for_each(taken)?;
            Some(request.encode_to_vec())
        }
        _ => {
            let reply = proto::BeatReply::decode(bytes).ok()?;
            if let Some(proto::beat_reply::Result::Reply(answer)) = &reply.result {
                let _ = append_reply_from_wire(*answer).ok()?;
            }
            Some(reply.encode_to_vec())
        }
    }
}

fn again<M: Message + Default>(bytes: &[u8]) -> Option<Vec<u8>> {
    Some(M::decode(bytes).ok()?.encode_to_vec())
}

/// A message with a vote and a position.
fn voted<M: Message>(
    message: &M,
    parts: impl Fn(&M) -> (Option<proto::Vote>, Option<proto::LogId>),
) -> Option<Vec<u8>> {
    let (vote, last) = parts(message);
    vote_from_wire(vote, "a message").ok()?;
    last.as_ref().map(id_from_wire).transpose().ok()?;
    Some(message.encode_to_vec())
}

const GROUP: GroupId = GroupId(7);

/// A file of the node's folder of state: magic and checksum, then `body`.
fn whole(magic: &Magic, body: &[u8]) -> Vec<u8> {
    [&magic[..], &crc32c::crc32c(body).to_le_bytes(), body].concat()
}

/// Reads a file of a group: by `kind` a state snapshot with this body, a note of quarantine, a note of the group's end,
/// or these bytes as each of them. Returns a snapshot's body, encoded again; `None`: refused, or no snapshot.
pub fn state_file(kind: u8, body: &[u8]) -> Option<Vec<u8>> {
    let path = Path::new("group-7.snapshot");
    let bytes = match kind % 4 {
        0 => whole(snapshot_file::MAGIC, body),
        1 => whole(quarantine::MAGIC, body),
        2 => whole(end_marker::MAGIC, body),
        _ => body.to_vec(),
    };
    let _ = quarantine::decode(GROUP, &bytes);
    let _ = end_marker::decode(GROUP, &bytes);
    let snapshot = snapshot_file::decode(path, GROUP, &bytes, None).ok()?;
    snapshot_file::encode(path, GROUP, &snapshot).ok()
}

fn three_voters() -> RaftMembership {
    let nodes: BTreeMap<u64, BasicNode> = (1..=3).map(|id| (id, BasicNode::new(format!("10.0.0.{id}:7401")))).collect();
    RaftMembership::new(vec![BTreeSet::from([1, 2, 3])], nodes).unwrap_or_default()
}

fn example_append() -> AppendEntriesRequest<crate::TypeConfig> {
    let membership = [&[MEMBERSHIP_MARK][..], &membership_to_bytes(&three_voters())].concat();
    let payloads = [Bytes::new(), Bytes::from(membership), Bytes::from_static(b"a command")];
    let entries =
        (10..).zip(payloads).filter_map(|(index, payload)| entry_from_parts(LogId::new(3, index), payload).ok());
    AppendEntriesRequest {
        vote: make_vote(3, 1, true),
        prev_log_id: Some(id_to_raft(LogId::new(2, 9))),
        entries: entries.collect(),
        leader_commit: Some(id_to_raft(LogId::new(2, 8))),
    }
}

/// Examples for [`take_frames`]: what a sender writes, and what a receiver answers.
pub fn example_frames() -> [(bool, Vec<u8>); 2] {
    let mut meta = MetadataMap::new();
    let own = Life { disk: 5, boot: 3, nonce: 8 };
    Lives::new(own.into(), PROTOCOL).stamp(&mut meta);
    let frame = |body| Frame { stream: 1, body };
    let mut sender = PREFACE.to_vec();
    let append = Body::Append { number: 1, request: example_append() };
    [Body::Open(meta.clone()), append, Body::Ping].into_iter().for_each(|body| encode(&frame(body), &mut sender));
    let mut receiver = Vec::new();
    let answer = Body::Answer { number: 1, result: Ok(Some(id_to_raft(LogId::new(3, 12)))) };
    let refused = Body::Refused(Status::not_found("group 9 is not here (yet)"));
    let all = [Body::Welcome(meta), answer, Body::Pong, refused];
    all.into_iter().for_each(|body| encode(&frame(body), &mut receiver));
    [(true, sender), (false, receiver)]
}

/// Examples for [`message`].
pub fn example_messages() -> Vec<(u8, Vec<u8>)> {
    let vote = Some(proto::Vote { term: 3, member: 1, committed: false });
    let last = Some(proto::LogId { term: 2, index: 9 });
    let asked = proto::VoteRequest { vote, last, leadership_transfer: false, pre: true };
    let snapshot = proto::SnapshotHead {
        vote,
        last,
        membership_id: last,
        membership: membership_to_bytes(&three_voters()),
        length: 7,
        crc: 7,
    };
    let roll = proto::Roll { members: vec![1, 2, 3], applied: 12 };
    let result = Some(proto::roll_reply::Result::Roll(roll));
    let append = Some(append_to_wire(AppendEntriesRequest { entries: Vec::new(), ..example_append() }));
    let beats = vec![proto::Beat { group: GROUP.0, append }];
    let beat = append_reply_to_wire(Ok(Some(id_to_raft(LogId::new(3, 12)))));
    let beat = Some(proto::beat_reply::Result::Reply(beat));
    vec![
        (0, append_to_wire(example_append()).encode_to_vec()),
        (1, append_reply_to_wire(Ok(Some(id_to_raft(LogId::new(3, 12))))).encode_to_vec()),
        (2, asked.encode_to_vec()),
        (5, snapshot.encode_to_vec()),
        (15, proto::RollReply { result }.encode_to_vec()),
        (24, proto::BeatsRequest { beats }.encode_to_vec()),
        (25, proto::BeatReply { place: 0, read_lease_ms: 480, result: beat }.encode_to_vec()),
    ]
}

/// Examples for [`state_file`].
pub fn example_files() -> Vec<(u8, Vec<u8>)> {
    let membership = RaftStoredMembership::new(Some(id_to_raft(LogId::new(1, 2))), three_voters());
    let snapshot = StoredSnapshot::new(LogId::new(2, 30), membership, Bytes::from_static(b"a state"));
    let body = snapshot_file::encode(Path::new("group-7.snapshot"), GROUP, &snapshot).unwrap_or_default();
    vec![(3, whole(snapshot_file::MAGIC, &body)), (0, body)]
}
