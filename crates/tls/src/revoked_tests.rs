use super::*;
use crate::make::certificates;
use crate::tests::{cluster, load, wanted};
use crate::{Dialer, Role, Tls, TlsStream};
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

const PATIENCE: Duration = Duration::from_secs(20);

async fn soon<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(PATIENCE, future).await.expect("in time")
}

fn identity(dir: &Path, name: &str) -> Identity {
    use rustls_pki_types::pem::PemObject;
    let der = CertificateDer::from_pem_file(dir.join(format!("{name}.pem"))).expect("a certificate");
    Identity::of(&der).expect("it can be read")
}

fn names(all: &[&str]) -> Revoked {
    Revoked { names: all.iter().map(ToString::to_string).collect(), ..Revoked::default() }
}

fn serials(all: &[&str]) -> Revoked {
    Revoked { serials: all.iter().map(ToString::to_string).collect(), ..Revoked::default() }
}

/// Both ends of a connection over TCP, after its handshake and a byte each way.
struct Met {
    served: TlsStream<TcpStream>,
    called: crate::Connection,
}

impl Met {
    async fn new(door: &Tls, caller: &Tls) -> io::Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?.to_string();
        let acceptor = door.acceptor();
        let accepts = async {
            let (socket, _) = listener.accept().await?;
            acceptor.accept(socket).await
        };
        let dialer = Dialer::from(caller);
        let (called, served) = soon(async { tokio::join!(dialer.stream(&address, PATIENCE), accepts) }).await;
        let mut met = Self { called: called?, served: served? };
        met.speak().await?;
        Ok(met)
    }

    async fn speak(&mut self) -> io::Result<()> {
        let mut byte = [0];
        self.called.write_all(b"a").await?;
        self.called.flush().await?;
        soon(self.served.read_exact(&mut byte)).await?;
        self.served.write_all(b"b").await?;
        self.served.flush().await?;
        soon(self.called.read_exact(&mut byte)).await?;
        Ok(())
    }
}

#[test]
fn a_serial_number_has_one_form_whoever_writes_it() {
    for text in ["0A:ff", "serial=0AFF", "0x0aff", "aff", " 0aff\n", "00:0A:FF"] {
        assert_eq!(serial_of(text).as_deref(), Ok("0aff"), "{text}");
    }
    for text in ["", "x", "0x", "0a ff", "-1", "1".repeat(129).as_str()] {
        assert!(serial_of(text).expect_err("no number").contains("openssl x509 -noout -serial"), "{text}");
    }
    assert_eq!(serial_of("0").as_deref(), Ok("00"));
}

/// What people read with other tools is what doors compare.
#[test]
fn a_certificate_is_read_with_its_name_and_serial_number() {
    let dir = tempfile::tempdir().expect("a directory");
    cluster(dir.path());
    let one = identity(dir.path(), "db1");
    assert_eq!(one.name, "db1");
    assert_eq!(serial_of(&one.serial).as_ref(), Ok(&one.serial));
    assert_ne!(one.serial, identity(dir.path(), "ann").serial);
    assert!(serials(&[&one.serial]).check(&one).is_err() && names(&["db1"]).check(&one).is_err());
    assert_eq!(names(&["db2", "DB1"]).check(&one), Ok(()));
    let shown = load(dir.path(), "g1", Role::Gateway).shown();
    assert_eq!((shown.name.as_str(), shown.names.as_slice()), ("g1", &["gateway.holdfast.internal".to_string()][..]));
    assert_eq!(shown.issuer.len(), 64);
    assert_eq!(shown.issuer, load(dir.path(), "db1", Role::Host).shown().issuer);
}

/// REVOKE-V1, by serial number and by name; the one that came after it is another certificate.
#[tokio::test]
async fn a_revoked_certificate_opens_no_door() {
    let dir = tempfile::tempdir().expect("a directory");
    cluster(dir.path());
    let (gateway, host) = (load(dir.path(), "g1", Role::Gateway), load(dir.path(), "db1", Role::Host));
    Met::new(&gateway, &host).await.expect("a handshake");
    let serial = identity(dir.path(), "db1").serial;
    for list in [names(&["db1"]), serials(&[&serial])] {
        gateway.revocations().replace(list);
        let told = Met::new(&gateway, &host).await.err().expect("refused").to_string();
        assert!(told.to_lowercase().contains("revoked"), "{told}");
        gateway.revocations().replace(Revoked::default());
        Met::new(&gateway, &host).await.expect("it counts again");
    }
    gateway.revocations().replace(serials(&[&serial]));
    certificates(dir.path(), &[wanted("db2", Role::Host)], 30).expect("made");
    Met::new(&gateway, &load(dir.path(), "db2", Role::Host)).await.expect("another certificate");
}

