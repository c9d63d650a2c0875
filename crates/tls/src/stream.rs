//! How a client makes a connection, and the TLS settings of both sides: the same certificates and the same authority
//! for every connection (TLS-T1, TLS-T2).

use crate::revoked::{Revocations, Verifier};
use crate::role::Role;
use crate::socket::KeepAlive;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::client::Resumption;
use tokio_rustls::rustls::crypto::{CryptoProvider, ring};
use tokio_rustls::rustls::server::danger::ClientCertVerifier;
use tokio_rustls::rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use tokio_rustls::rustls::{ClientConfig, RootCertStore, ServerConfig};

pub use tokio_rustls::client::TlsStream as ClientStream;

/// Time limit of a peer's handshake, so that a silent peer does not hold a socket.
pub(crate) const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// The name of HTTP/2 in a handshake.
const HTTP2: &[u8] = b"h2";

/// What is needed of a connection.
pub trait Duplex: AsyncRead + AsyncWrite + Send + Sync + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Sync + Unpin> Duplex for T {}

/// A connection over TCP, with or without TLS, or over a simulated network.
pub type Connection = Box<dyn Duplex>;

/// A connection, once it is made.
pub type Dialling = Pin<Box<dyn Future<Output = io::Result<Connection>> + Send>>;

/// Makes a connection to HOST:PORT.
pub type Dial = Arc<dyn Fn(&str) -> Dialling + Send + Sync>;

/// TLS settings of both sides, made of the same files. Neither side remembers earlier connections: a session that is
/// resumed is not verified again, so a certificate that has expired or is no longer trusted would go on opening new
/// connections (TLS-T1, LIVE-C3).
#[derive(Clone)]
pub(crate) struct Configs {
    /// Of a client whose connections are not HTTP/2.
    pub(crate) client: Arc<ClientConfig>,
    /// Of a gRPC client.
    pub(crate) grpc: Arc<ClientConfig>,
    pub(crate) server: Arc<ServerConfig>,
    /// Of an HTTP door: clients without a certificate are taken too (HTTP-D1).
    pub(crate) http: Arc<ServerConfig>,
}

impl Configs {
    pub(crate) fn new(
        ca: Vec<CertificateDer<'static>>,
        own: Vec<CertificateDer<'static>>,
        key: PrivateKeyDer<'static>,
        revocations: &Revocations,
    ) -> Result<Self, String> {
        let provider: Arc<CryptoProvider> = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        // All or none: an authority that is left out would be missed at a handshake.
        for (number, one) in (1..).zip(ca) {
            roots.add(one).map_err(|error| format!("certificate {number} of the authority's file: {error}"))?;
        }
        let roots = Arc::new(roots);
        let verifier = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone());
        // Verifies a certificate wherever there is one.
        let of_http = verifier.clone().allow_unauthenticated().build().map_err(|error| error.to_string())?;
        let chain = verifier.build().map_err(|error| error.to_string())?;
        let checked = |chain| Arc::new(Verifier { chain, revocations: revocations.clone() });
        let (verifier, of_http) = (checked(chain), checked(of_http));
        let text = |error: tokio_rustls::rustls::Error| error.to_string();
        // Finds a key of another certificate now, not at the first connection.
        let mut client = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(text)?
            .with_root_certificates(roots)
            .with_client_auth_cert(own.clone(), key.clone_key())
            .map_err(text)?;
        client.resumption = Resumption::disabled();
        let mut grpc = client.clone();
        grpc.alpn_protocols.push(HTTP2.to_vec());
        let http = of_door(&provider, of_http, own.clone(), key.clone_key())?;
        let mut server = of_door(&provider, verifier, own, key)?;
        // gRPC clients insist on it. A client that names no protocol is taken as well.
        server.alpn_protocols.push(HTTP2.to_vec());
        Ok(Self { client: Arc::new(client), grpc: Arc::new(grpc), server: Arc::new(server), http: Arc::new(http) })
    }
}

/// TLS of a door with this certificate.
fn of_door(
    provider: &Arc<CryptoProvider>,
    verifier: Arc<dyn ClientCertVerifier>,
    own: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
) -> Result<ServerConfig, String> {
    let text = |error: tokio_rustls::rustls::Error| error.to_string();
    let mut server = ServerConfig::builder_with_provider(provider.clone())
        .with_safe_default_protocol_versions()
        .map_err(text)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(own, key)
        .map_err(text)?;
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;
    Ok(server)
}

/// `connection` after a client's handshake, in which the server has proved to have this role in this cluster (TLS-T2).
pub(crate) async fn secure<C>(tls: Arc<ClientConfig>, role: Role, connection: C) -> io::Result<ClientStream<C>>
where
    C: AsyncRead + AsyncWrite + Unpin,
{
    let name = ServerName::try_from(role.dns_name()).map_err(io::Error::other)?;
    within(HANDSHAKE_TIMEOUT, "TLS handshake", TlsConnector::from(tls).connect(name, connection)).await
}

/// TLS of a client that a [`Dialer`](crate::Dialer) connects, and the certificates that it does not take.
pub(crate) type Secure = (Arc<ClientConfig>, Revocations);

/// A connection to HOST:PORT over TCP, with TLS if there are settings for it. The TCP connection takes at most `limit`,
/// after the lookup of the name. That has no limit here: it goes on in a thread if nobody waits for it.
pub(crate) async fn dial(address: &str, limit: Duration, tls: Option<Secure>) -> io::Result<Connection> {
    let found: Vec<SocketAddr> = tokio::net::lookup_host(address).await?.collect();
    let socket = within(limit, "connection", TcpStream::connect(&found[..])).await?;
    KeepAlive::GATEWAY.set_up(&socket)?;
    let Some((tls, revocations)) = tls else { return Ok(Box::new(socket)) };
    let secured = secure(tls, Role::Gateway, socket).await?;
    let own = secured.get_ref().1.peer_certificates().and_then(|all| all.first());
    let own = own.map(|own| own.to_vec());
    Ok(Box::new(revocations.follow(secured, own)?))
}

pub(crate) async fn within<T>(limit: Duration, what: &str, made: impl Future<Output = io::Result<T>>) -> io::Result<T> {
    tokio::time::timeout(limit, made)
        .await
        .unwrap_or_else(|_| Err(io::Error::new(io::ErrorKind::TimedOut, format!("{what}: not within {limit:?}"))))
}
