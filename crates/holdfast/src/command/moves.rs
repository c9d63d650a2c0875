//! `holdfast switchover` and `holdfast failover`: the gateway before and after, and the time it took.

use super::connect::{connect, incomplete};
use super::console::{confirm, tell};
use super::lease;
use super::set_calls;
use super::text::epoch_text;
use crate::cli::{Common, FailoverArgs, SwitchoverArgs};
use crate::client::{Client, ClusterClient, Effect, request_id};
use crate::exit::CliError;
use crate::output;
use holdfast_api::v1;
use serde::Serialize;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Time limit for the leader's view before a move; after it the view of any gateway is used.
const BEFORE_TIMEOUT: Duration = Duration::from_secs(3);

/// Poll interval for the state after a move.
const AFTER_INTERVAL: Duration = Duration::from_millis(50);

#[derive(Serialize)]
struct Moved<'a> {
    set: &'a str,
    before: &'a v1::SetStatus,
    after: &'a v1::SetStatus,
    /// From sending the command until the new gateway confirmed that it serves the set.
    took_ms: u64,
    already: bool,
    ended: Option<&'a v1::Lease>,
    granted: Option<&'a v1::GrantReply>,
}

/// `holdfast switchover`.
pub async fn switchover(common: &Common, args: &SwitchoverArgs) -> Result<(), CliError> {
    let (set, to) = (args.set.as_str(), args.to.as_str());
    let mut api = connect(common).patient();
    let before = before(common, set).await?;
    let request = v1::SwitchoverRequest { set: set.into(), to_gateway: to.into(), request_id: request_id() };
    let started = Instant::now();
    let call = async |mut client: Client| client.switchover(request.clone()).await;
    let reply = api.call(&format!("switch {set} over to {to}"), Effect::Changes, call).await?;
    finish(common, &mut api, set, to, &before, &reply, started).await
}

/// `holdfast failover`.
pub async fn failover(common: &Common, args: &FailoverArgs) -> Result<(), CliError> {
    let (set, to) = (args.set.as_str(), args.candidate.as_str());
    let before = before(common, set).await?;
    if !args.yes {
        tell(common, &table(&[("now", &before)]));
        let holder = before.lease.as_ref().map_or("It has no owner".to_string(), |lease| {
            format!("Its owner {} is fenced: further writes are refused", lease.owner)
        });
        confirm(&format!("Fail over set {set} to {to}? {holder}."))?;
    }
    // The time limit starts after the answer.
    let mut api = connect(common).patient();
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
    let reply = api.call(&format!("fail {set} over to {to}"), Effect::Changes, call).await?;
    finish(common, &mut api, set, to, &before, &reply, started).await
}

/// The state before, from the leader if there is one, else from any gateway: a failover is needed when there is no
/// leader.
async fn before(common: &Common, set: &str) -> Result<v1::SetStatus, CliError> {
    let mut quick = ClusterClient::new(&common.dialer, &common.api, common.timeout().min(BEFORE_TIMEOUT));
    match set_calls::status(&mut quick, set, false).await {
        Err(error) if error.exit == crate::exit::Exit::Unreachable => {
            set_calls::status(&mut connect(common), set, true).await
        }
        answer => answer,
    }
}

async fn finish(
    common: &Common,
    api: &mut ClusterClient,
    set: &str,
    to: &str,
    before: &v1::SetStatus,
    reply: &v1::MoveReply,
    started: Instant,
) -> Result<(), CliError> {
    // Whatever comes now, the move has been made, and its owner may be fenced.
    let changed = |error: CliError| match (reply.already, &reply.ended, &reply.granted) {
        (true, None, None) => error,
        (_, _, None) => error.after_a_change(&format!("set {set} was given to {to}")),
        (_, _, Some(_)) => error.after_a_change(&format!(
            "set {set} was given to {to} and to a new owner, whose token is lost: repeat this command for another one"
        )),
    };
    let after = loop {
        let seen = set_calls::status(api, set, false).await.map_err(changed)?;
        if leader(&seen) == to {
            break seen;
        }
        if Instant::now() >= api.deadline() {
            let error = CliError::failed(format!("set {set} is served by {:?}, expected {to}", leader(&seen)));
            return Err(error.next("leadership has moved again: check with `holdfast set show`, then decide"));
        }
        sleep(AFTER_INTERVAL).await;
    };
    let granted = match &reply.granted {
        Some(granted) => Some(brought_along(api, to, granted).await.map_err(changed)?),
        None => None,
    };
    let took_ms = u64::try_from(started.elapsed().as_millis()).unwrap_or(u64::MAX);
    // The state including the continued lease.
    let after = if granted.is_some() { set_calls::status(api, set, false).await.map_err(changed)? } else { after };
    let (ended, granted) = (reply.ended.as_ref(), granted.as_ref());
    let moved = Moved { set, before, after: &after, took_ms, already: reply.already, ended, granted };
    output::show(common.output, &moved, || {
        let mut text = table(&[("before", before), ("after", &after)]);
        text.push_str(&match reply.already {
            true => format!("\n\n{to} already serves {set}."),
            false => format!("\n\n{to} serves {set} after {took_ms} ms."),
        });
        if let Some(ended) = ended {
            text.push_str(&format!("\n{} was fenced (epoch {}).", ended.owner, epoch_text(ended.epoch)));
        }
        if let Some(granted) = granted {
            let owner = granted.lease.as_ref().map_or("", |lease| lease.owner.as_str());
            text.push_str(&format!(
                "\n{owner} is the new owner.\ntoken  {}\n  {}",
                granted.token,
                lease::exports(common, granted).join("\n  ")
            ));
        }
        text
    })
}

/// The grant fences the old owner at once, at the gateway that led then. If leadership moved after it, the lease is
/// continued at the new gateway with its token, which returns a new token (R6).
async fn brought_along(
    api: &mut ClusterClient,
    to: &str,
    granted: &v1::GrantReply,
) -> Result<v1::GrantReply, CliError> {
    let lease = granted.lease.as_ref().ok_or_else(|| incomplete("the lease"))?;
    if lease.gateway_name == to {
        return Ok(granted.clone());
    }
    let (set, owner, token) = (lease.set.clone(), lease.owner.clone(), granted.token.clone());
    let request = v1::ContinueLeaseRequest { set, owner, token, request_id: request_id(), ..Default::default() };
    let call = async |mut client: Client| client.continue_lease(request.clone()).await;
    api.call(&format!("continue the new lease at {to}"), Effect::Changes, call).await
}

fn leader(status: &v1::SetStatus) -> &str {
    status.leader.as_ref().map_or("", |leader| leader.name.as_str())
}

fn table(states: &[(&str, &v1::SetStatus)]) -> String {
    let row = |(when, status): &(&str, &v1::SetStatus)| {
        let region = status.leader.as_ref().map_or(String::new(), |leader| leader.region.clone());
        let lease = status.lease.as_ref();
        let owner = lease.map_or("none".to_string(), |lease| lease.owner.clone());
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
