//! What a copy has done so far, in a small file: where an interrupted one goes on.
//!
//! COPIED-T1  It says no more than is true after a loss of power: what it counts as done was answered as durable (import), or is synced (export).
//! COPIED-T2  It is believed only where all of it fits: its own checksum, the two ends of the copy, and the digest of what is counted as done.

use crate::exit::CliError;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::path::Path;

const VERSION: u32 = 1;
/// Bytes of the file at most: one that is longer is not ours.
const FILE_BYTES_MAX: u64 = 64 << 10;

/// The two ends of a copy: it goes on only between the same.
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
    /// The image as it was named.
    pub image: String,
    /// Length of the image in bytes; 0 where it is not known (a pipe).
    pub image_bytes: u64,
}

/// The file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    version: u32,
    /// Between what.
    pub ends: Ends,
    /// Bytes from the beginning that are done.
    pub done_bytes: u64,
    /// SHA-256 of the image up to there.
    pub done_sha256: String,
    /// Epoch of the lease that it was written under: nobody has held the set since, where it is the last one granted. 0 for a snapshot.
    pub epoch: u64,
    check: String,
}

/// A digest as text.
pub fn hex(digest: &[u8]) -> String {
    digest.iter().map(|byte| format!("{byte:02x}")).collect()
}

impl State {
    /// Of a copy that has come so far.
    pub fn new(ends: Ends, done_bytes: u64, done_sha256: String, epoch: u64) -> Self {
        let mut state = Self { version: VERSION, ends, done_bytes, done_sha256, epoch, check: String::new() };
        state.check = state.sum();
        state
    }

    /// COPIED-T2: over all fields but itself.
    fn sum(&self) -> String {
        let fields = (self.version, &self.ends, self.done_bytes, &self.done_sha256, self.epoch);
        hex(&Sha256::digest(serde_json::to_vec(&fields).unwrap_or_default()))
    }

    /// Reads the file; `None` where there is none.
    pub fn load(path: &Path) -> Result<Option<Self>, CliError> {
        let wrong = |why: String| {
            CliError::usage(format!("state file {}: {why}", path.display()))
                .next("delete it to begin anew; what was copied before is copied again")
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
            return Err(wrong("its checksum does not match: it was changed, or cut short".to_string()));
        }
        Ok(Some(state))
    }

    /// Replaces the file as a whole, synced.
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

    /// COPIED-T2: whether it is of this copy.
    pub fn fits(&self, ends: &Ends) -> Result<(), CliError> {
        if self.ends == *ends {
            return Ok(());
        }
        Err(CliError::usage(format!("the state file is of another copy: found {:?}, expected {ends:?}", self.ends))
            .next("delete it to begin anew, or name the file of this copy"))
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
    fn a_state_is_believed_whole_or_not_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("state");
        assert_eq!(State::load(&path).unwrap(), None);
        let state = State::new(ends(), 64, "ab".into(), 9);
        state.save(&path).unwrap();
        assert_eq!(State::load(&path).unwrap(), Some(state.clone()));
        state.fits(&ends()).unwrap();
        assert!(state.fits(&Ends { volume_id: 4, ..ends() }).is_err(), "a volume of that name is another one");
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
