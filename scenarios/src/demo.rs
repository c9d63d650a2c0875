//! `cargo xtask demo`: PostgreSQL runs on a volume of three gateways, and the serving gateway is killed: no
//! acknowledged commit is lost.
//!
//! ```text
//!  writers ──▶ PostgreSQL ──▶ ext4 ──▶ /dev/loopN ──▶ nbdfuse ══NBD══▶ g1 ✗        g1, g2, g3: Raft
//!     │                                               nbdfuse ══NBD══▶ g2   (after the takeover)
//!     └──▶ ledger files on the local disk: one line for each acknowledged commit; compared with the table afterwards
//! ```
//! With `--secure` the same on `holdfast dev --secure`: nbdfuse comes through TLS, with a certificate and the token of
//! a lease that is continued at the next gateway.

pub mod failover;

use crate::binary::{Build, DEMO_PROFILE as PROFILE, fresh_dir, public_dir};
use crate::cluster::{Cluster, Options};
use crate::ledger::{Ledger, Verdict};
use crate::one_host::OneHost;
use crate::pg::Postgres;
use crate::process::{Proc, Signal, wait_until};
use crate::proof::{Run as Proof, Verdict as Held};
use crate::say::{line, note, step};
use crate::setup::{self, For};
use crate::stats;
use anyhow::{Context, Result};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Other demos.
#[derive(Clone, Debug, clap::Subcommand)]
pub enum Other {
    /// Run two PostgreSQL hosts behind HAProxy; kill a host, switch over, kill a gateway, cut a host off; prints a
    /// timeline for each: no acknowledged commit is lost
    Failover(failover::Args),
}

/// Options on the command line.
#[derive(Clone, Debug, clap::Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct Args {
    #[command(subcommand)]
    other: Option<Other>,
    /// How often to kill the serving gateway
    #[arg(long, default_value_t = 1, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of load before each kill
    #[arg(long, default_value_t = 5, value_name = "SECONDS")]
    load: u64,
    /// Size of the volume
    #[arg(long, default_value = "2GiB", value_name = "SIZE")]
    size: String,
    /// Scale of pgbench's tables (about 15 MB for each)
    #[arg(long, default_value_t = 10, value_name = "N")]
    scale: u32,
    /// Store URL, such as s3://bucket/prefix; the embedded store if none is given
    #[arg(long, value_name = "URL")]
    store: Option<String>,
    /// Switch everything on that keeps others out, by `holdfast dev --secure`: TLS for every client, roles, tokens
    #[arg(long)]
    secure: bool,
    /// Do not install missing programs
    #[arg(long)]
    no_setup: bool,
    #[command(flatten)]
    build: Build,
}

const LEDGER_WRITERS: usize = 4;
const PGBENCH: [&str; 4] = ["-c", "8", "-j", "2"];

/// Its name in the table on docs/proof/README.md.
const PROOF: &str = "demo: gateway killed below PostgreSQL";

/// What was built, and what the figures are of.
const BUILT: [&str; 2] = [
    "the gateways and their commands, without what has no part here: attach, agent, standby, CSI, pairs",
    "the path of a block is optimised as in a release, but not across crates; all else is optimised less",
];

/// Limit for a takeover; a longer one fails the demo. The table shows the measured time.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(60);

/// PostgreSQL settings: a WAL that fits a small volume, and buffers larger than the data.
/// After a crash the server must not start again by itself on a device that is dead.
const SETTINGS: &str =
    "shared_buffers = '256MB'\nmax_wal_size = '512MB'\nsynchronous_commit = on\nrestart_after_crash = off\n";

#[derive(Clone, Debug, Serialize)]
struct Round {
    round: u32,
    killed: String,
    took_over: String,
    /// From just before the SIGKILL to the first read answered by another gateway.
    takeover_ms: f64,
    /// From just before the SIGKILL to PostgreSQL answering a query again: detach, attach, mount and recovery included.
    database_back_ms: f64,
    /// Ledger rows so far, all rounds together.
    commits_acknowledged: u64,
    commits_lost: u64,
    in_doubt_found: u64,
    rows_invented: u64,
    machine: String,
}

#[derive(Debug, Serialize)]
struct Summary {
    commits_acknowledged: u64,
    commits_lost: u64,
    /// Median over the rounds.
    takeover_ms: f64,
    /// Largest of the rounds.
    takeover_ms_max: f64,
    /// pgbench TPC-B, `synchronous_commit = on`, before the first kill.
    tps: f64,
    database_back_ms: f64,
    pgbench: String,
    ledger_writers: usize,
    gateways: usize,
    /// Whether everything was on that keeps others out.
    secure: bool,
    profile: String,
    rounds: Vec<Round>,
}

