//! Reasons why an agent does not run.

use std::path::{Path, PathBuf};

/// Reason why an agent ended without an order.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// One of its own directories, or the file with the token.
    #[error("{}: {source}", path.display())]
    Dir {
        /// The path.
        path: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// Another agent uses the same run directory.
    #[error("another agent runs here: {0}")]
    Locked(String),
    /// The HTTP address. Nothing of an earlier agent was there to continue.
    #[error("http.listen {address}: {source}")]
    Listen {
        /// The address.
        address: std::net::SocketAddr,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// A setting whose fault shows only in use.
    #[error("{0}")]
    Settings(String),
    /// Existing devices, pools or processes are not this agent's, or could not be checked.
    #[error("nothing was changed: {0}")]
    Found(String),
}

pub(super) fn dir_error(path: &Path) -> impl FnOnce(std::io::Error) -> RunError + '_ {
    |source| RunError::Dir { path: path.into(), source }
}
