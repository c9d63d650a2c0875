//! Frames of append streams: what the bytes are, and what is refused.

use crate::append_frames::{self as frames, Body, Frame, FrameError, Outgoing, PREFACE, Received};
use crate::config::{Payload, TypeConfig};
use crate::wire::{RaftEntryOf, RaftVote, entry_payload, id_to_raft, make_vote};
use bytes::{Bytes, BytesMut};
use holdfast_testkit::golden::{Written, kept};
use holdfast_types::LogId;
use holdfast_types::limits::{ENTRY_BYTES_MAX, PEER_MESSAGE_BYTES_MAX};
use openraft::EntryPayload;
use openraft::raft::{AppendEntriesRequest, StreamAppendError};
use std::pin::Pin;
use std::task::{Context, Poll, Waker};
use tokio::io::AsyncWrite;
use tonic::Status;
use tonic::metadata::MetadataMap;

fn entry(index: u64, payload: Bytes) -> RaftEntryOf {
    let payload = if payload.is_empty() { EntryPayload::Blank } else { EntryPayload::Normal(Payload::new(payload)) };
    RaftEntryOf { log_id: id_to_raft(LogId::new(3, index)), payload }
}

/// Of term 3, after the entry 9 of term 2.
fn request(payloads: Vec<Bytes>) -> AppendEntriesRequest<TypeConfig> {
    AppendEntriesRequest {
        vote: RaftVote::new_committed(3, 1),
        prev_log_id: Some(id_to_raft(LogId::new(2, 9))),
        entries: (10..).zip(payloads).map(|(index, payload)| entry(index, payload)).collect(),
        leader_commit: Some(id_to_raft(LogId::new(2, 8))),
    }
}

/// A connection that keeps what is written, and takes so many bytes at once.
struct RecordingWriter(Vec<u8>, usize);

impl AsyncWrite for RecordingWriter {
    fn poll_write(mut self: Pin<&mut Self>, _: &mut Context<'_>, bytes: &[u8]) -> Poll<std::io::Result<usize>> {
        let taken = bytes.len().min(self.1);
        self.0.extend_from_slice(&bytes[..taken]);
        Poll::Ready(Ok(taken))
    }

    fn poll_flush(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, _: &mut Context<'_>) -> Poll<std::io::Result<()>> {
        Poll::Ready(Ok(()))
    }
}

/// All bytes, over a connection that takes `at_once` in one call.
fn written(outgoing: &mut Outgoing, at_once: usize) -> Vec<u8> {
    let mut kept = RecordingWriter(Vec::new(), at_once);
    let done = outgoing.poll_write(&mut kept, &mut Context::from_waker(Waker::noop()));
    assert!(matches!(done, Poll::Ready(Ok(()))) && outgoing.bytes() == 0, "{done:?}");
    kept.0
}

fn appended(request: &AppendEntriesRequest<TypeConfig>) -> Vec<u8> {
    let mut outgoing = Outgoing::default();
    let length = outgoing.append(7, 1, request).expect("short enough");
    let bytes = written(&mut outgoing, usize::MAX);
    assert_eq!(bytes.len(), length);
    bytes
}

/// The metadata of a stream, as far as they matter here.
fn metadata() -> MetadataMap {
    let mut meta = MetadataMap::new();
    meta.insert("holdfast-to", "2".parse().expect("a value"));
    meta
}

/// A sender's bytes after its first frame.
fn opened() -> Received {
    let mut received = Received::from_sender(BytesMut::from(&PREFACE[..]));
    received.room().extend_from_slice(&frames::open(7, &metadata()));
    let first = received.next().expect("a frame").expect("a whole one");
    assert!(matches!(first, Frame { stream: 7, body: Body::Open(meta) } if meta.get("holdfast-to").is_some()));
    received
}

