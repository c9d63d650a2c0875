//! Reads of parts of extents, from each tier. The requests to the store are counted.

use super::*;
use holdfast_cache::{Cache, MEMORY_BYTES_MIN};
use holdfast_seal::DataKey;
use holdfast_store::{Faults, Faulty, Health, Memory, ObjectStore};
use holdfast_types::{GroupId, LogId, MemberId, SECTOR_BYTES, Term};
use holdfast_volume::map::{Live, PackBuilder, Page, Root};
use holdfast_volume::segment::blocks::BLOCK_BYTES;
use holdfast_volume::segment::{Codec, SegmentBuilder};
use tokio_util::sync::CancellationToken;

const V: VolumeId = VolumeId(1);
/// Sectors of each extent, of eight blocks.
const EXTENT: u64 = 256;
/// Sectors of the volume.
const SECTORS: u64 = 3 * EXTENT;
/// Within a block, over blocks, over extents, over the small extent at sector 40, and all.
const RANGES: [(u64, u64); 11] =
    [(0, 8), (8, 8), (31, 2), (32, 32), (36, 1), (39, 6), (41, 2), (200, 100), (255, 2), (500, 13), (0, SECTORS)];

fn id(random: u128) -> ObjectId {
    ObjectId { term: Term(1), member: MemberId(1), boot: 1, random }
}

/// Blocks that compress and blocks that do not, by turns.
fn content(salt: u64) -> Vec<u8> {
    let byte = |at: u64| {
        if at / BLOCK_BYTES as u64 % 2 == salt % 2 {
            return (at / SECTOR_BYTES) as u8;
        }
        let mixed = (at + salt).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        ((mixed ^ mixed >> 29).wrapping_mul(0x94d0_49bb_1331_11eb) >> 33) as u8
    };
    (0..SECTORS * SECTOR_BYTES).map(byte).collect()
}

struct World {
    store: Arc<Faulty<Memory>>,
    mapping: Mapping,
    root: RootRef,
    content: Vec<u8>,
}

impl World {
    /// Three large extents, and a later write of four sectors over the first.
    async fn new(codec: Codec, disk: Option<std::path::PathBuf>) -> Self {
        let key = SetKey::of(GroupId(3), 1, DataKey::from_bytes([6; 32]));
        let store = Arc::new(Faulty::new(Memory::new(), 1, Faults::default()));
        let (mut content, later) = (content(0), content(1));
        let (mut page, mut root) = (Page::new(V, 0), Root::new(LogId::new(1, 1)));
        let bytes = |lba: u64, sectors: u64| (lba * SECTOR_BYTES) as usize..((lba + sectors) * SECTOR_BYTES) as usize;
        for (object, written, ranges) in [
            (id(1), &content, vec![(0, EXTENT), (EXTENT, EXTENT), (2 * EXTENT, EXTENT)]),
            (id(2), &later, vec![(40, 4)]),
        ] {
            let mut segment = SegmentBuilder::new(key.sealer(object), codec);
            for (lba, sectors) in ranges {
                let place = segment.push(V, Lba(lba), &written[bytes(lba, sectors)]);
                page.overlay(&MapExtent::whole(object, Lba(lba), place));
            }
            let raw = Sectors(segment.raw_bytes() / SECTOR_BYTES);
            let segment = segment.finish();
            root.add_segment(object, segment.len() as u64, raw);
            store.put_new(&keys::segment(GroupId(3), object), segment).await.expect("a segment");
        }
        content[bytes(40, 4)].copy_from_slice(&later[bytes(40, 4)]);
        let mut pack = PackBuilder::new(key.sealer(id(3)));
        let place = pack.push(&page);
        let pack = pack.finish();
        root.add_pack(id(3), pack.len() as u64);
        root.replace_page(V, 0, Some(place), &Live::new(), &page.live()).expect("a page");
        store.put_new(&keys::map_pack(GroupId(3), id(3)), pack).await.expect("a pack");

        let disk = disk.map(|dir| (dir, 64 << 20));
        let cache = Cache::open(MEMORY_BYTES_MIN, disk).await.expect("a cache");
        let (health, stop) = (Arc::new(Health::new("demo")), CancellationToken::new());
        let mapping = Mapping::new(key, store.clone(), health, cache, MEMORY_BYTES_MIN, Sectors(0), stop);
        let (mapping, at) = (mapping.expect("a mapping"), RootRef { object: id(4), bytes: 100 });
        mapping.follow_root(None, at, Arc::new(root));
        // Not a fault: from now on each request is counted.
        store.set(Faults { slow: 1000, gives_way: true, ..Faults::default() });
        Self { store, mapping, root: at, content }
    }

