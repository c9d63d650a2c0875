//! What is read: a set or a snapshot, from which store, and at which rate.

use crate::found::Found;
use crate::mapping::SetKey;
use futures_util::future::BoxFuture;
use holdfast_store::{Disposition, ObjectStore, StoreError};
use holdfast_types::{Name, SetId, VolumeId};
use std::sync::Arc;

/// What is read: a set or one of its snapshots.
pub(crate) struct Subject {
    /// Its number.
    pub set: SetId,
    /// Its key, opened.
    pub key: SetKey,
    /// Its store.
    pub store: Arc<dyn ObjectStore>,
    /// The store's place, if it is one of several and its copies are read.
    pub copy: Option<String>,
    /// Its volumes.
    pub volumes: Vec<(VolumeId, Name)>,
    /// The snapshot's name, if it is one; damage is reported with it.
    pub snapshot: Option<Name>,
    /// Limits the reading rate.
    pub throttle: Option<Arc<dyn Throttle>>,
    /// Whether an object that the store refuses to give is reported as damage. If not, it ends the reading: for a scrub
    /// and a recovery nothing is known then.
    pub reports_refusals: bool,
}

/// Limits the reading rate: told the number of bytes read, it makes the reader wait.
pub(crate) trait Throttle: Send + Sync {
    /// Reports that this many bytes were read.
    fn spent(&self, bytes: u64) -> BoxFuture<'_, ()>;
}

impl Subject {
    /// Subject of a set that was found; with `at`, of the copies in that store of several.
    pub fn of(found: &Found, at: Option<usize>) -> Self {
        let volumes = found.head.content.volumes.iter().map(|(id, volume)| (*id, volume.name.clone())).collect();
        let (store, copy) = copy_of(&found.store, at);
        let (set, key) = (found.set, found.key.clone());
        Self { set, key, store, copy, volumes, snapshot: None, throttle: None, reports_refusals: false }
    }

    /// The same, and an object that the store refuses to give is reported.
    pub(super) fn reporting_refusals(self) -> Self {
        Self { reports_refusals: true, ..self }
    }

    /// Whether an error means bad or missing bytes, as opposed to a store that does not answer.
    pub(super) fn is_damage(&self, e: &StoreError) -> bool {
        let damage = matches!(e.disposition(), Disposition::NotFound | Disposition::Corrupt);
        damage || (self.reports_refusals && e.is_of_object())
    }

    pub(super) fn snapshot_name(&self) -> Option<String> {
        self.snapshot.as_ref().map(Name::to_string)
    }

    pub(super) fn volume_name(&self, volume: VolumeId) -> String {
        let known = self.volumes.iter().find(|(id, _)| *id == volume);
        known.map_or_else(|| volume.to_string(), |(_, name)| name.to_string())
    }

    pub(super) async fn spent(&self, bytes: u64) {
        if let Some(throttle) = &self.throttle {
            throttle.spent(bytes).await;
        }
    }
}

/// The store number `at` of several, and its place; otherwise the store itself.
pub(crate) fn copy_of(store: &Arc<dyn ObjectStore>, at: Option<usize>) -> (Arc<dyn ObjectStore>, Option<String>) {
    match store.several().zip(at).and_then(|(several, at)| several.copy_at(at)) {
        Some(copy) => {
            let place = copy.place().to_owned();
            (copy, Some(place))
        }
        None => (store.clone(), None),
    }
}
