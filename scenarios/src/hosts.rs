//! PostgreSQL hosts as pid, mount and IPC namespaces, optionally with their own network. When a host is killed, all its
//! processes and mounts end at once, like those of a machine. Each runs `holdfast agent` on the same set: ext4 on the
//! attached device, PostgreSQL by pg_ctl.
//!
//! Owns: a host's settings, its processes, requests to its agent. Does not own: gateways, networks.

mod first;
mod opener;
mod pool;
mod proxy;

pub use first::{First, attach, fill, prepare, status};
pub use opener::{OPENER, Opener};
pub use pool::{Pool, Session, User, Writer};
pub use proxy::{Proxy, waiting};

use crate::certificates::Certificates;
use crate::cmd::{Cmd, cmd, tail_of};
use crate::pg::{self, Postgres};
use crate::process::{Proc, Signal, wait_until};
use anyhow::{Context, Result, bail};
use serde_json::Value;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, Instant};

/// Port of the agents' health checks.
pub const HTTP: u16 = 8008;

/// A health check that takes longer counts as not answered.
const HTTP_LIMIT: Duration = Duration::from_millis(500);

/// Limit until all processes of a host have stopped.
const PAUSE_LIMIT: Duration = Duration::from_secs(2);

/// Set in each host's `[pool]`, whatever the default: a host is a namespace here, so a reboot would reboot the test
/// machine.
const NO_REBOOT: &str = "fence_action = \"retry\"\n";

/// The file system on the device, and how PostgreSQL is started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// ext4; the agent calls pg_ctl itself.
    Ext4,
    /// XFS; start and stop commands of the host (`database.kind = "command"`).
    XfsCommand,
}

impl Way {
    /// The file system's name, for mkfs and for the agent.
    pub fn fs(self) -> &'static str {
        match self {
            Way::Ext4 => "ext4",
            Way::XfsCommand => "xfs",
        }
    }
}

/// Settings of a host.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    pub name: &'static str,
    /// Address of PostgreSQL and of the health checks.
    pub address: String,
    /// Names and addresses of the other hosts of the set.
    pub peers: Vec<(&'static str, String)>,
    pub set: &'a str,
    /// Admin addresses of the gateways.
    pub gateways: Vec<String>,
    /// Folder for settings, logs, history.
    pub dir: PathBuf,
    /// Folder for the mount and PostgreSQL's socket: the system user postgres must reach it, and its path must be
    /// short.
    pub open: PathBuf,
    pub bin: PathBuf,
    /// Its network namespace; that of this process if none.
    pub space: Option<PathBuf>,
    /// The agents' token. If none, hosts with folders in one place share one. Agents with certificates have none.
    pub token: Option<PathBuf>,
    pub way: Way,
    /// With TLS: of this host by its name, and `admin` for commands. Health checks stay possible in plain text.
    pub certificates: Option<Certificates>,
    /// Further lines of the agent's settings, above its sections.
    pub agent: &'a str,
    /// Further lines of the agent's `[database]`.
    pub database: &'a str,
    /// Lines of the agent's `[service]`, in place of PostgreSQL.
    pub service: Option<String>,
    /// Further sections of the agent's settings.
    pub settings: &'a str,
}

