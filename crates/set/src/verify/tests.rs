use super::*;
use crate::keyring::ClusterKeys;
use crate::mapping::SetKey;
use bytes::Bytes;
use holdfast_control::set::{Links, Restored, RootRef, Snapshot, Volume};
use holdfast_seal::DataKey;
use holdfast_store::{Faults, Faulty, Memory, ObjectStore};
use holdfast_types::{
    Epoch, GroupId, Lba, LogId, MemberId, Name, ObjectId, RequestId, SECTOR_BYTES, Sectors, Term, VolumeId,
};
use holdfast_volume::head::{Argon2id, Covered, Head, Keyring, SetLife, seal_head};
use holdfast_volume::map::{LeafShape, Live, MapExtent, PackBuilder, Page, Root, open_root, seal_root};
use holdfast_volume::segment::{Codec, SegmentBuilder};
use std::sync::Arc;

const SET: holdfast_types::SetId = GroupId(3);
const V: VolumeId = VolumeId(1);
const EXTENTS: u64 = 24;
const SECTORS: u64 = 16;
const IN_LEAVES: LeafShape = LeafShape { pages: 2, objects: 1, packs: 9, whole_bytes: 0 };

fn id(random: u128) -> ObjectId {
    ObjectId { term: Term(2), member: MemberId(1), boot: 1, random }
}

/// A set of one volume: two segments, two pages in one pack, a root, a head.
pub(crate) struct World {
    pub(crate) store: Arc<Faulty<Memory>>,
    pub(crate) key: ClusterKeys,
}

impl World {
    async fn new() -> Self {
        Self::made(None).await
    }

    /// With a root in leaves, if a shape is given.
    pub(crate) async fn made(shape: Option<LeafShape>) -> Self {
        let store = Arc::new(Faulty::new(Memory::new(), 1, Faults::default()));
        let set_key = SetKey::of(SET, 1, DataKey::from_bytes([6; 32]));
        let key = ClusterKeys::of_bytes(5, None);
        let mut pages = [Page::new(V, 0), Page::new(V, 2)];
        let mut root = Root::new(LogId::new(2, 10));
        for segment in 0..2u64 {
            let mut builder = SegmentBuilder::new(set_key.sealer(id(10 + u128::from(segment))), Codec::Lz4);
            let page = &mut pages[segment as usize];
            for n in 0..EXTENTS {
                let lba = Lba(page.lba().0 + n * SECTORS);
                let raw: Vec<u8> = (0..SECTORS * SECTOR_BYTES).map(|at| (at * 7 + at / 511 + n) as u8).collect();
                let place = builder.push(V, lba, &raw);
                page.overlay(&MapExtent::whole(builder.object(), lba, place));
            }
            let raw = builder.raw_bytes();
            let object = builder.object();
            let body = builder.finish();
            root.add_segment(object, body.len() as u64, Sectors(raw / SECTOR_BYTES));
            store.put_new(&keys::segment(SET, object), body).await.unwrap();
        }
        let mut pack = PackBuilder::new(set_key.sealer(id(20)));
        for page in &pages {
            let place = pack.push(page);
            root.replace_page(V, page.number(), Some(place), &Live::new(), &page.live()).unwrap();
        }
        let body = pack.finish();
        root.add_pack(id(20), body.len() as u64);
        store.put_new(&keys::map_pack(SET, id(20)), body).await.unwrap();
        if let Some(shape) = shape {
            for pack in root.write_leaves(&shape, || set_key.sealer(id(31))) {
                store.put_new(&keys::map_pack(SET, pack.object), pack.body).await.unwrap();
            }
        }
        let body = seal_root(&root, set_key.sealer(id(30)));
        let root = RootRef { object: id(30), bytes: body.len() as u64 };
        store.put_new(&keys::root(SET, id(30)), body).await.unwrap();
        let volume = Volume { name: Name::new("vol1").unwrap(), size: Sectors(1 << 20) };
        let head = Head {
            life: SetLife { cluster: 7, generation: 1 },
            raised_for: 0,
            name: Name::new("demo").unwrap(),
            epoch: Epoch(4),
            covered: Some(Covered { upto: LogId::new(2, 10), generation: 1, at_unix_ms: 5 }),
            content: Restored { volumes: vec![(V, volume)], next_volume: 2, root: Some(root) },
            links: Links::default(),
        };
        let wrapped_key = key.current().wrap(&DataKey::from_bytes([6; 32]), SET, 1, [7; 24]);
        let keyring = Keyring { wrapped_key, passphrase: Argon2id::ours(crate::keyring::PASSPHRASE_SALT) };
        store.put_new(&keys::head(SET), seal_head(&head, &keyring, set_key.sealer(id(40)))).await.unwrap();
        Self { store, key }
    }

