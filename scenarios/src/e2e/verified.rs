//! fio writes with checksums and verifies; the serving gateway is killed during a verify run, and fio verifies again at
//! the gateway that took over.

use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::Cluster;
use crate::cmd::{Cmd, cmd};
use crate::nbd::Uri;
use crate::process::{Proc, Signal, wait_until};
use crate::say::note;
use anyhow::Result;
use std::time::Duration;

const SIZE_MIB: u32 = 96;

fn fio(uri: &Uri, lab: &Lab, more: &[&str]) -> Cmd {
    let base =
        cmd("fio").dir(&lab.dir).args(["--name=verify", "--thread", "--ioengine=nbd", "--iodepth=16", "--bs=16k"]);
    let base = base.arg(format!("--uri={uri}")).arg(format!("--size={SIZE_MIB}M"));
    base.args(["--verify=crc32c", "--verify_fatal=1"]).args(more)
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut cluster = lab.cluster("256MiB")?;
    let mut serving = cluster.serving(TAKEOVER_LIMIT)?;
    let uri = cluster.gateways[serving].nbd.clone();
    fio(&uri, lab, &["--rw=randwrite", "--do_verify=1"]).run()?;
    note(format!("{SIZE_MIB} MiB written and verified through {}", cluster.name(serving)));
    for round in 1..=if lab.long { 5 } else { 2 } {
        serving = fail_over_during_verify(lab, &mut cluster, serving)?;
        let uri = cluster.gateways[serving].nbd.clone();
        fio(&uri, lab, &["--rw=randwrite", "--verify_only"]).run()?;
        note(format!("round {round}: verified again through {}", cluster.name(serving)));
    }
    cluster.stop()?;
    Ok(())
}

/// Kills the serving gateway while fio verifies (in a thread: a worker process would outlive fio); returns the new
/// serving gateway, with the killed one back as a follower.
fn fail_over_during_verify(lab: &Lab, cluster: &mut Cluster, serving: usize) -> Result<usize> {
    let uri = cluster.gateways[serving].nbd.clone();
    // Slow enough that the kill falls in the middle. Only the rate of explicit reads can be limited; they are verified
    // too.
    let verify = fio(&uri, lab, &["--rw=randread", "--rate=12m", "--eta=always", "--eta-newline=100ms"]);
    let log = lab.dir.join(format!("fio-killed-through-{}.log", cluster.name(serving)));
    let _ = std::fs::remove_file(&log);
    let mut verify = Proc::spawn("fio", verify.into_command(), &log)?;
    // Its progress lines: `Jobs: 1 (f=1): [V(1)][25.0%][...]`, V for verifying. The first comes after some two of eight
    // seconds.
    let under_way = wait_until(Duration::from_secs(30), || {
        let said = std::fs::read(&log).unwrap_or_default();
        verify.ended().is_some() || String::from_utf8_lossy(&said).contains("[V(1)][")
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
    // fio's nbd engine (3.33) neither reconnects nor ends when its server is gone.
    if let Ok(ended) = verify.wait(Duration::from_secs(2)) {
        anyhow::ensure!(!ended.success(), "fio verified to the end through a gateway that was killed");
    }
    verify.stop(Signal::KILL, Duration::from_secs(5))?;
    cluster.restart(serving)?;
    cluster.caught_up(TAKEOVER_LIMIT)?;
    Ok(next)
}
