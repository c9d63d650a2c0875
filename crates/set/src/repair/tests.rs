use super::*;
use crate::device::tests::World as Served;
use crate::recovery;
use crate::verify::tests::World as Stored;
use holdfast_cache::{Cache, MEMORY_BYTES_MIN};
use holdfast_store::{Health, Memory, ObjectStore};
use holdfast_types::Sectors;

/// A set in three stores, of which only the first has anything.
struct World {
    stores: [Arc<Memory>; 3],
    several: Arc<Quorum>,
    mapping: Arc<Mapping>,
    root: RootRef,
    served: Served,
}

impl World {
    async fn new() -> Self {
        let stored = Stored::made(None).await;
        let found = recovery::survey("memory", stored.store.clone(), &stored.key).await.unwrap().sets.remove(0);
        let stores: [Arc<Memory>; 3] = std::array::from_fn(|_| Arc::new(Memory::new()));
        // Of several stores the head is a matter of its own.
        for (key, body) in stored.objects().await.into_iter().filter(|(key, _)| *key != keys::head(found.set)) {
            stores[0].put_new(&key, body).await.unwrap();
        }
        let observed = stores.iter().map(|store| (store.clone() as Arc<dyn ObjectStore>, None));
        let several = Quorum::new(observed.collect(), 2);
        let (store, health) = (Arc::new(several.clone()), Arc::new(Health::new("demo")));
        let (cache, stop) = (Cache::open(MEMORY_BYTES_MIN, None).await.unwrap(), CancellationToken::new());
        let mapping = Mapping::new(found.key, store, health, cache, MEMORY_BYTES_MIN, Sectors(0), stop).unwrap();
        let root = found.head.content.root.unwrap();
        Self { stores, several, mapping: Arc::new(mapping), root, served: Served::over(true, Some(root)).await }
    }

    fn repairer(&self, bytes_per_second: u64) -> Repairer {
        let repairer = Repairer::new(self.served.server.clone(), self.mapping.clone(), CancellationToken::new());
        repairer.within(bytes_per_second)
    }

    /// How many objects each of the two others has, once each has had a turn.
    async fn turn(&self, repairer: &Repairer) -> [usize; 2] {
        for at in [1, 2] {
            repairer.fill(&self.several, at, &[self.root]).await.unwrap();
        }
        [1, 2].map(|at: usize| self.stores[at].len())
    }
}

/// At a byte a second, one object is minutes of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_may_be_copied_a_second_the_stores_share() {
    let world = World::new().await;
    let slow = world.repairer(1);
    assert_eq!(world.turn(&slow).await, [1, 0], "what the first store took is not paid for");
    assert_eq!(world.turn(&slow).await, [1, 0], "nor is it by the next turn");
    let all = world.stores[0].len();
    assert_eq!(world.turn(&world.repairer(0)).await, [all, all], "without a limit");
}
