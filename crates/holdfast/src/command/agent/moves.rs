//! `holdfast agent switchover` and `holdfast agent failover`: show the hosts before and after, the plan with its
//! checks, the progress, and refusals. With `--output json` one object has all of it, with or without `--yes`.

use super::ask::{AgentStatus, NO_AGENT, command, look, post, survey, taken};
use super::table::table;
use crate::cli::{Agents, Common};
use crate::command::console::{confirm, tell};
use crate::command::text::epoch_text;
use crate::exit::CliError;
use crate::output;
use crate::timestamp::Timestamp;
use holdfast_agent::View;
use holdfast_agent::client::Answer;
use holdfast_agent::machine::{Role, StateName};
use holdfast_agent::plan::{Check, Finding, Plan};
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Poll interval of a move in progress.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// Advice after a refusal.
const SHOWS_CHECKS: &str = "`--dry-run` shows the checks, and what to do about each one";

/// Arguments of a forced takeover.
#[derive(Debug)]
pub(super) struct Forced {
    pub candidate: Option<String>,
    pub reason: String,
    pub dry_run: bool,
    pub allow_data_loss: bool,
    pub yes: bool,
}

/// The host on which PostgreSQL runs, as primary or following another one.
fn primary(seen: &[AgentStatus]) -> Option<&AgentStatus> {
    let having = |has: &dyn Fn(&View) -> bool| seen.iter().find(|seen| seen.view.as_ref().is_some_and(has));
    having(&|view| view.role == Role::Primary)
        .or(having(&|view| matches!(view.state, StateName::Primary | StateName::Following)))
}

fn no_primary(common: &Common, seen: &[AgentStatus]) -> CliError {
    tell(common, &table(seen));
    if seen.iter().all(|seen| seen.view.is_none()) {
        return CliError::unreachable("no agent answers").next(NO_AGENT);
    }
    CliError::refused("found no primary among the agents, expected one")
        .next("give the address of its agent with --agent; if PostgreSQL runs on no host, use `holdfast agent failover --candidate HOST`")
}

pub(super) async fn cancel(common: &Common, agents: &Agents) -> Result<(), CliError> {
    let seen = survey(agents).await;
    // It is stored at the host that was primary when it was scheduled.
    let keeps = |seen: &&AgentStatus| seen.view.as_ref().is_some_and(|view| view.added.scheduled.is_some());
    let Some(keeper) = seen.iter().find(keeps).or(primary(&seen)) else { return Err(no_primary(common, &seen)) };
    let words = post(agents, &keeper.address, "/switchover/cancel", serde_json::json!({})).await?;
    output::show(common.output, &serde_json::json!({ "message": words }), || words.clone())
}

pub(super) async fn switchover(
    common: &Common,
    agents: &Agents,
    to: Option<String>,
    scheduled: Option<Timestamp>,
    dry_run: bool,
    yes: bool,
) -> Result<(), CliError> {
    let before = survey(agents).await;
    let Some(primary) = primary(&before) else { return Err(no_primary(common, &before)) };
    let address = primary.address.clone();
    let from = primary.view.as_ref().map(|view| view.name.clone()).unwrap_or_default();
    let mut body = serde_json::json!({ "leader": from, "dry_run": true });
    if let Some(to) = &to {
        body["candidate"] = to.as_str().into();
    }
    if let Some(at) = scheduled {
        body["scheduled_at_unix_ms"] = at.0.into();
    }
    if dry_run {
        let answer = command(agents, &address, "/switchover", body).await?;
        return show_dry_run(common, &before, &answer, false, "");
    }
    tell(common, &hosts("before", &before));
    if !yes {
        let answer = command(agents, &address, "/switchover", body.clone()).await?;
        let whom = checked_plan(common, &answer, false, "")?.to;
        let when = scheduled.map_or(String::new(), |at| format!(" at {at}"));
        confirm(&format!("Move PostgreSQL from {from} to {whom}{when}? All its clients are disconnected."))?;
    }
    body["dry_run"] = false.into();
    let begun = Instant::now();
    let answer = command(agents, &address, "/switchover", body).await?;
    check_started(common, &answer)?;
    let (words, plan) = (answer.words(), plan_of(&answer.body));
    if let Some(at) = scheduled {
        let done = serde_json::json!({
            "scheduled_at_unix_ms": at.0, "at": at.to_string(), "message": words, "plan": plan, "before": before,
        });
        return output::show(common.output, &done, || format!("{from}: {words} ({at})"));
    }
    tell(common, &format!("{from}: {words}"));
    let others = before.iter().filter(|seen| seen.address != address).map(|seen| seen.address.clone()).collect();
    arrived(common, agents, others, Moved { from: Some(address), before, plan, begun }).await
}

