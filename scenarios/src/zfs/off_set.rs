//! PostgreSQL runs only on the set (ONSET-L1, ONSET-L2): one guest with its agent, and a pool whose datasets are
//! encrypted. The import of such a pool succeeds, whatever is mounted of it.
//!
//! | what is off the set | what the agent does |
//! | --- | --- |
//! | datasets without a key, with `canmount=noauto`, `legacy`; a cluster below | refuses the start, names the dataset |
//! | `pg_wal` leads to a disk of the host | refuses the start, names the folder |
//! | a tablespace is made there while PostgreSQL runs | tells that, refuses switchover and restart |
//! | a dataset that is not mounted, in a folder of one that is | refuses the start, names the dataset |
//!
//! `hooks.before_start` runs between the import and the check: it makes the next case of each, and at last does what
//! the advice says.

use super::Args;
use super::agents::{More, asks, becomes_primary, begin_with, failed, last_reason, phases, view};
use super::devices::{paths, start, status};
use super::guest::Guest;
use super::lab::{LIMIT, Lab, go_on};
use super::multihost::REFUSED;
use super::pool::{self, DATA, timed};
use super::report::Report;
use crate::ledger::unix_ms;
use crate::process::wait_until;
use crate::say::step;
use anyhow::{Context, Result};
use std::time::Instant;

const PART: &str = "off-set";

/// A separate set, so that its pool affects no other part.
const SET: &str = "pg-off-set";

/// Small, since this part measures nothing.
const SCALE: u32 = 1;

/// Of the datasets that PostgreSQL lies on.
const ENCRYPTED: &str = "-o encryption=on -o keyformat=raw -o keylocation=file:///etc/holdfast/pool.key";

/// The key is on the host. A disk of the host, here its root disk, has room for files that do not belong there.
const KEY: &str = "set -e\nmkdir -p /etc/holdfast /ssd\nhead -c 32 /dev/urandom > /etc/holdfast/pool.key";

/// Stops PostgreSQL and exports the pool. A copy of the data directory is left below it, as Debian leaves a cluster of
/// its own: it would start, and take commits.
const BELOW: &str = "set -e
su postgres -c \"$B/pg_ctl -D $D -m fast -w stop\" > /dev/null
cp -a $D /srv/below
rm /srv/below/pg_wal /srv/below/postmaster.opts
cp -a /tank/pg/wal/data /srv/below/pg_wal
zpool export tank
mkdir -p /tank/pg
mv /srv/below $D";

/// The beginning of the refusal of that cluster.
const BELOW_FOUND: &str = "/tank/pg/data: found /tank/pg/data on / (ext4";

/// No other host takes part: this one tries again at once.
const TAKEOVER: &str = "flap_delay_s = 0\nbackoff_min_ms = 500\nbackoff_max_ms = 500\n";

const HOOK: &str = "/etc/holdfast/before-start";

const HOOKS: &str = "before_start = \"sh /etc/holdfast/before-start\"\ntimeout_s = 120\n";

/// Lines of the hook. Each may run again on a pool that has it done already.
const LOAD_KEY: &str = "[ \"$(zfs get -H -o value keystatus tank/pg)\" = available ] || zfs load-key tank/pg";

const NOAUTO: &str = "zfs set canmount=noauto tank/pg tank/pg/wal\nzfs mount -a";

const LEGACY: &str = "zfs set mountpoint=legacy tank/pg";

const MOUNT: &str = "mountpoint -q /tank/pg || mount -t zfs tank/pg /tank/pg
mountpoint -q /tank/pg/wal || zfs mount tank/pg/wal";

const WAL_AWAY: &str = "[ -e /ssd/wal ] || { cp -a /tank/pg/wal/data /ssd/wal.new && mv /ssd/wal.new /ssd/wal; }
ln -sfn /ssd/wal /tank/pg/data/pg_wal";

const WAL_BACK: &str = "ln -sfn /tank/pg/wal/data /tank/pg/data/pg_wal";

const MOUNT_SPACE: &str = "mountpoint -q /tank/pg/space || zfs mount tank/pg/space";

/// A dataset for a tablespace, in a folder of the one that has the data directory.
const MAKE_SPACE: &str = "set -e
zfs create -o canmount=noauto -o mountpoint=/tank/pg/space tank/pg/space
zfs mount tank/pg/space
chown postgres: /tank/pg/space";

/// Ends the agent in good order. It is started again after that.
const END_AGENT: &str = "set -e
pids=$(pgrep -f '^(/usr/bin/)?holdfast agent run ')
kill $pids
for pid in $pids; do while [ -e /proc/$pid ]; do sleep 0.1; done; done";

