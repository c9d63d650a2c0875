//! The HTTP client of an S3 store: the certificates that it trusts, and the proxy that it uses.
//!
//! ```text
//!   AWS_CA_BUNDLE ─ set ──▶ these certificates only      (as AWS's own tools)
//!                 └ else ─▶ SSL_CERT_FILE, SSL_CERT_DIR, else those of the system
//!   HTTPS_PROXY, for http:// HTTP_PROXY, else ALL_PROXY ──▶ through it, but for this host itself and for NO_PROXY
//! ```
//!
//! A certificate with CA:TRUE is refused as a server's own, even if it is trusted (`CaUsedAsEndEntity`). This is a rule
//! of rustls' default verifier, and `ConnectorBuilder` accepts no other verifier, no `rustls::ClientConfig` and no
//! connector. To accept such a certificate, this client would need a connector of its own, over `hyper-rustls`, with
//! proxies and timeouts.

use crate::options::{Proxies, Secret, StoreOptions};
use crate::url_error::{CA_BUNDLE_BYTES_MAX, StoreUrlError};
use aws_sdk_s3::config::SharedHttpClient;
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::{self, TlsContext, TrustStore};
use aws_smithy_http_client::{Connector, ConnectorBuilder};
use aws_smithy_runtime_api::client::http::{HttpConnectorSettings, SharedHttpConnector, http_client_fn};
use aws_smithy_types::base64;
use rustls_pki_types::CertificateDer;
use rustls_pki_types::pem::PemObject;
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::time::Duration;
use url::{Host, Url};

/// Idle connections kept per endpoint: a store answers tens of requests at a time, not thousands.
const IDLE_CONNECTIONS_MAX: usize = 64;
/// Shorter than what servers and load balancers usually grant, so that a request seldom meets a closing connection.
const IDLE_CONNECTION_AGE_MAX: Duration = Duration::from_secs(20);

/// TLS by rustls with ring. `endpoint`: none for AWS itself. Reads certificates: may block.
///
/// # Errors
/// The bundle or the proxy cannot be used.
pub(super) fn client(endpoint: Option<&str>, options: &StoreOptions) -> Result<SharedHttpClient, StoreUrlError> {
    let endpoint = endpoint.and_then(|endpoint| Url::parse(endpoint).ok());
    let plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.scheme() == "http");
    let roots = match &options.ca_bundle {
        // For a plain endpoint no root is loaded: a machine without any must still reach it, and TLS would trust
        // nothing.
        _ if plain => TrustStore::empty(),
        Some(bundle) => trusting(bundle)?,
        None => TrustStore::default(),
    };
    let context = TlsContext::builder().with_trust_store(roots).build().unwrap_or_default();
    let settings = HttpConnectorSettings::builder()
        .connect_timeout(options.connect_timeout())
        .read_timeout(options.retry.longest_attempt())
        .build();
    let builder: ConnectorBuilder = Connector::builder();
    let connector = builder
        .connector_settings(settings)
        .proxy_config(proxy(endpoint.as_ref(), plain, &options.proxies)?)
        .pool_idle_timeout(IDLE_CONNECTION_AGE_MAX)
        .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
        .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring))
        .tls_context(context)
        .build();
    // One connector for all requests: it owns the connections.
    let connector = SharedHttpConnector::new(connector);
    Ok(http_client_fn(move |_, _| connector.clone()))
}

