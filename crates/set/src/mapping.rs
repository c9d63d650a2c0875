//! Access to the store: roots, their leaves, map pages, and extents of segments, by blocks. Each is opened and checked
//! once and then cached.
//!
//! All objects are immutable (R7), so cached content is never stale: a place names the same content for ever. Reads
//! retry while the store does not answer (R8: they wait for the end of an S3 outage). Bad bytes are an error
//! immediately (R9).

use crate::origins::{KeyOf, Origins};
use crate::roots::{Known, Roots};
use bytes::Bytes;
use holdfast_cache::{BlockKey, Cache, CacheError, Flights, ReadCache};
use holdfast_control::set::RootRef;
use holdfast_host::unix_ms;
use holdfast_store::{Disposition, Health, Kind, ObjectStore, Standing, StoreError, keys};
use holdfast_types::{Lba, ObjectId, Sectors, VolumeId};
use holdfast_volume::map::{Leaf, MapPiece, Page, PageRef, PartialRoot, Root, Top, open_page, split_by_page};
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio_util::sync::CancellationToken;

/// Maximum pause between two attempts of a read that the store did not answer.
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(2);

/// Number of requests before a missing object counts as lost. A root names it, so it should exist (HEAD-H2), and one
/// answer may be stale. With the pauses this takes three seconds, longer than a stale answer lasts.
const MISSING_TRIES: u32 = 6;

/// Milliseconds after a failure for which a store is asked only what must be asked. Who must ask repeats a failed
/// request sooner: an attempt takes a minute (`RetryPolicy`). A gateway that leads no more repeats no write, so nothing
/// would end the trouble of one.
const SPARED_MS: u64 = 120_000;

/// Number of fetches before an object with wrong bytes counts as damaged: the bytes may have been damaged in transit.
pub(super) const DAMAGED_TRIES: u32 = 3;

/// Memory for a root's leaves of pages: enough for all leaves of some 28 TiB of random extents. Further leaves are in
/// the cache while they fit, and in the store.
pub const LEAF_BYTES: u64 = 64 << 20;

/// One part of a read's result.
#[derive(Clone, Debug)]
pub enum Part {
    /// Bytes as written.
    Data(Bytes),
    /// Never written, or trimmed.
    Zeroes(Sectors),
}

/// Called with each request's size before it is sent, for rate limiting. Data in memory, on local disk, or in another
/// caller's request costs nothing.
pub(super) type Pay<'a> = &'a (dyn Fn(u64) + Sync);

pub use crate::set_key::SetKey;

mod extents;
mod opened;
mod partial;

pub use crate::map_error::MapError;
pub(super) use opened::aside;
pub(crate) use opened::{span, together};

/// The index in which extents are found.
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

/// One set's access to its store.
pub struct Mapping {
    /// Its data keys.
    pub key: SetKey,
    /// Its store.
    pub store: Arc<dyn ObjectStore>,
    health: Arc<Health>,
    cache: Cache,
    roots: Arc<Roots<Root>>,
    /// Roots whose leaves may be partly in the store.
    partials: Roots<PartialRoot>,
    /// Memory for one root's leaves of pages.
    leaf_bytes: u64,
    tops: Roots<Top>,
    opening: Flights<Known>,
    /// Pages, and the leaves in which reads found them.
    pages: ReadCache<Node>,
    pub(super) origins: Origins,
    /// How far a read ahead of an export may go.
    pub(super) read_ahead: Sectors,
    stop: CancellationToken,
}

impl Mapping {
    /// `page_bytes`: memory for opened pages, in addition to that of `cache`, whose disk they share. `read_ahead`:
    /// maximum distance of a read ahead.
    ///
    /// # Errors
    /// The memory is too small.
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

    /// Sets the memory for one root's leaves of pages.
    #[must_use]
    pub fn with_leaf_bytes(self, leaf_bytes: u64) -> Self {
        Self { leaf_bytes, ..self }
    }

    /// For a set that may be a clone: sets the source of its origins' keys.
    #[must_use]
    pub fn with_origins(self, key_of: KeyOf) -> Self {
        Self { origins: Origins::new(key_of), ..self }
    }

    /// Whether the store has problems; with several stores, whether all have.
    pub(super) fn in_trouble(&self) -> bool {
        let now = unix_ms();
        match self.store.several() {
            // With several stores each has its own health, and the set's own is not updated.
            Some(several) => several.healths(now).all(|standing| in_trouble(&standing, now)),
            None => in_trouble(&self.health.standing(now), now),
        }
    }

    /// Reads of the set use this root: it stays in memory.
    pub(super) fn note_current(&self, at: RootRef) {
        self.roots.note_current(at);
        self.partials.note_current(at);
        self.tops.note_current(at);
    }

    /// These two roots are being compared, part by part: keep both in memory.
    pub(super) fn note_compared(&self, roots: [RootRef; 2]) {
        self.roots.note_compared(roots);
    }

    /// Whether a root is in memory.
    pub(super) fn has_root(&self, at: RootRef) -> bool {
        self.roots.get(at).is_some()
    }

