//! Three gateways in three regions, 80 ms apart, and a host that stands beside one that does not lead: leadership comes
//! to the gateway beside the host, and stays there. Then hosts elsewhere take the set over, one after the other, and
//! leadership follows each. The writers see pauses, no error, and no closed connection.

use super::Lab;
use super::attach::{Attached, export};
use super::blocks::{Load, Progress};
use super::members::{BLOCKS_EACH, CHANGE_LIMIT, PATIENCE, WRITERS, goes_on};
use super::wan::peer_address;
use crate::binary::public_dir;
use crate::bridge::Bridge;
use crate::cluster::{Cluster, SET};
use crate::process::wait_until;
use crate::relay::Relay;
use crate::say::note;
use anyhow::{Context, Result};
use std::path::Path;
use std::time::{Duration, Instant};

const ROUND_TRIP: Duration = Duration::from_millis(80);
/// Where each gateway stands, and the host beside it.
const PLACES: [&str; 3] = ["region=eu,zone=a", "region=us,zone=a", "region=ap,zone=a"];
/// `placing.follow_owner_ms`.
const CALM: Duration = Duration::from_secs(10);
/// Limit of one move: some 30 s at most by the settings, and more after an election on a busy machine.
const FOLLOW_LIMIT: Duration = Duration::from_secs(120);
/// How long nothing may move: several times `CALM`, and a round of the leader each second.
const QUIET: Duration = Duration::from_secs(60);
/// Tries for a period without an election: one may occur on a machine that stalls.
const QUIET_TRIES: usize = 3;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let round_trip = format!("rtt_ms={}", ROUND_TRIP.as_millis());
    let follow = format!("placing.follow_owner_ms={}", CALM.as_millis());
    let mut cluster = Cluster::start(lab.options("256MiB", &[&round_trip, &follow]))?;
    let _relays = apart(&mut cluster)?;
    let (dir, _guard) = public_dir("follows")?;
    let mut load = Load::new(WRITERS, BLOCKS_EACH);

    let far = cluster.others(leader(&cluster)?)[0];
    used_beside(lab, &cluster, &mut load, &dir.join("a"), far, |attached, progress| {
        stays(&cluster, attached, far, progress)
    })?;
    let next = cluster.others(far)[0];
    used_beside(lab, &cluster, &mut load, &dir.join("b"), next, |_, progress| goes_on(progress))?;
    // At once back: this waits until the new leadership has lasted for long enough.
    used_beside(lab, &cluster, &mut load, &dir.join("c"), far, |_, progress| goes_on(progress))?;
    note(format!("{} pairs acknowledged and all there; no error", load.progress().answered()));
    cluster.stop()?;
    Ok(())
}

/// Restarts each gateway in its region, behind a relay whose address is its own for the others.
fn apart(cluster: &mut Cluster) -> Result<Vec<Relay>> {
    let mut relays = Vec::new();
    for (index, place) in PLACES.iter().enumerate() {
        let relay = Relay::to(peer_address(cluster, index)?, ROUND_TRIP / 2)?;
        cluster.end(index)?;
        let (peer, locality) = (format!("advertise.peer={}", relay.addr), format!("locality={place}"));
        cluster.restart_with(index, &["--set", &peer, "--set", &locality])?;
        let (name, api) = (cluster.name(index), cluster.gateways[index].api.clone());
        cluster.holdfast(&["gateway", "update", &name, "--address", &api])?;
        cluster.caught_up(CHANGE_LIMIT)?;
        relays.push(relay);
    }
    Ok(relays)
}

fn leader(cluster: &Cluster) -> Result<usize> {
    let said = cluster.holdfast(&["set", "show", SET])?;
    let leads = |index: &usize| said["leader"]["name"] == cluster.name(*index).as_str();
    (0..PLACES.len()).find(leads).with_context(|| format!("no leader: {said}"))
}

/// A host beside this gateway attaches the set and writes: leadership comes to the gateway. Then `more`, and the host
/// gives the set back.
fn used_beside(
    lab: &Lab,
    cluster: &Cluster,
    load: &mut Load,
    dir: &Path,
    beside: usize,
    more: impl FnOnce(&Attached, &Progress) -> Result<()>,
) -> Result<()> {
    let owner = format!("host-{}", cluster.name(beside));
    let attached = Attached::start_at(lab, cluster, dir, &owner, PLACES[beside])?;
    let bridge = Bridge::to(&attached.socket(), &export())?;
    load.run(std::slice::from_ref(&bridge.uri), |progress| {
        goes_on(progress)?;
        followed(cluster, &attached, beside)?;
        goes_on(progress)?;
        more(&attached, progress)
    })?;
    load.unbroken(&bridge.uri, PATIENCE)?;
    note(format!("the slowest pair until now took {:.0} ms", load.progress().slowest().as_secs_f64() * 1e3));
    attached.detach()
}

/// Waits until the gateway beside the host serves it.
fn followed(cluster: &Cluster, attached: &Attached, beside: usize) -> Result<()> {
    let (begun, name, before) = (Instant::now(), cluster.name(beside), attached.look()?);
    let came = wait_until(FOLLOW_LIMIT, || {
        attached.look().is_ok_and(|now| now["phase"] == "serving" && now["gateway"] == name.as_str())
    });
    let now = attached.look()?;
    anyhow::ensure!(came, "not served by {name}, which is beside it, after {FOLLOW_LIMIT:?}: {now}");
    let said = cluster.holdfast(&["set", "show", SET])?;
    anyhow::ensure!(said["lease"]["locality"] == PLACES[beside], "the owner's place: {}", said["lease"]);
    note(format!(
        "{} served a host in {}; {name} does after {:.1} s, with a pause of {} ms",
        before["gateway"],
        PLACES[beside],
        begun.elapsed().as_secs_f64(),
        now["last_outage_ms"]
    ));
    Ok(())
}

/// The set stays where it is, under the same epoch, while the load continues.
fn stays(cluster: &Cluster, attached: &Attached, beside: usize, progress: &Progress) -> Result<()> {
    let mut moved = Vec::new();
    while moved.len() < QUIET_TRIES {
        followed(cluster, attached, beside)?;
        let before = attached.look()?;
        let same = |now: &serde_json::Value| {
            ["gateway", "epoch", "reconnects"].iter().all(|field| now[*field] == before[*field])
        };
        if !wait_until(QUIET, || attached.look().is_ok_and(|now| !same(&now))) {
            note(format!("nothing moved for {QUIET:?}"));
            return goes_on(progress);
        }
        let now = attached.look()?;
        note(format!("all were well, and yet it moved: {before} became {now}"));
        moved.push(now);
    }
    anyhow::bail!("it moved {QUIET_TRIES} times: {moved:?}")
}
