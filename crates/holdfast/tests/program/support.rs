//! `holdfast support-bundle`: secrets are planted in every place that it reads, and none is in the bundle.
//! `holdfast doctor`: its exit code, and its result as JSON.

use crate::commands::cluster;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Output, Stdio};

/// A key in hex, and the other planted secrets. `PLANTED` is a part of those that only a rule can know.
const KEY: &str = "5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed5eed";
const PASSPHRASE: &str = "staple battery horse";
const AWS_SECRET: &str = "aB3/aB3/aB3/aB3/aB3/aB3/aB3/aB3/aB3/aB3+";
const AGENT_TOKEN: &str = "tok-of-agents";
const VARIABLE: &str = "value-of-variable";
const PEM_LINE: &str = "MIIEvQIBADANBgkqhkiG";
const PLANTED: &str = "PLANTED";

async fn holdfast(api: &str, args: &[&str]) -> Output {
    let mut command = tokio::process::Command::new(env!("CARGO_BIN_EXE_holdfast"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    command.env_clear().env("PATH", path).env("HOLDFAST_API", api).env("MY_TOKEN", VARIABLE).args(args);
    command.env("AWS_SECRET_ACCESS_KEY", format!("{PLANTED}-in-aws"));
    command.stdin(Stdio::null()).kill_on_drop(true).output().await.unwrap()
}

/// A secret file, which must belong to its user alone.
fn secret(dir: &Path, name: &str, text: &str) -> String {
    let path = dir.join(name);
    std::fs::write(&path, text).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
    path.display().to_string()
}

/// A log with every secret, in several forms, and words that must stay.
fn log() -> String {
    let pem = format!("-----BEGIN PRIVATE KEY-----\n{PEM_LINE}\n-----END PRIVATE KEY-----\n");
    format!(
        "the first line stays\n{KEY}\nthe passphrase is {PASSPHRASE} and {VARIABLE}\nsent {AGENT_TOKEN} and {AWS_SECRET}\n\
         {pem}{{\"token\":\"{PLANTED}-in-json\"}}\nlease renew --token {PLANTED}-as-option\nAuthorization: Bearer {PLANTED}\n\
         connect s3://user:{PLANTED}@store/p password={PLANTED}\nvariable {PLANTED}-in-aws\nthe last line stays\n"
    )
}

#[tokio::test]
async fn no_secret_gets_into_a_bundle() {
    let (_world, api) = cluster().await;
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path();
    let (key, phrase) = (secret(at, "key", KEY), secret(at, "phrase", PASSPHRASE));
    let keys = format!("[default]\naws_access_key_id = AKIAPLANTED\naws_secret_access_key = {AWS_SECRET}\n");
    let credentials = secret(at, "credentials", &keys);
    let token = secret(at, "token", AGENT_TOKEN);
    let gateway = format!(
        "nbd_unix = \"/run/nbd.sock\"\ndata_dir = {:?}\n[key]\nfile = {key:?}\n[key_previous]\npassphrase_file = {phrase:?}\n\
         [store]\nendpoint = \"https://user:{PLANTED}@s3.example\"\ncredentials_file = {credentials:?}\n",
        at.join("data")
    );
    let gateway = secret(at, "gateway.toml", &gateway);
    let agent = format!("name = \"db1\"\n[http]\ntoken_file = {token:?}\ncommand = [\"/bin/unwrap\", \"{PLANTED}\"]\n");
    let agent = secret(at, "agent.toml", &agent);
    let (log, file) = (secret(at, "g1.log", &log()), at.join("support.tar.gz"));
    let file_text = file.display().to_string();
    let args = ["support-bundle", "--file", &file_text, "--config", &gateway, "--agent-config", &agent];
    let args = [&args[..], &["--include-log", &log, "--timeout", "5s"]].concat();
    let output = holdfast(&api, &args).await;
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let left = std::fs::read_dir(at)
        .unwrap()
        .filter(|entry| entry.as_ref().unwrap().file_name().to_string_lossy().starts_with(".holdfast-support"));
    assert_eq!(left.count(), 0, "what was written for tar is deleted");
    // All files of the archive, one after the other.
    let unpacked = std::process::Command::new("tar").args(["-xzOf", &file_text]).output().unwrap();
    let text = String::from_utf8(unpacked.stdout).unwrap();
    for kept in [
        "the first line stays",
        "the last line stays",
        "\"verdict\"",
        "\"members\"",
        "token_file = ",
        "/bin/unwrap",
        "nbd_unix",
    ] {
        assert!(text.contains(kept), "{kept:?} is not in the bundle: {text}");
    }
    for secret in [&KEY[..16], PASSPHRASE, AWS_SECRET, AGENT_TOKEN, VARIABLE, PEM_LINE, PLANTED, "AKIAPLANTED"] {
        let line = text.lines().find(|line| line.contains(secret));
        assert_eq!(line, None, "{secret:?} is in the bundle");
    }
    assert!(!text.contains("could not be read, so"), "all secrets were known: {text}");
    let again = holdfast(&api, &args).await;
    assert_eq!(again.status.code(), Some(1), "an existing file is not overwritten");
    assert!(file.exists());
}

#[tokio::test]
async fn doctor_fails_for_what_is_bad_and_says_what_to_do() {
    let (_world, api) = cluster().await;
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("gateway.toml").display().to_string();
    let output = holdfast(&api, &["doctor", "--config", &missing, "--output", "json"]).await;
    assert_eq!(output.status.code(), Some(1), "{}", String::from_utf8_lossy(&output.stderr));
    let report: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(report["verdict"], "bad");
    let checks = report["checks"].as_array().unwrap();
    let of =
        |name: &str| checks.iter().find(|check| check["check"] == name).unwrap_or_else(|| panic!("{name}: {report}"));
    assert!(of("settings")["found"].as_str().unwrap().contains(&missing), "{report}");
    assert!(of("settings")["next"].as_str().unwrap().contains("sample-config"));
    assert_eq!(of("leaders")["verdict"], "ok", "the cluster was asked");
    let error: Value = serde_json::from_slice(&output.stderr).unwrap();
    assert_eq!(error["error"]["exit"], 1);
}
