use super::feed;
use crate::client::{self, Aim, ClientError, Outcome};
use crate::server::{
    EXPORTS_LISTED_MAX, ExportFacts, Handshake, HandshakeError, Negotiated, OPTIONS_MAX, QUERIES_MAX, Question,
    RefusalReason, Step, TlsMode,
};
use crate::wire::*;
use bytes::{BufMut, BytesMut};
use proptest::prelude::*;

pub(super) fn facts() -> ExportFacts {
    ExportFacts { size: 1 << 30, read_only: false, description: "a tank".into() }
}

/// Reaction of a server to an input: its questions, its bytes, its end.
#[derive(Debug, Default, PartialEq)]
struct Reaction {
    asked: Vec<Question>,
    out: Vec<u8>,
    negotiated: Option<Negotiated>,
    aborted: bool,
    error: Option<HandshakeError>,
}

fn serve(bytes: &[u8], cuts: &[usize]) -> Reaction {
    let mut server = Handshake::new(TlsMode::Off);
    let mut seen = Reaction::default();
    feed(bytes, cuts, |input| {
        loop {
            let mut out = BytesMut::new();
            let step = server.step(input, &mut out);
            seen.out.extend_from_slice(&out);
            out.clear();
            let answered = match step {
                Ok(Step::NeedBytes) => return true,
                Ok(Step::StartTls) => panic!("TLS without TLS"),
                Ok(Step::Aborted) => {
                    seen.aborted = true;
                    return false;
                }
                Ok(Step::Ask(question)) => {
                    let answered = match &question {
                        Question::List => {
                            server.answer_list([("s/a", "first"), ("s/b", "")], &mut out);
                            Ok(None)
                        }
                        Question::Describe(name) | Question::Open(name) if name.volume.as_str() == "gone" => {
                            server.answer_export(Err((RefusalReason::Unknown, "no such volume")), &mut out)
                        }
                        Question::Describe(name) | Question::Open(name) if name.volume.as_str() == "moved" => {
                            server.answer_export(Err((RefusalReason::Shutdown, "ask g2")), &mut out)
                        }
                        _ => server.answer_export(Ok(&facts()), &mut out),
                    };
                    seen.asked.push(question);
                    answered
                }
                Err(error) => Err(error),
            };
            seen.out.extend_from_slice(&out);
            match answered {
                Ok(None) => {}
                Ok(Some(negotiated)) => {
                    seen.negotiated = Some(negotiated);
                    return false;
                }
                Err(error) => {
                    seen.error = Some(error);
                    return false;
                }
            }
        }
    });
    seen
}

/// Runs our client against our server; both get their bytes in pieces of at most `piece`.
fn meet(aim: Aim, wanted: HeaderStyle, piece: usize) -> (Result<Outcome, ClientError>, Reaction) {
    let mut client = client::Handshake::new(aim, wanted, true);
    let (mut to_server, mut from_server) = (Vec::new(), Handshake::greeting().to_vec());
    let mut input = BytesMut::new();
    let mut fed = 0;
    for _ in 0..10_000 {
        let next = (fed + piece).min(from_server.len());
        input.extend_from_slice(&from_server[fed..next]);
        fed = next;
        let mut out = BytesMut::new();
        let outcome = client.step(&mut input, &mut out);
        to_server.extend_from_slice(&out);
        let cuts: Vec<usize> = (0..to_server.len()).step_by(piece).collect();
        let seen = serve(&to_server, &cuts);
        match outcome {
            Ok(Some(outcome)) => return (Ok(outcome), seen),
            Err(error) => return (Err(error), seen),
            Ok(None) => {}
        }
        from_server = [Handshake::greeting().to_vec(), seen.out].concat();
        if fed == from_server.len() && input.is_empty() {
            let error = ClientError::Refused { message: "closed".into() };
            return (Err(error), serve(&to_server, &[]));
        }
    }
    panic!("the handshake does not end");
}