pub(super) async fn failover(common: &Common, agents: &Agents, wanted: Forced) -> Result<(), CliError> {
    let Forced { candidate, reason, dry_run, allow_data_loss, yes } = wanted;
    let before = survey(agents).await;
    let address = target(agents, &before, candidate.as_deref())?;
    let mut body = serde_json::json!({ "reason": reason, "allow_data_loss": allow_data_loss, "dry_run": true });
    if let Some(candidate) = &candidate {
        body["candidate"] = candidate.as_str().into();
    }
    let answer = command(agents, &address, "/failover", body.clone()).await?;
    if dry_run {
        return show_dry_run(common, &before, &answer, allow_data_loss, &reason);
    }
    tell(common, &hosts("before", &before));
    // Checked before the confirmation; the agent checks again.
    let plan = checked_plan(common, &answer, allow_data_loss, &reason)?;
    if !yes {
        confirm("Take over by force? The present owner of the set is fenced: its further writes are refused.")?;
    }
    let begun = Instant::now();
    body["dry_run"] = false.into();
    let answer = command(agents, &address, "/failover", body).await?;
    check_started(common, &answer)?;
    tell(common, &answer.words());
    let plan = plan_of(&answer.body).or(Some(plan));
    arrived(common, agents, vec![address], Moved { from: None, before, plan, begun }).await
}

/// The hosts, under a heading.
fn hosts(when: &str, seen: &[AgentStatus]) -> String {
    format!("{when}:\n{}\n", table(seen))
}

/// The result of `--dry-run`: the hosts, the plan and its outcome.
fn show_dry_run(
    common: &Common,
    before: &[AgentStatus],
    answer: &Answer,
    allow_data_loss: bool,
    reason: &str,
) -> Result<(), CliError> {
    taken(answer)?;
    let plan = plan_of(&answer.body);
    let may_go = plan.as_ref().map(|plan| plan.may_go(allow_data_loss, reason).is_ok());
    let said = serde_json::json!({ "message": answer.words(), "may_go": may_go, "plan": plan, "before": before });
    output::show(common.output, &said, || {
        let plan = plan.as_ref().map_or(String::new(), |plan| format!("{}\n\n", plan_text(plan)));
        format!("{}\n{plan}{}", hosts("now", before), answer.words())
    })
}

/// Shows the plan of an answer and checks that it may be carried out.
fn checked_plan(common: &Common, answer: &Answer, allow_data_loss: bool, reason: &str) -> Result<Plan, CliError> {
    taken(answer)?;
    let plan = plan_of(&answer.body).ok_or_else(|| CliError::failed("the agent's answer has no plan"))?;
    tell(common, &format!("{}\n", plan_text(&plan)));
    match plan.may_go(allow_data_loss, reason) {
        Ok(()) => Ok(plan),
        Err(why) => Err(CliError::refused(why).next(SHOWS_CHECKS)),
    }
}

/// Checks that the move has started. If not, the checks of the plan are shown.
fn check_started(common: &Common, answer: &Answer) -> Result<(), CliError> {
    taken(answer).inspect_err(|_| {
        if let Some(plan) = plan_of(&answer.body) {
            tell(common, &format!("{}\n", plan_text(&plan)));
        }
    })
}

/// Address of the agent that is to take over.
fn target(agents: &Agents, seen: &[AgentStatus], candidate: Option<&str>) -> Result<String, CliError> {
    match (candidate, agents.agent.as_slice()) {
        (None, [address]) => Ok(address.clone()),
        (None, several) => {
            let found = several.len();
            let words = format!("found {found} agents, expected only the agent of the host that is to take over");
            Err(CliError::usage(words).next("name the host with --candidate, or give only its agent in --agent"))
        }
        (Some(name), _) => {
            let is_it = |seen: &&AgentStatus| seen.view.as_ref().is_some_and(|view| view.name == name);
            if let Some(seen) = seen.iter().find(is_it) {
                return Ok(seen.address.clone());
            }
            let known: Vec<&str> = seen.iter().filter_map(|s| s.view.as_ref()).map(|view| view.name.as_str()).collect();
            let words = format!(
                "no agent of {name} answers, found {}",
                if known.is_empty() { "none".into() } else { known.join(", ") }
            );
            Err(CliError::unreachable(words)
                .next("start `holdfast agent run` on that host, or give its address with --agent"))
        }
    }
}

fn plan_of(body: &str) -> Option<Plan> {
    let value: serde_json::Value = serde_json::from_str(body).ok()?;
    serde_json::from_value(value.get("plan")?.clone()).ok()
}

