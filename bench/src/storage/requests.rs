//! Rows that count single requests: an idle set, and uncached reads.

use super::figures::{MIB, per_hour, shown};
use super::lab::Lab;
use super::plan::{Figure, Goal, Plan, Row};
use crate::cluster::SET;
use crate::nbd::Client;
use crate::process::wait_until;
use crate::say::note;
use anyhow::Result;
use serde_json::json;
use std::time::{Duration, Instant};

/// Limit of every wait.
const PATIENCE: Duration = Duration::from_secs(60);
/// Time until the deletions after the last checkpoint are done: their grace period is one minute.
const SETTLE: Duration = Duration::from_secs(90);
/// Less than the scrub takes: at 1 MiB a second 256 MiB take longer.
const SCRUB_WATCHED: Duration = Duration::from_secs(60);
const READ: u32 = 128 << 10;
/// The part of a volume that one page of the map covers.
const PAGE: u64 = 32 * MIB;
const IN_ORDER: &str = "written in order, the most";

/// A set with one idle connection; then the same during a scrub.
pub fn idle(plan: &Plan) -> Result<Row> {
    let mut lab = Lab::start(plan, "idle", plan.scale.idle_mib, Vec::new())?;
    let size = format!("--size={}m", plan.scale.idle_mib);
    lab.fio(&["--rw=write", "--bs=1m", "--iodepth=4", &size])?()?;
    lab.checkpoint()?;
    let (_, mut client) = lab.cluster.connect(PATIENCE)?;
    client.read(0, 4096)?;
    let settle = if plan.quick { Duration::from_secs(15) } else { SETTLE };
    note(format!("{} MiB written; settling for {} s", plan.scale.idle_mib, settle.as_secs()));
    wait_until(settle, || false);
    let mut details = serde_json::Map::new();
    let term = || lab.cluster.holdfast(&["set", "show", SET]).map(|set| set["term"].clone());
    let led = term()?;
    let seconds = plan.seconds.unwrap_or(plan.scale.idle_s);
    note(format!("watching for {seconds} s"));
    let (mark, begun) = (lab.mark()?, Instant::now());
    wait_until(Duration::from_secs(seconds), || false);
    let (counts, watched) = (lab.since(mark)?, begun.elapsed());
    let moved = term()? != led;
    note(format!(
        "{:.0} s: {}{}",
        watched.as_secs_f64(),
        counts.short(),
        if moved { "; leadership moved" } else { "" }
    ));
    // Once in `scrub.interval_ms` (a month) everything is read for damage, at `scrub.bytes_per_second`: requests in an
    // hour of that.
    lab.cluster.holdfast(&["set", "scrub", SET, "--start"])?;
    let (mark, begun) = (lab.mark()?, Instant::now());
    wait_until(SCRUB_WATCHED.min(Duration::from_secs(seconds)), || false);
    let (scrub, took) = (lab.since(mark)?, begun.elapsed());
    let scrubbing = per_hour(scrub.requests(), took);
    note(format!("while it is read for damage, {:.0} s: {}", took.as_secs_f64(), scrub.short()));
    client.disconnect();
    lab.stop()?;
    let hourly = per_hour(counts.requests(), watched);
    details.insert("seconds".into(), json!(watched.as_secs_f64()));
    details.insert("leadership_moved".into(), json!(moved));
    details.insert("requests".into(), json!(counts));
    details.insert("during_scrub".into(), json!({ "seconds": took.as_secs_f64(), "requests": scrub }));
    let figures = vec![
        Figure::new("idle set", "requests an hour", hourly, 0).with(Goal::Below(60.0)),
        Figure::new("idle set", "the same while it is read for damage (scrub)", scrubbing, 0),
    ];
    Ok(Row { key: "idle", figures, details: details.into() })
}

