//! `holdfast standby`: a read-only PostgreSQL on a local copy of a snapshot.
//!
//! Owns: arguments, output, exit codes. Does not own: the steps of a refresh (crate `agent`), the copy (crate `attach`).

use super::console::tell;
use super::snapshot_calls::SnapshotArg;
use super::text::since;
use crate::cli::{Common, with_codes};
use crate::exit::CliError;
use crate::{output, serve};
use clap::{Args, Subcommand};
use holdfast_attach::{DeviceKind, SnapshotCopyError, SnapshotCopyOptions, SnapshotCopyStatus, run_snapshot_copy};
use holdfast_standby::config::{self, StandbyConfig};
use holdfast_standby::{Standby, StandbyView, Which};
use holdfast_types::ByteSize;
use std::path::{Path, PathBuf};
use tokio_util::sync::CancellationToken;

/// Default log filter of a standby.
pub const LOG: &str = "warn,holdfast_agent=info,holdfast_attach=info,holdfast_standby=info,holdfast=info";

/// Connections of nbdfuse to the socket of a copy.
const CONNECTIONS: u8 = 4;

/// `holdfast standby`.
#[derive(Debug, Subcommand)]
pub enum StandbyCommand {
    /// Run a standby in the foreground: refreshes it at an interval, and answers health checks of load balancers
    #[command(after_long_help = with_codes(RUN))]
    Run {
        /// The standby
        #[command(flatten)]
        config: ConfigArg,
        /// Check the settings and exit
        #[arg(long)]
        check: bool,
    },
    /// Refresh a standby: starts PostgreSQL on a copy of a newer snapshot, and stops the old one
    #[command(after_long_help = with_codes(REFRESH))]
    Refresh {
        /// The standby
        #[command(flatten)]
        config: ConfigArg,
        /// Use this snapshot, which is kept [default: a new snapshot, deleted after use]
        #[arg(long, value_name = "NAME", conflicts_with = "latest")]
        snapshot: Option<holdfast_types::Name>,
        /// Use the latest existing snapshot, which is kept
        #[arg(long)]
        latest: bool,
    },
    /// Show the snapshot of a standby and the age of its data
    #[command(after_long_help = with_codes("Examples:\n  holdfast standby status --config /etc/holdfast/standby.toml\n  holdfast standby status --config standby.toml --output json | jq .age_ms\n\nThe age is the time since the snapshot was requested: it contains everything that was committed before.\n"))]
    Status {
        /// The standby
        #[command(flatten)]
        config: ConfigArg,
    },
    /// Stop a standby, and delete its copy and its own snapshots
    Stop {
        /// The standby
        #[command(flatten)]
        config: ConfigArg,
    },
    /// Print a configuration file that explains every setting
    #[command(after_long_help = "Example:\n  holdfast standby config > standby.toml")]
    Config,
    /// Provide a writable temporary copy of a snapshot on this host
    #[command(after_long_help = with_codes(COPY))]
    Copy(CopyArgs),
}

/// `--config`.
#[derive(Debug, Args)]
pub struct ConfigArg {
    /// Settings in TOML (`holdfast standby config` explains them)
    #[arg(long, value_name = "FILE")]
    pub config: PathBuf,
}

/// `holdfast standby copy`.
#[derive(Debug, Args)]
pub struct CopyArgs {
    /// The set and its snapshot
    #[arg(value_name = "SET@NAME")]
    pub snapshot: SnapshotArg,
    /// Run directory, with the lock, status.json and one Unix socket per volume
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Directory for the written data, on a local disk; its files have no names and are deleted when the process ends
    #[arg(long, value_name = "DIR")]
    pub scratch: PathBuf,
    /// Limit of written data for each volume; beyond it writes fail with "no space left on device"
    #[arg(long, value_name = "SIZE", default_value = "10GiB")]
    pub scratch_max: ByteSize,
    /// Kind of block devices; kernel devices are not supported
    #[arg(long, value_enum, value_name = "KIND", default_value_t)]
    pub device: ScratchDevice,
}

/// `--device` of a copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum ScratchDevice {
    /// nbdfuse and a loop device
    #[default]
    Auto,
    /// Unix sockets only
    None,
    /// nbdfuse and a loop device
    Nbdfuse,
}

