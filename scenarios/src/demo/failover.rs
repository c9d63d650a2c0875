//! `cargo xtask demo failover`: PostgreSQL on two hosts over three gateways, behind a real HAProxy, under pgbench and
//! writers with a ledger.
//!
//! ```text
//!   demo failover (the machine's namespace)
//!     └─ unshare --net ─ demo failover again: bridge, HAProxy, pgbench, ledger
//!          ├─ n1 n2 n3  gateways g1, g2, g3            network namespaces
//!          └─ n4 n5     hosts db1, db2                 network, pid, mount and IPC namespaces: agent, attach, PostgreSQL
//! ```
//! Each round: the primary's host is killed; a planned switchover moves PostgreSQL back; the serving gateway is killed;
//! the primary's host is cut off the network while it keeps running, and is connected again; the primary's host and its
//! gateway are killed together, like the loss of a region. Each step prints a timeline, and checks that every
//! acknowledged commit is there (R1). A killed gateway moves nothing and breaks no connection (R8).

mod acts;
mod lab;
mod pgbench;
mod report;
mod timeline;

use crate::binary::{Build, fresh_dir, root};
use crate::cmd::cmd;
use crate::cmd::missing;
use crate::net;
use crate::pg;
use crate::proof::{self, Run as Proof};
use crate::say::{Failed, line};
use crate::setup::{self, For};
use crate::stage;
use anyhow::{Context, Result};
use lab::Lab;
pub use report::FILE as FIGURES;
use report::Summary;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Options on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// Rounds of five faults each
    #[arg(long, default_value_t = 3, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    /// Seconds of load before each fault
    #[arg(long, default_value_t = 3, value_name = "SECONDS")]
    load: u64,
    /// Scale of pgbench's tables (about 15 MB for each)
    #[arg(long, default_value_t = 5, value_name = "N")]
    scale: u32,
    /// Switch everything on that keeps others out, as `holdfast dev --secure` does: TLS for every client, roles, tokens
    #[arg(long)]
    secure: bool,
    /// Do not install missing programs
    #[arg(long)]
    no_setup: bool,
    #[command(flatten)]
    build: Build,
    /// Set by the chore itself when it runs in its own network namespace: the folder for all files
    #[arg(long, hide = true)]
    inside: Option<PathBuf>,
}

/// A release build without its slowest steps.
const PROFILE: &str = "quick";

/// Runs the chore. Fails when anything does not work, or an acknowledged commit is lost.
pub fn chore(args: &Args) -> Result<()> {
    if let Some(dir) = &args.inside {
        return inside(args, dir);
    }
    setup::must_be_able_to_mount()?;
    if !args.no_setup {
        setup::setup(For::Failover)?;
    }
    if let Some(why) = missing(stage::NEEDS).or_else(net::why_not) {
        anyhow::bail!("{why}");
    }
    let bin = args.build.binary(PROFILE)?;
    let dir = fresh_dir("demo-failover")?;
    let begun = Instant::now();
    let Args { rounds, load, scale, secure, .. } = *args;
    let ran = run(&Run { bin: &bin, dir: &dir, rounds, load, scale, secure, postgresql: None });
    let kept = root().join(if secure { "target/demo/failover-secure.json" } else { "target/demo/failover.json" });
    let mut proof = Proof::now("failover of PostgreSQL", begun.elapsed().as_secs(), proof::held(&ran));
    proof.profile = args.build.tested_profile(PROFILE);
    proof.under = if secure { "--secure".into() } else { String::new() };
    if let Err(error) = &ran {
        proof.note = format!("{error:#}");
    }
    if dir.join(report::FILE).is_file() {
        std::fs::create_dir_all(kept.parent().context("a folder")?)?;
        std::fs::copy(dir.join(report::FILE), &kept)?;
        let figures: serde_json::Value = serde_json::from_slice(&std::fs::read(&kept)?)?;
        proof.faults = figures["acts"].as_array().map_or(0, |acts| acts.len() as u64);
        proof = proof.did("commits", figures["commits_acknowledged"].as_u64().unwrap_or_default());
        line(format!("The same figures: {}; logs and histories: {}", kept.display(), dir.display()));
    }
    proof.note();
    ran
}

/// Options of one run; other chores use it too.
#[derive(Debug)]
pub struct Run<'a> {
    pub bin: &'a Path,
    /// An empty folder.
    pub dir: &'a Path,
    pub rounds: u32,
    /// Seconds of load before each fault.
    pub load: u64,
    /// Scale of pgbench's tables.
    pub scale: u32,
    /// Whether everything is on that keeps others out.
    pub secure: bool,
    /// The folder of PostgreSQL's programs, if it is another one than usual.
    pub postgresql: Option<&'a Path>,
}

/// Runs it in its own network namespace. Errors were printed when it returns.
pub fn run(run: &Run<'_>) -> Result<()> {
    let again = cmd("unshare").args(["--net", "--"]).arg(std::env::current_exe()?).args(["demo", "failover"]);
    let again = again.args(["--rounds", &run.rounds.to_string(), "--load", &run.load.to_string()]);
    let again = again.args(["--scale", &run.scale.to_string(), "--no-setup"]).arg("--bin").arg(run.bin);
    let again = if run.secure { again.arg("--secure") } else { again };
    let again = match run.postgresql {
        Some(programs) => again.env(pg::BIN_VAR, programs),
        None => again,
    };
    again.arg("--inside").arg(run.dir).show().map_err(|_| Failed.into())
}

fn inside(args: &Args, dir: &Path) -> Result<()> {
    let begun = Instant::now();
    let bin = args.build.bin.clone().context("no program")?;
    let mut summary = Summary::begin(args.rounds, args.scale, args.load);
    summary.postgresql = pg::version()?;
    let mut lab = Lab::start(&bin, dir, args.scale, args.load, args.secure)?;
    for round in 1..=args.rounds {
        for kind in timeline::KINDS {
            let act = lab.act(round, kind)?;
            let wrong = act.wrong();
            summary.add(act);
            summary.save(dir)?;
            if let Some(wrong) = wrong {
                line(summary.table());
                anyhow::bail!("{wrong}");
            }
        }
    }
    lab.finish()?;
    summary.save(dir)?;
    line(summary.table());
    line(format!("Took {:.0} s", begun.elapsed().as_secs_f64()));
    Ok(())
}
