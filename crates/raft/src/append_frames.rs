//! Frames of append streams between gateways (ADR 0043): bytes in, frames out, no I/O of its own.
//!
//! A connection begins with [`PREFACE`]. Then both sides send frames; all numbers are little-endian:
//! ```text
//!    0  kind (1 byte), three zeroes
//!    4  length of the body (u32)
//!    8  stream (u32): number of the append stream on this connection, from 1
//!   12  CRC32C (u32) of the 12 bytes before and of the body
//!   16  body
//!
//!   kind         sent by   body
//!   1  open      sender    metadata as in every call between gateways, a line `key value` each
//!   2  append    sender    number in its stream (u64, from 1), vote (term u64, member u64), position before the
//!                          entries (term u64, index u64), commit (term u64, index u64), number of entries (u32), which
//!                          of these are there (1 byte: 1 the vote is committed, 2 position, 4 commit); of each entry
//!                          term (u64), index (u64), length (u32); then all payloads
//!   3  ping      sender    nothing
//!   4  welcome   receiver  metadata as in every answer between gateways
//!   5  answer    receiver  number of the request (u64), outcome (1 byte: 0 matched at no entry, 1 matched, 2 conflict,
//!                          3 a higher vote, 4 a higher vote that is committed), term (u64), index or member (u64)
//!   6  refused   receiver  gRPC code (1 byte), the reason
//!   7  pong      receiver  nothing
//! ```
//! The CRC covers payloads too. A follower acknowledges what it has stored (R1), and a state machine checks its own
//! checksums only when the entry is committed. Memberships and commands of group 0 have no others.
//!
//! - **FRAME-F1** Bytes that are no frame, or not those that were sent, end their connection. Nothing of them is used.
//! - **FRAME-F2** An answer counts only for the oldest request that has none, by stream and number. So no answer of an
//!   earlier stream, or of an earlier request, acknowledges anything.
//! - **FRAME-F3** Once a newer stream of a sender has begun for a group, no request of an older one reaches it.
//! - **FRAME-F4** A connection begins with an `open`, of at most [`META_BYTES_MAX`]. Each stream begins with one, and
//!   is checked as each call is: protocol, cluster, receiver, life of the sender, group.

use crate::config::TypeConfig;
use crate::wire::{
    RaftLogId, RaftVote, WireError, entry_from_parts, entry_payload, id_checked, id_from_raft, vote_checked,
};
use bytes::{Buf, BufMut, Bytes, BytesMut};
use holdfast_types::LogId;
use holdfast_types::limits::PEER_MESSAGE_BYTES_MAX;
use openraft::raft::{AppendEntriesRequest, StreamAppendError, StreamAppendResult};
use std::collections::VecDeque;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use tokio::io::AsyncWrite;
use tonic::Status;
use tonic::metadata::{AsciiMetadataKey, KeyAndValueRef, MetadataMap};

/// First bytes of a connection that carries append streams. HTTP/2 begins with `PRI`.
pub(crate) const PREFACE: &[u8; 16] = b"HOLDFAST-APPEND\n";

/// Bytes of metadata, or of a reason, at most: 64 lives of a disk take 3 KiB.
pub(crate) const META_BYTES_MAX: usize = 16 << 10;

const HEAD: usize = 16;
/// An append without entries.
const APPEND_HEAD: usize = 61;
/// Of each entry, beside its payload.
const ENTRY_HEAD: usize = 20;
const ANSWER_BODY: usize = 25;

const OPEN: u8 = 1;
const APPEND: u8 = 2;
const PING: u8 = 3;
const WELCOME: u8 = 4;
const ANSWER: u8 = 5;
const REFUSED: u8 = 6;
const PONG: u8 = 7;

/// Room for one read: at least this much …
const READ_BYTES_MIN: usize = 64 << 10;
/// … and at most this much, unless a frame is longer. Frames share it, so its length is a multiple of theirs.
const READ_BYTES_MAX: usize = 1 << 20;
/// A read into less room would often have to be repeated.
const ROOM_MIN: usize = 4 << 10;

