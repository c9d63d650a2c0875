use super::*;
use crate::device::tests::World as Served;
use crate::mapping::Mapping;
use crate::pace::JournalPace;
use crate::recovery;
use crate::verify::tests::World as Stored;
use holdfast_cache::{Cache, MEMORY_BYTES_MIN};
use holdfast_control::set::Snapshot;
use holdfast_log::{Identity, LogConfig, NodeLog};
use holdfast_store::{Faults, Health};
use holdfast_testkit::SimDisk;
use holdfast_types::{Epoch, GroupId, LogId, MemberId, ObjectId, RequestId, Sectors, Term};
use holdfast_volume::map::PAGE_SECTORS;
use std::future::poll_fn;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use std::task::Poll;
use tokio_util::sync::CancellationToken;

fn at(root: u128) -> RootRef {
    RootRef { object: ObjectId { term: Term(1), member: MemberId(1), boot: 1, random: root }, bytes: 9 }
}

/// Data that only a clone has is read like data that only a snapshot has, each root once.
#[test]
fn what_a_clone_alone_shows_is_read_after_the_snapshots() {
    let (upto, name) = (LogId::new(1, 5), |text| Name::new(text).unwrap());
    let mut state = SetState::new(Epoch(0));
    for (request, clone, root, snapshot) in [(1, 7, 10, "monday"), (2, 9, 11, "sunday"), (3, 8, 11, "sunday")] {
        let pin = Pin { clone: GroupId(clone), root: at(root), upto, snapshot: name(snapshot), at: upto };
        state.pins.insert(RequestId(request), pin);
    }
    let there = |root| {
        let request = RequestId(4);
        Snapshot { upto, root: at(root), volumes: Default::default(), request, at_unix_ms: 0, scheduled: false }
    };
    state.snapshots.insert(name("monday"), there(10));
    // A new snapshot of the same name has other data.
    state.snapshots.insert(name("sunday"), there(12));
    let all = targets(&state);
    let expected = [Target::Snapshot(name("monday")), Target::Snapshot(name("sunday")), Target::Clone(GroupId(8))];
    assert_eq!(all, expected);
    assert_eq!(Target::Now.next(all.clone()), Some(expected[0].clone()));
    assert_eq!(expected[1].next(all.clone()), Some(expected[2].clone()));
    assert_eq!(expected[2].next(all), None);
    state.snapshots.remove(&name("monday"));
    assert_eq!(targets(&state).len(), 3, "it is deleted, but its clone has it");
}

#[test]
fn copies_take_turns_and_one_in_trouble_is_passed_over() {
    let all = |_| true;
    assert_eq!([0, 1, 2, 3, 7].map(|turn| pick_copy(turn, 3, all)), [0, 1, 2, 0, 1]);
    assert_eq!([0, 1, 2, 3].map(|turn| pick_copy(turn, 3, |at| at != 1)), [0, 2, 2, 0]);
    assert_eq!(pick_copy(4, 3, |_| false), 1, "none is healthy: it waits for the same one");
    assert_eq!(pick_copy(5, 0, all), 0);
}

/// The scrubber of a set whose last checkpoint is in `stored`, with its position in `file`; and the other parts that
/// serve the set.
async fn scrubber(stored: &Stored, file: &Path) -> (Scrubber, Served) {
    let found = recovery::survey("memory", stored.store.clone(), &stored.key).await.unwrap().sets.remove(0);
    let served = Served::over(true, found.head.content.root).await;
    let (health, stop) = (Arc::new(Health::new("demo")), CancellationToken::new());
    let cache = Cache::open(MEMORY_BYTES_MIN, None).await.unwrap();
    let (store, page_bytes) = (stored.store.clone(), MEMORY_BYTES_MIN);
    let mapping = Mapping::new(found.key, store, health, cache, page_bytes, Sectors(0), stop.clone()).unwrap();
    // An empty log; the scrub asks it for the pace.
    let (file_bytes, bound_bytes, reserve_bytes) = (1 << 20, 64 << 20, 2 << 20);
    let config = LogConfig { file_bytes, bound_bytes, reserve_bytes, ..LogConfig::new("simulated") };
    let (log, _) = NodeLog::open_on(SimDisk::new(), config, Identity::default()).unwrap();
    let pace = Arc::new(JournalPace::new(log, served.server.host.clone()));
    let settings = ScrubSettings { bytes_per_second: 1 << 40, interval: Duration::from_secs(86_400) };
    let mut scrubber = Scrubber::new(served.server.clone(), Arc::new(mapping), pace, settings, file.to_owned(), stop);
    scrubber.again = Duration::from_millis(1);
    (scrubber, served)
}

/// Settings that were read again count from the next turn on, and are shown.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scrubber_takes_settings_that_change() {
    let (stored, dir) = (Stored::in_two_packs().await, tempfile::tempdir().unwrap());
    let (scrubber, served) = scrubber(&stored, &dir.path().join("scrub")).await;
    let changed = ScrubSettings { bytes_per_second: 0, interval: Duration::from_secs(5) };
    let mut scrubber = scrubber.following(Arc::new(move || changed));
    scrubber.refresh();
    assert_eq!((scrubber.settings.bytes_per_second, scrubber.settings.interval), (0, Duration::from_secs(5)));
    assert_eq!(served.server.scrub.shown.locked().bytes_per_second, 0);
}

