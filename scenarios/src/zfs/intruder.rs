//! One guest: attach is killed, another owner is granted the set while the kernel still holds a write for the old
//! device, and attach comes back. That write must fail for good, since it would overwrite the other owner's data
//! (TOKEN-P2 of crate attach).

use super::devices::{paths, start, status};
use super::guest::Guest;
use super::lab::{LIMIT, Lab, SET};
use super::report::Report;
use crate::process::wait_until;
use crate::say::step;
use anyhow::{Context, Result};
use std::time::{Duration, Instant};

const PART: &str = "intruder";

/// Behind everything that so small a pool has written, in MiB.
pub(super) const PLACE: u32 = 1500;

/// Bytes of the block in question, as text.
pub(super) fn block(a: &Guest, device: &str) -> Result<String> {
    let said = a.run(
        &format!("dd if={device} iflag=direct bs=4096 count=1 skip={} 2>/dev/null | md5sum", PLACE * 256),
        LIMIT,
    )?;
    Ok(said.trim().to_string())
}

/// The test. Nothing is attached before or after it.
pub fn act(lab: &mut Lab, report: &mut Report, a: &Guest, sockets: u8) -> Result<()> {
    step("attach is killed, another owner is granted the set, attach comes back");
    start(a, SET, sockets, false)?;
    let before = status(a, SET)?;
    let device = paths(&before).into_iter().next().context("a device")?;
    let found = block(a, &device)?;
    report.fault();
    a.run(&format!("kill -9 {}", before["pid"].as_u64().context("a pid")?), LIMIT)?;
    // Waits in the kernel: the device has no live socket.
    a.leave_running(&format!(
        "dd if=/usr/bin/holdfast of={device} oflag=direct bs=4096 count=1 seek={} conv=notrunc 2> /tmp/late.log; echo $? > /tmp/late",
        PLACE * 256
    ))?;
    let hurry = Duration::from_secs(60);
    let grant = lab.gateways.holdfast(&["lease", "acquire", SET, "--owner", "intruder", "--force"], hurry)?;
    let waits = a.ran("sleep 2; test ! -e /tmp/late", LIMIT)?.0 == 0;
    anyhow::ensure!(waits, "the write ended before attach came back: {}", a.run("cat /tmp/late.log", LIMIT)?);
    let begun = Instant::now();
    a.leave_running(&super::devices::command(a, SET, sockets))?;
    let fenced = wait_until(LIMIT, || status(a, SET).is_ok_and(|status| status["phase"] == "fenced"));
    anyhow::ensure!(fenced, "found {}, expected it to be fenced", status(a, SET)?);
    let code = a.run("for n in $(seq 120); do [ -e /tmp/late ] && break; sleep 0.5; done; cat /tmp/late", LIMIT)?;
    anyhow::ensure!(code.trim() != "0", "R2: a write of the fenced device was answered with success");
    let took = begun.elapsed().as_secs_f64();
    report.add(PART, "waiting write of the fenced device", Some(took), "failed; the device is fenced");
    let ended = a.run(
        "holdfast attach pg --detach --timeout 60s > /dev/null; code=$?; ls /sys/block/nbd*/pid 2>/dev/null | wc -l; echo $code",
        LIMIT,
    )?;
    anyhow::ensure!(
        ended.split_whitespace().collect::<Vec<_>>() == ["0", "7"],
        "found {ended:?}, expected no device, and exit code 7"
    );

    let token = grant["token"].as_str().context("a token")?;
    lab.gateways.holdfast(&["lease", "release", SET, "--token", token], hurry)?;
    start(a, SET, sockets, false)?;
    let device = paths(&status(a, SET)?).into_iter().next().context("a device")?;
    let now = block(a, &device)?;
    anyhow::ensure!(now == found, "R2: the late write was carried out");
    a.run(&format!("holdfast attach {SET} --detach --timeout 60s"), LIMIT)?;
    report.add(PART, "its block, read under the next lease", None, "as it was before");
    Ok(())
}
