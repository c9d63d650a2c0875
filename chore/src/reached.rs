//! Where programs of the product write which probes they have reached (ADR 0039): `target/reached/KIND.jsonl`.

use crate::binary::root;
use crate::say::note;
use std::path::PathBuf;

/// The environment variable that names the file. Without it nothing is written.
pub const FILE: &str = "HOLDFAST_REACHED";

/// The folder with the counts of all kinds of runs.
pub fn folder() -> PathBuf {
    root().join("target/reached")
}

/// The variable and its value for a run of this kind. Creates the folder.
pub fn variable(kind: &str) -> (&'static str, PathBuf) {
    if let Err(error) = std::fs::create_dir_all(folder()) {
        note(format!("{}: the run will not count which probes it reaches: {error}", folder().display()));
    }
    (FILE, folder().join(format!("{kind}.jsonl")))
}

/// Removes the counts of earlier runs.
///
/// # Errors
/// When the folder is there and cannot be removed.
pub fn begin_anew() -> std::io::Result<()> {
    match std::fs::remove_dir_all(folder()) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
