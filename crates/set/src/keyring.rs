//! Loads the cluster keys from a key file, a passphrase in a file or an environment variable, or an envelope: the
//! current key, and during a change of the key also the previous one.
//!
//! - **KEYRING-W1** A key that is weak by its derivation ([`Argon2id::check_new`]) wraps nothing new: no set's data
//!   key, unless it wraps another set's already, and a change of the cluster key does not lead to it.

use crate::set_key::SetKey;
use holdfast_control::cluster::SetEntry;
use holdfast_envelope::{Envelope, EnvelopeError};
use holdfast_seal::{
    CLUSTER_KEY_BYTES, ClusterKey, DataKey, KeyFingerprint, NodeKey, SealError, node_wrapped_by, ring_wrapped_by,
    split_ring, wrapped_by,
};
use holdfast_tls::files::{SECRET_BYTES_MAX, SecretError, read_secret};
use holdfast_types::SetId;
use holdfast_volume::head::{Argon2id, Keyring};
use rand::Rng;
use std::collections::BTreeMap;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Once;
use zeroize::Zeroizing;

/// Salt of the key derivation if `passphrase_kdf` is not set: used by every gateway of every cluster before that
/// setting existed. Equal passphrases then give equal keys, so no new cluster has it (KEYRING-W1).
pub const PASSPHRASE_SALT: [u8; 16] = *b"holdfast-cluster";

/// Advice if the key file is missing. With `set -C`, no file that is there is replaced.
const MAKE_KEY: &str = "copy it from another gateway, or from where you keep it for a recovery; for a new cluster alone, make one: (umask 077; set -C; head -c 32 /dev/urandom > KEYFILE)";

/// … and if the passphrase file is missing.
const MAKE_PASSPHRASE: &str = "write the passphrase into it, one line of text; chmod 600 FILE";

/// … and if it is there, but this process may not read it.
const LET_READ: &str = "the file may be good: let the user who runs this process read it (chown), and enter its folder";

/// … and if reading it failed. It may be the only copy of the key: no advice leads to another one in its place.
const KEEP: &str = "keep the file, it may be the only copy: is this the right path, and does its disk work?";

/// Source of a cluster key: exactly one of file, passphrase file, environment variable and envelope.
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
    /// The key as somebody else keeps it wrapped.
    pub envelope: Option<Envelope>,
}

impl KeySource {
    /// Whether any source is set.
    pub fn any(&self) -> bool {
        self.file.is_some() || self.by_passphrase() || self.envelope.is_some()
    }

    fn by_passphrase(&self) -> bool {
        self.passphrase_file.is_some() || self.passphrase_env.is_some()
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
    /// A file that others can read or replace.
    #[error("{path}: {source}")]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Who can, and what to do.
        #[source]
        source: SecretError,
    },
    /// The envelope was not opened.
    #[error(transparent)]
    Envelope(#[from] EnvelopeError),
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
    /// The key before a change.
    #[error(
        "[key_previous]: {0}; once `holdfast key list` shows nothing left to do, take this section out of the settings"
    )]
    Previous(#[source] Box<KeyError>),
    /// No source is set.
    #[error("[key]: found no source, expected one of file, passphrase_file, passphrase_env, command, vault, kms")]
    None,
}

/// Nothing new may be wrapped by a key of this gateway.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotForNew {
    /// The newest set is wrapped by a key that this gateway does not have.
    #[error(
        "the newest set is wrapped by cluster key {0}, which this gateway does not have: name it in [key_previous], or \
         end the change of keys (holdfast key rotate-cluster)"
    )]
    Unknown(KeyFingerprint),
    /// KEYRING-W1.
    #[error(
        "[key]: {0}; print a line with `holdfast key kdf`, put it into [key] of every gateway as passphrase_kdf, and \
         restart them. Where a cluster exists this changes its key: `holdfast key rotate-cluster --help`"
    )]
    Weak(SealError),
}

/// One cluster key, with its derivation.
#[derive(Debug)]
struct Known {
    key: ClusterKey,
    /// In each head, also where no passphrase was used.
    passphrase: Argon2id,
    by_passphrase: bool,
}