/// Payloads up to this length are copied beside the head: a part of a write costs about as much.
const COPIED_BYTES_MAX: usize = 256;
/// Parts of one write at most.
const PARTS_MAX: usize = 64;

const _: () = assert!(APPEND_HEAD < PEER_MESSAGE_BYTES_MAX && ROOM_MIN < READ_BYTES_MIN);

/// Received bytes that are no frame (FRAME-F1).
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum FrameError {
    #[error("append connection: found {found:02x?} as its first bytes, expected {:02x?}", PREFACE)]
    Preface { found: Vec<u8> },
    #[error("frame: found kind {found}, expected {expected}")]
    Kind { found: u8, expected: &'static str },
    #[error("frame of kind {kind}: found {found} bytes, expected {expected}")]
    Length { kind: u8, found: usize, expected: String },
    #[error("frame of kind {kind}: found checksum {found:08x}, expected {expected:08x}")]
    Checksum { kind: u8, found: u32, expected: u32 },
    #[error("frame of kind {kind}: found {found}, expected {expected}")]
    Content { kind: u8, found: String, expected: &'static str },
    #[error("append connection: it ended after {found} bytes of a frame")]
    Truncated { found: usize },
}

/// A frame without its stream.
#[derive(Debug)]
pub(crate) enum Body {
    Open(MetadataMap),
    Append { number: u64, request: AppendEntriesRequest<TypeConfig> },
    Ping,
    Welcome(MetadataMap),
    Answer { number: u64, result: StreamAppendResult<TypeConfig> },
    Refused(Status),
    Pong,
}

/// One frame.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) stream: u32,
    pub(crate) body: Body,
}

impl Body {
    /// For messages.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Body::Open(_) => "open",
            Body::Append { .. } => "append",
            Body::Ping => "ping",
            Body::Welcome(_) => "welcome",
            Body::Answer { .. } => "answer",
            Body::Refused(_) => "refused",
            Body::Pong => "pong",
        }
    }
}

/// Which side of a connection sends.
#[derive(Clone, Copy, Debug)]
enum Side {
    Sender,
    Receiver,
}

/// Takes frames out of received bytes. Payloads stay where they were received.
pub(crate) struct Received {
    bytes: BytesMut,
    from: Side,
    /// The preface is still to come.
    begins: bool,
    /// A frame `open` was there (FRAME-F4).
    opened: bool,
    /// Length of the frame that begins the bytes, as far as it is known.
    wanted: usize,
    /// The longest frame since room was made.
    longest: usize,
}

impl Received {
    /// From the sender of appends, whose first bytes are there.
    pub(crate) fn from_sender(first: BytesMut) -> Self {
        Self { bytes: first, from: Side::Sender, begins: true, opened: false, wanted: HEAD, longest: 0 }
    }

    /// From the receiver of appends.
    pub(crate) fn from_receiver() -> Self {
        Self { bytes: BytesMut::new(), from: Side::Receiver, begins: false, opened: false, wanted: HEAD, longest: 0 }
    }

