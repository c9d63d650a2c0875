//! The commands, one module per noun.

mod agent;
mod attach;
pub mod bootstrap;
mod certificates;
pub mod clone;
mod cluster;
mod deletion;
mod diff;
mod extras;
pub mod gateway;
mod history;
mod keys;
mod lease;
mod members;
mod moves;
mod pair;
mod recover;
pub mod scrub;
pub mod set;
mod snapshot;
mod standby;
mod status;
mod store;
mod store_access;
mod stores;
mod verify;
mod volume;
mod watch;

use crate::cli::{Cli, ClusterCommand, Command, Common, GatewayCommand};
use crate::client::ClusterClient;
use crate::exit::CliError;
use crate::{dev, output};
use holdfast_tls::Role;
use std::io::{BufRead, IsTerminal, Write};

pub use agent::AgentArgs;
pub use attach::AttachArgs;
pub use certificates::CertificatesArgs;
pub use cluster::node;
pub use deletion::{DeleteArgs, HELP as SET_DELETE};
pub use history::HistoryArgs;
pub use pair::PairCommand;
pub use recover::RecoverArgs;
pub use snapshot::{SnapshotArg, SnapshotCommand};
pub use standby::StandbyCommand;
pub use store::StoreCommand;
pub use verify::VerifyArgs;
pub use volume::VolumeCommand;
pub use watch::WatchArgs;

/// Default log filter of a gateway. openraft warns of every unanswered heartbeat of a dead peer; the gateway logs the consequences itself.
const GATEWAY_LOG: &str = "info,openraft=error";

/// Runs the command.
pub async fn run(args: Cli) -> Result<(), CliError> {
    let log = match args.command {
        Command::Gateway(GatewayCommand::Run(_)) => GATEWAY_LOG,
        Command::Attach(_) => attach::LOG,
        Command::Agent(_) => agent::LOG,
        Command::Standby(_) => standby::LOG,
        _ => "warn",
    };
    start_log(&args.common, log)?;
    let mut common = args.common;
    common.load_certificate(match args.command {
        Command::Attach(_) => Role::Host,
        _ => Role::Admin,
    })?;
    let common = common;
    match args.command {
        Command::Cluster(ClusterCommand::Bootstrap { config }) => bootstrap::run(&common, &config).await,
        Command::Cluster(ClusterCommand::Certificates(args)) => certificates::run(&common, &args),
        Command::Cluster(ClusterCommand::Status) => status::run(&common).await,
        Command::Cluster(ClusterCommand::Recover(args)) => recover::run(&common, &args).await,
        Command::Gateway(GatewayCommand::Run(args)) => gateway::run(&common, *args).await,
        Command::Gateway(GatewayCommand::SampleConfig) => gateway::sample_config(),
        Command::Gateway(GatewayCommand::Members(command)) => members::run(&common, command).await,
        Command::Set(command) => set::run(&common, command).await,
        Command::Volume(command) => volume::run(&common, command).await,
        Command::Snapshot(command) => snapshot::run(&common, command).await,
        Command::Key(command) => keys::run(&common, command).await,
        Command::Lease(command) => lease::run(&common, command).await,
        Command::Switchover(args) => moves::switchover(&common, &args).await,
        Command::Failover(args) => moves::failover(&common, &args).await,
        Command::Attach(args) => attach::run(&common, *args).await,
        Command::Agent(args) => agent::run(&common, *args).await,
        Command::Standby(command) => standby::run(&common, command).await,
        Command::Pair(command) => pair::run(&common, command).await,
        Command::Store(command) => store::run(&common, command).await,
        Command::Verify(args) => verify::run(&common, &args).await,
        Command::History(args) => history::run(&common, &args).await,
        Command::Watch(args) => watch::run(&common, &args).await,
        Command::Dev(args) => dev::run(&common, args).await,
        Command::Completions { shell } => extras::completions(shell),
        Command::Man { dir } => extras::man(dir.as_deref()),
    }
}

/// Number of worker threads: a setting for gateways, two for all other commands, which mostly wait.
pub fn worker_threads(args: &Cli) -> usize {
    match &args.command {
        // Wrong settings are reported later.
        Command::Gateway(GatewayCommand::Run(args)) => gateway::settings(args).map_or(1, |config| config.workers()),
        _ => 2,
    }
}

/// Whether the command serves a block device of this machine.
pub fn flushes(args: &Cli) -> bool {
    matches!(args.command, Command::Attach(_) | Command::Standby(StandbyCommand::Copy(_)))
}

fn start_log(common: &Common, default: &str) -> Result<(), CliError> {
    let filter = common.log.as_deref().unwrap_or(default);
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .map_err(|error| CliError::usage(format!("--log {filter:?}")).because(&error))?;
    let ansi = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi);
    // A log line that cannot be written (full disk, closed pipe) is dropped: reporting that on the same stderr would panic.
    let log = log.log_internal_errors(false);
    // Tests run several commands in one process.
    let _ = log.try_init();
    Ok(())
}

/// A client of the cluster of `--api`, with the time limit of `--timeout` from now.
fn connect(common: &Common) -> ClusterClient {
    ClusterClient::new(&common.dialer, &common.api, common.timeout())
}

/// The error for an incomplete answer of a gateway.
fn incomplete(what: &str) -> CliError {
    CliError::failed(format!("the gateway's answer lacks {what}"))
        .next("check that the gateways run the same version as this program")
}

/// Asks for confirmation on the terminal; denied if standard input is no terminal.
fn confirm(question: &str) -> Result<(), CliError> {
    confirm_or(question, "confirmation is needed, and standard input is no terminal", "--yes")
}

/// The same with another option than `--yes`, and the message `alone` if standard input is no terminal.
fn confirm_or(question: &str, alone: &str, option: &str) -> Result<(), CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(CliError::declined(alone).next(format!("add {option} to skip the question")));
    }
    answered(question, &mut std::io::stdin().lock(), &mut std::io::stderr().lock())
}

/// Anything but a clear yes is a no, including end of file.
fn answered(question: &str, from: &mut impl BufRead, to: &mut impl Write) -> Result<(), CliError> {
    let _ = write!(to, "{question} [y/N] ").and_then(|()| to.flush());
    let mut answer = String::new();
    let read = from.read_line(&mut answer);
    if read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(CliError::declined("not confirmed; nothing was changed"))
}

/// `m2`, or "" for no member.
fn member_text(id: u64) -> String {
    if id == 0 { String::new() } else { holdfast_types::MemberId(id).to_string() }
}

/// `e17`, or "" before the first grant.
fn epoch_text(epoch: u64) -> String {
    if epoch == 0 { String::new() } else { holdfast_types::Epoch(epoch).to_string() }
}

/// A note for people, omitted in JSON output.
fn tell(common: &Common, text: &str) {
    if common.output == output::Format::Table {
        output::remark(text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;

    #[test]
    fn only_a_clear_yes_is_one() {
        let ask = |answer: &str| {
            let mut shown = Vec::new();
            let result = answered("Delete it?", &mut answer.as_bytes(), &mut shown);
            assert_eq!(String::from_utf8(shown).unwrap(), "Delete it? [y/N] ");
            result
        };
        for yes in ["y\n", "Y\n", "yes\n", " y \n", "y"] {
            ask(yes).unwrap();
        }
        for no in ["", "\n", "n\n", "no\n", "yy\n", "\ny\n"] {
            let refused = ask(no).unwrap_err();
            assert_eq!(
                (refused.exit, refused.message.as_str()),
                (Exit::Declined, "not confirmed; nothing was changed"),
                "{no:?}"
            );
        }
    }
}
