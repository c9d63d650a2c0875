//! Who is not let in any more, and what is noted of those who are.

use super::*;
use holdfast_tls::{HttpTls, Revoked};
use std::path::Path;

const PATIENCE: Duration = Duration::from_secs(20);

/// The answer's code at `path` to the bearer of a certificate; `None`: there was no answer.
async fn asked(dir: &Path, address: &str, name: &str, path: &str, token: Option<&str>) -> Option<u16> {
    let rule = rules::rule(path).unwrap();
    let body = match path {
        "/claim" => serde_json::json!({ "from": name, "to": "db1", "set": "demo", "within_ms": 1 }),
        _ => serde_json::json!({}),
    };
    let body = (rule.what == What::Command).then_some(&body);
    let dial = dial(dir, name, address, "db1");
    let answer = crate::client::ask_over(&dial, address, path, body, token, PATIENCE).await;
    answer.ok().map(|answer| answer.code)
}

fn commands() -> impl Iterator<Item = &'static str> {
    RULES.iter().filter(|rule| rule.what == What::Command).map(|rule| rule.path)
}

/// REVOKE-V1, REVOKE-V2 at an agent: whoever was revoked moves nothing and learns nothing any more.
#[tokio::test]
async fn a_revoked_certificate_gives_no_command() {
    let dir = certificates();
    let own = tls(dir.path(), "db1");
    let (address, serving) = secured_by(dir.path(), HttpTls::Required, &own, None).await;
    assert_eq!(asked(dir.path(), &address, "ann", "/pause", None).await, Some(200));
    // One that is open, and idle.
    let mut idle = dial(dir.path(), "ann", &address, "db1")(address.clone()).await.unwrap();
    let request = b"GET /liveness HTTP/1.1\r\nHost: db1\r\n\r\n";
    tokio::io::AsyncWriteExt::write_all(&mut idle, request).await.unwrap();
    tokio::io::AsyncWriteExt::flush(&mut idle).await.unwrap();
    let mut begun = [0; 8];
    tokio::io::AsyncReadExt::read_exact(&mut idle, &mut begun).await.unwrap();
    own.revocations().replace(Revoked { names: ["ann".to_string()].into(), ..Revoked::default() });
    let mut rest = Vec::new();
    let ended = tokio::io::AsyncReadExt::read_to_end(&mut idle, &mut rest);
    let _ = tokio::time::timeout(PATIENCE, ended).await.expect("it ends");
    for path in commands().chain(["/status", "/primary"]) {
        assert_eq!(asked(dir.path(), &address, "ann", path, Some("secret")).await, None, "{path}");
    }
    assert_eq!(asked(dir.path(), &address, "vic", "/status", None).await, Some(200), "others are not concerned");
    own.revocations().replace(Revoked::default());
    assert_eq!(asked(dir.path(), &address, "ann", "/pause", None).await, Some(200));
    serving.abort();
}

fn text(line: &serde_json::Value, field: &str) -> String {
    line[field].as_str().unwrap_or_default().to_string()
}

/// HEALTH-H6, for each path of the table.
#[tokio::test]
async fn each_command_leaves_one_line() {
    let dir = certificates();
    let path = dir.path().join("audit.log");
    let audit = AgentAudit::start(&path, 1 << 20).unwrap();
    let own = tls(dir.path(), "db1");
    let (address, serving) = secured_by(dir.path(), HttpTls::Required, &own, Some(audit.clone())).await;
    let (mut expected, mut refused) = (Vec::new(), 0);
    for rule in RULES {
        for name in ["ann", "vic", "db2"] {
            let code = asked(dir.path(), &address, name, rule.path, None).await.expect("an answer");
            if rule.what == What::Command {
                let with = if code == 403 { "" } else { "certificate" };
                refused += u32::from(code == 403);
                expected.push((rule.path.to_string(), name.to_string(), with.to_string(), code.to_string()));
            }
        }
    }
    assert_eq!(refused as usize, 2 * commands().count(), "each command is one role's");
    let code = asked(dir.path(), &address, "vic", "/pause", Some("secret")).await.expect("an answer");
    expected.push(("/pause".to_string(), "vic".to_string(), "token".to_string(), code.to_string()));
    assert!(audit.written(PATIENCE).await);
    let lines = || -> Vec<serde_json::Value> {
        let text = std::fs::read_to_string(&path).unwrap();
        text.lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    };
    let found: Vec<_> = lines()
        .iter()
        .map(|line| (text(line, "path"), text(line, "certificate"), text(line, "by"), text(line, "outcome")))
        .collect();
    assert_eq!(found, expected);
    for line in lines() {
        assert!(line["time_unix_ms"].is_u64() && line["duration_ms"].is_u64(), "{line}");
        assert!(text(&line, "peer").starts_with("127.0.0.1:") && !text(&line, "serial").is_empty(), "{line}");
        assert!(!line.to_string().contains("secret"), "{line}");
        if text(&line, "path") == "/claim" && text(&line, "outcome") == "200" {
            assert_eq!((text(&line["request"], "to"), text(&line, "answer")), ("db1".into(), "done".into()), "{line}");
        }
    }
    // Whoever is refused again and again leaves few.
    for _ in 0..40 {
        asked(dir.path(), &address, "vic", "/pause", None).await.expect("an answer");
    }
    assert!(audit.written(PATIENCE).await);
    assert!(lines().len() < expected.len() + 17, "{} lines", lines().len());
    serving.abort();
}

/// HEALTH-H6: it may be carried out all the same.
#[tokio::test]
async fn a_command_whose_caller_has_gone_leaves_a_line() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("audit.log");
    let audit = AgentAudit::start(&path, 1 << 20).unwrap();
    let line = Line::begin(&audit, "demo", &Asker::Local, "/failover");
    line.noted().let_in("socket", br#"{"reason":"lost"}"#);
    drop(line);
    assert!(audit.written(PATIENCE).await);
    let line: serde_json::Value = serde_json::from_str(&std::fs::read_to_string(&path).unwrap()).unwrap();
    let seen = (text(&line, "path"), text(&line, "by"), text(&line, "outcome"), text(&line["request"], "reason"));
    assert_eq!(seen, ("/failover".into(), "socket".into(), "NotAwaited".into(), "lost".into()));
    assert!(line["certificate"].is_null() && line["peer"].is_null(), "{line}");
}
