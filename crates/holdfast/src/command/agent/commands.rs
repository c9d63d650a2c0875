//! Commands to several agents: pause, resume, restart. Every agent gets the command, whatever the others answer.

use super::ask::post;
use crate::cli::{Agents, Common};
use crate::exit::{CliError, Exit};
use crate::output;
use serde::Serialize;

/// Result of one agent.
type Said = (String, Result<String, CliError>);

/// The result in printed form.
#[derive(Debug, Serialize)]
struct Row<'a> {
    agent: &'a str,
    done: bool,
    exit: u8,
    message: &'a str,
}

impl<'a> Row<'a> {
    fn of((agent, said): &'a Said) -> Self {
        let (exit, message) = match said {
            Ok(words) => (Exit::Done, words),
            Err(error) => (error.exit, &error.message),
        };
        Self { agent, done: said.is_ok(), exit: exit as u8, message }
    }
}

/// Severity: unknown effect (R12), then failed, unreachable, refused.
fn weight(exit: Exit) -> u8 {
    match exit {
        Exit::Unknown => 3,
        Exit::Failed => 2,
        Exit::Unreachable => 1,
        _ => 0,
    }
}

/// The error if an agent did not execute the command: the most severe of all.
fn verdict(said: &[Said]) -> Option<CliError> {
    let failed = || said.iter().filter_map(|(agent, said)| Some((agent, said.as_ref().err()?)));
    let (_, worst) = failed().max_by_key(|(_, error)| weight(error.exit))?;
    let each = failed().map(|(agent, error)| {
        if error.message.contains(agent.as_str()) {
            error.message.clone()
        } else {
            format!("{agent}: {}", error.message)
        }
    });
    let message = format!(
        "{} of {} agents did not execute it: {}",
        failed().count(),
        said.len(),
        each.collect::<Vec<_>>().join("; ")
    );
    Some(CliError { message, ..worst.clone() })
}

/// Sends the command to all given agents in parallel: several lost hosts take as long as one.
pub(super) async fn each(common: &Common, agents: &Agents, path: &'static str) -> Result<(), CliError> {
    let mut asked = tokio::task::JoinSet::new();
    for (at, address) in agents.agent.iter().cloned().enumerate() {
        let agents = agents.clone();
        asked.spawn(async move {
            let said = post(&agents, &address, path, serde_json::json!({})).await;
            (at, (address, said))
        });
    }
    let mut said = asked.join_all().await;
    said.sort_by_key(|(at, _)| *at);
    let said: Vec<Said> = said.into_iter().map(|(_, said)| said).collect();
    // For a single agent its own message is enough.
    if let [(_, Err(error))] = &said[..] {
        return Err(error.clone());
    }
    let rows: Vec<Row> = said.iter().map(Row::of).collect();
    output::show(common.output, &rows, || table(&rows))?;
    verdict(&said).map_or(Ok(()), Err)
}

fn table(rows: &[Row]) -> String {
    let rows = rows.iter().map(|row| {
        let done = if row.done { "done" } else { "not done" };
        [
            row.agent.to_string(),
            if row.exit == Exit::Unknown as u8 { "unknown" } else { done }.into(),
            row.message.into(),
        ]
    });
    output::table(["AGENT", "RESULT", "MESSAGE"], rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn said(agent: &str, said: Result<&str, CliError>) -> Said {
        (agent.into(), said.map(str::to_string))
    }

    #[test]
    fn the_exit_code_is_that_of_the_most_severe_error() {
        let (refused, away) = (CliError::refused("db1 is in state standby"), CliError::unreachable("b:8008: refused"));
        let unknown = CliError::unknown("c:8008: no answer");
        assert_eq!(verdict(&[said("a:8008", Ok("paused"))]), None);
        let two = verdict(&[said("a:8008", Err(refused.clone())), said("b:8008", Err(away.clone()))]).unwrap();
        assert_eq!(two.exit, Exit::Unreachable);
        assert_eq!(two.message, "2 of 2 agents did not execute it: a:8008: db1 is in state standby; b:8008: refused");
        let three = [said("a:8008", Err(refused)), said("c:8008", Err(unknown.clone())), said("b:8008", Err(away))];
        assert_eq!(verdict(&three).map(|error| (error.exit, error.next)), Some((Exit::Unknown, unknown.next)));
        let one = verdict(&[three[0].clone(), said("d:8008", Ok("paused"))]).unwrap();
        assert_eq!((one.exit, one.message.starts_with("1 of 2 agents")), (Exit::Refused, true));
    }
}
