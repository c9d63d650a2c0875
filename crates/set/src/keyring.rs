//! Where the cluster keys come from: a key file, or a passphrase in a file or an environment variable; the present one, and while it is
//! changed the one before.

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

/// Salt of a passphrase's derivation where `passphrase_kdf` is not set: what every gateway of every cluster used before there was such a
/// setting. Equal passphrases give equal keys then.
pub const PASSPHRASE_SALT: [u8; 16] = *b"holdfast-cluster";

/// What a person does who has no key file.
const MAKE_KEY: &str = "create it with: head -c 32 /dev/urandom > KEYFILE; chmod 600 KEYFILE";

/// … and no file with a passphrase.
const MAKE_PASSPHRASE: &str = "write the passphrase into it, one line of text; chmod 600 FILE";

/// Where a cluster key is found: exactly one of file, passphrase file and environment variable.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySource {
    /// File with the key: 32 random bytes, or the same as 64 hex digits.
    pub file: Option<PathBuf>,
    /// File with a passphrase, one line.
    pub passphrase_file: Option<PathBuf>,
    /// Name of the environment variable that holds a passphrase.
    pub passphrase_env: Option<String>,
    /// How the key is derived from the passphrase: parameters and salt of Argon2id. `None`: a salt that all clusters share.
    pub passphrase_kdf: Option<String>,
}

impl KeySource {
    /// Whether any source is named.
    pub fn any(&self) -> bool {
        self.file.is_some() || self.passphrase_file.is_some() || self.passphrase_env.is_some()
    }
}

/// The cluster key cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A file.
    #[error("{path}: {source}; {next}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
        /// What a person does about it.
        next: &'static str,
    },
    /// A file that is far longer than any key or passphrase.
    #[error("{path}: {source}: it is no key and no passphrase")]
    Long {
        /// The file.
        path: PathBuf,
        /// What was found and expected.
        #[source]
        source: std::io::Error,
    },
    /// The variable.
    #[error("environment variable {name}: found none, expected a passphrase")]
    Env {
        /// Its name.
        name: String,
    },
    /// What was found is no key.
    #[error("{place}: {source}")]
    Bad {
        /// Where it was found.
        place: String,
        /// The reason.
        #[source]
        source: SealError,
    },
    /// No source is set.
    #[error("[key]: found no source, expected one of file, passphrase_file, passphrase_env")]
    None,
}

/// One cluster key, and how it comes from its passphrase if it does.
#[derive(Debug)]
struct Known {
    key: ClusterKey,
    passphrase: Argon2id,
}

/// The cluster keys at hand: the one that wraps, and while a change of it is under way the one before.
#[derive(Debug)]
pub struct ClusterKeys {
    current: Known,
    previous: Option<Known>,
    /// For who reads a store and has a passphrase alone: the store says how its key comes from it.
    source: Option<KeySource>,
}

