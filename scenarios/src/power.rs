//! `cargo xtask power`: cuts the power of the whole system at random moments, many times.
//!
//! ```text
//!  writers ──▶ PostgreSQL ──▶ ext4 ──▶ nbdfuse ══NBD══▶ g1 g2 g3 ──▶ their data folders and the store, each on a disk that
//!     └──▶ ledger files, which survive                             loses any part of its unsynced data at the cut
//! ```
//! A round: load, the cut, all processes are killed, the disks change to a state that a cut may leave, everything
//! starts again. Then it checks the ledger row by row, `e2fsck -fn`, `pg_amcheck` and pgbench's sums.
//!
//! Owns: the rounds. Does not own: the effect of a cut ([`disk`]), the mounts ([`mount`]).

mod disk;
pub mod mount;

use crate::binary::{Build, fresh_dir, profile_of, public_dir};
use crate::chaos::seed::Seeded;
use crate::cluster::{Cluster, Options};
use crate::ledger::{Ledger, Verdict};
use crate::one_host::OneHost;
use crate::pg::Postgres;
use crate::process::{Signal, wait_until};
use crate::proof::{self, Run as Proof};
use crate::say::{line, note, step};
use crate::setup::{self, For};
use anyhow::{Context, Result};
use disk::Losses;
use mount::Mounted;
use serde::Serialize;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::{Duration, Instant};

/// Options on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Number of power cuts
    #[arg(long, default_value_t = 10, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seed of the moments and of what is lost; always printed
    #[arg(long, value_name = "N")]
    seed: Option<u64>,
    /// After the first load the disks acknowledge syncs and mostly do not sync: the run passes only if that is detected
    #[arg(long)]
    lie: bool,
    /// Do not install missing programs
    #[arg(long)]
    no_setup: bool,
    #[command(flatten)]
    build: Build,
}

/// Options of one run, for the chore and for scenarios.
#[derive(Debug)]
pub struct Run<'a> {
    pub bin: &'a Path,
    /// For the cluster and the logs.
    pub dir: &'a Path,
    pub rounds: u32,
    pub seed: u64,
    pub lie: bool,
}

const LEDGER_WRITERS: usize = 4;
const PGBENCH: [&str; 4] = ["-c", "4", "-j", "1"];
const SCALE: u32 = 2;
const VOLUME: &str = "1GiB";

/// Limit for a start.
const START_LIMIT: Duration = Duration::from_secs(120);

/// The moment of the cut, in milliseconds after the first acknowledged commits.
const CUT_MS_MAX: u64 = 3000;
const FIRST_COMMITS: u64 = 20;

/// Part of every error after a cut.
const AFTER: &str = "after the cut";

/// A gateway's log text about a group whose synced log is damaged (R9), up to the group's name.
const KEPT_OUT: &str = "the group does not start here before it is healed group=";

/// A WAL that fits a small volume, frequent checkpoints, and no restart on a dead device.
const SETTINGS: &str = "shared_buffers = '64MB'\nmax_wal_size = '128MB'\ncheckpoint_timeout = 30s\nsynchronous_commit = on\nrestart_after_crash = off\n";

#[derive(Clone, Copy, Debug, Default, Serialize)]
struct Sum {
    rounds: u32,
    commits_acknowledged: u64,
    commits_lost: u64,
    blocks_lost: u64,
    blocks_kept: u64,
    blocks_torn: u64,
    names_undone: u64,
    seed: u64,
}

/// Runs the chore. Fails when an acknowledged commit is lost or a check fails; with `--lie`, when no check fails.
pub fn chore(args: &Args) -> Result<()> {
    let begun = Instant::now();
    setup::must_be_able_to_mount()?;
    if !args.no_setup {
        setup::setup(For::Demo)?;
    }
    let bin = args.build.binary("dev")?;
    let dir = fresh_dir("power")?;
    let seed = match args.seed {
        Some(seed) => seed,
        None => crate::chaos::seed::of_run()?,
    };
    let ended = run(&Run { bin: &bin, dir: &dir, rounds: args.rounds, seed, lie: args.lie });
    if args.lie {
        return lie_found(ended);
    }
    let figures: serde_json::Value = std::fs::read(dir.join("summary.json"))
        .map_or_else(|_| Ok(serde_json::Value::Null), |text| serde_json::from_slice(&text))?;
    let figure = |name: &str| figures[name].as_u64().unwrap_or_default();
    let mut proof = Proof::now("power cuts below PostgreSQL", begun.elapsed().as_secs(), proof::held(&ended));
    (proof.seed, proof.faults, proof.profile) = (Some(seed), figure("rounds"), profile_of(&bin));
    proof.did("commits", figure("commits_acknowledged")).note();
    ended?;
    line(format!("Took {:.0} s. The same figures: target/power/summary.json", begun.elapsed().as_secs_f64()));
    Ok(())
}

