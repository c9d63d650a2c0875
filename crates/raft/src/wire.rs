//! Conversions between the types of openraft, the journal and the wire. Only this module distinguishes kinds of entries
//! by their bytes.
//!
//! Payload bytes in journal and on the wire alike:
//! ```text
//!   empty            a blank entry (a new leader's first)
//!   0xF0 …           a membership, postcard of `MembershipImage`
//!   anything else    the state machine's own
//! ```

use crate::config::{Answer, Payload, TypeConfig};
use crate::proto;
use crate::stored::Ticket;
use bytes::{BufMut, Bytes, BytesMut};
use holdfast_types::{LogId, MemberId};
use openraft::entry::RaftEntry;
use openraft::impls::{BasicNode, leader_id_std};
use openraft::{EntryPayload, Membership, StoredMembership};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, BTreeSet};

pub(crate) type CommittedLeader = openraft::type_config::alias::CommittedLeaderIdOf<TypeConfig>;
pub(crate) type RaftLogId = openraft::LogId<CommittedLeader>;
pub(crate) type RaftVote = openraft::type_config::alias::VoteOf<TypeConfig>;
pub(crate) type RaftEntryOf = openraft::type_config::alias::EntryOf<TypeConfig>;
pub(crate) type RaftMembership = Membership<u64, BasicNode>;
pub(crate) type RaftStoredMembership = StoredMembership<CommittedLeader, u64, BasicNode>;
pub(crate) type RaftSnapshotMeta = openraft::storage::SnapshotMeta<CommittedLeader, u64, BasicNode>;

/// First payload byte of a membership entry.
pub(crate) const MEMBERSHIP_MARK: u8 = 0xF0;

/// Metadata keys of every call between gateways.
pub(crate) const META_GROUP: &str = "holdfast-group";
pub(crate) const META_FROM: &str = "holdfast-from";
pub(crate) const META_TO: &str = "holdfast-to";
pub(crate) const META_CLUSTER: &str = "holdfast-cluster";

/// Bytes from a peer, a snapshot file or the journal that do not decode.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum WireError {
    #[error("{what}: missing field {field}")]
    Missing { what: &'static str, field: &'static str },
    #[error("membership: {reason}")]
    Membership { reason: String },
    #[error("{what}: found {found}, expected one far below the largest number")]
    NoneBehind { what: &'static str, found: u64 },
    #[error("append reply: found a conflict at {found}, expected none, or one at the position of the request")]
    Unasked { found: LogId },
}

/// A membership in bytes: joint configurations of voters, and the address of every member.
#[derive(Serialize, Deserialize)]
struct MembershipImage {
    configs: Vec<BTreeSet<u64>>,
    nodes: BTreeMap<u64, String>,
}

/// The voters: one set, or two in a joint membership.
pub(crate) fn voters_in(membership: &RaftMembership) -> Vec<BTreeSet<MemberId>> {
    let sets = membership.get_joint_config().iter();
    sets.map(|set| set.iter().copied().map(MemberId).collect()).collect()
}

pub(crate) fn membership_to_bytes(m: &RaftMembership) -> Bytes {
    let image = MembershipImage {
        configs: m.get_joint_config().clone(),
        nodes: m.nodes().map(|(id, node)| (*id, node.addr.clone())).collect(),
    };
    // Writing plain sets and strings to memory cannot fail; an empty image would be refused on reading.
    postcard::to_stdvec(&image).map(Bytes::from).unwrap_or_default()
}

pub(crate) fn membership_from_bytes(bytes: &[u8]) -> Result<RaftMembership, WireError> {
    let image: MembershipImage =
        postcard::from_bytes(bytes).map_err(|e| WireError::Membership { reason: e.to_string() })?;
    let nodes: BTreeMap<u64, BasicNode> = image.nodes.into_iter().map(|(id, addr)| (id, BasicNode { addr })).collect();
    if image.configs.is_empty() && nodes.is_empty() {
        return Ok(RaftMembership::default());
    }
    Membership::new(image.configs, nodes).map_err(|e| WireError::Membership { reason: e.to_string() })
}

pub(crate) fn id_to_raft(id: LogId) -> RaftLogId {
    openraft::LogId::new(CommittedLeader::new(id.term.0), id.index.0)
}

/// Refuses the upper half of all numbers. Indexes and terms are counted on from, and an overflow ends the process, with
/// a term on the disk at each start. The largest number alone is not enough: the next election counts up to it. No log
/// gets that long.
fn with_one_behind(what: &'static str, found: u64) -> Result<(), WireError> {
    if found > u64::MAX / 2 { Err(WireError::NoneBehind { what, found }) } else { Ok(()) }
}

