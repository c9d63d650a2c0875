//! The set is moved under load, planned and by force: the load's connections close unanswered, nothing acknowledged is lost, and the gateway
//! that was named serves.

use super::blocks::Load;
use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, SET};
use crate::nbd::NbdError;
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut cluster = lab.cluster("256MiB")?;
    let mut load = Load::new(4, 1024);
    let rounds = if lab.long { 10 } else { 2 };
    for round in 0..rounds {
        for how in ["switchover", "failover"] {
            move_once(&mut cluster, &mut load, how).with_context(|| format!("{how}, round {}", round + 1))?;
        }
    }
    note(format!("{} pairs acknowledged, all there", load.pairs()));
    cluster.stop()?;
    Ok(())
}

fn move_once(cluster: &mut Cluster, load: &mut Load, how: &str) -> Result<()> {
    let from = cluster.serving(TAKEOVER_LIMIT)?;
    let to = cluster.others(from)[0];
    let name = cluster.name(to);
    let uri = cluster.gateways[from].nbd.clone();
    let args = match how {
        "switchover" => vec!["switchover", SET, "--to", &name],
        _ => vec!["failover", SET, "--candidate", &name, "--yes"],
    };
    let (stop, earlier) = (AtomicBool::new(false), load.answered.load(Ordering::Relaxed));
    let (ended, moved) = load.run(&uri, PATIENCE, &stop, |answered| -> Result<Duration> {
        let busy = wait_until(PATIENCE, || answered.load(Ordering::Relaxed) > earlier + 500);
        anyhow::ensure!(busy, "too little load before the move");
        let begun = Instant::now();
        cluster.holdfast(&args)?;
        let (serves, took) = cluster.first_to_serve(&[to], begun, TAKEOVER_LIMIT)?;
        anyhow::ensure!(serves == to, "{} serves", cluster.name(serves));
        Ok(took)
    });
    let took = moved?;
    // An error answer would suspend a ZFS pool: allowed only when another owner holds the set (R8).
    if let Some(errno) = ended.iter().find(|e| matches!(e, NbdError::Errno(_))) {
        anyhow::bail!("R8: a client was answered with an error because of a move: {errno}");
    }
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    load.check(&mut client)?;
    client.disconnect();
    note(format!("{how}: {} to {name} in {:.0} ms", cluster.name(from), took.as_secs_f64() * 1e3));
    Ok(())
}
