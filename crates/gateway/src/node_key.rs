//! The key of this node's own files: `node.key` in the data directory, wrapped by the cluster key (R10).
//!
//! Random and this node's alone: a change of the cluster key wraps it anew and leaves journal and snapshots as they are. Who takes a
//! disk without the cluster key reads nothing of it but names of files, group numbers, indexes and lengths.

use holdfast_log::Sealing;
use holdfast_seal::{NODE_KEY_BYTES, NodeKey, SealError, node_wrapped_by};
use holdfast_set::keyring::ClusterKeys;
use rand::Rng;
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

/// The file's name inside the data directory.
const FILE: &str = "node.key";

/// The node key cannot be had.
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
    /// It is not this node's, or the cluster key is another one.
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
}

/// What this node's files are sealed with: the key in `dir`, made there where `wanted` and none is; on disk before it returns.
/// Not `wanted`: a key that is there still opens what was sealed before.
///
/// # Errors
/// [`NodeKeyError`].
pub fn open(dir: &Path, disk: u128, cluster: &ClusterKeys, wanted: bool) -> Result<Option<Sealing>, NodeKeyError> {
    let path = dir.join(FILE);
    let failed = |source| NodeKeyError::Io { path: path.clone(), source };
    let key = match std::fs::read(&path) {
        Ok(wrapped) => {
            cluster.unwrap_node(&wrapped, disk).map_err(|source| NodeKeyError::Bad { path: path.clone(), source })?
        }
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
    Ok(Some(Sealing { key, new_files: wanted }))
}

/// Which cluster key wraps the node key in `dir`; `None` where there is none.
///
/// # Errors
/// [`NodeKeyError`].
pub fn wrapped_now(dir: &Path) -> Result<Option<u64>, NodeKeyError> {
    let path = dir.join(FILE);
    match std::fs::read(&path) {
        // What is no wrapped key is told where it is opened; here it is of no key that anybody has.
        Ok(wrapped) => Ok(Some(node_wrapped_by(&wrapped).map_or(0, |by| by.0))),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(NodeKeyError::Io { path, source }),
    }
}

/// Wraps the node key in `dir` by the current cluster key, on disk before it returns; the key itself stays, and with it journal and
/// snapshots. The old file is whole until the new one is.
///
/// # Errors
/// [`NodeKeyError`]; the file is then as it was.
pub fn rewrap(dir: &Path, disk: u128, cluster: &ClusterKeys) -> Result<(), NodeKeyError> {
    let current = cluster.current();
    if wrapped_now(dir)?.is_none_or(|by| by == current.fingerprint().0) {
        return Ok(());
    }
    let path = dir.join(FILE);
    let failed = |source| NodeKeyError::Io { path: path.clone(), source };
    let bad = |source| NodeKeyError::Bad { path: path.clone(), source };
    let key = cluster.unwrap_node(&std::fs::read(&path).map_err(failed)?, disk).map_err(bad)?;
    let mut nonce = [0; 24];
    rand::rng().fill_bytes(&mut nonce);
    save(dir, &path, &current.wrap_node(&key, disk, nonce)).map_err(failed)?;
    tracing::info!(path = %path.display(), by = %current.fingerprint(), "the key of this node's files is wrapped by the new cluster key");
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

#[cfg(test)]
mod tests {
    use super::*;

    fn cluster(byte: u8) -> ClusterKeys {
        ClusterKeys::of_bytes(byte, None)
    }

    #[test]
    fn wrapped_anew_it_is_the_same_key_and_opens_by_the_new_one_alone() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        rewrap(dir.path(), 5, &cluster(2))?;
        assert_eq!(wrapped_now(dir.path())?, None, "none is made");
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
        assert!(open(dir.path(), 5, &cluster(1), true).is_err(), "the old key opens nothing any more");
        Ok(())
    }

    #[test]
    fn made_once_and_found_again() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        assert!(open(dir.path(), 5, &cluster(1), false)?.is_none(), "not wanted, and none there");
        let made = open(dir.path(), 5, &cluster(1), true)?.expect("wanted");
        let found = open(dir.path(), 5, &cluster(1), true)?.expect("there");
        assert_eq!(made.key.fingerprint(), found.key.fingerprint());
        let off = open(dir.path(), 5, &cluster(1), false)?.expect("what was sealed before must open");
        assert!(!off.new_files && found.new_files);
        Ok(())
    }

    #[test]
    fn another_cluster_key_another_disk_and_damage_are_told() -> Result<(), Box<dyn std::error::Error>> {
        let dir = tempfile::tempdir()?;
        open(dir.path(), 5, &cluster(1), true)?;
        let told =
            |cluster: ClusterKeys, disk| open(dir.path(), disk, &cluster, true).expect_err("refused").to_string();
        assert!(told(cluster(2), 5).contains("another passphrase or key file"));
        assert!(told(cluster(1), 6).contains("expected disk"));
        std::fs::write(dir.path().join(FILE), b"short")?;
        assert!(told(cluster(1), 5).contains("found 5 bytes"));
        Ok(())
    }
}
