//! Where the cluster key comes from: a key file, or a passphrase in a file or an environment variable. And what of a gateway's own
//! settings leads to a set's store.

use crate::config::{GatewayConfig, KeyConfig};
use holdfast_control::cluster::SetEntry;
use holdfast_seal::{ClusterKey, SealError};
use holdfast_store::{Health, ObjectStore, RetryPolicy, StoreError, StoreOptions};
use holdfast_volume::head::{Argon2id, Keyring};
use std::path::PathBuf;
use std::sync::Arc;

/// Salt of the passphrase's derivation. Fixed: every gateway of every cluster derives the same key from the same
/// passphrase without a file to share; a passphrase must therefore be long and random, and key files are preferred.
pub(crate) const PASSPHRASE_SALT: [u8; 16] = *b"holdfast-cluster";

/// The cluster key cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// A file.
    #[error("{path}: {source}; create it with: head -c 32 /dev/urandom > KEYFILE; chmod 600 KEYFILE")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
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

/// Loads the cluster key from the one source that `config` names.
///
/// # Errors
/// [`KeyError`].
pub fn load_cluster_key(config: &KeyConfig) -> Result<ClusterKey, KeyError> {
    if let Some(path) = &config.file {
        let content = std::fs::read(path).map_err(|source| KeyError::Read { path: path.clone(), source })?;
        return ClusterKey::from_key_file(&content)
            .map_err(|source| KeyError::Bad { place: path.display().to_string(), source });
    }
    let (place, passphrase) = if let Some(path) = &config.passphrase_file {
        let text = std::fs::read_to_string(path).map_err(|source| KeyError::Read { path: path.clone(), source })?;
        (path.display().to_string(), text.trim_end_matches(['\r', '\n']).to_string())
    } else if let Some(name) = &config.passphrase_env {
        let text = std::env::var(name).map_err(|_| KeyError::Env { name: name.clone() })?;
        (format!("environment variable {name}"), text)
    } else {
        return Err(KeyError::None);
    };
    ClusterKey::from_passphrase(&passphrase, PASSPHRASE_SALT).map_err(|source| KeyError::Bad { place, source })
}

/// What a set's head says of its keys, so that the cluster key alone opens it.
pub(crate) fn keyring_of(entry: &SetEntry) -> Keyring {
    Keyring { wrapped_key: entry.wrapped_key.clone(), passphrase: Argon2id::ours(PASSPHRASE_SALT) }
}

/// Opens the store at `url` with this gateway's settings; credentials come from the environment. `health` is told of every attempt.
pub(crate) fn open_store(
    config: &GatewayConfig,
    url: &str,
    health: Arc<Health>,
) -> Result<Arc<dyn ObjectStore>, StoreError> {
    let (read_timeout_ms, write_timeout_ms) = (config.store.read_timeout_ms, config.store.write_timeout_ms);
    let defaults = StoreOptions::default();
    let options = StoreOptions {
        endpoint: config.store.endpoint.clone(),
        region: config.store.region.clone(),
        path_style: config.store.path_style.then_some(true),
        connect_timeout_ms: defaults.connect_timeout_ms.min(read_timeout_ms),
        retry: RetryPolicy { read_timeout_ms, write_timeout_ms, ..defaults.retry.clone() },
        ..defaults
    };
    holdfast_store::open_observed(url, &options.filled_from(|name| std::env::var(name).ok()), health)
}
