use crate::files::SecretError;
use crate::role::Role;
use std::io;
use std::path::{Path, PathBuf};

/// A problem with a certificate, a key, or a file of one.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Not all three files are named.
    #[error("found {found}, expected all of tls.ca, tls.certificate and tls.key, or none")]
    Incomplete {
        /// The files that are named.
        found: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// A file holds something else.
    #[error("{}: found {found}, expected {expected}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// Its content.
        found: String,
        /// The expected content.
        expected: &'static str,
    },
    /// Other users of this machine can use the key (SECRET-F1, SECRET-F2).
    #[error("{}: {source}", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// What makes it so.
        #[source]
        source: SecretError,
    },
    /// A certificate has another role than its process needs.
    #[error("{}: found a certificate of {found}, expected one of {expected}", path.display())]
    Role {
        /// The file.
        path: PathBuf,
        /// The roles that it has.
        found: String,
        /// The role that is needed.
        expected: Role,
    },
    /// A certificate or key could not be made.
    #[error("certificate of {name}: {reason}")]
    Make {
        /// Its owner.
        name: String,
        /// The reason.
        reason: String,
    },
    /// The files do not fit together.
    #[error("certificate, key and authority cannot be used together: {reason}")]
    Unusable {
        /// The reason.
        reason: String,
    },
}

impl TlsError {
    /// The file at `path` with a private key was not read.
    pub(crate) fn of_secret(path: &Path, error: SecretError) -> Self {
        let path = path.into();
        match error {
            SecretError::Io(source) => Self::File { path, source },
            source => Self::Exposed { path, source },
        }
    }
}
