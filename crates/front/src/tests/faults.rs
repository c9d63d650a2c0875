//! Clients that die, flood, stall or send garbage, and connections that we close: no other client may notice.

use super::gate::GateDevice;
use super::harness::{Broken, Client, front, pipe, pipe_of, soon, until};
use crate::device::{ConnInfo, DeviceError, Peer};
use crate::memory::{MemoryDevice, MemoryExports};
use crate::shared::{ServedConnection, Shared};
use crate::{Front, FrontLimits};
use holdfast_nbd::client::CommandOut;
use holdfast_nbd::{Errno, ExportName, HeaderStyle};
use holdfast_types::{Epoch, Name};
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio_util::sync::CancellationToken;

const MIB: u64 = 1 << 20;
const READ: CommandOut = CommandOut::Read { unfragmented: false };
const WRITE: CommandOut = CommandOut::Write { fua: false };

fn memory() -> Arc<MemoryExports> {
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", Arc::new(MemoryDevice::new(256 * MIB)), Epoch(1), false);
    exports
}

/// Reads to the end of the stream; an aborted connection counts as its end.
async fn drained(socket: &mut (impl tokio::io::AsyncRead + Unpin)) -> Vec<u8> {
    let mut all = Vec::new();
    let _ = soon(socket.read_to_end(&mut all)).await;
    all
}

#[tokio::test]
async fn r8_what_is_declared_closed_is_closed_unanswered() {
    let (device, mut begun) = GateDevice::new(MIB);
    let exports = Arc::new(MemoryExports::default());
    let closed = exports.put("s/v", device.clone(), Epoch(1), false);
    let front = front(FrontLimits { connection_requests: 1, ..FrontLimits::default() }, &exports);
    let mut client = Client::connect(pipe(&front), "s/v").await;
    client.send(0, 512, WRITE, &[1; 512]).await.unwrap();
    client.send(512, 512, WRITE, &[1; 512]).await.unwrap();
    let running = soon(begun.recv()).await.unwrap();
    closed.cancel();
    client.closed_unanswered().await;
    soon(running.dropped()).await;
    assert!(begun.try_recv().is_err(), "CONN-C2: a request was begun after the connection was declared closed");
    // A connection made while the token is cancelled gets no request through either.
    if let Ok(mut late) = soon(Client::connect_as(pipe(&front), "s/v", HeaderStyle::Simple)).await {
        let _ = late.send(0, 512, WRITE, &[1; 512]).await;
        late.closed_unanswered().await;
    }
    assert!(begun.try_recv().is_err());
}

#[tokio::test]
async fn c2_also_what_was_read_already_does_not_begin() {
    let (device, mut begun) = GateDevice::new(MIB);
    let exports = Arc::new(MemoryExports::default());
    // The first request closes the connection while the others are in its buffer, from the same read.
    exports.put_closed_by("s/v", device.clone(), Epoch(1), device.trap.clone());
    let front = front(FrontLimits::default(), &exports);
    let mut client = Client::connect(pipe(&front), "s/v").await;
    for _ in 0..3 {
        client.send(0, 512, WRITE, &[1; 512]).await.unwrap();
    }
    client.closed_unanswered().await;
    assert!(begun.try_recv().is_ok());
    assert!(begun.try_recv().is_err(), "CONN-C2");
}

#[tokio::test]
async fn c2_nor_is_what_waited_for_the_store_asked_for_again() {
    const READS: usize = 4;
    let (device, mut begun) = GateDevice::new(MIB);
    let exports = Arc::new(MemoryExports::default());
    // The first read that is tried again closes the connection. The others are due at the same time.
    device.spared.store(READS, Ordering::Relaxed);
    exports.put_closed_by("s/v", device.clone(), Epoch(1), device.trap.clone());
    let limits = FrontLimits { unreadable_pause: Duration::from_millis(1), ..FrontLimits::default() };
    let front = front(limits, &exports);
    let mut client = Client::connect(pipe(&front), "s/v").await;
    let mut running = Vec::new();
    for _ in 0..READS {
        client.send(0, 512, READ, &[]).await.unwrap();
        running.push(soon(begun.recv()).await.unwrap());
    }
    for read in running {
        assert!(read.go(Err(DeviceError::Unreadable)));
    }
    client.closed_unanswered().await;
    assert!(begun.try_recv().is_ok());
    assert!(begun.try_recv().is_err(), "CONN-C2");
}

