//! Reads files that a person names: settings, certificates, keys, passphrases, tokens. All of them are small.
//!
//! Reads at most a bound: a setting that names a device, a log or an image by mistake is reported at once and does not
//! fill the memory. A pipe works too, for handing over a secret.

use std::fs::File;
use std::io::{self, ErrorKind, Read};
use std::path::Path;

/// Maximum size of a cluster key, a passphrase or a token.
pub const SECRET_BYTES_MAX: u64 = 64 << 10;

/// Maximum size of a PEM file. All authorities that a system trusts, in one file, take a quarter of it.
pub const PEM_BYTES_MAX: u64 = 1 << 20;

/// Maximum size of a settings file, or of a cluster's plan. A sample with all its comments takes a fraction of it.
pub const SETTINGS_BYTES_MAX: u64 = 1 << 20;

/// Reads the whole file at `path`.
///
/// # Errors
/// The file system's error; [`ErrorKind::FileTooLarge`] if it has more than `bytes_max` bytes.
pub fn read(path: &Path, bytes_max: u64) -> io::Result<Vec<u8>> {
    whole(&File::open(path)?, bytes_max)
}

/// The same for a text file.
///
/// # Errors
/// As [`read`]; [`ErrorKind::InvalidData`] if it is not UTF-8.
pub fn read_text(path: &Path, bytes_max: u64) -> io::Result<String> {
    text(read(path, bytes_max)?)
}

pub(crate) fn text(bytes: Vec<u8>) -> io::Result<String> {
    let bad = |_| io::Error::new(ErrorKind::InvalidData, "found bytes that are no text, expected UTF-8");
    String::from_utf8(bytes).map_err(bad)
}

/// Reads only as much as shows that the file is too long, whatever its length is said to be.
pub(crate) fn whole(file: &File, bytes_max: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut bounded = file.take(bytes_max.saturating_add(1));
    bounded.read_to_end(&mut bytes)?;
    let read = bytes.len() as u64;
    if read <= bytes_max {
        return Ok(bytes);
    }
    // A device reports a length of 0.
    let found = file.metadata()?.len().max(read);
    let text = format!("found at least {found} bytes, expected at most {bytes_max}");
    Err(io::Error::new(ErrorKind::FileTooLarge, text))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_bound_and_not_beyond() {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join("file");
        let of = |bytes: usize| std::fs::write(&path, vec![b'x'; bytes]).expect("written");
        of(100);
        assert_eq!(read(&path, 100).expect("as long as it may be").len(), 100);
        assert_eq!(read_text(&path, 100).expect("text"), "x".repeat(100));
        of(300);
        let error = read(&path, 100).expect_err("too long");
        assert_eq!(error.kind(), ErrorKind::FileTooLarge);
        assert_eq!(error.to_string(), "found at least 300 bytes, expected at most 100");
        std::fs::write(&path, [0xff, 0xfe]).expect("written");
        let error = read_text(&path, 100).expect_err("no text");
        assert!(error.to_string().contains("expected UTF-8"), "{error}");
    }

    /// It has no end, and reports no length.
    #[test]
    fn a_device_is_not_read_for_ever() {
        let error = read(Path::new("/dev/zero"), 100).expect_err("without an end");
        assert_eq!(error.to_string(), "found at least 101 bytes, expected at most 100");
    }
}
