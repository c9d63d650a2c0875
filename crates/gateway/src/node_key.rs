//! The key for this node's own files: `node.key` in the data directory, wrapped by the cluster key (R10).
//!
//! The key is random and belongs to this node only. A change of the cluster key rewraps it and leaves journal and
//! snapshots as they are. Without the cluster key, a stolen disk reveals only file names, group numbers, indexes and
//! lengths.

use holdfast_log::Sealing;
use holdfast_seal::{KeyFingerprint, NODE_KEY_BYTES, NodeKey, SealError, node_wrapped_by};
use holdfast_set::keyring::ClusterKeys;
use rand::Rng;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The file's name inside the data directory.
const FILE: &str = "node.key";

/// The node key is not available.
#[derive(Debug, thiserror::Error)]
pub enum NodeKeyError {
    /// Reading or writing it.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// It belongs to another node, or is damaged.
    #[error(
        "{path}: {source}; restore the file, or move the data directory away, start empty, and join in place of this member (holdfast gateway replace)"
    )]
    Bad {
        /// The file.
        path: PathBuf,
        /// What was found and expected.
        #[source]
        source: SealError,
    },
    /// It is wrapped by a cluster key that this gateway does not have.
    #[error(
        "{path}: {source}; the data directory is intact: put the cluster key that wrapped it back into [key], \
         or into [key_previous] during a change of keys (holdfast key rotate-cluster --help)"
    )]
    OtherKey {
        /// The file.
        path: PathBuf,
        /// Both keys.
        #[source]
        source: SealError,
    },
}

impl NodeKeyError {
    /// A wrong cluster key is no damage: whoever moved the data directory away for it would lose the journal.
    fn unopened(path: &Path, source: SealError) -> Self {
        let path = path.to_path_buf();
        match source {
            SealError::WrongClusterKey { .. } => Self::OtherKey { path, source },
            source => Self::Bad { path, source },
        }
    }
}

/// The key that seals this node's files. If `dir` has none and `wanted` is true, makes one, on disk before it returns.
/// If `wanted` is false, an existing key still opens what was sealed before.
pub fn open(dir: &Path, disk: u128, cluster: &ClusterKeys, wanted: bool) -> Result<Option<Sealing>, NodeKeyError> {
    let path = dir.join(FILE);
    let failed = |source| NodeKeyError::Io { path: path.clone(), source };
    let key = match std::fs::read(&path) {
        Ok(wrapped) => cluster.unwrap_node(&wrapped, disk).map_err(|source| NodeKeyError::unopened(&path, source))?,
        Err(e) if e.kind() == io::ErrorKind::NotFound && !wanted => return Ok(None),
        Err(e) if e.kind() == io::ErrorKind::NotFound => {
            let (mut bytes, mut nonce) = ([0; NODE_KEY_BYTES], [0; 24]);
            rand::rng().fill_bytes(&mut bytes);
            rand::rng().fill_bytes(&mut nonce);
            let key = NodeKey::from_bytes(bytes);
            save(dir, &path, &cluster.current().wrap_node(&key, disk, nonce)).map_err(failed)?;
            tracing::info!(path = %path.display(), key = %key.fingerprint(), "made the key of this node's journal and snapshots");
            key
        }
        Err(source) => return Err(failed(source)),
    };
    Ok(Some(Sealing { clear_bytes: holdfast_volume::entry::clear_bytes, ..Sealing::new(key, wanted) }))
}

/// The cluster key that wraps the node key in `dir`; `None` if there is no node key.
pub fn wrapped_now(dir: &Path) -> Result<Option<u64>, NodeKeyError> {
    let path = dir.join(FILE);
    match std::fs::read(&path) {
        // An invalid file is reported when it is opened. Here it counts as wrapped by an unknown key.
        Ok(wrapped) => Ok(Some(node_wrapped_by(&wrapped).map_or(0, |by| by.0))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(NodeKeyError::Io { path, source }),
    }
}

/// Whether one of these cluster keys is the one that wraps the node key in `dir`. Also if there is none yet, or a
/// damaged one: a start tells of that.
///
/// # Errors
/// [`NodeKeyError::OtherKey`]; [`NodeKeyError::Io`] if it cannot be read.
pub fn check(dir: &Path, cluster: &ClusterKeys) -> Result<(), NodeKeyError> {
    match wrapped_now(dir)?.map(KeyFingerprint) {
        Some(found) if found.0 != 0 && cluster.get(found).is_none() => {
            let expected = cluster.current().fingerprint();
            Err(NodeKeyError::unopened(&dir.join(FILE), SealError::WrongClusterKey { found, expected }))
        }
        _ => Ok(()),
    }
}

/// Rewraps the node key in `dir` with the current cluster key, on disk before it returns. The key itself stays, and so
/// do journal and snapshots. The old file stays intact until the new one is complete.
///
/// # Errors
/// [`NodeKeyError`]; the file is then unchanged.
pub fn rewrap(dir: &Path, disk: u128, cluster: &ClusterKeys) -> Result<(), NodeKeyError> {
    let current = cluster.current();
    if wrapped_now(dir)?.is_none_or(|by| by == current.fingerprint().0) {
        return Ok(());
    }
    let path = dir.join(FILE);
    let failed = |source| NodeKeyError::Io { path: path.clone(), source };
    let unopened = |source| NodeKeyError::unopened(&path, source);
    let key = cluster.unwrap_node(&std::fs::read(&path).map_err(failed)?, disk).map_err(unopened)?;
    let mut nonce = [0; 24];
    rand::rng().fill_bytes(&mut nonce);
    save(dir, &path, &current.wrap_node(&key, disk, nonce)).map_err(failed)?;
    tracing::info!(path = %path.display(), by = %current.fingerprint(), "the key of this node's files is now wrapped by the new cluster key");
    Ok(())
}

fn save(dir: &Path, path: &Path, wrapped: &[u8]) -> io::Result<()> {
    let beside = path.with_extension("key.new");
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&beside)?;
    file.write_all(wrapped)?;
    file.sync_all()?;
    std::fs::rename(&beside, path)?;
    std::fs::File::open(dir)?.sync_all()
}