impl ClusterKeys {
    /// Those of a gateway: `[key]`, and `[key_previous]` where it names a source.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn load(current: &KeySource, previous: &KeySource) -> Result<Self, KeyError> {
        let previous = if previous.any() { Some(load(previous, None)?) } else { None };
        Ok(Self { current: load(current, None)?, previous, source: None })
    }

    /// The one that `config` names, for reading a store: a passphrase leads to the key by what the store says of it.
    ///
    /// # Errors
    /// [`KeyError`].
    pub fn of_store(config: &KeySource) -> Result<Self, KeyError> {
        Ok(Self { current: load(config, None)?, previous: None, source: Some(config.clone()) })
    }

    /// What new things are wrapped by.
    pub fn current(&self) -> &ClusterKey {
        &self.current.key
    }

    /// What still opens older ones.
    pub fn previous(&self) -> Option<&ClusterKey> {
        self.previous.as_ref().map(|known| &known.key)
    }

    fn known(&self, fingerprint: KeyFingerprint) -> Option<&Known> {
        let all = std::iter::once(&self.current).chain(&self.previous);
        all.into_iter().find(|known| known.key.fingerprint() == fingerprint)
    }

    /// The key with this fingerprint, if it is at hand.
    pub fn get(&self, fingerprint: KeyFingerprint) -> Option<&ClusterKey> {
        self.known(fingerprint).map(|known| &known.key)
    }

    /// The key that wrapped `wrapped`, else the current one, which then says what is wrong.
    fn by(&self, wrapped_by: Option<KeyFingerprint>) -> &ClusterKey {
        wrapped_by.and_then(|by| self.get(by)).unwrap_or(&self.current.key)
    }

    /// Opens a set's data key, whichever of the keys wrapped it.
    ///
    /// # Errors
    /// [`SealError`], of the current key where none is the right one.
    pub fn unwrap(&self, wrapped: &[u8], set: SetId, key_id: u32) -> Result<DataKey, SealError> {
        self.by(wrapped_by(wrapped)).unwrap(wrapped, set, key_id)
    }

    /// Opens all data keys of a set.
    ///
    /// # Errors
    /// [`SealError`], of the first that does not open.
    pub fn unwrap_ring(&self, ring: &[u8], set: SetId) -> Result<BTreeMap<u32, DataKey>, SealError> {
        split_ring(ring)?.into_iter().map(|(id, wrapped)| Ok((id, self.unwrap(wrapped, set, id)?))).collect()
    }

    /// The data keys of a set, as group 0 has them.
    ///
    /// # Errors
    /// [`SealError`], of the first that does not open; also where what things are sealed under is not among them.
    pub fn set_key(&self, set: SetId, entry: &SetEntry) -> Result<SetKey, SealError> {
        of_ring(set, self.unwrap_ring(&entry.wrapped_key, set)?, entry.key_id)
    }

    /// Opens the key of this node's files, whichever of the keys wrapped it.
    ///
    /// # Errors
    /// [`SealError`], of the current key where none is the right one.
    pub fn unwrap_node(&self, wrapped: &[u8], disk: u128) -> Result<NodeKey, SealError> {
        self.by(node_wrapped_by(wrapped)).unwrap_node(wrapped, disk)
    }

    /// Opens what a head, which is under `key_id`, says of its set's keys.
    ///
    /// # Errors
    /// Why not, for people.
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
            // A passphrase under other parameters is another key: say which, they are no secret.
            _ if keyring.passphrase != self.current.passphrase => {
                Err(format!("{error}; if it is a passphrase's, it needs passphrase_kdf = \"{}\"", keyring.passphrase))
            }
            _ => Err(error.to_string()),
        }
    }

    /// What a set's head says of its keys, so that the cluster key alone opens it.
    pub fn keyring_of(&self, entry: &SetEntry) -> Keyring {
        let known = ring_wrapped_by(&entry.wrapped_key).and_then(|by| self.known(by)).unwrap_or(&self.current);
        Keyring { wrapped_key: entry.wrapped_key.clone(), passphrase: known.passphrase }
    }

    /// The key that a new set's data key is wrapped by: that of the newest set, so that between the settings and the change of the key
    /// every gateway can open it.
    ///
    /// # Errors
    /// It is not at hand.
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

/// How a key comes from a passphrase, with a salt that was never used.
pub fn new_passphrase_kdf() -> Argon2id {
    Argon2id::ours(crate::random::random_u128().to_le_bytes())
}

/// Whoever reads the cluster key reads everything.
fn warn_of_readers(path: &Path) {
    let mode = std::fs::metadata(path).map_or(0, |meta| meta.permissions().mode() & 0o777);
    if mode & 0o077 != 0 {
        tracing::warn!(file = %path.display(), mode = format!("{mode:03o}"), "the cluster key can be read by others than its owner: chmod 600");
    }
}

fn unread(path: &Path, source: std::io::Error, next: &'static str) -> KeyError {
    let path = path.to_path_buf();
    match source.kind() {
        ErrorKind::FileTooLarge => KeyError::Long { path, source },
        _ => KeyError::Read { path, source, next },
    }
}

/// Loads the cluster key from the one source that `config` names; a passphrase by `by`, else by what the settings say.
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