/// The only frame in a sender's `bytes`, which come `step` at a time.
fn taken(bytes: &[u8], step: usize) -> Result<Body, FrameError> {
    let mut received = opened();
    for part in bytes.chunks(step) {
        received.room().extend_from_slice(part);
        if let Some(Frame { stream, body }) = received.next()? {
            assert!(stream == 7 && received.is_empty());
            return Ok(body);
        }
    }
    panic!("{} bytes are no whole frame", bytes.len())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn the_wire_is_pinned() {
    assert_eq!(PREFACE, b"HOLDFAST-APPEND\n");
    assert_eq!(
        hex(&appended(&request(vec![Bytes::from_static(b"abc")]))),
        "020000005400000007000000953b30490100000000000000030000000000000001000000000000000200000000000000\
         090000000000000002000000000000000800000000000000010000000703000000000000000a00000000000000\
         03000000616263"
    );
    assert_eq!(hex(&frames::open(7, &metadata())), "010000000e00000007000000f1c824c2686f6c64666173742d746f20320a");
    assert_eq!(hex(&frames::ping(7)), "030000000000000007000000c771f261");
    let mut out = BytesMut::new();
    frames::answer(&mut out, 7, 1, &Ok(Some(id_to_raft(LogId::new(3, 10)))));
    assert_eq!(hex(&out), "050000001900000007000000de5dfc2301000000000000000103000000000000000a00000000000000");
    assert_eq!(hex(&frames::refused(7, &Status::not_found("no"))), "060000000300000007000000725c52d6056e6f");
}

/// A gateway of another release sends such a frame during an upgrade.
#[test]
fn appends_of_each_release_are_read() {
    let sent = request(vec![Bytes::from_static(b"abc"), Bytes::new()]);
    let entries = |request: &AppendEntriesRequest<TypeConfig>| -> Vec<_> {
        request.entries.iter().map(|entry| (entry.log_id, entry_payload(entry))).collect()
    };
    let expected = Some((1, sent.vote, sent.prev_log_id, sent.leader_commit, entries(&sent)));
    kept(env!("CARGO_MANIFEST_DIR"), "append-frame", Written::Pinned(&appended(&sent)), &expected, |bytes| {
        let Body::Append { number, request } = taken(bytes, usize::MAX).ok()? else { return None };
        Some((number, request.vote, request.prev_log_id, request.leader_commit, entries(&request)))
    });
}

#[test]
fn appends_come_out_as_they_went_in() {
    let long = Bytes::from((0..100_000_u32).flat_map(u32::to_le_bytes).collect::<Vec<u8>>());
    for payloads in [
        vec![],
        vec![Bytes::new()],
        vec![Bytes::from_static(b"short"), long.clone(), Bytes::new(), long.clone(), Bytes::from_static(b"last")],
        vec![Bytes::from(vec![1; 256]), Bytes::from(vec![2; 257])],
    ] {
        let sent = request(payloads.clone());
        let bytes = appended(&sent);
        for step in [usize::MAX, 1000, 7] {
            let Body::Append { number, request } = taken(&bytes, step).expect("a frame") else { panic!("no append") };
            assert_eq!((number, request.vote, request.prev_log_id), (1, sent.vote, sent.prev_log_id));
            assert_eq!(request.leader_commit, sent.leader_commit);
            let got: Vec<_> = request.entries.iter().map(|entry| (entry.log_id, entry_payload(entry))).collect();
            let expected: Vec<_> = sent.entries.iter().map(|entry| (entry.log_id, entry_payload(entry))).collect();
            assert_eq!(got, expected);
        }
        // A connection that takes little at once gets the same bytes.
        let mut outgoing = Outgoing::default();
        outgoing.append(7, 1, &sent).expect("short enough");
        assert_eq!(written(&mut outgoing, 5), bytes);
    }
    let none = AppendEntriesRequest { prev_log_id: None, leader_commit: None, ..request(vec![]) };
    let none = AppendEntriesRequest { vote: make_vote(4, 2, false), ..none };
    let Body::Append { request, .. } = taken(&appended(&none), usize::MAX).expect("a frame") else { panic!() };
    assert_eq!((request.vote, request.prev_log_id, request.leader_commit), (none.vote, None, None));
}

#[test]
fn payloads_stay_in_the_buffer_in_which_they_were_received() {
    let bytes = appended(&request(vec![Bytes::from(vec![1; 5000]), Bytes::from(vec![2; 5000])]));
    let Body::Append { request, .. } = taken(&bytes, usize::MAX).expect("a frame") else { panic!("no append") };
    let [first, second] = [0, 1].map(|at| entry_payload(&request.entries[at]));
    assert_eq!(first.as_ptr() as usize + 5000, second.as_ptr() as usize, "they were copied");
}

/// A sender's first bytes of an append of `bytes`, and room for the rest of it.
fn begun(bytes: &[u8]) -> Received {
    let mut received = opened();
    received.room().extend_from_slice(&bytes[..1000]);
    assert!(matches!(received.next(), Ok(None)));
    received.room();
    received
}

#[test]
fn a_frame_that_is_nearly_there_is_not_copied() {
    let bytes = appended(&request(vec![Bytes::from(vec![1; 1 << 20]); 3]));
    let mut received = begun(&bytes);
    let (before, nearly) = (received.room().capacity(), bytes.len() - 100);
    received.room().extend_from_slice(&bytes[1000..nearly]);
    assert!(matches!(received.next(), Ok(None)));
    assert_eq!(received.room().capacity(), before, "another buffer");
    received.room().extend_from_slice(&bytes[nearly..]);
    assert!(matches!(received.next(), Ok(Some(Frame { body: Body::Append { .. }, .. }))));
}

#[test]
fn an_idle_connection_keeps_no_large_buffer() {
    let bytes = appended(&request(vec![Bytes::from(vec![1; 500_000])]));
    let mut received = begun(&bytes);
    received.room().extend_from_slice(&bytes[1000..]);
    assert!(matches!(received.next(), Ok(Some(Frame { body: Body::Append { .. }, .. }))));
    assert!(received.room().capacity() > 64 << 10, "the next one may be as long");
    received.room().extend_from_slice(&frames::ping(7));
    assert!(matches!(received.next(), Ok(Some(Frame { body: Body::Ping, .. }))));
    let kept = received.room().capacity();
    assert!(kept <= 64 << 10, "{kept} bytes are kept");
}

#[test]
fn answers_come_out_as_they_went_in() {
    let id = id_to_raft(LogId::new(3, 10));
    for result in [
        Ok(None),
        Ok(Some(id)),
        Err(StreamAppendError::Conflict(id)),
        Err(StreamAppendError::HigherVote(make_vote(9, 2, true))),
        Err(StreamAppendError::HigherVote(make_vote(9, 2, false))),
    ] {
        let mut received = Received::from_receiver();
        frames::answer(received.room(), 7, 5, &result);
        let frame = received.next().expect("a frame").expect("a whole one");
        assert!(received.is_empty() && frame.stream == 7);
        let Body::Answer { number, result: got } = frame.body else { panic!("{frame:?}") };
        assert_eq!((number, got), (5, result));
    }
    let long = "x".repeat(100_000);
    let mut received = Received::from_receiver();
    received.room().extend_from_slice(&frames::refused(7, &Status::not_found(&long)));
    let frame = received.next().expect("a frame").expect("a whole one");
    let Body::Refused(status) = frame.body else { panic!("{frame:?}") };
    assert!(status.code() == tonic::Code::NotFound && long.starts_with(status.message()));
    assert!(status.message().len() > 10_000, "cut too short");
}

/// FRAME-F1: each byte counts. Those of payloads too: a follower acknowledges what it has stored, and a membership has
/// no other checksum.
#[test]
fn a_changed_byte_is_found() {
    let (short, long) = (Bytes::from_static(b"abc"), Bytes::from(vec![7; 300]));
    let bytes = appended(&request(vec![short.clone(), long, Bytes::new(), short]));
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1;
        let mut received = opened();
        received.room().extend_from_slice(&changed);
        match received.next() {
            Err(_) => {}
            // A longer one, of which more is expected.
            Ok(None) => assert!((4..8).contains(&at), "byte {at}"),
            Ok(Some(frame)) => panic!("byte {at}: {frame:?}"),
        }
    }
}

