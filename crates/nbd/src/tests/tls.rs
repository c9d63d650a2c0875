//! NBD_OPT_STARTTLS (NBD-S1 to NBD-S3): what either side does before, at and after the upgrade. TLS itself is passed
//! over: the tests say when it is there.

use super::feed;
use super::handshake::{contexts, facts, go, option, reply_kinds, session};
use crate::client::{self, Aim, ClientError, Outcome};
use crate::server::{Handshake, HandshakeError, Negotiated, Question, Step, TlsMode};
use crate::wire::*;
use bytes::{BufMut, BytesMut};
use proptest::prelude::*;

const OPTIONS: [u32; 11] = [
    OPT_EXPORT_NAME,
    OPT_ABORT,
    OPT_LIST,
    4,
    OPT_STARTTLS,
    OPT_INFO,
    OPT_GO,
    OPT_STRUCTURED_REPLY,
    OPT_LIST_META_CONTEXT,
    OPT_SET_META_CONTEXT,
    OPT_EXTENDED_HEADERS,
];

/// A well-formed option of this number.
fn sample(number: u32) -> Vec<u8> {
    match number {
        OPT_EXPORT_NAME => option(number, b"s/v"),
        OPT_INFO | OPT_GO => go(number, "s/v"),
        OPT_LIST_META_CONTEXT | OPT_SET_META_CONTEXT => contexts(number, "s/v", &["base:allocation"]),
        _ => option(number, b""),
    }
}

/// A server, and what it has sent.
struct Server {
    handshake: Handshake,
    out: BytesMut,
}

impl Server {
    fn new(mode: TlsMode) -> Self {
        Self { handshake: Handshake::new(mode), out: BytesMut::new() }
    }

    /// One that speaks TLS by now, after these options in plain text.
    fn secure(mode: TlsMode, before: &[Vec<u8>], refusal: Option<&str>) -> Self {
        let mut server = Self::new(mode);
        server.take(&session(before)).unwrap();
        assert_eq!(server.take(&option(OPT_STARTTLS, b"")), Ok(Step::StartTls));
        server.handshake.tls_started(refusal.map(str::to_string));
        server.out.clear();
        server
    }

    fn take(&mut self, bytes: &[u8]) -> Result<Step, HandshakeError> {
        self.handshake.step(&mut BytesMut::from(bytes), &mut self.out)
    }

    /// Types of the replies since the last call.
    fn kinds(&mut self) -> Vec<u32> {
        reply_kinds(&self.out.split())
    }
}

/// NBD-S1. A question would mean that the client learns, or gets, something.
#[test]
fn s1_where_tls_is_required_a_plain_client_gets_nothing() {
    for number in OPTIONS {
        let mut server = Server::new(TlsMode::Required);
        let step = server.take(&session(&[sample(number)]));
        match number {
            OPT_STARTTLS => assert_eq!((step, server.kinds()), (Ok(Step::StartTls), vec![REP_ACK])),
            OPT_ABORT => assert_eq!((step, server.kinds()), (Ok(Step::Aborted), vec![REP_ACK])),
            OPT_EXPORT_NAME => assert!(matches!(step, Err(HandshakeError::ExportName { .. })), "{step:?}"),
            _ => assert_eq!((step, server.kinds()), (Ok(Step::NeedBytes), vec![REP_ERR_TLS_REQD]), "option {number}"),
        }
    }
    let mut server = Server::new(TlsMode::Required);
    let step = server.take(&session(&[option(OPT_LIST, &vec![0; 20 << 10]), option(99, b"x")]));
    assert_eq!((step, server.kinds()), (Ok(Step::NeedBytes), vec![REP_ERR_TLS_REQD; 2]));
}

#[test]
fn each_option_in_the_other_modes() {
    for mode in [TlsMode::Off, TlsMode::Optional] {
        for number in OPTIONS {
            let mut server = Server::new(mode);
            let step = server.take(&session(&[sample(number)]));
            match (number, mode) {
                (OPT_STARTTLS, TlsMode::Optional) => assert_eq!(step, Ok(Step::StartTls)),
                (OPT_ABORT, _) => assert_eq!(step, Ok(Step::Aborted)),
                (OPT_EXPORT_NAME | OPT_LIST | OPT_INFO | OPT_GO, _) => {
                    assert!(matches!(step, Ok(Step::Ask(_))), "option {number}, {mode:?}: {step:?}");
                }
                _ => assert_eq!(step, Ok(Step::NeedBytes), "option {number}, {mode:?}"),
            }
            let found = server.kinds();
            assert!(!found.contains(&REP_ERR_TLS_REQD), "option {number}, {mode:?}");
            if number == OPT_STARTTLS {
                assert_eq!(found, [if mode == TlsMode::Off { REP_ERR_UNSUP } else { REP_ACK }]);
            }
        }
    }
    for mode in [TlsMode::Optional, TlsMode::Required] {
        let mut server = Server::new(mode);
        let step = server.take(&session(&[option(OPT_STARTTLS, b"x"), option(OPT_ABORT, b"")]));
        assert_eq!((step, server.kinds()), (Ok(Step::Aborted), vec![REP_ERR_INVALID, REP_ACK]), "it takes no data");
    }
}

