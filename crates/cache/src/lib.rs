//! The read cache: data that was fetched from a store, kept opened in memory and sealed on disk.
//!
//! ```text
//!   get_or_open(key) ─▶ memory: opened values, checked when they came in
//!                         │ miss: one flight per key, all other callers wait for it
//!                         ▼
//!                       disk: sealed bytes ─ open ─▶ memory    (a wrong tag only costs a fetch)
//!                         │ miss                               near eviction: written to disk again (CACHE-C7)
//!                         ▼
//!                       fetch (the store) ─ open ─▶ memory, and the sealed bytes to disk (CACHE-C5)
//!
//!   keep_sealed: data that a checkpoint seals goes to disk at once
//! ```
//! The store is asked for whole extents. The disk keeps an extent in stretches of some 16 KiB sealed, memory has its
//! blocks of 16 KiB, and only the blocks that are asked for are opened (`get_several`, ADR 0042). The disk is read on
//! the reader's own thread if the page cache has the bytes (`ring`, ADR 0073).
//!
//! CACHE-C1  The key is object, number and block, never an LBA. They name the same content for ever (R7), so no entry
//!     is ever stale.
//! CACHE-C2  Every answer was opened, that is authenticated, by this process (R9). The disk tier holds the same sealed
//!     bytes as the store (R10) and is trusted as little.
//! CACHE-C3  The cache holds clean data only: losing any or all of it, at any time, costs a fetch.
//! CACHE-C4  Size limits: memory by `memory_bytes`, disk by `disk_bytes`, plus buffers of [`DISK_BUFFER_BYTES`] and the
//!     index of the disk: at most one record for each 4 KiB.
//! CACHE-C5  The disk is a ring: new data evicts the oldest. So data fetched for a scan goes to disk only when it is
//!     fetched a second time.
//! CACHE-C6  Left-out data is remembered up to a quarter of the disk, in bytes, and up to 131,072 entries. Larger scans
//!     never go to disk.
//! CACHE-C7  Data read from the older half of the disk, other than by a scan, is written there again. These writes
//!     never exceed the bytes of new data since the last time the disk was too slow for a read.
//! CACHE-C8  One process at a time uses the folder of a disk tier. It holds the folder's lock before it touches
//!     anything else there: another process would drop or cut the files that this one reads.
//!
//! Owns: memory and disk of the cache, and one fetch per key. Does not own: the store, keys, the decision what to read.
//! May depend on: types. It is the only crate that uses foyer, for the memory.

mod admission;
mod answers;
mod disk;
mod flight;
mod key;
mod load;
mod ring;
mod several;
mod tier;

use bytes::Bytes;
use disk::{Disk, Place};
pub use flight::{Flight, Flights};
use futures_util::future::BoxFuture;
use holdfast_types::limits;
use holdfast_types::sync::LockExt;
use std::fmt;
use std::future::Future;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

pub use admission::Demand;
pub use answers::{Answers, Window};
pub use disk::DISK_BUFFER_BYTES;
pub use key::BlockKey;
use several::Loaded;
pub use several::{Fetched, Several, Source, Wanted};
use tier::Tier;

/// Memory of an entry in addition to its value: the record, and its place in the index and in the eviction order.
const ENTRY_OVERHEAD_BYTES: usize = 256;

/// Minimum memory in bytes: with less, a single large read would evict itself.
pub const MEMORY_BYTES_MIN: usize = 64 * limits::EXTENT_BYTES_MAX;

/// Maximum number of shards, each with its own lock, of the memory tier.
const SHARDS_MAX: usize = 16;

/// A cache cannot be opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CacheError {
    /// Too little memory.
    #[error("cache memory: found {found} bytes, expected at least {MEMORY_BYTES_MIN}")]
    Memory {
        /// The requested memory.
        found: usize,
    },
    /// Another process has the folder of the disk tier (CACHE-C8).
    #[error(
        "cache folder {dir}: found its lock held by another process, expected a folder that one gateway has for itself: \
         stop the other gateway, or remove the link or the mount by which both come to this folder"
    )]
    Locked {
        /// The folder.
        dir: PathBuf,
    },
}

