//! Folders whose names outlive a power cut.

use std::fs::File;
use std::io;
use std::path::Path;

/// Makes `dir` and what is missing above it, and makes their names durable. A folder's own sync covers the names in it, not its own name in the folder above: a
/// power cut may take a folder away whole, with everything that was synced in it. Where `dir` was there, whoever made it may not have synced its name either.
///
/// # Errors
/// As the disk says. That the folder above one that was there cannot be opened (rights) is no error: then its name is the business of who made it.
pub fn make_folder(dir: &Path) -> io::Result<()> {
    let mut missing = Vec::new();
    let mut at = dir;
    while !at.exists() {
        missing.push(at);
        match above(at) {
            Some(next) => at = next,
            None => break,
        }
    }
    std::fs::create_dir_all(dir)?;
    for made in &missing {
        if let Some(above) = above(made) {
            File::open(above)?.sync_all()?;
        }
    }
    match above(at).map(File::open) {
        Some(Ok(folder)) => folder.sync_all(),
        Some(Err(error)) if error.kind() != io::ErrorKind::PermissionDenied => Err(error),
        _ => Ok(()),
    }
}

/// The folder that has the name of this one; `.` for a name alone.
fn above(path: &Path) -> Option<&Path> {
    let above = path.parent()?;
    Some(if above.as_os_str().is_empty() { Path::new(".") } else { above })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_missing_is_made_and_what_is_there_stays() {
        let dir = tempfile::tempdir().expect("a folder");
        let deep = dir.path().join("a/b/c");
        make_folder(&deep).expect("made");
        std::fs::write(deep.join("file"), "x").expect("written");
        make_folder(&deep).expect("was there");
        assert_eq!(std::fs::read(deep.join("file")).expect("there"), b"x");
        make_folder(Path::new("/")).expect("nothing is above it");
        let file = deep.join("file");
        make_folder(&file.join("below")).expect_err("a file is in the way");
    }
}
