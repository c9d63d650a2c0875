//! Health checks and metrics of a standby over HTTP.
//!
//! STANDBY-U4  Answered from the last check, which is not used once it is older than [`STALE`]: then every health check
//!     returns 503.

use crate::StandbyView;
use axum::Router;
use axum::extract::{Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use holdfast_agent::clock;
use holdfast_agent::listen::Bounded;
use holdfast_types::MonoTime;
use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// A check older than this is not used. Longer than a check may take.
const STALE: Duration = Duration::from_secs(10);

/// The last check, and its time.
#[derive(Clone, Debug)]
pub struct Look {
    pub view: StandbyView,
    pub at: MonoTime,
}

/// The check's result, `since` after it was made: the data has grown older meanwhile, and an old check does not show
/// that PostgreSQL answers (STANDBY-U4).
fn aged(view: &StandbyView, since: Duration) -> StandbyView {
    let older = u64::try_from(since.as_millis()).unwrap_or(u64::MAX);
    StandbyView {
        age_ms: view.age_ms.map(|age| age.saturating_add(older)),
        serving: view.serving && since < STALE,
        ..view.clone()
    }
}

/// Whether a health check is answered with 200; `None` for another path, an error for an invalid age.
fn well(view: &StandbyView, path: &str, query: Option<&str>) -> Option<Result<bool, String>> {
    match path {
        "/liveness" => return Some(Ok(true)),
        "/primary" | "/master" | "/leader" | "/read-write" => return Some(Ok(false)),
        "/" | "/replica" | "/read-only" | "/health" | "/readiness" => {}
        _ => return None,
    }
    let Some(query) = query else { return Some(Ok(view.serving)) };
    let seconds = query.strip_prefix("max_age_s=").and_then(|text| text.parse::<u64>().ok());
    let Some(seconds) = seconds else {
        return Some(Err(format!("found ?{query}, expected ?max_age_s=SECONDS")));
    };
    Some(Ok(view.serving && view.age_ms.is_some_and(|age| age <= seconds.saturating_mul(1000))))
}

fn metrics(view: &StandbyView) -> String {
    let mut out = String::new();
    let labels = format!("name=\"{}\",set=\"{}\"", view.name, view.set);
    let yes = |is: bool| f64::from(u8::from(is));
    let mut gauge = |name: &str, help: &str, value: f64| {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{{{labels}}} {value}\n");
    };
    gauge("holdfast_standby_serving", "PostgreSQL here answers.", yes(view.serving));
    if let Some(age) = view.age_ms {
        gauge("holdfast_standby_age_seconds", "From the snapshot's moment to now.", age as f64 / 1e3);
    }
    gauge("holdfast_standby_scratch_bytes", "What was written to the copy.", view.scratch_bytes as f64);
    gauge("holdfast_standby_scratch_max_bytes", "What may be written to the copy.", view.scratch_max_bytes as f64);
    gauge("holdfast_standby_refresh_failed", "The last refresh failed.", yes(view.failure.is_some()));
    out + &holdfast_host::process::page(env!("CARGO_PKG_VERSION"))
}

/// Serves until it is dropped.
pub async fn serve(listener: Bounded, looks: watch::Receiver<Arc<Look>>) -> std::io::Result<()> {
    let app = Router::new().fallback(answer).with_state(looks);
    axum::serve(listener, app).await
}

async fn answer(State(looks): State<watch::Receiver<Arc<Look>>>, request: Request) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    let look = looks.borrow().clone();
    let view = aged(&look.view, clock::now().saturating_since(look.at));
    if request.uri().path() == "/metrics" {
        return metrics(&view).into_response();
    }
    let code = match well(&view, request.uri().path(), request.uri().query()) {
        None => {
            let words = "found an unknown path, expected /replica, /health or /metrics\n";
            return (StatusCode::NOT_FOUND, words).into_response();
        }
        Some(Err(why)) => return (StatusCode::BAD_REQUEST, why + "\n").into_response(),
        Some(Ok(true)) => StatusCode::OK,
        Some(Ok(false)) => StatusCode::SERVICE_UNAVAILABLE,
    };
    let text = serde_json::to_string(&view).unwrap_or_default();
    (code, [(header::CONTENT_TYPE, "application/json")], text).into_response()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(serving: bool, age_ms: u64) -> StandbyView {
        StandbyView {
            name: "r".into(),
            set: "demo".into(),
            serving,
            database: "ready".into(),
            current: None,
            age_ms: Some(age_ms),
            scratch_bytes: 1,
            scratch_max_bytes: 2,
            gateway: String::new(),
            connections: 0,
            port: 5432,
            own_snapshots: Vec::new(),
            failure: None,
            running: true,
        }
    }

    #[test]
    fn a_standby_is_a_replica_while_it_serves_and_is_young_enough() {
        let (good, bad) = (view(true, 60_500), view(false, 0));
        assert_eq!(well(&good, "/replica", None), Some(Ok(true)));
        assert_eq!(well(&bad, "/replica", None), Some(Ok(false)));
        assert_eq!(well(&good, "/replica", Some("max_age_s=61")), Some(Ok(true)));
        assert_eq!(well(&good, "/replica", Some("max_age_s=60")), Some(Ok(false)));
        assert_eq!(well(&bad, "/replica", Some("max_age_s=61")), Some(Ok(false)));
        assert_eq!(well(&good, "/primary", None), Some(Ok(false)));
        assert_eq!(well(&bad, "/liveness", None), Some(Ok(true)));
        // A limit that cannot be parsed must not count as no limit.
        assert!(matches!(well(&good, "/replica", Some("lag=10MB")), Some(Err(_))));
        assert_eq!(well(&good, "/nonsense", None), None);
        let later = aged(&good, Duration::from_secs(9));
        assert_eq!((later.serving, later.age_ms), (true, Some(69_500)));
        let stale = metrics(&aged(&good, STALE));
        assert!(stale.contains("holdfast_standby_serving{name=\"r\",set=\"demo\"} 0\n"), "{stale}");
        assert!(stale.contains("holdfast_standby_age_seconds{name=\"r\",set=\"demo\"} 70.5\n"), "{stale}");
        assert!(metrics(&good).contains("holdfast_standby_age_seconds{name=\"r\",set=\"demo\"} 60.5\n"));
    }
}
