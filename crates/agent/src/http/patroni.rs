//! The documents of Patroni's REST API, made from the agent's view of itself (ADR 0062). Pure.
//!
//! What is different here, for people: docs/operating/patroni.md.

use crate::config::AgentConfig;
use crate::machine::StateName;
use crate::schedule::Scheduled;
use crate::server::ServerView;
use crate::view::View;
use holdfast_types::MonoTime;
use serde_json::{Value, json};
use std::fmt::Write as _;

/// The version of Patroni whose documents these are. Clients choose by it which words they expect.
const API: &str = "4.1.0";

/// The same as Patroni's metric has it.
const API_NUMBER: f64 = 40_100.0;

/// What a document is made from.
pub(super) struct Shown<'a> {
    pub view: &'a View,
    /// The view is young enough to be believed (HEALTH-H1).
    pub fresh: bool,
    /// What PostgreSQL says of itself, if it was asked.
    pub server: Option<ServerView>,
    pub config: &'a AgentConfig,
    pub scheduled: Option<Scheduled>,
    /// Time of the answer, by the clock of leases.
    pub now: MonoTime,
    /// Like `now`, by the time of day, Unix milliseconds.
    pub unix_ms: u64,
}

/// The state of PostgreSQL in Patroni's words.
fn state(view: &View, fresh: bool) -> &'static str {
    let goes_down = matches!(view.state, StateName::Demoting | StateName::Fencing | StateName::CutOff);
    match view.database.as_str() {
        _ if !fresh => "unknown",
        "ready" | "standby" => "running",
        "busy" if goes_down => "stopping",
        "busy" => "starting",
        "gone" if view.state == StateName::Starting => "starting",
        "gone" => "stopped",
        // It is silent, or something else answers in its place.
        _ => "unknown",
    }
}

/// The role in Patroni's words. A service that is no PostgreSQL has none of these roles: it runs here, or may.
fn role(view: &View, now: MonoTime) -> &'static str {
    match (view.takes_writes(now), view.service.is_empty()) {
        (true, true) => "primary",
        (true, false) => "service",
        (false, false) => "standby",
        (false, true) if view.leads_standbys(now) => "standby_leader",
        (false, true) => "replica",
    }
}

/// For those who may not see names (HEALTH-H3).
pub(super) fn brief(view: &View, fresh: bool, now: MonoTime) -> Value {
    json!({ "role": role(view, now), "state": state(view, fresh) })
}

/// When a gateway answered last, in seconds since 1970; `None` if that is not known.
fn last_seen(shown: &Shown<'_>) -> Option<u64> {
    let lease = &shown.view.lease;
    let seen = if lease.cluster_answers { Some(0) } else { lease.renewed_ms_ago };
    seen.map(|ago| shown.unix_ms.saturating_sub(ago) / 1000)
}

/// The last second of the year 9999, Unix milliseconds.
const TIME_MS_MAX: u64 = 253_402_300_799_000;

/// Time of day as Patroni writes it, in UTC and whole seconds.
fn rfc3339(unix_ms: u64) -> String {
    let unix_s = unix_ms.min(TIME_MS_MAX) / 1000;
    let (mut left, second) = (unix_s / 86_400, unix_s % 86_400);
    let mut year = 1970_u64;
    let length = |year: u64| {
        let leap = year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        if leap { 366 } else { 365 }
    };
    while left >= length(year) {
        left -= length(year);
        year += 1;
    }
    let february = length(year) - 337;
    let mut month = 1;
    for days in [31, february, 31, 30, 31, 30, 31, 31, 30, 31, 30] {
        if left < days {
            break;
        }
        (left, month) = (left - days, month + 1);
    }
    let (hour, minute, second, day) = (second / 3600, second / 60 % 60, second % 60, left + 1);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}+00:00")
}

