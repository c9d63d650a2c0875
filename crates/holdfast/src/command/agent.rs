//! `holdfast agent`: runs the agent of a PostgreSQL host, and asks running ones.
//!
//! Owns: arguments, what is printed, exit codes. Does not own: any decision (crate `agent`), nor who may write (the gateways).

mod moves;
mod orders;

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

/// What an agent logs by default.
pub const LOG: &str = "warn,holdfast_agent=info,holdfast=info";

/// How long one agent may take to answer.
const ASK_LIMIT: Duration = Duration::from_secs(3);

/// A switchover is answered after another agent was asked.
const MOVE_LIMIT: Duration = Duration::from_secs(12);

/// Agents that are asked at most, peers included.
const AGENTS_MAX: usize = 64;

/// The helper's output is begun anew beyond this many bytes when one is started: it lies in memory, as `run_dir` does.
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

/// Addresses of agents.
#[derive(Clone, Debug, Args)]
pub struct Agents {
    /// HTTP addresses of agents (http.listen in their settings)
    #[arg(long, global = true, env = "HOLDFAST_AGENT", hide_env_values = true, value_name = "HOST:PORT[,HOST:PORT]", value_delimiter = ',', value_parser = cli::address,
          default_value = "127.0.0.1:8008")]
    pub agent: Vec<String>,
    /// File with the agents' token, for commands from another host
    #[arg(long, global = true, value_name = "FILE")]
    pub token_file: Option<PathBuf>,
}

