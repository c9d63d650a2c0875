//! `holdfast dev --secure`, used with the certificates that it makes: nobody gets in without one, each role does what
//! it may, libnbd writes with a token through TLS, and PostgreSQL on two hosts survives the loss of a gateway and of a
//! host.

use super::agent::{AGENT, SETTINGS, TAKEOVER, WRITERS, under_load, whole};
use super::{Lab, TAKEOVER_LIMIT};
use crate::certificates::Certificates;
use crate::cluster::{SET, VOLUME};
use crate::cmd::{Cmd, cmd};
use crate::hosts::{First, Host, Plan, Way, fill};
use crate::ledger::Ledger;
use crate::nbd::{Client, NbdError, Uri, pattern};
use crate::process::{self, Proc, Signal, wait_until};
use crate::say::note;
use crate::setup;
use crate::web::page;
use anyhow::{Context, Result};
use serde_json::Value;
use std::io::Read;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

pub(super) const NEEDS: &[&str] = &["nbdfuse", "nbdinfo", "nbdcopy", "unshare", "/usr/lib/postgresql/15/bin/postgres"];

const PATIENCE: Duration = Duration::from_secs(90);
const IMAGE_BYTES: usize = 16 << 20;

/// The cluster.
struct Dev {
    bin: PathBuf,
    dir: PathBuf,
    certificates: Certificates,
    /// What it says of itself.
    ready: Value,
    process: Proc,
}

impl Dev {
    fn start(lab: &Lab) -> Result<Self> {
        let (bin, dir) = (lab.bin.clone(), lab.dir.join("cluster"));
        let command = cmd(&bin).args(["dev", "--secure", "--output", "json", "--timeout", "80s", "--dir"]).arg(&dir);
        let command = command.args(["--volume", &format!("{VOLUME}=512MiB")]);
        let mut process = Proc::spawn("holdfast dev", command.into_command(), &lab.dir.join("dev.log"))?;
        let said = dir.join("dev.json");
        process.ready_when("ready", PATIENCE, || said.exists())?;
        let ready = serde_json::from_slice(&std::fs::read(&said)?)?;
        // As it says to make more of them.
        let certificates = Certificates::make(&bin, &dir.join("tls"), &["--host", "db2", "--host", "first"])?;
        Ok(Self { bin, dir, certificates, ready, process })
    }

    /// A field that is a list of texts.
    fn list(&self, field: &str) -> Vec<String> {
        let all = self.ready[field].as_array().map_or(&[][..], Vec::as_slice);
        all.iter().filter_map(|text| text.as_str().map(String::from)).collect()
    }

    /// A command with a certificate of that name; without one if it is empty.
    fn command(&self, name: &str, args: &[&str]) -> Cmd {
        let api = self.list("api").join(",");
        let command = cmd(&self.bin).args(args).args(["--output", "json", "--api", &api]);
        let env = if name.is_empty() { Vec::new() } else { self.certificates.env(name) };
        env.into_iter().fold(command, |command, (key, value)| command.env(key, value))
    }

    fn ask(&self, name: &str, args: &[&str]) -> Result<Value> {
        let said = self.command(name, args).out()?;
        serde_json::from_str(&said).with_context(|| format!("{args:?}: no JSON: {said}"))
    }

    /// Checks that a command is refused with these words.
    fn refused(&self, name: &str, args: &[&str], words: &str) -> Result<()> {
        let refused = self.command(name, args).out();
        let why = format!("{:#}", refused.err().with_context(|| format!("R10: {args:?} by {name:?} was carried out"))?);
        anyhow::ensure!(why.contains(words), "{args:?} by {name:?}: found {why}, expected {words}");
        Ok(())
    }
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    let mut dev = Dev::start(lab)?;
    doors(&dev)?;
    let token = libnbd(lab, &dev)?;
    failover(lab, &dev)?;
    kept(&dev, &token)?;
    dev.process.stop(Signal::TERM, Duration::from_secs(40))
}

