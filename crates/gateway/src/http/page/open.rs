//! A door without TLS (`tls.http = "off"`, ADR 0054): the page is for this machine alone (WEB-H2).

use crate::doors::Door;
use axum::extract::connect_info::Connected;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::uri::{Authority, Uri};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use axum::serve::IncomingStream;
use std::net::{IpAddr, SocketAddr};

/// What a proxy adds. Its own address would be taken for its client's.
const OF_PROXIES: [&str; 6] = ["forwarded", "via", "x-real-ip", "x-client-ip", "true-client-ip", "cf-connecting-ip"];

/// How other names of such headers begin. Envoy may send `X-Forwarded-Proto` alone.
const BEGIN_OF_PROXIES: [&str; 2] = ["x-forwarded-", "x-envoy-"];

/// The other end of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Neighbour(SocketAddr);

impl Connected<IncomingStream<'_, Door>> for Neighbour {
    fn connect_info(stream: IncomingStream<'_, Door>) -> Self {
        Self(*stream.remote_addr())
    }
}

/// Before each request. `here` is the address at which the door listens.
pub(crate) async fn guard(
    State(here): State<IpAddr>,
    ConnectInfo(Neighbour(from)): ConnectInfo<Neighbour>,
    request: Request,
    next: Next,
) -> Response {
    // `OPTIONS /` is a health check.
    if !is_page(request.uri().path()) || request.method() == Method::OPTIONS {
        return next.run(request).await;
    }
    match refusal(from.ip(), here, request.uri(), request.headers()) {
        None => next.run(request).await,
        Some(found) => {
            tracing::debug!(%from, found, "a request for the page was refused");
            let text = format!(
                "found {found}, expected a browser on the gateway's machine, at localhost or an address: without TLS \
                 this door knows nobody. Use `ssh -L`, or set [tls] http = \"required\" and show a viewer's \
                 certificate\n"
            );
            (StatusCode::FORBIDDEN, text).into_response()
        }
    }
}

fn is_page(path: &str) -> bool {
    path == "/" || path.starts_with("/page/")
}

/// Why a client does not get the page; `None` if it does.
fn refusal(from: IpAddr, here: IpAddr, asked: &Uri, headers: &HeaderMap) -> Option<&'static str> {
    let from = from.to_canonical();
    // Who connects to the machine's own address from there comes under that address.
    let from_itself = from.is_loopback() || from == here.to_canonical() && !from.is_unspecified();
    if !from_itself {
        return Some("a request from another machine");
    }
    if through_proxy(headers) {
        return Some("a request through a proxy");
    }
    // A page of a stranger may have its own name resolved to 127.0.0.1; the browser then lets it read what is there,
    // and sends that name. Under an address nobody else can be meant.
    let named = headers.get_all(header::HOST).iter().all(|host| host.to_str().is_ok_and(is_local));
    // `GET http://NAME/` has the name there.
    let named = named && asked.authority().is_none_or(|name| is_local(name.as_str()));
    (!named).then_some("a request under another name than localhost")
}

/// Whether a request has come through a proxy that says so.
pub(super) fn through_proxy(headers: &HeaderMap) -> bool {
    headers.keys().any(|name| is_of_proxies(name.as_str()))
}

fn is_of_proxies(header: &str) -> bool {
    OF_PROXIES.contains(&header) || BEGIN_OF_PROXIES.iter().any(|begin| header.starts_with(begin))
}

fn is_local(host: &str) -> bool {
    let Ok(authority) = host.parse::<Authority>() else { return false };
    let name = authority.host().trim_start_matches('[').trim_end_matches(']');
    name.eq_ignore_ascii_case("localhost") || name.parse::<IpAddr>().is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// At a door that listens at 10.0.0.5.
    fn asked(from: &str, headers: &[(&'static str, &'static str)]) -> bool {
        let headers: HeaderMap = headers
            .iter()
            .map(|(name, value)| (header::HeaderName::from_static(name), header::HeaderValue::from_static(value)))
            .collect();
        refusal(from.parse().unwrap(), IpAddr::from([10, 0, 0, 5]), &Uri::from_static("/"), &headers).is_none()
    }

    #[test]
    fn h2_the_page_is_for_this_machine() {
        for local in ["127.0.0.1", "127.8.0.1", "::1", "::ffff:127.0.0.1", "10.0.0.5", "::ffff:10.0.0.5"] {
            assert!(asked(local, &[("host", "localhost:7402")]), "{local}");
        }
        for other in ["10.0.0.1", "0.0.0.0", "fd00::1", "::ffff:10.0.0.1"] {
            assert!(!asked(other, &[("host", "localhost:7402")]), "{other}");
        }
        let anywhere = IpAddr::from([0, 0, 0, 0]);
        assert!(refusal(anywhere, anywhere, &Uri::from_static("/"), &HeaderMap::new()).is_some());
        for proxy in ["forwarded", "x-forwarded-for", "x-forwarded-proto", "x-envoy-id", "x-real-ip", "via"] {
            assert!(!asked("127.0.0.1", &[("host", "localhost:7402"), (proxy, "10.0.0.1")]), "{proxy}");
        }
    }

    #[test]
    fn h2_a_name_of_somebody_else_is_refused() {
        for local in ["localhost", "LOCALHOST:1", "127.0.0.1:7402", "[::1]:7402", "10.0.0.1:80"] {
            assert!(asked("127.0.0.1", &[("host", local)]), "{local}");
        }
        for other in ["evil.example:7402", "localhost.evil.example", "", "127.0.0.1.evil.example", "a b"] {
            assert!(!asked("127.0.0.1", &[("host", other)]), "{other:?}");
        }
        assert!(asked("127.0.0.1", &[]), "HTTP/1.0: no browser");
        let both = [("host", "localhost:7402"), ("host", "evil.example")];
        let mut headers = HeaderMap::new();
        for (name, value) in both {
            headers.append(name, header::HeaderValue::from_static(value));
        }
        let here = IpAddr::from([127, 0, 0, 1]);
        assert!(refusal(here, here, &Uri::from_static("/"), &headers).is_some(), "the second one counts as well");
        for (asked, refused) in [("http://evil.example/", true), ("http://localhost:7402/", false)] {
            let found = refusal(here, here, &Uri::from_static(asked), &HeaderMap::new());
            assert_eq!(found.is_some(), refused, "{asked}");
        }
    }
}
