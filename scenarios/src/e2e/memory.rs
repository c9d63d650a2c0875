//! Random 8 KiB writes over a whole 1 TiB volume: the memory of the gateways stays bounded, metrics included, and a
//! first request for metrics after hours disturbs no client.

use super::{Lab, TAKEOVER_LIMIT};
use crate::cmd::cmd;
use crate::process;
use crate::say::note;
use crate::web::page;
use anyhow::{Context, Result};

/// Maximum peak of a gateway's resident memory in bytes. Its cache may use 256 MiB of it.
const RESIDENT_MAX: u64 = 1 << 30;

pub(super) fn run(lab: &Lab) -> Result<()> {
    // This scenario is about memory. All journals and the store share one disk here: a sync of half a second must cause
    // no election.
    let mut cluster = lab.cluster_as("1TiB", None, &["rtt_ms=100", "rtt_floor_ms=100"], Vec::new())?;
    let serving = cluster.serving(TAKEOVER_LIMIT)?;
    let uri = cluster.gateways[serving].nbd.to_string();
    let (unasked, asked) = if lab.long { ("45G", "5G") } else { ("896M", "128M") };
    let wide = |bytes: &str| {
        // Data that compresses: 50 GiB of noise would need a disk of that size.
        let base = cmd("fio").dir(&lab.dir).args([
            "--name=wide",
            "--thread",
            "--ioengine=nbd",
            "--rw=randwrite",
            "--bs=8k",
            "--iodepth=32",
            "--refill_buffers",
            "--buffer_compress_percentage=90",
        ]);
        // Without fio's own map of a terabyte.
        let wide = base.args(["--size=1T", "--norandommap", "--random_generator=tausworthe64"]);
        wide.arg(format!("--io_size={bytes}")).arg(format!("--uri={uri}")).run()
    };
    wide(unasked)?;
    // The first request for metrics: everything measured so far must be there, and no connection may end because of it.
    std::thread::scope(|scope| -> Result<()> {
        let writing = scope.spawn(|| wide(asked));
        for index in 0..cluster.gateways.len() {
            let page = page(&cluster.metrics_address(index)?, "/metrics")?;
            anyhow::ensure!(page.contains("holdfast_journal_write_seconds_bucket{le="), "no histogram in {page}");
        }
        writing.join().expect("fio's thread")
    })?;
    let written = if lab.long { "50 G" } else { "1 G" };
    for (index, gateway) in cluster.gateways.iter().enumerate() {
        let peak = process::peak_resident_bytes(gateway.pid).context("no memory figure")?;
        let mib = peak >> 20;
        let role = if index == serving { "serving" } else { "following" };
        note(format!("{} ({role}): at most {mib} MiB resident after {written}iB", cluster.name(index)));
        anyhow::ensure!(
            peak < RESIDENT_MAX,
            "{}: {mib} MiB resident, at most {}",
            cluster.name(index),
            RESIDENT_MAX >> 20
        );
    }
    cluster.stop()?;
    Ok(())
}
