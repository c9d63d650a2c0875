//! PostgreSQL on a set whose gateways and disks are all lost, by the steps of the recovery page: the database comes
//! back as of the printed moment.
//!
//! ```text
//!  pgbench, writers with a ledger ─▶ PostgreSQL ─▶ ext4 ─▶ holdfast attach ─▶ g1 g2 g3 ─▶ S3     a checkpoint each upload.interval_ms
//!  kill -9 of all gateways, their data directories removed, the attach killed  ─▶ verify, recover: index and moment ─▶ attach, mount, PostgreSQL
//! ```
//! The ledger is on another disk, which stays. All commits up to the moment must be there, and of those acknowledged
//! later a prefix. At the kill some commits must be missing, or the first check would prove nothing.

use super::recover::{GONE, Hand, Known, holdfast, must};
use super::{Lab, TAKEOVER_LIMIT};
use crate::binary::public_dir;
use crate::cluster::{Cluster, SET, VOLUME};
use crate::cmd::{cmd, tail_of};
use crate::hosts;
use crate::ledger::{Ledger, Writers, unix_ms};
use crate::pg::Postgres;
use crate::process::{Proc, Signal, wait_until};
use crate::s3::S3;
use crate::say::note;
use crate::setup;
use crate::undo::{Guard, Undo};
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Small, so that PostgreSQL makes its own checkpoints meanwhile: not everything restored is in its WAL.
const SETTINGS: &str = "shared_buffers = 64MB\nmax_connections = 30\nmax_wal_size = 64MB\n";
const WRITERS: usize = 4;
const PGBENCH: [&str; 4] = ["-c", "4", "-j", "1"];

/// `upload.interval_ms`.
const INTERVAL: Duration = Duration::from_secs(5);
/// Checkpoints under load before the kill.
const CHECKPOINTS: u32 = 3;
/// Commits between the last checkpoint and the kill, and in the new life.
const COMMITS: u64 = 200;
/// Until a checkpoint has ended under load.
const LIMIT: Duration = Duration::from_secs(90);
/// Time between two checks of the checkpoints: each takes a process.
const LOOK: Duration = Duration::from_millis(100);

/// The host of the database: its mount, and attach with the device below.
struct Stand {
    pg: Postgres,
    log: PathBuf,
    mount: PathBuf,
    /// Of attach.
    dir: PathBuf,
    // In the order of dropping.
    mounted: Option<Guard>,
    attach: Option<Proc>,
    device: PathBuf,
    /// Remains of a killed attach, until the next one removes them.
    left: Vec<Guard>,
}

impl Stand {
    fn attach(&mut self, lab: &Lab, gateways: &[String]) -> Result<()> {
        let (attach, device) = hosts::attach(&lab.bin, (SET, VOLUME), gateways, &self.dir, "db1")?;
        (self.attach, self.device) = (Some(attach), device);
        // The new attach has removed its predecessor's remains, or refused.
        self.left.drain(..).for_each(Guard::forget);
        Ok(())
    }

    fn mount(&mut self) -> Result<()> {
        std::fs::create_dir_all(&self.mount)?;
        self.mounted = Some(Guard::new(Undo::Umount(self.mount.clone()))?);
        cmd("mount").arg(&self.device).arg(&self.mount).run()
    }

    /// The device has no server any more: attach is killed, upon which all I/O on the device fails; then mount and
    /// database are removed.
    fn drop_dead_device(&mut self) -> Result<()> {
        let mut attach = self.attach.take().context("nothing is attached")?;
        self.left.push(Guard::new(Undo::Loop(self.device.clone()))?);
        self.left.push(Guard::new(Undo::Umount(self.dir.join(VOLUME)))?);
        attach.stop(Signal::KILL, TAKEOVER_LIMIT)?;
        self.pg.stop(Signal::QUIT)?;
        self.mounted = None;
        Ok(())
    }
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    let s3 = S3::start(&lab.dir)?;
    let interval = format!("upload.interval_ms={}", INTERVAL.as_millis());
    let cluster = lab.cluster_as("1GiB", Some(s3.url()), &[&interval, "upload.whole_root=0B"], s3.env())?;
    let known = Known::of(&cluster, &s3)?;
    let (open, _guard) = public_dir("recover-pg")?;
    let (mount, log) = (open.join("mnt"), lab.dir.join("postgres.log"));
    let pg = Postgres::new(&mount.join("data"), &open.join("sockets"), &log)?;
    let (dir, device) = (open.join("attach"), PathBuf::new());
    // Dropped after the users of its devices, also on a failure.
    let new;
    let mut stand = Stand { pg, log, mount, dir, mounted: None, attach: None, device, left: Vec::new() };
    stand.attach(lab, &known.doors)?;
    cmd("mkfs.ext4").arg("-q").arg(&stand.device).run()?;
    stand.mount()?;
    stand.pg.initdb(SETTINGS)?;
    stand.pg.start()?;
    stand.pg.pgbench_init(1)?;
    let mut ledger = Ledger::create(&stand.pg, &lab.dir.join("ledger"), WRITERS)?;

