//! Gathers the facts of this host, asks the other agents for theirs, and keeps the differences.

use super::{Difference, Facts, Known, Weight, compare};
use crate::client;
use crate::clock;
use crate::config::{AgentConfig, PoolKind};
use crate::process::{run, system};
use crate::seams::Dial;
use holdfast_types::sync::LockExt;
use serde::Deserialize;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use tokio::process::Command;

/// Interval between two comparisons: a host may be upgraded while its agent runs.
const INTERVAL: Duration = Duration::from_secs(60);

/// Time limit of one program, and of the answer of one agent.
const ASK_LIMIT: Duration = Duration::from_secs(5);

/// The part of another agent's `/status` that is compared.
#[derive(Deserialize)]
struct PeerStatus {
    facts: Option<Facts>,
}

/// Compares for as long as the agent runs.
pub(crate) async fn keep(config: Arc<AgentConfig>, dial: Dial, known: Arc<Mutex<Known>>) {
    let mut shown: Vec<Difference> = Vec::new();
    loop {
        let own = gather(&config).await;
        known.locked().own = Some(own.clone());
        let found = differences(&config, &dial, &own).await;
        for difference in found.iter().filter(|one| !shown.contains(*one)) {
            say(difference);
        }
        if found.is_empty() && !shown.is_empty() {
            tracing::info!("the hosts that answer no longer differ");
        }
        shown.clone_from(&found);
        known.locked().differences = found;
        tokio::time::sleep(INTERVAL).await;
    }
}

/// FACTS-F2
fn say(difference: &Difference) {
    let Difference { weight, host, words, .. } = difference;
    match weight {
        Weight::Note => tracing::info!(host, words, "hosts differ"),
        Weight::Takeover => tracing::warn!(host, words, "hosts differ: a takeover may fail"),
        Weight::Damage => tracing::error!(host, words, "hosts differ: a takeover may damage data"),
    }
}

/// Differences to all hosts that answer with facts.
async fn differences(config: &AgentConfig, dial: &Dial, own: &Facts) -> Vec<Difference> {
    let mut asked = tokio::task::JoinSet::new();
    for (host, address) in config.peers.0.clone() {
        let (dial, name, own) = (dial.clone(), config.name.clone(), own.clone());
        asked.spawn(async move {
            let begun = Instant::now();
            let answer = client::ask_over(&dial, &address, "/status", None, None, ASK_LIMIT).await.ok()?;
            let took = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
            let theirs = serde_json::from_str::<PeerStatus>(&answer.body).ok()?.facts?;
            let ours = Facts { unix_ms: clock::unix_ms(), ..own };
            Some(compare(&name, &ours, &host, &theirs, took))
        });
    }
    let mut found: Vec<Difference> = asked.join_all().await.into_iter().flatten().flatten().collect();
    found.sort();
    found
}

/// The facts of this host. A fact that cannot be found out is left empty: the start of PostgreSQL reports the cause.
async fn gather(config: &AgentConfig) -> Facts {
    let database = &config.database;
    let user = config.service.as_ref().map_or(&database.user, |service| &service.user);
    let server = database.bin_dir.join("postgres");
    let asked = async |program: &Path, args: &[&str]| {
        let mut command = Command::new(program);
        command.args(args).env("LC_ALL", "C");
        run(command, ASK_LIMIT).await.unwrap_or_default()
    };
    let program = |name: &str| std::path::PathBuf::from(system(name).as_std().get_program());
    let shown = server.display().to_string();
    let (mut zfs, mut zfs_features) = (String::new(), std::collections::BTreeSet::new());
    if config.pool.kind == PoolKind::Zfs {
        let module = Path::new("/sys/module/zfs");
        zfs = std::fs::read_to_string(module.join("version")).unwrap_or_default().trim().to_string();
        let features = std::fs::read_dir(module.join("features.pool")).into_iter().flatten();
        zfs_features.extend(features.filter_map(|entry| entry.ok()?.file_name().into_string().ok()));
    }
    let uid = asked(&program("id"), &["-u", user]).await.parse().ok();
    if config.service.is_some() {
        // Versions and libraries are compared for a PostgreSQL.
        return Facts { user: user.clone(), uid, zfs, zfs_features, ..Facts::default() };
    }
    Facts {
        postgresql: version_in(&asked(&server, &["--version"]).await),
        libc: libc_in(&asked(&program("getconf"), &["GNU_LIBC_VERSION"]).await),
        icu: icu_in(&asked(&program("ldd"), &[&shown]).await),
        user: user.clone(),
        uid,
        bin_dir: database.bin_dir.display().to_string(),
        zfs,
        zfs_features,
        unix_ms: 0,
    }
}

