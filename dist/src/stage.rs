//! Writes the entries of a package below a folder, with one time and with fixed modes: a package then depends neither
//! on the umask nor on the clock of the machine.

use crate::layout::{Entry, Kind, Source};
use crate::release::Release;
use anyhow::{Context, Result};
use holdfast_chore::binary::root;
use std::fs::{File, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

/// What was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Staged {
    /// The path, without a first slash.
    pub path: String,
    pub kind: Kind,
    pub folder: bool,
}

/// Writes the entries below `to`. Fails when a file cannot be read or written, with its path.
pub fn write(release: &Release, entries: &[Entry], program: &Path, to: &Path) -> Result<Vec<Staged>> {
    let mut staged = Vec::new();
    let mut packed = Vec::new();
    for entry in entries {
        let path = to.join(&entry.to);
        put(&entry.source, program, &path).with_context(|| path.display().to_string())?;
        packed.extend(entry.gzip.then_some(path));
        let ending = if entry.gzip { ".gz" } else { "" };
        let folder = entry.source == Source::Folder;
        staged.push(Staged { path: format!("{}{ending}", entry.to), kind: entry.kind, folder });
    }
    if !packed.is_empty() {
        // -n: neither name nor time in the file.
        release.tool("gzip").args(["-9", "-n"]).args(&packed).run()?;
    }
    settle(to, release.epoch)?;
    Ok(staged)
}

fn put(source: &Source, program: &Path, to: &Path) -> Result<()> {
    if let Some(folder) = to.parent() {
        std::fs::create_dir_all(folder)?;
    }
    match source {
        Source::Folder => std::fs::create_dir_all(to)?,
        Source::Text(text) => std::fs::write(to, text)?,
        Source::Program => {
            std::fs::copy(program, to)?;
            std::fs::set_permissions(to, Permissions::from_mode(0o755))?;
        }
        Source::Tree(path) => {
            std::fs::copy(root().join(path), to).with_context(|| path.clone())?;
        }
    }
    Ok(())
}

/// Gives everything below and including `path` its mode (0755 for folders and programs, 0644 for the rest) and the time
/// `epoch`, in seconds since 1970. Fails when a mode or time cannot be set.
pub fn settle(path: &Path, epoch: u64) -> Result<()> {
    let shown = || path.display().to_string();
    let meta = std::fs::symlink_metadata(path).with_context(shown)?;
    if meta.is_symlink() {
        // Its mode means nothing, and tar is told its time.
        return Ok(());
    }
    if meta.is_dir() {
        for entry in std::fs::read_dir(path).with_context(shown)? {
            settle(&entry?.path(), epoch)?;
        }
    }
    let runs = meta.is_dir() || meta.permissions().mode() & 0o100 != 0;
    let mode = if runs { 0o755 } else { 0o644 };
    std::fs::set_permissions(path, Permissions::from_mode(mode)).with_context(shown)?;
    let time = UNIX_EPOCH + Duration::from_secs(epoch);
    File::open(path).and_then(|file| file.set_modified(time)).with_context(shown)
}
