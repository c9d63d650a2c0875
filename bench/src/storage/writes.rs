//! Rows that write: bytes and PUTs per written byte, and the effect of garbage collection on writers.

use super::figures::{MIB, ratio};
use super::lab::Lab;
use super::plan::{Figure, Plan, Row};
use crate::attach::Device;
use crate::pg::Postgres;
use crate::process::Signal;
use crate::say::note;
use anyhow::Result;
use serde_json::json;
use std::time::Duration;

/// How often the volume is overwritten before counting.
const WARM_UP_TIMES: u64 = 3;
/// Rate of the warm-up, in MiB a second: the journal must not fill, or collection falls behind.
const WARM_UP_RATE_MIB: u64 = 64;
/// Rate of the latency row: far below the machine's limit, so that waits are not caused by the load.
const LATENCY_RATE_MIB: u64 = 8;
/// Nearly nothing is collected at this.
const NO_COLLECTION: &str = "space.target_percent=1000";

const SEQUENTIAL: [&str; 3] = ["--rw=write", "--bs=128k", "--iodepth=8"];
const RANDOM: [&str; 3] = ["--rw=randwrite", "--bs=8k", "--iodepth=16"];
const RANDOM_CALM: [&str; 3] = ["--rw=randwrite", "--bs=8k", "--iodepth=4"];

/// Fills the volume, then overwrites it until collection runs at its steady rate.
fn warm_up(lab: &mut Lab, plan: &Plan, pattern: &[&str]) -> Result<()> {
    let (size, rate) = (format!("--size={}m", plan.size_mib), format!("--rate={WARM_UP_RATE_MIB}m"));
    note(format!("warm-up: {} MiB once in order, then {WARM_UP_TIMES} times over as the row does", plan.size_mib));
    let once = lab.fio(&["--rw=write", "--bs=1m", "--iodepth=4", &size, &rate])?;
    lab.window(once)?;
    let more = format!("--io_size={}m", plan.size_mib * WARM_UP_TIMES);
    let args: Vec<&str> = pattern.iter().copied().chain([size.as_str(), more.as_str(), rate.as_str()]).collect();
    let over = lab.fio(&args)?;
    lab.window(over)?;
    Ok(())
}

fn amplification(key: &'static str, title: &'static str, pattern: &[&str], plan: &Plan) -> Result<Row> {
    let mut lab = Lab::start(plan, key, plan.size_mib, Vec::new())?;
    warm_up(&mut lab, plan, pattern)?;
    let seconds = plan.seconds.unwrap_or(plan.scale.write_s);
    note(format!("{seconds} s at {} MiB a second at most", plan.rate_mib));
    let (size, rate) = (format!("--size={}m", plan.size_mib), format!("--rate={}m", plan.rate_mib));
    let time = format!("--runtime={seconds}");
    let paced = [size.as_str(), rate.as_str(), "--time_based", &time];
    let args: Vec<&str> = pattern.iter().copied().chain(paced).collect();
    let work = lab.fio(&args)?;
    let (window, fio) = lab.window(work)?;
    lab.stop()?;
    let figures = vec![
        Figure::new(title, "bytes to S3 per byte written", window.put_bytes_per_byte, 2),
        Figure::new(title, "PUTs per GiB written", window.puts_per_gib, 0),
        Figure::new(title, "p99 of a write at this pace, ms", Some(fio.p99_ms), 1),
    ];
    Ok(Row { key, figures, details: json!({ "window": window, "fio": fio }) })
}

pub fn sequential(plan: &Plan) -> Result<Row> {
    amplification("sequential", "sequential 128 KiB", &SEQUENTIAL, plan)
}

pub fn random(plan: &Plan) -> Result<Row> {
    amplification("random", "uniform random 8 KiB", &RANDOM, plan)
}

