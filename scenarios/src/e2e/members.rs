//! Members change under an attached host that writes and checks: a fourth gateway is added; each gateway is drained,
//! stopped, started and undrained; one is replaced, one is removed. The host sees no error, every group has exactly the
//! expected voters, a removed gateway exits and stays out, and the remaining three tolerate the loss of one.

use super::attach::{Attached, export, gateway_of, serves_anew};
use super::blocks::{Load, Progress};
use super::{Lab, TAKEOVER_LIMIT};
use crate::binary::public_dir;
use crate::bridge::Bridge;
use crate::cluster::{Cluster, SET};
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

pub(super) const WRITERS: u64 = 4;
pub(super) const BLOCKS_EACH: u64 = 1024;
pub(super) const PATIENCE: Duration = Duration::from_secs(60);
pub(super) const CHANGE_LIMIT: Duration = Duration::from_secs(120);
/// Timeout of `holdfast` for a change of members.
const WAIT: [&str; 2] = ["--timeout", "2m"];

pub(super) fn run(lab: &Lab) -> Result<()> {
    // Each gateway votes in each set, so that each of them matters.
    let mut cluster = lab.cluster_as("256MiB", None, &["placing.enabled=false"], Vec::new())?;
    let (dir, _guard) = public_dir("members")?;
    let mut load = Load::new(WRITERS, BLOCKS_EACH);
    let attached = Attached::start_knowing_all(lab, &cluster, &dir.join("a"), "host-a")?;
    let bridge = Bridge::to(&attached.socket(), &export())?;
    load.run(std::slice::from_ref(&bridge.uri), |progress| {
        goes_on(progress)?;
        add(&mut cluster, progress)?;
        for index in 0..4 {
            restart(&mut cluster, index, progress).with_context(|| format!("restart of {}", cluster.name(index)))?;
        }
        replace(&mut cluster, progress)?;
        move_away(&mut cluster, progress)?;
        remove(&mut cluster, progress)?;
        drained_is_passed_over(&mut cluster, &attached, progress)
    })?;
    load.unbroken(&bridge.uri, PATIENCE)?;
    let progress = load.progress();
    note(format!(
        "{} pairs acknowledged and all there; no error, no connection closed, slowest pair {:.0} ms",
        progress.answered(),
        progress.slowest().as_secs_f64() * 1e3
    ));
    // Where nothing moves by itself, the voters that the set has are looked at all the same.
    let known = wait_until(CHANGE_LIMIT, || {
        cluster.holdfast(&["set", "place", SET]).is_ok_and(|placing| placing["moving"] == false)
    });
    anyhow::ensure!(known, "moving, or unknown: {}", cluster.holdfast(&["set", "place", SET])?);
    cluster.stop()?;
    Ok(())
}

/// Checks that users get answers now.
pub(super) fn goes_on(progress: &Progress) -> Result<()> {
    let from = progress.answered();
    let went_on = wait_until(TAKEOVER_LIMIT, || progress.answered() > from + 50);
    anyhow::ensure!(went_on, "the load does not continue");
    Ok(())
}

fn timed(what: &str, begun: Instant) {
    note(format!("{what} after {:.1} s", begun.elapsed().as_secs_f64()));
}

fn add(cluster: &mut Cluster, progress: &Progress) -> Result<()> {
    let index = cluster.start_another(&[])?;
    let (api, begun) = (cluster.gateways[index].api.clone(), Instant::now());
    let said = cluster.holdfast(&["gateway", "add", &api, WAIT[0], WAIT[1]])?;
    anyhow::ensure!(said["caught_up"] == true && said["member"] == 4, "added: {said}");
    cluster.voters_become(&[0, 1, 2, 3], CHANGE_LIMIT)?;
    timed("g4 added: a voter of every group", begun);
    goes_on(progress)
}

/// Drains, stops, starts and undrains a gateway. It leads no group from the drain to the undrain.
fn restart(cluster: &mut Cluster, index: usize, progress: &Progress) -> Result<()> {
    let (name, begun) = (cluster.name(index), Instant::now());
    let said = cluster.holdfast(&["gateway", "drain", &name, WAIT[0], WAIT[1]])?;
    anyhow::ensure!(said["idle"] == true, "drained: {said}");
    goes_on(progress)?;
    cluster.end(index)?;
    goes_on(progress)?;
    cluster.restart(index)?;
    cluster.caught_up(CHANGE_LIMIT)?;
    let leaders = cluster.leaders()?;
    anyhow::ensure!(!leaders.contains(&name), "drained, {name} leads again: {leaders:?}");
    cluster.holdfast(&["gateway", "undrain", &name])?;
    timed(&format!("{name} drained, restarted, undrained"), begun);
    goes_on(progress)
}

