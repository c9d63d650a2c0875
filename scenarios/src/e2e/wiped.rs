//! A follower's disk is wiped under load. It comes back as a new member, gets a state snapshot, and then a quorum
//! depends on it.

use super::blocks::Load;
use super::damaged::{await_whole, carries};
use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::Cluster;
use crate::process::wait_until;
use crate::say::note;
use anyhow::Result;
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);
const REBUILD_LIMIT: Duration = Duration::from_secs(120);

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut cluster = lab.cluster("512MiB")?;
    let serving = cluster.serving(TAKEOVER_LIMIT)?;
    let others = cluster.others(serving);
    let (wiped, other) = (others[0], others[1]);
    let mut load = Load::new(4, 8192);
    load.run(&cluster.exports(), |progress| {
        let busy = wait_until(PATIENCE, || progress.answered() > 2000);
        anyhow::ensure!(busy, "too little load before the wipe");
        rebuild(&mut cluster, wiped, serving)?;
        let before = progress.answered();
        anyhow::ensure!(wait_until(PATIENCE, || progress.answered() > before), "the load stands still");
        Ok(())
    })?;
    let (pairs, again) = (load.progress().answered(), load.progress().reconnected());
    note(format!("{pairs} pairs acknowledged meanwhile, {again} connections closed and reopened"));

    carries(&mut cluster, &mut load, [serving, other, wiped], "rebuilt")?;
    cluster.stop()?;
    Ok(())
}

fn rebuild(cluster: &mut Cluster, wiped: usize, serving: usize) -> Result<()> {
    let member = cluster.member(wiped)?;
    cluster.kill(wiped)?;
    // `holdfast dev` puts the data of g2 into DIR/g2.
    let disk = cluster.options.dir.join(cluster.name(wiped));
    anyhow::ensure!(disk.is_dir(), "{}: no such folder", disk.display());
    std::fs::remove_dir_all(&disk)?;
    cluster.restart(wiped)?;
    let api = cluster.gateways[wiped].api.clone();
    let replaces = format!("m{member}");
    cluster.holdfast(&["gateway", "replace", &replaces, "--by", &api, "--yes", "--timeout", "2m"])?;
    cluster.caught_up(REBUILD_LIMIT)?;
    // It votes only once it has nearly all entries: before that no quorum may depend on it.
    await_whole(cluster, wiped, REBUILD_LIMIT)?;
    let now = cluster.member(wiped)?;
    anyhow::ensure!(now != member, "{} is still member m{member}", cluster.name(wiped));
    note(format!("{} wiped: was m{member}, is m{now}; {} served on", cluster.name(wiped), cluster.name(serving)));
    Ok(())
}