/// The document of a host: of `/patroni`, and of each health check.
pub(super) fn document(shown: &Shown<'_>) -> Value {
    let Shown { view, now, .. } = shown;
    let leads = view.holds_lease(*now);
    let port = view.service.is_empty().then_some(shown.config.database.port);
    let mut document = json!({
        "state": state(view, shown.fresh),
        "role": role(view, *now),
        "patroni": { "version": API, "scope": view.set, "name": view.name },
        "holdfast": {
            "version": view.version,
            "state": view.state,
            "why": view.why,
            "leader": leads,
            "lease_owner": view.lease.owner,
            "epoch": view.lease.epoch,
            "port": port,
        },
    });
    if !view.service.is_empty() {
        document["holdfast"]["service"] = view.service.as_str().into();
    }
    if let Some(server) = shown.server.as_ref().filter(|_| view.database_runs()) {
        of_server(&mut document, server);
    }
    if view.paused {
        document["pause"] = true.into();
    }
    if !leads && view.lease.owner.is_empty() {
        document["cluster_unlocked"] = true.into();
    }
    if let Some(seconds) = last_seen(shown) {
        document["dcs_last_seen"] = seconds.into();
    }
    if view.settings.nofailover {
        document["tags"] = json!({ "nofailover": true });
    }
    if let Some(Scheduled { at_unix_ms, to }) = &shown.scheduled {
        let mut scheduled = json!({ "at": rfc3339(*at_unix_ms), "from": view.name });
        if let Some(to) = to {
            scheduled["to"] = to.as_str().into();
        }
        document["holdfast"]["scheduled_switchover"] = scheduled;
    }
    document
}

/// Adds what PostgreSQL says of itself.
fn of_server(document: &mut Value, server: &ServerView) {
    document["postmaster_start_time"] = server.postmaster_start_time.as_str().into();
    document["server_version"] = server.server_version.into();
    document["xlog"] = if server.in_recovery {
        json!({
            "received_location": server.received_location.or(server.replayed_location),
            "replayed_location": server.replayed_location,
            "replayed_timestamp": server.replayed_timestamp,
            "paused": server.replay_paused,
        })
    } else {
        json!({ "location": server.location })
    };
    if server.timeline != 0 {
        document["timeline"] = server.timeline.into();
    }
    if let Some(state) = server.replication_state() {
        document["replication_state"] = state.into();
    }
    if let Some(replication) = &server.replication {
        document["replication"] = replication.clone();
    }
    if server.pending_restart {
        document["pending_restart"] = true.into();
    }
    if !server.system_identifier.is_empty() {
        document["database_system_identifier"] = server.system_identifier.as_str().into();
    }
}

/// What a host of the set tells of itself.
#[derive(Clone, Debug)]
pub(crate) struct HostReport {
    /// Its name.
    pub name: String,
    /// Where its agent answers.
    pub api_url: String,
    /// Where PostgreSQL answers there, as far as the address of the agent shows it.
    pub host: String,
    /// Its document; `None` if it does not answer.
    pub document: Option<Value>,
}

impl HostReport {
    fn field(&self, group: &str, name: &str) -> &Value {
        self.document.as_ref().map_or(&Value::Null, |document| &document[group][name])
    }

    fn timeline(&self) -> u64 {
        self.document.as_ref().and_then(|document| document["timeline"].as_u64()).unwrap_or(0)
    }
}

/// The holder of the lease. If two hosts claim it, the one with the later epoch (R2). If none does, an owner that does
/// not answer: the others cannot know whether it still holds the lease.
fn leader<'a>(owner: &str, told: &'a [HostReport]) -> Option<&'a HostReport> {
    let claims = told.iter().filter(|one| *one.field("holdfast", "leader") == true);
    let leads = claims.max_by_key(|one| one.field("holdfast", "epoch").as_u64().unwrap_or(0));
    leads.or_else(|| told.iter().find(|one| one.name == owner && one.document.is_none()))
}

