//! A small file that one process writes again and again, and that others read.
//!
//! REWRITE-F1  A reader ([`read`]) finds the old content or the new one, whole.
//! REWRITE-F2  Once the file was written, it can be written on a full file system too: two spare files keep their
//!     space. The new content goes into one of them, in place, and then file and spare change their names. Nothing is
//!     allocated for that on a tmpfs.
//!
//! ```text
//!   as a rule     FILE.next ──rename──▶ FILE
//!   no space      FILE.spare1 or .spare2 ◀──names change──▶ FILE       the old content is the next spare
//! ```
//! A spare was the file before: somebody may have opened it under that name, and may be reading it. So readers hold a
//! shared lock, and a spare that is locked is not written. Programs that read without a lock (`cat`) may find a mixture
//! while there is no space.
//!
//! Contents end before their first line feed that nothing but line feeds follows: in a spare, they fill up the rest.

use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};

/// A spare is a multiple of this, in bytes: space is given in pages.
const PAGE_BYTES: usize = 4096;

/// Permissions of the files, as for any new file, and of those with a secret.
const MODE: u32 = 0o666;
const SECRET_MODE: u32 = 0o600;

/// How often a reader tries, if the file is replaced meanwhile.
const READ_TRIES: u32 = 100;

/// See the module. One process at a time may have it.
#[derive(Debug)]
pub struct Rewritten {
    path: PathBuf,
    next: PathBuf,
    spares: [PathBuf; 2],
    /// Of new files; the process's umask takes from it.
    mode: u32,
    /// Length of each spare in bytes; 0 if that is not known.
    spare_bytes: AtomicUsize,
}

impl Rewritten {
    /// The file at `path`. Nothing is written yet.
    pub fn new(path: PathBuf) -> Self {
        Self::with_mode(path, MODE)
    }

    /// Like `new`, for a secret: nobody but the owner may read it, and the spares, which have earlier contents.
    pub fn secret(path: PathBuf) -> Self {
        Self::with_mode(path, SECRET_MODE)
    }

    fn with_mode(path: PathBuf, mode: u32) -> Self {
        let with = |suffix: &str| {
            let mut name = OsString::from(&path);
            name.push(suffix);
            PathBuf::from(name)
        };
        let (next, spares) = (with(".next"), [with(".spare1"), with(".spare2")]);
        Self { path, next, spares, mode, spare_bytes: AtomicUsize::new(0) }
    }

    /// The file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes the content anew.
    ///
    /// # Errors
    /// The file system's: no new file can be made, and no spare is large enough.
    pub fn write(&self, content: &[u8]) -> io::Result<()> {
        let error = match self.write_next(content) {
            Ok(()) => {
                self.keep_spares(content.len());
                return Ok(());
            }
            Err(error) => error,
        };
        // What becomes a spare now may be smaller: both are made anew once there is space.
        self.spare_bytes.store(0, Ordering::Relaxed);
        if self.spares.iter().any(|spare| self.write_spare(spare, content).is_ok()) { Ok(()) } else { Err(error) }
    }

    /// Removes it, with its spares: a later [`Rewritten::write`] needs space again.
    ///
    /// # Errors
    /// The file system's: some of it stays.
    pub fn remove(&self) -> io::Result<()> {
        self.spare_bytes.store(0, Ordering::Relaxed);
        let mut done = Ok(());
        for path in [&self.path, &self.next, &self.spares[0], &self.spares[1]] {
            match std::fs::remove_file(path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => done = done.and(Err(error)),
                _ => {}
            }
        }
        done
    }

    fn write_next(&self, content: &[u8]) -> io::Result<()> {
        let new = OpenOptions::new().write(true).create(true).truncate(true).mode(self.mode).open(&self.next);
        let written = new.and_then(|mut file| file.write_all(content));
        let written = written.and_then(|()| std::fs::rename(&self.next, &self.path));
        if written.is_err() {
            // A part of it may hold the last space.
            let _ = std::fs::remove_file(&self.next);
        }
        written
    }

