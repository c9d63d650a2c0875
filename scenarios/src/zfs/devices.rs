//! One guest: devices, pool and database are made as docs/zfs.md advises; the volumes grow; then a gateway is killed,
//! then attach.

use super::Args;
use super::guest::Guest;
use super::lab::{LIMIT, Lab, SET, TTL, VOLUMES, go_on};
use super::pool;
use super::report::Report;
use crate::gateways;
use crate::ledger::unix_ms;
use crate::process::wait_until;
use crate::say::step;
use anyhow::{Context, Result};
use serde_json::Value;
use std::time::{Duration, Instant};

const PART: &str = "devices";

/// Size to which each volume grows, in bytes. It was made with 2 GiB.
const LARGER: u64 = 3 << 30;

/// Least size that the pool must show: without labels and partial metaslabs.
const SHOWN_MIN: u64 = (VOLUMES as u64) * (1 << 30) * 9 / 10;

/// Limit of one command to a gateway.
const HURRY: Duration = Duration::from_secs(60);

/// The command of a systemd unit.
pub fn command(guest: &Guest, set: &str, sockets: u8) -> String {
    patient(guest, set, sockets, "2m")
}

/// The same with this `--dead-timeout`.
pub fn patient(guest: &Guest, set: &str, sockets: u8, dead_timeout: &str) -> String {
    format!(
        "holdfast attach {set} --owner {} --api {} --device kernel --ttl {TTL} --kernel-sockets {sockets} --dead-timeout {dead_timeout} --timeout 2m \
         >> /var/log/attach-{set}.log 2>&1",
        guest.name,
        Lab::apis().join(",")
    )
}

/// Attaches; returns the time. With `again` it is supervised: restarted whenever it is killed, not when it exits by
/// itself. Fails when the devices do not exist within [`LIMIT`].
pub fn start(guest: &Guest, set: &str, sockets: u8, again: bool) -> Result<f64> {
    let command = command(guest, set, sockets);
    let looped = format!("while :; do\n  {command}\n  [ $? = 137 ] || break\ndone");
    launch(guest, set, if again { &looped } else { &command })
}

/// Attaches while another owner's lease may not have expired yet: retried for that reason, like a unit with `Restart=`.
pub fn start_after(guest: &Guest, set: &str, sockets: u8) -> Result<f64> {
    let held = format!("tail -n 2 /var/log/attach-{set}.log | grep -q 'the set is held by'");
    let command = command(guest, set, sockets);
    launch(guest, set, &format!("until {command}\ndo\n  {held} || break\n  sleep 0.5\ndone"))
}

/// Attaches with this command; returns the time.
pub fn launch(guest: &Guest, set: &str, command: &str) -> Result<f64> {
    let begun = Instant::now();
    guest.leave_running(command)?;
    loop {
        let status = status(guest, set)?;
        if status["ready"] == true {
            return Ok(begun.elapsed().as_secs_f64());
        }
        let log = || guest.run(&format!("tail -n 5 /var/log/attach-{set}.log"), LIMIT).unwrap_or_default();
        anyhow::ensure!(begun.elapsed() < LIMIT, "{}: {set} not attached after {LIMIT:?}: {}", guest.name, log());
    }
}

/// Status of attach; null if nothing is attached. Fails when the guest does not answer.
pub fn status(guest: &Guest, set: &str) -> Result<Value> {
    let (_, out, _) = guest.ran(&format!("holdfast attach {set} --status --output json"), LIMIT)?;
    Ok(serde_json::from_str(&out).unwrap_or_default())
}

/// Its block devices.
pub fn paths(status: &Value) -> Vec<String> {
    let volumes = status["volumes"].as_array().map_or(&[][..], Vec::as_slice);
    volumes.iter().filter_map(|volume| volume["device"].as_str().map(str::to_string)).collect()
}

/// Guest a with everything on it, PostgreSQL running, the ledger's table created.
pub fn make(lab: &mut Lab, report: &mut Report, args: &Args) -> Result<Guest> {
    step("Guest a: kernel nbd, ZFS, PostgreSQL");
    lab.make_set()?;
    let (a, seconds) = lab.boot(0)?;
    report.add(
        PART,
        "boot of a guest",
        Some(seconds),
        a.run("uname -r; zfs version | head -1", LIMIT)?.replace('\n', " "),
    );
    let seconds = start(&a, SET, args.sockets, true)?;
    let devices = paths(&status(&a, SET)?);
    anyhow::ensure!(devices.len() == VOLUMES, "found devices {devices:?}, expected {VOLUMES}");
    report.add(PART, "attach --device kernel", Some(seconds), devices.join(" "));
    pool::make(lab, report, PART, &a, (&devices.join(" "), args.scale, "ledger"))?;
    for (what, options) in
        [("pgbench, commit durable", ""), ("pgbench, synchronous_commit off", "-c synchronous_commit=off")]
    {
        pool::bench(report, PART, &a, (what, options, args.load))?;
    }
    Ok(a)
}

