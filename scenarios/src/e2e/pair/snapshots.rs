//! Snapshots and the schedule survive the gateway that took them (ADR 0035): the other one has them, with the same
//! content, and deletes none. And a gateway with an older build than the pair needs does not get the seat (PAIR-P6).

use super::lab::{BLOCKS, PATIENCE, Pair, words};
use crate::cluster::{SET, VOLUME};
use crate::cmd::tail_of;
use crate::e2e::TAKEOVER_LIMIT;
use crate::e2e::blocks::BLOCK;
use crate::nbd::{Client, Uri, pattern, tag_of};
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result};
use std::collections::BTreeSet;
use std::time::Duration;

/// Takes a snapshot at once, and none after it.
const SCHEDULE: &str = "300dx3";
const KEPT: &str = "kept";
const GONE: &str = "gone";
const LIMIT: Duration = Duration::from_secs(60);

/// Behind the blocks of the ledger and the writers: this many blocks, all written with one tag at a time.
const AT: u64 = BLOCKS + 128;
const COUNT: u64 = 32;

fn places() -> impl Iterator<Item = u64> {
    (AT..AT + COUNT).map(|block| block * BLOCK as u64)
}

fn fill(client: &mut Client, tag: u64) -> Result<()> {
    for at in places() {
        client.write(at, &pattern(tag, at, BLOCK)).map_err(words)?;
    }
    client.flush().map_err(words)
}

/// The tag of all of them (R4).
fn shown(client: &mut Client) -> Result<u64> {
    let mut tags = BTreeSet::new();
    for at in places() {
        tags.insert(tag_of(&client.read(at, BLOCK as u32).map_err(words)?, at)?);
    }
    anyhow::ensure!(tags.len() == 1, "R4: found writes {tags:?}, expected one");
    tags.pop_first().context("no blocks")
}

/// The content of a snapshot at the serving gateway.
fn shown_by(pair: &Pair, at: usize, snapshot: &str) -> Result<u64> {
    // Its token is the same at both gateways, and after a takeover.
    let said = pair.must(at, &["snapshot", "token", &format!("{SET}@{snapshot}")])?;
    let token = said["token"].as_str().context("no token")?;
    let uri = Uri::parse(&format!("nbd://{}/{SET}/{VOLUME}@{snapshot}?token={token}", pair.gateways[at].nbd))?;
    let mut client = Client::connect(&uri, PATIENCE).map_err(words)?;
    let tag = shown(&mut client).with_context(|| format!("snapshot {snapshot}"))?;
    client.disconnect();
    Ok(tag)
}

/// The set's finished snapshots, by name.
fn listed(pair: &Pair, at: usize) -> Result<Vec<String>> {
    let said = pair.must(at, &["snapshot", "list", SET])?;
    let all = said["snapshots"].as_array().cloned().unwrap_or_default();
    let ready = all.iter().filter(|one| one["pending"] == false);
    let mut names: Vec<String> = ready.filter_map(|one| one["name"].as_str()).map(str::to_owned).collect();
    names.sort();
    Ok(names)
}

/// Exactly these exist, with the schedule that took one of them.
pub(super) fn are_there(pair: &Pair, at: usize, expected: &[String]) -> Result<()> {
    let found = listed(pair, at)?;
    anyhow::ensure!(found == expected, "SET-S15: found snapshots {found:?}, expected {expected:?}");
    let shown = pair.must(at, &["set", "show", SET])?;
    let schedule = &shown["snapshot_schedule"];
    anyhow::ensure!(schedule == SCHEDULE, "SET-S15: found schedule {schedule}, expected {SCHEDULE}: {shown}");
    Ok(())
}

/// The set's segments, as the S3 server keeps them.
fn segments(pair: &Pair) -> Result<BTreeSet<String>> {
    let folder = pair.s3.folder().join("sets/1/seg");
    let mut names = BTreeSet::new();
    for entry in std::fs::read_dir(&folder).with_context(|| folder.display().to_string())? {
        names.insert(entry?.file_name().to_string_lossy().into_owned());
    }
    anyhow::ensure!(!names.is_empty(), "no segments in {}", folder.display());
    Ok(names)
}

