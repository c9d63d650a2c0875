//! What is in the store: roots, their leaves, and pages of the map, extents of segments, each opened and checked once and then cached.
//!
//! All objects are immutable (R7), so nothing here is ever stale: a place names its content for ever. Reads retry as long
//! as the store only fails to answer (R8: an S3 outage is waited out); bad bytes are an error at once (R9).

use crate::bases::{At, KeyOf, Origins};
use crate::reader::Part;
use crate::roots::{Known, Roots};
use crate::scrub::in_trouble;
use crate::wall_clock::unix_ms;
use bytes::Bytes;
use futures_util::{StreamExt, TryStreamExt, stream};
use holdfast_cache::{BlockKey, Cache, CacheError, Demand, Flights, ReadCache};
use holdfast_control::set::RootRef;
use holdfast_store::{Disposition, Health, Kind, ObjectStore, StoreError, keys};
use holdfast_types::{Lba, ObjectId, Sectors, VolumeId};
use holdfast_volume::map::{
    Leaf, MapExtent, MapPiece, Page, PageRef, PartialRoot, Root, Top, open_page, split_by_page,
};
use holdfast_volume::segment::open_extent;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Extents that one read, or one reading ahead, fetches at once.
const EXTENTS_AT_ONCE: usize = 8;

/// Between two tries of a read that the store did not answer, at most.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);

/// An object that a root names is there (H2), whatever one answer says: so often it is asked for again before it is taken for lost. With the pauses between, three
/// seconds; a stale answer does not last as long.
const MISSING_TRIES: u32 = 6;

/// Bytes that are not what was written are fetched anew so often before the object is taken for damaged: they may have been spoilt on their way.
const DAMAGED_TRIES: u32 = 3;

/// Leaves of pages that a gateway keeps of a root for itself, in bytes as they are in memory: all of them up to some 28 TiB of random extents. Those beyond it are
/// in the cache, as long as they stay there, and in the store.
pub const LEAF_BYTES: u64 = 64 << 20;

/// What a read from the store failed with.
#[derive(Debug, thiserror::Error)]
pub enum MapError {
    /// The store has not got it, refuses it, or the gateway is stopping.
    #[error("store: {0}")]
    Store(#[from] Arc<StoreError>),
    /// The bytes are not what they must be (R9).
    #[error("{what} {object}: {reason}")]
    Bad {
        /// Root, leaf, page or extent.
        what: &'static str,
        /// The object.
        object: ObjectId,
        /// What was found and expected.
        reason: String,
    },
    /// The gateway is stopping.
    #[error("stopping")]
    Stopping,
}

impl From<StoreError> for MapError {
    fn from(e: StoreError) -> Self {
        MapError::Store(Arc::new(e))
    }
}

/// Told the bytes of each request before it is sent: for who pays for what it takes of the store. What is in memory or on disk here, or comes with somebody else's
/// request, costs nothing.
pub(super) type Pay<'a> = &'a (dyn Fn(u64) + Sync);

pub use crate::set_key::SetKey;

mod opened;
mod partial;

pub(super) use opened::aside;
pub(crate) use opened::{span, together};

/// What finds extents.
#[derive(Clone)]
enum Node {
    Page(Arc<Page>),
    Leaf(Leaf),
}

impl Node {
    fn memory_bytes(&self) -> usize {
        match self {
            Node::Page(page) => page.memory_bytes(),
            Node::Leaf(leaf) => leaf.memory_bytes(),
        }
    }
}

/// One set's way to its store.
pub struct Mapping {
    /// Its data keys.
    pub key: SetKey,
    /// Its store.
    pub store: Arc<dyn ObjectStore>,
    health: Arc<Health>,
    cache: Cache,
    roots: Arc<Roots<Root>>,
    /// Those of which not all leaves may be in memory at once.
    partials: Roots<PartialRoot>,
    /// What leaves of pages of one root may take.
    leaf_bytes: u64,
    tops: Roots<Top>,
    opening: Flights<Known>,
    /// Pages, and the leaves that reads found them by.
    pages: ReadCache<Node>,
    pub(super) origins: Origins,
    /// How far exports are read ahead of their readers.
    pub(super) read_ahead: Sectors,
    stop: CancellationToken,
}

impl Mapping {
    /// `page_bytes`: memory for opened pages, beside that of `cache`, whose disk they share. `read_ahead`: how far at most.
    ///
    /// # Errors
    /// Too little memory.
    pub fn new(
        key: SetKey,
        store: Arc<dyn ObjectStore>,
        health: Arc<Health>,
        cache: Cache,
        page_bytes: usize,
        read_ahead: Sectors,
        stop: CancellationToken,
    ) -> Result<Self, CacheError> {
        let pages = cache.sibling(page_bytes, Node::memory_bytes)?;
        let (roots, tops, opening) = (Arc::default(), Roots::default(), Flights::default());
        let (partials, origins, leaf_bytes) = (Roots::default(), Origins::none(), LEAF_BYTES);
        Ok(Self {
            key,
            store,
            health,
            cache,
            roots,
            partials,
            leaf_bytes,
            tops,
            opening,
            pages,
            origins,
            read_ahead,
            stop,
        })
    }

