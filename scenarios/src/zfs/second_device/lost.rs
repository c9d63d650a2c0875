//! Loss of a disk of the host: alone; with its host while it holds copies only; with its host while it holds
//! acknowledged commits.

use super::disks::{ADD_CACHE, CACHE, DISKS, PART, SET, SLOG, detach, partition, sum, vdev};
use crate::ledger::{Verdict, unix_ms};
use crate::process::wait_until;
use crate::say::step;
use crate::zfs::Args;
use crate::zfs::agents::{asks, becomes_primary, begin_for, failed, phases, stands_by, view};
use crate::zfs::devices::{paths, start_after, status};
use crate::zfs::guest::{Disk, Guest};
use crate::zfs::lab::{LIMIT, Lab, go_on};
use crate::zfs::pool::{self, timed};
use crate::zfs::report::Report;
use anyhow::{Context, Result};

/// Commits between the last state of the pool that is complete without its log and the loss of the host.
const COMMITS: u64 = 10;

/// Parts of the agent's refusal: the missing device, and the manual remedy.
const REFUSED: &[&str] = &["(SLOG) is not found on this host", "import -f -m"];

/// Part of the agent's text about a log on a disk of the host.
const OFF_SET: &str = "found its log device";

/// The tests; `what` is the checksum of the file to read.
pub fn acts(lab: &mut Lab, report: &mut Report, args: &Args, a: Guest, what: &str) -> Result<()> {
    begin_for(&a, 0, SET, "")?;
    becomes_primary(&a)?;
    report.add(PART, "agents: a primary", None, phases(&a)?);
    let (b, _) = lab.boot_with(1, &DISKS)?;
    begin_for(&b, 1, SET, "")?;
    stands_by(&b)?;
    disk(lab, report, args, &a, what)?;
    host(lab, report, args, a, &b)?;
    let (a, _) = lab.boot_with(0, &DISKS)?;
    begin_for(&a, 0, SET, "")?;
    stands_by(&a)?;
    host_with_log(lab, report, b, &a)?;
    let b = host_is_back(lab, report, &a)?;
    killed(lab, report, b)?;
    by_hand(lab, report, args, &a)
}

/// The cache device is removed under load: its content is read from the set.
fn disk(lab: &mut Lab, report: &mut Report, args: &Args, a: &Guest, what: &str) -> Result<()> {
    step("The disk of the L2ARC is pulled under load");
    let (cache, _) = vdev(a, "cache")?;
    pool::load(a, args.load + 30)?;
    let writers = lab.writers(a)?;
    go_on(&writers, 20)?;
    let since = unix_ms();
    report.fault();
    let name = cache.trim_start_matches("/dev/").trim_end_matches('1');
    a.run(&format!("set -e\necho 1 > \"$(readlink -f /sys/block/{name}/device)/../remove\"\n[ ! -e {cache} ]"), LIMIT)?;
    let found = sum(a)?;
    anyhow::ensure!(found == what, "found {found} without the cache device, expected {what}");
    go_on(&writers, 50)?;
    let (gap, lost) = lab.take_back(writers, since)?;
    anyhow::ensure!(lost == 0, "{lost} sessions saw an error when the cache device was lost");
    let health = a.run("zpool list -H -o health tank", LIMIT)?;
    anyhow::ensure!(health.trim() == "ONLINE", "found the pool {}, expected ONLINE", health.trim());
    let (name, state) = vdev(a, "cache")?;
    report.add(PART, "cache device lost: clients' pause", Some(gap), format!("pool ONLINE, cache {state}"));
    report.add(PART, "pgbench through it", None, pool::load_ended(a)?);
    report.add(PART, "ledger", None, lab.check_ledger(a)?);
    timed(report, PART, a, "zpool remove of the lost device", &format!("zpool remove tank {name}"))?;
    a.run("echo 1 > /sys/bus/pci/rescan", LIMIT)?;
    let again = partition(a, CACHE)?;
    a.run(&format!("{ADD_CACHE} {again}"), LIMIT).map(drop)
}

/// Kills a guest just after commits that are only in the log: the pool is consistent as of before them.
fn killed(lab: &mut Lab, report: &mut Report, guest: Guest) -> Result<std::time::Instant> {
    let writers = lab.writers(&guest)?;
    go_on(&writers, 20)?;
    guest.run("zpool sync tank", LIMIT)?;
    go_on(&writers, COMMITS)?;
    report.fault();
    let killed = guest.kill()?;
    lab.take_back(writers, unix_ms())?;
    Ok(killed)
}

/// The host is killed. Its cache is lost, its log is a volume of the set: the other one imports the pool, with
/// everything.
fn host(lab: &mut Lab, report: &mut Report, args: &Args, a: Guest, b: &Guest) -> Result<()> {
    step("The host is killed: cache on its disk, log on a volume of the set");
    pool::load(&a, args.load + 60)?;
    std::thread::sleep(std::time::Duration::from_secs(args.load));
    let since = killed(lab, report, a)?;
    becomes_primary(b)?;
    report.add(PART, "host killed: the other primary", Some(since.elapsed().as_secs_f64()), phases(b)?);
    let (name, state) = vdev(b, "cache")?;
    anyhow::ensure!(state != "ONLINE", "found the cache {name} {state} on a host that does not have it");
    report.add(PART, "the cache of the lost host", None, format!("{state}; the pool was imported all the same"));
    pool::sound(lab, report, PART, b)?;
    let own = partition(b, CACHE)?;
    let script = format!("zpool remove tank {name} && {ADD_CACHE} {own}");
    timed(report, PART, b, "zpool remove of it, zpool add of its own", &script)
}

