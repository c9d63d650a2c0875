//! Shared by `recover` and `verify`: the key, the stores, and a survey of their sets. Contacts no gateway.

use super::text::time;
use crate::cli::{KeyArgs, StoreArgs};
use crate::exit::CliError;
use crate::serve;
use holdfast_gateway::config::GatewayConfig;
use holdfast_set::keyring::KeySource;
use holdfast_set::recovery::{self, Found, RecoveryError};
use holdfast_types::SetId;

/// Advice if a store refuses access.
pub const KEYS_FROM: &str = "credentials are read from --credentials-file, the AWS variables or a role of this machine, endpoint and region from the URL (?endpoint=...&region=...) or the AWS variables";

/// Part of the error for a set that is in other stores now.
pub const MOVED: &str = "stores were changed";

/// Finds the sets of these stores, sorted by number, and separately the sets that cannot be opened.
pub async fn survey(
    key: &KeyArgs,
    access: &StoreArgs,
    stores: &[String],
) -> Result<(Vec<Found>, Vec<(SetId, String)>), CliError> {
    serve::without_core_dumps();
    let (current, previous) = sources(key)?;
    let opened = recovery::cluster_key(&current, &previous).await;
    let key = opened.map_err(|error| CliError::usage("").because(&error))?;
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

/// Where the key comes from, and the previous one: a cluster that was lost in the middle of a change of keys needs
/// both.
fn sources(key: &KeyArgs) -> Result<(KeySource, KeySource), CliError> {
    if let Some(path) = &key.key_config {
        let config = GatewayConfig::load(path).map_err(|error| CliError::usage("").because(&error))?;
        return Ok((config.key.source(&config.store), config.key_previous.source(&config.store)));
    }
    let named = KeySource {
        file: key.key_file.clone(),
        passphrase_file: key.passphrase_file.clone(),
        passphrase_env: key.passphrase_env.clone(),
        // Each head contains the parameters for its passphrase.
        passphrase_kdf: None,
        envelope: None,
    };
    Ok((named, KeySource::default()))
}

/// Translates an error of a recovery.
pub fn of_recovery(error: &RecoveryError) -> CliError {
    match error {
        RecoveryError::Store(_) if error.may_pass() => CliError::unreachable("").because(error).next(KEYS_FROM),
        RecoveryError::Store(_) => CliError::failed("").because(error).next(KEYS_FROM),
        RecoveryError::Changed { .. } => CliError::refused("").because(error),
        _ => CliError::failed("").because(error),
    }
}

/// The last checkpoint of a set, as text.
pub fn checkpoint_text(found: &Found) -> String {
    match found.head.covered {
        None => "empty, no checkpoint was ever completed".to_string(),
        Some(c) => format!(
            "checkpoint at log index {} of generation {}, with all writes acknowledged before {}",
            c.upto.index.0,
            c.generation,
            time(c.at_unix_ms)
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_of_a_gateway_name_the_key_before_a_change_too() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("gateway.toml");
        let text = "nbd_unix = \"/run/nbd.sock\"\n[key]\nfile = \"/new\"\n[key_previous]\nfile = \"/old\"\n";
        std::fs::write(&path, text).unwrap();
        let (current, previous) = sources(&KeyArgs { key_config: Some(path), ..KeyArgs::default() }).unwrap();
        let file = |source: KeySource| source.file.map(|path| path.display().to_string());
        assert_eq!((file(current), file(previous)), (Some("/new".into()), Some("/old".into())));
    }
}
