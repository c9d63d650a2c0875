//! The journal fills while S3 is away: writers slow down gradually, long before it is full, and none gets an error.

use super::{Lab, TAKEOVER_LIMIT};
use crate::nbd::{Client, Uri, pattern, tag_of};
use crate::process::wait_until;
use crate::s3::S3;
use crate::say::note;
use crate::web::page;
use anyhow::{Context, Result};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// The part of the journal that only control entries may use: two files of 16 MiB, the minimum.
const RESERVE_MIB: u64 = 32;
const WRITERS: u64 = 4;
const CHUNK: u64 = 64 << 10;
/// The range that each writer overwrites again and again.
const ROW: u64 = 32 * MIB;
/// Levels of fill, in percent of what client data may use; the last one has no end.
const LEVELS: [u64; 8] = [0, 60, 70, 80, 90, 95, 97, 99];
/// Until the journal is nearly full.
const FILL_LIMIT: Duration = Duration::from_secs(180);
const ENOUGH: u64 = 97;
/// Delay of an entry at 90 % by the curve of `crates/set/src/pace.rs`.
const PAUSE_AT_90: Duration = Duration::from_millis(56);
/// Timeout for one answer, also while the journal is full.
const PATIENCE: Duration = Duration::from_secs(120);

/// Answers: fill in percent, and duration.
type Answers = Mutex<Vec<(u64, Duration)>>;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut s3 = S3::start(&lab.dir)?;
    let settings =
        ["journal.bound=\"160MiB\"", "journal.reserve=\"32MiB\"", "journal.file=\"16MiB\"", "upload.bytes=\"16MiB\""];
    let mut cluster = lab.cluster_as("128MiB", Some(s3.url()), &settings, s3.env())?;
    let serving = cluster.serving(TAKEOVER_LIMIT)?;
    let (uri, metrics) = (cluster.gateways[serving].nbd.clone(), cluster.metrics_address(serving)?);
    s3.stop()?;

    let (fill, stop, answers) = (AtomicU64::new(0), AtomicBool::new(false), Answers::default());
    let begun = Instant::now();
    let (written, most) = std::thread::scope(|scope| -> Result<(Vec<u64>, u64)> {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (uri, fill, stop, answers) = (&uri, &fill, &stop, &answers);
                scope.spawn(move || write(uri, writer, fill, stop, answers))
            })
            .collect();
        let filled = watch(&metrics, &fill, || writers.iter().any(|w| w.is_finished()));
        stop.store(true, Ordering::Relaxed);
        // Writers that wait for journal space are answered when the store is back.
        s3.resume()?;
        let tags: Result<Vec<u64>> = writers
            .into_iter()
            .map(|w| w.join().unwrap_or_else(|_| Err(anyhow::anyhow!("a writer panicked"))))
            .collect();
        Ok((tags.context("R8")?, filled?))
    })?;
    let took = begun.elapsed();
    let answers = answers.into_inner().unwrap_or_default();
    report(&answers);
    note(format!("{most} % full after {:.0} s without S3", took.as_secs_f64()));
    anyhow::ensure!(most >= ENOUGH, "the journal was {most} % full after {FILL_LIMIT:?}, expected {ENOUGH} %");
    judge(&answers).context("R8: a curve, not a wall")?;
    let drained = wait_until(Duration::from_secs(120), || {
        page(&metrics, "/metrics").and_then(|page| fill_of(&page)).is_ok_and(|fill| fill < LEVELS[1])
    });
    anyhow::ensure!(drained, "the journal has not been freed two minutes after S3 came back");
    let (_, mut client) = cluster.connect(TAKEOVER_LIMIT)?;
    for (writer, last) in (0..).zip(written) {
        check(&mut client, writer, last)?;
    }
    client.disconnect();
    cluster.stop()?;
    Ok(())
}

/// Follows the fill until it is high enough, or for [`FILL_LIMIT`], or until `ended`; returns the highest.
fn watch(metrics: &str, fill: &AtomicU64, ended: impl Fn() -> bool) -> Result<u64> {
    let (begun, mut most) = (Instant::now(), 0);
    while most < ENOUGH && begun.elapsed() < FILL_LIMIT && !ended() {
        let now = fill_of(&page(metrics, "/metrics")?)?;
        fill.store(now, Ordering::Relaxed);
        most = most.max(now);
        std::thread::sleep(Duration::from_millis(20));
    }
    Ok(most)
}

/// Fill level in percent of the space for client data.
fn fill_of(metrics: &str) -> Result<u64> {
    let value = |name: &str| -> Result<f64> {
        let line = metrics.lines().find(|line| line.split(' ').next() == Some(name));
        let value =
            line.and_then(|line| line.rsplit(' ').next()).with_context(|| format!("no {name} in the metrics"))?;
        Ok(value.parse()?)
    };
    let reserve = (RESERVE_MIB * MIB) as f64;
    let room = value("holdfast_journal_bound_bytes")? - reserve;
    Ok((value("holdfast_journal_used_bytes")? / room * 100.0) as u64)
}

