use super::*;
use crate::device::tests::World as Served;
use crate::head::tests::hooked::{Hook, Hooked};
use crate::head::tests::{SET, checkpointed, raised_elsewhere};
use crate::recovery;
use crate::verify::tests::World as Stored;
use bytes::Bytes;
use holdfast_cache::{Cache, MEMORY_BYTES_MIN};
use holdfast_control::set::Snapshot;
use holdfast_store::{Faults, Faulty, Health, Memory, ObjectStore};
use holdfast_types::sync::LockExt;
use holdfast_types::{Epoch, GroupId, LogId, MemberId, Name, RequestId, Sectors};
use holdfast_volume::map::LeafShape;
use std::sync::Mutex;

const IN_LEAVES: Option<LeafShape> = Some(LeafShape { pages: 2, objects: 1, packs: 9, whole_bytes: 0 });

fn id(random: u128) -> ObjectId {
    ObjectId { term: Term(1), member: MemberId(1), boot: 1, random }
}

#[test]
fn who_names_a_root_in_use_is_told_by_name() -> Result<(), Box<dyn std::error::Error>> {
    let at = |random| RootRef { object: id(random), bytes: 9 };
    let mut state = SetState::new(Epoch(0));
    for (name, random) in [("monday", 1), ("tuesday", 1), ("wednesday", 2)] {
        let (upto, root, request) = (LogId::new(1, 5), at(random), RequestId(1));
        let snapshot = Snapshot { upto, root, volumes: Default::default(), request, at_unix_ms: 0, scheduled: false };
        state.snapshots.insert(Name::new(name)?, snapshot);
    }
    assert_eq!(named_by(&state, at(1)), "snapshot monday, snapshot tuesday");
    assert_eq!(named_by(&state, at(2)), "snapshot wednesday");
    assert_eq!(named_by(&state, at(3)), "");
    Ok(())
}

/// The objects of a lost dropped root are left to the sweep; a root that only could not be read must not be given up. A
/// pack of leaves is read in parts, so the store finds one that ends too early.
#[tokio::test]
async fn what_is_gone_too_short_or_does_not_open_is_lost_and_what_may_be_read_later_is_not() {
    let store = Faulty::new(Memory::new(), 1, Faults::default());
    let key = store_keys::map_pack(GroupId(3), id(1));
    let lost = async || MapError::from(store.get_range(&key, 2..8).await.unwrap_err()).is_lost();
    assert!(lost().await, "there is no such object");
    store.put_new(&key, Bytes::from_static(b"short")).await.unwrap();
    assert!(lost().await, "it ends before the requested range");
    store.set(Faults { down: true, ..Faults::default() });
    assert!(!lost().await, "the store is away");
    store.set(Faults { deny: 1000, ..Faults::default() });
    assert!(!lost().await, "the store refuses until an operator acts");
    assert!(MapError::Bad { what: "leaf", object: id(1), reason: "found another tag".into() }.is_lost());
    assert!(!MapError::Stopping.is_lost());
}

/// The collector of a set whose last checkpoint is in `stored`, and the other parts that serve the set.
async fn keeper(stored: &Stored) -> (SpaceKeeper, RootRef, Served) {
    keeper_over(stored, stored.store.clone()).await
}

/// The same, which reads and lists the objects in `store`.
async fn keeper_over(stored: &Stored, store: Arc<dyn ObjectStore>) -> (SpaceKeeper, RootRef, Served) {
    let found = recovery::survey("memory", stored.store.clone(), &stored.key).await.unwrap().sets.remove(0);
    let root = found.head.content.root.unwrap();
    let served = Served::over(true, Some(root)).await;
    let (health, stop) = (Arc::new(Health::new("demo")), CancellationToken::new());
    let cache = Cache::open(MEMORY_BYTES_MIN, None).await.unwrap();
    let page_bytes = MEMORY_BYTES_MIN;
    let mapping = Mapping::new(found.key, store, health, cache, page_bytes, Sectors(0), stop.clone()).unwrap();
    let settings =
        SpaceSettings { grace: Duration::ZERO, deletes_per_second: 1, sweep_interval: Duration::from_secs(3600) };
    (SpaceKeeper::new(served.server.clone(), Arc::new(mapping), settings, stop), root, served)
}

