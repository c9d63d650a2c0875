//! Arguments of `holdfast history`.

use super::agent::Agents;
use clap::Args;

const HISTORY: &str = "\
Examples:
  holdfast history
  holdfast history --agent 10.0.0.1:8008,10.0.0.2:8008 --last 10
  holdfast history --output json | jq '.[] | select(.event == \"failover\") | .phases'

Phases in milliseconds: DETECT (from the last sign of the old primary to the decision), LEASE,
ATTACH (devices), MOUNT (or import of the pool), RECOVER (PostgreSQL), WRITE (first durable
commit).
";

/// `holdfast history`.
#[derive(Debug, Args)]
#[command(after_long_help = HISTORY)]
pub struct HistoryArgs {
    /// Which agents to ask
    #[command(flatten)]
    pub agents: Agents,
    /// Show only the last COUNT lines
    #[arg(long, value_name = "COUNT")]
    pub last: Option<usize>,
}
