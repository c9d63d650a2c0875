//! What each command does, one module per noun.

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
mod stored;
mod stores;
mod verify;
mod volume;
mod watch;

use crate::cli::{Cli, ClusterCommand, Command, Common, GatewayCommand};
use crate::door::Door;
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

/// What a gateway logs by default. openraft warns of every heartbeat that a dead peer does not answer; what follows from it we say ourselves.
const GATEWAY_LOG: &str = "info,openraft=error";

/// Runs the command that was asked for.
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

/// How many threads run the tasks of a command: a gateway's are a setting; everything else waits more than it works.
pub fn worker_threads(args: &Cli) -> usize {
    match &args.command {
        // Settings that are wrong are reported where they are used.
        Command::Gateway(GatewayCommand::Run(args)) => gateway::settings(args).map_or(1, |config| config.workers()),
        _ => 2,
    }
}

/// Whether its threads stand behind a block device of this machine.
pub fn flushes(args: &Cli) -> bool {
    matches!(args.command, Command::Attach(_) | Command::Standby(StandbyCommand::Copy(_)))
}

fn start_log(common: &Common, default: &str) -> Result<(), CliError> {
    let filter = common.log.as_deref().unwrap_or(default);
    let filter = tracing_subscriber::EnvFilter::try_new(filter)
        .map_err(|error| CliError::usage(format!("--log {filter:?}")).because(&error))?;
    let ansi = std::io::stderr().is_terminal();
    let log = tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).with_ansi(ansi);
    // A line that cannot be written (a full disk, a pipe that nobody reads) is lost, and that is all: told of it on that same stderr, it would panic there.
    let log = log.log_internal_errors(false);
    // Tests that run several commands in one process start it once.
    let _ = log.try_init();
    Ok(())
}

/// A door to the cluster that `--api` names, with `--timeout` from now.
fn door(common: &Common) -> Door {
    Door::new(&common.dialer, &common.api, common.timeout())
}

/// A gateway left out what its answer must have.
fn incomplete(what: &str) -> CliError {
    CliError::failed(format!("the gateway's answer lacks {what}"))
        .next("check that the gateways run the version of this program")
}

/// Asks on the terminal; "no" where nobody can answer.
fn confirm(question: &str) -> Result<(), CliError> {
    confirm_or(question, "nobody is there to confirm it", "--yes")
}

/// The same, for what another option than `--yes` allows; `alone` is what is wrong where nobody can answer.
fn confirm_or(question: &str, alone: &str, option: &str) -> Result<(), CliError> {
    if !std::io::stdin().is_terminal() {
        return Err(CliError::declined(alone).next(format!("add {option} to do it without a question")));
    }
    answered(question, &mut std::io::stdin().lock(), &mut std::io::stderr().lock())
}

/// Whatever is no clear yes is a no, also the end of what is read.
fn answered(question: &str, from: &mut impl BufRead, to: &mut impl Write) -> Result<(), CliError> {
    let _ = write!(to, "{question} [y/N] ").and_then(|()| to.flush());
    let mut answer = String::new();
    let read = from.read_line(&mut answer);
    if read.is_ok() && matches!(answer.trim(), "y" | "Y" | "yes") {
        return Ok(());
    }
    Err(CliError::declined("nothing was done"))
}

/// `m2`, or nothing for no member.
fn member_text(id: u64) -> String {
    if id == 0 { String::new() } else { holdfast_types::MemberId(id).to_string() }
}

/// `e17`, or nothing before the first grant.
fn epoch_text(epoch: u64) -> String {
    if epoch == 0 { String::new() } else { holdfast_types::Epoch(epoch).to_string() }
}

/// A remark for people, left out where a program reads.
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
            assert_eq!((refused.exit, refused.message.as_str()), (Exit::Declined, "nothing was done"), "{no:?}");
        }
    }
}
