//! One guest: devices, pool and database are made as docs/zfs.md advises; then a gateway is killed under them, then attach itself.

use super::Args;
use super::guest::Guest;
use super::lab::{LIMIT, Lab, SET, TTL, VOLUMES, go_on};
use super::report::Report;
use crate::gateways;
use crate::ledger::{Ledger, unix_ms};
use crate::say::step;
use anyhow::{Context, Result};
use serde_json::Value;
use std::time::{Duration, Instant};

const PART: &str = "devices";
const LEDGER_WRITERS: usize = 2;

/// Where the data directory is.
pub const DATA: &str = "/tank/pg/data";

/// The layout, as docs/zfs.md has it: `$DEVICES` are the volumes of the set.
const POOL: &str = "
set -e
zpool create -f -o ashift=12 -o autotrim=off -o cachefile=none -O compression=lz4 -O atime=off -O xattr=sa -O mountpoint=none tank $DEVICES
zfs create -o mountpoint=/tank/pg -o recordsize=16K -o logbias=throughput tank/pg
zfs create -o mountpoint=/tank/pg/wal -o recordsize=64K -o logbias=latency tank/pg/wal
install -d -o postgres -g postgres -m 700 /tank/pg/data /tank/pg/wal/data
";

/// PostgreSQL on it. Records of ZFS are whole or not there: no full page images. Recycled log files would be written to new places anyway.
const INITDB: &str = "
set -e
su postgres -c \"$B/initdb --data-checksums --auth=trust -U postgres -E UTF8 --locale=C --no-sync -X /tank/pg/wal/data -D $D\" | tail -1
cat >> $D/postgresql.conf <<C
shared_buffers = 128MB
max_connections = 30
full_page_writes = off
wal_init_zero = off
wal_recycle = off
unix_socket_directories = '/run/postgresql'
listen_addresses = '*'
C
echo 'host all all 10.98.0.0/24 trust' >> $D/pg_hba.conf
sync
";

fn with_names(script: &str) -> String {
    format!("B=/usr/lib/postgresql/15/bin D={DATA}\n{script}")
}

/// The command, as a unit would run it.
pub fn command(guest: &Guest, sockets: u8) -> String {
    format!(
        "holdfast attach {SET} --owner {} --api {} --device kernel --ttl {TTL} --kernel-sockets {sockets} --dead-timeout 2m --timeout 2m \
         >> /var/log/attach.log 2>&1",
        guest.name,
        Lab::apis().join(",")
    )
}

/// Attaches; how long that took. With `again` as a supervisor does it: attach is started again whenever it was killed, not when it ended by itself.
///
/// # Errors
/// When the devices are not there within [`LIMIT`].
pub fn start(guest: &Guest, sockets: u8, again: bool) -> Result<f64> {
    let (begun, command) = (Instant::now(), command(guest, sockets));
    let looped = format!("while :; do\n  {command}\n  [ $? = 137 ] || break\ndone");
    guest.leave_running(if again { &looped } else { &command })?;
    loop {
        let status = status(guest)?;
        if status["ready"] == true {
            return Ok(begun.elapsed().as_secs_f64());
        }
        let log = || guest.run("tail -n 5 /var/log/attach.log", LIMIT).unwrap_or_default();
        anyhow::ensure!(begun.elapsed() < LIMIT, "{}: not attached after {LIMIT:?}: {}", guest.name, log());
    }
}

/// What attach shows of itself; null where nothing is attached.
///
/// # Errors
/// When the guest does not answer.
pub fn status(guest: &Guest) -> Result<Value> {
    let (_, out, _) = guest.ran(&format!("holdfast attach {SET} --status --output json"), LIMIT)?;
    Ok(serde_json::from_str(&out).unwrap_or_default())
}

/// Its block devices.
pub fn paths(status: &Value) -> Vec<String> {
    let volumes = status["volumes"].as_array().map_or(&[][..], Vec::as_slice);
    volumes.iter().filter_map(|volume| volume["device"].as_str().map(str::to_string)).collect()
}

/// Guest a with everything on it, PostgreSQL running, the ledger's table made.
pub fn make(lab: &mut Lab, report: &mut Report, args: &Args) -> Result<Guest> {
    step("Guest a: kernel nbd, ZFS, PostgreSQL");
    let (a, seconds) = lab.boot(0)?;
    report.add(
        PART,
        "boot of a guest",
        Some(seconds),
        a.run("uname -r; zfs version | head -1", LIMIT)?.replace('\n', " "),
    );
    let seconds = start(&a, args.sockets, true)?;
    let devices = paths(&status(&a)?);
    anyhow::ensure!(devices.len() == VOLUMES, "found devices {devices:?}, expected {VOLUMES}");
    report.add(PART, "attach --device kernel", Some(seconds), devices.join(" "));
    let timed = |what: &str, script: &str, report: &mut Report| -> Result<String> {
        let begun = Instant::now();
        let said = a.run(&with_names(script), LIMIT)?;
        let last = said.lines().last().unwrap_or_default().to_string();
        report.add(PART, what, Some(begun.elapsed().as_secs_f64()), last.clone());
        Ok(said)
    };
    timed("zpool create, datasets", &format!("DEVICES='{}'{POOL}", devices.join(" ")), report)?;
    timed("initdb", INITDB, report)?;
    timed(
        "start of PostgreSQL",
        "su postgres -c \"$B/pg_ctl -D $D -l /tmp/pg.log -w -t 120 start\" | tail -1",
        report,
    )?;
    let fill = format!("su postgres -c '$B/pgbench -q -i -s {} postgres' 2>&1 | tail -1", args.scale)
        .replace("$B", "/usr/lib/postgresql/15/bin");
    timed("pgbench -i", &fill, report)?;
    let mut session = Lab::session(&a)?;
    lab.ledger = Some(Ledger::create_through(&mut session, &lab.dir.join("ledger"), LEDGER_WRITERS)?);
    for (what, options) in
        [("pgbench, commit durable", ""), ("pgbench, synchronous_commit off", "-c synchronous_commit=off")]
    {
        let script = format!(
            "su postgres -c \"PGOPTIONS='{options}' $B/pgbench -n -c 4 -j 1 -T {} postgres\" | grep -E 'tps|failed' | tr '\\n' ' '",
            args.load
        );
        timed(what, &script, report)?;
    }
    Ok(a)
}

