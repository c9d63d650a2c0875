//! A mirror of two sets with separate stores, by hand (docs/operating/mirror.md): each side's set, then its process, is
//! lost with its store and comes back; one side lacks what only the other one has, and imports all the same; the host
//! is killed.
//!
//! ```text
//!   tank ── mirror ─┬─ /dev/holdfast/pg-a ── /dev/nbdN ── attach pg-a ─┐                  ┌─ store of pg-a
//!                   └─ /dev/holdfast/pg-b ── /dev/nbdM ── attach pg-b ─┴─ the gateways ───┴─ store of pg-b
//! ```

use super::Args;
use super::devices::{paths, start_after, status};
use super::guest::Guest;
use super::lab::{LIMIT, Lab, go_on};
use super::pool;
use super::report::Report;
use crate::cmd::on_path;
use crate::ledger::{Writers, unix_ms};
use crate::process::wait_until;
use crate::s3::S3;
use crate::say::step;
use anyhow::{Context, Result};
use std::time::Duration;

const PART: &str = "mirror";

/// Each side has a server of its own.
pub const NEEDS: &[&str] = &["versitygw"];

/// Stable device names, by which the pool knows its sides.
const NAMES: &str = "/dev/holdfast";

/// Written while only one side is present.
const WORD: &str = "/tank/pg/word";

/// After this time without a commit there is no progress.
const STILL: Duration = Duration::from_secs(8);

/// Limit of one command to a gateway.
const HURRY: Duration = Duration::from_secs(60);

struct Side {
    set: &'static str,
    store: S3,
}

impl Side {
    fn make(lab: &Lab, set: &'static str) -> Result<Self> {
        Ok(Self { set, store: lab.make_set_apart(set, 1)? })
    }

    fn name(&self) -> String {
        format!("{NAMES}/{}", self.set)
    }

    fn attach(&self, report: &mut Report, guest: &Guest, sockets: u8) -> Result<()> {
        let seconds = start_after(guest, self.set, sockets)?;
        let device = paths(&status(guest, self.set)?).into_iter().next().context("a device")?;
        guest.run(&format!("mkdir -p {NAMES} && ln -sfn {device} {}", self.name()), LIMIT)?;
        report.add(PART, &format!("attach {}", self.set), Some(seconds), device);
        Ok(())
    }

    /// Its process ends; the exit code.
    fn detach(&self, guest: &Guest) -> Result<i64> {
        let script = format!("rm -f {}; holdfast attach {} --detach --timeout 60s > /dev/null", self.name(), self.set);
        Ok(guest.ran(&script, LIMIT)?.0)
    }
}

/// The acts.
pub fn acts(lab: &mut Lab, report: &mut Report, args: &Args) -> Result<()> {
    if !on_path("versitygw") {
        report.add(PART, "left out", None, "versitygw is not installed");
        return Ok(());
    }
    step("A mirror of two sets in two stores");
    let mut sides = [Side::make(lab, "pg-a")?, Side::make(lab, "pg-b")?];
    let (guest, seconds) = lab.boot(0)?;
    report.add(PART, "boot of a guest", Some(seconds), "");
    for side in &sides {
        side.attach(report, &guest, args.sockets)?;
    }
    let mirror = format!("mirror {} {}", sides[0].name(), sides[1].name());
    pool::make(lab, report, PART, &guest, (&mirror, args.scale, "ledger-mirror"))?;
    pool::bench(report, PART, &guest, ("pgbench, commit durable", "", args.load))?;
    let [a, b] = &mut sides;
    let token = set_is_taken(lab, report, &guest, b)?;
    comes_back(lab, report, &guest, b, (&token, args.sockets))?;
    let alone = process_is_lost(lab, report, &guest, a)?;
    alone_it_is_old(lab, report, &guest, (a, b), (alone, args.sockets))?;
    host_is_killed(lab, report, args, guest, &sides)
}

/// Pool and sides, as `zpool status` has them.
fn states(guest: &Guest) -> Result<String> {
    let script =
        "zpool status -P tank | awk '$1 == \"tank\" || $1 ~ \"^/dev/\" {print $1, $2}' | sed 's,.*/,,' | paste -sd,";
    Ok(guest.run(script, LIMIT)?.trim().replace(',', ", "))
}

/// Waits until the pool has noticed the loss of a side.
fn degraded(guest: &Guest) -> Result<String> {
    let mut found = String::new();
    let there = wait_until(LIMIT, || {
        found = states(guest).unwrap_or_else(|e| format!("{e:#}"));
        found.starts_with("tank DEGRADED")
    });
    anyhow::ensure!(there, "found {found:?} after {LIMIT:?}, expected the pool to be DEGRADED");
    Ok(found)
}