/// Checks that a run on lying disks has failed.
pub fn lie_found(ended: Result<()>) -> Result<()> {
    let found = ended.err().context("disks that synced nothing were not detected: this test finds nothing")?;
    let text = format!("{found:#}");
    // Other failures, such as a failed first start, prove nothing.
    anyhow::ensure!(text.contains(AFTER) || text.contains("R1:"), "failed before a cut could show anything: {text}");
    note(format!("detected, as expected: {text}"));
    Ok(())
}

/// Runs all rounds. Fails when an acknowledged commit is lost, something does not start again, or a check fails.
pub fn run(run: &Run) -> Result<()> {
    step(format!("Three gateways and their store on disks that lose unsynced data (seed {})", run.seed));
    if run.lie {
        // Lying disks may lose so much that a gateway cannot continue: it logs that and exits.
        crate::ends::expect_line(run.dir, "ended with exit code");
    }
    let mut chance = Seeded::new(run.seed, 0);
    let cluster_dir = run.dir.join("cluster");
    let (public, _guard) = public_dir("power")?;
    // Created before the cluster, so that they are dropped after it.
    let disks = ["g1", "g2", "g3", "store"].map(|name| Mounted::new(&cluster_dir.join(name)));
    let mut disks = disks.into_iter().collect::<Result<Vec<_>>>()?;
    // Not on those disks.
    let logs = ["g1.log", "g2.log", "g3.log"].map(|name| cluster_dir.join(name));
    let settings = [
        // In memory here, four times.
        "journal.bound=\"512MiB\"",
        "journal.reserve=\"64MiB\"",
        "journal.file=\"16MiB\"",
        "upload.interval_ms=500",
        "upload.bytes=\"8MiB\"",
        "cache.disk=\"0B\"",
        "space.grace_ms=1000",
    ];
    let mut cluster = Cluster::start(Options {
        bin: run.bin.into(),
        dir: cluster_dir,
        gateways: 3,
        store: None,
        size: VOLUME.into(),
        settings: settings.map(String::from).into(),
        env: Vec::new(),
    })?;
    let mount = public.join("volume");
    let pg = Postgres::new(&mount.join("pgdata"), &public.join("socket"), &run.dir.join("postgres.log"))?;
    let mut host = OneHost { pg, device: None, mount, work: public.clone() };
    let serving = cluster.serving(START_LIMIT)?;
    host.attach(&cluster, serving, START_LIMIT)?;
    host.device.as_ref().context("no device")?.mkfs()?;
    host.mount()?;
    host.pg.initdb(SETTINGS)?;
    host.pg.start()?;
    host.pg.pgbench_init(SCALE)?;
    let mut ledger = Ledger::create(&host.pg, &run.dir.join("ledger"), LEDGER_WRITERS)?;
    if run.lie {
        disks.iter().for_each(Mounted::lie);
    }
    let mut sum = Sum { seed: run.seed, ..Sum::default() };
    for round in 1..=run.rounds {
        let wait = Duration::from_millis(chance.below(CUT_MS_MAX + 1));
        let acknowledged = load_until_the_cut(run, &mut host, &mut ledger, &disks, cluster, wait)
            .with_context(|| format!("round {round}, seed {}", run.seed))?;
        let (stopped, commits) = acknowledged;
        let losses = disks.iter_mut().map(|disk| disk.switch_on(&mut chance)).collect::<Result<Vec<_>>>()?;
        let begun = Instant::now();
        let before = logs.each_ref().map(|log| std::fs::read(log).map_or(0, |bytes| bytes.len()));
        // Lying disks may have lost more than the gateways can repair from each other. Once they report that, do not
        // wait for them.
        let hopeless = || {
            let said: Vec<String> = logs.iter().zip(before).map(|(log, from)| said_since(log, from)).collect();
            closed_for_good(&said).filter(|_| run.lie)
        };
        cluster = stopped.start_unless(&hopeless).with_context(|| format!("round {round}: {AFTER}"))?;
        let verdict = come_back(&mut host, &mut cluster, &ledger)
            .with_context(|| format!("round {round}, seed {}: {AFTER}", run.seed))?;
        sum.add(&losses, verdict);
        note(format!(
            "round {round}: cut after {} ms and {commits} commits; {}; back and clean after {:.1} s; {} commits, {} lost",
            wait.as_millis(),
            told(&losses),
            begun.elapsed().as_secs_f64(),
            verdict.acknowledged,
            verdict.lost
        ));
        std::fs::write(run.dir.join("summary.json"), serde_json::to_vec_pretty(&sum)?)?;
        anyhow::ensure!(verdict.lost + verdict.invented == 0, "R1: {verdict:?} (round {round}, seed {})", run.seed);
    }
    host.pg.stop(Signal::INT)?;
    host.device.take().context("no device")?.detach()?;
    cluster.stop()?;
    line(format!(
        "{} power cuts: {} commits acknowledged, {} lost; of what was not synced {} blocks lost, {} kept, {} torn, {} names undone",
        sum.rounds,
        sum.commits_acknowledged,
        sum.commits_lost,
        sum.blocks_lost,
        sum.blocks_kept,
        sum.blocks_torn,
        sum.names_undone
    ));
    Ok(())
}

