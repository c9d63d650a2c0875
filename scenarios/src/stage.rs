//! Two PostgreSQL hosts over three gateways, behind HAProxy: the setup on which failovers are shown and judged.
//!
//! ```text
//!   hub (this process's network namespace): bridge, HAProxy, clients
//!     ├─ n1 n2 n3  gateways g1, g2, g3            network namespaces
//!     └─ n4 n5     hosts db1, db2                 network, pid, mount and IPC namespaces: agent, attach, PostgreSQL
//! ```
//! Owns: starting all of it, finding the primary and the serving gateway. Does not own: faults, load.

use crate::binary::public_dir;
use crate::certificates::Certificates;
use crate::gateways::{self, GATEWAYS, Gateways, Own, VOLUME};
use crate::hosts::{First, Host, Plan, Proxy, Way, fill};
use crate::net::{self, HUB, Net};
use crate::pg;
use crate::process::wait_until;
use crate::say::{note, step};
use crate::undo::Guard;
use anyhow::{Context, Result};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Limit for every wait here.
pub const LIMIT: Duration = Duration::from_secs(120);

/// Required programs. Root is required too.
pub const NEEDS: &[&str] =
    &["ip", "iptables", "unshare", "nsenter", "nbdfuse", "/usr/sbin/haproxy", "/usr/lib/postgresql/15/bin/postgres"];

/// Port at which HAProxy accepts clients.
pub const PORT: u16 = 5000;

/// The set. No other text that crosses a network has this word.
pub const SET: &str = "pg-marten";

/// Size of its volume, and of the file system on it: the space after the file system is for a probe.
pub const VOLUME_BYTES: u64 = 1 << 30;
const FILE_SYSTEM: &str = "1023M";

/// PostgreSQL settings in addition to those of the agent's command line.
const SETTINGS: &str = "shared_buffers = 128MB\nmax_connections = 40\n";

/// Without a limit on takeovers: here there are many.
const AGENT: &str = "[takeover]\nper_hour_max = 1000\n";

/// The same with a shorter hold after a switchover: the old primary becomes a standby sooner, and the next round can
/// begin.
const AGENT_SOON: &str = "[takeover]\nper_hour_max = 1000\nswitchover_hold_s = 5\n";

/// Gateway settings that are small enough for any machine.
const GATEWAY: &str =
    "[journal]\nbound = \"1GiB\"\nreserve = \"128MiB\"\n[cache]\nmemory = \"128MiB\"\ndisk = \"0B\"\n";

/// Settings of gateways and agents.
#[derive(Clone, Debug)]
pub struct Below {
    /// Store URL.
    pub store: String,
    /// Environment variables of every gateway.
    pub env: Vec<(String, String)>,
    /// Further sections of every gateway's settings.
    pub settings: &'static str,
    /// Further sections of both agents' settings.
    pub agent: &'static str,
    /// Extras of each gateway.
    pub own: [Own; GATEWAYS],
    /// Whether each gateway has an HTTP door.
    pub http: bool,
    /// Switches everything on that keeps others out, as `holdfast dev --secure` does: TLS, roles, tokens for exports,
    /// an audit log, a list of stores.
    pub secure: bool,
}

impl Below {
    /// Default settings, with a folder as the store.
    pub fn usual(dir: &Path) -> Self {
        let store = format!("file://{}/store", cluster(dir).display());
        let (env, own) = (Vec::new(), Default::default());
        Self { store, env, settings: GATEWAY, agent: AGENT, own, http: false, secure: false }
    }
}

/// The running setup. Fields are dropped in this order.
#[derive(Debug)]
pub struct Stage {
    pub proxy: Proxy,
    pub hosts: [Host; 2],
    pub gateways: Gateways,
    pub net: Net,
    /// A folder with a short path that all users can read, for sockets.
    pub open: PathBuf,
    /// If everything is on: of gateways, hosts, and `admin`.
    pub certificates: Option<Certificates>,
    _public: Guard,
}

/// The network node number of a host.
pub fn node(host: usize) -> usize {
    GATEWAYS + host
}

/// The gateways' folder below the stage's folder.
pub fn cluster(dir: &Path) -> PathBuf {
    dir.join("cluster")
}

/// Of each gateway with its address, of both hosts, of the one that fills the volume, and of an administrator.
fn certificates(bin: &Path, dir: &Path) -> Result<Certificates> {
    let gateways: Vec<String> =
        (0..GATEWAYS).map(|gateway| format!("{}={}", gateways::name(gateway), net::address(gateway))).collect();
    let mut wanted: Vec<&str> = gateways.iter().flat_map(|gateway| ["--gateway", gateway]).collect();
    wanted.extend(["--host", "db1", "--host", "db2", "--host", "first", "--admin", "admin"]);
    Certificates::make(bin, &dir.join("tls"), &wanted)
}

/// Export of the volume.
pub fn export() -> String {
    format!("{SET}/{VOLUME}")
}

impl Stage {
    /// Starts everything. This process must be in its own network namespace. `secure`: see [`Below`]. Fails when
    /// something does not come up.
    pub fn start(bin: &Path, dir: &Path, secure: bool) -> Result<Self> {
        Self::on(Self::net(dir)?, bin, dir, Below { agent: AGENT_SOON, secure, ..Below::usual(dir) })
    }

    /// Makes only the network and the gateways' folder, for things that must exist before the gateways. Fails when they
    /// cannot be made.
    pub fn net(dir: &Path) -> Result<Net> {
        step("Five network namespaces and a bridge: three gateways, two PostgreSQL hosts");
        std::fs::create_dir_all(cluster(dir))?;
        Net::make(GATEWAYS + 2, &dir.join("net.log"))
    }

