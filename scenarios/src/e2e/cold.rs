//! Reads of data that is only in the store, with the number of store requests. Sequential and strided reads are read
//! ahead, so that they do not wait for one answer after the other; random reads cost no extra request; NBD CACHE loads
//! the given range. Uploaded data is read without a request at the gateway that uploaded it, and after a takeover if
//! followers warm their cache. Hot data stays in the cache during a backup of several times the cache size.

use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, Options, SET};
use crate::faults::{Fault, Proxy, only};
use crate::nbd::{Client, NbdError, nbdsh, pattern};
use crate::process::wait_until;
use crate::s3::S3;
use crate::say::note;
use crate::web::page;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::path::Path;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const SIZE_MIB: u64 = 32;
/// Size of one read: an extent.
const READ: u64 = 128 << 10;
const EXTENTS: u64 = SIZE_MIB * MIB / READ;
/// Requests other than those for extents: head, root, pages, and checks of the head.
const BESIDE: u64 = 24;
const SCATTERED: u64 = 48;
/// Distance between strided reads: too far to count as sequential.
const STRIDE: u64 = 12;

/// A volume of three times the smallest disk cache, and its hot part: scattered extents, each far from the next.
const BACKED_UP_MIB: u64 = 192;
const HOT: u64 = 96;
const HOT_STEP: u64 = 7;

/// On a machine that is too busy for heartbeats the leader changes, and with it the cache under test.
const ROUNDS_MAX: u32 = 4;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut round = 1;
    loop {
        let dir = lab.dir.join(format!("round{round}"));
        std::fs::create_dir_all(&dir)?;
        match look(lab, &dir) {
            Err(e) if round < ROUNDS_MAX && gone(&e) => {
                note(format!("leadership moved in round {round}: {e}"));
                round += 1;
            }
            done => break done?,
        }
    }
    whole(lab, "kept", |dir| Ok(kept(lab, dir)?.then_some(())))?;
    whole(lab, "scanned", |dir| Ok(scanned(lab, dir)?.then_some(())))?;
    let cold = whole(lab, "cold", |dir| taken_over(lab, dir, "0B"))?;
    anyhow::ensure!(cold >= EXTENTS, "found {cold} requests for {EXTENTS} uncached extents, expected one for each");
    let warm = whole(lab, "warm", |dir| taken_over(lab, dir, "64MiB"))?;
    note(format!("after a takeover: {EXTENTS} reads, {cold} requests; {warm} where the follower had brought it in"));
    anyhow::ensure!(warm <= BESIDE, "{warm} requests, expected {BESIDE} at most: the follower was cold");
    Ok(())
}

fn gone(error: &anyhow::Error) -> bool {
    error.downcast_ref().is_some_and(|error| matches!(error, NbdError::Gone(_)))
}

/// Repeats `look` until the disk was fast enough to keep everything, with one leader all the time.
fn whole<T>(lab: &Lab, name: &str, look: impl Fn(&Path) -> Result<Option<T>>) -> Result<T> {
    for round in 1..=ROUNDS_MAX {
        let dir = lab.dir.join(format!("{name}{round}"));
        std::fs::create_dir_all(&dir)?;
        match look(&dir) {
            Ok(Some(done)) => return Ok(done),
            Ok(None) => {}
            Err(e) if gone(&e) => note(format!("leadership moved in round {round} of {name}: {e}")),
            Err(e) => return Err(e),
        }
    }
    anyhow::bail!(
        "{name}: in each of {ROUNDS_MAX} rounds the leader changed, or a part of the upload did not go into the disk cache"
    )
}

/// No checkpoint by itself, and room for everything in memory.
const PLAIN: [&str; 3] = ["upload.interval_ms=3600000", "cache.memory=128MiB", "rtt_ms=20"];

/// Gateways over an S3 server whose requests are counted on their way.
fn counted_cluster(
    lab: &Lab,
    dir: &Path,
    (gateways, mib): (usize, u64),
    settings: &[&str],
) -> Result<(S3, Proxy, Cluster)> {
    let s3 = S3::start(dir)?;
    let proxy = Proxy::start(&s3.address(), 0)?;
    let (dir, store, env) = (dir.join("cluster"), Some(s3.url_by(proxy.address())), s3.env());
    let cluster = Cluster::start(Options { dir, gateways, store, env, ..lab.options(&format!("{mib}MiB"), settings) })?;
    Ok((s3, proxy, cluster))
}

