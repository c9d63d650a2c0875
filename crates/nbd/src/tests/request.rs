use super::feed;
use crate::client::{CommandOut, RequestOut, encode_request};
use crate::server::{Command, Decoded, ProtocolError, Request, RequestDecoder};
use crate::wire::*;
use bytes::{BufMut, BytesMut};
use holdfast_types::limits::REQUEST_BYTES_MAX;
use proptest::prelude::*;

pub(super) fn any_style() -> impl Strategy<Value = HeaderStyle> {
    prop_oneof![Just(HeaderStyle::Simple), Just(HeaderStyle::Structured), Just(HeaderStyle::Extended)]
}

type Found = (Vec<Request>, Option<ProtocolError>);

/// Decodes all of `bytes`; asserts NBD-N1 meanwhile: the decoder never asks for more than one payload.
fn decode(style: HeaderStyle, bytes: &[u8], cuts: &[usize]) -> Found {
    let mut decoder = RequestDecoder::new(style, true);
    let mut found = (Vec::new(), None);
    feed(bytes, cuts, |input| {
        loop {
            match decoder.next(input) {
                Ok(Decoded::Need(more)) => {
                    assert!(more > 0 && more <= REQUEST_BYTES_MAX as usize, "NBD-N1: {more}");
                    assert!(input.len() + more <= REQUEST_BYTES_MAX as usize, "NBD-N1: {} + {more}", input.len());
                    return true;
                }
                Ok(Decoded::Request(request)) => found.0.push(request),
                Err(error) => {
                    found.1 = Some(error);
                    return false;
                }
            }
        }
    });
    found
}

fn any_command() -> impl Strategy<Value = CommandOut> {
    prop_oneof![
        any::<bool>().prop_map(|unfragmented| CommandOut::Read { unfragmented }),
        any::<bool>().prop_map(|fua| CommandOut::Write { fua }),
        any::<(bool, bool, bool)>().prop_map(|(punch, fast, fua)| CommandOut::Zero { punch, fast, fua }),
        any::<bool>().prop_map(|fua| CommandOut::Trim { fua }),
        Just(CommandOut::Flush),
        Just(CommandOut::Cache),
        any::<bool>().prop_map(|one| CommandOut::BlockStatus { one }),
        Just(CommandOut::Disconnect),
    ]
}

fn header(style: HeaderStyle, flags: u16, kind: u16, len: u64) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u32(if style == HeaderStyle::Extended { MAGIC_REQUEST_EXTENDED } else { MAGIC_REQUEST });
    bytes.put_u16(flags);
    bytes.put_u16(kind);
    bytes.put_u64(7);
    bytes.put_u64(4096);
    match style {
        HeaderStyle::Extended => bytes.put_u64(len),
        _ => bytes.put_u32(len as u32),
    }
    bytes
}

fn one(style: HeaderStyle, flags: u16, kind: u16, len: u64, payload: &[u8]) -> Command {
    let flush = header(style, 0, CMD_FLUSH, 0);
    let (requests, error) = decode(style, &[header(style, flags, kind, len), payload.to_vec(), flush].concat(), &[]);
    assert_eq!(error, None);
    assert_eq!(requests.len(), 2, "the stream stays in step");
    assert_eq!(requests[1].command, Command::Flush);
    requests[0].command.clone()
}

#[test]
fn a_payload_is_not_copied() {
    let mut input = BytesMut::with_capacity(16 << 10);
    input.extend_from_slice(&header(HeaderStyle::Simple, 0, CMD_WRITE, 8192));
    input.extend_from_slice(&[9; 8192]);
    let place = input[REQUEST_BYTES..].as_ptr();
    let Ok(Decoded::Request(Request { command: Command::Write { data, .. }, .. })) =
        RequestDecoder::new(HeaderStyle::Simple, false).next(&mut input)
    else {
        panic!("no write");
    };
    assert_eq!((data.as_ptr(), data.len()), (place, 8192));
}

#[test]
fn the_payload_is_announced_before_the_buffer_must_hold_it() {
    let mut decoder = RequestDecoder::new(HeaderStyle::Simple, false);
    let most = u64::from(REQUEST_BYTES_MAX);
    let mut input = BytesMut::from(&header(HeaderStyle::Simple, 0, CMD_WRITE, most)[..]);
    assert_eq!(decoder.payload_awaited(), None);
    assert_eq!(decoder.next(&mut input), Ok(Decoded::Need(REQUEST_BYTES_MAX as usize)));
    assert_eq!(decoder.payload_awaited(), Some(REQUEST_BYTES_MAX as usize));
    let mut input = BytesMut::from(&header(HeaderStyle::Simple, 0, CMD_WRITE, most + 1)[..]);
    let mut decoder = RequestDecoder::new(HeaderStyle::Simple, false);
    assert_eq!(decoder.next(&mut input), Err(ProtocolError::PayloadTooLong { found: most + 1 }));
}

