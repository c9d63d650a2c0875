//! Connects clients to gateways.

use crate::stream::{Connection, Connector, Dial, dial, within};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;
use tokio_rustls::rustls::ClientConfig;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

/// Makes a channel from an endpoint; it connects when first used.
pub type Connect = Arc<dyn Fn(&Endpoint) -> Channel + Send + Sync>;

/// Makes endpoints of gateways, and connections to them: with TLS if this process has a certificate, else without.
/// Cheap to clone.
#[derive(Clone, Default)]
pub struct Dialer {
    tls: Option<ClientTls>,
    /// Used in place of TCP.
    over: Option<Over>,
}

/// The same settings twice: for gRPC, and for connections that are not HTTP/2.
#[derive(Clone)]
pub(crate) struct ClientTls {
    pub(crate) grpc: ClientTlsConfig,
    pub(crate) plain: Arc<ClientConfig>,
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
    pub(crate) fn with(tls: ClientTls) -> Self {
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

    /// TLS for a connection that begins without (NBD). `None`: this process has no certificate.
    pub fn connector(&self) -> Option<Connector> {
        self.tls.as_ref().map(|tls| Connector::new(tls.plain.clone()))
    }

    /// A channel to `endpoint` that connects when it is first used.
    pub fn channel(&self, endpoint: &Endpoint) -> Channel {
        self.over.as_ref().map_or_else(|| endpoint.connect_lazy(), |over| (over.connect)(endpoint))
    }

    /// A connected channel to `endpoint`; over a simulated network one that connects when first used.
    ///
    /// # Errors
    /// The connection cannot be made.
    pub async fn connect(&self, endpoint: &Endpoint) -> Result<Channel, tonic::transport::Error> {
        match &self.over {
            Some(over) => Ok((over.connect)(endpoint)),
            None => endpoint.connect().await,
        }
    }

    /// A connection to the gateway at `address` (HOST:PORT) that is not HTTP/2. The server must prove to be a gateway
    /// of this cluster (TLS-T2). The connection below TLS takes at most `limit`. The lookup of a name comes before
    /// that and ends when the resolver gives up, also if this call is dropped: calls that are dropped pile them up.
    ///
    /// # Errors
    /// The connection cannot be made, or not in time; the server has no certificate of a gateway.
    pub async fn stream(&self, address: &str, limit: Duration) -> io::Result<Connection> {
        match &self.over {
            Some(over) => within(limit, "connection", (over.dial)(address)).await,
            None => dial(address, limit, self.tls.as_ref().map(|tls| &tls.plain)).await,
        }
    }

    /// The gateway at `address` (HOST:PORT). The server must prove to be a gateway of this cluster (TLS-T2).
    ///
    /// # Errors
    /// An invalid address; a certificate that does not fit its key.
    pub fn endpoint(&self, address: &str) -> Result<Endpoint, String> {
        let scheme = if self.tls.is_some() { "https" } else { "http" };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
            .map_err(|error| format!("address {address:?}: {}", innermost(&error)))?;
        match &self.tls {
            Some(tls) => endpoint.tls_config(tls.grpc.clone()).map_err(|error| innermost(&error)),
            None => Ok(endpoint),
        }
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
