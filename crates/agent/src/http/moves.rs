//! Commands that move PostgreSQL from host to host.
//!
//! ```text
//!   operator ─switchover(to B)─▶ A (primary)   1. asks B whether it could
//!                                A ─claim────▶ B   2. B will take the free lease at once, and no third host should be quicker
//!                                A             3. checkpoint, stop, export, give the lease back
//!                                              B   4. takes it
//! ```
//! A claim that never comes true ends by itself. Nothing of this decides who may write: the lease does.

use super::{Door, Reply};
use crate::client::{self, ClientError};
use crate::machine::{Command, StateName};
use axum::body::Bytes;
use axum::http::StatusCode;
use serde::Deserialize;
use std::time::Duration;

/// For one question to another agent.
const PEER_LIMIT: Duration = Duration::from_secs(3);

/// The longest claim.
const CLAIM_MAX: Duration = Duration::from_secs(7200);

/// As Patroni's, as far as it goes: `leader` is checked where it is given, `candidate` says where to.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Switchover {
    leader: Option<String>,
    candidate: Option<String>,
    dry_run: bool,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    from: String,
    set: String,
    within_ms: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Failover {
    candidate: Option<String>,
    reason: String,
}

fn read<'a, T: Deserialize<'a>>(body: &'a Bytes) -> Result<T, Reply> {
    let text: &[u8] = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(text).map_err(|error| Reply::no(StatusCode::BAD_REQUEST, format!("body: {error}")))
}

fn refused(message: impl Into<String>) -> Reply {
    Reply::no(StatusCode::PRECONDITION_FAILED, message)
}

pub(super) async fn claim(door: &Door, body: &Bytes) -> Result<Reply, Reply> {
    let Claim { from, set, within_ms } = read(body)?;
    if set != door.config.set {
        return Err(refused(format!("this agent is for set {}, found {set}", door.config.set)));
    }
    let within = Duration::from_millis(within_ms).min(CLAIM_MAX);
    door.command(Command::Claim { from, within }).await.map(Reply::yes)
}

pub(super) async fn failover(door: &Door, body: &Bytes) -> Result<Reply, Reply> {
    let Failover { candidate, reason } = read(body)?;
    let own = &door.config.name;
    if candidate.is_some_and(|candidate| candidate != *own) {
        return Err(refused(format!("this is {own}: ask the agent of the host that shall take over")));
    }
    let reason = if reason.is_empty() { "by command".to_string() } else { reason };
    door.command(Command::Failover { reason }).await.map(Reply::yes)
}

pub(super) async fn switchover(door: &Door, body: &Bytes) -> Result<Reply, Reply> {
    let Switchover { leader, candidate, dry_run } = read(body)?;
    let (config, view) = (&door.config, door.view());
    if let Some(leader) = leader.filter(|leader| *leader != config.name) {
        return Err(refused(format!(
            "found leader {leader}, this is {}: ask the agent of the present primary",
            config.name
        )));
    }
    if view.state != StateName::Primary {
        let owner = if view.lease_owner.is_empty() { "nobody".into() } else { view.lease_owner.clone() };
        let words = format!("{} is in state {}, expected primary; {owner} holds the lease", config.name, view.state);
        return Err(refused(words));
    }
    let peers = &config.peers.0;
    let to = match (candidate, peers.len()) {
        (Some(candidate), _) => candidate,
        (None, 1) => peers.keys().next().cloned().unwrap_or_default(),
        (None, count) => return Err(refused(format!("found {count} peers, expected a candidate"))),
    };
    let Some(address) = peers.get(&to) else {
        let known = peers.keys().cloned().collect::<Vec<_>>().join(", ");
        return Err(refused(format!("{to} is none of this agent's peers ({known}): add it under [peers]")));
    };
    let words = able(&to, address, &config.set).await?;
    if dry_run {
        let steps = "checkpoint, stop PostgreSQL, export the pool, detach and give the lease back";
        return Ok(Reply::yes(format!(
            "would move {} from {} to {to}: {words}; {steps}; then {to} takes over",
            config.set, config.name
        )));
    }
    let (database, pool) = (&config.database, &config.pool);
    let seconds = database.checkpoint_timeout_s + database.stop_timeout_s + pool.export_timeout_s;
    let within = Duration::from_secs(seconds + config.takeover.switchover_hold_s)
        + Duration::from_millis(config.attach.detach_timeout_ms);
    let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
    let body = serde_json::json!({ "from": config.name, "set": config.set, "within_ms": within_ms });
    match client::ask(address, "/claim", Some(&body), door.token.as_deref(), PEER_LIMIT).await {
        Ok(answer) if answer.code == 200 => {}
        Ok(answer) => return Err(refused(format!("{to} does not take over: {}", answer.words()))),
        // Whether it heard it does not matter: we keep the lease, and the claim ends by itself.
        Err(error) => return Err(unreached(&to, &error)),
    }
    door.command(Command::Switchover { to }).await.map(Reply::yes)
}

fn unreached(to: &str, error: &ClientError) -> Reply {
    Reply::no(StatusCode::SERVICE_UNAVAILABLE, format!("the agent of {to} does not answer: {error}"))
}

/// Asks whether a host could take over.
async fn able(to: &str, address: &str, set: &str) -> Result<String, Reply> {
    let answer =
        client::ask(address, "/status", None, None, PEER_LIMIT).await.map_err(|error| unreached(to, &error))?;
    let view: super::View = serde_json::from_str(&answer.body)
        .map_err(|error| refused(format!("{address} does not answer as an agent does: {error}")))?;
    if view.name != to || view.set != set {
        return Err(refused(format!("{address}: found {} of set {}, expected {to} of set {set}", view.name, view.set)));
    }
    if view.state != StateName::Standby {
        return Err(refused(format!("{to} is in state {} ({}), expected standby", view.state, view.why)));
    }
    if !view.cluster_answers {
        return Err(refused(format!("{to} reaches no gateway: it could not take the lease")));
    }
    Ok(format!("{to} stands by and reaches the gateways"))
}