/// Whether this is the host itself, which is never reached through a proxy.
fn is_loopback(endpoint: &Url) -> bool {
    match endpoint.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

fn proxy(endpoint: Option<&Url>, plain: bool, proxies: &Proxies) -> Result<ProxyConfig, StoreUrlError> {
    if endpoint.is_some_and(is_loopback) {
        return Ok(ProxyConfig::disabled());
    }
    let own = if plain { ("HTTP_PROXY", &proxies.http) } else { ("HTTPS_PROXY", &proxies.https) };
    let all = ("ALL_PROXY", &proxies.all);
    let Some((name, url)) = [own, all].into_iter().find_map(|(name, url)| Some((name, url.as_ref()?))) else {
        return Ok(ProxyConfig::disabled());
    };
    let config = ProxyConfig::all(with_scheme(url)).map_err(|_| StoreUrlError::Option {
        name,
        found: shown(url),
        expected: "http://[USER:PASSWORD@]HOST:PORT or https://[USER:PASSWORD@]HOST:PORT",
    })?;
    Ok(config.no_proxy(proxies.except.as_deref().unwrap_or_default()))
}

fn with_scheme(url: &Secret) -> String {
    let url = url.reveal();
    if url.contains("://") { url.to_owned() } else { format!("http://{url}") }
}

/// The part before an @ may be a password.
fn shown(url: &Secret) -> String {
    if url.reveal().contains('@') { "***".to_owned() } else { url.reveal().chars().take(200).collect() }
}

/// The certificates of a PEM file. One that cannot be parsed is skipped, as in the system's own list.
fn trusting(bundle: &Path) -> Result<TrustStore, StoreUrlError> {
    let bad = |found: String| StoreUrlError::CaBundle { path: bundle.to_owned(), found };
    let unreadable = |error: std::io::Error| bad(error.to_string());
    let file = File::open(bundle).map_err(unreadable)?;
    // Reading a pipe could block for ever.
    if !file.metadata().map_err(unreadable)?.is_file() {
        return Err(bad("no regular file".to_owned()));
    }
    let mut pem = Vec::new();
    file.take(CA_BUNDLE_BYTES_MAX + 1).read_to_end(&mut pem).map_err(unreadable)?;
    if pem.len() as u64 > CA_BUNDLE_BYTES_MAX {
        return Err(bad(format!("more than {CA_BUNDLE_BYTES_MAX} bytes")));
    }
    let mut roots = TrustStore::empty();
    let (mut trusted, mut passed_over) = (0_u32, 0_u32);
    for certificate in CertificateDer::pem_slice_iter(&pem) {
        match certificate {
            // The client would panic for a certificate that cannot be parsed.
            Ok(der) if webpki::anchor_from_trusted_cert(&der).is_ok() => {
                roots.add_pem_certificate(pem_of(&der));
                trusted += 1;
            }
            _ => passed_over += 1,
        }
    }
    match (trusted, passed_over) {
        (0, 0) => Err(bad("no certificate".to_owned())),
        (0, bad_ones) => Err(bad(format!("{bad_ones} certificates, none of which can be parsed"))),
        (_, 0) => Ok(roots),
        (trusted, passed_over) => {
            tracing::warn!(bundle = %bundle.display(), trusted, passed_over, "some certificates of AWS_CA_BUNDLE cannot be parsed; the others are trusted");
            Ok(roots)
        }
    }
}

fn pem_of(der: &CertificateDer<'_>) -> String {
    format!("-----BEGIN CERTIFICATE-----\n{}\n-----END CERTIFICATE-----\n", base64::encode(der.as_ref()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(endpoint: Option<&str>, proxies: &Proxies) -> Result<bool, StoreUrlError> {
        let endpoint = endpoint.map(|endpoint| Url::parse(endpoint).expect("URL"));
        let plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.scheme() == "http");
        proxy(endpoint.as_ref(), plain, proxies).map(|config| !config.is_disabled())
    }

    #[test]
    fn each_scheme_has_its_proxy_and_this_host_has_none() {
        let some = |url: &str| Some(Secret::new(url));
        let https = Proxies { https: some("http://proxy:3128"), ..Proxies::default() };
        let all = Proxies { all: some("proxy:3128"), ..Proxies::default() };
        for (endpoint, of_https, of_all) in [
            (None, true, true),
            (Some("https://minio.example:9000"), true, true),
            (Some("http://minio.example:9000"), false, true),
            (Some("https://localhost:9000"), false, false),
            (Some("https://127.0.0.1:9000"), false, false),
            (Some("http://[::1]:9000"), false, false),
        ] {
            assert_eq!(through(endpoint, &https), Ok(of_https), "{endpoint:?}");
            assert_eq!(through(endpoint, &all), Ok(of_all), "{endpoint:?}");
            assert_eq!(through(endpoint, &Proxies::default()), Ok(false), "{endpoint:?}");
        }
        let socks = Proxies { https: some("socks5://user:hunter2@proxy:1080"), ..Proxies::default() };
        let error = through(None, &socks).expect_err("no such proxy").to_string();
        assert!(error.contains("HTTPS_PROXY") && error.contains("expected http://"), "{error}");
        assert!(!error.contains("hunter2"), "{error}");
    }

    #[test]
    fn a_bundle_without_certificates_is_refused() {
        let dir = tempfile::tempdir().expect("directory");
        let path = dir.path().join("ca.pem");
        let junk = "-----BEGIN CERTIFICATE-----\naGVsbG8=\n-----END CERTIFICATE-----\n";
        for (text, says) in [("", "no certificate"), ("hello", "no certificate"), (junk, "none of which")] {
            std::fs::write(&path, text).expect("write");
            let error = trusting(&path).expect_err(says).to_string();
            assert!(error.contains(says) && error.contains("AWS_CA_BUNDLE"), "{error}");
        }
        let error = trusting(&dir.path().join("nothing")).expect_err("no file").to_string();
        assert!(error.contains("No such file"), "{error}");
        let error = trusting(dir.path()).expect_err("a directory").to_string();
        assert!(error.contains("no regular file"), "{error}");
    }
}
