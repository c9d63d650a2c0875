//! Who opens an envelope, as the settings name it.

use std::path::PathBuf;

/// Whoever can open an envelope.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Keeper {
    /// A program with its arguments. It gets the envelope as its standard input, and prints the key.
    Command(Vec<String>),
    /// A key of Vault's transit engine.
    Vault(VaultKey),
    /// A key of AWS KMS.
    Kms(KmsKey),
}

/// A key of Vault's transit engine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VaultKey {
    /// Its URL, `https://HOST:PORT/v1/MOUNT/keys/NAME`.
    pub url: String,
    /// File with the token.
    pub token_file: PathBuf,
    /// Certificates (PEM) to trust in place of the system's.
    pub ca: Option<PathBuf>,
}

/// A key of AWS KMS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KmsKey {
    /// Its ARN, or that of its alias.
    pub arn: String,
    /// URL of another server than AWS's own for that region.
    pub endpoint: Option<String>,
    /// File with the access keys. `None`: those of the environment, as for a store.
    pub credentials_file: Option<PathBuf>,
}

/// A wrapped cluster key, and who opens it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The wrapped key. Only a command needs none.
    pub file: Option<PathBuf>,
    /// Who opens it.
    pub keeper: Keeper,
}