/// Replaces the hook. The agent may run it at any time.
fn hook(a: &Guest, lines: &[&str]) -> Result<()> {
    let text = format!("set -e\nexport PATH=/usr/sbin:/usr/bin:/sbin:/bin\n{}\n", lines.join("\n"));
    a.put(&format!("{HOOK}.new"), &text)?;
    a.run(&format!("mv {HOOK}.new {HOOK}"), LIMIT).map(drop)
}

fn has_all(text: &str, words: &[&str]) -> bool {
    words.iter().all(|words| text.contains(words))
}

/// Waits until the agent has refused a start in these words. PostgreSQL must not run before that.
fn refused(report: &mut Report, a: &Guest, what: &str, words: &[&str]) -> Result<()> {
    report.fault();
    let begun = Instant::now();
    let (mut reason, mut runs) = (String::new(), false);
    wait_until(LIMIT, || {
        runs = asks(a, "/primary") == 200;
        reason = failed(a).unwrap_or_else(|e| format!("{e:#}"));
        runs || has_all(&reason, words)
    });
    anyhow::ensure!(!runs, "ONSET-L1: {what}: found a primary, expected a refusal with {words:?}");
    let told = has_all(&reason, words);
    anyhow::ensure!(told, "ONSET-L1: {what}: found {reason:?} after {LIMIT:?}, expected a refusal with {words:?}");
    report.add(PART, what, Some(begun.elapsed().as_secs_f64()), reason);
    Ok(())
}

/// Guest a with everything on the set, then exported and detached.
fn make(lab: &mut Lab, report: &mut Report, args: &Args) -> Result<Guest> {
    lab.make_set_with(SET, &[])?;
    let (a, seconds) = lab.boot(0)?;
    report.add(PART, "boot of a guest", Some(seconds), "");
    a.run(KEY, LIMIT)?;
    let seconds = start(&a, SET, args.sockets, false)?;
    let devices = paths(&status(&a, SET)?).join(" ");
    report.add(PART, "attach --device kernel", Some(seconds), devices.clone());
    pool::make_with(lab, report, PART, &a, (&devices, SCALE, "ledger-off-set"), ENCRYPTED)?;
    let writers = lab.writers(&a)?;
    go_on(&writers, 20)?;
    lab.take_back(writers, unix_ms())?;
    timed(report, PART, &a, "stop, a copy below the pool, zpool export", BELOW)?;
    a.run(&format!("holdfast attach {SET} --detach --timeout 60s"), LIMIT)?;
    Ok(a)
}

/// Datasets that the import did not mount: the cluster below them, on the root disk, is not started.
fn not_mounted(report: &mut Report, a: &Guest) -> Result<()> {
    step("Datasets without a key, with canmount=noauto, with the mountpoint legacy");
    let key = [BELOW_FOUND, "its key is not loaded", "`zfs load-key tank/pg`", "`zfs mount tank/pg`"];
    refused(report, a, "encrypted, the key is not loaded", &key)?;
    hook(a, &[LOAD_KEY, NOAUTO])?;
    let noauto = [BELOW_FOUND, "dataset tank/pg is not mounted (canmount=noauto)", "`zfs mount tank/pg`"];
    refused(report, a, "the key is loaded, canmount=noauto", &noauto)?;
    hook(a, &[LOAD_KEY, LEGACY])?;
    let legacy = [BELOW_FOUND, "its mountpoint is legacy", "`mount -t zfs tank/pg DIRECTORY`"];
    refused(report, a, "mountpoint=legacy", &legacy)?;
    // The server itself writes the second one when it starts.
    let look = format!("[ -e {DATA}/PG_VERSION ] && [ ! -e {DATA}/postmaster.opts ]");
    a.run(&look, LIMIT).context("ONSET-L1: the cluster on the root disk was started").map(drop)
}

/// `pg_wal` leads to a disk of the host; then all is as it was, and every commit is there.
fn wal(lab: &Lab, report: &mut Report, a: &Guest) -> Result<()> {
    step("pg_wal on a disk of the host");
    hook(a, &[LOAD_KEY, MOUNT, WAL_AWAY])?;
    let found = "/tank/pg/data/pg_wal (a link to /ssd/wal): found /ssd/wal on / (ext4";
    refused(report, a, "pg_wal is a link to a disk of the host", &[found, "move the folder onto the set"])?;
    hook(a, &[LOAD_KEY, MOUNT, WAL_BACK])?;
    let begun = Instant::now();
    becomes_primary(a)?;
    report.add(PART, "all on the set: primary", Some(begun.elapsed().as_secs_f64()), phases(a)?);
    report.add(PART, "ledger", None, lab.check_ledger(a)?);
    Ok(())
}

/// What the agent says is off the set; "" for nothing.
fn off_set(a: &Guest) -> String {
    view(a).map_or_else(|e| format!("{e:#}"), |view| view["off_set"].as_str().unwrap_or_default().to_string())
}

