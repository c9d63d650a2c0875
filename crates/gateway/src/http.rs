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
    match node.not_ready() {
        // A store in trouble stops no gateway from serving: said, but no reason to send clients elsewhere (R8).
        None => {
            let warnings = node.journal_warning().into_iter().chain(node.store_warnings());
            let warnings: String = warnings.map(|warning| format!("warning: {warning}\n")).collect();
            (StatusCode::OK, format!("ok\n{warnings}"))
        }
        Some(why) => (StatusCode::SERVICE_UNAVAILABLE, format!("{why}\n")),
    }
}
