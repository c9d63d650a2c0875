//! The agent's run directory: its locks, its socket and the state of what it started. Only its user may look into it,
//! and nobody else may change it.

use std::fs::{DirBuilder, Permissions};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::Path;

const MODE: u32 = 0o700;

/// What others may do.
const OTHERS: u32 = 0o077;

/// Everybody may make files there, as in `/tmp`.
const STICKY: u32 = 0o1000;

/// Makes `dir`, or takes an earlier one for this user alone: one that is empty, or has the lock `lock` of an earlier
/// agent.
///
/// # Errors
/// It cannot be made, or is another user's, or one that others need.
pub fn make(dir: &Path, lock: &str) -> io::Result<()> {
    if let Some(parent) = dir.parent() {
        std::fs::create_dir_all(parent)?;
    }
    match DirBuilder::new().mode(MODE).create(dir) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    let (found, own) = (std::fs::metadata(dir)?, rustix::process::geteuid().as_raw());
    if found.uid() != own {
        return Err(io::Error::other(format!(
            "found a directory of the user with number {}, expected one of {own}: its owner could take the locks away; remove it, or set run_dir to another one",
            found.uid()
        )));
    }
    if found.mode() & OTHERS == 0 {
        return Ok(());
    }
    if found.mode() & STICKY != 0 || !is_agents(dir, lock)? {
        return Err(io::Error::other(
            "found a directory that others can read and that is not an agent's, expected one for the agent alone: set run_dir to one below it, or chmod 0700 it",
        ));
    }
    std::fs::set_permissions(dir, Permissions::from_mode(MODE))
}

/// Whether nobody else can need a directory: not `/run` itself, and nothing of others is there.
fn is_agents(dir: &Path, lock: &str) -> io::Result<bool> {
    let is_deep = dir.canonicalize()?.components().count() > 2;
    Ok(is_deep && (dir.join(lock).exists() || std::fs::read_dir(dir)?.next().is_none()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const LOCK: &str = "agent.lock";

    fn mode(dir: &Path) -> u32 {
        std::fs::metadata(dir).unwrap().mode() & 0o7777
    }

    #[test]
    fn a_run_directory_is_its_users_alone() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path().join("a/run");
        make(&run, LOCK).unwrap();
        assert_eq!(mode(&run), 0o700);
        // As systemd makes it by its default, also with the lock of an earlier process in it.
        for file in [None, Some(LOCK)] {
            if let Some(file) = file {
                std::fs::write(run.join(file), "").unwrap();
            }
            std::fs::set_permissions(&run, Permissions::from_mode(0o755)).unwrap();
            make(&run, LOCK).unwrap();
            assert_eq!(mode(&run), 0o700);
        }
    }

    #[test]
    fn a_directory_that_others_need_is_refused_and_stays_as_it_is() {
        let dir = tempfile::tempdir().unwrap();
        for (place, mode_before, file) in [("tmp", 0o1777, LOCK), ("lib", 0o755, "theirs")] {
            let shared = dir.path().join(place);
            std::fs::create_dir(&shared).unwrap();
            std::fs::write(shared.join(file), "").unwrap();
            std::fs::set_permissions(&shared, Permissions::from_mode(mode_before)).unwrap();
            let why = make(&shared, LOCK).unwrap_err().to_string();
            assert!(why.contains("set run_dir to one below it"), "{why}");
            assert_eq!(mode(&shared), mode_before, "{place}");
        }
        assert!(!is_agents(Path::new("/proc"), "version").unwrap(), "a directory of the system");
    }
}
