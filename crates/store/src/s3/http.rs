//! The HTTP client of an S3 store, and the proxy that it uses.
//!
//! ```text
//!   https:// ─▶ a connector of ours, for its certificates (`trust`)
//!   http://  ─▶ the SDK's
//!   HTTPS_PROXY, for http:// HTTP_PROXY, else ALL_PROXY ──▶ through it, but for this host itself and for NO_PROXY
//! ```

use super::connect::{Https, IDLE_CONNECTION_AGE_MAX, IDLE_CONNECTIONS_MAX};
use super::trust::Trust;
use crate::options::{Proxies, Secret, StoreOptions};
use crate::url_error::StoreUrlError;
use aws_sdk_s3::config::SharedHttpClient;
use aws_smithy_http_client::proxy::ProxyConfig;
use aws_smithy_http_client::tls::{self, TlsContext, TrustStore};
use aws_smithy_http_client::{Connector, ConnectorBuilder};
use aws_smithy_runtime_api::client::http::{HttpConnectorSettings, SharedHttpConnector, http_client_fn};
use hyper_util::client::proxy::matcher::Matcher;
use url::{Host, Url};

/// A client of the SDK over [`connector`].
///
/// # Errors
/// As [`connector`].
pub(crate) fn client(endpoint: Option<&str>, options: &StoreOptions) -> Result<SharedHttpClient, StoreUrlError> {
    let connector = connector(endpoint, options)?;
    Ok(http_client_fn(move |_, _| connector.clone()))
}

/// For STS: as for AWS itself. Reads certificates: may block.
///
/// # Errors
/// As [`connector`].
pub(super) fn through(options: &StoreOptions) -> Result<SharedHttpClient, StoreUrlError> {
    let mut options = options.clone();
    // An endpoint of STS may be on this machine.
    let except = options.proxies.except.as_deref().unwrap_or_default();
    options.proxies.except = Some(format!("{except},localhost,127.0.0.0/8,::1"));
    client(None, &options)
}

/// For metadata servers, over `http://` or `https://`, without a proxy (CREDS-K4). Reads certificates: may block.
///
/// # Errors
/// The bundle cannot be used.
pub(super) fn direct(options: &StoreOptions) -> Result<SharedHttpClient, StoreUrlError> {
    let https = Https::new(Trust::of(options)?.config(), None, options.connect_timeout());
    let connector = SharedHttpConnector::new(https);
    Ok(http_client_fn(move |_, _| connector.clone()))
}

/// TLS by rustls with ring. `endpoint`: none for AWS itself. One for all requests: the connections are its own. Reads
/// certificates: may block.
///
/// # Errors
/// The bundle or the proxy cannot be used.
pub(crate) fn connector(endpoint: Option<&str>, options: &StoreOptions) -> Result<SharedHttpConnector, StoreUrlError> {
    let endpoint = endpoint.and_then(|endpoint| Url::parse(endpoint).ok());
    let plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.scheme() == "http");
    let proxy = proxy(endpoint.as_ref(), plain, &options.proxies)?;
    if plain {
        return Ok(SharedHttpConnector::new(without_tls(proxy, options)));
    }
    let config = Trust::of(options)?.config();
    let proxies = proxy.map(|proxy| proxy.matcher);
    Ok(SharedHttpConnector::new(Https::new(config, proxies, options.connect_timeout())))
}

/// For a plain endpoint. No certificate is read: a machine without any must still reach it.
fn without_tls(proxy: Option<Proxy>, options: &StoreOptions) -> Connector {
    let context = TlsContext::builder().with_trust_store(TrustStore::empty()).build().unwrap_or_default();
    let settings = HttpConnectorSettings::builder()
        .connect_timeout(options.connect_timeout())
        .read_timeout(options.retry.longest_attempt())
        .build();
    let builder: ConnectorBuilder = Connector::builder();
    builder
        .connector_settings(settings)
        .proxy_config(proxy.map_or_else(ProxyConfig::disabled, |proxy| proxy.config))
        .pool_idle_timeout(IDLE_CONNECTION_AGE_MAX)
        .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
        .tls_provider(tls::Provider::Rustls(tls::rustls_provider::CryptoMode::Ring))
        .tls_context(context)
        .build()
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

/// A proxy, and whom it is not for: as either connector wants to have it.
struct Proxy {
    config: ProxyConfig,
    matcher: Matcher,
}

fn proxy(endpoint: Option<&Url>, plain: bool, proxies: &Proxies) -> Result<Option<Proxy>, StoreUrlError> {
    if endpoint.is_some_and(is_loopback) {
        return Ok(None);
    }
    let own = if plain { ("HTTP_PROXY", &proxies.http) } else { ("HTTPS_PROXY", &proxies.https) };
    let all = ("ALL_PROXY", &proxies.all);
    let Some((name, url)) = [own, all].into_iter().find_map(|(name, url)| Some((name, url.as_ref()?))) else {
        return Ok(None);
    };
    let except = proxies.except.as_deref().unwrap_or_default();
    let config = ProxyConfig::all(with_scheme(url)).map_err(|_| StoreUrlError::Option {
        name,
        found: shown(url),
        expected: "http://[USER:PASSWORD@]HOST:PORT or https://[USER:PASSWORD@]HOST:PORT",
    })?;
    let matcher = Matcher::builder().all(with_scheme(url)).no(except).build();
    Ok(Some(Proxy { config: config.no_proxy(except), matcher }))
}

fn with_scheme(url: &Secret) -> String {
    let url = url.reveal();
    if url.contains("://") { url.to_owned() } else { format!("http://{url}") }
}

/// The part before an @ may be a password.
fn shown(url: &Secret) -> String {
    if url.reveal().contains('@') { "***".to_owned() } else { url.reveal().chars().take(200).collect() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn through(endpoint: Option<&str>, proxies: &Proxies) -> Result<bool, StoreUrlError> {
        let endpoint = endpoint.map(|endpoint| Url::parse(endpoint).expect("URL"));
        let plain = endpoint.as_ref().is_some_and(|endpoint| endpoint.scheme() == "http");
        proxy(endpoint.as_ref(), plain, proxies).map(|proxy| proxy.is_some())
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
}