/// g5 replaces g2. The process of g2 exits and logs why, also when it is started again on its old disk.
fn replace(cluster: &mut Cluster, progress: &Progress) -> Result<()> {
    let index = cluster.start_another(&[])?;
    let (api, begun) = (cluster.gateways[index].api.clone(), Instant::now());
    let said = cluster.holdfast(&["gateway", "replace", "g2", "--by", &api, "--yes", WAIT[0], WAIT[1]])?;
    anyhow::ensure!(said["caught_up"] == true && said["member"] == 5 && said["replaced"] == 2, "replaced: {said}");
    cluster.voters_become(&[0, 2, 3, 4], CHANGE_LIMIT)?;
    timed("g2 replaced by g5", begun);
    goes_on(progress)?;
    // This program started it, so its end is noticed.
    let why = cluster.ends_by_itself(1, PATIENCE)?;
    anyhow::ensure!(why.contains("m2 was removed from this cluster permanently"), "g2 ended: {why}");
    let why = cluster.start_in_vain(1, PATIENCE)?;
    anyhow::ensure!(why.contains("m2 was removed from this cluster permanently"), "g2 ended again: {why}");
    cluster.voters_become(&[0, 2, 3, 4], CHANGE_LIMIT)?;
    note("g2 ends by itself, also when it is started again on its old disk");
    goes_on(progress)
}

/// Starts g5 with other addresses, and registers them.
fn move_away(cluster: &mut Cluster, progress: &Progress) -> Result<()> {
    const MOVED: usize = 4;
    cluster.holdfast(&["gateway", "drain", "g5", WAIT[0], WAIT[1]])?;
    cluster.end(MOVED)?;
    cluster.restart_elsewhere(MOVED)?;
    let (api, other) = (cluster.gateways[MOVED].api.clone(), cluster.gateways[0].api.clone());
    let refused = cluster.refused(&["gateway", "update", "g5", "--address", &other])?;
    anyhow::ensure!(refused.contains("other-disk"), "g1's address for g5: {refused}");
    cluster.holdfast(&["gateway", "update", "g5", "--address", &api])?;
    cluster.caught_up(CHANGE_LIMIT)?;
    cluster.voters_become(&[0, 2, 3, MOVED], CHANGE_LIMIT)?;
    cluster.holdfast(&["gateway", "undrain", "g5"])?;
    note("g5 moved to other addresses");
    goes_on(progress)
}

/// Removes g4 while it is stopped, so that three are left. A further removal is refused and changes nothing.
fn remove(cluster: &mut Cluster, progress: &Progress) -> Result<()> {
    cluster.holdfast(&["gateway", "drain", "g4", WAIT[0], WAIT[1]])?;
    cluster.pause(3)?;
    let begun = Instant::now();
    let said = cluster.holdfast(&["gateway", "remove", "g4", "--yes", WAIT[0], WAIT[1]])?;
    anyhow::ensure!(said["gone"] == true, "removed: {said}");
    cluster.voters_become(&[0, 2, 4], CHANGE_LIMIT)?;
    timed("g4 removed while it was stopped", begun);
    // It does not know that it was removed, and must find out.
    cluster.proceed(3);
    let why = cluster.ends_by_itself(3, PATIENCE)?;
    anyhow::ensure!(why.contains("m4 was removed from this cluster permanently"), "g4 ended: {why}");
    let refused = cluster.refused(&["gateway", "remove", "g3", "--yes"])?;
    anyhow::ensure!(refused.contains("gateway replace g3 --by"), "the refusal: {refused}");
    cluster.voters_become(&[0, 2, 4], CHANGE_LIMIT)?;
    goes_on(progress)
}

/// One is drained, the leader is killed: the third one serves, and the drained one leads nothing. With two of three up,
/// no gateway may be removed or drained, with any flag.
fn drained_is_passed_over(cluster: &mut Cluster, attached: &Attached, progress: &Progress) -> Result<()> {
    let before = attached.look()?;
    let serving = gateway_of(cluster, &before)?;
    let others: Vec<usize> = [0, 2, 4].into_iter().filter(|index| *index != serving).collect();
    let (drained, heir) = (others[0], others[1]);
    let name = cluster.name(drained);
    cluster.holdfast(&["gateway", "drain", &name, WAIT[0], WAIT[1]])?;
    cluster.kill(serving)?;
    let moved = wait_until(TAKEOVER_LIMIT, || attached.look().is_ok_and(|now| serves_anew(&now, &before)));
    let now = attached.look()?;
    anyhow::ensure!(moved, "not reconnected: {now}");
    anyhow::ensure!(gateway_of(cluster, &now)? == heir, "served by {}, while {name} is drained", now["gateway"]);
    goes_on(progress)?;
    note(format!("{} killed, {name} drained: {} serves", cluster.name(serving), cluster.name(heir)));
    for args in [
        ["gateway", "remove", &name, "--yes", "--force"],
        ["gateway", "remove", &cluster.name(heir), "--yes", "--force"],
    ] {
        let refused = cluster.refused(&args)?;
        anyhow::ensure!(refused.contains("are needed") || refused.contains("may serve"), "{args:?}: {refused}");
    }
    cluster.holdfast(&["gateway", "undrain", &name])?;
    cluster.restart(serving)?;
    cluster.caught_up(CHANGE_LIMIT)?;
    cluster.voters_become(&[0, 2, 4], CHANGE_LIMIT)?;
    goes_on(progress)
}
