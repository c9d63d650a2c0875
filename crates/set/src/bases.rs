//! The parts of a clone that come from its origins (ADR 0028): their roots, pages and extents are in the same store,
//! under the origin's number and key.
//!
//! ```text
//!   own root ─▶ own page: an extent, or hidden ─▶ that          neither ─▶ the base's root ─▶ its page ─▶ …     at most CLONE_DEPTH_MAX times
//! ```
//! Only the owner of an object decides its name in the store and the key that opens it: a place names the same content
//! for ever, so cache and pages are shared by all sets that use it.

use super::mapping::{MapError, Mapping, SetKey};
use super::roots::Known;
use futures_util::future::BoxFuture;
use holdfast_control::set::{CLONE_DEPTH_MAX, RootRef};
use holdfast_types::sync::LockExt;
use holdfast_types::{Lba, Sectors, SetId, VolumeId};
use holdfast_volume::map::{MapExtent, MapPiece, split_by_page};
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

    fn key(&self, set: SetId, root: RootRef) -> Result<Arc<SetKey>, MapError> {
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

impl Mapping {
    /// The places of a range, part by part, according to `root`.
    pub(super) async fn places(
        &self,
        root: RootRef,
        volume: VolumeId,
        lba: Lba,
        sectors: Sectors,
    ) -> Result<Vec<At>, MapError> {
        let root = self.shown(root).await?;
        let mut out = Vec::new();
        self.places_in(None, &root, 0, (volume, lba, sectors), &mut out).await?;
        Ok(out)
    }

    async fn places_in(
        &self,
        key: Option<Arc<SetKey>>,
        root: &Known,
        depth: u32,
        (volume, lba, sectors): (VolumeId, Lba, Sectors),
        out: &mut Vec<At>,
    ) -> Result<(), MapError> {
        for (number, lba, sectors) in split_by_page(lba, sectors) {
            let page = match self.place_of(key.as_deref(), root, volume, number).await? {
                Some(place) => Some(self.page_of(key.as_deref(), &place, volume, number).await?),
                None => None,
            };
            for piece in root.lookup(page.as_deref(), volume, lba, sectors) {
                match piece {
                    MapPiece::Zero { sectors, .. } => out.push(At::Zeroes(sectors)),
                    MapPiece::Stored(extent) => out.push(At::Extent(key.clone(), extent)),
                    MapPiece::Below { lba, sectors } => self.below(root, depth, (volume, lba, sectors), out).await?,
                }
            }
        }
        Ok(())
    }

    /// Continues in the root's base for the range.
    fn below<'a>(
        &'a self,
        root: &'a Known,
        depth: u32,
        range: (VolumeId, Lba, Sectors),
        out: &'a mut Vec<At>,
    ) -> BoxFuture<'a, Result<(), MapError>> {
        Box::pin(async move {
            // `lookup` returns this only if there is a base.
            let Some(base) = root.base() else { return Ok(()) };
            if depth >= CLONE_DEPTH_MAX {
                let reason = format!("found more than {CLONE_DEPTH_MAX} origins below one another");
                return Err(MapError::Bad { what: "base", object: base.root.object, reason });
            }
            let key = self.origins.key(base.set, base.root)?;
            let root = self.shown_of(&key, base.root).await?;
            self.places_in(Some(key), &root, depth + 1, range, out).await
        })
    }
}
