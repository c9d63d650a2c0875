//! Speed of a checkpoint's upload, as a share of the speed of a bare aws-sdk-s3 loop against the same server, in turns.

use super::figures::{GIB, MIB, mib_per_second, ratio};
use super::lab::Lab;
use super::plan::{Figure, Goal, Plan, Row};
use crate::cmd::cmd;
use crate::process::processor_seconds;
use crate::s3::BUCKET;
use crate::say::note;
use crate::stats;
use anyhow::{Context, Result};
use serde::Serialize;
use serde_json::json;

/// Parallel uploads: the default of `upload.parallel`, and the same for the bare loop.
const IN_FLIGHT: u64 = 4;
/// Bytes of a segment, and of an object of the bare loop.
const OBJECT_BYTES: u64 = 16 * MIB;

/// One side's turn.
#[derive(Clone, Copy, Debug, Serialize)]
struct Turn {
    bytes: u64,
    seconds: f64,
    mib_per_second: f64,
    /// CPU seconds per GiB: of the uploader (for ours, all three gateways), and of the server.
    uploader_s_per_gib: Option<f64>,
    server_s_per_gib: Option<f64>,
}

/// Output of the bare loop.
#[derive(serde::Deserialize)]
struct Bare {
    bytes: u64,
    seconds: f64,
    processor_seconds: Option<f64>,
}

/// Bytes a second of the link of [`over_link`]: gigabit Ethernet, and less than the CPUs of this bench's machine reach.
pub const LINK: u64 = 100 * MIB;

/// On this machine, server included.
pub fn upload(plan: &Plan) -> Result<Row> {
    measured(plan, "upload", None)
}

/// The same, with the link to the server as the bottleneck and not the CPUs.
pub fn over_link(plan: &Plan) -> Result<Row> {
    measured(plan, "upload-link", Some(LINK))
}

fn measured(plan: &Plan, title: &'static str, link: Option<u64>) -> Result<Row> {
    let (rounds, mib) = (plan.scale.upload_rounds, plan.scale.upload_mib);
    let bare = plan.bare.as_ref().context("the bare loop was not built")?;
    // Nothing is uploaded before the request: then all at once, without writes meanwhile.
    let settings = ["upload.interval_ms=3600000", "upload.bytes=\"1GiB\""].map(String::from).into();
    let mut lab = Lab::start_behind(plan, title, mib * u64::from(rounds), settings, link)?;
    let mut turns = Vec::new();
    for round in 0..rounds {
        let (size, offset) = (format!("--size={mib}m"), format!("--offset={}m", mib * u64::from(round)));
        lab.fio(&["--rw=write", "--bs=1m", "--iodepth=4", &size, &offset])?()?;
        let ours = ours(&lab)?;
        let theirs = theirs(&lab, bare, round, mib * MIB / OBJECT_BYTES)?;
        note(format!(
            "round {}: {:.0} MiB/s by a checkpoint, {:.0} MiB/s by the bare loop ({})",
            round + 1,
            ours.mib_per_second,
            theirs.mib_per_second,
            stats::machine()
        ));
        turns.push((ours, theirs));
    }
    lab.stop()?;
    let of =
        |pick: fn(&(Turn, Turn)) -> Option<f64>| stats::median(&turns.iter().filter_map(pick).collect::<Vec<f64>>());
    let figures = vec![
        Figure::new(title, "a checkpoint, MiB/s", of(|t| Some(t.0.mib_per_second)), 0),
        Figure::new(title, "bare aws-sdk-s3 loop, MiB/s", of(|t| Some(t.1.mib_per_second)), 0),
        Figure::new(title, "share of the bare loop", of(|t| ratio(t.0.mib_per_second, t.1.mib_per_second)), 2)
            .with(Goal::AtLeast(0.9)),
        Figure::new(title, "processor s per GiB, gateways", of(|t| t.0.uploader_s_per_gib), 2),
        Figure::new(title, "processor s per GiB, bare loop", of(|t| t.1.uploader_s_per_gib), 2),
        Figure::new(title, "processor s per GiB, S3 server", of(|t| t.0.server_s_per_gib), 2),
    ];
    let turn = |t: &(Turn, Turn)| json!({ "ours": t.0, "bare": t.1 });
    let details = json!({ "rounds": turns.iter().map(turn).collect::<Vec<_>>(), "in_flight": IN_FLIGHT });
    Ok(Row { key: title, figures, details })
}

fn server_seconds(lab: &Lab) -> Option<f64> {
    lab.s3.pid().and_then(processor_seconds)
}

fn gateway_seconds(lab: &Lab) -> Option<f64> {
    lab.cluster.gateways.iter().map(|gateway| processor_seconds(gateway.pid)).sum()
}

fn per_gib(seconds: Option<f64>, before: Option<f64>, bytes: u64) -> Option<f64> {
    ratio(seconds? - before?, bytes as f64 / GIB as f64)
}

/// One checkpoint of everything written; its time is the one in the gateway's log.
fn ours(lab: &Lab) -> Result<Turn> {
    let (mark, told) = (lab.mark()?, lab.checkpoints().len());
    let (gateways, server) = (gateway_seconds(lab), server_seconds(lab));
    lab.checkpoint()?;
    let bytes = lab.since(mark)?.puts().put_bytes;
    let all = lab.checkpoints();
    let largest = all.get(told..).unwrap_or_default().iter().max_by_key(|c| c.bytes);
    let seconds = largest.context("no gateway's log tells of the checkpoint")?.took.as_secs_f64();
    Ok(Turn {
        bytes,
        seconds,
        mib_per_second: mib_per_second(bytes, seconds).unwrap_or(0.0),
        uploader_s_per_gib: per_gib(gateway_seconds(lab), gateways, bytes),
        server_s_per_gib: per_gib(server_seconds(lab), server, bytes),
    })
}

fn theirs(lab: &Lab, bare: &std::path::Path, round: u32, objects: u64) -> Result<Turn> {
    let server = server_seconds(lab);
    let endpoint = format!("http://{}", lab.server());
    let mut command = cmd(bare).args([endpoint.as_str(), BUCKET, &format!("bare/{round}")]);
    command = command.args([IN_FLIGHT, OBJECT_BYTES, objects].map(|n| n.to_string()));
    for (key, value) in lab.s3.env() {
        command = command.env(key, value);
    }
    let said: Bare = serde_json::from_str(command.out()?.trim())?;
    Ok(Turn {
        bytes: said.bytes,
        seconds: said.seconds,
        mib_per_second: mib_per_second(said.bytes, said.seconds).unwrap_or(0.0),
        uploader_s_per_gib: said.processor_seconds.and_then(|s| ratio(s, said.bytes as f64 / GIB as f64)),
        server_s_per_gib: per_gib(server_seconds(lab), server, said.bytes),
    })
}
