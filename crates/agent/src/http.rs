//! Health checks and commands over HTTP, with the paths and codes that load balancer files written for Patroni expect.
//!
//! HEALTH-H1  Health checks are answered from the last state that the agent's one task showed. If the task hangs, it
//!     shows nothing new, and after [`crate::view::STALE`] every health check is answered with 503.
//! HEALTH-H2  Anybody may ask for health. Commands over TCP need the token, also from this host: any of its users can
//!     connect to loopback. Over the agent's Unix socket they need none. Agents and `holdfast agent` prove that they
//!     have the token and do not send it ([`crate::proof`]); other programs may send it as a Bearer token.
//! HEALTH-H3  At a door with TLS (`http.tls`), a certificate counts as well: [`rules`] has each path with its roles.
//!     Everybody may ask for health checks there, without TLS only if the settings say so, and learns no name by them.
//!     Nothing else is answered without TLS.
//! HEALTH-H4  No path that asks for the holder of the lease (`/primary`, `/leader`, `/standby-leader` and the like) is
//!     answered with 200 after the end of that lease, by the clock at the time of the answer, not of the view. The
//!     metrics do not claim it either.
//! HEALTH-H5  However many clients ask or hang up, PostgreSQL and the other hosts are asked at most once a second.
//!     PostgreSQL is not asked while its device may wait ([`answers`]).
//! HEALTH-H6  Each command leaves one line in the audit log, if there is one, once it is answered or its caller has
//!     gone. Those that are not let in leave few ([`audit`]).

mod answers;
mod audit;
mod cluster;
mod commands;
mod door;
mod moves;
mod patroni;
mod rules;
mod timed;

pub(crate) use answers::{Answers, AskServer};
pub(crate) use audit::AgentAudit;
pub(crate) use door::{Asked, Door, Openers};
pub(crate) use timed::keep_schedule;

use crate::clock;
use crate::facts::{Facts, Weight};
use crate::listen::{Asker, Bounded};
use crate::machine::{Command, StateName};
use crate::traced;
use crate::view::{Added, View};
use audit::{Line, Noted};
use axum::body::Bytes;
use axum::extract::{ConnectInfo, Request, State};
use axum::http::{HeaderMap, Method, StatusCode};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodFilter, MethodRouter, any, on, post};
use axum::{Extension, Router};
use door::{Reply, json};
use holdfast_types::MonoTime;
use holdfast_types::sync::LockExt;
use rules::{Pass, RULES, What};
use std::fmt::Write as _;

/// Longest body of a command, in bytes.
const BODY_BYTES_MAX: usize = 16 << 10;

/// Whether a health check is answered with 200 at `now`; `None` if the path is not a health check.
fn healthy(view: &View, path: &str, now: MonoTime) -> Option<bool> {
    let (primary, leads_standbys) = (view.takes_writes(now), view.leads_standbys(now));
    let standby = view.database == "standby";
    let following = view.state == StateName::Following;
    Some(match path {
        "/" | "/primary" | "/master" | "/read-write" => primary,
        // Whatever PostgreSQL does there.
        "/leader" => view.holds_lease(now),
        "/standby-leader" | "/standby_leader" => leads_standbys,
        "/replica" | "/asynchronous" | "/async" => standby,
        "/read-only" => primary || standby,
        // Which standbys have confirmed a commit is known where they stream from.
        "/sync" | "/synchronous" | "/quorum" => false,
        "/read-only-sync" | "/read-only-synchronous" | "/read-only-quorum" => primary || leads_standbys,
        "/health" => view.database_runs(),
        // It serves, or it would take over. A primary whose files would be lost with its host is not ready, but serves
        // on.
        "/readiness" if !view.pool.off_set.is_empty() => false,
        "/readiness" => primary || following || view.state == StateName::Standby && view.obstacle.is_empty(),
        "/liveness" => true,
        _ => return None,
    })
}

/// Reason why a health check with a condition of Patroni, such as `/replica?lag=16MB`, is refused. The agent does not
/// know the lag of a standby (Patroni compares with a value in its consensus store), and an unchecked limit must not
/// count as fulfilled. It is refused on every host and in every state, so that the author of a load balancer's file
/// sees it at once, not after the first failover. `None` for a path that checks no standby, and for other parameters,
/// which a load balancer may add.
fn not_kept(path: &str, query: Option<&str>) -> Option<String> {
    let query = query?;
    let of_standbys = matches!(
        path,
        "/replica"
            | "/standby-leader"
            | "/standby_leader"
            | "/asynchronous"
            | "/async"
            | "/read-only"
            | "/readiness"
            | "/sync"
            | "/synchronous"
            | "/quorum"
            | "/read-only-sync"
            | "/read-only-synchronous"
            | "/read-only-quorum"
    );
    let condition = |pair: &str| {
        let name = pair.split('=').next().unwrap_or(pair);
        matches!(name, "lag" | "replication_state") || name.starts_with("tag_")
    };
    (of_standbys && query.split('&').any(condition)).then(|| {
        format!(
            "found {path}?{query}, expected {path}: the agent cannot check this condition, because it does not know how far \
             PostgreSQL is behind; watch pg_stat_replication on the server that it streams from"
        )
    })
}

