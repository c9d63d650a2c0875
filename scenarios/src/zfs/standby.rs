//! Two guests: a has the pool, PostgreSQL and writers; b is a standby on a copy of a snapshot of that pool
//! (docs/adr/0024-standbys.md). Then b takes the set by hand and imports the pool itself beside the copy, gets no
//! further copy, and loses its present one.

use super::Args;
use super::devices::{paths, start, status};
use super::guest::Guest;
use super::lab::{LIMIT, Lab, SET, go_on};
use super::pool::{self, DATA};
use super::report::Report;
use crate::ledger::unix_ms;
use crate::say::step;
use anyhow::{Context, Result};
use serde_json::Value;
use std::time::{Duration, Instant};

const PART: &str = "standby";

const CONFIG: &str = "/etc/holdfast/standby.toml";

/// Port of the standby; the primary uses 5432.
const PORT: u16 = 5433;

/// Limit of one command to a gateway.
const HURRY: Duration = Duration::from_secs(60);

/// Emulation is slow, so the limits are wide.
fn settings() -> String {
    let apis: Vec<String> = Lab::apis().iter().map(|api| format!("{api:?}")).collect();
    format!(
        "name = \"r1\"\nset = {SET:?}\ngateways = [{}]\nscratch_max = \"512MiB\"\nsnapshot_timeout_s = 600\ndevice_timeout_s = 120\n\
         [pool]\nkind = \"zfs\"\nimport_timeout_s = 240\n\
         [database]\ndata = {:?}\nhost = \"/run/postgresql\"\nport = {PORT}\noptions = \"-c shared_buffers=32MB\"\nstart_timeout_s = 300\nstop_timeout_s = 60\n",
        apis.join(", "),
        DATA.trim_start_matches('/')
    )
}

/// Runs `holdfast standby WHAT` to its end; returns code and output.
fn standby(b: &Guest, what: &str) -> Result<(i64, String, String)> {
    b.ran(&format!("holdfast standby {what} --config {CONFIG} --output json"), LIMIT * 4)
}

fn asked(b: &Guest, what: &str) -> Result<Value> {
    let (code, out, err) = standby(b, what)?;
    anyhow::ensure!(code == 0, "standby {what}: exit code {code}: {}", crate::cmd::tail(&err, 8));
    serde_json::from_str(out.trim()).with_context(|| format!("standby {what}: no JSON: {out}"))
}

/// Runs one statement at a PostgreSQL of the guest; returns code and output.
fn sql(guest: &Guest, port: u16, statement: &str) -> Result<(i64, String)> {
    let psql = "/usr/lib/postgresql/15/bin/psql -X -A -t -q -v ON_ERROR_STOP=1 -h /run/postgresql";
    let script = format!("su postgres -c '{psql} -p {port} postgres' <<'Q'\n{statement};\nQ\n");
    let (code, out, err) = guest.ran(&script, LIMIT)?;
    Ok((code, format!("{}{}", out.trim(), err.trim())))
}

fn number(guest: &Guest, port: u16, statement: &str) -> Result<u64> {
    let (code, said) = sql(guest, port, statement)?;
    anyhow::ensure!(code == 0, "{statement}: {said}");
    said.parse().with_context(|| format!("{statement}: found {said:?}, expected a number"))
}

/// Name and guid of the pools of a guest, sorted.
fn pools(guest: &Guest) -> Result<Vec<(String, String)>> {
    let listed = guest.run("zpool list -H -p -o name,guid | sort", LIMIT)?;
    let pairs = listed.lines().map(|line| line.split_once('\t').with_context(|| format!("zpool list: {line:?}")));
    pairs.map(|pair| pair.map(|(name, guid)| (name.to_string(), guid.to_string()))).collect()
}

fn names(pools: &[(String, String)]) -> Vec<&str> {
    pools.iter().map(|(name, _)| name.as_str()).collect()
}

/// A refresh, while a is written to: earlier commits are there, and it is read-only. Returns its number of ledger rows.
fn refreshed(report: &mut Report, a: &Guest, b: &Guest, (what, mark): (&str, u64)) -> Result<u64> {
    let (code, said) = sql(a, 5432, &format!("insert into marks values ({mark})"))?;
    anyhow::ensure!(code == 0, "a mark on a: {said}");
    let before = number(a, 5432, "select count(*) from ledger")?;
    let begun = Instant::now();
    asked(b, "refresh")?;
    let took = begun.elapsed().as_secs_f64();
    let found = number(b, PORT, "select count(*) from ledger")?;
    anyhow::ensure!(
        found >= before,
        "R1, R4: found {found} rows on the copy, expected {before} that were acknowledged"
    );
    let marks = number(b, PORT, "select max(n) from marks")?;
    anyhow::ensure!(marks == mark, "found mark {marks} on the copy, expected {mark}");
    let (code, why) = sql(b, PORT, "insert into marks values (99)")?;
    anyhow::ensure!(code != 0 && why.contains("read-only transaction"), "a write on the copy: {code}: {why}");
    let status = asked(b, "status")?;
    let age = status["age_ms"].as_u64().context("an age")?;
    anyhow::ensure!(status["serving"] == true && age > 0, "{status}");
    let words = format!("{found} rows, {before} of them from before; {} s old; a write is refused", age / 1000);
    report.add(PART, what, Some(took), words);
    Ok(found)
}

/// Devices, pool and PostgreSQL, by hand.
fn take(report: &mut Report, guest: &Guest, sockets: u8) -> Result<()> {
    let seconds = start(guest, SET, sockets, true)?;
    report.add(PART, &format!("{}: attach", guest.name), Some(seconds), "");
    let each: Vec<String> = paths(&status(guest, SET)?).iter().map(|path| format!("-d {path}")).collect();
    pool::import(report, PART, guest, (&format!("{}: zpool import of the pool itself", guest.name), &each.join(" ")))?;
    pool::start_database(report, PART, guest)
}

