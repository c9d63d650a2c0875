use super::snapshots::CheckedRoots;
use super::*;
use crate::verify::tests::World;
use bytes::Bytes;
use holdfast_control::set::Snapshot;
use holdfast_store::{Faults, Faulty, Memory, Quorum, RetryPolicy, Retrying};
use holdfast_types::{LogId, Name, RequestId};
use holdfast_volume::map::LeafShape;

const IN_LEAVES: Option<LeafShape> = Some(LeafShape { pages: 2, objects: 1, packs: 9, whole_bytes: 0 });

/// Longer than any loop over a store's pages takes. With a store that yields, a loop without an end runs into this
/// limit.
const PATIENCE: std::time::Duration = std::time::Duration::from_secs(20);

async fn found(world: &World) -> Found {
    survey("memory", world.store.clone(), &world.key).await.unwrap().sets.remove(0)
}

/// The obstacles, with a full read of the leaves and with a check of their packs only.
async fn in_the_way(found: &Found) -> [Option<String>; 2] {
    let mut words = [None, None];
    for (leaves, words) in [Leaves::Read, Leaves::There].into_iter().zip(&mut words) {
        *words = match obstacle(found, leaves, &mut Vec::new()).await.unwrap() {
            Some(Obstacle::Root(why)) => Some(why),
            Some(other) => panic!("{other:?}"),
            None => None,
        };
    }
    words
}

/// A life is raised only if it can continue: its first checkpoint needs all of the root.
#[tokio::test]
async fn a_set_is_not_raised_over_leaves_that_are_gone_or_damaged() {
    let world = World::made(IN_LEAVES).await;
    let (set, pack) = (found(&world).await, World::leaves());
    assert_eq!(in_the_way(&set).await, [None, None]);

    world.replace(&pack, |bytes| bytes[110] ^= 1).await;
    let [read, there] = in_the_way(&set).await;
    assert!(read.as_ref().is_some_and(|why| why.contains(&pack)), "{read:?}");
    assert_eq!(there, None, "no byte of it was read");
    world.replace(&pack, |bytes| bytes[110] ^= 1).await;
    assert_eq!(in_the_way(&set).await, [None, None]);

    world.replace(&pack, |bytes| bytes.truncate(120)).await;
    for why in in_the_way(&set).await {
        assert!(why.as_ref().is_some_and(|why| why.contains(&pack) && why.contains("found 120 bytes")), "{why:?}");
    }
    world.store.delete(&pack).await.unwrap();
    for why in in_the_way(&set).await {
        assert!(why.as_ref().is_some_and(|why| why.contains(&pack) && why.contains("found no object")), "{why:?}");
    }
}

#[tokio::test]
async fn a_set_is_not_raised_over_a_root_that_is_damaged() {
    for shape in [None, IN_LEAVES] {
        let world = World::made(shape).await;
        let set = found(&world).await;
        assert_eq!(in_the_way(&set).await, [None, None]);
        let root = keys::root(set.set, set.head.content.root.unwrap().object);
        world.replace(&root, |bytes| bytes[110] ^= 1).await;
        for why in in_the_way(&set).await {
            assert!(why.as_ref().is_some_and(|why| why.contains(&root)), "{why:?}");
        }
    }
}

/// A store that does not answer proves nothing about its content: it is asked again.
#[tokio::test]
async fn a_store_that_is_away_is_no_obstacle() {
    let world = World::made(IN_LEAVES).await;
    let set = found(&world).await;
    world.store.set(Faults { down: true, ..Faults::default() });
    for leaves in [Leaves::Read, Leaves::There] {
        let error = obstacle(&set, leaves, &mut Vec::new()).await.unwrap_err();
        assert!(error.may_pass(), "{error}");
    }
}

/// A store that refuses an object proves nothing either: with other rights, or once it is restored from an archive, the
/// object is there.
#[tokio::test]
async fn an_object_that_is_refused_is_no_obstacle() {
    let world = World::made(IN_LEAVES).await;
    let set = found(&world).await;
    let root = keys::root(set.set, set.head.content.root.unwrap().object);
    world.store.set(Faults { archived: Some(root), ..Faults::default() });
    let error = obstacle(&set, Leaves::Read, &mut Vec::new()).await.unwrap_err();
    assert!(error.to_string().contains("InvalidObjectState"), "{error}");
}

