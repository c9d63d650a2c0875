//! Why an envelope was not opened, or not made.

use holdfast_store::service::ServiceError;
use holdfast_tls::files::SecretError;
use std::fmt;
use std::io;
use std::path::PathBuf;

/// A setting cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    /// The setting in `[key]`.
    pub setting: &'static str,
    /// Its value.
    pub found: String,
    /// What it has to be.
    pub expected: &'static str,
}

impl fmt::Display for Wrong {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "key.{}: found {}, expected {}", self.setting, self.found, self.expected)
    }
}

impl std::error::Error for Wrong {}

/// An envelope was not opened, or not made.
#[derive(Debug, thiserror::Error)]
pub enum EnvelopeError {
    /// The envelope cannot be read.
    #[error("{path}: {source}; {next}")]
    Read {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
        /// Advice for the user.
        next: &'static str,
    },
    /// The file is no envelope of this keeper.
    #[error("{path}: found {found}, expected {expected}")]
    Shape {
        /// The file.
        path: PathBuf,
        /// What it is.
        found: String,
        /// What it has to be.
        expected: &'static str,
    },
    /// The token of Vault cannot be used.
    #[error("{path}: {source}; expected a file with a token of Vault, one line of text")]
    Token {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: SecretError,
    },
    /// A setting of the keeper.
    #[error(transparent)]
    Wrong(#[from] Wrong),
    /// The command.
    #[error("key.command {program}: {why}")]
    Command {
        /// The program.
        program: String,
        /// What is wrong, and what to do.
        why: String,
    },
    /// A key service.
    #[error("{source}; {next}")]
    Service {
        /// Its words.
        #[source]
        source: Box<ServiceError>,
        /// Advice for the user.
        next: &'static str,
    },
    /// Vault has refused.
    #[error("{url}: found status {status} ({why}); {next}")]
    Vault {
        /// The URL that was asked.
        url: String,
        /// The status of HTTP.
        status: u16,
        /// Vault's own words.
        why: String,
        /// Advice for the user.
        next: &'static str,
    },
    /// A command opens envelopes and makes none.
    #[error(
        "key.command opens an envelope and makes none: wrap a key with the matching encryption command, \
         for example: head -c 32 /dev/urandom | WRAP > ENVELOPE"
    )]
    MadeElsewhere,
}