    /// Reads a whole segment without the cache, to empty it.
    ///
    /// # Errors
    /// [`MapError`]; the bytes are not checked yet.
    pub async fn segment(&self, object: ObjectId) -> Result<Bytes, MapError> {
        let key = keys::segment(self.key.set, object);
        self.patient(|| self.store.get(&key)).await
    }

    /// Reads a page of the map.
    ///
    /// # Errors
    /// [`MapError`].
    pub async fn page(&self, place: &PageRef, volume: VolumeId, number: u32) -> Result<Arc<Page>, MapError> {
        self.page_of(None, place, volume, number).await
    }

    /// Reads a page of the map of `of`: an origin, or the set itself.
    pub(super) async fn page_of(
        &self,
        of: Option<&SetKey>,
        place: &PageRef,
        volume: VolumeId,
        number: u32,
    ) -> Result<Arc<Page>, MapError> {
        self.page_for(of, place, volume, number, &|_| ()).await
    }

    /// Like `page_of`, charged to `pay`.
    async fn page_for(
        &self,
        of: Option<&SetKey>,
        place: &PageRef,
        volume: VolumeId,
        number: u32,
        pay: Pay<'_>,
    ) -> Result<Arc<Page>, MapError> {
        let of = of.unwrap_or(&self.key);
        let key = BlockKey::first(place.object, place.number);
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
            // One pack holds numbers of one kind only (R7): two references disagree on the kind.
            Node::Leaf(_) => {
                let reason = format!("found a leaf as number {}, expected a page", place.number);
                Err(MapError::Bad { what: "page", object: place.object, reason })
            }
        }
    }

    /// A page of the map if it is in memory or on local disk. Never reads the store.
    async fn page_if_here(&self, place: &PageRef, volume: VolumeId, number: u32) -> Option<Arc<Page>> {
        let key = BlockKey::first(place.object, place.number);
        let open = |sealed: &Bytes| {
            let page = open_page(&self.key.opener(place.object), place, volume, number, sealed);
            page.map(|page| Node::Page(Arc::new(page))).map_err(drop)
        };
        match self.pages.get_or_open(key, async || Err(()), open).await {
            Ok(Node::Page(page)) => Some(page),
            Ok(Node::Leaf(_)) | Err(()) => None,
        }
    }

    /// Caches a page that was sealed here: the next checkpoint that changes it needs it again.
    pub fn adopt_page(&self, place: &PageRef, page: Arc<Page>) {
        self.pages.insert(BlockKey::first(place.object, place.number), Node::Page(page));
    }

    /// Whether any of `root`'s data in the range is in memory or on local disk, as far as is known without reading the
    /// store.
    pub(super) async fn was_at_hand(&self, root: &Root, volume: VolumeId, lba: Lba, sectors: Sectors) -> bool {
        for (number, lba, sectors) in split_by_page(lba, sectors) {
            let Some(place) = root.page(volume, number) else { continue };
            let key = BlockKey::first(place.object, place.number);
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

    /// Counts a part of a read that came from the journal.
    pub(super) fn note_journal(&self) {
        self.cache.note_journal();
    }

    /// Fetches wrong bytes again: they may have been damaged in transit, and stored bytes never change. If they stay
    /// wrong, the stored object is damaged (R9).
    pub(super) async fn unspoilt<T, F>(&self, load: impl Fn() -> F) -> Result<T, MapError>
    where
        F: Future<Output = Result<T, MapError>>,
    {
        let mut tries = 1;
        loop {
            match load().await {
                Err(MapError::Bad { what, object, reason }) if tries < DAMAGED_TRIES => {
                    self.note_spoilt(what, object, &reason);
                    tries += 1;
                }
                other => return other,
            }
        }
    }

    /// Reports wrong bytes that the caller fetches again; with several stores, from another one.
    pub(super) fn note_spoilt(&self, what: &'static str, object: ObjectId, reason: &str) {
        tracing::warn!(%object, what, reason, "R9: wrong bytes; fetching them again");
        metrics::counter!("holdfast_store_spoilt_total").increment(1);
        if let Some(several) = self.store.several() {
            several.doubt(object);
        }
    }

    /// Reports that an object is missing or damaged although a root names it. The caller knows that it is still named.
    pub fn note_object_trouble(&self, error: &MapError) {
        let now = unix_ms();
        match error {
            MapError::Store(e) => {
                if let StoreError::NotFound { at } = &**e {
                    let words =
                        format!("{e}, although a root names it; find out what deleted it, and see `holdfast verify`");
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

    /// Repeats until the store answers. Slow, unreachable, or refusing until an operator acts do not count as answers
    /// (R8).
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
                    tracing::warn!(error = %e, "the store does not answer a read; retrying");
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

/// Whether a store has problems of its own, met a moment ago. Missing or damaged objects do not count: they must not
/// keep the others from being read.
pub(super) fn in_trouble(standing: &Standing, now_unix_ms: u64) -> bool {
    standing.now.as_ref().is_some_and(|trouble| {
        let of_the_store = !matches!(trouble.kind, Kind::Missing | Kind::Damaged);
        of_the_store && now_unix_ms.saturating_sub(trouble.last_unix_ms) <= SPARED_MS
    })
}

#[cfg(test)]
mod tests;