/// Wherever the bytes are cut, and whatever payloads say.
#[test]
fn only_a_request_to_disconnect_is_one() {
    for style in [HeaderStyle::Simple, HeaderStyle::Structured, HeaderStyle::Extended] {
        let disconnect = header(style, 0, CMD_DISC, 0);
        let flags = if style == HeaderStyle::Extended { CMD_FLAG_PAYLOAD_LEN } else { 0 };
        let write = [header(style, flags, CMD_WRITE, 512), disconnect.repeat(20)[..512].to_vec()].concat();
        let leaves = [write.clone(), header(style, 0, CMD_FLUSH, 0), disconnect].concat();
        for cut in 0..leaves.len() {
            let (read, left) = leaves.split_at(cut);
            // Half of it was decoded before: a header without its payload at times.
            let mut decoder = RequestDecoder::new(style, true);
            let mut input = BytesMut::from(read);
            let decoded = decoder.next(&mut input).unwrap();
            assert!(decoder.ends_with_disconnect(&input, left), "{style:?}, {cut}, {decoded:?}");
            assert!(!decoder.ends_with_disconnect(&input, &left[..left.len() - 1]), "{style:?}, {cut}");
        }
        assert!(!RequestDecoder::new(style, true).ends_with_disconnect(&write, &[]), "{style:?}: a payload");
        assert!(!RequestDecoder::new(style, true).ends_with_disconnect(b"", b"no request, but as long as one is"));
    }
    // A payload belongs to its request.
    let disconnect = [header(HeaderStyle::Extended, CMD_FLAG_PAYLOAD_LEN, CMD_DISC, 8), vec![0; 8]].concat();
    let decoder = RequestDecoder::new(HeaderStyle::Extended, true);
    assert!(decoder.ends_with_disconnect(&disconnect, &[]));
    assert!(!decoder.ends_with_disconnect(&disconnect[..disconnect.len() - 1], &[]));
}

#[test]
fn wrong_requests_are_answered_and_passed_over() {
    use HeaderStyle::{Extended, Simple, Structured};
    let bad = Command::Bad(Errno::Invalid);
    assert_eq!(one(Simple, 0, 99, 512, b""), bad);
    assert_eq!(one(Simple, CMD_FLAG_DF, CMD_READ, 512, b""), bad, "DF needs chunks");
    assert_eq!(one(Structured, CMD_FLAG_DF, CMD_READ, 512, b""), Command::Read { unfragmented: true });
    assert_eq!(one(Simple, CMD_FLAG_NO_HOLE, CMD_WRITE, 512, &[0; 512]), bad);
    assert_eq!(one(Simple, CMD_FLAG_PAYLOAD_LEN, CMD_WRITE, 512, &[0; 512]), bad);
    assert_eq!(one(Simple, CMD_FLAG_REQ_ONE, CMD_CACHE, 512, b""), bad);
    assert_eq!(one(Simple, CMD_FLAG_FUA, CMD_FLUSH, 0, b""), Command::Flush);
    assert_eq!(one(Extended, 0, CMD_WRITE, 512, b""), bad, "a write without a payload");
    assert_eq!(one(Extended, CMD_FLAG_PAYLOAD_LEN, CMD_READ, 700, &[0; 700]), bad, "a read with one");
    assert_eq!(one(Extended, CMD_FLAG_PAYLOAD_LEN, CMD_BLOCK_STATUS, 12, &[0; 12]), bad);
    let zero = Command::Zero { punch: false, fast: true, fua: true };
    let flags = CMD_FLAG_FUA | CMD_FLAG_NO_HOLE | CMD_FLAG_FAST_ZERO;
    assert_eq!(one(Extended, flags, CMD_WRITE_ZEROES, 1 << 40, b""), zero);

    let mut decoder = RequestDecoder::new(Structured, false);
    let mut input = BytesMut::from(&header(Structured, 0, CMD_BLOCK_STATUS, 512)[..]);
    let Ok(Decoded::Request(request)) = decoder.next(&mut input) else { panic!("no request") };
    assert_eq!(request.command, bad, "no context was chosen");
    let too_long = [header(Extended, CMD_FLAG_PAYLOAD_LEN, CMD_READ, u64::MAX), vec![0; 64]].concat();
    assert_eq!(decode(Extended, &too_long, &[]).1, Some(ProtocolError::PayloadTooLong { found: u64::MAX }));
}

