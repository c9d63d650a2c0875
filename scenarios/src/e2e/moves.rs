//! The set is moved under load, planned and by force: the load's connections close (a planned move first answers
//! requests in progress), service continues at the named gateway, where health checks send proxies too, and no
//! acknowledged write is lost.

use super::blocks::Load;
use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, SET};
use crate::process::wait_until;
use crate::say::note;
use crate::web::page;
use anyhow::{Context, Result};
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
    note(format!("{} pairs acknowledged, all there", load.progress().answered()));
    cluster.stop()?;
    Ok(())
}

/// By `/serves/SET` a TCP proxy in front of NBD finds the one gateway that serves the set.
fn proxies_follow(cluster: &Cluster, to: usize) -> Result<()> {
    let serves = |index: usize| -> Result<bool> {
        let answer = page(&cluster.metrics_address(index)?, &format!("/serves/{SET}"))?;
        Ok(answer.split(' ').nth(1) == Some("200"))
    };
    let right = |index: usize| serves(index).is_ok_and(|serves| serves == (index == to));
    let others = cluster.others(to);
    let follow = wait_until(PATIENCE, || right(to) && others.iter().all(|index| right(*index)));
    anyhow::ensure!(follow, "/serves/{SET}: expected 200 of {} and of no other gateway", cluster.name(to));
    Ok(())
}

fn move_once(cluster: &mut Cluster, load: &mut Load, how: &str) -> Result<()> {
    let from = cluster.serving(TAKEOVER_LIMIT)?;
    let to = cluster.others(from)[0];
    let name = cluster.name(to);
    let args = match how {
        "switchover" => vec!["switchover", SET, "--to", &name],
        _ => vec!["failover", SET, "--candidate", &name, "--yes"],
    };
    let earlier = load.progress().answered();
    let took = load.run(&cluster.exports(), |progress| {
        let busy = wait_until(PATIENCE, || progress.answered() > earlier + 500);
        anyhow::ensure!(busy, "too little load before the move");
        let begun = Instant::now();
        cluster.holdfast(&args)?;
        let (_, took) = cluster.first_to_serve(&[to], begun, TAKEOVER_LIMIT)?;
        proxies_follow(cluster, to)?;
        let moved = progress.answered();
        anyhow::ensure!(wait_until(PATIENCE, || progress.answered() > moved + 100), "the load did not follow");
        Ok(took)
    })?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    load.check(&mut client)?;
    client.disconnect();
    note(format!("{how}: {} to {name}, first read there after {:.0} ms", cluster.name(from), took.as_secs_f64() * 1e3));
    Ok(())
}
