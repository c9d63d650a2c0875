//! Ranges and relations of settings.

use super::{AgentConfig, DatabaseKind, PoolConfig, PoolKind, ServiceConfig, ServiceKind, WatchdogKind, WatchdogMode};
use holdfast_tls::HttpTls;
use std::fmt;
use std::path::PathBuf;

/// With `pool.multihost`: by its defaults, ZFS's activity check of a lost host's pool takes up to 25 s (twice ten
/// intervals of a second, and up to a quarter more). An import with a shorter limit would never succeed.
const MULTIHOST_IMPORT_MIN_S: u64 = 30;

/// Reason why settings cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("{}: cannot be read", path.display())]
    Read {
        /// Its path.
        path: PathBuf,
        /// The reason.
        #[source]
        source: std::io::Error,
    },
    /// The file has another form.
    #[error("{}: cannot be read as settings", path.display())]
    Parse {
        /// Its path.
        path: PathBuf,
        /// The place, and what was expected.
        #[source]
        source: Box<toml::de::Error>,
    },
    /// Values are out of range or do not go together.
    #[error("{}", problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "))]
    Invalid {
        /// All faults.
        problems: Vec<Problem>,
    },
}

/// One fault.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// As in the file, such as `lease.poll_ms`.
    pub field: String,
    /// What was found and what was expected.
    pub what: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.what)
    }
}

pub(super) fn problems(config: &AgentConfig) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut say = |field: &str, what: String| problems.push(Problem { field: field.into(), what });
    check_addresses(config, &mut say);
    check_ranges(config, &mut say);
    check_pool(&config.pool, &mut say);
    check_programs(config, &mut say);
    check_paths(config, &mut say);
    if let Some(service) = &config.service {
        check_service(service, &mut say);
    }
    problems
}

/// Names, and the addresses of gateways and peers.
fn check_addresses(config: &AgentConfig, say: &mut impl FnMut(&str, String)) {
    if let Err(error) = holdfast_types::Owner::new(config.name.as_str()) {
        say("name", error.to_string());
    }
    if let Err(error) = holdfast_types::Name::new(config.set.as_str()) {
        say("set", error.to_string());
    }
    if config.gateways.is_empty() {
        say("gateways", "found none, expected HOST:PORT of at least one gateway".into());
    }
    for address in config.gateways.iter().chain(config.peers.0.values()) {
        if holdfast_api::host_port(address).is_none() {
            say("gateways and peers", format!("found {address:?}, expected HOST:PORT"));
        }
    }
    if config.peers.0.contains_key(&config.name) {
        say("peers", format!("found this host itself ({}), expected the others only", config.name));
    }
}

fn check_ranges(config: &AgentConfig, say: &mut impl FnMut(&str, String)) {
    let (takeover, lease, attach, pool, database) =
        (&config.takeover, &config.lease, &config.attach, &config.pool, &config.database);
    for (field, found, low, high) in [
        ("priority", u64::from(config.priority), 1, 100),
        ("takeover.priority_step_ms", takeover.priority_step_ms, 0, 1000),
        ("takeover.flap_delay_s", takeover.flap_delay_s, 0, 3600),
        ("takeover.per_hour_max", u64::from(takeover.per_hour_max), 1, 1000),
        ("takeover.backoff_min_ms", takeover.backoff_min_ms, 100, 600_000),
        ("takeover.backoff_max_ms", takeover.backoff_max_ms, takeover.backoff_min_ms, 3_600_000),
        ("takeover.switchover_hold_s", takeover.switchover_hold_s, 1, 600),
        ("lease.poll_ms", lease.poll_ms, 100, 10_000),
        ("lease.eager_poll_ms", lease.eager_poll_ms, 20, 1000),
        ("lease.ttl_ms", lease.ttl_ms, 1000, 600_000),
        ("lease.stop_margin_ms", lease.stop_margin_ms, 50, lease.ttl_ms / 2),
        ("attach.acquire_timeout_ms", attach.acquire_timeout_ms, 1000, 600_000),
        ("attach.device_timeout_ms", attach.device_timeout_ms, 1000, 600_000),
        ("attach.detach_timeout_ms", attach.detach_timeout_ms, 500, 600_000),
        ("pool.import_timeout_s", pool.import_timeout_s, 1, 3600),
        ("pool.export_timeout_s", pool.export_timeout_s, 1, 3600),
        ("database.start_timeout_s", database.start_timeout_s, 5, 86_400),
        ("database.stop_timeout_s", database.stop_timeout_s, 1, 3600),
        ("database.checkpoint_timeout_s", database.checkpoint_timeout_s, 0, 3600),
        ("database.probe_ms", database.probe_ms, 100, 60_000),
        ("database.health_timeout_s", database.health_timeout_s, 1, 3600),
        ("database.restarts_max", u64::from(database.restarts_max), 0, 100),
        ("database.restart_window_s", database.restart_window_s, 10, 86_400),
        ("watchdog.timeout_ms", config.watchdog.timeout_ms, 2000, 600_000),
        ("hooks.timeout_s", config.hooks.timeout_s, 1, 3600),
        ("audit.rotate", config.audit.rotate.0, 1 << 20, 16 << 30),
    ] {
        if !(low..=high).contains(&found) {
            say(field, format!("found {found}, expected {low} to {high}"));
        }
    }
}