/// Checks and steps for people.
fn plan_text(plan: &Plan) -> String {
    let row = |check: &Check| {
        let finding = match check.finding {
            Finding::Good => "ok",
            Finding::Note => "note",
            Finding::LosesData => "LOSES DATA",
            Finding::Impossible => "NOT POSSIBLE",
        };
        [finding.to_string(), check.found.clone(), check.next.clone()]
    };
    let steps: Vec<String> = plan.steps.iter().enumerate().map(|(at, step)| format!("  {}. {step}", at + 1)).collect();
    let checks = output::table(["CHECK", "FOUND", "NEXT"], plan.checks.iter().map(row));
    let to = if plan.to.is_empty() { "?" } else { plan.to.as_str() };
    let from = if plan.from.is_empty() { String::new() } else { format!(" from {}", plan.from) };
    format!("{checks}\n\nsteps of the {} of {}{from} to {to}:\n{}", plan.kind, plan.set, steps.join("\n"))
}

/// A move in progress.
struct Moved {
    /// Address of the agent that gives the set up, if one does.
    from: Option<String>,
    before: Vec<AgentStatus>,
    plan: Option<Plan>,
    begun: Instant,
}

/// Waits until one of these agents is primary, and shows the hosts.
async fn arrived(common: &Common, agents: &Agents, addresses: Vec<String>, moved: Moved) -> Result<(), CliError> {
    let Moved { from, before, plan, begun } = moved;
    let deadline = begun + common.timeout();
    let mut last = BTreeMap::new();
    loop {
        for address in &addresses {
            let Some(view) = look(agents, address).await.view else { continue };
            let ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            if last.insert(view.name.clone(), view.state) != Some(view.state) {
                tell(
                    common,
                    &format!(
                        "{ms:>7} ms  {} is {}{}{}",
                        view.name,
                        view.state,
                        if view.why.is_empty() { "" } else { ": " },
                        view.why
                    ),
                );
            }
            let follows = view.state == StateName::Following;
            if view.role == Role::Primary || follows {
                let after = survey(agents).await;
                let done = serde_json::json!({
                    "primary": view.name, "state": view.state, "epoch": view.lease.epoch, "took_ms": ms, "plan": plan, "before": before, "after": after,
                });
                return output::show(common.output, &done, || {
                    let (is, epoch) = (if follows { "following" } else { "primary" }, epoch_text(view.lease.epoch));
                    format!("\n{}\n{} is {is} (epoch {epoch}) after {ms} ms", hosts("after", &after), view.name)
                });
            }
        }
        if let Some(address) = &from
            && let Some(view) = look(agents, address).await.view
            && !view.switchover_refused.is_empty()
        {
            tell(common, &hosts("now", &survey(agents).await));
            return Err(CliError::refused(view.switchover_refused)
                .next("end what uses the pool, or close it there; then ask again"));
        }
        if Instant::now() >= deadline {
            tell(common, &hosts("now", &survey(agents).await));
            return Err(CliError::unknown(format!("no primary within {:?}", common.timeout()))
                .next("`holdfast agent status` shows the present state, `holdfast history` the events"));
        }
        sleep(LOOK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_agent::plan::Move;

    fn agents(agent: &[&str]) -> Agents {
        Agents { agent: agent.iter().map(ToString::to_string).collect(), named: true, token_file: None, tls: None }
    }

    #[test]
    fn the_new_primary_must_be_unambiguous() {
        assert_eq!(target(&agents(&["a:1"]), &[], None).unwrap(), "a:1");
        let error = target(&agents(&["a:1", "b:1"]), &[], None).unwrap_err();
        assert!(error.next.unwrap().contains("--candidate"));
        let silent = AgentStatus { address: "a:1".into(), view: None, error: Some("refused".into()) };
        let error = target(&agents(&["a:1"]), &[silent], Some("db2")).unwrap_err();
        assert!(error.message.contains("no agent of db2 answers, found none"), "{}", error.message);
        assert!(error.next.unwrap().contains("agent run"));
    }

    #[test]
    fn a_plan_is_shown_with_its_checks_and_advice() {
        let check =
            |finding, next: &str| Check { finding, found: format!("{finding:?}"), next: next.into(), transient: false };
        let plan = Plan {
            kind: Move::Switchover,
            set: "demo".into(),
            from: "db1".into(),
            to: "db2".into(),
            checks: vec![
                check(Finding::Good, ""),
                check(Finding::LosesData, "switch over"),
                check(Finding::Impossible, "start it"),
            ],
            steps: vec!["one".into(), "two".into()],
        };
        let text = plan_text(&plan);
        for words in [
            "ok",
            "LOSES DATA",
            "switch over",
            "NOT POSSIBLE",
            "start it",
            "switchover of demo from db1 to db2",
            "  2. two",
        ] {
            assert!(text.contains(words), "{text}");
        }
        let body = serde_json::json!({ "message": "x", "plan": plan }).to_string();
        assert_eq!(plan_of(&body), Some(plan));
        assert_eq!(plan_of("{}"), None);
    }
}
