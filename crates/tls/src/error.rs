use crate::role::Role;
use std::io;
use std::path::PathBuf;

/// What is wrong with a certificate, a key or a file of either.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// Not all three files are named.
    #[error("found {found}, expected all of tls.ca, tls.certificate and tls.key, or none")]
    Incomplete {
        /// Those that are named.
        found: String,
    },
    /// A file cannot be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// A file holds something else.
    #[error("{}: found {found}, expected {expected}", path.display())]
    Content {
        /// Which.
        path: PathBuf,
        /// What it holds.
        found: String,
        /// What it should hold.
        expected: &'static str,
    },
    /// The key could be read by everyone on this machine.
    #[error("{}: found mode {mode:03o}, expected a key that others cannot read; run chmod 600", path.display())]
    Exposed {
        /// Which.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// A certificate says something else than what its process is.
    #[error("{}: found a certificate of {found}, expected one of {expected}", path.display())]
    Role {
        /// Which.
        path: PathBuf,
        /// The roles that it has.
        found: String,
        /// The role that is needed.
        expected: Role,
    },
    /// A certificate or key could not be made.
    #[error("certificate of {name}: {reason}")]
    Make {
        /// Whose.
        name: String,
        /// Why.
        reason: String,
    },
    /// The files do not fit together.
    #[error("certificate, key and authority cannot be used together: {reason}")]
    Unusable {
        /// Why.
        reason: String,
    },
}
