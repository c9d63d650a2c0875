//! `holdfast history`: events of the agents, with the duration of each phase of a takeover.

use super::agent::ask::{NO_AGENT, usual_socket};
use super::console::tell;
use super::text::{epoch_text, time};
use crate::cli::{Common, HistoryArgs};
use crate::exit::CliError;
use crate::output;
use holdfast_agent::client;
use holdfast_agent::history::Line;
use std::time::Duration;

/// Time limit for the answer of one agent.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// Runs `holdfast history`.
pub async fn run(common: &Common, args: &HistoryArgs) -> Result<(), CliError> {
    let mut lines: Vec<Line> = Vec::new();
    let mut missing = Vec::new();
    let dial = args.agents.with(common).dial();
    for address in &args.agents.agent {
        let mut asked = client::ask_over(&dial, address, "/history", None, None, ASK_LIMIT).await;
        // An agent that demands TLS tells root on its own host over its socket.
        if !args.agents.named
            && matches!(&asked, Ok(answer) if answer.code == 403)
            && let Ok(told) = client::ask_over(&dial, &usual_socket(), "/history", None, None, ASK_LIMIT).await
        {
            asked = Ok(told);
        }
        let read = asked.map_err(|error| error.to_string()).and_then(|answer| {
            if answer.code == 403 {
                return Err(format!("{address}: {}", answer.words()));
            }
            serde_json::from_str::<Vec<Line>>(&answer.body).map_err(|error| format!("{address}: no agent: {error}"))
        });
        match read {
            Ok(theirs) => lines.extend(theirs),
            Err(why) => missing.push(why),
        }
    }
    if missing.len() == args.agents.agent.len() {
        return Err(CliError::unreachable(missing.join("; ")).next(NO_AGENT));
    }
    for why in &missing {
        tell(common, &format!("not included: {why}"));
    }
    // The result is a list, which has no place for it; a program must be able to tell a part from the whole.
    if !missing.is_empty() && common.output == output::Format::Json {
        output::remark(&serde_json::json!({ "not_included": missing }).to_string());
    }
    lines.sort_by_key(|line| line.at_unix_ms);
    let keep = args.last.unwrap_or(usize::MAX).min(lines.len());
    let lines = lines.split_off(lines.len() - keep);
    output::show(common.output, &lines, || table(&lines))
}

fn table(lines: &[Line]) -> String {
    let rows = lines.iter().map(|line| {
        let phases = line.record.phases.clone().unwrap_or_default();
        let ms = |phase: Option<u64>| phase.map_or(String::new(), |ms| ms.to_string());
        [
            time(line.at_unix_ms),
            line.host.clone(),
            line.record.event.to_string(),
            line.record.other.clone(),
            epoch_text(line.record.epoch),
            ms(phases.detect_ms),
            ms(phases.lease_ms),
            ms(phases.attach_ms),
            ms(phases.mount_ms),
            ms(phases.recover_ms),
            ms(phases.first_write_ms),
            ms(line.total_ms),
            line.record.reason.clone(),
        ]
    });
    let header = [
        "TIME", "HOST", "EVENT", "OTHER", "EPOCH", "DETECT", "LEASE", "ATTACH", "MOUNT", "RECOVER", "WRITE", "TOTAL",
        "REASON",
    ];
    output::table(header, rows)
}
