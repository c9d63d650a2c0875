//! `holdfast agent`: runs the agent of a PostgreSQL host, and sends commands to running agents.
//!
//! Owns: arguments, output, exit codes. Does not own: any decision (crate `agent`), nor the right to write (the
//! gateways).

pub mod ask;
mod commands;
mod moves;
mod table;

use super::console::{confirm, tell};
use crate::cli::{Common, with_codes};
use crate::exit::CliError;
use crate::{output, serve};
use ask::{Agents, NO_AGENT, survey};
use clap::{Args, Subcommand};
use holdfast_agent::config::AgentConfig;
use holdfast_types::sync::LockExt;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use table::{differences, table};

/// Default log filter of an agent.
pub const LOG: &str = "warn,holdfast_agent=info,holdfast=info";

/// The watchdog's log is truncated at its start if it is longer than this: `run_dir` is in memory.
const HELPER_LOG_BYTES_MAX: u64 = 1 << 20;

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
    #[command(after_long_help = with_codes(RUN))]
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
    #[command(after_long_help = with_codes("Examples:\n  holdfast agent status\n  holdfast agent status --agent 10.0.0.1:8008,10.0.0.2:8008 --output json\n"))]
    Status,
    /// Move PostgreSQL to another host, planned: with a clean shutdown and no data loss
    #[command(after_long_help = with_codes(SWITCHOVER))]
    Switchover {
        /// The new primary [default: the only other host]
        #[arg(long, value_name = "HOST")]
        to: Option<String>,
        /// When: a time such as 2026-11-22T04:00:00Z or 2026-11-22T05:00+01:00, or a duration from now, such as 10m [default: now]
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
    #[command(after_long_help = with_codes(FAILOVER))]
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
    #[command(after_long_help = with_codes("Example:\n  holdfast agent pause --agent 10.0.0.1:8008,10.0.0.2:8008\n\nPause all agents of a set before maintenance. PostgreSQL is still stopped if the lease is lost, so that there is only one primary.\nDuring a pause the agent itself may be restarted; PostgreSQL keeps running.\n"))]
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

/// Runs `holdfast agent`.
pub async fn run(common: &Common, args: AgentArgs) -> Result<(), CliError> {
    let agents = &args.agents;
    match args.command {
        AgentCommand::Run { config, check } => agent(common, &config, check).await,
        AgentCommand::Config => sample(),
        AgentCommand::Status => status(common, agents).await,
        AgentCommand::Switchover { cancel: true, .. } => moves::cancel(common, agents).await,
        AgentCommand::Switchover { to, scheduled, dry_run, yes, .. } => {
            moves::switchover(common, agents, to, scheduled, dry_run, yes).await
        }
        AgentCommand::Failover { candidate, reason, dry_run, allow_data_loss, yes } => {
            let wanted = moves::Forced { candidate, reason, dry_run, allow_data_loss, yes };
            moves::failover(common, agents, wanted).await
        }
        AgentCommand::Pause => commands::each(common, agents, "/pause").await,
        AgentCommand::Resume => commands::each(common, agents, "/resume").await,
        AgentCommand::Restart { yes } => {
            if !yes {
                confirm("Restart PostgreSQL? All its clients are disconnected.")?;
            }
            commands::each(common, agents, "/restart").await
        }
        AgentCommand::Watchdog { config } => {
            let config = load(&config)?;
            serve::ignore_hangup()?;
            let watching = tokio::task::spawn_blocking(move || holdfast_agent::watchdog::run(&config));
            let ended = watching.await.map_err(|error| CliError::failed("watchdog").because(&error))?;
            ended.map_err(CliError::failed)
        }
    }
}

fn load(path: &Path) -> Result<AgentConfig, CliError> {
    AgentConfig::load(path).map_err(|error| {
        CliError::usage("settings")
            .because(&error)
            .next("`holdfast agent config` prints a file that explains every setting")
    })
}

fn sample() -> Result<(), CliError> {
    let text = holdfast_agent::config::sample().map_err(|error| CliError::failed("sample").because(&error))?;
    output::say(&text);
    Ok(())
}

async fn agent(common: &Common, path: &Path, check: bool) -> Result<(), CliError> {
    let config = load(path)?;
    if check {
        tell(common, &format!("{}: the settings are valid", path.display()));
        return Ok(());
    }
    serve::ignore_hangup()?;
    let log = config.run_dir.join("watchdog.log");
    let path = std::fs::canonicalize(path).map_err(|error| CliError::usage("--config").because(&error))?;
    // Resolved before an upgrade can replace the file.
    let program = std::env::current_exe()
        .map_err(|error| CliError::failed("the path of this program is unknown").because(&error))?;
    let child: Mutex<Option<Child>> = Mutex::new(None);
    let helper = move || {
        let mut child = child.locked();
        // The previous watchdog has ended, or lost a race for the lock.
        if let Some(mut ended) = child.take()
            && ended.try_wait()?.is_none()
        {
            *child = Some(ended);
            return Ok(());
        }
        let log = open_log(&log)?;
        let mut command = std::process::Command::new(&program);
        command.args(["agent", "watchdog", "--config"]).arg(&path);
        // Its own process group: a signal to the agent's group must not end it.
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log).process_group(0);
        *child = Some(command.spawn()?);
        Ok(())
    };
    let stop = async {
        match serve::stop_signal().await {
            Ok(which) => tracing::info!(signal = which, "stopping"),
            Err(error) => tracing::error!(error = error.message, "stopping"),
        }
    };
    let ended = holdfast_agent::run(config, stop, helper).await;
    ended.map_err(|error| CliError::failed("agent").because(&error))
}

/// The log of the watchdog. A watchdog with invalid settings is restarted every second and logs each time: a long log is truncated.
fn open_log(path: &Path) -> std::io::Result<File> {
    holdfast_agent::process::log::open(path, HELPER_LOG_BYTES_MAX)
}

async fn status(common: &Common, agents: &Agents) -> Result<(), CliError> {
    let seen = survey(agents).await;
    output::show(common.output, &seen, || [table(&seen), differences(&seen)].concat())?;
    if seen.iter().all(|seen| seen.view.is_none()) {
        return Err(CliError::unreachable("no agent answers").next(NO_AGENT));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn a_long_watchdog_log_is_truncated() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("watchdog.log");
        let length = || std::fs::metadata(&path).unwrap().len();
        open_log(&path).unwrap().write_all(b"settings: no\n").unwrap();
        open_log(&path).unwrap().write_all(b"settings: no\n").unwrap();
        assert_eq!(length(), 26, "a short log is appended to");
        open_log(&path).unwrap().write_all(&vec![b'.'; 1 << 20]).unwrap();
        open_log(&path).unwrap().write_all(b"settings: no\n").unwrap();
        assert_eq!(length(), 13);
    }
}
