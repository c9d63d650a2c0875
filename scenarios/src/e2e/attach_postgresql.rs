//! PostgreSQL on ext4 on `holdfast attach`: gateways are killed under pgbench and ledger writers, and no user of the
//! device sees an error.

use super::loaded::Loaded;
use super::{Lab, TAKEOVER_LIMIT};
use crate::process::wait_until;
use crate::say::note;
use crate::setup;
use anyhow::{Context, Result};

pub(super) fn run(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    let mut cluster = lab.cluster("1GiB")?;
    let mut loaded = Loaded::start(lab, &cluster, &lab.bin)?;
    let rounds = if lab.long { 100 } else { 4 };
    for round in 0..=rounds {
        // Round 0 is only the load before the first kill.
        let mut said = "load".to_owned();
        if round > 0 {
            let before = loaded.look()?;
            let serving = (0..cluster.gateways.len()).find(|index| before["gateway"] == cluster.name(*index).as_str());
            let serving = serving.with_context(|| format!("no gateway is called {}", before["gateway"]))?;
            cluster.kill(serving)?;
            let anew = || {
                loaded.look().is_ok_and(|now| {
                    now["phase"] == "serving" && now["reconnects"].as_u64() > before["reconnects"].as_u64()
                })
            };
            anyhow::ensure!(wait_until(TAKEOVER_LIMIT, anew), "round {round}: not reconnected: {}", loaded.look()?);
            let now = loaded.look()?;
            let outage = now["last_outage_ms"].as_u64().context("no last_outage_ms")?;
            said = format!("round {round}: {} killed, {} after {outage} ms", before["gateway"], now["gateway"]);
            cluster.restart(serving)?;
        }
        loaded.goes_on().context(said.clone())?;
        cluster.caught_up(TAKEOVER_LIMIT)?;
        note(format!("{said}; {} commits", loaded.commits()));
    }
    let seen = loaded.finish()?;
    note(format!(
        "{rounds} gateways killed, no error; requests waited {} ms at most; {} commits, all there",
        seen.worst, seen.commits
    ));
    cluster.stop().map(drop)
}
