use super::table::encode;
use super::*;
use futures_util::FutureExt;
use holdfast_types::{MemberId, ObjectId, Term};
use proptest::prelude::*;
use std::collections::HashMap;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::AtomicBool;

/// Regions of twelve KiB of records, four records at most.
const SMALL: Shape = Shape { region_bytes: 16 << 10, regions: 4 };
/// Longest sealed bytes that are put there.
const LEN_MAX: usize = 9000;
const PATIENCE: Duration = Duration::from_secs(600);

fn key(number: u32) -> BlockKey {
    let random = 0x1234_5678_9abc_def0_u128 << 64 | u128::from(number / 3);
    let object = ObjectId { term: Term(3), member: MemberId(1), boot: 9, random };
    BlockKey { object, number: number % 3, block: number % 2 }
}

/// The sealed bytes of a key: always the same, and of each key others.
fn content(number: u32) -> Bytes {
    let len = number as usize * 977 % LEN_MAX;
    let mut dice = u64::from(number) + 1;
    let draw = std::iter::repeat_with(move || {
        dice = dice.wrapping_mul(0x5851_F42D_4C95_7F2D).wrapping_add(0x1405_7B7E_F767_814F);
        (dice >> 56) as u8
    });
    draw.take(len).collect::<Vec<u8>>().into()
}

async fn small(dir: &Path) -> Arc<Ring> {
    Ring::open(dir.join("ring"), SMALL).await.expect("open")
}

async fn put(ring: &Arc<Ring>, number: u32) {
    ring.put(key(number), content(number));
    ring.settled().await;
}

/// Whether the key's bytes are here. If so, they are its own.
async fn read(ring: &Arc<Ring>, number: u32) -> bool {
    let found = ring.read(&key(number), PATIENCE).await.expect("read");
    let Some(found) = found else { return false };
    assert_eq!(found.sealed, content(number), "wrong bytes for {number}");
    true
}

fn spot_of(ring: &Ring, number: u32) -> Spot {
    match ring.state.locked().find(&key(number)) {
        Some(At::Written(spot)) => spot,
        other => panic!("{number} is not in the file: {other:?}"),
    }
}

fn bytes_at(ring: &Ring, spot: Spot) -> Vec<u8> {
    let (from, bytes) = (ring.shape.byte_of(spot.place), record_bytes(spot.place.len as usize));
    ring.file.read(from, bytes).expect("read")
}

/// RING-G1. A reader has looked a record up. Before it has read all of it, the region is written anew.
#[tokio::test]
async fn a_region_that_was_written_while_it_was_read_is_a_miss() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let ring = small(dir.path()).await;
    put(&ring, 7).await;
    let spot = spot_of(&ring, 7);
    let before = bytes_at(&ring, spot);
    assert_eq!(ring.accept(&key(7), spot, before.clone()).expect("it is there").sealed, content(7));
    // Until another record is at its place.
    let mut number = 100;
    while ring.state.locked().is_still(&spot) {
        put(&ring, number).await;
        number += 1;
    }
    put(&ring, number).await;
    let after = bytes_at(&ring, spot);
    assert_ne!(before, after, "the place was written");
    // The begin of the record was read before that, and the rest after it.
    let mixed = [&before[..KEY_BYTES], &after[KEY_BYTES..]].concat();
    assert!(ring.accept(&key(7), spot, mixed).is_none());
    assert!(!read(&ring, 7).await);
}

/// What was written is in the page cache: a read of it ends when it is first polled.
#[tokio::test]
async fn what_the_page_cache_has_is_read_without_another_thread() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let ring = small(dir.path()).await;
    put(&ring, 7).await;
    // The kernel may hold the page for a moment.
    for _ in 0..1000 {
        if let Some(found) = ring.read(&key(7), PATIENCE).now_or_never() {
            assert_eq!(found.expect("read").expect("it is there").sealed, content(7));
            return;
        }
        tokio::task::yield_now().await;
    }
    assert!(ring.file.is_mute(), "each read went to another thread");
}

/// RING-G1. As after a power cut: of a region, an old table and newer records have reached the disk.
#[tokio::test]
async fn another_keys_record_is_a_miss() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let ring = small(dir.path()).await;
    put(&ring, 7).await;
    let Spot { place, .. } = spot_of(&ring, 7);
    drop(ring);
    let file = RingFile::open(&dir.path().join("ring"), SMALL.bytes()).expect("open");
    let table = encode(1, &[(key(8), place)]);
    file.write(&mut [IoSlice::new(&table)], SMALL.begin_of(place.region)).expect("write");
    let ring = small(dir.path()).await;
    assert!(ring.has(&key(8)), "it is named");
    assert!(!read(&ring, 8).await && !ring.has(&key(8)));
}

