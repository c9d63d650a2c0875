//! Space is freed: overwritten data, deleted snapshots; and only the leader deletes.
//!
//! ```text
//!  write 48 MiB again and again ─▶ store settles ─▶ snapshot ─▶ overwrite ─▶ kill -9, takeover ─▶ snapshot intact
//!    ─▶ the reported stored bytes are there, and no more ─▶ delete it: the store shrinks by the bytes reported as its own
//!    ─▶ overwrite, SIGSTOP the leader while it deletes, another takes over, SIGCONT ─▶ the old one deletes no more ─▶ all writes are there
//! ```

use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{Cluster, Options, SET, VOLUME};
use crate::nbd::{Client, NbdError, Uri, pattern, tag_of};
use crate::process::wait_until;
use crate::say::note;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Range that is overwritten, and how often.
const RANGE: u64 = 48 * MIB;
const ROUNDS: u64 = 6;
const CHUNK: u64 = 256 << 10;
/// One block of this length in each chunk is overwritten alone, so that segments become partly unused.
const SMALL: u64 = 16 << 10;
/// Generous: the machine may be busy, and the grace period begins again after a takeover.
const SETTLE_LIMIT: Duration = Duration::from_secs(120);
const PATIENCE: Duration = Duration::from_secs(30);
/// Most closed connections during one write.
const CLOSED_MAX: u32 = 3;
const GRACE_MS: u64 = 4000;
/// A stopped leader may be elected again, and then nothing is shown.
const PAUSES_MAX: usize = 3;
/// Bytes in the store besides those named by maps: roots, heads, and the cluster's own objects.
const BESIDE: u64 = MIB;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let settings = [
        "upload.bytes=\"32MiB\"".to_string(),
        "upload.interval_ms=1000".to_string(),
        "upload.whole_root=0B".to_string(),
        format!("space.grace_ms={GRACE_MS}"),
        "space.sweep_interval_ms=2000".to_string(),
        // So slow that a leader can be stopped in between.
        "space.deletes_per_second=1".to_string(),
    ];
    let mut cluster = Cluster::start(Options { settings: settings.into(), ..lab.options("256MiB", &[]) })?;
    let store = cluster.options.dir.join("store");
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;

    let mut tag = 0;
    let mut most = 0;
    for _ in 0..ROUNDS {
        tag += 1;
        again(&mut cluster, &mut client, |client| fill(client, tag))?;
        most = most.max(stored(&store).bytes);
    }
    // One block of each chunk is newer: segments become partly unused.
    tag += 1;
    again(&mut cluster, &mut client, |client| small_blocks(client, tag))?;
    let live = RANGE;
    let settled = settles(&store, live * 14 / 10).context("after the overwrites")?;
    note(format!(
        "{} MiB written over {} MiB: the store settles at {} MiB in {} objects (at most {} MiB meanwhile)",
        (ROUNDS * RANGE + RANGE / CHUNK * SMALL) / MIB,
        RANGE / MIB,
        settled.bytes / MIB,
        settled.objects,
        most / MIB
    ));

    // A snapshot, then everything is overwritten, and the leader is killed.
    let (base, top) = (tag - 1, tag);
    cluster.holdfast(&["snapshot", "create", &format!("{SET}@first"), "--timeout", "90s"])?;
    tag += 1;
    again(&mut cluster, &mut client, |client| {
        fill(client, tag)?;
        Ok(client.flush()?)
    })?;
    drop(client);
    let serving = cluster.serving(TAKEOVER_LIMIT)?;
    cluster.kill(serving)?;
    let (next, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    check(&mut client, |_| tag).context("the volume after the takeover")?;
    let both = settles(&store, 2 * live * 14 / 10).context("with the snapshot")?;
    let listed = cluster.holdfast(&["snapshot", "list", SET])?;
    anyhow::ensure!(listed["snapshots"][0]["name"] == "first", "the list of snapshots: {listed}");
    let shown = |offset: u64| if offset.is_multiple_of(CHUNK) { top } else { base };
    for index in cluster.others(serving) {
        check_snapshot(&cluster.gateways[index].nbd, shown)
            .with_context(|| format!("the snapshot through {}", cluster.name(index)))?;
    }
    note(format!(
        "{} killed, {} took over: the snapshot shows what it showed, at two gateways; {} MiB stored",
        cluster.name(serving),
        cluster.name(next),
        both.bytes / MIB
    ));
    cluster.restart(serving)?;
    cluster.caught_up(SETTLE_LIMIT)?;

    let before = at_rest(&cluster, &store).context("with the snapshot")?;
    anyhow::ensure!(before.snapshots.len() == 1, "the space of snapshots: {:?}", before.snapshots);
    let first = &before.snapshots[0];
    anyhow::ensure!(first["written_bytes"] == RANGE, "what the snapshot shows: {first}, expected {RANGE} bytes");
    let unique = number(first, "unique_bytes")?;
    // All of it was overwritten since, and its blocks do not compress to half.
    anyhow::ensure!(unique > RANGE / 2, "only the snapshot's own: {} MiB of {} MiB", unique / MIB, RANGE / MIB);
    anyhow::ensure!(
        before.kept == before.current + unique,
        "kept {}, expected {} of the volumes and {unique} of the only snapshot",
        before.kept,
        before.current
    );
    cluster.holdfast(&["snapshot", "delete", &format!("{SET}@first"), "--yes"])?;
    let less = settles(&store, live * 14 / 10).context("after the deletion of the snapshot")?;
    let after = at_rest(&cluster, &store).context("without the snapshot")?;
    anyhow::ensure!(after.snapshots.is_empty() && after.kept == after.current, "something else is kept");
    // Collection's effect on the volumes meanwhile does not count for the snapshot.
    let freed = before.there.saturating_sub(after.there);
    let expected = (before.current + unique).saturating_sub(after.current);
    anyhow::ensure!(freed.abs_diff(expected) <= BESIDE, "deleting it gave back {freed} bytes, expected {expected}");
    note(format!(
        "snapshot deleted: {} MiB stored; it gave back {} MiB, {} MiB were said to be its own",
        less.bytes / MIB,
        freed / MIB,
        unique / MIB
    ));
    let gone = Client::connect(&cluster.gateways[next].nbd.with_export(&format!("{SET}/{VOLUME}@first")), PATIENCE);
    anyhow::ensure!(gone.is_err(), "a deleted snapshot is still exported");

    drop(client);
    let mut judged = false;
    for _ in 0..PAUSES_MAX {
        tag += 1;
        judged = paused_while_deleting(&mut cluster, &store, tag)?;
        if judged {
            break;
        }
    }
    anyhow::ensure!(judged, "the stopped gateway led again each time: nothing was tested");
    cluster.stop()?;
    Ok(())
}

