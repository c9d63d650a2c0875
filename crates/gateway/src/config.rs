//! Settings of one gateway: values that an operator may change. Components (clock, store, network) are no settings.
//!
//! One struct per section. Defaults are in `Default` only. The comment of each field gives unit, range and the cost of
//! a change. It is also the comment in the sample file, `crates/gateway/gateway.sample.toml`; a test compares that file
//! with [`sample`]. No field holds a secret, only the place of one.

mod check;
mod document;
mod key;
pub mod live;
mod load;
mod placing;
mod source;
#[cfg(test)]
mod tests;
mod tls;
mod traces;

pub use check::{ConfigError, Problem};
pub use document::sample;
use holdfast_control::cluster::MemberRole;
use holdfast_control::pair::Durability;
use holdfast_etcd::EtcdOptions;
use holdfast_settings::settings;
use holdfast_tls::HttpTls;
use holdfast_tls::files::{self, PEM_BYTES_MAX};
use holdfast_types::{ByteSize, Locality, Name};
pub use key::KeyConfig;
pub use placing::PlacingConfig;
use serde::{Deserialize, Serialize};
pub use source::{Mistake, known, lines, read};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
pub use tls::{NbdTls, TlsConfig, TlsTransition};
pub use traces::TracesConfig;

/// A name that is written in this source. Only defaults use it, and a test builds every default.
fn fixed(text: &str) -> Name {
    match Name::new(text) {
        Ok(name) => name,
        Err(error) => unreachable!("a default is a valid name: {error}"),
    }
}

fn local(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;

/// How segments are compressed before they are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Compression {
    /// No compression: for data that is compressed already.
    None,
    /// Fast, and cheap on any machine.
    Lz4,
    /// Smaller objects for several times the CPU time.
    Zstd,
}

/// Who may read an export of a snapshot, `SET/VOLUME@SNAPSHOT`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SnapshotExports {
    /// Clients that know the snapshot's token.
    #[default]
    Token,
    /// Every client that reaches the NBD port.
    Open,
}

/// How the journal's batches are written.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum JournalIo {
    /// By a thread of its own.
    Thread,
    /// By io_uring, where that can be durable and is allowed; else by the thread.
    Uring,
    /// By io_uring where the kernel needs no thread of its own for it; else by the thread.
    #[default]
    Auto,
}

impl From<JournalIo> for holdfast_log::JournalIo {
    fn from(io: JournalIo) -> Self {
        match io {
            JournalIo::Thread => Self::Thread,
            JournalIo::Uring => Self::Uring,
            JournalIo::Auto => Self::Auto,
        }
    }
}

/// The role of a gateway.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum GatewayRole {
    /// Votes, keeps the journal, and serves clients.
    #[default]
    Gateway,
    /// Votes and keeps the journal, but does not serve.
    Witness,
}

impl GatewayRole {
    /// The name that the admin API uses.
    pub fn as_str(self) -> &'static str {
        match self {
            GatewayRole::Gateway => "gateway",
            GatewayRole::Witness => "witness",
        }
    }
}

impl From<GatewayRole> for MemberRole {
    fn from(role: GatewayRole) -> Self {
        match role {
            GatewayRole::Gateway => MemberRole::Gateway,
            GatewayRole::Witness => MemberRole::Witness,
        }
    }
}

