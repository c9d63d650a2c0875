use super::feed;
use super::request::any_style;
use crate::client::{CommandOut, Connected, Event, ReplyDecoder, ReplyError, RequestOut};
use crate::server::{EXTENTS_PER_REPLY_MAX, ReadPart, ReplyQueue, ReplyTo};
use crate::wire::*;
use bytes::BufMut;
use proptest::prelude::*;
use std::io::IoSlice;

fn connected(style: HeaderStyle) -> Connected {
    Connected {
        size: 1 << 40,
        flags: TransmissionFlags(0),
        style,
        block_sizes: None,
        allocation: (style != HeaderStyle::Simple).then_some(CONTEXT_ALLOCATION_ID),
        name: None,
        description: None,
    }
}

/// Empties the queue like a socket that takes `each` bytes at a time.
fn drain(queue: &mut ReplyQueue, each: usize) -> Vec<u8> {
    let mut all = Vec::new();
    while !queue.is_empty() {
        let before = queue.len();
        let mut slices = [IoSlice::new(&[]); 3];
        let count = queue.slices(&mut slices);
        let flat: Vec<u8> = slices[..count].iter().flat_map(|slice| slice.iter().copied()).take(each).collect();
        assert!(!flat.is_empty(), "the queue is not empty, but returned no slice");
        queue.advance(flat.len());
        assert_eq!(queue.len(), before - flat.len());
        all.extend(flat);
    }
    let mut slices = [IoSlice::new(&[]); 1];
    assert_eq!(queue.slices(&mut slices), 0);
    all
}

fn read_out(cookie: u64, offset: u64, len: u64) -> RequestOut {
    RequestOut { cookie, offset, len, command: CommandOut::Read { unfragmented: false } }
}

fn to(request: &RequestOut) -> ReplyTo {
    let is_read = matches!(request.command, CommandOut::Read { .. });
    ReplyTo { cookie: request.cookie, offset: request.offset, is_read }
}

fn decode(style: HeaderStyle, sent: &[RequestOut], bytes: &[u8], cuts: &[usize]) -> (Vec<Event>, Option<ReplyError>) {
    let mut decoder = ReplyDecoder::new(&connected(style));
    for request in sent {
        assert!(decoder.sent(request));
        assert!(!decoder.sent(request), "a cookie in flight is not used twice");
    }
    let mut found = (Vec::new(), None);
    feed(bytes, cuts, |input| {
        loop {
            match decoder.next(input) {
                Ok(None) => return true,
                Ok(Some(event)) => found.0.push(event),
                Err(error) => {
                    found.1 = Some(error);
                    return false;
                }
            }
        }
    });
    found
}

fn any_parts() -> impl Strategy<Value = Vec<ReadPart>> {
    let part = prop_oneof![
        (1usize..20, any::<u8>()).prop_map(|(sectors, byte)| ReadPart::Data(vec![byte; sectors * 512].into())),
        (0u32..400).prop_map(|sectors| ReadPart::Zeroes(sectors * 512)),
    ];
    proptest::collection::vec(part, 0..6)
}

fn flat(parts: &[ReadPart]) -> Vec<u8> {
    parts
        .iter()
        .flat_map(|part| match part {
            ReadPart::Data(data) => data.to_vec(),
            ReadPart::Zeroes(len) => vec![0; *len as usize],
        })
        .collect()
}

#[test]
fn the_wire_is_pinned() {
    let mut queue = ReplyQueue::new(HeaderStyle::Simple);
    let to = ReplyTo { cookie: 0x0102_0304_0506_0708, offset: 4096, is_read: true };
    queue.error(to, Errno::Io);
    assert_eq!(drain(&mut queue, 100), b"\x67\x44\x66\x98\0\0\0\x05\x01\x02\x03\x04\x05\x06\x07\x08");
    let mut queue = ReplyQueue::new(HeaderStyle::Structured);
    queue.read(to, vec![ReadPart::Data(b"abc".as_slice().into())], false);
    let chunk: &[u8] = b"\x66\x8e\x33\xef\0\x01\0\x01\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\x0b\0\0\0\0\0\0\x10\0abc";
    assert_eq!(drain(&mut queue, 100), chunk);
    let mut queue = ReplyQueue::new(HeaderStyle::Extended);
    queue.ok(to);
    let none: &[u8] = b"\x6e\x8a\x27\x8c\0\x01\0\0\x01\x02\x03\x04\x05\x06\x07\x08\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\0";
    assert_eq!(drain(&mut queue, 100), none);
}