    /// With snapshots in its head: `monday` has the current first page and a different second page of one extent;
    /// `twin` is of the same checkpoint, `now` of the last one; `sunday`, older than these, has the same data as
    /// `monday` but its own root.
    async fn with_snapshots() -> Self {
        let world = Self::new().await;
        let set_key = SetKey::of(SET, 1, DataKey::from_bytes([6; 32]));
        let sealed = world.store.get(&keys::root(SET, id(30))).await.unwrap();
        let mut root = open_root(&set_key.opener(id(30)), &sealed).unwrap();
        let before = Live::from([(id(11), Sectors(EXTENTS * SECTORS))]);
        world.add_page(&mut root, 2, &before).await;
        root.drop_dead_segments();
        for of in [id(32), id(33)] {
            world.store.put_new(&keys::root(SET, of), seal_root(&root, set_key.sealer(of))).await.unwrap();
        }
        let found = crate::recovery::survey("memory", world.store.clone(), &world.key).await.unwrap().sets.remove(0);
        let mut head = found.head.clone();
        let of = [("monday", id(32), 3_u64), ("twin", id(32), 3), ("now", id(30), 4), ("sunday", id(33), 2)];
        for (name, object, at) in of {
            let bytes = world.store.get(&keys::root(SET, object)).await.unwrap().len() as u64;
            let snapshot = Snapshot {
                upto: LogId::new(2, at),
                root: RootRef { object, bytes },
                volumes: head.content.volumes.iter().cloned().collect(),
                request: RequestId(at.into()),
                at_unix_ms: at,
                scheduled: false,
            };
            head.links.snapshots.snapshots.insert(Name::new(name).unwrap(), snapshot);
        }
        let body = seal_head(&head, &found.keyring, set_key.sealer(id(41)));
        world.replace(&keys::head(SET), |bytes| *bytes = body.to_vec()).await;
        world
    }

    /// A set of three pages, in leaves of two pages each, in two packs. The second pack has the leaf of the third page,
    /// of one extent, and four leaves that list objects.
    pub(crate) async fn in_two_packs() -> Self {
        let world = Self::new().await;
        let set_key = SetKey::of(SET, 1, DataKey::from_bytes([6; 32]));
        let sealed = world.store.get(&keys::root(SET, id(30))).await.unwrap();
        let mut root = open_root(&set_key.opener(id(30)), &sealed).unwrap();
        for (pack, number) in [(id(31), None), (id(34), Some(4))] {
            if let Some(number) = number {
                world.add_page(&mut root, number, &Live::new()).await;
            }
            for leaves in root.write_leaves(&IN_LEAVES, || set_key.sealer(pack)) {
                world.store.put_new(&keys::map_pack(SET, leaves.object), leaves.body).await.unwrap();
            }
        }
        let packs: Vec<ObjectId> = root.leaf_packs().keys().copied().collect();
        assert_eq!(packs, [id(31), id(34)]);
        let body = seal_root(&root, set_key.sealer(id(30)));
        world.replace(&keys::root(SET, id(30)), |bytes| *bytes = body.to_vec()).await;
        world
    }

