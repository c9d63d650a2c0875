//! Loads the cluster keys from a key file, or from a passphrase in a file or an environment variable: the current key,
//! and during a change of the key also the previous one.

use crate::set_key::SetKey;
use holdfast_control::cluster::SetEntry;
use holdfast_seal::{
    ClusterKey, DataKey, KeyFingerprint, NodeKey, SealError, node_wrapped_by, ring_wrapped_by, split_ring, wrapped_by,
};
use holdfast_tls::files::{self, SECRET_BYTES_MAX};
use holdfast_types::SetId;
use holdfast_volume::head::{Argon2id, Keyring};
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// Salt of the key derivation if `passphrase_kdf` is not set: used by every gateway of every cluster before that
/// setting existed. Equal passphrases then give equal keys.
pub const PASSPHRASE_SALT: [u8; 16] = *b"holdfast-cluster";

/// Advice if the key file is missing.
const MAKE_KEY: &str = "create it with: head -c 32 /dev/urandom > KEYFILE; chmod 600 KEYFILE";

/// … and if the passphrase file is missing.
const MAKE_PASSPHRASE: &str = "write the passphrase into it, one line of text; chmod 600 FILE";

/// Source of a cluster key: exactly one of file, passphrase file and environment variable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySource {
    /// File with the key: 32 random bytes, or 64 hex digits.
    pub file: Option<PathBuf>,
    /// File with a passphrase, one line.
    pub passphrase_file: Option<PathBuf>,
    /// Name of the environment variable that holds a passphrase.
    pub passphrase_env: Option<String>,
    /// Derivation of the key from the passphrase: parameters and salt of Argon2id. `None`: a salt that all clusters
    /// share.
    pub passphrase_kdf: Option<String>,
}

impl KeySource {
    /// Whether any source is set.
    pub fn any(&self) -> bool {
        self.file.is_some() || self.passphrase_file.is_some() || self.passphrase_env.is_some()
    }
}

/// The cluster key cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A file cannot be read.
    #[error("{path}: {source}; {next}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
        /// Advice for the user.
        next: &'static str,
    },
    /// A file that is much longer than any key or passphrase.
    #[error("{path}: {source}: it is neither a key nor a passphrase")]
    Long {
        /// The file.
        path: PathBuf,
        /// The found and expected values.
        #[source]
        source: std::io::Error,
    },
    /// The variable is not set.
    #[error("environment variable {name}: found none, expected a passphrase")]
    Env {
        /// Its name.
        name: String,
    },
    /// The content is not a key.
    #[error("{place}: {source}")]
    Bad {
        /// Its source.
        place: String,
        /// The reason.
        #[source]
        source: SealError,
    },
    /// No source is set.
    #[error("[key]: found no source, expected one of file, passphrase_file, passphrase_env")]
    None,
}

/// One cluster key, with its derivation if it comes from a passphrase.
#[derive(Debug)]
struct Known {
    key: ClusterKey,
    passphrase: Argon2id,
}

/// The known cluster keys: the one that wraps, and during a change also the previous one.
#[derive(Debug)]
pub struct ClusterKeys {
    current: Known,
    previous: Option<Known>,
    /// For reading a store with only a passphrase: the store says how its key is derived.
    source: Option<KeySource>,
}