settings! {
    /// Settings of one gateway (`holdfast gateway run --config FILE`).
    /// A field that is left out has the value shown here, or no value if it is marked "Left out: none". An unknown
    /// field is an error.
    /// On SIGHUP (`systemctl reload holdfast-gateway`) the file is read again. These settings are taken then, the
    /// others at the next start: log, lease_ttl_ms, cache.keep_uploaded, store.allowed; in `[upload]` interval_ms,
    /// bytes, compression and parallel; all of `[placing]`, `[space]` and `[scrub]`; `[audit]`, if there is a log.
    pub struct GatewayConfig {
        /// Name of this gateway, unique in the cluster. For display and for commands. The identity of a gateway is on
        /// its disk, not in its name.
        name: Name = fixed("g1");
        /// Region of this gateway, if `locality` is not set.
        region: Name = fixed("local");
        /// Where this gateway stands: `region=NAME`, with `zone=NAME` and `host=NAME` if known. The voters of a set are
        /// spread by it. Read when the gateway joins; `holdfast gateway update` applies a later change. Left out:
        /// `region` alone.
        locality: Option<Locality> = None, sample "region=local,zone=a,host=h1";
        /// Role of this gateway, `gateway` or `witness`. A witness votes and keeps the journal but does not serve
        /// clients: it is the third voter beside two gateways. Read when the gateway joins; a later change has no
        /// effect.
        role: GatewayRole = GatewayRole::Gateway;
        /// Directory of the journal, the disk's identity and the cache. One gateway per directory, on a local file
        /// system.
        data_dir: PathBuf = PathBuf::from("/var/lib/holdfast");
        /// Admin API (gRPC) for commands, agents and attach processes: IP:PORT.
        api_listen: SocketAddr = local(7400);
        /// API for the other gateways (gRPC, Raft): IP:PORT.
        peer_listen: SocketAddr = local(7401);
        /// NBD over TCP: IP:PORT. Left out: none.
        nbd_listen: Option<SocketAddr> = None, sample "127.0.0.1:10809";
        /// NBD over a Unix socket: its path. Left out: none. Set `nbd_listen`, `nbd_unix` or both.
        nbd_unix: Option<PathBuf> = None, sample "/run/holdfast/nbd.sock";
        /// A page for people, /metrics (Prometheus), /livez, /readyz and /serves/SET by HTTP: IP:PORT. Left out: none.
        http_listen: Option<SocketAddr> = None, sample "127.0.0.1:7402";
        /// Allow `SET/VOLUME` without a token. Such a connection takes a free lease and holds it until the connection
        /// ends. For testing: only tokens keep out a host that lost its lease and comes back with old pages in memory.
        /// Not behind a TCP proxy: the owner is the client's address, so all hosts behind one are the same owner.
        plain_exports: bool = false;
        /// Access to `SET/VOLUME@SNAPSHOT`. `token`: only clients that know the snapshot's token (`holdfast snapshot
        /// token SET@SNAPSHOT` prints it). `open`: every client that reaches the NBD port. It can read all data of the
        /// set at that moment, and the names of scheduled snapshots can be guessed.
        snapshot_exports: SnapshotExports = SnapshotExports::Token;
        /// Allow core dumps of this process. They hold keys and clients' data. Without them, nobody but root can trace
        /// the process either.
        core_dumps: bool = false;
        /// Allow gateway and admin traffic without `[tls]` on addresses other than loopback (R10). Use it only on a
        /// network that nobody else can read or write.
        plaintext_network: bool = false;
        /// Round trip between the two farthest gateways, in milliseconds, 1 to 1000. Heartbeat, election and lease
        /// times are computed from it: those of the cluster's own state, and the longest that a set may have. All
        /// gateways of a cluster need the same value. Too low: needless elections. Too high: slower takeover.
        rtt_ms: u32 = 1;
        /// The times of a set follow the round trips that are measured between its voters. They are never computed from
        /// less than this, in milliseconds, 1 to rtt_ms; less than 25 makes no difference. If equal to rtt_ms, every
        /// set uses rtt_ms: for machines whose disks or processors stall now and then.
        rtt_floor_ms: u32 = 1;
        /// A set gets shorter times after round trips have been shorter for this time, in milliseconds, 5000 to
        /// 86400000. Longer times come after three seconds.
        rtt_calm_ms: u64 = 60_000;
        /// Filter of the log, such as `debug` or `holdfast_raft=debug,info`. `--log` and HOLDFAST_LOG outrank it. Left
        /// out: `info,openraft=error`.
        log: Option<String> = None, sample "info,openraft=error";
        /// Default duration of a lease without renewal, in milliseconds, 1000 to 600000. Longer: a dead owner blocks
        /// its successor longer. Shorter: an owner that stalls loses its lease sooner.
        lease_ttl_ms: u32 = 3000;
        /// Threads that run the gateway's tasks, 0 to 64. 0: half of the processors, at least 1, at most 16. Disk and
        /// encryption have their own threads. Too many cost speed: the tasks of one commit then wake each other across
        /// threads.
        worker_threads: u32 = 0;
        /// Addresses under which others reach this gateway, HOST:PORT. Left out: the addresses that it listens on.
        advertise: AdvertiseConfig = AdvertiseConfig::default();
        /// The journal holds every write until it is in the store.
        journal: JournalConfig = JournalConfig::default();
        /// The choice of each set's voters, by the leader of the cluster. The same at every gateway.
        placing: PlacingConfig = PlacingConfig::default();
        /// The cache for data that was read from the store.
        cache: CacheConfig = CacheConfig::default();
        /// Limits on what clients may have in flight. They bound memory.
        in_flight: InFlightConfig = InFlightConfig::default();
        /// Upload from the journal to the store.
        upload: UploadConfig = UploadConfig::default();
        /// Garbage collection in the store, and the speed of repair between several stores.
        space: SpaceConfig = SpaceConfig::default();
        /// The scrub reads all data of a set in its store, slowly, to find damage before the data is needed.
        scrub: ScrubConfig = ScrubConfig::default();
        /// Source of the cluster key. Exactly one source; the same key at every gateway.
        key: KeyConfig = KeyConfig::default();
        /// The previous cluster key, only while the key is being changed; the new key is in `[key]`. Set it at every
        /// gateway. It opens what is not rewrapped yet. `holdfast key list` says when to remove it.
        key_previous: KeyConfig = KeyConfig::default();
        /// Access to s3:// stores. The address of a store belongs to the set. The access keys come from a credentials
        /// file, the usual AWS environment variables or a role of this machine, never from this file.
        store: StoreConfig = StoreConfig::default();
        /// Mutual TLS for NBD, the admin API and between gateways (R10): set all three files, or none. `holdfast
        /// cluster certificates` makes them.
        tls: TlsConfig = TlsConfig::default();
        /// A line of JSON for each call of the admin API that changes something or was refused, and for each refused
        /// call between gateways.
        audit: AuditConfig = AuditConfig::default();
        /// Traces of takeovers and of some writes, for a collector that takes OTLP over gRPC. Nothing waits for it.
        traces: TracesConfig = TracesConfig::default();
        /// An etcd that receives each lease grant, for tools that follow etcd. Nothing waits for it, and nothing is
        /// read from it.
        etcd: EtcdConfig = EtcdConfig::default();
        /// A pair of gateways that uses this etcd in place of a third voter: one serves, the other one stands by. Read
        /// docs/operating/etcd.md before you use it.
        pair: PairConfig = PairConfig::default();
    }
}