/// The status of a health check at `now`; `None` if the path is not one. HEALTH-H1: an old state is not used, whatever
/// it says.
fn checked(view: &View, path: &str, now: MonoTime) -> Option<StatusCode> {
    let fresh = view.is_fresh(now);
    healthy(view, path, now).map(|well| if well && fresh { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE })
}

/// Methods that read. HEAD goes with GET.
const READS: MethodFilter = MethodFilter::GET.or(MethodFilter::OPTIONS);

/// Serves until it is dropped.
pub(crate) async fn serve(listener: impl Into<Bounded>, door: Door) -> std::io::Result<()> {
    let mut app = Router::new();
    for rule in RULES {
        let behind: MethodRouter<Door> = match rule.what {
            What::Check => any(health),
            What::Challenge => any(challenge),
            What::Metrics => any(metrics),
            What::History => any(history),
            What::Status => any(status),
            // Patroni changes its settings by other methods at the same path: they must not look like done.
            What::Host => on(READS, cluster::host),
            What::Cluster => on(READS, cluster::cluster),
            What::Config => on(READS, cluster::config),
            What::Command => post(command),
        };
        app = app.route(rule.path, behind);
    }
    let app = app
        .fallback(health)
        .layer(from_fn_with_state(door.clone(), guard))
        .layer(axum::extract::DefaultBodyLimit::max(BODY_BYTES_MAX))
        .with_state(door);
    let listener: Bounded = listener.into();
    axum::serve(listener, app.into_make_service_with_connect_info::<Asker>()).await
}

/// HEALTH-H3, before anything of the request's body is read. Commands that may have a proof of the token go on: the
/// proof is over the body.
async fn guard(
    State(door): State<Door>,
    ConnectInfo(who): ConnectInfo<Asker>,
    mut request: Request,
    next: Next,
) -> Response {
    let path = request.uri().path().to_string();
    let command = rules::rule(&path).filter(|rule| rule.what == What::Command);
    let given = command.filter(|_| request.method() == Method::POST);
    let line = given.zip(door.audit.as_ref());
    let line = line.map(|(rule, audit)| Line::begin(audit, &door.config.set, &who, rule.path));
    request.extensions_mut().insert(line.as_ref().map(Line::noted).unwrap_or_default());
    let passes = match door.pass(&who, &path) {
        Pass::Yes => true,
        Pass::WithToken => command.is_some() || door.has_token(request.headers()),
        Pass::No => false,
    };
    let response = if passes { next.run(request).await } else { door.refused(&who, &path).into_response() };
    if let Some(line) = line {
        line.ended(response.status().as_u16());
    }
    response
}

async fn health(State(door): State<Door>, ConnectInfo(who): ConnectInfo<Asker>, request: Request) -> Response {
    if !matches!(*request.method(), Method::GET | Method::HEAD | Method::OPTIONS) {
        return StatusCode::METHOD_NOT_ALLOWED.into_response();
    }
    let view = door.view();
    let shown = cluster::shown(&door, &view, door.answers.known());
    let Some(code) = checked(&view, request.uri().path(), shown.now) else {
        return Reply::no(StatusCode::NOT_FOUND, "found an unknown path, expected one such as /primary or /status")
            .into_response();
    };
    if let Some(words) = not_kept(request.uri().path(), request.uri().query()) {
        return Reply::no(StatusCode::BAD_REQUEST, words).into_response();
    }
    // Names are for those who may see the status.
    match door.pass(&who, "/status") {
        Pass::Yes => json(code, &patroni::document(&shown)),
        Pass::WithToken | Pass::No => json(code, &patroni::brief(&view, shown.fresh, shown.now)),
    }
}

async fn status(State(door): State<Door>) -> Response {
    let socket = door.socket.as_ref().map_or_else(String::new, |path| path.display().to_string());
    let (facts, differences) = {
        let known = door.known.locked();
        (known.own.clone(), known.differences.clone())
    };
    let facts = facts.map(|facts| Facts { unix_ms: clock::unix_ms(), ..facts });
    let scheduled = door.schedule.get();
    let view = View { added: Added { facts, differences, socket, scheduled }, ..View::clone(&door.view()) };
    json(StatusCode::OK, &view)
}

async fn history(State(door): State<Door>) -> Response {
    let lines: Vec<_> = door.history.locked().lines().cloned().collect();
    json(StatusCode::OK, &lines)
}

async fn challenge(State(door): State<Door>) -> Response {
    json(StatusCode::OK, &serde_json::json!({ "challenge": door.challenges.give(clock::now()) }))
}