/// The memory that an opened value takes.
type Weigh<V> = fn(&V) -> usize;

/// Opened values of one kind, over the shared disk tier. Cheap to clone.
pub struct ReadCache<V: Clone + Send + Sync + 'static> {
    inner: Arc<Inner<V>>,
}

/// The cache of the raw bytes of extents' blocks.
pub type Cache = ReadCache<Bytes>;

struct Inner<V: Clone + Send + Sync + 'static> {
    memory: foyer_memory::Cache<BlockKey, V>,
    flights: Flights<V>,
    /// Loads of entries from disk or the store …
    loads: Flights<Loaded<V>>,
    /// … and of what the store has in one piece, with several entries.
    fetches: Flights<Several<V>>,
    disk: Arc<Tier>,
    counts: Counts,
    window: Mutex<Window>,
}

#[derive(Debug, Default)]
struct Counts {
    memory_hits: AtomicU64,
    disk_hits: AtomicU64,
    kept_bytes: AtomicU64,
    admitted_bytes: AtomicU64,
    left_out_bytes: AtomicU64,
    rewritten_bytes: AtomicU64,
    fetches: AtomicU64,
    failures: AtomicU64,
    shared: AtomicU64,
    journal: AtomicU64,
    rejected: AtomicU64,
}

/// Counters and current size of a cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CacheStats {
    /// Answered from memory.
    pub memory_hits: u64,
    /// Answered from disk.
    pub disk_hits: u64,
    /// Sealed bytes that were written to disk before any reader asked: made here, or read while another gateway led.
    pub kept_bytes: u64,
    /// Sealed bytes that were fetched and written to disk.
    pub admitted_bytes: u64,
    /// Sealed bytes that were fetched for a scan and not written to disk (CACHE-C5).
    pub left_out_bytes: u64,
    /// Sealed bytes that were read from disk and written there again (CACHE-C7).
    pub rewritten_bytes: u64,
    /// Number of fetches begun.
    pub fetches: u64,
    /// Fetches that failed, or whose bytes could not be opened.
    pub failures: u64,
    /// Answered by another caller's flight.
    pub shared: u64,
    /// Answered by the journal, without the cache.
    pub journal: u64,
    /// Entries from disk that could not be opened: the cache disk is damaged.
    pub rejected: u64,
    /// Reads from the disk tier that failed or took too long.
    pub disk_errors: u64,
    /// Whether there is a disk tier, and it works.
    pub disk: bool,
    /// Bytes in memory.
    pub memory_bytes: u64,
    /// Entries in memory.
    pub memory_entries: u64,
}

impl<V: Clone + Send + Sync + 'static> Clone for ReadCache<V> {
    fn clone(&self) -> Self {
        Self { inner: self.inner.clone() }
    }
}

impl<V: Clone + Send + Sync + 'static> fmt::Debug for ReadCache<V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReadCache").field("stats", &self.stats()).finish()
    }
}

impl Cache {
    /// Opens the cache of extents with `memory_bytes` of memory and, if `disk` is given, a disk tier in that directory
    /// with at most that many bytes of files. The directory's content belongs to the cache and may be dropped.
    ///
    /// A disk tier that cannot be opened is dropped and recreated. If that fails too, the cache works without one
    /// (CACHE-C3).
    ///
    /// # Errors
    /// There is too little memory, or another process has that directory.
    pub fn open(memory_bytes: usize, disk: Option<(PathBuf, u64)>) -> BoxFuture<'static, Result<Self, CacheError>> {
        // Boxed: the code of the disk tier is generated in this crate only.
        Box::pin(async move {
            let cache = Self::over(Arc::default(), memory_bytes, Bytes::len)?;
            if let Some((dir, bytes)) = disk {
                cache.begin_disk(dir, bytes)?.await;
            }
            Ok(cache)
        })
    }

    /// Takes the directory of a disk tier, for a cache that was opened without one, and returns the work that opens it:
    /// a large disk takes long. Until that is done, and if it fails, the cache works without a disk. A repeated call
    /// does nothing.
    ///
    /// # Errors
    /// [`CacheError::Locked`]: another process has that directory. Only its lock was touched.
    pub fn begin_disk(&self, dir: PathBuf, bytes: u64) -> Result<BoxFuture<'static, ()>, CacheError> {
        let tier = self.inner.disk.clone();
        if !tier.begin() {
            return Ok(Box::pin(std::future::ready(())));
        }
        let place = Place::take(dir, bytes).map_err(|dir| {
            tier.give_up();
            CacheError::Locked { dir }
        })?;
        Ok(Box::pin(async move {
            if let Some(place) = place
                && let Some(disk) = Disk::open(place).await
            {
                tier.put(disk);
            }
        }))
    }
}

