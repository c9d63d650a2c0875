//! Three `holdfast gateway run`, each in its namespace: started, killed, paused, started again; and the command line beside them.

use crate::cmd::{cmd, tail_of};
use crate::net::{Net, address};
use crate::process::{self, Proc, Signal, wait_until};
use anyhow::{Context, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How many.
pub const GATEWAYS: usize = 3;

/// The one volume of the set.
pub const VOLUME: &str = "vol1";

/// What to start.
#[derive(Clone, Debug)]
pub struct Plan<'a> {
    /// Name of the set.
    pub set: &'a str,
    /// Size of its volume in bytes.
    pub size: u64,
    /// Store URL.
    pub store: &'a str,
    /// More environment, such as keys of the store.
    pub env: Vec<(String, String)>,
    /// Further sections of every gateway's settings.
    pub settings: &'a str,
    /// What each has beyond that.
    pub own: [Own; GATEWAYS],
}

/// What one gateway has of its own.
#[derive(Clone, Debug, Default)]
pub struct Own {
    /// More environment.
    pub env: Vec<(String, String)>,
    /// Further sections of its settings.
    pub settings: String,
    /// Mounts that it has in place of ours: a file such as `/proc/PID/ns/mnt`.
    pub mounts: Option<PathBuf>,
}

/// How long a gateway may take to end when it is asked to.
const ENDS: Duration = Duration::from_secs(20);

/// Address of a gateway's NBD door.
pub fn nbd(gateway: usize) -> String {
    format!("{}:10809", address(gateway))
}

/// Address of a gateway's admin door.
pub fn api(gateway: usize) -> String {
    format!("{}:7400", address(gateway))
}

/// How the folder of a twin's data is called, behind the name of its gateway.
pub const TWIN: &str = "twin";

/// How people call it.
pub fn name(gateway: usize) -> String {
    format!("g{}", gateway + 1)
}

/// The cluster.
#[derive(Debug)]
pub struct Gateways {
    bin: PathBuf,
    dir: PathBuf,
    env: Vec<(String, String)>,
    own: [Own; GATEWAYS],
    procs: Vec<Option<Proc>>,
    paused: [bool; GATEWAYS],
}

