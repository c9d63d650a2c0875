//! NBD, the server's side: what any client that reaches the port sends.

use bytes::BytesMut;
use holdfast_nbd::client::{self, Aim, CommandOut, Outcome, RequestOut, encode_request};
use holdfast_nbd::server::{
    self, Command, Decoded, ExportFacts, HandshakeError, Negotiated, ProtocolError, Question, RefusalReason, Request,
    RequestDecoder, Step, TlsMode,
};
use holdfast_nbd::{ExportName, HeaderStyle};
use holdfast_types::{Name, Token};

pub(super) const STYLES: [HeaderStyle; 3] = [HeaderStyle::Simple, HeaderStyle::Structured, HeaderStyle::Extended];

/// The device's size in bytes.
const DEVICE: u64 = 1 << 30;

pub(super) fn style(selector: u8) -> HeaderStyle {
    STYLES[usize::from(selector) % STYLES.len()]
}

/// In how many bytes at a time an input comes the second time (NBD-N2).
pub(super) fn piece_bytes(selector: u8) -> usize {
    1 + usize::from(selector % 61)
}

type Ended = Result<Option<Negotiated>, HandshakeError>;

/// Lets a server read what is there. `None`: it waits for more.
pub(super) fn attend(server: &mut server::Handshake, input: &mut BytesMut, out: &mut BytesMut) -> Option<Ended> {
    let facts = ExportFacts { size: DEVICE, read_only: false, description: "a tank".into() };
    loop {
        let answered = match server.step(input, out) {
            Err(error) => return Some(Err(error)),
            Ok(Step::NeedBytes) => return None,
            Ok(Step::Aborted) => return Some(Ok(None)),
            Ok(Step::StartTls) => {
                server.tls_started(None);
                Ok(None)
            }
            Ok(Step::Ask(Question::List)) => {
                server.answer_list([("tank/a", "first"), ("tank/b", "")], out);
                Ok(None)
            }
            Ok(Step::Ask(Question::Describe(name) | Question::Open(name))) if name.volume.as_str() == "gone" => {
                server.answer_export(Err((RefusalReason::Unknown, "no such volume")), out)
            }
            Ok(Step::Ask(Question::Describe(_) | Question::Open(_))) => server.answer_export(Ok(&facts), out),
        };
        match answered {
            Ok(None) => {}
            ended => return Some(ended),
        }
    }
}

fn serve(tls: TlsMode, stream: &[u8], piece: usize) -> (BytesMut, Option<Ended>) {
    let mut server = server::Handshake::new(tls);
    let (mut input, mut out) = (BytesMut::new(), BytesMut::new());
    for piece in stream.chunks(piece) {
        input.extend_from_slice(piece);
        if let Some(ended) = attend(&mut server, &mut input, &mut out) {
            return (out, Some(ended));
        }
    }
    (out, None)
}

pub(super) fn handshake(data: &[u8]) -> bool {
    let [selector, piece, stream @ ..] = data else { return false };
    let tls = match selector % 3 {
        0 => TlsMode::Off,
        1 => TlsMode::Optional,
        _ => TlsMode::Required,
    };
    let whole = serve(tls, stream, usize::MAX);
    let pieces = serve(tls, stream, piece_bytes(*piece));
    // With TLS the cut shows what came before the upgrade (NBD-S2).
    if tls == TlsMode::Off {
        assert_eq!(whole, pieces, "NBD-N2");
    }
    matches!(whole.1, Some(Ok(_)))
}

/// What client and server send in a whole handshake.
pub(super) fn conversation(aim: Aim, wanted: HeaderStyle) -> (Vec<u8>, Vec<u8>) {
    let (mut client, mut server) = (client::Handshake::new(aim, wanted, true), server::Handshake::new(TlsMode::Off));
    let (mut asked, mut answered) = (Vec::new(), server::Handshake::greeting().to_vec());
    let (mut to_client, mut to_server) = (BytesMut::from(&answered[..]), BytesMut::new());
    // Far more turns than any handshake has.
    for _ in 0..32 {
        let mut out = BytesMut::new();
        let outcome: Result<Option<Outcome>, _> = client.step(&mut to_client, &mut out);
        asked.extend_from_slice(&out);
        to_server.extend_from_slice(&out);
        if !matches!(outcome, Ok(None)) {
            break;
        }
        let mut out = BytesMut::new();
        let _ = attend(&mut server, &mut to_server, &mut out);
        answered.extend_from_slice(&out);
        to_client.extend_from_slice(&out);
    }
    (asked, answered)
}

/// By number, as the client's target chooses them.
pub(super) fn aims() -> [Aim; 4] {
    [Aim::Go("tank/a".into()), Aim::GoOldStyle("tank/a".into()), Aim::Info("tank/a".into()), Aim::List]
}

pub(super) fn handshakes() -> Vec<Vec<u8>> {
    let all = aims().into_iter().flat_map(|aim| STYLES.map(|style| conversation(aim.clone(), style).0));
    all.map(|asked| [&[0, 6][..], &asked].concat()).collect()
}

