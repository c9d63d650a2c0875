//! NBD over TLS on real sockets: who is served, and that nothing of the plain connection lives on.

use super::gate::GateDevice;
use super::harness::{Broken, Client, soon, until};
use crate::device::Peer;
use crate::line::{FrontTls, Line};
use crate::memory::{MemoryDevice, MemoryExports};
use crate::served::serve;
use crate::{Front, FrontLimits, left_by_client};
use holdfast_nbd::HeaderStyle;
use holdfast_nbd::client::{ClientError, CommandOut};
use holdfast_nbd::server::{GREETING_BYTES, Handshake};
use holdfast_tls::make::{Wanted, certificates};
use holdfast_tls::{Connector, Dialer, Revoked, Role, Tls, TlsFiles};
use holdfast_types::Epoch;
use std::net::SocketAddr;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const WRITE: CommandOut = CommandOut::Write { fua: false };
const NAMES: [(&str, Role); 3] = [("g1", Role::Gateway), ("db1", Role::Host), ("ann", Role::Admin)];

/// A cluster's certificates.
struct Authority(tempfile::TempDir);

impl Authority {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        certificates(dir.path(), &NAMES.map(|(name, role)| Wanted::new(name, role)), 30).unwrap();
        Self(dir)
    }

    fn tls(&self, authority: &Path, name: &str) -> Tls {
        let at = |name: String| Some(self.0.path().join(name));
        let (certificate, key) = (at(format!("{name}.pem")), at(format!("{name}.key")));
        let files = TlsFiles { ca: Some(authority.join("ca.pem")), certificate, key };
        files.load(Role::Admin).unwrap().unwrap()
    }

    fn own(&self, name: &str) -> Tls {
        self.tls(self.0.path(), name)
    }

    fn client(&self, name: &str) -> Connector {
        Dialer::from(&self.own(name)).connector().unwrap()
    }
}

async fn listening(front: &Front, authority: &Authority, required: bool) -> SocketAddr {
    let tls = FrontTls::new(authority.own("g1").acceptor(), required);
    front.listen_tcp(SocketAddr::from(([127, 0, 0, 1], 0)), Some(tls)).await.unwrap()
}

/// A client's error, for one that gets through the handshakes.
fn refused(found: Result<(), Broken>) -> String {
    match found {
        Err(Broken::Handshake(ClientError::Refused { message })) => message,
        other => panic!("{other:?}"),
    }
}

async fn front(authority: &Authority, required: bool) -> (Front, SocketAddr) {
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", Arc::new(MemoryDevice::new(64 << 20)), Epoch(1), false);
    let front = Front::new(FrontLimits::default(), exports).unwrap();
    let address = listening(&front, authority, required).await;
    (front, address)
}

async fn socket(address: SocketAddr) -> TcpStream {
    TcpStream::connect(address).await.unwrap()
}

#[tokio::test]
async fn hosts_and_administrators_read_and_write_through_tls() {
    let authority = Authority::new();
    for required in [true, false] {
        let (front, address) = front(&authority, required).await;
        for name in ["db1", "ann"] {
            let connector = authority.client(name);
            let mut client = soon(Client::connect_tls(socket(address).await, "s/v", &connector)).await.unwrap();
            // More than a record, and more than what TLS holds back.
            let data: Vec<u8> = (0..8 << 20).map(|n: u32| (n % 251) as u8).collect();
            assert_eq!(client.write(512, &data).await, Ok(vec![]));
            assert!(client.read(512, data.len() as u64).await == Ok(data));
        }
        front.close().await;
    }
}

/// NBD-S1. The other mode takes clients in plain text as well.
#[tokio::test]
async fn a_plain_client_is_served_only_where_tls_is_optional() {
    let authority = Authority::new();
    let (required, address) = front(&authority, true).await;
    let found = soon(Client::connect_as(socket(address).await, "s/v", HeaderStyle::Extended)).await.map(|_| ());
    assert!(matches!(found, Err(Broken::Handshake(ClientError::TlsRequired))), "{found:?}");
    required.close().await;
    let (optional, address) = front(&authority, false).await;
    let mut client = Client::connect(socket(address).await, "s/v").await;
    assert_eq!(client.write(0, &[1; 512]).await, Ok(vec![]));
    optional.close().await;
}