impl Known {
    /// KEYRING-W1.
    fn check_new(&self) -> Result<(), NotForNew> {
        let derived = self.by_passphrase.then_some(self.passphrase);
        derived.map_or(Ok(()), |by| by.check_new(PASSPHRASE_SALT)).map_err(NotForNew::Weak)
    }
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
    pub async fn load(current: &KeySource, previous: &KeySource) -> Result<Self, KeyError> {
        let previous = opened_before(previous).await?;
        let keys = Self { current: opened(current).await?, previous, source: None };
        if keys.check_new().is_err() {
            tracing::warn!(
                "the cluster key comes from a passphrase with the salt that all clusters share, or with less than 64 MiB: guesses are cheap. Change it: `holdfast key kdf`, then `holdfast key rotate-cluster --help`"
            );
        }
        Ok(keys)
    }

    /// Loads the key of `config` for reading a store; a passphrase is used with the derivation that the store names.
    /// `previous`: as for [`ClusterKeys::load`].
    ///
    /// # Errors
    /// [`KeyError`].
    pub async fn of_store(config: &KeySource, previous: &KeySource) -> Result<Self, KeyError> {
        let previous = opened_before(previous).await?;
        Ok(Self { current: opened(config).await?, previous, source: Some(config.clone()) })
    }

