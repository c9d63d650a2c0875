use super::*;
use crate::ring::{Ring, Shape};
use futures_util::future::join_all;
use holdfast_types::{MemberId, ObjectId, Term};
use std::convert::Infallible;
use std::path::Path;
use std::sync::atomic::AtomicUsize;
use tokio::sync::{Notify, oneshot};

fn key(number: u32) -> BlockKey {
    let random = 0x1234_5678_9abc_def0_u128 << 64 | u128::from(number / 10);
    BlockKey::first(ObjectId { term: Term(3), member: MemberId(1), boot: 9, random }, number)
}

/// Content of a test's store: `seal`ed, different for each key, and hardly compressible.
fn content(key: BlockKey, len: usize) -> Bytes {
    let mut dice = u64::from(key.number) + 1;
    let draw = std::iter::repeat_with(move || {
        dice = dice.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (dice >> 56) as u8
    });
    draw.take(len).collect::<Vec<u8>>().into()
}

#[derive(Debug, PartialEq, Eq)]
struct BadTag;

/// Stands for AEAD: a trailing checksum over key and content.
fn seal(key: BlockKey, plain: &[u8]) -> Bytes {
    let mut sealed: Vec<u8> = plain.iter().map(|byte| byte ^ 0x5a).collect();
    sealed.extend_from_slice(&tag(key, plain));
    sealed.into()
}

fn tag(key: BlockKey, plain: &[u8]) -> [u8; 4] {
    let sum = plain.iter().fold(key.number, |sum, byte| sum.rotate_left(5) ^ u32::from(*byte));
    (sum ^ key.object.random as u32).to_le_bytes()
}

fn unseal(key: BlockKey, sealed: &Bytes) -> Result<Bytes, BadTag> {
    let (body, found) = sealed.split_last_chunk::<4>().ok_or(BadTag)?;
    let plain: Vec<u8> = body.iter().map(|byte| byte ^ 0x5a).collect();
    if tag(key, &plain) == *found { Ok(plain.into()) } else { Err(BadTag) }
}

async fn read(cache: &Cache, key: BlockKey, len: usize) -> bool {
    read_for(Demand::Point, cache, key, len).await
}

/// Reads through the cache and checks the content. Returns whether the store was asked.
async fn read_for(demand: Demand, cache: &Cache, key: BlockKey, len: usize) -> bool {
    let asked = AtomicUsize::new(0);
    let fetch = || async {
        asked.fetch_add(1, Relaxed);
        Ok(seal(key, &content(key, len)))
    };
    let found = cache.get_or_open_for(demand, key, fetch, |sealed| unseal(key, sealed)).await.expect("read");
    assert_eq!(found, content(key, len), "wrong bytes for {key:?}");
    asked.into_inner() > 0
}

async fn memory_only() -> Cache {
    Cache::open(MEMORY_BYTES_MIN, None).await.expect("open")
}

const DISK_BYTES: u64 = 64 << 20;
const LEN: usize = 100_000;

async fn on_disk(dir: &Path) -> Cache {
    Cache::open(MEMORY_BYTES_MIN, Some((dir.to_owned(), DISK_BYTES))).await.expect("open")
}

async fn settle(cache: &Cache) {
    cache.inner.disk.get().expect("disk tier").settle().await;
}

#[tokio::test]
async fn a_value_is_fetched_once() {
    let cache = memory_only().await;
    assert!(read(&cache, key(1), 1000).await);
    assert!(!read(&cache, key(1), 1000).await);
    assert!(read(&cache, key(2), 1000).await);
    let stats = cache.stats();
    assert_eq!((stats.fetches, stats.memory_hits, stats.memory_entries, stats.disk), (2, 1, 2, false));
    assert_eq!(stats.memory_bytes, 2 * (1000 + ENTRY_OVERHEAD_BYTES as u64));
}

