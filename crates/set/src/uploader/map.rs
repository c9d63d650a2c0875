//! Step 4 of a checkpoint: writes the changed pages into page packs, then the root with its leaves.

use super::collect::{Collected, damaged};
use super::leaves::{Leaves, OldPage, bad_leaf};
use super::state::{Changes, LEAVES_AHEAD, PAGES_AHEAD, UploadError, Uploader};
use futures_util::{StreamExt, TryStreamExt, stream};
use holdfast_control::set::{RootRef, SetState, StoredKind};
use holdfast_types::{Lba, LogId, Sectors, Term, VolumeId};
use holdfast_volume::index::{Memtable, Source};
use holdfast_volume::map::{LeafPack, Live, MapExtent, PackBuilder, Page, PageRef, PartialRoot, Root, seal_partial};
use holdfast_volume::plan::unmaps;
use holdfast_volume::space::{Move, fold_page};
use std::collections::BTreeMap;
use std::sync::Arc;

/// A page: its volume, and its number there.
type PageKey = (VolumeId, u32);

/// The pages that a checkpoint changes, with the uploaded extents of each.
type Touched = BTreeMap<PageKey, Vec<MapExtent>>;

/// The map that a checkpoint writes.
struct NewMap<'a> {
    term: Term,
    memtable: &'a Memtable,
    /// Sizes as of the begin: data beyond a volume's end, or of a deleted volume, is never read.
    sizes: BTreeMap<VolumeId, Sectors>,
    collected: Collected,
    root: PartialRoot,
    /// If leaves of the root are away.
    leaves: Option<Leaves>,
    pack: Option<PackBuilder>,
    /// Collection has moved something.
    moved: bool,
}

/// R9: what is done with a damaged page.
enum Unreadable {
    /// No write or move concerns it: it stays.
    Stays,
    /// All of its range was replaced: it is given up.
    GivenUp,
}

impl NewMap<'_> {
    fn moves(&self, at: PageKey) -> &[Move] {
        self.collected.moves.get(&at).map_or(&[][..], Vec::as_slice)
    }

    /// `None` if the checkpoint fails because of this page.
    fn unreadable(&self, at: PageKey, extents: &[MapExtent], error: &UploadError) -> Option<Unreadable> {
        let (volume, number) = at;
        if !damaged(error) || !self.moves(at).is_empty() {
            None
        } else if extents.is_empty() && untouched(self.memtable, volume, number) {
            Some(Unreadable::Stays)
        } else if covered(self.memtable, volume, number, self.sizes.get(&volume).copied()) {
            Some(Unreadable::GivenUp)
        } else {
            None
        }
    }

    /// The new page. `given_up`: the map has an old page here, but it cannot be read.
    fn fold(&self, at: PageKey, extents: &[MapExtent], old: Option<Arc<Page>>, given_up: bool) -> Page {
        let (volume, number) = at;
        let below = self.root.below(volume, number);
        let mut old = old.map_or_else(|| Page::new(volume, number), |page| Page::clone(&page));
        if given_up && below.is_some() {
            // Its hidden ranges are lost; the base must not become visible there.
            old.hide(old.lba(), Sectors(old.end().0 - old.lba().0));
        }
        fold_page(old, self.memtable, extents, self.moves(at), below)
    }
}

impl Uploader {
    /// Step 4. Returns the new root, and whether collection has moved something.
    pub(super) async fn upload_map(
        &self,
        term: Term,
        upto: LogId,
        memtable: &Memtable,
        changes: Changes,
    ) -> Result<(RootRef, Arc<PartialRoot>, bool), UploadError> {
        let shape = (self.in_leaves)();
        let base = match self.host.with(|m| m.state().checkpoint.as_ref().map(|c| c.root)) {
            Some(root) => self.base(root, shape).await?,
            None => PartialRoot::from(Root::new(upto)),
        };
        let sizes: BTreeMap<VolumeId, Sectors> = self
            .host
            .with(|m| m.begun().filter(|(at, _)| *at == upto).map(|(_, state)| volume_sizes(state)))
            .ok_or(UploadError::Superseded)?;
        let collected = self.collect(term, &base, memtable, &changes.segments).await?;
        let mut root = base;
        root.begin(upto, self.sealing().key_id);
        for (object, stored, raw) in changes.segments.iter().chain(&collected.segments) {
            root.add_segment(*object, *stored, *raw);
        }
        let mut touched = changes.extents;
        for page in collected.moves.keys().chain(&collected.pages) {
            touched.entry(*page).or_default();
        }
        self.touch_unmapped(memtable, &mut root, &mut touched).await?;
        let old_root = root.clone();
        let leaves = self.begin_leaves(term, &mut root, shape);
        let moved = !collected.moves.is_empty();
        let mut map = NewMap { term, memtable, sizes, collected, root, leaves, pack: None, moved };
        self.replace_pages(&mut map, &old_root, touched).await?;
        let NewMap { root, leaves, moved, .. } = map;
        let (root, leaves) = match leaves {
            Some(leaves) => self.end_leaves(term, root, leaves).await?,
            None => self.divide(term, root).await?,
        };
        let (root_ref, root) = self.upload_root(term, root, leaves).await?;
        Ok((root_ref, root, moved))
    }