    /// Whether nothing is left.
    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty() && !self.begins
    }

    /// Where the next bytes are appended: with room for the rest of the present frame, once its length is known.
    pub(crate) fn room(&mut self) -> &mut BytesMut {
        let rest = self.wanted.saturating_sub(self.bytes.len());
        let room = self.bytes.capacity() - self.bytes.len();
        let (least, read) = match self.from {
            // It may be a stranger's (FRAME-F4).
            Side::Sender if !self.opened => (ROOM_MIN, META_BYTES_MAX),
            Side::Sender => (ROOM_MIN, self.longest.saturating_mul(4).clamp(READ_BYTES_MIN, READ_BYTES_MAX)),
            Side::Receiver => (HEAD + ANSWER_BODY, ROOM_MIN),
        };
        // The present frame needs only its rest: more room would be another buffer, with a copy of what is there.
        let least = if self.wanted > HEAD { rest } else { least };
        if room < least {
            self.longest = 0;
            self.bytes.reserve(rest.max(read));
        }
        &mut self.bytes
    }

    /// The next frame, if it is there as a whole.
    pub(crate) fn next(&mut self) -> Result<Option<Frame>, FrameError> {
        if self.begins {
            let seen = self.bytes.len().min(PREFACE.len());
            if self.bytes[..seen] != PREFACE[..seen] {
                return Err(FrameError::Preface { found: self.bytes[..seen].to_vec() });
            }
            if seen < PREFACE.len() {
                return Ok(None);
            }
            self.bytes.advance(PREFACE.len());
            self.begins = false;
        }
        let Some(head) = self.bytes.first_chunk::<HEAD>() else {
            self.wanted = HEAD;
            return Ok(None);
        };
        let (kind, length) = (head[0], number_u32(head, 4) as usize);
        self.check_head(head, kind, length)?;
        self.wanted = HEAD + length;
        if self.bytes.len() < self.wanted {
            self.longest = self.longest.max(self.wanted);
            return Ok(None);
        }
        self.longest = self.longest.max(self.wanted);
        let mut frame = self.bytes.split_to(self.wanted).freeze();
        self.wanted = HEAD;
        let head = frame.split_to(HEAD);
        check_sum(kind, &head, &frame)?;
        let body = decode(kind, frame)?;
        self.opened |= matches!(body, Body::Open(_));
        // Nothing came for a while: an idle connection keeps no buffer that was for long frames.
        if matches!(body, Body::Ping) && self.bytes.is_empty() && self.bytes.capacity() > READ_BYTES_MIN {
            (self.bytes, self.longest) = (BytesMut::new(), 0);
        }
        Ok(Some(Frame { stream: number_u32(&head, 8), body }))
    }

    /// Before anything is done for the length that the head names.
    fn check_head(&self, head: &[u8; HEAD], kind: u8, length: usize) -> Result<(), FrameError> {
        let (kinds, expected) = match (self.from, self.opened) {
            (Side::Sender, false) => (OPEN..=OPEN, "1 first"),
            (Side::Sender, true) => (OPEN..=PING, "1 to 3 from a sender"),
            (Side::Receiver, _) => (WELCOME..=PONG, "4 to 7 from a receiver"),
        };
        if !kinds.contains(&kind) || head[1..4] != [0; 3] {
            return Err(FrameError::Kind { found: kind, expected });
        }
        let lengths = match kind {
            APPEND => APPEND_HEAD..=PEER_MESSAGE_BYTES_MAX,
            ANSWER => ANSWER_BODY..=ANSWER_BODY,
            PING | PONG => 0..=0,
            REFUSED => 1..=META_BYTES_MAX,
            _ => 0..=META_BYTES_MAX,
        };
        if lengths.contains(&length) {
            return Ok(());
        }
        let expected = format!("{} to {}", lengths.start(), lengths.end());
        Err(FrameError::Length { kind, found: length, expected })
    }
}

fn check_sum(kind: u8, head: &[u8], body: &[u8]) -> Result<(), FrameError> {
    let found = crc32c::crc32c_append(crc32c::crc32c(&head[..12]), body);
    let expected = number_u32(head, 12);
    if found == expected { Ok(()) } else { Err(FrameError::Checksum { kind, found, expected }) }
}

fn number_u32(bytes: &[u8], at: usize) -> u32 {
    bytes[at..].first_chunk().map_or(0, |four| u32::from_le_bytes(*four))
}

fn decode(kind: u8, mut body: Bytes) -> Result<Body, FrameError> {
    Ok(match kind {
        OPEN => Body::Open(metadata(kind, &body)?),
        APPEND => {
            let number = body.get_u64_le();
            Body::Append { number, request: request(body)? }
        }
        PING => Body::Ping,
        WELCOME => Body::Welcome(metadata(kind, &body)?),
        ANSWER => {
            let number = body.get_u64_le();
            Body::Answer { number, result: outcome(body)? }
        }
        REFUSED => {
            let code = tonic::Code::from_i32(i32::from(body.get_u8()));
            Body::Refused(Status::new(code, String::from_utf8_lossy(&body)))
        }
        _ => Body::Pong,
    })
}