/// REVOKE-V1 at a client: no gateway talks to a server whose certificate is revoked.
#[tokio::test]
async fn a_gateway_does_not_connect_to_a_revoked_one() {
    let dir = tempfile::tempdir().expect("a directory");
    cluster(dir.path());
    certificates(dir.path(), &[wanted("g2", Role::Gateway)], 30).expect("made");
    let (one, other) = (load(dir.path(), "g1", Role::Gateway), load(dir.path(), "g2", Role::Gateway));
    one.revocations().replace(names(&["g2"]));
    let told = Met::new(&other, &one).await.err().expect("refused").to_string();
    assert!(told.starts_with("found certificate g2 (serial number ") && told.ends_with("which is revoked"), "{told}");
}

/// REVOKE-V2: both sides of a connection wait for the other, and one of them is woken.
#[tokio::test]
async fn an_open_connection_of_a_revoked_certificate_ends() {
    let dir = tempfile::tempdir().expect("a directory");
    cluster(dir.path());
    certificates(dir.path(), &[wanted("g2", Role::Gateway)], 30).expect("made");
    let (one, other) = (load(dir.path(), "g1", Role::Gateway), load(dir.path(), "g2", Role::Gateway));
    let mut met = Met::new(&one, &other).await.expect("a handshake");
    // Others are not concerned.
    one.revocations().replace(names(&["g3"]));
    met.speak().await.expect("it goes on");
    let waiting = async { met.served.read(&mut [0; 8]).await };
    let revoking = async {
        tokio::task::yield_now().await;
        one.revocations().replace(names(&["g2"]));
    };
    let (read, ()) = soon(async { tokio::join!(waiting, revoking) }).await;
    let error = read.expect_err("it has ended");
    assert!(error.kind() == io::ErrorKind::ConnectionAborted && error.to_string().ends_with("was revoked"), "{error}");
    assert!(met.served.write(b"x").await.is_err() && met.served.read(&mut [0; 8]).await.is_err(), "for good");

    // The side that has dialled, which only writes.
    let mut met = Met::new(&one, &load(dir.path(), "db1", Role::Host)).await.expect("a handshake");
    met.speak().await.expect("it goes on");
    let dialled = Met::new(&load(dir.path(), "g1", Role::Gateway), &other).await.expect("a handshake");
    other.revocations().replace(names(&["g1"]));
    let mut called = dialled.called;
    assert!(called.write_all(b"x").await.is_err());
    assert!(called.read(&mut [0; 8]).await.is_err());
}

/// REVOKE-V1 and REVOKE-V2 at a host: its NBD connections to a gateway, and those to other agents.
#[tokio::test]
async fn a_host_leaves_a_server_whose_certificate_is_revoked() {
    let dir = tempfile::tempdir().expect("a directory");
    cluster(dir.path());
    certificates(dir.path(), &[wanted("db2", Role::Host)], 30).expect("made");
    let (gateway, other) = (load(dir.path(), "g1", Role::Gateway), load(dir.path(), "db2", Role::Host));
    let host = load(dir.path(), "db1", Role::Host);
    let connector = Dialer::from(&host).connector().expect("it has a certificate");
    for (server, name) in [(&gateway, "g1"), (&other, "db2")] {
        host.revocations().replace(Revoked::default());
        let meet = async || {
            let (near, far) = tokio::io::duplex(4096);
            let acceptor = server.acceptor();
            let called = async {
                match name {
                    "g1" => connector.connect(near).await,
                    _ => connector.connect_host(near).await.map(|(secured, _)| secured),
                }
            };
            soon(async { tokio::join!(called, acceptor.accept(far)) }).await
        };
        let (called, served) = meet().await;
        let (mut called, mut served) = (called.expect("a handshake"), served.expect("a handshake"));
        served.write_all(b"a").await.expect("written");
        served.flush().await.expect("written");
        soon(called.read_exact(&mut [0])).await.expect("read");
        let waiting = async { called.read(&mut [0; 8]).await };
        let revoking = async {
            tokio::task::yield_now().await;
            host.revocations().replace(names(&[name]));
        };
        let (read, ()) = soon(async { tokio::join!(waiting, revoking) }).await;
        assert_eq!(read.expect_err("it has ended").kind(), io::ErrorKind::ConnectionAborted, "{name}");
        let told = meet().await.0.expect_err("refused").to_string();
        assert!(told.ends_with("which is revoked"), "{told}");
    }
}