#[test]
fn checks_against_the_device() {
    let data = bytes::Bytes::from_static(b"");
    let request = |offset, len, command| Request { cookie: 0, offset, len, is_read: false, command };
    let read = || Command::Read { unfragmented: false };
    let write = || Command::Write { data: data.clone(), fua: false };
    let trim = || Command::Trim { fua: false };
    let zero = || Command::Zero { punch: true, fast: false, fua: false };
    let check = |request: Request| request.check(1 << 20, false, HeaderStyle::Simple);
    assert_eq!(check(request(512, 512, read())), Ok(()));
    assert_eq!(check(request(512, 511, read())), Err(Errno::Invalid));
    assert_eq!(check(request(1, 512, write())), Err(Errno::Invalid));
    for (command, errno) in [(read(), 22), (trim(), 22), (write(), 28), (zero(), 28)] {
        for (offset, len) in [(1 << 20, 512), (u64::MAX - 511, 512), (512, u64::MAX - 511)] {
            assert_eq!(check(request(offset, len, command.clone())), Err(Errno::from_wire(errno)), "{command:?}");
        }
    }
    assert_eq!(check(request(1 << 20, 0, write())), Ok(()), "nothing at the very end");
    assert_eq!(check(request(0, 0, Command::BlockStatus { one: false })), Err(Errno::Invalid));
    assert_eq!(check(request(77, 77, Command::Flush)), Ok(()), "fields that a flush does not use");
    let long = request(0, u64::from(REQUEST_BYTES_MAX) + 512, read());
    assert_eq!(long.check(1 << 40, false, HeaderStyle::Simple), Err(Errno::Invalid));
    assert_eq!(long.check(1 << 40, false, HeaderStyle::Structured), Err(Errno::Overflow));
    for command in [write(), trim(), zero()] {
        assert_eq!(request(0, 512, command).check(1 << 20, true, HeaderStyle::Simple), Err(Errno::NotPermitted));
    }
    assert_eq!(request(0, 512, read()).check(1 << 20, true, HeaderStyle::Simple), Ok(()));
}

proptest! {
    #[test]
    fn what_a_client_sends_is_what_the_server_reads(
        style in any_style(),
        requests in proptest::collection::vec((any_command(), any::<u64>(), any::<u64>(), 0u64..2000), 0..12),
        cuts in proptest::collection::vec(any::<usize>(), 0..20),
    ) {
        let mut bytes = BytesMut::new();
        let mut sent = Vec::new();
        for (command, cookie, offset, len) in requests {
            // Simple replies have no DF; the server refuses it there.
            let command = match command {
                CommandOut::Read { .. } if style == HeaderStyle::Simple => CommandOut::Read { unfragmented: false },
                other => other,
            };
            encode_request(&mut bytes, style, &RequestOut { cookie, offset, len, command }).unwrap();
            let payload = vec![cookie as u8; len as usize];
            let command = match command {
                CommandOut::Read { unfragmented } => Command::Read { unfragmented },
                CommandOut::Write { fua } => {
                    bytes.extend_from_slice(&payload);
                    Command::Write { data: payload.into(), fua }
                }
                CommandOut::Zero { punch, fast, fua } => Command::Zero { punch, fast, fua },
                CommandOut::Trim { fua } => Command::Trim { fua },
                CommandOut::Flush => Command::Flush,
                CommandOut::Cache => Command::Cache,
                CommandOut::BlockStatus { one } => Command::BlockStatus { one },
                CommandOut::Disconnect => Command::Disconnect,
            };
            let is_read = matches!(command, Command::Read { .. });
            sent.push(Request { cookie, offset, len, is_read, command });
        }
        prop_assert_eq!(decode(style, &bytes, &cuts), (sent, None));
    }

    #[test]
    fn n2_n3_any_request(
        style in any_style(),
        headers in proptest::collection::vec((any::<u16>(), 0u16..9, 0u64..300, 0usize..400), 0..8),
        flags_mask in prop_oneof![Just(0u16), Just(0x3f), any::<u16>()],
        tail in proptest::collection::vec(any::<u8>(), 0..40),
        cuts in proptest::collection::vec(any::<usize>(), 0..20),
    ) {
        let mut bytes = Vec::new();
        for (flags, kind, len, payload) in headers {
            bytes.extend(header(style, flags & flags_mask, kind, len));
            let whole = if kind == CMD_WRITE { len as usize } else { payload / 4 };
            bytes.extend(vec![0x5a; whole]);
        }
        bytes.extend(tail);
        prop_assert_eq!(decode(style, &bytes, &cuts), decode(style, &bytes, &[]));
    }

    #[test]
    fn only_extended_headers_carry_long_lengths(style in any_style(), len: u64) {
        let mut out = BytesMut::new();
        let request = RequestOut { cookie: 1, offset: 0, len, command: CommandOut::Trim { fua: false } };
        let fits = encode_request(&mut out, style, &request).is_ok();
        prop_assert_eq!(fits, style == HeaderStyle::Extended || len <= u64::from(u32::MAX));
        prop_assert_eq!(out.is_empty(), !fits);
    }
}