/// `postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)`
fn version_in(said: &str) -> String {
    let version = said.split_once("(PostgreSQL) ").and_then(|(_, rest)| rest.split_whitespace().next());
    version.unwrap_or_default().into()
}

/// `glibc 2.36`
fn libc_in(said: &str) -> String {
    said.strip_prefix("glibc ").unwrap_or_default().trim().into()
}

/// A line such as `libicui18n.so.72 => /lib/x86_64-linux-gnu/libicui18n.so.72 (0x…)`.
fn icu_in(said: &str) -> String {
    let mut names = said.lines().filter_map(|line| line.split_whitespace().next());
    names.find(|name| name.starts_with("libicui18n.so")).unwrap_or_default().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_tell_their_versions() {
        assert_eq!(version_in("postgres (PostgreSQL) 15.14 (Debian 15.14-0+deb12u1)"), "15.14");
        assert_eq!(version_in("postgres (PostgreSQL) 17beta1"), "17beta1");
        assert_eq!(version_in("bash: postgres: not found"), "");
        assert_eq!((libc_in("glibc 2.36").as_str(), libc_in("getconf: no").as_str()), ("2.36", ""));
        let ldd = "\tlinux-vdso.so.1 (0x7ffd)\n\tlibicuuc.so.72 => /lib/libicuuc.so.72 (0x7f)\n\tlibicui18n.so.72 => /lib/libicui18n.so.72 (0x7f)\n";
        assert_eq!((icu_in(ldd).as_str(), icu_in("not a dynamic executable").as_str()), ("libicui18n.so.72", ""));
    }

    /// FACTS-F1: one agent has another major version, one shows no facts, one does not answer.
    #[tokio::test]
    async fn hosts_that_tell_their_facts_are_compared() {
        use crate::seams::Wire;
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let dial: Dial = Arc::new(|address| {
            Box::pin(async move {
                let theirs = Facts { postgresql: "16.1".into(), ..Facts::default() };
                let body = match address.as_str() {
                    "db2:8008" => serde_json::json!({ "name": "db2", "facts": theirs }),
                    "db3:8008" => serde_json::json!({ "name": "db3" }),
                    _ => return Err(std::io::ErrorKind::ConnectionRefused.into()),
                };
                let (ours, mut wire) = tokio::io::duplex(4096);
                tokio::spawn(async move {
                    let mut request = [0; 1024];
                    let read = wire.read(&mut request).await.unwrap();
                    assert!(request[..read].starts_with(b"GET /status "));
                    wire.write_all(format!("HTTP/1.1 200 OK\r\n\r\n{body}").as_bytes()).await.unwrap();
                });
                Ok(Box::new(ours) as Box<dyn Wire>)
            })
        });
        let mut config = AgentConfig { name: "db1".into(), ..AgentConfig::default() };
        config.peers.0 = ["db2", "db3", "db4"].map(|name| (name.to_string(), format!("{name}:8008"))).into();
        let own = Facts { postgresql: "15.14".into(), ..Facts::default() };
        let found = differences(&config, &dial, &own).await;
        let shown: Vec<_> = found.iter().map(|one| (one.host.as_str(), one.fact.as_str(), one.weight)).collect();
        assert_eq!(shown, [("db2", "postgresql", Weight::Damage)]);
    }

    #[tokio::test]
    async fn a_host_knows_its_user_and_names_nothing_that_it_does_not_know() {
        let mut config = AgentConfig::default();
        config.database.user = "root".into();
        config.database.bin_dir = "/nonexistent".into();
        let facts = gather(&config).await;
        assert_eq!((facts.uid, facts.user.as_str(), facts.postgresql.as_str()), (Some(0), "root", ""));
        assert_eq!(facts.bin_dir, "/nonexistent");
    }
}