/// Takes snapshots, by hand and by the schedule, and deletes one; returns the remaining ones.
fn take(pair: &Pair, at: usize) -> Result<Vec<String>> {
    for name in [KEPT, GONE] {
        pair.must(at, &["snapshot", "create", &format!("{SET}@{name}"), "--timeout", "90s"])?;
    }
    pair.must(at, &["set", "schedule", SET, SCHEDULE, "--timeout", "30s"])?;
    let mut last = Vec::new();
    let taken = wait_until(LIMIT, || {
        last = listed(pair, at).unwrap_or_default();
        last.len() == 3
    });
    anyhow::ensure!(taken, "found snapshots {last:?}, expected {KEPT}, {GONE} and the schedule's");
    // Answered once the head omits it: from then on it does not come back.
    pair.must(at, &["snapshot", "delete", &format!("{SET}@{GONE}"), "--yes", "--timeout", "30s"])?;
    listed(pair, at)
}

/// Two takeovers, one after the other. Returns the snapshots after them.
pub(super) fn outlive(pair: &mut Pair) -> Result<Vec<String>> {
    let (holder, revision) = pair.holder(TAKEOVER_LIMIT)?;
    let (mut client, _) = pair.open(holder, "writer")?;
    fill(&mut client, 1)?;
    let snapshots = take(pair, holder)?;
    fill(&mut client, 2)?;

    let moment = pair.gateways[holder].kill()?;
    drop(client);
    let (next, revision) = pair.holder_other_than(Some(revision), TAKEOVER_LIMIT)?;
    let took = moment.elapsed();
    anyhow::ensure!(next != holder, "the killed gateway has the seat");
    are_there(pair, next, &snapshots)?;
    for snapshot in &snapshots {
        let found = shown_by(pair, next, snapshot)?;
        anyhow::ensure!(found == 1, "R4: snapshot {snapshot} shows write {found}, it was taken at 1");
    }
    let (mut client, token) = pair.open(next, "other")?;
    let found = shown(&mut client)?;
    anyhow::ensure!(found == 2, "PAIR-P4: found write {found}, flushed was 2");
    note(format!("killed: the other one serves after {took:?}, with snapshots {snapshots:?} and schedule {SCHEDULE}"));

    // Objects without a snapshot are deleted there; those of a snapshot are not.
    let before = segments(pair)?;
    fill(&mut client, 3)?;
    let deletes = wait_until(LIMIT, || segments(pair).is_ok_and(|now| !before.is_subset(&now)));
    anyhow::ensure!(deletes, "nothing is deleted after a takeover: {before:?}");
    client.disconnect();
    pair.must(next, &["lease", "release", SET, "--token", &token])?;
    pair.start_gateway(holder)?;
    pair.gateways[next].kill()?;
    let (back, _) = pair.holder_other_than(Some(revision), TAKEOVER_LIMIT)?;
    are_there(pair, back, &snapshots)?;
    for snapshot in &snapshots {
        let found = shown_by(pair, back, snapshot)?;
        anyhow::ensure!(found == 1, "SET-S15: snapshot {snapshot} shows write {found} two takeovers later, expected 1");
    }
    // No other write or wait before the next takeover.
    pair.must(back, &["snapshot", "delete", &format!("{SET}@{KEPT}"), "--yes", "--timeout", "30s"])?;
    pair.start_gateway(next)?;
    listed(pair, back)
}

/// PAIR-P6: a pair's stores may be of a higher level than a build knows. Such a gateway reports that, and exits.
pub(super) fn too_old(pair: &mut Pair, at: usize) -> Result<()> {
    let roster = "{\"form\":1,\"level\":99,\"gateways\":{\"new\":99,\"newer\":99}}";
    pair.etcd.ctl(&["put", "/e2e/pairs/newer/roster", roster])?;
    pair.start_with(at, &["pair.name=newer"])?;
    let gateway = &mut pair.gateways[at];
    let status = gateway.process()?.wait(PATIENCE).context("PAIR-P6: an older build than the pair needs runs on")?;
    let said = tail_of(&gateway.log, 8);
    let told = said.contains("knows feature level") && said.contains("the pair is at 99");
    anyhow::ensure!(
        !status.success() && told,
        "PAIR-P6: an older build than the pair needs ended with {status}: {said}"
    );
    let kept = pair.etcd.ctl(&["get", "/e2e/pairs/newer/roster", "--print-value-only"])?;
    anyhow::ensure!(kept.trim() == roster, "PAIR-P6: the roster was {roster}, and is {kept}");
    note("a gateway whose build does not know the pair's level exited with that reason");
    Ok(())
}
