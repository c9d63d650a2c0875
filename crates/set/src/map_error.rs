//! Why a read from the store failed.

use holdfast_store::{Disposition, StoreError};
use holdfast_types::ObjectId;
use std::sync::Arc;

/// Why a read from the store failed.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The store does not have the object or refuses the read.
    #[error("store: {0}")]
    Store(#[from] Arc<StoreError>),
    /// The bytes are wrong (R9).
    #[error("{what} {object}: {reason}")]
    Bad {
        /// Root, leaf, page or extent.
        what: &'static str,
        /// The object.
        object: ObjectId,
        /// The found and expected values.
        reason: String,
    },
    /// The gateway is stopping.
    #[error("stopping")]
    Stopping,
}

impl MapError {
    /// Missing or damaged in the store: a retry will not help.
    pub(crate) fn is_lost(&self) -> bool {
        match self {
            // An object that is too short is damaged too: only parts of a pack of leaves are read.
            MapError::Store(e) => matches!(e.disposition(), Disposition::NotFound | Disposition::Corrupt),
            MapError::Bad { .. } => true,
            MapError::Stopping => false,
        }
    }
}

impl From<StoreError> for MapError {
    fn from(e: StoreError) -> Self {
        MapError::Store(Arc::new(e))
    }
}
