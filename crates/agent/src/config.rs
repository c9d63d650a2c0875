//! Settings of one agent.
//!
//! One struct per section. `Default` has all defaults. The comment of a field (unit, range, cost of a change) is also
//! its comment in the sample file, `crates/agent/agent.sample.toml`; a test compares that with [`sample`]. No field
//! holds a secret, only the path of one.

mod check;
mod document;
mod load;
mod service;
#[cfg(test)]
mod tests;
mod traces;

pub use check::{ConfigError, Problem};
pub use document::sample;
use holdfast_settings::settings;
use holdfast_tls::{HttpTls, Tls, TlsError, TlsFiles};
use holdfast_types::{ByteSize, Locality};
use serde::{Deserialize, Serialize};
pub use service::{RunLimits, ServiceConfig, ServiceKind};
use std::net::SocketAddr;
use std::path::PathBuf;
pub use traces::TracesConfig;

/// Whether this host takes over by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// Yes.
    Automatic,
    /// Only on command.
    Manual,
}

/// The file system or pool on the devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PoolKind {
    /// A ZFS pool over all volumes of the set.
    Zfs,
    /// ext4 on one volume.
    Ext4,
    /// XFS on one volume.
    Xfs,
    /// None that the agent mounts.
    None,
}

/// How PostgreSQL is started and stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DatabaseKind {
    /// By the agent itself, as `pg_ctl` does it, as the system user of `database.user`.
    PgCtl,
    /// By a systemd unit.
    Systemd,
    /// By commands.
    Command,
}

/// How attach makes block devices.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Device {
    /// The kernel's nbd where it has one, else nbdfuse and a loop device.
    Auto,
    /// nbdfuse and a loop device.
    Nbdfuse,
    /// The kernel's nbd.
    Kernel,
    /// No devices; a socket only.
    None,
}

impl Device {
    /// As on attach's command line.
    pub fn as_str(self) -> &'static str {
        match self {
            Device::Auto => "auto",
            Device::Nbdfuse => "nbdfuse",
            Device::Kernel => "kernel",
            Device::None => "none",
        }
    }
}

/// The second process that stops PostgreSQL when the agent cannot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WatchdogKind {
    /// A second process that kills PostgreSQL and attach.
    Helper,
    /// There is none.
    Off,
}

/// Whether the machine's watchdog device is used, behind the helper.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum WatchdogMode {
    /// No.
    Off,
    /// If it can be opened and set.
    Automatic,
    /// PostgreSQL is not started without it.
    Required,
}

/// For a host that cannot release its device or pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FenceAction {
    /// Try again for ever, and log it.
    Retry,
    /// Reboot the machine at once (sysrq b): the way out of a suspended ZFS pool.
    Reboot,
}

settings! {
    /// Settings of one agent (`holdfast agent run --config FILE`).
    /// A field that is left out has the value shown, or none where it is marked "Left out: none". An unknown field is
    /// an error.
    pub struct AgentConfig {
        /// Name of this host: the owner of its leases. Unique among the set's hosts.
        name: String = "db1".into();
        /// Where this host stands: `region=NAME`, with `zone=NAME` and `host=NAME` if known, as in a gateway's
        /// settings. The set is then served by the nearest of its gateways. Left out: none.
        locality: Option<Locality> = None, sample "region=eu-west,zone=a";
        /// The volume set that PostgreSQL lives on.
        set: String = "demo".into();
        /// Admin addresses of gateways, HOST:PORT each. Any of them finds the one that serves; list them all.
        gateways: Vec<String> = vec!["127.0.0.1:7400".into()];
        /// Directory of the history and of other state that outlives the agent. On a local disk, never on the set.
        dir: PathBuf = PathBuf::from("/var/lib/holdfast-agent");
        /// Directory of what a reboot may delete: attach's state, process ids, the watchdog's file.
        run_dir: PathBuf = PathBuf::from("/run/holdfast-agent");
        /// "automatic": takes over by itself. "manual": only `holdfast agent failover` and switchovers do it.
        mode: Mode = Mode::Automatic;
        /// 1 to 100. A host of lower priority leaves a free lease to better ones: it waits `takeover.priority_step_ms`
        /// for each step below 100.
        priority: u32 = 100;
        /// Never take over by itself, whatever happens; switchovers to this host and `holdfast agent failover` work.
        nofailover: bool = false;
        /// When and how often this host takes over.
        takeover: TakeoverConfig = TakeoverConfig::default();
        /// How the agent asks for the lease, and when it stops PostgreSQL because the lease cannot be renewed.
        lease: LeaseConfig = LeaseConfig::default();
        /// The device (`holdfast attach`, run as a child).
        attach: AttachConfig = AttachConfig::default();
        /// The file system or pool on the device.
        pool: PoolConfig = PoolConfig::default();
        /// PostgreSQL.
        database: DatabaseConfig = DatabaseConfig::default();
        /// A service other than PostgreSQL, in place of `[database]`.
        service: Option<ServiceConfig> = None;
        /// A second process that stops PostgreSQL when the agent hangs or has ended.
        watchdog: WatchdogConfig = WatchdogConfig::default();
        /// Health checks and commands over HTTP, as Patroni's load balancer files expect them.
        http: HttpConfig = HttpConfig::default();
        /// A line of JSON for each command that comes over HTTP or the agent's socket.
        audit: AuditConfig = AuditConfig::default();
        /// Traces of takeovers, for a collector that takes OTLP over gRPC. Nothing waits for it.
        traces: TracesConfig = TracesConfig::default();
        /// Programs that the agent runs when something happens.
        hooks: HooksConfig = HooksConfig::default();
        /// Mutually authenticated TLS with the gateways, for the agent and its attach, and with other agents: all three
        /// files, or none.
        tls: TlsConfig = TlsConfig::default();
        /// Agents of the other hosts, name = "HOST:PORT" of their http.listen: for switchovers.
        peers: PeersConfig = PeersConfig::default();
    }
}