/// A position that another gateway, or the disk, has named.
pub(crate) fn id_checked(id: LogId) -> Result<RaftLogId, WireError> {
    with_one_behind("term", id.term.0)?;
    with_one_behind("index", id.index.0)?;
    Ok(id_to_raft(id))
}

pub(crate) fn id_from_raft(id: &RaftLogId) -> LogId {
    LogId::new(id.leader_id.term, id.index)
}

pub(crate) fn entry_payload(entry: &RaftEntryOf) -> Bytes {
    match &entry.payload {
        EntryPayload::Blank => Bytes::new(),
        EntryPayload::Normal(payload) => payload.0.clone(),
        EntryPayload::Membership(m) => {
            let image = membership_to_bytes(m);
            let mut out = BytesMut::with_capacity(image.len() + 1);
            out.put_u8(MEMBERSHIP_MARK);
            out.put_slice(&image);
            out.freeze()
        }
    }
}

/// Where the entry carries its ticket. Blank entries and memberships carry none.
pub(crate) fn ticket_of(entry: &mut RaftEntryOf) -> Option<&mut Option<Ticket>> {
    match &mut entry.payload {
        EntryPayload::Normal(payload) => Some(payload.ticket()),
        EntryPayload::Blank | EntryPayload::Membership(_) => None,
    }
}

pub(crate) fn entry_from_parts(id: LogId, payload: Bytes) -> Result<RaftEntryOf, WireError> {
    let payload = match payload.first() {
        None => EntryPayload::Blank,
        Some(&MEMBERSHIP_MARK) => EntryPayload::Membership(membership_from_bytes(&payload[1..])?),
        Some(_) => EntryPayload::Normal(Payload::new(payload)),
    };
    Ok(RaftEntryOf::new(id_checked(id)?, payload))
}

pub(crate) fn entry_to_log(entry: &RaftEntryOf) -> holdfast_log::Entry {
    holdfast_log::Entry { id: id_from_raft(&entry.log_id), payload: entry_payload(entry) }
}

/// A vote in the journal: term, member, committed; 17 bytes little-endian.
pub(crate) fn vote_to_bytes(vote: &RaftVote) -> Bytes {
    let mut out = BytesMut::with_capacity(17);
    out.put_u64_le(vote.leader_id.term);
    out.put_u64_le(vote.leader_id.voted_for);
    out.put_u8(u8::from(vote.committed));
    out.freeze()
}

pub(crate) fn vote_from_bytes(bytes: &[u8]) -> Option<RaftVote> {
    let bytes: &[u8; 17] = bytes.try_into().ok()?;
    let (term, rest) = bytes.split_first_chunk::<8>()?;
    let (member, rest) = rest.split_first_chunk::<8>()?;
    let committed = match rest {
        [0] => false,
        [1] => true,
        _ => return None,
    };
    Some(make_vote(u64::from_le_bytes(*term), u64::from_le_bytes(*member), committed))
}

pub(crate) fn make_vote(term: u64, member: u64, committed: bool) -> RaftVote {
    RaftVote { leader_id: leader_id_std::LeaderId { term, voted_for: member }, committed }
}

/// A vote that another gateway has named.
pub(crate) fn vote_checked(term: u64, member: u64, committed: bool) -> Result<RaftVote, WireError> {
    with_one_behind("term of a vote", term)?;
    Ok(make_vote(term, member, committed))
}

impl From<&RaftVote> for proto::Vote {
    fn from(v: &RaftVote) -> Self {
        Self { term: v.leader_id.term, member: v.leader_id.voted_for, committed: v.committed }
    }
}

pub(crate) fn vote_from_wire(v: Option<proto::Vote>, what: &'static str) -> Result<RaftVote, WireError> {
    let v = v.ok_or(WireError::Missing { what, field: "vote" })?;
    vote_checked(v.term, v.member, v.committed)
}

pub(crate) fn id_to_wire(id: &RaftLogId) -> proto::LogId {
    proto::LogId { term: id.leader_id.term, index: id.index }
}

pub(crate) fn id_from_wire(id: &proto::LogId) -> Result<RaftLogId, WireError> {
    id_checked(LogId::new(id.term, id.index))
}

