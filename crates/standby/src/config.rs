//! Settings of one standby: a PostgreSQL for reading on a local copy of a snapshot.

use holdfast_agent::config::{
    AgentConfig, AttachConfig, ConfigError, DatabaseConfig, DatabaseKind, Device, FenceAction, PoolConfig, PoolKind,
    Problem, TlsConfig,
};
use holdfast_agent::drivers::zfs::rules::COPY_POOL;
use holdfast_settings::{Documented, FieldDoc, sample_of, settings};
use holdfast_tls::HttpTls;
use holdfast_tls::files::{self, SETTINGS_BYTES_MAX};
use holdfast_types::ByteSize;
use serde::{Deserialize, Serialize};
use std::net::SocketAddr;
use std::path::{Component, Path, PathBuf};

/// Maximum length of a standby's name, in bytes. Its snapshots are named after it and the time.
const NAME_BYTES_MAX: usize = 40;

/// Options with which the PostgreSQL of a standby is always started. It is read-only by default. No setting that was
/// copied from the primary may act outside of this host: no WAL into the archive of the primary, no subscriptions, no
/// wait for synchronous standbys, no streaming under the name of the original. Its writes are thrown away, so they are
/// not synced, and there is no autovacuum.
const OPTIONS: &str = "-c default_transaction_read_only=on -c archive_mode=off -c max_logical_replication_workers=0 \
                       -c synchronous_standby_names='' -c primary_conninfo= -c primary_slot_name= -c restore_command= \
                       -c autovacuum=off -c fsync=off -c full_page_writes=off";

/// Options after those of the user. The copied settings may name files of the primary, which may be in use on this
/// host: this server must not write to them. A `data_directory` in a configuration file would outrank `-D`; the logging
/// collector would write to the log of the primary; and many configurations name a file for the process id.
fn last_options(data: &Path) -> String {
    let data = data.display().to_string().replace('\'', "'\\''");
    format!("-c data_directory='{data}' -c logging_collector=off -c external_pid_file=external.pid")
}

settings! {
    /// Settings of one standby (`holdfast standby run --config FILE`): a PostgreSQL for reading on a local copy of a
    /// snapshot. A field that is left out has the value shown, or none where it is marked "Left out: none". An unknown
    /// field is an error.
    pub struct StandbyConfig {
        /// Name of this standby, at most 40 characters. Its snapshots are named standby-NAME-TIME: unique among all
        /// standbys of the set.
        name: String = "report1".into();
        /// The volume set that the primary's PostgreSQL lives on.
        set: String = "demo".into();
        /// Admin addresses of gateways, HOST:PORT each. Any of them finds the others.
        gateways: Vec<String> = vec!["127.0.0.1:7400".into()];
        /// Directory of the state, of PostgreSQL's output and of the scratch files. On a local disk with space for
        /// twice scratch_max.
        dir: PathBuf = PathBuf::from("/var/lib/holdfast-standby");
        /// Directory of what a reboot may delete: sockets, process ids.
        run_dir: PathBuf = PathBuf::from("/run/holdfast-standby");
        /// Interval in which `standby run` takes a new snapshot, in seconds, 10 to 604800. After a failed refresh the
        /// old data is served on, and the refresh is tried again after retry_s.
        refresh_every_s: u64 = 900;
        /// See refresh_every_s. In seconds, 1 to 86400.
        retry_s: u64 = 30;
        /// Maximum that a copy may write locally until the next refresh (recovery, sorts, temporary tables), for each
        /// volume, 64MiB or more. Then PostgreSQL gets "no space left on device".
        scratch_max: ByteSize = ByteSize(10 << 30);
        /// "auto" or "nbdfuse": a loop device over the file of nbdfuse.
        device: Device = Device::Auto;
        /// Time limit to take a snapshot and have it in the store, in seconds, 5 to 86400. The first one of a set
        /// uploads everything that is not in the store yet.
        snapshot_timeout_s: u64 = 600;
        /// Time limit until the device of a copy is there, in seconds, 1 to 600.
        device_timeout_s: u64 = 60;
        /// The file system on the copy.
        pool: StandbyPool = StandbyPool::default();
        /// PostgreSQL.
        database: StandbyDatabase = StandbyDatabase::default();
        /// Health checks for load balancers.
        http: StandbyHttp = StandbyHttp::default();
        /// Mutually authenticated TLS towards the gateways: all three files, or none. The certificate needs the role of
        /// an administrator, which may make and delete snapshots.
        tls: TlsConfig = TlsConfig::default();
    }
}