settings! {
    /// When and how often this host takes over.
    pub struct TakeoverConfig {
        /// Milliseconds that a host waits for each step of priority below 100, 0 to 1000. At 20 a host of priority 50
        /// waits a second.
        priority_step_ms: u64 = 20;
        /// After this host gave the lease away because of a fault of its own: no takeover for this many seconds, 0
        /// to 3600. Against flapping.
        flap_delay_s: u64 = 30;
        /// Maximum number of automatic takeovers within an hour, 1 to 1000. After that a person decides.
        per_hour_max: u32 = 6;
        /// Pause after a takeover that failed, in milliseconds, 100 to 600000; doubled by each further one, up to
        /// backoff_max_ms.
        backoff_min_ms: u64 = 1000;
        /// See backoff_min_ms.
        backoff_max_ms: u64 = 60_000;
        /// After a switchover to another host: how long that host may take before this one may take the lease again, in
        /// seconds, 1 to 600.
        switchover_hold_s: u64 = 15;
    }
}

settings! {
    /// How the agent asks for the lease, and when it stops PostgreSQL because the lease cannot be renewed.
    pub struct LeaseConfig {
        /// How often a standby asks who holds the lease, in milliseconds, 100 to 10000. It asks at once when the lease
        /// may run out.
        poll_ms: u64 = 500;
        /// How often it asks while something is about to change, in milliseconds, 20 to 1000.
        eager_poll_ms: u64 = 50;
        /// PostgreSQL is stopped this long before the lease could end, in milliseconds, 50 to half of the lease.
        /// Longer: safer against a slow machine. Shorter: a longer loss of gateways is only a pause.
        stop_margin_ms: u64 = 300;
        /// Duration of a lease in milliseconds, used until a gateway reports it.
        ttl_ms: u64 = 3000;
    }
}

settings! {
    /// The device (`holdfast attach`, run as a child).
    pub struct AttachConfig {
        /// "auto", "kernel" (nbd), "nbdfuse" (with a loop device) or "none".
        device: Device = Device::Auto;
        /// The program. Left out: the agent's own.
        program: Option<PathBuf> = None, sample "/usr/bin/holdfast";
        /// Further arguments.
        args: Vec<String> = Vec::new();
        /// Time limit from its start until it has the lease, in milliseconds, 1000 to 600000.
        acquire_timeout_ms: u64 = 10_000;
        /// Time limit from the lease until the devices are there, in milliseconds, 1000 to 600000. If they do not serve
        /// for this long afterwards, while the lease is renewed, the lease is given away.
        device_timeout_ms: u64 = 20_000;
        /// Time limit to release devices and lease in good order, in milliseconds, 500 to 600000; then attach is
        /// killed.
        detach_timeout_ms: u64 = 10_000;
    }
}

