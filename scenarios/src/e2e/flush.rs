//! Clients write and flush in a loop, all gateways are killed with SIGKILL and restarted: every acknowledged write must
//! be there.

use super::blocks::Load;
use super::{Lab, TAKEOVER_LIMIT};
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result};
use std::time::Duration;

const WRITERS: u64 = 4;
const BLOCKS_EACH: u64 = 4096;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut load = Load::new(WRITERS, BLOCKS_EACH);
    let mut cluster = lab.cluster("256MiB")?;
    // The second time the gateways start from the state that the first kill left.
    for round in 1..=if lab.long { 5 } else { 2 } {
        let before = load.progress().answered();
        let length = Duration::from_secs(if round == 1 { 20 } else { 5 });
        let stopped = load.run(&cluster.exports(), |progress| {
            wait_until(length, || false);
            anyhow::ensure!(progress.answered() > before, "no pair was answered before the kill");
            // On purpose while all writers have requests in flight.
            cluster.kill_all()
        })?;
        cluster = stopped.start().context("restart after the kill")?;
        let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
        let pairs = load.progress().answered();
        load.check(&mut client).with_context(|| format!("round {round}, after {pairs} pairs"))?;
        client.disconnect();
        note(format!("round {round}: {} pairs acknowledged before the kill, all there", pairs - before));
    }
    cluster.stop()?;
    Ok(())
}