settings! {
    /// The file system on the copy.
    pub struct StandbyPool {
        /// "ext4", "xfs" or "zfs", as on the primary. A ZFS pool (over all volumes of the set) can be copied only to a
        /// host that does not have the pool itself.
        kind: PoolKind = PoolKind::Ext4;
        /// The copies are mounted in turn at a/ and b/ below this directory. Each dataset of a ZFS pool is mounted at
        /// its own mountpoint below that.
        mount: PathBuf = PathBuf::from("/srv/standby");
        /// Volume of ext4 or XFS. Left out: the only one of the set.
        volume: Option<String> = None, sample "vol1";
        /// Mount options of ext4 or XFS.
        options: String = "noatime".into();
        /// Time limit to check and mount, or to import, in seconds, 1 to 3600. A pool with `multihost=on` needs some
        /// seconds more.
        import_timeout_s: u64 = 60;
    }
}

settings! {
    /// PostgreSQL. It has the settings of the primary (postgresql.conf, pg_hba.conf) unless a setting here is
    /// different, and is read-only.
    pub struct StandbyDatabase {
        /// Its data directory, below the root of the file system. Example: data, for /srv/pg/data of a primary that
        /// mounts at /srv/pg. On ZFS the whole path of the primary: tank/pg/data for /tank/pg/data.
        data: PathBuf = PathBuf::from("data");
        /// Where its programs are (pg_ctl, psql): of the primary's major version.
        bin_dir: PathBuf = PathBuf::from("/usr/lib/postgresql/15/bin");
        /// System user that it runs as, never root, with the number that it has on the primary.
        user: String = "postgres".into();
        /// Database of the standby's own sessions.
        dbname: String = "postgres".into();
        /// Directory of its socket (or a host name), as psql's -h.
        host: String = "/var/run/postgresql".into();
        /// Its port.
        port: u16 = 5432;
        /// Further options of the server, as pg_ctl's -o, such as "-c listen_addresses=10.0.0.9 -c shared_buffers=2GB".
        options: String = String::new();
        /// Time limit from its start until it answers, recovery included, in seconds, 5 to 86400.
        start_timeout_s: u64 = 300;
        /// Time limit of a stop in good order when it is replaced, in seconds, 1 to 3600; then it is killed. Its
        /// sessions end when the stop begins.
        stop_timeout_s: u64 = 30;
    }
}

settings! {
    /// Health checks for load balancers: GET /replica is 200 while PostgreSQL here answers, /replica?max_age_s=900
    /// while its data is also no older.
    pub struct StandbyHttp {
        /// IP:PORT. Anybody may ask; it accepts no commands.
        listen: SocketAddr = SocketAddr::from(([127, 0, 0, 1], 8018));
        /// TLS here, with the files of `[tls]`: names and metrics are for certificates of the authority, everybody else
        /// gets the code of a health check alone. `checks`: health checks are answered without TLS, too. `required`:
        /// nothing is. `off`: plain text only. Left out: `checks` with these files, else `off`.
        tls: Option<HttpTls> = None, sample "required";
    }
}

/// One of the two slots that copies use in turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum StandbySlot {
    /// The first.
    A,
    /// The second.
    B,
}

impl StandbySlot {
    /// Both.
    pub const ALL: [Self; 2] = [Self::A, Self::B];