fn check_pool(pool: &PoolConfig, say: &mut impl FnMut(&str, String)) {
    if pool.kind == PoolKind::Zfs && pool.name.is_none() {
        say("pool.name", "found none, expected the pool's name (pool.kind is zfs)".into());
    }
    if pool.kind != PoolKind::Zfs && pool.multihost {
        say("pool.multihost", "found true, expected false: only a ZFS pool has it (pool.kind)".into());
    }
    if pool.kind == PoolKind::Zfs && pool.multihost && pool.import_timeout_s < MULTIHOST_IMPORT_MIN_S {
        let found = pool.import_timeout_s;
        say(
            "pool.import_timeout_s",
            format!(
                "found {found}, expected {MULTIHOST_IMPORT_MIN_S} or more with pool.multihost: ZFS's activity check of a lost host's pool takes up to 25 s by its defaults"
            ),
        );
    }
}

/// PostgreSQL, watchdog, TLS and traces.
fn check_programs(config: &AgentConfig, say: &mut impl FnMut(&str, String)) {
    let database = &config.database;
    if database.kind == DatabaseKind::Command && (database.start.is_none() || database.stop.is_none()) {
        say("database.start, database.stop", "found none, expected commands (database.kind is command)".into());
    }
    if config.watchdog.kind == WatchdogKind::Off && config.watchdog.mode != WatchdogMode::Off {
        say("watchdog.mode", "found a device without the helper, which holds it; expected watchdog.kind = \"helper\", or watchdog.mode = \"off\"".into());
    }
    if database.kind == DatabaseKind::Systemd && !database.unit.contains('.') {
        say(
            "database.unit",
            format!("found {:?}, expected a unit's whole name, such as postgresql@15-main.service", database.unit),
        );
    }
    let tls = config.tls.flags().count();
    if tls != 0 && tls != 3 {
        say("tls", format!("found {tls} files, expected all of ca, certificate and key, or none"));
    }
    let http = config.http.tls.unwrap_or(HttpTls::Off);
    if tls == 0 && http != HttpTls::Off {
        say("http.tls", format!("found {}, expected the three files of [tls], or off", http.as_str()));
    }
    if let Some(endpoint) = &config.traces.endpoint
        && let Err(expected) = holdfast_traces::check(endpoint, config.traces.ca.is_some())
    {
        say("traces.endpoint", format!("found {endpoint:?}, expected {expected}"));
    }
    if database.user == "root" {
        say("database.user", "found root, expected a user for PostgreSQL alone: it refuses to run as root".into());
    }
}