pub(super) fn option(number: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.put_u64(MAGIC_OPTION);
    bytes.put_u32(number);
    bytes.put_u32(data.len() as u32);
    bytes.put_slice(data);
    bytes
}

pub(super) fn counted(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

pub(super) fn go(number: u32, name: &str) -> Vec<u8> {
    option(number, &[counted(name), vec![0, 0]].concat())
}

pub(super) fn contexts(number: u32, name: &str, queries: &[&str]) -> Vec<u8> {
    let queries: Vec<u8> =
        queries.iter().fold((queries.len() as u32).to_be_bytes().to_vec(), |all, query| [all, counted(query)].concat());
    option(number, &[counted(name), queries].concat())
}

pub(super) fn session(options: &[Vec<u8>]) -> Vec<u8> {
    [3u32.to_be_bytes().to_vec(), options.concat()].concat()
}

/// Types of the option replies in `out`.
pub(super) fn reply_kinds(mut out: &[u8]) -> Vec<u32> {
    let mut kinds = Vec::new();
    while out.len() >= 20 {
        kinds.push(u32::from_be_bytes(out[12..16].try_into().unwrap()));
        let len = u32::from_be_bytes(out[16..20].try_into().unwrap()) as usize;
        out = &out[20 + len..];
    }
    kinds
}

#[test]
fn both_sides_agree_whatever_is_wanted() {
    for (wanted, piece) in [
        (HeaderStyle::Simple, 1),
        (HeaderStyle::Structured, 7),
        (HeaderStyle::Extended, 1),
        (HeaderStyle::Extended, 4096),
    ] {
        let (outcome, seen) = meet(Aim::Go("tank/vol".into()), wanted, piece);
        let Ok(Outcome::Connected(connected)) = outcome else { panic!("{outcome:?}") };
        assert_eq!(seen.negotiated, Some(Negotiated { style: wanted, allocation: wanted != HeaderStyle::Simple }));
        assert_eq!((connected.size, connected.style), (1 << 30, wanted));
        assert_eq!(connected.block_sizes, Some(BlockSizes::OURS));
        assert_eq!(connected.allocation.is_some(), wanted != HeaderStyle::Simple);
        assert_eq!((connected.name.as_deref(), connected.description.as_deref()), (Some("tank/vol"), Some("a tank")));
        let flags = TransmissionFlags::CAN_MULTI_CONN | TransmissionFlags::SEND_FAST_ZERO;
        assert!(connected.flags.has(flags));
        assert_eq!(connected.flags.has(TransmissionFlags::SEND_DF), wanted != HeaderStyle::Simple);
    }
}

#[test]
fn other_aims() {
    let (outcome, seen) = meet(Aim::List, HeaderStyle::Extended, 3);
    let Ok(Outcome::Listed(listed)) = outcome else { panic!("{outcome:?}") };
    assert_eq!((listed[0].name.as_str(), listed[0].description.as_str()), ("s/a", "first"));
    assert_eq!(listed.len(), 2);
    assert!(seen.aborted);

    let (outcome, seen) = meet(Aim::Info("tank/vol".into()), HeaderStyle::Structured, 5);
    assert!(matches!(outcome, Ok(Outcome::Described(_))), "{outcome:?}");
    assert!(matches!(seen.asked[..], [Question::Describe(_)]));

    let (outcome, seen) = meet(Aim::GoOldStyle("tank/vol".into()), HeaderStyle::Extended, 5);
    let Ok(Outcome::Connected(connected)) = outcome else { panic!("{outcome:?}") };
    assert_eq!((connected.size, connected.style), (1 << 30, HeaderStyle::Simple));
    assert_eq!(seen.negotiated, Some(Negotiated { style: HeaderStyle::Simple, allocation: false }));
}

#[test]
fn refusals_tell_apart_gone_and_elsewhere() {
    let (outcome, _) = meet(Aim::Go("tank/gone".into()), HeaderStyle::Extended, 11);
    assert_eq!(outcome, Err(ClientError::Refused { message: "no such volume".into() }));
    let (outcome, _) = meet(Aim::Go("tank/moved".into()), HeaderStyle::Extended, 11);
    assert_eq!(outcome, Err(ClientError::NotHere { message: "ask g2".into() }));
    let (outcome, seen) = meet(Aim::Go("no slash".into()), HeaderStyle::Simple, 11);
    assert!(matches!(outcome, Err(ClientError::Refused { .. })), "{outcome:?}");
    assert!(seen.asked.is_empty(), "a foreign name must not reach the caller");
    let (_, seen) = meet(Aim::GoOldStyle("tank/gone".into()), HeaderStyle::Simple, 11);
    assert!(matches!(seen.error, Some(HandshakeError::ExportName { .. })), "{seen:?}");
}

#[test]
fn the_wire_is_pinned() {
    assert_eq!(&Handshake::greeting(), b"NBDMAGICIHAVEOPT\x00\x03");
    let seen = serve(&session(&[go(OPT_GO, "s/v")]), &[]);
    let export: &[u8] = b"\x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x07\x00\x00\x00\x03\x00\x00\x00\x0c\
        \x00\x00\x00\x00\x00\x00\x40\x00\x00\x00\x0d\x6d";
    let sizes: &[u8] = b"\x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x07\x00\x00\x00\x03\x00\x00\x00\x0e\
        \x00\x03\x00\x00\x02\x00\x00\x00\x10\x00\x02\x00\x00\x00";
    let ack: &[u8] = b"\x00\x03\xe8\x89\x04\x55\x65\xa9\x00\x00\x00\x07\x00\x00\x00\x01\x00\x00\x00\x00";
    assert_eq!(seen.out, [export, sizes, ack].concat());

    let padded = [0u32.to_be_bytes().to_vec(), option(OPT_EXPORT_NAME, b"s/v")].concat();
    assert_eq!(serve(&padded, &[]).out.len(), 10 + 124, "a client that did not decline them gets the zeroes");
    let bare = session(&[option(OPT_EXPORT_NAME, b"s/v")]);
    assert_eq!(serve(&bare, &[]).out, b"\x00\x00\x00\x00\x40\x00\x00\x00\x0d\x6d");
}

#[test]
fn each_option_has_its_answer() {
    let kinds = |options: &[Vec<u8>]| reply_kinds(&serve(&session(options), &[]).out);
    assert_eq!(kinds(&[option(OPT_STARTTLS, b"")]), [REP_ERR_UNSUP]);
    assert_eq!(kinds(&[option(OPT_STARTTLS, b"x")]), [REP_ERR_INVALID]);
    assert_eq!(kinds(&[option(OPT_LIST, b"x")]), [REP_ERR_INVALID]);
    assert_eq!(kinds(&[option(OPT_LIST, b"")]), [REP_SERVER, REP_SERVER, REP_ACK]);
    assert_eq!(kinds(&[option(OPT_STRUCTURED_REPLY, b"x")]), [REP_ERR_INVALID]);
    assert_eq!(kinds(&[option(4, b""), option(99, b"whatever")]), [REP_ERR_UNSUP, REP_ERR_UNSUP]);
    assert_eq!(kinds(&[option(OPT_ABORT, b"ignored")]), [REP_ACK]);
    assert_eq!(
        kinds(&[option(OPT_EXTENDED_HEADERS, b""), option(OPT_STRUCTURED_REPLY, b"")]),
        [REP_ACK, REP_ERR_EXT_HEADER_REQD]
    );
    assert_eq!(kinds(&[option(OPT_GO, b"\0\0\0\xffs/v\0\0")]), [REP_ERR_INVALID], "a name beyond its option");
    assert_eq!(kinds(&[option(OPT_GO, b"\0\0\0\x03s/v\0\x01")]), [REP_ERR_INVALID], "an item that is not there");
    assert_eq!(kinds(&[go(OPT_GO, "")]), [REP_ERR_UNKNOWN], "there is no default export");
    assert_eq!(kinds(&[go(OPT_INFO, "s/v"), go(OPT_GO, "s/v")]), [3, 3, 1, 3, 3, 1]);
    assert_eq!(kinds(&[option(OPT_LIST, &vec![0; 20 << 10]), go(OPT_GO, "s/v")]), [REP_ERR_TOO_BIG, 3, 3, 1]);

    let after_extended = session(&[option(OPT_EXTENDED_HEADERS, b""), option(OPT_EXPORT_NAME, b"s/v")]);
    assert!(matches!(serve(&after_extended, &[]).error, Some(HandshakeError::ExportName { .. })));
}

#[test]
fn metadata_contexts() {
    let structured = option(OPT_STRUCTURED_REPLY, b"");
    let run = |options: &[Vec<u8>]| serve(&session(&[std::slice::from_ref(&structured), options].concat()), &[]);
    let kinds = |options: &[Vec<u8>]| reply_kinds(&run(options).out)[1..].to_vec();
    let (list, set) = (OPT_LIST_META_CONTEXT, OPT_SET_META_CONTEXT);
    assert_eq!(kinds(&[contexts(list, "s/v", &[])]), [REP_META_CONTEXT, REP_ACK]);
    assert_eq!(kinds(&[contexts(list, "s/v", &["base:"])]), [REP_META_CONTEXT, REP_ACK]);
    assert_eq!(kinds(&[contexts(list, "s/v", &["qemu:"])]), [REP_ACK]);
    assert_eq!(kinds(&[contexts(set, "s/v", &[])]), [REP_ACK]);
    assert_eq!(kinds(&[contexts(set, "s/v", &["base:"])]), [REP_ACK]);
    assert_eq!(kinds(&[contexts(set, "s/v", &["qemu:x", "base:allocation"])]), [REP_META_CONTEXT, REP_ACK]);
    assert_eq!(kinds(&[contexts(set, "s/v", &["q:"; QUERIES_MAX as usize + 1])]), [REP_ERR_TOO_BIG]);
    assert_eq!(kinds(&[option(set, b"\0\0\0\x01x\0\0\0\x01\0\0\0\x09short")]), [REP_ERR_INVALID]);
    assert_eq!(
        reply_kinds(&serve(&session(&[contexts(set, "s/v", &["base:allocation"])]), &[]).out),
        [REP_ERR_INVALID],
        "not before structured replies"
    );

    let chosen = contexts(set, "s/v", &["base:allocation"]);
    let allocation = |options: &[Vec<u8>]| run(options).negotiated.unwrap().allocation;
    assert!(allocation(&[chosen.clone(), go(OPT_GO, "s/v")]));
    assert!(!allocation(&[chosen.clone(), go(OPT_GO, "s/w")]), "chosen for another export");
    let failing = option(set, b"");
    assert!(!allocation(&[chosen.clone(), failing, go(OPT_GO, "s/v")]), "a failed choice takes the old one away");
}

#[test]
fn a_peer_that_is_no_client_is_left() {
    let error = |bytes: &[u8]| serve(bytes, &[]).error;
    assert!(matches!(error(b"GET / HTTP/1.1\r\n\r\n"), Some(HandshakeError::ClientFlags { .. })));
    assert!(matches!(error(&session(&[vec![0; 16]])), Some(HandshakeError::Magic { .. })));
    let mut huge = option(OPT_LIST, b"");
    huge[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    assert!(matches!(error(&session(&[huge])), Some(HandshakeError::TooLong { .. })));
    let endless = session(&vec![option(OPT_LIST, b""); OPTIONS_MAX as usize + 1]);
    assert!(matches!(error(&endless), Some(HandshakeError::TooMany)));
}

/// As a program that shows all exports does: it asks about each of them on one connection.
#[test]
fn a_client_may_ask_about_every_listed_export() {
    let mut options = vec![option(OPT_STRUCTURED_REPLY, b""), option(OPT_LIST, b"")];
    for n in 0..EXPORTS_LISTED_MAX {
        let name = format!("s/v{n}");
        options.extend([go(OPT_INFO, &name), contexts(OPT_LIST_META_CONTEXT, &name, &["base:"])]);
    }
    options.push(option(OPT_ABORT, b""));
    let seen = serve(&session(&options), &[]);
    assert_eq!((seen.asked.len(), seen.error, seen.aborted), (EXPORTS_LISTED_MAX + 1, None, true));
}

/// A client that opens a snapshot again by the name that it was told must not get the volume, which can be written.
#[test]
fn a_snapshot_is_told_its_own_name() {
    let named = |name: &str| {
        let mut data = counted(name);
        data.extend([0, 1]);
        data.extend(INFO_NAME.to_be_bytes());
        let out = serve(&session(&[option(OPT_GO, &data)]), &[]).out;
        let found = |text: &str| out.windows(text.len()).any(|window| window == text.as_bytes());
        (found("s/v@monday"), found("token"))
    };
    assert_eq!(named(&format!("s/v@monday?token={:032x}", 7)), (true, false), "without the token");
    assert_eq!(named("s/v@monday"), (true, false));
    assert_eq!(named("s/v"), (false, false));
}

#[test]
fn a_peer_that_is_no_server_is_left() {
    let answer = |bytes: &[u8]| {
        let mut client = client::Handshake::new(Aim::Go("s/v".into()), HeaderStyle::Simple, false);
        client.step(&mut BytesMut::from(bytes), &mut BytesMut::new())
    };
    assert!(matches!(answer(b"HTTP/1.1 400 Bad Request\r\n"), Err(ClientError::Magic { .. })));
    assert!(matches!(answer(b"NBDMAGICIHAVEOPT\0\0"), Err(ClientError::TooOld { found: 0 })));
    let reply = |option: u32, kind: u32, len: u32| {
        let mut bytes = Handshake::greeting().to_vec();
        bytes.put_u64(MAGIC_OPTION_REPLY);
        bytes.put_u32(option);
        bytes.put_u32(kind);
        bytes.put_u32(len);
        bytes
    };
    assert_eq!(answer(&reply(OPT_GO, REP_INFO, 100)), Ok(None), "more is to come");
    assert!(matches!(answer(&reply(OPT_GO, REP_INFO, 1 << 20)), Err(ClientError::Malformed { .. })), "NBD-N1");
    assert!(matches!(answer(&reply(OPT_LIST, REP_ACK, 0)), Err(ClientError::Malformed { .. })), "not our option");
    assert!(matches!(answer(&reply(OPT_GO, REP_ACK, 0)), Err(ClientError::Malformed { .. })), "no size came first");
}

#[test]
fn a_question_holds_the_input_back() {
    let mut server = Handshake::new(TlsMode::Off);
    let mut input = BytesMut::from(&session(&[option(OPT_LIST, b""), option(OPT_ABORT, b"")])[..]);
    let mut out = BytesMut::new();
    assert_eq!(server.step(&mut input, &mut out), Ok(Step::Ask(Question::List)));
    let left = input.len();
    assert_eq!(server.step(&mut input, &mut out), Ok(Step::NeedBytes));
    assert_eq!((input.len(), out.len()), (left, 0));
    assert_eq!(server.answer_export(Ok(&facts()), &mut out), Ok(None), "an answer without a question does nothing");
    server.answer_list([], &mut out);
    assert_eq!(server.step(&mut input, &mut out), Ok(Step::Aborted));
}

/// Options of a hostile client: well-formed, malformed, and truncated.
fn any_option() -> impl Strategy<Value = Vec<u8>> {
    let data = prop_oneof![
        proptest::collection::vec(any::<u8>(), 0..40),
        Just([counted("s/v"), vec![0, 1, 0, 3]].concat()),
        Just([counted("s/v"), vec![0, 0, 0, 1], counted("base:allocation")].concat()),
        Just(vec![0; 17 << 10]),
        Just(b"s/v".to_vec()),
    ];
    (0u32..14, data, any::<u8>()).prop_map(|(number, data, spoil)| {
        let mut bytes = option(number, &data);
        if spoil < 20 {
            let at = usize::from(spoil) % bytes.len();
            bytes[at] ^= 0x41;
        }
        bytes
    })
}

proptest! {
    #[test]
    fn n2_cuts_do_not_matter(
        flags in prop_oneof![Just(3u32), Just(0), any::<u32>()],
        options in proptest::collection::vec(any_option(), 0..8),
        tail in proptest::collection::vec(any::<u8>(), 0..30),
        cuts in proptest::collection::vec(any::<usize>(), 0..20),
    ) {
        let bytes = [flags.to_be_bytes().to_vec(), options.concat(), tail].concat();
        prop_assert_eq!(serve(&bytes, &cuts), serve(&bytes, &[]));
    }

    #[test]
    fn n3_any_bytes_at_the_server(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
        let seen = serve(&bytes, &[]);
        prop_assert!(seen.out.len() < 64 << 10);
    }

    #[test]
    fn n3_any_bytes_at_the_client(
        kinds in proptest::collection::vec((0u32..14, 0u32..16, proptest::collection::vec(any::<u8>(), 0..40)), 0..10),
        cuts in proptest::collection::vec(any::<usize>(), 0..20),
        wanted in prop_oneof![Just(HeaderStyle::Simple), Just(HeaderStyle::Structured), Just(HeaderStyle::Extended)],
        list: bool,
    ) {
        let mut bytes = Handshake::greeting().to_vec();
        for (number, kind, data) in kinds {
            bytes.put_u64(MAGIC_OPTION_REPLY);
            bytes.put_u32(number);
            bytes.put_u32(if kind >= 8 { REP_ERROR + kind - 8 } else { kind });
            bytes.put_u32(data.len() as u32);
            bytes.put_slice(&data);
        }
        let run = |cuts: &[usize]| {
            let aim = if list { Aim::List } else { Aim::Go("s/v".into()) };
            let mut client = client::Handshake::new(aim, wanted, true);
            let mut seen = (Vec::new(), None);
            feed(&bytes, cuts, |input| {
                let mut out = BytesMut::new();
                let outcome = client.step(input, &mut out);
                seen.0.extend_from_slice(&out);
                match outcome {
                    Ok(None) => true,
                    other => { seen.1 = Some(other); false }
                }
            });
            seen
        };
        prop_assert_eq!(run(&cuts), run(&[]));
    }
}

/// NBD-N1.
#[test]
fn a_server_that_lists_without_end_is_left() {
    let mut client = client::Handshake::new(Aim::List, HeaderStyle::Simple, false);
    let (mut input, mut out) = (BytesMut::from(&Handshake::greeting()[..]), BytesMut::new());
    assert_eq!(client.step(&mut input, &mut out), Ok(None));
    let name = vec![b'x'; 32 << 10];
    let mut reply = BytesMut::new();
    reply.put_u64(MAGIC_OPTION_REPLY);
    reply.put_u32(OPT_LIST);
    reply.put_u32(REP_SERVER);
    reply.put_u32(4 + name.len() as u32);
    reply.put_u32(name.len() as u32);
    reply.put_slice(&name);
    let taken = (0..1000).take_while(|_| {
        input.extend_from_slice(&reply);
        client.step(&mut input, &mut out).is_ok()
    });
    assert_eq!(taken.count(), 255, "8 MiB of names");
}
