//! S3 with its real faults, injected by a proxy: under writes, flushes and reads, with checkpoints, collection,
//! deletion and a takeover.
//!
//! ```text
//!  mixed faults ─▶ fine again ─▶ SlowDown ─▶ no answer ─▶ resets ─▶ 500 ─▶ full bucket ─▶ expired keys ─▶ wrong clock ─▶ fine again ─▶ a server that takes new keys only, new keys in
//!    the file ─▶ fine again ─▶ half a file ─▶ fine again ─▶ mixed faults, kill -9 of the leader ─▶ fine again ─▶ all read back ─▶ verify is clean, and the
//!       bucket holds what the checkpoint names, nothing else: by the sweep of the leader that gave up what failed, and once more by that of a new term
//! ```
//! No client may see an error, and the status must show the fault and its begin.

use super::blocks::{Load, Progress};
use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, Options, SET};
use crate::faults::{Fault, Proxy, mixed, only};
use crate::process::{POLL, wait_until};
use crate::s3::S3;
use crate::say::note;
use crate::web::page;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::Path;
use std::time::{Duration, Instant};

const WRITERS: u64 = 4;
/// 96 MiB in all, three times the cache: most reads need the store.
const BLOCKS_EACH: u64 = 6144;
/// Rate of each mixed fault in thousandths: about every fourth request gets a fault.
const RATE: u64 = 30;
/// Profile in the credentials file. The gateways get no keys from the environment.
const PROFILE: &str = "e2e";
/// Limit of every wait, long enough for a busy machine.
const LIMIT: Duration = Duration::from_secs(90);

pub(super) fn run(lab: &Lab) -> Result<()> {
    let seed = crate::seed::of_run()?;
    note(format!("HOLDFAST_SEED={seed}"));
    let mut s3 = S3::start(&lab.dir)?;
    secret(&lab.dir.join("credentials"), &s3.credentials(PROFILE))?;
    // A setting is an absolute path.
    let keys = lab.dir.join("credentials").canonicalize()?;
    let proxy = Proxy::start(&s3.address(), seed)?;
    let settings = [
        "upload.bytes=\"16MiB\"",
        "upload.interval_ms=700",
        "space.grace_ms=1000",
        "space.sweep_interval_ms=2000",
        "store.read_timeout_ms=2000",
        "store.write_timeout_ms=3000",
        "cache.memory=\"32MiB\"",
        "cache.disk=\"0B\"",
    ];
    let mut settings: Vec<String> = settings.map(String::from).into();
    settings.push(format!("store.credentials_file={:?}", keys.display().to_string()));
    let store = Some(format!("{}&profile={PROFILE}", s3.url_by(proxy.address())));
    let mut cluster = Cluster::start(Options { store, settings, ..lab.options("96MiB", &[]) })?;
    let mut load = Load::new(WRITERS, BLOCKS_EACH).reading();
    filled(&mut cluster, &mut load)?;
    cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "120s"])?;
    let mixed_for = Duration::from_secs(if lab.long { 120 } else { 8 });

    load.run(&cluster.exports(), |progress| {
        advances(progress, 200)?;
        proxy.set(mixed(RATE));
        wait_until(mixed_for, || false);
        // A fault that did not occur shows nothing. Each occurs as long as matching requests arrive: uncached reads and
        // sweeps do.
        let missing = || -> Vec<Fault> {
            let played = proxy.played();
            Fault::MIXED.into_iter().filter(|fault| !played.contains_key(fault)).collect()
        };
        anyhow::ensure!(wait_until(LIMIT, || missing().is_empty()), "never played: {:?}", missing());
        advances(progress, 20).context("under mixed faults")?;
        // Before faults that need an administrator: their report has precedence for half a minute (`LEADS_MS` of the
        // store's health).
        proxy.set(Vec::new());
        fine_again(&cluster).context("after mixed faults")?;
        proxy.set(only(Fault::SlowDown));
        told(&cluster, "throttled")?;
        wait_until(mixed_for, || false);
        for (fault, kind) in TOLD {
            proxy.set(only(fault));
            told(&cluster, kind)?;
        }
        proxy.set(Vec::new());
        fine_again(&cluster)?;
        new_keys(&cluster, &mut s3, &keys, progress)?;
        proxy.set(mixed(RATE));
        let leader = leader(&cluster)?;
        cluster.kill(leader)?;
        advances(progress, 100).context("after the takeover")?;
        wait_until(mixed_for / 2, || false);
        cluster.restart(leader)?;
        proxy.set(Vec::new());
        fine_again(&cluster)?;
        advances(progress, 100)
    })?;
    let progress = load.progress();
    note(format!(
        "{} pairs and reads, slowest {:.1} s, {} connections closed and reopened",
        progress.answered(),
        progress.slowest().as_secs_f64(),
        progress.reconnected()
    ));
    let played: Vec<String> = proxy.played().iter().map(|(fault, times)| format!("{fault:?} {times}")).collect();
    note(format!("{} requests; played: {}", proxy.asked(), played.join(", ")));

    cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "60s"])?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    load.check(&mut client).context("from the store")?;
    drop(client);
    // A checkpoint has ended since: this leader finds the objects that failed before it in this term (SPACE-G4).
    nothing_left_over(&cluster, &s3, &keys).context("by the leader that gave it up")?;
    // The next leader finds the rest.
    let leader = leader(&cluster)?;
    cluster.kill(leader)?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    load.write(&mut client, 4)?;
    load.check(&mut client).context("after another takeover")?;
    cluster.restart(leader)?;
    nothing_left_over(&cluster, &s3, &keys).context("by another leader")?;
    load.check(&mut client).context("in the end")?;
    client.disconnect();
    cluster.stop()?;
    Ok(())
}