/// pgbench in the background; it ends by itself, and its log says how.
fn load(a: &Guest, seconds: u64) -> Result<()> {
    a.leave_running(&format!(
        "su postgres -c '/usr/lib/postgresql/15/bin/pgbench -n -c 4 -j 1 -T {seconds} -P 1 postgres' > /tmp/pgbench.log 2>&1"
    ))
}

/// No error anywhere: pool, kernel, pgbench.
fn unharmed(a: &Guest) -> Result<String> {
    let health = a.run("zpool status -x; dmesg | grep -cE 'I/O error|zio|suspended' || true", LIMIT)?;
    anyhow::ensure!(
        health.trim() == "all pools are healthy\n0",
        "{}: {}",
        health.trim(),
        a.run("zpool status; dmesg | tail -20", LIMIT)?
    );
    Ok("pool healthy, no I/O error".into())
}

fn pgbench_ended(a: &Guest) -> Result<String> {
    let script = "for _ in $(seq 600); do grep -q '^tps' /tmp/pgbench.log && break; sleep 0.5; done; grep -E 'tps =|failed' /tmp/pgbench.log | tail -2 | tr '\\n' ' '";
    let said = a.run(script, LIMIT * 2)?;
    let log = || a.run("tail -5 /tmp/pgbench.log", LIMIT).unwrap_or_default();
    anyhow::ensure!(said.contains("failed transactions: 0 "), "pgbench: {}", log());
    Ok(said.trim().to_string())
}

/// A gateway dies, then attach does; nobody above them sees more than a pause.
pub fn faults(lab: &mut Lab, report: &mut Report, args: &Args, a: &Guest) -> Result<()> {
    step("The serving gateway is killed under load");
    load(a, args.load + 20)?;
    let writers = lab.writers(a)?;
    go_on(&writers, 20)?;
    let serving = lab.serving()?;
    let since = unix_ms();
    lab.gateways.kill(serving)?;
    go_on(&writers, 50)?;
    let (gap, lost) = lab.take_back(writers, since)?;
    anyhow::ensure!(lost == 0, "{lost} sessions saw an error when a gateway was killed");
    report.add(PART, "gateway killed: clients' pause", Some(gap), unharmed(a)?);
    lab.gateways.launch(&lab.net, serving)?;
    lab.caught_up()?;
    report.add(PART, &format!("{} is back; ledger", gateways::name(serving)), None, lab.check_ledger(a)?);
    report.add(PART, "pgbench through it", None, pgbench_ended(a)?);

    step("attach is killed under load, and started again");
    let before = status(a)?;
    load(a, args.load + 30)?;
    let writers = lab.writers(a)?;
    go_on(&writers, 20)?;
    let since = unix_ms();
    a.run(&format!("kill -9 {}", before["pid"].as_u64().context("a pid")?), LIMIT)?;
    go_on(&writers, 50)?;
    let (gap, lost) = lab.take_back(writers, since)?;
    anyhow::ensure!(lost == 0, "{lost} sessions saw an error when attach was killed");
    let after = status(a)?;
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
        format!("{}; epoch {} to {}", unharmed(a)?, was.unwrap_or(0), is.unwrap_or(0)),
    );
    report.add(PART, "pgbench through it", None, pgbench_ended(a)?);
    report.add(PART, "ledger", None, lab.check_ledger(a)?);
    Ok(())
}

/// PostgreSQL, pool and devices in good order.
pub fn let_go(report: &mut Report, a: &Guest) -> Result<()> {
    step("Guest a lets go in good order");
    let begun = Instant::now();
    a.run(&with_names("su postgres -c \"$B/pg_ctl -D $D -m fast -w stop\" && zpool export tank"), LIMIT)?;
    report.add(PART, "stop, zpool export", Some(begun.elapsed().as_secs_f64()), "");
    // What an import costs is reads one after the other.
    let each: Vec<String> = paths(&status(a)?).iter().map(|path| format!("-d {path}")).collect();
    let begun = Instant::now();
    let reads = "awk '{n+=$1} END {print n}' /sys/block/nbd*/stat";
    let import = format!("zpool import -o cachefile=none {} tank", each.join(" "));
    let said = a.run(&format!("b=$({reads}); {import} && echo $(($({reads})-b)) reads"), LIMIT)?;
    report.add(PART, "zpool import", Some(begun.elapsed().as_secs_f64()), said.trim());
    a.run("zpool export tank", LIMIT)?;
    let begun = Instant::now();
    a.run(
        &format!("holdfast attach {SET} --detach --timeout 60s && ! ls /sys/block/nbd*/pid"),
        Duration::from_secs(120),
    )?;
    report.add(PART, "detach", Some(begun.elapsed().as_secs_f64()), "no nbd device is left connected");
    Ok(())
}