fn place(writer: u64, tag: u64) -> u64 {
    writer * ROW + (tag * CHUNK) % ROW
}

/// Writes until told to stop; returns the last answered write.
fn write(uri: &Uri, writer: u64, fill: &AtomicU64, stop: &AtomicBool, answers: &Answers) -> Result<u64> {
    // One plain lease for all of them, since they have one address.
    let mut client = Client::connect(uri, PATIENCE)?;
    let mut tag = 0;
    while !stop.load(Ordering::Relaxed) {
        let (at, level, begun) = (place(writer, tag + 1), fill.load(Ordering::Relaxed), Instant::now());
        client.write(at, &pattern(tag + 1, at, CHUNK as usize)).context("a write while S3 is away")?;
        tag += 1;
        if let Ok(mut answers) = answers.lock() {
            answers.push((level, begun.elapsed()));
        }
    }
    client.disconnect();
    Ok(tag)
}

/// Checks that every chunk has its last write.
fn check(client: &mut Client, writer: u64, last: u64) -> Result<()> {
    let chunks = ROW / CHUNK;
    for tag in last.saturating_sub(chunks) + 1..=last {
        let at = place(writer, tag);
        let found = tag_of(&client.read(at, CHUNK as u32)?, at)?;
        anyhow::ensure!(found == tag, "chunk at {at}: found write {found}, expected {tag}");
    }
    Ok(())
}

fn report(answers: &[(u64, Duration)]) {
    for (number, from) in LEVELS.iter().enumerate() {
        let below = LEVELS.get(number + 1).copied().unwrap_or(u64::MAX);
        let mut took: Vec<Duration> =
            answers.iter().filter(|(fill, _)| (*from..below).contains(fill)).map(|(_, took)| *took).collect();
        took.sort_unstable();
        let at = |share: usize| took.get(took.len() * share / 100).map_or(0.0, |took| took.as_secs_f64() * 1e3);
        let longest = took.last().map_or(0.0, |took| took.as_secs_f64() * 1e3);
        note(format!(
            "fill {from:>2} % and up: {:>6} writes of 64 KiB, p50 {:>7.1} ms, p90 {:>7.1} ms, longest {longest:>7.1} ms",
            took.len(),
            at(50),
            at(90)
        ));
    }
}

/// The less space is left, the slower writers get. The machine's own speed is not checked: levels are compared with
/// each other, and one with half of the curve's delay.
fn judge(answers: &[(u64, Duration)]) -> Result<()> {
    let median = |from: u64, below: u64| {
        let at = answers.iter().filter(|(fill, _)| (from..below).contains(fill));
        let mut took: Vec<Duration> = at.map(|(_, took)| *took).collect();
        took.sort_unstable();
        let middle = took.get(took.len() / 2).copied();
        middle.with_context(|| format!("no write was answered between {from} % and {below} % of fill"))
    };
    let (free, eighty, ninety, last) = (median(0, 60)?, median(80, 90)?, median(90, 95)?, median(95, 97)?);
    anyhow::ensure!(
        ninety > free && ninety >= PAUSE_AT_90 / 2 && last > eighty,
        "median answers: {free:?} below 60 %, {eighty:?} from 80 %, {ninety:?} from 90 %, {last:?} from 95 % on; expected slower and slower, and {:?} from 90 % on",
        PAUSE_AT_90 / 2
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// This many answers at each of these levels, with these durations.
    fn answers(of: &[(u64, u64)]) -> Vec<(u64, Duration)> {
        of.iter().flat_map(|(fill, ms)| (0..9).map(move |_| (*fill, Duration::from_millis(*ms)))).collect()
    }

    #[test]
    fn a_curve_is_told_from_a_wall() {
        assert!(judge(&answers(&[(10, 5), (85, 29), (92, 87), (96, 201)])).is_ok(), "as it was measured");
        assert!(judge(&answers(&[(10, 80), (85, 110), (92, 150), (96, 290)])).is_ok(), "a slow machine");
        assert!(judge(&answers(&[(10, 5), (85, 5), (92, 5), (96, 5)])).is_err(), "as fast as ever until it is full");
        assert!(judge(&answers(&[(10, 90), (85, 80), (92, 85), (96, 90)])).is_err(), "no slower than before");
        assert!(judge(&answers(&[(10, 5), (85, 250), (92, 250), (96, 250)])).is_err(), "a step");
        assert!(judge(&answers(&[(10, 5), (85, 29), (96, 201)])).is_err(), "there were no answers from 90 % on");
    }
}
