//! Counts the store requests of an idle set. Also checks that after an idle time the gateway still reads the head
//! before it answers: saving requests must not weaken that fence.

use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, SET};
use crate::faults::Proxy;
use crate::nbd::{Client, pattern};
use crate::process::wait_until;
use crate::s3::S3;
use crate::say::note;
use anyhow::Result;
use std::time::{Duration, Instant};

/// After the last answer the gateway reads the head often for some time.
const SETTLE: Duration = Duration::from_secs(14);
/// How long requests are counted: longer than answers may leave after a look at the head (7 s), or HEAD-H1 would ask
/// for none.
const WATCHED: Duration = Duration::from_secs(12);
const WATCHED_LONG: Duration = Duration::from_secs(30);
/// At most one read of the head may fall into the observed time: they are two minutes apart or more.
const IDLE_REQUESTS_MAX: usize = 1;
const ROUNDS_MAX: u32 = 4;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let s3 = S3::start(&lab.dir)?;
    let proxy = Proxy::start(&s3.address(), 0)?;
    // No automatic checkpoint: its requests would be counted. No cache warming of followers either.
    let settings = ["upload.interval_ms=3600000", "cache.warm_bytes_per_second=64MiB"];
    let mut cluster = lab.cluster_as("64MiB", Some(s3.url_by(proxy.address())), &settings, s3.env())?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    for block in 0..64 {
        client.write(block * 4096, &pattern(1, block * 4096, 4096))?;
    }
    client.flush()?;
    cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "60s"])?;
    let watched = if lab.long { WATCHED_LONG } else { WATCHED };
    for round in 1.. {
        match watch(&cluster, &proxy, &mut client, watched)? {
            Some((idle, looked)) => {
                anyhow::ensure!(
                    idle.len() <= IDLE_REQUESTS_MAX,
                    "requests of an idle set, expected at most {IDLE_REQUESTS_MAX}: {idle:?}"
                );
                anyhow::ensure!(
                    looked > 0,
                    "HEAD-H1: a write was answered although the head was not read for {watched:?}"
                );
                break;
            }
            // On a machine too busy for heartbeats a new leader may read the head; that is allowed.
            None => anyhow::ensure!(round < ROUNDS_MAX, "leadership moved in each of {ROUNDS_MAX} rounds"),
        }
        client = cluster.connect(TAKEOVER_LIMIT)?.1;
    }
    client.disconnect();
    cluster.stop()?;
    Ok(())
}

/// Requests during the idle time, and those of the first write after it; nothing if the leader changed meanwhile.
fn watch(
    cluster: &Cluster,
    proxy: &Proxy,
    client: &mut Client,
    length: Duration,
) -> Result<Option<(Vec<String>, u64)>> {
    let term = || cluster.holdfast(&["set", "show", SET]).map(|set| set["term"].clone());
    wait_until(SETTLE, || false);
    let led = term()?;
    let (before, begun) = (proxy.asked(), Instant::now());
    wait_until(length, || false);
    let (idle, watched) = (proxy.asked() - before, begun.elapsed());
    let recent = proxy.recent(idle);
    let (before, begun) = (proxy.asked(), Instant::now());
    let written = client.write(0, &pattern(2, 0, 4096));
    let (looked, took) = (proxy.asked() - before, begun.elapsed());
    if written.is_err() || term()? != led {
        return Ok(None);
    }
    note(format!(
        "{idle} requests in {:.0} s of an idle set with an open connection, three gateways",
        watched.as_secs_f64()
    ));
    note(format!("the first write after that: {:.1} ms, {looked} request", took.as_secs_f64() * 1e3));
    Ok(Some((recent, looked)))
}
