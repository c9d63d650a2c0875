//! What `holdfast volume import` and `export` have in common: arguments and help, and what an interrupted one left. Both keep several requests
//! in flight, skip zeroes, give a digest at the end, and have a place to go on from.

use super::VolumePath;
use super::image::Content;
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
The image is raw. It must fit the volume; what the volume has beyond it becomes zeroes. Holes and runs of zeroes are not sent as data. The set must be free:
it is held while the import runs, through the loss of gateways. The digest printed at the end is that of the image (sha256sum).

Asks where the volume holds data, or held some until lately; --overwrite is the answer where nobody can be asked, as with an image from standard input.

With --state an import that was interrupted, also by a crash, goes on where it was: with the same command, as long as nobody else has held the set.
It does not ask again.

Examples:
  holdfast volume import disk.img demo/vol1
  holdfast volume import disk.img demo/vol1 --overwrite
  holdfast volume import disk.img demo/vol1 --state disk.state
  nbdcopy -- [ qemu-nbd --read-only -f qcow2 disk.qcow2 ] - | holdfast volume import - demo/vol1
";

pub const EXPORT: &str = "\
A volume of a snapshot is exported while the set is used. A volume without @SNAPSHOT is exported as it is now: the set must be free, and is held meanwhile.
The image is raw and sparse. The digest printed at the end is that of the image (sha256sum).

A file is written as FILE.part, which gets its name once it is whole and on the disk: an export that was interrupted leaves no FILE, and with --overwrite
the old one. Standard output and block devices are written as they are.

With --state an export of a snapshot to a file that was interrupted goes on where it was, with the same command.

Examples:
  holdfast volume export demo/vol1@monday monday.img
  holdfast volume export demo/vol1@monday monday.img --state monday.state
  holdfast volume export demo/vol1@monday - | zstd > monday.img.zst
  qemu-img convert -f raw -O qcow2 monday.img monday.qcow2          what was exported, as qcow2
";

/// Requests in flight.
const PARALLEL: usize = 16;
const PARALLEL_MAX: i64 = 64;
/// How far ahead an export asks which ranges hold nothing.
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
    /// Do not ask where the volume holds data: all of it is replaced
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
    /// Replace a file that is there, once the new one is whole; and the FILE.part that another export left
    #[arg(long)]
    pub overwrite: bool,
    #[command(flatten)]
    pub how: How,
}

/// What both take.
#[derive(Debug, Args)]
pub struct How {
    /// Note in this file how far it is, and go on from there where it says so; it is removed at the end
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
    /// As it was then.
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

/// What an interrupted copy between the same ends left.
pub(super) fn earlier(path: Option<&Path>, ends: &Ends) -> Result<Option<State>, CliError> {
    let Some(state) = path.map(State::load).transpose()?.flatten() else { return Ok(None) };
    state.fits(ends)?;
    Ok(Some(state))
}

pub(super) fn forget(path: Option<&Path>) -> Result<(), CliError> {
    match path.map(std::fs::remove_file) {
        Some(Err(error)) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(CliError::failed("the copy is whole, and its state file stays").because(&error))
        }
        _ => Ok(()),
    }
}

/// What was read, as a part of an image.
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
