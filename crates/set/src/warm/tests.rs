use super::*;
use crate::reader::Part;
use crate::set_key::SetKey;
use holdfast_cache::{Cache, Demand, MEMORY_BYTES_MIN};
use holdfast_seal::DataKey;
use holdfast_store::{Health, Memory};
use holdfast_types::{GroupId, Lba, LogIndex, MemberId, Sectors, Term, VolumeId};
use holdfast_volume::index::Memtable;
use holdfast_volume::map::{Live, MapExtent, PackBuilder, Page};
use holdfast_volume::segment::{Codec, SegmentBuilder};

const V: VolumeId = VolumeId(1);
/// Sectors of each extent.
const SECTORS: u64 = 8;

#[test]
fn nothing_is_read_without_a_disk_or_unasked() {
    assert!(Warmth::new(1 << 20, 1 << 30).is_wanted());
    assert!(!Warmth::new(1 << 20, 0).is_wanted(), "no disk");
    assert!(!Warmth::new(0, 1 << 30).is_wanted(), "unasked");
}

#[test]
fn parts_are_handed_over_in_order_and_in_pieces() {
    let part = |n: u32| Stretch::from((n, u64::from(n) * 100_000..u64::from(n + 1) * 100_000));
    let parts: Vec<_> = (0..100).map(part).collect();
    let hands = hands(parts.clone());
    assert_eq!(hands.len(), 5);
    assert!(hands.iter().all(|hand| hand.len() <= 20));
    assert_eq!(hands.concat(), parts);
    assert_eq!(super::hands(Vec::new()), Vec::<Vec<_>>::new());
    assert_eq!(super::hands(vec![Stretch::from((0, 0..HAND_BYTES * 3))]).len(), 1, "a part is never split");
}

#[test]
fn bytes_take_their_time() {
    let warmth = |rate| Warmth { bytes_per_second: rate, most: 0, turn: tokio::sync::Mutex::default() };
    assert_eq!(warmth(1 << 20).time_for(3 << 20), Duration::from_secs(3));
    assert_eq!(warmth(1 << 30).time_for(0), Duration::ZERO);
}

fn id(random: u128) -> ObjectId {
    ObjectId { term: Term(2), member: MemberId(1), boot: 1, random }
}

fn content(lba: u64) -> Vec<u8> {
    vec![lba as u8 + 1; (SECTORS * 512) as usize]
}

/// A segment with an extent at each place, a pack with the page that maps them, and its root; in no store.
fn checkpoint(key: &SetKey, n: u128, places: &[u64]) -> (Bytes, Bytes, Root) {
    let mut segment = SegmentBuilder::new(key.sealer(id(n)), Codec::Lz4);
    let mut page = Page::new(V, 0);
    for lba in places {
        let place = segment.push(V, Lba(*lba), &content(*lba));
        page.overlay(&MapExtent::whole(id(n), Lba(*lba), place));
    }
    let segment = segment.finish();
    let mut pack = PackBuilder::new(key.sealer(id(n + 1000)));
    let place = pack.push(&page);
    let pack = pack.finish();
    let mut root = Root::new(LogId { term: Term(2), index: LogIndex(7) });
    root.add_pack(id(n + 1000), pack.len() as u64);
    root.add_segment(id(n), segment.len() as u64, Sectors(places.len() as u64 * SECTORS));
    root.replace_page(V, 0, Some(place), &Live::new(), &page.live()).unwrap();
    (segment, pack, root)
}

/// No store has these objects, so whatever is read was cached. WARM-W3: of moved extents, those cached under their old
/// name.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_brought_in_is_read_without_the_store() {
    let dir = tempfile::tempdir().expect("temporary directory");
    let cache = Cache::open(MEMORY_BYTES_MIN, Some((dir.path().to_owned(), 64 << 20))).await.expect("a cache");
    let key = SetKey::of(GroupId(3), 1, DataKey::from_bytes([6; 32]));
    let (store, health) = (Arc::new(Memory::new()), Arc::new(Health::new("set".to_string())));
    let stop = CancellationToken::new();
    let open = |cache: &Cache| {
        let stop = stop.clone();
        Mapping::new(key.clone(), store.clone(), health.clone(), cache.clone(), MEMORY_BYTES_MIN, Sectors(0), stop)
            .expect("a mapping")
    };
    let mapping = open(&cache);
    let bring = async |object: ObjectId, body: &Bytes, parts: Vec<Stretch>| {
        mapping.keep_sealed(object, body, parts).await;
        // Waits until earlier calls are done.
        mapping.keep_sealed(id(1_000_000), body, vec![Stretch::from((0, 0..1))]).await;
    };
    let places = [0, 8, 16];
    let (segment, pack, old) = checkpoint(&key, 1, &places);
    let nothing = Step { old: Arc::new(Root::default()), last: None, begun: None, upto: old.upto };
    let parts = extents(&mapping, id(1), &segment, &nothing).await.expect("a segment");
    assert_eq!(parts.len(), 3);
    // All but the last extent stay in the cache.
    bring(id(1), &segment, parts[..2].to_vec()).await;
    bring(id(1001), &pack, pages(&mapping, id(1001), &pack).expect("a pack")).await;

    // The next checkpoint moves all three; nothing was written meanwhile.
    let (segment, pack, new) = checkpoint(&key, 2, &places);
    let last = Some(RootRef { object: id(2001), bytes: 100 });
    let begun = Begun { at: new.upto, over: last, memtable: Arc::new(Memtable::new()) };
    let step = Step { old: Arc::new(old), last, begun: Some(begun), upto: new.upto };
    let parts = extents(&mapping, id(2), &segment, &step).await.expect("a segment");
    assert_eq!(parts.iter().map(|part| part.number).collect::<Vec<_>>(), [0, 1], "the third was not cached");
    bring(id(2), &segment, parts).await;
    bring(id(1002), &pack, pages(&mapping, id(1002), &pack).expect("a pack")).await;
    assert!(mapping.has_begin_of(id(2)) && !mapping.has_begin_of(id(3)));

    // The new leader has an empty memory, except for the root.
    let taker = open(&cache);
    let at = RootRef { object: id(2002), bytes: 100 };
    taker.follow_root(last, at, Arc::new(new));
    let mut found = Vec::new();
    taker.read(at, V, Lba(0), Sectors(16), Demand::Point, &mut found).await.expect("a read");
    let found: Vec<u8> = found
        .iter()
        .flat_map(|part| match part {
            Part::Data(bytes) => bytes.to_vec(),
            Part::Zeroes(sectors) => vec![0; (sectors.0 * 512) as usize],
        })
        .collect();
    assert!(found == [content(0), content(8)].concat(), "the bytes differ from what was written");
    let mut nothing = Vec::new();
    let third = taker.read(at, V, Lba(16), Sectors(8), Demand::Point, &mut nothing);
    let third = tokio::time::timeout(Duration::from_secs(30), third).await;
    assert!(matches!(third, Ok(Err(MapError::Store(_)))), "{third:?}: it is in no cache and in no store");
    // R9, CACHE-C2: nothing is accepted of bytes that differ from what was sealed.
    let mut spoilt = segment.to_vec();
    let end = spoilt.len() - 1;
    spoilt[end] ^= 1;
    assert!(matches!(extents(&mapping, id(2), &Bytes::from(spoilt), &step).await, Err(MapError::Bad { .. })));
    assert!(pages(&mapping, id(1002), &segment).is_err(), "a segment is not a pack");
}