    /// For [`World::in_two_packs`]: flips a byte in the leaf of the first page, loses the second pack, and flips a byte
    /// of an extent of the second page.
    pub(crate) async fn damage_two_leaves_and_an_extent(&self) {
        self.replace(&Self::leaves(), |bytes| bytes[110] ^= 1).await;
        self.store.delete(&keys::map_pack(SET, id(34))).await.unwrap();
        self.replace(&keys::segment(SET, id(11)), |bytes| bytes[110] ^= 1).await;
    }

    /// Adds a page of one extent to the root, in the segment `id(12)` and the pack `id(21)`. `before`: the live data of
    /// the page that it replaces.
    async fn add_page(&self, root: &mut Root, number: u32, before: &Live) {
        let set_key = SetKey::of(SET, 1, DataKey::from_bytes([6; 32]));
        let mut page = Page::new(V, number);
        let mut segment = SegmentBuilder::new(set_key.sealer(id(12)), Codec::Lz4);
        let lba = page.lba();
        let place = segment.push(V, lba, &[9; 4096]);
        page.overlay(&MapExtent::whole(id(12), lba, place));
        let raw = Sectors(segment.raw_bytes() / SECTOR_BYTES);
        let body = segment.finish();
        root.add_segment(id(12), body.len() as u64, raw);
        self.store.put_new(&keys::segment(SET, id(12)), body).await.unwrap();
        let mut pack = PackBuilder::new(set_key.sealer(id(21)));
        let place = pack.push(&page);
        root.replace_page(V, number, Some(place), before, &page.live()).unwrap();
        let body = pack.finish();
        root.add_pack(id(21), body.len() as u64);
        self.store.put_new(&keys::map_pack(SET, id(21)), body).await.unwrap();
    }

    async fn verify(&self, sample: Sample) -> Report {
        self.listing(sample, LISTED).await
    }

    async fn listing(&self, sample: Sample, listed_max: u32) -> Report {
        let survey = crate::recovery::survey("memory", self.store.clone(), &self.key).await.unwrap();
        verify(&survey.sets[0], &survey.sets, sample, None, listed_max, &|_, _| ()).await.unwrap()
    }

    /// All objects in the store, by key.
    pub(crate) async fn objects(&self) -> Vec<(String, Bytes)> {
        let (mut objects, mut after) = (Vec::new(), None::<String>);
        loop {
            let page = self.store.list("", after.as_deref()).await.unwrap();
            for listed in page.objects {
                let body = self.store.get(&listed.key).await.unwrap();
                objects.push((listed.key, body));
            }
            after = page.more;
            if after.is_none() {
                return objects;
            }
        }
    }

    /// The place of its leaves, if it has any.
    pub(crate) fn leaves() -> String {
        keys::map_pack(SET, id(31))
    }

    pub(crate) async fn replace(&self, key: &str, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = self.store.get(key).await.unwrap().to_vec();
        change(&mut bytes);
        self.store.delete(key).await.unwrap();
        self.store.put_new(key, bytes.into()).await.unwrap();
    }
}

#[tokio::test]
async fn a_whole_set_is_clean() {
    let report = World::new().await.verify(Sample::ALL).await;
    assert_eq!((report.pages, report.pages_checked, report.extents), (2, 2, 2 * EXTENTS));
    assert_eq!((report.damaged, report.damaged_total, report.in_leaves), (Vec::new(), 0, false));
}