impl<'a> Plan<'a> {
    /// A host with ext4 in this process's network, without peers and without settings of its own. All its files are in
    /// `dir`.
    pub fn plain(
        (name, address): (&'static str, &str),
        set: &'a str,
        gateways: Vec<String>,
        dir: PathBuf,
        bin: &Path,
    ) -> Self {
        Self {
            name,
            address: address.into(),
            peers: Vec::new(),
            set,
            gateways,
            open: dir.clone(),
            dir,
            bin: bin.to_path_buf(),
            space: None,
            token: None,
            way: Way::Ext4,
            certificates: None,
            agent: "",
            database: "",
            service: None,
            settings: "",
        }
    }
}

/// A token for all hosts with folders beside `dir`.
fn shared_token(dir: &Path) -> Result<PathBuf> {
    let path = dir.parent().context("the folder of a host has no parent")?.join("agent.token");
    std::fs::write(&path, "the token of a scenario\n")?;
    std::fs::set_permissions(&path, PermissionsExt::from_mode(0o600))?;
    Ok(path)
}

/// The section of what runs on the set.
fn section(service: Option<&str>, database: &str) -> String {
    match service {
        Some(lines) => format!("[service]\n{lines}"),
        None => format!("[database]\nbin_dir = {:?}\n{database}", pg::bin()),
    }
}

/// One host.
#[derive(Debug)]
pub struct Host {
    pub name: &'static str,
    pub address: String,
    pub pg: Rc<Postgres>,
    dir: PathBuf,
    open: PathBuf,
    bin: PathBuf,
    space: Option<PathBuf>,
    token: PathBuf,
    certificates: Option<Certificates>,
    process: Option<Proc>,
}

impl Host {
    /// Writes its settings; starts nothing. Fails when they cannot be written.
    pub fn new(plan: Plan<'_>) -> Result<Self> {
        let Plan { name, address, dir, open, .. } = plan;
        for dir in [&dir, &open] {
            std::fs::create_dir_all(dir)?;
        }
        let (mount, sockets) = (open.join("mnt"), open.join("sockets"));
        let pg = Rc::new(Postgres::new(&mount.join("data"), &sockets, &dir.join("unused.log"))?);
        let gateways: Vec<String> = plan.gateways.iter().map(|api| format!("{api:?}")).collect();
        let token_file = match plan.token {
            Some(path) => path,
            None => shared_token(&dir)?,
        };
        // A certificate does for it.
        let token = match plan.certificates {
            Some(_) => String::new(),
            None => format!("token_file = {token_file:?}\n"),
        };
        let (data, log) = (mount.join("data"), open.join("postgresql.log"));
        let options = format!("-c listen_addresses={address} -c unix_socket_directories={}", sockets.display());
        let started = match plan.way {
            Way::Ext4 => format!("options = {options:?}\n"),
            Way::XfsCommand => {
                // The system user postgres writes it.
                std::fs::File::create(&log)?;
                std::fs::set_permissions(&log, std::fs::Permissions::from_mode(0o666))?;
                let as_its_user = "setpriv --reuid=postgres --regid=postgres --init-groups";
                let (pg_ctl, data) = (format!("{as_its_user} {}/pg_ctl", pg::bin().display()), data.display());
                let start = format!("cd / && {pg_ctl} start -W -s -D {data} -l {} -o '{options}'", log.display());
                let stop = format!("cd / && {pg_ctl} stop -s -m $HOLDFAST_STOP -D {data}");
                format!("kind = \"command\"\nstart = {start:?}\nstop = {stop:?}\n")
            }
        };
        let database = format!("data = {data:?}\nhost = {sockets:?}\n{started}{}", plan.database);
        let runs = section(plan.service.as_deref(), &database);
        let line = |(name, address): &(&str, String)| format!("{name} = \"{address}:{HTTP}\"\n");
        let peers: String = plan.peers.iter().map(line).collect();
        let peers = if peers.is_empty() { peers } else { format!("[peers]\n{peers}") };
        let tls = plan.certificates.as_ref().map(|all| all.section(name)).unwrap_or_default();
        let checks = if tls.is_empty() { "" } else { "tls = \"checks\"\n" };
        let settings = format!(
            "name = {name:?}\nset = {:?}\ngateways = [{}]\ndir = {:?}\nrun_dir = {:?}\n{}\
             [attach]\ndevice = \"nbdfuse\"\n[pool]\nkind = {:?}\n{NO_REBOOT}mount = {mount:?}\n{runs}\
             [http]\nlisten = \"{address}:{HTTP}\"\n{token}{checks}{peers}{}{tls}",
            plan.set,
            gateways.join(", "),
            dir.join("lib"),
            dir.join("run"),
            plan.agent,
            plan.way.fs(),
            plan.settings,
        );
        std::fs::write(dir.join("agent.toml"), settings)?;
        let (bin, space, certificates) = (plan.bin, plan.space, plan.certificates);
        Ok(Self { name, address, pg, dir, open, bin, space, token: token_file, certificates, process: None })
    }

