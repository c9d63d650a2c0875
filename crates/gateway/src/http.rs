//! `/metrics` for Prometheus and `/healthz` for load balancers and people.

use crate::doors::{self, Door};
use crate::node::Node;
use axum::Router;
use axum::extract::State;
use axum::http::StatusCode;
use axum::routing::get;
use metrics_exporter_prometheus::{PrometheusBuilder, PrometheusHandle};
use std::sync::{Arc, OnceLock};

/// One recorder per process: a second gateway in the same process (tests) shares it.
fn recorder() -> Option<PrometheusHandle> {
    static HANDLE: OnceLock<Option<PrometheusHandle>> = OnceLock::new();
    HANDLE
        .get_or_init(|| {
            PrometheusBuilder::new()
                .install_recorder()
                .inspect(|_| crate::metrics::describe())
                .inspect_err(|e| tracing::warn!(error = %e, "no metrics: another recorder is installed"))
                .ok()
        })
        .clone()
}

/// Answers until the listener's task is dropped.
pub async fn serve(listener: tokio::net::TcpListener, node: Arc<Node>) -> std::io::Result<()> {
    let recorder = recorder();
    let app = Router::new()
        .route("/metrics", get(move |state: State<Arc<Node>>| metrics_page(state, recorder.clone())))
        .route("/healthz", get(health))
        .with_state(node);
    axum::serve(Door::new("http", listener, doors::HTTP), app).await
}

async fn metrics_page(State(node): State<Arc<Node>>, recorder: Option<PrometheusHandle>) -> (StatusCode, String) {
    node.record_gauges();
    match recorder {
        Some(recorder) => (StatusCode::OK, recorder.render()),
        None => (StatusCode::SERVICE_UNAVAILABLE, "no metrics recorder\n".to_string()),
    }
}

async fn health(State(node): State<Arc<Node>>) -> (StatusCode, String) {
    told(node.not_ready(), node.journal_warning().into_iter().chain(node.store_warnings()))
}

fn told(not_ready: Option<String>, warnings: impl Iterator<Item = String>) -> (StatusCode, String) {
    match not_ready {
        // A store in trouble stops no gateway from serving: said, but no reason to send clients elsewhere (R8).
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

    /// What a load balancer is told of a gateway that is in no cluster.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_gateway_that_cannot_serve_answers_503_and_why() {
        let dir = tempfile::tempdir().unwrap();
        let key = dir.path().join("key");
        std::fs::write(&key, [7; 32]).unwrap();
        let mut config = GatewayConfig { data_dir: dir.path().join("data"), ..GatewayConfig::default() };
        config.key.file = Some(key);
        config.cache.disk = ByteSize(0);
        let node = Node::open(config, CancellationToken::new()).await.unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(serve(listener, node.clone()));
        let mut socket = TcpStream::connect(address).await.unwrap();
        socket.write_all(b"GET /healthz HTTP/1.1\r\nHost: g1\r\nConnection: close\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        tokio::time::timeout(PATIENCE, socket.read_to_string(&mut answer)).await.unwrap().unwrap();
        assert!(answer.starts_with("HTTP/1.1 503 "), "{answer}");
        assert!(answer.ends_with("\r\n\r\nnot adopted by a cluster yet\n"), "{answer}");
        serving.abort();
        node.close().await;
    }
}
