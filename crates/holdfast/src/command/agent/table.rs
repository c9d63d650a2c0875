//! Agents as a table.

use super::ask::AgentStatus;
use crate::command::text::epoch_text;
use crate::output;
use crate::timestamp::Timestamp;
use holdfast_agent::facts::{Difference, Weight};
use holdfast_agent::machine::{Role, StateName};
use holdfast_agent::schedule::Scheduled;

/// One line for each agent.
pub fn table(seen: &[AgentStatus]) -> String {
    let rows = seen.iter().map(|AgentStatus { address, view, error }| match view {
        Some(view) => {
            let role = if view.role == Role::Primary { "primary" } else { "standby" };
            let notes = [
                view.paused.then(|| "paused".to_string()),
                view.added.scheduled.as_ref().map(scheduled_text),
                Some(view.why.clone()).filter(|why| !why.is_empty()),
                Some(&view.pool.off_set)
                    .filter(|off| !off.is_empty())
                    .map(|off| format!("not all of PostgreSQL lies on the set: {off}")),
                Some(view.pool.warning.clone()).filter(|warning| !warning.is_empty()),
                Some(view.obstacle.clone())
                    .filter(|why| !why.is_empty() && *why != view.why && view.state == StateName::Standby),
            ];
            let notes = notes.into_iter().flatten().collect::<Vec<_>>().join("; ");
            let epoch = epoch_text(view.lease.epoch);
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

/// The differences between the hosts, most severe first. Two agents report the same difference from both sides: it is
/// shown once.
pub fn differences(seen: &[AgentStatus]) -> String {
    let mut all: Vec<(&str, &Difference)> = Vec::new();
    for view in seen.iter().filter_map(|seen| seen.view.as_ref()) {
        for one in &view.added.differences {
            let told = |(by, other): &(&str, &Difference)| {
                *by == one.host && other.host == view.name && other.fact == one.fact && other.weight == one.weight
            };
            if !all.iter().any(told) {
                all.push((&view.name, one));
            }
        }
    }
    all.sort_by_key(|(_, one)| std::cmp::Reverse(one.weight));
    let line = |(name, one): &(&str, &Difference)| {
        let costs = match one.weight {
            Weight::Damage => "WARNING: a takeover may damage data: ",
            Weight::Takeover => "WARNING: a takeover may fail: ",
            Weight::Note => "note: ",
        };
        format!("\n{name} and {} differ: {costs}{}", one.host, one.words)
    };
    all.iter().map(line).collect()
}

/// A scheduled switchover as text.
pub fn scheduled_text(scheduled: &Scheduled) -> String {
    let whom = scheduled.to.as_deref().unwrap_or("the other host");
    format!("switchover to {whom} at {}", Timestamp(scheduled.at_unix_ms))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_that_both_hosts_tell_is_shown_once_and_the_gravest_first() {
        let seen = |name: &str, other: &str, facts: &[(&str, &str)]| {
            let differences: Vec<_> = facts
                .iter()
                .map(|(fact, weight)| {
                    serde_json::json!({ "weight": weight, "host": other, "fact": fact, "words": format!("{fact} words") })
                })
                .collect();
            let view = serde_json::json!({
                "name": name, "set": "demo", "state": "standby", "since_unix_ms": 0, "role": "standby", "why": "", "paused": false,
                "mode": "automatic", "nofailover": false, "priority": 100, "epoch": 0, "lease_owner": "", "cluster_answers": true,
                "database": "gone", "attach": null, "renewed_ms_ago": null, "obstacle": "", "version": "x", "differences": differences,
            });
            AgentStatus { address: name.into(), view: Some(serde_json::from_value(view).unwrap()), error: None }
        };
        let both = [("bin_dir", "note"), ("libc", "damage")];
        let text = differences(&[seen("db1", "db2", &both), seen("db2", "db1", &both)]);
        assert_eq!(
            text,
            "\ndb1 and db2 differ: WARNING: a takeover may damage data: libc words\ndb1 and db2 differ: note: bin_dir words"
        );
        assert_eq!(differences(&[seen("db1", "db2", &[])]), "");
    }
}
