//! The run directory of an attached set.
//!
//! ```text
//!   DIR/attach.lock    held (flock) while it is attached; holds the process's number
//!   DIR/status.json    see [`Status`]; beside it the files of `holdfast_host::rewritten`
//!   DIR/VOLUME.sock    one per volume
//!   DIR/VOLUME/        mount point of nbdfuse, where that is used
//! ```

use crate::status::Status;
use holdfast_host::rewritten::{self, Rewritten};
use holdfast_types::Name;
use rustix::fs::{FlockOperation, flock};
use serde::Serialize;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// Longest path of a Unix socket, in bytes.
const SOCKET_PATH_BYTES_MAX: usize = 107;

/// Something about the run directory.
#[derive(Debug, thiserror::Error)]
pub enum DirError {
    /// The set is attached on this host already.
    #[error("{} is held by process {pid}: the set is attached on this host already", path.display())]
    Attached {
        /// The lock.
        path: PathBuf,
        /// The process that holds it; 0 if the lock does not say.
        pid: u32,
    },
    /// Nobody holds the lock.
    #[error("{} is not held: nothing is attached there", path.display())]
    NotAttached {
        /// The lock.
        path: PathBuf,
    },
    /// The path of a Unix socket is too long.
    #[error("{}: found a path of {found} bytes, expected at most {SOCKET_PATH_BYTES_MAX} for a Unix socket", path.display())]
    TooLong {
        /// The socket.
        path: PathBuf,
        /// Its length in bytes.
        found: usize,
    },
    /// An earlier process left a lease, which cannot be read.
    #[error(
        "{}: found a lease of an earlier process that cannot be read: {source}; expected to continue with its devices: repair the cause and start \
         again, or give its devices up with --abandon, after which every request on them fails",
        path.display()
    )]
    Lease {
        /// The file.
        path: PathBuf,
        /// What.
        #[source]
        source: io::Error,
    },
    /// The file system.
    #[error("{}: {source}", path.display())]
    Io {
        /// The path.
        path: PathBuf,
        /// What.
        #[source]
        source: io::Error,
    },
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> DirError + '_ {
    |source| DirError::Io { path: path.to_path_buf(), source }
}

/// The default run directory of a set.
pub fn default_dir(set: &Name) -> PathBuf {
    Path::new("/run/holdfast").join(set.as_str())
}

/// A run directory that this process holds.
#[derive(Debug)]
pub struct RunDir {
    path: PathBuf,
    status: Rewritten,
    // Held open: the lock goes with it.
    _lock: File,
}

/// Whoever may open the lock may hold it, and then no process can attach the set.
const LOCK_MODE: u32 = 0o600;

fn open_lock(path: &Path) -> Result<File, DirError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(LOCK_MODE);
    let lock = options.open(path).map_err(at(path))?;
    // That of an earlier version; another user's file is used as it is.
    let _ = lock.set_permissions(Permissions::from_mode(LOCK_MODE));
    Ok(lock)
}

fn pid_in(lock: &mut File) -> u32 {
    let mut text = String::new();
    let _ = lock.rewind().and_then(|()| lock.read_to_string(&mut text));
    text.trim().parse().unwrap_or(0)
}

/// The process that has the set of this run directory attached.
///
/// # Errors
/// [`DirError::NotAttached`] where there is none.
pub fn running(dir: &Path) -> Result<u32, DirError> {
    let path = dir.join("attach.lock");
    let mut lock = match File::open(&path) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(DirError::NotAttached { path }),
        Err(source) => return Err(DirError::Io { path, source }),
    };
    // A shared lock: two processes that look at the same time do not take each other for the attached one.
    match flock(&lock, FlockOperation::NonBlockingLockShared) {
        Ok(()) => Err(DirError::NotAttached { path }),
        Err(rustix::io::Errno::WOULDBLOCK) => Ok(pid_in(&mut lock)),
        Err(error) => Err(at(&path)(error.into())),
    }
}

impl RunDir {
    /// Makes the directory where it is missing, and takes its lock.
    ///
    /// # Errors
    /// [`DirError::Attached`] where another process has it.
    pub fn take(path: &Path) -> Result<Self, DirError> {
        // A user who may enter may read and write the volumes.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(at(path))?;
        let lock_path = path.join("attach.lock");
        let mut lock = open_lock(&lock_path)?;
        // `--status` holds it for a moment.
        let mut tries = 0;
        while let Err(error) = flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            tries += 1;
            match error {
                rustix::io::Errno::WOULDBLOCK if tries < 20 => {
                    std::thread::sleep(std::time::Duration::from_millis(5));
                }
                rustix::io::Errno::WOULDBLOCK => {
                    return Err(DirError::Attached { path: lock_path, pid: pid_in(&mut lock) });
                }
                error => return Err(at(&lock_path)(error.into())),
            }
        }
        let written = lock.set_len(0).and_then(|()| lock.rewind());
        written.and_then(|()| write!(lock, "{}", std::process::id())).map_err(at(&lock_path))?;
        let status = Rewritten::new(path.join("status.json"));
        Ok(Self { path: path.to_path_buf(), status, _lock: lock })
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The socket of a volume.
    ///
    /// # Errors
    /// Where its path is too long for one.
    pub fn socket(&self, volume: &Name) -> Result<PathBuf, DirError> {
        let path = self.path.join(format!("{volume}.sock"));
        match path.as_os_str().len() {
            found if found > SOCKET_PATH_BYTES_MAX => Err(DirError::TooLong { path, found }),
            _ => Ok(path),
        }
    }

