//! Collection with a slow store, and of garbage that an earlier leader left.

use super::*;
use crate::device::tests::World as Served;
use crate::head::tests::SET;
use crate::mapping::SetKey;
use crate::uploader::UploadSettings;
use holdfast_control::set::{Restored, RootRef, SetAnswer, SetCommand, SnapshotId};
use holdfast_front::tests::harness::soon;
use holdfast_seal::DataKey;
use holdfast_store::{Faults, Faulty, Memory, ObjectStore, keys};
use holdfast_types::{Epoch, LogId, MemberId, Name, RequestId};
use holdfast_volume::head::Covered;
use holdfast_volume::map::{Live, PackBuilder, Page, Root, seal_root};
use holdfast_volume::segment::Codec;
use holdfast_volume::space::{Amplification, MoveLimits};

const V: VolumeId = VolumeId(1);
const TERM: Term = Term(1);
const VICTIM: u128 = 10;
/// More than are read concurrently.
const PAGES: u32 = 10 * PAGES_AHEAD as u32;

fn id(random: u128) -> ObjectId {
    ObjectId { term: TERM, member: MemberId(1), boot: 1, random }
}

/// A set with one segment, half of which is garbage: this many pages name one extent of it each, and as many extents
/// were overwritten.
struct World {
    store: Arc<Faulty<Memory>>,
    root: RootRef,
    served: Served,
}

impl World {
    async fn new(pages: u32) -> Self {
        let key = SetKey::of(SET, 1, DataKey::from_bytes([6; 32]));
        let mut segment = SegmentBuilder::new(key.sealer(id(VICTIM)), Codec::None);
        let mut mapped = Vec::new();
        for number in 0..pages {
            let mut page = Page::new(V, number);
            let lba = page.lba();
            let place = segment.push(V, lba, &[7; 4096]);
            page.overlay(&MapExtent::whole(id(VICTIM), lba, place));
            segment.push(V, Lba(lba.0 + 8), &[8; 4096]);
            mapped.push(page);
        }
        let mut root = Root::new(LogId::new(1, 1));
        let raw = Sectors(segment.raw_bytes() / SECTOR_BYTES);
        let segment = segment.finish();
        root.add_segment(id(VICTIM), segment.len() as u64, raw);
        let mut pack = PackBuilder::new(key.sealer(id(20)));
        for page in &mapped {
            let place = pack.push(page);
            root.replace_page(V, page.number(), Some(place), &Live::new(), &page.live()).unwrap();
        }
        let pack = pack.finish();
        root.add_pack(id(20), pack.len() as u64);
        let sealed = seal_root(&root, key.sealer(id(30)));
        let root = RootRef { object: id(30), bytes: sealed.len() as u64 };
        let store = Arc::new(Faulty::new(Memory::new(), 1, Faults::default()));
        store.put_new(&keys::segment(SET, id(VICTIM)), segment).await.unwrap();
        store.put_new(&keys::map_pack(SET, id(20)), pack).await.unwrap();
        store.put_new(&keys::root(SET, id(30)), sealed).await.unwrap();
        let served = Served::over(true, Some(root)).await;
        served.server.switch.set("memory", store.clone());
        Self { store, root, served }
    }

    fn uploader(&self, moves: MoveLimits) -> Uploader {
        let settings = UploadSettings {
            bytes: u64::MAX,
            large_bytes: u64::MAX,
            interval: Duration::from_millis(10),
            parallel: 2,
            codec: Codec::Lz4,
            target_percent: 130,
            moves,
            keep_uploaded: false,
        };
        let server = self.served.server.clone();
        let (mapping, stop) = (server.reader.mapping().clone(), server.stopping());
        Uploader::new(server, mapping, settings, 1, stop)
    }

    /// From now on each request to the store takes this long, and is counted.
    fn slow(&self, by: Duration) {
        self.store.set(Faults { slow: 1000, slow_by: by, ..Faults::default() });
    }
}

/// Settings that were read again count from the next turn on, the limits of collection too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uploader_takes_settings_that_change() {
    let world = World::new(1).await;
    let (before, after) = (MoveLimits { bytes_per_second: 1, requests_per_second: 0 }, MoveLimits::default());
    let uploader = world.uploader(before);
    let changed = UploadSettings { bytes: 7, moves: after, ..uploader.settings };
    let mut uploader = uploader.following(Arc::new(move || changed));
    uploader.budget().took(Duration::ZERO, 1 << 20, 1);
    assert!(!uploader.budget().allows(Duration::from_secs(1)));
    uploader.refresh();
    assert_eq!(uploader.settings.bytes, 7);
    assert!(uploader.budget().allows(Duration::from_secs(1)), "no limit any more");
}

