//! Envelope: a cluster key that lies on disk only as somebody else has wrapped it, and is opened at a start (ADR 0047).
//!
//! Owns: asking a command, Vault's transit engine or AWS KMS to open an envelope, or to make one; what their answers
//! mean. Does not own: the key itself and what it wraps (`seal`), settings, connections and access keys (`store`).
//! Depends on: `store`, `tls` (files).
//!
//! ```text
//!   envelope, a file ──▶ command, its standard input         ─┐
//!                    ──▶ Vault  POST /v1/MOUNT/decrypt/NAME   ├─▶ the content of a key file: 32 bytes or 64 hex digits
//!                    ──▶ AWS KMS  Decrypt                    ─┘
//! ```
//!
//! - **ENVELOPE-V1** A key or a token crosses a network only inside TLS. A URL with `http://` is refused unless its
//!   host is this machine.
//! - **ENVELOPE-V2** A command is started without a shell, by its absolute path. What it may print, and how long it may
//!   take, is bounded.
//! - **ENVELOPE-V3** Nothing that may be a key is in an error, or in the log.

mod command;
mod error;
mod keeper;
mod kms;
mod shape;
mod vault;

#[cfg(test)]
mod fake;

pub use error::{EnvelopeError, Wrong};
use holdfast_tls::files;
pub use keeper::{Envelope, Keeper, KmsKey, VaultKey};
use std::io::ErrorKind;
use std::path::Path;
use std::time::Duration;
use zeroize::Zeroizing;

/// Maximum size of an envelope in bytes. KMS allows 6 KiB; a command may want more.
const ENVELOPE_BYTES_MAX: u64 = 64 << 10;

/// Advice if the envelope is missing. A second one has another key in it.
const MISSING: &str = "copy it from another gateway, or from where you keep it for a recovery; for a new cluster alone, `holdfast key envelope` makes one";

/// … and if it was not read.
const KEEP: &str = "keep the file, nothing else opens the cluster's data: let the user who runs this process read it (an envelope is no secret: chmod 644)";

impl Envelope {
    /// The content of a key file, from the envelope. Takes up to half a minute.
    pub async fn open(&self) -> Result<Zeroizing<Vec<u8>>, EnvelopeError> {
        self.check()?;
        let wrapped = match &self.file {
            Some(path) => self.read(path)?,
            None => Vec::new(),
        };
        let path = self.file.clone().unwrap_or_default();
        match &self.keeper {
            Keeper::Command(argv) => command::run(argv, &wrapped, COMMAND_LIMIT).await,
            Keeper::Vault(key) => vault::open(key, &shape::vault_text(&path, &wrapped)?).await,
            Keeper::Kms(key) => kms::open(key, &shape::kms_bytes(&path, wrapped)?).await,
        }
    }

    /// Wraps a new key: the content for an envelope.
    pub async fn make(&self, key: &[u8; 32]) -> Result<String, EnvelopeError> {
        self.check()?;
        match &self.keeper {
            Keeper::Command(_) => Err(EnvelopeError::MadeElsewhere),
            Keeper::Vault(by) => vault::make(by, key).await,
            Keeper::Kms(by) => kms::make(by, key).await,
        }
    }

    fn read(&self, path: &Path) -> Result<Vec<u8>, EnvelopeError> {
        files::read(path, ENVELOPE_BYTES_MAX).map_err(|source| {
            let next = if source.kind() == ErrorKind::NotFound { MISSING } else { KEEP };
            EnvelopeError::Read { path: path.into(), source, next }
        })
    }
}

/// How long a command may take: a smart card, or a service behind it, needs seconds.
const COMMAND_LIMIT: Duration = Duration::from_secs(30);

#[cfg(test)]
mod tests;