/// TLS-T3.
#[tokio::test]
async fn other_certificates_are_not_served() {
    let (authority, other) = (Authority::new(), Authority::new());
    let (front, address) = front(&authority, true).await;
    let connector = authority.client("g1");
    let found = soon(Client::connect_tls(socket(address).await, "s/v", &connector)).await.map(|_| ());
    let message = "found role gateway of certificate g1, expected one of host, admin".to_string();
    match found {
        Err(Broken::Handshake(ClientError::Refused { message: found })) => assert_eq!(found, message),
        other => panic!("{other:?}"),
    }
    // It trusts this gateway, but its own certificate is another cluster's.
    let stranger = Dialer::from(&other.tls(authority.0.path(), "db1")).connector().unwrap();
    let found = soon(Client::connect_tls(socket(address).await, "s/v", &stranger)).await.map(|_| ());
    assert!(matches!(found, Err(Broken::Tls(_) | Broken::Closed)), "{found:?}");
    // The gateway is another cluster's: the client leaves.
    let found = soon(Client::connect_tls(socket(address).await, "s/v", &other.client("db1"))).await.map(|_| ());
    assert!(matches!(found, Err(Broken::Tls(_))), "{found:?}");
    front.close().await;
}

/// TLS-T4, whatever the exports say: plain ones, and those of snapshots that are open to all.
#[tokio::test]
async fn a_host_opens_its_own_sets_only() {
    let authority = Authority::new();
    let bound = Wanted { sets: vec!["s".to_string()], ..Wanted::new("db2", Role::Host) };
    certificates(authority.0.path(), &[bound], 30).unwrap();
    let exports = Arc::new(MemoryExports::default());
    for name in ["s/v", "other/v"] {
        exports.put(name, Arc::new(MemoryDevice::new(1 << 20)), Epoch(1), false);
    }
    let front = Front::new(FrontLimits::default(), exports).unwrap();
    let address = listening(&front, &authority, true).await;
    let connector = authority.client("db2");
    let expected = "found set other in an export of host db2, expected one of s: the sets in its certificate";
    // One that is there and one that is not get the same answer.
    for name in ["other/v", "other/none", "other/v@monday"] {
        let found = soon(Client::connect_tls(socket(address).await, name, &connector)).await.map(|_| ());
        assert_eq!(refused(found), expected, "{name}");
    }
    soon(Client::connect_tls(socket(address).await, "s/v", &connector)).await.unwrap();
    for name in ["db1", "ann"] {
        let connector = authority.client(name);
        soon(Client::connect_tls(socket(address).await, "other/v", &connector)).await.unwrap();
    }
    front.close().await;
}

/// REVOKE-V2: also a connection that neither reads nor writes, since its one request runs.
#[tokio::test]
async fn a_connection_of_a_revoked_certificate_is_closed_while_a_request_runs() {
    let authority = Authority::new();
    let (device, mut begun) = GateDevice::new(1 << 20);
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", device.clone(), Epoch(1), false);
    let front = Front::new(FrontLimits { connection_requests: 1, ..FrontLimits::default() }, exports).unwrap();
    let gateway = authority.own("g1");
    let tls = FrontTls::new(gateway.acceptor(), true);
    let address = front.listen_tcp(SocketAddr::from(([127, 0, 0, 1], 0)), Some(tls)).await.unwrap();
    let connector = authority.client("db1");
    let mut client = soon(Client::connect_tls(socket(address).await, "s/v", &connector)).await.unwrap();
    for byte in [1, 2] {
        client.send(0, 512, WRITE, &[byte; 512]).await.unwrap();
    }
    let running = soon(begun.recv()).await.unwrap();
    gateway.revocations().replace(Revoked { names: ["db1".to_string()].into(), ..Revoked::default() });
    soon(running.dropped()).await;
    client.closed_unanswered().await;
    assert!(begun.try_recv().is_err(), "the request behind it was begun");
    let found = soon(Client::connect_tls(socket(address).await, "s/v", &connector)).await.map(|_| ());
    assert!(matches!(found, Err(Broken::Tls(_) | Broken::Closed)), "{found:?}");
    front.close().await;
}

/// NBD-S3, where the server has no TLS.
#[tokio::test]
async fn a_client_with_a_certificate_leaves_a_server_without_tls() {
    let authority = Authority::new();
    let exports = Arc::new(MemoryExports::default());
    let front = Front::new(FrontLimits::default(), exports).unwrap();
    let address = front.listen_tcp(SocketAddr::from(([127, 0, 0, 1], 0)), None).await.unwrap();
    let found = soon(Client::connect_tls(socket(address).await, "s/v", &authority.client("db1"))).await.map(|_| ());
    assert!(matches!(found, Err(Broken::Handshake(ClientError::NoTls { .. }))), "{found:?}");
    front.close().await;
}