/// Both sides have everything.
fn resilvered(report: &mut Report, guest: &Guest, what: &str) -> Result<()> {
    let mut found = String::new();
    let there = wait_until(LIMIT * 2, || {
        let scan = guest.run("zpool status tank | grep scan: | tr -s ' \\t' ' '", LIMIT);
        let now = scan.and_then(|scan| Ok(format!("{}; {}", scan.trim(), states(guest)?)));
        found = now.unwrap_or_else(|e| format!("{e:#}"));
        found.contains("resilvered") && found.contains("with 0 errors") && !found.contains("DEGRADED")
    });
    anyhow::ensure!(there, "found {found:?}, expected the end of a resilver");
    let health = guest.run("zpool clear tank && zpool status -x tank", LIMIT)?;
    anyhow::ensure!(health.trim() == "pool 'tank' is healthy", "found {}, expected a healthy pool", health.trim());
    report.add(PART, what, None, found);
    Ok(())
}

/// Takes the writers back; none may have lost its session.
fn nobody_noticed(lab: &mut Lab, writers: Writers, since: u64) -> Result<f64> {
    let (gap, lost) = lab.take_back(writers, since)?;
    anyhow::ensure!(lost == 0, "{lost} sessions saw an error when a side was lost or came back");
    Ok(gap)
}

/// A store is lost, then its set goes to another owner: the side's attach gets an error. Returns the other owner's
/// token.
fn set_is_taken(lab: &mut Lab, report: &mut Report, guest: &Guest, side: &mut Side) -> Result<String> {
    step("Side b: its store is lost, then its set is taken");
    let writers = lab.writers(guest)?;
    go_on(&writers, 20)?;
    report.fault();
    side.store.stop()?;
    let (before, found) = (writers.acknowledged(), "with the store away, and both sides");
    std::thread::sleep(STILL);
    let commits = writers.acknowledged() - before;
    let states = states(guest)?;
    anyhow::ensure!(states.starts_with("tank ONLINE"), "R8: found {states} when a store was away");
    anyhow::ensure!(commits > 0, "R8: no commit in {STILL:?} when a store was away");
    report.add(PART, found, Some(STILL.as_secs_f64()), format!("{commits} commits; {states}"));
    let since = unix_ms();
    report.fault();
    let grant = lab.gateways.holdfast(&["lease", "acquire", side.set, "--owner", "nobody", "--force"], HURRY)?;
    go_on(&writers, 50)?;
    let states = degraded(guest)?;
    go_on(&writers, 50)?;
    let gap = nobody_noticed(lab, writers, since)?;
    report.add(PART, "pg-b taken by another: clients' pause", Some(gap), states);
    report.add(PART, "ledger", None, lab.check_ledger(guest)?);
    Ok(grant["token"].as_str().context("a token")?.to_string())
}

/// The side is there again, under load.
fn comes_back(
    lab: &mut Lab,
    report: &mut Report,
    guest: &Guest,
    side: &mut Side,
    (token, sockets): (&str, u8),
) -> Result<()> {
    step("Side b comes back");
    side.store.resume()?;
    lab.gateways.holdfast(&["lease", "release", side.set, "--token", token], HURRY)?;
    let since = unix_ms();
    let writers = lab.writers(guest)?;
    go_on(&writers, 20)?;
    // ZFS holds the failed device open: otherwise its process would not end, nor its number be free.
    guest.run(&format!("zpool offline tank {}", side.name()), LIMIT)?;
    let code = side.detach(guest)?;
    anyhow::ensure!(code == 7, "detach of a fenced set ended with {code}, expected 7");
    side.attach(report, guest, sockets)?;
    pool::timed(report, PART, guest, "zpool online", &format!("zpool online tank {}", side.name()))?;
    resilvered(report, guest, "resilver of pg-b under load")?;
    go_on(&writers, 20)?;
    nobody_noticed(lab, writers, since)?;
    pool::sound(lab, report, PART, guest)
}

/// A store is lost, and the process that holds its set: everything waits until this side is taken offline by hand.
/// Returns the number of commits acknowledged after that.
fn process_is_lost(lab: &mut Lab, report: &mut Report, guest: &Guest, side: &mut Side) -> Result<u64> {
    step("Side a: its store is lost, and its attach");
    let writers = lab.writers(guest)?;
    go_on(&writers, 20)?;
    report.fault();
    side.store.stop()?;
    let pid = status(guest, side.set)?["pid"].as_u64().context("a pid")?;
    let since = unix_ms();
    report.fault();
    guest.run(&format!("kill -9 {pid}"), LIMIT)?;
    let still = wait_until(LIMIT, || {
        let before = writers.acknowledged();
        std::thread::sleep(STILL);
        writers.acknowledged() == before
    });
    anyhow::ensure!(still, "found commits after the loss of side a, expected none before it is taken offline");
    report.add(PART, "attach pg-a killed", None, format!("no commit for {} s; {}", STILL.as_secs(), states(guest)?));
    let both = writers.acknowledged();
    pool::timed(report, PART, guest, "attach pg-a --abandon", &format!("holdfast attach {} --abandon", side.set))?;
    go_on(&writers, 50)?;
    let states = degraded(guest)?;
    guest.run(&format!("echo 'side b went on alone' > {WORD} && zpool sync tank"), LIMIT)?;
    go_on(&writers, 50)?;
    let alone = writers.acknowledged() - both;
    let gap = nobody_noticed(lab, writers, since)?;
    let found = format!("{states}; {alone} commits on pg-b alone");
    report.add(PART, "pg-a abandoned: clients' pause, the wait included", Some(gap), found);
    report.add(PART, "ledger, on side b alone", None, lab.check_ledger(guest)?);
    Ok(alone)
}

