//! The parts of a clone that come from its origins (ADR 0028): their roots, pages and extents are in the same store,
//! under the origin's number and key.
//!
//! ```text
//!   own root ─▶ own page: an extent, or hidden ─▶ that          neither ─▶ the base's root ─▶ its page ─▶ …     at most CLONE_DEPTH_MAX times
//! ```
//! Only the owner of an object decides its name in the store and the key that opens it: a place names the same content
//! for ever, so cache and pages are shared by all sets that use it.

use super::mapping::{MapError, Mapping};
use super::roots::Known;
use super::set_key::SetKey;
use crate::origins::At;
use futures_util::future::BoxFuture;
use holdfast_control::set::{CLONE_DEPTH_MAX, RootRef};
use holdfast_types::{Lba, Sectors, VolumeId};
use holdfast_volume::map::{MapPiece, split_by_page};
use std::sync::Arc;

pub use crate::origins::KeyOf;

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
