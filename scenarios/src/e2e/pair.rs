//! A gateway pair with a real etcd in place of a third voter (ADR 0031): the seat's holder serves the store's content;
//! everything flushed is in the store.
//!
//! ```text
//!   a ──proxy──┐                     each gateway reaches the etcd through a proxy of its own, which can be cut without a word
//!              ├─▶ etcd
//!   b ──proxy──┘            a, b ─▶ one S3 server
//! ```
//! The holder is killed, stopped for longer than its lease, and cut off from the etcd; the etcd is killed; S3 is
//! stopped. Each time everything flushed is there, and the old holder answers nothing once the other one serves.
//! Snapshots and their schedule are there too, and none of them is deleted.

use super::blocks::BLOCK;
use super::etcd::Etcd;
use super::{Lab, TAKEOVER_LIMIT};
use crate::cluster::{SET, VOLUME, free_ports};
use crate::cmd::cmd;
use crate::nbd::{Client, NbdError, Uri, pattern, tag_of};
use crate::process::{Proc, Signal, wait_until};
use crate::s3::S3;
use crate::say::note;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

mod agents;
mod proxy;
mod rounds;
mod snapshots;

use proxy::Proxy;

/// Required programs.
pub(super) const NEEDS: &[&str] = &["etcd", "etcdctl", "versitygw"];

/// Required programs with PostgreSQL.
pub(super) const NEEDS_AGENTS: &[&str] =
    &["etcd", "etcdctl", "versitygw", "nbdfuse", "unshare", "/usr/lib/postgresql/15/bin/postgres"];

/// Size of the volume where nothing but blocks is written.
const SMALL: &str = "64MiB";

/// Time to live of the seat.
const TTL: Duration = Duration::from_secs(3);
/// How long it serves after the sending of its last keep-alive (PAIR-P1): three quarters.
const SERVES: Duration = Duration::from_millis(2250);
const PATIENCE: Duration = Duration::from_secs(20);

/// One gateway of the pair.
struct Gateway {
    name: &'static str,
    config: PathBuf,
    api: String,
    nbd: String,
    proxy: Proxy,
    log: PathBuf,
    process: Option<Proc>,
}

/// The pair with its etcd and its store.
struct Pair {
    bin: PathBuf,
    etcd: Etcd,
    s3: S3,
    gateways: [Gateway; 2],
}

impl Gateway {
    fn new(name: &'static str, dir: &Path, port: u16, proxy: Proxy, s3: &S3, durability: &str) -> Result<Self> {
        let address = |at: u16| format!("127.0.0.1:{}", port + at);
        let (data, config, log) = (dir.join(name), dir.join(format!("{name}.toml")), dir.join(format!("{name}.log")));
        let key = dir.join("cluster.key");
        let text = format!(
            "name = {name:?}\nregion = \"local\"\ndata_dir = {data:?}\napi_listen = {:?}\npeer_listen = {:?}\nnbd_listen = {:?}\nhttp_listen = {:?}\n\
             [journal]\nbound = \"512MiB\"\nreserve = \"64MiB\"\nfile = \"16MiB\"\n[upload]\nbytes = \"64MiB\"\n[cache]\ndisk = \"0B\"\n[space]\ngrace_ms = 1000\nsweep_interval_ms = 1500\n[key]\nfile = {key:?}\n\
             [etcd]\nendpoints = [\"http://127.0.0.1:{}\"]\nprefix = \"/e2e\"\n\
             [pair]\nname = \"db\"\nstores = [{:?}]\ndurability = {durability:?}\nttl_ms = {}\n",
            address(0),
            address(1),
            address(2),
            address(3),
            proxy.port(),
            s3.url(),
            TTL.as_millis()
        );
        std::fs::write(&config, text)?;
        Ok(Self { name, config, api: address(0), nbd: address(2), proxy, log, process: None })
    }

    fn start(&mut self, bin: &Path, s3: &S3, settings: &[&str]) -> Result<()> {
        let mut command = cmd(bin).args(["gateway", "run", "--config"]).arg(&self.config);
        for setting in settings {
            command = command.args(["--set", setting]);
        }
        for (key, value) in s3.env() {
            command = command.env(key, value);
        }
        self.process = Some(Proc::spawn(self.name, command.into_command(), &self.log)?);
        Ok(())
    }

    fn process(&mut self) -> Result<&mut Proc> {
        let name = self.name;
        self.process.as_mut().with_context(|| format!("gateway {name} does not run"))
    }

    fn kill(&mut self) -> Result<Instant> {
        let moment = Instant::now();
        self.process()?.stop(Signal::KILL, Duration::from_secs(10))?;
        self.process = None;
        Ok(moment)
    }
}