/// R9: for a flip of any byte in a segment's extents, exactly the sectors of that extent are reported.
#[tokio::test]
async fn a_flipped_byte_is_named_with_its_sectors() {
    let world = World::new().await;
    let key = keys::segment(SET, id(11));
    let clean = world.store.get(&key).await.unwrap();
    for at in (104..clean.len()).step_by(clean.len() / 40) {
        world.replace(&key, |bytes| bytes[at] ^= 0x10).await;
        let report = world.verify(Sample::ALL).await;
        world.replace(&key, |bytes| bytes[at] ^= 0x10).await;
        for damage in &report.damaged {
            let [from, to] = damage.object_bytes.unwrap();
            assert!((from..to).contains(&(at as u64)), "byte {at}: {damage:?}");
            assert_eq!((damage.part, damage.key.as_str(), damage.volume.as_str()), ("extent", key.as_str(), "vol1"));
            assert_eq!(damage.sectors, SECTORS);
            assert_eq!((damage.lba - 2 * holdfast_volume::map::PAGE_SECTORS) % SECTORS, 0);
            assert_eq!(damage.volume_bytes().start, damage.lba * 512);
        }
        // The table at the end is not used by reads.
        assert!(report.damaged.len() == 1 || at > clean.len() * 9 / 10, "byte {at} of {}: {report:?}", clean.len());
    }
}

#[tokio::test]
async fn a_lost_or_cut_object_is_named() {
    let world = World::new().await;
    world.replace(&keys::segment(SET, id(10)), |bytes| bytes.truncate(bytes.len() / 2)).await;
    let report = world.verify(Sample::ALL).await;
    let lost = report.damaged.len() as u64;
    assert!(lost > 1 && lost < EXTENTS, "only data after the cut: {lost}");
    world.store.delete(&keys::segment(SET, id(10))).await.unwrap();
    let report = world.verify(Sample::ALL).await;
    assert_eq!(report.damaged_total, EXTENTS);
    assert!(report.damaged[0].reason.contains("found no object"), "{:?}", report.damaged[0]);
}

/// An object that the store refuses to give (a lifecycle rule moved it to an archive) is named, and the rest is read.
#[tokio::test]
async fn an_object_that_cannot_be_read_is_named_and_the_rest_is_read() {
    let world = World::made(Some(IN_LEAVES)).await;
    for (key, part) in [
        (keys::segment(SET, id(10)), "extent"),
        (keys::map_pack(SET, id(20)), "page"),
        (World::leaves(), "leaf"),
        (keys::root(SET, id(30)), "root"),
    ] {
        world.store.set(Faults { archived: Some(key.clone()), ..Faults::default() });
        let report = world.verify(Sample::ALL).await;
        assert!(!report.damaged.is_empty(), "{key}");
        for damage in &report.damaged {
            assert_eq!((damage.part, &damage.key), (part, &key));
            assert!(damage.reason.contains("InvalidObjectState"), "{damage:?}");
        }
        if part == "extent" {
            assert_eq!((report.damaged_total, report.extents), (EXTENTS, EXTENTS), "the other segment was read");
        }
    }
    // Expired keys are not damage: nothing is known then.
    world.store.set(Faults::default());
    let found = crate::recovery::survey("memory", world.store.clone(), &world.key).await.unwrap().sets;
    world.store.set(Faults { deny: 1000, ..Faults::default() });
    let error = verify(&found[0], &found, Sample::ALL, None, LISTED, &|_, _| ()).await.unwrap_err();
    assert!(error.to_string().contains("ExpiredToken"), "{error}");
}

/// Damage beyond the limit is counted, and a higher limit lists it.
#[tokio::test]
async fn as_much_damage_is_listed_as_was_asked_for_and_all_is_counted() {
    let world = World::new().await;
    world.store.delete(&keys::segment(SET, id(10))).await.unwrap();
    let short = world.listing(Sample::ALL, 2).await;
    assert_eq!((short.damaged.len(), short.damaged_total), (2, EXTENTS));
    let all = world.listing(Sample::ALL, EXTENTS as u32).await;
    assert_eq!((all.damaged.len() as u64, all.damaged_total), (EXTENTS, EXTENTS));
    assert_eq!(short.damaged, all.damaged[..2]);
}