/// On a busy machine the leader may change: then it repeats the check with the new leader.
fn filled(cluster: &mut Cluster, load: &mut Load) -> Result<()> {
    let begun = Instant::now();
    loop {
        let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
        match load.fill(&mut client) {
            Ok(()) => {
                client.disconnect();
                return Ok(());
            }
            Err(e) if begun.elapsed() > LIMIT => return Err(e),
            Err(_) => {}
        }
    }
}

/// The writers get `more` answers; the time is not checked.
fn advances(progress: &Progress, more: u64) -> Result<()> {
    let before = progress.answered();
    anyhow::ensure!(
        wait_until(LIMIT, || progress.answered() >= before + more),
        "{} answers in {LIMIT:?}, expected {more}",
        progress.answered() - before
    );
    Ok(())
}

fn show(cluster: &Cluster) -> Result<Value> {
    cluster.holdfast(&["set", "show", SET])
}

fn leader(cluster: &Cluster) -> Result<usize> {
    let begun = Instant::now();
    loop {
        let named = show(cluster).ok().and_then(|set| Some(set["leader"]["name"].as_str()?.to_owned()));
        let index = named.and_then(|name| (0..cluster.gateways.len()).find(|index| cluster.name(*index) == name));
        match index {
            Some(index) => return Ok(index),
            None if begun.elapsed() > TAKEOVER_LIMIT => bail!("{SET} has no leader"),
            None => std::thread::sleep(POLL),
        }
    }
}

/// Faults that are injected alone, and the expected status. First those that go away by themselves.
const TOLD: [(Fault, &str); 6] = [
    (Fault::Hang, "no-answer"),
    (Fault::Reset, "broken"),
    (Fault::Failing, "failing"),
    (Fault::Full, "full"),
    (Fault::Expired, "credentials"),
    (Fault::Skewed, "clock"),
];

/// Status, and `/healthz` of the leader, show this kind of fault, its begin and the waiting bytes; the set keeps
/// working.
fn told(cluster: &Cluster, kind: &str) -> Result<()> {
    let begun = Instant::now();
    loop {
        // The leader may change on a busy machine: then the next one reports it.
        match tells(cluster, kind) {
            Ok(backlog) => {
                let took = begun.elapsed().as_secs_f64();
                note(format!("{kind}: reported after {took:.1} s, {} KiB not stored yet", backlog >> 10));
                return Ok(());
            }
            Err(e) if begun.elapsed() > LIMIT => return Err(e).with_context(|| format!("{kind} after {LIMIT:?}")),
            Err(_) => std::thread::sleep(POLL),
        }
    }
}

