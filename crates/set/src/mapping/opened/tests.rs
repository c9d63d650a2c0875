use super::*;
use crate::origins::At;
use holdfast_cache::{Cache, MEMORY_BYTES_MIN};
use holdfast_seal::DataKey;
use holdfast_store::{Faults, Faulty, Health, Memory, ObjectStore};
use holdfast_types::{GroupId, Lba, LogId, MemberId, Sectors, Term};
use holdfast_volume::map::{LeafOf, LeafShape, Live, MapExtent, PAGE_SECTORS, PackBuilder, Page, seal_root};
use holdfast_volume::segment::{Codec, ExtentPlace};
use tokio_util::sync::CancellationToken;

const V: VolumeId = VolumeId(1);

fn id(random: u128) -> ObjectId {
    ObjectId { term: Term(1), member: MemberId(1), boot: 1, random }
}

fn leaf(random: u128, offset: u32, sealed_len: u32) -> LeafRef {
    let at = PageRef { object: id(random), number: offset, offset, sealed_len, raw_len: sealed_len - 16 };
    LeafRef { at, of: LeafOf::Segments, key_id: 1 }
}

#[test]
fn neighbours_of_one_pack_are_one_request() {
    let gap = GAP_BYTES_MAX as u32;
    let far = 204 + 200 + gap;
    let large = RUN_BYTES_MAX as u32;
    let leaves = vec![
        leaf(2, 104, 100),
        leaf(1, 204 + gap, 100),
        leaf(1, 104, 100),
        leaf(1, far + gap, large - 100),
        leaf(1, far + gap + large - 100, 101),
    ];
    let offsets = |run: &Vec<LeafRef>| run.iter().map(|leaf| leaf.at.offset).collect::<Vec<_>>();
    let found: Vec<Vec<u32>> = together(leaves).iter().map(offsets).collect();
    assert_eq!(found, [vec![104, 204 + gap], vec![far + gap], vec![far + gap + large - 100], vec![104]]);
    assert!(together(Vec::new()).is_empty());
}

/// A set of one volume, in a store.
struct World {
    key: SetKey,
    store: Arc<Faulty<Memory>>,
    mapping: Mapping,
    drawn: u128,
}

impl World {
    async fn new() -> Self {
        let key = SetKey::of(GroupId(3), 1, DataKey::from_bytes([6; 32]));
        let store = Arc::new(Faulty::new(Memory::new(), 1, Faults::default()));
        let health = Arc::new(Health::new("set".to_string()));
        let cache = Cache::open(MEMORY_BYTES_MIN, None).await.unwrap();
        let stop = CancellationToken::new();
        let mapping =
            Mapping::new(key.clone(), store.clone(), health, cache, MEMORY_BYTES_MIN, Sectors(0), stop).unwrap();
        Self { key, store, mapping, drawn: 1 << 64 }
    }

    /// A checkpoint of `root` that writes these pages, each with its own extent, in leaves of one page each.
    async fn checkpoint(&mut self, root: &mut Root, pages: &[u32]) -> RootRef {
        let mut sealer = || {
            self.drawn += 1;
            self.key.sealer(id(self.drawn))
        };
        let mut pack = PackBuilder::new(sealer());
        for number in pages {
            let mut page = Page::new(V, *number);
            let place = ExtentPlace { number: 0, offset: 104, sealed_len: 4112, raw_len: 4096, codec: Codec::None };
            page.overlay(&MapExtent::whole(id(u128::from(*number)), page.lba(), place));
            root.add_segment(id(u128::from(*number)), 5000, Sectors(8));
            root.replace_page(V, *number, Some(pack.push(&page)), &Live::new(), &page.live()).unwrap();
        }
        let object = pack.object();
        let body = pack.finish();
        root.add_pack(object, body.len() as u64);
        self.store.put_new(&keys::map_pack(GroupId(3), object), body).await.unwrap();
        for pack in root.write_leaves(&LeafShape { pages: 1, objects: 3, packs: 9, whole_bytes: 0 }, &mut sealer) {
            self.store.put_new(&keys::map_pack(GroupId(3), pack.object), pack.body).await.unwrap();
        }
        let sealer = sealer();
        let object = sealer.object();
        let body = seal_root(root, sealer);
        let at = RootRef { object, bytes: body.len() as u64 };
        self.store.put_new(&keys::root(GroupId(3), object), body).await.unwrap();
        at
    }

    /// The segment of a page's first sectors; 0 if there is none.
    async fn shows(&self, at: RootRef, number: u32) -> u128 {
        let lba = Lba(u64::from(number) * PAGE_SECTORS);
        match &self.mapping.places(at, V, lba, Sectors(8)).await.unwrap()[..] {
            [At::Zeroes(_)] => 0,
            [At::Extent(None, extent)] => extent.object.random,
            _ => panic!("neither zeroes nor an extent of the set's own"),
        }
    }

    /// Number of leaves and pages that were fetched one by one.
    fn fetched(&self) -> u64 {
        self.mapping.pages.stats().fetches
    }
}