    /// With so many bytes for the leaves of pages of one root.
    #[must_use]
    pub fn with_leaf_bytes(self, leaf_bytes: u64) -> Self {
        Self { leaf_bytes, ..self }
    }

    /// Of a set that may be a clone: where its origins' keys come from.
    #[must_use]
    pub fn with_origins(self, key_of: KeyOf) -> Self {
        Self { origins: Origins::new(key_of), ..self }
    }

    /// Reads the range as `root` has it, perhaps for a scan: what that reads is not to push out of the cache's disk what others read.
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
        // What is not in memory is fetched several at once: a large read would else wait for one answer of the store after the other.
        let mut missing = Vec::new();
        for place in self.places(root, volume, lba, sectors).await? {
            out.push(match place {
                At::Zeroes(sectors) => Part::Zeroes(sectors),
                At::Extent(key, extent) => match self.cache.get(&extent_key(&extent)) {
                    Some(raw) => Part::Data(part_of(&raw, &extent)?),
                    None => {
                        missing.push((out.len(), key, extent));
                        Part::Data(Bytes::new())
                    }
                },
            });
        }
        let mut fetched = stream::iter(missing)
            .map(|(at, key, extent)| async move {
                self.extent(key.as_deref(), volume, &extent, demand).await.map(|data| (at, data))
            })
            .buffer_unordered(EXTENTS_AT_ONCE);
        while let Some((at, data)) = fetched.try_next().await? {
            out[at] = Part::Data(data);
        }
        Ok(())
    }

    /// Brings what `root` has of the range into memory; how many extents were not there.
    ///
    /// # Errors
    /// [`MapError`].
    pub(super) async fn warm(
        &self,
        root: RootRef,
        volume: VolumeId,
        lba: Lba,
        sectors: Sectors,
        demand: Demand,
    ) -> Result<u64, MapError> {
        let places = self.places(root, volume, lba, sectors).await?.into_iter();
        let mut missing: Vec<_> = places
            .filter_map(|place| match place {
                At::Extent(key, extent) if !self.cache.has(&extent_key(&extent)) => Some((key, extent)),
                _ => None,
            })
            .collect();
        // Several pieces of one extent are one request.
        missing.dedup_by_key(|(_, extent)| extent_key(extent));
        let extents = missing.len() as u64;
        let mut fetched = stream::iter(missing)
            .map(|(key, extent)| async move { self.extent(key.as_deref(), volume, &extent, demand).await.map(drop) })
            .buffer_unordered(EXTENTS_AT_ONCE);
        while fetched.try_next().await?.is_some() {}
        Ok(extents)
    }

    /// Whether the store does not answer as it should; of several, whether none does.
    pub(super) fn in_trouble(&self) -> bool {
        let now = unix_ms();
        match self.store.several() {
            // Each has a health of its own, and nobody tells the set's.
            Some(several) => several.healths(now).all(|standing| in_trouble(&standing)),
            None => in_trouble(&self.health.standing(now)),
        }
    }

    /// Reads of the set go by this root: it stays in memory.
    pub(super) fn note_current(&self, at: RootRef) {
        self.roots.note_current(at);
        self.partials.note_current(at);
        self.tops.note_current(at);
    }

    /// A part of what differs between these two is looked for, and perhaps the next one soon.
    pub(super) fn note_compared(&self, roots: [RootRef; 2]) {
        self.roots.note_compared(roots);
    }

    /// Whether a root is in memory.
    pub(super) fn has_root(&self, at: RootRef) -> bool {
        self.roots.get(at).is_some()
    }

    /// A whole segment, past the cache: for who empties it.
    ///
    /// # Errors
    /// [`MapError`]; the bytes are not checked yet.
    pub async fn segment(&self, object: ObjectId) -> Result<Bytes, MapError> {
        let key = keys::segment(self.key.set, object);
        self.patient(|| self.store.get(&key)).await
    }

    /// A page of the map.
    ///
    /// # Errors
    /// [`MapError`].
    pub async fn page(&self, place: &PageRef, volume: VolumeId, number: u32) -> Result<Arc<Page>, MapError> {
        self.page_of(None, place, volume, number).await
    }

