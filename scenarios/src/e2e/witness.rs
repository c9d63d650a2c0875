//! Two gateways and a witness: the witness votes and keeps the journal, and never serves clients. The serving gateway
//! is killed, and the other one serves all acknowledged data, also if it lags behind the witness: then only the witness
//! has everything and must hand it over.

use super::attach::{Attached, export, gateway_of, serves_anew};
use super::blocks::Load;
use super::members::{BLOCKS_EACH, CHANGE_LIMIT, PATIENCE, WRITERS, goes_on};
use super::{Lab, TAKEOVER_LIMIT};
use crate::binary::public_dir;
use crate::bridge::Bridge;
use crate::cluster::{Cluster, Options};
use crate::nbd::Client;
use crate::process::wait_until;
use crate::say::note;
use anyhow::Result;

const WITNESS: usize = 2;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut cluster = Cluster::start(Options { gateways: 2, ..lab.options("256MiB", &[]) })?;
    let (dir, _guard) = public_dir("witness")?;
    let index = cluster.start_another(&["--set", "role=witness"])?;
    anyhow::ensure!(index == WITNESS, "the witness is gateway {index}");
    let api = cluster.gateways[WITNESS].api.clone();
    let said = cluster.holdfast(&["gateway", "add", &api, "--timeout", "2m"])?;
    anyhow::ensure!(said["role"] == "witness" && said["caught_up"] == true, "added: {said}");
    cluster.voters_become(&[0, 1, WITNESS], CHANGE_LIMIT)?;

    let mut load = Load::new(WRITERS, BLOCKS_EACH);
    let attached = Attached::start_knowing_all(lab, &cluster, &dir.join("a"), "host-a")?;
    let bridge = Bridge::to(&attached.socket(), &export())?;
    load.run(std::slice::from_ref(&bridge.uri), |progress| {
        goes_on(progress)?;
        for round in ["up to date", "behind the witness"] {
            let before = attached.look()?;
            let serving = gateway_of(&cluster, &before)?;
            let other = 1 - serving;
            if round == "behind the witness" {
                // Stopped for a moment, it lacks what the other two acknowledge meanwhile.
                cluster.pause(other)?;
                goes_on(progress)?;
            }
            cluster.kill(serving)?;
            cluster.proceed(other);
            let moved = wait_until(TAKEOVER_LIMIT, || attached.look().is_ok_and(|now| serves_anew(&now, &before)));
            let now = attached.look()?;
            anyhow::ensure!(moved, "the other one {round}: not reconnected: {now}");
            anyhow::ensure!(
                gateway_of(&cluster, &now)? == other,
                "served by {}, not by g{}",
                now["gateway"],
                other + 1
            );
            goes_on(progress)?;
            note(format!(
                "{} killed, the other one {round}: it serves after {} ms",
                cluster.name(serving),
                now["last_outage_ms"]
            ));
            cluster.restart(serving)?;
            cluster.caught_up(CHANGE_LIMIT)?;
        }
        Ok(())
    })?;
    anyhow::ensure!(load.progress().reconnected() == 0, "{} connections were closed", load.progress().reconnected());
    let mut client = Client::connect(&bridge.uri, PATIENCE)?;
    load.check(&mut client)?;
    client.disconnect();
    let leaders = cluster.leaders()?;
    anyhow::ensure!(!leaders.contains("g3"), "the witness leads: {leaders:?}");
    note(format!("{} pairs acknowledged, all there", load.progress().answered()));
    cluster.stop()?;
    Ok(())
}
