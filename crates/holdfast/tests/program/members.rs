//! `holdfast gateway` as people and programs read it, against gateways that have only an admin door.

use crate::commands::{calls, cluster, expect, json};
use serde_json::Value;

#[tokio::test]
async fn a_dry_run_of_a_drain_only_looks() {
    let (world, api) = cluster().await;
    let plan = json(&api, &["gateway", "drain", "g3", "--dry-run"]).await;
    assert_eq!((&plan["member"], &plan["steps"][0]["leaders"]), (&Value::from(3), &serde_json::json!(["g1"])));
    let shown = expect(0, &api, &["gateway", "drain", "g3", "--dry-run"]).await;
    assert!(shown.contains("1 of 1 leaderships and 0 of 1 votes") && shown.contains("to g1"), "{shown}");
    assert_ne!(world.lock().unwrap().members[2].standing, "drained");
    assert!(calls(&world).iter().all(|call| !call.contains("drain_member")), "no call that could drain it");
}
