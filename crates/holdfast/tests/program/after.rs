//! Commands of several steps that end after one of them: exit codes 3 and 4 promise that nothing was changed.

use crate::commands::{cluster, error};
use crate::fake::{self, Mood, Shared};

fn set_mood(world: &Shared, at: usize, mood: Mood) {
    world.lock().unwrap().gateways[at].mood = mood;
}

#[tokio::test]
async fn a_move_that_nobody_confirms_is_unknown() {
    let (world, api) = cluster().await;
    set_mood(&world, 2, Mood::Last);
    let moved = error(5, &api, &["switchover", "demo", "--to", "g2", "--timeout", "2s"]).await;
    assert!(moved["message"].as_str().unwrap().ends_with("; set demo was given to g2"), "{moved}");
    assert_eq!(world.lock().unwrap().sets["demo"].term, 4, "it took place");

    let (world, api) = cluster().await;
    set_mood(&world, 2, Mood::Last);
    let failover = ["failover", "demo", "--candidate", "g2", "--owner", "db2", "--yes", "--timeout", "2s"];
    let moved = error(5, &api, &failover).await;
    assert!(moved["message"].as_str().unwrap().contains("to a new owner, whose token is lost"), "{moved}");

    // Nothing is moved here: then nothing was changed.
    let (world, api) = cluster().await;
    set_mood(&world, 2, Mood::Busy(u32::MAX));
    error(4, &api, &["switchover", "demo", "--to", "g2", "--timeout", "1s"]).await;
    assert_eq!(world.lock().unwrap().sets["demo"].term, 3);
}

#[tokio::test]
async fn a_gateway_that_leaves_while_nobody_answers_is_unknown() {
    let (world, api) = cluster().await;
    set_mood(&world, 0, Mood::Last);
    let left = error(5, &api, &["gateway", "remove", "m3", "--yes", "--timeout", "2s"]).await;
    assert!(left["message"].as_str().unwrap().contains("continues in the background"), "{left}");
    assert_eq!(world.lock().unwrap().members.len(), 2, "it took place");
}

#[tokio::test]
async fn a_set_without_its_volumes_is_no_refusal() {
    let (world, api) = cluster().await;
    // The new set's leader.
    set_mood(&world, 2, Mood::Busy(u32::MAX));
    let create = ["set", "create", "new", "--store", "file:///srv/new", "--volume", "v=1GiB", "--timeout", "1s"];
    let made = error(5, &api, &create).await;
    assert!(made["message"].as_str().unwrap().contains("set new created in file:///srv/new"), "{made}");
    assert!(world.lock().unwrap().sets.contains_key("new"));
    // This time nothing is made.
    error(4, &api, &create).await;
}

#[tokio::test]
async fn a_plan_that_ends_in_its_middle_is_no_refusal() {
    let (world, _) = cluster().await;
    fake::add(&world, "127.0.0.1:0").await;
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("cluster.toml");
    // The set is in another store.
    let sets = "[[sets]]\nname = \"demo\"\nstore = \"file:///srv/other\"\nvolumes = { vol1 = \"1GiB\" }\n";
    std::fs::write(&file, fake::plan(&world, sets)).unwrap();
    let api = fake::api(&world);
    let bootstrap = ["cluster", "bootstrap", "--config", file.to_str().unwrap()];
    let ended = error(5, &api, &bootstrap).await;
    assert_eq!(ended["code"], "exists");
    assert!(ended["message"].as_str().unwrap().ends_with("; the steps before it are done"), "{ended}");
    assert_eq!(world.lock().unwrap().gateways[3].member, 4, "it joined");
    error(3, &api, &bootstrap).await;
}