impl Pair {
    /// Two gateways, one of which serves a new set with a volume of that size.
    fn start(lab: &Lab, dir: &Path, durability: &str, size: &str) -> Result<Self> {
        std::fs::create_dir_all(dir)?;
        let etcd = Etcd::start(dir.join("etcd"))?;
        let s3 = S3::start(dir)?;
        let key = dir.join("cluster.key");
        std::fs::write(&key, [0x5a; 32])?;
        cmd("chmod").arg("600").arg(&key).run()?;
        let port = free_ports(8)?;
        let a = Gateway::new("a", dir, port, Proxy::start(etcd.port())?, &s3, durability)?;
        let b = Gateway::new("b", dir, port + 4, Proxy::start(etcd.port())?, &s3, durability)?;
        let mut pair = Self { bin: lab.bin.clone(), etcd, s3, gateways: [a, b] };
        for at in 0..2 {
            pair.start_gateway(at)?;
        }
        let (holder, _) = pair.holder(TAKEOVER_LIMIT)?;
        // A store that the other gateway cannot use is refused.
        let elsewhere = format!("file://{}", dir.join("elsewhere").display());
        let (code, said) =
            pair.holdfast(holder, &["set", "create", "stray", "--store", &elsewhere, "--volume", "x=1MiB"])?;
        anyhow::ensure!(code != 0 && said.to_string().contains("pair.stores"), "a stray set: exit code {code}, {said}");
        let volume = format!("{VOLUME}={size}");
        let store = pair.s3.url();
        pair.must(holder, &["set", "create", SET, "--store", &store, "--volume", &volume])?;
        Ok(pair)
    }

    fn start_gateway(&mut self, at: usize) -> Result<()> {
        self.start_with(at, &[])
    }

    fn start_with(&mut self, at: usize, settings: &[&str]) -> Result<()> {
        let (bin, s3) = (self.bin.clone(), &self.s3);
        self.gateways[at].start(&bin, s3, settings)
    }

    /// Exit code and JSON of `holdfast ARGS` at one gateway.
    fn holdfast(&self, at: usize, args: &[&str]) -> Result<(i32, Value)> {
        let gateway = &self.gateways[at];
        let mut command = cmd(&self.bin).args(args).args(["--output", "json", "--api", &gateway.api]);
        for (key, value) in self.s3.env() {
            command = command.env(key, value);
        }
        let output = command.into_command().output().with_context(|| args.join(" "))?;
        let said = if output.stdout.is_empty() { &output.stderr } else { &output.stdout };
        let said = String::from_utf8_lossy(said);
        let value = serde_json::from_str(said.lines().last().unwrap_or_default()).unwrap_or(Value::Null);
        Ok((output.status.code().unwrap_or(-1), value))
    }

    fn must(&self, at: usize, args: &[&str]) -> Result<Value> {
        let (code, said) = self.holdfast(at, args)?;
        anyhow::ensure!(code == 0, "holdfast {}: exit code {code}, {said}", args.join(" "));
        Ok(said)
    }

    /// Output of `holdfast pair status`, with direct access to the etcd.
    fn status(&self) -> Result<Value> {
        let config = self.gateways[0].config.display().to_string();
        let endpoint = format!("http://127.0.0.1:{}", self.etcd.port());
        // Not through a proxy, which may be cut: with separate settings.
        let text = std::fs::read_to_string(&config)?;
        let own = Path::new(&config).with_extension("status.toml");
        let cut = format!("http://127.0.0.1:{}", self.gateways[0].proxy.port());
        std::fs::write(&own, text.replace(&cut, &endpoint))?;
        let own = own.display().to_string();
        self.must(0, &["pair", "status", "--config", &own, "--timeout", "1s"])
    }

    /// The gateway that has the seat and whose node answers, and the seat's revision.
    fn holder(&self, limit: Duration) -> Result<(usize, u64)> {
        self.holder_other_than(None, limit)
    }

    fn holder_other_than(&self, old: Option<u64>, limit: Duration) -> Result<(usize, u64)> {
        let mut last = Value::Null;
        let mut found = None;
        wait_until(limit, || {
            last = self.status().unwrap_or_else(|e| Value::String(format!("{e:#}")));
            let holder = &last["holder"];
            let at = self.gateways.iter().position(|g| holder["gateway"] == g.name);
            let revision = holder["revision"].as_u64();
            if holder["answers"] == true && revision.is_some() && revision != old {
                found = at.zip(revision);
            }
            found.is_some()
        });
        found.with_context(|| {
            format!("the other gateway does not have the pair's seat and answer within {limit:?}: {last}")
        })
    }