/// R8: leaves that no read has requested are here when the store becomes unavailable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_has_all_leaves_before_anybody_reads_by_them() {
    let stored = Stored::made(IN_LEAVES).await;
    let (mut keeper, root, _served) = keeper(&stored).await;
    let away = |down| stored.store.set(Faults { down, ..Faults::default() });
    away(true);
    keeper.have_leaves(Duration::from_millis(1)).await;
    assert_eq!(keeper.had, None, "leaves that were not read in time are requested again at the next turn");
    away(false);
    keeper.have_leaves(LEAVES_LIMIT).await;
    assert_eq!(keeper.had, Some(root));
    away(true);
    assert!(keeper.mapping.has_root(root), "R8: the store is away, and not all of the root is here");
    assert_eq!(keeper.mapping.root(root).await.unwrap().page_count(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaves_that_cannot_be_read_are_asked_for_once() {
    let stored = Stored::made(IN_LEAVES).await;
    stored.replace(&Stored::leaves(), |bytes| bytes[110] ^= 1).await;
    let (mut keeper, root, _served) = keeper(&stored).await;
    // Not a fault: each request is counted.
    stored.store.set(Faults { slow: 1000, ..Faults::default() });
    keeper.have_leaves(LEAVES_LIMIT).await;
    assert!(!keeper.mapping.has_root(root));
    let asked = stored.store.counts().slowed;
    assert!(asked > 0, "nothing is tested");
    keeper.have_leaves(LEAVES_LIMIT).await;
    assert_eq!(stored.store.counts().slowed, asked, "no later turn will read more");
}

/// The limit is for memory: a root that is in memory anyway takes no share of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_root_that_is_in_memory_takes_no_room_among_those_that_are_remembered() {
    let stored = Stored::made(IN_LEAVES).await;
    let (mut keeper, at, _served) = keeper(&stored).await;
    keeper.roots.root(at).await.unwrap();
    assert!(keeper.roots.known(at).is_some(), "nobody else keeps it");
    keeper.roots.clear();
    let root = keeper.mapping.root(at).await.unwrap();
    assert!(keeper.roots.root(at).await.unwrap().names().eq(root.names()));
    assert!(keeper.roots.known(at).is_none(), "it is the current one");
}

/// Makes a sweep due at any time, and puts an object there that is an orphan by its term. Returns the present term, and
/// the object.
async fn due(keeper: &mut SpaceKeeper, served: &Served) -> (Term, ObjectId) {
    keeper.settings.sweep_interval = Duration::ZERO;
    let object = ObjectId { term: Term(0), ..id(50) };
    let body = Bytes::from_static(b"of an earlier term");
    keeper.mapping.store.put_new(&store_keys::root(SET, object), body).await.unwrap();
    let term = served.server.leading_ready().expect("it leads");
    served.server.head.note_here(&served.server.group, &served.server.host, Some(term));
    (term, object)
}

fn retired(served: &Served) -> Vec<ObjectId> {
    served.server.host.with(|m| m.state().retired.keys().copied().collect())
}

/// R7: the leader before has written its checkpoint into the head, and failed before it told the group. The state does
/// not name its objects. If they were swept, a recovery would begin with a root that is gone.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r7_nothing_is_swept_before_the_head_names_a_checkpoint_of_this_leader() {
    let stored = Stored::made(None).await;
    let (mut keeper, root, served) = keeper(&stored).await;
    let (term, object) = due(&mut keeper, &served).await;
    let head = &served.server.head;
    checkpointed(head, Term(0), RootRef { object, bytes: 9 }).await;
    assert!(head.links_settled(&keeper.state(), term), "nothing else holds the sweep up");
    keeper.sweep(term).await.unwrap();
    assert!(retired(&served).is_empty(), "R7: a recovery would begin with it");
    checkpointed(head, term, root).await;
    keeper.sweep(term).await.unwrap();
    assert_eq!(retired(&served), [object], "no recovery needs it any more");
}

/// Once this has the store of a set's head, another cluster recovers the set before the next listing.
#[derive(Debug, Default)]
struct Recovery(Mutex<Option<Arc<dyn ObjectStore>>>);

impl Hook for Recovery {
    async fn before_list(&self) {
        let store = self.0.locked().take();
        if let Some(store) = store {
            raised_elsewhere(&store).await;
        }
    }
}

/// R7, ADR 0013: terms tell orphans within one life of a set. The next life begins with term 1 again, and what it has
/// written looks like an orphan to a leader of the life before. Without a last look at the head, it would be deleted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn r7_nothing_is_swept_that_another_life_may_have_written() {
    for taken in [true, false] {
        let stored = Stored::made(None).await;
        let store = Arc::new(Hooked { within: stored.store.clone(), hook: Recovery::default() });
        let (mut keeper, root, served) = keeper_over(&stored, store.clone()).await;
        let (term, object) = due(&mut keeper, &served).await;
        let head = &served.server.head;
        checkpointed(head, term, root).await;
        assert!(head.links_settled(&keeper.state(), term), "nothing else holds the sweep up");
        *store.hook.0.locked() = taken.then(|| served.server.switch.pinned());
        keeper.sweep(term).await.unwrap();
        assert!(store.hook.0.locked().is_none(), "it has listed the store");
        assert_eq!(head.fenced().is_some(), taken, "HEAD-H1");
        let expected = if taken { Vec::new() } else { vec![object] };
        assert_eq!(retired(&served), expected, "R7, taken over: {taken}");
    }
}
