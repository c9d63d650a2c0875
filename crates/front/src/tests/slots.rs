//! Reconnects of an attached device: requests left in the old connection must not be executed after their retry.

use super::gate::{Begun, GateDevice};
use super::harness::{Broken, Client, front, pipe, soon, until};
use crate::device::{DeviceError, Peer, ReadPart};
use crate::memory::MemoryExports;
use crate::{Front, FrontLimits, left_by_client};
use holdfast_nbd::HeaderStyle;
use holdfast_nbd::client::{ClientError, CommandOut};
use holdfast_types::{Epoch, Token};
use std::os::fd::AsFd;
use std::sync::Arc;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio_util::sync::CancellationToken;

const WRITE: CommandOut = CommandOut::Write { fua: false };

fn name(slot: u8, incarnation: u64) -> String {
    format!("s/v?token={}&conn={slot}&gen={incarnation}", Token(7).to_text())
}

fn gated(requests: usize) -> (Arc<Front>, Arc<MemoryExports>, Arc<GateDevice>, UnboundedReceiver<Begun>) {
    let (device, begun) = GateDevice::new(1 << 20);
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", device.clone(), Epoch(1), false);
    let limits = FrontLimits { connection_requests: requests, ..FrontLimits::default() };
    (front(limits, &exports), exports, device, begun)
}

fn sector(device: &GateDevice) -> u8 {
    match &device.memory.get(0, 512)[..] {
        [ReadPart::Data(data)] => data[0],
        _ => 0,
    }
}

#[tokio::test]
async fn s1_nothing_of_the_old_connection_happens_after_the_retry() {
    let (front, _, device, mut begun) = gated(1);
    let mut old = Client::connect(pipe(&front), &name(0, 1)).await;
    // One write runs, two more are in the receive buffer.
    for byte in [1, 2, 3] {
        old.send(0, 512, WRITE, &[byte; 512]).await.unwrap();
    }
    let running = soon(begun.recv()).await.unwrap();
    let mut new = Client::connect(pipe(&front), &name(0, 2)).await;
    // The new connection is established, so the old one has ended: its operation is dropped and can never take effect.
    assert!(
        !running.go(Ok(())),
        "SLOT-S1: the old connection's write was dropped before the new one could send a request"
    );
    old.closed_unanswered().await;
    new.send(0, 512, WRITE, &[1; 512]).await.unwrap();
    new.send(0, 512, WRITE, &[9; 512]).await.unwrap();
    for _ in 0..2 {
        assert!(soon(begun.recv()).await.unwrap().go(Ok(())));
        assert_eq!(soon(new.answer()).await.unwrap().1, Ok(vec![]));
    }
    assert!(begun.try_recv().is_err(), "SLOT-S1: a request of the old connection was begun");
    assert_eq!(sector(&device), 9);
}

/// CONN-C7: without a slot, only the end of the old connection shows that its client may have sent a request again.
#[tokio::test]
async fn what_waits_in_a_connection_that_was_closed_is_not_begun() {
    let (front, _, device, mut begun) = gated(1);
    let (near, far) = UnixStream::pair().unwrap();
    let served = front.clone();
    let serving = tokio::spawn(async move { served.serve(far, Peer::Unix, left_by_client).await });
    let mut old = Client::connect(near, "s/v").await;
    for byte in [1, 2, 3] {
        old.send(0, 512, WRITE, &[byte; 512]).await.unwrap();
    }
    let running = soon(begun.recv()).await.unwrap();
    // The client gives the connection up and sends its requests again on another one.
    drop(old);
    assert!(running.go(Ok(())));
    soon(serving).await.unwrap();
    assert!(begun.try_recv().is_err(), "CONN-C7: a request that waited was begun after its client was gone");
    assert_eq!(sector(&device), 0);
}

/// A client that only waits is served as before.
#[tokio::test]
async fn what_waits_in_a_connection_that_lasts_is_begun() {
    let (front, _, device, mut begun) = gated(1);
    let (near, far) = UnixStream::pair().unwrap();
    tokio::spawn(async move { front.serve(far, Peer::Unix, left_by_client).await });
    let mut client = Client::connect(near, "s/v").await;
    for byte in [1, 2] {
        client.send(0, 512, WRITE, &[byte; 512]).await.unwrap();
    }
    for _ in 0..2 {
        assert!(soon(begun.recv()).await.unwrap().go(Ok(())));
        assert_eq!(soon(client.answer()).await.unwrap().1, Ok(vec![]));
    }
    assert_eq!(sector(&device), 2);
}

/// A connection to the front over TCP, or over a Unix socket.
async fn served<S>(front: &Arc<Front>, (near, far): (S, S)) -> (Client<S>, tokio::task::JoinHandle<()>)
where
    S: AsyncRead + AsyncWrite + AsFd + Unpin + Send + 'static,
{
    let front = front.clone();
    let serving = tokio::spawn(async move { front.serve(far, Peer::Unix, left_by_client).await });
    (Client::connect(near, "s/v").await, serving)
}

async fn tcp_pair() -> (TcpStream, TcpStream) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    (near.unwrap(), far.unwrap().0)
}

