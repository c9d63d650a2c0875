//! `holdfast agent switchover` and `holdfast agent failover`: table before, progress per state, what the agents refuse and why.

use super::{Agents, Seen, command, look, post, survey, table, taken};
use crate::cli::Common;
use crate::command::{confirm, epoch_text, tell};
use crate::exit::CliError;
use crate::moment::Moment;
use crate::output;
use holdfast_agent::machine::Role;
use holdfast_agent::plan::{Check, Finding, Plan};
use holdfast_agent::schedule::Scheduled;
use std::collections::BTreeMap;
use std::time::Duration;
use tokio::time::{Instant, sleep};

/// Between two looks at a move that is under way.
const LOOK_INTERVAL: Duration = Duration::from_millis(50);

/// A forced takeover as it was asked for.
#[derive(Debug)]
pub(super) struct Forced {
    pub candidate: Option<String>,
    pub reason: String,
    pub dry_run: bool,
    pub allow_data_loss: bool,
    pub yes: bool,
}

/// A scheduled switchover in words.
pub(super) fn scheduled_text(scheduled: &Scheduled) -> String {
    let whom = scheduled.to.as_deref().unwrap_or("the other host");
    format!("switchover to {whom} at {}", Moment(scheduled.at_unix_ms))
}

fn primary(seen: &[Seen]) -> Option<&Seen> {
    seen.iter().find(|seen| seen.view.as_ref().is_some_and(|view| view.role == Role::Primary))
}

fn no_primary(common: &Common, seen: &[Seen]) -> CliError {
    tell(common, &table(seen));
    if seen.iter().all(|seen| seen.view.is_none()) {
        return CliError::unreachable("none of the agents answers")
            .next("check --agent; `holdfast agent run` runs on each host");
    }
    CliError::refused("found no primary among the agents, expected one")
        .next("name its agent with --agent; where PostgreSQL runs nowhere: `holdfast agent failover --candidate HOST`")
}

pub(super) async fn cancel(common: &Common, agents: &Agents) -> Result<(), CliError> {
    let seen = survey(agents).await;
    // It is kept where PostgreSQL was when it was asked for.
    let keeps = |seen: &&Seen| seen.view.as_ref().is_some_and(|view| view.scheduled.is_some());
    let Some(keeper) = seen.iter().find(keeps).or(primary(&seen)) else { return Err(no_primary(common, &seen)) };
    let words = post(agents, &keeper.address, "/switchover/cancel", serde_json::json!({})).await?;
    output::show(common.output, &serde_json::json!({ "message": words }), || words.clone())
}

pub(super) async fn switchover(
    common: &Common,
    agents: &Agents,
    to: Option<String>,
    scheduled: Option<Moment>,
    dry_run: bool,
    yes: bool,
) -> Result<(), CliError> {
    let before = survey(agents).await;
    let Some(primary) = primary(&before) else { return Err(no_primary(common, &before)) };
    let address = primary.address.clone();
    let from = primary.view.as_ref().map(|view| view.name.clone()).unwrap_or_default();
    let mut body = serde_json::json!({ "leader": from, "dry_run": dry_run });
    if let Some(to) = &to {
        body["candidate"] = to.as_str().into();
    }
    if let Some(at) = scheduled {
        body["scheduled_at_unix_ms"] = at.0.into();
    }
    if dry_run {
        let words = post(agents, &address, "/switchover", body).await?;
        return output::show(common.output, &serde_json::json!({ "plan": words }), || words.clone());
    }
    if !yes {
        tell(common, &table(&before));
        let whom = to.as_deref().map_or("the other host".to_string(), str::to_string);
        let when = scheduled.map_or(String::new(), |at| format!(" at {at}"));
        confirm(&format!("Move PostgreSQL from {from} to {whom}{when}? Its clients are thrown out."))?;
    }
    let begun = Instant::now();
    let words = post(agents, &address, "/switchover", body).await?;
    if let Some(at) = scheduled {
        let done = serde_json::json!({ "scheduled_at_unix_ms": at.0, "at": at.to_string(), "message": words });
        return output::show(common.output, &done, || format!("{from}: {words} ({at})"));
    }
    tell(common, &format!("{from}: {words}"));
    let others = before.iter().filter(|seen| seen.address != address).map(|seen| seen.address.clone()).collect();
    arrived(common, others, begun).await
}