    /// Name of its directory.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::A => "a",
            Self::B => "b",
        }
    }

    /// The other one.
    pub fn other(self) -> Self {
        match self {
            Self::A => Self::B,
            Self::B => Self::A,
        }
    }
}

impl StandbyConfig {
    /// Reads and validates `path`.
    ///
    /// # Errors
    /// Unreadable, not TOML of this form, or [`StandbyConfig::validate`]'s.
    pub fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = files::read_text(path, SETTINGS_BYTES_MAX)
            .map_err(|source| ConfigError::Read { path: path.into(), source })?;
        let config: Self = toml::from_str(&text)
            .map_err(|source| ConfigError::Parse { path: path.into(), source: Box::new(source) })?;
        config.validate()?;
        Ok(config)
    }

    /// TLS of the HTTP door. Health checks stay in plain text unless the settings say otherwise: a load balancer cannot
    /// verify a person's certificate.
    pub fn http_tls(&self) -> HttpTls {
        if self.tls.flags().next().is_some() { self.http.tls.unwrap_or(HttpTls::Checks) } else { HttpTls::Off }
    }

    /// Checks ranges, and the relations between fields.
    ///
    /// # Errors
    /// All faults, not only the first.
    pub fn validate(&self) -> Result<(), ConfigError> {
        // The rules for an agent's settings apply here too.
        let agent = self.slot(StandbySlot::A, false);
        let mut problems = agent.problems();
        let mut say = |field: &str, what: String| problems.push(Problem { field: field.into(), what });
        if let Err(error) = holdfast_types::Name::new(self.name.as_str()) {
            say("name", error.to_string());
        } else if self.name.len() > NAME_BYTES_MAX {
            say("name", format!("found {} characters, expected at most {NAME_BYTES_MAX}", self.name.len()));
        }
        for (field, found, low, high) in [
            ("refresh_every_s", self.refresh_every_s, 10, 604_800),
            ("retry_s", self.retry_s, 1, 86_400),
            ("scratch_max", self.scratch_max.0, 64 << 20, 1 << 50),
            ("snapshot_timeout_s", self.snapshot_timeout_s, 5, 86_400),
            ("device_timeout_s", self.device_timeout_s, 1, 600),
        ] {
            if !(low..=high).contains(&found) {
                say(field, format!("found {found}, expected {low} to {high}"));
            }
        }
        let http = self.http.tls.unwrap_or(HttpTls::Off);
        if self.tls.flags().next().is_none() && http != HttpTls::Off {
            say("http.tls", format!("found {}, expected the three files of [tls], or off", http.as_str()));
        }
        if !matches!(self.device, Device::Auto | Device::Nbdfuse) {
            say("device", format!("found {}, expected auto or nbdfuse", self.device.as_str()));
        }
        if self.pool.kind == PoolKind::None {
            say("pool.kind", "found none, expected ext4, xfs or zfs: a standby's copies are mounted".into());
        }
        if !self.database.data.components().all(|part| matches!(part, Component::Normal(_))) {
            let found = self.database.data.display();
            say("database.data", format!("found {found}, expected a path below the file system's root, such as data"));
        }
        if problems.is_empty() { Ok(()) } else { Err(ConfigError::Invalid { problems }) }
    }

    /// Directory for the socket of a slot's private PostgreSQL, while it recovers.
    pub fn private_dir(&self, slot: StandbySlot) -> PathBuf {
        self.run_dir.join(slot.as_str()).join("private")
    }

    /// The settings for the agent's drivers. `private`: for a PostgreSQL that clients cannot reach, while it recovers.
    pub fn slot(&self, slot: StandbySlot, private: bool) -> AgentConfig {
        let (pool, database) = (&self.pool, &self.database);
        let mount = pool.mount.join(slot.as_str());
        let socket = self.private_dir(slot).display().to_string();
        let data = mount.join(&database.data);
        let mut options = format!("{OPTIONS} {} {}", database.options, last_options(&data));
        if private {
            options += &format!(" -c listen_addresses='' -c unix_socket_directories='{socket}'");
        }
        AgentConfig {
            name: self.name.clone(),
            set: self.set.clone(),
            gateways: self.gateways.clone(),
            dir: self.dir.join(slot.as_str()),
            run_dir: self.run_dir.join(slot.as_str()),
            attach: AttachConfig {
                device: self.device,
                device_timeout_ms: self.device_timeout_s.saturating_mul(1000),
                ..AttachConfig::default()
            },
            pool: PoolConfig {
                kind: pool.kind,
                name: (pool.kind == PoolKind::Zfs).then(|| format!("{COPY_POOL}{}-{}", self.name, slot.as_str())),
                volume: pool.volume.clone(),
                options: pool.options.clone(),
                mount: mount.clone(),
                import_timeout_s: pool.import_timeout_s,
                // A copy that stays does no harm, and its host may be the primary of another set.
                fence_action: Some(FenceAction::Retry),
                ..PoolConfig::default()
            },
            database: DatabaseConfig {
                kind: DatabaseKind::PgCtl,
                data,
                bin_dir: database.bin_dir.clone(),
                user: database.user.clone(),
                dbname: database.dbname.clone(),
                host: if private { socket } else { database.host.clone() },
                port: database.port,
                options,
                start_timeout_s: database.start_timeout_s,
                stop_timeout_s: database.stop_timeout_s,
                ..DatabaseConfig::default()
            },
            tls: self.tls.clone(),
            ..AgentConfig::default()
        }
    }
}

