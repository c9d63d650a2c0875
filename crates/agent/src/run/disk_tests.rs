//! What the task has to do with the disk of `dir`: it waits for it only at its own end, and answers for it.

use super::*;
use crate::machine::{Event, Record};
use std::os::unix::fs::symlink;

impl Lab {
    async fn is_paused(&self) -> bool {
        serde_json::from_str::<View>(&self.get("/status").await.1).unwrap().paused
    }
}

/// TASK-N5: a later agent would start PostgreSQL under the hands of the person who was told that it is paused.
#[tokio::test]
async fn a_pause_that_the_disk_does_not_take_is_refused() {
    let mut lab = lab(Fake::default(), |_| {}).await;
    lab.state("primary").await;
    let (file, nothing) = (lab.dir.path().join("dir/paused"), serde_json::json!({}));
    // In its way: a link to nowhere, and then a directory.
    symlink("/nonexistent/paused", &file).unwrap();
    let (code, why) = lab.post("/pause", nothing.clone()).await;
    assert!(code == 412 && why.contains("db1 is not paused, ") && why.contains("dir/paused: "), "{code}: {why}");
    assert!(!lab.is_paused().await);
    std::fs::remove_file(&file).unwrap();
    assert_eq!(lab.post("/pause", nothing.clone()).await.0, 200);
    assert!(file.is_file() && lab.is_paused().await);
    std::fs::remove_file(&file).unwrap();
    std::fs::create_dir(&file).unwrap();
    let (code, why) = lab.post("/resume", nothing.clone()).await;
    assert!(code == 412 && why.contains("db1 is not resumed, "), "{code}: {why}");
    assert!(lab.is_paused().await);
    std::fs::remove_dir(&file).unwrap();
    assert_eq!(lab.post("/resume", nothing).await.0, 200);
    assert!(!lab.is_paused().await);
    lab.end().await;
}

/// An agent that cannot find out whether it was paused does nothing by itself, until a person says so.
#[tokio::test]
async fn a_pause_that_cannot_be_read_is_one() {
    let mut lab = lab(Fake::default(), |config| {
        std::fs::create_dir_all(&config.dir).unwrap();
        // A link to itself cannot be followed.
        symlink("paused", config.dir.join("paused")).unwrap();
    })
    .await;
    lab.state("standby").await;
    assert!(lab.is_paused().await);
    assert_eq!(lab.did(), Vec::<String>::new());
    assert_eq!(lab.post("/resume", serde_json::json!({})).await.0, 200);
    lab.state("primary").await;
    lab.end().await;
}

/// TASK-N4: a reboot loses what is not on the disk.
#[tokio::test]
async fn a_reboot_waits_for_the_history() {
    let (fake, dir) = (Fake::default(), tempfile::tempdir().unwrap());
    fake.world(|world| world.history = dir.path().join("history.jsonl"));
    let mut config = AgentConfig { name: "db1".into(), ..AgentConfig::default() };
    (config.dir, config.run_dir) = (dir.path().into(), dir.path().join("run"));
    let history = History::open(&config.dir).unwrap().beside();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let doors = Doors { tcp: listener.into(), local: None, tls: None, compares: false, audit: None };
    let mut agent = Agent::over(config, Arc::new(fake.clone()), history, doors, None, client::over_tcp());
    let (reason, other) = ("it cannot let go".to_string(), String::new());
    let record = Record { event: Event::Stuck, reason, other, epoch: 3, phases: None };
    agent.perform(Action::Record(Box::new(record))).await;
    agent.perform(Action::Reboot("it cannot let go".into())).await;
    assert_eq!(fake.world(|world| world.did.clone()), ["reboot after 1 lines"]);
}
