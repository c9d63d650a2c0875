//! An object with wholes of four values, two in each entry on disk. A value is its key's block, sealed by its key.

use super::*;
use crate::{Cache, MEMORY_BYTES_MIN};
use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use holdfast_types::{MemberId, ObjectId, Term};
use std::sync::atomic::{AtomicBool, AtomicUsize};

const VALUES: u32 = 4;
const IN_ENTRY: u32 = 2;
const VALUE_BYTES: usize = 6;

fn key(number: u32, block: u32) -> BlockKey {
    BlockKey { object: ObjectId { term: Term(1), member: MemberId(1), boot: 1, random: 77 }, number, block }
}

fn value(key: BlockKey) -> Bytes {
    Bytes::from(format!("{:02}.{:02}!", key.number, key.block))
}

fn entry(key: BlockKey) -> Bytes {
    (key.block..key.block + IN_ENTRY).flat_map(|block| value(BlockKey { block, ..key }).to_vec()).collect()
}

#[derive(Debug, PartialEq, Eq)]
struct Bad;

/// Counts what it is asked for.
#[derive(Default)]
struct Blocks {
    number: u32,
    wanted: Vec<u32>,
    fetched: AtomicUsize,
    opened: AtomicUsize,
    fails: AtomicBool,
}

impl Blocks {
    fn of(number: u32, wanted: &[u32]) -> Self {
        Self { number, wanted: wanted.to_vec(), ..Self::default() }
    }

    fn first(&self) -> u32 {
        self.wanted[0] - self.wanted[0] % IN_ENTRY
    }

    async fn read(&self, cache: &Cache, demand: Demand) -> Result<(), Bad> {
        let values: Vec<BlockKey> = self.wanted.iter().map(|block| key(self.number, *block)).collect();
        let wanted = Wanted { whole: key(self.number, 0), entry: key(self.number, self.first()), values: &values };
        let found = cache.get_several(demand, &wanted, self).await?;
        assert_eq!(found, values.into_iter().map(value).collect::<Vec<_>>());
        Ok(())
    }
}

impl Source<Bytes> for Blocks {
    type Error = Bad;

    fn open(&self, sealed: &Bytes) -> Result<Vec<Bytes>, Bad> {
        let first = key(self.number, self.first());
        self.wanted
            .iter()
            .map(|block| {
                self.opened.fetch_add(1, Relaxed);
                let at = (*block - first.block) as usize * VALUE_BYTES;
                let found = sealed.get(at..at + VALUE_BYTES).ok_or(Bad)?;
                let expected = value(BlockKey { block: *block, ..first });
                if found == expected { Ok(expected) } else { Err(Bad) }
            })
            .collect()
    }

    fn fetch(&self) -> BoxFuture<'_, Result<Bytes, Bad>> {
        Box::pin(async move {
            self.fetched.fetch_add(1, Relaxed);
            // All other readers get as far as they can.
            for _ in 0..100 {
                tokio::task::yield_now().await;
            }
            if self.fails.load(Relaxed) {
                return Err(Bad);
            }
            let entries = (0..VALUES).step_by(IN_ENTRY as usize).map(|block| entry(key(self.number, block)));
            Ok(entries.flat_map(|entry| entry.to_vec()).collect())
        })
    }

    fn take_apart(&self, whole: Bytes) -> Result<Fetched<Bytes>, Bad> {
        assert_eq!(whole.len(), VALUES as usize * VALUE_BYTES);
        let entries = (0..VALUES).step_by(IN_ENTRY as usize).map(|block| key(self.number, block));
        let values = (0..VALUES).map(|block| key(self.number, block));
        Ok(Fetched {
            entries: entries.map(|key| (key, [Bytes::new(), entry(key)])).collect(),
            values: values.map(|key| (key, value(key))).collect(),
        })
    }
}

async fn memory_only() -> Cache {
    Cache::open(MEMORY_BYTES_MIN, None).await.expect("open")
}

async fn on_disk(dir: &std::path::Path) -> Cache {
    Cache::open(MEMORY_BYTES_MIN, Some((dir.to_owned(), 64 << 20))).await.expect("open")
}

async fn settle(cache: &Cache) {
    cache.inner.disk.get().expect("disk tier").settle().await;
}

#[tokio::test]
async fn a_fetch_brings_all_of_the_whole_into_memory() {
    let cache = memory_only().await;
    let first = Blocks::of(1, &[2]);
    first.read(&cache, Demand::Point).await.expect("read");
    for block in 0..VALUES {
        assert_eq!(cache.get(&key(1, block)), Some(value(key(1, block))));
        let again = Blocks::of(1, &[block]);
        again.read(&cache, Demand::Point).await.expect("read");
        assert_eq!(again.fetched.into_inner(), 0);
    }
    assert_eq!((first.fetched.into_inner(), cache.stats().fetches), (1, 1));
    assert_eq!((cache.inner.loads.len(), cache.inner.fetches.len()), (0, 0), "ended flights leave nothing behind");
}

/// Readers of any values of a whole, in one entry or in different ones.
#[tokio::test]
async fn readers_of_one_whole_share_one_fetch() {
    let cache = memory_only().await;
    let readers: Vec<Blocks> =
        [&[0][..], &[1], &[0, 1], &[2], &[3], &[2, 3], &[0]].map(|wanted| Blocks::of(5, wanted)).into();
    for read in join_all(readers.iter().map(|reader| reader.read(&cache, Demand::Point))).await {
        read.expect("read");
    }
    let fetched: usize = readers.iter().map(|reader| reader.fetched.load(Relaxed)).sum();
    assert_eq!((fetched, cache.stats().fetches), (1, 1));
    assert_eq!((cache.inner.loads.len(), cache.inner.fetches.len()), (0, 0));
}