/// A reader fetches the top and the leaf of its place, once; a caller that needs the whole root fetches the rest.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_reader_fetches_the_leaves_that_it_needs() {
    let mut world = World::new().await;
    let mut root = Root::new(LogId::new(1, 5));
    root.seal_under(1);
    let at = world.checkpoint(&mut root, &[1, 2, 3, 4, 5, 6, 7, 8, 300]).await;
    assert!(root.is_in_leaves());
    assert_eq!((world.shows(at, 3).await, world.fetched()), (3, 2), "a leaf and a page");
    assert_eq!((world.shows(at, 3).await, world.fetched()), (3, 2), "both are in memory");
    assert_eq!((world.shows(at, 0).await, world.fetched()), (0, 2), "no leaf has anything of it");
    assert_eq!((world.shows(at, 300).await, world.fetched()), (300, 4));
    // All of them request it before the first answer.
    world.store.set(Faults { gives_way: true, ..Faults::default() });
    let all = tokio::join!(world.shows(at, 5), world.shows(at, 5), world.shows(at, 5));
    assert_eq!((all, world.fetched()), ((5, 5, 5), 6), "one request for all waiting callers");
    assert!(world.mapping.pages.stats().shared >= 2, "nothing is tested: nobody had to wait");
    assert!(world.mapping.roots.get(at).is_none() && world.mapping.tops.get(at).is_some());
    // A leader needs no leaf for what it reports.
    let known = world.mapping.known_once(at).await.unwrap();
    assert_eq!(known.segments().stored_bytes, 9 * 5000);
    assert_eq!((known.key_id(), known.keys_needed(), world.fetched()), (1, [1].into(), 6));

    let whole = world.mapping.root(at).await.unwrap();
    assert_eq!(*whole, root);
    assert_eq!((world.shows(at, 7).await, world.fetched()), (7, 7), "the page alone: all leaves are there");
    assert!(world.mapping.tops.get(at).is_none(), "one form is enough");
    assert_eq!(*world.mapping.root_once(at).await.unwrap(), root);
    assert_eq!(*world.mapping.root_if_easy(at).await.unwrap(), root);

    // The next root shares most of its leaves with this one: they are not read again, so it does not matter that they
    // are deleted.
    let before = root.leaf_packs().clone();
    root.upto = LogId::new(1, 6);
    let next = world.checkpoint(&mut root, &[9]).await;
    let shared: Vec<ObjectId> = root.leaf_packs().keys().copied().filter(|pack| before.contains_key(pack)).collect();
    assert!(!shared.is_empty(), "nothing is tested");
    for pack in shared {
        world.store.delete(&keys::map_pack(GroupId(3), pack)).await.unwrap();
    }
    assert_eq!(*world.mapping.root(next).await.unwrap(), root);
    assert_eq!(world.shows(next, 9).await, 9);
}

/// Without memory for leaves, reads give the same results, and each leaf was read once. A caller that needs the whole
/// root gets it, and it does not stay in memory.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_root_whose_leaves_are_away_shows_the_same() {
    let mut world = World::new().await;
    world.mapping.leaf_bytes = 0;
    let mut root = Root::new(LogId::new(1, 5));
    root.seal_under(1);
    let at = world.checkpoint(&mut root, &[1, 2, 300]).await;
    let base = world.mapping.base(at).await.unwrap();
    assert_eq!((base.away().count(), base.page_count(), base.leaf_bytes()), (3, 3, 0));
    assert!(world.mapping.has_base(at) && !world.mapping.has_root(at));
    let fetched = world.fetched();
    assert_eq!(fetched, 3, "each leaf of pages");
    assert_eq!((world.shows(at, 2).await, world.shows(at, 3).await, world.shows(at, 300).await), (2, 0, 300));
    assert_eq!(world.fetched(), fetched + 2, "the leaves are in the cache");
    world.mapping.base(at).await.unwrap();
    assert_eq!(world.fetched(), fetched + 2, "they are read once");
    assert_eq!(*world.mapping.root(at).await.unwrap(), root);
    assert!(!world.mapping.has_root(at), "all of it would stay for as long as it is the current one");
    // Memory for one leaf.
    let mut other = World::new().await;
    other.mapping.leaf_bytes = base.page_count().saturating_mul(72);
    let mut root = Root::new(LogId::new(1, 5));
    root.seal_under(1);
    let at = other.checkpoint(&mut root, &[1, 2, 300]).await;
    let base = other.mapping.base(at).await.unwrap();
    assert!(base.whole().is_none() && base.leaf_bytes() <= other.mapping.leaf_bytes, "{} bytes", base.leaf_bytes());
    assert!(base.away().count() < 3, "nothing is kept, although there is room");
}