impl ClusterKeys {
    /// Loads a gateway's keys: `[key]`, and `[key_previous]` if it names a source.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn load(current: &KeySource, previous: &KeySource) -> Result<Self, KeyError> {
        let previous = if previous.any() { Some(load(previous, None)?) } else { None };
        Ok(Self { current: load(current, None)?, previous, source: None })
    }

    /// Loads the key of `config` for reading a store; a passphrase is used with the derivation that the store names.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn of_store(config: &KeySource) -> Result<Self, KeyError> {
        Ok(Self { current: load(config, None)?, previous: None, source: Some(config.clone()) })
    }

    /// The key that wraps new keys.
    pub fn current(&self) -> &ClusterKey {
        &self.current.key
    }

    /// The key that still opens older ones.
    pub fn previous(&self) -> Option<&ClusterKey> {
        self.previous.as_ref().map(|known| &known.key)
    }

    fn known(&self, fingerprint: KeyFingerprint) -> Option<&Known> {
        let all = std::iter::once(&self.current).chain(&self.previous);
        all.into_iter().find(|known| known.key.fingerprint() == fingerprint)
    }

    /// The key with this fingerprint, if known.
    pub fn get(&self, fingerprint: KeyFingerprint) -> Option<&ClusterKey> {
        self.known(fingerprint).map(|known| &known.key)
    }

    /// The key that wrapped it; otherwise the current one, which then reports the error.
    fn by(&self, wrapped_by: Option<KeyFingerprint>) -> &ClusterKey {
        wrapped_by.and_then(|by| self.get(by)).unwrap_or(&self.current.key)
    }

    /// Opens a set's data key with the cluster key that wrapped it.
    ///
    /// # Errors
    /// [`SealError`] of the current key, if none is right.
    pub fn unwrap(&self, wrapped: &[u8], set: SetId, key_id: u32) -> Result<DataKey, SealError> {
        self.by(wrapped_by(wrapped)).unwrap(wrapped, set, key_id)
    }

    /// Opens all data keys of a set.
    ///
    /// # Errors
    /// [`SealError`] of the first that does not open.
    pub fn unwrap_ring(&self, ring: &[u8], set: SetId) -> Result<BTreeMap<u32, DataKey>, SealError> {
        split_ring(ring)?.into_iter().map(|(id, wrapped)| Ok((id, self.unwrap(wrapped, set, id)?))).collect()
    }

    /// The data keys of a set, as in group 0.
    ///
    /// # Errors
    /// [`SealError`] of the first that does not open, or if the sealing key is missing.
    pub fn set_key(&self, set: SetId, entry: &SetEntry) -> Result<SetKey, SealError> {
        of_ring(set, self.unwrap_ring(&entry.wrapped_key, set)?, entry.key_id)
    }

    /// Opens the key of this node's files with the cluster key that wrapped it.
    ///
    /// # Errors
    /// [`SealError`] of the current key, if none is right.
    pub fn unwrap_node(&self, wrapped: &[u8], disk: u128) -> Result<NodeKey, SealError> {
        self.by(node_wrapped_by(wrapped)).unwrap_node(wrapped, disk)
    }

    /// Opens the keyring of a head that is under `key_id`.
    ///
    /// # Errors
    /// The reason, as text for users.
    pub fn open_keyring(&self, keyring: &Keyring, set: SetId, key_id: u32) -> Result<SetKey, String> {
        let ring = &keyring.wrapped_key;
        let error = match self.unwrap_ring(ring, set).and_then(|keys| of_ring(set, keys, key_id)) {
            Err(error @ SealError::WrongClusterKey { .. }) => error,
            outcome => return outcome.map_err(|e| e.to_string()),
        };
        match &self.source {
            Some(source) if source.file.is_none() && keyring.passphrase != self.current.passphrase => {
                let known = load(source, Some(keyring.passphrase)).map_err(|e| e.to_string())?;
                let open = |(id, wrapped)| Ok((id, known.key.unwrap(wrapped, set, id)?));
                let keys = split_ring(ring).and_then(|ring| ring.into_iter().map(open).collect());
                keys.and_then(|keys| of_ring(set, keys, key_id)).map_err(|e: SealError| e.to_string())
            }
            // A passphrase with other parameters gives another key: name the parameters, which are not secret.
            _ if keyring.passphrase != self.current.passphrase => {
                Err(format!("{error}; if it is a passphrase's, it needs passphrase_kdf = \"{}\"", keyring.passphrase))
            }
            _ => Err(error.to_string()),
        }
    }

    /// The keyring for a set's head, with which the cluster key alone opens it.
    pub fn keyring_of(&self, entry: &SetEntry) -> Keyring {
        let known = ring_wrapped_by(&entry.wrapped_key).and_then(|by| self.known(by)).unwrap_or(&self.current);
        Keyring { wrapped_key: entry.wrapped_key.clone(), passphrase: known.passphrase }
    }

    /// The key that wraps a new set's data key: the same as for the newest set. So every gateway can open it between
    /// the change of the settings and the change of the key.
    ///
    /// # Errors
    /// That key is not known here.
    pub fn for_new_set(&self, sets: &BTreeMap<SetId, SetEntry>) -> Result<&ClusterKey, KeyFingerprint> {
        match sets.values().next_back().and_then(|entry| ring_wrapped_by(&entry.wrapped_key)) {
            Some(by) => self.get(by).ok_or(by),
            None => Ok(&self.current.key),
        }
    }

    /// For tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_bytes(byte: u8, previous: Option<u8>) -> Self {
        let known = |byte: u8| Known {
            key: ClusterKey::from_key_file(&[byte; 32]).expect("32 bytes"),
            passphrase: Argon2id::ours(PASSPHRASE_SALT),
        };
        Self { current: known(byte), previous: previous.map(known), source: None }
    }
}

