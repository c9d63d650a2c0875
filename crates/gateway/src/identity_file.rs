//! Files of the data directory that hold the identity of the disk, and the errors if they cannot be used.

use serde::Serialize;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

/// The identity cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// Reading or writing it failed.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The file is not valid.
    #[error("{path}: {reason}; restore the file, or start with an empty data directory and join as a new member")]
    Bad {
        /// The file.
        path: PathBuf,
        /// What was found and what was expected.
        reason: String,
    },
    /// The journal is gone, and with it everything that this member acknowledged.
    #[error(
        "{path}: found no journal, expected the one that member {member} has kept here; mount what is missing, or move this \
         data directory away, start empty, and join in place of the member (holdfast gateway replace)"
    )]
    JournalGone {
        /// The journal's folder.
        path: PathBuf,
        /// The member.
        member: u64,
    },
    /// It belongs to a member already.
    #[error("this data directory is member {member} of cluster {cluster}; found a request to make it member {asked}")]
    Adopted {
        /// The member that it is.
        member: u64,
        /// The cluster that it belongs to.
        cluster: String,
        /// The member that it was asked to be.
        asked: u64,
    },
}

/// Replaces a file of `dir` by `what` as JSON. On disk before it returns; a crash leaves either the old or the new
/// file.
///
/// # Errors
/// [`IdentityError::Io`].
pub(crate) fn save(dir: &Path, file: &str, what: &impl Serialize) -> Result<(), IdentityError> {
    let path = dir.join(file);
    let write = || -> io::Result<()> {
        let beside = path.with_extension("json.new");
        let mut file = std::fs::File::create(&beside)?;
        file.write_all(&serde_json::to_vec_pretty(what).map_err(io::Error::other)?)?;
        file.sync_all()?;
        std::fs::rename(&beside, &path)?;
        std::fs::File::open(dir)?.sync_all()
    };
    write().map_err(|source| IdentityError::Io { path: path.clone(), source })
}
