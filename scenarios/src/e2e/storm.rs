//! Plain connections come and go: the last one that leaves releases the lease while others arrive. A new connection may
//! have to wait for its own lease; it must not be closed together with the one that left.

use super::blocks::BLOCK;
use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::Cluster;
use crate::nbd::{Client, NbdError, Uri, pattern};
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(10);

/// Few, so that often none is connected.
const CLIENTS: u64 = 3;

/// A run with a change of the leader proves nothing: it rightly closes connections.
const ATTEMPTS: u32 = 3;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut cluster = lab.cluster("256MiB")?;
    let length = Duration::from_secs(if lab.long { 60 } else { 6 });
    for _ in 0..ATTEMPTS {
        let serving = cluster.serving(TAKEOVER_LIMIT)?;
        let before = leadership(&cluster)?;
        let uri = &cluster.gateways[serving].nbd;
        let stop = AtomicBool::new(false);
        let outcomes: Vec<(u64, Vec<String>)> = std::thread::scope(|scope| {
            let stop = &stop;
            let threads: Vec<_> = (0..CLIENTS).map(|n| scope.spawn(move || come_and_go(uri, n, stop))).collect();
            wait_until(length, || false);
            stop.store(true, Ordering::Relaxed);
            threads.into_iter().filter_map(|t| t.join().ok()).collect()
        });
        anyhow::ensure!(outcomes.len() as u64 == CLIENTS, "a client panicked");
        if leadership(&cluster)? != before {
            note("leadership moved meanwhile; again");
            continue;
        }
        let good: u64 = outcomes.iter().map(|(good, _)| good).sum();
        let bad: Vec<&String> = outcomes.iter().flat_map(|(_, bad)| bad).collect();
        anyhow::ensure!(
            bad.is_empty(),
            "{} of {} connections failed, first: {}",
            bad.len(),
            good + bad.len() as u64,
            bad[0]
        );
        note(format!("{good} connections opened, wrote, read and closed"));
        cluster.stop()?;
        return Ok(());
    }
    anyhow::bail!("leadership moved in each of {ATTEMPTS} runs")
}

/// Leader and term of the set's group.
fn leadership(cluster: &Cluster) -> Result<(u64, u64)> {
    let status = cluster.holdfast(&["cluster", "status"])?;
    let groups = status["groups"].as_array().context("status without groups")?;
    let set = groups.iter().find(|g| g["group"] != 0).context("status without the set's group")?;
    Ok((set["leader"].as_u64().context("no leader")?, set["term"].as_u64().context("no term")?))
}

fn come_and_go(uri: &Uri, client: u64, stop: &AtomicBool) -> (u64, Vec<String>) {
    let (mut good, mut bad) = (0, Vec::new());
    while !stop.load(Ordering::Relaxed) {
        match once(uri, client * BLOCK as u64, good + 1) {
            Ok(()) => good += 1,
            Err(e) => bad.push(format!("client {client}, connection {}: {e}", good + bad.len() as u64 + 1)),
        }
    }
    (good, bad)
}

fn once(uri: &Uri, at: u64, tag: u64) -> std::result::Result<(), NbdError> {
    let mut client = Client::connect(uri, PATIENCE)?;
    let block = pattern(tag, at, BLOCK);
    client.write(at, &block)?;
    let seen = client.read(at, BLOCK as u32)?;
    client.disconnect();
    if seen == block { Ok(()) } else { Err(NbdError::Protocol("read back something else".into())) }
}