    /// Adds the pages that an unmapping changes. A large one visits only existing pages, not all possible ones.
    async fn touch_unmapped(
        &self,
        memtable: &Memtable,
        root: &mut PartialRoot,
        touched: &mut Touched,
    ) -> Result<(), UploadError> {
        for unmap in unmaps(memtable) {
            let here = root.pages_here_in(unmap.volume, unmap.lba, unmap.sectors);
            let mut numbers: Vec<u32> = here.map(|(number, _)| number).collect();
            let mut away = stream::iter(root.away_in(unmap.volume, unmap.lba, unmap.sectors))
                .map(|leaf| async move { self.mapping.own_leaf(&leaf).await })
                .buffered(LEAVES_AHEAD);
            while let Some(found) = away.try_next().await? {
                tokio::task::consume_budget().await;
                numbers.extend(found.pages_in(unmap.lba, unmap.sectors).into_iter().map(|(number, _)| number));
            }
            // In a clone the unmapping also hides the base: in the root, except for the pages at its two ends.
            let ends = root.hide(unmap.volume, unmap.lba, unmap.sectors);
            for number in numbers.into_iter().chain(ends) {
                touched.entry((unmap.volume, number)).or_default();
            }
        }
        Ok(())
    }

    /// Writes all changed pages. Random writes touch one page each, so the old pages and their leaves are fetched
    /// ahead, in order.
    async fn replace_pages(
        &self,
        map: &mut NewMap<'_>,
        old_root: &PartialRoot,
        touched: Touched,
    ) -> Result<(), UploadError> {
        let mut pages = stream::iter(touched)
            .map(|((volume, number), extents)| {
                let at = old_root.page(volume, number);
                async move { self.old_page(at, volume, number).await.map(|old| ((volume, number), extents, old)) }
            })
            .buffered(PAGES_AHEAD);
        // An unreadable leaf is worse than a damaged page: none of its pages can be located, so the checkpoint fails.
        while let Some((at, extents, old)) = pages.try_next().await? {
            tokio::task::consume_budget().await; // With all pages in the cache, this loop would never yield and would delay heartbeats.
            self.replace_page(map, at, &extents, old).await?;
        }
        if let Some(last) = map.pack.take() {
            self.put_pack(map.term, &mut map.root, last).await?;
        }
        Ok(())
    }

    /// Writes one changed page: into a pack, and its place into the root.
    async fn replace_page(
        &self,
        map: &mut NewMap<'_>,
        at: PageKey,
        extents: &[MapExtent],
        OldPage { leaf, place, page: old }: OldPage,
    ) -> Result<(), UploadError> {
        let (volume, number) = at;
        let old = match old.map_err(UploadError::from) {
            Ok(old) => old,
            Err(e) => match map.unreadable(at, extents, &e) {
                Some(Unreadable::Stays) => {
                    self.report_page_that_stays(at, &e);
                    return Ok(());
                }
                Some(Unreadable::GivenUp) => {
                    self.give_up_page(at, &e);
                    None
                }
                None => return Err(e),
            },
        };
        map.moved |= map.collected.pages.contains(&at);
        let before = old.as_ref().map_or_else(Live::new, |page| page.live());
        let below = map.root.below(volume, number);
        let given_up = old.is_none() && place.is_some();
        let page = map.fold(at, extents, old, given_up);
        let after = page.live();
        if let Some(leaves) = &mut map.leaves {
            self.pass_leaves(map.term, &mut map.root, at, leaves).await?;
        }
        if let Some((leaf, found)) = leaf {
            map.root.bring(&leaf, found).map_err(|e| bad_leaf(&leaf, &e))?;
        }
        let place = self.pack_page(map, page, below);
        map.root.replace_page(volume, number, place, &before, &after)?;
        if let Some(full) = map.pack.take_if(|pack| pack.is_full()) {
            self.put_pack(map.term, &mut map.root, full).await?;
        }
        Ok(())
    }

    /// The place of a page in the open pack; `None` if the root needs no page there.
    fn pack_page(&self, map: &mut NewMap<'_>, page: Page, below: Option<Lba>) -> Option<PageRef> {
        if page.is_empty() {
            return None;
        }
        if below.is_some_and(|end| page.only_hides(end)) {
            map.root.hide(page.volume(), page.lba(), Sectors(page.end().0 - page.lba().0));
            return None;
        }
        let term = map.term;
        let open = map.pack.get_or_insert_with(|| PackBuilder::new(self.sealing().sealer(self.new_object(term))));
        let place = open.push(&page);
        self.mapping.adopt_page(&place, Arc::new(page));
        Some(place)
    }