impl From<ScratchDevice> for DeviceKind {
    fn from(device: ScratchDevice) -> Self {
        match device {
            ScratchDevice::Auto => Self::Auto,
            ScratchDevice::None => Self::None,
            ScratchDevice::Nbdfuse => Self::Nbdfuse,
        }
    }
}

const RUN: &str = "\
Examples:
  holdfast standby run --config /etc/holdfast/standby.toml
  holdfast standby run --config /etc/holdfast/standby.toml --check
  curl -i 'http://127.0.0.1:8018/replica?max_age_s=1800'
      200 while PostgreSQL answers and its data is at most half an hour old

Runs as root, because it mounts file systems and starts PostgreSQL as PostgreSQL's own user. On
SIGTERM it stops everything. It holds no lease and never writes to the set: writes to the copy
stay on this host and are deleted.
";

const REFRESH: &str = "\
Examples:
  holdfast standby refresh --config standby.toml
  holdfast standby refresh --config standby.toml --snapshot monday
  holdfast standby refresh --config standby.toml --latest --output json

The old PostgreSQL serves until the new one has recovered. Then the old one is stopped, its
sessions end, and the new one starts on the same port. If a refresh fails, the old one continues.
The time limits are settings (snapshot_timeout_s, start_timeout_s); --timeout has no effect.
Refused while `standby run` is running, which refreshes by itself. For a ZFS pool it is also
refused on a host that has the original pool imported.
";

const COPY: &str = "\
Examples:
  holdfast standby copy demo@monday --dir /run/holdfast/monday --scratch /var/tmp
      prints the devices when they are ready and runs in the foreground; stop it with Ctrl-C
  holdfast standby copy demo@monday --dir /tmp/monday --scratch /var/tmp --device none
      Unix sockets only; connect with nbd+unix:///demo/vol1?socket=/tmp/monday/vol1.sock

Reads go to any gateway, and continue at another one if it fails. Writes go to files in --scratch.
It needs no lease and does not affect the set. Do not delete the snapshot meanwhile: reads would
fail.
";

/// Runs `holdfast standby`.
pub async fn run(common: &Common, command: StandbyCommand) -> Result<(), CliError> {
    match command {
        StandbyCommand::Run { config, check } => keep(common, &config.config, check).await,
        StandbyCommand::Refresh { config, snapshot, latest } => {
            let which = match (snapshot, latest) {
                (Some(name), _) => Which::Named(name.to_string()),
                (None, true) => Which::Latest,
                (None, false) => Which::New,
            };
            refresh(common, &config.config, &which).await
        }
        StandbyCommand::Status { config } => status(common, &config.config).await,
        StandbyCommand::Stop { config } => stop(common, &config.config).await,
        StandbyCommand::Config => {
            output::say(&config::sample().map_err(|error| CliError::failed("sample").because(&error))?);
            Ok(())
        }
        StandbyCommand::Copy(args) => copy(common, args).await,
    }
}

fn load(path: &Path) -> Result<StandbyConfig, CliError> {
    StandbyConfig::load(path).map_err(|error| {
        CliError::usage("settings")
            .because(&error)
            .next("`holdfast standby config` prints a file that explains every setting")
    })
}

fn open(path: &Path) -> Result<Standby, CliError> {
    Standby::new(&load(path)?).map_err(CliError::failed)
}

async fn keep(common: &Common, path: &Path, check: bool) -> Result<(), CliError> {
    let config = load(path)?;
    if check {
        tell(common, &format!("{}: the settings are valid", path.display()));
        return Ok(());
    }
    serve::ignore_hangup()?;
    let stop = async {
        match serve::stop_signal().await {
            Ok(which) => tracing::info!(signal = which, "stopping"),
            Err(error) => tracing::error!(error = error.message, "stopping"),
        }
    };
    holdfast_standby::run(config, stop).await.map_err(CliError::failed)
}

async fn refresh(common: &Common, path: &Path, which: &Which) -> Result<(), CliError> {
    let standby = open(path)?;
    if standby.view().await.map_err(CliError::failed)?.running {
        return Err(CliError::refused("`holdfast standby run` is running, and refreshes the standby by itself")
            .next("wait for its next refresh (refresh_every_s), or restart it: it begins with a refresh"));
    }
    let refreshed = standby.refresh(which).await.map_err(|why| {
        CliError::failed(why).next("the previous data is still served: see `holdfast standby status`; the messages of PostgreSQL are in postgresql.log below `dir`")
    })?;
    output::show(common.output, &refreshed, || {
        format!("now serves {}; the refresh took {} ms", refreshed.snapshot, refreshed.took_ms)
    })
}

