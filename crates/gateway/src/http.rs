//! The HTTP listener: `/metrics` for Prometheus, health checks for supervisors and load balancers, a page for people.
//!
//! | path | 200 means |
//! | --- | --- |
//! | GET `/`, and `/page/...` for its parts | the state of the cluster for a browser (`page`); with TLS also its actions |
//! | `/livez` | the process answers; nothing else is checked, since a gateway that waits for others needs no restart |
//! | `/readyz`, `/healthz`, and `OPTIONS /` | the gateway can serve |
//! | `/serves/SET` | this gateway leads the set and can grant its lease: a TCP proxy in front of NBD sends clients here |
//!
//! Each path of a check answers GET, HEAD and OPTIONS, also over HTTP/1.0: without settings, HAProxy sends `OPTIONS /
//! HTTP/1.0`. With TLS (`tls.http`): `secured`.

mod page;
mod secured;

use crate::admin::GuardedAdmin;
use crate::doors::{self, Door};
use crate::node::Node;
use axum::Router;
use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::middleware::from_fn_with_state;
use axum::routing::{get, options};
use holdfast_tls::{HttpTls, Tls};
use holdfast_types::Name;
use metrics_exporter_prometheus::{Matcher, PrometheusBuilder, PrometheusHandle};
use page::Page;
use page::actions::{self, Actions};
use page::open::{self, Neighbour};
use secured::{Asker, Secured};
use std::convert::Infallible;
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::MissedTickBehavior;

/// Upper limits of the buckets in seconds: from a fast disk write to one that has waited for a takeover or a store.
const BUCKETS: [f64; 17] =
    [0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0];

/// Upper limits of the buckets of histograms that count something, and of those in bytes.
const COUNTS: [f64; 11] = [1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0, 256.0, 512.0, 1024.0];
const BYTES: [f64; 11] =
    [1024.0, 2048.0, 4096.0, 8192.0, 16_384.0, 32_768.0, 65_536.0, 131_072.0, 262_144.0, 524_288.0, 1_048_576.0];

/// How often measurements are moved into their buckets. Until then each one is kept separately. Without this, they
/// would use ever more memory if nobody requests the page. And a request after four million measurements would count
/// them all on the runtime's thread and delay heartbeats.
const GATHER: Duration = Duration::from_secs(1);

/// One recorder per process: a second gateway in the same process (tests) shares it.
fn recorder() -> Option<PrometheusHandle> {
    static HANDLE: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    HANDLE
        .get_or_init(|| {
            PrometheusBuilder::new()
                .set_buckets(&BUCKETS)
                .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_ops".to_string()), &COUNTS))
                .and_then(|builder| builder.set_buckets_for_metric(Matcher::Suffix("_bytes".to_string()), &BYTES))
                .and_then(PrometheusBuilder::install_recorder)
                .inspect(|_| crate::metrics::describe())
                .inspect_err(|e| tracing::warn!(error = %e, "no metrics: another recorder is installed"))
                .ok()
        })
        .clone()
}

/// Serves until the listener's task is dropped, with the TLS of `mode` if the gateway has a certificate.
/// `admin`: the API that the page's actions call.
pub(crate) async fn serve(
    listener: tokio::net::TcpListener,
    node: Arc<Node>,
    admin: GuardedAdmin,
    mode: HttpTls,
) -> std::io::Result<()> {
    let acceptor = node.tls.as_ref().filter(|_| mode != HttpTls::Off).map(Tls::acceptor);
    let recorder = recorder();
    let measured = recorder.clone();
    let (page, here) = (Page::new(node.clone()), listener.local_addr()?.ip());
    let actions = Actions::new(node.clone(), admin);
    let app = Router::new()
        .route("/metrics", get(move |state: State<Arc<Node>>| metrics_page(state, recorder.clone())))
        .route("/", options(health))
        .route("/livez", get(alive).options(alive))
        .route("/readyz", get(health).options(health))
        .route("/healthz", get(health).options(health))
        .route("/serves/{set}", get(serves).options(serves))
        .with_state(node)
        .merge(page::routes(page.clone()));
    let limits = if acceptor.is_some() { doors::HTTPS } else { doors::HTTP };
    let door = Door::new("http", listener, limits);
    let serving = async move {
        let Some(acceptor) = acceptor else {
            let app = app.layer(from_fn_with_state(here, open::guard));
            return axum::serve(door, app.into_make_service_with_connect_info::<Neighbour>()).await;
        };
        let app = app.merge(actions::routes(actions)).layer(from_fn_with_state(mode, secured::guard));
        axum::serve(Secured::new(door, acceptor), app.into_make_service_with_connect_info::<Asker>()).await
    };
    let gather = move || {
        if let Some(measured) = &measured {
            measured.run_upkeep();
        }
    };
    tokio::select! {
        served = serving => served,
        never = gathering(gather) => match never {},
        never = page.follow() => match never {},
    }
}

