//! Where a command has the cluster key from.

use crate::commands::error;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Nobody is asked.
const NO_GATEWAY: &str = "127.0.0.1:1";

/// A key file of this user alone.
pub fn write_key(path: &Path) {
    std::fs::write(path, [7; 32]).unwrap();
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).unwrap();
}

/// Settings of a gateway with this section `[key]`.
fn settings(dir: &Path, key: &str) -> String {
    let path = dir.join("gateway.toml");
    std::fs::write(&path, format!("nbd_unix = \"/run/nbd.sock\"\n[key]\n{key}\n")).unwrap();
    path.to_str().unwrap().to_string()
}

#[tokio::test]
async fn an_envelope_is_made_by_a_service_and_over_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("envelope");
    let command = format!("command = [\"/bin/cat\"]\nenvelope = {path:?}");
    for (key, exit, says) in [
        ("file = \"/k\"", 2, "found no envelope in [key]"),
        ("command = [\"/bin/cat\"]", 2, "found no envelope in [key]"),
        (command.as_str(), 1, "opens an envelope and makes none"),
    ] {
        let config = settings(dir.path(), key);
        let told = error(exit, NO_GATEWAY, &["key", "envelope", "--config", &config]).await;
        assert!(told["message"].as_str().unwrap().contains(says), "{told}");
        assert!(!path.exists(), "{key}");
    }
    std::fs::write(&path, "the only one").unwrap();
    let config = settings(dir.path(), &command);
    let told = error(3, NO_GATEWAY, &["key", "envelope", "--config", &config]).await;
    assert!(told["message"].as_str().unwrap().contains("found a file, expected none"), "{told}");
    assert_eq!(std::fs::read_to_string(&path).unwrap(), "the only one");
}

/// SECRET-F1, and a key from a gateway's settings.
#[tokio::test]
async fn a_key_of_a_recovery_comes_from_settings_too_and_from_no_file_of_others() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("key");
    write_key(&path);
    let store = format!("file://{}", dir.path().join("store").display());
    let config = settings(dir.path(), &format!("command = [\"/bin/cat\"]\nenvelope = {path:?}"));
    let by_settings = ["verify", "--store", &store, "--key-config", &config];
    let by_file = ["verify", "--store", &store, "--key-file", path.to_str().unwrap()];
    for args in [by_settings, by_file] {
        // The key was loaded, and there is no store.
        let told = error(2, NO_GATEWAY, &args).await;
        assert!(told["message"].as_str().unwrap().contains("is not there"), "{told}");
    }
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
    let told = error(2, NO_GATEWAY, &by_file).await;
    assert!(told["message"].as_str().unwrap().contains("found mode 0644"), "{told}");
}

/// A new key in its place would be that of a second authority.
#[tokio::test]
async fn an_authoritys_key_that_others_can_read_is_kept_and_gets_another_mode() {
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("ca.key");
    write_key(&key);
    std::fs::set_permissions(&key, std::fs::Permissions::from_mode(0o640)).unwrap();
    let (dir, key) = (dir.path().to_str().unwrap(), key.to_str().unwrap());
    for args in [
        ["cluster", "certificates", "--dir", dir, "--admin", "ann"].as_slice(),
        &["certificate", "renew", "--dir", dir, "g1"],
    ] {
        let told = error(1, NO_GATEWAY, args).await;
        assert!(told["message"].as_str().unwrap().contains("found mode 0640"), "{told}");
        let next = told["next"].as_str().unwrap();
        assert!(next.contains(&format!("chmod 600 {key}")) && !next.contains("create it again"), "{told}");
    }
}

/// A command that has the cluster key in its memory writes no core dump; what it starts inherits that.
#[tokio::test]
async fn a_verify_writes_no_core_dump() {
    let dir = tempfile::tempdir().unwrap();
    let (path, seen) = (dir.path().join("key"), dir.path().join("limit"));
    write_key(&path);
    let store = format!("file://{}", dir.path().join("store").display());
    let command = format!("ulimit -H -c > {}; cat", seen.display());
    let config = settings(dir.path(), &format!("command = [\"/bin/sh\", \"-c\", {command:?}]\nenvelope = {path:?}"));
    error(2, NO_GATEWAY, &["verify", "--store", &store, "--key-config", &config]).await;
    assert_eq!(std::fs::read_to_string(&seen).unwrap(), "0\n");
}

/// The soft limit of a process's core dumps, as the kernel prints it. Also of one that has ended and is not waited for.
fn core_limit(pid: u32) -> String {
    let text = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("Max core file size"));
    line.and_then(|line| line.split_whitespace().next()).unwrap_or_default().to_string()
}

/// Gives this process, and all that it starts, a soft limit of core dumps that is not 0: a limit of 0 shows nothing
/// where it was 0 before. Returns whether the hard limit allows it.
fn core_dumps_allowed() -> bool {
    let limit = Rlimit { current: Some(4096), ..getrlimit(Resource::Core) };
    setrlimit(Resource::Core, limit).is_ok()
}

/// How long a start may take on a machine whose disk is busy.
const START_LIMIT: Duration = Duration::from_secs(120);

/// Name and state of a process, and what it waits for in the kernel, for whoever reads about a failure.
fn process_state(pid: u32) -> String {
    let of =
        |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_else(|error| error.to_string());
    let status = of("status").lines().take(3).collect::<Vec<_>>().join(", ");
    format!("{status}; in the kernel: {}", of("wchan"))
}

/// Keys of authorities and of certificates, tokens: each of these commands has some of them in its memory for a while.
#[test]
fn commands_with_secrets_write_no_core_dump() {
    let dir = tempfile::tempdir().unwrap();
    // Nobody writes to it: whoever reads it waits.
    let pipe = dir.path().join("ca.key");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let (dir, pipe) = (dir.path().to_str().unwrap(), pipe.to_str().unwrap());
    if !core_dumps_allowed() {
        return holdfast_testkit::skipped(
            "the limit of core dumps cannot be raised: the hard limit is below 4,096 bytes",
        );
    }
    for args in [
        ["cluster", "certificates", "--dir", dir, "--admin", "ann"].as_slice(),
        &["certificate", "renew", "--dir", dir, "g1"],
        &["agent", "run", "--config", pipe],
        &["standby", "run", "--config", pipe],
    ] {
        let mut command = Command::new(env!("CARGO_BIN_EXE_holdfast"));
        let mut child = command.args(args).stdin(Stdio::null()).stdout(Stdio::null()).spawn().unwrap();
        // A start takes milliseconds. CI saw one of 20 s, and nothing else was slow then.
        let (begun, pid) = (Instant::now(), child.id());
        while core_limit(pid) != "0" && !process_state(pid).contains("Z (") && begun.elapsed() < START_LIMIT {
            std::thread::sleep(Duration::from_millis(10));
        }
        let (found, state) = (core_limit(pid), process_state(pid));
        child.kill().unwrap();
        let ended = child.wait().unwrap();
        assert_eq!(found, "0", "{args:?}: {state}; {ended}");
    }
}
