//! Switchovers between two agents, each with a host in memory.

use super::*;

/// A process has the pool open: that is told before anything is stopped. If one opens it later, PostgreSQL is started
/// again where it was.
#[tokio::test]
async fn a_switchover_with_the_pool_in_use_ends_where_it_began() {
    let dir = tempfile::tempdir().unwrap();
    let there = Fake::default();
    there.world(|world| world.lease = Some(("db1".into(), 1)));
    let mut other = lab(there, |config| {
        config.name = "db2".into();
        config.peers.0.clear();
    })
    .await;
    let begun = std::time::Instant::now();
    while !other.get("/status").await.1.contains("\"cluster_answers\":true") {
        assert!(begun.elapsed() < Duration::from_secs(30));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let address = other.address.clone();
    let mut lab = lab(Fake::default(), |config| {
        config.peers.0 = [("db2".to_string(), address)].into();
    })
    .await;
    lab.state("primary").await;
    assert_eq!(lab.did(), UP);
    lab.fake.world(|world| world.openers = vec!["bash (pid 7) works in /srv/pg".into()]);
    let (code, why) = lab.post("/switchover", serde_json::json!({})).await;
    assert!(code == 412 && why.contains("bash (pid 7) works in /srv/pg"), "{code}: {why}");
    assert_eq!(lab.did(), Vec::<String>::new());
    lab.fake.world(|world| {
        world.openers.clear();
        world.in_use = Some("/srv/pg is in use: bash (pid 8)".into());
    });
    assert_eq!(lab.post("/switchover", serde_json::json!({})).await.0, 200);
    let begun = std::time::Instant::now();
    while !lab.get("/status").await.1.contains("PostgreSQL started again: /srv/pg is in use: bash (pid 8)") {
        assert!(begun.elapsed() < Duration::from_secs(30), "{}", lab.get("/status").await.1);
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    lab.state("primary").await;
    let did = lab.did();
    let down = ["checkpoint", "stop Fast", "hook Standby", "export", "start", "first write", "hook Primary"];
    let mut sorted = (did.clone(), down.map(String::from).to_vec());
    sorted.0.sort();
    sorted.1.sort();
    assert_eq!(sorted.0, sorted.1, "{did:?}");
    assert!(lab.get("/history").await.1.contains("\"event\":\"switchover-refused\""));
    lab.fake.world(|world| world.in_use = None);
    lab.end().await;
    other.end().await;
    drop(dir);
}

/// Leaves a switchover to `to` for the agent, which was due so long ago.
fn schedule(config: &AgentConfig, ago: Duration, to: Option<&str>) {
    std::fs::create_dir_all(&config.dir).unwrap();
    let at_unix_ms = clock::unix_ms() - u64::try_from(ago.as_millis()).unwrap();
    let scheduled = crate::schedule::Scheduled { at_unix_ms, to: to.map(str::to_string) };
    Schedule::open(&config.dir).set(scheduled).unwrap();
}

/// TIMED-T2, TIMED-T3: one with an obstacle that a person has to remove, and one whose obstacle does not go away.
#[tokio::test]
async fn a_scheduled_switchover_is_dropped_with_its_reason() {
    let late = crate::schedule::LATE_MAX - Duration::from_secs(2);
    for (ago, to, reason) in [
        (Duration::ZERO, Some("db9"), "dropped: db9 is none of the peers of db1"),
        (late, None, "late are allowed: request it again; the last obstacle: "),
    ] {
        let mut lab = lab(Fake::default(), |config| {
            // Nobody listens there.
            config.peers.0 = [("db2".to_string(), "127.0.0.1:1".to_string())].into();
            schedule(config, ago, to);
        })
        .await;
        let begun = std::time::Instant::now();
        while !lab.get("/history").await.1.contains(reason) {
            assert!(begun.elapsed() < Duration::from_secs(30), "{}", lab.get("/history").await.1);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        assert!(!lab.get("/status").await.1.contains("\"scheduled\""));
        assert!(!lab.dir.path().join("dir/scheduled.json").exists());
        lab.end().await;
    }
}

/// TIMED-T3: the gateway that the other host asked last was just being restarted when the time came, and the agent of
/// the primary too.
#[tokio::test]
async fn a_scheduled_switchover_is_tried_again_until_the_other_host_hears_a_gateway() {
    let there = Fake::default();
    there.world(|world| (world.lease, world.no_gateway) = (Some(("db1".into(), 1)), true));
    let mut other = lab(there.clone(), |config| config.name = "db2".into()).await;
    let address = other.address.clone();
    // It is due when the agent begins, and PostgreSQL does not run yet.
    let mut lab = lab(Fake::default(), |config| {
        config.peers.0 = [("db2".to_string(), address)].into();
        schedule(config, Duration::ZERO, None);
    })
    .await;
    // At the second try the first one has not dropped it.
    let begun = std::time::Instant::now();
    while lab.fake.world(|world| world.looked) < 2 {
        let history = lab.get("/history").await.1;
        assert!(!history.contains("dropped") && begun.elapsed() < Duration::from_secs(50), "{history}");
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(lab.get("/status").await.1.contains("\"scheduled\""));
    there.world(|world| world.no_gateway = false);
    lab.state("standby").await;
    let history = lab.get("/history").await.1;
    assert!(history.contains("begun in time, although at first db2 reaches no gateway"), "{history}");
    assert!(!lab.get("/status").await.1.contains("\"scheduled\""));
    lab.end().await;
    other.end().await;
}
