//! The steps of a switchover at the primary's agent, up to the command for the agent's task.
//!
//! ```text
//!   operator ─switchover(to B)─▶ A (primary)   1. asks B and the others, and makes a plan of what they show
//!                                A ─claim────▶ B   2. B will take the free lease at once, and no third host should be quicker
//!                                A             3. checkpoint, stop, export, give the lease back
//!                                              B   4. takes it
//! ```
//! A claim that is not followed by a free lease expires. No claim or command decides which host may write: the lease
//! does.

use super::door::{Door, Reply};
use crate::client::{self, Answer, ClientError};
use crate::host::PoolUsers;
use crate::machine::Command;
use crate::plan::{self, Plan, When};
use crate::schedule::Obstacle;
use crate::view::View;
use axum::http::StatusCode;
use std::time::Duration;

/// Time limit of one question to another agent.
const PEER_LIMIT: Duration = Duration::from_secs(3);

/// How long a switchover waits, before anything is stopped, for processes that have the pool open.
const OPENERS_LIMIT: Duration = Duration::from_secs(2);

/// Pause between two looks at these processes.
const OPENERS_PAUSE: Duration = Duration::from_millis(100);

/// A switchover that did not begin. Nothing was stopped for it.
#[derive(Debug)]
pub(super) struct NotBegun {
    /// The answer to whoever asked for it.
    pub reply: Reply,
    /// The obstacle may go away by itself.
    transient: bool,
}

impl NotBegun {
    /// The obstacle, for a switchover that may be tried again.
    pub(super) fn obstacle(&self) -> Obstacle {
        Obstacle { why: self.reply.words(), transient: self.transient }
    }
}

/// A refusal.
pub(super) fn refused(message: impl Into<String>) -> Reply {
    Reply::no(StatusCode::PRECONDITION_FAILED, message)
}

/// The views of the other hosts' agents, all asked at once.
pub(super) async fn peers(door: &Door) -> Vec<plan::Peer> {
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

/// The users of the pool besides PostgreSQL. Waits up to `patience` until those are gone that do not end by themselves.
async fn openers(door: &Door, patience: Duration) -> PoolUsers {
    let until = tokio::time::Instant::now() + patience;
    loop {
        let users = (door.openers)().await;
        if users.staying.is_empty() || tokio::time::Instant::now() >= until {
            return users;
        }
        tokio::time::sleep(OPENERS_PAUSE).await;
    }
}

/// The plan of a switchover, from what this host and the others show now. `patience`: how long users of the pool are
/// waited for.
pub(super) async fn planned(door: &Door, candidate: Option<&str>, when: Option<When>, patience: Duration) -> Plan {
    let PoolUsers { staying, leaving } = openers(door, patience).await;
    let mut view = View::clone(&door.view());
    (view.pool.openers, view.pool.leaving) = (staying, leaving);
    view.added.scheduled = door.schedule.get();
    plan::switchover(&view, candidate, &peers(door).await, when)
}

/// A plan that may be carried out now.
pub(super) async fn proposed(door: &Door, candidate: Option<&str>) -> Result<Plan, NotBegun> {
    let plan = planned(door, candidate, None, OPENERS_LIMIT).await;
    match plan.may_go(false, "") {
        Ok(()) => Ok(plan),
        Err(why) => Err(NotBegun { reply: refused(why).with(&plan), transient: plan.may_pass() }),
    }
}

/// Tells the target to take the lease as soon as it is free.
pub(super) async fn claimed(door: &Door, plan: &Plan) -> Result<(), NotBegun> {
    let (config, to) = (&door.config, &plan.to);
    // A plan that may be carried out has a target.
    let address = config.peers.0.get(to).cloned().unwrap_or_default();
    let limits = config.limits();
    let seconds = limits.checkpoint_s + limits.stop_s + config.pool.export_timeout_s;
    let within = Duration::from_secs(seconds + config.takeover.switchover_hold_s)
        + Duration::from_millis(config.attach.detach_timeout_ms);
    let within_ms = u64::try_from(within.as_millis()).unwrap_or(u64::MAX);
    let body = serde_json::json!({ "from": config.name, "to": to, "set": config.set, "within_ms": within_ms });
    let token = door.token.as_deref();
    let (reply, transient) =
        match client::ask_over(&door.dial, &address, "/claim", Some(&body), token, PEER_LIMIT).await {
            Ok(answer) if answer.code == 200 => return Ok(()),
            Ok(answer) => {
                let why = format!("{to} does not take over: {}", unclaimed(&answer, &config.name, to));
                (refused(why), may_pass(answer.code))
            }
            // The target need not have received it: we keep the lease, and the claim expires.
            Err(error) => (unreached(to, &error), true),
        };
    Err(NotBegun { reply: reply.with(plan), transient })
}

/// Gives the command to the agent's task.
pub(super) async fn handed_over(door: &Door, plan: &Plan) -> Result<String, NotBegun> {
    let said = door.command(Command::Switchover { to: plan.to.clone() }).await;
    said.map_err(|reply| {
        // R12: what may be under way already is not tried again.
        let transient = reply.code != StatusCode::GATEWAY_TIMEOUT;
        NotBegun { reply: reply.with(plan), transient }
    })
}

/// Whether a claim that was answered with this code may be accepted later without a change of settings: the target was
/// not ready for it (412), or its agent could not answer (5xx).
fn may_pass(code: u16) -> bool {
    matches!(code, 412 | 500..=599)
}

/// SWITCH-P2: reason why a claim was refused, with the remedy.
fn unclaimed(answer: &Answer, from: &str, to: &str) -> String {
    let words = answer.words();
    match answer.code {
        403 => {
            format!("{words}: give {from} and {to} certificates in their names ([tls]), or the same http.token_file")
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_claim_without_the_right_token_is_not_tried_again() {
        for (code, passes) in [(412, true), (503, true), (504, true), (403, false), (400, false), (404, false)] {
            assert_eq!(may_pass(code), passes, "{code}");
        }
    }
}