pub(super) async fn failover(common: &Common, agents: &Agents, wanted: Forced) -> Result<(), CliError> {
    let Forced { candidate, reason, dry_run, allow_data_loss, yes } = wanted;
    let before = survey(agents).await;
    let address = target(agents, &before, candidate.as_deref())?;
    let mut body = serde_json::json!({ "reason": reason, "allow_data_loss": allow_data_loss, "dry_run": true });
    if let Some(candidate) = &candidate {
        body["candidate"] = candidate.as_str().into();
    }
    let told = command(agents, &address, "/failover", body.clone()).await?;
    taken(&told)?;
    let plan = plan_of(&told.body);
    if dry_run {
        let said = serde_json::json!({ "message": told.words(), "plan": plan });
        return output::show(common.output, &said, || {
            let plan = plan.as_ref().map_or(String::new(), |plan| format!("{}\n\n", plan_text(plan)));
            format!("{plan}{}", told.words())
        });
    }
    // Refused before anybody is asked anything; whether it may go is decided once more at the agent.
    if let Some(plan) = &plan
        && let Err(why) = plan.may_go(allow_data_loss, &reason)
    {
        tell(common, &plan_text(plan));
        return Err(CliError::refused(why).next("`--dry-run` shows the checks; each names what would make it possible"));
    }
    if !yes {
        tell(common, &table(&before));
        tell(common, &plan.as_ref().map_or(String::new(), plan_text));
        confirm("Take the set by force? Whoever holds it is fenced: its writes are refused from then on.")?;
    }
    let begun = Instant::now();
    body["dry_run"] = false.into();
    let words = post(agents, &address, "/failover", body).await?;
    tell(common, &words);
    arrived(common, vec![address], begun).await
}

/// Address of the agent that shall take over.
fn target(agents: &Agents, seen: &[Seen], candidate: Option<&str>) -> Result<String, CliError> {
    match (candidate, agents.agent.as_slice()) {
        (None, [address]) => Ok(address.clone()),
        (None, several) => {
            let found = several.len();
            let words = format!("found {found} agents, expected the one of the host that shall take over");
            Err(CliError::usage(words).next("name the host with --candidate, or only its agent with --agent"))
        }
        (Some(name), _) => {
            let is_it = |seen: &&Seen| seen.view.as_ref().is_some_and(|view| view.name == name);
            if let Some(seen) = seen.iter().find(is_it) {
                return Ok(seen.address.clone());
            }
            let known: Vec<&str> = seen.iter().filter_map(|s| s.view.as_ref()).map(|view| view.name.as_str()).collect();
            let words = format!(
                "no agent of {name} answers, found {}",
                if known.is_empty() { "none".into() } else { known.join(", ") }
            );
            Err(CliError::unreachable(words).next("start `holdfast agent run` there, or name its address with --agent"))
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
    format!("{checks}\n\nsteps for {} of {}:\n{}", plan.set, plan.to, steps.join("\n"))
}

/// Waits until one of these is primary, and says so.
async fn arrived(common: &Common, addresses: Vec<String>, begun: Instant) -> Result<(), CliError> {
    let deadline = begun + common.timeout();
    let mut last = BTreeMap::new();
    loop {
        for address in &addresses {
            let Some(view) = look(address).await.view else { continue };
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
            if view.role == Role::Primary {
                let done = serde_json::json!({ "primary": view.name, "epoch": view.epoch, "took_ms": ms });
                return output::show(common.output, &done, || {
                    format!("{} is primary under {} after {ms} ms", view.name, epoch_text(view.epoch))
                });
            }
        }
        if Instant::now() >= deadline {
            return Err(CliError::unknown(format!("no primary within {:?}", common.timeout()))
                .next("`holdfast agent status` shows how far it is; `holdfast history` what happened"));
        }
        sleep(LOOK_INTERVAL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn agents(agent: &[&str]) -> Agents {
        Agents { agent: agent.iter().map(ToString::to_string).collect(), token_file: None }
    }

    #[test]
    fn who_shall_take_over_must_be_clear() {
        assert_eq!(target(&agents(&["a:1"]), &[], None).unwrap(), "a:1");
        let error = target(&agents(&["a:1", "b:1"]), &[], None).unwrap_err();
        assert!(error.next.unwrap().contains("--candidate"));
        let silent = Seen { address: "a:1".into(), view: None, error: Some("refused".into()) };
        let error = target(&agents(&["a:1"]), &[silent], Some("db2")).unwrap_err();
        assert!(error.message.contains("no agent of db2 answers, found none"), "{}", error.message);
        assert!(error.next.unwrap().contains("agent run"));
    }

    #[test]
    fn a_plan_is_told_with_every_way_out() {
        let check = |finding, next: &str| Check { finding, found: format!("{finding:?}"), next: next.into() };
        let plan = Plan {
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
        for words in ["ok", "LOSES DATA", "switch over", "NOT POSSIBLE", "start it", "  2. two"] {
            assert!(text.contains(words), "{text}");
        }
        let body = serde_json::json!({ "message": "x", "plan": plan }).to_string();
        assert_eq!(plan_of(&body), Some(plan));
        assert_eq!(plan_of("{}"), None);
    }
}