/// Who is let in, and what each role may do.
fn doors(dev: &Dev) -> Result<()> {
    let plain = dev.list("nbd").first().context("no NBD address")?.replace("nbds://", "nbd://");
    match Client::connect(&Uri::parse(&plain)?, PATIENCE) {
        Err(NbdError::Refused(words)) => {
            anyhow::ensure!(words.contains("demands TLS"), "a client in plain text was told: {words}");
        }
        Err(other) => anyhow::bail!("a client in plain text was not told why: {other}"),
        Ok(_) => anyhow::bail!("R10: a client in plain text was served"),
    }
    let metrics = dev.list("http").first().context("no HTTP address")?.clone();
    let told = page(&metrics, "/metrics")?;
    anyhow::ensure!(told.starts_with("HTTP/1.1 403"), "R10: metrics were told in plain text: {told}");
    let status = ["cluster", "status", "--timeout", "3s"];
    anyhow::ensure!(dev.command("", &status).out().is_err(), "R10: a command without a certificate was answered");
    for name in ["viewer", "operator", "admin"] {
        dev.ask(name, &["cluster", "status"])?;
    }
    let elsewhere = ["set", "create", "elsewhere", "--store", "file:///srv/elsewhere", "--volume", "data=64MiB"];
    dev.refused("viewer", &["snapshot", "create", &format!("{SET}@viewed")], "found role viewer")?;
    dev.refused("operator", &elsewhere, "found role operator")?;
    dev.refused("admin", &elsewhere, "expected one within")?;
    dev.refused("db1", &["lease", "acquire", SET, "--owner", "db2"], "found owner db2")?;
    note("no certificate, no answer; viewer, operator, administrator and host do what they may, and no more");
    Ok(())
}

/// libnbd writes and reads with the token of a lease, through TLS. Returns the token.
fn libnbd(lab: &Lab, dev: &Dev) -> Result<String> {
    let mut grant = Value::Null;
    // The set may have no leader yet.
    let granted = wait_until(TAKEOVER_LIMIT, || {
        grant = dev.ask("db1", &["lease", "acquire", SET, "--owner", "db1", "--ttl", "1m"]).unwrap_or_default();
        grant["token"].is_string()
    });
    anyhow::ensure!(granted, "no lease for db1 within {TAKEOVER_LIMIT:?}");
    let token = grant["token"].as_str().context("no token")?.to_string();
    let export = grant["exports"][0].as_str().context("no export")?;
    anyhow::ensure!(export.starts_with("nbds://"), "an address without TLS: {export}");
    let folder = dev.certificates.for_others("db1")?;
    let uri = |generation: u32| {
        let export = export.replace("gen=1", &format!("gen={generation}"));
        format!("{export}?tls-certificates={}", folder.display())
    };
    let wrong = uri(1).replace(&token, &"0".repeat(token.len()));
    anyhow::ensure!(cmd("nbdinfo").args(["--size", &wrong]).out().is_err(), "R10: a wrong token opened the volume");
    let (there, back) = (lab.dir.join("there"), lab.dir.join("back"));
    std::fs::write(&there, pattern(7, 0, IMAGE_BYTES))?;
    cmd("nbdcopy").arg("--connections=1").arg(&there).arg(uri(2)).run()?;
    cmd("nbdcopy").arg("--connections=1").arg(uri(3)).arg(&back).run()?;
    // The rest of the volume is empty.
    let mut read = vec![0; IMAGE_BYTES];
    std::fs::File::open(&back)?.read_exact(&mut read)?;
    anyhow::ensure!(std::fs::read(&there)? == read, "nbdcopy read other bytes than it wrote");
    std::fs::remove_file(&there)?;
    std::fs::remove_file(&back)?;
    let release = dev.command("db1", &["lease", "release", SET]).env("HOLDFAST_TOKEN", &token);
    release.run().context("release")?;
    note("nbdcopy: 16 MiB there and back through TLS with a token; not with a wrong one");
    Ok(token)
}

fn host(lab: &Lab, dev: &Dev, host: (&'static str, &str), peer: (&'static str, &str)) -> Result<Host> {
    Host::new(Plan {
        peers: vec![(peer.0, peer.1.into())],
        settings: AGENT,
        certificates: Some(dev.certificates.clone()),
        ..Plan::plain(host, SET, dev.list("api"), lab.dir.join(host.0), &lab.bin)
    })
}

