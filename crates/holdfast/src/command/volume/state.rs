//! Progress of a copy in a small file, to resume an interrupted copy.
//!
//! COPIED-T1  It is correct after a power failure: finished data was acknowledged as durable (import), or is synced
//!     (export).
//! COPIED-T2  It is used only if everything matches: its checksum, source and target, and the digest of the finished
//!     data.

use crate::exit::CliError;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::Path;

const VERSION: u32 = 1;
/// Longest valid file.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// Source and target of a copy; both must be the same to resume it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ends {
    /// `import` or `export`.
    pub kind: String,
    /// `SET/VOLUME` or `SET/VOLUME@SNAPSHOT`.
    pub volume: String,
    /// The volume's id, and its size in bytes.
    pub volume_id: u32,
    /// In bytes.
    pub volume_bytes: u64,
    /// The snapshot's id; "" for a volume.
    pub snapshot_id: String,
    /// The image as named on the command line.
    pub image: String,
    /// Length of the image in bytes; 0 if unknown (a pipe).
    pub image_bytes: u64,
}

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    version: u32,
    /// Source and target.
    pub ends: Ends,
    /// Finished bytes from the beginning.
    pub done_bytes: u64,
    /// SHA-256 of the image up to there.
    pub done_sha256: String,
    /// Epoch of the lease during the copy; 0 for a snapshot. If it is still the latest epoch, nobody else has held the
    /// set since.
    pub epoch: u64,
    check: String,
}

/// A digest as text.
pub fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl State {
    /// State of a copy.
    pub fn new(ends: Ends, done_bytes: u64, done_sha256: String, epoch: u64) -> Self {
        let mut state = Self { version: VERSION, ends, done_bytes, done_sha256, epoch, check: String::new() };
        state.check = state.sum();
        state
    }

    /// COPIED-T2: checksum over all other fields.
    fn sum(&self) -> String {
        let fields = (self.version, &self.ends, self.done_bytes, &self.done_sha256, self.epoch);
        hex(&Sha256::digest(serde_json::to_vec(&fields).unwrap_or_default()))
    }

    /// Reads the file; `None` if it does not exist.
    pub fn load(path: &Path) -> Result<Option<Self>, CliError> {
        let wrong = |why: String| {
            CliError::usage(format!("state file {}: {why}", path.display()))
                .next("delete it to start the copy from the beginning")
        };
        let length = match std::fs::metadata(path) {
            Ok(found) => found.len(),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(wrong(error.to_string())),
        };
        if length > FILE_BYTES_MAX {
            return Err(wrong(format!("found {length} bytes, expected at most {FILE_BYTES_MAX}")));
        }
        let text = std::fs::read(path).map_err(|error| wrong(error.to_string()))?;
        let state: Self = serde_json::from_slice(&text).map_err(|error| wrong(error.to_string()))?;
        if state.version != VERSION {
            return Err(wrong(format!("found version {}, expected {VERSION}", state.version)));
        }
        if state.check != state.sum() {
            return Err(wrong("its checksum does not match: it was changed or truncated".to_string()));
        }
        Ok(Some(state))
    }

    /// Replaces the file atomically and syncs it.
    pub fn save(&self, path: &Path) -> Result<(), CliError> {
        let write = || -> std::io::Result<()> {
            let text = serde_json::to_vec(self).map_err(std::io::Error::other)?;
            let mut fresh = path.as_os_str().to_owned();
            fresh.push(".new");
            let fresh = Path::new(&fresh);
            let mut file = std::fs::File::create(fresh)?;
            file.write_all(&text)?;
            file.sync_all()?;
            std::fs::rename(fresh, path)?;
            let dir = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
            std::fs::File::open(dir)?.sync_all()
        };
        write().map_err(|error| CliError::failed(format!("state file {}", path.display())).because(&error))
    }

    /// COPIED-T2: checks that it belongs to this copy.
    pub fn fits(&self, ends: &Ends) -> Result<(), CliError> {
        if self.ends == *ends {
            return Ok(());
        }
        Err(CliError::usage(format!(
            "the state file belongs to another copy: found {:?}, expected {ends:?}",
            self.ends
        ))
        .next("delete it to start from the beginning, or use the state file of this copy"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ends() -> Ends {
        Ends {
            kind: "import".into(),
            volume: "demo/vol1".into(),
            volume_id: 3,
            volume_bytes: 1 << 20,
            snapshot_id: String::new(),
            image: "a.img".into(),
            image_bytes: 77,
        }
    }

    #[test]
    fn a_changed_or_truncated_state_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        assert_eq!(State::load(&path).unwrap(), None);
        let state = State::new(ends(), 64, "ab".into(), 9);
        state.save(&path).unwrap();
        assert_eq!(State::load(&path).unwrap(), Some(state.clone()));
        state.fits(&ends()).unwrap();
        assert!(state.fits(&Ends { volume_id: 4, ..ends() }).is_err(), "another volume with the same name");
        let text = std::fs::read_to_string(&path).unwrap();
        for changed in
            [text.replace(":64,", ":65,"), text.replace("\"ab\"", "\"ac\""), text[..text.len() - 2].to_string()]
        {
            assert_ne!(changed, text);
            std::fs::write(&path, changed).unwrap();
            assert!(State::load(&path).is_err());
        }
    }
}