/// A cluster key for tests, in a file of this user alone.
///
/// # Panics
/// If it cannot be written.
#[cfg(test)]
pub fn write_key(path: &Path) {
    let mut file =
        std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path).expect("a key file");
    file.write_all(&[7; 32]).expect("a key");
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_seal::{ENTRY_KEY_BYTES, EntryKey};
    use holdfast_types::{Epoch, Lba, Sectors, VolumeId, WriteSeq};
    use holdfast_volume::entry::{EntryBuilder, OpKind};

    fn cluster(byte: u8) -> ClusterKeys {
        ClusterKeys::of_bytes(byte, None)
    }

    #[test]
    fn wrapped_anew_it_is_the_same_key_and_opens_by_the_new_one_alone() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        rewrap(dir.path(), 5, &cluster(2))?;
        assert_eq!(wrapped_now(dir.path())?, None, "no key file");
        let made = open(dir.path(), 5, &cluster(1), true)?.expect("wanted");
        assert!(rewrap(dir.path(), 5, &cluster(2)).is_err(), "without the old key");
        let both = ClusterKeys::of_bytes(2, Some(1));
        let early = open(dir.path(), 5, &both, true)?.expect("there");
        for _ in 0..2 {
            rewrap(dir.path(), 5, &both)?;
            assert_eq!(wrapped_now(dir.path())?, Some(both.current().fingerprint().0));
        }
        let found = open(dir.path(), 5, &cluster(2), true)?.expect("there");
        assert_eq!(made.key.fingerprint(), found.key.fingerprint());
        assert_eq!(early.key.fingerprint(), found.key.fingerprint());
        assert!(open(dir.path(), 5, &cluster(1), true).is_err(), "the old cluster key no longer opens it");
        Ok(())
    }

    #[test]
    fn made_once_and_found_again() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        assert!(open(dir.path(), 5, &cluster(1), false)?.is_none(), "not wanted, and there is no key");
        let made = open(dir.path(), 5, &cluster(1), true)?.expect("wanted");
        let found = open(dir.path(), 5, &cluster(1), true)?.expect("there");
        assert_eq!(made.key.fingerprint(), found.key.fingerprint());
        let off = open(dir.path(), 5, &cluster(1), false)?.expect("sealed data must still open");
        assert!(!off.new_files && found.new_files);
        Ok(())
    }

    /// ENTRY-E6: the front of an entry has the key of the data behind it.
    #[test]
    fn the_journal_seals_the_front_of_an_entry() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        let sealing = open(dir.path(), 5, &cluster(1), true)?.expect("wanted");
        let (mut entry, key) = (EntryBuilder::new(Epoch(1), WriteSeq(1)), [4; ENTRY_KEY_BYTES]);
        assert!(entry.try_push(OpKind::Write, VolumeId(1), Lba(0), Sectors(1), vec![1; 512].into()));
        let entry = entry.finish_sealed(EntryKey::new(key));
        let clear = (sealing.clear_bytes)(&entry);
        let key_ends = entry.windows(key.len()).position(|part| part == key).expect("in the entry") + key.len();
        assert!((key_ends..=entry.len() - 512).contains(&clear), "{clear} of {}", entry.len());
        Ok(())
    }

    #[test]
    fn a_check_finds_a_wrong_cluster_key_before_a_start() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        check(dir.path(), &cluster(1))?;
        open(dir.path(), 5, &cluster(1), true)?;
        check(dir.path(), &cluster(1))?;
        check(dir.path(), &ClusterKeys::of_bytes(2, Some(1)))?;
        assert!(matches!(check(dir.path(), &cluster(2)), Err(NodeKeyError::OtherKey { .. })));
        Ok(())
    }

    #[test]
    fn another_cluster_key_another_disk_and_damage_are_told() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        open(dir.path(), 5, &cluster(1), true)?;
        let told =
            |cluster: ClusterKeys, disk| open(dir.path(), disk, &cluster, true).expect_err("refused").to_string();
        // A wrong cluster key must not cost the journal.
        let other = told(cluster(2), 5);
        assert!(other.contains("another passphrase or key file") && other.contains("[key_previous]"), "{other}");
        assert!(!other.contains("move the data directory"), "{other}");
        assert!(told(cluster(1), 6).contains("expected disk"));
        std::fs::write(dir.path().join(FILE), b"short")?;
        let damaged = told(cluster(1), 5);
        assert!(damaged.contains("found 5 bytes") && damaged.contains("move the data directory away"), "{damaged}");
        Ok(())
    }
}