/// The leader is stopped while it deletes, and resumed when another one leads. False if it leads again at the end: then
/// it may delete.
fn paused_while_deleting(cluster: &mut Cluster, store: &Path, tag: u64) -> Result<bool> {
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    again(cluster, &mut client, |client| {
        fill(client, tag)?;
        Ok(client.flush()?)
    })?;
    drop(client);
    let serving = cluster.serving(TAKEOVER_LIMIT)?;
    let waiting = wait_until(SETTLE_LIMIT, || stored(store).bytes > RANGE * 15 / 10);
    anyhow::ensure!(waiting, "nothing waits for deletion after an overwrite");
    // `holdfast dev` keeps one log; a gateway that this program restarted writes the other.
    let name = cluster.name(serving);
    let dir = &cluster.options.dir;
    let logs = [dir.join(format!("{name}.log")), dir.with_extension(format!("{name}.log"))];
    let (names, said) = (names(store), deleted(&logs));
    let gone = || names.iter().filter(|name| !name.exists()).count();
    anyhow::ensure!(wait_until(SETTLE_LIMIT, || gone() > 0), "nothing is deleted after an overwrite");
    let begun = Instant::now();
    cluster.pause(serving)?;
    let others = cluster.others(serving);
    let took_over = cluster.first_to_serve(&others, begun, TAKEOVER_LIMIT);
    // Earlier deletions, which it reports only after all of them. The other one waits for its own grace period before
    // it deletes.
    let (before, untold) = (deleted(&logs), gone().saturating_sub(deleted(&logs) - said));
    cluster.proceed(serving);
    let (next, _) = took_over?;
    // By the time the other one has deleted everything, the old one had enough time to do harm.
    let last = settles(store, RANGE * 14 / 10).context("after the pause")?;
    let after = deleted(&logs);
    let leads = cluster.serving(TAKEOVER_LIMIT)? == serving;
    anyhow::ensure!(
        leads || after - before <= untold,
        "{name} was stopped with {untold} deletions to tell of, lost its leadership, and told of {} after that",
        after - before
    );
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    check(&mut client, |_| tag).context("the volume after the pause")?;
    client.disconnect();
    note(format!(
        "{name} stopped in the middle of deleting and continued, {} led meanwhile: {untold} deleted before, none after; {} MiB stored{}",
        cluster.name(next),
        last.bytes / MIB,
        if leads { "; but it leads again, so this shows nothing" } else { "" }
    ));
    Ok(!leads)
}

