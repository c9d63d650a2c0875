//! Connects clients to gateways.

use crate::live::Live;
use crate::revoked::{Checked, Revocations};
use crate::role::{Caller, Role};
use crate::stream::{ClientStream, Connection, Dial, HANDSHAKE_TIMEOUT, dial, secure, within};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tonic::codegen::Service;
use tonic::codegen::http::Uri;
use tonic::transport::{Channel, Endpoint};

/// Time limit of the connection below TLS, where an endpoint sets none.
const CONNECT_LIMIT: Duration = Duration::from_secs(10);

/// Makes a channel from an endpoint; it connects when first used.
pub type Connect = Arc<dyn Fn(&Endpoint) -> Channel + Send + Sync>;

/// Makes endpoints of gateways, and connections to them: with TLS if this process has a certificate, else without.
/// Each connection uses the certificate as it was read last (LIVE-C1). Cheap to clone.
#[derive(Clone, Default)]
pub struct Dialer {
    tls: Option<Arc<Live>>,
    /// Used in place of TCP.
    over: Option<Over>,
}

#[derive(Clone)]
struct Over {
    connect: Connect,
    dial: Dial,
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls.is_some() { "Dialer(TLS)" } else { "Dialer(plaintext)" })
    }
}

impl Dialer {
    pub(crate) fn with(tls: Arc<Live>) -> Self {
        Self { tls: Some(tls), over: None }
    }

    /// Without TLS: for this machine, or for a private network.
    pub fn plaintext() -> Self {
        Self::default()
    }

    /// Without TLS, over a simulated network.
    pub fn over(connect: Connect, dial: Dial) -> Self {
        Self { tls: None, over: Some(Over { connect, dial }) }
    }

    /// The certificates that count no more, for this process. `None`: it has none of its own.
    pub fn revocations(&self) -> Option<Revocations> {
        self.tls.as_ref().map(|live| live.revocations().clone())
    }

    /// Why no handshake of this process succeeds (LIVE-C4); `None` if its files were read, or it has none.
    pub fn unusable(&self) -> Option<String> {
        self.tls.as_ref()?.current().err().map(|error| error.to_string())
    }

    /// TLS for a connection that begins without (NBD). `None`: this process has no certificate.
    pub fn connector(&self) -> Option<Connector> {
        self.tls.clone().map(Connector)
    }

    /// A channel to `endpoint` that connects when it is first used, and again when a connection has ended.
    pub fn channel(&self, endpoint: &Endpoint) -> Channel {
        match (&self.over, &self.tls) {
            (Some(over), _) => (over.connect)(endpoint),
            (None, Some(live)) => {
                let (endpoint, secured) = secured(live, endpoint);
                endpoint.connect_with_connector_lazy(secured)
            }
            (None, None) => endpoint.connect_lazy(),
        }
    }

    /// A connected channel to `endpoint`; over a simulated network one that connects when first used.
    ///
    /// # Errors
    /// The connection cannot be made.
    pub async fn connect(&self, endpoint: &Endpoint) -> Result<Channel, tonic::transport::Error> {
        match (&self.over, &self.tls) {
            (Some(over), _) => Ok((over.connect)(endpoint)),
            (None, Some(live)) => {
                let (endpoint, secured) = secured(live, endpoint);
                endpoint.connect_with_connector(secured).await
            }
            (None, None) => endpoint.connect().await,
        }
    }

    /// A connection to the gateway at `address` (HOST:PORT) that is not HTTP/2. The server must prove to be a gateway
    /// of this cluster (TLS-T2). The connection below TLS takes at most `limit`. The lookup of a name comes before
    /// that and ends when the resolver gives up, also if this call is dropped: calls that are dropped pile them up.
    ///
    /// # Errors
    /// The connection cannot be made, or not in time; the server has no certificate of a gateway, or a revoked one.
    pub async fn stream(&self, address: &str, limit: Duration) -> io::Result<Connection> {
        match &self.over {
            Some(over) => within(limit, "connection", (over.dial)(address)).await,
            None => {
                let secure = match &self.tls {
                    Some(live) => Some((live.current()?.configs.client, live.revocations().clone())),
                    None => None,
                };
                dial(address, limit, secure).await
            }
        }
    }

