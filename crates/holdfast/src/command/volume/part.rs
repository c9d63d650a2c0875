//! Where an export to a file is written until it is whole: beside it, as `NAME.part`.
//!
//! PART-P1  Under the name that was asked for there is never a part of an image: what was there before, or all of the new one, synced.
//! PART-P2  One export at a time writes a part: it is locked while it is written.
//! PART-P3  Nothing that is there is written over without a word: neither NAME, also if it comes meanwhile, nor a part that another export left.

use super::copy::about;
use crate::exit::CliError;
use rustix::fs::{CWD, FlockOperation, RenameFlags, flock, renameat_with};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// An image that is not whole yet.
#[derive(Debug)]
pub struct Part {
    image: PathBuf,
    path: PathBuf,
    overwrite: bool,
    file: File,
}

/// `NAME.part` beside `NAME`; where NAME is a link, beside what it names.
fn names(image: &Path) -> (PathBuf, PathBuf) {
    let image = std::fs::canonicalize(image).unwrap_or_else(|_| image.to_path_buf());
    let mut part = image.as_os_str().to_owned();
    part.push(".part");
    (image, part.into())
}

fn is_there(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok()
}

/// Whether the file has this name.
fn is_at(file: &File, path: &Path) -> io::Result<bool> {
    let own = file.metadata()?;
    Ok(std::fs::metadata(path).is_ok_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino())))
}

/// Whether somebody writes it now.
fn is_locked(path: &Path) -> bool {
    let locked = |file: File| flock(&file, FlockOperation::NonBlockingLockExclusive) == Err(Errno::WOULDBLOCK);
    File::open(path).is_ok_and(locked)
}

/// Refuses a state file that is the image or its part: each would take the other's place.
///
/// # Errors
/// It is.
pub fn check_state(image: &Path, state: &Path) -> Result<(), CliError> {
    let ((image, part), (state, _)) = (names(image), names(state));
    let mut beside = state.as_os_str().to_owned();
    beside.push(".new");
    if [&image, &part].into_iter().any(|one| *one == state || one.as_os_str() == beside) {
        let text = format!("--state {}: that is the image, or what it is while it is written", state.display());
        return Err(CliError::usage(text).next("give the state a file of its own"));
    }
    Ok(())
}