fn section(name: &str) -> &'static [FieldDoc] {
    match name {
        "pool" => StandbyPool::FIELDS,
        "database" => StandbyDatabase::FIELDS,
        "http" => StandbyHttp::FIELDS,
        "tls" => TlsConfig::FIELDS,
        _ => &[],
    }
}

/// The documented sample file: the defaults with every field and its comment.
///
/// # Errors
/// Never for the present defaults. A value that TOML cannot hold would be an error.
pub fn sample() -> Result<String, toml::ser::Error> {
    let values = toml::Table::try_from(StandbyConfig::default())?;
    Ok(sample_of::<StandbyConfig>("Print this file: holdfast standby config", &values, section))
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_testkit::golden::{Written, kept};

    /// The sample is the example; `UPDATE_GOLDEN=1 cargo test -p holdfast-standby config` rewrites it.
    const SAMPLE: &str = "../../deploy/examples/standby/standby.toml";

    #[test]
    fn the_example_is_the_generated_sample_and_is_valid() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(SAMPLE);
        let made = sample().unwrap();
        if std::env::var_os("UPDATE_GOLDEN").is_some() {
            std::fs::write(&path, &made).unwrap();
        }
        let kept = std::fs::read_to_string(&path).unwrap_or_default();
        assert_eq!(kept, made, "{SAMPLE} is stale: UPDATE_GOLDEN=1 cargo test -p holdfast-standby config");
        assert_eq!(StandbyConfig::load(&path).unwrap(), StandbyConfig::default());
    }

    /// A settings file of an earlier release starts a standby of this one.
    #[test]
    fn the_samples_of_earlier_releases_are_valid() {
        let path = tempfile::NamedTempFile::new().unwrap().into_temp_path();
        let read = |bytes: &[u8]| {
            std::fs::write(&path, bytes).map_err(|error| error.to_string())?;
            StandbyConfig::load(&path).map(drop).map_err(|error| error.to_string())
        };
        kept(env!("CARGO_MANIFEST_DIR"), "standby.toml", Written::Free(sample().unwrap().as_bytes()), &Ok(()), read);
    }

    #[test]
    fn a_file_is_read_with_a_bound() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("standby.toml");
        std::fs::write(&path, vec![b'\n'; SETTINGS_BYTES_MAX as usize + 1]).unwrap();
        let error = StandbyConfig::load(&path).unwrap_err();
        let ConfigError::Read { source, .. } = error else {
            panic!("found {error}, expected that the file cannot be read")
        };
        assert_eq!(source.to_string(), "found at least 1048577 bytes, expected at most 1048576");
    }

    #[test]
    fn what_cannot_work_is_named() {
        let mut config = StandbyConfig { name: "x".repeat(41), scratch_max: ByteSize(1), ..StandbyConfig::default() };
        config.pool.kind = PoolKind::None;
        config.pool.import_timeout_s = 0;
        config.database.data = "/srv/pg/data".into();
        config.database.user = "root".into();
        config.device = Device::Kernel;
        let error = config.validate().unwrap_err().to_string();
        for field in
            ["name", "scratch_max", "pool.kind", "pool.import_timeout_s", "database.data", "database.user", "device"]
        {
            assert!(error.contains(field), "{field}: {error}");
        }
    }

    #[test]
    fn the_http_door_has_tls_if_there_are_certificates() {
        let files = "[tls]\nca = \"/ca\"\ncertificate = \"/c\"\nkey = \"/k\"";
        for (lines, mode) in [
            (String::new(), HttpTls::Off),
            (files.to_owned(), HttpTls::Checks),
            (format!("{files}\n[http]\ntls = \"required\""), HttpTls::Required),
            (format!("{files}\n[http]\ntls = \"off\""), HttpTls::Off),
        ] {
            let config: StandbyConfig = toml::from_str(&lines).unwrap();
            config.validate().unwrap();
            assert_eq!(config.http_tls(), mode, "{lines}");
        }
        let config: StandbyConfig = toml::from_str("[http]\ntls = \"required\"").unwrap();
        let error = config.validate().unwrap_err().to_string();
        assert!(error.contains("http.tls: found required, expected the three files"), "{error}");
    }

    #[test]
    fn the_slots_share_nothing_but_the_port() {
        let config = StandbyConfig::default();
        let (a, b) = (config.slot(StandbySlot::A, false), config.slot(StandbySlot::B, false));
        assert_ne!(a.pool.mount, b.pool.mount);
        assert_ne!(a.database.data, b.database.data);
        assert_ne!((&a.dir, &a.run_dir), (&b.dir, &b.run_dir));
        assert_eq!(a.database.port, b.database.port);
        assert!(a.database.options.contains("default_transaction_read_only=on"));
        // The user's options do not change where it writes.
        let own = "-c data_directory=/srv/pg/data -c logging_collector=on";
        let config = StandbyConfig { database: StandbyDatabase { options: own.into(), ..config.database }, ..config };
        let options = config.slot(StandbySlot::A, false).database.options;
        let at = |what: &str| options.rfind(what).unwrap_or_else(|| panic!("no {what} in {options}"));
        assert!(at("-c data_directory='/srv/standby/a/data'") > at(own), "{options}");
        assert!(at("-c logging_collector=off") > at(own), "{options}");
        let mut zfs = config.clone();
        (zfs.pool.kind, zfs.database.data) = (PoolKind::Zfs, "tank/pg/data".into());
        zfs.validate().unwrap();
        let pools = StandbySlot::ALL.map(|which| zfs.slot(which, false).pool.name.unwrap());
        assert_eq!(pools, ["holdfast-standby-report1-a", "holdfast-standby-report1-b"]);
        assert_eq!(zfs.slot(StandbySlot::A, false).database.data, Path::new("/srv/standby/a/tank/pg/data"));
        assert_eq!(StandbySlot::ALL.map(|which| zfs.slot(which, false).pool.fence()), [FenceAction::Retry; 2]);
        let private = config.slot(StandbySlot::B, true);
        assert!(private.database.options.contains("listen_addresses=''"));
        assert_ne!(private.database.host, b.database.host);
    }
}