/// PostgreSQL on two hosts: the serving gateway is killed, then the primary's host.
fn failover(lab: &Lab, dev: &Dev) -> Result<()> {
    let (one, two) = (("db1", "127.0.0.2"), ("db2", "127.0.0.3"));
    let (mut db1, mut db2) = (host(lab, dev, one, two)?, host(lab, dev, two, one)?);
    fill(&First {
        bin: &lab.bin,
        set: SET,
        volume: VOLUME,
        gateways: dev.list("api"),
        dir: lab.dir.join("first"),
        mount: db1.mount(),
        way: Way::Ext4,
        size: None,
        pg: &db1.pg,
        settings: SETTINGS,
        network: None,
        env: &dev.certificates.env("first"),
    })?;
    db1.boot()?;
    db1.becomes_primary(Instant::now(), TAKEOVER)?;
    db2.boot()?;
    db2.stands_by(TAKEOVER)?;
    agents(&db1)?;
    let mut ledger = Ledger::create(&db1.pg, &lab.dir.join("ledger"), WRITERS)?;

    let before = db1.attach_status()["gateway"].clone();
    let at = dev.list("gateways").iter().position(|name| before == name.as_str()).context("no gateway serves")?;
    let pid = u32::try_from(dev.ready["pids"][at].as_u64().context("no process")?)?;
    under_load(&mut ledger, &db1.pg.clone(), || {
        process::signal(pid, Signal::KILL);
        let elsewhere = wait_until(TAKEOVER, || {
            let now = db1.attach_status();
            now["phase"] == "serving" && now["gateway"] != before
        });
        anyhow::ensure!(elsewhere, "no other gateway serves {TAKEOVER:?} after {before} was killed");
        Ok(())
    })?;
    whole(&ledger, &db1)?;
    note(format!("gateway {before} killed: PostgreSQL went on"));

    let mut killed = Instant::now();
    under_load(&mut ledger, &db1.pg.clone(), || {
        (killed, _) = db1.kill()?;
        Ok(())
    })?;
    let took = db2.becomes_primary(killed, TAKEOVER)?;
    whole(&ledger, &db2)?;
    note(format!("host db1 killed: db2 is primary after {} ms", took.as_millis()));
    db2.pg.amcheck()?;
    db2.kill().map(drop)
}

/// HTTP of the agents: health checks alone without TLS, all of it with a certificate.
fn agents(host: &Host) -> Result<()> {
    for (method, path, code) in [
        ("OPTIONS", "/primary", 200),
        ("GET", "/status", 403),
        ("GET", "/history", 403),
        ("GET", "/metrics", 403),
        ("POST", "/pause", 403),
    ] {
        let (found, body) = host.http(method, path, PATIENCE)?;
        anyhow::ensure!(found == code, "{method} {path} in plain text: found {found}, expected {code}: {body}");
        anyhow::ensure!(!body.contains(SET), "R10: {method} {path} in plain text names the set: {body}");
    }
    let seen = host.holdfast(&["agent", "status"])?;
    let all = seen.as_array().map_or(0, Vec::len);
    anyhow::ensure!(all == 2 && seen[1]["view"]["paused"] == false, "an administrator sees other agents: {seen}");
    note("agents: health checks alone without TLS; an administrator sees both through TLS");
    Ok(())
}

/// What is left: audit logs that tell of it, files that others cannot read, logs without a token.
fn kept(dev: &Dev, token: &str) -> Result<()> {
    let mut told = String::new();
    for gateway in dev.list("gateways") {
        let audit = dev.dir.join(format!("{gateway}.audit.log"));
        let text = std::fs::read_to_string(&audit).with_context(|| audit.display().to_string())?;
        private(&audit)?;
        let log = std::fs::read_to_string(dev.dir.join(format!("{gateway}.log")))?;
        anyhow::ensure!(!log.contains(token) && !text.contains(token), "R10: a token is in a log of {gateway}");
        told.push_str(&text);
    }
    let lines: Vec<Value> = told.lines().map(serde_json::from_str).collect::<Result<_, _>>().context("an audit log")?;
    for (certificate, method, outcome) in [
        ("viewer", "CreateSnapshot", "PermissionDenied"),
        ("operator", "CreateSet", "PermissionDenied"),
        ("db1", "AcquireLease", "Ok"),
        ("db2", "AcquireLease", "Ok"),
    ] {
        let found = lines
            .iter()
            .any(|line| line["certificate"] == certificate && line["method"] == method && line["outcome"] == outcome);
        anyhow::ensure!(found, "the audit logs have no {method} by {certificate} with {outcome}");
    }
    for key in ["cluster.key", "tls/ca.key", "tls/g1.key", "tls/admin.key", "tls/db1.key"] {
        private(&dev.dir.join(key))?;
    }
    note(format!("{} lines in the audit logs; keys and logs are their owner's alone; no token in a log", lines.len()));
    Ok(())
}

/// Checks that only its owner can use a file.
fn private(file: &Path) -> Result<()> {
    let mode = std::fs::metadata(file)?.permissions().mode() & 0o777;
    anyhow::ensure!(mode == 0o600, "{}: found mode {mode:o}, expected 600", file.display());
    Ok(())
}