    /// Listens at a socket of this directory, in place of an earlier process: the lock is ours, so that one has ended.
    /// Must be called on a runtime.
    ///
    /// # Errors
    /// The file system's.
    pub fn listen(&self, socket: &Path) -> io::Result<UnixListener> {
        let _ = std::fs::remove_file(socket);
        let listener = UnixListener::bind(socket)?;
        // Who may connect may read and write the volume. The umask is the caller's, and the directory may be older.
        std::fs::set_permissions(socket, Permissions::from_mode(0o600))?;
        Ok(listener)
    }

    /// Writes `status`, also if the file system has no space left (REWRITE-F2): the agent and the watchdog's helper
    /// read there that the lease is renewed, and end PostgreSQL without that.
    ///
    /// # Errors
    /// The file system's.
    pub fn show(&self, status: &impl Serialize) -> Result<(), DirError> {
        let path = self.status.path();
        let text = serde_json::to_vec_pretty(status).map_err(|error| at(path)(error.into()))?;
        self.status.write(&text).map_err(at(path))
    }

    /// The status in a run directory.
    ///
    /// # Errors
    /// The file system's, or a file that is not a status.
    pub fn status(dir: &Path) -> Result<Status, DirError> {
        let path = dir.join("status.json");
        let text = rewritten::read(&path).map_err(at(&path))?;
        serde_json::from_slice(&text).map_err(|error| at(&path)(error.into()))
    }
}

impl Drop for RunDir {
    fn drop(&mut self) {
        // The number would be misleading. Other processes see a free lock anyway.
        let _ = std::fs::write(self.path.join("attach.lock"), "");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_process_at_a_time() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("set");
        assert!(matches!(running(&path), Err(DirError::NotAttached { .. })));
        let held = RunDir::take(&path).unwrap();
        assert_eq!(running(&path).unwrap(), std::process::id());
        assert!(matches!(RunDir::take(&path), Err(DirError::Attached { pid, .. }) if pid == std::process::id()));
        drop(held);
        assert!(matches!(running(&path), Err(DirError::NotAttached { .. })));
        drop(RunDir::take(&path).unwrap());
    }

    /// The directory may be an older one, which others may enter.
    #[test]
    fn nobody_else_may_hold_the_lock_of_a_set() {
        let dir = tempfile::tempdir().unwrap();
        let lock = dir.path().join("attach.lock");
        let mode = || std::fs::metadata(&lock).unwrap().permissions().mode() & 0o777;
        drop(RunDir::take(dir.path()).unwrap());
        assert_eq!(mode(), 0o600);
        // As an earlier version made it.
        std::fs::set_permissions(&lock, Permissions::from_mode(0o644)).unwrap();
        drop(RunDir::take(dir.path()).unwrap());
        assert_eq!(mode(), 0o600);
    }

    #[tokio::test]
    async fn a_socket_is_for_its_own_user_and_replaces_that_of_an_earlier_process() {
        let dir = tempfile::tempdir().unwrap();
        let held = RunDir::take(dir.path()).unwrap();
        let path = held.socket(&Name::new("vol1").unwrap()).unwrap();
        std::fs::write(&path, "").unwrap();
        let _listener = held.listen(&path).unwrap();
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    /// A lock that cannot be looked at may be held.
    #[test]
    fn only_a_missing_lock_is_none() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("set");
        std::fs::write(&path, "").unwrap();
        let error = running(&path).unwrap_err();
        assert!(matches!(error, DirError::Io { .. }), "{error}");
        let error = RunDir::take(&path).unwrap_err();
        assert!(matches!(error, DirError::Io { .. }), "{error}");
        std::fs::remove_file(&path).unwrap();
        std::fs::create_dir_all(path.join("attach.lock")).unwrap();
        let error = RunDir::take(&path).unwrap_err();
        assert!(matches!(error, DirError::Io { .. }), "{error}");
    }

    /// REWRITE-F2: the agent and the watchdog's helper find out there that the lease is renewed.
    #[test]
    fn a_full_file_system_still_shows_the_status() {
        let dir = tempfile::tempdir().unwrap();
        let held = RunDir::take(dir.path()).unwrap();
        let show = |renewed: u64| held.show(&serde_json::json!({ "lease_renewed_boot_ns": renewed }));
        show(1).unwrap();
        // No new file can be made, under the name of this build or of an earlier one.
        for name in ["status.json.next", "status.json.new"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        for renewed in 2..10 {
            show(renewed).unwrap();
            let text = rewritten::read(&dir.path().join("status.json")).unwrap();
            let seen: serde_json::Value = serde_json::from_slice(&text).unwrap();
            assert_eq!(seen["lease_renewed_boot_ns"], renewed);
        }
    }

    #[test]
    fn long_socket_paths_are_refused_before_the_kernel_does() {
        let dir = tempfile::tempdir().unwrap();
        let held = RunDir::take(&dir.path().join("d".repeat(60))).unwrap();
        assert!(held.socket(&Name::new("v").unwrap()).is_ok());
        assert!(matches!(held.socket(&Name::new("v".repeat(60)).unwrap()), Err(DirError::TooLong { .. })));
    }
}