pub(crate) fn append_to_wire(req: openraft::raft::AppendEntriesRequest<TypeConfig>) -> proto::AppendRequest {
    proto::AppendRequest {
        vote: Some((&req.vote).into()),
        prev: req.prev_log_id.as_ref().map(id_to_wire),
        entries: req
            .entries
            .iter()
            .map(|e| proto::Entry { id: Some(id_to_wire(&e.log_id)), payload: entry_payload(e) })
            .collect(),
        commit: req.leader_commit.as_ref().map(id_to_wire),
    }
}

pub(crate) fn append_from_wire(
    req: proto::AppendRequest,
) -> Result<openraft::raft::AppendEntriesRequest<TypeConfig>, WireError> {
    let mut entries = Vec::with_capacity(req.entries.len());
    for entry in req.entries {
        let id = entry.id.ok_or(WireError::Missing { what: "entry", field: "id" })?;
        entries.push(entry_from_parts(LogId::new(id.term, id.index), entry.payload)?);
    }
    Ok(openraft::raft::AppendEntriesRequest {
        vote: vote_from_wire(req.vote, "append")?,
        prev_log_id: req.prev.as_ref().map(id_from_wire).transpose()?,
        entries,
        leader_commit: req.commit.as_ref().map(id_from_wire).transpose()?,
    })
}

type StreamResult = openraft::raft::StreamAppendResult<TypeConfig>;

pub(crate) fn append_reply_to_wire(result: StreamResult) -> proto::AppendReply {
    use openraft::raft::StreamAppendError as E;
    use proto::append_reply::Result as R;
    let result = match result {
        Ok(id) => R::Matched(proto::Matched { id: id.as_ref().map(id_to_wire) }),
        Err(E::Conflict(id)) => R::Conflict(id_to_wire(&id)),
        Err(E::HigherVote(vote)) => R::Higher((&vote).into()),
    };
    proto::AppendReply { result: Some(result) }
}

pub(crate) fn append_reply_from_wire(reply: proto::AppendReply) -> Result<StreamResult, WireError> {
    use openraft::raft::StreamAppendError as E;
    use proto::append_reply::Result as R;
    Ok(match reply.result.ok_or(WireError::Missing { what: "append reply", field: "result" })? {
        R::Matched(m) => Ok(m.id.as_ref().map(id_from_wire).transpose()?),
        R::Conflict(id) => Err(E::Conflict(id_from_wire(&id)?)),
        R::Higher(v) => Err(E::HigherVote(vote_checked(v.term, v.member, v.committed)?)),
    })
}

/// The answer to one append, which was sent after `prev`. A conflict is at that position and no other: openraft takes
/// the position from the request, and ends the process if that had none.
pub(crate) fn append_answer_from_wire(
    reply: proto::AppendReply,
    prev: Option<RaftLogId>,
) -> Result<StreamResult, WireError> {
    use openraft::raft::StreamAppendError as E;
    match append_reply_from_wire(reply)? {
        Err(E::Conflict(found)) if prev != Some(found) => Err(WireError::Unasked { found: id_from_raft(&found) }),
        answer => Ok(answer),
    }
}

impl From<Bytes> for Answer {
    fn from(bytes: Bytes) -> Self {
        Self(bytes)
    }
}