#[test]
fn what_is_no_frame_is_named() {
    let why = |bytes: &[u8]| taken(bytes, usize::MAX).expect_err("no frame").to_string();
    let good = appended(&request(vec![Bytes::from_static(b"abc")]));
    let with = |at: usize, value: u8| {
        let mut bytes = good.clone();
        bytes[at] = value;
        bytes
    };
    assert_eq!(why(&with(0, 9)), "frame: found kind 9, expected 1 to 3 from a sender");
    assert_eq!(why(&with(0, 5)), "frame: found kind 5, expected 1 to 3 from a sender");
    assert_eq!(why(&with(3, 1)), "frame: found kind 2, expected 1 to 3 from a sender");
    let long = format!("frame of kind 2: found {} bytes, expected 61 to {PEER_MESSAGE_BYTES_MAX}", 0xff00_0054_u32);
    assert_eq!(why(&with(7, 0xff)), long);
    assert!(why(&with(4, 60)).starts_with("frame of kind 2: found 60 bytes, expected 61"), "shorter than its head");
    assert!(why(&with(20, 7)).starts_with("frame of kind 2: found checksum "), "{}", why(&with(20, 7)));

    let first = |bytes: &[u8]| {
        let received = Received::from_sender(BytesMut::from(bytes)).next();
        received.map(|frame| frame.is_some()).map_err(|e| e.to_string())
    };
    let garbage = first(b"GET / HTTP/1.1\r\n").expect_err("another protocol");
    assert!(garbage.starts_with("append connection: found [47, 45, 54"), "{garbage}");
    assert_eq!(first(&PREFACE[..9]), Ok(false), "the rest may come");
    // FRAME-F4.
    let at_once = first(&[&PREFACE[..], &good[..]].concat());
    assert_eq!(at_once, Err("frame: found kind 2, expected 1 first".to_string()));
    let head = [&PREFACE[..], &[1, 0, 0, 0], &(17_u32 << 10).to_le_bytes(), &[7, 0, 0, 0, 0, 0, 0, 0]].concat();
    assert_eq!(first(&head), Err("frame of kind 1: found 17408 bytes, expected 0 to 16384".to_string()));

    let mut received = Received::from_receiver();
    received.room().extend_from_slice(&frames::ping(7));
    let found = received.next().expect_err("of a sender").to_string();
    assert_eq!(found, "frame: found kind 3, expected 4 to 7 from a receiver");
}