#[test]
fn large_data_is_passed_on_as_it_came() {
    let data = bytes::Bytes::from(vec![3; 128 << 10]);
    let mut queue = ReplyQueue::new(HeaderStyle::Simple);
    let to = ReplyTo { cookie: 1, offset: 0, is_read: true };
    queue.read(to, vec![ReadPart::Data(data.clone())], false);
    queue.ok(to);
    let mut slices = [IoSlice::new(&[]); 8];
    assert_eq!(queue.slices(&mut slices), 3, "header, data, header");
    assert_eq!(slices[1].as_ptr(), data.as_ptr());
}

#[test]
fn holes_are_sent_as_holes_where_that_pays() {
    let parts = |hole| vec![ReadPart::Zeroes(hole), ReadPart::Data(vec![1; 512].into()), ReadPart::Zeroes(hole)];
    let events = |hole: u32, unfragmented| {
        let mut queue = ReplyQueue::new(HeaderStyle::Structured);
        let request = read_out(1, 0, u64::from(2 * hole) + 512);
        queue.read(to(&request), parts(hole), unfragmented);
        let (events, error) = decode(HeaderStyle::Structured, &[request], &drain(&mut queue, 1 << 20), &[]);
        assert_eq!(error, None);
        events.iter().filter(|event| !matches!(event, Event::Done { .. })).count()
    };
    assert_eq!(events(64 << 10, false), 3);
    assert_eq!(events(512, false), 1, "a chunk would cost more than the zeroes");
    assert_eq!(events(64 << 10, true), 1, "DF: one content chunk");
}

#[test]
fn block_status_is_cut_joined_and_bounded() {
    let status = |style, len, extents: &[Extent], one| {
        let mut queue = ReplyQueue::new(style);
        let request = RequestOut { cookie: 5, offset: 512, len, command: CommandOut::BlockStatus { one } };
        queue.block_status(to(&request), len, extents, one);
        match decode(style, &[request], &drain(&mut queue, 1 << 20), &[]) {
            (events, None) => match &events[..] {
                [Event::Status { extents, .. }, Event::Done { result: Ok(()), .. }] => extents.clone(),
                other => panic!("{other:?}"),
            },
            other => panic!("{other:?}"),
        }
    };
    let run = |len, hole| Extent { len, hole };
    for style in [HeaderStyle::Structured, HeaderStyle::Extended] {
        let extents = [run(512, true), run(512, true), run(512, false), run(1 << 30, true)];
        assert_eq!(status(style, 4096, &extents, false), [run(1024, true), run(512, false), run(2560, true)]);
        assert_eq!(status(style, 4096, &extents, true), [run(1024, true)]);
        assert_eq!(status(style, 512, &extents, true), [run(512, true)]);
        assert_eq!(status(style, 4096, &[], false), [run(4096, false)], "expected all allocated, which is always safe");
        let many: Vec<Extent> = (0..20_000).map(|n| run(512, n % 2 == 0)).collect();
        assert_eq!(status(style, 20_000 * 512, &many, false).len(), EXTENTS_PER_REPLY_MAX);
    }
    let long = [run(1 << 40, true)];
    assert_eq!(status(HeaderStyle::Extended, 1 << 40, &long, false), long);
}

#[test]
fn a_server_that_breaks_the_protocol_is_left() {
    let chunk = |flags: u16, kind: u16, cookie: u64, payload: &[u8]| {
        let mut bytes = Vec::new();
        bytes.put_u32(MAGIC_REPLY_STRUCTURED);
        bytes.put_u16(flags);
        bytes.put_u16(kind);
        bytes.put_u64(cookie);
        bytes.put_u32(payload.len() as u32);
        bytes.put_slice(payload);
        bytes
    };
    let hole = |offset: u64, len: u32| [&offset.to_be_bytes()[..], &len.to_be_bytes()].concat();
    let sent = [read_out(1, 0, 1024)];
    let error = |bytes: &[u8]| decode(HeaderStyle::Structured, &sent, bytes, &[]).1;
    assert_eq!(error(&chunk(0, REPLY_OFFSET_HOLE, 1, &hole(0, 512))), None);
    let twice = [chunk(0, REPLY_OFFSET_HOLE, 1, &hole(0, 512)), chunk(1, REPLY_OFFSET_HOLE, 1, &hole(0, 512))].concat();
    assert!(matches!(error(&twice), Some(ReplyError::Chunk { .. })), "the same piece twice");
    assert!(error(&chunk(1, REPLY_OFFSET_HOLE, 1, &hole(0, 512))).is_some(), "half of the read");
    assert!(error(&chunk(1, REPLY_OFFSET_HOLE, 1, &hole(512, 1024))).is_some(), "beyond the read");
    assert!(error(&chunk(1, REPLY_OFFSET_HOLE, 1, &hole(u64::MAX, 1024))).is_some());
    assert!(error(&chunk(1, REPLY_NONE, 2, b"")).is_some(), "a cookie of nothing");
    assert!(error(&chunk(1, REPLY_BLOCK_STATUS, 1, &[0; 12])).is_some(), "a status of a read");
    assert!(error(&chunk(1, REPLY_ERROR, 1, b"\0\0\0\x05\0\xff")).is_some(), "a message beyond its chunk");
    let failed = decode(HeaderStyle::Structured, &sent, &chunk(1, REPLY_ERROR + 7, 1, b"\0\0\0\x05\0\0more"), &[]);
    assert_eq!(failed, (vec![Event::Done { cookie: 1, result: Err(Errno::Io) }], None), "an unknown kind of error");
    let mut simple = Vec::new();
    simple.put_u32(MAGIC_REPLY_SIMPLE);
    simple.put_u32(22);
    simple.put_u64(1);
    assert!(matches!(error(&simple), Some(ReplyError::Magic { .. })), "a read is answered in chunks");
}

