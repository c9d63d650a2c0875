//! Four gateways in four regions, and a set that survives the loss of one, under an attached host that writes and
//! checks: the set grows with the cluster, a policy that cannot be met is refused, voters leave a drained gateway and
//! follow a changed home, and a killed gateway is told as a violation while the set is served.

use super::Lab;
use super::attach::{Attached, export};
use super::blocks::{Load, Progress};
use super::members::{BLOCKS_EACH, CHANGE_LIMIT, PATIENCE, WRITERS, goes_on};
use crate::binary::public_dir;
use crate::bridge::Bridge;
use crate::cluster::{Cluster, Options, SET};
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result};
use std::collections::BTreeSet;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut cluster = Cluster::start(Options { gateways: 1, ..lab.options("256MiB", &[]) })?;
    for region in ["us", "ap"] {
        add(&mut cluster, region)?;
    }
    cluster.voters_become(&[0, 1, 2], CHANGE_LIMIT)?;
    note("a set of one gateway has three voters once there are three");
    let (dir, _guard) = public_dir("placing")?;
    let mut load = Load::new(WRITERS, BLOCKS_EACH);
    let attached = Attached::start_knowing_all(lab, &cluster, &dir.join("a"), "host-a")?;
    let bridge = Bridge::to(&attached.socket(), &export())?;
    load.run(std::slice::from_ref(&bridge.uri), |progress| {
        goes_on(progress)?;
        policy(&cluster)?;
        add(&mut cluster, "sa")?;
        voters_become(&cluster, &[1, 2, 3])?;
        moves(&cluster, progress)?;
        lost(&mut cluster, progress)
    })?;
    load.unbroken(&bridge.uri, PATIENCE)?;
    note(format!("{} pairs acknowledged and all there; no error", load.progress().answered()));
    cluster.stop()?;
    Ok(())
}

pub(super) fn add(cluster: &mut Cluster, region: &str) -> Result<()> {
    let index = cluster.start_another(&["--set", &format!("locality=region={region},zone=a")])?;
    let api = cluster.gateways[index].api.clone();
    let said = cluster.holdfast(&["gateway", "add", &api, "--timeout", "2m"])?;
    anyhow::ensure!(said["caught_up"] == true, "added: {said}");
    Ok(())
}

/// What is possible is taken, what is not is refused with what is missing, and nothing changes.
fn policy(cluster: &Cluster) -> Result<()> {
    let taken = cluster.holdfast(&["set", "place", SET, "--survive", "region"])?;
    anyhow::ensure!(taken["policy"]["survive"] == "region", "taken: {taken}");
    let refused = cluster.refused(&["set", "place", SET, "--voters", "5"])?;
    anyhow::ensure!(refused.contains("needs 5 gateways or witnesses, found 3"), "the refusal: {refused}");
    let refused = cluster.refused(&["set", "place", SET, "--home", "mars"])?;
    anyhow::ensure!(refused.contains("home region mars"), "the refusal: {refused}");
    let after = cluster.holdfast(&["set", "place", SET])?;
    anyhow::ensure!(after["policy"] == taken["policy"], "changed by a refusal: {after}");
    note("a policy that three gateways cannot meet is refused");
    Ok(())
}

/// The set's members, once its group has exactly the voters that it is to have.
pub(super) fn voters(cluster: &Cluster) -> Result<BTreeSet<u64>> {
    let placing = cluster.holdfast(&["set", "place", SET])?;
    anyhow::ensure!(placing["moving"] == false, "its group has not followed yet: {placing}");
    let voters = placing["voters"].as_array().context("no voters")?;
    Ok(voters.iter().filter_map(serde_json::Value::as_u64).collect())
}

/// The members' numbers; those are given in order.
fn voters_become(cluster: &Cluster, expected: &[u64]) -> Result<()> {
    let expected: BTreeSet<u64> = expected.iter().copied().collect();
    let mut found = String::new();
    let same = wait_until(CHANGE_LIMIT, || {
        let voters = voters(cluster);
        found = format!("{voters:?}");
        voters.is_ok_and(|voters| voters == expected)
    });
    anyhow::ensure!(same, "after {CHANGE_LIMIT:?}: {found}, expected {expected:?}");
    Ok(())
}

/// A drained gateway's vote goes to the fourth one, and comes home when it is home.
fn moves(cluster: &Cluster, progress: &Progress) -> Result<()> {
    cluster.holdfast(&["gateway", "drain", "g2", "--timeout", "2m"])?;
    voters_become(cluster, &[1, 3, 4])?;
    goes_on(progress)?;
    cluster.holdfast(&["gateway", "undrain", "g2"])?;
    let said = cluster.holdfast(&["set", "place", SET, "--home", "us"])?;
    let told = said["violations"].to_string();
    anyhow::ensure!(told.contains("home region us"), "no voter is there, and the answer tells nothing: {said}");
    let home =
        wait_until(CHANGE_LIMIT, || voters(cluster).is_ok_and(|voters| voters.contains(&2) && voters.len() == 3));
    anyhow::ensure!(home, "no voter in its home region: {}", cluster.holdfast(&["set", "place", SET])?);
    note("voters left a drained gateway, and followed a changed home");
    goes_on(progress)
}

/// A killed voter is told, and the set is served.
fn lost(cluster: &mut Cluster, progress: &Progress) -> Result<()> {
    let well = wait_until(CHANGE_LIMIT, || violations(cluster).is_ok_and(|told| told.is_empty()));
    anyhow::ensure!(well, "violated before anything failed: {:?}", violations(cluster)?);
    let voter = voters(cluster)?.into_iter().find(|member| *member != 2).context("no other voter")?;
    let index = usize::try_from(voter)? - 1;
    cluster.kill(index)?;
    let name = cluster.name(index);
    let told = wait_until(CHANGE_LIMIT, || {
        violations(cluster).is_ok_and(|told| told.iter().any(|text| text.contains(&name) && text.contains("answer")))
    });
    anyhow::ensure!(told, "{name} is killed: {:?}", violations(cluster)?);
    goes_on(progress)?;
    cluster.restart(index)?;
    let over = wait_until(CHANGE_LIMIT, || violations(cluster).is_ok_and(|told| told.is_empty()));
    anyhow::ensure!(over, "{name} is back: {:?}", violations(cluster)?);
    note(format!("{name} killed: told as a violation, and over when it was back"));
    goes_on(progress)
}

fn violations(cluster: &Cluster) -> Result<Vec<String>> {
    let placing = cluster.holdfast(&["set", "place", SET])?;
    let violations = placing["violations"].as_array().context("no list of violations")?;
    Ok(violations.iter().filter_map(|violation| violation["text"].as_str()).map(str::to_owned).collect())
}
