//! Commands that move PostgreSQL from host to host, as they come over HTTP.

use super::door::{Door, Reply};
use super::moves::{self, peers, refused};
use super::rules;
use super::timed;
use crate::listen::Asker;
use crate::machine::Command;
use crate::plan;
use axum::body::Bytes;
use axum::http::StatusCode;
use serde::Deserialize;
use std::time::Duration;

/// The longest claim.
const CLAIM_MAX: Duration = Duration::from_secs(7200);

/// As Patroni's body, in part: `leader` is checked if it is given, `candidate` is the target.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Switchover {
    leader: Option<String>,
    candidate: Option<String>,
    dry_run: bool,
    /// Its time, Unix milliseconds; now if there is none.
    scheduled_at_unix_ms: Option<u64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Claim {
    from: String,
    /// The target. A command may be passed on by somebody who listens at the address of another agent.
    to: String,
    set: String,
    within_ms: u64,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Failover {
    candidate: Option<String>,
    reason: String,
    dry_run: bool,
    allow_data_loss: bool,
}

fn read<'a, T: Deserialize<'a>>(body: &'a Bytes) -> Result<T, Reply> {
    let text: &[u8] = if body.is_empty() { b"{}" } else { body };
    serde_json::from_slice(text).map_err(|error| Reply::no(StatusCode::BAD_REQUEST, format!("body: {error}")))
}

pub(super) async fn claim(door: &Door, who: &Asker, body: &Bytes) -> Result<Reply, Reply> {
    let Claim { from, to, set, within_ms } = read(body)?;
    let is_peer = door.config.peers.0.contains_key(&from);
    rules::speaks_for(who, &from, is_peer).map_err(|why| Reply::no(StatusCode::FORBIDDEN, why))?;
    let (own, ours) = (&door.config.name, &door.config.set);
    if to != *own {
        return Err(refused(format!(
            "this is {own}: found a claim for {to}: correct [peers] in the settings of {from}, or `name` in those of {own}"
        )));
    }
    if set != *ours {
        return Err(refused(format!(
            "{own}: found set {set}, expected {ours}: correct `set` or [peers] in the settings of {from} or {own}"
        )));
    }
    let within = Duration::from_millis(within_ms).min(CLAIM_MAX);
    door.command(Command::Claim { from, within }).await.map(Reply::yes)
}

pub(super) async fn failover(door: &Door, body: &Bytes) -> Result<Reply, Reply> {
    let Failover { candidate, reason, dry_run, allow_data_loss } = read(body)?;
    let own = &door.config.name;
    if candidate.is_some_and(|candidate| candidate != *own) {
        return Err(refused(format!("this is {own}: ask the agent of the host that shall take over")));
    }
    let plan = plan::failover(&door.view(), &peers(door).await);
    let may_go = plan.may_go(allow_data_loss, &reason);
    if dry_run {
        return Ok(Reply::would(&plan, may_go, &format!("{own} would take over")));
    }
    may_go.map_err(|why| refused(why).with(&plan))?;
    let reason = match (reason.is_empty(), allow_data_loss) {
        (true, _) => "by command".to_string(),
        (false, false) => reason,
        (false, true) => format!("{reason} (data loss allowed)"),
    };
    door.command(Command::Failover { reason }).await.map(|words| Reply::yes(words).with(&plan))
}

pub(super) async fn switchover(door: &Door, body: &Bytes) -> Result<Reply, Reply> {
    let Switchover { leader, candidate, dry_run, scheduled_at_unix_ms } = read(body)?;
    let own = &door.config.name;
    if let Some(leader) = leader.filter(|leader| leader != own) {
        return Err(refused(format!(
            "found leader {leader}, this is {own}: ask the agent of the present primary, `holdfast agent status` shows it"
        )));
    }
    match scheduled_at_unix_ms {
        Some(at_unix_ms) => timed::plan_ahead(door, candidate, dry_run, at_unix_ms).await,
        None if dry_run => Ok(rehearse(door, candidate.as_deref()).await),
        None => switch(door, candidate.as_deref()).await.map_err(|not| not.reply),
    }
}

/// The answer to a dry run of a switchover now.
async fn rehearse(door: &Door, candidate: Option<&str>) -> Reply {
    let config = &door.config;
    let plan = moves::planned(door, candidate, None, Duration::ZERO).await;
    let may_go = plan.may_go(false, "");
    Reply::would(&plan, may_go, &format!("would move {} from {} to {}", config.set, config.name, plan.to))
}

/// Begins a switchover now. An obstacle is told at once, also one that may go away: the person who asked may ask again.
async fn switch(door: &Door, candidate: Option<&str>) -> Result<Reply, moves::NotBegun> {
    let plan = moves::proposed(door, candidate).await?;
    moves::claimed(door, &plan).await?;
    moves::handed_over(door, &plan).await.map(|words| Reply::yes(words).with(&plan))
}