    /// Makes the spares for contents that become twice as long. Without space they are made later.
    fn keep_spares(&self, len: usize) {
        if self.spare_bytes.load(Ordering::Relaxed) >= len.max(1) {
            return;
        }
        let bytes = len.saturating_mul(2).max(1).next_multiple_of(PAGE_BYTES);
        if self
            .spares
            .iter()
            .all(|spare| fill(spare, &vec![b'\n'; bytes], Some(self.mode)).is_ok_and(|file| unlock(&file).is_ok()))
        {
            self.spare_bytes.store(bytes, Ordering::Relaxed);
        }
    }

    fn write_spare(&self, spare: &Path, content: &[u8]) -> io::Result<()> {
        let held = fill(spare, content, None)?;
        let done = match renameat_with(CWD, spare, CWD, self.path.as_path(), RenameFlags::EXCHANGE) {
            // Somebody removed the file.
            Err(Errno::NOENT) => std::fs::rename(spare, &self.path),
            done => done.map_err(io::Error::from),
        };
        unlock(&held).and(done)
    }
}

/// Overwrites a spare in place, unless somebody reads it. With `create` it is made, with these permissions. The file
/// has its lock (REWRITE-F1).
fn fill(spare: &Path, content: &[u8], create: Option<u32>) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.write(true).create(create.is_some()).mode(create.unwrap_or(SECRET_MODE)).truncate(false);
    let file = options.open(spare)?;
    flock(&file, FlockOperation::NonBlockingLockExclusive)?;
    // Never made shorter: that would give its space away.
    let len = usize::try_from(file.metadata()?.len()).unwrap_or(usize::MAX);
    let mut bytes = content.to_vec();
    bytes.resize(bytes.len().max(len), b'\n');
    match file.write_all_at(&bytes, 0) {
        Ok(()) => Ok(file),
        Err(error) => unlock(&file).and(Err(error)),
    }
}

/// A program that is being started has a copy of the open file for a moment, so the end of this one would not unlock
/// it.
fn unlock(file: &File) -> io::Result<()> {
    flock(file, FlockOperation::Unlock).map_err(io::Error::from)
}

/// The content of a file that a [`Rewritten`] of another process may write meanwhile (REWRITE-F1). Line feeds may
/// follow it.
///
/// # Errors
/// The file system's; or the file was replaced again and again.
pub fn read(path: &Path) -> io::Result<Vec<u8>> {
    for _ in 0..READ_TRIES {
        let mut file = File::open(path)?;
        if flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK) {
            std::thread::yield_now();
            continue;
        }
        // It may have become a spare before it was locked, and then it may have been written in part.
        let mut bytes = Vec::new();
        let read =
            is_at(&file, path).and_then(|it_is| if it_is { file.read_to_end(&mut bytes).map(Some) } else { Ok(None) });
        unlock(&file)?;
        if read?.is_some() {
            return Ok(bytes);
        }
    }
    Err(io::Error::new(io::ErrorKind::WouldBlock, "found it replaced again and again, expected one content"))
}

