//! Pool, PostgreSQL and the ledger's table on the devices, as docs/zfs.md advises; and their checks.

use super::guest::Guest;
use super::lab::{LIMIT, Lab};
use super::report::Report;
use crate::ledger::Ledger;
use anyhow::Result;
use std::time::Instant;

const LEDGER_WRITERS: usize = 2;

/// The data directory.
pub const DATA: &str = "/tank/pg/data";

/// The layout: `$VDEVS` are the volumes of the set, or a mirror. `$MORE`: further options of tank/pg.
const POOL: &str = "
set -e
zpool create -f -o ashift=12 -o autotrim=off -o cachefile=none -O compression=lz4 -O atime=off -O xattr=sa -O mountpoint=none tank $VDEVS
zfs create -o mountpoint=/tank/pg $MORE -o recordsize=16K -o logbias=throughput tank/pg
zfs create -o mountpoint=/tank/pg/wal -o recordsize=64K -o logbias=latency tank/pg/wal
install -d -o postgres -g postgres -m 700 /tank/pg/data /tank/pg/wal/data
";

/// PostgreSQL on it. ZFS never tears a record, so no full page images. Recycled log files would be written to new
/// places anyway.
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

const START: &str = "su postgres -c \"$B/pg_ctl -D $D -l /tmp/pg.log -w -t 120 start\" | tail -1";

fn with_names(script: &str) -> String {
    format!("B=/usr/lib/postgresql/15/bin D={DATA}\n{script}")
}

/// Runs a script and adds a row with its time and the last line of its output.
pub fn timed(report: &mut Report, part: &'static str, guest: &Guest, what: &str, script: &str) -> Result<()> {
    let begun = Instant::now();
    let said = guest.run(&with_names(script), LIMIT)?;
    report.add(part, what, Some(begun.elapsed().as_secs_f64()), said.lines().last().unwrap_or_default());
    Ok(())
}

/// Creates the pool over `vdevs` (as `zpool create` takes them), starts PostgreSQL on it, and fills pgbench's tables at
/// `scale` and the ledger's. The ledger's files are in the run's folder `ledger`.
pub fn make(
    lab: &mut Lab,
    report: &mut Report,
    part: &'static str,
    guest: &Guest,
    on: (&str, u32, &str),
) -> Result<()> {
    make_with(lab, report, part, guest, on, "")
}

/// The same with these further options of `zfs create` for the dataset tank/pg.
pub fn make_with(
    lab: &mut Lab,
    report: &mut Report,
    part: &'static str,
    guest: &Guest,
    (vdevs, scale, ledger): (&str, u32, &str),
    more: &str,
) -> Result<()> {
    timed(report, part, guest, "zpool create, datasets", &format!("VDEVS='{vdevs}' MORE='{more}'{POOL}"))?;
    timed(report, part, guest, "initdb", INITDB)?;
    timed(report, part, guest, "start of PostgreSQL", START)?;
    let fill = format!("su postgres -c \"$B/pgbench -q -i -s {scale} postgres\" 2>&1 | tail -1");
    timed(report, part, guest, "pgbench -i", &fill)?;
    let mut session = Lab::session(guest)?;
    lab.ledger = Some(Ledger::create_through(&mut session, &lab.dir.join(ledger), LEDGER_WRITERS)?);
    Ok(())
}

/// Runs pgbench to its end, with PostgreSQL's `options`.
pub fn bench(
    report: &mut Report,
    part: &'static str,
    guest: &Guest,
    (what, options, seconds): (&str, &str, u64),
) -> Result<()> {
    let script = format!(
        "su postgres -c \"PGOPTIONS='{options}' $B/pgbench -n -c 4 -j 1 -T {seconds} postgres\" | grep -E 'tps|failed' | tr '\\n' ' '"
    );
    timed(report, part, guest, what, &script)
}

/// pgbench in the background; it ends by itself, and its log has the result. Fails when it cannot be started.
pub fn load(guest: &Guest, seconds: u64) -> Result<()> {
    guest.leave_running(&format!(
        "su postgres -c '/usr/lib/postgresql/15/bin/pgbench -n -c 4 -j 1 -T {seconds} -P 1 postgres' > /tmp/pgbench.log 2>&1"
    ))
}

