//! The memory that a connection holds for replies that its client does not read. Only the test drives the connection
//! here, so its state can be checked.

use super::*;
use crate::budget::Pool;
use crate::memory::MemoryDevice;
use bytes::BytesMut;
use futures_util::FutureExt;
use holdfast_nbd::client::{CommandOut, Connected, Event, ReplyDecoder, RequestOut, encode_request};
use holdfast_nbd::{HeaderStyle, TransmissionFlags};
use tokio::io::{AsyncReadExt, DuplexStream};

const MIB: u64 = 1 << 20;
/// Capacity of the pipe to the client.
const PIPE_BYTES: usize = 4096;
/// The largest reply, or header of a reply, that no charge covers.
const SMALL_BYTES: u64 = 44;
/// The requested length, and the number of extents in it.
const STATUS_BYTES: u64 = 4 * MIB;
const EXTENTS: usize = 1024;

fn limits() -> FrontLimits {
    FrontLimits { connections: 4, connection_bytes: 40 << 20, gateway_bytes: 72 << 20, ..FrontLimits::default() }
}

/// Data and holes alternate, 4 KiB each.
fn device() -> Arc<dyn Device> {
    let device = MemoryDevice::new(8 * MIB);
    for n in 0..EXTENTS as u64 / 2 {
        device.put(n * 8192, &[7; 512]);
    }
    Arc::new(device)
}

fn served(style: HeaderStyle) -> Served {
    Served {
        device: device(),
        read_only: true,
        negotiated: Negotiated { style, allocation: true },
        closed: [CancellationToken::new(), CancellationToken::new()],
        draining: CancellationToken::new(),
        throttles: Throttles::default(),
    }
}

/// The client's side of the protocol, without a socket.
fn decoder(style: HeaderStyle) -> ReplyDecoder {
    ReplyDecoder::new(&Connected {
        size: 8 * MIB,
        flags: TransmissionFlags(TransmissionFlags::HAS_FLAGS),
        style,
        block_sizes: None,
        allocation: Some(1),
        name: None,
        description: None,
    })
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Ask {
    Flush,
    /// A command that does not exist.
    Unknown,
    Status,
    Read,
}

/// Requests with the cookies from 1 on, as if they had arrived right after the handshake.
fn requests(ask: Ask, count: u64, style: HeaderStyle, decoder: &mut ReplyDecoder) -> Input {
    let (len, command) = match ask {
        Ask::Flush | Ask::Unknown => (0, CommandOut::Flush),
        Ask::Status => (STATUS_BYTES, CommandOut::BlockStatus { one: false }),
        Ask::Read => (512, CommandOut::Read { unfragmented: false }),
    };
    let mut input = Input::default();
    for cookie in 1..=count {
        let request = RequestOut { cookie, offset: 0, len, command };
        assert!(decoder.sent(&request));
        let at = input.bytes.len();
        encode_request(&mut input.bytes, style, &request).unwrap();
        if ask == Ask::Unknown {
            // After the magic and the flags.
            input.bytes[at + 6..at + 8].copy_from_slice(&99_u16.to_be_bytes());
        }
    }
    input
}

/// Lets the connection do all it can.
async fn turn(connection: &mut Connection<'_, DuplexStream>) {
    poll_fn(|cx| Poll::Ready(connection.poll(cx))).await.unwrap();
    // The runtime stops giving turns to a task that never pauses.
    tokio::task::yield_now().await;
}

/// Floods a connection whose client does not read. `check` gets the number of waiting bytes and of bytes drawn from the
/// pool. The client reads afterwards.
async fn flood(ask: Ask, count: u64, style: HeaderStyle, check: impl FnOnce(u64, u64)) {
    let (limits, measures) = (limits(), Measures::new());
    let pool = Pool::new(&limits);
    let (mut near, far) = tokio::io::duplex(PIPE_BYTES);
    let mut line = Line::plain(far, |_| None);
    let mut decoder = decoder(style);
    let input = requests(ask, count, style, &mut decoder);
    let ledger = Ledger::new(&limits, pool.clone());
    let mut connection = Connection::new(&mut line, input, served(style), &limits, ledger, &measures);
    for _ in 0..100 {
        turn(&mut connection).await;
    }
    check(connection.replies.len() as u64, pool.drawn_bytes());

    let (mut got, mut next, mut idle) = (BytesMut::new(), 1, 0);
    while next <= count {
        turn(&mut connection).await;
        got.reserve(PIPE_BYTES);
        match near.read_buf(&mut got).now_or_never() {
            Some(read) => {
                assert!(read.unwrap() > 0);
                idle = 0;
            }
            None => idle += 1,
        }
        assert!(idle < 100, "{ask:?}, {style:?}: a client that reads gets only {next} of {count}");
        while let Some(event) = decoder.next(&mut got).unwrap() {
            match event {
                Event::Status { extents, .. } => assert_eq!(extents.len(), EXTENTS),
                Event::Data { data, .. } => assert_eq!(data[..], [7_u8; 512]),
                Event::Hole { .. } => panic!("{ask:?}, {style:?}: a hole where data is"),
                Event::Done { cookie, result } => {
                    let expected = if ask == Ask::Unknown { Err(Errno::Invalid) } else { Ok(()) };
                    assert_eq!((cookie, result), (next, expected), "{ask:?}, {style:?}");
                    next += 1;
                }
            }
        }
    }
    assert_eq!((connection.replies.len(), pool.drawn_bytes()), (0, 0), "{ask:?}, {style:?}");
}

const STYLES: [HeaderStyle; 3] = [HeaderStyle::Simple, HeaderStyle::Structured, HeaderStyle::Extended];

#[tokio::test]
async fn p2_replies_that_nobody_paid_for_are_bounded() {
    let most = limits().unpaid_bytes();
    for style in STYLES {
        for ask in [Ask::Flush, Ask::Unknown] {
            flood(ask, 10_000, style, |held, drawn| {
                assert!((most..most + SMALL_BYTES).contains(&held), "{ask:?}, {style:?}: {held} bytes wait");
                assert_eq!(drawn, 0);
            })
            .await;
        }
    }
}

/// Each answer has 8 or 16 KiB here, and could have 128 KiB.
#[tokio::test]
async fn c3_statuses_are_paid_for() {
    for style in [HeaderStyle::Structured, HeaderStyle::Extended] {
        flood(Ask::Status, 600, style, |held, drawn| {
            assert!((30 * MIB..=40 * MIB).contains(&drawn), "{style:?}: {drawn} bytes are paid for");
            let most = drawn + limits().floor_bytes() + limits().unpaid_bytes() + SMALL_BYTES;
            assert!((MIB..most).contains(&held), "{style:?}: {held} bytes wait");
            // The connection may hold 320 of them.
            assert!(held < 321 * (EXTENTS as u64 * 16 + 40), "{style:?}: {held} bytes wait");
        })
        .await;
    }
}

/// Paid bytes do not count. Otherwise the connection would wait for its client long before it holds its limit.
#[tokio::test]
async fn p2_only_the_heads_of_reads_count() {
    let most = limits().unpaid_bytes();
    for style in STYLES {
        flood(Ask::Read, 10_000, style, |held, _| {
            // Headers of 16 to 40 bytes.
            assert!(held >= most / 40 * 512, "{style:?}: {held} bytes wait");
            assert!(held < most / 16 * (512 + 16) + 512 + SMALL_BYTES, "{style:?}: {held} bytes wait");
        })
        .await;
    }
}
