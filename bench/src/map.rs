//! `cargo xtask bench map`: measures how costs grow with a volume. Volumes of several sizes, full of random 8 KiB
//! extents, are made without writing them.
//!
//! ```text
//!   three gateways, one volume, one checkpoint ─▶ stopped ─▶ large_map: a map of millions of extents, a root, a head
//!     ─▶ empty disks ─▶ `cluster recover --from-store` ─▶ opened, read, taken over, checkpointed
//! ```
//! The map is made by the product's code (pages, packs, root, seals) and imported by a recovery. A slow or large result
//! is no failure; a block that differs from the written data is.

// Shared with the program that makes the map.
mod figures;
mod made;
mod measure;
mod plan;

use crate::binary::{Build, fresh_dir, root};
use crate::cmd::cmd;
use crate::say::{line, note, step};
use crate::{room, stats};
use anyhow::{Context, Result};
use measure::Measured;
use plan::{Plan, Volume};
use serde_json::json;
use std::path::PathBuf;

const PROFILE: &str = "release";

/// Approximate bytes on disk per extent: its share of a map page, with room for the gateways' writes.
const DISK_BYTES_PER_EXTENT: u64 = 48;

/// Further bytes on disk: three journals, logs, and the readable extents.
const DISK_BYTES_BESIDE: u64 = 3 << 30;

/// What a person can turn.
#[derive(Clone, Debug, clap::Args)]
#[command(after_long_help = "Examples:
  cargo xtask bench map --quick                     two small volumes: shows that it runs
  cargo xtask bench map                             100 GiB, 1 TiB and 10 TiB with 1, 10 and 100 million extents; 7 GiB of disk
  cargo xtask bench map --volume 10TiB=100000000    one of them

Results: a table here, everything in target/bench/map.json. How to read it: bench/README.md.")]
pub struct Args {
    /// A volume and how many random 8 KiB extents it has; several times for several [default: 100GiB=1000000
    /// 1TiB=10000000 10TiB=100000000]
    #[arg(long = "volume", value_name = "SIZE=EXTENTS", value_parser = volume)]
    volumes: Vec<Volume>,
    /// Blocks that are read, each alone and anywhere
    #[arg(long, value_name = "N", default_value_t = 8192, value_parser = clap::value_parser!(u64).range(1..))]
    reads: u64,
    /// Kills of the serving gateway
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..))]
    takeovers: u32,
    /// Small checkpoints, each after 64 random writes
    #[arg(long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u32).range(1..))]
    checkpoints: u32,
    /// Large checkpoints, each after as many random 8 KiB writes as `upload.bytes` holds (256 MiB)
    #[arg(long, value_name = "N", default_value_t = 2)]
    large: u32,
    /// A setting of every gateway as in its file; several times for several
    #[arg(long, value_name = "KEY=VALUE")]
    gateway_set: Vec<String>,
    /// Seed of places and contents
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,
    /// Two small volumes, few of everything: shows that it runs, no figure means anything
    #[arg(long)]
    quick: bool,
    /// What is printed at the end: `table`, or `json` for what target/bench/map.json has
    #[arg(long, value_name = "FORM", default_value = "table", value_parser = ["table", "json"])]
    output: String,
    /// What makes the maps, if it is built already (program large_map of holdfast-large-map)
    #[arg(long, value_name = "PATH")]
    maker: Option<PathBuf>,
    #[command(flatten)]
    build: Build,
}

fn volume(text: &str) -> std::result::Result<Volume, String> {
    let (size, extents) = text.split_once('=').ok_or("expected SIZE=EXTENTS, such as 1TiB=10000000")?;
    let extents = extents.parse().ok().filter(|extents| *extents > 0);
    Ok(Volume { size: size.into(), extents: extents.ok_or("expected a number of extents above 0 behind =")? })
}

fn plan(args: &Args) -> Result<Plan> {
    let bin = args.build.binary(PROFILE)?;
    let maker = match &args.maker {
        Some(maker) => maker.canonicalize().with_context(|| maker.display().to_string())?,
        None => args.build.program("holdfast-large-map", "large_map", PROFILE)?,
    };
    // No automatic checkpoint, no background reads, and no disk cache: an opened set comes from the store.
    let ours = ["upload.interval_ms=3600000", "scrub.bytes_per_second=0B", "cache.disk=0B", "cache.memory=256MiB"];
    let settings = ours.into_iter().map(String::from).chain(args.gateway_set.iter().cloned()).collect();
    let few = |n: u32, quick: u32| if args.quick { n.min(quick) } else { n };
    Ok(Plan {
        bin,
        maker,
        settings,
        reads: if args.quick { args.reads.min(256) } else { args.reads },
        takeovers: few(args.takeovers, 1),
        checkpoints: few(args.checkpoints, 2),
        large: few(args.large, 0),
        seed: args.seed,
    })
}