    /// Where the file system is mounted, in its own mount namespace.
    pub fn mount(&self) -> PathBuf {
        self.open.join("mnt")
    }

    /// The authority of the agents' certificates, where their HTTP has TLS.
    pub fn authority(&self) -> Option<PathBuf> {
        self.certificates.as_ref().map(Certificates::ca)
    }

    /// Its agent's log.
    pub fn log(&self) -> PathBuf {
        self.dir.join("agent.log")
    }

    fn within(&self, program: impl AsRef<std::ffi::OsStr>) -> Cmd {
        match &self.space {
            Some(space) => cmd("nsenter").arg(format!("--net={}", space.display())).arg("--").arg(program),
            None => cmd(program),
        }
    }

    /// Starts the host. Fails when it cannot start.
    pub fn boot(&mut self) -> Result<()> {
        // Its first process stays when the agent ends, like the init of a machine.
        let script = "\"$0\" agent run --config \"$1\" & while :; do wait; sleep 1; done";
        let command =
            self.within("unshare").args(["--pid", "--fork", "--kill-child", "--mount", "--mount-proc", "--ipc"]);
        let command = command.args(["sh", "-c", script]).arg(&self.bin).arg(self.dir.join("agent.toml"));
        self.process = Some(Proc::spawn(self.name, command.into_command(), &self.log())?);
        Ok(())
    }

    /// Kills the host, like a power failure. Returns the time and the number of its processes. Fails when it is off
    /// already, or a process does not end.
    pub fn kill(&mut self) -> Result<(Instant, usize)> {
        let space = self.pids();
        let mut process = self.process.take().context("it is off already")?;
        // Keeps the mount namespace until its processes have ended: otherwise the last one would unmount what it serves
        // itself (nbdfuse below ext4) and wait for itself for ever.
        let mounts = std::fs::File::open(format!("/proc/{}/ns/mnt", process.pid()))?;
        let had = in_space(space.as_deref()).len();
        let moment = Instant::now();
        process.signal(Signal::KILL);
        process.wait(Duration::from_secs(20))?;
        let gone = wait_until(Duration::from_secs(20), || in_space(space.as_deref()).is_empty());
        let left = in_space(space.as_deref());
        anyhow::ensure!(gone, "{}: still there after SIGKILL: {left:?}", self.name);
        drop(mounts);
        self.forget_device();
        Ok((moment, had))
    }

    /// Sends SIGSTOP to all its processes, like a hypervisor that pauses a machine; I/O in the kernel continues.
    /// Returns their number. Fails when it is off.
    pub fn pause(&self) -> Result<usize> {
        let space = self.pids().context("it is off")?;
        let mut stopped = 0;
        // A process that is not stopped yet may start others. A process that waits for its device stops only when the
        // device answers, so do not wait for it.
        wait_until(PAUSE_LIMIT, || {
            let all = in_space(Some(&space));
            stopped = all.len();
            let mut run = all.into_iter().filter(|pid| !crate::process::is_stopped(*pid)).peekable();
            let done = run.peek().is_none();
            run.for_each(|pid| crate::process::signal(pid, Signal::STOP));
            done
        });
        Ok(stopped)
    }

    /// Sends SIGCONT to all its processes.
    pub fn proceed(&self) {
        in_space(self.pids().as_deref()).into_iter().for_each(|pid| crate::process::signal(pid, Signal::CONT));
    }

    /// Whether it runs.
    pub fn is_on(&self) -> bool {
        self.process.is_some()
    }

