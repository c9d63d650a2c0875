//! Golden files of formats, a folder for each release: what one release has written, every later one reads.
//!
//! ```text
//!   crates/volume/tests/golden/v0.1.0/head     by that release
//!                              v0.3.0/head     by the next release that writes other bytes
//! ```
//! The newest file of a format has what this tree writes. So a changed format fails its test, until its new bytes lie
//! beside the old ones and the reader takes both. `HOLDFAST_GOLDEN=v0.3.0 cargo test`, with the release that will have
//! the change, writes the new ones. The files of a release that has a tag are never changed or removed.

use std::fmt::Debug;
use std::fs;
use std::io::ErrorKind;
use std::path::Path;

/// Environment variable with the release whose files are written where they differ from the ones before: `v0.3.0`.
pub const BLESS: &str = "HOLDFAST_GOLDEN";

/// What this tree writes for the sample of a format.
#[derive(Clone, Copy, Debug)]
pub enum Written<'a> {
    /// These bytes, always: the newest file must have them.
    Pinned(&'a [u8]),
    /// These bytes now; others mean the same, as with another version of a compression. Files are read, and not
    /// compared with what is written.
    Free(&'a [u8]),
}

impl<'a> Written<'a> {
    fn bytes(self) -> &'a [u8] {
        let (Self::Pinned(bytes) | Self::Free(bytes)) = self;
        bytes
    }
}

/// Checks the files of the format `name` below `tests/golden` of a crate (`env!("CARGO_MANIFEST_DIR")`): each of them
/// reads as `expected`, and the newest has what is written now. With [`BLESS`] it first writes that of a release.
///
/// # Panics
/// When a file does not read so, when the newest differs, and when there is none.
pub fn kept<T: PartialEq + Debug>(
    crate_dir: &str,
    name: &str,
    written: Written<'_>,
    expected: &T,
    read: impl Fn(&[u8]) -> T,
) {
    let folder = Path::new(crate_dir).join("tests/golden");
    let release = std::env::var(BLESS).ok();
    let blessed = release.map_or(Ok(()), |release| bless(&folder, &release, name, written.bytes()));
    if let Err(why) = blessed.and_then(|()| check(&folder, name, written, expected, read)) {
        panic!("golden {name} in {}: {why}", folder.display());
    }
}

/// The number of a release: `v0.3.0`.
fn number(release: &str) -> Option<[u64; 3]> {
    let mut parts = release.strip_prefix('v')?.split('.').map(|part| part.parse::<u64>().ok());
    let number = [parts.next()??, parts.next()??, parts.next()??];
    parts.next().is_none().then_some(number)
}

/// The files of a format, the oldest release first.
fn files(folder: &Path, name: &str) -> Result<Vec<(String, Vec<u8>)>, String> {
    let mut found: Vec<([u64; 3], String, Vec<u8>)> = Vec::new();
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(error.to_string()),
    };
    for entry in entries {
        let entry = entry.map_err(|error| error.to_string())?;
        let release = entry.file_name().to_string_lossy().into_owned();
        // Other golden files lie beside the releases.
        let Some(number) = number(&release) else { continue };
        match fs::read(entry.path().join(name)) {
            Ok(bytes) => found.push((number, release, bytes)),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(format!("{release}: {error}")),
        }
    }
    found.sort_unstable();
    Ok(found.into_iter().map(|(_, release, bytes)| (release, bytes)).collect())
}

/// Writes the file of `release`, if the one before differs.
fn bless(folder: &Path, release: &str, name: &str, written: &[u8]) -> Result<(), String> {
    let ours = number(release).ok_or_else(|| format!("found {BLESS}={release:?}, expected a release, as v0.3.0"))?;
    let all = files(folder, name)?;
    if let Some((later, _)) = all.iter().find(|(other, _)| number(other) > Some(ours)) {
        return Err(format!("{release} is older than {later}, which has this file already"));
    }
    let before = all.iter().rev().find(|(other, _)| other != release);
    if before.is_some_and(|(_, bytes)| bytes == written) {
        return Ok(());
    }
    let place = folder.join(release);
    let done = fs::create_dir_all(&place).and_then(|()| fs::write(place.join(name), written));
    done.map_err(|error| format!("{}: {error}", place.display()))
}

fn check<T: PartialEq + Debug>(
    folder: &Path,
    name: &str,
    written: Written<'_>,
    expected: &T,
    read: impl Fn(&[u8]) -> T,
) -> Result<(), String> {
    let all = files(folder, name)?;
    let Some((newest, bytes)) = all.last() else {
        return Err(format!("found none, expected that of a release: {BLESS}=v0.1.0 writes it"));
    };
    for (release, bytes) in &all {
        let found = read(bytes);
        if found != *expected {
            return Err(format!(
                "what {release} has written reads as\n{found:?}\nexpected\n{expected:?}\nA format changes only together \
                 with a reader for the old one"
            ));
        }
    }
    match written {
        Written::Pinned(written) if written != bytes => Err(format!(
            "this tree writes other bytes than {newest}. Is that meant? Then {BLESS}=RELEASE, with the next release, \
             adds them. Written now: {}",
            written.iter().map(|byte| format!("{byte:02x}")).collect::<String>()
        )),
        Written::Pinned(_) | Written::Free(_) => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The first byte is the version; a reader of 1 and 2.
    fn read(bytes: &[u8]) -> Option<u8> {
        match bytes {
            [1 | 2, value] => Some(*value),
            _ => None,
        }
    }

    fn looked(folder: &Path, written: Written<'_>) -> Result<(), String> {
        check(folder, "note", written, &Some(7), read)
    }

    #[test]
    fn a_change_needs_new_bytes_beside_the_old_and_a_reader_of_both() {
        let dir = tempfile::tempdir().expect("a folder");
        let (folder, old, new) = (dir.path(), Written::Pinned(&[1, 7]), Written::Pinned(&[2, 7]));
        assert!(looked(folder, old).unwrap_err().contains("found none"));
        // Releases are numbers: the tenth comes behind the ninth.
        bless(folder, "v0.9.0", "note", &[1, 7]).expect("written");
        fs::write(folder.join("help.txt"), "no release").expect("written");
        looked(folder, old).expect("as it was");
        assert!(looked(folder, new).unwrap_err().contains("other bytes than v0.9.0"));
        looked(folder, Written::Free(&[2, 7])).expect("not compared");
        bless(folder, "v0.10.0", "note", &[2, 7]).expect("written");
        looked(folder, new).expect("both are read");
        assert!(looked(folder, old).is_err(), "written as before the change");
        // Nothing new in the next release, and nothing of an earlier one is written any more.
        bless(folder, "v0.11.0", "note", &[2, 7]).expect("nothing to write");
        assert!(!folder.join("v0.11.0").exists());
        assert!(bless(folder, "v0.9.1", "note", &[2, 7]).unwrap_err().contains("older than v0.10.0"));
        // The reader of the old form is gone.
        let newer = |bytes: &[u8]| read(bytes).filter(|_| bytes[0] == 2);
        assert!(check(folder, "note", new, &Some(7), newer).unwrap_err().contains("what v0.9.0 has written"));
    }

    #[test]
    fn a_release_is_three_numbers() {
        assert_eq!(number("v0.10.2"), Some([0, 10, 2]));
        for other in ["0.1.0", "v0.1", "v0.1.0.0", "v0.1.x", "help.txt", "v"] {
            assert_eq!(number(other), None, "{other}");
        }
        let dir = tempfile::tempdir().expect("a folder");
        assert!(bless(dir.path(), "1", "note", &[1]).unwrap_err().contains("expected a release"));
    }
}