/// Writes the first half of a volume in order, and the other one in pieces: neighbours are written at different times.
fn write_halves(lab: &mut Lab, bytes: u64, half: u64) -> Result<()> {
    let size = format!("--size={half}");
    lab.fio(&["--rw=write", "--bs=128k", "--iodepth=4", &size])?()?;
    let (offset, rest) = (format!("--offset={half}"), format!("--size={}", bytes - half));
    lab.fio(&["--rw=write", "--bs=1m", "--iodepth=4", &offset, &rest])?()?;
    lab.checkpoint()?;
    let many = format!("--io_size={bytes}");
    lab.fio(&["--rw=randwrite", "--bs=8k", "--iodepth=16", &offset, &rest, &many])?()?;
    lab.checkpoint()
}

/// GETs for uncached reads of 128 KiB.
pub fn cold_read(plan: &Plan) -> Result<Row> {
    let (mib, reads) = (plan.scale.cold_mib, plan.scale.cold_reads);
    // A scrub's reads would be counted too; and this strided reader would get read-ahead: four GETs at every fourth
    // read.
    let settings = ["cache.disk=\"0B\"", "cache.read_ahead=\"0B\"", "scrub.bytes_per_second=\"0B\""];
    let settings = settings.map(String::from).into();
    let mut lab = Lab::start(plan, "cold-read", mib, settings)?;
    let half = (mib * MIB / 2 / PAGE).max(1) * PAGE;
    write_halves(&mut lab, mib * MIB, half)?;
    // Only memory caches here, and it is empty after a start.
    let mut lab = lab.begin_again()?;
    let (_, mut client) = lab.cluster.connect(PATIENCE)?;
    let (mut row, mut first) = (Vec::new(), None);
    let read = u64::from(READ);
    let kinds = [
        (IN_ORDER, 0, half, read),
        // Neighbours of earlier reads would be cached.
        ("written in order, across two extents, median", 0, half, 3 * read + read / 2),
        ("written over in 8 KiB pieces, median", half, mib * MIB, read),
    ];
    for (title, base, end, shift) in kinds {
        // One read in each page of the map fetches that page for all later reads. (The query for the serving gateway
        // needed the very first page.)
        for page in (base..end).step_by(PAGE as usize).skip(usize::from(base == 0)) {
            let found = gets(&lab, &mut client, page)? as f64;
            first.get_or_insert(found);
        }
        // Each place once, far enough apart that no read is another one's neighbour.
        let step = ((end - base) / reads / read).max(6) * read;
        let places = (base..end).step_by(step as usize).map(|at| at + shift);
        let mut found: Vec<f64> = Vec::new();
        for at in places.take_while(|at| at + read <= end) {
            found.push(gets(&lab, &mut client, at)? as f64);
        }
        let most = found.iter().copied().reduce(f64::max);
        let median = crate::stats::median(&found);
        note(format!("{title}: {} reads, median {} GETs, most {}", found.len(), shown(median, 0), shown(most, 0)));
        row.push((title, median, most, found));
    }
    client.disconnect();
    lab.stop()?;
    let of = "GETs of a cold 128 KiB";
    let mut figures = vec![Figure::new(of, "first in its 32 MiB, with the page of the map", first, 0)];
    for (title, median, most, _) in &row {
        figures.push(match *title {
            IN_ORDER => Figure::new(of, title, *most, 0).with(Goal::AtMost(1.0)),
            _ => Figure::new(of, title, *median, 0),
        });
    }
    let details = row
        .iter()
        .map(|(title, median, most, found)| json!({ "read": title, "median": median, "most": most, "gets": found }));
    Ok(Row { key: "cold-read", figures, details: details.collect() })
}

/// GETs of one read, without reads of the head: those depend on time, not on the read.
fn gets(lab: &Lab, client: &mut Client, at: u64) -> Result<u64> {
    let mark = lab.mark()?;
    client.read(at, READ)?;
    // The server logs a request at about the time of its answer.
    std::thread::sleep(Duration::from_millis(10));
    let counts = lab.since(mark)?;
    Ok(["GetObject seg", "GetObject map", "GetObject root"].iter().map(|name| counts.one(name).requests).sum())
}