    /// Detaches the loop devices of a killed host: they would stay, because the host shares the kernel with us.
    fn forget_device(&self) {
        let status = self.attach_status();
        for volume in status["volumes"].as_array().map_or(&[][..], Vec::as_slice) {
            let Some(name) = volume["device"].as_str().and_then(|device| device.strip_prefix("/dev/loop")) else {
                continue;
            };
            let backing = format!("/sys/block/loop{name}/loop/backing_file");
            let backing = std::fs::read_to_string(backing).unwrap_or_default();
            // The path has lost all but its last part with the host's mounts. The device's number may be reused by now,
            // with another path.
            if Path::new(backing.trim()).starts_with(&self.dir) || backing.trim() == "/device" {
                cmd("losetup").arg("--detach").arg(format!("/dev/loop{name}")).succeeds();
            }
        }
    }

    /// Its pid namespace, while it runs.
    fn pids(&self) -> Option<PathBuf> {
        let pid = self.process.as_ref()?.pid();
        let space = |which: &str| std::fs::read_link(format!("/proc/{pid}/ns/{which}")).ok();
        // Until `unshare` has made one, this is our own.
        space("pid_for_children").filter(|theirs| Some(theirs) != space("pid").as_ref())
    }

    /// Running processes of PostgreSQL on it.
    pub fn postgres(&self) -> Vec<u32> {
        let Some(space) = self.pids() else { return Vec::new() };
        processes().filter(|pid| is_postgres(*pid, &space)).collect()
    }

    /// Waits until none is left; returns whether that happened. May notice it up to [`crate::process::POLL`] late:
    /// while a known process remains, /proc is not searched for others.
    pub fn postgres_ends(&self, limit: Duration) -> bool {
        let space = self.pids();
        let mut known = Vec::new();
        wait_until(limit, || {
            if !known.iter().any(|pid| space.as_deref().is_some_and(|space| is_postgres(*pid, space))) {
                known = self.postgres();
            }
            known.is_empty()
        })
    }

    /// The postmaster. Fails when there is none.
    pub fn postmaster(&self) -> Result<u32> {
        let mut all = self.postgres();
        all.retain(|pid| crate::process::is_alive(*pid));
        let first = all.iter().find(|pid| crate::process::parent_of(**pid).is_none_or(|parent| !all.contains(&parent)));
        first.copied().with_context(|| format!("{}: found no PostgreSQL", self.name))
    }

    /// Status of its attach; null if there is none.
    pub fn attach_status(&self) -> Value {
        status(&self.dir.join("run/attach")).unwrap_or_default()
    }

    /// The token of its lease, as its attach keeps it for the next process.
    pub fn lease_token(&self) -> Option<String> {
        let kept = std::fs::read(self.dir.join("run/attach/lease.json")).ok()?;
        let kept: Value = serde_json::from_slice(&kept).ok()?;
        kept["token"].as_str().map(String::from)
    }

    /// Socket of its attach for a volume.
    pub fn socket(&self, volume: &str) -> PathBuf {
        self.dir.join("run/attach").join(format!("{volume}.sock"))
    }

    /// Lines of its agent's history, oldest first.
    pub fn history(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.dir.join("lib/history.jsonl")).unwrap_or_default();
        text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// The end of its agent's log, for messages.
    pub fn said(&self) -> String {
        format!("{}: {}", self.name, tail_of(&self.log(), 3))
    }

    /// HTTP status of a health check; 0 if there is no answer in time.
    pub fn asks(&self, path: &str) -> u16 {
        self.http("OPTIONS", path, HTTP_LIMIT).map_or(0, |(code, _)| code)
    }

    /// Sends one HTTP request to its agent. Returns status and body. `limit` is the timeout of each step. Fails when
    /// there is no complete answer.
    pub fn http(&self, method: &str, path: &str, limit: Duration) -> Result<(u16, String)> {
        let address = format!("{}:{HTTP}", self.address).parse()?;
        let mut stream = TcpStream::connect_timeout(&address, limit)?;
        stream.set_read_timeout(Some(limit))?;
        write!(stream, "{method} {path} HTTP/1.0\r\n\r\n")?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer)?;
        let (head, body) = answer.split_once("\r\n\r\n").with_context(|| format!("found no head in {answer:?}"))?;
        let code = head.split(' ').nth(1).with_context(|| format!("found no code in {head:?}"))?;
        Ok((code.parse()?, body.to_owned()))
    }