    /// Takes the set for `owner` and connects.
    fn open(&self, at: usize, owner: &str) -> Result<(Client, String)> {
        let said = self.must(at, &["lease", "acquire", SET, "--owner", owner, "--ttl", "5m", "--timeout", "30s"])?;
        let token = said["token"].as_str().context("no token")?.to_string();
        let client = Client::connect(&self.uri(at, &token, 0, 1)?, PATIENCE).map_err(|e| anyhow::anyhow!("{e}"))?;
        Ok((client, token))
    }

    fn uri(&self, at: usize, token: &str, slot: u8, generation: u32) -> Result<Uri> {
        let gateway = &self.gateways[at];
        Uri::parse(&format!("nbd://{}/{SET}/{VOLUME}?token={token}&conn={slot}&gen={generation}", gateway.nbd))
    }
}

/// Writes of each block: the flushed tag, and the later ones.
#[derive(Default)]
struct Ledger {
    next: u64,
    flushed: std::collections::BTreeMap<u64, u64>,
    written: std::collections::BTreeMap<u64, u64>,
}

/// Blocks that are written.
const BLOCKS: u64 = 256;

impl Ledger {
    fn write(&mut self, client: &mut Client) -> std::result::Result<(), NbdError> {
        self.next += 1;
        let at = (self.next * 7 % BLOCKS) * BLOCK as u64;
        client.write(at, &pattern(self.next, at, BLOCK))?;
        self.written.insert(at, self.next);
        Ok(())
    }

    fn flush(&mut self, client: &mut Client) -> std::result::Result<(), NbdError> {
        client.flush()?;
        self.flushed.extend(std::mem::take(&mut self.written));
        Ok(())
    }

    /// Checks that every flushed write is there, or a later one of the same block (PAIR-P4). Returns how many unflushed
    /// writes are lost, and continues from the content found.
    fn check(&mut self, client: &mut Client) -> Result<u64> {
        let mut gone = 0;
        for block in 0..BLOCKS {
            let at = block * BLOCK as u64;
            let found = tag_of(&client.read(at, BLOCK as u32).map_err(|e| anyhow::anyhow!("{e}"))?, at)?;
            let (flushed, written) = (self.flushed.get(&at).copied().unwrap_or(0), self.written.get(&at).copied());
            anyhow::ensure!(
                found >= flushed && found <= written.unwrap_or(flushed).max(flushed),
                "PAIR-P4: block {block}: found write {found}, flushed was {flushed}, answered after that {written:?}"
            );
            gone += u64::from(written.is_some_and(|written| found != written));
            if found > 0 {
                self.flushed.insert(at, found);
            }
        }
        self.written.clear();
        Ok(gone)
    }
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    let mut pair = Pair::start(lab, &lab.dir.join("flush"), "flush", SMALL)?;
    let mut ledger = Ledger::default();
    for round in 0..if lab.long { 5 } else { 1 } {
        note(format!("round {}", round + 1));
        rounds::costs(&pair, &mut ledger)?;
        rounds::killed(&mut pair, &mut ledger, lab)?;
        rounds::paused(&mut pair, &mut ledger)?;
        rounds::cut_off(&mut pair, &mut ledger)?;
        rounds::etcd_killed(&mut pair, &mut ledger)?;
        rounds::store_stopped(&mut pair, &mut ledger)?;
    }
    let snapshots = snapshots::outlive(&mut pair)?;
    rounds::stopped(&mut pair, &mut ledger)?;
    let idle = rounds::anothers(&mut pair, &mut ledger, &snapshots)?;
    snapshots::too_old(&mut pair, idle)?;
    drop(pair);
    let mut pair = Pair::start(lab, &lab.dir.join("write"), "write", SMALL)?;
    rounds::every_write(&mut pair)
}

/// Scenario `agent-pair`.
pub(super) fn run_agents(lab: &Lab) -> Result<()> {
    agents::run(lab)
}

fn words(e: NbdError) -> anyhow::Error {
    anyhow::anyhow!("{e}")
}

/// Waits until the connection closes: no request may be answered with success.
fn answers_nothing(client: &mut Client, what: &str) -> Result<String> {
    loop {
        match client.receive() {
            Ok(reply) => match reply.result {
                Ok(_) => bail!("{what}: request {} was answered with success", reply.cookie),
                Err(errno) => note(format!("{what}: request {} answered with errno {errno}", reply.cookie)),
            },
            Err(NbdError::Gone(e)) if e.kind() == std::io::ErrorKind::WouldBlock => {
                bail!("{what}: neither answered nor closed within {PATIENCE:?} (R8)")
            }
            Err(NbdError::Gone(e)) => return Ok(format!("closed ({e})")),
            Err(e) => return Err(words(e)),
        }
    }
}
