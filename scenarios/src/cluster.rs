//! A cluster on this machine, started by `holdfast dev`. Its gateways can be killed, paused and restarted one by one.

mod client;
mod members;
mod secured;

use crate::cmd::{cmd, tail_of};
use crate::ends;
use crate::nbd::{Client, NbdError, Uri};
use crate::process::{self, Launch, POLL, Proc, Signal, wait_until};
use crate::undo::{Guard, Undo};
use anyhow::{Context, Result, bail};
use secured::Secured;
use serde::Deserialize;
use std::io::BufRead;
use std::net::{TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Options of a cluster.
#[derive(Clone, Debug)]
pub struct Options {
    /// The `holdfast` program.
    pub bin: PathBuf,
    /// Folder of the cluster; the log is beside it.
    pub dir: PathBuf,
    /// Number of gateways.
    pub gateways: usize,
    /// Store URL; `None` is the embedded store.
    pub store: Option<String>,
    /// Size of `vol1`, such as `1GiB`.
    pub size: String,
    /// Settings of every gateway, `KEY=VALUE` as in its configuration file.
    pub settings: Vec<String>,
    /// Environment variables, such as keys of the store.
    pub env: Vec<(String, String)>,
}

/// The one line that `holdfast dev --output json` prints.
#[derive(Debug, Deserialize)]
struct Announcement {
    nbd: Vec<String>,
    api: Vec<String>,
    pids: Vec<u32>,
}

/// One gateway process.
#[derive(Debug)]
pub struct Gateway {
    /// The volume's export at this gateway.
    pub nbd: Uri,
    /// Address of its admin API as announced.
    pub api: String,
    /// Its process id.
    pub pid: u32,
    launch: Launch,
    /// The process, if we restarted it; before that it is a child of `holdfast dev`.
    own: Option<Proc>,
    guard: Option<Guard>,
}

/// A running cluster.
#[derive(Debug)]
pub struct Cluster {
    /// How it was started.
    pub options: Options,
    /// Its gateways, in the order of their names.
    pub gateways: Vec<Gateway>,
    port: u16,
    dev: Proc,
    /// Of a cluster with everything on that keeps others out.
    secured: Option<Secured>,
}

/// How long `holdfast dev` may take until all its gateways run.
const ANNOUNCED_WITHIN: Duration = Duration::from_secs(60);

/// Pause between two checks whether success is still possible.
const HOPE_LOOK: Duration = Duration::from_millis(100);

/// Why a start cannot succeed any more, if it cannot.
type Hopeless<'a> = &'a dyn Fn() -> Option<String>;

/// Timeout of one attempt to reach a gateway. A running gateway answers much faster.
pub const PATIENCE: Duration = Duration::from_secs(2);

/// The set that every chore uses.
pub const SET: &str = "demo";
/// Its volume.
pub const VOLUME: &str = "vol1";

impl Cluster {
    /// Starts it and waits until a gateway serves the volume. Fails when `holdfast dev` ends, prints no announcement
    /// within a minute, or no gateway serves within another minute.
    pub fn start(options: Options) -> Result<Self> {
        let port = free_ports(options.gateways)?;
        Self::start_at(options, port, &|| None)
    }

    fn start_at(options: Options, port: u16, hopeless: Hopeless<'_>) -> Result<Self> {
        Self::start_with(options, port, &[], hopeless)
    }

    /// `more`: further arguments of `holdfast dev`.
    fn start_with(options: Options, port: u16, more: &[&str], hopeless: Hopeless<'_>) -> Result<Self> {
        std::fs::create_dir_all(&options.dir)?;
        let log = options.dir.with_extension("log");
        let mut command = cmd(&options.bin).args(["dev", "--output", "json", "--dir"]).arg(&options.dir);
        command = command.args(["--gateways", &options.gateways.to_string(), "--nbd-port", &port.to_string()]);
        command = command.args(["--set", SET, "--volume", &format!("{VOLUME}={}", options.size)]).args(more);
        if let Some(store) = &options.store {
            command = command.args(["--store", store]);
        }
        for setting in &options.settings {
            command = command.args(["--gateway-set", setting]);
        }
        for (key, value) in &options.env {
            command = command.env(key, value);
        }
        let (mut dev, out) = Proc::spawn_piped("holdfast dev", command.into_command(), &log)?;
        let (tell, told) = mpsc::channel();
        std::thread::spawn(move || {
            let mut lines = std::io::BufReader::new(out).lines();
            let first = lines.next();
            let _ = tell.send(first);
            // Reads and drops all later output, so that a full pipe cannot block the process.
            lines.for_each(drop);
        });
        let begun = Instant::now();
        let line = loop {
            match told.recv_timeout(HOPE_LOOK) {
                Ok(Some(line)) => break line?,
                Ok(None) => {
                    let _ = dev.wait(Duration::from_secs(2));
                    bail!("holdfast dev ended without announcing itself: {}", tail_of(&log, 8));
                }
                Err(mpsc::RecvTimeoutError::Timeout) if begun.elapsed() < ANNOUNCED_WITHIN => {
                    if let Some(why) = hopeless() {
                        bail!("holdfast dev cannot start: {why}");
                    }
                }
                Err(_) => bail!("holdfast dev announced nothing for {ANNOUNCED_WITHIN:?}: {}", tail_of(&log, 8)),
            }
        };
        Self::announced(options, port, dev, &line)
    }

    /// The cluster of a `holdfast dev` that has printed this line.
    fn announced(mut options: Options, port: u16, dev: Proc, line: &str) -> Result<Self> {
        let said: Announcement = serde_json::from_str(line).with_context(|| format!("holdfast dev said: {line}"))?;
        let n = options.gateways;
        anyhow::ensure!(
            said.nbd.len() == n && said.api.len() == n && said.pids.len() == n,
            "holdfast dev announced {} exports, {} APIs, {} pids; expected {n} of each",
            said.nbd.len(),
            said.api.len(),
            said.pids.len()
        );
        let secured = said.nbd.iter().any(|at| at.starts_with(secured::SCHEME)).then(|| Secured::of(&options.dir));
        options.env.extend(secured.iter().flat_map(Secured::env));
        let mut gateways = Vec::new();
        for ((nbd, api), pid) in said.nbd.iter().zip(said.api).zip(said.pids) {
            let nbd = Uri::parse(&nbd.replacen(secured::SCHEME, "nbd://", 1))?;
            let (launch, guard) = (Launch::of(pid)?, guard_of(pid)?);
            gateways.push(Gateway { nbd, api, pid, launch, own: None, guard });
        }
        let mut cluster = Self { options, gateways, port, dev, secured };
        cluster.serving(Duration::from_secs(60))?;
        Ok(cluster)
    }

    /// Admin addresses of all gateways.
    pub fn apis(&self) -> Vec<String> {
        self.gateways.iter().map(|gateway| gateway.api.clone()).collect()
    }

    /// Kills all gateways at once with SIGKILL, and `holdfast dev` first, so that it cannot react. Fails when a process
    /// survives that.
    pub fn kill_all(mut self) -> Result<Stopped> {
        self.dev.signal(Signal::KILL);
        for gateway in &self.gateways {
            process::signal(gateway.pid, Signal::KILL);
        }
        self.dev.wait(Duration::from_secs(10))?;
        for gateway in &mut self.gateways {
            gateway.await_end()?;
        }
        Ok(Stopped { options: self.options.clone(), port: self.port })
    }

    /// Stops the cluster with SIGTERM. Fails when a process does not end.
    pub fn stop(mut self) -> Result<Stopped> {
        for gateway in &mut self.gateways {
            if let Some(own) = &mut gateway.own {
                own.stop(Signal::TERM, Duration::from_secs(20))?;
            }
        }
        self.dev.stop(Signal::TERM, Duration::from_secs(30))?;
        for gateway in &mut self.gateways {
            if !wait_until(Duration::from_secs(10), || !process::is_alive(gateway.pid)) {
                process::signal(gateway.pid, Signal::KILL);
            }
            gateway.await_end()?;
        }
        Ok(Stopped { options: self.options.clone(), port: self.port })
    }

    /// The gateway that serves the volume to plain NBD clients now. Fails when none does within `limit`; the error says
    /// what each answered last.
    pub fn serving(&mut self, limit: Duration) -> Result<usize> {
        let all: Vec<usize> = (0..self.gateways.len()).collect();
        self.first_to_serve(&all, Instant::now(), limit).map(|(index, _)| index)
    }

    /// Waits until the plain lease of our own query has ended, so that the next client can take a new one. Gives up
    /// after a while: the next client then sees whether the set is free.
    fn settle(&self) {
        let free = || self.holdfast(&["lease", "show", SET]).is_ok_and(|said| said["lease"].is_null());
        wait_until(Duration::from_secs(2), free);
    }

    /// Asks all of `among` in parallel, again and again, until one answers a read. Returns which one, and the time
    /// since `since`. Fails when none does within `limit`; the error says what each answered last.
    pub fn first_to_serve(&mut self, among: &[usize], since: Instant, limit: Duration) -> Result<(usize, Duration)> {
        if self.secured.is_some() {
            return self.first_to_grant(among, since, limit);
        }
        let found = AtomicBool::new(false);
        let (tell, told) = mpsc::channel();
        let answers = std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for &index in among {
                let (uri, tell, found) = (&self.gateways[index].nbd, tell.clone(), &found);
                threads.push(scope.spawn(move || {
                    let mut last = String::from("never asked");
                    while !found.load(Ordering::Relaxed) && since.elapsed() < limit {
                        match probe(uri) {
                            Ok(()) => {
                                // Only the first answer in the channel counts.
                                let _ = tell.send((index, since.elapsed()));
                                found.store(true, Ordering::Relaxed);
                                return String::from("serves");
                            }
                            Err(e) => last = e.to_string(),
                        }
                        std::thread::sleep(POLL);
                    }
                    last
                }));
            }
            threads.into_iter().map(|t| t.join().unwrap_or_default()).collect::<Vec<_>>()
        });
        match told.try_recv() {
            Ok(found) => {
                self.settle();
                Ok(found)
            }
            Err(_) => {
                self.dev.must_run()?;
                let said: Vec<String> = among.iter().zip(answers).map(|(i, a)| format!("g{}: {a}", i + 1)).collect();
                bail!("no gateway serves {SET}/{VOLUME} after {limit:?}: {}", said.join("; "))
            }
        }
    }

    /// Connects to an export by way of whichever gateway answers; the client waits for each answer for `limit`, too.
    /// Fails when none does within `limit`.
    pub fn open(&self, export: &str, limit: Duration) -> Result<Client> {
        let (mut found, mut last) = (None, String::new());
        wait_until(limit, || {
            let doors = self.exports();
            found = doors.iter().find_map(|door| {
                Client::connect(&door.with_export(export), limit).map_err(|error| last = error.to_string()).ok()
            });
            found.is_some()
        });
        found.with_context(|| format!("{export}: {last}"))
    }

    /// Connects to the volume at whichever gateway serves it. Fails when none does within `limit`.
    pub fn connect(&mut self, limit: Duration) -> Result<(usize, Client)> {
        let begun = Instant::now();
        loop {
            let index = self.serving(limit.saturating_sub(begun.elapsed()))?;
            match Client::connect(&self.gateways[index].nbd, Duration::from_secs(30)) {
                Ok(client) => return Ok((index, client)),
                // The set may have moved in between.
                Err(e) if begun.elapsed() > limit => bail!("{}: {e}", self.name(index)),
                Err(_) => std::thread::sleep(POLL),
            }
        }
    }

    /// Sends SIGKILL. Returns the time just before it. Fails when the process survives that.
    pub fn kill(&mut self, index: usize) -> Result<Instant> {
        let moment = Instant::now();
        process::signal(self.gateways[index].pid, Signal::KILL);
        self.gateways[index].await_end()?;
        Ok(moment)
    }

    /// Sends SIGSTOP and waits until all its threads have stopped.
    pub fn pause(&self, index: usize) -> Result<()> {
        let pid = self.gateways[index].pid;
        process::signal(pid, Signal::STOP);
        anyhow::ensure!(
            wait_until(Duration::from_secs(10), || process::is_stopped(pid)),
            "process {pid} does not stop"
        );
        Ok(())
    }

    /// Sends SIGCONT.
    pub fn proceed(&self, index: usize) {
        process::signal(self.gateways[index].pid, Signal::CONT);
    }

    /// Runs `holdfast ARGS --output json` against this cluster. Fails when it ends with another status than 0, or
    /// prints no JSON.
    pub fn holdfast(&self, args: &[&str]) -> Result<serde_json::Value> {
        let said = self.said(args)?;
        serde_json::from_str(&said).with_context(|| format!("holdfast {}: no JSON: {said}", args.join(" ")))
    }

    /// The same for a command that prints one JSON value per line.
    pub fn holdfast_lines(&self, args: &[&str]) -> Result<Vec<serde_json::Value>> {
        let said = self.said(args)?;
        let value = |line: &str| -> Result<serde_json::Value> {
            serde_json::from_str(line).with_context(|| format!("holdfast {}: no JSON: {line}", args.join(" ")))
        };
        said.lines().map(value).collect()
    }

    fn said(&self, args: &[&str]) -> Result<String> {
        let doors: Vec<&str> = self.gateways.iter().map(|g| g.api.as_str()).collect();
        let mut command = cmd(&self.options.bin).args(args).args(["--output", "json", "--api", &doors.join(",")]);
        for (key, value) in &self.options.env {
            command = command.env(key, value);
        }
        command.out()
    }

    /// The current member id of a gateway, from `cluster status`. Fails when the status is not available or does not
    /// show it.
    pub fn member(&self, index: usize) -> Result<u64> {
        member_called(&self.holdfast(&["cluster", "status"])?, &self.name(index))
    }

    /// Waits until every member is up and has applied nearly all entries of its leaders. Fails when `limit` passes
    /// first; the error has the last status.
    pub fn caught_up(&self, limit: Duration) -> Result<()> {
        let begun = Instant::now();
        loop {
            let behind = match self.holdfast(&["cluster", "status"]) {
                Ok(status) => who_is_behind(&status),
                Err(e) => vec![format!("{e:#}")],
            };
            if behind.is_empty() {
                return Ok(());
            }
            anyhow::ensure!(begun.elapsed() < limit, "not caught up after {limit:?}: {}", behind.join("; "));
            std::thread::sleep(Duration::from_millis(100));
        }
    }

    /// Restarts a killed gateway with its old command line and environment. (`holdfast dev` does not restart it.) Fails
    /// when it does not come up within a minute.
    pub fn restart(&mut self, index: usize) -> Result<()> {
        let log = self.options.dir.with_extension(format!("g{}.log", index + 1));
        let gateway = &mut self.gateways[index];
        let own = Proc::spawn("holdfast gateway", gateway.launch.command(), &log)?;
        gateway.pid = own.pid();
        gateway.own = Some(own);
        let addr = gateway.nbd.addr.clone();
        let up = wait_until(Duration::from_secs(60), || TcpStream::connect(&addr).is_ok());
        anyhow::ensure!(up, "g{} does not listen on {addr} a minute after its start: {}", index + 1, tail_of(&log, 8));
        Ok(())
    }

    /// The volume's export at each gateway.
    pub fn exports(&self) -> Vec<Uri> {
        self.gateways.iter().map(|g| g.nbd.clone()).collect()
    }

    /// The name of a gateway: `g1` is the first.
    pub fn name(&self, index: usize) -> String {
        format!("g{}", index + 1)
    }

    /// All gateways except one.
    pub fn others(&self, index: usize) -> Vec<usize> {
        (0..self.gateways.len()).filter(|i| *i != index).collect()
    }
}