settings! {
    /// The file system or pool on the device.
    pub struct PoolConfig {
        /// "ext4", "xfs" (both on one volume), "zfs" (a pool over all volumes of the set) or "none".
        kind: PoolKind = PoolKind::Ext4;
        /// Where ext4 or XFS is mounted. For zfs: where the datasets appear is in their own properties.
        mount: PathBuf = PathBuf::from("/srv/pg");
        /// Volume of ext4 or XFS. Left out: the only one of the set.
        volume: Option<String> = None, sample "vol1";
        /// Mount options of ext4 or XFS.
        options: String = "noatime".into();
        /// Name of the ZFS pool.
        name: Option<String> = None, sample "tank";
        /// The ZFS pool has `multihost=on`; the agent turns it on if it is off. This is ZFS's own guard, behind the
        /// lease. The pool is not imported on a host without a host id (`zgenhostid`), or with the id of a peer. ZFS
        /// writes all the time, takeovers take longer, and the module zfs needs other parameters (docs/zfs.md).
        multihost: bool = false;
        /// Time limit to check and mount, or to import, in seconds, 1 to 3600. A pool with `multihost=on` whose last
        /// host was lost takes 20 to 25 s more with ZFS's defaults: with `multihost` at least 30.
        import_timeout_s: u64 = 60;
        /// Time limit to unmount or export, in seconds, 1 to 3600.
        export_timeout_s: u64 = 20;
        /// For a host that has lost its lease, or gives it up because of a fault of its own, and cannot release device
        /// or pool: "retry" for ever, or "reboot" the machine, which is the only way out of a suspended ZFS pool. Never
        /// used for a switchover, nor for a pool that somebody has open while the host has the lease and its device
        /// serves: with "reboot" and kind "zfs", processes that keep the pool open are ended when the lease is given
        /// up. Left out: "reboot" if kind is "zfs", else "retry".
        fence_action: Option<FenceAction> = None, sample "retry";
    }
}

impl PoolConfig {
    /// For a host that cannot release its device or pool: as set, else by the kind of the pool. Only a reboot gets rid
    /// of a suspended ZFS pool; a host that tries again would never stand by.
    pub fn fence(&self) -> FenceAction {
        self.fence_action.unwrap_or(match self.kind {
            PoolKind::Zfs => FenceAction::Reboot,
            PoolKind::Ext4 | PoolKind::Xfs | PoolKind::None => FenceAction::Retry,
        })
    }

    /// Why a host that cannot release its pool is rebooted: as set, or by default. `None` if it is not rebooted.
    pub fn reboots_by(&self) -> Option<&'static str> {
        match (self.fence(), self.fence_action) {
            (FenceAction::Retry, _) => None,
            (FenceAction::Reboot, Some(_)) => Some("as set"),
            (FenceAction::Reboot, None) => Some("the default for a ZFS pool"),
        }
    }
}

settings! {
    /// PostgreSQL.
    pub struct DatabaseConfig {
        /// "pg_ctl" (started by the agent itself, as pg_ctl does it), "systemd" or "command".
        kind: DatabaseKind = DatabaseKind::PgCtl;
        /// Its data directory, on the pool.
        data: PathBuf = PathBuf::from("/srv/pg/data");
        /// Folders outside of the set in which tablespaces may lie. Their content is lost with the host, and PostgreSQL
        /// continues without it on another one: only for tablespaces with temporary files, and for configuration that
        /// PostgreSQL only reads. Data directory and WAL have to be on the set in any case; else PostgreSQL is not
        /// started.
        allow_off_set: Vec<PathBuf> = Vec::new();
        /// Where its programs are (postgres, psql).
        bin_dir: PathBuf = PathBuf::from("/usr/lib/postgresql/15/bin");
        /// System user that it runs as, never root; also the user of the agent's own sessions.
        user: String = "postgres".into();
        /// Database of the agent's own sessions.
        dbname: String = "postgres".into();
        /// Directory of its socket (or a host name), as psql's -h.
        host: String = "/var/run/postgresql".into();
        /// Its port.
        port: u16 = 5432;
        /// Further options of the server, as pg_ctl's -o. For kind "pg_ctl". They do not change the data directory.
        options: String = String::new();
        /// Full name of its unit. For kind "systemd". The unit must be disabled, wanted by no other unit, and have
        /// Restart=no; this is checked before each start.
        unit: String = "postgresql@15-main.service".into();
        /// Command that starts it and returns, at once or when it is ready (pg_ctl start). If the command has not
        /// returned after 30 s, it is enough that PostgreSQL runs. Another exit code than 0 before that is a failed
        /// start. For kind "command"; run by sh as root.
        start: Option<String> = None, sample "/usr/local/sbin/pg-up";
        /// Command that stops it and returns once it has ended; $HOLDFAST_STOP is fast or immediate. For kind
        /// "command".
        stop: Option<String> = None, sample "/usr/local/sbin/pg-down";
        /// true: a PostgreSQL with standby.signal is in order. It follows one on another set by streaming replication,
        /// and answers /replica, never /primary, until it is promoted. false: such a PostgreSQL counts as one that does
        /// not start.
        follows: bool = false;
        /// Time limit from its start until it takes writes, recovery included, in seconds, 5 to 86400.
        start_timeout_s: u64 = 300;
        /// Time limit of a planned stop, in seconds, 1 to 3600; then it is stopped at once.
        stop_timeout_s: u64 = 30;
        /// Time limit of the checkpoint before a planned stop, while clients still write, in seconds, 0 to 3600. 0: no
        /// checkpoint.
        checkpoint_timeout_s: u64 = 60;
        /// Interval of the health checks of PostgreSQL, in milliseconds, 100 to 60000.
        probe_ms: u64 = 1000;
        /// PostgreSQL counts as hung when it has not answered for this long while its device worked, in seconds, 1
        /// to 3600.
        health_timeout_s: u64 = 20;
        /// Maximum number of restarts in place within restart_window_s, 0 to 100; after that the lease is given away.
        restarts_max: u32 = 3;
        /// See restarts_max. In seconds, 10 to 86400.
        restart_window_s: u64 = 300;
    }
}