    /// Whether its agent reports that PostgreSQL accepts writes there.
    pub fn is_primary(&self) -> bool {
        self.asks("/primary") == 200
    }

    /// Waits until it is primary. Returns the time since `since`. Fails when it is not within `limit` from now.
    pub fn becomes_primary(&self, since: Instant, limit: Duration) -> Result<Duration> {
        if wait_until(limit, || self.is_primary()) {
            return Ok(since.elapsed());
        }
        bail!("{} is not primary after {limit:?}: {}", self.name, tail_of(&self.log(), 6))
    }

    /// Waits until it is ready to take over. Fails when it is not within `limit`.
    pub fn stands_by(&self, limit: Duration) -> Result<()> {
        let ready = wait_until(limit, || self.asks("/readiness") == 200 && !self.is_primary());
        anyhow::ensure!(ready, "{} does not stand by after {limit:?}: {}", self.name, tail_of(&self.log(), 6));
        Ok(())
    }

    /// Runs `holdfast ARGS --agent` with this host's address. Fails when it ends with another status than 0, or prints
    /// no JSON.
    pub fn holdfast(&self, args: &[&str]) -> Result<Value> {
        let said = self.command(args).out()?;
        serde_json::from_str(&said).with_context(|| format!("holdfast {}: no JSON: {said}", args.join(" ")))
    }

    /// The same for a command that must be refused (exit code 3). Returns its message. Nothing else is taken: the
    /// command is sent to an agent once, so no attempt without an answer (exit code 5) comes before its refusal. Fails
    /// when it ends otherwise.
    pub fn refused(&self, args: &[&str]) -> Result<String> {
        let output = self.command(args).into_command().output()?;
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        anyhow::ensure!(output.status.code() == Some(3), "holdfast {}: {}: {said}", args.join(" "), output.status);
        Ok(said)
    }

    fn command(&self, args: &[&str]) -> Cmd {
        let agent = format!("{}:{HTTP}", self.address);
        let command = cmd(&self.bin).args(args).args(["--output", "json", "--agent", &agent]);
        match &self.certificates {
            Some(all) => all.env("admin").into_iter().fold(command, |command, (key, value)| command.env(key, value)),
            None => command.arg("--token-file").arg(&self.token),
        }
    }

    /// Starts a process on it that keeps a file open. Fails when it is off, or the file cannot be opened there.
    pub fn keep_open(&self, file: &Path) -> Result<Opener> {
        Opener::start(self.process.as_ref().context("it is off")?.pid(), file)
    }

    /// Process id of its agent, in our pid namespace. Fails when there is none.
    pub fn agent_pid(&self) -> Result<u32> {
        let config = self.dir.join("agent.toml");
        let config = config.to_str().context("path")?;
        let is_agent = |pid: &u32| {
            let args = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            let args: Vec<&[u8]> = args.split(|byte| *byte == 0).collect();
            args.len() > 4 && args[1] == b"agent" && args[2] == b"run" && args[4] == config.as_bytes()
        };
        let found = processes().find(is_agent);
        found.with_context(|| format!("{}: found no agent", self.name))
    }
}

fn processes() -> impl Iterator<Item = u32> {
    let entries = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
}

/// Whether it is a process of PostgreSQL in this pid namespace.
fn is_postgres(pid: u32, space: &Path) -> bool {
    std::fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|its| its == space)
        && std::fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "postgres")
}

/// Processes of a pid namespace.
fn in_space(space: Option<&Path>) -> Vec<u32> {
    let Some(space) = space else { return Vec::new() };
    processes()
        .filter(|pid| std::fs::read_link(format!("/proc/{pid}/ns/pid")).is_ok_and(|theirs| theirs == space))
        .collect()
}

impl Drop for Host {
    fn drop(&mut self) {
        if self.process.is_some() {
            let _ = self.kill();
        }
    }
}
