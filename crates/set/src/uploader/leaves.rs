//! Reads and writes the leaves of a checkpoint's root (ADR 0034). A leaf is "away" if it is in the store and not in
//! memory.
//!
//! If all leaves are in memory, they are written at the end, together. If some are away, leaves are written while the
//! checkpoint goes through its pages. So memory stays limited, however much the checkpoint changes.

use super::collect::{SURVIVORS_LIMIT, UNREAD_MAX, damaged};
use super::state::{LEAVES_AHEAD, UploadError, Uploader};
use crate::mapping::MapError;
use futures_util::{StreamExt, TryStreamExt, stream};
use holdfast_control::set::RootRef;
use holdfast_seal::ObjectSealer;
use holdfast_types::{ObjectId, Term, VolumeId};
use holdfast_volume::map::{Leaf, LeafPack, LeafRef, LeafShape, LeafWriting, Page, PageAt, PageRef, PartialRoot, Root};
use std::sync::Arc;
use tokio::time::error::Elapsed;

/// Creates the sealer of each new pack of leaves.
type Sealers = Box<dyn FnMut() -> ObjectSealer + Send>;

/// The leaves that a checkpoint writes as it goes through its pages.
pub(super) type Leaves = LeafWriting<Sealers>;

/// A page's entry in the map before the checkpoint.
pub(super) struct OldPage {
    /// Its leaf, if that was away.
    pub(super) leaf: Option<(LeafRef, Leaf)>,
    /// Its place.
    pub(super) place: Option<PageRef>,
    /// The opened page, or the read error. An error does not fail the checkpoint if the page's content is not needed
    /// (R9).
    pub(super) page: Result<Option<Arc<Page>>, MapError>,
}

impl Uploader {
    fn sealers(&self, term: Term) -> Sealers {
        let (sealing, member, boot) = (self.sealing(), self.server.me(), self.boot);
        Box::new(move || sealing.sealer(ObjectId { term, member, boot, random: crate::random::random_u128() }))
    }

    /// The root on which a checkpoint is based. Its leaves may be away only if the new root is written in leaves of the
    /// same shape.
    pub(super) async fn base(&self, at: RootRef, shape: Option<LeafShape>) -> Result<PartialRoot, UploadError> {
        let base = self.mapping.base(at).await?;
        let fits = shape.is_some_and(|shape| base.fits(&shape) && base.whole_bytes() > shape.whole_bytes);
        if fits || base.whole().is_some() {
            return Ok(base);
        }
        Ok(PartialRoot::from(Root::clone(&*self.mapping.root(at).await?)))
    }

    /// If leaves of the root are away, they are written as the checkpoint goes through its pages; otherwise all at the
    /// end, by [`Uploader::divide`].
    pub(super) fn begin_leaves(&self, term: Term, root: &mut PartialRoot, shape: Option<LeafShape>) -> Option<Leaves> {
        let shape = shape.filter(|_| root.whole().is_none())?;
        Some(root.begin_writing(&shape, self.sealers(term)))
    }

    /// Pages before this one will not change any more: their sealed leaves go to the store and leave memory (LEAF-L5).
    pub(super) async fn pass_leaves(
        &self,
        term: Term,
        root: &mut PartialRoot,
        (volume, number): (VolumeId, u32),
        leaves: &mut Leaves,
    ) -> Result<(), UploadError> {
        self.mapping.adopt_leaves(root.pass_to(volume, number, self.mapping.leaf_bytes(), leaves));
        self.put_leaves(term, leaves.take_packs()).await
    }

    /// Writes the remaining leaves once all pages are replaced. The returned ones are not in the store yet.
    pub(super) async fn end_leaves(
        &self,
        term: Term,
        mut root: PartialRoot,
        mut leaves: Leaves,
    ) -> Result<(PartialRoot, Vec<LeafPack>), UploadError> {
        // Each step goes through up to all leaves, which takes longer than heartbeats may wait.
        let beginning = holdfast_log::spawn_blocking(move || {
            root.begin_rest(&mut leaves);
            (root, leaves)
        });
        (root, leaves) = beginning.await?;
        self.move_leaves(term, &mut root, &mut leaves).await?;
        let writing = holdfast_log::spawn_blocking(move || {
            root.write_rest(&mut leaves);
            (root, leaves)
        });
        (root, leaves) = writing.await?;
        self.empty_leaf_packs(term, &mut root, &mut leaves).await?;
        let ending = holdfast_log::spawn_blocking(move || {
            let packs = root.end_writing(leaves);
            (root, packs)
        });
        Ok(ending.await?)
    }

