//! Small files beside the snapshots: magic, crc32c of the body (u32 LE), body. They are replaced as a whole, so a crash
//! leaves the old or the new one.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

pub(crate) type Magic = [u8; 8];

fn beside(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

fn sync_folder(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
}

/// Writes the file at `path`; durable on return.
pub(crate) fn replace(path: &Path, magic: &Magic, body: &[u8]) -> io::Result<()> {
    let beside = beside(path);
    let mut file = File::create(&beside)?;
    file.write_all(magic)?;
    file.write_all(&crc32c::crc32c(body).to_le_bytes())?;
    file.write_all(body)?;
    file.sync_all()?;
    fs::rename(&beside, path)?;
    sync_folder(path)
}

/// The bytes of the file at `path`; `None` if there is none.
pub(crate) fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(e) => Err(e),
    }
}

/// The magic of a file, and its checked body.
///
/// # Errors
/// What was found and what was expected.
pub(crate) fn split(bytes: &[u8]) -> Result<(&Magic, Result<&[u8], String>), String> {
    let short = || format!("found {} bytes, expected at least 12", bytes.len());
    let (magic, rest) = bytes.split_first_chunk::<8>().ok_or_else(short)?;
    let checked = rest.split_first_chunk::<4>().ok_or_else(short).and_then(|(crc, body)| {
        let (expected, found) = (u32::from_le_bytes(*crc), crc32c::crc32c(body));
        match expected == found {
            true => Ok(body),
            false => Err(format!("found checksum {found:08x}, expected {expected:08x}")),
        }
    });
    Ok((magic, checked))
}

/// The checked body of a file that begins with `magic`.
///
/// # Errors
/// What was found and what was expected.
pub(crate) fn body<'a>(bytes: &'a [u8], magic: &Magic) -> Result<&'a [u8], String> {
    match split(bytes)? {
        (found, body) if found == magic => body,
        (found, _) => Err(format!("found magic {found:02x?}, expected {magic:02x?}")),
    }
}

/// Removes the file at `path`, and the temporary file that a crash during [`replace`] left; durable on return.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    for path in [beside(path), path.to_path_buf()] {
        match fs::remove_file(path) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    sync_folder(path)
}
