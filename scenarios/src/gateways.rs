//! Three `holdfast gateway run` processes, each in its own network namespace: start, kill, pause, restart. Also the
//! `holdfast` command line for them.

use crate::certificates::Certificates;
use crate::cmd::{cmd, tail_of};
pub use crate::gateway_names::{GATEWAYS, name};
use crate::net::{Net, address};
use crate::process::{self, Proc, Signal, wait_until};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The only volume of the set.
pub const VOLUME: &str = "vol1";

/// Options of the gateways.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// Name of the set.
    pub set: &'a str,
    /// Size of its volume in bytes.
    pub size: u64,
    /// Store URL.
    pub store: &'a str,
    /// Environment variables of every gateway, such as keys of the store.
    pub env: Vec<(String, String)>,
    /// Further sections of every gateway's settings.
    pub settings: &'a str,
    /// Differences between the gateways.
    pub own: [Own; GATEWAYS],
    /// Whether each has an HTTP door, for metrics and health checks.
    pub http: bool,
    /// With it, everything that keeps others out is on; it has a certificate of each gateway, by its name, and one that
    /// is called `admin`.
    pub secured: Option<Certificates>,
}

/// Extras of one gateway.
#[derive(Clone, Debug, Default)]
pub struct Own {
    /// Environment variables.
    pub env: Vec<(String, String)>,
    /// Further sections of its settings.
    pub settings: String,
    /// Mount namespace to use instead of ours: a file such as `/proc/PID/ns/mnt`.
    pub mounts: Option<PathBuf>,
}

/// How long a gateway may take to stop after SIGTERM.
const ENDS: Duration = Duration::from_secs(20);

/// Address at which a gateway serves NBD.
pub fn nbd(gateway: usize) -> String {
    format!("{}:10809", address(gateway))
}

/// Address of a gateway's admin API.
pub fn api(gateway: usize) -> String {
    format!("{}:7400", address(gateway))
}

/// Port of the HTTP door of a gateway that has one.
pub const HTTP: u16 = 7403;

/// Its address.
pub fn http(gateway: usize) -> String {
    format!("{}:{HTTP}", address(gateway))
}

/// Suffix that a twin's data folder adds to the name of its gateway.
pub const TWIN: &str = "twin";

/// The cluster.
#[derive(Debug)]
pub struct Gateways {
    bin: PathBuf,
    dir: PathBuf,
    env: Vec<(String, String)>,
    /// Of commands.
    door_env: Vec<(String, String)>,
    own: [Own; GATEWAYS],
    procs: Vec<Option<Proc>>,
    paused: [bool; GATEWAYS],
}

impl Gateways {
    /// Starts all gateways and bootstraps a cluster with one set and its volume. Fails when they do not come up.
    pub fn start(net: &Net, bin: &Path, dir: &Path, wanted: Plan<'_>) -> Result<Self> {
        std::fs::create_dir_all(dir.join("store"))?;
        let key = dir.join("cluster.key");
        // No real secret: this is test data, deleted with the folder.
        std::fs::write(&key, "5a".repeat(32))?;
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        let mut plan = String::new();
        for gateway in 0..GATEWAYS {
            let (name, at) = (name(gateway), address(gateway));
            let access = match &wanted.secured {
                Some(certificates) => secured(dir, &name, wanted.store, certificates, wanted.http),
                None => String::from(OPEN),
            };
            let door = if wanted.http { format!("http_listen = {:?}\n", http(gateway)) } else { String::new() };
            let access = door + &access;
            let settings = settings(dir, &name, &at, &access) + wanted.settings + &wanted.own[gateway].settings;
            std::fs::write(dir.join(format!("{name}.toml")), settings)?;
            plan += &format!("[[gateways]]\nname = \"{name}\"\nregion = \"local\"\napi = \"{at}:7400\"\n");
        }
        plan += &format!(
            "[[sets]]\nname = \"{}\"\nstore = \"{}\"\nvolumes = {{ {VOLUME} = \"{}MiB\" }}\n",
            wanted.set,
            wanted.store,
            wanted.size >> 20
        );
        std::fs::write(dir.join("cluster.toml"), plan)?;
        let mut all = Self {
            bin: bin.into(),
            dir: dir.into(),
            env: wanted.env,
            door_env: wanted.secured.map(|certificates| certificates.env("admin")).unwrap_or_default(),
            own: wanted.own,
            procs: (0..GATEWAYS).map(|_| None).collect(),
            paused: [false; GATEWAYS],
        };
        for gateway in 0..GATEWAYS {
            all.launch(net, gateway)?;
        }
        let plan = dir.join("cluster.toml").display().to_string();
        all.holdfast(&["cluster", "bootstrap", "--config", &plan], Duration::from_secs(60))?;
        Ok(all)
    }

