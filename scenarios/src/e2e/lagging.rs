//! A follower is stopped until it lacks more than the journal can hold. The others continue without it, and it catches
//! up by a state snapshot.

use super::blocks::Load;
use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::Cluster;
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result};
use std::path::PathBuf;
use std::time::Duration;

/// Space for client data in each journal: its bound minus its reserve.
const ROOM: u64 = 64 << 20;
const SETTINGS: [&str; 4] =
    ["journal.bound=\"96MiB\"", "journal.reserve=\"32MiB\"", "journal.file=\"16MiB\"", "upload.bytes=\"8MiB\""];
/// Pairs of write and flush with twice that space of data: if the journal had kept all of it for the follower, the last
/// ones could not have been written.
const ENOUGH: u64 = 2 * ROOM / super::blocks::BLOCK as u64;
/// Limit of every wait, long enough for a busy machine.
const LOAD_LIMIT: Duration = Duration::from_secs(300);
const PATIENCE: Duration = Duration::from_secs(30);
const REBUILD_LIMIT: Duration = Duration::from_secs(120);
/// The follower's log text after it caught up.
const INSTALLED: &str = "installed a snapshot";

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut cluster = Cluster::start(lab.options("256MiB", &SETTINGS))?;
    let serving = cluster.serving(TAKEOVER_LIMIT)?;
    let others = cluster.others(serving);
    let (lagging, other) = (others[0], others[1]);
    let mut load = Load::new(4, 8192);
    load.run(&cluster.exports(), |progress| {
        let busy = wait_until(PATIENCE, || progress.answered() > 1000);
        anyhow::ensure!(busy, "too little load before the stop");
        let before = installed(&cluster, lagging);
        cluster.pause(lagging)?;
        let from = progress.answered();
        let written = wait_until(LOAD_LIMIT, || progress.answered() - from > ENOUGH);
        cluster.proceed(lagging);
        let pairs = progress.answered() - from;
        anyhow::ensure!(
            written,
            "{pairs} pairs were answered in {LOAD_LIMIT:?} while {} stood still, expected {ENOUGH}: the others wait for it",
            cluster.name(lagging)
        );
        cluster.caught_up(REBUILD_LIMIT)?;
        let snapshots = installed(&cluster, lagging) - before;
        anyhow::ensure!(
            snapshots > 0,
            "{} did not catch up by a state snapshot: nothing was tested",
            cluster.name(lagging)
        );
        note(format!(
            "{} stood still for {pairs} pairs, twice what the journals hold, and came back by {snapshots} state snapshot(s)",
            cluster.name(lagging)
        ));
        Ok(())
    })?;
    let (slowest, again) = (load.progress().slowest(), load.progress().reconnected());
    note(format!("slowest pair {} ms, {again} reconnects", slowest.as_millis()));

    // Now there is a majority only with this follower.
    cluster.kill(other)?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT).context("with the follower that lagged in the quorum")?;
    load.write(&mut client, 50).context("with the follower that lagged in the quorum")?;
    load.check(&mut client)?;
    client.disconnect();
    cluster.restart(other)?;
    cluster.caught_up(REBUILD_LIMIT)?;
    cluster.kill(serving)?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    load.check(&mut client)?;
    client.disconnect();
    cluster.stop()?;
    Ok(())
}

/// How often a gateway logged that it installed a snapshot, in its own log or in its file of `holdfast dev`.
fn installed(cluster: &Cluster, index: usize) -> usize {
    let (dir, name) = (&cluster.options.dir, cluster.name(index));
    let logs: [PathBuf; 2] = [dir.join(format!("{name}.log")), dir.with_extension(format!("{name}.log"))];
    let said = |log: &PathBuf| std::fs::read_to_string(log).map_or(0, |text| text.matches(INSTALLED).count());
    logs.iter().map(said).sum()
}
