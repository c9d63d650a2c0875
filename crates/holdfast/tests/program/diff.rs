//! `holdfast snapshot diff` as people and programs read it, against gateways that have only an admin door.

use crate::commands::{run, text};
use crate::fake::{self, Shared};
use holdfast_api::v1;
use serde_json::{Value, json};

fn volume(id: u32, name: &str, size_bytes: u64) -> v1::Volume {
    v1::Volume { id, name: name.into(), size_bytes }
}

fn snapshot(id: &str, name: &str, volumes: Vec<v1::Volume>) -> v1::Snapshot {
    v1::Snapshot { id: id.into(), name: name.into(), volumes, ..Default::default() }
}

/// A set with two snapshots. Between them one volume stayed, one was renamed and grew, one was deleted and created
/// again, one was deleted, and one is new.
async fn demo() -> (Shared, String) {
    let world = fake::start(1).await;
    let then =
        vec![volume(0, "vol1", 32768), volume(1, "old", 32768), volume(2, "vol3", 65536), volume(3, "vol4", 512)];
    let now =
        vec![volume(0, "vol1", 32768), volume(1, "vol2", 65536), volume(4, "vol3", 32768), volume(5, "vol5", 16384)];
    let snapshots = vec![snapshot("a", "monday", then), snapshot("b", "tuesday", now)];
    world.lock().unwrap().sets.insert("demo".into(), fake::Set { id: 1, snapshots, ..Default::default() });
    let api = fake::api(&world);
    (world, api)
}

const DIFF: [&str; 5] = ["snapshot", "diff", "demo", "monday", "tuesday"];

#[tokio::test]
async fn volumes_are_told_by_their_ids_before_any_range() {
    let (_world, api) = demo().await;
    let output = run(&api, &[&DIFF[..], &["--output", "json"]].concat()).await;
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert_eq!(output.status.code(), Some(0), "{out}{err}");
    let lines: Vec<Value> = out.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let told = |name: &str, id: u32, relation: &str, from: Value, before: Value, after: Value| {
        json!({
            "kind": "volume", "volume": name, "id": id, "relation": relation, "renamed_from": from,
            "size_before": before, "size_after": after,
        })
    };
    let none = Value::Null;
    let expected = [
        told("vol3", 2, "gone", none.clone(), json!(65536), none.clone()),
        told("vol4", 3, "gone", none.clone(), json!(512), none.clone()),
        told("vol1", 0, "same", none.clone(), json!(32768), json!(32768)),
        told("vol2", 1, "same", json!("old"), json!(32768), json!(65536)),
        told("vol3", 4, "anew", none.clone(), none.clone(), json!(32768)),
        told("vol5", 5, "new", none.clone(), none.clone(), json!(16384)),
    ];
    assert_eq!(lines[..6], expected);
    // A range that ends at the end of a part continues in the next part.
    let range = |name: &str, id: u32, offset: u64, length: u64, content: &str| {
        json!({
            "kind": "range", "volume": name, "id": id, "offset": offset, "length": length, "content": content,
        })
    };
    let ranges = [("vol1", 0), ("vol2", 1), ("vol3", 4), ("vol5", 5)]
        .map(|(name, id)| [range(name, id, 0, 4096, "data"), range(name, id, 8192, 4608, "zero")])
        .concat();
    assert_eq!(lines[6..14], ranges);
    assert_eq!(lines[14..], [json!({ "kind": "end", "data_bytes": 4 * 4096, "zero_bytes": 4 * 4608 })]);
}

#[tokio::test]
async fn people_read_tables() {
    let (_world, api) = demo().await;
    let output = run(&api, &DIFF).await;
    let out = text(&output.stdout);
    let lines: Vec<Vec<&str>> = out.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["VOLUME", "RELATION", "SIZE", "BEFORE", "SIZE", "AFTER", "RENAMED", "FROM"], "{out}");
    assert_eq!(lines[1], ["vol3", "gone", "65536", "-", "-"], "{out}");
    assert_eq!(lines[4], ["vol2", "same", "32768", "65536", "old"], "{out}");
    assert_eq!(lines[5], ["vol3", "anew", "-", "32768", "-"], "{out}");
    assert_eq!(lines[7..9], [vec![], vec!["VOLUME", "OFFSET", "LENGTH", "CONTENT"]], "{out}");
    assert_eq!(lines[9], ["vol1", "0", "4096", "data"], "{out}");
    assert!(text(&output.stderr).contains("16KiB of data may differ, and another 18KiB are zeroes now"));
}

#[tokio::test]
async fn ranges_of_a_volume_as_it_is_not_listed_are_not_believed() {
    let (world, api) = demo().await;
    world.lock().unwrap().other_sizes = true;
    let output = run(&api, &[&DIFF[..], &["--output", "json"]].concat()).await;
    assert_eq!(output.status.code(), Some(1));
    let error: Value = serde_json::from_str(text(&output.stderr).lines().last().unwrap()).unwrap();
    let words = error["error"]["message"].as_str().unwrap();
    assert!(words.contains("vol1: found ranges from 32769 bytes to 32768, expected from 32768 to 32768"), "{words}");
    assert!(!text(&output.stdout).contains("\"kind\":\"end\""), "a list that is not whole has no end");
}