    /// Starts a stopped gateway. Fails when it does not listen within a minute.
    pub fn launch(&mut self, net: &Net, gateway: usize) -> Result<()> {
        let name = name(gateway);
        let config = self.dir.join(format!("{name}.toml"));
        let log = self.dir.join(format!("{name}.log"));
        let own = &self.own[gateway];
        let command = match &own.mounts {
            Some(mounts) => net.within_mounts(gateway, mounts, &self.bin),
            None => net.within(gateway, &self.bin),
        };
        let mut command = command.args(["gateway", "run", "--config"]).arg(config);
        for (key, value) in self.env.iter().chain(&own.env) {
            command = command.env(key, value);
        }
        let mut proc = Proc::spawn(&name, command.into_command(), &log)?;
        let door = api(gateway);
        proc.ready_when("listening", Duration::from_secs(60), || std::net::TcpStream::connect(&door).is_ok())?;
        self.procs[gateway] = Some(proc);
        Ok(())
    }

    /// Sends SIGKILL without waiting for the end; [`Gateways::kill`] waits. For a gateway that is killed together with
    /// another process.
    pub fn strike(&mut self, gateway: usize) {
        if let Some(proc) = &mut self.procs[gateway] {
            proc.signal(Signal::KILL);
        }
    }

    /// Sends SIGKILL and waits for the end. Fails when it does not end.
    pub fn kill(&mut self, gateway: usize) -> Result<()> {
        let Some(mut proc) = self.procs[gateway].take() else { return Ok(()) };
        self.paused[gateway] = false;
        proc.signal(Signal::KILL);
        proc.wait(Duration::from_secs(10)).map(drop)
    }

    /// Sends SIGTERM and waits for the end. Fails when it does not end in time.
    pub fn end(&mut self, gateway: usize) -> Result<()> {
        let Some(proc) = &mut self.procs[gateway] else { return Ok(()) };
        proc.signal(Signal::TERM);
        proc.wait(ENDS)?;
        self.procs[gateway] = None;
        Ok(())
    }

    /// Starts a second process of a gateway with other ports, on the folder with the suffix [`TWIN`]. Returns the path
    /// of its log. It may exit at once. Fails when it cannot be started, or its gateway has its own mounts, which would
    /// not contain the folder.
    pub fn twin(&self, net: &Net, gateway: usize) -> Result<(Proc, PathBuf)> {
        let (name, own) = (name(gateway), &self.own[gateway]);
        anyhow::ensure!(
            own.mounts.is_none(),
            "{name}: its data is on a separate disk, which a second process cannot use"
        );
        let file = |what: &str| self.dir.join(format!("{name}.{TWIN}.{what}"));
        let own_settings = self.dir.join(format!("{name}.toml"));
        let mut settings = std::fs::read_to_string(&own_settings)?;
        let data = |name: &str| format!("{}/{name}\"", self.dir.display());
        let ports = [(":7400\"", ":7410\""), (":7401\"", ":7411\""), (":10809\"", ":10819\"")];
        let ports = ports.into_iter().map(|(from, to)| (from.to_owned(), to.to_owned()));
        for (from, to) in std::iter::once((data(&name), data(&format!("{name}.{TWIN}")))).chain(ports) {
            anyhow::ensure!(settings.contains(&from), "{}: found no {from}", own_settings.display());
            settings = settings.replace(&from, &to);
        }
        let (config, log) = (file("toml"), file("log"));
        std::fs::write(&config, settings)?;
        let mut command = net.within(gateway, &self.bin).args(["gateway", "run", "--config"]).arg(config);
        for (key, value) in self.env.iter().chain(&own.env) {
            command = command.env(key, value);
        }
        Ok((Proc::spawn(&name, command.into_command(), &log)?, log))
    }

    /// Sends SIGSTOP and waits until all its threads have stopped.
    pub fn pause(&mut self, gateway: usize) -> Result<()> {
        let Some(proc) = &mut self.procs[gateway] else { return Ok(()) };
        proc.signal(Signal::STOP);
        self.paused[gateway] = true;
        let pid = proc.pid();
        anyhow::ensure!(wait_until(Duration::from_secs(10), || process::is_stopped(pid)), "{pid} does not stop");
        Ok(())
    }