/// A tablespace on a disk of the host, made while PostgreSQL runs: told, and nothing is stopped that would not start
/// again.
fn tablespace(report: &mut Report, a: &Guest) -> Result<()> {
    step("A tablespace is made on a disk of the host");
    a.run("install -d -o postgres -g postgres -m 700 /ssd/space", LIMIT)?;
    let mut session = Lab::session(a)?;
    report.fault();
    let begun = Instant::now();
    session.query("create tablespace away location '/ssd/space'")?;
    let words = ["(a link to /ssd/space)", "database.allow_off_set names /ssd/space"];
    let told = wait_until(LIMIT, || has_all(&off_set(a), &words));
    anyhow::ensure!(told, "ONSET-L2: found off_set {:?} after {LIMIT:?}, expected {words:?}", off_set(a));
    let mut reason = String::new();
    let noted = wait_until(LIMIT, || {
        reason = last_reason(a, "off-set").unwrap_or_else(|e| format!("{e:#}"));
        has_all(&reason, &words)
    });
    anyhow::ensure!(noted, "ONSET-L2: found {reason:?} in the history after {LIMIT:?}, expected {words:?}");
    let (primary, ready) = (asks(a, "/primary"), asks(a, "/readiness"));
    anyhow::ensure!(primary == 200, "ONSET-L2: found /primary {primary}, expected 200");
    anyhow::ensure!(ready == 503, "ONSET-L2: found /readiness {ready}, expected 503");
    report.add(PART, "a tablespace there while it runs", Some(begun.elapsed().as_secs_f64()), reason);
    for (command, words) in [
        ("switchover --to b --yes --timeout 1m", "no host would start it again"),
        ("restart --yes", "PostgreSQL would not be started again"),
    ] {
        let (code, out, err) = a.ran(&format!("holdfast agent {command}"), LIMIT)?;
        let said = format!("{out}\n{err}");
        anyhow::ensure!(code == REFUSED, "ONSET-L2: {command}: found exit code {code}, expected {REFUSED}: {said}");
        anyhow::ensure!(has_all(&said, &[words, "/ssd/space"]), "ONSET-L2: {command}: found {said:?}");
    }
    // A stop of PostgreSQL would have ended the session.
    session.query("drop tablespace away").context("ONSET-L2: after the refusals")?;
    report.add(PART, "switchover and restart meanwhile", None, "refused, PostgreSQL runs on");
    let ready = wait_until(LIMIT, || off_set(a).is_empty() && asks(a, "/readiness") == 200);
    anyhow::ensure!(ready, "found off_set {:?} after {LIMIT:?} without the tablespace, expected none", off_set(a));
    Ok(())
}

/// The dataset of a tablespace is not mounted. Its mountpoint is a folder of the dataset with the data directory, so
/// what PostgreSQL would write there lies on the set, and is hidden once the dataset is mounted.
fn hidden(lab: &Lab, report: &mut Report, a: &Guest) -> Result<()> {
    step("A dataset is not mounted, and its mountpoint is a folder of another one");
    a.run(MAKE_SPACE, LIMIT)?;
    let mut session = Lab::session(a)?;
    session.query("create tablespace kept location '/tank/pg/space'")?;
    session.query("create table kept tablespace kept as select 7 as n")?;
    drop(session);
    a.run(END_AGENT, LIMIT)?;
    let words = ["dataset tank/pg/space is not mounted (canmount=noauto)", "`zfs mount tank/pg/space`"];
    refused(report, a, "a tablespace's dataset is not mounted", &words)?;
    hook(a, &[LOAD_KEY, MOUNT, MOUNT_SPACE])?;
    let begun = Instant::now();
    becomes_primary(a)?;
    report.add(PART, "the hook mounts it: primary", Some(begun.elapsed().as_secs_f64()), phases(a)?);
    let found = Lab::session(a)?.query("select n from kept")?;
    anyhow::ensure!(found == vec![vec![Some("7".into())]], "found {found:?} in the tablespace, expected 7");
    report.add(PART, "ledger", None, lab.check_ledger(a)?);
    report.add(PART, "the pool after that", None, pool::unharmed(a)?);
    Ok(())
}

/// All tests of this part. Fails when PostgreSQL is started off the set, a refusal does not say what to do, or a commit
/// is lost.
pub fn acts(lab: &mut Lab, report: &mut Report, args: &Args) -> Result<()> {
    step("PostgreSQL's files off the set");
    let a = make(lab, report, args)?;
    hook(&a, &[":"])?;
    begin_with(&a, 0, More { set: SET, takeover: TAKEOVER, hooks: HOOKS, ..More::of_pool("") })?;
    not_mounted(report, &a)?;
    wal(lab, report, &a)?;
    tablespace(report, &a)?;
    hidden(lab, report, &a)
}
