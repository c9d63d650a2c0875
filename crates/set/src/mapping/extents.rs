//! Extents of segments, by blocks (ADR 0042). A request to the store is for a whole extent; memory has opened blocks,
//! the cache's disk has stretches of sealed ones. `volume::segment` says which blocks and stretches there are.

use super::{MapError, Mapping, Part};
use crate::origins::At;
use crate::set_key::SetKey;
use bytes::Bytes;
use futures_util::future::BoxFuture;
use futures_util::{StreamExt, TryStreamExt, stream};
use holdfast_cache::{BlockKey, Demand, Fetched, Source, Wanted};
use holdfast_control::set::RootRef;
use holdfast_seal::ObjectOpener;
use holdfast_store::keys;
use holdfast_types::{Lba, ObjectId, Sectors, SetId, VolumeId};
use holdfast_volume::map::MapExtent;
use holdfast_volume::segment::{SegmentError, Stretch, TableEntry, open_apart, open_blocks};
use std::ops::Range;
use std::sync::Arc;

/// Maximum number of loads, each of one stretch, that one read or one prefetch has under way.
const LOADS_AT_ONCE: usize = 8;

impl Mapping {
    /// Reads the range as of `root`. Data read for a scan must not push other readers' data out of the disk cache.
    ///
    /// # Errors
    /// [`MapError`].
    pub async fn read(
        &self,
        root: RootRef,
        volume: VolumeId,
        lba: Lba,
        sectors: Sectors,
        demand: Demand,
        out: &mut Vec<Part>,
    ) -> Result<(), MapError> {
        // Fetches missing extents concurrently: a large read would otherwise wait for one store answer after another.
        let mut missing = Vec::new();
        for place in self.places(root, volume, lba, sectors).await? {
            let (key, extent) = match place {
                At::Extent(key, extent) => (key, extent),
                At::Zeroes(sectors) => {
                    out.push(Part::Zeroes(sectors));
                    continue;
                }
            };
            let (first, mut absent) = (out.len(), Vec::new());
            for block in touched(&extent)? {
                out.push(Part::Data(match self.cache.get(&block_key(&extent, block)) {
                    Some(raw) => part_of(&raw, &extent, block)?,
                    None => {
                        absent.push(block);
                        Bytes::new()
                    }
                }));
            }
            if !absent.is_empty() {
                missing.push((first, key, extent, absent));
            }
        }
        let each = loads_of_each(missing.len());
        let mut fetched = stream::iter(missing)
            .map(|(first, key, extent, absent)| async move {
                let raw = self.blocks(key.as_deref(), volume, &extent, &absent, each, demand).await?;
                Ok::<_, MapError>((first, extent, absent, raw))
            })
            .buffer_unordered(LOADS_AT_ONCE);
        while let Some((first, extent, absent, raw)) = fetched.try_next().await? {
            let begin = touched(&extent)?.start;
            for (block, raw) in absent.into_iter().zip(&raw) {
                out[first + block - begin] = Part::Data(part_of(raw, &extent, block)?);
            }
        }
        Ok(())
    }

    /// Loads `root`'s data in the range into memory. Returns the number of extents that were missing.
    ///
    /// # Errors
    /// [`MapError`].
    pub(crate) async fn warm(
        &self,
        root: RootRef,
        volume: VolumeId,
        lba: Lba,
        sectors: Sectors,
        demand: Demand,
    ) -> Result<u64, MapError> {
        let mut missing: Vec<(Option<Arc<SetKey>>, MapExtent, Vec<usize>)> = Vec::new();
        for place in self.places(root, volume, lba, sectors).await? {
            let At::Extent(key, extent) = place else { continue };
            let absent = touched(&extent)?.filter(|block| !self.cache.has(&block_key(&extent, *block)));
            match missing.last_mut() {
                // Several pieces of one extent need one request. They are in order, and may share a block.
                Some((_, last, blocks)) if block_key(last, 0) == block_key(&extent, 0) => {
                    blocks.extend(absent);
                    blocks.dedup();
                }
                _ => {
                    let blocks: Vec<usize> = absent.collect();
                    if !blocks.is_empty() {
                        missing.push((key, extent, blocks));
                    }
                }
            }
        }
        let (extents, each) = (missing.len() as u64, loads_of_each(missing.len()));
        let mut fetched = stream::iter(missing)
            .map(|(key, extent, absent)| async move {
                self.blocks(key.as_deref(), volume, &extent, &absent, each, demand).await.map(drop)
            })
            .buffer_unordered(LOADS_AT_ONCE);
        while fetched.try_next().await?.is_some() {}
        Ok(extents)
    }