    /// R9: no write or move concerns this page, so it stays. The checkpoint must not fail for it.
    fn report_page_that_stays(&self, (volume, page): PageKey, error: &UploadError) {
        tracing::error!(set = %self.server.name, %volume, page, %error, "R9: a map page cannot be collected");
        self.count_damaged();
    }

    /// R9: all of its range was replaced. Its extents stay counted and are never deleted.
    fn give_up_page(&self, (volume, page): PageKey, error: &UploadError) {
        tracing::error!(set = %self.server.name, %volume, page, %error, "R9: a damaged map page that is no longer needed is given up");
        metrics::counter!("holdfast_map_pages_given_up_total", "set" => self.server.name.to_string()).increment(1);
        // It prevented segments that it shares with other pages from being emptied.
        self.spared().clear();
    }

    /// Uploads the root together with its last leaves.
    async fn upload_root(
        &self,
        term: Term,
        mut root: PartialRoot,
        leaves: Vec<LeafPack>,
    ) -> Result<(RootRef, Arc<PartialRoot>), UploadError> {
        // They are not in the store yet: until then, page lookups use the previous root.
        self.mapping.adopt_leaves(root.let_go(self.mapping.leaf_bytes()));
        let object = self.new_object(term);
        let sealer = self.sealing().sealer(object);
        // Sealing a root of many TiB that is written whole takes longer than heartbeats may wait.
        let sealing = holdfast_log::spawn_blocking(move || {
            let body = seal_partial(&root, sealer);
            (Arc::new(root), body)
        });
        let (root, body) = sealing.await?;
        let root_ref = RootRef { object, bytes: body.len() as u64 };
        // Concurrently: no head names this root, so nobody reads it, before all of it is stored (HEAD-H2).
        tokio::try_join!(self.put_leaves(term, leaves), self.put(term, StoredKind::Root, object, body))?;
        Ok((root_ref, root))
    }
}

/// Whether the memtable changes nothing in the page's range.
fn untouched(memtable: &Memtable, volume: VolumeId, number: u32) -> bool {
    let page = Page::new(volume, number);
    let sectors = Sectors(page.end().0 - page.lba().0);
    memtable.pieces(volume, page.lba(), sectors).all(|piece| piece.source == Source::Map)
}

/// Whether the memtable covers the page's range up to `size`, the volume's end; `None` if it is deleted.
fn covered(memtable: &Memtable, volume: VolumeId, number: u32, size: Option<Sectors>) -> bool {
    let page = Page::new(volume, number);
    let end = page.end().0.min(size.map_or(0, |size| size.0));
    let sectors = Sectors(end.saturating_sub(page.lba().0));
    sectors.0 == 0 || memtable.pieces(volume, page.lba(), sectors).all(|piece| piece.source != Source::Map)
}

fn volume_sizes(state: &SetState) -> BTreeMap<VolumeId, Sectors> {
    state.volumes.iter().map(|(id, volume)| (*id, volume.size)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_types::LogIndex;
    use holdfast_volume::index::JournalRef;
    use holdfast_volume::map::PAGE_SECTORS;

    const V: VolumeId = VolumeId(1);

    /// Writes in operations of at most 1 MiB.
    fn written(memtable: &mut Memtable, from: u64, sectors: u64) {
        for at in (0..sectors).step_by(2048) {
            let op = (sectors - at).min(2048);
            let op_sectors = u32::try_from(op).unwrap();
            let place = JournalRef { index: LogIndex(7 + at), header_offset: 0, op_sectors, skip: 0 };
            memtable.insert(V, Lba(from + at), Sectors(op), Source::Journal(place));
        }
    }

    /// R9: a damaged page is given up only if nobody can read any part of it any more, up to the end of the volume.
    #[test]
    fn a_page_is_covered_up_to_the_end_of_its_volume_and_not_less() {
        let page = |memtable: &Memtable, size| covered(memtable, V, 1, size);
        let end = PAGE_SECTORS + 1000;
        let mut memtable = Memtable::new();
        assert!(!page(&memtable, Some(Sectors(end))));
        assert!(page(&memtable, None), "of a deleted volume");
        assert!(page(&memtable, Some(Sectors(PAGE_SECTORS))), "beyond the end");
        written(&mut memtable, PAGE_SECTORS, 999);
        assert!(!page(&memtable, Some(Sectors(end))), "one sector is missing");
        memtable.insert(V, Lba(end - 1), Sectors(1), Source::Zero);
        assert!(page(&memtable, Some(Sectors(end))));
        assert!(!page(&memtable, Some(Sectors(end + 1))), "it grew before the checkpoint began");
        assert!(!page(&memtable, Some(Sectors(4 * PAGE_SECTORS))));
        written(&mut memtable, PAGE_SECTORS, PAGE_SECTORS);
        assert!(page(&memtable, Some(Sectors(4 * PAGE_SECTORS))));
    }
}