#[tokio::test]
async fn a_damaged_page_and_root_are_named() {
    let world = World::new().await;
    world.replace(&keys::map_pack(SET, id(20)), |bytes| bytes[110] ^= 1).await;
    let report = world.verify(Sample::ALL).await;
    assert_eq!(report.damaged.len(), 1);
    let page = &report.damaged[0];
    assert_eq!((page.part, page.lba, page.sectors), ("page", 0, holdfast_volume::map::PAGE_SECTORS));
    world.replace(&keys::root(SET, id(30)), |bytes| bytes[110] ^= 1).await;
    let report = world.verify(Sample::ALL).await;
    assert_eq!((report.damaged.len(), report.damaged[0].part), (1, "root"));
}

/// R9: a root in leaves is read with all of them, and a change of any byte is found.
#[tokio::test]
async fn a_damaged_leaf_is_named_with_what_it_lists() {
    let world = World::made(Some(IN_LEAVES)).await;
    let report = world.verify(Sample::ALL).await;
    assert_eq!((report.pages, report.pages_checked, report.extents), (2, 2, 2 * EXTENTS));
    assert_eq!((report.damaged, report.damaged_total, report.objects, report.in_leaves), (Vec::new(), 0, 5, true));
    let key = World::leaves();
    let bytes = world.store.get(&key).await.unwrap().len();
    let mut found = std::collections::BTreeSet::new();
    for at in (104..bytes).step_by(7) {
        world.replace(&key, |bytes| bytes[at] ^= 0x10).await;
        let report = world.verify(Sample::ALL).await;
        world.replace(&key, |bytes| bytes[at] ^= 0x10).await;
        for damage in report.damaged {
            let [from, to] = damage.object_bytes.unwrap();
            assert!((from..to).contains(&(at as u64)), "byte {at}: {damage:?}");
            assert_eq!((damage.part, &damage.key), ("leaf", &key));
            found.insert((damage.volume, damage.lba, damage.sectors));
        }
    }
    // Page 0, page 2, and the leaves that list segments and packs.
    let width = 2 * holdfast_volume::map::PAGE_SECTORS;
    let of = |lba| ("vol1".to_string(), lba, width);
    assert_eq!(found, [of(0), of(width), (String::new(), 0, 0)].into());
    // The object ends in the middle of its leaves: the incomplete ones are reported.
    let cut = bytes / 2;
    world.replace(&key, |bytes| bytes.truncate(cut)).await;
    let report = world.verify(Sample::ALL).await;
    let ends: Vec<[u64; 2]> = report.damaged.iter().filter_map(|damage| damage.object_bytes).collect();
    assert!(report.damaged.iter().all(|damage| damage.part == "leaf") && ends.len() > 1, "{:?}", report.damaged);
    assert!(ends.iter().all(|[_, to]| *to > cut as u64), "{ends:?}, cut at {cut}");
    assert!((ends[0][0]..ends[0][1]).contains(&(cut as u64)), "{ends:?}, cut at {cut}");
    world.store.delete(&key).await.unwrap();
    let report = world.verify(Sample::ALL).await;
    assert_eq!((report.damaged_total, report.pages, report.objects), (5, 0, 5), "two of pages, three of objects");
    for damage in &report.damaged {
        assert!(damage.part == "leaf" && damage.reason.contains("found no object"), "{damage:?}");
    }
}