/// What a gateway pair guarantees when it answers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum PairDurability {
    /// Flushed data is in the store. If the gateway is lost, the device ends.
    #[default]
    Flush,
    /// Every write is in the store before it is answered.
    Write,
}

impl From<PairDurability> for Durability {
    fn from(durability: PairDurability) -> Self {
        match durability {
            PairDurability::Flush => Durability::Flush,
            PairDurability::Write => Durability::Write,
        }
    }
}

settings! {
    /// A pair of gateways that uses the etcd of `[etcd]` in place of a third voter.
    pub struct PairConfig {
        /// Name of the pair, the same at both gateways. Left out: none, and the cluster needs a majority of gateways.
        name: Option<Name> = None, sample "db";
        /// URLs of the stores that hold the pair's sets, the same at both gateways. The serving gateway takes over
        /// every set of the pair in them.
        stores: Vec<String> = Vec::new();
        /// `flush`: a flush is answered once the store has everything it covers. If the gateway is lost, so is what was
        /// not flushed, and the device ends. `write`: the same holds for every write, so each write is as slow as a
        /// flush.
        durability: PairDurability = PairDurability::Flush;
        /// How long the etcd keeps the seat for a gateway that falls silent, in milliseconds, whole seconds, 3000 to
        /// 600000. The gateway serves for three quarters of it. Shorter: faster takeover. Longer: the pair survives a
        /// slow etcd and its elections.
        ttl_ms: u32 = 10_000;
        /// Set once, to move the sets of a cluster to the pair: the id of that cluster, 32 hex digits. Its gateways
        /// must be gone for good.
        adopt: Option<String> = None, sample "00112233445566778899aabbccddeeff";
    }
}

