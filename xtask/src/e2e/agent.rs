//! PostgreSQL that moves between two hosts by itself.
//!
//! A host is a pid and mount namespace: killed, it is gone with every process and mount at once, as a machine is. Each runs `holdfast agent`
//! over the same set (ext4 on the attached device, PostgreSQL by pg_ctl) and has an address of its own on loopback.
//!
//! 1. Host db1 is killed while four writers commit: db2 takes over by itself, no acknowledged commit is lost (R1), none is invented.
//! 2. db1 comes back and stands by. A planned switchover brings PostgreSQL back to it under the same writers.
//! 3. db1's agent is stopped (SIGSTOP): the watchdog ends PostgreSQL there before the lease is another's; db2 takes over; continued, db1 stands by.
//! 4. Where HAProxy is installed: a client that only knows its address reaches the primary after each of these.

use super::Lab;
use crate::cluster::{Cluster, SET, VOLUME};
use crate::cmd::{cmd, on_path, tail_of};
use crate::ledger::{Ledger, Verdict};
use crate::pg::{BIN, Postgres};
use crate::process::{Proc, Signal, wait_until};
use crate::say::note;
use crate::setup;
use anyhow::{Context, Result, bail};
use std::io::{Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Until a host is primary. The promise is a third of that on a quiet machine.
const TAKEOVER: Duration = Duration::from_secs(40);

/// Commits that every round waits for, at least.
const COMMITS: u64 = 300;

/// Writers at once.
const WRITERS: usize = 4;

/// PostgreSQL's settings beside those of the agent's command line.
const SETTINGS: &str = "shared_buffers = 64MB\nmax_connections = 30\n";

/// One PostgreSQL host.
struct Host {
    name: &'static str,
    address: &'static str,
    dir: PathBuf,
    bin: PathBuf,
    pg: Rc<Postgres>,
    process: Option<Proc>,
}

impl Host {
    fn new(
        lab: &Lab,
        cluster: &Cluster,
        name: &'static str,
        address: &'static str,
        peer: (&str, &str),
    ) -> Result<Self> {
        let dir = lab.dir.join(name);
        std::fs::create_dir_all(&dir)?;
        let (mount, sockets) = (dir.join("mnt"), dir.join("sockets"));
        let pg = Rc::new(Postgres::new(&mount.join("data"), &sockets, &dir.join("unused.log"))?);
        let gateways: Vec<String> = cluster.gateways.iter().map(|g| format!("{:?}", g.api)).collect();
        let settings = format!(
            "name = {name:?}\nset = {SET:?}\ngateways = [{}]\ndir = {:?}\nrun_dir = {:?}\n\
             [attach]\ndevice = \"nbdfuse\"\n[pool]\nkind = \"ext4\"\nmount = {mount:?}\n\
             [database]\ndata = {:?}\nbin_dir = {BIN:?}\nhost = {sockets:?}\n\
             options = \"-c listen_addresses={address} -c unix_socket_directories={}\"\n\
             [watchdog]\ntimeout_ms = 3000\n[http]\nlisten = \"{address}:8008\"\n[peers]\n{} = \"{}:8008\"\n",
            gateways.join(", "),
            dir.join("lib"),
            dir.join("run"),
            mount.join("data"),
            sockets.display(),
            peer.0,
            peer.1,
        );
        std::fs::write(dir.join("agent.toml"), settings)?;
        Ok(Self { name, address, dir, bin: lab.bin.clone(), pg, process: None })
    }

    fn log(&self) -> PathBuf {
        self.dir.join("agent.log")
    }

    /// Switches it on.
    fn boot(&mut self) -> Result<()> {
        // Its first process stays when the agent ends: what a host's init is.
        let script = "\"$0\" agent run --config \"$1\" & while :; do wait; sleep 1; done";
        let mut command =
            cmd("unshare").args(["--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "sh", "-c", script]);
        command = command.arg(&self.bin).arg(self.dir.join("agent.toml"));
        self.process = Some(Proc::spawn(self.name, command.into_command(), &self.log())?);
        Ok(())
    }

    /// Pulls its plug.
    fn kill(&mut self) -> Result<Instant> {
        let mut process = self.process.take().context("it is off already")?;
        let moment = Instant::now();
        process.signal(Signal::KILL);
        process.wait(Duration::from_secs(20))?;
        self.forget_device();
        Ok(moment)
    }

    /// A host that loses its power has no loop devices left; ours shares its kernel with us.
    fn forget_device(&self) {
        let status = std::fs::read(self.dir.join("run/attach/status.json")).unwrap_or_default();
        let status: serde_json::Value = serde_json::from_slice(&status).unwrap_or_default();
        for volume in status["volumes"].as_array().map_or(&[][..], Vec::as_slice) {
            let Some(name) = volume["device"].as_str().and_then(|device| device.strip_prefix("/dev/loop")) else {
                continue;
            };
            let backing = format!("/sys/block/loop{name}/loop/backing_file");
            let backing = std::fs::read_to_string(backing).unwrap_or_default();
            // With the host's mounts the path has lost all but its last part. The number may be somebody else's by now: their path has not.
            if Path::new(backing.trim()).starts_with(&self.dir) || backing.trim() == "/device" {
                cmd("losetup").arg("--detach").arg(format!("/dev/loop{name}")).succeeds();
            }
        }
    }

    /// The code that a health check gets; 0 where nobody answers in time.
    fn asks(&self, path: &str) -> u16 {
        let ask = || -> Result<u16> {
            let address = format!("{}:8008", self.address).parse()?;
            let mut stream = TcpStream::connect_timeout(&address, Duration::from_millis(500))?;
            stream.set_read_timeout(Some(Duration::from_millis(500)))?;
            write!(stream, "OPTIONS {path} HTTP/1.0\r\n\r\n")?;
            let mut head = [0; 12];
            stream.read_exact(&mut head)?;
            Ok(std::str::from_utf8(&head[9..])?.parse()?)
        };
        ask().unwrap_or(0)
    }

    fn is_primary(&self) -> bool {
        self.asks("/primary") == 200
    }

    /// Waits until it is primary; how long after `since`.
    fn becomes_primary(&self, since: Instant) -> Result<Duration> {
        if wait_until(TAKEOVER, || self.is_primary()) {
            return Ok(since.elapsed());
        }
        bail!("{} is not primary after {TAKEOVER:?}: {}", self.name, tail_of(&self.log(), 6))
    }

    fn stands_by(&self) -> Result<()> {
        let ready = wait_until(TAKEOVER, || self.asks("/readiness") == 200 && !self.is_primary());
        anyhow::ensure!(ready, "{} does not stand by after {TAKEOVER:?}: {}", self.name, tail_of(&self.log(), 6));
        Ok(())
    }

    /// `holdfast ARGS --agent` this host.
    fn holdfast(&self, args: &[&str]) -> Result<serde_json::Value> {
        let agent = format!("{}:8008", self.address);
        let said = cmd(&self.bin).args(args).args(["--output", "json", "--agent", &agent]).out()?;
        serde_json::from_str(&said).with_context(|| format!("holdfast {}: no JSON: {said}", args.join(" ")))
    }

    /// Number of its agent's process, as seen from here.
    fn agent_pid(&self) -> Result<u32> {
        let config = self.dir.join("agent.toml");
        let config = config.to_str().context("path")?;
        for entry in std::fs::read_dir("/proc")?.flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse::<u32>().ok()) else { continue };
            let args = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let args: Vec<&[u8]> = args.split(|byte| *byte == 0).collect();
            if args.len() > 4 && args[1] == b"agent" && args[2] == b"run" && args[4] == config.as_bytes() {
                return Ok(pid);
            }
        }
        bail!("{}: found no agent", self.name)
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.process.is_some() {
            let _ = self.kill();
        }
    }
}

pub(super) fn run(lab: &Lab) -> Result<()> {
    setup::must_be_able_to_mount()?;
    let cluster = lab.cluster("1GiB")?;
    let (one, two) = (("db1", "127.0.0.2"), ("db2", "127.0.0.3"));
    let mut db1 = Host::new(lab, &cluster, one.0, one.1, two)?;
    let mut db2 = Host::new(lab, &cluster, two.0, two.1, one)?;
    fill(lab, &cluster, &db1.pg)?;

    let begun = Instant::now();
    db1.boot()?;
    note(format!("db1 is primary {} ms after its agent started", db1.becomes_primary(begun)?.as_millis()));
    db2.boot()?;
    db2.stands_by()?;
    let proxy = Proxy::start(lab, [&db1, &db2])?;
    proxy.reaches("db1", &db1)?;
    let mut ledger = Ledger::create(&db1.pg, &lab.dir.join("ledger"), WRITERS)?;

    let mut killed = Instant::now();
    under_load(&mut ledger, &db1.pg.clone(), || {
        killed = db1.kill()?;
        Ok(())
    })?;
    note(format!("host db1 killed: db2 is primary after {} ms", db2.becomes_primary(killed)?.as_millis()));
    whole(&ledger, &db2)?;
    proxy.reaches("db2", &db2)?;
    told(&db2, "failover")?;

    db1.boot()?;
    db1.stands_by()?;
    let mut took = 0;
    under_load(&mut ledger, &db2.pg.clone(), || {
        let moved = db2.holdfast(&["agent", "switchover", "--to", "db1", "--yes"])?;
        took = moved["took_ms"].as_u64().context("took_ms")?;
        Ok(())
    })?;
    note(format!("switchover: db1 is primary after {took} ms"));
    db1.becomes_primary(Instant::now())?;
    whole(&ledger, &db1)?;
    proxy.reaches("db1", &db1)?;
    told(&db1, "switchover")?;
    db2.stands_by()?;

    let agent = db1.agent_pid()?;
    let mut stopped = Instant::now();
    under_load(&mut ledger, &db1.pg.clone(), || {
        stopped = Instant::now();
        crate::process::signal(agent, Signal::STOP);
        // Ended by the watchdog: nobody else is there to do it.
        let gone = wait_until(TAKEOVER, || db1.pg.client().is_err());
        anyhow::ensure!(gone, "PostgreSQL of an agent that hangs is still there after {TAKEOVER:?}");
        Ok(())
    })?;
    note(format!("agent of db1 stopped: PostgreSQL ended after {} ms", stopped.elapsed().as_millis()));
    note(format!("db2 is primary after {} ms", db2.becomes_primary(stopped)?.as_millis()));
    crate::process::signal(agent, Signal::CONT);
    db1.stands_by()?;
    whole(&ledger, &db2)?;
    proxy.reaches("db2", &db2)?;
    db2.pg.amcheck()?;
    drop(proxy);
    db1.kill()?;
    db2.kill()?;
    cluster.stop()?;
    Ok(())
}

/// A file system with a PostgreSQL in it, which nobody owns afterwards.
fn fill(lab: &Lab, cluster: &Cluster, pg: &Postgres) -> Result<()> {
    let (dir, log) = (lab.dir.join("first"), lab.dir.join("first.log"));
    let doors: Vec<&str> = cluster.gateways.iter().map(|g| g.api.as_str()).collect();
    let mut command =
        cmd(&lab.bin).args(["attach", SET, "--owner", "first", "--device", "nbdfuse", "--api", &doors.join(",")]);
    command = command.arg("--dir").arg(&dir);
    let mut attach = Proc::spawn("holdfast attach", command.into_command(), &log)?;
    let status =
        || -> Option<serde_json::Value> { serde_json::from_slice(&std::fs::read(dir.join("status.json")).ok()?).ok() };
    let mut device = None;
    attach.ready_when("ready", Duration::from_secs(60), || {
        let shown = status().filter(|status| status["ready"] == true);
        device = shown.and_then(|status| {
            let volumes = status["volumes"].as_array()?.clone();
            let volume = volumes.into_iter().find(|volume| volume["name"] == VOLUME)?;
            Some(volume["device"].as_str()?.to_owned())
        });
        device.is_some()
    })?;
    let device = device.context("no device")?;
    cmd("mkfs.ext4").args(["-q", &device]).run()?;
    // Where the first host will mount it: initdb writes no paths, but the settings name its sockets.
    let mount = lab.dir.join("db1/mnt");
    std::fs::create_dir_all(&mount)?;
    let guard = crate::undo::Guard::new(crate::undo::Undo::Umount(mount.clone()))?;
    cmd("mount").arg(&device).arg(&mount).run()?;
    let made = pg.initdb(SETTINGS);
    drop(guard);
    made?;
    attach.stop(Signal::TERM, Duration::from_secs(30))?;
    Ok(())
}

/// Lets writers commit on `host`, does `what` under them, and waits until they have noticed.
fn under_load(ledger: &mut Ledger, pg: &Postgres, what: impl FnOnce() -> Result<()>) -> Result<()> {
    let writers = ledger.start(pg)?;
    let busy = wait_until(Duration::from_secs(60), || writers.acknowledged() >= COMMITS || !writers.all_writing());
    anyhow::ensure!(busy && writers.all_writing(), "only {} commits before it began", writers.acknowledged());
    let done = what();
    let count = writers.acknowledged();
    ledger.join(writers)?;
    done?;
    note(format!("{count} commits acknowledged in this round"));
    Ok(())
}

fn whole(ledger: &Ledger, host: &Host) -> Result<()> {
    let verdict = ledger.check(&host.pg)?;
    let Verdict { acknowledged, lost, in_doubt_found, invented } = verdict;
    anyhow::ensure!(
        lost == 0 && invented == 0,
        "R1: {lost} of {acknowledged} acknowledged commits lost, {invented} invented"
    );
    note(format!("{acknowledged} acknowledged commits, all there; {in_doubt_found} in doubt, found"));
    Ok(())
}

/// The last takeover in a host's history is of this kind and has its phases.
fn told(host: &Host, event: &str) -> Result<()> {
    let lines = host.holdfast(&["history", "--last", "1"])?;
    let line = &lines[0];
    let phases = &line["phases"];
    anyhow::ensure!(
        line["event"] == event && phases["first_write_ms"].is_u64(),
        "history: found {line}, expected {event}"
    );
    note(format!("history: {event}, phases {phases}"));
    Ok(())
}

/// HAProxy with the sample configuration, where it is installed.
struct Proxy(Option<(Proc, u16)>);

impl Proxy {
    fn start(lab: &Lab, hosts: [&Host; 2]) -> Result<Self> {
        if !on_path("haproxy") && !Path::new("/usr/sbin/haproxy").is_file() {
            note("skipped: haproxy is not installed");
            return Ok(Self(None));
        }
        let port = crate::cluster::free_ports(1)?;
        let sample = std::fs::read_to_string(crate::binary::root().join("deploy/haproxy/haproxy.cfg"))?;
        let mut config = sample.replace("*:5000", &format!("127.0.0.1:{port}"));
        for (host, theirs) in hosts.iter().zip(["10.0.0.1", "10.0.0.2"]) {
            anyhow::ensure!(config.contains(theirs), "the sample names no {theirs}");
            config = config.replace(theirs, host.address);
        }
        let path = lab.dir.join("haproxy.cfg");
        std::fs::write(&path, config)?;
        let program = if on_path("haproxy") { "haproxy" } else { "/usr/sbin/haproxy" };
        let command = cmd(program).args(["-db", "-f"]).arg(&path).into_command();
        Ok(Self(Some((Proc::spawn("haproxy", command, &lab.dir.join("haproxy.log"))?, port))))
    }

    /// A client that knows only the proxy gets to this host.
    fn reaches(&self, name: &str, host: &Host) -> Result<()> {
        let Some((_, port)) = &self.0 else { return Ok(()) };
        let psql = || {
            let command = cmd(Path::new(BIN).join("psql")).env("PGCONNECT_TIMEOUT", "2");
            let command =
                command.args(["-X", "-A", "-t", "-h", "127.0.0.1", "-p", &port.to_string(), "-U", "postgres"]);
            command.args(["-c", "select host(inet_server_addr())"]).out()
        };
        let begun = Instant::now();
        let mut last = String::new();
        let there = wait_until(Duration::from_secs(20), || {
            last = psql().map_or_else(|error| format!("{error:#}"), |said| said.trim().to_owned());
            last == host.address
        });
        anyhow::ensure!(there, "through HAProxy: found {last}, expected {name} at {}", host.address);
        note(format!("through HAProxy: {name} after {} ms", begun.elapsed().as_millis()));
        Ok(())
    }
}