fn of_ring(set: SetId, keys: BTreeMap<u32, DataKey>, seals: u32) -> Result<SetKey, SealError> {
    let newest = keys.keys().next_back().copied().unwrap_or(0);
    SetKey::of_ring(set, keys, seals).ok_or(SealError::WrappedKeyId { found: newest, expected: seals })
}

/// A derivation of a key from a passphrase, with a new random salt.
pub fn new_passphrase_kdf() -> Argon2id {
    Argon2id::ours(crate::random::random_u128().to_le_bytes())
}

/// Warns of a readable key file: access to the cluster key gives access to all data.
fn warn_of_readers(path: &Path) {
    let mode = std::fs::metadata(path).map_or(0, |meta| meta.permissions().mode() & 0o777);
    if mode & 0o077 != 0 {
        tracing::warn!(file = %path.display(), mode = format!("{mode:03o}"), "other users can read the cluster key: chmod 600");
    }
}

fn unread(path: &Path, source: std::io::Error, next: &'static str) -> KeyError {
    let path = path.to_path_buf();
    match source.kind() {
        ErrorKind::FileTooLarge => KeyError::Long { path, source },
        _ => KeyError::Read { path, source, next },
    }
}

/// Loads the cluster key from the one source that `config` names; a passphrase with the derivation `by`, otherwise with
/// the one in the settings.
fn load(config: &KeySource, by: Option<Argon2id>) -> Result<Known, KeyError> {
    let written = config.passphrase_kdf.as_deref().map(str::parse).transpose();
    let written = written.map_err(|source| KeyError::Bad { place: "passphrase_kdf".to_string(), source })?;
    let passphrase_by = by.or(written).unwrap_or(Argon2id::ours(PASSPHRASE_SALT));
    let known = |key| Known { key, passphrase: passphrase_by };
    for path in config.file.iter().chain(&config.passphrase_file) {
        warn_of_readers(path);
    }
    if let Some(path) = &config.file {
        let content = files::read(path, SECRET_BYTES_MAX).map_err(|source| unread(path, source, MAKE_KEY))?;
        return ClusterKey::from_key_file(&content)
            .map(known)
            .map_err(|source| KeyError::Bad { place: path.display().to_string(), source });
    }
    let (place, passphrase) = if let Some(path) = &config.passphrase_file {
        let text = files::read_text(path, SECRET_BYTES_MAX).map_err(|source| unread(path, source, MAKE_PASSPHRASE))?;
        (path.display().to_string(), text.trim_end_matches(['\r', '\n']).to_string())
    } else if let Some(name) = &config.passphrase_env {
        let text = std::env::var(name).map_err(|_| KeyError::Env { name: name.clone() })?;
        (format!("environment variable {name}"), text)
    } else {
        return Err(KeyError::None);
    };
    ClusterKey::from_passphrase_by(&passphrase, &passphrase_by)
        .map(known)
        .map_err(|source| KeyError::Bad { place, source })
}

#[cfg(test)]
mod tests;