/// The same set in three stores, each with all of its objects.
async fn in_three(world: &World) -> (Found, [Arc<Memory>; 3]) {
    let stores: [Arc<Memory>; 3] = std::array::from_fn(|_| Arc::new(Memory::new()));
    let all = Quorum::new(stores.iter().map(|store| (store.clone() as Arc<dyn ObjectStore>, None)).collect(), 2);
    let set = found(world).await.set;
    for (key, body) in world.objects().await {
        if key == keys::head(set) {
            all.swap(&key, None, body).await.unwrap();
            continue;
        }
        for store in &stores {
            store.put_new(&key, body.clone()).await.unwrap();
        }
    }
    let read = read("three", Arc::new(all), &world.key, set).await.unwrap();
    (read.unwrap(), stores)
}

/// A change to an object's bytes.
type Change = fn(&mut Vec<u8>);

/// Damages the copies of an object in all stores but one.
async fn spoil(stores: &[Arc<Memory>; 3], key: &str, but: Option<usize>, change: Change) {
    for (_, store) in stores.iter().enumerate().filter(|(at, _)| Some(*at) != but) {
        let mut bytes = store.get(key).await.unwrap().to_vec();
        change(&mut bytes);
        store.delete(key).await.unwrap();
        store.put_new(key, bytes.into()).await.unwrap();
    }
}

/// R9: a damaged copy does not count, whichever store is asked first. Those of the root and its leaves are found one by
/// one, and are more than the retries of a single store.
#[tokio::test]
async fn a_set_is_raised_where_one_of_its_stores_has_each_object_whole() {
    let (world, pack) = (World::made(IN_LEAVES).await, World::leaves());
    let flip: Change = |bytes| bytes[110] ^= 1;
    let cut: Change = |bytes| bytes.truncate(120);
    // Without reading the leaves, only a pack that is too short is found.
    for (leaves, change) in [(Leaves::Read, flip), (Leaves::There, cut)] {
        for whole in 0..3 {
            let (set, stores) = in_three(&world).await;
            let root = keys::root(set.set, set.head.content.root.unwrap().object);
            spoil(&stores, &root, Some(whole), flip).await;
            spoil(&stores, &pack, Some(whole), change).await;
            let found = obstacle(&set, leaves, &mut Vec::new()).await.unwrap();
            assert_eq!(found, None, "{leaves:?}: store {whole} has all of it");
        }
        let (set, stores) = in_three(&world).await;
        spoil(&stores, &pack, None, change).await;
        match obstacle(&set, leaves, &mut Vec::new()).await.unwrap() {
            Some(Obstacle::Root(why)) => assert!(why.contains(&pack), "{leaves:?}: {why}"),
            other => panic!("{leaves:?}: no store has the leaves whole, and found {other:?}"),
        }
    }
}

/// Bytes of a single store may be damaged in transit.
#[tokio::test]
async fn one_reading_that_was_spoilt_is_no_obstacle() {
    for shape in [None, IN_LEAVES] {
        let world = World::made(shape).await;
        let set = found(&world).await;
        world.store.set(Faults { flip_bit: 1000, gives_way: true, ..Faults::default() });
        let is_over = async {
            while world.store.counts().flipped == 0 {
                tokio::task::yield_now().await;
            }
            world.store.set(Faults::default());
        };
        let mut silent = Vec::new();
        let (outcome, ()) = tokio::join!(obstacle(&set, Leaves::Read, &mut silent), is_over);
        assert_eq!(outcome.unwrap(), None, "{shape:?}");
    }
}

/// A set whose head lists three snapshots: two of its last checkpoint, and one whose root is missing.
async fn with_snapshots(world: &World) -> Found {
    let mut set = found(world).await;
    let root = set.head.content.root.unwrap();
    let gone = RootRef { object: ObjectId { random: 999, ..root.object }, ..root };
    for (name, root) in [("gone", gone), ("monday", root), ("twin", root)] {
        let (upto, volumes, request) = (LogId::new(2, 9), Default::default(), RequestId(7));
        let snapshot = Snapshot { upto, root, volumes, request, at_unix_ms: 8, scheduled: false };
        set.head.links.snapshots.snapshots.insert(Name::new(name).unwrap(), snapshot);
    }
    set
}

