//! Health checks and metrics of a standby over HTTP.
//!
//! STANDBY-U4  Answered from the last check, which is not used once it is older than [`STALE`]: then every health check
//!     returns 503.
//! STANDBY-U11  At a door with TLS, names and metrics are for a certificate that may see the set (a viewer's, an
//!     operator's, an administrator's, a host's of this set). Everybody else gets the code of a health check, and
//!     nothing else; without TLS only if the settings say so (`http.tls`). As at an agent's door (HEALTH-H3).

use crate::StandbyView;
use axum::Router;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{Method, StatusCode, header};
use axum::response::{IntoResponse, Response};
use holdfast_agent::clock;
use holdfast_agent::listen::{Asker, Bounded};
use holdfast_tls::{HttpClient, HttpTls, Role, Tls};
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
        // As at an agent, and at Patroni: `/` asks for a primary.
        "/" | "/primary" | "/master" | "/leader" | "/read-write" | "/standby-leader" | "/standby_leader" => {
            return Some(Ok(false));
        }
        "/sync" | "/synchronous" | "/quorum" | "/read-only-sync" | "/read-only-synchronous" | "/read-only-quorum" => {
            return Some(Ok(false));
        }
        "/replica" | "/read-only" | "/asynchronous" | "/async" | "/health" | "/readiness" => {}
        _ => return None,
    }
    let Some(query) = query else { return Some(Ok(view.serving)) };
    let seconds = query.strip_prefix("max_age_s=").and_then(|text| text.parse::<u64>().ok());
    let Some(seconds) = seconds else {
        return Some(Err(format!("found ?{query}, expected ?max_age_s=SECONDS")));
    };
    Some(Ok(view.serving && view.age_ms.is_some_and(|age| age <= seconds.saturating_mul(1000))))
}

/// The version of Patroni whose documents these are, as at an agent.
const PATRONI: &str = "4.1.0";

/// The view with the fields that clients of Patroni's REST API read (ADR 0062).
fn document(view: &StandbyView) -> serde_json::Value {
    let mut document = serde_json::to_value(view).unwrap_or_default();
    let state = match view.database.as_str() {
        _ if view.serving => "running",
        "gone" => "stopped",
        "busy" => "starting",
        // Silent, another server in its place, or a check that is too old.
        _ => "unknown",
    };
    if let Some(fields) = document.as_object_mut() {
        let patroni = serde_json::json!({ "version": PATRONI, "scope": view.set, "name": view.name });
        fields.insert("state".into(), state.into());
        fields.insert("role".into(), "replica".into());
        fields.insert("patroni".into(), patroni);
    }
    document
}

fn metrics(view: &StandbyView, own: Option<&Tls>) -> String {
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
    if let Some(own) = own {
        out += &own.metrics(&labels);
    }
    out + &holdfast_host::process::page(env!("CARGO_PKG_VERSION"))
}

/// How much a caller gets (STANDBY-U11).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Pass {
    /// Everything.
    All,
    /// The code of a health check.
    Code,
    /// Nothing.
    No,
}

/// Whether a certificate with these roles may see a set. `may_use`: it is not bound to other sets.
fn may_see(roles: &[Role], may_use: bool) -> bool {
    roles.iter().any(|role| match role {
        Role::Viewer | Role::Operator | Role::Admin => true,
        Role::Host => may_use,
        Role::Gateway => false,
    })
}

/// What `who` gets at a door with this TLS. `is_check`: what is asked for is a health check.
fn pass(who: &Asker, is_check: bool, tls: HttpTls, set: &str) -> Pass {
    let client = match who {
        // The door has no TLS.
        Asker::Local | Asker::Remote(_) => return Pass::All,
        Asker::Met(_, client) => client,
    };
    match client {
        HttpClient::Named(caller) if may_see(&caller.roles, caller.may_use(set)) => Pass::All,
        HttpClient::Plain if tls != HttpTls::Checks => Pass::No,
        _ if is_check => Pass::Code,
        _ => Pass::No,
    }
}

/// Why a caller gets nothing, and what to do. Without names: it may not see them.
fn refusal(who: &Asker) -> &'static str {
    match who {
        Asker::Met(_, HttpClient::Plain) => {
            "found a request without TLS, expected one with TLS (http.tls): use https, or ask for a health check where \
             http.tls is checks\n"
        }
        _ => {
            "found no certificate that may see this set, expected one of viewer, operator, admin, or of a host of this \
             set\n"
        }
    }
}

/// What the door answers from.
#[derive(Clone)]
pub struct Door {
    /// The last check.
    pub looks: watch::Receiver<Arc<Look>>,
    /// As the listener has it.
    pub tls: HttpTls,
    /// The certificate of the listener, for its metrics.
    pub own: Option<Tls>,
}

/// Serves until it is dropped.
pub async fn serve(listener: Bounded, door: Door) -> std::io::Result<()> {
    let app = Router::new().fallback(answer).with_state(door);
    axum::serve(listener, app.into_make_service_with_connect_info::<Asker>()).await
}

