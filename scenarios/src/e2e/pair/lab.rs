//! The pair: two gateways, an etcd, a store, a proxy between each gateway and the etcd. Also the ledger of its writes.

use super::proxy::Proxy;
use crate::cluster::{SET, VOLUME, free_ports};
use crate::cmd::cmd;
use crate::e2e::blocks::BLOCK;
use crate::e2e::etcd::Etcd;
use crate::e2e::{Lab, TAKEOVER_LIMIT};
use crate::nbd::{Client, NbdError, Uri, pattern, tag_of};
use crate::process::{Proc, Signal, wait_until};
use crate::s3::S3;
use crate::say::note;
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Time to live of the seat.
pub(super) const TTL: Duration = Duration::from_secs(3);

/// How long it serves after the sending of its last keep-alive (PAIR-P1): three quarters.
pub(super) const SERVES: Duration = Duration::from_millis(2250);

pub(super) const PATIENCE: Duration = Duration::from_secs(20);

/// One gateway of the pair.
pub(super) struct Gateway {
    pub(super) name: &'static str,
    pub(super) config: PathBuf,
    pub(super) api: String,
    pub(super) nbd: String,
    pub(super) proxy: Proxy,
    pub(super) log: PathBuf,
    pub(super) process: Option<Proc>,
}

/// The pair with its etcd and its store.
pub(super) struct Pair {
    pub(super) bin: PathBuf,
    pub(super) etcd: Etcd,
    pub(super) s3: S3,
    pub(super) gateways: [Gateway; 2],
}

impl Gateway {
    pub(super) fn new(
        name: &'static str,
        dir: &Path,
        port: u16,
        proxy: Proxy,
        s3: &S3,
        durability: &str,
    ) -> Result<Self> {
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

    pub(super) fn start(&mut self, bin: &Path, s3: &S3, settings: &[&str]) -> Result<()> {
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

    pub(super) fn process(&mut self) -> Result<&mut Proc> {
        let name = self.name;
        self.process.as_mut().with_context(|| format!("gateway {name} does not run"))
    }

    pub(super) fn kill(&mut self) -> Result<Instant> {
        let moment = Instant::now();
        self.process()?.stop(Signal::KILL, Duration::from_secs(10))?;
        self.process = None;
        Ok(moment)
    }
}

impl Pair {
    /// Two gateways, one of which serves a new set with a volume of that size.
    pub(super) fn start(lab: &Lab, dir: &Path, durability: &str, size: &str) -> Result<Self> {
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

    pub(super) fn start_gateway(&mut self, at: usize) -> Result<()> {
        self.start_with(at, &[])
    }

    pub(super) fn start_with(&mut self, at: usize, settings: &[&str]) -> Result<()> {
        let (bin, s3) = (self.bin.clone(), &self.s3);
        self.gateways[at].start(&bin, s3, settings)
    }

    /// Exit code and JSON of `holdfast ARGS` at one gateway.
    pub(super) fn holdfast(&self, at: usize, args: &[&str]) -> Result<(i32, Value)> {
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

    pub(super) fn must(&self, at: usize, args: &[&str]) -> Result<Value> {
        let (code, said) = self.holdfast(at, args)?;
        anyhow::ensure!(code == 0, "holdfast {}: exit code {code}, {said}", args.join(" "));
        Ok(said)
    }

    /// Output of `holdfast pair status`, with direct access to the etcd.
    pub(super) fn status(&self) -> Result<Value> {
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
    pub(super) fn holder(&self, limit: Duration) -> Result<(usize, u64)> {
        self.holder_other_than(None, limit)
    }

    pub(super) fn holder_other_than(&self, old: Option<u64>, limit: Duration) -> Result<(usize, u64)> {
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
    pub(super) fn open(&self, at: usize, owner: &str) -> Result<(Client, String)> {
        let said = self.must(at, &["lease", "acquire", SET, "--owner", owner, "--ttl", "5m", "--timeout", "30s"])?;
        let token = said["token"].as_str().context("no token")?.to_string();
        let client = Client::connect(&self.uri(at, &token, 0, 1)?, PATIENCE).map_err(|e| anyhow::anyhow!("{e}"))?;
        Ok((client, token))
    }

    pub(super) fn uri(&self, at: usize, token: &str, slot: u8, incarnation: u32) -> Result<Uri> {
        let gateway = &self.gateways[at];
        Uri::parse(&format!("nbd://{}/{SET}/{VOLUME}?token={token}&conn={slot}&gen={incarnation}", gateway.nbd))
    }
}

/// Writes of each block: the flushed tag, and the later ones.
#[derive(Default)]
pub(super) struct Ledger {
    pub(super) next: u64,
    pub(super) flushed: std::collections::BTreeMap<u64, u64>,
    pub(super) written: std::collections::BTreeMap<u64, u64>,
}

/// Blocks that are written.
pub(super) const BLOCKS: u64 = 256;

impl Ledger {
    pub(super) fn write(&mut self, client: &mut Client) -> std::result::Result<(), NbdError> {
        self.next += 1;
        let at = (self.next * 7 % BLOCKS) * BLOCK as u64;
        client.write(at, &pattern(self.next, at, BLOCK))?;
        self.written.insert(at, self.next);
        Ok(())
    }

    pub(super) fn flush(&mut self, client: &mut Client) -> std::result::Result<(), NbdError> {
        client.flush()?;
        self.flushed.extend(std::mem::take(&mut self.written));
        Ok(())
    }

    /// Checks that every flushed write is there, or a later one of the same block (PAIR-P4). Returns how many unflushed
    /// writes are lost, and continues from the content found.
    pub(super) fn check(&mut self, client: &mut Client) -> Result<u64> {
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

pub(super) fn words(e: NbdError) -> anyhow::Error {
    anyhow::anyhow!("{e}")
}

/// Waits until the connection closes: no request may be answered with success.
pub(super) fn answers_nothing(client: &mut Client, what: &str) -> Result<String> {
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
