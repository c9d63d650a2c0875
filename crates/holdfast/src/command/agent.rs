//! `holdfast agent`: runs the agent of a PostgreSQL host, and sends commands to running agents.
//!
//! Owns: arguments, what is printed, exit codes. Does not own: any decision (crate `agent`), nor who may write (the gateways).

mod commands;
mod moves;

use super::{confirm, tell};
use crate::cli::{self, Common};
use crate::exit::CliError;
use crate::{output, serve};
use clap::{Args, Subcommand};
use holdfast_agent::View;
use holdfast_agent::client::{self, Answer, ClientError};
use holdfast_agent::config::AgentConfig;
use holdfast_agent::machine::{Role, StateName};
use holdfast_tls::files::{self, SECRET_BYTES_MAX};
use holdfast_types::sync::LockExt;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::Mutex;
use std::time::Duration;

/// Default log filter of an agent.
pub const LOG: &str = "warn,holdfast_agent=info,holdfast=info";

/// Time limit for the answer of one agent.
const ASK_LIMIT: Duration = Duration::from_secs(3);

/// Time limit for commands on which an agent asks other agents, such as a switchover.
const MOVE_LIMIT: Duration = Duration::from_secs(15);

/// Most agents that are asked, including peers.
const AGENTS_MAX: usize = 64;

/// The watchdog's log is truncated at its start if it is longer than this: `run_dir` is in memory.
const HELPER_LOG_BYTES_MAX: u64 = 1 << 20;

/// Advice if no agent answers.
pub(super) const NO_AGENT: &str = "check --agent (or HOLDFAST_AGENT), and that `holdfast agent run` runs on that host";

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

/// Addresses of agents.
#[derive(Clone, Debug, Args)]
pub struct Agents {
    /// HTTP addresses of agents (http.listen in their settings)
    #[arg(long, global = true, env = "HOLDFAST_AGENT", hide_env_values = true, value_name = "HOST:PORT[,HOST:PORT]", value_delimiter = ',', value_parser = cli::address,
          default_value = "127.0.0.1:8008")]
    pub agent: Vec<String>,
    /// File with the agents' token, needed for commands from another host
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// `holdfast agent`.
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Run the agent of this host until it receives SIGINT, SIGTERM or SIGHUP
    #[command(after_long_help = cli::with_codes(RUN))]
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
    #[command(after_long_help = cli::with_codes("Examples:\n  holdfast agent status\n  holdfast agent status --agent 10.0.0.1:8008,10.0.0.2:8008 --output json\n"))]
    Status,
    /// Move PostgreSQL to another host, planned: with a clean shutdown and no data loss
    #[command(after_long_help = cli::with_codes(SWITCHOVER))]
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
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Make a host primary now, by force: fences the present owner of the set
    #[command(after_long_help = cli::with_codes(FAILOVER))]
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
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Pause automatic actions: no takeover, no restart of PostgreSQL; remains in effect across restarts of the agent
    #[command(after_long_help = cli::with_codes("Example:\n  holdfast agent pause --agent 10.0.0.1:8008,10.0.0.2:8008\n\nPause all agents of a set before maintenance. PostgreSQL is still stopped if the lease is lost, so that there is only one primary.\nDuring a pause the agent itself may be restarted; PostgreSQL keeps running.\n"))]
    Pause,
    /// Resume automatic actions
    Resume,
    /// Restart PostgreSQL on its host
    Restart {
        /// Do not ask
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
    let log = File::options().create(true).append(true).open(path)?;
    if log.metadata()?.len() > HELPER_LOG_BYTES_MAX {
        log.set_len(0)?;
    }
    Ok(log)
}

fn token(agents: &Agents) -> Result<Option<String>, CliError> {
    let Some(path) = &agents.token_file else { return Ok(None) };
    let text = files::read_text(path, SECRET_BYTES_MAX)
        .map_err(|error| CliError::usage(format!("--token-file {}", path.display())).because(&error))?;
    Ok(Some(text.trim().to_string()))
}

/// Sends a command to one agent and returns its message.
async fn post(agents: &Agents, address: &str, path: &str, body: serde_json::Value) -> Result<String, CliError> {
    let answer = command(agents, address, path, body).await?;
    taken(&answer).map(|()| answer.words())
}