impl Gateway {
    fn await_end(&mut self) -> Result<()> {
        ends::expect(self.pid);
        // A stop hands over what the gateway leads, which has its time.
        let limit = Duration::from_secs(20);
        if let Some(mut own) = self.own.take() {
            own.wait(limit)?;
        }
        let ended = wait_until(limit, || !process::is_alive(self.pid));
        anyhow::ensure!(ended, "process {} is still running", self.pid);
        if let Some(guard) = self.guard.take() {
            guard.forget();
        }
        Ok(())
    }
}

/// A stopped cluster; its folder still exists.
#[derive(Debug)]
pub struct Stopped {
    /// The options with which it was started and will be started again.
    pub options: Options,
    port: u16,
}

impl Stopped {
    /// Starts it again on the same folder and port.
    pub fn start(self) -> Result<Cluster> {
        self.start_unless(&|| None)
    }

    /// The same, but gives up as soon as `hopeless` returns a reason.
    pub fn start_unless(self, hopeless: &dyn Fn() -> Option<String>) -> Result<Cluster> {
        Cluster::start_at(self.options, self.port, hopeless)
    }
}

/// A member that is at most this many entries behind its leader counts as caught up.
const CLOSE_ENTRIES: u64 = 64;

/// The members in a `cluster status` that are not up or not close to their leader.
pub fn who_is_behind(status: &serde_json::Value) -> Vec<String> {
    let none = Vec::new();
    let groups = status["groups"].as_array().unwrap_or(&none);
    let mut behind = Vec::new();
    if groups.is_empty() || groups.iter().any(|g| g["leader"].as_u64().unwrap_or(0) == 0) {
        behind.push("a group has no leader".into());
    }
    for member in status["members"].as_array().unwrap_or(&none) {
        let name = member["member"]["name"].as_str().unwrap_or("?");
        if member["reachable"] != true {
            behind.push(format!("{name} is unreachable: {}", member["error"].as_str().unwrap_or("no error is told")));
        }
        let lags = member["lags"].as_array().unwrap_or(&none);
        let close = |g: &serde_json::Value| {
            lags.iter().any(|l| l["group"] == g["group"] && l["entries"].as_u64().is_some_and(|n| n <= CLOSE_ENTRIES))
        };
        for group in groups.iter().filter(|g| !close(g)) {
            behind.push(format!("{name} lags in group {}", group["group"]));
        }
    }
    behind
}

