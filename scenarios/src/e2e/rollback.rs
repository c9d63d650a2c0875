//! A set is rolled back to a snapshot, and back again; no earlier content returns by itself.
//!
//! ```text
//!  write 1, snapshot, write 2 over half ─▶ refused while it is in use ─▶ --force: the client's connection ends ─▶ reads 1
//!    ─▶ write 3, kill -9 ─▶ reads 1 and 3 ─▶ back to the safety snapshot: reads 1 and 2 ─▶ kill -9, again
//!    ─▶ the snapshots go, the content stays ─▶ a snapshot of the same name is another snapshot ─▶ diff ─▶ a schedule
//! ```

use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, SET, VOLUME};
use crate::nbd::{Client, pattern, tag_of};
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result};
use serde_json::Value;
use std::time::Duration;

const MIB: u64 = 1 << 20;
const RANGE: u64 = 8 * MIB;
const BLOCK: u64 = 64 << 10;
const PATIENCE: Duration = Duration::from_secs(30);

pub(super) fn run(lab: &Lab) -> Result<()> {
    // Collection moves nothing: differences are exactly the writes.
    let settings =
        ["upload.interval_ms=500", "space.grace_ms=1000", "space.sweep_interval_ms=2000", "space.target_percent=400"];
    let mut cluster = Cluster::start(lab.options("64MiB", &settings))?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    fill(&mut client, 1, |_| true)?;
    cluster.holdfast(&["snapshot", "create", &at("first"), "--timeout", "90s"])?;
    let odd = |block: u64| block % 2 == 1;
    fill(&mut client, 2, odd)?;

    let refused = cluster.holdfast(&["snapshot", "rollback", &at("first"), "--yes", "--timeout", "90s"]);
    anyhow::ensure!(refused.is_err(), "a set that is in use was rolled back");
    check(&mut client, |block| 1 + u64::from(odd(block))).context("after the refusal")?;
    let safety = rollback(&cluster, "first")?;
    let write = client.write(0, &pattern(9, 0, BLOCK as usize));
    anyhow::ensure!(write.is_err(), "R6: a client from before the rollback wrote to the set after it");
    drop(client);
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    check(&mut client, |_| 1).context("after the rollback")?;
    fill(&mut client, 3, |block| block < 8)?;
    drop(client);
    kill(&mut cluster)?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    check(&mut client, |block| if block < 8 { 3 } else { 1 }).context("after the rollback and a takeover")?;
    drop(client);
    let shown = cluster.serving(TAKEOVER_LIMIT)?;
    let uri = cluster.gateways[shown].nbd.with_export(&format!("{SET}/{VOLUME}@{safety}"));
    check(&mut Client::connect(&uri, PATIENCE)?, |block| 1 + u64::from(odd(block))).context("the safety snapshot")?;
    note(format!("rolled back to first, {safety} has the content from before, a takeover changes nothing"));

    // Rolled back, and the leader is killed at once: its work in progress must not return.
    let second = rollback(&cluster, &safety)?;
    kill(&mut cluster)?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    check(&mut client, |block| 1 + u64::from(odd(block))).context("after the way back and a takeover")?;
    drop(client);
    for name in ["first", &safety, &second] {
        cluster.holdfast(&["snapshot", "delete", &at(name), "--yes"])?;
    }
    // The checkpoint after the rollback, and deletion of objects that only the snapshots needed.
    cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "60s"])?;
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    check(&mut client, |block| 1 + u64::from(odd(block))).context("after the snapshots are gone")?;
    drop(client);
    let listed = cluster.holdfast(&["snapshot", "list", SET])?;
    anyhow::ensure!(listed["snapshots"].as_array().is_some_and(Vec::is_empty), "snapshots are left: {listed}");
    note("rolled back to the safety snapshot through a kill; its snapshots are gone, its content is not");

    // A reused name is another snapshot, with its own id.
    let id = |made: &Value| made["id"].as_str().map(str::to_string).context("a snapshot without an id");
    let one = id(&cluster.holdfast(&["snapshot", "create", &at("again"), "--timeout", "90s"])?)?;
    cluster.holdfast(&["snapshot", "delete", &at("again"), "--yes"])?;
    let two = id(&cluster.holdfast(&["snapshot", "create", &at("again"), "--timeout", "90s"])?)?;
    anyhow::ensure!(one != two, "two snapshots of one name have one id: {one}");

    // One more block: the only difference.
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    fill(&mut client, 4, |block| block == 5)?;
    drop(client);
    cluster.holdfast(&["snapshot", "create", &at("later"), "--timeout", "90s"])?;
    let found = cluster.holdfast_lines(&["snapshot", "diff", SET, "again", "later"])?;
    let ranges: Vec<_> = found.iter().filter(|line| line["kind"] == "range").collect();
    let block = |range: &Value| {
        range["volume"] == VOLUME
            && range["offset"] == 5 * BLOCK
            && range["length"] == BLOCK
            && range["content"] == "data"
    };
    anyhow::ensure!(ranges.len() == 1 && block(ranges[0]), "the difference of one block: {found:?}");

    // A schedule takes its first snapshot at once, and only one.
    cluster.holdfast(&["set", "schedule", SET, "1hx2,1d×3"])?;
    let shown = cluster.holdfast(&["set", "show", SET])?;
    anyhow::ensure!(shown["snapshot_schedule"] == "1hx2,1dx3", "the schedule as shown: {shown}");
    let scheduled = || -> Result<usize> {
        let listed = cluster.holdfast(&["snapshot", "list", SET])?;
        let all = listed["snapshots"].as_array().cloned().unwrap_or_default();
        Ok(all.iter().filter(|one| one["scheduled"] == true && one["pending"] == false).count())
    };
    let taken = wait_until(TAKEOVER_LIMIT, || scheduled().is_ok_and(|count| count > 0));
    anyhow::ensure!(taken, "the schedule takes no snapshot");
    cluster.holdfast(&["set", "checkpoint", SET, "--timeout", "60s"])?;
    // An hour may have begun meanwhile.
    let count = scheduled()?;
    anyhow::ensure!((1..=2).contains(&count), "{count} scheduled snapshots, expected one");
    cluster.holdfast(&["set", "schedule", SET, "off"])?;
    note("a block more is all that differs; a schedule takes one, at once");
    cluster.stop()?;
    Ok(())
}

