//! Why PostgreSQL is not started where its files lie, or why that is not known.

use crate::drivers::ownership::NotOurs;
use crate::host::NotDone;
use crate::process::NotRan;
use std::io;
use std::path::PathBuf;

/// What the check of PostgreSQL's places found, or why it found nothing.
#[derive(Debug, thiserror::Error)]
pub enum PlacementError {
    /// Something does not lie on the set (ONSET-L1, ONSET-L3): what, and what to do about it.
    #[error("{0}")]
    OffSet(String),
    /// The agent's own pool is not imported.
    #[error(
        "found no pool {pool}, expected it imported from the devices of set {set}: `holdfast agent restart` once it is"
    )]
    NoPool {
        /// Its name.
        pool: String,
        /// The set.
        set: String,
    },
    /// The agent's own pool is another's, or it is not known whose it is.
    #[error("{0}")]
    NotOurs(NotOurs),
    /// A directory or a link could not be read.
    #[error("{}: {source}", path.display())]
    Unread {
        /// Its path.
        path: PathBuf,
        /// The reason.
        #[source]
        source: io::Error,
    },
    /// The table of mounts could not be read.
    #[error("{0}")]
    Mounts(String),
    /// ZFS did not say which devices a pool has.
    #[error("pool {pool}: could not ask for its devices: {why}")]
    Unasked {
        /// The pool's name.
        pool: String,
        /// The reason.
        why: NotRan,
    },
    /// ZFS did not say which datasets are mounted.
    #[error("could not ask ZFS which datasets are mounted: {0}")]
    Unlisted(String),
    /// The check before a start did not end in time.
    #[error("found no answer to where the files lie: the device does not answer")]
    Late,
    /// Another check did not end in time.
    #[error("the device does not answer")]
    Silent,
    /// The thread of the check ended without a result.
    #[error(transparent)]
    Ended(#[from] tokio::task::JoinError),
}

impl From<PlacementError> for NotDone {
    /// Only what was found is a refusal: a check that failed may succeed at the next try.
    fn from(error: PlacementError) -> Self {
        match error {
            PlacementError::OffSet(_)
            | PlacementError::NoPool { .. }
            | PlacementError::NotOurs(NotOurs::Foreign(_)) => NotDone::Refused(error.to_string()),
            PlacementError::NotOurs(NotOurs::Unlooked(_))
            | PlacementError::Unread { .. }
            | PlacementError::Mounts(_)
            | PlacementError::Unasked { .. }
            | PlacementError::Unlisted(_)
            | PlacementError::Late
            | PlacementError::Silent
            | PlacementError::Ended(_) => NotDone::Failed(error.to_string()),
        }
    }
}