/// CONN-C6: a planned move. Requests that have begun are answered, nothing else begins, and then the connection ends.
#[tokio::test]
async fn what_is_drained_is_answered_and_then_let_go() {
    let (device, mut begun) = GateDevice::new(MIB);
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", device, Epoch(1), false);
    let front = front(FrontLimits { connection_requests: 1, ..FrontLimits::default() }, &exports);
    let mut client = Client::connect(pipe(&front), "s/v").await;
    let mut idle = Client::connect(pipe(&front), "s/v").await;
    let first = client.send(0, 512, WRITE, &[1; 512]).await.unwrap();
    client.send(512, 512, WRITE, &[1; 512]).await.unwrap();
    let running = soon(begun.recv()).await.unwrap();
    exports.drain("s/v");
    idle.closed_unanswered().await;
    assert!(running.go(Ok(())), "a request that has begun must not be dropped");
    let (cookie, answer) = soon(client.answer()).await.expect("an answer to the request that has begun");
    assert_eq!((cookie, answer), (first, Ok(Vec::new())));
    client.closed_unanswered().await;
    assert!(begun.try_recv().is_err(), "CONN-C6: a request was begun after the drain had");
}

#[tokio::test]
async fn r8_closing_the_front_or_one_connection() {
    let (device, mut begun) = GateDevice::new(MIB);
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", device, Epoch(1), false);
    let front = front(FrontLimits::default(), &exports);
    let address = front.listen_tcp(SocketAddr::from(([127, 0, 0, 1], 0)), None).await.unwrap();
    let mut first = Client::connect(TcpStream::connect(address).await.unwrap(), "s/v").await;
    let mut second = Client::connect(TcpStream::connect(address).await.unwrap(), "s/v").await;
    first.send(0, 512, READ, &[]).await.unwrap();
    let running = soon(begun.recv()).await.unwrap();
    let first_listed = front.connections().into_iter().min_by_key(|connection| connection.info.id).unwrap();
    assert!(matches!(first_listed.info.peer, Peer::Tcp(_)));
    first_listed.close();
    first.closed_unanswered().await;
    soon(running.dropped()).await;
    second.send(0, 512, READ, &[]).await.unwrap();
    let running = soon(begun.recv()).await.unwrap();
    soon(front.close()).await;
    second.closed_unanswered().await;
    soon(running.dropped()).await;
    assert!(TcpStream::connect(address).await.is_err(), "the listener is closed");
}

#[tokio::test]
async fn a_client_that_dies_leaves_nothing_behind() {
    let (device, mut begun) = GateDevice::new(64 * MIB);
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", device.clone(), Epoch(1), false);
    let front = front(FrontLimits::default(), &exports);
    // In the middle of a header, of a small payload, of a large one.
    for (len, part) in [(0, 0), (4096, 100), (16 * MIB, 1 << 16)] {
        let mut client = Client::connect(pipe(&front), "s/v").await;
        if len == 0 {
            client.socket.write_all(b"\x25\x60\x95").await.unwrap();
        } else {
            soon(client.send(0, len, WRITE, &vec![1; part])).await.unwrap();
        }
        drop(client);
        until(|| front.connections().is_empty()).await;
    }
    assert!(begun.try_recv().is_err(), "half a write must not begin");
    // While operations run and replies are half sent.
    let mut client = Client::connect(pipe_of(&front, 1024), "s/v").await;
    for _ in 0..10 {
        client.send(0, MIB, READ, &[]).await.unwrap();
    }
    let mut running = Vec::new();
    for _ in 0..10 {
        running.push(soon(begun.recv()).await.unwrap());
    }
    for operation in running.drain(..5) {
        assert!(operation.go(Ok(())));
    }
    drop(client);
    for operation in running {
        soon(operation.dropped()).await;
    }
    until(|| front.connections().is_empty()).await;
    until(|| front.shared_bytes_held() == 0).await;
}

