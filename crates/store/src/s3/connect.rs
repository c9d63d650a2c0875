//! Connections to a store over TLS. The SDK's own connector takes no verifier of certificates ([`super::trust`]); this
//! one is of the same parts, and does what the SDK asks of one: a limit for connecting, and giving connections up.
//!
//! ```text
//!   request ─▶ pool ─▶ Timed ─▶ TLS with the store ─▶ Way ─┬─▶ TCP
//!                                                          └─▶ CONNECT ─▶ the proxy, over TCP or TLS
//! ```
//!
//! There is no limit for an answer here: the SDK's own for an attempt is as long, and begins earlier.

use aws_smithy_runtime_api::box_error::BoxError;
use aws_smithy_runtime_api::client::connection::{CaptureSmithyConnection, ConnectionMetadata};
use aws_smithy_runtime_api::client::http::{HttpConnector, HttpConnectorFuture};
use aws_smithy_runtime_api::client::orchestrator::{HttpRequest, HttpResponse};
use aws_smithy_runtime_api::client::result::ConnectorError;
use aws_smithy_types::body::SdkBody;
use http::Uri;
use hyper_rustls::{HttpsConnector, MaybeHttpsStream};
use hyper_util::client::legacy::connect::proxy::Tunnel;
use hyper_util::client::legacy::connect::{CaptureConnection, HttpConnector as Tcp, capture_connection};
use hyper_util::client::legacy::{self, Client};
use hyper_util::client::proxy::matcher::Matcher;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use rustls::ClientConfig;
use std::error::Error;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;
use tokio::net::TcpStream;
use tower_service::Service;

/// Idle connections kept per endpoint: a store answers tens of requests at a time, not thousands.
pub(super) const IDLE_CONNECTIONS_MAX: usize = 64;
/// Shorter than what servers and load balancers usually grant, so that a request seldom meets a closing connection.
pub(super) const IDLE_CONNECTION_AGE_MAX: Duration = Duration::from_secs(20);

type Connecting<T> = Pin<Box<dyn Future<Output = Result<T, BoxError>> + Send>>;

/// What the TLS with the store runs over. `Https`: a proxy with a TLS of its own.
type Below = MaybeHttpsStream<TokioIo<TcpStream>>;

/// To the store's host, or through a proxy to it.
#[derive(Clone)]
struct Way {
    tcp: Tcp,
    to_proxy: HttpsConnector<Tcp>,
    proxies: Option<Arc<Matcher>>,
}

impl Service<Uri> for Way {
    type Response = Below;
    type Error = BoxError;
    type Future = Connecting<Below>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, store: Uri) -> Connecting<Below> {
        let Some(proxy) = self.proxies.as_ref().and_then(|proxies| proxies.intercept(&store)) else {
            let connecting = self.tcp.call(store);
            return Box::pin(async move { Ok(MaybeHttpsStream::Http(connecting.await?)) });
        };
        let mut tunnel = Tunnel::new(proxy.uri().clone(), self.to_proxy.clone());
        if let Some(user) = proxy.basic_auth() {
            tunnel = tunnel.with_auth(user.clone());
        }
        let connecting = tunnel.call(store);
        Box::pin(async move { Ok(connecting.await?) })
    }
}

/// No connection in time: proxy and TLS included.
#[derive(Debug, thiserror::Error)]
#[error("no connection within {0:?}")]
struct NoConnection(Duration);

#[derive(Clone)]
struct Timed {
    inner: HttpsConnector<Way>,
    limit: Duration,
}

impl Service<Uri> for Timed {
    type Response = MaybeHttpsStream<Below>;
    type Error = BoxError;
    type Future = Connecting<MaybeHttpsStream<Below>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), BoxError>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, store: Uri) -> Self::Future {
        let (connecting, limit) = (self.inner.call(store), self.limit);
        Box::pin(async move { tokio::time::timeout(limit, connecting).await.map_err(|_| NoConnection(limit))? })
    }
}

/// For `https://` endpoints.
#[derive(Debug)]
pub(super) struct Https(Client<Timed, SdkBody>);

impl Https {
    pub(super) fn new(config: ClientConfig, proxies: Option<Matcher>, connect_timeout: Duration) -> Self {
        let mut tcp = Tcp::new();
        tcp.set_nodelay(true);
        // The scheme of the URL is that of what runs over it.
        tcp.enforce_http(false);
        // A proxy is asked in HTTP/1.1.
        let mut with_proxy = config.clone();
        with_proxy.alpn_protocols.clear();
        let to_proxy = HttpsConnector::from((tcp.clone(), with_proxy));
        let way = Way { tcp, to_proxy, proxies: proxies.map(Arc::new) };
        let timed = Timed { inner: HttpsConnector::from((way, config)), limit: connect_timeout };
        let client = Client::builder(TokioExecutor::new())
            .pool_timer(TokioTimer::new())
            .pool_idle_timeout(IDLE_CONNECTION_AGE_MAX)
            .pool_max_idle_per_host(IDLE_CONNECTIONS_MAX)
            .build(timed);
        Self(client)
    }
}

impl HttpConnector for Https {
    fn call(&self, request: HttpRequest) -> HttpConnectorFuture {
        let mut request = match request.try_into_http1x() {
            Ok(request) => request,
            Err(error) => return HttpConnectorFuture::ready(Err(ConnectorError::user(error.into()))),
        };
        let used = capture_connection(&mut request);
        if let Some(asks) = request.extensions().get::<CaptureSmithyConnection>() {
            asks.set_connection_retriever(move || metadata(&used));
        }
        let answer = self.0.request(request);
        HttpConnectorFuture::new(async move {
            let answer = answer.await.map_err(failure)?.map(SdkBody::from_body_1_x);
            HttpResponse::try_from(answer).map_err(|error| ConnectorError::other(error.into(), None))
        })
    }
}

/// Of the connection that a request went over, if there was one: the SDK gives it up after some errors.
fn metadata(used: &CaptureConnection) -> Option<ConnectionMetadata> {
    let proxied = used.connection_metadata().as_ref()?.is_proxied();
    let used = used.clone();
    let give_up = move || {
        if let Some(connection) = used.connection_metadata().as_ref() {
            connection.poison();
        }
    };
    Some(ConnectionMetadata::builder().proxied(proxied).poison_fn(give_up).build())
}

/// What it was is read from the chain of errors (`classify`), but for the time that ran out.
fn failure(error: legacy::Error) -> ConnectorError {
    let late = error.source().is_some_and(|why| why.is::<NoConnection>());
    if late { ConnectorError::timeout(error.into()) } else { ConnectorError::io(error.into()) }
}
