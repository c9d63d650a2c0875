use super::*;
use crate::tests::{cluster, load};
use crate::{Connector, Dialer, Role, Tls};
use std::path::Path;
use std::time::Duration;
use tokio::io::{AsyncWriteExt, DuplexStream, duplex};

const LIMIT: Duration = Duration::from_secs(20);

fn connector(dir: &Path, name: &str) -> Connector {
    Dialer::from(&load(dir, name, Role::Admin)).connector().expect("it has a certificate")
}

/// What the door says of a connection over which its peer did `what`; `None` if it is not served.
async fn at_door<F, T>(door: &Tls, what: impl FnOnce(DuplexStream) -> F) -> (Option<HttpClient>, T)
where
    F: Future<Output = T>,
{
    let mut handshakes = Handshakes::new(door.acceptor());
    let (ours, theirs) = duplex(1 << 16);
    handshakes.begin(theirs, ());
    let served = async {
        let mut done = None;
        while let Some(ended) = handshakes.going_on.join_next().await {
            done = ended.expect("no panic").ok();
        }
        done
    };
    let (served, did) = tokio::time::timeout(LIMIT, async { tokio::join!(served, what(ours)) }).await.expect("in time");
    let Some((mut connection, client, ())) = served else { return (None, did) };
    // Nothing of what the peer sent is lost.
    let mut first = [0; 5];
    let read = tokio::time::timeout(LIMIT, connection.read_exact(&mut first)).await.expect("in time");
    read.expect("the request");
    assert_eq!(&first, b"GET /");
    (Some(client), did)
}

/// A request; the connection stays open.
async fn send<C: AsyncWrite + Unpin>(mut connection: C) -> C {
    connection.write_all(b"GET / HTTP/1.0\r\n\r\n").await.expect("sent");
    connection.flush().await.expect("sent");
    connection
}

#[tokio::test]
async fn a_door_knows_who_asks() {
    let dir = tempfile::tempdir().expect("a directory");
    cluster(dir.path());
    let door = load(dir.path(), "db1", Role::Host);
    let (client, _kept) = at_door(&door, send).await;
    assert_eq!(client, Some(HttpClient::Plain));
    let secured = connector(dir.path(), "ann");
    let asks = move |connection: DuplexStream| async move {
        let (secured, peer) = secured.connect_host(connection).await.expect("a host");
        assert_eq!(peer.name, "db1");
        send(secured).await
    };
    let (client, _kept) = at_door(&door, asks).await;
    let Some(HttpClient::Named(caller)) = client else { panic!("found {client:?}") };
    assert_eq!((caller.name.as_str(), caller.roles.as_slice()), ("ann", &[Role::Admin][..]));
}

/// HTTP-D1: without a certificate is not the same as with one of somebody else.
#[tokio::test]
async fn a_certificate_of_another_authority_is_refused_and_none_is_taken() {
    use rustls_pki_types::pem::PemObject;
    use tokio_rustls::TlsConnector;
    use tokio_rustls::rustls::crypto::ring;
    use tokio_rustls::rustls::{ClientConfig, RootCertStore};
    let dir = tempfile::tempdir().expect("a directory");
    let (own, other) = (dir.path().join("own"), dir.path().join("other"));
    cluster(&own);
    cluster(&other);
    let door = load(&own, "db1", Role::Host);
    let mixed = crate::TlsFiles { ca: Some(own.join("ca.pem")), ..crate::tests::files(&other, "ann") };
    let mixed = mixed.load(Role::Admin).expect("good files").expect("some");
    let mixed = Dialer::from(&mixed).connector().expect("it has a certificate");
    let asks = move |connection: DuplexStream| async move {
        // The server's refusal comes after the client's part of the handshake.
        if let Ok((mut secured, _)) = mixed.connect_host(connection).await {
            let _ = secured.read(&mut [0]).await;
        }
    };
    let (client, ()) = at_door(&door, asks).await;
    assert_eq!(client, None, "another cluster's certificate was taken");

    let mut roots = RootCertStore::empty();
    let ca = rustls_pki_types::CertificateDer::from_pem_file(own.join("ca.pem")).expect("a certificate");
    roots.add(ca).expect("an authority");
    let anybody = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let asks = move |connection: DuplexStream| async move {
        let name = rustls_pki_types::ServerName::try_from(Role::Host.dns_name()).expect("a name");
        send(TlsConnector::from(Arc::new(anybody)).connect(name, connection).await.expect("a host")).await
    };
    let (client, _kept) = at_door(&door, asks).await;
    assert_eq!(client, Some(HttpClient::Unnamed));
}

/// TLS-T2: only a host is believed to be one.
#[tokio::test]
async fn a_gateway_is_no_host() {
    let dir = tempfile::tempdir().expect("a directory");
    cluster(dir.path());
    let door = load(dir.path(), "g1", Role::Gateway);
    let ann = connector(dir.path(), "ann");
    let asks = move |connection: DuplexStream| async move { ann.connect_host(connection).await.map(drop) };
    let (_, asked) = at_door_of_nobody(&door, asks).await;
    assert!(asked.is_err(), "a gateway stood for a host");
}

/// The same as [`at_door`] where nothing is sent after the handshake.
async fn at_door_of_nobody<F, T>(door: &Tls, what: impl FnOnce(DuplexStream) -> F) -> (bool, T)
where
    F: Future<Output = T>,
{
    let (ours, theirs) = duplex(1 << 16);
    let (served, did) = tokio::join!(begun(door.acceptor(), theirs), what(ours));
    (served.is_ok(), did)
}