/// One write runs and two wait when the client closes its sending side.
async fn half_closed<S>(pair: (S, S), with_disconnect: bool)
where
    S: AsyncRead + AsyncWrite + AsFd + Unpin + Send + 'static,
{
    let (front, _, device, mut begun) = gated(1);
    let far = pair.1.as_fd().try_clone_to_owned().unwrap();
    let (mut client, serving) = served(&front, pair).await;
    for byte in [1, 2, 3] {
        client.send(0, 512, WRITE, &[byte; 512]).await.unwrap();
    }
    if with_disconnect {
        client.send(0, 0, CommandOut::Disconnect, &[]).await.unwrap();
    }
    let running = soon(begun.recv()).await.unwrap();
    client.socket.shutdown().await.unwrap();
    until(|| left_by_client(&far).is_some()).await;
    // Otherwise the socket would stay open.
    drop(far);
    assert!(running.go(Ok(())));
    if with_disconnect {
        for cookie in [1, 2, 3] {
            assert_eq!(soon(client.answer()).await.unwrap(), (cookie, Ok(vec![])), "CONN-C8");
            if cookie < 3 {
                assert!(soon(begun.recv()).await.unwrap().go(Ok(())));
            }
        }
    }
    client.closed_unanswered().await;
    soon(serving).await.unwrap();
    assert!(begun.try_recv().is_err(), "CONN-C7: a request that waited was begun after the end of its client's stream");
    assert_eq!(sector(&device), if with_disconnect { 3 } else { 0 });
}

/// A gateway cannot distinguish it from a connection that was given up.
#[tokio::test]
async fn a_client_that_closes_its_sending_side_is_gone() {
    half_closed(UnixStream::pair().unwrap(), false).await;
    half_closed(tcp_pair().await, false).await;
}

#[tokio::test]
async fn a_client_that_disconnects_and_closes_its_sending_side_is_answered() {
    half_closed(UnixStream::pair().unwrap(), true).await;
    half_closed(tcp_pair().await, true).await;
}

#[tokio::test]
async fn s2_an_older_incarnation_never_gets_in() {
    let (front, exports, _, mut begun) = gated(8);
    let mut current = Client::connect(pipe(&front), &name(0, 5)).await;
    for stale in [name(0, 5), name(0, 4)] {
        let refused = soon(Client::connect_as(pipe(&front), &stale, HeaderStyle::Extended)).await;
        assert!(matches!(refused, Err(Broken::Handshake(ClientError::Refused { .. }))));
    }
    // A refused connection disturbs nothing, and neither does one of another slot or a plain one.
    let _other = Client::connect(pipe(&front), &name(1, 1)).await;
    let _plain = Client::connect(pipe(&front), "s/v").await;
    current.send(0, 512, WRITE, &[1; 512]).await.unwrap();
    assert!(soon(begun.recv()).await.unwrap().go(Ok(())));
    assert_eq!(soon(current.answer()).await.unwrap().1, Ok(vec![]));
    assert_eq!(front.connections().len(), 3);
    drop(current);
    until(|| front.connections().len() <= 2).await;
    let late = soon(Client::connect_as(pipe(&front), &name(0, 5), HeaderStyle::Extended)).await;
    assert!(late.is_err(), "SLOT-S2: even after the newest has ended");

    // SLOT-S3: a new owner begins at 1, and the old owner's connections do not affect it.
    exports.put("s/v", Arc::new(crate::memory::MemoryDevice::new(512)), Epoch(2), false);
    let _next = Client::connect(pipe(&front), &name(0, 1)).await;
}

#[tokio::test]
async fn s4_a_newer_incarnation_is_served_once_everything_before_has_its_outcome() {
    let (front, _, device, _begun) = gated(8);
    let _old = Client::connect(pipe(&front), &name(0, 1)).await;
    device.settled.send_modify(|settled| *settled = Ok(false));
    // Neither another slot nor a plain connection counts as an older one of this slot.
    let _other = Client::connect(pipe(&front), &name(1, 1)).await;
    let _plain = Client::connect(pipe(&front), "s/v").await;

    let (seen, name) = (CancellationToken::new(), name(0, 2));
    let newer = async {
        let client = Client::connect(pipe(&front), &name).await;
        assert!(seen.is_cancelled(), "SLOT-S4: served while a request of the older one has no outcome");
        client
    };
    let settling = async {
        until(|| device.settled.receiver_count() > 0).await;
        seen.cancel();
        device.settled.send_modify(|settled| *settled = Ok(true));
    };
    let _newer = tokio::join!(newer, settling).0;

    device.settled.send_modify(|settled| *settled = Err(DeviceError::Disconnect));
    let refused = soon(Client::connect_as(pipe(&front), &self::name(0, 3), HeaderStyle::Extended)).await;
    assert!(
        matches!(refused, Err(Broken::Handshake(ClientError::NotHere { .. }))),
        "there will be none under this epoch"
    );
}

#[tokio::test]
async fn a_chain_of_reconnects_ends_with_the_newest() {
    let (front, _, device, mut begun) = gated(4);
    let mut clients = Vec::new();
    for incarnation in 1..=20 {
        let mut client = Client::connect(pipe(&front), &name(0, incarnation)).await;
        client.send(0, 512, WRITE, &[incarnation as u8; 512]).await.unwrap();
        clients.push(client);
    }
    let mut left = Vec::new();
    while left.is_empty() || sector(&device) != 20 {
        let operation = soon(begun.recv()).await.unwrap();
        left.push(operation.go(Ok(())));
        tokio::task::yield_now().await;
    }
    assert_eq!(left.iter().filter(|went| **went).count(), 1, "only the newest connection's write went through");
    assert_eq!(soon(clients[19].answer()).await.unwrap().1, Ok(vec![]));
    for client in &mut clients[..19] {
        client.closed_unanswered().await;
    }
}