/// Otherwise the memory would hold less after each set that is deleted, and at last nothing.
#[tokio::test]
async fn what_is_forgotten_takes_no_room() {
    let cache = memory_only().await;
    for number in 1..=4 {
        read(&cache, key(number), LEN).await;
    }
    cache.forget_opened();
    assert_eq!((cache.stats().memory_entries, cache.stats().memory_bytes), (0, 0));
    assert!(read(&cache, key(1), 1000).await, "it is gone");
    assert_eq!(cache.stats().memory_bytes, 1000 + ENTRY_OVERHEAD_BYTES as u64);
}

#[tokio::test]
async fn callers_for_the_same_key_share_one_fetch() {
    let cache = memory_only().await;
    let (asked, go) = (Arc::new(AtomicUsize::new(0)), Arc::new(Notify::new()));
    let callers: Vec<_> = (0..64)
        .map(|_| {
            let (cache, asked, go) = (cache.clone(), asked.clone(), go.clone());
            tokio::spawn(async move {
                let fetch = || async {
                    asked.fetch_add(1, Relaxed);
                    go.notified().await;
                    Ok(seal(key(7), &content(key(7), 500)))
                };
                cache.get_or_open(key(7), fetch, |sealed| unseal(key(7), sealed)).await
            })
        })
        .collect();
    // On this runtime's single thread, each caller has run until it waits for the fetch or for the flight.
    while asked.load(Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    for _ in 0..64 {
        tokio::task::yield_now().await;
    }
    go.notify_waiters();
    for joined in join_all(callers).await {
        assert_eq!(joined.expect("joined"), Ok(content(key(7), 500)));
    }
    assert_eq!(asked.load(Relaxed), 1);
    assert_eq!((cache.stats().fetches, cache.stats().shared), (1, 63));
    assert_eq!(cache.inner.flights.len(), 0, "ended flights leave nothing behind");
}

#[tokio::test]
async fn different_keys_do_not_wait_for_each_other() {
    let cache = memory_only().await;
    let (begun, began) = oneshot::channel();
    let stuck = {
        let cache = cache.clone();
        tokio::spawn(async move {
            let load = || async {
                let _ = begun.send(());
                std::future::pending::<Result<Bytes, Infallible>>().await
            };
            cache.get_or_load(key(1), load).await
        })
    };
    began.await.expect("began");
    assert!(read(&cache, key(2), 100).await);
    stuck.abort();
    assert!(stuck.await.expect_err("aborted").is_cancelled());
    // The dropped flight blocks nobody.
    assert!(read(&cache, key(1), 100).await);
    assert_eq!(cache.inner.flights.len(), 0);
}

#[tokio::test]
async fn when_the_one_in_flight_is_dropped_the_next_takes_over() {
    let cache = memory_only().await;
    let (begun, began) = oneshot::channel();
    let first = {
        let cache = cache.clone();
        tokio::spawn(async move {
            let load = || async {
                let _ = begun.send(());
                std::future::pending::<Result<Bytes, Infallible>>().await
            };
            cache.get_or_load(key(1), load).await
        })
    };
    began.await.expect("began");
    let second = {
        let cache = cache.clone();
        tokio::spawn(async move { read(&cache, key(1), 100).await })
    };
    while cache.inner.flights.join(key(1)).waiting() < 2 {
        tokio::task::yield_now().await;
    }
    first.abort();
    assert!(second.await.expect("joined"), "the second caller asked the store itself");
}

#[tokio::test]
async fn a_failure_is_neither_kept_nor_shared() {
    let cache = memory_only().await;
    let go = Arc::new(Notify::new());
    let asked = Arc::new(AtomicUsize::new(0));
    let callers: Vec<_> = (0..3)
        .map(|_| {
            let (cache, go, asked) = (cache.clone(), go.clone(), asked.clone());
            tokio::spawn(async move {
                let load = || async move {
                    let nth = asked.fetch_add(1, Relaxed);
                    if nth == 0 {
                        go.notified().await;
                        return Err("the store said no");
                    }
                    Ok(Bytes::from_static(b"value"))
                };
                cache.get_or_load(key(1), load).await
            })
        })
        .collect();
    while asked.load(Relaxed) == 0 {
        tokio::task::yield_now().await;
    }
    go.notify_one();
    let results: Vec<_> = join_all(callers).await.into_iter().map(|joined| joined.expect("joined")).collect();
    assert_eq!(results.iter().filter(|result| result.is_err()).count(), 1, "{results:?}");
    assert_eq!(results.iter().filter(|result| **result == Ok(Bytes::from_static(b"value"))).count(), 2);
    assert_eq!((asked.load(Relaxed), cache.stats().failures), (2, 1));

    let bad = || async { Ok(Bytes::from_static(b"not what was sealed")) };
    assert_eq!(cache.get_or_open(key(2), bad, |sealed| unseal(key(2), sealed)).await, Err(BadTag), "R9");
    assert_eq!(cache.get(&key(2)), None);
    assert!(read(&cache, key(2), 100).await);
}

#[tokio::test]
async fn memory_stays_bounded() {
    let cache = memory_only().await;
    for number in 0..500 {
        read(&cache, key(number), LEN).await;
        assert!(cache.stats().memory_bytes <= MEMORY_BYTES_MIN as u64);
    }
    assert!(cache.stats().memory_entries > 40, "{:?}", cache.stats());
    assert_eq!(Cache::open(1 << 20, None).await.map(|_| ()), Err(CacheError::Memory { found: 1 << 20 }));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_left_memory_comes_from_disk() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let cache = on_disk(dir.path()).await;
    for number in 0..200 {
        assert!(read(&cache, key(number), LEN).await);
        settle(&cache).await;
    }
    let mut asked = 0;
    for number in 0..200 {
        asked += usize::from(read(&cache, key(number), LEN).await);
    }
    let stats = cache.stats();
    assert_eq!(asked, 0, "{stats:?}");
    assert!(stats.disk_hits > 100, "{stats:?}");
    assert_eq!((stats.rejected, stats.disk_errors), (0, 0));
}

/// More than fits in the queue at once: 20 MB of slices of one buffer, as in a checkpoint.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_made_here_is_on_disk_unasked() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let cache = on_disk(dir.path()).await;
    let (mut body, mut places) = (Vec::new(), Vec::new());
    for number in 0..200 {
        let sealed = seal(key(number), &content(key(number), LEN));
        places.push((key(number), body.len()..body.len() + sealed.len()));
        body.extend_from_slice(&sealed);
    }
    let body = Bytes::from(body);
    assert!(!cache.has_sealed(&key(1)));
    cache.keep_sealed(places.into_iter().map(|(key, range)| (key, body.slice(range)))).await;
    assert!(body.is_unique(), "its memory may be used again");
    assert!(cache.has_sealed(&key(1)) && !cache.has_sealed(&key(1000)));
    assert_eq!(asked_again(&cache, 200).await, 0, "{:?}", cache.stats());
    assert_eq!((cache.stats().kept_bytes, cache.stats().disk_hits), (body.len() as u64, 200));
    let without = memory_only().await;
    without.keep_sealed([(key(1), body.slice(..4))]).await;
    assert_eq!(without.stats().kept_bytes, 0, "no disk, nothing to do");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn disk_holds_no_plain_bytes_and_stays_bounded() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let cache = on_disk(dir.path()).await;
    let marker = b"a secret that must not leave the gateway in the clear".repeat(100);
    let place = key(1);
    let fetch = || async { Ok(seal(place, &marker)) };
    cache.get_or_open(place, fetch, |sealed| unseal(place, sealed)).await.expect("read");
    for number in 10..1500 {
        read(&cache, key(number), LEN).await;
        if number % 32 == 0 {
            settle(&cache).await;
        }
    }
    cache.close().await;
    let body = std::fs::read(dir.path().join("ring")).expect("read");
    assert!(!body.windows(30).any(|window| window == &marker[..30]), "R10: plain bytes in a cache file");
    let whole = body.len() as u64;
    assert!(whole > 0);
    assert!(whole <= DISK_BYTES, "{whole} bytes of files after writing {}", 1500 * LEN);
}