    let load = load(lab, &cluster, &stand.pg, &ledger)?;
    let (seen, killed_ms) = (load.seen, unix_ms());
    lose_everything(&known, cluster, &mut stand, &mut ledger, load)?;
    let begun = Instant::now();
    let restored;
    (new, restored) = recover(lab, &known)?;
    let (index, moment) = (number(&restored["index"])?, number(&restored["at_unix_ms"])?);
    anyhow::ensure!(
        restored["generation"] == 2 && index >= seen && moment < killed_ms,
        "R4: restored {restored}; expected generation 2, index {seen} or later, a moment before {killed_ms}"
    );
    note(format!(
        "recovered up to index {index}, {} ms before the kill, after {:.1?}",
        killed_ms - moment,
        begun.elapsed()
    ));

    let quiet = recoveries(&stand.log)?;
    stand.attach(lab, &known.doors)?;
    stand.mount()?;
    let opened = stand.pg.start()?;
    anyhow::ensure!(recoveries(&stand.log)? == quiet + 1, "PostgreSQL recovered nothing: {}", tail_of(&stand.log, 8));
    note(format!("PostgreSQL recovered by itself in {opened:.1?}, {:.1?} after the recovery began", begun.elapsed()));
    let missing = judge(&ledger, &stand.pg, moment, killed_ms)?;
    stand.pg.pgbench_balances()?;
    stand.pg.amcheck()?;

    // The database works normally, and the missing commits stay missing.
    let writers = ledger.start(&stand.pg)?;
    let on = || writers.acknowledged() >= COMMITS;
    wait_until(TAKEOVER_LIMIT, || on() || !writers.all_writing());
    let on = on();
    ledger.join(writers)?;
    let verdict = ledger.check(&stand.pg)?;
    anyhow::ensure!(
        on && verdict.lost == missing && verdict.invented == 0,
        "the new life: {verdict:?}, {missing} missing"
    );
    stand.pg.amcheck()?;
    stand.pg.stop(Signal::INT)?;
    stand.mounted = None;
    cmd("e2fsck").args(["-f", "-n"]).arg(&stand.device).run()?;
    stand.attach.take().context("nothing is attached")?.stop(Signal::TERM, TAKEOVER_LIMIT)?;
    note("pg_amcheck and e2fsck -fn: clean; the new life takes commits");
    new.kill()
}

/// Load on the database at the kill.
struct Load {
    pgbench: Proc,
    writers: Writers,
    /// Index of the last checkpoint seen.
    seen: u64,
}

/// Load during some checkpoints, and for a time after the last one.
fn load(lab: &Lab, cluster: &Cluster, pg: &Postgres, ledger: &Ledger) -> Result<Load> {
    let mut pgbench = pg.pgbench_forever(&PGBENCH, &lab.dir.join("pgbench.log"))?;
    let writers = ledger.start(pg)?;
    let mut seen = checkpoint(cluster)?;
    for _ in 0..CHECKPOINTS {
        let (before, mut failed) = (seen, None);
        let ended = wait_until(LIMIT, || {
            std::thread::sleep(LOOK);
            match checkpoint(cluster) {
                Ok(index) => seen = index,
                Err(e) => failed = Some(e),
            }
            seen > before || failed.is_some() || !writers.all_writing()
        });
        failed.map_or(Ok(()), Err)?;
        anyhow::ensure!(ended && seen > before, "no checkpoint after {before} within {LIMIT:?}, or the writers ended");
    }
    // In the middle between two checkpoints.
    let (so_far, begun) = (writers.acknowledged(), Instant::now());
    let enough = || writers.acknowledged() >= so_far + COMMITS && begun.elapsed() >= INTERVAL / 2;
    let busy = wait_until(LIMIT, || enough() || !writers.all_writing());
    anyhow::ensure!(busy && writers.all_writing(), "the writers ended before the kill");
    pgbench.must_run()?;
    Ok(Load { pgbench, writers, seen })
}

