//! Arguments of `holdfast standby`.

use super::paths::SnapshotArg;
use clap::{Args, Subcommand};
use holdfast_attach::DeviceKind;
use holdfast_types::ByteSize;
use std::path::PathBuf;

/// `holdfast standby`.
#[derive(Debug, Subcommand)]
pub enum StandbyCommand {
    /// Run a standby in the foreground: refreshes it at an interval, and answers health checks of load balancers
    #[command(after_long_help = RUN)]
    Run {
        /// The standby
        #[command(flatten)]
        config: ConfigArg,
        /// Check the settings and exit
        #[arg(long)]
        check: bool,
    },
    /// Refresh a standby: starts PostgreSQL on a copy of a newer snapshot, and stops the old one
    #[command(after_long_help = REFRESH)]
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
    #[command(
        after_long_help = "Examples:\n  holdfast standby status --config /etc/holdfast/standby.toml\n  holdfast standby status --config standby.toml --output json | jq .age_ms\n\nThe age is the time since the snapshot was requested: it contains everything that was committed before.\n"
    )]
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
    #[command(after_long_help = COPY)]
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