/// An error in openraft's form.
#[cfg(test)]
pub(crate) fn source(e: &std::io::Error) -> openraft::type_config::alias::ErrorSourceOf<TypeConfig> {
    openraft::errors::ErrorSource::from_error(e)
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_testkit::golden::{Written, kept};

    #[test]
    fn entries_keep_their_kind() {
        let id = LogId::new(3, 9);
        for payload in [Bytes::new(), Bytes::from_static(&[1, 2, 3])] {
            let entry = entry_from_parts(id, payload.clone()).expect("decodes");
            assert_eq!(entry_payload(&entry), payload);
        }
        let m = Membership::new(
            vec![BTreeSet::from([1, 2, 3])],
            BTreeMap::from([(1, BasicNode::new("a")), (2, BasicNode::new("b")), (3, BasicNode::new("c"))]),
        )
        .expect("valid");
        let entry = RaftEntryOf::new(id_to_raft(id), EntryPayload::Membership(m.clone()));
        let bytes = entry_payload(&entry);
        let back = entry_from_parts(id, bytes).expect("decodes");
        assert_eq!(back.get_membership(), Some(m));
    }

    /// As another implementation of postcard has them.
    #[test]
    fn the_bytes_of_votes_and_memberships_are_pinned() {
        const MEMBERSHIP: &[u8] = b"\xf0\x02\x02\x01\x02\x02\x02\x03\x03\x01\x03a:1\x02\x03b:2\x03\x03c:3";
        const VOTE: &[u8] = b"\x07\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0\x01";
        let nodes = [(1, "a:1"), (2, "b:2"), (3, "c:3")].map(|(id, addr)| (id, BasicNode::new(addr)));
        let voters = vec![BTreeSet::from([1, 2]), BTreeSet::from([2, 3])];
        let (m, id) = (Membership::new(voters, BTreeMap::from(nodes)).expect("valid"), LogId::new(3, 9));
        let entry = RaftEntryOf::new(id_to_raft(id), EntryPayload::Membership(m.clone()));
        assert_eq!(entry_payload(&entry), MEMBERSHIP);
        let read = |bytes: &[u8]| {
            entry_from_parts(id, Bytes::copy_from_slice(bytes)).ok().and_then(|entry| entry.get_membership())
        };
        assert_eq!(read(MEMBERSHIP), Some(m.clone()));
        kept(env!("CARGO_MANIFEST_DIR"), "membership", Written::Pinned(MEMBERSHIP), &Some(m), read);
        let vote = make_vote(7, 2, true);
        assert_eq!(vote_to_bytes(&vote), VOTE);
        assert_eq!(vote_from_bytes(VOTE), Some(vote));
        let expected = vote_from_bytes(VOTE);
        kept(env!("CARGO_MANIFEST_DIR"), "vote", Written::Pinned(VOTE), &expected, vote_from_bytes);
    }

    #[test]
    fn votes_round_trip_and_refuse_other_lengths() {
        let vote = make_vote(7, 2, true);
        assert_eq!(vote_from_bytes(&vote_to_bytes(&vote)), Some(vote));
        assert_eq!(vote_from_bytes(&[0; 16]), None);
        assert_eq!(vote_from_bytes(&[2; 17]), None);
    }

    /// The next index or term would overflow, which ends the process: a vote on disk would do so at each start.
    #[test]
    fn numbers_with_none_behind_them_are_refused() {
        // The next two elections would count up to the last one, and past it.
        assert!(vote_checked(u64::MAX - 1, 1, false).is_err());
        let last = u64::MAX;
        let id = |term, index| Some(proto::LogId { term, index });
        let vote = |term| Some(proto::Vote { term, member: 1, committed: true });
        let good = proto::AppendRequest { vote: vote(3), prev: id(2, 9), entries: Vec::new(), commit: id(2, 8) };
        let entry = |id| vec![proto::Entry { id, payload: Bytes::new() }];
        assert!(append_from_wire(proto::AppendRequest { entries: entry(id(3, 10)), ..good.clone() }).is_ok());
        for bad in [
            proto::AppendRequest { vote: vote(last), ..good.clone() },
            proto::AppendRequest { prev: id(2, last), ..good.clone() },
            proto::AppendRequest { commit: id(last, 8), ..good.clone() },
            proto::AppendRequest { entries: entry(id(3, last)), ..good.clone() },
        ] {
            let error = append_from_wire(bad).expect_err("refused").to_string();
            assert!(error.contains("expected one far below the largest number"), "{error}");
        }
        for result in [
            proto::append_reply::Result::Matched(proto::Matched { id: id(3, last) }),
            proto::append_reply::Result::Conflict(proto::LogId { term: last, index: 9 }),
            proto::append_reply::Result::Higher(proto::Vote { term: last, member: 1, committed: false }),
        ] {
            assert!(append_reply_from_wire(proto::AppendReply { result: Some(result) }).is_err());
        }
    }

    /// openraft unwraps the position of a request whose answer is a conflict.
    #[test]
    fn a_conflict_at_a_position_that_was_not_sent_is_no_answer() {
        let conflict = |index| {
            let result = proto::append_reply::Result::Conflict(proto::LogId { term: 3, index });
            proto::AppendReply { result: Some(result) }
        };
        let sent = id_to_raft(LogId::new(3, 9));
        let told = append_answer_from_wire(conflict(9), Some(sent)).expect("it may be");
        assert_eq!(append_reply_to_wire(told), conflict(9));
        for (index, prev) in [(9, None), (0, None), (8, Some(sent))] {
            let refused = append_answer_from_wire(conflict(index), prev).map(append_reply_to_wire);
            assert_eq!(refused, Err(WireError::Unasked { found: LogId::new(3, index) }), "{prev:?}");
        }
    }

    #[test]
    fn a_broken_membership_is_an_error() {
        assert!(membership_from_bytes(&[0xff; 9]).is_err());
        assert!(entry_from_parts(LogId::new(1, 1), Bytes::from_static(&[MEMBERSHIP_MARK, 0xff, 0xff])).is_err());
    }
}