fn listed(set: &Found) -> Vec<&str> {
    set.head.links.snapshots.snapshots.keys().map(Name::as_str).collect()
}

/// The reasons for the omitted snapshots, by name. Each snapshot is either omitted or listed.
async fn left_out(world: &World) -> Vec<(String, String)> {
    let mut set = with_snapshots(world).await;
    let left_out = snapshots::leave_out(&mut set, &mut CheckedRoots::default()).await.unwrap();
    let mut all: Vec<&str> = left_out.iter().map(|one| one.name.as_str()).chain(listed(&set)).collect();
    all.sort_unstable();
    assert_eq!(all, ["gone", "monday", "twin"]);
    left_out.iter().map(|one| (one.name.to_string(), one.reason.clone())).collect()
}

/// A snapshot with a missing object prevents neither the set nor the others from being restored; the missing object is
/// named.
#[tokio::test]
async fn a_snapshot_of_which_something_is_gone_is_left_out() {
    for shape in [None, IN_LEAVES] {
        let world = World::made(shape).await;
        let mut set = with_snapshots(&world).await;
        let root = set.head.content.root.unwrap().object;
        let id = |random| ObjectId { random, ..root };
        let only_gone = |left_out: &[(String, String)]| {
            let [(name, reason)] = left_out else { panic!("{left_out:?}") };
            assert!(name == "gone" && reason.contains(&keys::root(set.set, id(999))), "{reason}");
            assert!(reason.contains("found no object"), "{reason}");
        };
        only_gone(&left_out(&world).await);
        let mut objects =
            vec![keys::segment(set.set, id(10)), keys::segment(set.set, id(11)), keys::map_pack(set.set, id(20))];
        objects.extend(shape.map(|_| World::leaves()));
        for key in &objects {
            let whole = world.store.get(key).await.unwrap();
            world.replace(key, |bytes| bytes.truncate(whole.len() - 1)).await;
            let short = left_out(&world).await;
            world.store.delete(key).await.unwrap();
            let none = left_out(&world).await;
            world.store.put_new(key, whole.clone()).await.unwrap();
            for (found, what) in
                [(short, format!("found {} bytes", whole.len() - 1)), (none, "found no object".to_string())]
            {
                let names: Vec<&str> = found.iter().map(|(name, _)| name.as_str()).collect();
                assert_eq!(names, ["gone", "monday", "twin"], "{key}");
                for (name, reason) in found.iter().filter(|(name, _)| name != "gone") {
                    assert!(reason.contains(key) && reason.contains(&what), "{name}: {reason}");
                }
            }
        }
        only_gone(&left_out(&world).await);
        // The next life lists the restored snapshots only.
        snapshots::leave_out(&mut set, &mut CheckedRoots::default()).await.unwrap();
        raise(&set, 8, 99).await.unwrap();
        let raised = found(&world).await;
        assert_eq!(listed(&raised), ["monday", "twin"]);
        let mut back = raised.head.links.snapshots.snapshots.values();
        assert!(back.all(|snapshot| snapshot.upto == LogId::default()), "a position in a log that no longer exists");
    }
}