/// Read one after another, the pages would take longer than the limit of a segment, even with a healthy store.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_segment_of_many_pages_is_moved_although_the_store_takes_its_time() {
    const SLOW: Duration = Duration::from_millis(40);
    let world = World::new(PAGES).await;
    let uploader = world.uploader(MoveLimits::default());
    let base = uploader.mapping.base(world.root).await.unwrap();
    uploader.server.command("a begin", &SetCommand::CheckpointBegin { term: TERM }).await.unwrap();
    world.slow(SLOW);
    let begun = Instant::now();
    let collected = uploader.collect(TERM, &base, &Memtable::new(), &[]).await.unwrap();
    let took = begun.elapsed();
    assert_eq!(collected.moves.len(), PAGES as usize, "in {took:?}");
    assert!(took < SLOW * PAGES / 2, "{took:?}: not even two pages were read at once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_store_is_given_up_for_one_answer_and_not_for_how_much_it_is_asked() {
    // Far above the time of one answer, so that no answer is late on a busy machine.
    let limit = Duration::from_secs(3);
    let world = World::new(PAGES).await;
    let uploader = world.uploader(MoveLimits::default());
    let base = uploader.mapping.base(world.root).await.unwrap();
    world.slow(Duration::from_millis(350));
    let begun = Instant::now();
    let (_, found) = uploader.survivors(id(VICTIM), &base, &Memtable::new(), limit).await.unwrap().unwrap();
    assert_eq!(found.len(), PAGES as usize);
    assert!(begun.elapsed() > limit, "all of it took less than the limit of one answer: nothing is tested");
    world.slow(Duration::from_secs(3600));
    let late = uploader.survivors(id(VICTIM), &base, &Memtable::new(), Duration::from_millis(50)).await;
    assert!(matches!(late, Err(UploadError::Late)), "a silent store must not block a checkpoint");
}

/// With one request per second, each request is paid for by one second.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_page_that_the_store_is_asked_for_is_paid_for() {
    let world = World::new(40).await;
    let uploader = world.uploader(MoveLimits { bytes_per_second: 0, requests_per_second: 1 });
    let base = uploader.mapping.base(world.root).await.unwrap();
    let takes = |requests| {
        let (budget, paid) = (uploader.budget(), Duration::from_secs(requests));
        budget.allows(paid) && !budget.allows(paid - Duration::from_millis(1))
    };
    uploader.survivors(id(VICTIM), &base, &Memtable::new(), SURVIVORS_LIMIT).await.unwrap().unwrap();
    assert!(takes(1 + 40), "the segment, and each of its pages");
    uploader.survivors(id(VICTIM), &base, &Memtable::new(), SURVIVORS_LIMIT).await.unwrap().unwrap();
    assert!(takes(1 + 40 + 1), "the segment again; its pages are in memory");
}

/// A segment that was spared for one flipped bit would keep its garbage, and its data key, until the next term.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r9_a_segment_that_was_damaged_in_transit_is_fetched_again_and_moved() {
    const RUNS: u32 = 8;
    let world = World::new(RUNS).await;
    let uploader = world.uploader(MoveLimits::default());
    let base = uploader.mapping.base(world.root).await.unwrap();
    let read = uploader.survivors(id(VICTIM), &base, &Memtable::new(), SURVIVORS_LIMIT).await.unwrap();
    let (segment, found) = read.expect("its pages name it");
    let mut spoilt = segment.to_vec();
    for run in [1, 4] {
        spoilt[found[run].from[0].place.range().start as usize] ^= 1;
    }
    let (mut filling, mut collected) = (Filling::default(), Collected::default());
    let spoilt = Bytes::from(spoilt);
    uploader
        .copy(TERM, id(VICTIM), spoilt.clone(), found.clone(), &mut filling, &mut collected)
        .await
        .expect("the store has the right bytes");
    assert_eq!(collected.moves.len(), RUNS as usize);

    // The store itself has the wrong bytes: what opens is moved, and the rest is reported.
    let key = keys::segment(SET, id(VICTIM));
    world.store.delete(&key).await.unwrap();
    world.store.put_new(&key, spoilt.clone()).await.unwrap();
    let (mut filling, mut collected) = (Filling::default(), Collected::default());
    let lost = uploader.copy(TERM, id(VICTIM), spoilt, found, &mut filling, &mut collected).await;
    assert!(lost.is_err_and(|e| damaged(&e)));
    assert_eq!(collected.moves.len(), RUNS as usize - 2);
}

/// As above, of the table. Each attempt is paid for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r9_a_segment_counts_as_damaged_once_it_was_fetched_as_often_as_other_objects() {
    let world = World::new(1).await;
    let uploader = world.uploader(MoveLimits { bytes_per_second: 0, requests_per_second: 1 });
    let base = uploader.mapping.base(world.root).await.unwrap();
    let key = keys::segment(SET, id(VICTIM));
    let mut segment = world.store.get(&key).await.unwrap().to_vec();
    // The table is the last part.
    *segment.last_mut().unwrap() ^= 1;
    world.store.delete(&key).await.unwrap();
    world.store.put_new(&key, segment.into()).await.unwrap();
    let read = uploader.survivors(id(VICTIM), &base, &Memtable::new(), SURVIVORS_LIMIT).await;
    assert!(read.is_err_and(|e| damaged(&e)));
    let (budget, paid) = (uploader.budget(), Duration::from_secs(DAMAGED_TRIES.into()));
    assert!(budget.allows(paid) && !budget.allows(paid - Duration::from_millis(1)));
}