fn check_paths(config: &AgentConfig, say: &mut impl FnMut(&str, String)) {
    let (pool, database, setting) = (&config.pool, &config.database, config.data_setting());
    let in_pool = matches!(pool.kind, PoolKind::Ext4 | PoolKind::Xfs);
    if in_pool && !config.data().starts_with(&pool.mount) {
        let (data, mount) = (config.data().display(), pool.mount.display());
        say(setting, format!("found {data}, expected a directory below pool.mount, {mount}"));
    }
    // Nothing of the agent's is mounted there.
    let nowhere = |service: &ServiceConfig| !in_pool && service.data.as_ref().is_none_or(|data| !data.is_absolute());
    if config.service.as_ref().is_some_and(nowhere) {
        say(setting, "found none, expected the absolute path of its directory on the pool (pool.kind)".into());
    }
    for folder in &database.allow_off_set {
        if !folder.is_absolute() || database.data.starts_with(folder) {
            let found = folder.display();
            say(
                "database.allow_off_set",
                format!("found {found}, expected an absolute path, and no folder that contains the data directory"),
            );
        }
    }
    for (field, dir) in [("dir", &config.dir), ("run_dir", &config.run_dir), ("pool.mount", &pool.mount)] {
        if !dir.is_absolute() {
            say(field, format!("found {}, expected an absolute path", dir.display()));
        }
    }
    let is_misplaced = |log: &&PathBuf| !log.is_absolute() || in_pool && log.starts_with(&pool.mount);
    if let Some(log) = config.audit.log.as_ref().filter(is_misplaced) {
        let found = log.display();
        say("audit.log", format!("found {found}, expected an absolute path on a disk of this host"));
    }
    // On every kind of pool: the agent itself would keep it from being released.
    if let Some(log) = config.audit.log.as_ref().filter(|log| log.starts_with(config.data())) {
        let (found, data) = (log.display(), config.data().display());
        let expected = format!("expected a file outside of {setting}, {data}, which is on the pool");
        let why = "the agent has it open, and the pool could not be released for another host";
        let own = config.dir.join("audit.log");
        say(
            "audit.log",
            format!("found {found}, {expected}: {why}. Set it to {}, and move the file there", own.display()),
        );
    }
    if in_pool && (config.dir.starts_with(&pool.mount) || config.run_dir.starts_with(&pool.mount)) {
        say("dir, run_dir", "found below pool.mount, expected on a disk of this host".into());
    }
}

/// Whether it is the whole name of a unit of type service. It is the name of a directory too, that of its control
/// group, which is killed: a slice has many services, and `..` is no unit.
fn is_service_unit(unit: &str) -> bool {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || ":-_.\\@".contains(c);
    unit.strip_suffix(".service").is_some_and(|name| !name.is_empty() && name.chars().all(is_plain))
}

/// A service other than PostgreSQL.
fn check_service(service: &ServiceConfig, say: &mut impl FnMut(&str, String)) {
    for (field, found, low, high) in [
        ("service.check_timeout_ms", service.check_timeout_ms, 100, 60_000),
        ("service.start_timeout_s", service.start_timeout_s, 1, 86_400),
        ("service.stop_timeout_s", service.stop_timeout_s, 1, 3600),
        ("service.probe_ms", service.probe_ms, 100, 60_000),
        ("service.health_timeout_s", service.health_timeout_s, 1, 3600),
        ("service.restarts_max", u64::from(service.restarts_max), 0, 100),
        ("service.restart_window_s", service.restart_window_s, 10, 86_400),
    ] {
        if !(low..=high).contains(&found) {
            say(field, format!("found {found}, expected {low} to {high}"));
        }
    }
    let is_word = |text: &str| !text.is_empty() && text.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c));
    if !is_word(&service.name) {
        say("service.name", format!("found {:?}, expected letters, digits, '-', '_' and '.'", service.name));
    }
    if service.check.is_none() {
        say("service.check", "found none, expected a command: exit code 0 if the service serves".into());
    }
    if service.user.is_empty() {
        say("service.user", "found none, expected a system user".into());
    }
    match service.kind {
        ServiceKind::Command if service.start.is_none() => {
            say("service.start", "found none, expected a command (service.kind is command)".into());
        }
        ServiceKind::Systemd if !is_service_unit(&service.unit) => say(
            "service.unit",
            format!("found {:?}, expected the whole name of a service, such as holdfast-nfs.service", service.unit),
        ),
        ServiceKind::Command | ServiceKind::Systemd => {}
    }
}
