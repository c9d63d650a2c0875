//! SHA-256 of files, and the list of them beside what is handed on.

use anyhow::{Context, Result};
use sha2::{Digest, Sha256};
use std::fmt::Write;
use std::io::Read;
use std::path::Path;

/// SHA-256 of bytes, as lower-case hexadecimal digits.
pub fn of_bytes(bytes: &[u8]) -> String {
    hex(&Sha256::digest(bytes))
}

/// SHA-256 of a file. Fails when it cannot be read.
pub fn of_file(path: &Path) -> Result<String> {
    let shown = || path.display().to_string();
    let mut file = std::fs::File::open(path).with_context(shown)?;
    let (mut digest, mut buffer) = (Sha256::new(), vec![0; 1 << 20]);
    loop {
        let read = file.read(&mut buffer).with_context(shown)?;
        if read == 0 {
            return Ok(hex(&digest.finalize()));
        }
        digest.update(&buffer[..read]);
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().fold(String::new(), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// The list that `sha256sum --check` reads: the files of a folder by name, with the paths as they are given. Fails when
/// one cannot be read.
pub fn list(folder: &Path, names: &[String]) -> Result<String> {
    let mut text = String::new();
    for name in names {
        let _ = writeln!(text, "{}  {name}", of_file(&folder.join(name))?);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digests_are_those_of_the_standard() {
        // FIPS 180-4, example "abc".
        let expected = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(of_bytes(b"abc"), expected);
        let file = std::env::temp_dir().join(format!("holdfast-sums-{}", std::process::id()));
        std::fs::write(&file, "abc").unwrap();
        let found = of_file(&file).unwrap();
        std::fs::remove_file(&file).unwrap();
        assert_eq!(found, expected);
    }
}