impl Gateways {
    /// Starts them all and makes a cluster of them, with one set and its volume.
    ///
    /// # Errors
    /// When they do not come up.
    pub fn start(net: &Net, bin: &Path, dir: &Path, wanted: Plan<'_>) -> Result<Self> {
        std::fs::create_dir_all(dir.join("store"))?;
        let key = dir.join("cluster.key");
        // Not a secret: the data is ours, and gone with the folder.
        std::fs::write(&key, "5a".repeat(32))?;
        std::fs::set_permissions(&key, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        let mut plan = String::new();
        for gateway in 0..GATEWAYS {
            let (name, at) = (name(gateway), address(gateway));
            let settings = settings(dir, &name, &at) + wanted.settings + &wanted.own[gateway].settings;
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

    /// Starts a gateway that does not run.
    ///
    /// # Errors
    /// When it does not listen within a minute.
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

    /// `kill -9`, and nobody waits for its end: [`Gateways::kill`] does. For one that goes together with something else.
    pub fn strike(&mut self, gateway: usize) {
        if let Some(proc) = &mut self.procs[gateway] {
            proc.signal(Signal::KILL);
        }
    }

    /// `kill -9`.
    ///
    /// # Errors
    /// When it survives that.
    pub fn kill(&mut self, gateway: usize) -> Result<()> {
        let Some(mut proc) = self.procs[gateway].take() else { return Ok(()) };
        self.paused[gateway] = false;
        proc.signal(Signal::KILL);
        proc.wait(Duration::from_secs(10)).map(drop)
    }

    /// SIGTERM, and waits for its end.
    ///
    /// # Errors
    /// When it does not end by itself in time.
    pub fn end(&mut self, gateway: usize) -> Result<()> {
        let Some(proc) = &mut self.procs[gateway] else { return Ok(()) };
        proc.signal(Signal::TERM);
        proc.wait(ENDS)?;
        self.procs[gateway] = None;
        Ok(())
    }

    /// Starts a second process of a gateway, on a folder that has [`TWIN`] behind its name and with other ports; where its log is. It may end at once.
    ///
    /// # Errors
    /// When it cannot be started, or its gateway has mounts of its own: the folder would not be in them.
    pub fn twin(&self, net: &Net, gateway: usize) -> Result<(Proc, PathBuf)> {
        let (name, own) = (name(gateway), &self.own[gateway]);
        anyhow::ensure!(own.mounts.is_none(), "{name}: its data lie on a disk of their own, which is not used twice");
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

    /// SIGSTOP, until all its threads have stopped.
    ///
    /// # Errors
    /// When they do not.
    pub fn pause(&mut self, gateway: usize) -> Result<()> {
        let Some(proc) = &mut self.procs[gateway] else { return Ok(()) };
        proc.signal(Signal::STOP);
        self.paused[gateway] = true;
        let pid = proc.pid();
        anyhow::ensure!(wait_until(Duration::from_secs(10), || process::is_stopped(pid)), "{pid} does not stop");
        Ok(())
    }

    /// Whatever was done to the processes is undone: continued, started again.
    ///
    /// # Errors
    /// As [`Gateways::launch`].
    pub fn heal(&mut self, net: &Net) -> Result<()> {
        (0..GATEWAYS).try_for_each(|gateway| self.heal_one(net, gateway))
    }

    /// The same for one of them.
    ///
    /// # Errors
    /// As [`Gateways::launch`].
    pub fn heal_one(&mut self, net: &Net, gateway: usize) -> Result<()> {
        if std::mem::take(&mut self.paused[gateway])
            && let Some(proc) = &mut self.procs[gateway]
        {
            proc.signal(Signal::CONT);
        }
        if self.procs[gateway].is_none() { self.launch(net, gateway) } else { Ok(()) }
    }

    /// R11: nobody ends but by our hand.
    ///
    /// # Errors
    /// When one has.
    pub fn must_run(&mut self) -> Result<()> {
        self.procs.iter_mut().flatten().try_for_each(Proc::must_run)
    }

    /// Whether it runs, or was ended by our hand.
    pub fn lives(&mut self, gateway: usize) -> bool {
        self.procs[gateway].as_mut().is_none_or(|proc| proc.ended().is_none())
    }

    /// Whether it was started, and not ended by our hand since.
    pub fn is_on(&self, gateway: usize) -> bool {
        self.procs[gateway].is_some()
    }

    /// SIGTERM to all of them.
    ///
    /// # Errors
    /// When even SIGKILL does not end one.
    pub fn stop(&mut self) -> Result<()> {
        self.procs.iter_mut().flatten().try_for_each(|proc| proc.stop(Signal::TERM, ENDS))
    }

    /// The command line, for use from other threads.
    pub fn door(&self) -> Door {
        Door { bin: self.bin.clone() }
    }

    /// As [`Door::holdfast`].
    ///
    /// # Errors
    /// As [`Door::holdfast`].
    pub fn holdfast(&self, args: &[&str], limit: Duration) -> Result<serde_json::Value> {
        self.door().holdfast(args, limit)
    }

    /// Where the log of a gateway is.
    pub fn log(&self, gateway: usize) -> PathBuf {
        self.dir.join(format!("{}.log", name(gateway)))
    }

    /// The end of its log, for messages.
    pub fn log_tail(&self, gateway: usize) -> String {
        tail_of(&self.log(gateway), 4)
    }
}

/// The `holdfast` command line, told of every gateway.
#[derive(Clone, Debug)]
pub struct Door {
    bin: PathBuf,
}

impl Door {
    /// Runs `holdfast ARGS --output json`.
    ///
    /// # Errors
    /// When it ends with another status than 0, or prints no JSON. The outcome may be unknown.
    pub fn holdfast(&self, args: &[&str], limit: Duration) -> Result<serde_json::Value> {
        let doors: Vec<String> = (0..GATEWAYS).map(api).collect();
        let limit = format!("{}ms", limit.as_millis());
        let command = cmd(&self.bin).args(args).args(["--output", "json", "--timeout", &limit]);
        let said = command.args(["--api", &doors.join(",")]).out()?;
        serde_json::from_str(&said).with_context(|| format!("holdfast {}: no JSON: {said}", args.join(" ")))
    }
}

fn settings(dir: &Path, name: &str, at: &str) -> String {
    let dir = dir.display();
    format!(
        r#"name = "{name}"
data_dir = "{dir}/{name}"
api_listen = "{at}:7400"
peer_listen = "{at}:7401"
nbd_listen = "{at}:10809"
plain_exports = true
snapshot_exports = "open"
plaintext_network = true
[key]
file = "{dir}/cluster.key"
"#
    )
}