fn told(losses: &[Losses]) -> String {
    let of = |what: fn(&Losses) -> u64| losses.iter().map(what).sum::<u64>();
    format!(
        "{} unsynced blocks lost, {} kept, {} torn, {} names undone",
        of(|l| l.lost),
        of(|l| l.kept),
        of(|l| l.torn),
        of(|l| l.names)
    )
}

/// Runs load, then stops everything: all disks at the same moment, then all processes.
fn load_until_the_cut(
    run: &Run,
    host: &mut OneHost,
    ledger: &mut Ledger,
    disks: &[Mounted],
    cluster: Cluster,
    wait: Duration,
) -> Result<(crate::cluster::Stopped, u64)> {
    let mut pgbench = host.pg.pgbench_forever(&PGBENCH, &run.dir.join("pgbench.log"))?;
    let writers = ledger.start(&host.pg)?;
    let flowing = || writers.acknowledged() >= FIRST_COMMITS || !writers.all_writing();
    anyhow::ensure!(wait_until(START_LIMIT, flowing), "no commits in {START_LIMIT:?}");
    // On a busy machine an election may end the writers' device: then cut at once.
    wait_until(wait, || !writers.all_writing());
    Mounted::switch_off(disks);
    let stopped = cluster.kill_all()?;
    let commits = writers.acknowledged();
    pgbench.stop(Signal::INT, Duration::from_secs(2))?;
    host.drop_dead_device()?;
    ledger.join(writers)?;
    Ok((stopped, commits))
}

/// The text of a log after its first `from` bytes.
fn said_since(log: &Path, from: usize) -> String {
    let bytes = std::fs::read(log).unwrap_or_default();
    String::from_utf8_lossy(bytes.get(from..).unwrap_or_default()).into_owned()
}

/// A group that a majority of gateways keeps closed until other gateways repair it, so that none can (R9). Found in
/// their logs.
fn closed_for_good(said: &[String]) -> Option<String> {
    let mut kept_out: BTreeMap<&str, usize> = BTreeMap::new();
    for one in said {
        let names = one.split(KEPT_OUT).skip(1).filter_map(|rest| rest.split_whitespace().next());
        for group in names.collect::<BTreeSet<_>>() {
            *kept_out.entry(group).or_default() += 1;
        }
    }
    let (group, count) = kept_out.into_iter().max_by_key(|(_, count)| *count)?;
    let all = said.len();
    (2 * count > all).then(|| format!("R9: {count} of {all} gateways keep group {group} closed until it is healed"))
}

/// Starts everything again and checks it.
fn come_back(host: &mut OneHost, cluster: &mut Cluster, ledger: &Ledger) -> Result<Verdict> {
    let serving = cluster.serving(START_LIMIT)?;
    host.attach(cluster, serving, START_LIMIT)?;
    // Mounting replays ext4's journal; the file system can be checked only after that.
    host.mount()?;
    host.device.as_ref().context("no device")?.unmount_and_check(&host.mount)?;
    host.mount()?;
    host.pg.start()?;
    let verdict = ledger.check(&host.pg)?;
    host.pg.pgbench_balances()?;
    host.pg.amcheck()?;
    Ok(verdict)
}

impl Sum {
    fn add(&mut self, losses: &[Losses], verdict: Verdict) {
        self.rounds += 1;
        self.commits_acknowledged = verdict.acknowledged;
        self.commits_lost = verdict.lost;
        for loss in losses {
            self.blocks_lost += loss.lost;
            self.blocks_kept += loss.kept;
            self.blocks_torn += loss.torn;
            self.names_undone += loss.names;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_that_most_keep_closed_is_closed_for_good() {
        let line = |group: &str| format!("R9: synced data does not read back; {KEPT_OUT}{group} file=x\n");
        let said = |groups: [&[&str]; 3]| groups.map(|of| of.iter().map(|group| line(group)).collect::<String>());
        assert_eq!(closed_for_good(&said([&[], &[], &[]])), None);
        assert_eq!(closed_for_good(&said([&["g1"], &[], &[]])), None, "the other two let it in");
        assert_eq!(closed_for_good(&said([&["g1", "g1"], &[], &[]])), None, "reported twice by one gateway");
        assert_eq!(closed_for_good(&said([&["g1"], &["g0"], &[]])), None, "either group has two");
        let why = closed_for_good(&said([&["g0", "g1"], &[], &["g1"]])).unwrap();
        assert!(why.starts_with("R9: 2 of 3 gateways keep group g1 closed"), "{why}");
    }

    /// The words are the product's.
    #[test]
    fn gateways_say_it_like_that() {
        let source = std::fs::read_to_string(crate::binary::root().join("crates/raft/src/readmit.rs")).unwrap();
        let (words, field) = KEPT_OUT.split_once(" group=").unwrap();
        assert!(field.is_empty() && source.contains(words), "crates/raft/src/readmit.rs does not say: {words}");
    }
}