#[test]
fn after_the_upgrade_all_goes_on_as_ever_but_a_second_upgrade() {
    for mode in [TlsMode::Optional, TlsMode::Required] {
        let mut server = Server::secure(mode, &[], None);
        let options = [sample(OPT_STARTTLS), sample(OPT_STRUCTURED_REPLY), sample(OPT_SET_META_CONTEXT)].concat();
        assert_eq!(server.take(&options), Ok(Step::NeedBytes));
        assert_eq!(server.kinds(), [REP_ERR_INVALID, REP_ACK, REP_META_CONTEXT, REP_ACK]);
        assert!(matches!(server.take(&sample(OPT_GO)), Ok(Step::Ask(Question::Open(_)))));
        let negotiated = server.handshake.answer_export(Ok(&facts()), &mut server.out).unwrap();
        assert_eq!(negotiated, Some(Negotiated { style: HeaderStyle::Structured, allocation: true }));
    }
}

/// NBD-S2. Whoever sits on the way could have negotiated it.
#[test]
fn s2_what_was_negotiated_in_plain_text_is_forgotten() {
    let before = [sample(OPT_STRUCTURED_REPLY), sample(OPT_SET_META_CONTEXT)];
    let mut server = Server::secure(TlsMode::Optional, &before, None);
    server.take(&sample(OPT_GO)).unwrap();
    let negotiated = server.handshake.answer_export(Ok(&facts()), &mut server.out).unwrap();
    assert_eq!(negotiated, Some(Negotiated { style: HeaderStyle::Simple, allocation: false }));

    let mut server = Server::secure(TlsMode::Optional, &[sample(OPT_EXTENDED_HEADERS)], None);
    assert_eq!(server.take(&sample(OPT_STRUCTURED_REPLY)), Ok(Step::NeedBytes));
    assert_eq!(server.kinds(), [REP_ACK], "extended headers were not chosen through TLS");
}

/// NBD-S2. The bytes are another's, in front of what the client will say through TLS.
#[test]
fn s2_bytes_behind_the_option_end_the_connection() {
    for mode in [TlsMode::Optional, TlsMode::Required] {
        for injected in [sample(OPT_GO), sample(OPT_ABORT), vec![0x16]] {
            let found = injected.len();
            let mut server = Server::new(mode);
            let step = server.take(&session(&[sample(OPT_STARTTLS), injected.clone()]));
            assert_eq!(step, Err(HandshakeError::BehindStartTls { found }));
            assert!(server.out.is_empty(), "no agreement to what will not be");
            // They came a moment later, before TLS was there.
            let mut server = Server::new(mode);
            assert_eq!(server.take(&session(&[sample(OPT_STARTTLS)])), Ok(Step::StartTls));
            assert_eq!(server.take(&injected), Err(HandshakeError::BehindStartTls { found }));
        }
    }
}

#[test]
fn a_client_with_the_wrong_certificate_is_told_so() {
    for number in OPTIONS {
        let mut server = Server::secure(TlsMode::Required, &[], Some("found a certificate of gateway"));
        let step = server.take(&sample(number));
        match number {
            OPT_ABORT => assert_eq!(step, Ok(Step::Aborted)),
            OPT_STARTTLS => assert_eq!((step, server.kinds()), (Ok(Step::NeedBytes), vec![REP_ERR_INVALID])),
            OPT_EXPORT_NAME => {
                let message = "found a certificate of gateway".to_string();
                assert_eq!(step, Err(HandshakeError::ExportName { message }));
            }
            _ => assert_eq!((step, server.kinds()), (Ok(Step::NeedBytes), vec![REP_ERR_POLICY]), "option {number}"),
        }
    }
}

#[test]
fn tls_that_nobody_asked_for_changes_nothing() {
    let mut server = Server::new(TlsMode::Required);
    server.take(&session(&[])).unwrap();
    server.handshake.tls_started(None);
    assert_eq!(server.take(&sample(OPT_GO)), Ok(Step::NeedBytes));
    assert_eq!(server.kinds(), [REP_ERR_TLS_REQD]);
}

/// Replies of a server, behind its greeting.
fn replies(replies: &[(u32, u32, &[u8])]) -> Vec<u8> {
    let mut bytes = Handshake::greeting().to_vec();
    for (number, kind, data) in replies {
        bytes.put_u64(MAGIC_OPTION_REPLY);
        bytes.put_u32(*number);
        bytes.put_u32(*kind);
        bytes.put_u32(data.len() as u32);
        bytes.put_slice(data);
    }
    bytes
}

/// A client of TLS: its result and its bytes after these of the server.
fn client(bytes: &[u8], cuts: &[usize]) -> (Result<Option<Outcome>, ClientError>, Vec<u8>) {
    let mut client = client::Handshake::new(Aim::Go("s/v".into()), HeaderStyle::Extended, true).over_tls();
    let (mut seen, mut sent) = (Ok(None), BytesMut::new());
    feed(bytes, cuts, |input| {
        seen = client.step(input, &mut sent);
        matches!(seen, Ok(None))
    });
    (seen, sent.to_vec())
}