    /// Seals leaves again that are away and under an older data key.
    async fn move_leaves(&self, term: Term, root: &mut PartialRoot, leaves: &mut Leaves) -> Result<(), UploadError> {
        let mut found = stream::iter(root.to_move(leaves))
            .map(|leaf| async move { self.mapping.own_leaf(&leaf).await.map(|found| (leaf, found)) })
            .buffered(LEAVES_AHEAD);
        while let Some((leaf, found)) = found.try_next().await? {
            root.move_leaf(&leaf, found, leaves).map_err(|e| bad_leaf(&leaf, &e))?;
            self.put_leaves(term, leaves.take_packs()).await?;
        }
        Ok(())
    }

    /// Like `move_leaves`, for leaves in packs with too much garbage (LEAF-L3). This only saves space: an unreadable
    /// leaf stays where it is.
    async fn empty_leaf_packs(
        &self,
        term: Term,
        root: &mut PartialRoot,
        leaves: &mut Leaves,
    ) -> Result<(), UploadError> {
        let mut found = stream::iter(root.to_move(leaves))
            .map(|leaf| async move { (leaf, self.leaf_soon(&leaf).await) })
            .buffered(LEAVES_AHEAD);
        let mut unread = 0;
        while let Some((leaf, found)) = found.next().await {
            match found {
                Ok(Ok(found)) => {
                    root.move_leaf(&leaf, found, leaves).map_err(|e| bad_leaf(&leaf, &e))?;
                    self.put_leaves(term, leaves.take_packs()).await?;
                }
                Ok(Err(e)) if !damaged(&e) => return Err(e),
                Ok(Err(error)) => {
                    tracing::error!(set = %self.server.name, %error, "R9: a leaf of the map cannot be moved");
                    self.count_damaged();
                    root.leave_in_place(&leaf, leaves);
                }
                Err(_) => {
                    tracing::warn!(set = %self.server.name, pack = %leaf.at.object, limit = ?SURVIVORS_LIMIT, "cannot read a leaf of the map that should be moved from the store; it stays where it is");
                    root.leave_in_place(&leaf, leaves);
                    unread += 1;
                    if unread == UNREAD_MAX {
                        break;
                    }
                }
            }
        }
        for leaf in root.to_move(leaves) {
            root.leave_in_place(&leaf, leaves);
        }
        Ok(())
    }

    /// Reads a leaf that the checkpoint can do without, with a time limit.
    pub(super) async fn leaf_soon(&self, leaf: &LeafRef) -> Result<Result<Leaf, UploadError>, Elapsed> {
        let found = tokio::time::timeout(SURVIVORS_LIMIT, self.mapping.own_leaf(leaf)).await?;
        Ok(found.map_err(UploadError::from))
    }

    /// Seals the leaves of a root that changed, or makes it a root that is written whole. Last step before the root
    /// itself is sealed, if none of its leaves is away.
    ///
    /// # Panics
    /// LEAF-L4: if a leaf is away. The result would not contain it.
    pub(super) async fn divide(
        &self,
        term: Term,
        root: PartialRoot,
    ) -> Result<(PartialRoot, Vec<LeafPack>), UploadError> {
        let (shape, sealers) = ((self.in_leaves)(), self.sealers(term));
        let dividing = holdfast_log::spawn_blocking(move || {
            let mut root = match root.into_whole() {
                Ok(root) => root,
                Err(root) => panic!("LEAF-L4: found {} leaves away, expected all here", root.away().count()),
            };
            root.drop_dead_segments();
            let packs = match shape {
                Some(shape) if root.whole_bytes() > shape.whole_bytes => root.write_leaves(&shape, sealers),
                _ => {
                    root.make_whole();
                    Vec::new()
                }
            };
            (PartialRoot::from(root), packs)
        });
        Ok(dividing.await?)
    }

    /// Reads the map's page; `at` is its place.
    pub(super) async fn old_page(&self, at: PageAt, volume: VolumeId, number: u32) -> Result<OldPage, UploadError> {
        let (leaf, place) = match at {
            PageAt::Nowhere => (None, None),
            PageAt::Page(place) => (None, Some(place)),
            PageAt::Leaf(leaf) => {
                let found = self.mapping.own_leaf(&leaf).await?;
                let place = found.page(number);
                (Some((leaf, found)), place)
            }
        };
        let page = match place {
            Some(place) => self.mapping.page(&place, volume, number).await.map(Some),
            None => Ok(None),
        };
        Ok(OldPage { leaf, place, page })
    }
}

/// The error of a leaf that differs from what its root says.
pub(super) fn bad_leaf(leaf: &LeafRef, error: &holdfast_volume::map::MapError) -> UploadError {
    MapError::Bad { what: "leaf", object: leaf.at.object, reason: error.to_string() }.into()
}