/// The document of `/cluster`. `owner`: of the lease, by what a gateway said last; "" for none.
pub(super) fn cluster(set: &str, owner: &str, told: &[HostReport]) -> Value {
    let leader = leader(owner, told);
    // A standby without PostgreSQL would go on with the leader's.
    let timeline = leader.map_or(0, HostReport::timeline);
    let leads = |one: &HostReport| leader.is_some_and(|leader| leader.name == one.name);
    let (there, missing): (Vec<&HostReport>, Vec<&HostReport>) =
        told.iter().partition(|one| one.document.is_some() || leads(one));
    let mut members: Vec<Value> = there.iter().map(|one| member(one, leads(one), timeline)).collect();
    members.sort_by(|one, other| one["name"].as_str().cmp(&other["name"].as_str()));
    let mut document = json!({ "scope": set, "members": members });
    if !missing.is_empty() {
        let mut names: Vec<&str> = missing.iter().map(|one| one.name.as_str()).collect();
        names.sort_unstable();
        document["unanswered"] = names.into();
    }
    if told.iter().any(|one| one.document.as_ref().is_some_and(|document| document["pause"] == true)) {
        document["pause"] = true.into();
    }
    let mut scheduled = told.iter().map(|one| one.field("holdfast", "scheduled_switchover"));
    if let Some(scheduled) = scheduled.find(|scheduled| scheduled.is_object()) {
        document["scheduled_switchover"] = scheduled.clone();
    }
    document
}

fn member(told: &HostReport, leads: bool, timeline: u64) -> Value {
    let document = told.document.as_ref().unwrap_or(&Value::Null);
    let is_service = told.field("holdfast", "service").is_string();
    let role = match (leads, document["role"] == "standby_leader") {
        (true, _) if is_service => "service",
        (false, _) if is_service => "standby",
        (true, true) => "standby_leader",
        (true, false) => "leader",
        (false, _) => "replica",
    };
    let follows = document["replication_state"].as_str().filter(|_| role != "leader");
    let state = follows.or(document["state"].as_str()).unwrap_or("unknown");
    let mut member = json!({
        "name": told.name,
        "role": role,
        "state": state,
        "api_url": told.api_url,
        "host": told.host,
    });
    if !is_service {
        let shown = if leads { told.timeline() } else { timeline };
        member["timeline"] = shown.into();
    }
    if let Some(port) = told.field("holdfast", "port").as_u64() {
        member["port"] = port.into();
    }
    for field in ["tags", "pending_restart"] {
        if !document[field].is_null() {
            member[field] = document[field].clone();
        }
    }
    if !leads && !is_service {
        // No PostgreSQL runs there that could be behind.
        for field in ["receive_lag", "receive_lsn", "replay_lag", "replay_lsn", "lag", "lsn"] {
            member[field] = "unknown".into();
        }
    }
    member
}

/// The document of `/config`: settings that are the same on all hosts of a set, in Patroni's names and units.
pub(super) fn config(config: &AgentConfig, paused: bool) -> Value {
    let seconds = |ms: u64| if ms.is_multiple_of(1000) { json!(ms / 1000) } else { json!(ms as f64 / 1e3) };
    let (lease, limits) = (&config.lease, config.limits());
    let mut document = json!({
        "ttl": seconds(lease.ttl_ms),
        "loop_wait": seconds(lease.poll_ms),
        "retry_timeout": seconds(lease.ttl_ms.saturating_sub(lease.stop_margin_ms)),
        "maximum_lag_on_failover": 0,
        "synchronous_mode": false,
        "primary_start_timeout": limits.start_s,
        "primary_stop_timeout": limits.stop_s,
    });
    if config.service.is_none() {
        document["postgresql"] = json!({ "use_pg_rewind": false, "use_slots": false });
    }
    if paused {
        document["pause"] = true.into();
    }
    document
}

/// Number of a state in Patroni's metric.
fn state_number(state: &str) -> Option<f64> {
    match state {
        "running" => Some(5.0),
        "starting" => Some(6.0),
        "stopping" => Some(11.0),
        "stopped" => Some(12.0),
        _ => None,
    }
}