/// RING-G4. Without an orderly end, nothing is found of a region whose writing had begun again.
#[tokio::test]
async fn a_table_goes_before_its_records() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let ring = small(dir.path()).await;
    let mut number = 0;
    let first = loop {
        put(&ring, number).await;
        number += 1;
        let region = spot_of(&ring, number - 1).place.region;
        if number > 4 && region == 0 {
            break number - 1;
        }
    };
    let gone: Vec<u32> = (0..first).filter(|number| !ring.has(&key(*number))).collect();
    assert!(!gone.is_empty(), "a region was filled again");
    drop(ring);
    let ring = small(dir.path()).await;
    assert!(gone.iter().all(|number| !ring.has(&key(*number))), "{gone:?}");
    let mut found = 0;
    for number in 0..first {
        found += u32::from(read(&ring, number).await);
    }
    assert!(found > 0, "full regions are found");
}

#[tokio::test]
async fn small_records_do_not_make_a_large_index() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let ring = small(dir.path()).await;
    for number in 0..500 {
        ring.put(key(number), Bytes::from_static(b"small"));
        ring.settled().await;
        assert!(ring.state.locked().records() <= SMALL.records_max() * SMALL.regions as usize);
    }
    assert!(ring.has(&key(499)) && !ring.has(&key(1)));
    let too_large = Bytes::from(vec![1; SMALL.region_bytes as usize]);
    ring.put(key(1000), too_large);
    assert!(!ring.has(&key(1000)));
}

/// CACHE-C7 needs to know what is evicted soon.
#[tokio::test]
async fn the_older_half_is_what_was_filled_before_half_of_the_regions() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut ring = small(dir.path()).await;
    for number in 0..4 {
        // One record in each region.
        ring.put(key(number), Bytes::from(vec![number as u8; LEN_MAX]));
        ring.settled().await;
    }
    for _ in 0..2 {
        let mut older = Vec::new();
        for number in 0..4 {
            let found = ring.read(&key(number), PATIENCE).await.expect("read").expect("it is there");
            older.push(found.older);
        }
        assert_eq!(older, [true, true, false, false]);
        // The order survives a restart.
        ring.save().await;
        ring = small(dir.path()).await;
    }
}

/// RING-G4. Their rounds say what is old, not their places in the file.
#[tokio::test]
async fn a_restart_takes_the_regions_in_the_order_in_which_they_were_filled() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let ring = small(dir.path()).await;
    for number in 0..6 {
        // One record in each region: the first two regions are filled twice.
        ring.put(key(number), Bytes::from(vec![number as u8; LEN_MAX]));
        ring.settled().await;
    }
    ring.save().await;
    drop(ring);
    let ring = small(dir.path()).await;
    let mut older = Vec::new();
    for number in 2..6 {
        let found = ring.read(&key(number), PATIENCE).await.expect("read").expect("it is there");
        older.push(found.older);
    }
    assert_eq!(older, [true, true, false, false]);
    ring.put(key(6), Bytes::from(vec![6; LEN_MAX]));
    ring.settled().await;
    let here: Vec<u32> = (0..7).filter(|number| ring.has(&key(*number))).collect();
    assert_eq!(here, [3, 4, 5, 6], "the oldest one made room");
}

/// R10. With a data directory that was made by hand, others may enter it.
#[tokio::test]
async fn nobody_else_may_read_the_file() {
    let dir = tempfile::tempdir().expect("temporary directory");
    drop(small(dir.path()).await);
    let found = std::fs::metadata(dir.path().join("ring")).expect("the ring").permissions().mode();
    assert_eq!(found & 0o777, 0o600);
}

/// RING-G2. Reads turned it off while a write was under way.
#[tokio::test]
async fn a_write_that_ends_after_the_disk_was_turned_off_takes_no_space() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let ring = small(dir.path()).await;
    let len = || std::fs::metadata(dir.path().join("ring")).expect("the ring").len();
    assert!(ring.state.locked().put(key(7), content(7)), "this test is the writer");
    let job = ring.next_job().expect("a region begins");
    ring.turn_off("reads", &io::Error::other("no disk"));
    while len() > 0 {
        tokio::task::yield_now().await;
    }
    ring.work(job).expect("write");
    assert!(len() > 0);
    ring.write_out();
    assert_eq!(len(), 0);
    ring.settled().await;
}