    /// Caches sealed parts of an object made here, stretches of extents or pages: otherwise each would be fetched
    /// separately at its first read.
    pub async fn keep_sealed(&self, object: ObjectId, body: &Bytes, parts: Vec<Stretch>) {
        let piece = |part: Stretch| (BlockKey { object, number: part.number, block: part.block }, part.cut(body, 0));
        self.cache.keep_sealed(parts.into_iter().map(piece)).await;
    }

    /// Whether any of an extent's range is in memory or on local disk; if not, it was not read recently.
    pub fn is_at_hand(&self, extent: &MapExtent) -> bool {
        touched(extent).is_ok_and(|mut blocks| {
            blocks.any(|block| {
                let entry = block_key(extent, extent.place.stretch_of(block).start);
                self.cache.has(&block_key(extent, block)) || self.cache.has_sealed(&entry)
            })
        })
    }

    /// Whether the first part of an object is on local disk. Usually the whole object was put there, and may be partly
    /// evicted. (Exceptions: only that part was read here, or it stayed because it was read: CACHE-C7 in `cache`.)
    pub(crate) fn has_begin_of(&self, object: ObjectId) -> bool {
        self.cache.has_sealed(&BlockKey::first(object, 0))
    }

    /// Blocks of a sealed extent, in ascending order, with up to `at_once` loads of stretches under way.
    async fn blocks(
        &self,
        of: Option<&SetKey>,
        volume: VolumeId,
        extent: &MapExtent,
        blocks: &[usize],
        at_once: usize,
        demand: Demand,
    ) -> Result<Vec<Bytes>, MapError> {
        let entry = TableEntry { volume, lba: extent.sealed_lba(), place: extent.place };
        let (of, object) = (of.unwrap_or(&self.key), extent.object);
        let same = |a: &usize, b: &usize| extent.place.stretch_of(*a) == extent.place.stretch_of(*b);
        // Around all of them: a damaged extent is fetched again once, not once for each of its stretches.
        let load = || async {
            let opener = of.opener(object);
            let mut loads = Vec::new();
            for wanted in blocks.chunk_by(same) {
                let first = extent.place.stretch_of(wanted[0]).start;
                let stretch = OfStretch { mapping: self, set: of.set, opener: &opener, object, entry, first, wanted };
                loads.push(stretch.load(demand));
            }
            let loaded: Vec<(usize, Vec<Bytes>)> = stream::iter(loads).buffer_unordered(at_once).try_collect().await?;
            Ok::<_, MapError>(loaded)
        };
        let mut loaded = self.unspoilt(load).await?;
        loaded.sort_unstable_by_key(|(first, _)| *first);
        Ok(loaded.into_iter().flat_map(|(_, blocks)| blocks).collect())
    }
}

/// Some blocks of one stretch of an extent.
struct OfStretch<'a> {
    mapping: &'a Mapping,
    set: SetId,
    /// Made once for all stretches of an extent.
    opener: &'a ObjectOpener,
    object: ObjectId,
    entry: TableEntry,
    /// The stretch's first block.
    first: usize,
    /// In ascending order.
    wanted: &'a [usize],
}

