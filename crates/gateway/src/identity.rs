//! Identity of this node, on the disk itself: a random disk uuid, the member id, and a counter of its starts.
//!
//! A disk that was copied, restored or wiped cannot act as the member it was: peers check uuid and lives (`lives.rs`).

use crate::identity_file::save;
use crate::lives::Lives;
use holdfast_raft::{Life, Lineage};
use serde::{Deserialize, Serialize};
use std::io;
use std::path::Path;

pub use crate::identity_file::IdentityError;

/// The file's name inside the data directory.
const FILE: &str = "identity.json";

/// Layout of the file that this version writes and reads.
const VERSION: u32 = 1;

/// Content of the identity file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    version: u32,
    /// Random uuid of the data directory, made at its first start; 32 hex digits.
    disk: String,
    /// The cluster that adopted it; 32 hex digits, empty before.
    cluster: String,
    /// Its member id, 0 before adoption.
    pub member: u64,
    /// Number of gateway starts on this directory, including this one.
    pub boot: u64,
    /// A journal was created here: every later start must find it.
    journal: bool,
    /// Stored in a file of its own.
    #[serde(skip)]
    lives: Lives,
}

fn hex(value: u128) -> String {
    format!("{value:032x}")
}

impl Identity {
    /// Reads the identity of `dir`, or creates one, and counts this start; on disk before it returns.
    pub fn open(dir: &Path) -> Result<Self, IdentityError> {
        let path = dir.join(FILE);
        let mut identity = match std::fs::read(&path) {
            Ok(bytes) => Self::parse(&path, &bytes)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => Identity {
                version: VERSION,
                disk: hex(holdfast_set::random::random_u128()),
                cluster: String::new(),
                member: 0,
                boot: 0,
                journal: false,
                lives: Lives::default(),
            },
            Err(source) => return Err(IdentityError::Io { path, source }),
        };
        identity.boot = identity.boot.saturating_add(1);
        identity.lives = Lives::read(dir)?;
        identity.lives.begin(identity.boot, rand::random());
        // If this start is cut short in between, it has told nobody of its life (LIFE-V3).
        identity.save(dir)?;
        identity.lives.save(dir)?;
        Ok(identity)
    }

    fn parse(path: &Path, bytes: &[u8]) -> Result<Self, IdentityError> {
        let bad = |reason: String| IdentityError::Bad { path: path.to_path_buf(), reason };
        let identity: Identity = serde_json::from_slice(bytes).map_err(|e| bad(e.to_string()))?;
        if identity.version != VERSION {
            return Err(bad(format!("found version {}, expected {VERSION}", identity.version)));
        }
        let whole = u128::from_str_radix(&identity.disk, 16).is_ok_and(|v| hex(v) == identity.disk && v != 0);
        let adopted = identity.cluster.is_empty() == (identity.member == 0);
        if !whole || !adopted {
            return Err(bad("the disk uuid or the membership is malformed".to_string()));
        }
        Ok(identity)
    }

    fn save(&self, dir: &Path) -> Result<(), IdentityError> {
        save(dir, FILE, self)
    }

    /// Uuid of the data directory.
    pub fn disk(&self) -> u128 {
        u128::from_str_radix(&self.disk, 16).unwrap_or_default()
    }

    /// The cluster, once adopted.
    pub fn cluster(&self) -> Option<u128> {
        u128::from_str_radix(&self.cluster, 16).ok()
    }

    /// Becomes `member` of `cluster` for good; on disk before it returns. A repeated call changes nothing.
    ///
    /// # Errors
    /// It is already another member, or a member of another cluster; or [`IdentityError::Io`].
    pub fn adopt(&mut self, dir: &Path, cluster: u128, member: u64) -> Result<(), IdentityError> {
        if self.member == member && self.cluster() == Some(cluster) {
            return Ok(());
        }
        if self.member != 0 {
            let cluster = self.cluster.clone();
            return Err(IdentityError::Adopted { member: self.member, cluster, asked: member });
        }
        let next = Identity { cluster: hex(cluster), member, ..self.clone() };
        next.save(dir)?;
        *self = next;
        Ok(())
    }
}

impl Identity {
    /// The life of this process, and the earlier lives that the disk remembers.
    pub fn lineage(&self) -> Lineage {
        let ((boot, nonce), before) = self.lives.told();
        Lineage { life: Life { disk: self.disk(), boot, nonce }, before }
    }

    /// Whether this process has drawn the life with this counter and this nonce, and no earlier process of this disk.
    pub fn is_of_this_process(&self, boot: u64, nonce: u64) -> bool {
        self.lives.is_of_this_process(boot, nonce)
    }

    /// The current life is about to be sent to peers. On disk before it returns.
    ///
    /// # Errors
    /// [`IdentityError::Io`].
    pub fn life_used(&mut self, dir: &Path) -> Result<Lineage, IdentityError> {
        self.change_lives(dir, Lives::used)
    }

    /// This process continues under a new life, if there is room for one. On disk before it returns.
    ///
    /// # Errors
    /// [`IdentityError::Io`]: the process continues under the current life.
    pub fn renew_life(&mut self, dir: &Path) -> Result<Lineage, IdentityError> {
        self.change_lives(dir, |lives| lives.renew(rand::random()))
    }

    /// `life` is registered: the earlier ones are dropped.
    ///
    /// # Errors
    /// [`IdentityError::Io`]: they stay until the next call.
    pub fn life_registered(&mut self, dir: &Path, life: &Life) -> Result<Lineage, IdentityError> {
        self.change_lives(dir, |lives| lives.registered(life.boot))
    }