/// RING-G1, with threads that read while others write.
#[tokio::test(flavor = "multi_thread", worker_threads = 3)]
async fn readers_beside_a_writer_get_right_bytes_or_none() {
    const LAST: u32 = 4000;
    let dir = tempfile::tempdir().expect("temporary directory");
    let ring = small(dir.path()).await;
    let (latest, ended) = (Arc::new(AtomicU32::new(0)), Arc::new(AtomicBool::new(false)));
    let readers: Vec<_> = (0..2)
        .map(|reader| {
            let (ring, latest, ended) = (ring.clone(), latest.clone(), ended.clone());
            tokio::spawn(async move {
                let mut turn = 0;
                while !ended.load(Relaxed) {
                    let back = (turn * 7 + reader) % 16;
                    read(&ring, latest.load(Relaxed).saturating_sub(back)).await;
                    turn += 1;
                    tokio::task::yield_now().await;
                }
            })
        })
        .collect();
    for number in 0..=LAST {
        ring.put(key(number), content(number));
        if number % 4 == 0 {
            ring.settled().await;
        }
        latest.store(number, Relaxed);
    }
    ring.settled().await;
    ended.store(true, Relaxed);
    for reader in readers {
        reader.await.expect("only right bytes");
    }
    assert!(read(&ring, LAST).await && !read(&ring, 1).await);
}

#[derive(Clone, Debug)]
enum Step {
    Put(u32),
    Forget(u32),
    /// A restart; `true`: after an orderly end.
    Restart(bool),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => (0..24_u32).prop_map(Step::Put),
        1 => (0..24_u32).prop_map(Step::Forget),
        1 => any::<bool>().prop_map(Step::Restart),
    ]
}

/// Everything that may be there is right, what must be there is there, and what was dropped is not.
async fn follow(steps: Vec<Step>) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let mut ring = small(dir.path()).await;
    // How many were put since, of those that must be there: each moves on by a region at most.
    let mut since: HashMap<u32, u32> = HashMap::new();
    for step in steps {
        match step {
            Step::Put(number) => {
                put(&ring, number).await;
                since.values_mut().for_each(|since| *since += 1);
                since.retain(|_, since| *since < SMALL.regions);
                since.insert(number, 0);
            }
            Step::Forget(number) => {
                ring.forget(&key(number));
                since.remove(&number);
                assert!(!read(&ring, number).await);
            }
            Step::Restart(orderly) => {
                let before: Vec<u32> = (0..24).filter(|number| ring.has(&key(*number))).collect();
                if orderly {
                    ring.save().await;
                } else {
                    since.clear();
                }
                drop(ring);
                ring = small(dir.path()).await;
                // What was forgotten may come back: it is dropped in memory only, and is what it was.
                let missing: Vec<&u32> = before.iter().filter(|number| !ring.has(&key(**number))).collect();
                assert!(!orderly || missing.is_empty(), "{missing:?}");
            }
        }
        for number in 0..24 {
            let found = read(&ring, number).await;
            assert!(found || !since.contains_key(&number), "{number} is missing");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_ring_follows_its_model(steps in prop::collection::vec(step(), 1..60)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
        runtime.block_on(follow(steps));
    }

    /// Whatever is in the file, opening and reading find bytes of the right length, or nothing.
    #[test]
    fn a_damaged_file_is_read_without_harm(spots in prop::collection::vec((0..SMALL.bytes(), any::<u8>()), 1..40)) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build().expect("runtime");
        runtime.block_on(async {
            let dir = tempfile::tempdir().expect("temporary directory");
            let ring = small(dir.path()).await;
            for number in 0..12 {
                put(&ring, number).await;
            }
            ring.save().await;
            drop(ring);
            let path = dir.path().join("ring");
            let mut body = std::fs::read(&path).expect("read");
            for (at, byte) in spots {
                // Half of them in the tables.
                let at = if byte % 2 == 0 { at } else { at - at % u64::from(SMALL.region_bytes) + at % 256 };
                body[at as usize] = byte;
            }
            std::fs::write(&path, body).expect("write");
            let ring = small(dir.path()).await;
            for number in 0..12 {
                if let Some(found) = ring.read(&key(number), PATIENCE).await.expect("read") {
                    assert_eq!(found.sealed.len(), content(number).len());
                }
            }
            put(&ring, 13).await;
            assert!(read(&ring, 13).await);
        });
    }
}
