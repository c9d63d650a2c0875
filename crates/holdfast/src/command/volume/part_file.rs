//! The temporary file `NAME.part` of an export to the file NAME.
//!
//! PART-P1  NAME is always a complete image: the old one, or the new one after it is synced.
//! PART-P2  NAME.part is locked, so that one export at a time writes it.
//! PART-P3  Nothing is overwritten without `--overwrite`: neither NAME, even if it is created meanwhile, nor the
//!     NAME.part of another export.

use super::copy::about;
use crate::exit::CliError;
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// An incomplete image.
#[derive(Debug)]
pub struct PartFile {
    image: PathBuf,
    path: PathBuf,
    overwrite: bool,
    file: File,
}

/// NAME and NAME.part, after resolving a symbolic link.
fn names(image: &Path) -> (PathBuf, PathBuf) {
    let image = std::fs::canonicalize(image).unwrap_or_else(|_| image.to_path_buf());
    let mut part = image.as_os_str().to_owned();
    part.push(".part");
    (image, part.into())
}

fn is_there(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

/// Whether `path` refers to this open file.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    Ok(std::fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino())))
}

/// Whether another process has locked it.
fn is_locked(path: &Path) -> bool {
    let locked = |file: File| flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK);
    File::open(path).is_ok_and(locked)
}

/// Refuses a state file that is the image or its `.part` file: one would overwrite the other.
///
/// # Errors
/// The state file is one of the two.
pub fn check_state(image: &Path, state: &Path) -> Result<(), CliError> {
    let ((image, part), (state, _)) = (names(image), names(state));
    let mut beside = state.as_os_str().to_owned();
    beside.push(".new");
    if [&image, &part].into_iter().any(|one| *one == state || one.as_os_str() == beside) {
        let text = format!("--state {}: found the image or its .part file, expected another file", state.display());
        return Err(CliError::usage(text).next("use a separate file for the state"));
    }
    Ok(())
}

