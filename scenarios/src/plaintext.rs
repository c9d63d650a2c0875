//! What somebody on the network reads of a cluster: PostgreSQL on two hosts over three gateways and an S3 server, in
//! network namespaces, and everything that crosses the bridge between them recorded.
//!
//! First everything is open: the recorder must find the pattern, the tokens and the set's name, or it could not find
//! them in a secured cluster either. Then everything is on that keeps others out: nothing may be found (R10).

mod links;
mod record;

use crate::cmd::cmd;
use crate::gateways::{self, GATEWAYS, VOLUME};
use crate::hosts::Host;
use crate::net::HUB;
use crate::process::wait_until;
use crate::s3::S3;
use crate::say::{Failed, line, note, step};
use crate::stage::{self, Below, LIMIT, SET, Stage};
use crate::web::page;
use anyhow::{Context, Result};
use links::{Crossings, Secret};
use record::Recorder;
use serde_json::Value;
use std::net::SocketAddrV4;
use std::path::{Path, PathBuf};
use std::time::Instant;

/// Options of one of the two clusters, which is run in its own network namespace.
#[derive(Clone, Debug, clap::Args)]
pub struct Args {
    /// The `holdfast` program
    #[arg(long)]
    bin: PathBuf,
    /// The folder for all files
    #[arg(long)]
    dir: PathBuf,
    /// Switch everything on that keeps others out
    #[arg(long)]
    secure: bool,
}

/// What is written into the database: no other bytes are like this.
const PATTERN: &str = "the-quick-brown-marten-0123456789-jumps-over-every-link";

/// Rows with it. Each is so short that PostgreSQL does not compress it.
const ROWS: u32 = 200;

/// Gateway settings of both clusters. With sealed journals the data is sealed between gateways also without TLS: the
/// search could not be shown to work there, and would not see in the secured cluster that TLS is missing.
const IN_CLEAR: &str =
    "[journal]\nseal = false\nbound = \"1GiB\"\nreserve = \"128MiB\"\n[cache]\nmemory = \"128MiB\"\ndisk = \"0B\"\n";

/// The token of the stage's agents.
const AGENTS_TOKEN: &str = "a-token-for-two-agents";

/// What is before a token in the name of an export.
const TOKEN_OF_EXPORT: &str = "?token=";

/// Name of a snapshot.
const SNAPSHOT: &str = "marked";

/// Runs both clusters, each in its own network namespace. Errors were printed when it returns. Fails with [`Failed`]
/// when something is found that must not be, or anything does not work.
pub fn run(bin: &Path, dir: &Path) -> Result<()> {
    for (name, more) in [("plain", None), ("secured", Some("--secure"))] {
        let again = cmd("unshare").args(["--net", "--"]).arg(std::env::current_exe()?).arg("plaintext");
        let again = again.arg("--bin").arg(bin).arg("--dir").arg(dir.join(name)).args(more);
        again.show().map_err(|_| Failed)?;
    }
    Ok(())
}

/// Runs one cluster, in the network namespace of this process.
pub fn inside(args: &Args) -> Result<()> {
    step(if args.secure { "Everything is on that keeps others out" } else { "Everything is open" });
    let crossings = recorded(&args.bin, &args.dir, args.secure)?;
    line(crossings.table());
    crossings.judge_record()?;
    if args.secure {
        crossings.judge_secured()?;
        note("the network shows no pattern, no token and no name of a set");
    } else {
        crossings.judge_plain()?;
        note("in plain text all of it is found, as it must be");
    }
    Ok(())
}

/// Uses a cluster, and looks through what crossed its network.
fn recorded(bin: &Path, dir: &Path, secure: bool) -> Result<Crossings> {
    std::fs::create_dir_all(dir)?;
    let net = Stage::net(dir)?;
    let mut s3 = S3::start_on(&stage::cluster(dir), HUB)?;
    let below = Below { store: s3.url(), env: s3.env(), secure, settings: IN_CLEAR, http: true, ..Below::usual(dir) };
    let mut stage = Stage::on(net, bin, dir, below)?;
    step("Everything that crosses the network is recorded");
    let recorder = Recorder::start()?;
    let tokens = use_it(&mut stage)?;
    // So that nothing is sent any more.
    for host in &mut stage.hosts {
        host.kill()?;
    }
    stage.gateways.must_run()?;
    stage.gateways.stop()?;
    let store: SocketAddrV4 = s3.address().parse()?;
    s3.stop()?;
    let mut words: Vec<(Secret, Vec<u8>)> = vec![
        (Secret::Pattern, PATTERN.into()),
        (Secret::TokenOfExport, TOKEN_OF_EXPORT.into()),
        (Secret::SetName, SET.into()),
    ];
    for token in tokens {
        // Tokens of the gateways are numbers, which may cross as such.
        if let Ok(number) = u128::from_str_radix(&token, 16) {
            words.push((Secret::Token, number.to_be_bytes().into()));
            words.push((Secret::Token, number.to_le_bytes().into()));
        }
        words.push((Secret::Token, token.into_bytes()));
    }
    Ok(Crossings::of(&recorder.end()?, store.port(), &words))
}

