//! `holdfast switchover` and `holdfast failover`: who served before, who serves after, and how long it took.

use super::{confirm, door, epoch_text, incomplete, lease, set, tell};
use crate::cli::{Common, FailoverArgs, SwitchoverArgs};
use crate::door::{Client, Door, Effect, request_id};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use serde::Serialize;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// How long the state before a move may wait for a leader to confirm it, before any gateway's own view is taken.
const BEFORE_TIMEOUT: Duration = Duration::from_secs(3);

/// How often the state after a move is looked at until it is the one that was asked for.
const AFTER_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Serialize)]
struct Moved<'a> {
    set: &'a str,
    before: &'a v1::SetStatus,
    after: &'a v1::SetStatus,
    /// From sending the command until the new gateway confirmed that it serves.
    took_ms: u64,
    already: bool,
    ended: Option<&'a v1::Lease>,
    granted: Option<&'a v1::GrantReply>,
}

/// `holdfast switchover`.
pub async fn switchover(common: &Common, args: &SwitchoverArgs) -> Result<(), CliError> {
    let (set, to) = (args.set.as_str(), args.to.as_str());
    let mut door = door(common).patient();
    let before = before(common, set).await?;
    let request = v1::SwitchoverRequest { set: set.into(), to_gateway: to.into(), request_id: request_id() };
    let started = Instant::now();
    let call = async |mut client: Client| client.switchover(request.clone()).await;
    let reply = door.call(&format!("switch {set} over to {to}"), Effect::Changes, call).await?;
    finish(common, &mut door, set, to, &before, &reply, started).await
}

/// `holdfast failover`.
pub async fn failover(common: &Common, args: &FailoverArgs) -> Result<(), CliError> {
    let (set, to) = (args.set.as_str(), args.candidate.as_str());
    let before = before(common, set).await?;
    if !args.yes {
        tell(common, &table(&[("now", &before)]));
        let holder = before.lease.as_ref().map_or("Nobody holds it".to_string(), |lease| {
            format!("{} is fenced: its writes are refused from then on", lease.owner)
        });
        confirm(&format!("Fail {set} over to {to}? {holder}."))?;
    }
    // The question may have taken long: the time runs from the answer.
    let mut door = door(common).patient();
    let owner = args.owner.as_ref().map_or(String::new(), ToString::to_string);
    let request = v1::FailoverRequest {
        set: set.into(),
        candidate: to.into(),
        owner,
        ttl_ms: lease::ttl_ms(args.ttl),
        reason: args.reason.clone(),
        request_id: request_id(),
        seen_epoch: Some(before.lease.as_ref().map_or(0, |lease| lease.epoch)),
    };
    let started = Instant::now();
    let call = async |mut client: Client| client.failover(request.clone()).await;
    let reply = door.call(&format!("fail {set} over to {to}"), Effect::Changes, call).await?;
    finish(common, &mut door, set, to, &before, &reply, started).await
}

/// The state before: confirmed if possible, else anyone's view, since a set without a leader is what a failover is for.
async fn before(common: &Common, set: &str) -> Result<v1::SetStatus, CliError> {
    let mut quick = Door::new(&common.dialer, &common.api, common.timeout().min(BEFORE_TIMEOUT));
    match set::status(&mut quick, set, false).await {
        Err(error) if error.exit == crate::exit::Exit::Unreachable => set::status(&mut door(common), set, true).await,
        answer => answer,
    }
}

async fn finish(
    common: &Common,
    door: &mut Door,
    set: &str,
    to: &str,
    before: &v1::SetStatus,
    reply: &v1::MoveReply,
    started: Instant,
) -> Result<(), CliError> {
    let after = loop {
        let seen = set::status(door, set, false).await?;
        if leader(&seen) == to {
            break seen;
        }
        if Instant::now() >= door.deadline() {
            let error = CliError::failed(format!("{set} is served by {:?}, expected {to}", leader(&seen)));
            return Err(error.next("leadership moved on: look with `holdfast set show`, then decide anew"));
        }
        sleep(AFTER_INTERVAL).await;
    };
    let granted = match &reply.granted {
        Some(granted) => Some(brought_along(door, to, granted).await?),
        None => None,
    };
    let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    // What the set looks like with the lease where it belongs.
    let after = if granted.is_some() { set::status(door, set, false).await? } else { after };
    let (ended, granted) = (reply.ended.as_ref(), granted.as_ref());
    let moved = Moved { set, before, after: &after, took_ms, already: reply.already, ended, granted };
    output::show(common.output, &moved, || {
        let mut text = table(&[("before", before), ("after", &after)]);
        text.push_str(&match reply.already {
            true => format!("\n\n{to} served {set} already."),
            false => format!("\n\n{to} serves {set} after {took_ms} ms."),
        });
        if let Some(ended) = ended {
            text.push_str(&format!("\n{} was fenced (its epoch was {}).", ended.owner, epoch_text(ended.epoch)));
        }
        if let Some(granted) = granted {
            let owner = granted.lease.as_ref().map_or("", |lease| lease.owner.as_str());
            text.push_str(&format!(
                "\n{owner} holds it now.\ntoken  {}\n  {}",
                granted.token,
                lease::exports(granted).join("\n  ")
            ));
        }
        text
    })
}

/// The grant fences the old owner at once, at the gateway that led then. Where leadership moved after it, the new owner goes on at the new
/// gateway as any owner does: by its token, which gives it another one (R6).
async fn brought_along(door: &mut Door, to: &str, granted: &v1::GrantReply) -> Result<v1::GrantReply, CliError> {
    let lease = granted.lease.as_ref().ok_or_else(|| incomplete("the lease"))?;
    if lease.gateway_name == to {
        return Ok(granted.clone());
    }
    let (set, owner, token) = (lease.set.clone(), lease.owner.clone(), granted.token.clone());
    let request = v1::ContinueLeaseRequest { set, owner, token, request_id: request_id() };
    let call = async |mut client: Client| client.continue_lease(request.clone()).await;
    door.call(&format!("continue the new lease at {to}"), Effect::Changes, call).await
}

fn leader(status: &v1::SetStatus) -> &str {
    status.leader.as_ref().map_or("", |leader| leader.name.as_str())
}

fn table(states: &[(&str, &v1::SetStatus)]) -> String {
    let row = |(when, status): &(&str, &v1::SetStatus)| {
        let region = status.leader.as_ref().map_or(String::new(), |leader| leader.region.clone());
        let lease = status.lease.as_ref();
        let owner = lease.map_or("(free)".to_string(), |lease| lease.owner.clone());
        let kind = lease.map_or("", |lease| if lease.plain { "plain" } else { "token" });
        [
            when.to_string(),
            leader(status).to_string(),
            region,
            status.term.to_string(),
            epoch_text(status.epoch),
            owner,
            kind.to_string(),
        ]
    };
    output::table(["", "GATEWAY", "REGION", "TERM", "EPOCH", "OWNER", "LEASE"], states.iter().map(row))
}