settings! {
    /// A second process that stops PostgreSQL when the agent hangs or has ended.
    pub struct WatchdogConfig {
        /// "helper": a second process kills PostgreSQL and attach. "off": nothing.
        kind: WatchdogKind = WatchdogKind::Helper;
        /// The machine's watchdog device, behind the helper. If nothing else could stop PostgreSQL, it resets the
        /// machine before another host can get the lease. "off", "automatic" (used if it can be opened and set) or
        /// "required" (PostgreSQL is not started here without it). Its timeout is two thirds of the lease, in whole
        /// seconds: for leases of 1.5 s and more. A machine whose PostgreSQL still runs some 70 ms before the end of
        /// the lease is reset; `lease.stop_margin_ms` of 600 and more leaves time.
        mode: WatchdogMode = WatchdogMode::Off;
        /// That device. No other program may have it open, also not systemd with RuntimeWatchdogSec.
        device: PathBuf = PathBuf::from("/dev/watchdog");
        /// An agent that gives no sign of life for this long while PostgreSQL runs counts as hung, in milliseconds,
        /// 2000 to 600000. A new agent process that starts within this time continues without a stop of PostgreSQL.
        /// When the lease has ended, the helper does not wait for it.
        timeout_ms: u64 = 10_000;
    }
}

settings! {
    /// Health checks and commands over HTTP, as Patroni's load balancer files expect them.
    pub struct HttpConfig {
        /// IP:PORT. Anybody may ask for health checks; commands need the token, or with `[tls]` a certificate. Commands
        /// of root on this host go over `run_dir`/agent.sock and need neither.
        listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 8008));
        /// File with a token, the same on all hosts. A switchover from host to host needs it, or `[tls]`. Mode 0600; a
        /// file that others can use is refused. Left out: none.
        token_file: Option<PathBuf> = None, sample "/etc/holdfast/agent.token";
        /// TLS here and towards the agents under `[peers]`, with the files of `[tls]`: the same on all hosts.
        /// `required`: nothing is answered without TLS. `checks`: health checks are, for load balancers that have none.
        /// `off`: plain text only. Left out: `required` with these files, else `off`.
        tls: Option<HttpTls> = None, sample "checks";
    }
}

settings! {
    /// A line of JSON for each command that comes over HTTP or the agent's socket.
    pub struct AuditConfig {
        /// The file; only the agent's user can read it. Commands never wait for it: see
        /// holdfast_agent_audit_dropped_total and holdfast_agent_audit_errors_total. Left out: none.
        log: Option<PathBuf> = None, sample "/var/lib/holdfast-agent/audit.log";
        /// Size at which the file is renamed to FILE.1, in place of an earlier one, and begun anew, 1MiB to 16GiB.
        rotate: ByteSize = ByteSize(64 << 20);
    }
}

settings! {
    /// Mutually authenticated TLS with the gateways, for the agent and its attach, and with other agents: all three
    /// files, or none.
    pub struct TlsConfig {
        /// The authority's certificate (PEM). Left out: none.
        ca: Option<PathBuf> = None, sample "/etc/holdfast/tls/ca.pem";
        /// This host's certificate (PEM), with the DNS name host.holdfast.internal. Left out: none.
        certificate: Option<PathBuf> = None, sample "/etc/holdfast/tls/db1.pem";
        /// Its private key (PEM); a file that others can read is refused. Left out: none.
        key: Option<PathBuf> = None, sample "/etc/holdfast/tls/db1.key";
    }
}

