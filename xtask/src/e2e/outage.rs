//! S3 stopped under load and started again: clients notice nothing, and what waited is uploaded afterwards.

use super::blocks::Load;
use super::{Lab, TAKEOVER_LIMIT};
use crate::process::wait_until;
use crate::s3::S3;
use crate::say::note;
use anyhow::{Context, Result};
use std::time::Duration;

const WRITERS: u64 = 4;
/// Twice what fits into one segment, in a part of the volume that is small enough to be written nearly everywhere: neighbours share an extent then, and reading
/// all of it back does not take a request for each block.
const BLOCKS_EACH: u64 = 2 * 1024;

/// No single answer may take longer than this while S3 is away: writers are slowed by a filling journal, not stopped (R8).
const ANSWER_LIMIT: Duration = Duration::from_secs(10);

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut s3 = S3::start(&lab.dir)?;
    let mut cluster = lab.cluster_with("512MiB", Some(s3.url()), s3.env())?;
    let mut load = Load::new(WRITERS, BLOCKS_EACH);
    let outage = Duration::from_secs(if lab.long { 120 } else { 15 });
    let (before, during, stored) = load.run(&cluster.exports(), |progress| {
        wait_until(Duration::from_secs(3), || false);
        let before = progress.answered();
        s3.stop()?;
        wait_until(outage, || false);
        let during = progress.answered() - before;
        let stored = s3.stored_bytes();
        s3.resume()?;
        wait_until(Duration::from_secs(3), || false);
        Ok((before, during, stored))
    })?;
    let (slowest, again) = (load.progress().slowest(), load.progress().reconnected());
    note(format!(
        "{before} pairs before, {during} in {outage:?} without S3; slowest {:.0} ms",
        slowest.as_secs_f64() * 1e3
    ));
    note(format!("{again} connections closed and made anew"));
    anyhow::ensure!(during > 0, "no write was answered while S3 was away");
    anyhow::ensure!(slowest < ANSWER_LIMIT, "an answer took {slowest:?}");
    let drained = wait_until(Duration::from_secs(120), || s3.stored_bytes() > stored);
    anyhow::ensure!(drained, "nothing was uploaded in two minutes after S3 came back ({stored} bytes stored)");
    note(format!("{:.1} MiB stored when S3 came back, uploading again", stored as f64 / f64::from(1 << 20)));
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