    fn asked(&self) -> u64 {
        self.store.counts().slowed
    }

    async fn read(&self, lba: u64, sectors: u64) {
        let mut parts = Vec::new();
        let read = self.mapping.read(self.root, V, Lba(lba), Sectors(sectors), Demand::Point, &mut parts).await;
        read.expect("a read");
        let mut found = Vec::new();
        for part in parts {
            match part {
                Part::Data(bytes) => found.extend_from_slice(&bytes),
                Part::Zeroes(sectors) => found.resize(found.len() + (sectors.0 * SECTOR_BYTES) as usize, 0),
            }
        }
        let expected = &self.content[(lba * SECTOR_BYTES) as usize..((lba + sectors) * SECTOR_BYTES) as usize];
        assert!(found == expected, "{sectors} sectors at {lba}: other bytes than were written");
    }

    /// Waits until the disk has all that it was given: the next part is taken only then.
    async fn settle(&self) {
        let part = Stretch::from((0, 0..1));
        self.mapping.keep_sealed(id(1000), &Bytes::from_static(b"x"), vec![part]).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn any_part_is_read_alike_from_each_tier() {
    for codec in [Codec::None, Codec::Lz4, Codec::Zstd] {
        let dir = tempfile::tempdir().expect("temporary directory");
        let world = World::new(codec, Some(dir.path().to_owned())).await;
        for (lba, sectors) in RANGES {
            world.read(lba, sectors).await;
        }
        // The page, and each extent once, whatever was read of it first.
        assert_eq!(world.asked(), 1 + 4, "{codec}");
        world.settle().await;
        let fetched = world.mapping.cache.stats().fetches;
        for tier in ["memory", "disk"] {
            for (lba, sectors) in RANGES {
                world.read(lba, sectors).await;
                if tier == "disk" {
                    world.mapping.cache.forget_opened();
                }
            }
            assert_eq!((world.asked(), world.mapping.cache.stats().fetches), (1 + 4, fetched), "{codec}, from {tier}");
            world.mapping.cache.forget_opened();
        }
        assert!(world.mapping.cache.stats().disk_hits > 0, "{codec}");
    }
}

/// 4 KiB from disk: one stretch is read, one block is opened.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_small_read_from_disk_opens_one_block() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let world = World::new(Codec::Lz4, Some(dir.path().to_owned())).await;
    world.read(EXTENT, 8).await;
    let stats = || world.mapping.cache.stats();
    assert_eq!((stats().memory_entries, stats().disk_hits), (8, 0), "all blocks of what was fetched");
    world.settle().await;
    world.mapping.cache.forget_opened();
    world.read(EXTENT + 100, 8).await;
    assert_eq!((stats().memory_entries, stats().disk_hits), (1, 1));
    assert!(stats().memory_bytes < 2 * BLOCK_BYTES as u64);
    world.read(EXTENT + 108, 8).await;
    assert_eq!((stats().memory_entries, stats().disk_hits, stats().memory_hits), (1, 1, 1), "the same block");
    assert_eq!(world.asked(), 2, "a page and an extent");
}

/// R9. Wrong bytes are fetched again, and no more often for several stretches than for one.
#[tokio::test]
async fn a_damaged_extent_is_fetched_three_times() {
    let world = World::new(Codec::Lz4, None).await;
    world.read(0, 8).await;
    let asked = world.asked();
    world.store.set(Faults { slow: 1000, gives_way: true, flip_bit: 1000, ..Faults::default() });
    let read = world.mapping.read(world.root, V, Lba(EXTENT), Sectors(EXTENT), Demand::Point, &mut Vec::new()).await;
    assert!(matches!(read, Err(MapError::Bad { what: "extent", .. })), "{read:?}");
    assert_eq!(world.asked() - asked, 3);
}

/// A prefetch opens what it was asked for, once.
#[tokio::test]
async fn a_prefetch_brings_each_extent_with_one_request() {
    let world = World::new(Codec::Lz4, None).await;
    let warm = async |lba, sectors| {
        world.mapping.warm(world.root, V, Lba(lba), Sectors(sectors), Demand::Point).await.expect("a prefetch")
    };
    // The first extent is in two pieces, before and behind the later write.
    assert_eq!(warm(0, EXTENT).await, 3, "two pieces of one, apart, and what is between them");
    assert_eq!(world.asked(), 1 + 2, "a page and two extents");
    assert_eq!(warm(0, EXTENT).await, 0);
    assert_eq!(warm(0, SECTORS).await, 2);
    let asked = world.asked();
    world.read(0, SECTORS).await;
    assert_eq!(world.asked(), asked, "all of it was there");
}