fn at(name: &str) -> String {
    format!("{SET}@{name}")
}

/// Rolls back by force; the name of the safety snapshot.
fn rollback(cluster: &Cluster, to: &str) -> Result<String> {
    let done = cluster.holdfast(&["snapshot", "rollback", &at(to), "--force", "--yes", "--timeout", "90s"])?;
    let name = done["safety"]["name"].as_str();
    name.map(str::to_string).with_context(|| format!("no safety snapshot in the answer {done}"))
}

fn kill(cluster: &mut Cluster) -> Result<()> {
    let serving = cluster.serving(TAKEOVER_LIMIT)?;
    cluster.kill(serving)?;
    cluster.serving(TAKEOVER_LIMIT)?;
    cluster.restart(serving)?;
    cluster.caught_up(TAKEOVER_LIMIT)
}

fn fill(client: &mut Client, tag: u64, which: impl Fn(u64) -> bool) -> Result<()> {
    for block in (0..RANGE / BLOCK).filter(|block| which(*block)) {
        client.write(block * BLOCK, &pattern(tag, block * BLOCK, BLOCK as usize))?;
    }
    client.flush()?;
    Ok(())
}

/// Every block has the write in `expected` for its number.
fn check(client: &mut Client, expected: impl Fn(u64) -> u64) -> Result<()> {
    for block in 0..RANGE / BLOCK {
        let bytes = client.read(block * BLOCK, BLOCK as u32)?;
        let found = tag_of(&bytes, block * BLOCK)?;
        let expected = expected(block);
        anyhow::ensure!(found == expected, "block {block}: found write {found}, expected {expected}");
    }
    Ok(())
}
