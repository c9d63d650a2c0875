//! fio writes with checksums and verifies, the serving gateway is killed in the middle of a verify run, and fio verifies again through
//! the gateway that took over.

use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::Cluster;
use crate::cmd::{Cmd, cmd};
use crate::nbd::Uri;
use crate::process::{Proc, wait_until};
use crate::say::note;
use anyhow::Result;
use std::time::Duration;

const SIZE_MIB: u32 = 96;

fn fio(uri: &Uri, lab: &Lab, more: &[&str]) -> Cmd {
    let base = cmd("fio").dir(&lab.dir).args(["--name=verify", "--ioengine=nbd", "--rw=randwrite", "--iodepth=16"]);
    let base = base.arg(format!("--uri={uri}")).arg(format!("--size={SIZE_MIB}M"));
    base.args(["--bsrange=4k-64k", "--verify=crc32c", "--verify_fatal=1", "--group_reporting"]).args(more)
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut cluster = lab.cluster("256MiB")?;
    let mut serving = cluster.serving(TAKEOVER_LIMIT)?;
    let uri = cluster.gateways[serving].nbd.clone();
    fio(&uri, lab, &["--do_verify=1"]).run()?;
    note(format!("{SIZE_MIB} MiB written and verified through {}", cluster.name(serving)));
    for round in 1..=if lab.long { 5 } else { 2 } {
        serving = fail_over_during_verify(lab, &mut cluster, serving)?;
        let uri = cluster.gateways[serving].nbd.clone();
        fio(&uri, lab, &["--verify_only"]).run()?;
        note(format!("round {round}: verified again through {}", cluster.name(serving)));
    }
    cluster.stop()?;
    Ok(())
}

/// Kills the serving gateway while fio verifies; gives the gateway that serves then, with the killed one back as a follower.
fn fail_over_during_verify(lab: &Lab, cluster: &mut Cluster, serving: usize) -> Result<usize> {
    let uri = cluster.gateways[serving].nbd.clone();
    // Slow enough that the kill falls in the middle.
    let verify = fio(&uri, lab, &["--verify_only", "--rate=,,", "--rate=12m,12m"]);
    let mut verify = Proc::spawn("fio", verify.into_command(), &lab.dir.join("fio-killed.log"))?;
    let under_way = wait_until(Duration::from_secs(30), || {
        let io = std::fs::read_to_string(format!("/proc/{}/io", verify.pid())).unwrap_or_default();
        let read = io.lines().find_map(|l| l.strip_prefix("rchar: ")).and_then(|n| n.parse::<u64>().ok());
        verify.ended().is_some() || read.is_some_and(|n| n > 8 << 20)
    });
    anyhow::ensure!(under_way && verify.ended().is_none(), "the verify run was not under way when it should be killed");
    let killed = cluster.kill(serving)?;
    let others = cluster.others(serving);
    let (next, took) = cluster.first_to_serve(&others, killed, TAKEOVER_LIMIT)?;
    note(format!(
        "{} killed, {} serves after {:.0} ms",
        cluster.name(serving),
        cluster.name(next),
        took.as_secs_f64() * 1e3
    ));
    let ended = verify.wait(Duration::from_secs(60))?;
    anyhow::ensure!(!ended.success(), "fio verified to the end through a gateway that was killed");
    cluster.restart(serving)?;
    Ok(next)
}
