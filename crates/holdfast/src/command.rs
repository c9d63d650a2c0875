//! The commands, one module per noun.

#[cfg(feature = "whole")]
mod agent;
#[cfg(feature = "whole")]
mod attach;
pub mod bootstrap;
mod certificate;
mod certificates;
mod clone;
mod cluster;
mod connect;
mod console;
#[cfg(feature = "whole")]
mod csi;
mod deletion;
mod dev;
mod diff;
#[cfg(feature = "whole")]
mod doctor;
#[cfg(feature = "whole")]
mod extras;
pub mod gateway;
mod gateway_check;
mod gateway_list;
#[cfg(feature = "whole")]
mod history;
mod keys;
mod lease;
mod limits;
mod members;
mod moves;
#[cfg(feature = "whole")]
mod pair;
mod placing;
mod recover;
mod scrub;
pub mod set;
mod set_calls;
mod snapshot;
mod snapshot_calls;
#[cfg(feature = "whole")]
mod standby;
mod status;
mod store;
mod store_access;
mod stores;
#[cfg(feature = "whole")]
mod support;
mod text;
mod verify;
mod volume;
mod watch;

use crate::cli::{AgentCommand, Cli, ClusterCommand, Command, GatewayCommand};
#[cfg(feature = "whole")]
use crate::cli::{CsiServices, StandbyCommand};
use crate::exit::CliError;
use crate::log;
use holdfast_tls::Role;

pub use cluster::node;

/// The default log filter of a command.
fn log_filter(command: &Command) -> &'static str {
    match command {
        Command::Gateway(GatewayCommand::Run(_)) => log::GATEWAY,
        #[cfg(feature = "whole")]
        Command::Attach(_) => attach::LOG,
        #[cfg(feature = "whole")]
        Command::Agent(_) => agent::LOG,
        #[cfg(feature = "whole")]
        Command::Standby(_) => standby::LOG,
        #[cfg(feature = "whole")]
        Command::Csi(_) => csi::LOG,
        _ => "warn",
    }
}

/// Runs the command.
pub async fn run(args: Cli) -> Result<(), CliError> {
    log::start(&args.common, log_filter(&args.command))?;
    let mut common = args.common;
    match args.command {
        #[cfg(feature = "whole")]
        Command::Attach(_) => common.load_certificate_or_later(role(&args.command))?,
        _ => common.load_certificate(role(&args.command))?,
    }
    let common = common;
    match args.command {
        Command::Cluster(ClusterCommand::Bootstrap { config }) => bootstrap::run(&common, &config).await,
        Command::Cluster(ClusterCommand::Certificates(args)) => certificates::run(&common, &args),
        Command::Cluster(ClusterCommand::Status) => status::run(&common).await,
        Command::Cluster(ClusterCommand::Recover(args)) => recover::run(&common, &args).await,
        Command::Gateway(GatewayCommand::Run(args)) if args.check => gateway_check::run(&common, &args).await,
        Command::Gateway(GatewayCommand::Run(args)) => gateway::run(&common, *args).await,
        Command::Gateway(GatewayCommand::SampleConfig) => gateway::sample_config(),
        Command::Gateway(GatewayCommand::Members(command)) => members::run(&common, command).await,
        Command::Set(command) => set::run(&common, command).await,
        Command::Volume(command) => volume::run(&common, command).await,
        Command::Snapshot(command) => snapshot::run(&common, command).await,
        Command::Key(command) => keys::run(&common, command).await,
        Command::Certificate(command) => certificate::run(&common, command).await,
        Command::Lease(command) => lease::run(&common, command).await,
        Command::Switchover(args) => moves::switchover(&common, &args).await,
        Command::Failover(args) => moves::failover(&common, &args).await,
        #[cfg(feature = "whole")]
        Command::Attach(args) => attach::run(&common, *args).await,
        #[cfg(feature = "whole")]
        Command::Agent(args) => agent::run(&common, *args).await,
        #[cfg(feature = "whole")]
        Command::Standby(command) => standby::run(&common, command).await,
        #[cfg(feature = "whole")]
        Command::Csi(args) => csi::run(&common, *args).await,
        #[cfg(feature = "whole")]
        Command::Pair(command) => pair::run(&common, command).await,
        Command::Store(command) => store::run(&common, command).await,
        Command::Verify(args) => verify::run(&common, &args).await,
        #[cfg(feature = "whole")]
        Command::History(args) => history::run(&common, &args).await,
        Command::Watch(args) => watch::run(&common, &args).await,
        #[cfg(feature = "whole")]
        Command::Doctor(args) => doctor::run(&common, &args).await,
        #[cfg(feature = "whole")]
        Command::SupportBundle(args) => support::run(&common, &args).await,
        Command::Dev(args) => dev::run(&common, args).await,
        #[cfg(feature = "whole")]
        Command::Completions { shell } => extras::completions(shell),
        #[cfg(feature = "whole")]
        Command::Man { dir } => extras::man(dir.as_deref()),
    }
}

/// The role that the command's certificate must have. `Admin` takes any: the gateway judges what it may do.
fn role(command: &Command) -> Role {
    match command {
        // The others look at this host alone: an administrator has only a certificate of their own in the environment.
        #[cfg(feature = "whole")]
        Command::Attach(args) if !args.status && !args.detach && !args.abandon => Role::Host,
        #[cfg(feature = "whole")]
        Command::Csi(csi) if csi.serve == CsiServices::Node => Role::Host,
        _ => Role::Admin,
    }
}

/// Worker threads of an agent. Whatever starts a program or writes a log can hang on a disk of the host: the start of
/// PostgreSQL, the stop beside it, the probe. One thread must be left for the clock, or the watchdog ends a healthy
/// PostgreSQL (TASK-N4).
const AGENT_WORKERS: usize = 4;

/// Number of worker threads: a setting for gateways, two for most other commands, which mostly wait.
pub fn worker_threads(args: &Cli) -> usize {
    match &args.command {
        // Wrong settings are reported later.
        Command::Gateway(GatewayCommand::Run(args)) => gateway::settings(args).map_or(1, |config| config.workers()),
        #[cfg(feature = "whole")]
        Command::Agent(args) if matches!(args.command, AgentCommand::Run { .. }) => AGENT_WORKERS,
        _ => 2,
    }
}

/// Whether the command serves a block device of this machine.
pub fn flushes(args: &Cli) -> bool {
    match args.command {
        #[cfg(feature = "whole")]
        Command::Attach(_) | Command::Standby(StandbyCommand::Copy(_)) => true,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[test]
    fn an_agent_has_a_thread_for_its_clock() {
        let of = |line: &str| {
            let words = std::iter::once("holdfast").chain(line.split(' '));
            worker_threads(&Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}")))
        };
        assert_eq!(of("agent run --config agent.toml"), 4);
        assert_eq!(of("agent status"), 2);
    }

    /// Whoever runs a cluster has a certificate of their own in the environment, and looks at a host with it.
    #[test]
    fn only_what_talks_as_a_host_needs_the_certificate_of_one() {
        let of = |line: &str| {
            let words = std::iter::once("holdfast").chain(line.split(' '));
            role(&Cli::try_parse_from(words).unwrap_or_else(|error| panic!("{line}: {error}")).command)
        };
        for line in ["attach demo", "attach demo --force", "csi --serve node --endpoint /run/csi.sock --node n1"] {
            assert_eq!(of(line), Role::Host, "{line}");
        }
        for line in ["attach demo --status", "attach demo --detach", "attach demo --abandon", "cluster status"] {
            assert_eq!(of(line), Role::Admin, "{line}");
        }
    }
}
