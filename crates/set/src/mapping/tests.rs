//! Reads of data that is only in the store: counts the requests.

use super::*;
use crate::ahead::{Ahead, Of};
use crate::recovery;
use crate::verify::tests::World as Stored;
use futures_util::future::join_all;
use holdfast_cache::{Demand, MEMORY_BYTES_MIN};
use holdfast_store::{Faults, Faulty, Memory, Trouble};
use holdfast_types::SECTOR_BYTES;

const V: VolumeId = VolumeId(1);
/// Sectors of each extent; the first one begins the volume.
const SECTORS: u64 = 16;

struct World {
    store: Arc<Faulty<Memory>>,
    mapping: Arc<Mapping>,
    root: RootRef,
}

impl World {
    /// With a disk cache, if given.
    async fn new(disk: Option<(std::path::PathBuf, u64)>) -> Self {
        let stored = Stored::made(None).await;
        let found = recovery::survey("memory", stored.store.clone(), &stored.key).await.unwrap().sets.remove(0);
        let (store, health) = (stored.store.clone(), Arc::new(Health::new("demo")));
        let (cache, stop) = (Cache::open(MEMORY_BYTES_MIN, disk).await.unwrap(), CancellationToken::new());
        let mapping =
            Mapping::new(found.key, store.clone(), health, cache, MEMORY_BYTES_MIN, Sectors(0), stop).unwrap();
        let root = found.head.content.root.unwrap();
        mapping.note_current(root);
        // Not a fault: from now on each request is counted, and lets all other readers run first.
        store.set(Faults { slow: 1000, gives_way: true, ..Faults::default() });
        Self { store, mapping: Arc::new(mapping), root }
    }

    fn asked(&self) -> u64 {
        self.store.counts().slowed
    }

    async fn read(&self, lba: u64, sectors: u64, demand: Demand) -> Vec<u8> {
        let mut parts = Vec::new();
        self.mapping.read(self.root, V, Lba(lba), Sectors(sectors), demand, &mut parts).await.unwrap();
        let bytes = parts.into_iter().flat_map(|part| match part {
            Part::Data(bytes) => bytes.to_vec(),
            Part::Zeroes(sectors) => vec![0; (sectors.0 * SECTOR_BYTES) as usize],
        });
        bytes.collect()
    }
}

/// One request, whichever parts of the extent are read.
#[tokio::test]
async fn readers_of_one_extent_at_once_share_one_request() {
    let world = World::new(None).await;
    // Root and page are in memory, and another extent.
    world.read(SECTORS, SECTORS, Demand::Point).await;
    let before = world.asked();
    let readers =
        (0..SECTORS).flat_map(|lba| [world.read(lba, 1, Demand::Point), world.read(0, SECTORS, Demand::Point)]);
    let read = join_all(readers).await;
    assert_eq!(world.asked() - before, 1, "of {} readers", read.len());
    let whole = &read[1];
    assert_eq!(whole.len() as u64, SECTORS * SECTOR_BYTES);
    for (part, expected) in read.iter().step_by(2).zip(whole.chunks(SECTOR_BYTES as usize)) {
        assert_eq!(part, expected);
    }
    // Two requests for two extents.
    let before = world.asked();
    join_all((0..8).map(|_| world.read(2 * SECTORS, 2 * SECTORS, Demand::Point))).await;
    assert_eq!(world.asked() - before, 2);
}

/// CACHE-C5, from a client's reads to the disk.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_scan_fetches_is_left_out_of_the_disk_cache() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let world = World::new(Some((dir.path().to_owned(), 64 << 20))).await;
    // Nothing is prefetched, but the scan is still detected.
    let (ahead, of) = (Ahead::new(Sectors(0)), Of::Root(world.root));
    let reads = |n: u64| ahead.reads(&world.mapping, &of, V, Lba(n * 256), Sectors(256));
    let demands: Vec<Demand> = (0..100).map(reads).collect();
    assert_eq!((demands[0], demands[99]), (Demand::Point, Demand::Scan), "12 MiB in order");

    let stats = || world.mapping.cache.stats();
    world.read(0, SECTORS, Demand::Scan).await;
    assert_eq!((stats().admitted_bytes, stats().left_out_bytes > 0), (0, true));
    world.read(SECTORS, SECTORS, Demand::Point).await;
    let admitted = stats().admitted_bytes;
    assert!(admitted > 0);
    // Prefetched for a scan, which has the same effect.
    let left_out = stats().left_out_bytes;
    world.mapping.warm(world.root, V, Lba(2 * SECTORS), Sectors(SECTORS), Demand::Scan).await.unwrap();
    assert!(stats().left_out_bytes > left_out);
    assert_eq!(stats().admitted_bytes, admitted);
}

/// A write failed, and leadership moved before it was repeated: a follower would warm its cache no more.
#[test]
fn a_store_is_spared_for_a_while_and_not_for_ever() {
    let met = |kind, last_unix_ms| {
        let trouble = Trouble { kind, error: String::new(), since_unix_ms: 0, last_unix_ms, failures: 3 };
        Standing { now: Some(trouble), last: None }
    };
    assert!(in_trouble(&met(Kind::Unreachable, 1_000), 61_000), "it may hang for so long before it fails again");
    assert!(!in_trouble(&met(Kind::Unreachable, 1_000), 301_000));
    assert!(!in_trouble(&met(Kind::Missing, 1_000), 1_000), "the others can be read");
    assert!(!in_trouble(&Standing::default(), 0));
}