async fn filled(dir: &Path, entries: u32) {
    let cache = on_disk(dir).await;
    for number in 0..entries {
        read(&cache, key(number), LEN).await;
        settle(&cache).await;
    }
    cache.close().await;
}

/// Number of these entries for which the store was asked.
async fn asked_again(cache: &Cache, entries: u32) -> u32 {
    let mut asked = 0;
    for number in 0..entries {
        asked += u32::from(read(cache, key(number), LEN).await);
    }
    asked
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_finds_the_disk_warm() {
    let dir = tempfile::tempdir().expect("temporary directory");
    filled(dir.path(), 50).await;
    let cache = on_disk(dir.path()).await;
    assert_eq!(asked_again(&cache, 50).await, 0, "{:?}", cache.stats());
}

/// Entries that the disk never took are not checked.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_restart_finds_what_many_stored_at_once() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let cache = on_disk(dir.path()).await;
    for round in 0..20 {
        let storing = |part: u32| {
            let tier = cache.inner.disk.clone();
            tokio::task::spawn_blocking(move || {
                let disk = tier.get().expect("disk tier");
                for number in 0..100 {
                    let number = (round * 4 + part) * 100 + number;
                    disk.fetched(key(number), Bytes::from_static(b"sealed"), Demand::Point);
                }
            })
        };
        for joined in join_all((0..4).map(storing)).await {
            joined.expect("joined");
        }
        settle(&cache).await;
    }
    let stored: Vec<u32> = (0..8000).filter(|number| cache.has_sealed(&key(*number))).collect();
    assert!(stored.len() > 4000, "{}", stored.len());
    cache.close().await;
    drop(cache);
    let cache = on_disk(dir.path()).await;
    let lost = stored.iter().filter(|number| !cache.has_sealed(&key(**number))).count();
    assert_eq!(lost, 0, "of {}", stored.len());
}