/// The member id of a gateway in `cluster status`. Fails when the status does not show it.
pub fn member_called(status: &serde_json::Value, name: &str) -> Result<u64> {
    let members = status["members"].as_array().context("status without members")?;
    let of = members.iter().map(|m| &m["member"]).find(|m| m["name"] == name);
    of.and_then(|m| m["id"].as_u64()).with_context(|| format!("no member is called {name}"))
}

fn guard_of(pid: u32) -> Result<Option<Guard>> {
    process::start_of(pid).map(|start| Guard::new(Undo::Kill { pid, start })).transpose()
}

/// Whether an export answers a read of its first block.
fn probe(uri: &Uri) -> std::result::Result<(), NbdError> {
    let mut client = Client::connect(uri, PATIENCE)?;
    client.read(0, 4096)?;
    client.disconnect();
    Ok(())
}

/// The first of `n` consecutive free ports on loopback. They are below the range from which `holdfast dev` takes its
/// own. Fails when there are none.
pub fn free_ports(n: usize) -> Result<u16> {
    // Two programs at once start at different places. Ports are reused only after all others: a second scenario may
    // search before the first one uses its ports.
    static NEXT: AtomicU16 = AtomicU16::new(0);
    let spread = u16::try_from(std::process::id() % 440).unwrap_or(0);
    for _ in 0..440 {
        let row = NEXT.fetch_add(1, Ordering::Relaxed) % 440;
        let first = 11_000 + (spread + row) % 440 * 20;
        let row: Option<Vec<_>> =
            (0..u16::try_from(n)?).map(|i| TcpListener::bind(("127.0.0.1", first + i)).ok()).collect();
        if row.is_some() {
            return Ok(first);
        }
    }
    bail!("no {n} consecutive free ports on 127.0.0.1")
}