/// Waits for it; returns its counts. Fails when a transaction failed, or it does not end.
pub fn load_ended(guest: &Guest) -> Result<String> {
    let script = "for _ in $(seq 600); do grep -q '^tps' /tmp/pgbench.log && break; sleep 0.5; done; grep -E 'tps =|failed' /tmp/pgbench.log | tail -2 | tr '\\n' ' '";
    let said = guest.run(script, LIMIT * 2)?;
    let log = || guest.run("tail -5 /tmp/pgbench.log", LIMIT).unwrap_or_default();
    anyhow::ensure!(said.contains("failed transactions: 0 "), "pgbench: {}", log());
    Ok(said.trim().to_string())
}

/// Checks that neither pool nor kernel reports an error. Fails when there is one.
pub fn unharmed(guest: &Guest) -> Result<String> {
    let health = guest.run("zpool status -x; dmesg | grep -cE 'I/O error|zio|suspended' || true", LIMIT)?;
    anyhow::ensure!(
        health.trim() == "all pools are healthy\n0",
        "{}: {}",
        health.trim(),
        guest.run("zpool status; dmesg | tail -20", LIMIT)?
    );
    Ok("pool healthy, no I/O error".into())
}

/// Imports the pool: some hundred sequential reads, each delayed by other load on the machine. Fails when it cannot be
/// imported.
pub fn import(report: &mut Report, part: &'static str, guest: &Guest, (what, options): (&str, &str)) -> Result<()> {
    let begun = Instant::now();
    guest.run(&format!("zpool import -o cachefile=none {options} tank"), LIMIT * 2)?;
    report.add(part, what, Some(begun.elapsed().as_secs_f64()), "");
    Ok(())
}

/// Starts PostgreSQL on an imported pool. Fails when it does not start.
pub fn start_database(report: &mut Report, part: &'static str, guest: &Guest) -> Result<()> {
    timed(report, part, guest, "start of PostgreSQL", START)
}

/// Exports the pool. ZFS calls it busy for a moment also while its own daemon or udev looks at it: tried for 10 s.
pub const EXPORT: &str = "for _ in $(seq 50); do zpool export tank 2> /tmp/export && exit 0
grep -q busy /tmp/export || break
sleep 0.2
done
cat /tmp/export >&2
fuser -vm /tank >&2
exit 1";

/// Stops PostgreSQL and exports the pool.
pub fn export(report: &mut Report, part: &'static str, guest: &Guest) -> Result<()> {
    let script = format!("su postgres -c \"$B/pg_ctl -D $D -m fast -w stop\" > /dev/null || exit 1\n{EXPORT}");
    timed(report, part, guest, "stop, zpool export", &script)
}

/// Checks the pool from end to end, every table against its indexes, and the ledger. Fails when one of them reports a
/// fault.
pub fn sound(lab: &Lab, report: &mut Report, part: &'static str, guest: &Guest) -> Result<()> {
    consistent(report, part, guest)?;
    report.add(part, "ledger", None, lab.check_ledger(guest)?);
    Ok(())
}

/// The same without the ledger: checks consistency, not completeness.
pub fn consistent(report: &mut Report, part: &'static str, guest: &Guest) -> Result<()> {
    let begun = Instant::now();
    let script = "zpool scrub -w tank && zpool status tank | grep -E 'scan:|errors:' | tr '\\n' ' '";
    let found = guest.run(script, LIMIT * 2)?;
    anyhow::ensure!(found.contains("with 0 errors") && found.contains("No known data errors"), "scrub: {found}");
    let words: Vec<&str> = found.split_whitespace().collect();
    report.add(part, "zpool scrub", Some(begun.elapsed().as_secs_f64()), words.join(" "));
    let begun = Instant::now();
    let check = "su postgres -c '/usr/lib/postgresql/15/bin/pg_amcheck --install-missing --heapallindexed --on-error-stop -d postgres'";
    let found = guest.run(check, LIMIT * 2)?;
    anyhow::ensure!(found.trim().is_empty(), "pg_amcheck: {found}");
    report.add(part, "pg_amcheck", Some(begun.elapsed().as_secs_f64()), "every table agrees with its indexes");
    Ok(())
}
