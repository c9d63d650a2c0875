//! Arguments of `holdfast agent`, and which agents a command asks.

use super::values::address;
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, FromArgMatches, Subcommand};
use holdfast_tls::Connector;
use std::path::PathBuf;

/// Addresses of agents, and the token.
#[derive(Clone, Debug)]
pub struct Agents {
    /// Their HTTP addresses.
    pub agent: Vec<String>,
    /// The user named these addresses: they are not the default.
    pub named: bool,
    /// File with the token.
    pub token_file: Option<PathBuf>,
    /// TLS, if the command has a certificate.
    pub tls: Option<Connector>,
}

/// [`Agents`] on the command line.
#[derive(Debug, Args)]
struct AgentsArgs {
    /// HTTP addresses of agents (http.listen in their settings)
    #[arg(long, global = true, env = "HOLDFAST_AGENT", hide_env_values = true, value_name = "HOST:PORT[,HOST:PORT]", value_delimiter = ',', value_parser = address,
          default_value = "127.0.0.1:8008")]
    agent: Vec<String>,
    /// File with the agents' token: for commands from another host without --tls-certificate
    #[arg(long, global = true, value_name = "FILE")]
    token_file: Option<PathBuf>,
}

impl FromArgMatches for Agents {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let named = matches.value_source("agent") != Some(ValueSource::DefaultValue);
        let AgentsArgs { agent, token_file } = AgentsArgs::from_arg_matches(matches)?;
        Ok(Self { agent, named, token_file, tls: None })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        Self::from_arg_matches(matches).map(|agents| *self = agents)
    }
}

impl Args for Agents {
    fn augment_args(command: clap::Command) -> clap::Command {
        AgentsArgs::augment_args(command)
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        AgentsArgs::augment_args_for_update(command)
    }
}

/// `holdfast agent`.
#[derive(Debug, Args)]
pub struct AgentArgs {
    /// Which agents to ask
    #[command(flatten)]
    pub agents: Agents,
    /// What to do
    #[command(subcommand)]
    pub command: AgentCommand,
}

/// `holdfast agent`.
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Run the agent of this host until it receives SIGINT or SIGTERM
    #[command(after_long_help = RUN)]
    Run {
        /// Settings in TOML (`holdfast agent config` explains them)
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Check the settings and exit
        #[arg(long)]
        check: bool,
    },
    /// Print a configuration file that explains every setting
    #[command(after_long_help = "Example:\n  holdfast agent config > agent.toml")]
    Config,
    /// Show the agents and their peers: which host is primary, and which could take over
    #[command(
        after_long_help = "Examples:\n  holdfast agent status\n  holdfast agent status --agent 10.0.0.1:8008,10.0.0.2:8008 --output json\n"
    )]
    Status,
    /// Move PostgreSQL to another host, planned: with a clean shutdown and no data loss
    #[command(after_long_help = SWITCHOVER)]
    Switchover {
        /// The new primary [default: the only other host]
        #[arg(long, value_name = "HOST")]
        to: Option<String>,
        /// When: a time such as 2026-11-22T04:00:00Z or 2026-11-22T05:00+01:00, or a duration from now, such as 10m
        /// [default: now]
        #[arg(long, value_name = "TIME", value_parser = crate::timestamp::parse, conflicts_with = "cancel")]
        scheduled: Option<crate::timestamp::Timestamp>,
        /// Cancel the scheduled switchover
        #[arg(long, conflicts_with_all = ["to", "dry_run"])]
        cancel: bool,
        /// Show the checks and what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Make a host primary now, by force: fences the present owner of the set
    #[command(after_long_help = FAILOVER)]
    Failover {
        /// The new primary [default: the host of --agent]
        #[arg(long, value_name = "HOST")]
        candidate: Option<String>,
        /// Reason, for the history
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
        /// Show the checks and what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
        /// Continue even if the checks find that data would be lost
        #[arg(long, requires = "reason")]
        allow_data_loss: bool,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Pause automatic actions: no takeover, no restart of PostgreSQL; remains in effect across restarts of the agent
    #[command(
        after_long_help = "Example:\n  holdfast agent pause --agent 10.0.0.1:8008,10.0.0.2:8008\n\nPause all agents of a set before maintenance. PostgreSQL is still stopped if the lease is lost, so that there is only one primary. During a pause the agent itself may be restarted; PostgreSQL keeps running.\n"
    )]
    Pause,
    /// Resume automatic actions
    Resume,
    /// Restart PostgreSQL on its host
    Restart {
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// The watchdog process, which stops PostgreSQL if the agent hangs; agents start it by themselves
    #[command(hide = true)]
    Watchdog {
        /// Settings of the agent
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
    },
}

const RUN: &str = "\
Examples:
  holdfast agent run --config /etc/holdfast/agent.toml
  holdfast agent run --config /etc/holdfast/agent.toml --check

Runs as root, because it mounts file systems and starts PostgreSQL as PostgreSQL's own user. On
SIGTERM it stops PostgreSQL and releases the set, so that another host takes over. During a pause
it leaves PostgreSQL running.
";

const SWITCHOVER: &str = "\
Examples:
  holdfast agent switchover --to db2 --dry-run
  holdfast agent switchover --agent 10.0.0.1:8008 --to db2 --yes
  holdfast agent switchover --to db2 --scheduled 2026-11-22T04:00:00Z
  holdfast agent switchover --cancel

The command finds the primary among the agents of --agent and their peers. The primary's agent
checks whether the switchover can succeed; a refusal names the reason and what would help. The
hosts are shown before and after. The primary's agent stores a scheduled switchover, also across
restarts, and checks again at the scheduled time. It cancels it if it is more than a minute late,
or PostgreSQL has moved meanwhile (see `holdfast history`).
";

const FAILOVER: &str = "\
Examples:
  holdfast agent failover --candidate db2 --dry-run
  holdfast agent failover --agent 10.0.0.2:8008 --reason burning
  holdfast agent failover --candidate db2 --allow-data-loss --reason evacuation

No durable commit is lost: further writes of the old primary are refused. The command is refused
while the old primary works, because its PostgreSQL would crash: commits with synchronous_commit =
off and unlogged tables would be lost. Use `holdfast agent switchover`, which loses nothing.
";
