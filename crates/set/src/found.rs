//! A set as a recovery finds it in its store.

use crate::set_key::SetKey;
use holdfast_store::{Disposition, ObjectStore, StoreError, Version, keys};
use holdfast_types::SetId;
use holdfast_volume::head::{Head, Keyring};
use std::sync::Arc;

/// A set as found in its store.
pub struct Found {
    /// Its number.
    pub set: SetId,
    /// URL of the store.
    pub url: String,
    /// Its head.
    pub head: Head,
    /// Its wrapped keys.
    pub keyring: Keyring,
    /// Its key, opened.
    pub key: SetKey,
    /// Its store.
    pub store: Arc<dyn ObjectStore>,
    pub(crate) version: Version,
}

impl Found {
    /// Whether another head is in its place by now; then it is not raised.
    ///
    /// # Errors
    /// The store does not answer.
    pub async fn is_replaced(&self) -> Result<bool, StoreError> {
        match self.store.get_object(&keys::head(self.set)).await {
            Ok(object) => Ok(object.version != self.version),
            Err(e) if e.disposition() == Disposition::NotFound => Ok(true),
            Err(e) => Err(e),
        }
    }
}

impl std::fmt::Debug for Found {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Found({} at {}, {:?})", self.set, self.url, self.head)
    }
}