settings! {
    /// Addresses under which others reach this gateway.
    pub struct AdvertiseConfig {
        /// Admin API.
        api: Option<String> = None, sample "gateway-1.example:7400";
        /// API for other gateways.
        peer: Option<String> = None, sample "gateway-1.example:7401";
        /// NBD clients.
        nbd: Option<String> = None, sample "gateway-1.example:10809";
        /// Metrics and health.
        http: Option<String> = None, sample "gateway-1.example:7402";
    }
}

settings! {
    /// The journal holds every write until it is in the store.
    pub struct JournalConfig {
        /// Maximum size. Writers are slowed down gradually as it fills. It limits how long the store may be away under
        /// load. At most 128GiB.
        bound: ByteSize = ByteSize(8 * GIB);
        /// Part of the bound that is reserved for control entries, so that leases and checkpoints continue while
        /// writers wait. At most half of it.
        reserve: ByteSize = ByteSize(512 * MIB);
        /// Size of one file, 16MiB to 1GiB. Space is freed file by file.
        file: ByteSize = ByteSize(64 * MIB);
        /// Newest entries that are kept in memory, so that followers and reads of fresh data need no disk. At least
        /// 8MiB.
        tail: ByteSize = ByteSize(128 * MIB);
        /// Encrypt the journal and the state snapshots, with a key of this node that the cluster key wraps. Data that
        /// was written before a change stays as it is until it is dropped; after a change to true, see read_clear.
        /// While this gateway serves a set, its data is encrypted for the journals of the others as well; without, each
        /// encrypts it by itself.
        seal: bool = true;
        /// After a change of seal from false to true: also read files in clear that are still there, and do not check
        /// who wrote them. Set it back to false once /healthz says that none is left. While seal is true and this is
        /// false, a gateway with such a file does not start.
        read_clear: bool = false;
        /// How it is written. thread: by a thread of its own. uring: by io_uring from the gateway's workers, which
        /// spares small writes a switch to that thread; where that is forbidden or not durable, the thread does it.
        /// auto: as uring on ext4, as thread elsewhere, for XFS would give such a write to a thread of the kernel.
        /// The log says at the start which it is.
        io: JournalIo = JournalIo::Auto;
    }
}

settings! {
    /// The cache for data that was read from the store.
    pub struct CacheConfig {
        /// Size in memory, at least 32MiB.
        memory: ByteSize = ByteSize(256 * MIB);
        /// Size on disk under data_dir: 0B for none, else at least 64MiB.
        disk: ByteSize = ByteSize(2 * GIB);
        /// Also put uploaded data into the disk cache. A block that is read again after it was written then costs no
        /// request. Set it to false where local disk writes are expensive: each stored byte is written there once more.
        keep_uploaded: bool = true;
        /// How far to read ahead of a sequential reader, 0B (off) to 64MiB; at most 1/32 of memory. More: fewer waits
        /// for a store that is far away, but more wasted reads where the reader stops.
        read_ahead: ByteSize = ByteSize(8 * MIB);
        /// While another gateway leads: read what it uploads from the store into the local disk cache, at most this
        /// much per second for all sets together, 0B (off) to 1GiB. Reads after a takeover then cost no request. Each
        /// gateway except the leader reads every stored byte once; stores and links between regions may charge for
        /// that. If this is less than the average upload rate, the rest is skipped. A witness ignores it.
        warm_bytes_per_second: ByteSize = ByteSize(0);
    }
}

