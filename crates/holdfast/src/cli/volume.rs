//! Arguments of `holdfast volume`.

use super::limits::{LimitArgs, OF_VOLUME};
use super::paths::{ExportPath, VolumePath};
use clap::{Args, Subcommand};
use holdfast_types::{ByteSize, Name};
use std::path::PathBuf;

const CREATE: &str = "\
Volumes are thin-provisioned: space in the store is used only for written data. A running
`holdfast attach` does not add new volumes; restart it.

Example:
  holdfast volume create demo/vol3 --size 100GiB
";

const LIST: &str = "\
One line for each volume, from the set's leader:
  VOLUME       its name
  ID           its number in the set: it stays after a rename and is never reused
  SIZE         the size that clients see; volumes are thin-provisioned
  MAPPED       upper limit of its data in the last checkpoint, before compression, counted in map
               pages of 32MiB. A clone does not count what it shares with its origin
  CONNECTIONS  clients at the gateway that leads the set, without those of snapshots
  LIMIT        how fast its clients may go; this column is left out if no volume has a limit

For the compressed space of the set, including garbage and snapshots, see `holdfast set show`.

Examples:
  holdfast volume list demo
  holdfast volume list demo --output json | jq -r '.volumes[] | \"\\(.volume.name) \\(.mapped_bytes)\"'
";

const SHOW: &str = "\
From the set's leader:
  id           its number in the set: it stays after a rename and is never reused
  size         the size that clients see; volumes are thin-provisioned
  mapped       upper limit of its data in the last checkpoint, before compression, counted in map
               pages of 32MiB. A clone does not count what it shares with its origin
  connections  clients at the gateway that leads the set, without those of snapshots
  limit        how fast its clients may go, beside the limit of the set: see `holdfast volume limit`

Example:
  holdfast volume show demo/vol1
";

const GROW: &str = "\
The volume grows at once, also while it is in use. Kernel devices of a running `holdfast attach`
get the new size within seconds. NBD cannot announce a new size: other clients see it when they
reconnect (an nbdfuse device: detach and attach). Then grow the file system: `zpool online -e POOL
DEVICE`, `resize2fs`, `xfs_growfs`. SIZE may have a fraction, such as 1.5GiB.

Example:
  holdfast volume grow demo/vol1 --size 200GiB
";

const SHRINK: &str = "\
Data beyond the new size is lost; only earlier snapshots keep it. Shrink the file system on the
volume first. The command is refused while clients are connected. With --force they stay connected
and get errors (ENOSPC, EINVAL) beyond the new end. The device of a running `holdfast attach` then
fails permanently, even if the volume grows again.

Example:
  holdfast volume shrink demo/vol1 --size 50GiB --discard-data
";

const RENAME: &str = "\
Refused while clients are connected, because they would reconnect with the old name. Snapshots
keep the old name.

Example:
  holdfast volume rename demo/vol1 archive
";

const DELETE: &str = "\
Only earlier snapshots keep its data. Objects that are no longer referenced are deleted from the
store after the next checkpoint and the grace period for readers (space.grace_ms). Refused while
clients are connected; with --force they stay connected and get errors.

Examples:
  holdfast volume delete demo/vol3
  holdfast volume delete demo/vol3 --yes
";

/// `holdfast volume`.
#[derive(Debug, Subcommand)]
pub enum VolumeCommand {
    /// Create a volume; succeeds if it exists already with that size
    #[command(after_long_help = CREATE)]
    Create {
        /// The set and the volume's name
        #[arg(value_name = "SET/VOLUME")]
        volume: VolumePath,
        /// Its size, such as 10GiB or 1.5GiB; volumes are thin-provisioned
        #[arg(long, value_name = "SIZE")]
        size: ByteSize,
    },
    /// List the volumes of a set
    #[command(after_long_help = LIST)]
    List {
        /// The set
        set: Name,
    },
    /// Show one volume
    #[command(after_long_help = SHOW)]
    Show {
        /// The set and the volume's name
        #[arg(value_name = "SET/VOLUME")]
        volume: VolumePath,
    },
    /// Make a volume larger, also while it is in use
    #[command(after_long_help = GROW)]
    Grow {
        /// The set and the volume's name
        #[arg(value_name = "SET/VOLUME")]
        volume: VolumePath,
        /// The new size
        #[arg(long, value_name = "SIZE")]
        size: ByteSize,
    },
    /// Make a volume smaller; data beyond the new size is lost
    #[command(after_long_help = SHRINK)]
    Shrink {
        /// The set and the volume's name
        #[arg(value_name = "SET/VOLUME")]
        volume: VolumePath,
        /// The new size
        #[arg(long, value_name = "SIZE")]
        size: ByteSize,
        /// Confirm that data beyond the new size is lost
        #[arg(long)]
        discard_data: bool,
        /// Also while clients are connected
        #[arg(long)]
        force: bool,
    },
    /// Limit how fast the clients of a volume may go, or show the limit
    #[command(after_long_help = OF_VOLUME)]
    Limit {
        /// The set and the volume's name
        #[arg(value_name = "SET/VOLUME")]
        volume: VolumePath,
        /// The limit.
        #[command(flatten)]
        limit: LimitArgs,
    },
    /// Rename a volume
    #[command(after_long_help = RENAME)]
    Rename {
        /// The set and the volume's name
        #[arg(value_name = "SET/VOLUME")]
        volume: VolumePath,
        /// The new name
        #[arg(value_name = "NAME")]
        to: Name,
    },
    /// Delete a volume and its data
    #[command(after_long_help = DELETE)]
    Delete {
        /// The set and the volume's name
        #[arg(value_name = "SET/VOLUME")]
        volume: VolumePath,
        /// Also while clients are connected
        #[arg(long)]
        force: bool,
        /// Do not ask for confirmation
        #[arg(long)]
        yes: bool,
    },
    /// Copy an image into a volume
    #[cfg(feature = "whole")]
    #[command(after_long_help = IMPORT)]
    Import(ImportArgs),
    /// Copy a volume, or a volume of a snapshot, to an image
    #[cfg(feature = "whole")]
    #[command(after_long_help = EXPORT)]
    Export(ExportArgs),
}