/// Sends a command to one agent and returns its answer, which may be a refusal.
async fn command(agents: &Agents, address: &str, path: &str, body: serde_json::Value) -> Result<Answer, CliError> {
    let token = token(agents)?;
    client::ask(address, path, Some(&body), token.as_deref(), MOVE_LIMIT).await.map_err(|error| {
        let words = error.to_string();
        match error {
            ClientError::NotSent { .. } => CliError::unreachable(words).next(NO_AGENT),
            ClientError::NoAnswer { .. } => {
                CliError::unknown(words).next("check with `holdfast agent status` before repeating it")
            }
        }
    })
}

fn taken(answer: &Answer) -> Result<(), CliError> {
    match answer.code {
        200 => Ok(()),
        503 => Err(CliError::unreachable(answer.words())),
        504 => Err(CliError::unknown(answer.words())
            .next("check with `holdfast agent status` and `holdfast history` before repeating it")),
        _ => Err(CliError::refused(answer.words()).next("`holdfast agent status` shows all agents")),
    }
}

/// One agent as `status` shows it.
#[derive(Debug, serde::Serialize)]
struct Seen {
    address: String,
    view: Option<View>,
    error: Option<String>,
}

async fn look(address: &str) -> Seen {
    let read = |answer: Answer| serde_json::from_str(&answer.body).map_err(|error| format!("no agent: {error}"));
    let asked = client::ask(address, "/status", None, None, ASK_LIMIT).await.map_err(|error| error.to_string());
    match asked.and_then(read) {
        Ok(view) => Seen { address: address.into(), view: Some(view), error: None },
        Err(error) => Seen { address: address.into(), view: None, error: Some(error) },
    }
}

/// Asks the given agents and their peers. A host with two addresses is listed once.
async fn survey(agents: &Agents) -> Vec<Seen> {
    let mut addresses = agents.agent.clone();
    let (mut seen, mut names) = (Vec::<Seen>::new(), Vec::new());
    let mut next = 0;
    while next < addresses.len().min(AGENTS_MAX) {
        // In parallel: several lost hosts take as long as one.
        let mut asked = tokio::task::JoinSet::new();
        for (at, address) in addresses.iter().take(AGENTS_MAX).cloned().enumerate().skip(next) {
            asked.spawn(async move { (at, look(&address).await) });
        }
        next = addresses.len();
        let mut found = asked.join_all().await;
        found.sort_by_key(|(at, _)| *at);
        for (_, found) in found {
            if let Some(view) = &found.view {
                if names.contains(&view.name) {
                    continue;
                }
                names.push(view.name.clone());
                for (name, address) in &view.peers {
                    if !names.contains(name) && !addresses.contains(address) {
                        addresses.push(address.clone());
                    }
                }
            }
            seen.push(found);
        }
    }
    seen
}

async fn status(common: &Common, agents: &Agents) -> Result<(), CliError> {
    let seen = survey(agents).await;
    output::show(common.output, &seen, || table(&seen))?;
    if seen.iter().all(|seen| seen.view.is_none()) {
        return Err(CliError::unreachable("no agent answers").next(NO_AGENT));
    }
    Ok(())
}

fn table(seen: &[Seen]) -> String {
    let rows = seen.iter().map(|Seen { address, view, error }| match view {
        Some(view) => {
            let role = if view.role == Role::Primary { "primary" } else { "standby" };
            let notes = [
                view.paused.then(|| "paused".to_string()),
                view.scheduled.as_ref().map(moves::scheduled_text),
                Some(view.why.clone()).filter(|why| !why.is_empty()),
                Some(&view.off_set)
                    .filter(|off| !off.is_empty())
                    .map(|off| format!("not all of PostgreSQL lies on the set: {off}")),
                Some(view.warning.clone()).filter(|warning| !warning.is_empty()),
                Some(view.obstacle.clone())
                    .filter(|why| !why.is_empty() && *why != view.why && view.state == StateName::Standby),
            ];
            let notes = notes.into_iter().flatten().collect::<Vec<_>>().join("; ");
            let epoch = super::epoch_text(view.epoch);
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
