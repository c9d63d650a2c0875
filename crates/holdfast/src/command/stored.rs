//! What `recover` and `verify` share: the key, the stores, and what is found in them. No gateway is asked.

use crate::exit::CliError;
use clap::Args;
use holdfast_set::keyring::KeySource;
use holdfast_set::recovery::{self, Found, RecoveryError};
use holdfast_types::SetId;
use std::path::PathBuf;

/// Where a store's keys and place come from, for whoever was refused.
pub const KEYS_FROM: &str =
    "keys come from --credentials-file or the AWS variables, endpoint and region from the URL or the environment";

/// Of a set that is in other stores by now, in words.
pub const MOVED: &str = "stores were changed";

/// Where the cluster key is.
#[derive(Clone, Debug, Default, Args)]
#[group(id = "cluster_key", required = true, multiple = false)]
pub struct KeyArgs {
    /// File with the cluster key: 32 random bytes, or the same as 64 hex digits
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
    /// File with the passphrase
    #[arg(long, value_name = "FILE")]
    pub passphrase_file: Option<PathBuf>,
    /// Environment variable with the passphrase
    #[arg(long, value_name = "NAME")]
    pub passphrase_env: Option<String>,
}

/// Where the keys of s3:// stores are.
#[derive(Clone, Debug, Default, Args)]
pub struct StoreArgs {
    /// File with the keys of s3:// stores, as AWS tools have it: of the profile that the URL names with ?profile=NAME, else of AWS_PROFILE or `default`.
    /// Without it the AWS variables count, AWS_SHARED_CREDENTIALS_FILE among them
    #[arg(long, value_name = "FILE")]
    pub credentials_file: Option<PathBuf>,
}

/// Finds the sets of these stores, by number. Sets that cannot be opened come back beside them.
pub async fn survey(
    key: &KeyArgs,
    access: &StoreArgs,
    stores: &[String],
) -> Result<(Vec<Found>, Vec<(SetId, String)>), CliError> {
    let config = KeySource {
        file: key.key_file.clone(),
        passphrase_file: key.passphrase_file.clone(),
        passphrase_env: key.passphrase_env.clone(),
        // Each head says how its key comes from the passphrase.
        passphrase_kdf: None,
    };
    let key = recovery::cluster_key(&config).map_err(|error| CliError::usage("").because(&error))?;
    let (mut sets, mut bad) = (Vec::new(), Vec::new());
    for url in stores {
        let store = recovery::open_store(url, access.credentials_file.as_deref())
            .map_err(|error| CliError::usage(format!("store {url}")).because(&error))?;
        let found = recovery::survey(url, store, &key).await.map_err(|error| of_recovery(&error))?;
        sets.extend(found.sets);
        bad.extend(found.bad);
    }
    sets.sort_by_key(|found| found.set);
    Ok((sets, bad))
}

/// What a recovery's error means for the process.
pub fn of_recovery(error: &RecoveryError) -> CliError {
    match error {
        RecoveryError::Store(_) if error.may_pass() => CliError::unreachable("").because(error).next(KEYS_FROM),
        RecoveryError::Store(_) => CliError::failed("").because(error).next(KEYS_FROM),
        RecoveryError::Changed { .. } => CliError::refused("").because(error),
        _ => CliError::failed("").because(error),
    }
}

/// Which moment of a set its store has, in words.
pub fn moment(found: &Found) -> String {
    match found.head.covered {
        None => "nothing: no checkpoint was ever made".to_string(),
        Some(c) => format!(
            "index {} of generation {}, acknowledged before {}",
            c.upto.index.0,
            c.generation,
            super::history::time(c.at_unix_ms)
        ),
    }
}