const IMPORT: &str = "\
The image must be raw and not larger than the volume; the rest of the volume becomes zeroes. Holes
and runs of zeroes are not sent as data. The set must have no owner: the import holds its lease,
and survives the loss of gateways. The digest at the end is that of the image (sha256sum).

Asks for confirmation if the volume has data, or had data recently. If standard input is no
terminal, or is the image, use --overwrite.

With --state, an interrupted import can be resumed, also after a crash: run the same command
again. It must be the last owner of the set. It does not ask for confirmation again.

Examples:
  holdfast volume import disk.img demo/vol1
  holdfast volume import disk.img demo/vol1 --overwrite
  holdfast volume import disk.img demo/vol1 --state disk.state
  nbdcopy -- [ qemu-nbd --read-only -f qcow2 disk.qcow2 ] - | holdfast volume import - demo/vol1
";

const EXPORT: &str = "\
With @SNAPSHOT, the set may be in use. Without it, the present content is exported: the set must
have no owner, and the export holds its lease. The image is raw and sparse. The digest at the end
is that of the image (sha256sum).

A file is written as FILE.part, and renamed to FILE when it is complete and synced: an interrupted
export leaves no FILE, or with --overwrite the old FILE. Standard output and block devices are
written directly.

With --state, an interrupted export of a snapshot to a file can be resumed: run the same command
again.

Examples:
  holdfast volume export demo/vol1@monday monday.img
  holdfast volume export demo/vol1@monday monday.img --state monday.state
  holdfast volume export demo/vol1@monday - | zstd > monday.img.zst
  qemu-img convert -f raw -O qcow2 monday.img monday.qcow2          converts the export to qcow2
";

/// Requests in flight.
const PARALLEL: usize = 16;
const PARALLEL_MAX: i64 = 64;

/// `holdfast volume import`.
#[derive(Debug, Args)]
pub struct ImportArgs {
    /// The image, or - for standard input
    #[arg(value_name = "FILE|-")]
    pub image: PathBuf,
    /// The set and the volume's name
    #[arg(value_name = "SET/VOLUME")]
    pub volume: VolumePath,
    /// Replace existing data of the volume without confirmation
    #[arg(long)]
    pub overwrite: bool,
    #[command(flatten)]
    pub how: How,
}

/// `holdfast volume export`.
#[derive(Debug, Args)]
pub struct ExportArgs {
    /// The set, the volume's name, and the snapshot
    #[arg(value_name = "SET/VOLUME[@SNAPSHOT]")]
    pub volume: ExportPath,
    /// The image to write, or - for standard output
    #[arg(value_name = "FILE|-")]
    pub image: PathBuf,
    /// Replace an existing file when the new one is complete, and the FILE.part of another export
    #[arg(long)]
    pub overwrite: bool,
    #[command(flatten)]
    pub how: How,
}

/// Options of both.
#[derive(Debug, Args)]
pub struct How {
    /// Save the progress in this file, and resume from it if it exists; it is removed at the end
    #[arg(long, visible_alias = "resume", value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// Requests in flight
    #[arg(long, value_name = "N", default_value_t = PARALLEL as i64, value_parser = clap::value_parser!(i64).range(1..=PARALLEL_MAX))]
    pub parallel: i64,
}

impl How {
    /// Requests in flight.
    pub fn parallel(&self) -> usize {
        usize::try_from(self.parallel).unwrap_or(PARALLEL)
    }
}
