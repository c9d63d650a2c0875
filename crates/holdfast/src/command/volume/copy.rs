//! Shared by `holdfast volume import` and `export`: arguments, help, and the state of an interrupted copy. Both keep several requests
//! in flight, skip zeroes, print a digest, and can resume.

use super::image::Content;
use super::path::VolumePath;
use super::state::{Ends, State};
use crate::exit::CliError;
use clap::Args;
use holdfast_attach::requests::ReadPart;
use holdfast_types::Name;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Instant;

pub const IMPORT: &str = "\
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

pub const EXPORT: &str = "\
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
/// Length of a block status query of an export.
pub(super) const STATUS_BYTES: u64 = 1 << 30;

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
    pub(super) fn parallel(&self) -> usize {
        usize::try_from(self.parallel).unwrap_or(PARALLEL)
    }
}

/// `SET/VOLUME` or `SET/VOLUME@SNAPSHOT`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExportPath {
    /// The volume.
    pub volume: VolumePath,
    /// The snapshot, if any.
    pub snapshot: Option<Name>,
}

impl fmt::Display for ExportPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.snapshot {
            Some(snapshot) => write!(f, "{}@{snapshot}", self.volume),
            None => self.volume.fmt(f),
        }
    }
}

impl FromStr for ExportPath {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (volume, snapshot) = match text.split_once('@') {
            Some((volume, snapshot)) => (volume, Some(Name::new(snapshot).map_err(|error| error.to_string())?)),
            None => (text, None),
        };
        Ok(Self { volume: volume.parse()?, snapshot })
    }
}

pub(super) fn is_pipe(path: &Path) -> bool {
    path.as_os_str() == "-"
}

pub(super) fn about(path: &Path, error: &std::io::Error) -> CliError {
    CliError::failed(format!("{}", path.display())).because(error)
}

pub(super) fn seconds(since: Instant) -> f64 {
    (since.elapsed().as_secs_f64() * 1000.0).round() / 1000.0
}

/// The saved state of an interrupted copy with the same source and target.
pub(super) fn earlier(path: Option<&Path>, ends: &Ends) -> Result<Option<State>, CliError> {
    let Some(state) = path.map(State::load).transpose()?.flatten() else { return Ok(None) };
    state.fits(ends)?;
    Ok(Some(state))
}

pub(super) fn forget(path: Option<&Path>) -> Result<(), CliError> {
    match path.map(std::fs::remove_file) {
        Some(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(CliError::failed("the copy is complete, but its state file could not be removed").because(&error))
        }
        _ => Ok(()),
    }
}

/// Converts data from NBD to a part of an image.
pub(super) fn content(part: ReadPart) -> Content {
    match part {
        ReadPart::Data(data) => Content::Data(data),
        ReadPart::Zeroes(len) => Content::Zeroes(len.into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths() {
        let found: ExportPath = "demo/vol1@monday".parse().unwrap();
        assert_eq!(found.to_string(), "demo/vol1@monday");
        assert_eq!("demo/vol1".parse::<ExportPath>().unwrap().snapshot, None);
        for bad in ["demo", "demo@a", "demo/vol@", "demo/vol@a@b"] {
            assert!(bad.parse::<ExportPath>().is_err(), "{bad}");
        }
    }
}