impl PartFile {
    /// Opens and locks the `.part` file of `image`. It must contain `done_bytes` of an interrupted export, or is new
    /// (`None`).
    ///
    /// # Errors
    /// A file exists already (PART-P3), another export writes it (PART-P2), or the interrupted export's file is
    /// missing.
    pub fn open(image: &Path, overwrite: bool, done_bytes: Option<u64>) -> Result<Self, CliError> {
        let (image, path) = names(image);
        let old = std::fs::metadata(&image).ok();
        if !overwrite && is_there(&image) {
            let error = CliError::usage(format!("{} exists already", image.display()));
            return Err(error.next("add --overwrite to replace it"));
        }
        let mut options = File::options();
        // An interrupted export without progress may have no file yet.
        options.read(true).write(true).create(done_bytes.is_none_or(|bytes| bytes == 0));
        options.create_new(done_bytes.is_none() && !overwrite);
        let busy = || {
            CliError::failed(format!("{}: another export is writing this file", path.display()))
                .next("wait until it ends, or export to another file")
        };
        let file = options.open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists if is_locked(&path) => busy(),
            io::ErrorKind::AlreadyExists => {
                CliError::usage(format!("{} exists already, from an interrupted export", path.display()))
                    .next("delete it, or add --overwrite, to start from the beginning")
            }
            io::ErrorKind::NotFound if done_bytes.is_some() => {
                CliError::failed(format!("{}: found no file, expected that of the state file", path.display()))
                    .next("delete the state file and export from the beginning")
            }
            _ => about(&path, &error),
        })?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(busy()),
            // A file system without locks.
            Err(Errno::NOTSUP | Errno::NOSYS | Errno::NOLCK) => {}
            Err(error) => return Err(about(&path, &error.into())),
        }
        // The previous holder of the lock may have renamed the file meanwhile.
        if !is_at(&file, &path).map_err(|error| about(&path, &error))? {
            return Err(busy());
        }
        // The new image gets the permissions of the old one.
        if let Some(old) = old.filter(|old| old.is_file()) {
            file.set_permissions(old.permissions()).map_err(|error| about(&path, &error))?;
        }
        Ok(Self { image, path, overwrite, file })
    }

    /// Path of the `.part` file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The open file.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// PART-P1: syncs the complete image and renames it.
    ///
    /// # Errors
    /// The complete image stays in the `.part` file.
    pub fn finish(self) -> Result<(), CliError> {
        let failed = |error: io::Error| {
            let text = format!(
                "the image is complete in {}; renaming it to {} failed",
                self.path.display(),
                self.image.display()
            );
            CliError::failed(text).because(&error)
        };
        self.file.sync_all().map_err(failed)?;
        // PART-P1: the path may refer to another file by now.
        if !is_at(&self.file, &self.path).map_err(failed)? {
            let text = format!("{} was replaced by another file during the export", self.path.display());
            return Err(CliError::failed(text).next("export again"));
        }
        if self.overwrite {
            std::fs::rename(&self.path, &self.image).map_err(failed)?;
        } else {
            match renameat_with(CWD, &self.path, CWD, &self.image, RenameFlags::NOREPLACE) {
                // A file system without RENAME_NOREPLACE.
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) if !is_there(&self.image) => {
                    std::fs::rename(&self.path, &self.image).map_err(failed)?;
                }
                Err(Errno::EXIST | Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                    let text = "a file with that name was created meanwhile".to_string();
                    return Err(failed(io::Error::other(text)).next("rename one of the two files"));
                }
                done => done.map_err(|error| failed(error.into()))?,
            }
        }
        let dir = self.image.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let synced = File::open(dir).and_then(|dir| dir.sync_all());
        synced.map_err(|error| about(dir, &error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::exit::Exit;
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;

    fn read(path: &Path) -> String {
        std::fs::read_to_string(path).unwrap_or_default()
    }

    /// PART-P1: after an interruption NAME does not exist.
    #[test]
    fn only_a_complete_image_has_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let (image, part) = (dir.path().join("a.img"), dir.path().join("a.img.part"));
        let writes = |part: PartFile, text: &str| {
            let mut file = part.file();
            file.write_all(text.as_bytes()).unwrap();
            part
        };
        drop(writes(PartFile::open(&image, false, None).unwrap(), "half"));
        assert!(!image.exists());
        assert_eq!(read(&part), "half");
        // PART-P3: the leftover file is not overwritten silently.
        let refused = PartFile::open(&image, false, None).unwrap_err();
        assert_eq!(refused.exit, Exit::Usage);
        assert!(refused.message.contains("a.img.part exists already"), "{refused:?}");
        let goes_on = PartFile::open(&image, false, Some(4)).unwrap();
        assert_eq!(read(goes_on.path()), "half", "its content is kept");
        writes(goes_on, "whole").finish().unwrap();
        assert_eq!((read(&image).as_str(), part.exists()), ("whole", false));
    }

    #[test]
    fn an_image_is_replaced_by_a_complete_one_only() {
        let dir = tempfile::tempdir().unwrap();
        let (image, link) = (dir.path().join("a.img"), dir.path().join("link"));
        std::fs::write(&image, "old").unwrap();
        std::fs::set_permissions(&image, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&image, &link).unwrap();
        for name in [&image, &link] {
            let refused = PartFile::open(name, false, None).unwrap_err();
            assert!(refused.next.unwrap().contains("--overwrite"));
        }
        assert!(!dir.path().join("a.img.part").exists());
        let part = PartFile::open(&link, true, None).unwrap();
        part.file().write_all(b"new").unwrap();
        assert_eq!(read(&image), "old");
        part.finish().unwrap();
        assert_eq!(read(&image), "new");
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink(), "the link stays a link");
        assert_eq!(std::fs::metadata(&image).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn a_file_that_is_created_meanwhile_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a.img");
        let part = PartFile::open(&image, false, None).unwrap();
        part.file().write_all(b"new").unwrap();
        std::fs::write(&image, "another's").unwrap();
        let refused = part.finish().unwrap_err();
        assert!(refused.message.contains("the image is complete in"), "{refused:?}");
        assert_eq!(read(&image), "another's");
        assert_eq!(read(&dir.path().join("a.img.part")), "new");
    }

    /// PART-P2.
    #[test]
    fn one_export_at_a_time_writes_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a.img");
        let first = PartFile::open(&image, false, None).unwrap();
        for (overwrite, done) in [(true, None), (false, Some(0)), (false, Some(7))] {
            let refused = PartFile::open(&image, overwrite, done).unwrap_err();
            assert!(refused.message.contains("another export is writing"), "{refused:?}");
        }
        drop(first);
        PartFile::open(&image, true, None).unwrap();
    }

    #[test]
    fn a_resumed_export_needs_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a.img");
        let refused = PartFile::open(&image, false, Some(64)).unwrap_err();
        assert!(refused.next.unwrap().contains("delete the state file"));
        PartFile::open(&image, false, Some(0)).unwrap();
    }

    /// PART-P1, PART-P2: the file of a running export is deleted, and another export starts.
    #[test]
    fn a_file_that_was_replaced_meanwhile_is_not_renamed() {
        let dir = tempfile::tempdir().unwrap();
        let (image, part) = (dir.path().join("a.img"), dir.path().join("a.img.part"));
        let first = PartFile::open(&image, false, None).unwrap();
        let refused = PartFile::open(&image, false, None).unwrap_err().message;
        assert!(refused.contains("another export is writing"), "{refused}");
        std::fs::remove_file(&part).unwrap();
        let second = PartFile::open(&image, false, None).unwrap();
        let mut file = second.file();
        file.write_all(b"half").unwrap();
        let refused = first.finish().unwrap_err().message;
        assert!(refused.contains("was replaced by another file"), "{refused}");
        assert!(!image.exists() && read(&part) == "half");
        file.write_all(b" and half").unwrap();
        second.finish().unwrap();
        assert_eq!(read(&image), "half and half");
    }

    #[test]
    fn the_state_file_is_neither_the_image_nor_its_part_file() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for state in ["a.img", "a.img.part"] {
            assert_eq!(check_state(&at("a.img"), &at(state)).unwrap_err().exit, Exit::Usage, "{state}");
        }
        assert!(check_state(&at("a.new"), &at("a")).is_err(), "the temporary file of the state");
        check_state(&at("a.img"), &at("a.state")).unwrap();
    }
}