settings! {
    /// Limits on what clients may have in flight.
    pub struct InFlightConfig {
        /// NBD connections of this gateway, 1 to 65536.
        connections: u32 = 1024;
        /// Requests of one connection, 1 to 4096. Further requests stay in the socket.
        connection_requests: u32 = 128;
        /// Requests of this gateway over all connections, 1 to 16777216; never less than two for each connection.
        /// Further requests wait; none is refused. Half of them are split evenly between the connections as a
        /// guaranteed share.
        gateway_requests: u32 = 32_768;
        /// Request bytes of one connection, at least 32MiB (the largest request).
        connection_bytes: ByteSize = ByteSize(64 * MIB);
        /// Request bytes of this gateway over all connections, at least as many as for one connection.
        gateway_bytes: ByteSize = ByteSize(256 * MIB);
    }
}

settings! {
    /// Upload from the journal to the store.
    pub struct UploadConfig {
        /// Maximum time from one checkpoint to the next if anything was written, in milliseconds, 100 to 3600000.
        interval_ms: u64 = 15_000;
        /// Start a checkpoint earlier once this much was written. Less: more and smaller objects. More: the journal
        /// holds more. At most a quarter of journal.bound. Unless it is more than twice journal.tail, half of
        /// journal.tail is enough of data in large pieces: it is uploaded from memory then.
        bytes: ByteSize = ByteSize(256 * MIB);
        /// "lz4", "zstd" or "none".
        compression: Compression = Compression::Lz4;
        /// Parallel uploads to the store, 1 to 64; each takes up to 16MiB of memory.
        parallel: u32 = 4;
        /// A map root of up to this size is written as one object. A larger one is written as a top and leaves, and
        /// each checkpoint writes only the leaves that it changed. 0B (always in leaves) to 16MiB. Left out: 64KiB. A
        /// gateway pair writes every root as one object until it knows that the builds of both gateways read leaves
        /// (docs/operating/etcd.md).
        whole_root: Option<ByteSize> = None, sample "64KiB";
    }
}

settings! {
    /// Garbage collection in the store, and the speed of repair between several stores.
    pub struct SpaceConfig {
        /// Bytes in segments for each 100 bytes in use, 105 to 1000. Above this, checkpoints empty the segments that
        /// hold the least. Lower: a smaller store, but more bytes copied.
        target_percent: u32 = 130;
        /// Limit on the bytes of segments that this reads and writes per second and set, averaged over about a minute,
        /// including the map pages that it has to fetch. 0B: only the limit of each checkpoint (64MiB plus twice what
        /// was written, or what was written while the journal is filling). Too low: the store grows beyond the target.
        move_bytes_per_second: ByteSize = ByteSize(0);
        /// Limit on the requests for this per second and set, averaged over about a minute, 0 to 10000; 0: no limit. A
        /// store may charge for each. It makes one request for each segment that is read or written, and one for each
        /// of its map pages that is in no cache. A segment of small random writes has up to 2000 map pages.
        move_requests_per_second: u32 = 0;
        /// For a set in several stores: bytes copied per second to all stores that lack something, together, averaged
        /// over about a minute; 0B: no limit. Too low: it takes longer to fill a store that was lost or added, and
        /// until then the loss of another store is dangerous.
        repair_bytes_per_second: ByteSize = ByteSize(0);
        /// Maximum time that a running read may still need an object that was replaced, in milliseconds, 100 to
        /// 86400000. Replaced objects are not deleted earlier.
        grace_ms: u64 = 60_000;
        /// Deletions per second and set, 1 to 10000.
        deletes_per_second: u32 = 100;
        /// Time between two listings of the whole store, which find objects of failed uploads, in milliseconds, 1000 to
        /// 604800000. Each listing reads pages of 1000 keys, one after the other.
        sweep_interval_ms: u64 = 3_600_000;
    }
}

