//! The data keys of a clone's origins, and the place of a part of a range in the set or in one of its origins.

use crate::map_error::MapError;
use crate::set_key::SetKey;
use holdfast_control::set::RootRef;
use holdfast_types::sync::LockExt;
use holdfast_types::{Sectors, SetId};
use holdfast_volume::map::MapExtent;
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tokio::time::Instant;

/// The data key of an origin. It comes from group 0's entry of that set, where a change of the cluster key rewraps it:
/// no clone has a copy.
pub type KeyOf = Arc<dyn Fn(SetId) -> Result<SetKey, String> + Send + Sync>;

/// An origin's keys are requested again after this time, because they may have changed.
const ASKED_AGAIN: Duration = Duration::from_secs(60);

/// Known keys of origins.
pub(super) struct Origins {
    key_of: KeyOf,
    known: Mutex<BTreeMap<SetId, (Instant, Arc<SetKey>)>>,
}

impl Origins {
    pub(super) fn new(key_of: KeyOf) -> Self {
        Self { key_of, known: Mutex::default() }
    }

    /// For a set that is no clone, and for tests: no origins.
    pub(super) fn none() -> Self {
        Self::new(Arc::new(|set| Err(format!("set {set} is not known here"))))
    }

    pub(super) fn key(&self, set: SetId, root: RootRef) -> Result<Arc<SetKey>, MapError> {
        let mut known = self.known.locked();
        // After a change of the data key, all of its roots that clones use still open with the keys that group 0 had
        // then, and has now (DATAKEY-Z3).
        if let Some((asked, key)) = known.get(&set)
            && asked.elapsed() < ASKED_AGAIN
        {
            return Ok(key.clone());
        }
        let bad = |reason| MapError::Bad { what: "key of a clone's origin, for root", object: root.object, reason };
        match (self.key_of)(set).map_err(bad) {
            Ok(key) => {
                let key = Arc::new(key);
                known.insert(set, (Instant::now(), key.clone()));
                Ok(key)
            }
            // The earlier key still opens it.
            Err(error) => known.get(&set).map(|(_, key)| key.clone()).ok_or(error),
        }
    }
}

/// The place of a part of a range.
#[derive(Clone)]
pub(super) enum At {
    /// No data: it reads as zeroes.
    Zeroes(Sectors),
    /// In a segment of the set itself, or of an origin with this key.
    Extent(Option<Arc<SetKey>>, MapExtent),
}