    /// Whether a change of the cluster key may lead to the current key (KEYRING-W1).
    ///
    /// # Errors
    /// [`NotForNew::Weak`].
    pub fn check_new(&self) -> Result<(), NotForNew> {
        self.current.check_new()
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
        let key = of_ring(set, self.unwrap_ring(&entry.wrapped_key, set)?, entry.key_id);
        warn_of_unlocked();
        key
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
            Some(source) if source.by_passphrase() && keyring.passphrase != self.current.passphrase => {
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
    /// the change of the settings and the change of the key. The first set needs a key that is not weak: by its sets a
    /// cluster shows whether it was made with a weak one (KEYRING-W1).
    ///
    /// # Errors
    /// That key is not known here, or weak.
    pub fn for_new_set(&self, sets: &BTreeMap<SetId, SetEntry>) -> Result<&ClusterKey, NotForNew> {
        match sets.values().next_back().and_then(|entry| ring_wrapped_by(&entry.wrapped_key)) {
            Some(by) => self.get(by).ok_or(NotForNew::Unknown(by)),
            None => self.current.check_new().map(|()| &self.current.key),
        }
    }

    /// For tests.
    #[cfg(any(test, feature = "testing"))]
    pub fn of_bytes(byte: u8, previous: Option<u8>) -> Self {
        let known = |byte: u8| Known {
            key: ClusterKey::from_key_file(&[byte; 32]).expect("32 bytes"),
            passphrase: Argon2id::ours(PASSPHRASE_SALT),
            by_passphrase: false,
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
    Argon2id::fresh(crate::random::random_u128().to_le_bytes())
}

/// Draws a key and has it wrapped: the content of an envelope, and the fingerprint of its key.
///
/// # Errors
/// [`EnvelopeError`].
pub async fn new_envelope(envelope: &Envelope) -> Result<(String, KeyFingerprint), EnvelopeError> {
    let mut bytes = Zeroizing::new([0; CLUSTER_KEY_BYTES]);
    rand::rng().fill_bytes(bytes.as_mut_slice());
    let key = ClusterKey::from_key_file(bytes.as_slice()).expect("R10: a key file of 32 bytes");
    Ok((envelope.make(&bytes).await?, key.fingerprint()))
}

/// Says once that the kernel did not lock the pages of all keys (LOCKED-M2).
fn warn_of_unlocked() {
    static TOLD: Once = Once::new();
    if holdfast_locked::unlocked() > 0 {
        TOLD.call_once(|| {
            tracing::warn!("the kernel did not lock all pages with keys in memory: they can be swapped; raise the limit of locked memory (LimitMEMLOCK=, `ulimit -l`) to 64 MiB");
        });
    }
}

/// What to do about a file that was not read; `missing`: what belongs there.
fn advice(kind: ErrorKind, missing: &'static str) -> &'static str {
    match kind {
        ErrorKind::NotFound => missing,
        ErrorKind::PermissionDenied => LET_READ,
        _ => KEEP,
    }
}

/// A secret of this process alone (SECRET-F1). `missing`: what belongs there if it is missing.
fn secret(path: &Path, missing: &'static str) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    let read = read_secret(path, SECRET_BYTES_MAX).map(Zeroizing::new);
    read.map_err(|error| match error {
        SecretError::Io(source) if source.kind() == ErrorKind::FileTooLarge => {
            KeyError::Long { path: path.into(), source }
        }
        SecretError::Io(source) => {
            let next = advice(source.kind(), missing);
            KeyError::Read { path: path.into(), source, next }
        }
        source => KeyError::Exposed { path: path.into(), source },
    })
}

/// The key before a change, if there is one.
async fn opened_before(previous: &KeySource) -> Result<Option<Known>, KeyError> {
    if !previous.any() {
        return Ok(None);
    }
    opened(previous).await.map(Some).map_err(|error| KeyError::Previous(Box::new(error)))
}

/// Loads the cluster key from the one source that `config` names.
async fn opened(config: &KeySource) -> Result<Known, KeyError> {
    let known = match &config.envelope {
        Some(envelope) => {
            let content = envelope.open().await?;
            let bad = |source| KeyError::Bad { place: "what the envelope was opened to".into(), source };
            let key = ClusterKey::from_key_file(&content).map_err(bad)?;
            Known { key, passphrase: Argon2id::ours(PASSPHRASE_SALT), by_passphrase: false }
        }
        None => load(config, None)?,
    };
    warn_of_unlocked();
    Ok(known)
}

/// Like `opened`, for a file and a passphrase; a passphrase with the derivation `by`, otherwise with the one in the
/// settings.
fn load(config: &KeySource, by: Option<Argon2id>) -> Result<Known, KeyError> {
    let written = config.passphrase_kdf.as_deref().map(str::parse).transpose();
    let written = written.map_err(|source| KeyError::Bad { place: "passphrase_kdf".to_string(), source })?;
    let passphrase_by = by.or(written).unwrap_or(Argon2id::ours(PASSPHRASE_SALT));
    let known = |key| Known { key, passphrase: passphrase_by, by_passphrase: config.file.is_none() };
    if let Some(path) = &config.file {
        return ClusterKey::from_key_file(&secret(path, MAKE_KEY)?)
            .map(known)
            .map_err(|source| KeyError::Bad { place: path.display().to_string(), source });
    }
    let (place, passphrase) = if let Some(path) = &config.passphrase_file {
        (path.display().to_string(), line(path, secret(path, MAKE_PASSPHRASE)?)?)
    } else if let Some(name) = &config.passphrase_env {
        let text = std::env::var(name).map_err(|_| KeyError::Env { name: name.clone() })?;
        (format!("environment variable {name}"), Zeroizing::new(text.into_bytes()))
    } else {
        return Err(KeyError::None);
    };
    ClusterKey::from_passphrase_by(passphrase.as_slice(), &passphrase_by)
        .map(known)
        .map_err(|source| KeyError::Bad { place, source })
}

/// The passphrase in a file: text, without the end of its line.
fn line(path: &Path, mut bytes: Zeroizing<Vec<u8>>) -> Result<Zeroizing<Vec<u8>>, KeyError> {
    if std::str::from_utf8(&bytes).is_err() {
        let source = std::io::Error::new(ErrorKind::InvalidData, "found bytes that are no text, expected UTF-8");
        return Err(KeyError::Read { path: path.into(), source, next: MAKE_PASSPHRASE });
    }
    let end = bytes.iter().rposition(|byte| !matches!(byte, b'\r' | b'\n')).map_or(0, |last| last + 1);
    bytes.truncate(end);
    Ok(bytes)
}

#[cfg(test)]
mod tests;