settings! {
    /// The scrub reads all data of a set in its store, slowly, to find damage before the data is needed.
    pub struct ScrubConfig {
        /// Bytes read per second and set, 0B (off) to 1GiB. The scrub waits while the store has a problem, and nearly
        /// stops while the set is busy. 1MiB is 2.5TiB in 30 days; stores may charge for what is read.
        bytes_per_second: ByteSize = ByteSize(MIB);
        /// Time from the end of one scrub to the start of the next, in milliseconds, 1000 to 31536000000 (a year).
        /// Default: 30 days.
        interval_ms: u64 = 2_592_000_000;
    }
}

settings! {
    /// Access to s3:// stores.
    pub struct StoreConfig {
        /// Base URL of a server other than AWS.
        endpoint: Option<String> = None, sample "https://s3.example:9000";
        /// Region name for signing requests.
        region: Option<String> = None, sample "us-east-1";
        /// Put the bucket into the path, not into the host name. Most servers other than AWS need this.
        path_style: bool = false;
        /// File with the access keys in the format of the AWS tools: profiles in brackets, aws_access_key_id,
        /// aws_secret_access_key, aws_session_token. A store whose URL has ?profile=NAME uses that profile; all others
        /// use AWS_PROFILE, or else `default`. Mode 0600; a file that others can use is refused. You can put new keys
        /// there at any time: the gateway reads the file within seconds of a change, and at once when its keys are
        /// refused. Left out: the keys of the environment, or else the file that AWS_SHARED_CREDENTIALS_FILE names, or
        /// else the role of this machine, task or pod.
        credentials_file: Option<PathBuf> = None, sample "/etc/holdfast/s3-credentials";
        /// Where sets may be put: URLs of buckets, of prefixes in them, or of directories; `endpoint` included, if the
        /// store's URL has one. Empty: everywhere that this gateway can reach or write to, for whoever may create sets.
        /// The same at every gateway: while they differ, no set is put into a store.
        allowed: Vec<String> = Vec::new();
        /// Timeout for one attempt to read, list or delete, in milliseconds, 100 to 120000. Shorter: a hanging
        /// connection is noticed sooner. Too short for the network: no read ever succeeds.
        read_timeout_ms: u64 = 10_000;
        /// Timeout for one attempt to write, in milliseconds, 100 to 120000. A segment of 16 MiB must get through in
        /// this time.
        write_timeout_ms: u64 = 60_000;
        /// When a set leaves a store: how long to wait for that store to release the set's head, in milliseconds, 1000
        /// to 3600000. If the store is dead, the change of stores waits this long and then completes without it. The
        /// operator then has to empty that store by hand.
        let_go_ms: u64 = 60_000;
    }
}

settings! {
    /// A line of JSON for each call of the admin API that changes something or was refused, and for each refused
    /// call between gateways.
    pub struct AuditConfig {
        /// The file; only the gateway's user can read it. Calls never wait for it: see holdfast_audit_dropped_total
        /// and holdfast_audit_errors_total. Left out: none.
        log: Option<PathBuf> = None, sample "/var/log/holdfast/audit.log";
        /// Size at which the file is renamed to FILE.1, in place of an earlier one, and begun anew, 1MiB to 16GiB.
        rotate: ByteSize = ByteSize(64 * MIB);
    }
}

settings! {
    /// An etcd (3.4 or later) that receives each lease grant.
    pub struct EtcdConfig {
        /// Members of the etcd: http://HOST:PORT or https://HOST:PORT. The first that answers is used. Empty: no etcd.
        endpoints: Vec<String> = Vec::new();
        /// Prefix of the keys: PREFIX/sets/SET/grant. The same at every gateway, and different for each cluster.
        prefix: String = "/holdfast".to_string();
        /// Certificate (PEM) of the authority that signed the certificates of https members.
        ca: Option<PathBuf> = None, sample "/etc/holdfast/etcd/ca.pem";
        /// Client certificate (PEM), if the etcd asks for one.
        certificate: Option<PathBuf> = None, sample "/etc/holdfast/etcd/client.pem";
        /// Private key (PEM) of that certificate; a file that others can read is refused.
        key: Option<PathBuf> = None, sample "/etc/holdfast/etcd/client.key";
    }
}