/// Calls `gather` as often as [`GATHER`] says, even if nobody requests the page.
async fn gathering(gather: impl Fn() + Clone + Send + 'static) -> Infallible {
    let mut ticks = tokio::time::interval(GATHER);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        if let Err(ended) = holdfast_log::spawn_blocking(gather.clone()).await
            && let Ok(panic) = ended.try_into_panic()
        {
            std::panic::resume_unwind(panic);
        }
    }
}

async fn metrics_page(State(node): State<Arc<Node>>, recorder: Option<PrometheusHandle>) -> (StatusCode, String) {
    node.record_gauges();
    let Some(recorder) = recorder else {
        return (StatusCode::SERVICE_UNAVAILABLE, "no metrics recorder\n".to_string());
    };
    let page = move || recorder.render() + &holdfast_host::process::page(env!("CARGO_PKG_VERSION"));
    match holdfast_log::spawn_blocking(page).await {
        Ok(page) => (StatusCode::OK, page),
        Err(error) => (StatusCode::INTERNAL_SERVER_ERROR, format!("cannot make the page: {error}\n")),
    }
}

async fn alive() -> &'static str {
    "ok\n"
}

/// The same status for a set that another gateway serves and for one that does not exist: a proxy needs no more. Who
/// asks all gateways can find out names by guessing; where TLS is required, [`secured`] lets only those ask who may.
async fn serves(State(node): State<Arc<Node>>, Path(name): Path<String>) -> (StatusCode, String) {
    let set = Name::new(name).ok().and_then(|name| node.set(&name));
    match set.map(|set| set.can_grant()) {
        Some(Ok(())) => (StatusCode::OK, "ok\n".to_string()),
        Some(Err(why)) => (StatusCode::SERVICE_UNAVAILABLE, format!("this gateway does not serve the set: {why}\n")),
        None => (StatusCode::SERVICE_UNAVAILABLE, "this gateway does not serve the set\n".to_string()),
    }
}

async fn health(State(node): State<Arc<Node>>) -> (StatusCode, String) {
    told(node.not_ready(), node.warnings().into_iter())
}

