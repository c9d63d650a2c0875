use crate::role::Role;
use std::io;
use std::path::PathBuf;

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
    /// The key could be read by everyone on this machine.
    #[error("{}: found mode {mode:03o}, expected a key that others cannot read; run chmod 600", path.display())]
    Exposed {
        /// The file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
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