fn metadata(kind: u8, body: &[u8]) -> Result<MetadataMap, FrameError> {
    let bad =
        |found: &str| FrameError::Content { kind, found: format!("{found:?}"), expected: "lines of key and value" };
    let text = std::str::from_utf8(body).map_err(|e| bad(&e.to_string()))?;
    let mut meta = MetadataMap::new();
    for line in text.lines() {
        let (key, value) = line.split_once(' ').ok_or_else(|| bad(line))?;
        let key = AsciiMetadataKey::from_bytes(key.as_bytes()).map_err(|_| bad(line))?;
        meta.insert(key, value.parse().map_err(|_| bad(line))?);
    }
    Ok(meta)
}

/// A request after its number. The caller has checked that its head is there.
fn request(mut body: Bytes) -> Result<AppendEntriesRequest<TypeConfig>, FrameError> {
    let vote = (body.get_u64_le(), body.get_u64_le());
    let prev = LogId::new(body.get_u64_le(), body.get_u64_le());
    let commit = LogId::new(body.get_u64_le(), body.get_u64_le());
    let (count, there) = (body.get_u32_le() as usize, body.get_u8());
    if there > 7 {
        let found = format!("flags {there}");
        return Err(FrameError::Content { kind: APPEND, found, expected: "0 to 7" });
    }
    let wrong = |expected: &'static str| {
        move |error: WireError| FrameError::Content { kind: APPEND, found: error.to_string(), expected }
    };
    let heads = count.saturating_mul(ENTRY_HEAD);
    let length = |found: usize, expected: usize| FrameError::Length {
        kind: APPEND,
        found,
        expected: format!("{expected} for {count} entries"),
    };
    if body.len() < heads {
        return Err(length(body.len(), heads));
    }
    let mut heads = body.split_to(heads);
    let mut entries = Vec::with_capacity(count);
    while heads.has_remaining() {
        let id = LogId::new(heads.get_u64_le(), heads.get_u64_le());
        let bytes = heads.get_u32_le() as usize;
        if body.len() < bytes {
            return Err(length(body.len(), bytes));
        }
        entries.push(entry_from_parts(id, body.split_to(bytes)).map_err(wrong("an entry"))?);
    }
    if !body.is_empty() {
        return Err(FrameError::Content {
            kind: APPEND,
            found: format!("{} more bytes", body.len()),
            expected: "its end",
        });
    }
    Ok(AppendEntriesRequest {
        vote: vote_checked(vote.0, vote.1, there & 1 != 0).map_err(wrong("a vote"))?,
        prev_log_id: (there & 2 != 0).then(|| id_checked(prev)).transpose().map_err(wrong("a position"))?,
        entries,
        leader_commit: (there & 4 != 0).then(|| id_checked(commit)).transpose().map_err(wrong("a position"))?,
    })
}

fn outcome(mut body: Bytes) -> Result<StreamAppendResult<TypeConfig>, FrameError> {
    let (outcome, first, second) = (body.get_u8(), body.get_u64_le(), body.get_u64_le());
    let wrong = |found: String, expected| FrameError::Content { kind: ANSWER, found, expected };
    let id = || id_checked(LogId::new(first, second)).map_err(|error| wrong(error.to_string(), "a position"));
    match outcome {
        0 => Ok(Ok(None)),
        1 => Ok(Ok(Some(id()?))),
        2 => Ok(Err(StreamAppendError::Conflict(id()?))),
        3 | 4 => {
            let vote = vote_checked(first, second, outcome == 4);
            Ok(Err(StreamAppendError::HigherVote(vote.map_err(|error| wrong(error.to_string(), "a vote"))?)))
        }
        _ => Err(wrong(format!("outcome {outcome}"), "0 to 4")),
    }
}