    /// The gateway at `address` (HOST:PORT). Only [`Self::channel`] and [`Self::connect`] may connect to it: they add
    /// TLS, and the server must prove to be a gateway of this cluster (TLS-T2). The endpoint by itself has none.
    ///
    /// # Errors
    /// An invalid address.
    pub fn endpoint(&self, address: &str) -> Result<Endpoint, String> {
        let bad = |error: &dyn std::error::Error| format!("address {address:?}: {}", innermost(error));
        let endpoint = Endpoint::from_shared(format!("http://{address}")).map_err(|error| bad(&error))?;
        if self.tls.is_none() {
            return Ok(endpoint);
        }
        // What calls say about their connection.
        let origin = format!("https://{address}").parse::<Uri>().map_err(|error| bad(&error))?;
        Ok(endpoint.origin(origin))
    }

    /// Reads the files of the certificate again when they change, and on SIGHUP. Without it they stay as they were at
    /// the start. Once in a process; without TLS it waits for ever.
    pub async fn follow(&self) -> Infallible {
        match &self.tls {
            Some(live) => live.follow().await,
            None => std::future::pending().await,
        }
    }
}

/// TLS of a client over a connection that is there already: NBD, and HTTP of an agent. Each handshake uses the
/// certificate as it was read last (LIVE-C1). Cheap to clone.
#[derive(Clone)]
pub struct Connector(Arc<Live>);

impl fmt::Debug for Connector {
    /// Without the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Connector")
    }
}

impl Connector {
    /// `connection` after the handshake, in which the server has proved to be a gateway of this cluster (TLS-T2). It
    /// ends when that one's certificate is revoked (REVOKE-V2).
    ///
    /// # Errors
    /// No handshake within five seconds, or none with a gateway's certificate that is not revoked.
    pub async fn connect<C>(&self, connection: C) -> io::Result<Checked<ClientStream<C>>>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let secured = secure(self.0.current()?.configs.client, Role::Gateway, connection).await?;
        let own = secured.get_ref().1.peer_certificates().and_then(|all| all.first()).map(|own| own.to_vec());
        self.0.revocations().follow(secured, own)
    }

    /// `connection` after the handshake, in which the server has proved to be a host of this cluster, and what its
    /// certificate says. The caller checks which host that is. It ends when that certificate is revoked (REVOKE-V2).
    ///
    /// # Errors
    /// No handshake within five seconds, or none with a host's certificate that is not revoked.
    pub async fn connect_host<C>(&self, connection: C) -> io::Result<(Checked<ClientStream<C>>, Caller)>
    where
        C: AsyncRead + AsyncWrite + Unpin,
    {
        let secured = secure(self.0.current()?.configs.client, Role::Host, connection).await?;
        let own = secured.get_ref().1.peer_certificates().and_then(|all| all.first()).map(|own| own.to_vec());
        let peer = Caller::at_door(own.as_deref());
        let peer = peer.map_err(|status| io::Error::other(status.message().to_string()))?;
        Ok((self.0.revocations().follow(secured, own)?, peer))
    }
}

/// The endpoint and what makes its connections. The handshake has its own time limit, on top of that of the connection
/// below.
fn secured(live: &Arc<Live>, endpoint: &Endpoint) -> (Endpoint, Secured) {
    let limit = endpoint.get_connect_timeout().unwrap_or(CONNECT_LIMIT);
    let endpoint = endpoint.clone().connect_timeout(limit.saturating_add(HANDSHAKE_TIMEOUT));
    (endpoint, Secured { live: live.clone(), limit })
}

/// Makes the connections of a channel. TLS of `tonic` itself keeps the certificate that it was given first.
struct Secured {
    live: Arc<Live>,
    limit: Duration,
}

impl Service<Uri> for Secured {
    type Response = TokioIo<Connection>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TokioIo<Connection>>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<io::Result<()>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, uri: Uri) -> Self::Future {
        let (live, limit) = (self.live.clone(), self.limit);
        Box::pin(async move {
            let address = uri.authority().ok_or(io::ErrorKind::InvalidInput)?;
            let secure = (live.current()?.configs.grpc, live.revocations().clone());
            dial(address.as_str(), limit, Some(secure)).await.map(TokioIo::new)
        })
    }
}

/// "unknown issuer" rather than "transport error".
fn innermost(error: &dyn std::error::Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}
