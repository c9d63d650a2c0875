//! The settings are for gateways 150 ms apart, and all stand on one machine: the set's times follow what is measured,
//! and a killed gateway is replaced sooner than the settings would allow (ADR 0058).

use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, SET};
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result};
use std::time::Duration;

/// With these times no gateway is elected sooner than this after the last heartbeat of a lost one: a leader lease and
/// the shortest election timeout, less a heartbeat and 10 % for its clock.
const NEVER_SOONER: Duration = Duration::from_millis(3_700);
/// A look each second, a calm of 5 s, and elections on a busy machine, each of which begins the calm anew.
const MEASURED_LIMIT: Duration = Duration::from_secs(120);
/// What was promised under the longer times has ended: their leader lease.
const PROMISED: Duration = Duration::from_millis(3_500);
/// A machine that stalls may need a second election, and a third.
const TRIES: usize = 4;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut cluster = lab.cluster_as("64MiB", None, &["rtt_ms=150", "rtt_calm_ms=5000"], Vec::new())?;
    cluster.serving(TAKEOVER_LIMIT)?;
    let mut tried = Vec::new();
    for _ in 0..TRIES {
        let took = killed(&mut cluster)?;
        tried.push(took);
        if took < NEVER_SOONER {
            note(format!("another gateway served after {took:.1?}; the settings alone allow none before 3.7 s"));
            cluster.stop()?;
            return Ok(());
        }
    }
    anyhow::bail!("another gateway served after {tried:.1?}, expected once less than {NEVER_SOONER:?}");
}

/// Kills the gateway that serves once the set has short times. Returns after how long another one serves.
fn killed(cluster: &mut Cluster) -> Result<Duration> {
    let mut last = String::new();
    let short = wait_until(MEASURED_LIMIT, || match cluster.holdfast(&["set", "show", SET]) {
        Ok(shown) => {
            last = shown["rtt_ms"].to_string();
            shown["rtt_ms"].as_u64() == Some(25)
        }
        Err(error) => {
            last = error.to_string();
            false
        }
    });
    anyhow::ensure!(short, "the times of {SET} are made for {last} ms after {MEASURED_LIMIT:?}, expected 25");
    std::thread::sleep(PROMISED);
    let serving = cluster.serving(TAKEOVER_LIMIT)?;
    let others = cluster.others(serving);
    let moment = cluster.kill(serving)?;
    let (_, took) = cluster.first_to_serve(&others, moment, TAKEOVER_LIMIT)?;
    cluster.restart(serving).context("the killed gateway")?;
    cluster.caught_up(TAKEOVER_LIMIT)?;
    Ok(took)
}