    /// Repairs all gateways: continues paused ones, starts killed ones again.
    pub fn heal(&mut self, net: &Net) -> Result<()> {
        (0..GATEWAYS).try_for_each(|gateway| self.heal_one(net, gateway))
    }

    /// The same for one of them.
    pub fn heal_one(&mut self, net: &Net, gateway: usize) -> Result<()> {
        if std::mem::take(&mut self.paused[gateway])
            && let Some(proc) = &mut self.procs[gateway]
        {
            proc.signal(Signal::CONT);
        }
        if self.procs[gateway].is_none() { self.launch(net, gateway) } else { Ok(()) }
    }

    /// Checks R11: no gateway has ended except those that we stopped.
    pub fn must_run(&mut self) -> Result<()> {
        self.procs.iter_mut().flatten().try_for_each(Proc::must_run)
    }

    /// Whether it runs, or was stopped by us.
    pub fn lives(&mut self, gateway: usize) -> bool {
        self.procs[gateway].as_mut().is_none_or(|proc| proc.ended().is_none())
    }

    /// Whether it was started and not stopped by us since.
    pub fn is_on(&self, gateway: usize) -> bool {
        self.procs[gateway].is_some()
    }

    /// Stops all gateways with SIGTERM. Fails when even SIGKILL does not end one.
    pub fn stop(&mut self) -> Result<()> {
        self.procs.iter_mut().flatten().try_for_each(|proc| proc.stop(Signal::TERM, ENDS))
    }

    /// The command line, for use from other threads.
    pub fn door(&self) -> Door {
        Door { bin: self.bin.clone(), env: self.door_env.clone() }
    }

    /// As [`Door::holdfast`].
    pub fn holdfast(&self, args: &[&str], limit: Duration) -> Result<serde_json::Value> {
        self.door().holdfast(args, limit)
    }

    /// Path of a gateway's log.
    pub fn log(&self, gateway: usize) -> PathBuf {
        self.dir.join(format!("{}.log", name(gateway)))
    }

    /// The end of its log, for messages.
    pub fn log_tail(&self, gateway: usize) -> String {
        tail_of(&self.log(gateway), 4)
    }
}

/// The `holdfast` command line with the addresses of all gateways.
#[derive(Clone, Debug)]
pub struct Door {
    bin: PathBuf,
    env: Vec<(String, String)>,
}

impl Door {
    /// Runs `holdfast ARGS --output json`. Fails when it ends with a status other than 0, or prints no JSON. The
    /// outcome may be unknown.
    pub fn holdfast(&self, args: &[&str], limit: Duration) -> Result<serde_json::Value> {
        let doors: Vec<String> = (0..GATEWAYS).map(api).collect();
        let limit = format!("{}ms", limit.as_millis());
        let command = cmd(&self.bin).args(args).args(["--output", "json", "--timeout", &limit]);
        let mut command = command.args(["--api", &doors.join(",")]);
        for (key, value) in &self.env {
            command = command.env(key, value);
        }
        let said = command.out()?;
        serde_json::from_str(&said).with_context(|| format!("holdfast {}: no JSON: {said}", args.join(" ")))
    }
}

/// Whoever reaches a gateway may use it.
const OPEN: &str = "plain_exports = true\nsnapshot_exports = \"open\"\nplaintext_network = true\n";

/// TLS for everybody, NBD too; exports only with a token; an audit log; no other store. As `holdfast dev --secure`.
fn secured(dir: &Path, name: &str, store: &str, certificates: &Certificates, http: bool) -> String {
    let log = dir.join(format!("{name}.audit.log"));
    let http = if http { "http = \"required\"\n" } else { "" };
    format!("{}{http}[audit]\nlog = {log:?}\n[store]\nallowed = [{store:?}]\n", certificates.section(name))
}

/// `access`: who may use it, [`OPEN`] or [`secured`], and other lines before the sections.
fn settings(dir: &Path, name: &str, at: &str, access: &str) -> String {
    let dir = dir.display();
    format!(
        r#"name = "{name}"
data_dir = "{dir}/{name}"
api_listen = "{at}:7400"
peer_listen = "{at}:7401"
nbd_listen = "{at}:10809"
{access}[key]
file = "{dir}/cluster.key"
"#
    )
}