async fn command(
    State(door): State<Door>,
    ConnectInfo(who): ConnectInfo<Asker>,
    Extension(noted): Extension<Noted>,
    headers: HeaderMap,
    uri: axum::http::Uri,
    body: Bytes,
) -> Response {
    let proof = match door.proof(uri.path(), &headers, &body) {
        Ok(proof) => proof,
        Err(stale) => return stale.into_response(),
    };
    if proof.is_none() && !door.may_command(&who, uri.path(), &headers) {
        return door.refused(&who, uri.path()).into_response();
    }
    let with = match (&who, &proof) {
        (Asker::Local, _) => "socket",
        (_, None) if door.pass(&who, uri.path()) == Pass::Yes => "certificate",
        _ => "token",
    };
    noted.let_in(with, &body);
    let by = rules::by(&who);
    // Before it is carried out: a caller that hangs up ends this, and not what it has begun.
    tracing::info!(path = uri.path(), by, "a command was accepted");
    let done = match uri.path() {
        "/pause" => door.command(Command::Pause).await.map(Reply::yes),
        "/resume" => door.command(Command::Resume).await.map(Reply::yes),
        "/restart" => door.command(Command::Restart).await.map(Reply::yes),
        "/claim" => commands::claim(&door, &who, &body).await,
        "/failover" => commands::failover(&door, &body).await,
        "/switchover/cancel" => timed::cancel(&door).await,
        _ => commands::switchover(&door, &body).await,
    };
    let reply = done.unwrap_or_else(|reply| reply);
    noted.answered(&reply.words());
    tracing::info!(path = uri.path(), by, code = reply.code.as_u16(), "a command was answered");
    match (proof, &door.token) {
        (Some(proof), Some(token)) => reply.proven(&proof, token),
        _ => reply.into_response(),
    }
}

async fn metrics(State(door): State<Door>) -> String {
    let server = door.answers.server(&door.view()).await;
    let (view, now) = (door.view(), clock::now());
    let mut out = String::new();
    let labels = format!("name=\"{}\",set=\"{}\"", view.name, view.set);
    let yes = |is: bool| f64::from(u8::from(is));
    let mut gauge = |name: &str, help: &str, value: f64| {
        let _ = write!(out, "# HELP {name} {help}\n# TYPE {name} gauge\n{name}{{{labels}}} {value}\n");
    };
    // As the health checks: an agent that hangs would stay primary, and ready, for ever (HEALTH-H1, HEALTH-H4).
    gauge("holdfast_agent_primary", "PostgreSQL here takes writes.", yes(view.takes_writes(now)));
    gauge("holdfast_agent_paused", "Nothing happens by itself.", yes(view.paused));
    gauge("holdfast_agent_epoch", "Epoch of the grant held here, 0 without one.", view.lease.epoch as f64);
    let ready = checked(&view, "/readiness", now) == Some(StatusCode::OK);
    gauge("holdfast_agent_ready", "Serves, or would take over.", yes(ready));
    let off = yes(!view.pool.off_set.is_empty());
    gauge("holdfast_agent_off_set", "PostgreSQL runs, and not all of its files lie on the set: see /status.", off);
    if let Some(ago) = view.lease.renewed_ms_ago {
        let ago = ago as f64 / 1e3;
        gauge("holdfast_agent_lease_renewed_ago_seconds", "Time since the last renewal of the lease.", ago);
    }
    let _ =
        writeln!(out, "# HELP holdfast_agent_state The state that the agent is in.\n# TYPE holdfast_agent_state gauge");
    let _ = writeln!(out, "holdfast_agent_state{{{labels},state=\"{}\"}} 1", view.state);
    let mut counts = std::collections::BTreeMap::<String, u64>::new();
    for line in door.history.locked().lines() {
        *counts.entry(line.record.event.to_string()).or_default() += 1;
    }
    let name = "holdfast_agent_host_differences";
    let _ = writeln!(out, "# HELP {name} Differences to the other hosts by what they cost.\n# TYPE {name} gauge");
    for weight in Weight::ALL {
        let count = door.known.locked().differences.iter().filter(|one| one.weight == weight).count();
        let _ = writeln!(out, "{name}{{{labels},weight=\"{weight}\"}} {count}");
    }
    let name = "holdfast_agent_history_lines";
    let _ = writeln!(out, "# HELP {name} Lines of the history by event.\n# TYPE {name} gauge");
    for (event, count) in counts {
        let _ = writeln!(out, "{name}{{{labels},event=\"{event}\"}} {count}");
    }
    out += &audit::metrics(&labels);
    out += &traced::metrics(&labels);
    if let Some(tls) = &door.tls {
        out += &tls.metrics(&labels);
    }
    out += &patroni::metrics(&cluster::shown(&door, &view, server));
    out + &holdfast_host::process::page(&view.version)
}

#[cfg(test)]
#[path = "http/tests.rs"]
mod tests;