impl<V: Clone + Send + Sync + 'static> ReadCache<V> {
    fn over(disk: Arc<Tier>, memory_bytes: usize, weigh: Weigh<V>) -> Result<Self, CacheError> {
        if memory_bytes < MEMORY_BYTES_MIN {
            return Err(CacheError::Memory { found: memory_bytes });
        }
        // Each shard holds many extents, so their different sizes average out.
        let shards = (memory_bytes / MEMORY_BYTES_MIN).clamp(1, SHARDS_MAX);
        let memory = foyer_memory::CacheBuilder::new(memory_bytes)
            .with_name("holdfast")
            .with_shards(shards)
            // Resists scans (a backup reads everything once), and a hit needs only a read lock.
            .with_eviction_config(foyer_memory::S3FifoConfig::default())
            .with_weighter(move |_: &BlockKey, value: &V| weigh(value) + ENTRY_OVERHEAD_BYTES)
            .build();
        let inner = Inner {
            memory,
            flights: Flights::default(),
            loads: Flights::default(),
            fetches: Flights::default(),
            disk,
            counts: Counts::default(),
            window: Mutex::default(),
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// A cache of other opened values, such as map pages, with its own memory and the same disk tier.
    ///
    /// # Errors
    /// There is too little memory.
    pub fn sibling<W>(&self, memory_bytes: usize, weigh: Weigh<W>) -> Result<ReadCache<W>, CacheError>
    where
        W: Clone + Send + Sync + 'static,
    {
        ReadCache::over(self.inner.disk.clone(), memory_bytes, weigh)
    }

    /// The disk, if there is one and it works.
    fn disk(&self) -> Option<&Disk> {
        self.inner.disk.get().filter(|disk| disk.is_on())
    }

    /// The value, if it is in memory.
    pub fn get(&self, key: &BlockKey) -> Option<V> {
        let entry = self.inner.memory.get(key)?;
        self.inner.counts.memory_hits.fetch_add(1, Relaxed);
        Some(entry.value().clone())
    }

    /// Whether the value is in memory. It is neither counted nor noted for eviction.
    pub fn has(&self, key: &BlockKey) -> bool {
        self.inner.memory.contains(key)
    }

    /// The value: from memory, from disk, or from the store by `fetch`, which returns sealed bytes. `open`
    /// authenticates and opens sealed bytes from either source (CACHE-C2).
    ///
    /// Callers for the same key share one flight. A failure is not shared: the next waiting caller tries by itself. It
    /// does the same if the current flight is dropped.
    ///
    /// # Errors
    /// The error of `fetch`, or of `open` for bytes from `fetch`.
    pub async fn get_or_open<E, F, O>(&self, key: BlockKey, fetch: impl FnOnce() -> F, open: O) -> Result<V, E>
    where
        F: Future<Output = Result<Bytes, E>>,
        O: Fn(&Bytes) -> Result<V, E>,
    {
        self.get_or_open_for(Demand::Point, key, fetch, open).await
    }

    /// Like `get_or_open`, for a reader that may be a scan (CACHE-C5). If callers share a flight, the demand of the
    /// caller that runs it counts.
    ///
    /// # Errors
    /// As [`ReadCache::get_or_open`].
    pub async fn get_or_open_for<E, F, O>(
        &self,
        demand: Demand,
        key: BlockKey,
        fetch: impl FnOnce() -> F,
        open: O,
    ) -> Result<V, E>
    where
        F: Future<Output = Result<Bytes, E>>,
        O: Fn(&Bytes) -> Result<V, E>,
    {
        let counts = &self.inner.counts;
        self.fly(key, async || {
            if let Some(disk) = self.disk()
                && let Some(found) = disk.load(&key).await
            {
                match open(&found.sealed) {
                    Ok(value) => {
                        counts.disk_hits.fetch_add(1, Relaxed);
                        let bytes = found.sealed.len() as u64;
                        if disk.keep_longer(key, found, demand) {
                            counts.rewritten_bytes.fetch_add(bytes, Relaxed);
                        }
                        return Ok(value);
                    }
                    Err(_) => {
                        // Not an error of the store's copy: that one is requested next, and its failure would be
                        // reported.
                        counts.rejected.fetch_add(1, Relaxed);
                        tracing::warn!(object = %key.object, number = key.number, "cache disk: damaged bytes, fetching again");
                        disk.forget(&key);
                    }
                }
            }
            counts.fetches.fetch_add(1, Relaxed);
            let sealed = fetch().await?;
            let value = open(&sealed)?;
            if let Some(disk) = self.disk() {
                let bytes = sealed.len() as u64;
                let fate =
                    if disk.fetched(key, sealed, demand) { &counts.admitted_bytes } else { &counts.left_out_bytes };
                fate.fetch_add(bytes, Relaxed);
            }
            Ok(value)
        })
        .await
    }

    /// As [`ReadCache::get_or_open`], without the disk tier: for values that have no sealed form of their own.
    ///
    /// # Errors
    /// The error of `load`.
    pub async fn get_or_load<E, F>(&self, key: BlockKey, load: impl FnOnce() -> F) -> Result<V, E>
    where
        F: Future<Output = Result<V, E>>,
    {
        self.fly(key, async || {
            self.inner.counts.fetches.fetch_add(1, Relaxed);
            load().await
        })
        .await
    }

    async fn fly<E>(&self, key: BlockKey, load: impl AsyncFnOnce() -> Result<V, E>) -> Result<V, E> {
        if let Some(value) = self.get(&key) {
            return Ok(value);
        }
        let flight = self.inner.flights.join(key);
        let mut flew = false;
        let result = flight
            .cell()
            .get_or_try_init(|| {
                flew = true;
                async {
                    // A flight that ended between our lookup and our joining has left its value in memory.
                    if let Some(value) = self.get(&key) {
                        return Ok(value);
                    }
                    let value = load().await.inspect_err(|_| {
                        self.inner.counts.failures.fetch_add(1, Relaxed);
                    })?;
                    // Before the flight ends, so that every caller finds one of the two.
                    self.inner.memory.insert(key, value.clone());
                    Ok(value)
                }
            })
            .await
            .cloned();
        if !flew {
            self.inner.counts.shared.fetch_add(1, Relaxed);
        }
        result
    }

    /// Drops every opened value of this kind from memory. Sealed data on disk stays until it is evicted.
    pub fn forget_opened(&self) {
        // Not `clear`: in foyer 0.22 it counts their bytes for ever, and the memory would hold less and less.
        self.inner.memory.evict_all();
    }

    /// Puts a value that was made here into memory, such as a page that was just sealed.
    pub fn insert(&self, key: BlockKey, value: V) {
        self.inner.memory.insert(key, value);
    }

    /// Whether the sealed bytes are probably on disk.
    pub fn has_sealed(&self, key: &BlockKey) -> bool {
        self.inner.disk.get().is_some_and(|disk| disk.has(key))
    }

    /// Writes bytes that were sealed here to disk, as if they had been fetched: new data is likely to be read again
    /// before anything older. Waits for the disk, at most two seconds. Data that is not written by then is fetched when
    /// needed (CACHE-C3). The pieces may be slices of one object: they are not copied, and after a return in time
    /// nothing here uses its memory.
    pub async fn keep_sealed(&self, pieces: impl IntoIterator<Item = (BlockKey, Bytes)>) {
        if let Some(disk) = self.disk() {
            let kept = disk.keep(pieces).await;
            self.inner.counts.kept_bytes.fetch_add(kept, Relaxed);
        }
    }

    /// Counts a part of a read that was in the journal, beside the cache's own answers.
    pub fn note_journal(&self) {
        self.inner.counts.journal.fetch_add(1, Relaxed);
    }

    /// Where parts of reads were found so far.
    pub fn answers(&self) -> Answers {
        let CacheStats { journal, memory_hits, disk_hits, fetches, shared, .. } = self.stats();
        Answers { journal, memory: memory_hits, disk: disk_hits, store: fetches, shared }
    }

    /// Records a sample of the answers for [`ReadCache::recent`]; called at intervals. `at`: time since the process
    /// started.
    pub fn look(&self, at: Duration) {
        let answers = self.answers();
        self.inner.window.locked().note(at, answers);
    }

    /// The answers of the last minutes, and the length of that period.
    pub fn recent(&self, at: Duration) -> (Duration, Answers) {
        let answers = self.answers();
        self.inner.window.locked().recent(at, answers)
    }

    /// Counters so far, and the current size.
    pub fn stats(&self) -> CacheStats {
        let Inner { memory, disk, counts, .. } = &*self.inner;
        CacheStats {
            memory_hits: counts.memory_hits.load(Relaxed),
            disk_hits: counts.disk_hits.load(Relaxed),
            kept_bytes: counts.kept_bytes.load(Relaxed),
            admitted_bytes: counts.admitted_bytes.load(Relaxed),
            left_out_bytes: counts.left_out_bytes.load(Relaxed),
            rewritten_bytes: counts.rewritten_bytes.load(Relaxed),
            fetches: counts.fetches.load(Relaxed),
            failures: counts.failures.load(Relaxed),
            shared: counts.shared.load(Relaxed),
            journal: counts.journal.load(Relaxed),
            rejected: counts.rejected.load(Relaxed),
            disk_errors: disk.get().map_or(0, |disk| disk.errors()),
            disk: disk.get().is_some_and(|disk| disk.is_on()),
            memory_bytes: memory.usage() as u64,
            memory_entries: memory.entries() as u64,
        }
    }

    /// Updates the metrics. Called when metrics are requested, so that a hit costs only one addition. `kind`
    /// distinguishes siblings.
    pub fn publish(&self, kind: &'static str) {
        let stats = self.stats();
        let answered = |tier: &'static str, count: u64| {
            metrics::counter!("holdfast_cache_answers_total", "kind" => kind, "tier" => tier).absolute(count);
        };
        answered("memory", stats.memory_hits);
        answered("disk", stats.disk_hits);
        answered("store", stats.fetches);
        answered("shared", stats.shared);
        answered("journal", stats.journal);
        metrics::counter!("holdfast_cache_kept_bytes_total", "kind" => kind).absolute(stats.kept_bytes);
        metrics::counter!("holdfast_cache_admitted_bytes_total", "kind" => kind).absolute(stats.admitted_bytes);
        metrics::counter!("holdfast_cache_left_out_bytes_total", "kind" => kind).absolute(stats.left_out_bytes);
        metrics::counter!("holdfast_cache_rewritten_bytes_total", "kind" => kind).absolute(stats.rewritten_bytes);
        metrics::counter!("holdfast_cache_failures_total", "kind" => kind).absolute(stats.failures);
        metrics::counter!("holdfast_cache_disk_rejected_total", "kind" => kind).absolute(stats.rejected);
        metrics::counter!("holdfast_cache_disk_errors_total").absolute(stats.disk_errors);
        metrics::gauge!("holdfast_cache_disk_up").set(if stats.disk { 1.0 } else { 0.0 });
        metrics::gauge!("holdfast_cache_memory_bytes", "kind" => kind).set(stats.memory_bytes as f64);
        metrics::gauge!("holdfast_cache_memory_entries", "kind" => kind).set(stats.memory_entries as f64);
    }

    /// Writes pending data to disk, for a warm start. Not needed for correctness (CACHE-C3).
    pub async fn close(&self) {
        if let Some(disk) = self.inner.disk.get() {
            disk.close().await;
        }
    }
}

#[cfg(test)]
mod tests;