/// Everything but the store and the ledger is gone.
fn lose_everything(
    known: &Known,
    cluster: Cluster,
    stand: &mut Stand,
    ledger: &mut Ledger,
    mut load: Load,
) -> Result<()> {
    let journals: Vec<PathBuf> = known.names.iter().map(|name| known.dir.join(name).join("journal")).collect();
    anyhow::ensure!(journals.iter().all(|dir| dir.is_dir()), "{journals:?}: expected the gateways' disks");
    cluster.kill_all()?;
    stand.drop_dead_device()?;
    load.pgbench.stop(Signal::INT, Duration::from_secs(5))?;
    note(format!(
        "{} commits acknowledged, {COMMITS} of them or more after the checkpoint of index {}; all gateways killed, all disks wiped",
        load.writers.acknowledged(),
        load.seen
    ));
    ledger.join(load.writers)?;
    known.names.iter().try_for_each(|name| Ok(std::fs::remove_dir_all(known.dir.join(name))?))
}

/// New gateways with empty disks, and the steps of the page. Returns the command's report on the set.
fn recover<'a>(lab: &'a Lab, known: &Known) -> Result<(Hand<'a>, Value)> {
    let key = known.key();
    let store = known.store.as_str();
    let verify = ["verify", "--store", store, "--key-file", &key];
    let verified = must(holdfast(lab, &known.env, &known.doors, &verify)?, "verify")?;
    let new = Hand::start(lab, known, "new", &known.args(&known.dir))?;
    let plan = known.plan(&lab.dir.join("new.toml"))?;
    let recover =
        ["cluster", "recover", "--from-store", store, "--config", &plan, "--key-file", &key, "--timeout", "2m", GONE];
    let said = must(new.holdfast(&recover)?, "recover")?;
    let (set, covered) = (said["sets"][0].clone(), &verified["sets"][0]["covered"]);
    let same = set["at_unix_ms"] == covered["at_unix_ms"] && set["index"] == covered["upto"]["index"];
    anyhow::ensure!(same, "recover reports {set}, expected {covered} as verify did before");
    Ok((new, set))
}

/// Compares the ledger with the promise; returns the number of missing commits.
fn judge(ledger: &Ledger, pg: &Postgres, moment: u64, killed_ms: u64) -> Result<u64> {
    let found = ledger.check_restored(pg, moment)?;
    anyhow::ensure!(
        found.before >= COMMITS,
        "only {} commits before the moment: too few to test anything",
        found.before
    );
    anyhow::ensure!(
        found.lost == 0,
        "R4: of {} commits acknowledged before the printed moment {} are lost",
        found.before,
        found.lost
    );
    anyhow::ensure!(found.gaps == 0 && found.invented == 0, "R4: not a prefix in the order of commits: {found:?}");
    let missing = found.after - found.kept;
    let at_the_kill = ledger.check_restored(pg, killed_ms)?;
    anyhow::ensure!(
        at_the_kill.lost > 0 && missing > 0,
        "nothing is missing, {COMMITS} commits or more were expected to be"
    );
    let first = found.first_missing_ms.context("nothing is missing")?;
    note(format!(
        "{} commits acknowledged before the moment, all there; of {} later ones {} are, a prefix; the first that is missing came {} ms after the moment; {} in doubt, found",
        found.before,
        found.after,
        found.kept,
        first - moment,
        found.in_doubt_found
    ));
    Ok(missing)
}

/// How often the PostgreSQL of this log began a crash recovery.
fn recoveries(log: &Path) -> Result<usize> {
    Ok(std::fs::read_to_string(log)?.matches("automatic recovery in progress").count())
}

/// Index of the last finished checkpoint.
fn checkpoint(cluster: &Cluster) -> Result<u64> {
    number(&cluster.holdfast(&["set", "show", SET])?["checkpoint_index"])
}

fn number(value: &Value) -> Result<u64> {
    value.as_u64().with_context(|| format!("found {value}, expected a number"))
}