/// Runs the demo. Fails when anything does not work, or an acknowledged commit is lost.
pub fn demo(args: &Args) -> Result<()> {
    if let Some(Other::Failover(args)) = &args.other {
        return failover::chore(args);
    }
    let begun = Instant::now();
    setup::must_be_able_to_mount()?;
    if !args.no_setup {
        // nbdsh, which asks for the gateway that serves, is not needed otherwise.
        setup::setup(if args.secure { For::Tests } else { For::Demo })?;
    }
    let bin = args.build.demo_binary()?;
    if args.build.is_usual() {
        BUILT.iter().for_each(note);
    }
    let dir = fresh_dir(if args.secure { "demo-secure" } else { "demo" })?;
    let (public, _guard) = public_dir("demo")?;
    let ran = shown(args, begun, bin, &dir, &public);
    if let Err(error) = &ran {
        // Whatever the error: a run that did not finish counts as failed.
        let mut proof = proof(args, begun, Held::Broken);
        proof.note = format!("{error:#}");
        proof.note();
    }
    ran
}

fn shown(args: &Args, begun: Instant, bin: PathBuf, dir: &Path, public: &Path) -> Result<()> {
    step("Starting three gateways as three processes");
    let options = Options {
        bin,
        dir: dir.join("cluster"),
        gateways: 3,
        store: args.store.clone(),
        size: args.size.clone(),
        settings: Vec::new(),
        env: Vec::new(),
    };
    let mut cluster = if args.secure { Cluster::start_secure(options)? } else { Cluster::start(options)? };
    for (i, gateway) in cluster.gateways.iter().enumerate() {
        note(format!("{}  pid {:<8} {}  api {}", cluster.name(i), gateway.pid, gateway.nbd, gateway.api));
    }
    let serving = cluster.serving(TAKEOVER_LIMIT)?;
    note(format!("{} serves the volume", cluster.name(serving)));

    step("Attaching the volume: nbdfuse, a loop device, ext4");
    let mount = public.join("volume");
    let pg = Postgres::new(&mount.join("pgdata"), &public.join("socket"), &dir.join("postgres.log"))?;
    let mut host = OneHost { pg, device: None, mount, work: public.to_path_buf() };
    host.attach(&cluster, serving, TAKEOVER_LIMIT)?;
    let device = host.device.as_ref().context("no device")?;
    device.mkfs()?;
    note(format!("{} through {}", device.path().display(), cluster.name(serving)));
    host.mount()?;

    step("PostgreSQL 15 on the volume");
    host.pg.initdb(SETTINGS)?;
    host.pg.start()?;
    host.pg.pgbench_init(args.scale)?;
    let measure = Duration::from_secs(15);
    note(format!("pgbench, TPC-B, {} for {} s ...", PGBENCH.join(" "), measure.as_secs()));
    let tps = host.pg.pgbench(&PGBENCH, measure)?;
    note(format!("{tps:.0} transactions per second ({})", stats::machine()));

    let mut ledger = Ledger::create(&host.pg, &dir.join("ledger"), LEDGER_WRITERS)?;
    let mut rounds = Vec::new();
    for number in 1..=args.rounds {
        let round = kill_round(number, args, &mut cluster, &mut host, &mut ledger, dir)?;
        let lost = round.commits_lost + round.rows_invented;
        rounds.push(round);
        write_summary(dir, args, tps, &rounds)?;
        anyhow::ensure!(lost == 0, "R1: acknowledged commits were lost (see the table)");
    }

    step("Checking the database and the file system as a whole");
    host.pg.pgbench_balances()?;
    note("pgbench's sums agree");
    host.pg.amcheck()?;
    note("pg_amcheck: every table agrees with its indexes");
    host.pg.stop(Signal::INT)?;
    let device = host.device.take().context("no device")?;
    device.unmount_and_check(&host.mount)?;
    note("e2fsck -fn: clean");
    device.detach()?;
    cluster.stop()?;

    let summary = write_summary(dir, args, tps, &rounds)?;
    print_table(&summary);
    let mut proof = proof(args, begun, Held::Held);
    proof.faults = summary.rounds.len() as u64;
    proof.did("commits", summary.commits_acknowledged).note();
    let figures = dir.join("summary.json");
    line(format!("Took {:.0} s. The same figures: {}", begun.elapsed().as_secs_f64(), figures.display()));
    Ok(())
}

/// The record of this run for `cargo xtask proof`, without its figures.
fn proof(args: &Args, begun: Instant, held: Held) -> Proof {
    let mut proof = Proof::now(PROOF, begun.elapsed().as_secs(), held).built(args.build.tested_profile(PROFILE));
    proof.under = if args.secure { "--secure".into() } else { String::new() };
    proof
}