proptest! {
    #[test]
    fn answers_arrive_as_given(
        style in any_style(),
        reads in proptest::collection::vec((any_parts(), any::<bool>(), any::<bool>()), 0..5),
        each in 1usize..5000,
        cuts in proptest::collection::vec(any::<usize>(), 0..20),
    ) {
        let mut queue = ReplyQueue::new(style);
        let mut sent = Vec::new();
        let mut expected = Vec::new();
        for (number, (parts, unfragmented, fails)) in reads.into_iter().enumerate() {
            let (cookie, offset) = (number as u64, 1 << (20 + number));
            let data = flat(&parts);
            let request = read_out(cookie, offset, data.len() as u64);
            if fails {
                queue.error(to(&request), Errno::Io);
                expected.push((cookie, Err(Errno::Io)));
            } else {
                queue.read(to(&request), parts, unfragmented);
                expected.push((cookie, Ok(data)));
            }
            sent.push(request);
            let flush = RequestOut { cookie: 100 + cookie, offset: 0, len: 0, command: CommandOut::Flush };
            queue.ok(to(&flush));
            expected.push((flush.cookie, Ok(Vec::new())));
            sent.push(flush);
        }
        let (events, error) = decode(style, &sent, &drain(&mut queue, each), &cuts);
        prop_assert_eq!(error, None);
        let mut assembled = Vec::new();
        let mut data = Vec::new();
        for event in events {
            match event {
                Event::Data { cookie, offset, data: piece } => {
                    prop_assert_eq!(offset, (1 << (20 + cookie)) + data.len() as u64);
                    data.extend(piece);
                }
                Event::Hole { cookie, offset, len } => {
                    prop_assert_eq!(offset, (1 << (20 + cookie)) + data.len() as u64);
                    data.extend(vec![0; len as usize]);
                }
                Event::Status { .. } => prop_assert!(false, "nobody asked"),
                Event::Done { cookie, result } => {
                    assembled.push((cookie, result.map(|()| std::mem::take(&mut data))));
                }
            }
        }
        prop_assert_eq!(assembled, expected);
    }

    #[test]
    fn n2_n3_any_reply(
        style in any_style(),
        replies in proptest::collection::vec(
            (0u16..3, 0u16..8, 0u64..4, proptest::collection::vec(any::<u8>(), 0..40)), 0..8),
        tail in proptest::collection::vec(any::<u8>(), 0..40),
        cuts in proptest::collection::vec(any::<usize>(), 0..20),
    ) {
        let mut bytes = Vec::new();
        for (flags, kind, cookie, payload) in replies {
            let kind = if kind == 7 { REPLY_ERROR } else { kind };
            match style {
                HeaderStyle::Simple => bytes.put_u32(MAGIC_REPLY_SIMPLE),
                HeaderStyle::Structured => bytes.put_u32(MAGIC_REPLY_STRUCTURED),
                HeaderStyle::Extended => bytes.put_u32(MAGIC_REPLY_EXTENDED),
            }
            bytes.put_u16(flags);
            bytes.put_u16(kind);
            bytes.put_u64(cookie);
            match style {
                HeaderStyle::Simple => {}
                HeaderStyle::Structured => bytes.put_u32(payload.len() as u32),
                HeaderStyle::Extended => {
                    bytes.put_u64(cookie * 4096);
                    bytes.put_u64(payload.len() as u64);
                }
            }
            bytes.extend(payload);
        }
        bytes.extend(tail);
        let sent: Vec<RequestOut> = (0..4u64)
            .map(|cookie| RequestOut {
                command: if cookie == 3 { CommandOut::BlockStatus { one: false } } else { CommandOut::Read { unfragmented: false } },
                ..read_out(cookie, cookie * 4096, 16)
            })
            .collect();
        prop_assert_eq!(decode(style, &sent, &bytes, &cuts), decode(style, &sent, &bytes, &[]));
    }
}
