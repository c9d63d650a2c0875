//! The section `[key]`: where the cluster key comes from.

use super::StoreConfig;
use holdfast_envelope::{Envelope, Keeper, KmsKey, VaultKey};
use holdfast_set::keyring::KeySource;
use holdfast_settings::settings;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;

settings! {
    /// Source of the cluster key.
    pub struct KeyConfig {
        /// File with the key: 32 random bytes, or 64 hex digits. A file that other users can read or write is refused.
        file: Option<PathBuf> = None, sample "/etc/holdfast/cluster.key";
        /// File with a passphrase (one line). A file that other users can read or write is refused.
        passphrase_file: Option<PathBuf> = None, sample "/etc/holdfast/passphrase";
        /// Name of the environment variable that holds a passphrase.
        passphrase_env: Option<String> = None, sample "HOLDFAST_PASSPHRASE";
        /// Parameters and salt that derive the key from the passphrase. Not secret; the same at every gateway.
        /// `holdfast key kdf` makes one. Left out: a salt that all clusters share. Only a cluster that was made so
        /// works without it, or with less than m=65536 (64 MiB).
        passphrase_kdf: Option<String> = None, sample "argon2id:m=65536,t=3,p=4:00112233445566778899aabbccddeeff";
        /// File with the key as `command`, `vault` or `kms` has wrapped it; the same at every gateway. `holdfast key
        /// envelope` makes one. The key is opened once, at the start.
        envelope: Option<PathBuf> = None, sample "/etc/holdfast/cluster.envelope";
        /// Program, by its absolute path, and arguments. It reads the envelope, if there is one, from its standard
        /// input and prints the key: 32 bytes, or 64 hex digits. No shell; it is killed after 30 s. Empty: none.
        command: Vec<String> = Vec::new();
        /// A key of HashiCorp Vault's transit engine that opens the envelope: https://HOST:PORT/v1/MOUNT/keys/NAME.
        vault: Option<String> = None, sample "https://vault.example:8200/v1/transit/keys/holdfast";
        /// File with the token for Vault; read at the start. A file that other users can read or write is refused.
        vault_token_file: Option<PathBuf> = None, sample "/etc/holdfast/vault-token";
        /// Certificates (PEM) of the authority of Vault's certificate. Left out: those that this machine trusts.
        vault_ca: Option<PathBuf> = None, sample "/etc/holdfast/vault-ca.pem";
        /// A key of AWS KMS that opens the envelope: its ARN, or that of its alias. Access keys as for a store:
        /// store.credentials_file, or the AWS variables.
        kms: Option<String> = None, sample "arn:aws:kms:eu-central-1:111122223333:key/1234abcd";
        /// URL of KMS, if it is not AWS's own for the region of `kms`.
        kms_endpoint: Option<String> = None, sample "https://vpce-1234.kms.eu-central-1.vpce.amazonaws.com";
    }
}

impl KeyConfig {
    /// The keeper of the envelope. Without a token file, Vault's is empty; `check` asks for one.
    fn keeper(&self, store: &StoreConfig) -> Option<Keeper> {
        if !self.command.is_empty() {
            return Some(Keeper::Command(self.command.clone()));
        }
        if let Some(url) = self.vault.clone() {
            let (token_file, ca) = (self.vault_token_file.clone().unwrap_or_default(), self.vault_ca.clone());
            return Some(Keeper::Vault(VaultKey { url, token_file, ca }));
        }
        let (endpoint, credentials_file) = (self.kms_endpoint.clone(), store.credentials_file.clone());
        self.kms.clone().map(|arn| Keeper::Kms(KmsKey { arn, endpoint, credentials_file }))
    }

    /// The envelope of the key, if this is its source.
    pub fn envelope(&self, store: &StoreConfig) -> Option<Envelope> {
        self.keeper(store).map(|keeper| Envelope { file: self.envelope.clone(), keeper })
    }

    /// The same, for the loader of the key. `store` has the access keys for KMS.
    pub fn source(&self, store: &StoreConfig) -> KeySource {
        KeySource {
            file: self.file.clone(),
            passphrase_file: self.passphrase_file.clone(),
            passphrase_env: self.passphrase_env.clone(),
            passphrase_kdf: self.passphrase_kdf.clone(),
            envelope: self.envelope(store),
        }
    }

    /// How many sources are set.
    pub(super) fn sources(&self) -> usize {
        let passphrases = [self.passphrase_file.is_some(), self.passphrase_env.is_some()];
        let keepers = [!self.command.is_empty(), self.vault.is_some(), self.kms.is_some()];
        let sources = std::iter::once(self.file.is_some()).chain(passphrases).chain(keepers);
        sources.filter(|&given| given).count()
    }
}