fn give_back(report: &mut Report, guest: &Guest) -> Result<()> {
    pool::export(report, PART, guest)?;
    guest.run(&format!("holdfast attach {SET} --detach --timeout 60s"), LIMIT).map(drop)
}

/// Names of the set's snapshots.
fn snapshots(lab: &Lab) -> Result<Vec<String>> {
    let listed = lab.gateways.holdfast(&["snapshot", "list", SET], HURRY)?;
    let all = listed["snapshots"].as_array().context("no snapshots")?;
    Ok(all.iter().filter_map(|found| Some(found["name"].as_str()?.to_string())).collect())
}

/// The test: a has the set, the pool and PostgreSQL before and after it.
pub fn act(lab: &mut Lab, report: &mut Report, args: &Args, a: &Guest) -> Result<()> {
    step("A standby of the pool on guest b");
    let (b, seconds) = lab.boot(1)?;
    report.add(PART, "boot of a guest beside it", Some(seconds), "");
    b.put(CONFIG, &settings())?;
    let (code, said) = sql(a, 5432, "create table marks (n int)")?;
    anyhow::ensure!(code == 0, "{said}");
    let real = pools(a)?;
    anyhow::ensure!(names(&real) == ["tank"], "found pools {real:?} on a, expected tank");
    let writers = lab.writers(a)?;
    go_on(&writers, 20)?;
    let since = unix_ms();
    let first = refreshed(report, a, &b, ("a refresh", 1))?;
    anyhow::ensure!(names(&pools(&b)?) == ["holdfast-standby-r1-a"], "found pools {:?} on b", pools(&b)?);
    go_on(&writers, 20)?;
    let second = refreshed(report, a, &b, ("another one beside it", 2))?;
    anyhow::ensure!(second > first, "found {second} rows, expected more than {first}");
    let copies = pools(&b)?;
    anyhow::ensure!(
        names(&copies) == ["holdfast-standby-r1-b"],
        "found pools {copies:?} on b, expected the new copy only"
    );
    go_on(&writers, 20)?;
    let (gap, lost) = lab.take_back(writers, since)?;
    anyhow::ensure!(lost == 0, "{lost} sessions on a saw an error while b took copies");
    report.add(PART, "the primary meanwhile: clients' longest pause", Some(gap), pool::unharmed(a)?);

    step("b takes the set, and imports the pool beside its copy");
    give_back(report, a)?;
    take(report, &b, args.sockets)?;
    let both = pools(&b)?;
    anyhow::ensure!(names(&both) == ["holdfast-standby-r1-b", "tank"], "found pools {both:?} on b");
    anyhow::ensure!(both[0] == copies[0] && both[1] == real[0], "found {both:?}, expected {copies:?} and {real:?}");
    let still = number(&b, PORT, "select count(*) from ledger")?;
    anyhow::ensure!(still == second, "found {still} rows on the copy, expected {second}");
    report.add(
        PART,
        "pool and copy on one host",
        None,
        format!("two guids; {}; {}", pool::unharmed(&b)?, lab.check_ledger(&b)?),
    );

    let before = snapshots(lab)?;
    let (code, _, why) = standby(&b, "refresh")?;
    anyhow::ensure!(code == 1 && why.contains("pool tank: found it imported on this host"), "exit code {code}: {why}");
    let after = snapshots(lab)?;
    anyhow::ensure!(before == after, "a refresh that was refused left {after:?}, expected {before:?}");
    let still = number(&b, PORT, "select count(*) from ledger")?;
    anyhow::ensure!(still == second, "found {still} rows after it, expected {second}");
    report.add(PART, "a refresh beside the pool itself", None, "refused, no snapshot taken; the old copy serves on");
    copy_is_lost(lab, report, &b)?;
    give_back(report, &b)?;
    b.kill()?;
    take(report, a, args.sockets)?;
    report.add(PART, "ledger, back on a", None, lab.check_ledger(a)?);
    Ok(())
}

/// The copy's process is killed below its pool: that pool remains until a reboot, and affects nothing else.
fn copy_is_lost(lab: &mut Lab, report: &mut Report, b: &Guest) -> Result<()> {
    step("The copy is killed under its pool");
    let writers = lab.writers(b)?;
    go_on(&writers, 20)?;
    let since = unix_ms();
    let shown = b.run("cat /run/holdfast-standby/b/attach/status.json", LIMIT)?;
    let pid = serde_json::from_str::<Value>(&shown)?["pid"].as_u64().context("a pid")?;
    b.run(&format!("kill -9 {pid}; pkill -9 -x nbdfuse; true"), LIMIT)?;
    let begun = Instant::now();
    let (code, _, why) = standby(b, "stop")?;
    anyhow::ensure!(code == 1 && why.contains("holdfast-standby-r1-b") && why.contains("reboot"), "{code}: {why}");
    let health = b.run("timeout 60 zpool list -H -o name,health | tr '\\t\\n' '  '", LIMIT)?;
    report.add(
        PART,
        "copy killed: standby stop",
        Some(begun.elapsed().as_secs_f64()),
        format!("says so; {}", health.trim()),
    );
    go_on(&writers, 50)?;
    let (gap, lost) = lab.take_back(writers, since)?;
    anyhow::ensure!(lost == 0, "{lost} sessions of the pool itself saw an error when the copy was killed");
    report.add(PART, "copy killed: clients' pause on the pool itself", Some(gap), "");
    pool::sound(lab, report, PART, b)
}
