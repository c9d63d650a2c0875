//! What a clone shows of its origins (ADR 0028): their roots, pages and extents lie in the same store, under the origin's number and key.
//!
//! ```text
//!   own root ─▶ own page: an extent, or hidden ─▶ that          neither ─▶ the base's root ─▶ its page ─▶ …     at most CLONE_DEPTH_MAX times
//! ```
//! Whose an object is decides the key that it is read under and what opens it, nothing else: a place names its content for ever, so cache and
//! pages are shared by all that show it.

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

/// The data key of a set that others are clones of. It is had from group 0's entry of that set, where a change of the cluster key rewraps it: no clone
/// keeps a copy.
pub type KeyOf = Arc<dyn Fn(SetId) -> Result<SetKey, String> + Send + Sync>;

/// After so long an origin's keys are asked for again: it may have got another one.
const ASKED_AGAIN: Duration = Duration::from_secs(60);

/// Keys of origins, as far as they were asked for.
pub(super) struct Origins {
    key_of: KeyOf,
    known: Mutex<BTreeMap<SetId, (Instant, Arc<SetKey>)>>,
}

impl Origins {
    pub(super) fn new(key_of: KeyOf) -> Self {
        Self { key_of, known: Mutex::default() }
    }

    /// For a set that is no clone, and for tests: there are none.
    pub(super) fn none() -> Self {
        Self::new(Arc::new(|set| Err(format!("nothing is known of set {set} here"))))
    }

    fn key(&self, set: SetId, root: RootRef) -> Result<Arc<SetKey>, MapError> {
        let mut known = self.known.locked();
        // One that changed its data key since: all of its roots that clones show open with what group 0 had then, and has (Z3).
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
            // What opened it before does so still.
            Err(error) => known.get(&set).map(|(_, key)| key.clone()).ok_or(error),
        }
    }
}

/// Where a part of a range is.
#[derive(Clone)]
pub(super) enum At {
    /// Nowhere: it reads as zeroes.
    Zeroes(Sectors),
    /// In a segment of the set itself, or of an origin, whose key this is.
    Extent(Option<Arc<SetKey>>, MapExtent),
}

impl Mapping {
    /// Where the range is, part by part, as `root` has it.
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

    /// What the root's base says of the range.
    fn below<'a>(
        &'a self,
        root: &'a Known,
        depth: u32,
        range: (VolumeId, Lba, Sectors),
        out: &'a mut Vec<At>,
    ) -> BoxFuture<'a, Result<(), MapError>> {
        Box::pin(async move {
            // `lookup` answers so only where there is one.
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