/// R9: if part of a root does not open, the rest is read: each bad leaf is reported with what it may list, and other
/// damage as usual.
#[tokio::test]
async fn what_is_damaged_beside_damaged_leaves_is_named_too() {
    let world = World::in_two_packs().await;
    let report = world.verify(Sample::ALL).await;
    let clean = (report.damaged_total, report.pages_checked, report.extents, report.objects, report.sums_skipped);
    assert_eq!(clean, (0, 3, 2 * EXTENTS + 1, 8, false), "{report:?}");
    assert!(serde_json::to_value(&report).unwrap().get("sums_skipped").is_none());
    world.damage_two_leaves_and_an_extent().await;
    let report = world.verify(Sample::ALL).await;
    let (page, pack) = (holdfast_volume::map::PAGE_SECTORS, keys::map_pack(SET, id(34)));
    let found: Vec<_> = report.damaged.iter().map(|d| (d.part, d.volume.as_str(), d.lba, d.sectors)).collect();
    let lists_objects = ("leaf", "", 0, 0);
    let expected = [
        ("leaf", "vol1", 0, 2 * page),
        ("leaf", "vol1", 4 * page, 2 * page),
        lists_objects,
        lists_objects,
        lists_objects,
        lists_objects,
        ("extent", "vol1", 2 * page, SECTORS),
    ];
    assert_eq!(found, expected);
    assert_eq!((report.damaged_total, report.damaged[0].key.as_str()), (7, World::leaves().as_str()));
    assert!(report.damaged[1..6].iter().all(|d| d.key == pack && d.reason.contains("found no object")));
    assert_eq!((report.pages, report.pages_checked, report.extents, report.objects), (1, 1, EXTENTS, 8));
    assert!(report.sums_skipped && report.in_leaves);
    assert_eq!(serde_json::to_value(&report).unwrap()["sums_skipped"], true);
}

/// Data shared by a snapshot and the set's current state is reported for the latter only; data that only the snapshot
/// has is read, whichever leaf is bad.
#[tokio::test]
async fn a_damaged_leaf_that_a_snapshot_shares_is_named_once() {
    let world = World::in_two_packs().await;
    let set_key = SetKey::of(SET, 1, DataKey::from_bytes([6; 32]));
    let mut found = crate::recovery::survey("memory", world.store.clone(), &world.key).await.unwrap().sets.remove(0);
    let at = found.head.content.root.unwrap();
    let root = Subject::of(&found, None).check_root(at).await.unwrap().unwrap();
    world.store.put_new(&keys::root(SET, id(32)), seal_root(&root, set_key.sealer(id(32)))).await.unwrap();
    let (upto, request) = (LogId::new(2, 3), RequestId(3));
    let (root, volumes) = (RootRef { object: id(32), ..at }, found.head.content.volumes.iter().cloned().collect());
    let snapshot = Snapshot { upto, root, volumes, request, at_unix_ms: 3, scheduled: false };
    found.head.links.snapshots.snapshots.insert(Name::new("monday").unwrap(), snapshot);
    world.damage_two_leaves_and_an_extent().await;
    let found = [found];
    let report = verify(&found[0], &found, Sample::ALL, None, LISTED, &|_, _| ()).await.unwrap();
    assert_eq!((report.snapshots, report.damaged_total, report.pages_checked), (1, 7, 1), "{:?}", report.damaged);
    assert!(report.damaged.iter().all(|damage| damage.snapshot.is_none()), "{:?}", report.damaged);
}

/// This does not make one request for each leaf: a large root has ten thousand.
#[tokio::test]
async fn leaves_of_one_pack_are_read_in_one_request() {
    let world = World::made(Some(IN_LEAVES)).await;
    let found = crate::recovery::survey("memory", world.store.clone(), &world.key).await.unwrap().sets.remove(0);
    let subject = Subject::of(&found, None);
    // Not a fault: each request is counted.
    world.store.set(Faults { slow: 1000, ..Faults::default() });
    let root = subject.check_root(found.head.content.root.unwrap()).await.unwrap();
    assert!(root.is_ok_and(|root| root.is_in_leaves() && root.page_count() == 2));
    assert_eq!(world.store.counts().slowed, 2, "the top, and its leaves");
}