    /// Starts the rest. Fails when something does not come up.
    pub fn on(net: Net, bin: &Path, dir: &Path, below: Below) -> Result<Self> {
        let Below { store, env, settings, agent, own, http, secure } = below;
        let certificates = if secure { Some(certificates(bin, dir)?) } else { None };
        let secured = certificates.clone();
        let plan = gateways::Plan { set: SET, size: VOLUME_BYTES, store: &store, env, settings, own, http, secured };
        let gateways = Gateways::start(&net, bin, &cluster(dir), plan)?;

        let (open, public) = public_dir("failover")?;
        let token = dir.join("agent.token");
        // No real secret: nothing outside of these namespaces reaches the agents.
        std::fs::write(&token, "a-token-for-two-agents\n")?;
        std::fs::set_permissions(&token, std::os::unix::fs::PermissionsExt::from_mode(0o600))?;
        let apis: Vec<String> = (0..GATEWAYS).map(|gateway| format!("{}:7400", net::address(gateway))).collect();
        let host = |index: usize| {
            let (name, other) = [("db1", "db2"), ("db2", "db1")][index];
            Host::new(Plan {
                name,
                address: net::address(node(index)),
                peers: vec![(other, net::address(node(1 - index)))],
                set: SET,
                gateways: apis.clone(),
                dir: dir.join(name),
                open: open.join(name),
                bin: bin.into(),
                space: Some(net.space(node(index))),
                token: Some(token.clone()),
                way: Way::Ext4,
                certificates: certificates.clone(),
                agent: "",
                database: "",
                service: None,
                settings: agent,
            })
        };
        let mut hosts = [host(0)?, host(1)?];

        step(format!("ext4 and {} on the volume", pg::version()?));
        fill(&First {
            bin,
            set: SET,
            volume: VOLUME,
            gateways: apis.clone(),
            dir: open.join("first"),
            mount: hosts[0].mount(),
            way: Way::Ext4,
            size: Some(FILE_SYSTEM),
            pg: &hosts[0].pg,
            settings: SETTINGS,
            network: Some("10.98.0.0/24"),
            env: &certificates.as_ref().map(|all| all.env("first")).unwrap_or_default(),
        })?;

        step("Agents, HAProxy");
        let begun = Instant::now();
        hosts[0].boot()?;
        note(format!("db1 is primary {} ms after its boot", hosts[0].becomes_primary(begun, LIMIT)?.as_millis()));
        hosts[1].boot()?;
        hosts[1].stands_by(LIMIT)?;
        let at: SocketAddr = format!("{HUB}:{PORT}").parse()?;
        let mut proxy = Proxy::start(dir, at, [&hosts[0], &hosts[1]])?;
        note(format!("through HAProxy to db1: {} ms", proxy.reaches(&hosts[0], LIMIT)?.as_millis()));
        Ok(Self { proxy, hosts, gateways, net, open, certificates, _public: public })
    }

    /// The host on which PostgreSQL accepts writes now. Fails when there is none within [`LIMIT`].
    pub fn primary(&self) -> Result<usize> {
        let mut found = None;
        wait_until(LIMIT, || {
            found = self.hosts.iter().position(Host::is_primary);
            found.is_some()
        });
        let said = || self.hosts.iter().map(Host::said).collect::<Vec<_>>().join("; ");
        found.with_context(|| format!("no host is primary after {LIMIT:?}: {}", said()))
    }

    /// The gateway that serves a host. Fails when its attach names none.
    pub fn serving(&self, host: usize) -> Result<usize> {
        let status = self.hosts[host].attach_status();
        let serving = status["gateway"].as_str().context("attach names no gateway")?;
        let index = (0..GATEWAYS).find(|index| gateways::name(*index) == serving);
        index.with_context(|| format!("no gateway is called {serving}"))
    }

    /// When the gateways granted the set to a host, in Unix milliseconds: the time at which the granting gateway
    /// proposed the grant. `None` if another owner has the set. Fails when no gateway knows the owner.
    pub fn granted(&self, host: usize) -> Result<Option<u64>> {
        let said = self.gateways.holdfast(&["lease", "show", SET], Duration::from_secs(30))?;
        let lease = &said["lease"];
        let its = lease["owner"].as_str() == Some(self.hosts[host].name);
        Ok(lease["since_unix_ms"].as_u64().filter(|_| its))
    }

    /// Waits until every gateway is up and has applied nearly all entries. Fails when [`LIMIT`] passes first.
    pub fn caught_up(&self) -> Result<()> {
        self.caught_up_but(None)
    }

    /// The same, without one gateway that need not be up.
    pub fn caught_up_but(&self, spoilt: Option<usize>) -> Result<()> {
        let excused = spoilt.map(|gateway| format!("{} ", gateways::name(gateway)));
        let mut behind = Vec::new();
        let close = wait_until(LIMIT, || {
            behind = match self.gateways.holdfast(&["cluster", "status"], Duration::from_secs(10)) {
                Ok(status) => crate::cluster::who_is_behind(&status),
                Err(e) => vec![format!("{e:#}")],
            };
            behind.retain(|why| excused.as_ref().is_none_or(|name| !why.starts_with(name.as_str())));
            behind.is_empty()
        });
        anyhow::ensure!(close, "not caught up after {LIMIT:?}: {}", behind.join("; "));
        Ok(())
    }
}