async fn answer(State(door): State<Door>, ConnectInfo(who): ConnectInfo<Asker>, request: Request) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    let look = door.looks.borrow().clone();
    let view = aged(&look.view, clock::now().saturating_since(look.at));
    let path = request.uri().path();
    let passes = pass(&who, !matches!(path, "/metrics" | "/patroni"), door.tls, &view.set);
    if passes == Pass::No {
        return (StatusCode::FORBIDDEN, refusal(&who)).into_response();
    }
    match path {
        "/metrics" => return metrics(&view, door.own.as_ref()).into_response(),
        "/patroni" => return json(StatusCode::OK, &document(&view)),
        _ => {}
    }
    let code = match well(&view, request.uri().path(), request.uri().query()) {
        None => {
            let words = "found an unknown path, expected /replica, /health, /patroni or /metrics\n";
            return (StatusCode::NOT_FOUND, words).into_response();
        }
        Some(Err(why)) => return (StatusCode::BAD_REQUEST, why + "\n").into_response(),
        Some(Ok(true)) => StatusCode::OK,
        Some(Ok(false)) => StatusCode::SERVICE_UNAVAILABLE,
    };
    match passes {
        Pass::All => json(code, &document(&view)),
        Pass::Code | Pass::No => json(code, &serde_json::json!({ "serving": view.serving })),
    }
}

fn json(code: StatusCode, body: &serde_json::Value) -> Response {
    (code, [(header::CONTENT_TYPE, "application/json")], body.to_string()).into_response()
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

    /// STANDBY-U11.
    #[test]
    fn without_a_certificate_there_is_the_code_alone() {
        let at = std::net::SocketAddr::from(([10, 0, 0, 9], 5));
        let met = |client| Asker::Met(at, client);
        let both = |who: &Asker, tls| [true, false].map(|is_check| pass(who, is_check, tls, "demo"));
        let (checks, required) = (HttpTls::Checks, HttpTls::Required);
        assert_eq!(both(&met(HttpClient::Plain), checks), [Pass::Code, Pass::No]);
        assert_eq!(both(&met(HttpClient::Plain), required), [Pass::No, Pass::No]);
        assert_eq!(both(&met(HttpClient::Unnamed), required), [Pass::Code, Pass::No]);
        assert_eq!(both(&Asker::Remote(at), HttpTls::Off), [Pass::All, Pass::All], "a door without TLS");
        assert!(refusal(&met(HttpClient::Plain)).contains("use https"));
        assert!(refusal(&met(HttpClient::Unnamed)).contains("found no certificate"));
    }

    /// STANDBY-U11.
    #[test]
    fn a_certificate_sees_the_sets_that_it_may_use() {
        for role in [Role::Viewer, Role::Operator, Role::Admin] {
            assert!(may_see(&[role], false), "{role:?} of any set");
        }
        assert!(may_see(&[Role::Host], true) && !may_see(&[Role::Host], false), "hosts are bound to sets");
        assert!(!may_see(&[Role::Gateway], true) && !may_see(&[], true));
        assert!(may_see(&[Role::Gateway, Role::Viewer], false));
    }

    #[test]
    fn clients_of_patroni_find_a_replica() {
        let shown = |view: &StandbyView| {
            let document = document(view);
            assert_eq!((&document["role"], &document["name"]), (&"replica".into(), &"r".into()));
            assert_eq!(document["patroni"], serde_json::json!({ "version": PATRONI, "scope": "demo", "name": "r" }));
            document["state"].as_str().unwrap().to_string()
        };
        assert_eq!(shown(&view(true, 0)), "running");
        // The check is too old.
        assert_eq!(shown(&aged(&view(true, 0), STALE)), "unknown");
        for (database, state) in [("gone", "stopped"), ("busy", "starting"), ("silent", "unknown")] {
            assert_eq!(shown(&StandbyView { database: database.into(), ..view(false, 0) }), state);
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
        for path in ["/", "/primary", "/leader", "/standby-leader", "/sync", "/read-only-sync"] {
            assert_eq!(well(&good, path, None), Some(Ok(false)), "{path}");
        }
        assert_eq!(well(&good, "/async", None), Some(Ok(true)));
        assert_eq!(well(&bad, "/liveness", None), Some(Ok(true)));
        // A limit that cannot be parsed must not count as no limit.
        assert!(matches!(well(&good, "/replica", Some("lag=10MB")), Some(Err(_))));
        assert_eq!(well(&good, "/nonsense", None), None);
        let later = aged(&good, Duration::from_secs(9));
        assert_eq!((later.serving, later.age_ms), (true, Some(69_500)));
        let stale = metrics(&aged(&good, STALE), None);
        assert!(stale.contains("holdfast_standby_serving{name=\"r\",set=\"demo\"} 0\n"), "{stale}");
        assert!(stale.contains("holdfast_standby_age_seconds{name=\"r\",set=\"demo\"} 70.5\n"), "{stale}");
        assert!(metrics(&good, None).contains("holdfast_standby_age_seconds{name=\"r\",set=\"demo\"} 60.5\n"));
    }
}