fn told(not_ready: Option<String>, warnings: impl Iterator<Item = String>) -> (StatusCode, String) {
    match not_ready {
        // A store with a problem does not stop a gateway from serving. It is a warning, but no reason to send clients
        // elsewhere (R8).
        None => {
            let warnings: String = warnings.map(|warning| format!("warning: {warning}\n")).collect();
            (StatusCode::OK, format!("ok\n{warnings}"))
        }
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::admin::guarded_admin;
    use crate::config::GatewayConfig;
    use holdfast_types::ByteSize;
    use std::time::Duration;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};
    use tokio_util::sync::CancellationToken;

    const PATIENCE: Duration = Duration::from_secs(20);

    #[test]
    fn r8_a_warning_sends_nobody_elsewhere() {
        let warnings = || ["the store is slow".to_string()].into_iter();
        assert_eq!(told(None, std::iter::empty()), (StatusCode::OK, "ok\n".to_string()));
        assert_eq!(told(None, warnings()), (StatusCode::OK, "ok\nwarning: the store is slow\n".to_string()));
        let unfit = told(Some("group 3 has no leader".to_string()), warnings());
        assert_eq!(unfit, (StatusCode::SERVICE_UNAVAILABLE, "group 3 has no leader\n".to_string()));
    }

    #[tokio::test]
    async fn what_was_measured_is_gathered_though_nobody_asks() {
        let (count, mut gathered) = tokio::sync::watch::channel(0_u32);
        let gathering = tokio::spawn(gathering(move || count.send_modify(|count| *count += 1)));
        // Several checks: the status repeats by itself.
        tokio::time::timeout(PATIENCE, gathered.wait_for(|count| *count >= 2)).await.unwrap().unwrap();
        gathering.abort();
    }

    #[test]
    fn buckets_grow() {
        for buckets in [&BUCKETS[..], &COUNTS, &BYTES] {
            assert!(buckets.windows(2).all(|two| two[0] < two[1]));
        }
    }

    /// For a gateway without a cluster.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn checks_of_load_balancers_get_their_status_by_every_method_and_version() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        crate::node_key::write_key(&key);
        let mut config = GatewayConfig { data_dir: dir.path().join("data"), ..GatewayConfig::default() };
        config.key.file = Some(key);
        config.cache.disk = ByteSize(0);
        let node = Node::open(config, CancellationToken::new()).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(serve(listener, node.clone(), guarded_admin(node.clone(), None), HttpTls::Off));
        // The last one is HAProxy's check without settings.
        for (asked, status, end) in [
            ("GET /healthz HTTP/1.1", "503", "not adopted by a cluster yet\n"),
            ("GET /readyz HTTP/1.0", "503", "not adopted by a cluster yet\n"),
            ("GET /livez HTTP/1.0", "200", "ok\n"),
            ("HEAD /livez HTTP/1.1", "200", ""),
            ("GET /serves/demo HTTP/1.1", "503", "this gateway does not serve the set\n"),
            ("OPTIONS /serves/no%20name HTTP/1.0", "503", "this gateway does not serve the set\n"),
            ("OPTIONS / HTTP/1.0", "503", "not adopted by a cluster yet\n"),
        ] {
            let mut socket = TcpStream::connect(address).await.unwrap();
            socket.write_all(format!("{asked}\r\nHost: g1\r\nConnection: close\r\n\r\n").as_bytes()).await.unwrap();
            let mut answer = String::new();
            tokio::time::timeout(PATIENCE, socket.read_to_string(&mut answer)).await.unwrap().unwrap();
            assert_eq!(answer.split(' ').nth(1), Some(status), "{asked}: {answer}");
            assert!(answer.ends_with(&format!("\r\n\r\n{end}")), "{asked}: {answer}");
        }
        let socket = TcpStream::connect(address).await.unwrap();
        let page = exchanged(socket, "GET /metrics HTTP/1.1\r\nHost: g1\r\nConnection: close\r\n\r\n").await;
        // A counter of something that has not happened, metrics of the process, and its build.
        for start in ["holdfast_sets_fenced_total ", "process_start_time_seconds 1", "holdfast_build_info{version="] {
            assert!(page.lines().any(|line| line.starts_with(start)), "{start}: {page}");
        }
        for (host, status) in [("localhost:7402", "200"), ("evil.example", "403")] {
            let asked = format!("GET / HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
            let answer = exchanged(TcpStream::connect(address).await.unwrap(), &asked).await;
            assert_eq!(answer.split(' ').nth(1), Some(status), "{host}: {answer}");
            // Nobody is known here, so there is nothing for anybody to act with (WEB-H5).
            for begins in ["GET /page/actions", "POST /page/act"] {
                let rest = "Content-Length: 0\r\nConnection: close";
                let asked = format!("{begins} HTTP/1.1\r\nHost: {host}\r\n{rest}\r\n\r\n");
                let answer = exchanged(TcpStream::connect(address).await.unwrap(), &asked).await;
                let status = if status == "200" { "404" } else { status };
                assert_eq!(answer.split(' ').nth(1), Some(status), "{asked}: {answer}");
            }
            let (told, policy) = (answer.contains("has no cluster yet"), "content-security-policy: default-src 'none'");
            assert_eq!((told, answer.contains(policy)), (status == "200", status == "200"), "{host}: {answer}");
        }
        serving.abort();
        node.close().await;
    }

    /// Without TLS nothing is told where it is required; metrics, by a certificate of a viewer.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_door_with_tls_tells_its_metrics_to_certificates() {
        use holdfast_tls::make::{Wanted, certificates};
        use holdfast_tls::{Dialer, Role, TlsFiles};
        let dir = tempfile::tempdir().unwrap();
        let [gateway, viewer, operator, host, mut bound] = [
            ("g1", Role::Gateway),
            ("vic", Role::Viewer),
            ("oda", Role::Operator),
            ("db1", Role::Host),
            ("db2", Role::Host),
        ]
        .map(|(name, role)| Wanted::new(name, role));
        bound.sets = vec!["other".to_string()];
        certificates(dir.path(), &[gateway, viewer, operator, host, bound], 30).unwrap();
        let at = |name: String| Some(dir.path().join(name));
        let key = dir.path().join("key");
        crate::node_key::write_key(&key);
        let mut config = GatewayConfig { data_dir: dir.path().join("data"), ..GatewayConfig::default() };
        config.key.file = Some(key);
        config.cache.disk = ByteSize(0);
        let own = |name: &str| (at(format!("{name}.pem")), at(format!("{name}.key")));
        (config.tls.ca, (config.tls.certificate, config.tls.key)) = (at("ca.pem".into()), own("g1"));
        let node = Node::open(config, CancellationToken::new()).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(serve(listener, node.clone(), guarded_admin(node.clone(), None), HttpTls::Required));
        for (who, path, status) in [
            ("", "/livez", "403"),
            ("", "/metrics", "403"),
            ("vic", "/livez", "200"),
            ("vic", "/metrics", "200"),
            ("vic", "/", "200"),
            ("oda", "/", "200"),
            ("vic", "/page/live.js", "200"),
            ("vic", "/page/actions", "403"),
            ("oda", "/page/actions", "200"),
            ("oda", "/page/act", "405"),
            ("db1", "/page/actions", "403"),
            ("", "/page/actions", "403"),
            ("db1", "/livez", "200"),
            // No such set, which the viewer and a host that may use it learn.
            ("vic", "/serves/demo", "503"),
            ("db1", "/serves/demo", "503"),
            ("db2", "/serves/other", "503"),
            ("db2", "/serves/demo", "403"),
            ("db2", "/serves/o%74her", "403"),
            ("", "/serves/demo", "403"),
            ("db1", "/metrics", "403"),
            ("db1", "/", "403"),
            ("", "/", "403"),
        ] {
            let socket = TcpStream::connect(address).await.unwrap();
            let asked = format!("GET {path} HTTP/1.1\r\nHost: g1\r\nConnection: close\r\n\r\n");
            let answer = if who.is_empty() {
                exchanged(socket, &asked).await
            } else {
                let (certificate, key) = own(who);
                let tls = TlsFiles { ca: at("ca.pem".into()), certificate, key }.load(Role::Admin).unwrap().unwrap();
                let secured = Dialer::from(&tls).connector().unwrap().connect(socket).await.unwrap();
                exchanged(secured, &asked).await
            };
            assert_eq!(answer.split(' ').nth(1), Some(status), "{who:?} {path}: {answer}");
            let acts = answer.contains("<a href=\"page/actions\">");
            assert_eq!(acts, who == "oda" && path == "/", "{who:?} {path}: {answer}");
        }
        serving.abort();
        node.close().await;
    }

    async fn exchanged(mut stream: impl tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin, asked: &str) -> String {
        stream.write_all(asked.as_bytes()).await.unwrap();
        stream.flush().await.unwrap();
        let mut answer = Vec::new();
        tokio::time::timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
        String::from_utf8_lossy(&answer).into_owned()
    }
}