/// CACHE-C7: a small entry counts with its whole space on disk.
#[test]
fn c7_an_entry_counts_as_what_it_takes_on_disk() {
    let key_bytes = 48;
    let found = [0, 1, 4096 - key_bytes, 4096 - key_bytes + 1, 128 << 10].map(crate::ring::room);
    assert_eq!(found, [4096, 4096, 4096, 4097, (128 << 10) + key_bytes as u64]);
}

/// CACHE-C5: scans 200 MB, three times the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c5_what_is_on_disk_survives_a_scan_of_several_times_the_disk() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let cache = on_disk(dir.path()).await;
    for number in 0..100 {
        assert!(read(&cache, key(number), LEN).await);
        if number % 16 == 15 {
            settle(&cache).await;
        }
    }
    for number in 1000..3000 {
        assert!(read_for(Demand::Scan, &cache, key(number), LEN).await);
        if number % 32 == 0 {
            settle(&cache).await;
        }
    }
    settle(&cache).await;
    cache.forget_opened();
    assert_eq!(asked_again(&cache, 100).await, 0, "{:?}", cache.stats());
    let sealed = LEN as u64 + 4;
    assert_eq!((cache.stats().admitted_bytes, cache.stats().left_out_bytes), (100 * sealed, 2000 * sealed));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c5_a_small_scan_is_warm_once_it_was_fetched_twice() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let cache = on_disk(dir.path()).await;
    for (round, expected) in [(1, 30), (2, 30), (3, 0)] {
        let mut asked = 0;
        for number in 0..30 {
            asked += u32::from(read_for(Demand::Scan, &cache, key(number), LEN).await);
        }
        assert_eq!(asked, expected, "round {round}");
        settle(&cache).await;
        cache.forget_opened();
    }
}