#[tokio::test]
async fn a_failed_fetch_is_the_error_of_its_own_caller() {
    let cache = memory_only().await;
    let readers = [Blocks::of(5, &[0]), Blocks::of(5, &[0]), Blocks::of(5, &[3])];
    readers[0].fails.store(true, Relaxed);
    let read = join_all(readers.iter().map(|reader| reader.read(&cache, Demand::Point))).await;
    assert_eq!(read, [Err(Bad), Ok(()), Ok(())]);
    assert_eq!(cache.stats().failures, 1);
}

/// From disk only what is asked for is opened, and only that comes into memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn from_disk_only_the_wanted_values_are_opened() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let cache = on_disk(dir.path()).await;
    Blocks::of(1, &[0]).read(&cache, Demand::Point).await.expect("read");
    settle(&cache).await;
    cache.forget_opened();
    for block in [3, 0] {
        let reader = Blocks::of(1, &[block]);
        reader.read(&cache, Demand::Point).await.expect("read");
        assert_eq!((reader.fetched.into_inner(), reader.opened.into_inner()), (0, 1), "block {block}");
    }
    assert_eq!([0, 1, 2, 3].map(|block| cache.has(&key(1, block))), [true, false, false, true]);
    assert!(cache.has_sealed(&key(1, 0)) && cache.has_sealed(&key(1, 2)) && !cache.has_sealed(&key(1, 1)));
    let stats = cache.stats();
    assert_eq!((stats.disk_hits, stats.fetches, stats.memory_entries), (2, 1, 2));
    assert_eq!(stats.admitted_bytes, u64::from(VALUES) * VALUE_BYTES as u64);
}

/// Readers of different values of one entry: one of them loads it, and each opens its own.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn readers_of_one_entry_share_one_load() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let cache = on_disk(dir.path()).await;
    Blocks::of(1, &[0]).read(&cache, Demand::Point).await.expect("read");
    settle(&cache).await;
    cache.forget_opened();
    // However fast the disk is, all join one flight.
    let flight = cache.inner.loads.join(key(1, 0));
    let readers = [&[0], &[1], &[1]].map(|wanted| Blocks::of(1, wanted));
    for read in join_all(readers.iter().map(|reader| reader.read(&cache, Demand::Point))).await {
        read.expect("read");
    }
    drop(flight);
    assert_eq!(readers.map(|reader| reader.opened.into_inner()), [1, 1, 0], "the third finds it in memory");
    let stats = cache.stats();
    assert_eq!((stats.disk_hits, stats.shared, stats.memory_hits, stats.fetches), (1, 2, 0, 1));
    assert_eq!((cache.inner.loads.len(), cache.inner.fetches.len()), (0, 0));
}

/// CACHE-C2. An entry opens for the reader that loaded it, and not for the one that waited.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_shared_entry_is_fetched_for_the_reader_that_finds_it_damaged() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let cache = on_disk(dir.path()).await;
    let damaged = Bytes::from(value(key(1, 0)).repeat(2));
    cache.keep_sealed([(key(1, 0), damaged)]).await;
    settle(&cache).await;
    let flight = cache.inner.loads.join(key(1, 0));
    let readers = [&[0], &[1]].map(|wanted| Blocks::of(1, wanted));
    for read in join_all(readers.iter().map(|reader| reader.read(&cache, Demand::Point))).await {
        read.expect("read");
    }
    drop(flight);
    assert_eq!(readers.map(|reader| reader.fetched.into_inner()), [0, 1]);
    assert_eq!(cache.stats().rejected, 1);
}

/// CACHE-C2. A damaged entry costs a fetch, which puts the good bytes in its place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_entry_is_fetched_again() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let cache = on_disk(dir.path()).await;
    // The bytes of another entry of the same whole.
    cache.keep_sealed([(key(1, 0), entry(key(1, 2))), (key(1, 2), entry(key(1, 2)))]).await;
    settle(&cache).await;
    let reader = Blocks::of(1, &[1]);
    reader.read(&cache, Demand::Point).await.expect("read");
    assert_eq!((reader.fetched.into_inner(), cache.stats().rejected), (1, 1));
    settle(&cache).await;
    cache.forget_opened();
    let reader = Blocks::of(1, &[1]);
    reader.read(&cache, Demand::Point).await.expect("read");
    assert_eq!((reader.fetched.into_inner(), cache.stats().rejected), (0, 1));
}

/// Entries of a whole are evicted one by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_stores_only_what_the_disk_does_not_have() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let cache = on_disk(dir.path()).await;
    cache.keep_sealed([(key(1, 2), entry(key(1, 2)))]).await;
    settle(&cache).await;
    Blocks::of(1, &[0]).read(&cache, Demand::Point).await.expect("read");
    settle(&cache).await;
    assert!(cache.has_sealed(&key(1, 0)) && cache.has_sealed(&key(1, 2)));
    assert_eq!(cache.stats().admitted_bytes, u64::from(IN_ENTRY) * VALUE_BYTES as u64);
}

/// CACHE-C5, for all entries of a whole at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c5_what_a_scan_fetches_goes_to_disk_the_second_time() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let cache = on_disk(dir.path()).await;
    for on_disk in [false, true] {
        Blocks::of(1, &[0, 1]).read(&cache, Demand::Scan).await.expect("read");
        settle(&cache).await;
        assert_eq!([0, 2].map(|block| cache.has_sealed(&key(1, block))), [on_disk; 2]);
        cache.forget_opened();
    }
    let bytes = u64::from(VALUES) * VALUE_BYTES as u64;
    assert_eq!((cache.stats().left_out_bytes, cache.stats().admitted_bytes), (bytes, bytes));
}