/// Sends something over every link. Returns the tokens that were in use.
fn use_it(stage: &mut Stage) -> Result<Vec<String>> {
    let from = stage.primary()?;
    let to = 1 - from;
    write(&stage.hosts[from])?;
    let ask = |args: &[&str]| stage.gateways.holdfast(args, LIMIT);
    let snapshot = format!("{SET}@{SNAPSHOT}");
    ask(&["cluster", "status"])?;
    ask(&["set", "show", SET])?;
    ask(&["snapshot", "create", &snapshot])?;
    // In plain text: whether the door tells anything is what is looked at.
    (0..GATEWAYS).try_for_each(|gateway| page(&gateways::http(gateway), "/metrics").map(drop))?;
    let told = ask(&["snapshot", "token", &snapshot])?;
    let token = told["token"].as_str().with_context(|| format!("no token: {told}"))?;
    let mut tokens = vec![AGENTS_TOKEN.to_string(), token.to_string()];
    open_as_others(stage, &told)?;
    // Attach keeps its token for a kernel's device alone. Without one, it is looked for by what is before it in the
    // name of its export. Those of the snapshot and of the agents, which must cross nowhere, are looked for as such.
    tokens.extend(stage.hosts[from].lease_token());
    note("written, and a snapshot taken and opened by libnbd");

    // Agents speak with each other; attach begins anew.
    let (old, new) = (&stage.hosts[from], &stage.hosts[to]);
    old.holdfast(&["agent", "switchover", "--to", new.name, "--yes"])?;
    new.becomes_primary(Instant::now(), LIMIT)?;
    tokens.extend(new.lease_token());
    write(new)?;
    note(format!("switched over to {}", new.name));

    // Gateways and attach connect anew.
    let serving = stage.serving(to)?;
    stage.gateways.kill(serving)?;
    write(&stage.hosts[to])?;
    stage.gateways.heal(&stage.net)?;
    stage.caught_up()?;
    tokens.extend(stage.hosts[to].lease_token());
    stage.gateways.holdfast(&["snapshot", "create", &format!("{SET}@again")], LIMIT)?;
    note("the serving gateway killed and started again");
    Ok(tokens)
}

/// Writes the pattern, down to the device.
fn write(host: &Host) -> Result<()> {
    let statements = [
        "create table if not exists marked (line text)".to_string(),
        format!("insert into marked select '{PATTERN}' from generate_series(1, {ROWS})"),
        "checkpoint".to_string(),
    ];
    let all = || -> Result<()> {
        let mut client = host.pg.client()?;
        statements.iter().try_for_each(|statement| client.query(statement).map(drop)).context("SQL")
    };
    let mut last = all();
    wait_until(LIMIT, || {
        if last.is_err() {
            last = all();
        }
        last.is_ok()
    });
    last.with_context(|| format!("PostgreSQL on {}", host.name))
}

/// A client of others opens the snapshot with its token.
fn open_as_others(stage: &Stage, told: &Value) -> Result<()> {
    let export = told["exports"][0].as_str().with_context(|| format!("no export of {VOLUME}: {told}"))?;
    let uri = match &stage.certificates {
        Some(all) => format!("{export}?tls-certificates={}", all.for_others("db1")?.display()),
        None => export.to_string(),
    };
    let mut last = Ok(String::new());
    let opened = wait_until(LIMIT, || {
        last = cmd("nbdinfo").args(["--size", &uri]).out();
        last.is_ok()
    });
    anyhow::ensure!(opened, "nbdinfo cannot open the snapshot: {last:?}");
    Ok(())
}