fn volumes(args: &Args) -> Vec<Volume> {
    let all = |list: &[(&str, u64)]| {
        list.iter().map(|(size, extents)| Volume { size: (*size).into(), extents: *extents }).collect()
    };
    match (args.volumes.is_empty(), args.quick) {
        (false, _) => args.volumes.clone(),
        (true, true) => all(&[("10GiB", 100_000), ("100GiB", 1_000_000)]),
        (true, false) => all(&[("100GiB", 1_000_000), ("1TiB", 10_000_000), ("10TiB", 100_000_000)]),
    }
}

/// Runs the benchmark. Fails when a volume cannot be made or measured, or returns other data than was written. A bad
/// figure is no error.
pub fn bench(args: &Args) -> Result<()> {
    let plan = plan(args)?;
    let dir = fresh_dir("bench-map")?;
    step("Settings");
    let settings = settings(args, &plan);
    for (name, value) in &settings {
        note(format!("{name}: {value}"));
    }
    let mut measured: Vec<Measured> = Vec::new();
    for volume in volumes(args) {
        let (wanted, free) = (volume.extents * DISK_BYTES_PER_EXTENT + DISK_BYTES_BESIDE, room::free(&dir)?);
        anyhow::ensure!(free > wanted, "{} bytes are free, {} takes {wanted}", free, volume.size);
        step(format!("{} with {} extents ({})", volume.size, volume.extents, stats::machine()));
        let of = dir.join(&volume.size);
        let made = made::make(&plan, &volume, &of)?;
        measured.push(measure::measure(&plan, made)?);
        room::thin_out(&of)?;
        write(args, &settings, &measured)?;
    }
    match args.output.as_str() {
        "json" => line(serde_json::to_string(&all(args, &settings, &measured))?),
        _ => line(measure::table(&measured)),
    }
    if args.quick {
        note("--quick: this shows that it runs; no figure means anything");
    }
    note("Everything that was counted: target/bench/map.json");
    Ok(())
}

fn settings(args: &Args, plan: &Plan) -> Vec<(&'static str, String)> {
    let cpus = std::thread::available_parallelism().map_or(0, std::num::NonZeroUsize::get);
    let kernel = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    let commit = cmd("git").dir(root()).args(["rev-parse", "--short", "HEAD"]).out().unwrap_or_default();
    vec![
        ("holdfast", args.build.describe(PROFILE)),
        ("tree", commit.trim().to_owned()),
        ("machine", format!("{cpus} CPUs, Linux {}", kernel.trim())),
        ("gateways", format!("three, as `holdfast dev` sets them, but {}", plan.settings.join(", "))),
        ("store", "a folder on the same disk (file://)".into()),
        ("extents", "8 KiB, anywhere, each in one of the segments of any checkpoint of 256 MiB".into()),
        ("seed", plan.seed.to_string()),
    ]
}

fn all(args: &Args, settings: &[(&str, String)], measured: &[Measured]) -> serde_json::Value {
    let settings: serde_json::Map<_, _> = settings.iter().map(|(k, v)| ((*k).to_owned(), json!(v))).collect();
    json!({ "settings": settings, "quick": args.quick, "volumes": measured })
}

fn write(args: &Args, settings: &[(&str, String)], measured: &[Measured]) -> Result<()> {
    let dir = root().join("target").join("bench");
    std::fs::create_dir_all(&dir)?;
    Ok(std::fs::write(dir.join("map.json"), serde_json::to_vec_pretty(&all(args, settings, measured))?)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_volume_is_a_size_and_a_number() {
        assert_eq!(volume("10TiB=100"), Ok(Volume { size: "10TiB".into(), extents: 100 }));
        for wrong in ["10TiB", "10TiB=", "10TiB=0", "10TiB=x"] {
            assert!(volume(wrong).is_err(), "{wrong}");
        }
    }
}