/// NBD-S2: whoever sits on the way puts an option of its own behind the client's wish for TLS.
#[tokio::test]
async fn bytes_behind_the_wish_for_tls_end_the_connection() {
    let authority = Authority::new();
    let (front, address) = front(&authority, true).await;
    let mut socket = socket(address).await;
    let option = |number: u32| [&b"IHAVEOPT"[..], &number.to_be_bytes(), &[0; 4]].concat();
    let bytes = [&3_u32.to_be_bytes()[..], &option(5), &option(2)].concat();
    socket.write_all(&bytes).await.unwrap();
    let mut seen = Vec::new();
    // A reset may follow the greeting, as bytes were left unread.
    let _ = soon(socket.read_to_end(&mut seen)).await;
    assert!(seen.len() <= GREETING_BYTES && Handshake::greeting().starts_with(&seen), "{seen:?}");
    front.close().await;
}

/// A client that says nothing after its wish for TLS holds a place among the handshakes, for a bounded time.
#[tokio::test]
async fn a_silent_tls_handshake_is_ended() {
    let authority = Authority::new();
    let exports = Arc::new(MemoryExports::default());
    let limits = FrontLimits { handshake_timeout: Duration::from_millis(50), ..FrontLimits::default() };
    let front = Front::new(limits, exports).unwrap();
    let address = listening(&front, &authority, true).await;
    let mut socket = socket(address).await;
    let option = [&b"IHAVEOPT"[..], &5_u32.to_be_bytes(), &[0; 4]].concat();
    let _ = socket.write_all(&[&3_u32.to_be_bytes()[..], &option].concat()).await;
    let _ = soon(socket.read_to_end(&mut Vec::new())).await;
    front.close().await;
}

/// Each option has a time of its own, so asking on and on would keep a place among the handshakes.
#[tokio::test]
async fn a_client_without_a_certificate_gains_no_time_by_asking() {
    let authority = Authority::new();
    let exports = Arc::new(MemoryExports::default());
    let limits = FrontLimits { handshake_timeout: Duration::from_millis(500), ..FrontLimits::default() };
    let front = Front::new(limits, exports).unwrap();
    let address = listening(&front, &authority, true).await;
    let mut socket = socket(address).await;
    let list = [&b"IHAVEOPT"[..], &3_u32.to_be_bytes(), &[0; 4]].concat();
    socket.write_all(&3_u32.to_be_bytes()).await.unwrap();
    let closed = async {
        let mut seen = [0; 4096];
        while socket.write_all(&list).await.is_ok() && matches!(socket.read(&mut seen).await, Ok(1..)) {
            // So seldom that it asks for longer than `soon` waits, before it has asked as often as it may.
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    soon(closed).await;
    front.close().await;
}

/// One write runs and two wait when the client closes its connection, or its sending side after NBD_CMD_DISC.
async fn closed(with_disconnect: bool) {
    let authority = Authority::new();
    let (device, mut begun) = GateDevice::new(1 << 20);
    let exports = Arc::new(MemoryExports::default());
    exports.put("s/v", device.clone(), Epoch(1), false);
    let front = Front::new(FrontLimits { connection_requests: 1, ..FrontLimits::default() }, exports).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (near, far) = tokio::join!(TcpStream::connect(listener.local_addr().unwrap()), listener.accept());
    let (near, far) = (near.unwrap(), far.unwrap().0);
    let seen = far.as_fd().try_clone_to_owned().unwrap();
    let tls = FrontTls::new(authority.own("g1").acceptor(), true);
    let serving = tokio::spawn(async move {
        serve(&front.shared, Line::plain(far, left_by_client), Peer::Unix, Some(&tls)).await;
    });
    let connector = authority.client("db1");
    let mut client = soon(Client::connect_tls(near, "s/v", &connector)).await.unwrap();
    for byte in [1, 2, 3] {
        client.send(0, 512, WRITE, &[byte; 512]).await.unwrap();
    }
    if with_disconnect {
        client.send(0, 0, CommandOut::Disconnect, &[]).await.unwrap();
    }
    let running = soon(begun.recv()).await.unwrap();
    client.socket.shutdown().await.unwrap();
    until(|| left_by_client(&seen).is_some()).await;
    // Otherwise the socket would stay open.
    drop(seen);
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
}

#[tokio::test]
async fn c7_what_waits_in_a_connection_of_tls_that_was_closed_is_not_begun() {
    closed(false).await;
}

#[tokio::test]
async fn c8_a_client_of_tls_that_disconnects_and_closes_is_answered() {
    closed(true).await;
}