    /// A page of an origin's map, whose key this is, or of the set's own.
    pub(super) async fn page_of(
        &self,
        of: Option<&SetKey>,
        place: &PageRef,
        volume: VolumeId,
        number: u32,
    ) -> Result<Arc<Page>, MapError> {
        self.page_for(of, place, volume, number, &|_| ()).await
    }

    /// The same, where somebody pays for it.
    async fn page_for(
        &self,
        of: Option<&SetKey>,
        place: &PageRef,
        volume: VolumeId,
        number: u32,
        pay: Pay<'_>,
    ) -> Result<Arc<Page>, MapError> {
        let of = of.unwrap_or(&self.key);
        let key = BlockKey { object: place.object, number: place.number };
        let open = |sealed: &Bytes| {
            open_page(&of.opener(place.object), place, volume, number, sealed)
                .map(|page| Node::Page(Arc::new(page)))
                .map_err(|e| MapError::Bad { what: "page", object: place.object, reason: e.to_string() })
        };
        let fetch = || async {
            let object_key = keys::map_pack(of.set, place.object);
            let ask = || {
                pay(u64::from(place.sealed_len));
                self.store.get_range(&object_key, place.range())
            };
            self.patient(ask).await
        };
        match self.unspoilt(|| self.pages.get_or_open(key, fetch, open)).await? {
            Node::Page(page) => Ok(page),
            // Numbers of one pack are all of one kind (R7): two places that name it differently.
            Node::Leaf(_) => {
                let reason = format!("found a leaf as number {}, expected a page", place.number);
                Err(MapError::Bad { what: "page", object: place.object, reason })
            }
        }
    }

    /// A page of the map, where it is in memory or on disk here. Never asks the store.
    async fn page_if_here(&self, place: &PageRef, volume: VolumeId, number: u32) -> Option<Arc<Page>> {
        let key = BlockKey { object: place.object, number: place.number };
        let open = |sealed: &Bytes| {
            let page = open_page(&self.key.opener(place.object), place, volume, number, sealed);
            page.map(|page| Node::Page(Arc::new(page))).map_err(drop)
        };
        match self.pages.get_or_open(key, async || Err(()), open).await {
            Ok(Node::Page(page)) => Some(page),
            Ok(Node::Leaf(_)) | Err(()) => None,
        }
    }

    /// Keeps a page that was sealed here: the next checkpoint of the same place needs it again.
    pub fn adopt_page(&self, place: &PageRef, page: Arc<Page>) {
        self.pages.insert(BlockKey { object: place.object, number: place.number }, Node::Page(page));
    }

    /// Keeps sealed parts of an object that was made here, extents or pages, by number and place: each would else be fetched by itself when it is first read.
    pub async fn keep_sealed(&self, object: ObjectId, body: &Bytes, parts: Vec<(u32, Range<u64>)>) {
        let piece = |(number, range): (u32, Range<u64>)| {
            (BlockKey { object, number }, body.slice(range.start as usize..range.end as usize))
        };
        self.cache.keep_sealed(parts.into_iter().map(piece)).await;
    }

    /// Whether an extent is in memory or on disk here: nobody has read it for long where it is not.
    pub fn is_at_hand(&self, extent: &MapExtent) -> bool {
        let key = extent_key(extent);
        self.cache.has(&key) || self.cache.has_sealed(&key)
    }

    /// Whether the first part of an object is on disk here: then all of it was put there, as a rule, and may be on its way out. (Not where only that part was
    /// read here, or stayed because it was read: C7 in `cache`.)
    pub(super) fn has_begin_of(&self, object: ObjectId) -> bool {
        self.cache.has_sealed(&BlockKey { object, number: 0 })
    }

    /// Whether anything that `root` has at the range is in memory or on disk here, as far as that is known without asking the store.
    pub(super) async fn was_at_hand(&self, root: &Root, volume: VolumeId, lba: Lba, sectors: Sectors) -> bool {
        for (number, lba, sectors) in split_by_page(lba, sectors) {
            let Some(place) = root.page(volume, number) else { continue };
            let key = BlockKey { object: place.object, number: place.number };
            if !self.pages.has(&key) && !self.pages.has_sealed(&key) {
                continue;
            }
            let Some(page) = self.page_if_here(&place, volume, number).await else { continue };
            let at_hand = |piece: &MapPiece| matches!(piece, MapPiece::Stored(extent) if self.is_at_hand(extent));
            if page.lookup(lba, sectors).iter().any(at_hand) {
                return true;
            }
        }
        false
    }