fn kill_round(
    number: u32,
    args: &Args,
    cluster: &mut Cluster,
    host: &mut OneHost,
    ledger: &mut Ledger,
    dir: &Path,
) -> Result<Round> {
    step(format!("Round {number} of {}: load, then kill -9 of the serving gateway", args.rounds));
    let serving = host_gateway(cluster, host)?;
    let mut pgbench = host.pg.pgbench_forever(&PGBENCH, &dir.join("pgbench.log"))?;
    let writers = ledger.start(&host.pg)?;
    let full = Duration::from_secs(args.load);
    let begun = Instant::now();
    wait_until(full, || !writers.all_writing() || pgbench.ended().is_some());
    anyhow::ensure!(
        writers.all_writing() && writers.acknowledged() > 0,
        "the ledger's writers stopped before the kill"
    );
    pgbench.must_run()?;
    let machine = stats::machine();
    let seconds = begun.elapsed().as_secs_f64();
    note(format!("{} commits acknowledged to the ledger in {seconds:.0} s, pgbench beside it", writers.acknowledged()));

    let killed = cluster.kill(serving)?;
    let others = cluster.others(serving);
    let (next, takeover) = cluster.first_to_serve(&others, killed, TAKEOVER_LIMIT)?;
    note(format!(
        "{} killed; {} answered the first read after {:.0} ms",
        cluster.name(serving),
        cluster.name(next),
        takeover.as_secs_f64() * 1e3
    ));
    end_load(pgbench)?;
    host.drop_dead_device()?;
    ledger.join(writers)?;
    host.attach(cluster, next, TAKEOVER_LIMIT)?;
    host.mount()?;
    host.pg.start()?;
    let database_back = killed.elapsed();
    note(format!(
        "re-attached through {}; PostgreSQL recovered and answers after {database_back:.1?}",
        cluster.name(next)
    ));

    let verdict = ledger.check(&host.pg)?;
    note(format!(
        "ledger: {} acknowledged, {} lost ({} more were committed without an acknowledgement)",
        verdict.acknowledged, verdict.lost, verdict.in_doubt_found
    ));
    cluster.restart(serving)?;
    cluster.caught_up(TAKEOVER_LIMIT)?;
    note(format!("{} is back and has caught up", cluster.name(serving)));
    Ok(round_of(number, cluster, (serving, next), takeover, database_back, verdict, machine))
}

fn round_of(
    round: u32,
    cluster: &Cluster,
    (killed, next): (usize, usize),
    takeover: Duration,
    back: Duration,
    verdict: Verdict,
    machine: String,
) -> Round {
    let ms = |d: Duration| (d.as_secs_f64() * 1e4).round() / 10.0;
    Round {
        round,
        killed: cluster.name(killed),
        took_over: cluster.name(next),
        takeover_ms: ms(takeover),
        database_back_ms: ms(back),
        commits_acknowledged: verdict.acknowledged,
        commits_lost: verdict.lost,
        in_doubt_found: verdict.in_doubt_found,
        rows_invented: verdict.invented,
        machine,
    }
}

/// The server is gone: pgbench may wait for a backend that hangs in I/O.
fn end_load(mut pgbench: Proc) -> Result<()> {
    pgbench.stop(Signal::INT, Duration::from_secs(2))
}

/// The gateway to which the device is connected.
fn host_gateway(cluster: &Cluster, host: &OneHost) -> Result<usize> {
    let device = host.device.as_ref().context("no device")?;
    let addr = device.uri().map(|u| u.addr.clone());
    cluster
        .gateways
        .iter()
        .position(|g| Some(&g.nbd.addr) == addr.as_ref())
        .context("the device is connected to no gateway of this cluster")
}

/// The record of this run for `cargo xtask proof`.
fn write_summary(dir: &Path, args: &Args, tps: f64, rounds: &[Round]) -> Result<Summary> {
    let of = |what: fn(&Round) -> f64| rounds.iter().map(what).collect::<Vec<f64>>();
    let takeovers = of(|r| r.takeover_ms);
    let last = rounds.last().context("no round")?;
    let summary = Summary {
        commits_acknowledged: last.commits_acknowledged,
        commits_lost: rounds.iter().map(|r| r.commits_lost).max().unwrap_or(0),
        takeover_ms: (stats::median(&takeovers).context("no round")? * 10.0).round() / 10.0,
        takeover_ms_max: takeovers.iter().copied().fold(0.0, f64::max),
        tps: (tps * 10.0).round() / 10.0,
        database_back_ms: stats::median(&of(|r| r.database_back_ms)).context("no round")?.round(),
        pgbench: format!("TPC-B, scale {}, {}, synchronous_commit = on", args.scale, PGBENCH.join(" ")),
        ledger_writers: LEDGER_WRITERS,
        gateways: 3,
        secure: args.secure,
        profile: args.build.describe(PROFILE),
        rounds: rounds.to_vec(),
    };
    std::fs::write(dir.join("summary.json"), serde_json::to_vec_pretty(&summary)?)?;
    Ok(summary)
}

fn print_table(summary: &Summary) {
    let mut table = comfy_table::Table::new();
    table.load_style(comfy_table::presets::UTF8_FULL_CONDENSED);
    table.set_header(["", "measured"]);
    let rounds = summary.rounds.len();
    table.add_row(["pgbench, transactions per second".to_owned(), format!("{:.0}", summary.tps)]);
    table.add_row([
        format!("time to take over, median of {rounds} (largest)"),
        format!("{:.0} ms ({:.0} ms)", summary.takeover_ms, summary.takeover_ms_max),
    ]);
    table.add_row([
        "kill to PostgreSQL answering again, median".to_owned(),
        format!("{:.0} ms", summary.database_back_ms),
    ]);
    table.add_row(["commits acknowledged".to_owned(), summary.commits_acknowledged.to_string()]);
    table.add_row(["commits lost".to_owned(), summary.commits_lost.to_string()]);
    line(table.to_string());
}
