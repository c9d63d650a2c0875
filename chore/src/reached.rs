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

/// Begins without counts. Those of the last run are kept aside in `target/reached-before`: fresh seeds are chosen by
/// them (`crates/sim/src/guide.rs`). Fails when a folder is there and cannot be removed or renamed.
pub fn begin_anew() -> std::io::Result<()> {
    let there = |outcome: std::io::Result<()>| match outcome {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    };
    if !folder().exists() {
        return Ok(());
    }
    let before = folder().with_file_name("reached-before");
    there(std::fs::remove_dir_all(&before))?;
    there(std::fs::rename(folder(), before))
}