/// All files below the store's folder.
fn names(dir: &Path) -> Vec<PathBuf> {
    let mut all = Vec::new();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => all.extend(names(&path)),
            false => all.push(path),
        }
    }
    all
}

/// Number of objects that the gateway logged as deleted.
fn deleted(logs: &[PathBuf]) -> usize {
    let said = |log: &PathBuf| {
        let text = std::fs::read(log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text).into_owned();
        let lines = text.lines().filter(|line| line.contains("deleted from the store"));
        lines.filter_map(|line| line.split_once("objects=")?.1.trim().parse::<usize>().ok()).sum::<usize>()
    };
    logs.iter().map(said).sum()
}

/// Writes. If the connection is closed unanswered meanwhile, which a gateway without a quorum may do (R8), it connects
/// again and repeats the write (R12). Any other error fails, and so does silence, or more closed connections than
/// [`CLOSED_MAX`].
fn again(cluster: &mut Cluster, client: &mut Client, mut write: impl FnMut(&mut Client) -> Result<()>) -> Result<()> {
    use std::io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
    for _ in 0..CLOSED_MAX {
        let Err(e) = write(client) else { return Ok(()) };
        match e.downcast_ref() {
            Some(NbdError::Gone(io))
                if matches!(io.kind(), BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof) =>
            {
                note(format!("{e:#}: reconnected"));
            }
            _ => return Err(e),
        }
        (_, *client) = cluster.connect(TAKEOVER_LIMIT)?;
    }
    write(client)
}

fn fill(client: &mut Client, tag: u64) -> Result<()> {
    for at in (0..RANGE).step_by(CHUNK as usize) {
        let mut chunk = Vec::with_capacity(CHUNK as usize);
        for block in (0..CHUNK).step_by(SMALL as usize) {
            chunk.extend(pattern(tag, at + block, SMALL as usize));
        }
        client.write(at, &chunk)?;
    }
    Ok(())
}

fn small_blocks(client: &mut Client, tag: u64) -> Result<()> {
    for at in (0..RANGE).step_by(CHUNK as usize) {
        client.write(at, &pattern(tag, at, SMALL as usize))?;
    }
    client.flush()?;
    Ok(())
}

/// Every block is there, with the content in `expected` for its place.
fn check(client: &mut Client, expected: impl Fn(u64) -> u64) -> Result<()> {
    for at in (0..RANGE).step_by(CHUNK as usize) {
        let chunk = client.read(at, CHUNK as u32)?;
        for (block, bytes) in (at..).step_by(SMALL as usize).zip(chunk.chunks(SMALL as usize)) {
            let found = tag_of(bytes, block)?;
            anyhow::ensure!(
                found == expected(block),
                "block {block}: found write {found}, expected {}",
                expected(block)
            );
        }
    }
    Ok(())
}