/// Rows of the ledger's table in a copy of the data directory of the imported pool. A read-only import does not replay
/// the intent log.
fn rows_of_a_copy(guest: &Guest) -> Result<u64> {
    let script = format!(
        "set -e; B=/usr/lib/postgresql/15/bin
su postgres -c \"cp -a {} /tmp/old\"
rm -f /tmp/old/pg_wal /tmp/old/postmaster.pid
su postgres -c \"cp -a /tank/pg/wal/data /tmp/old/pg_wal && $B/pg_ctl -D /tmp/old -o '-p 5433 -k /tmp' -l /tmp/old.log -w -t 120 start\" > /dev/null
su postgres -c \"$B/psql -h /tmp -p 5433 -Atc 'select count(*) from ledger' postgres; $B/pg_ctl -D /tmp/old -m immediate -w stop > /dev/null\"
rm -rf /tmp/old",
        pool::DATA
    );
    let said = guest.run(&script, LIMIT)?;
    said.trim().parse().with_context(|| format!("found {said:?}, expected a number of rows"))
}

/// The stale side is imported alone and lacks the other's commits. With both present ZFS continues from the newer one.
fn alone_it_is_old(
    lab: &mut Lab,
    report: &mut Report,
    guest: &Guest,
    (old, new): (&mut Side, &Side),
    (alone, sockets): (u64, u8),
) -> Result<()> {
    step("Side a comes back alone: its content");
    let rows = Lab::session(guest)?.query("select count(*) from ledger")?;
    let rows: u64 = rows.first().and_then(|row| row.first()?.as_deref()).context("a count")?.parse()?;
    pool::export(report, PART, guest)?;
    let code = new.detach(guest)?;
    anyhow::ensure!(code == 0, "detach ended with {code}");
    old.store.resume()?;
    old.attach(report, guest, sockets)?;
    pool::import(report, PART, guest, ("zpool import of pg-a alone", &format!("-o readonly=on -d {NAMES}")))?;
    let word = guest.ran(&format!("test -e {WORD}"), LIMIT)?.0 == 0;
    anyhow::ensure!(!word, "side a has the data written while it was away: nothing was tested");
    let found = rows_of_a_copy(guest)?;
    anyhow::ensure!(
        found + alone <= rows,
        "found {found} of {rows} rows on the old side, expected {alone} fewer at least"
    );
    let what = format!("{found} of {rows} rows, and not the word");
    report.add(PART, "what pg-a alone has", None, what);
    guest.run(pool::EXPORT, LIMIT)?;

    step("Both sides are present: the import continues from the newer one");
    new.attach(report, guest, sockets)?;
    let txg = |side: &Side| {
        let script = format!("zdb -l {} | awk '$1 == \"txg:\" {{print $2; exit}}'", side.name());
        guest.run(&script, LIMIT).map(|txg| format!("{} {}", side.set, txg.trim()))
    };
    report.add(PART, "txg in the labels", None, format!("{}, {}", txg(old)?, txg(new)?));
    pool::import(report, PART, guest, ("zpool import of both", &format!("-d {NAMES}")))?;
    guest.run(&format!("cat {WORD}"), LIMIT).context("the word of side b")?;
    pool::start_database(report, PART, guest)?;
    resilvered(report, guest, "resilver of pg-a")?;
    pool::sound(lab, report, PART, guest)
}

/// The host is killed under load: another one attaches both sets by hand, once the leases have expired.
fn host_is_killed(lab: &mut Lab, report: &mut Report, args: &Args, guest: Guest, sides: &[Side]) -> Result<()> {
    step("The host is killed under load; another one takes both sides");
    let writers = lab.writers(&guest)?;
    go_on(&writers, 20)?;
    std::thread::sleep(Duration::from_secs(args.load));
    report.fault();
    guest.kill()?;
    lab.take_back(writers, unix_ms())?;
    let (guest, seconds) = lab.boot(1)?;
    report.add(PART, "a killed; boot of b", Some(seconds), "");
    for side in sides {
        side.attach(report, &guest, args.sockets)?;
    }
    pool::import(report, PART, &guest, ("zpool import -f of both", &format!("-f -d {NAMES}")))?;
    pool::start_database(report, PART, &guest)?;
    pool::sound(lab, report, PART, &guest)?;
    pool::export(report, PART, &guest)?;
    for side in sides {
        let code = side.detach(&guest)?;
        anyhow::ensure!(code == 0, "detach of {} ended with {code}", side.set);
    }
    Ok(())
}