#[tokio::test]
async fn garbage_ends_only_its_own_connection() {
    let front = front(FrontLimits::default(), &memory());
    let address = front.listen_tcp(SocketAddr::from(([127, 0, 0, 1], 0)), None).await.unwrap();
    let mut good = Client::connect(TcpStream::connect(address).await.unwrap(), "s/v").await;
    let seeds: [&[u8]; 5] = [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\0\0\0\x03IHAVEOPT\0\0\0\x07\xff\xff\xff\xff",
        &[0; 100],
        &[0xff; 40],
        b"\0\0\0\x03IHAVEOPTX",
    ];
    for (round, seed) in seeds.iter().cycle().take(50).enumerate() {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let _ = socket.write_all(seed).await;
        let _ = socket.shutdown().await;
        assert!(drained(&mut socket).await.starts_with(b"NBDMAGIC"));
        // The same after a handshake.
        let mut client = Client::connect(TcpStream::connect(address).await.unwrap(), "s/v").await;
        let _ = client.socket.write_all(&[seed, &[0x99; 64][..]].concat()).await;
        client.closed_unanswered().await;
        assert_eq!(good.write(round as u64 * 512, &[round as u8; 512]).await, Ok(vec![]));
        assert_eq!(good.read(round as u64 * 512, 512).await, Ok(vec![round as u8; 512]));
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flood_is_bounded_and_disturbs_nobody() {
    let limits = FrontLimits { connections: 16, gateway_bytes: 96 * MIB, ..FrontLimits::default() };
    let shared = limits.shared_bytes();
    let front = front(limits, &memory());
    let address = front.listen_tcp(SocketAddr::from(([127, 0, 0, 1], 0)), None).await.unwrap();
    let mut good = Client::connect(TcpStream::connect(address).await.unwrap(), "s/v").await;
    assert_eq!(good.write(0, &[5; 8192]).await, Ok(vec![]));
    // The clients ask for far more than they read, and announce payloads that never come.
    let mut floods = Vec::new();
    for n in 0..10u64 {
        let mut flood = Client::connect(TcpStream::connect(address).await.unwrap(), "s/v").await;
        for _ in 0..50 {
            flood.send((64 + n) * MIB, 4 * MIB, READ, &[]).await.unwrap();
            flood.send(0, 32 * MIB, WRITE, &[]).await.unwrap();
        }
        floods.push(flood);
    }
    for n in 0..200u64 {
        assert!(front.shared_bytes_held() <= shared, "CONN-C3");
        assert_eq!(good.write(8192 + n * 4096, &[n as u8; 4096]).await, Ok(vec![]));
        assert_eq!(good.read(4096, 4096).await, Ok(vec![5; 4096]));
    }
    // A client that connects now is served too.
    let mut late = Client::connect(TcpStream::connect(address).await.unwrap(), "s/v").await;
    assert_eq!(late.read(0, 8192).await, Ok(vec![5; 8192]));
    drop(floods);
    until(|| front.connections().len() <= 2).await;
    // When the flood is over, it holds nothing.
    until(|| front.shared_bytes_held() == 0).await;
}

#[tokio::test]
async fn replies_are_paid_for_until_they_are_sent() {
    let front = front(FrontLimits::default(), &memory());
    let mut client = Client::connect(pipe_of(&front, 4096), "s/v").await;
    assert_eq!(client.write(0, &vec![7; 8 * MIB as usize]).await, Ok(vec![]));
    until(|| front.shared_bytes_held() == 0).await;
    client.send(0, 8 * MIB, READ, &[]).await.unwrap();
    until(|| front.shared_bytes_held() != 0).await;
    // The device has answered long ago. Replies that do not fit the pipe wait here.
    for _ in 0..100 {
        tokio::task::yield_now().await;
        assert_eq!(front.shared_bytes_held(), 8 * MIB, "CONN-C3");
    }
    assert_eq!(soon(client.answer()).await.unwrap().1, Ok(vec![7; 8 * MIB as usize]));
    assert_eq!(client.read(0, 512).await, Ok(vec![7; 512]), "the front has noticed that everything was sent");
    until(|| front.shared_bytes_held() == 0).await;
}

/// BUDGET-P2: also for requests that hold nothing, so that nothing pays for their replies. A client that reads late
/// gets every reply.
#[tokio::test]
async fn a_flood_of_small_requests_is_bounded_and_disturbs_nobody() {
    const REQUESTS: u64 = 10_000;
    let front = front(FrontLimits::default(), &memory());
    let mut good = Client::connect(pipe(&front), "s/v").await;
    assert_eq!(good.write(0, &[5; 8192]).await, Ok(vec![]));
    let flush = (0, 0, CommandOut::Flush);
    let wrong = (100, 512, CommandOut::Trim { fua: false });
    let status = (0, 4096, CommandOut::BlockStatus { one: true });
    let mut floods = Vec::new();
    for style in [HeaderStyle::Simple, HeaderStyle::Structured, HeaderStyle::Extended] {
        for (offset, len, command) in [flush, wrong, status] {
            let mut flood = soon(Client::connect_as(pipe_of(&front, 4096), "s/v", style)).await.unwrap();
            let rest = flood.flood(REQUESTS, offset, len, command).await;
            assert!(!rest.is_empty(), "CONN-C3: {REQUESTS} of {command:?} were accepted, {style:?}");
            // Block status needs structured replies.
            let refused = command == wrong.2 || (command == status.2 && style == HeaderStyle::Simple);
            floods.push((flood, rest, if refused { Err(Errno::Invalid) } else { Ok(vec![]) }));
        }
    }
    assert_eq!(good.write(8192, &[6; 4096]).await, Ok(vec![]));
    assert_eq!(good.read(4096, 4096).await, Ok(vec![5; 4096]));
    for (mut flood, rest, expected) in floods {
        soon(flood.send_rest(rest)).await;
        for cookie in 1..=REQUESTS {
            assert_eq!(soon(flood.answer()).await.unwrap(), (cookie, expected.clone()));
        }
    }
    assert_eq!(good.read(8192, 4096).await, Ok(vec![6; 4096]));
    until(|| front.shared_bytes_held() == 0).await;
}

/// BUDGET-P2: a retried read has a reply as well.
#[tokio::test]
async fn nothing_is_asked_again_while_nobody_takes_the_replies() {
    const REQUESTS: u64 = 10_000;
    let (device, mut begun) = GateDevice::new(MIB);
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", device, Epoch(1), false);
    let front = front(FrontLimits { unreadable_pause: Duration::from_millis(20), ..FrontLimits::default() }, &exports);
    let mut client = Client::connect(pipe_of(&front, 4096), "s/v").await;
    let damaged = client.send(0, 4096, READ, &[]).await.unwrap();
    let running = soon(begun.recv()).await.unwrap();
    let rest = client.flood(REQUESTS, 100, 512, CommandOut::Trim { fua: false }).await;
    assert!(!rest.is_empty());
    assert!(running.go(Err(DeviceError::Unreadable)));
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(begun.try_recv().is_err(), "the read was retried although its answer would have to wait");
    soon(client.send_rest(rest)).await;
    for n in 1..=REQUESTS {
        assert_eq!(soon(client.answer()).await.unwrap(), (damaged + n, Err(Errno::Invalid)));
    }
    let running = soon(begun.recv()).await.unwrap();
    assert_eq!((running.what, running.offset), ("read", 0));
    assert!(running.go(Ok(())));
    assert_eq!(soon(client.answer()).await.unwrap(), (damaged, Ok(vec![0; 4096])));
}

#[tokio::test]
async fn a_long_run_of_small_requests() {
    let front = front(FrontLimits::default(), &memory());
    let mut client = Client::connect(pipe_of(&front, 1 << 20), "s/v").await;
    // More requests than one turn handles; all of them arrive before the first is handled.
    client.send_flushes(5000).await;
    for n in 0..5000 {
        assert_eq!(soon(client.answer()).await.unwrap(), (n + 1, Ok(vec![])));
    }
}

#[tokio::test]
async fn who_stalls_is_closed() {
    let limits = FrontLimits { stall_timeout: Duration::from_millis(100), ..FrontLimits::default() };
    let front = front(limits, &memory());
    let mut idle = Client::connect(pipe(&front), "s/v").await;
    // A payload that does not arrive.
    let mut sender = Client::connect(pipe(&front), "s/v").await;
    sender.send(0, 16 * MIB, WRITE, &[1; 1000]).await.unwrap();
    sender.closed_unanswered().await;
    // Replies that nobody reads.
    let mut taker = Client::connect(pipe(&front), "s/v").await;
    idle.write(0, &vec![7; 2 * MIB as usize]).await.unwrap();
    taker.send(0, 2 * MIB, READ, &[]).await.unwrap();
    until(|| front.connections().len() <= 1).await;
    assert_eq!(idle.read(0, 512).await, Ok(vec![7; 512]), "an idle client may stay connected for ever");
}

#[tokio::test]
async fn handshakes_that_do_not_end() {
    let limits = FrontLimits { handshake_timeout: Duration::from_millis(200), ..FrontLimits::default() };
    let slow = front(limits, &memory());
    let mut socket = pipe(&slow);
    socket.write_all(&[0, 0]).await.unwrap();
    assert_eq!(drained(&mut socket).await.len(), 18, "the greeting, then the end of the stream");

    let patient = Duration::from_secs(3600);
    // Each option has its own time, and all of them together have theirs.
    let limits = FrontLimits {
        handshake_total: Duration::from_millis(300),
        handshake_timeout: patient,
        ..FrontLimits::default()
    };
    let mut socket = pipe(&self::front(limits, &memory()));
    socket.write_all(&[0, 0]).await.unwrap();
    assert_eq!(drained(&mut socket).await.len(), 18, "a limit for the whole");

    let limits = FrontLimits { handshakes: 3, handshake_timeout: patient, ..FrontLimits::default() };
    let few = front(limits, &memory());
    let mut waiting: Vec<_> = (0..3).map(|_| pipe(&few)).collect();
    for socket in &mut waiting {
        let mut greeting = [0; 18];
        soon(socket.read_exact(&mut greeting)).await.unwrap();
    }
    // Three silent clients cannot keep others out: the oldest is closed.
    let mut client = Client::connect(pipe(&few), "s/v").await;
    assert_eq!(client.read(0, 512).await, Ok(vec![0; 512]));
    assert_eq!(drained(&mut waiting[0]).await, b"");
}

#[test]
fn a_client_with_a_certificate_keeps_its_handshake_in_a_flood() {
    let limits = FrontLimits { handshakes: 2, ..FrontLimits::default() };
    let shared = Shared::new(limits, memory()).expect("good limits");
    let stops: Vec<CancellationToken> = (0..10).map(|_| CancellationToken::new()).collect();
    let mut listed = vec![shared.admit(0, &stops[0])];
    shared.secured(0);
    for (id, stop) in (0..).zip(&stops).skip(1) {
        listed.push(shared.admit(id, stop));
    }
    let closed: Vec<bool> = stops.iter().map(CancellationToken::is_cancelled).collect();
    let expected: Vec<bool> = (0..10).map(|id| (1..9).contains(&id)).collect();
    assert_eq!(closed, expected, "strangers make room, the oldest first");
    // With none but clients that have shown one, the oldest of these.
    shared.secured(9);
    listed.push(shared.admit(10, &CancellationToken::new()));
    assert!(stops[0].is_cancelled() && !stops[9].is_cancelled());
}

/// Else a host whose handshakes last fills the places, and each newcomer closes the one before it.
#[test]
fn newcomers_have_time_to_show_a_certificate_while_another_client_fills_the_places() {
    let limits = FrontLimits { handshakes: 8, ..FrontLimits::default() };
    let shared = Shared::new(limits, memory()).expect("good limits");
    let stops: Vec<CancellationToken> = (0..16).map(|_| CancellationToken::new()).collect();
    let mut listed = Vec::new();
    for (id, stop) in (0..).zip(&stops) {
        listed.push(shared.admit(id, stop));
        if id < 8 {
            shared.secured(id);
        }
    }
    let closed: Vec<bool> = stops.iter().map(CancellationToken::is_cancelled).collect();
    let expected: Vec<bool> = (0..16).map(|id| id < 4 || (8..12).contains(&id)).collect();
    assert_eq!(closed, expected, "half of the places are for those that have shown one, and half for the others");
}

/// A host whose older requests have no outcome yet is refused, and asks again on the same connection.
#[test]
fn a_refusal_makes_no_stranger_of_a_client_with_a_certificate() {
    let limits = FrontLimits { handshakes: 2, ..FrontLimits::default() };
    let shared = Shared::new(limits, memory()).expect("good limits");
    let stops: Vec<CancellationToken> = (0..4).map(|_| CancellationToken::new()).collect();
    let mut listed = vec![shared.admit(0, &stops[0])];
    shared.secured(0);
    let plain = |name: &str| Name::new(name).expect("a name");
    let name = ExportName::plain(plain("s"), plain("v"));
    let info = ConnInfo { id: 0, peer: Peer::Unix };
    shared.promote(ServedConnection { info, name, stop: stops[0].clone() }).expect("a place");
    shared.demote(0);
    for (id, stop) in (0..).zip(&stops).skip(1) {
        listed.push(shared.admit(id, stop));
    }
    let closed: Vec<bool> = stops.iter().map(CancellationToken::is_cancelled).collect();
    assert_eq!(closed, [false, true, true, false]);
}

#[tokio::test]
async fn a_flood_does_not_fill_the_log() {
    let shared = Shared::new(FrontLimits::default(), memory()).expect("good limits");
    let said = (0..10_000).filter(|_| shared.may_say()).count();
    assert!((1..1000).contains(&said), "{said} lines");
}

/// A client that shows all exports asks about each of them: each whole option gives the handshake its time anew.
#[tokio::test]
async fn options_that_go_on_keep_a_handshake_open() {
    let timeout = Duration::from_secs(2);
    let front = front(FrontLimits { handshake_timeout: timeout, ..FrontLimits::default() }, &memory());
    let mut socket = pipe(&front);
    let mut greeting = [0; 18];
    soon(socket.read_exact(&mut greeting)).await.unwrap();
    socket.write_all(&[0, 0, 0, 1]).await.unwrap();
    let begun = std::time::Instant::now();
    while begun.elapsed() < timeout * 3 / 2 {
        // NBD_OPT_STRUCTURED_REPLY, and its acknowledgement. A pause, since the options of one handshake are counted.
        socket.write_all(b"IHAVEOPT\0\0\0\x08\0\0\0\0").await.unwrap();
        let mut reply = [0; 20];
        soon(socket.read_exact(&mut reply)).await.expect("the handshake goes on");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test]
async fn no_more_connections_than_may_be() {
    let front = front(FrontLimits { connections: 2, ..FrontLimits::default() }, &memory());
    let mut first = Client::connect(pipe(&front), "s/v").await;
    let second = Client::connect(pipe(&front), "s/v").await;
    let third = soon(Client::connect_as(pipe(&front), "s/v", HeaderStyle::Structured)).await;
    assert!(matches!(third, Err(Broken::Handshake(_))), "refused in the handshake");
    drop(second);
    until(|| front.connections().len() <= 1).await;
    let mut fourth = Client::connect(pipe(&front), "s/v").await;
    assert_eq!(fourth.read(0, 512).await, Ok(vec![0; 512]));
    assert_eq!(first.read(0, 512).await, Ok(vec![0; 512]));
}

/// A client without a token cannot keep out one with a token. A connection that finds no place is refused before it is
/// told that it is served.
#[tokio::test]
async fn sessions_are_not_kept_out_by_connections_without() {
    let exports = memory();
    exports.put("s/old", Arc::new(MemoryDevice::new(MIB)), Epoch(0), true);
    let front = front(FrontLimits { connections: 2, ..FrontLimits::default() }, &exports);
    let mut guests = [Client::connect(pipe(&front), "s/old").await, Client::connect(pipe(&front), "s/v").await];
    let refused = soon(Client::connect_as(pipe(&front), "s/old", HeaderStyle::Extended)).await;
    assert!(matches!(refused, Err(Broken::Handshake(_))), "refused in the handshake, not closed");
    let session = |slot: u8| format!("s/v?token=0000000000000000000000000000000{slot}&conn={slot}&gen=1");
    let mut first = Client::connect(pipe(&front), &session(1)).await;
    assert_eq!(first.write(0, &[1; 512]).await, Ok(vec![]));
    guests[0].closed_unanswered().await;
    assert_eq!(guests[1].read(0, 512).await, Ok(vec![1; 512]), "only one guest had to go");
    let mut second = Client::connect(pipe(&front), &session(2)).await;
    guests[1].closed_unanswered().await;
    // A session is not closed in favour of another session, nor of a connection without a token.
    for name in ["s/old", &session(3)] {
        let refused = soon(Client::connect_as(pipe(&front), name, HeaderStyle::Extended)).await;
        assert!(matches!(refused, Err(Broken::Handshake(_))), "{name}");
    }
    assert_eq!(second.read(0, 512).await, Ok(vec![1; 512]));
    assert_eq!(first.read(0, 512).await, Ok(vec![1; 512]));
    drop(first);
    until(|| front.connections().len() <= 1).await;
    let mut third = Client::connect(pipe(&front), &session(3)).await;
    assert_eq!(third.read(0, 512).await, Ok(vec![1; 512]));
}

/// R8, R9: a read that no gateway can serve is not answered, and is no reason to close the connection. It waits without
/// holding bytes, outside the running requests, and is retried. Everything else continues.
#[tokio::test]
async fn r8_what_cannot_be_read_waits_and_the_rest_goes_on() {
    let (device, mut begun) = GateDevice::new(64 * MIB);
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", device.clone(), Epoch(1), false);
    let limits =
        FrontLimits { connection_requests: 1, unreadable_pause: Duration::from_millis(20), ..FrontLimits::default() };
    let front = front(limits, &exports);
    let mut client = Client::connect(pipe(&front), "s/v").await;
    let damaged = client.send(0, 16 * MIB, READ, &[]).await.unwrap();
    assert!(soon(begun.recv()).await.unwrap().go(Err(DeviceError::Unreadable)));
    let mut tries = 0;
    for round in 0..50_u64 {
        let sent = client.send(32 * MIB + round * 512, 512, WRITE, &[7; 512]).await.unwrap();
        // The first read gets the only place.
        loop {
            let running = soon(begun.recv()).await.unwrap();
            if running.what == "write" {
                assert!(running.go(Ok(())));
                break;
            }
            assert_eq!((running.what, running.offset, running.len), ("read", 0, 16 * MIB));
            tries += 1;
            assert!(running.go(Err(DeviceError::Unreadable)));
        }
        assert_eq!(soon(client.answer()).await.unwrap(), (sent, Ok(vec![])));
    }
    until(|| front.shared_bytes_held() == 0).await;
    // The damaged data was rewritten, or was missing only for a while.
    let running = soon(begun.recv()).await.unwrap();
    assert_eq!((running.what, running.offset), ("read", 0));
    assert!(running.go(Ok(())));
    let (cookie, answer) = soon(client.answer()).await.unwrap();
    assert_eq!((cookie, answer.map(|data| data.len())), (damaged, Ok(16 << 20)));
    assert!(tries < 20, "retried {tries} times although the pauses should grow");
    // The read ends with its connection.
    client.send(0, 512, READ, &[]).await.unwrap();
    assert!(soon(begun.recv()).await.unwrap().go(Err(DeviceError::Unreadable)));
    drop(client);
    until(|| front.connections().is_empty()).await;
    while begun.try_recv().is_ok() {}
    tokio::time::sleep(Duration::from_millis(100)).await;
    assert!(begun.try_recv().is_err(), "the read is not retried any more");
    until(|| front.shared_bytes_held() == 0).await;
}

#[tokio::test]
async fn unix_sockets() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("nbd.sock");
    // A file that a dead process left behind.
    drop(UnixListener::bind(&path).unwrap());
    let first = front(FrontLimits::default(), &memory());
    first.listen_unix(&path).await.unwrap();
    let mut client = Client::connect(UnixStream::connect(&path).await.unwrap(), "s/v").await;
    assert_eq!(client.write(0, &[1; 512]).await, Ok(vec![]));
    let second = front(FrontLimits::default(), &memory());
    assert!(second.listen_unix(&path).await.is_err(), "a living listener is not replaced");
    assert_eq!(client.read(0, 512).await, Ok(vec![1; 512]));
    soon(first.close()).await;
    assert!(!path.exists());
    client.closed_unanswered().await;
    std::fs::write(&path, b"precious").unwrap();
    assert!(second.listen_unix(&path).await.is_err(), "a file that is no socket is not replaced");
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
}

#[tokio::test]
async fn a_refused_open_leaves_the_handshake_going() {
    let front: Arc<Front> = front(FrontLimits::default(), &memory());
    let refused = soon(Client::connect_as(pipe(&front), "s/none", HeaderStyle::Extended)).await;
    assert!(matches!(refused, Err(Broken::Handshake(_))));
    assert!(front.connections().is_empty());
}