/// A limit that was too low by mistake may mean weeks: they are not waited for once it is mended.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_piece_waits_by_the_limit_as_it_is_now() {
    let (stored, dir) = (Stored::in_two_packs().await, tempfile::tempdir().unwrap());
    let (scrubber, _served) = scrubber(&stored, &dir.path().join("scrub")).await;
    let rate = Arc::new(AtomicU64::new(1));
    let (told, interval) = (rate.clone(), Duration::from_secs(86_400));
    let now = move || ScrubSettings { bytes_per_second: told.load(Ordering::Relaxed), interval };
    let scrubber = scrubber.following(Arc::new(now));
    let mut spent = scrubber.throttle.spent(1 << 20);
    let waits = poll_fn(|cx| Poll::Ready(spent.as_mut().poll(cx).is_pending())).await;
    assert!(waits, "a MiB takes twelve days");
    rate.store(1 << 40, Ordering::Relaxed);
    tokio::time::timeout(Duration::from_secs(60), spent).await.expect("the limit is mended");
}

/// Runs turns until the end of the round; returns their number.
async fn to_the_end(scrubber: &mut Scrubber) -> usize {
    for turn in 0..100 {
        if scrubber.book.round.is_none() {
            return turn;
        }
        assert!(matches!(scrubber.turn().await, Turn::On), "the store answers");
    }
    panic!("no end: {:?}", scrubber.book.round)
}

/// Part, volume, first sector and sectors of the known damage.
fn known(scrubber: &Scrubber) -> Vec<(String, String, u64, u64)> {
    let known = scrubber.book.known();
    assert_eq!(known.total, known.places.len() as u64, "there is room for all");
    known.places.into_iter().map(|place| (place.part, place.volume, place.lba, place.sectors)).collect()
}

/// The result of [`Stored::damage_two_leaves_and_an_extent`]: each once, and in order.
fn damage() -> Vec<(String, String, u64, u64)> {
    let place = |part: &str, volume: &str, lba, sectors| (part.to_string(), volume.to_string(), lba, sectors);
    let mut places = vec![
        place("leaf", "vol1", 0, 2 * PAGE_SECTORS),
        place("extent", "vol1", 2 * PAGE_SECTORS, 16),
        place("leaf", "vol1", 4 * PAGE_SECTORS, 2 * PAGE_SECTORS),
    ];
    places.extend((0..4).map(|_| place("leaf", "", 0, 0)));
    places
}

/// R9: each bad leaf is reported with everything that it may list, the parts after it are read, and the round ends; the
/// next round finds the same.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_leaf_is_told_and_the_round_goes_on_behind_it() {
    let (stored, dir) = (Stored::in_two_packs().await, tempfile::tempdir().unwrap());
    let (mut scrubber, _served) = scrubber(&stored, &dir.path().join("note")).await;
    scrubber.book.begin(1);
    to_the_end(&mut scrubber).await;
    assert_eq!((scrubber.pages, known(&scrubber)), (3, Vec::new()));
    stored.damage_two_leaves_and_an_extent().await;
    for round in 2..4 {
        scrubber.book.begin(round);
        let turns = to_the_end(&mut scrubber).await;
        assert_eq!(known(&scrubber), damage(), "round {round}");
        // Two skipped leaves, one whose page is read, and the end.
        assert_eq!(turns, 4, "round {round}");
    }
}

/// SCRUB-B1, SCRUB-B2: a restart in the middle of a round reports nothing twice, and continues from the earlier
/// position.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_leaf_is_told_once_though_the_gateway_is_started_anew() {
    let (stored, dir) = (Stored::in_two_packs().await, tempfile::tempdir().unwrap());
    stored.damage_two_leaves_and_an_extent().await;
    let file = dir.path().join("note");
    let (mut first, _served) = scrubber(&stored, &file).await;
    first.book.begin(1);
    assert!(matches!(first.turn().await, Turn::On));
    assert_eq!(known(&first), damage()[..1]);
    let (mut second, _served) = scrubber(&stored, &file).await;
    assert_eq!((&second.book, known(&second).len()), (&first.book, 1));
    assert_eq!(to_the_end(&mut second).await, 3);
    assert_eq!(known(&second), damage());
}

/// An unavailable store has lost nothing: the scrub waits for it at its position.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaf_that_is_not_answered_is_not_passed() {
    let (stored, dir) = (Stored::in_two_packs().await, tempfile::tempdir().unwrap());
    let (mut scrubber, _served) = scrubber(&stored, &dir.path().join("note")).await;
    scrubber.book.begin(1);
    stored.store.set(Faults { down: true, ..Faults::default() });
    assert!(matches!(scrubber.turn().await, Turn::Later));
    assert_eq!(scrubber.book.round.as_ref().map(|round| round.next), Some(book::BEGIN));
    stored.store.set(Faults::default());
    to_the_end(&mut scrubber).await;
    assert_eq!(known(&scrubber), Vec::new());
}
