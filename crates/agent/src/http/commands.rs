//! Commands that move PostgreSQL from host to host.
//!
//! ```text
//!   operator ─switchover(to B)─▶ A (primary)   1. asks B and the others, and makes a plan of what they show
//!                                A ─claim────▶ B   2. B will take the free lease at once, and no third host should be quicker
//!                                A             3. checkpoint, stop, export, give the lease back
//!                                              B   4. takes it
//! ```
//! A claim that is not followed by a free lease expires. No claim or command decides which host may write: the lease
//! does.

use super::{Door, Reply};
use crate::client::{self, Answer, ClientError};
use crate::clock;
use crate::machine::{Command, Event, Role, StateName};
use crate::plan::{self, Plan, When};
use crate::schedule::{self, Due, Scheduled};
use crate::view::View;
use axum::body::Bytes;
use axum::http::StatusCode;
use serde::Deserialize;
use std::time::Duration;

/// Time limit of one question to another agent.
const PEER_LIMIT: Duration = Duration::from_secs(3);

/// Between two looks at a switchover that is to come.
const SCHEDULE_INTERVAL: Duration = Duration::from_millis(500);

/// So long a switchover waits, before anything is stopped, for processes that have the pool open; and the pause between two looks.
const OPENERS_LIMIT: Duration = Duration::from_secs(2);
const OPENERS_PAUSE: Duration = Duration::from_millis(100);

/// The longest claim.
const CLAIM_MAX: Duration = Duration::from_secs(7200);

/// As Patroni's body, in part: `leader` is checked if it is given, `candidate` is the target.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Switchover {
    leader: Option<String>,
    candidate: Option<String>,
    dry_run: bool,
    /// Time, Unix milliseconds; now if none.
    scheduled_at_unix_ms: Option<u64>,
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
    dry_run: bool,
    allow_data_loss: bool,
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
        let (own, ours) = (&door.config.name, &door.config.set);
        return Err(refused(format!(
            "{own}: found set {set}, expected {ours}: mend `set` or [peers] in the settings of {from} or {own}"
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
        return Ok(would(&plan, may_go, &format!("{own} would take over")));
    }
    may_go.map_err(|why| refused(why).with(&plan))?;
    let reason = match (reason.is_empty(), allow_data_loss) {
        (true, _) => "by command".to_string(),
        (false, false) => reason,
        (false, true) => format!("{reason} (data loss allowed)"),
    };
    door.command(Command::Failover { reason }).await.map(|words| Reply::yes(words).with(&plan))
}

/// The answer to a dry run.
fn would(plan: &Plan, may_go: Result<(), String>, words: &str) -> Reply {
    Reply::yes(may_go.map_or_else(|why| format!("would be refused: {why}"), |()| words.to_string())).with(plan)
}

/// The views of the other hosts' agents, all asked at once.
async fn peers(door: &Door) -> Vec<plan::Peer> {
    let mut asked = tokio::task::JoinSet::new();
    for (name, address) in door.config.peers.0.clone() {
        let dial = door.dial.clone();
        asked.spawn(async move {
            let answer = client::ask_over(&dial, &address, "/status", None, None, PEER_LIMIT).await;
            let view = answer.map_err(|error| error.to_string()).and_then(|answer| {
                serde_json::from_str::<View>(&answer.body).map_err(|error| format!("{address}: no agent: {error}"))
            });
            (name, view)
        });
    }
    let mut peers = asked.join_all().await;
    peers.sort_by(|(a, _), (b, _)| a.cmp(b));
    peers
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
        Some(at_unix_ms) => plan_ahead(door, candidate, dry_run, at_unix_ms).await,
        None => switch(door, candidate, dry_run).await,
    }
}

/// Who but PostgreSQL has the pool open, once nobody is waited for any more.
async fn openers(door: &Door, patience: Duration) -> Vec<String> {
    let until = tokio::time::Instant::now() + patience;
    loop {
        let openers = (door.openers)().await;
        if openers.is_empty() || tokio::time::Instant::now() >= until {
            return openers;
        }
        tokio::time::sleep(OPENERS_PAUSE).await;
    }
}

/// What this host and the others show now, as a plan. `patience`: for whoever has the pool open.
async fn planned(door: &Door, candidate: Option<&str>, when: Option<When>, patience: Duration) -> Plan {
    let openers = openers(door, patience).await;
    let view = View { scheduled: door.schedule.get(), openers, ..View::clone(&door.view()) };
    plan::switchover(&view, candidate, &peers(door).await, when)
}