/// Bytes in the journal that wait for upload, if all gateways report it.
fn tells(cluster: &Cluster, kind: &str) -> Result<u64> {
    let shown = show(cluster)?;
    let (health, now) = (&shown["store_health"], &shown["store_health"]["now"]);
    let acts = ["full", "credentials", "clock"].contains(&kind);
    anyhow::ensure!(
        now["kind"] == kind && now["since_unix_ms"].as_u64() > Some(0) && now["needs_operator"] == acts,
        "status says {health}"
    );
    let status = cluster.holdfast(&["cluster", "status"])?;
    let name = &shown["leader"]["name"];
    let members = status["members"].as_array().context("status without members")?;
    let node = members.iter().map(|m| &m["node"]).find(|node| &node["name"] == name).context("the leader's node")?;
    let page = page(node["addresses"]["http"].as_str().unwrap_or_default(), "/healthz")?;
    let warns = page.starts_with("HTTP/1.1 200") && page.contains(&format!("warning: set {SET}: store "));
    anyhow::ensure!(warns, "/healthz does not warn: {page}");
    health["backlog_bytes"].as_u64().context("no backlog in the status")
}

/// Writes a file that its user alone can read. Another one would not be used.
fn secret(file: &Path, text: &str) -> Result<()> {
    std::fs::write(file, text)?;
    Ok(std::fs::set_permissions(file, std::os::unix::fs::PermissionsExt::from_mode(0o600))?)
}

/// The server changes its keys, and no gateway is restarted. Reads from the store wait for the new keys, so the writers
/// are not checked before.
fn new_keys(cluster: &Cluster, s3: &mut S3, file: &Path, progress: &Progress) -> Result<()> {
    s3.rekey("holdfast-second", "holdfast-second-secret")?;
    told(cluster, "credentials")?;
    let (whole, beside) = (s3.credentials(PROFILE), file.with_extension("new"));
    secret(&beside, &whole)?;
    std::fs::rename(&beside, file)?;
    fine_again(cluster).context("with new keys in the file")?;
    advances(progress, 50).context("with new keys")?;
    // As a killed writer leaves it: the old keys still work, and yet the fault is reported.
    std::fs::write(file, &whole[..whole.len() / 2])?;
    told(cluster, "credentials").context("half a file")?;
    advances(progress, 50).context("with half a file")?;
    std::fs::write(file, &whole)?;
    fine_again(cluster).context("with the whole file")
}

fn fine_again(cluster: &Cluster) -> Result<()> {
    let mut last = Value::Null;
    let fine = wait_until(LIMIT, || {
        last = show(cluster).unwrap_or_default();
        last["store_health"].is_object() && last["store_health"]["now"].is_null()
    });
    anyhow::ensure!(fine, "status still reports {}", last["store_health"]["now"]);
    Ok(())
}

/// Waits until the bucket has exactly the objects that the checkpoint names, with `verify` clean. Reads bypass the
/// proxy.
fn nothing_left_over(cluster: &Cluster, s3: &S3, keys: &Path) -> Result<()> {
    let (store, key) =
        (format!("{}&profile={PROFILE}", s3.url()), cluster.options.dir.join("cluster.key").display().to_string());
    let keys = keys.display().to_string();
    let verify = ["verify", "--store", &store, "--key-file", &key, "--credentials-file", &keys];
    let begun = Instant::now();
    loop {
        // While objects are replaced, one that was just named may be gone: then the next check counts.
        let said = cluster.holdfast(&verify);
        let there = objects(&s3.folder().join("sets/1"));
        let late = begun.elapsed() > LIMIT;
        match said {
            Ok(said) => {
                let named = said["sets"][0]["objects"].as_u64().context("verify without objects")?;
                if named == there && said["clean"] == true {
                    note(format!("verify is clean; the bucket holds the {there} objects that the checkpoint names"));
                    return Ok(());
                }
                anyhow::ensure!(!late, "the bucket holds {there} objects of the set, its checkpoint names {named}");
            }
            Err(e) if late => return Err(e),
            Err(_) => {}
        }
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// Files of the set except its head.
fn objects(set: &Path) -> u64 {
    let count = |kind: &str| std::fs::read_dir(set.join(kind)).map_or(0, |entries| entries.flatten().count() as u64);
    ["seg", "map", "root"].map(count).iter().sum()
}