    /// Takes over these lives, whatever else has changed meanwhile.
    pub(crate) fn with_lives_of(self, other: &Self) -> Self {
        Self { lives: other.lives.clone(), ..self }
    }

    fn change_lives(&mut self, dir: &Path, change: impl FnOnce(&mut Lives) -> bool) -> Result<Lineage, IdentityError> {
        let mut next = self.lives.clone();
        if change(&mut next) {
            next.save(dir)?;
            self.lives = next;
        }
        Ok(self.lineage())
    }

    /// Call this before the journal in `journal` is opened. If a journal was created here, the folder must contain a
    /// file of it. With an empty folder (a lost mount, or files deleted to free space), the member would have forgotten
    /// its votes and what it acknowledged.
    ///
    /// # Errors
    /// [`IdentityError::JournalGone`], or [`IdentityError::Io`].
    pub fn check_journal(&self, journal: &Path) -> Result<(), IdentityError> {
        // Other files beside the journal's: its lock, and files prepared for later.
        let beside = |name: &str| name == "lock" || ["ready-", "fill-", "begin-"].iter().any(|of| name.starts_with(of));
        if !self.journal {
            return Ok(());
        }
        let io = |source| IdentityError::Io { path: journal.to_path_buf(), source };
        let mut none = true;
        match std::fs::read_dir(journal) {
            Ok(entries) => {
                for entry in entries {
                    none &= beside(&entry.map_err(io)?.file_name().to_string_lossy());
                }
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(io(error)),
        }
        if none {
            return Err(IdentityError::JournalGone { path: journal.to_path_buf(), member: self.member });
        }
        Ok(())
    }

    /// The journal was opened: from now on it must exist. On disk before it returns.
    ///
    /// # Errors
    /// [`IdentityError::Io`].
    pub fn journal_begun(&mut self, dir: &Path) -> Result<(), IdentityError> {
        if !self.journal {
            let next = Identity { journal: true, ..self.clone() };
            next.save(dir)?;
            *self = next;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_testkit::golden::{Written, kept};

    /// What an earlier build has written is read, and this one writes the same.
    #[test]
    fn the_text_is_pinned() -> Result<(), Box<dyn std::error::Error>> {
        let text = |boot: u64| {
            let (disk, cluster) = ("0000000000000000000000000000000b", "0000000000000000000000000000004d");
            let fields = [
                "\"version\": 1".to_string(),
                format!("\"disk\": \"{disk}\""),
                format!("\"cluster\": \"{cluster}\""),
                "\"member\": 3".to_string(),
                format!("\"boot\": {boot}"),
                "\"journal\": true".to_string(),
            ];
            format!("{{\n  {}\n}}", fields.join(",\n  "))
        };
        let dir = tempfile::tempdir()?;
        std::fs::write(dir.path().join(FILE), text(6))?;
        let identity = Identity::open(dir.path())?;
        assert_eq!((identity.disk(), identity.cluster(), identity.member, identity.boot), (11, Some(77), 3, 7));
        assert_eq!(std::fs::read_to_string(dir.path().join(FILE))?, text(7));
        let read = |bytes: &[u8]| {
            let dir = tempfile::tempdir().ok()?;
            std::fs::write(dir.path().join(FILE), bytes).ok()?;
            let identity = Identity::open(dir.path()).ok()?;
            Some((identity.disk(), identity.cluster(), identity.member, identity.boot))
        };
        let expected = Some((11, Some(77), 3, 8));
        kept(env!("CARGO_MANIFEST_DIR"), FILE, Written::Pinned(text(7).as_bytes()), &expected, read);
        Ok(())
    }

    #[test]
    fn counts_starts_and_is_adopted_once() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        let first = Identity::open(dir.path())?;
        let mut second = Identity::open(dir.path())?;
        assert_eq!((first.boot, second.boot, first.disk()), (1, 2, second.disk()));
        second.adopt(dir.path(), 77, 3)?;
        second.adopt(dir.path(), 77, 3)?;
        assert!(matches!(second.adopt(dir.path(), 77, 4), Err(IdentityError::Adopted { member: 3, .. })));
        assert!(second.adopt(dir.path(), 78, 3).is_err());
        let third = Identity::open(dir.path())?;
        assert_eq!((third.member, third.cluster(), third.boot), (3, Some(77), 3));
        let journal = dir.path().join("journal");
        let mut third = third;
        third.check_journal(&journal)?;
        third.journal_begun(dir.path())?;
        assert!(matches!(third.check_journal(&journal), Err(IdentityError::JournalGone { member: 3, .. })));
        // A folder that cannot be listed is not missing.
        std::fs::write(&journal, b"")?;
        assert!(matches!(third.check_journal(&journal), Err(IdentityError::Io { .. })));
        std::fs::remove_file(&journal)?;
        std::fs::create_dir(&journal)?;
        assert!(Identity::open(dir.path())?.check_journal(&journal).is_err());
        for beside in ["lock", "ready-3"] {
            std::fs::write(journal.join(beside), b"y")?;
            assert!(third.check_journal(&journal).is_err(), "{beside}");
        }
        std::fs::write(journal.join("journal-0000000000000001"), b"y")?;
        third.check_journal(&journal)?;
        std::fs::write(dir.path().join(FILE), b"{}")?;
        assert!(matches!(Identity::open(dir.path()), Err(IdentityError::Bad { .. })));
        Ok(())
    }
}