/// Patroni's metrics, for dashboards that were made for them. All are gauges: Prometheus' own check wants another name
/// for a counter. They are of PostgreSQL: another service has none.
pub(super) fn metrics(shown: &Shown<'_>) -> String {
    let Shown { view, now, .. } = shown;
    if !view.service.is_empty() {
        return String::new();
    }
    let server = shown.server.clone().filter(|_| view.database_runs()).unwrap_or_default();
    let (role, state) = (role(view, *now), state(view, shown.fresh));
    let yes = |is: bool| f64::from(u8::from(is));
    let number = |value: Option<u64>| value.unwrap_or(0) as f64;
    let free = !view.holds_lease(*now) && view.lease.owner.is_empty();
    let follows = server.replication_state();
    let received = server.received_location.or(server.replayed_location).filter(|_| server.in_recovery);
    let replayed = server.replayed_location.filter(|_| server.in_recovery);
    let mut gauges = vec![
        ("version", "Version of Patroni whose REST API this is, without periods.", API_NUMBER),
        ("postgres_running", "PostgreSQL runs.", yes(state == "running")),
        ("postmaster_start_time", "Start of PostgreSQL, seconds since 1970.", server.started_unix_s),
        ("primary", "This host is primary.", yes(role == "primary")),
        ("xlog_location", "End of the WAL of a primary, in bytes.", number(server.location)),
        ("standby_leader", "This host leads standbys.", yes(role == "standby_leader")),
        ("replica", "This host is neither.", yes(role == "replica")),
        ("sync_standby", "Always 0: see docs/operating/patroni.md.", 0.0),
        ("quorum_standby", "Always 0: see docs/operating/patroni.md.", 0.0),
        ("xlog_received_location", "End of the WAL that a standby has received, in bytes.", number(received)),
        ("xlog_replayed_location", "End of the WAL that a standby has replayed, in bytes.", number(replayed)),
        ("xlog_replayed_timestamp", "Time of the last replayed commit.", server.replayed_unix_s.unwrap_or(0.0)),
        ("xlog_paused", "The replay of a standby is paused.", yes(server.replay_paused)),
        ("postgres_streaming", "A standby streams.", yes(follows == Some("streaming"))),
        ("postgres_in_archive_recovery", "A standby reads an archive.", yes(follows == Some("in archive recovery"))),
        ("postgres_server_version", "Version of PostgreSQL, 0 if it does not run.", f64::from(server.server_version)),
        ("cluster_unlocked", "Nobody holds the lease, as far as known.", yes(free)),
        ("postgres_timeline", "Timeline of PostgreSQL, 0 if it is not known.", f64::from(server.timeline)),
        ("dcs_last_seen", "When a gateway answered last, seconds since 1970.", number(last_seen(shown))),
        ("pending_restart", "A setting waits for a restart of PostgreSQL.", yes(server.pending_restart)),
        ("is_paused", "Nothing happens by itself.", yes(view.paused)),
    ];
    gauges.extend(state_number(state).map(|number| ("postgres_state", "State of PostgreSQL, a number.", number)));
    let labels = format!("scope=\"{}\",name=\"{}\"", view.set, view.name);
    let mut out = String::new();
    for (name, help, value) in gauges {
        let _ = write!(
            out,
            "# HELP patroni_{name} {help}\n# TYPE patroni_{name} gauge\npatroni_{name}{{{labels}}} {value}\n"
        );
    }
    out
}

/// Where the agent at this address answers, and the host in it.
pub(super) fn place(address: &str, secured: bool) -> (String, String) {
    let scheme = if secured { "https" } else { "http" };
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    (format!("{scheme}://{address}/patroni"), host.trim_matches(['[', ']']).to_owned())
}

#[cfg(test)]
#[path = "patroni_tests.rs"]
mod tests;