fn taken(style: HeaderStyle, allocation: bool, stream: &[u8], piece: usize) -> (Vec<Request>, Option<ProtocolError>) {
    let mut decoder = RequestDecoder::new(style, allocation);
    let (mut input, mut taken) = (BytesMut::new(), Vec::new());
    for piece in stream.chunks(piece) {
        input.extend_from_slice(piece);
        loop {
            match decoder.next(&mut input) {
                Ok(Decoded::Request(request)) => taken.push(request),
                Ok(Decoded::Need(bytes)) => {
                    assert!(bytes > 0, "it needs nothing, and has taken nothing");
                    break;
                }
                Err(error) => return (taken, Some(error)),
            }
        }
    }
    (taken, None)
}

/// The bytes of a request that is not refused.
fn encoded(style: HeaderStyle, request: &Request) -> Option<BytesMut> {
    let command = match &request.command {
        Command::Read { unfragmented } => CommandOut::Read { unfragmented: *unfragmented },
        Command::Write { fua, .. } => CommandOut::Write { fua: *fua },
        Command::Zero { punch, fast, fua } => CommandOut::Zero { punch: *punch, fast: *fast, fua: *fua },
        Command::Trim { fua } => CommandOut::Trim { fua: *fua },
        Command::Flush => CommandOut::Flush,
        Command::Cache => CommandOut::Cache,
        Command::BlockStatus { one } => CommandOut::BlockStatus { one: *one },
        Command::Disconnect => CommandOut::Disconnect,
        Command::Bad(_) => return None,
    };
    let Request { cookie, offset, len, .. } = *request;
    let mut out = BytesMut::new();
    encode_request(&mut out, style, &RequestOut { cookie, offset, len, command }).ok()?;
    if let Command::Write { data, .. } = &request.command {
        out.extend_from_slice(data);
    }
    Some(out)
}

pub(super) fn requests(data: &[u8]) -> bool {
    let [selector, piece, stream @ ..] = data else { return false };
    let (style, allocation) = (style(*selector), selector & 0x40 != 0);
    let whole = taken(style, allocation, stream, usize::MAX);
    assert_eq!(whole, taken(style, allocation, stream, piece_bytes(*piece)), "NBD-N2");
    let (requests, _) = &whole;
    for request in requests {
        let _ = request.check(DEVICE, false, style);
        let Some(mut again) = encoded(style, request) else { continue };
        let decoded = RequestDecoder::new(style, allocation).next(&mut again);
        assert_eq!(decoded, Ok(Decoded::Request(request.clone())));
    }
    let leaves = requests.iter().any(|request| request.command == Command::Disconnect);
    let (read, left) = stream.split_at(stream.len() / 2);
    assert_eq!(RequestDecoder::new(style, allocation).ends_with_disconnect(read, left), leaves);
    requests.iter().any(|request| !matches!(request.command, Command::Bad(_)))
}

pub(super) fn all_requests() -> Vec<Vec<u8>> {
    let commands = [
        CommandOut::Read { unfragmented: false },
        CommandOut::Write { fua: true },
        CommandOut::Zero { punch: true, fast: false, fua: false },
        CommandOut::Trim { fua: false },
        CommandOut::Flush,
        CommandOut::Cache,
        CommandOut::BlockStatus { one: true },
        CommandOut::Disconnect,
    ];
    let seed = |(selector, style): (u8, HeaderStyle)| {
        let mut out = BytesMut::from(&[0x40 | selector, 9][..]);
        for (cookie, command) in (1..).zip(commands) {
            // A length of 32 bits fits all headers.
            let _ = encode_request(&mut out, style, &RequestOut { cookie, offset: 4096, len: 512, command });
            if matches!(command, CommandOut::Write { .. }) {
                out.extend_from_slice(&[7; 512]);
            }
        }
        out.to_vec()
    };
    // 0x40 is 1 modulo 3: a selector that means the style together with it.
    [2, 0, 1].into_iter().zip(STYLES).map(seed).collect()
}

pub(super) fn export_name(data: &[u8]) -> bool {
    let Ok(text) = std::str::from_utf8(data) else { return false };
    let Ok(name) = text.parse::<ExportName>() else { return false };
    assert_eq!(name.to_wire().parse::<ExportName>().as_ref(), Ok(&name));
    // Names have none of these letters: what is shown has no token.
    assert!(!name.to_string().contains(['?', '=']), "{name}");
    true
}

pub(super) fn export_names() -> Vec<Vec<u8>> {
    let token = Token(0xfeed).to_text();
    let plain = Name::new("tank").and_then(|set| Ok(ExportName::plain(set, Name::new("a")?).to_wire()));
    let mut all = vec![format!("tank/a@monday?token={token}"), format!("tank/a?token={token}&conn=3&gen=17")];
    all.extend(plain);
    all.into_iter().map(String::into_bytes).collect()
}