    /// A part of a read was in the journal.
    pub(super) fn note_journal(&self) {
        self.cache.note_journal();
    }

    /// The part of a sealed extent that the map names.
    async fn extent(
        &self,
        of: Option<&SetKey>,
        volume: VolumeId,
        extent: &MapExtent,
        demand: Demand,
    ) -> Result<Bytes, MapError> {
        let of = of.unwrap_or(&self.key);
        // R9, R10: the disk tier holds sealed bytes; what is answered was authenticated by this process.
        let open = |sealed: &Bytes| {
            let opener = of.opener(extent.object);
            open_extent(&opener, &extent.place, volume, extent.sealed_lba(), sealed)
                .map(Bytes::from)
                .map_err(|e| MapError::Bad { what: "extent", object: extent.object, reason: e.to_string() })
        };
        let fetch = || async {
            let object_key = keys::segment(of.set, extent.object);
            let range: Range<u64> = extent.place.range();
            self.patient(|| self.store.get_range(&object_key, range.clone())).await
        };
        let raw = self.unspoilt(|| self.cache.get_or_open_for(demand, extent_key(extent), fetch, open)).await?;
        part_of(&raw, extent)
    }

    /// Loads anew what turned out not to be what was written: bytes may be spoilt on their way, and what is stored never changes. What stays bad is bad
    /// where it lies (R9).
    pub(super) async fn unspoilt<T, F>(&self, load: impl Fn() -> F) -> Result<T, MapError>
    where
        F: Future<Output = Result<T, MapError>>,
    {
        let mut tries = 1;
        loop {
            match load().await {
                Err(MapError::Bad { what, object, reason }) if tries < DAMAGED_TRIES => {
                    tracing::warn!(%object, what, reason, "R9: not what was written; fetched anew");
                    metrics::counter!("holdfast_store_spoilt_total").increment(1);
                    if let Some(several) = self.store.several() {
                        several.doubt(object);
                    }
                    tries += 1;
                }
                other => return other,
            }
        }
    }

    /// Shows people that what a root names is missing or damaged. For who knows that it is still named.
    pub fn note_object_trouble(&self, error: &MapError) {
        let now = unix_ms();
        match error {
            MapError::Store(e) => {
                if let StoreError::NotFound { at } = &**e {
                    let words =
                        format!("{e}, although a root names it; look for what deleted it, and see `holdfast verify`");
                    self.health.object(now, &at.key, Kind::Missing, &words);
                }
            }
            MapError::Bad { object, .. } => {
                let words = format!("{error}; see `holdfast verify`");
                self.health.object(now, &object.to_string(), Kind::Damaged, &words);
            }
            MapError::Stopping => {}
        }
    }

    /// Asks until the store answers: slow, unreachable, and refused until somebody acts is no answer (R8).
    pub(super) async fn patient<T, F>(&self, mut ask: impl FnMut() -> F) -> Result<T, MapError>
    where
        F: Future<Output = Result<T, StoreError>>,
    {
        let mut pause = Duration::from_millis(50);
        let mut missed = 0;
        loop {
            let answer = tokio::select! {
                answer = ask() => answer,
                () = self.stop.cancelled() => return Err(MapError::Stopping),
            };
            match answer {
                Ok(value) => return Ok(value),
                Err(e) if e.may_pass() || (e.disposition() == Disposition::NotFound && missed < MISSING_TRIES) => {
                    missed += u32::from(e.disposition() == Disposition::NotFound);
                    tracing::warn!(error = %e, "the store does not answer a read; asking again");
                    tokio::select! {
                        () = tokio::time::sleep(pause) => {}
                        () = self.stop.cancelled() => return Err(MapError::Stopping),
                    }
                    pause = (pause * 2).min(RETRY_PAUSE_MAX);
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
}

fn extent_key(extent: &MapExtent) -> BlockKey {
    BlockKey { object: extent.object, number: extent.place.number }
}

/// What the map names of an opened extent.
fn part_of(raw: &Bytes, extent: &MapExtent) -> Result<Bytes, MapError> {
    let part = extent.raw_range();
    if part.end > raw.len() {
        let reason = format!("found {} bytes, expected at least {}", raw.len(), part.end);
        return Err(MapError::Bad { what: "extent", object: extent.object, reason });
    }
    // A read is charged by its length: what it answers must not keep whole extents that are no longer in the cache.
    let small = part.len() * 2 < raw.len();
    let part = raw.slice(part);
    Ok(if small { Bytes::copy_from_slice(&part) } else { part })
}

#[cfg(test)]
mod tests;