/// The log is moved to a disk of the host, and the host is killed: the other's agent refuses to import the pool, with
/// the reason.
fn host_with_log(lab: &mut Lab, report: &mut Report, b: Guest, a: &Guest) -> Result<()> {
    step("The host is killed: log on its disk");
    let ((old, _), own) = (vdev(&b, "logs")?, partition(&b, SLOG)?);
    b.run(&format!("zpool remove tank {old} && zpool add -f tank log {own}"), LIMIT)?;
    let since = killed(lab, report, b)?;
    let mut reason = String::new();
    let refused = wait_until(LIMIT, || {
        reason = failed(a).unwrap_or_else(|e| format!("{e:#}"));
        REFUSED.iter().all(|words| reason.contains(words))
    });
    anyhow::ensure!(refused, "found {reason:?} after {LIMIT:?}, expected a refusal with {REFUSED:?}");
    let imported = a.run("zpool list -H -o name", LIMIT)?;
    anyhow::ensure!(imported.trim().is_empty(), "found the pool {} imported without its log", imported.trim());
    anyhow::ensure!(asks(a, "/primary") != 200, "primary without the pool");
    report.add(PART, "host killed: the other's agent", Some(since.elapsed().as_secs_f64()), reason);
    Ok(())
}

/// The host comes back with that disk. Its agent imports the pool and does not start PostgreSQL over that log: an
/// administrator removes it, and everything is there. Added again while PostgreSQL runs, the log is reported. The other
/// host is paused, and stays so.
fn host_is_back(lab: &mut Lab, report: &mut Report, a: &Guest) -> Result<Guest> {
    step("The host is back, with its log");
    a.run("holdfast agent pause", LIMIT)?;
    let calm = wait_until(LIMIT, || view(a).is_ok_and(|view| view["paused"] == true && view["state"] == "standby"));
    anyhow::ensure!(calm, "found {:?} after {LIMIT:?}, expected a paused standby", view(a));
    let (b, _) = lab.boot_with(1, &DISKS.map(|disk| Disk { kept: true, ..disk }))?;
    begin_for(&b, 1, SET, "")?;
    let mut reason = String::new();
    let refused = wait_until(LIMIT, || {
        reason = failed(&b).unwrap_or_else(|e| format!("{e:#}"));
        reason.contains(OFF_SET)
    });
    anyhow::ensure!(refused, "found {reason:?} after {LIMIT:?}, expected a refusal with {OFF_SET:?}");
    b.run("holdfast agent pause", LIMIT)?;
    // In a pause the pool is imported by command only, and PostgreSQL stays down.
    let imported = wait_until(LIMIT, || {
        let found = view(&b).unwrap_or_default();
        if found["state"] == "standby" {
            let _ = b.run("holdfast agent failover --yes > /tmp/failover.log 2>&1 < /dev/null &", LIMIT);
        }
        found["state"] == "starting" && found["why"].as_str().is_some_and(|why| why.contains(OFF_SET))
    });
    anyhow::ensure!(imported, "found {:?} after {LIMIT:?}, expected the pool without PostgreSQL", view(&b));
    let (log, state) = vdev(&b, "logs")?;
    b.run(&format!("zpool remove tank {log} && holdfast agent resume"), LIMIT)?;
    becomes_primary(&b)?;
    report.add(PART, "its host is back with it: primary", None, format!("log {state}; {}", phases(&b)?));
    report.add(PART, "ledger", None, lab.check_ledger(&b)?);
    b.run(&format!("zpool add -f tank log {log}"), LIMIT)?;
    let told = wait_until(LIMIT, || {
        view(&b).is_ok_and(|view| view["off_set"].as_str().is_some_and(|off_set| off_set.contains(OFF_SET)))
    });
    anyhow::ensure!(told, "found {:?} after {LIMIT:?}, expected off_set with {OFF_SET:?}", view(&b));
    Ok(b)
}

/// The host is killed again, without its disk: an administrator imports with -m and removes the log from the pool. The
/// commits on it are lost.
fn by_hand(lab: &Lab, report: &mut Report, args: &Args, a: &Guest) -> Result<()> {
    step("The host is killed again: zpool import -m by hand");
    start_after(a, SET, args.sockets)?;
    let devices: Vec<String> = paths(&status(a, SET)?).iter().map(|path| format!("-d {path}")).collect();
    let import = |options: &str| format!("zpool import -f {options} -N -o cachefile=none {} tank", devices.join(" "));
    let (code, out, err) = a.ran(&import(""), LIMIT)?;
    let said: Vec<&str> = out.split_whitespace().chain(err.split_whitespace()).collect();
    anyhow::ensure!(code != 0, "imported without its log and without -m");
    report.add(PART, "zpool import -f", None, said.join(" "));
    timed(report, PART, a, "zpool import -f -m", &import("-m"))?;
    let (log, state) = vdev(a, "logs")?;
    timed(report, PART, a, &format!("zpool remove of the log ({state})"), &format!("zpool remove tank {log}"))?;
    a.run("zpool export tank", LIMIT)?;
    detach(a)?;
    a.run("holdfast agent resume", LIMIT)?;
    becomes_primary(a)?;
    report.add(PART, "resumed: primary", None, phases(a)?);
    let ledger = lab.ledger.as_ref().context("no ledger")?;
    let Verdict { acknowledged, lost, invented, .. } = ledger.check_through(&mut Lab::session(a)?)?;
    anyhow::ensure!(invented == 0, "found {invented} commits that were never made, expected none");
    anyhow::ensure!(lost > 0, "none of {acknowledged} acknowledged commits is lost without the log: nothing was shown");
    let found = format!("{lost} of {acknowledged}, what -m gives up (with the log on a volume of the set: none)");
    report.add(PART, "acknowledged commits that are lost", None, found);
    pool::consistent(report, PART, a)
}