/// Whether this open file is the one that has the name now.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let (held, there) = (file.metadata()?, std::fs::metadata(path)?);
    Ok((held.dev(), held.ino()) == (there.dev(), there.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;
    use std::sync::atomic::AtomicBool;

    fn text(path: &Path) -> String {
        String::from_utf8(read(path).unwrap()).unwrap().trim_end_matches('\n').to_string()
    }

    /// From here on no new file can be made in its place, as on a full file system.
    fn fill_up(file: &Rewritten) {
        std::fs::create_dir(&file.next).unwrap();
    }

    #[test]
    fn a_full_file_system_takes_new_contents_in_the_space_of_earlier_ones() {
        let dir = tempfile::tempdir().unwrap();
        let file = Rewritten::new(dir.path().join("status"));
        fill_up(&file);
        file.write(b"0").unwrap_err();
        assert!(!file.path().exists(), "nothing was kept for it yet");
        std::fs::remove_dir(&file.next).unwrap();
        file.write(b"1").unwrap();
        fill_up(&file);
        let inodes = || {
            let all = [file.path(), file.spares[0].as_path(), file.spares[1].as_path()];
            all.map(|path| std::fs::metadata(path).unwrap().ino()).into_iter().collect::<BTreeSet<_>>()
        };
        let before = inodes();
        for round in 0..20 {
            let content = format!("{round} {}", "x".repeat(round % 7));
            file.write(content.as_bytes()).unwrap();
            assert_eq!(text(file.path()), content);
            assert_eq!(inodes(), before, "no file is new");
        }
        std::fs::remove_dir(&file.next).unwrap();
        file.write(b"space again").unwrap();
        assert_eq!(std::fs::read(file.path()).unwrap(), b"space again");
        let spare = |n: usize| std::fs::metadata(&file.spares[n]).unwrap().len();
        assert_eq!((spare(0), spare(1)), (PAGE_BYTES as u64, PAGE_BYTES as u64), "and room for the next time");
    }

    #[test]
    fn the_room_grows_with_the_content() {
        let dir = tempfile::tempdir().unwrap();
        let file = Rewritten::new(dir.path().join("status"));
        for bytes in [1, PAGE_BYTES + 1] {
            file.write(&vec![b'x'; bytes]).unwrap();
        }
        for spare in &file.spares {
            assert_eq!(std::fs::metadata(spare).unwrap().len(), 3 * PAGE_BYTES as u64);
        }
        // Removed by somebody, as an agent does before it starts attach.
        std::fs::remove_file(file.path()).unwrap();
        fill_up(&file);
        file.write(b"there again").unwrap();
        assert_eq!(text(file.path()), "there again");
    }

    #[test]
    fn a_secret_is_its_owners_alone_and_nothing_of_it_stays() {
        use std::os::unix::fs::PermissionsExt;
        let dir = tempfile::tempdir().unwrap();
        let file = Rewritten::secret(dir.path().join("token"));
        file.remove().unwrap();
        file.write(b"1").unwrap();
        for full in [false, true] {
            if full {
                fill_up(&file);
            }
            file.write(b"2").unwrap();
            for path in [file.path(), file.spares[0].as_path(), file.spares[1].as_path()] {
                assert_eq!(std::fs::metadata(path).unwrap().permissions().mode() & 0o777, 0o600, "{}", path.display());
            }
        }
        std::fs::remove_dir(&file.next).unwrap();
        file.remove().unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        file.write(b"3").unwrap();
        assert_eq!(text(file.path()), "3");
    }

    /// REWRITE-F1: as if a reader stopped between two of its steps.
    #[test]
    fn what_somebody_reads_is_not_overwritten() {
        let dir = tempfile::tempdir().unwrap();
        let file = Rewritten::new(dir.path().join("status"));
        file.write(b"0").unwrap();
        fill_up(&file);
        file.write(b"1").unwrap();
        let mut slow = File::open(file.path()).unwrap();
        flock(&slow, FlockOperation::NonBlockingLockShared).unwrap();
        for round in 2..10 {
            file.write(round.to_string().as_bytes()).unwrap();
            assert_eq!(text(file.path()), round.to_string());
        }
        let mut bytes = Vec::new();
        slow.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes[..2], *b"1\n");
    }

    #[test]
    fn readers_find_one_content_whole_at_any_time() {
        let dir = tempfile::tempdir().unwrap();
        let file = Rewritten::new(dir.path().join("status"));
        let content = |round: u32| format!("{round:08} ").repeat(2000);
        file.write(content(0).as_bytes()).unwrap();
        fill_up(&file);
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while !over.load(Ordering::Relaxed) {
                        // Only a reader that is overtaken again and again finds nothing.
                        let Ok(bytes) = read(file.path()) else { continue };
                        let found = String::from_utf8(bytes).unwrap();
                        let round = found[..8].parse().unwrap();
                        assert_eq!(found.trim_end_matches('\n'), content(round));
                    }
                });
            }
            for round in 1..500 {
                // While both spares are being read, there is no room.
                while file.write(content(round).as_bytes()).is_err() {
                    std::thread::yield_now();
                }
            }
            over.store(true, Ordering::Relaxed);
        });
        assert_eq!(text(file.path()), content(499));
    }
}
