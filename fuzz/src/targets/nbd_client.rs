//! NBD, the client's side: what a server sends to attach, or to an import or export.

use super::nbd::{STYLES, aims, conversation, piece_bytes, style};
use bytes::{Bytes, BytesMut};
use holdfast_nbd::client::{
    ClientError, CommandOut, Connected, Event, Handshake, Outcome, ReplyDecoder, ReplyError, RequestOut,
};
use holdfast_nbd::server::{ReadPart, ReplyQueue, ReplyTo};
use holdfast_nbd::{Errno, Extent, HeaderStyle, TransmissionFlags};
use std::collections::BTreeMap;
use std::io::IoSlice;

/// In a selector: ask for TLS first.
const TLS: u8 = 0x80;

type Ended = Option<Result<Outcome, ClientError>>;

fn ask(selector: u8, stream: &[u8], piece: usize) -> (BytesMut, Ended) {
    let aim = aims().into_iter().nth(usize::from(selector % 4));
    let Some(aim) = aim else { return (BytesMut::new(), None) };
    let client = Handshake::new(aim, style(selector / 4), true);
    let mut client = if selector & TLS == 0 { client } else { client.over_tls() };
    let (mut input, mut out) = (BytesMut::new(), BytesMut::new());
    for piece in stream.chunks(piece) {
        input.extend_from_slice(piece);
        loop {
            match client.step(&mut input, &mut out) {
                Ok(None) => break,
                Ok(Some(Outcome::StartTls)) => client.tls_started(&mut out),
                Ok(Some(outcome)) => return (out, Some(Ok(outcome))),
                Err(error) => return (out, Some(Err(error))),
            }
        }
    }
    (out, None)
}

pub(super) fn handshake(data: &[u8]) -> bool {
    let [selector, piece, stream @ ..] = data else { return false };
    let whole = ask(*selector, stream, usize::MAX);
    let pieces = ask(*selector, stream, piece_bytes(*piece));
    // With TLS the cut shows what came before the upgrade (NBD-S3).
    if selector & TLS == 0 {
        assert_eq!(whole, pieces, "NBD-N2");
    }
    matches!(whole.1, Some(Ok(_)))
}

pub(super) fn handshakes() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for (aim_number, aim) in (0_u8..).zip(aims()) {
        for (style_number, style) in (0_u8..).zip(STYLES) {
            let (_, answered) = conversation(aim.clone(), style);
            all.push([&[aim_number + 4 * style_number, 6][..], &answered].concat());
        }
    }
    all
}

/// What is in flight when the bytes arrive.
fn in_flight() -> [RequestOut; 6] {
    let request = |cookie, offset, len, command| RequestOut { cookie, offset, len, command };
    let read = CommandOut::Read { unfragmented: false };
    [
        request(1, 4096, 512, read),
        request(2, 0, 4096, read),
        request(3, 0, 512, CommandOut::Write { fua: false }),
        request(4, 0, 1 << 20, CommandOut::BlockStatus { one: false }),
        request(5, 0, 0, CommandOut::Flush),
        request(6, 8192, 1 << 20, read),
    ]
}

fn heard(style: HeaderStyle, stream: &[u8], piece: usize) -> (Vec<Event>, Option<ReplyError>) {
    let connected = Connected {
        size: 1 << 30,
        flags: TransmissionFlags(0),
        style,
        block_sizes: None,
        allocation: Some(1),
        name: None,
        description: None,
    };
    let mut decoder = ReplyDecoder::new(&connected);
    for request in in_flight() {
        assert!(decoder.sent(&request), "a cookie twice");
    }
    let (mut input, mut events, mut error) = (BytesMut::new(), Vec::new(), None);
    'all: for piece in stream.chunks(piece) {
        input.extend_from_slice(piece);
        loop {
            match decoder.next(&mut input) {
                Ok(Some(event)) => events.push(event),
                Ok(None) => break,
                Err(found) => {
                    error = Some(found);
                    break 'all;
                }
            }
        }
    }
    for event in &events {
        if let Event::Done { cookie, .. } = event {
            assert!(decoder.unanswered().all(|left| left != *cookie), "answered, and still in flight");
        }
    }
    (events, error)
}

/// The pieces of a read lie in it, and a successful read has all of them.
fn check_reads(events: &[Event]) {
    let asked: BTreeMap<u64, RequestOut> = in_flight().into_iter().map(|request| (request.cookie, request)).collect();
    let mut covered: BTreeMap<u64, u64> = BTreeMap::new();
    for event in events {
        let (cookie, offset, len) = match event {
            Event::Data { cookie, offset, data } => (cookie, *offset, data.len() as u64),
            Event::Hole { cookie, offset, len } => (cookie, *offset, *len),
            Event::Status { .. } => continue,
            Event::Done { cookie, result } => {
                let read = asked.get(cookie).filter(|request| matches!(request.command, CommandOut::Read { .. }));
                if let (Some(read), Ok(())) = (read, result) {
                    assert_eq!(covered.get(cookie).copied().unwrap_or(0), read.len, "a read with a gap");
                }
                continue;
            }
        };
        let read = asked.get(cookie).expect("NBD-N3: a piece of no request");
        assert!(offset >= read.offset && offset + len <= read.offset + read.len, "a piece outside of its read");
        *covered.entry(*cookie).or_default() += len;
    }
}

pub(super) fn replies(data: &[u8]) -> bool {
    let [selector, piece, stream @ ..] = data else { return false };
    let style = style(*selector);
    let whole = heard(style, stream, usize::MAX);
    assert_eq!(whole, heard(style, stream, piece_bytes(*piece)), "NBD-N2");
    check_reads(&whole.0);
    whole.0.iter().any(|event| matches!(event, Event::Done { .. }))
}

pub(super) fn all_replies() -> Vec<Vec<u8>> {
    let seed = |(selector, style): (u8, HeaderStyle)| {
        let mut queue = ReplyQueue::new(style);
        let to = |cookie, offset, is_read| ReplyTo { cookie, offset, is_read };
        let half = || ReadPart::Data(Bytes::from_static(&[7; 256]));
        queue.read(to(1, 4096, true), vec![half(), half()], false);
        queue.read(to(2, 0, true), vec![ReadPart::Zeroes(4096)], false);
        queue.error(to(3, 0, false), Errno::NoSpace);
        if style != HeaderStyle::Simple {
            let extents = [Extent { len: 4096, hole: false }, Extent { len: 1 << 20, hole: true }];
            queue.block_status(to(4, 0, false), 1 << 20, &extents, false);
        }
        queue.ok(to(5, 0, false));
        let mut out = vec![selector, 9];
        while !queue.is_empty() {
            let mut slices = [IoSlice::new(&[]); 16];
            let count = queue.slices(&mut slices);
            let bytes: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.to_vec()).collect();
            queue.advance(bytes.len());
            out.extend_from_slice(&bytes);
        }
        out
    };
    (0..).zip(STYLES).map(seed).collect()
}
