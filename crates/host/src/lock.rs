//! Lock files (`flock`) of a directory, by which a process finds out whether another one runs.

use rustix::fs::{FlockOperation, flock};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

/// How often a held lock is tried, and the pause between: [`is_locked`] holds it for a moment.
const LOCK_TRIES: u32 = 200;
const LOCK_PAUSE: Duration = Duration::from_millis(5);

/// Whoever may open the file may hold its lock, and then looks like the process that the lock stands for.
const MODE: u32 = 0o600;

/// Takes the lock `name` of a directory. It is held until the file is dropped or the process ends.
///
/// # Errors
/// Another process holds it, or the directory cannot be used.
pub fn lock(run_dir: &Path, name: &str) -> Result<File, String> {
    let path = run_dir.join(name);
    let mut options = OpenOptions::new();
    let at = |error: io::Error| format!("{}: {error}", path.display());
    let file = options.create(true).truncate(false).write(true).mode(MODE).open(&path).map_err(at)?;
    for _ in 0..LOCK_TRIES {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) => std::thread::sleep(LOCK_PAUSE),
            Err(error) => return Err(format!("{}: could not be locked: {error}", path.display())),
        }
    }
    Err(format!("{}: held by another process", path.display()))
}

/// Whether a process holds that lock.
///
/// # Errors
/// It is unknown: the file could not be opened or tested, for instance without free file descriptors.
pub fn is_locked(run_dir: &Path, name: &str) -> io::Result<bool> {
    let file = match File::open(run_dir.join(name)) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        Err(error) => return Err(error),
    };
    match flock(&file, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Ok(false),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(true),
        Err(error) => Err(error.into()),
    }
}