/// Writes this many extents, and uploads them. Returns the serving gateway, and the client.
fn fill(cluster: &mut Cluster, extents: u64) -> Result<(usize, Client)> {
    let (serving, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    for number in 0..extents {
        client.write(number * READ, &pattern(1, number * READ, READ as usize))?;
    }
    client.flush()?;
    cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "60s"])?;
    Ok((serving, client))
}

/// Number of requests for reading everything at the gateway that takes over. `None`: a slow disk left something out, or
/// the leader changed by itself.
fn taken_over(lab: &Lab, dir: &Path, rate: &str) -> Result<Option<u64>> {
    let rate_of = format!("cache.warm_bytes_per_second={rate}");
    let settings = [&PLAIN[..], &["cache.read_ahead=0B", rate_of.as_str()]].concat();
    let (_s3, proxy, mut cluster) = counted_cluster(lab, dir, (3, SIZE_MIB), &settings)?;
    let (leader, client) = fill(&mut cluster, EXTENTS)?;
    let uploaded = format!("holdfast_uploaded_bytes_total{{set=\"{SET}\"}}");
    let uploaded = counted(&cluster.metrics_address(leader)?, &uploaded)?;
    client.disconnect();
    if uploaded == 0 || !cluster.leaders()?.contains(&cluster.name(leader)) {
        note("leadership moved before the checkpoint");
        cluster.stop()?;
        return Ok(None);
    }
    if rate != "0B" {
        for follower in cluster.others(leader) {
            let metrics = cluster.metrics_address(follower)?;
            let of = |what: &str| counted(&metrics, &format!("holdfast_warm_{what}_total{{set=\"{SET}\"}}"));
            let kept = || counted(&metrics, "holdfast_cache_kept_bytes_total{kind=\"extents\"}");
            // There may be more than one checkpoint: a journal on a slow disk is freed early.
            let whole = || kept().is_ok_and(|kept| kept >= uploaded - uploaded / 50);
            // Counted at its end, a little after the last part is kept.
            let gone_through = || of("checkpoints").is_ok_and(|checkpoints| checkpoints >= 1);
            let left_out = || of("left_out_bytes").is_ok_and(|bytes| bytes > 0);
            let ended = wait_until(Duration::from_secs(60), || gone_through() && whole() || left_out());
            anyhow::ensure!(ended || gone_through(), "{}: no checkpoint was brought in", cluster.name(follower));
            let kept = kept()?;
            let (requests, bytes, left_out) = (of("requests")?, of("bytes")?, of("left_out_bytes")?);
            note(format!("{}: {requests} requests, {bytes} bytes, {kept} kept", cluster.name(follower)));
            // Whole segments, not one request for each extent.
            anyhow::ensure!(requests <= BESIDE, "{requests} requests for {uploaded} bytes in segments");
            if left_out > 0 || kept < uploaded - uploaded / 50 {
                note(format!("{kept} of {uploaded} bytes are kept, {left_out} left out"));
                cluster.stop()?;
                return Ok(None);
            }
        }
    }
    if !cluster.leaders()?.contains(&cluster.name(leader)) {
        note("leadership moved before the kill");
        cluster.stop()?;
        return Ok(None);
    }
    cluster.kill(leader)?;
    let before = proxy.asked();
    let (taker, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    for number in 0..EXTENTS {
        read(&mut client, number)?;
    }
    let asked = proxy.asked() - before;
    client.disconnect();
    answers(&cluster, taker, rate)?;
    cluster.stop()?;
    Ok((taker != leader).then_some(asked))
}

/// `cluster status` shows where these reads were answered.
fn answers(cluster: &Cluster, taker: usize, rate: &str) -> Result<()> {
    let status = cluster.holdfast(&["cluster", "status"])?;
    let members = status["members"].as_array().context("members")?;
    let taker = members.iter().find(|member| member["member"]["name"] == cluster.name(taker)).context("the taker")?;
    let found = &taker["node"]["reads"]["since_start"];
    let count = |of: &str| found[of].as_u64().with_context(|| format!("{of} in {found}"));
    let (store, disk) = (count("store")?, count("disk")?);
    note(format!("cluster status: {found}"));
    let expected = if rate == "0B" { store } else { disk };
    anyhow::ensure!(expected >= EXTENTS, "{found}: expected {EXTENTS} and more from where they were");
    Ok(())
}

/// A checkpoint's upload is in the disk cache: it is read without a request, also after a restart. `false`: a slow disk
/// left something out.
fn kept(lab: &Lab, dir: &Path) -> Result<bool> {
    let settings = [&PLAIN[..], &["cache.read_ahead=0B"]].concat();
    let (_s3, proxy, mut cluster) = counted_cluster(lab, dir, (1, SIZE_MIB), &settings)?;
    let (_, mut client) = fill(&mut cluster, EXTENTS)?;
    let metrics = cluster.metrics_address(0)?;
    let kept = counted(&metrics, "holdfast_cache_kept_bytes_total{kind=\"extents\"}")?;
    let uploaded = counted(&metrics, &format!("holdfast_uploaded_bytes_total{{set=\"{SET}\"}}"))?;
    // Both are compressed and sealed; the upload also has headers and tables.
    if kept < uploaded - uploaded / 50 {
        note(format!("{kept} of {uploaded} bytes are kept: the disk is behind"));
        cluster.stop()?;
        return Ok(false);
    }
    let before = proxy.asked();
    for number in 0..EXTENTS / 2 {
        read(&mut client, number)?;
    }
    let asked = proxy.asked() - before;
    client.disconnect();

    let mut cluster = cluster.stop()?.start()?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    let before = proxy.asked();
    for number in EXTENTS / 2..EXTENTS {
        read(&mut client, number)?;
    }
    let later = proxy.asked() - before;
    client.disconnect();
    cluster.stop()?;
    note(format!("data just uploaded: {} reads, {asked} requests; after a restart {later}", EXTENTS / 2));
    anyhow::ensure!(
        asked.max(later) <= BESIDE,
        "{asked} and {later} requests, expected {BESIDE} at most: nothing is kept"
    );
    Ok(true)
}

/// A backup reads everything once, three times the disk cache's size; hot data stays hot. `false`: a slow disk left
/// something out.
fn scanned(lab: &Lab, dir: &Path) -> Result<bool> {
    let settings = [
        "upload.interval_ms=3600000",
        "upload.bytes=64MiB",
        "cache.memory=32MiB",
        "cache.disk=64MiB",
        // Otherwise the last uploads fill it, whether read or not.
        "cache.keep_uploaded=false",
        "scrub.bytes_per_second=0B",
        "rtt_ms=20",
    ];
    let (_s3, proxy, mut cluster) = counted_cluster(lab, dir, (1, BACKED_UP_MIB), &settings)?;
    let extents = BACKED_UP_MIB * MIB / READ;
    let (_, client) = fill(&mut cluster, extents)?;
    client.disconnect();

    let mut cluster = cluster.stop()?.start()?;
    let metrics = cluster.metrics_address(0)?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    // Each step differs from the one before: equal steps would start read-ahead.
    let hot: Vec<u64> =
        (0..HOT).map(|n| (n * n * HOT_STEP + n) % extents).collect::<BTreeSet<_>>().into_iter().collect();
    let all = |client: &mut Client| hot.iter().rev().try_for_each(|number| read(client, *number));
    all(&mut client)?;
    let admitted = || counted(&metrics, "holdfast_cache_admitted_bytes_total{kind=\"extents\"}");
    let bytes = hot.len() as u64 * READ / 2;
    if !wait_until(Duration::from_secs(30), || admitted().is_ok_and(|admitted| admitted >= bytes)) {
        note(format!("{} of {bytes} bytes and more are on the disk: it is behind", admitted()?));
        cluster.stop()?;
        return Ok(false);
    }
    let before = proxy.asked();
    for number in 0..extents {
        read(&mut client, number)?;
    }
    let backup = proxy.asked() - before;
    let before = proxy.asked();
    all(&mut client)?;
    let after = proxy.asked() - before;
    client.disconnect();
    cluster.stop()?;
    note(format!(
        "{} extents that are read again and again: {after} requests for them after a backup of {BACKED_UP_MIB} MiB ({backup} requests) past 64 MiB of disk and 32 of memory",
        hot.len()
    ));
    anyhow::ensure!(
        backup >= extents / 2,
        "{backup} requests for {extents} extents, expected at least half: the backed-up data was cached"
    );
    anyhow::ensure!(after <= BESIDE, "{after} requests, expected {BESIDE} at most: the backup pushed it out");
    Ok(true)
}

/// Reads of a gateway without a cache.
struct Cold {
    took: Duration,
    /// Requests to the store.
    asked: u64,
    /// Extents that were read ahead.
    ahead: u64,
}

/// Starts the gateways again, and reads these extents from the store, which is slow or not.
fn cold(cluster: Cluster, proxy: &Proxy, slow: bool, numbers: impl Iterator<Item = u64>) -> Result<(Cluster, Cold)> {
    let mut cluster = cluster.stop()?.start()?;
    let (index, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    let metrics = cluster.metrics_address(index)?;
    let before = proxy.asked();
    if slow {
        proxy.set(only(Fault::Slow));
    }
    let begun = Instant::now();
    for number in numbers {
        read(&mut client, number)?;
    }
    let took = begun.elapsed();
    proxy.set(Vec::new());
    let (asked, ahead) = (proxy.asked() - before, ahead(&metrics)?);
    client.disconnect();
    Ok((cluster, Cold { took, asked, ahead }))
}

fn look(lab: &Lab, dir: &Path) -> Result<()> {
    // The disk cache does not survive a restart, and there are no automatic checkpoints.
    let settings = [&PLAIN[..], &["cache.disk=0B"]].concat();
    let (_s3, proxy, mut cluster) = counted_cluster(lab, dir, (3, SIZE_MIB), &settings)?;
    fill(&mut cluster, EXTENTS)?.1.disconnect();

    let (cluster, Cold { took, asked, ahead }) = cold(cluster, &proxy, true, 0..EXTENTS)?;
    note(format!(
        "in order: {EXTENTS} reads of 128 KiB in {:.1} s from a slow store, {asked} requests, {ahead} read ahead",
        took.as_secs_f64()
    ));
    anyhow::ensure!(
        ahead * 4 >= EXTENTS * 3,
        "{ahead} of {EXTENTS} extents were read ahead, expected three quarters and more"
    );
    anyhow::ensure!(asked <= EXTENTS + BESIDE, "{asked} requests for {EXTENTS} extents: something was fetched twice");

    let steps = EXTENTS.div_ceil(STRIDE);
    let numbers = (0..EXTENTS).step_by(STRIDE as usize);
    let (cluster, Cold { took, asked, ahead }) = cold(cluster, &proxy, true, numbers)?;
    note(format!(
        "in equal steps: {steps} reads in {:.1} s from a slow store, {asked} requests, {ahead} read ahead",
        took.as_secs_f64()
    ));
    // Three show the way; beyond the end there is nothing.
    anyhow::ensure!(ahead * 4 >= steps * 3, "{ahead} of {steps} extents were read ahead, expected three quarters");
    anyhow::ensure!(asked <= steps + BESIDE, "{asked} requests for {steps} extents: something was fetched twice");

    // Visits each place once, neither in order nor in equal steps.
    let numbers = (0..SCATTERED).map(|n| (n * n + n) / 2 % EXTENTS);
    let (cluster, Cold { asked, ahead, .. }) = cold(cluster, &proxy, false, numbers)?;
    note(format!("scattered: {SCATTERED} reads, {asked} requests, {ahead} read ahead"));
    anyhow::ensure!(asked <= SCATTERED * 3 / 2 + BESIDE, "{asked} requests for {SCATTERED} scattered reads");

    let mut cluster = cluster.stop()?.start()?;
    let (index, client) = cluster.connect(TAKEOVER_LIMIT)?;
    client.disconnect();
    let metrics = cluster.metrics_address(index)?;
    nbdsh().args(["-u", &cluster.gateways[index].nbd.to_string(), "-c", "h.cache(4 << 20, 8 << 20)"]).run()?;
    let brought = wait_until(Duration::from_secs(20), || self::ahead(&metrics).is_ok_and(|n| n >= 32));
    anyhow::ensure!(brought, "CACHE of 4 MiB: {} extents were brought in, expected 32", self::ahead(&metrics)?);
    cluster.stop()?;
    Ok(())
}

fn read(client: &mut Client, number: u64) -> Result<()> {
    let found = client.read(number * READ, READ as u32)?;
    anyhow::ensure!(found == pattern(1, number * READ, READ as usize), "wrong data at {}", number * READ);
    Ok(())
}

fn ahead(metrics: &str) -> Result<u64> {
    counted(metrics, "holdfast_read_ahead_extents_total")
}

/// Value of a gateway's metric; 0 if it does not exist.
pub(super) fn counted(metrics: &str, name: &str) -> Result<u64> {
    let page = page(metrics, "/metrics")?;
    let line = page.lines().find(|line| line.split(' ').next() == Some(name));
    line.map_or(Ok(0), |line| Ok(line.rsplit(' ').next().context("an empty line")?.parse()?))
}