impl Part {
    /// Opens and locks the part of `image`: `done_bytes` of an interrupted export are to be in it, or it is a new one (`None`).
    ///
    /// # Errors
    /// Something is in the way (PART-P3), another export writes it (PART-P2), or the interrupted one's is gone.
    pub fn open(image: &Path, overwrite: bool, done_bytes: Option<u64>) -> Result<Self, CliError> {
        let (image, path) = names(image);
        let old = std::fs::metadata(&image).ok();
        if !overwrite && is_there(&image) {
            let error = CliError::usage(format!("{} is there already", image.display()));
            return Err(error.next("add --overwrite to replace it"));
        }
        let mut options = File::options();
        // Of an export that had come nowhere nothing has to be there yet.
        options.read(true).write(true).create(done_bytes.is_none_or(|bytes| bytes == 0));
        options.create_new(done_bytes.is_none() && !overwrite);
        let busy = || {
            CliError::failed(format!("{}: another export writes it", path.display()))
                .next("wait for its end, or export to another file")
        };
        let file = options.open(&path).map_err(|error| match error.kind() {
            io::ErrorKind::AlreadyExists if is_locked(&path) => busy(),
            io::ErrorKind::AlreadyExists => {
                CliError::usage(format!("{} is there already: the part of an export that did not end", path.display()))
                    .next("delete it, or add --overwrite, to begin anew")
            }
            io::ErrorKind::NotFound if done_bytes.is_some() => {
                CliError::failed(format!("{} is not there, and the state file says what is in it", path.display()))
                    .next("delete the state file and export from the beginning")
            }
            _ => about(&path, &error),
        })?;
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {}
            Err(Errno::WOULDBLOCK) => return Err(busy()),
            // A file system that has no locks.
            Err(Errno::NOTSUP | Errno::NOSYS | Errno::NOLCK) => {}
            Err(error) => return Err(about(&path, &error.into())),
        }
        // The one that had the lock may have ended in between, and given it its name.
        if !is_at(&file, &path).map_err(|error| about(&path, &error))? {
            return Err(busy());
        }
        // Who could not read the old image cannot read the new one.
        if let Some(old) = old.filter(|old| old.is_file()) {
            file.set_permissions(old.permissions()).map_err(|error| about(&path, &error))?;
        }
        Ok(Self { image, path, overwrite, file })
    }

    /// Where it is written.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The file, to write it.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// PART-P1: it is whole, and gets its name.
    ///
    /// # Errors
    /// It is whole, and stays where it is.
    pub fn finish(self) -> Result<(), CliError> {
        let failed = |error: io::Error| {
            let text = format!("the image is whole and is in {}; {}", self.path.display(), self.image.display());
            CliError::failed(text).because(&error)
        };
        self.file.sync_all().map_err(failed)?;
        // PART-P1: whoever took it away may have begun another one there.
        if !is_at(&self.file, &self.path).map_err(failed)? {
            let text = format!("{} is another file by now than the one that was written", self.path.display());
            return Err(CliError::failed(text).next("somebody deleted or replaced it meanwhile: export again"));
        }
        if self.overwrite {
            std::fs::rename(&self.path, &self.image).map_err(failed)?;
        } else {
            match renameat_with(CWD, &self.path, CWD, &self.image, RenameFlags::NOREPLACE) {
                // A file system that cannot do both in one.
                Err(Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) if !is_there(&self.image) => {
                    std::fs::rename(&self.path, &self.image).map_err(failed)?;
                }
                Err(Errno::EXIST | Errno::INVAL | Errno::NOSYS | Errno::NOTSUP) => {
                    let text = "somebody made a file of that name meanwhile".to_string();
                    return Err(failed(io::Error::other(text)).next("give one of the two another name"));
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

    /// PART-P1: whatever ends the export before its end, nothing has the name.
    #[test]
    fn only_a_whole_image_has_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let (image, part) = (dir.path().join("a.img"), dir.path().join("a.img.part"));
        let writes = |part: Part, text: &str| {
            let mut file = part.file();
            file.write_all(text.as_bytes()).unwrap();
            part
        };
        drop(writes(Part::open(&image, false, None).unwrap(), "half"));
        assert!(!image.exists());
        assert_eq!(read(&part), "half");
        // PART-P3: what it left is in nobody's way without a word.
        let refused = Part::open(&image, false, None).unwrap_err();
        assert_eq!(refused.exit, Exit::Usage);
        assert!(refused.message.contains("a.img.part is there already"), "{refused:?}");
        let goes_on = Part::open(&image, false, Some(4)).unwrap();
        assert_eq!(read(goes_on.path()), "half", "nothing of it is lost");
        writes(goes_on, "whole").finish().unwrap();
        assert_eq!((read(&image).as_str(), part.exists()), ("whole", false));
    }

    #[test]
    fn an_image_is_replaced_by_a_whole_one_only() {
        let dir = tempfile::tempdir().unwrap();
        let (image, link) = (dir.path().join("a.img"), dir.path().join("link"));
        std::fs::write(&image, "old").unwrap();
        std::fs::set_permissions(&image, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::os::unix::fs::symlink(&image, &link).unwrap();
        for name in [&image, &link] {
            let refused = Part::open(name, false, None).unwrap_err();
            assert!(refused.next.unwrap().contains("--overwrite"));
        }
        assert!(!dir.path().join("a.img.part").exists());
        let part = Part::open(&link, true, None).unwrap();
        part.file().write_all(b"new").unwrap();
        assert_eq!(read(&image), "old");
        part.finish().unwrap();
        assert_eq!(read(&image), "new");
        assert!(std::fs::symlink_metadata(&link).unwrap().is_symlink(), "the link is what it was");
        assert_eq!(std::fs::metadata(&image).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn what_comes_meanwhile_is_not_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a.img");
        let part = Part::open(&image, false, None).unwrap();
        part.file().write_all(b"new").unwrap();
        std::fs::write(&image, "another's").unwrap();
        let refused = part.finish().unwrap_err();
        assert!(refused.message.contains("is whole and is in"), "{refused:?}");
        assert_eq!(read(&image), "another's");
        assert_eq!(read(&dir.path().join("a.img.part")), "new");
    }

    /// PART-P2.
    #[test]
    fn one_at_a_time_writes_it() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a.img");
        let first = Part::open(&image, false, None).unwrap();
        for (overwrite, done) in [(true, None), (false, Some(0)), (false, Some(7))] {
            let refused = Part::open(&image, overwrite, done).unwrap_err();
            assert!(refused.message.contains("another export writes it"), "{refused:?}");
        }
        drop(first);
        Part::open(&image, true, None).unwrap();
    }

    #[test]
    fn what_a_state_file_counts_on_has_to_be_there() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("a.img");
        let refused = Part::open(&image, false, Some(64)).unwrap_err();
        assert!(refused.next.unwrap().contains("delete the state file"));
        Part::open(&image, false, Some(0)).unwrap();
    }

    /// PART-P1, PART-P2: somebody deletes the part of an export that is under way, and begins another one.
    #[test]
    fn a_part_that_was_replaced_meanwhile_gets_no_name() {
        let dir = tempfile::tempdir().unwrap();
        let (image, part) = (dir.path().join("a.img"), dir.path().join("a.img.part"));
        let first = Part::open(&image, false, None).unwrap();
        let refused = Part::open(&image, false, None).unwrap_err().message;
        assert!(refused.contains("another export writes it"), "{refused}");
        std::fs::remove_file(&part).unwrap();
        let second = Part::open(&image, false, None).unwrap();
        let mut file = second.file();
        file.write_all(b"half").unwrap();
        let refused = first.finish().unwrap_err().message;
        assert!(refused.contains("is another file by now"), "{refused}");
        assert!(!image.exists() && read(&part) == "half");
        file.write_all(b" and half").unwrap();
        second.finish().unwrap();
        assert_eq!(read(&image), "half and half");
    }

    #[test]
    fn the_state_is_neither_the_image_nor_its_part() {
        let dir = tempfile::tempdir().unwrap();
        let at = |name: &str| dir.path().join(name);
        for state in ["a.img", "a.img.part"] {
            assert_eq!(check_state(&at("a.img"), &at(state)).unwrap_err().exit, Exit::Usage, "{state}");
        }
        assert!(check_state(&at("a.new"), &at("a")).is_err(), "what it is written as first");
        check_state(&at("a.img"), &at("a.state")).unwrap();
    }
}