/// The volumes grow under load: devices and pool follow, and no user sees an error.
pub fn grow(lab: &mut Lab, report: &mut Report, args: &Args, a: &Guest) -> Result<()> {
    step("The volumes grow under load");
    pool::load(a, args.load + 20)?;
    let writers = lab.writers(a)?;
    go_on(&writers, 20)?;
    let (since, begun) = (unix_ms(), Instant::now());
    for volume in 1..=VOLUMES {
        let name = format!("{SET}/vol{volume}");
        lab.gateways.holdfast(&["volume", "grow", &name, "--size", &LARGER.to_string()], HURRY)?;
    }
    let devices = paths(&status(a, SET)?).join(" ");
    let look = format!("for device in {devices}; do blockdev --getsize64 $device; done | sort -u");
    let mut found = String::new();
    let followed = wait_until(LIMIT, || {
        found = a.run(&look, LIMIT).unwrap_or_else(|e| format!("{e:#}"));
        found.trim() == LARGER.to_string()
    });
    anyhow::ensure!(
        followed,
        "found devices of {found:?} bytes after {LIMIT:?}, expected {LARGER}: {}",
        status(a, SET)?
    );
    let seconds = begun.elapsed().as_secs_f64();
    report.add(PART, "volumes grown: devices follow", Some(seconds), format!("{LARGER} bytes each"));

    let begun = Instant::now();
    let beyond = format!("dd if=$device of=/dev/null bs=1M skip={} count=64 iflag=direct status=none", 2 * 1024 + 512);
    a.run(&format!("set -e; for device in {devices}; do {beyond}; done"), LIMIT)?;
    let before = pool_bytes(a)?;
    a.run(&format!("set -e; for device in {devices}; do zpool online -e tank $device; done"), LIMIT)?;
    let mut after = before;
    let larger = wait_until(LIMIT, || {
        after = pool_bytes(a).unwrap_or(after);
        after >= before + SHOWN_MIN
    });
    anyhow::ensure!(larger, "found a pool of {after} bytes after {LIMIT:?}, expected {SHOWN_MIN} more than {before}");
    let grown = format!("{before} to {after} bytes; {}", pool::unharmed(a)?);
    report.add(PART, "zpool online -e", Some(begun.elapsed().as_secs_f64()), grown);
    go_on(&writers, 50)?;
    let (gap, lost) = lab.take_back(writers, since)?;
    anyhow::ensure!(lost == 0, "{lost} sessions saw an error when the volumes grew");
    report.add(PART, "volumes grown: clients' pause", Some(gap), pool::unharmed(a)?);
    report.add(PART, "pgbench through it", None, pool::load_ended(a)?);
    report.add(PART, "ledger", None, lab.check_ledger(a)?);
    Ok(())
}

/// Size of the pool, in bytes.
fn pool_bytes(guest: &Guest) -> Result<u64> {
    Ok(guest.run("zpool list -Hp -o size tank", LIMIT)?.trim().parse()?)
}

/// A gateway is killed, then attach; users see only a pause.
pub fn faults(lab: &mut Lab, report: &mut Report, args: &Args, a: &Guest) -> Result<()> {
    step("The serving gateway is killed under load");
    pool::load(a, args.load + 20)?;
    let writers = lab.writers(a)?;
    go_on(&writers, 20)?;
    let serving = lab.serving()?;
    let since = unix_ms();
    report.fault();
    lab.gateways.kill(serving)?;
    go_on(&writers, 50)?;
    let (gap, lost) = lab.take_back(writers, since)?;
    anyhow::ensure!(lost == 0, "{lost} sessions saw an error when a gateway was killed");
    report.add(PART, "gateway killed: clients' pause", Some(gap), pool::unharmed(a)?);
    lab.gateways.launch(&lab.net, serving)?;
    lab.caught_up()?;
    report.add(PART, &format!("{} is back; ledger", gateways::name(serving)), None, lab.check_ledger(a)?);
    report.add(PART, "pgbench through it", None, pool::load_ended(a)?);

    step("attach is killed under load, and started again");
    let before = status(a, SET)?;
    pool::load(a, args.load + 30)?;
    let writers = lab.writers(a)?;
    go_on(&writers, 20)?;
    let since = unix_ms();
    report.fault();
    a.run(&format!("kill -9 {}", before["pid"].as_u64().context("a pid")?), LIMIT)?;
    go_on(&writers, 50)?;
    let (gap, lost) = lab.take_back(writers, since)?;
    anyhow::ensure!(lost == 0, "{lost} sessions saw an error when attach was killed");
    let after = status(a, SET)?;
    let (was, is) = (before["epoch"].as_u64(), after["epoch"].as_u64());
    anyhow::ensure!(
        after["pid"] != before["pid"] && is > was,
        "found {after}, expected another process and a later epoch than {before}"
    );
    anyhow::ensure!(paths(&after) == paths(&before), "found {after}, expected the same devices as {before}");
    report.add(
        PART,
        "attach killed: clients' pause",
        Some(gap),
        format!("{}; epoch {} to {}", pool::unharmed(a)?, was.unwrap_or(0), is.unwrap_or(0)),
    );
    report.add(PART, "pgbench through it", None, pool::load_ended(a)?);
    report.add(PART, "ledger", None, lab.check_ledger(a)?);
    Ok(())
}

/// PostgreSQL, pool and devices in good order.
pub fn let_go(report: &mut Report, a: &Guest) -> Result<()> {
    step("Guest a stops cleanly");
    pool::export(report, PART, a)?;
    // An import consists mostly of sequential reads.
    let each: Vec<String> = paths(&status(a, SET)?).iter().map(|path| format!("-d {path}")).collect();
    let begun = Instant::now();
    let reads = "awk '{n+=$1} END {print n}' /sys/block/nbd*/stat";
    let import = format!("zpool import -o cachefile=none {} tank", each.join(" "));
    let said = a.run(&format!("b=$({reads}); {import} && echo $(($({reads})-b)) reads"), LIMIT)?;
    report.add(PART, "zpool import", Some(begun.elapsed().as_secs_f64()), said.trim());
    a.run(pool::EXPORT, LIMIT)?;
    let begun = Instant::now();
    a.run(
        &format!("holdfast attach {SET} --detach --timeout 60s && ! ls /sys/block/nbd*/pid"),
        Duration::from_secs(120),
    )?;
    report.add(PART, "detach", Some(begun.elapsed().as_secs_f64()), "no nbd device is left connected");
    Ok(())
}
