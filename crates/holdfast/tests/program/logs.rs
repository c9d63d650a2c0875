//! The log on standard error.

use crate::commands::cluster;
use serde_json::Value;

/// A command against a cluster, with the debug messages of its HTTP/2.
async fn log(format: &[&str]) -> String {
    let (_world, api) = cluster().await;
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_holdfast"));
    command.env_clear().env("HOLDFAST_API", api).args(["cluster", "status", "--log", "debug"]).args(format);
    let output = command.stdin(std::process::Stdio::null()).kill_on_drop(true).output().await.unwrap();
    let log = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success() && !log.is_empty(), "{format:?}: {log}");
    log
}

#[tokio::test]
async fn as_json_it_has_an_object_on_each_line() {
    for line in log(&["--log-format", "json"]).await.lines() {
        let entry: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
        let has_text = |value: &Value| value.as_str().is_some_and(|text| !text.is_empty());
        assert!(["timestamp", "level", "target"].iter().all(|name| has_text(&entry[name])), "{line}");
        assert!(entry["fields"].is_object(), "{line}");
    }
    assert!(log(&[]).await.lines().any(|line| serde_json::from_str::<Value>(line).is_err()), "text is the default");
}
