//! Shared by `holdfast volume import` and `export`: the state of an interrupted copy. Both keep several requests
//! in flight, skip zeroes, print a digest, and can resume.

use super::image::Content;
use super::state::{Ends, State};
use crate::exit::CliError;
use holdfast_attach::requests::ReadPart;
use std::path::Path;
use std::time::Instant;

/// Length of a block status query of an export.
pub(super) const STATUS_BYTES: u64 = 1 << 30;

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
