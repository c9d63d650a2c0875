//! A second device beside a set's volumes: the benefit of L2ARC and SLOG on a disk of the host, and the effect on the
//! pool when that disk is lost, alone or with its host.
//!
//! ```text
//!   tank ─┬─ vol1 vol2 vol3          of the set
//!         ├─ log ───┬─ volume `log`  of the set: it moves with the pool
//!         │         └─ or SLOG       a disk of the host: it does not
//!         └─ cache ─── CACHE         a disk of the host
//! ```
//! An SLOG on a disk of the host loses acknowledged commits with that host. This part demonstrates that: it counts
//! them, and does not fail because of them.

mod disks;
mod lost;

use super::Args;
use super::devices::{start, status};
use super::guest::Guest;
use super::lab::{LIMIT, Lab};
use super::pool::{self, timed};
use super::report::Report;
use crate::process::wait_until;
use crate::say::step;
use anyhow::{Context, Result, bail};
use disks::{ADD_CACHE, CACHE, DISKS, FILE, PART, SET, SLOG, detach, partition, sum};
use serde_json::Value;
use std::time::Duration;

/// Volume of the set for a log device.
const LOG: &str = "log";

/// The records of the file.
const RECORDS: u64 = 6144;
const RECORD_BYTES: u64 = 16 << 10;

/// Reads of a record each, at the same places each time.
const READS: u64 = 2000;

/// Limit for ZFS to fill a cache device, or to restore its content.
const FILLED_WITHIN: Duration = Duration::from_secs(60);

/// Makes ZFS fill a cache device within seconds; reads from it are the same.
const EAGER: &str = "set -e
cd /sys/module/zfs/parameters
echo 0 > l2arc_noprefetch
echo 0 > l2arc_headroom
echo 67108864 > l2arc_write_max
echo 67108864 > l2arc_write_boost";

/// The device of a volume.
fn device(status: &Value, volume: &str) -> Result<String> {
    let volumes = status["volumes"].as_array().map_or(&[][..], Vec::as_slice);
    let found = volumes.iter().find(|found| found["name"] == volume).and_then(|found| found["device"].as_str());
    found.map(str::to_string).with_context(|| format!("found {status}, expected a device of {volume}"))
}

/// A figure of ZFS's cache.
fn arcstat(guest: &Guest, name: &str) -> Result<u64> {
    let script = format!("awk '$1 == \"{name}\" {{print $3}}' /proc/spl/kstat/zfs/arcstats");
    let said = guest.run(&script, LIMIT)?;
    said.trim().parse().with_context(|| format!("{name}: found {said:?}, expected a number"))
}

/// ZFS's report on its cache devices, for an error message.
const CACHE_SAYS: &str = "zpool status -P tank
grep -E '^l2_(size|writes|rebuild|io_error|cksum)' /proc/spl/kstat/zfs/arcstats
grep -i l2arc /proc/spl/kstat/zfs/dbgmsg | tail -n 20";

/// Waits until this much is in the cache device.
fn cached(guest: &Guest, least: u64) -> Result<u64> {
    let mut found = 0;
    let there = wait_until(FILLED_WITHIN, || {
        found = arcstat(guest, "l2_size").unwrap_or(found);
        found >= least
    });
    if !there {
        let said = guest.run(CACHE_SAYS, LIMIT)?;
        bail!("found {found} bytes in the cache device after {FILLED_WITHIN:?}, expected {least}; ZFS says:\n{said}");
    }
    Ok(found)
}

/// Exports the pool and imports it, so that nothing of it is in memory.
fn made_cold(guest: &Guest, devices: &str) -> Result<()> {
    guest.run(&format!("zpool export tank && zpool import -o cachefile=none {devices} tank"), LIMIT * 2).map(drop)
}

/// Reads a second of single records, in no order.
fn reads(guest: &Guest) -> Result<u64> {
    let script = format!(
        "set -e
begun=$(date +%s%N)
perl -e 'open F, \"<:raw\", $ARGV[0] or die; srand 7; for (1..{READS}) {{ sysseek F, int(rand {RECORDS}) * {RECORD_BYTES}, 0; sysread(F, $b, {RECORD_BYTES}) == {RECORD_BYTES} or die }}' {FILE}
echo $(({READS} * 1000000000 / ($(date +%s%N) - begun)))"
    );
    let said = guest.run(&script, LIMIT * 2)?;
    said.trim().parse().with_context(|| format!("found {said:?}, expected a number of reads a second"))
}

