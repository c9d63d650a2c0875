//! Folders whose names outlive a power cut.
//!
//! A sync of a folder covers the names in it, but not its own name in its parent: a power cut may remove a folder with
//! everything that was synced in it (R1; Jepsen's flush-kill under power cuts, seed 1204).
//!
//! - **FOLDER-F1** Nothing is made in a folder before that folder's own name is durable.
//! - **FOLDER-F2** This holds for a folder that existed before, too: an earlier start may have ended between making and
//!   syncing it. For a link, both names must be durable.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Creates `dir` and its missing parents, and makes all these names durable, up to the file system's root.
///
/// # Errors
/// The disk's error; what was made and could not be synced is removed again. Three cases are no error: a folder above
/// an existing one cannot be opened (rights), a file system does not know a sync of folders, or it is read-only. Then
/// whoever made the name is responsible for it.
pub fn make(dir: &Path) -> io::Result<()> {
    make_from_above(dir)?;
    let real = dir.canonicalize()?;
    let mut above = above_on_disk(&std::path::absolute(dir)?)?;
    above.extend(above_on_disk(&real)?);
    above.sort_unstable();
    above.dedup();
    for folder in above {
        match sync(&folder) {
            Err(error) if !is_others_business(&error) => return Err(error),
            _ => {}
        }
    }
    Ok(())
}

/// Writes the file at `path`, and makes its content and its name durable. Its folder must exist ([`make`]).
///
/// # Errors
/// The disk's error, except that a file system may not know a sync of folders; what was written so far stays.
pub fn write(path: &Path, content: &[u8]) -> io::Result<()> {
    let mut file = File::create(path)?;
    file.write_all(content)?;
    file.sync_all()?;
    match above(path).map_or(Ok(()), |folder| sync(&folder)) {
        Err(error) if !knows_no_sync(&error) => Err(error),
        _ => Ok(()),
    }
}

/// FOLDER-F1
fn make_from_above(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    let made = match fs::create_dir(dir) {
        Err(error) if error.kind() == ErrorKind::NotFound => {
            let Some(above) = above(dir) else { return Err(error) };
            make_from_above(&above)?;
            fs::create_dir(dir)
        }
        made => made,
    };
    match made {
        Ok(()) => {}
        // Another process was faster.
        Err(error) if error.kind() == ErrorKind::AlreadyExists && dir.is_dir() => return Ok(()),
        Err(error) => return Err(error),
    }
    match above(dir).map_or(Ok(()), |above| sync(&above)) {
        Err(error) if !knows_no_sync(&error) => {
            // Else the next start would believe that it is durable.
            let _ = fs::remove_dir(dir);
            Err(error)
        }
        _ => Ok(()),
    }
}

/// The folders above this path, nearest first, that are on the same file system. `path` is absolute; of a link, its own
/// name counts, not its target's.
fn above_on_disk(path: &Path) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut at = path;
    while let Some(above) = at.parent() {
        if fs::symlink_metadata(at)?.dev() != fs::metadata(above)?.dev() {
            break;
        }
        found.push(above.to_path_buf());
        at = above;
    }
    Ok(found)
}

/// The folder that has the name of this one; `.` for a name alone.
fn above(path: &Path) -> Option<PathBuf> {
    let above = path.parent()?;
    Some(if above.as_os_str().is_empty() { PathBuf::from(".") } else { above.to_path_buf() })
}

fn sync(folder: &Path) -> io::Result<()> {
    let done = File::open(folder).and_then(|folder| folder.sync_all());
    done.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", folder.display())))
}

fn knows_no_sync(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::InvalidInput | ErrorKind::Unsupported)
}

fn is_others_business(error: &io::Error) -> bool {
    knows_no_sync(error) || matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_made_and_what_is_there_stays() {
        let dir = tempfile::tempdir().expect("a folder");
        let deep = dir.path().join("a/b/c");
        make(&deep).expect("made");
        fs::write(deep.join("file"), "x").expect("written");
        make(&deep).expect("was there");
        assert_eq!(fs::read(deep.join("file")).expect("there"), b"x");
        make(Path::new("/")).expect("nothing is above it");
        make(Path::new(".")).expect("relative");
        let file = deep.join("file");
        make(&file.join("below")).expect_err("a file is in the way");
        make(&file).expect_err("a file is no folder");
        std::os::unix::fs::symlink(dir.path().join("nowhere"), dir.path().join("link")).expect("linked");
        make(&dir.path().join("link")).expect_err("a link that leads nowhere");
    }

    #[test]
    fn a_file_is_written_anew_where_its_folder_is() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("note");
        for content in ["of some length", "short"] {
            write(&path, content.as_bytes()).expect("written");
            assert_eq!(fs::read(&path).expect("there"), content.as_bytes());
        }
        write(&dir.path().join("nowhere/note"), b"x").expect_err("no folder");
        write(dir.path(), b"x").expect_err("a folder is no file");
    }

    #[test]
    fn names_are_needed_up_to_the_root_of_the_file_system_those_of_links_too() {
        let dir = tempfile::tempdir().expect("a folder");
        let dir = dir.path().canonicalize().expect("there");
        let (deep, link) = (dir.join("a/b"), dir.join("links/to-b"));
        make(&deep).expect("made");
        make(&dir.join("links")).expect("made");
        std::os::unix::fs::symlink(&deep, &link).expect("linked");
        make(&link).expect("was there");
        let found = above_on_disk(&link).expect("there");
        assert_eq!(found[..2], [dir.join("links"), dir.clone()], "where the link is");
        let found = above_on_disk(&deep).expect("there");
        assert_eq!(found[..2], [dir.join("a"), dir.clone()], "where the folder is");
        // The names on another file system are not this crate's concern.
        assert_eq!(above_on_disk(Path::new("/proc/self")).expect("there"), [Path::new("/proc")]);
    }

    #[test]
    fn errors_are_told_apart() {
        let all = |kind: ErrorKind| (knows_no_sync(&kind.into()), is_others_business(&kind.into()));
        assert_eq!(all(ErrorKind::InvalidInput), (true, true));
        for kind in [ErrorKind::PermissionDenied, ErrorKind::ReadOnlyFilesystem] {
            assert_eq!(all(kind), (false, true));
        }
        assert_eq!(all(ErrorKind::Other), (false, false));
        assert!(sync(Path::new("/nowhere/at/all")).expect_err("not there").to_string().contains("/nowhere/at/all"));
    }
}