/// Keeps a switchover for later. Who shall take over is asked now and again then.
async fn plan_ahead(door: &Door, to: Option<String>, dry_run: bool, at_unix_ms: u64) -> Result<Reply, Reply> {
    let when = When { at_unix_ms, now_unix_ms: clock::unix_ms() };
    let plan = planned(door, to.as_deref(), Some(when), Duration::ZERO).await;
    let (set, host, seconds) = (&door.config.set, &plan.to, when.seconds());
    let may_go = plan.may_go(false, "");
    if dry_run {
        return Ok(would(&plan, may_go, &format!("would move {set} to {host} in {seconds} s")));
    }
    may_go.map_err(|why| refused(why).with(&plan))?;
    let kept = door.schedule.set(Scheduled { at_unix_ms, to });
    let failed = |error: std::io::Error| {
        let dir = door.config.dir.display();
        let words = format!("not kept, {dir}: {error}: make room there, or correct `dir` in the settings");
        Reply::no(StatusCode::INTERNAL_SERVER_ERROR, words)
    };
    let earlier = kept.map_err(failed)?;
    let instead = if earlier.is_some() { ", in the place of an earlier one" } else { "" };
    door.note(Event::Scheduled, &format!("switchover to {host} in {seconds} s{instead}"));
    let words =
        format!("{set} moves to {host} in {seconds} s{instead}; `holdfast agent switchover --cancel` ends that");
    Ok(Reply::yes(words).with(&plan))
}

pub(super) fn cancel(door: &Door) -> Result<Reply, Reply> {
    let failed = |error: std::io::Error| {
        let words = format!("not cancelled, {}: {error}: ask again once it can be written", door.config.dir.display());
        Reply::no(StatusCode::INTERNAL_SERVER_ERROR, words)
    };
    match door.schedule.take().map_err(failed)? {
        Some(_) => {
            door.note(Event::Scheduled, "cancelled by command");
            Ok(Reply::yes("cancelled"))
        }
        None => Err(refused(format!(
            "no switchover is scheduled at {}: `holdfast agent status` shows where one is",
            door.config.name
        ))),
    }
}

/// Checks the scheduled switchover from time to time, for as long as the agent runs.
pub(crate) async fn keep_schedule(door: Door) {
    let mut ticks = tokio::time::interval(SCHEDULE_INTERVAL);
    loop {
        ticks.tick().await;
        let Some(scheduled) = door.schedule.get() else { continue };
        let view = door.view();
        let runs_it =
            view.state == StateName::Following || view.state == StateName::Primary && view.role == Role::Primary;
        let due = schedule::due(&scheduled, clock::unix_ms(), runs_it);
        if due == Due::Later {
            continue;
        }
        // TIMED-T1
        if let Err(error) = door.schedule.take() {
            tracing::error!(%error, "a scheduled switchover is due and cannot be taken off the disk: not begun");
            continue;
        }
        let outcome = match due {
            Due::Dropped(why) => Err(why),
            // AGENT-A4: it was requested before the pause.
            Due::Now if view.paused => Err("the host is paused: ask for it anew".to_string()),
            Due::Later | Due::Now => match switch(&door, scheduled.to, false).await {
                Ok(_) => Ok(()),
                Err(reply) => Err(reply.words()),
            },
        };
        match outcome {
            Ok(()) => door.note(Event::Scheduled, "begun in time"),
            Err(why) => door.note(Event::Scheduled, &format!("dropped: {why}")),
        }
    }
}

async fn switch(door: &Door, candidate: Option<String>, dry_run: bool) -> Result<Reply, Reply> {
    let config = &door.config;
    let patience = if dry_run { Duration::ZERO } else { OPENERS_LIMIT };
    let plan = planned(door, candidate.as_deref(), None, patience).await;
    let may_go = plan.may_go(false, "");
    if dry_run {
        return Ok(would(&plan, may_go, &format!("would move {} from {} to {}", config.set, config.name, plan.to)));
    }
    may_go.map_err(|why| refused(why).with(&plan))?;
    let to = plan.to.clone();
    // A plan that may be carried out has a target.
    let address = config.peers.0.get(&to).cloned().unwrap_or_default();
    let (database, pool) = (&config.database, &config.pool);
    let seconds = database.checkpoint_timeout_s + database.stop_timeout_s + pool.export_timeout_s;
    let within = Duration::from_secs(seconds + config.takeover.switchover_hold_s)
        + Duration::from_millis(config.attach.detach_timeout_ms);
    let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
    let body = serde_json::json!({ "from": config.name, "set": config.set, "within_ms": within_ms });
    let token = door.token.as_deref();
    match client::ask_over(&door.dial, &address, "/claim", Some(&body), token, PEER_LIMIT).await {
        Ok(answer) if answer.code == 200 => {}
        Ok(answer) => {
            return Err(
                refused(format!("{to} does not take over: {}", unclaimed(&answer, &config.name, &to))).with(&plan)
            );
        }
        // The target need not have received it: we keep the lease, and the claim expires.
        Err(error) => return Err(unreached(&to, &error).with(&plan)),
    }
    let said = door.command(Command::Switchover { to }).await;
    said.map(|words| Reply::yes(words).with(&plan)).map_err(|reply| reply.with(&plan))
}

/// SWITCH-P2: reason why a claim was refused, with the remedy.
fn unclaimed(answer: &Answer, from: &str, to: &str) -> String {
    let words = answer.words();
    match answer.code {
        403 => format!("{words}: give {from} and {to} the same http.token_file"),
        // The refusal contains its remedy.
        412 => words,
        _ => format!("{words}: `holdfast agent status` shows how it is; ask again"),
    }
}

fn unreached(to: &str, error: &ClientError) -> Reply {
    let words =
        format!("the agent of {to} does not answer: {error}: `holdfast agent status` shows how it is; ask again");
    Reply::no(StatusCode::SERVICE_UNAVAILABLE, words)
}