async fn status(common: &Common, path: &Path) -> Result<(), CliError> {
    let view = open(path)?.view().await.map_err(CliError::failed)?;
    output::show(common.output, &view, || describe(&view))
}

async fn stop(common: &Common, path: &Path) -> Result<(), CliError> {
    let standby = open(path)?;
    let view = standby.view().await.map_err(CliError::failed)?;
    if view.running {
        return Err(CliError::refused("`holdfast standby run` is running, and would start it again")
            .next("stop that process (systemctl stop): it stops everything"));
    }
    standby.stop().await.map_err(CliError::failed)?;
    tell(common, &format!("standby {} is stopped", view.name));
    Ok(())
}

/// The age of the data, for people.
fn age(view: &StandbyView) -> String {
    match view.age_ms.map(|age| age / 1000) {
        None => String::new(),
        Some(seconds @ 0..=119) => format!("{seconds} s"),
        Some(seconds @ 120..=7199) => format!("{} min", seconds / 60),
        Some(seconds) => format!("{} h", seconds / 3600),
    }
}

fn describe(view: &StandbyView) -> String {
    let state = if view.serving { "serving" } else { "down" };
    let snapshot = view.current.as_ref().map_or(String::new(), |current| format!("{}@{}", view.set, current.snapshot));
    let scratch = format!("{} of {}", output::bytes(view.scratch_bytes), output::bytes(view.scratch_max_bytes));
    let row = [
        view.name.clone(),
        state.to_string(),
        age(view),
        snapshot,
        view.port.to_string(),
        scratch.replace(' ', "_").replace("_of_", "/"),
        view.gateway.clone(),
    ];
    let mut text = output::table(["STANDBY", "STATE", "AGE", "SNAPSHOT", "PORT", "SCRATCH", "READS FROM"], [row]);
    if let Some(failure) = &view.failure {
        text.push_str(&format!("\nthe last refresh failed {}: {}", since(failure.unix_ms), failure.why));
    }
    text
}

async fn copy(common: &Common, args: CopyArgs) -> Result<(), CliError> {
    let SnapshotArg { set, name } = args.snapshot;
    let options = SnapshotCopyOptions {
        set,
        snapshot: name,
        api: common.api.clone(),
        dialer: common.dialer.clone(),
        dir: args.dir,
        scratch: args.scratch,
        scratch_max: args.scratch_max.0,
        device: args.device.into(),
        connections: CONNECTIONS,
        patience: common.timeout(),
    };
    serve::ignore_hangup()?;
    let stop = CancellationToken::new();
    let signalled = stop.clone();
    let signals = serve::stop_signal();
    tokio::spawn(async move {
        if let Err(error) = signals.await {
            tracing::error!(error = error.message, "stopping");
        }
        signalled.cancel();
    });
    let ready = |status: &SnapshotCopyStatus| {
        let _ = output::show(common.output, status, || describe_copy(status));
    };
    run_snapshot_copy(options, stop, ready).await.map_err(|error| match &error {
        SnapshotCopyError::Refused(refusal) => CliError::from_refusal(refusal),
        SnapshotCopyError::Unreachable { .. } => CliError::unreachable("")
            .because(&error)
            .next("check --api (or HOLDFAST_API), and that the gateways are running; --timeout allows more time"),
        SnapshotCopyError::NoSnapshot { .. } | SnapshotCopyError::Pending { .. } => {
            CliError::refused("").because(&error).next("`holdfast snapshot list SET` shows all")
        }
        SnapshotCopyError::Kernel => CliError::usage("--device").because(&error),
        _ => CliError::failed("").because(&error),
    })
}

fn describe_copy(status: &SnapshotCopyStatus) -> String {
    let rows = status.volumes.iter().map(|volume| {
        let device = volume.device.clone().unwrap_or_default();
        [volume.name.clone(), output::bytes(volume.size_bytes), device, volume.socket.clone()]
    });
    let table = output::table(["VOLUME", "SIZE", "DEVICE", "SOCKET"], rows);
    format!("copy of {}@{} (created {})\n{table}", status.set, status.snapshot, since(status.snapshot_unix_ms))
}