impl EtcdConfig {
    /// Reads the files; `None` if no member is configured.
    ///
    /// # Errors
    /// A file that cannot be read or is too long, or a key that others can read, with the name of its setting.
    pub fn load(&self) -> Result<Option<EtcdOptions>, (String, std::io::Error)> {
        if self.endpoints.is_empty() {
            return Ok(None);
        }
        let named = |field: &str, path: &Path| format!("etcd.{field} {}", path.display());
        let read =
            |field: &str, path: &Path| files::read(path, PEM_BYTES_MAX).map_err(|error| (named(field, path), error));
        let secret = |path: &Path| match files::read_key(path, PEM_BYTES_MAX) {
            Ok(key) => Ok(key.into_bytes()),
            Err(error) => Err((named("key", path), std::io::Error::from(error))),
        };
        let ca = self.ca.as_deref().map(|path| read("ca", path)).transpose()?;
        let identity = match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => Some((read("certificate", certificate)?, secret(key)?)),
            _ => None,
        };
        Ok(Some(EtcdOptions { endpoints: self.endpoints.clone(), ca, identity }))
    }
}

impl GatewayConfig {
    /// Reads TOML without checking the values.
    ///
    /// # Errors
    /// Not TOML, an unknown field, or a value of another type.
    pub fn parse(text: &str) -> Result<Self, toml::de::Error> {
        toml::from_str(text)
    }

    /// A configuration for a first try: the defaults, plus values for the fields that have none.
    pub fn example() -> Self {
        Self {
            nbd_listen: Some(local(10809)),
            http_listen: Some(local(7402)),
            key: KeyConfig { file: Some(PathBuf::from("/etc/holdfast/cluster.key")), ..KeyConfig::default() },
            ..Self::default()
        }
    }

    /// Number of threads that run the tasks: `worker_threads`, or for 0 the number that fits this machine.
    pub fn workers(&self) -> usize {
        match self.worker_threads {
            0 => std::thread::available_parallelism().map_or(1, |n| (n.get() / 2).clamp(1, 16)),
            n => n as usize,
        }
    }

    /// Where this gateway stands.
    pub fn locality(&self) -> Locality {
        self.locality.clone().unwrap_or_else(|| Locality::of_region(self.region.clone()))
    }

    /// Address of the admin API for others, HOST:PORT.
    pub fn api_address(&self) -> String {
        self.advertise.api.clone().unwrap_or_else(|| self.api_listen.to_string())
    }

    /// Address for other gateways, HOST:PORT.
    pub fn peer_address(&self) -> String {
        self.advertise.peer.clone().unwrap_or_else(|| self.peer_listen.to_string())
    }

    /// NBD address for clients, HOST:PORT; `None` without a TCP listener.
    pub fn nbd_address(&self) -> Option<String> {
        let listen = self.nbd_listen?;
        Some(self.advertise.nbd.clone().unwrap_or_else(|| listen.to_string()))
    }

    /// HTTP address for others, HOST:PORT; `None` without a listener.
    pub fn http_address(&self) -> Option<String> {
        let listen = self.http_listen?;
        Some(self.advertise.http.clone().unwrap_or_else(|| listen.to_string()))
    }

    /// That the HTTP port tells names of sets to other machines without TLS, although this gateway has a certificate.
    pub fn names_in_plain(&self) -> Option<&'static str> {
        let reached = self.http_listen.is_some_and(|listen| !listen.ip().is_loopback());
        let plain = reached && self.tls.any() && self.tls.http_mode() == HttpTls::Off;
        plain.then_some(
            "[tls] http is \"off\": whoever reaches http_listen reads the names of sets and gateways in /metrics, and \
             needs no certificate",
        )
    }
}