/// Asking for the objects of a root, or comparing two roots part by part, does not read all leaves each time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaves_that_are_away_are_not_read_for_names_nor_for_each_part_of_a_comparison() {
    let mut world = World::new().await;
    world.mapping.leaf_bytes = 0;
    let mut root = Root::new(LogId::new(1, 5));
    root.seal_under(1);
    let at = world.checkpoint(&mut root, &[1, 2, 300]).await;
    world.mapping.note_current(at);
    assert!(world.mapping.objects_here(at).is_none());
    assert!(world.mapping.names_of(at).await.unwrap().names().eq(root.names()));
    world.mapping.base(at).await.unwrap();
    world.mapping.note_compared([at, at]);
    assert_eq!(*world.mapping.root(at).await.unwrap(), root);
    // From here on, requests to the store for a leaf fail.
    for pack in root.leaf_packs().keys() {
        world.store.delete(&keys::map_pack(GroupId(3), *pack)).await.unwrap();
    }
    world.mapping.pages.forget_opened();
    assert_eq!(*world.mapping.root(at).await.unwrap(), root, "the next part of the comparison");
    assert!(world.mapping.base(at).await.unwrap().whole().is_none(), "a checkpoint uses what there is room for");
    world.mapping.roots.forget(at);
    assert!(world.mapping.names_of(at).await.unwrap().names().eq(root.names()));
}

/// R9: a leaf that is away never counts as empty: if it cannot be read, every caller that needs it gets an error.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leaf_that_is_away_and_damaged_is_no_zeroes() {
    let mut world = World::new().await;
    let mut root = Root::new(LogId::new(1, 5));
    root.seal_under(1);
    let at = world.checkpoint(&mut root, &[1, 2]).await;
    let mut partial = holdfast_volume::map::PartialRoot::from(root.clone());
    assert_eq!(partial.let_go(0).len(), 2);
    world.mapping.adopt_base(at, &Arc::new(partial));
    assert_eq!(world.shows(at, 2).await, 2);
    let pack = *root.leaf_packs().keys().next().unwrap();
    let key = keys::map_pack(GroupId(3), pack);
    let mut body = world.store.get(&key).await.unwrap().to_vec();
    body[110] ^= 1;
    world.store.delete(&key).await.unwrap();
    world.store.put_new(&key, Bytes::from(body)).await.unwrap();
    let read = world.mapping.places(at, V, Lba(PAGE_SECTORS), Sectors(8)).await;
    assert!(matches!(&read, Err(MapError::Bad { what: "leaf", object, .. }) if *object == pack));
    assert!(world.mapping.root(at).await.is_err(), "not all of it can be read");
    assert_eq!(world.shows(at, 3).await, 0, "no leaf has anything of it");
}

/// R9: bytes that differ from what was sealed are not a leaf, and the error names their place.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_damaged_leaf_is_told() {
    let mut world = World::new().await;
    let mut root = Root::new(LogId::new(1, 5));
    root.seal_under(1);
    let at = world.checkpoint(&mut root, &[1, 2]).await;
    let pack = *root.leaf_packs().keys().next().unwrap();
    let key = keys::map_pack(GroupId(3), pack);
    let mut body = world.store.get(&key).await.unwrap().to_vec();
    body[110] ^= 1;
    world.store.delete(&key).await.unwrap();
    world.store.put_new(&key, Bytes::from(body)).await.unwrap();
    let read = world.mapping.places(at, V, Lba(PAGE_SECTORS), Sectors(8)).await;
    assert!(matches!(&read, Err(MapError::Bad { what: "leaf", object, .. }) if *object == pack));
    assert_eq!(world.shows(at, 2).await, 2, "another leaf is whole");
    for read in [world.mapping.root(at).await, world.mapping.root_if_easy(at).await] {
        assert!(matches!(&read, Err(MapError::Bad { what: "leaf", object, .. }) if *object == pack), "{read:?}");
    }
}

/// A reader of a damaged leaf checks whether a root still names it. The part of the root in memory answers that,
/// however small it is.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_root_knows_which_leaves_are_its_own() {
    let mut world = World::new().await;
    let mut root = Root::new(LogId::new(1, 5));
    root.seal_under(1);
    let before = world.checkpoint(&mut root, &[1, 2, 300]).await;
    root.upto = LogId::new(1, 6);
    let at = world.checkpoint(&mut root, &[9]).await;
    let leaves = async |at: RootRef| world.mapping.opened_once(at).await.unwrap().leaves();
    let (own, earlier) = (leaves(at).await, leaves(before).await);
    let gone = earlier.iter().filter(|leaf| !own.contains(leaf)).count();
    assert!(gone > 0 && gone < earlier.len(), "{gone} of {} leaves were replaced", earlier.len());
    let check = |known: Known| {
        for leaf in own.iter().chain(&earlier) {
            assert_eq!(known.has_leaf(leaf), own.contains(leaf), "{leaf:?} in {known:?}");
        }
    };
    let top = world.mapping.known_once(at).await.unwrap();
    assert!(matches!(top, Known::Top(_)));
    check(top);
    check(Known::All(world.mapping.root_once(at).await.unwrap()));
    let mut part = holdfast_volume::map::PartialRoot::from(root.clone());
    assert_eq!(part.let_go(0).len(), 4);
    check(Known::Part(Arc::new(part)));
    root.make_whole();
    let whole = Known::All(Arc::new(root));
    assert!(own.iter().all(|leaf| !whole.has_leaf(leaf)), "it is in no root");
}