impl TlsConfig {
    /// Reads the files; `None` where none is named.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(&self, role: holdfast_tls::Role) -> Result<Option<Tls>, TlsError> {
        self.files().load(role)
    }

    /// The files, which need not be usable yet.
    pub(crate) fn files(&self) -> TlsFiles {
        TlsFiles { ca: self.ca.clone(), certificate: self.certificate.clone(), key: self.key.clone() }
    }

    /// As on the command line of the program.
    pub fn flags(&self) -> impl Iterator<Item = (&'static str, &PathBuf)> {
        let all = [("--tls-ca", &self.ca), ("--tls-certificate", &self.certificate), ("--tls-key", &self.key)];
        all.into_iter().filter_map(|(flag, path)| path.as_ref().map(|path| (flag, path)))
    }
}

settings! {
    /// Programs that the agent runs when something happens, by sh, with HOLDFAST_ROLE, HOLDFAST_SET, HOLDFAST_NAME,
    /// HOLDFAST_EPOCH. Their output goes to the log. The agent waits only for before_start.
    pub struct HooksConfig {
        /// Run before PostgreSQL is started, with HOLDFAST_DATA (its data directory) too. The agent waits for it. If
        /// its exit code is not 0, PostgreSQL is not started here, and its output is the reason. Left out: none.
        before_start: Option<String> = None, sample "/usr/local/sbin/not-two-primaries";
        /// Run when this host becomes or stops being primary. Left out: none.
        on_role_change: Option<String> = None, sample "/usr/local/sbin/on-role-change";
        /// Run at each line of the history, which is its input. Left out: none.
        on_event: Option<String> = None, sample "logger -t holdfast-agent";
        /// Time limit of one program, in seconds, 1 to 3600; then it is killed.
        timeout_s: u64 = 30;
    }
}

/// Name and HTTP address of each other host's agent.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PeersConfig(pub std::collections::BTreeMap<String, String>);

impl AgentConfig {
    /// Reads TOML without a check of the values.
    ///
    /// # Errors
    /// Not TOML, an unknown field, or a value of another type.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// A configuration that works for a first try: the defaults, and a peer.
    pub fn example() -> Self {
        let peers = [("db2".to_string(), "10.0.0.2:8008".to_string())];
        Self { peers: PeersConfig(peers.into()), ..Self::default() }
    }

    /// TLS of the HTTP door, and towards the other agents.
    pub fn http_tls(&self) -> HttpTls {
        if self.tls.flags().next().is_some() { self.http.tls.unwrap_or(HttpTls::Required) } else { HttpTls::Off }
    }

    /// The settings of the state machine.
    pub fn policy(&self) -> crate::machine::Policy {
        use crate::machine::{Guard, LeasePolicy, RestartPolicy, TakeoverPolicy, Timeouts};
        use std::time::Duration;
        let (ms, s) = (Duration::from_millis, Duration::from_secs);
        let (takeover, limits) = (&self.takeover, self.limits());
        crate::machine::Policy {
            name: self.name.clone(),
            takeover: TakeoverPolicy {
                automatic: self.mode == Mode::Automatic,
                nofailover: self.nofailover,
                campaign_wait: ms(u64::from(100u32.saturating_sub(self.priority)) * takeover.priority_step_ms),
                flap_delay: s(takeover.flap_delay_s),
                per_hour_max: takeover.per_hour_max as usize,
                backoff_min: ms(takeover.backoff_min_ms),
                backoff_max: ms(takeover.backoff_max_ms),
                switchover_hold: s(takeover.switchover_hold_s),
            },
            timeouts: Timeouts {
                acquire: ms(self.attach.acquire_timeout_ms),
                attach: ms(self.attach.device_timeout_ms),
                start: s(limits.start_s),
                health: s(limits.health_s),
            },
            lease: LeasePolicy { stop_margin: ms(self.lease.stop_margin_ms), ttl: ms(self.lease.ttl_ms) },
            restarts: RestartPolicy { max: limits.restarts_max as usize, window: s(limits.restart_window_s) },
            fence_reboot: self.pool.fence() == FenceAction::Reboot,
            ends_users: self.pool.kind == PoolKind::Zfs && self.pool.fence() == FenceAction::Reboot,
            workload: self.workload(),
            follows: self.service.is_none() && self.database.follows,
            guard: match self.watchdog.mode {
                WatchdogMode::Off => Guard::Off,
                WatchdogMode::Automatic => Guard::Automatic,
                WatchdogMode::Required => Guard::Required,
            },
        }
    }
}
