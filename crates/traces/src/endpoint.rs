//! Which collectors spans may be sent to, and how to connect to one.

use std::error::Error;
use std::time::Duration;
use tonic::transport::{Certificate, Channel, ClientTlsConfig, Endpoint};
use url::{Host, Url};

/// How long a connection may take to be made.
const CONNECT_LIMIT: Duration = Duration::from_secs(5);

/// A collector cannot be sent to: its address, or the certificate of its authority.
#[derive(Debug, thiserror::Error)]
#[error("no traces can be sent to {endpoint:?}: {reason}")]
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
    allowed(endpoint, ca).map(|_| ())
}

/// The address as it was understood, if [`check`] allows it.
fn allowed(endpoint: &str, ca: bool) -> Result<Url, &'static str> {
    const FORM: &str = "https://HOST:PORT, or http:// with a loopback address, such as http://127.0.0.1:4317 (R10)";
    let url = Url::parse(endpoint).map_err(|_| FORM)?;
    let loopback = match url.host() {
        None => return Err(FORM),
        Some(Host::Domain(_)) => false,
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
    };
    let bare = url.path() == "/" && url.query().is_none() && url.fragment().is_none();
    // A password would be in logs, and no collector would get it.
    let nameless = url.username().is_empty() && url.password().is_none();
    let (https, plain) = (url.scheme() == "https", url.scheme() == "http" && loopback);
    if !(bare && nameless && (https || plain)) {
        return Err(FORM);
    }
    if https && !ca {
        return Err("the certificate of the authority in traces.ca beside https");
    }
    Ok(url)
}

/// The reason below the reasons, such as that nobody listens there.
pub(crate) fn innermost(error: &dyn Error) -> String {
    let mut deepest = error;
    while let Some(source) = deepest.source() {
        deepest = source;
    }
    deepest.to_string()
}

/// How to connect. Connects to nobody.
///
/// # Errors
/// Not an allowed address, or no certificate in `ca` (PEM), or a damaged one.
pub(crate) fn way(address: &str, ca: Option<&[u8]>) -> Result<Endpoint, TracesError> {
    let bad = |reason: String| TracesError { endpoint: address.to_string(), reason };
    let url = allowed(address, ca.is_some()).map_err(|expected| bad(format!("expected {expected}")))?;
    // What was checked, not the text: another reader of the text might find another host or scheme in it (R10).
    let mut endpoint = Endpoint::from_shared(url.to_string()).map_err(|e| bad(innermost(&e)))?;
    endpoint = endpoint.connect_timeout(CONNECT_LIMIT).tcp_nodelay(true);
    if let Some(ca) = ca.filter(|_| url.scheme() == "https") {
        // A file without any would be an authority that nobody is signed by.
        if !String::from_utf8_lossy(ca).contains("-----BEGIN CERTIFICATE-----") {
            return Err(bad("found no certificate in traces.ca, expected PEM".to_string()));
        }
        let tls = ClientTlsConfig::new().ca_certificate(Certificate::from_pem(ca));
        endpoint = endpoint.tls_config(tls).map_err(|e| bad(format!("traces.ca: {}", innermost(&e))))?;
    }
    Ok(endpoint)
}

/// Connects when something is sent. Needs the runtime.
///
/// # Errors
/// As [`way`].
pub(crate) fn channel(address: &str, ca: Option<&[u8]>) -> Result<Channel, TracesError> {
    Ok(way(address, ca)?.connect_lazy())
}
