//! Agents as a table.

use super::ask::Seen;
use crate::command::text::epoch_text;
use crate::output;
use crate::timestamp::Timestamp;
use holdfast_agent::machine::{Role, StateName};
use holdfast_agent::schedule::Scheduled;

/// One line for each agent.
pub fn table(seen: &[Seen]) -> String {
    let rows = seen.iter().map(|Seen { address, view, error }| match view {
        Some(view) => {
            let role = if view.role == Role::Primary { "primary" } else { "standby" };
            let notes = [
                view.paused.then(|| "paused".to_string()),
                view.scheduled.as_ref().map(scheduled_text),
                Some(view.why.clone()).filter(|why| !why.is_empty()),
                Some(view.warning.clone()).filter(|warning| !warning.is_empty()),
                Some(view.obstacle.clone())
                    .filter(|why| !why.is_empty() && *why != view.why && view.state == StateName::Standby),
            ];
            let notes = notes.into_iter().flatten().collect::<Vec<_>>().join("; ");
            let epoch = epoch_text(view.epoch);
            [
                view.name.clone(),
                address.clone(),
                view.state.to_string(),
                role.into(),
                epoch,
                view.database.clone(),
                notes,
            ]
        }
        None => {
            let why = error.clone().unwrap_or_default();
            [String::new(), address.clone(), "unknown".into(), String::new(), String::new(), String::new(), why]
        }
    });
    output::table(["HOST", "AGENT", "STATE", "ROLE", "EPOCH", "POSTGRESQL", "NOTE"], rows)
}

/// A scheduled switchover as text.
pub fn scheduled_text(scheduled: &Scheduled) -> String {
    let whom = scheduled.to.as_deref().unwrap_or("the other host");
    format!("switchover to {whom} at {}", Timestamp(scheduled.at_unix_ms))
}