/// Guest a with a pool over the set's volumes only, PostgreSQL running.
fn make(lab: &mut Lab, report: &mut Report, args: &Args) -> Result<Guest> {
    lab.make_set_with(SET, &[format!("{LOG}=256MiB").as_str()])?;
    let (a, seconds) = lab.boot_with(0, &DISKS)?;
    report.add(PART, "boot of a guest", Some(seconds), "");
    let seconds = start(&a, SET, args.sockets, false)?;
    let status = status(&a, SET)?;
    let stripe = ["vol1", "vol2", "vol3"].map(|volume| device(&status, volume));
    let stripe = stripe.into_iter().collect::<Result<Vec<_>>>()?.join(" ");
    report.add(PART, "attach --device kernel", Some(seconds), format!("{stripe}; {LOG}: {}", device(&status, LOG)?));
    pool::make(lab, report, PART, &a, (&stripe, args.scale, "ledger-second"))?;
    Ok(a)
}

/// Commits with the log device at each possible place. The last one stays.
fn commits(report: &mut Report, args: &Args, a: &Guest) -> Result<()> {
    step("Commits without a log device, with one on a disk of the host, with one on a volume of the set");
    pool::bench(report, PART, a, ("pgbench, commit durable, no log device", "", args.load))?;
    let (slog, log) = (partition(a, SLOG)?, device(&status(a, SET)?, LOG)?);
    a.run(&format!("zpool add -f tank log {slog}"), LIMIT)?;
    pool::bench(report, PART, a, ("pgbench, commit durable, log on a disk of the host", "", args.load))?;
    timed(report, PART, a, "zpool remove of that log", &format!("zpool remove tank {slog}"))?;
    a.run(&format!("zpool add -f tank log {log}"), LIMIT)?;
    pool::bench(report, PART, a, ("pgbench, commit durable, log on a volume of the set", "", args.load))?;
    report.add(PART, "the pool after that", None, pool::unharmed(a)?);
    Ok(())
}

/// Reads of an uncached pool, without a cache device and with one that has everything: ZFS restores its content after
/// an import. Returns the file's checksum; PostgreSQL is stopped.
fn cold_reads(report: &mut Report, a: &Guest) -> Result<String> {
    step("Cold reads without L2ARC and with it");
    let devices: Vec<String> =
        super::devices::paths(&status(a, SET)?).iter().map(|path| format!("-d {path}")).collect();
    let devices = devices.join(" ");
    let bytes = RECORDS * RECORD_BYTES;
    a.run(&format!("head -c {bytes} /dev/urandom > {FILE}"), LIMIT)?;
    let what = sum(a)?;
    pool::export(report, PART, a)?;
    a.run(&format!("zpool import -o cachefile=none {devices} tank"), LIMIT * 2)?;
    let without = reads(a)?;
    report.add(PART, "cold reads of 16 KiB, no cache device", None, format!("{without} a second"));

    let cache = partition(a, CACHE)?;
    a.run(&format!("{EAGER}\n{ADD_CACHE} {cache}\ncat {FILE} > /dev/null"), LIMIT * 2)?;
    let filled = cached(a, bytes / 4 * 3)?;
    made_cold(a, &devices)?;
    let found = cached(a, bytes / 2)?;
    report.add(PART, "L2ARC", None, format!("{filled} bytes; found again after an import: {found} bytes"));
    let before = arcstat(a, "l2_hits")?;
    let with = reads(a)?;
    let hits = arcstat(a, "l2_hits")? - before;
    anyhow::ensure!(hits > 0, "not one of {READS} reads came from the cache device: nothing was measured");
    report.add(PART, "cold reads of 16 KiB, L2ARC", None, format!("{with} a second; {hits} times from there"));
    Ok(what)
}

/// All tests of this part. Fails when anything is lost except the commits on an SLOG on the host's disk, or when those
/// are not lost.
pub fn acts(lab: &mut Lab, report: &mut Report, args: &Args) -> Result<()> {
    step("A second device: L2ARC, SLOG");
    let a = make(lab, report, args)?;
    commits(report, args, &a)?;
    let what = cold_reads(report, &a)?;
    a.run(pool::EXPORT, LIMIT)?;
    detach(&a)?;
    lost::acts(lab, report, args, a, &what)
}
