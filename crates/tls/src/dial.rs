//! Connects clients to gateways.

use std::fmt;
use std::sync::Arc;
use tonic::transport::{Channel, ClientTlsConfig, Endpoint};

/// Makes a channel from an endpoint; it connects when first used.
pub type Connect = Arc<dyn Fn(&Endpoint) -> Channel + Send + Sync>;

/// Makes endpoints of gateways: with TLS if this process has a certificate, else without. Cheap to clone.
#[derive(Clone, Default)]
pub struct Dialer {
    tls: Option<ClientTlsConfig>,
    /// Used in place of TCP.
    connect: Option<Connect>,
}

impl fmt::Debug for Dialer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls.is_some() { "Dialer(TLS)" } else { "Dialer(plaintext)" })
    }
}

impl Dialer {
    pub(crate) fn with(tls: ClientTlsConfig) -> Self {
        Self { tls: Some(tls), connect: None }
    }

    /// Without TLS: for this machine, or for a private network.
    pub fn plaintext() -> Self {
        Self::default()
    }

    /// Without TLS, over a simulated network.
    pub fn over(connect: Connect) -> Self {
        Self { tls: None, connect: Some(connect) }
    }

    /// A channel to `endpoint` that connects when it is first used.
    pub fn channel(&self, endpoint: &Endpoint) -> Channel {
        self.connect.as_ref().map_or_else(|| endpoint.connect_lazy(), |connect| connect(endpoint))
    }

    /// A connected channel to `endpoint`; over a simulated network one that connects when first used.
    ///
    /// # Errors
    /// The connection cannot be made.
    pub async fn connect(&self, endpoint: &Endpoint) -> Result<Channel, tonic::transport::Error> {
        match &self.connect {
            Some(connect) => Ok(connect(endpoint)),
            None => endpoint.connect().await,
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
            Some(tls) => endpoint.tls_config(tls.clone()).map_err(|error| innermost(&error)),
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
