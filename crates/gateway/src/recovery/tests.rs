use super::*;
use crate::verify::tests::World;
use holdfast_store::Faults;
use holdfast_volume::map::LeafShape;

const IN_LEAVES: Option<LeafShape> = Some(LeafShape { pages: 2, objects: 1, packs: 9, whole_bytes: 0 });

async fn found(world: &World) -> Found {
    survey("memory", world.store.clone(), &world.key).await.unwrap().sets.remove(0)
}

/// What is in the way where the leaves are read, and where only their packs are asked for.
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

/// A life is raised only where it can go on: its first checkpoint needs all of the root.
#[tokio::test]
async fn a_set_is_not_raised_over_leaves_that_are_gone_or_damaged() {
    let world = World::made(IN_LEAVES).await;
    let (set, pack) = (found(&world).await, World::leaves());
    assert_eq!(in_the_way(&set).await, [None, None]);
    assert!(is_in_leaves(&set).await.unwrap());

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
    // The top alone says no less than before.
    assert!(is_in_leaves(&set).await.unwrap());
}

#[tokio::test]
async fn a_set_is_not_raised_over_a_root_that_is_damaged() {
    for shape in [None, IN_LEAVES] {
        let world = World::made(shape).await;
        let set = found(&world).await;
        assert_eq!(in_the_way(&set).await, [None, None]);
        assert_eq!(is_in_leaves(&set).await.unwrap(), shape.is_some());
        let root = keys::root(set.set, set.head.content.root.unwrap().object);
        world.replace(&root, |bytes| bytes[110] ^= 1).await;
        for why in in_the_way(&set).await {
            assert!(why.as_ref().is_some_and(|why| why.contains(&root)), "{why:?}");
        }
    }
}

/// A store that does not answer says nothing of what it has: it is asked again.
#[tokio::test]
async fn a_store_that_is_away_is_no_obstacle() {
    let world = World::made(IN_LEAVES).await;
    let set = found(&world).await;
    world.store.set(Faults { down: true, ..Faults::default() });
    for leaves in [Leaves::Read, Leaves::There] {
        let error = obstacle(&set, leaves, &mut Vec::new()).await.unwrap_err();
        assert!(error.may_pass(), "{error}");
    }
    assert!(is_in_leaves(&set).await.unwrap_err().may_pass());
}