/// R7: an object that is missing in a listing may exist. A store that does not answer has lost nothing yet.
#[tokio::test]
async fn neither_a_stale_listing_nor_an_outage_leaves_a_snapshot_out() {
    let world = World::made(IN_LEAVES).await;
    let mut set = with_snapshots(&world).await;
    // A single answer to a HEAD proves nothing either, because a proxy may have made it.
    world.store.set(Faults { stale_list: 1000, head_missing_once: 1000, ..Faults::default() });
    let root = set.head.content.root.unwrap().object;
    let segment = keys::segment(set.set, ObjectId { random: 10, ..root });
    let whole = world.store.get(&segment).await.unwrap();
    // Until the listing is older than the object.
    let mut tries = 0;
    while world.store.list(&segment, None).await.unwrap().objects.iter().any(|object| object.key == segment) {
        world.store.delete(&segment).await.unwrap();
        world.store.put_new(&segment, whole.clone()).await.unwrap();
        tries += 1;
        assert!(tries < 1000, "listed after every write");
    }
    let left_out = snapshots::leave_out(&mut set, &mut CheckedRoots::default()).await.unwrap();
    assert_eq!(left_out.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["gone"]);
    assert!(world.store.counts().stale > 0 && world.store.counts().missed > 0);
    world.store.set(Faults { down: true, ..Faults::default() });
    let error = snapshots::leave_out(&mut set, &mut CheckedRoots::default()).await.unwrap_err();
    assert!(error.may_pass(), "{error}");
    assert_eq!(listed(&set), ["monday", "twin"]);
}

/// If the head was replaced during the check, the check is repeated: roots listed before are not checked again, and new
/// ones are.
#[tokio::test]
async fn what_was_looked_at_is_not_looked_at_again() {
    let world = World::made(IN_LEAVES).await;
    let (mut set, mut looked) = (with_snapshots(&world).await, CheckedRoots::default());
    assert!(!set.is_replaced().await.unwrap());
    let left_out = snapshots::leave_out(&mut set, &mut looked).await.unwrap();
    assert_eq!(left_out.iter().map(|one| one.name.as_str()).collect::<Vec<_>>(), ["gone"]);
    raise(&set, 8, 99).await.unwrap();
    assert!(set.is_replaced().await.unwrap());
    let mut again = with_snapshots(&world).await;
    assert!(!again.is_replaced().await.unwrap());
    world.store.set(Faults { down: true, ..Faults::default() });
    assert_eq!(snapshots::leave_out(&mut again, &mut looked).await.unwrap(), left_out);
    assert_eq!(listed(&again), ["monday", "twin"]);
    let mut newest = again.head.links.snapshots.snapshots.get(&Name::new("monday").unwrap()).cloned().unwrap();
    newest.root.object.random = 998;
    again.head.links.snapshots.snapshots.insert(Name::new("newest").unwrap(), newest);
    assert!(snapshots::leave_out(&mut again, &mut looked).await.unwrap_err().may_pass());
}

/// A store that shows its first page again, or lists in another order, causes an error with its name: the survey
/// neither runs for ever nor skips sets.
#[tokio::test]
async fn a_listing_in_another_order_ends_the_survey() {
    for (faults, says) in [
        (Faults { ignores_start_after: true, gives_way: true, ..Faults::default() }, "ignores start-after"),
        (Faults { unsorted_list: true, gives_way: true, ..Faults::default() }, "not sorted"),
    ] {
        let world = World::made(None).await;
        let memory = Memory::new();
        for (key, body) in world.objects().await {
            memory.put_new(&key, body).await.unwrap();
        }
        let store = Retrying::new(Faulty::new(memory, 1, faults), RetryPolicy::default());
        let survey = tokio::time::timeout(PATIENCE, survey("memory", Arc::new(store), &world.key));
        let error = survey.await.expect("it ends").expect_err("no survey");
        assert!(matches!(error, RecoveryError::Store(StoreError::Listing { .. })), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// Other people's keys below a set's number do not hold up the walk, wherever they sort.
#[tokio::test]
async fn a_survey_walks_past_any_key_of_others() {
    let world = World::made(None).await;
    let set = found(&world).await.set;
    for key in ["notes", "zzzz", "zzzzz", "zzzz.txt"] {
        world.store.put_new(&format!("{}{key}", keys::of_set(set)), Bytes::from_static(b"a person's")).await.unwrap();
    }
    world.store.put_new(&format!("sets/{}0/notes", set.0), Bytes::from_static(b"a person's")).await.unwrap();
    world.store.set(Faults { gives_way: true, ..Faults::default() });
    let numbers = tokio::time::timeout(PATIENCE, super::listed(&*world.store)).await.expect("it ends").unwrap();
    assert_eq!(numbers, BTreeSet::from([set.0, set.0 * 10]));
}