/// After a damaged page was given up, the root counts data that no page names. This is no loss; the opposite would be.
#[tokio::test]
async fn a_root_that_counts_too_much_is_whole_and_one_that_counts_too_little_is_not() {
    let world = World::new().await;
    let (key, set_key) = (keys::root(SET, id(30)), SetKey::of(SET, 1, DataKey::from_bytes([6; 32])));
    let sealed = world.store.get(&key).await.unwrap();
    let counted = |change: &dyn Fn(&mut Root)| {
        let mut root = open_root(&set_key.opener(id(30)), &sealed).unwrap();
        change(&mut root);
        seal_root(&root, set_key.sealer(id(30)))
    };
    let place = open_root(&set_key.opener(id(30)), &sealed).unwrap().page(V, 0).unwrap();
    let some = |sectors| Live::from([(id(10), Sectors(sectors))]);
    let more = counted(&|root| root.replace_page(V, 0, None, &Live::new(), &Live::new()).unwrap());
    world.replace(&key, |bytes| *bytes = more.to_vec()).await;
    let report = world.verify(Sample::ALL).await;
    assert_eq!((report.damaged_total, report.overcounted_segments), (0, 1), "{report:?}");
    assert_eq!(report.overcounted_sectors, EXTENTS * SECTORS);
    let less = counted(&|root| root.replace_page(V, 0, Some(place), &some(16), &Live::new()).unwrap());
    world.replace(&key, |bytes| *bytes = less.to_vec()).await;
    let report = world.verify(Sample::ALL).await;
    assert_eq!(
        (report.damaged_total, report.damaged[0].part, report.overcounted_segments),
        (1, "map", 0),
        "{report:?}"
    );
}

/// R9: data that only snapshots have is read, once even if several have it; damage is reported with the newest of them.
#[tokio::test]
async fn what_only_snapshots_show_is_read_and_named_with_the_snapshot() {
    let world = World::with_snapshots().await;
    let report = world.verify(Sample::ALL).await;
    assert_eq!((report.damaged, report.objects), (Vec::new(), 4));
    assert_eq!((report.snapshots, report.pages, report.pages_checked), (4, 3, 3), "the second page, in both versions");
    assert_eq!(report.extents, 2 * EXTENTS + 1);

    let second = 2 * holdfast_volume::map::PAGE_SECTORS;
    let whole = holdfast_volume::map::PAGE_SECTORS;
    for (key, part, lba, sectors, pages) in [
        (keys::segment(SET, id(12)), "extent", second, 8, 3),
        (keys::map_pack(SET, id(21)), "page", second, whole, 3),
        // The data of sunday is still read.
        (keys::root(SET, id(32)), "root", 0, 0, 3),
    ] {
        world.replace(&key, |bytes| bytes[110] ^= 1).await;
        let report = world.verify(Sample::ALL).await;
        world.replace(&key, |bytes| bytes[110] ^= 1).await;
        let [damage] = &report.damaged[..] else { panic!("{key}: {:?}", report.damaged) };
        assert_eq!((&damage.key, damage.part, damage.lba, damage.sectors), (&key, part, lba, sectors));
        assert_eq!((damage.snapshot.as_deref(), report.pages), (Some("twin"), pages), "{key}");
    }
    // For data of the set's current state no snapshot is named.
    world.replace(&keys::segment(SET, id(10)), |bytes| bytes[110] ^= 1).await;
    let report = world.verify(Sample::ALL).await;
    assert_eq!((report.damaged_total, report.damaged[0].snapshot.as_deref()), (1, None));
}

/// The set's current root does not list its snapshots.
#[tokio::test]
async fn snapshots_are_read_where_the_root_of_the_set_is_damaged() {
    let world = World::with_snapshots().await;
    world.replace(&keys::root(SET, id(30)), |bytes| bytes[110] ^= 1).await;
    let report = world.verify(Sample::ALL).await;
    let damage = &report.damaged[0];
    assert_eq!((report.damaged_total, damage.part, damage.snapshot.as_deref()), (1, "root", None));
    assert_eq!((report.pages, report.extents), (2, EXTENTS + 1), "both pages of monday");
}

#[test]
fn a_sample_takes_its_share() {
    let sample = Sample { millionths: 100_000, seed: 9 };
    let taken = (0..100_000).filter(|n| sample.takes(V, *n)).count();
    assert!((9_000..11_000).contains(&taken), "{taken}");
    assert!((0..1000).all(|n| Sample::ALL.takes(V, n)));
    assert!((0..1000).all(|n| !Sample { millionths: 0, seed: 1 }.takes(V, n)));
}
