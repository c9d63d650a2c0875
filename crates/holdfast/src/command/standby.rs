//! `holdfast standby`: a PostgreSQL for reading on a local copy of a snapshot.
//!
//! Owns: arguments, what is printed, exit codes. Does not own: the order of a refresh (crate `agent`), the copy (crate `attach`).

use super::snapshot::SnapshotArg;
use super::{set::since, tell};
use crate::cli::{self, Common};
use crate::exit::CliError;
use crate::{output, serve};
use clap::{Args, Subcommand};
use holdfast_attach::{DeviceKind, SnapshotCopyError, SnapshotCopyOptions, SnapshotCopyStatus, run_snapshot_copy};
use holdfast_standby::config::{self, StandbyConfig};
use holdfast_standby::{Standby, StandbyView, Which};
use holdfast_types::ByteSize;
use std::path::{Path, PathBuf};
use tokio_util::sync::CancellationToken;

/// What a standby logs by default.
pub const LOG: &str = "warn,holdfast_agent=info,holdfast_attach=info,holdfast_standby=info,holdfast=info";

/// Connections of nbdfuse to a copy's socket.
const CONNECTIONS: u8 = 4;

/// `holdfast standby`.
#[derive(Debug, Subcommand)]
pub enum StandbyCommand {
    /// Keep a standby in the foreground: refreshes at an interval, answers load balancers
    #[command(after_long_help = cli::with_codes(RUN))]
    Run {
        /// What standby
        #[command(flatten)]
        config: ConfigArg,
        /// Check the settings and stop
        #[arg(long)]
        check: bool,
    },
    /// Renew a standby's data: a copy of a snapshot beside the old one, then the new PostgreSQL in the place of the old one
    #[command(after_long_help = cli::with_codes(REFRESH))]
    Refresh {
        /// What standby
        #[command(flatten)]
        config: ConfigArg,
        /// This snapshot, which stays [default: a new one, deleted when it is no longer used]
        #[arg(long, value_name = "NAME", conflicts_with = "latest")]
        snapshot: Option<holdfast_types::Name>,
        /// The youngest snapshot that there is, which stays
        #[arg(long)]
        latest: bool,
    },
    /// Show what a standby serves and how old its data is
    #[command(after_long_help = cli::with_codes("Examples:\n  holdfast standby status --config /etc/holdfast/standby.toml\n  holdfast standby status --config standby.toml --output json | jq .age_ms\n\nThe age counts from the moment that the snapshot was asked for: everything that the primary had committed by then is there.\n"))]
    Status {
        /// What standby
        #[command(flatten)]
        config: ConfigArg,
    },
    /// Stop a standby: its PostgreSQL, its copy and its own snapshots go
    Stop {
        /// What standby
        #[command(flatten)]
        config: ConfigArg,
    },
    /// Print a configuration file with every setting explained
    #[command(after_long_help = "Example:\n  holdfast standby config > standby.toml")]
    Config,
    /// Keep a copy of a snapshot on this host that can be written and is thrown away
    #[command(after_long_help = cli::with_codes(COPY))]
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
    /// Run directory: lock, status.json, one Unix socket per volume
    #[arg(long, value_name = "DIR")]
    pub dir: PathBuf,
    /// Directory of the scratch files, on a local disk; they have no names and are gone with the process
    #[arg(long, value_name = "DIR")]
    pub scratch: PathBuf,
    /// What may be written to one volume; beyond it "no space left on device"
    #[arg(long, value_name = "SIZE", default_value = "10GiB")]
    pub scratch_max: ByteSize,
    /// Block devices to make; there is no kernel device
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

Runs as root: it mounts, and starts PostgreSQL as PostgreSQL's own user. Told to stop, it takes everything down. It holds no lease, and nothing
that happens here reaches the set: the copy's writes stay on this host and are thrown away.
";

const REFRESH: &str = "\
Examples:
  holdfast standby refresh --config standby.toml
  holdfast standby refresh --config standby.toml --snapshot monday
  holdfast standby refresh --config standby.toml --latest --output json

Until the new PostgreSQL has recovered, the old one serves; then it is stopped (its sessions end) and the new one starts on the same port.
A refresh that fails leaves the old one serving. It takes as long as its settings allow (snapshot_timeout_s, start_timeout_s): --timeout does not
count here. Refused while `standby run` keeps the standby: it refreshes by itself.
Of a ZFS pool: refused as well on a host that has the pool itself imported.
";

const COPY: &str = "\
Examples:
  holdfast standby copy demo@monday --dir /run/holdfast/monday --scratch /var/tmp
      prints the devices once they are there, stays in the foreground; mount them, write to them, then interrupt it
  holdfast standby copy demo@monday --dir /tmp/monday --scratch /var/tmp --device none
      Unix sockets only; connect with nbd+unix:///demo/vol1?socket=/tmp/monday/vol1.sock

Reads come from whichever gateway answers; when it dies they go on at another one. Writes go to the scratch files. No lease is taken, and the set
does not notice. The snapshot must not be deleted meanwhile: reads would fail.
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
            .next("`holdfast standby config` prints a file with every setting explained")
    })
}

fn open(path: &Path) -> Result<Standby, CliError> {
    Standby::new(&load(path)?).map_err(CliError::failed)
}

async fn keep(common: &Common, path: &Path, check: bool) -> Result<(), CliError> {
    let config = load(path)?;
    if check {
        tell(common, &format!("{}: good", path.display()));
        return Ok(());
    }
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
        return Err(CliError::refused("`holdfast standby run` keeps it, and refreshes it by itself")
            .next("wait for its next refresh (refresh_every_s), or restart it: it takes everything down and begins with a refresh"));
    }
    let refreshed = standby.refresh(which).await.map_err(|why| {
        CliError::failed(why).next("what served before serves on: `holdfast standby status` shows it; the server's own words are in postgresql.log below `dir`")
    })?;
    output::show(common.output, &refreshed, || {
        format!("serves {} since {} ms after it was asked for", refreshed.snapshot, refreshed.took_ms)
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
        return Err(CliError::refused("`holdfast standby run` keeps it: it would be made again")
            .next("end that process (systemctl stop), it takes everything down"));
    }
    standby.stop().await.map_err(CliError::failed)?;
    tell(common, &format!("standby {} is stopped", view.name));
    Ok(())
}

/// How old data is, for people.
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
            .next("check --api (or HOLDFAST_API) and that the gateways run; --timeout gives it longer"),
        SnapshotCopyError::NoSnapshot { .. } | SnapshotCopyError::Pending { .. } => {
            CliError::refused("").because(&error).next("`holdfast snapshot list SET` shows them")
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
    format!("a copy of {}@{} (asked for {})\n{table}", status.set, status.snapshot, since(status.snapshot_unix_ms))
}
