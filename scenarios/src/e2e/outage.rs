//! S3 stops under load and starts again: clients see no error, and the whole backlog is uploaded afterwards.

use super::blocks::Load;
use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, SET};
use crate::process::wait_until;
use crate::s3::S3;
use crate::say::note;
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

const WRITERS: u64 = 4;
/// Twice the size of a segment, in a part of the volume that is small enough to be written nearly everywhere: then
/// neighbours share an extent, and reading it back takes less than one request per block.
const BLOCKS_EACH: u64 = 2 * 1024;

/// No single answer may take longer than this while S3 is away: writers are slowed by a filling journal, not stopped
/// (R8).
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

/// Time between two checkpoints. One begins before S3 is stopped, or is tried without it; the last one, for which the
/// drain waits, begins soon after the last write.
const INTERVAL: &str = "upload.interval_ms=4000";

/// Limit until the backlog is empty: the interval between two checkpoints, and one checkpoint.
const DRAIN_LIMIT: Duration = Duration::from_secs(120);
/// Pause between two status requests; each is a process.
const LOOK: Duration = Duration::from_millis(100);

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut s3 = S3::start(&lab.dir)?;
    let mut cluster = lab.cluster_as("512MiB", Some(s3.url()), &[INTERVAL], s3.env())?;
    let mut load = Load::new(WRITERS, BLOCKS_EACH);
    let outage = Duration::from_secs(if lab.long { 120 } else { 10 });
    let (before, during, stored, waiting) = load.run(&cluster.exports(), |progress| {
        wait_until(Duration::from_secs(3), || false);
        let before = progress.answered();
        s3.stop()?;
        wait_until(outage, || false);
        let during = progress.answered() - before;
        let (stored, waiting) = (s3.stored_bytes(), backlog(&cluster)?);
        s3.resume()?;
        wait_until(Duration::from_secs(3), || false);
        Ok((before, during, stored, waiting))
    })?;
    let (slowest, again) = (load.progress().slowest(), load.progress().reconnected());
    note(format!(
        "{before} pairs before, {during} in {outage:?} without S3; slowest {:.0} ms",
        slowest.as_secs_f64() * 1e3
    ));
    note(format!("{again} connections closed and reopened"));
    anyhow::ensure!(during > 0, "no write was answered while S3 was away");
    anyhow::ensure!(slowest < ANSWER_LIMIT, "an answer took {slowest:?}");
    anyhow::ensure!(waiting > 0, "nothing waited for the store while it was away");
    let (begun, mut left) = (Instant::now(), None);
    // Without writers everything must be uploaded, not only a part.
    let drained = wait_until(DRAIN_LIMIT, || {
        std::thread::sleep(LOOK);
        left = Some(backlog(&cluster));
        matches!(left, Some(Ok(0)))
    });
    anyhow::ensure!(
        drained,
        "{DRAIN_LIMIT:?} after S3 came back there wait, in bytes: {left:?}; {waiting} did by then"
    );
    let now = s3.stored_bytes();
    anyhow::ensure!(now > stored, "nothing waits, and nothing was uploaded: {now} bytes stored, {stored} before");
    let mib = |bytes: u64| bytes as f64 / f64::from(1 << 20);
    note(format!(
        "{:.1} MiB waited when S3 came back; nothing does {:.1?} after the last write; {:.1} MiB stored, {:.1} then",
        mib(waiting),
        begun.elapsed(),
        mib(now),
        mib(stored)
    ));
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    load.check(&mut client)?;
    client.disconnect();
    // And after a restart, when the map comes from the store.
    let mut again = cluster.kill_all()?.start().context("restart")?;
    let (_, mut client) = again.connect(TAKEOVER_LIMIT)?;
    load.check(&mut client).context("after a restart")?;
    client.disconnect();
    again.stop()?;
    Ok(())
}

/// Bytes that are not in the store yet: writes since the last checkpoint began, and the rest of an unfinished one.
fn backlog(cluster: &Cluster) -> Result<u64> {
    let set = cluster.holdfast(&["set", "show", SET])?;
    set["backlog_bytes"].as_u64().with_context(|| format!("no backlog_bytes in {set}"))
}