/// `holdfast agent`.
#[derive(Debug, Subcommand)]
pub enum AgentCommand {
    /// Run the agent of this host until it is told to stop
    #[command(after_long_help = cli::with_codes(RUN))]
    Run {
        /// Settings in TOML (`holdfast agent config` explains them)
        #[arg(long, value_name = "FILE")]
        config: PathBuf,
        /// Check the settings and stop
        #[arg(long)]
        check: bool,
    },
    /// Print a configuration file with every setting explained
    #[command(after_long_help = "Example:\n  holdfast agent config > agent.toml")]
    Config,
    /// Show the agents and their peers: who is primary, who could take over, and why not
    #[command(after_long_help = cli::with_codes("Examples:\n  holdfast agent status\n  holdfast agent status --agent 10.0.0.1:8008,10.0.0.2:8008 --output json\n"))]
    Status,
    /// Move PostgreSQL to another host, planned: stopped in good order, nothing lost, the shortest pause
    #[command(after_long_help = cli::with_codes(SWITCHOVER))]
    Switchover {
        /// The host that shall be primary [default: the only other one]
        #[arg(long, value_name = "HOST")]
        to: Option<String>,
        /// When: a time such as 2026-11-22T04:00:00Z or 2026-11-22T05:00+01:00, or from now, such as 10m [default: now]
        #[arg(long, value_name = "TIME", value_parser = crate::moment::parse, conflicts_with = "cancel")]
        scheduled: Option<crate::moment::Moment>,
        /// Cancel the one that is scheduled
        #[arg(long, conflicts_with_all = ["to", "dry_run"])]
        cancel: bool,
        /// Show the checks and what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Make a host primary now, by force: whoever holds the set is fenced
    #[command(after_long_help = cli::with_codes(FAILOVER))]
    Failover {
        /// The host that shall be primary [default: the one of --agent]
        #[arg(long, value_name = "HOST")]
        candidate: Option<String>,
        /// Why, for the history
        #[arg(long, value_name = "TEXT", default_value = "")]
        reason: String,
        /// Show the checks and what would be done, and do nothing
        #[arg(long)]
        dry_run: bool,
        /// Go on where the checks find that data would be lost
        #[arg(long, requires = "reason")]
        allow_data_loss: bool,
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// Stop acting by itself: no takeover, no restart of PostgreSQL; kept across restarts of the agent
    #[command(after_long_help = cli::with_codes("Example:\n  holdfast agent pause --agent 10.0.0.1:8008,10.0.0.2:8008\n\nPause all agents of a set before maintenance. PostgreSQL is still stopped when the lease is lost: that is what keeps one primary.\nThe agent itself may be restarted meanwhile, PostgreSQL goes on.\n"))]
    Pause,
    /// End a pause
    Resume,
    /// Restart PostgreSQL in its place
    Restart {
        /// Do not ask
        #[arg(long)]
        yes: bool,
    },
    /// The second process that ends PostgreSQL when the agent hangs; agents start it themselves
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

Runs as root: it mounts, and starts PostgreSQL as PostgreSQL's own user. When it is told to stop it lets go of everything in good order, so
that another host takes over; paused, it leaves PostgreSQL running.
";

const SWITCHOVER: &str = "\
Examples:
  holdfast agent switchover --to db2 --dry-run
  holdfast agent switchover --agent 10.0.0.1:8008 --to db2 --yes
  holdfast agent switchover --to db2 --scheduled 2026-11-22T04:00:00Z
  holdfast agent switchover --cancel

The primary is found among the agents of --agent and their peers. It asks the others, and refuses what could not end well: each refusal says
what would make it possible. The hosts are shown before and after. A scheduled one is kept by the primary's agent, across its restarts, and
checked again when it is due; where it is more than a minute late or PostgreSQL has moved meanwhile, it is dropped (`holdfast history` says so).
";

const FAILOVER: &str = "\
Examples:
  holdfast agent failover --candidate db2 --dry-run
  holdfast agent failover --agent 10.0.0.2:8008 --reason burning
  holdfast agent failover --candidate db2 --allow-data-loss --reason evacuation

Nothing is lost that was acknowledged as durable: the old primary's writes are refused from the grant on. While the old primary is well it is
refused, since its PostgreSQL would be ended as by a crash (what was acknowledged under synchronous_commit = off and unlogged tables would be
lost): `holdfast agent switchover` loses nothing.
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
        AgentCommand::Pause => orders::each(common, agents, "/pause").await,
        AgentCommand::Resume => orders::each(common, agents, "/resume").await,
        AgentCommand::Restart { yes } => {
            if !yes {
                confirm("Restart PostgreSQL? Its clients are thrown out.")?;
            }
            orders::each(common, agents, "/restart").await
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
            .next("`holdfast agent config` prints a file with every setting explained")
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
        tell(common, &format!("{}: good", path.display()));
        return Ok(());
    }
    let log = config.run_dir.join("watchdog.log");
    let path = std::fs::canonicalize(path).map_err(|error| CliError::usage("--config").because(&error))?;
    // Before an upgrade can replace it: afterwards it has a path that nothing is at.
    let program =
        std::env::current_exe().map_err(|error| CliError::failed("this program's own file").because(&error))?;
    let child: Mutex<Option<Child>> = Mutex::new(None);
    let helper = move || {
        let mut child = child.locked();
        // The last one has ended, or lost a race for the lock.
        if let Some(mut ended) = child.take()
            && ended.try_wait()?.is_none()
        {
            *child = Some(ended);
            return Ok(());
        }
        let log = open_log(&log)?;
        let mut command = std::process::Command::new(&program);
        command.args(["agent", "watchdog", "--config"]).arg(&path);
        // A group of its own: what ends the agent's must leave it.
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

/// The file that the watchdog's helper writes to. One that cannot use its settings any more is begun every second, and each says so: it is begun anew where it is long.
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

/// Sends a command to one agent; its words.
async fn post(agents: &Agents, address: &str, path: &str, body: serde_json::Value) -> Result<String, CliError> {
    let answer = command(agents, address, path, body).await?;
    taken(&answer).map(|()| answer.words())
}

/// Sends a command to one agent; its answer, which may be a refusal.
async fn command(agents: &Agents, address: &str, path: &str, body: serde_json::Value) -> Result<Answer, CliError> {
    let token = token(agents)?;
    client::ask(address, path, Some(&body), token.as_deref(), MOVE_LIMIT).await.map_err(|error| {
        let words = error.to_string();
        match error {
            ClientError::NotSent { .. } => CliError::unreachable(words).next("check --agent (or HOLDFAST_AGENT)"),
            ClientError::NoAnswer { .. } => {
                CliError::unknown(words).next("look with `holdfast agent status` before repeating it")
            }
        }
    })
}

fn taken(answer: &Answer) -> Result<(), CliError> {
    match answer.code {
        200 => Ok(()),
        503 => Err(CliError::unreachable(answer.words())),
        504 => Err(CliError::unknown(answer.words())
            .next("look with `holdfast agent status` and `holdfast history` before repeating it")),
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

/// The agents that were named, and the peers that they name. One host may be known under two addresses: it is shown once.
async fn survey(agents: &Agents) -> Vec<Seen> {
    let mut addresses = agents.agent.clone();
    let (mut seen, mut names) = (Vec::<Seen>::new(), Vec::new());
    let mut next = 0;
    while next < addresses.len().min(AGENTS_MAX) {
        // All at once: hosts that are lost take as long as one.
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
        return Err(CliError::unreachable("no agent answers").next("check --agent (or HOLDFAST_AGENT)"));
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
    fn the_helpers_log_is_begun_anew_where_it_is_long() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("watchdog.log");
        let length = || std::fs::metadata(&path).unwrap().len();
        open_log(&path).unwrap().write_all(b"settings: no\n").unwrap();
        open_log(&path).unwrap().write_all(b"settings: no\n").unwrap();
        assert_eq!(length(), 26, "what an earlier one said stays");
        open_log(&path).unwrap().write_all(&vec![b'.'; 1 << 20]).unwrap();
        open_log(&path).unwrap().write_all(b"settings: no\n").unwrap();
        assert_eq!(length(), 13);
    }
}
