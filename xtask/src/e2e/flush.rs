//! Write + FLUSH in a loop, SIGKILL of every gateway at once, restart: each acknowledged pair must be there.

use super::blocks::Load;
use super::{Lab, TAKEOVER_LIMIT};
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

const WRITERS: u64 = 4;
const BLOCKS_EACH: u64 = 4096;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut load = Load::new(WRITERS, BLOCKS_EACH);
    let mut cluster = Some(lab.cluster("256MiB")?);
    // The second time the gateways start from what the first kill left.
    for round in 1..=if lab.long { 5 } else { 2 } {
        let mut running = cluster.take().context("no cluster")?;
        let serving = running.serving(TAKEOVER_LIMIT)?;
        let uri = running.gateways[serving].nbd.clone();
        let before = load.pairs();
        let stop = AtomicBool::new(false);
        let length = Duration::from_secs(if round == 1 { 20 } else { 5 });
        let (ended, stopped) = load.run(&uri, Duration::from_secs(30), &stop, |answered| {
            wait_until(length, || false);
            let so_far = answered.load(std::sync::atomic::Ordering::Relaxed);
            // All writers are in the middle of something: that is the point.
            (so_far, running.kill_all())
        });
        let (so_far, stopped) = stopped;
        anyhow::ensure!(so_far > before, "no pair was answered before the kill: {:?}", ended.first());
        let mut again = stopped?.start().context("restart after the kill")?;
        let (_, mut client) = again.connect(TAKEOVER_LIMIT)?;
        load.check(&mut client).with_context(|| format!("round {round}, after {} pairs", load.pairs()))?;
        client.disconnect();
        note(format!("round {round}: {} pairs acknowledged before the kill, all there", load.pairs() - before));
        cluster = Some(again);
    }
    cluster.context("no cluster")?.stop()?;
    Ok(())
}