/// The checkpoint after a rollback moves nothing, and nobody writes after it. The root that came back has garbage, and
/// may have data under older keys. Of its segments, one was spared in the root before, with the same count.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_rollback_brings_back_is_collected_although_nobody_writes() {
    let world = World::new(8).await;
    let uploader = world.uploader(MoveLimits::default());
    let server = &uploader.server;
    let base = uploader.mapping.base(world.root).await.unwrap();
    let snapshot = SnapshotId { name: Name::new("before").unwrap(), made_by: RequestId(1) };
    let (name, request) = (snapshot.name.clone(), snapshot.made_by);
    let create = SetCommand::SnapshotCreate { name, request, at_unix_ms: 0, scheduled: false };
    server.command("a snapshot", &create).await.unwrap();
    let begun = server.command("a begin", &SetCommand::CheckpointBegin { term: TERM }).await.unwrap();
    let SetAnswer::CheckpointBegun { at } = begun else { panic!("found {begun:?}") };
    let end = SetCommand::CheckpointEnd { term: TERM, begin: at, root: world.root };
    server.command("an end", &end).await.unwrap();
    uploader.spared().begin(TERM, &base);
    uploader.spared().note(&base, id(VICTIM));
    uploader.note_garbage(Arc::new(base.clone()), false).await.unwrap();
    assert!(!uploader.collection_waits(), "nothing to do without the rollback: else nothing is tested");

    let rollback = SetCommand::Rollback { to: snapshot.clone(), safety: snapshot, request: RequestId(2) };
    server.command("a rollback", &rollback).await.unwrap();
    let collected = uploader.collect(TERM, &base, &Memtable::new(), &[]).await.unwrap();
    assert!(collected.moves.is_empty(), "SET-S12: nothing is retired before the head names the rollback");
    uploader.note_garbage(Arc::new(base), true).await.unwrap();
    assert!(uploader.collection_waits());
}

/// A term that was already judged is not judged again, and a root that is not in memory is not requested.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_left_is_judged_once_in_a_term_by_what_is_in_memory() {
    let world = World::new(8).await;
    let uploader = world.uploader(MoveLimits::default());
    let mut judged = None;
    uploader.judge_once(TERM, &mut judged).await;
    assert_eq!((judged, uploader.collection_waits()), (None, false), "its root is not here yet");
    uploader.mapping.base(world.root).await.unwrap();
    uploader.judge_once(TERM, &mut judged).await;
    assert_eq!((judged, uploader.collection_waits()), (Some(TERM), true));
    uploader.collection.due.store(false, Ordering::Relaxed);
    uploader.judge_once(TERM, &mut judged).await;
    assert!(!uploader.collection_waits(), "a checkpoint that could do nothing is not followed by another");
    uploader.judge_once(Term(2), &mut judged).await;
    assert!(uploader.collection_waits());
}

/// Nobody writes any more. A new leader finds the remaining garbage by the root, collects it, and stops.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_leader_before_left_is_collected_although_nobody_writes() {
    let world = World::new(8).await;
    let (server, uploader) = (world.served.server.clone(), world.uploader(MoveLimits::default()));
    let mapping = uploader.mapping.clone();
    // Without a head a checkpoint is requested for that reason, which is not the subject of this test.
    soon(async {
        while !server.head.take_wanted() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let content = server.host.with(|m| Restored::of(m.state(), Some(world.root)));
    let covered = Covered { upto: LogId::default(), generation: server.head.life().generation, at_unix_ms: 0 };
    server.head.commit(server.head.store(), TERM, covered, Epoch(0), content).await.unwrap();

    let begun = server.group.applied();
    world.slow(Duration::ZERO);
    tokio::spawn(uploader.run());
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(server.group.applied(), begun);
    // One of them may be a read of the head.
    let asked = world.store.counts().slowed;
    assert!(asked <= 2, "found {asked} requests: the store is asked for a root that another task loads");
    // As `SpaceKeeper` does.
    mapping.base(world.root).await.unwrap();
    soon(async {
        while server.host.root() == Some(world.root) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await;
    let rested = soon(async {
        loop {
            let applied = server.group.applied();
            tokio::time::sleep(Duration::from_secs(1)).await;
            if server.group.applied() == applied {
                return applied;
            }
        }
    })
    .await;
    let root = mapping.base(server.host.root().unwrap()).await.unwrap();
    assert!(!Amplification::of(&root).above(130), "{:?}", Amplification::of(&root));
    // Each checkpoint makes three entries: its begin, the note of a segment, and its end.
    assert!(rested.index.0 <= begun.index.0 + 6, "{begun} to {rested}: checkpoint after checkpoint");
}
