//! Which collectors spans may be sent to, and how to connect to one.

use std::time::Duration;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use url::{Host, Url};

/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// The address of a collector cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{endpoint:?} is no address of a collector: {reason}")]
pub struct TracesError {
    /// As given.
    endpoint: String,
    /// What is wrong with it.
    reason: String,
}

/// Whether spans may be sent to `endpoint`. `ca`: the settings name the certificate of an authority. Names of sets and
/// volumes are in spans, so they leave this machine over TLS only (R10). A host name may be that of another machine
/// tomorrow: plain text needs the loopback address itself.
///
/// # Errors
/// What was expected, for people.
pub fn check(endpoint: &str, ca: bool) -> Result<(), &'static str> {
    const FORM: &str = "https://HOST:PORT, or http:// with a loopback address, such as http://127.0.0.1:4317 (R10)";
    let url = Url::parse(endpoint).map_err(|_| FORM)?;
    let loopback = match url.host() {
        None => return Err(FORM),
        Some(Host::Domain(_)) => false,
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
    };
    let plain = url.scheme() == "http" && loopback;
    let bare = url.path() == "/" && url.query().is_none() && url.username().is_empty();
    match url.scheme() {
        _ if !bare => Err(FORM),
        "https" if ca => Ok(()),
        "https" => Err("the certificate of the authority in traces.ca beside https"),
        _ if plain => Ok(()),
        _ => Err(FORM),
    }
}

/// Connects when something is sent. Needs the runtime.
///
/// # Errors
/// Not an allowed address, or no certificate in `ca` (PEM).
pub(crate) fn channel(address: &str, ca: Option<&[u8]>) -> Result<Channel, TracesError> {
    let bad = |reason: String| TracesError { endpoint: address.to_string(), reason };
    check(address, ca.is_some()).map_err(|expected| bad(format!("expected {expected}")))?;
    let mut endpoint = Endpoint::from_shared(address.to_string()).map_err(|e| bad(e.to_string()))?;
    endpoint = endpoint.connect_timeout(CONNECT_LIMIT).tcp_nodelay(true);
    if let Some(ca) = ca.filter(|_| address.starts_with("https://")) {
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
        endpoint = endpoint.tls_config(tls).map_err(|e| bad(e.to_string()))?;
    }
    Ok(endpoint.connect_lazy())
}