/// The same light load twice: on a cluster with collection, and on one with hardly any.
pub fn latency(plan: &Plan) -> Result<Row> {
    let seconds = plan.seconds.unwrap_or(plan.scale.latency_s);
    let mut figures = Vec::new();
    let mut details = serde_json::Map::new();
    let kinds = [("with", "with collection", Vec::new()), ("without", "without", vec![NO_COLLECTION.to_owned()])];
    for (key, title, settings) in kinds {
        note(format!("{title}: {seconds} s of random 8 KiB writes, depth 4, {LATENCY_RATE_MIB} MiB a second"));
        let mut lab = Lab::start(plan, &format!("latency-{key}"), plan.size_mib, settings)?;
        warm_up(&mut lab, plan, &RANDOM)?;
        let (size, rate) = (format!("--size={}m", plan.size_mib), format!("--rate={LATENCY_RATE_MIB}m"));
        let time = format!("--runtime={seconds}");
        let paced = [size.as_str(), rate.as_str(), "--time_based", &time];
        let args: Vec<&str> = RANDOM_CALM.iter().copied().chain(paced).collect();
        let work = lab.fio(&args)?;
        let (window, fio) = lab.window(work)?;
        lab.stop()?;
        note(format!(
            "{title}: p50 {:.2} ms, p99 {:.2} ms, p99.9 {:.2} ms, longest {:.0} ms",
            fio.p50_ms, fio.p99_ms, fio.p999_ms, fio.longest_ms
        ));
        let (p50, p99) = match key {
            "with" => ("p50 with collection, ms", "p99 with collection, ms"),
            _ => ("p50 without collection, ms", "p99 without collection, ms"),
        };
        figures.push(Figure::new("random 8 KiB write, calm", p50, Some(fio.p50_ms), 2));
        figures.push(Figure::new("random 8 KiB write, calm", p99, Some(fio.p99_ms), 2));
        details.insert(key.into(), json!({ "window": window, "fio": fio }));
    }
    Ok(Row { key: "latency", figures, details: details.into() })
}

/// Settings of the database: PostgreSQL's defaults except for the buffers.
pub const POSTGRES: &str = "shared_buffers = '256MB'\n";
pub const CLIENTS: [&str; 4] = ["-c", "8", "-j", "2"];
/// One period of the warm-up.
const STRETCH: Duration = Duration::from_secs(30);

/// PostgreSQL on ext4 on the volume, TPC-B.
pub fn pgbench(plan: &Plan) -> Result<Row> {
    let scale = &plan.scale;
    let mut lab = Lab::start(plan, "pgbench", scale.pg_volume_mib, Vec::new())?;
    let serving = lab.cluster.serving(Duration::from_secs(60))?;
    let mount = plan.public.join("mount");
    let mut device = Device::nbd(&lab.cluster.gateways[serving].nbd, super::plan::CONNECTIONS, &lab.dir)?;
    device.mkfs()?;
    device.mount(&mount)?;
    let mut pg = Postgres::new(&mount.join("pgdata"), &plan.public.join("socket"), &lab.dir.join("postgres.log"))?;
    pg.initdb(POSTGRES)?;
    pg.start()?;
    note(format!("filling the tables, scale {}", scale.pg_scale));
    pg.pgbench_init(scale.pg_scale)?;
    lab.checkpoint()?;
    let live = lab.gauge("holdfast_space_live_bytes")?;
    // Twice the filled bytes: far less of the store is in use than that, since the data compresses well.
    let (filled, mut stretches) = (lab.written()?, 0);
    note(format!("warm-up: until {} MiB more are written, at most {} s", 2 * filled / MIB, scale.pg_warm_up_s));
    while lab.written()? < 3 * filled && stretches * STRETCH.as_secs() < scale.pg_warm_up_s {
        lab.window(|| pg.pgbench(&CLIENTS, STRETCH))?;
        stretches += 1;
    }
    let time = Duration::from_secs(plan.seconds.unwrap_or(scale.pg_s));
    note(format!("pgbench for {} s", time.as_secs()));
    let (window, tps) = lab.window(|| pg.pgbench(&CLIENTS, time))?;
    note(format!("{tps:.0} tps"));
    pg.stop(Signal::INT)?;
    device.detach()?;
    lab.stop()?;
    let (title, gets) = ("pgbench TPC-B", window.requests.one("GetObject seg").requests);
    let figures = vec![
        Figure::new(title, "bytes to S3 per byte written", window.put_bytes_per_byte, 2),
        Figure::new(title, "PUTs per GiB written", window.puts_per_gib, 0),
        Figure::new(title, "transactions a second", Some(tps), 0),
        Figure::new(title, "GETs of extents a second", ratio(gets as f64, window.seconds), 0),
    ];
    let details =
        json!({ "window": window, "tps": tps, "pgbench_seconds": time.as_secs(), "live_bytes_at_begin": live });
    Ok(Row { key: "pgbench", figures, details })
}