/// Begins a frame; [`end`] completes it.
fn begin(out: &mut BytesMut, kind: u8, stream: u32) -> usize {
    let at = out.len();
    out.put_slice(&[kind, 0, 0, 0]);
    out.put_u32_le(0);
    out.put_u32_le(stream);
    out.put_u32_le(0);
    at
}

/// Completes the frame that begins at `at` and covers the rest of `out`; `payloads` follow behind it.
fn end(out: &mut BytesMut, at: usize, payloads: &[Bytes]) {
    let behind: usize = payloads.iter().map(Bytes::len).sum();
    let length = u32::try_from(out.len() - at - HEAD + behind).unwrap_or(u32::MAX);
    out[at + 4..at + 8].copy_from_slice(&length.to_le_bytes());
    let crc = crc32c::crc32c_append(crc32c::crc32c(&out[at..at + 12]), &out[at + HEAD..]);
    let crc = payloads.iter().fold(crc, |crc, payload| crc32c::crc32c_append(crc, payload));
    out[at + 12..at + HEAD].copy_from_slice(&crc.to_le_bytes());
}

fn with_metadata(kind: u8, stream: u32, meta: &MetadataMap) -> Bytes {
    let mut out = BytesMut::with_capacity(512);
    let at = begin(&mut out, kind, stream);
    for pair in meta.iter() {
        if let KeyAndValueRef::Ascii(key, value) = pair {
            out.put_slice(key.as_str().as_bytes());
            out.put_u8(b' ');
            out.put_slice(value.as_encoded_bytes());
            out.put_u8(b'\n');
        }
    }
    end(&mut out, at, &[]);
    out.freeze()
}

/// The frame that begins a stream.
pub(crate) fn open(stream: u32, meta: &MetadataMap) -> Bytes {
    with_metadata(OPEN, stream, meta)
}

/// The receiver's answer to that.
pub(crate) fn welcome(stream: u32, meta: &MetadataMap) -> Bytes {
    with_metadata(WELCOME, stream, meta)
}

fn bare(kind: u8, stream: u32) -> Bytes {
    let mut out = BytesMut::with_capacity(HEAD);
    let at = begin(&mut out, kind, stream);
    end(&mut out, at, &[]);
    out.freeze()
}

/// Asks whether the receiver is there.
pub(crate) fn ping(stream: u32) -> Bytes {
    bare(PING, stream)
}

/// It is.
pub(crate) fn pong(stream: u32) -> Bytes {
    bare(PONG, stream)
}

/// Why the receiver ends the connection.
pub(crate) fn refused(stream: u32, status: &Status) -> Bytes {
    let reason = status.message();
    let reason = &reason[..reason.floor_char_boundary(META_BYTES_MAX - 1)];
    let mut out = BytesMut::with_capacity(HEAD + 1 + reason.len());
    let at = begin(&mut out, REFUSED, stream);
    out.put_u8(u8::try_from(i32::from(status.code())).unwrap_or(u8::MAX));
    out.put_slice(reason.as_bytes());
    end(&mut out, at, &[]);
    out.freeze()
}

/// Adds the answer to a request.
pub(crate) fn answer(out: &mut BytesMut, stream: u32, number: u64, result: &StreamAppendResult<TypeConfig>) {
    let position = |id: &RaftLogId| {
        let id = id_from_raft(id);
        (id.term.0, id.index.0)
    };
    let (outcome, (first, second)) = match result {
        Ok(None) => (0, (0, 0)),
        Ok(Some(id)) => (1, position(id)),
        Err(StreamAppendError::Conflict(id)) => (2, position(id)),
        Err(StreamAppendError::HigherVote(vote)) => {
            (3 + u8::from(vote.committed), (vote.leader_id.term, vote.leader_id.voted_for))
        }
    };
    let at = begin(out, ANSWER, stream);
    out.put_u64_le(number);
    out.put_u8(outcome);
    out.put_u64_le(first);
    out.put_u64_le(second);
    end(out, at, &[]);
}

/// Bytes to be written, in order.
#[derive(Default)]
pub(crate) struct Outgoing {
    parts: VecDeque<Bytes>,
    bytes: usize,
}