fn check_snapshot(gateway: &Uri, expected: impl Fn(u64) -> u64) -> Result<()> {
    let uri = gateway.with_export(&format!("{SET}/{VOLUME}@first"));
    let mut client = Client::connect(&uri, PATIENCE)?;
    check(&mut client, expected)?;
    anyhow::ensure!(client.write(0, &pattern(999, 0, 4096)).is_err(), "a snapshot took a write");
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct Stored {
    bytes: u64,
    objects: u64,
}

/// Files below the store's folder. Files may appear and disappear meanwhile.
fn stored(dir: &Path) -> Stored {
    let mut sum = Stored::default();
    for entry in std::fs::read_dir(dir).into_iter().flatten().flatten() {
        let path = entry.path();
        if path.is_dir() {
            let inner = stored(&path);
            sum.bytes += inner.bytes;
            sum.objects += inner.objects;
        } else if let Ok(facts) = entry.metadata() {
            sum.bytes += facts.len();
            sum.objects += 1;
        }
    }
    sum
}

/// Space according to `set show` at rest, and the actual files.
struct AtRest {
    snapshots: Vec<Value>,
    current: u64,
    kept: u64,
    there: u64,
}

fn number(of: &Value, name: &str) -> Result<u64> {
    of[name].as_u64().with_context(|| format!("no {name} in {of}"))
}

/// Waits until everything is in the store, too little garbage is left to collect, no deletion is pending, and the store
/// has the reported bytes, not less and not much more.
fn at_rest(cluster: &Cluster, store: &Path) -> Result<AtRest> {
    let mut said = Value::Null;
    let mut there = 0;
    let rests = wait_until(SETTLE_LIMIT, || {
        let Ok(shown) = cluster.holdfast(&["set", "show", SET]) else { return false };
        (said, there) = (shown["space"].clone(), stored(store).bytes);
        let of = |name: &str| said[name].as_u64().unwrap_or(0);
        let (kept, current, garbage) = (of("kept_stored_bytes"), of("current_stored_bytes"), of("garbage_bytes"));
        // A leader without figures yet shows 0 for all.
        let waits = ["journal_bytes", "retired_objects", "dropped_roots"].into_iter().any(|name| said[name] != 0);
        let little = garbage * 100 <= current.saturating_sub(garbage) * 30;
        !waits && said["incomplete"] == false && little && kept <= there && there - kept <= BESIDE
    });
    anyhow::ensure!(
        rests,
        "the set did not come to rest within {SETTLE_LIMIT:?}, or reports other bytes than the {there} in the store: {said}"
    );
    anyhow::ensure!(said["provisioned_bytes"] == 256 * MIB, "provisioned: {said}");
    anyhow::ensure!(said["written_bytes"] == RANGE, "written: {said}, expected {RANGE} bytes");
    let (current, kept) = (number(&said, "current_stored_bytes")?, number(&said, "kept_stored_bytes")?);
    anyhow::ensure!(
        (RANGE / 2..=RANGE * 14 / 10).contains(&current),
        "in the store: {current} bytes for {RANGE} that are written"
    );
    let (live, garbage) = (number(&said, "live_stored_bytes")?, number(&said, "garbage_bytes")?);
    // The rest are pages of the map.
    anyhow::ensure!(live > RANGE / 2 && live + garbage <= current, "live {live}, garbage {garbage} of {current} bytes");
    let snapshots = said["snapshots"].as_array().cloned().unwrap_or_default();
    Ok(AtRest { snapshots, current, kept, there })
}

/// Waits until the store is no larger than `most`.
fn settles(store: &Path, most: u64) -> Result<Stored> {
    let there = wait_until(SETTLE_LIMIT, || stored(store).bytes <= most);
    let found = stored(store);
    anyhow::ensure!(
        there,
        "the store holds {} MiB in {} objects after {SETTLE_LIMIT:?}, expected at most {} MiB",
        found.bytes / MIB,
        found.objects,
        most / MIB
    );
    Ok(found)
}
