//! Logs of programs that the agent starts. Only their owner can read them, and their length is bounded.
//!
//! Such a program keeps its log open for as long as it runs. So a log that is too long is copied to `NAME.1`, in place
//! of an earlier one, and truncated. Output between the two steps is lost.

use rustix::process::geteuid;
use std::ffi::OsString;
use std::fs::{File, OpenOptions, Permissions};
use std::io::{self, Seek, SeekFrom};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Logs contain statements, their values and names of users.
const MODE: u32 = 0o600;

/// What is left of the mode of an earlier log: a person may let a group read it.
const MODE_MAX: u32 = 0o640;

/// Length of the end of a log that is kept, at most: a program may write much between two looks at its log.
const KEPT_BYTES_MAX: u64 = 16 << 20;

/// Opens a log to be appended to, after [`bound`].
///
/// # Errors
/// It could not be opened.
pub fn open(path: &Path, bytes_max: u64) -> io::Result<File> {
    bound(path, bytes_max)?;
    let log = OpenOptions::new().create(true).append(true).mode(MODE).open(path)?;
    if let Err(error) = close_to_others(&log) {
        tracing::warn!(path = %path.display(), %error, "other users may be able to read this log");
    }
    Ok(log)
}

/// An earlier version made logs that everybody can read. A device that a link leads to stays as it is.
fn close_to_others(log: &File) -> io::Result<()> {
    let found = log.metadata()?;
    let mode = found.mode() & 0o777;
    if !found.is_file() || found.uid() != geteuid().as_raw() || mode & !MODE_MAX == 0 {
        return Ok(());
    }
    log.set_permissions(Permissions::from_mode(mode & MODE_MAX))
}

/// Opens a log that begins anew, to be appended to: a log that is truncated while it is written must not get a hole.
///
/// # Errors
/// It could not be opened.
pub fn begin(path: &Path) -> io::Result<File> {
    let log = open(path, u64::MAX)?;
    log.set_len(0)?;
    Ok(log)
}

/// The log before the last cut.
fn earlier(path: &Path) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(".1");
    PathBuf::from(name)
}

/// Truncates a log that is longer than this, after its end was copied.
///
/// # Errors
/// It could not be truncated. A copy that failed is no error: the bound comes first.
pub fn bound(path: &Path, bytes_max: u64) -> io::Result<()> {
    let mut log = match OpenOptions::new().read(true).write(true).open(path) {
        Ok(log) => log,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(error),
    };
    if log.metadata()?.len() <= bytes_max {
        return Ok(());
    }
    let earlier = earlier(path);
    if let Err(error) = keep(&mut log, &earlier) {
        tracing::warn!(path = %earlier.display(), %error, "a log that is too long is truncated without a copy");
        let _ = std::fs::remove_file(&earlier);
    }
    log.set_len(0)
}

fn keep(log: &mut File, earlier: &Path) -> io::Result<()> {
    match std::fs::remove_file(earlier) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut kept = OpenOptions::new().create_new(true).write(true).mode(MODE).open(earlier)?;
    let from = log.metadata()?.len().saturating_sub(KEPT_BYTES_MAX);
    log.seek(SeekFrom::Start(from))?;
    io::copy(log, &mut kept).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    fn mode(path: &Path) -> u32 {
        std::fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_log_is_its_owners_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("postgresql.log");
        open(&path, 10).unwrap();
        assert_eq!(mode(&path), 0o600);
        // That of an earlier version, and one that a group may read.
        for before in [0o644, 0o640, 0o666] {
            std::fs::set_permissions(&path, Permissions::from_mode(before)).unwrap();
            open(&path, 10).unwrap();
            assert_eq!(mode(&path), 0o640, "{before:o}");
        }
        std::fs::set_permissions(&path, Permissions::from_mode(0o600)).unwrap();
        open(&path, 10).unwrap();
        assert_eq!(mode(&path), 0o600);
        let null = std::fs::metadata("/dev/null").unwrap().permissions();
        open(Path::new("/dev/null"), 10).unwrap();
        assert_eq!(std::fs::metadata("/dev/null").unwrap().permissions(), null, "a device is no log");
    }

    /// Its program goes on writing and notices nothing.
    #[test]
    fn a_log_is_bounded_and_the_last_part_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("postgresql.log");
        let mut writer = open(&path, 10).unwrap();
        let text = |path: &Path| std::fs::read_to_string(path).unwrap();
        writer.write_all(b"0123456789").unwrap();
        bound(&path, 10).unwrap();
        assert_eq!(text(&path), "0123456789", "not too long");
        for round in ["first", "second"] {
            writer.write_all(format!("{round}, and more than that").as_bytes()).unwrap();
            bound(&path, 10).unwrap();
            assert_eq!(text(&path), "");
            assert!(text(&earlier(&path)).contains(round), "{round}");
        }
        assert_eq!(mode(&earlier(&path)), 0o600);
        writer.write_all(b"after").unwrap();
        assert_eq!(text(&path), "after", "no hole ahead of it");
        begin(&path).unwrap();
        assert_eq!(text(&path), "");
        bound(&dir.path().join("none"), 10).unwrap();
    }
}
