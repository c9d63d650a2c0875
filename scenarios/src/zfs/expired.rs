//! One guest: attach is killed and not restarted. Requests in the kernel wait for `--dead-timeout` and then fail
//! (KERNEL-K2 of crate attach), like all later ones; `--abandon` removes the devices, and the set can be attached
//! again.

use super::devices::{launch, paths, patient, start, status};
use super::guest::Guest;
use super::intruder::{PLACE, block};
use super::lab::{LIMIT, SET};
use super::report::Report;
use crate::say::step;
use anyhow::{Context, Result};
use std::time::Instant;

const PART: &str = "expired";

/// The kernel's waiting time.
const DEAD_TIMEOUT: &str = "5s";

/// The test. Nothing is attached before or after it.
pub fn act(report: &mut Report, a: &Guest, sockets: u8) -> Result<()> {
    step("attach is killed, and not restarted");
    launch(a, SET, &patient(a, SET, sockets, DEAD_TIMEOUT))?;
    let before = status(a, SET)?;
    let device = paths(&before).into_iter().next().context("a device")?;
    let found = block(a, &device)?;
    let write =
        format!("dd if=/usr/bin/holdfast of={device} oflag=direct bs=4096 count=1 seek={} conv=notrunc", PLACE * 256);
    report.fault();
    a.run(&format!("kill -9 {}", before["pid"].as_u64().context("a pid")?), LIMIT)?;
    let begun = Instant::now();
    // Ends only because the kernel has waited long enough: no process answers it.
    let (code, _, said) = a.ran(&write, LIMIT)?;
    let took = begun.elapsed().as_secs_f64();
    anyhow::ensure!(code != 0, "KERNEL-K2: a write without an answer has succeeded");
    anyhow::ensure!(said.contains("Input/output error"), "KERNEL-K2: found {said:?}, expected an I/O error");
    report.add(PART, "a write after the death of attach", Some(took), format!("failed, --dead-timeout {DEAD_TIMEOUT}"));
    let begun = Instant::now();
    let (code, _, said) = a.ran(&write, LIMIT)?;
    let took = begun.elapsed().as_secs_f64();
    anyhow::ensure!(code != 0, "KERNEL-K2: a write after that has succeeded: {said:?}");
    report.add(PART, "another one", Some(took), "failed");

    let left = a.run(
        &format!("holdfast attach {SET} --owner {} --abandon && ls /sys/block/nbd*/pid 2>/dev/null | wc -l", a.name),
        LIMIT,
    )?;
    let left = left.lines().last().unwrap_or_default().trim();
    anyhow::ensure!(left == "0", "found {left} devices after --abandon, expected none");
    start(a, SET, sockets, false)?;
    let device = paths(&status(a, SET)?).into_iter().next().context("a device")?;
    let now = block(a, &device)?;
    anyhow::ensure!(now == found, "a write that had failed was carried out");
    a.run(&format!("holdfast attach {SET} --detach --timeout 60s"), LIMIT)?;
    report.add(PART, "its block, read under the next lease", None, "as it was before");
    Ok(())
}