#[test]
fn an_append_that_is_too_long_is_not_sent() {
    let payload = Bytes::from(vec![7; ENTRY_BYTES_MAX]);
    let many = PEER_MESSAGE_BYTES_MAX / ENTRY_BYTES_MAX + 1;
    let mut outgoing = Outgoing::default();
    let why = outgoing.append(7, 1, &request(vec![payload.clone(); many])).expect_err("too long").to_string();
    assert!(why.ends_with(&format!("expected at most {PEER_MESSAGE_BYTES_MAX}")), "{why}");
    assert_eq!(outgoing.bytes(), 0, "part of it was sent");
    outgoing.append(7, 1, &request(vec![payload; many - 1])).expect("short enough");
}

/// The next index or term would overflow, which ends the gateway: a vote on disk would do so at each start.
#[test]
fn positions_and_votes_with_none_behind_them_are_refused() {
    let last = || id_to_raft(LogId::new(2, u64::MAX));
    let mut at_the_end = request(vec![Bytes::new()]);
    at_the_end.entries[0].log_id = last();
    for bad in [
        at_the_end,
        AppendEntriesRequest { prev_log_id: Some(last()), ..request(vec![]) },
        AppendEntriesRequest { leader_commit: Some(last()), ..request(vec![]) },
        AppendEntriesRequest { vote: make_vote(u64::MAX, 1, true), ..request(vec![]) },
    ] {
        let error = taken(&appended(&bad), usize::MAX).expect_err("refused");
        assert!(matches!(error, FrameError::Content { .. }), "{error}");
    }
    for bad in [Ok(Some(last())), Err(StreamAppendError::Conflict(last()))] {
        let mut out = BytesMut::new();
        frames::answer(&mut out, 7, 1, &bad);
        let mut received = Received::from_receiver();
        received.room().extend_from_slice(&out);
        assert!(received.next().is_err(), "{bad:?}");
    }
}