impl Outgoing {
    /// Bytes that are not written yet.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes
    }

    pub(crate) fn push(&mut self, part: Bytes) {
        if !part.is_empty() {
            self.bytes += part.len();
            self.parts.push_back(part);
        }
    }

    /// Adds a request and returns the length of its frame. Long payloads are not copied.
    ///
    /// # Errors
    /// It is longer than a frame may be: nothing is added.
    pub(crate) fn append(
        &mut self,
        stream: u32,
        number: u64,
        request: &AppendEntriesRequest<TypeConfig>,
    ) -> Result<usize, FrameError> {
        let payloads: Vec<Bytes> = request.entries.iter().map(entry_payload).collect();
        let payload_bytes: usize = payloads.iter().map(Bytes::len).sum();
        let heads = APPEND_HEAD + ENTRY_HEAD * payloads.len();
        if heads + payload_bytes > PEER_MESSAGE_BYTES_MAX {
            let (found, expected) = (heads + payload_bytes, format!("at most {PEER_MESSAGE_BYTES_MAX}"));
            return Err(FrameError::Length { kind: APPEND, found, expected });
        }
        let mut out = BytesMut::with_capacity(HEAD + heads + payload_bytes.min(COPIED_BYTES_MAX));
        let at = begin(&mut out, APPEND, stream);
        put_request(&mut out, number, request);
        for (entry, payload) in request.entries.iter().zip(&payloads) {
            put_id(&mut out, Some(&entry.log_id));
            out.put_u32_le(u32::try_from(payload.len()).unwrap_or(u32::MAX));
        }
        end(&mut out, at, &payloads);
        for payload in payloads {
            if payload.len() <= COPIED_BYTES_MAX {
                out.put_slice(&payload);
            } else {
                self.push(out.split().freeze());
                self.push(payload);
            }
        }
        self.push(out.freeze());
        Ok(HEAD + heads + payload_bytes)
    }

    /// Writes all of it: in one call, if the connection takes it.
    pub(crate) fn poll_write<W: AsyncWrite + Unpin + ?Sized>(
        &mut self,
        connection: &mut W,
        context: &mut Context<'_>,
    ) -> Poll<io::Result<()>> {
        while !self.parts.is_empty() {
            let mut slices = [IoSlice::new(&[]); PARTS_MAX];
            let mut count = 0;
            for (slice, part) in slices.iter_mut().zip(&self.parts) {
                *slice = IoSlice::new(part);
                count += 1;
            }
            let written = ready!(Pin::new(&mut *connection).poll_write_vectored(context, &slices[..count]))?;
            if written == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            self.advance(written);
        }
        Pin::new(connection).poll_flush(context)
    }

    fn advance(&mut self, mut written: usize) {
        self.bytes -= written;
        while let Some(part) = self.parts.front_mut() {
            if written < part.len() {
                part.advance(written);
                return;
            }
            written -= part.len();
            self.parts.pop_front();
        }
    }
}

fn put_request(out: &mut BytesMut, number: u64, request: &AppendEntriesRequest<TypeConfig>) {
    let vote: &RaftVote = &request.vote;
    out.put_u64_le(number);
    out.put_u64_le(vote.leader_id.term);
    out.put_u64_le(vote.leader_id.voted_for);
    put_id(out, request.prev_log_id.as_ref());
    put_id(out, request.leader_commit.as_ref());
    out.put_u32_le(u32::try_from(request.entries.len()).unwrap_or(u32::MAX));
    let there = u8::from(vote.committed)
        | (u8::from(request.prev_log_id.is_some()) << 1)
        | (u8::from(request.leader_commit.is_some()) << 2);
    out.put_u8(there);
}

fn put_id(out: &mut BytesMut, id: Option<&RaftLogId>) {
    let id = id.map(id_from_raft);
    out.put_u64_le(id.map_or(0, |id| id.term.0));
    out.put_u64_le(id.map_or(0, |id| id.index.0));
}