/// CACHE-C7: uploads of three times the disk, and some entries that are read now and then. Without reads from disk in
/// between, they would be evicted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn c7_what_is_read_meanwhile_survives_uploads_of_several_times_the_disk() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let cache = on_disk(dir.path()).await;
    for number in 0..20 {
        assert!(read(&cache, key(number), LEN).await);
    }
    for round in 0..50 {
        let first = 1000 + round * 40;
        let sealed = |number| (key(number), seal(key(number), &content(key(number), LEN)));
        cache.keep_sealed((first..first + 40).map(sealed)).await;
        settle(&cache).await;
        cache.forget_opened();
        assert_eq!(asked_again(&cache, 20).await, 0, "round {round}: {:?}", cache.stats());
        settle(&cache).await;
    }
    let CacheStats { kept_bytes, rewritten_bytes, .. } = cache.stats();
    assert!(kept_bytes > 2 * DISK_BYTES, "{kept_bytes}: the disk was not filled more than once");
    assert!(
        (1..=kept_bytes / 4).contains(&rewritten_bytes),
        "{rewritten_bytes}: each is written again about once per half of the disk"
    );
    cache.close().await;
    drop(cache);
    let cache = on_disk(dir.path()).await;
    assert_eq!(asked_again(&cache, 20).await, 0, "warm after a restart, too");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wiped_directory_costs_fetches_only() {
    let dir = tempfile::tempdir().expect("temporary directory");
    filled(dir.path(), 50).await;
    std::fs::remove_file(dir.path().join("ring")).expect("wipe");
    let cache = on_disk(dir.path()).await;
    assert_eq!(asked_again(&cache, 50).await, 50);
    // The same while the cache runs: `read` checks that everything it serves is right.
    settle(&cache).await;
    std::fs::remove_dir_all(dir.path()).expect("wipe");
    for _ in 0..3 {
        asked_again(&cache, 200).await;
        settle(&cache).await;
    }
    assert_eq!(cache.stats().failures, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn damaged_files_cost_fetches_only() {
    let dir = tempfile::tempdir().expect("temporary directory");
    for damage in 0..5 {
        filled(dir.path(), 50).await;
        let path = dir.path().join("ring");
        let mut body = std::fs::read(&path).expect("read");
        match damage {
            // The table of a region is before its records: 16 KiB of each MiB.
            0 => {
                for region in body.chunks_mut(1 << 20) {
                    region[16 << 10..].iter_mut().step_by(4099).for_each(|byte| *byte ^= 1);
                }
            }
            1 => body.iter_mut().step_by(4099).for_each(|byte| *byte ^= 1),
            2 => body.truncate(2_000_000),
            3 => body.fill(0xff),
            _ => body.clear(),
        }
        std::fs::write(&path, body).expect("write");
        let cache = on_disk(dir.path()).await;
        let asked = asked_again(&cache, 50).await;
        assert!(asked > 0, "damage {damage} was not even noticed");
        let stats = cache.stats();
        assert_eq!(stats.failures, 0, "damage {damage}: {stats:?}");
        assert!(damage > 0 || stats.rejected > 0, "{stats:?}");
    }
}

/// A cache over a file that is opened in this way for reads, and in that way for writes.
fn over(reads: std::fs::File, writes: std::fs::File) -> Cache {
    let ring = Ring::on(reads, writes, Shape::of(DISK_BYTES).expect("large enough"));
    let tier = Tier::default();
    tier.put(Disk::on(ring));
    ReadCache::over(Arc::new(tier), MEMORY_BYTES_MIN, Bytes::len).expect("open")
}

/// RING-G2: only the metrics tell that the disk is off, and the store is asked more often.
async fn works_without_a_disk(cache: &Cache) {
    assert_eq!((cache.stats().failures, cache.stats().rejected, cache.stats().disk), (0, 0, false));
    for _ in 0..2 {
        cache.forget_opened();
        assert_eq!(asked_again(cache, 50).await, 50, "{:?}", cache.stats());
        assert_eq!(asked_again(cache, 50).await, 0, "memory works: {:?}", cache.stats());
    }
    let admitted = cache.stats().admitted_bytes;
    assert!(read(cache, key(1000), LEN).await && !cache.has_sealed(&key(1000)));
    cache.keep_sealed([(key(1), Bytes::from_static(b"sealed"))]).await;
    assert_eq!((cache.stats().kept_bytes, cache.stats().admitted_bytes), (0, admitted));
    cache.close().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_disk_is_turned_off_and_costs_fetches_only() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("ring");
    std::fs::write(&path, "").expect("write");
    let full = std::fs::File::options().write(true).open("/dev/full").expect("/dev/full");
    let cache = over(std::fs::File::open(path).expect("open"), full);
    assert!(cache.stats().disk);
    assert!(read(&cache, key(1), LEN).await);
    settle(&cache).await;
    works_without_a_disk(&cache).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_disk_that_reads_nothing_is_turned_off_and_costs_fetches_only() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let path = dir.path().join("ring");
    let writes = std::fs::File::create(&path).expect("create");
    // Each read of such a file fails.
    let reads = std::fs::File::options().write(true).open(&path).expect("open");
    let cache = over(reads, writes);
    for number in 0..50 {
        assert!(read(&cache, key(number), LEN).await);
    }
    settle(&cache).await;
    cache.forget_opened();
    assert_eq!(asked_again(&cache, 50).await, 50);
    assert_eq!(cache.stats().disk_errors, 32, "then it is given up");
    works_without_a_disk(&cache).await;
}

/// Bytes from disk are opened like any others (CACHE-C2).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sealed_bytes_from_disk_are_not_trusted() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let cache = on_disk(dir.path()).await;
    let disk = cache.inner.disk.get().expect("disk tier");
    disk.fetched(key(5), Bytes::from_static(b"written by somebody else"), Demand::Point);
    disk.fetched(key(6), seal(key(7), &content(key(7), LEN)), Demand::Point);
    disk.settle().await;
    for number in [5, 6] {
        assert!(read(&cache, key(number), LEN).await, "the store was asked");
    }
    assert_eq!((cache.stats().rejected, cache.stats().failures), (2, 0));
    disk.settle().await;
    cache.inner.memory.clear();
    for number in [5, 6] {
        assert!(!read(&cache, key(number), LEN).await, "the good bytes replaced the bad ones");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_size_drops_the_files() {
    let dir = tempfile::tempdir().expect("temporary directory");
    filled(dir.path(), 50).await;
    let smaller = Cache::open(MEMORY_BYTES_MIN, Some((dir.path().to_owned(), DISK_BYTES / 2))).await.expect("open");
    assert_eq!(asked_again(&smaller, 50).await, 50);
    smaller.close().await;
    let whole = std::fs::metadata(dir.path().join("ring")).expect("the ring").len();
    assert!(whole <= DISK_BYTES / 2, "{whole}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_that_cannot_be_used_is_done_without() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let file = dir.path().join("file");
    std::fs::write(&file, "in the way").expect("write");
    for (place, bytes) in
        [(file.clone(), DISK_BYTES), (file.join("below"), DISK_BYTES), (dir.path().join("d"), 1 << 20)]
    {
        let cache = Cache::open(MEMORY_BYTES_MIN, Some((place, bytes))).await.expect("open");
        assert!(!cache.stats().disk);
        assert!(read(&cache, key(1), 100).await);
        cache.close().await;
    }
    assert_eq!(std::fs::read_to_string(&file).expect("read"), "in the way", "files of others stay");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn siblings_share_the_disk_but_not_the_values() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let cache = on_disk(dir.path()).await;
    let pages: ReadCache<Arc<Vec<u8>>> =
        cache.sibling(MEMORY_BYTES_MIN, |page: &Arc<Vec<u8>>| page.len()).expect("sibling");
    let place = key(3);
    let fetch = || async { Ok(seal(place, &content(place, LEN))) };
    let open = |sealed: &Bytes| unseal(place, sealed).map(|plain| Arc::new(plain.to_vec()));
    let page = pages.get_or_open(place, fetch, open).await.expect("read");
    assert_eq!(*page, content(place, LEN).to_vec());
    settle(&cache).await;
    assert_eq!(cache.get(&place), None);
    assert!(!read(&cache, place, LEN).await, "the sealed bytes were on disk already");
}
