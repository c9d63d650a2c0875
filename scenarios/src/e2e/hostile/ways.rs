//! The bytes of hostile clients: what each sends at first, and what it goes on with. HTTP/2 is written by hand: a
//! library would keep to the protocol.

/// What a client goes on with.
#[derive(Clone, Debug)]
pub(super) enum Then {
    /// Nothing: it keeps its connection.
    Nothing,
    /// These bytes, one each second, again and again.
    ByteBySecond(Vec<u8>),
    /// These bytes again and again, until so many were sent.
    Endless { chunk: Vec<u8>, most: u64 },
}

/// How a client behaves.
#[derive(Clone, Debug)]
pub(super) struct Way {
    pub(super) name: &'static str,
    pub(super) opening: Vec<u8>,
    pub(super) then: Then,
}

/// More than any request may have.
const BODY_BYTES: u64 = 65 << 20;
const CHUNK_BYTES: usize = 16 << 10;
/// A thousand times what a connection may have at a time.
const STREAMS: u32 = 2000;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const DATA: u8 = 0;
const HEADERS: u8 = 1;
const SETTINGS: u8 = 4;
const CONTINUATION: u8 = 9;
const END_HEADERS: u8 = 4;

fn way(name: &'static str, opening: impl Into<Vec<u8>>, then: Then) -> Way {
    Way { name, opening: opening.into(), then }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap_or(0).to_be_bytes();
    [&length[1..], &[kind, flags], &stream.to_be_bytes(), payload].concat()
}

/// A header that is not indexed, in plain letters; both parts are shorter than 127 bytes.
fn header(name: &str, value: &str) -> Vec<u8> {
    let length = |text: &str| vec![u8::try_from(text.len()).unwrap_or(126)];
    [vec![0], length(name), name.into(), length(value), value.into()].concat()
}

/// The headers of a gRPC call.
fn call(path: &str) -> Vec<u8> {
    let pseudo = [header(":method", "POST"), header(":scheme", "http"), header(":path", path)].concat();
    [pseudo, header("content-type", "application/grpc"), header("te", "trailers")].concat()
}

fn http2(frames: &[Vec<u8>]) -> Vec<u8> {
    [PREFACE, &frame(SETTINGS, 0, 0, &[]), &frames.concat()].concat()
}

/// At a door for gRPC, of which `path` is a call.
pub(super) fn grpc(path: &str) -> Vec<Way> {
    let head = call(path);
    let long = header("x-hostile", &"a".repeat(100));
    let headers = long.repeat(CHUNK_BYTES / long.len());
    // gRPC's own head of a message: not compressed, 65 MiB.
    let message = [&[0_u8][..], &u32::try_from(BODY_BYTES).unwrap_or(0).to_be_bytes()].concat();
    let streams: Vec<Vec<u8>> = (0..STREAMS).map(|n| frame(HEADERS, END_HEADERS, 2 * n + 1, &head)).collect();
    vec![
        way("idle", vec![], Then::Nothing),
        way("one byte a second", vec![], Then::ByteBySecond(http2(&[frame(HEADERS, END_HEADERS, 1, &head)]))),
        // A ClientHello of 512 bytes that does not go on.
        way("a TLS handshake without an end", [0x16_u8, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3], Then::Nothing),
        way(
            "headers without an end",
            http2(&[frame(HEADERS, 0, 1, &head)]),
            Then::Endless { chunk: frame(CONTINUATION, 0, 1, &headers), most: u64::MAX },
        ),
        way(
            "a body of 65 MiB",
            http2(&[frame(HEADERS, END_HEADERS, 1, &head), frame(DATA, 0, 1, &message)]),
            Then::Endless { chunk: frame(DATA, 0, 1, &[0; CHUNK_BYTES]), most: BODY_BYTES },
        ),
        way("2000 streams", http2(&streams), Then::Nothing),
    ]
}

/// At the door between gateways.
pub(super) fn peer() -> Vec<Way> {
    let append = [&b"HOLDFAST-APPEND\n"[..], &[1, 0, 0, 0, 0, 0x40, 0, 0]].concat();
    let mut all = grpc("/holdfast.peer.v1.Peer/Snapshot");
    all.push(way("an append stream without its head", append, Then::Endless { chunk: vec![b'a'], most: 8 << 10 }));
    all
}

/// At a door for HTTP.
pub(super) fn http() -> Vec<Way> {
    let line = format!("X-Hostile: {}\r\n", "a".repeat(1000)).into_bytes();
    let body = format!("POST /livez HTTP/1.1\r\nHost: g1\r\nContent-Length: {BODY_BYTES}\r\n\r\n");
    vec![
        way("idle", vec![], Then::Nothing),
        way("one byte a second", vec![], Then::ByteBySecond(b"GET /metrics HTTP/1.1\r\nX-Hostile: aaaa".to_vec())),
        way(
            "headers without an end",
            *b"GET / HTTP/1.1\r\nHost: g1\r\n",
            Then::Endless { chunk: line, most: u64::MAX },
        ),
        way("a body of 65 MiB", body, Then::Endless { chunk: vec![b'a'; CHUNK_BYTES], most: BODY_BYTES }),
    ]
}

/// At a door for NBD.
pub(super) fn nbd() -> Vec<Way> {
    // NBD_OPT_LIST, whose data no server wants, of the length that is skipped at most.
    let option = [&b"IHAVEOPT"[..], &3_u32.to_be_bytes(), &(1_u32 << 20).to_be_bytes(), &[0; 1 << 20]].concat();
    vec![
        way("idle", vec![], Then::Nothing),
        way("one byte a second", vec![], Then::ByteBySecond(b"\0\0\0\x03IHAVEOPT\0\0\0\x03\0\0\0\0".to_vec())),
        way("options without an end", [0_u8, 0, 0, 3], Then::Endless { chunk: option, most: u64::MAX }),
        way("no option", [0_u8, 0, 0, 3], Then::Nothing),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_has_its_length_before_it() {
        assert_eq!(frame(HEADERS, END_HEADERS, 0x0102, b"ab"), [0, 0, 2, 1, 4, 0, 0, 1, 2, b'a', b'b']);
        assert_eq!(header("te", "trailers"), b"\0\x02te\x08trailers");
        let all = [grpc("/a.b/C"), peer(), http(), nbd()].concat();
        assert!(all.iter().all(|way| !matches!(&way.then, Then::Endless { chunk, .. } if chunk.is_empty())));
        // HTTP/2 allows frames of 16 KiB before the other side says more.
        let frames = grpc("/a.b/C").into_iter().filter_map(|way| match way.then {
            Then::Endless { chunk, .. } => Some(chunk.len() - 9),
            _ => None,
        });
        assert!(frames.into_iter().all(|length| length <= CHUNK_BYTES));
    }
}