impl OfStretch<'_> {
    /// Its first block, and the wanted ones.
    async fn load(self, demand: Demand) -> Result<(usize, Vec<Bytes>), MapError> {
        let values: Vec<BlockKey> = self.wanted.iter().map(|block| self.key(*block)).collect();
        let wanted = Wanted { whole: self.key(0), entry: self.key(self.first), values: &values };
        Ok((self.first, self.mapping.cache.get_several(demand, &wanted, &self).await?))
    }

    fn key(&self, block: usize) -> BlockKey {
        BlockKey { object: self.object, number: self.entry.place.number, block: block as u32 }
    }

    fn bad(&self, error: &SegmentError) -> MapError {
        MapError::Bad { what: "extent", object: self.object, reason: error.to_string() }
    }
}

/// R9, R10: the disk cache holds sealed bytes; this process authenticates everything it returns.
impl Source<Bytes> for OfStretch<'_> {
    type Error = MapError;

    fn open(&self, sealed: &Bytes) -> Result<Vec<Bytes>, MapError> {
        let blocks =
            open_blocks(self.opener, &self.entry, self.first, sealed, self.wanted).map_err(|e| self.bad(&e))?;
        Ok(blocks.into_iter().map(Bytes::from).collect())
    }

    fn fetch(&self) -> BoxFuture<'_, Result<Bytes, MapError>> {
        Box::pin(async move {
            let object_key = keys::segment(self.set, self.object);
            let range: Range<u64> = self.entry.place.range();
            self.mapping.patient(|| self.mapping.store.get_range(&object_key, range.clone())).await
        })
    }

    fn take_apart(&self, sealed: Bytes) -> Result<Fetched<Bytes>, MapError> {
        let apart = open_apart(self.opener, &self.entry, &sealed).map_err(|e| self.bad(&e))?;
        let from = self.entry.place.range().start;
        let entry = |part: &Stretch| (self.key(part.block as usize), part.pieces(&sealed, from));
        let value = |(block, raw): (usize, Vec<u8>)| (self.key(block), Bytes::from(raw));
        Ok(Fetched {
            entries: apart.stretches.iter().map(entry).collect(),
            values: apart.blocks.into_iter().enumerate().map(value).collect(),
        })
    }
}

/// How many loads each of these extents may have at once. The first load of an extent that is not on disk fetches all
/// of it, so many extents have as many requests under way.
fn loads_of_each(extents: usize) -> usize {
    LOADS_AT_ONCE / extents.clamp(1, LOADS_AT_ONCE)
}

fn block_key(extent: &MapExtent, block: usize) -> BlockKey {
    BlockKey { object: extent.object, number: extent.place.number, block: block as u32 }
}

/// The blocks that the map's part of a sealed extent touches.
fn touched(extent: &MapExtent) -> Result<Range<usize>, MapError> {
    let part = extent.raw_range();
    if part.end > extent.place.raw_len as usize {
        let reason = format!("found {} bytes, expected at least {}", extent.place.raw_len, part.end);
        return Err(MapError::Bad { what: "extent", object: extent.object, reason });
    }
    Ok(extent.place.blocks().touched(&part))
}

/// What the map names of an opened block.
fn part_of(raw: &Bytes, extent: &MapExtent, block: usize) -> Result<Bytes, MapError> {
    let (part, of_block) = (extent.raw_range(), extent.place.blocks().raw(block));
    if raw.len() != of_block.len() {
        let reason = format!("found {} bytes in block {block}, expected {}", raw.len(), of_block.len());
        return Err(MapError::Bad { what: "extent", object: extent.object, reason });
    }
    let part = part.start.max(of_block.start) - of_block.start..part.end.min(of_block.end) - of_block.start;
    // A read is charged by its length: its result must not keep whole blocks in memory that are no longer cached.
    let small = part.len() * 2 < raw.len();
    let part = raw.slice(part);
    Ok(if small { Bytes::copy_from_slice(&part) } else { part })
}

#[cfg(test)]
mod tests;
