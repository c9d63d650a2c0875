//! Persistent state of a standby: the copy that serves, and the snapshots that it may delete.
//!
//! STANDBY-U1  A snapshot is noted as our own before it is requested, and only noted snapshots are ever deleted,
//!     whatever the names of others.

use crate::config::StandbySlot;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;

/// Maximum number of noted snapshots: with more, deletion has failed at every refresh.
pub const OWN_MAX: usize = 64;

/// Time from the request for a snapshot until no late copy of the request can make it any more.
const LATE_MS: u64 = 10 * 60 * 1000;

/// Pure. Whether a snapshot to be deleted can be forgotten: it is gone, or it does not exist and cannot appear any
/// more. By the time in its name.
pub fn is_over(name: &str, deleted: bool, now_unix_ms: u64) -> bool {
    let asked = name.rsplit('-').next().and_then(|time| time.parse::<u64>().ok()).unwrap_or(0);
    deleted || now_unix_ms.saturating_sub(asked) >= LATE_MS
}

/// The copy that serves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Current {
    /// Its slot.
    pub slot: StandbySlot,
    /// Its snapshot.
    pub snapshot: String,
    /// Time of the request for the snapshot, Unix milliseconds by the gateways' clock.
    pub snapshot_unix_ms: u64,
    /// Start of service, Unix milliseconds.
    pub since_unix_ms: u64,
    /// Duration of the refresh, in milliseconds.
    pub took_ms: u64,
}

/// A refresh that failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Time, Unix milliseconds.
    pub unix_ms: u64,
    /// The reason.
    pub why: String,
}

/// See the module.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The copy that serves, if any.
    #[serde(default)]
    pub current: Option<Current>,
    /// Snapshots that we made, or were about to make, and have not deleted.
    #[serde(default)]
    pub own: Vec<String>,
    /// The last refresh, if it failed.
    #[serde(default)]
    pub failure: Option<Failure>,
    /// Guid of the ZFS pool of the last copy.
    #[serde(default)]
    pub pool: Option<String>,
}

impl State {
    /// Reads the last state; a standby that never ran has an empty one.
    ///
    /// # Errors
    /// The file cannot be read, or has another format.
    pub fn read(dir: &Path) -> Result<Self, String> {
        let path = dir.join("state.json");
        match std::fs::read(&path) {
            Ok(text) => serde_json::from_slice(&text).map_err(|error| format!("{}: {error}", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// Writes it atomically.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn write(&self, dir: &Path) -> Result<(), String> {
        let (path, new) = (dir.join("state.json"), dir.join("state.json.new"));
        let write = || {
            let text = serde_json::to_vec_pretty(self)?;
            let file = std::fs::File::create(&new)?;
            io::Write::write_all(&mut &file, &text)?;
            file.sync_all()?;
            std::fs::rename(&new, &path)?;
            std::fs::File::open(dir)?.sync_all()
        };
        write().map_err(|error: io::Error| format!("{}: {error}", path.display()))
    }

    /// The name of a new snapshot, noted as our own (STANDBY-U1).
    ///
    /// # Errors
    /// Too many snapshots could not be deleted.
    pub fn own_snapshot(&mut self, standby: &str, now_unix_ms: u64) -> Result<String, String> {
        if self.own.len() >= OWN_MAX {
            return Err(format!(
                "found {OWN_MAX} snapshots of this standby that could not be deleted, expected fewer: delete {} and others by hand",
                self.own[0]
            ));
        }
        let name = format!("standby-{standby}-{now_unix_ms}");
        self.own.push(name.clone());
        Ok(name)
    }

    /// Our own snapshots that are not needed.
    pub fn unused(&self) -> Vec<String> {
        let used = self.current.as_ref().map(|current| current.snapshot.as_str());
        self.own.iter().filter(|name| Some(name.as_str()) != used).cloned().collect()
    }

    /// It is gone.
    pub fn deleted(&mut self, name: &str) {
        self.own.retain(|own| own != name);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn current(snapshot: &str) -> Current {
        let snapshot = snapshot.to_string();
        Current { slot: StandbySlot::A, snapshot, snapshot_unix_ms: 1, since_unix_ms: 2, took_ms: 3 }
    }

    #[test]
    fn only_what_we_made_and_do_not_use_is_deleted() {
        let mut state = State::default();
        let one = state.own_snapshot("report1", 1_700_000_000_000).unwrap();
        assert_eq!(one, "standby-report1-1700000000000");
        let two = state.own_snapshot("report1", 1_700_000_000_001).unwrap();
        state.current = Some(current(&two));
        assert_eq!(state.unused(), std::slice::from_ref(&one));
        state.deleted(&one);
        assert_eq!(state.own, std::slice::from_ref(&two));
        // A snapshot that a person chose serves: our own one is not needed any more, and theirs is not ours.
        state.current = Some(current("monday"));
        assert_eq!(state.unused(), [two]);
    }

    #[test]
    fn a_snapshot_that_may_come_yet_is_not_forgotten() {
        let at = 1_700_000_000_000;
        let name = State::default().own_snapshot("a-1", at).unwrap();
        assert!(is_over(&name, true, at));
        assert!(!is_over(&name, false, at + LATE_MS - 1));
        assert!(is_over(&name, false, at + LATE_MS));
        assert!(!is_over(&name, false, at - 1), "the clock was set back");
    }

    #[test]
    fn it_is_kept_and_bounded() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(State::read(dir.path()).unwrap(), State::default());
        let mut state = State { current: Some(current("monday")), ..State::default() };
        for at in 0..OWN_MAX as u64 {
            state.own_snapshot("r", at).unwrap();
        }
        assert!(state.own_snapshot("r", 99).unwrap_err().contains("standby-r-0"));
        state.write(dir.path()).unwrap();
        assert_eq!(State::read(dir.path()).unwrap(), state);
        // State of a standby from before ZFS pools were supported.
        std::fs::write(dir.path().join("state.json"), r#"{"current":null,"own":["standby-r-1"]}"#).unwrap();
        let older = State { own: vec!["standby-r-1".into()], ..State::default() };
        assert_eq!(State::read(dir.path()).unwrap(), older);
        std::fs::write(dir.path().join("state.json"), "{").unwrap();
        assert!(State::read(dir.path()).unwrap_err().contains("state.json"));
    }
}
