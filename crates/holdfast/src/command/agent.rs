//! `holdfast agent`: runs the agent of a PostgreSQL host, and sends commands to running agents.
//!
//! Owns: output, exit codes. Does not own: arguments (`cli`), any decision (crate `agent`), nor the right to write (the
//! gateways).

pub mod ask;
mod commands;
mod moves;
mod table;

use super::console::{confirm, tell};
use crate::cli::{AgentArgs, AgentCommand, Agents, Common};
use crate::exit::CliError;
use crate::{output, serve};
use ask::{NO_AGENT, survey};
use holdfast_agent::config::AgentConfig;
use holdfast_types::sync::LockExt;
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Stdio};
use std::sync::Mutex;
use table::{differences, table};

/// Default log filter of an agent.
pub const LOG: &str = "warn,holdfast_agent=info,holdfast=info,holdfast_tls=info";

/// The watchdog's log is truncated at its start if it is longer than this: `run_dir` is in memory.
const HELPER_LOG_BYTES_MAX: u64 = 1 << 20;

/// Runs `holdfast agent`.
pub async fn run(common: &Common, args: AgentArgs) -> Result<(), CliError> {
    let agents = &args.agents.with(common);
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
    serve::without_own_core_dumps();
    let config = load(path)?;
    if check {
        holdfast_agent::check_files(&config).map_err(|error| CliError::usage("settings").because(&error))?;
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
    // From here on: the agent first looks for seconds at what it finds, and an order to end meanwhile would leave all
    // of it to nobody.
    let signal = serve::stop_signal_from_now()?;
    let stop = async {
        let which = signal.await;
        tracing::info!(signal = which, "stopping");
    };
    let ended = holdfast_agent::run(config, stop, helper).await;
    ended.map_err(|error| CliError::failed("agent").because(&error))
}

/// The log of the watchdog. A watchdog with invalid settings is restarted every second and logs each time: a long log
/// is truncated.
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
