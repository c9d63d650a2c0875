//! Random 8 KiB writes all over a 1 TiB volume: what the gateways keep in memory stays bounded.

use super::{Lab, TAKEOVER_LIMIT};
use crate::cmd::cmd;
use crate::process;
use crate::say::note;
use anyhow::{Context, Result};

/// Most that a gateway may ever have had resident, in bytes. Its cache may take 256 MiB of it.
const RESIDENT_MAX: u64 = 1 << 30;

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut cluster = lab.cluster("1TiB")?;
    let serving = cluster.serving(TAKEOVER_LIMIT)?;
    let uri = cluster.gateways[serving].nbd.to_string();
    let written = if lab.long { "50G" } else { "1G" };
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
    wide.arg(format!("--io_size={written}")).arg(format!("--uri={uri}")).run()?;
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
