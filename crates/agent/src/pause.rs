//! The pause of this host on its disk, the file `DIR/paused`: it outlives the agent, and a loss of power.

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

/// The file, in this directory.
pub fn file_in(dir: &Path) -> PathBuf {
    dir.join("paused")
}

/// Whether an earlier agent was paused here. If that cannot be found out, it was: a person may be at work on the files
/// of a PostgreSQL that must not be started.
pub fn was(path: &Path) -> bool {
    path.try_exists().unwrap_or_else(|error| {
        tracing::error!(
            path = %path.display(),
            %error,
            "cannot read whether this host is paused, so it is paused: make this path readable, then `holdfast agent resume`"
        );
        true
    })
}

/// Stores a pause, or its end. Waits for the disk.
///
/// # Errors
/// It is not on the disk for certain.
pub fn store(path: &Path, paused: bool) -> io::Result<()> {
    store_with(path, paused, sync_above)
}

/// Brings the directory of this file to the disk. A test has its own.
pub(crate) type SyncAbove = fn(&Path) -> io::Result<()>;

fn store_with(path: &Path, paused: bool, sync: SyncAbove) -> io::Result<()> {
    if paused { begin(path, sync) } else { end(path, sync) }
}

fn begin(path: &Path, sync: SyncAbove) -> io::Result<()> {
    let (file, is_new) = match OpenOptions::new().write(true).create_new(true).open(path) {
        Ok(file) => (file, true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => (File::open(path)?, false),
        Err(error) => return Err(error),
    };
    let synced = file.sync_all().and_then(|()| sync(path));
    if synced.is_err() && is_new {
        // The command is refused: a later agent does not begin with a pause.
        let _ = std::fs::remove_file(path);
    }
    synced
}

fn end(path: &Path, sync: SyncAbove) -> io::Result<()> {
    let removed = match std::fs::remove_file(path) {
        Ok(()) => true,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => return Err(error),
    };
    let synced = sync(path);
    if synced.is_err() && removed {
        // The command is refused: a later agent begins paused, as this one goes on.
        drop(File::create(path));
    }
    synced
}

/// A new name in a directory, or a removed one, outlives a loss of power only once the directory is on the disk.
pub fn sync_above(path: &Path) -> io::Result<()> {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty()).unwrap_or(Path::new("."));
    File::open(above)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pause_is_stored_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = file_in(dir.path());
        assert!(!was(&path));
        for _ in 0..2 {
            store(&path, true).unwrap();
            assert!(was(&path));
        }
        for _ in 0..2 {
            store(&path, false).unwrap();
            assert!(!was(&path));
        }
        // In the way of the file: a link to nowhere, and a directory.
        std::os::unix::fs::symlink("/nonexistent/paused", &path).unwrap();
        store(&path, true).unwrap_err();
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir(&path).unwrap();
        store(&path, false).unwrap_err();
    }

    /// TASK-N5: a loss of power could bring the other state back. So the command is refused, and a later agent begins
    /// as this one goes on.
    #[test]
    fn a_directory_that_does_not_sync_leaves_a_pause_as_it_was() {
        let dir = tempfile::tempdir().unwrap();
        let path = file_in(dir.path());
        let fails: SyncAbove = |_| Err(ErrorKind::StorageFull.into());
        for before in [false, true] {
            store(&path, before).unwrap();
            for asked in [false, true] {
                let error = store_with(&path, asked, fails).expect_err("it is not on the disk");
                assert_eq!((error.kind(), was(&path)), (ErrorKind::StorageFull, before), "asked for {asked}");
            }
        }
    }

    /// A directory that cannot be read does not mean that nobody works there.
    #[test]
    fn what_cannot_be_looked_at_is_a_pause() {
        let dir = tempfile::tempdir().unwrap();
        // A file in the place of a directory: it cannot be looked into by root either.
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(was(&file_in(&file)));
        assert!(!was(&file_in(&dir.path().join("nothing"))), "it is not there for certain");
    }
}