/// NBD-S3. The name, with the token in it, must not go out in plain text.
#[test]
fn s3_a_client_goes_on_through_tls_or_not_at_all() {
    let asked = session(&[option(OPT_STARTTLS, b"")]);
    let no = |kind, data: &[u8]| client(&replies(&[(OPT_STARTTLS, kind, data)]), &[]);
    assert_eq!(client(&replies(&[]), &[]), (Ok(None), asked.clone()), "before everything else");
    assert_eq!(no(REP_ACK, b""), (Ok(Some(Outcome::StartTls)), asked.clone()));
    let without = |message: &str| Err(ClientError::NoTls { message: message.into() });
    assert_eq!(no(REP_ERR_UNSUP, b"no TLS on this port"), (without("no TLS on this port"), asked.clone()));
    assert_eq!(no(REP_ERR_POLICY, b""), (without("error 2"), asked.clone()));
    let (seen, sent) = no(REP_SERVER, b"");
    assert!(matches!(seen, Err(ClientError::Malformed { .. })), "{seen:?}");
    assert_eq!(sent, asked);
    let error = without("no TLS on this port").unwrap_err();
    assert_eq!(
        error.to_string(),
        "found a server without TLS (no TLS on this port), expected TLS: nothing was sent in plain text"
    );
}

/// NBD-S3. What is behind the agreement could be anyone's answers to what the client will ask.
#[test]
fn s3_a_server_that_says_more_before_tls_is_left() {
    let more = replies(&[(OPT_STARTTLS, REP_ACK, b""), (OPT_EXTENDED_HEADERS, REP_ACK, b"")]);
    assert_eq!(client(&more, &[]).0, Err(ClientError::BehindStartTls { found: 20 }));
}

#[test]
fn a_client_without_tls_is_told_that_it_needs_some() {
    let bytes = replies(&[(OPT_EXTENDED_HEADERS, REP_ERR_TLS_REQD, b"this port demands TLS")]);
    let mut client = client::Handshake::new(Aim::Go("s/v".into()), HeaderStyle::Extended, true);
    let seen = client.step(&mut BytesMut::from(&bytes[..]), &mut BytesMut::new());
    assert_eq!(seen, Err(ClientError::TlsRequired));
}

#[test]
fn both_sides_agree_through_tls() {
    for aim in [Aim::Go("s/v".into()), Aim::GoOldStyle("s/v".into())] {
        let wanted = if matches!(aim, Aim::Go(_)) { HeaderStyle::Extended } else { HeaderStyle::Simple };
        let mut client = client::Handshake::new(aim, HeaderStyle::Extended, true).over_tls();
        let mut server = Handshake::new(TlsMode::Required);
        let (mut to_server, mut to_client) = (BytesMut::new(), BytesMut::from(&Handshake::greeting()[..]));
        let mut upgraded = 0;
        let connected = loop {
            match client.step(&mut to_client, &mut to_server).unwrap() {
                Some(Outcome::Connected(connected)) => break connected,
                Some(Outcome::StartTls) => {
                    upgraded += 1;
                    client.tls_started(&mut to_server);
                }
                None => {}
                other => panic!("{other:?}"),
            }
            match server.step(&mut to_server, &mut to_client).unwrap() {
                Step::NeedBytes => {}
                Step::StartTls => server.tls_started(None),
                Step::Ask(Question::Open(_)) => {
                    server.answer_export(Ok(&facts()), &mut to_client).unwrap();
                }
                other => panic!("{other:?}"),
            }
        };
        assert_eq!((connected.size, connected.style, upgraded), (1 << 30, wanted, 1));
    }
}

proptest! {
    /// Whatever a client sends in plain text, it is not served where TLS is required.
    #[test]
    fn s1_no_plain_bytes_lead_to_an_export(
        numbers in proptest::collection::vec(0u32..14, 0..8),
        tail in proptest::collection::vec(any::<u8>(), 0..30),
        cuts in proptest::collection::vec(any::<usize>(), 0..20),
    ) {
        let options: Vec<Vec<u8>> = numbers.into_iter().map(sample).collect();
        let mut handshake = Handshake::new(TlsMode::Required);
        feed(&[session(&options), tail].concat(), &cuts, |input| {
            let step = handshake.step(input, &mut BytesMut::new());
            assert!(!matches!(step, Ok(Step::Ask(_))), "{step:?}");
            matches!(step, Ok(Step::NeedBytes | Step::StartTls))
        });
    }

    /// NBD-N2 up to the agreement.
    #[test]
    fn s3_cuts_do_not_matter(cuts in proptest::collection::vec(any::<usize>(), 0..20)) {
        let bytes = replies(&[(OPT_STARTTLS, REP_ERR_POLICY, b"not for you")]);
        prop_assert_eq!(client(&bytes, &cuts), client(&bytes, &[]));
    }
}
