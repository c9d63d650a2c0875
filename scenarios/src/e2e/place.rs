//! Five gateways in five regions, and a set on three of them. While an attached host writes and checks, each of the
//! three regions is forbidden in turn, so that each voter goes to another gateway. A gateway that the set has left runs
//! nothing of it and has its journal's space back; one comes back as a newcomer, and then a quorum depends on it.

use super::Lab;
use super::attach::{Attached, export};
use super::blocks::{Load, Progress};
use super::members::{BLOCKS_EACH, CHANGE_LIMIT, PATIENCE, WRITERS, goes_on};
use super::placing::{add, voters};
use crate::binary::public_dir;
use crate::bridge::Bridge;
use crate::cluster::{Cluster, Options, SET};
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result};
use std::collections::{BTreeMap, BTreeSet};

/// Small files, so that a journal without the set is small too.
const SETTINGS: [&str; 4] =
    ["journal.bound=\"256MiB\"", "journal.reserve=\"64MiB\"", "journal.file=\"16MiB\"", "upload.bytes=\"64MiB\""];
/// Most that a journal takes with group 0 alone: the file that is written, the next one, and two that are not carried
/// forward yet.
const IDLE_JOURNAL_BYTES: u64 = 64 << 20;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut cluster = Cluster::start(Options { gateways: 1, ..lab.options("256MiB", &SETTINGS) })?;
    for region in ["us", "ap", "sa", "af"] {
        add(&mut cluster, region)?;
    }
    let first = settled(&cluster, |_| true)?;
    let first: Vec<u64> = first.into_iter().collect();
    let [one, two, three] = first[..] else { anyhow::bail!("found voters {first:?}, expected three") };
    let at = regions(&cluster)?;
    let region = |member: u64| at.get(&member).cloned().with_context(|| format!("no region of m{member}"));
    let (dir, _guard) = public_dir("place")?;
    let mut load = Load::new(WRITERS, BLOCKS_EACH);
    let attached = Attached::start_knowing_all(lab, &cluster, &dir.join("a"), "host-a")?;
    let bridge = Bridge::to(&attached.socket(), &export())?;
    load.run(std::slice::from_ref(&bridge.uri), |progress| {
        goes_on(progress)?;
        leaves(&cluster, progress, one, &["--forbid-region", &region(one)?])?;
        leaves(&cluster, progress, two, &["--forbid-region", &region(two)?])?;
        leaves(&cluster, progress, three, &["--forbid-region", &region(three)?, "--allow-region", &region(one)?])?;
        depends_on(&mut cluster, progress, one)
    })?;
    load.unbroken(&bridge.uri, PATIENCE)?;
    note(format!("{} pairs acknowledged and all there; no error", load.progress().answered()));
    cluster.stop()?;
    Ok(())
}

fn members(cluster: &Cluster) -> Result<Vec<serde_json::Value>> {
    let status = cluster.holdfast(&["cluster", "status"])?;
    status["members"].as_array().cloned().context("no members")
}

fn id_of(member: &serde_json::Value) -> Option<u64> {
    member["member"]["id"].as_u64()
}

fn regions(cluster: &Cluster) -> Result<BTreeMap<u64, String>> {
    let region = |member: &serde_json::Value| Some((id_of(member)?, member["member"]["region"].as_str()?.to_owned()));
    Ok(members(cluster)?.iter().filter_map(region).collect())
}

/// Three voters that its group has, and that are as they should be.
fn settled(cluster: &Cluster, fits: impl Fn(&BTreeSet<u64>) -> bool) -> Result<BTreeSet<u64>> {
    let mut found = voters(cluster);
    let well = wait_until(CHANGE_LIMIT, || {
        found = voters(cluster);
        found.as_ref().is_ok_and(|voters| voters.len() == 3 && fits(voters))
    });
    anyhow::ensure!(well, "after {CHANGE_LIMIT:?}: {found:?}");
    found
}

/// What a gateway has of the set: whether its group runs there, and the bytes that its journal takes.
fn part(cluster: &Cluster, member: u64) -> Result<(bool, u64)> {
    let all = members(cluster)?;
    let found = all.iter().find(|found| id_of(found) == Some(member)).with_context(|| format!("no m{member}"))?;
    let groups = found["node"]["groups"].as_array().with_context(|| format!("m{member} does not answer"))?;
    let runs = groups.iter().any(|group| group["set"] == SET);
    let used = found["node"]["journal"]["used_bytes"].as_u64().context("no size of its journal")?;
    Ok((runs, used))
}

/// The policy changes, and `member` leaves the set.
fn leaves(cluster: &Cluster, progress: &Progress, member: u64, policy: &[&str]) -> Result<()> {
    cluster.holdfast(&[&["set", "place", SET][..], policy].concat())?;
    let now = settled(cluster, |voters| !voters.contains(&member))?;
    let mut found = part(cluster, member);
    let free = wait_until(CHANGE_LIMIT, || {
        found = part(cluster, member);
        found.as_ref().is_ok_and(|(runs, used)| !runs && *used <= IDLE_JOURNAL_BYTES)
    });
    anyhow::ensure!(free, "m{member} has left, and still has (group runs, bytes of its journal): {found:?}");
    let found = part(cluster, member)?;
    note(format!("m{member} left: the set is on {now:?}; its journal takes {} MiB", found.1 >> 20));
    goes_on(progress)
}

/// One that came back counts: without another voter the set is served.
fn depends_on(cluster: &mut Cluster, progress: &Progress, back: u64) -> Result<()> {
    let now = settled(cluster, |voters| voters.contains(&back))?;
    let other = now.into_iter().find(|member| *member != back).context("no other voter")?;
    let index = usize::try_from(other)? - 1;
    cluster.kill(index)?;
    goes_on(progress)?;
    cluster.restart(index)?;
    note(format!("m{back} came back: m{other} was killed, and the set was served"));
    goes_on(progress)
}
